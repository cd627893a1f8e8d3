/* SPDX-License-Identifier: Apache-2.0 */
/* Activations to int8 on AVX2: the operations of act_ref.c, 8 at a time. */
#include "kern/kernels.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

/* The largest |x| of n (a multiple of 8) as bits: NaN is above infinity. */
static inline uint32_t largest(const float *x, int n)
{
    const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i max = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8)
        max = _mm256_max_epi32(max, _mm256_and_si256(mask, _mm256_castps_si256(
                                                               _mm256_loadu_ps(x + i))));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* The group's scale, and the factor for its codes: 0 where there are none. */
static inline float factor(uint32_t bits, float *scale)
{
    float max;
    memcpy(&max, &bits, sizeof max);
    *scale = bits >= 0x7F800000 ? NAN : 0;
    if (bits >= 0x7F800000 || max < 0x1p-90f)
        return 0;
    *scale = max / 127.0f;
    return 127.0f / max;
}

static inline __m256i codes8(const float *x, __m256 f)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), f));
}
/* 32 codes; the sums of each half: dwords of (k % 4 in {0, 1}, {2, 3}). */
static inline __m256i codes32(const float *x, float f)
{
    const __m256 v = _mm256_set1_ps(f);
    const __m256i a = _mm256_packs_epi32(codes8(x, v), codes8(x + 8, v));
    const __m256i b = _mm256_packs_epi32(codes8(x + 16, v), codes8(x + 24, v));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
}
static inline __m256i pair_sums(__m256i q)
{
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4E));
    return _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xB1));
}

static inline void store_words(void *at, int32_t v) { memcpy(at, &v, sizeof v); }

static inline void quantise32(const float *x, struct kern_act32 *b)
{
    const float f = factor(largest(x, 32), &b->scale);
    const __m256i q = f != 0 ? codes32(x, f) : _mm256_setzero_si256(), s = pair_sums(q);
    _mm256_storeu_si256((__m256i *)(void *)b->q, q);
    const __m128i lo = _mm256_castsi256_si128(s), hi = _mm256_extracti128_si256(s, 1);
    const __m128i both = _mm_add_epi16(lo, hi);
    const int32_t sum =
        _mm_cvtsi128_si32(_mm_madd_epi16(both, _mm_set1_epi16(1)));
    b->sum = (float)sum;
    b->start8 = -8 * sum;
    b->start128 = -128 * sum;
    store_words(b->pairs8, _mm_cvtsi128_si32(_mm_mullo_epi16(both, _mm_set1_epi16(-8))));
    store_words(b->pairs16, _mm_cvtsi128_si32(_mm_mullo_epi16(both, _mm_set1_epi16(-16))));
    store_words(b->pairs[0], _mm_cvtsi128_si32(lo));
    store_words(b->pairs[1], _mm_cvtsi128_si32(hi));
}

void kern_act_q32_avx2(const struct kern_act *a, int64_t r0, int64_t r1)
{
    for (int64_t r = r0; r < r1; r++) {
        struct kern_act32 *b = (struct kern_act32 *)(void *)(a->q + (size_t)r * a->row_bytes);
        const float *x = a->x + r * a->stride;
        for (int64_t g = 0; g < a->k / 32; g++)
            quantise32(x + 32 * g, b + g);
    }
}

static inline void quantise256(const float *x, struct kern_act256 *b)
{
    const float f = factor(largest(x, 256), &b->scale);
    int all = 0;
    memset(b->pad, 0, sizeof b->pad);
    for (int h = 0; h < 8; h++) {
        const __m256i q = f != 0 ? codes32(x + 32 * h, f) : _mm256_setzero_si256();
        const __m256i s = pair_sums(q), start = _mm256_mullo_epi16(s, _mm256_set1_epi16(-32));
        const __m256i sum = _mm256_madd_epi16(s, _mm256_set1_epi16(1));
        const int lo = _mm256_extract_epi32(sum, 0), hi = _mm256_extract_epi32(sum, 4);
        _mm256_storeu_si256((__m256i *)(void *)(b->q + 32 * h), q);
        store_words(b->pairs32[2 * h], _mm256_extract_epi32(start, 0));
        store_words(b->pairs32[2 * h + 1], _mm256_extract_epi32(start, 4));
        b->sum16[2 * h] = (int16_t)lo;
        b->sum16[2 * h + 1] = (int16_t)hi;
        b->sum32[h] = (int16_t)(lo + hi);
        all += lo + hi;
    }
    b->start128 = -128 * all;
}

void kern_act_q256_avx2(const struct kern_act *a, int64_t r0, int64_t r1)
{
    for (int64_t r = r0; r < r1; r++) {
        struct kern_act256 *b = (struct kern_act256 *)(void *)(a->q + (size_t)r * a->row_bytes);
        const float *x = a->x + r * a->stride;
        for (int64_t i = 0; i < a->k / 256; i++)
            quantise256(x + 256 * i, b + i);
    }
}
