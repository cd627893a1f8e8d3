/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemma4_mtp - the assistant of Gemma 4: a few narrow layers that draft token by token.  They read
 * the target's keys and values (each kind of layer those of the target's last layer of the kind
 * that has any) and have none of their own.
 *
 * A step joins the target's embedding of the newest token with a hidden row: the target's, after
 * its output norm, at the position before the anchor, and then the step's own, projected back.  All
 * steps of a round stand at the anchor's position, and see what the target has computed before it.
 * All that is kept of a position is the hidden row, of the newest one.
 *
 * The head is dense, or ordered: tokens are in clusters, whose centroids choose which rows of it
 * are computed.
 *
 * Spellings: `nextn.*` in files of llama.cpp, `mtp.*` in others, a checkpoint's own names
 * (renamed).
 */
#include "family/gemma4.h"

#include "base/mem.h"
#include "base/num.h"
#include "family/hf/config.h"
#include "family/draft/dflash.h"
#include "family/draft/dflash_file.h"
#include "family/draft/drafts.h"
#include "family/rules.h"
#include "family/table.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST = 8,
    MAX_LAYERS = 64,
    MAX_WIDTH = 1 << 20,
    MAX_HEADS = 1024,
    MAX_HEAD_WIDTH = 8192,
    MAX_CHOSEN = 1 << 16
};

struct layer {
    const struct device_vector *attn_norm, *q_norm, *post_attn_norm, *ffn_norm, *post_ffn_norm;
    const struct device_matrix *q, *o, *gate, *up, *down;
    bool sliding;
    int64_t head, n_ff;
    uint32_t stream; /* the target's, whose keys and values it reads */
    float scale;
};

struct mtp {
    struct family_ends ends;
    int64_t n_layers, n_embd, n_heads, n_back /* the target's width */, n_vocab, window, context;
    bool hf;             /* rule of transformers; see view_of() */
    float eps;
    int64_t pairs[2];    /* rotating pairs of a head: [full, sliding] */
    double *inv_freq[2]; /* f64 [pairs], owned */
    struct layer *layer; /* owned */
    const struct device_matrix *pre, *post, *embed, *centroids /* NULL: the head is dense */;
    const struct device_vector *norm;
    int64_t n_centroids, top_k, each; /* tokens of a cluster */
    int32_t *order;      /* [n_vocab]: tokens, cluster by cluster; owned */
};

static void mtp_free(void *self)
{
    struct mtp *g = self;
    if (!g)
        return;
    mem_free(g->inv_freq[0]);
    mem_free(g->inv_freq[1]);
    mem_free(g->layer);
    mem_free(g->order);
    mem_free(g);
}

/* ---- which files ---- */

static bool mtp_fits(const struct family *target, const struct model *m, const struct io_meta *meta)
{
    const char *arch = family_architecture(meta);
    (void)target;
    return !strcmp(arch, "gemma4-assistant") || !strcmp(arch, "gemma4_assistant") ||
           (!strcmp(arch, "gemma4") &&
            (model_find(m, "nextn.pre_projection.weight") ||
             model_find(m, "mtp.pre_projection.weight") || model_find(m, "pre_projection.weight")));
}

static bool mtp_named(struct json_object *config)
{
    struct json_object *type = family_config_get(config, "model_type");
    return type && !strcmp(json_object_get_string(type), "gemma4_assistant");
}

static const struct { const char *from, *to; } names[] = {
    {"pre_projection.weight", "nextn.pre_projection.weight"},
    {"post_projection.weight", "nextn.post_projection.weight"},
    {"mtp.pre_projection.weight", "nextn.pre_projection.weight"},
    {"mtp.post_projection.weight", "nextn.post_projection.weight"},
    {"masked_embedding.centroids.weight", "masked_embd_centroids.weight"},
    {"mtp.centroids.weight", "masked_embd_centroids.weight"},
    {"masked_embd_centroids", "masked_embd_centroids.weight"},
    {"mtp.centroids", "masked_embd_centroids.weight"},
    {"masked_embedding.token_ordering", "masked_embd_ordering"},
    {"masked_embd_ordering.weight", "masked_embd_ordering"},
    {"mtp.token_ordering", "masked_embd_ordering"},
    {"mtp.token_ordering.weight", "masked_embd_ordering"},
};

static bool mtp_alias(const char *name, char *out, size_t n_out)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (family_config_rename(name, names[i].from, names[i].to, "", out, n_out))
            return true;
    return false;
}

static bool mtp_rename(const char *name, char *out, size_t n_out)
{
    return mtp_alias(name, out, n_out) || family_gemma4_rename(name, out, n_out);
}

/* Members of the config beside 'text_config', which says the rest as the target's does. */
static ingle_status mtp_config(struct json_object *config, struct io_meta *out,
                               const struct report_sink *sink, struct err *err)
{
    static const struct { const char *hf, *gguf; } whole[] = {
        {"backbone_hidden_size", "gemma4.embedding_length_out"},
        {"num_centroids", "gemma4.n_centroids"},
        {"centroid_intermediate_top_k", "gemma4.centroid_top_k"},
    };
    struct json_object *text = family_config_get(config, "text_config");
    struct family_config c = {config, out, sink, INGLE_OK, err};
    if (!text)
        return err_set(err, INGLE_FORMAT, "config.json: 'text_config' is missing");
    c.s = io_meta_set_str(out, "general.architecture", "gemma4", 6);
    json_object_object_del(text, "use_bidirectional_attention"); /* it drafts text only */
    if (!c.s)
        c.s = family_gemma4_config(text, out, sink, err);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!i || family_config_get(config, whole[i].hf))
            family_config_whole(&c, config, whole[i].hf, whole[i].gguf, -1);
    if (!c.s)
        c.s = io_meta_set_bool(out, "gemma4.use_ordered_embeddings",
                               family_config_flag(&c, "use_ordered_embeddings"));
    return c.s;
}

static bool mtp_hf_name(const struct io_file *file, const char *name, char *out, size_t n_out)
{
    static const struct { const char *gguf, *hf; } own[] = {
        {"nextn.pre_projection.weight", "pre_projection.weight"},
        {"nextn.post_projection.weight", "post_projection.weight"},
        {"masked_embd_centroids.weight", "masked_embedding.centroids.weight"},
        {"masked_embd_ordering", "masked_embedding.token_ordering"},
    };
    (void)file;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(name, own[i].gguf)) {
            snprintf(out, n_out, "%s", own[i].hf);
            return true;
        }
    return family_gemma4_hf_name(name, out, n_out);
}

static ingle_status mtp_to_config(const struct io_file *file, struct json_object *out,
                                  struct err *err)
{
    struct family_back b = {file, out, INGLE_OK, err};
    family_back_begin(&b, "Gemma4AssistantForCausalLM", "gemma4_assistant");
    json_object_object_del(out, "vocab_size");
    family_back_whole(&b, out, "backbone_hidden_size",
                      family_back_get(&b, "gemma4.embedding_length_out", 0)
                          ? "gemma4.embedding_length_out"
                          : "gemma4.n_embd_backbone");
    family_back_put(&b, out, "use_ordered_embeddings",
                    json_object_new_boolean(io_tensor_find(file, "masked_embd_centroids.weight") ||
                                            io_tensor_find(file, "mtp.centroids.weight")));
    family_back_whole(&b, out, "num_centroids", "gemma4.n_centroids");
    family_back_whole(&b, out, "centroid_intermediate_top_k", "gemma4.centroid_top_k");
    struct json_object *text = family_back_object(&b, out, "text_config");
    return b.s ? b.s : family_gemma4_to_config(file, text, err);
}

static const struct family_key keys[] = {
    {"block_count", READ},
    {"context_length", FREE},
    {"vocab_size", READ},
    {"embedding_length", READ},
    {"embedding_length_out", READ},
    {"n_embd_backbone", READ},
    {"nextn_predict_layers", FREE},
    {"feed_forward_length", READ},
    {"final_logit_softcapping", READ},
    {"embedding_length_per_layer_input", FAMILY_KEY_NUMBER, 0, 0, NULL},
    {"attention.head_count", READ},
    {"attention.head_count_kv", FREE}, /* the target's */
    {"attention.key_length", READ},
    {"attention.key_length_swa", READ},
    {"attention.value_length", SAME("attention.key_length")},
    {"attention.value_length_swa", SAME("attention.key_length_swa")},
    {"attention.layer_norm_rms_epsilon", READ},
    {"attention.scale", FAMILY_KEY_NUMBER, 1, 0, NULL},
    {"attention.k_eq_v", FREE},
    {"attention.shared_kv_layers", READ},
    {"attention.sliding_window", READ},
    {"attention.sliding_window_pattern", READ},
    {"rope.freq_base", READ},
    {"rope.freq_base_swa", READ},
    {"rope.partial_rotary_factor", READ},
    {"rope.dimension_count", SAME("attention.key_length")},
    {"rope.dimension_count_swa", SAME("attention.key_length_swa")},
    {"n_centroids", READ},
    {"centroid_top_k", READ},
    {"use_ordered_embeddings", READ},
    {"requires_target_arch", READ},
    {"assistant*", FREE},
    {NULL, READ},
};

/* ---- what the file says ---- */

static void read_numbers(struct mtp *g, struct dflash_keys *k)
{
    g->n_layers = family_dflash_whole(k, "block_count", 1, MAX_LAYERS, -1);
    g->n_embd = family_dflash_whole(k, "embedding_length", 1, MAX_WIDTH, -1);
    g->n_heads = family_dflash_whole(k, "attention.head_count", 1, MAX_HEADS, -1);
    g->window = family_dflash_whole(k, "attention.sliding_window", 1, 1 << 24, -1);
    g->eps = (float)family_dflash_number(k, "attention.layer_norm_rms_epsilon", 0, 1, 1e-6);
    const int64_t shared =
        family_dflash_whole(k, "attention.shared_kv_layers", 0, MAX_LAYERS, g->n_layers);
    if (!k->s && shared != g->n_layers)
        k->s = err_set(k->err, INGLE_UNSUP,
                       "'%s': 'attention.shared_kv_layers' is %lld of %lld layers: all layers of "
                       "an assistant read "
                       "the target's keys and values",
                       k->path, (long long)shared, (long long)g->n_layers);
    if (!k->s && !(g->layer = mem_calloc((size_t)g->n_layers, sizeof *g->layer)))
        k->s = err_set(k->err, INGLE_NOMEM, "no memory for %lld layers", (long long)g->n_layers);
}

static void read_layers(struct mtp *g, struct dflash_keys *k)
{
    uint64_t ff[MAX_LAYERS];
    bool sliding[MAX_LAYERS];
    char full[128];
    const int64_t head = family_dflash_whole(k, "attention.key_length", 4, MAX_HEAD_WIDTH, -1);
    const int64_t head_swa =
        family_dflash_whole(k, "attention.key_length_swa", 4, MAX_HEAD_WIDTH, head);
    if (k->s)
        return;
    family_dflash_key(k, "feed_forward_length", full);
    k->s = io_get_u64s(k->meta, full, (size_t)g->n_layers, 1, MAX_WIDTH, ff, k->err);
    family_dflash_key(k, "attention.sliding_window_pattern", full);
    if (!k->s)
        k->s = io_get_bools(k->meta, full, (size_t)g->n_layers, sliding, k->err);
    for (int64_t i = 0; !k->s && i < g->n_layers; i++) {
        struct layer *l = &g->layer[i];
        l->sliding = sliding[i];
        l->head = sliding[i] ? head_swa : head;
        l->n_ff = (int64_t)ff[i];
        if (l->head % 4)
            k->s = err_set(k->err, INGLE_UNSUP,
                           "'%s': attention heads of width %lld: expected a multiple of 4", k->path,
                           (long long)l->head);
    }
}

/* Frequencies: full layers rotate only the first pairs, by factors of 1e30 or by a share. */
static void read_rope(struct mtp *g, struct dflash_keys *k, struct model *m)
{
    static const char tensor[] = "rope_freqs.weight";
    const int64_t head[2] = {family_dflash_whole(k, "attention.key_length", 4, MAX_HEAD_WIDTH, 4),
                             family_dflash_whole(k, "attention.key_length_swa|attention.key_length",
                                                 4, MAX_HEAD_WIDTH, 4)};
    const double base[2] = {family_dflash_number(k, "rope.freq_base", 1, 1e12, 1e6),
                            family_dflash_number(k, "rope.freq_base_swa", 1, 1e12, 1e4)};
    const double share = family_dflash_number(k, "rope.partial_rotary_factor", 0, 1, 0);
    float factor[MAX_HEAD_WIDTH / 2];
    for (int t = 0; t < 2 && !k->s; t++) {
        g->pairs[t] = head[t] / 2;
        g->inv_freq[t] = mem_calloc((size_t)g->pairs[t], sizeof(double));
        if (!g->inv_freq[t])
            k->s = err_set(k->err, INGLE_NOMEM, "no memory for rotations");
        for (int64_t i = 0; !k->s && i < g->pairs[t]; i++)
            g->inv_freq[t][i] = pow(base[t], -2.0 * (double)i / (double)head[t]);
    }
    if (k->s)
        return;
    if (!model_find(m, tensor)) {
        g->pairs[0] = (int64_t)(share * (double)g->pairs[0]);
        if (share <= 0)
            k->s = err_set(k->err, INGLE_FORMAT,
                           "'%s': tensor '%s' is missing, and no share of rotating pairs is given",
                           k->path, tensor);
        return;
    }
    k->s = model_floats(m, tensor, g->pairs[0], factor, k->err);
    for (int64_t i = 0, n = g->pairs[0]; !k->s && i < n; i++) {
        if (!(factor[i] > 0.0f))
            k->s = err_set(k->err, INGLE_FORMAT,
                           "'%s': tensor '%s' has %g at %lld, expected more than 0", k->path,
                           tensor, (double)factor[i], (long long)i);
        g->inv_freq[0][i] /= (double)factor[i];
        g->pairs[0] = factor[i] < 1e20f ? i + 1 : i ? g->pairs[0] : 0;
    }
}

/* ---- what fits ---- */

/* The field as the file has it. */
static const char *field(const struct dflash_keys *k, const char *names_, char full[128])
{
    family_dflash_key(k, names_, full);
    return full;
}

static void check_pairing(struct mtp *g, struct dflash_keys *k, const struct family_draft_target *t,
                          const struct model *m)
{
    static const char back[] = "embedding_length_out|n_embd_backbone";
    const struct io_tensor *embed = model_find(m, "token_embd.weight");
    char full[128];
    const struct io_value *arch = family_dflash_key(k, "requires_target_arch", full);
    if (k->s)
        return;
    if (t->family != &family_gemma4 ||
        (arch && arch->kind == IO_STR && strcmp(arch->v.s, t->family->arch) != 0)) {
        k->s =
            err_set(k->err, INGLE_UNSUP,
                    "'%s' is an assistant (multi-token prediction) for %s, but the target is %s",
                    k->path, arch && arch->kind == IO_STR ? arch->v.s : "gemma4", t->family->arch);
        return;
    }
    const int64_t n_back = family_dflash_whole(k, back, 1, MAX_WIDTH, -1);
    if (!k->s && n_back != g->n_back)
        k->s = family_draft_unfit(t, k->path,
                                  k->checkpoint ? "backbone_hidden_size" : field(k, back, full),
                                  n_back, "the target's width is", g->n_back, k->err);
    const int64_t tokens = family_dflash_whole(k, "vocab_size", 1, 1 << 24, g->n_vocab);
    if (!k->s && tokens != g->n_vocab)
        k->s = family_draft_unfit(t, k->path,
                                  k->checkpoint ? "vocab_size" : field(k, "vocab_size", full),
                                  tokens, "the target's tokens are", g->n_vocab, k->err);
    if (!k->s && !embed)
        k->s =
            err_set(k->err, INGLE_FORMAT,
                    "'%s': tensor 'token_embd.weight', the assistant's head, is missing", k->path);
    if (!k->s && embed->n_dims == 2 && (int64_t)embed->ne[1] != g->n_vocab)
        k->s = family_draft_unfit(t, k->path, embed->name, (int64_t)embed->ne[1],
                                  "the target's tokens are", g->n_vocab, k->err);
}

/* The target's streams that layers read: of each kind the last one. */
static void find_donors(struct mtp *g, struct dflash_keys *k, const struct family_draft_target *t)
{
    struct kv_spec spec = {0};
    const struct kv_types plain = kv_types_of(KERN_KV_F32);
    int64_t donor[2] = {-1, -1};
    char full[128];
    if (!k->s)
        k->s = t->family->kv(t->self, &plain, &spec, k->err);
    for (uint32_t i = 0; !k->s && i < spec.n_streams; i++)
        if (spec.stream[i].kind == KV_HEADS)
            donor[spec.group[spec.stream[i].group].window > 0] = i;
    for (int64_t i = 0; !k->s && i < g->n_layers; i++) {
        struct layer *l = &g->layer[i];
        const struct kv_stream *s = donor[l->sliding] < 0 ? NULL : &spec.stream[donor[l->sliding]];
        const char *key =
            l->sliding ? "attention.key_length_swa|attention.key_length" : "attention.key_length";
        if (!s)
            k->s = err_set(k->err, INGLE_UNSUP,
                           "'%s': layer %lld is a %s one, of which the target has none", k->path,
                           (long long)i, l->sliding ? "sliding" : "full");
        else if (s->k_width != l->head)
            k->s = family_draft_unfit(
                t, k->path,
                k->checkpoint ? l->sliding ? "head_dim" : "global_head_dim" : field(k, key, full),
                l->head,
                l->sliding ? "the target's sliding heads are" : "the target's full heads are",
                s->k_width, k->err);
        else if (g->n_heads % s->n_heads)
            k->s = family_draft_unfit(
                t, k->path,
                k->checkpoint ? "num_attention_heads" : field(k, "attention.head_count", full),
                g->n_heads, "they must be shared evenly by the target's key heads, which are",
                s->n_heads, k->err);
        else if (l->sliding && spec.group[s->group].window != g->window)
            k->s = family_draft_unfit(
                t, k->path,
                k->checkpoint ? "sliding_window" : field(k, "attention.sliding_window", full),
                g->window, "the target's window is", spec.group[s->group].window, k->err);
        else
            l->stream = (uint32_t)donor[l->sliding];
    }
    kv_spec_release(&spec);
}

/* ---- weights ---- */

struct binder { struct model *m; struct dflash_keys *k; int64_t il; };

static const char *name_of(const struct binder *b, const char *suffix, char out[96])
{
    if (b->il < 0)
        snprintf(out, 96, "%s", suffix);
    else
        snprintf(out, 96, "blk.%lld.%s", (long long)b->il, suffix);
    return out;
}

static const struct device_matrix *matrix(const struct binder *b, const char *suffix, int64_t out,
                                          int64_t in)
{
    char name[96];
    const struct device_matrix *w = NULL;
    if (!b->k->s)
        b->k->s = model_matrix(b->m, name_of(b, suffix, name), out, in, 1, &w, b->k->err);
    return w;
}

static const struct device_vector *vector(const struct binder *b, const char *suffix, int64_t n)
{
    char name[96];
    const struct device_vector *w = NULL;
    if (!b->k->s)
        b->k->s = model_vector(b->m, name_of(b, suffix, name), n, &w, b->k->err);
    return w;
}

static void bind_layer(const struct mtp *g, const struct binder *b, struct layer *l)
{
    char name[96];
    const int64_t n_q = g->n_heads * l->head;
    l->attn_norm = vector(b, "attn_norm.weight", g->n_embd);
    l->q = matrix(b, "attn_q.weight", n_q, g->n_embd);
    l->q_norm = vector(b, "attn_q_norm.weight", l->head);
    l->o = matrix(b, "attn_output.weight", g->n_embd, n_q);
    l->post_attn_norm = vector(b, "post_attention_norm.weight", g->n_embd);
    l->ffn_norm = vector(b, "ffn_norm.weight", g->n_embd);
    l->gate = matrix(b, "ffn_gate.weight", l->n_ff, g->n_embd);
    l->up = matrix(b, "ffn_up.weight", l->n_ff, g->n_embd);
    l->down = matrix(b, "ffn_down.weight", g->n_embd, l->n_ff);
    l->post_ffn_norm = vector(b, "post_ffw_norm.weight", g->n_embd);
    if (!b->k->s)
        b->k->s = model_floats(b->m, name_of(b, "layer_output_scale.weight", name), 1, &l->scale,
                               b->k->err);
}

/* A cluster has as many tokens as any other, and a token is in one. */
static void check_order(const struct mtp *g, struct dflash_keys *k, const char *tensor)
{
    bool *seen = k->s ? NULL : mem_calloc((size_t)g->n_vocab, sizeof *seen);
    if (!k->s && !seen)
        k->s = err_set(k->err, INGLE_NOMEM, "no memory for tensor '%s'", tensor);
    for (int64_t i = 0; !k->s && i < g->n_vocab; i++) {
        if (seen[g->order[i]])
            k->s = err_set(k->err, INGLE_FORMAT, "'%s': tensor '%s' has token %d twice", k->path,
                           tensor, g->order[i]);
        seen[g->order[i]] = true;
    }
    mem_free(seen);
}

static void bind_clusters(struct mtp *g, const struct binder *b)
{
    static const char centroids[] = "masked_embd_centroids.weight",
                      order[] = "masked_embd_ordering";
    struct dflash_keys *k = b->k;
    const bool there = model_find(b->m, centroids) != NULL,
               said = family_dflash_flag(k, "use_ordered_embeddings", there);
    if (k->s || (!there && !model_find(b->m, order)))
        return; /* some writers leave them out: the dense head is the exact one */
    if (!said) {
        model_skip(b->m, "masked_embd", "'use_ordered_embeddings' is false: the head is dense");
        return;
    }
    g->n_centroids = model_matrix_rows(b->m, centroids, g->n_vocab);
    const int64_t n = family_dflash_whole(k, "n_centroids", 1, 1 << 24, g->n_centroids);
    g->top_k = family_dflash_whole(k, "centroid_top_k", 1, 1 << 24, 32);
    g->each = g->n_centroids ? g->n_vocab / g->n_centroids : 0;
    if (!k->s && (!g->n_centroids || g->n_vocab % g->n_centroids || n != g->n_centroids ||
                  g->top_k > g->n_centroids || g->top_k * g->each > MAX_CHOSEN))
        k->s = err_set(k->err, INGLE_FORMAT,
                       "'%s': %lld of %lld centroids ('%s' has %lld) for %lld tokens: expected a "
                       "divisor of the "
                       "tokens, and at most %d tokens of the chosen ones",
                       k->path, (long long)g->top_k, (long long)n, centroids,
                       (long long)g->n_centroids, (long long)g->n_vocab, MAX_CHOSEN);
    g->centroids = matrix(b, centroids, num_max(1, g->n_centroids), g->n_embd);
    g->order = mem_calloc((size_t)g->n_vocab, sizeof *g->order);
    if (!k->s && !g->order)
        k->s = err_set(k->err, INGLE_NOMEM, "no memory for tensor '%s'", order);
    if (!k->s)
        k->s = model_ints(b->m, order, g->n_vocab, 1, 0, (int32_t)g->n_vocab - 1, g->order, k->err);
    check_order(g, k, order);
}

static void bind_weights(struct mtp *g, struct dflash_keys *k, struct model *m)
{
    struct binder b = {m, k, -1};
    if (!k->s)
        k->s = family_check_layers(m, "gemma4-assistant", g->n_layers, NULL, k->err);
    g->pre = matrix(&b, "nextn.pre_projection.weight", g->n_embd, 2 * g->n_back);
    g->post = matrix(&b, "nextn.post_projection.weight", g->n_back, g->n_embd);
    g->embed = matrix(&b, "token_embd.weight", g->n_vocab, g->n_embd);
    g->norm = vector(&b, "output_norm.weight", g->n_embd);
    bind_clusters(g, &b);
    for (b.il = 0; b.il < g->n_layers && !k->s; b.il++)
        bind_layer(g, &b, &g->layer[b.il]);
    if (model_find(m, "output.weight"))
        model_skip(m, "output.weight", "a copy of the embedding");
}

static ingle_status mtp_bind(void **self, const struct family_draft_target *target, struct model *m,
                             const struct io_meta *meta, struct family_draft_info *info,
                             struct err *err)
{
    struct mtp *g = mem_zalloc(sizeof *g);
    struct dflash_keys k;
    if (!g)
        return err_set(err, INGLE_NOMEM, "no memory for a drafter");
    family_dflash_keys(&k, m, meta, err);
    if (io_kind(model_file(m)) == IO_GGUF)
        k.s = family_keys_check(meta, k.path, k.arch, keys, model_sink(m), err);
    g->n_back = target->info->n_embd;
    g->n_vocab = target->info->n_vocab;
    check_pairing(g, &k, target, m);
    read_numbers(g, &k);
    read_layers(g, &k);
    find_donors(g, &k, target);
    read_rope(g, &k, m);
    if (!k.s)
        target->family->ends(target->self, &g->ends);
    bind_weights(g, &k, m);
    if (k.s) {
        mtp_free(g);
        return k.s;
    }
    *info = (struct family_draft_info){.most = MOST, .rows = 1};
    *self = g;
    return INGLE_OK;
}

static ingle_status mtp_set(void *self, const struct family_draft_options *o,
                            struct family_draft_info *info, struct err *err)
{
    struct mtp *g = self;
    if (o->rule && strcmp(o->rule, "rec") != 0 && strcmp(o->rule, "hf") != 0)
        return err_set(err, INGLE_ARG, "an assistant of Gemma 4 has no rule '%.40s': rec, hf",
                       o->rule);
    g->hf = o->rule && !strcmp(o->rule, "hf");
    if (o->block > MOST || o->tap != FAMILY_DRAFT_TAP_AFTER)
        return err_set(
            err, INGLE_ARG,
            "an assistant of Gemma 4 drafts up to %d tokens, from the row after the output norm",
            MOST);
    g->context = o->context;
    if (o->block)
        info->most = o->block;
    return INGLE_OK;
}

/* ---- KV layout ---- */

static ingle_status mtp_kv(const void *self, const struct kv_types *types, struct kv_spec *out,
                           struct err *err)
{
    const struct mtp *g = self;
    struct kv_spec spec = {.n_groups = 1, .n_streams = 1};
    (void)types;
    spec.group[0].window = 1;
    spec.group[0].ends = true;
    spec.stream = mem_calloc(1, sizeof *spec.stream);
    if (!spec.stream)
        return err_set(err, INGLE_NOMEM, "no memory for the KV layout");
    spec.stream[0] = (struct kv_stream){.kind = KV_ROWS,
                                        .n_heads = 1,
                                        .k_width = g->n_back,
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

/* [n_rows][n_back]: after the target's output norm */
struct observe { struct device *d; struct rows y; };

static void *mtp_observe_begin(const void *self, const struct family_forward *f)
{
    const struct mtp *g = self;
    struct observe *o = device_bytes(f->device, sizeof *o);
    /* f32 [n_rows][n_back] */
    const struct rows y = device_rows(f->device, f->step->n_rows, g->n_back);
    if (o)
        *o = (struct observe){f->device, y};
    return o;
}

static void mtp_observe_tap(const void *self, void *state, enum family_tap tap, int layer,
                            struct rows x)
{
    const struct observe *o = state;
    (void)self;
    (void)layer;
    if (o && tap == FAMILY_TAP_NORM)
        device_copy(o->d, o->y, x);
}

static void mtp_observe_end(const void *self, const struct family_forward *f, void *state)
{
    const struct mtp *g = self;
    const struct observe *o = state;
    family_rows_append(f, 0, o ? o->y : (struct rows){NULL, f->step->n_rows, g->n_back, g->n_back});
}

/* ---- a round ---- */

/* Of all spans. */
struct round {
    struct rows join;    /* [n][2 n_back]: the embedding of the newest token, the hidden row */
    struct device_rope rope[2];
    int64_t *pos; /* [n]: how much is before it */
};

static void mtp_begin(const void *self, struct family_round *r)
{
    const struct mtp *g = self;
    struct device *d = r->forward.device;
    const struct family_step *step = r->forward.step;
    const int64_t n = step->n_spans;
    struct round *to = device_bytes(d, sizeof *to), dry, *round = to ? to : &dry;
    /* f32 [n][2 * n_back]: an embedding, and the target's last rows */
    round->join = device_rows(d, n, 2 * g->n_back);
    round->pos = device_bytes(d, (size_t)n * sizeof *round->pos);
    const struct rows h = rows_columns(round->join, g->n_back, g->n_back);
    family_rows_before(&r->forward, 0, h);
    for (int64_t i = 0; i < n && device_runs(d); i++) {
        round->pos[i] = step->span[i].at;
        if (r->from[i] >= step->span[i].at) /* nothing is kept of the position before */
            family_clear_rows(d, rows_slice(h, i, 1));
    }
    device_prompt_rows(d, 0, 0);
    for (int t = 0; t < 2; t++)
        round->rope[t] =
            device_rope_table(d, family_positions(&r->forward), n, g->inv_freq[t], g->pairs[t]);
    r->state = to;
}

struct pass {
    const struct mtp *g;
    struct family_forward f; /* of the target's streams */
    struct device *d;
    struct device_rope rope[2];
    const int64_t *pos;
    struct family_view *view[2]; /* of full, of sliding layers */
};

/* What the row at a span's anchor sees of the target's: all before it, or as much of that as a
 * window has beside the row (rule `rec`), but the token before it in any case.  Transformers lets
 * it see one more than a window (`hf`); that one is left out where its page may have been dropped.
 */
static struct family_view view_of(const struct mtp *g, bool sliding, const struct family_span *s)
{
    const int64_t pos = s->at, kept = pos > g->window ? (pos - g->window) / KV_PAGE * KV_PAGE : 0;
    const int64_t first =
        sliding ? num_max(kept,
                          family_window_first(s->timeline, pos, g->hf ? g->window + 2 : g->window))
                : 0;
    int64_t n = sliding ? num_max(1, pos - first) : 0;
    if (g->context && pos)
        n = num_min(n ? n : pos, g->context);
    /* nothing: attend() */
    return pos ? (struct family_view){pos - 1, n} : (struct family_view){0, 1};
}

static void attend(const struct pass *p, const struct layer *l, struct rows q, struct rows o)
{
    family_attend_views(&p->f, l->stream, q, p->g->n_heads, o, p->view[l->sliding], 1.0f);
    for (int64_t i = 0; i < o.n && device_runs(p->d); i++)
        if (!p->pos[i])
            family_clear_rows(p->d, rows_slice(o, i, 1));
}

static void one_matmul(struct device *d, const struct device_matrix *w, struct rows x,
                       struct rows y)
{
    device_matmul(d, &(struct device_product){w, 0, x, y, NULL}, 1);
}

/* x += norm(W_o attention(norm(x))), then x = (x + norm(mlp(norm(x)))) * scale; the keys and
 * values are the target's.  x: [n][n_embd]. */
static void layer(const struct pass *p, const struct layer *l, struct rows x)
{
    const struct mtp *g = p->g;
    const size_t mark = device_mark(p->d);
    struct rows h = device_rows(p->d, x.n, g->n_embd);            /* [n][n_embd]: norm(x) */
    struct rows y = device_rows(p->d, x.n, g->n_embd);            /* [n][n_embd]: added to x */
    struct rows q = device_rows(p->d, x.n, g->n_heads * l->head); /* [n][n_heads * head] */
    struct rows o = device_rows(p->d, x.n, g->n_heads * l->head); /* [n][n_heads * head] */
    device_norm(p->d, h, x, l->attn_norm, 1, g->eps);
    one_matmul(p->d, l->q, h, q);
    device_norm(p->d, q, q, l->q_norm, g->n_heads, g->eps);
    device_rope(p->d, q, &p->rope[l->sliding], g->n_heads, l->head / 2);
    attend(p, l, q, o);
    one_matmul(p->d, l->o, o, y);
    device_add_norm(p->d, x, y, l->post_attn_norm, g->eps, 1.0f);
    device_norm(p->d, h, x, l->ffn_norm, 1, g->eps);
    device_mlp(
        p->d,
        &(struct device_mlp){.gate = l->gate, .up = l->up, .down = l->down, .act = DEVICE_GELU}, h,
        y);
    device_add_norm(p->d, x, y, l->post_ffn_norm, g->eps, l->scale);
    device_release(p->d, mark);
}

/* The k largest of c [n], by their number, largest first. */
static void choose(const float *c, int64_t n, int64_t k, int32_t *best)
{
    int64_t have = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = have < k ? have++ : k;
        for (; at > 0 && c[i] > c[best[at - 1]]; at--)
            if (at < k)
                best[at] = best[at - 1];
        if (at < k)
            best[at] = (int32_t)i;
    }
}

/* Logits [n][n_vocab] of y [n][n_embd]: of the tokens of the top_k best clusters; all others get a
 * lower value. */
static void ordered_head(const struct mtp *g, struct device *d, struct rows y, struct rows logits)
{
    const int64_t n = g->top_k * g->each;
    struct rows c = device_rows(d, y.n, g->n_centroids); /* [y.n][n_centroids]: cluster scores */
    struct rows row = device_rows(d, n, g->n_embd);      /* [n][n_embd]: embeddings of tokens */
    int32_t *best = device_bytes(d, (size_t)g->top_k * sizeof *best),
            *token = device_bytes(d, (size_t)n * sizeof *token);
    one_matmul(d, g->centroids, y, c);
    device_read_rows(d, c);
    device_read_rows(d, y);
    for (int64_t i = 0; i < y.n; i++) {
        float *to = device_runs(d) ? logits.at + i * logits.stride : NULL, least = INFINITY;
        const float *x = y.at ? y.at + i * y.stride : NULL;
        if (to)
            choose(c.at + i * c.stride, g->n_centroids, g->top_k, best);
        for (int64_t k = 0; k < n && to; k++)
            token[k] = g->order[best[k / g->each] * g->each + k % g->each];
        device_wrote(d, token, (size_t)n * sizeof *token);
        device_embed(d, row, g->embed, token, 1.0f);
        if (!device_runs(d))
            return;
        device_read_rows(d, row);
        for (int64_t k = 0; k < n; k++) {
            double sum = 0;
            for (int64_t e = 0; e < g->n_embd; e++)
                /* a dry run does not get here */
                // NOLINTNEXTLINE(clang-analyzer-core.NullDereference)
                sum += (double)row.at[k * row.stride + e] * (double)x[e];
            row.at[k * row.stride] = (float)sum;
            least = fminf(least, (float)sum);
        }
        for (int64_t t = 0; t < g->n_vocab; t++)
            /* a dry run does not get here */
            to[t] = least - 1; // NOLINT(clang-analyzer-core.NullDereference)
        for (int64_t k = 0; k < n; k++)
            /* a dry run does not get here */
            to[token[k]] = row.at[k * row.stride]; // NOLINT(clang-analyzer-core.NullDereference)
        device_wrote_rows(d, row);
    }
    device_wrote_rows(d, logits);
}

static void mtp_next(const void *self, struct family_round *r, int64_t j, const int32_t *token,
                     int64_t n, struct rows logits, float *confidence)
{
    const struct mtp *g = self;
    struct device *d = r->forward.device;
    const struct round *round = r->state;
    struct pass p = {.g = g, .f = r->forward, .d = d};
    const size_t mark = device_mark(d);
    const struct family_step step = {
        .span = device_runs(d) ? r->forward.step->span : NULL, .n_spans = n, .n_rows = n};
    struct rows join = {NULL, n, 2 * g->n_back, 2 * g->n_back};
    (void)j;
    (void)confidence;
    for (int t = 0; t < 2; t++) {
        p.view[t] = device_bytes(d, (size_t)n * sizeof *p.view[t]);
        p.rope[t] = (struct device_rope){{NULL, n, 2 * g->pairs[t], 2 * g->pairs[t]}, g->pairs[t]};
    }
    if (round) {
        join = rows_slice(round->join, 0, n);
        p.pos = round->pos;
        for (int t = 0; t < 2; t++)
            p.rope[t] = (struct device_rope){rows_slice(round->rope[t].cs, 0, n), g->pairs[t]};
    }
    for (int64_t i = 0; step.span && i < n && device_runs(d); i++)
        for (int t = 0; t < 2; t++)
            /* a dry run does not get here */
            // NOLINTNEXTLINE(clang-analyzer-core.NullDereference)
            p.view[t][i] = view_of(g, t == 1, &step.span[i]);
    p.f.step = &step;
    p.f.kv = r->target;
    device_embed(d, rows_columns(join, 0, g->n_back), g->ends.embed, token, g->ends.embed_scale);
    struct rows x = device_rows(d, n, g->n_embd); /* [n][n_embd]: the residual stream */
    one_matmul(d, g->pre, join, x);
    for (int64_t il = 0; il < g->n_layers; il++)
        layer(&p, &g->layer[il], x);
    device_norm(d, x, x, g->norm, 1, g->eps);
    one_matmul(d, g->post, x, rows_columns(join, g->n_back, g->n_back));
    if (g->centroids)
        ordered_head(g, d, x, logits);
    else if (n <= r->wide.n)
        r->out = family_draft_head(r, g->embed, x, 0);
    else
        one_matmul(d, g->embed, x, logits);
    device_release(d, mark);
}

const struct family_draft family_gemma4_mtp = {
    .kind = "mtp",
    .named = mtp_named,
    .config = mtp_config,
    .rename = mtp_rename,
    .alias = mtp_alias,
    .hf_name = mtp_hf_name,
    .to_config = mtp_to_config,
    .fits = mtp_fits,
    .bind = mtp_bind,
    .set = mtp_set,
    .kv = mtp_kv,
    .observe_begin = mtp_observe_begin,
    .observe_tap = mtp_observe_tap,
    .reads_target = true,
    .observe_end = mtp_observe_end,
    .begin = mtp_begin,
    .next = mtp_next,
    .free = mtp_free,
};
