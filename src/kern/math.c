/* SPDX-License-Identifier: Apache-2.0 */
/*
 * math - the scalar functions, which are also the law for the vector ones, and the choice
 * of kernels for everything in math.h.
 */
#include "kern/math.h"
#include "base/cpu.h"
#include "kern/poly.h"
#include <float.h>
#include <math.h>
#include <string.h>

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* x = n ln2 + *r; the result is n with POLY_ROUND added. */
static float reduce(float x, float *r)
{
    float t = fmaf(x, POLY_LOG2E, POLY_ROUND);
    float n = t - POLY_ROUND;
    *r = fmaf(n, -POLY_LN2_LO, fmaf(n, -POLY_LN2_HI, x));
    return t;
}

/* (e^r - 1 - r) / r^2 */
static float exp_tail(float r)
{
    return fmaf(fmaf(fmaf(fmaf(POLY_E6, r, POLY_E5), r, POLY_E4), r, POLY_E3), r, POLY_E2);
}

float kern_exp(float x)
{
    if (x < POLY_EXP_MIN)
        return 0.0f;
    x = x > POLY_EXP_MAX ? POLY_EXP_MAX : x;
    float r, t = reduce(x, &r);
    float p = fmaf(fmaf(exp_tail(r), r, 1.0f), r, 1.0f);
    /* 2^n as two factors, so that 2^128 overflows. */
    uint32_t k = to_bits(t) - POLY_ROUND_BITS + 256, half = k >> 1;
    return p * from_bits((half - 1) << 23) * from_bits((k - half - 1) << 23);
}

float kern_tanh(float x)
{
    /* (e^2|x| - 1) / (e^2|x| + 1) from expm1, which keeps small arguments accurate. */
    float y = from_bits(to_bits(x) & 0x7fffffffu) * 2.0f;
    y = y > POLY_EXPM1_MAX ? POLY_EXPM1_MAX : y;
    float r, t = reduce(y, &r);
    float q = fmaf(r * r, exp_tail(r), r);
    float s = from_bits((to_bits(t) - POLY_ROUND_BITS + 127) << 23);
    float em = fmaf(q, s, s - 1.0f);
    float a = em / (em + 2.0f);
    return from_bits(to_bits(a) | (to_bits(x) & 0x80000000u));
}

float kern_sigmoid(float x)
{
    float e = kern_exp(from_bits(to_bits(x) | 0x80000000u));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

float kern_log1p_exp(float x)
{
    /* max(x, 0) + log1p(e^-|x|); log1p(u) as ln2 + log1p((u - 1) / 2) for larger u. */
    float u = kern_exp(from_bits(to_bits(x) | 0x80000000u));
    bool big = u > 0.41421356f;
    float f = big ? (u - 1.0f) * 0.5f : u;
    float s = f / (2.0f + f), z = s * s;
    float p = fmaf(fmaf(fmaf(POLY_L3, z, POLY_L2), z, POLY_L1), z, POLY_L0);
    float l = fmaf(s * z, p, 2.0f * s);
    if (big)
        l = (l + POLY_LN2_LO) + POLY_LN2_HI;
    return x > 0.0f ? x + l : l;
}

float kern_log(float x)
{
    if (!(x > 0.0f) || x > FLT_MAX)
        return x == 0.0f ? -INFINITY : x > 0.0f ? x : NAN;
    int k;
    float f = frexpf(x, &k); /* [0.5, 1) */
    const bool low = f < 0.70710678f;
    f = low ? 2.0f * f : f;
    const float n = (float)(low ? k - 1 : k), s = (f - 1.0f) / (f + 1.0f), z = s * s;
    const float p = fmaf(fmaf(fmaf(POLY_L3, z, POLY_L2), z, POLY_L1), z, POLY_L0);
    const float l = fmaf(s * z, p, 2.0f * s);
    return n * POLY_LN2_HI + (l + n * POLY_LN2_LO);
}

#define KERN_MATH(needs, table) extern const struct kern_math_table table;
#include "kern/math.inc"
#undef KERN_MATH

void kern_math_table_init(struct kern_math_table *t, uint32_t cpu)
{
#define KERN_MATH(needs, table)   \
    if (((needs) & ~cpu) == 0)    \
        *t = table;
#include "kern/math.inc"
#undef KERN_MATH
}
