/* SPDX-License-Identifier: Apache-2.0 */
/* runner - the memory of a loaded model at work, and the forward pass of one step. */
#include "base/mem.h"
#include "base/num.h"
#include "device/card.h"
#include "session/parts.h"
#include "session/run.h"
#include "session/sample.h"
#include <stdio.h>
#include <string.h>

enum {
    DENSE_ROWS = 512,
    EXPERT_ROWS = 2048,
    DEFAULT_LOGITS = 16,
    DEFAULT_RESTORE = 8192,
    MAX_ROWS = 1 << 16
};
enum { KEPT_STEPS = 2 }; /* steps whose pages stay in memory, where rows choose pages on disk */
enum { USUAL_PART = 16 };
enum { BETWEEN_ROWS = 64 }; /* of a step that runs between pieces of another one */

int64_t session_default_rows(const struct family_info *info)
{
    return info->n_experts ? EXPERT_ROWS : DENSE_ROWS;
}

static void defaults(struct runner_options *o, const struct family_info *info)
{
    if (o->n_ctx <= 0)
        o->n_ctx = info->n_ctx;
    if (o->max_rows <= 0)
        o->max_rows = session_default_rows(info);
    o->max_rows = num_min(o->max_rows, MAX_ROWS);
    if (o->max_logits <= 0)
        o->max_logits = DEFAULT_LOGITS;
    o->max_logits = num_min(o->max_logits, o->max_rows);
    if (o->restore_every <= 0)
        o->restore_every = DEFAULT_RESTORE;
    o->kv.shadow = o->select.part > 0;
}

/* With those of a picture. */
static int64_t all_rows(const struct runner_options *o)
{
    return o->max_rows + o->media_rows;
}

/* Scratch of the largest step: one long span, and as many spans as there can be rows; *held: of it
 * what is between operations. */
static size_t dry_run(const struct family *fam, const void *self, const struct family_info *info,
                      struct device *d, const struct kv_spec *spec, const struct drafter *drafter,
                      const struct runner_options *o, int64_t max_rows, size_t *held)
{
    size_t most = 0;
    *held = 0;
    for (int shape = 0; shape < 2; shape++) {
        const struct family_span one = {.n = shape ? 1 : max_rows};
        const struct family_step step = {.span = &one,
                                         .n_spans = 1,
                                         .n_rows = max_rows,
                                         .n_logits = num_min(o->max_logits, max_rows)};
        const struct family_forward f = {.device = d, .step = &step, .kv = spec, .n_ctx = o->n_ctx,
            .logits = {NULL, step.n_logits, info->n_vocab, info->n_vocab}};
        device_dry_begin(d);
        if (shape) /* the tables of that many spans and mirrors */
            (void)device_bytes(d, (size_t)max_rows *
                                      (6 * sizeof(struct device_span) + sizeof(struct family_span) +
                                       sizeof(struct family_mirror)));
        session_drafter_forward(drafter, fam, self, &f, NULL);
        const size_t n = device_dry_end(d);
        most = n > most ? n : most;
        *held = device_dry_held(d) > *held ? device_dry_held(d) : *held;
    }
    return most + 4096;
}

const char *session_disk_refuses(const struct kv_spec *s)
{
    return kv_disk_group(s) < 0 ? "no layer of it keeps heads of keys and values of all positions"
                                : NULL;
}

/* Pages that a step of so many rows writes, those that stay, the first one, and one that a page on
 * disk is copied to. */
static int64_t least_in_memory(int64_t max_rows)
{
    enum { MORE = 8 };
    return num_div_up(max_rows, KV_PAGE) + MORE;
}

int64_t session_select_room(const struct runner *r)
{
    return r->spec.kept ? r->spec.kept / KEPT_STEPS : INT64_MAX;
}

/* Pages of media that rows may read beside those that they choose: a picture, and half as many
 * again. */
static int64_t media_pages(const struct runner_options *o, int64_t budget)
{
    return o->media ? budget / 2 + num_div_up(num_max(o->media_rows, KV_PAGE), KV_PAGE) + 1 : 0;
}

/* What a session may have in memory of pages that may be on disk; where all are read unless
 * somebody says how pages are chosen, with room for the usual choice. */
static ingle_status set_in_memory(const struct runner_options *o, struct kv_spec *spec,
                                  struct err *err)
{
    if (!o->disk)
        return INGLE_OK;
    const char *why = session_disk_refuses(spec);
    if (why)
        return err_set(err, INGLE_UNSUP, "keys and values of this model cannot be kept on disk: %s",
                       why);
    const struct kern_select select =
        o->select.part == 1 ? (struct kern_select){USUAL_PART, KERN_SELECT_LEAST} : o->select;
    const int64_t budget = select.part ? kern_select_budget(&select, o->n_ctx - 1) : 0;
    spec->kept = KEPT_STEPS *
                 num_min(num_div_up(o->n_ctx, KV_PAGE), budget + media_pages(o, budget));
    spec->kept = budget ? spec->kept : 0;
    spec->in_memory = num_max(num_div_up(o->disk_tokens, KV_PAGE), least_in_memory(all_rows(o)));
    return INGLE_OK;
}

/* Of a session's pages: what the layers of this process have. */
static uint64_t here_bytes(const struct family *fam, const void *self,
                           const struct runner_options *o, const struct kv_spec *spec)
{
    struct kv_spec here;
    uint64_t n = 0, windows;
    const int64_t from = o->stages ? 0 : o->stage_from,
                  to = o->stages ? stage_remote_first(o->stages) : o->stage_to;
    stage_share(fam, self, spec, from, to, &here);
    return kv_plan_parts(&here, o->n_ctx, all_rows(o), &n, &windows) ? n : UINT64_MAX;
}

/* Steps of stages go in pieces, each of which reads what the one before it has left open. */
static void keep_pieces(const struct runner_options *o, struct kv_spec *spec)
{
    for (uint32_t g = 0; g < spec->n_groups && (o->stages || o->stage_to); g++)
        spec->group[g].ends = false;
}

/* Steps under way at stages together. */
static int n_flights(const struct runner_options *o)
{
    const int64_t n = o->stages ? stage_remote_n(o->stages) + 1 : 0;
    return (int)num_min(n, SESSION_MOST_FLIGHTS);
}

static ingle_status plan(const struct family *fam, const void *self,
                         const struct family_info *info, struct device *d,
                         const struct runner_options *o, const struct kv_spec *spec,
                         const struct drafter *drafter, struct runner_plan *out, struct err *err)
{
    struct runner_plan p = {.kv_tree_bytes = o->tree_budget_bytes};
    size_t logits, held;
    if (!kv_plan_parts(spec, o->n_ctx, all_rows(o), &p.kv_session_bytes, &p.kv_window_bytes) ||
        !num_mul((size_t)o->max_logits, (size_t)(info->n_vocab + 16) * sizeof(float), &logits))
        return err_set(err, INGLE_LIMIT, "a context of %lld tokens does not fit in memory",
                       (long long)o->n_ctx);
    if (!kv_point_bytes(spec, o->n_ctx, &p.point_bytes))
        return err_set(err, INGLE_LIMIT, "a context of %lld tokens does not fit in memory",
                       (long long)o->n_ctx);
    if (!kv_branch_bytes(spec, &p.branch_bytes))
        return err_set(err, INGLE_LIMIT, "a branch of drafts does not fit in memory");
    if (o->disk) {
        const uint64_t page = spec->group[kv_disk_group(spec)].page_bytes;
        if (!kv_disk_memory(spec, o->n_ctx, o->disk_bytes, &p.disk_memory_bytes))
            return err_set(err, INGLE_LIMIT, "a context of %lld tokens does not fit in memory",
                           (long long)o->n_ctx);
        p.disk_session_bytes =
            (uint64_t)num_max(0, num_div_up(o->n_ctx, KV_PAGE) - spec->in_memory) * page;
        p.disk_least_tokens = least_in_memory(o->max_rows) * KV_PAGE;
    }
    p.logits_bytes = logits;
    p.sampler_bytes = session_sample_bytes(info->n_vocab);
    p.token_bytes = (uint64_t)o->n_ctx * sizeof(int32_t) +
                    (uint64_t)num_div_up(o->n_ctx, KV_PAGE) * spec->n_groups * 2 * sizeof(void *) +
                    session_deferred_bytes(drafter);
    p.logits_bytes = p.logits_bytes * (uint64_t)(SESSION_LANES + n_flights(o)) +
                     session_drafter_wide_bytes(drafter, info->n_vocab);
    p.kv_here_bytes = p.kv_session_bytes;
    if (o->stages || o->stage_to)
        p.kv_here_bytes = here_bytes(fam, self, o, spec);
    const size_t round = session_drafter_dry_run(drafter, d, spec, o->n_ctx, info->n_vocab);
    const size_t between =
        dry_run(fam, self, info, d, spec, drafter, o, num_min(BETWEEN_ROWS, o->max_rows), &held);
    const size_t step = dry_run(fam, self, info, d, spec, drafter, o, all_rows(o), &held);
    p.arena_bytes = (between > round ? between : round) + (step > round ? step : round);
    if (o->stage_to)
        p.arena_bytes = stage_dry_run(fam, self, info, d, spec, o->n_ctx, all_rows(o),
                                      o->stage_from, o->stage_to);
    p.held_bytes = held;
    const ingle_status s = device_status(d, err);
    if (!s)
        *out = p;
    return s;
}

/* o: with its defaults. */
static ingle_status make_spec(const struct family *fam, const void *self,
                              const struct runner_options *o, struct kv_spec *spec,
                              struct drafter *drafter, struct err *err)
{
    ingle_status s = fam->kv(self, &o->kv, spec, err);
    if (!s)
        keep_pieces(o, spec);
    if (!s)
        s = session_drafter_init(drafter, o, spec, err);
    return s ? s : set_in_memory(o, spec, err);
}

ingle_status session_runner_kv(const struct family *fam, const void *self,
                               const struct family_info *info, const struct runner_options *options,
                               struct kv_spec *out, struct err *err)
{
    struct runner_options o = *options;
    struct drafter drafter;
    *out = (struct kv_spec){0};
    defaults(&o, info);
    const ingle_status s = make_spec(fam, self, &o, out, &drafter, err);
    if (s)
        kv_spec_release(out);
    return s;
}

ingle_status session_runner_plan(const struct family *fam, const void *self,
                         const struct family_info *info, struct device *d,
                         const struct runner_options *options, struct runner_plan *out,
                         struct err *err)
{
    struct runner_options o = *options;
    struct kv_spec spec = {0};
    struct drafter drafter;
    defaults(&o, info);
    ingle_status s = make_spec(fam, self, &o, &spec, &drafter, err);
    if (!s)
        s = plan(fam, self, info, d, &o, &spec, &drafter, out, err);
    kv_spec_release(&spec);
    return s;
}

/* ---- pages on a card ---- */

static void *own_take(void *arg, uint32_t group, size_t n_bytes)
{
    (void)group;
    return device_own_take(arg, n_bytes);
}

static void own_give(void *arg, void *own, size_t n_bytes)
{
    device_own_give(arg, own, n_bytes);
}

static void own_copy(void *arg, void *to, const void *from, size_t n_bytes)
{
    device_own_copy(arg, to, from, n_bytes);
}

static bool own_read(void *arg, uint32_t stream, void *host, const void *own, size_t n_bytes)
{
    (void)stream;
    device_own_get(arg, host, own, n_bytes);
    return !device_card_lost(arg);
}

static void own_write(void *arg, uint32_t stream, void *own, const void *host, size_t n_bytes)
{
    (void)stream;
    device_own_put(arg, own, host, n_bytes);
}

/* The spec's own parts anew; the drafter's spec has groups of its own, which are the same. */
static void set_parts(struct runner *r)
{
    kv_spec_set_own(&r->spec);
    memcpy(r->drafter.spec.group, r->spec.group, sizeof r->spec.group);
}

/* Streams of the layers that are there.  What must stay is reported once. */
static void set_own(struct runner *r, const struct runner_options *o)
{
    struct kv_spec *s = &r->spec;
    const char *reported = NULL;
    for (uint32_t i = 0; i < s->n_streams; i++) {
        struct kv_stream *st = &s->stream[i];
        const bool guest = s->n_own && st->group >= s->n_own;
        const int64_t first = guest ? o->draft_own_first : o->own_first,
                      end = guest ? o->draft_own_end : o->own_end;
        if (st->layer < first || st->layer >= end)
            continue;
        const char *why = family_card_refuses(r->device, s, i);
        st->own = !why;
        r->own = r->own || st->own;
        if (why && !reported && device_card(r->device)) /* else that was said */
            report(r->sink, INGLE_REPORT_WARN, "fallback", "gpu",
                   "keys and values of layer %u%s, and perhaps others, stay with the processor: %s",
                   st->layer, guest ? " of the drafter" : "", reported = why);
    }
    set_parts(r);
}

/* Where keys and values of the stages' layers are saved. */
static void report_store(struct runner *r, bool divided)
{
    for (int i = 0; i < stage_remote_n(r->stages) && !divided; i++)
        if (!stage_remote_hello(r->stages, i)->keeps)
            report(r->sink, INGLE_REPORT_WARN, "store", stage_remote_address(r->stages, i),
                   "this stage has no store (worker --store): what all stages have is saved here");
}

static ingle_status open_store(struct runner *r, const struct runner_options *o, struct err *err)
{
    struct kv_far far;
    char numerics[96], layers[32] = "";
    const bool divided =
        r->stages && stage_remote_far(r->stages, &far, &r->store_spec, layers, sizeof layers);
    snprintf(numerics, sizeof numerics, "%.60s%s", r->numerics, layers);
    const struct kv_store_options k = {.spec = divided ? &r->store_spec : NULL,
                                       .far = divided ? &far : NULL,.dir = o->store,
                                       .budget_bytes = o->store_bytes,
                                       .min_tokens = o->store_min_tokens,
                                       .identity = r->identity,
                                       .model = r->model,
                                       .numerics = numerics,
                                       .codec = r->kv.at};
    report_store(r, divided);
    return kv_store_open(&r->store, r->pool, &k, err);
}

static ingle_status start_stages(struct runner *r, const struct runner_options *o,
                                 uint64_t budget, struct err *err)
{
    struct stage_hello hello = *o->stage_hello;
    hello.n_ctx = (uint32_t)r->n_ctx;
    hello.max_rows = (uint32_t)r->all_rows;
    hello.budget_bytes = budget;
    return stage_remote_start(r->stages, r->family, r->self, &r->spec, &hello, err);
}

static ingle_status make_lanes(struct runner *r, struct err *err)
{
    for (int i = 0; i < SESSION_LANES + r->n_flights; i++) {
        struct lane *l = &r->lane[i];
        l->most = i ? num_min(BETWEEN_ROWS, r->max_rows) : r->max_rows;
        l->max_rows = i ? l->most : r->all_rows;
        l->logits = device_host_take(r->device, r->logits_bytes);
        l->span = mem_calloc((size_t)l->max_rows, sizeof *l->span);
        l->item = mem_calloc((size_t)l->max_rows, sizeof *l->item);
        l->branch = mem_calloc((size_t)l->max_rows, sizeof(struct session_branch *));
        l->mirror = mem_calloc((size_t)l->max_rows, sizeof *l->mirror);
        l->soft = mem_calloc((size_t)l->max_rows, sizeof *l->soft);
        if (!l->logits || !l->span || !l->item || !l->branch || !l->mirror || !l->soft)
            return err_set(err, INGLE_NOMEM, "no %zu bytes for logits", r->logits_bytes);
    }
    return INGLE_OK;
}

ingle_status session_runner_create(struct runner **out, const struct family *fam, const void *self,
                           const struct family_info *info, struct device *d,
                           const struct runner_options *options, struct err *err)
{
    struct runner_options o = *options;
    struct runner_plan p;
    defaults(&o, info);
    struct runner *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_set(err, INGLE_NOMEM, "no memory for a runner");
    atomic_init(&r->gentle, false);
    r->family = fam;
    r->self = self;
    r->info = *info;
    r->device = d;
    r->stages = o.stages;
    r->n_flights = n_flights(&o);
    r->sink = o.sink;
    r->n_ctx = o.n_ctx;
    r->max_rows = o.max_rows;
    r->all_rows = all_rows(&o);
    r->max_logits = o.max_logits;
    r->restore_every = o.restore_every;
    r->identity = o.identity;
    r->kv = kv_types_name(&o.kv);
    r->select = o.select;
    r->model = mem_strdup(o.model ? o.model : "");
    r->numerics = mem_strdup(o.numerics ? o.numerics : "exact");
    ingle_status s = INGLE_OK;
    if (!r->model || !r->numerics)
        s = err_set(err, INGLE_NOMEM, "no memory for a runner");
    if (!s)
        s = make_spec(fam, self, &o, &r->spec, &r->drafter, err);
    if (!s)
        s = plan(fam, self, info, d, &o, &r->spec, &r->drafter, &p, err);
    if (!s && r->stages)
        stage_remote_mark(r->stages, fam, self, &r->spec);
    else if (!s)
        set_own(r, &o);
    if (!s)
        s = device_arena_reserve(d, p.arena_bytes, err);
    const uint64_t budget =
        o.kv_budget_bytes ? o.kv_budget_bytes : p.kv_session_bytes + p.kv_tree_bytes;
    if (!s && r->stages)
        s = start_stages(r, &o, budget, err);
    const struct kv_memory on_card = {d, own_take, own_give, own_copy, own_read, own_write},
                           away = stage_remote_memory(r->stages);
    if (!s) {
        s = kv_pool_create(&r->pool, &r->spec, budget, o.sink, err);
        if (!s)
            kv_pool_memory(r->pool, device_nodes(d), pool_nodes(device_pool(d)) > 1, o.lock);
        if (!s)
            kv_pool_own(r->pool, r->stages ? &away : &on_card);
    }
    if (!s && o.disk) {
        const struct kv_disk_options disk = {.dir = o.disk,
                                             .budget_bytes = o.disk_bytes,
                                             .max_tokens = o.n_ctx,
                                             .spared_bytes = o.disk_spares};
        s = kv_disk_open(r->pool, &disk, err);
    }
    if (!s && o.tree_budget_bytes)
        s = kv_tree_create(&r->tree, r->pool, o.tree_budget_bytes, err);
    if (!s)
        s = kv_timeline_create(&r->snapshot, r->pool, r->n_ctx, err);
    if (!s && o.store)
        s = open_store(r, &o, err);
    if (!s) {
        r->held_bytes = (size_t)p.held_bytes;
        r->logits_bytes =
            (size_t)(p.logits_bytes - session_drafter_wide_bytes(&r->drafter, info->n_vocab)) /
            (size_t)(SESSION_LANES + r->n_flights);
        s = make_lanes(r, err);
    }
    if (!s)
        s = session_drafter_open(&r->drafter, d, info->n_vocab, err);
    if (s)
        session_runner_free(r);
    else
        *out = r;
    return s;
}

void session_runner_watch(struct runner *r, const struct kv_watch *watch)
{
    if (r->tree)
        kv_tree_watch(r->tree, watch);
    if (r->store)
        kv_store_watch(r->store, watch);
}

void session_runner_free(struct runner *r)
{
    if (!r)
        return;
    session_runner_write(r);
    kv_store_close(r->store);
    session_drafter_close(&r->drafter);
    kv_timeline_free(r->snapshot);
    kv_tree_free(r->tree);
    kv_pool_free(r->pool);
    kv_spec_release(&r->spec);
    for (int i = 0; i < SESSION_LANES + r->n_flights; i++) {
        device_host_give(r->device, r->lane[i].logits, r->logits_bytes);
        mem_free(r->lane[i].span);
        mem_free(r->lane[i].item);
        mem_free(r->lane[i].branch);
        mem_free(r->lane[i].mirror);
        mem_free(r->lane[i].soft);
    }
    mem_free(r->model);
    mem_free(r->numerics);
    mem_free(r);
}

bool session_runner_fill(struct runner *r)
{
    return device_arena_fill(r->device, r->held_bytes);
}

int64_t session_runner_n_ctx(const struct runner *r)
{
    return r->n_ctx;
}

int64_t session_runner_max_rows(const struct runner *r)
{
    return r->max_rows;
}

int64_t session_runner_between_rows(const struct runner *r)
{
    return r->lane[1].max_rows;
}

double session_runner_seen_seconds(const struct runner *r)
{
    return r->drafter.seen_seconds;
}

void session_runner_set_between(struct runner *r, struct device_between *b)
{
    r->between = b;
}

void session_runner_set_look(struct runner *r, struct device_between *look)
{
    r->look = look;
}

bool session_runner_is_deep(const struct runner *r)
{
    return r->drafter.waits && r->depth >= SESSION_LANES;
}

int64_t session_runner_max_logits(const struct runner *r)
{
    return r->max_logits;
}

bool session_runner_kv_bytes(const struct runner *r, int64_t n_tokens, uint64_t *out)
{
    return kv_plan_bytes(&r->spec, n_tokens + r->drafter.info.rows, r->all_rows, out);
}

uint64_t session_runner_disk_bytes(const struct runner *r, int64_t n_tokens)
{
    return r->spec.in_memory ? kv_disk_step_bytes(&r->spec, n_tokens, r->spec.in_memory) : 0;
}

void session_runner_disk_count(const struct runner *r, struct kv_disk_counts *out)
{
    kv_disk_count(r->pool, out);
}

const struct kv_pool *session_runner_pool(const struct runner *r)
{
    return r->pool;
}

struct kv_store *session_runner_store(const struct runner *r)
{
    return r->store;
}

bool session_runner_look(struct runner *r)
{
    return !r->store || kv_store_look(r->store, false);
}

bool session_runner_looks(const struct runner *r)
{
    return r->store && kv_store_looks(r->store);
}

void session_runner_set_news(struct runner *r, void (*fn)(void *arg), void *arg)
{
    if (r->store)
        kv_store_set_news(r->store, fn, arg);
}

void session_runner_set_gentle(struct runner *r, bool gentle)
{
    atomic_store(&r->gentle, gentle);
    if (r->store)
        kv_store_set_gentle(r->store, gentle);
}

void session_runner_set_tap(struct runner *r, family_tap_fn *tap, void *arg)
{
    r->tap = tap;
    r->tap_arg = arg;
}

void session_runner_set_part(struct runner *r, family_part_fn *part, void *arg)
{
    r->part = part;
    r->part_arg = arg;
}

void session_runner_set_probe(struct runner *r, const struct family_probe *probe)
{
    r->probe = probe;
}

void session_runner_clear_tree(struct runner *r)
{
    if (r->tree)
        kv_tree_clear(r->tree);
}

void session_device_begin(struct runner *r, struct device_suspended *first,
                          const atomic_bool *cancel)
{
    const bool between = r->depth > 1;
    if (between)
        device_suspend(r->device, first);
    else
        pool_enter(device_pool(r->device));
    device_set_between(r->device, between || !r->between ? r->look : r->between);
    device_begin(r->device, cancel);
    if (r->own && device_card_lost(r->device)) { /* since pages were taken or copied for it */
        struct err e;
        err_set(&e, INGLE_LOST, "the card that keys and values lie on is lost");
        device_fail(r->device, &e);
    }
}

ingle_status session_device_end(struct runner *r, struct device_suspended *first, struct err *err)
{
    const ingle_status s = device_status(r->device, err);
    if (r->depth > 1) {
        device_resume(r->device, first);
    } else {
        pool_leave(device_pool(r->device));
        device_set_between(r->device, NULL);
    }
    return s;
}

void session_lose_own(struct runner *r)
{
    if (!r->own || !device_card_lost(r->device))
        return;
    r->own = false;
    for (uint32_t i = 0; i < r->spec.n_streams; i++)
        r->spec.stream[i].own = false;
    set_parts(r);
    kv_pool_lose_own(r->pool, true);
    session_runner_clear_tree(r);
}

ingle_status session_renew_stages(struct runner *r, const atomic_bool *cancel, struct err *err)
{
    if (!stage_remote_is_lost(r->stages))
        return INGLE_OK;
    kv_pool_lose_own(r->pool, false);
    session_runner_clear_tree(r);
    return stage_remote_renew(r->stages, cancel, err);
}

void session_goes_on(struct runner *r)
{
    r->n_renewed = 0;
    (void)stage_remote_stays_late(r->stages, true);
}

bool session_card_lost(struct runner *r, ingle_status s, uint64_t before)
{
    enum { MOST = 8 }; /* losses in a row */
    if (s && s != INGLE_CANCEL && stage_remote_losses(r->stages) != before)
        return !stage_remote_stays_late(r->stages, false) && r->n_renewed++ < MOST;
    const uint32_t bit = UINT32_C(1) << r->depth;
    if (!s || (r->card_lost & bit) || !device_card_lost(r->device))
        return false;
    r->card_lost |= bit;
    return true;
}

ingle_status session_forward(struct runner *r, const struct family_step *step, family_tap_fn *tap,
                             void *tap_arg, const atomic_bool *cancel, struct err *err)
{
    const struct family_forward f = {
        .device = r->device,
        .step = step,
        .kv = &r->spec,
        .n_ctx = r->n_ctx,
        .probe = r->probe,
        .logits = {r->lane[r->depth - 1].logits, step->n_logits, r->info.n_vocab, r->info.n_vocab},
        .tap = tap,
        .tap_arg = tap_arg,
        .part = r->part,
        .part_arg = r->part_arg,
    };
    struct device_suspended first;
    if (r->depth == 1)
        kv_disk_begin(r->pool, KV_DISK_STEP);
    for (int64_t i = 0; i < step->n_spans && r->depth == 1; i++)
        kv_timeline_recall(step->span[i].timeline);
    for (int64_t i = 0; i < step->n_spans; i++)
        kv_timeline_pin(step->span[i].timeline, true);
    session_device_begin(r, &first, cancel);
    family_prompt_rows(&f);
    stage_remote_set_shared(r->stages, r->depth > 1 || r->between);
    session_drafter_forward(&r->drafter, r->family, r->self, &f, &r->lane[r->depth - 1]);
    device_read_rows(r->device, f.logits);
    for (int64_t i = 0; i < step->n_spans; i++)
        kv_timeline_pin(step->span[i].timeline, false);
    return session_device_end(r, &first, err);
}

/* The engine's layers, or the head. */
static void enter_flight(struct runner *r)
{
    pool_enter(device_pool(r->device));
    device_set_between(r->device, NULL);
    device_begin(r->device, NULL);
}

static ingle_status leave_flight(struct runner *r, struct err *err)
{
    const ingle_status s = device_status(r->device, err);
    pool_leave(device_pool(r->device));
    return s;
}

ingle_status session_flight_send(struct runner *r, int i, struct err *err)
{
    struct flight *f = &r->flight[i];
    const struct lane *l = &r->lane[SESSION_LANES + i];
    f->forward = (struct family_forward){
        .device = r->device,
        .step = &f->step,
        .kv = &r->spec,
        .n_ctx = r->n_ctx,
        .logits = {l->logits, f->step.n_logits, r->info.n_vocab, r->info.n_vocab},
        .tap = r->tap,
        .tap_arg = r->tap_arg,
    };
    session_drafter_ask(&r->drafter, &f->forward, &f->seen);
    enter_flight(r);
    f->trip = stage_trip_send(r->stages, r->family, r->self, &f->forward);
    return leave_flight(r, err);
}

ingle_status session_flight_land(struct runner *r, int i, struct err *err)
{
    struct flight *f = &r->flight[i];
    enter_flight(r);
    family_prompt_rows(&f->forward);
    session_drafter_begin(&r->drafter, &f->forward, &f->seen);
    stage_trip_land(f->trip, r->family, r->self);
    session_drafter_end(&r->drafter, &f->forward, &f->seen, &r->lane[SESSION_LANES + i]);
    device_read_rows(r->device, f->forward.logits);
    f->trip = NULL;
    return leave_flight(r, err);
}

struct search {
    struct runner *r;
    bool found;
    enum family_tap tap;
    int layer;
    int64_t row, column;
};

static void search_tap(void *arg, enum family_tap tap, int layer, struct rows x)
{
    struct search *s = arg;
    if (s->found || !device_find_bad(s->r->device, x, &s->row, &s->column))
        return;
    s->found = true;
    s->tap = tap;
    s->layer = layer;
}

ingle_status session_explain(struct runner *r, const struct family_step *step, struct err *err)
{
    struct search s = {.r = r};
    const ingle_status run = session_forward(r, step, search_tap, &s, NULL, err);
    if (run)
        return run;
    if (!s.found)
        return err_set(err, INGLE_NUMERIC, "a logit is no number; all layers are finite");
    const struct family_span *span = step->span;
    int64_t row = s.row;
    while (row >= span->n)
        row -= (span++)->n;
    const char *where = s.tap == FAMILY_TAP_EMBED ? "the embedding"
                        : s.tap == FAMILY_TAP_NORM ? "the output norm"
                                                   : "layer";
    char layer[16] = "";
    if (s.tap == FAMILY_TAP_LAYER)
        snprintf(layer, sizeof layer, " %d", s.layer);
    return err_set(err, INGLE_NUMERIC,
                   "the stream after %s%s is no number at position %lld (token %d), element %lld",
                   where, layer, (long long)(span->at + row), span->token[row],
                   (long long)s.column);
}
