/*
 * ask256 - quads of panel256.h that ask for lines themselves, as ask_ahead() in vnni512.h does:
 * which suits Intel's processors.  Prefetches and dots keep their places in the text, or compilers
 * gather what they may move.
 */
#ifndef INGLE_KERN_X86_MATMUL_ASK256_H
#define INGLE_KERN_X86_MATMUL_ASK256_H

#include "base/attr.h"
#include <stdint.h>

static ATTR_INLINE void ask_ahead(const uint8_t *at)
{
    __asm__ volatile("prefetcht1 %0\n\tprefetcht0 %1" : : "m"(at[6144]), "m"(at[3072]));
}
/* What is behind the codes; quad j asks for line j of them. */
#define FETCH(chunk, i, n, bits, n_all, rows) \
    enum { n_lines = bits };                  \
    if ((bits) * (n) + (i) < (n_all))         \
        ask_ahead((chunk) + 64 * ((bits) * (n) + (i)));
#define ASK(j)          \
    if ((j) < n_lines)  \
        ask_ahead(group + 64 * (j));

#endif
