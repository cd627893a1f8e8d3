/* run - inside the room: what a runner and a session are made of. */
#ifndef INGLE_SESSION_RUN_H
#define INGLE_SESSION_RUN_H

#include "session/drafter.h"
#include "stage/stage.h"

/* What a step is made of while it runs; filled again for each. */
struct lane {
    int64_t max_rows;            /* with those of a picture beside ... */
    int64_t most;                /* ... so many others */
    struct family_soft *soft;    /* [max_rows]: of its spans, */
    int64_t n_soft;              /* ... so many */
    struct family_span *span;    /* [max_rows] */
    struct session_work **item;  /* [max_rows]: whose span it is, ... */
    struct session_branch **branch; /* ... and of which of its branches; NULL: its own */
    struct family_mirror *mirror;    /* [max_rows]: a branch's rows that are those of its session */
    float *logits;               /* f32 [max_logits][n_vocab] */
    bool deferred;                   /* the drafter sees its rows later */
};

struct built { int64_t n_spans, n_rows, n_logits, n_mirrors; };

/* Steps that may run at a time: one, and one between its pieces; and those that are under way at
 * stages together. */
enum { SESSION_LANES = 2 };

/* A step whose rows are at stages. */
struct flight {
    struct stage_trip *trip; /* NULL: there is none */
    struct session_work *work; /* [n], borrowed */
    int64_t n;
    struct built built;
    struct family_step step;
    struct family_forward forward;
    struct drafter_seen seen;
};

struct runner {
    const struct family *family;
    const void *self;
    struct drafter drafter;
    struct family_info info;
    struct device *device;
    struct stage_remote *stages; /* other processes have some of the layers; or NULL */
    int n_renewed;               /* losses of stages since a step with something new ended well */
    bool renews;                 /* a step computes only what was lost */
    const struct report_sink *sink;
    struct kv_spec spec;
    struct kv_pool *pool;
    struct kv_tree *tree;   /* NULL: none */
    struct kv_timeline *snapshot; /* a session as of a restore point some tokens ago; else empty */
    struct kv_store *store; /* NULL: none */
    struct kv_spec store_spec; /* of its files, if stages have a store, too; borrows from spec */
    atomic_bool gentle;     /* Sync: atomic; who reads and writes files leaves room for answers */
    uint64_t identity;
    char *model, *numerics; /* for files */
    struct kv_types_text kv;    /* what keys and values are kept as */
    /* of sessions where nobody says; part 0: there are no shadow keys */
    struct kern_select select;
    int64_t n_ctx, max_rows, all_rows, max_logits, restore_every; /* all_rows: with a picture's */
    struct lane lane[SESSION_LANES + SESSION_MOST_FLIGHTS];
    struct flight flight[SESSION_MOST_FLIGHTS]; /* has lane[SESSION_LANES + i] */
    int n_flights;               /* that there may be; 0: none */
    int depth;                   /* steps that run: the next one has lane[depth] */
    uint32_t card_lost;          /* of each depth: what ran there has begun anew since */
    bool own;                    /* a part of the pages is on the card */
    size_t logits_bytes;         /* of a lane */
    size_t held_bytes;           /* of the arena: what operations of a step leave for each other */
    struct device_between *between; /* for steps that none is suspended for; or NULL */
    struct device_between *look;    /* for the others, or NULL */
    family_tap_fn *tap;
    void *tap_arg;
    family_part_fn *part;
    void *part_arg;
    const struct family_probe *probe;
};

/* Tokens that may take the place of those that a session has after its first `at`. */
struct session_branch {
    /* from a step on: the session's as it was before, with what is kept of the branch */
    struct kv_timeline *timeline;
    int64_t at, n;
    int32_t token[SESSION_BRANCH_TOKENS]; /* [n] */
    const float *logits; /* f32 [n][n_vocab]; NULL: not computed */
};

/* A medium among a session's tokens; number: kv_media_take() of its name. */
struct soft { int64_t start; int32_t number; struct session_medium *medium; };

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
    struct soft *soft;           /* [n_soft]: media among them, ascending */
    size_t n_soft, cap_soft;
    int32_t *key;                /* [n_keys]: where there are media, tokens with keys (kv/kv.h); */
    size_t n_keys, cap_keys;     /* ... the rest is made by session_keys() */
    /* whose remembered prefixes it may use; scope.salt has select in it, too */
    uint64_t salt;
    struct kv_scope scope;       /* for those, and how its prompts are computed, */
    struct kv_way way;           /* ... (its gaps are the timeline's), */
    uint8_t *whole;              /* [pages of the context], owned: session_whole() */
    struct kern_sparse sparse;   /* ... the same for kernels, */
    struct session_seen seen;    /* ... and what that did since somebody took it */
    int64_t prompt_end;          /* a restore point is set when it gets here; -1: not known */
    struct session_borders border; /* ... and here, from the next one on */
    int next_border;
    struct restore restore;
    uint64_t reported_disk; /* bytes of keys and values on disk that a report named */
    size_t n_noted;    /* tokens that the drafter's words have counted */
    /* owned; NULL: the drafter sees all with their step, or there is none */
    struct deferred *deferred;
};

/* The parts of a step that is under way with others, of what its flight says. */
ingle_status session_flight_send(struct runner *r, int i, struct err *err);
ingle_status session_flight_land(struct runner *r, int i, struct err *err);

/* Whether rows of its prompt are computed in another way than those of answers. */
bool session_prompt_differs(const struct session *s);
/* Says what session_set_way() says, of a session whose tokens are computed so. */
void session_use_way(struct session *s, const struct kv_way *w);
/* Takes the timeline, which has the positions of have, back to at most `keep` computed ones that
 * equal want[0, keep): from what the session has or from the tree, whichever keeps more.  Both have
 * keys; the session's media are those of want. */
ingle_status session_restore_near(struct session *s, const int32_t *have, const int32_t *want,
                                  int64_t n_want, int64_t keep, struct err *err);
/* After that, when the session's tokens begin with want: begins to read what the store has
 * beyond. */
void session_restore_far(struct session *s);
/* Waits until that is over. */
void session_restore_wait(struct session *s);
/* Of one that is parked, what the tree and the store have of its first tokens. */
void session_restore_lost(struct session *s, int64_t length);
/* It is not wanted any more. */
void session_restore_drop(struct session *s);

#endif
