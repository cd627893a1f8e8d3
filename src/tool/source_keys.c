/* SPDX-License-Identifier: Apache-2.0 */
/* source_keys - config.json as the metadata that llama.cpp reads. */
#include "base/json.h"
#include "base/mem.h"
#include "tool/source_impl.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SIDE_LIMIT = 16 << 20, MAX_LAYERS = 1024 };

struct keys {
    const struct tool_source *s;
    struct io_meta *to;
    char arch[32];
    ingle_status st;
    struct err *err;
};

static const char *full(const struct keys *k, const char *key, char out[128])
{
    snprintf(out, 128, "%s.%s", k->arch, key);
    return out;
}

/* The value of a key of this architecture, or other. */
static uint64_t number(const struct keys *k, const char *key, uint64_t other)
{
    char name[128];
    uint64_t v;
    return io_get_u64(k->to, full(k, key, name), 0, UINT32_MAX, &v, NULL) ? other : v;
}

static bool has(const struct keys *k, const char *key)
{
    char name[128];
    return io_meta_find(k->to, full(k, key, name)) != NULL;
}

static void done(struct keys *k, ingle_status st)
{
    if (!k->st && st)
        k->st = err_set(k->err, st, "%s: no memory for its metadata", k->s->path);
}

static void set(struct keys *k, const char *key, uint64_t v)
{
    char name[128];
    done(k, io_meta_set_u64(k->to, full(k, key, name), v));
}

static void set_float(struct keys *k, const char *key, double v)
{
    char name[128];
    done(k, io_meta_set_f64(k->to, full(k, key, name), v));
}

static void copy(struct keys *k, const char *from, const char *to)
{
    if (has(k, from) && !has(k, to))
        set(k, to, number(k, from, 0));
}

/* ---- values of the family ---- */

/* Only config.json has them: the tensors say the same. */
static bool is_internal(const char *key)
{
    static const char *const ends[] = {".tie_word_embeddings", ".attention.k_eq_v",
                                       ".target_model_type", ".rope.partial_rotary_factor"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(key), m = strlen(ends[i]);
        if (n >= m && !strcmp(key + n - m, ends[i]))
            return true;
    }
    return false;
}

/* Says nothing: the factor of frequencies that are as they are, or a size of nothing. */
static bool is_idle(const struct io_value *v)
{
    static const char *const ones[] = {".rope.proportional_factor", ".rope.linear_factor_swa"};
    static const char *const zeros[] = {
        ".markov_rank",    ".conv_kernel_size", ".conv_group_size",
        ".selector_rank",  ".selector_top_k",   ".attention.sliding_window",
        ".context_length", ".vocab_size",       ".target_block_count"};
    const size_t n = strlen(v->key);
    static const char softcap[] = ".final_logit_softcapping";
    if (n > sizeof softcap && !strcmp(v->key + n - (sizeof softcap - 1), softcap) &&
        v->kind == IO_F64 && v->v.f <= 0)
        return true;
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) {
        const size_t m = strlen(ones[i]);
        if (n >= m && !strcmp(v->key + n - m, ones[i]) && v->kind == IO_F64 &&
            fabs(v->v.f - 1) < 1e-12)
            return true;
    }
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++) {
        const size_t m = strlen(zeros[i]);
        if (n >= m && !strcmp(v->key + n - m, zeros[i]) && v->kind == IO_U64 && !v->v.u)
            return true;
    }
    return false;
}

/* A list whose elements are all the same is one number, as converters write it. */
static bool one_for_all(const struct io_value *v)
{
    if (v->kind != IO_ARRAY || v->elem != IO_U64 || !v->n || strstr(v->key, "compress_ratios") ||
        strstr(v->key, "target_layers"))
        return false;
    for (size_t i = 1; i < v->n; i++)
        if (io_array_u64(v, i) != io_array_u64(v, 0))
            return false;
    return true;
}

static ingle_status put(struct io_meta *to, const char *key, const struct io_value *v)
{
    if (one_for_all(v))
        return io_meta_set_u64(to, key, io_array_u64(v, 0));
    switch (v->kind) {
    case IO_U64: return io_meta_set_u64(to, key, v->v.u);
    case IO_F64: return io_meta_set_f64(to, key, v->v.f);
    case IO_BOOL: return io_meta_set_bool(to, key, v->v.b);
    case IO_STR: return io_meta_set_str(to, key, v->v.s, v->n);
    case IO_ARRAY: break;
    case IO_I64: return INGLE_OK; /* a family sets none */
    }
    if (v->elem == IO_BOOL)
        return io_meta_set_bools(to, key, v->v.array, v->n);
    return v->elem == IO_U64 ? io_meta_set_u64s(to, key, v->v.array, v->n) : INGLE_OK;
}

/* Without an order of tokens its numbers mean nothing. */
static bool is_unordered(const struct io_meta *from, const char *key)
{
    bool ordered = true;
    return (strstr(key, "centroid") || strstr(key, "use_ordered")) &&
           !io_get_bool(from, "gemma4.use_ordered_embeddings", &ordered, NULL) && !ordered;
}

/* The values of a family or drafter, under the name of the file's architecture. */
static void take(struct keys *k, const struct io_meta *from, bool overwrite)
{
    for (size_t i = 0; i < io_meta_count(from) && !k->st; i++) {
        const struct io_value *v = io_meta_at(from, i);
        const char *dot = strchr(v->key, '.');
        char name[128];
        if (!strncmp(v->key, "general.", 8) || !dot || is_internal(v->key) || is_idle(v) ||
            is_unordered(from, v->key))
            continue;
        full(k, dot + 1, name);
        if (overwrite || !io_meta_find(k->to, name))
            done(k, put(k->to, name, v));
    }
}

static void take_config(struct keys *k,
                        ingle_status (*config)(struct json_object *, struct io_meta *,
                                               const struct report_sink *, struct err *),
                        bool overwrite, const struct report_sink *sink)
{
    struct io_meta *m = k->st ? NULL : io_meta_create();
    if (k->st)
        return;
    if (!m) {
        done(k, INGLE_NOMEM);
        return;
    }
    k->st = config(k->s->config, m, sink, k->err);
    if (k->st)
        err_prefix(k->err, "%s", k->s->path);
    take(k, m, overwrite);
    io_meta_free(m);
}

/* ---- what llama.cpp wants beside ---- */

static void set_clamps(struct keys *k, uint64_t n_layers)
{
    static const char *const lists[] = {"swiglu_clamp_exp", "swiglu_clamp_shexp"};
    char name[128];
    double limit = 0, v[MAX_LAYERS];
    if (io_get_f64(k->to, full(k, lists[0], name), 0, 1e30, &limit, NULL) != INGLE_OK && !k->st) {
        const struct io_value *has_list = io_meta_find(k->to, name);
        limit =
            has_list && has_list->kind == IO_ARRAY && has_list->n ? io_array_f64(has_list, 0) : 0;
    }
    for (uint64_t i = 0; i < n_layers && i < MAX_LAYERS; i++)
        v[i] = limit;
    for (size_t i = 0; i < 2; i++)
        done(k, io_meta_set_f64s(k->to, full(k, lists[i], name), v,
                                 (size_t)(n_layers < MAX_LAYERS ? n_layers : MAX_LAYERS)));
}

static void finish_gemma4(struct keys *k)
{
    copy(k, "attention.key_length", "attention.value_length");
    copy(k, "attention.key_length_swa", "attention.value_length_swa");
    copy(k, "attention.key_length", "rope.dimension_count");
    copy(k, "attention.key_length_swa", "rope.dimension_count_swa");
    if (k->s->kind == SOURCE_ASSISTANT)
        set(k, "nextn_predict_layers", number(k, "block_count", 0));
}

static uint64_t n_blocks(const struct tool_source *s)
{
    uint64_t n = 0;
    for (size_t i = 0; i < io_n_tensors(s->file); i++) {
        unsigned block;
        int used = 0;
        if (sscanf(io_tensor_at(s->file, i)->name, "mtp.%5u.e_proj.weight%n", &block, &used) == 1 &&
            used && block + 1u > n)
            n = block + 1u;
    }
    return n < 64 ? n : 64;
}

static void finish_deepseek4(struct keys *k)
{
    char name[128];
    uint64_t n_layers = number(k, "block_count", 0);
    if (k->s->kind == SOURCE_MTP || k->s->kind == SOURCE_MTP_ONLY)
        set(k, "nextn_predict_layers", n_blocks(k->s));
    if (k->s->kind == SOURCE_MTP)
        set(k, "block_count", n_layers += n_blocks(k->s));
    if (k->s->kind == SOURCE_DSPARK4) {
        uint64_t zero[MAX_LAYERS] = {0};
        set(k, "hash_layer_count", 0);
        done(k, io_meta_set_u64s(k->to, full(k, "attention.compress_ratios", name), zero,
                                 (size_t)(n_layers < MAX_LAYERS ? n_layers : MAX_LAYERS)));
    } else {
        set(k, "embedding_length_out",
            number(k, "embedding_length", 0) * number(k, "hyper_connection.count", 0));
    }
    copy(k, "attention.key_length", "attention.value_length");
    set(k, "expert_gating_func", 4);
    if (!has(k, "expert_shared_count"))
        set(k, "expert_shared_count", 1);
    set_clamps(k, n_layers);
}

static void finish_dflash(struct keys *k)
{
    const struct tool_source *s = k->s;
    const bool dspark = !strcmp(s->draft->kind, "dspark");
    char name[128], tensor[SOURCE_NAME];
    if (!has(k, "attention.key_length") && number(k, "attention.head_count", 0))
        set(k, "attention.key_length",
            number(k, "embedding_length", 0) / number(k, "attention.head_count", 1));
    copy(k, "attention.key_length", "attention.value_length");
    if (has(k, "attention.sliding_window") && !has(k, "attention.sliding_window_pattern")) {
        bool all[64] = {false};
        const uint64_t n = number(k, "block_count", 0);
        done(k, io_meta_set_bools(k->to, full(k, "attention.sliding_window_pattern", name), all,
                                  (size_t)(n < 64 ? n : 64)));
    }
    if (!dspark)
        return;
    bool confidence = false;
    for (size_t i = 0; i < io_n_tensors(s->file) && !confidence; i++)
        confidence = s->draft->rename(io_tensor_at(s->file, i)->name, tensor, sizeof tensor) &&
                     !strncmp(tensor, "conf_proj", 9);
    done(k, io_meta_set_bool(k->to, full(k, "has_confidence_head", name), confidence));
    /* blocks of Gemma 4 */
    if (json_member(s->config, "global_head_dim") || json_member(s->config, "attention_k_eq_v")) {
        copy(k, "attention.key_length", "rope.dimension_count");
        set_float(k, "attention.scale", 1);
        if (!has(k, "embedding_scale"))
            set_float(k, "embedding_scale", sqrt((double)number(k, "embedding_length", 0)));
        if (!has(k, "hidden_activation"))
            done(k, io_meta_set_str(k->to, full(k, "hidden_activation", name), "gelu_pytorch_tanh",
                                    17));
    }
}

/* ---- what is said of the model ---- */

static void set_name(struct keys *k)
{
    const char *name = k->s->o.name, *end = k->s->path + strlen(k->s->path);
    if (!name) {
        while (end > k->s->path && end[-1] == '/')
            end--;
        const char *start = end;
        while (start > k->s->path && start[-1] != '/')
            start--;
        done(k, io_meta_set_str(k->to, "general.name", start, (size_t)(end - start)));
        return;
    }
    done(k, io_meta_set_str(k->to, "general.name", name, strlen(name)));
}

/* Defaults of sampling that the checkpoint's generation_config.json has. */
static void take_sampling(struct keys *k)
{
    static const struct { const char *hf, *gguf; bool whole; } keys[] = {
        {"temperature", "general.sampling.temp", false}, {"top_p", "general.sampling.top_p", false},
        {"min_p", "general.sampling.min_p", false}, {"top_k", "general.sampling.top_k", true},
        {"repetition_penalty", "general.sampling.penalty_repeat", false}};
    char *text;
    size_t n;
    struct json_object *o = NULL;
    ingle_status st =
        io_side_file(k->s->file, "generation_config.json", SIDE_LIMIT, &text, &n, k->err);
    if (st == INGLE_NOTFOUND || k->st)
        return;
    if (!st) {
        st = json_parse(text, n, NULL, &o, k->err);
        mem_free(text);
    }
    if (st) {
        k->st = st;
        return;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct json_object *v = json_member(o, keys[i].hf);
        if (!json_object_is_type(v, json_type_int) && !json_object_is_type(v, json_type_double))
            continue;
        const double x = json_object_get_double(v);
        if (keys[i].whole && x >= 0 && x <= INT32_MAX)
            done(k, io_meta_set_u64(k->to, keys[i].gguf, (uint64_t)x));
        else if (!keys[i].whole && x >= 0 && x <= 1000)
            done(k, io_meta_set_f64(k->to, keys[i].gguf, x));
    }
    struct json_object *list = json_member(o, "suppress_tokens");
    uint64_t id[64];
    size_t n_id = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    for (size_t i = 0; i < n_id && i < 64; i++)
        id[i] = (uint64_t)json_object_get_int64(json_object_array_get_idx(list, i));
    if (n_id && n_id <= 64)
        done(k, io_meta_set_u64s(k->to, "tokenizer.ggml.suppress_tokens", id, n_id));
    json_object_put(o);
}

ingle_status tool_source_keys(struct tool_source *s, struct err *err)
{
    static const char *const archs[] = {[SOURCE_GEMMA4] = "gemma4",
                                        [SOURCE_DEEPSEEK4] = "deepseek4",
                                        [SOURCE_MTP] = "deepseek4",
                                        [SOURCE_MTP_ONLY] = "deepseek4",
                                        [SOURCE_ASSISTANT] = "gemma4-assistant",
                                        [SOURCE_DFLASH] = "dflash",
                                        [SOURCE_DSPARK4] = "dflash"};
    struct keys k = {.s = s, .to = s->meta, .err = err};
    uint64_t n_layers;
    snprintf(k.arch, sizeof k.arch, "%s", archs[s->kind]);
    done(&k, io_meta_set_str(s->meta, "general.architecture", k.arch, strlen(k.arch)));
    done(&k, io_meta_set_str(s->meta, "general.type", "model", 5));
    set_name(&k);
    take_sampling(&k);
    if (s->draft)
        take_config(&k, s->draft->config, true, s->sink);
    /* of a V4 drafter the rest is as in the model */
    if (s->family && (!s->draft || s->kind == SOURCE_DSPARK4))
        take_config(&k, s->family->config, false, s->sink);
    if (!k.st &&
        io_get_u64(s->meta, full(&k, "block_count", (char[128]){0}), 1, MAX_LAYERS, &n_layers, err))
        return INGLE_FORMAT;
    switch (s->kind) {
    case SOURCE_GEMMA4:
    case SOURCE_ASSISTANT: finish_gemma4(&k); break;
    case SOURCE_DFLASH: finish_dflash(&k); break;
    default: finish_deepseek4(&k);
    }
    struct json_object *text = json_member(s->config, "text_config"),
                       *v = json_member(text ? text : s->config, "vocab_size");
    s->n_vocab = v && json_object_get_int64(v) > 0 ? (uint64_t)json_object_get_int64(v) : 0;
    return k.st;
}
