/*
 * parts - inside the room: what each file of the scheduler has for the others.
 */
#ifndef INGLE_RUN_PARTS_H
#define INGLE_RUN_PARTS_H

#include "run/scheduler.h"

/* ---- requests ---- */

/* Checked, copied, not yet in the queue. */
MUST_CHECK ingle_status engine_request_create(struct ingle_request **out,
                                              const struct ingle_scheduler *s,
                                              const struct ingle_request_options *o,
                                              struct err *err);
void engine_request_free(struct ingle_request *r);
struct ingle_request *engine_request_of(struct sched_ticket *t);
/* Ends one answer; with the last one the request, which is not valid then. */
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
/* Seconds of the network's rounds, in all. */
double engine_drafts_rounds(const struct ingle_scheduler *s);
/* A step's plan, while others are planned; it is back before engine_drafts_step(). */
void engine_drafts_away(const struct ingle_scheduler *s, struct sched_draft_step *plan);
void engine_drafts_back(struct ingle_scheduler *s, const struct sched_draft_step *plan);
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

/* ---- what it reports ---- */

/* What ingle_scheduler_status() reports. */
void engine_take_snapshot(struct ingle_scheduler *s);

#endif
