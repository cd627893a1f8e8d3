/*
 * order256 - loads of 256 bits that stay where they are written: compilers would load all of a
 * tile's operands first and spill them.
 */
#ifndef INGLE_KERN_X86_MATMUL_ORDER256_H
#define INGLE_KERN_X86_MATMUL_ORDER256_H

#include "base/bug.h"
#include <immintrin.h>
#include <stdint.h>

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

#endif
