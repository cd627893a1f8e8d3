/*
 * ternary_vnni256 - ternary256.h with VPDPBUSD: weights are at most 240.
 */
#include "kern/x86/matmul/dots256.h"

#define POINT_TIMES 8
#define BEGIN(c, v, start) __m256i a##v##c = start;
#define ADD(c, v, h) a##v##c = with_dots(a##v##c, u##v##_, x_);
#define TOTAL(c, v) a##v##c
#include "kern/x86/matmul/ternary256.h"
