/*
 * sample - logits to a token.
 *
 * Random numbers are counter-based (Philox 4x32-10 keyed by the seed, counter i): token
 * number i of a request is a function of (seed, i, logits, history) and the options alone.
 * Nothing is remembered between draws, and a draw allocates nothing.  The bits do not
 * depend on the instruction set: exp and log are plain double arithmetic (draw.h).
 *
 * Each parameter means what it means in llama.cpp, in the order of that program's default
 * chain.  Let l be the logits and p the softmax of what is still kept (renormalised at
 * every stage; temperature comes last):
 *   allowed       tokens outside the set of session_sample_allow() are forbidden.
 *   bias          l[t] += bias; -inf forbids a token.  Suppressed tokens are forbidden, as are ends
 *   that
 *                 come too early, the last token of a banned sequence, and what is not in `only`.
 *   penalties     over the last penalty_window tokens, c(t) = occurrences of t there; for
 *                 c(t) > 0: l = l > 0 ? l / repeat : l * repeat, then
 *                 l -= c(t) * frequency + presence.
 *   DRY           if drawing t would extend a sequence of n tokens at the end of the last
 *                 dry_window tokens that stood there before followed by t, n >= allowed:
 *                 l -= multiplier * base^(n - allowed) with the largest such n.  A breaker
 *                 token ends a sequence and is never penalised.
 *   top-k         the k largest.
 *   typical       by ascending |-log p - H|, H the entropy: the shortest beginning whose
 *                 sum exceeds typical_p.
 *   top-p         by descending p: the shortest beginning whose sum reaches top_p.
 *   min-p         those with p >= min_p * the largest p.
 *   XTC           with xtc_probability: of those with p >= xtc_threshold (if two or more)
 *                 all but the least probable go.
 *   temperature   p ~ exp(l / temperature); 0: the largest logit.
 *   draw          an exponential race (draw.h): the largest l / temperature + G, where G is the
 *   token's own
 *                 number, a function of (seed, i, id).  So distributions that differ little have
 *                 mostly the same
 *                 token, and what is forbidden changes nothing among the others.
 * Equal logits are ordered by ascending id, everywhere.  At least one token is always kept.
 */
#ifndef INGLE_SESSION_SAMPLE_H
#define INGLE_SESSION_SAMPLE_H

#include "device/device.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sample_bias {
    int32_t token;
    float bias;
};

struct sample_options {
    float temperature;                         /* 0: greedy */
    int32_t top_k;                             /* 0: all */
    float top_p, min_p, typical_p;             /* 1, 0, 1: off */
    float repeat_penalty;                      /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    int32_t penalty_window;                    /* tokens looked back at; 0: 64, -1: all */
    float dry_multiplier;                      /* 0: off */
    float dry_base;                            /* 0: 1.75; else >= 1 */
    int32_t dry_allowed_length;                /* 0: 2 */
    int32_t dry_window;                        /* 0 or -1: all */
    float xtc_probability, xtc_threshold;      /* 0: off; a threshold above 0.5: off */
    uint64_t seed;
    const struct sample_bias *bias; /* copied, as are the lists below */
    size_t n_bias;
    const int32_t *suppress; /* never drawn */
    size_t n_suppress;
    const int32_t *end; /* not drawn as the first min_tokens tokens after n_prompt */
    size_t n_end;
    int64_t n_prompt, min_tokens;
    /* sequences, each with -1 after it: its last token is not drawn after its others, */
    const int32_t *banned;
    size_t n_banned;       /* all of them after n_prompt */
    const int32_t *only;   /* no other token is drawn; n_only 0: any may be */
    size_t n_only;
    const int32_t *dry_breaker; /* tokens that end a repeated sequence */
    size_t n_dry_breaker;
    bool logprobs; /* fill sample_token.logprob; costs a pass over the vocabulary */
};

void session_sample_defaults(struct sample_options *o); /* everything off, greedy */

struct sampler;

/* Bytes that a sampler keeps for a vocabulary (DRY and lists of tokens take more). */
uint64_t session_sample_bytes(int64_t n_vocab);

/* For logits of n_vocab (>= 1) tokens and histories of which at most the last n_history
 * tokens are looked at.  INGLE_ARG names the option, its value and its range. */
MUST_CHECK ingle_status session_sample_create(struct sampler **out, const struct sample_options *o,
                                              int64_t n_vocab, int64_t n_history,
                                              struct err *err);
void session_sample_free(struct sampler *s);

/* Later draws take none but the tokens whose bit is set in allowed [(n_vocab + 63) / 64]; NULL:
 * all.  Borrowed until the next call of this. */
void session_sample_allow(struct sampler *s, const uint64_t *allowed);

/* Later draws take none of the n tokens at id (0 <= id < n_vocab), on top of what else forbids
 * some. Borrowed until the next call of this. */
void session_sample_forbid(struct sampler *s, const int32_t *id, size_t n);

/* The same for all later draws, beside the list of session_sample_forbid(). */
void session_sample_never(struct sampler *s, const int32_t *id, size_t n);

/* Later draws multiply the given logits by that much, before anything else; 1 is what a target
 * needs.  A drafter that is less sure than its target, as those are that do not know the drafted
 * tokens before, draws the target's token more often when its logits are sharper.  Above 0, at most
 * SAMPLE_MOST_SHARP; else 1. */
enum { SAMPLE_MOST_SHARP = 64 };
void session_sample_sharpen(struct sampler *s, float by);

/* Later draws look at these tokens alone, as if all others were forbidden (as in
 * device_matmul_columns()); n 0: at all. Borrowed until the next call of this. */
void session_sample_part(struct sampler *s, const struct device_columns *part, int64_t n);

struct sample_token {
    int32_t id;
    float logprob; /* under the softmax of the given logits, before any option; 0 unless asked */
};

/* Draws token number i of the request from logits f32 [n_vocab] (not changed).  history:
 * all tokens before it, for penalties.  INGLE_NUMERIC: a logit is NaN or +inf, or every
 * token is forbidden; INGLE_LIMIT: every allowed one is (session_sample_allow()); INGLE_ARG: a
 * token of the history is outside the vocabulary. */
MUST_CHECK ingle_status session_sample_draw(struct sampler *s, const float *logits, uint64_t i,
                                            const int32_t *history, int64_t n_history,
                                            struct sample_token *out, struct err *err);

/* The token that would have won the last draw had the one that did not taken part, with the
 * filters' choice as it was; -1: there is none.  What a second guess is best made of: whoever draws
 * from a like distribution, and not the first one, mostly draws this. */
int32_t session_sample_second(const struct sampler *s);

/* The distribution that session_sample_draw() would draw from: the kept tokens by descending
 * probability, the sum of p being 1 up to rounding.  Borrowed until the next call on s. */
struct sample_choice {
    int32_t id;
    float logit; /* after bias and penalties */
    double p;
};
MUST_CHECK ingle_status session_sample_distribution(struct sampler *s, const float *logits,
                                                    uint64_t i, const int32_t *history,
                                                    int64_t n_history,
                                                    const struct sample_choice **out, int64_t *n,
                                                    struct err *err);

/* The n_top most probable tokens under the softmax of logits f32 [n_vocab], most probable
 * first (of equal ones the lower id), and the log probability of `token`; either out may
 * be NULL.  n_top is at most n_vocab. */
struct sample_top {
    int32_t id;
    float logprob;
};
void session_sample_logprobs(const float *logits, int64_t n_vocab, int32_t token, float *logprob,
                             struct sample_top *top, int n_top);

/* The same of the distribution of the last draw.  Returns how many of top are filled: n_top, or as
 * many as could be drawn. */
int session_sample_last(struct sampler *s, int32_t token, float *logprob, struct sample_top *top,
                        int n_top);

/* Whether a token that is drawn without session_sample_allow() is the one that is drawn with it, if
 * it is allowed. */
bool session_sample_is_free(const struct sampler *s);

#endif
