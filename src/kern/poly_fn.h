/*
 * poly_fn - exp, tanh and friends, step by step, for processors and cards (base/both.h).  The
 * limits and the errors are those of kern/math.h.
 */
#ifndef INGLE_KERN_POLY_FN_H
#define INGLE_KERN_POLY_FN_H

#include "base/both.h"
#include "kern/poly.h"

/* x = n ln2 + *r; the result is n with POLY_ROUND added. */
BOTH_FN float poly_reduce(float x, float *r)
{
    const float t = BOTH_FMA(x, POLY_LOG2E, POLY_ROUND);
    const float n = t - POLY_ROUND;
    *r = BOTH_FMA(n, -POLY_LN2_LO, BOTH_FMA(n, -POLY_LN2_HI, x));
    return t;
}

/* (e^r - 1 - r) / r^2 */
BOTH_FN float poly_exp_tail(float r)
{
    return BOTH_FMA(
        BOTH_FMA(BOTH_FMA(BOTH_FMA(POLY_E6, r, POLY_E5), r, POLY_E4), r, POLY_E3), r, POLY_E2);
}

BOTH_FN float poly_exp(float x)
{
    if (x < POLY_EXP_MIN)
        return 0.0f;
    x = x > POLY_EXP_MAX ? POLY_EXP_MAX : x;
    float r;
    const float t = poly_reduce(x, &r);
    const float p = BOTH_FMA(BOTH_FMA(poly_exp_tail(r), r, 1.0f), r, 1.0f);
    /* 2^n as two factors, so that 2^128 overflows. */
    const uint32_t k = both_word(t) - POLY_ROUND_BITS + 256, half = k >> 1;
    return p * both_float((half - 1) << 23) * both_float((k - half - 1) << 23);
}

BOTH_FN float poly_tanh(float x)
{
    /* (e^2|x| - 1) / (e^2|x| + 1) from expm1, which keeps small arguments accurate. */
    float y = both_float(both_word(x) & 0x7fffffffu) * 2.0f;
    y = y > POLY_EXPM1_MAX ? POLY_EXPM1_MAX : y;
    float r;
    const float t = poly_reduce(y, &r);
    const float q = BOTH_FMA(r * r, poly_exp_tail(r), r);
    const float s = both_float((both_word(t) - POLY_ROUND_BITS + 127) << 23);
    const float em = BOTH_FMA(q, s, s - 1.0f);
    const float a = em / (em + 2.0f);
    return both_float(both_word(a) | (both_word(x) & 0x80000000u));
}

BOTH_FN float poly_sigmoid(float x)
{
    const float e = poly_exp(both_float(both_word(x) | 0x80000000u));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

BOTH_FN float poly_log1p_exp(float x)
{
    /* max(x, 0) + log1p(e^-|x|); log1p(u) as ln2 + log1p((u - 1) / 2) for larger u. */
    const float u = poly_exp(both_float(both_word(x) | 0x80000000u));
    const bool big = u > 0.41421356f;
    const float f = big ? (u - 1.0f) * 0.5f : u;
    const float s = f / (2.0f + f), z = s * s;
    const float p = BOTH_FMA(BOTH_FMA(BOTH_FMA(POLY_L3, z, POLY_L2), z, POLY_L1), z, POLY_L0);
    float l = BOTH_FMA(s * z, p, 2.0f * s);
    if (big)
        l = (l + POLY_LN2_LO) + POLY_LN2_HI;
    return x > 0.0f ? x + l : l;
}

/* x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) */
BOTH_FN float poly_gelu(float x)
{
    const float z = x * BOTH_FMA(x * x, POLY_GELU_B, POLY_GELU_A);
    return x * poly_sigmoid(z);
}

#endif
