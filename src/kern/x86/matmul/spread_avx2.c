/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products for many rows of codes whose values are 8 bits, on AVX2: panels and activations are
 * spread to words of 16 bits, so that a pair of products and a sum are two instructions without a
 * sign.  256 k of two panels (17 KiB) and of six rows (3.4 KiB) are in the first cache, the
 * activations of a stretch (135 KiB) in the second.
 *
 * Words of four k: 0 and 2, then 1 and 3, which shifts make of bytes where they stand.
 */
#include "kern/kernels.h"
#include "kern/x86/matmul/order256.h"
#include "kern/x86/matmul/quads256.h"

enum { WORDS_K = 256, WORDS_ROWS = 60, WORDS_PARTS = 1024 / WORDS_K };

/* A panel: line j is pair j of its 16 rows. */
struct words32 {
    int16_t w[16][32];
    float d[KERN_PANEL];
};
/* Words are values times sub-scales: at most 127 * 32. */
struct words256 {
    int16_t w[128][32];
    float d[KERN_PANEL];
};
/* WORDS_K of a row of activations, in pairs; the scale of each group, or of all. */
struct words_act {
    int16_t q[WORDS_K];
    float scale[8], pad[8];
};
static_assert(sizeof(struct words32) % 64 == 0 && sizeof(struct words256) % 64 == 0 &&
                  sizeof(struct words_act) % 64 == 0,
              "whole lines");
static_assert(sizeof(struct words256) <= sizeof ((struct spread_work *)0)->w[0] &&
                  sizeof(struct words32) * (WORDS_K / 32) <= sizeof ((struct spread_work *)0)->w[0],
              "either fits");

static ATTR_INLINE __m256i first_words(__m256i v)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
}
static ATTR_INLINE __m256i second_words(__m256i v) { return _mm256_srai_epi16(v, 8); }
static ATTR_INLINE void put(int16_t *to, __m256i v)
{
    _mm256_store_si256((__m256i *)(void *)to, v);
}

/* ---- tiles: a panel times three to six rows; two panels take turns ---- */

/* Sums keep their order, too. */
static ATTR_INLINE __m256i words_product(__m256i w, __m256i x)
{
    __m256i product;
    __asm__ volatile("vpmaddwd %2, %1, %0" : "=x"(product) : "x"(w), "x"(x));
    return product;
}

/* Pair j of a panel, whose lines are at w, times those of the rows x: added to a of rows 0 to 7 and
 * b of 8 to 15, or their beginning. */
static ATTR_INLINE void words_pair(const int rows, const uint8_t *w, const struct words_act *x,
                                   int64_t at, int j, bool is_first, __m256i *a, __m256i *b)
{
    const __m256i w0 = spread_load(w + 64 * j), w1 = spread_load(w + 64 * j + 32);
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        const __m256i v = spread_words(x[c].q + at + 2 * j);
        a[c] = is_first ? words_product(w0, v) : spread_word_dot(a[c], w0, v);
        b[c] = is_first ? words_product(w1, v) : spread_word_dot(b[c], w1, v);
    }
}
/* A group of 32. */
static ATTR_INLINE void words_group(const int rows, const uint8_t *w, const struct words_act *x,
                                    int64_t at, bool is_first, const uint8_t **prefetch,
                                    size_t step, __m256i *a, __m256i *b)
{
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) {
        if (j == (is_first && j < 2 ? 1 : j / 2 * 2)) {
            spread_prefetch(*prefetch);
            *prefetch += step;
        }
        words_pair(rows, w, x, at, j, is_first && j == 0, a, b);
    }
}
static ATTR_INLINE void words_finish(const int rows, const __m256i *a, const __m256i *b,
                                     const float *scales, const struct words_act *x, int64_t g,
                                     float *y)
{
    const __m256 d[2] = {_mm256_load_ps(scales), _mm256_load_ps(scales + 8)};
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        spread_add_two(y, c, _mm256_cvtepi32_ps(a[c]), _mm256_cvtepi32_ps(b[c]), d, x[c].scale[g],
                       false);
}
static ATTR_INLINE void tile32(const int rows, const struct spread_call *v,
                               const struct words_act *x, const struct words32 *from, float *y,
                               const uint8_t **prefetch)
{
    for (int64_t g = 0; g < v->n; g++, from++) {
        __m256i a[SPREAD_ROWS], b[SPREAD_ROWS];
        words_group(rows, (const uint8_t *)from->w, x, 32 * g, true, prefetch, v->step / 2, a, b);
        words_finish(rows, a, b, from->d, x, g, y);
    }
}
static ATTR_INLINE void tile256(const int rows, const struct spread_call *v,
                                const struct words_act *x, const struct words256 *from, float *y,
                                const uint8_t **prefetch)
{
    const uint8_t *w = (const uint8_t *)from->w;
    __m256i a[SPREAD_ROWS], b[SPREAD_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        a[c] = b[c] = _mm256_setzero_si256();
    for (int64_t at = 0; at < WORDS_K; at += 32, w += 1024)
        words_group(rows, w, x, at, false, prefetch, v->step / 2, a, b);
    words_finish(rows, a, b, from->d, x, 0, y);
}
static ATTR_INLINE void tile(const int rows, int block, const struct spread_call *v)
{
    const struct words_act *const x = (const struct words_act *)(const void *)v->x[0];
    const uint8_t *prefetch = v->prefetch;
    for (int second = 0; second < 2; second++) {
        const void *const from = second ? v->w1 : v->w0;
        float *const y = v->y + KERN_PANEL * second;
        if (v->first)
            spread_clear(rows, y);
        if (block == 32)
            tile32(rows, v, x, from, y, &prefetch);
        else
            tile256(rows, v, x, from, y, &prefetch);
    }
    spread_end(v, rows);
}
SPREAD_TILES(words32, tile, 32)
SPREAD_TILES(words256, tile, 256)

/* ---- activations ---- */

static ATTR_INLINE void put_act(const int8_t *q, int16_t *to)
{
    const __m256i v = half_line((const uint8_t *)q), a = first_words(v), b = second_words(v);
    const __m256i lo = _mm256_unpacklo_epi32(a, b), hi = _mm256_unpackhi_epi32(a, b);
    put(to, _mm256_permute2x128_si256(lo, hi, 0x20));
    put(to + 16, _mm256_permute2x128_si256(lo, hi, 0x31));
}
static void spread_act32(const uint8_t *act, int64_t n, uint8_t *to)
{
    const struct kern_act32 *const from = (const struct kern_act32 *)(const void *)act;
    struct words_act *const words = (struct words_act *)(void *)to;
    for (int64_t g = 0; g < n; g++) {
        put_act(from[g].q, words->q + 32 * g);
        words->scale[g] = from[g].scale;
    }
}
static void spread_act256(const uint8_t *act, int64_t n, uint8_t *to)
{
    const struct kern_act256 *const from = (const struct kern_act256 *)(const void *)act;
    struct words_act *const words = (struct words_act *)(void *)to;
    (void)n;
    for (int h = 0; h < 8; h++)
        put_act(from->q + 32 * h, words->q + 32 * h);
    words->scale[0] = from->scale;
}

/* ---- codes ---- */

/* The value of a code, in the order of quads. */
static ATTR_INLINE __m256i value(const struct kern_code *code, __m256i table, const uint8_t *group,
                                 int j)
{
    const __m256i v = quad(code, table, group, j);
    return code->bits == 8 ? _mm256_xor_si256(v, bytes(128)) : v;
}
/* Quad j of 8 rows as two lines of words, times a factor or as they are. */
static ATTR_INLINE void put_words(int16_t (*to)[32], int half, __m256i v, bool times,
                                  __m256i factor)
{
    const __m256i first = first_words(v), second = second_words(v);
    put(to[0] + half, times ? _mm256_mullo_epi16(first, factor) : first);
    put(to[1] + half, times ? _mm256_mullo_epi16(second, factor) : second);
}
static ATTR_INLINE void put_group(const struct kern_code *code, __m256i table, const uint8_t *group,
                                  int16_t (*to)[32], bool times, __m256i sub0, __m256i sub1)
{
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        put_words(to + 2 * j, 0, value(code, table, group, j), times, sub0);
        put_words(to + 2 * j, 16, value(code, table, group + 32, j), times, sub1);
    }
}
static ATTR_INLINE void spread32(const struct kern_code *code, const uint8_t *chunk, int64_t n,
                                 struct words32 *to)
{
    const __m256i table = quad_table(code, 0), none = _mm256_setzero_si256();
    for (int64_t g = 0; g < n; chunk += code->chunk_bytes)
        for (int i = 0; i < code->n_group && g < n; i++, g++, to++) {
            const uint8_t *scale = code_scale(code, chunk, i);
            put_group(code, table, code_group(code, chunk, i), to->w, false, none, none);
            put_scales(to->d, halves(scale), halves(scale + 16));
        }
}
static void spread_q8_0(const uint8_t *chunk, int64_t n, void *to)
{
    spread32(&tile_codes[KERN_CODE_Q8_0], chunk, n, to);
}
static void spread_iq4_nl(const uint8_t *chunk, int64_t n, void *to)
{
    spread32(&tile_codes[KERN_CODE_IQ4_NL], chunk, n, to);
}
static void spread_iq4_xs(const uint8_t *chunk, int64_t n, void *all)
{
    const struct kern_code *const code = &tile_codes[KERN_CODE_IQ4_XS];
    const __m256i table = quad_table(code, 0);
    struct words256 *const to = all;
    const uint8_t *const s = chunk + KERN_SCALES_AT(4, 8);
    (void)n;
    for (int h = 0; h < 8; h++) {
        const __m128i sub = row16(s + 16 * h);
        put_group(code, table, code_group(code, chunk, h), to->w + 16 * h, true, doubled_s8(sub, 0),
                  doubled_s8(sub, 1));
    }
    put_scales(to->d, halves(s + 128), halves(s + 144));
}

#define WORDS_KERNEL(name, id, tile, act, block)                                                   \
    void kern_matmul_##name##_words_avx2(const struct kern_matmul *m, int64_t p0, int64_t p1)      \
    {                                                                                              \
        static const struct spread_code c = {spread_##name,                                        \
                                             {tile##_3, tile##_4, tile##_5, tile##_6},             \
                                             block,                                                \
                                             sizeof(struct tile),                                  \
                                             SPREAD_BYTES_##id / (SPREAD_K / WORDS_K),             \
                                             WORDS_K,                                              \
                                             WORDS_ROWS,                                           \
                                             act,                                                  \
                                             sizeof(struct words_act)};                            \
        ATTR_ALIGNED(64) uint8_t acts[WORDS_PARTS * WORDS_ROWS * sizeof(struct words_act)];        \
        spread_run(m, &c, acts, p0, p1);                                                           \
    }
WORDS_KERNEL(q8_0, Q8_0, words32, spread_act32, 32)
WORDS_KERNEL(iq4_nl, IQ4_NL, words32, spread_act32, 32)
WORDS_KERNEL(iq4_xs, IQ4_XS, words256, spread_act256, 256)
