/* SPDX-License-Identifier: Apache-2.0 */
#include "golden/drafter.h"

#include "base/json.h"
#include "base/mem.h"
#include <string.h>

/* ---- opening ---- */

static const struct io_meta *checkpoint_meta(struct drafter *d)
{
    struct err e;
    char *text;
    size_t n;
    GOLDEN_OK(io_side_file(d->file, "config.json", 1 << 20, &text, &n, &e));
    GOLDEN_OK(json_parse(text, n, NULL, &d->config, &e));
    mem_free(text);
    d->meta = io_meta_create();
    return d->meta;
}

/* The kind of the file, and the drafter; false with e: it is refused. */
static bool bind(struct drafter *d, const char *path, struct err *err)
{
    struct err e;
    GOLDEN_OK(io_open(&d->file, path, &d->g.sink, &e));
    const bool checkpoint = io_kind(d->file) == IO_SAFETENSORS;
    const struct io_meta *meta = checkpoint ? checkpoint_meta(d) : io_metadata(d->file);
    GOLDEN_OK(model_create(&d->model, d->file, d->g.device, NULL, &d->g.sink, &e));
    d->kind = family_draft_of(d->g.family, d->model, meta, d->config);
    assert_non_null(d->kind);
    model_free(d->model);
    GOLDEN_OK(model_create(&d->model, d->file, d->g.device,
                           checkpoint ? d->kind->rename : d->kind->alias, &d->g.sink, &e));
    if (checkpoint && d->kind->config(d->config, d->meta, &d->g.sink, err))
        return false;
    if (checkpoint)
        GOLDEN_OK(model_read_scheme(d->model, d->config, &e));
    const struct family_draft_target t = {d->g.family, d->g.self, &d->g.info};
    return d->kind->bind(&d->self, &t, d->model, meta, &d->info, err) == INGLE_OK;
}

static void *observe_begin(struct drafter *d, const struct family_forward *f)
{
    return d->kind->observe_begin(d->self, f);
}

static void reserve(struct drafter *d)
{
    struct err e;
    const struct family_span rows = {.n = DRAFTER_CTX};
    const struct family_step all = {.span = &rows, .n_spans = 1, .n_rows = DRAFTER_CTX};
    const struct family_step some = {.n_spans = DRAFTER_TIMELINES, .n_rows = DRAFTER_TIMELINES};
    struct family_forward f = {
        .device = d->g.device, .step = &all, .kv = &d->spec, .n_ctx = DRAFTER_CTX};
    device_dry_begin(d->g.device);
    d->kind->observe_end(d->self, &f, observe_begin(d, &f));
    const size_t observing = device_dry_end(d->g.device);
    device_dry_begin(d->g.device);
    f.step = &some;
    struct kv_spec target;
    const struct kv_types wide = kv_types_of(KERN_KV_F32);
    GOLDEN_OK(d->g.family->kv(d->g.self, &wide, &target, &e));
    struct family_round r = {.forward = f, .target = &target, .n_drafts = d->info.most};
    d->kind->begin(d->self, &r);
    d->kind->next(d->self, &r, 0, NULL, DRAFTER_TIMELINES,
                  (struct rows){NULL, DRAFTER_TIMELINES, d->g.info.n_vocab, d->g.info.n_vocab},
                  NULL);
    const size_t drafting = device_dry_end(d->g.device);
    kv_spec_release(&target);
    GOLDEN_OK(device_arena_reserve(d->g.device,
                                   (observing > drafting ? observing : drafting) + 4096, &e));
}

void drafter_open(struct drafter *d, const char *target, const char *path,
                  const struct drafter_options *o)
{
    struct err e;
    *d = (struct drafter){0};
    golden_open(&d->g, target, &o->target);
    if (!bind(d, path, &e))
        fail_msg("%s", e.msg);
    if (d->kind->set)
        GOLDEN_OK(d->kind->set(d->self, &o->draft, &d->info, &e));
    GOLDEN_OK(model_check_unused(d->model, &e));
    if (golden_bound)
        golden_bound(d->model);
    GOLDEN_OK(model_load(d->model, &e));
    const struct kv_types types = kv_types_of(o->target.codec);
    GOLDEN_OK(d->kind->kv(d->self, &types, &d->spec, &e));
    GOLDEN_OK(kv_pool_create(&d->pool, &d->spec, (uint64_t)1 << 28, NULL, &e));
    for (int i = 0; i < DRAFTER_TIMELINES; i++)
        GOLDEN_OK(kv_timeline_create(&d->timeline[i], d->pool, DRAFTER_CTX, &e));
    d->taps = mem_calloc((size_t)((d->g.info.n_layers + 1) * DRAFTER_CTX * d->g.info.n_embd),
                         sizeof *d->taps);
    assert_non_null(d->taps);
    reserve(d);
}

static void close_file(struct drafter *d)
{
    if (d->self)
        d->kind->free(d->self);
    model_free(d->model);
    io_close(d->file);
    io_meta_free(d->meta);
    json_object_put(d->config);
}

void drafter_close(struct drafter *d)
{
    for (int i = 0; i < DRAFTER_TIMELINES; i++)
        kv_timeline_free(d->timeline[i]);
    kv_pool_free(d->pool);
    kv_spec_release(&d->spec);
    mem_free(d->taps);
    close_file(d);
    golden_close(&d->g);
}

bool drafter_binds(const struct golden_model *target, const char *path, struct err *err)
{
    struct drafter d = {.g = *target};
    const bool ok = bind(&d, path, err);
    close_file(&d);
    return ok;
}

void drafter_refused(const char *target, const char *path, const char *part)
{
    struct err e = {0};
    struct drafter d = {0};
    golden_open(&d.g, target, &(struct golden_options){0});
    if (bind(&d, path, &e))
        fail_msg("%s is accepted beside %s", path, target);
    print_message("%s\n", e.msg);
    if (!strstr(e.msg, part))
        fail_msg("'%s' is not in: %s", part, e.msg);
    close_file(&d);
    golden_close(&d.g);
}

/* ---- what the target computes ---- */

static void keep(void *arg, enum family_tap tap, int layer, struct rows x)
{
    struct drafter *d = arg;
    const int64_t width = d->g.info.n_embd, slot = tap == FAMILY_TAP_EMBED ? 0 : layer + 1;
    device_read_rows(d->g.device, x);
    for (int64_t i = 0; tap != FAMILY_TAP_NORM && i < x.n; i++)
        memcpy(d->taps + (slot * DRAFTER_CTX + d->n_taps + i) * width, x.at + i * x.stride,
               (size_t)width * sizeof *d->taps);
}

void drafter_target(struct drafter *d, const int32_t *tokens, int64_t n)
{
    struct err e;
    struct session *s;
    GOLDEN_OK(session_create(&s, d->g.runner, &e));
    GOLDEN_OK(session_append(s, tokens, n, &e));
    session_runner_set_tap(d->g.runner, keep, d);
    for (d->n_taps = 0; d->n_taps < n;) {
        struct session_work w = {.s = s};
        GOLDEN_OK(session_step(d->g.runner, &w, 1, NULL, &e));
        d->n_taps += w.n_done;
    }
    session_runner_set_tap(d->g.runner, NULL, NULL);
    session_free(s);
}

void drafter_observe(struct drafter *d, int timeline, int64_t n)
{
    struct err e;
    struct kv_timeline *t = d->timeline[timeline];
    const int64_t at = kv_timeline_length(t), width = d->g.info.n_embd;
    const struct family_span span = {.timeline = t, .n = n, .at = at};
    const struct family_step step = {.span = &span, .n_spans = 1, .n_rows = n};
    const struct family_forward f = {
        .device = d->g.device, .step = &step, .kv = &d->spec, .n_ctx = DRAFTER_CTX};
    if (!n)
        return;
    assert_true(at + n <= d->n_taps);
    GOLDEN_OK(kv_timeline_extend(t, n, &e));
    device_begin(d->g.device, NULL);
    void *state = observe_begin(d, &f);
    for (int layer = -1; layer < d->g.info.n_layers; layer++)
        d->kind->observe_tap(
            d->self, state, layer < 0 ? FAMILY_TAP_EMBED : FAMILY_TAP_LAYER, layer,
            (struct rows){d->taps + ((layer + 1) * DRAFTER_CTX + at) * width, n, width, width});
    d->kind->observe_end(d->self, &f, state);
    GOLDEN_OK(device_status(d->g.device, &e));
    kv_timeline_commit(t, n);
}

void drafter_rewind(struct drafter *d, int timeline, int64_t length)
{
    struct err e;
    if (length)
        GOLDEN_OK(kv_timeline_rewind(d->timeline[timeline], length, &e));
    else
        kv_timeline_clear(d->timeline[timeline]);
}

/* ---- a round ---- */

void drafter_round(struct drafter *d, const struct drafter_round *r)
{
    struct err e;
    const int64_t v = d->g.info.n_vocab, most = r->n_drafts;
    struct family_span span[DRAFTER_TIMELINES];
    int64_t from[DRAFTER_TIMELINES] = {0};
    int32_t token[DRAFTER_TIMELINES];
    float sure[DRAFTER_TIMELINES] = {0}, *logits = mem_calloc((size_t)(r->n * v), sizeof *logits);
    for (int i = 0; i < r->n; i++) {
        token[i] = r->anchor[i];
        from[i] = r->from ? r->from[i] : 0;
        span[i] = (struct family_span){.timeline = d->timeline[i],
                                       .token = &r->anchor[i],
                                       .n = 1,
                                       .at = kv_timeline_length(d->timeline[i])};
        GOLDEN_OK(kv_timeline_extend(d->timeline[i], d->info.rows, &e));
    }
    const struct family_step step = {.span = span, .n_spans = r->n, .n_rows = r->n};
    struct family_round round = {
        .forward = {.device = d->g.device, .step = &step, .kv = &d->spec, .n_ctx = DRAFTER_CTX},
        .from = from,
        .n_drafts = most};
    device_begin(d->g.device, NULL);
    d->kind->begin(d->self, &round);
    for (int64_t j = 0; j < most; j++) {
        d->kind->next(d->self, &round, j, token, r->n, (struct rows){logits, r->n, v, v}, sure);
        GOLDEN_OK(device_status(d->g.device, &e));
        for (int i = 0; i < r->n; i++) {
            const int64_t at = i * most + j;
            token[i] = r->forced ? r->forced[at] : (int32_t)golden_best(logits + i * v, v);
            if (r->token)
                r->token[at] = token[i];
            if (r->logits)
                memcpy(r->logits + at * v, logits + i * v, (size_t)v * sizeof *logits);
            if (r->confidence)
                r->confidence[at] = sure[i];
        }
    }
    mem_free(logits);
}
