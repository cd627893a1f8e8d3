/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred - rows that the drafter sees later, those of several steps at once.
 *
 * What a drafter computes of a row reads its weights, as a step reads the model's: with one row a
 * step that would be a part of every step, whether anything is drafted or not.  So what the model's
 * layers have said of an answer's newest rows is kept, and the drafter sees them when a round
 * begins, when there are too many, or before somebody else gets the pages. Prompts have many rows,
 * and are seen with their step.
 */
#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "session/parts.h"
#include "session/run.h"

#include <string.h>

enum {
    DEFERRED_ROWS =
        40,         /* of a session; windows keep KV_REWIND positions before those that they need */
    SEEN_ROWS = 64, /* at once */
    SEEN_SPANS = 16,
};
_Static_assert((int)DEFERRED_ROWS < (int)KV_REWIND,
               "rows that were not seen yet lie in pages that are there");

uint64_t session_deferred_bytes(const struct drafter *d)
{
    return d->waits ? (uint64_t)DEFERRED_ROWS * (uint64_t)d->deferred_width * sizeof(float) : 0;
}

ingle_status session_deferred_create(struct session *s, struct err *err)
{
    const struct drafter *d = &s->r->drafter;
    if (!d->waits)
        return INGLE_OK;
    s->deferred = mem_zalloc(sizeof *s->deferred);
    if (s->deferred && d->deferred_width)
        s->deferred->row =
            mem_calloc((size_t)DEFERRED_ROWS, (size_t)d->deferred_width * sizeof *s->deferred->row);
    if (!s->deferred || (d->deferred_width && !s->deferred->row))
        return err_set(err, INGLE_NOMEM, "no memory for what a drafter sees of a session");
    return INGLE_OK;
}

void session_deferred_free(struct session *s)
{
    if (s->deferred)
        mem_free(s->deferred->row);
    mem_free(s->deferred);
    s->deferred = NULL;
}

void session_deferred_cut(const struct session *s, int64_t length)
{
    struct deferred *l = s->deferred;
    if (l && l->n)
        l->n = num_max(0, num_min(l->n, length - l->at));
}

/* ---- seeing ---- */

/* The beginnings of some sessions' rows, as spans of a step. */
struct seeing {
    struct deferred *deferred[SEEN_SPANS];
    struct family_span span[SEEN_SPANS];
    int64_t n_spans, n_rows;
};

static void add(struct seeing *v, const struct session *s, int64_t most_rows)
{
    struct deferred *l = s->deferred;
    const int64_t n = l ? num_min(l->n, most_rows - v->n_rows) : 0;
    if (n <= 0)
        return;
    v->deferred[v->n_spans] = l;
    v->span[v->n_spans++] = (struct family_span){.timeline = s->timeline,
                                                 .token = s->token + l->at,
                                                 .n = n,
                                                 .at = l->at,
                                                 .want = FAMILY_LOGITS_NONE};
    v->n_rows += n;
}

static void put_rows(const struct seeing *v, struct device *d, struct rows to)
{
    for (int64_t i = 0, row = 0; i < v->n_spans && to.width; row += v->span[i++].n)
        for (int64_t k = 0; k < v->span[i].n; k++)
            memcpy(to.at + (row + k) * to.stride, v->deferred[i]->row + k * to.width,
                   (size_t)to.width * sizeof(float));
    device_wrote_rows(d, to);
}

static void see(struct runner *r, const struct seeing *v)
{
    const struct drafter *d = &r->drafter;
    const struct family_step step = {.span = v->span, .n_spans = v->n_spans, .n_rows = v->n_rows};
    const struct family_forward f = {
        .device = r->device, .step = &step, .kv = &d->spec, .n_ctx = r->n_ctx};
    struct device_suspended first;
    r->depth++;
    session_device_begin(r, &first, NULL);
    /* who calls is in the middle of a change: no answer may end meanwhile */
    device_set_between(r->device, NULL);
    const enum device_stage stage = device_set_stage(r->device, DEVICE_STAGE_OBSERVE);
    void *state = d->draft->observe_begin(d->self, &f);
    if (device_runs(r->device))
        put_rows(v, r->device, d->draft->observed(d->self, state, v->n_rows));
    d->draft->observe_end(d->self, &f, state);
    device_set_stage(r->device, stage);
    (void)session_device_end(r, &first, NULL); /* what could not be seen makes worse drafts */
    r->depth--;
}

/* They were seen. */
static void drop(const struct seeing *v, int64_t width)
{
    for (int64_t i = 0; i < v->n_spans; i++) {
        struct deferred *l = v->deferred[i];
        const int64_t n = v->span[i].n;
        l->at += n;
        l->n -= n;
        if (width && l->n)
            memmove(l->row, l->row + n * width, (size_t)(l->n * width) * sizeof *l->row);
    }
}

void session_deferred_observe(struct runner *r, const struct session *const *s, int64_t n)
{
    struct drafter *d = &r->drafter;
    if (!d->waits)
        return;
    BUG_IF(r->depth >= SESSION_LANES);
    const int64_t most = num_min(SEEN_ROWS, r->lane[r->depth].max_rows);
    const uint64_t began = clock_now();
    bool any = false;
    for (;;) {
        struct seeing v = {.n_spans = 0};
        for (int64_t i = 0; i < n && v.n_spans < SEEN_SPANS; i++)
            add(&v, s[i], most);
        if (!v.n_spans)
            break;
        see(r, &v);
        drop(&v, d->deferred_width);
        any = true;
    }
    if (any)
        d->seen_seconds += (double)(clock_now() - began) * 1e-9;
}

/* ---- a step ---- */

/* A prompt's rows are many, and restore points are on the way. */
static bool may_wait(const struct session *s, const struct family_span *span)
{
    return span->n <= DEFERRED_ROWS && span->at >= s->prompt_end;
}

bool session_deferred_plan(struct runner *r, const struct lane *l, int64_t n_spans, bool may)
{
    bool waits = r->drafter.waits && may;
    for (int64_t i = 0; i < n_spans && waits; i++)
        waits = may_wait(l->item[i]->s, &l->span[i]);
    for (int64_t i = 0; i < n_spans && r->drafter.waits; i++) {
        const struct session *s = l->item[i]->s;
        if (s->deferred->n && (!waits || s->deferred->n > DEFERRED_ROWS - l->span[i].n ||
                           s->deferred->at + s->deferred->n != l->span[i].at))
            session_deferred_observe(r, &s, 1);
    }
    return waits;
}

void session_deferred_keep(const struct lane *l, const struct family_forward *f, struct rows seen)
{
    const struct family_step *step = f->step;
    device_read_rows(f->device, seen);
    for (int64_t i = 0, row = 0; i < step->n_spans && seen.width; row += step->span[i++].n) {
        const struct deferred *to = l->item[i]->s->deferred;
        for (int64_t k = 0; k < step->span[i].n; k++)
            memcpy(to->row + (to->n + k) * seen.width, seen.at + (row + k) * seen.stride,
                   (size_t)seen.width * sizeof(float));
    }
}

void session_deferred_commit(const struct session *s, int64_t at, int64_t n)
{
    struct deferred *l = s->deferred;
    if (!l->n)
        l->at = at;
    l->n += n;
}
