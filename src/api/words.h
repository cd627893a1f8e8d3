/*
 * words - grammars inside the engine room: a model's shared trie, and a sampler's rule.
 */
#ifndef INGLE_API_WORDS_H
#define INGLE_API_WORDS_H

#include "base/err.h"
#include "grammar/grammar.h"
#include "ingle/ingle.h"
#include <stdbool.h>
#include <stdint.h>

struct engine_words;
MUST_CHECK ingle_status engine_words_open(struct engine_words **out, struct err *err);
void engine_words_close(struct engine_words *w);
/* What grammars that nobody follows at the moment are kept with: bounded. */
size_t engine_words_bytes(struct engine_words *w);

/* What one answer's tokens follow. */
struct engine_rule;
MUST_CHECK ingle_status engine_rule_open(struct engine_rule **out, const struct ingle_grammar *g,
                                         const struct ingle_model *m, int64_t n_vocab,
                                         struct err *err);
void engine_rule_close(struct engine_rule *r);
/* *allowed: one bit an entry of the logits, valid until a token is accepted.  INGLE_CANCEL: the
 * pause (NULL: none) says so, and it goes on with the next call. */
MUST_CHECK ingle_status engine_rule_mask(struct engine_rule *r, const struct grammar_pause *pause,
                                         const uint64_t **allowed, struct err *err);
MUST_CHECK ingle_status engine_rule_allows(struct engine_rule *r, const struct grammar_pause *pause,
                                           int32_t token, bool *allows, struct err *err);
/* *fit: how many of the n tokens may come one after the other; nothing is accepted. */
MUST_CHECK ingle_status engine_rule_fits(struct engine_rule *r, const struct grammar_pause *pause,
                                         const int32_t *token, int64_t n, int64_t *fit,
                                         struct err *err);
/* What the grammar leaves no choice of, as tokens: as the tokenizer cuts it, where it can be cut in
 * several ways.  Returns how many of `width`, with how likely each is drawn; 1: no other one can
 * be.  0 where it would take too much.  scratch: kept between calls. */
struct text_ids;
int64_t engine_rule_forced(struct engine_rule *r, const struct grammar_pause *pause, int64_t width,
                           int32_t *token, float *confidence, struct text_ids *scratch);
/* INGLE_ARG: it does not fit. */
MUST_CHECK ingle_status engine_rule_accept(struct engine_rule *r, int32_t token, struct err *err);
MUST_CHECK ingle_status engine_rule_accept_text(struct engine_rule *r, const char *text, size_t n,
                                                struct err *err);

/* A thread for masks that take long, of up to n answers; news() is called by it when one is
 * done. */
struct engine_masks;
MUST_CHECK ingle_status engine_masks_open(struct engine_masks **out, size_t n,
                                          void (*news)(void *arg), void *arg, struct err *err);
/* NULL is taken. */
void engine_masks_close(struct engine_masks *m);
/* Answer i's mask is to be made.  rule is the thread's until it is taken, or dropped. */
void engine_masks_add(struct engine_masks *m, size_t i, struct engine_rule *rule);
/* True: it is done; the mask is the rule's, or *st and *err say why there is none. */
bool engine_masks_take(struct engine_masks *m, size_t i, ingle_status *st, struct err *err);
/* Whatever there is of it, the thread leaves it: after some thousand steps. */
void engine_masks_drop(struct engine_masks *m, size_t i);

#endif
