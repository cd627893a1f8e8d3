/* SPDX-License-Identifier: Apache-2.0 */
/* deepseek4_load - hyper-parameters, checked, and names to weights, shapes verified. */
#include "family/deepseek4.h"

#include "base/mem.h"
#include "base/num.h"
#include "family/keys.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LAYERS = 1024, MAX_WIDTH = 1 << 20, MAX_HC = 8 };

/* ---- hyper-parameters ---- */

struct hyper {
    uint64_t ratio[MAX_LAYERS];
    double limit[MAX_LAYERS], sh_limit[MAX_LAYERS];
    double base, compress_base, factor, beta_fast, beta_slow;
    uint64_t original_ctx;
    size_t n_stages; /* draft stages after the layers */
    bool yarn, scaling_said;
};

#define KEY(name) "deepseek4." name

/* Without the type nothing may say how positions are scaled: it would have no effect. */
static ingle_status check_unscaled(const struct io_meta *m, struct err *err)
{
    static const char *const key[] = {
        KEY("rope.scaling.factor"), KEY("rope.scaling.original_context_length"),
        KEY("rope.scaling.yarn_beta_fast"), KEY("rope.scaling.yarn_beta_slow")};
    for (size_t i = 0; i < sizeof key / sizeof *key; i++)
        if (io_meta_find(m, key[i]))
            return err_set(err, INGLE_FORMAT,
                           "'" KEY("rope.scaling.type") "' is missing, but '%s' is there", key[i]);
    return INGLE_OK;
}

static ingle_status read_rope(const struct io_meta *m, struct hyper *h, struct err *err)
{
    const char *type;
    size_t n;
    ingle_status s;
    h->base = 1e4;
    h->compress_base = 160000;
    h->factor = 1;
    h->beta_fast = 32;
    h->beta_slow = 1;
    if ((s = family_key_f64(m, KEY("rope.freq_base"), 1, 1e12, &h->base, err)) ||
        (s = family_key_f64(m, KEY("attention.compress_rope_freq_base"), 1, 1e12, &h->compress_base,
                          err)))
        return s;
    if (!io_meta_find(m, KEY("rope.scaling.type")))
        return check_unscaled(m, err);
    h->scaling_said = true;
    if ((s = io_get_str(m, KEY("rope.scaling.type"), &type, &n, err)))
        return s;
    if (!strcmp(type, "none"))
        return INGLE_OK;
    if (strcmp(type, "yarn"))
        return err_set(err, INGLE_UNSUP, "'" KEY("rope.scaling.type") "' is '%s', expected 'yarn'",
                       type);
    h->yarn = true;
    if ((s = io_get_f64(m, KEY("rope.scaling.factor"), 1, 1e6, &h->factor, err)) ||
        (s = io_get_u64(m, KEY("rope.scaling.original_context_length"), 1, 1 << 30,
                        &h->original_ctx, err)) ||
        (s = family_key_f64(m, KEY("rope.scaling.yarn_beta_fast"), 1e-3, 1e6, &h->beta_fast,
                            err)) ||
        (s = family_key_f64(m, KEY("rope.scaling.yarn_beta_slow"), 1e-3, 1e6, &h->beta_slow, err)))
        return s;
    return INGLE_OK;
}

static ingle_status read_ratios(const struct deepseek4 *g, const struct io_meta *m,
                                struct hyper *h, struct err *err)
{
    const struct io_value *v = io_meta_find(m, KEY("attention.compress_ratios"));
    const size_t n = (size_t)g->n_layers;
    const size_t all = v && v->kind == IO_ARRAY && v->n > n && v->n <= MAX_LAYERS ? v->n : n;
    const ingle_status s =
        io_get_u64s(m, KEY("attention.compress_ratios"), all, 0, 1 << 20, h->ratio, err);
    /* After the layers come draft stages, which have windows only. */
    for (size_t i = n; !s && i < all; i++)
        if (h->ratio[i])
            return err_set(
                err, INGLE_UNSUP,
                "'" KEY("attention.compress_ratios") "' has %zu entries for %zu layers ('" KEY(
                    "block_count") "') and its "
                                   "entry %zu, of a draft stage, is %llu, expected 0",
                all, n, i, (unsigned long long)h->ratio[i]);
    h->n_stages = all - n;
    for (size_t i = 0; !s && i < n; i++)
        if (h->ratio[i] && h->ratio[i] != RATIO_CSA && h->ratio[i] != RATIO_HCA)
            return err_set(
                err, INGLE_UNSUP,
                "'" KEY("attention.compress_ratios") "' of layer %zu is %llu, expected 0, 4 or 128",
                i, (unsigned long long)h->ratio[i]);
    return s;
}

static ingle_status read_limits(const struct deepseek4 *g, const struct io_meta *m,
                                struct hyper *h, struct err *err)
{
    const size_t n = (size_t)g->n_layers;
    const char *const exp = KEY("swiglu_clamp_exp"), *const shexp = KEY("swiglu_clamp_shexp");
    ingle_status s = INGLE_OK;
    if (io_meta_find(m, exp))
        s = io_get_f64s(m, exp, n, 0, 1e30, h->limit, err);
    memcpy(h->sh_limit, h->limit, sizeof h->limit);
    if (!s && io_meta_find(m, shexp))
        s = io_get_f64s(m, shexp, n, 0, 1e30, h->sh_limit, err);
    return s;
}

/* One number of the table below: where it goes and what it may be. */
struct number { const char *key; int64_t *to; uint64_t min, max; int64_t fallback; };

static ingle_status read_numbers(struct deepseek4 *g, const struct io_meta *m, struct err *err)
{
    int64_t kv_heads, values, gating, iterations, groups, shared;
    const struct number numbers[] = {
        {KEY("block_count"), &g->n_layers, 1, MAX_LAYERS, -1},
        {KEY("embedding_length"), &g->n_embd, 1, MAX_WIDTH, -1},
        {KEY("context_length"), &g->n_ctx, 1, 1 << 30, 8192},
        {KEY("attention.head_count"), &g->n_heads, 1, 1024, -1},
        {KEY("attention.head_count_kv"), &kv_heads, 1, 1, 1},
        {KEY("attention.key_length"), &g->head, 4, 8192, -1},
        {KEY("attention.value_length"), &values, 4, 8192, 0},
        {KEY("rope.dimension_count"), &g->n_rot, 2, 8192, -1},
        {KEY("attention.q_lora_rank"), &g->q_rank, 1, MAX_WIDTH, -1},
        {KEY("attention.output_lora_rank"), &g->o_rank, 1, MAX_WIDTH, -1},
        {KEY("attention.output_group_count"), &g->o_groups, 1, 1024, -1},
        {KEY("attention.sliding_window"), &g->window, 1, 1 << 20, -1},
        {KEY("attention.indexer.head_count"), &g->index_heads, 1, 1024, 1},
        {KEY("attention.indexer.key_length"), &g->index_head, 4, 8192, 4},
        {KEY("attention.indexer.top_k"), &g->index_top_k, 1, 1 << 16, 1},
        {KEY("expert_count"), &g->n_experts, 1, EXPERT_MAX, -1},
        {KEY("expert_used_count"), &g->n_used, 1, EXPERT_MAX_USED, -1},
        {KEY("expert_shared_count"), &shared, 1, 1, 1},
        {KEY("expert_feed_forward_length"), &g->n_ff, 1, MAX_WIDTH, -1},
        {KEY("expert_gating_func"), &gating, 4, 4, 4},
        {KEY("expert_group_count"), &groups, 0, 1, 0},
        {KEY("hash_layer_count"), &g->n_hash, 0, MAX_LAYERS, 0},
        {KEY("hyper_connection.count"), &g->n_hc, 1, MAX_HC, -1},
        {KEY("hyper_connection.sinkhorn_iterations"), &iterations, 1, 1000, -1},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const struct number *n = &numbers[i];
        uint64_t v = (uint64_t)n->fallback;
        const ingle_status s = n->fallback < 0 ? io_get_u64(m, n->key, n->min, n->max, &v, err)
                                               : family_key_u64(m, n->key, n->min, n->max, &v, err);
        if (s)
            return s;
        *n->to = (int64_t)v;
    }
    g->iterations = (int)iterations;
    if (values && values != g->head)
        return err_set(err, INGLE_UNSUP,
                       "'" KEY("attention.value_length") "' is %lld, but '" KEY(
                           "attention.key_length") "' is %lld: "
                                                   "expected equal widths",
                       (long long)values, (long long)g->head);
    if (g->n_used > g->n_experts)
        return err_set(err, INGLE_FORMAT, "'" KEY("expert_used_count") "' is %lld of %lld experts",
                       (long long)g->n_used, (long long)g->n_experts);
    if (g->n_rot % 2 || g->n_rot > g->head || g->head % 4)
        return err_set(
            err, INGLE_FORMAT,
            "'" KEY("rope.dimension_count") "' is %lld, '" KEY(
                "attention.key_length") "' is %lld: expected "
                                        "an even number within a width that is a multiple of 4",
            (long long)g->n_rot, (long long)g->head);
    if (g->n_heads % g->o_groups)
        return err_set(
            err, INGLE_FORMAT,
            "'" KEY("attention.output_group_count") "' is %lld, which does not divide '" KEY(
                "attention.head_count") "', %lld",
            (long long)g->o_groups, (long long)g->n_heads);
    return INGLE_OK;
}

/* llama.cpp counts the draft block as a layer when the file has it; others do not. */
static ingle_status count_layers(struct deepseek4 *g, const struct io_meta *m,
                                 const struct model *model, struct err *err)
{
    uint64_t n_next = 0;
    char name[64];
    const ingle_status s =
        family_key_u64(m, KEY("nextn_predict_layers"), 0, MAX_LAYERS, &n_next, err);
    snprintf(name, sizeof name, "blk.%lld.nextn.eh_proj.weight", (long long)g->n_layers - 1);
    if (s || !n_next || !model_find(model, name))
        return s;
    if ((int64_t)n_next >= g->n_layers)
        return err_set(err, INGLE_FORMAT,
                       "'" KEY("nextn_predict_layers") "' is %llu of %lld layers",
                       (unsigned long long)n_next, (long long)g->n_layers);
    g->n_layers -= (int64_t)n_next;
    return INGLE_OK;
}

/* Layers that choose blocks need the chooser's numbers. */
static ingle_status need_indexer(const struct deepseek4 *g, const struct io_meta *m,
                                 const struct hyper *h, struct err *err)
{
    static const char *const key[] = {KEY("attention.indexer.head_count"),
                                      KEY("attention.indexer.key_length"),
                                      KEY("attention.indexer.top_k")};
    bool chooses = false;
    for (int64_t i = 0; i < g->n_layers; i++)
        chooses = chooses || h->ratio[i] == RATIO_CSA;
    for (size_t i = 0; chooses && i < sizeof key / sizeof *key; i++)
        if (!io_meta_find(m, key[i]))
            return err_set(err, INGLE_FORMAT,
                           "'%s' is missing, but '" KEY(
                               "attention.compress_ratios") "' has layers of %d, which need it",
                           key[i], RATIO_CSA);
    return INGLE_OK;
}

static ingle_status read_hyper(struct deepseek4 *g, const struct io_meta *m,
                               const struct model *model, struct hyper *h, struct err *err)
{
    double eps = 1e-6, hc_eps = 1e-6, scale = 1, attend = 0;
    bool norm = true;
    ingle_status s;
    if ((s = read_numbers(g, m, err)) || (s = count_layers(g, m, model, err)) ||
        (s = family_key_f64(m, KEY("attention.layer_norm_rms_epsilon"), 0, 1, &eps, err)) ||
        (s = family_key_f64(m, KEY("hyper_connection.epsilon"), 0, 1, &hc_eps, err)) ||
        (s = family_key_f64(m, KEY("expert_weights_scale"), 0, 1e6, &scale, err)) ||
        (s = family_key_f64(m, KEY("attention.scale"), 0, 1e6, &attend, err)) ||
        (io_meta_find(m, KEY("expert_weights_norm")) &&
         (s = io_get_bool(m, KEY("expert_weights_norm"), &norm, err))) ||
        (s = read_ratios(g, m, h, err)) || (s = read_limits(g, m, h, err)) ||
        (s = read_rope(m, h, err)))
        return s;
    if ((s = need_indexer(g, m, h, err)))
        return s;
    for (int64_t i = 0; i < g->n_layers; i++)
        if (h->ratio[i] == RATIO_CSA && (g->index_head < g->n_rot || g->index_head % 4))
            return err_set(
                err, INGLE_FORMAT,
                "'" KEY(
                    "attention.indexer.key_length") "' is %lld, less than %lld rotated dimensions",
                (long long)g->index_head, (long long)g->n_rot);
    const double usual = 1 / sqrt((double)g->head);
    if (attend > 0 && fabs(attend - usual) > 1e-4 * usual)
        return err_set(err, INGLE_UNSUP,
                       "'" KEY("attention.scale") "' is %g, supported is %g (heads of width %lld)",
                       attend, usual, (long long)g->head);
    g->eps = (float)eps;
    g->hc_eps = (float)hc_eps;
    g->weight_scale = (float)scale;
    g->weight_norm = norm;
    return INGLE_OK;
}

/* Where a frequency turns `turns` times within the original context. */
static double yarn_index(const struct hyper *h, double n_rot, double turns)
{
    return n_rot * log((double)h->original_ctx / (turns * 2 * 3.14159265358979323846)) /
           (2 * log(h->compress_base));
}

static ingle_status make_rope(struct deepseek4 *g, const struct hyper *h, struct err *err)
{
    const int64_t n = g->n_rot / 2;
    for (int t = 0; t < 2; t++)
        if (!(g->inv_freq[t] = mem_calloc((size_t)n, sizeof(double))))
            return err_set(err, INGLE_NOMEM, "no memory for rotations");
    double low = 0, high = 0;
    if (h->yarn) {
        low = fmax(floor(yarn_index(h, (double)g->n_rot, h->beta_fast)), 0);
        high = fmin(ceil(yarn_index(h, (double)g->n_rot, h->beta_slow)), (double)g->n_rot - 1);
        if (high - low < 1e-3)
            high = low + 1e-3;
    }
    for (int64_t i = 0; i < n; i++) {
        const double at = 2.0 * (double)i / (double)g->n_rot;
        g->inv_freq[0][i] = pow(h->base, -at);
        const double f = pow(h->compress_base, -at);
        const double ramp = h->yarn ? fmin(fmax(((double)i - low) / (high - low), 0), 1) : 0;
        g->inv_freq[1][i] = f / h->factor * ramp + f * (1 - ramp);
    }
    return INGLE_OK;
}

/* ---- weights ---- */

#define WIDTH "embedding_length"
#define HEADS "attention.head_count|attention.key_length"
#define GROUPS "attention.output_group_count|attention.output_lora_rank"
#define RATIOS "attention.compress_ratios"
#define EXPERTS "expert_count|expert_feed_forward_length|" WIDTH

static const struct family_shape shapes[] = {
    {"attn_q_a.weight", "attention.q_lora_rank|" WIDTH, NULL},
    {"attn_q_a_norm.weight", "attention.q_lora_rank", NULL},
    {"indexer.attn_q_b.weight",
     "attention.indexer.head_count|attention.indexer.key_length|attention.q_lora_rank", RATIOS},
    {"attn_q_b.weight", HEADS "|attention.q_lora_rank", NULL},
    {"attn_kv.weight", "attention.key_length|" WIDTH, NULL},
    {"attn_kv_a_norm.weight", "attention.key_length", NULL},
    {"attn_sinks.weight", "attention.head_count", NULL},
    {"attn_output_a.weight", HEADS "|" GROUPS, NULL},
    {"attn_output_b.weight", GROUPS "|" WIDTH, NULL},
    {"attn_compressor_norm.weight", "attention.key_length", RATIOS},
    {"attn_compressor_ape.weight", RATIOS "|attention.key_length", RATIOS},
    {"attn_compressor_kv.weight", RATIOS "|attention.key_length|" WIDTH, RATIOS},
    {"attn_compressor_gate.weight", RATIOS "|attention.key_length|" WIDTH, RATIOS},
    {"indexer_compressor_norm.weight", "attention.indexer.key_length", RATIOS},
    {"indexer_compressor_ape.weight", RATIOS "|attention.indexer.key_length", RATIOS},
    {"indexer_compressor_kv.weight", RATIOS "|attention.indexer.key_length|" WIDTH, RATIOS},
    {"indexer_compressor_gate.weight", RATIOS "|attention.indexer.key_length|" WIDTH, RATIOS},
    {"indexer.proj.weight", "attention.indexer.head_count|" WIDTH, RATIOS},
    {"ffn_gate_inp.weight", "expert_count|" WIDTH, NULL},
    {"ffn_gate_tid2eid.weight", "expert_used_count|vocab_size", "hash_layer_count"},
    {"exp_probs_b.bias", "expert_count", "hash_layer_count"},
    {"_exps.weight", EXPERTS, NULL},
    {"_shexp.weight", "expert_feed_forward_length|" WIDTH, NULL},
    {"_fn.weight", "hyper_connection.count|" WIDTH, NULL},
    {"_base.weight", "hyper_connection.count", NULL},
    {"norm.weight", WIDTH, NULL},
    {"token_embd.weight", WIDTH, NULL},
    {"output.weight", WIDTH, NULL},
    {NULL, NULL, NULL},
};

static void explain(const struct binder *b, const char *name)
{
    long long il = -1;
    (void)sscanf(name, "blk.%9lld.", &il);
    if (b->s && b->meta)
        family_shape_explain(b->m, b->meta, "deepseek4", shapes, name, il, b->err);
}

static const char *full_name(const struct binder *b, const char *suffix, char out[128])
{
    snprintf(out, 128, "%s%s", b->prefix, suffix);
    return out;
}

const struct device_matrix *family_deepseek4_matrix(struct binder *b, const char *suffix,
                                                    int64_t out, int64_t in, int64_t n_stack)
{
    char name[128];
    const struct device_matrix *w = NULL;
    if (b->s)
        return NULL;
    b->s = model_matrix(b->m, full_name(b, suffix, name), out, in, n_stack, &w, b->err);
    explain(b, name);
    return w;
}

const struct device_vector *family_deepseek4_vector(struct binder *b, const char *suffix, int64_t n)
{
    char name[128];
    const struct device_vector *w = NULL;
    if (b->s)
        return NULL;
    b->s = model_vector(b->m, full_name(b, suffix, name), n, &w, b->err);
    explain(b, name);
    return w;
}

void family_deepseek4_bind_hc(struct binder *b, const char *prefix, bool head, struct hc *h)
{
    const struct deepseek4 *g = b->g;
    const int64_t n = g->n_hc, n_scale = head ? 1 : 3, n_base = head ? n : 2 * n + n * n;
    char name[64];
    if (b->s)
        return;
    snprintf(name, sizeof name, "%s_fn.weight", prefix);
    h->fn = family_deepseek4_matrix(b, name, n_base, n * g->n_embd, 1);
    snprintf(name, sizeof name, "%s_scale.weight", prefix);
    const struct device_vector *scale = family_deepseek4_vector(b, name, n_scale);
    snprintf(name, sizeof name, "%s_base.weight", prefix);
    const struct device_vector *base = family_deepseek4_vector(b, name, n_base);
    h->op = (struct device_hc){n, scale, base, g->iterations, g->hc_eps, g->eps};
}

static void bind_compressor(struct binder *b, const char *prefix, int64_t width, int64_t ratio,
                            struct compressor *c)
{
    char name[64];
    c->width = width;
    c->wide = ratio == RATIO_CSA ? 2 * width : width;
    snprintf(name, sizeof name, "%s_kv.weight", prefix);
    c->kv = family_deepseek4_matrix(b, name, c->wide, b->g->n_embd, 1);
    snprintf(name, sizeof name, "%s_gate.weight", prefix);
    c->gate = family_deepseek4_matrix(b, name, c->wide, b->g->n_embd, 1);
    snprintf(name, sizeof name, "%s_norm.weight", prefix);
    c->norm = family_deepseek4_vector(b, name, width);
    if (b->s)
        return;
    char full[128];
    c->ape = mem_calloc((size_t)(ratio * c->wide), sizeof *c->ape);
    snprintf(name, sizeof name, "%s_ape.weight", prefix);
    b->s = c->ape ? model_floats_2d(b->m, full_name(b, name, full), c->wide, ratio, c->ape, b->err)
                  : err_set(b->err, INGLE_NOMEM, "no memory for tensor '%s'", name);
    explain(b, full);
}

static void bind_attention(struct binder *b, struct layer *l)
{
    const struct deepseek4 *g = b->g;
    const int64_t n_q = g->n_heads * g->head;
    l->attn_norm = family_deepseek4_vector(b, "attn_norm.weight", g->n_embd);
    l->q_a = family_deepseek4_matrix(b, "attn_q_a.weight", g->q_rank, g->n_embd, 1);
    l->q_a_norm = family_deepseek4_vector(b, "attn_q_a_norm.weight", g->q_rank);
    l->q_b = family_deepseek4_matrix(b, "attn_q_b.weight", n_q, g->q_rank, 1);
    l->kv = family_deepseek4_matrix(b, "attn_kv.weight", g->head, g->n_embd, 1);
    l->kv_norm = family_deepseek4_vector(b, "attn_kv_a_norm.weight", g->head);
    l->sink = family_deepseek4_vector(b, "attn_sinks.weight", g->n_heads);
    l->o_a = family_deepseek4_matrix(b, "attn_output_a.weight", g->o_rank, n_q / g->o_groups,
                                     g->o_groups);
    l->o_b =
        family_deepseek4_matrix(b, "attn_output_b.weight", g->n_embd, g->o_groups * g->o_rank, 1);
    if (l->ratio)
        bind_compressor(b, "attn_compressor", g->head, l->ratio, &l->comp);
    if (l->ratio == RATIO_CSA) {
        bind_compressor(b, "indexer_compressor", g->index_head, l->ratio, &l->index);
        l->index_q = family_deepseek4_matrix(b, "indexer.attn_q_b.weight",
                                             g->index_heads * g->index_head, g->q_rank, 1);
        l->index_w =
            family_deepseek4_matrix(b, "indexer.proj.weight", g->index_heads, g->n_embd, 1);
    }
}

/* A row of the hash table names no expert twice: it would count double. */
static ingle_status check_table(const struct binder *b, const int32_t *t, const char *name)
{
    const struct deepseek4 *g = b->g;
    for (int64_t r = 0; r < g->n_vocab; r++, t += g->n_used)
        for (int64_t i = 1; i < g->n_used; i++)
            for (int64_t j = 0; j < i; j++)
                if (t[i] == t[j])
                    return err_set(b->err, INGLE_FORMAT,
                                   "'%s': tensor '%s' names expert %d twice for token %lld",
                                   io_path(model_file(b->m)), name, t[i], (long long)r);
    return INGLE_OK;
}

/* Which experts a token has: int32 [n_vocab][n_used]. */
static int32_t *bind_table(struct binder *b)
{
    const struct deepseek4 *g = b->g;
    char name[128];
    int32_t *t = NULL;
    if (b->s)
        return NULL;
    full_name(b, "ffn_gate_tid2eid.weight", name);
    t = mem_calloc((size_t)(g->n_vocab * g->n_used), sizeof *t);
    b->s =
        t ? model_ints(b->m, name, g->n_used, g->n_vocab, 0, (int32_t)g->n_experts - 1, t, b->err)
          : err_set(b->err, INGLE_NOMEM, "no memory for hash routing");
    explain(b, name);
    if (!b->s)
        b->s = check_table(b, t, name);
    return t;
}

static void bind_experts(struct binder *b, struct layer *l, bool hashed)
{
    const struct deepseek4 *g = b->g;
    l->ffn_norm = family_deepseek4_vector(b, "ffn_norm.weight", g->n_embd);
    l->router = family_deepseek4_matrix(b, "ffn_gate_inp.weight", g->n_experts, g->n_embd, 1);
    if (hashed)
        l->table = bind_table(b);
    else
        l->bias = family_deepseek4_vector(b, "exp_probs_b.bias", g->n_experts);
    l->experts.n = g->n_experts;
    l->experts.width = g->n_ff;
    l->experts.gate =
        family_deepseek4_matrix(b, "ffn_gate_exps.weight", g->n_ff, g->n_embd, g->n_experts);
    l->experts.up =
        family_deepseek4_matrix(b, "ffn_up_exps.weight", g->n_ff, g->n_embd, g->n_experts);
    l->experts.down =
        family_deepseek4_matrix(b, "ffn_down_exps.weight", g->n_embd, g->n_ff, g->n_experts);
    long long il = g->n_layers; /* of the draft block */
    (void)sscanf(b->prefix, "blk.%9lld.", &il);
    if (!b->s)
        b->s = expert_layer_init(&l->experts, b->m, il, b->err);
    l->sh_gate = family_deepseek4_matrix(b, "ffn_gate_shexp.weight", g->n_ff, g->n_embd, 1);
    l->sh_up = family_deepseek4_matrix(b, "ffn_up_shexp.weight", g->n_ff, g->n_embd, 1);
    l->sh_down = family_deepseek4_matrix(b, "ffn_down_shexp.weight", g->n_embd, g->n_ff, 1);
}

void family_deepseek4_bind_layer(struct binder *b, struct layer *l, bool hashed)
{
    family_deepseek4_bind_hc(b, "hc_attn", false, &l->hc_attn);
    family_deepseek4_bind_hc(b, "hc_ffn", false, &l->hc_ffn);
    bind_attention(b, l);
    bind_experts(b, l, hashed);
}

/* The draft block is bound by its own interface; the file need not have it. */
static void skip_draft(const struct deepseek4 *g, struct model *m)
{
    static const char what[] = "they draft (multi-token prediction, DSpark), and are not used";
    char block[32];
    snprintf(block, sizeof block, "blk.%lld.", (long long)g->n_layers);
    model_skip(m, block, what);
    model_skip(m, "mtp.", what);
}

/* A file with nothing but the draft block is not a model. */
static ingle_status check_standalone(const struct model *m, struct err *err)
{
    if (model_find(m, "blk.0.attn_norm.weight"))
        return INGLE_OK;
    return err_set(err, INGLE_UNSUP,
                   "'%s': tensor 'blk.0.attn_norm.weight' is missing; a file with a draft block "
                   "alone is no model of its own",
                   io_path(model_file(m)));
}

static ingle_status bind_weights(struct deepseek4 *g, struct model *m, const struct io_meta *meta,
                                 const struct hyper *h, struct err *err)
{
    struct binder b = {m, g, "", check_standalone(m, err), err, meta};
    if (!b.s)
        b.s = family_check_layers(m, "deepseek4", g->n_layers, "nextn.eh_proj.weight", err);
    if (b.s)
        return b.s;
    skip_draft(g, m);
    g->n_vocab = model_matrix_rows(m, "token_embd.weight", 1 << 24);
    if (!g->n_vocab)
        return err_set(err, INGLE_FORMAT,
                       "'%s': tensor 'token_embd.weight' is missing or no matrix of 1 to %d rows",
                       io_path(model_file(m)), 1 << 24);
    g->embed = family_deepseek4_matrix(&b, "token_embd.weight", g->n_vocab, g->n_embd, 1);
    if (!b.s)
        b.s = family_bind_head(m, meta, "deepseek4", false, g->n_vocab, g->n_embd, g->embed,
                               &g->out, err);
    g->out_norm = family_deepseek4_vector(&b, "output_norm.weight", g->n_embd);
    family_deepseek4_bind_hc(&b, "output_hc", true, &g->hc_head);
    for (int64_t il = 0; il < g->n_layers && !b.s; il++) {
        struct layer *l = &g->layer[il];
        char prefix[32];
        snprintf(prefix, sizeof prefix, "blk.%lld.", (long long)il);
        b.prefix = prefix;
        l->ratio = (int64_t)h->ratio[il];
        l->limit = (float)h->limit[il];
        l->sh_limit = (float)h->sh_limit[il];
        family_deepseek4_bind_layer(&b, l, il < g->n_hash);
    }
    return b.s;
}

void family_deepseek4_free_layer(struct layer *l)
{
    mem_free(l->comp.ape);
    mem_free(l->index.ape);
    mem_free(l->table);
    expert_layer_release(&l->experts);
}

void family_deepseek4_free(void *self)
{
    struct deepseek4 *g = self;
    if (!g)
        return;
    for (int64_t i = 0; g->layer && i < g->n_layers; i++)
        family_deepseek4_free_layer(&g->layer[i]);
    mem_free(g->layer);
    mem_free(g->inv_freq[0]);
    mem_free(g->inv_freq[1]);
    mem_free(g);
}

/* Each layer's streams, in the order in which deepseek4.c lays them out. */
static void number_streams(struct deepseek4 *g)
{
    uint32_t n = 0;
    for (int64_t i = 0; i < g->n_layers; i++) {
        struct layer *l = &g->layer[i];
        l->raw = n++;
        if (l->ratio) {
            l->comp.in = n++;
            l->comp.out = n++;
        }
        if (l->ratio == RATIO_CSA) {
            l->index.in = n++;
            l->index.out = n++;
        }
    }
}

ingle_status family_deepseek4_bind(void **self, struct model *m, const struct io_meta *meta,
                                   struct family_info *info, struct err *err)
{
    struct deepseek4 *g = mem_zalloc(sizeof *g);
    struct hyper *h = mem_zalloc(sizeof *h);
    ingle_status s = g && h ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a model");
    if (!s && io_kind(model_file(m)) == IO_GGUF)
        s = family_keys_check(meta, io_path(model_file(m)), "deepseek4", family_deepseek4_keys,
                              model_sink(m), err);
    if (!s)
        s = read_hyper(g, meta, m, h, err);
    if (!s && !(g->layer = mem_calloc((size_t)g->n_layers, sizeof *g->layer)))
        s = err_set(err, INGLE_NOMEM, "no memory for %lld layers", (long long)g->n_layers);
    if (!s)
        s = make_rope(g, h, err);
    if (!s)
        s = bind_weights(g, m, meta, h, err);
    if (!s) /* said twice: by the metadata and by the embedding */
        s = family_key_u64(meta, KEY("vocab_size"), (uint64_t)g->n_vocab, (uint64_t)g->n_vocab,
                         &(uint64_t){0}, err);
    if (!s && h->n_stages > 1)
        report(model_sink(m), INGLE_REPORT_NOTE, "drafting", io_path(model_file(m)),
               "the file describes %zu draft stages after its layers", h->n_stages);
    if (!s && !h->scaling_said)
        report(model_sink(m), INGLE_REPORT_WARN, "positions", io_path(model_file(m)),
               "'" KEY("rope.scaling.type") "' is missing: positions are not scaled (no YaRN), up "
                                            "to the context of %lld tokens",
               (long long)g->n_ctx);
    mem_free(h);
    if (s) {
        if (s != INGLE_NOMEM && err && !strstr(err->msg, io_path(model_file(m))))
            err_prefix(err, "'%s'", io_path(model_file(m)));
        family_deepseek4_free(g);
        return s;
    }
    number_streams(g);
    *info = (struct family_info){g->n_layers,
                                 g->n_embd,
                                 g->n_vocab,
                                 g->n_ctx,
                                 g->n_experts,
                                 g->n_used,
                                 g->n_layers == 43 && g->n_embd == 4096 ? "284B-A13B" : "",
                                 true, false};
    *self = g;
    return INGLE_OK;
}

