/*
 * scheduler - the thread behind ingle_scheduler_*; only scheduler*.c include this.
 *
 * scheduler.c          the calls from outside, the thread's loop, the snapshot
 * scheduler_request.c  a request: checked and copied, its answers' begin and end
 * scheduler_step.c     one step: who takes part, what comes of it
 *
 * A request has one or more answers.  An answer that runs has a slot with a session; the
 * first one computes the prompt, the others fork from it.  What no comment says is guarded
 * by a lock belongs to the scheduler's thread.
 */
#ifndef INGLE_ENGINE_SCHEDULER_H
#define INGLE_ENGINE_SCHEDULER_H

#include "engine/engine.h"
#include "sched/sched.h"

#include <pthread.h>

enum { ENGINE_MAX_TOP = 64 };

struct ingle_request {
    struct sched_ticket ticket; /* Sync: the scheduler's lock while it waits */
    struct ingle_request *next; /* of those that have begun */
    int64_t number;
    struct ingle_request_options o; /* prompt: owned; what the samplers hold is NULL here */
    int64_t max_tokens;             /* what o.max_tokens comes to in this context */
    uint64_t need_bytes;            /* of KV pages at most */
    struct ingle_sampler **sampler; /* [o.n], owned */
    int n_open;                     /* answers that have not ended */
    uint64_t submitted, started, prompt_done, deadline; /* clock_now(); 0: none */
    struct ingle_usage usage;
    atomic_bool cancelled; /* Sync: atomic */
};

enum engine_answer_state {
    ENGINE_ANSWER_FREE,
    ENGINE_ANSWER_PROMPT, /* its prompt is being computed */
    ENGINE_ANSWER_WAITS,  /* ... by the request's first answer */
    ENGINE_ANSWER_RUNS    /* a drawn token waits for its step */
};

struct engine_answer {
    enum engine_answer_state state;
    struct ingle_request *r;
    int index;
    struct ingle_session session; /* always there; empty while the slot is free */
    int64_t n_generated;
    int64_t logprobs_done; /* of the prompt's tokens, those that were told */
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

    struct engine_answer *slot; /* [max_running] */
    struct session_work *work;  /* [max_running] */
    struct sched_row *row;      /* [max_running] */
    struct engine_answer **item; /* [max_running]: whose work it is */
    struct ingle_request *begun;
    int64_t n_free;
    uint64_t reserved_bytes;
    struct sched_pace pace;
    uint64_t turn;
    struct ingle_top top[ENGINE_MAX_TOP];

    pthread_mutex_t lock;
    pthread_cond_t wake, called;  /* for the thread; for those who wait for a call */
    struct sched_queue *queue;    /* Sync: lock, and tickets' users with it */
    struct engine_call *calls;    /* Sync: lock */
    bool closing;                 /* Sync: lock */
    int64_t last_number;          /* Sync: lock */
    struct ingle_request *owner;  /* Sync: lock; most of the running step is its prompt */
    uint64_t step_began;          /* Sync: lock; 0: no step runs */
    double request_seconds;       /* Sync: lock; what requests took lately, in a slot */
    struct ingle_scheduler_status status; /* Sync: lock */
    struct ingle_slot *seen;              /* Sync: lock; [max_running] */
    atomic_bool abort;                    /* Sync: atomic; ends the running step */
};

/* ---- requests ---- */

/* Checked, copied, not yet in the queue. */
MUST_CHECK ingle_status engine_request_create(struct ingle_request **out,
                                              const struct ingle_scheduler *s,
                                              const struct ingle_request_options *o,
                                              struct err *err);
void engine_request_free(struct ingle_request *r);
/* Takes slots and a session for r; when that fails r has ended. */
void engine_request_begin(struct ingle_scheduler *s, struct ingle_request *r);
/* Ends one answer; with the last one the request, which is gone then. */
void engine_answer_end(struct ingle_scheduler *s, struct engine_answer *a, enum ingle_finish why,
                       const struct err *err);
/* Ends all answers of a request, waiting or begun. */
void engine_request_end(struct ingle_scheduler *s, struct ingle_request *r, enum ingle_finish why,
                        const struct err *err);

/* ---- steps ---- */

void engine_step(struct ingle_scheduler *s);

#endif
