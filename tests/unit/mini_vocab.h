/* mini_vocab - small vocabularies by hand: all 256 bytes, then what the test adds. */
#ifndef INGLE_TESTS_MINI_VOCAB_H
#define INGLE_TESTS_MINI_VOCAB_H

#include "base/utf8.h"
#include "text/tokenizer_impl.h"
#include "unit/unit.h"
#include <stdio.h>
#include <string.h>

enum { MINI_CAP = 1024 };

struct mini {
    struct text_vocab v;
    const char *token[MINI_CAP];
    size_t token_bytes[MINI_CAP];
    int32_t type[MINI_CAP];
    const char *merge[MINI_CAP];
    size_t merge_bytes[MINI_CAP];
    char byte[256][8];
};

/* Returns the id. */
static inline int32_t mini_bytes(struct mini *m, const char *s, size_t n, int32_t type)
{
    const size_t i = m->v.n_tokens++;
    assert_true(i < MINI_CAP);
    m->token[i] = s;
    m->token_bytes[i] = n;
    m->type[i] = type;
    return (int32_t)i;
}

static inline int32_t mini_token(struct mini *m, const char *s)
{
    return mini_bytes(m, s, strlen(s), TEXT_NORMAL);
}

static inline int32_t mini_special(struct mini *m, const char *s, int32_t type)
{
    return mini_bytes(m, s, strlen(s), type);
}

static inline void mini_merge(struct mini *m, const char *s)
{
    const size_t i = m->v.n_merges++;
    assert_true(i < MINI_CAP);
    m->merge[i] = s;
    m->merge_bytes[i] = strlen(s);
}

/* Ids 0 to 255 are the bytes. */
static inline void mini_init(struct mini *m, enum text_tokenizer_kind kind)
{
    memset(m, 0, sizeof *m);
    m->v = (struct text_vocab){
        .kind = kind,
        .source = "mini",
        .token = m->token,
        .token_bytes = m->token_bytes,
        .token_type = m->type,
        .merge = m->merge,
        .merge_bytes = m->merge_bytes,
        .bos = -1,
        .eos = -1,
        .eot = -1,
        .unk = -1,
        .pad = -1,
    };
    for (unsigned b = 0; b < 256; b++) {
        size_t n;
        if (kind == TEXT_GEMMA4)
            n = (size_t)snprintf(m->byte[b], sizeof m->byte[b], "<0x%02X>", b);
        else
            n = utf8_encode(text_byte_char((unsigned char)b), m->byte[b]);
        mini_bytes(m, m->byte[b], n, kind == TEXT_GEMMA4 ? TEXT_BYTE : TEXT_NORMAL);
    }
}

static inline struct tokenizer *mini_create(const struct mini *m)
{
    struct tokenizer *t = NULL;
    struct err err = {0};
    if (text_tokenizer_create(&t, &m->v, &err) != INGLE_OK)
        fail_msg("%s", err.msg);
    return t;
}

#endif
