/* SPDX-License-Identifier: Apache-2.0 */
/* Points on AVX2.  Coordinates are at most 62, so that two pairs of products fit 16 bits: 4 * 62 *
 * 127 = 31496. */
#include "base/attr.h"

#include <immintrin.h>

static ATTR_INLINE __m256i twice(__m256i sub)
{
    return _mm256_or_si256(sub, _mm256_slli_epi32(sub, 16));
}

#define KERNEL(name) kern_matmul_##name##_avx2
#define SPREAD(name) kern_matmul_stored_avx2
#define BEGIN(c) __m256i p0##c, p1##c;
#define FIRST(c, v) p##v##c = _mm256_maddubs_epi16(w##v##_, x##v##_);
#define SECOND(c, v)                                                                               \
    t##v##c = _mm256_add_epi32(                                                                    \
        t##v##c, _mm256_madd_epi16(                                                                \
                     _mm256_add_epi16(p##v##c, _mm256_maddubs_epi16(w##v##_, x##v##_)), s##v##_)); \
    __asm__("" : "+x"(t##v##c)); /* or sums are kept apart, and spilled */
#define SCALE(c, v)
#define FACTOR(sub) twice(sub)
#include "kern/x86/matmul/points256.h"
