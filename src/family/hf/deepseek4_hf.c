/* SPDX-License-Identifier: Apache-2.0 */
/* deepseek4_hf - config.json and tensor names of the published checkpoint, in GGUF's terms. */
#include "family/deepseek4.h"

#include "base/mem.h"
#include "family/hf/config.h"
#include "family/keys.h"
#include <stdio.h>
#include <string.h>

/* ---- names ---- */

struct pair { const char *hf, *gguf; };

static const struct pair names[] = {
    {"embed.weight", "token_embd.weight"},       {"head.weight", "output.weight"},
    {"lm_head.weight", "output.weight"},
    {"norm.weight", "output_norm.weight"},       {"hc_head_fn", "output_hc_fn.weight"},
    {"hc_head_base", "output_hc_base.weight"},   {"hc_head_scale", "output_hc_scale.weight"},
};

/* Stems: `.weight`, `.scale` and what else belongs to a matrix stays behind them. */
static const struct pair stems[] = {
    {"attn_norm", "attn_norm"},
    {"ffn_norm", "ffn_norm"},
    {"attn.wq_a", "attn_q_a"},
    {"attn.q_norm", "attn_q_a_norm"},
    {"attn.wq_b", "attn_q_b"},
    {"attn.wkv", "attn_kv"},
    {"attn.kv_norm", "attn_kv_a_norm"},
    {"attn.wo_a", "attn_output_a"},
    {"attn.wo_b", "attn_output_b"},
    {"attn.compressor.wkv", "attn_compressor_kv"},
    {"attn.compressor.wgate", "attn_compressor_gate"},
    {"attn.compressor.norm", "attn_compressor_norm"},
    {"attn.indexer.wq_b", "indexer.attn_q_b"},
    {"attn.indexer.weights_proj", "indexer.proj"},
    {"attn.indexer.compressor.wkv", "indexer_compressor_kv"},
    {"attn.indexer.compressor.wgate", "indexer_compressor_gate"},
    {"attn.indexer.compressor.norm", "indexer_compressor_norm"},
    {"ffn.gate", "ffn_gate_inp"},
    {"ffn.shared_experts.w1", "ffn_gate_shexp"},
    {"ffn.shared_experts.w3", "ffn_up_shexp"},
    {"ffn.shared_experts.w2", "ffn_down_shexp"},
};

/* Whole names, without a suffix in the checkpoint. */
static const struct pair wholes[] = {
    {"hc_attn_fn", "hc_attn_fn.weight"},
    {"hc_attn_base", "hc_attn_base.weight"},
    {"hc_attn_scale", "hc_attn_scale.weight"},
    {"hc_ffn_fn", "hc_ffn_fn.weight"},
    {"hc_ffn_base", "hc_ffn_base.weight"},
    {"hc_ffn_scale", "hc_ffn_scale.weight"},
    {"attn.attn_sink", "attn_sinks.weight"},
    {"attn.compressor.ape", "attn_compressor_ape.weight"},
    {"attn.indexer.compressor.ape", "indexer_compressor_ape.weight"},
    {"ffn.gate.bias", "exp_probs_b.bias"},
    {"ffn.gate.tid2eid", "ffn_gate_tid2eid.weight"},
};

/* The draft block's own; its other names of its own stay as they are. */
static const struct pair draft[] = {
    {"hc_head_fn", "hc_head_fn.weight"},       {"hc_head_base", "hc_head_base.weight"},
    {"hc_head_scale", "hc_head_scale.weight"},
};

/* prefix: of the GGUF name, "blk.3." or "mtp.0.". */
static bool rename_in_layer(const char *name, const char *prefix, char *out, size_t n_out)
{
    unsigned expert, w;
    int used = 0;
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++)
        if (!strcmp(name, wholes[i].hf)) {
            snprintf(out, n_out, "%s%s", prefix, wholes[i].gguf);
            return true;
        }
    if (sscanf(name, "ffn.experts.%5u.w%1u%n", &expert, &w, &used) == 2 && w >= 1 && w <= 3) {
        static const char *const part[] = {"gate", "down", "up"};
        snprintf(out, n_out, "%sffn_%s_exps.%u%s", prefix, part[w - 1], expert, name + used);
        return true;
    }
    for (size_t i = 0; i < sizeof stems / sizeof *stems; i++) {
        const size_t n = strlen(stems[i].hf);
        if (!strncmp(name, stems[i].hf, n) &&
            (family_config_is_weight(name + n) || !strcmp(name + n, ".scale"))) {
            snprintf(out, n_out, "%s%s%s", prefix, stems[i].gguf, name + n);
            return true;
        }
    }
    return false;
}

bool family_deepseek4_rename(const char *name, char *out, size_t n_out)
{
    unsigned layer;
    int used = 0;
    char prefix[32];
    if (sscanf(name, "layers.%5u.%n", &layer, &used) == 1 && used) {
        snprintf(prefix, sizeof prefix, "blk.%u.", layer);
        return rename_in_layer(name + used, prefix, out, n_out);
    }
    if (sscanf(name, "mtp.%5u.%n", &layer, &used) == 1 && used) {
        for (size_t i = 0; i < sizeof draft / sizeof *draft; i++)
            if (!strcmp(name + used, draft[i].hf)) {
                snprintf(out, n_out, "mtp.%u.%s", layer, draft[i].gguf);
                return true;
            }
        snprintf(prefix, sizeof prefix, "mtp.%u.", layer);
        return rename_in_layer(name + used, prefix, out, n_out);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        static const char weight[] = ".weight";
        const size_t n = strlen(names[i].hf), k = sizeof weight - 1, g = strlen(names[i].gguf) - k;
        const bool matrix =
            n > k && !strcmp(names[i].hf + n - k, weight) && !strncmp(name, names[i].hf, n - k) &&
            (family_config_is_weight(name + n - k) || !strcmp(name + n - k, ".scale"));
        if (matrix || !strcmp(name, names[i].hf)) {
            snprintf(out, n_out, "%.*s%s", (int)g, names[i].gguf, matrix ? name + n - k : weight);
            return true;
        }
    }
    return false;
}

static bool hf_in_layer(const char *name, const char *prefix, char *out, size_t n_out)
{
    static const char *const part[] = {"gate", "down", "up"};
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++)
        if (!strcmp(name, wholes[i].gguf)) {
            snprintf(out, n_out, "%s%s", prefix, wholes[i].hf);
            return true;
        }
    for (unsigned w = 0; w < 3; w++) {
        char stack[32];
        unsigned expert;
        int used = 0;
        const size_t n = (size_t)snprintf(stack, sizeof stack, "ffn_%s_exps", part[w]);
        if (!strncmp(name, stack, n) && sscanf(name + n, ".%5u%n", &expert, &used) == 1 && used &&
            name[n + (size_t)used] == '.') {
            snprintf(out, n_out, "%sffn.experts.%u.w%u%s", prefix, expert, w + 1, name + n + used);
            return true;
        }
    }
    for (size_t i = 0; i < sizeof stems / sizeof *stems; i++) {
        const size_t n = strlen(stems[i].gguf);
        if (!strncmp(name, stems[i].gguf, n) &&
            (!strcmp(name + n, ".weight") || !strcmp(name + n, ".scale"))) {
            snprintf(out, n_out, "%s%s%s", prefix, stems[i].hf, name + n);
            return true;
        }
    }
    return false;
}

bool family_deepseek4_hf_name(const char *name, char *out, size_t n_out)
{
    unsigned layer;
    int used = 0;
    char prefix[32];
    if (sscanf(name, "blk.%5u.%n", &layer, &used) == 1 && used) {
        snprintf(prefix, sizeof prefix, "layers.%u.", layer);
        return hf_in_layer(name + used, prefix, out, n_out);
    }
    if (sscanf(name, "mtp.%5u.%n", &layer, &used) == 1 && used) {
        snprintf(prefix, sizeof prefix, "mtp.%u.", layer);
        for (size_t i = 0; i < sizeof draft / sizeof *draft; i++)
            if (!strcmp(name + used, draft[i].gguf)) {
                snprintf(out, n_out, "%s%s", prefix, draft[i].hf);
                return true;
            }
        if (hf_in_layer(name + used, prefix, out, n_out))
            return true;
        snprintf(out, n_out, "%s", name);
        return !strstr(name, "_exps."); /* a stack has no name of its own */
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i].gguf)) {
            snprintf(out, n_out, "%s", names[i].hf);
            return true;
        }
    return false;
}

/* Parts of names that were written differently, without what follows them. */
static const struct pair aliases[] = {
    {"indexer.compress_", "indexer_compressor_"},
    {"indexer.compressor_", "indexer_compressor_"},
    {"exp_probs_b.weight", "exp_probs_b.bias"},
};

bool family_deepseek4_alias(const char *name, char *out, size_t n_out)
{
    char now[128];
    if (strlen(name) > 96) /* none of ours, and there is room for what is added */
        return false;
    snprintf(now, sizeof now, "%s", name);
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        const char *at = strstr(name, aliases[i].hf);
        if (at)
            snprintf(now, sizeof now, "%.*s%s%s", (int)(at - name), name, aliases[i].gguf,
                     at + strlen(aliases[i].hf));
    }
    const char *last = strrchr(now, '.');
    const bool ends =
        last && (!strcmp(last, ".weight") || !strcmp(last, ".bias") || !strcmp(last, ".scale"));
    const char *end = ends ? "" : !strcmp(last ? last : now, ".exp_probs_b") ? ".bias" : ".weight";
    snprintf(out, n_out, "%s%s", now, end);
    return strcmp(out, name) != 0;
}

/* ---- config.json ---- */

static const struct { const char *hf, *gguf; int64_t fallback; } whole_keys[] = {
    {"num_hidden_layers", "deepseek4.block_count", -1},
    {"hidden_size", "deepseek4.embedding_length", -1},
    {"max_position_embeddings", "deepseek4.context_length", 8192},
    {"vocab_size", "deepseek4.vocab_size", -1},
    {"num_attention_heads", "deepseek4.attention.head_count", -1},
    {"num_key_value_heads", "deepseek4.attention.head_count_kv", 1},
    {"head_dim", "deepseek4.attention.key_length", -1},
    {"qk_rope_head_dim", "deepseek4.rope.dimension_count", -1},
    {"q_lora_rank", "deepseek4.attention.q_lora_rank", -1},
    {"o_lora_rank", "deepseek4.attention.output_lora_rank", -1},
    {"o_groups", "deepseek4.attention.output_group_count", -1},
    {"sliding_window", "deepseek4.attention.sliding_window", -1},
    {"index_n_heads", "deepseek4.attention.indexer.head_count", 1},
    {"index_head_dim", "deepseek4.attention.indexer.key_length", 4},
    {"index_topk", "deepseek4.attention.indexer.top_k", 1},
    {"n_routed_experts", "deepseek4.expert_count", -1},
    {"num_experts_per_tok", "deepseek4.expert_used_count", -1},
    {"n_shared_experts", "deepseek4.expert_shared_count", 1},
    {"moe_intermediate_size", "deepseek4.expert_feed_forward_length", -1},
    {"num_hash_layers", "deepseek4.hash_layer_count", 0},
    {"hc_mult", "deepseek4.hyper_connection.count", -1},
    {"hc_sinkhorn_iters", "deepseek4.hyper_connection.sinkhorn_iterations", -1},
};

static const struct { const char *hf, *gguf; double fallback; } number_keys[] = {
    {"rms_norm_eps", "deepseek4.attention.layer_norm_rms_epsilon", 1e-6},
    {"hc_eps", "deepseek4.hyper_connection.epsilon", 1e-6},
    {"routed_scaling_factor", "deepseek4.expert_weights_scale", 1},
};

/* The ratio of a layer by transformers' 'layer_types' ('compress_rates' has no others); -1: it
 * knows no such type. */
static int64_t ratio_of(struct family_config *c, struct json_object *type)
{
    static const struct { const char *name; int64_t ratio;
    } known[] = {{"sliding_attention", 0},
                 {"compressed_sparse_attention", RATIO_CSA},
                 {"heavily_compressed_attention", RATIO_HCA}};
    const char *t =
        json_object_is_type(type, json_type_string) ? json_object_get_string(type) : "null";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(t, known[i].name))
            return known[i].ratio;
    if (!c->s)
        c->s = err_set(c->err, INGLE_UNSUP, "config.json: 'layer_types' has '%.40s'", t);
    return -1;
}

/* Both spellings of the layers' kinds: what they say must agree. */
static void check_types(struct family_config *c, struct json_object *types,
                        struct json_object *ratios)
{
    for (size_t i = 0; !c->s && types && ratios && i < json_object_array_length(types) &&
                       i < json_object_array_length(ratios);
         i++) {
        const int64_t a = ratio_of(c, json_object_array_get_idx(types, i));
        const int64_t b = json_object_get_int64(json_object_array_get_idx(ratios, i));
        if (!c->s && a != b)
            c->s = err_set(c->err, INGLE_FORMAT,
                           "config.json: layer %zu has ratio %lld by 'layer_types' and %lld by "
                           "'compress_ratios'",
                           i, (long long)a, (long long)b);
    }
}

/* transformers' 'mlp_layer_types': those with hashes come first, as 'num_hash_layers' says. */
static void check_mlps(struct family_config *c)
{
    struct json_object *list = family_config_get(c->json, "mlp_layer_types");
    const uint64_t n_hash = family_config_read(c, c->json, "num_hash_layers", 0);
    for (size_t i = 0;
         !c->s && json_object_is_type(list, json_type_array) && i < json_object_array_length(list);
         i++) {
        const char *is = json_object_get_string(json_object_array_get_idx(list, i));
        const char *want = i < n_hash ? "hash_moe" : "moe";
        if (!is || strcmp(is, want))
            c->s = err_set(
                c->err, INGLE_UNSUP,
                "config.json: 'mlp_layer_types' has '%.40s' for layer %zu, expected '%s' with "
                "%llu hash layers",
                is ? is : "null", i, want, (unsigned long long)n_hash);
    }
}

/* Widths that say the same as others. */
static void check_widths(struct family_config *c)
{
    static const char *const at[] = {"", "main", "compress"};
    const uint64_t head = family_config_read(c, c->json, "head_dim", -1);
    const uint64_t rot = family_config_read(c, c->json, "qk_rope_head_dim", -1);
    const uint64_t rest = family_config_read(c, c->json, "qk_nope_head_dim", (int64_t)(head - rot));
    if (!c->s && rest != head - rot)
        c->s = err_set(c->err, INGLE_UNSUP,
                       "config.json: 'qk_nope_head_dim' is %llu, supported is %llu (head_dim less "
                       "qk_rope_head_dim)",
                       (unsigned long long)rest, (unsigned long long)(head - rot));
    for (size_t i = 0; !c->s && i < sizeof at / sizeof *at; i++) {
        struct json_object *o =
            *at[i] ? family_config_get(family_config_get(c->json, "rope_parameters"), at[i])
                   : c->json;
        struct json_object *share = family_config_get(o, "partial_rotary_factor");
        const double wide = share ? json_object_get_double(share) * (double)head : (double)rot;
        if (wide - (double)rot > 0.01 || (double)rot - wide > 0.01)
            c->s = err_set(
                c->err, INGLE_UNSUP,
                "config.json: 'partial_rotary_factor'%s%s is %.40s, supported is qk_rope_head_dim "
                "of head_dim, %llu of %llu",
                *at[i] ? " of " : "", at[i], json_object_get_string(share), (unsigned long long)rot,
                (unsigned long long)head);
    }
}

static void ratios(struct family_config *c, uint64_t n_layers)
{
    struct json_object *list = family_config_get(c->json, "compress_ratios");
    struct json_object *types = family_config_get(c->json, "layer_types");
    if (c->s)
        return;
    types = json_object_is_type(types, json_type_array) ? types : NULL;
    check_types(c, types, list);
    const bool by_type = !list && types;
    list = by_type ? types : list;
    const size_t n =
        json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    if (n < n_layers || n > 4096) {
        c->s = err_set(c->err, INGLE_FORMAT,
                       "config.json: 'compress_ratios' has %zu entries for %llu layers", n,
                       (unsigned long long)n_layers);
        return;
    }
    uint64_t *v = mem_calloc(n, sizeof *v);
    if (!v)
        c->s = err_set(c->err, INGLE_NOMEM, "no memory for config.json");
    for (size_t i = 0; !c->s && i < n; i++) {
        struct json_object *one = json_object_array_get_idx(list, i);
        const int64_t r = by_type ? ratio_of(c, one) : json_object_get_int64(one);
        v[i] = r < 0 ? UINT32_MAX : (uint64_t)r;
    }
    if (!c->s)
        c->s = io_meta_set_u64s(c->out, "deepseek4.attention.compress_ratios", v, n);
    mem_free(v);
}

/* Rotations as published (flat, with 'rope_scaling'), or as transformers writes them
 * ('rope_parameters' with 'main' and 'compress'). */
static void rope(struct family_config *c)
{
    struct json_object *both = family_config_get(c->json, "rope_parameters");
    struct json_object *near = family_config_get(both, "main"),
                       *far = family_config_get(both, "compress");
    family_config_number(c, near ? near : c->json, "rope_theta", "deepseek4.rope.freq_base", 1e4);
    family_config_number(c, far ? far : c->json, far ? "rope_theta" : "compress_rope_theta",
                         "deepseek4.attention.compress_rope_freq_base", 160000);
    struct json_object *r = far ? far : family_config_get(c->json, "rope_scaling");
    if (!r || c->s)
        return;
    struct json_object *type = family_config_get(r, "rope_type");
    type = type ? type : family_config_get(r, "type");
    const char *name = type ? json_object_get_string(type) : "none";
    name = strcmp(name, "default") ? name : "none";
    c->s = io_meta_set_str(c->out, "deepseek4.rope.scaling.type", name, strlen(name));
    if (!strcmp(name, "none"))
        return;
    family_config_number(c, r, "factor", "deepseek4.rope.scaling.factor", 1);
    family_config_whole(c, r, "original_max_position_embeddings",
                        "deepseek4.rope.scaling.original_context_length", 1);
    family_config_number(c, r, "beta_fast", "deepseek4.rope.scaling.yarn_beta_fast", 32);
    family_config_number(c, r, "beta_slow", "deepseek4.rope.scaling.yarn_beta_slow", 1);
}

static void expect_word(struct family_config *c, const char *key, const char *word)
{
    struct json_object *v = family_config_get(c->json, key);
    if (v && strcmp(json_object_get_string(v), word) && !c->s)
        c->s = err_set(c->err, INGLE_UNSUP, "config.json: '%s' is '%s', expected '%s'", key,
                       json_object_get_string(v), word);
}

ingle_status family_deepseek4_config(struct json_object *config, struct io_meta *out,
                                     const struct report_sink *sink, struct err *err)
{
    struct family_config c = {config, out, sink, INGLE_OK, err};
    c.s = family_keys_check_config(config, family_deepseek4_config_keys, sink, err);
    if (c.s)
        return c.s;
    for (size_t i = 0; i < sizeof whole_keys / sizeof *whole_keys; i++)
        family_config_whole(&c, config, whole_keys[i].hf, whole_keys[i].gguf,
                            whole_keys[i].fallback);
    for (size_t i = 0; i < sizeof number_keys / sizeof *number_keys; i++)
        family_config_number(&c, config, number_keys[i].hf, number_keys[i].gguf,
                             number_keys[i].fallback);
    expect_word(&c, "scoring_func", "sqrtsoftplus");
    expect_word(&c, "hidden_act", "silu");
    uint64_t n_layers = 0;
    if (!c.s)
        c.s = io_get_u64(out, "deepseek4.block_count", 1, 1024, &n_layers, err);
    ratios(&c, n_layers);
    check_mlps(&c);
    check_widths(&c);
    rope(&c);
    family_config_tie(&c, config, "deepseek4.tie_word_embeddings");
    struct json_object *limit = family_config_get(config, "swiglu_limit");
    if (limit)
        family_config_number(&c, config, "swiglu_limit", "deepseek4.swiglu_clamp_exp", 0);
    struct json_object *norm = family_config_get(config, "norm_topk_prob");
    if (!c.s)
        c.s = io_meta_set_bool(out, "deepseek4.expert_weights_norm",
                               !norm || json_object_get_boolean(norm));
    return c.s;
}

/* ---- and back ---- */

static void put_ratios(struct family_back *b)
{
    char key[FAMILY_BACK_KEY];
    const struct io_value *v = io_meta_find(
        io_metadata(b->file), family_back_key(b, "deepseek4.attention.compress_ratios", key));
    struct json_object *list = json_object_new_array();
    for (size_t i = 0; list && v && v->kind == IO_ARRAY && i < v->n; i++)
        family_back_add(b, list,
                        json_object_new_int64(v->elem == IO_I64 ? io_array_i64(v, i)
                                                                : (int64_t)io_array_u64(v, i)));
    family_back_put(b, b->json, "compress_ratios", list);
}

static void put_rope(struct family_back *b)
{
    const char *type;
    char key[FAMILY_BACK_KEY];
    size_t n;
    family_back_number(b, b->json, "rope_theta", "deepseek4.rope.freq_base");
    family_back_number(b, b->json, "compress_rope_theta",
                       "deepseek4.attention.compress_rope_freq_base");
    if (io_get_str(io_metadata(b->file), family_back_key(b, "deepseek4.rope.scaling.type", key),
                   &type, &n, NULL) ||
        (n == 4 && !memcmp(type, "none", 4)))
        return;
    struct json_object *r = family_back_object(b, b->json, "rope_scaling");
    family_back_put(b, r, "type", json_object_new_string_len(type, (int)n));
    family_back_number(b, r, "factor", "deepseek4.rope.scaling.factor");
    family_back_whole(b, r, "original_max_position_embeddings",
                      "deepseek4.rope.scaling.original_context_length");
    family_back_number(b, r, "beta_fast", "deepseek4.rope.scaling.yarn_beta_fast");
    family_back_number(b, r, "beta_slow", "deepseek4.rope.scaling.yarn_beta_slow");
}

ingle_status family_deepseek4_to_config(const struct io_file *file, struct json_object *out,
                                        struct err *err)
{
    struct family_back b = {file, out, INGLE_OK, err};
    char key[FAMILY_BACK_KEY];
    double limit;
    bool norm = true;
    family_back_begin(&b, "DeepseekV4ForCausalLM", "deepseek_v4");
    for (size_t i = 0; i < sizeof whole_keys / sizeof *whole_keys; i++)
        if (strcmp(whole_keys[i].hf, "vocab_size") != 0)
            family_back_whole(&b, out, whole_keys[i].hf, whole_keys[i].gguf);
    for (size_t i = 0; i < sizeof number_keys / sizeof *number_keys; i++)
        family_back_number(&b, out, number_keys[i].hf, number_keys[i].gguf);
    put_ratios(&b);
    put_rope(&b);
    if (!io_get_f64s(io_metadata(file), family_back_key(&b, "deepseek4.swiglu_clamp_exp", key), 1,
                     0, 1e30, &limit, NULL) &&
        limit > 0)
        family_back_put(&b, out, "swiglu_limit", family_back_decimal(limit));
    if (io_get_bool(io_metadata(file), family_back_key(&b, "deepseek4.expert_weights_norm", key),
                    &norm, NULL))
        norm = true;
    family_back_put(&b, out, "norm_topk_prob", json_object_new_boolean(norm));
    family_back_text(&b, out, "scoring_func", "sqrtsoftplus");
    family_back_text(&b, out, "topk_method", "noaux_tc");
    family_back_text(&b, out, "hidden_act", "silu");
    return b.s;
}
