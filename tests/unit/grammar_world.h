/* grammar_world - grammars against a small vocabulary of byte-level BPE: all bytes, words that
 * cross the borders of JSON, parts of characters, two special tokens and an end. */
#ifndef INGLE_TESTS_GRAMMAR_WORLD_H
#define INGLE_TESTS_GRAMMAR_WORLD_H

#include "base/mem.h"
#include "grammar/grammar.h"
#include "unit/mini_vocab.h"

enum grammar_form { GBNF, REGEX, SCHEMA, JSON };

struct world {
    struct mini mini;
    char spelling[64][64];
    struct tokenizer *t;
    struct grammar_vocab *v;
    int32_t end, special;
    size_t n;
};

static const char *const world_word[] = {"{\"",
                                         "\":",
                                         "\": ",
                                         "\", \"",
                                         "\",\"",
                                         "\"}",
                                         ",\"",
                                         "true",
                                         "false",
                                         "null",
                                         " \"",
                                         "]}",
                                         "}}",
                                         "12",
                                         "00",
                                         "-1",
                                         ".5",
                                         "  ",
                                         "\n  ",
                                         "\xC3",
                                         "\xA9",
                                         "\xE6\xBC",
                                         "\xA2\xE5",
                                         "\xF0\x9F\x98",
                                         "abc",
                                         "ab",
                                         "hello",
                                         "a\":1,\"b\":",
                                         "\\",
                                         "\\u00",
                                         "\\n",
                                         "[[",
                                         "]]",
                                         "1,2",
                                         "a b",
                                         "<|",
                                         "|>",
                                         "</",
                                         "name",
                                         "2024-0",
                                         "aaaaaaaa",
                                         "aaaaaaaaaaaaaaaaaaaaaaaa",
                                         "{\"a\":[1,2,{\"b\":\"c\"}],\"d\":null}"};

static inline void world_spell(char *out, const char *s)
{
    for (; *s; s++)
        out += utf8_encode(text_byte_char((unsigned char)*s), out);
    *out = 0;
}

/* marks: the families' markers are tokens. */
static inline void world_open(struct world *w, bool marks)
{
    struct err err = {0};
    memset(w, 0, sizeof *w);
    mini_init(&w->mini, TEXT_DEEPSEEK);
    for (size_t i = 0; i < sizeof world_word / sizeof *world_word; i++) {
        world_spell(w->spelling[i], world_word[i]);
        mini_token(&w->mini, w->spelling[i]);
    }
    w->special = mini_special(&w->mini, "<mark>", TEXT_USER_DEFINED);
    w->end = mini_special(&w->mini, "<end>", TEXT_CONTROL);
    w->mini.v.eos = w->end;
    if (marks) {
        mini_special(&w->mini, "<|tool_call>", TEXT_USER_DEFINED);
        mini_special(&w->mini, "<tool_call|>", TEXT_USER_DEFINED);
        mini_special(&w->mini, "<|\"|>", TEXT_USER_DEFINED);
        mini_special(&w->mini, "\xEF\xBD\x9C" "DSML\xEF\xBD\x9C", TEXT_USER_DEFINED);
    }
    if (text_tokenizer_create(&w->t, &w->mini.v, &err))
        fail_msg("%s", err.msg);
    w->n = text_n_tokens(w->t);
    if (grammar_vocab_create(&w->v, w->t, (int64_t)w->n + 3, &w->end, 1, &err))
        fail_msg("%s", err.msg);
}

static inline void world_close(struct world *w)
{
    grammar_vocab_free(w->v);
    text_tokenizer_free(w->t);
}

static inline ingle_status world_try(const struct world *w, struct grammar **g,
                                     enum grammar_form form, const char *text, struct err *err)
{
    switch (form) {
    case GBNF:
        return grammar_gbnf(g, w->t, text, strlen(text), NULL, err);
    case REGEX:
        return grammar_regex(g, text, strlen(text), NULL, err);
    case SCHEMA:
        return grammar_schema(g, text, strlen(text), NULL, NULL, err);
    case JSON:
        break;
    }
    return grammar_json(g, err);
}

static inline struct grammar *world_grammar(const struct world *w, enum grammar_form form,
                                                 const char *text)
{
    struct grammar *g = NULL;
    struct err err = {0};
    if (world_try(w, &g, form, text, &err))
        fail_msg("%s: %s", text ? text : "json", err.msg);
    return g;
}

static inline struct grammar_matcher *world_matcher(const struct world *w, const struct grammar *g)
{
    struct grammar_matcher *m = NULL;
    struct err err = {0};
    if (grammar_matcher_create(&m, g, w->v, &err))
        fail_msg("%s", err.msg);
    return m;
}

/* The mask says of every token what the token alone says. */
static inline void world_check_mask(const struct world *w, struct grammar_matcher *m,
                                    const char *where)
{
    const uint64_t *bit;
    struct err err = {0};
    size_t n_allowed = 0;
    uint64_t copy[16];
    if (grammar_matcher_mask(m, &bit, &err))
        fail_msg("%s: %s", where, err.msg);
    memcpy(copy, bit, (w->n + 3 + 63) / 64 * 8);
    for (size_t i = 0; i < w->n + 3; i++)
        n_allowed += copy[i / 64] >> i % 64 & 1;
    assert_true(n_allowed > 0);
    for (size_t i = 0; i < w->n + 3; i++) {
        bool allows = false;
        assert_int_equal(grammar_matcher_allows(m, (int32_t)i, &allows, &err), INGLE_OK);
        if (allows != (copy[i / 64] >> i % 64 & 1))
            fail_msg("%s: token %zu is %s alone", where, i, allows ? "allowed" : "forbidden");
    }
}

/* Whether the whole text fits; masks are checked at every byte of it. */
static inline bool world_fits(const struct world *w, const struct grammar *g, const char *text,
                              size_t n, bool masks)
{
    struct grammar_matcher *m = world_matcher(w, g);
    struct err err = {0};
    bool fits = true;
    for (size_t i = 0; i < n && fits; i++) {
        size_t taken = 0;
        if (masks)
            world_check_mask(w, m, text);
        if (grammar_matcher_accept_bytes(m, text + i, 1, &taken, &err))
            fail_msg("%s: %s", text, err.msg);
        fits = taken == 1;
    }
    if (fits && masks)
        world_check_mask(w, m, text);
    fits = fits && grammar_matcher_may_end(m);
    grammar_matcher_free(m);
    return fits;
}

#endif
