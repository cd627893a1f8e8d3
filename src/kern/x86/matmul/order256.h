/*
 * order256 - what tiles of spread.h with 256-bit vectors share: loads that stay where they are
 * written, because compilers would load all of a tile's operands first and spill them, and sums in
 * memory.
 */
#ifndef INGLE_KERN_X86_MATMUL_ORDER256_H
#define INGLE_KERN_X86_MATMUL_ORDER256_H

#include "kern/x86/matmul/dots256.h"
#include "kern/x86/matmul/spread.h"

#include <immintrin.h>

struct spread_line { uint8_t b[32]; };
struct spread_word { uint8_t b[4]; };
static ATTR_INLINE __m256i spread_load(const uint8_t *at)
{
    __m256i v;
    __asm__ volatile("vmovdqa %1, %0"
                     : "=x"(v)
                     : "m"(*(const struct spread_line *)(const void *)at));
    return v;
}
/* Four bytes, in every lane. */
static ATTR_INLINE __m256i spread_words(const void *at)
{
    __m256i v;
    __asm__ volatile("vpbroadcastd %1, %0" : "=x"(v) : "m"(*(const struct spread_word *)at));
    return v;
}
/* The same to a sum of words: pairs of products. */
static ATTR_UNUSED ATTR_INLINE __m256i spread_word_dot(__m256i sum, __m256i w, __m256i x)
{
    __m256i product;
    __asm__ volatile("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
                     : "+x"(sum), "=&x"(product)
                     : "x"(w), "x"(x));
    return sum;
}

static ATTR_INLINE void spread_clear(const int rows, float *y)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        _mm256_store_ps(y + SPREAD_PAIR * c, _mm256_setzero_ps());
        _mm256_store_ps(y + SPREAD_PAIR * c + 8, _mm256_setzero_ps());
    }
}
/* y += v * (d * s), or less that */
static ATTR_INLINE void spread_add(float *y, __m256 v, __m256 d, __m256 s, bool is_less)
{
    const __m256 by = _mm256_mul_ps(d, s), was = _mm256_load_ps(y);
    _mm256_store_ps(y, is_less ? _mm256_fnmadd_ps(v, by, was) : _mm256_fmadd_ps(v, by, was));
}
/* The same for rows 0 to 7 and 8 to 15 of row c of activations. */
static ATTR_INLINE void spread_add_two(float *y, int c, __m256 v0, __m256 v1, const __m256 *d,
                                       float scale, bool is_less)
{
    const __m256 s = _mm256_set1_ps(scale);
    spread_add(y + SPREAD_PAIR * c, v0, d[0], s, is_less);
    spread_add(y + SPREAD_PAIR * c + 8, v1, d[1], s, is_less);
}

/* Dots of bytes, added to words in pairs or, with VNNI, to 32 bits. */
static ATTR_INLINE __m256i spread_dot(const bool has_vnni, __m256i sum, __m256i w, __m256i x)
{
    __m256i pairs;
    if (has_vnni)
        return with_dots(sum, w, x);
    __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
                     : "+x"(sum), "=&x"(pairs)
                     : "x"(w), "x"(x));
    return sum;
}
/* Four quads times q[c] of row c: to lo of rows 0 to 7 of the panel, to hi of 8 to 15.  Lines to
 * come are requested in every second quad, because each takes two turns. */
static ATTR_INLINE void spread_quads(const int rows, const bool has_vnni, const uint8_t (*line)[64],
                                     const int8_t *const *q, const uint8_t **prefetch, size_t step,
                                     __m256i *lo, __m256i *hi)
{
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m256i w0 = spread_load(line[j]), w1 = spread_load(line[j] + 32);
        if (j % 2 == 0) {
            spread_prefetch(*prefetch);
            *prefetch += step;
        }
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++) {
            const __m256i x = spread_words(q[c] + 4 * j);
            lo[c] = spread_dot(has_vnni, lo[c], w0, x);
            hi[c] = spread_dot(has_vnni, hi[c], w1, x);
        }
    }
}

/* ---- what is spread ---- */

static ATTR_INLINE void put_two(void *to, __m256i first, __m256i second)
{
    _mm256_store_si256((__m256i *)to, first);
    _mm256_store_si256((__m256i *)to + 1, second);
}
static ATTR_INLINE void put_scales(float *to, __m256 first, __m256 second)
{
    _mm256_store_ps(to, first);
    _mm256_store_ps(to + 8, second);
}
#endif
