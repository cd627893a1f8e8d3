/*
 * media - pictures and sounds inside the engine room: what a prompt has of them, the encoders, and
 * what was encoded.
 */
#ifndef INGLE_ENGINE_MEDIA_H
#define INGLE_ENGINE_MEDIA_H

#include "base/err.h"
#include "ingle/ingle.h"
#include "media/media.h"
#include "session/session.h"
#include "text/text.h"
#include "tower/tower.h"
#include <stdatomic.h>

/* Tokens of a vocabulary that stand for media; -1: it has none. */
struct engine_media_ids {
    int32_t image, audio, video; /* placeholders */
    int32_t begin_image, end_image, begin_audio, end_audio;
};
void engine_media_ids(const struct tokenizer *t, struct engine_media_ids *out);

/* See ingle.h.  Of an engine there is one of each name; it stays as long as somebody refers to it
 * or its vectors are kept. */
struct ingle_medium {
    struct session_medium soft; /* first; rows: owned, the engine thread's */
    struct ingle_medium_info info;
    struct engine_media *of;
    struct media_picture picture; /* as the encoder sees it, or ... */
    struct media_sound sound;     /* ... this */
    uint8_t file[MEDIA_ID_BYTES]; /* hash of the bytes that it was decoded from, and the budget */
    bool has_file;
    bool used;                    /* a step had its rows since they were made */
    int refs;                     /* Sync: engine_media.lock, as the rest of this */
    uint64_t stamp;               /* when it was last asked for */
    struct ingle_medium *next;
};

/* Takes ids, in which each placeholder stands for the next of media [n_media], and fills ids and
 * spans of *out: each becomes marker, n placeholders, marker.  INGLE_ARG: they do not match. */
MUST_CHECK ingle_status engine_media_expand(const struct ingle_model *m, struct text_ids *ids,
                                            struct ingle_medium *const *media, size_t n_media,
                                            struct ingle_prompt *out, struct err *err);

/* INGLE_ARG: spans do not fit tokens [n]. */
MUST_CHECK ingle_status engine_media_check(const struct ingle_model *m, const int32_t *tokens,
                                           int64_t n, const struct ingle_span *span, size_t n_spans,
                                           struct err *err);
/* The spans as the session room has them, without references; *out is ended with mem_free(); NULL
 * where there are none. */
MUST_CHECK ingle_status engine_media_soft(const struct ingle_span *span, size_t n_spans,
                                          struct session_soft **out, struct err *err);

/* ---- encoders of an engine ---- */

struct ingle_engine;
struct engine_media;
/* Behind the binding of weights: e->media, NULL where there are no encoders; e->media_why says
 * why. */
MUST_CHECK ingle_status engine_media_prepare(struct ingle_engine *e,
                                             const struct ingle_engine_options *o, struct err *err);
void engine_media_free(struct engine_media *m);
/* Of the plan: weights and scratch of the encoders; what is kept of results; rows of a picture that
 * a step has beside others. */
uint64_t engine_media_bytes(const struct ingle_engine *e);
uint64_t engine_media_cache_bytes(const struct ingle_engine *e);
int64_t engine_media_rows(const struct ingle_engine *e);
/* Behind the runner: the encoders can run. */
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
/* Behind steps of s: rows that they had may be given up. */
void engine_media_used(struct ingle_engine *e, const struct session *s);
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
