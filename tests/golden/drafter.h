/*
 * drafter - a network that drafts beside a golden model, on timelines of its own: what the target
 * computes is kept by position and shown to the network in pieces.
 */
#ifndef INGLE_TESTS_DRAFTER_H
#define INGLE_TESTS_DRAFTER_H

#include "golden/golden.h"

enum { DRAFTER_CTX = 640, DRAFTER_TIMELINES = 4 };

struct drafter {
    struct golden_model g; /* the target */
    struct io_file *file;
    struct io_meta *meta;  /* of a checkpoint */
    struct json_object *config;
    struct model *model;
    const struct family_draft *kind;
    void *self;
    struct family_draft_info info;
    struct kv_spec spec;
    struct kv_pool *pool;
    struct kv_timeline *timeline[DRAFTER_TIMELINES];
    float *taps;           /* f32 [n_layers + 1][DRAFTER_CTX][n_embd]: embedding, then layers */
    int64_t n_taps;        /* positions */
};

struct drafter_options {
    struct golden_options target;
    struct family_draft_options draft;
};

void drafter_open(struct drafter *d, const char *target, const char *path,
                  const struct drafter_options *o);
void drafter_close(struct drafter *d);

/* Opens both and expects the drafter to be refused. */
void drafter_refused(const char *target, const char *path, const char *part_of_the_error);

/* Whether the drafter can be bound beside an open target; else err. */
bool drafter_binds(const struct golden_model *target, const char *path, struct err *err);

/* The target computes tokens [0, n); what it had before is forgotten. */
void drafter_target(struct drafter *d, const int32_t *tokens, int64_t n);
/* The network observes n more positions of a timeline. */
void drafter_observe(struct drafter *d, int timeline, int64_t n);
void drafter_rewind(struct drafter *d, int timeline, int64_t length);

/* A round of n timelines, [0, n).  anchor [n]; from [n] or NULL.  forced: [n][n_drafts] tokens that
 * stand for what was drawn, or NULL: the best logit's.  Results, each [n][n_drafts]...: tokens,
 * logits [...][n_vocab], confidence; or NULL. */
struct drafter_round {
    int n;
    const int32_t *anchor, *forced;
    const int64_t *from;
    int64_t n_drafts;
    int32_t *token;
    float *logits, *confidence;
};
void drafter_round(struct drafter *d, const struct drafter_round *r);

#endif
