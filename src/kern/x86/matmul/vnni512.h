/*
 * vnni512 - products on AVX-512 with VNNI: a line of a panel is one vpdpbusd operand.  Codes enter
 * as unsigned bytes; what that adds to a dot product is taken off with the activations'
 * sums, so dots are exact.
 *
 * A tile is tile32() or tile256(), inlined for a number of rows and a code; sums of row c are
 * element c of arrays, which gcc keeps in registers.
 *
 * Included twice: NAME(x) is the kernel's name; AHEAD: the code asks for every line itself,
 * for processors that do not keep up with the loads (calibrate_ahead.c finds out).
 */
#include "kern/kernels.h"
#include "kern/x86/matmul/codes.h"
#include "kern/x86/matmul/drive.h"
#include "kern/x86/matmul/quads512.h"

static inline __m512i words32(const void *at)
{
    int32_t v;
    memcpy(&v, at, sizeof v);
    return _mm512_set1_epi32(v);
}
static ATTR_INLINE const struct kern_act32 *act32(const uint8_t *const *x, int c, int64_t g)
{
    return (const struct kern_act32 *)(const void *)x[c] + g;
}
static ATTR_INLINE const struct kern_act256 *act256(const uint8_t *const *x, int c, int64_t b)
{
    return (const struct kern_act256 *)(const void *)x[c] + b;
}

/* ---- memory ahead ---- */

#if AHEAD
/* Asks for the line this far ahead, long before its use into the second cache and shortly before
 * into the first.  The far one crosses pages, at whose ends the processor stops reading ahead. */
static ATTR_INLINE void prefetch_ahead(const uint8_t *at)
{
    __asm__ volatile("prefetcht1 %0\n\tprefetcht0 %1" : : "m"(at[6144]), "m"(at[3072]));
}
/* Quads that open a line ask: lines asked for at once wait for each other and hold up the dots, and
 * compilers gather what they may move.  So dots keep their places, too (4 rows of Q4_0: 0.90 of the
 * read rate, against 0.75; Granite Rapids, one thread).  Group i asks for line i of the scales. */
static ATTR_INLINE void prefetch(const struct kern_code *code, const uint8_t *group, int j)
{
    if (j < code->bits)
        prefetch_ahead(group + 64 * j);
}
static ATTR_INLINE void fetch(const struct kern_code *code, const uint8_t *chunk, int i, int rows,
                              int lean)
{
    (void)rows;
    (void)lean;
    if (code->bits * code->n_group + i < code_lines(code))
        prefetch_ahead(chunk + 64 * (code->bits * code->n_group + i));
}
#else
static ATTR_INLINE void prefetch(const struct kern_code *code, const uint8_t *group, int j)
{
    (void)code;
    (void)group;
    (void)j;
}
/* Asks for what comes after a chunk, in as many parts as it has groups.  Tiles of
 * up to `lean` rows compute less than they wait: one row leaves all to the processor, which
 * reads on by itself (any hint costs a tenth, Zen 4), more rows show it where.  Other tiles ask
 * for every line, once, into the second cache: one line in nine left out costs half. */
static ATTR_INLINE void fetch(const struct kern_code *code, const uint8_t *chunk, int i, int rows,
                              int lean)
{
    const char *at = (const char *)chunk;
    const int n = code->n_group, n_lines = code_lines(code);
    const int from = (n_lines * i + n - 1) / n, to = (n_lines * (i + 1) + n - 1) / n;
    if (rows > 1 && rows <= lean)
        _mm_prefetch(at + 64 * from + 4096, _MM_HINT_T0);
    for (int l = from; rows > lean && l < to; l++)
        _mm_prefetch(at + 64 * l + 8192, _MM_HINT_T1);
}
#endif

/* ---- codes and scales ---- */

static ATTR_INLINE int bias(const struct kern_code *code) { return code_bias(code, 128); }

/* -bias times the sum of q. */
static ATTR_INLINE __m512i start32(const struct kern_code *code, const struct kern_act32 *a)
{
    switch (bias(code)) {
    case 1: return _mm512_srai_epi32(words32(&a->start8), 3);
    case 8: return words32(&a->start8);
    case 16: return _mm512_slli_epi32(words32(&a->start8), 1);
    case 128: return words32(&a->start128);
    default: return _mm512_setzero_si512();
    }
}
/* Sub-scales of 16 rows. */
static inline __m128i row16(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}
static ATTR_INLINE __m512i sub_scales(const struct kern_code *code, const uint8_t *at)
{
    switch (code->scales) {
    case KERN_SCALES_SUB8_MIN: return _mm512_cvtepu8_epi32(row16(at));
    case KERN_SCALES_SUB16_NIB:
        return _mm512_cvtepu8_epi32(_mm_and_si128(row16(at), _mm_set1_epi8(15)));
    default: return _mm512_cvtepi8_epi32(row16(at));
    }
}
/* Rows of two groups a and b, paired, of bytes (a0, b0, a1, b1, ...): for what multiplies two sums
 * of q at a time. */
static inline __m256i paired(const uint8_t *s)
{
    const __m128i a = row16(s), b = row16(s + 16);
    return _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
}
/* Sub-scales and minimums of pair i. */
static ATTR_INLINE __m512i sub_pairs(const struct kern_code *code, const uint8_t *s, int i)
{
    if (code->scales == KERN_SCALES_SUB16_NIB)
        return _mm512_and_si512(_mm512_cvtepu8_epi16(paired(s + 32 * i)), _mm512_set1_epi16(15));
    return _mm512_cvtepi8_epi16(paired(s + 32 * i));
}
static ATTR_INLINE __m512i min_pairs(const struct kern_code *code, const uint8_t *s, int i)
{
    if (code->scales == KERN_SCALES_SUB16_NIB)
        return _mm512_srli_epi16(_mm512_cvtepu8_epi16(paired(s + 32 * i)), 4);
    return _mm512_cvtepu8_epi16(paired(s + 128 + 32 * i));
}
/* -bias times sub-scales. */
static ATTR_INLINE __m512i bias_pairs(const struct kern_code *code, const uint8_t *s, int i)
{
    if (!code_subs(code))
        return _mm512_set1_epi16((int16_t)-bias(code));
    return _mm512_mullo_epi16(sub_pairs(code, s, i), _mm512_set1_epi16((int16_t)-bias(code)));
}
/* The sums of q that belong to pair i. */
static ATTR_INLINE const int16_t *sums256(const struct kern_code *code, const struct kern_act256 *a,
                                          int i)
{
    return (code_subs(code) == 2 ? a->sum16 : a->sum32) + 2 * i;
}

#include "kern/x86/matmul/one512.h"

/* ---- tiles: `rows` rows times a panel ---- */

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
/* Whole groups: the quad in turn i.  Both nibbles of a line are read one after the other, where
 * their order is kept. */
static ATTR_INLINE int in_turn(const struct kern_code *code, int n, int i)
{
    const bool is_two = AHEAD && n == 8 && (code->bits == 4 || code->bits == 5);
    return is_two ? i % 2 * 4 + i / 2 : i;
}
/* a[c] += n quads from `first` on times q[c] of row c. */
static ATTR_INLINE void dots(const int rows, const struct kern_code *code, __m512i table,
                             const uint8_t *group, int first, int n, const int8_t *const *q,
                             __m512i *a)
{
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        const int j = first + in_turn(code, n, i);
        prefetch(code, group, j);
        const __m512i w = quad(code, table, group, j);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            a[c] = dot_words(a[c], w, q[c] + 4 * j);
    }
}

/* Adds a group of 32 to y. */
static ATTR_INLINE void group32(const int rows, const struct kern_code *code, __m512i table,
                                const uint8_t *group, const uint8_t *scale,
                                const struct kern_act32 *const *x, __m512 *y)
{
    /* Halves that have a scale each, or one. */
    const int n_half = code->scales == KERN_SCALES_E2 ? 2 : 1;
    const int8_t *q[DRIVE_MAX];
    __m512i a[DRIVE_MAX];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        q[c] = x[c]->q;
#pragma GCC unroll 2
    for (int half = 0; half < n_half; half++) {
        const __m512 d = d32(code, scale + 16 * half),
                     m = code_has_min(code) ? halves(scale + 32) : _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            a[c] = n_half == 1 ? start32(code, x[c])
                               : _mm512_madd_epi16(words32(x[c]->pairs[half]),
                                                   _mm512_set1_epi16(-128));
        dots(rows, code, table, group, 4 * half, 8 / n_half, q, a);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m512 by = _mm512_set1_ps(x[c]->scale);
            y[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[c]), _mm512_mul_ps(d, by), y[c]);
            if (code_has_min(code))
                y[c] = _mm512_fmadd_ps(_mm512_set1_ps(x[c]->sum), _mm512_mul_ps(m, by), y[c]);
        }
    }
}
static ATTR_INLINE void tile32(const int rows, const struct kern_code *code, int lean,
                               const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *to,
                               int64_t stride)
{
    const __m512i table = quad_table(code);
    const struct kern_act32 *a[DRIVE_MAX];
    __m512 y[DRIVE_MAX];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        a[c] = act32(x, c, 0);
        y[c] = _mm512_setzero_ps();
    }
    for (int64_t g = 0; g < n; chunk += code->chunk_bytes)
        for (int i = 0; i < code->n_group && g < n; i++, g++) {
            fetch(code, chunk, i, rows, lean);
            group32(rows, code, table, code_group(code, chunk, i), code_scale(code, chunk, i), a,
                    y);
#pragma GCC unroll 8
            for (int c = 0; c < rows; c++)
                a[c]++;
        }
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        _mm512_storeu_ps(to + c * stride, y[c]);
}

/* Adds group h of a super-block, with sub-scales at s, to t. */
static ATTR_INLINE void group256(const int rows, const struct kern_code *code, __m512i table,
                                 const uint8_t *group, const uint8_t *s, int h,
                                 const struct kern_act256 *const *x, __m512i *t)
{
    const int n_sub = code_subs(code);
    const int8_t *q[DRIVE_MAX];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        q[c] = x[c]->q + 32 * h;
    if (!n_sub)
        dots(rows, code, table, group, 0, 8, q, t);
#pragma GCC unroll 2
    for (int i = 0; i < n_sub; i++) {
        const __m512i sub = sub_scales(code, s + 16 * (n_sub * h + i));
        __m512i a[DRIVE_MAX];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            a[c] = _mm512_setzero_si512();
        dots(rows, code, table, group, 8 / n_sub * i, 8 / n_sub, q, a);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            t[c] = _mm512_add_epi32(t[c], _mm512_mullo_epi32(a[c], sub));
    }
}
/* t[c] += w times the sums of q of pair i. */
static ATTR_INLINE void add_sums(const int rows, const struct kern_code *code, __m512i w, int i,
                                 const struct kern_act256 *const *x, __m512i *t)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        t[c] = _mm512_dpwssd_epi32(t[c], w, words32(sums256(code, x[c], i)));
}
/* A super-block: takes the bias off t and adds it to y, then the minimums. */
static ATTR_INLINE void end256(const int rows, const struct kern_code *code, const uint8_t *s,
                               __m512 d, const uint8_t *dmin,
                               const struct kern_act256 *const *x, __m512i *t, __m512 *y)
{
    const int n_pairs = code_subs(code) == 2 ? 8 : 4;
    for (int i = 0; bias(code) && i < n_pairs; i++)
        add_sums(rows, code, bias_pairs(code, s, i), i, x, t);
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        y[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t[c]),
                               _mm512_mul_ps(d, _mm512_set1_ps(x[c]->scale)), y[c]);
        t[c] = _mm512_setzero_si512();
    }
    if (!code_has_min(code))
        return;
    const __m512 m = halves(dmin);
    for (int i = 0; i < n_pairs; i++)
        add_sums(rows, code, min_pairs(code, s, i), i, x, t);
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        y[c] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(t[c]),
                                _mm512_mul_ps(m, _mm512_set1_ps(x[c]->scale)), y[c]);
}
static ATTR_INLINE void tile256(const int rows, const struct kern_code *code, int lean,
                                const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *to,
                                int64_t stride)
{
    const __m512i table = quad_table(code);
    const struct kern_act256 *a[DRIVE_MAX];
    __m512 y[DRIVE_MAX];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        a[c] = act256(x, c, 0);
        y[c] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < n; b++, chunk += code->chunk_bytes) {
        const uint8_t *s = chunk + KERN_SCALES_AT(code->bits, 8), *d = s + code_sub_bytes(code);
        __m512i t[DRIVE_MAX];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            t[c] = _mm512_setzero_si512();
        for (int h = 0; h < 8; h++) {
            if (code != &stored_code)
                fetch(code, chunk, h, rows, lean);
            group256(rows, code, table, code_group(code, chunk, h), s, h, a, t);
        }
        end256(rows, code, s,
               code == &stored_code ? _mm512_loadu_ps((const float *)(const void *)d) : halves(d),
               d + 32, a, t, y);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            a[c]++;
    }
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        _mm512_storeu_ps(to + c * stride, y[c]);
}

/* ---- kernels ---- */

#define TILE(function, rows, block, code, lean)                                                    \
    void function(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,              \
                  int64_t stride)                                                                  \
    {                                                                                              \
        tile##block(rows, code, lean, chunk, n, x, y, stride);                                     \
    }
/* One row as in one512.h. */
#define ONE(function, block, code)                                                                 \
    void function(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,              \
                  int64_t stride)                                                                  \
    {                                                                                              \
        (void)stride;                                                                              \
        one##block(code, chunk, n, x, y);                                                          \
    }
/* The tile of 6 rows both files have from the one that does not ask (Zen 5: 0.96 to 1.16 times as
 * fast, that of 8 rows 0.93 to 1.07). */
#if AHEAD
#define WIDE_TILE(function, ...) drive_tile_fn function;
#else
#define WIDE_TILE(function, ...) drive_tile_fn function; TILE(function, __VA_ARGS__)
#endif
#define KERNEL(name, block, code, lean)                                                            \
    static TILE(name##_2, 2, block, code, lean)                                                    \
    static TILE(name##_3, 3, block, code, lean)                                                    \
    static TILE(name##_4, 4, block, code, lean)                                                    \
    WIDE_TILE(kern_tile512_##name, 6, block, code, lean)                                           \
    static TILE(name##_8, 8, block, code, lean)                                                    \
    void NAME(name)(const struct kern_matmul *m, int64_t p0, int64_t p1)                           \
    {                                                                                              \
        static const struct drive d = {                                                            \
            {{name##_8, 8}, {kern_tile512_##name, 6}, {name##_4, 4}, {name##_3, 3}, {name##_2, 2}, \
             {name##_1, 1}}, block, 0, 0};                                                         \
        drive_run(m, &d, p0, p1);                                                                  \
    }
#define TILES(name, block, id, lean)                                                               \
    static TILE(name##_1, 1, block, &tile_codes[KERN_CODE_##id], lean)                             \
    KERNEL(name, block, &tile_codes[KERN_CODE_##id], lean)
#define TILES_ONE(name, block, id, lean)                                                           \
    static ONE(name##_1, block, &tile_codes[KERN_CODE_##id])                                       \
    KERNEL(name, block, &tile_codes[KERN_CODE_##id], lean)

TILES_ONE(q4_0, 32, Q4_0, 1)
TILES_ONE(q5_0, 32, Q5_0, 0)
TILES_ONE(q8_0, 32, Q8_0, 3)
TILES(q1_0, 32, Q1_0, 0)
TILES(q2_0, 32, Q2_0, 0)
TILES(q4_1, 32, Q4_1, 1)
TILES(q5_1, 32, Q5_1, 0)
TILES(iq4_nl, 32, IQ4_NL, 0)
#if AHEAD
TILES_ONE(mxfp4, 32, MXFP4, 0)
#else
TILES(mxfp4, 32, MXFP4, 0)
#endif
TILES(nvfp4, 32, NVFP4, 0)
TILES_ONE(q4_k, 256, Q4_K, 1)
TILES_ONE(q5_k, 256, Q5_K, 0)
TILES_ONE(q6_k, 256, Q6_K, 1)
TILES_ONE(q3_k, 256, Q3_K, 1)
TILES_ONE(q2_k, 256, Q2_K, 0)
TILES_ONE(iq4_xs, 256, IQ4_XS, 1)
TILES(tq2_0, 256, TQ2_0, 1)
