/*
 * sched - who is served next, and how much of a step each one gets.
 *
 * Policy only: no thread, no clock, no session.  The engine's scheduler asks and obeys.
 *
 * queue   requests that wait.  The highest priority goes first; among equals the user who
 *         has been served the fewest tokens, then the one who came first.  When the queue is
 *         full, a user with fewer places takes the youngest of the user with the most.
 * step    the rows of one step: one for every answer that runs, and a share for prompts.
 * cost    what a step takes, from the time that others took.
 * pace    how large the prompts' share may be, and whether they share the answers' steps or
 *         are computed between them.
 */
#ifndef INGLE_SCHED_SCHED_H
#define INGLE_SCHED_SCHED_H

#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

/* ---- the queue ---- */

struct sched_queue;
struct sched_user;

/* A request's place; it is embedded in the request and holds on to its user from
 * sched_queue_put() to sched_queue_leave(). */
struct sched_ticket {
    int64_t n_tokens; /* of the prompt */
    int priority;
    struct sched_user *user;
    struct sched_ticket *next; /* while it waits: who came after it */
    bool waits;
    bool displaced; /* another user has its place; sched_queue_displaced() gives it out */
};

MUST_CHECK ingle_status sched_queue_create(struct sched_queue **out, int64_t max_waiting,
                                           int64_t max_tokens, struct err *err);
/* Nobody holds a user any more. */
void sched_queue_free(struct sched_queue *q);

/* user: NULL is everybody.  INGLE_LIMIT: the queue is full, the text says of what.  Others may have
 * been displaced for t. */
MUST_CHECK ingle_status sched_queue_put(struct sched_queue *q, struct sched_ticket *t,
                                        const char *user, struct err *err);
/* Whose turn it is; NULL: nobody waits. */
struct sched_ticket *sched_queue_head(const struct sched_queue *q);
/* Those who wait, by arrival: the first one, then t->next. */
struct sched_ticket *sched_queue_first(const struct sched_queue *q);
/* One that has lost its place, and is to be ended; NULL: there is none. */
struct sched_ticket *sched_queue_displaced(struct sched_queue *q);
/* t waits no longer. */
void sched_queue_take(struct sched_queue *q, struct sched_ticket *t);
/* t is over: it waits no longer, and its user may be forgotten. */
void sched_queue_leave(struct sched_queue *q, struct sched_ticket *t);
/* n tokens were computed for t. */
void sched_queue_serve(struct sched_ticket *t, int64_t n);
void sched_queue_count(const struct sched_queue *q, int64_t *n_waiting, int64_t *n_tokens);

/* ---- the step ---- */

struct sched_row {
    int64_t pending;    /* tokens that wait */
    int64_t stop;       /* at most so many of them now; 0: no such limit */
    bool answers;       /* a running answer: its token waits for logits */
    bool all_logits;    /* each of its rows is a row of logits */
    int priority;
    const void *user;
    int64_t at;         /* positions that are computed */
    int64_t n;          /* result: rows in this step */
};

struct sched_room {
    int64_t rows, logits; /* of a step at most */
    uint64_t turn;        /* grows from step to step */
};

/* Divides the room among row[0, n).  Answers get a row each (when there are more of them than
 * rows of logits: from `turn` on, so that a growing turn serves all), prompts share at most
 * prompt_rows: the higher priority first, among equals evenly by user, then evenly by
 * request. */
void sched_step_plan(struct sched_row *row, int64_t n, const struct sched_room *room,
                     int64_t prompt_rows);

/* ---- what a step takes ---- */

/* A step's rows, and the sum over them of the positions that each attends to. */
struct sched_load {
    int64_t rows, context;
};

enum { SCHED_COST_TERMS = 3 };

/* seconds = a + b * rows + c * context, none below 0; zeroed: nothing is known.  Window
 * layers are part of b, layers that keep one row of several of c. */
struct sched_cost {
    double at[SCHED_COST_TERMS];    /* a, b, c */
    /* Of what was seen lately: sums of x[i] x[k] and of x[i] y, each step in units of its time. */
    double xx[SCHED_COST_TERMS][SCHED_COST_TERMS], xy[SCHED_COST_TERMS];
    double scale[SCHED_COST_TERMS]; /* the largest of each term lately */
    double typical;                 /* seconds */
    double error;                   /* the usual one, as a part of a step */
    int n_off;                      /* errors in a row that are too large; below 0: too small */
    int64_t n_seen;
};

double sched_cost_of(const struct sched_cost *c, struct sched_load l);
/* ... with what is not known of it on top. */
double sched_cost_most(const struct sched_cost *c, struct sched_load l);
void sched_cost_note(struct sched_cost *c, struct sched_load l, double seconds);
/* Of row[0, n) as planned: the answers, the prompts, or both. */
struct sched_load sched_load_of(const struct sched_row *row, int64_t n, bool answers,
                                bool prompts);

/* ---- the pace ---- */

/* How prompts are computed while answers run. */
enum sched_way {
    SCHED_TOGETHER, /* some rows in each step of the answers: they share what it reads */
    SCHED_BETWEEN,  /* a large step of their own, which stops for those of the answers */
};

/* How long steps take, and what follows for the next one. */
struct sched_pace {
    double target_seconds;    /* of a step while answers run; 0: 1.8 times one of answers alone */
    struct sched_cost beside; /* steps with answers */
    struct sched_cost apart;  /* steps of prompts only, without what ran between */
    int64_t least_apart, most_apart; /* rows of the smallest and of the largest of these */
    double alone;             /* what the answers of the planned step would take */
    int64_t between_rows;     /* of a large step whose pieces are short enough */
    int64_t since_answers, since_together; /* steps since one of answers alone, ... */
    int64_t since_between;                 /* ... and rows since a large step */
    bool can_stop;            /* steps of prompts can stop for those of answers */
};

/* Plans row[0, n).  With answers the rows are theirs and so many of prompts that the step is
 * within its time, none when the step is to be a measure; or, SCHED_BETWEEN, only prompts'. */
enum sched_way sched_pace_plan(struct sched_pace *p, struct sched_row *row, int64_t n,
                               const struct sched_room *room);
/* The same for a step that runs between, so many seconds after the last one of the answers:
 * rows[0, n) lack the prompts that wait for it.  others: prompts have what is left of the time. */
void sched_pace_plan_between(struct sched_pace *p, struct sched_row *row, int64_t n,
                             const struct sched_room *room, double gone, bool others);
/* A step of these answers alone; 0: not known yet. */
double sched_pace_answers(const struct sched_pace *p, struct sched_load answers);
/* What prompts have until the next step of the answers, the last of which took that long. */
double sched_pace_slice(const struct sched_pace *p, struct sched_load answers, double took);
/* A planned step took that long, without what ran between its pieces; longest: what of those pieces
 * several took at least (one alone may be a pause of the machine), 0: it had none. */
void sched_pace_note(struct sched_pace *p, const struct sched_row *row, int64_t n, double seconds,
                     double longest);

#endif
