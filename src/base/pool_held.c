/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_held - threads that cost more than they do.
 *
 * A control group or another program may have a thread's processor for most of the time.  It is
 * stopped in the middle of a chunk then, and all others wait for that chunk, however small its part
 * is.  The caller counts how long it waits for each thread, and how much that thread does.  Without
 * it the others would have its work besides, but their own may be faster, where threads share a
 * core or the memory's rate: of few threads one that is waited for often is left out for some
 * jobs, to compare these with those before and after.  Who costs more than it does is left out for
 * a second, up to 8 the next times, and then tried again.  A wait is as long for short jobs (of
 * answers) as for long ones (of prompts), in which such a thread does more: each have their own
 * counts.
 */
#include "base/clock.h"
#include "base/pool_inner.h"

static const uint64_t second_ns = 1000000000;
/* Looks are SHARE_JOBS jobs, and as long as the system lets another thread run; the first ones of a
 * kind find caches and pages cold. */
static const uint64_t least_check_ns = 4000000;
enum { MOST_TRIES = 3, TRY_CHECKS = 2, COLD_CHECKS = 8, FEW_THREADS = 4 };
static const float decay = 7.0f / 8, least_waits = 2, clearly = 1.1f;

void pool_held_check(struct pool *p, uint64_t job)
{
    for (int i = 1; i < p->n_threads; i++)
        p->held[p->kind][i].seen =
            atomic_load_explicit(&p->lane[i].inside, memory_order_relaxed) == job;
}

void pool_held_waited(struct pool *p, uint64_t ns)
{
    for (int i = 1; i < p->n_threads; i++)
        if (p->held[p->kind][i].seen)
            p->held[p->kind][i].now_ns += ns;
}

/* What jobs of the present kind want of a thread. */
static void apply(struct pool *p, int i)
{
    const bool out = p->held[p->kind][i].out;
    if (out == atomic_load_explicit(&p->worker[i].left_out, memory_order_relaxed))
        return;
    atomic_store_explicit(&p->worker[i].left_out, out, memory_order_relaxed);
    atomic_fetch_add(&p->n_left_out, out ? 1 : -1);
    if (!out)
        pool_wake_rest(p);
}

static void let_in(struct pool *p, int i, uint64_t now)
{
    struct pool_held *h = &p->held[p->kind][i];
    h->ratio = 0;
    h->out = false;
    h->in_at = now;
    h->n_checks = 0;
    h->waited_ns = h->worked_ns = h->waits = h->own_ns = h->in_ns = h->in_ran = 0;
    apply(p, i);
}

/* tried: for TRY_CHECKS only. */
static void leave_out(struct pool *p, int i, bool tried, uint64_t now)
{
    struct pool_held *h = &p->held[p->kind][i];
    const uint64_t most = second_ns << MOST_TRIES;
    h->before = tried && h->in_ran > 0 ? h->in_ns / h->in_ran : 0;
    h->out_ns = h->out_ran = 0;
    h->out = true;
    h->tried = tried;
    h->n_checks = 0;
    if (!tried) {
        h->tries = now - h->in_at > most ? 0 : h->tries + (h->tries < MOST_TRIES);
        h->until = now + (second_ns << h->tries);
    }
    apply(p, i);
}

void pool_held_forget(struct pool *p)
{
    const uint64_t now = clock_now();
    for (int i = 1; i < p->n_threads; i++) {
        p->held[p->kind][i].now_ns = 0;
        let_in(p, i, now);
    }
}

/* Whether the others, who would have its work, would clearly be faster without a thread. */
static bool costs_more(const struct pool_held *h, int others)
{
    const float ratio = h->ratio > 0 && h->ratio < 1 ? h->ratio : 1;
    return h->own_ns + h->waited_ns >
           (h->own_ns + h->worked_ns / (float)others) * ratio * clearly;
}

/* What the caller did since the last look. */
struct check {
    uint64_t now;
    float own_ns, counted_ns, ran;
};

static void check_out(struct pool *p, int i, const struct check *l)
{
    struct pool_held *h = &p->held[p->kind][i];
    h->out_ns += l->counted_ns;
    h->out_ran += l->ran;
    h->n_checks++;
    if (h->tried ? h->n_checks >= TRY_CHECKS : l->now >= h->until) {
        h->try_at = h->tried ? l->now + 2 * second_ns : l->now;
        let_in(p, i, l->now);
    }
}

/* Some looks after a try. */
static void end_try(struct pool_held *h)
{
    h->tried = false;
    if (h->before > 0 && h->in_ran > 0 && h->in_ns > 0 && h->out_ran > 0)
        h->ratio = h->out_ns / h->out_ran / ((h->before + h->in_ns / h->in_ran) / 2);
}

static void check_in(struct pool *p, int i, const struct check *l, float its, int others)
{
    struct pool_held *h = &p->held[p->kind][i];
    const float part = l->ran > 0 ? its / l->ran : 1; /* 1: only jobs of few chunks */
    const bool cold = h->cold < COLD_CHECKS;
    h->cold += cold;
    h->waited_ns = h->waited_ns * decay + (float)h->now_ns;
    h->waits = h->waits * decay + (h->now_ns ? 1 : 0);
    h->worked_ns = h->worked_ns * decay + l->own_ns * part;
    h->own_ns = h->own_ns * decay + l->own_ns;
    h->in_ns = h->in_ns * decay + l->counted_ns;
    h->in_ran = h->in_ran * decay + l->ran;
    h->now_ns = 0;
    if (++h->n_checks == TRY_CHECKS && h->tried)
        end_try(h);
    if (cold) {
        h->waited_ns = h->waits = h->worked_ns = h->own_ns = h->in_ns = h->in_ran = 0;
        return;
    }
    if (h->waits <= least_waits)
        return;
    if (costs_more(h, others))
        leave_out(p, i, false, l->now);
    else if (p->n_threads <= FEW_THREADS && !pool_left_out(p) && l->now >= h->try_at &&
             4 * h->waited_ns * (float)others > h->worked_ns)
        leave_out(p, i, true, l->now);
}

void pool_held_judge(struct pool *p)
{
    const uint64_t ran = atomic_load_explicit(&p->lane[0].ran, memory_order_relaxed);
    const struct check l = {clock_now(), (float)p->worked_ns, (float)p->counted_ns,
                            (float)(ran - p->ran)};
    if (l.now - p->checked_at < least_check_ns)
        return;
    p->checked_at = l.now;
    p->worked_ns = p->counted_ns = 0;
    p->ran = ran;
    const int others = p->n_threads - 1 - pool_resting(p);
    for (int i = 1; i < p->n_threads; i++) {
        struct pool_held *h = &p->held[p->kind][i];
        const uint64_t its = atomic_load_explicit(&p->lane[i].ran, memory_order_relaxed);
        const float its_ran = (float)(its - h->ran);
        h->ran = its;
        if (h->out)
            check_out(p, i, &l);
        else
            check_in(p, i, &l, its_ran, others > 1 ? others : 1);
    }
}

void pool_jobs_are_long(struct pool *p, bool are)
{
    if (are == p->kind)
        return;
    p->kind = are;
    p->checked_at = clock_now();
    p->worked_ns = p->counted_ns = 0;
    p->ran = atomic_load_explicit(&p->lane[0].ran, memory_order_relaxed);
    for (int i = 1; i < p->n_threads; i++) {
        p->held[p->kind][i].ran = atomic_load_explicit(&p->lane[i].ran, memory_order_relaxed);
        p->held[p->kind][i].now_ns = 0;
        apply(p, i);
    }
}

int pool_left_out(const struct pool *p)
{
    return atomic_load_explicit(&p->n_left_out, memory_order_relaxed);
}
