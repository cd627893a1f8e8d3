/*
 * media - pictures and sounds inside the engine room: what a prompt has of them.
 */
#ifndef INGLE_ENGINE_MEDIA_H
#define INGLE_ENGINE_MEDIA_H

#include "base/err.h"
#include "ingle/ingle.h"
#include "text/text.h"
#include <stdatomic.h>

/* Tokens of a vocabulary that stand for media; -1: it has none. */
struct engine_media_ids {
    int32_t image, audio, video; /* placeholders */
    int32_t begin_image, end_image, begin_audio, end_audio;
};
void engine_media_ids(const struct tokenizer *t, struct engine_media_ids *out);

/* See ingle.h. */
struct ingle_medium {
    atomic_int refs; /* Sync: atomic */
    struct ingle_medium_info info;
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

#endif
