/*
 * vnni512 - products on AVX-512 with VNNI: a line of a panel is one vpdpbusd operand.  Codes enter
 * as unsigned bytes; what that adds to a dot product is taken off with the activations'
 * sums, so dots are exact.
 *
 * Included twice: NAME(x) is the kernel's name; AHEAD: the code asks for every line itself,
 * for processors that do not keep up with the loads (calibrate_ahead.c finds out).
 */
#include "kern/kernels.h"
#include "kern/x86/matmul/drive.h"
#include "kern/x86/matmul/quads512.h"

static inline __m512i words32(const void *at)
{
    int32_t v;
    memcpy(&v, at, sizeof v);
    return _mm512_set1_epi32(v);
}
/* 0 or 2: the value plus 1. */
static ATTR_INLINE __m512i quad_1(const uint8_t *g, int j)
{
    return _mm512_and_si512(quad_moved(quad_line(g), j, 1), quad_bytes(2));
}

#if AHEAD
/* Asks for the line this far ahead, long before its use into the second cache and shortly before
 * into the first.  The far one crosses pages, at whose ends the processor stops reading ahead. */
static ATTR_INLINE void ask_ahead(const uint8_t *at)
{
    __asm__ volatile("prefetcht1 %0\n\tprefetcht0 %1" : : "m"(at[6144]), "m"(at[3072]));
}
/* Quads that open a line ask: lines asked for at once wait for each other and hold up the dots, and
 * compilers gather what they may move.  So dots keep their places, too (4 rows of Q4_0: 0.90 of the
 * read rate, against 0.75; Granite Rapids, one thread).  Group i asks for line i of the scales. */
#define ASK(j)              \
    if ((j) < n_lines)      \
        ask_ahead(group + 64 * (j));
#define FETCH(chunk, i, n, bits, n_all, rows, lean)        \
    enum { n_lines = bits };                               \
    if ((bits) * (n) + (i) < (n_all))                      \
        ask_ahead((chunk) + 64 * ((bits) * (n) + (i)));
#else
/* Asks for what comes after a chunk of n_lines, in n parts of which this is part i.  Tiles of
 * up to `lean` rows compute less than they wait: one row leaves all to the processor, which
 * reads on by itself (any hint costs a tenth, Zen 4), more rows show it where.  Other tiles ask
 * for every line, once, into the second cache: one line in nine left out costs half. */
static ATTR_INLINE void fetch(const uint8_t *chunk, int i, int n, int n_lines, int rows, int lean)
{
    const char *at = (const char *)chunk;
    const int from = (n_lines * i + n - 1) / n, to = (n_lines * (i + 1) + n - 1) / n;
    if (rows > 1 && rows <= lean)
        _mm_prefetch(at + 64 * from + 4096, _MM_HINT_T0);
    for (int l = from; rows > lean && l < to; l++)
        _mm_prefetch(at + 64 * l + 8192, _MM_HINT_T1);
}

#define ASK(j)
#define FETCH(chunk, i, n, bits, n_all, rows, lean) fetch(chunk, i, n, n_all, rows, lean);
#endif

/* a + codes w times four of q. */
static ATTR_INLINE __m512i dot_words(__m512i a, __m512i w, const int8_t *q)
{
#if AHEAD
    struct words { int8_t q[4]; };
    __asm__ volatile("vpdpbusd %2%{1to16%}, %1, %0"
                     : "+v"(a)
                     : "v"(w), "m"(*(const struct words *)(const void *)q));
    return a;
#else
    return _mm512_dpbusd_epi32(a, w, words32(q));
#endif
}

#define NO_SETUP
#define NL4_SETUP const __m512i table = quad_list(quant_nl4);
#define LOW_NIBBLE(v) _mm512_cvtepu8_epi32(_mm_and_si128(v, _mm_set1_epi8(15)))

#include "kern/x86/matmul/one512.h"

/* In turn; _4: both nibbles of a line, one after the other, where their order is kept. */
#define EACH_QUAD(F, C, quad)                                                                      \
    F(C, quad, 0)                                                                                  \
    F(C, quad, 1) F(C, quad, 2) F(C, quad, 3) F(C, quad, 4) F(C, quad, 5) F(C, quad, 6)            \
        F(C, quad, 7)
#if AHEAD
#define EACH_QUAD_4(F, C, quad)                                                                    \
    F(C, quad, 0)                                                                                  \
    F(C, quad, 4) F(C, quad, 1) F(C, quad, 5) F(C, quad, 2) F(C, quad, 6) F(C, quad, 3)            \
        F(C, quad, 7)
#else
#define EACH_QUAD_4 EACH_QUAD
#endif

/* ---- groups of 32 ---- */

#define X32(c) ((const struct kern_act32 *)(const void *)x[c] + g)

#define LOAD_Y(c, _) \
    __m512 y##c = _mm512_setzero_ps();
#define STORE_Y(c, _) _mm512_storeu_ps(y + (c) * stride, y##c);
#define DOT(c, j) a##c = dot_words(a##c, w_, X32(c)->q + 4 * (j));
#define QUAD(C, quad, j)           \
    {                              \
        ASK(j)                     \
        const __m512i w_ = quad(j); \
        EACH_##C(DOT, j)           \
    }
#define QUADS(C, quad) EACH_QUAD(QUAD, C, quad)
#define QUADS_4(C, quad) EACH_QUAD_4(QUAD, C, quad)
#define START(c, start) __m512i a##c = start(c);
#define FINISH(c, _)                                                                  \
    y##c = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a##c),                                    \
                           _mm512_mul_ps(d, _mm512_set1_ps(X32(c)->scale)), y##c);
#define FINISH_MIN(c, _)                                                              \
    FINISH(c, _)                                                                        \
    y##c = _mm512_fmadd_ps(_mm512_set1_ps(X32(c)->sum),                                 \
                           _mm512_mul_ps(min, _mm512_set1_ps(X32(c)->scale)), y##c);

/* One tile, lean up to some rows: GROUP does the group at `group` with its scales at `scale`. */
#define TILE32(LINK, name, C, bits, n_group, scales, shift, lean, SETUP, GROUP)                    \
    LINK void name##_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,       \
                         int64_t stride)                                                           \
    {                                                                                              \
        SETUP                                                                                      \
        EACH_##C(LOAD_Y, _) for (int64_t g = 0; g < n;                                             \
                                 chunk += KERN_CHUNK_BYTES(                                        \
                                     bits, scales, n_group,                                        \
                                     shift)) for (int i = 0; i < (n_group) && g < n; i++, g++)     \
        {                                                                                          \
            const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * i;                             \
            const uint8_t *scale =                                                                 \
                chunk + KERN_SCALES_AT(bits, n_group) + (i >> (shift)) * KERN_SCALE_BYTES(scales); \
            FETCH(chunk, i, n_group, bits, KERN_CHUNK_BYTES(bits, scales, n_group, shift) / 64, C, \
                  lean)                                                                            \
            GROUP(C)                                                                               \
        }                                                                                          \
        EACH_##C(STORE_Y, _)                                                                       \
    }

/* A tile for each number of rows from 2 on.  That of 6 rows both files have from the one that does
 * not ask (Zen 5: 0.96 to 1.16 times as fast, that of 8 rows 0.93 to 1.07). */
#define WIDE_NAME(name, C) kern_tile512_##name##_##C
#if AHEAD
#define WIDE_TILE(TILE, name, C, ...) drive_tile_fn WIDE_NAME(name, C);
#else
#define WIDE_TILE(TILE, name, C, ...)         \
    drive_tile_fn WIDE_NAME(name, C);         \
    TILE(, kern_tile512_##name, C, __VA_ARGS__)
#endif
#define EACH_TILE(TILE, name, ...)                                                          \
    TILE(static, tile_##name, 2, __VA_ARGS__) TILE(static, tile_##name, 3, __VA_ARGS__)     \
    TILE(static, tile_##name, 4, __VA_ARGS__) WIDE_TILE(TILE, name, 6, __VA_ARGS__)         \
    TILE(static, tile_##name, 8, __VA_ARGS__)
#define KERNEL(name, block_, one)                                                 \
    static const struct drive drive_##name = {                                          \
        {{tile_##name##_8, 8}, {WIDE_NAME(name, 6), 6}, {tile_##name##_4, 4},            \
         {tile_##name##_3, 3}, {tile_##name##_2, 2}, {one, 1}},            \
        block_, 0, 0};                                                          \
    void NAME(name)(const struct kern_matmul *m, int64_t p0, int64_t p1) \
    {                                                                                   \
        drive_run(m, &drive_##name, p0, p1);                                            \
    }
#define TILES32(name, bits, n_group, scales, shift, lean, SETUP, GROUP)                \
    TILE32(static, tile_##name, 1, bits, n_group, KERN_SCALES_##scales, shift, lean, SETUP, GROUP) \
    EACH_TILE(TILE32, name, bits, n_group, KERN_SCALES_##scales, shift, lean, SETUP, GROUP) \
    KERNEL(name, 32, tile_##name##_1)
/* One row as in one512.h. */
#define TILES32_ONE(name, bits, n_group, scales, lean, GROUP)                                      \
    EACH_TILE(TILE32, name, bits, n_group, KERN_SCALES_##scales, 0, lean, NO_SETUP, GROUP) \
    KERNEL(name, 32, one_##name)

#define ZERO(c) _mm512_setzero_si512()
#define START8(c) words32(&X32(c)->start8)
#define START16(c) _mm512_slli_epi32(START8(c), 1)
#define START128(c) words32(&X32(c)->start128)
#define START1(c) _mm512_srai_epi32(START8(c), 3)

#define G4(j) quad_4(group, j)
#define G5(j) quad_5(group, j)
#define G8(j) quad_8(group, j)
#define G2(j) quad_2(group, j)
#define G1(j) quad_1(group, j)
#define GTABLE(j) _mm512_shuffle_epi8(table, quad_4(group, j))

#define GROUP_D(C, start, QUADS, quad)   \
    const __m512 d = halves(scale);      \
    EACH_##C(START, start)               \
    QUADS(C, quad)                       \
    EACH_##C(FINISH, _)
#define GROUP_DM(C, quad)                                          \
    const __m512 d = halves(scale), min = halves(scale + 32);      \
    EACH_##C(START, ZERO)                                          \
    QUADS_4(C, quad)                                               \
    EACH_##C(FINISH_MIN, _)

#define GROUP_Q4_0(C) GROUP_D(C, START8, QUADS_4, G4)
TILES32_ONE(q4_0, 4, 2, D, 1, GROUP_Q4_0)
#define GROUP_Q5_0(C) GROUP_D(C, START16, QUADS_4, G5)
TILES32_ONE(q5_0, 5, 2, D, 0, GROUP_Q5_0)
#define GROUP_Q8_0(C) GROUP_D(C, START128, QUADS, G8)
TILES32_ONE(q8_0, 8, 2, D, 3, GROUP_Q8_0)
#define GROUP_Q1_0(C) GROUP_D(C, START1, QUADS, G1)
TILES32(q1_0, 1, 8, D, 2, 0, NO_SETUP, GROUP_Q1_0)
#define GROUP_Q2_0(C) GROUP_D(C, START1, QUADS, G2)
TILES32(q2_0, 2, 4, D, 1, 0, NO_SETUP, GROUP_Q2_0)
#define GROUP_Q4_1(C) GROUP_DM(C, G4)
TILES32(q4_1, 4, 1, DM, 0, 1, NO_SETUP, GROUP_Q4_1)
#define GROUP_Q5_1(C) GROUP_DM(C, G5)
TILES32(q5_1, 5, 1, DM, 0, 0, NO_SETUP, GROUP_Q5_1)

#define GROUP_IQ4_NL(C) GROUP_D(C, START128, QUADS_4, GTABLE)
TILES32(iq4_nl, 4, 2, D, 0, 0, NL4_SETUP, GROUP_IQ4_NL)

#define E2M1_SETUP const __m512i table = quad_list(quant_e2m1_doubled);
#define GROUP_MXFP4(C)                    \
    const __m512 d = half_e8m0(scale);    \
    EACH_##C(START, START128)             \
    QUADS_4(C, GTABLE)                    \
    EACH_##C(FINISH, _)
#if AHEAD
/* One row that need not wait computes for too long at exponents: those of a chunk are one line, and
 * hardly ever 0, 1 or 255. */
static ATTR_INLINE __m512 half_plain(const uint8_t *at)
{
    const __m512i e = _mm512_cvtepu8_epi32(row16(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23));
}
static void one_mxfp4(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,
                      int64_t stride)
{
    const struct kern_act32 *a = (const struct kern_act32 *)(const void *)x[0];
    __m512 y0 = _mm512_setzero_ps();
    E2M1_SETUP
    (void)stride;
#define EACH_GROUP(F) F(0) F(1) F(2) F(3)
#define ONE_DOT(i)                                                                                 \
    const __m512i dot##i = one_dot_table(w + 256 * (i), a[i].q, words32(&a[i].start128), table);
#define ONE_PLAIN(i) y0 = one_add(y0, dot##i, half_plain(scale + 16 * (i)), a[i].scale);
#define ONE_END(i) y0 = one_add(y0, dot##i, half_e8m0(scale + 16 * (i)), a[i].scale);
    for (; n > 3; n -= 4, a += 4, w += KERN_CHUNK_BYTES(4, KERN_SCALES_E, 4, 0)) {
        const uint8_t *scale = w + KERN_SCALES_AT(4, 4);
        EACH_GROUP(ONE_DOT)
        const __m512i less = _mm512_sub_epi8(one_line(scale), quad_bytes(2));
        if (LIKELY(!_mm512_cmpgt_epu8_mask(less, quad_bytes(252)))) {
            EACH_GROUP(ONE_PLAIN)
        } else {
            EACH_GROUP(ONE_END)
        }
    }
#undef EACH_GROUP
#undef ONE_DOT
#undef ONE_PLAIN
#undef ONE_END
    for (int64_t i = 0; i < n; i++)
        y0 = one_add(y0, one_dot_table(w + 256 * i, a[i].q, words32(&a[i].start128), table),
                     half_e8m0(w + KERN_SCALES_AT(4, 4) + 16 * i), a[i].scale);
    _mm512_storeu_ps(y, y0);
}
EACH_TILE(TILE32, mxfp4, 4, 4, KERN_SCALES_E, 0, 0, E2M1_SETUP, GROUP_MXFP4)
KERNEL(mxfp4, 32, one_mxfp4)
#else
TILES32(mxfp4, 4, 4, E, 0, 0, E2M1_SETUP, GROUP_MXFP4)
#endif

/* Halves one after the other; START16TH(c): -128 times the sum of q of this half. */
#define START_HALF(c, half) \
    __m512i a##c = _mm512_madd_epi16(words32(X32(c)->pairs[half]), _mm512_set1_epi16(-128));
#define HALF_NVFP4(C, half, q0, q1, q2, q3)                  \
    {                                                        \
        const __m512 d = half_ue4m3(scale + 16 * (half));    \
        EACH_##C(START_HALF, half)                           \
        QUAD(C, GTABLE, q0) QUAD(C, GTABLE, q1) QUAD(C, GTABLE, q2) QUAD(C, GTABLE, q3) \
        EACH_##C(FINISH, _)                                     \
    }
#define GROUP_NVFP4(C) HALF_NVFP4(C, 0, 0, 1, 2, 3) HALF_NVFP4(C, 1, 4, 5, 6, 7)
TILES32(nvfp4, 4, 2, E2, 0, 0, E2M1_SETUP, GROUP_NVFP4)

/* ---- super-blocks of 256 ---- */

#define X256(c) ((const struct kern_act256 *)(const void *)x[c] + b)

#define ZERO_T(c, _) __m512i t##c = _mm512_setzero_si512();
#define ZERO_A(c, _) __m512i a##c = _mm512_setzero_si512();
#define DOT256(c, j) a##c = dot_words(a##c, w_, X256(c)->q + 32 * h + 4 * (j));
#define QUAD256(C, quad, j)         \
    {                               \
        ASK(j)                      \
        const __m512i w_ = quad(j); \
        EACH_##C(DOT256, j)         \
    }
#define ADD_SUB(c, _) t##c = _mm512_add_epi32(t##c, _mm512_mullo_epi32(a##c, sub_));
/* One sub-scale for 32, one for each 16. */
#define GROUP_32(C, quad, widen)                                                            \
    {                                                                                       \
        const __m512i sub_ = widen(_mm_loadu_si128((const __m128i *)(const void *)(s + 16 * h))); \
        EACH_##C(ZERO_A, _)                                                                    \
        EACH_QUAD_4(QUAD256, C, quad)                                                          \
        EACH_##C(ADD_SUB, _)                                                                   \
    }
#define HALF_16(C, quad, widen, half, q0, q1, q2, q3)                                       \
    {                                                                                       \
        const __m512i sub_ = widen(                                                         \
            _mm_loadu_si128((const __m128i *)(const void *)(s + 32 * h + 16 * (half))));    \
        EACH_##C(ZERO_A, _)                                                                    \
        QUAD256(C, quad, q0) QUAD256(C, quad, q1) QUAD256(C, quad, q2) QUAD256(C, quad, q3) \
        EACH_##C(ADD_SUB, _)                                                                   \
    }
#define GROUP_16(C, quad, widen) \
    HALF_16(C, quad, widen, 0, 0, 1, 2, 3) HALF_16(C, quad, widen, 1, 4, 5, 6, 7)
/* No sub-scale: straight into the total. */
#define DOT_T(c, j) t##c = dot_words(t##c, w_, X256(c)->q + 32 * h + 4 * (j));
#define QUAD_T(C, quad, j)          \
    {                               \
        ASK(j)                      \
        const __m512i w_ = quad(j); \
        EACH_##C(DOT_T, j)          \
    }
#define GROUP_1(C, quad) EACH_QUAD(QUAD_T, C, quad)

/* Sums of q times scales: pairs of groups at a time. */
#define ADD_SUMS(c, sums) t##c = _mm512_dpwssd_epi32(t##c, m_, words32(X256(c)->sums + 2 * i));
#define FINISH_D(c, _)                                                                     \
    y##c = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t##c),                                         \
                           _mm512_mul_ps(d, _mm512_set1_ps(X256(c)->scale)), y##c);
#define FINISH_DMIN(c, _)                                                                  \
    y##c = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(t##c),                                        \
                            _mm512_mul_ps(dmin, _mm512_set1_ps(X256(c)->scale)), y##c);
#define CLEAR_T(c, _) t##c = _mm512_setzero_si512();
/* Takes bias * sub-scale * sum off: codes are the value plus bias. */
#define OFF_BIAS(C, bias, n_pairs, sums)                                                     \
    for (int i = 0; i < (n_pairs); i++) {                                                    \
        const __m512i m_ = _mm512_mullo_epi16(pair_s8(s, i), _mm512_set1_epi16(-(bias)));    \
        EACH_##C(ADD_SUMS, sums)                                                             \
    }

#define TILE256(LINK, name, C, bits, scales, lean, SETUP, GROUP, END)                              \
    LINK void name##_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,       \
                         int64_t stride)                                                           \
    {                                                                                              \
        SETUP                                                                                      \
        EACH_##C(LOAD_Y, _) for (int64_t b = 0; b < n;                                             \
                                 b++, chunk += KERN_CHUNK_BYTES(bits, scales, 8, 0))               \
        {                                                                                          \
            const uint8_t *s = chunk + KERN_SCALES_AT(bits, 8);                                    \
            EACH_##C(ZERO_T, _) for (int h = 0; h < 8; h++)                                        \
            {                                                                                      \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * h;                         \
                FETCH(chunk, h, 8, bits, KERN_CHUNK_BYTES(bits, scales, 8, 0) / 64, C, lean)       \
                GROUP(C)                                                                           \
            }                                                                                      \
            END(C)                                                                                 \
        }                                                                                          \
        EACH_##C(STORE_Y, _)                                                                       \
    }
#define TILES256(name, bits, scales, lean, SETUP, GROUP, END)                      \
    TILE256(static, tile_##name, 1, bits, KERN_SCALES_##scales, lean, SETUP, GROUP, END)      \
    EACH_TILE(TILE256, name, bits, KERN_SCALES_##scales, lean, SETUP, GROUP, END) \
    KERNEL(name, 256, tile_##name##_1)
#define TILES256_ONE(name, bits, scales, lean, SETUP, GROUP, END)                  \
    EACH_TILE(TILE256, name, bits, KERN_SCALES_##scales, lean, SETUP, GROUP, END) \
    KERNEL(name, 256, one_##name)

#define END_MIN32(C)                                                    \
    const __m512 d = halves(s + 256), dmin = halves(s + 288);           \
    EACH_##C(FINISH_D, _)                                                  \
    EACH_##C(CLEAR_T, _)                                                   \
    for (int i = 0; i < 4; i++) {                                       \
        const __m512i m_ = pair_u8(s + 128, i);                         \
        EACH_##C(ADD_SUMS, sum32)                                       \
    }                                                                   \
    EACH_##C(FINISH_DMIN, _)
#define GROUP_Q4_K(C) GROUP_32(C, G4, _mm512_cvtepu8_epi32)
TILES256_ONE(q4_k, 4, SUB8_MIN, 1, NO_SETUP, GROUP_Q4_K, END_MIN32)
#define GROUP_Q5_K(C) GROUP_32(C, G5, _mm512_cvtepu8_epi32)
TILES256_ONE(q5_k, 5, SUB8_MIN, 0, NO_SETUP, GROUP_Q5_K, END_MIN32)

#define G6(j) quad_6(group, j)
#define GROUP_Q6_K(C) GROUP_16(C, G6, _mm512_cvtepi8_epi32)
#define END_Q6_K(C)                      \
    const __m512 d = halves(s + 256);    \
    OFF_BIAS(C, 32, 8, sum16)            \
    EACH_##C(FINISH_D, _)
TILES256_ONE(q6_k, 6, SUB16, 1, NO_SETUP, GROUP_Q6_K, END_Q6_K)

#define G3(j) quad_3(group, j)
#define GROUP_Q3_K(C) GROUP_16(C, G3, _mm512_cvtepi8_epi32)
#define END_Q3_K(C)                      \
    const __m512 d = halves(s + 256);    \
    OFF_BIAS(C, 4, 8, sum16)             \
    EACH_##C(FINISH_D, _)
TILES256_ONE(q3_k, 3, SUB16, 1, NO_SETUP, GROUP_Q3_K, END_Q3_K)

#define GROUP_Q2_K(C) GROUP_16(C, G2, LOW_NIBBLE)
#define END_Q2_K(C)                                                                   \
    const __m512 d = halves(s + 256), dmin = halves(s + 288);                         \
    EACH_##C(FINISH_D, _)                                                                \
    EACH_##C(CLEAR_T, _)                                                                 \
    for (int i = 0; i < 8; i++) {                                                     \
        const __m512i m_ = _mm512_srli_epi16(pair_u8(s, i), 4);                       \
        EACH_##C(ADD_SUMS, sum16)                                                     \
    }                                                                                 \
    EACH_##C(FINISH_DMIN, _)
TILES256_ONE(q2_k, 2, SUB16_NIB, 0, NO_SETUP, GROUP_Q2_K, END_Q2_K)

#define GROUP_IQ4_XS(C) GROUP_32(C, GTABLE, _mm512_cvtepi8_epi32)
#define END_IQ4_XS(C)                    \
    const __m512 d = halves(s + 128);    \
    OFF_BIAS(C, 128, 4, sum32)           \
    EACH_##C(FINISH_D, _)
TILES256_ONE(iq4_xs, 4, SUB8, 1, NL4_SETUP, GROUP_IQ4_XS, END_IQ4_XS)

#define GROUP_TQ2_0(C) GROUP_1(C, G2)
#define END_TQ2_0(C)                                        \
    const __m512 d = halves(s);                             \
    for (int i = 0; i < 4; i++) {                           \
        const __m512i m_ = _mm512_set1_epi16(-1);           \
        EACH_##C(ADD_SUMS, sum32)                           \
    }                                                       \
    EACH_##C(FINISH_D, _)
TILES256(tq2_0, 2, NONE, 1, NO_SETUP, GROUP_TQ2_0, END_TQ2_0)
