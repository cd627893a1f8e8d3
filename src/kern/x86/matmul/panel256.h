/*
 * panel256 - the tiles of the product kernels with 256-bit vectors: a panel, as two vectors of 8
 * rows, times some rows of activations, whose sums are in memory.  A tile is tile32() or tile256(),
 * inlined for a number of rows and a code; sums of row c are element c of arrays lo (rows 0..7 of
 * the panel) and hi, which gcc keeps in registers.
 *
 * A body: madd256.h and vnni256.h include it after what they define: NAME(x), the kernel's name,
 * and how a group is multiplied:
 *   listed()   what is added to values of a table;
 *   sums32()   the dots of a whole group or, if both have scales, of a half, ...
 *   whole32()  ... and one of them as an integer of 32 bits;
 *   add256()   adds group h, whose sub-scales are at s, to sums lo and hi;
 *   bias256()  whether the bias is still in those sums when a super-block ends.
 */
#include "kern/kernels.h"
#include "kern/x86/matmul/drive.h"

/* ---- sums in memory ---- */

static ATTR_INLINE void clear_y(const int rows, float *y, int64_t stride)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        _mm256_storeu_ps(y + c * stride, _mm256_setzero_ps());
        _mm256_storeu_ps(y + c * stride + 8, _mm256_setzero_ps());
    }
}
/* y += v * (d * s), or less that */
static ATTR_INLINE void add_y(float *y, __m256 v, __m256 d, __m256 s, bool is_less)
{
    const __m256 by = _mm256_mul_ps(d, s), was = _mm256_loadu_ps(y);
    _mm256_storeu_ps(y, is_less ? _mm256_fnmadd_ps(v, by, was) : _mm256_fmadd_ps(v, by, was));
}

/* ---- groups of 32 ---- */

static ATTR_INLINE void group32(const int rows, const struct kern_code *code, __m256i table,
                                const uint8_t *group, const uint8_t *scale,
                                const struct kern_act32 *const *x, float *y, int64_t stride)
{
    const int n_half = code->scales == KERN_SCALES_E2 ? 2 : 1;
#pragma GCC unroll 2
    for (int half = 0; half < n_half; half++) {
        __m256i lo[PANEL_ROWS], hi[PANEL_ROWS];
        __m256 d[2];
        sums32(rows, code, table, group, half, x, lo, hi);
        d32(code, scale + 16 * half, d);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m256 s = _mm256_set1_ps(x[c]->scale);
            add_y(y + c * stride, _mm256_cvtepi32_ps(whole32(code, lo[c], x[c])), d[0], s,
                  false);
            add_y(y + c * stride + 8, _mm256_cvtepi32_ps(whole32(code, hi[c], x[c])), d[1], s,
                  false);
        }
    }
    if (!code_has_min(code))
        return;
    const __m256 m0 = halves(scale + 32), m1 = halves(scale + 48);
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        const __m256 s = _mm256_set1_ps(x[c]->scale), sum = _mm256_set1_ps(x[c]->sum);
        add_y(y + c * stride, sum, m0, s, false);
        add_y(y + c * stride + 8, sum, m1, s, false);
    }
}
static ATTR_INLINE void tile32(const int rows, const struct kern_code *code, const uint8_t *chunk,
                               int64_t n, const uint8_t *const *x, float *y, int64_t stride)
{
    const __m256i table = quad_table(code, listed(code));
    const struct kern_act32 *a[PANEL_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        a[c] = (const struct kern_act32 *)(const void *)x[c];
    clear_y(rows, y, stride);
    for (int64_t g = 0; g < n; chunk += code->chunk_bytes)
        for (int i = 0; i < code->n_group && g < n; i++, g++) {
            fetch(code, chunk, i, rows);
            group32(rows, code, table, code_group(code, chunk, i), code_scale(code, chunk, i), a, y,
                    stride);
#pragma GCC unroll 8
            for (int c = 0; c < rows; c++)
                a[c]++;
        }
}

/* ---- super-blocks of 256 ---- */

/* Sums += w times pair i of the sums of q. */
static ATTR_INLINE void add_sums(const int rows, const struct kern_code *code, __m256i w0,
                                 __m256i w1, int i, const struct kern_act256 *const *x, __m256i *lo,
                                 __m256i *hi)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        const __m256i sums = words32((code_subs(code) == 2 ? x[c]->sum16 : x[c]->sum32) + 2 * i);
        lo[c] = _mm256_add_epi32(lo[c], _mm256_madd_epi16(w0, sums));
        hi[c] = _mm256_add_epi32(hi[c], _mm256_madd_epi16(w1, sums));
    }
}
static ATTR_INLINE void finish256(const int rows, const __m256i *lo, const __m256i *hi, __m256 d0,
                                  __m256 d1, bool is_less, const struct kern_act256 *const *x,
                                  float *y, int64_t stride)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        const __m256 s = _mm256_set1_ps(x[c]->scale);
        add_y(y + c * stride, _mm256_cvtepi32_ps(lo[c]), d0, s, is_less);
        add_y(y + c * stride + 8, _mm256_cvtepi32_ps(hi[c]), d1, s, is_less);
    }
}
/* -bias times the sub-scales of pair i, and the minimums of pair i, of 8 rows. */
static ATTR_INLINE __m256i bias_pairs(const struct kern_code *code, const uint8_t *s, int i,
                                     int high)
{
    const __m256i minus = _mm256_set1_epi16((int16_t)-code->bias);
    return code_subs(code) ? _mm256_mullo_epi16(paired(s + 32 * i, high), minus) : minus;
}
static ATTR_INLINE __m256i min_pairs(const struct kern_code *code, const uint8_t *s, int i,
                                     int high)
{
    return code_subs(code) == 2 ? _mm256_srli_epi16(paired(s + 32 * i, high), 4)
                                : paired(s + 128 + 32 * i, high);
}
static ATTR_INLINE void end256(const int rows, const struct kern_code *code, const uint8_t *s,
                               const uint8_t *d, const struct kern_act256 *const *x, __m256i *lo,
                               __m256i *hi, float *y, int64_t stride)
{
    const int n_pairs = code_subs(code) == 2 ? 8 : 4;
    for (int i = 0; bias256(code) && i < n_pairs; i++)
        add_sums(rows, code, bias_pairs(code, s, i, 0), bias_pairs(code, s, i, 1), i, x, lo, hi);
    const float *const floats = (const float *)(const void *)d;
    const bool is_stored = code == &stored_code;
    finish256(rows, lo, hi, is_stored ? _mm256_loadu_ps(floats) : halves(d),
              is_stored ? _mm256_loadu_ps(floats + 8) : halves(d + 16), false, x, y, stride);
    if (!code_has_min(code))
        return;
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        lo[c] = hi[c] = _mm256_setzero_si256();
    for (int i = 0; i < n_pairs; i++)
        add_sums(rows, code, min_pairs(code, s, i, 0), min_pairs(code, s, i, 1), i, x, lo, hi);
    finish256(rows, lo, hi, halves(d + 32), halves(d + 48), true, x, y, stride);
}
static ATTR_INLINE void tile256(const int rows, const struct kern_code *code, const uint8_t *chunk,
                                int64_t n, const uint8_t *const *x, float *y, int64_t stride)
{
    const __m256i table = quad_table(code, listed(code));
    const struct kern_act256 *a[PANEL_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        a[c] = (const struct kern_act256 *)(const void *)x[c];
    clear_y(rows, y, stride);
    for (int64_t b = 0; b < n; b++, chunk += code->chunk_bytes) {
        const uint8_t *s = chunk + KERN_SCALES_AT(code->bits, 8);
        __m256i lo[PANEL_ROWS], hi[PANEL_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            lo[c] = hi[c] = _mm256_setzero_si256();
        for (int h = 0; h < 8; h++) {
            if (code != &stored_code)
                fetch(code, chunk, h, rows);
            add256(rows, code, table, code_group(code, chunk, h), s, h, a, lo, hi);
        }
        end256(rows, code, s, s + code_sub_bytes(code), a, lo, hi, y, stride);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            a[c]++;
    }
}

/* ---- kernels ---- */

#define TILE(function, rows, block, code)                                                          \
    void function(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,              \
                  int64_t stride)                                                                  \
    {                                                                                              \
        tile##block(rows, code, chunk, n, x, y, stride);                                           \
    }
/* Tiles of 5 and of 6 rows.  Where two files differ in how they wait for memory, those are made
 * once, because they compute for longer than they wait. */
#ifndef WIDE_TILE
#define WIDE_TILE(function, ...) static TILE(function, __VA_ARGS__)
#define WIDE_NAME(name) name
#endif
#define KERNEL(name, block, code)                                                                  \
    static TILE(name##_1, 1, block, code)                                                          \
    static TILE(name##_2, 2, block, code)                                                          \
    static TILE(name##_3, 3, block, code)                                                          \
    static TILE(name##_4, 4, block, code)                                                          \
    WIDE_TILE(WIDE_NAME(name##_5), 5, block, code)                                                 \
    WIDE_TILE(WIDE_NAME(name##_6), 6, block, code)                                                 \
    static const struct drive drive_##name = {                                                     \
        {{WIDE_NAME(name##_6), 6}, {WIDE_NAME(name##_5), 5}, {name##_4, 4}, {name##_3, 3},         \
         {name##_2, 2}, {name##_1, 1}}, block, 4, STORED_BYTES};
#define PANELS(name, block, id)                                                                    \
    KERNEL(name, block, &tile_codes[KERN_CODE_##id])                                               \
    void NAME(name)(const struct kern_matmul *m, int64_t p0, int64_t p1)                           \
    {                                                                                              \
        drive_run(m, &drive_##name, p0, p1);                                                       \
    }
PANELS(q4_0, 32, Q4_0)
PANELS(q5_0, 32, Q5_0)
PANELS(q8_0, 32, Q8_0)
PANELS(q1_0, 32, Q1_0)
PANELS(q2_0, 32, Q2_0)
PANELS(q4_1, 32, Q4_1)
PANELS(q5_1, 32, Q5_1)
PANELS(iq4_nl, 32, IQ4_NL)
PANELS(mxfp4, 32, MXFP4)
PANELS(nvfp4, 32, NVFP4)
PANELS(q4_k, 256, Q4_K)
PANELS(q5_k, 256, Q5_K)
PANELS(q6_k, 256, Q6_K)
PANELS(q3_k, 256, Q3_K)
PANELS(q2_k, 256, Q2_K)
PANELS(iq4_xs, 256, IQ4_XS)
PANELS(tq2_0, 256, TQ2_0)
#ifndef NO_STORED
KERNEL(stored, 256, &stored_code)
void NAME(stored)(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    drive_run_spread(m, &drive_stored, kern_stored_expand_avx2, p0, p1);
}
#endif
