/* SPDX-License-Identifier: Apache-2.0 */
/* The law of --numerics fast: bf16 products as the instructions that do them define them. */
#include "kern/kernels.h"

#include <string.h>

void kern_act_bf16_ref(const struct kern_act *a, int64_t r0, int64_t r1)
{
    for (int64_t r = r0; r < r1; r++) {
        uint8_t *to = a->q + (size_t)r * a->row_bytes;
        memset(to, 0, a->row_bytes);
        for (int64_t k = 0; k < a->k; k++) {
            const uint16_t h = kern_fast_bf16(a->x[r * a->stride + k]);
            memcpy(to + 2 * k, &h, sizeof h);
        }
    }
}

static float flushed(float v) { return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v; }

static float act(const struct kern_matmul *m, int64_t i, int64_t k)
{
    uint16_t h;
    memcpy(&h, kern_matmul_act(m, i) + 2 * k, sizeof h);
    return flushed(quant_bf16_to_f32(h));
}

/* Adds k0 .. k0 + 32 of a weight row times an activation row. */
typedef float step_fn(const float *w, const float *x, float acc);

static float step_pairs(const float *w, const float *x, float acc)
{
    for (int k = 0; k < 32; k += 2) {
        acc = flushed(fmaf(w[k + 1], x[k + 1], acc));
        acc = flushed(fmaf(w[k], x[k], acc));
    }
    return acc;
}

static float step_tiles(const float *w, const float *x, float acc)
{
    float even = 0, odd = 0;
    for (int k = 0; k < 32; k += 2) {
        even = flushed(fmaf(w[k], x[k], even));
        odd = flushed(fmaf(w[k + 1], x[k + 1], odd));
    }
    return flushed(acc + flushed(even + odd));
}

static void run(const struct kern_matmul *m, int64_t p0, int64_t p1, step_fn *step)
{
    for (int64_t p = p0; p < p1; p++)
        for (int r = 0; r < kern_matmul_width(m, p); r++) {
            float *y = m->y + p * KERN_PANEL + r;
            for (int64_t i = 0; i < m->n; i++)
                y[i * m->y_stride] = 0;
            for (int64_t k0 = 0; k0 < m->w->in; k0 += 32) {
                float w[32], x[32];
                kern_code_floats(m->w, p, k0, r, w);
                for (int k = 0; k < 32; k++)
                    w[k] = flushed(quant_bf16_to_f32(kern_fast_bf16(w[k])));
                for (int64_t i = 0; i < m->n; i++) {
                    for (int k = 0; k < 32; k++)
                        x[k] = act(m, i, k0 + k);
                    y[i * m->y_stride] = step(w, x, y[i * m->y_stride]);
                }
            }
        }
}

void kern_fast_pairs_ref(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    run(m, p0, p1, step_pairs);
}

void kern_fast_tiles_ref(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    run(m, p0, p1, step_tiles);
}
