/* SPDX-License-Identifier: Apache-2.0 */
/* stages - layers in other processes: of an engine that has the first ones, and of a stage. */
#define _POSIX_C_SOURCE 200809L
#include "engine/engine.h"
#include "engine/plan.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/size.h"
#include "expert/store.h"
#include "stage/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXT = 4096, USUAL_WAIT = 60 };

/* ---- what was requested ---- */

/* "N,N,...": ascending, above 0, the last one the number of layers. */
static ingle_status read_ends(const char *text, int64_t n_layers, int64_t end[STAGE_MOST + 1],
                              int *n, struct err *err)
{
    const char *at = text;
    int64_t before = 0;
    for (*n = 0;; at++) {
        char *rest;
        const long long v = strtoll(at, &rest, 10);
        if (rest == at || (*rest && *rest != ',') || *n > STAGE_MOST)
            return err_set(err, INGLE_ARG,
                           "'%s' is neither auto nor 1 to %d numbers with commas between them "
                           "(--layer-ends)",
                           text, STAGE_MOST + 1);
        if (v <= before)
            return err_set(err, INGLE_ARG, "layer end %lld is not above %lld (--layer-ends %s)", v,
                           (long long)before, text);
        if (v > n_layers)
            return err_set(err, INGLE_ARG,
                           "layer end %lld is beyond the model's %lld layers (--layer-ends %s)", v,
                           (long long)n_layers, text);
        end[(*n)++] = before = v;
        at = rest;
        if (!*at)
            break;
    }
    return before == n_layers
               ? INGLE_OK
               : err_set(err, INGLE_ARG,
                         "the last layer end is %lld, the model has %lld layers: a stage is "
                         "missing (--layer-ends %s)",
                         (long long)before, (long long)n_layers, text);
}

static ingle_status check_ends(const struct ingle_engine *e, const char *text, struct err *err)
{
    int64_t end[STAGE_MOST + 1];
    int n;
    if (!text || strcmp(text, "auto") == 0)
        return INGLE_OK;
    const ingle_status st = read_ends(text, e->info.n_layers, end, &n, err);
    if (st)
        return st;
    if (n != stage_remote_n(e->stages) + 1)
        return err_set(err, INGLE_ARG,
                       "%d layer ends for this engine and %d stages, %d are needed (--layer-ends "
                       "%s)",
                       n, stage_remote_n(e->stages), stage_remote_n(e->stages) + 1, text);
    for (int i = 0; i + 1 < n; i++) {
        const struct stage_hello *h = stage_remote_hello(e->stages, i);
        if (h->from != end[i] || h->to != end[i + 1])
            return err_set(err, INGLE_ARG,
                           "stage %d has layers %u:%u, and --layer-ends %s wants %lld:%lld of it",
                           i + 1, h->from, h->to, text, (long long)end[i],
                           (long long)end[i + 1]);
    }
    return INGLE_OK;
}

/* What cannot be had together with stages. */
static ingle_status refuse(const struct ingle_engine_options *o, struct err *err)
{
    const struct {
        bool requested;
        const char *name, *why;
    } no[] = {
        {o->gpu && strcmp(o->gpu, "auto") != 0 && strcmp(o->gpu, "off") != 0, "gpu",
         "layers at a stage or of its engine run on the processor"},
        {o->gpu_layers && strcmp(o->gpu_layers, "auto") != 0 && strcmp(o->gpu_layers, "0") != 0,
         "gpu-layers", "layers at a stage or of its engine run on the processor"},
        {o->draft_gpu_layers && strcmp(o->draft_gpu_layers, "auto") != 0 &&
             strcmp(o->draft_gpu_layers, "0") != 0,
         "draft-gpu-layers", "with stages the processor computes the drafter"},
        {o->kv_disk != NULL, "kv-disk", "pages of keys and values lie at the stages"},
        {o->sparse && strcmp(o->sparse, "off") != 0, "sparse", "stages attend to all of a prompt"},
        {o->kv_select && strcmp(o->kv_select, "off") != 0, "kv-select",
         "stages read all keys and values"},
        {o->prompt_drafter != NULL, "prompt-drafter", "stages have no positions that are left out"},
        {o->lock, "lock", "memory is divided by layers"},
    };
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (no[i].requested)
            return err_set(err, INGLE_UNSUP, "'%s' does not go together with stages: %s",
                           no[i].name, no[i].why);
    return INGLE_OK;
}

/* ---- who one is ---- */

static ingle_status describe(const struct ingle_engine *e, const struct ingle_engine_options *o,
                             struct stage_hello *out, struct err *err)
{
    struct kv_types types;
    struct stage_hello h = {.version = STAGE_VERSION,
                            .to = (uint32_t)e->info.n_layers,
                            .n_layers = (uint32_t)e->info.n_layers,
                            .n_embd = (uint32_t)e->info.n_embd,
                            .n_ctx = 1,
                            .max_rows = 1,
                            .arithmetic = KV_ARITHMETIC,
                            .layout = KERN_LAYOUT,
                            .form = e->form,
                            .weight_bytes = e->weight_bytes};
    const ingle_status st = kv_types_parse(o->kv, o->kv_k, o->kv_v, o->kv_layers, &types, err);
    if (st)
        return st;
    snprintf(h.numerics, sizeof h.numerics, "%.47s", device_numerics_name(e->device));
    snprintf(h.family, sizeof h.family, "%.31s", e->family->arch);
    snprintf(h.kv, sizeof h.kv, "%.255s", kv_types_name(&types).at);
    snprintf(h.cpu, sizeof h.cpu, "%.31s", e->cpu);
    snprintf(h.engine, sizeof h.engine, "%.31s", ingle_version());
    *out = h;
    return INGLE_OK;
}

static void keep_layers(struct ingle_engine *e, int64_t from, int64_t to)
{
    stage_keep_layers(e->family, e->self, e->weights, from, to, e->info.n_layers);
    e->weight_bytes = model_bytes(e->weights);
}

ingle_status engine_stages_open(struct ingle_engine *e, const struct ingle_engine_options *o,
                                struct err *err)
{
    const char *address[STAGE_MOST + 2];
    char text[MOST_TEXT];
    if (!o->stages)
        return o->layer_ends && strcmp(o->layer_ends, "auto") != 0
                   ? err_set(err, INGLE_ARG, "layer ends '%s' without stages (--stages)",
                             o->layer_ends)
                   : INGLE_OK;
    if (strlen(o->stages) >= sizeof text)
        return err_set(err, INGLE_ARG, "addresses of stages have %zu bytes, the limit is %zu",
                       strlen(o->stages), sizeof text - 1);
    int64_t end[STAGE_MOST + 1];
    int n_ends;
    ingle_status st = refuse(o, err);
    if (!st && o->layer_ends && strcmp(o->layer_ends, "auto") != 0)
        st = read_ends(o->layer_ends, e->info.n_layers, end, &n_ends, err);
    struct engine_cut_options cut = {.e = e, .o = o};
    if (!st && o->layer_ends && strcmp(o->layer_ends, "auto") != 0) {
        cut.n_ends = n_ends;
        memcpy(cut.end, end, (size_t)n_ends * sizeof *end);
    }
    if (!st && (o->stage_wait < 0 || o->stage_wait > 86400))
        st = err_set(err, INGLE_ARG, "a wait for stages of %g s is outside 0 to 86400",
                     o->stage_wait);
    if (!st)
        st = describe(e, o, &e->stage_hello, err);
    if (st)
        return st;
    memcpy(text, o->stages, strlen(o->stages) + 1);
    struct stage_remote_options r = {
        .address = address,
        .key_file = o->worker_key,
        .plain = o->worker_plain,
        .hello = &e->stage_hello,
        .sink = &e->sink,
        .cut = engine_stages_cut,
        .cut_arg = &cut,
        .wait_ns = (uint64_t)((o->stage_wait > 0 ? o->stage_wait : USUAL_WAIT) * 1e9)};
    st = link_addresses_cut(text, "--stages", address, STAGE_MOST, &r.n, err);
    if (!st)
        st = stage_remote_open(&e->stages, &r, err);
    if (!st)
        st = check_ends(e, o->layer_ends, err);
    if (!st)
        keep_layers(e, 0, stage_remote_first(e->stages));
    return st;
}

ingle_status engine_stages_limit(const struct ingle_engine *e, const struct ingle_engine_options *o,
                                 struct runner_options *r, struct err *err)
{
    r->stages = e->stages;
    r->stage_hello = &e->stage_hello;
    r->stage_from = e->stage_from;
    r->stage_to = e->stage_to;
    for (int i = 0; i < stage_remote_n(e->stages); i++) {
        const struct stage_hello *h = stage_remote_hello(e->stages, i);
        const int64_t n = h->n_ctx;
        if (o->n_ctx > n)
            return err_set(err, INGLE_UNSUP,
                           "stage %d has a context of at most %lld tokens, %lld are asked for "
                           "(--ctx)",
                           i + 1, (long long)n, (long long)o->n_ctx);
        if (!o->n_ctx && (!r->n_ctx || r->n_ctx > n))
            r->n_ctx = n < e->info.n_ctx ? n : e->info.n_ctx;
    }
    return INGLE_OK;
}

ingle_status engine_stages_refuse(const struct ingle_engine *e, int64_t n_ctx, struct err *err)
{
    char list[300] = "";
    size_t at = 0;
    for (int i = 0; i < stage_remote_n(e->stages) && at < sizeof list; i++) {
        const struct stage_hello *h = stage_remote_hello(e->stages, i);
        at += (size_t)snprintf(list + at, sizeof list - at,
                               "%s'%s' %u:%u has weights of %s in %s and pages for %s",
                               i ? ", " : "", stage_remote_address(e->stages, i), h->from, h->to,
                               SIZE_OF(h->weight_bytes), SIZE_OF(h->limit_bytes),
                               SIZE_OF(h->budget_bytes));
    }
    return err_set(err, INGLE_LIMIT,
                   "keys and values of a context of %lld tokens take %s (all layers together): %s "
                   "(a shorter --ctx here, or more memory there)",
                   (long long)n_ctx, SIZE_OF(e->session_bytes), list);
}

int64_t engine_stages_rows(const struct ingle_engine *e)
{
    int64_t least = INT32_MAX;
    for (int i = 0; i < stage_remote_n(e->stages); i++) {
        const struct stage_hello *h = stage_remote_hello(e->stages, i);
        if (h->max_rows > 1) /* one without layers does not know */
            least = num_min(least, h->max_rows);
    }
    return least;
}

uint64_t engine_stages_budget(const struct ingle_engine *e)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < stage_remote_n(e->stages); i++)
        if (stage_remote_hello(e->stages, i)->budget_bytes < least)
            least = stage_remote_hello(e->stages, i)->budget_bytes;
    return least;
}

bool ingle_engine_stage(const struct ingle_engine *e, int i, struct ingle_engine_stage *out)
{
    struct stage_remote_counts n;
    if (i < 0 || i >= stage_remote_n(e->stages))
        return false;
    stage_remote_count(e->stages, i, &n);
    *out = (struct ingle_engine_stage){.address = n.address,
                                       .from = n.from,
                                       .to = n.to,
                                       .ready = n.ready,
                                       .direct = n.direct,
                                       .steps = n.steps,
                                       .rows = n.rows,
                                       .sent_bytes = n.sent_bytes,
                                       .received_bytes = n.received_bytes,
                                       .losses = n.losses,
                                       .compute_ns = n.compute_ns,
                                       .wait_ns = n.wait_ns,
                                       .weight_bytes = n.weight_bytes,
                                       .limit_bytes = n.limit_bytes,
                                       .budget_bytes = n.budget_bytes,
                                       .read_bytes_per_s = n.read_rate,
                                       .trip_us = n.trip_us};
    memcpy(out->trouble, n.trouble, sizeof out->trouble);
    return true;
}

bool ingle_engine_stages_ready(const struct ingle_engine *e, char *why, size_t n_why)
{
    return stage_remote_is_ready(e->stages, why, n_why);
}

/* ---- a stage ---- */

/* "A:B" with 0 < A < B <= layers; "auto": an engine says them. */
ingle_status engine_stage_take(struct ingle_engine *e, const struct ingle_engine_options *o,
                               const char *layers, struct err *err)
{
    struct link_range range;
    ingle_status st = refuse(o, err);
    if (!st && strcmp(layers, "auto") == 0) {
        e->stage_open = true;
        return INGLE_OK;
    }
    if (st)
        return st;
    if (link_range_parse(layers, &range, NULL))
        return err_set(err, INGLE_ARG,
                       "layers '%s' of a stage are neither auto nor A:B with 0 < A < B, A to B - 1 "
                       "(--stage)",
                       layers);
    if (range.all || range.to > e->info.n_layers)
        return err_set(err, INGLE_ARG,
                       "layers '%s' of a stage: the model has %lld, A:B are A to B - 1 (--stage)",
                       layers, (long long)e->info.n_layers);
    if (!range.from)
        return err_set(err, INGLE_ARG,
                       "layers '%s' of a stage begin with layer 0, which is the engine's, with the "
                       "embedding (--stage)",
                       layers);
    e->stage_from = range.from;
    e->stage_to = range.to;
    keep_layers(e, range.from, range.to);
    return INGLE_OK;
}

static void tend(void *arg)
{
    engine_experts_tend(arg);
}

ingle_status engine_stage_serve(struct ingle_engine *e, const struct ingle_engine_options *o,
                                const struct runner_options *r, const struct ingle_plan *plan,
                                const char *address, struct link *link,
                                const struct link_peer *greet, const atomic_bool *stop,
                                struct stage_serve **out, struct err *err)
{
    struct stage_hello h;
    const ingle_status st = describe(e, o, &h, err);
    if (st)
        return st;
    h.from = (uint32_t)e->stage_from;
    h.to = (uint32_t)e->stage_to;
    h.n_ctx = (uint32_t)r->n_ctx;
    h.max_rows = (uint32_t)(r->max_rows + r->media_rows);
    h.budget_bytes = r->kv_budget_bytes;
    /* what else is free may be pages, too; the engine decides */
    const uint64_t margin = engine_margin_of(o, plan->limit_bytes),
                   taken = plan->total_bytes + margin;
    if (taken < plan->limit_bytes && e->stage_share > 0)
        h.budget_bytes += (uint64_t)((double)(plan->limit_bytes - taken) / e->stage_share);
    h.limit_bytes = plan->limit_bytes;
    h.read_rate = (uint64_t)engine_read_rate(e);
    h.open = e->stage_open;
    h.instance = e->stage_instance;
    h.sum = e->identity;
    const struct stage_serve_options s = {.address = address,
                                          .key_file = o->worker_key,
                                          .plain = o->worker_plain,
                                          .hello = &h,
                                          .family = e->family,
                                          .self = e->self,
                                          .info = &e->info,
                                          .kv = &r->kv,
                                          .sink = &e->sink,
                                          .link = link,
                                          .store = o->store,
                                          .store_bytes = o->store_bytes,
                                          .identity = e->identity,
                                          .model = e->model->name[0] ? e->model->name
                                                                     : e->model->path,
                                          .share = e->stage_share,
                                          .once = e->stage_once,
                                          .greet = greet,
                                          .stop = stop,
                                          .tend = tend,
                                          .tend_arg = e};
    return stage_serve_open(out, e->device, &s, err);
}

/* Who a stage is that has no layers yet. */
ingle_status engine_stage_offer(struct ingle_engine *e, const struct ingle_engine_options *o,
                                const char *address, const struct report_sink *sink,
                                const atomic_bool *stop,
                                struct stage_offer **out, struct err *err)
{
    struct stage_hello h;
    uint64_t limit;
    ingle_status st = describe(e, o, &h, err);
    if (!st)
        st = engine_memory_limit(e, o, &limit, err);
    if (st)
        return st;
    h.n_ctx = (uint32_t)(o->n_ctx ? o->n_ctx : e->info.n_ctx);
    h.weight_bytes = 0;
    h.limit_bytes = limit;
    h.read_rate = (uint64_t)engine_read_rate(e);
    h.open = true;
    h.instance = e->stage_instance;
    const struct stage_offer_options s = {.address = address,
                                          .key_file = o->worker_key,
                                          .plain = o->worker_plain,
                                          .hello = &h,
                                          .sink = sink,
                                          .stop = stop};
    return stage_offer_open(out, &s, err);
}
