/*
 * expand512 - what kernels share that expand a super-block of a panel before it is multiplied: its
 * groups of 32 one after the other, quads of them as lines.
 */
#ifndef INGLE_KERN_X86_MATMUL_EXPAND512_H
#define INGLE_KERN_X86_MATMUL_EXPAND512_H

#include "base/bug.h"
#include "kern/code.h"

#include <immintrin.h>

/* Group h, at g, of which halves may have sub-scales of their own: put(e, line, codes of a quad,
 * sub). */
#define PUT(j, put, quad, sub) put(e, 8 * h + (j), quad(g, j), sub);
#define FIRST_HALF(...) \
    PUT(0, __VA_ARGS__) PUT(1, __VA_ARGS__) PUT(2, __VA_ARGS__) PUT(3, __VA_ARGS__)
#define LAST_HALF(...) \
    PUT(4, __VA_ARGS__) PUT(5, __VA_ARGS__) PUT(6, __VA_ARGS__) PUT(7, __VA_ARGS__)
/* Bytes of a super-block of a panel. */
#define CHUNK(bits, scales) KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, 8, 0)

/* Part h of 8 of n lines.  A burst of them waits for itself. */
static ATTR_INLINE void fetch(const uint8_t *at, int h, int n)
{
    for (int i = (n * h + 7) / 8; i < (n * (h + 1) + 7) / 8; i++)
        _mm_prefetch((const char *)at + 64 * i, _MM_HINT_T1);
}

#endif
