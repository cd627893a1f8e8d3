/*
 * points_vnni256 - points256.h with VPDPBUSD: dots of a sub-scale are gathered in 32 bits, then
 * scaled.
 */
#include "kern/x86/matmul/dots256.h"

#define BEGIN(c) __m256i a0##c = _mm256_setzero_si256(), a1##c = a0##c;
#define FIRST(c, v) a##v##c = with_dots(a##v##c, w##v##_, x##v##_);
#define SECOND(c, v) FIRST(c, v)
#define SCALE(c, v) t##v##c = _mm256_add_epi32(t##v##c, _mm256_mullo_epi32(a##v##c, s##v##_));
#define FACTOR(sub) sub
#include "kern/x86/matmul/points256.h"
