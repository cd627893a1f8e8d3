/*
 * sched - who is served next, and how much of a step each one gets.
 *
 * Policy only: no thread, no clock, no session.  The engine's scheduler asks and obeys.
 *
 * queue   requests that wait.  The highest priority goes first; among equals the user who
 *         has been served the fewest tokens, then the one who came first.
 * step    the rows of one step: one for every answer that runs, and a share for prompts.
 * pace    how large that share may be, from the time that steps took.
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
};

MUST_CHECK ingle_status sched_queue_create(struct sched_queue **out, int64_t max_waiting,
                                           int64_t max_tokens, struct err *err);
/* Nobody holds a user any more. */
void sched_queue_free(struct sched_queue *q);

/* user: NULL is everybody.  INGLE_LIMIT: the queue is full, the text says of what. */
MUST_CHECK ingle_status sched_queue_put(struct sched_queue *q, struct sched_ticket *t,
                                        const char *user, struct err *err);
/* Whose turn it is; NULL: nobody waits. */
struct sched_ticket *sched_queue_head(const struct sched_queue *q);
/* Those who wait, by arrival: the first one, then t->next. */
struct sched_ticket *sched_queue_first(const struct sched_queue *q);
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
    double row_seconds; /* prompts: what one of its rows took lately beside answers; 0: not known */
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

/* ---- the pace ---- */

enum { SCHED_PACE_SEEN = 5 };

/* How long steps take.  Steps of answers alone are the measure of the others: when prompts
 * have shared the steps for a while, one step is left to the answers. */
struct sched_pace {
    double target_seconds; /* of a step while answers run; 0: twice a step of answers alone */
    struct {
        double seconds; /* 0: not seen */
        int64_t n_answers;
    } seen[SCHED_PACE_SEEN]; /* the last steps of answers alone, in turn */
    int64_t next, mixed_steps;
    double row_seconds; /* of a row in the last steps of prompts alone */
};

/* A step of that many answers alone; 0: not known yet. */
double sched_pace_answers(const struct sched_pace *p, int64_t n_answers);
/* sched_step_plan() with as many rows of prompts as fit beside the answers: none when the step
 * is to be a measure, else one at least.  Without answers: what half a second computes. */
void sched_pace_plan(const struct sched_pace *p, struct sched_row *row, int64_t n,
                     const struct sched_room *room);
/* A planned step took that long: row_seconds of the prompts in it follow. */
void sched_pace_note(struct sched_pace *p, struct sched_row *row, int64_t n, double seconds);

#endif
