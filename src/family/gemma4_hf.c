/* SPDX-License-Identifier: Apache-2.0 */
/* gemma4_hf - config.json and tensor names of the published checkpoints, in GGUF's terms. */
#include "family/gemma4.h"

#include "base/mem.h"
#include <stdio.h>
#include <string.h>

/* ---- names ---- */

static const struct { const char *hf, *gguf; } names[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"norm.weight", "output_norm.weight"},
    {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
};

static const struct { const char *hf, *gguf; } layer_names[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"per_layer_input_gate.weight", "inp_gate.weight"},
    {"per_layer_projection.weight", "proj.weight"},
    {"post_per_layer_input_norm.weight", "post_norm.weight"},
    {"router.proj.weight", "ffn_gate_inp.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
};

bool family_gemma4_rename(const char *name, char *out, size_t n_out)
{
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) {
            name += strlen(prefixes[i]);
            break;
        }
    unsigned layer;
    int used = 0;
    if (sscanf(name, "layers.%5u.%n", &layer, &used) == 1 && used) {
        for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++)
            if (!strcmp(name + used, layer_names[i].hf)) {
                snprintf(out, n_out, "blk.%u.%s", layer, layer_names[i].gguf);
                return true;
            }
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i].hf)) {
            snprintf(out, n_out, "%s", names[i].gguf);
            return true;
        }
    return false;
}

/* ---- config.json ---- */

struct config {
    struct json_object *json;
    struct io_meta *out;
    ingle_status s; /* the first error; later calls do nothing */
    struct err *err;
};

static struct json_object *get(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    return json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, key, &v) ? v : NULL;
}

static void fail(struct config *c, ingle_status s)
{
    if (s && !c->s)
        c->s = s == INGLE_NOMEM ? err_set(c->err, s, "no memory for config.json") : s;
}

static bool is_whole(struct json_object *v)
{
    if (json_object_is_type(v, json_type_int))
        return json_object_get_int64(v) >= 0;
    const double f = json_object_get_double(v);
    return json_object_is_type(v, json_type_double) && f >= 0 && f < 9e15 && f <= (double)(int64_t)f &&
           f >= (double)(int64_t)f;
}

/* A whole number; absent or null: fallback, or an error when fallback is negative. */
static uint64_t whole(struct config *c, struct json_object *o, const char *key, int64_t fallback)
{
    struct json_object *v = get(o, key);
    if (v && is_whole(v))
        return json_object_is_type(v, json_type_int) ? (uint64_t)json_object_get_int64(v)
                                                     : (uint64_t)json_object_get_double(v);
    if (!v && fallback >= 0)
        return (uint64_t)fallback;
    if (!c->s)
        c->s = err_set(c->err, INGLE_FORMAT, "config.json: '%s' is %s, expected a whole number", key,
                       v ? json_object_get_string(v) : "missing");
    return 0;
}

static double number(struct config *c, struct json_object *o, const char *key, double fallback)
{
    struct json_object *v = get(o, key);
    if (!v)
        return fallback;
    if (!json_object_is_type(v, json_type_int) && !json_object_is_type(v, json_type_double) && !c->s)
        c->s = err_set(c->err, INGLE_FORMAT, "config.json: '%s' is %s, expected a number", key,
                       json_object_get_string(v));
    return json_object_get_double(v);
}

static bool flag(struct config *c, const char *key)
{
    struct json_object *v = get(c->json, key);
    return v && json_object_get_boolean(v);
}

static void set(struct config *c, const char *key, uint64_t v)
{
    if (!c->s)
        fail(c, io_meta_set_u64(c->out, key, v));
}

static void set_number(struct config *c, const char *key, double v)
{
    if (!c->s)
        fail(c, io_meta_set_f64(c->out, key, v));
}

/* Layer kinds, and what differs between them: key heads and MLP width. */
static void layers(struct config *c, uint64_t n_layers)
{
    struct json_object *types = get(c->json, "layer_types");
    if (c->s)
        return;
    if (!json_object_is_type(types, json_type_array) || json_object_array_length(types) != n_layers) {
        c->s = err_set(c->err, INGLE_FORMAT, "config.json: 'layer_types' is no list of %llu layers",
                       (unsigned long long)n_layers);
        return;
    }
    const uint64_t kv = whole(c, c->json, "num_key_value_heads", -1);
    const uint64_t kv_full =
        flag(c, "attention_k_eq_v") ? whole(c, c->json, "num_global_key_value_heads", (int64_t)kv) : kv;
    const uint64_t ff = whole(c, c->json, "intermediate_size", -1);
    const uint64_t n_shared = whole(c, c->json, "num_kv_shared_layers", 0);
    bool *sliding = mem_calloc(n_layers, sizeof *sliding);
    uint64_t *heads = mem_calloc(n_layers, sizeof *heads), *width = mem_calloc(n_layers, sizeof *width);
    if (!sliding || !heads || !width)
        fail(c, INGLE_NOMEM);
    for (uint64_t i = 0; !c->s && i < n_layers; i++) {
        const char *t = json_object_get_string(json_object_array_get_idx(types, i));
        sliding[i] = t && !strcmp(t, "sliding_attention");
        if (!sliding[i] && (!t || strcmp(t, "full_attention")))
            c->s = err_set(c->err, INGLE_UNSUP, "config.json: 'layer_types' has '%s' for layer %llu",
                           t ? t : "null", (unsigned long long)i);
        heads[i] = sliding[i] ? kv : kv_full;
        width[i] = flag(c, "use_double_wide_mlp") && i + n_shared >= n_layers ? 2 * ff : ff;
    }
    if (!c->s)
        fail(c, io_meta_set_bools(c->out, "gemma4.attention.sliding_window_pattern", sliding, n_layers));
    if (!c->s)
        fail(c, io_meta_set_u64s(c->out, "gemma4.attention.head_count_kv", heads, n_layers));
    if (!c->s)
        fail(c, io_meta_set_u64s(c->out, "gemma4.feed_forward_length", width, n_layers));
    mem_free(sliding);
    mem_free(heads);
    mem_free(width);
    set(c, "gemma4.attention.shared_kv_layers", n_shared);
}

static void rope(struct config *c)
{
    struct json_object *r = get(c->json, "rope_parameters");
    struct json_object *full = get(r, "full_attention"), *sliding = get(r, "sliding_attention");
    struct json_object *type = get(full, "rope_type");
    if (type && strcmp(json_object_get_string(type), "proportional") && !c->s)
        c->s = err_set(c->err, INGLE_UNSUP,
                       "config.json: 'rope_parameters.full_attention.rope_type' is '%s', expected 'proportional'",
                       json_object_get_string(type));
    set_number(c, "gemma4.rope.freq_base", number(c, full, "rope_theta", 1e6));
    set_number(c, "gemma4.rope.freq_base_swa", number(c, sliding, "rope_theta", 1e4));
    set_number(c, "gemma4.rope.partial_rotary_factor", number(c, full, "partial_rotary_factor", 0.25));
}

ingle_status family_gemma4_config(struct json_object *config, struct io_meta *out,
                                  struct err *err)
{
    struct json_object *text = get(config, "text_config");
    struct config c = {text ? text : config, out, INGLE_OK, err};
    const uint64_t n_layers = whole(&c, c.json, "num_hidden_layers", -1);
    if (!c.s && (n_layers < 1 || n_layers > 1024))
        return err_set(err, INGLE_FORMAT, "config.json: 'num_hidden_layers' is %llu, expected 1 to 1024",
                       (unsigned long long)n_layers);
    const uint64_t head = whole(&c, c.json, "head_dim", -1);
    set(&c, "gemma4.block_count", n_layers);
    set(&c, "gemma4.embedding_length", whole(&c, c.json, "hidden_size", -1));
    set(&c, "gemma4.context_length", whole(&c, c.json, "max_position_embeddings", 8192));
    set(&c, "gemma4.vocab_size", whole(&c, c.json, "vocab_size", -1));
    set(&c, "gemma4.attention.head_count", whole(&c, c.json, "num_attention_heads", -1));
    set(&c, "gemma4.attention.key_length_swa", head);
    set(&c, "gemma4.attention.key_length", whole(&c, c.json, "global_head_dim", (int64_t)head));
    set(&c, "gemma4.attention.sliding_window", whole(&c, c.json, "sliding_window", -1));
    set(&c, "gemma4.embedding_length_per_layer_input",
        whole(&c, c.json, "hidden_size_per_layer_input", 0));
    set_number(&c, "gemma4.attention.layer_norm_rms_epsilon", number(&c, c.json, "rms_norm_eps", 1e-6));
    set_number(&c, "gemma4.final_logit_softcapping",
               number(&c, c.json, "final_logit_softcapping", 0));
    if (flag(&c, "enable_moe_block")) {
        set(&c, "gemma4.expert_count", whole(&c, c.json, "num_experts", -1));
        set(&c, "gemma4.expert_used_count", whole(&c, c.json, "top_k_experts", -1));
        set(&c, "gemma4.expert_feed_forward_length", whole(&c, c.json, "moe_intermediate_size", -1));
    }
    layers(&c, n_layers);
    rope(&c);
    return c.s;
}
