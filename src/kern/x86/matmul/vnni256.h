/*
 * vnni256 - products with VPDPBUSD on 256-bit vectors: the tiles of panel256.h with 32-bit
 * sums a0, a1 of rows 0..7 and 8..15.  Codes enter as unsigned bytes; sums start from what
 * that adds to a dot product, so dots are exact.
 *
 * Included by the file for AVX-VNNI (VEX form) and by one for AVX-512 (EVEX form), which runs
 * the same lines on processors that lack the other: NAME(x) is the kernel's name.
 */
#include "kern/x86/matmul/ask256.h"
#include "kern/x86/matmul/dots256.h"
#include "kern/x86/matmul/panel256.h"

#define BEGIN(c, start) __m256i a0##c = start(c), a1##c = a0##c;
#define DOT(c, j)                                    \
    {                                                \
        const __m256i x_ = words32(XQ(c) + 4 * (j)); \
        a0##c = with_dots(a0##c, w0_, x_);           \
        a1##c = with_dots(a1##c, w1_, x_);           \
    }
#define QUAD(C, quad, j)                                               \
    {                                                                  \
        ASK(j)                                                         \
        const __m256i w0_ = quad(group, j), w1_ = quad(group + 32, j); \
        EACH_##C(DOT, j)                                               \
    }
#define QUADS_LOW(C, quad) QUAD(C, quad, 0) QUAD(C, quad, 1) QUAD(C, quad, 2) QUAD(C, quad, 3)
#define QUADS_HIGH(C, quad) QUAD(C, quad, 4) QUAD(C, quad, 5) QUAD(C, quad, 6) QUAD(C, quad, 7)
#define QUADS(C, quad) QUADS_LOW(C, quad) QUADS_HIGH(C, quad)
/* Both nibbles of a line, one after the other. */
#define QUADS_4(C, quad)                                              \
    QUAD(C, quad, 0) QUAD(C, quad, 4) QUAD(C, quad, 1) QUAD(C, quad, 5) \
    QUAD(C, quad, 2) QUAD(C, quad, 6) QUAD(C, quad, 3) QUAD(C, quad, 7)

#define ZERO(c) _mm256_setzero_si256()
/* The stored byte: the value plus 128. */
#define QBYTE(g, j) half_line((g) + 64 * (j))
#define E2M1_SETUP const __m256i table = lut(quant_e2m1_doubled, 128);
#define NL4_SETUP const __m256i table = lut(quant_nl4, 128);

#define KERNEL(name, block_)                                                              \
    PANEL_DRIVE(name, block_)                                                             \
    void NAME(name)(const struct kern_matmul *m, int64_t p0, int64_t p1)                  \
    {                                                                                     \
        drive_run(m, &drive_##name, p0, p1);                                              \
    }

/* ---- groups of 32 ---- */

#define START8(c) words32(&X32(c)->start8)
#define START16(c) _mm256_slli_epi32(START8(c), 1)
#define START128(c) words32(&X32(c)->start128)
#define START1(c) _mm256_srai_epi32(START8(c), 3)

#define FINISH(c, _) ADD_Y(_mm256_fmadd_ps, c, a0##c, a1##c, d, X32(c)->scale)
#define GROUP_D(C, start, QUADS, quad) \
    EACH_##C(BEGIN, start)             \
    QUADS(C, quad)                     \
    D_SCALES                           \
    EACH_##C(FINISH, _)
#define GROUP_DM(C, quad)  \
    EACH_##C(BEGIN, ZERO)  \
    QUADS_4(C, quad)       \
    D_SCALES M_SCALES      \
    EACH_##C(FINISH, _)    \
    EACH_##C(ADD_MIN, _)

#define XQ(c) X32(c)->q
#define GROUP_Q4_0(C) GROUP_D(C, START8, QUADS_4, Q4)
TILES32(q4_0, 4, 2, D, 0, NO_SETUP, GROUP_Q4_0)
#define GROUP_Q5_0(C) GROUP_D(C, START16, QUADS_4, Q5)
TILES32(q5_0, 5, 2, D, 0, NO_SETUP, GROUP_Q5_0)
#define GROUP_Q8_0(C) GROUP_D(C, START128, QUADS, QBYTE)
TILES32(q8_0, 8, 2, D, 0, NO_SETUP, GROUP_Q8_0)
#define GROUP_Q1_0(C) GROUP_D(C, START1, QUADS, Q1)
TILES32(q1_0, 1, 8, D, 2, NO_SETUP, GROUP_Q1_0)
#define GROUP_Q2_0(C) GROUP_D(C, START1, QUADS, Q2)
TILES32(q2_0, 2, 4, D, 1, NO_SETUP, GROUP_Q2_0)
#define GROUP_Q4_1(C) GROUP_DM(C, Q4)
TILES32(q4_1, 4, 1, DM, 0, NO_SETUP, GROUP_Q4_1)
#define GROUP_Q5_1(C) GROUP_DM(C, Q5)
TILES32(q5_1, 5, 1, DM, 0, NO_SETUP, GROUP_Q5_1)
#define GROUP_IQ4_NL(C) GROUP_D(C, START128, QUADS_4, QTABLE)
TILES32(iq4_nl, 4, 2, D, 0, NL4_SETUP, GROUP_IQ4_NL)

#define GROUP_MXFP4(C)                                             \
    EACH_##C(BEGIN, START128)                                      \
    QUADS_4(C, QTABLE)                                             \
    __m256 d0, d1;                                                 \
    halves_e8m0(scale, &d0, &d1);                                  \
    EACH_##C(FINISH, _)
TILES32(mxfp4, 4, 4, E, 0, E2M1_SETUP, GROUP_MXFP4)

/* -128 times the sum of q of this half. */
#define START_LOW(c) _mm256_madd_epi16(words32(X32(c)->pairs[0]), _mm256_set1_epi16(-128))
#define START_HIGH(c) _mm256_madd_epi16(words32(X32(c)->pairs[1]), _mm256_set1_epi16(-128))
#define HALF_NVFP4(C, start, quads, at)                                  \
    {                                                                    \
        EACH_##C(BEGIN, start)                                           \
        quads(C, QTABLE)                                                 \
        const __m256 d0 = half_ue4m3(at), d1 = half_ue4m3((at) + 8);     \
        EACH_##C(FINISH, _)                                              \
    }
#define GROUP_NVFP4(C)                              \
    HALF_NVFP4(C, START_LOW, QUADS_LOW, scale)      \
    HALF_NVFP4(C, START_HIGH, QUADS_HIGH, scale + 16)
TILES32(nvfp4, 4, 2, E2, 0, E2M1_SETUP, GROUP_NVFP4)

/* ---- super-blocks of 256 ---- */

#undef XQ
#define XQ(c) (X256(c)->q + 32 * h)

/* 8 bytes of sub-scales as words of 32 bits. */
#define WIDE_U8(at) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(at)))
#define WIDE_S8(at) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(at)))
#define WIDE_NIBBLE(at) _mm256_and_si256(WIDE_U8(at), _mm256_set1_epi32(15))

#define ADD_SUB(c, _)                                                    \
    t0##c = _mm256_add_epi32(t0##c, _mm256_mullo_epi32(a0##c, sub0));    \
    t1##c = _mm256_add_epi32(t1##c, _mm256_mullo_epi32(a1##c, sub1));
#define SCALED(C, start, quads, quad, wide, at)                          \
    {                                                                    \
        EACH_##C(BEGIN, start)                                           \
        quads(C, quad)                                                   \
        const __m256i sub0 = wide(at), sub1 = wide((at) + 8);            \
        EACH_##C(ADD_SUB, _)                                             \
    }
/* One sub-scale for 32, one for each 16. */
#define GROUP_32(C, quad, wide, start) SCALED(C, start, QUADS_4, quad, wide, s + 16 * h)
#define GROUP_16(C, quad, wide, low, high)                    \
    SCALED(C, low, QUADS_LOW, quad, wide, s + 32 * h)         \
    SCALED(C, high, QUADS_HIGH, quad, wide, s + 32 * h + 16)

/* pairs32 holds -32 times the sums of q per 16: the same times n / 32. */
#define SUM_16(c, half, n) \
    _mm256_madd_epi16(words32(X256(c)->pairs32[2 * h + (half)]), _mm256_set1_epi16(n))

#define GROUP_Q4_K(C) GROUP_32(C, Q4, WIDE_U8, ZERO)
TILES256(q4_k, 4, SUB8_MIN, NO_SETUP, GROUP_Q4_K, END_MIN32)
#define GROUP_Q5_K(C) GROUP_32(C, Q5, WIDE_U8, ZERO)
TILES256(q5_k, 5, SUB8_MIN, NO_SETUP, GROUP_Q5_K, END_MIN32)
#define MINUS_32_LOW(c) SUM_16(c, 0, 1)
#define MINUS_32_HIGH(c) SUM_16(c, 1, 1)
#define GROUP_Q6_K(C) GROUP_16(C, Q6, WIDE_S8, MINUS_32_LOW, MINUS_32_HIGH)
TILES256(q6_k, 6, SUB16, NO_SETUP, GROUP_Q6_K, END_SUB16)
#define MINUS_4_LOW(c) _mm256_srai_epi32(MINUS_32_LOW(c), 3)
#define MINUS_4_HIGH(c) _mm256_srai_epi32(MINUS_32_HIGH(c), 3)
#define GROUP_Q3_K(C) GROUP_16(C, Q3, WIDE_S8, MINUS_4_LOW, MINUS_4_HIGH)
TILES256(q3_k, 3, SUB16, NO_SETUP, GROUP_Q3_K, END_SUB16)
#define GROUP_Q2_K(C) GROUP_16(C, Q2, WIDE_NIBBLE, ZERO, ZERO)
TILES256(q2_k, 2, SUB16_NIB, NO_SETUP, GROUP_Q2_K, END_Q2_K)
#define MINUS_128(c) _mm256_add_epi32(SUM_16(c, 0, 4), SUM_16(c, 1, 4))
#define GROUP_IQ4_XS(C) GROUP_32(C, QTABLE, WIDE_S8, MINUS_128)
TILES256(iq4_xs, 4, SUB8, NL4_SETUP, GROUP_IQ4_XS, END_SUB8)

#define ADD_A(c, _)                              \
    t0##c = _mm256_add_epi32(t0##c, a0##c);      \
    t1##c = _mm256_add_epi32(t1##c, a1##c);
#define GROUP_TQ2_0(C)    \
    EACH_##C(BEGIN, ZERO) \
    QUADS(C, Q2)          \
    EACH_##C(ADD_A, _)
TILES256(tq2_0, 2, NONE, NO_SETUP, GROUP_TQ2_0, END_TQ2_0)

/* ---- stored codes: 8 bits with a bias of 64 and sub-scales of 16, from scratch ---- */

static_assert(STORED_BIAS == 64, "twice -32");
#define MINUS_64_LOW(c) SUM_16(c, 0, 2)
#define MINUS_64_HIGH(c) SUM_16(c, 1, 2)
#define STORED(C)                                                                              \
    static void stored_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y, \
                           int64_t stride)                                                    \
    {                                                                                          \
        EACH_##C(CLEAR_Y, _)                                                            \
        for (int64_t b = 0; b < n; b++, chunk += STORED_BYTES) {                               \
            const uint8_t *s = chunk + STORED_SUB;                                             \
            enum { n_lines = 0 };                                                              \
            EACH_##C(ZERO_T, _)                                                                \
            for (int h = 0; h < 8; h++) {                                                      \
                const uint8_t *group = chunk + 512 * h;                                        \
                GROUP_16(C, QBYTE, WIDE_S8, MINUS_64_LOW, MINUS_64_HIGH)                       \
            }                                                                                  \
            const float *d = (const float *)(const void *)(chunk + STORED_D);                  \
            const __m256 d0 = _mm256_loadu_ps(d), d1 = _mm256_loadu_ps(d + 8);                 \
            EACH_##C(FINISH_D, _)                                                              \
        }                                                                                      \
    }
STORED(1) STORED(2) STORED(3) STORED(4) STORED(5) STORED(6)

void NAME(stored)(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    static const struct drive d = {
        {{stored_6, 6}, {stored_5, 5}, {stored_4, 4}, {stored_3, 3}, {stored_2, 2}, {stored_1, 1}},
        256, 4, STORED_BYTES};
    drive_run_spread(m, &d, kern_stored_expand_avx2, p0, p1);
}
