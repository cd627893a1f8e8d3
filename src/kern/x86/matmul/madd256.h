/*
 * madd256 - products on AVX2.  A line of a panel is two vectors of 8 rows.  vpmaddubsw adds pairs
 * of
 * k to 16-bit lanes: a lane gathers half of the k of a group.  Its sum may wrap on the way
 * but not at the end, because it starts from -bias times the activations of its k where
 * unsigned codes alone would be too large:
 *   4-bit codes, 32 k:           15 * 127 * 16 = 30480
 *   e2m1 doubled, bias 16:       12 * 127 * 16 = 24384
 *   5-bit, bias 16:              16 * 127 * 16 = 32512;  unsigned, 16 k: 31 * 127 * 8 = 31496
 *   6-bit, 16 k, bias 32:        32 * 127 * 8  = 32512
 *   8-bit values: each pair goes to 32 bits by itself.
 * Then vpmaddwd with ones or integer sub-scales makes exact 32-bit sums.
 *
 * Included by two files: NAME(x) is the kernel's name, AHEAD is 1 where quads ask for lines
 * (ask256.h).
 */
#if AHEAD
#include "kern/x86/matmul/ask256.h"
#define WIDE_TILE(TILE, name, C, ...) drive_tile_fn WIDE_NAME(name, C);
#else
#define ASK(j)
#define WIDE_TILE(TILE, name, C, ...)         \
    drive_tile_fn WIDE_NAME(name, C);         \
    TILE(, kern_tile256_##name, C, __VA_ARGS__)
#endif
#define WIDE_NAME(name, C) kern_tile256_##name##_##C
#include "kern/x86/matmul/panel256.h"

/* The compiler must not reorder these sums: it would keep all products alive and spill; nor move
 * them from between the lines that are asked for. */
#if AHEAD
#define KEEP(v) __asm__ volatile("" : "+x"(v))
#else
#define KEEP(v) __asm__("" : "+x"(v))
#endif

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
        ASK(j)                                                        \
        const __m256i w0_ = quad(group, j), w1_ = quad(group + 32, j); \
        EACH_##C(DOT, j)                                              \
    }
#define QUADS_LOW(C, quad) QUAD(C, quad, 0) QUAD(C, quad, 1) QUAD(C, quad, 2) QUAD(C, quad, 3)
#define QUADS_HIGH(C, quad) QUAD(C, quad, 4) QUAD(C, quad, 5) QUAD(C, quad, 6) QUAD(C, quad, 7)
#define QUADS(C, quad) QUADS_LOW(C, quad) QUADS_HIGH(C, quad)

#define ZERO(c) _mm256_setzero_si256()
#define E2M1_SETUP const __m256i table = lut(quant_e2m1_doubled, 16);
#define NL4_SETUP const __m256i table = lut(quant_nl4, 0);

#define KERNEL(name, block_)                                                                  \
    PANEL_DRIVE(name, block_)                                                                 \
    void NAME(name)(const struct kern_matmul *m, int64_t p0, int64_t p1)                      \
    {                                                                                         \
        drive_run(m, &drive_##name, p0, p1);                                                  \
    }

/* ---- groups of 32 ---- */

#define PAIRS8(c) words32(X32(c)->pairs8)
#define PAIRS16(c) words32(X32(c)->pairs16)
#define PAIRS1(c) _mm256_srai_epi16(PAIRS8(c), 3)

#define FINISH(c, _)                                                                     \
    ADD_Y(_mm256_fmadd_ps, c, _mm256_madd_epi16(lo##c, ONES),                            \
          _mm256_madd_epi16(hi##c, ONES), d, X32(c)->scale)
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
        ADD_Y(_mm256_fmadd_ps, c, _mm256_sub_epi32(_mm256_madd_epi16(lo##c, ONES), off_),     \
              _mm256_sub_epi32(_mm256_madd_epi16(hi##c, ONES), off_), d, X32(c)->scale)       \
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
        ASK(j)                                                                \
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
    const __m256i factor0 = ONES, factor1 = factor0;             \
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
    __m256 d0, d1;                                                          \
    halves_e8m0(scale, &d0, &d1);                                           \
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

#undef XQ
#define XQ(c) (X256(c)->q + 32 * h)

#define ADD_T(c, m)                                                          \
    t0##c = _mm256_add_epi32(t0##c, _mm256_madd_epi16(lo##c, m##0));         \
    t1##c = _mm256_add_epi32(t1##c, _mm256_madd_epi16(hi##c, m##1));

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

#define GROUP_Q4_K(C) GROUP_32(C, Q4, doubled_u8)
TILES256(q4_k, 4, SUB8_MIN, NO_SETUP, GROUP_Q4_K, END_MIN32)
#define GROUP_Q5_K(C) GROUP_16(C, Q5, doubled_u8, ZERO, ZERO, 8)
TILES256(q5_k, 5, SUB8_MIN, NO_SETUP, GROUP_Q5_K, END_MIN32)

#define PAIRS32_LOW(c) words32(X256(c)->pairs32[2 * h])
#define PAIRS32_HIGH(c) words32(X256(c)->pairs32[2 * h + 1])
#define GROUP_Q6_K(C) GROUP_16(C, Q6, doubled_s8, PAIRS32_LOW, PAIRS32_HIGH, 16)
TILES256(q6_k, 6, SUB16, NO_SETUP, GROUP_Q6_K, END_SUB16)

#define PAIRS4_LOW(c) _mm256_srai_epi16(PAIRS32_LOW(c), 3)
#define PAIRS4_HIGH(c) _mm256_srai_epi16(PAIRS32_HIGH(c), 3)
#define GROUP_Q3_K(C) GROUP_16(C, Q3, doubled_s8, PAIRS4_LOW, PAIRS4_HIGH, 16)
TILES256(q3_k, 3, SUB16, NO_SETUP, GROUP_Q3_K, END_SUB16)

#define GROUP_Q2_K(C) GROUP_16(C, Q2, LOW_NIBBLE, ZERO, ZERO, 16)
TILES256(q2_k, 2, SUB16_NIB, NO_SETUP, GROUP_Q2_K, END_Q2_K)

#define GROUP_IQ4_XS(C)                                                                  \
    SUBS(s + 16 * h, doubled_s8)                                                         \
    const __m256i factor0 = sub0, factor1 = sub1;                                        \
    QUADS_SIGNED(C, QTABLE)
TILES256(iq4_xs, 4, SUB8, NL4_SETUP, GROUP_IQ4_XS, END_SUB8)

#define GROUP_TQ2_0(C)                                                  \
    EACH_##C(BEGIN, ZERO)                                               \
    QUADS(C, Q2)                                                        \
    const __m256i one0 = _mm256_set1_epi16(1), one1 = one0;             \
    EACH_##C(ADD_T, one)
TILES256(tq2_0, 2, NONE, NO_SETUP, GROUP_TQ2_0, END_TQ2_0)

#if !AHEAD /* they are read from scratch */
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
                           int64_t stride)                                                   \
    {                                                                                         \
        EACH_##C(CLEAR_Y, _)                                                            \
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

void NAME(stored)(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    static const struct drive d = {
        {{stored_6, 6}, {stored_5, 5}, {stored_4, 4}, {stored_3, 3}, {stored_2, 2}, {stored_1, 1}},
        256, 4, STORED_BYTES};
    drive_run_spread(m, &d, kern_stored_expand_avx2, p0, p1);
}
#endif
