/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek4 - DeepSeek V4 Flash: hyper-connections, one latent that is key and value,
 * a window beside compressed rows (every 4 positions, chosen by an indexer, or every 128),
 * and experts routed by token in the first layers and by score in the others.
 *
 * Order of the file: hyper-parameters, weights, what positions leave behind, forward pass;
 * the names of the published checkpoint are in deepseek4_hf.c.
 */
#include "family/deepseek4.h"

#include "base/mem.h"
#include "base/num.h"
#include "family/table.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LAYERS = 1024, MAX_WIDTH = 1 << 20, MAX_HC = 8 };
enum { RATIO_CSA = 4, RATIO_HCA = 128 };
enum { NO_STREAM = UINT32_MAX };

struct hc {
    const struct device_matrix *fn;
    float *numbers;              /* scale, then base; owned */
    struct device_hc op;
};

struct compressor {
    const struct device_matrix *kv, *gate;
    const struct device_vector *norm;
    float *ape;                  /* f32 [ratio][wide]; owned */
    uint32_t in, out;            /* streams */
    int64_t width, wide;         /* of a row; of a value (twice the width if blocks overlap) */
};

struct layer {
    int64_t ratio;               /* 0, 4 or 128 */
    struct hc hc_attn, hc_ffn;
    const struct device_vector *attn_norm, *q_a_norm, *kv_norm, *ffn_norm;
    const struct device_matrix *q_a, *q_b, *kv, *o_a, *o_b;
    float *sink;                 /* f32 [n_heads]; owned */
    uint32_t raw;                /* stream of latents */
    struct compressor comp, index;
    const struct device_matrix *index_q, *index_w;
    const struct device_matrix *router;
    float *bias;                 /* f32 [n_experts], or NULL; owned */
    int32_t *table;              /* [n_vocab][n_used], or NULL; owned */
    struct expert_layer experts;
    const struct device_matrix *sh_gate, *sh_up, *sh_down;
    float limit, sh_limit;
};

struct deepseek4 {
    int64_t n_layers, n_embd, n_heads, head, n_rot, n_vocab, n_ctx, q_rank, o_rank, o_groups;
    int64_t window, index_heads, index_head, index_top_k;
    int64_t n_experts, n_used, n_ff, n_hash;
    int64_t n_hc;
    int iterations;
    float eps, hc_eps, weight_scale;
    bool weight_norm;
    double *inv_freq[2];         /* f64 [n_rot / 2]: [window layers, compressed layers] */
    struct layer *layer;
    const struct device_matrix *embed, *out;
    const struct device_vector *out_norm;
    struct hc hc_head;
};

/* ---- hyper-parameters ---- */

struct hyper {
    uint64_t ratio[MAX_LAYERS];
    double limit[MAX_LAYERS], sh_limit[MAX_LAYERS];
    double base, compress_base, factor, beta_fast, beta_slow;
    uint64_t original_ctx;
    bool yarn;
};

#define KEY(name) "deepseek4." name

static ingle_status optional_u64(const struct io_meta *m, const char *key, uint64_t min,
                                 uint64_t max, uint64_t *out, struct err *err)
{
    return io_meta_find(m, key) ? io_get_u64(m, key, min, max, out, err) : INGLE_OK;
}

static ingle_status optional_f64(const struct io_meta *m, const char *key, double min, double max,
                                 double *out, struct err *err)
{
    return io_meta_find(m, key) ? io_get_f64(m, key, min, max, out, err) : INGLE_OK;
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
    if ((s = optional_f64(m, KEY("rope.freq_base"), 1, 1e12, &h->base, err)) ||
        (s = optional_f64(m, KEY("attention.compress_rope_freq_base"), 1, 1e12, &h->compress_base, err)))
        return s;
    if (!io_meta_find(m, KEY("rope.scaling.type")))
        return INGLE_OK;
    if ((s = io_get_str(m, KEY("rope.scaling.type"), &type, &n, err)))
        return s;
    if (!strcmp(type, "none"))
        return INGLE_OK;
    if (strcmp(type, "yarn"))
        return err_set(err, INGLE_UNSUP, "'" KEY("rope.scaling.type") "' is '%s', expected 'yarn'", type);
    h->yarn = true;
    if ((s = io_get_f64(m, KEY("rope.scaling.factor"), 1, 1e6, &h->factor, err)) ||
        (s = io_get_u64(m, KEY("rope.scaling.original_context_length"), 1, 1 << 30, &h->original_ctx, err)) ||
        (s = optional_f64(m, KEY("rope.scaling.yarn_beta_fast"), 1e-3, 1e6, &h->beta_fast, err)) ||
        (s = optional_f64(m, KEY("rope.scaling.yarn_beta_slow"), 1e-3, 1e6, &h->beta_slow, err)))
        return s;
    return INGLE_OK;
}

static ingle_status read_ratios(const struct deepseek4 *g, const struct io_meta *m,
                                struct hyper *h, struct err *err)
{
    const struct io_value *v = io_meta_find(m, KEY("attention.compress_ratios"));
    const size_t n = (size_t)g->n_layers;
    if (v && v->kind == IO_ARRAY && v->n > n + 1)
        return err_set(err, INGLE_UNSUP,
                       "'" KEY("attention.compress_ratios") "' has %zu entries for %zu layers: a release with "
                       "other draft stages (DSpark), which this family does not compute", v->n, n);
    const ingle_status s = io_get_u64s(m, KEY("attention.compress_ratios"), n, 0, 1 << 20, h->ratio, err);
    for (size_t i = 0; !s && i < n; i++)
        if (h->ratio[i] && h->ratio[i] != RATIO_CSA && h->ratio[i] != RATIO_HCA)
            return err_set(err, INGLE_UNSUP,
                           "'" KEY("attention.compress_ratios") "' of layer %zu is %llu, expected 0, 4 or 128", i,
                           (unsigned long long)h->ratio[i]);
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
                                               : optional_u64(m, n->key, n->min, n->max, &v, err);
        if (s)
            return s;
        *n->to = (int64_t)v;
    }
    g->iterations = (int)iterations;
    if (values && values != g->head)
        return err_set(err, INGLE_UNSUP, "value heads of width %lld beside key heads of %lld",
                       (long long)values, (long long)g->head);
    if (g->n_used > g->n_experts)
        return err_set(err, INGLE_FORMAT, "'" KEY("expert_used_count") "' is %lld of %lld experts",
                       (long long)g->n_used, (long long)g->n_experts);
    if (g->n_rot % 2 || g->n_rot > g->head || g->head % 4)
        return err_set(err, INGLE_FORMAT, "'" KEY("rope.dimension_count") "' is %lld for heads of width %lld",
                       (long long)g->n_rot, (long long)g->head);
    if (g->n_heads % g->o_groups)
        return err_set(err, INGLE_FORMAT, "%lld output groups do not divide %lld heads",
                       (long long)g->o_groups, (long long)g->n_heads);
    return INGLE_OK;
}

static ingle_status read_hyper(struct deepseek4 *g, const struct io_meta *m, struct hyper *h,
                               struct err *err)
{
    double eps = 1e-6, hc_eps = 1e-6, scale = 1;
    bool norm = true;
    ingle_status s;
    if ((s = read_numbers(g, m, err)) ||
        (s = optional_f64(m, KEY("attention.layer_norm_rms_epsilon"), 0, 1, &eps, err)) ||
        (s = optional_f64(m, KEY("hyper_connection.epsilon"), 0, 1, &hc_eps, err)) ||
        (s = optional_f64(m, KEY("expert_weights_scale"), 0, 1e6, &scale, err)) ||
        (io_meta_find(m, KEY("expert_weights_norm")) &&
         (s = io_get_bool(m, KEY("expert_weights_norm"), &norm, err))) ||
        (s = read_ratios(g, m, h, err)) || (s = read_limits(g, m, h, err)) || (s = read_rope(m, h, err)))
        return s;
    for (int64_t i = 0; i < g->n_layers; i++)
        if (h->ratio[i] == RATIO_CSA && (g->index_head < g->n_rot || g->index_head % 4))
            return err_set(err, INGLE_FORMAT, "'" KEY("attention.indexer.key_length") "' is %lld, less than %lld rotated dimensions",
                           (long long)g->index_head, (long long)g->n_rot);
    g->eps = (float)eps;
    g->hc_eps = (float)hc_eps;
    g->weight_scale = (float)scale;
    g->weight_norm = norm;
    return INGLE_OK;
}

/* Where a frequency turns `turns` times within the original context. */
static double yarn_index(const struct hyper *h, double n_rot, double turns)
{
    return n_rot * log((double)h->original_ctx / (turns * 2 * 3.14159265358979323846)) / (2 * log(h->compress_base));
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

struct binder {
    struct model *m;
    const struct deepseek4 *g;
    int64_t il;
    ingle_status s; /* the first error; later calls do nothing */
    struct err *err;
};

static const char *layer_name(const struct binder *b, const char *suffix, char out[128])
{
    if (b->il >= 0)
        snprintf(out, 128, "blk.%lld.%s", (long long)b->il, suffix);
    else
        snprintf(out, 128, "%s", suffix);
    return out;
}

static const struct device_matrix *matrix(struct binder *b, const char *suffix, int64_t out,
                                          int64_t in, int64_t n_stack)
{
    char name[128];
    const struct device_matrix *w = NULL;
    if (!b->s)
        b->s = model_matrix(b->m, layer_name(b, suffix, name), out, in, n_stack, &w, b->err);
    return w;
}

static const struct device_vector *vector(struct binder *b, const char *suffix, int64_t n)
{
    char name[128];
    const struct device_vector *w = NULL;
    if (!b->s)
        b->s = model_vector(b->m, layer_name(b, suffix, name), n, &w, b->err);
    return w;
}

/* Into to, or into new memory if to is NULL. */
static float *floats(struct binder *b, const char *suffix, int64_t n, float *to)
{
    char name[128];
    if (!b->s && !to && !(to = mem_calloc((size_t)n, sizeof *to)))
        b->s = err_set(b->err, INGLE_NOMEM, "no memory for tensor '%s'", suffix);
    if (!b->s)
        b->s = model_floats(b->m, layer_name(b, suffix, name), n, to, b->err);
    return to;
}

static void bind_hc(struct binder *b, const char *prefix, bool head, struct hc *h)
{
    const struct deepseek4 *g = b->g;
    const int64_t n = g->n_hc, n_scale = head ? 1 : 3, n_base = head ? n : 2 * n + n * n;
    char name[64];
    if (b->s)
        return;
    snprintf(name, sizeof name, "%s_fn.weight", prefix);
    h->fn = matrix(b, name, n_base, n * g->n_embd, 1);
    h->numbers = mem_calloc((size_t)(n_scale + n_base), sizeof *h->numbers);
    if (!h->numbers && !b->s)
        b->s = err_set(b->err, INGLE_NOMEM, "no memory for hyper-connections");
    snprintf(name, sizeof name, "%s_scale.weight", prefix);
    floats(b, name, n_scale, h->numbers);
    snprintf(name, sizeof name, "%s_base.weight", prefix);
    floats(b, name, n_base, h->numbers ? h->numbers + n_scale : NULL);
    h->op = (struct device_hc){n, h->numbers, h->numbers + n_scale, g->iterations, g->hc_eps, g->eps};
}

static void bind_compressor(struct binder *b, const char *prefix, int64_t width, int64_t ratio,
                            struct compressor *c)
{
    char name[64];
    c->width = width;
    c->wide = ratio == RATIO_CSA ? 2 * width : width;
    snprintf(name, sizeof name, "%s_kv.weight", prefix);
    c->kv = matrix(b, name, c->wide, b->g->n_embd, 1);
    snprintf(name, sizeof name, "%s_gate.weight", prefix);
    c->gate = matrix(b, name, c->wide, b->g->n_embd, 1);
    snprintf(name, sizeof name, "%s_norm.weight", prefix);
    c->norm = vector(b, name, width);
    if (b->s)
        return;
    char full[128];
    c->ape = mem_calloc((size_t)(ratio * c->wide), sizeof *c->ape);
    snprintf(name, sizeof name, "%s_ape.weight", prefix);
    b->s = c->ape ? model_floats_2d(b->m, layer_name(b, name, full), c->wide, ratio, c->ape, b->err)
                  : err_set(b->err, INGLE_NOMEM, "no memory for tensor '%s'", name);
}

static void bind_attention(struct binder *b, struct layer *l)
{
    const struct deepseek4 *g = b->g;
    const int64_t n_q = g->n_heads * g->head;
    l->attn_norm = vector(b, "attn_norm.weight", g->n_embd);
    l->q_a = matrix(b, "attn_q_a.weight", g->q_rank, g->n_embd, 1);
    l->q_a_norm = vector(b, "attn_q_a_norm.weight", g->q_rank);
    l->q_b = matrix(b, "attn_q_b.weight", n_q, g->q_rank, 1);
    l->kv = matrix(b, "attn_kv.weight", g->head, g->n_embd, 1);
    l->kv_norm = vector(b, "attn_kv_a_norm.weight", g->head);
    l->sink = floats(b, "attn_sinks.weight", g->n_heads, NULL);
    l->o_a = matrix(b, "attn_output_a.weight", g->o_rank, n_q / g->o_groups, g->o_groups);
    l->o_b = matrix(b, "attn_output_b.weight", g->n_embd, g->o_groups * g->o_rank, 1);
    if (l->ratio)
        bind_compressor(b, "attn_compressor", g->head, l->ratio, &l->comp);
    if (l->ratio == RATIO_CSA) {
        bind_compressor(b, "indexer_compressor", g->index_head, l->ratio, &l->index);
        l->index_q = matrix(b, "indexer.attn_q_b.weight", g->index_heads * g->index_head, g->q_rank, 1);
        l->index_w = matrix(b, "indexer.proj.weight", g->index_heads, g->n_embd, 1);
    }
}

static void bind_experts(struct binder *b, struct layer *l)
{
    const struct deepseek4 *g = b->g;
    char name[128];
    l->ffn_norm = vector(b, "ffn_norm.weight", g->n_embd);
    l->router = matrix(b, "ffn_gate_inp.weight", g->n_experts, g->n_embd, 1);
    if (b->il < g->n_hash) {
        l->table = mem_calloc((size_t)(g->n_vocab * g->n_used), sizeof *l->table);
        if (!b->s && !l->table)
            b->s = err_set(b->err, INGLE_NOMEM, "no memory for hash routing");
        if (!b->s)
            b->s = model_ints(b->m, layer_name(b, "ffn_gate_tid2eid.weight", name), g->n_used,
                              g->n_vocab, 0, (int32_t)g->n_experts - 1, l->table, b->err);
    } else {
        l->bias = floats(b, "exp_probs_b.bias", g->n_experts, NULL);
    }
    l->experts.n = g->n_experts;
    l->experts.width = g->n_ff;
    l->experts.gate = matrix(b, "ffn_gate_exps.weight", g->n_ff, g->n_embd, g->n_experts);
    l->experts.up = matrix(b, "ffn_up_exps.weight", g->n_ff, g->n_embd, g->n_experts);
    l->experts.down = matrix(b, "ffn_down_exps.weight", g->n_embd, g->n_ff, g->n_experts);
    l->sh_gate = matrix(b, "ffn_gate_shexp.weight", g->n_ff, g->n_embd, 1);
    l->sh_up = matrix(b, "ffn_up_shexp.weight", g->n_ff, g->n_embd, 1);
    l->sh_down = matrix(b, "ffn_down_shexp.weight", g->n_embd, g->n_ff, 1);
}

/* A row of the hash table names no expert twice: it would count double. */
static ingle_status check_table(const struct deepseek4 *g, int64_t il, struct err *err)
{
    const int32_t *t = g->layer[il].table;
    for (int64_t r = 0; t && r < g->n_vocab; r++, t += g->n_used)
        for (int64_t i = 1; i < g->n_used; i++)
            for (int64_t j = 0; j < i; j++)
                if (t[i] == t[j])
                    return err_set(err, INGLE_FORMAT, "'blk.%lld.ffn_gate_tid2eid.weight' names expert %d twice for token %lld",
                                   (long long)il, t[i], (long long)r);
    return INGLE_OK;
}

static ingle_status bind_weights(struct deepseek4 *g, struct model *m, const struct hyper *h,
                                 struct err *err)
{
    struct binder b = {m, g, -1, INGLE_OK, err};
    const struct io_tensor *e = model_find(m, "token_embd.weight");
    if (!e || e->n_dims != 2 || e->ne[1] > 1 << 24)
        return err_set(err, INGLE_FORMAT, "'%s': tensor 'token_embd.weight' is missing or no matrix",
                       io_path(model_file(m)));
    g->n_vocab = (int64_t)e->ne[1];
    g->embed = matrix(&b, "token_embd.weight", g->n_vocab, g->n_embd, 1);
    g->out = matrix(&b, "output.weight", g->n_vocab, g->n_embd, 1);
    g->out_norm = vector(&b, "output_norm.weight", g->n_embd);
    bind_hc(&b, "output_hc", true, &g->hc_head);
    for (int64_t il = 0; il < g->n_layers && !b.s; il++) {
        struct layer *l = &g->layer[il];
        b.il = il;
        l->ratio = (int64_t)h->ratio[il];
        l->limit = (float)h->limit[il];
        l->sh_limit = (float)h->sh_limit[il];
        bind_hc(&b, "hc_attn", false, &l->hc_attn);
        bind_hc(&b, "hc_ffn", false, &l->hc_ffn);
        bind_attention(&b, l);
        bind_experts(&b, l);
        if (!b.s)
            b.s = check_table(g, il, err);
    }
    return b.s;
}

static void deepseek4_free(void *self)
{
    struct deepseek4 *g = self;
    if (!g)
        return;
    for (int64_t i = 0; g->layer && i < g->n_layers; i++) {
        struct layer *l = &g->layer[i];
        mem_free(l->hc_attn.numbers);
        mem_free(l->hc_ffn.numbers);
        mem_free(l->comp.ape);
        mem_free(l->index.ape);
        mem_free(l->sink);
        mem_free(l->bias);
        mem_free(l->table);
    }
    mem_free(g->hc_head.numbers);
    mem_free(g->layer);
    mem_free(g->inv_freq[0]);
    mem_free(g->inv_freq[1]);
    mem_free(g);
}

static void number_streams(struct deepseek4 *g);

static ingle_status deepseek4_bind(void **self, struct model *m, const struct io_meta *meta,
                                   struct family_info *info, struct err *err)
{
    struct deepseek4 *g = mem_zalloc(sizeof *g);
    struct hyper *h = mem_zalloc(sizeof *h);
    ingle_status s = g && h ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a model");
    if (!s)
        s = read_hyper(g, meta, h, err);
    if (!s && !(g->layer = mem_calloc((size_t)g->n_layers, sizeof *g->layer)))
        s = err_set(err, INGLE_NOMEM, "no memory for %lld layers", (long long)g->n_layers);
    if (!s)
        s = make_rope(g, h, err);
    if (!s)
        s = bind_weights(g, m, h, err);
    mem_free(h);
    if (s) {
        deepseek4_free(g);
        return s;
    }
    number_streams(g);
    *info = (struct family_info){g->n_layers, g->n_embd, g->n_vocab, g->n_ctx, g->n_experts, g->n_used,
                                 g->n_layers == 43 && g->n_embd == 4096 ? "284B-A13B" : "", true};
    *self = g;
    return INGLE_OK;
}

/* ---- what positions leave behind ---- */

/*
 * Compressed rows are kept for good.  Latents and what feeds the open blocks of 128 are
 * needed for a window, what feeds the open blocks of 4 for 8 positions: they lie in pages
 * by absolute position, so that a rewind, a fork or a restore needs nothing else.
 */
enum { GROUP_FULL, GROUP_WINDOW, GROUP_CSA };

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

static void add_stream(struct kv_spec *s, int64_t layer, uint32_t group, int64_t width,
                       int64_t tail, enum kern_kv_codec codec, int64_t every)
{
    s->stream[s->n_streams++] = (struct kv_stream){.kind = KV_ROWS, .layer = (uint32_t)layer, .group = group,
        .n_heads = 1, .k_width = width, .v_width = tail, .k_codec = codec, .v_codec = codec, .every = (uint32_t)every};
}

static ingle_status deepseek4_kv(const void *self, enum kern_kv_codec codec, struct kv_spec *out,
                                 struct err *err)
{
    const struct deepseek4 *g = self;
    bool has[3] = {false, true, false};
    struct kv_spec spec = {.n_groups = 3};
    spec.stream = mem_calloc((size_t)g->n_layers * 5, sizeof *spec.stream);
    if (!spec.stream)
        return err_set(err, INGLE_NOMEM, "no memory for the KV layout");
    for (int64_t i = 0; i < g->n_layers; i++)
        has[GROUP_FULL] |= g->layer[i].ratio != 0, has[GROUP_CSA] |= g->layer[i].ratio == RATIO_CSA;
    /* Groups without streams are left out; the order stays. */
    uint32_t group[3], n = 0;
    for (int k = 0; k < 3; k++)
        group[k] = has[k] ? n++ : 0;
    spec.n_groups = n;
    spec.group[group[GROUP_WINDOW]].window = num_max(g->window, RATIO_HCA);
    if (has[GROUP_CSA])
        spec.group[group[GROUP_CSA]].window = 2 * RATIO_CSA;
    for (int64_t i = 0; i < g->n_layers; i++) {
        const struct layer *l = &g->layer[i];
        const uint32_t in = group[l->ratio == RATIO_CSA ? GROUP_CSA : GROUP_WINDOW];
        add_stream(&spec, i, group[GROUP_WINDOW], g->head, g->n_rot, codec, 1);
        if (l->ratio) {
            add_stream(&spec, i, in, 2 * l->comp.wide, 0, KERN_KV_F32, 1);
            add_stream(&spec, i, group[GROUP_FULL], g->head, g->n_rot, codec, l->ratio);
        }
        if (l->ratio == RATIO_CSA) {
            add_stream(&spec, i, in, 2 * l->index.wide, 0, KERN_KV_F32, 1);
            add_stream(&spec, i, group[GROUP_FULL], g->index_head, g->n_rot, codec, l->ratio);
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

struct pass {
    const struct deepseek4 *g;
    const struct family_forward *f;
    struct device *d;
    const int32_t *tokens;
    const int64_t *pos;
    struct device_rope rope[2]; /* [window layers, compressed layers] */
};

static void one_matmul(struct device *d, const struct device_matrix *w, struct rows x,
                       struct rows y)
{
    device_matmul(d, &(struct device_product){w, 0, x, y, NULL}, 1);
}

/* The gated sum of the streams that a sub-layer reads, and the gates to give back by. */
static struct rows hc_pre(struct pass *p, const struct hc *h, struct rows x, struct rows *gates)
{
    const int64_t n = p->g->n_hc, n_mix = gates ? 2 * n + n * n : n;
    struct rows out = device_rows(p->d, x.n, p->g->n_embd), mix = device_rows(p->d, x.n, n_mix);
    if (gates)
        *gates = device_rows(p->d, x.n, n + n * n);
    one_matmul(p->d, h->fn, x, mix);
    device_hc_pre(p->d, &h->op, x, mix, out, gates ? *gates : (struct rows){0});
    return out;
}

/* Adds each row's place in its block to the gates (host data, rows on the CPU). */
static void add_ape(struct pass *p, const struct compressor *c, int64_t ratio, struct rows gate)
{
    const size_t mark = device_mark(p->d);
    struct rows ape = device_rows(p->d, gate.n, c->wide);
    for (int64_t i = 0; i < gate.n && device_runs(p->d); i++)
        device_write(p->d, rows_slice(ape, i, 1), c->ape + p->pos[i] % ratio * c->wide, c->wide);
    device_add(p->d, gate, ape);
    device_release(p->d, mark);
}

/* Stores what the compressor reads, and the rows of the blocks that are complete now. */
static void compress(struct pass *p, const struct layer *l, const struct compressor *c,
                     struct rows value_gate)
{
    add_ape(p, c, l->ratio, rows_columns(value_gate, c->wide, c->wide));
    family_rows_append(p->f, c->in, value_gate);
    family_compress(p->f, c->in, c->out, l->ratio == RATIO_CSA, c->norm, p->g->eps, p->g->inv_freq[1],
                    p->g->n_rot / 2);
}

/* The rows that each query of a ratio-4 layer attends to. */
static struct family_choice choose(struct pass *p, const struct layer *l, struct rows qr,
                                   struct rows weight)
{
    const struct deepseek4 *g = p->g;
    struct rows q = device_rows(p->d, qr.n, g->index_heads * g->index_head);
    one_matmul(p->d, l->index_q, qr, q);
    device_rope_pairs(p->d, q, &p->rope[1], g->index_heads, g->index_head - g->n_rot, false);
    device_scale(p->d, weight, weight,
                 (float)(1.0 / sqrt((double)g->index_heads) / sqrt((double)g->index_head)));
    return family_select(p->f, l->index.out, q, weight, g->index_heads, g->index_top_k);
}

static void attention(struct pass *p, const struct layer *l, struct rows x, struct rows out)
{
    const struct deepseek4 *g = p->g;
    const struct device_rope *rope = &p->rope[l->ratio != 0];
    const int64_t n = x.n, nope = g->head - g->n_rot;
    const bool csa = l->ratio == RATIO_CSA;
    struct rows qr = device_rows(p->d, n, g->q_rank), kv = device_rows(p->d, n, g->head);
    struct rows comp = device_rows(p->d, n, 2 * num_max(1, l->comp.wide));
    struct rows index = device_rows(p->d, n, 2 * num_max(1, l->index.wide));
    struct rows weight = device_rows(p->d, n, g->index_heads);
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
    struct family_choice choice = {0};
    if (csa) {
        compress(p, l, &l->index, index);
        choice = choose(p, l, qr, weight);
    }
    struct rows q = device_rows(p->d, n, g->n_heads * g->head), o = device_rows(p->d, n, q.width);
    one_matmul(p->d, l->q_b, qr, q);
    device_norm(p->d, q, q, NULL, g->n_heads, g->eps);
    device_rope_pairs(p->d, q, rope, g->n_heads, nope, false);
    const struct family_latent a = {.near = l->raw, .far = l->ratio ? l->comp.out : FAMILY_NO_STREAM,
                                    .window = g->window, .sink = l->sink, .choice = csa ? &choice : NULL};
    family_attend_latent(p->f, &a, q, g->n_heads, o, (float)(1.0 / sqrt((double)g->head)));
    device_rope_pairs(p->d, o, rope, g->n_heads, nope, true);
    struct rows u = device_rows(p->d, n, g->o_groups * g->o_rank);
    struct device_product groups[1024];
    for (int64_t k = 0; k < g->o_groups; k++)
        groups[k] = (struct device_product){l->o_a, k, rows_columns(o, k * (q.width / g->o_groups), q.width / g->o_groups),
                                            rows_columns(u, k * g->o_rank, g->o_rank), NULL};
    device_matmul(p->d, groups, g->o_groups);
    one_matmul(p->d, l->o_b, u, out);
}

/* y = Wdown(silu(min(Wgate u, limit)) * clamp(Wup u)). */
static void shared_expert(struct pass *p, const struct layer *l, struct rows u, struct rows y)
{
    struct rows gate = device_rows(p->d, u.n, p->g->n_ff), up = device_rows(p->d, u.n, p->g->n_ff);
    const struct device_product both[] = {{l->sh_gate, 0, u, gate, NULL}, {l->sh_up, 0, u, up, NULL}};
    device_matmul(p->d, both, 2);
    device_glu(p->d, DEVICE_SILU, l->sh_limit, gate, gate, up);
    one_matmul(p->d, l->sh_down, gate, y);
}

static void feed_forward(struct pass *p, const struct layer *l, struct rows x, struct rows out)
{
    const struct deepseek4 *g = p->g;
    struct rows score = device_rows(p->d, x.n, g->n_experts), shared = device_rows(p->d, x.n, g->n_embd);
    one_matmul(p->d, l->router, x, score);
    device_sqrt_softplus(p->d, score);
    struct expert_choice c = l->table ? expert_by_table(p->d, score, l->table, p->tokens, g->n_used)
                                      : expert_top_k(p->d, score, l->bias, g->n_used);
    if (g->weight_norm)
        expert_normalise(p->d, &c, x.n);
    for (int64_t i = 0; i < x.n * c.k && device_runs(p->d); i++)
        c.weight[i] *= g->weight_scale;
    expert_mix(p->d, &l->experts, x, &c, DEVICE_SILU, l->limit, out, NULL);
    shared_expert(p, l, x, shared);
    device_add(p->d, out, shared);
}

typedef void sub_layer(struct pass *p, const struct layer *l, struct rows x, struct rows out);

/* to = the streams after one sub-layer. */
static void connect(struct pass *p, const struct layer *l, const struct hc *h,
                    const struct device_vector *norm, sub_layer *fn, struct rows from, struct rows to)
{
    const size_t mark = device_mark(p->d);
    struct rows gates, out = device_rows(p->d, from.n, p->g->n_embd);
    struct rows x = hc_pre(p, h, from, &gates);
    device_norm(p->d, x, x, norm, 1, p->g->eps);
    fn(p, l, x, out);
    device_hc_post(p->d, &h->op, from, out, gates, to);
    device_release(p->d, mark);
}

static void head(struct pass *p, struct rows streams)
{
    const struct deepseek4 *g = p->g;
    if (p->f->tap) {
        struct rows all = hc_pre(p, &g->hc_head, streams, NULL);
        device_norm(p->d, all, all, g->out_norm, 1, g->eps);
        family_tap_rows(p->f, FAMILY_TAP_NORM, 0, all);
    }
    if (!p->f->step->n_logits)
        return;
    struct rows y = hc_pre(p, &g->hc_head, family_wanted(p->f, streams), NULL);
    device_norm(p->d, y, y, g->out_norm, 1, g->eps);
    one_matmul(p->d, g->out, y, p->f->logits);
}

static void deepseek4_forward(const void *self, const struct family_forward *f)
{
    const struct deepseek4 *g = self;
    struct pass p = {.g = g, .f = f, .d = f->device, .tokens = family_tokens(f), .pos = family_positions(f)};
    const int64_t n = f->step->n_rows, width = g->n_hc * g->n_embd;
    struct rows x = device_rows(p.d, n, width), y = device_rows(p.d, n, width);
    for (int64_t j = 0; j < g->n_hc; j++)
        device_embed(p.d, rows_columns(x, j * g->n_embd, g->n_embd), g->embed, p.tokens, 1.0f);
    family_tap_rows(f, FAMILY_TAP_EMBED, 0, rows_columns(x, 0, g->n_embd));
    for (int t = 0; t < 2; t++)
        p.rope[t] = device_rope_table(p.d, p.pos, n, g->inv_freq[t], g->n_rot / 2);
    for (int64_t il = 0; il < g->n_layers; il++) {
        const struct layer *l = &g->layer[il];
        connect(&p, l, &l->hc_attn, l->attn_norm, attention, x, y);
        connect(&p, l, &l->hc_ffn, l->ffn_norm, feed_forward, y, x);
        family_tap_rows(f, FAMILY_TAP_LAYER, (int)il, x);
    }
    head(&p, x);
}

static const char *const hf_types[] = {"deepseek_v4", NULL};

const struct family family_deepseek4 = {
    .arch = "deepseek4",
    .hf_types = hf_types,
    .config = family_deepseek4_config,
    .rename = family_deepseek4_rename,
    .bind = deepseek4_bind,
    .kv = deepseek4_kv,
    .forward = deepseek4_forward,
    .free = deepseek4_free,
};
