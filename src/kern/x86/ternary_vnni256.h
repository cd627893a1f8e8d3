/*
 * ternary_vnni256 - ternary256.h with VPDPBUSD: weights are at most 240.
 */
#include "kern/x86/dots256.h"

#define POINT_TIMES 8
#define BEGIN(c, start) __m256i a##c = start;
#define ADD(c, h, x) a##c = with_dots(a##c, u_, x);
#define TOTAL(c) a##c
#include "kern/x86/ternary256.h"
