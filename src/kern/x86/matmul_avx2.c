/* SPDX-License-Identifier: Apache-2.0 */
/* Products on AVX2.  A line of a panel is two vectors of 8 rows.  vpmaddubsw adds pairs of
 * k to 16-bit lanes: a lane gathers half of the k of a group.  Its sum may wrap on the way
 * but not at the end, because it starts from -bias times the activations of its k where
 * unsigned codes alone would be too large:
 *   4-bit codes, 32 k:           15 * 127 * 16 = 30480
 *   e2m1 doubled, bias 16:       12 * 127 * 16 = 24384
 *   5-bit, bias 16:              16 * 127 * 16 = 32512;  unsigned, 16 k: 31 * 127 * 8 = 31496
 *   6-bit, 16 k, bias 32:        32 * 127 * 8  = 32512
 *   8-bit values: each pair goes to 32 bits by itself.
 * Then vpmaddwd with ones or integer sub-scales makes exact 32-bit sums. */
#include "kern/kernels.h"
#include "kern/x86/drive.h"

#include <immintrin.h>

/* The compiler must not reorder these sums: it would keep all products alive and spill. */
#define KEEP(v) __asm__("" : "+x"(v))

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

/* Asks for what comes after a chunk of n_lines, in n parts of which this is part i: each
 * line twice, long before its use into the second cache and shortly before into the first
 * (Zen 4, two cores, one row: 0.94 of the read rate, against 0.82 with one of them). */
static ATTR_INLINE void fetch(const uint8_t *chunk, int i, int n, int n_lines)
{
    const char *at = (const char *)chunk;
    const int from = (n_lines * i + n - 1) / n, to = (n_lines * (i + 1) + n - 1) / n;
    for (int l = from; l < to; l++) {
        _mm_prefetch(at + 64 * l + 16384, _MM_HINT_T1);
        _mm_prefetch(at + 64 * l + 2048, _MM_HINT_T0);
    }
}

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
/* Unsigned E4M3, halved: the code's bits are a half that is 256 times too small.  Not by way
 * of subnormal floats, which are slow to multiply. */
static inline __m256 half_ue4m3(const uint8_t *at)
{
    const __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)at));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(b, 7)), _mm256_set1_ps(128));
}

/* ---- both kinds: 16-bit sums lo and hi of rows 0..7 and 8..15 ---- */

#define BEGIN(c, start)        \
    __m256i lo##c = start(c), hi##c = lo##c;
#define RESTART(c, start)      \
    lo##c = start(c);          \
    hi##c = lo##c;
#define DOT(c, j)                                                         \
    {                                                                     \
        const __m256i x_ = words32(XQ(c) + 4 * (j));                      \
        lo##c = _mm256_add_epi16(lo##c, _mm256_maddubs_epi16(w0_, x_));   \
        hi##c = _mm256_add_epi16(hi##c, _mm256_maddubs_epi16(w1_, x_));   \
        KEEP(lo##c);                                                      \
        KEEP(hi##c);                                                      \
    }
#define QUAD(C, quad, j)                                              \
    {                                                                 \
        const __m256i w0_ = quad(group, j), w1_ = quad(group + 32, j); \
        EACH_##C(DOT, j)                                              \
    }
#define QUADS_LOW(C, quad) QUAD(C, quad, 0) QUAD(C, quad, 1) QUAD(C, quad, 2) QUAD(C, quad, 3)
#define QUADS_HIGH(C, quad) QUAD(C, quad, 4) QUAD(C, quad, 5) QUAD(C, quad, 6) QUAD(C, quad, 7)
#define QUADS(C, quad) QUADS_LOW(C, quad) QUADS_HIGH(C, quad)

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

#define ZERO(c) _mm256_setzero_si256()
#define Q4(g, j) quad_4(g, j)
#define Q5(g, j) quad_5(g, j)
#define Q6(g, j) quad_6(g, j)
#define Q3(g, j) quad_3(g, j)
#define Q2(g, j) quad_2(g, j)
#define Q1(g, j) quad_1(g, j)
#define Q8(g, j) quad_8(g, j)
#define QTABLE(g, j) _mm256_shuffle_epi8(table, quad_4(g, j))
#define NO_SETUP
#define E2M1_SETUP const __m256i table = lut(quant_e2m1_doubled, 16);
#define NL4_SETUP const __m256i table = lut(quant_nl4, 0);

/* A tile for each number of rows. */
#define EACH_TILE(TILE, name, ...)                                                    \
    TILE(name, 1, __VA_ARGS__) TILE(name, 2, __VA_ARGS__) TILE(name, 3, __VA_ARGS__)  \
    TILE(name, 4, __VA_ARGS__) TILE(name, 5, __VA_ARGS__) TILE(name, 6, __VA_ARGS__)
#define KERNEL(name, block_)                                                       \
    static const struct drive drive_##name = {                                                \
        {{tile_##name##_6, 6}, {tile_##name##_5, 5}, {tile_##name##_4, 4},                    \
         {tile_##name##_3, 3}, {tile_##name##_2, 2}, {tile_##name##_1, 1}}, block_, 0, 0};    \
    void kern_matmul_##name##_avx2(const struct kern_matmul *m, int64_t p0, int64_t p1)       \
    {                                                                                         \
        drive_run(m, &drive_##name, p0, p1);                                                  \
    }

/* ---- groups of 32 ---- */

#define X32(c) ((const struct kern_act32 *)(const void *)x[c] + g)

#define TILE32(name, C, bits, n_group, scales, shift, SETUP, GROUP)                          \
    static void name##_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x,        \
                           float *y, int64_t stride, bool first)                                         \
    {                                                                                        \
        const __m256i ones = _mm256_set1_epi16(1);                                           \
        SETUP                                                                                \
        if (first) {                                                                           \
            EACH_##C(CLEAR_Y, _)                                                             \
        }                                                                                    \
        for (int64_t g = 0; g < n; chunk += KERN_CHUNK_BYTES(bits, scales, n_group, shift)) \
            for (int i = 0; i < (n_group) && g < n; i++, g++) {                             \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * i;                   \
                const uint8_t *scale = chunk + KERN_SCALES_AT(bits, n_group) +               \
                                       (i >> (shift)) * KERN_SCALE_BYTES(scales);            \
                fetch(chunk, i, n_group, KERN_CHUNK_BYTES(bits, scales, n_group, shift) / 64); \
                GROUP(C)                                                                     \
            }                                                                                \
    }
#define TILES32(name, bits, n_group, scales, shift, SETUP, GROUP)                    \
    EACH_TILE(TILE32, tile_##name, bits, n_group, KERN_SCALES_##scales, shift, SETUP, GROUP) \
    KERNEL(name, 32)

#define PAIRS8(c) words32(X32(c)->pairs8)
#define PAIRS16(c) words32(X32(c)->pairs16)
#define PAIRS1(c) _mm256_srai_epi16(PAIRS8(c), 3)

#define FINISH(c, _)                                                                     \
    ADD_Y(_mm256_fmadd_ps, c, _mm256_madd_epi16(lo##c, ones),                            \
          _mm256_madd_epi16(hi##c, ones), d, X32(c)->scale)
#define D_SCALES const __m256 d0 = halves(scale), d1 = halves(scale + 16);
#define M_SCALES const __m256 m0 = halves(scale + 32), m1 = halves(scale + 48);
#define GROUP_D(C, start, quad) \
    EACH_##C(BEGIN, start)      \
    QUADS(C, quad)              \
    D_SCALES                    \
    EACH_##C(FINISH, _)

#undef XQ
#define XQ(c) X32(c)->q
#define GROUP_Q4_0(C) GROUP_D(C, PAIRS8, Q4)
TILES32(q4_0, 4, 2, D, 0, NO_SETUP, GROUP_Q4_0)
#define GROUP_Q5_0(C) GROUP_D(C, PAIRS16, Q5)
TILES32(q5_0, 5, 2, D, 0, NO_SETUP, GROUP_Q5_0)
#define GROUP_Q1_0(C) GROUP_D(C, PAIRS1, Q1)
TILES32(q1_0, 1, 8, D, 2, NO_SETUP, GROUP_Q1_0)
#define GROUP_Q2_0(C) GROUP_D(C, PAIRS1, Q2)
TILES32(q2_0, 2, 4, D, 1, NO_SETUP, GROUP_Q2_0)

#define ADD_MIN(c, _)                                                                         \
    {                                                                                         \
        const __m256 s_ = _mm256_set1_ps(X32(c)->scale), sum_ = _mm256_set1_ps(X32(c)->sum);  \
        float *y_ = y + (c) * stride;                                                         \
        _mm256_storeu_ps(y_,                                                                  \
                         _mm256_fmadd_ps(sum_, _mm256_mul_ps(m0, s_), _mm256_loadu_ps(y_)));  \
        _mm256_storeu_ps(y_ + 8, _mm256_fmadd_ps(sum_, _mm256_mul_ps(m1, s_),                 \
                                                 _mm256_loadu_ps(y_ + 8)));                   \
    }
#define GROUP_Q4_1(C)      \
    EACH_##C(BEGIN, ZERO)  \
    QUADS(C, Q4)           \
    D_SCALES M_SCALES      \
    EACH_##C(FINISH, _)    \
    EACH_##C(ADD_MIN, _)
TILES32(q4_1, 4, 1, DM, 0, NO_SETUP, GROUP_Q4_1)

/* The lanes hold codes minus 16; start8 is -8 times the sum of q. */
#define FINISH_Q5_1(c, _)                                                                     \
    {                                                                                         \
        const __m256i off_ = _mm256_slli_epi32(words32(&X32(c)->start8), 1);                  \
        ADD_Y(_mm256_fmadd_ps, c, _mm256_sub_epi32(_mm256_madd_epi16(lo##c, ones), off_),     \
              _mm256_sub_epi32(_mm256_madd_epi16(hi##c, ones), off_), d, X32(c)->scale)       \
    }
#define GROUP_Q5_1(C)         \
    EACH_##C(BEGIN, PAIRS16)  \
    QUADS(C, Q5)              \
    D_SCALES M_SCALES         \
    EACH_##C(FINISH_Q5_1, _)  \
    EACH_##C(ADD_MIN, _)
TILES32(q5_1, 5, 1, DM, 0, NO_SETUP, GROUP_Q5_1)

/* Values of 8 bits: a pair of products fits 16 bits and no more, so each goes to 32 bits at
 * once.  The sign of a value goes to the activation, -128 is 128 without its sign. */
#define START_WIDE(c, _) __m256i t0##c = _mm256_setzero_si256(), t1##c = t0##c;
#define DOT_SIGNED(c, j, half, factor)                                                      \
    {                                                                                       \
        const __m256i x_ = _mm256_sign_epi8(words32(XQ(c) + 4 * (j)), v_);                  \
        t##half##c = _mm256_add_epi32(t##half##c,                                           \
                                      _mm256_madd_epi16(_mm256_maddubs_epi16(w_, x_), factor)); \
        KEEP(t##half##c);                                                                   \
    }
#define DOT_SIGNED0(c, j) DOT_SIGNED(c, j, 0, factor0)
#define DOT_SIGNED1(c, j) DOT_SIGNED(c, j, 1, factor1)
#define QUAD_SIGNED(C, quad, j)                                               \
    {                                                                         \
        const __m256i v_ = quad(group, j), w_ = _mm256_abs_epi8(v_);          \
        EACH_##C(DOT_SIGNED0, j)                                              \
    }                                                                         \
    {                                                                         \
        const __m256i v_ = quad(group + 32, j), w_ = _mm256_abs_epi8(v_);     \
        EACH_##C(DOT_SIGNED1, j)                                              \
    }
#define QUADS_SIGNED(C, quad)                                                 \
    QUAD_SIGNED(C, quad, 0) QUAD_SIGNED(C, quad, 1) QUAD_SIGNED(C, quad, 2)   \
    QUAD_SIGNED(C, quad, 3) QUAD_SIGNED(C, quad, 4) QUAD_SIGNED(C, quad, 5)   \
    QUAD_SIGNED(C, quad, 6) QUAD_SIGNED(C, quad, 7)
#define FINISH_WIDE(c, _) ADD_Y(_mm256_fmadd_ps, c, t0##c, t1##c, d, X32(c)->scale)
#define GROUP_D8(C, quad)                                     \
    const __m256i factor0 = ones, factor1 = ones;             \
    EACH_##C(START_WIDE, _)                                   \
    QUADS_SIGNED(C, quad)                                     \
    D_SCALES                                                  \
    EACH_##C(FINISH_WIDE, _)
#define GROUP_Q8_0(C) GROUP_D8(C, Q8)
TILES32(q8_0, 8, 2, D, 0, NO_SETUP, GROUP_Q8_0)
#define GROUP_IQ4_NL(C) GROUP_D8(C, QTABLE)
TILES32(iq4_nl, 4, 2, D, 0, NL4_SETUP, GROUP_IQ4_NL)

#define GROUP_MXFP4(C)                                                      \
    EACH_##C(BEGIN, PAIRS16)                                                \
    QUADS(C, QTABLE)                                                        \
    const __m256 d0 = half_e8m0(scale), d1 = half_e8m0(scale + 8);          \
    EACH_##C(FINISH, _)
TILES32(mxfp4, 4, 4, E, 0, E2M1_SETUP, GROUP_MXFP4)

#define PAIRS_LOW(c) _mm256_mullo_epi16(words32(X32(c)->pairs[0]), _mm256_set1_epi16(-16))
#define PAIRS_HIGH(c) _mm256_mullo_epi16(words32(X32(c)->pairs[1]), _mm256_set1_epi16(-16))
#define GROUP_NVFP4(C)                                                              \
    EACH_##C(BEGIN, PAIRS_LOW)                                                      \
    QUADS_LOW(C, QTABLE)                                                            \
    {                                                                               \
        const __m256 d0 = half_ue4m3(scale), d1 = half_ue4m3(scale + 8);            \
        EACH_##C(FINISH, _)                                                         \
    }                                                                               \
    EACH_##C(RESTART, PAIRS_HIGH)                                                   \
    QUADS_HIGH(C, QTABLE)                                                           \
    {                                                                               \
        const __m256 d0 = half_ue4m3(scale + 16), d1 = half_ue4m3(scale + 24);      \
        EACH_##C(FINISH, _)                                                         \
    }
TILES32(nvfp4, 4, 2, E2, 0, E2M1_SETUP, GROUP_NVFP4)

/* ---- super-blocks of 256 ---- */

#define X256(c) ((const struct kern_act256 *)(const void *)x[c] + b)
#undef XQ
#define XQ(c) (X256(c)->q + 32 * h)

#define ZERO_T(c, _) __m256i t0##c = _mm256_setzero_si256(), t1##c = t0##c;
#define CLEAR_T(c, _) t0##c = t1##c = _mm256_setzero_si256();
#define ADD_T(c, m)                                                          \
    t0##c = _mm256_add_epi32(t0##c, _mm256_madd_epi16(lo##c, m##0));         \
    t1##c = _mm256_add_epi32(t1##c, _mm256_madd_epi16(hi##c, m##1));

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
#define GROUP_32(C, quad, doubled) \
    EACH_##C(BEGIN, ZERO)          \
    QUADS(C, quad)                 \
    SUBS(s + 16 * h, doubled)      \
    EACH_##C(ADD_T, sub)
/* One sub-scale for each 16, or the same for both. */
#define GROUP_16(C, quad, doubled, low, high, step)             \
    EACH_##C(BEGIN, low)                                        \
    QUADS_LOW(C, quad)                                          \
    {                                                           \
        SUBS(s + (step) * 2 * h, doubled)                       \
        EACH_##C(ADD_T, sub)                                    \
    }                                                           \
    EACH_##C(RESTART, high)                                     \
    QUADS_HIGH(C, quad)                                         \
    {                                                           \
        SUBS(s + (step) * 2 * h + ((step) == 16 ? 16 : 0), doubled) \
        EACH_##C(ADD_T, sub)                                    \
    }

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

#define TILE256(name, C, bits, scales, SETUP, GROUP, END)                                    \
    static void name##_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x,        \
                           float *y, int64_t stride, bool first)                                         \
    {                                                                                        \
        SETUP                                                                                \
        if (first) {                                                                           \
            EACH_##C(CLEAR_Y, _)                                                             \
        }                                                                                    \
        for (int64_t b = 0; b < n; b++, chunk += KERN_CHUNK_BYTES(bits, scales, 8, 0)) {   \
            const uint8_t *s = chunk + KERN_SCALES_AT(bits, 8);                              \
            EACH_##C(ZERO_T, _)                                                              \
            for (int h = 0; h < 8; h++) {                                                    \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * h;                   \
                fetch(chunk, h, 8, KERN_CHUNK_BYTES(bits, scales, 8, 0) / 64);               \
                GROUP(C)                                                                     \
            }                                                                                \
            END(C)                                                                           \
        }                                                                                    \
    }
#define TILES256(name, bits, scales, SETUP, GROUP, END)                      \
    EACH_TILE(TILE256, tile_##name, bits, KERN_SCALES_##scales, SETUP, GROUP, END) \
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
#define GROUP_Q4_K(C) GROUP_32(C, Q4, doubled_u8)
TILES256(q4_k, 4, SUB8_MIN, NO_SETUP, GROUP_Q4_K, END_MIN32)
#define GROUP_Q5_K(C) GROUP_16(C, Q5, doubled_u8, ZERO, ZERO, 8)
TILES256(q5_k, 5, SUB8_MIN, NO_SETUP, GROUP_Q5_K, END_MIN32)

#define PAIRS32_LOW(c) words32(X256(c)->pairs32[2 * h])
#define PAIRS32_HIGH(c) words32(X256(c)->pairs32[2 * h + 1])
#define GROUP_Q6_K(C) GROUP_16(C, Q6, doubled_s8, PAIRS32_LOW, PAIRS32_HIGH, 16)
#define END_SUB16(C) D_AT(s + 256) EACH_##C(FINISH_D, _)
TILES256(q6_k, 6, SUB16, NO_SETUP, GROUP_Q6_K, END_SUB16)

#define PAIRS4_LOW(c) _mm256_srai_epi16(PAIRS32_LOW(c), 3)
#define PAIRS4_HIGH(c) _mm256_srai_epi16(PAIRS32_HIGH(c), 3)
#define GROUP_Q3_K(C) GROUP_16(C, Q3, doubled_s8, PAIRS4_LOW, PAIRS4_HIGH, 16)
TILES256(q3_k, 3, SUB16, NO_SETUP, GROUP_Q3_K, END_SUB16)

#define LOW_NIBBLE(v, high) doubled_u8(_mm_and_si128(v, _mm_set1_epi8(15)), high)
#define GROUP_Q2_K(C) GROUP_16(C, Q2, LOW_NIBBLE, ZERO, ZERO, 16)
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
TILES256(q2_k, 2, SUB16_NIB, NO_SETUP, GROUP_Q2_K, END_Q2_K)

#define GROUP_IQ4_XS(C)                                                                  \
    SUBS(s + 16 * h, doubled_s8)                                                         \
    const __m256i factor0 = sub0, factor1 = sub1;                                        \
    QUADS_SIGNED(C, QTABLE)
#define END_SUB8(C) D_AT(s + 128) EACH_##C(FINISH_D, _)
TILES256(iq4_xs, 4, SUB8, NL4_SETUP, GROUP_IQ4_XS, END_SUB8)

#define GROUP_TQ2_0(C)                                                  \
    EACH_##C(BEGIN, ZERO)                                               \
    QUADS(C, Q2)                                                        \
    const __m256i one0 = _mm256_set1_epi16(1), one1 = one0;             \
    EACH_##C(ADD_T, one)
#define END_TQ2_0(C)                                                    \
    D_AT(s)                                                             \
    for (int i = 0; i < 4; i++) {                                       \
        const __m256i m0_ = _mm256_set1_epi16(-1), m1_ = m0_;           \
        EACH_##C(ADD_SUMS, sum32)                                       \
    }                                                                   \
    EACH_##C(FINISH_D, _)
TILES256(tq2_0, 2, NONE, NO_SETUP, GROUP_TQ2_0, END_TQ2_0)

/* ---- stored codes: 8 bits with a bias of 64 and sub-scales of 16, from scratch ----
 * Values are at most 62, so pairs are at most 2 * 126 * 127 = 32004; each product goes to 32
 * bits at once, and 64 * sub-scale * sum is taken off at the end. */

#define DOT_WIDE(c, j)                                                                       \
    {                                                                                        \
        const __m256i x_ = words32(XQ(c) + 4 * (j));                                         \
        t0##c = _mm256_add_epi32(t0##c, _mm256_madd_epi16(_mm256_maddubs_epi16(w0_, x_), sub0)); \
        t1##c = _mm256_add_epi32(t1##c, _mm256_madd_epi16(_mm256_maddubs_epi16(w1_, x_), sub1)); \
        KEEP(t0##c);                                                                         \
        KEEP(t1##c);                                                                         \
    }
#define QUAD_WIDE(C, j)                                                                      \
    {                                                                                        \
        const __m256i w0_ = half_line(group + 64 * (j)), w1_ = half_line(group + 64 * (j) + 32); \
        EACH_##C(DOT_WIDE, j)                                                                \
    }
#define STORED(C)                                                                             \
    static void stored_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y, \
                           int64_t stride, bool first)                                        \
    {                                                                                         \
        if (first) {                                                                          \
            EACH_##C(CLEAR_Y, _)                                                              \
        }                                                                                     \
        for (int64_t b = 0; b < n; b++, chunk += STORED_BYTES) {                              \
            const uint8_t *s = chunk + STORED_SUB;                                            \
            EACH_##C(ZERO_T, _)                                                               \
            for (int h = 0; h < 8; h++) {                                                     \
                const uint8_t *group = chunk + 512 * h;                                       \
                {                                                                             \
                    SUBS(s + 32 * h, doubled_s8)                                              \
                    QUAD_WIDE(C, 0) QUAD_WIDE(C, 1) QUAD_WIDE(C, 2) QUAD_WIDE(C, 3)           \
                }                                                                             \
                {                                                                             \
                    SUBS(s + 32 * h + 16, doubled_s8)                                         \
                    QUAD_WIDE(C, 4) QUAD_WIDE(C, 5) QUAD_WIDE(C, 6) QUAD_WIDE(C, 7)           \
                }                                                                             \
            }                                                                                 \
            for (int i = 0; i < 8; i++) {                                                     \
                const __m256i bias_ = _mm256_set1_epi16(-STORED_BIAS);                        \
                const __m256i m0_ = _mm256_mullo_epi16(paired(s + 32 * i, 0), bias_);         \
                const __m256i m1_ = _mm256_mullo_epi16(paired(s + 32 * i, 1), bias_);         \
                EACH_##C(ADD_SUMS, sum16)                                                     \
            }                                                                                 \
            const __m256 d0 = _mm256_loadu_ps((const float *)(const void *)(chunk + STORED_D)); \
            const __m256 d1 =                                                                 \
                _mm256_loadu_ps((const float *)(const void *)(chunk + STORED_D + 32));        \
            EACH_##C(FINISH_D, _)                                                             \
        }                                                                                     \
    }
STORED(1) STORED(2) STORED(3) STORED(4) STORED(5) STORED(6)

void kern_matmul_stored_avx2(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    static const struct drive d = {
        {{stored_6, 6}, {stored_5, 5}, {stored_4, 4}, {stored_3, 3}, {stored_2, 2}, {stored_1, 1}},
        256, 4, STORED_BYTES};
    drive_run_spread(m, &d, kern_stored_expand_avx2, p0, p1);
}
