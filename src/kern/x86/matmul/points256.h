/*
 * points256 - few rows times the codes that are looked up (points of a book), on 256-bit vectors,
 * straight from the panel: activations get the signs of the weights.  A row has two words of a
 * vector, which are added when a super-block ends.  More rows run from spread blocks (stored.h) or
 * panels (spread.h).
 *
 * Included by a file for each form of dots, which defines KERNEL(x), the kernel's name, SPREAD(x),
 * the kernel for more rows, and for weights w, without signs, activations x and sub-scales s
 *   point_dot()     the first or second of two points joins sum a, or t;
 *   point_end()     what is left to do when a sub-scale ends;
 *   point_factor()  sub-scales of dwords as s has them.
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

/* Sums of row c of activations and two vectors of four rows of weights. */
struct point_sums {
    __m256i t[POINTS_FEW][2];
    __m256i a[POINTS_FEW][2]; /* since a sub-scale began */
};
/* Point l, the first or second of two. */
static ATTR_INLINE void add_point(const int rows, uint32_t id, const struct point_numbers *n, int l,
                                  __m256i signs, __m256i plus, const struct constants *k, int h,
                                  __m256i s0, __m256i s1, const uint8_t *const *x, int64_t b,
                                  struct point_sums *sums)
{
    const __m256i w0 = point_values(id, n, l, 0), w1 = point_values(id, n, l, 1);
    const __m256i sign0 = sign_control(signs, l, 0, k->bit, plus),
                  sign1 = sign_control(signs, l, 1, k->bit, plus);
#pragma GCC unroll 4
    for (int c = 0; c < rows; c++) {
        const struct kern_act256 *const act = (const struct kern_act256 *)(const void *)x[c] + b;
        const __m256i v = eights(act->q + 32 * h + 8 * l);
#ifdef __AVX512VL__ /* or sums of one row move between the lower and the upper registers */
        const __m256i x0 = _mm256_sign_epi8(v, sign0), x1 = _mm256_sign_epi8(v, sign1);
        point_dot(l % 2, w0, x0, s0, &sums->a[c][0], &sums->t[c][0]);
        point_dot(l % 2, w1, x1, s1, &sums->a[c][1], &sums->t[c][1]);
#else
        point_dot(l % 2, w0, _mm256_sign_epi8(v, sign0), s0, &sums->a[c][0], &sums->t[c][0]);
        point_dot(l % 2, w1, _mm256_sign_epi8(v, sign1), s1, &sums->a[c][1], &sums->t[c][1]);
#endif
    }
}
/* Rows [8 i, 8 i + 8) of group h. */
static ATTR_INLINE void add_group(const int rows, uint32_t id, struct group g, int i, int h,
                                  __m256i plus, const struct constants *k, const uint8_t *const *x,
                                  int64_t b, struct point_sums *sums)
{
    const int n_part = point_halves(id) ? 2 : 1;
    struct point_numbers n;
    point_numbers(id, g, i, &n);
    const __m256i signs = point_signs(id, g, i, k);
#pragma GCC unroll 2
    for (int part = 0; part < n_part; part++) {
        const __m256i sub = point_factor(point_subs(id, g, i, part, k)),
                      s0 = _mm256_unpacklo_epi32(sub, sub), s1 = _mm256_unpackhi_epi32(sub, sub);
#pragma GCC unroll 4
        for (int c = 0; c < rows; c++)
            sums->a[c][0] = sums->a[c][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int l = 4 / n_part * part; l < 4 / n_part * (part + 1); l++)
            add_point(rows, id, &n, l, signs, plus, k, h, s0, s1, x, b, sums);
#pragma GCC unroll 4
        for (int c = 0; c < rows; c++) {
            point_end(sums->a[c][0], s0, &sums->t[c][0]);
            point_end(sums->a[c][1], s1, &sums->t[c][1]);
        }
    }
}
static ATTR_INLINE void tile(const int rows, const struct code_points *code, const uint8_t *at,
                             int64_t n_blocks, const uint8_t *const *x, float *y, int64_t stride)
{
    const struct constants k = constants_of();
    const __m256i plus = sign_plus();
    for (int64_t b = 0; b < n_blocks; b++) {
        const uint8_t *const chunk = at + b / 2 * code->chunk_bytes;
        const uint8_t *const half_d = chunk + code->chunk_bytes - 64 + b % 2 * 32;
        for (int i = 0; i < 2; i++) {
            struct point_sums sums;
#pragma GCC unroll 4
            for (int c = 0; c < rows; c++)
                sums.t[c][0] = sums.t[c][1] = _mm256_setzero_si256();
            for (int h = 0; h < 8; h++) {
                const struct group g = group_at(code, chunk, (int)(b % 2) * 8 + h);
                if (i == 0)
                    group_prefetch(code, g);
                add_group(rows, code->id, g, i, h, plus, &k, x, b, &sums);
            }
            const __m256 d = _mm256_mul_ps(_mm256_cvtph_ps(load128(half_d + 16 * i)),
                                           _mm256_set1_ps(code->factor));
#pragma GCC unroll 4
            for (int c = 0; c < rows; c++) {
                const __m256i sum = _mm256_hadd_epi32(sums.t[c][0], sums.t[c][1]);
                const float scale = ((const struct kern_act256 *)(const void *)x[c] + b)->scale;
                float *const to = y + c * stride + 8 * i;
                const __m256 was = b == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(to);
                _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                                                     _mm256_mul_ps(d, _mm256_set1_ps(scale)), was));
            }
        }
    }
}
#define FEW_TILE(name, rows, id)                                                                   \
    static void few_##name##_##rows(const uint8_t *at, int64_t n, const uint8_t *const *x,         \
                                    float *y, int64_t stride)                                      \
    {                                                                                              \
        tile(rows, &points_##id, at, n, x, y, stride);                                             \
    }
#define FEW(name, id)                                                                              \
    FEW_TILE(name, 1, id)                                                                          \
    FEW_TILE(name, 2, id)                                                                          \
    FEW_TILE(name, 3, id)                                                                          \
    FEW_TILE(name, 4, id)                                                                          \
    void KERNEL(name)(const struct kern_matmul *m, int64_t p0, int64_t p1)                         \
    {                                                                                              \
        static const struct drive few = {                                                          \
            {{few_##name##_4, 4}, {few_##name##_3, 3}, {few_##name##_2, 2}, {few_##name##_1, 1}},  \
            256, 0, 0};                                                                            \
        if (m->n <= POINTS_FEW)                                                                    \
            drive_run(m, &few, p0, p1);                                                            \
        else                                                                                       \
            SPREAD(name)(m, p0, p1);                                                               \
    }
FEW(iq2_xxs, IQ2_XXS)
FEW(iq2_xs, IQ2_XS)
FEW(iq2_s, IQ2_S)
FEW(iq3_xxs, IQ3_XXS)
FEW(iq3_s, IQ3_S)
