/* run - inside the room: what a runner and a session are made of. */
#ifndef INGLE_SESSION_RUN_H
#define INGLE_SESSION_RUN_H

#include "session/session.h"

/* What a step is made of while it runs; filled again for each. */
struct lane {
    int64_t max_rows;
    struct family_span *span;    /* [max_rows] */
    struct session_work **item;  /* [max_rows]: whose span it is */
    float *logits;               /* f32 [max_logits][n_vocab] */
};

/* Steps that may run at a time: one, and one between its pieces. */
enum { SESSION_LANES = 2 };

/* A network that drafts, whose streams follow the target's in the runner's spec. */
struct rider {
    const struct family_draft *draft; /* NULL: there is none */
    const void *self;
    struct family_draft_info info;
    struct kv_spec spec; /* its streams alone, in the groups of the runner's; borrows from it */
    int64_t n_spans;     /* sessions of a round at most */
    bool told;           /* that a file had nothing of it */
};

struct runner {
    const struct family *family;
    const void *self;
    struct rider rider;
    struct family_info info;
    struct device *device;
    const struct report_sink *sink;
    struct kv_spec spec;
    struct kv_pool *pool;
    struct kv_tree *tree;   /* NULL: none */
    struct kv_timeline *behind; /* a session as it was some tokens ago; else empty */
    struct kv_store *store; /* NULL: none */
    atomic_bool gentle;     /* Sync: atomic; who reads and writes files leaves room for answers */
    uint64_t identity;
    char *model, *numerics; /* for files */
    enum kern_kv_codec codec;
    int64_t n_ctx, max_rows, max_logits, restore_every;
    struct lane lane[SESSION_LANES];
    int depth;                   /* steps that run: the next one has lane[depth] */
    size_t logits_bytes;         /* of a lane */
    size_t held_bytes;           /* of the arena: what operations of a step leave for each other */
    struct device_between *between; /* for steps that none is suspended for; or NULL */
    struct device_between *look;    /* for the others, or NULL */
    family_tap_fn *tap;
    void *tap_arg;
    family_part_fn *part;
    void *part_arg;
};

/* What a session is about to get from the store. */
struct restore {
    struct kv_read *read;       /* NULL: nothing */
    int64_t n_want, keep, length, before; /* length: that is read; before: that was there */
    struct session_reuse reuse; /* kept and from_disk are filled in at the end */
};

struct session {
    struct runner *r;
    struct kv_timeline *timeline;
    int32_t *token;              /* [n_tokens]: computed ones, then pending ones */
    size_t n_tokens, cap_tokens;
    uint64_t salt;               /* whose remembered prefixes it may use */
    int64_t prompt_end;          /* a restore point is set when it gets here; -1: none */
    struct session_borders border; /* ... and here, from the next one on */
    int next_border;
    struct restore restore;
};

/* Takes the timeline back to at most `keep` computed tokens that equal want[0, keep): from
 * what the session has or from the tree, whichever keeps more. */
ingle_status session_restore_near(struct session *s, const int32_t *want, int64_t n_want, int64_t keep,
                                  struct err *err);
/* Behind that, when the session's tokens begin with want: begins to read what the store has beyond. */
void session_restore_far(struct session *s);
/* Waits until that is over. */
void session_restore_wait(struct session *s);
/* It is not wanted any more. */
void session_restore_drop(struct session *s);

/* ---- draft.c: the network that drafts ---- */

/* Appends the drafter's groups and streams to the target's. */
ingle_status session_rider_init(struct rider *d, const struct runner_options *o, struct kv_spec *target, struct err *err);
/* Scratch of a round. */
size_t session_rider_dry_run(const struct rider *d, struct device *device, const struct kv_spec *target, int64_t n_ctx, int64_t n_vocab);

/* Behind a restore: a drafter that finds nothing of its own there begins with what comes; said once. */
void session_rider_restored(struct runner *r, const struct kv_timeline *t, const char *what);

/* The target's forward pass, and what the drafter sees of it. */
void session_rider_forward(const struct rider *d, const struct family *family, const void *self, const struct family_forward *f);

/* Between these two a step runs on the device, which may lie between the pieces of another one.  The lane is
 * r->lane[r->depth - 1]. */
void session_device_begin(struct runner *r, struct device_suspended *first, const atomic_bool *cancel);
ingle_status session_device_end(struct runner *r, struct device_suspended *first, struct err *err);

/* One forward pass over spans; the timelines are extended and not yet committed. */
ingle_status session_forward(struct runner *r, int64_t n_spans, int64_t n_rows, int64_t n_logits,
                             family_tap_fn *tap, void *tap_arg, const atomic_bool *cancel,
                             struct err *err);
/* The step found no number in a logit: runs it again and says where it first appeared. */
ingle_status session_explain(struct runner *r, int64_t n_spans, int64_t n_rows, int64_t n_logits,
                             struct err *err);

#endif
