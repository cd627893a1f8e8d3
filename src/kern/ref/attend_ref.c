/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend_ref - attention to read: one row, one head, one position after the other, in the
 * steps that attend.h lists.
 */
#include "kern/attend.h"
#include "kern/attend_coded.h"
#include "kern/attend_part.h"
#include "kern/kernels.h"
#include "kern/math.h"
#include "kern/ref/attend_sum.h"
#include "quant/quant.h"
#include <math.h>

/* How products are added: a score, and positions [lo, hi) of a block of 32 at base to sums of
 * values. */
struct law {
    float (*dot)(const float *q, const float *k, int64_t width);
    void (*mix)(const struct kern_attend *a, const float p[KERN_ATTEND_BLOCK], int64_t base,
                int64_t lo, int64_t hi, float *acc, float *row);
};

static void write_scaled(bool key, int64_t width, void *block, int64_t slot, const float *row)
{
    int8_t *q = block;
    uint16_t *scale = (uint16_t *)(void *)(q + width * KERN_PAGE);
    int64_t n_groups = width / ATTEND_QUANT;
    for (int64_t g = 0; g < n_groups; g++) {
        const float *x = row + g * ATTEND_QUANT;
        float amax = 0.0f;
        bool finite = true;
        for (int j = 0; j < ATTEND_QUANT; j++) {
            amax = max_of(fabsf(x[j]), amax);
            finite = finite && isfinite(x[j]);
        }
        float top = amax / 127.0f;
        uint16_t h = finite ? quant_f32_to_f16(top < 65504.0f ? top : 65504.0f) : 0x7e00;
        float d = quant_f16_to_f32(h);
        scale[key ? attend_key_at(n_groups, slot, g) : slot * n_groups + g] = h;
        for (int j = 0; j < ATTEND_QUANT; j++) {
            float v = finite && d > 0.0f ? x[j] / d : 0.0f;
            v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
            int64_t k = g * ATTEND_QUANT + j;
            q[key ? attend_key_at(width, slot, k) : slot * width + k] = (int8_t)rintf(v);
        }
    }
}

static void kv_write(enum kern_kv_codec c, bool key, int64_t width, void *block, int64_t slot,
                     const float *rows, int64_t n, int64_t stride)
{
    float *f = block;
    uint16_t *h = block;
    for (int64_t r = 0; r < n; r++, slot++, rows += stride) {
        if (c == KERN_KV_Q8_0) {
            write_scaled(key, width, block, slot, rows);
            continue;
        }
        for (int64_t k = 0; k < width; k++) {
            int64_t i = key ? attend_key_at(width, slot, k) : slot * width + k;
            if (c == KERN_KV_F32)
                f[i] = rows[k];
            else
                h[i] = c == KERN_KV_F16 ? quant_f32_to_f16(rows[k]) : quant_f32_to_bf16(rows[k]);
        }
    }
}

static float dot_exact(const float *q, const float *k, int64_t width)
{
    float dot = 0.0f;
    for (int64_t i = 0; i < width; i++)
        dot = fmaf(q[i], k[i], dot);
    return dot;
}

static void key_read(const struct kern_attend *a, int64_t pos, float *row)
{
    const uint8_t *page = a->page[pos / KERN_PAGE];
    if (kern_kv_is_rot(a->k_codec))
        kern_attend_rot_key(a, page, pos % KERN_PAGE, row);
    else
        kern_kv_read(a->k_codec, true, a->k_width, page + a->k_at, pos % KERN_PAGE, row);
}

static void value_read(const struct kern_attend *a, int64_t pos, float *row)
{
    kern_kv_read(a->v_codec, false, a->v_width, a->page[pos / KERN_PAGE] + a->v_at, pos % KERN_PAGE,
                 row);
}

static void mix_exact(const struct kern_attend *a, const float p[KERN_ATTEND_BLOCK], int64_t base,
                      int64_t lo, int64_t hi, float *acc, float *row)
{
    for (int64_t at = lo; at < hi; at++) {
        value_read(a, at, row);
        for (int64_t d = 0; d < a->v_width; d++)
            acc[d] = fmaf(p[at - base], row[d], acc[d]);
    }
}

static float rounded(float x) { return quant_bf16_to_f32(kern_fast_bf16(x)); }
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

/* acc + x0 y0 + x1 y1 of bf16 values. */
static float pair(float acc, float x0, float y0, float x1, float y1)
{
    acc = flushed(fmaf(rounded(x1), rounded(y1), flushed(acc)));
    return flushed(fmaf(rounded(x0), rounded(y0), acc));
}

static float dot_pairs(const float *q, const float *k, int64_t width)
{
    float dot = 0.0f;
    for (int64_t i = 0; i < width; i += 2) {
        const bool two = i + 1 < width;
        dot = pair(dot, q[i], k[i], two ? q[i + 1] : 0.0f, two ? k[i + 1] : 0.0f);
    }
    return dot;
}

static void mix_pairs(const struct kern_attend *a, const float p[KERN_ATTEND_BLOCK], int64_t base,
                      int64_t lo, int64_t hi, float *acc, float *row)
{
    for (int64_t at = lo / 2 * 2; at < hi; at += 2) {
        const bool even = at >= lo, odd = at + 1 < hi;
        const float p0 = even ? p[at - base] : 0.0f, p1 = odd ? p[at + 1 - base] : 0.0f;
        float *other = row + a->v_width;
        if (even)
            value_read(a, at, row);
        if (odd)
            value_read(a, at + 1, other);
        for (int64_t d = 0; d < a->v_width; d++)
            acc[d] = pair(acc[d], p0, even ? row[d] : 0.0f, p1, odd ? other[d] : 0.0f);
    }
}

static const struct law exact = {dot_exact, mix_exact}, pairs = {dot_pairs, mix_pairs};

/* Positions [from, to) of the block of 32 at base: p gets their weights, the rest of p is
 * zero; what was collected before is rescaled to the new maximum. */
static void block_weights(const struct kern_attend *a, const float *q, int64_t base, int64_t from,
                          int64_t to, float p[KERN_ATTEND_BLOCK], struct part *part,
                          float lane[ATTEND_LANES], float *row, const struct law *law)
{
    float t[ATTEND_LANES];
    for (int j = 0; j < KERN_ATTEND_BLOCK; j++)
        p[j] = -INFINITY;
    for (int64_t pos = from; pos < to; pos++) {
        key_read(a, pos, row);
        p[pos - base] = a->scale * law->dot(q, row, a->k_width);
    }
    for (int j = 0; j < ATTEND_LANES; j++)
        t[j] = max_of(p[j + ATTEND_LANES], p[j]);
    for (int half = ATTEND_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            t[j] = max_of(t[j + half], t[j]);
    float top = max_of(t[0], part->max), c = kern_exp(part->max - top);
    part->max = top;
    for (int j = 0; j < KERN_ATTEND_BLOCK; j++) {
        bool seen = base + j >= from && base + j < to;
        p[j] = seen ? kern_exp(p[j] - top) : 0.0f;
    }
    for (int j = 0; j < ATTEND_LANES; j++)
        lane[j] = (lane[j] * c + p[j]) + p[j + ATTEND_LANES];
    for (int64_t d = 0; d < a->v_width; d++)
        part->acc[d] *= c;
}

/* Positions [from, to) of a part, which a row sees. */
static void one_part(const struct kern_attend *a, const float *q, int64_t from, int64_t to,
                     struct part *part, float *row, const struct law *law)
{
    float p[KERN_ATTEND_BLOCK], lane[ATTEND_LANES] = {0};
    clear(part, a->v_width);
    for (int64_t base = from / KERN_ATTEND_BLOCK * KERN_ATTEND_BLOCK; base < to;
         base += KERN_ATTEND_BLOCK) {
        int64_t lo = num_max(from, base), hi = num_min(to, base + KERN_ATTEND_BLOCK);
        block_weights(a, q, base, lo, hi, p, part, lane, row, law);
        law->mix(a, p, base, lo, hi, part->acc, row);
    }
    for (int half = ATTEND_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    part->sum = lane[0];
}

/* What row pos sees of a split; f32 [4 widths] of scratch, or more. */
static void one_split(const struct kern_attend *a, const float *q, int64_t pos, int64_t split,
                      struct part *all, float *scratch, const struct law *law)
{
    struct part part = {.acc = scratch};
    int64_t from = num_max(attend_first(a, pos), split * KERN_SPLIT);
    const int64_t end = num_min(attend_end(a, pos), (split + 1) * KERN_SPLIT);
    clear(all, a->v_width);
    for (int64_t to; from < end; from = to) {
        to = num_min(end, (from / ATTEND_PART + 1) * ATTEND_PART);
        one_part(a, q, from, to, &part, scratch + a->v_width, law);
        join(all, part.max, part.sum, part.acc, a->v_width);
    }
}

static void finish(const struct kern_attend *a, int64_t row, int64_t head, struct part *all)
{
    float *out = a->out + row * a->out_stride + head * a->v_width;
    if (a->sink)
        join(all, a->sink[head], 1.0f, NULL, a->v_width);
    for (int64_t d = 0; d < a->v_width; d++)
        out[d] = all->acc[d] / all->sum;
}

static void rows(const struct kern_attend *a, void *scratch, const struct law *law)
{
    struct part all = {.acc = scratch}, one = {.acc = all.acc + a->v_width};
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->n_heads; h++) {
            int64_t pos = a->pos0 + r, last = (attend_end(a, pos) - 1) / KERN_SPLIT;
            clear(&all, a->v_width);
            for (int64_t s = attend_first(a, pos) / KERN_SPLIT; s <= last; s++) {
                one_split(a, a->q + r * a->q_stride + h * a->k_width, pos, s, &one,
                          one.acc + a->v_width, law);
                join(&all, one.max, one.sum, one.acc, a->v_width);
            }
            finish(a, r, h, &all);
        }
}

static void split(const struct kern_attend *a, int64_t index, float *state, void *scratch,
                  const struct law *law)
{
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->n_heads; h++, state += kern_attend_state(a->v_width)) {
            struct part one = {.acc = state + 2};
            one_split(a, a->q + r * a->q_stride + h * a->k_width, a->pos0 + r, index, &one,
                      scratch, law);
            state[0] = one.max;
            state[1] = one.sum;
        }
}

static void merge(const struct kern_attend *a, int64_t n_splits, const float *state, void *scratch)
{
    struct part all = {.acc = scratch};
    int64_t step = kern_attend_state(a->v_width);
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->n_heads; h++, state += step) {
            clear(&all, a->v_width);
            for (int64_t s = 0; s < n_splits; s++) {
                const float *one = state + s * a->n_rows * a->n_heads * step;
                join(&all, one[0], one[1], one + 2, a->v_width);
            }
            finish(a, r, h, &all);
        }
}

#define TABLE(name, law)                                                                           \
    static void rows_##law(const struct kern_attend *a, void *scratch)                             \
    {                                                                                              \
        rows(a, scratch, &law);                                                                    \
    }                                                                                              \
    static void split_##law(const struct kern_attend *a, int64_t index, float *state,              \
                            void *scratch)                                                         \
    {                                                                                              \
        split(a, index, state, scratch, &law);                                                     \
    }                                                                                              \
    const struct kern_attend_table name = {                                                        \
        .kv_write = kv_write, .rows = rows_##law, .split = split_##law, .merge = merge};
TABLE(kern_attend_ref, exact)
TABLE(kern_attend_pairs_ref, pairs)
