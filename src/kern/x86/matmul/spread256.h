/*
 * spread256 - the tiles of spread.h on 256-bit vectors with VPDPBUSD: the two panels one after the
 * other, each of two vectors of 8 rows, times three to six rows of activations.  Six make twelve
 * dots that do not wait for each other, which with a quad and the activations fill the registers;
 * all other sums are in memory.
 *
 * Dots run on two ports, on which conversions and multiplications run, too, but not additions
 * alone.  Dots therefore begin with the bits of the float MAGIC: from within 2^22 of zero they are
 * MAGIC + dot as floats, and what is done with them is exact as long as it is a whole number below
 * 2^24.  What the bytes' bias adds is in these beginnings, too.
 *
 * w of spread32 is what a tile's bias says.  In spread256, w is the codes and sub the sub-scales
 * as floats, those of 32 with what put_more() makes after them; less is not used.
 */
#ifndef INGLE_KERN_X86_MATMUL_SPREAD256_H
#define INGLE_KERN_X86_MATMUL_SPREAD256_H

#include "kern/x86/matmul/order256.h"
#include "kern/x86/matmul/quads256.h"

#define MAGIC 12582912.0f
enum { MAGIC_BITS = 0x4B400000 };

static ATTR_INLINE __m256i magic_bits(void) { return _mm256_set1_epi32(MAGIC_BITS); }
/* A dot that began with MAGIC's bits. */
static ATTR_INLINE __m256 spread_whole(__m256i dot)
{
    return _mm256_sub_ps(_mm256_castsi256_ps(dot), _mm256_set1_ps(MAGIC));
}

/* ---- groups of 32 ---- */

enum spread_kind { SPREAD_WHOLE, SPREAD_MIN, SPREAD_HALVES /* which have scales each */ };

/* Biases of 0, 1, 8, 128, and 128 in one half. */
static ATTR_INLINE __m256i start32(enum spread_kind kind, int bias, int half,
                                   const struct kern_act32 *x)
{
    if (kind == SPREAD_HALVES)
        return with_word_dots(magic_bits(), spread_words(x->pairs[half]),
                              _mm256_set1_epi16((int16_t)-bias));
    switch (bias) {
    case 1:
        return _mm256_add_epi32(_mm256_srai_epi32(spread_words(&x->start8), 3), magic_bits());
    case 8: return _mm256_add_epi32(spread_words(&x->start8), magic_bits());
    case 128: return _mm256_add_epi32(spread_words(&x->start128), magic_bits());
    default: return magic_bits();
    }
}
static ATTR_INLINE void group32(const int rows, enum spread_kind kind, int bias,
                                const struct spread32 *w, const struct kern_act32 *const *x,
                                const uint8_t **prefetch, size_t step, float *y)
{
    const bool is_half = kind == SPREAD_HALVES;
    __m256i a[SPREAD_ROWS], b[SPREAD_ROWS];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const int8_t *q[SPREAD_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            q[c] = x[c]->q + 16 * half;
            if (half == 0 || is_half)
                a[c] = b[c] = start32(kind, bias, half, x[c]);
        }
        spread_quads(rows, true, w->w + 4 * half, q, prefetch, step, a, b);
        if (half == 0 && !is_half)
            continue;
        const float *const at = half && is_half ? w->m : w->d;
        const __m256 d[2] = {_mm256_load_ps(at), _mm256_load_ps(at + 8)};
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            spread_add_two(y, c, spread_whole(a[c]), spread_whole(b[c]), d, x[c]->scale, false);
    }
    if (kind != SPREAD_MIN)
        return;
    const __m256 m[2] = {_mm256_load_ps(w->m), _mm256_load_ps(w->m + 8)};
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        const __m256 sum = _mm256_set1_ps(x[c]->sum);
        spread_add_two(y, c, sum, sum, m, x[c]->scale, false);
    }
}
static ATTR_INLINE void tile32(const int rows, enum spread_kind kind, int bias,
                               const struct spread_call *v)
{
    const uint8_t *prefetch = v->prefetch;
    for (int p = 0; p < 2; p++) {
        const struct spread32 *w = p ? v->w1 : v->w0;
        float *const y = v->y + KERN_PANEL * p;
        const struct kern_act32 *x[SPREAD_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            x[c] = (const struct kern_act32 *)(const void *)v->x[c];
        if (v->first)
            spread_clear(rows, y);
        for (int64_t g = 0; g < v->n; g++, w++) {
            if (p)
                spread_next(rows, v, g);
            group32(rows, kind, bias, w, x, &prefetch, v->step, y);
#pragma GCC unroll 8
            for (int c = 0; c < rows; c++)
                x[c]++;
        }
    }
    spread_end(v, rows);
}

/* ---- super-blocks of 256 ---- */

/* How a dot of some k joins the sum of a super-block. */
enum spread_add {
    ADD_ALL,     /* 256 k: codes hold their sub-scales, the dot is below 2^22 */
    ADD_BITS,    /* times its sub-scale below 2^22: the bits of MAGIC + product are added */
    ADD_PAIRS,   /* two of them below 2^24: the first, then the second and both */
    ADD_INTEGERS
};
/* per: k of a sub-scale; min: those of a minimum, 0: there are none. */
struct spread_block {
    enum spread_add add;
    int per, bias, min;
};
/* Sums, which are in memory. */
struct spread_sums {
    ATTR_ALIGNED(32) int32_t start[SPREAD_ROWS][16], t[SPREAD_ROWS][2][8];
    ATTR_ALIGNED(32) float first[SPREAD_ROWS][2][8];
};

/* What dots begin with: `base` - bias times the sums of q, per 32, per 16, of all 256. */
static ATTR_INLINE void spread_begin(int32_t *to, const int16_t *sums, int bias, int base)
{
    const __m256i v = _mm256_cvtepi16_epi32(row16((const uint8_t *)sums));
    _mm256_store_si256(
        (__m256i *)(void *)to,
        _mm256_sub_epi32(_mm256_set1_epi32(base), _mm256_mullo_epi32(v, _mm256_set1_epi32(bias))));
}
static ATTR_INLINE void spread_begin_all(int32_t *to, const int16_t *sums, int bias, int base)
{
    const __m128i v = _mm_madd_epi16(row16((const uint8_t *)sums), _mm_set1_epi16((int16_t)bias));
    const __m128i w = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
    *to = base - _mm_cvtsi128_si32(_mm_add_epi32(w, _mm_shuffle_epi32(w, 0xB1)));
}
static ATTR_INLINE void begin256(struct spread_block k, const struct kern_act256 *x, int32_t *start)
{
    if (k.add == ADD_ALL)
        spread_begin_all(start, x->sum32, k.bias, MAGIC_BITS);
    else if (k.bias && k.per == 32)
        spread_begin(start, x->sum32, k.bias, k.add == ADD_INTEGERS ? 0 : MAGIC_BITS);
    else if (k.bias)
        for (int i = 0; i < 16; i += 8)
            spread_begin(start + i, x->sum16 + i, k.bias, MAGIC_BITS);
}
static ATTR_INLINE __m256i start256(struct spread_block k, const int32_t *start, int i)
{
    return k.bias || k.add == ADD_ALL ? spread_words(start + i) : magic_bits();
}

static ATTR_INLINE float *spread_sub(const struct spread256 *w, int i)
{
    return (float *)(void *)(uintptr_t)w->sub[i];
}
/* What ADD_BITS and ADD_PAIRS add to (MAGIC + dot) * sub-scale: base - MAGIC * sub-scale, base
 * MAGIC or 0; from the panel or made. */
static ATTR_INLINE __m256 spread_more(struct spread_block k, const struct spread256 *w, int i,
                                      int at, __m256 sub)
{
    if (k.per == 32)
        return _mm256_load_ps(spread_sub(w, 8 + i) + at);
    return _mm256_fnmadd_ps(sub, _mm256_set1_ps(MAGIC),
                            _mm256_set1_ps(k.add == ADD_BITS ? MAGIC : 0));
}
/* A dot of 8 rows to sum t; first: where the first of a pair is kept. */
static ATTR_INLINE void add_dot(struct spread_block k, bool is_first, __m256i dot, __m256 sub,
                                __m256 more, int32_t *t, float *first)
{
    __m256i *const to = (__m256i *)(void *)t;
    const __m256 product = _mm256_fmadd_ps(_mm256_castsi256_ps(dot), sub, more);
    __m256i v;
    if (k.add == ADD_PAIRS && is_first) {
        _mm256_store_ps(first, product);
        return;
    }
    if (k.add == ADD_BITS)
        v = _mm256_castps_si256(product);
    else if (k.add == ADD_PAIRS)
        v = _mm256_cvtps_epi32(_mm256_add_ps(product, _mm256_load_ps(first)));
    else
        v = _mm256_mullo_epi32(dot, _mm256_castps_si256(sub));
    _mm256_store_si256(to, _mm256_add_epi32(_mm256_load_si256(to), v));
}
static ATTR_INLINE void add_dots(const int rows, struct spread_block k, const struct spread256 *w,
                                 int i, bool is_first, const __m256i *a, const __m256i *b,
                                 struct spread_sums *s)
{
    const __m256 sub0 = _mm256_load_ps(spread_sub(w, i)),
                 sub1 = _mm256_load_ps(spread_sub(w, i) + 8);
    const bool has_more = k.add != ADD_INTEGERS;
    const __m256 more0 = has_more ? spread_more(k, w, i, 0, sub0) : sub0,
                 more1 = has_more ? spread_more(k, w, i, 8, sub1) : sub1;
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        add_dot(k, is_first, a[c], sub0, more0, s->t[c][0], s->first[c][0]);
        add_dot(k, is_first, b[c], sub1, more1, s->t[c][1], s->first[c][1]);
    }
}
/* Half a group of 32. */
static ATTR_INLINE void half256(const int rows, const struct spread256 *w, int h, int half,
                                const struct kern_act256 *const *x, const uint8_t **prefetch,
                                size_t step, __m256i *a, __m256i *b)
{
    const int8_t *q[SPREAD_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        q[c] = x[c]->q + 32 * h + 16 * half;
    spread_quads(rows, true, w->w + 8 * h + 4 * half, q, prefetch, step, a, b);
}
/* Group h + odd, with constant odd. */
static ATTR_INLINE void group256(const int rows, struct spread_block k, const struct spread256 *w,
                                 int h, int odd, const struct kern_act256 *const *x,
                                 const uint8_t **prefetch, size_t step, struct spread_sums *s)
{
    __m256i a[SPREAD_ROWS], b[SPREAD_ROWS];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const int i = k.per == 32 ? h + odd : 2 * (h + odd) + half;
        if (half == 0 || k.per == 16)
#pragma GCC unroll 8
            for (int c = 0; c < rows; c++)
                a[c] = b[c] = start256(k, s->start[c], i);
        half256(rows, w, h + odd, half, x, prefetch, step, a, b);
        if (half == 1 || k.per == 16)
            add_dots(rows, k, w, i, (k.per == 32 ? odd : half) == 0, a, b, s);
    }
}
/* Two groups ask for three lines of the rows that come next: six a super-block and two panels. */
static ATTR_INLINE void scaled_block(const int rows, struct spread_block k,
                                     const struct spread_call *v, int64_t b, int p,
                                     const struct spread256 *w, const struct kern_act256 *const *x,
                                     const uint8_t **prefetch, struct spread_sums *s, float *y)
{
    const uint32_t n_bits = k.add == ADD_BITS ? 256u / (uint32_t)k.per : 0;
    const __m256i zero = _mm256_set1_epi32((int32_t)(0u - n_bits * MAGIC_BITS));
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        _mm256_store_si256((__m256i *)(void *)s->t[c][0], zero);
        _mm256_store_si256((__m256i *)(void *)s->t[c][1], zero);
    }
    for (int h = 0; h < 8; h += 2) {
        if (h < 6)
            spread_next(rows, v, 6 * b + h / 2 + 3 * p);
        group256(rows, k, w, h, 0, x, prefetch, v->step, s);
        group256(rows, k, w, h, 1, x, prefetch, v->step, s);
    }
    const __m256 d[2] = {_mm256_load_ps(w->d), _mm256_load_ps(w->d + 8)};
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        const __m256i *const t = (const __m256i *)(const void *)s->t[c];
        spread_add_two(y, c, _mm256_cvtepi32_ps(_mm256_load_si256(t)),
                       _mm256_cvtepi32_ps(_mm256_load_si256(t + 1)), d, x[c]->scale, false);
    }
}
static ATTR_INLINE void whole_block(const int rows, struct spread_block k,
                                    const struct spread_call *v, int64_t b, int p,
                                    const struct spread256 *w, const struct kern_act256 *const *x,
                                    const uint8_t **prefetch, const struct spread_sums *s, float *y)
{
    __m256i lo[SPREAD_ROWS], hi[SPREAD_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        lo[c] = hi[c] = start256(k, s->start[c], 0);
    for (int h = 0; h < 8; h += 2) {
        if (h < 6)
            spread_next(rows, v, 6 * b + h / 2 + 3 * p);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            half256(rows, w, h + i / 2, i % 2, x, prefetch, v->step, lo, hi);
    }
    const __m256 d[2] = {_mm256_load_ps(w->d), _mm256_load_ps(w->d + 8)};
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        spread_add_two(y, c, spread_whole(lo[c]), spread_whole(hi[c]), d, x[c]->scale, false);
}
/* Pairs of sums of q times pairs of sub-minimums. */
static ATTR_INLINE void less_mins(const int rows, struct spread_block k, const struct spread256 *w,
                                  const struct kern_act256 *const *x, float *y)
{
    __m256i a[SPREAD_ROWS], b[SPREAD_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        a[c] = b[c] = magic_bits();
#pragma GCC unroll 8
    for (int i = 0; i < 128 / k.min; i++) {
        const uint8_t *const min = (const uint8_t *)w->min[i];
        const __m256i w0 = spread_load(min), w1 = spread_load(min + 32);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m256i sums = spread_words((k.min == 16 ? x[c]->sum16 : x[c]->sum32) + 2 * i);
            a[c] = with_word_dots(a[c], w0, sums);
            b[c] = with_word_dots(b[c], w1, sums);
        }
    }
    const __m256 d[2] = {_mm256_load_ps(w->dmin), _mm256_load_ps(w->dmin + 8)};
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        spread_add_two(y, c, spread_whole(a[c]), spread_whole(b[c]), d, x[c]->scale, true);
}
static ATTR_INLINE void tile256(const int rows, struct spread_block k, const struct spread_call *v)
{
    struct spread_sums s;
    const uint8_t *prefetch = v->prefetch;
    for (int64_t b = 0; b < v->n; b++) {
        const struct kern_act256 *x[SPREAD_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            x[c] = (const struct kern_act256 *)(const void *)v->x[c] + b;
            begin256(k, x[c], s.start[c]);
        }
        for (int p = 0; p < 2; p++) {
            const struct spread256 *const w = (const struct spread256 *)(p ? v->w1 : v->w0) + b;
            float *const y = v->y + KERN_PANEL * p;
            if (v->first && b == 0)
                spread_clear(rows, y);
            if (k.add == ADD_ALL)
                whole_block(rows, k, v, b, p, w, x, &prefetch, &s, y);
            else
                scaled_block(rows, k, v, b, p, w, x, &prefetch, &s, y);
            if (k.min)
                less_mins(rows, k, w, x, y);
        }
    }
    spread_end(v, rows);
}

#endif
