/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemma4 - Gemma 4 text models: dense (31B, 12B), mixture of experts (26B-A4B), and the
 * small ones with per-layer embeddings (E4B, E2B).
 *
 * Order of the file: hyper-parameters, weights, KV layout, forward pass,
 * then the names of the Hugging Face checkpoint (gemma4_hf.c).
 */
#include "family/gemma4.h"

#include "base/mem.h"
#include "base/num.h"
#include "family/keys.h"
#include "family/table.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PAD = 0 }; /* whose per-layer row a soft token has */
enum { MAX_LAYERS = 1024, MAX_HEADS = 1024, MAX_HEAD_WIDTH = 8192, MAX_WIDTH = 1 << 20 };

struct layer {
    /* attention; weights marked (own) are NULL on layers that borrow keys and values */
    const struct device_vector *attn_norm, *q_norm, *k_norm /* own */, *post_attn_norm;
    const struct device_matrix *q, *k /* own */, *v /* own; NULL: V is K */, *o;
    bool sliding, owns_kv;
    int64_t n_kv_heads, head;  /* head: width of one head */
    uint32_t stream;           /* of the KV spec: its own, or the donor's */
    /* feed-forward */
    const struct device_vector *ffn_norm, *post_ffn_norm;
    const struct device_matrix *gate, *up, *down;
    int64_t n_ff;
    /* experts beside it */
    const struct device_vector *post_ffn_norm_1, *pre_ffn_norm_2, *post_ffn_norm_2, *router_scale;
    const struct device_matrix *router;
    struct expert_layer experts;
    const struct device_vector *expert_scale; /* [n_experts] */
    /* per-layer embedding */
    const struct device_matrix *ple_gate, *ple_proj;
    const struct device_vector *ple_norm;
    float scale;               /* of the whole stream, at the end */
    /* own, without V: how keys are made of values */
    struct kern_from_v from_v;
    float *k_weight;           /* f32 [head], what k_norm has */
};

struct gemma4 {
    int64_t n_layers, n_embd, n_heads, n_vocab, n_ctx, n_ple, n_experts, n_used, n_ff_expert;
    int64_t first_shared;      /* layers from here on borrow keys and values */
    int64_t window;
    bool both;                 /* pictures see all of themselves where a layer has a window */
    float eps, softcap, scale; /* scale: of the products of queries and keys */
    int64_t pairs[2];          /* rotating pairs of a head: [full, sliding] */
    double *inv_freq[2];       /* f64 [pairs] */
    float *slot[2];            /* f32 [KERN_PAGE][pairs][2]: cos and sin of positions in a page */
    struct layer *layer;
    const struct device_matrix *embed, *out; /* out: the embedding, where they are tied */
    const struct device_vector *out_norm;
    const struct model_table *ple_embed;      /* [n_vocab][n_layers * n_ple] */
    const struct device_matrix *ple_model_proj;
    const struct device_vector *ple_proj_norm;
};

/* ---- hyper-parameters ---- */

/* The sizes without per-layer embeddings have pictures that see all of themselves; a file says it
 * only where that is otherwise. */
#define FLIP "gemma4.attention.vision_unusual"

struct hyper {
    uint64_t kv_heads[MAX_LAYERS], ff[MAX_LAYERS];
    bool sliding[MAX_LAYERS];
    uint64_t head_full, head_sliding;
    double base_full, base_sliding, partial;
    double factor_full, factor_sliding; /* that frequencies are divided by */
    /* whether full layers have no V of their own, where the file says it */
    bool says_v, k_is_v;
    bool flips; /* rows of pictures do not see what such sizes do */
};

/* Heads of keys and of values are equally wide.  end: "", or "_swa", whose keys may be left out. */
static ingle_status same_widths(const struct io_meta *m, const char *end, uint64_t keys,
                                uint64_t values, struct err *err)
{
    char key[64], value[64];
    snprintf(key, sizeof key, "gemma4.attention.key_length%s", end);
    snprintf(value, sizeof value, "gemma4.attention.value_length%s", end);
    const bool has_key = io_meta_find(m, key) != NULL, has_value = io_meta_find(m, value) != NULL;
    if (keys != values)
        return err_set(err, INGLE_UNSUP,
                       "'%s' is %s%llu, but '%s' is %s%llu: expected equal widths", key,
                       has_key ? "" : "missing and stands for ", (unsigned long long)keys, value,
                       has_value ? "" : "missing and stands for ", (unsigned long long)values);
    if (keys % 4)
        return err_set(err, INGLE_UNSUP, "'%s' is %llu: expected a multiple of 4", key,
                       (unsigned long long)keys);
    return INGLE_OK;
}

static ingle_status read_heads(const struct gemma4 *g, const struct io_meta *m, struct hyper *h,
                               struct err *err)
{
    uint64_t v_full, v_sliding;
    ingle_status s;
    if ((s = io_get_u64s(m, "gemma4.attention.head_count_kv", (size_t)g->n_layers, 1, MAX_HEADS,
                         h->kv_heads, err)) ||
        (s = io_get_u64(m, "gemma4.attention.key_length", 4, MAX_HEAD_WIDTH, &h->head_full, err)))
        return s;
    h->head_sliding = v_full = h->head_full;
    if ((s = family_key_u64(m, "gemma4.attention.key_length_swa", 4, MAX_HEAD_WIDTH,
                          &h->head_sliding, err)) ||
        (s = family_key_u64(m, "gemma4.attention.value_length", 4, MAX_HEAD_WIDTH, &v_full, err)))
        return s;
    v_sliding = h->head_sliding;
    if ((s = family_key_u64(m, "gemma4.attention.value_length_swa", 4, MAX_HEAD_WIDTH, &v_sliding,
                          err)))
        return s;
    if ((s = same_widths(m, "", h->head_full, v_full, err)) ||
        (s = same_widths(m, "_swa", h->head_sliding, v_sliding, err)))
        return s;
    for (int64_t i = 0; i < g->n_layers; i++)
        if ((uint64_t)g->n_heads % h->kv_heads[i])
            return err_set(err, INGLE_FORMAT,
                           "'gemma4.attention.head_count_kv' of layer %lld is %llu, which does not "
                           "divide %lld heads",
                           (long long)i, (unsigned long long)h->kv_heads[i], (long long)g->n_heads);
    return INGLE_OK;
}

static ingle_status read_experts(struct gemma4 *g, const struct io_meta *m, struct err *err)
{
    uint64_t n = 0, used = 0, ff = 0;
    ingle_status s = family_key_u64(m, "gemma4.expert_count", 0, EXPERT_MAX, &n, err);
    if (s || !n)
        return s;
    const uint64_t most = n < EXPERT_MAX_USED ? n : EXPERT_MAX_USED;
    if ((s = io_get_u64(m, "gemma4.expert_used_count", 1, most, &used, err)) ||
        (s = io_get_u64(m, "gemma4.expert_feed_forward_length", 1, MAX_WIDTH, &ff, err)))
        return s;
    g->n_experts = (int64_t)n;
    g->n_used = (int64_t)used;
    g->n_ff_expert = (int64_t)ff;
    return INGLE_OK;
}

static ingle_status read_hyper(struct gemma4 *g, const struct io_meta *m, struct hyper *h,
                               struct err *err)
{
    uint64_t layers, embd, heads, ctx = 8192, window = 0, shared = 0, ple = 0;
    double eps = 1e-6, softcap = 0.0, scale = 1.0;
    ingle_status s;
    h->base_full = 1e6;
    h->base_sliding = 1e4;
    h->factor_full = h->factor_sliding = 1;
    const bool flips = io_meta_find(m, FLIP) != NULL;
    h->says_v = io_meta_find(m, "gemma4.attention.k_eq_v") != NULL;
    if ((s = io_get_u64(m, "gemma4.block_count", 1, MAX_LAYERS, &layers, err)) ||
        (s = io_get_u64(m, "gemma4.embedding_length", 1, MAX_WIDTH, &embd, err)) ||
        (s = io_get_u64(m, "gemma4.attention.head_count", 1, MAX_HEADS, &heads, err)) ||
        (s = family_key_u64(m, "gemma4.context_length", 1, 1 << 30, &ctx, err)) ||
        (s = io_get_u64(m, "gemma4.attention.sliding_window", 1, 1 << 24, &window, err)) ||
        (s = family_key_u64(m, "gemma4.attention.shared_kv_layers", 0, layers - 1, &shared, err)) ||
        (s = family_key_u64(m, "gemma4.embedding_length_per_layer_input", 0, MAX_WIDTH, &ple,
                            err)) ||
        (s = family_key_f64(m, "gemma4.attention.layer_norm_rms_epsilon", 0, 1, &eps, err)) ||
        (s = family_key_f64(m, "gemma4.final_logit_softcapping", 0, 1e6, &softcap, err)) ||
        (s = family_key_f64(m, "gemma4.rope.freq_base", 1, 1e12, &h->base_full, err)) ||
        (s = family_key_f64(m, "gemma4.rope.freq_base_swa", 1, 1e12, &h->base_sliding, err)) ||
        (s = family_key_f64(m, "gemma4.rope.partial_rotary_factor", 0, 1, &h->partial, err)) ||
        (s = family_key_f64(m, "gemma4.rope.proportional_factor", 1e-6, 1e6, &h->factor_full,
                            err)) ||
        (s = family_key_f64(m, "gemma4.rope.linear_factor_swa", 1e-6, 1e6, &h->factor_sliding,
                            err)) ||
        (s = family_key_f64(m, "gemma4.attention.scale", 0, 1e6, &scale, err)) ||
        (flips && (s = io_get_bool(m, FLIP, &h->flips, err))) ||
        (h->says_v && (s = io_get_bool(m, "gemma4.attention.k_eq_v", &h->k_is_v, err))))
        return s;
    g->n_layers = (int64_t)layers;
    g->n_embd = (int64_t)embd;
    g->n_heads = (int64_t)heads;
    g->n_ctx = (int64_t)ctx;
    g->window = (int64_t)window;
    g->first_shared = (int64_t)(layers - shared);
    g->n_ple = (int64_t)ple;
    g->both = h->flips ? ple != 0 : ple == 0;
    g->eps = (float)eps;
    g->softcap = (float)softcap;
    g->scale = scale > 0 ? (float)scale : 1.0f; /* 0 is how writers leave it out */
    if ((s = io_get_u64s(m, "gemma4.feed_forward_length", layers, 1, MAX_WIDTH, h->ff, err)) ||
        (s = io_get_bools(m, "gemma4.attention.sliding_window_pattern", layers, h->sliding, err)) ||
        (s = read_heads(g, m, h, err)))
        return s;
    return read_experts(g, m, err);
}

/* Inverse frequencies; full layers rotate only the first pairs of a head ("proportional"):
 * the file says so by factors of 1e30, a checkpoint's config by a share. */
static ingle_status read_rope(struct gemma4 *g, struct model *m, const struct hyper *h,
                              struct err *err)
{
    const uint64_t width[2] = {h->head_full, h->head_sliding};
    const double base[2] = {h->base_full, h->base_sliding},
                 by[2] = {h->factor_full, h->factor_sliding};
    for (int t = 0; t < 2; t++) {
        g->pairs[t] = (int64_t)width[t] / 2;
        g->inv_freq[t] = mem_calloc(width[t] / 2, sizeof(double));
        if (!g->inv_freq[t])
            return err_set(err, INGLE_NOMEM, "no memory for rotations");
        for (int64_t i = 0; i < g->pairs[t]; i++)
            g->inv_freq[t][i] = pow(base[t], -2.0 * (double)i / (double)width[t]) / by[t];
    }
    const int64_t partial = (int64_t)(h->partial * (double)h->head_full / 2.0);
    if (!model_find(m, "rope_freqs.weight")) {
        if (h->partial <= 0)
            return err_set(err, INGLE_FORMAT, "'%s': tensor 'rope_freqs.weight' is missing",
                           io_path(model_file(m)));
        g->pairs[0] = partial;
        return INGLE_OK;
    }
    float *factor = mem_calloc((size_t)g->pairs[0], sizeof *factor);
    if (!factor)
        return err_set(err, INGLE_NOMEM, "no memory for rotations");
    ingle_status s = model_floats(m, "rope_freqs.weight", g->pairs[0], factor, err);
    int64_t last = 0;
    for (int64_t i = 0; !s && i < g->pairs[0]; i++) {
        if (!(factor[i] > 0.0f))
            s = err_set(err, INGLE_FORMAT,
                        "'%s': tensor 'rope_freqs.weight' has %g at %lld, expected more than 0",
                        io_path(model_file(m)), (double)factor[i], (long long)i);
        g->inv_freq[0][i] /= (double)factor[i];
        if (factor[i] < 1e20f)
            last = i + 1;
    }
    mem_free(factor);
    g->pairs[0] = last;
    if (!s && h->partial > 0 && partial != last)
        s = err_set(
            err, INGLE_FORMAT,
            "'%s': 'gemma4.rope.partial_rotary_factor' is %g, which is %lld pairs of a head, but "
            "tensor 'rope_freqs.weight' turns %lld",
            io_path(model_file(m)), h->partial, (long long)partial, (long long)last);
    return s;
}

/* ---- weights ---- */

struct binder {
    struct model *m;
    const struct io_meta *meta;
    int64_t il;
    ingle_status s; /* the first error; later calls do nothing */
    struct err *err;
};

#define WIDTH "embedding_length"
#define HEAD "attention.key_length|attention.key_length_swa|attention.sliding_window_pattern"
#define EXPERTS "expert_count|expert_feed_forward_length"
#define PLE "embedding_length_per_layer_input"

static const struct family_shape shapes[] = {
    {"attn_q.weight", "attention.head_count|" HEAD "|" WIDTH, NULL},
    {"attn_output.weight", "attention.head_count|" HEAD "|" WIDTH, NULL},
    {"attn_q_norm.weight", HEAD, NULL},
    {"attn_k_norm.weight", HEAD, "attention.shared_kv_layers"},
    {"attn_k.weight", "attention.head_count_kv|" HEAD "|" WIDTH, "attention.shared_kv_layers"},
    {"attn_v.weight", "attention.head_count_kv|" HEAD "|" WIDTH,
     "attention.shared_kv_layers|attention.k_eq_v|attention.sliding_window_pattern"},
    {"ffn_gate.weight", "feed_forward_length|" WIDTH, NULL},
    {"ffn_up.weight", "feed_forward_length|" WIDTH, NULL},
    {"ffn_down.weight", "feed_forward_length|" WIDTH, NULL},
    {"ffn_gate_inp.weight", "expert_count|" WIDTH, "expert_count"},
    {"ffn_gate_inp.scale", WIDTH, "expert_count"},
    {"ffn_down_exps.scale", "expert_count", "expert_count"},
    {"_exps.weight", EXPERTS "|" WIDTH, "expert_count"},
    {"norm_1.weight", WIDTH, "expert_count"},
    {"norm_2.weight", WIDTH, "expert_count"},
    {"inp_gate.weight", PLE "|" WIDTH, PLE},
    {"per_layer_token_embd.weight", PLE "|block_count|vocab_size", PLE},
    {"per_layer_model_proj.weight", PLE "|block_count|" WIDTH, PLE},
    {"per_layer_proj_norm.weight", PLE, PLE},
    {"post_norm.weight", WIDTH, PLE},
    {".proj.weight", PLE "|" WIDTH, PLE},
    {"norm.weight", WIDTH, NULL},
    {"token_embd.weight", WIDTH, NULL},
    {"output.weight", WIDTH, NULL},
    {NULL, NULL, NULL},
};

static void explain(const struct binder *b, const char *name)
{
    if (b->s)
        family_shape_explain(b->m, b->meta, "gemma4", shapes, name, b->il, b->err);
}

static const char *layer_name(const struct binder *b, const char *suffix, char out[128])
{
    if (b->il >= 0)
        snprintf(out, 128, "blk.%lld.%s", (long long)b->il, suffix);
    else
        snprintf(out, 128, "%s", suffix);
    return out;
}

static bool has(const struct binder *b, const char *suffix)
{
    char name[128];
    return model_has_matrix(b->m, layer_name(b, suffix, name));
}

static const struct device_matrix *matrix(struct binder *b, const char *suffix, int64_t out,
                                          int64_t in, int64_t n_stack)
{
    char name[128];
    const struct device_matrix *w = NULL;
    if (b->s)
        return NULL;
    b->s = model_matrix(b->m, layer_name(b, suffix, name), out, in, n_stack, &w, b->err);
    explain(b, name);
    return w;
}

static const struct device_vector *vector(struct binder *b, const char *suffix, int64_t n)
{
    char name[128];
    const struct device_vector *w = NULL;
    if (b->s)
        return NULL;
    b->s = model_vector(b->m, layer_name(b, suffix, name), n, &w, b->err);
    explain(b, name);
    return w;
}

static void bind_experts(const struct gemma4 *g, struct binder *b, struct layer *l)
{
    l->post_ffn_norm_1 = vector(b, "post_ffw_norm_1.weight", g->n_embd);
    l->pre_ffn_norm_2 = vector(b, "pre_ffw_norm_2.weight", g->n_embd);
    l->post_ffn_norm_2 = vector(b, "post_ffw_norm_2.weight", g->n_embd);
    l->router_scale = vector(b, "ffn_gate_inp.scale", g->n_embd);
    l->expert_scale = vector(b, "ffn_down_exps.scale", g->n_experts);
    l->router = matrix(b, "ffn_gate_inp.weight", g->n_experts, g->n_embd, 1);
    struct expert_layer *e = &l->experts;
    e->n = g->n_experts;
    e->width = g->n_ff_expert;
    if (has(b, "ffn_gate_exps.weight")) {
        e->gate = matrix(b, "ffn_gate_exps.weight", e->width, g->n_embd, e->n);
        e->up = matrix(b, "ffn_up_exps.weight", e->width, g->n_embd, e->n);
    } else {
        e->gate_up = matrix(b, "ffn_gate_up_exps.weight", 2 * e->width, g->n_embd, e->n);
    }
    e->down = matrix(b, "ffn_down_exps.weight", g->n_embd, e->width, e->n);
    if (!b->s)
        b->s = expert_layer_init(e, b->m, b->il, b->err);
}

static void bind_layer(const struct gemma4 *g, struct binder *b, const struct hyper *h,
                       struct layer *l)
{
    const int64_t il = b->il;
    char name[128];
    l->sliding = h->sliding[il];
    l->owns_kv = il < g->first_shared;
    l->head = (int64_t)(l->sliding ? h->head_sliding : h->head_full);
    l->n_kv_heads = (int64_t)h->kv_heads[il];
    l->n_ff = (int64_t)h->ff[il];
    const int64_t n_q = g->n_heads * l->head, n_kv = l->n_kv_heads * l->head;
    l->attn_norm = vector(b, "attn_norm.weight", g->n_embd);
    l->q = matrix(b, "attn_q.weight", n_q, g->n_embd, 1);
    l->q_norm = vector(b, "attn_q_norm.weight", l->head);
    if (l->owns_kv) {
        l->k = matrix(b, "attn_k.weight", n_kv, g->n_embd, 1);
        l->k_norm = vector(b, "attn_k_norm.weight", l->head);
        const bool there = has(b, "attn_v.weight");
        if (there && !l->sliding && h->says_v && h->k_is_v && !b->s)
            b->s = err_set(
                b->err, INGLE_FORMAT,
                "'%s': 'attention_k_eq_v' is true, but layer %lld, a full one, has values of "
                "its own ('%s')",
                io_path(model_file(b->m)), (long long)il, layer_name(b, "attn_v.weight", name));
        if (l->sliding || there || (h->says_v && !h->k_is_v))
            l->v = matrix(b, "attn_v.weight", n_kv, g->n_embd, 1);
    }
    l->o = matrix(b, "attn_output.weight", g->n_embd, n_q, 1);
    l->post_attn_norm = vector(b, "post_attention_norm.weight", g->n_embd);
    l->ffn_norm = vector(b, "ffn_norm.weight", g->n_embd);
    l->gate = matrix(b, "ffn_gate.weight", l->n_ff, g->n_embd, 1);
    l->up = matrix(b, "ffn_up.weight", l->n_ff, g->n_embd, 1);
    l->down = matrix(b, "ffn_down.weight", g->n_embd, l->n_ff, 1);
    l->post_ffn_norm = vector(b, "post_ffw_norm.weight", g->n_embd);
    if (g->n_experts)
        bind_experts(g, b, l);
    if (g->n_ple) {
        l->ple_gate = matrix(b, "inp_gate.weight", g->n_ple, g->n_embd, 1);
        l->ple_proj = matrix(b, "proj.weight", g->n_embd, g->n_ple, 1);
        l->ple_norm = vector(b, "post_norm.weight", g->n_embd);
    }
    l->scale = 1.0f;
    if (b->s)
        return;
    b->s =
        model_floats(b->m, layer_name(b, "layer_output_scale.weight", name), 1, &l->scale, b->err);
    explain(b, name);
}

/* Streams in layer order; a layer without its own uses that of the last owner of its kind. */
static ingle_status share_streams(struct gemma4 *g, struct err *err)
{
    int64_t donor[2] = {-1, -1};
    uint32_t n = 0;
    for (int64_t i = 0; i < g->n_layers; i++) {
        struct layer *l = &g->layer[i];
        if (l->owns_kv) {
            l->stream = n++;
            donor[l->sliding] = i;
            continue;
        }
        const int64_t from = donor[l->sliding];
        if (from < 0)
            return err_set(err, INGLE_FORMAT,
                           "'gemma4.attention.shared_kv_layers': layer %lld shares keys and "
                           "values, but no %s layer before %lld owns any",
                           (long long)i, l->sliding ? "sliding" : "full",
                           (long long)g->first_shared);
        if (g->layer[from].n_kv_heads != l->n_kv_heads)
            return err_set(err, INGLE_FORMAT,
                           "'gemma4.attention.head_count_kv': layer %lld has %lld key heads, but "
                           "shares those of layer %lld, which has %lld",
                           (long long)i, (long long)l->n_kv_heads, (long long)from,
                           (long long)g->layer[from].n_kv_heads);
        l->stream = g->layer[from].stream;
    }
    return INGLE_OK;
}

/* Where a layer has no V of its own: values are keys without the weight of their norm and without
 * rotation. */
static ingle_status keys_from_values(struct gemma4 *g, struct model *m, struct err *err)
{
    for (int64_t i = 0; i < g->first_shared; i++) {
        struct layer *l = &g->layer[i];
        const int t = l->sliding;
        char name[64];
        if (!l->owns_kv || l->v)
            continue;
        if (!g->slot[t] && !(g->slot[t] = mem_calloc(
                                 (size_t)KERN_PAGE * 2 * (size_t)(g->pairs[t] + 1), sizeof(float))))
            return err_set(err, INGLE_NOMEM, "no memory for rotations");
        for (int64_t j = 0; j < KERN_PAGE; j++)
            kern_rope_angles(g->slot[t] + j * 2 * g->pairs[t], j, g->inv_freq[t], g->pairs[t]);
        if (!(l->k_weight = mem_calloc((size_t)l->head, sizeof *l->k_weight)))
            return err_set(err, INGLE_NOMEM, "no memory for a norm");
        snprintf(name, sizeof name, "blk.%lld.attn_k_norm.weight", (long long)i);
        const ingle_status s = model_floats(m, name, l->head, l->k_weight, err);
        if (s)
            return s;
        l->from_v = (struct kern_from_v){.weight = l->k_weight,
                                         .inv_freq = g->inv_freq[t],
                                         .slot = g->slot[t],
                                         .n_pairs = g->pairs[t],
                                         .half = l->head / 2};
    }
    return INGLE_OK;
}

static ingle_status bind_weights(struct gemma4 *g, struct model *m, const struct io_meta *meta,
                                 const struct hyper *h, struct err *err)
{
    struct binder b = {m, meta, -1, INGLE_OK, err};
    if ((b.s = family_check_layers(m, "gemma4", g->n_layers, NULL, err)) ||
        (!g->n_experts && (b.s = family_check_there(m, meta, "gemma4", "expert_count",
                                                    "blk.0.ffn_gate_inp.weight", err))) ||
        (!g->n_ple &&
         (b.s = family_check_there(m, meta, "gemma4", PLE, "per_layer_token_embd.weight", err))))
        return b.s;
    g->n_vocab = model_matrix_rows(m, "token_embd.weight", 1 << 24);
    if (!g->n_vocab)
        return err_set(err, INGLE_FORMAT,
                       "'%s': tensor 'token_embd.weight' is missing or no matrix of 1 to %d rows",
                       io_path(model_file(m)), 1 << 24);
    g->embed = matrix(&b, "token_embd.weight", g->n_vocab, g->n_embd, 1);
    g->out_norm = vector(&b, "output_norm.weight", g->n_embd);
    if (!b.s)
        b.s = family_bind_head(m, meta, "gemma4", true, g->n_vocab, g->n_embd, g->embed, &g->out,
                               err);
    if (g->n_ple) {
        const int64_t width = g->n_layers * g->n_ple;
        if (!b.s) {
            b.s = model_table(m, "per_layer_token_embd.weight", g->n_vocab, width, &g->ple_embed,
                              err);
            explain(&b, "per_layer_token_embd.weight");
        }
        g->ple_model_proj = matrix(&b, "per_layer_model_proj.weight", width, g->n_embd, 1);
        g->ple_proj_norm = vector(&b, "per_layer_proj_norm.weight", g->n_ple);
    }
    for (b.il = 0; b.il < g->n_layers && !b.s; b.il++)
        bind_layer(g, &b, h, &g->layer[b.il]);
    return b.s;
}

static const char *size_label(const struct gemma4 *g)
{
    static const struct { int64_t layers, embd; const char *label;
    } known[] = {{35, 1536, "E2B"},
                 {42, 2560, "E4B"},
                 {48, 3840, "12B"},
                 {30, 2816, "26B-A4B"},
                 {60, 5376, "31B"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (g->n_layers == known[i].layers && g->n_embd == known[i].embd)
            return known[i].label;
    return "";
}

static void gemma4_free(void *self)
{
    struct gemma4 *g = self;
    if (!g)
        return;
    for (int64_t i = 0; g->layer && i < g->n_layers; i++) {
        mem_free(g->layer[i].k_weight);
        expert_layer_release(&g->layer[i].experts);
    }
    mem_free(g->layer);
    mem_free(g->inv_freq[0]);
    mem_free(g->inv_freq[1]);
    mem_free(g->slot[0]);
    mem_free(g->slot[1]);
    mem_free(g);
}

static ingle_status gemma4_bind(void **self, struct model *m, const struct io_meta *meta,
                                struct family_info *info, struct err *err)
{
    struct gemma4 *g = mem_zalloc(sizeof *g);
    struct hyper *h = mem_zalloc(sizeof *h);
    const char *path = io_path(model_file(m));
    ingle_status s = g && h ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a model");
    if (!s && io_kind(model_file(m)) == IO_GGUF)
        s = family_keys_check(meta, path, "gemma4", family_gemma4_keys, model_sink(m), err);
    if (!s)
        s = read_hyper(g, meta, h, err);
    if (!s && !(g->layer = mem_calloc((size_t)g->n_layers, sizeof *g->layer)))
        s = err_set(err, INGLE_NOMEM, "no memory for %lld layers", (long long)g->n_layers);
    if (!s)
        s = read_rope(g, m, h, err);
    if (!s)
        s = bind_weights(g, m, meta, h, err);
    if (!s) /* said twice: by the metadata and by the embedding */
        s = family_key_u64(meta, "gemma4.vocab_size", (uint64_t)g->n_vocab, (uint64_t)g->n_vocab,
                         &(uint64_t){0}, err);
    if (!s)
        s = share_streams(g, err);
    if (!s)
        s = keys_from_values(g, m, err);
    mem_free(h);
    if (s) {
        if (s != INGLE_NOMEM && err && !strstr(err->msg, path))
            err_prefix(err, "'%s'", path);
        gemma4_free(g);
        return s;
    }
    *info = (struct family_info){g->n_layers,  g->n_embd, g->n_vocab,    g->n_ctx,
                                 g->n_experts, g->n_used, size_label(g), g->n_ple == 0,
                                 g->both};
    *self = g;
    return INGLE_OK;
}

/* ---- KV layout ---- */

static ingle_status gemma4_kv(const void *self, const struct kv_types *types, struct kv_spec *out,
                              struct err *err)
{
    const struct gemma4 *g = self;
    struct kv_spec spec = {0};
    int64_t group[2] = {-1, -1}; /* of full and of sliding layers: one that has none is left out */
    for (int64_t i = 0; i < g->first_shared; i++)
        if (group[g->layer[i].sliding] < 0)
            group[g->layer[i].sliding] = spec.n_groups++;
    if (group[1] >= 0)
        spec.group[group[1]].window = g->window;
    ingle_status s = kv_types_check_layers(types, g->first_shared, g->n_layers, err);
    if (s)
        return s;
    spec.stream = mem_calloc((size_t)g->first_shared, sizeof *spec.stream);
    if (!spec.stream)
        return err_set(err, INGLE_NOMEM, "no memory for the KV layout");
    for (int64_t i = 0; i < g->first_shared; i++) {
        const struct layer *l = &g->layer[i];
        struct kv_stream *stream = &spec.stream[spec.n_streams++];
        *stream = (struct kv_stream){
            .kind = KV_HEADS,
            .layer = (uint32_t)i,
            .group = (uint32_t)group[l->sliding],
            .n_heads = (uint32_t)l->n_kv_heads,
            .k_width = l->head,
            .v_width = l->head,
            .every = 1,
            .from_v = l->v ? NULL : &l->from_v,
        };
        kv_types_of_layer(types, i, l->sliding, &stream->k_codec, &stream->v_codec);
    }
    s = types->shadow ? kv_spec_add_shadows(&spec, err) : INGLE_OK;
    if (!s)
        s = kv_layout(&spec, err);
    if (s)
        kv_spec_release(&spec);
    else
        *out = spec;
    return s;
}

/* ---- forward pass ---- */

/* Rows are f32, one for each of the step's n tokens; shapes are theirs. */

struct pass {
    const struct gemma4 *g;
    const struct family_forward *f;
    struct device *d;
    struct device_rope rope[2]; /* [full, sliding] */
    /* [n][(n_layers - ple_from) * n_ple]: of layers from ple_from on */
    struct rows ple;
    int64_t ple_from;
    int64_t end;                /* layers from here on are not computed */
};

static void one_matmul(struct device *d, const struct device_matrix *w, struct rows x,
                       struct rows y)
{
    device_matmul(d, &(struct device_product){w, 0, x, y, NULL}, 1);
}

/* Per-layer inputs, once a step: (norm(W_mp x / sqrt(H)) + 16 E_ple[tok]) / sqrt(2). */
static void per_layer_inputs(struct pass *p, struct rows x, const int32_t *tokens)
{
    const struct gemma4 *g = p->g;
    const int64_t width = g->n_layers * g->n_ple;
    /* [n][n_layers * n_ple] */
    p->ple = device_rows(p->d, x.n, width);
    const size_t mark = device_mark(p->d);
    /* [n][n_layers * n_ple]: the tokens' */
    struct rows t = device_rows(p->d, x.n, width);
    void *stored = device_bytes(p->d, model_table_row_bytes(g->ple_embed));
    for (int64_t i = 0; i < x.n && device_runs(p->d); i++) {
        struct err e;
        if (model_table_row(g->ple_embed, tokens[i], stored, t.at + i * t.stride, &e))
            device_fail(p->d, &e);
    }
    device_wrote_rows(p->d, t);
    one_matmul(p->d, g->ple_model_proj, x, p->ple);
    device_scale(p->d, p->ple, p->ple, (float)(1.0 / sqrt((double)g->n_embd)));
    device_norm(p->d, p->ple, p->ple, g->ple_proj_norm, g->n_layers, g->eps);
    device_scale(p->d, t, t, (float)sqrt((double)g->n_ple));
    device_add(p->d, p->ple, t);
    device_scale(p->d, p->ple, p->ple, (float)sqrt(0.5));
    device_release(p->d, mark);
}

/* ---- borders ---- */

/* A border row: the stream, what the per-layer embedding is for the layers after it, and the keys
 * and values that such layers borrow from layers before it, full layers first. */

/* The layer whose keys and values layers of a kind in [from, to) borrow, if it comes before them;
 * -1: none. */
static int64_t lender(const struct gemma4 *g, int sliding, int64_t from, int64_t to)
{
    int64_t owner = -1;
    bool any = false;
    for (int64_t i = num_max(from, g->first_shared); i < to; i++)
        any = any || g->layer[i].sliding == (sliding != 0);
    for (int64_t i = 0; any && i < g->first_shared; i++)
        owner = g->layer[i].sliding == (sliding != 0) ? i : owner;
    return owner < from ? owner : -1;
}

static bool gemma4_borrows(const void *self, uint32_t stream, int64_t from, int64_t to)
{
    const struct gemma4 *g = self;
    bool any = false;
    for (int t = 0; t < 2 && !any; t++) {
        const int64_t owner = lender(g, t, from, to);
        any = owner >= 0 && g->layer[owner].stream == stream;
    }
    return any;
}

static int64_t kv_width(const struct gemma4 *g, int64_t layer)
{
    return layer < 0 ? 0 : g->layer[layer].n_kv_heads * g->layer[layer].head;
}

/* Where the keys of the lender of a kind are in a border row before `layer`; the values follow. */
static int64_t lent_at(const struct gemma4 *g, int sliding, int64_t layer)
{
    return g->n_embd + (g->n_layers - layer) * g->n_ple +
           (sliding ? 2 * kv_width(g, lender(g, 0, layer, g->n_layers)) : 0);
}

static int64_t gemma4_border(const void *self, int64_t layer)
{
    const struct gemma4 *g = self;
    if (layer == g->n_layers)
        return g->n_embd;
    return lent_at(g, 1, layer) + 2 * kv_width(g, lender(g, 1, layer, g->n_layers));
}

static int64_t gemma4_tap_width(const void *self)
{
    const struct gemma4 *g = self;
    return g->n_embd;
}

/* Keys and values of a layer that layers after the end borrow. */
static void lend(struct pass *p, int64_t layer, struct rows k, struct rows v)
{
    const struct gemma4 *g = p->g;
    const int sliding = g->layer[layer].sliding;
    const struct rows *out = family_border(p->f);
    if (!out || p->end == g->n_layers || lender(g, sliding, p->end, g->n_layers) != layer)
        return;
    const int64_t at = lent_at(g, sliding, p->end);
    device_copy(p->d, rows_columns(*out, at, k.width), k);
    device_copy(p->d, rows_columns(*out, at + k.width, v.width), v);
}

/* What comes over the border before the first layer: x becomes the stream. */
static void enter(struct pass *p, struct rows x)
{
    const struct gemma4 *g = p->g;
    const struct rows in = p->f->range->in;
    p->ple_from = p->f->range->from;
    device_copy(p->d, x, rows_columns(in, 0, g->n_embd));
    p->ple = rows_columns(in, g->n_embd, (g->n_layers - p->ple_from) * g->n_ple);
    for (int t = 0; t < 2; t++) {
        const int64_t owner = lender(g, t, p->ple_from, g->n_layers), n = kv_width(g, owner),
                      at = lent_at(g, t, p->ple_from);
        if (owner < 0)
            continue;
        const struct rows k = rows_columns(in, at, n), v = rows_columns(in, at + n, n);
        if (lender(g, t, p->ple_from, p->end) >= 0)
            family_kv_append(p->f, g->layer[owner].stream, k, v);
        lend(p, owner, k, v);
    }
}

static void leave(struct pass *p, struct rows x)
{
    const struct gemma4 *g = p->g;
    const struct rows out = *family_border(p->f);
    const int64_t n = (g->n_layers - p->end) * g->n_ple;
    device_copy(p->d, rows_columns(out, 0, g->n_embd), x);
    if (n)
        device_copy(p->d, rows_columns(out, g->n_embd, n),
                    rows_columns(p->ple, (p->end - p->ple_from) * g->n_ple, n));
}

/* x += norm(W_o attention(norm(x))); x: [n][n_embd], the residual stream. */
static void attention(struct pass *p, const struct layer *l, struct rows x)
{
    const struct gemma4 *g = p->g;
    const size_t mark = device_mark(p->d);
    struct rows h = device_rows(p->d, x.n, g->n_embd);            /* [n][n_embd]: norm(x) */
    struct rows q = device_rows(p->d, x.n, g->n_heads * l->head); /* [n][n_heads * head] */
    device_norm(p->d, h, x, l->attn_norm, 1, g->eps);
    if (l->owns_kv) {
        /* keys and values, both [n][n_kv_heads * head] */
        struct rows k = device_rows(p->d, x.n, l->n_kv_heads * l->head);
        struct rows v = device_rows(p->d, x.n, l->n_kv_heads * l->head);
        const struct device_product qkv[] = {
            {l->q, 0, h, q, NULL}, {l->k, 0, h, k, NULL}, {l->v, 0, h, v, NULL}};
        device_matmul(p->d, qkv, l->v ? 3 : 2);
        /* V has no weight, no rotation */
        device_norm(p->d, v, l->v ? v : k, NULL, l->n_kv_heads, g->eps);
        device_norm(p->d, k, k, l->k_norm, l->n_kv_heads, g->eps);
        device_rope(p->d, k, &p->rope[l->sliding], l->n_kv_heads, l->head / 2);
        family_kv_append(p->f, l->stream, k, v);
        lend(p, l - g->layer, k, v);
    } else {
        one_matmul(p->d, l->q, h, q);
    }
    device_norm(p->d, q, q, l->q_norm, g->n_heads, g->eps);
    device_rope(p->d, q, &p->rope[l->sliding], g->n_heads, l->head / 2);
    /* [n][n_heads * head]: what each head reads; then h = W_o o, [n][n_embd] */
    struct rows o = device_rows(p->d, x.n, g->n_heads * l->head);
    family_attend(p->f, l->stream, q, g->n_heads, o, l->sliding ? g->window : 0, g->scale);
    one_matmul(p->d, l->o, o, h);
    device_add_norm(p->d, x, h, l->post_attn_norm, g->eps, 1.0f);
    device_release(p->d, mark);
}

/* The next layer's choice, by its router on this layer's stream. */
static void guess(struct pass *p, const struct layer *l, struct rows x)
{
    const struct gemma4 *g = p->g;
    const struct layer *next = l + 1;
    if (next >= g->layer + p->end || !expert_wants_guess(&next->experts, x.n))
        return;
    const size_t mark = device_mark(p->d);
    struct rows u = device_rows(p->d, x.n, g->n_embd);        /* [n][n_embd]: norm(x) * scale */
    struct rows score = device_rows(p->d, x.n, g->n_experts); /* [n][n_experts]: router scores */
    device_norm(p->d, u, x, NULL, 1, g->eps);
    device_mul_vector(p->d, u, next->router_scale);
    one_matmul(p->d, next->router, u, score);
    const int64_t k = num_min(num_min(2 * g->n_used, g->n_experts), EXPERT_MAX_USED);
    const struct device_routed c =
        device_route(p->d, &(struct device_route){.k = k, .scale = 1.0f}, score);
    expert_guess(p->d, &next->experts, &c, x.n);
    device_release(p->d, mark);
}

/* y = norm_1(dense block) + norm_2(experts); x is the residual stream, which the router reads
 * raw. */
static void experts(struct pass *p, const struct layer *l, struct rows x,
                    const struct device_mlp_call *dense, struct rows y)
{
    const struct gemma4 *g = p->g;
    const size_t mark = device_mark(p->d);
    /* [n][n_embd]: what the router reads, then what the experts read */
    struct rows u = device_rows(p->d, x.n, g->n_embd);
    struct rows score = device_rows(p->d, x.n, g->n_experts); /* [n][n_experts] */
    device_norm(p->d, u, x, NULL, 1, g->eps);
    device_mul_vector(p->d, u, l->router_scale);
    device_scale(p->d, u, u, (float)(1.0 / sqrt((double)g->n_embd)));
    one_matmul(p->d, l->router, u, score);
    device_softmax(p->d, score);
    const struct device_route rule = {
        .k = g->n_used, .normalise = true, .factor = l->expert_scale, .scale = 1.0f};
    /* ids and weights [n][n_used] */
    const struct device_routed c = expert_route(p->d, &l->experts, rule, score);
    device_norm(p->d, u, x, l->pre_ffn_norm_2, 1, g->eps);
    /* [n][n_embd]: the weighted sum of the experts */
    struct rows out = device_rows(p->d, x.n, g->n_embd);
    struct expert_eval eval = {.d = p->d,
                               .layer = &l->experts,
                               .x = u,
                               .choice = c,
                               .act = DEVICE_GELU,
                               .out = out,
                               .mlp = dense};
    expert_eval_begin(&eval);
    guess(p, l, x);
    expert_eval_end(&eval);
    device_norm(p->d, y, y, l->post_ffn_norm_1, 1, g->eps);
    device_add_norm(p->d, y, out, l->post_ffn_norm_2, g->eps, 1.0f);
    device_release(p->d, mark);
}

/* x: [n][n_embd]; gate and up are [n_ff][n_embd], down is [n_embd][n_ff]. */
static void feed_forward(struct pass *p, const struct layer *l, struct rows x, float scale)
{
    const struct gemma4 *g = p->g;
    const size_t mark = device_mark(p->d);
    struct rows u = device_rows(p->d, x.n, g->n_embd); /* [n][n_embd]: norm(x) */
    struct rows y = device_rows(p->d, x.n, g->n_embd); /* [n][n_embd]: what is added to x */
    device_norm(p->d, u, x, l->ffn_norm, 1, g->eps);
    /* y = Wdown(gelu(Wgate u) * Wup u) */
    const struct device_mlp m = {
        .gate = l->gate, .up = l->up, .down = l->down, .act = DEVICE_GELU};
    if (g->n_experts)
        experts(p, l, x, &(struct device_mlp_call){&m, u, y}, y);
    else
        device_mlp(p->d, &m, u, y);
    device_add_norm(p->d, x, y, l->post_ffn_norm, g->eps, scale);
    device_release(p->d, mark);
}

/* x = (x + norm(W_proj (gelu(W_gate x) * ple))) * scale, with the layer's part of the per-layer
 * embeddings; x: [n][n_embd]. */
static void per_layer_block(struct pass *p, const struct layer *l, int64_t il, struct rows x)
{
    const struct gemma4 *g = p->g;
    const size_t mark = device_mark(p->d);
    struct rows gate = device_rows(p->d, x.n, g->n_ple); /* [n][n_ple] */
    struct rows h = device_rows(p->d, x.n, g->n_embd);   /* [n][n_embd] */
    one_matmul(p->d, l->ple_gate, x, gate);
    device_glu(p->d, DEVICE_GELU, 0, gate, gate,
               rows_columns(p->ple, (il - p->ple_from) * g->n_ple, g->n_ple));
    one_matmul(p->d, l->ple_proj, gate, h);
    device_add_norm(p->d, x, h, l->ple_norm, g->eps, l->scale);
    device_release(p->d, mark);
}

/* logits = softcap(W_out norm(x)), of the wanted rows of x [n][n_embd]. */
static void head(struct pass *p, struct rows x)
{
    const struct gemma4 *g = p->g;
    if (p->f->tap) {
        /* [n][n_embd] */
        struct rows y = device_rows(p->d, x.n, g->n_embd);
        device_norm(p->d, y, x, g->out_norm, 1, g->eps);
        family_tap_rows(p->f, FAMILY_TAP_NORM, 0, y);
    }
    if (!p->f->step->n_logits)
        return;
    /* [n_logits][n_embd], to logits [n_logits][n_vocab] */
    struct rows y = family_wanted(p->f, x);
    device_norm(p->d, y, y, g->out_norm, 1, g->eps);
    one_matmul(p->d, g->out, y, p->f->logits);
    if (g->softcap > 0)
        device_softcap(p->d, p->f->logits, g->softcap);
}

/* x [n][n_embd] = sqrt(n_embd) * E[token], or a row of a picture or of sound in its place. */
static void embed(struct pass *p, struct rows x)
{
    const struct gemma4 *g = p->g;
    int32_t *tokens = family_tokens(p->f);
    device_embed(p->d, x, g->embed, tokens, (float)sqrt((double)g->n_embd));
    family_put_soft(p->f, x, tokens, PAD);
    family_tap_rows(p->f, FAMILY_TAP_EMBED, 0, x);
    if (g->n_ple)
        per_layer_inputs(p, x, tokens);
}

static void gemma4_forward(const void *self, const struct family_forward *f)
{
    const struct gemma4 *g = self;
    struct pass p = {.g = g, .f = f, .d = f->device, .end = family_end(f, g->n_layers)};
    const int64_t from = family_first(f);
    if (from == g->n_layers) {
        head(&p, f->range->in);
        return;
    }
    const int64_t *pos = family_positions(f);
    /* [n][n_embd]: the residual stream */
    struct rows x = device_rows(p.d, f->step->n_rows, g->n_embd);
    if (from)
        enter(&p, x);
    else
        embed(&p, x);
    for (int t = 0; t < 2; t++)
        p.rope[t] = device_rope_table(p.d, pos, x.n, g->inv_freq[t], g->pairs[t]);
    for (int64_t il = from; il < p.end; il++) {
        const struct layer *l = &g->layer[il];
        attention(&p, l, x);
        feed_forward(&p, l, x, g->n_ple ? 1.0f : l->scale);
        if (g->n_ple)
            per_layer_block(&p, l, il, x);
        family_tap_rows(f, FAMILY_TAP_LAYER, (int)il, x);
    }
    if (family_border(f))
        leave(&p, x);
    else
        head(&p, x);
}

static const char *const hf_types[] = {"gemma4", "gemma4_text", "gemma4_unified",
                                       "gemma4_unified_text", NULL};

static const struct expert_layer *gemma4_experts(const void *self, int64_t layer)
{
    const struct gemma4 *g = self;
    return g->layer[layer].experts.n ? &g->layer[layer].experts : NULL;
}

static void gemma4_ends(const void *self, struct family_ends *out)
{
    const struct gemma4 *g = self;
    *out = (struct family_ends){g->embed, g->out, (float)sqrt((double)g->n_embd), g->softcap, NULL};
}

static float gemma4_layer_scale(const void *self, int64_t layer)
{
    const struct gemma4 *g = self;
    return g->layer[layer].scale;
}

const struct family family_gemma4 = {
    .layer_scale = gemma4_layer_scale,
    .experts = gemma4_experts,
    .arch = "gemma4",
    .hf_types = hf_types,
    .config = family_gemma4_config,
    .rename = family_gemma4_rename,
    .hf_name = family_gemma4_hf_name,
    .to_config = family_gemma4_to_config,
    .bind = gemma4_bind,
    .kv = gemma4_kv,
    .forward = gemma4_forward,
    .border = gemma4_border,
    .tap_width = gemma4_tap_width,
    .borrows = gemma4_borrows,
    .ends = gemma4_ends,
    .free = gemma4_free,
};
