/* SPDX-License-Identifier: Apache-2.0 */
/* The products to read: the law that every other kernel follows to the bit. */
#include "kern/kernels.h"

#include "base/num.h"
#include <math.h>
#include <string.h>

/* The weights of a slice are decoded once for all rows. */
void kern_matmul_float_ref(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    float w[KERN_SLICE_FLOATS][KERN_PANEL];
    for (int64_t p = p0; p < p1; p++) {
        const int width = kern_matmul_width(m, p);
        for (int64_t k0 = 0; k0 < m->w->in; k0 += KERN_SLICE_FLOATS) {
            const int64_t n = num_min(KERN_SLICE_FLOATS, m->w->in - k0);
            for (int64_t k = 0; k < n; k++)
                for (int r = 0; r < width; r++)
                    w[k][r] = kern_code_float(m->w, p, k0 + k, r);
            for (int64_t i = 0; i < m->n; i++) {
                const float *x = m->x->x + kern_matmul_row(m, i) * m->x->stride + k0;
                float *y = m->y + i * m->y_stride + p * KERN_PANEL, acc[KERN_PANEL] = {0};
                for (int64_t k = 0; k < n; k++)
                    for (int r = 0; r < width; r++)
                        acc[r] = fmaf(w[k][r], x[k], acc[r]);
                for (int r = 0; r < width; r++)
                    y[r] = k0 ? y[r] + acc[r] : acc[r];
            }
        }
    }
}

static int32_t dot(const int8_t *a, const int8_t *b, int n)
{
    int32_t sum = 0;
    for (int k = 0; k < n; k++)
        sum += a[k] * b[k];
    return sum;
}

static float step32(const struct kern_code *c, const struct kern_block *b,
                    const struct kern_act32 *x, float acc)
{
    if (c->scales == KERN_SCALES_E2) {
        acc = fmaf((float)dot(b->q, x->q, 16), b->d * x->scale, acc);
        return fmaf((float)dot(b->q + 16, x->q + 16, 16), b->m * x->scale, acc);
    }
    acc = fmaf((float)dot(b->q, x->q, 32), b->d * x->scale, acc);
    return c->scales == KERN_SCALES_DM ? fmaf(x->sum, b->m * x->scale, acc) : acc;
}

static float step256(const struct kern_code *c, const struct kern_block *b,
                     const struct kern_act256 *x, float acc)
{
    int32_t sum = 0, min = 0;
    for (int g = 0; g < 16; g++) {
        sum += b->sub[g] * dot(b->q + 16 * g, x->q + 16 * g, 16);
        min += b->min[g] * x->sum16[g];
    }
    acc = fmaf((float)sum, b->d * x->scale, acc);
    if (c->scales == KERN_SCALES_SUB8_MIN || c->scales == KERN_SCALES_SUB16_NIB)
        acc = fmaf((float)min, -(b->m * x->scale), acc);
    return acc;
}

/* Blocks [b, end) of row r of panel p times row i of activations. */
static float slice(const struct kern_matmul *m, const struct kern_block *w, int64_t i, int64_t b,
                   int64_t end)
{
    const struct kern_code *c = kern_code_find(m->w->code);
    const uint8_t *row = kern_matmul_act(m, i);
    float acc = 0;
    for (; b < end; b++, w++)
        acc = c->act == KERN_ACT_Q32
                  ? step32(c, w, (const struct kern_act32 *)(const void *)row + b, acc)
                  : step256(c, w, (const struct kern_act256 *)(const void *)row + b, acc);
    return acc;
}

/* A slice of a weight row is read once for all rows of activations. */
static void quantised_panel(const struct kern_matmul *m, int64_t p)
{
    const int64_t n = m->w->act == KERN_ACT_Q32 ? 32 : 256, step = KERN_SLICE / n,
                  n_blocks = m->w->in / n;
    for (int r = 0; r < kern_matmul_width(m, p); r++)
        for (int64_t b = 0; b < n_blocks; b += step) {
            struct kern_block w[KERN_SLICE / 32];
            const int64_t end = num_min(n_blocks, b + step);
            for (int64_t k = b; k < end; k++)
                kern_code_read(m->w, p, k, r, &w[k - b]);
            for (int64_t i = 0; i < m->n; i++) {
                float *y = m->y + i * m->y_stride + p * KERN_PANEL + r;
                const float sum = slice(m, w, i, b, end);
                *y = b ? *y + sum : sum;
            }
        }
}

void kern_matmul_quantised_ref(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    for (int64_t p = p0; p < p1; p++)
        quantised_panel(m, p);
}
