/*
 * sample - logits to a token.
 *
 * Random numbers are counter-based: token i of a seeded request is a function of (seed, i,
 * logits) and of the tokens before it alone.  Order: bias and suppressed tokens, penalties,
 * DRY, then top-k, typical, top-p, min-p, XTC, temperature, draw.
 */
#ifndef INGLE_SESSION_SAMPLE_H
#define INGLE_SESSION_SAMPLE_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sample_bias { int32_t token; float bias; };

struct sample_options {
    float temperature;             /* 0: greedy */
    int32_t top_k;                 /* 0: all */
    float top_p, min_p, typical_p; /* 1, 0, 1: off */
    float repeat_penalty;          /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    int32_t penalty_window;        /* tokens looked back at; 0: 64, -1: all */
    float dry_multiplier, dry_base; /* 0: off */
    int32_t dry_allowed_length, dry_window;
    float xtc_probability, xtc_threshold;
    uint64_t seed;
    const struct sample_bias *bias; /* borrowed while the sampler lives */
    size_t n_bias;
    const int32_t *suppress;        /* never drawn */
    size_t n_suppress;
    const int32_t *dry_breaker;     /* tokens that end a repeated sequence */
    size_t n_dry_breaker;
};

void sample_defaults(struct sample_options *o); /* everything off, greedy */

struct sampler;
MUST_CHECK ingle_status sample_create(struct sampler **out, const struct sample_options *o,
                                      int64_t n_vocab, struct err *err);
void sample_free(struct sampler *s);

struct sample_token { int32_t id; float logprob; }; /* of the unmodified distribution */

/* Draws token number i of the request from logits f32 [n_vocab] (not changed).  history:
 * all tokens before it, for penalties.  INGLE_NUMERIC: a logit is NaN. */
MUST_CHECK ingle_status sample_draw(struct sampler *s, const float *logits, uint64_t i,
                                    const int32_t *history, int64_t n_history,
                                    struct sample_token *out, struct err *err);

#endif
