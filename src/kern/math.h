/*
 * math - everything of a forward pass that is neither a product with weights nor
 * attention.  exp, tanh and friends are our own polynomials: the same operations in scalar
 * and vector code, with an error bound that a test measures.  Sums along a row use 128
 * partial sums (element i goes to partial i mod 128, ascending), combined as s[j] += s[j+64],
 * +32, ... +1: the order that vectors and the threads of graphics processors share.
 */
#ifndef INGLE_KERN_MATH_H
#define INGLE_KERN_MATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct report_sink;

/* Scalar versions, usable anywhere.  Error at most 1 ulp for exp, 3 ulp for tanh and sigmoid
 * and 4 ulp for softplus; below x = -87 exp is 0, and never subnormal (so is what is made of
 * it); correct limits for infinities, NaN stays NaN. */
float kern_exp(float x);
float kern_tanh(float x);
float kern_sigmoid(float x);
float kern_log1p_exp(float x); /* softplus */
float kern_log(float x);       /* 2 ulp, or 2^-24 near 1; of 0 it is -inf, below NaN */

struct kern_math_table {
    /* y[i] = x[i] / sqrt(mean(x^2) + eps) * w[i]; w NULL: no factor; y may be x.
     * Sum of squares by fmaf; the factor is 1/sqrtf(mean + eps), both correctly rounded. */
    void (*norm)(float *y, const float *x, const float *w, int64_t n, float eps);
    void (*add)(float *y, const float *x, int64_t n);                /* y += x */
    void (*add_scaled)(float *y, const float *x, float s, int64_t n); /* y = fmaf(x, s, y) */
    void (*scale)(float *y, const float *x, float s, int64_t n);     /* y = x * s; y may be x */
    void (*mul)(float *y, const float *x, int64_t n);                /* y *= x */
    /* The gates are x * sigmoid: silu's own, and tanh's form of gelu written so. */
    /* gelu_tanh(gate) * up */
    void (*glu_gelu)(float *y, const float *gate, const float *up, int64_t n);
    void (*glu_silu)(float *y, const float *gate, const float *up, int64_t n); /* silu(gate) * up */
    void (*softcap)(float *y, float cap, int64_t n);                 /* y = cap * tanh(y / cap) */
    void (*sqrt_softplus)(float *y, int64_t n);                      /* y = sqrt(log(1 + exp(y))) */
    /* Rotates pairs (i, i + half), i < n_pairs, by cs[i] = {cos, sin}:
     * a' = a cos - b sin, b' = b cos + a sin (products and one fma each: fmaf(-b, s, a*c)). */
    void (*rope)(float *x, const float *cs, int64_t n_pairs, int64_t half);
    /* The same of neighbours (2i, 2i + 1), every product and sum rounded; inverse: by the negative
     * angle. */
    void (*rope_pairs)(float *x, const float *cs, int64_t n_pairs, bool inverse);
    /* y = softmax(x), f32; max first, then exp and the sum; y may be x. */
    void (*softmax)(float *y, const float *x, int64_t n);
    float (*dot)(const float *a, const float *b, int64_t n);
    /* First index whose value is NaN or infinite, or -1. */
    int64_t (*find_bad)(const float *x, int64_t n);
    /* Index of the largest value, the first one on ties; NaN never wins; -1 if all are. */
    int64_t (*argmax)(const float *x, int64_t n);
};

/* Fills t with the fastest kernels for a mask of base/cpu.h. */
void kern_math_table_init(struct kern_math_table *t, uint32_t cpu);

/* Part of kern_self_test(): each operation of t against its plain version. */
int kern_math_self_test(struct kern_math_table *t, uint32_t cpu, const struct report_sink *sink);

/* cos and sin of pos * inv_freq in double, rounded once to f32: cs [n_pairs][2]. */
void kern_rope_angles(float *cs, int64_t pos, const double *inv_freq, int64_t n_pairs);

#endif
