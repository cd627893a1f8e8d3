/* SPDX-License-Identifier: Apache-2.0 */
/* The law of --numerics fast: bf16 products as the instructions that do them define them, and bytes
 * with one scale for 256 k. */
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

/* Columns [k0, k0 + n) of row r of panel p, at most a slice, for all rows of activations.  slices:
 * each has a sum of its own. */
static void run_slice(const struct kern_matmul *m, int64_t p, int r, int64_t k0, int64_t n,
                      step_fn *step, bool slices)
{
    float w[KERN_SLICE_FLOATS], x[KERN_SLICE_FLOATS];
    for (int64_t k = 0; k < n; k += 32)
        kern_code_floats(m->w, p, k0 + k, r, w + k);
    for (int64_t k = 0; k < n; k++)
        w[k] = flushed(quant_bf16_to_f32(kern_fast_bf16(w[k])));
    for (int64_t i = 0; i < m->n; i++) {
        float *y = m->y + i * m->y_stride + p * KERN_PANEL + r, acc = slices || k0 == 0 ? 0 : *y;
        for (int64_t k = 0; k < n; k++)
            x[k] = act(m, i, k0 + k);
        for (int64_t k = 0; k < n; k += 32)
            acc = step(w + k, x + k, acc);
        *y = slices && k0 ? *y + acc : acc;
    }
}

static void run(const struct kern_matmul *m, int64_t p0, int64_t p1, step_fn *step, bool slices)
{
    for (int64_t p = p0; p < p1; p++)
        for (int r = 0; r < kern_matmul_width(m, p); r++)
            for (int64_t k = 0; k < m->w->in; k += KERN_SLICE_FLOATS)
                run_slice(m, p, r, k,
                          m->w->in - k < KERN_SLICE_FLOATS ? m->w->in - k : KERN_SLICE_FLOATS, step,
                          slices);
}

void kern_fast_pairs_ref(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    run(m, p0, p1, step_pairs, true);
}

void kern_fast_tiles_ref(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    run(m, p0, p1, step_tiles, false);
}

/* ---- fast-wide ---- */

/* 256 k of a weight row: value = d * sub * q + o * min, o and min of groups of 16. */
struct super {
    int8_t q[256];
    float d[16], sub[16], o[16], min[16];
};

static struct super super_read(const struct kern_matrix *w, int64_t p, int64_t i, int r)
{
    const bool halves = kern_code_find(w->code)->scales == KERN_SCALES_E2;
    struct super s;
    struct kern_block b;
    if (w->act == KERN_ACT_Q256) {
        kern_code_read(w, p, i, r, &b);
        memcpy(s.q, b.q, sizeof s.q);
        for (int g = 0; g < 16; g++) {
            s.d[g] = b.d;
            s.sub[g] = b.sub[g];
            s.o[g] = b.m;
            s.min[g] = -(float)b.min[g];
        }
        return s;
    }
    for (int g = 0; g < 16; g++) {
        kern_code_read(w, p, 8 * i + g / 2, r, &b);
        memcpy(s.q + 16 * g, b.q + g % 2 * 16, 16);
        s.d[g] = halves && g % 2 ? b.m : b.d;
        s.o[g] = halves ? 0 : b.m;
        s.sub[g] = s.min[g] = 1;
    }
    return s;
}

static bool has_8_bits(const struct kern_code *c) { return c->bits == 8 || c->table == quant_nl4; }

/* The least and the largest q. */
static void range_of(const struct kern_code *c, float *lo, float *hi)
{
    *lo = has_8_bits(c) ? -128 : c->table ? -12 : (float)-c->bias;
    *hi = has_8_bits(c) ? 127 : c->table ? 12 : (float)((1 << c->bits) - 1 - c->bias);
}

static uint32_t size_bits(float v)
{
    uint32_t u;
    v = fabsf(v);
    memcpy(&u, &v, sizeof u);
    return u;
}

/* The size of the largest weight there may be; any that is no number is larger than all. */
static float top_of(const struct kern_code *c, const struct super *s)
{
    float lo, hi, top = 0;
    range_of(c, &lo, &hi);
    for (int g = 0; g < 16; g++) {
        const float f = s->d[g] * s->sub[g], o = s->o[g] * s->min[g];
        const float a = fmaf(f, lo, o), b = fmaf(f, hi, o),
                    larger = size_bits(a) > size_bits(b) ? a : b;
        if (size_bits(larger) > size_bits(top))
            top = fabsf(larger);
    }
    return top;
}

float kern_fast_wide_read(const struct kern_matrix *w, int64_t p, int64_t i, int r, int8_t *to)
{
    const struct kern_code *c = kern_code_find(w->code);
    const struct super s = super_read(w, p, i, r);
    const float top = top_of(c, &s);
    memset(to, 0, 256);
    if (!(top <= 0x1.fffffep127f))
        return NAN;
    if (top < 0x1p-90f)
        return 0;
    const float f = (has_8_bits(c) ? 127.0f * 32768 : 127.0f * 256) / top;
    for (int k = 0; k < 256; k++) {
        const int g = k / 16, by = (int)rintf(s.d[g] * f * s.sub[g]);
        const int more = (int)rintf(fmaf(s.o[g] * f, s.min[g], 128));
        to[k] = (int8_t)(has_8_bits(c) ? (s.q[k] * by + 16384) >> 15 : (s.q[k] * by + more) >> 8);
    }
    return top * (1.0f / 127.0f);
}

void kern_fast_wide_ref(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    for (int64_t p = p0; p < p1; p++)
        for (int r = 0; r < kern_matmul_width(m, p); r++) {
            enum { STEP = KERN_SLICE / 256 };
            const int64_t n_blocks = m->w->in / 256;
            for (int64_t b = 0; b < n_blocks; b += STEP) {
                const int64_t n = n_blocks - b < STEP ? n_blocks - b : STEP;
                int8_t w[STEP][256];
                float s[STEP];
                for (int64_t j = 0; j < n; j++)
                    s[j] = kern_fast_wide_read(m->w, p, b + j, r, w[j]);
                for (int64_t i = 0; i < m->n; i++) {
                    const struct kern_act256 *x =
                        (const struct kern_act256 *)(const void *)kern_matmul_act(m, i) + b;
                    float *y = m->y + i * m->y_stride + p * KERN_PANEL + r, acc = 0;
                    for (int64_t j = 0; j < n; j++) {
                        int32_t dot = 0;
                        for (int k = 0; k < 256; k++)
                            dot += w[j][k] * x[j].q[k];
                        acc = fmaf((float)dot, s[j] * x[j].scale, acc);
                    }
                    *y = b ? *y + acc : acc;
                }
            }
        }
}
