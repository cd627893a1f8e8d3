/*
 * avoid - text that an answer must not hold: which tokens would complete it next.
 *
 * A marker is a token of its own in most vocabularies, but a model that may not draw it can spell
 * it with others.  The last tokens say how much of the marker stands there; for each such
 * beginning the tokens that would complete it are listed beforehand, so that a draw costs a few
 * look-ups.
 */
#ifndef INGLE_TEXT_AVOID_H
#define INGLE_TEXT_AVOID_H

#include "text/chat.h"

struct text_avoid;

/* The marker that begins a call of the family, however it is spelled, and tokens that stand in
 * calls alone; of the first n_tokens of the vocabulary, which is read once.  Does not keep t. */
MUST_CHECK ingle_status text_avoid_calls(struct text_avoid **out, enum text_chat_family family,
                                         const struct tokenizer *t, size_t n_tokens,
                                         struct err *err);
/* The tokens that must not come after the n of history: *id [returned], ascending; they are
 * a's. */
size_t text_avoid_next(const struct text_avoid *a, const int32_t *history, int64_t n,
                       const int32_t **id);
void text_avoid_free(struct text_avoid *a);

#endif
