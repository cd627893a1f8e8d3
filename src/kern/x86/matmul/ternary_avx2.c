/* SPDX-License-Identifier: Apache-2.0 */
/* Ternary codes on AVX2.  Weights are at most 30, so that four pairs of products fit 16 bits: 8 *
 * 30 * 127 = 30480. */
#include "base/attr.h"

#include <immintrin.h>

#define KERNEL(name) kern_matmul_##name##_avx2
#define SPREAD kern_matmul_stored_avx2
#define POINT_TIMES 1
static ATTR_INLINE void ternary_add(int h, __m256i u, __m256i x, __m256i times, __m256i *part,
                                    __m256i *a)
{
    const __m256i product = _mm256_maddubs_epi16(u, x);
    *part = h % 4 ? _mm256_add_epi16(*part, product) : product;
    if (h % 4 == 3)
        *a = _mm256_add_epi32(*a, _mm256_madd_epi16(*part, times));
}
#include "kern/x86/matmul/ternary256.h"
