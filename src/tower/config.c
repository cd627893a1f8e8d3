/* SPDX-License-Identifier: Apache-2.0 */
/* config - config.json and tensor names of a checkpoint, in the terms of an mmproj file. */
#include "tower/inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

struct reader {
    struct io_meta *out;
    const char *path;
    ingle_status s; /* the first error; later calls do nothing */
    struct err *err;
};

static struct json_object *member(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    if (!o || !json_object_is_type(o, json_type_object) || !json_object_object_get_ex(o, key, &v))
        return NULL;
    return v;
}

/* A whole number of o; absent: `other`, -1: an error. */
static int64_t whole(struct reader *r, struct json_object *o, const char *key, int64_t other)
{
    struct json_object *v = member(o, key);
    if (r->s)
        return 0;
    if (v && json_object_is_type(v, json_type_int))
        return json_object_get_int64(v);
    if (!v && other >= 0)
        return other;
    r->s = err_set(r->err, INGLE_FORMAT, "'%s': '%s' in config.json is %s, expected a whole number",
                   r->path, key, v ? json_object_to_json_string(v) : "missing");
    return 0;
}

static void set(struct reader *r, const char *key, int64_t v)
{
    if (!r->s && v < 0)
        r->s = err_set(r->err, INGLE_FORMAT, "'%s': '%s' is %lld", r->path, key, (long long)v);
    if (!r->s && io_meta_set_u64(r->out, key, (uint64_t)v))
        r->s = err_set(r->err, INGLE_NOMEM, "no memory for the configuration");
}

static void copy(struct reader *r, struct json_object *o, const char *key, const char *gguf)
{
    set(r, gguf, whole(r, o, key, -1));
}

/* Values that are constants of ingle's encoders. */
static void expect(struct reader *r, struct json_object *o, const char *key, double want)
{
    struct json_object *v = member(o, key);
    const double is = v ? json_object_get_double(v) : want;
    const bool number =
        !v || json_object_is_type(v, json_type_int) || json_object_is_type(v, json_type_double);
    if (!r->s && (!number || is < want || is > want))
        r->s =
            err_set(r->err, INGLE_UNSUP, "'%s': '%s' in config.json is %s: ingle computes with %g",
                    r->path, key, json_object_to_json_string(v), want);
}

static void expect_text(struct reader *r, struct json_object *o, const char *key, const char *want)
{
    struct json_object *v = member(o, key);
    if (!r->s && v && strcmp(json_object_get_string(v), want) != 0)
        r->s = err_set(r->err, INGLE_UNSUP,
                       "'%s': '%s' in config.json is '%s': ingle computes with '%s'", r->path, key,
                       json_object_get_string(v), want);
}

static void text(struct reader *r, const char *key, const char *v)
{
    if (!r->s && io_meta_set_str(r->out, key, v, strlen(v)))
        r->s = err_set(r->err, INGLE_NOMEM, "no memory for the configuration");
}

static void flag(struct reader *r, const char *key)
{
    if (!r->s && io_meta_set_bool(r->out, key, true))
        r->s = err_set(r->err, INGLE_NOMEM, "no memory for the configuration");
}

static void heads(struct reader *r, struct json_object *o)
{
    const int64_t n = whole(r, o, "num_attention_heads", -1), d = whole(r, o, "hidden_size", -1);
    if (!r->s && n < 1)
        r->s = err_set(r->err, INGLE_FORMAT, "'%s': 'num_attention_heads' in config.json is %lld",
                       r->path, (long long)n);
    if (r->s)
        return;
    const int64_t kv = whole(r, o, "num_key_value_heads", n), head = whole(r, o, "head_dim", d / n);
    if (!r->s && (kv != n || head > d || head * n != d))
        r->s = err_set(r->err, INGLE_UNSUP,
                       "'%s': config.json has %lld heads of width %lld, %lld of keys, in a width "
                       "of %lld: ingle computes heads that fill it",
                       r->path, (long long)n, (long long)head, (long long)kv, (long long)d);
}

static void vision(struct reader *r, struct json_object *v)
{
    heads(r, v);
    copy(r, v, "hidden_size", "clip.vision.embedding_length");
    copy(r, v, "intermediate_size", "clip.vision.feed_forward_length");
    copy(r, v, "num_hidden_layers", "clip.vision.block_count");
    copy(r, v, "num_attention_heads", "clip.vision.attention.head_count");
    expect(r, member(v, "rope_parameters"), "rope_theta", 100);
    expect(r, v, "rms_norm_eps", 1e-6);
    expect_text(r, v, "hidden_activation", "gelu_pytorch_tanh");
    text(r, "clip.vision.projector_type", "gemma4v");
}

static void patches(struct reader *r, struct json_object *v)
{
    copy(r, v, "mm_embed_dim", "clip.vision.embedding_length");
    set(r, "clip.vision.feed_forward_length", 0);
    set(r, "clip.vision.block_count", 0);
    set(r, "clip.vision.attention.head_count", 0);
    text(r, "clip.vision.projector_type", "gemma4uv");
}

static void conformer(struct reader *r, struct json_object *a)
{
    const int64_t d = whole(r, a, "hidden_size", -1);
    set(r, "clip.audio.embedding_length", d);
    set(r, "clip.audio.feed_forward_length", d < INT64_MAX / 4 ? 4 * d : d);
    copy(r, a, "num_hidden_layers", "clip.audio.block_count");
    copy(r, a, "num_attention_heads", "clip.audio.attention.head_count");
    expect(r, a, "conv_kernel_size", 5);
    expect(r, a, "attention_chunk_size", 12);
    expect(r, a, "attention_context_left", 13);
    expect(r, a, "attention_context_right", 0);
    expect(r, a, "attention_logit_cap", 50);
    expect(r, a, "residual_weight", 0.5);
    expect_text(r, a, "hidden_act", "silu");
    text(r, "clip.audio.projector_type", "gemma4a");
}

static void frames(struct reader *r, struct json_object *a)
{
    expect(r, a, "audio_embed_dim", TOWER_FRAME);
    set(r, "clip.audio.embedding_length", TOWER_FRAME);
    set(r, "clip.audio.feed_forward_length", 0);
    set(r, "clip.audio.block_count", 0);
    set(r, "clip.audio.attention.head_count", 0);
    text(r, "clip.audio.projector_type", "gemma4ua");
}

/* Soft tokens of a picture, if nobody says otherwise. */
static void budget(struct reader *r, struct json_object *config, struct json_object *processor)
{
    struct json_object *const where[] = {member(processor, "image_processor"), config,
                                         member(config, "vision_config"),
                                         member(config, "vision_config")};
    static const char *const key[] = {"max_soft_tokens", "vision_soft_tokens_per_image",
                                      "default_output_length", "num_soft_tokens"};
    for (int i = 0; i < 4 && !r->s; i++) {
        struct json_object *v = member(where[i], key[i]);
        if (!v)
            continue;
        set(r, "clip.vision.default_tokens", whole(r, where[i], key[i], -1));
        return;
    }
}

ingle_status tower_config(struct json_object *config, struct json_object *processor,
                          struct io_meta *out, const char *path, struct err *err)
{
    struct reader r = {out, path, INGLE_OK, err};
    struct json_object *v = member(config, "vision_config"), *a = member(config, "audio_config"),
                       *type = member(config, "model_type"), *t = member(config, "text_config");
    const char *name = type ? json_object_get_string(type) : "";
    const bool unified = !strcmp(name, "gemma4_unified");
    if (!unified && strcmp(name, "gemma4") != 0)
        return err_set(err, INGLE_UNSUP,
                       "'%s': 'model_type' in config.json is '%.40s': ingle reads the encoders of "
                       "'gemma4' and 'gemma4_unified'",
                       path, name);
    const int64_t width = whole(&r, t ? t : config, "hidden_size", -1);
    if (v) {
        flag(&r, "clip.has_vision_encoder");
        set(&r, "clip.vision.projection_dim", width);
        copy(&r, v, "patch_size", "clip.vision.patch_size");
        set(&r, "clip.vision.projector.scale_factor", whole(&r, v, "pooling_kernel_size", 3));
        (unified ? patches : vision)(&r, v);
        budget(&r, config, processor);
    }
    if (a) {
        flag(&r, "clip.has_audio_encoder");
        set(&r, "clip.audio.projection_dim", width);
        (unified ? frames : conformer)(&r, a);
    }
    return r.s;
}

/* ---- names ---- */

struct pair {
    const char *hf, *gguf;
};

static const struct pair whole_names[] = {
    {"vision_tower.patch_embedder.input_proj.weight", "v.patch_embd.weight"},
    {"vision_tower.patch_embedder.position_embedding_table", "v.position_embd.weight"},
    {"vision_tower.std_bias", "v.std_bias"},
    {"vision_tower.std_scale", "v.std_scale"},
    {"embed_vision.embedding_projection.weight", "mm.input_projection.weight"},
    {"vision_embedder.patch_ln1.weight", "v.patch_norm.1.weight"},
    {"vision_embedder.patch_ln1.bias", "v.patch_norm.1.bias"},
    {"vision_embedder.patch_ln2.weight", "v.patch_norm.2.weight"},
    {"vision_embedder.patch_ln2.bias", "v.patch_norm.2.bias"},
    {"vision_embedder.pos_norm.weight", "v.patch_norm.3.weight"},
    {"vision_embedder.pos_norm.bias", "v.patch_norm.3.bias"},
    {"vision_embedder.patch_dense.weight", "v.patch_embd.weight"},
    {"vision_embedder.patch_dense.bias", "v.patch_embd.bias"},
    {"vision_embedder.pos_embedding", "v.position_embd.weight"},
    {"embed_audio.embedding_projection.weight", "mm.a.input_projection.weight"},
    {"audio_tower.subsample_conv_projection.layer0.conv.weight", "a.conv1d.0.weight"},
    {"audio_tower.subsample_conv_projection.layer0.norm.weight", "a.conv1d.0.norm.weight"},
    {"audio_tower.subsample_conv_projection.layer1.conv.weight", "a.conv1d.1.weight"},
    {"audio_tower.subsample_conv_projection.layer1.norm.weight", "a.conv1d.1.norm.weight"},
    {"audio_tower.subsample_conv_projection.input_proj_linear.weight", "a.input_projection.weight"},
    {"audio_tower.output_proj.weight", "a.pre_encode.out.weight"},
    {"audio_tower.output_proj.bias", "a.pre_encode.out.bias"},
};

/* Of a layer: names without an end have ".linear.weight" or bounds there. */
static const struct pair vision_names[] = {
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_out"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"input_layernorm.weight", "ln1.weight"},
    {"post_attention_layernorm.weight", "attn_post_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ln2.weight"},
    {"post_feedforward_layernorm.weight", "ffn_post_norm.weight"},
};
static const struct pair audio_names[] = {
    {"feed_forward1.ffw_layer_1", "ffn_up"},
    {"feed_forward1.ffw_layer_2", "ffn_down"},
    {"feed_forward1.pre_layer_norm.weight", "ffn_norm.weight"},
    {"feed_forward1.post_layer_norm.weight", "ffn_post_norm.weight"},
    {"feed_forward2.ffw_layer_1", "ffn_up_1"},
    {"feed_forward2.ffw_layer_2", "ffn_down_1"},
    {"feed_forward2.pre_layer_norm.weight", "ffn_norm_1.weight"},
    {"feed_forward2.post_layer_norm.weight", "ffn_post_norm_1.weight"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.post", "attn_out"},
    {"self_attn.relative_k_proj.weight", "attn_k_rel.weight"},
    {"self_attn.per_dim_scale", "per_dim_scale.weight"},
    {"norm_pre_attn.weight", "attn_pre_norm.weight"},
    {"norm_post_attn.weight", "attn_post_norm.weight"},
    {"norm_out.weight", "ln2.weight"},
    {"lconv1d.linear_start", "conv_pw1"},
    {"lconv1d.linear_end", "conv_pw2"},
    {"lconv1d.depthwise_conv1d.weight", "conv_dw.weight"},
    {"lconv1d.pre_layer_norm.weight", "conv_norm.weight"},
    {"lconv1d.conv_norm.weight", "norm_conv.weight"},
};
static const char *const linear_ends[][2] = {
    {".linear.weight", ".weight"}, {".weight", ".weight"},         {".input_min", ".input_min"},
    {".input_max", ".input_max"},  {".output_min", ".output_min"}, {".output_max", ".output_max"},
};

static bool rename_one(const char *name, const struct pair *p, const char *prefix, char *out,
                       size_t n_out)
{
    const size_t n = strlen(p->hf);
    if (strncmp(name, p->hf, n) != 0)
        return false;
    if (!name[n]) {
        snprintf(out, n_out, "%s%s", prefix, p->gguf);
        return true;
    }
    if (strchr(p->gguf, '.')) /* a name with its end */
        return false;
    for (size_t i = 0; i < sizeof linear_ends / sizeof *linear_ends; i++)
        if (!strcmp(name + n, linear_ends[i][0])) {
            snprintf(out, n_out, "%s%s%s", prefix, p->gguf, linear_ends[i][1]);
            return true;
        }
    return false;
}

static bool rename_layer(const char *name, const char *hf, char letter, const struct pair *p,
                         size_t n, char *out, size_t n_out)
{
    char *end, prefix[32];
    const size_t skip = strlen(hf);
    if (strncmp(name, hf, skip) != 0 || name[skip] < '0' || name[skip] > '9')
        return false;
    const unsigned long il = strtoul(name + skip, &end, 10);
    if (*end != '.' || il >= TOWER_MAX_LAYERS)
        return false;
    snprintf(prefix, sizeof prefix, "%c.blk.%lu.", letter, il);
    for (size_t i = 0; i < n; i++)
        if (rename_one(end + 1, &p[i], prefix, out, n_out))
            return true;
    return false;
}

bool tower_is_matrix(const struct io_tensor *t)
{
    static const char *const other[] = {"v.patch_embd.", "v.position_embd.", "a.conv1d.",
                                        "a.input_projection.", ".conv_dw."};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (*other[i] == '.' ? strstr(t->name, other[i]) != NULL
                             : !strncmp(t->name, other[i], strlen(other[i])))
            return false;
    const size_t n = strlen(t->name);
    return t->n_dims == 2 && n > 7 && !strcmp(t->name + n - 7, ".weight");
}

bool tower_rename(const char *name, char *out, size_t n_out)
{
    if (strncmp(name, "model.", 6) != 0)
        return false;
    name += 6;
    for (size_t i = 0; i < sizeof whole_names / sizeof *whole_names; i++)
        if (!strcmp(name, whole_names[i].hf)) {
            snprintf(out, n_out, "%s", whole_names[i].gguf);
            return true;
        }
    return rename_layer(name, "vision_tower.encoder.layers.", 'v', vision_names,
                        sizeof vision_names / sizeof *vision_names, out, n_out) ||
           rename_layer(name, "audio_tower.layers.", 'a', audio_names,
                        sizeof audio_names / sizeof *audio_names, out, n_out);
}
