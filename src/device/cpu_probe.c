/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_probe - how much some rows attend to each position.
 *
 * One query head after the other: scores of all rows, a page of positions a task; then a row a
 * task.  All sums have an order of their own, so the result does not depend on the threads.
 */
#include "base/num.h"
#include "device/cpu.h"
#include "device/ops.h"

#include <math.h>

enum { MOST_WIDTH = 8192, LANES = 16 };

struct probe {
    struct device *d;
    const struct device_probe_args *a;
    int64_t head; /* of queries */
};

static float dot(const float *x, const float *y, int64_t n)
{
    float sum[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int64_t k = 0; k < LANES; k++)
            sum[k] += x[i + k] * y[i + k];
    for (int64_t k = 0; i + k < n; k++)
        sum[k] += x[i + k] * y[i + k];
    for (int64_t half = LANES / 2; half; half /= 2)
        for (int64_t k = 0; k < half; k++)
            sum[k] += sum[k + half];
    return sum[0];
}

static void page_chunk(void *arg, int64_t page, int worker)
{
    const struct probe *p = arg;
    const struct device_probe_args *a = p->a;
    const struct device_kv *kv = a->kv;
    const int64_t width = kv->k_width,
                  end = num_min(a->span->pos0 + a->span->n, (page + 1) * KERN_PAGE);
    const uint8_t *block = a->span->page[page] + kv->at +
                           (size_t)(p->head / (a->n_q_heads / kv->n_heads)) * kv->head_bytes;
    float key[MOST_WIDTH];
    (void)worker;
    for (int64_t pos = page * KERN_PAGE; pos < end; pos++) {
        kern_kv_read(kv->k_codec, true, width, block, pos % KERN_PAGE, key);
        for (int64_t r = num_max(0, pos - a->span->pos0); r < a->span->n; r++)
            a->room[r * a->stride + pos] =
                a->scale *
                dot(a->q.at + (a->span->row0 + r) * a->q.stride + p->head * width, key, width);
    }
}

static void row_chunk(void *arg, int64_t r, int worker)
{
    const struct probe *p = arg;
    const struct device_probe_args *a = p->a;
    const int64_t n = a->span->pos0 + r + 1;
    float *score = a->room + r * a->stride, *best = a->best + r * a->stride, most = -INFINITY;
    double sum = 0;
    (void)worker;
    for (int64_t i = 0; i < n; i++)
        most = score[i] > most ? score[i] : most;
    for (int64_t i = 0; i < n; i++)
        sum += (double)(score[i] = kern_exp(score[i] - most));
    for (int64_t i = 0; i < n; i++)
        best[i] = fmaxf(best[i], (float)((double)score[i] / sum));
}

void device_cpu_probe(struct device *d, const void *args, void *scratch)
{
    struct probe p = {.d = d, .a = args};
    const struct device_span *s = p.a->span;
    const int64_t n = s->pos0 + s->n, work = n * s->n * p.a->kv->k_width;
    struct err err;
    (void)scratch;
    for (int64_t page = 0; page * KERN_PAGE < n; page++)
        if (!s->page[page] || p.a->kv->k_width > MOST_WIDTH || p.a->kv->k_codec == KERN_KV_FROM_V) {
            err_set(&err, INGLE_UNSUP, "keys of position %lld cannot be looked at",
                    (long long)(page * KERN_PAGE));
            device_fail(d, &err);
            return;
        }
    for (p.head = 0; p.head < p.a->n_q_heads && device_runs(d); p.head++) {
        device_cpu_for(d, num_div_up(n, KERN_PAGE), work, page_chunk, &p);
        device_cpu_for(d, s->n, n * s->n * LANES, row_chunk, &p);
    }
}
