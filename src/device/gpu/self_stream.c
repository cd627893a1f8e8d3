/* SPDX-License-Identifier: Apache-2.0 */
/* self_stream - kernels of route.h, hc.h, compress.h and select.h beside the processor's. */
#include "device/gpu/self.h"
#include "kern/kern.h"
#include <math.h>
#include <string.h>

static bool run(struct gpu_self *s, enum gpu_kernel k, struct gpu_grid grid, const void *args,
                size_t n_args)
{
    return device_gpu_self_send(s) && device_gpu_launch(s->d, k, grid, args, n_args, 0) &&
           device_gpu_self_fetch(s);
}

/* The processor's operation; its scratch is the memory of what comes back. */
static bool plain(struct gpu_self *s, enum device_op op, const void *args)
{
    if (device_cpu_ops.scratch(s->d, op, args) > GPU_SELF_BYTES)
        return false;
    device_cpu_ops.run[op](s->d, args, s->back);
    return true;
}

/* ---- the choice of experts ---- */

static bool route(struct gpu_self *s, enum gpu_kernel k)
{
    enum { ROWS = 5, IDS = 77, USED = 6, N = ROWS * USED };
    float *host, *host_bias, weight[N];
    float *score = device_gpu_self_floats(s, ROWS * IDS, false, &host);
    float *bias = device_gpu_self_floats(s, IDS, false, &host_bias);
    int32_t id[N], first[IDS + 2], row[N], slot[N];
    for (int i = 0; i < IDS; i++)
        host[IDS + i] = host_bias[i] = i % 3 ? 0.5f : -0.0f; /* ties */
    host[4 * IDS + 40] = NAN;
    struct device_vector v = {.d = s->d, .n = IDS, .at = host_bias};
    const struct device_route r = {
        .bias = &v, .k = USED, .normalise = true, .scale = 1.7f, .pairs = true};
    const struct device_route_args plain_args = {
        &r, {host, ROWS, IDS, IDS}, {id, weight, USED, first, row, slot}};
    if (!plain(s, DEVICE_OP_route, &plain_args))
        return true;
    int32_t *to_id = device_gpu_self_in(s, k == GPU_K_route_pairs ? id : NULL, sizeof id);
    float *to_weight = device_gpu_self_in(s, NULL, sizeof weight);
    int32_t *to_first = device_gpu_self_in(s, NULL, sizeof first);
    int32_t *to_row = device_gpu_self_in(s, NULL, sizeof row);
    int32_t *to_slot = device_gpu_self_in(s, NULL, sizeof slot);
    const struct route_choose_args a = {.score = score, .bias = bias, .id = to_id,
                                        .weight = to_weight, .stride = IDS, .n_rows = ROWS,
                                        .n_ids = IDS, .k = USED, .normalise = 1, .scale = 1.7f};
    const struct route_pairs_args p = {to_id, to_first, to_row, to_slot, ROWS, IDS, USED};
    if (k == GPU_K_route_choose)
        return run(s, k, route_choose_grid(&a), &a, sizeof a) &&
               device_gpu_self_same_bytes(s, to_id, id, sizeof id) &&
               device_gpu_self_same(s, to_weight, weight, N);
    return run(s, k, route_pairs_grid(&p), &p, sizeof p) &&
           device_gpu_self_same_bytes(s, to_first, first, sizeof first) &&
           device_gpu_self_same_bytes(s, to_row, row, sizeof row) &&
           device_gpu_self_same_bytes(s, to_slot, slot, sizeof slot);
}

/* ---- hyper-connections ---- */

static bool hyper(struct gpu_self *s, enum gpu_kernel k)
{
    enum { N = 4, WIDTH = 133, ROWS = 2, MIX = 2 * N + N * N, GATES = N + N * N };
    float *x, *mix, *scale, *base, *out, *gates;
    float *card_x = device_gpu_self_floats(s, ROWS * N * WIDTH, false, &x);
    float *card_mix = device_gpu_self_floats(s, ROWS * MIX, false, &mix);
    float *card_scale = device_gpu_self_floats(s, 3, false, &scale);
    float *card_base = device_gpu_self_floats(s, MIX, false, &base);
    float *card_out = device_gpu_self_floats(s, ROWS * WIDTH, false, &out);
    float *card_gates = device_gpu_self_floats(s, ROWS * GATES, false, &gates);
    float *card_y = device_gpu_self_in(s, NULL, ROWS * N * WIDTH * sizeof *card_y);
    float want_out[ROWS * WIDTH], want_gates[ROWS * GATES], want_y[ROWS * N * WIDTH];
    const struct device_vector vs = {.n = 3, .at = scale}, vb = {.n = MIX, .at = base};
    const struct device_hc hc = {N, &vs, &vb, 20, 1e-6f, 1e-5f};
    const struct rows xr = {x, ROWS, N * WIDTH, N * WIDTH};
    const struct hc_pre_args a = {.x = card_x, .mix = card_mix, .scale = card_scale,
                                  .base = card_base, .out = card_out, .gates = card_gates,
                                  .x_stride = N * WIDTH, .mix_stride = MIX, .out_stride = WIDTH,
                                  .gates_stride = GATES, .n_rows = ROWS, .n = N, .width = WIDTH,
                                  .iterations = 20, .eps = 1e-6f, .norm_eps = 1e-5f};
    const struct hc_post_args b = {.x = card_x, .out = card_out, .gates = card_gates, .y = card_y,
                                   .x_stride = N * WIDTH, .out_stride = WIDTH,
                                   .gates_stride = GATES, .y_stride = N * WIDTH, .n_rows = ROWS,
                                   .n = N, .width = WIDTH};
    if (k == GPU_K_hc_pre) {
        const struct device_hc_pre_args p = {&hc, xr, {mix, ROWS, MIX, MIX},
                                             {want_out, ROWS, WIDTH, WIDTH},
                                             {want_gates, ROWS, GATES, GATES}};
        return plain(s, DEVICE_OP_hc_pre, &p) && run(s, k, hc_pre_grid(&a), &a, sizeof a) &&
               device_gpu_self_same(s, card_out, want_out, ROWS * WIDTH) &&
               device_gpu_self_same(s, card_gates, want_gates, ROWS * GATES);
    }
    const struct device_hc_post_args p = {&hc, xr, {out, ROWS, WIDTH, WIDTH},
                                          {gates, ROWS, GATES, GATES},
                                          {want_y, ROWS, N * WIDTH, N * WIDTH}};
    return plain(s, DEVICE_OP_hc_post, &p) && run(s, k, hc_post_grid(&b), &b, sizeof b) &&
           device_gpu_self_same(s, card_y, want_y, ROWS * N * WIDTH);
}

/* ---- compressors ---- */

static bool compressor(struct gpu_self *s, enum gpu_kernel k)
{
    enum { WIDTH = 64, TAIL = 16, PAIRS = 8, RATIO = 4, N = 9, POS = 2, BLOCKS = 2 };
    const size_t in_bytes = 4 * WIDTH * sizeof(float);
    const size_t out_bytes = kern_row_bytes(KERN_KV_FP8, WIDTH, TAIL);
    const size_t page_bytes = out_bytes * (KERN_PAGE / RATIO);
    float *host, *norm, *cs;
    float *in = device_gpu_self_floats(s, (POS + N) * 4 * WIDTH, false, &host);
    float *card_norm = device_gpu_self_floats(s, WIDTH, false, &norm);
    float *card_cs = device_gpu_self_floats(s, BLOCKS * 2 * PAIRS, false, &cs);
    uint8_t *out = device_gpu_self_in(s, NULL, page_bytes), *want = s->host + (out - s->card);
    uint8_t *table[2] = {(uint8_t *)in, out};
    uint8_t **at = device_gpu_self_in(s, table, sizeof table);
    struct gpu_span spans[2] = {{.page = at, .n = N, .pos0 = POS}, {.page = at + 1, .n = N,
                                                                    .pos0 = POS}};
    const struct gpu_span *span = device_gpu_self_in(s, spans, sizeof spans);
    double freq[PAIRS];
    for (int i = 0; i < PAIRS; i++)
        freq[i] = 1.0 / (1 << i);
    for (int i = 0; i < BLOCKS; i++)
        kern_rope_angles(cs + i * 2 * PAIRS, i * RATIO, freq, PAIRS);
    const struct device_vector v = {.n = WIDTH, .at = norm};
    const struct device_compress c = {
        .in = {KERN_KV_F32, 4 * WIDTH, 0, 1, 0}, .out = {KERN_KV_FP8, WIDTH, TAIL, RATIO, 0},
        .ratio = RATIO, .overlap = true, .norm = &v, .eps = 1e-6f, .inv_freq = freq,
        .n_pairs = PAIRS, .hadamard = true};
    uint8_t *in_page[1] = {(uint8_t *)(void *)host}, *out_page[1] = {want};
    const struct device_span from = {.n = N, .pos0 = POS, .page = in_page},
                             to = {.n = N, .pos0 = POS, .page = out_page};
    const struct device_compress_args p = {&c, &from, &to, 1};
    const struct compress_args a = {
        .in = span, .out = span + 1, .norm = card_norm, .cs = card_cs,
        .in_bytes = (int64_t)in_bytes, .out_bytes = (int64_t)out_bytes, .n_blocks = BLOCKS,
        .ratio = RATIO, .overlap = 1, .width = WIDTH, .n_pairs = PAIRS, .in_every = 1,
        .out_every = RATIO, .out_codec = KERN_KV_FP8, .out_tail = TAIL, .eps = 1e-6f,
        .turn = (float)(1.0 / sqrt((double)WIDTH))};
    uint8_t got[(WIDTH + TAIL + 4) * KERN_PAGE / RATIO];
    if (s->full || page_bytes > sizeof got || !run(s, k, compress_grid(&a), &a, sizeof a))
        return s->full;
    /* the processor's scratch is what has come back */
    memcpy(got, s->back + (out - s->card), page_bytes);
    return !plain(s, DEVICE_OP_compress, &p) || !memcmp(got, want, page_bytes);
}

/* ---- indexers ---- */

enum { KEYS = 45, WIDTH = 64, HEADS = 3, TOP = 5 };

/* The best of a row, ascending; ties: the lower index. */
static void best_of(const float *score, int n, int32_t *sel)
{
    bool taken[KEYS] = {false};
    for (int k = 0; k < TOP; k++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || score[i] > score[best]))
                best = i;
        taken[best] = true;
    }
    for (int i = 0, k = 0; i < n; i++)
        if (taken[i])
            sel[k++] = i;
}

static bool indexer(struct gpu_self *s, enum gpu_kernel k)
{
    const size_t row_bytes = kern_row_bytes(KERN_KV_FP4, WIDTH, 0);
    const size_t head = kern_query4_bytes(WIDTH);
    float *x, *q, *weight, score[2 * KEYS] = {0};
    (void)device_gpu_self_floats(s, KEYS * WIDTH, false, &x);
    float *card_q = device_gpu_self_floats(s, 2 * HEADS * WIDTH, false, &q);
    float *card_weight = device_gpu_self_floats(s, 2 * HEADS, false, &weight);
    uint8_t *page = device_gpu_self_in(s, NULL, row_bytes * KERN_PAGE);
    uint8_t *keys = s->host + (page - s->card), query[2 * HEADS * (WIDTH + 8 * WIDTH / 32)];
    uint8_t **at = device_gpu_self_in(s, &page, sizeof page);
    const struct gpu_span one = {.page = at, .n = 2, .pos0 = KEYS - 2};
    const struct gpu_span *span = device_gpu_self_in(s, &one, sizeof one);
    int32_t sel[2 * TOP], count[2] = {TOP, TOP};
    if (s->full || sizeof query < 2 * HEADS * head)
        return true;
    for (int i = 0; i < KEYS; i++)
        kern_row_write(KERN_KV_FP4, WIDTH, 0, keys + (size_t)i * row_bytes, x + i * WIDTH);
    kern_query4(&s->d->kern.latent, WIDTH, q, 2 * HEADS, query);
    for (int r = 0; r < 2; r++) {
        const struct kern_scores t = {.form = {KERN_KV_FP4, WIDTH, 0}, .keys = keys,
                                      .n = KEYS - 1 + r,
                                      .q = query + (size_t)r * HEADS * head,
                                      .weight = weight + r * HEADS, .n_heads = HEADS};
        s->d->kern.latent.scores(&t, score + r * KEYS, (float *)(void *)s->back);
        best_of(score + r * KEYS, KEYS - 1 + r, sel + r * TOP);
    }
    uint8_t *card_query =
        device_gpu_self_in(s, k == GPU_K_select_query ? NULL : query, sizeof query);
    float *card_score =
        device_gpu_self_in(s, k == GPU_K_select_choose ? score : NULL, sizeof score);
    int32_t *card_sel = device_gpu_self_in(s, NULL, sizeof sel);
    int32_t *card_count = device_gpu_self_in(s, NULL, sizeof count);
    const struct select_query_args a = {card_q, card_query, HEADS * WIDTH, 2, HEADS, WIDTH};
    const struct select_scores_args b = {
        .span = span, .query = card_query, .weight = card_weight, .score = card_score,
        .q_stride = HEADS * WIDTH, .weight_stride = HEADS, .row_bytes = (int64_t)row_bytes,
        .n_rows = 2, .n_keys = KEYS, .n_heads = HEADS, .width = WIDTH, .every = 1,
        .codec = KERN_KV_FP4, .top_k = TOP};
    const struct select_choose_args c = {.span = span, .score = card_score, .sel = card_sel,
                                         .count = card_count, .n_rows = 2, .n_keys = KEYS,
                                         .every = 1, .top_k = TOP};
    if (k == GPU_K_select_query)
        return run(s, k, select_query_grid(&a), &a, sizeof a) &&
               device_gpu_self_same_bytes(s, card_query, query, 2 * HEADS * head);
    if (k == GPU_K_select_scores)
        return run(s, k, select_scores_grid(&b), &b, sizeof b) &&
               device_gpu_self_same(s, card_score, score, 2 * KEYS);
    return run(s, k, select_choose_grid(&c), &c, sizeof c) &&
           device_gpu_self_same_bytes(s, card_sel, sel, sizeof sel) &&
           device_gpu_self_same_bytes(s, card_count, count, sizeof count);
}

bool device_gpu_self_stream(struct gpu_self *s, enum gpu_kernel k)
{
    switch (k) {
    case GPU_K_route_choose:
    case GPU_K_route_pairs:
        return route(s, k);
    case GPU_K_hc_pre:
    case GPU_K_hc_post:
        return hyper(s, k);
    case GPU_K_compress:
        return compressor(s, k);
    case GPU_K_select_query:
    case GPU_K_select_scores:
    case GPU_K_select_choose:
        return indexer(s, k);
    default:
        return true;
    }
}
