/*
 * madd256 - products on AVX2: the tiles of panel256.h.  vpmaddubsw adds pairs of
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
 * Included by two files: NAME(x) is the kernel's name, AHEAD is 1 where quads ask for lines.
 */
#define QUADS_PREFETCH AHEAD
#include "kern/x86/matmul/ask256.h"
#include "kern/x86/matmul/quads256.h"

enum { PANEL_ROWS = 6 };

static ATTR_INLINE __m256i with_pairs(__m256i sum, __m256i w, __m256i x)
{
    return kept(_mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x)));
}
static ATTR_INLINE __m256i with_factor(__m256i sum, __m256i w, __m256i x, __m256i factor)
{
    return kept(_mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), factor)));
}

/* Lines of 2 bits, of which four quads are taken: gcc would read them again for each. */
static ATTR_INLINE void read_lines(const uint8_t *group, int j, __m256i *line)
{
    line[0] = half_line(group + 64 * (j / 4));
    line[1] = half_line(group + 64 * (j / 4) + 32);
    __asm__("" : "+x"(line[0]), "+x"(line[1]));
}
/* lo[c] += n quads of rows 0..7 of the panel, from `first` on, times q[c], as words; hi: of rows
 * 8..15. */
static ATTR_INLINE void dots(const int rows, const struct kern_code *code, __m256i table,
                             const uint8_t *group, int first, int n, const int8_t *const *q,
                             __m256i *lo, __m256i *hi)
{
    const bool is_2 = code->bits == 2;
    __m256i line[2];
#pragma GCC unroll 8
    for (int j = first; j < first + n; j++) {
        prefetch(code, group, j);
        if (is_2 && j % 4 == 0)
            read_lines(group, j, line);
        const __m256i w0 = is_2 ? masked(line[0], 2 * (j % 4), 0, 3)
                                : quad(code, table, group, j),
                      w1 = is_2 ? masked(line[1], 2 * (j % 4), 0, 3)
                                : quad(code, table, group + 32, j);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m256i v = words32(q[c] + 4 * j);
            lo[c] = with_pairs(lo[c], w0, v);
            hi[c] = with_pairs(hi[c], w1, v);
        }
    }
}

/* ---- values of 8 bits ---- */

/* A pair of products fits 16 bits and no more, so each goes to 32 bits at once, times a factor. */
static ATTR_INLINE bool is_wide(const struct kern_code *code)
{
    return code->bits == 8 || code == &tile_codes[KERN_CODE_IQ4_NL] ||
           code == &tile_codes[KERN_CODE_IQ4_XS];
}
/* What is added to values of a table. */
static ATTR_INLINE int listed(const struct kern_code *code) { return is_wide(code) ? 0 : 16; }
/* The sign of a value goes to the activation, -128 is 128 without its sign. */
static ATTR_INLINE void signed_dots(const int rows, __m256i v, const int8_t *const *q, int j,
                                    __m256i factor, __m256i *sum)
{
    const __m256i w = _mm256_abs_epi8(v);
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        sum[c] = with_factor(sum[c], w, _mm256_sign_epi8(words32(q[c] + 4 * j), v), factor);
}
static ATTR_INLINE __m256i value(const struct kern_code *code, __m256i table, const uint8_t *group,
                                 int j)
{
    const __m256i v = quad(code, table, group, j);
    return code->bits == 8 ? _mm256_xor_si256(v, bytes(128)) : v;
}
static ATTR_INLINE void wide_dots(const int rows, const struct kern_code *code, __m256i table,
                                  const uint8_t *group, const int8_t *const *q, __m256i factor0,
                                  __m256i factor1, __m256i *lo, __m256i *hi)
{
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        prefetch(code, group, j);
        signed_dots(rows, value(code, table, group, j), q, j, factor0, lo);
        signed_dots(rows, value(code, table, group + 32, j), q, j, factor1, hi);
    }
}
/* Stored codes are at most 126, so pairs are at most 2 * 126 * 127 = 32004. */
static ATTR_INLINE void stored_dots(const int rows, const uint8_t *group, int first,
                                    const int8_t *const *q, __m256i factor0, __m256i factor1,
                                    __m256i *lo, __m256i *hi)
{
#pragma GCC unroll 8
    for (int j = first; j < first + 4; j++) {
        const __m256i w0 = half_line(group + 64 * j), w1 = half_line(group + 64 * j + 32);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m256i v = words32(q[c] + 4 * j);
            lo[c] = with_factor(lo[c], w0, v, factor0);
            hi[c] = with_factor(hi[c], w1, v, factor1);
        }
    }
}

/* ---- groups of 32 ---- */

/* -bias times the sums of q of both k of a pair, also where 5 bits would be too large without. */
static ATTR_INLINE __m256i start32(const struct kern_code *code, int half,
                                   const struct kern_act32 *x)
{
    if (code->scales == KERN_SCALES_E2)
        return _mm256_mullo_epi16(words32(x->pairs[half]), _mm256_set1_epi16(-16));
    switch (code->bits == 5 ? 16 : code_bias(code, listed(code))) {
    case 1: return _mm256_srai_epi16(words32(x->pairs8), 3);
    case 8: return words32(x->pairs8);
    case 16: return words32(x->pairs16);
    default: return _mm256_setzero_si256();
    }
}
/* As 32 bits; Q5_1 gets its 16 times the sum of q back. */
static ATTR_INLINE __m256i whole32(const struct kern_code *code, __m256i v,
                                   const struct kern_act32 *x)
{
    if (is_wide(code))
        return v;
    const __m256i sum = _mm256_madd_epi16(v, _mm256_set1_epi16(1));
    if (code->bits == 5 && code_has_min(code))
        return _mm256_sub_epi32(sum, _mm256_slli_epi32(words32(&x->start8), 1));
    return sum;
}
static ATTR_INLINE void sums32(const int rows, const struct kern_code *code, __m256i table,
                               const uint8_t *group, int half, const struct kern_act32 *const *x,
                               __m256i *lo, __m256i *hi)
{
    const bool is_half = code->scales == KERN_SCALES_E2;
    const int8_t *q[PANEL_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        q[c] = x[c]->q;
        lo[c] = hi[c] = is_wide(code) ? _mm256_setzero_si256() : start32(code, half, x[c]);
    }
    if (is_wide(code)) {
        const __m256i ones = _mm256_set1_epi16(1);
        wide_dots(rows, code, table, group, q, ones, ones, lo, hi);
        return;
    }
    dots(rows, code, table, group, is_half ? 4 * half : 0, is_half ? 4 : 8, q, lo, hi);
}

/* ---- super-blocks of 256 ---- */

/* -bias times the sums of q of both k of a pair, of 16. */
static ATTR_INLINE __m256i start256(const struct kern_code *code, const struct kern_act256 *x,
                                    int i)
{
    switch (code_subs(code) ? code->bias : 0) {
    case 4: return _mm256_srai_epi16(words32(x->pairs32[i]), 3);
    case 32: return words32(x->pairs32[i]);
    default: return _mm256_setzero_si256();
    }
}
static ATTR_INLINE bool bias256(const struct kern_code *code)
{
    return code->bias && (!code_subs(code) || code == &stored_code);
}
/* Sub-scales twice each, as words, of 8 rows. */
static ATTR_INLINE __m256i sub_scales(const struct kern_code *code, const uint8_t *at, int high)
{
    switch (code->scales) {
    case KERN_SCALES_NONE: return _mm256_set1_epi16(1);
    case KERN_SCALES_SUB8_MIN: return doubled_u8(row16(at), high);
    case KERN_SCALES_SUB16_NIB:
        return doubled_u8(_mm_and_si128(row16(at), _mm_set1_epi8(15)), high);
    default: return doubled_s8(row16(at), high);
    }
}
static ATTR_INLINE void add256(const int rows, const struct kern_code *code, __m256i table,
                               const uint8_t *group, const uint8_t *s, int h,
                               const struct kern_act256 *const *x, __m256i *lo, __m256i *hi)
{
    /* 5 bits without a bias: two halves with the same sub-scale. */
    const int n_sub = code_subs(code), n_part = n_sub == 2 || code->bits == 5 ? 2 : 1;
    const int8_t *q[PANEL_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        q[c] = x[c]->q + 32 * h;
#pragma GCC unroll 2
    for (int i = 0; i < n_part; i++) {
        const uint8_t *at = s + 16 * (n_sub * h + (n_sub == 2 ? i : 0));
        if (is_wide(code)) {
            const __m256i sub0 = sub_scales(code, at, 0), sub1 = sub_scales(code, at, 1);
            if (code == &stored_code)
                stored_dots(rows, group, 4 * i, q, sub0, sub1, lo, hi);
            else
                wide_dots(rows, code, table, group, q, sub0, sub1, lo, hi);
            continue;
        }
        __m256i a[PANEL_ROWS], b[PANEL_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            a[c] = b[c] = start256(code, x[c], 2 * h + i);
        dots(rows, code, table, group, 4 * i, 8 / n_part, q, a, b);
        const __m256i sub0 = sub_scales(code, at, 0), sub1 = sub_scales(code, at, 1);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            lo[c] = kept(_mm256_add_epi32(lo[c], _mm256_madd_epi16(a[c], sub0)));
            hi[c] = kept(_mm256_add_epi32(hi[c], _mm256_madd_epi16(b[c], sub1)));
        }
    }
}

/* Tiles of 5 and 6 rows both files have from the one that does not ask.  Blocks from scratch are
 * not requested. */
#define WIDE_NAME(name) kern_tile256_##name
#if AHEAD
#define WIDE_TILE(function, ...) drive_tile_fn function;
#define NO_STORED
#else
#define WIDE_TILE(function, ...) drive_tile_fn function; TILE(function, __VA_ARGS__)
#endif
#include "kern/x86/matmul/panel256.h"
