/*
 * session - timelines and samplers of the public interface.
 */
#ifndef INGLE_ENGINE_SESSION_H
#define INGLE_ENGINE_SESSION_H

#include "engine/engine.h"

enum { ENGINE_MAX_TOP = 4096 }; /* probabilities that are reported with a token */

struct engine_drawing;
struct ingle_session {
    struct ingle_engine *e;
    struct session *s;
    struct engine_drawing *drawing; /* of ingle_session_draw(); NULL: none yet */
    struct ingle_way_use use;       /* since the last sync */
    bool sparse_reported;
};
/* way.c: after steps that moved it; at the end of an answer, reports what it left out, if anything,
 * and begins anew. */
void engine_way_moved(struct ingle_session *s);
void engine_way_end(struct ingle_session *s);

void engine_drawing_free(struct engine_drawing *d);
/* The session has other tokens from now on. */
void engine_drawing_turn(const struct ingle_session *s);

/* Where the first tokens of n came from, and why there are not more of them. */
void engine_explain_reuse(const struct session_reuse *r, int64_t n, struct ingle_reuse *out);

/* The probabilities of the last draw, which was of `token`: out [n_top].  Returns how many are
 * filled. */
int engine_sampler_last(const struct ingle_sampler *s, int32_t token, float *logprob,
                        struct ingle_top *out, int n_top);

/* Users share no cached prefix, in memory or on disk; NULL: 0. */
uint64_t engine_salt_of(const char *user);

/* Its tokens follow a grammar: an end of generation among them is the end of the text. */
bool engine_sampler_follows(const struct ingle_sampler *s);

/* An end of generation is drawn only where the grammar allows nothing else. */
void engine_sampler_ignore_end(struct ingle_sampler *s);

/* ingle_sample(), or INGLE_CANCEL where the pause says so while the grammar is asked: then nothing
 * was drawn. Its logits can be kept until it is tried again; returns the rule whose mask takes so
 * long. */
struct grammar_pause;
struct engine_rule;
MUST_CHECK ingle_status engine_sample_within(struct ingle_sampler *s, const float *logits,
                                             const struct ingle_session *session,
                                             const struct grammar_pause *pause,
                                             struct ingle_token *out, struct ingle_error *error);
/* The same after the first n tokens of the session, which are the history. */
MUST_CHECK ingle_status engine_sample_behind(struct ingle_sampler *s, const float *logits,
                                             const struct ingle_session *session, int64_t n,
                                             const struct grammar_pause *pause,
                                             struct ingle_token *out, struct ingle_error *error);
/* What would be drawn after history [n] if these logits times `sharp` were the model's; what an
 * answer's grammar allows is not asked.  second: what session_sample_second() says then; may be
 * NULL. */
MUST_CHECK ingle_status engine_sample_draft(struct ingle_sampler *s, const float *logits,
                                            const int32_t *history, int64_t n, float sharp,
                                            int32_t *token, int32_t *second, struct err *err);
/* Whether its draws need no random numbers. */
bool engine_sampler_is_greedy(const struct ingle_sampler *s);
/* So many of n tokens may come one after the other, for all that the answer's grammar says. */
int64_t engine_sampler_fit(const struct ingle_sampler *s, const int32_t *token, int64_t n);
/* engine_rule_forced() of its grammar, within some thousand steps; 0: there is none. */
int64_t engine_sampler_forced(const struct ingle_sampler *s, int64_t width, int32_t *token,
                              float *confidence, struct text_ids *scratch);
struct engine_rule *engine_sampler_keep(struct ingle_sampler *s, const float *logits);
struct engine_rule *engine_sampler_rule(const struct ingle_sampler *s); /* NULL: none */
const float *engine_sampler_kept(const struct ingle_sampler *s);

#endif
