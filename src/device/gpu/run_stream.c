/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_stream - operations of DeepSeek V4 and of experts on the card: the choice of experts,
 * hyper-connections, compressors, indexers, latent attention.
 *
 * Scores and states go in pieces of rows that have room in the scratch.
 */
#include "base/num.h"
#include "device/gpu/memory.h"
#include "device/gpu/run.h"
#include "kern/kern.h"
#include <math.h>

enum { SCRATCH_FLOATS = 1 << 22, MOST_ROWS = 65535 };

/* ---- the choice of experts ---- */

/* What the table says for each row's token, as a table of these rows alone, and the rows' numbers
 * in it. */
static bool route_table(struct device *d, const struct device_route *r, int64_t n,
                        struct route_choose_args *k)
{
    int32_t *list = device_gpu_room(d->gpu, (size_t)(n * (r->k + 1)) * sizeof *list);
    device_gpu_read(d, r->tokens, (size_t)n * sizeof *r->tokens);
    for (int64_t i = 0; list && i < n; i++) {
        list[n * r->k + i] = (int32_t)i;
        for (int64_t j = 0; j < r->k; j++)
            list[i * r->k + j] = r->table[r->tokens[i] * r->k + j];
    }
    const int32_t *at =
        list ? device_gpu_stage(d, list, (size_t)(n * (r->k + 1)) * sizeof *list) : NULL;
    if (!at)
        return false;
    k->table = at;
    k->tokens = at + n * r->k;
    return true;
}

/* The host counts; which waits. */
static void count_hits(struct device *d, const struct device_route_args *a)
{
    const int32_t *first = a->out.first;
    const size_t n_bytes = (size_t)(a->scores.width + 2) * sizeof *first;
    if (!device_gpu_get(d, a->out.first, device_gpu_address(d->gpu, first), n_bytes) ||
        !device_gpu_wait(d))
        return;
    for (int64_t e = 0; e < a->scores.width; e++)
        a->route->hits[e] += (uint64_t)(first[e + 1] - first[e]);
}

GPU_RUN(route)
{
    const struct device_route_args *a = args;
    const struct device_route *r = a->route;
    const int64_t n = a->scores.n, n_ids = a->scores.width;
    (void)scratch;
    if (n_ids > ROUTE_MOST_IDS || r->k > ROUTE_MOST_USED || (r->bias && !r->bias->card) ||
        (r->factor && !r->factor->card) || !device_gpu_has(d, GPU_K_route_choose) ||
        !device_gpu_has(d, GPU_K_route_pairs))
        return false;
    struct route_choose_args k = {.score = gpu_rows(d, a->scores),
                                  .bias = r->bias ? r->bias->card : NULL,
                                  .factor = r->factor ? r->factor->card : NULL,
                                  .id = device_gpu_address(d->gpu, a->out.id),
                                  .weight = device_gpu_address(d->gpu, a->out.weight),
                                  .stride = a->scores.stride,
                                  .n_rows = (int32_t)n,
                                  .n_ids = (int32_t)n_ids,
                                  .k = (int32_t)r->k,
                                  .normalise = r->normalise,
                                  .scale = r->scale};
    if (r->table && !route_table(d, r, n, &k))
        return d->gpu->lost;
    (void)GPU_LAUNCH(d, route_choose, route_choose_grid(&k), &k);
    if (!r->pairs)
        return true;
    const struct route_pairs_args p = {.id = k.id,
                                       .first = device_gpu_address(d->gpu, a->out.first),
                                       .row = device_gpu_address(d->gpu, a->out.row),
                                       .slot = device_gpu_address(d->gpu, a->out.slot),
                                       .n_rows = k.n_rows,
                                       .n_ids = k.n_ids,
                                       .k = k.k};
    (void)GPU_LAUNCH(d, route_pairs, route_pairs_grid(&p), &p);
    if (r->hits)
        count_hits(d, a);
    return true;
}

/* ---- hyper-connections ---- */

GPU_RUN(hc_pre)
{
    const struct device_hc_pre_args *a = args;
    const struct device_hc *hc = a->hc;
    (void)scratch;
    if (hc->n > HC_MOST || !hc->scale->card || !hc->base->card ||
        !device_gpu_has(d, GPU_K_hc_pre))
        return false;
    const struct hc_pre_args k = {.x = gpu_rows(d, a->x),
                                  .mix = gpu_rows(d, a->mix),
                                  .scale = hc->scale->card,
                                  .base = hc->base->card,
                                  .out = gpu_rows(d, a->out),
                                  .gates = a->gates.at ? gpu_rows(d, a->gates) : NULL,
                                  .x_stride = a->x.stride,
                                  .mix_stride = a->mix.stride,
                                  .out_stride = a->out.stride,
                                  .gates_stride = a->gates.stride,
                                  .n_rows = (int32_t)a->x.n,
                                  .n = (int32_t)hc->n,
                                  .width = (int32_t)a->out.width,
                                  .iterations = hc->iterations,
                                  .eps = hc->eps,
                                  .norm_eps = hc->norm_eps};
    (void)GPU_LAUNCH(d, hc_pre, hc_pre_grid(&k), &k);
    return true;
}

GPU_RUN(hc_post)
{
    const struct device_hc_post_args *a = args;
    (void)scratch;
    if (!device_gpu_has(d, GPU_K_hc_post))
        return false;
    const struct hc_post_args k = {.x = gpu_rows(d, a->x),
                                   .out = gpu_rows(d, a->out),
                                   .gates = gpu_rows(d, a->gates),
                                   .y = gpu_rows(d, a->y),
                                   .x_stride = a->x.stride,
                                   .out_stride = a->out.stride,
                                   .gates_stride = a->gates.stride,
                                   .y_stride = a->y.stride,
                                   .n_rows = (int32_t)a->x.n,
                                   .n = (int32_t)a->hc->n,
                                   .width = (int32_t)a->out.width};
    (void)GPU_LAUNCH(d, hc_post, hc_post_grid(&k), &k);
    return true;
}

/* ---- compressors ---- */

static bool is_power(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

/* Angles of the first position of each block that the spans complete, on the card; NULL: no. */
static const float *block_angles(struct device *d, const struct device_compress_args *a,
                                 int64_t n_blocks)
{
    const struct device_compress *c = a->c;
    const int64_t each = 2 * c->n_pairs;
    float *cs = device_gpu_room(d->gpu, (size_t)(n_blocks * each + 1) * sizeof *cs), *at = cs;
    for (int64_t s = 0; cs && s < a->n_spans; s++) {
        const struct device_span *in = &a->in[s];
        const int64_t n = compress_blocks(in->pos0, in->n, c->ratio);
        for (int64_t i = 0; i < n; i++, at += each)
            kern_rope_angles(at, (in->pos0 / c->ratio + i) * c->ratio, c->inv_freq, c->n_pairs);
    }
    return cs ? device_gpu_stage(d, cs, (size_t)(n_blocks * each + 1) * sizeof *cs) : NULL;
}

GPU_RUN(compress)
{
    const struct device_compress_args *a = args;
    const struct device_compress *c = a->c;
    const struct device_stream *in = &c->in, *out = &c->out;
    const int64_t members = c->overlap ? 2 * c->ratio : c->ratio, width = out->width;
    int64_t n = 0;
    (void)scratch;
    if (width > COMPRESS_MOST_WIDTH || members > COMPRESS_MOST_MEMBERS || !c->norm->card ||
        in->codec != KERN_KV_F32 || (c->hadamard && !is_power(width)) ||
        !device_gpu_has(d, GPU_K_compress))
        return false;
    for (int64_t i = 0; i < a->n_spans; i++)
        n += compress_blocks(a->in[i].pos0, a->in[i].n, c->ratio);
    if (!n)
        return true;
    const float *cs = block_angles(d, a, n);
    const struct gpu_span *from = cs ? device_gpu_spans(d, a->in, a->n_spans, in->every, 0) : NULL;
    const struct gpu_span *to =
        from ? device_gpu_spans(d, a->out, a->n_spans, out->every, 0) : NULL;
    if (!to)
        return d->gpu->lost;
    const struct compress_args k = {
        .in = from, .out = to, .norm = c->norm->card, .cs = cs,
        .step = c->step.at ? gpu_rows(d, c->step) : NULL, .step_stride = c->step.stride,
        .in_at = (int64_t)in->at, .out_at = (int64_t)out->at,
        .in_bytes = (int64_t)kern_row_bytes(in->codec, in->width, in->tail),
        .out_bytes = (int64_t)kern_row_bytes(out->codec, width, out->tail),
        .n_blocks = (int32_t)n, .ratio = (int32_t)c->ratio, .overlap = c->overlap,
        .width = (int32_t)width, .n_pairs = (int32_t)c->n_pairs, .in_every = (int32_t)in->every,
        .out_every = (int32_t)out->every, .out_codec = (int32_t)out->codec,
        .out_tail = (int32_t)out->tail, .eps = c->eps,
        .turn = c->hadamard ? (float)(1.0 / sqrt((double)width)) : 0.0f};
    (void)GPU_LAUNCH(d, compress, compress_grid(&k), &k);
    return true;
}

/* ---- indexers ---- */

/* The most keys that a row sees. */
static int64_t most_keys(const struct device_select_args *a)
{
    int64_t n = 1;
    for (int64_t i = 0; i < a->n_spans; i++)
        n = num_max(n, (a->span[i].pos0 + a->span[i].n) / a->s->keys.every);
    return n;
}

static int64_t score_rows(const struct device_select_args *a, int64_t keys)
{
    return num_max(1, num_min(num_min(a->q.n, MOST_ROWS), SCRATCH_FLOATS / keys));
}

static size_t query_bytes(const struct device_select_args *a)
{
    const struct device_select *s = a->s;
    const size_t n = s->keys.codec == KERN_KV_FP4
                         ? (size_t)(a->q.n * s->n_heads) * kern_query4_bytes(s->keys.width)
                         : 0;
    return (n + 63) & ~(size_t)63;
}

size_t device_gpu_select_scratch(const struct device_select_args *a)
{
    const int64_t keys = most_keys(a);
    return query_bytes(a) + (size_t)(score_rows(a, keys) * keys) * sizeof(float);
}

/* Queries as FP4, if keys are. */
static void make_queries(struct device *d, const struct device_select_args *a, uint8_t *to)
{
    const struct select_query_args k = {.q = gpu_rows(d, a->q),
                                        .to = to,
                                        .q_stride = a->q.stride,
                                        .n_rows = (int32_t)a->q.n,
                                        .n_heads = (int32_t)a->s->n_heads,
                                        .width = (int32_t)a->s->keys.width};
    (void)GPU_LAUNCH(d, select_query, select_query_grid(&k), &k);
}

GPU_RUN(select)
{
    const struct device_select_args *a = args;
    const struct device_stream *keys = &a->s->keys;
    const int64_t n_keys = most_keys(a), each = score_rows(a, n_keys),
                  rows = gpu_span_rows(a->span, a->n_spans);
    if (!device_gpu_has(d, GPU_K_select_query) || !device_gpu_has(d, GPU_K_select_scores) ||
        !device_gpu_has(d, GPU_K_select_choose))
        return false;
    const struct gpu_span *span = device_gpu_spans(d, a->span, a->n_spans, keys->every, 0);
    uint8_t *query = device_gpu_address(d->gpu, scratch);
    if (!span || !query)
        return d->gpu->lost;
    float *score = (float *)(void *)(query + query_bytes(a));
    if (keys->codec == KERN_KV_FP4 && n_keys > a->s->top_k)
        make_queries(d, a, query);
    for (int64_t row = 0; row < rows; row += each) {
        const struct select_scores_args k = {
            .span = span, .q = gpu_rows(d, a->q), .query = query,
            .weight = gpu_rows(d, a->weight), .score = score, .row0 = row,
            .q_stride = a->q.stride, .weight_stride = a->weight.stride, .at = (int64_t)keys->at,
            .row_bytes = (int64_t)kern_row_bytes(keys->codec, keys->width, keys->tail),
            .n_rows = (int32_t)num_min(each, rows - row), .n_keys = (int32_t)n_keys,
            .n_heads = (int32_t)a->s->n_heads, .width = (int32_t)keys->width,
            .tail = (int32_t)keys->tail, .every = (int32_t)keys->every,
            .codec = (int32_t)keys->codec, .top_k = (int32_t)a->s->top_k};
        const struct select_choose_args c = {.span = span,
                                             .score = score,
                                             .sel = device_gpu_address(d->gpu, a->sel),
                                             .count = device_gpu_address(d->gpu, a->count),
                                             .row0 = row,
                                             .n_rows = k.n_rows,
                                             .n_keys = k.n_keys,
                                             .every = k.every,
                                             .top_k = k.top_k};
        if (n_keys > a->s->top_k)
            (void)GPU_LAUNCH(d, select_scores, select_scores_grid(&k), &k);
        (void)GPU_LAUNCH(d, select_choose, select_choose_grid(&c), &c);
    }
    return true;
}

/* ---- latent attention ---- */

/* The most parts of a row's list. */
static int64_t list_parts(const struct device_attend_latent_args *a)
{
    int64_t most = 1;
    for (int64_t i = 0; i < a->n_spans; i++) {
        const int64_t w = a->near[i].window ? a->near[i].window : a->a->window,
                      end = a->near[i].pos0 + a->near[i].n;
        int64_t n = num_min(end, w);
        if (a->far && a->a->far.width) {
            const int64_t all = end / a->a->far.every;
            n += a->a->top_k ? num_min(a->a->top_k, all) : all;
        }
        most = num_max(most, n);
    }
    return attend_parts(0, most);
}

/* Rows and heads that go together. */
struct latent_piece { int64_t rows, heads, parts, floats; };

static struct latent_piece latent_piece(const struct device_attend_latent_args *a)
{
    struct latent_piece p = {.rows = 1, .parts = list_parts(a)};
    p.floats = p.parts * attend_state(a->a->near.width);
    const int64_t most = num_max(1, SCRATCH_FLOATS / p.floats);
    p.heads = num_min(a->n_heads, most);
    if (p.heads == a->n_heads)
        p.rows = num_max(1, num_min(num_min(a->q.n, MOST_ROWS), most / a->n_heads));
    return p;
}

size_t device_gpu_latent_scratch(const struct device_attend_latent_args *a)
{
    const struct latent_piece p = latent_piece(a);
    return (size_t)(p.rows * p.heads * p.floats) * sizeof(float);
}

static const enum gpu_kernel latent_by_heads[] = {0, GPU_K_attend_latent_1, GPU_K_attend_latent_2,
                                                  0, GPU_K_attend_latent_4, 0, 0, 0,
                                                  GPU_K_attend_latent_8};

/* Heads [h, h + n) of all rows that k says. */
static void latent_heads(struct device *d, const struct device_attend_latent_args *a,
                         struct attend_latent_args k, int64_t h, int64_t n)
{
    const int64_t width = a->a->near.width;
    k.q += h * width;
    k.n_heads = (int32_t)n;
    const struct attend_merge_args m = {.span = k.near_span,
                                        .far_span = k.far_span,
                                        .count = k.count,
                                        .state = k.state,
                                        .sink = a->a->sink ? a->a->sink->card + h : NULL,
                                        .out = gpu_rows(d, a->out) + h * width,
                                        .row0 = k.row0,
                                        .out_stride = a->out.stride,
                                        .n_rows = k.n_rows,
                                        .n_heads = k.n_heads,
                                        .n_parts = k.n_parts,
                                        .v_width = k.width,
                                        .latent = 1,
                                        .far_every = k.far_every};
    (void)device_gpu_launch(d, latent_by_heads[attend_heads(k.n_heads)], attend_latent_grid(&k), &k,
                            sizeof k, 0);
    (void)GPU_LAUNCH(d, attend_merge, attend_merge_grid(&m), &m);
}

static bool has_latent(struct device *d)
{
    return device_gpu_has(d, GPU_K_attend_latent_1) && device_gpu_has(d, GPU_K_attend_latent_2) &&
           device_gpu_has(d, GPU_K_attend_latent_4) && device_gpu_has(d, GPU_K_attend_latent_8) &&
           device_gpu_has(d, GPU_K_attend_merge);
}

GPU_RUN(attend_latent)
{
    const struct device_attend_latent_args *a = args;
    const struct device_latent *l = a->a;
    const bool far = a->far && l->far.width, listed = far && l->top_k;
    const int64_t rows = gpu_span_rows(a->near, a->n_spans);
    const struct latent_piece p = latent_piece(a);
    if (l->near.width > ATTEND_MOST_WIDTH || (l->sink && !l->sink->card) ||
        (d->numerics == DEVICE_FAST && d->kern.attend.recipe) || !has_latent(d))
        return false;
    struct attend_latent_args k = {
        .near_span = device_gpu_spans(d, a->near, a->n_spans, l->near.every, l->window),
        .q = gpu_rows(d, a->q),
        .state = device_gpu_address(d->gpu, scratch),
        .q_stride = a->q.stride,
        .near_at = (int64_t)l->near.at,
        .far_at = (int64_t)l->far.at,
        .row_bytes = (int64_t)kern_row_bytes(l->near.codec, l->near.width, l->near.tail),
        .n_parts = (int32_t)p.parts,
        .width = (int32_t)l->near.width,
        .tail = (int32_t)l->near.tail,
        .codec = (int32_t)l->near.codec,
        .near_every = (int32_t)l->near.every,
        .far_every = far ? (int32_t)l->far.every : 1,
        .top_k = (int32_t)l->top_k,
        .scale = a->scale};
    if (far)
        k.far_span = device_gpu_spans(d, a->far, a->n_spans, l->far.every, 0);
    if (listed) {
        k.sel = device_gpu_list(d, l->sel, (size_t)(a->q.n * l->top_k) * sizeof *l->sel);
        k.count = device_gpu_list(d, l->count, (size_t)a->q.n * sizeof *l->count);
    }
    if (!k.near_span || !k.state || (far && !k.far_span) || (listed && (!k.sel || !k.count)))
        return d->gpu->lost;
    for (k.row0 = 0; k.row0 < rows; k.row0 += p.rows) {
        k.n_rows = (int32_t)num_min(p.rows, rows - k.row0);
        for (int64_t h = 0; h < a->n_heads; h += p.heads)
            latent_heads(d, a, k, h, num_min(p.heads, a->n_heads - h));
    }
    return true;
}
