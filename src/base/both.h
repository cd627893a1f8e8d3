/*
 * both - the words of formulas that processors and a card's kernels share: one text, so that the
 * bits cannot differ.
 *
 * On a processor they are what stands here.  A file for a card defines them all before the first
 * header that uses them (src/device/gpu/kernels/number.h).
 */
#ifndef INGLE_BASE_BOTH_H
#define INGLE_BASE_BOTH_H

#include <stdbool.h>
#include <stdint.h>

#ifndef BOTH_FN
#include <math.h>
#include <string.h>
/* What stands before a function. */
#define BOTH_FN static inline
/* a * b + c, rounded once */
#define BOTH_FMA fmaf

static inline float both_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t both_word(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
#endif

#endif
