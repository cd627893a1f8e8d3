/*
 * panel256 - what the product kernels with 256-bit vectors share: quads of a panel as two
 * vectors of 8 rows, scales, and the frame of a tile.
 *
 * A file that includes it defines KERNEL(name, block), which makes the kernel of the tiles
 * tile_NAME_1 .. 6, then GROUP macros that add a group to its sums; before it, FETCH, if its quads
 * ask for lines themselves.
 */
#ifndef INGLE_KERN_X86_MATMUL_PANEL256_H
#define INGLE_KERN_X86_MATMUL_PANEL256_H

#include "kern/kernels.h"
#include "kern/x86/matmul/drive.h"

#include <immintrin.h>

static inline __m256i half_line(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}
static inline __m256i bytes(int v) { return _mm256_set1_epi8((char)v); }
static inline __m256i words32(const void *at)
{
    int32_t v;
    memcpy(&v, at, sizeof v);
    return _mm256_set1_epi32(v);
}
static inline __m128i row16(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}
static inline __m256 halves(const uint8_t *at) { return _mm256_cvtph_ps(row16(at)); }
static inline __m256i lut(const int8_t *table, int bias)
{
    return _mm256_add_epi8(_mm256_broadcastsi128_si256(row16((const uint8_t *)table)),
                           bytes(bias));
}

/* Bit t of each byte of v moved to bit `to`; others are noise. */
static ATTR_INLINE __m256i moved(__m256i v, int t, int to)
{
    return t < to ? _mm256_slli_epi16(v, to - t) : t > to ? _mm256_srli_epi16(v, t - to) : v;
}
static ATTR_INLINE __m256i masked(__m256i v, int t, int to, int mask)
{
    return _mm256_and_si256(moved(v, t, to), bytes(mask));
}
/* Quad j (a literal) of a group, rows 0..7; + 32: rows 8..15. */
static ATTR_INLINE __m256i quad_4(const uint8_t *g, int j)
{
    return masked(half_line(g + 64 * (j % 4)), j < 4 ? 0 : 4, 0, 15);
}
static ATTR_INLINE __m256i quad_5(const uint8_t *g, int j)
{
    return _mm256_or_si256(quad_4(g, j), masked(half_line(g + 256), j, 4, 16));
}
static ATTR_INLINE __m256i quad_6(const uint8_t *g, int j)
{
    return _mm256_or_si256(quad_4(g, j),
                           masked(half_line(g + 256 + 64 * (j / 4)), 2 * (j % 4), 4, 48));
}
static ATTR_INLINE __m256i quad_2(const uint8_t *g, int j)
{
    return masked(half_line(g + 64 * (j / 4)), 2 * (j % 4), 0, 3);
}
static ATTR_INLINE __m256i quad_3(const uint8_t *g, int j)
{
    return _mm256_or_si256(quad_2(g, j), masked(half_line(g + 128), j, 2, 4));
}
/* 0 or 2: the value plus 1. */
static ATTR_INLINE __m256i quad_1(const uint8_t *g, int j)
{
    return masked(half_line(g), j, 1, 2);
}
/* The value, signed. */
static ATTR_INLINE __m256i quad_8(const uint8_t *g, int j)
{
    return _mm256_xor_si256(half_line(g + 64 * j), bytes(128));
}

#ifndef FETCH
/* Asks for what comes after a chunk of n_lines, in n parts of which this is part i: each
 * line twice, long before its use into the second cache and shortly before into the first
 * (Zen 4, two cores, one row: 0.94 of the read rate, against 0.82 with one of them).  One
 * row of 8-bit codes computes so little that the processor reads on better by itself. */
static ATTR_INLINE void fetch(const uint8_t *chunk, int i, int n, int n_lines)
{
    const char *at = (const char *)chunk;
    const int from = (n_lines * i + n - 1) / n, to = (n_lines * (i + 1) + n - 1) / n;
    for (int l = from; l < to; l++) {
        _mm_prefetch(at + 64 * l + 16384, _MM_HINT_T1);
        _mm_prefetch(at + 64 * l + 2048, _MM_HINT_T0);
    }
}
#define FETCH(chunk, i, n, bits, n_all, rows) \
    if ((rows) > 1 || (bits) < 8)             \
        fetch(chunk, i, n, n_all);
#endif

/* 2^(e - 128), NaN for 255. */
static inline __m256 half_e8m0(const uint8_t *at)
{
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i v = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    v = _mm256_blendv_epi8(v, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
    v = _mm256_blendv_epi8(v, _mm256_set1_epi32(0x7FC00000),
                           _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)));
    return _mm256_castsi256_ps(v);
}
/* The same of 16 rows.  Exponents are hardly ever at either end. */
static ATTR_INLINE void halves_e8m0(const uint8_t *at, __m256 *d0, __m256 *d1)
{
    const __m128i e = row16(at), less = _mm_sub_epi8(e, _mm_set1_epi8(1));
    const __m128i ends =
        _mm_cmpeq_epi8(_mm_max_epu8(_mm_sub_epi8(e, _mm_set1_epi8(2)), _mm_set1_epi8(-3)),
                       _mm_sub_epi8(e, _mm_set1_epi8(2)));
    if (UNLIKELY(_mm_movemask_epi8(ends))) { /* 0, 1 or 255 */
        *d0 = half_e8m0(at);
        *d1 = half_e8m0(at + 8);
        return;
    }
    *d0 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(less), 23));
    *d1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(less, 8)), 23));
}
/* Unsigned E4M3, halved: the code's bits are a half that is 256 times too small.  Not by way
 * of subnormal floats, which are slow to multiply. */
static inline __m256 half_ue4m3(const uint8_t *at)
{
    const __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)at));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(b, 7)), _mm256_set1_ps(128));
}

/* ---- the frames of tiles: sums in y ---- */

#define CLEAR_Y(c, _)                                                  \
    _mm256_storeu_ps(y + (c) * stride, _mm256_setzero_ps());           \
    _mm256_storeu_ps(y + (c) * stride + 8, _mm256_setzero_ps());
/* y += (float)t * (d * s) */
#define ADD_Y(op, c, t0, t1, d, s)                                                             \
    {                                                                                          \
        const __m256 s_ = _mm256_set1_ps(s);                                                   \
        float *y_ = y + (c) * stride;                                                          \
        _mm256_storeu_ps(y_, op(_mm256_cvtepi32_ps(t0), _mm256_mul_ps(d##0, s_),               \
                                _mm256_loadu_ps(y_)));                                         \
        _mm256_storeu_ps(y_ + 8, op(_mm256_cvtepi32_ps(t1), _mm256_mul_ps(d##1, s_),           \
                                    _mm256_loadu_ps(y_ + 8)));                                 \
    }

#define Q4(g, j) quad_4(g, j)
#define Q5(g, j) quad_5(g, j)
#define Q6(g, j) quad_6(g, j)
#define Q3(g, j) quad_3(g, j)
#define Q2(g, j) quad_2(g, j)
#define Q1(g, j) quad_1(g, j)
#define Q8(g, j) quad_8(g, j)
#define QTABLE(g, j) _mm256_shuffle_epi8(table, quad_4(g, j))
#define NO_SETUP
#define ONES _mm256_set1_epi16(1)

/* A tile for each number of rows.  WIDE_TILE(TILE, name, C, ...) makes that of 5 and of 6 rows:
 * where two files differ in how they wait for memory, those are made once, because they compute for
 * longer than they wait. */
#ifndef WIDE_TILE
#define WIDE_TILE(TILE, name, C, ...) TILE(static, tile_##name, C, __VA_ARGS__)
#define WIDE_NAME(name, C) tile_##name##_##C
#endif
#define EACH_TILE(TILE, name, ...)                                                          \
    TILE(static, tile_##name, 1, __VA_ARGS__) TILE(static, tile_##name, 2, __VA_ARGS__)     \
    TILE(static, tile_##name, 3, __VA_ARGS__) TILE(static, tile_##name, 4, __VA_ARGS__)     \
    WIDE_TILE(TILE, name, 5, __VA_ARGS__) WIDE_TILE(TILE, name, 6, __VA_ARGS__)
#define PANEL_DRIVE(name, block_)                                                              \
    static const struct drive drive_##name = {                                                \
        {{WIDE_NAME(name, 6), 6}, {WIDE_NAME(name, 5), 5}, {tile_##name##_4, 4},              \
         {tile_##name##_3, 3}, {tile_##name##_2, 2}, {tile_##name##_1, 1}}, block_, 0, 0};

/* ---- groups of 32 ---- */

#define X32(c) ((const struct kern_act32 *)(const void *)x[c] + g)

#define TILE32(LINK, name, C, bits, n_group, scales, shift, SETUP, GROUP)                          \
    LINK void name##_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,       \
                         int64_t stride)                                                           \
    {                                                                                              \
        SETUP                                                                                      \
        EACH_##C(CLEAR_Y, _) for (int64_t g = 0; g < n;                                            \
                                  chunk += KERN_CHUNK_BYTES(                                       \
                                      bits, scales, n_group,                                       \
                                      shift)) for (int i = 0; i < (n_group) && g < n; i++, g++)    \
        {                                                                                          \
            const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * i;                             \
            const uint8_t *scale =                                                                 \
                chunk + KERN_SCALES_AT(bits, n_group) + (i >> (shift)) * KERN_SCALE_BYTES(scales); \
            FETCH(chunk, i, n_group, bits, KERN_CHUNK_BYTES(bits, scales, n_group, shift) / 64, C) \
            GROUP(C)                                                                               \
        }                                                                                          \
    }
#define TILES32(name, bits, n_group, scales, shift, SETUP, GROUP)                    \
    EACH_TILE(TILE32, name, bits, n_group, KERN_SCALES_##scales, shift, SETUP, GROUP) \
    KERNEL(name, 32)

#define D_SCALES const __m256 d0 = halves(scale), d1 = halves(scale + 16);
#define M_SCALES const __m256 m0 = halves(scale + 32), m1 = halves(scale + 48);
/* y += sum of q * (m * s) */
#define ADD_MIN(c, _)                                                                         \
    {                                                                                         \
        const __m256 s_ = _mm256_set1_ps(X32(c)->scale), sum_ = _mm256_set1_ps(X32(c)->sum);  \
        float *y_ = y + (c) * stride;                                                         \
        _mm256_storeu_ps(y_,                                                                  \
                         _mm256_fmadd_ps(sum_, _mm256_mul_ps(m0, s_), _mm256_loadu_ps(y_)));  \
        _mm256_storeu_ps(y_ + 8, _mm256_fmadd_ps(sum_, _mm256_mul_ps(m1, s_),                 \
                                                 _mm256_loadu_ps(y_ + 8)));                   \
    }

/* ---- super-blocks of 256: t0, t1 are the sums of rows 0..7 and 8..15 ---- */

#define X256(c) ((const struct kern_act256 *)(const void *)x[c] + b)
#define ZERO_T(c, _) __m256i t0##c = _mm256_setzero_si256(), t1##c = t0##c;
#define CLEAR_T(c, _) t0##c = t1##c = _mm256_setzero_si256();
/* Bytes of 8 rows (0..7, or 8..15 with high) as words, twice each. */
static ATTR_INLINE __m256i doubled_u8(__m128i v, int high)
{
    const __m128i w = high ? _mm_unpackhi_epi8(v, v) : _mm_unpacklo_epi8(v, v);
    return _mm256_cvtepu8_epi16(w);
}
static ATTR_INLINE __m256i doubled_s8(__m128i v, int high)
{
    const __m128i w = high ? _mm_unpackhi_epi8(v, v) : _mm_unpacklo_epi8(v, v);
    return _mm256_cvtepi8_epi16(w);
}
/* Rows of two groups paired, as words: for sums of q of two groups at a time. */
static ATTR_INLINE __m256i paired(const uint8_t *s, int high)
{
    const __m128i a = row16(s), b = row16(s + 16);
    return _mm256_cvtepu8_epi16(high ? _mm_unpackhi_epi8(a, b) : _mm_unpacklo_epi8(a, b));
}

#define SUBS(at, doubled) \
    const __m128i sub_ = row16(at); \
    const __m256i sub0 = doubled(sub_, 0), sub1 = doubled(sub_, 1);

#define ADD_SUMS(c, sums)                                                                    \
    {                                                                                        \
        const __m256i x_ = words32(X256(c)->sums + 2 * i);                                   \
        t0##c = _mm256_add_epi32(t0##c, _mm256_madd_epi16(m0_, x_));                         \
        t1##c = _mm256_add_epi32(t1##c, _mm256_madd_epi16(m1_, x_));                         \
    }
#define FINISH_D(c, _) ADD_Y(_mm256_fmadd_ps, c, t0##c, t1##c, d, X256(c)->scale)
#define FINISH_DMIN(c, _) ADD_Y(_mm256_fnmadd_ps, c, t0##c, t1##c, dmin, X256(c)->scale)
#define D_AT(at) const __m256 d0 = halves(at), d1 = halves((at) + 16);
#define DMIN_AT(at) const __m256 dmin0 = halves(at), dmin1 = halves((at) + 16);

#define TILE256(LINK, name, C, bits, scales, SETUP, GROUP, END)                                    \
    LINK void name##_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,       \
                         int64_t stride)                                                           \
    {                                                                                              \
        SETUP                                                                                      \
        EACH_##C(CLEAR_Y, _) for (int64_t b = 0; b < n;                                            \
                                  b++, chunk += KERN_CHUNK_BYTES(bits, scales, 8, 0))              \
        {                                                                                          \
            const uint8_t *s = chunk + KERN_SCALES_AT(bits, 8);                                    \
            EACH_##C(ZERO_T, _) for (int h = 0; h < 8; h++)                                        \
            {                                                                                      \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * h;                         \
                FETCH(chunk, h, 8, bits, KERN_CHUNK_BYTES(bits, scales, 8, 0) / 64, C)             \
                GROUP(C)                                                                           \
            }                                                                                      \
            END(C)                                                                                 \
        }                                                                                          \
    }
#define TILES256(name, bits, scales, SETUP, GROUP, END)                      \
    EACH_TILE(TILE256, name, bits, KERN_SCALES_##scales, SETUP, GROUP, END) \
    KERNEL(name, 256)

#define END_MIN32(C)                                                                  \
    D_AT(s + 256) DMIN_AT(s + 288)                                                    \
    EACH_##C(FINISH_D, _)                                                             \
    EACH_##C(CLEAR_T, _)                                                              \
    for (int i = 0; i < 4; i++) {                                                     \
        const __m256i m0_ = paired(s + 128 + 32 * i, 0), m1_ = paired(s + 128 + 32 * i, 1); \
        EACH_##C(ADD_SUMS, sum32)                                                     \
    }                                                                                 \
    EACH_##C(FINISH_DMIN, _)
#define END_SUB16(C) D_AT(s + 256) EACH_##C(FINISH_D, _)
#define LOW_NIBBLE(v, high) doubled_u8(_mm_and_si128(v, _mm_set1_epi8(15)), high)
#define END_Q2_K(C)                                                                        \
    D_AT(s + 256) DMIN_AT(s + 288)                                                         \
    EACH_##C(FINISH_D, _)                                                                  \
    EACH_##C(CLEAR_T, _)                                                                   \
    for (int i = 0; i < 8; i++) {                                                          \
        const __m256i m0_ = _mm256_srli_epi16(paired(s + 32 * i, 0), 4),                   \
                      m1_ = _mm256_srli_epi16(paired(s + 32 * i, 1), 4);                   \
        EACH_##C(ADD_SUMS, sum16)                                                          \
    }                                                                                      \
    EACH_##C(FINISH_DMIN, _)
#define END_SUB8(C) D_AT(s + 128) EACH_##C(FINISH_D, _)
#define END_TQ2_0(C)                                                    \
    D_AT(s)                                                             \
    for (int i = 0; i < 4; i++) {                                       \
        const __m256i m0_ = _mm256_set1_epi16(-1), m1_ = m0_;           \
        EACH_##C(ADD_SUMS, sum32)                                       \
    }                                                                   \
    EACH_##C(FINISH_D, _)

#endif
