/* SPDX-License-Identifier: Apache-2.0 */
/* gemma4_hf - config.json and tensor names of the published checkpoints, in GGUF's terms. */
#include "family/gemma4.h"

#include "base/mem.h"
#include "family/hf/config.h"
#include "family/keys.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static const struct { const char *hf, *gguf; } names[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
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

/* `end`, what stands after the name of a stack in the checkpoint, as it stands after "X". */
static bool stack_end(const char *end, char *out, size_t n_out)
{
    snprintf(out, n_out, "%s%s", *end == '_' && strncmp(end, "_weight", 7) != 0 ? ".weight" : "",
             end);
    if (*out == '_')
        *out = '.'; /* _weight_scale */
    return family_config_is_weight(out);
}

static const struct { const char *hf, *gguf;
} expert_names[] = {{"gate_proj", "ffn_gate_exps"},
                    {"up_proj", "ffn_up_exps"},
                    {"down_proj", "ffn_down_exps"},
                    {"gate_up_proj", "ffn_gate_up_exps"}};

/* Experts that are tensors of their own. */
static bool rename_expert(const char *name, const char *prefix, char *out, size_t n_out)
{
    unsigned expert;
    int used = 0;
    if (sscanf(name, "experts.%5u.%n", &expert, &used) != 1 || !used)
        return false;
    for (size_t i = 0; i < sizeof expert_names / sizeof *expert_names; i++) {
        const size_t n = strlen(expert_names[i].hf);
        if (!strncmp(name + used, expert_names[i].hf, n) &&
            family_config_is_weight(name + used + n)) {
            snprintf(out, n_out, "%s%s.%u%s", prefix, expert_names[i].gguf, expert,
                     name + used + n);
            return true;
        }
    }
    return false;
}

/* A name of one of the lists, or of what belongs to a matrix of them. */
static bool rename_one(const char *name, const char *hf, const char *gguf, const char *prefix,
                       char *out, size_t n_out)
{
    const size_t n = strlen(hf);
    char end[64];
    if (family_config_rename(name, hf, gguf, prefix, out, n_out))
        return true;
    if (strncmp(hf, "experts.", 8) != 0 || strncmp(name, hf, n) != 0 ||
        !stack_end(name + n, end, sizeof end))
        return false;
    snprintf(out, n_out, "%s%.*s%s", prefix, (int)(strlen(gguf) - strlen(".weight")), gguf, end);
    return true;
}

bool family_gemma4_rename(const char *name, char *out, size_t n_out)
{
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                           "model.", "language_model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) {
            name += strlen(prefixes[i]);
            break;
        }
    unsigned layer;
    int used = 0;
    if (sscanf(name, "layers.%5u.%n", &layer, &used) == 1 && used) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "blk.%u.", layer);
        for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++)
            if (rename_one(name + used, layer_names[i].hf, layer_names[i].gguf, prefix, out, n_out))
                return true;
        return rename_expert(name + used, prefix, out, n_out);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (rename_one(name, names[i].hf, names[i].gguf, "", out, n_out))
            return true;
    return false;
}

bool family_gemma4_hf_name(const char *name, char *out, size_t n_out)
{
    unsigned layer, expert;
    int used = 0, end = 0;
    if (sscanf(name, "blk.%5u.%n", &layer, &used) != 1 || !used) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (!strcmp(name, names[i].gguf)) {
                snprintf(out, n_out, "%s%s", strcmp(names[i].hf, "lm_head.weight") ? "model." : "",
                         names[i].hf);
                return true;
            }
        return false;
    }
    for (size_t i = 0; i < sizeof expert_names / sizeof *expert_names; i++) {
        const size_t n = strlen(expert_names[i].gguf);
        if (!strncmp(name + used, expert_names[i].gguf, n) &&
            sscanf(name + used + n, ".%5u.weight%n", &expert, &end) == 1 && end &&
            !name[used + (int)n + end]) {
            snprintf(out, n_out, "model.layers.%u.experts.%u.%s.weight", layer, expert,
                     expert_names[i].hf);
            return true;
        }
    }
    for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++)
        if (!strcmp(name + used, layer_names[i].gguf)) {
            snprintf(out, n_out, "model.layers.%u.%s", layer, layer_names[i].hf);
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
    {"sliding_window", "gemma4.attention.sliding_window", -1},
    {"hidden_size_per_layer_input", "gemma4.embedding_length_per_layer_input", 0},
};

/* What differs between layers: kind, key heads, width of a head, MLP width. */
struct layer_lists {
    uint64_t n;
    bool *sliding;
    uint64_t *heads, *head, *ff;
};

/* transformers 5.15 and later: 'per_layer_config' has what is not as for all, by the layer's
 * index. */
static void overrides(struct family_config *c, struct layer_lists *l)
{
    static const char name[] = "per_layer_config";
    struct json_object *all = family_config_get(c->json, name);
    if (!all || c->s)
        return;
    if (!json_object_is_type(all, json_type_object)) {
        c->s = err_set(c->err, INGLE_FORMAT, "config.json: '%s' is no object", name);
        return;
    }
    json_object_object_foreach(all, key, one)
    {
        char *end;
        const uint64_t i = strtoull(key, &end, 10);
        if (*end || !*key || i >= l->n || !json_object_is_type(one, json_type_object)) {
            c->s = err_set(c->err, INGLE_FORMAT,
                           "config.json: '%s' has '%.40s', which is none of %llu layers", name, key,
                           (unsigned long long)l->n);
            return;
        }
        json_object_object_foreach(one, member, value)
        {
            uint64_t *to = !strcmp(member, "num_key_value_heads") ? &l->heads[i]
                           : !strcmp(member, "head_dim")          ? &l->head[i]
                           : !strcmp(member, "intermediate_size") ? &l->ff[i]
                                                                  : NULL;
            (void)value;
            if (to)
                *to = family_config_read(c, one, member, -1);
            else if (!c->s)
                c->s = err_set(c->err, INGLE_UNSUP,
                               "config.json: '%s.%s' has '%.40s', supported are head_dim, "
                               "num_key_value_heads and intermediate_size",
                               name, key, member);
        }
    }
}

/* The width of a head of one kind of layer, which all of them must have; fallback: there is
 * none. */
static void head_width(struct family_config *c, const struct layer_lists *l, bool sliding,
                       const char *gguf, uint64_t fallback)
{
    uint64_t width = 0;
    for (uint64_t i = 0; i < l->n && !c->s; i++) {
        if (l->sliding[i] != sliding)
            continue;
        if (width && l->head[i] != width)
            c->s = err_set(
                c->err, INGLE_UNSUP,
                "config.json: 'head_dim' of layer %llu is %llu, that of other %s layers %llu",
                (unsigned long long)i, (unsigned long long)l->head[i], sliding ? "sliding" : "full",
                (unsigned long long)width);
        width = l->head[i];
    }
    family_config_set(c, gguf, width ? width : fallback);
}

static void read_layers(struct family_config *c, struct layer_lists *l, struct json_object *types,
                        uint64_t n_shared)
{
    const uint64_t n = l->n, kv = family_config_read(c, c->json, "num_key_value_heads", -1);
    const bool k_is_v = family_config_flag(c, "attention_k_eq_v");
    const uint64_t kv_full =
        k_is_v ? family_config_read(c, c->json, "num_global_key_value_heads", (int64_t)kv) : kv;
    const uint64_t ff = family_config_read(c, c->json, "intermediate_size", -1);
    const uint64_t head = family_config_read(c, c->json, "head_dim", -1);
    const uint64_t head_full = family_config_read(c, c->json, "global_head_dim", (int64_t)head);
    for (uint64_t i = 0; !c->s && i < n; i++) {
        const char *t = json_object_get_string(json_object_array_get_idx(types, i));
        l->sliding[i] = t && !strcmp(t, "sliding_attention");
        if (!l->sliding[i] && (!t || strcmp(t, "full_attention")))
            c->s =
                err_set(c->err, INGLE_UNSUP, "config.json: 'layer_types' has '%s' for layer %llu",
                        t ? t : "null", (unsigned long long)i);
        l->heads[i] = l->sliding[i] ? kv : kv_full;
        l->head[i] = l->sliding[i] ? head : head_full;
        l->ff[i] = family_config_flag(c, "use_double_wide_mlp") && i + n_shared >= n ? 2 * ff : ff;
    }
    overrides(c, l);
    head_width(c, l, false, "gemma4.attention.key_length", head_full);
    head_width(c, l, true, "gemma4.attention.key_length_swa", head);
    if (!c->s && family_config_get(c->json, "attention_k_eq_v"))
        c->s = io_meta_set_bool(c->out, "gemma4.attention.k_eq_v", k_is_v);
}

static void layers(struct family_config *c, uint64_t n_layers)
{
    struct json_object *types = family_config_get(c->json, "layer_types");
    if (c->s)
        return;
    if (!json_object_is_type(types, json_type_array) ||
        json_object_array_length(types) != n_layers) {
        c->s = err_set(c->err, INGLE_FORMAT, "config.json: 'layer_types' is no list of %llu layers",
                       (unsigned long long)n_layers);
        return;
    }
    struct layer_lists l = {.n = n_layers};
    const uint64_t n_shared = family_config_read(c, c->json, "num_kv_shared_layers", 0);
    l.sliding = mem_calloc(n_layers, sizeof *l.sliding);
    l.heads = mem_calloc(3 * n_layers, sizeof *l.heads);
    if (l.sliding && l.heads) {
        l.head = l.heads + n_layers;
        l.ff = l.head + n_layers;
        read_layers(c, &l, types, n_shared);
    } else {
        c->s = err_set(c->err, INGLE_NOMEM, "no memory for config.json");
    }
    if (!c->s)
        c->s = io_meta_set_bools(c->out, "gemma4.attention.sliding_window_pattern", l.sliding,
                                 n_layers);
    if (!c->s)
        c->s = io_meta_set_u64s(c->out, "gemma4.attention.head_count_kv", l.heads, n_layers);
    if (!c->s)
        c->s = io_meta_set_u64s(c->out, "gemma4.feed_forward_length", l.ff, n_layers);
    mem_free(l.sliding);
    mem_free(l.heads);
    family_config_set(c, "gemma4.attention.shared_kv_layers", n_shared);
}

/* Rotations of one kind of layer; with the type `scaled` all frequencies are divided by
 * 'factor'. */
static void rope_of(struct family_config *c, struct json_object *r, const char *kind,
                    const char *type, const char *scaled, const char *gguf)
{
    struct json_object *v = family_config_get(r, "rope_type"),
                       *factor = family_config_get(r, "factor");
    const char *is = v ? json_object_get_string(v) : type;
    const bool divides = !strcmp(is, scaled);
    if (c->s)
        return;
    if (strcmp(is, type) && !divides)
        c->s = err_set(
            c->err, INGLE_UNSUP,
            "config.json: 'rope_parameters.%s.rope_type' is '%.40s', supported is '%s'%s%s%s", kind,
            is, type, strcmp(type, scaled) ? " or '" : "", strcmp(type, scaled) ? scaled : "",
            strcmp(type, scaled) ? "'" : "");
    else if (factor && divides)
        family_config_number(c, r, "factor", gguf, 1);
    else if (factor && json_object_get_double(factor) - 1 != 0)
        c->s = err_set(
            c->err, INGLE_UNSUP,
            "config.json: 'rope_parameters.%s.factor' is %.40s with rope_type '%s', supported is "
            "1 or rope_type '%s'",
            kind, json_object_get_string(factor), is, scaled);
}

static void rope(struct family_config *c)
{
    struct json_object *r = family_config_get(c->json, "rope_parameters");
    struct json_object *full = family_config_get(r, "full_attention"),
                       *sliding = family_config_get(r, "sliding_attention");
    rope_of(c, full, "full_attention", "proportional", "proportional",
            "gemma4.rope.proportional_factor");
    rope_of(c, sliding, "sliding_attention", "default", "linear", "gemma4.rope.linear_factor_swa");
    family_config_number(c, full, "rope_theta", "gemma4.rope.freq_base", 1e6);
    family_config_number(c, sliding, "rope_theta", "gemma4.rope.freq_base_swa", 1e4);
    family_config_number(c, full, "partial_rotary_factor", "gemma4.rope.partial_rotary_factor",
                         0.25);
}

ingle_status family_gemma4_config(struct json_object *config, struct io_meta *out,
                                     const struct report_sink *sink, struct err *err)
{
    struct json_object *text = family_config_get(config, "text_config");
    struct family_config c = {text ? text : config, out, sink, INGLE_OK, err};
    c.s = family_keys_check_config(config, family_gemma4_config_keys, sink, err);
    if (c.s)
        return c.s;
    const uint64_t n_layers = family_config_read(&c, c.json, "num_hidden_layers", -1);
    if (!c.s && (n_layers < 1 || n_layers > 1024))
        return err_set(err, INGLE_FORMAT,
                       "config.json: 'num_hidden_layers' is %llu, expected 1 to 1024",
                       (unsigned long long)n_layers);
    family_config_set(&c, "gemma4.block_count", n_layers);
    for (size_t i = 0; i < sizeof whole_keys / sizeof *whole_keys; i++)
        family_config_whole(&c, c.json, whole_keys[i].hf, whole_keys[i].gguf,
                            whole_keys[i].fallback);
    family_config_number(&c, c.json, "rms_norm_eps", "gemma4.attention.layer_norm_rms_epsilon",
                         1e-6);
    family_config_number(&c, c.json, "final_logit_softcapping", "gemma4.final_logit_softcapping",
                         0);
    if (family_config_flag(&c, "enable_moe_block")) {
        family_config_whole(&c, c.json, "num_experts", "gemma4.expert_count", -1);
        family_config_whole(&c, c.json, "top_k_experts", "gemma4.expert_used_count", -1);
        family_config_whole(&c, c.json, "moe_intermediate_size",
                            "gemma4.expert_feed_forward_length", -1);
    }
    layers(&c, n_layers);
    rope(&c);
    struct json_object *both = NULL;
    if (!c.s && json_object_object_get_ex(c.json, "use_bidirectional_attention", &both)) {
        const char *word = json_object_get_string(both);
        const uint64_t ple = family_config_read(&c, c.json, "hidden_size_per_layer_input", 0);
        if (!c.s && (word && strcmp(word, "vision") == 0) == (ple != 0))
            c.s = io_meta_set_bool(out, "gemma4.attention.vision_unusual", true);
    }
    family_config_tie(&c, config, "gemma4.tie_word_embeddings");
    return c.s;
}

/* ---- and back ---- */

struct back_layers {
    uint64_t n, n_shared;
    bool *sliding;
    uint64_t *heads, *ff;
};

static void put_override(struct family_back *b, uint64_t layer, const char *key, uint64_t v)
{
    char name[24];
    struct json_object *all = family_config_get(b->json, "per_layer_config"), *one = NULL;
    snprintf(name, sizeof name, "%llu", (unsigned long long)layer);
    all = all ? all : family_back_object(b, b->json, "per_layer_config");
    if (all && !json_object_object_get_ex(all, name, &one))
        one = family_back_object(b, all, name);
    family_back_put(b, one, key, json_object_new_int64((int64_t)v));
}

/* The first layer of a kind that has keys and values of its own; n: there is none. */
static uint64_t first_of(const struct back_layers *l, bool sliding)
{
    uint64_t i = 0;
    while (i < l->n && l->sliding[i] != sliding)
        i++;
    return i;
}

static void put_heads(struct family_back *b, const struct back_layers *l)
{
    const uint64_t full = first_of(l, false), near = first_of(l, true);
    char name[48];
    snprintf(name, sizeof name, "blk.%llu.attn_v.weight", (unsigned long long)full);
    const bool k_is_v = full < l->n && !io_tensor_find(b->file, name);
    const uint64_t kv = l->heads[near < l->n ? near : 0], kv_full = k_is_v ? l->heads[full] : kv;
    family_back_put(b, b->json, "num_key_value_heads", json_object_new_int64((int64_t)kv));
    family_back_put(b, b->json, "attention_k_eq_v", json_object_new_boolean(k_is_v));
    if (k_is_v)
        family_back_put(b, b->json, "num_global_key_value_heads",
                        json_object_new_int64((int64_t)kv_full));
    for (uint64_t i = 0; i < l->n; i++)
        if (l->heads[i] != (l->sliding[i] ? kv : kv_full))
            put_override(b, i, "num_key_value_heads", l->heads[i]);
}

static void put_widths(struct family_back *b, const struct back_layers *l)
{
    const uint64_t ff = l->ff[0];
    const bool wide = l->n_shared && l->n_shared < l->n && l->ff[l->n - 1] == 2 * ff;
    family_back_put(b, b->json, "intermediate_size", json_object_new_int64((int64_t)ff));
    family_back_put(b, b->json, "use_double_wide_mlp", json_object_new_boolean(wide));
    for (uint64_t i = 0; i < l->n; i++)
        if (l->ff[i] != (wide && i + l->n_shared >= l->n ? 2 * ff : ff))
            put_override(b, i, "intermediate_size", l->ff[i]);
}

static void put_layers(struct family_back *b)
{
    const struct io_meta *meta = io_metadata(b->file);
    char key[FAMILY_BACK_KEY];
    struct back_layers l = {.n_shared = family_back_get(b, "gemma4.attention.shared_kv_layers", 0)};
    if (b->s)
        return;
    b->s = io_get_u64(meta, family_back_key(b, "gemma4.block_count", key), 1, 1024, &l.n, b->err);
    if (b->s)
        return;
    struct json_object *types = json_object_new_array();
    l.sliding = mem_calloc(l.n, sizeof *l.sliding);
    l.heads = mem_calloc(2 * l.n, sizeof *l.heads);
    if (!l.sliding || !l.heads || !types) {
        b->s = err_set(b->err, INGLE_NOMEM, "no memory for config.json");
        json_object_put(types);
        mem_free(l.sliding);
        mem_free(l.heads);
        return;
    }
    l.ff = l.heads + l.n;
    b->s = io_get_bools(meta, family_back_key(b, "gemma4.attention.sliding_window_pattern", key),
                        l.n, l.sliding, b->err);
    if (!b->s)
        b->s = io_get_u64s(meta, family_back_key(b, "gemma4.attention.head_count_kv", key), l.n, 1,
                           65536, l.heads, b->err);
    if (!b->s)
        b->s = io_get_u64s(meta, family_back_key(b, "gemma4.feed_forward_length", key), l.n, 1,
                           UINT32_MAX, l.ff, b->err);
    for (uint64_t i = 0; i < l.n && !b->s; i++)
        family_back_add(
            b, types,
            json_object_new_string(l.sliding[i] ? "sliding_attention" : "full_attention"));
    family_back_put(b, b->json, "layer_types", types);
    if (!b->s) {
        put_heads(b, &l);
        put_widths(b, &l);
    }
    mem_free(l.sliding);
    mem_free(l.heads);
}

/* How many of a head's pairs turn: those whose frequency is not divided by a large number. */
double family_gemma4_turning_share(struct family_back *b)
{
    char key[FAMILY_BACK_KEY];
    enum { MOST = 65536 };
    const struct io_tensor *t = io_tensor_find(b->file, "rope_freqs.weight");
    double share = 0.25;
    if (io_get_f64(io_metadata(b->file),
                   family_back_key(b, "gemma4.rope.partial_rotary_factor", key), 0, 1, &share,
                   NULL))
        share = 0.25;
    if (b->s || !t || t->type != QUANT_F32 || !t->ne[0] || t->ne[0] > MOST)
        return share;
    float *f = mem_calloc((size_t)t->ne[0], sizeof *f);
    b->s = f ? io_read(b->file, t, 0, f, (size_t)t->ne[0] * sizeof *f, b->err)
             : err_set(b->err, INGLE_NOMEM, "no memory for config.json");
    uint64_t turns = 0;
    for (uint64_t i = 0; i < t->ne[0] && !b->s; i++)
        turns += f[i] < 1e20f;
    mem_free(f);
    return (double)turns / (double)t->ne[0];
}

static void put_rope(struct family_back *b)
{
    struct json_object *r = family_back_object(b, b->json, "rope_parameters");
    struct json_object *full = family_back_object(b, r, "full_attention"),
                       *near = family_back_object(b, r, "sliding_attention");
    char key[FAMILY_BACK_KEY];
    const bool scaled =
        io_meta_find(io_metadata(b->file),
                     family_back_key(b, "gemma4.rope.linear_factor_swa", key)) != NULL;
    family_back_text(b, full, "rope_type", "proportional");
    family_back_put(b, full, "partial_rotary_factor",
                    family_back_decimal(family_gemma4_turning_share(b)));
    family_back_number(b, full, "rope_theta", "gemma4.rope.freq_base");
    family_back_number(b, full, "factor", "gemma4.rope.proportional_factor");
    family_back_text(b, near, "rope_type", scaled ? "linear" : "default");
    family_back_number(b, near, "rope_theta", "gemma4.rope.freq_base_swa");
    family_back_number(b, near, "factor", "gemma4.rope.linear_factor_swa");
}

/* Where pictures see of themselves what they do not in others of the size. */
static void put_vision(struct family_back *b)
{
    char key[FAMILY_BACK_KEY];
    if (!io_meta_find(io_metadata(b->file),
                      family_back_key(b, "gemma4.attention.vision_unusual", key)))
        return;
    if (family_back_get(b, "gemma4.embedding_length_per_layer_input", 0))
        family_back_text(b, b->json, "use_bidirectional_attention", "vision");
    else if (!b->s && json_object_object_add(b->json, "use_bidirectional_attention", NULL) < 0)
        b->s = err_set(b->err, INGLE_NOMEM, "no memory for a configuration");
}

ingle_status family_gemma4_to_config(const struct io_file *file, struct json_object *out,
                                     struct err *err)
{
    struct family_back b = {file, out, INGLE_OK, err};
    const bool experts = family_back_get(&b, "gemma4.expert_count", 0) > 0;
    family_back_begin(&b, "Gemma4ForCausalLM", "gemma4_text");
    family_back_whole(&b, out, "num_hidden_layers", "gemma4.block_count");
    for (size_t i = 0; i < sizeof whole_keys / sizeof *whole_keys; i++)
        if (strcmp(whole_keys[i].hf, "vocab_size") != 0)
            family_back_whole(&b, out, whole_keys[i].hf, whole_keys[i].gguf);
    family_back_whole(&b, out, "head_dim", "gemma4.attention.key_length_swa");
    family_back_whole(&b, out, "global_head_dim", "gemma4.attention.key_length");
    family_back_put(&b, out, "num_kv_shared_layers",
                    json_object_new_int64(
                        (int64_t)family_back_get(&b, "gemma4.attention.shared_kv_layers", 0)));
    family_back_number(&b, out, "rms_norm_eps", "gemma4.attention.layer_norm_rms_epsilon");
    family_back_number(&b, out, "final_logit_softcapping", "gemma4.final_logit_softcapping");
    family_back_text(&b, out, "hidden_activation", "gelu_pytorch_tanh");
    family_back_put(&b, out, "enable_moe_block", json_object_new_boolean(experts));
    family_back_whole(&b, out, "num_experts", "gemma4.expert_count");
    family_back_whole(&b, out, "top_k_experts", "gemma4.expert_used_count");
    family_back_whole(&b, out, "moe_intermediate_size", "gemma4.expert_feed_forward_length");
    put_layers(&b);
    put_rope(&b);
    put_vision(&b);
    return b.s;
}
