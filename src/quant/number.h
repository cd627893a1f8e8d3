/*
 * number - halves, bytes and exponents to f32 and back, for processors and cards (base/both.h).
 * Without a branch where loops become vector code.
 */
#ifndef INGLE_QUANT_NUMBER_H
#define INGLE_QUANT_NUMBER_H

#include "base/both.h"

/* The exponent is rebased by one exact multiplication, a subnormal by one exact subtraction. */
BOTH_FN float number_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, em = (uint32_t)(h & 0x7FFF);
    const float normal = both_float((em << 13) + (224u << 23)) * 0x1p-112f;
    const float sub = both_float(em | 126u << 23) - 0.5f;
    const uint32_t a = both_word(normal), b = both_word(sub);
    return both_float(sign | (em < 0x400 ? b : a));
}

BOTH_FN uint16_t number_to_f16(float f)
{
    const uint32_t bits = both_word(f), x = bits & 0x7FFFFFFF;
    const uint32_t sign = bits >> 16 & 0x8000;
    uint32_t h;
    if (x > 0x7F800000)
        h = 0x7E00 | (x >> 13 & 0x1FF); /* a quiet NaN */
    else if (x >= 0x477FF000)
        h = 0x7C00;          /* 65520 and more round to infinity */
    else if (x < 0x38800000) /* the sum's last place is the subnormal quantum 2^-24 */
        h = both_word(both_float(x) + 0.5f) - 0x3F000000;
    else
        h = (x - (112u << 23) + 0xFFF + (x >> 13 & 1)) >> 13;
    return (uint16_t)(sign | h);
}

BOTH_FN float number_bf16(uint16_t b)
{
    return both_float((uint32_t)b << 16);
}

BOTH_FN uint16_t number_to_bf16(float f)
{
    const uint32_t x = both_word(f);
    if ((x & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(x >> 16 | 0x40);
    return (uint16_t)((x + 0x7FFF + (x >> 16 & 1)) >> 16);
}

/* 2^(e - 127); 255 is NaN */
BOTH_FN float number_e8m0(uint8_t e)
{
    return both_float(e == 255 ? 0x7FC00000u : e ? (uint32_t)e << 23 : 0x00400000u);
}

BOTH_FN float number_e4m3(uint8_t b)
{
    const uint32_t em = b & 0x7F, sign = (uint32_t)(b & 0x80) << 24;
    const uint32_t sub = both_word((float)em * 0x1p-9f);
    const uint32_t normal = em == 0x7F ? 0x7FC00000u : (em << 20) + (120u << 23);
    return both_float(sign | (em < 8 ? sub : normal));
}

/* Twice the value of a code of MXFP4, without a table: 0 1 2 3 4 6 8 12 and their negatives. */
BOTH_FN int number_e2m1_doubled(int code)
{
    const int m = code & 7, v = m < 4 ? m : (2 + (m & 1)) << (m / 2 - 1);
    return code & 8 ? -v : v;
}

BOTH_FN bool number_is_finite(float f)
{
    return (both_word(f) & 0x7F800000) != 0x7F800000;
}

BOTH_FN float number_magnitude(float f)
{
    return both_float(both_word(f) & 0x7FFFFFFF);
}

#endif
