/* SPDX-License-Identifier: Apache-2.0 */
/* uses - what each operation reads and writes of the memory that both sides have. */
#include "device/gpu/card.h"
#include "device/gpu/kernel.h"
#include "device/gpu/run.h"

struct uses {
    gpu_use_fn *fn;
    void *arg;
};

static void rows_use(const struct uses *u, struct rows r, int how)
{
    if (!r.at || r.n <= 0)
        return;
    const struct gpu_use use = {r.at, rows_bytes(r), how,
                                r.n == 1 ? true : r.stride - r.width < 16};
    u->fn(u->arg, &use);
}

static void list_use(const struct uses *u, const void *at, int64_t n_bytes, int how)
{
    if (!at || n_bytes <= 0)
        return;
    const struct gpu_use use = {at, (size_t)n_bytes, how | GPU_LIST, true};
    u->fn(u->arg, &use);
}

static int64_t ints(int64_t n) { return n * (int64_t)sizeof(int32_t); }
static int64_t floats(int64_t n) { return n * (int64_t)sizeof(float); }

static void span_uses(const struct uses *u, const struct device_span *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        list_use(u, s[i].first, ints(s[i].n), GPU_READS);
}

/* Rows that some spans may not have stay as they are. */
static int written(struct rows out, const struct device_span *s, int64_t n)
{
    return gpu_span_rows(s, n) == out.n ? GPU_WRITES : GPU_READS | GPU_WRITES;
}

static void matmul_uses(const struct uses *u, const struct device_matmul_args *a)
{
    for (int64_t i = 0; i < a->n; i++) {
        rows_use(u, a->p[i].x, GPU_READS);
        if (a->p[i].row)
            list_use(u, a->p[i].row, ints(a->p[i].y.n), GPU_READS);
    }
    for (int64_t i = 0; i < a->n; i++)
        rows_use(u, a->p[i].y, a->n_only ? GPU_READS | GPU_WRITES : GPU_WRITES);
}

static void mlp_uses(const struct uses *u, const struct device_mlp_args *a)
{
    const struct device_mlp *m = a->m;
    const int64_t n = m->gate->n_stack;
    rows_use(u, a->x, GPU_READS);
    if (n > 1) {
        list_use(u, m->first, ints(n + 1), GPU_READS);
        list_use(u, m->row, ints(a->y.n), GPU_READS);
        list_use(u, m->only, n, GPU_READS);
    }
    rows_use(u, a->y, m->only ? GPU_READS | GPU_WRITES : GPU_WRITES);
}

static void glu_uses(const struct uses *u, const struct device_glu_args *a)
{
    const int how = a->limit > 0 ? GPU_READS | GPU_WRITES : GPU_READS;
    rows_use(u, a->gate, how);
    rows_use(u, a->up, how);
    rows_use(u, a->y, GPU_WRITES);
}

static void attend_uses(const struct uses *u, const struct device_attend_args *a)
{
    rows_use(u, a->q, GPU_READS);
    span_uses(u, a->span, a->n_spans);
    rows_use(u, a->out, written(a->out, a->span, a->n_spans));
}

static void latent_uses(const struct uses *u, const struct device_attend_latent_args *a)
{
    rows_use(u, a->q, GPU_READS);
    if (a->a->far.width && a->a->top_k) {
        list_use(u, a->a->count, ints(a->q.n), GPU_READS);
        list_use(u, a->a->sel, ints(a->q.n * a->a->top_k), GPU_READS);
    }
    rows_use(u, a->out, written(a->out, a->near, a->n_spans));
}

static void select_uses(const struct uses *u, const struct device_select_args *a)
{
    rows_use(u, a->q, GPU_READS);
    rows_use(u, a->weight, GPU_READS);
    list_use(u, a->count, ints(a->q.n), GPU_WRITES | GPU_READS);
    list_use(u, a->sel, ints(a->q.n * a->s->top_k), GPU_WRITES | GPU_READS);
}

static void pages_uses(const struct uses *u, const struct device_select_pages_args *a)
{
    const struct device_page_select *p = a->select;
    rows_use(u, a->q, GPU_READS);
    list_use(u, p->chosen, ints(p->n_rows * p->n_heads * p->most), GPU_READS | GPU_WRITES);
    list_use(u, p->rest, floats(p->n_rows * a->n_q_heads * kern_attend_state(p->v_width)),
             GPU_READS | GPU_WRITES);
}

static void selected_uses(const struct uses *u, const struct device_attend_selected_args *a)
{
    const struct device_page_select *p = a->select;
    const int64_t group = a->n_q_heads / a->kv->n_heads;
    rows_use(u, a->q, GPU_READS);
    list_use(u, p->chosen, ints(p->n_rows * p->n_heads * p->most), GPU_READS);
    list_use(u, p->rest,
             floats(p->n_rows * p->n_heads * group * kern_attend_state(p->v_width)),
             GPU_READS | GPU_WRITES);
    rows_use(u, a->out, GPU_READS | GPU_WRITES);
}

static void probe_uses(const struct uses *u, const struct device_probe_args *a)
{
    rows_use(u, a->q, GPU_READS);
    list_use(u, a->best, floats(a->span->n * a->stride), GPU_READS | GPU_WRITES);
    list_use(u, a->room, floats(a->span->n * a->stride), GPU_READS | GPU_WRITES);
}

static void route_uses(const struct uses *u, const struct device_route_args *a)
{
    const struct device_route *r = a->route;
    const int64_t n = a->scores.n * r->k;
    rows_use(u, a->scores, GPU_READS);
    if (r->table)
        list_use(u, r->tokens, ints(a->scores.n), GPU_READS);
    list_use(u, a->out.id, ints(n), GPU_WRITES);
    list_use(u, a->out.weight, floats(n), GPU_WRITES);
    if (!r->pairs)
        return;
    list_use(u, a->out.first, ints(a->scores.width + 2), GPU_WRITES);
    list_use(u, a->out.row, ints(n), GPU_WRITES);
    list_use(u, a->out.slot, ints(n), GPU_WRITES);
}

static int64_t dense_bytes(const struct device_dense *k)
{
    return (k->n + DEVICE_DENSE_TILE - 1) / DEVICE_DENSE_TILE * k->n_heads *
           (int64_t)(k->k_bytes + k->v_bytes);
}

static void dense_put_uses(const struct uses *u, const struct device_dense_put_args *a)
{
    rows_use(u, a->k, GPU_READS);
    rows_use(u, a->v, GPU_READS);
    list_use(u, a->to->at, dense_bytes(a->to), GPU_READS | GPU_WRITES);
}

static void dense_attend_uses(const struct uses *u, const struct device_dense_attend_args *a)
{
    rows_use(u, a->q, GPU_READS);
    list_use(u, a->kv->at, dense_bytes(a->kv), GPU_READS);
    rows_use(u, a->out, GPU_WRITES);
}

/* Operations that read x and write y, and those that change their rows. */
#define USES_XY(name)                                     \
    case DEVICE_OP_##name: {                              \
        const struct device_##name##_args *a = args;      \
        rows_use(&u, a->x, GPU_READS);                    \
        rows_use(&u, a->y, GPU_WRITES);                   \
        return;                                           \
    }
#define USES_CHANGED(name, rows)                          \
    case DEVICE_OP_##name: {                              \
        const struct device_##name##_args *a = args;      \
        rows_use(&u, a->rows, GPU_READS | GPU_WRITES);    \
        return;                                           \
    }
/* Changes the first with the second. */
#define USES_WITH(name, first, second)                    \
    case DEVICE_OP_##name: {                              \
        const struct device_##name##_args *a = args;      \
        rows_use(&u, a->first, GPU_READS | GPU_WRITES);   \
        rows_use(&u, a->second, GPU_READS);               \
        return;                                           \
    }

static void row_uses(enum device_op op, const void *args, struct uses u)
{
    switch (op) {
        USES_XY(copy)
        USES_XY(norm)
        USES_XY(scale)
        USES_XY(clamp)
        USES_XY(layer_norm)
        USES_CHANGED(softcap, y)
        USES_CHANGED(softmax, y)
        USES_CHANGED(sqrt_softplus, y)
        USES_CHANGED(mul_vector, y)
        USES_CHANGED(hadamard, x)
        USES_WITH(add, x, y)
        USES_WITH(mul, y, x)
        USES_WITH(rope, x, r->cs)
        USES_WITH(rope_pairs, x, r->cs)
    case DEVICE_OP_glu:
        glu_uses(&u, args);
        return;
    case DEVICE_OP_add_norm: {
        const struct device_add_norm_args *a = args;
        rows_use(&u, a->x, GPU_READS | GPU_WRITES);
        rows_use(&u, a->y, GPU_READS | GPU_WRITES);
        return;
    }
    case DEVICE_OP_gather: {
        const struct device_gather_args *a = args;
        rows_use(&u, a->x, GPU_READS);
        list_use(&u, a->row, ints(a->y.n), GPU_READS);
        rows_use(&u, a->y, GPU_WRITES);
        return;
    }
    case DEVICE_OP_weighted_sum: {
        const struct device_weighted_sum_args *a = args;
        rows_use(&u, a->y, GPU_READS);
        list_use(&u, a->slot, ints(a->out.n * a->k), GPU_READS);
        list_use(&u, a->weight, floats(a->out.n * a->k), GPU_READS);
        rows_use(&u, a->out, GPU_WRITES);
        return;
    }
    case DEVICE_OP_hc_pre: {
        const struct device_hc_pre_args *a = args;
        rows_use(&u, a->x, GPU_READS);
        rows_use(&u, a->mix, GPU_READS);
        rows_use(&u, a->out, GPU_WRITES);
        rows_use(&u, a->gates, GPU_WRITES);
        return;
    }
    case DEVICE_OP_hc_post: {
        const struct device_hc_post_args *a = args;
        rows_use(&u, a->x, GPU_READS);
        rows_use(&u, a->out, GPU_READS);
        rows_use(&u, a->gates, GPU_READS);
        rows_use(&u, a->y, GPU_WRITES);
        return;
    }
    default:
        return;
    }
}

/* Of operations with pages: those of the arena. */
static void page_uses(enum device_op op, const void *args, struct uses u)
{
    switch (op) {
    case DEVICE_OP_kv_append: {
        const struct device_kv_append_args *a = args;
        rows_use(&u, a->k, GPU_READS);
        rows_use(&u, a->v, GPU_READS);
        return;
    }
    case DEVICE_OP_rows_append: {
        const struct device_rows_append_args *a = args;
        rows_use(&u, a->x, GPU_READS);
        return;
    }
    case DEVICE_OP_rows_read: {
        const struct device_rows_read_args *a = args;
        rows_use(&u, a->y, GPU_WRITES);
        return;
    }
    case DEVICE_OP_compress: {
        const struct device_compress_args *a = args;
        rows_use(&u, a->c->step, GPU_READS);
        return;
    }
    case DEVICE_OP_shadow_append: {
        const struct device_shadow_append_args *a = args;
        rows_use(&u, a->k, GPU_READS);
        return;
    }
    case DEVICE_OP_attend:
        attend_uses(&u, args);
        return;
    case DEVICE_OP_attend_latent:
        latent_uses(&u, args);
        return;
    case DEVICE_OP_select:
        select_uses(&u, args);
        return;
    case DEVICE_OP_select_pages:
        pages_uses(&u, args);
        return;
    case DEVICE_OP_attend_selected:
        selected_uses(&u, args);
        return;
    case DEVICE_OP_probe:
        probe_uses(&u, args);
        return;
    default:
        row_uses(op, args, u);
        return;
    }
}

void device_gpu_uses(enum device_op op, const void *args, gpu_use_fn *fn, void *arg)
{
    const struct uses u = {fn, arg};
    switch (op) {
    case DEVICE_OP_embed: {
        const struct device_embed_args *a = args;
        list_use(&u, a->tokens, ints(a->y.n), GPU_READS);
        rows_use(&u, a->y, GPU_WRITES);
        return;
    }
    case DEVICE_OP_write: {
        const struct device_write_args *a = args;
        list_use(&u, a->src, floats((a->y.n - 1) * a->src_stride + a->y.width), GPU_READS);
        rows_use(&u, a->y, GPU_WRITES);
        return;
    }
    case DEVICE_OP_rope_table: {
        const struct device_rope_table_args *a = args;
        rows_use(&u, a->cs, GPU_WRITES);
        return;
    }
    case DEVICE_OP_matmul:
        matmul_uses(&u, args);
        return;
    case DEVICE_OP_mlp:
        mlp_uses(&u, args);
        return;
    case DEVICE_OP_route:
        route_uses(&u, args);
        return;
    case DEVICE_OP_dense_put:
        dense_put_uses(&u, args);
        return;
    case DEVICE_OP_dense_attend:
        dense_attend_uses(&u, args);
        return;
    default:
        page_uses(op, args, u);
        return;
    }
}
