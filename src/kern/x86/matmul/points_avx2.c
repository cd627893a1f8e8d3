/* SPDX-License-Identifier: Apache-2.0 */
/* Points on AVX2.  Coordinates are at most 62, so that two pairs of products fit 16 bits: 4 * 62 *
 * 127 = 31496. */
#include "base/attr.h"

#include <immintrin.h>
#include <stdbool.h>

static ATTR_INLINE void point_dot(bool is_second, __m256i w, __m256i x, __m256i s, __m256i *a,
                                  __m256i *t)
{
    const __m256i product = _mm256_maddubs_epi16(w, x);
    if (!is_second) {
        *a = product;
        return;
    }
    *t = _mm256_add_epi32(*t, _mm256_madd_epi16(_mm256_add_epi16(*a, product), s));
    __asm__("" : "+x"(*t)); /* or sums are kept apart, and spilled */
}
static ATTR_INLINE void point_end(__m256i a, __m256i s, __m256i *t)
{
    (void)a;
    (void)s;
    (void)t;
}
/* Twice each, as words. */
static ATTR_INLINE __m256i point_factor(__m256i sub)
{
    return _mm256_or_si256(sub, _mm256_slli_epi32(sub, 16));
}

#define KERNEL(name) kern_matmul_##name##_avx2
#define SPREAD(name) kern_matmul_stored_avx2
#include "kern/x86/matmul/points256.h"
