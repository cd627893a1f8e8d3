/*
 * vnni256 - products with VPDPBUSD on 256-bit vectors: the tiles of panel256.h with 32-bit
 * sums of rows 0..7 and 8..15.  Codes enter as unsigned bytes; sums start from what
 * that adds to a dot product, so dots are exact.
 *
 * Included by the file for AVX-VNNI (VEX form) and by one for AVX-512 (EVEX form), which runs
 * the same lines on processors that lack the other: NAME(x) is the kernel's name.
 */
#define QUADS_PREFETCH 1
#include "kern/x86/matmul/ask256.h"
#include "kern/x86/matmul/dots256.h"
#include "kern/x86/matmul/quads256.h"

enum { PANEL_ROWS = 6 };

/* What is added to values of a table. */
static ATTR_INLINE int listed(const struct kern_code *code)
{
    (void)code;
    return 128;
}

/* lo[c] += n quads of rows 0..7 of the panel, from `first` on, times q[c]; hi: of rows 8..15.  Both
 * nibbles of a line of a whole group are read one after the other. */
static ATTR_INLINE void dots(const int rows, const struct kern_code *code, __m256i table,
                             const uint8_t *group, int first, int n, const int8_t *const *q,
                             __m256i *lo, __m256i *hi)
{
    const bool is_two = n == 8 && (code->bits == 4 || code->bits == 5);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        const int j = is_two ? i % 2 * 4 + i / 2 : first + i;
        prefetch(code, group, j);
        const __m256i w0 = quad(code, table, group, j), w1 = quad(code, table, group + 32, j);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m256i v = words32(q[c] + 4 * j);
            lo[c] = with_dots(lo[c], w0, v);
            hi[c] = with_dots(hi[c], w1, v);
        }
    }
}

/* -bias times the sum of q, or of a half of it where both have scales. */
static ATTR_INLINE __m256i start32(const struct kern_code *code, int half,
                                   const struct kern_act32 *x)
{
    if (code->scales == KERN_SCALES_E2)
        return _mm256_madd_epi16(words32(x->pairs[half]), _mm256_set1_epi16(-128));
    switch (code_bias(code, 128)) {
    case 1: return _mm256_srai_epi32(words32(&x->start8), 3);
    case 8: return words32(&x->start8);
    case 16: return _mm256_slli_epi32(words32(&x->start8), 1);
    case 128: return words32(&x->start128);
    default: return _mm256_setzero_si256();
    }
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
        lo[c] = hi[c] = start32(code, half, x[c]);
    }
    dots(rows, code, table, group, is_half ? 4 * half : 0, is_half ? 4 : 8, q, lo, hi);
}

static ATTR_INLINE __m256i whole32(const struct kern_code *code, __m256i v,
                                   const struct kern_act32 *x)
{
    (void)code;
    (void)x;
    return v;
}

/* n / 32 times -32 times the sum of q of 16. */
static ATTR_INLINE __m256i sum16(const struct kern_act256 *x, int i, int n)
{
    return _mm256_madd_epi16(words32(x->pairs32[i]), _mm256_set1_epi16((int16_t)n));
}
/* -bias times the sum of q of part i of group h. */
static ATTR_INLINE __m256i start256(const struct kern_code *code, const struct kern_act256 *x,
                                    int h, int i)
{
    if (code->table) /* of 32 */
        return _mm256_add_epi32(sum16(x, 2 * h, 4), sum16(x, 2 * h + 1, 4));
    switch (code_subs(code) ? code->bias : 0) {
    case 4: return _mm256_srai_epi32(sum16(x, 2 * h + i, 1), 3);
    case 32: return sum16(x, 2 * h + i, 1);
    case STORED_BIAS: return sum16(x, 2 * h + i, STORED_BIAS / 32);
    default: return _mm256_setzero_si256();
    }
}
static ATTR_INLINE bool bias256(const struct kern_code *code)
{
    return code->bias && !code_subs(code);
}
/* Sub-scales of 8 rows. */
static ATTR_INLINE __m256i sub_scales(const struct kern_code *code, const uint8_t *at)
{
    const __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)at);
    switch (code->scales) {
    case KERN_SCALES_SUB8_MIN: return _mm256_cvtepu8_epi32(v);
    case KERN_SCALES_SUB16_NIB:
        return _mm256_and_si256(_mm256_cvtepu8_epi32(v), _mm256_set1_epi32(15));
    default: return _mm256_cvtepi8_epi32(v);
    }
}
static ATTR_INLINE void add256(const int rows, const struct kern_code *code, __m256i table,
                               const uint8_t *group, const uint8_t *s, int h,
                               const struct kern_act256 *const *x, __m256i *lo, __m256i *hi)
{
    const int n_sub = code_subs(code), n_part = n_sub == 2 ? 2 : 1;
    /* Better than what gcc 12 would spill instead. */
    const bool in_memory = rows > 3 && n_sub != 1;
    const int8_t *q[PANEL_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        q[c] = x[c]->q + 32 * h;
#pragma GCC unroll 2
    for (int i = 0; i < n_part; i++) {
        __m256i a[PANEL_ROWS], b[PANEL_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            a[c] = b[c] = start256(code, x[c], h, i);
        dots(rows, code, table, group, 4 * i, 8 / n_part, q, a, b);
        const uint8_t *at = s + 16 * (n_sub * h + i);
        const __m256i sub0 = sub_scales(code, at), sub1 = sub_scales(code, at + 8);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            lo[c] = _mm256_add_epi32(lo[c], n_sub ? _mm256_mullo_epi32(a[c], sub0) : a[c]);
            hi[c] = _mm256_add_epi32(hi[c], n_sub ? _mm256_mullo_epi32(b[c], sub1) : b[c]);
            if (in_memory)
                __asm__("" : "+m"(lo[c]), "+m"(hi[c]));
        }
    }
}

#include "kern/x86/matmul/panel256.h"
