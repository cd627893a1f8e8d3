/*
 * ternary_vnni256 - ternary256.h with VPDPBUSD: weights are at most 240.
 */
#include "kern/x86/matmul/dots256.h"

#define POINT_TIMES 8
static ATTR_INLINE void ternary_add(int h, __m256i u, __m256i x, __m256i times, __m256i *part,
                                    __m256i *a)
{
    (void)h;
    (void)times;
    (void)part;
    *a = with_dots(*a, u, x);
}
#include "kern/x86/matmul/ternary256.h"
