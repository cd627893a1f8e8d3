/* SPDX-License-Identifier: Apache-2.0 */
/* run - a step: whether it goes on (errors, cancels), the places where another one may come
 * between, and what the profile has of it. */
#include "device/ops.h"

#include "base/clock.h"
#include <stdio.h>
#include <string.h>

void device_note_recipe(struct device *d, const char *recipe)
{
    const size_t n = strlen(d->recipes);
    if (!strstr(d->recipes, recipe))
        snprintf(d->recipes + n, sizeof d->recipes - n, "%s%s", n ? "+" : "", recipe);
}

bool device_runs(struct device *d)
{
    if (d->dry || d->err.status != INGLE_OK)
        return false;
    if (d->cancel && atomic_load_explicit(d->cancel, memory_order_relaxed)) {
        err_set(&d->err, INGLE_CANCEL, "cancelled");
        return false;
    }
    return true;
}

static void note_piece(struct device_between *b, uint64_t ns)
{
    for (int i = 0; i < DEVICE_LONGEST && ns; i++)
        if (ns > b->longest_ns[i]) {
            const uint64_t shorter = b->longest_ns[i];
            b->longest_ns[i] = ns;
            ns = shorter;
        }
}

void device_may_stop(struct device *d, uint64_t next_ns)
{
    struct device_between *b = d->between;
    if (!b || d->dry)
        return;
    if (b->piece_ns)
        note_piece(b, clock_now() - b->last);
    b->next_ns = next_ns;
    b->fn(b->arg);
    if (b->piece_ns)
        b->last = clock_now();
}

/* ---- the step ---- */

/* Of processors that were taken once for each change; of threads that are left out, which come and
 * go, once. */
static void report_resting(struct device *d)
{
    const int left_out = pool_left_out(d->pool), n = pool_taken(d->pool),
              all = pool_size(d->pool);
    char subject[32];
    snprintf(subject, sizeof subject, "%d threads", all);
    if (left_out && !d->left_out)
        report(d->sink, INGLE_REPORT_NOTE, "threads", subject,
               "%d of them rest for some seconds, and again where it repeats itself: the others "
               "waited for them longer than they helped (a control group or another program has "
               "most of their processor)",
               left_out);
    d->left_out = d->left_out || left_out;
    if (n == d->n_resting)
        return;
    if (n)
        report(d->sink, INGLE_REPORT_WARN, "threads", subject,
               "processors were taken from this process: %d of them rest, %d compute", n, all - n);
    else
        report(d->sink, INGLE_REPORT_NOTE, "threads", subject,
               "processors were given back: all of them compute");
    d->n_resting = n;
}

void device_begin(struct device *d, const atomic_bool *cancel)
{
    device_release(d, d->base);
    d->err.status = INGLE_OK;
    d->cancel = cancel;
    device_prompt_rows(d, 0, 0);
    report_resting(d);
    d->small_work = pool_crowded(d->pool) ? DEVICE_MOST_SMALL_WORK : d->quiet_small_work;
}

const atomic_bool *device_cancel(const struct device *d)
{
    return d->cancel;
}

void device_prompt_rows(struct device *d, int64_t n_rows, int64_t n_prompt)
{
    enum { MANY = 16 };
    d->step_rows = n_rows;
    d->prompt_rows = n_prompt;
    pool_jobs_are_long(d->pool, n_rows >= MANY);
}

int64_t device_step_prompt(const struct device *d)
{
    return d->prompt_rows;
}

void device_fail(struct device *d, const struct err *err)
{
    if (d->err.status == INGLE_OK)
        d->err = *err;
}

ingle_status device_status(const struct device *d, struct err *err)
{
    if (d->err.status != INGLE_OK && err)
        *err = d->err;
    return d->err.status;
}

/* ---- a step between ---- */

void device_set_between(struct device *d, struct device_between *between)
{
    d->between = between;
    if (!between)
        return;
    between->next_ns = 0;
    memset(between->longest_ns, 0, sizeof between->longest_ns);
    between->last = clock_now();
}

void device_suspend(struct device *d, struct device_suspended *s)
{
    *s = (struct device_suspended){d->base, d->used,   d->step_rows, d->prompt_rows,
                                   d->err,  d->cancel, d->between,   d->stage};
    d->base = d->used;
    d->stage = DEVICE_STAGE_STEP;
    d->between = NULL;
}

void device_resume(struct device *d, const struct device_suspended *s)
{
    device_release(d, s->used);
    d->base = s->base;
    device_prompt_rows(d, s->step_rows, s->prompt_rows);
    d->err = s->err;
    d->cancel = s->cancel;
    d->between = s->between;
    d->stage = s->stage;
    if (d->between)
        d->between->last = clock_now();
    if (d->ops->resumed)
        d->ops->resumed(d);
}

void device_profile(struct device *d, bool on)
{
    d->profiled = on;
    memset(d->op_ns, 0, sizeof d->op_ns);
    memset(d->op_calls, 0, sizeof d->op_calls);
    memset(d->op_joins, 0, sizeof d->op_joins);
    memset(d->op_launches, 0, sizeof d->op_launches);
    memset(d->op_cost, 0, sizeof d->op_cost);
}

enum device_stage device_set_stage(struct device *d, enum device_stage stage)
{
    const enum device_stage before = d->stage;
    d->stage = stage;
    return before;
}

int device_profile_read(const struct device *d, struct device_profile *out, int n_max)
{
    static const char *const name[][DEVICE_STAGES] = {
#define X(n) {#n, "draft " #n, "observe " #n},
        DEVICE_OP_LIST(X)
#undef X
    };
    int n = 0;
    for (int s = 0; s < DEVICE_STAGES; s++)
        for (int i = 0; i < DEVICE_OPS && n < n_max; i++)
            if (d->op_calls[s][i])
                out[n++] = (struct device_profile){.op = name[i][s],
                                                   .calls = d->op_calls[s][i],
                                                   .ns = d->op_ns[s][i],
                                                   .joins = d->op_joins[s][i],
                                                   .launches = d->op_launches[s][i],
                                                   .bytes = d->op_cost[s][i].bytes,
                                                   .ops = d->op_cost[s][i].ops};
    return n;
}
