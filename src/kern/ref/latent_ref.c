/* SPDX-License-Identifier: Apache-2.0 */
/* latent_ref - the operations of latent.h to read: one row, one head, one dimension. */
#include "kern/latent.h"

#include "kern/attend_part.h"
#include "kern/math.h"
#include "quant/quant.h"
#include <math.h>
#include <string.h>

static void row_write(const struct kern_row *f, void *dst, const float *src)
{
    kern_row_write(f->codec, f->width, f->tail, dst, src);
}

static void row_read(const struct kern_row *f, const void *src, float *dst)
{
    kern_row_read(f->codec, f->width, f->tail, src, dst);
}

/* An element of a block, 2 or 4 bytes wide. */
static void put(enum kern_kv_codec block, void *at, int64_t i, const uint8_t *stored, int64_t k)
{
    const size_t size = block == KERN_KV_F32 ? 4 : 2;
    memcpy((uint8_t *)at + (size_t)i * size, stored + (size_t)k * size, size);
}

static void gather(const struct kern_row *f, const void *const *row, int64_t n, int64_t slot,
                   void *keys, void *values)
{
    const enum kern_kv_codec block = kern_row_block(f->codec);
    for (int64_t r = 0; r < n; r++, slot++)
        for (int64_t k = 0; k < f->width; k++) {
            const uint8_t *stored = row[r];
            int64_t from = k;
            uint8_t one[4];
            if (f->codec == KERN_KV_FP8) {
                const int64_t m = f->width - f->tail;
                float x;
                if (k < m) {
                    const uint8_t both[2] = {stored[k],
                                             stored[m + 2 * f->tail + k / KERN_ROW_GROUP]};
                    kern_row_read(KERN_KV_FP8, 1, 0, both, &x);
                } else {
                    kern_row_read(KERN_KV_FP8, 1, 1, stored + m + 2 * (k - m), &x);
                }
                kern_row_write(block, 1, 0, one, &x);
                stored = one;
                from = 0;
            }
            put(block, keys, attend_key_at(f->width, slot, k), stored, from);
            put(block, values, slot * f->width + k, stored, from);
        }
}

/* key: an FP4 row; query: a head of kern_query4(). */
static float dot4(const uint8_t *key, const uint8_t *query, int64_t width)
{
    const int8_t *code = (const int8_t *)query;
    const uint8_t *scale = key + width / 2;
    float dot = 0.0f;
    for (int64_t g = 0; g < width / KERN_ROW_GROUP4; g++) {
        const uint8_t *k = key + g * KERN_ROW_GROUP4 / 2;
        const int8_t *q = code + g * KERN_ROW_GROUP4;
        float quarter;
        int d = 0;
        memcpy(&quarter, query + width + 4 * g, sizeof quarter);
        for (int i = 0; i < KERN_ROW_GROUP4 / 2; i++)
            d += q[i] * quant_e2m1_doubled[k[i] & 15] + q[i + 16] * quant_e2m1_doubled[k[i] >> 4];
        dot = fmaf((float)d * quant_e8m0_to_f32(scale[g]), quarter, dot);
    }
    return dot;
}

static void scores4(const struct kern_scores *s, float *score)
{
    const int64_t width = s->form.width;
    const size_t bytes = kern_row_bytes(KERN_KV_FP4, width, 0), head = kern_query4_bytes(width);
    for (int64_t j = 0; j < s->n; j++) {
        float sum = 0.0f;
        for (int64_t h = 0; h < s->n_heads; h++) {
            const float dot = dot4((const uint8_t *)s->keys + (size_t)j * bytes,
                                   (const uint8_t *)s->q + (size_t)h * head, width);
            sum = fmaf(s->weight[h], dot > 0.0f ? dot : 0.0f, sum);
        }
        score[j] = sum;
    }
}

static void scores(const struct kern_scores *s, float *score, float *scratch)
{
    const int64_t width = s->form.width;
    const float *q = s->q;
    if (s->form.codec == KERN_KV_FP4) {
        scores4(s, score);
        return;
    }
    const size_t bytes = kern_row_bytes(s->form.codec, width, s->form.tail);
    for (int64_t j = 0; j < s->n; j++) {
        row_read(&s->form, (const uint8_t *)s->keys + (size_t)j * bytes, scratch);
        float sum = 0.0f;
        for (int64_t h = 0; h < s->n_heads; h++) {
            float dot = 0.0f;
            for (int64_t k = 0; k < width; k++)
                dot = fmaf(q[h * width + k], scratch[k], dot);
            sum = fmaf(s->weight[h], dot > 0.0f ? dot : 0.0f, sum);
        }
        score[j] = sum;
    }
}

static void pool(const float *const *value, const float *const *gate, int64_t n, int64_t width,
                 float *y, float *top, float *sum)
{
    for (int64_t d = 0; d < width; d++) {
        top[d] = -INFINITY;
        sum[d] = 0.0f;
        float acc = 0.0f;
        for (int64_t i = 0; i < n; i++)
            top[d] = gate[i][d] > top[d] ? gate[i][d] : top[d];
        for (int64_t i = 0; i < n; i++) {
            const float e = kern_exp(gate[i][d] - top[d]);
            sum[d] += e;
            acc = fmaf(e, value[i][d], acc);
        }
        y[d] = acc / sum[d];
    }
}

const struct kern_latent_table kern_latent_ref = {
    .write = row_write, .read = row_read, .gather = gather, .scores = scores, .pool = pool};
