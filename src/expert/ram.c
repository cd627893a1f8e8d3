/* SPDX-License-Identifier: Apache-2.0 */
/* ram - the tier whose experts are all in the device's memory: stacks of matrices. */
#include "expert/expert.h"

/* One product for each expert that has rows; in a dry run one that stands for all. */
static int64_t products(const struct expert_eval *v, struct device_product *p, const struct device_matrix *w,
                        struct rows x, struct rows y, const int32_t *row)
{
    if (!device_runs(v->d)) {
        p[0] = (struct device_product){w, 0, x, y, NULL};
        return 1;
    }
    int64_t n = 0;
    for (int64_t e = 0; e < v->layer->n; e++) {
        const int32_t first = v->pairs.first[e], n_rows = v->pairs.first[e + 1] - first;
        if (n_rows)
            p[n++] = (struct device_product){w, e, x, rows_slice(y, first, n_rows), row + first};
    }
    return n;
}

static struct rows ram_end(struct expert_eval *v)
{
    const struct expert_layer *l = v->layer;
    const int64_t n_pairs = v->x.n * v->choice.k;
    struct device *d = v->d;
    struct device_product *p = device_bytes(d, (size_t)(2 * l->n) * sizeof *p), dry[2];
    if (!p)
        p = dry;
    struct rows gate_up = device_rows(d, n_pairs, 2 * l->width), gate = rows_columns(gate_up, 0, l->width),
                up = rows_columns(gate_up, l->width, l->width);
    int64_t n;
    if (l->gate_up) {
        n = products(v, p, l->gate_up, v->x, gate_up, v->pairs.row);
    } else {
        n = products(v, p, l->gate, v->x, gate, v->pairs.row);
        n += products(v, p + n, l->up, v->x, up, v->pairs.row);
    }
    device_matmul(d, p, n);
    device_glu(d, v->act, v->limit, gate, gate, up);
    /* Only now, so that it takes the place of what the products before needed. */
    const struct rows y = device_rows(d, n_pairs, v->out.width);
    n = products(v, p, l->down, gate, y, v->pairs.self);
    device_matmul(d, p, n);
    return y;
}

const struct expert_tier expert_ram = {.name = "ram", .end = ram_end};
