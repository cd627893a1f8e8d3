/*
 * save - a timeline as one file of its own.
 */
#ifndef INGLE_KV_SAVE_H
#define INGLE_KV_SAVE_H

#include "kv/store.h"

/* ---- a timeline as one file of its own ---- */

struct kv_save_options {
    uint64_t identity;
    const char *model, *numerics, *codec;
    uint32_t sparse;              /* of what is saved, as in struct kv_scope */
    uint64_t salt;             /* the same, */
    struct kv_shorten shorten;       /* ... and this; of what is loaded, what its mark says: */
    void (*scope_of)(const void *mark, size_t mark_bytes, struct kv_scope *out); /* NULL: nothing */
    const char *more; /* after the numerics, for people; or NULL */
    /* while it is true the processor is left to others half of the time; or NULL */
    const atomic_bool *gentle;
    struct kv_media *media;    /* of what is loaded: the pool's */
};
/* tokens [n_tokens], of which the timeline has computed its length.  Any thread, as long as nobody
 * changes the timeline: the pages that it refers to are never written meanwhile. */
MUST_CHECK ingle_status kv_save(const struct kv_timeline *t, const char *path,
                                const struct kv_save_options *o, const int32_t *tokens,
                                int64_t n_tokens, const void *mark, size_t mark_bytes,
                                struct err *err);
/* *tokens and *mark are ended with mem_free().  The timeline is unchanged on failure.
 * INGLE_UNSUP: another model's, or of other settings; INGLE_FORMAT: damaged; INGLE_LIMIT: more
 * than the timeline or the pool can hold. */
MUST_CHECK ingle_status kv_load(struct kv_timeline *t, const char *path,
                                const struct kv_save_options *o, int32_t **tokens,
                                int64_t *n_tokens, void **mark, size_t *mark_bytes,
                                struct err *err);

/* The same in parts, so that files are read while the engine thread does other things. */
struct kv_load;
/* Opens the file and checks what it is.  Any thread. */
MUST_CHECK ingle_status kv_load_begin(struct kv_load **out, const struct kv_spec *spec,
                                      int64_t max_tokens, const char *path,
                                      const struct kv_save_options *o, struct err *err);
/* How they were computed (struct kv_scope); 0: it does not matter for them. */
uint32_t kv_load_sparse(const struct kv_load *l);
/* Its mark [n], valid until its end. */
const void *kv_load_mark(const struct kv_load *l, size_t *n);
/* Its tokens [n], valid until its end. */
const int32_t *kv_load_tokens(const struct kv_load *l, int64_t *n);
/* Media among its tokens [n], which are keys of numbers that l has references of until its end. */
const struct kv_media_span *kv_load_spans(const struct kv_load *l, int64_t *n);
/* Takes pages, for a millisecond.  *more: there are more to take.  The engine thread. */
MUST_CHECK ingle_status kv_load_take(struct kv_load *l, struct kv_pool *p, bool *more,
                                     struct err *err);
/* When all are taken: fills and checks them.  Any thread. */
MUST_CHECK ingle_status kv_load_read(struct kv_load *l, struct err *err);
/* t becomes what was read, unless it is NULL.  The engine thread (any, if no pages were taken); l
 * may be NULL. */
void kv_load_end(struct kv_load *l, struct kv_timeline *t);

#endif
