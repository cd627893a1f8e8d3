/* SPDX-License-Identifier: Apache-2.0 */
#include "expert/expert.h"

#include <string.h>

static struct expert_choice new_choice(struct device *d, int64_t n_rows, int64_t k)
{
    return (struct expert_choice){device_bytes(d, (size_t)(n_rows * k) * sizeof(int32_t)),
                                  device_bytes(d, (size_t)(n_rows * k) * sizeof(float)), k};
}

/* id = the experts of best in ascending order, weight = their scores. */
static void put_sorted(const int32_t *best, const float *score, int64_t k, int32_t *id,
                       float *weight)
{
    for (int64_t i = 0; i < k; i++) { /* insertion: k is small */
        int64_t at = i;
        for (; at > 0 && id[at - 1] > best[i]; at--)
            id[at] = id[at - 1];
        id[at] = best[i];
    }
    for (int64_t i = 0; i < k; i++)
        weight[i] = score[id[i]];
}

struct expert_choice expert_top_k(struct device *d, struct rows scores, const float *bias,
                                  int64_t k)
{
    const struct expert_choice c = new_choice(d, scores.n, k);
    if (!device_runs(d))
        return c;
    for (int64_t r = 0; r < scores.n; r++) {
        const float *s = scores.at + r * scores.stride;
        int32_t best[EXPERT_MAX_USED]; /* descending; ties keep the lower id first */
        float value[EXPERT_MAX_USED];
        int64_t n = 0;
        for (int32_t e = 0; e < (int32_t)scores.width; e++) {
            const float v = bias ? s[e] + bias[e] : s[e];
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
        put_sorted(best, s, k, c.id + r * k, c.weight + r * k);
    }
    return c;
}

struct expert_choice expert_by_table(struct device *d, struct rows scores, const int32_t *table,
                                     const int32_t *tokens, int64_t k)
{
    const struct expert_choice c = new_choice(d, scores.n, k);
    if (!device_runs(d))
        return c;
    for (int64_t r = 0; r < scores.n; r++)
        put_sorted(table + tokens[r] * k, scores.at + r * scores.stride, k, c.id + r * k,
                   c.weight + r * k);
    return c;
}

void expert_normalise(struct device *d, struct expert_choice *c, int64_t n_rows)
{
    if (!device_runs(d))
        return;
    for (int64_t r = 0; r < n_rows; r++) {
        float *w = c->weight + r * c->k, sum = 0.0f;
        for (int64_t i = 0; i < c->k; i++)
            sum += w[i];
        for (int64_t i = 0; i < c->k; i++)
            w[i] /= sum;
    }
}

/* The (row, expert) pairs sorted by expert: pair p of expert e computes row row[p]. */
struct buckets {
    int32_t *first; /* [n_experts + 1] */
    int32_t *row;   /* [n_rows * k] */
    int32_t *slot;  /* [n_rows * k]: where a row's i-th expert went */
    int32_t *self;  /* [n_rows * k]: 0, 1, 2, ... */
};

static struct buckets make_buckets(struct device *d, const struct expert_choice *c,
                                   int64_t n_rows, int64_t n_experts, uint64_t *hits)
{
    const int64_t n = n_rows * c->k;
    struct buckets b = {
        device_bytes(d, (size_t)(n_experts + 2) * sizeof(int32_t)),
        device_bytes(d, (size_t)n * sizeof(int32_t)),
        device_bytes(d, (size_t)n * sizeof(int32_t)),
        device_bytes(d, (size_t)n * sizeof(int32_t)),
    };
    if (!device_runs(d))
        return b;
    memset(b.first, 0, (size_t)(n_experts + 2) * sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) {
        b.first[c->id[i] + 2]++;
        b.self[i] = (int32_t)i;
        if (hits)
            hits[c->id[i]]++;
    }
    for (int64_t e = 2; e < n_experts + 2; e++)
        b.first[e] += b.first[e - 1];
    for (int64_t i = 0; i < n; i++) { /* first[e + 1] runs from the start of e to its end */
        const int32_t p = b.first[c->id[i] + 1]++;
        b.row[p] = (int32_t)(i / c->k);
        b.slot[i] = p;
    }
    return b;
}

/* One product for each expert that has rows; in a dry run one that stands for all. */
static int64_t expert_products(struct device *d, struct device_product *p,
                               const struct device_matrix *w, const struct buckets *b,
                               int64_t n_experts, struct rows x, struct rows y,
                               const int32_t *row)
{
    if (!device_runs(d)) {
        p[0] = (struct device_product){w, 0, x, y, NULL};
        return 1;
    }
    int64_t n = 0;
    for (int64_t e = 0; e < n_experts; e++) {
        const int32_t first = b->first[e], n_rows = b->first[e + 1] - first;
        if (n_rows)
            p[n++] = (struct device_product){w, e, x, rows_slice(y, first, n_rows), row + first};
    }
    return n;
}

void expert_mix(struct device *d, const struct expert_layer *l, struct rows x,
                const struct expert_choice *c, enum device_glu act, float limit, struct rows out,
                uint64_t *hits)
{
    const size_t mark = device_mark(d);
    const int64_t n = x.n * c->k;
    const struct buckets b = make_buckets(d, c, x.n, l->n, hits);
    struct device_product *p = device_bytes(d, (size_t)(2 * l->n) * sizeof *p);
    struct device_product dry[2];
    if (!p)
        p = dry;
    struct rows gate_up = device_rows(d, n, 2 * l->width), gate = rows_columns(gate_up, 0, l->width),
                up = rows_columns(gate_up, l->width, l->width);
    int64_t n_p;
    if (l->gate_up) {
        n_p = expert_products(d, p, l->gate_up, &b, l->n, x, gate_up, b.row);
    } else {
        n_p = expert_products(d, p, l->gate, &b, l->n, x, gate, b.row);
        n_p += expert_products(d, p + n_p, l->up, &b, l->n, x, up, b.row);
    }
    device_matmul(d, p, n_p);
    device_glu(d, act, limit, gate, gate, up);
    struct rows y = device_rows(d, n, out.width);
    n_p = expert_products(d, p, l->down, &b, l->n, gate, y, b.self);
    device_matmul(d, p, n_p);
    device_weighted_sum(d, out, y, b.slot, c->weight, c->k);
    device_release(d, mark);
}
