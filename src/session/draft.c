/* SPDX-License-Identifier: Apache-2.0 */
/* draft - a network that drafts: its streams in the runner's pages, its part of a step, its
 * rounds. */
#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include "session/parts.h"
#include "session/run.h"
#include <string.h>

enum { ROUND_SPANS = 16 };
/* tokens of a session that are counted before a round, at most: the newest */
enum { NOTED = 4096 };

/* ---- its streams ---- */

static ingle_status append(struct kv_spec *to, const struct kv_spec *more, struct err *err)
{
    const uint32_t n_groups = to->n_groups + more->n_groups,
                   n_streams = to->n_streams + more->n_streams;
    if (n_groups > KV_MAX_GROUPS)
        return err_set(err, INGLE_UNSUP,
                       "target and drafter keep %u groups of streams, at most %d are possible",
                       n_groups, KV_MAX_GROUPS);
    struct kv_stream *stream = mem_calloc(n_streams, sizeof *stream);
    if (!stream)
        return err_set(err, INGLE_NOMEM, "no memory for the KV layout");
    memcpy(stream, to->stream, to->n_streams * sizeof *stream);
    memcpy(stream + to->n_streams, more->stream, more->n_streams * sizeof *stream);
    for (uint32_t i = to->n_streams; i < n_streams; i++)
        stream[i].group += to->n_groups;
    memcpy(to->group + to->n_groups, more->group, more->n_groups * sizeof *to->group);
    to->n_own = to->n_groups;
    mem_free(to->stream);
    to->stream = stream;
    to->n_groups = n_groups;
    to->n_streams = n_streams;
    return INGLE_OK;
}

ingle_status session_drafter_init(struct drafter *d, const struct runner_options *o,
                                struct kv_spec *target, struct err *err)
{
    const uint32_t n_target = target->n_streams;
    struct kv_spec own = {0};
    *d = (struct drafter){
        .draft = o->draft, .self = o->draft_self, .n_spans = num_min(ROUND_SPANS, o->max_logits),
        .stages = o->stages};
    if (!o->draft)
        return INGLE_OK;
    d->info = o->draft_info;
    d->waits = o->draft->observed;
    d->deferred_width = d->waits ? o->draft->observed(o->draft_self, NULL, 1).width : 0;
    const struct kv_types types = kv_types_of_drafter(&o->kv);
    ingle_status s = d->draft->kv(d->self, &types, &own, err);
    if (!s && own.n_streams)
        s = append(target, &own, err);
    target->guest = o->draft_identity;
    kv_spec_release(&own);
    if (s)
        return s;
    d->spec = *target;
    d->spec.stream += n_target;
    d->spec.n_streams -= n_target;
    return INGLE_OK;
}

/* ---- what drafts come from ---- */

/* A whole model has a head of its own. */
static bool has_wide(const struct drafter *d, int64_t n_vocab)
{
    return d->draft && n_vocab >= WORDS_LEAST && !(d->waits && !d->deferred_width);
}

uint64_t session_drafter_wide_bytes(const struct drafter *d, int64_t n_vocab)
{
    return has_wide(d, n_vocab) ? (uint64_t)ROUND_SPANS * (uint64_t)n_vocab * sizeof(float) +
                                      session_words_bytes(n_vocab)
                                : 0;
}

ingle_status session_drafter_open(struct drafter *d, struct device *device, int64_t n_vocab,
                                struct err *err)
{
    if (!has_wide(d, n_vocab))
        return INGLE_OK;
    d->device = device;
    d->wide_bytes = (size_t)(ROUND_SPANS * n_vocab) * sizeof *d->wide;
    d->wide = device_host_take(d->device, d->wide_bytes);
    if (!d->wide)
        return err_set(err, INGLE_NOMEM, "no %zu bytes for logits of drafts", d->wide_bytes);
    mem_fill(d->wide, d->wide_bytes); /* no round waits for the system */
    return session_words_create(&d->words, n_vocab, err);
}

void session_drafter_close(struct drafter *d)
{
    device_host_give(d->device, d->wide, d->wide_bytes);
    session_words_free(d->words);
}

static void note_words(const struct drafter *d, struct session *s)
{
    if (!d->words)
        return;
    s->n_noted = s->n_noted < s->n_tokens ? s->n_noted : s->n_tokens;
    if (s->n_tokens - s->n_noted > NOTED)
        s->n_noted = s->n_tokens - NOTED;
    session_words_note(d->words, s->token + s->n_noted, (int64_t)(s->n_tokens - s->n_noted));
    s->n_noted = s->n_tokens;
}

static void choose_words(const struct drafter *d, int64_t n_vocab, struct family_round *r)
{
    if (!d->words)
        return;
    r->wide = (struct rows){d->wide, ROUND_SPANS, n_vocab, n_vocab};
    if (!session_words_choose(d->words, &r->only, &r->n_only) || !r->n_only)
        return;
    for (int64_t i = 0; i < ROUND_SPANS * n_vocab; i++)
        d->wide[i] = FAMILY_NEVER;
    device_wrote_rows(d->device, r->wide);
}

const struct device_columns *session_draft_part(const struct runner *r, int64_t *n)
{
    *n = r->drafter.n_part;
    return r->drafter.part;
}

const struct family_draft_info *session_runner_draft(const struct runner *r)
{
    return r->drafter.draft ? &r->drafter.info : NULL;
}

void session_drafter_restored(struct runner *r, const struct kv_timeline *t, const char *what)
{
    struct drafter *d = &r->drafter;
    if (!d->draft || d->reported || kv_timeline_from(t) < kv_timeline_length(t) ||
        !kv_timeline_length(t))
        return;
    d->reported = true;
    report(
        r->sink, INGLE_REPORT_NOTE, "draft", what,
        "%lld tokens were saved without the drafter (%s), which drafts from what comes behind them",
        (long long)kv_timeline_from(t), d->draft->kind);
}

/* ---- its part of the target's step ---- */

static void see(void *arg, enum family_tap tap, int layer, struct rows x)
{
    const struct drafter_seen *s = arg;
    const enum device_stage stage = device_set_stage(s->device, DEVICE_STAGE_OBSERVE);
    s->drafter->draft->observe_tap(s->drafter->self, s->state, tap, layer, x);
    device_set_stage(s->device, stage);
    if (s->tap)
        s->tap(s->tap_arg, tap, layer, x);
}

static bool wants(void *arg, enum family_tap tap, int layer)
{
    const struct drafter_seen *s = arg;
    const struct family_draft *k = s->drafter->draft;
    return (k->observe_wants && k->observe_wants(s->drafter->self, tap, layer)) ||
           (s->tap && (!s->tap_wants || s->tap_wants(s->tap_arg, tap, layer)));
}

void session_drafter_ask(const struct drafter *d, struct family_forward *f, struct drafter_seen *s)
{
    if (!d->draft)
        return;
    *s = (struct drafter_seen){d, f->device, NULL, f->tap, f->tap_wants, f->tap_arg};
    f->tap = see;
    f->tap_wants = wants;
    f->tap_arg = s;
}

void session_drafter_begin(const struct drafter *d, const struct family_forward *f,
                           struct drafter_seen *s)
{
    struct family_forward own = *f;
    own.kv = &d->spec;
    if (d->draft)
        s->state = d->draft->observe_begin(d->self, &own);
}

void session_drafter_end(const struct drafter *d, const struct family_forward *f,
                         const struct drafter_seen *s, const struct lane *l)
{
    struct family_forward own = *f;
    own.kv = &d->spec;
    if (!d->draft)
        return;
    if (l && l->deferred) {
        if (device_runs(f->device))
            session_deferred_keep(l, f, d->draft->observed(d->self, s->state, f->step->n_rows));
        return;
    }
    const enum device_stage stage = device_set_stage(f->device, DEVICE_STAGE_OBSERVE);
    d->draft->observe_end(d->self, &own, s->state);
    device_set_stage(f->device, stage);
}

void session_drafter_forward(const struct drafter *d, const struct family *family, const void *self,
                           const struct family_forward *f, const struct lane *l)
{
    struct family_forward target = *f;
    struct drafter_seen s;
    session_drafter_ask(d, &target, &s);
    session_drafter_begin(d, f, &s);
    stage_remote_forward(d->stages, family, self, &target);
    session_drafter_end(d, f, &s, l);
}

/* ---- a round ---- */

size_t session_drafter_dry_run(const struct drafter *d, struct device *device,
                             const struct kv_spec *target, int64_t n_ctx, int64_t n_vocab)
{
    if (!d->draft)
        return 0;
    struct family_span span[ROUND_SPANS];
    for (int64_t i = 0; i < d->n_spans; i++)
        span[i] = (struct family_span){.n = 1};
    const struct family_step step = {.span = span, .n_spans = d->n_spans, .n_rows = d->n_spans};
    struct family_round round = {
        .forward = {.device = device, .step = &step, .kv = &d->spec, .n_ctx = n_ctx},
        .target = target,
        .n_drafts = d->info.most};
    struct device_columns only[FAMILY_MOST_COLUMNS];
    if (has_wide(d, n_vocab)) {
        for (int64_t i = 0; i < FAMILY_MOST_COLUMNS; i++)
            only[i] = (struct device_columns){i * DEVICE_COLUMNS, DEVICE_COLUMNS};
        round.wide = (struct rows){NULL, ROUND_SPANS, n_vocab, n_vocab};
        round.only = only;
        round.n_only = FAMILY_MOST_COLUMNS;
    }
    device_dry_begin(device);
    d->draft->begin(d->self, &round);
    for (int64_t j = 0; j < d->info.most; j++)
        d->draft->next(d->self, &round, j, NULL, d->n_spans,
                       (struct rows){NULL, d->n_spans, n_vocab, n_vocab}, NULL);
    return device_dry_end(device) + 4096;
}

/* Some sessions' round; by falling width. */
struct round {
    struct runner *r;
    struct session_draft *item[ROUND_SPANS];
    int64_t index[ROUND_SPANS]; /* of the items, for draw() */
    int64_t n;
    bool on[ROUND_SPANS];       /* it still drafts */
    int32_t before[ROUND_SPANS]; /* its newest token */
    float confidence[ROUND_SPANS];
    session_draw_fn *draw;
    void *arg;
    int64_t j;
    const float *logits; /* [n][n_vocab] */
};

static void draw_one(void *arg, int64_t i, int worker)
{
    struct round *d = arg;
    struct session_draft *t = d->item[i];
    (void)worker;
    if (!d->on[i])
        return;
    d->on[i] = d->j < t->width && d->draw(d->arg, d->index[i], d->j,
                                          d->logits + i * d->r->info.n_vocab, &d->before[i]);
    if (!d->on[i])
        return;
    t->token[d->j] = t->s->token[t->s->n_tokens + (size_t)d->j] = d->before[i];
    if (t->confidence)
        t->confidence[d->j] = d->confidence[i];
    t->n = d->j + 1;
    d->on[i] = t->n < t->width;
}

/* Spans up to the last one that still drafts. */
static int64_t drafting(const struct round *d)
{
    int64_t n = d->n;
    while (n && !d->on[n - 1])
        n--;
    return n;
}

static void add(struct round *d, struct session_draft *item, int64_t index)
{
    int64_t i = d->n++;
    for (; i && d->item[i - 1]->width < item->width; i--) {
        d->item[i] = d->item[i - 1];
        d->index[i] = d->index[i - 1];
    }
    d->item[i] = item;
    d->index[i] = index;
}

static ingle_status run(struct round *d, const atomic_bool *cancel, struct err *err)
{
    struct runner *r = d->r;
    const struct drafter *drafter = &r->drafter;
    const struct lane *l = &r->lane[r->depth];
    const int64_t n_vocab = r->info.n_vocab;
    const uint64_t losses = stage_remote_losses(r->stages);
    int64_t from[ROUND_SPANS];
    struct device_suspended first;
    for (int64_t i = 0; i < d->n; i++) {
        struct session *s = d->item[i]->s;
        note_words(drafter, s);
        const int64_t at = session_length(s);
        l->span[i] = (struct family_span){.timeline = s->timeline,
                                          .token = s->token + at,
                                          .n = 1,
                                          .at = at,
                                          .want = FAMILY_LOGITS_NONE};
        d->before[i] = s->token[at];
        from[i] = kv_timeline_from(s->timeline);
        d->on[i] = true;
    }
    const struct family_step step = {.span = l->span, .n_spans = d->n, .n_rows = d->n};
    struct family_round round = {
        .forward = {.device = r->device, .step = &step, .kv = &drafter->spec, .n_ctx = r->n_ctx},
        .target = &r->spec,
        .from = from,
        .n_drafts = d->item[0]->width};
    choose_words(drafter, n_vocab, &round);
    r->depth++;
    if (r->depth == 1)
        kv_disk_begin(r->pool, KV_DISK_ROUND);
    for (int64_t i = 0; i < d->n; i++)
        kv_timeline_pin(l->span[i].timeline, true);
    session_device_begin(r, &first, cancel);
    const enum device_stage stage = device_set_stage(r->device, DEVICE_STAGE_DRAFT);
    drafter->draft->begin(drafter->self, &round);
    for (d->j = 0; d->j < round.n_drafts; d->j++) {
        const int64_t n = drafting(d);
        if (!n || device_status(r->device, err))
            break;
        round.out = (struct rows){l->logits, n, n_vocab, n_vocab};
        drafter->draft->next(drafter->self, &round, d->j, d->before, n, round.out, d->confidence);
        device_read_rows(r->device, round.out);
        d->logits = round.out.at;
        r->drafter.part = round.only;
        /* rows of the drafter's own may have any columns */
        r->drafter.n_part = round.out.at == l->logits ? 0 : round.n_only;
        if (!device_status(r->device, err))
            pool_run(device_pool(r->device), n, draw_one, d);
    }
    device_set_stage(r->device, stage);
    for (int64_t i = 0; i < d->n; i++)
        kv_timeline_pin(l->span[i].timeline, false);
    const ingle_status s = session_device_end(r, &first, err);
    r->depth--;
    return session_card_lost(r, s, losses) ? INGLE_OK : s; /* what is drawn is drawn */
}

static bool flies(const struct runner *r)
{
    bool any = false;
    for (int i = 0; i < r->n_flights; i++)
        any = any || r->flight[i].trip;
    return any;
}

ingle_status session_draft(struct runner *r, struct session_draft *item, int64_t n,
                           session_draw_fn *draw, void *arg, const atomic_bool *cancel,
                           struct err *err)
{
    const struct drafter *drafter = &r->drafter;
    struct err full;
    BUG_IF(!drafter->draft || r->depth >= SESSION_LANES);
    for (int64_t i = 0; i < n; i++)
        item[i].n = 0;
    if (flies(r) && stage_remote_is_lost(r->stages)) /* steps are over before it is waited for */
        return INGLE_OK;
    session_lose_own(r);
    const ingle_status there = session_renew_stages(r, cancel, err);
    if (there)
        return there;
    for (int64_t i = 0; i < n;) {
        struct round d = {.r = r, .draw = draw, .arg = arg};
        for (; i < n && d.n < num_min(drafter->n_spans, r->lane[r->depth].max_rows); i++) {
            BUG_IF(session_pending(item[i].s) != 1 || item[i].s->restore.read);
            struct session *s = item[i].s;
            item[i].width = num_min(item[i].width, drafter->info.most);
            if (item[i].width < 1 || kv_timeline_extend(s->timeline, drafter->info.rows, &full) ||
                !mem_grow(&s->token, &s->cap_tokens, s->n_tokens + (size_t)item[i].width,
                          sizeof *s->token))
                continue;
            add(&d, &item[i], i);
        }
        const struct session *of[ROUND_SPANS];
        for (int64_t k = 0; k < d.n; k++)
            of[k] = d.item[k]->s;
        session_deferred_observe(r, of, d.n);
        const ingle_status s = d.n ? run(&d, cancel, err) : INGLE_OK;
        if (s)
            return s;
    }
    return INGLE_OK;
}
