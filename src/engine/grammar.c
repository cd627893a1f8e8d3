/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar - ingle_grammar_*: compiled grammars, and the trie of a model's vocabulary that
 * they share.
 */
#include "engine/engine.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/words.h"

#include <pthread.h>

struct engine_words {
    pthread_mutex_t lock;
    struct text_grammar_vocab *vocab; /* Sync: lock.  NULL until the first grammar is used */
};

struct ingle_grammar {
    const struct ingle_model *m;
    struct text_grammar *g;
};

ingle_status engine_words_open(struct engine_words **out, struct err *err)
{
    struct engine_words *w = mem_zalloc(sizeof *w);
    if (!w || pthread_mutex_init(&w->lock, NULL)) {
        mem_free(w);
        return err_set(err, INGLE_NOMEM, "no memory for a vocabulary");
    }
    *out = w;
    return INGLE_OK;
}

void engine_words_close(struct engine_words *w)
{
    if (!w)
        return;
    pthread_mutex_destroy(&w->lock);
    text_grammar_vocab_free(w->vocab);
    mem_free(w);
}

/* Logits may have more entries than the tokenizer has tokens, or fewer; those beyond it never
 * fit a grammar. */
static ingle_status vocab_of(const struct ingle_model *m, const struct text_grammar_vocab **out,
                             struct err *err)
{
    ingle_status st = INGLE_OK;
    if (pthread_mutex_lock(&m->words->lock))
        return err_set(err, INGLE_NOMEM, "the vocabulary cannot be locked");
    if (!m->words->vocab)
        st = text_grammar_vocab_create(&m->words->vocab, m->tokenizer, (int64_t)engine_n_tokens(m),
                                       m->end, m->n_end, err);
    *out = m->words->vocab;
    (void)pthread_mutex_unlock(&m->words->lock);
    return st;
}

static ingle_status compile(struct text_grammar **out, const struct ingle_model *m,
                            enum ingle_grammar_kind kind, const char *text, size_t n,
                            struct err *err)
{
    switch (kind) {
    case INGLE_GRAMMAR_GBNF:
        return text_grammar_gbnf(out, m->tokenizer, text, n, err);
    case INGLE_GRAMMAR_JSON:
        return text_grammar_json(out, err);
    case INGLE_GRAMMAR_JSON_SCHEMA:
        return text_grammar_schema(out, text, n, &m->sink, err);
    case INGLE_GRAMMAR_REGEX:
        return text_grammar_regex(out, text, n, err);
    case INGLE_GRAMMAR_TOOLS:
        return text_grammar_tools(out, m->chat, m->tokenizer, text, n, &m->sink, err);
    }
    return err_set(err, INGLE_ARG, "grammar kind %d is unknown", (int)kind);
}

static ingle_status open_grammar(struct ingle_grammar *g, const struct ingle_model *m,
                                 enum ingle_grammar_kind kind, const char *text, size_t n,
                                 struct err *err)
{
    const struct text_grammar_vocab *vocab;
    ingle_status st = engine_need_words(m, err);
    if (!st && !text && kind != INGLE_GRAMMAR_JSON)
        st = err_set(err, INGLE_ARG, "a grammar has no text");
    if (!st)
        st = vocab_of(m, &vocab, err);
    g->m = m;
    return st ? st : compile(&g->g, m, kind, text, n, err);
}

ingle_status ingle_grammar_open(struct ingle_grammar **out, const struct ingle_model *m,
                                enum ingle_grammar_kind kind, const char *text, size_t n,
                                struct ingle_error *error)
{
    struct err err;
    struct ingle_grammar *g = mem_zalloc(sizeof *g);
    if (!g)
        return engine_say(error, err_set(&err, INGLE_NOMEM, "no memory for a grammar"), &err);
    const ingle_status st = open_grammar(g, m, kind, text, n, &err);
    if (st)
        mem_free(g);
    else
        *out = g;
    return engine_say(error, st, &err);
}

void ingle_grammar_close(struct ingle_grammar *g)
{
    if (!g)
        return;
    text_grammar_free(g->g);
    mem_free(g);
}

/* ---- drawing ---- */

struct engine_rule {
    struct text_matcher *matcher;
    uint64_t *allowed; /* [(n_vocab + 63) / 64] */
    size_t n_words, n_matcher_words;
};

ingle_status engine_rule_open(struct engine_rule **out, const struct ingle_grammar *g,
                              const struct ingle_model *m, int64_t n_vocab, struct err *err)
{
    const struct text_grammar_vocab *vocab;
    if (g->m != m)
        return err_set(err, INGLE_ARG, "the grammar was made for another model");
    ingle_status st = vocab_of(m, &vocab, err);
    if (st)
        return st;
    struct engine_rule *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_set(err, INGLE_NOMEM, "no memory for a grammar");
    r->n_words = ((size_t)n_vocab + 63) / 64;
    r->n_matcher_words = (engine_n_tokens(m) + 63) / 64;
    r->allowed = mem_calloc(r->n_words + 1, sizeof *r->allowed);
    st = r->allowed ? text_matcher_create(&r->matcher, g->g, vocab, err)
                    : err_set(err, INGLE_NOMEM, "no memory for a grammar's mask");
    if (st)
        engine_rule_close(r);
    else
        *out = r;
    return st;
}

void engine_rule_close(struct engine_rule *r)
{
    if (!r)
        return;
    text_matcher_free(r->matcher);
    mem_free(r->allowed);
    mem_free(r);
}

ingle_status engine_rule_mask(struct engine_rule *r, const uint64_t **allowed, struct err *err)
{
    const uint64_t *bit;
    const ingle_status st = text_matcher_mask(r->matcher, &bit, err);
    if (st)
        return st;
    for (size_t i = 0; i < r->n_words; i++)
        r->allowed[i] = i < r->n_matcher_words ? bit[i] : 0;
    *allowed = r->allowed;
    return INGLE_OK;
}

ingle_status engine_rule_allows(struct engine_rule *r, int32_t token, bool *allows,
                                struct err *err)
{
    return text_matcher_allows(r->matcher, token, allows, err);
}

ingle_status engine_rule_accept(struct engine_rule *r, int32_t token, struct err *err)
{
    return text_matcher_accept(r->matcher, token, err);
}
