/*
 * round - rounds of a golden model's drafter in the runner: contexts that came in pieces, and every
 * logit.
 */
#ifndef INGLE_TESTS_ROUND_H
#define INGLE_TESTS_ROUND_H

#include "golden/golden.h"

/* The session computes tokens [0, n), of which it may have some, and tokens[n] waits: the anchor.
 * seed 0: at once; else in random pieces, some of which are taken back and computed again. */
void round_context(struct golden_model *g, struct session *s, const int32_t *tokens, int64_t n,
                   uint32_t seed);

/* A round of one session.  forced [n]: what stands for the drawn tokens, or NULL: the best logit's.
 * Results, or NULL: token [n], logits f32 [n][n_vocab], confidence [n]. */
struct round {
    int64_t n;
    const int32_t *forced;
    int32_t *token;
    float *logits, *confidence;
};
void round_run(struct golden_model *g, struct session *s, const struct round *r);

/* Greedy answers of a golden.json with passes of speculation, with the drafter: text, drafts,
 * accepted ones.  set: of "weights".  A draft may differ in at most `wrong` passes; a confidence by
 * at most sure. */
struct round_passes { const char *path, *set; int64_t wrong; double sure; };
void round_passes(struct golden_model *g, const struct round_passes *p);

#endif
