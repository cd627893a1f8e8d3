/*
 * grammar - which tokens may come next.
 *
 * Everything compiles to one form: rules that are small automata over bytes and special
 * tokens and may call each other.  A repetition {m,n} is a counter, not n copies.  A
 * compiled grammar is read-only and may be used by any thread; so is a vocabulary.  A matcher
 * follows one answer and belongs to one thread at a time.
 *
 * Limits: text of GRAMMAR_TEXT_BYTES, those of impl.h, and the work that compiling takes.  A limit
 * that is hit is INGLE_LIMIT and names itself.
 */
#ifndef INGLE_GRAMMAR_GRAMMAR_H
#define INGLE_GRAMMAR_GRAMMAR_H

#include "base/report.h"
#include "text/text.h"

enum {
    GRAMMAR_TEXT_BYTES = 1 << 20,
    GRAMMAR_TEXT_VALUES = 1 << 17, /* JSON values of a schema */
    GRAMMAR_WORK_STEPS = 1 << 22,
    GRAMMAR_WORK_BYTES = 48 << 20, /* of schemas that are made while one is compiled */
};

struct grammar;

/* The work of compiling.  A step takes some ten nanoseconds: a node, a key that is merged, a value
 * that is compared. */
struct grammar_work {
    uint64_t max_steps;      /* 0: GRAMMAR_WORK_STEPS */
    bool (*stop)(void *arg); /* NULL, or asked every few thousand steps: true is INGLE_CANCEL */
    void *arg;
    /* keywords of schemas that are not supported are left out, with a warning */
    bool drop;
    uint64_t n_steps, n_bytes; /* what was done so far; compilers add to it */
};

/* t (may be NULL) is requested special tokens; it is not kept.  work may be NULL.  Texts of errors
 * name line and rule, or keyword and JSON path. */
MUST_CHECK ingle_status grammar_gbnf(struct grammar **out, const struct tokenizer *t,
                                          const char *text, size_t n, struct grammar_work *work,
                                          struct err *err);
MUST_CHECK ingle_status grammar_regex(struct grammar **out, const char *text, size_t n,
                                           struct grammar_work *work, struct err *err);
/* Any JSON object. */
MUST_CHECK ingle_status grammar_json(struct grammar **out, struct err *err);
/* Warnings (what is accepted but not enforced) go to sink, which may be NULL. */
MUST_CHECK ingle_status grammar_schema(struct grammar **out, const char *text, size_t n,
                                            const struct report_sink *sink,
                                            struct grammar_work *work, struct err *err);
/* {"tools": [...], "choice": "required", a name or a list of names, "parallel": bool} to calls in
 * the form of a family; with "answer" (a JSON schema, or true for any object) or JSON text instead
 * of them; with "behind": true what comes after the marker of a call (up to the end of it, or of
 * its block), and any arguments of tools whose schema is not supported. */
MUST_CHECK ingle_status grammar_tools(struct grammar **out, enum text_chat_family family,
                                           const struct tokenizer *t, const char *text, size_t n,
                                           const struct report_sink *sink,
                                           struct grammar_work *work, struct err *err);
/* The token without which no marker of a call is written; -1: t has none, it is spelled. */
int32_t grammar_mark(enum text_chat_family family, const struct tokenizer *t);
void grammar_free(struct grammar *g);
/* How large the automaton is. */
size_t grammar_n_nodes(const struct grammar *g);

/* The vocabulary as a trie of bytes: ordinary and byte tokens.  Special and unused tokens
 * are reached by name alone. */
struct grammar_vocab;
/* n_vocab: ids that logits have (>= the tokenizer's); end: the ids that end an answer,
 * copied. */
MUST_CHECK ingle_status grammar_vocab_create(struct grammar_vocab **out,
                                                  const struct tokenizer *t, int64_t n_vocab,
                                                  const int32_t *end, size_t n_end,
                                                  struct err *err);
void grammar_vocab_free(struct grammar_vocab *v);

struct grammar_matcher;
/* g and v are borrowed until grammar_matcher_free(). */
MUST_CHECK ingle_status grammar_matcher_create(struct grammar_matcher **out,
                                            const struct grammar *g,
                                            const struct grammar_vocab *v, struct err *err);
void grammar_matcher_free(struct grammar_matcher *m);
/* What it holds. */
size_t grammar_matcher_bytes(const struct grammar_matcher *m);
/* Back to the start, for another answer: what was found out about the grammar stays. */
MUST_CHECK ingle_status grammar_matcher_reset(struct grammar_matcher *m, struct err *err);

/* What bounds a call: more steps than max_steps (0: any number), or stop() (NULL, or asked every
 * few thousand steps) returns true: then it is INGLE_CANCEL, and may be tried again: what m has
 * found out stays. */
struct grammar_pause {
    uint64_t max_steps;
    bool (*stop)(void *arg);
    void *arg;
};
/* Of the calls from now on; p is borrowed until the next one, NULL: nothing bounds them but the
 * limits. */
void grammar_matcher_bound(struct grammar_matcher *m, const struct grammar_pause *p);

/* *allowed: one bit a token, [(n_vocab + 63) / 64], valid until the next call on m.  The
 * tokens that end an answer are among them exactly where the text may end, or where no
 * token of the vocabulary can go on.  INGLE_LIMIT: the grammar is too ambiguous here. */
MUST_CHECK ingle_status grammar_matcher_mask(struct grammar_matcher *m, const uint64_t **allowed,
                                          struct err *err);
/* Whether one token may come next, without the whole mask (an end of the answer: only where
 * the text may end). */
MUST_CHECK ingle_status grammar_matcher_allows(struct grammar_matcher *m, int32_t token,
                                               bool *allows, struct err *err);
/* *fit: how many of the n tokens may come one after the other; m stays where it is.  INGLE_CANCEL,
 * INGLE_LIMIT: it would take too much. */
MUST_CHECK ingle_status grammar_matcher_fits(struct grammar_matcher *m, const int32_t *token,
                                             int64_t n, int64_t *fit, struct err *err);
/* What has to come next, as far as the grammar leaves no choice: pieces, each a token that is
 * reached by name alone, or bytes.  `open`: after the last piece the text may go on in several
 * ways, but it cannot end there (or room ended). */
struct grammar_forced {
    int32_t token;  /* -1: bytes */
    size_t n_bytes; /* of them, after those of the pieces before */
};
/* Up to *n pieces and cap bytes; *n becomes how many there are.  m stays where it is.
 * INGLE_CANCEL, INGLE_LIMIT: it would take too much. */
MUST_CHECK ingle_status grammar_matcher_forced(struct grammar_matcher *m,
                                               struct grammar_forced *piece, size_t *n, char *bytes,
                                               size_t cap, bool *open, struct err *err);
/* Whether one token alone can be the next of a text that begins with these bytes; open: more bytes
 * follow, which are not known. */
bool grammar_vocab_single(const struct grammar_vocab *v, const char *bytes, size_t n, bool open);
/* Bytes of a token; 0: it is reached by name alone, or there is none. */
size_t grammar_vocab_bytes(const struct grammar_vocab *v, int32_t token);
/* The token has been drawn.  INGLE_ARG: it was not allowed (m is unchanged). */
MUST_CHECK ingle_status grammar_matcher_accept(struct grammar_matcher *m, int32_t token,
                                            struct err *err);
/* The same for plain text; *n_taken of its n bytes fit. */
MUST_CHECK ingle_status grammar_matcher_accept_bytes(struct grammar_matcher *m, const char *bytes,
                                                  size_t n, size_t *n_taken, struct err *err);
bool grammar_matcher_may_end(const struct grammar_matcher *m);

#endif
