/*
 * row_fn - the codes of a row's elements (kern/row.h), for processors and cards (base/both.h).
 */
#ifndef INGLE_KERN_ROW_FN_H
#define INGLE_KERN_ROW_FN_H

#include "quant/number.h"

/* The least maximum of a group. */
#define ROW_FP8_FLOOR 1e-4f
#define ROW_FP4_FLOOR 0x1.8p-124f

/* Of a group's largest magnitude, which is finite.  448 is 1.75 * 2^8: above 1.75 of its own power
 * of two a maximum needs the next scale. */
BOTH_FN uint8_t row_fp8_scale(float max)
{
    return (uint8_t)(((both_word(max) + 0x1fffff) >> 23) - 8);
}

/* 6 is 1.5 * 2^2. */
BOTH_FN uint8_t row_fp4_scale(float max)
{
    return (uint8_t)(((both_word(max) + 0x3fffff) >> 23) - 2);
}

/* What elements are multiplied with for codes of that scale, which is not 255. */
BOTH_FN float row_code_factor(uint8_t scale)
{
    return both_float((uint32_t)(254 - scale) << 23);
}

/* |x| <= 448.  Below 2^-6 the codes are multiples of 2^-9. */
BOTH_FN uint8_t row_fp8_code(float x)
{
    const uint32_t u = both_word(x), mag = u & 0x7fffffff;
    const uint32_t normal = ((mag + 0x7ffff + (mag >> 20 & 1)) >> 20) - (120 << 3);
    const uint32_t small = both_word(number_magnitude(x) + 16384.0f) - both_word(16384.0f);
    return (uint8_t)((mag < both_word(0x1p-6f) ? small : normal) | (u >> 24 & 0x80));
}

/* |x| <= 6, half to even: 0, 0.5, 1, 1.5, 2, 3, 4, 6. */
BOTH_FN uint8_t row_fp4_code(float x)
{
    const float m = number_magnitude(x);
    const int code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) +
                     (m >= 3.5f) + (m > 5.0f);
    return (uint8_t)(code | (int)(both_word(x) >> 28 & 8));
}

#endif
