/*
 * fast_amx_body - products of float weights with --numerics fast ("fast-panels") on tiles; included
 * once for real ones and once for emulated ones, which defines KERNEL_NAME(name) to be theirs.
 *
 * Weights of two panels become bf16 pairs, 256 k at a time, once for all rows of activations, and
 * meet these 32 by 32: four tiles of sums, two of activations, two of weights.  Meanwhile the next
 * pairs are made, by the vector units.  The sums of 16 panels and 256 k of activations stay in the
 * second cache.
 */
#ifndef INGLE_KERN_X86_MATMUL_FAST_AMX_BODY_H
#define INGLE_KERN_X86_MATMUL_FAST_AMX_BODY_H

#include "base/num.h"
#include "kern/kernels.h"
#include "kern/x86/matmul/quads512.h"
#include "kern/x86/matmul/tile.h"

#include <immintrin.h>

#ifndef KERNEL_NAME
#define KERNEL_NAME(name) kern_##name##_amx
#endif

enum {
    ROWS = 16,                      /* of activations in a tile */
    UNIT = 2 * ROWS,
    MOST = 512, PANELS = 16,        /* rows and panels whose sums stand side by side */
    SQUARE = ROWS * KERN_PANEL,
    BLOCKS = 8,                     /* of 32 k that are expanded at a time */
    PAIR_BYTES = 1024,              /* of a block: 16 lines */
    COPIED = 256,                   /* rows that are copied side by side ... */
    COPY_STRIDE = BLOCKS * 64 + 64, /* ... an odd number of lines apart */
};

/* ---- weights to pairs ---- */

/* Pairs of 32 k, block b of a stretch, of a panel: line i has k = 2 i, 2 i + 1 of 16 rows, row by
 * row. */
typedef void pairs_fn(const uint8_t *stretch, int64_t b, uint8_t *to);

/* Floats to bf16, to nearest even; subnormal numbers are zeros. */
static ATTR_INLINE ATTR_UNUSED __m256i rounded(__m512 x)
{
    const __m512i u = _mm512_castps_si512(x),
                  size = _mm512_and_si512(u, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(size, _mm512_set1_epi32(0x7F800000));
    const __mmask16 small = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x00800000));
    __m512i h = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    h = _mm512_mask_or_epi32(h, nan, u, _mm512_set1_epi32(0x00400000));
    h = _mm512_mask_andnot_epi32(h, small, _mm512_set1_epi32(0x7FFFFFFF), u);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(h, 16));
}
/* 32 floats side by side. */
static ATTR_INLINE __m512i both_rounded(__m512 a, __m512 b)
{
#ifdef TILE_EMULATED
    return _mm512_inserti64x4(_mm512_castsi256_si512(rounded(a)), rounded(b), 1);
#else
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
#endif
}
/* Two lines of 16 halves, row by row side by side. */
static ATTR_INLINE __m512i interleaved(__m512i two)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i at = _mm512_or_si512(
        lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(16)), 16));
    return _mm512_permutexvar_epi16(at, two);
}
static ATTR_INLINE void pairs_bf16(const uint8_t *stretch, int64_t b, uint8_t *to)
{
    for (int i = 0; i < PAIR_BYTES; i += 64)
        _mm512_store_si512(to + i, interleaved(_mm512_loadu_si512(stretch + b * PAIR_BYTES + i)));
}
static ATTR_INLINE void pairs_f16(const uint8_t *stretch, int64_t b, uint8_t *to)
{
    for (int i = 0; i < PAIR_BYTES; i += 64) {
        const uint8_t *at = stretch + b * PAIR_BYTES + i;
        _mm512_store_si512(to + i, interleaved(both_rounded(halves(at), halves(at + 32))));
    }
}
/* 16 codes of E4M3: their bits are a half that is 256 times too small. */
static ATTR_INLINE __m512 e4m3(const uint8_t *at)
{
    const __m256i b = _mm256_slli_epi16(
        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at)), 7);
    const __m256i all = _mm256_set1_epi16(0x3F80), sign = _mm256_set1_epi16((short)0xBF80);
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(b, all), all);
    const __m256i h =
        _mm256_mask_mov_epi16(_mm256_and_si256(b, sign), nan, _mm256_set1_epi16(0x7E00));
    return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(256));
}
static ATTR_INLINE void pairs_f8(const uint8_t *stretch, int64_t b, uint8_t *to)
{
    const uint8_t *chunk = stretch + b / 4 * KERN_F8_CHUNK, *at = chunk + b % 4 * 512;
    const __m512 half = half_e8m0(chunk + KERN_F8_SCALES + b % 4 * 16),
                 s = _mm512_add_ps(half, half);
    for (int i = 0; i < PAIR_BYTES; i += 64, at += 32)
        _mm512_store_si512(to + i, interleaved(both_rounded(_mm512_mul_ps(e4m3(at), s),
                                                            _mm512_mul_ps(e4m3(at + 16), s))));
}

/* ---- tiles ---- */

/* Tiles 0 .. 3: sums, of the first 16 rows with both panels and of the last ones; 4, 5:
 * activations; 6, 7: weights. */
static void configure(struct tiles *t)
{
    struct tile_config c = {0};
    for (int i = 0; i < 8; i++)
        tile_shape(&c, i, 16, 64);
    tile_configure(t, &c);
}

/* Copies rows i .. i + n of a product, bytes [from, from + n_bytes), with zeros up to a whole
 * tile. */
static void copy_rows(const struct kern_matmul *m, int64_t i, int64_t n, size_t from,
                      size_t n_bytes, uint8_t *to)
{
    for (int64_t r = 0; r < num_div_up(n, ROWS) * ROWS; r++, to += COPY_STRIDE) {
        if (r < n)
            memcpy(to, kern_matmul_act(m, i + r) + from, n_bytes);
        else
            memset(to, 0, n_bytes);
    }
}

/* Tile rows 0 .. n to the result's rows from i on, of panel p. */
static ATTR_INLINE void y_write(const struct kern_matmul *m, int64_t i, int64_t n, int64_t p,
                                const float *y)
{
    const __mmask16 mask = (__mmask16)((1u << kern_matmul_width(m, p)) - 1);
    float *at = m->y + i * m->y_stride + p * KERN_PANEL;
    for (int64_t r = 0; r < n; r++)
        _mm512_mask_storeu_ps(at + r * m->y_stride, mask, _mm512_load_ps(y + r * KERN_PANEL));
}

struct work {
    struct tiles t;
    ATTR_ALIGNED(64) uint8_t w[2][2 * BLOCKS * PAIR_BYTES]; /* by turns: of two panels */
    uint8_t copy[COPIED * COPY_STRIDE];
    ATTR_ALIGNED(64) float y[PANELS / 2][MOST / UNIT][4][SQUARE];
};

/* n blocks from b on of panels p and, if it is there, p + 1. */
struct place {
    int64_t p, n_panels, b, n;
};
/* The place after it of panels [p0, p1): the next panels, or the next blocks of all of them; n = 0:
 * none. */
static struct place after(const struct kern_matmul *m, struct place at, int64_t p0, int64_t p1)
{
    at.p += 2;
    if (at.p >= p1) {
        at.p = p0;
        at.b += at.n;
    }
    return (struct place){at.p, num_min(2, p1 - at.p), at.b, num_min(BLOCKS, m->w->in / 32 - at.b)};
}
/* Pairs of block i of a place, of the first panel's and then of the second one's. */
static ATTR_INLINE void expand(const struct kern_matmul *m, const struct place *at, int64_t i,
                               uint8_t *w, pairs_fn *pairs)
{
    const int64_t j = i / at->n, b = at->b + i % at->n, step = m->w->stretch / 32;
    pairs(kern_code_stretch(m->w, at->p + j, b / step), b % step,
          w + PAIR_BYTES * (j * BLOCKS + i % at->n));
}

/* Sums of 16 or 32 rows and two panels, from nothing at first, get n blocks more; blocks [k0, k1)
 * of the next place are expanded to `to`. */
static ATTR_INLINE void tile_unit(const struct kern_matmul *m, struct tiles *t, const uint8_t *w,
                                  const uint8_t *a, int64_t stride, int64_t n, float (*y)[SQUARE],
                                  bool first, bool two, const struct place *next, int64_t k0,
                                  int64_t k1, uint8_t *to, pairs_fn *pairs)
{
    const uint8_t *b = a + ROWS * stride;
    (void)t;
    if (first) {
        TILE_ZERO(t, 0);
        TILE_ZERO(t, 1);
        TILE_ZERO(t, 2);
        TILE_ZERO(t, 3);
    } else {
        TILE_LOAD(t, 0, y[0], 64);
        TILE_LOAD(t, 1, y[1], 64);
        TILE_LOAD(t, 2, y[2], 64);
        TILE_LOAD(t, 3, y[3], 64);
    }
    for (int64_t i = 0; i < n; i++) {
        TILE_LOAD(t, 4, a + 64 * i, stride);
        TILE_LOAD(t, 6, w + PAIR_BYTES * i, 64);
        TILE_DOT_BF16(t, 0, 4, 6);
        TILE_LOAD(t, 7, w + PAIR_BYTES * (BLOCKS + i), 64);
        TILE_DOT_BF16(t, 1, 4, 7);
        if (two) {
            TILE_LOAD(t, 5, b + 64 * i, stride);
            TILE_DOT_BF16(t, 2, 5, 6);
            TILE_DOT_BF16(t, 3, 5, 7);
        }
        if (i == n / 2)
            for (int64_t k = k0; k < k1; k++)
                expand(m, next, k, to, pairs);
    }
    TILE_STORE(t, 0, y[0], 64);
    TILE_STORE(t, 1, y[1], 64);
    TILE_STORE(t, 2, y[2], 64);
    TILE_STORE(t, 3, y[3], 64);
}

/* Rows [i0, i1) times panels [p0, p1). */
static ATTR_INLINE void run_rows(const struct kern_matmul *m, struct work *w, int64_t i0,
                                 int64_t i1, int64_t p0, int64_t p1, pairs_fn *pairs)
{
    /* rows before it stay where they are */
    const int64_t direct = m->row ? i0 : i0 + (i1 - i0) / UNIT * UNIT;
    const int64_t n_units = num_div_up(i1 - i0, UNIT);
    struct place at = {p0, num_min(2, p1 - p0), 0, num_min(BLOCKS, m->w->in / 32)}, next;
    for (int64_t k = 0; k < at.n_panels * at.n; k++)
        expand(m, &at, k, w->w[0], pairs);
    for (int64_t s = 0; at.n > 0; s++, at = next) {
        const int64_t stride = (int64_t)m->x->row_bytes;
        const uint8_t *a = m->x->q + (size_t)i0 * m->x->row_bytes + (size_t)at.b * 64;
        next = after(m, at, p0, p1);
        const int64_t n_next = next.n_panels * next.n;
        if (at.p == p0)
            copy_rows(m, direct, i1 - direct, (size_t)at.b * 64, (size_t)at.n * 64, w->copy);
        for (int64_t u = 0; u < n_units; u++) {
            const bool in_place = i0 + u * UNIT < direct;
            tile_unit(m, &w->t, w->w[s % 2],
                      in_place ? a + u * UNIT * stride
                               : w->copy + (i0 + u * UNIT - direct) * COPY_STRIDE,
                      in_place ? stride : COPY_STRIDE, at.n, w->y[(at.p - p0) / 2][u], at.b == 0,
                      i1 - i0 - u * UNIT > ROWS, &next, n_next * u / n_units,
                      n_next * (u + 1) / n_units, w->w[(s + 1) % 2], pairs);
        }
    }
    for (int64_t i = i0; i < i1; i += ROWS)
        for (int64_t p = p0; p < p1; p++)
            y_write(m, i, num_min(ROWS, i1 - i), p,
                    w->y[(p - p0) / 2][(i - i0) / UNIT][(i - i0) / ROWS % 2 * 2 + (p - p0) % 2]);
}

static ATTR_INLINE void run(const struct kern_matmul *m, int64_t p0, int64_t p1, pairs_fn *pairs)
{
    struct work w;
    const int64_t most = m->row ? COPIED : MOST;
    configure(&w.t);
    if ((p1 - p0) % 2)
        memset(w.w, 0, sizeof w.w);
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, p0 + PANELS);
        for (int64_t i = 0; i < m->n; i += most)
            run_rows(m, &w, i, num_min(m->n, i + most), p0, end, pairs);
    }
    tile_done(&w.t);
}

#define KERNEL(type)                                                                           \
    void KERNEL_NAME(fast_##type)(const struct kern_matmul *m, int64_t p0, int64_t p1)         \
    {                                                                                          \
        run(m, p0, p1, pairs_##type);                                                          \
    }
KERNEL(bf16)
KERNEL(f16)
KERNEL(f8)

#endif
