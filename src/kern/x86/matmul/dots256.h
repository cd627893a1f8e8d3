/*
 * dots256 - VPDPBUSD and VPDPWSSD on 256-bit vectors: the VEX form where AVX-VNNI is, else that of
 * AVX-512.  They keep their places in the text.
 */
#ifndef INGLE_KERN_X86_MATMUL_DOTS256_H
#define INGLE_KERN_X86_MATMUL_DOTS256_H

#include "base/attr.h"

#include <immintrin.h>
#include <stdbool.h>

/* sum + dots of four unsigned bytes of u and four signed ones of x */
static ATTR_INLINE __m256i with_dots(__m256i sum, __m256i u, __m256i x)
{
#ifdef __AVXVNNI__
    __asm__ volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(u), "x"(x));
#else
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(x));
#endif
    return sum;
}
/* sum + dots of two signed words of each */
static ATTR_INLINE __m256i with_word_dots(__m256i sum, __m256i w, __m256i x)
{
#ifdef __AVXVNNI__
    __asm__ volatile("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
#else
    __asm__ volatile("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
#endif
    return sum;
}

#endif
