/* SPDX-License-Identifier: Apache-2.0 */
/* stages_cut - which layers the engine and its stages get, and the plans of all of them. */
#define _POSIX_C_SOURCE 200809L
#include "engine/engine.h"
#include "engine/plan.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/size.h"
#include "stage/stage.h"

#include <stdio.h>
#include <string.h>

enum { USUAL_CTX = 8192, USUAL_ROWS = 512, LOGITS = 48 };

/* ---- speed ---- */

/* By as many bytes as a process may have of the model, so that a small model's caches count. */
double engine_read_rate(const struct ingle_engine *e)
{
    const uint64_t least = (uint64_t)4 << 20, most = (uint64_t)256 << 20;
    const uint64_t n = e->weight_bytes < least ? least : e->weight_bytes;
    return engine_memory_rate(device_pool(e->device), (size_t)(n < most ? n : most));
}

/* ---- what layers take ---- */

struct sizes {
    struct stage_layer *layer; /* owned: [n_layers] */
    uint64_t experts;          /* of all layers */
    uint64_t scratch, rest, head, logits; /* of each process; of the engine */
};

static uint64_t layer_kv(const struct ingle_engine *e, const struct kv_spec *spec, int64_t layer,
                         int64_t n_ctx, int64_t rows, int64_t n_sessions)
{
    struct kv_spec here;
    uint64_t n, windows;
    stage_share(e->family, e->self, spec, layer, layer + 1, &here);
    if (layer == 0) /* a guest's pages are no layer's */
        for (uint32_t g = spec->n_own; spec->n_own && g < spec->n_groups; g++)
            here.group[g].page_bytes = 0;
    if (!kv_plan_parts(&here, n_ctx, rows, &n, &windows) ||
        !num_mul_u64(n, (uint64_t)n_sessions, &n))
        return UINT64_MAX / 1024;
    return n;
}

static ingle_status measure_layers(const struct ingle_engine *e,
                                   const struct ingle_engine_options *o, struct sizes *s,
                                   struct err *err)
{
    struct kv_types types;
    struct kv_spec spec = {0};
    const int64_t n = e->info.n_layers, rows = o->max_rows ? o->max_rows : USUAL_ROWS,
                  n_ctx = o->n_ctx ? o->n_ctx : num_min(e->info.n_ctx, USUAL_CTX),
                  n_sessions = o->n_sessions ? o->n_sessions : 1;
    ingle_status st = kv_types_parse(o->kv, o->kv_k, o->kv_v, o->kv_layers, &types, err);
    if (!st)
        st = e->family->kv(e->self, &types, &spec, err);
    if (st)
        return st;
    for (uint32_t g = 0; g < spec.n_groups; g++)
        spec.group[g].ends = false; /* steps go in pieces */
    s->layer = mem_calloc((size_t)n, sizeof *s->layer);
    if (!s->layer)
        st = err_set(err, INGLE_NOMEM, "no memory for %lld layers", (long long)n);
    for (int64_t i = 0; !st && i < n; i++) {
        const uint64_t dense = model_layer_bytes(e->weights, i, false),
                       experts = model_layer_bytes(e->weights, i, true);
        const double used = e->info.n_experts ? (double)e->info.n_experts_used /
                                                    (double)e->info.n_experts : 1;
        s->experts += experts;
        s->layer[i].memory_bytes =
            dense + experts + layer_kv(e, &spec, i, n_ctx, rows, n_sessions);
        s->layer[i].read_bytes = dense + (uint64_t)((double)experts * used);
    }
    if (!st)
        s->scratch = stage_dry_run(e->family, e->self, &e->info, e->device, &spec, n_ctx, rows,
                                   n > 1, n);
    kv_spec_release(&spec);
    struct family_ends ends = {0};
    e->family->ends(e->self, &ends);
    s->head = ends.head ? device_matrix_bytes(ends.head) : 0;
    const uint64_t collapse = ends.collapse ? device_matrix_bytes(ends.collapse) : 0;
    if (s->layer) { /* whoever has the last layer */
        s->layer[n - 1].memory_bytes += collapse;
        s->layer[n - 1].read_bytes += collapse;
    }
    s->rest = model_layer_bytes(e->weights, -1, false);
    s->logits = (uint64_t)LOGITS * (uint64_t)e->info.n_vocab * sizeof(float) * 2;
    return st ? st : device_status(e->device, err);
}

/* ---- the cut ---- */

static void say_short(const struct ingle_engine *e, const struct stage_remote *r,
                      const struct stage_cut *c, const int64_t *end, char *out, size_t n)
{
    size_t at = (size_t)snprintf(out, n, "%s: no cut of its %lld layers fits; the nearest:",
                                 e->model->path, (long long)c->n_layers);
    for (int k = 0; k < c->n_places && at < n; k++) {
        const int64_t from = k ? end[k - 1] : 0;
        uint64_t need = c->place[k].fixed_bytes;
        for (int64_t i = from; i < end[k]; i++)
            need += c->layer[i].memory_bytes;
        at += (size_t)snprintf(out + at, n - at, "%s %s%s%s %lld:%lld needs %s of %s",
                               k ? "," : "", k ? "'" : "",
                               k ? stage_remote_address(r, k - 1) : "the engine", k ? "'" : "",
                               (long long)from, (long long)end[k], SIZE_OF(need),
                               SIZE_OF(c->place[k].memory_bytes));
    }
}

/* The layers that stages have from an engine before: kept unless others are clearly better, since
 * loading takes long and measurements differ. */
static void keep_cut(const struct stage_remote *r, const struct stage_cut *c, int64_t *end)
{
    static const double much = 1.15;
    int64_t now[STAGE_MOST + 1];
    for (int i = 0; i < c->n_places - 1; i++) {
        const struct stage_hello *h = stage_remote_hello(r, i);
        if (!h->from || (i && h->from != now[i]))
            return;
        now[i] = h->from;
        now[i + 1] = h->to;
    }
    if (now[c->n_places - 1] != c->n_layers)
        return;
    const double has = stage_cut_seconds(c, now);
    if (has >= 0 && has <= much * stage_cut_seconds(c, end))
        memcpy(end, now, (size_t)c->n_places * sizeof *end);
}

/* Where experts do not all fit, each process keeps the others on its disk. */
static ingle_status find_cut(struct ingle_engine *e, const struct stage_remote *r,
                             struct stage_cut *c, struct stage_layer *layer, int64_t *end,
                             struct err *err)
{
    ingle_status st = stage_cut_find(c, end, err);
    if (st != INGLE_LIMIT || c->n_layers > STAGE_CUT_LAYERS)
        return st;
    say_short(e, r, c, end, e->stages_short, sizeof e->stages_short);
    bool any = false;
    for (int64_t i = 0; i < c->n_layers; i++) {
        const uint64_t experts = model_layer_bytes(e->weights, i, true);
        any = any || experts;
        layer[i].memory_bytes -= experts;
    }
    if (any && stage_cut_find(c, end, NULL) == INGLE_OK) {
        e->stages_short[0] = 0;
        report(&e->sink, INGLE_REPORT_NOTE, "stage", "experts",
               "they do not all fit into the memory of the engine and %d stages: some stay in "
               "files", c->n_places - 1);
    }
    return INGLE_OK; /* what is short is an error when they are loaded */
}

/* The stages' hellos are there.  best: what would be chosen if all were open. */
static ingle_status cut(struct ingle_engine *e, const struct ingle_engine_options *o,
                        const struct stage_remote *r, bool best, int64_t *end, struct err *err)
{
    struct sizes s = {0};
    struct stage_place place[STAGE_MOST + 1] = {0};
    uint64_t limit;
    ingle_status st = engine_memory_limit(e, o, &limit, err);
    if (!st)
        st = measure_layers(e, o, &s, err);
    struct stage_cut c = {s.layer, place, e->info.n_layers, stage_remote_n(r) + 1};
    if (!st) {
        if (!(e->read_rate > 0))
            e->read_rate = engine_read_rate(e);
        place[0] = (struct stage_place){.memory_bytes = limit,
                                        .fixed_bytes = s.rest + s.scratch + s.logits,
                                        .read_bytes = s.head,
                                        .rate = e->read_rate};
        for (int i = 0; i < stage_remote_n(r); i++) {
            const struct stage_hello *h = stage_remote_hello(r, i);
            struct stage_place *p = &place[i + 1];
            *p = (struct stage_place){.memory_bytes = h->limit_bytes,
                                      .fixed_bytes = s.scratch,
                                      .rate = h->read_rate ? (double)h->read_rate : e->read_rate};
            if (!h->open && !best) {
                p->from = h->from;
                p->to = h->to;
            }
        }
        st = find_cut(e, r, &c, s.layer, end, err);
        if (!st && !e->stages_short[0])
            keep_cut(r, &c, end);
    }
    mem_free(s.layer);
    return st;
}

ingle_status engine_stages_cut(void *arg, const struct stage_remote *r, int64_t *end,
                               struct err *err)
{
    const struct engine_cut_options *a = arg;
    if (a->n_ends && a->n_ends != stage_remote_n(r) + 1)
        return err_set(err, INGLE_ARG,
                       "%d layer ends for this engine and %d stages, %d are needed (--layer-ends)",
                       a->n_ends, stage_remote_n(r), stage_remote_n(r) + 1);
    if (!a->n_ends)
        return cut(a->e, a->o, r, false, end, err);
    memcpy(end, a->end, (size_t)a->n_ends * sizeof *end);
    return INGLE_OK;
}

ingle_status engine_stages_assign(struct ingle_engine *e, const struct ingle_engine_options *o,
                                  struct err *err)
{
    if (!e->stages)
        return INGLE_OK;
    if (e->stages_short[0])
        return err_set(err, INGLE_LIMIT, "%s", e->stages_short);
    return stage_remote_assign(e->stages, o->n_ctx, err);
}

/* ---- plans of all ---- */

static void keep(struct ingle_engine *e, int64_t from, int64_t to)
{
    stage_keep_layers(e->family, e->self, e->weights, from, to, e->info.n_layers);
    e->weight_bytes = model_bytes(e->weights);
}

static void fill(struct ingle_stage_part *out, const struct ingle_plan *p)
{
    out->total_bytes = p->total_bytes;
    out->limit_bytes = p->limit_bytes;
    for (int i = 0; i < p->n_items; i++) {
        const char *name = p->item[i].name;
        if (strcmp(name, "weights") == 0 || strcmp(name, "experts") == 0)
            out->weight_bytes += p->item[i].bytes;
        else if (strcmp(name, "keys and values") == 0 || strcmp(name, "windows") == 0 ||
                 strcmp(name, "prefix cache") == 0 || strcmp(name, "branches of drafts") == 0)
            out->kv_bytes += p->item[i].bytes;
    }
    out->other_bytes = p->total_bytes > out->weight_bytes + out->kv_bytes
                           ? p->total_bytes - out->weight_bytes - out->kv_bytes : 0;
    out->fits = p->fits;
    snprintf(out->advice, sizeof out->advice, "%s", p->advice);
}

/* What stage i would say of itself, for the engine's plan. */
static ingle_status plan_stage(struct ingle_engine *e, const struct ingle_engine_options *o,
                               int i, const struct ingle_plan *engine, struct ingle_stage_part *out,
                               struct err *err)
{
    const struct stage_hello *h = stage_remote_hello(e->stages, i);
    struct ingle_engine s = *e;
    struct ingle_engine_options own = *o;
    struct ingle_plan p;
    struct runner_options r;
    own.memory_bytes = h->limit_bytes;
    own.n_ctx = engine->n_ctx;
    own.max_rows = engine->max_rows;
    own.expert_bytes = 0;
    s.sink = (struct report_sink){0};
    s.stages = NULL;
    s.workers = NULL;
    s.media = NULL;
    s.draft = NULL;
    s.draft_text = false;
    s.draft_tree = 0;
    s.shortener = NULL;
    s.expert_budget = 0;
    s.stage_from = h->from;
    s.stage_to = h->to;
    keep(&s, h->from, h->to);
    const ingle_status st = engine_plan_silently(&s, &own, &r, &p, err);
    const int64_t first = stage_remote_first(e->stages);
    struct ingle_engine back = *e;
    keep(&back, 0, first);
    if (!st)
        fill(out, &p);
    return st;
}

static void begin_part(const struct ingle_engine *e, int k, const struct sizes *s,
                       struct ingle_stage_part *out)
{
    const struct stage_hello *h = k ? stage_remote_hello(e->stages, k - 1) : NULL;
    *out = (struct ingle_stage_part){.from = h ? h->from : 0,
                                     .to = h ? h->to : stage_remote_first(e->stages),
                                     .open = h && h->open,
                                     .read_bytes_per_s = h ? (double)h->read_rate : e->read_rate};
    uint64_t read = h ? 0 : s->head;
    for (int64_t i = out->from; i < out->to; i++)
        read += s->layer[i].read_bytes;
    out->token_bytes = read;
    if (!h)
        return;
    snprintf(out->address, sizeof out->address, "%s", stage_remote_address(e->stages, k - 1));
    memcpy(out->engine, h->engine, sizeof out->engine);
    memcpy(out->cpu, h->cpu, sizeof out->cpu);
    out->limit_bytes = h->limit_bytes;
}

static ingle_status plan_all(struct ingle_engine *e, const struct ingle_engine_options *o,
                             bool measure, struct ingle_plan *engine,
                             struct ingle_stage_part *out, int64_t *best, struct err *err)
{
    struct sizes s = {0};
    struct runner_options r;
    const int n = stage_remote_n(e->stages);
    if (!(e->read_rate > 0))
        e->read_rate = engine_read_rate(e);
    ingle_status st = measure_layers(e, o, &s, err);
    for (int k = 0; !st && k <= n; k++) {
        struct stage_rates rate;
        begin_part(e, k, &s, &out[k]);
        st = k ? plan_stage(e, o, k - 1, engine, &out[k], err)
               : engine_plan_silently(e, o, &r, engine, err);
        if (!st && !k)
            fill(&out[0], engine);
        if (!st && k && measure && !(st = stage_remote_try(e->stages, k - 1, &rate, err))) {
            out[k].trip_us = rate.trip_us;
            out[k].out_bytes_per_s = rate.out_bytes_per_s;
            out[k].in_bytes_per_s = rate.in_bytes_per_s;
            memcpy(out[k].cipher, rate.cipher, sizeof out[k].cipher);
        }
    }
    mem_free(s.layer);
    if (!st)
        st = cut(e, o, e->stages, true, best, err);
    return st;
}

ingle_status ingle_engine_plan_stages(struct ingle_model *m, const struct ingle_engine_options *o,
                                      bool measure, struct ingle_plan *engine,
                                      struct ingle_stage_part out[INGLE_STAGE_PARTS], int *n,
                                      int64_t best[INGLE_STAGE_PARTS], struct ingle_error *error)
{
    struct err err;
    struct ingle_engine *e = NULL;
    ingle_status st = engine_prepare(&e, m, o, &err);
    if (!st && !e->stages)
        st = err_set(&err, INGLE_ARG, "no stages are named (--stages)");
    if (!st)
        st = plan_all(e, o, measure, engine, out, best, &err);
    if (!st)
        *n = stage_remote_n(e->stages) + 1;
    ingle_engine_close(e);
    return engine_say(error, st, &err);
}
