/* SPDX-License-Identifier: Apache-2.0 */
/* gemma4_hf - config.json and tensor names of the published checkpoints, in GGUF's terms. */
#include "family/gemma4.h"

#include "base/mem.h"
#include "family/config.h"
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

static const struct { const char *hf, *gguf; int64_t fallback; } whole_keys[] = {
    {"hidden_size", "gemma4.embedding_length", -1},
    {"max_position_embeddings", "gemma4.context_length", 8192},
    {"vocab_size", "gemma4.vocab_size", -1},
    {"num_attention_heads", "gemma4.attention.head_count", -1},
    {"head_dim", "gemma4.attention.key_length_swa", -1},
    {"sliding_window", "gemma4.attention.sliding_window", -1},
    {"hidden_size_per_layer_input", "gemma4.embedding_length_per_layer_input", 0},
};

/* Layer kinds, and what differs between them: key heads and MLP width. */
static void layers(struct family_config *c, uint64_t n_layers)
{
    struct json_object *types = family_config_get(c->json, "layer_types");
    if (c->s)
        return;
    if (!json_object_is_type(types, json_type_array) || json_object_array_length(types) != n_layers) {
        c->s = err_set(c->err, INGLE_FORMAT, "config.json: 'layer_types' is no list of %llu layers",
                       (unsigned long long)n_layers);
        return;
    }
    const uint64_t kv = family_config_read(c, c->json, "num_key_value_heads", -1);
    const uint64_t kv_full =
        family_config_flag(c, "attention_k_eq_v") ? family_config_read(c, c->json, "num_global_key_value_heads", (int64_t)kv) : kv;
    const uint64_t ff = family_config_read(c, c->json, "intermediate_size", -1);
    const uint64_t n_shared = family_config_read(c, c->json, "num_kv_shared_layers", 0);
    bool *sliding = mem_calloc(n_layers, sizeof *sliding);
    uint64_t *heads = mem_calloc(n_layers, sizeof *heads), *width = mem_calloc(n_layers, sizeof *width);
    if (!sliding || !heads || !width)
        c->s = err_set(c->err, INGLE_NOMEM, "no memory for config.json");
    for (uint64_t i = 0; !c->s && i < n_layers; i++) {
        const char *t = json_object_get_string(json_object_array_get_idx(types, i));
        sliding[i] = t && !strcmp(t, "sliding_attention");
        if (!sliding[i] && (!t || strcmp(t, "full_attention")))
            c->s = err_set(c->err, INGLE_UNSUP, "config.json: 'layer_types' has '%s' for layer %llu",
                           t ? t : "null", (unsigned long long)i);
        heads[i] = sliding[i] ? kv : kv_full;
        width[i] = family_config_flag(c, "use_double_wide_mlp") && i + n_shared >= n_layers ? 2 * ff : ff;
    }
    if (!c->s)
        c->s = io_meta_set_bools(c->out, "gemma4.attention.sliding_window_pattern", sliding, n_layers);
    if (!c->s)
        c->s = io_meta_set_u64s(c->out, "gemma4.attention.head_count_kv", heads, n_layers);
    if (!c->s)
        c->s = io_meta_set_u64s(c->out, "gemma4.feed_forward_length", width, n_layers);
    mem_free(sliding);
    mem_free(heads);
    mem_free(width);
    family_config_set(c, "gemma4.attention.shared_kv_layers", n_shared);
}

static void rope(struct family_config *c)
{
    struct json_object *r = family_config_get(c->json, "rope_parameters");
    struct json_object *full = family_config_get(r, "full_attention"), *sliding = family_config_get(r, "sliding_attention");
    struct json_object *type = family_config_get(full, "rope_type");
    if (type && strcmp(json_object_get_string(type), "proportional") && !c->s)
        c->s = err_set(c->err, INGLE_UNSUP,
                       "config.json: 'rope_parameters.full_attention.rope_type' is '%s', expected 'proportional'",
                       json_object_get_string(type));
    family_config_number(c, full, "rope_theta", "gemma4.rope.freq_base", 1e6);
    family_config_number(c, sliding, "rope_theta", "gemma4.rope.freq_base_swa", 1e4);
    family_config_number(c, full, "partial_rotary_factor", "gemma4.rope.partial_rotary_factor", 0.25);
}

ingle_status family_gemma4_config(struct json_object *config, struct io_meta *out,
                                     const struct report_sink *sink, struct err *err)
{
    struct json_object *text = family_config_get(config, "text_config");
    struct family_config c = {text ? text : config, out, sink, INGLE_OK, err};
    const uint64_t n_layers = family_config_read(&c, c.json, "num_hidden_layers", -1);
    if (!c.s && (n_layers < 1 || n_layers > 1024))
        return err_set(err, INGLE_FORMAT, "config.json: 'num_hidden_layers' is %llu, expected 1 to 1024",
                       (unsigned long long)n_layers);
    const int64_t head = (int64_t)family_config_read(&c, c.json, "head_dim", -1);
    family_config_set(&c, "gemma4.block_count", n_layers);
    for (size_t i = 0; i < sizeof whole_keys / sizeof *whole_keys; i++)
        family_config_whole(&c, c.json, whole_keys[i].hf, whole_keys[i].gguf, whole_keys[i].fallback);
    family_config_whole(&c, c.json, "global_head_dim", "gemma4.attention.key_length", head);
    family_config_number(&c, c.json, "rms_norm_eps", "gemma4.attention.layer_norm_rms_epsilon", 1e-6);
    family_config_number(&c, c.json, "final_logit_softcapping", "gemma4.final_logit_softcapping", 0);
    if (family_config_flag(&c, "enable_moe_block")) {
        family_config_whole(&c, c.json, "num_experts", "gemma4.expert_count", -1);
        family_config_whole(&c, c.json, "top_k_experts", "gemma4.expert_used_count", -1);
        family_config_whole(&c, c.json, "moe_intermediate_size", "gemma4.expert_feed_forward_length", -1);
    }
    layers(&c, n_layers);
    rope(&c);
    return c.s;
}
