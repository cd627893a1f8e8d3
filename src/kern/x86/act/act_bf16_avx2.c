/* SPDX-License-Identifier: Apache-2.0 */
/* Activations to bf16 on AVX2. */
#include "kern/kernels.h"

#include <immintrin.h>
#include <string.h>

/* To nearest even; subnormal numbers to zero; NaN stays one. */
static inline __m256i bf16(const float *x)
{
    const __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)x);
    const __m256i size = _mm256_and_si256(u, _mm256_set1_epi32(0x7FFFFFFF));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i nan = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7F800000));
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), size);
    __m256i h = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    h = _mm256_blendv_epi8(h, _mm256_or_si256(u, _mm256_set1_epi32(0x00400000)), nan);
    h = _mm256_blendv_epi8(h, _mm256_andnot_si256(_mm256_set1_epi32(0x7FFFFFFF), u), small);
    return _mm256_srli_epi32(h, 16);
}

void kern_act_bf16_avx2(const struct kern_act *a, int64_t r0, int64_t r1)
{
    for (int64_t r = r0; r < r1; r++) {
        uint8_t *to = a->q + (size_t)r * a->row_bytes;
        const float *x = a->x + r * a->stride;
        int64_t k = 0;
        for (; k + 16 <= a->k; k += 16) {
            const __m256i v = _mm256_packus_epi32(bf16(x + k), bf16(x + k + 8));
            _mm256_storeu_si256((__m256i *)(void *)(to + 2 * k), _mm256_permute4x64_epi64(v, 0xD8));
        }
        memset(to + 2 * k, 0, a->row_bytes - (size_t)(2 * k));
        for (; k < a->k; k++) {
            const uint16_t h = kern_fast_bf16(x[k]);
            memcpy(to + 2 * k, &h, sizeof h);
        }
    }
}
