/* SPDX-License-Identifier: Apache-2.0 */
#include "family/hf/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool family_config_is_weight(const char *end)
{
    static const char *const ends[] = {"",         "_packed",       "_scale",      "_scale_inv",
                                       "_scale_2", "_global_scale", "_zero_point", "_shape"};
    static const char weight[] = ".weight";
    const size_t n = sizeof weight - 1;
    size_t i = 0;
    if (strncmp(end, weight, n) != 0)
        return false;
    while (i < sizeof ends / sizeof *ends && strcmp(end + n, ends[i]) != 0)
        i++;
    return i < sizeof ends / sizeof *ends;
}

bool family_config_rename(const char *name, const char *hf, const char *gguf, const char *prefix,
                          char *out, size_t n_out)
{
    static const char weight[] = ".weight";
    const size_t k = sizeof weight - 1, n = strlen(hf), g = strlen(gguf);
    if (!strcmp(name, hf)) {
        snprintf(out, n_out, "%s%s", prefix, gguf);
        return true;
    }
    if (n <= k || g <= k || strcmp(hf + n - k, weight) != 0 || strcmp(gguf + g - k, weight) != 0 ||
        strncmp(name, hf, n - k) != 0 || !family_config_is_weight(name + n - k))
        return false;
    snprintf(out, n_out, "%s%.*s%s", prefix, (int)(g - k), gguf, name + n - k);
    return true;
}

struct json_object *family_config_get(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    return json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, key, &v) ? v
                                                                                             : NULL;
}

static bool is_whole(struct json_object *v)
{
    if (json_object_is_type(v, json_type_int))
        return json_object_get_int64(v) >= 0;
    const double f = json_object_get_double(v);
    return json_object_is_type(v, json_type_double) && f >= 0 && f < 9e15 &&
           f <= (double)(int64_t)f && f >= (double)(int64_t)f;
}

uint64_t family_config_read(struct family_config *c, struct json_object *o, const char *key,
                            int64_t fallback)
{
    struct json_object *v = family_config_get(o, key);
    if (v && is_whole(v))
        return json_object_is_type(v, json_type_int) ? (uint64_t)json_object_get_int64(v)
                                                     : (uint64_t)json_object_get_double(v);
    if (!v && fallback >= 0)
        return (uint64_t)fallback;
    if (!c->s)
        c->s = err_set(c->err, INGLE_FORMAT, "config.json: '%s' is %.64s, expected a whole number",
                       key, v ? json_object_get_string(v) : "missing");
    return 0;
}

bool family_config_flag(struct family_config *c, const char *key)
{
    struct json_object *v = family_config_get(c->json, key);
    return v && json_object_get_boolean(v);
}

void family_config_set(struct family_config *c, const char *gguf, uint64_t v)
{
    if (c->s)
        return;
    c->s = io_meta_set_u64(c->out, gguf, v);
    if (c->s)
        err_set(c->err, c->s, "no memory for config.json");
}

void family_config_whole(struct family_config *c, struct json_object *o, const char *key,
                         const char *gguf, int64_t fallback)
{
    const uint64_t v = family_config_read(c, o, key, fallback);
    family_config_set(c, gguf, v);
}

void family_config_number(struct family_config *c, struct json_object *o, const char *key,
                          const char *gguf, double fallback)
{
    struct json_object *v = family_config_get(o, key);
    if (c->s)
        return;
    if (v && !json_object_is_type(v, json_type_int) && !json_object_is_type(v, json_type_double)) {
        c->s = err_set(c->err, INGLE_FORMAT, "config.json: '%s' is %.64s, expected a number", key,
                       json_object_get_string(v));
        return;
    }
    if (!v && fallback != 0.0)
        report(c->sink, INGLE_REPORT_WARN, "config", "config.json", "'%s' is missing: %g is used",
               key, fallback);
    c->s = io_meta_set_f64(c->out, gguf, v ? json_object_get_double(v) : fallback);
    if (c->s)
        err_set(c->err, c->s, "no memory for config.json");
}

void family_config_tie(struct family_config *c, struct json_object *whole, const char *gguf)
{
    static const char key[] = "tie_word_embeddings";
    struct json_object *v[2] = {family_config_get(c->json, key), family_config_get(whole, key)};
    bool tied = true;
    for (int i = 0; i < 2; i++)
        tied = tied && (!v[i] || json_object_get_boolean(v[i]));
    if (c->s || (!v[0] && !v[1]))
        return;
    c->s = io_meta_set_bool(c->out, gguf, tied);
    if (c->s)
        err_set(c->err, c->s, "no memory for config.json");
}

/* ---- the other way ---- */

void family_back_put(struct family_back *b, struct json_object *o, const char *key,
                     struct json_object *v)
{
    if (!b->s && (!o || !v || json_object_object_add(o, key, v)))
        b->s = err_set(b->err, INGLE_NOMEM, "no memory for config.json");
    else if (b->s)
        json_object_put(v);
}

void family_back_add(struct family_back *b, struct json_object *list, struct json_object *v)
{
    const bool added = !b->s && list && v && json_object_array_add(list, v) == 0;
    if (added)
        return;
    json_object_put(v);
    if (!b->s)
        b->s = err_set(b->err, INGLE_NOMEM, "no memory for config.json");
}

void family_back_text(struct family_back *b, struct json_object *o, const char *key, const char *v)
{
    family_back_put(b, o, key, json_object_new_string(v));
}

const char *family_back_key(const struct family_back *b, const char *gguf,
                            char out[FAMILY_BACK_KEY])
{
    const char *arch, *dot = strchr(gguf, '.');
    size_t n;
    if (!dot || !strncmp(gguf, "tokenizer.", 10) ||
        io_get_str(io_metadata(b->file), "general.architecture", &arch, &n, NULL) || n > 32)
        return gguf;
    snprintf(out, FAMILY_BACK_KEY, "%.*s%s", (int)n, arch, dot);
    return out;
}

uint64_t family_back_get(const struct family_back *b, const char *gguf, uint64_t other)
{
    char key[FAMILY_BACK_KEY];
    uint64_t v;
    return io_get_u64(io_metadata(b->file), family_back_key(b, gguf, key), 0, INT64_MAX, &v, NULL)
               ? other
               : v;
}

void family_back_whole(struct family_back *b, struct json_object *o, const char *key,
                       const char *gguf)
{
    const uint64_t v = family_back_get(b, gguf, UINT64_MAX);
    if (v != UINT64_MAX)
        family_back_put(b, o, key, json_object_new_int64((int64_t)v));
}

struct json_object *family_back_decimal(double v)
{
    enum { DIGITS = 9 };
    char text[40];
    for (int n = 1; n <= DIGITS; n++) {
        snprintf(text, sizeof text, "%.*g", n, v);
        const float back = strtof(text, NULL);
        if (!(back < (float)v) && !(back > (float)v))
            break;
    }
    if (strchr(text, 'e') && (v >= 1 || v <= -1) && v < 1e9 && v > -1e9) { /* 30.0, not 3e+01 */
        char plain[40];
        snprintf(plain, sizeof plain, "%.1f", v);
        if (!(strtof(plain, NULL) < (float)v) && !(strtof(plain, NULL) > (float)v))
            memcpy(text, plain, sizeof text);
    }
    if (!strpbrk(text, ".e"))
        snprintf(text + strlen(text), sizeof text - strlen(text), ".0");
    return json_object_new_double_s(v, text);
}

void family_back_number(struct family_back *b, struct json_object *o, const char *key,
                        const char *gguf)
{
    char name[FAMILY_BACK_KEY];
    double v;
    if (!io_get_f64(io_metadata(b->file), family_back_key(b, gguf, name), -1e30, 1e30, &v, NULL))
        family_back_put(b, o, key, family_back_decimal(v));
}

struct json_object *family_back_object(struct family_back *b, struct json_object *o,
                                       const char *key)
{
    struct json_object *v = json_object_new_object();
    family_back_put(b, o, key, v);
    return b->s ? NULL : v;
}

void family_back_begin(struct family_back *b, const char *architecture, const char *model_type)
{
    struct json_object *list = json_object_new_array();
    if (list)
        family_back_add(b, list, json_object_new_string(architecture));
    family_back_put(b, b->json, "architectures", list);
    family_back_text(b, b->json, "model_type", model_type);
    family_back_text(b, b->json, "torch_dtype", "bfloat16");
    family_back_put(b, b->json, "tie_word_embeddings",
                    json_object_new_boolean(!io_tensor_find(b->file, "output.weight")));
    family_back_whole(b, b->json, "bos_token_id", "tokenizer.ggml.bos_token_id");
    family_back_whole(b, b->json, "eos_token_id", "tokenizer.ggml.eos_token_id");
    family_back_whole(b, b->json, "pad_token_id", "tokenizer.ggml.padding_token_id");
    const struct io_tensor *t = io_tensor_find(b->file, "token_embd.weight");
    /* a drafter has no embedding */
    const struct io_value *words = io_meta_find(io_metadata(b->file), "tokenizer.ggml.tokens");
    const uint64_t n =
        t ? t->ne[1]
          : family_back_get(b, "any.vocab_size", words && words->kind == IO_ARRAY ? words->n : 0);
    if (!n && !b->s)
        b->s = err_set(b->err, INGLE_FORMAT,
                       "%s: has no tensor 'token_embd.weight' and no vocabulary", io_path(b->file));
    family_back_put(b, b->json, "vocab_size", json_object_new_int64((int64_t)n));
}
