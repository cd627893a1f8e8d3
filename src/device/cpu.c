/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu - the operations of the CPU device but products and attention.
 *
 * Rows are independent of each other, so how they are shared out among threads is free;
 * element-wise operations are shared out by column blocks too.
 */
#include "base/clock.h"
#include "base/num.h"
#include "device/cpu.h"
#include "device/ops.h"
#include <math.h>
#include <string.h>

enum {
    COLUMN_BLOCK = 4096, /* floats of an element-wise chunk */
};

/* ---- by row ---- */

struct by_row {
    struct device *d;
    const void *args;
    int64_t n, grain;
    void (*row)(const struct kern_math_table *k, const void *args, int64_t i);
};

static void by_row_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct by_row *b = arg;
    const int64_t end = num_min(b->n, (chunk + 1) * b->grain);
    for (int64_t i = chunk * b->grain; i < end; i++)
        b->row(&b->d->kern.math, b->args, i);
}

static void by_row(struct device *d, const void *args, int64_t n, int64_t width,
                   void (*row)(const struct kern_math_table *, const void *, int64_t))
{
    const int64_t grain = num_max(1, num_min(num_div_up(DEVICE_SMALL_WORK / 4, num_max(1, width)),
                                             num_div_up(n, 4 * pool_size(d->pool))));
    struct by_row b = {d, args, n, grain, row};
    device_cpu_for(d, num_div_up(n, grain), n * width, by_row_chunk, &b);
}

static float *at(struct rows r, int64_t i)
{
    return r.at + i * r.stride;
}

static void embed_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    const struct device_embed_args *a = args;
    struct kern_matrix m = a->m->m;
    int64_t end;
    m.at = device_matrix_panels(a->m, 0, a->tokens[i] / KERN_PANEL, &end);
    kern_unpack_row(&m, a->tokens[i], at(a->y, i));
    if (a->m->scale)
        k->scale(at(a->y, i), at(a->y, i), a->m->scale[0], a->y.width);
    if (a->scale < 1.0f || a->scale > 1.0f)
        k->scale(at(a->y, i), at(a->y, i), a->scale, a->y.width);
}

static void cpu_embed(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_embed_args *a = args;
    by_row(d, a, a->y.n, 8 * a->y.width, embed_row);
}

static void norm_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    const struct device_norm_args *a = args;
    const int64_t n = a->x.width / a->n_heads;
    kern_touch(at(a->y, i), at(a->x, i), a->x.width);
    if (a->w)
        kern_touch_in(a->w->at, n);
    for (int64_t h = 0; h < a->n_heads; h++)
        k->norm(at(a->y, i) + h * n, at(a->x, i) + h * n, a->w ? a->w->at : NULL, n, a->eps);
}

static void cpu_norm(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_norm_args *a = args;
    by_row(d, a, a->x.n, a->x.width, norm_row);
}

static void add_norm_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    const struct device_add_norm_args *a = args;
    kern_touch_in(a->w->at, a->x.width);
    kern_touch_out(at(a->y, i), a->x.width);
    kern_touch_out(at(a->x, i), a->x.width);
    k->norm(at(a->y, i), at(a->y, i), a->w->at, a->x.width, a->eps);
    k->add(at(a->x, i), at(a->y, i), a->x.width);
    if (a->scale < 1.0f || a->scale > 1.0f)
        k->scale(at(a->x, i), at(a->x, i), a->scale, a->x.width);
}

static void cpu_add_norm(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_add_norm_args *a = args;
    by_row(d, a, a->x.n, 2 * a->x.width, add_norm_row);
}

static void softmax_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    const struct device_softmax_args *a = args;
    kern_touch_out(at(a->y, i), a->y.width);
    k->softmax(at(a->y, i), at(a->y, i), a->y.width);
}

static void cpu_softmax(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_softmax_args *a = args;
    by_row(d, a, a->y.n, 4 * a->y.width, softmax_row);
}

static void rope_table_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    (void)k;
    const struct device_rope_table_args *a = args;
    kern_rope_angles(at(a->cs, i), a->pos[i], a->inv_freq, a->n_pairs);
}

static void cpu_rope_table(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_rope_table_args *a = args;
    by_row(d, a, a->cs.n, 16 * a->cs.width, rope_table_row);
}

static void rope_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    const struct device_rope_args *a = args;
    const int64_t n = a->x.width / a->n_heads;
    kern_touch_in(at(a->r->cs, i), 2 * a->r->n_pairs);
    kern_touch_out(at(a->x, i), a->x.width);
    for (int64_t h = 0; h < a->n_heads; h++)
        k->rope(at(a->x, i) + h * n, at(a->r->cs, i), a->r->n_pairs, a->half);
}

static void cpu_rope(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_rope_args *a = args;
    by_row(d, a, a->x.n, a->x.width, rope_row);
}

static void rope_pairs_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    const struct device_rope_pairs_args *a = args;
    const int64_t n = a->x.width / a->n_heads;
    kern_touch_in(at(a->r->cs, i), 2 * a->r->n_pairs);
    kern_touch_out(at(a->x, i), a->x.width);
    for (int64_t h = 0; h < a->n_heads; h++)
        k->rope_pairs(at(a->x, i) + h * n + a->first, at(a->r->cs, i), a->r->n_pairs, a->inverse);
}

static void cpu_rope_pairs(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_rope_pairs_args *a = args;
    by_row(d, a, a->x.n, a->n_heads * a->r->n_pairs * 4, rope_pairs_row);
}

static void hadamard_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    (void)k;
    const struct device_hadamard_args *a = args;
    const int64_t n = a->x.width / a->n_heads;
    for (int64_t h = 0; h < a->n_heads; h++)
        kern_row_hadamard(at(a->x, i) + h * n, n);
}

static void cpu_hadamard(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_hadamard_args *a = args;
    by_row(d, a, a->x.n, 8 * a->x.width, hadamard_row);
}

static void sqrt_softplus_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    const struct device_sqrt_softplus_args *a = args;
    kern_touch_out(at(a->y, i), a->y.width);
    k->sqrt_softplus(at(a->y, i), a->y.width);
}

static void cpu_sqrt_softplus(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_sqrt_softplus_args *a = args;
    by_row(d, a, a->y.n, 64 * a->y.width, sqrt_softplus_row);
}

static void mul_vector_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    const struct device_mul_vector_args *a = args;
    kern_touch(at(a->y, i), a->w->at, a->y.width);
    k->mul(at(a->y, i), a->w->at, a->y.width);
}

static void cpu_mul_vector(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_mul_vector_args *a = args;
    by_row(d, a, a->y.n, a->y.width, mul_vector_row);
}

static void write_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    (void)k;
    const struct device_write_args *a = args;
    memcpy(at(a->y, i), a->src + i * a->src_stride, (size_t)a->y.width * sizeof(float));
}

static void cpu_write(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_write_args *a = args;
    by_row(d, a, a->y.n, a->y.width, write_row);
}

static void copy_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    (void)k;
    const struct device_copy_args *a = args;
    memcpy(at(a->y, i), at(a->x, i), (size_t)a->y.width * sizeof(float));
}

static void cpu_copy(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_copy_args *a = args;
    by_row(d, a, a->y.n, a->y.width, copy_row);
}

static void gather_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    (void)k;
    const struct device_gather_args *a = args;
    memcpy(at(a->y, i), at(a->x, a->row[i]), (size_t)a->y.width * sizeof(float));
}

static void cpu_gather(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_gather_args *a = args;
    by_row(d, a, a->y.n, a->y.width, gather_row);
}

static void weighted_sum_row(const struct kern_math_table *k, const void *args, int64_t i)
{
    const struct device_weighted_sum_args *a = args;
    memset(at(a->out, i), 0, (size_t)a->out.width * sizeof(float));
    for (int64_t j = i * a->k; j < (i + 1) * a->k; j++) {
        kern_touch(at(a->out, i), at(a->y, a->slot[j]), a->out.width);
        k->add_scaled(at(a->out, i), at(a->y, a->slot[j]), a->weight[j], a->out.width);
    }
}

static void cpu_weighted_sum(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_weighted_sum_args *a = args;
    by_row(d, a, a->out.n, a->k * a->out.width, weighted_sum_row);
}

/* ---- element-wise ---- */

struct elements {
    struct device *d;
    const void *args;
    int64_t width, n_blocks;
    void (*block)(const struct kern_math_table *k, const void *args, int64_t i, int64_t c,
                  int64_t n);
};

static void elements_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct elements *e = arg;
    const int64_t c = chunk % e->n_blocks * COLUMN_BLOCK;
    e->block(&e->d->kern.math, e->args, chunk / e->n_blocks, c,
             num_min(COLUMN_BLOCK, e->width - c));
}

static void elements(struct device *d, const void *args, struct rows y, int64_t cost,
                     void (*block)(const struct kern_math_table *, const void *, int64_t, int64_t,
                                   int64_t))
{
    struct elements e = {d, args, y.width, num_div_up(y.width, COLUMN_BLOCK), block};
    device_cpu_for(d, y.n * e.n_blocks, y.n * y.width * cost, elements_chunk, &e);
}

static void add_block(const struct kern_math_table *k, const void *args, int64_t i, int64_t c,
                      int64_t n)
{
    const struct device_add_args *a = args;
    kern_touch(at(a->x, i) + c, at(a->y, i) + c, n);
    k->add(at(a->x, i) + c, at(a->y, i) + c, n);
}

static void cpu_add(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    elements(d, args, ((const struct device_add_args *)args)->x, 1, add_block);
}

static void scale_block(const struct kern_math_table *k, const void *args, int64_t i, int64_t c,
                        int64_t n)
{
    const struct device_scale_args *a = args;
    kern_touch(at(a->y, i) + c, at(a->x, i) + c, n);
    k->scale(at(a->y, i) + c, at(a->x, i) + c, a->s, n);
}

static void cpu_scale(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    elements(d, args, ((const struct device_scale_args *)args)->y, 1, scale_block);
}

static void mul_block(const struct kern_math_table *k, const void *args, int64_t i, int64_t c,
                      int64_t n)
{
    const struct device_mul_args *a = args;
    kern_touch(at(a->y, i) + c, at(a->x, i) + c, n);
    k->mul(at(a->y, i) + c, at(a->x, i) + c, n);
}

static void cpu_mul(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    elements(d, args, ((const struct device_mul_args *)args)->y, 1, mul_block);
}

static void glu_block(const struct kern_math_table *k, const void *args, int64_t i, int64_t c,
                      int64_t n)
{
    const struct device_glu_args *a = args;
    device_cpu_gate(k, a->act, a->limit, at(a->y, i) + c, at(a->gate, i) + c, at(a->up, i) + c, n);
}

static void cpu_glu(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    elements(d, args, ((const struct device_glu_args *)args)->y, 8, glu_block);
}

static void softcap_block(const struct kern_math_table *k, const void *args, int64_t i, int64_t c,
                          int64_t n)
{
    const struct device_softcap_args *a = args;
    kern_touch_out(at(a->y, i) + c, n);
    k->softcap(at(a->y, i) + c, a->cap, n);
}

static void cpu_softcap(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    elements(d, args, ((const struct device_softcap_args *)args)->y, 8, softcap_block);
}

static size_t cpu_scratch(const struct device *d, enum device_op op, const void *args)
{
    switch (op) {
    case DEVICE_OP_matmul:
        return device_cpu_matmul_scratch(d, args);
    case DEVICE_OP_mlp:
        return device_cpu_mlp_scratch(d, args);
    case DEVICE_OP_attend:
        return device_cpu_attend_scratch(d, args);
    case DEVICE_OP_select_pages:
        return device_cpu_select_pages_scratch(d, args);
    case DEVICE_OP_attend_selected:
        return device_cpu_attend_selected_scratch(d, args);
    case DEVICE_OP_compress:
        return device_cpu_compress_scratch(d, args);
    case DEVICE_OP_select:
        return device_cpu_select_scratch(d, args);
    case DEVICE_OP_attend_latent:
        return device_cpu_attend_latent_scratch(d, args);
    case DEVICE_OP_dense_put:
        return device_cpu_dense_put_scratch(d, args);
    case DEVICE_OP_dense_attend:
        return device_cpu_dense_attend_scratch(d, args);
    default:
        return 0;
    }
}

size_t device_cpu_near_bytes(const struct device *d, enum device_op op, const void *args)
{
    return op == DEVICE_OP_matmul ? device_cpu_matmul_codes(d, args)
           : op == DEVICE_OP_mlp  ? device_cpu_mlp_codes(d, args)
           : op == DEVICE_OP_attend_latent ? device_cpu_attend_latent_near(d, args) : 0;
}

static struct device_cost cpu_cost(const struct device *d, enum device_op op, const void *args)
{
    switch (op) {
    case DEVICE_OP_matmul:
        return device_cpu_matmul_cost(args);
    case DEVICE_OP_mlp:
        return device_cpu_mlp_cost(args);
    case DEVICE_OP_attend:
        return device_cpu_attend_cost(d, args);
    case DEVICE_OP_select_pages:
        return device_cpu_select_pages_cost(args);
    case DEVICE_OP_attend_selected:
        return device_cpu_attend_selected_cost(args);
    case DEVICE_OP_dense_attend:
        return device_cpu_dense_attend_cost(args);
    default:
        return (struct device_cost){0, 0};
    }
}

const struct device_ops device_cpu_ops = {
    .name = "cpu",
    .scratch = cpu_scratch,
    .cost = cpu_cost,
    .run =
        {
            [DEVICE_OP_embed] = cpu_embed,
            [DEVICE_OP_write] = cpu_write,
            [DEVICE_OP_copy] = cpu_copy,
            [DEVICE_OP_norm] = cpu_norm,
            [DEVICE_OP_add_norm] = cpu_add_norm,
            [DEVICE_OP_add] = cpu_add,
            [DEVICE_OP_scale] = cpu_scale,
            [DEVICE_OP_mul] = cpu_mul,
            [DEVICE_OP_mul_vector] = cpu_mul_vector,
            [DEVICE_OP_glu] = cpu_glu,
            [DEVICE_OP_softcap] = cpu_softcap,
            [DEVICE_OP_softmax] = cpu_softmax,
            [DEVICE_OP_rope_table] = cpu_rope_table,
            [DEVICE_OP_rope] = cpu_rope,
            [DEVICE_OP_matmul] = device_cpu_matmul,
            [DEVICE_OP_mlp] = device_cpu_mlp,
            [DEVICE_OP_kv_append] = device_cpu_kv_append,
            [DEVICE_OP_attend] = device_cpu_attend,
            [DEVICE_OP_weighted_sum] = cpu_weighted_sum,
            [DEVICE_OP_sqrt_softplus] = cpu_sqrt_softplus,
            [DEVICE_OP_rope_pairs] = cpu_rope_pairs,
            [DEVICE_OP_hc_pre] = device_cpu_hc_pre,
            [DEVICE_OP_hc_post] = device_cpu_hc_post,
            [DEVICE_OP_rows_append] = device_cpu_rows_append,
            [DEVICE_OP_rows_read] = device_cpu_rows_read,
            [DEVICE_OP_compress] = device_cpu_compress,
            [DEVICE_OP_select] = device_cpu_select,
            [DEVICE_OP_attend_latent] = device_cpu_attend_latent,
            [DEVICE_OP_hadamard] = cpu_hadamard,
            [DEVICE_OP_shadow_append] = device_cpu_shadow_append,
            [DEVICE_OP_select_pages] = device_cpu_select_pages,
            [DEVICE_OP_attend_selected] = device_cpu_attend_selected,
            [DEVICE_OP_probe] = device_cpu_probe,
            [DEVICE_OP_clamp] = device_cpu_clamp,
            [DEVICE_OP_layer_norm] = device_cpu_layer_norm,
            [DEVICE_OP_dense_put] = device_cpu_dense_put,
            [DEVICE_OP_dense_attend] = device_cpu_dense_attend,
            [DEVICE_OP_each] = device_cpu_each,
            [DEVICE_OP_route] = device_cpu_route,
            [DEVICE_OP_gather] = cpu_gather,
        },
};
