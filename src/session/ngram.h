/*
 * ngram - drafts from text: what followed the newest tokens when they stood there before.
 *
 * An index holds the tokens of one session; a memory holds earlier answers, those of each user by
 * themselves.  A draft continues the place whose tokens before it agree longest with the end of the
 * text, and follows what most of such places agree on.  Every match is compared token by token.
 * How likely a drafted token is right is learned from what became of earlier ones.
 *
 * A call of append, truncate, follow and propose takes a bounded amount of work for each token that
 * it adds, removes or drafts, whatever the text is.  No locks: one thread at a time.
 */
#ifndef INGLE_SESSION_NGRAM_H
#define INGLE_SESSION_NGRAM_H

#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    NGRAM_MOST = 64,         /* tokens of a draft */
    NGRAM_MOST_MATCH = 32,   /* tokens that a match is compared over */
};

struct ngram_options {
    /* tokens at the end of the text that must have been there before, 2 .. 32; 0: 2 */
    int64_t least_match;
    int64_t least;       /* a draft shorter than this is none; 0: 1 */
};

/* ---- the tokens of a session ---- */

struct ngram;

/* INGLE_ARG names the option and its range. */
MUST_CHECK ingle_status session_ngram_create(struct ngram **out, const struct ngram_options *o,
                                             struct err *err);
void session_ngram_free(struct ngram *g);
/* Makes room for n tokens in all, so that no append up to there allocates. */
MUST_CHECK ingle_status session_ngram_reserve(struct ngram *g, int64_t n, struct err *err);
/* Adds tokens at the end; they are copied, and may have any values of 0 and more.  INGLE_NOMEM:
 * none was added. */
MUST_CHECK ingle_status session_ngram_append(struct ngram *g, const int32_t *tokens, int64_t n,
                                             struct err *err);
/* Only the first n tokens stay. */
void session_ngram_truncate(struct ngram *g, int64_t n);
/* What is followed from now on is another text. */
void session_ngram_turn(struct ngram *g);
/* The contents become tokens [0, n), of a text that grew or is a new one since
 * session_ngram_turn(): what both begin with stays.  Takes as much work as *work tokens, less what
 * it needed then.  True: they are what they should be; else another call goes on.  There must be
 * room for n. */
bool session_ngram_follow(struct ngram *g, const int32_t *tokens, int64_t n, int64_t *work);
/* What an index with room for n tokens takes, if that is what was reserved first. */
uint64_t session_ngram_bytes(int64_t n);
int64_t session_ngram_length(const struct ngram *g);

/* ---- earlier answers ---- */

struct ngram_memory;

/* For the answers of at most n_users users, n_tokens each; the user who was not there for the
 * longest time is forgotten first, of a user the oldest answers.  Takes 20 to 28 bytes a token, as
 * they come. */
MUST_CHECK ingle_status session_ngram_memory_create(struct ngram_memory **out, int64_t n_users,
                                                    int64_t n_tokens, struct err *err);
void session_ngram_memory_free(struct ngram_memory *m);
/* Remembers an answer of the user with this salt (session_set_salt()); of a longer one than
 * n_tokens the end. */
MUST_CHECK ingle_status session_ngram_remember(struct ngram_memory *m, uint64_t salt,
                                               const int32_t *tokens, int64_t n, struct err *err);
void session_ngram_forget(struct ngram_memory *m); /* all of it */

/* ---- drafts ---- */

/* Drafts at most `width` tokens after the last token of g (the anchor, which is in g by then).
 * Returns how many; token [width], confidence [width]: how likely the target draws token[j], if it
 * has drawn those before it.  m: where else to look, among the answers of this salt alone; NULL:
 * nowhere. */
int64_t session_ngram_propose(struct ngram *g, struct ngram_memory *m, uint64_t salt, int64_t width,
                              int32_t *token, float *confidence);
/* The other way that the last draft may go on: where the places that it was made from part, what
 * the fewer ones go on with, of all such places in it the one with the most of them.  n: 0: there
 * is none. */
enum { NGRAM_OTHER = 8 };
struct ngram_other {
    int64_t at, n; /* after the first `at` tokens of the draft */
    int32_t token[NGRAM_OTHER];
    /* of the first one if the draft's is wrong; of the others as in the draft */
    float confidence[NGRAM_OTHER];
};
const struct ngram_other *session_ngram_other(const struct ngram *g);
/* Of the draft that was proposed last so many tokens were tried, and so many of them were right. */
void session_ngram_learn(struct ngram *g, int64_t n_tried, int64_t n_right);

#endif
