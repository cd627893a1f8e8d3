/* run - inside the room: what a runner and a session are made of. */
#ifndef INGLE_SESSION_RUN_H
#define INGLE_SESSION_RUN_H

#include "session/session.h"
#include "session/words.h"
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
};

/* A network that drafts, whose streams follow the target's in the runner's spec. */
struct drafter {
    const struct family_draft *draft; /* NULL: there is none */
    const void *self;
    struct family_draft_info info;
    struct kv_spec spec; /* its streams alone, in the groups of the runner's; borrows from it */
    int64_t n_spans;     /* sessions of a round at most */
    bool told;           /* that a file had nothing of it */
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

/* What the drafter has not seen yet: rows of positions [at, at + n), the session's newest ones. */
struct deferred {
    int64_t at, n;
    float *row; /* [n][deferred_width], owned; NULL: tokens are enough */
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
    struct kv_timeline *behind; /* a session as it was some tokens ago; else empty */
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
    bool own;                    /* a part of the pages lies on the card */
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

/* Tokens that may take the place of those that a session has behind its first `at`. */
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
    int64_t prompt_end;          /* a restore point is set when it gets here; -1: none */
    struct session_borders border; /* ... and here, from the next one on */
    int next_border;
    struct restore restore;
    uint64_t told_disk; /* bytes of keys and values on disk that a report named */
    size_t n_noted;    /* tokens that the drafter's words have counted */
    /* owned; NULL: the drafter sees all with their step, or there is none */
    struct deferred *deferred;
};

/* The parts of a step that is under way with others, of what its flight says. */
ingle_status session_flight_send(struct runner *r, int i, struct err *err);
ingle_status session_flight_land(struct runner *r, int i, struct err *err);

/* Says what session_set_way() says, of a session whose tokens are computed so. */
void session_use_way(struct session *s, const struct kv_way *w);
/* Takes the timeline, which has the positions of have, back to at most `keep` computed ones that
 * equal want[0, keep): from what the session has or from the tree, whichever keeps more.  Both have
 * keys; the session's media are those of want. */
ingle_status session_restore_near(struct session *s, const int32_t *have, const int32_t *want,
                                  int64_t n_want, int64_t keep, struct err *err);
/* Behind that, when the session's tokens begin with want: begins to read what the store has
 * beyond. */
void session_restore_far(struct session *s);
/* Waits until that is over. */
void session_restore_wait(struct session *s);
/* It is not wanted any more. */
void session_restore_drop(struct session *s);

/* ---- soft.c: media among tokens ---- */

/* 1 for each page that has positions of media: rows that leave something out read those whole
 * (kern/sparse.h, kern/select.h).  NULL: there are none.  Valid until the next call. */
const uint8_t *session_whole(struct session *s);
/* INGLE_LIMIT: rows of answers would read more pages than have room beside those on disk. */
MUST_CHECK ingle_status session_select_fits(struct session *s, struct err *err);
MUST_CHECK ingle_status session_soft_check(const struct session_soft *soft, size_t n_soft,
                                           int64_t n_tokens, struct err *err);
/* to [n] becomes from, `base` positions later, with references; back. */
MUST_CHECK ingle_status session_soft_copy(struct runner *r, const struct session_soft *from,
                                          size_t n, int64_t base, struct soft *to, struct err *err);
/* Of those of a file; *out is ended with session_soft_drop() and mem_free(). */
MUST_CHECK ingle_status session_soft_named(struct runner *r, const struct kv_media_span *of,
                                           int64_t n, struct soft **out, struct err *err);
void session_soft_drop(struct runner *r, struct soft *list, size_t n);
/* Tokens [n] with keys; *out is ended with mem_free().  False: out of memory. */
MUST_CHECK bool session_soft_keys(const struct soft *soft, size_t n_soft, const int32_t *token,
                                  int64_t n, int32_t **out);
/* The session's tokens with keys, as tree and store have them; valid until they change. */
const int32_t *session_keys(struct session *s);
/* Before it has so many tokens. */
MUST_CHECK bool session_soft_room(struct session *s, size_t n_tokens);
/* It has n_tokens, which is no place inside a medium, and what is known of later ones is gone. */
void session_soft_cut(struct session *s, int64_t n_tokens);
/* Where steps stop for a restore point: the first place behind `at`; and whether `at` is one. */
int64_t session_next_stop(const struct session *s, int64_t at);
bool session_is_stop(const struct session *s, int64_t at);
/* Of its next n positions, those that a step with room for `room` rows can take: a picture whose
 * rows see all of it is not cut.  all: their logits are wanted; *alone: only of the last one. */
int64_t session_soft_share(const struct session *s, int64_t n, int64_t room, bool all, bool *alone);
/* What of its next n positions are no tokens; how many entries of `to` that are. */
int64_t session_soft_rows(const struct session *s, int64_t n, struct family_soft *to);

/* ---- branch.c ---- */

/* Before a step: room for the tokens of w's branches in its session. */
bool session_branch_room(const struct session_work *w);
/* Pages and rows for a branch of w, whose first n_rows pending tokens the step computes as rows
 * from `row` on: true, with its span and twin.  False: there is no room. */
bool session_branch_begin(struct session_branch *b, const struct session_work *w, int64_t n_rows,
                          int64_t row, struct family_span *span, struct family_mirror *mirror);

/* ---- draft.c: the network that drafts ---- */

/* Appends the drafter's groups and streams to the target's. */
ingle_status session_drafter_init(struct drafter *d, const struct runner_options *o,
                                struct kv_spec *target, struct err *err);
/* Bytes of logits of several drafts. */
uint64_t session_drafter_wide_bytes(const struct drafter *d, int64_t n_vocab);
ingle_status session_drafter_open(struct drafter *d, struct device *device, int64_t n_vocab,
                                struct err *err);
void session_drafter_close(struct drafter *d);
/* Scratch of a round. */
size_t session_drafter_dry_run(const struct drafter *d, struct device *device,
                             const struct kv_spec *target, int64_t n_ctx, int64_t n_vocab);

/* Behind a restore: a drafter that finds nothing of its own there begins with what comes; said
 * once. */
void session_drafter_restored(struct runner *r, const struct kv_timeline *t, const char *what);

/* The target's forward pass, and what the drafter sees of it, now or (l->deferred) later.  l: whose
 * rows they are; NULL in a dry run. */
void session_drafter_forward(const struct drafter *d, const struct family *family, const void *self,
                           const struct family_forward *f, const struct lane *l);

/* ---- deferred.c: rows that the drafter sees later ---- */

uint64_t session_deferred_bytes(const struct drafter *d); /* of a session */
ingle_status session_deferred_create(struct session *s, struct err *err);
void session_deferred_free(struct session *s);
/* Those from `length` on are gone. */
void session_deferred_cut(const struct session *s, int64_t length);
/* Between steps, or before one runs: the drafter sees what it has not seen of these sessions.
 * Before their pages get other owners. */
void session_deferred_observe(struct runner *r, const struct session *const *s, int64_t n);
/* Whether it sees the rows of the next step later, which r->lane[r->depth] has, if it may; makes
 * room for them. */
bool session_deferred_plan(struct runner *r, int64_t n_spans, bool may);
/* Keeps what it would have seen of such a step; then, of each session that moved by it. */
void session_deferred_keep(const struct lane *l, const struct family_forward *f, struct rows seen);
void session_deferred_commit(const struct session *s, int64_t at, int64_t n);

/* Between these two a step runs on the device, which may lie between the pieces of another one.
 * The lane is r->lane[r->depth - 1]. */
void session_device_begin(struct runner *r, struct device_suspended *first,
                          const atomic_bool *cancel);
ingle_status session_device_end(struct runner *r, struct device_suspended *first, struct err *err);
/* If the card that a part of the pages lies on was lost: they are the host's from now on. */
void session_lose_own(struct runner *r);
/* If a stage was lost: waits until all are there.  What lay there is to be computed anew. */
MUST_CHECK ingle_status session_renew_stages(struct runner *r, const atomic_bool *cancel,
                                             struct err *err);
/* Whether what ended with s is to be done again, because the card or a stage was lost in it;
 * before: stage_remote_losses() as it began.  A step between its pieces may have waited for the
 * stage. */
bool session_card_gone(struct runner *r, ingle_status s, uint64_t before);

/* One forward pass over the spans of the lane; the timelines are extended and not yet committed. */
ingle_status session_forward(struct runner *r, const struct family_step *step, family_tap_fn *tap,
                             void *tap_arg, const atomic_bool *cancel, struct err *err);
/* The step found no number in a logit: runs it again and says where it first appeared. */
ingle_status session_explain(struct runner *r, const struct family_step *step, struct err *err);

#endif
