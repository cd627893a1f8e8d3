/* text_vocab - tokenizers for tests: from a GGUF file's metadata, and small ones by hand. */
#ifndef INGLE_TESTS_TEXT_VOCAB_H
#define INGLE_TESTS_TEXT_VOCAB_H

#include "io/io.h"
#include "base/mem.h"
#include "text/tokenizer.h"
#include "unit/xz.h"
#include "unit/unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int32_t vocab_id(const struct io_meta *m, const char *key)
{
    uint64_t id;
    return io_get_u64(m, key, 0, INT32_MAX, &id, NULL) == INGLE_OK ? (int32_t)id : -1;
}

static inline const struct io_value *vocab_array(const struct io_meta *m, const char *key,
                                                 enum io_value_kind elem)
{
    const struct io_value *a = io_meta_find(m, key);
    assert_non_null(a);
    assert_int_equal(a->kind, IO_ARRAY);
    assert_int_equal(a->elem, elem);
    return a;
}

static inline void vocab_strings(const struct io_value *a, const char *const **s, const size_t **n)
{
    const char **at = mem_calloc(a->n, sizeof *at);
    size_t *n_bytes = mem_calloc(a->n, sizeof *n_bytes);
    assert_non_null(at);
    assert_non_null(n_bytes);
    for (size_t i = 0; i < a->n; i++)
        at[i] = io_array_str(a, i, &n_bytes[i]);
    *s = at;
    *n = n_bytes;
}

/* Borrows from f until vocab_release(). */
static inline void vocab_from_gguf(struct text_vocab *v, const struct io_file *f,
                                   const char *source)
{
    const struct io_meta *m = io_metadata(f);
    const char *model = NULL, *pre = NULL;
    char *name[2];
    size_t n, n_pre = 0;
    struct err err;
    *v = (struct text_vocab){.source = source};
    assert_int_equal(io_get_str(m, "tokenizer.ggml.model", &model, &n, &err), INGLE_OK);
    name[0] = mem_strndup(model, n);
    const bool has_pre = io_get_str(m, "tokenizer.ggml.pre", &pre, &n_pre, &err) == INGLE_OK;
    name[1] = has_pre ? mem_strndup(pre, n_pre) : NULL;
    assert_int_equal(text_vocab_kind(name[0], name[1], &v->kind, &err), INGLE_OK);
    mem_free(name[0]);
    mem_free(name[1]);

    const struct io_value *token = vocab_array(m, "tokenizer.ggml.tokens", IO_STR);
    const struct io_value *merge = vocab_array(m, "tokenizer.ggml.merges", IO_STR);
    const struct io_value *type = vocab_array(m, "tokenizer.ggml.token_type", IO_I64);
    assert_int_equal(type->n, token->n);
    v->n_tokens = token->n;
    v->n_merges = merge->n;
    vocab_strings(token, &v->token, &v->token_bytes);
    vocab_strings(merge, &v->merge, &v->merge_bytes);
    int32_t *types = mem_calloc(type->n, sizeof *types);
    assert_non_null(types);
    for (size_t i = 0; i < type->n; i++)
        types[i] = (int32_t)io_array_i64(type, i);
    v->token_type = types;
    v->bos = vocab_id(m, "tokenizer.ggml.bos_token_id");
    v->eos = vocab_id(m, "tokenizer.ggml.eos_token_id");
    v->eot = vocab_id(m, "tokenizer.ggml.eot_token_id");
    v->unk = vocab_id(m, "tokenizer.ggml.unknown_token_id");
    v->pad = vocab_id(m, "tokenizer.ggml.padding_token_id");
    if (io_get_bool(m, "tokenizer.ggml.add_bos_token", &v->add_bos, NULL) != INGLE_OK)
        v->add_bos = false;
}

static inline void vocab_free(const void *p)
{
    union {
        const void *borrowed;
        void *owned;
    } u = {p}; /* the arrays were made here */
    mem_free(u.owned);
}

static inline void vocab_release(struct text_vocab *v)
{
    vocab_free(v->token);
    vocab_free(v->token_bytes);
    vocab_free(v->token_type);
    vocab_free(v->merge);
    vocab_free(v->merge_bytes);
}

/* A tokenizer from tests/data/vocab/NAME-vocab.gguf.xz. */
static inline struct tokenizer *vocab_tokenizer(const char *name)
{
    char path[128];
    size_t n;
    struct err err = {0};
    struct io_file *f = NULL;
    struct text_vocab v;
    struct tokenizer *t = NULL;
    snprintf(path, sizeof path, "tests/data/vocab/%s-vocab.gguf.xz", name);
    char *gguf = test_slurp(path, &n);
    assert_non_null(gguf);
    assert_int_equal(io_open_memory(&f, path, gguf, n, NULL, &err), INGLE_OK);
    vocab_from_gguf(&v, f, path);
    if (text_tokenizer_create(&t, &v, &err) != INGLE_OK)
        fail_msg("%s", err.msg);
    vocab_release(&v);
    io_close(f);
    mem_free(gguf);
    return t;
}

#endif
