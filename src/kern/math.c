/* SPDX-License-Identifier: Apache-2.0 */
/*
 * math - the scalar functions (poly_fn.h), which are also the law for the vector ones, and the
 * choice of kernels for everything in math.h.
 */
#include "kern/math.h"
#include "base/cpu.h"
#include "kern/poly_fn.h"
#include <float.h>
#include <math.h>

float kern_exp(float x)
{
    return poly_exp(x);
}

float kern_tanh(float x)
{
    return poly_tanh(x);
}

float kern_sigmoid(float x)
{
    return poly_sigmoid(x);
}

float kern_log1p_exp(float x)
{
    return poly_log1p_exp(x);
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
