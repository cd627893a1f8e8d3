/* SPDX-License-Identifier: Apache-2.0 */
/* Ternary codes on AVX2.  Weights are at most 30, so that four pairs of products fit 16 bits: 8 *
 * 30 * 127 = 30480. */
#include "base/attr.h"

#include <immintrin.h>

#define KERNEL(name) kern_matmul_##name##_avx2
#define SPREAD kern_matmul_stored_avx2
#define POINT_TIMES 1
#define BEGIN(c, v, start) __m256i p##v##c, a##v##c = start;
#define ADD(c, v, h)                                                                               \
    p##v##c = (h) % 4 ? _mm256_add_epi16(p##v##c, _mm256_maddubs_epi16(u##v##_, x_))               \
                      : _mm256_maddubs_epi16(u##v##_, x_);                                         \
    if ((h) % 4 == 3)                                                                              \
        a##v##c = _mm256_add_epi32(a##v##c, _mm256_madd_epi16(p##v##c, times_));
#define TOTAL(c, v) a##v##c
#include "kern/x86/matmul/ternary256.h"
