/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek4 - DeepSeek V4 Flash: hyper-connections, one latent that is key and value,
 * a window beside compressed rows (every 4 positions, chosen by an indexer, or every 128),
 * and experts routed by token in the first layers and by score in the others.
 *
 * This file: the KV layout and the forward pass.  Hyper-parameters and weights
 * are in deepseek4_load.c, the names of the published checkpoint in deepseek4_hf.c, its drafters
 * in deepseek4_mtp.c and deepseek4_dspark.c.
 */
#include "family/deepseek4.h"

#include "base/mem.h"
#include "base/num.h"
#include "family/table.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- KV layout ---- */

/*
 * Compressed rows are kept for good.  Latents are needed for a window, what feeds the open
 * blocks of 4 for 8 positions, of 128 for their page: they are in pages by absolute position,
 * so that a rewind, a fork or a restore needs nothing else.  A step pools its own positions
 * from where it computed them: pages get what is left open at its end.
 */
enum { GROUP_FULL, GROUP_WINDOW, GROUP_CSA, GROUP_HCA, GROUPS };

enum { ATTEND_ROWS = 512 }; /* attended at a time */

static_assert(KV_PAGE % RATIO_HCA == 0, "blocks lie within pages");

static void add_stream(struct kv_spec *s, int64_t layer, uint32_t group, int64_t width,
                       int64_t tail, enum kern_kv_codec codec, int64_t every)
{
    s->stream[s->n_streams++] = (struct kv_stream){.kind = KV_ROWS,
                                                   .layer = (uint32_t)layer,
                                                   .group = group,
                                                   .n_heads = 1,
                                                   .k_width = width,
                                                   .v_width = tail,
                                                   .k_codec = codec,
                                                   .v_codec = codec,
                                                   .every = (uint32_t)every};
}

/* Indexer keys beside FP8 rows are FP4, as in training, where their width can be rotated. */
static enum kern_kv_codec key_codec(const struct deepseek4 *g, enum kern_kv_codec codec)
{
    const int64_t n = g->index_head;
    return codec == KERN_KV_FP8 && (n & (n - 1)) == 0 && kern_row_bytes(KERN_KV_FP4, n, 0)
               ? KERN_KV_FP4
               : codec;
}

static ingle_status deepseek4_kv(const void *self, const struct kv_types *types,
                                 struct kv_spec *out, struct err *err)
{
    const struct deepseek4 *g = self;
    bool has[GROUPS] = {false, true};
    struct kv_spec spec = {0};
    enum kern_kv_codec codec;
    const ingle_status fits = kv_types_of_rows(types, &codec, err);
    if (fits)
        return fits;
    spec.stream = mem_calloc((size_t)g->n_layers * 5, sizeof *spec.stream);
    if (!spec.stream)
        return err_set(err, INGLE_NOMEM, "no memory for the KV layout");
    for (int64_t i = 0; i < g->n_layers; i++)
        has[GROUP_FULL] |= g->layer[i].ratio != 0, has[GROUP_CSA] |= g->layer[i].ratio == RATIO_CSA,
            has[GROUP_HCA] |= g->layer[i].ratio == RATIO_HCA;
    /* Groups without streams are left out; the order stays. */
    uint32_t group[GROUPS], n = 0;
    for (int k = 0; k < GROUPS; k++)
        group[k] = has[k] ? n++ : 0;
    spec.n_groups = n;
    spec.group[group[GROUP_WINDOW]].window = g->window;
    if (has[GROUP_CSA])
        spec.group[group[GROUP_CSA]].window = 2 * RATIO_CSA,
        spec.group[group[GROUP_CSA]].ends = true;
    if (has[GROUP_HCA]) /* an open block is within the page of the last position */
        spec.group[group[GROUP_HCA]].window = 1, spec.group[group[GROUP_HCA]].ends = true;
    for (int64_t i = 0; i < g->n_layers; i++) {
        const struct layer *l = &g->layer[i];
        const uint32_t in = group[l->ratio == RATIO_CSA ? GROUP_CSA : GROUP_HCA];
        add_stream(&spec, i, group[GROUP_WINDOW], g->head, g->n_rot, codec, 1);
        if (l->ratio) {
            add_stream(&spec, i, in, 2 * l->comp.wide, 0, KERN_KV_F32, 1);
            add_stream(&spec, i, group[GROUP_FULL], g->head, g->n_rot, codec, l->ratio);
        }
        if (l->ratio == RATIO_CSA) {
            add_stream(&spec, i, in, 2 * l->index.wide, 0, KERN_KV_F32, 1);
            add_stream(&spec, i, group[GROUP_FULL], g->index_head, 0, key_codec(g, codec),
                       l->ratio);
        }
    }
    const ingle_status s = kv_layout(&spec, err);
    if (s)
        kv_spec_release(&spec);
    else
        *out = spec;
    return s;
}

/* ---- forward pass ---- */

/* Rows are f32, one for each of the step's n tokens; shapes are theirs. */

/* Of the main network's layers. */
static int layer_of(const struct pass *p, const struct layer *l)
{
    return (int)(l - p->g->layer);
}

static void one_matmul(struct device *d, const struct device_matrix *w, struct rows x,
                       struct rows y)
{
    device_matmul(d, &(struct device_product){w, 0, x, y, NULL}, 1);
}

/* out: the gated sum [n][n_embd] of the streams x [n][n_hc * n_embd] that a head reads. */
static void collapse(struct device *d, const struct hc *h, struct rows x, struct rows out)
{
    struct rows mix = device_rows(d, x.n, h->op.n); /* [n][n_hc] */
    one_matmul(d, h->fn, x, mix);
    device_hc_pre(d, &h->op, x, mix, out, (struct rows){0});
}

/* The gated sum [n][n_embd] of the streams x [n][n_hc * n_embd] that a sub-layer reads, and the
 * gates [n][n_hc + n_hc * n_hc] to give back by. */
static struct rows hc_pre(struct pass *p, const struct hc *h, struct rows x, struct rows *gates)
{
    const int64_t n = p->g->n_hc;
    struct rows out = device_rows(p->d, x.n, p->g->n_embd); /* [n][n_embd] */
    /* [n][2 * n_hc + n_hc * n_hc]: weights of the streams */
    struct rows mix = device_rows(p->d, x.n, 2 * n + n * n);
    *gates = device_rows(p->d, x.n, n + n * n);
    one_matmul(p->d, h->fn, x, mix);
    device_hc_pre(p->d, &h->op, x, mix, out, *gates);
    return out;
}

/* Adds what each row's place in its block has to the gates. */
static void add_ape(struct pass *p, const struct compressor *c, int64_t ratio, struct rows gate)
{
    const size_t mark = device_mark(p->d);
    /* [n][wide]: the embedding of each row's position in its block */
    struct rows ape = device_rows(p->d, gate.n, c->wide);
    for (int64_t i = 0; i < gate.n && device_runs(p->d); i++)
        memcpy(ape.at + i * ape.stride, c->ape + p->pos[i] % ratio * c->wide,
               (size_t)c->wide * sizeof(float));
    device_wrote_rows(p->d, ape);
    device_add(p->d, gate, ape);
    device_release(p->d, mark);
}

/* Stores what the compressor reads, and the rows of the blocks that are complete now.  value_gate:
 * [n][2 * wide]. */
static void compress(struct pass *p, const struct layer *l, const struct compressor *c,
                     struct rows value_gate)
{
    add_ape(p, c, l->ratio, rows_columns(value_gate, c->wide, c->wide));
    family_rows_append(p->f, c->in, value_gate);
    family_compress(p->f, c->in, value_gate, c->out, l->ratio == RATIO_CSA, c->norm, p->g->eps,
                    p->g->inv_freq[1], p->g->n_rot / 2);
}

/* Chooses the rows that each query of a ratio-4 layer attends to.  q: the indexer's,
 * [n][index_heads * index_head]; weight: [n][index_heads]. */
static void choose(struct pass *p, const struct layer *l, struct rows q, struct rows weight,
                   const struct family_choice *out)
{
    const struct deepseek4 *g = p->g;
    device_rope_pairs(p->d, q, &p->rope[1], g->index_heads, g->index_head - g->n_rot, false);
    if (family_is_rotated(p->f, l->index.out))
        device_hadamard(p->d, q, g->index_heads);
    device_scale(p->d, weight, weight,
                 (float)(1.0 / sqrt((double)g->index_heads) / sqrt((double)g->index_head)));
    family_select(p->f, l->index.out, q, weight, g->index_heads, out);
}

/* From the queries' latents qr [n][q_rank] to what attention adds, out [n][n_embd], for rows whose
 * keys are in the pages.  weight: the indexer's, choice: where its choice goes, in layers of ratio
 * 4. */
static void attend(struct pass *p, const struct layer *l, struct rows qr, struct rows weight,
                   const struct family_choice *choice, struct rows out)
{
    const struct deepseek4 *g = p->g;
    const struct device_rope *rope = &p->rope[l->ratio != 0];
    const int64_t n = qr.n, nope = g->head - g->n_rot;
    struct rows q = device_rows(p->d, n, g->n_heads * g->head); /* [n][n_heads * head] */
    struct rows o = device_rows(p->d, n, q.width); /* [n][n_heads * head]: what each head reads */
    /* [n][index_heads * index_head]: the indexer's queries */
    struct rows index = device_rows(p->d, choice ? n : 0, g->index_heads * g->index_head);
    const struct device_product of_latent[] = {{l->q_b, 0, qr, q, NULL},
                                               {l->index_q, 0, qr, index, NULL}};
    device_matmul(p->d, of_latent, choice ? 2 : 1);
    if (choice)
        choose(p, l, index, weight, choice);
    device_norm(p->d, q, q, NULL, g->n_heads, g->eps);
    device_rope_pairs(p->d, q, rope, g->n_heads, nope, false);
    const struct family_latent a = {.near = l->raw,
                                    .far = l->ratio ? l->comp.out : FAMILY_NO_STREAM,
                                    .window = p->widest ? p->widest : g->window,
                                    .sink = l->sink,
                                    .choice = choice,
                                    .view = p->view};
    family_attend_latent(p->f, &a, q, g->n_heads, o, (float)(1.0 / sqrt((double)g->head)));
    device_rope_pairs(p->d, o, rope, g->n_heads, nope, true);
    /* [n][o_groups * o_rank]: each group of heads has its own matrix */
    struct rows u = device_rows(p->d, n, g->o_groups * g->o_rank);
    struct device_product groups[1024];
    for (int64_t k = 0; k < g->o_groups; k++)
        groups[k] = (struct device_product){
            l->o_a, k, rows_columns(o, k * (q.width / g->o_groups), q.width / g->o_groups),
            rows_columns(u, k * g->o_rank, g->o_rank), NULL};
    device_matmul(p->d, groups, g->o_groups);
    one_matmul(p->d, l->o_b, u, out);
}

/* The same in blocks of rows: queries and answers of all heads are 256 KiB a row. */
static void attend_in_blocks(struct pass *p, const struct layer *l, struct rows qr,
                             struct rows weight, const struct family_choice *choice,
                             struct rows out)
{
    for (int64_t first = 0, n; first < qr.n; first += n) {
        const size_t mark = device_mark(p->d);
        struct family_block block;
        struct pass part = *p;
        struct family_choice chosen;
        n = num_min(ATTEND_ROWS, qr.n - first);
        family_block_begin(&block, p->f, first, n);
        part.f = &block.forward;
        part.tokens = p->tokens ? p->tokens + first : NULL;
        part.pos = p->pos ? p->pos + first : NULL;
        part.view = p->view ? p->view + first : NULL;
        for (int t = 0; t < 2; t++)
            part.rope[t].cs = rows_slice(p->rope[t].cs, first, n);
        if (choice)
            chosen = family_choice_slice(choice, first);
        attend(&part, l, rows_slice(qr, first, n), rows_slice(weight, first, n),
               choice ? &chosen : NULL, rows_slice(out, first, n));
        device_release(p->d, mark);
    }
    family_block_end(p->f);
}

void family_deepseek4_latents(struct pass *p, const struct layer *l, struct rows x)
{
    const struct deepseek4 *g = p->g;
    const size_t mark = device_mark(p->d);
    /* [n][head]: keys and values of all heads */
    struct rows kv = device_rows(p->d, x.n, g->head);
    one_matmul(p->d, l->kv, x, kv);
    device_norm(p->d, kv, kv, l->kv_norm, 1, g->eps);
    device_rope_pairs(p->d, kv, &p->rope[0], 1, g->head - g->n_rot, false);
    family_rows_append(p->f, l->raw, kv);
    device_release(p->d, mark);
}

/* out = W_o attention(x), without the residual; x, out: [n][n_embd]. */
static void attention(struct pass *p, const struct layer *l, struct rows x, struct rows out)
{
    const struct deepseek4 *g = p->g;
    const struct device_rope *rope = &p->rope[l->ratio != 0];
    const int64_t n = x.n, nope = g->head - g->n_rot;
    const bool csa = l->ratio == RATIO_CSA;
    struct rows qr = device_rows(p->d, n, g->q_rank); /* [n][q_rank]: latents of the queries */
    struct rows kv = device_rows(p->d, n, g->head);   /* [n][head]: keys and values of all heads */
    /* both [n][2 * wide]: values and gates of the layer's compressor and of the indexer's */
    struct rows comp = device_rows(p->d, n, 2 * num_max(1, l->comp.wide));
    struct rows index = device_rows(p->d, n, 2 * num_max(1, l->index.wide));
    struct rows weight = device_rows(p->d, n, g->index_heads); /* [n][index_heads] */
    const struct device_product in[] = {
        {l->q_a, 0, x, qr, NULL},
        {l->kv, 0, x, kv, NULL},
        {l->comp.kv, 0, x, rows_columns(comp, 0, l->comp.wide), NULL},
        {l->comp.gate, 0, x, rows_columns(comp, l->comp.wide, l->comp.wide), NULL},
        {l->index.kv, 0, x, rows_columns(index, 0, l->index.wide), NULL},
        {l->index.gate, 0, x, rows_columns(index, l->index.wide, l->index.wide), NULL},
        {l->index_w, 0, x, weight, NULL},
    };
    device_matmul(p->d, in, csa ? 7 : l->ratio ? 4 : 2);
    device_norm(p->d, qr, qr, l->q_a_norm, 1, g->eps);
    device_norm(p->d, kv, kv, l->kv_norm, 1, g->eps);
    device_rope_pairs(p->d, kv, rope, 1, nope, false);
    family_rows_append(p->f, l->raw, kv);
    if (l->ratio)
        compress(p, l, &l->comp, comp);
    if (!csa) {
        attend_in_blocks(p, l, qr, weight, NULL, out);
        return;
    }
    compress(p, l, &l->index, index);
    const struct family_choice choice = family_choice_rows(p->f, n, g->index_top_k);
    attend_in_blocks(p, l, qr, weight, &choice, out);
    family_part_ints(p->f, "indexer_topk", layer_of(p, l), choice.sel, choice.count, n,
                     choice.top_k);
}

/* The next layer's choice, by its router on this layer's rows: hash layers are known, of others
 * most are right. */
static void guess(struct pass *p, const struct layer *l, struct rows x)
{
    const struct deepseek4 *g = p->g;
    const struct layer *next = l + 1;
    /* a draft block has none */
    if (l < g->layer || next >= g->layer + p->end || !expert_wants_guess(&next->experts, x.n))
        return;
    const size_t mark = device_mark(p->d);
    const int64_t k = num_min(num_min(2 * g->n_used, g->n_experts), EXPERT_MAX_USED);
    /* [n][n_experts] */
    struct rows score = device_rows(p->d, x.n, g->n_experts);
    one_matmul(p->d, next->router, x, score);
    device_sqrt_softplus(p->d, score);
    const struct device_route rule = {.bias = next->bias,
                                      .table = next->table,
                                      .tokens = p->tokens,
                                      .k = next->table ? g->n_used : k,
                                      .scale = 1.0f};
    const struct device_routed c = device_route(p->d, &rule, score);
    expert_guess(p->d, &next->experts, &c, x.n);
    device_release(p->d, mark);
}

/* out = the weighted sum of the experts + the shared expert; x, out: [n][n_embd]. */
static void feed_forward(struct pass *p, const struct layer *l, struct rows x, struct rows out)
{
    const struct deepseek4 *g = p->g;
    struct rows score = device_rows(p->d, x.n, g->n_experts); /* [n][n_experts] */
    struct rows shared = device_rows(p->d, x.n, g->n_embd);   /* [n][n_embd]: the shared expert */
    one_matmul(p->d, l->router, x, score);
    device_sqrt_softplus(p->d, score);
    const struct device_route rule = {.bias = l->bias,
                                      .table = l->table,
                                      .tokens = p->tokens,
                                      .k = g->n_used,
                                      .normalise = g->weight_norm,
                                      .scale = g->weight_scale};
    /* ids and weights [n][n_used] */
    const struct device_routed c = expert_route(p->d, &l->experts, rule, score);
    /* shared = Wdown(silu(min(Wgate x, limit)) * clamp(Wup x)) */
    const struct device_mlp shared_expert = {.gate = l->sh_gate,
                                             .up = l->sh_up,
                                             .down = l->sh_down,
                                             .act = DEVICE_SILU,
                                             .limit = l->sh_limit};
    struct expert_eval eval = {.d = p->d,
                               .layer = &l->experts,
                               .x = x,
                               .choice = c,
                               .act = DEVICE_SILU,
                               .limit = l->limit,
                               .out = out,
                               .mlp = &(struct device_mlp_call){&shared_expert, x, shared}};
    family_part_ints(p->f, "router_ids", layer_of(p, l), c.id, NULL, x.n, c.k);
    family_part_rows(p->f, "router_weights", layer_of(p, l),
                     (struct rows){c.weight, x.n, c.k, c.k});
    expert_eval_begin(&eval);
    guess(p, l, x);
    expert_eval_end(&eval);
    device_add(p->d, out, shared);
}

typedef void sub_layer(struct pass *p, const struct layer *l, struct rows x, struct rows out);

static void show_parts(struct pass *p, const struct layer *l, bool attn, struct rows gates,
                       struct rows out)
{
    const int64_t n = p->g->n_hc;
    const int layer = layer_of(p, l);
    family_part_rows(p->f, attn ? "attn_out" : "ffn_out", layer, out);
    family_part_rows(p->f, attn ? "hc_attn_post" : "hc_ffn_post", layer, rows_columns(gates, 0, n));
    family_part_rows(p->f, attn ? "hc_attn_comb" : "hc_ffn_comb", layer,
                     rows_columns(gates, n, n * n));
}

/* to = the streams after one sub-layer; from, to: [n][n_hc * n_embd]. */
static void connect(struct pass *p, const struct layer *l, const struct hc *h,
                    const struct device_vector *norm, sub_layer *fn, struct rows from,
                    struct rows to)
{
    const size_t mark = device_mark(p->d);
    struct rows gates;                                         /* [n][n_hc + n_hc * n_hc] */
    struct rows out = device_rows(p->d, from.n, p->g->n_embd); /* [n][n_embd]: of the sub-layer */
    struct rows x = hc_pre(p, h, from, &gates);                /* [n][n_embd]: its input */
    family_part_rows(p->f, fn == attention ? "hc_attn_x" : "hc_ffn_x", layer_of(p, l), x);
    device_norm(p->d, x, x, norm, 1, p->g->eps);
    fn(p, l, x, out);
    show_parts(p, l, fn == attention, gates, out);
    device_hc_post(p->d, &h->op, from, out, gates, to);
    device_release(p->d, mark);
}

void family_deepseek4_layer(struct pass *p, const struct layer *l, struct rows x, struct rows y)
{
    connect(p, l, &l->hc_attn, l->attn_norm, attention, x, y);
    connect(p, l, &l->hc_ffn, l->ffn_norm, feed_forward, y, x);
}

struct rows family_deepseek4_attn_input(struct pass *p, const struct layer *l, struct rows streams)
{
    struct rows gates, x = hc_pre(p, &l->hc_attn, streams, &gates);
    device_norm(p->d, x, x, l->attn_norm, 1, p->g->eps);
    return x;
}

struct rows family_deepseek4_collapse(struct pass *p, const struct hc *h, struct rows streams)
{
    struct rows out = device_rows(p->d, streams.n, p->g->n_embd);
    collapse(p->d, h, streams, out);
    return out;
}

static void deepseek4_collapse(const void *self, struct device *d, struct rows x, struct rows y)
{
    const struct deepseek4 *g = self;
    collapse(d, &g->hc_head, x, y);
}

/* Rows y [n_logits][n_embd], which are spent, to logits [n_logits][n_vocab]. */
static void logits(struct pass *p, struct rows y)
{
    device_norm(p->d, y, y, p->g->out_norm, 1, p->g->eps);
    one_matmul(p->d, p->g->out, y, p->f->logits);
}

/* The logits that are wanted; taps the rows before the head. */
static void head(struct pass *p, struct rows streams)
{
    const struct deepseek4 *g = p->g;
    if (p->f->tap) {
        struct rows all = family_deepseek4_collapse(p, &g->hc_head, streams);
        device_norm(p->d, all, all, g->out_norm, 1, g->eps);
        family_tap_rows(p->f, FAMILY_TAP_NORM, 0, all);
    }
    if (p->f->step->n_logits)
        logits(p, family_deepseek4_collapse(p, &g->hc_head, family_wanted(p->f, streams)));
}

/* All streams of x [n][n_hc * n_embd] begin as the token's row. */
static void embed(struct pass *p, struct rows x)
{
    const struct deepseek4 *g = p->g;
    const struct rows first = rows_columns(x, 0, g->n_embd);
    device_embed(p->d, first, g->embed, p->tokens, 1.0f);
    for (int64_t j = 1; j < g->n_hc; j++)
        device_copy(p->d, rows_columns(x, j * g->n_embd, g->n_embd), first);
    family_tap_rows(p->f, FAMILY_TAP_EMBED, 0, first);
}

static int64_t deepseek4_border(const void *self, int64_t layer)
{
    const struct deepseek4 *g = self;
    (void)layer;
    return g->n_hc * g->n_embd;
}

static int64_t deepseek4_tap_width(const void *self)
{
    const struct deepseek4 *g = self;
    return g->n_hc * g->n_embd;
}

static void deepseek4_forward(const void *self, const struct family_forward *f)
{
    const struct deepseek4 *g = self;
    struct pass p = {.g = g,
                     .f = f,
                     .d = f->device,
                     .tokens = family_tokens(f),
                     .pos = family_positions(f),
                     .end = family_end(f, g->n_layers)};
    const int64_t from = family_first(f), width = g->n_hc * g->n_embd;
    if (from == g->n_layers) {
        if (f->range->picked)
            logits(&p, family_wanted(f, f->range->in));
        else
            head(&p, f->range->in);
        return;
    }
    const int64_t n = f->step->n_rows;
    /* both [n][n_hc * n_embd]: the streams */
    struct rows x = device_rows(p.d, n, width), y = device_rows(p.d, n, width);
    if (from)
        device_copy(p.d, x, f->range->in);
    else
        embed(&p, x);
    for (int t = 0; t < 2; t++)
        p.rope[t] = device_rope_table(p.d, p.pos, n, g->inv_freq[t], g->n_rot / 2);
    for (int64_t il = from; il < p.end; il++) {
        const struct layer *l = &g->layer[il];
        family_deepseek4_layer(&p, l, x, y);
        family_tap_rows(f, FAMILY_TAP_LAYER, (int)il, x);
    }
    if (family_border(f))
        device_copy(p.d, *family_border(f), x);
    else
        head(&p, x);
}

static const char *const hf_types[] = {"deepseek_v4", NULL};

static const struct expert_layer *deepseek4_experts(const void *self, int64_t layer)
{
    const struct deepseek4 *g = self;
    return &g->layer[layer].experts;
}

static void deepseek4_ends(const void *self, struct family_ends *out)
{
    const struct deepseek4 *g = self;
    *out = (struct family_ends){
        .embed = g->embed, .head = g->out, .embed_scale = 1.0f, .collapse = g->hc_head.fn};
}

const struct family family_deepseek4 = {
    .experts = deepseek4_experts,
    .arch = "deepseek4",
    .hf_types = hf_types,
    .config = family_deepseek4_config,
    .rename = family_deepseek4_rename,
    .hf_name = family_deepseek4_hf_name,
    .to_config = family_deepseek4_to_config,
    .alias = family_deepseek4_alias,
    .bind = family_deepseek4_bind,
    .kv = deepseek4_kv,
    .forward = deepseek4_forward,
    .border = deepseek4_border,
    .tap_width = deepseek4_tap_width,
    .collapse = deepseek4_collapse,
    .free = family_deepseek4_free,
    .ends = deepseek4_ends,
};
