/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* pthread_setname_np */
#include "run/parts.h"
#include "run/scheduler.h"
#include "engine/plan.h"

#include "base/clock.h"
#include "base/fp.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "expert/store.h"

#include <string.h>
#include <time.h>

enum { DEFAULT_RUNNING = 16, DEFAULT_WAITING = 64, DEFAULT_CONTEXTS = 4, MOST_RUNNING = 1024 };
enum { REST_NS = 50000000, STORE_LOOK_NS = 500000000 };

/* ---- the thread ---- */

static void take_calls(struct ingle_scheduler *s)
{
    while (s->calls) {
        struct engine_call *c = s->calls;
        s->calls = c->next;
        pthread_mutex_unlock(&s->lock);
        c->fn(s->e, c->arg);
        pthread_mutex_lock(&s->lock);
        c->done = true;
        pthread_cond_broadcast(&s->called);
    }
}

/* When the store is asked again without news: a disk that does not answer has none. */
static uint64_t next_store_look(const struct ingle_scheduler *s)
{
    for (int64_t i = 0; i < s->o.max_running; i++)
        if (s->slot[i].state == ENGINE_ANSWER_RESTORES)
            return s->store_asked + STORE_LOOK_NS;
    return UINT64_MAX;
}

/* The first time at which something is to be done whatever comes, or UINT64_MAX.  Sync: s->lock */
static uint64_t next_deadline(const struct ingle_scheduler *s)
{
    uint64_t first = next_store_look(s);
    for (const struct ingle_request *r = s->begun; r; r = r->next)
        if (r->deadline && r->deadline < first)
            first = r->deadline;
    for (struct sched_ticket *t = sched_queue_first(s->queue); t; t = t->next) {
        const struct ingle_request *r = engine_request_of(t);
        if (r->deadline && r->deadline < first)
            first = r->deadline;
    }
    return first;
}

/* Sync: s->lock */
static bool is_idle(const struct ingle_scheduler *s)
{
    if (s->closing || s->calls || s->news)
        return false;
    if (!sched_queue_first(s->queue) && !s->begun)
        return true;
    return s->stuck && clock_now() < next_deadline(s);
}

static void sleep_until(struct ingle_scheduler *s, uint64_t when)
{
    if (when == UINT64_MAX) {
        pthread_cond_wait(&s->wake, &s->lock);
        return;
    }
    const struct timespec until = {.tv_sec = (time_t)(when / 1000000000),
                                   .tv_nsec = (long)(when % 1000000000)};
    (void)pthread_cond_timedwait(&s->wake, &s->lock, &until);
}

/* With the lock held, which it gives up: nothing else is to be done, so the store gets what it had
 * no room for, and the scratch of steps its pages, some a call.  Only while the store works is it
 * looked after; then this thread sleeps, at most until the time of a request that is held is up. */
static void rest(struct ingle_scheduler *s)
{
    pthread_mutex_unlock(&s->lock);
    const bool busy = session_runner_settle(s->e->runner);
    if (busy || !s->settled)
        engine_take_snapshot(s);
    s->settled = !busy;
    const bool fills = session_runner_fill(s->e->runner);
    engine_experts_tend(s->e);
    pthread_mutex_lock(&s->lock);
    if (fills || !is_idle(s))
        return;
    const uint64_t deadline = next_deadline(s);
    const uint64_t look = busy            ? clock_now() + REST_NS
                          : s->e->experts ? clock_now() + EXPERT_LOOK_NS
                                          : UINT64_MAX;
    sleep_until(s, deadline < look ? deadline : look);
}

/* Waits until there is something to do; false: the scheduler closes. */
static bool wait_for_work(struct ingle_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    while (is_idle(s))
        rest(s);
    s->news = false;
    take_calls(s);
    const bool go = !s->closing;
    pthread_mutex_unlock(&s->lock);
    return go;
}

static void end_all(struct ingle_scheduler *s)
{
    while (s->begun)
        engine_request_end(s, s->begun, INGLE_FINISH_CANCEL, NULL);
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct sched_ticket *t = sched_queue_first(s->queue);
        if (t)
            sched_queue_take(s->queue, t);
        else
            t = sched_queue_displaced(s->queue);
        pthread_mutex_unlock(&s->lock);
        if (!t)
            return;
        engine_request_end(s, engine_request_of(t), INGLE_FINISH_CANCEL, NULL);
    }
}

static void *thread_main(void *arg)
{
    struct ingle_scheduler *s = arg;
    fp_default();
    while (wait_for_work(s)) {
        engine_end_those_over(s);
        const int64_t n_ended = s->n_ended;
        engine_admit(s);
        engine_start_shares(s);
        s->store_asked = clock_now();
        const bool computes = engine_step(s);
        s->stuck = !computes && s->n_ended == n_ended; /* who has ended left room for others */
        engine_take_snapshot(s);
        engine_experts_tend(s->e);
    }
    end_all(s);
    return NULL;
}

/* ---- life ---- */

static ingle_status check_options(struct ingle_scheduler_options *o, int64_t n_ctx,
                                  struct err *err)
{
    if (o->max_running < 0 || o->max_running > MOST_RUNNING)
        return err_set(err, INGLE_ARG, "max_running is %lld, outside 0 to %d",
                       (long long)o->max_running, MOST_RUNNING);
    if (o->max_waiting < 0 || o->max_waiting_tokens < 0)
        return err_set(err, INGLE_ARG, "max_waiting is %lld and max_waiting_tokens %lld, below 0",
                       (long long)o->max_waiting, (long long)o->max_waiting_tokens);
    if (o->first_rows < 0)
        return err_set(err, INGLE_ARG, "first_rows is %lld, below 0", (long long)o->first_rows);
    if (!(o->step_seconds >= 0 && o->step_seconds < 1e6))
        return err_set(err, INGLE_ARG, "step_seconds is %g, outside 0 to 1e6", o->step_seconds);
    if (!o->max_running)
        o->max_running = DEFAULT_RUNNING;
    if (!o->max_waiting)
        o->max_waiting = DEFAULT_WAITING;
    if (!o->max_waiting_tokens)
        o->max_waiting_tokens = DEFAULT_CONTEXTS * n_ctx;
    return INGLE_OK;
}

static void free_lane(struct engine_lane *l)
{
    mem_free(l->work);
    mem_free(l->row);
    mem_free(l->who);
    mem_free(l->item);
}

static bool make_lane(struct engine_lane *l, size_t n)
{
    l->work = mem_calloc(n, sizeof *l->work);
    l->row = mem_calloc(n, sizeof *l->row);
    l->who = mem_calloc(n, sizeof(struct engine_answer *));
    l->item = mem_calloc(n, sizeof(struct engine_answer *));
    return l->work && l->row && l->who && l->item;
}

static void free_scheduler(struct ingle_scheduler *s)
{
    engine_trees_close(s->trees);
    engine_drafts_close(s->drafts);
    engine_masks_close(s->masks);
    session_runner_set_news(s->e->runner, NULL, NULL);
    session_runner_set_look(s->e->runner, NULL);
    for (int64_t i = 0; s->slot && i < s->o.max_running; i++)
        session_free(s->slot[i].session.s);
    sched_queue_free(s->queue);
    mem_free(s->slot);
    free_lane(&s->step);
    free_lane(&s->between);
    for (int i = 0; i < s->n_flights; i++)
        free_lane(&s->flight[i].lane);
    mem_free(s->draw);
    mem_free(s->logprobs);
    mem_free(s->seen);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->called);
    mem_free(s);
}

static ingle_status make_slots(struct ingle_scheduler *s, struct err *err)
{
    const size_t n = (size_t)s->o.max_running;
    s->slot = mem_calloc(n, sizeof *s->slot);
    s->draw = mem_calloc(n, sizeof *s->draw);
    s->logprobs = mem_calloc(ENGINE_REPORTED, sizeof *s->logprobs);
    s->seen = mem_calloc(n, sizeof *s->seen);
    if (!s->slot || !s->draw || !s->logprobs || !s->seen || !make_lane(&s->step, n) ||
        !make_lane(&s->between, n))
        return err_set(err, INGLE_NOMEM, "no memory for %zu answers", n);
    const int n_flights = s->o.max_running > 1 ? session_runner_flights(s->e->runner) : 0;
    for (; s->n_flights < n_flights; s->n_flights++)
        if (!make_lane(&s->flight[s->n_flights].lane, n)) {
            free_lane(&s->flight[s->n_flights].lane);
            return err_set(err, INGLE_NOMEM, "no memory for %zu answers", n);
        }
    s->n_free = s->o.max_running;
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < n && !st; i++) {
        s->slot[i].session.e = s->e;
        st = session_create(&s->slot[i].session.s, s->e->runner, err);
    }
    return st;
}

/* Sync: s->lock */
static void post_news(struct ingle_scheduler *s)
{
    s->news = true;
    pthread_cond_signal(&s->wake);
}

/* From another thread: the store has read or looked, a mask is made. */
static void on_news(void *arg)
{
    struct ingle_scheduler *s = arg;
    pthread_mutex_lock(&s->lock);
    post_news(s);
    pthread_mutex_unlock(&s->lock);
}

static ingle_status start_thread(struct ingle_scheduler *s, struct err *err)
{
    s->looks = (struct device_between){.fn = engine_look, .arg = s};
    s->long_prompts = true; /* for all that is known */
    session_runner_set_look(s->e->runner, &s->looks);
    session_runner_set_news(s->e->runner, on_news, s);
    if (!pool_thread(&s->thread, thread_main, s))
        return err_set(err, INGLE_NOMEM, "the system gives no thread for a scheduler");
    pthread_setname_np(s->thread, "ingle-engine");
    return INGLE_OK;
}

ingle_status ingle_scheduler_open(struct ingle_scheduler **out, struct ingle_engine *e,
                                  const struct ingle_scheduler_options *o,
                                  struct ingle_error *error)
{
    struct err err;
    struct ingle_scheduler_options options = o ? *o : (struct ingle_scheduler_options){0};
    const int64_t n_ctx = session_runner_n_ctx(e->runner);
    ingle_status st = check_options(&options, n_ctx, &err);
    if (st)
        return engine_say(error, st, &err);
    struct ingle_scheduler *s = mem_zalloc(sizeof *s);
    if (!s)
        return engine_say(error, err_set(&err, INGLE_NOMEM, "no memory for a scheduler"), &err);
    struct kv_pool_counts kv;
    kv_pool_count(session_runner_pool(e->runner), &kv);
    s->e = e;
    s->o = options;
    s->n_ctx = n_ctx;
    s->n_vocab = e->info.n_vocab;
    s->max_rows = session_runner_max_rows(e->runner);
    s->max_logits = session_runner_max_logits(e->runner);
    s->budget_bytes = kv.budget_bytes - engine_trees_bytes(e, kv.budget_bytes);
    s->pace.target_seconds = options.step_seconds;
    s->pace.first_rows = options.first_rows;
    atomic_init(&s->abort, false);
    atomic_init(&s->cancels, false);
    atomic_init(&s->encode_stop, false);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t steady; /* clock_now() */
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &steady);
    pthread_condattr_destroy(&steady);
    pthread_cond_init(&s->called, NULL);
    st = make_slots(s, &err);
    if (!st)
        st = sched_queue_create(&s->queue, options.max_waiting, options.max_waiting_tokens, &err);
    if (!st)
        st = engine_masks_open(&s->masks, (size_t)s->o.max_running, on_news, s, &err);
    if (!st)
        st = engine_drafts_open(&s->drafts, s, &err);
    if (!st)
        st = engine_trees_open(&s->trees, s, &err);
    if (!st)
        engine_take_snapshot(s); /* what is reported before the first step is true, too */
    if (!st)
        st = start_thread(s, &err);
    if (st)
        free_scheduler(s);
    else
        *out = s;
    return engine_say(error, st, &err);
}

void ingle_scheduler_close(struct ingle_scheduler *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    atomic_store(&s->abort, true);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    free_scheduler(s);
}

/* ---- calls from any thread ---- */

/* When the queue will have moved: what a request takes, divided among those that run. */
static double retry_after(const struct ingle_scheduler *s)
{
    const double each = s->request_seconds > 0 ? s->request_seconds : 1;
    const double wait = each / (double)s->o.max_running;
    return wait < 0.1 ? 0.1 : wait > 60 ? 60 : wait;
}

ingle_status ingle_scheduler_submit(struct ingle_scheduler *s,
                                    const struct ingle_request_options *o,
                                    struct ingle_request **out, double *retry_seconds,
                                    struct ingle_error *error)
{
    struct err err;
    struct ingle_request *r;
    double retry = -1;
    ingle_status st = engine_request_create(&r, s, o, &err);
    if (!st) {
        r->s = s;
        pthread_mutex_lock(&s->lock);
        st = sched_queue_put(s->queue, &r->ticket, o->user, &err);
        if (!st) {
            r->number = ++s->last_number;
            *out = r;
            post_news(s);
        } else {
            retry = retry_after(s);
            s->status.n_refused++;
        }
        pthread_mutex_unlock(&s->lock);
        if (st)
            engine_request_free(r);
    }
    if (st && retry_seconds)
        *retry_seconds = retry;
    return engine_say(error, st, &err);
}

void ingle_request_cancel(struct ingle_scheduler *s, struct ingle_request *r)
{
    pthread_mutex_lock(&s->lock);
    atomic_store(&r->cancelled, true);
    atomic_store(&s->cancels, true);
    if (s->owner == r)
        atomic_store(&s->abort, true);
    post_news(s);
    pthread_mutex_unlock(&s->lock);
}

void ingle_request_hold(struct ingle_scheduler *s, struct ingle_request *r, bool held)
{
    atomic_store(&r->held, held);
    if (held)
        return;
    pthread_mutex_lock(&s->lock);
    post_news(s);
    pthread_mutex_unlock(&s->lock);
}

void ingle_scheduler_call(struct ingle_scheduler *s, void (*fn)(struct ingle_engine *e, void *arg),
                          void *arg)
{
    struct engine_call c = {.fn = fn, .arg = arg};
    pthread_mutex_lock(&s->lock);
    struct engine_call **at = &s->calls;
    while (*at)
        at = &(*at)->next;
    *at = &c;
    pthread_cond_signal(&s->wake);
    while (!c.done)
        pthread_cond_wait(&s->called, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* A file that a session is loaded from, on the scheduler's thread. */
struct loading {
    struct ingle_session *session;
    struct kv_load *load;
    ingle_status status;
    struct err err;
    bool more;
};

static void take_pages(struct ingle_engine *e, void *arg)
{
    struct loading *l = arg;
    (void)e;
    l->status = session_load_take(l->session->s, l->load, &l->more, &l->err);
}

static void end_load(struct ingle_engine *e, void *arg)
{
    struct loading *l = arg;
    (void)e;
    l->status = session_load_end(l->session->s, l->load, l->status, &l->err);
}

ingle_status ingle_scheduler_load(struct ingle_scheduler *s, struct ingle_session *session,
                                  const char *path, struct ingle_error *error)
{
    struct loading l = {.session = session, .more = true};
    l.status = session_load_begin(session->s, path, &l.load, &l.err);
    if (l.status)
        return engine_say(error, l.status, &l.err);
    while (l.more && !l.status)
        ingle_scheduler_call(s, take_pages, &l);
    if (!l.status)
        l.status = session_load_read(l.load, &l.err);
    ingle_scheduler_call(s, end_load, &l);
    return engine_say(error, l.status, &l.err);
}

/* Tokens that a session takes from cache and disk, on the scheduler's thread. */
struct syncing {
    struct ingle_session *session;
    const int32_t *tokens;
    int64_t n;
    struct session_soft *soft; /* [n_soft] */
    size_t n_soft;
    struct session_reuse reuse;
    ingle_status status;
    struct err err;
    bool looked, begun, over;
};

/* The store looks at its directory first; then its files are read, by its own thread. */
static void go_on_syncing(struct ingle_engine *e, void *arg)
{
    struct syncing *y = arg;
    struct session *s = y->session->s;
    if (!y->begun &&
        !(y->looked ? !session_runner_looks(e->runner) : session_runner_look(e->runner))) {
        y->looked = true;
        return;
    }
    if (!y->begun)
        y->status = session_sync_soft_begin(s, y->tokens, y->n, y->soft, y->n_soft, &y->err);
    y->begun = true;
    y->over = y->status || session_sync_poll(s, &y->reuse);
}

ingle_status ingle_scheduler_sync(struct ingle_scheduler *s, struct ingle_session *session,
                                  const int32_t *tokens, int64_t n, struct ingle_reuse *reuse,
                                  struct ingle_error *error)
{
    return ingle_scheduler_sync_media(s, session, tokens, n, NULL, 0, reuse, error);
}

ingle_status ingle_scheduler_sync_media(struct ingle_scheduler *s, struct ingle_session *session,
                                        const int32_t *tokens, int64_t n,
                                        const struct ingle_span *span, size_t n_spans,
                                        struct ingle_reuse *reuse, struct ingle_error *error)
{
    struct syncing y = {.session = session, .tokens = tokens, .n = n, .n_soft = n_spans};
    y.status = engine_media_check(s->e->model, tokens, n, span, n_spans, &y.err);
    if (!y.status)
        y.status = engine_media_soft(span, n_spans, &y.soft, &y.err);
    while (!y.status) {
        ingle_scheduler_call(s, go_on_syncing, &y);
        if (y.over)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); /* the disk has work */
    }
    mem_free(y.soft);
    if (!y.status && reuse)
        engine_explain_reuse(&y.reuse, n, reuse);
    return engine_say(error, y.status, &y.err);
}
