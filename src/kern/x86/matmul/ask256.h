/*
 * ask256 - how tiles of panel256.h prefetch weights: QUADS_PREFETCH is 1 where quads prefetch lines
 * themselves.
 */
#ifndef INGLE_KERN_X86_MATMUL_ASK256_H
#define INGLE_KERN_X86_MATMUL_ASK256_H

#include "kern/x86/matmul/codes.h"

#include <immintrin.h>

/* Compilers must not reorder sums: they would keep all products alive and spill; nor move
 * them from between the lines that are requested. */
static ATTR_INLINE __m256i kept(__m256i v)
{
#if QUADS_PREFETCH
    __asm__ volatile("" : "+x"(v));
#else
    __asm__("" : "+x"(v));
#endif
    return v;
}

#if QUADS_PREFETCH
/* As in vnni512.h, which suits Intel's processors.  Prefetches and dots keep their places in the
 * text, or compilers gather what they may move. */
static ATTR_INLINE void prefetch_ahead(const uint8_t *at)
{
    __asm__ volatile("prefetcht1 %0\n\tprefetcht0 %1" : : "m"(at[6144]), "m"(at[3072]));
}
/* Quad j asks for line j of the codes, group i for one of what is after them. */
static ATTR_INLINE void prefetch(const struct kern_code *code, const uint8_t *group, int j)
{
    if (j < code->bits && code != &stored_code)
        prefetch_ahead(group + 64 * j);
}
static ATTR_INLINE void fetch(const struct kern_code *code, const uint8_t *chunk, int i, int rows)
{
    (void)rows;
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
/* Asks for what comes after a chunk, in as many parts as it has groups: each
 * line twice, long before its use into the second cache and shortly before into the first
 * (Zen 4, two cores, one row: 0.94 of the read rate, against 0.82 with one of them).  One
 * row of 8-bit codes computes so little that the processor reads on better by itself. */
static ATTR_INLINE void fetch(const struct kern_code *code, const uint8_t *chunk, int i, int rows)
{
    const char *at = (const char *)chunk;
    const int n = code->n_group, n_lines = code_lines(code);
    const int from = (n_lines * i + n - 1) / n, to = (n_lines * (i + 1) + n - 1) / n;
    if (rows == 1 && code->bits == 8)
        return;
    for (int l = from; l < to; l++) {
        _mm_prefetch(at + 64 * l + 16384, _MM_HINT_T1);
        _mm_prefetch(at + 64 * l + 2048, _MM_HINT_T0);
    }
}
#endif

#endif
