/*
 * media - pictures and sounds: what a prompt has of them.
 */
#ifndef INGLE_API_MEDIA_H
#define INGLE_API_MEDIA_H

#include "base/err.h"
#include "ingle/ingle.h"
#include "media/media.h"
#include "session/session.h"
#include "text/text.h"

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

/* "picture", "sound" */
const char *engine_medium_kind(enum ingle_media_kind k);

#endif
