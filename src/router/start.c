/* SPDX-License-Identifier: Apache-2.0
 *
 * Who runs and who waits.  Models that are asked for queue in the order of the requests.  The first one gets a plan (this
 * program computes what it needs and prints it); if that does not fit beside the others, or there are --models-max
 * processes, the least recently used model without requests ends, and the plan is made again when it has.  A model with
 * requests is left alone; but when one has waited PATIENCE_NS for it, it gets no new requests.
 */
#define _GNU_SOURCE
#include "router/inner.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/json.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const uint64_t SECOND_NS = 1000000000, PATIENCE_NS = 10000000000, LOOK_NS = 20000000;
enum { MOST_PAUSE_S = 60, KILL_S = 10 };

static bool has_process(const struct router_model *m) { return m->child.pid != 0; }

static bool is_wanted(const struct router_model *m) { return m->waiting.first || m->asked; }

static void unqueue(struct router *r, const struct router_model *m)
{
    for (struct router_model **at = &r->queue; *at; at = &(*at)->next_wait)
        if (*at == m) {
            *at = m->next_wait;
            return;
        }
}

static void enqueue(struct router *r, struct router_model *m)
{
    struct router_model **at = &r->queue;
    while (*at)
        at = &(*at)->next_wait;
    *at = m;
    m->next_wait = NULL;
    m->no_room = false;
    m->queued_at = clock_now();
    router_set_state(r, m, ROUTER_QUEUED);
}

void router_want(struct router *r, struct router_model *m)
{
    if (m->state != ROUTER_UNLOADED && m->state != ROUTER_SLEEPING)
        return;
    m->then = m->state;
    enqueue(r, m);
}

void router_ask(struct router *r, struct router_model *m, bool preload)
{
    m->preload = preload && !is_wanted(m);
    m->asked = true;
    router_want(r, m);
}

/* ---- ends ---- */

static void stop(struct router *r, struct router_model *m, enum router_state then)
{
    m->then = then;
    m->leaving = false;
    m->asked = false;
    router_set_state(r, m, ROUTER_STOPPING);
    router_child_stop(r, m, router_number(r, m, "drain") + KILL_S);
}

void router_unload(struct router *r, struct router_model *m, enum router_state then)
{
    m->asked = false;
    switch (m->state) {
    case ROUTER_QUEUED:
        if (!m->waiting.first) {
            unqueue(r, m);
            router_set_state(r, m, then);
        }
        break;
    case ROUTER_PLANNING: /* a look follows when the process has ended */
    case ROUTER_LOADING:
    case ROUTER_LOADED:
        stop(r, m, then);
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
        if (m->state != ROUTER_LOADED || m->child.errors_over || (m->n_active || m->waiting.first) != busy || (busy && m->leaving))
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
        router_say(r, v, "ends: '%s' needs the room", m->id);
        r->n_evicted++;
        stop(r, v, ingle_config_is_set(v->config, "store") || ingle_config_is_set(r->o.config, "store") ? ROUTER_SLEEPING
                                                                                                      : ROUTER_UNLOADED);
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
    uint64_t pause = m->n_failures ? SECOND_NS << (shift - 1) : 0; /* the second failure in a row is the first to cost time */
    if (pause > MOST_PAUSE_S * SECOND_NS)
        pause = MOST_PAUSE_S * SECOND_NS;
    m->failed = true;
    m->exit_code = code;
    m->asked = false;
    m->n_failures++;
    m->n_failed_starts++;
    m->retry_at = pause ? clock_now() + pause : 0;
    m->need_bytes = 0;
    router_set_state(r, m, ROUTER_UNLOADED);
    snprintf(text, sizeof text, "the model '%.200s' did not start: %s", m->id, m->words);
    fail_waiting(m, &(struct serve_error){.status = 500, .code = "model_not_started", .no_retry = true}, text);
}

static void fail_to_start(struct router *r, struct router_model *m, const struct err *why)
{
    snprintf(m->words, sizeof m->words, "%s", why->msg);
    fail_start(r, m, 1);
}

/* What one more model may take: of --memory, or of the memory that was free when no model ran, without the plans of those
 * that run; and no more than is free now.  0: it is not known, or no model runs and the process sees for itself. */
static uint64_t free_bytes(struct router *r)
{
    struct cpu_machine machine;
    uint64_t used;
    const double asked = ingle_config_number(r->o.config, "memory");
    const int n = n_processes(r, &used);
    cpu_machine_read(&machine);
    const uint64_t now = machine.memory_unread ? 0 : machine.memory_free_bytes;
    if (asked > 0)
        r->budget_bytes = (uint64_t)asked;
    else if (!n)
        r->budget_bytes = now;
    if (!r->budget_bytes || (!n && asked <= 0))
        return 0;
    uint64_t left = r->budget_bytes > used ? r->budget_bytes - used : 1;
    if (asked <= 0 && now && now < left)
        left = now;
    return left;
}

/* A process for m, as far as memory allows. */
static void start(struct router *r, struct router_model *m, bool plan)
{
    struct err err = {.msg = "no memory for its options"};
    const uint64_t limit = free_bytes(r);
    snprintf(m->child.socket, sizeof m->child.socket, "%s/%u.sock", r->directory, m->number);
    m->words[0] = 0;
    m->progress = 0;
    if (!router_arguments(r, m, limit, plan) || router_child_start(r, m, plan, &err)) {
        fail_to_start(r, m, &err);
        return;
    }
    m->n_starts += !plan;
    m->info_asked = false;
    router_set_state(r, m, plan ? ROUTER_PLANNING : ROUTER_LOADING);
    if (plan)
        r->planning = m;
}

/* The first of the queue, as far as it can go now.  False: the others wait for it. */
static bool advance(struct router *r, struct router_model *m)
{
    uint64_t used;
    if (!is_wanted(m)) { /* who has waited for it has left */
        unqueue(r, m);
        router_set_state(r, m, m->then == ROUTER_SLEEPING ? ROUTER_SLEEPING : ROUTER_UNLOADED);
        return true;
    }
    if (r->planning)
        return false;
    const bool full = r->models_max && n_processes(r, &used) >= r->models_max;
    if ((full || m->no_room) && m->preload && !m->waiting.first) {
        router_say(r, m, "is not loaded at the start: there is no room beside the others");
        m->asked = false;
        return true;
    }
    if (full || m->no_room) {
        make_room(r, m);
        return false;
    }
    unqueue(r, m);
    start(r, m, true);
    return true;
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
    const uint64_t need = json_object_object_get_ex(plan, "total_bytes", &v) ? json_object_get_uint64(v) : 0;
    const uint64_t limit = json_object_object_get_ex(plan, "limit_bytes", &v) ? json_object_get_uint64(v) : 0;
    const bool fits = json_object_object_get_ex(plan, "fits", &v) && json_object_get_boolean(v);
    m->need_bytes = need;
    if (fits) {
        json_object_put(plan);
        start(r, m, false);
        return;
    }
    if (!n_processes(r, &used)) { /* nobody can leave for it */
        const char *advice = json_object_object_get_ex(plan, "advice", &v) ? json_object_get_string(v) : "";
        snprintf(m->words, sizeof m->words, "it needs %.1f MiB and %.1f are free%s%.300s", (double)need / 1048576,
                 (double)limit / 1048576, *advice ? "; " : "", advice);
        json_object_put(plan);
        fail_start(r, m, 1);
        return;
    }
    json_object_put(plan);
    const uint64_t since = m->queued_at;
    enqueue(r, m);
    unqueue(r, m); /* it is the first still */
    m->next_wait = r->queue;
    r->queue = m;
    m->queued_at = since;
    m->no_room = true;
}

static void say_end(struct router_model *m, int code)
{
    if (m->child.words[0])
        snprintf(m->words, sizeof m->words, "%s", m->child.words);
    else if (code > 128)
        snprintf(m->words, sizeof m->words, "its process was ended by signal %d (%s)", code - 128, strsignal(code - 128));
    else
        snprintf(m->words, sizeof m->words, "its process ended with status %d", code);
}

/* The process of m is gone. */
static void take_end(struct router *r, struct router_model *m, int code)
{
    const bool plan = m->child.plan;
    const enum router_state state = m->state;
    say_end(m, code);
    router_child_clear(r, m);
    if (plan)
        r->planning = NULL;
    if (!plan && r->queue)
        r->queue->no_room = false; /* memory has come back */
    if (state == ROUTER_PLANNING && code == 0) {
        take_plan(r, m);
        return;
    }
    if (state == ROUTER_PLANNING || state == ROUTER_LOADING) {
        fail_start(r, m, code);
        return;
    }
    m->need_bytes = 0;
    m->leaving = false;
    if (state == ROUTER_LOADED) {
        m->n_crashes++;
        m->failed = true;
        m->exit_code = code;
        router_say(r, m, "has ended: %s", m->words);
    } else {
        m->failed = false;
        m->words[0] = 0;
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
    m->asked = m->preload = false;
    m->words[0] = 0;
    for (struct router_job *j; (j = router_jobs_take(&m->waiting));)
        router_job_start(j, m);
}

static void look_after(struct router *r, struct router_model *m, uint64_t now)
{
    int code;
    if (has_process(m) && (m->child.errors_over || m->child.kill_at) && router_child_ended(r, m, &code))
        take_end(r, m, code);
    router_jobs_expire(m, now);
    if (has_process(m) && m->child.kill_at && now > m->child.kill_at)
        (void)kill(m->child.pid, SIGKILL);
    if (m->state != ROUTER_LOADED || m->child.errors_over)
        return;
    if (!m->leaving && (m->waiting.first || m->asked || m->failed))
        take_in(m);
    const double ttl = router_number(r, m, "ttl");
    if (m->leaving && !m->n_active) {
        stop(r, m, ROUTER_UNLOADED);
    } else if (ttl > 0 && !m->n_active && now > m->idle_since && (double)(now - m->idle_since) > ttl * 1e9) {
        router_say(r, m, "sleeps: no request for %g s", ttl);
        stop(r, m, ROUTER_SLEEPING);
    }
}

void router_settle(struct router *r)
{
    const uint64_t now = clock_now();
    for (struct router_model **at = &r->models, *m; (m = *at);) {
        look_after(r, m, now);
        if (m->removed && !has_process(m) && m->state != ROUTER_QUEUED && !m->waiting.first && !m->n_active) {
            *at = m->next;
            router_tell(r, m->id, "model_remove", NULL);
            router_model_free(m);
            continue;
        }
        at = &m->next;
    }
    while (r->queue && !r->stop && advance(r, r->queue)) {}
}

uint64_t router_next_time(const struct router *r, uint64_t now)
{
    uint64_t next = r->queue && !r->planning ? now + SECOND_NS : 0;
    for (const struct router_model *m = r->models; m; m = m->next) {
        uint64_t at = 0;
        const double ttl = router_number(r, m, "ttl");
        if (has_process(m) && (m->child.errors_over || m->child.kill_at))
            at = now + LOOK_NS;
        else if (m->state == ROUTER_LOADED && !m->n_active && ttl > 0)
            at = m->idle_since + (uint64_t)(ttl * 1e9) + LOOK_NS;
        if (m->waiting.first && (!at || at > now + SECOND_NS / 2))
            at = now + SECOND_NS / 2; /* their time may be up */
        if (at && (!next || at < next))
            next = at;
    }
    return next;
}
