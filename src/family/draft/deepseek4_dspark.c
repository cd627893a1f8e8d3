/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek4_dspark - the DSpark drafter of DeepSeek V4: window-only layers of the family ("stages")
 * over a block, the anchor and noise after it, whose rows draft a token each (the anchor's the
 * first); then a chain that corrects each draft by the one before (markov.h).  Embedding and output
 * matrix are the target's.
 *
 * Context: the mean of the target's streams after some of its layers, side by side, become one row
 * by a projection and a norm; each stage keeps its latent, by position.  All rows of a block see
 * the newest window of them and the whole block, as in the reference; with the rule "window" each
 * row only what is less than a window before itself.
 *
 * Files: a checkpoint, of the target with stages at `mtp.*` or of those alone; GGUF of architecture
 * "dflash" (lists of taps count from 1) and "deepseek4-dflash-draft" (from 0).  Both have keys that
 * say something of the target alone: YaRN, the indexer.
 */
#include "family/deepseek4.h"

#include "base/mem.h"
#include "base/num.h"
#include "family/hf/config.h"
#include "family/draft/dflash.h"
#include "family/draft/dflash_file.h"
#include "family/draft/drafts.h"
#include "family/rules.h"
#include "family/draft/markov.h"
#include "family/table.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_STAGES = 16, MAX_TAPS = 16, MAX_BLOCK = 64, MAX_WIDTH = 1 << 20, MAX_LAYERS = 1024 };

struct dspark {
    /* the target's, with the stages as layers; layers and inv_freq[0] are owned */
    struct deepseek4 g;
    int64_t block, n_taps, context;
    bool by_row;        /* the rule "window" */
    int tap[MAX_TAPS];  /* after these layers */
    int32_t noise;
    const struct device_matrix *fc;
    const struct device_vector *context_norm, *norm;
    struct hc hc_head;
    struct family_markov chain;
};

static void dspark_free(void *self)
{
    struct dspark *s = self;
    if (!s)
        return;
    for (int64_t i = 0; s->g.layer && i < s->g.n_layers; i++)
        family_deepseek4_free_layer(&s->g.layer[i]);
    mem_free(s->g.layer);
    mem_free(s->g.inv_freq[0]);
    mem_free(s);
}

/* ---- names ---- */

static const struct { const char *from, *to; } names[] = {
    {"main_proj.weight", "fc.weight"},
    {"main_norm.weight", "enc.output_norm.weight"},
    {"norm.weight", "output_norm.weight"},
    {"hc_head_fn", "output_hc_fn.weight"},
    {"hc_head_base", "output_hc_base.weight"},
    {"hc_head_scale", "output_hc_scale.weight"},
    {"markov_head.markov_w1.weight", "markov_w1.weight"},
    {"markov_head.markov_w2.weight", "markov_w2.weight"},
    {"confidence_head.proj.weight", "conf_proj.weight"},
    {"confidence_head.proj.bias", "conf_proj.bias"},
};

/* The stages; the target's tensors keep the names of the checkpoint. */
static bool dspark_rename(const char *name, char *out, size_t n_out)
{
    static const char scale[] = ".scale";
    unsigned stage;
    int used = 0;
    char full[160];
    if (sscanf(name, "mtp.%5u.%n", &stage, &used) != 1 || !used)
        return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (family_config_rename(name + used, names[i].from, names[i].to, "", out, n_out))
            return true;
    if (!strncmp(name + used, "main_proj", 9) && !strcmp(name + used + 9, scale)) {
        snprintf(out, n_out, "fc%s", scale);
        return true;
    }
    if (!family_deepseek4_rename(name, full, sizeof full))
        return false;
    snprintf(out, n_out, "blk.%s", full + strlen("mtp."));
    return true;
}

static const struct { const char *from, *to; } aliases[] = {
    {"dflash.fc.weight", "fc.weight"},
    {"dflash.hidden_norm.weight", "enc.output_norm.weight"},
    {"dflash.dspark.markov.w1", "markov_w1.weight"},
    {"dflash.dspark.markov.w1.weight", "markov_w1.weight"},
    {"dflash.dspark.markov.w2", "markov_w2.weight"},
    {"dflash.dspark.markov.w2.weight", "markov_w2.weight"},
    {"dflash.dspark.confidence.weight", "conf_proj.weight"},
    {"dflash.dspark.confidence.bias", "conf_proj.bias"},
};

static bool dspark_alias(const char *name, char *out, size_t n_out)
{
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (!strcmp(name, aliases[i].from)) {
            snprintf(out, n_out, "%s", aliases[i].to);
            return true;
        }
    return family_deepseek4_alias(name, out, n_out);
}

/* ---- which files ---- */

static bool dspark_fits(const struct family *target, const struct model *m,
                        const struct io_meta *meta)
{
    (void)target;
    return model_find(m, "mtp.0.main_proj.weight") ||
           (family_dflash_is_file(meta) &&
            (family_dflash_has_key(m, meta, "hyper_connection.count") ||
             model_find(m, "blk.0.hc_attn_fn.weight")));
}

static struct json_object *dspark_member(struct json_object *config, const char *key)
{
    struct json_object *v = family_config_get(config, key);
    return v ? v : family_config_get(family_config_get(config, "text_config"), key);
}

static bool dspark_named(struct json_object *config)
{
    return dspark_member(config, "dspark_block_size") != NULL;
}

static const struct { const char *hf, *gguf; int64_t fallback; } whole_keys[] = {
    {"n_mtp_layers", "dflash.block_count", 3},
    {"hidden_size", "dflash.embedding_length", -1},
    {"vocab_size", "dflash.vocab_size", -1},
    {"num_attention_heads", "dflash.attention.head_count", -1},
    {"head_dim", "dflash.attention.key_length", -1},
    {"qk_rope_head_dim", "dflash.rope.dimension_count", -1},
    {"q_lora_rank", "dflash.attention.q_lora_rank", -1},
    {"o_lora_rank", "dflash.attention.output_lora_rank", -1},
    {"o_groups", "dflash.attention.output_group_count", -1},
    {"sliding_window", "dflash.attention.sliding_window", -1},
    {"n_routed_experts", "dflash.expert_count", -1},
    {"num_experts_per_tok", "dflash.expert_used_count", -1},
    {"moe_intermediate_size", "dflash.expert_feed_forward_length", -1},
    {"hc_mult", "dflash.hyper_connection.count", -1},
    {"hc_sinkhorn_iters", "dflash.hyper_connection.sinkhorn_iterations", -1},
    {"dspark_block_size", "dflash.block_size", -1},
    {"dspark_noise_token_id", "dflash.mask_token_id", -1},
    {"dspark_markov_rank", "dflash.markov_rank", 0},
};

static const struct { const char *hf, *gguf; double fallback; } number_keys[] = {
    {"rms_norm_eps", "dflash.attention.layer_norm_rms_epsilon", 1e-6},
    {"hc_eps", "dflash.hyper_connection.epsilon", 1e-6},
    {"routed_scaling_factor", "dflash.expert_weights_scale", 1},
    {"rope_theta", "dflash.rope.freq_base", 1e4},
    {"swiglu_limit", "dflash.swiglu_clamp_exp", 0},
};

static ingle_status dspark_config(struct json_object *config, struct io_meta *out,
                                  const struct report_sink *sink, struct err *err)
{
    struct family_config c = {config, out, sink, INGLE_OK, err};
    struct json_object *type = family_config_get(config, "model_type"),
                       *taps = family_config_get(config, "dspark_target_layer_ids");
    struct json_object *norm = family_config_get(config, "norm_topk_prob");
    uint64_t tap[MAX_TAPS];
    if (!type || strcmp(json_object_get_string(type), "deepseek_v4") != 0)
        return err_set(err, INGLE_UNSUP,
                       "config.json: 'model_type' is '%.40s': supported are DSpark drafters of "
                       "deepseek_v4 (those of V4.1 are "
                       "other networks)",
                       type ? json_object_get_string(type) : "missing");
    const size_t n =
        json_object_is_type(taps, json_type_array) ? json_object_array_length(taps) : 0;
    if (n < 1 || n > MAX_TAPS)
        return err_set(err, INGLE_FORMAT,
                       "config.json: 'dspark_target_layer_ids' is no list of 1 to %d layers",
                       MAX_TAPS);
    c.s = family_keys_check_config(config, family_deepseek4_config_keys, sink, err);
    for (size_t i = 0; i < n; i++)
        tap[i] = (uint64_t)json_object_get_int64(json_object_array_get_idx(taps, i)) + 1;
    if (!c.s)
        c.s = io_meta_set_str(out, "general.architecture", "dflash", 6);
    if (!c.s)
        c.s = io_meta_set_u64s(out, "dflash.target_layers", tap, n);
    for (size_t i = 0; i < sizeof whole_keys / sizeof *whole_keys; i++)
        family_config_whole(&c, config, whole_keys[i].hf, whole_keys[i].gguf,
                            whole_keys[i].fallback);
    for (size_t i = 0; i < sizeof number_keys / sizeof *number_keys; i++)
        family_config_number(&c, config, number_keys[i].hf, number_keys[i].gguf,
                             number_keys[i].fallback);
    if (!c.s)
        c.s = io_meta_set_bool(out, "dflash.expert_weights_norm",
                               !norm || json_object_get_boolean(norm));
    return c.s;
}

/* ---- the other way ---- */

static bool dspark_hf_name(const struct io_file *file, const char *name, char *out, size_t n_out)
{
    struct family_back b = {file, NULL, INGLE_OK, NULL};
    const uint64_t n_stages = family_back_get(&b, "dflash.block_count", 0);
    char full[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        /* what reads taps is the first stage's, what follows the layers the last one's */
        if (!strcmp(name, names[i].to)) {
            const uint64_t stage = i < 2 || !n_stages ? 0 : n_stages - 1;
            snprintf(out, n_out, "mtp.%llu.%s", (unsigned long long)stage, names[i].from);
            return true;
        }
    if (strncmp(name, "blk.", 4) != 0)
        return family_deepseek4_hf_name(name, out,
                                        n_out); /* of a file with the target's embedding */
    snprintf(full, sizeof full, "mtp.%s", name + 4);
    return family_deepseek4_hf_name(full, out, n_out);
}

static ingle_status dspark_to_config(const struct io_file *file, struct json_object *out,
                                     struct err *err)
{
    struct family_back b = {file, out, INGLE_OK, err};
    struct json_object *ratios = json_object_new_array();
    uint64_t last = 0;
    b.s = family_deepseek4_to_config(file, out, err);
    family_dflash_back_taps(&b, out, "dspark_target_layer_ids", &last);
    const uint64_t n_layers = family_back_get(&b, "dflash.target_block_count", last);
    if (!b.s && n_layers > MAX_LAYERS)
        b.s = err_set(err, INGLE_FORMAT, "%s: reads after %llu layers, at most %d", io_path(file),
                      (unsigned long long)n_layers, MAX_LAYERS);
    /* of the stages: they have no compressed positions */
    for (uint64_t i = 0; i < n_layers && ratios && !b.s; i++)
        family_back_add(&b, ratios, json_object_new_int64(0));
    family_back_put(&b, out, "compress_ratios", ratios);
    family_back_put(&b, out, "num_hidden_layers", json_object_new_int64((int64_t)n_layers));
    family_back_whole(&b, out, "n_mtp_layers", "dflash.block_count");
    family_back_whole(&b, out, "dspark_block_size", "dflash.block_size");
    family_dflash_back_mask(&b, out, "dspark_noise_token_id");
    const struct io_tensor *w1 = io_tensor_find(file, "markov_w1.weight");
    family_back_put(&b, out, "dspark_markov_rank",
                    json_object_new_int64(w1 ? (int64_t)w1->ne[0] : 0));
    return b.s;
}

static const struct family_key keys[] = {
    {"block_count", READ},
    {"block_size", READ},
    {"context_length", FREE},
    {"embedding_length", READ},
    {"vocab_size", READ},
    {"feed_forward_length", FREE}, /* of dense layers, of which there are none */
    {"target_layers", READ},
    {"target_layer_ids", READ},
    {"mask_token_id", READ},
    {"noise_token_id", READ},
    {"markov_rank", READ},
    {"sample_from_anchor", FAMILY_KEY_FLAG, 1, 0, NULL},
    {"has_confidence_head", FREE}, /* the tensor says it */
    {"hash_layer_count", NUMBER(0, 0)},
    {"swiglu_clamp_exp", READ},
    {"swiglu_clamp_shexp", READ},
    {"hyper_connection.count", READ},
    {"hyper_connection.epsilon", READ},
    {"hyper_connection.sinkhorn_iterations", READ},
    {"attention.head_count", READ},
    {"attention.head_count_kv", NUMBER(1, 1)},
    {"attention.key_length", READ},
    {"attention.value_length", SAME("attention.key_length")},
    {"attention.layer_norm_rms_epsilon", READ},
    {"attention.q_lora_rank", READ},
    {"attention.output_lora_rank", READ},
    {"attention.output_group_count", READ},
    {"attention.sliding_window", READ},
    {"attention.compress_ratios", NUMBER(0, 0)},
    {"attention.compress_rope_freq_base", FREE}, /* from here on of the target */
    {"attention.indexer.head_count", FREE},
    {"attention.indexer.key_length", FREE},
    {"attention.indexer.top_k", FREE},
    {"rope.scaling.type", FREE},
    {"rope.scaling.factor", FREE},
    {"rope.scaling.original_context_length", FREE},
    {"rope.scaling.yarn_beta_fast", FREE},
    {"rope.scaling.yarn_beta_slow", FREE},
    {"rope.scaling.yarn_ext_factor", FREE},
    {"rope.dimension_count", READ},
    {"rope.freq_base", READ},
    {"expert_count", READ},
    {"expert_used_count", READ},
    {"expert_shared_count", NUMBER(1, 1)},
    {"expert_shared_feed_forward_length", SAME("expert_feed_forward_length")},
    {"expert_feed_forward_length", READ},
    {"expert_gating_func", NUMBER(4, 4)},
    {"expert_group_count", FAMILY_KEY_NUMBER, 0, 1, NULL},
    {"expert_group_used_count", FAMILY_KEY_NUMBER, 0, 1, NULL},
    {"expert_weights_scale", READ},
    {"expert_weights_norm", READ},
    {"dflash*", READ},
    {"dspark*", FREE},
    {NULL, READ},
};

/* ---- what the file says ---- */

/* One number: where it goes, and what it may be. */
struct number { const char *key; int64_t *to; int64_t min, max; };

static void read_numbers(struct dspark *s, struct dflash_keys *k)
{
    struct deepseek4 *g = &s->g;
    int64_t iterations = 20;
    const struct number numbers[] = {
        {"block_count", &g->n_layers, 1, MAX_STAGES},
        {"attention.head_count", &g->n_heads, 1, 1024},
        {"attention.key_length", &g->head, 4, 8192},
        {"rope.dimension_count", &g->n_rot, 2, 8192},
        {"attention.q_lora_rank", &g->q_rank, 1, MAX_WIDTH},
        {"attention.output_lora_rank", &g->o_rank, 1, MAX_WIDTH},
        {"attention.output_group_count", &g->o_groups, 1, 1024},
        {"attention.sliding_window", &g->window, 1, 1 << 20},
        {"expert_count", &g->n_experts, 1, EXPERT_MAX},
        {"expert_used_count", &g->n_used, 1, EXPERT_MAX_USED},
        {"expert_feed_forward_length", &g->n_ff, 1, MAX_WIDTH},
        {"hyper_connection.sinkhorn_iterations", &iterations, 1, 1000},
        {"block_size|dflash.block_size", &s->block, 1, MAX_BLOCK},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        *numbers[i].to = family_dflash_whole(k, numbers[i].key, numbers[i].min, numbers[i].max, -1);
    g->iterations = (int)iterations;
    g->eps = (float)family_dflash_number(k, "attention.layer_norm_rms_epsilon", 0, 1, 1e-6);
    g->hc_eps = (float)family_dflash_number(k, "hyper_connection.epsilon", 0, 1, 1e-6);
    g->weight_scale = (float)family_dflash_number(k, "expert_weights_scale", 0, 1e6, 1);
    g->weight_norm = family_dflash_flag(k, "expert_weights_norm", true);
    if (!k->s && (g->n_rot % 2 || g->n_rot > g->head || g->head % 4 || g->n_heads % g->o_groups ||
                  g->n_used > g->n_experts))
        k->s = err_set(k->err, INGLE_FORMAT,
                       "'%s': %lld heads of width %lld, %lld of it rotated, in %lld groups, and "
                       "%lld of %lld experts: "
                       "they do not go together",
                       k->path, (long long)g->n_heads, (long long)g->head, (long long)g->n_rot,
                       (long long)g->o_groups, (long long)g->n_used, (long long)g->n_experts);
}

static void read_rope(struct dspark *s, struct dflash_keys *k)
{
    const double base = family_dflash_number(k, "rope.freq_base", 1, 1e12, 1e4);
    struct deepseek4 *g = &s->g;
    if (k->s)
        return;
    g->inv_freq[0] = mem_calloc((size_t)(g->n_rot / 2), sizeof(double));
    g->layer = mem_calloc((size_t)g->n_layers, sizeof *g->layer);
    if (!g->inv_freq[0] || !g->layer)
        k->s = err_set(k->err, INGLE_NOMEM, "no memory for %lld stages", (long long)g->n_layers);
    for (int64_t i = 0; !k->s && i < g->n_rot / 2; i++)
        g->inv_freq[0][i] = pow(base, -2.0 * (double)i / (double)g->n_rot);
}

/* Limits of gated units: one for all stages, or a list. */
static void read_limits(struct dspark *s, struct dflash_keys *k)
{
    double limit[2][MAX_STAGES] = {{0}};
    static const char *const at[] = {"swiglu_clamp_exp", "swiglu_clamp_shexp"};
    char full[128];
    for (int t = 0; t < 2 && !k->s; t++) {
        if (family_dflash_key(k, at[t], full))
            k->s = io_get_f64s(k->meta, full, (size_t)s->g.n_layers, 0, 1e30, limit[t], k->err);
        else if (t)
            memcpy(limit[1], limit[0], sizeof *limit);
    }
    for (int64_t i = 0; !k->s && i < s->g.n_layers; i++) {
        s->g.layer[i].limit = (float)limit[0][i];
        s->g.layer[i].sh_limit = (float)limit[1][i];
        s->g.layer[i].raw = (uint32_t)i;
    }
}

/* ---- what fits ---- */

static void check_number(struct dflash_keys *k, const struct family_draft_target *t,
                         const char *key, const char *hf, int64_t is, const char *what,
                         int64_t want)
{
    char full[128];
    family_dflash_key(k, key, full);
    if (!k->s && is != want)
        k->s = family_draft_unfit(t, k->path, k->checkpoint ? hf : full, is, what, want, k->err);
}

static void check_taps(struct dspark *s, struct dflash_keys *k, const struct family_draft_target *t,
                       const struct model *m)
{
    const struct io_tensor *fc = model_find(m, "fc.weight");
    const int64_t width = t->info->n_embd, layers = t->info->n_layers,
                  in = fc && fc->n_dims == 2 ? (int64_t)fc->ne[0] : 0;
    char full[128];
    uint64_t at[MAX_TAPS];
    const struct io_value *v = family_dflash_key(
        k, "target_layers|dflash.target_layers|target_layer_ids|dflash.target_layer_ids", full);
    /* there the list names layers whose inputs are tapped */
    const int64_t shift = v && !strstr(full, "target_layer_ids") ? 1 : 0;
    if (k->s)
        return;
    if (in < width || in % width || in / width > MAX_TAPS || !v || v->kind != IO_ARRAY ||
        (int64_t)v->n != in / width) {
        k->s = err_set(k->err, INGLE_FORMAT,
                       "'%s': '%s' has %zu layers, but tensor 'fc.weight' (main_proj) takes rows "
                       "of %lld: expected as many times "
                       "the width %lld",
                       k->path, k->checkpoint ? "dspark_target_layer_ids" : full,
                       v ? v->n : (size_t)0, (long long)in, (long long)width);
        return;
    }
    s->n_taps = in / width;
    k->s = io_get_u64s(k->meta, full, v->n, 0, UINT32_MAX, at, k->err);
    for (int64_t i = 0; !k->s && i < s->n_taps; i++) {
        const int64_t layer = (int64_t)at[i] - shift;
        s->tap[i] = (int)layer;
        if (layer < 0 || layer >= layers)
            k->s = family_draft_unfit(t, k->path, k->checkpoint ? "dspark_target_layer_ids" : full,
                                      k->checkpoint ? layer : (int64_t)at[i],
                                      "the target's last layer is",
                                      layers - 1 + (k->checkpoint ? 0 : shift), k->err);
    }
}

/* The network is another one, in spite of its place in the file. */
static void check_kind(struct dflash_keys *k, const struct model *m)
{
    static const struct { const char *tensor, *what; } others[] = {
        {"mtp.0.e_proj.weight", "a draft block of one token, stored where DSpark's stages are"},
        {"blk.0.e_proj.weight", "a draft block of one token, stored where DSpark's stages are"},
        {"mtp.2.markov_head.embed.weight", "of the DSpark drafter of V4.1, another network"},
        {"mtp.0.markov_head.embed.weight", "of the DSpark drafter of V4.1, another network"},
        {"markov_head.embed.weight", "of the DSpark drafter of V4.1, another network"},
    };
    for (size_t i = 0; !k->s && i < sizeof others / sizeof *others; i++)
        if (model_find(m, others[i].tensor))
            k->s = err_set(k->err, INGLE_UNSUP, "'%s': tensor '%s' is %s", k->path,
                           others[i].tensor, others[i].what);
    if (!k->s && !model_find(m, "fc.weight"))
        k->s = err_set(k->err, INGLE_FORMAT,
                       "'%s': tensor 'fc.weight' (main_proj) is missing: a DSpark drafter has "
                       "stages, this projection and a "
                       "Markov head",
                       k->path);
}

static void check_pairing(struct dspark *s, struct dflash_keys *k,
                          const struct family_draft_target *t, const struct model *m)
{
    const struct io_tensor *w1 = model_find(m, "markov_w1.weight");
    const struct deepseek4 *g = t->self;
    if (!k->s && t->family != &family_deepseek4) {
        k->s = err_set(k->err, INGLE_UNSUP,
                       "'%s' is a DSpark drafter for DeepSeek V4, but the target is %s", k->path,
                       t->family->arch);
        return;
    }
    check_kind(k, m);
    check_number(k, t, "embedding_length", "hidden_size",
                 family_dflash_whole(k, "embedding_length", 1, MAX_WIDTH, -1),
                 "the target's width is", t->info->n_embd);
    if (k->s)
        return;
    check_number(k, t, "hyper_connection.count", "hc_mult",
                 family_dflash_whole(k, "hyper_connection.count", 1, 8, -1),
                 "the target's streams are", g->n_hc);
    check_number(k, t, "vocab_size", "vocab_size",
                 family_dflash_whole(k, "vocab_size", 1, 1 << 24, t->info->n_vocab),
                 "the target's tokens are", t->info->n_vocab);
    if (!k->s && w1 && w1->n_dims == 2 && (int64_t)w1->ne[1] != t->info->n_vocab)
        k->s = family_draft_unfit(t, k->path, w1->name, (int64_t)w1->ne[1],
                                  "the target's tokens are", t->info->n_vocab, k->err);
    check_taps(s, k, t, m);
    const int64_t noise = family_dflash_whole(
        k, "mask_token_id|dflash.mask_token_id|noise_token_id|tokenizer.ggml.mask_token_id", 0,
        INT32_MAX, -1);
    if (!k->s && noise >= t->info->n_vocab)
        k->s = family_draft_unfit(t, k->path,
                                  k->checkpoint ? "dspark_noise_token_id" : "mask_token_id", noise,
                                  "the target's tokens are", t->info->n_vocab, k->err);
    s->noise = (int32_t)noise;
}

/* ---- weights ---- */

static void bind_weights(struct dspark *s, struct dflash_keys *k, struct model *m)
{
    const struct deepseek4 *g = &s->g;
    if (!k->s)
        k->s = family_check_layers(m, "dflash", g->n_layers, NULL, k->err);
    struct binder b = {m, g, "", k->s, k->err, NULL};
    s->fc = family_deepseek4_matrix(&b, "fc.weight", g->n_embd, s->n_taps * g->n_embd, 1);
    s->context_norm = family_deepseek4_vector(&b, "enc.output_norm.weight", g->n_embd);
    s->norm = family_deepseek4_vector(&b, "output_norm.weight", g->n_embd);
    family_deepseek4_bind_hc(&b, "output_hc", true, &s->hc_head);
    for (int64_t i = 0; i < g->n_layers && !b.s; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "blk.%lld.", (long long)i);
        b.prefix = prefix;
        family_deepseek4_bind_layer(&b, &s->g.layer[i], false);
    }
    k->s = b.s;
    const int64_t is = family_dflash_columns(m, "markov_w1.weight"),
                  rank = family_dflash_whole(k, "markov_rank", 0, FAMILY_MARKOV_RANK, is);
    s->chain = (struct family_markov){.rank = is ? is : rank, .n_embd = g->n_embd, .follows = true};
    if (!k->s && (!s->chain.rank || (rank && rank != s->chain.rank)))
        k->s = err_set(k->err, INGLE_FORMAT,
                       "'%s': tensor 'markov_w1.weight' is missing or has rank %lld, and "
                       "'markov_rank' is %lld",
                       k->path, (long long)s->chain.rank, (long long)rank);
    if (!k->s)
        k->s = family_markov_bind(&s->chain, m, g->n_vocab, g->n_vocab, k->err);
}

/* What else a whole checkpoint has. */
static void skip_target(struct model *m)
{
    static const char *const prefixes[] = {"layers.", "embed.",  "head.",       "lm_head.",
                                           "norm.",   "hc_head", "token_embd.", "output.weight"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        model_skip(m, prefixes[i], "they are the target's");
}

static ingle_status dspark_bind(void **self, const struct family_draft_target *target,
                                struct model *m, const struct io_meta *meta,
                                struct family_draft_info *info, struct err *err)
{
    struct dspark *s = mem_zalloc(sizeof *s);
    struct dflash_keys k;
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a drafter");
    family_dflash_keys(&k, m, meta, err);
    if (io_kind(model_file(m)) == IO_GGUF)
        k.s = family_keys_check(meta, k.path, k.arch, keys, model_sink(m), err);
    if (target->family == &family_deepseek4)
        s->g = *(const struct deepseek4 *)target->self;
    s->g.layer = NULL;
    s->g.inv_freq[0] = s->g.inv_freq[1] = NULL;
    s->g.hc_head = (struct hc){0};
    check_pairing(s, &k, target, m);
    read_numbers(s, &k);
    read_rope(s, &k);
    read_limits(s, &k);
    bind_weights(s, &k, m);
    if (k.s) {
        dspark_free(s);
        return k.s;
    }
    skip_target(m);
    *info = (struct family_draft_info){
        .most = s->block, .rows = s->block, .confidence = s->chain.sure != NULL};
    *self = s;
    return INGLE_OK;
}

static ingle_status dspark_set(void *self, const struct family_draft_options *o,
                               struct family_draft_info *info, struct err *err)
{
    struct dspark *s = self;
    if (o->rule && strcmp(o->rule, "ref") != 0 && strcmp(o->rule, "window") != 0)
        return err_set(err, INGLE_ARG,
                       "a DSpark drafter of DeepSeek V4 has no rule '%.40s': ref, window", o->rule);
    if (o->block > MAX_BLOCK || o->tap == FAMILY_DRAFT_TAP_EARLY)
        return err_set(err, INGLE_ARG, "a block has up to %d rows, and taps are after whole layers",
                       MAX_BLOCK);
    s->by_row = o->rule && !strcmp(o->rule, "window");
    s->context = o->context;
    for (int64_t i = 0; o->tap == FAMILY_DRAFT_TAP_UPSTREAM && i < s->n_taps; i++)
        s->tap[i]--; /* -1: the embedding, which is no layer: nothing is tapped */
    if (o->block)
        s->block = o->block;
    info->most = info->rows = s->block;
    return INGLE_OK;
}

/* ---- KV layout ---- */

static ingle_status dspark_kv(const void *self, const struct kv_types *types, struct kv_spec *out,
                              struct err *err)
{
    const struct dspark *s = self;
    struct kv_spec spec = {.n_groups = 1, .n_streams = (uint32_t)s->g.n_layers};
    spec.group[0].window = s->g.window;
    enum kern_kv_codec codec;
    const ingle_status fits = kv_types_of_rows(types, &codec, err);
    if (fits)
        return fits;
    spec.stream = mem_calloc(spec.n_streams, sizeof *spec.stream);
    if (!spec.stream)
        return err_set(err, INGLE_NOMEM, "no memory for the KV layout");
    for (uint32_t i = 0; i < spec.n_streams; i++)
        spec.stream[i] = (struct kv_stream){.kind = KV_ROWS,
                                            .layer = i,
                                            .n_heads = 1,
                                            .k_width = s->g.head,
                                            .v_width = s->g.n_rot,
                                            .k_codec = codec,
                                            .v_codec = codec,
                                            .every = 1};
    const ingle_status st = kv_layout(&spec, err);
    if (st)
        kv_spec_release(&spec);
    else
        *out = spec;
    return st;
}

struct observe { struct device *d; struct rows taps; }; /* [n_rows][n_taps * n_embd] */

static void *dspark_observe_begin(const void *self, const struct family_forward *f)
{
    const struct dspark *s = self;
    struct observe *o = device_bytes(f->device, sizeof *o);
    /* f32 [n_rows][n_taps * n_embd] */
    const struct rows taps = device_rows(f->device, f->step->n_rows, s->n_taps * s->g.n_embd);
    if (o)
        *o = (struct observe){f->device, taps};
    return o;
}

static void dspark_observe_tap(const void *self, void *state, enum family_tap tap, int layer,
                               struct rows x)
{
    const struct dspark *s = self;
    const struct observe *o = state;
    const int64_t width = s->g.n_embd, n = s->g.n_hc;
    for (int64_t i = 0; o && tap == FAMILY_TAP_LAYER && i < s->n_taps; i++) {
        if (s->tap[i] != layer)
            continue;
        const struct rows to = rows_columns(o->taps, i * width, width);
        device_copy(o->d, to, rows_columns(x, 0, width));
        for (int64_t k = 1; k < n; k++)
            device_add(o->d, to, rows_columns(x, k * width, width));
        device_scale(o->d, to, to, 1.0f / (float)n);
    }
}

static bool dspark_observe_wants(const void *self, enum family_tap tap, int layer)
{
    const struct dspark *s = self;
    bool any = false;
    for (int64_t i = 0; i < s->n_taps && tap == FAMILY_TAP_LAYER; i++)
        any = any || s->tap[i] == layer;
    return any;
}

static struct rows dspark_observed(const void *self, const void *state, int64_t n_rows)
{
    const struct dspark *s = self;
    const struct observe *o = state;
    const int64_t width = s->n_taps * s->g.n_embd;
    return o ? o->taps : (struct rows){NULL, n_rows, width, width};
}

static void dspark_observe_end(const void *self, const struct family_forward *f, void *state)
{
    const struct dspark *s = self;
    const int64_t n = f->step->n_rows;
    const size_t mark = device_mark(f->device);
    struct pass p = {.g = &s->g, .f = f, .d = f->device, .pos = family_positions(f)};
    /* f32 [n][n_embd] */
    struct rows m = device_rows(p.d, n, s->g.n_embd);
    family_prompt_rows(f);
    device_matmul(p.d, &(struct device_product){s->fc, 0, dspark_observed(s, state, n), m, NULL},
                  1);
    device_norm(p.d, m, m, s->context_norm, 1, s->g.eps);
    p.rope[0] = device_rope_table(p.d, p.pos, n, s->g.inv_freq[0], s->g.n_rot / 2);
    for (int64_t i = 0; i < s->g.n_layers; i++)
        family_deepseek4_latents(&p, &s->g.layer[i], m);
    device_release(p.d, mark);
}

/* ---- a round ---- */

/* Draft by draft, of all spans each. */
struct round {
    struct rows h, u; /* [n_drafts * n_spans]: streams collapsed; logits before the chain */
    int64_t n_spans;
};

/* What row r of a block at `at` sees, of positions from `from` on. */
static struct family_view view_of(const struct dspark *s, int64_t at, int64_t from, int64_t r)
{
    const int64_t last = at + s->block - 1;
    int64_t first = s->by_row ? at + r + 1 - s->g.window : at - s->g.window;
    first = num_max(first, from);
    if (s->context)
        first = num_max(first, at - s->context);
    first = num_max(0, num_min(first, at)); /* the block is seen as a whole */
    return (struct family_view){last, last + 1 - first};
}

static void lay_out(const struct dspark *s, const struct family_round *r, struct family_span *span,
                    int32_t *token, struct family_view *view)
{
    for (int64_t i = 0; i < r->forward.step->n_spans; i++) {
        const struct family_span *from = &r->forward.step->span[i];
        span[i] = (struct family_span){.timeline = from->timeline,
                                       .token = token + i * s->block,
                                       .n = s->block,
                                       .at = from->at};
        for (int64_t k = 0; k < s->block; k++) {
            token[i * s->block + k] = k ? s->noise : from->token[0];
            view[i * s->block + k] = view_of(s, from->at, r->from[i], k);
        }
    }
}

/* The block's rows through the stages, collapsed: [n_spans * block][n_embd]. */
static struct rows run_block(const struct dspark *s, const struct family_round *r, struct rows h)
{
    struct device *d = r->forward.device;
    const int64_t n_spans = r->forward.step->n_spans, n = h.n, width = s->g.n_embd;
    const size_t mark = device_mark(d);
    struct family_span *span = device_bytes(d, (size_t)n_spans * sizeof *span);
    int32_t *token = device_bytes(d, (size_t)n * sizeof *token);
    struct family_view *view = device_bytes(d, (size_t)n * sizeof *view);
    struct family_forward f = r->forward;
    const bool runs = device_runs(d);
    if (runs)
        lay_out(s, r, span, token, view);
    const struct family_step step = {
        .span = runs ? span : NULL, .n_spans = runs ? n_spans : 1, .n_rows = n};
    f.step = &step;
    struct pass p = {.g = &s->g,
                     .f = &f,
                     .d = d,
                     .tokens = token,
                     .pos = family_positions(&f),
                     .view = runs ? view : NULL,
                     .widest = s->g.window + s->block};
    /* f32 [n][n_hc * n_embd] */
    struct rows x = device_rows(d, n, s->g.n_hc * width), y = device_rows(d, n, x.width);
    device_embed(d, rows_columns(x, 0, width), s->g.embed, token, 1.0f);
    for (int64_t k = 1; k < s->g.n_hc; k++)
        device_copy(d, rows_columns(x, k * width, width), rows_columns(x, 0, width));
    p.rope[0] = device_rope_table(d, p.pos, n, s->g.inv_freq[0], s->g.n_rot / 2);
    for (int64_t i = 0; i < s->g.n_layers; i++)
        family_deepseek4_layer(&p, &s->g.layer[i], x, y);
    device_copy(d, h, family_deepseek4_collapse(&p, &s->hc_head, x));
    device_release(d, mark);
    return h;
}

static void dspark_begin(const void *self, struct family_round *r)
{
    const struct dspark *s = self;
    struct device *d = r->forward.device;
    const int64_t n_spans = r->forward.step->n_spans, n = r->n_drafts * n_spans,
                  width = s->g.n_embd;
    struct round *round = device_bytes(d, sizeof *round);
    const bool wide = n <= r->wide.n;
    /* f32 [n][n_embd] */
    struct rows h = device_rows(d, n, width),
                u = wide ? rows_slice(r->wide, 0, n) : device_rows(d, n, s->g.n_vocab);
    const size_t mark = device_mark(d);
    device_prompt_rows(d, 0, 0);
    const struct rows all = run_block(s, r, device_rows(d, n_spans * s->block, width));
    for (int64_t j = 0; j < r->n_drafts; j++)
        device_copy(d, rows_slice(h, j * n_spans, n_spans),
                    (struct rows){all.at ? all.at + j * all.stride : NULL, n_spans, width,
                                  s->block * all.stride});
    struct rows y = device_rows(d, n, width);
    device_norm(d, y, h, s->norm, 1, s->g.eps);
    if (wide)
        (void)family_draft_head(r, s->g.out, y, 0);
    else
        device_matmul(d, &(struct device_product){s->g.out, 0, y, u, NULL}, 1);
    device_release(d, mark);
    if (round)
        *round = (struct round){h, u, n_spans};
    r->state = round;
}

static void dspark_next(const void *self, struct family_round *r, int64_t j, const int32_t *token,
                        int64_t n, struct rows logits, float *confidence)
{
    const struct dspark *s = self;
    const struct round *round = r->state;
    struct rows h = {NULL, n, s->g.n_embd, s->g.n_embd}, u = logits;
    if (round) {
        h = rows_slice(round->h, j * round->n_spans, n);
        u = rows_slice(round->u, j * round->n_spans, n);
    }
    family_markov_add(&s->chain, r->forward.device, u, token, logits);
    family_markov_sure(&s->chain, r->forward.device, h, token, confidence);
}

const struct family_draft family_deepseek4_dspark = {
    .kind = "dspark",
    .named = dspark_named,
    .config = dspark_config,
    .rename = dspark_rename,
    .alias = dspark_alias,
    .hf_name = dspark_hf_name,
    .to_config = dspark_to_config,
    .fits = dspark_fits,
    .bind = dspark_bind,
    .set = dspark_set,
    .kv = dspark_kv,
    .observe_begin = dspark_observe_begin,
    .observe_tap = dspark_observe_tap,
    .observe_wants = dspark_observe_wants,
    .observe_end = dspark_observe_end,
    .observed = dspark_observed,
    .begin = dspark_begin,
    .next = dspark_next,
    .free = dspark_free,
};
