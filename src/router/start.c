/* SPDX-License-Identifier: Apache-2.0
 *
 * Who runs and who waits.  Models that are requested queue in the order of the requests.  What a
 * hub has is fetched first, and nobody waits for that.  The first of the others gets a plan (this
 * program computes what it needs and prints it) with all the memory that there is for models: who
 * cannot fit, or whose files cannot be read, fails, and nobody has ended for it.  If it does not
 * fit beside the others, or there are --models-max processes, the least recently used model without
 * requests ends, and a plan is made with what is free then.  A model with requests is left alone;
 * but when one has waited PATIENCE_NS for it, it gets no new requests.
 */
#define _GNU_SOURCE
#include "router/inner.h"
#include "router/job.h"
#include "router/parts.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/json.h"
#include "base/size.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const uint64_t SECOND_NS = 1000000000, PATIENCE_NS = 10000000000, CHECK_NS = 20000000;
enum { MOST_PAUSE_S = 60, KILL_S = 10, MOST_FETCHES = 8 };

static bool has_process(const struct router_model *m) { return m->child.pid != 0; }

static bool is_wanted(const struct router_model *m)
{
    return m->waiting.first || m->requested;
}

static void unqueue(struct router *r, const struct router_model *m)
{
    for (struct router_model **at = &r->queue; *at; at = &(*at)->next_wait)
        if (*at == m) {
            *at = m->next_wait;
            return;
        }
}

/* In the order of their times. */
static void enqueue_at(struct router *r, struct router_model *m, uint64_t since)
{
    struct router_model **at = &r->queue;
    while (*at && (*at)->queued_at <= since)
        at = &(*at)->next_wait;
    m->next_wait = *at;
    *at = m;
    m->queued_at = since;
    router_set_state(r, m, ROUTER_QUEUED);
}

/* Anew. */
static void enqueue(struct router *r, struct router_model *m)
{
    m->fetched = m->checked = m->no_room = m->let_go = m->again = false;
    m->progress = 0;
    enqueue_at(r, m, clock_now());
}

void router_want(struct router *r, struct router_model *m)
{
    if (m->state != ROUTER_UNLOADED && m->state != ROUTER_SLEEPING)
        return;
    m->then = m->state;
    enqueue(r, m);
}

void router_request_load(struct router *r, struct router_model *m, bool preload)
{
    m->preload = preload && !is_wanted(m);
    m->requested = true;
    router_want(r, m);
}

/* ---- ends ---- */

static void stop(struct router *r, struct router_model *m, enum router_state then, const char *why)
{
    m->then = then;
    m->let_go = false;
    snprintf(m->why, sizeof m->why, "%s", why);
    m->leaving = false;
    m->requested = false;
    router_set_state(r, m, ROUTER_STOPPING);
    router_child_stop(r, m, router_number(r, m, "drain") + KILL_S);
}

void router_unload(struct router *r, struct router_model *m, enum router_state then,
                   const char *why)
{
    m->requested = false;
    switch (m->state) {
    case ROUTER_QUEUED:
        if (!m->waiting.first) {
            unqueue(r, m);
            router_set_state(r, m, then);
        }
        break;
    case ROUTER_FETCHING:
    case ROUTER_PLANNING: /* a look follows when the process has ended */
    case ROUTER_LOADING:
    case ROUTER_LOADED:
        stop(r, m, then, why);
        break;
    case ROUTER_SLEEPING:
        router_set_state(r, m, then);
        break;
    case ROUTER_STOPPING:
        m->then = then;
        break;
    case ROUTER_UNLOADED:
        break;
    }
}

/* The least recently used model that may leave; busy: one with requests. */
static struct router_model *victim(const struct router *r, bool busy)
{
    struct router_model *best = NULL;
    for (struct router_model *m = r->models; m; m = m->next) {
        const bool up =
            router_is_up(m) || (m->leaving && m->state == ROUTER_LOADED && !m->child.ended);
        if (!up || (m->n_active || m->waiting.first) != busy || (busy && m->leaving))
            continue;
        if (!best || m->last_used_ms < best->last_used_ms ||
            (m->last_used_ms == best->last_used_ms && m->loaded_at < best->loaded_at))
            best = m;
    }
    return best;
}

static bool any_stops(const struct router *r)
{
    for (const struct router_model *m = r->models; m; m = m->next)
        if (m->state == ROUTER_STOPPING)
            return true;
    return false;
}

static int n_processes(const struct router *r, uint64_t *bytes)
{
    int n = 0;
    *bytes = 0;
    for (const struct router_model *m = r->models; m; m = m->next) {
        n += has_process(m) && !m->child.plan;
        *bytes += has_process(m) && !m->child.plan ? m->need_bytes : 0;
    }
    return n;
}

/* Somebody leaves for m, if anybody can. */
static void make_room(struct router *r, struct router_model *m)
{
    if (any_stops(r))
        return;
    struct router_model *v = victim(r, false);
    if (v) {
        char why[160];
        snprintf(why, sizeof why, "'%.120s' needs the room", m->id);
        r->n_evicted++;
        const bool kept =
            ingle_config_is_set(v->config, "store") || ingle_config_is_set(r->o.config, "store");
        stop(r, v, kept ? ROUTER_SLEEPING : ROUTER_UNLOADED, why);
        return;
    }
    v = clock_now() - m->queued_at > PATIENCE_NS ? victim(r, true) : NULL;
    if (v)
        v->leaving = true;
}

/* ---- starts ---- */

static void fail_waiting(struct router_model *m, const struct serve_error *e, const char *text)
{
    for (struct router_job *j; (j = router_jobs_take(&m->waiting));)
        router_job_fail(j, e, "%s", text);
}

/* The start has failed, for the reason in m->words. */
static void fail_start(struct router *r, struct router_model *m, int code)
{
    char text[ROUTER_WORDS + 300];
    const int shift = m->n_failures < 7 ? m->n_failures : 7;
    /* the second failure in a row is the first to cost time */
    uint64_t pause = m->n_failures ? SECOND_NS << (shift - 1) : 0;
    if (pause > MOST_PAUSE_S * SECOND_NS)
        pause = MOST_PAUSE_S * SECOND_NS;
    m->failed = true;
    m->exit_code = code;
    m->requested = false;
    m->n_failures++;
    m->n_failed_starts++;
    m->retry_at = pause ? clock_now() + pause : 0;
    m->need_bytes = 0;
    router_set_state(r, m, ROUTER_UNLOADED);
    router_say(r, m, "failed: %s", m->words);
    snprintf(text, sizeof text, "the model '%.200s' did not start: %s", m->id, m->words);
    fail_waiting(
        m, &(struct serve_error){.status = 500, .code = "model_not_started", .no_retry = true},
        text);
}

static void fail_to_start(struct router *r, struct router_model *m, const struct err *why)
{
    snprintf(m->words, sizeof m->words, "%s", why->msg);
    fail_start(r, m, 1);
}

/* What one more model may take: of --memory, or of the memory that was free when no model ran,
 * without the plans of those that run; and no more than is free now.  0: it is not known, or no
 * model runs and the process sees for itself. */
static uint64_t free_bytes(struct router *r)
{
    struct cpu_machine machine;
    uint64_t used;
    const double requested = ingle_config_number(r->o.config, "memory");
    const int n = n_processes(r, &used);
    cpu_machine_read(&machine);
    const uint64_t now = machine.memory_unread ? 0 : machine.memory_free_bytes;
    if (requested > 0)
        r->budget_bytes = (uint64_t)requested;
    else if (!n)
        r->budget_bytes = now;
    if (!r->budget_bytes || (!n && requested <= 0))
        return 0;
    uint64_t left = r->budget_bytes > used ? r->budget_bytes - used : 1;
    if (requested <= 0 && now && now < left)
        left = now;
    return left;
}

/* The same if no model ran. */
static uint64_t all_bytes(struct router *r)
{
    struct cpu_machine machine;
    uint64_t used;
    const bool limited = ingle_config_number(r->o.config, "memory") > 0;
    const uint64_t left = free_bytes(r);
    if (!left || limited)
        return left ? r->budget_bytes : 0;
    (void)n_processes(r, &used);
    cpu_machine_read(&machine);
    const uint64_t now = machine.memory_unread ? r->budget_bytes : machine.memory_free_bytes + used;
    return now < r->budget_bytes ? now : r->budget_bytes;
}

static bool is_full(const struct router *r)
{
    uint64_t used;
    return r->models_max && n_processes(r, &used) >= r->models_max;
}

/* The i-th of a model's values that name something on a hub, or NULL. */
static const char *hub_name(const struct router *r, const struct router_model *m, size_t i)
{
    static const char *const option[] = {"draft", "prompt-drafter"};
    const char *text = ingle_config_text(m->config, "model", 0);
    if (router_is_of_hub(text) && i-- == 0)
        return text;
    for (size_t o = 0; o < sizeof option / sizeof *option; o++)
        for (size_t k = 0; (text = router_text(r, m, option[o], k)); k++)
            if (router_is_of_hub(text) && i-- == 0)
                return text;
    return NULL;
}

/* "hf:OWNER/NAME" of both, whatever code they want. */
static bool same_repository(const char *a, const char *b)
{
    const size_t n = 3 + strcspn(a + 3, ":");
    return strncmp(a, b, n) == 0 && (!b[n] || b[n] == ':');
}

/* Whether another model is fetching from the same repository: each file is written by one
 * process. */
static bool fetches_same(const struct router *r, const struct router_model *m)
{
    const char *a, *b;
    for (const struct router_model *o = r->models; o; o = o->next)
        for (size_t i = 0; o != m && o->state == ROUTER_FETCHING && (a = hub_name(r, o, i)); i++)
            for (size_t k = 0; (b = hub_name(r, m, k)); k++)
                if (same_repository(a, b))
                    return true;
    return false;
}

static bool needs_fetch(const struct router *r, const struct router_model *m)
{
    return !m->fetched && hub_name(r, m, 0);
}

/* A process for m, as far as memory allows. */
static void start(struct router *r, struct router_model *m, bool plan)
{
    struct err err = {.msg = "no memory for its options"};
    const bool fetch = plan && needs_fetch(r, m);
    const uint64_t limit = plan && !m->checked ? all_bytes(r) : free_bytes(r);
    snprintf(m->child.socket, sizeof m->child.socket, "%s/%u.sock", r->directory, m->number);
    m->words[0] = 0;
    m->progress = 0;
    if (!router_arguments(r, m, limit, plan) || router_child_start(r, m, plan, &err)) {
        fail_to_start(r, m, &err);
        return;
    }
    m->n_starts += !plan;
    m->info_requested = false;
    m->started_at = clock_now();
    if (!plan || fetch)
        router_say(r, m, fetch ? "fetching, if it is not there" : "loading");
    router_set_state(r, m, fetch ? ROUTER_FETCHING : plan ? ROUTER_PLANNING : ROUTER_LOADING);
    if (plan && !fetch)
        r->planning = m;
}

/* Those that are not here yet: all of them at once. */
static void fetch_queued(struct router *r)
{
    int n = 0;
    for (const struct router_model *m = r->models; m; m = m->next)
        n += m->state == ROUTER_FETCHING;
    for (struct router_model **at = &r->queue, *m; (m = *at) && n < MOST_FETCHES;) {
        if (!is_wanted(m) || !needs_fetch(r, m) || fetches_same(r, m)) {
            at = &m->next_wait;
            continue;
        }
        *at = m->next_wait;
        start(r, m, true);
        n++;
    }
}

/* The first of the queue whose turn it can be. */
static struct router_model *next_of(const struct router *r)
{
    struct router_model *m = r->queue;
    while (m && is_wanted(m) && needs_fetch(r, m))
        m = m->next_wait;
    return m;
}

/* The first of the queue, as far as it can go now.  False: the others wait for it. */
static bool advance(struct router *r, struct router_model *m)
{
    if (!is_wanted(m)) { /* who has waited for it has left */
        unqueue(r, m);
        router_set_state(r, m, m->then == ROUTER_SLEEPING ? ROUTER_SLEEPING : ROUTER_UNLOADED);
        return true;
    }
    if (r->planning)
        return false;
    const bool blocked = m->checked && (m->no_room || is_full(r));
    if (blocked && m->preload && !m->waiting.first) {
        router_say(r, m, "is not loaded at the start: there is no room beside the others");
        m->requested = false;
        return true;
    }
    if (blocked) {
        make_room(r, m);
        return false;
    }
    unqueue(r, m);
    start(r, m, true);
    return true;
}

/* It does not fit, whoever ends. */
static void fail_to_fit(struct router *r, struct router_model *m, struct json_object *plan,
                        uint64_t limit)
{
    uint64_t used;
    struct json_object *v;
    const char *advice =
        json_object_object_get_ex(plan, "advice", &v) ? json_object_get_string(v) : "";
    const bool others = n_processes(r, &used) > 0;
    snprintf(m->words, sizeof m->words, "it needs %s and %s %s%s%s%.300s",
             SIZE_OF(m->need_bytes), others ? "all models together have" : "there are",
             SIZE_OF(limit), others ? "" : " free", *advice ? "; " : "", advice);
    fail_start(r, m, 1);
}

/* The plan is here: m starts, or waits for room. */
static void take_plan(struct router *r, struct router_model *m)
{
    struct json_object *plan = NULL, *v;
    struct err err;
    uint64_t used;
    if (json_parse(m->child.text.at, m->child.text.n, NULL, &plan, &err)) {
        fail_to_start(r, m, &err);
        return;
    }
    const uint64_t need =
        json_object_object_get_ex(plan, "total_bytes", &v) ? json_object_get_uint64(v) : 0;
    const uint64_t limit =
        json_object_object_get_ex(plan, "limit_bytes", &v) ? json_object_get_uint64(v) : 0;
    const bool fits = json_object_object_get_ex(plan, "fits", &v) && json_object_get_boolean(v);
    const bool first = !m->checked; /* it was made with all memory */
    m->need_bytes = need;
    if (!fits && (first || !n_processes(r, &used))) {
        fail_to_fit(r, m, plan, limit);
        json_object_put(plan);
        return;
    }
    json_object_put(plan);
    const uint64_t left = first ? free_bytes(r) : 0;
    const bool small = first && !is_full(r) && (!left || need <= left);
    if (small || (!first && fits)) {
        start(r, m, false);
        return;
    }
    m->checked = true;
    m->no_room = !fits;
    enqueue_at(r, m, m->queued_at);
}

static void say_end(struct router_model *m, int code)
{
    if (m->child.words[0])
        snprintf(m->words, sizeof m->words, "%s", m->child.words);
    else if (code > 128)
        snprintf(m->words, sizeof m->words, "its process was ended by signal %d (%s)", code - 128,
                 strsignal(code - 128));
    else
        snprintf(m->words, sizeof m->words, "its process ended with status %d", code);
}

/* The process of m has ended. */
static void take_end(struct router *r, struct router_model *m, int code)
{
    const bool plan = m->child.plan;
    const enum router_state state = m->state;
    say_end(m, code);
    router_child_clear(r, m);
    if (r->planning == m)
        r->planning = NULL;
    for (struct router_model *w = r->queue; w && !plan; w = w->next_wait)
        w->no_room = false; /* memory has come back */
    if (state == ROUTER_PLANNING && code == 0) {
        take_plan(r, m);
        return;
    }
    if (state == ROUTER_FETCHING && code == 0) {
        m->fetched = true;
        enqueue_at(r, m, m->queued_at);
        return;
    }
    const bool starts =
        state == ROUTER_PLANNING || state == ROUTER_LOADING || state == ROUTER_FETCHING;
    if (starts && code > 128 && !m->again && is_wanted(m)) {
        router_say(r, m, "%s: it is started again", m->words);
        m->again = true;
        m->checked = false;
        enqueue_at(r, m, m->queued_at);
        return;
    }
    if (starts) {
        fail_start(r, m, code);
        return;
    }
    m->need_bytes = 0;
    m->leaving = false;
    if (state == ROUTER_LOADED) {
        m->n_crashes++;
        m->failed = true;
        m->exit_code = code;
        router_say(r, m, "failed: %s", m->words);
    } else {
        m->failed = false;
        m->words[0] = 0;
        router_say(r, m, "%s (%s)", m->then == ROUTER_SLEEPING ? "sleeps" : "unloaded", m->why);
    }
    router_set_state(r, m, state == ROUTER_LOADED ? ROUTER_UNLOADED : m->then);
    if (is_wanted(m))
        enqueue(r, m);
}

/* ---- all together ---- */

/* It is loaded: who has waited gets it. */
static void take_in(struct router_model *m)
{
    m->failed = false;
    m->n_failures = 0;
    m->requested = m->preload = false;
    m->words[0] = 0;
    for (struct router_job *j; (j = router_jobs_take(&m->waiting));)
        router_job_start(j, m);
}

static void tend(struct router *r, struct router_model *m, uint64_t now)
{
    int code;
    struct router_child *c = &m->child;
    if (has_process(m) && (c->ended || c->stderr_closed || c->kill_at || c->doubt_until) &&
        router_child_ended(r, m, &code))
        take_end(r, m, code);
    if (c->doubt_until && now > c->doubt_until)
        c->doubt_until = 0; /* it lives: who waits goes there again */
    router_jobs_expire(m, now);
    if (has_process(m) && m->child.kill_at && now > m->child.kill_at)
        (void)kill(m->child.pid, SIGKILL);
    if (m->state != ROUTER_LOADED || c->stderr_closed || c->ended || c->doubt_until)
        return;
    if (!m->leaving && (m->waiting.first || m->requested || m->failed))
        take_in(m);
    const double ttl = router_number(r, m, "ttl");
    if (m->leaving && !m->n_active) {
        stop(r, m, ROUTER_UNLOADED, "another model has waited for its room");
    } else if (m->let_go && !m->n_active) {
        stop(r, m, ROUTER_UNLOADED, "keep_alive 0");
    } else if (ttl > 0 && !m->n_active && now > m->idle_since &&
               (double)(now - m->idle_since) > ttl * 1e9) {
        char why[64];
        snprintf(why, sizeof why, "no request for %g s", ttl);
        stop(r, m, ROUTER_SLEEPING, why);
    }
}

void router_settle(struct router *r)
{
    const uint64_t now = clock_now();
    for (struct router_model **at = &r->models, *m; (m = *at);) {
        tend(r, m, now);
        if (m->removed && !has_process(m) && m->state != ROUTER_QUEUED && !m->waiting.first &&
            !m->n_active) {
            *at = m->next;
            router_notify(r, m->id, "model_remove", NULL);
            router_model_free(m);
            continue;
        }
        at = &m->next;
    }
    if (!r->stop)
        fetch_queued(r);
    for (struct router_model *m; !r->stop && (m = next_of(r)) && advance(r, m);) {}
}

uint64_t router_next_time(const struct router *r, uint64_t now)
{
    uint64_t next = r->queue && !r->planning ? now + SECOND_NS : 0;
    for (const struct router_model *m = r->models; m; m = m->next) {
        uint64_t at = 0;
        const double ttl = router_number(r, m, "ttl");
        if (has_process(m) &&
            (m->child.ended || m->child.stderr_closed || m->child.kill_at || m->child.doubt_until))
            at = now + CHECK_NS;
        else if (m->state == ROUTER_LOADED && !m->n_active && ttl > 0)
            at = m->idle_since + (uint64_t)(ttl * 1e9) + CHECK_NS;
        if (m->waiting.first && (!at || at > now + SECOND_NS / 2))
            at = now + SECOND_NS / 2; /* their time may be up */
        if (at && (!next || at < next))
            next = at;
    }
    return next;
}
