/*
 * points_vnni256 - points256.h with VPDPBUSD: dots of a sub-scale are gathered in 32 bits, then
 * scaled.
 */
#include "kern/x86/matmul/dots256.h"

static ATTR_INLINE void point_dot(bool is_second, __m256i w, __m256i x, __m256i s, __m256i *a,
                                  __m256i *t)
{
    (void)is_second;
    (void)s;
    (void)t;
    *a = with_dots(*a, w, x);
}
static ATTR_INLINE void point_end(__m256i a, __m256i s, __m256i *t)
{
    *t = _mm256_add_epi32(*t, _mm256_mullo_epi32(a, s));
#ifdef __AVXVNNI__
    __asm__("" : "+x"(*t)); /* or sums are kept apart, and 16 registers spill */
#endif
}
static ATTR_INLINE __m256i point_factor(__m256i sub) { return sub; }

#include "kern/x86/matmul/points256.h"
