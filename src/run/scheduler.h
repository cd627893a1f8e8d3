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
 * scheduler_status.c   what it reports
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
#include "run/request.h"
#include "sched/sched.h"

#include <pthread.h>

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
    bool mixed;                  /* prompts have rows in them, too, ... */
    int n_mixed;                 /* ... in so many more until their way is chosen again */
    struct sched_flights flights; /* whether others may be */
    uint64_t landed;             /* clock_now(): the last one; ... */
    double landed_rounds;        /* ... engine_drafts_rounds() then */
    struct engine_draw *draw;    /* [max_running] */
    struct engine_told *logprobs; /* [ENGINE_REPORTED] */
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
    double encode_reported;
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
    double request_seconds;       /* Sync: lock; what recent requests took, in a slot */
    struct ingle_scheduler_status status; /* Sync: lock */
    uint64_t store_try_at;        /* Sync: lock; clock_now(); 0: writes do not fail */
    bool settled;                 /* the snapshot is that of a store with nothing to write */
    struct ingle_slot *seen;              /* Sync: lock; [max_running] */
    atomic_bool abort;                    /* Sync: atomic; ends the running step */
    /* Sync: atomic; somebody is cancelled since the last look */
    atomic_bool cancels;
};

#endif
