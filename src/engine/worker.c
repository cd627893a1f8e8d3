/* SPDX-License-Identifier: Apache-2.0 */
/* worker - a process that computes experts of engines, or layers as one of their stages. */
#define _POSIX_C_SOURCE 200809L
#include "engine/engine.h"
#include "engine/plan.h"

#include "base/fp.h"
#include "base/mem.h"
#include "base/size.h"
#include "expert/serve.h"
#include "expert/store.h"
#include "stage/stage.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

struct ingle_worker {
    struct ingle_engine *e;
    struct expert_serve *serve;
    struct stage_serve *stage; /* instead: layers as a whole; or NULL */
    struct stage_offer *offer; /* "auto": the end that listens; or NULL */
    struct stage_asked asked;
    struct ingle_model *m;     /* with an offer: to load layers anew */
    uint64_t instance;         /* of this process, as a stage */
    bool once;                 /* it ends with its engine */
    struct ingle_engine_options o;
    struct report_sink sink;   /* of the offer, which outlives engines */
    uint64_t refused;
    const struct expert_layer **layer; /* [n_layers] */
    atomic_bool stop; /* Sync: atomic */
};

/* Experts get what is requested, or what is free. */
static ingle_status choose_budget(struct ingle_engine *e, const struct ingle_engine_options *o,
                                  struct err *err)
{
    const uint64_t all = model_expert_bytes(e->weights), least = expert_store_least(e->weights);
    uint64_t limit;
    ingle_status st = engine_experts_check(e, o, err);
    if (!st)
        st = engine_memory_limit(e, o, &limit, err);
    if (st)
        return st;
    const uint64_t margin = engine_margin_of(o, limit),
                   usable = limit > margin ? limit - margin : 0;
    uint64_t budget = o->expert_bytes ? o->expert_bytes : usable;
    if (budget > limit && !o->force)
        return err_set(err, INGLE_LIMIT, "%s: a budget of %s for experts, %s are free",
                       e->model->path, SIZE_OF(budget), SIZE_OF(limit));
    if (budget < least)
        return err_set(err, INGLE_LIMIT, "%s: %s are free for experts, the least is %s",
                       e->model->path, SIZE_OF(budget), SIZE_OF(least));
    e->expert_budget = budget >= all ? all + least : budget; /* a place for each */
    return INGLE_OK;
}

static ingle_status load_experts(struct ingle_engine *e, const struct ingle_engine_options *o,
                                 struct err *err)
{
    const struct model_load_options load = {.pack_dir = o->pack_cache,
                                            .pack_write = o->pack_write,
                                            .pack_bytes = o->pack_bytes,
                                            .identity = e->form,
                                            .no_experts = true,
                                            .only_experts = true};
    ingle_status st = choose_budget(e, o, err);
    if (!st)
        st = model_load_with(e->weights, &load, err);
    return st ? st : engine_experts_open(e, o, err);
}

static ingle_status open_worker(struct ingle_worker *w, const struct ingle_engine_options *o,
                                const struct ingle_worker_options *how, struct err *err)
{
    struct link_hello hello;
    struct link_range range;
    struct ingle_engine *e = w->e;
    ingle_status st = link_range_parse(how->layers ? how->layers : "all", &range, err);
    if (!st && !link_is_built())
        st = link_listen(NULL, NULL, err); /* it says why */
    if (!st)
        st = load_experts(e, o, err);
    if (!st)
        st = engine_worker_describe(e, &hello, err);
    if (st)
        return st;
    bool any = false;
    w->layer = mem_calloc((size_t)e->info.n_layers, sizeof *w->layer);
    if (!w->layer)
        return err_set(err, INGLE_NOMEM, "no memory for %lld layers", (long long)e->info.n_layers);
    for (int64_t i = 0; i < e->info.n_layers; i++) {
        const struct expert_layer *l = engine_experts_at(e, i);
        w->layer[i] = l && l->home && l->n == (int64_t)hello.n_experts && link_range_has(&range, i)
                          ? l
                          : NULL;
        any = any || w->layer[i];
    }
    if (!any || (!range.all && range.to > e->info.n_layers))
        return err_set(
            err, INGLE_ARG,
            "layers %s: the model has %lld, and none of these has experts, or some are not there",
            how->layers, (long long)e->info.n_layers);
    hello.range = range;
    const struct expert_serve_options s = {.address = how->listen,
                                           .key_file = o->worker_key,
                                           .plain = o->worker_plain,
                                           .hello = &hello,
                                           .layer = w->layer,
                                           .store = e->experts,
                                           .sink = &e->sink,
                                           .stop = &w->stop};
    return expert_serve_open(&w->serve, e->device, &s, err);
}

/* layers: "A:B"; link and greet: of an offer, or NULL. */
static ingle_status load_stage(struct ingle_worker *w, const struct ingle_engine_options *o,
                               const char *listen, const char *layers, struct err *err)
{
    struct runner_options r;
    struct ingle_plan plan;
    struct ingle_engine *e = w->e;
    struct link *link = w->offer ? stage_offer_link(w->offer) : NULL;
    ingle_status st = engine_stage_take(e, o, layers, err);
    e->stage_open = w->offer != NULL;
    e->stage_instance = w->instance;
    e->stage_once = w->once;
    if (!st)
        st = engine_load(e, o, &r, &plan, err);
    if (!st)
        st = engine_workers_open(e, o, err);
    return st ? st
              : engine_stage_serve(e, o, &r, &plan, listen, link, link ? &w->asked.by : NULL,
                                   &w->stop, &w->stage, err);
}

static ingle_status open_stage(struct ingle_worker *w, const struct ingle_engine_options *o,
                               const struct ingle_worker_options *how, struct err *err)
{
    if (how->layers && strcmp(how->layers, "all") != 0)
        return err_set(err, INGLE_ARG,
                       "'layers %s' (experts) and 'stage %s' (layers as a whole) contradict each "
                       "other",
                       how->layers, how->stage);
    ingle_status st = link_is_built() ? INGLE_OK : link_listen(NULL, NULL, err);
    if (st || strcmp(how->stage, "auto") != 0)
        return st ? st : load_stage(w, o, how->listen, how->stage, err);
    st = engine_stage_take(w->e, o, how->stage, err);
    w->e->stage_instance = w->instance;
    w->sink = w->e->sink;
    return st ? st
              : engine_stage_offer(w->e, o, how->listen, &w->sink, &w->stop, &w->offer, err);
}

/* Layers that an engine has asked for; an error is said to it, and the offer goes on. */
static void load_requested(struct ingle_worker *w)
{
    struct ingle_engine_options o = w->o;
    struct err err;
    char layers[48];
    stage_serve_close(w->stage);
    w->stage = NULL;
    ingle_engine_close(w->e);
    w->e = NULL;
    o.n_ctx = o.n_ctx ? o.n_ctx : w->asked.n_ctx;
    snprintf(layers, sizeof layers, "%lld:%lld", (long long)w->asked.from,
             (long long)w->asked.to);
    ingle_status st = engine_prepare(&w->e, w->m, &o, &err);
    if (!st)
        st = load_stage(w, &o, NULL, layers, &err);
    if (st) {
        w->refused++;
        stage_offer_refuse(w->offer, &w->asked.by, err.msg);
    }
}

ingle_status ingle_worker_open(struct ingle_worker **out, struct ingle_model *m,
                               const struct ingle_engine_options *o,
                               const struct ingle_worker_options *how, struct ingle_error *error)
{
    static const char *const off[] = {"off"};
    struct ingle_engine_options own = *o;
    struct err err;
    fenv_t mode;
    struct ingle_worker *w = mem_zalloc(sizeof *w);
    if (!w)
        return engine_say(error, err_set(&err, INGLE_NOMEM, "no memory for a worker"), &err);
    atomic_init(&w->stop, false);
    own.draft = off;
    own.n_draft = 1;
    own.mmproj = "off";
    w->m = m;
    w->o = own;
    w->once = how->once;
    if (getrandom(&w->instance, sizeof w->instance, GRND_NONBLOCK) < 0)
        w->instance = 0; /* then nobody sees that it is named twice */
    fp_enter(&mode);
    ingle_status st = engine_prepare(&w->e, m, &own, &err);
    if (!st && own.store && !how->stage)
        st = err_set(&err, INGLE_ARG,
                     "'store %s' is for keys and values, which a worker for experts has none of "
                     "(a stage has: --stage)",
                     own.store);
    if (!st)
        st = how->stage ? open_stage(w, &own, how, &err) : open_worker(w, &own, how, &err);
    fp_leave(&mode);
    if (st)
        ingle_worker_close(w);
    else
        *out = w;
    return engine_say(error, st, &err);
}

void ingle_worker_close(struct ingle_worker *w)
{
    if (!w)
        return;
    expert_serve_close(w->serve);
    stage_serve_close(w->stage);
    stage_offer_close(w->offer);
    ingle_engine_close(w->e);
    mem_free(w->layer);
    mem_free(w);
}

const char *ingle_worker_address(const struct ingle_worker *w)
{
    if (w->offer)
        return stage_offer_name(w->offer);
    return w->stage ? stage_serve_name(w->stage) : expert_serve_name(w->serve);
}

void ingle_worker_run(struct ingle_worker *w)
{
    fenv_t mode;
    fp_enter(&mode);
    if (w->offer)
        while (w->stage ? stage_serve_run(w->stage, &w->asked)
                        : stage_offer_wait(w->offer, &w->asked))
            load_requested(w);
    else if (w->stage)
        (void)stage_serve_run(w->stage, &w->asked);
    else
        expert_serve_run(w->serve);
    fp_leave(&mode);
}

void ingle_worker_stop(struct ingle_worker *w)
{
    atomic_store_explicit(&w->stop, true, memory_order_relaxed);
}

void ingle_worker_info(const struct ingle_worker *w, struct ingle_worker_info *out)
{
    struct expert_serve_counts n;
    struct expert_store_counts s;
    if (w->stage || w->offer) {
        struct stage_counts c = {0};
        if (w->stage)
            stage_serve_count(w->stage, &c);
        c.refused += w->refused;
        *out = (struct ingle_worker_info){
            .evals = c.steps, .pairs = c.rows, .refused = c.refused, .failed = c.failed};
        return;
    }
    expert_serve_count(w->serve, &n);
    expert_store_count(w->e->experts, &s);
    *out = (struct ingle_worker_info){n.evals, n.pairs,  n.refused,   n.failed,
                                      s.hits,  s.misses, s.read_bytes};
}
