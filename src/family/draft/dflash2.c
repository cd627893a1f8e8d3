/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dflash2 - DFlash with a convolution along the block around every part of a layer, and a selector:
 * of a row's best tokens it draws one by its logit and by how well it follows the token before.
 */
#include "family/draft/dflash.h"
#include "family/draft/dflash_file.h"

#include "base/mem.h"
#include "family/draft/drafts.h"
#include <stdio.h>
#include <string.h>

enum { MAX_KERNEL = 8, MAX_TOP = 64, MAX_RANK = 4096 };

struct dflash2 {
    struct dflash g; /* the first member: functions of dflash_net.c take it for that */
    int64_t top, rank;
    const struct device_matrix *before, *after, *hidden; /* [n_vocab][rank] twice, [rank][n_embd] */
};

struct round {
    struct dflash_round d;
    struct rows x, by, follow, cand; /* [n][n_embd], [n][rank] twice, [n * top][rank] */
    int32_t *id;                     /* [n * top]: a row's best tokens */
};

bool family_dflash2_is(const struct model *m)
{
    return model_find(m, "selector_hidden.weight") || model_find(m, "selector.hidden_proj.weight");
}

static bool dflash2_fits(const struct family *target, const struct model *m,
                         const struct io_meta *meta)
{
    (void)target;
    return family_dflash_is_file(meta) && family_dflash2_is(m);
}

static bool dflash2_named(struct json_object *config)
{
    return family_dflash_is_named(config, "DFlash2DraftModel");
}

static void dflash2_free(void *self)
{
    struct dflash2 *s = self;
    if (s)
        family_dflash_release(&s->g);
    mem_free(s);
}

static void bind_conv(const struct dflash *g, struct dflash_keys *k, struct model *m, int64_t il,
                      const char *part, struct dflash_conv *c)
{
    char name[64];
    const int64_t groups = g->n_embd / g->conv_group;
    if (k->s)
        return;
    c->base = mem_calloc((size_t)(2 * g->conv_kernel * g->n_embd), sizeof *c->base);
    if (!c->base)
        k->s = err_set(k->err, INGLE_NOMEM, "no memory for a convolution");
    snprintf(name, sizeof name, "blk.%lld.%s_conv_base", (long long)il, part);
    if (!k->s)
        k->s = model_floats_3d(m, name, g->n_embd, g->conv_kernel, 2, c->base, k->err);
    snprintf(name, sizeof name, "blk.%lld.%s_conv_proj.weight", (long long)il, part);
    if (!k->s)
        k->s = model_matrix(m, name, 2 * g->conv_kernel * groups, g->n_embd, 1, &c->proj, k->err);
}

static void bind_parts(struct dflash2 *s, struct dflash_keys *k, struct model *m)
{
    struct dflash *g = &s->g;
    g->conv_kernel = family_dflash_whole(k, "conv_kernel_size", 1, MAX_KERNEL, -1);
    g->conv_group = family_dflash_whole(k, "conv_group_size", 1, g->n_embd, -1);
    s->rank = family_dflash_whole(k, "selector_rank", 1, MAX_RANK, -1);
    s->top = family_dflash_whole(k, "selector_top_k", 1,
                                 g->n_vocab < MAX_TOP ? g->n_vocab : MAX_TOP, -1);
    if (!k->s && g->n_embd % g->conv_group)
        k->s = err_set(k->err, INGLE_FORMAT,
                       "'%s': 'conv_group_size' is %lld, which does not divide the width %lld",
                       k->path, (long long)g->conv_group, (long long)g->n_embd);
    for (int64_t i = 0; !k->s && i < g->n_layers; i++) {
        bind_conv(g, k, m, i, "attn", &g->layer[i].attn_conv);
        bind_conv(g, k, m, i, "ffn", &g->layer[i].ffn_conv);
    }
    if (!k->s)
        k->s = model_matrix(m, "selector_predecessor.weight", g->n_vocab, s->rank, 1, &s->before,
                            k->err);
    if (!k->s)
        k->s =
            model_matrix(m, "selector_successor.weight", g->n_vocab, s->rank, 1, &s->after, k->err);
    if (!k->s)
        k->s = model_matrix(m, "selector_hidden.weight", s->rank, g->n_embd, 1, &s->hidden, k->err);
}

static ingle_status dflash2_bind(void **self, const struct family_draft_target *target,
                                 struct model *m, const struct io_meta *meta,
                                 struct family_draft_info *info, struct err *err)
{
    struct dflash2 *s = mem_zalloc(sizeof *s);
    struct dflash_keys k;
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a drafter");
    family_dflash_keys(&k, m, meta, err);
    s->g.block_seen = true;
    if (!family_dflash_bind(&s->g, &k, target, m, err))
        bind_parts(s, &k, m);
    if (!k.s)
        k.s = family_dflash_bind_head(&s->g, &k, m, err);
    if (!k.s && s->g.to)
        k.s = err_set(err, INGLE_UNSUP,
                      "'%s': tensor 'd2t' beside a selector: supported is a head of all tokens",
                      k.path);
    s->g.softcap = (float)family_dflash_number(
        &k, "final_logit_softcapping|dflash.final_logit_softcapping", 0, 1e6, 0);
    if (family_dflash_detect(&k)) {
        dflash2_free(s);
        return k.s;
    }
    *info = family_dflash_info(&s->g);
    *self = s;
    return INGLE_OK;
}

static ingle_status dflash2_set(void *self, const struct family_draft_options *o,
                                struct family_draft_info *info, struct err *err)
{
    struct dflash2 *s = self;
    const char *rule = o->rule;
    /* As the kind's publishers name them: the block is seen as a whole, or causally in all
     * layers. */
    if (rule && !family_dflash_rule(&s->g, !strcmp(rule, "block")    ? "window"
                                           : !strcmp(rule, "causal") ? "all-causal"
                                                                     : rule))
        return err_set(
            err, INGLE_ARG,
            "a DFlash2 drafter has no rule '%.40s': block, causal, window, bidir, all-causal",
            rule);
    const ingle_status st = family_dflash_set(&s->g, o, err);
    if (!st)
        *info = family_dflash_info(&s->g);
    return st;
}

/* Rows of a round after the block's. */
static void take(const struct dflash2 *s, struct device *d, int64_t n, struct round *round)
{
    /* f32 [n][n_embd]; [n][rank]; [n * top][rank] */
    round->x = device_rows(d, n, s->g.n_embd);
    round->by = device_rows(d, n, s->rank);
    round->follow = device_rows(d, n, s->rank);
    round->cand = device_rows(d, n * s->top, s->rank);
    round->id = device_bytes(d, (size_t)(n * s->top) * sizeof *round->id);
}

static void dflash2_begin(const void *self, struct family_round *r)
{
    const struct dflash2 *s = self;
    struct round *round = device_bytes(r->forward.device, sizeof *round), dry;
    r->state = round;
    round = round ? round : &dry;
    family_dflash_block(&s->g, r, &round->d);
    take(s, r->forward.device, r->forward.step->n_spans, round);
}

/* The n_best largest of a row, falling; ties keep the lower token first. */
static void best_of(const float *z, int64_t n, int64_t n_best, int32_t *id)
{
    int64_t have = 0;
    for (int64_t t = 0; t < n; t++) {
        if (have == n_best && !(z[t] > z[id[n_best - 1]]))
            continue;
        int64_t at = have < n_best ? have++ : n_best - 1;
        for (; at > 0 && z[t] > z[id[at - 1]]; at--)
            id[at] = id[at - 1];
        id[at] = (int32_t)t;
    }
}

/* Logits of the candidates: their own, and how they follow; no other token is drawn. */
static void put_scores(const struct dflash2 *s, const struct round *round, struct rows z,
                       struct rows by, struct rows logits)
{
    for (int64_t i = 0; i < z.n; i++) {
        float *to = logits.at + i * logits.stride;
        const float *a = by.at + i * by.stride;
        for (int64_t t = 0; t < logits.width; t++)
            to[t] = FAMILY_NEVER;
        for (int64_t c = 0; c < s->top; c++) {
            const float *b = round->cand.at + (i * s->top + c) * round->cand.stride;
            float sum = 0;
            for (int64_t k = 0; k < s->rank; k++)
                /* a dry run does not get here */
                sum += a[k] * b[k]; // NOLINT(clang-analyzer-core.NullDereference)
            to[round->id[i * s->top + c]] = z.at[i * z.stride + round->id[i * s->top + c]] + sum;
        }
    }
}

static void dflash2_next(const void *self, struct family_round *r, int64_t j, const int32_t *token,
                         int64_t n_spans, struct rows logits, float *confidence)
{
    const struct dflash2 *s = self;
    struct device *d = r->forward.device;
    struct round *round = r->state, dry;
    const size_t mark = device_mark(d);
    (void)confidence;
    if (!round) {
        round = &dry;
        family_dflash_dry(&s->g, r, &dry.d);
        take(s, d, n_spans, &dry);
    }
    const struct rows z = family_dflash_logits(&s->g, r, &round->d, j, n_spans),
                      x = rows_slice(round->x, 0, n_spans);
    const struct rows by = rows_slice(round->by, 0, n_spans),
                      follow = rows_slice(round->follow, 0, n_spans);
    device_copy(d, x, family_dflash_hidden(&s->g, &round->d, j, n_spans));
    device_matmul(d, &(struct device_product){s->hidden, 0, x, by, NULL}, 1);
    device_embed(d, follow, s->before, token, 1.0f);
    device_mul(d, by, follow);
    device_read_rows(d, z);
    for (int64_t i = 0; i < n_spans && device_runs(d); i++)
        best_of(z.at + i * z.stride, z.width, s->top, round->id + i * s->top);
    device_wrote(d, round->id, (size_t)(n_spans * s->top) * sizeof *round->id);
    device_embed(d, rows_slice(round->cand, 0, n_spans * s->top), s->after, round->id, 1.0f);
    device_read_rows(d, by);
    device_read_rows(d, round->cand);
    if (device_runs(d))
        put_scores(s, round, z, by, logits);
    device_wrote_rows(d, logits);
    device_release(d, mark);
}

const struct family_draft family_dflash2 = {
    .kind = "dflash2",
    .named = dflash2_named,
    .config = family_dflash_config,
    .rename = family_dflash_rename,
    .alias = family_dflash_alias,
    .hf_name = family_dflash_hf_name,
    .to_config = family_dflash_to_config,
    .fits = dflash2_fits,
    .bind = dflash2_bind,
    .set = dflash2_set,
    .kv = family_dflash_kv,
    .observe_begin = family_dflash_observe_begin,
    .observe_tap = family_dflash_observe_tap,
    .observe_wants = family_dflash_observe_wants,
    .observe_end = family_dflash_observe_end,
    .observed = family_dflash_observed,
    .begin = dflash2_begin,
    .next = dflash2_next,
    .free = dflash2_free,
};
