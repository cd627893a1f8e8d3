/*
 * draft - what drafts beside a model.
 */
#ifndef INGLE_ENGINE_DRAFT_H
#define INGLE_ENGINE_DRAFT_H

#include "engine/engine.h"

/* A drafter that fits its target. */
struct engine_draft {
    const struct family_draft *kind;
    struct report_sink sink;     /* silent until it is taken */
    struct ingle_model *file;    /* owned; NULL: it is in the target's own file */
    const char *path;            /* of its file, or the target's */
    struct io_meta *own_meta;    /* of a checkpoint */
    struct model *weights;
    void *self;
    struct family_draft_info info;
    uint64_t weight_bytes, form, identity;
};

/* Sets e->draft, draft_text, draft_most and draft_why as the options say; of several drafters the
 * best that suits (e: with e->draft set to it) agrees to, which may be asked again and again.
 * After the binding of the target. */
typedef bool engine_suits_fn(const struct ingle_engine *e, const struct ingle_engine_options *o);
MUST_CHECK ingle_status engine_draft_choose(struct ingle_engine *e,
                                            const struct ingle_engine_options *o,
                                            engine_suits_fn *suits, struct err *err);
void engine_draft_free(struct engine_draft *d);
/* What drafts for a request that asks for this method (NULL: "auto").  INGLE_ARG: there is no such
 * method, or it is not at hand; the text says what is. */
MUST_CHECK ingle_status engine_draft_method(const struct ingle_engine *e, const char *method,
                                            bool *network, bool *text, struct err *err);

/* Memory of what drafts from text, at most: of each session, and what is kept of users. */
enum { ENGINE_MEMORY_USERS = 16, ENGINE_MEMORY_TOKENS = 8192 };
MUST_CHECK bool engine_drafts_bytes(int64_t n_sessions, int64_t n_ctx, uint64_t *out);

/* Branches that there are for trees of so many nodes. */
enum { ENGINE_BRANCHES = 15 };
int64_t engine_branches_of(int64_t n_nodes);

/* Hash of hyper-parameters of an architecture ("ARCH."; "": all but the tokenizer's) on top of
 * h. */
uint64_t engine_meta_hash(const struct io_meta *meta, const char *arch, uint64_t h);

#endif
