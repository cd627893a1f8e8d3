/*
 * spread512 - the tiles of spread.h on AVX-512 with VNNI: two panels times three to six rows of
 * activations. Six make twelve dots that do not wait for each other, for which eight lines are
 * loaded (one panel and twelve rows: thirteen, 0.75 of the speed).
 */
#ifndef INGLE_KERN_X86_MATMUL_SPREAD512_H
#define INGLE_KERN_X86_MATMUL_SPREAD512_H

#include "kern/x86/matmul/spread.h"

/* ---- loads whose order is kept ---- */

struct spread_line { uint8_t b[64]; };
struct spread_word { uint8_t b[4]; };
static ATTR_INLINE __m512i spread_load(const uint8_t *at)
{
    __m512i v;
    __asm__ volatile("vmovdqa64 %1, %0"
                     : "=v"(v)
                     : "m"(*(const struct spread_line *)(const void *)at));
    return v;
}
/* Four bytes, in every lane. */
static ATTR_INLINE __m512i spread_words(const void *at)
{
    __m512i v;
    __asm__ volatile("vpbroadcastd %1, %0" : "=v"(v) : "m"(*(const struct spread_word *)at));
    return v;
}
static ATTR_INLINE __m512i spread_dot(__m512i a, __m512i w, __m512i x)
{
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(w), "v"(x));
    return a;
}
static ATTR_INLINE __m512i spread_dot_words(__m512i a, __m512i w, __m512i x)
{
    __asm__ volatile("vpdpwssd %2, %1, %0" : "+v"(a) : "v"(w), "v"(x));
    return a;
}

/* n quads of both panels times q[c] of row c, added to a[c] of the first and b[c] of the second. */
static ATTR_INLINE void spread_quads(const int rows, const uint8_t (*line0)[64],
                                     const uint8_t (*line1)[64], int n, const int8_t *const *q,
                                     const uint8_t **prefetch, size_t step, __m512i *a, __m512i *b)
{
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) {
        const __m512i w0 = spread_load(line0[j]), w1 = spread_load(line1[j]);
        spread_prefetch(*prefetch);
        *prefetch += step;
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m512i x = spread_words(q[c] + 4 * j);
            a[c] = spread_dot(a[c], w0, x);
            b[c] = spread_dot(b[c], w1, x);
        }
    }
}
/* Sums of row c of both panels; the last ones of a slice join the total. */
static ATTR_INLINE void spread_put(const struct spread_call *v, int c, bool is_last, __m512 y,
                                   __m512 z)
{
    float *const to = (is_last ? v->total : v->y) + SPREAD_PAIR * c;
    _mm512_store_ps(to, is_last ? _mm512_add_ps(_mm512_load_ps(to), y) : y);
    _mm512_store_ps(to + KERN_PANEL,
                    is_last ? _mm512_add_ps(_mm512_load_ps(to + KERN_PANEL), z) : z);
}

/* ---- groups of 32 ---- */

enum spread_kind { SPREAD_WHOLE, SPREAD_MIN, SPREAD_HALVES /* which have scales each */ };

static ATTR_INLINE void group32(const int rows, enum spread_kind kind, const struct spread32 *w0,
                                const struct spread32 *w1, const struct kern_act32 *const *x,
                                const uint8_t **prefetch, size_t step, __m512 *y, __m512 *z)
{
    const int n_half = kind == SPREAD_HALVES ? 2 : 1;
    __m512i a[SPREAD_ROWS], b[SPREAD_ROWS];
#pragma GCC unroll 2
    for (int half = 0; half < n_half; half++) {
        const int8_t *q[SPREAD_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            q[c] = x[c]->q + 16 * half;
            a[c] = b[c] = n_half == 1 ? spread_words(&x[c]->start128)
                                      : _mm512_madd_epi16(spread_words(x[c]->pairs[half]),
                                                          _mm512_set1_epi16(-128));
        }
        spread_quads(rows, w0->w + 4 * half, w1->w + 4 * half, 8 / n_half, q, prefetch, step, a, b);
        const __m512 d0 = _mm512_load_ps(half ? w0->m : w0->d),
                     d1 = _mm512_load_ps(half ? w1->m : w1->d);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m512 s = _mm512_set1_ps(x[c]->scale);
            y[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[c]), _mm512_mul_ps(d0, s), y[c]);
            z[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b[c]), _mm512_mul_ps(d1, s), z[c]);
            if (kind == SPREAD_MIN) {
                const __m512 sum = _mm512_set1_ps(x[c]->sum);
                y[c] = _mm512_fmadd_ps(sum, _mm512_mul_ps(_mm512_load_ps(w0->m), s), y[c]);
                z[c] = _mm512_fmadd_ps(sum, _mm512_mul_ps(_mm512_load_ps(w1->m), s), z[c]);
            }
        }
    }
}
static ATTR_INLINE void tile32(const int rows, enum spread_kind kind, const struct spread_call *v)
{
    const struct spread32 *w0 = v->w0, *w1 = v->w1;
    const uint8_t *prefetch = v->prefetch;
    const struct kern_act32 *x[SPREAD_ROWS];
    __m512 y[SPREAD_ROWS], z[SPREAD_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        const float *const at = v->y + SPREAD_PAIR * c;
        x[c] = (const struct kern_act32 *)(const void *)v->x[c];
        y[c] = v->first ? _mm512_setzero_ps() : _mm512_load_ps(at);
        z[c] = v->first ? _mm512_setzero_ps() : _mm512_load_ps(at + KERN_PANEL);
    }
    for (int64_t g = 0; g < v->n; g++, w0++, w1++) {
        spread_next(rows, v, g);
        group32(rows, kind, w0, w1, x, &prefetch, v->step, y, z);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            x[c]++;
    }
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        spread_put(v, c, v->total, y[c], z[c]);
}

/* ---- super-blocks of 256 ---- */

/* How a group joins the sums of a super-block. */
enum spread_group {
    GROUP_32,      /* dots times a sub-scale for 32, as 32 bits; */
    GROUP_32_WORDS, /* dots of 16 as words, whose other half sub-scales have zeros for; */
    GROUP_16,      /* times sub-scales for 16; */
    GROUP_SCALED   /* as it is: bytes are scaled already */
};
/* less, min: sums of how many q the pairs of spread256 are for, 0: there are none; less 128: of
 * all, without pairs. */
struct spread_block {
    enum spread_group group;
    int less, min;
};

/* s and t += pairs of sums of q of that many times pairs of 16 rows. */
static ATTR_INLINE void add_pairs(const int rows, const int16_t (*line0)[SPREAD_PAIR],
                                  const int16_t (*line1)[SPREAD_PAIR], int of,
                                  const struct kern_act256 *const *x, __m512i *s, __m512i *t)
{
#pragma GCC unroll 8
    for (int i = 0; i < 128 / of; i++) {
        const __m512i w0 = _mm512_load_si512(line0[i]), w1 = _mm512_load_si512(line1[i]);
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m512i sums = spread_words((of == 16 ? x[c]->sum16 : x[c]->sum32) + 2 * i);
            s[c] = spread_dot_words(s[c], w0, sums);
            t[c] = spread_dot_words(t[c], w1, sums);
        }
    }
}
static ATTR_INLINE void add_scaled(const int rows, bool is_words, const struct spread256 *v0,
                                   const struct spread256 *v1, int i, const __m512i *a,
                                   const __m512i *b, __m512i *s, __m512i *t)
{
    const __m512i sub0 = _mm512_load_si512(v0->sub[i]), sub1 = _mm512_load_si512(v1->sub[i]);
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        s[c] = is_words ? spread_dot_words(s[c], a[c], sub0)
                        : _mm512_add_epi32(s[c], _mm512_mullo_epi32(a[c], sub0));
        t[c] = is_words ? spread_dot_words(t[c], b[c], sub1)
                        : _mm512_add_epi32(t[c], _mm512_mullo_epi32(b[c], sub1));
    }
}
static ATTR_INLINE void group256(const int rows, enum spread_group kind, const struct spread256 *v0,
                                 const struct spread256 *v1, int h,
                                 const struct kern_act256 *const *x, const uint8_t **prefetch,
                                 size_t step, __m512i *s, __m512i *t)
{
    const int n_part = kind == GROUP_32_WORDS || kind == GROUP_16 ? 2 : 1, n = 8 / n_part;
    const bool is_scaled = kind == GROUP_SCALED;
    __m512i a[SPREAD_ROWS], b[SPREAD_ROWS];
#pragma GCC unroll 2
    for (int i = 0; i < n_part; i++) {
        const int8_t *q[SPREAD_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            q[c] = x[c]->q + 32 * h + 16 * i;
            a[c] = b[c] = _mm512_setzero_si512();
        }
        spread_quads(rows, v0->w + 8 * h + n * i, v1->w + 8 * h + n * i, n, q, prefetch, step,
                     is_scaled ? s : a, is_scaled ? t : b);
        if (!is_scaled)
            add_scaled(rows, kind == GROUP_32_WORDS, v0, v1, kind == GROUP_16 ? 2 * h + i : h, a, b,
                       s, t);
    }
}
/* Adds s and t, times d, to the sums of a slice, or takes them off. */
static ATTR_INLINE void finish256(const int rows, const struct spread_call *v, bool is_first,
                                  bool is_last, bool is_less, const float *d0, const float *d1,
                                  const struct kern_act256 *const *x, const __m512i *s,
                                  const __m512i *t)
{
    const __m512 by0 = _mm512_load_ps(d0), by1 = _mm512_load_ps(d1);
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        const __m512 scale = _mm512_set1_ps(x[c]->scale), y = _mm512_cvtepi32_ps(s[c]),
                     z = _mm512_cvtepi32_ps(t[c]);
        const float *const at = v->y + SPREAD_PAIR * c;
        const __m512 y0 = is_first ? _mm512_setzero_ps() : _mm512_load_ps(at),
                     z0 = is_first ? _mm512_setzero_ps() : _mm512_load_ps(at + KERN_PANEL);
        const __m512 m0 = _mm512_mul_ps(by0, scale), m1 = _mm512_mul_ps(by1, scale);
        spread_put(v, c, is_last,
                   is_less ? _mm512_fnmadd_ps(y, m0, y0) : _mm512_fmadd_ps(y, m0, y0),
                   is_less ? _mm512_fnmadd_ps(z, m1, z0) : _mm512_fmadd_ps(z, m1, z0));
    }
}
/* Else gcc may copy sums twice in each group. */
static ATTR_INLINE void keep_apart(const int rows, __m512i *s, __m512i *t)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        __asm__ volatile("" : "+v"(s[c]), "+v"(t[c]));
}
static ATTR_INLINE void tile256(const int rows, struct spread_block k, const struct spread_call *v)
{
    const struct spread256 *v0 = v->w0, *v1 = v->w1;
    const uint8_t *prefetch = v->prefetch;
    const struct kern_act256 *x[SPREAD_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        x[c] = (const struct kern_act256 *)(const void *)v->x[c];
    for (int64_t b = 0; b < v->n; b++, v0++, v1++) {
        const bool is_first = v->first && b == 0, is_last = v->total && b == v->n - 1;
        __m512i s[SPREAD_ROWS], t[SPREAD_ROWS];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            s[c] = t[c] = k.less == 128 ? spread_words(&x[c]->start128) : _mm512_setzero_si512();
        if (k.less && k.less < 128)
            add_pairs(rows, v0->less, v1->less, k.less, x, s, t);
        keep_apart(rows, s, t);
        for (int h = 0; h < 8; h++) {
            spread_next(rows, v, 6 * b + h);
            group256(rows, k.group, v0, v1, h, x, &prefetch, v->step, s, t);
        }
        keep_apart(rows, s, t);
        finish256(rows, v, is_first, is_last && !k.min, false, v0->d, v1->d, x, s, t);
        if (k.min) {
#pragma GCC unroll 8
            for (int c = 0; c < rows; c++)
                s[c] = t[c] = _mm512_setzero_si512();
            add_pairs(rows, v0->min, v1->min, k.min, x, s, t);
            finish256(rows, v, false, is_last, true, v0->dmin, v1->dmin, x, s, t);
        }
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            x[c]++;
    }
}

#endif
