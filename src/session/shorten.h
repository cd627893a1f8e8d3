/*
 * shorten - which tokens of a long prompt are kept, by how much a small model's last rows attend to
 * them.
 *
 * A chunk is SHORTEN_CHUNK tokens.  Always kept: the first and the last chunks, the system turn,
 * tokens of the template, and chunks in or beside which four tokens of the prompt's end occur.
 * Then chunks by falling score (equal ones: the lower first) until the next one would be more than
 * the share that was requested.  A function of its arguments alone.
 */
#ifndef INGLE_SESSION_SHORTEN_H
#define INGLE_SESSION_SHORTEN_H

#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    SHORTEN_CHUNK = 32,
    SHORTEN_FIRST = 8, SHORTEN_LAST = 24, /* chunks */
    SHORTEN_POOL = 5,  /* scores are means of so many neighbours */
    /* of the end's tokens; so many together; chunks that have some, at most */
    SHORTEN_END = 96, SHORTEN_GRAM = 4, SHORTEN_HITS = 64,
    SHORTEN_ROWS = 8,  /* that attend */
};

struct session_shorten {
    const int32_t *token; /* [n] */
    const float *score;   /* [n] */
    const bool *always;   /* [n]: tokens of the template */
    int64_t n, system;    /* the first `system` tokens are kept */
    double keep;          /* share, 0 to 1 */
};
/* kept [n] is filled; *n_kept are true. */
MUST_CHECK ingle_status session_shorten_choose(const struct session_shorten *s, bool *kept,
                                            int64_t *n_kept, struct err *err);

/* The same text in the tokens of two vocabularies, that end at these bytes: those of `to` [n_to]
 * that share a byte with a kept one of `from` [n_from]; tokens without bytes are kept. */
void session_shorten_map(const int64_t *from, const bool *kept_from, int64_t n_from,
                         const int64_t *to, bool *kept_to, int64_t n_to);

#endif
