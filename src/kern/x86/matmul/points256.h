/*
 * points256 - few rows times the codes that are looked up (points of a book), on 256-bit vectors,
 * straight from the
 * panel: activations get the signs of the weights.  A row has two words of a vector, which are
 * added when a
 * super-block ends.  More rows run from spread blocks (stored.h) or panels (spread.h).
 *
 * Included by a file for each form of dots, which defines KERNEL(x), the kernel's name, SPREAD(x),
 * the kernel for more
 * rows, and for sums of column c and vector v (weights w0_, w1_, no signs; activations x0_, x1_;
 * sub-scales s0_, s1_)
 *   BEGIN(c), FIRST(c, v), SECOND(c, v), SCALE(c, v)   two dots of a sub-scale, begun, and what is
 *   left to do;
 *   FACTOR(sub)                                        sub-scales of dwords as s0_ and s1_ have
 *   them.
 */
#include "kern/kernels.h"
#include "kern/x86/matmul/drive.h"
#include "kern/x86/matmul/points_read256.h"

enum { POINTS_FEW = 4 };

/* 8 bytes, again and again. */
static ATTR_INLINE __m256i eights(const void *at)
{
    return _mm256_castpd_si256(_mm256_broadcast_sd((const double *)at));
}

/* Sign byte l of each row of vector v, for each of its 8 bytes. */
static ATTR_INLINE __m256i sign_bytes(__m256i signs, int l, int v)
{
    const int64_t step = 0x0101010101010101;
    const __m256i row0 = _mm256_set1_epi64x(step * (8 * v + l)),
                  row1 = _mm256_set1_epi64x(step * (8 * v + 4 + l));
    return _mm256_shuffle_epi8(signs, _mm256_blend_epi32(row0, row1, 0xCC));
}

/* What makes of bit i of byte i a number with its sign, and one that is not 0 of others. */
static ATTR_INLINE __m256i sign_plus(void)
{
    __m256i plus = _mm256_set1_epi8(127);
    __asm__("" : "+x"(plus));
    return plus;
}
static ATTR_INLINE __m256i sign_control(__m256i signs, int l, int v, __m256i bit, __m256i plus)
{
    return _mm256_add_epi8(_mm256_and_si256(sign_bytes(signs, l, v), bit), plus);
}

#define ZERO_T(c, _) __m256i t0##c = _mm256_setzero_si256(), t1##c = t0##c;
#define X256(c) ((const struct kern_act256 *)(const void *)x[c] + b)
#define BOTH_WORDS(c, _) t0##c = _mm256_hadd_epi32(t0##c, t1##c);
#define FINISH(c, _)                                                                              \
    {                                                                                             \
        float *const y_ = y + (c) * stride + 8 * i;                                               \
        const __m256 d_ = _mm256_mul_ps(d, _mm256_set1_ps(X256(c)->scale));                       \
        const __m256 v_ = b == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(y_);                     \
        _mm256_storeu_ps(y_, _mm256_fmadd_ps(_mm256_cvtepi32_ps(t0##c), d_, v_));                 \
    }
#define SIGNED(c, at, TIMES)                                                                       \
    {                                                                                              \
        const __m256i x_ = eights(X256(c)->q + (at));                                              \
        const __m256i x0_ = _mm256_sign_epi8(x_, sign0_), x1_ = _mm256_sign_epi8(x_, sign1_);      \
        TIMES(c, 0)                                                                                \
        TIMES(c, 1)                                                                                \
    }
#define SIGNED_FIRST(c, at) SIGNED(c, at, FIRST)
#define SIGNED_SECOND(c, at) SIGNED(c, at, SECOND)
#define POINT_FEW(NAME, C, l, WHICH)                                                               \
    {                                                                                              \
        const __m256i w0_ = VALUES_##NAME(l, 0), w1_ = VALUES_##NAME(l, 1);                        \
        const __m256i sign0_ = sign_control(signs, l, 0, k.bit, plus);                             \
        const __m256i sign1_ = sign_control(signs, l, 1, k.bit, plus);                             \
        EACH_##C(SIGNED_##WHICH, 32 * h + 8 * (l))                                                 \
    }
#define SCALES_FEW(NAME, half)                                                                     \
    const __m256i sub_ = FACTOR(SUB_##NAME(half)), s0_ = _mm256_unpacklo_epi32(sub_, sub_),        \
                  s1_ = _mm256_unpackhi_epi32(sub_, sub_);
#define BEGIN_EACH(c, _) BEGIN(c)
#define SCALE_EACH(c, _) SCALE(c, 0) SCALE(c, 1)
#define FEW_32(NAME, C)                                                                            \
    {                                                                                              \
        SCALES_FEW(NAME, 0)                                                                        \
        EACH_##C(BEGIN_EACH, _) POINT_FEW(NAME, C, 0, FIRST) POINT_FEW(NAME, C, 1, SECOND)         \
            POINT_FEW(NAME, C, 2, FIRST) POINT_FEW(NAME, C, 3, SECOND) EACH_##C(SCALE_EACH, _)     \
    }
#define FEW_16(NAME, C)                                                                            \
    {SCALES_FEW(NAME, 0) EACH_##C(BEGIN_EACH, _) POINT_FEW(NAME, C, 0, FIRST)                      \
         POINT_FEW(NAME, C, 1, SECOND) EACH_##C(SCALE_EACH, _)} {                                  \
        SCALES_FEW(NAME, 1)                                                                        \
        EACH_##C(BEGIN_EACH, _) POINT_FEW(NAME, C, 2, FIRST) POINT_FEW(NAME, C, 3, SECOND)         \
            EACH_##C(SCALE_EACH, _)                                                                \
    }
#define TILE_FEW(name, NAME, C, per, factor)                                                       \
    static void name##_##C(const uint8_t *at, int64_t n_blocks, const uint8_t *const *x, float *y, \
                           int64_t stride)                                                         \
    {                                                                                              \
        const struct constants k = constants_of();                                                 \
        const __m256i plus = sign_plus();                                                          \
        for (int64_t b = 0; b < n_blocks; b++) {                                                   \
            const uint8_t *const chunk = at + b / 2 * KERN_CHUNK_##NAME;                           \
            const uint8_t *const half_d = chunk + KERN_CHUNK_##NAME - 64 + b % 2 * 32;             \
            for (int i = 0; i < 2; i++) {                                                          \
                EACH_##C(ZERO_T, _) for (int h = 0; h < 8; h++)                                    \
                {                                                                                  \
                    const int n = (int)(b % 2) * 8 + h;                                            \
                    const struct group g = GROUP_AT(NAME, chunk, n);                               \
                    if (i == 0)                                                                    \
                        GROUP_ASK(NAME)                                                            \
                    NUMBERS_##NAME const __m256i signs = SIGNS_##NAME;                             \
                    FEW_##per(NAME, C)                                                             \
                }                                                                                  \
                EACH_##C(BOTH_WORDS, _) const __m256 d = _mm256_mul_ps(                            \
                    _mm256_cvtph_ps(load128(half_d + 16 * i)), _mm256_set1_ps(factor));            \
                EACH_##C(FINISH, _)                                                                \
            }                                                                                      \
        }                                                                                          \
    }
#define FEW(name, NAME, per, factor)                                                               \
    TILE_FEW(few_##name, NAME, 1, per, factor)                                                     \
    TILE_FEW(few_##name, NAME, 2, per, factor)                                                     \
    TILE_FEW(few_##name, NAME, 3, per, factor) TILE_FEW(few_##name, NAME, 4, per, factor) void     \
    KERNEL(name)(const struct kern_matmul *m, int64_t p0, int64_t p1)                              \
    {                                                                                              \
        static const struct drive few = {                                                          \
            {{few_##name##_4, 4}, {few_##name##_3, 3}, {few_##name##_2, 2}, {few_##name##_1, 1}},  \
            256,                                                                                   \
            0,                                                                                     \
            0};                                                                                    \
        if (m->n <= POINTS_FEW)                                                                    \
            drive_run(m, &few, p0, p1);                                                            \
        else                                                                                       \
            SPREAD(name)(m, p0, p1);                                                               \
    }
FEW(iq2_xxs, IQ2_XXS, 32, 0.125f)
FEW(iq2_xs, IQ2_XS, 16, 0.125f)
FEW(iq2_s, IQ2_S, 16, 0.125f)
FEW(iq3_xxs, IQ3_XXS, 32, 0.25f)
FEW(iq3_s, IQ3_S, 32, 1.0f)
