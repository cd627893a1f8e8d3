/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

struct list {
    const char **at;
    size_t *n_bytes;
    size_t n;
};

static void list_release(struct list *l)
{
    mem_free(l->at);
    mem_free(l->n_bytes);
}

/* The strings of an array, borrowed. */
static ingle_status read_list(const struct io_meta *meta, const char *source, const char *key,
                              struct list *out, struct err *err)
{
    const struct io_value *v = io_meta_find(meta, key);
    if (!v)
        return err_set(err, INGLE_FORMAT, "%s: '%s' is missing: the file has no vocabulary", source,
                       key);
    if (v->kind != IO_ARRAY || v->elem != IO_STR)
        return err_set(err, INGLE_FORMAT, "%s: '%s' is no array of strings", source, key);
    out->n = v->n;
    out->at = mem_calloc(v->n + 1, sizeof *out->at);
    out->n_bytes = mem_calloc(v->n + 1, sizeof *out->n_bytes);
    if (!out->at || !out->n_bytes)
        return err_set(err, INGLE_NOMEM, "%s: no memory for %zu strings of '%s'", source, v->n,
                       key);
    for (size_t i = 0; i < v->n; i++)
        out->at[i] = io_array_str(v, i, &out->n_bytes[i]);
    return INGLE_OK;
}

static ingle_status read_types(const struct io_meta *meta, const char *source, size_t n,
                               int32_t **out, struct err *err)
{
    static const char key[] = "tokenizer.ggml.token_type";
    const struct io_value *v = io_meta_find(meta, key);
    if (!v)
        return INGLE_OK;
    if (v->kind != IO_ARRAY || (v->elem != IO_I64 && v->elem != IO_U64) || v->n != n)
        return err_set(err, INGLE_FORMAT, "%s: '%s' is no array of %zu integers", source, key, n);
    int32_t *type = mem_calloc(n + 1, sizeof *type);
    if (!type)
        return err_set(err, INGLE_NOMEM, "%s: no memory for %zu token types", source, n);
    *out = type;
    for (size_t i = 0; i < n; i++) {
        const int64_t t = v->elem == IO_I64 ? io_array_i64(v, i) : (int64_t)io_array_u64(v, i);
        if (t < TEXT_NORMAL || t > TEXT_BYTE)
            return err_set(err, INGLE_FORMAT, "%s: '%s' of token %zu is %lld, outside 1 to 6",
                           source, key, i, (long long)t);
        type[i] = (int32_t)t;
    }
    return INGLE_OK;
}

static ingle_status read_id(const struct io_meta *meta, const char *key, size_t n, int32_t *out,
                            struct err *err)
{
    uint64_t id;
    const ingle_status st = io_get_u64(meta, key, 0, n - 1, &id, err);
    if (st == INGLE_OK)
        *out = (int32_t)id;
    else if (st == INGLE_NOTFOUND)
        *out = -1;
    return st == INGLE_NOTFOUND ? INGLE_OK : st;
}

static ingle_status read_ids(const struct io_meta *meta, struct text_vocab *v, struct err *err)
{
    const struct {
        const char *key;
        int32_t *to;
    } id[] = {
        {"tokenizer.ggml.bos_token_id", &v->bos},     {"tokenizer.ggml.eos_token_id", &v->eos},
        {"tokenizer.ggml.eot_token_id", &v->eot},     {"tokenizer.ggml.unknown_token_id", &v->unk},
        {"tokenizer.ggml.padding_token_id", &v->pad},
    };
    for (size_t i = 0; i < sizeof id / sizeof *id; i++) {
        const ingle_status st = read_id(meta, id[i].key, v->n_tokens, id[i].to, err);
        if (st)
            return st;
    }
    const ingle_status st = io_get_bool(meta, "tokenizer.ggml.add_bos_token", &v->add_bos, err);
    return st == INGLE_NOTFOUND ? INGLE_OK : st;
}

/* A string value, or NULL when the key is absent.  GGUF strings that name things hold no 0. */
static ingle_status read_name(const struct io_meta *meta, const char *key, char **out,
                              struct err *err)
{
    const char *s;
    size_t n;
    const ingle_status st = io_get_str(meta, key, &s, &n, err);
    if (st)
        return st == INGLE_NOTFOUND ? INGLE_OK : st;
    *out = mem_strndup(s, n);
    return *out ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for '%s'", key);
}

ingle_status engine_vocab_gguf(struct tokenizer **out, const struct io_meta *meta,
                               const char *source, struct err *err)
{
    struct list tokens = {0}, merges = {0};
    int32_t *type = NULL;
    char *model = NULL, *pre = NULL;
    struct text_vocab v = {.source = source, .add_bos = false};
    ingle_status st = read_name(meta, "tokenizer.ggml.model", &model, err);
    if (!st)
        st = read_name(meta, "tokenizer.ggml.pre", &pre, err);
    if (!st && (st = text_vocab_kind(model, pre, &v.kind, err)))
        err_prefix(err, "%s", source);
    if (!st)
        st = read_list(meta, source, "tokenizer.ggml.tokens", &tokens, err);
    if (!st && (tokens.n < 1 || tokens.n > INT32_MAX))
        st = err_set(err, INGLE_FORMAT, "%s: a vocabulary of %zu tokens is outside 1 to %d", source,
                     tokens.n, INT32_MAX);
    if (!st)
        st = read_list(meta, source, "tokenizer.ggml.merges", &merges, err);
    if (!st)
        st = read_types(meta, source, tokens.n, &type, err);
    v.n_tokens = tokens.n;
    v.token = tokens.at;
    v.token_bytes = tokens.n_bytes;
    v.token_type = type;
    v.n_merges = merges.n;
    v.merge = merges.at;
    v.merge_bytes = merges.n_bytes;
    if (!st)
        st = read_ids(meta, &v, err);
    if (!st)
        st = text_tokenizer_create(out, &v, err);
    list_release(&tokens);
    list_release(&merges);
    mem_free(type);
    mem_free(model);
    mem_free(pre);
    return st;
}
