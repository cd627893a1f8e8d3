/*
 * words - grammars inside the engine room: a model's shared trie, and a sampler's rule.
 */
#ifndef INGLE_ENGINE_WORDS_H
#define INGLE_ENGINE_WORDS_H

#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

struct engine_words;
MUST_CHECK ingle_status engine_words_open(struct engine_words **out, struct err *err);
void engine_words_close(struct engine_words *w);

/* What one answer's tokens follow. */
struct engine_rule;
MUST_CHECK ingle_status engine_rule_open(struct engine_rule **out, const struct ingle_grammar *g,
                                         const struct ingle_model *m, int64_t n_vocab,
                                         struct err *err);
void engine_rule_close(struct engine_rule *r);
/* *allowed: one bit an entry of the logits, valid until the next call on r. */
MUST_CHECK ingle_status engine_rule_mask(struct engine_rule *r, const uint64_t **allowed,
                                         struct err *err);
MUST_CHECK ingle_status engine_rule_allows(struct engine_rule *r, int32_t token, bool *allows,
                                           struct err *err);
/* INGLE_ARG: it does not fit. */
MUST_CHECK ingle_status engine_rule_accept(struct engine_rule *r, int32_t token, struct err *err);
MUST_CHECK ingle_status engine_rule_accept_text(struct engine_rule *r, const char *text, size_t n,
                                                struct err *err);

#endif
