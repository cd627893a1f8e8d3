/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek4_mtp - the block that predicts one token more: a window-only layer of the family
 * over the sum of two projections, of the next token's embedding and of the target's streams,
 * with its own collapse of the streams; embedding and output matrix are the target's.
 *
 * Three spellings: `mtp.0.*` in the checkpoint (renamed) and in files with the block alone,
 * `blk.N.*` with `blk.N.nextn.*` behind the target's last layer, where both projections are
 * one matrix over the concatenation [embedding, stream].
 */
#include "family/deepseek4.h"

#include "base/mem.h"
#include <stdio.h>

struct mtp {
    const struct deepseek4 *g; /* the target */
    const struct device_vector *e_norm, *h_norm, *norm;
    const struct device_matrix *e_proj, *h_proj;
    const struct device_matrix *eh_proj; /* instead of the two; [n_embd][2 n_embd] */
    struct layer layer;
    struct hc hc_head;
};

static void mtp_free(void *self)
{
    struct mtp *m = self;
    if (!m)
        return;
    family_deepseek4_free_layer(&m->layer);
    mem_free(m->hc_head.numbers);
    mem_free(m);
}

static void bind_apart(struct binder *b, struct mtp *t)
{
    const int64_t n = b->g->n_embd;
    t->e_proj = family_deepseek4_matrix(b, "e_proj.weight", n, n, 1);
    t->h_proj = family_deepseek4_matrix(b, "h_proj.weight", n, n, 1);
    t->e_norm = family_deepseek4_vector(b, "enorm.weight", n);
    t->h_norm = family_deepseek4_vector(b, "hnorm.weight", n);
    t->norm = family_deepseek4_vector(b, "norm.weight", n);
    family_deepseek4_bind_hc(b, "hc_head", true, &t->hc_head);
}

static void bind_joined(struct binder *b, struct mtp *t)
{
    const int64_t n = b->g->n_embd;
    t->eh_proj = family_deepseek4_matrix(b, "nextn.eh_proj.weight", n, 2 * n, 1);
    t->e_norm = family_deepseek4_vector(b, "nextn.enorm.weight", n);
    t->h_norm = family_deepseek4_vector(b, "nextn.hnorm.weight", n);
    t->norm = family_deepseek4_vector(b, "nextn.shared_head_norm.weight", n);
    /* A file of its own has the block's collapse under the target's name. */
    b->prefix = "";
    family_deepseek4_bind_hc(b, "output_hc", true, &t->hc_head);
}

static ingle_status mtp_bind(void **self, const void *target, struct model *m, struct err *err)
{
    const struct deepseek4 *g = target;
    char joined[32], eh[64];
    snprintf(joined, sizeof joined, "blk.%lld.", (long long)g->n_layers);
    snprintf(eh, sizeof eh, "%snextn.eh_proj.weight", joined);
    const bool is_joined = model_find(m, eh) != NULL;
    if (!is_joined && !model_find(m, "mtp.0.e_proj.weight"))
        return err_set(err, INGLE_NOTFOUND, "'%s' has no draft block: neither 'mtp.0.e_proj.weight' nor '%s'",
                       io_path(model_file(m)), eh);
    struct mtp *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_set(err, INGLE_NOMEM, "no memory for a draft block");
    const struct layer *last = &g->layer[g->n_layers - 1];
    struct binder b = {m, g, is_joined ? joined : "mtp.0.", INGLE_OK, err};
    t->g = g;
    t->layer.limit = last->limit;
    t->layer.sh_limit = last->sh_limit;
    family_deepseek4_bind_layer(&b, &t->layer, false);
    (is_joined ? bind_joined : bind_apart)(&b, t);
    if (b.s) {
        mtp_free(t);
        return b.s;
    }
    model_skip(m, "token_embd.", "a copy of the target's embedding");
    model_skip(m, "output", "copies of the target's head");
    *self = t;
    return INGLE_OK;
}

static ingle_status mtp_kv(const void *self, enum kern_kv_codec codec, struct kv_spec *out,
                           struct err *err)
{
    const struct mtp *t = self;
    struct kv_spec spec = {.n_groups = 1, .n_streams = 1};
    spec.group[0].window = t->g->window;
    spec.stream = mem_calloc(1, sizeof *spec.stream);
    if (!spec.stream)
        return err_set(err, INGLE_NOMEM, "no memory for the KV layout");
    spec.stream[0] = (struct kv_stream){.kind = KV_ROWS, .n_heads = 1, .k_width = t->g->head,
        .v_width = t->g->n_rot, .k_codec = codec, .v_codec = codec, .every = 1};
    const ingle_status s = kv_layout(&spec, err);
    if (s)
        kv_spec_release(&spec);
    else
        *out = spec;
    return s;
}

static int64_t mtp_width(const void *self)
{
    const struct mtp *t = self;
    return t->g->n_hc * t->g->n_embd;
}

/* x = what the layer reads: e_proj e + h_proj h, for each of the streams of in. */
static void join(const struct mtp *t, struct pass *p, struct rows in, struct rows x)
{
    const int64_t n = t->g->n_embd, n_hc = t->g->n_hc;
    const size_t mark = device_mark(p->d);
    struct rows eh = device_rows(p->d, in.n, 2 * n), h = rows_columns(eh, n, n);
    struct rows e = rows_columns(eh, 0, n), from_e = device_rows(p->d, in.n, n);
    device_embed(p->d, e, t->g->embed, p->tokens, 1.0f);
    device_norm(p->d, e, e, t->e_norm, 1, t->g->eps);
    if (!t->eh_proj)
        device_matmul(p->d, &(struct device_product){t->e_proj, 0, e, from_e, NULL}, 1);
    for (int64_t j = 0; j < n_hc; j++) {
        struct rows to = rows_columns(x, j * n, n);
        device_norm(p->d, h, rows_columns(in, j * n, n), t->h_norm, 1, t->g->eps);
        const struct device_product product = {t->eh_proj ? t->eh_proj : t->h_proj, 0, t->eh_proj ? eh : h, to, NULL};
        device_matmul(p->d, &product, 1);
        if (!t->eh_proj)
            device_add(p->d, to, from_e);
    }
    device_release(p->d, mark);
}

static void mtp_forward(const void *self, const struct family_forward *f, struct rows in,
                        struct rows out)
{
    const struct mtp *t = self;
    const struct deepseek4 *g = t->g;
    struct pass p = {.g = g, .f = f, .d = f->device, .tokens = family_tokens(f), .pos = family_positions(f)};
    const int64_t n = f->step->n_rows, width = g->n_hc * g->n_embd;
    struct rows x = device_rows(p.d, n, width), y = device_rows(p.d, n, width);
    join(t, &p, in, x);
    p.rope[0] = device_rope_table(p.d, p.pos, n, g->inv_freq[0], g->n_rot / 2);
    family_deepseek4_layer(&p, &t->layer, x, y);
    device_copy(p.d, out, x);
    family_deepseek4_head(&p, &t->hc_head, t->norm, x);
}

const struct family_mtp family_deepseek4_mtp = {
    .bind = mtp_bind,
    .kv = mtp_kv,
    .width = mtp_width,
    .forward = mtp_forward,
    .free = mtp_free,
};
