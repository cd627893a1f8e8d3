/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dflash_load - files of drafters of blocks: keys in their dialects, what fits a target, weights.
 *
 * GGUF has "dflash" of llama.cpp (lists of taps count from 1), and "dflash-draft",
 * "gemma4-dflash-draft" and "qwen35-dflash-draft" of others, with keys "ARCH.dflash.*" (lists count
 * from 0).  A config.json becomes the first of them.
 */
#include "family/draft/dflash.h"
#include "family/draft/dflash_file.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include "family/keys.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WIDTH = 1 << 20, MAX_HEADS = 1024, MAX_HEAD_WIDTH = 8192 };

/* ---- keys ---- */

bool family_dflash_is_file(const struct io_meta *meta)
{
    const char *arch = family_architecture(meta);
    return !strcmp(arch, "dflash") || str_ends(arch, "dflash-draft");
}

void family_dflash_keys(struct dflash_keys *k, const struct model *m, const struct io_meta *meta,
                        struct err *err)
{
    *k = (struct dflash_keys){.meta = meta,
                              .path = io_path(model_file(m)),
                              .arch = family_architecture(meta),
                              .checkpoint = io_kind(model_file(m)) == IO_SAFETENSORS,
                              .err = err};
}

const struct io_value *family_dflash_key(const struct dflash_keys *k, const char *names,
                                         char full[128])
{
    const struct io_value *v = NULL;
    for (const char *name = names; !v && *name;
         name += strcspn(name, "|") + (name[strcspn(name, "|")] == '|')) {
        const int n = (int)strcspn(name, "|");
        const bool whole = !strncmp(name, "tokenizer.", 10);
        snprintf(full, 128, "%.40s%s%.*s", whole ? "" : k->arch, whole ? "" : ".", n, name);
        v = io_meta_find(k->meta, full);
    }
    if (!v) /* for messages: the first one */
        snprintf(full, 128, "%.40s.%.*s", k->arch, (int)strcspn(names, "|"), names);
    return v;
}

bool family_dflash_has_key(const struct model *m, const struct io_meta *meta, const char *names)
{
    struct dflash_keys k;
    char full[128];
    family_dflash_keys(&k, m, meta, NULL);
    return family_dflash_key(&k, names, full) != NULL;
}

int64_t family_dflash_whole(struct dflash_keys *k, const char *names, int64_t min, int64_t max,
                            int64_t fallback)
{
    char full[128];
    uint64_t v = 0;
    if (k->s || (!family_dflash_key(k, names, full) && fallback >= 0))
        return fallback;
    k->s = io_get_u64(k->meta, full, (uint64_t)min, (uint64_t)max, &v, k->err);
    return (int64_t)v;
}

double family_dflash_number(struct dflash_keys *k, const char *names, double min, double max,
                            double fallback)
{
    char full[128];
    double v = fallback;
    if (!k->s && family_dflash_key(k, names, full))
        k->s = io_get_f64(k->meta, full, min, max, &v, k->err);
    return v;
}

bool family_dflash_flag(struct dflash_keys *k, const char *names, bool fallback)
{
    char full[128];
    bool v = fallback;
    if (!k->s && family_dflash_key(k, names, full))
        k->s = io_get_bool(k->meta, full, &v, k->err);
    return v;
}

/* ---- what the file says ---- */

static void read_shape(struct dflash *g, struct dflash_keys *k, struct model *m)
{
    g->gemma =
        model_find(m, "blk.0.post_attention_norm.weight") && model_find(m, "blk.0.ffn_norm.weight");
    g->n_layers = family_dflash_whole(k, "block_count", 1, DFLASH_MAX_LAYERS, -1);
    g->n_embd = family_dflash_whole(k, "embedding_length", 1, MAX_WIDTH, -1);
    g->n_ff = family_dflash_whole(k, "feed_forward_length", 1, MAX_WIDTH, -1);
    g->n_heads = family_dflash_whole(k, "attention.head_count", 1, MAX_HEADS, -1);
    g->n_kv_heads = family_dflash_whole(k, "attention.head_count_kv", 1, MAX_HEADS, g->n_heads);
    if (k->s)
        return;
    g->head = family_dflash_whole(k, "attention.key_length", 4, MAX_HEAD_WIDTH,
                                  num_max(4, g->n_embd / g->n_heads));
    const int64_t v = family_dflash_whole(k, "attention.value_length", 4, MAX_HEAD_WIDTH, g->head);
    if (!k->s && (v != g->head || g->head % 4 || g->n_heads % g->n_kv_heads))
        k->s = err_set(
            k->err, INGLE_UNSUP,
            "'%s': %lld query heads and %lld key heads of width %lld with values of %lld: "
            "supported "
            "are values as wide as keys, multiples of 4, and key heads that divide query heads",
            k->path, (long long)g->n_heads, (long long)g->n_kv_heads, (long long)g->head,
            (long long)v);
    g->block = g->trained =
        family_dflash_whole(k, "block_size|dflash.block_size", 1, DFLASH_MAX_BLOCK, -1);
    g->first = family_dflash_flag(k, "sample_from_anchor|dflash.sample_from_anchor", false) ? 0 : 1;
    if (!k->s && g->block <= g->first)
        k->s = err_set(k->err, INGLE_FORMAT,
                       "'%s': 'block_size' is %lld, which drafts nothing: expected 2 to %d",
                       k->path, (long long)g->block, DFLASH_MAX_BLOCK);
    g->eps = (float)family_dflash_number(k, "attention.layer_norm_rms_epsilon", 0, 1, 1e-6);
    g->logit_scale = (float)family_dflash_number(k, "logit_scale|dflash.logit_scale", -1e6, 1e6, 1);
    if (!(g->logit_scale < 0) && !(g->logit_scale > 0))
        g->logit_scale = 1; /* 0 is how writers leave it out */
    const double scale = family_dflash_number(k, "attention.scale|attention_scale", 0, 1e6, 0);
    g->scale = scale > 0  ? (float)scale
               : g->gemma ? 1.0f
                          : (float)(1.0 / sqrt((double)num_max(1, g->head)));
}

/* Which layers slide, and what a block's rows see of the block. */
static void read_masks(struct dflash *g, struct dflash_keys *k)
{
    static const char pattern[] = "attention.sliding_window_pattern";
    bool sliding[DFLASH_MAX_LAYERS] = {false};
    char full[128];
    g->window = family_dflash_whole(k, "attention.sliding_window", 0, 1 << 24, 0);
    const struct io_value *v = family_dflash_key(k, pattern, full);
    if (k->s)
        return;
    if (v)
        k->s = io_get_bools(k->meta, full, (size_t)g->n_layers, sliding, k->err);
    else if (g->window > 0 && !g->gemma) /* as the published ones are, whose files leave it out */
        for (int64_t i = 0; i < g->n_layers; i++)
            sliding[i] = g->n_layers == 5 && i < 4;
    for (int64_t i = 0; i < g->n_layers; i++)
        g->layer[i].sliding = g->window > 0 && sliding[i];
    g->sliding = g->gemma ? DFLASH_WHOLE : DFLASH_CAUSAL;
    if (family_dflash_key(k, "attention.causal|dflash.attention.causal|dflash.is_causal", full)) {
        const bool causal = family_dflash_flag(
            k, "attention.causal|dflash.attention.causal|dflash.is_causal", false);
        g->sliding = g->full = causal ? DFLASH_CAUSAL : DFLASH_WHOLE;
    }
}

static void read_activation(struct dflash *g, struct dflash_keys *k)
{
    char full[128];
    const char *word = "";
    size_t n = 0;
    g->act = g->gemma ? DEVICE_GELU : DEVICE_SILU;
    if (k->s || !family_dflash_key(k, "hidden_activation", full))
        return;
    k->s = io_get_str(k->meta, full, &word, &n, k->err);
    if (k->s)
        return;
    if (!strncmp(word, "gelu", 4) && n < 24)
        g->act = DEVICE_GELU;
    else if (!strncmp(word, "silu", 4) || !strncmp(word, "swish", 5))
        g->act = DEVICE_SILU;
    else
        k->s = err_set(k->err, INGLE_UNSUP,
                       "'%s': '%s' is '%.40s', supported are 'silu' and 'gelu_pytorch_tanh'",
                       k->path, full, word);
}

/* Frequencies: of the first pairs of a head where the file has a share or factors, as the target's
 * full layers. */
static void read_rope(struct dflash *g, struct dflash_keys *k, struct model *m)
{
    const double base = family_dflash_number(k, "rope.freq_base", 1, 1e12, 1e6);
    const double share = family_dflash_number(k, "rope.partial_rotary_factor", 0, 1, 0);
    const int64_t width =
        family_dflash_whole(k, "rope.dimension_count", 2, num_max(2, g->head), num_max(2, g->head));
    const bool factors = model_find(m, "rope_freqs.weight") != NULL;
    if (k->s)
        return;
    g->half = width / 2;
    g->n_pairs = share > 0 && !factors ? (int64_t)(share * (double)width / 2) : g->half;
    g->inv_freq = mem_calloc((size_t)g->half, sizeof *g->inv_freq);
    float *factor = mem_calloc((size_t)g->half, sizeof *factor);
    if (!g->inv_freq || !factor)
        k->s = err_set(k->err, INGLE_NOMEM, "no memory for rotations");
    if (!k->s && factors)
        k->s = model_floats(m, "rope_freqs.weight", g->half, factor, k->err);
    for (int64_t i = 0, last = 0; !k->s && i < g->half; i++) {
        g->inv_freq[i] = pow(base, -2.0 * (double)i / (double)width);
        if (!factors)
            continue;
        if (!(factor[i] > 0.0f))
            k->s = err_set(k->err, INGLE_FORMAT,
                           "'%s': tensor 'rope_freqs.weight' has %g at %lld, expected more than 0",
                           k->path, (double)factor[i], (long long)i);
        g->inv_freq[i] /= (double)factor[i];
        last = factor[i] < 1e20f ? i + 1 : last;
        g->n_pairs = last;
    }
    mem_free(factor);
    if (!k->s && g->gemma && !factors && share <= 0)
        k->s = err_set(
            k->err, INGLE_FORMAT,
            "'%s': tensor 'rope_freqs.weight' is missing, and no share of rotating pairs is given",
            k->path);
}

/* The target's factor t on embeddings, of which a file's number is another spelling: t itself, or a
 * factor on it. */
static void read_scale(struct dflash *g, struct dflash_keys *k, const struct model *m)
{
    const double t = (double)g->ends.embed_scale;
    const double v = family_dflash_number(
        k, "embedding_scale|dflash.embedding_scale|dflash.input_embedding_scale", 0, 1e6, 0);
    g->embed_scale = g->ends.embed_scale;
    if (!(v > 0) || fabs(v - 1) < 1e-6)
        return;
    g->embed_scale = (float)v;
    if (fabs(v - t) < 0.01 * t)
        return;
    g->embed_scale = (float)(v * t);
    report(model_sink(m), INGLE_REPORT_WARN, "config", k->path,
           "'embedding_scale' is %g, which is neither 1 nor the target's %g: "
           "both are multiplied",
           v, t);
}

/* ---- what fits ---- */

static const char *const block_count_names = "target_block_count|dflash.n_target_layers";

/* Columns of a matrix; 0: there is none, or it is stored as codes that are packed in other
 * numbers. */
int64_t family_dflash_columns(const struct model *m, const char *name)
{
    const struct io_tensor *t = model_find(m, name);
    return t && t->n_dims == 2 && t->type != QUANT_U8 && t->type != QUANT_I32 ? (int64_t)t->ne[0]
                                                                              : 0;
}

static const char *const tap_names = "target_layers|dflash.target_layer_ids|target_layer_ids";

/* Number of taps: of the list, or as many as fc.weight takes. */
static void count_taps(struct dflash *g, struct dflash_keys *k, const struct model *m)
{
    char full[128];
    if (k->s)
        return;
    const struct io_value *v = family_dflash_key(k, tap_names, full);
    const int64_t in = family_dflash_columns(m, "fc.weight"),
                  n = v && v->kind == IO_ARRAY ? (int64_t)v->n : in / g->n_embd;
    if (v && v->kind == IO_ARRAY && in && in != n * g->n_embd)
        k->s =
            err_set(k->err, INGLE_FORMAT,
                    "'%s': '%s' has %lld layers, but tensor 'fc.weight' takes %lld of width %lld",
                    k->path, k->checkpoint ? "target_layer_ids" : full, (long long)n,
                    (long long)(in / g->n_embd), (long long)g->n_embd);
    else if (n < 1 || n > DFLASH_MAX_TAPS || in % g->n_embd)
        k->s = err_set(
            k->err, INGLE_FORMAT,
            "'%s': tensor 'fc.weight' has %lld columns, expected 1 to %d times the width %lld",
            k->path, (long long)in, DFLASH_MAX_TAPS, (long long)g->n_embd);
    g->n_taps = n;
}

static void read_taps(struct dflash *g, struct dflash_keys *k)
{
    uint64_t at[DFLASH_MAX_TAPS];
    char full[128];
    const int64_t layers = g->target.info->n_layers;
    const struct io_value *v = family_dflash_key(k, tap_names, full);
    /* there the list names layers whose inputs are tapped */
    const int64_t shift = v && str_ends(full, "target_layers") ? 1 : 0;
    if (k->s)
        return;
    if (v)
        k->s = io_get_u64s(k->meta, full, (size_t)g->n_taps, 0, UINT32_MAX, at, k->err);
    for (int64_t i = 0; !k->s && i < g->n_taps; i++) {
        int64_t layer = layers / 2;
        if (v)
            layer = (int64_t)at[i] - shift;
        else if (g->n_taps > 1)
            layer = (int64_t)nearbyint(1.0 +
                                       (double)i * (double)(layers - 4) / (double)(g->n_taps - 1));
        if (layer < -1 || layer >= layers)
            k->s = family_draft_unfit(
                &g->target, k->path, k->checkpoint ? "target_layer_ids" : full,
                k->checkpoint ? layer : layer + shift, "the target's last layer is",
                layers - 1 + (k->checkpoint ? 0 : shift), k->err);
        g->tap[i] = (int)layer;
        g->tap_scale[i] = 1.0f;
    }
}

/* Layers of the target; one dialect's writers have the number of taps there. */
static void check_layers(struct dflash *g, struct dflash_keys *k)
{
    char full[128];
    const int64_t is = family_dflash_whole(k, block_count_names, 0, UINT32_MAX, 0);
    if (!k->s && is && is != g->target.info->n_layers &&
        !(is == g->n_taps && !family_dflash_key(k, "target_block_count", full))) {
        family_dflash_key(k, block_count_names, full);
        k->s = family_draft_unfit(&g->target, k->path, k->checkpoint ? "num_target_layers" : full,
                                  is, "the target's layers are", g->target.info->n_layers, k->err);
    }
}

/* Rows that a tensor has for each token. */
static void check_rows(struct dflash *g, struct dflash_keys *k, struct model *m, const char *name)
{
    const struct io_tensor *t = model_find(m, name);
    if (!k->s && t && t->n_dims == 2 && (int64_t)t->ne[1] != g->n_vocab)
        k->s = family_draft_unfit(&g->target, k->path, t->name, (int64_t)t->ne[1],
                                  "the target's tokens are", g->n_vocab, k->err);
}

static void check_target(struct dflash *g, struct dflash_keys *k)
{
    static const char *const names[] = {"requires_target_arch", "target_model_type"};
    const char *arch = g->target.family->arch;
    char full[128];
    for (size_t i = 0; !k->s && i < sizeof names / sizeof *names; i++) {
        const struct io_value *v = family_dflash_key(k, names[i], full);
        if (v && v->kind == IO_STR && strncmp(v->v.s, arch, strlen(arch)) != 0)
            k->s = err_set(k->err, INGLE_UNSUP,
                           "'%s': '%s' is '%.40s', but the target is %s: what fits it is a drafter "
                           "made for %s",
                           k->path, k->checkpoint ? names[i] : full, v->v.s, arch, arch);
    }
    if (!k->s && strcmp(arch, "gemma4") != 0)
        k->s = err_set(k->err, INGLE_UNSUP,
                       "'%s' is a drafter of blocks for Gemma 4, but the target is %s: what fits "
                       "it is its own draft block "
                       "(mtp.*, nextn) or a DSpark file with 'hyper_connection.count'",
                       k->path, arch);
}

/* A number of the file that is not the target's, by the name that the file has for it. */
static void check_number(struct dflash *g, struct dflash_keys *k, const char *names, const char *hf,
                         int64_t is, const char *what, int64_t want)
{
    char full[128];
    family_dflash_key(k, names, full);
    if (!k->s && is != want)
        k->s = family_draft_unfit(&g->target, k->path, k->checkpoint ? hf : full, is, what, want,
                                  k->err);
}

static void check_pairing(struct dflash *g, struct dflash_keys *k, struct model *m)
{
    static const char *const tensors[] = {"token_embd.weight", "markov_w1.weight",
                                          "selector_predecessor.weight",
                                          "selector_successor.weight"};
    const struct family_info *info = g->target.info;
    check_target(g, k);
    check_number(g, k, "embedding_length", "hidden_size", g->n_embd, "the target's width is",
                 info->n_embd);
    const int64_t tokens = family_dflash_whole(k, "vocab_size", 0, 1 << 24, 0);
    check_number(g, k, "vocab_size", "vocab_size", tokens ? tokens : g->n_vocab,
                 "the target's tokens are", g->n_vocab);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        check_rows(g, k, m, tensors[i]);
    count_taps(g, k, m);
    check_layers(g, k);
    read_taps(g, k);
    g->mask = (int32_t)family_dflash_whole(
        k, "mask_token_id|dflash.mask_token_id|tokenizer.ggml.mask_token_id", 0, INT32_MAX, -1);
    if (!k->s && g->mask >= g->n_vocab)
        k->s = family_draft_unfit(&g->target, k->path, "mask_token_id", g->mask,
                                  "the target's tokens are", g->n_vocab, k->err);
}

/* ---- weights ---- */

struct binder {
    struct model *m;
    struct dflash_keys *k;
    int64_t il;
};

static const char *name_of(const struct binder *b, const char *suffix, char out[96])
{
    if (b->il >= 0)
        snprintf(out, 96, "blk.%lld.%s", (long long)b->il, suffix);
    else
        snprintf(out, 96, "%s", suffix);
    return out;
}

static const struct device_matrix *matrix(struct binder *b, const char *suffix, int64_t out,
                                          int64_t in)
{
    char name[96];
    const struct device_matrix *w = NULL;
    if (!b->k->s)
        b->k->s = model_matrix(b->m, name_of(b, suffix, name), out, in, 1, &w, b->k->err);
    return w;
}

static const struct device_vector *vector(struct binder *b, const char *suffix, int64_t n)
{
    char name[96];
    const struct device_vector *w = NULL;
    if (!b->k->s)
        b->k->s = model_vector(b->m, name_of(b, suffix, name), n, &w, b->k->err);
    return w;
}

static void bind_layer(const struct dflash *g, struct binder *b, struct dflash_layer *l)
{
    const int64_t n_q = g->n_heads * g->head, n_kv = g->n_kv_heads * g->head;
    char name[96];
    l->attn_norm = vector(b, "attn_norm.weight", g->n_embd);
    l->q = matrix(b, "attn_q.weight", n_q, g->n_embd);
    l->k = matrix(b, "attn_k.weight", n_kv, g->n_embd);
    if (!g->gemma || model_has_matrix(b->m, name_of(b, "attn_v.weight", name)))
        l->v = matrix(b, "attn_v.weight", n_kv, g->n_embd);
    l->o = matrix(b, "attn_output.weight", g->n_embd, n_q);
    l->q_norm = vector(b, "attn_q_norm.weight", g->head);
    l->k_norm = vector(b, "attn_k_norm.weight", g->head);
    const bool other = !g->gemma && !model_find(b->m, name_of(b, "ffn_norm.weight", name));
    l->ffn_norm = vector(b, other ? "post_attention_norm.weight" : "ffn_norm.weight", g->n_embd);
    l->gate = matrix(b, "ffn_gate.weight", g->n_ff, g->n_embd);
    l->up = matrix(b, "ffn_up.weight", g->n_ff, g->n_embd);
    l->down = matrix(b, "ffn_down.weight", g->n_embd, g->n_ff);
    l->scale = 1.0f;
    if (!g->gemma)
        return;
    l->post_attn_norm = vector(b, "post_attention_norm.weight", g->n_embd);
    l->post_ffn_norm = vector(b, "post_ffw_norm.weight", g->n_embd);
    if (!b->k->s)
        b->k->s = model_floats(b->m, name_of(b, "layer_output_scale.weight", name), 1, &l->scale,
                               b->k->err);
}

/* Parts that some drafters add, without which the rest computes something else. */
static void refuse_parts(struct dflash_keys *k, const struct model *m)
{
    const struct io_file *f = model_file(m);
    for (size_t i = 0; !k->s && i < io_n_tensors(f); i++)
        if (!family_dflash_is_tensor(io_tensor_at(f, i)->name, k->checkpoint))
            k->s = err_set(k->err, INGLE_UNSUP,
                           "'%s': tensor '%.80s' is of a variant that this version does not have: "
                           "supported are DFlash, DFlash2 and "
                           "DSpark without further parts",
                           k->path, io_tensor_at(f, i)->name);
}

ingle_status family_dflash_bind(struct dflash *g, struct dflash_keys *k,
                                const struct family_draft_target *target, struct model *m,
                                struct err *err)
{
    struct binder b = {m, k, -1};
    g->target = *target;
    g->target_device = model_device(m);
    g->n_vocab = g->n_out = target->info->n_vocab;
    target->family->ends(target->self, &g->ends);
    if (!k->checkpoint)
        k->s = family_keys_check(k->meta, k->path, k->arch, family_dflash_keys_table, model_sink(m),
                                 err);
    refuse_parts(k, m);
    read_shape(g, k, m);
    check_pairing(g, k, m);
    if (!k->s && !(g->layer = mem_calloc((size_t)g->n_layers, sizeof *g->layer)))
        k->s = err_set(err, INGLE_NOMEM, "no memory for %lld layers", (long long)g->n_layers);
    read_masks(g, k);
    read_activation(g, k);
    read_rope(g, k, m);
    read_scale(g, k, m);
    if (!k->s)
        k->s = family_check_layers(m, k->arch, g->n_layers, NULL, err);
    g->fc = matrix(&b, "fc.weight", g->n_embd, g->n_taps * g->n_embd);
    g->context_norm = vector(&b, "enc.output_norm.weight", g->n_embd);
    g->norm = vector(&b, "output_norm.weight", g->n_embd);
    for (b.il = 0; b.il < g->n_layers && !k->s; b.il++)
        bind_layer(g, &b, &g->layer[b.il]);
    return k->s;
}

ingle_status family_dflash_detect(struct dflash_keys *k)
{
    if (k->s && k->s != INGLE_NOMEM && k->err && !strstr(k->err->msg, k->path))
        err_prefix(k->err, "'%s'", k->path);
    return k->s;
}

/* Tokens of a reduced head: absolute in a GGUF, as distances from their rows in a checkpoint. */
static void read_table(struct dflash *g, struct dflash_keys *k, struct model *m)
{
    g->to = mem_calloc((size_t)g->n_out, sizeof *g->to);
    if (!g->to)
        k->s = err_set(k->err, INGLE_NOMEM, "no memory for %lld tokens", (long long)g->n_out);
    if (!k->s)
        k->s = model_ints(m, "d2t", g->n_out, 1, k->checkpoint ? -(int32_t)g->n_vocab : 0,
                          (int32_t)g->n_vocab - 1, g->to, k->err);
    for (int64_t i = 0; !k->s && i < g->n_out; i++) {
        const int64_t to = g->to[i] + (k->checkpoint ? i : 0);
        if (to < 0 || to >= g->n_vocab)
            k->s = family_draft_unfit(&g->target, k->path, "d2t", to, "the target's tokens are",
                                      g->n_vocab, k->err);
        g->to[i] = (int32_t)to;
    }
}

ingle_status family_dflash_bind_head(struct dflash *g, struct dflash_keys *k, struct model *m,
                                     struct err *err)
{
    struct binder b = {m, k, -1};
    const struct io_tensor *t = model_find(m, "output.weight");
    g->head_matrix = g->ends.head;
    model_skip(m, "token_embd.", "a copy of the target's embedding");
    model_skip(m, "t2d", "the way back from the target's tokens, which nothing needs");
    if (!model_find(m, "d2t")) {
        check_rows(g, k, m, "output.weight");
        model_skip(m, "output.", "a copy of the target's head");
        return k->s;
    }
    if (!t || t->n_dims != 2 || t->ne[1] < 1 || (int64_t)t->ne[1] > g->n_vocab)
        k->s = k->s ? k->s
                    : err_set(err, INGLE_FORMAT,
                              "'%s': tensor 'd2t' lists tokens of a head of its own, but there is "
                              "no 'output.weight' of up to %lld rows",
                              k->path, (long long)g->n_vocab);
    if (k->s)
        return k->s;
    g->n_out = (int64_t)t->ne[1];
    g->head_matrix = matrix(&b, "output.weight", g->n_out, g->n_embd);
    read_table(g, k, m);
    return k->s;
}

void family_dflash_release(struct dflash *g)
{
    for (int64_t i = 0; g->layer && i < g->n_layers; i++) {
        mem_free(g->layer[i].attn_conv.base);
        mem_free(g->layer[i].ffn_conv.base);
    }
    mem_free(g->layer);
    mem_free(g->inv_freq);
    mem_free(g->to);
}

/* ---- experiments ---- */

bool family_dflash_rule(struct dflash *g, const char *name)
{
    static const struct {
        const char *name;
        enum dflash_mask sliding, full;
        bool no_window;
    } rules[] = {
        {"causal", DFLASH_CAUSAL, DFLASH_WHOLE, false},
        {"window", DFLASH_WHOLE, DFLASH_WHOLE, false},
        {"bidir", DFLASH_WHOLE, DFLASH_WHOLE, true},
        {"all-causal", DFLASH_CAUSAL, DFLASH_CAUSAL, false},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!strcmp(rules[i].name, name)) {
            g->sliding = rules[i].sliding;
            g->full = rules[i].full;
            g->no_window = rules[i].no_window;
            return true;
        }
    return false;
}

ingle_status family_dflash_set(struct dflash *g, const struct family_draft_options *o,
                               struct err *err)
{
    if (o->block && (o->block <= g->first || o->block > DFLASH_MAX_BLOCK))
        return err_set(err, INGLE_ARG, "a block of %lld rows: expected %lld to %d",
                       (long long)o->block, (long long)g->first + 1, DFLASH_MAX_BLOCK);
    g->block = o->block ? o->block : g->trained;
    g->context = o->context;
    for (int64_t i = 0; i < g->n_taps && o->tap != FAMILY_DRAFT_TAP_AFTER; i++) {
        float (*scale)(const void *, int64_t) = g->target.family->layer_scale;
        if (o->tap == FAMILY_DRAFT_TAP_UPSTREAM)
            g->tap[i] = g->tap[i] < 0 ? -1 : g->tap[i] - 1;
        else if (scale && g->tap[i] >= 0)
            g->tap_scale[i] = 1.0f / scale(g->target.self, g->tap[i]);
    }
    return INGLE_OK;
}
