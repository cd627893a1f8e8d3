/*
 * request - a request of the scheduler, and what comes of its steps.
 */
#ifndef INGLE_RUN_REQUEST_H
#define INGLE_RUN_REQUEST_H

#include "api/words.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "sched/sched.h"

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
    /* [o.n, and ENGINE_REPORTED for prompt_logprobs][o.n_top], owned, or NULL */
    struct ingle_top *top;
    bool by_network, by_text; /* what may draft for it; neither: nothing */
    int n_open;              /* answers that have not ended */
    bool begun, parked;      /* parked: it gave its memory back and waits for some */
    bool unsupported[INGLE_WAYS]; /* it asked for such a way where it cannot be */
    bool prefetched;         /* what is on disk of it is being read ahead */
    int64_t parked_at;       /* the scheduler's n_ended then */
    int64_t n_reported;      /* tokens of the prompt that progress has reported */
    int64_t n_logprobs;      /* ... that token() has reported */
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
    struct session_branch *computed[ENGINE_BRANCHES]; /* ... and what is computed of these */
    int n_branches;
    int64_t n_branch_tokens; /* their tokens */
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
enum { ENGINE_REPORTED = 16 }; /* tokens of a prompt that are reported at a time */

/* What a step is made of. */
struct engine_lane {
    struct sched_row *row;       /* [max_running]: those that could take part, and ... */
    struct engine_answer **who;  /* ... whose row it is */
    struct session_work *work;   /* [max_running]: the step, and ... */
    struct engine_answer **item; /* ... whose work it is */
    int64_t n_rows;              /* of row[] and who[] */
    int64_t n;                   /* of work[] and item[] */
    int64_t n_wanted;            /* of these, whose logits are wanted; the others are behind them */
    int64_t n_answers, prompt_rows, most; /* in the step */
    bool dropped;                /* drafts without which the step is to be tried again */
    struct ingle_request *owner; /* the step is its alone, or most of it is its prompt; or NULL */
};

/* A step whose rows are at stages, while others are under way. */
struct engine_flight {
    struct engine_lane lane;
    uint64_t began;
    double rounds;                  /* engine_drafts_rounds() then */
    int64_t chunk_rows;             /* of prompts of which nothing comes back */
    struct sched_draft_step drafts; /* as it was planned */
};

struct engine_call {
    struct engine_call *next;
    void (*fn)(struct ingle_engine *e, void *arg);
    void *arg;
    bool done;
};

#endif
