/* SPDX-License-Identifier: Apache-2.0 */
/* calls - each operation: its arguments, its scratch, its line of the profile. */
#include "device/cpu.h"
#include "device/near.h"
#include "device/ops.h"

#include "base/clock.h"

static uint64_t launches(struct device *d)
{
    return d->profiled && d->ops->launches ? d->ops->launches(d) : 0;
}

static void run(struct device *d, enum device_op op, const void *args)
{
    const size_t mark = d->used;
    const size_t need = d->ops->scratch(d, op, args);
    if (d->dry) {
        d->held = d->used > d->held ? d->used : d->held;
        device_near_want(d, device_cpu_near_bytes(d, op, args));
    }
    void *scratch = need ? device_bytes(d, need) : NULL;
    if (device_runs(d)) {
        const uint64_t n = launches(d), joins = pool_joins(d->pool);
        const uint64_t t0 = d->profiled ? clock_now() : 0;
        d->ops->run[op](d, args, scratch);
        if (d->profiled) {
            d->op_launches[d->stage][op] += launches(d) - n;
            d->op_joins[d->stage][op] += pool_joins(d->pool) - joins;
            d->op_ns[d->stage][op] += clock_now() - t0;
            d->op_calls[d->stage][op]++;
            const struct device_cost c = d->ops->cost(d, op, args);
            d->op_cost[d->stage][op].bytes += c.bytes;
            d->op_cost[d->stage][op].ops += c.ops;
        }
    }
    device_release(d, mark);
    device_may_stop(d, 0);
}

/* ---- operations ---- */

void device_embed(struct device *d, struct rows y, const struct device_matrix *m,
                  const int32_t *tokens, float scale)
{
    run(d, DEVICE_OP_embed, &(struct device_embed_args){y, m, tokens, scale});
}

void device_write(struct device *d, struct rows y, const float *src, int64_t src_stride)
{
    run(d, DEVICE_OP_write, &(struct device_write_args){y, src, src_stride});
}

void device_copy(struct device *d, struct rows y, struct rows x)
{
    run(d, DEVICE_OP_copy, &(struct device_copy_args){y, x});
}

void device_gather(struct device *d, struct rows y, struct rows x, const int32_t *row)
{
    run(d, DEVICE_OP_gather, &(struct device_gather_args){y, x, row});
}

struct device_routed device_route(struct device *d, const struct device_route *r,
                                  struct rows scores)
{
    const size_t n = (size_t)(scores.n * r->k);
    struct device_routed out = {.k = r->k,
                                .id = device_bytes(d, n * sizeof *out.id),
                                .weight = device_bytes(d, n * sizeof *out.weight)};
    if (r->pairs) {
        out.first = device_bytes(d, (size_t)(scores.width + 2) * sizeof *out.first);
        out.row = device_bytes(d, n * sizeof *out.row);
        out.slot = device_bytes(d, n * sizeof *out.slot);
    }
    run(d, DEVICE_OP_route, &(struct device_route_args){r, scores, out});
    return out;
}

void device_norm(struct device *d, struct rows y, struct rows x, const struct device_vector *w,
                 int64_t n_heads, float eps)
{
    run(d, DEVICE_OP_norm, &(struct device_norm_args){y, x, w, n_heads, eps});
}

void device_add_norm(struct device *d, struct rows x, struct rows y,
                     const struct device_vector *w, float eps, float scale)
{
    run(d, DEVICE_OP_add_norm, &(struct device_add_norm_args){x, y, w, eps, scale});
}

void device_add(struct device *d, struct rows x, struct rows y)
{
    run(d, DEVICE_OP_add, &(struct device_add_args){x, y});
}

void device_scale(struct device *d, struct rows y, struct rows x, float s)
{
    run(d, DEVICE_OP_scale, &(struct device_scale_args){y, x, s});
}

void device_mul(struct device *d, struct rows y, struct rows x)
{
    run(d, DEVICE_OP_mul, &(struct device_mul_args){y, x});
}

void device_mul_vector(struct device *d, struct rows y, const struct device_vector *w)
{
    run(d, DEVICE_OP_mul_vector, &(struct device_mul_vector_args){y, w});
}

void device_glu(struct device *d, enum device_glu act, float limit, struct rows y,
                struct rows gate, struct rows up)
{
    run(d, DEVICE_OP_glu, &(struct device_glu_args){act, limit, y, gate, up});
}

void device_softcap(struct device *d, struct rows y, float cap)
{
    run(d, DEVICE_OP_softcap, &(struct device_softcap_args){y, cap});
}

void device_softmax(struct device *d, struct rows y)
{
    run(d, DEVICE_OP_softmax, &(struct device_softmax_args){y});
}

struct device_rope device_rope_table(struct device *d, const int64_t *pos, int64_t n,
                                     const double *inv_freq, int64_t n_pairs)
{
    const struct device_rope r = {device_rows(d, n, 2 * n_pairs), n_pairs};
    run(d, DEVICE_OP_rope_table, &(struct device_rope_table_args){r.cs, pos, inv_freq, n_pairs});
    return r;
}

void device_rope(struct device *d, struct rows x, const struct device_rope *r, int64_t n_heads,
                 int64_t half)
{
    run(d, DEVICE_OP_rope, &(struct device_rope_args){x, r, n_heads, half});
}

void device_matmul(struct device *d, const struct device_product *p, int64_t n)
{
    if (d->watch)
        device_watch_products(d, p, n);
    run(d, DEVICE_OP_matmul, &(struct device_matmul_args){p, n, NULL, 0});
}

void device_matmul_columns(struct device *d, const struct device_product *p,
                           const struct device_columns *only, int64_t n_only)
{
    if (n_only)
        run(d, DEVICE_OP_matmul, &(struct device_matmul_args){p, 1, only, n_only});
    else
        device_matmul(d, p, 1);
}

void device_mlp(struct device *d, const struct device_mlp *m, struct rows x, struct rows y)
{
    if (d->watch)
        device_watch_mlp(d, m, x, y);
    else
        run(d, DEVICE_OP_mlp, &(struct device_mlp_args){m, x, y, NULL});
}

void device_mlp_both(struct device *d, const struct device_mlp_call *a,
                     const struct device_mlp_call *b)
{
    if (d->ops == &device_cpu_ops && !d->watch) {
        run(d, DEVICE_OP_mlp, &(struct device_mlp_args){a->m, a->x, a->y, b});
        return;
    }
    device_mlp(d, a->m, a->x, a->y);
    device_mlp(d, b->m, b->x, b->y);
}

void device_kv_append(struct device *d, const struct device_kv *kv,
                      const struct device_span *span, int64_t n_spans, struct rows k,
                      struct rows v)
{
    run(d, DEVICE_OP_kv_append, &(struct device_kv_append_args){kv, span, n_spans, k, v});
}

void device_attend(struct device *d, const struct device_kv *kv, const struct device_span *span,
                   int64_t n_spans, struct rows q, int64_t n_q_heads, struct rows out,
                   int64_t window, float scale)
{
    run(d, DEVICE_OP_attend,
        &(struct device_attend_args){kv, span, n_spans, q, n_q_heads, out, window, scale});
}

void device_probe(struct device *d, const struct device_kv *kv, const struct device_span *span,
                  struct rows q, int64_t n_q_heads, float scale, float *best, float *room,
                  int64_t stride)
{
    run(d, DEVICE_OP_probe,
        &(struct device_probe_args){kv, span, q, n_q_heads, scale, best, room, stride});
}

void device_shadow_append(struct device *d, const struct device_shadow *shadow,
                          const struct device_kv *kv, const struct device_span *span,
                          const struct device_span *own, int64_t n_spans, struct rows k)
{
    run(d, DEVICE_OP_shadow_append,
        &(struct device_shadow_append_args){shadow, kv, span, own, n_spans, k});
}

void device_select_pages(struct device *d, const struct device_page_select *p, struct rows q,
                         int64_t n_q_heads, float scale)
{
    run(d, DEVICE_OP_select_pages, &(struct device_select_pages_args){p, q, n_q_heads, scale});
}

void device_attend_selected(struct device *d, const struct device_kv *kv,
                          const struct device_page_select *p, int64_t head, struct rows q,
                          int64_t n_q_heads, struct rows out, float scale)
{
    run(d, DEVICE_OP_attend_selected,
        &(struct device_attend_selected_args){kv, p, head, q, n_q_heads, out, scale});
}

void device_weighted_sum(struct device *d, struct rows out, struct rows y, const int32_t *slot,
                         const float *weight, int64_t k)
{
    run(d, DEVICE_OP_weighted_sum, &(struct device_weighted_sum_args){out, y, slot, weight, k});
}

void device_sqrt_softplus(struct device *d, struct rows y)
{
    run(d, DEVICE_OP_sqrt_softplus, &(struct device_sqrt_softplus_args){y});
}

void device_rope_pairs(struct device *d, struct rows x, const struct device_rope *r,
                       int64_t n_heads, int64_t first, bool inverse)
{
    run(d, DEVICE_OP_rope_pairs, &(struct device_rope_pairs_args){x, r, n_heads, first, inverse});
}

void device_hc_pre(struct device *d, const struct device_hc *hc, struct rows x, struct rows mix,
                   struct rows out, struct rows gates)
{
    run(d, DEVICE_OP_hc_pre, &(struct device_hc_pre_args){hc, x, mix, out, gates});
}

void device_hc_post(struct device *d, const struct device_hc *hc, struct rows x, struct rows out,
                    struct rows gates, struct rows y)
{
    run(d, DEVICE_OP_hc_post, &(struct device_hc_post_args){hc, x, out, gates, y});
}

void device_rows_append(struct device *d, const struct device_stream *s,
                        const struct device_span *span, int64_t n_spans, struct rows x)
{
    run(d, DEVICE_OP_rows_append, &(struct device_rows_append_args){s, span, n_spans, x});
}

void device_rows_read(struct device *d, const struct device_stream *s,
                      const struct device_span *span, int64_t n_spans, struct rows y)
{
    run(d, DEVICE_OP_rows_read, &(struct device_rows_read_args){s, span, n_spans, y});
}

void device_compress(struct device *d, const struct device_compress *c,
                     const struct device_span *in, const struct device_span *out,
                     int64_t n_spans)
{
    run(d, DEVICE_OP_compress, &(struct device_compress_args){c, in, out, n_spans});
}

void device_hadamard(struct device *d, struct rows x, int64_t n_heads)
{
    run(d, DEVICE_OP_hadamard, &(struct device_hadamard_args){x, n_heads});
}

void device_select(struct device *d, const struct device_select *s,
                   const struct device_span *span, int64_t n_spans, struct rows q,
                   struct rows weight, int32_t *sel, int32_t *count)
{
    run(d, DEVICE_OP_select,
        &(struct device_select_args){s, span, n_spans, q, weight, sel, count});
}

void device_attend_latent(struct device *d, const struct device_latent *a,
                          const struct device_span *near, const struct device_span *far,
                          int64_t n_spans, struct rows q, int64_t n_heads, struct rows out,
                          float scale)
{
    run(d, DEVICE_OP_attend_latent,
        &(struct device_attend_latent_args){a, near, far, n_spans, q, n_heads, out, scale});
}

void device_clamp(struct device *d, struct rows y, struct rows x, float least, float most)
{
    run(d, DEVICE_OP_clamp, &(struct device_clamp_args){y, x, least, most});
}

void device_layer_norm(struct device *d, struct rows y, struct rows x,
                       const struct device_vector *w, const struct device_vector *b, float eps)
{
    run(d, DEVICE_OP_layer_norm, &(struct device_layer_norm_args){y, x, w, b, eps});
}

struct device_dense device_dense_make(struct device *d, int64_t n, int64_t n_heads, int64_t width)
{
    struct device_dense kv = {.n = n, .n_heads = n_heads, .width = width};
    size_t bytes = SIZE_MAX;
    device_cpu_dense_bytes(width, &kv.k_bytes, &kv.v_bytes);
    const size_t tiles = (size_t)num_div_up(n, DEVICE_DENSE_TILE) * (size_t)n_heads;
    if (!num_mul(tiles, kv.k_bytes + kv.v_bytes, &bytes))
        bytes = SIZE_MAX;
    kv.at = device_bytes(d, bytes);
    return kv;
}

void device_dense_put(struct device *d, const struct device_dense *to, int64_t row0, struct rows k,
                      struct rows v)
{
    run(d, DEVICE_OP_dense_put, &(struct device_dense_put_args){to, row0, k, v});
}

void device_dense_attend(struct device *d, const struct device_dense *kv, struct rows q,
                         struct rows out)
{
    run(d, DEVICE_OP_dense_attend, &(struct device_dense_attend_args){kv, q, out});
}

void device_each(struct device *d, int64_t n, int64_t work, device_each_fn *fn, void *arg)
{
    run(d, DEVICE_OP_each, &(struct device_each_args){n, work, fn, arg});
}

bool device_find_bad(struct device *d, struct rows x, int64_t *row, int64_t *column)
{
    if (!device_runs(d))
        return false;
    device_read_rows(d, x);
    for (int64_t i = 0; i < x.n; i++) {
        const int64_t j = d->kern.math.find_bad(x.at + i * x.stride, x.width);
        if (j >= 0) {
            *row = i;
            *column = j;
            return true;
        }
    }
    return false;
}
