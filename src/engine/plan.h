/*
 * plan - parts of an engine's plan: a card, keys and values on disk, experts, workers, events.
 */
#ifndef INGLE_ENGINE_PLAN_H
#define INGLE_ENGINE_PLAN_H

#include "engine/engine.h"

/* gpu.c: after the device is made; "auto" where nobody says.  draft: the drafter's layers. */
MUST_CHECK ingle_status engine_gpu_check(const char *gpu, const char *layers, const char *draft,
                                         uint64_t bytes, struct err *err);
MUST_CHECK ingle_status engine_gpu_open(struct ingle_engine *e,
                                        const struct ingle_engine_options *o, struct err *err);
/* The rest of the plan is made: kv_bytes of pages, rows: what steps have for themselves. */
MUST_CHECK ingle_status engine_gpu_plan(struct ingle_engine *e,
                                        const struct ingle_engine_options *o,
                                        const struct runner_options *r, uint64_t kv_bytes,
                                        uint64_t rows, struct err *err);
/* Its column of a plan whose items are there. */
void engine_gpu_fill(const struct ingle_engine *e, struct ingle_plan *out);
/* Before the weights are loaded. */
void engine_gpu_place(struct ingle_engine *e);
/* Of the drafter's streams: the numbers of layers [*first, *end) that are there. */
void engine_gpu_draft(const struct ingle_engine *e, int64_t *first, int64_t *end);
void engine_gpu_info(const struct ingle_engine *e, struct ingle_engine_info *out);

/* paging.c: keys and values beyond memory.  A family that has nothing to keep on disk has no disk,
 * which is said once. */
MUST_CHECK ingle_status engine_paging_open(struct ingle_engine *e, struct runner_options *r,
                                           struct err *err);
void engine_paging_plan(const struct ingle_engine *e, const struct runner_options *r,
                        const struct runner_plan *p, int64_t n_sessions, struct ingle_plan *out);
void engine_paging_report(const struct ingle_engine *e, const struct runner_options *r,
                          const struct ingle_plan *p);
void engine_paging_count(const struct ingle_engine *e, struct ingle_paging *out);

/* expect.c: measures, and fills in what is to be expected of experts on disk; nothing where they
 * are in memory. */
void engine_expect(const struct ingle_engine *e, struct ingle_plan *p);
/* experts.c: between steps; gives memory back where it is short. */
void engine_experts_tend(struct ingle_engine *e);
/* experts.c: what was used since the engine was opened; zeros where all are in memory. */
struct ingle_expert_use engine_experts_used(const struct ingle_engine *e);
/* What came between `from` and `to`, added. */
void engine_experts_add(struct ingle_expert_use *sum, const struct ingle_expert_use *from,
                        const struct ingle_expert_use *to);
/* expect.c: bytes of the weights without experts. */
uint64_t engine_dense_bytes(const struct ingle_engine *e);
/* A budget that was said: INGLE_LIMIT below the least, INGLE_ARG of other options. */
MUST_CHECK ingle_status engine_experts_check(const struct ingle_engine *e,
                                             const struct ingle_engine_options *o, struct err *err);
/* After loading, if there is a budget. */
MUST_CHECK ingle_status engine_experts_open(struct ingle_engine *e,
                                            const struct ingle_engine_options *o, struct err *err);
/* worker.c: after that, if there are addresses; between steps. */
MUST_CHECK ingle_status engine_workers_open(struct ingle_engine *e,
                                            const struct ingle_engine_options *o, struct err *err);
void engine_workers_tend(struct ingle_engine *e);
/* The experts of layer i; NULL: it has none. */
const struct expert_layer *engine_experts_at(const struct ingle_engine *e, int64_t i);
/* Who this engine is, for workers: after loading. */
struct link_hello;
MUST_CHECK ingle_status engine_worker_describe(const struct ingle_engine *e, struct link_hello *out,
                                               struct err *err);

/* stages.c: after binding, before the plan: finds the stages, and leaves their layers to them. */
MUST_CHECK ingle_status engine_stages_open(struct ingle_engine *e,
                                           const struct ingle_engine_options *o, struct err *err);
/* stages_cut.c: which layers open stages get; of engine_cut_options. */
struct stage_remote;
struct engine_cut_options {
    struct ingle_engine *e;
    const struct ingle_engine_options *o;
    int n_ends; /* 0: nobody says */
    int64_t end[INGLE_STAGE_PARTS];
};
MUST_CHECK ingle_status engine_stages_cut(void *arg, const struct stage_remote *r, int64_t *end,
                                          struct err *err);
/* ... before the plan: they load them. */
MUST_CHECK ingle_status engine_stages_assign(struct ingle_engine *e,
                                             const struct ingle_engine_options *o,
                                             struct err *err);
double engine_read_rate(const struct ingle_engine *e); /* bytes a second; measures */
/* expect.c: the same, of n_bytes; 0: not known. */
struct pool;
double engine_memory_rate(struct pool *p, size_t n_bytes);
/* engine.c: a plan, whatever it costs, without a word. */
MUST_CHECK ingle_status engine_plan_silently(struct ingle_engine *e,
                                             const struct ingle_engine_options *o,
                                             struct runner_options *r, struct ingle_plan *out,
                                             struct err *err);
/* What stages have for a session, and what the runner is to know of them. */
MUST_CHECK ingle_status engine_stages_limit(const struct ingle_engine *e,
                                            const struct ingle_engine_options *o,
                                            struct runner_options *r, struct err *err);
uint64_t engine_stages_budget(const struct ingle_engine *e); /* of pages, at most */
/* Rows of a step that they have planned for, at most. */
int64_t engine_stages_rows(const struct ingle_engine *e);
/* That not even one session of n_ctx tokens has room, with what each stage has. */
MUST_CHECK ingle_status engine_stages_refuse(const struct ingle_engine *e, int64_t n_ctx,
                                             struct err *err);
/* A stage: its layers ("A:B"), before the plan; and what answers, after loading. */
MUST_CHECK ingle_status engine_stage_take(struct ingle_engine *e,
                                          const struct ingle_engine_options *o, const char *layers,
                                          struct err *err);
struct stage_serve;
struct link;
struct link_peer;
MUST_CHECK ingle_status engine_stage_serve(struct ingle_engine *e,
                                           const struct ingle_engine_options *o,
                                           const struct runner_options *r,
                                           const struct ingle_plan *plan, const char *address,
                                           struct link *link, const struct link_peer *greet,
                                           const atomic_bool *stop, struct stage_serve **out,
                                           struct err *err);
/* A stage that takes the layers that it is given ("auto"); the sink is the engine's. */
struct stage_offer;
MUST_CHECK ingle_status engine_stage_offer(struct ingle_engine *e,
                                           const struct ingle_engine_options *o,
                                           const char *address, const struct report_sink *sink,
                                           const atomic_bool *stop,
                                           struct stage_offer **out, struct err *err);

/* After the runner: --kv-events. */
MUST_CHECK ingle_status engine_events_open(struct ingle_engine *e,
                                           const struct ingle_engine_options *o, struct err *err);
void engine_events_close(struct ingle_engine *e); /* before the runner */

#endif
