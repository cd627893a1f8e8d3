/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek4_mtp - the block of DeepSeek V4 that predicts one token more: a window-only layer of the
 * family over the sum of two projections, of a token's embedding and of the target's streams at the
 * position before it, with its own collapse of the streams; embedding and output matrix are the
 * target's.
 *
 * What belongs to a token is at the token's position: its latent, made with the streams before it
 * (position 0 has none), and the target's streams there, which the next token needs.  So a step
 * writes at its own positions only, and of the streams only the newest row is needed.  Further
 * drafts follow from the block's own streams.
 *
 * Three spellings: `mtp.0.*` in the checkpoint (renamed) and in files with the block alone,
 * `blk.N.*` with `blk.N.nextn.*` after the target's last layer, where both projections are one
 * matrix over the concatenation [embedding, stream].
 */
#include "family/deepseek4.h"

#include "base/mem.h"
#include "base/num.h"
#include "family/hf/config.h"
#include "family/draft/drafts.h"
#include "family/table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4, MAX_LAYERS = 1024, OBSERVE_ROWS = 128 };

enum { LATENTS, STREAMS }; /* streams, each in a group of its own */

struct mtp {
    const struct deepseek4 *g; /* the target */
    int64_t context;           /* newest positions that a round sees; 0: the window */
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

/* ---- what fits ---- */

/* The prefix of a block as llama.cpp has it, by its joined projection; false: there is none. */
static bool find_joined(const struct model *m, char prefix[32])
{
    char name[64];
    for (int64_t i = 0; i < MAX_LAYERS; i++) {
        snprintf(prefix, 32, "blk.%lld.", (long long)i);
        snprintf(name, sizeof name, "%snextn.eh_proj.weight", prefix);
        if (model_find(m, name))
            return true;
    }
    return false;
}

static bool mtp_fits(const struct family *target, const struct model *m, const struct io_meta *meta)
{
    char prefix[32];
    (void)meta;
    return target == &family_deepseek4 &&
           (model_find(m, "mtp.0.e_proj.weight") || find_joined(m, prefix));
}

/* A number of the block's file that must be the target's. */
struct same { const char *key; int64_t want; };

static ingle_status check_pairing(const struct family_draft_target *t, const struct deepseek4 *g,
                                  const struct model *m, const struct io_meta *meta,
                                  struct err *err)
{
    const struct same same[] = {
        {"deepseek4.embedding_length", g->n_embd},
        {"deepseek4.hyper_connection.count", g->n_hc},
        {"deepseek4.attention.head_count", g->n_heads},
        {"deepseek4.attention.key_length", g->head},
        {"deepseek4.rope.dimension_count", g->n_rot},
        {"deepseek4.attention.q_lora_rank", g->q_rank},
        {"deepseek4.attention.output_lora_rank", g->o_rank},
        {"deepseek4.attention.output_group_count", g->o_groups},
        {"deepseek4.attention.sliding_window", g->window},
        {"deepseek4.expert_count", g->n_experts},
        {"deepseek4.expert_used_count", g->n_used},
        {"deepseek4.expert_feed_forward_length", g->n_ff},
        {"deepseek4.vocab_size", g->n_vocab},
    };
    const char *path = io_path(model_file(m));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        uint64_t is;
        if (!io_meta_find(meta, same[i].key))
            continue;
        const ingle_status s = io_get_u64(meta, same[i].key, 0, UINT32_MAX, &is, err);
        if (s)
            return s;
        if ((int64_t)is != same[i].want)
            return family_draft_unfit(t, path, same[i].key, (int64_t)is, "the target has",
                                      same[i].want, err);
    }
    return INGLE_OK;
}

static ingle_status find_block(const struct family_draft_target *t, const struct deepseek4 *g,
                               const struct model *m, bool *joined, char prefix[32],
                               struct err *err)
{
    const char *path = io_path(model_file(m));
    *joined = find_joined(m, prefix);
    if (model_find(m, "mtp.0.main_proj.weight"))
        return err_set(err, INGLE_UNSUP,
                       "'%s': tensor 'mtp.0.main_proj.weight' is of a DSpark drafter, whose stages "
                       "are stored as "
                       "'mtp.*': it is no draft block of one token",
                       path);
    if (*joined) {
        const int64_t layer = atoll(prefix + 4);
        return layer == g->n_layers
                   ? INGLE_OK
                   : family_draft_unfit(t, path, "layer of the block", layer,
                                        "the target's layers are", g->n_layers, err);
    }
    snprintf(prefix, 32, "mtp.0.");
    if (model_find(m, "mtp.0.e_proj.weight"))
        return INGLE_OK;
    return err_set(err, INGLE_NOTFOUND,
                   "'%s' has no draft block: neither 'mtp.0.e_proj.weight' nor "
                   "'blk.%lld.nextn.eh_proj.weight'",
                   path, (long long)g->n_layers);
}

static ingle_status mtp_bind(void **self, const struct family_draft_target *target, struct model *m,
                             const struct io_meta *meta, struct family_draft_info *info,
                             struct err *err)
{
    const struct deepseek4 *g = target->self;
    char prefix[32];
    bool joined;
    if (target->family != &family_deepseek4)
        return err_set(err, INGLE_UNSUP,
                       "'%s' is a draft block for DeepSeek V4, but the target is %s",
                       io_path(model_file(m)), target->family->arch);
    ingle_status s = check_pairing(target, g, m, meta, err);
    if (!s)
        s = find_block(target, g, m, &joined, prefix, err);
    if (s)
        return s;
    struct mtp *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_set(err, INGLE_NOMEM, "no memory for a draft block");
    const struct layer *last = &g->layer[g->n_layers - 1];
    struct binder b = {m, g, prefix, INGLE_OK, err, NULL};
    t->g = g;
    t->layer.limit = last->limit;
    t->layer.sh_limit = last->sh_limit;
    t->layer.raw = LATENTS;
    family_deepseek4_bind_layer(&b, &t->layer, false);
    (joined ? bind_joined : bind_apart)(&b, t);
    if (b.s) {
        mtp_free(t);
        return b.s;
    }
    model_skip(m, "token_embd.", "a copy of the target's embedding");
    model_skip(m, "output", "copies of the target's head");
    *info = (struct family_draft_info){.most = MOST, .rows = MOST};
    *self = t;
    return INGLE_OK;
}

static ingle_status mtp_set(void *self, const struct family_draft_options *o,
                            struct family_draft_info *info, struct err *err)
{
    struct mtp *t = self;
    if (o->rule)
        return err_set(err, INGLE_ARG, "a draft block of DeepSeek V4 has no rule '%.40s'", o->rule);
    if (o->block > MOST || o->tap != FAMILY_DRAFT_TAP_AFTER)
        return err_set(err, INGLE_ARG,
                       "a draft block of DeepSeek V4 drafts up to %d tokens, from the streams "
                       "after the last layer",
                       MOST);
    t->context = o->context;
    if (o->block)
        *info = (struct family_draft_info){.most = o->block, .rows = o->block};
    return INGLE_OK;
}

/* ---- KV layout ---- */

static ingle_status mtp_kv(const void *self, const struct kv_types *types, struct kv_spec *out,
                           struct err *err)
{
    const struct mtp *t = self;
    const struct deepseek4 *g = t->g;
    struct kv_spec spec = {.n_groups = 2, .n_streams = 2};
    spec.group[LATENTS].window = g->window;
    spec.group[STREAMS].window = 1;
    spec.group[STREAMS].ends = true;
    enum kern_kv_codec codec;
    const ingle_status fits = kv_types_of_rows(types, &codec, err);
    if (fits)
        return fits;
    spec.stream = mem_calloc(2, sizeof *spec.stream);
    if (!spec.stream)
        return err_set(err, INGLE_NOMEM, "no memory for the KV layout");
    spec.stream[LATENTS] = (struct kv_stream){.kind = KV_ROWS,
                                              .layer = (uint32_t)g->n_layers,
                                              .group = LATENTS,
                                              .n_heads = 1,
                                              .k_width = g->head,
                                              .v_width = g->n_rot,
                                              .k_codec = codec,
                                              .v_codec = codec,
                                              .every = 1};
    spec.stream[STREAMS] = (struct kv_stream){.kind = KV_ROWS,
                                              .layer = (uint32_t)g->n_layers,
                                              .group = STREAMS,
                                              .n_heads = 1,
                                              .k_width = g->n_hc * g->n_embd,
                                              .k_codec = KERN_KV_F32,
                                              .v_codec = KERN_KV_F32,
                                              .every = 1};
    const ingle_status s = kv_layout(&spec, err);
    if (s)
        kv_spec_release(&spec);
    else
        *out = spec;
    return s;
}

/* x = e_proj e + h_proj h, for each of the streams of in; in, x: [n][n_hc * n_embd]. */
static void join(const struct mtp *t, struct pass *p, struct rows in, struct rows x)
{
    const int64_t n = t->g->n_embd, n_hc = t->g->n_hc;
    const size_t mark = device_mark(p->d);
    struct rows eh = device_rows(p->d, in.n, 2 * n); /* [n][2 * n_embd]: e, then h */
    struct rows e = rows_columns(eh, 0, n);          /* [n][n_embd]: norm of the embedding */
    struct rows h = rows_columns(eh, n, n);          /* [n][n_embd]: norm of a stream */
    struct rows from_e = device_rows(p->d, in.n, n); /* [n][n_embd]: e_proj e */
    device_embed(p->d, e, t->g->embed, p->tokens, 1.0f);
    device_norm(p->d, e, e, t->e_norm, 1, t->g->eps);
    if (!t->eh_proj)
        device_matmul(p->d, &(struct device_product){t->e_proj, 0, e, from_e, NULL}, 1);
    for (int64_t j = 0; j < n_hc; j++) {
        struct rows to = rows_columns(x, j * n, n);
        device_norm(p->d, h, rows_columns(in, j * n, n), t->h_norm, 1, t->g->eps);
        const struct device_product product = {t->eh_proj ? t->eh_proj : t->h_proj, 0,
                                               t->eh_proj ? eh : h, to, NULL};
        device_matmul(p->d, &product, 1);
        if (!t->eh_proj)
            device_add(p->d, to, from_e);
    }
    device_release(p->d, mark);
}

static struct pass pass_of(const struct mtp *t, const struct family_forward *f,
                           const int32_t *tokens, const int64_t *pos, int64_t n)
{
    struct pass p = {.g = t->g, .f = f, .d = f->device, .tokens = tokens, .pos = pos};
    p.rope[0] = device_rope_table(p.d, pos, n, t->g->inv_freq[0], t->g->n_rot / 2);
    return p;
}

struct observe {
    struct device *d;
    int last;       /* the target's last layer */
    struct rows x;  /* [n_rows][n_hc * n_embd]: the streams after it */
};

static void *mtp_observe_begin(const void *self, const struct family_forward *f)
{
    const struct mtp *t = self;
    struct observe *o = device_bytes(f->device, sizeof *o);
    /* f32 [n_rows][n_hc * n_embd] */
    const struct rows x = device_rows(f->device, f->step->n_rows, t->g->n_hc * t->g->n_embd);
    if (o)
        *o = (struct observe){f->device, (int)t->g->n_layers - 1, x};
    return o;
}

static void mtp_observe_tap(const void *self, void *state, enum family_tap tap, int layer,
                            struct rows x)
{
    const struct observe *o = state;
    (void)self;
    if (o && tap == FAMILY_TAP_LAYER && layer == o->last)
        device_copy(o->d, o->x, x);
}

static bool mtp_observe_wants(const void *self, enum family_tap tap, int layer)
{
    const struct mtp *t = self;
    return tap == FAMILY_TAP_LAYER && layer == (int)t->g->n_layers - 1;
}

static struct rows mtp_observed(const void *self, const void *state, int64_t n_rows)
{
    const struct mtp *t = self;
    const struct observe *o = state;
    const int64_t width = t->g->n_hc * t->g->n_embd;
    return o ? o->x : (struct rows){NULL, n_rows, width, width};
}

/* The streams at the positions before rows [first, first + to.n) of the step; before: those before
 * each span. */
static void streams_before(const struct family_forward *f, struct rows x, struct rows before,
                           int64_t first, struct rows to)
{
    if (!device_runs(f->device))
        return;
    const int64_t skip = first ? 0 : 1;
    if (to.n > skip)
        device_copy(f->device, rows_slice(to, skip, to.n - skip),
                    rows_slice(x, first + skip - 1, to.n - skip));
    for (int64_t i = 0, row = 0; i < f->step->n_spans; row += f->step->span[i++].n)
        if (row >= first && row < first + to.n)
            device_copy(f->device, rows_slice(to, row - first, 1), rows_slice(before, i, 1));
}

static void mtp_observe_end(const void *self, const struct family_forward *f, void *state)
{
    const struct mtp *t = self;
    const int64_t n = f->step->n_rows, width = t->g->n_hc * t->g->n_embd;
    const struct rows x = mtp_observed(t, state, n);
    const size_t mark = device_mark(f->device);
    /* f32 [n_spans][n_hc * n_embd] */
    struct rows before = device_rows(f->device, f->step->n_spans, width);
    family_rows_append(f, STREAMS, x); /* first: a branch begins after rows of this step */
    family_rows_before(f, STREAMS, before);
    for (int64_t first = 0, k; first < n; first += k) {
        const size_t block_mark = device_mark(f->device);
        struct family_block b;
        k = num_min(OBSERVE_ROWS, n - first);
        family_block_begin(&b, f, first, k);
        struct pass p =
            pass_of(t, &b.forward, family_tokens(&b.forward), family_positions(&b.forward), k);
        struct rows in = device_rows(p.d, k, width); /* [k][n_hc * n_embd]: of the row before */
        struct rows z = device_rows(p.d, k, width);  /* [k][n_hc * n_embd]: joined with e */
        streams_before(f, x, before, first, in);
        join(t, &p, in, z);
        family_deepseek4_latents(&p, &t->layer, family_deepseek4_attn_input(&p, &t->layer, z));
        device_release(f->device, block_mark);
    }
    family_block_end(f);
    device_release(f->device, mark);
}

/* ---- a round ---- */

/* [n_spans][n_hc * n_embd]: streams at each span's newest position */
struct round { struct rows x; };

static void mtp_begin(const void *self, struct family_round *r)
{
    const struct mtp *t = self;
    const struct family_forward *f = &r->forward;
    const int64_t width = t->g->n_hc * t->g->n_embd;
    struct round *round = device_bytes(f->device, sizeof *round);
    const struct rows x = device_rows(f->device, f->step->n_spans, width);
    family_rows_before(f, STREAMS, x);
    for (int64_t i = 0; i < x.n && device_runs(f->device); i++)
        if (r->from[i] >= f->step->span[i].at) /* nothing is kept of that position */
            family_clear_rows(f->device, rows_slice(x, i, 1));
    if (round)
        round->x = x;
    r->state = round;
}

/* The first n spans, a row each, j tokens after the anchor; what they see begins where latents
 * do. */
static void lay_out(const struct mtp *t, const struct family_round *r, int64_t j,
                    const int32_t *token, int64_t n, struct family_span *span, int64_t *pos,
                    struct family_view *view)
{
    for (int64_t i = 0; i < n; i++) {
        const struct family_span *from = &r->forward.step->span[i];
        const int64_t last = from->at + j,
                      most = t->context ? num_min(t->context, t->g->window) : t->g->window;
        span[i] = (struct family_span){
            .timeline = from->timeline, .token = token + i, .n = 1, .at = last};
        pos[i] = last;
        view[i] = (struct family_view){last, num_max(1, num_min(most, last - r->from[i]))};
    }
}

static void mtp_next(const void *self, struct family_round *r, int64_t j, const int32_t *token,
                     int64_t n, struct rows logits, float *confidence)
{
    const struct mtp *t = self;
    struct device *d = r->forward.device;
    const int64_t width = t->g->n_hc * t->g->n_embd;
    const struct round *round = r->state;
    const struct rows x = round ? rows_slice(round->x, 0, n) : (struct rows){NULL, n, width, width};
    const size_t mark = device_mark(d);
    struct family_span *span = device_bytes(d, (size_t)n * sizeof *span);
    struct family_view *view = device_bytes(d, (size_t)n * sizeof *view);
    int64_t *pos = device_bytes(d, (size_t)n * sizeof *pos);
    struct family_forward f = r->forward;
    const bool runs = device_runs(d);
    (void)confidence;
    if (runs)
        lay_out(t, r, j, token, n, span, pos, view);
    const struct family_step step = {
        .span = runs ? span : NULL, .n_spans = runs ? n : 1, .n_rows = n};
    f.step = &step;
    device_prompt_rows(d, 0, 0);
    struct pass p = pass_of(t, &f, token, pos, n);
    p.view = runs ? view : NULL;
    /* both [n][n_hc * n_embd]: the streams */
    struct rows z = device_rows(d, n, width), y = device_rows(d, n, width);
    join(t, &p, x, z);
    family_deepseek4_layer(&p, &t->layer, z, y);
    device_copy(d, x, z);
    struct rows h = family_deepseek4_collapse(&p, &t->hc_head, z); /* [n][n_embd] */
    device_norm(d, h, h, t->norm, 1, t->g->eps);
    if (n <= r->wide.n)
        r->out = family_draft_head(r, t->g->out, h, 0);
    else
        device_matmul(d, &(struct device_product){t->g->out, 0, h, logits, NULL}, 1);
    device_release(d, mark);
}

/* ---- a checkpoint of the block ---- */

/* How many blocks there are, and the number of the first one among the layers. */
static uint64_t first_block(const struct io_file *file, uint64_t *n)
{
    struct family_back b = {file, NULL, INGLE_OK, NULL};
    const uint64_t all = family_back_get(&b, "deepseek4.block_count", 0);
    *n = family_back_get(&b, "deepseek4.nextn_predict_layers", 0);
    return *n < all ? all - *n : 0;
}

/* Blocks under the checkpoint's own names stand beside as many layers as the model has. */
static bool has_own_names(const struct io_file *file)
{
    for (size_t i = 0; i < io_n_tensors(file); i++)
        if (!strncmp(io_tensor_at(file, i)->name, "mtp.", 4))
            return true;
    return false;
}

static bool mtp_hf_name(const struct io_file *file, const char *name, char *out, size_t n_out)
{
    static const struct { const char *gguf, *hf;
    } own[] = {{"nextn.enorm.weight", "enorm.weight"},
               {"nextn.hnorm.weight", "hnorm.weight"},
               {"nextn.shared_head_norm.weight", "norm.weight"},
               {"nextn.e_proj.weight", "e_proj.weight"},
               {"nextn.h_proj.weight", "h_proj.weight"}};
    char usual[128];
    uint64_t n;
    unsigned layer;
    int used = 0;
    const uint64_t first = first_block(file, &n);
    if (has_own_names(file) || sscanf(name, "blk.%5u.%n", &layer, &used) != 1 || !used) {
        if (!strncmp(name, "output_hc_", 10))
            snprintf(usual, sizeof usual, "mtp.0.hc_head_%s", name + 10);
        else
            snprintf(usual, sizeof usual, "%s", name);
        return family_deepseek4_hf_name(usual, out, n_out);
    }
    if (layer < first || layer - first >= n)
        return false;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(name + used, own[i].gguf)) {
            snprintf(out, n_out, "mtp.%llu.%s", (unsigned long long)(layer - first), own[i].hf);
            return true;
        }
    snprintf(usual, sizeof usual, "mtp.%llu.%s", (unsigned long long)(layer - first), name + used);
    return family_deepseek4_hf_name(usual, out, n_out);
}

static ingle_status mtp_to_config(const struct io_file *file, struct json_object *out,
                                  struct err *err)
{
    struct family_back b = {file, out, INGLE_OK, err};
    uint64_t n;
    const uint64_t first = first_block(file, &n);
    b.s = family_deepseek4_to_config(file, out, err);
    if (!has_own_names(file))
        family_back_put(&b, out, "num_hidden_layers", json_object_new_int64((int64_t)first));
    family_back_put(&b, out, "num_nextn_predict_layers", json_object_new_int64((int64_t)n));
    return b.s;
}

const struct family_draft family_deepseek4_mtp = {
    .kind = "mtp",
    .rename = family_deepseek4_rename,
    .alias = family_deepseek4_alias,
    .hf_name = mtp_hf_name,
    .to_config = mtp_to_config,
    .fits = mtp_fits,
    .bind = mtp_bind,
    .set = mtp_set,
    .kv = mtp_kv,
    .observe_begin = mtp_observe_begin,
    .observe_tap = mtp_observe_tap,
    .observe_wants = mtp_observe_wants,
    .observe_end = mtp_observe_end,
    .observed = mtp_observed,
    .begin = mtp_begin,
    .next = mtp_next,
    .free = mtp_free,
};
