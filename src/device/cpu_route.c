/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_route - which experts rows use, and the pairs of rows and experts.
 */
#include "base/bug.h"
#include "device/cpu.h"
#include "device/ops.h"
#include <string.h>

/* best = the k largest of score + bias, falling; ties keep the lower index first. */
static void largest(const float *score, const float *bias, int32_t n_scores, int64_t k,
                    int32_t *best)
{
    float value[DEVICE_ROUTE_MOST];
    int64_t n = 0;
    for (int32_t e = 0; e < n_scores; e++) {
        const float v = bias ? score[e] + bias[e] : score[e];
        if (n == k && !(v > value[k - 1]))
            continue;
        int64_t at = n < k ? n++ : k - 1;
        for (; at > 0 && v > value[at - 1]; at--) {
            best[at] = best[at - 1];
            value[at] = value[at - 1];
        }
        best[at] = e;
        value[at] = v;
    }
}

/* id = best in ascending order. */
static void sort(const int32_t *best, int64_t k, int32_t *id)
{
    for (int64_t i = 0; i < k; i++) { /* insertion: k is small */
        int64_t at = i;
        for (; at > 0 && id[at - 1] > best[i]; at--)
            id[at] = id[at - 1];
        id[at] = best[i];
    }
}

static void weigh(const struct device_route *r, const float *score, const int32_t *id,
                  float *weight)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < r->k; i++)
        weight[i] = score[id[i]];
    for (int64_t i = 0; r->normalise && i < r->k; i++)
        sum += weight[i];
    for (int64_t i = 0; r->normalise && i < r->k; i++)
        weight[i] /= sum;
    for (int64_t i = 0; r->factor && i < r->k; i++)
        weight[i] *= r->factor->at[id[i]];
    for (int64_t i = 0; i < r->k; i++)
        weight[i] *= r->scale;
}

static void pair(const struct device_routed *o, int64_t n, int64_t n_ids, uint64_t *hits)
{
    memset(o->first, 0, (size_t)(n_ids + 2) * sizeof *o->first);
    for (int64_t i = 0; i < n; i++) {
        o->first[o->id[i] + 2]++;
        if (hits)
            hits[o->id[i]]++;
    }
    for (int64_t e = 2; e < n_ids + 2; e++)
        o->first[e] += o->first[e - 1];
    for (int64_t i = 0; i < n; i++) { /* first[e + 1] runs from the start of e to its end */
        const int32_t p = o->first[o->id[i] + 1]++;
        o->row[p] = (int32_t)(i / o->k);
        o->slot[i] = p;
    }
}

void device_cpu_route(struct device *d, const void *args, void *scratch)
{
    (void)d;
    (void)scratch;
    const struct device_route_args *a = args;
    const struct device_route *r = a->route;
    BUG_IF(r->k < 1 || r->k > DEVICE_ROUTE_MOST || r->k > a->scores.width);
    for (int64_t i = 0; i < a->scores.n; i++) {
        const float *score = a->scores.at + i * a->scores.stride;
        int32_t best[DEVICE_ROUTE_MOST], *const id = a->out.id + i * r->k;
        if (!r->table)
            largest(score, r->bias ? r->bias->at : NULL, (int32_t)a->scores.width, r->k, best);
        sort(r->table ? r->table + r->tokens[i] * r->k : best, r->k, id);
        weigh(r, score, id, a->out.weight + i * r->k);
    }
    if (r->pairs)
        pair(&a->out, a->scores.n * r->k, a->scores.width, r->hits);
}
