/*
 * matmul_amx_body - products on tiles; included once for real ones and once for emulated ones,
 * which defines KERNEL_NAME(name) to be theirs.
 *
 * Integer products are exact in K = 32 tiles: a group's dots of 16 rows of activations with 16
 * rows of weights are one tile, and a pass in f32 adds it scaled, as everywhere else.  Codes
 * become signed bytes once for all rows of activations.  bf16 products are those of
 * --numerics fast ("fast-tiles"), for any number of rows, so that a row's bits are its own.
 */
#ifndef INGLE_KERN_X86_MATMUL_AMX_BODY_H
#define INGLE_KERN_X86_MATMUL_AMX_BODY_H

#include "base/num.h"
#include "kern/kernels.h"
#include "kern/x86/tile.h"

#include <immintrin.h>

#ifndef KERNEL_NAME
#define KERNEL_NAME(name) kern_##name##_amx
#endif

enum {
    ROWS = 16,              /* of activations in a tile */
    GROUPS = 32,            /* of 32 k in a stretch of integer codes */
    BLOCKS = 8,             /* of 32 k in 256 k of floats */
    WEIGHT_BYTES = 512,     /* of a group: 8 lines */
    PAIR_BYTES = 1024,      /* of a block: 16 lines */
    ACT_STRIDE = GROUPS * 64 + 64, /* of gathered rows; an odd number of lines */
};

/* Activation rows i .. i + n of a product from byte `from` on: where they stand, or copied to
 * `copy`, with zeros for rows that are not there. */
static const uint8_t *rows_at(const struct kern_matmul *m, int64_t i, int64_t n, size_t from,
                              size_t n_bytes, uint8_t *copy, int64_t *stride)
{
    if (!m->row && n == ROWS) {
        *stride = (int64_t)m->x->row_bytes;
        return m->x->q + (size_t)i * m->x->row_bytes + from;
    }
    *stride = ACT_STRIDE;
    for (int64_t r = 0; r < ROWS; r++) {
        if (r < n)
            memcpy(copy + r * ACT_STRIDE, kern_matmul_act(m, i + r) + from, n_bytes);
        else
            memset(copy + r * ACT_STRIDE, 0, n_bytes);
    }
    return copy;
}

/* Results of rows i .. i + n of panel p to and from a square of 16. */
static void y_read(const struct kern_matmul *m, int64_t p, int64_t i, int64_t n, bool first, float *y)
{
    const size_t width = (size_t)kern_matmul_width(m, p) * sizeof *y;
    memset(y, 0, ROWS * KERN_PANEL * sizeof *y);
    for (int64_t r = 0; r < n && !first; r++)
        memcpy(y + r * KERN_PANEL, m->y + (i + r) * m->y_stride + p * KERN_PANEL, width);
}
static void y_write(const struct kern_matmul *m, int64_t p, int64_t i, int64_t n, const float *y)
{
    const size_t width = (size_t)kern_matmul_width(m, p) * sizeof *y;
    for (int64_t r = 0; r < n; r++)
        memcpy(m->y + (i + r) * m->y_stride + p * KERN_PANEL, y + r * KERN_PANEL, width);
}

/* ---- integer codes, groups of 32 ---- */

/* A stretch of a panel as signed bytes and scales. */
struct expanded {
    ATTR_ALIGNED(64) int8_t w[GROUPS][WEIGHT_BYTES];
    float d[GROUPS][KERN_PANEL], m[GROUPS][KERN_PANEL];
};
/* Does group g of a stretch. */
typedef void expand_fn(const uint8_t *stretch, int64_t g, struct expanded *e);

static inline __m512i bytes(int v) { return _mm512_set1_epi8((char)v); }
static inline __m512i quad_8(const uint8_t *g, int j) { return _mm512_loadu_si512(g + 64 * j); }
static inline __m512i quad_4(const uint8_t *g, int j)
{
    const __m512i v = _mm512_loadu_si512(g + 64 * (j % 4));
    return _mm512_and_si512(j < 4 ? v : _mm512_srli_epi16(v, 4), bytes(15));
}
static inline __m512i quad_5(const uint8_t *g, int j)
{
    const __m512i bit = _mm512_and_si512(
        _mm512_srl_epi16(_mm512_loadu_si512(g + 256), _mm_cvtsi32_si128(j)), bytes(1));
    return _mm512_or_si512(quad_4(g, j), _mm512_slli_epi16(bit, 4));
}
static inline __m512i listed(const int8_t *list, __m512i code)
{
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)list)), code);
}
static inline __m512 halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
/* 2^(e - 128), NaN for 255. */
static inline __m512 half_e8m0(const uint8_t *at)
{
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __m512i v = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    v = _mm512_mask_mov_epi32(v, _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), small);
    v = _mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)),
                              _mm512_set1_epi32(0x7FC00000));
    return _mm512_castsi512_ps(v);
}

#define EXPAND(name, bits, n_group, scales, value, d_of, m_of)                                   \
    static void expand_##name(const uint8_t *stretch, int64_t g, struct expanded *e)             \
    {                                                                                            \
        const uint8_t *chunk =                                                                   \
            stretch + g / (n_group) * KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, 0);  \
        const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * (g % (n_group));                 \
        const uint8_t *scale = chunk + KERN_SCALES_AT(bits, n_group) +                           \
                               g % (n_group) * KERN_SCALE_BYTES(KERN_SCALES_##scales);           \
        for (int j = 0; j < 8; j++)                                                              \
            _mm512_store_si512(e->w[g] + 64 * j, value);                                         \
        _mm512_storeu_ps(e->d[g], d_of(scale));                                                  \
        _mm512_storeu_ps(e->m[g], m_of(scale + 32));                                             \
    }
#define NONE(at) _mm512_setzero_ps()
EXPAND(q4_0, 4, 2, D, _mm512_sub_epi8(quad_4(group, j), bytes(8)), halves, NONE)
EXPAND(q4_1, 4, 1, DM, quad_4(group, j), halves, halves)
EXPAND(q5_0, 5, 2, D, _mm512_sub_epi8(quad_5(group, j), bytes(16)), halves, NONE)
EXPAND(q5_1, 5, 1, DM, quad_5(group, j), halves, halves)
EXPAND(q8_0, 8, 2, D, _mm512_xor_si512(quad_8(group, j), bytes(128)), halves, NONE)
EXPAND(iq4_nl, 4, 2, D, listed(quant_nl4, quad_4(group, j)), halves, NONE)
EXPAND(mxfp4, 4, 4, E, listed(quant_e2m1_doubled, quad_4(group, j)), half_e8m0, NONE)

#define EACH_16(F) \
    F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15)
#define X(i) ((const struct kern_act32 *)(const void *)(x + (i) * stride))
#define LOAD_Y(i) __m512 y##i = _mm512_loadu_ps(y + 16 * (i));
#define STORE_Y(i) _mm512_storeu_ps(y + 16 * (i), y##i);
#define ADD(i)                                                                               \
    y##i = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(dot + 16 * (i))),            \
                           _mm512_mul_ps(d, _mm512_set1_ps(X(i)->scale)), y##i);
#define ADD_MIN(i)                                                                           \
    y##i = _mm512_fmadd_ps(_mm512_set1_ps(X(i)->sum),                                        \
                           _mm512_mul_ps(min, _mm512_set1_ps(X(i)->scale)), y##i);

/* One group's tile of dots onto the sums. */
#define PASS(x_, dot_, g)                                \
    {                                                    \
        const uint8_t *x = x_;                           \
        const int32_t *dot = dot_;                       \
        const __m512 d = _mm512_loadu_ps(e->d[g]);       \
        EACH_16(ADD)                                     \
        if (has_min) {                                   \
            const __m512 min = _mm512_loadu_ps(e->m[g]); \
            EACH_16(ADD_MIN)                             \
        }                                                \
    }

/* n groups of one panel times 16 rows: two tiles turn about, so that one is scaled while the
 * next is multiplied. */
static ATTR_INLINE void tile_groups(struct tiles *t, const struct expanded *e, int64_t n,
                                    const uint8_t *a, int64_t stride, float *y, bool has_min)
{
    ATTR_ALIGNED(64) int32_t dots[2][ROWS * KERN_PANEL] = {{0}};
    (void)t;
    EACH_16(LOAD_Y)
    for (int64_t g = 0; g < n; g += 2) {
        TILE_ZERO(t, 0);
        TILE_LOAD(t, 2, a + g * 64, stride);
        TILE_LOAD(t, 4, e->w[g], 64);
        TILE_DOT_S8(t, 0, 2, 4);
        TILE_STORE(t, 0, dots[0], 64);
        if (g + 1 < n) {
            TILE_ZERO(t, 1);
            TILE_LOAD(t, 3, a + g * 64 + 64, stride);
            TILE_LOAD(t, 5, e->w[g + 1], 64);
            TILE_DOT_S8(t, 1, 3, 5);
            TILE_STORE(t, 1, dots[1], 64);
        }
        PASS(a + g * 64, dots[0], g)
        if (g + 1 < n)
            PASS(a + g * 64 + 64, dots[1], g + 1)
    }
    EACH_16(STORE_Y)
}

static void configure(struct tiles *t, int64_t rows, bool bf16)
{
    struct tile_config c = {0};
    for (int i = 0; i < 8; i++) {
        if (bf16 ? i < 4 : i < 2)
            tile_shape(&c, i, (int)rows, 64); /* sums */
        else if (bf16 ? i == 4 : i < 4)
            tile_shape(&c, i, (int)rows, bf16 ? 64 : 32); /* activations */
        else
            tile_shape(&c, i, bf16 ? 16 : 8, 64); /* weights */
    }
    tile_configure(t, &c);
}

static ATTR_INLINE void run_groups(const struct kern_matmul *m, int64_t p0, int64_t p1,
                                   expand_fn *expand, bool has_min)
{
    struct expanded e[KERN_BAND];
    ATTR_ALIGNED(64) uint8_t copy[ROWS * ACT_STRIDE];
    ATTR_ALIGNED(64) float y[ROWS * KERN_PANEL];
    struct tiles t;
    const int64_t n_groups = m->w->in / 32;
    int64_t shape = 0;
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, (p0 / KERN_BAND + 1) * KERN_BAND);
        for (int64_t g0 = 0; g0 < n_groups; g0 += GROUPS) {
            const int64_t n = num_min(GROUPS, n_groups - g0);
            for (int64_t p = p0; p < end; p++)
                for (int64_t g = 0; g < n; g++)
                    expand(kern_code_stretch(m->w, p, g0 / GROUPS), g, &e[p - p0]);
            for (int64_t i = 0; i < m->n; i += ROWS) {
                const int64_t rows = num_min(ROWS, m->n - i);
                int64_t stride;
                if (rows != shape)
                    configure(&t, rows, false);
                shape = rows;
                const uint8_t *a = rows_at(m, i, rows, (size_t)g0 * 64, (size_t)n * 64, copy, &stride);
                for (int64_t p = p0; p < end; p++) {
                    y_read(m, p, i, rows, g0 == 0, y);
                    tile_groups(&t, &e[p - p0], n, a, stride, y, has_min);
                    y_write(m, p, i, rows, y);
                }
            }
        }
    }
    if (shape)
        tile_done(&t);
}

#define KERNEL(name, has_min)                                                                  \
    void KERNEL_NAME(matmul_##name)(const struct kern_matmul *m, int64_t p0, int64_t p1)       \
    {                                                                                          \
        run_groups(m, p0, p1, expand_##name, has_min);                                         \
    }
KERNEL(q4_0, false)
KERNEL(q4_1, true)
KERNEL(q5_0, false)
KERNEL(q5_1, true)
KERNEL(q8_0, false)
KERNEL(iq4_nl, false)
KERNEL(mxfp4, false)

/* ---- bf16 ---- */

/* Two lines of 16 halves, row by row side by side. */
static inline __m512i interleaved(__m512i two)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i at = _mm512_or_si512(
        lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(16)), 16));
    return _mm512_permutexvar_epi16(at, two);
}
/* Floats to bf16, to nearest even; subnormal numbers are zeros. */
static inline __m256i rounded(__m512 x)
{
    const __m512i u = _mm512_castps_si512(x), size = _mm512_and_si512(u, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(size, _mm512_set1_epi32(0x7F800000));
    const __mmask16 small = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x00800000));
    __m512i h = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    h = _mm512_mask_or_epi32(h, nan, u, _mm512_set1_epi32(0x00400000));
    h = _mm512_mask_andnot_epi32(h, small, _mm512_set1_epi32(0x7FFFFFFF), u);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(h, 16));
}
static inline __m512i joined(__m256i a, __m256i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* Pairs of 32 k, block b of a stretch, of the floats of a panel. */
typedef void pairs_fn(const uint8_t *stretch, int64_t b, uint8_t *to);

static void pairs_bf16(const uint8_t *stretch, int64_t b, uint8_t *to)
{
    for (int i = 0; i < PAIR_BYTES; i += 64)
        _mm512_store_si512(to + i, interleaved(_mm512_loadu_si512(stretch + b * PAIR_BYTES + i)));
}
static void pairs_f16(const uint8_t *stretch, int64_t b, uint8_t *to)
{
    for (int i = 0; i < PAIR_BYTES; i += 64) {
        const uint8_t *at = stretch + b * PAIR_BYTES + i;
        _mm512_store_si512(to + i, interleaved(joined(rounded(halves(at)), rounded(halves(at + 32)))));
    }
}
/* 16 codes of E4M3: their bits are a half that is 256 times too small. */
static inline __m512 e4m3(const uint8_t *at)
{
    const __m256i b = _mm256_slli_epi16(
        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at)), 7);
    const __m256i all = _mm256_set1_epi16(0x3F80), sign = _mm256_set1_epi16((short)0xBF80);
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(b, all), all);
    const __m256i h = _mm256_mask_mov_epi16(_mm256_and_si256(b, sign), nan, _mm256_set1_epi16(0x7E00));
    return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(256));
}
static void pairs_f8(const uint8_t *stretch, int64_t b, uint8_t *to)
{
    const uint8_t *chunk = stretch + b / 4 * KERN_F8_CHUNK, *at = chunk + b % 4 * 512;
    const __m512 half = half_e8m0(chunk + KERN_F8_SCALES + b % 4 * 16), s = _mm512_add_ps(half, half);
    for (int i = 0; i < PAIR_BYTES; i += 64, at += 32)
        _mm512_store_si512(to + i, interleaved(joined(rounded(_mm512_mul_ps(e4m3(at), s)),
                                                      rounded(_mm512_mul_ps(e4m3(at + 16), s)))));
}

/* n blocks of up to four panels times the rows that the tiles are shaped for. */
static void tile_blocks(struct tiles *t, const uint8_t *w, int64_t n_panels, int64_t n,
                        const uint8_t *a, int64_t stride, float *y)
{
    const int64_t square = ROWS * KERN_PANEL, panel = BLOCKS * PAIR_BYTES;
    (void)t;
    TILE_LOAD(t, 0, y, 64);
    TILE_LOAD(t, 1, y + square, 64);
    TILE_LOAD(t, 2, y + 2 * square, 64);
    TILE_LOAD(t, 3, y + 3 * square, 64);
    for (int64_t b = 0; b < n; b++) {
        TILE_LOAD(t, 4, a + 64 * b, stride);
        TILE_LOAD(t, 5, w + PAIR_BYTES * b, 64);
        TILE_DOT_BF16(t, 0, 4, 5);
        if (n_panels > 1) {
            TILE_LOAD(t, 6, w + panel + PAIR_BYTES * b, 64);
            TILE_DOT_BF16(t, 1, 4, 6);
        }
        if (n_panels > 2) {
            TILE_LOAD(t, 7, w + 2 * panel + PAIR_BYTES * b, 64);
            TILE_DOT_BF16(t, 2, 4, 7);
        }
        if (n_panels > 3) {
            TILE_LOAD(t, 5, w + 3 * panel + PAIR_BYTES * b, 64);
            TILE_DOT_BF16(t, 3, 4, 5);
        }
    }
    TILE_STORE(t, 0, y, 64);
    TILE_STORE(t, 1, y + square, 64);
    TILE_STORE(t, 2, y + 2 * square, 64);
    TILE_STORE(t, 3, y + 3 * square, 64);
}

static void run_blocks(const struct kern_matmul *m, int64_t p0, int64_t p1, pairs_fn *pairs)
{
    ATTR_ALIGNED(64) uint8_t w[KERN_BAND][BLOCKS * PAIR_BYTES];
    ATTR_ALIGNED(64) uint8_t copy[ROWS * ACT_STRIDE];
    ATTR_ALIGNED(64) float y[KERN_BAND][ROWS * KERN_PANEL] = {{0}};
    struct tiles t;
    const int64_t n_blocks = m->w->in / 32, step = m->w->stretch / 32;
    int64_t shape = 0;
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, (p0 / KERN_BAND + 1) * KERN_BAND);
        for (int64_t b0 = 0; b0 < n_blocks; b0 += BLOCKS) {
            const int64_t n = num_min(BLOCKS, n_blocks - b0);
            for (int64_t p = p0; p < end; p++)
                for (int64_t b = 0; b < n; b++)
                    pairs(kern_code_stretch(m->w, p, b0 / step), b0 % step + b,
                          w[p - p0] + b * PAIR_BYTES);
            for (int64_t i = 0; i < m->n; i += ROWS) {
                const int64_t rows = num_min(ROWS, m->n - i);
                int64_t stride;
                if (rows != shape)
                    configure(&t, rows, true);
                shape = rows;
                const uint8_t *a = rows_at(m, i, rows, (size_t)b0 * 64, (size_t)n * 64, copy, &stride);
                for (int64_t p = p0; p < end; p++)
                    y_read(m, p, i, rows, b0 == 0, y[p - p0]);
                tile_blocks(&t, w[0], end - p0, n, a, stride, y[0]);
                for (int64_t p = p0; p < end; p++)
                    y_write(m, p, i, rows, y[p - p0]);
            }
        }
    }
    if (shape)
        tile_done(&t);
}

#define FAST(type)                                                                             \
    void KERNEL_NAME(fast_##type)(const struct kern_matmul *m, int64_t p0, int64_t p1)         \
    {                                                                                          \
        run_blocks(m, p0, p1, pairs_##type);                                                   \
    }
FAST(bf16)
FAST(f16)
FAST(f8)

#endif
