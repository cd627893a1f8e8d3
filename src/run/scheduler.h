/*
 * scheduler - the thread behind ingle_scheduler_*; only scheduler*.c include this.
 *
 * Each calls those below it alone:
 * scheduler.c          the calls from outside, the thread's loop
 * scheduler_encode.c   pictures and sounds, between steps
 * scheduler_step.c     one step: who takes part, what comes of it
 * scheduler_admit.c    who begins, who makes room, prefixes that requests share
 * scheduler_request.c  a request: checked and copied, its memory, its end
 * scheduler_draft.c    tokens that are guessed before a step, and verified in it
 * scheduler_tree.c     branches of them
 * scheduler_status.c   what it tells
 *
 * A request has one or more answers.  An answer that has begun has a slot with a session;
 * the first one computes the prompt, the others fork from it.  What no comment says is
 * guarded by a lock belongs to the scheduler's thread.
 */
#ifndef INGLE_RUN_SCHEDULER_H
#define INGLE_RUN_SCHEDULER_H

#include "engine/engine.h"
#include "engine/draft.h"
#include "engine/session.h"
#include "api/words.h"
#include "sched/sched.h"

#include <pthread.h>

struct ingle_request {
    struct sched_ticket ticket; /* Sync: the scheduler's lock while it waits */
    struct ingle_request *next; /* of those that have begun */
    int64_t number;
    struct ingle_scheduler *s;
    struct ingle_request_options o; /* prompt: owned; user and bias are not kept */
    uint64_t salt;           /* of its user */
    struct session_soft *soft; /* [n_soft], owned with references: its media */
    size_t n_soft;
    struct kv_way way;       /* owns its gaps */
    struct kv_scope scope;   /* of both */
    int64_t max_tokens;      /* what o.max_tokens comes to in this context */
    int64_t planned;         /* tokens of each answer that reserve_bytes are for */
    uint64_t reserve_bytes;  /* of KV pages */
    struct ingle_sampler **sampler; /* [o.n], owned */
    /* [o.n, and ENGINE_TOLD for prompt_logprobs][o.n_top], owned, or NULL */
    struct ingle_top *top;
    bool by_network, by_text; /* what may draft for it; neither: nothing */
    int n_open;              /* answers that have not ended */
    bool begun, parked;      /* parked: it gave its memory back and waits for some */
    bool in_vain[INGLE_WAYS]; /* it asked for such a way where it cannot be */
    bool prefetched;         /* what is on disk of it is being read ahead */
    int64_t parked_at;       /* the scheduler's n_ended then */
    int64_t n_told;          /* tokens of the prompt that progress was told of */
    int64_t n_logprobs;      /* ... that token() was told of */
    uint64_t submitted, started, prompt_done, deadline; /* clock_now(); 0: none */
    struct ingle_usage usage;
    atomic_bool cancelled; /* Sync: atomic */
    atomic_bool held;      /* Sync: atomic; it takes no part in steps */
};

enum engine_answer_state {
    ENGINE_ANSWER_FREE,
    ENGINE_ANSWER_SHARES, /* waits until another request has computed what both begin with */
    ENGINE_ANSWER_RESTORES, /* waits for what the store has of its tokens */
    ENGINE_ANSWER_PROMPT, /* what it has so far is being computed */
    ENGINE_ANSWER_FORKS,  /* waits for the first answer of its request to do so */
    ENGINE_ANSWER_RUNS,   /* a drawn token waits for its step */
    ENGINE_ANSWER_MASKS,  /* its step is over; which tokens fit its grammar is being found out */
    ENGINE_ANSWER_PARKED, /* its request is parked */
    /* it has ended; the step that runs has its session, or its place for steps */
    ENGINE_ANSWER_LEAVES
};

struct engine_answer {
    enum engine_answer_state state;
    struct ingle_request *r;      /* NULL: FREE or LEAVES */
    int index;
    struct ingle_session session; /* always there; empty while the slot is free */
    int64_t n_generated;
    int64_t step_rows;   /* of it in a step that runs; 0: none */
    bool looks;          /* RESTORES: the store looks at its directory first */
    int64_t fork;        /* where another prompt went another way: a restore point; 0: nowhere */
    int64_t leader;      /* SHARES: the number of the other request, ... */
    int64_t share;       /* ... and how many tokens it has to compute first, ... */
    bool passes;         /* ... where it need not stop */
    /* RUNS: the session's last tokens that are drafted: until its step's results, or it is
     * parked */
    int64_t n_drafts;
    /* [n_branches] that part from them, as long, ... */
    struct engine_branch *branch[ENGINE_BRANCHES];
    struct session_branch *beside[ENGINE_BRANCHES]; /* ... and what is computed of these */
    int n_branches;
    int64_t n_beside;    /* their tokens */
    int64_t n_chain;     /* of n_drafts before one of them was taken, */
    /* ... if one was: its tokens are drafted, too, from there on; else NULL */
    struct engine_branch *taken;
    /* RUNS: no drafts until it has had a step, since one could not be computed with them; ... */
    bool plain;
    /* ... that was the step whose results are looked at, and it is tried again */
    bool again;
};

/* Tokens that part from what is drafted for an answer. */
struct engine_branch {
    struct session_branch *b; /* owned */
    const struct engine_answer *a; /* whose it is; NULL: nobody's */
    int kind;
    int64_t at;               /* drafted tokens before it */
    float confidence[SCHED_DRAFT_BRANCH];
};

/* A token that is drawn after a step. */
struct engine_draw {
    struct engine_answer *a;
    const float *logits; /* of the row at hand; those of drafted tokens follow, ... */
    int64_t n_more;      /* ... so many */
    int64_t n_history;   /* tokens of the session that it is drawn behind */
    struct ingle_token token;
    struct ingle_top *top; /* [n_top], the request's */
    int n_top;
    ingle_status status;
    struct ingle_error error;
};

/* How probable a token of a prompt was, and the best ones for its place. */
struct engine_told {
    float logprob;
    struct ingle_top *top; /* [n_top], the request's */
};
enum { ENGINE_TOLD = 16 }; /* tokens of which a prompt is told at a time */

/* What a step is made of. */
struct engine_lane {
    struct sched_row *row;       /* [max_running]: those that could take part, and ... */
    struct engine_answer **who;  /* ... whose row it is */
    struct session_work *work;   /* [max_running]: the step, and ... */
    struct engine_answer **item; /* ... whose work it is */
    int64_t n_rows;              /* of row[] and who[] */
    int64_t n;                   /* of work[] and item[] */
    int64_t n_answers, prompt_rows, most; /* in the step */
    bool dropped;                /* drafts without which the step is to be tried again */
    struct ingle_request *owner; /* the step is its alone, or most of it is its prompt; or NULL */
};

/* A step whose rows are at stages, while others are under way. */
struct engine_flight {
    struct engine_lane lane;
    uint64_t began;
};

struct engine_call {
    struct engine_call *next;
    void (*fn)(struct ingle_engine *e, void *arg);
    void *arg;
    bool done;
};

struct ingle_scheduler {
    struct ingle_engine *e;
    struct ingle_scheduler_options o; /* without zeros */
    int64_t n_vocab, n_ctx, max_rows, max_logits;
    uint64_t budget_bytes;
    pthread_t thread;

    struct engine_answer *slot;  /* [max_running] */
    struct engine_lane step, between; /* the step; the one between its pieces */
    struct engine_flight flight[SESSION_MOST_FLIGHTS]; /* [n_flights] */
    int n_flights;               /* steps that may be under way at stages together; 0: none */
    bool grounded;               /* the next step is for all */
    uint64_t landed;             /* clock_now(): the last one */
    struct engine_draw *draw;    /* [max_running] */
    struct engine_told *told;    /* [ENGINE_TOLD] */
    struct engine_masks *masks;  /* of slots that are MASKS */
    struct engine_drafts *drafts; /* NULL: nothing drafts */
    struct engine_trees *trees;   /* NULL: only chains are drafted */
    struct ingle_request *begun;
    struct ingle_expert_use inner_use; /* by steps between the pieces of the one that runs */
    int64_t n_free, n_ended;     /* slots; answers since the start */
    uint64_t reserved_bytes;
    struct sched_pace pace;
    uint64_t turn;
    struct device_between looks; /* any other step */
    uint64_t look;               /* clock_now(): who is over by then? */
    uint64_t n_ops;              /* of such steps */
    bool long_prompts;           /* such a step of prompts takes long */
    /* While a step runs that others run between. */
    struct device_between pieces;
    uint64_t due;                /* clock_now(): when the next one is */
    uint64_t answered;           /* when the last step of answers ended */
    uint64_t between_ns;         /* what they took */
    /* While a medium is encoded, between whose pieces there are steps of those who do not need
     * it. */
    struct device_between encodes;
    struct ingle_request *encoded; /* whose it is; NULL: it is given up */
    bool is_encoding, has_encoded; /* has_encoded: a step comes before the next one */
    uint64_t encode_due, yielded_ns; /* when others are next; what they took */
    double encode_told;
    atomic_bool encode_stop;     /* Sync: atomic */
    bool no_pages;               /* one had too few pages: the next step is for all */
    uint64_t store_asked;        /* clock_now(): when the store was last asked */
    bool stuck;                  /* nobody could take part: nothing to do until there is news */
    bool others_next;            /* prompts that are not in the step share the next one between */
    int others_rest;             /* steps between before they are asked again */

    pthread_mutex_t lock;
    pthread_cond_t wake, called;  /* for the thread; for those who wait for a call */
    struct sched_queue *queue;    /* Sync: lock, and tickets' users with it */
    struct engine_call *calls;    /* Sync: lock */
    bool closing;                 /* Sync: lock */
    /* Sync: lock; somebody came, is cancelled, or is held no longer */
    bool news;
    int64_t last_number;          /* Sync: lock */
    struct ingle_request *owner;  /* Sync: lock; the running step's */
    uint64_t step_began;          /* Sync: lock; 0: no step runs */
    double request_seconds;       /* Sync: lock; what requests took lately, in a slot */
    struct ingle_scheduler_status status; /* Sync: lock */
    uint64_t store_try_at;        /* Sync: lock; clock_now(); 0: writes do not fail */
    bool settled;                 /* the snapshot is that of a store with nothing to write */
    struct ingle_slot *seen;              /* Sync: lock; [max_running] */
    atomic_bool abort;                    /* Sync: atomic; ends the running step */
    /* Sync: atomic; somebody is cancelled since the last look */
    atomic_bool cancels;
};

/* ---- requests ---- */

/* Checked, copied, not yet in the queue. */
MUST_CHECK ingle_status engine_request_create(struct ingle_request **out,
                                              const struct ingle_scheduler *s,
                                              const struct ingle_request_options *o,
                                              struct err *err);
void engine_request_free(struct ingle_request *r);
struct ingle_request *engine_request_of(struct sched_ticket *t);
/* Ends one answer; with the last one the request, which is gone then. */
void engine_answer_end(struct ingle_scheduler *s, struct engine_answer *a, enum ingle_finish why,
                       const struct err *err);
/* Ends all answers of a request, begun or not. */
void engine_request_end(struct ingle_scheduler *s, struct ingle_request *r, enum ingle_finish why,
                        const struct err *err);
/* The slot of an answer that has ended, which no step moves; remember: in the prefix cache. */
void engine_slot_free(struct ingle_scheduler *s, struct engine_answer *a, bool remember);
/* Slots that a request has. */
int64_t engine_n_running(const struct ingle_scheduler *s);
/* KV pages of a request whose answers have up to `planned` tokens each. */
MUST_CHECK ingle_status engine_request_plan(const struct ingle_scheduler *s,
                                            struct ingle_request *r, int64_t planned,
                                            struct err *err);
/* The reservation of an answer that outgrows it follows. */
void engine_request_grow(struct ingle_scheduler *s, struct ingle_request *r, int64_t n_generated);
/* What an answer that is MASKS waits for is given up. */
void engine_leave_mask(struct ingle_scheduler *s, struct engine_answer *a);
/* Requests that were cancelled or are too late end, wherever they are.  One that the step
 * which runs computes ends that step first. */
void engine_end_those_over(struct ingle_scheduler *s);

/* ---- admission ---- */

/* Parked requests go on, waiting ones begin, while there are slots and memory. */
void engine_admit(struct ingle_scheduler *s);
/* Answers whose shared or stored prefix is there (or will not come) start. */
void engine_start_shares(struct ingle_scheduler *s);
/* There are not enough KV pages for a step: the least urgent request gives its own back and
 * waits.  False: there is only one. */
bool engine_park_one(struct ingle_scheduler *s);

/* ---- steps ---- */

static inline bool engine_is_held(const struct ingle_request *r) { return atomic_load(&r->held); }
/* False: nobody could take part. */
bool engine_step(struct ingle_scheduler *s);
/* Encodes a medium that somebody's next step needs, while steps of others go on; false: there is
 * none. */
bool engine_encode_next(struct ingle_scheduler *s);
bool engine_media_waits(struct ingle_scheduler *s);
/* Its next step needs a medium that is not encoded. */
bool engine_lacks_media(const struct ingle_scheduler *s, const struct engine_answer *a);
/* In the middle of a step: those who are over end, if it is time to look. */
void engine_look(void *scheduler);

/* ---- drafts ---- */

/* *out is NULL where neither a network nor text drafts. */
MUST_CHECK ingle_status engine_drafts_open(struct engine_drafts **out,
                                           const struct ingle_scheduler *s, struct err *err);
void engine_drafts_close(struct engine_drafts *d);
/* Answers that could take part in a step of up to max_rows rows get drafts, if that pays; a round
 * of the network may run. */
void engine_draft(struct ingle_scheduler *s, int64_t max_rows);
/* The session is as it was without them. */
void engine_drafts_drop(struct engine_answer *a);
/* Of a's drafts n_right were what was drawn, after n_tried draws. */
void engine_drafts_told(struct ingle_scheduler *s, const struct engine_answer *a, int64_t n_tried,
                        int64_t n_right);
/* The token at `place` of what was drafted for it was not drawn, but this one. */
void engine_drafts_missed(struct ingle_scheduler *s, const struct engine_answer *a, int64_t place,
                          int32_t drawn);
/* A step of these rows, whose results are still to come, took that long; 0: not measured. */
void engine_drafts_step(struct ingle_scheduler *s, const struct engine_lane *l, double seconds);
/* The answer has ended: others of its user may go on as it did. */
void engine_drafts_end(struct ingle_scheduler *s, const struct engine_answer *a);

/* ---- branches of drafts ---- */

/* *out is NULL where only chains are drafted. */
MUST_CHECK ingle_status engine_trees_open(struct engine_trees **out,
                                          const struct ingle_scheduler *s, struct err *err);
void engine_trees_close(struct engine_trees *t);
/* Of a pool of budget_bytes what is kept for branches. */
uint64_t engine_trees_bytes(const struct ingle_engine *e, uint64_t budget_bytes);
/* Nodes that a tree of the answer may have; 1: a chain. */
int64_t engine_tree_nodes(const struct ingle_scheduler *s, const struct engine_answer *a);
/* What could part from the chains of the coming step: nothing; n tokens of an answer, its i-th
 * item, behind the first `at` of its chain. */
void engine_tree_begin(struct engine_trees *t);
struct engine_guess {
    int kind;
    int64_t at, n;
    const int32_t *token;    /* [n] */
    const float *confidence; /* [n], or NULL: not known */
};
void engine_tree_offer(struct engine_trees *t, int64_t i, const struct engine_guess *guess);
/* Takes those that pay: who[i] has its i-th chain, which may become shorter, and branches. */
void engine_tree_grow(struct ingle_scheduler *s, struct sched_draft *sched,
                      struct sched_draft_item *item, int64_t n, const struct sched_draft_room *room,
                      struct engine_answer *const *who, const int32_t *const *chain);
/* The drawn token is not the one that was drafted, if any was.  True: it is the first one of a
 * branch, along which drawing goes on. */
bool engine_tree_turn(struct ingle_scheduler *s, struct engine_draw *d);
/* The answer has no branches any more. */
void engine_branches_drop(struct engine_answer *a);

/* ---- what it tells ---- */

/* What ingle_scheduler_status() tells. */
void engine_take_snapshot(struct ingle_scheduler *s);

#endif
