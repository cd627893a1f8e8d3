/*
 * engine - an engine: from options to a plan, and what it opens.
 *
 * engine.c       weights, threads, KV memory: the plan and the machine
 * config.c       the table of options
 * facts.c        the table of counters
 * gpu.c, expect.c, experts.c, workers.c, pack.c, paging.c, events.c, look.c   parts of it (plan.h)
 * worker.c       a process that computes experts, or layers
 * draft.c        the drafter beside a model: found, paired, loaded (draft.h)
 * draft_about.c  what a drafter was made for
 * way.c, shorten.c   other ways to compute prompts and answers (way.h)
 * media.c        encoders of pictures and sound (media.h)
 * stages.c       layers in other processes, and a process that has some of them
 * stages_cut.c   which layers each has, and their plans
 * session.c, draw.c   timelines, steps, sampling (session.h)
 */
#ifndef INGLE_ENGINE_ENGINE_H
#define INGLE_ENGINE_ENGINE_H

#include "api/api.h"
#include "ingle/ingle.h"
#include "session/session.h"
#include <stdatomic.h>

/* What is to be on a card. */
struct engine_gpu {
    bool requested;     /* somebody wants one, or layers on it */
    int64_t first, end; /* layers; first == end: none */
    bool experts, head; /* with those of the layers; with what comes after the last one */
    uint64_t weights, pages, rows, limit; /* bytes; limit: that it may take */
    uint64_t away;  /* of the weights: what a plan expects to be there, and not in memory */
    double kv_away; /* the share of keys and values of which memory has nothing */
    int64_t draft_first, draft_end, draft_layers; /* the drafter's layers there, of all */
    bool draft_experts;
    uint64_t draft_weights, draft_away; /* as weights and away */
};

/* How prompts and answers are computed where nobody says; no gaps. */
struct engine_way {
    struct kv_way way;
    const char *why[KV_WAYS]; /* why that cannot be; NULL: it can */
    bool reported[KV_WAYS];   /* that somebody asked for it where it cannot be */
    int64_t n_layers;         /* those whose rows see everything */
};

struct ingle_engine {
    struct ingle_model *model;
    struct link_events *events; /* NULL: prefixes are not published */
    struct kv_watch watch;
    struct report_sink sink;
    const struct family *family;
    struct io_meta *own_meta; /* of a checkpoint; NULL: the file's */
    struct device *device;
    struct model *weights;
    void *self; /* the family's */
    struct family_info info;
    struct runner *runner;
    struct engine_gpu gpu;
    const char *cpu, *numerics;
    char kv[256]; /* what keys and values are kept as */
    uint64_t weight_bytes, identity, form; /* weight_bytes: in memory */
    /* of the weights: what experts take that are not all in memory; 0: they are */
    uint64_t expert_budget;
    struct expert_store *experts; /* or NULL */
    struct engine_draft *draft; /* the network that drafts, or NULL */
    bool draft_text;            /* n-grams and grammars may draft */
    int64_t draft_most;         /* tokens of a draft; 0: as many as pay */
    int64_t draft_least;        /* tokens that are drafted although they may not pay */
    int64_t draft_tree;         /* nodes of a tree of drafts; 0 or 1: chains alone */
    /* for tests: so many are drafted, whatever they bring; 0: as many as pay */
    int64_t draft_force;
    int draft_force_by;         /* ... and by whom if it offers any; INGLE_DRAFTERS: in turn */
    char draft_why[240];        /* why no network drafts, or "" */
    /* of ingle_session_draw(): what steps and drafts were like; NULL: none yet */
    struct sched_draft *drawn;
    struct text_avoid *no_calls; /* what samplers without calls must not draw; NULL: no tokenizer */
    ingle_tap_fn *tap;
    void *tap_arg;
    atomic_bool cancel; /* Sync: atomic */
    struct expert_remote *workers; /* that compute experts, or NULL */
    struct stage_remote *stages;   /* that have the layers after the first ones, or NULL */
    struct stage_hello stage_hello;
    int64_t stage_from, stage_to;  /* this is a stage with these layers; 0, 0: it is not */
    bool stage_open;               /* ... which an engine may say anew */
    uint64_t stage_instance;       /* of the process that has them */
    bool stage_once;               /* it ends with its engine */
    double read_rate;              /* bytes a second of memory; 0: not measured */
    char stages_short[480];        /* why no cut fits; "" */
    uint64_t session_bytes;        /* of pages: what a session's context takes */
    double stage_share;            /* of the bytes of pages: what is in this process */
    struct engine_way way;
    bool paging_reported;       /* that there is nothing to keep on disk */
    struct engine_media *media; /* encoders of pictures and sound, or NULL; */
    char media_why[240];        /* ... why there are none */
    struct engine_shortener *shortener;   /* what shortens prompts, or NULL */
    /* the numerics, with how prompts and answers are computed where nobody says */
    char named[80];
};

/* engine.c: an engine whose weights are bound and not loaded; *out is to be closed in any case.
 * The memory that may be used, and what of it is left to others. */
MUST_CHECK ingle_status engine_prepare(struct ingle_engine **out, struct ingle_model *m,
                                       const struct ingle_engine_options *o, struct err *err);
/* Makes the plan *r and *out, and loads the weights: what engines and stages have in common. */
MUST_CHECK ingle_status engine_load(struct ingle_engine *e, const struct ingle_engine_options *o,
                                    struct runner_options *r, struct ingle_plan *out,
                                    struct err *err);
MUST_CHECK ingle_status engine_memory_limit(const struct ingle_engine *e,
                                            const struct ingle_engine_options *o, uint64_t *out,
                                            struct err *err);
uint64_t engine_margin_of(const struct ingle_engine_options *o, uint64_t limit);

#endif
