/* SPDX-License-Identifier: Apache-2.0 */
/* dflash_hf - config.json, keys and tensor names of drafters of blocks, in the terms of llama.cpp's
 * files. */
#include "family/draft/dflash.h"
#include "family/draft/dflash_file.h"

#include "base/mem.h"
#include "family/hf/config.h"
#include "family/gemma4.h"
#include "family/rules.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- names ---- */

static const struct { const char *hf, *gguf; } names[] = {
    {"fc.weight", "fc.weight"},
    {"hidden_norm.weight", "enc.output_norm.weight"},
    {"norm.weight", "output_norm.weight"},
    {"embed_tokens.weight", "token_embd.weight"},
    {"lm_head.weight", "output.weight"},
    {"markov_head.markov_w1.weight", "markov_w1.weight"},
    {"markov_head.markov_w2.weight", "markov_w2.weight"},
    {"markov_head.gate_proj.weight", "markov_gate.weight"},
    {"markov_head.joint_proj.weight", "markov_joint.weight"},
    {"confidence_head.proj.weight", "conf_proj.weight"},
    {"confidence_head.proj.bias", "conf_proj.bias"},
    {"confidence_proj.weight", "conf_proj.weight"},
    {"confidence_proj.bias", "conf_proj.bias"},
    {"candidate_selector.predecessor_codebook", "selector_predecessor.weight"},
    {"candidate_selector.successor_codebook", "selector_successor.weight"},
    {"candidate_selector.hidden_projection.weight", "selector_hidden.weight"},
};

static const struct { const char *hf, *gguf; } layer_names[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    /* Qwen 3: what the MLP reads */
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"attention_conv.base_kernel", "attn_conv_base"},
    {"attention_conv.kernel_projection.weight", "attn_conv_proj.weight"},
    {"mlp_conv.base_kernel", "ffn_conv_base"},
    {"mlp_conv.kernel_projection.weight", "ffn_conv_proj.weight"},
};

bool family_dflash_rename(const char *name, char *out, size_t n_out)
{
    if (!strncmp(name, "model.", 6))
        name += 6;
    unsigned layer;
    int used = 0;
    char prefix[32] = "";
    if (sscanf(name, "layers.%5u.%n", &layer, &used) == 1 && used) {
        snprintf(prefix, sizeof prefix, "blk.%u.", layer);
        for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++)
            if (family_config_rename(name + used, layer_names[i].hf, layer_names[i].gguf, prefix,
                                     out, n_out))
                return true;
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (family_config_rename(name, names[i].hf, names[i].gguf, prefix, out, n_out))
            return true;
    return false;
}

bool family_dflash_alias(const char *name, char *out, size_t n_out)
{
    static const struct { const char *is, *usual; } alias[] = {
        {"dflash_fc.weight", "fc.weight"},
        {"dflash.fc.weight", "fc.weight"},
        {"dflash_hidden_norm.weight", "enc.output_norm.weight"},
        {"dflash.hidden_norm.weight", "enc.output_norm.weight"},
        {"hidden_norm.weight", "enc.output_norm.weight"},
        {"selector.hidden_proj.weight", "selector_hidden.weight"},
        {"selector.pred_codebook", "selector_predecessor.weight"},
        {"selector.succ_codebook", "selector_successor.weight"},
        {"selector.pred_codebook.weight", "selector_predecessor.weight"},
        {"selector.succ_codebook.weight", "selector_successor.weight"},
        {"dspark.markov_w1.weight", "markov_w1.weight"},
        {"dspark.markov_w2.weight", "markov_w2.weight"},
        {"d2t.weight", "d2t"},
    };
    static const struct { const char *is, *usual; } conv[] = {
        {"attn_conv.base", "attn_conv_base"},
        {"ffn_conv.base", "ffn_conv_base"},
        {"attn_conv.proj.weight", "attn_conv_proj.weight"},
        {"ffn_conv.proj.weight", "ffn_conv_proj.weight"},
    };
    unsigned layer;
    int used = 0;
    for (size_t i = 0; i < sizeof alias / sizeof *alias; i++)
        if (!strcmp(name, alias[i].is)) {
            snprintf(out, n_out, "%s", alias[i].usual);
            return true;
        }
    if (sscanf(name, "blk.%5u.%n", &layer, &used) != 1 || !used)
        return false;
    for (size_t i = 0; i < sizeof conv / sizeof *conv; i++)
        if (!strcmp(name + used, conv[i].is)) {
            snprintf(out, n_out, "blk.%u.%s", layer, conv[i].usual);
            return true;
        }
    return false;
}

/* The tensor `gguf`, or what belongs to a matrix of that name. */
static bool is_of(const char *name, const char *gguf)
{
    static const char weight[] = ".weight";
    const size_t n = strlen(gguf), k = sizeof weight - 1;
    char out[128];
    if (family_config_rename(name, gguf, gguf, "", out, sizeof out))
        return true;
    return n > k && !strcmp(gguf + n - k, weight) && !strncmp(name, gguf, n - k) &&
           name[n - k] == '.' && strstr(name + n - k, "scale");
}

bool family_dflash_is_tensor(const char *name, bool checkpoint)
{
    static const char *const more[] = {"rope_freqs.weight", "d2t", "t2d"};
    char usual[128];
    unsigned layer;
    int used = 0;
    if (!(checkpoint ? family_dflash_rename : family_dflash_alias)(name, usual, sizeof usual))
        snprintf(usual, sizeof usual, "%s", name);
    if (strstr(name, "rotary_emb."))
        return true; /* frequencies, which the config says */
    if (sscanf(usual, "blk.%5u.%n", &layer, &used) == 1 && used) {
        for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++)
            if (is_of(usual + used, layer_names[i].gguf))
                return true;
        return false;
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (!strcmp(usual, more[i]))
            return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(names[i].gguf, "markov_gate", 11) != 0 &&
            strncmp(names[i].gguf, "markov_joint", 12) != 0 && is_of(usual, names[i].gguf))
            return true;
    return false;
}

/* ---- config.json ---- */

bool family_dflash_is_named(struct json_object *config, const char *architecture)
{
    struct json_object *list = family_config_get(config, "architectures");
    const size_t n =
        json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    for (size_t i = 0; i < n; i++) {
        const char *s = json_object_get_string(json_object_array_get_idx(list, i));
        if (s && !strcmp(s, architecture))
            return true;
    }
    return false;
}

/* Where a number may stand: in one of these objects, the first that has it. */
struct places { struct json_object *at[3]; };

static struct json_object *find(const struct places *p, const char *key, struct json_object **in)
{
    for (int i = 0; i < 3; i++) {
        struct json_object *v = family_config_get(p->at[i], key);
        if (v) {
            *in = p->at[i];
            return v;
        }
    }
    *in = p->at[0];
    return NULL;
}

static void whole(struct family_config *c, const struct places *p, const char *key,
                  const char *gguf, int64_t fallback)
{
    struct json_object *in;
    if (find(p, key, &in) || fallback < 0)
        family_config_whole(c, in, key, gguf, fallback);
}

static void number(struct family_config *c, const struct places *p, const char *key,
                   const char *gguf)
{
    struct json_object *in;
    if (find(p, key, &in))
        family_config_number(c, in, key, gguf, 0);
}

static void flag(struct family_config *c, const struct places *p, const char *key, const char *gguf)
{
    struct json_object *in, *v = find(p, key, &in);
    if (v && !c->s)
        c->s = io_meta_set_bool(c->out, gguf, json_object_get_boolean(v));
}

static void word(struct family_config *c, const struct places *p, const char *key, const char *gguf)
{
    struct json_object *in, *v = find(p, key, &in);
    if (json_object_is_type(v, json_type_string) && !c->s)
        c->s = io_meta_set_str(c->out, gguf, json_object_get_string(v),
                               (size_t)json_object_get_string_len(v));
}

/* Taps, as the list of layers whose inputs they are; -1 is the embedding. */
static void taps(struct family_config *c, const struct places *p)
{
    struct json_object *in, *v = find(p, "target_layer_ids", &in);
    const int64_t shift = v ? 1 : 0; /* 'aux_hidden_state_layer_ids' names inputs already */
    uint64_t at[DFLASH_MAX_TAPS];
    v = v ? v : find(p, "aux_hidden_state_layer_ids", &in);
    if (!v || c->s)
        return;
    const size_t n = json_object_is_type(v, json_type_array) ? json_object_array_length(v) : 0;
    if (!n || n > DFLASH_MAX_TAPS) {
        c->s = err_set(c->err, INGLE_FORMAT, "config.json: '%s' is no list of 1 to %d layers",
                       shift ? "target_layer_ids" : "aux_hidden_state_layer_ids", DFLASH_MAX_TAPS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct json_object *one = json_object_array_get_idx(v, i);
        const int64_t layer = json_object_get_int64(one) + shift;
        if (!json_object_is_type(one, json_type_int) || layer < 0 || layer > INT32_MAX) {
            c->s = err_set(c->err, INGLE_FORMAT, "config.json: '%s' has %.40s, expected layers",
                           shift ? "target_layer_ids" : "aux_hidden_state_layer_ids",
                           one ? json_object_get_string(one) : "null");
            return;
        }
        at[i] = (uint64_t)layer;
    }
    c->s = io_meta_set_u64s(c->out, "dflash.target_layers", at, n);
}

/* Which layers slide: 'layer_types', unless 'use_sliding_window' (or 'dflash_config.use_swa')
 * switches it off. */
static void windows(struct family_config *c, const struct places *p, uint64_t n_layers, bool gemma)
{
    struct json_object *in, *types = find(p, "layer_types", &in),
                            *use = find(p, "use_sliding_window", &in),
                            *swa = find(p, "use_swa", &in);
    bool sliding[DFLASH_MAX_LAYERS] = {false}, any = false;
    const bool all = swa && json_object_get_boolean(swa);
    if (c->s)
        return;
    if (types && (!json_object_is_type(types, json_type_array) ||
                  json_object_array_length(types) != n_layers)) {
        c->s = err_set(c->err, INGLE_FORMAT, "config.json: 'layer_types' is no list of %llu layers",
                       (unsigned long long)n_layers);
        return;
    }
    for (uint64_t i = 0; types && i < n_layers; i++) {
        const char *t = json_object_get_string(json_object_array_get_idx(types, i));
        sliding[i] = t && !strcmp(t, "sliding_attention");
        if (!sliding[i] && (!t || strcmp(t, "full_attention")))
            c->s = err_set(c->err, INGLE_UNSUP,
                           "config.json: 'layer_types' has '%.40s' for layer %llu, supported are "
                           "'sliding_attention' and "
                           "'full_attention'",
                           t ? t : "null", (unsigned long long)i);
        any = any || sliding[i];
    }
    for (uint64_t i = 0; i < n_layers && all; i++)
        any = sliding[i] = true;
    if (c->s || (types && !any) || (use && !json_object_get_boolean(use) && !gemma && !all))
        return;
    whole(c, p, all && find(p, "swa_window_size", &in) ? "swa_window_size" : "sliding_window",
          "dflash.attention.sliding_window", types ? -1 : 0);
    if (!c->s && any)
        c->s =
            io_meta_set_bools(c->out, "dflash.attention.sliding_window_pattern", sliding, n_layers);
}

/* The numbers of a Gemma 4 drafter's attention are those of the target's full layers. */
static void heads(struct family_config *c, const struct places *p, bool gemma)
{
    struct json_object *in;
    const bool k_is_v = gemma && json_object_get_boolean(find(p, "attention_k_eq_v", &in));
    whole(c, p, "num_attention_heads", "dflash.attention.head_count", -1);
    whole(c, p,
          k_is_v && find(p, "num_global_key_value_heads", &in) ? "num_global_key_value_heads"
                                                               : "num_key_value_heads",
          "dflash.attention.head_count_kv", -1);
    if (find(p, gemma && find(p, "global_head_dim", &in) ? "global_head_dim" : "head_dim", &in))
        whole(c, p, gemma && find(p, "global_head_dim", &in) ? "global_head_dim" : "head_dim",
              "dflash.attention.key_length", -1);
}

static void rope(struct family_config *c, const struct places *p, bool gemma)
{
    struct json_object *in, *r = find(p, "rope_parameters", &in),
                            *full = family_config_get(r, "full_attention");
    struct json_object *s = find(p, "rope_scaling", &in),
                       *type = family_config_get(full ? full : r, "rope_type");
    const char *is = type ? json_object_get_string(type) : "default";
    if (s && !type)
        type = family_config_get(s, "rope_type") ? family_config_get(s, "rope_type")
                                                 : family_config_get(s, "type");
    is = type ? json_object_get_string(type) : is;
    if (!c->s && strcmp(is, "default") != 0 && strcmp(is, "proportional") != 0)
        c->s = err_set(
            c->err, INGLE_UNSUP,
            "config.json: 'rope_type' is '%.40s', supported are 'default' and 'proportional'", is);
    const struct places q = {{full ? full : r, p->at[0], p->at[1]}};
    number(c, &q, "rope_theta", "dflash.rope.freq_base");
    if (gemma)
        family_config_number(c, full ? full : r, "partial_rotary_factor",
                             "dflash.rope.partial_rotary_factor", 0.25);
}

static void refuse(struct family_config *c, const struct places *p)
{
    static const char *const parts[] = {"enable_moe_block", "hidden_size_per_layer_input",
                                        "num_kv_shared_layers", "attention_bias", "mlp_bias"};
    struct json_object *in;
    for (size_t i = 0; !c->s && i < sizeof parts / sizeof *parts; i++) {
        struct json_object *v = find(p, parts[i], &in);
        if (v && json_object_get_boolean(v))
            c->s = err_set(
                c->err, INGLE_UNSUP,
                "config.json: '%s' is %.40s: drafters of blocks have dense layers without it",
                parts[i], json_object_get_string(v));
    }
    struct json_object *type = find(p, "markov_head_type", &in);
    if (!c->s && type && strcmp(json_object_get_string(type), "vanilla") != 0)
        c->s = err_set(c->err, INGLE_UNSUP,
                       "config.json: 'markov_head_type' is '%.40s', supported is 'vanilla'",
                       json_object_get_string(type));
}

static const struct { const char *hf, *gguf; int64_t fallback; } whole_keys[] = {
    {"num_hidden_layers", "dflash.block_count", -1},
    {"hidden_size", "dflash.embedding_length", -1},
    {"intermediate_size", "dflash.feed_forward_length", -1},
    {"block_size", "dflash.block_size", -1},
    {"mask_token_id", "dflash.mask_token_id", -1},
    {"vocab_size", "dflash.vocab_size", 0},
    {"max_position_embeddings", "dflash.context_length", 0},
    {"num_target_layers", "dflash.target_block_count", 0},
    {"markov_rank", "dflash.markov_rank", 0},
    {"conv_kernel_size", "dflash.conv_kernel_size", 0},
    {"conv_group_size", "dflash.conv_group_size", 0},
    {"selector_rank", "dflash.selector_rank", 0},
    {"selector_top_k", "dflash.selector_top_k", 0},
};

ingle_status family_dflash_config(struct json_object *config, struct io_meta *out,
                                  const struct report_sink *sink, struct err *err)
{
    struct json_object *own = family_config_get(config, "dflash_config"),
                       *layer = family_config_get(config, "transformer_layer_config");
    const struct places p = {{layer ? config
                              : own ? own
                                    : config,
                              layer ? layer : config, layer ? own : NULL}};
    const bool gemma = family_dflash_is_named(config, "Gemma4DSparkModel");
    struct family_config c = {config, out, sink, INGLE_OK, err};
    c.s = family_keys_check_config(config, family_dflash_config_table, sink, err);
    if (!c.s)
        c.s = io_meta_set_str(out, "general.architecture", "dflash", 6);
    refuse(&c, &p);
    for (size_t i = 0; i < sizeof whole_keys / sizeof *whole_keys; i++)
        whole(&c, &p, whole_keys[i].hf, whole_keys[i].gguf, whole_keys[i].fallback);
    struct json_object *in, *n = find(&p, "num_hidden_layers", &in);
    const int64_t n_layers = n ? json_object_get_int64(n) : 0;
    if (!c.s && (n_layers < 1 || n_layers > DFLASH_MAX_LAYERS))
        return err_set(err, INGLE_FORMAT,
                       "config.json: 'num_hidden_layers' is %lld, expected 1 to %d",
                       (long long)n_layers, DFLASH_MAX_LAYERS);
    taps(&c, &p);
    heads(&c, &p, gemma);
    windows(&c, &p, (uint64_t)n_layers, gemma);
    rope(&c, &p, gemma);
    number(&c, &p, "rms_norm_eps", "dflash.attention.layer_norm_rms_epsilon");
    number(&c, &p, "final_logit_softcapping", "dflash.final_logit_softcapping");
    number(&c, &p, "output_multiplier", "dflash.logit_scale");
    number(&c, &p, "input_embedding_scale", "dflash.embedding_scale");
    word(&c, &p, find(&p, "hidden_activation", &in) ? "hidden_activation" : "hidden_act",
         "dflash.hidden_activation");
    word(&c, &p, "target_model_type", "dflash.target_model_type");
    flag(&c, &p, find(&p, "is_causal", &in) ? "is_causal" : "causal", "dflash.attention.causal");
    if (!c.s && !io_meta_find(out, "dflash.attention.causal") &&
        json_object_get_boolean(find(&p, "sliding_window_non_causal", &in)))
        c.s = io_meta_set_bool(out, "dflash.attention.causal", false);
    flag(&c, &p, "confidence_head_with_markov", "dflash.confidence_head_with_markov");
    if (find(&p, "sample_from_anchor", &in))
        flag(&c, &p, "sample_from_anchor", "dflash.sample_from_anchor");
    else if (gemma && !c.s)
        c.s = io_meta_set_bool(out, "dflash.sample_from_anchor", true);
    return c.s;
}

/* ---- the other way ---- */

bool family_dflash_hf_name(const struct io_file *file, const char *name, char *out, size_t n_out)
{
    unsigned layer;
    int used = 0;
    char other[64];
    if (sscanf(name, "blk.%5u.%n", &layer, &used) != 1 || !used) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (!strcmp(name, names[i].gguf)) {
                snprintf(out, n_out, "%s", names[i].hf);
                return true;
            }
        return false;
    }
    const char *end = name + used;
    snprintf(other, sizeof other, "blk.%u.post_attention_norm.weight", layer);
    if (!strcmp(end, "ffn_norm.weight") && !io_tensor_find(file, other))
        end = "post_attention_norm.weight"; /* Qwen 3's norm in front of the MLP */
    for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++)
        if (!strcmp(end, layer_names[i].gguf)) {
            snprintf(out, n_out, "layers.%u.%s", layer, layer_names[i].hf);
            return true;
        }
    return false;
}

void family_dflash_back_taps(struct family_back *b, struct json_object *o, const char *key,
                             uint64_t *last)
{
    char name[FAMILY_BACK_KEY];
    const struct io_value *v =
        io_meta_find(io_metadata(b->file), family_back_key(b, "dflash.target_layers", name));
    struct json_object *list = json_object_new_array();
    *last = 0;
    if (!b->s && (!v || v->kind != IO_ARRAY || v->n < 1 || v->n > DFLASH_MAX_TAPS))
        b->s = err_set(b->err, INGLE_FORMAT, "%s: '%s' is no list of 1 to %d layers",
                       io_path(b->file), name, DFLASH_MAX_TAPS);
    for (size_t i = 0; !b->s && list && i < v->n; i++) {
        const int64_t input = v->elem == IO_I64   ? io_array_i64(v, i)
                              : v->elem == IO_U64 ? (int64_t)io_array_u64(v, i)
                                                  : -1;
        if (input < 0 || input > INT32_MAX)
            b->s = err_set(b->err, INGLE_FORMAT, "%s: '%s' has %lld, expected layers",
                           io_path(b->file), name, (long long)input);
        *last = (uint64_t)input > *last && input > 0 ? (uint64_t)input : *last;
        family_back_add(b, list, json_object_new_int64(input - 1));
    }
    family_back_put(b, o, key, list);
}

void family_dflash_back_mask(struct family_back *b, struct json_object *o, const char *key)
{
    const uint64_t of_words = family_back_get(b, "tokenizer.ggml.mask_token_id", UINT64_MAX),
                   mask = family_back_get(b, "dflash.mask_token_id", of_words);
    if (mask == UINT64_MAX && !b->s)
        b->s = err_set(b->err, INGLE_FORMAT, "%s: has no key 'dflash.mask_token_id'",
                       io_path(b->file));
    family_back_put(b, o, key, json_object_new_int64((int64_t)mask));
}

static void back_flag(struct family_back *b, const char *key, const char *gguf)
{
    char name[FAMILY_BACK_KEY];
    bool is;
    if (!io_get_bool(io_metadata(b->file), family_back_key(b, gguf, name), &is, NULL))
        family_back_put(b, b->json, key, json_object_new_boolean(is));
}

static void back_word(struct family_back *b, const char *key, const char *gguf, const char *other)
{
    char name[FAMILY_BACK_KEY];
    const char *is = other;
    size_t n = strlen(other);
    if (io_get_str(io_metadata(b->file), family_back_key(b, gguf, name), &is, &n, NULL)) {
        is = other;
        n = strlen(other);
    }
    family_back_put(b, b->json, key, json_object_new_string_len(is, (int)n));
}

static void back_windows(struct family_back *b, uint64_t n_layers)
{
    bool sliding[DFLASH_MAX_LAYERS] = {false};
    char name[FAMILY_BACK_KEY];
    struct json_object *types = json_object_new_array();
    const uint64_t window = family_back_get(b, "dflash.attention.sliding_window", 0);
    const bool pattern =
        window && io_meta_find(io_metadata(b->file),
                               family_back_key(b, "dflash.attention.sliding_window_pattern", name));
    if (!b->s && pattern)
        b->s = io_get_bools(io_metadata(b->file), name, n_layers, sliding, b->err);
    for (uint64_t i = 0; i < n_layers && types; i++)
        family_back_add(
            b, types, json_object_new_string(sliding[i] ? "sliding_attention" : "full_attention"));
    family_back_put(b, b->json, "layer_types", types);
    family_back_put(b, b->json, "use_sliding_window", json_object_new_boolean(window > 0));
    if (window)
        family_back_put(b, b->json, "sliding_window", json_object_new_int64((int64_t)window));
}

/* Blocks of Gemma 4: wide heads, of which a share of the pairs turns. */
static void back_gemma(struct family_back *b)
{
    struct json_object *rope = family_back_object(b, b->json, "rope_parameters"),
                       *full = family_back_object(b, rope, "full_attention");
    const bool k_is_v = !io_tensor_find(b->file, "blk.0.attn_v.weight");
    family_back_text(b, full, "rope_type", "proportional");
    family_back_put(b, full, "partial_rotary_factor",
                    family_back_decimal(family_gemma4_turning_share(b)));
    family_back_number(b, full, "rope_theta", "dflash.rope.freq_base");
    family_back_put(b, b->json, "attention_k_eq_v", json_object_new_boolean(k_is_v));
    if (k_is_v)
        family_back_whole(b, b->json, "num_global_key_value_heads",
                          "dflash.attention.head_count_kv");
    family_back_whole(b, b->json, "global_head_dim", "dflash.attention.key_length");
    back_word(b, "target_model_type", "dflash.target_model_type", "gemma4");
    back_word(b, "hidden_activation", "dflash.hidden_activation", "gelu_pytorch_tanh");
}

static bool is_own(const char *key)
{
    return !strncmp(key, "conv_", 5) || !strncmp(key, "selector_", 9) || !strcmp(key, "block_size");
}

ingle_status family_dflash_to_config(const struct io_file *file, struct json_object *out,
                                     struct err *err)
{
    struct family_back b = {file, out, INGLE_OK, err};
    const bool chain =
        io_tensor_find(file, "markov_w1.weight") || io_tensor_find(file, "dspark.markov_w1.weight");
    const bool selects = family_back_get(&b, "dflash.selector_rank", 0) > 0;
    const uint64_t n_layers = family_back_get(&b, "dflash.block_count", 0);
    uint64_t last;
    char key[FAMILY_BACK_KEY];
    if (n_layers < 1 || n_layers > DFLASH_MAX_LAYERS)
        return err_set(err, INGLE_FORMAT, "%s: 'dflash.block_count' is %llu, expected 1 to %d",
                       io_path(file), (unsigned long long)n_layers, DFLASH_MAX_LAYERS);
    family_back_begin(&b,
                      chain     ? "Gemma4DSparkModel"
                      : selects ? "DFlash2DraftModel"
                                : "DFlashDraftModel",
                      chain ? "gemma4_text" : "qwen3");
    /* blocks of Qwen 3 have what is the drafter's in an object of its own */
    const double scale = sqrt((double)family_back_get(&b, "dflash.embedding_length", 0));
    double is;
    if (io_get_f64(io_metadata(file), family_back_key(&b, "dflash.embedding_scale", key), -1e30,
                   1e30, &is, NULL))
        is = scale;
    const bool usual = chain && fabs(is - scale) <= 1e-6 * scale;
    struct json_object *own = usual ? out : family_back_object(&b, out, "dflash_config");
    for (size_t i = 0; i < sizeof whole_keys / sizeof *whole_keys; i++)
        if (strcmp(whole_keys[i].hf, "vocab_size") != 0 &&
            strcmp(whole_keys[i].hf, "mask_token_id") != 0)
            family_back_whole(&b, is_own(whole_keys[i].hf) ? own : out, whole_keys[i].hf,
                              whole_keys[i].gguf);
    const struct io_tensor *w1 = io_tensor_find(file, "markov_w1.weight");
    if (w1)
        family_back_put(&b, out, "markov_rank", json_object_new_int64((int64_t)w1->ne[0]));
    family_dflash_back_mask(&b, own, "mask_token_id");
    family_dflash_back_taps(&b, own, "target_layer_ids", &last);
    family_back_whole(&b, out, "num_attention_heads", "dflash.attention.head_count");
    family_back_whole(&b, out, "num_key_value_heads", "dflash.attention.head_count_kv");
    family_back_whole(&b, out, "head_dim", "dflash.attention.key_length");
    back_windows(&b, n_layers);
    family_back_number(&b, out, "rms_norm_eps", "dflash.attention.layer_norm_rms_epsilon");
    family_back_number(&b, out, "final_logit_softcapping", "dflash.final_logit_softcapping");
    family_back_number(&b, own, "output_multiplier", "dflash.logit_scale");
    if (!usual)
        family_back_number(&b, own, "input_embedding_scale", "dflash.embedding_scale");
    back_flag(&b, "is_causal", "dflash.attention.causal");
    back_flag(&b, "confidence_head_with_markov", "dflash.confidence_head_with_markov");
    back_flag(&b, "sample_from_anchor", "dflash.sample_from_anchor");
    if (chain) {
        back_gemma(&b);
        return b.s;
    }
    family_back_number(&b, out, "rope_theta", "dflash.rope.freq_base");
    back_word(&b, "hidden_act", "dflash.hidden_activation", "silu");
    return b.s;
}

/* ---- what a file may say ---- */

const struct family_key family_dflash_keys_table[] = {
    {"block_count", READ},
    {"embedding_length", READ},
    {"embedding_length_out", READ},
    {"context_length", READ},
    {"vocab_size", READ},
    {"feed_forward_length", READ},
    {"final_logit_softcapping", READ},
    {"logit_scale", READ},
    {"embedding_scale", READ},
    {"attention_scale", READ},
    {"hidden_activation", READ},
    {"block_size", READ},
    {"target_layers", READ},
    {"target_layer_ids", READ},
    {"mask_token_id", READ},
    {"sample_from_anchor", READ},
    {"has_confidence_head", READ},
    {"confidence_head_with_markov", READ},
    {"markov_rank", READ},
    {"markov_head_type", WORD("vanilla")},
    {"conv_kernel_size", READ},
    {"conv_group_size", READ},
    {"selector_rank", READ},
    {"selector_top_k", READ},
    {"target_block_count", READ},
    {"target_model_type", READ},
    {"requires_target_arch", READ},
    {"draft_vocab_size", READ},
    {"attention.head_count", READ},
    {"attention.head_count_kv", READ},
    {"attention.key_length", READ},
    {"attention.value_length", READ},
    {"attention.layer_norm_rms_epsilon", READ},
    {"attention.scale", READ},
    {"attention.causal", READ},
    {"attention.sliding_window", READ},
    {"attention.sliding_window_pattern", READ},
    {"rope.freq_base", READ},
    {"rope.dimension_count", READ},
    {"rope.partial_rotary_factor", READ},
    {"dflash.block_size", READ},
    {"dflash.mask_token_id", READ},
    {"dflash.target_layer_ids", READ},
    {"dflash.n_target_features", READ},
    {"dflash.n_target_layers", READ},
    {"dflash.embedding_scale", READ},
    {"dflash.input_embedding_scale", READ},
    {"dflash.logit_scale", READ},
    {"dflash.attention.causal", READ},
    {"dflash.is_causal", READ},
    {"dflash.sample_from_anchor", READ},
    {NULL, READ},
};

const struct family_key family_dflash_config_table[] = {
    {"vocab_size", READ},
    {"hidden_size", READ},
    {"intermediate_size", READ},
    {"num_hidden_layers", READ},
    {"num_attention_heads", READ},
    {"num_key_value_heads", READ},
    {"num_global_key_value_heads", READ},
    {"num_kv_shared_layers", READ},
    {"head_dim", READ},
    {"global_head_dim", READ},
    {"attention_k_eq_v", READ},
    {"layer_types", READ},
    {"max_position_embeddings", READ},
    {"max_window_layers", FREE}, /* 'layer_types' says it */
    {"rms_norm_eps", READ},
    {"final_logit_softcapping", READ},
    {"sliding_window", READ},
    {"use_sliding_window", READ},
    {"sliding_window_non_causal", READ},
    {"_sliding_window_pattern", FREE},
    {"sliding_window_pattern", FREE},
    {"hidden_activation", READ},
    {"hidden_act", READ},
    {"hidden_size_per_layer_input", READ},
    {"vocab_size_per_layer_input", FREE},
    {"use_double_wide_mlp", FLAG(0)},
    {"enable_moe_block", READ},
    {"num_experts", FREE}, /* without 'enable_moe_block' they are the target's */
    {"top_k_experts", FREE},
    {"moe_intermediate_size", FREE},
    {"expert_intermediate_size", FREE},
    {"use_bidirectional_attention", FREE},
    {"attention_bias", READ},
    {"mlp_bias", READ},
    {"rope_theta", READ},
    {"rope_scaling*", READ},
    {"rope_parameters*", READ},
    {"rope_local_base_freq", FREE},
    {"block_size", READ},
    {"mask_token_id", READ},
    {"target_layer_ids", READ},
    {"aux_hidden_state_layer_ids", READ},
    {"num_target_layers", READ},
    {"target_model_type", READ},
    {"target_text_model_type", FREE},
    {"target_hidden_size", READ},
    {"num_anchors", FREE}, /* of training */
    {"is_causal", READ},
    {"causal", READ},
    {"sample_from_anchor", READ},
    {"draft_vocab_size", READ},
    {"speculators*", FREE},
    {"speculative*", FREE},
    {"transformer_layer_config*", READ},
    {"dflash_config*", READ},
    {"markov_rank", READ},
    {"markov_head_type", READ},
    {"enable_confidence_head", READ},
    {"confidence_head_with_markov", READ},
    {"confidence_head*", FREE},
    {NULL, READ},
};
