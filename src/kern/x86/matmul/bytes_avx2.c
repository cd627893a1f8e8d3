/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products for many rows on AVX2 of codes whose sums of a group fit 16 bits (madd256.h has the
 * bounds): panels are spread to bytes once for all rows, so that tiles do not unpack them.  The two
 * panels take turns.
 *
 * sub of spread256 is a sub-scale twice, as words; its min are pairs, of rows 0 to 7 and then of 8
 * to 15.
 */
#include "kern/kernels.h"
#include "kern/x86/matmul/order256.h"
#include "kern/x86/matmul/quads256.h"

enum { LISTED = 16 };

/* ---- tiles: a panel times three to six rows; groups of 32 ---- */

static ATTR_INLINE __m256i start32(const struct kern_code *code, int half,
                                   const struct kern_act32 *x)
{
    if (code->scales == KERN_SCALES_E2)
        return _mm256_mullo_epi16(spread_words(x->pairs[half]), _mm256_set1_epi16(-LISTED));
    switch (code_bias(code, LISTED)) {
    case 8: return spread_words(x->pairs8);
    case 16: return spread_words(x->pairs16);
    default: return _mm256_setzero_si256();
    }
}
static ATTR_INLINE __m256 whole(__m256i words)
{
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(words, _mm256_set1_epi16(1)));
}
/* A group, both halves of which may have scales of their own, the second one m. */
static ATTR_INLINE void group32(const int rows, const struct kern_code *code,
                                const struct spread32 *w, const struct kern_act32 *const *x,
                                const uint8_t **prefetch, size_t step, float *y)
{
    const bool is_half = code->scales == KERN_SCALES_E2;
    __m256i lo[SPREAD_ROWS], hi[SPREAD_ROWS];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const int8_t *q[SPREAD_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            q[c] = x[c]->q + 16 * half;
            if (half == 0 || is_half)
                lo[c] = hi[c] = start32(code, half, x[c]);
        }
        spread_quads(rows, false, w->w + 4 * half, q, prefetch, step, lo, hi);
        if (half == 0 && !is_half)
            continue;
        const float *const at = half && is_half ? w->m : w->d;
        const __m256 d[2] = {_mm256_load_ps(at), _mm256_load_ps(at + 8)};
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            spread_add_two(y, c, whole(lo[c]), whole(hi[c]), d, x[c]->scale, false);
    }
    if (!code_has_min(code))
        return;
    const __m256 m[2] = {_mm256_load_ps(w->m), _mm256_load_ps(w->m + 8)};
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        const __m256 sum = _mm256_set1_ps(x[c]->sum);
        spread_add_two(y, c, sum, sum, m, x[c]->scale, false);
    }
}
static ATTR_INLINE void tile32(const int rows, const struct kern_code *code,
                               const struct spread_call *v)
{
    const uint8_t *prefetch = v->prefetch;
    for (int p = 0; p < 2; p++) {
        const struct spread32 *w = p ? v->w1 : v->w0;
        float *const y = v->y + KERN_PANEL * p;
        const struct kern_act32 *x[SPREAD_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            x[c] = (const struct kern_act32 *)(const void *)v->x[c];
        if (v->first)
            spread_clear(rows, y);
        for (int64_t g = 0; g < v->n; g++, w++) {
            if (p)
                spread_next(rows, v, g);
            group32(rows, code, w, x, &prefetch, v->step, y);
#pragma GCC unroll 8
            for (int c = 0; c < rows; c++)
                x[c]++;
        }
    }
    spread_end(v, rows);
}

/* ---- super-blocks of 256 ---- */

/* -bias times the sums of q of 16. */
static ATTR_INLINE __m256i start16(const struct kern_code *code, const struct kern_act256 *x, int i)
{
    switch (code->bias) {
    case 4: return _mm256_srai_epi16(spread_words(x->pairs32[i]), 3);
    case 32: return spread_words(x->pairs32[i]);
    default: return _mm256_setzero_si256();
    }
}
/* t += a group, with sub-scales for 32 or for 16; 16 codes of 5 bits fill a lane. */
static ATTR_INLINE void group256(const int rows, const struct kern_code *code,
                                 const struct spread256 *w, int h,
                                 const struct kern_act256 *const *x, const uint8_t **prefetch,
                                 size_t step, __m256i (*t)[2])
{
    const bool is_half = code_subs(code) == 2 || code->bits == 5;
    __m256i lo[SPREAD_ROWS], hi[SPREAD_ROWS];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const int8_t *q[SPREAD_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            q[c] = x[c]->q + 32 * h + 16 * half;
            if (half == 0 || is_half)
                lo[c] = hi[c] = start16(code, x[c], 2 * h + half);
        }
        spread_quads(rows, false, w->w + 8 * h + 4 * half, q, prefetch, step, lo, hi);
        if (half == 0 && !is_half)
            continue;
        const uint8_t *const at =
            (const uint8_t *)w->sub[code_subs(code) == 2 ? 2 * h + half : h];
        const __m256i sub0 = spread_load(at), sub1 = spread_load(at + 32);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            t[c][0] = _mm256_add_epi32(t[c][0], _mm256_madd_epi16(lo[c], sub0));
            t[c][1] = _mm256_add_epi32(t[c][1], _mm256_madd_epi16(hi[c], sub1));
        }
    }
}
/* Pairs of sums of q times pairs of sub-minimums. */
static ATTR_INLINE void less_mins(const int rows, const struct kern_code *code,
                                  const struct spread256 *w, const struct kern_act256 *const *x,
                                  float *y)
{
    const int n_pairs = 4 * code_subs(code);
    __m256i lo[SPREAD_ROWS], hi[SPREAD_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        lo[c] = hi[c] = _mm256_setzero_si256();
    for (int i = 0; i < n_pairs; i++) {
        const uint8_t *const min = (const uint8_t *)w->min[i];
        const __m256i w0 = spread_load(min), w1 = spread_load(min + 32);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m256i sums =
                spread_words((code_subs(code) == 2 ? x[c]->sum16 : x[c]->sum32) + 2 * i);
            lo[c] = spread_word_dot(lo[c], w0, sums);
            hi[c] = spread_word_dot(hi[c], w1, sums);
        }
    }
    const __m256 d[2] = {_mm256_load_ps(w->dmin), _mm256_load_ps(w->dmin + 8)};
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        spread_add_two(y, c, _mm256_cvtepi32_ps(lo[c]), _mm256_cvtepi32_ps(hi[c]), d, x[c]->scale,
                       true);
}
static ATTR_INLINE void block256(const int rows, const struct kern_code *code,
                                 const struct spread_call *v, int64_t b, int p,
                                 const struct kern_act256 *const *x, const uint8_t **prefetch)
{
    const struct spread256 *const w = (const struct spread256 *)(p ? v->w1 : v->w0) + b;
    float *const y = v->y + KERN_PANEL * p;
    __m256i t[SPREAD_ROWS][2];
    if (v->first && b == 0)
        spread_clear(rows, y);
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        t[c][0] = t[c][1] = _mm256_setzero_si256();
    for (int h = 0; h < 8; h++) {
        if (p && h < 6)
            spread_next(rows, v, 6 * b + h);
        group256(rows, code, w, h, x, prefetch, v->step, t);
    }
    const __m256 d[2] = {_mm256_load_ps(w->d), _mm256_load_ps(w->d + 8)};
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        spread_add_two(y, c, _mm256_cvtepi32_ps(t[c][0]), _mm256_cvtepi32_ps(t[c][1]), d,
                       x[c]->scale, false);
    if (code_has_min(code))
        less_mins(rows, code, w, x, y);
}
static ATTR_INLINE void tile256(const int rows, const struct kern_code *code,
                                const struct spread_call *v)
{
    const uint8_t *prefetch = v->prefetch;
    for (int64_t b = 0; b < v->n; b++) {
        const struct kern_act256 *x[SPREAD_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            x[c] = (const struct kern_act256 *)(const void *)v->x[c] + b;
        for (int p = 0; p < 2; p++)
            block256(rows, code, v, b, p, x, &prefetch);
    }
    spread_end(v, rows);
}

/* ---- panels to bytes ---- */

static ATTR_INLINE void put_group(const struct kern_code *code, __m256i table,
                                  const uint8_t *group, uint8_t (*line)[64])
{
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        put_two(line[j], quad(code, table, group, j), quad(code, table, group + 32, j));
}
static ATTR_INLINE void spread_all32(const struct kern_code *code, const uint8_t *chunk, int64_t n,
                                     struct spread32 *to)
{
    const __m256i table = quad_table(code, LISTED);
    for (int64_t g = 0; g < n; chunk += code->chunk_bytes)
        for (int i = 0; i < code->n_group && g < n; i++, g++, to++) {
            const uint8_t *scale = code_scale(code, chunk, i);
            __m256 d[2];
            put_group(code, table, code_group(code, chunk, i), to->w);
            d32(code, scale, d);
            put_scales(to->d, d[0], d[1]);
            if (code->scales == KERN_SCALES_E2) {
                d32(code, scale + 16, d);
                put_scales(to->m, d[0], d[1]);
            }
            if (code_has_min(code))
                put_scales(to->m, halves(scale + 32), halves(scale + 48));
        }
}
/* A sub-scale, twice each. */
static ATTR_INLINE void put_sub(const struct kern_code *code, const uint8_t *at, void *to)
{
    const __m128i v = code->scales == KERN_SCALES_SUB16_NIB
                          ? _mm_and_si128(row16(at), _mm_set1_epi8(15))
                          : row16(at);
    if (code->scales == KERN_SCALES_SUB16)
        put_two(to, doubled_s8(v, 0), doubled_s8(v, 1));
    else
        put_two(to, doubled_u8(v, 0), doubled_u8(v, 1));
}
static ATTR_INLINE void put_subs(const struct kern_code *code, const uint8_t *s, int h,
                                 struct spread256 *to)
{
    const int n_sub = code_subs(code);
#pragma GCC unroll 2
    for (int i = 0; i < n_sub; i++)
        put_sub(code, s + 16 * (n_sub * h + i), to->sub[n_sub * h + i]);
    if (code->scales == KERN_SCALES_SUB8_MIN && h % 2)
        put_two(to->min[h / 2], paired(s + 112 + 16 * h, 0), paired(s + 112 + 16 * h, 1));
    if (code->scales == KERN_SCALES_SUB16_NIB)
        put_two(to->min[h], _mm256_srli_epi16(paired(s + 32 * h, 0), 4),
                _mm256_srli_epi16(paired(s + 32 * h, 1), 4));
}
static ATTR_INLINE void spread_all256(const struct kern_code *code, const uint8_t *chunk, int64_t n,
                                      struct spread256 *to)
{
    for (int64_t b = 0; b < n; b++, to++, chunk += code->chunk_bytes) {
        const uint8_t *s = chunk + KERN_SCALES_AT(code->bits, 8), *d = s + code_sub_bytes(code);
        for (int h = 0; h < 8; h++) {
            put_group(code, bytes(0), code_group(code, chunk, h), to->w + 8 * h);
            put_subs(code, s, h, to);
        }
        put_scales(to->d, halves(d), halves(d + 16));
        if (code_has_min(code))
            put_scales(to->dmin, halves(d + 32), halves(d + 48));
    }
}

/* ---- kernels ---- */

#define BYTES(name, id, tile, block_)                                                              \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *to)                           \
    {                                                                                              \
        spread_all##block_(&tile_codes[KERN_CODE_##id], chunk, n, to);                             \
    }                                                                                              \
    SPREAD_KERNEL(kern_matmul_##name##_bytes_avx2, spread_##name, tile, block_,                    \
                  struct spread##block_, SPREAD_BYTES_##id)

/* Codes with the same bias and kind of scales have the same tiles. */
SPREAD_TILES(tile_q4_0, tile32, &tile_codes[KERN_CODE_Q4_0])
SPREAD_TILES(tile_q4_1, tile32, &tile_codes[KERN_CODE_Q4_1])
SPREAD_TILES(tile_q5_0, tile32, &tile_codes[KERN_CODE_Q5_0])
SPREAD_TILES(tile_nvfp4, tile32, &tile_codes[KERN_CODE_NVFP4])
BYTES(q4_0, Q4_0, tile_q4_0, 32)
BYTES(q4_1, Q4_1, tile_q4_1, 32)
BYTES(q5_0, Q5_0, tile_q5_0, 32)
BYTES(mxfp4, MXFP4, tile_q5_0, 32)
BYTES(nvfp4, NVFP4, tile_nvfp4, 32)
SPREAD_TILES(tile_q4_k, tile256, &tile_codes[KERN_CODE_Q4_K])
SPREAD_TILES(tile_q5_k, tile256, &tile_codes[KERN_CODE_Q5_K])
SPREAD_TILES(tile_q6_k, tile256, &tile_codes[KERN_CODE_Q6_K])
SPREAD_TILES(tile_q3_k, tile256, &tile_codes[KERN_CODE_Q3_K])
SPREAD_TILES(tile_q2_k, tile256, &tile_codes[KERN_CODE_Q2_K])
BYTES(q4_k, Q4_K, tile_q4_k, 256)
BYTES(q5_k, Q5_K, tile_q5_k, 256)
BYTES(q6_k, Q6_K, tile_q6_k, 256)
BYTES(q3_k, Q3_K, tile_q3_k, 256)
BYTES(q2_k, Q2_K, tile_q2_k, 256)
