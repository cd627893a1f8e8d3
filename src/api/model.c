/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"
#include "api/words.h"

#include "base/file.h"
#include "base/fp.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define EMBEDDED "nano-gemma4 (built in)"

enum { SIDE_LIMIT = 256 << 20 };

void ingle_free(void *p)
{
    mem_free(p);
}

bool engine_chat_by_name(const char *name, enum text_chat_family *out)
{
    if (strcmp(name, "gemma4") == 0)
        *out = TEXT_CHAT_GEMMA4;
    else if (strcmp(name, "deepseek4") == 0)
        *out = TEXT_CHAT_DEEPSEEK_V4;
    else
        return false;
    return true;
}

size_t engine_n_tokens(const struct ingle_model *m)
{
    return m->tokenizer ? text_n_tokens(m->tokenizer) : 0;
}

ingle_status engine_need_words(const struct ingle_model *m, struct err *err)
{
    if (m->tokenizer)
        return INGLE_OK;
    return err_set(err, INGLE_UNSUP, "%s: no tokenizer is in it or beside it", m->path);
}

/* ---- lists of ids ---- */

static ingle_status add_id(const struct ingle_model *m, int32_t **list, size_t *n, size_t *cap,
                           int64_t id, const char *what, struct err *err)
{
    if (!m->tokenizer)
        return INGLE_OK;
    if (id < 0 || id >= (int64_t)engine_n_tokens(m))
        return err_set(err, INGLE_FORMAT,
                       "%s: '%s' names token %lld, outside the vocabulary of %zu", m->path, what,
                       (long long)id, engine_n_tokens(m));
    const bool last = *n && (*list)[*n - 1] < id; /* most lists are ascending */
    for (size_t i = 0; i < *n && !last; i++)
        if ((*list)[i] == id)
            return INGLE_OK;
    if (!mem_grow(list, cap, *n + 1, sizeof **list))
        return err_set(err, INGLE_NOMEM, "no memory for '%s'", what);
    size_t at = (*n)++;
    for (; at > 0 && (*list)[at - 1] > id; at--)
        (*list)[at] = (*list)[at - 1];
    (*list)[at] = (int32_t)id;
    return INGLE_OK;
}

static ingle_status add_end(struct ingle_model *m, int64_t id, const char *what, struct err *err)
{
    return add_id(m, &m->end, &m->n_end, &m->cap_end, id, what, err);
}

static ingle_status add_suppressed(struct ingle_model *m, int64_t id, const char *what,
                                   struct err *err)
{
    return add_id(m, &m->suppress, &m->n_suppress, &m->cap_suppress, id, what, err);
}

/* An id or a list of ids. */
static ingle_status add_json_ids(struct ingle_model *m, struct json_object *v, const char *what,
                                 ingle_status (*add)(struct ingle_model *, int64_t, const char *,
                                                     struct err *),
                                 struct err *err)
{
    ingle_status st = INGLE_OK;
    if (json_object_is_type(v, json_type_int))
        return add(m, json_object_get_int64(v), what, err);
    if (json_object_is_type(v, json_type_array))
        for (size_t i = 0; !st && i < json_object_array_length(v); i++)
            st = add_json_ids(m, json_object_array_get_idx(v, i), what, add, err);
    return st;
}

/* ---- what a file says about answers ---- */

static void family_sampling(const struct ingle_model *m, struct ingle_sampling *s)
{
    *s = (struct ingle_sampling){
        .repeat_penalty = 1, .top_p = 1, .typical_p = 1, .temperature = 1};
    if (m->chat == TEXT_CHAT_GEMMA4) {
        s->top_p = 0.95f;
        s->top_k = 64;
    }
}

/* A default of a file counts when it is in its range; otherwise it is reported. */
static void take_number(struct ingle_model *m, const char *key, double v, double max, float *to)
{
    if (v >= 0 && v <= max)
        *to = (float)v;
    else
        report(&m->sink, INGLE_REPORT_WARN, "sampling", key, "%g in '%s' is outside 0 to %g", v,
               m->path, max);
}

static void sampling_from_gguf(struct ingle_model *m, const struct io_meta *meta)
{
    const struct {
        const char *key;
        double max;
        float *to;
    } number[] = {
        {"general.sampling.temp", 1000, &m->sampling.temperature},
        {"general.sampling.top_p", 1, &m->sampling.top_p},
        {"general.sampling.min_p", 1, &m->sampling.min_p},
        {"general.sampling.xtc_probability", 1, &m->sampling.xtc_probability},
        {"general.sampling.xtc_threshold", 1, &m->sampling.xtc_threshold},
        {"general.sampling.penalty_repeat", 1000, &m->sampling.repeat_penalty},
    };
    double v;
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (io_get_f64(meta, number[i].key, -1e30, 1e30, &v, NULL) == INGLE_OK)
            take_number(m, number[i].key, v, number[i].max, number[i].to);
    uint64_t k;
    if (io_get_u64(meta, "general.sampling.top_k", 0, INT32_MAX, &k, NULL) == INGLE_OK)
        m->sampling.top_k = (int32_t)k;
}

static void sampling_from_json(struct ingle_model *m, struct json_object *o)
{
    const struct {
        const char *key;
        double max;
        float *to;
    } number[] = {
        {"temperature", 1000, &m->sampling.temperature},
        {"top_p", 1, &m->sampling.top_p},
        {"min_p", 1, &m->sampling.min_p},
        {"repetition_penalty", 1000, &m->sampling.repeat_penalty},
    };
    struct json_object *v;
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (json_object_object_get_ex(o, number[i].key, &v) && v)
            take_number(m, number[i].key, json_object_get_double(v), number[i].max, number[i].to);
    if (json_object_object_get_ex(o, "top_k", &v) && json_object_is_type(v, json_type_int)) {
        const int64_t k = json_object_get_int64(v);
        m->sampling.top_k = k > 0 && k <= INT32_MAX ? (int32_t)k : 0;
    }
    if (json_object_object_get_ex(o, "do_sample", &v) && !json_object_get_boolean(v))
        m->sampling.temperature = 0;
}

/* generation_config.json beside a checkpoint. */
static ingle_status read_generation(struct ingle_model *m, struct err *err)
{
    char *text;
    size_t n;
    struct json_object *o = NULL, *v;
    ingle_status st = io_side_file(m->file, "generation_config.json", SIDE_LIMIT, &text, &n, err);
    if (st)
        return st == INGLE_NOTFOUND ? INGLE_OK : st;
    st = json_parse(text, n, NULL, &o, err);
    mem_free(text);
    if (st)
        err_prefix(err, "%s: generation_config.json", m->path);
    else if (json_object_is_type(o, json_type_object)) {
        sampling_from_json(m, o);
        if (json_object_object_get_ex(o, "eos_token_id", &v))
            st = add_json_ids(m, v, "eos_token_id", add_end, err);
        if (!st && json_object_object_get_ex(o, "suppress_tokens", &v))
            st = add_json_ids(m, v, "suppress_tokens", add_suppressed, err);
    }
    json_object_put(o);
    return st;
}

static ingle_status read_ends(struct ingle_model *m, const struct io_meta *meta, struct err *err)
{
    ingle_status st = INGLE_OK;
    for (size_t id = 0; !st && id < engine_n_tokens(m); id++)
        if (text_is_end(m->tokenizer, (int32_t)id))
            st = add_end(m, (int64_t)id, "end", err);
    static const char *const keys[] = {"tokenizer.ggml.eom_token_id"};
    uint64_t id;
    for (size_t i = 0; !st && meta && i < sizeof keys / sizeof *keys; i++)
        if (io_get_u64(meta, keys[i], 0, INT32_MAX, &id, NULL) == INGLE_OK)
            st = add_end(m, (int64_t)id, keys[i], err);
    static const char key[] = "tokenizer.ggml.suppress_tokens";
    const struct io_value *v = meta ? io_meta_find(meta, key) : NULL;
    if (!st && v && (v->kind != IO_ARRAY || (v->elem != IO_I64 && v->elem != IO_U64)))
        st = err_set(err, INGLE_FORMAT, "%s: '%s' is no array of integers", m->path, key);
    for (size_t i = 0; !st && v && i < v->n; i++)
        st = add_suppressed(
            m, v->elem == IO_I64 ? io_array_i64(v, i) : (int64_t)io_array_u64(v, i), key, err);
    return st;
}

/* What no answer of text holds is never drawn, whether or not the file says so. */
static ingle_status suppress_unwritten(struct ingle_model *m, struct err *err)
{
    ingle_status st = INGLE_OK;
    for (size_t id = 0; !st && id < engine_n_tokens(m); id++)
        if (!text_is_written(m->tokenizer, (int32_t)id) && !ingle_model_is_end(m, (int32_t)id))
            st = add_suppressed(m, (int64_t)id, "tokens", err);
    return st;
}

/* ---- the file ---- */

static ingle_status read_gguf(struct ingle_model *m, struct err *err)
{
    const struct io_meta *meta = io_metadata(m->file);
    const char *s;
    size_t n;
    ingle_status st = io_get_str(meta, "general.architecture", &s, &n, err);
    if (st) {
        const char *kind = engine_other_kind(m->file);
        return kind ? err_set(err, INGLE_UNSUP, "%s: is not a model but %s", m->path, kind) : st;
    }
    m->arch = mem_strndup(s, n);
    m->name = io_get_str(meta, "general.name", &s, &n, NULL) ? mem_strdup("") : mem_strndup(s, n);
    if (!m->arch || !m->name)
        return err_set(err, INGLE_NOMEM, "no memory for the names of a model");
    if (io_meta_find(meta, "tokenizer.ggml.model"))
        st = engine_vocab_gguf(&m->tokenizer, meta, m->path, err);
    if (st)
        return st;
    struct {
        const char *key;
        int64_t *to;
    } count[] = {
        {"block_count", &m->n_layers},
        {"embedding_length", &m->n_embd},
        {"context_length", &m->n_ctx},
    };
    char key[128];
    uint64_t u;
    for (size_t i = 0; i < sizeof count / sizeof *count; i++) {
        snprintf(key, sizeof key, "%.90s.%s", m->arch, count[i].key);
        if (io_get_u64(meta, key, 0, INT32_MAX, &u, NULL) == INGLE_OK)
            *count[i].to = (int64_t)u;
    }
    /* Of the Gemma 4 sizes, those with per-layer embeddings follow the small ones' rules. */
    snprintf(key, sizeof key, "%.90s.embedding_length_per_layer_input", m->arch);
    m->large = io_get_u64(meta, key, 0, INT32_MAX, &u, NULL) != INGLE_OK || u == 0;
    return INGLE_OK;
}

/* Member of config.json, or of its text part in a multimodal one. */
static struct json_object *config_member(struct json_object *config, const char *key)
{
    struct json_object *v = NULL, *text = NULL;
    if (json_object_object_get_ex(config, "text_config", &text) &&
        json_object_object_get_ex(text, key, &v) && v)
        return v;
    json_object_object_get_ex(config, key, &v);
    return v;
}

static ingle_status side_json(struct ingle_model *m, const char *name, struct json_object **out,
                              struct err *err)
{
    char *text;
    size_t n;
    ingle_status st = io_side_file(m->file, name, SIDE_LIMIT, &text, &n, err);
    if (st)
        return st;
    st = json_parse(text, n, NULL, out, err);
    mem_free(text);
    if (st)
        err_prefix(err, "%s: %s", m->path, name);
    return st;
}

static ingle_status read_checkpoint(struct ingle_model *m, struct err *err)
{
    ingle_status st = side_json(m, "config.json", &m->config, err);
    const char *kind = st == INGLE_NOTFOUND ? engine_other_kind(m->file) : NULL;
    if (kind)
        return err_set(err, INGLE_UNSUP, "%s: is not a model but %s", m->path, kind);
    if (st)
        return st;
    struct json_object *v = NULL;
    if (!json_object_object_get_ex(m->config, "model_type", &v) ||
        !json_object_is_type(v, json_type_string))
        return err_set(err, INGLE_FORMAT, "%s: config.json: 'model_type' is missing or no text",
                       m->path);
    m->arch = mem_strdup(json_object_get_string(v));
    m->name = mem_strdup("");
    if (!m->arch || !m->name)
        return err_set(err, INGLE_NOMEM, "no memory for the names of a model");
    m->n_layers = json_object_get_int64(config_member(m->config, "num_hidden_layers"));
    m->n_embd = json_object_get_int64(config_member(m->config, "hidden_size"));
    m->n_ctx = json_object_get_int64(config_member(m->config, "max_position_embeddings"));
    m->large = json_object_get_int64(config_member(m->config, "hidden_size_per_layer_input")) <= 0;
    char *text;
    size_t n;
    st = io_side_file(m->file, "tokenizer.json", SIDE_LIMIT, &text, &n, err);
    if (st)
        return st == INGLE_NOTFOUND ? INGLE_OK : st;
    st = text_tokenizer_from_json(&m->tokenizer, "tokenizer.json", text, n, err);
    if (st)
        err_prefix(err, "%s", m->path);
    mem_free(text);
    return st;
}

static ingle_status read_tokenizer(struct ingle_model *m, const char *path, struct err *err)
{
    char *text;
    size_t n;
    ingle_status st = file_slurp(path, SIDE_LIMIT, &text, &n, err);
    if (st)
        return st;
    st = text_tokenizer_from_json(&m->tokenizer, path, text, n, err);
    mem_free(text);
    m->arch = mem_strdup("");
    m->name = mem_strdup("");
    m->large = true;
    if (!st && (!m->arch || !m->name))
        st = err_set(err, INGLE_NOMEM, "no memory for the names of a model");
    return st;
}

/* The renderer follows fixed rules; a file with other ones must not pass in silence. */
static void check_template(struct ingle_model *m)
{
    const char *jinja = NULL;
    size_t n = 0;
    char *owned = NULL;
    m->template_name = "";
    if (m->file && io_kind(m->file) == IO_GGUF) {
        if (io_get_str(io_metadata(m->file), "tokenizer.chat_template", &jinja, &n, NULL))
            return;
    } else if (m->file) {
        if (io_side_file(m->file, "chat_template.jinja", SIDE_LIMIT, &owned, &n, NULL))
            return;
        jinja = owned;
    } else {
        return;
    }
    m->template_name = text_chat_template_name(m->chat, jinja, n);
    mem_free(owned);
    if (m->template_name)
        return;
    m->template_name = "unknown";
    report(&m->sink, INGLE_REPORT_WARN, "template", m->path,
           "the chat template of the file (%zu bytes) is unknown: prompts follow the "
           "published rules of %s",
           n, m->chat_name);
}

/* Entries of DeepSeek V4's list of ratios: layers, then draft stages. */
static size_t n_ratios(const struct ingle_model *m)
{
    if (m->config) {
        struct json_object *list = config_member(m->config, "compress_ratios");
        return json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    }
    const struct io_value *v =
        m->file ? io_meta_find(io_metadata(m->file), "deepseek4.attention.compress_ratios") : NULL;
    return v && v->kind == IO_ARRAY ? v->n : 0;
}

/* The 0731 release of DeepSeek V4 Flash says the reasoning efforts in other words.  A known
 * template decides; else the name, or what only that release has: several draft stages. */
static bool is_0731(const struct ingle_model *m)
{
    static const char family[] = "deepseek4";
    if (strncmp(m->template_name, family, sizeof family - 1) == 0)
        return strstr(m->template_name, "0731") != NULL;
    return strstr(m->name, "0731") || (m->n_layers > 0 && n_ratios(m) > (size_t)m->n_layers + 1);
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && memcmp(s + (n - k), end, k) == 0;
}

static ingle_status open_file(struct ingle_model *m, const char *path, struct err *err)
{
    ingle_status st = path ? engine_find_file(path, &m->sink, &m->path, err) : INGLE_OK;
    if (!path && !(m->path = mem_strdup(EMBEDDED)))
        return err_set(err, INGLE_NOMEM, "no memory for a model");
    if (st)
        return st;
    if (path && ends_with(m->path, ".json"))
        return read_tokenizer(m, m->path, err);
    m->built_in = !path;
    if (path)
        st = io_open(&m->file, m->path, &m->sink, err);
    else
        st = io_open_memory(&m->file, EMBEDDED, engine_nano,
                            (size_t)(engine_nano_end - engine_nano), &m->sink, err);
    if (st)
        return st;
    return io_kind(m->file) == IO_GGUF ? read_gguf(m, err) : read_checkpoint(m, err);
}

static ingle_status read_rules(struct ingle_model *m, struct err *err)
{
    const bool gemma = m->tokenizer ? text_tokenizer_kind(m->tokenizer) == TEXT_GEMMA4
                                    : strncmp(m->arch, "gemma", 5) == 0;
    if (!m->tokenizer)
        report(&m->sink, INGLE_REPORT_NOTE, "tokenizer", m->path,
               "there is none: only token ids can be used");
    m->chat = gemma ? TEXT_CHAT_GEMMA4 : TEXT_CHAT_DEEPSEEK_V4;
    m->chat_name = gemma ? "gemma4" : "deepseek4";
    text_borders_init(&m->turns, m->chat, m->tokenizer);
    engine_media_ids(m->tokenizer, &m->media);
    family_sampling(m, &m->sampling);
    const bool gguf = m->file && io_kind(m->file) == IO_GGUF;
    ingle_status st = read_ends(m, gguf ? io_metadata(m->file) : NULL, err);
    if (!st && gguf)
        sampling_from_gguf(m, io_metadata(m->file));
    if (!st && m->file && !gguf)
        st = read_generation(m, err);
    if (!st)
        st = suppress_unwritten(m, err);
    check_template(m);
    m->revision_0731 = m->chat == TEXT_CHAT_DEEPSEEK_V4 && is_0731(m);
    if (m->revision_0731)
        report(&m->sink, INGLE_REPORT_NOTE, "template", m->path,
               "reasoning efforts are those of the 0731 release: low, high, max");
    return st;
}

ingle_status ingle_model_open(struct ingle_model **out, const char *path,
                              const struct ingle_callbacks *callbacks, struct ingle_error *error)
{
    struct err err;
    struct ingle_model *m = mem_zalloc(sizeof *m);
    if (!m)
        return engine_say(error, err_set(&err, INGLE_NOMEM, "no memory for a model"), &err);
    pthread_mutex_init(&m->rates_lock, NULL);
    if (callbacks)
        m->sink = (struct report_sink){callbacks->report, callbacks->progress, callbacks->arg};
    fenv_t mode;
    fp_enter(&mode);
    ingle_status st = open_file(m, path, &err);
    if (!st)
        st = read_rules(m, &err);
    if (!st)
        st = engine_words_open(&m->words, &err);
    fp_leave(&mode);
    if (st) {
        ingle_model_close(m);
        return engine_say(error, st, &err);
    }
    *out = m;
    return INGLE_OK;
}

void ingle_model_close(struct ingle_model *m)
{
    if (!m)
        return;
    engine_words_close(m->words);
    text_tokenizer_free(m->tokenizer);
    json_object_put(m->config);
    io_close(m->file);
    mem_free(m->path);
    mem_free(m->arch);
    mem_free(m->name);
    mem_free(m->end);
    mem_free(m->suppress);
    pthread_mutex_destroy(&m->rates_lock);
    mem_free(m);
}

static uint64_t count_params(const struct io_file *f)
{
    uint64_t n = 0;
    for (size_t i = 0; f && i < io_n_tensors(f); i++) {
        const struct io_tensor *t = io_tensor_at(f, i);
        uint64_t one = 1;
        for (uint32_t k = 0; k < t->n_dims; k++)
            one *= t->ne[k]; /* the reader of the file has seen that it fits */
        n += one;
    }
    return n;
}

void ingle_model_info(const struct ingle_model *m, struct ingle_model_info *out)
{
    *out = (struct ingle_model_info){
        .path = m->path,
        .name = m->name,
        .arch = m->arch,
        .chat = m->chat_name,
        .template_name = m->template_name,
        .n_vocab = (int64_t)engine_n_tokens(m),
        .n_layers = m->n_layers,
        .n_embd = m->n_embd,
        .n_ctx = m->n_ctx,
        .n_tensors = m->file ? (int64_t)io_n_tensors(m->file) : 0,
        .n_params = count_params(m->file),
        .file_bytes = m->file ? io_size(m->file) : 0,
        .bos = m->tokenizer ? text_bos(m->tokenizer) : -1,
        .add_bos = m->tokenizer && text_add_bos(m->tokenizer),
        .large = m->large,
        .has_weights = m->file && io_n_tensors(m->file) > 0,
    };
}

const int32_t *ingle_model_ends(const struct ingle_model *m, size_t *n)
{
    *n = m->n_end;
    return m->end;
}

bool ingle_model_is_end(const struct ingle_model *m, int32_t token)
{
    for (size_t i = 0; i < m->n_end; i++)
        if (m->end[i] == token)
            return true;
    return false;
}

void ingle_sampling_defaults(const struct ingle_model *m, struct ingle_sampling *out)
{
    *out = m->sampling;
}

const void *ingle_nano(size_t *n_bytes)
{
    *n_bytes = (size_t)(engine_nano_end - engine_nano);
    return engine_nano;
}

/* ---- tokens ---- */

ingle_status engine_encode(const struct tokenizer *t, const char *text, size_t n, bool add_special,
                           const struct text_range *specials, size_t n_specials,
                           struct ingle_bounds *bounds, struct text_ids *out, struct err *err)
{
    if (!bounds)
        return text_encode(t, text, n, add_special, specials, n_specials, out, err);
    struct text_bounds b = {.stop = bounds->stop, .arg = bounds->arg};
    if (bounds->max_tokens > 0)
        b.max_tokens = (size_t)bounds->max_tokens;
    const ingle_status st =
        text_encode_within(t, text, n, add_special, specials, n_specials, &b, out, err);
    bounds->least = (int64_t)b.least;
    return st;
}

static ingle_status tokenize(const struct ingle_model *m, const char *text, size_t n, int flags,
                             struct ingle_bounds *bounds, int32_t **ids, size_t *n_ids,
                             struct err *err)
{
    struct text_ids list = {0};
    const struct text_range all = {0, n};
    const bool special = (flags & INGLE_PARSE_SPECIAL) != 0;
    ingle_status st = engine_need_words(m, err);
    if (!st)
        st = engine_encode(m->tokenizer, text, n, (flags & INGLE_ADD_SPECIAL) != 0,
                           special ? &all : NULL, special, bounds, &list, err);
    if (st) {
        text_ids_release(&list);
        return st;
    }
    if (!list.id && !(list.id = mem_alloc(sizeof *list.id)))
        return err_set(err, INGLE_NOMEM, "no memory for tokens");
    *ids = list.id;
    *n_ids = list.n;
    return INGLE_OK;
}

ingle_status ingle_tokenize_within(const struct ingle_model *m, const char *text, size_t n,
                                   int flags, struct ingle_bounds *bounds, int32_t **ids,
                                   size_t *n_ids, struct ingle_error *error)
{
    struct err err;
    return engine_say(error, tokenize(m, text, n, flags, bounds, ids, n_ids, &err), &err);
}

ingle_status ingle_tokenize(const struct ingle_model *m, const char *text, size_t n, int flags,
                            int32_t **ids, size_t *n_ids, struct ingle_error *error)
{
    return ingle_tokenize_within(m, text, n, flags, NULL, ids, n_ids, error);
}

static ingle_status detokenize(const struct ingle_model *m, const int32_t *ids, size_t n_ids,
                               bool special, char **text, size_t *n, struct err *err)
{
    struct str s;
    ingle_status st = engine_need_words(m, err);
    str_init(&s);
    for (size_t i = 0; !st && i < n_ids; i++)
        st = text_decode(m->tokenizer, ids[i], special, &s, err);
    str_addc(&s, 0);
    if (!st && !str_ok(&s))
        st = err_set(err, INGLE_NOMEM, "no memory for the text of %zu tokens", n_ids);
    if (!st) {
        *n = s.n - 1;
        *text = str_detach(&s);
    }
    str_release(&s);
    return st;
}

ingle_status ingle_detokenize(const struct ingle_model *m, const int32_t *ids, size_t n_ids,
                              bool special, char **text, size_t *n, struct ingle_error *error)
{
    struct err err;
    return engine_say(error, detokenize(m, ids, n_ids, special, text, n, &err), &err);
}

const char *ingle_token(const struct ingle_model *m, int32_t id, size_t *n)
{
    return m->tokenizer ? text_token(m->tokenizer, id, n) : NULL;
}

int32_t ingle_find_token(const struct ingle_model *m, const char *bytes, size_t n)
{
    return m->tokenizer ? text_find(m->tokenizer, bytes, n) : -1;
}
