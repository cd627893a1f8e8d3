/*
 * session - one timeline of tokens, and the step that moves any number of them.
 *
 * A runner owns what a loaded model needs to compute: the KV pool, the prefix tree, the
 * arena and the logits of the last step.  A session is one timeline with its tokens.
 * Callers hand over full prefixes; session_sync() keeps what is there, takes the deepest
 * restore point, and leaves the rest as pending tokens for session_step().
 */
#ifndef INGLE_SESSION_SESSION_H
#define INGLE_SESSION_SESSION_H

#include "base/err.h"
#include "family/family.h"
#include "session/ngram.h"
#include "session/sample.h"
#include "session/shorten.h"
#include "stage/stage.h"
#include <stdatomic.h>

/*
 * A picture or a sound in prompts: positions that have vectors of an encoder instead of tokens.
 * Where it is an owner's, all of it enters, or nothing; rows of a picture are computed in one step
 * where the model says so (struct family_soft).
 */
struct session_medium {
    uint8_t id[KV_MEDIUM_ID]; /* what was encoded, and by what: kv/kv.h */
    int64_t n;                /* positions: 1 .. KV_MEDIUM_MOST */
    int32_t token;            /* that stands in texts for each of them */
    bool sound;
    /* f32 [n][n_embd], its owner's; NULL: not there now, and a step that needs them fails.  Changes
     * only between steps */
    const float *rows;
    void (*hold)(struct session_medium *m, int by); /* so many references more: 1, -1 */
};
struct session_soft { int64_t start; struct session_medium *medium; };
/* One of which no more is known, with a reference; NULL: out of memory. */
struct session_medium *session_medium_named(const struct kv_media_span *of);

struct runner_options {
    int64_t n_ctx;              /* positions a session may have; 0: what the model was made for */
    int64_t max_rows;           /* rows of the largest step; 0: session_default_rows() */
    bool media;                 /* there may be pictures and sounds among tokens */
    int64_t media_rows;         /* ... beside which it has those of a picture: so many at most */
    int64_t max_logits;         /* rows of logits of the largest step; 0: 16 */
    int64_t own_first, own_end; /* layers whose pages are on the device's card where they can */
    int64_t draft_own_first, draft_own_end; /* the same of the drafter's streams */
    int64_t restore_every;      /* tokens between restore points; 0: 8192 */
    struct kv_types kv;         /* what keys and values are kept as */
    /* how rows of answers choose pages where nobody says; part 0: there are no shadow keys, so none
     * can */
    struct kern_select select;
    /* pages of sessions and tree together; 0: one session of n_ctx + tree */
    uint64_t kv_budget_bytes;
    uint64_t tree_budget_bytes; /* prefix tree's share */
    const char *store;          /* directory of the store on disk; NULL: none */
    uint64_t store_bytes;       /* 0: 16 GiB */
    int64_t store_min_tokens;   /* a file adds at least so many; 0: 256 */
    uint64_t identity;          /* the model's, for what is on disk */
    const char *model, *numerics; /* its name; "exact".  Copied */
    bool lock;                  /* keys and values stay in memory */
    const char *disk;           /* directory for pages that memory has no room for; NULL: none */
    uint64_t disk_bytes;        /* ... so many of them, */
    uint64_t disk_spares;       /* memory that the prefix tree keeps all the same, */
    /* ... and those of so many tokens of a session stay in memory; 0: as few as a step needs */
    int64_t disk_tokens;
    /* a network that drafts for this target, or NULL; with what it is: */
    const struct family_draft *draft;
    const void *draft_self;
    struct family_draft_info draft_info;
    /* other processes have some of the layers; stage_hello: who this engine is, for them */
    struct stage_remote *stages;
    const struct stage_hello *stage_hello;
    /* the plan is one of a stage, which has layers [stage_from, stage_to); 0, 0: it is not */
    int64_t stage_from, stage_to;
    const struct report_sink *sink;
    uint64_t draft_identity;    /* of its weights: what it keeps is no other one's */
};

struct runner;
struct session;

/* Rows of the largest step when nobody says: with experts, of which each computes a few of the
 * rows, more. */
int64_t session_default_rows(const struct family_info *info);

/* The plan before anything large is taken. */
struct runner_plan {
    uint64_t kv_session_bytes, token_bytes; /* of a session: pages; its tokens and page tables */
    uint64_t kv_window_bytes;               /* of the pages: those that fall out of windows */
    uint64_t kv_here_bytes;                 /* of the pages: what is in this process */
    uint64_t sampler_bytes;                 /* of a session that samples */
    uint64_t kv_tree_bytes, arena_bytes, logits_bytes;
    /* of the tree: a restore point that shares no window with another */
    uint64_t point_bytes;
    /* of the arena: what the operations of a full step leave for each other */
    uint64_t held_bytes;
    uint64_t branch_bytes;                  /* of a branch: pages */
    /* With a disk: memory to read into and lists; of a session of n_ctx tokens pages on disk; the
     * least disk_tokens. */
    uint64_t disk_memory_bytes, disk_session_bytes;
    int64_t disk_least_tokens;
};
/* Why keys and values of this family cannot be beyond memory; NULL: they can. */
const char *session_disk_refuses(const struct kv_spec *s);
/* The KV layout, with the drafter's groups; ended with kv_spec_release(). */
MUST_CHECK ingle_status session_runner_kv(const struct family *fam, const void *self,
                                          const struct family_info *info,
                                          const struct runner_options *o, struct kv_spec *out,
                                          struct err *err);
MUST_CHECK ingle_status session_runner_plan(const struct family *fam, const void *self,
                                    const struct family_info *info, struct device *d,
                                    const struct runner_options *o, struct runner_plan *out,
                                    struct err *err);

/* Everything is borrowed until session_runner_free(). */
MUST_CHECK ingle_status session_runner_create(struct runner **out, const struct family *fam,
                                      const void *self, const struct family_info *info,
                                      struct device *d, const struct runner_options *o,
                                      struct err *err);
/* All sessions must have been freed. */
void session_runner_free(struct runner *r);
int64_t session_runner_n_ctx(const struct runner *r);
int64_t session_runner_max_rows(const struct runner *r);
/* From now on the pieces of a step have another one between them: between->fn may call
 * session_step() for sessions that the first step does not move, and for those alone anything
 * else, too.  Such a step has up to session_runner_between_rows().  NULL: no longer. */
void session_runner_set_between(struct runner *r, struct device_between *between);
/* Steps that have no other one between them: look->fn may do what it likes with sessions that they
 * do not move, but not call session_step().  NULL: no longer. */
void session_runner_set_look(struct runner *r, struct device_between *look);
int64_t session_runner_between_rows(const struct runner *r);
int64_t session_runner_max_logits(const struct runner *r);
/* So many steps run inside each other that none fits between: a drafter's deferred rows are not
 * seen, so no session may be forked or remembered. */
bool session_runner_is_deep(const struct runner *r);
/* Bytes of pages that a session of n_tokens needs at most.  False: no such number. */
MUST_CHECK bool session_runner_kv_bytes(const struct runner *r, int64_t n_tokens, uint64_t *out);
const struct kv_pool *session_runner_pool(const struct runner *r);
/* Of a session of n_tokens: bytes of keys and values on disk, which each step reads; 0: none. */
uint64_t session_runner_disk_bytes(const struct runner *r, int64_t n_tokens);
void session_runner_disk_count(const struct runner *r, struct kv_disk_counts *out);
/* NULL: there is none. */
struct kv_store *session_runner_store(const struct runner *r);
/* Publishes the prefixes that both have from now on; borrowed.  NULL: none any more. */
void session_runner_watch(struct runner *r, const struct kv_watch *watch);
/* For idle times: has the system fill some more of the activations of a full step
 * (device_arena_fill()).  False: all is there. */
bool session_runner_fill(struct runner *r);
/* For idle times: takes back what the store has written and offers it some of those restore points
 * that it had no room for.  False: there is nothing more to come back for. */
bool session_runner_settle(struct runner *r);
/* For the end: waits until the store has all that it had no room for; what is lost is reported. */
void session_runner_write(struct runner *r);
/* Called for every tap of every step until set to NULL. */
void session_runner_set_tap(struct runner *r, family_tap_fn *tap, void *arg);
/* The same for the parts of layers. */
void session_runner_set_part(struct runner *r, family_part_fn *part, void *arg);
/* What rows of steps of one session attend to, until set to NULL.  The streams of the model allow
 * it (family_probe_refuses()). */
void session_runner_set_probe(struct runner *r, const struct family_probe *probe);
/* Forgets the prefix tree. */
void session_runner_clear_tree(struct runner *r);

MUST_CHECK ingle_status session_create(struct session **out, struct runner *r, struct err *err);
void session_free(struct session *s);
/* Sessions of different salts share no prefix (kv/kv.h); the session is empty after a change. */
void session_set_salt(struct session *s, uint64_t salt);
/* How its rows are computed from now on (kv/way.h), which keeps its prefixes apart from others.
 * Pages are selected as the runner's options say in the beginning, without whose choice none can
 * be.  What is computed stays as far as it is the same either way; the rest waits again.  It takes
 * a reference to gaps. */
void session_set_way(struct session *s, const struct kv_way *w);
struct kv_way session_way(const struct session *s); /* gaps: borrowed */
/* family_way_refuses() */
const char *session_way_refuses(const struct runner *r, enum kv_way_kind kind);
/* What that did in its steps since the last call of this. */
struct session_seen {
    struct kern_sparse_seen sparse;
    struct kern_select_seen select;
};
struct session_seen session_take_seen(struct session *s);
/* Pages that a row of the longest context may choose, at most: with a disk, those that there is
 * room for. */
int64_t session_select_room(const struct runner *r);

/* Where the first `kept` tokens came from; the parts add up.  matched: tokens that a known
 * prefix shares with these; given_up: more than that were remembered recently, so many, and
 * evicted (0: not so); foreign: so many are on disk, of another model or of other settings;
 * differs: the session knew more tokens, other ones than these. */
struct session_reuse {
    int64_t kept, from_session, from_tree, from_disk;
    int64_t matched, given_up, foreign;
    bool differs;
};

/* Makes tokens [0, n) the session's contents: keeps or restores the longest prefix that it
 * can and leaves the rest pending (at least one token, so that there will be logits).  The
 * tokens are copied.  reuse may be NULL. */
MUST_CHECK ingle_status session_sync(struct session *s, const int32_t *tokens, int64_t n,
                                     struct session_reuse *reuse, struct err *err);
/* The same where media stand among the tokens, whose place they take: soft [n_soft], ascending;
 * copied, with references.  What differs in one of them differs from its first position on. */
MUST_CHECK ingle_status session_sync_soft(struct session *s, const int32_t *tokens, int64_t n,
                                          const struct session_soft *soft, size_t n_soft,
                                          struct session_reuse *reuse, struct err *err);
/* Media of its tokens. */
size_t session_n_media(const struct session *s);
struct session_soft session_medium_at(const struct session *s, size_t i);
/* So many tokens, and media as a whole, are those of the session. */
int64_t session_alike(const struct session *s, const int32_t *tokens, int64_t n,
                      const struct session_soft *soft, size_t n_soft);
/* The first medium without rows that the next n pending positions need (below 0: all of them);
 * NULL: there is none. */
const struct session_medium *session_lacks(const struct session *s, int64_t n);
/* The next medium of which one step computes all positions, *n of them; so many tokens are before
 * it.  *n 0: there is none. */
int64_t session_whole_next(const struct session *s, int64_t *n);
/* The place at or before `at` that is not inside a medium. */
int64_t session_outside(const struct session *s, int64_t at);
/* The same for one who has others to serve meanwhile: nothing here waits for the disk.  Until
 * session_sync_poll() says that it is over (and fills *reuse, which may be NULL) the session has
 * what was in memory, and is to take no part in steps; whatever else is done to it ends the wait
 * for the store.  The store is as of its last look at the directory: session_runner_look(). */
MUST_CHECK ingle_status session_sync_soft_begin(struct session *s, const int32_t *tokens, int64_t n,
                                                const struct session_soft *soft, size_t n_soft,
                                                struct err *err);
/* The same of its own tokens and media, of which the first n stay. */
MUST_CHECK ingle_status session_sync_own_begin(struct session *s, int64_t n, struct err *err);
bool session_sync_poll(struct session *s, struct session_reuse *reuse);
/* Tokens that will be computed when it is over, if all goes well. */
int64_t session_sync_length(const struct session *s);
/* Has the store look at its directory; false: that goes on, until session_runner_looks() is
 * false. */
bool session_runner_look(struct runner *r);
bool session_runner_looks(const struct runner *r);
/* fn is called, on any thread, when there is news for session_sync_poll() or
 * session_runner_looks(); it must not call anything here.  NULL: no longer. */
void session_runner_set_news(struct runner *r, void (*fn)(void *arg), void *arg);
/* Others want the processor: the store uses it in short turns. */
void session_runner_set_gentle(struct runner *r, bool gentle);
/* Has what is on disk for these tokens read ahead, for a session_sync() to come.  Any thread. */
void session_prefetch(struct runner *r, struct kv_scope scope, const int32_t *tokens, int64_t n,
                      const struct session_soft *soft, size_t n_soft);
/* Where turns of a prompt meet, and later prompts may part from it: ascending, above 0.  Other
 * conversations are likely to begin with the first `shared` tokens, of which it is one; 0: no. */
enum { SESSION_BORDERS = KV_MARKS };
struct session_borders {
    int64_t at[SESSION_BORDERS];
    int n;
    int64_t shared;
};
/* After a sync: restore points are set at these places of the prompt when it is computed, and those
 * that are there count as used.  The prompt's end gets one of its own unless the last border is
 * near it. */
void session_set_borders(struct session *s, const struct session_borders *b);
/* The last border within [0, n) that is still to come, so that its restore point will be there when
 * the session has n tokens; 0: none, or there is no room for it. */
int64_t session_border_before(const struct session *s, int64_t n);
/* Tokens before n are a prompt's, as all of a session_sync() are: fast numerics and
 * session_set_way() compute them otherwise. */
void session_prompt(struct session *s, int64_t n);
/* Adds tokens after what is there, pending. */
MUST_CHECK ingle_status session_append(struct session *s, const int32_t *tokens, int64_t n,
                                       struct err *err);
/* With media; where they are counts from the first of these tokens. */
MUST_CHECK ingle_status session_append_soft(struct session *s, const int32_t *tokens, int64_t n,
                                            const struct session_soft *soft, size_t n_soft,
                                            struct err *err);
int64_t session_length(const struct session *s);        /* computed positions */
int64_t session_pending(const struct session *s);       /* tokens that wait */
const int32_t *session_tokens(const struct session *s); /* [length + pending] */

/* Shortens to `length` tokens (or to where a medium begins that this is inside), dropping pending
 * ones.  Beyond what the pages hold it goes
 * back to a restore point (or the start) and leaves the rest pending. */
MUST_CHECK ingle_status session_rewind(struct session *s, int64_t length, struct err *err);
/* dst (of the same runner) becomes what src is. */
MUST_CHECK ingle_status session_fork(struct session *dst, const struct session *src,
                                     struct err *err);

/* Whether a rewind (or the sync of a fork) to so many tokens keeps them all. */
bool session_can_rewind(const struct session *s, int64_t length);
/* Gives its pages back: all tokens wait again.  A sync with the session's own tokens takes
 * what is remembered of them. */
void session_park(struct session *s);

/* Remembers the computed prefix in the tree and in the store. */
MUST_CHECK ingle_status session_remember(struct session *s, struct err *err);

/* The whole session as a file, and back.  INGLE_UNSUP: another model's or of other settings;
 * INGLE_FORMAT: damaged.  The session is unchanged on failure. */
MUST_CHECK ingle_status session_save(const struct session *s, const char *path, struct err *err);
MUST_CHECK ingle_status session_load(struct session *s, const char *path, struct err *err);
/* A save may run on any thread while steps run, as long as nobody else uses the session.  So may
 * the first and the third of these four calls, in which files are read. */
struct kv_load;
MUST_CHECK ingle_status session_load_begin(const struct session *s, const char *path,
                                           struct kv_load **out, struct err *err);
MUST_CHECK ingle_status session_load_take(struct session *s, struct kv_load *l, bool *more,
                                          struct err *err);
MUST_CHECK ingle_status session_load_read(struct kv_load *l, struct err *err);
/* Ends l in any case; st: what came of the others. */
MUST_CHECK ingle_status session_load_end(struct session *s, struct kv_load *l, ingle_status st,
                                         struct err *err);

struct session_work {
    struct session *s;
    int64_t max_tokens;         /* of the pending ones in this step; 0: as many as fit */
    enum family_logits want;    /* LAST counts only if this step reaches the last pending token */
    /* session_keep() says which of its tokens stay: no restore point before that */
    bool guessed;
    /* [n_branches], of guessed tokens: computed, too, if there is room */
    struct session_branch *const *branch;
    int64_t n_branches;
    /* results.  Of a medium's rows with want ALL only the last one has logits: no step has both
     * them and others of such an item. */
    int64_t n_done;             /* tokens computed; 0 if the step was full before this item */
    const float *logits;        /* f32 [n_logits][n_vocab], valid until the next step; or NULL */
    int64_t n_logits;
    bool failed;                /* a logit of this item is no number; it has not moved */
    int64_t n_branch_rows;      /* rows of its branches */
};

/* One step over all the work items (distinct sessions of one runner), filled in order (prompts that
 * are computed in a way of their own last) up to max_rows rows and max_logits rows of logits.
 * INGLE_NUMERIC: an item failed (the text says where a value first was no number), the others have
 * moved. */
MUST_CHECK ingle_status session_step(struct runner *r, struct session_work *work, int64_t n,
                                     const atomic_bool *cancel, struct err *err);

/*
 * Steps that are under way together, while layers are at stages: of a step that has begun the rows
 * are at a stage, and this process computes its layers of another one.  Sessions of a step are
 * moved by that one only, until it has landed; nothing else may step meanwhile.  Rows are up to
 * session_runner_between_rows(), without prompts of pictures and branches.
 * Prompts take part.  Where no network drafts, n_done of those whose logits are not wanted is known
 * as soon as the step has begun, and their sessions are free then: the next step may have their
 * next rows, or they end.
 */
enum { SESSION_MOST_FLIGHTS = 4 };
int session_runner_flights(const struct runner *r); /* at most; 0: one step after the other */
/* Begins the step i; work is borrowed until it lands.  Without room for anybody session_flies() is
 * false then.  INGLE_IO: a stage was lost; when all have landed session_step() goes on. */
MUST_CHECK ingle_status session_fly(struct runner *r, int i, struct session_work *work, int64_t n,
                                    struct err *err);
bool session_flies(const struct runner *r, int i);
bool session_flight_is_over(struct runner *r, int i);
void session_flights_wait(struct runner *r, int timeout_ms); /* for news of any */
/* Ends it, as session_step() does. */
MUST_CHECK ingle_status session_land(struct runner *r, int i, struct err *err);
/* After a step: the session's first `length` tokens stay, at most KV_REWIND less than it has
 * computed; later ones, pending ones too, are dropped.  For drafted tokens that are not what the
 * target draws. */
void session_keep(struct session *s, int64_t length);

/*
 * Branches: other ways that a session's pending tokens may go on.  A branch parts from them after
 * one of them, and is computed in the step that computes them, a row for each token of its own:
 * what both share is computed once.  Then it may take their place.  Its pages are its own after
 * the session's length; where there are none for it, it is not computed.
 */
enum { SESSION_BRANCH_TOKENS = 8 };
struct session_branch;
MUST_CHECK ingle_status session_branch_create(struct session_branch **out, struct runner *r,
                                              struct err *err);
void session_branch_free(struct session_branch *b);
/* Bytes of pages that one needs at most. */
MUST_CHECK bool session_branch_bytes(const struct runner *r, uint64_t *out);
/* n tokens (1 .. SESSION_BRANCH_TOKENS) after the first `at` of a session, of which one at least
 * is pending then. */
void session_branch_set(struct session_branch *b, int64_t at, const int32_t *token, int64_t n);
int64_t session_branch_at(const struct session_branch *b);
const int32_t *session_branch_tokens(const struct session_branch *b, int64_t *n);
/* After the step f32 [n][n_vocab], valid until the next one; NULL: it was not computed. */
const float *session_branch_logits(const struct session_branch *b);
/* After the step that computed both: the session's first `at` tokens stay, and after them are
 * those of the branch, which has given all it had. */
void session_branch_take(struct session *s, struct session_branch *b);
/* Gives its pages back. */
void session_branch_clear(struct session_branch *b);

/* ---- drafting ---- */

/* The network that drafts here; NULL: there is none. */
const struct family_draft_info *session_runner_draft(const struct runner *r);
/* In all: what it took the network to see rows that it had not seen with their step; in steps,
 * rounds and between them. */
double session_runner_seen_seconds(const struct runner *r);

struct session_draft {
    struct session *s; /* exactly one token is pending: the anchor */
    int64_t width;     /* tokens wanted, 1 .. info.most */
    int32_t *token;    /* [width] */
    /* [width]: how likely the target draws token[j], if it has drawn those before; where the
     * network says so (info.confidence).  Or NULL */
    float *confidence;
    int64_t n;         /* result: tokens drafted; 0: there was no room for its rows */
};
/* Draws drafted token j of item i from the drafter's logits f32 [n_vocab] (the draws of different
 * items may run on several threads at a time).  The j tokens drafted before it stand after the
 * session's tokens meanwhile, so that session_tokens() is a history.  False: this item drafts no
 * more, token j is none. */
typedef bool session_draw_fn(void *arg, int64_t i, int64_t j, const float *logits, int32_t *token);
/* In there: the columns of the logits that the drafter has computed, all others saying
 * FAMILY_NEVER; *n 0: all of them. */
const struct device_columns *session_draft_part(const struct runner *r, int64_t *n);
/* A round for distinct sessions of r, which has a drafter.  Their tokens and lengths stay as they
 * are.  Logits of the last step are no longer valid.  INGLE_CANCEL, or what the device could not
 * do: n is what was drafted until then. */
MUST_CHECK ingle_status session_draft(struct runner *r, struct session_draft *item, int64_t n,
                                      session_draw_fn *draw, void *arg, const atomic_bool *cancel,
                                      struct err *err);

/* Steps until nothing is pending in s; *logits is the last row's, f32 [n_vocab].  Restore
 * points are set on the way; progress is reported for long prompts. */
MUST_CHECK ingle_status session_finish(struct session *s, const float **logits,
                                       const atomic_bool *cancel, struct err *err);


#endif
