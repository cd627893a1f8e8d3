/* SPDX-License-Identifier: Apache-2.0 */
/*
 * math_ref - the kernels of math.h to read: plain loops.  Sums have 128 partial sums, folded
 * in halves.
 */
#include "kern/math.h"
#include "kern/poly.h"
#include <math.h>
#include <string.h>

enum { PARTIALS = 128 };

static float fold_sum(float s[PARTIALS])
{
    for (int half = PARTIALS / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
}

static float dot(const float *a, const float *b, int64_t n)
{
    float s[PARTIALS] = {0};
    for (int64_t i = 0; i < n; i++)
        s[i % PARTIALS] = fmaf(a[i], b[i], s[i % PARTIALS]);
    return fold_sum(s);
}

static void norm(float *y, const float *x, const float *w, int64_t n, float eps)
{
    float f = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = w ? x[i] * f * w[i] : x[i] * f;
}

static void add(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void add_scaled(float *y, const float *x, float s, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = fmaf(x[i], s, y[i]);
}

static void scale(float *y, const float *x, float s, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * s;
}

static void mul(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] *= x[i];
}

static void glu_gelu(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i];
        float z = g * fmaf(g * g, POLY_GELU_B, POLY_GELU_A);
        y[i] = g * kern_sigmoid(z) * up[i];
    }
}

static void glu_silu(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] * kern_sigmoid(gate[i]) * up[i];
}

static void softcap(float *y, float cap, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = cap * kern_tanh(y[i] / cap);
}

static void sqrt_softplus(float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = sqrtf(kern_log1p_exp(y[i]));
}

static void rope(float *x, const float *cs, int64_t n_pairs, int64_t half)
{
    for (int64_t i = 0; i < n_pairs; i++) {
        float c = cs[2 * i], s = cs[2 * i + 1], a = x[i], b = x[i + half];
        x[i] = fmaf(-b, s, a * c);
        x[i + half] = fmaf(a, s, b * c);
    }
}

static void rope_pairs(float *x, const float *cs, int64_t n_pairs, bool inverse)
{
    const float sign = inverse ? -1.0f : 1.0f;
    for (int64_t i = 0; i < 2 * n_pairs; i += 2) {
        const float c = cs[i], s = sign * cs[i + 1], a = x[i], b = x[i + 1];
        x[i] = a * c - b * s;
        x[i + 1] = b * c + a * s;
    }
}

static void softmax(float *y, const float *x, int64_t n)
{
    float m = -INFINITY, s[PARTIALS] = {0};
    for (int64_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    for (int64_t i = 0; i < n; i++) {
        y[i] = kern_exp(x[i] - m);
        s[i % PARTIALS] += y[i];
    }
    float sum = fold_sum(s);
    for (int64_t i = 0; i < n; i++)
        y[i] /= sum;
}

static int64_t find_bad(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        if ((u & 0x7f800000u) == 0x7f800000u)
            return i;
    }
    return -1;
}

static int64_t argmax(const float *x, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (best < 0 ? x[i] == x[i] : x[i] > x[best])
            best = i;
    return best;
}

const struct kern_math_table kern_math_ref = {
    .norm = norm,
    .add = add,
    .add_scaled = add_scaled,
    .scale = scale,
    .mul = mul,
    .glu_gelu = glu_gelu,
    .glu_silu = glu_silu,
    .softcap = softcap,
    .sqrt_softplus = sqrt_softplus,
    .rope = rope,
    .rope_pairs = rope_pairs,
    .softmax = softmax,
    .dot = dot,
    .find_bad = find_bad,
    .argmax = argmax,
};
