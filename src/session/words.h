/*
 * words - which part of a vocabulary texts have here, for drafts.
 *
 * A drafter's head over the whole vocabulary is a large part of what it costs, and most of it is
 * for tokens that no text has in this language, of this kind.  Tokens are counted in blocks of
 * neighbours.  The blocks that were seen, filled up with the vocabulary's first ones, are a
 * sixteenth, an eighth, a quarter or a half of it: of these and the whole, what costs least by its
 * size and by the tokens that it has missed recently is what drafts come from.
 */
#ifndef INGLE_SESSION_WORDS_H
#define INGLE_SESSION_WORDS_H

#include "family/family.h"

enum { WORDS_LEAST = 16384 }; /* tokens of a vocabulary that is worth it */

struct words;

MUST_CHECK ingle_status session_words_create(struct words **out, int64_t n_vocab, struct err *err);
void session_words_free(struct words *w);
uint64_t session_words_bytes(int64_t n_vocab);
/* A text goes on with these tokens (each in [0, n_vocab)). */
void session_words_note(struct words *w, const int32_t *token, int64_t n);
/* The columns of logits that drafts may come from, ascending, at most FAMILY_MOST_COLUMNS; *n 0:
 * all.  Valid until the next call on w. True: they are others than last time. */
bool session_words_choose(struct words *w, const struct device_columns **out, int64_t *n);

#endif
