/*
 * media - encoders of an engine, and what they encoded.
 */
#ifndef INGLE_ENGINE_MEDIA_H
#define INGLE_ENGINE_MEDIA_H

#include "api/media.h"
#include "engine/engine.h"
#include "tower/tower.h"

struct engine_media;
/* After the binding of weights: e->media, NULL where there are no encoders; e->media_why says
 * why. */
MUST_CHECK ingle_status engine_media_prepare(struct ingle_engine *e,
                                             const struct ingle_engine_options *o, struct err *err);
void engine_media_free(struct engine_media *m);
/* Of the plan: weights and scratch of the encoders; what is kept of results; rows of a picture that
 * a step has beside others. */
uint64_t engine_media_bytes(const struct ingle_engine *e);
uint64_t engine_media_cache_bytes(const struct ingle_engine *e);
int64_t engine_media_rows(const struct ingle_engine *e);
/* After the runner: the encoders can run. */
MUST_CHECK ingle_status engine_media_open(struct ingle_engine *e, struct err *err);
void engine_media_info(const struct ingle_engine *e, struct ingle_engine_info *out);

/* Its rows are computed.  The engine thread; run as in tower.h, or NULL. */
MUST_CHECK ingle_status engine_media_encode(struct ingle_engine *e,
                                            const struct session_medium *medium,
                                            const struct tower_run *run, double *seconds,
                                            struct err *err);
/* So much of its time was others'. */
void engine_media_yielded(struct ingle_engine *e, double seconds);
/* Before steps of s that take up to n of its waiting tokens (below 0: all): what they lack is
 * encoded. */
MUST_CHECK ingle_status engine_media_ready(struct ingle_engine *e, const struct session *s,
                                           int64_t n, struct err *err);
/* After steps of s: rows that they had may be given up; unless another step is stopped meanwhile,
 * which may be about to read them. */
void engine_media_used(struct ingle_engine *e, const struct session *s, bool stopped);
/* Media of a prompt, of which so many were not needed. */
void engine_media_count(struct ingle_engine *e, const struct session_soft *soft, size_t n_soft,
                        int64_t kept, struct ingle_usage *usage);
/* The media of a session, each with a reference, in *out [*n], ended with mem_free().  Those of a
 * file have no data. */
MUST_CHECK ingle_status engine_media_spans(struct ingle_engine *e, const struct session *s,
                                           struct ingle_span **out, size_t *n, struct err *err);
/* The medium whose name or data these are, of e. */
struct ingle_medium *engine_medium_of(struct session_medium *m);

#endif
