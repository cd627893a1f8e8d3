/*
 * drafter - inside the room: a network that drafts, and rows that it has not seen yet.
 */
#ifndef INGLE_SESSION_DRAFTER_H
#define INGLE_SESSION_DRAFTER_H

#include "session/session.h"
#include "session/words.h"

/* A network that drafts, whose streams follow the target's in the runner's spec. */
struct drafter {
    const struct family_draft *draft; /* NULL: there is none */
    const void *self;
    struct family_draft_info info;
    struct kv_spec spec; /* its streams alone, in the groups of the runner's; borrows from it */
    int64_t n_spans;     /* sessions of a round at most */
    bool reported;       /* that a file had nothing of it */
    bool waits;          /* it can see rows later, */
    int64_t deferred_width;  /* from so many floats of each that are kept */
    double seen_seconds; /* in all: seeing rows later */
    /* NULL: none, or a drafter with a head of its own */
    struct words *words; /* owned: what drafts come from */
    float *wide;         /* owned: f32 [ROUND_SPANS][n_vocab] */
    size_t wide_bytes;
    struct device *device; /* that wide is from */
    /* [n_part]: of the logits that are drawn from; session_draft_part() */
    const struct device_columns *part;
    int64_t n_part;
    struct stage_remote *stages; /* that the target's layers lie at, or NULL */
};

/* What it sees of a step. */
struct drafter_seen {
    const struct drafter *drafter;
    struct device *device;
    void *state;
    family_tap_fn *tap; /* somebody else's, or NULL */
    family_tap_wants_fn *tap_wants;
    void *tap_arg;
};

/* What the drafter has not seen yet: rows of positions [at, at + n), the session's newest ones. */
struct deferred {
    int64_t at, n;
    float *row; /* [n][deferred_width], owned; NULL: tokens are enough */
};

#endif
