/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory: a request begins when the KV pages of the whole of it are free of other requests'
 * claims (the pool gives up remembered prefixes for them).  An answer without max_tokens
 * claims what is likely and more as it grows; when that goes wrong, the least urgent request
 * (one that is held before the others) is parked: its pages become remembered prefixes, and it
 * goes on later with the same bits.
 */
#include "run/parts.h"
#include "run/scheduler.h"
#include "engine/way.h"
#include "engine/media.h"

#include "base/clock.h"
#include "base/num.h"

/* A shared prefix that is shorter than this is not worth waiting for. */
enum { LEAST_SHARE = 128 };

/* ---- memory ---- */

static bool has_room(const struct ingle_scheduler *s, const struct ingle_request *r)
{
    return s->reserved_bytes <= s->budget_bytes &&
           r->reserve_bytes <= s->budget_bytes - s->reserved_bytes;
}

static bool is_less_urgent(const struct ingle_request *a, const struct ingle_request *b)
{
    if (engine_is_held(a) != engine_is_held(b))
        return engine_is_held(a);
    if (a->o.priority != b->o.priority)
        return a->o.priority < b->o.priority;
    return a->number > b->number;
}

static void park(struct ingle_scheduler *s, struct ingle_request *r)
{
    struct err err;
    report(&s->e->sink, INGLE_REPORT_NOTE, "memory", "scheduler",
           "request %lld waits: others need its KV pages", (long long)r->number);
    for (int64_t i = 0; i < s->o.max_running; i++) {
        struct engine_answer *a = &s->slot[i];
        if (a->r != r || a->state == ENGINE_ANSWER_FORKS)
            continue;
        if (session_remember(a->session.s, &err))
            report(&s->e->sink, INGLE_REPORT_WARN, "cache", "prefix tree", "%s", err.msg);
        engine_leave_mask(s, a);
        engine_drafts_drop(a);
        a->plain = false;
        session_park(a->session.s);
        a->state = ENGINE_ANSWER_PARKED;
    }
    pthread_mutex_lock(&s->lock);
    s->status.n_parked++;
    pthread_mutex_unlock(&s->lock);
    r->parked = true;
    r->parked_at = s->n_ended;
    s->reserved_bytes -= r->reserve_bytes;
}

bool engine_park_one(struct ingle_scheduler *s)
{
    struct ingle_request *least = NULL;
    int n = 0;
    for (struct ingle_request *r = s->begun; r; r = r->next) {
        if (r->parked)
            continue;
        n++;
        if (!least || is_less_urgent(r, least))
            least = r;
    }
    if (n < 2)
        return false;
    park(s, least);
    return true;
}

/* ---- prefixes ---- */

/* It is going to have more of its prompt. */
static bool is_leader(const struct engine_answer *a)
{
    return a->state == ENGINE_ANSWER_RESTORES ||
           (a->state == ENGINE_ANSWER_PROMPT && !engine_is_held(a->r));
}

/* The session becomes a fork of the one that has computed the most of the prompt, if that
 * is worth something; *leader is the one that is going to have more. */
static ingle_status fork_nearest(struct ingle_scheduler *s, struct engine_answer *a,
                                 struct engine_answer **leader, struct err *err)
{
    const struct ingle_request *r = a->r;
    const struct engine_answer *nearest = NULL;
    int64_t most = LEAST_SHARE - 1, later = 0;
    *leader = NULL;
    for (int64_t i = 0; i < s->o.max_running; i++) {
        struct engine_answer *b = &s->slot[i];
        const bool computes = is_leader(b) && b->r->o.priority >= r->o.priority;
        if (b == a || !b->r || b->r->scope.salt != r->scope.salt)
            continue;
        const struct kv_way way = session_way(b->session.s);
        const int64_t alike = kv_way_same(&way, &r->way);
        const int64_t same =
            session_alike(b->session.s, r->o.prompt, r->o.n_prompt, r->soft, r->n_soft);
        const int64_t n = num_min(num_min(same, r->o.n_prompt - 1), alike);
        const int64_t now = b->step_rows ? 0 : num_min(n, session_length(b->session.s));
        if (now > most && session_can_rewind(b->session.s, now)) {
            most = now;
            nearest = b;
        }
        if (computes && n > now && n > later) {
            later = n;
            *leader = b;
        }
    }
    a->share = later;
    const ingle_status st =
        nearest ? session_fork(a->session.s, nearest->session.s, err) : INGLE_OK;
    session_set_way(a->session.s, &r->way);
    return st;
}

/* Whether what the leader is going to have is worth waiting for: not what the store has. */
static bool waits_for(const struct engine_answer *leader, const struct engine_answer *a)
{
    const int64_t now = session_length(a->session.s), soon = session_sync_length(a->session.s);
    if (leader->state == ENGINE_ANSWER_RESTORES)
        return a->share >= soon && a->share - now >= LEAST_SHARE;
    return a->share - soon >= LEAST_SHARE;
}

static void set_borders(const struct ingle_scheduler *s, struct engine_answer *a)
{
    struct session_borders b;
    engine_borders(s->e->model, a->r->o.prompt, a->r->o.n_prompt, &b);
    session_set_borders(a->session.s, &b);
}

/* The prompt's tokens become the session's, with as much of them as is known or comes from
 * elsewhere. */
static ingle_status start_prompt(struct ingle_scheduler *s, struct engine_answer *a,
                                 struct err *err)
{
    const struct ingle_request *r = a->r;
    struct engine_answer *leader = NULL;
    struct session *t = a->session.s;
    ingle_status st = fork_nearest(s, a, &leader, err);
    if (!st)
        st = session_sync_soft_begin(t, r->o.prompt, r->o.n_prompt, r->soft, r->n_soft, err);
    if (st)
        return st;
    set_borders(s, a);
    if (!leader || !waits_for(leader, a))
        return INGLE_OK;
    a->state = ENGINE_ANSWER_SHARES;
    a->leader = leader->r->number;
    session_park(t); /* the pages come with the fork */
    const int64_t border = session_border_before(leader->session.s, a->share);
    a->passes = border && a->share - border < LEAST_SHARE;
    if (a->passes)
        a->share = border; /* the leader leaves a restore point there, and need not stop */
    else if (leader->step_rows && a->share < session_length(leader->session.s) + leader->step_rows)
        atomic_store(&s->abort, true); /* its step would go past the place */
    return INGLE_OK;
}

/* What the scheduler has drawn so far is in the session already. */
static ingle_status start(struct ingle_scheduler *s, struct engine_answer *a, struct err *err)
{
    const struct ingle_request *r = a->r;
    struct session *t = a->session.s;
    a->state = ENGINE_ANSWER_RESTORES;
    ingle_status st;
    if (!a->n_generated && !r->o.prompt_logprobs && !r->o.anew)
        return start_prompt(s, a, err);
    if (a->n_generated) {
        st = session_sync_own_begin(t, session_pending(t), err);
        if (!st) /* what was drawn stays what it is, whatever the numerics */
            session_prompt(t, r->o.n_prompt);
    } else {
        a->state = ENGINE_ANSWER_PROMPT; /* all of it is computed, known or not */
        st = session_rewind(t, 0, err);
        if (!st)
            st = session_append_soft(t, r->o.prompt, r->o.n_prompt, r->soft, r->n_soft, err);
        if (!st)
            session_prompt(t, r->o.n_prompt);
    }
    if (!st)
        set_borders(s, a);
    return st;
}

/* It waits for steps from now on. */
static void report_begin(struct ingle_scheduler *s, struct engine_answer *a)
{
    struct ingle_request *r = a->r;
    const struct ingle_reuse *known = &r->usage.reuse;
    if (!a->n_generated && known->matched - known->kept >= LEAST_SHARE &&
        known->matched < r->o.n_prompt - 1)
        a->fork = known->matched;
    if (r->started)
        return;
    r->started = clock_now();
    engine_media_count(s->e, r->soft, r->n_soft, known->kept, &r->usage);
    r->usage.queue_seconds = (double)(r->started - r->submitted) * 1e-9;
    pthread_mutex_lock(&s->lock);
    s->status.cached_tokens += r->usage.reuse.kept;
    s->status.cache_hits += r->usage.reuse.kept > 0;
    pthread_mutex_unlock(&s->lock);
    if (r->o.begin)
        r->o.begin(r->o.arg, &r->usage.reuse);
}

/* One that restores goes on, except for one whose store looks. */
static void go_on(struct ingle_scheduler *s, struct engine_answer *a, bool store_looks)
{
    struct err err;
    struct session_reuse reuse;
    if (a->looks && store_looks)
        return;
    const bool looked = a->looks;
    a->looks = false;
    if (looked && start(s, a, &err)) {
        engine_request_end(s, a->r, INGLE_FINISH_ERROR, &err);
        return;
    }
    if (a->state == ENGINE_ANSWER_RESTORES && session_sync_poll(a->session.s, &reuse)) {
        a->state = ENGINE_ANSWER_PROMPT;
        if (!a->n_generated)
            engine_explain_reuse(&reuse, a->r->o.n_prompt, &a->r->usage.reuse);
    }
    if (a->state == ENGINE_ANSWER_PROMPT)
        report_begin(s, a);
}

static bool any_looks(const struct ingle_scheduler *s)
{
    for (int64_t i = 0; i < s->o.max_running; i++)
        if (s->slot[i].state == ENGINE_ANSWER_RESTORES && s->slot[i].looks)
            return true;
    return false;
}

/* Starts an answer, and reports it when all that is known of its tokens is there.  Nobody goes
 * past those who came before and wait for the store. */
static void start_or_end(struct ingle_scheduler *s, struct engine_answer *a)
{
    const bool waits = any_looks(s), has_looked = session_runner_look(s->e->runner);
    a->state = ENGINE_ANSWER_RESTORES;
    a->looks = true;
    go_on(s, a, waits || !has_looked);
}

static bool is_coming(const struct ingle_scheduler *s, const struct engine_answer *a)
{
    for (int64_t i = 0; i < s->o.max_running; i++) {
        const struct engine_answer *b = &s->slot[i];
        if (b->state == ENGINE_ANSWER_RESTORES && b->r->number == a->leader)
            return true;
        if (b->state == ENGINE_ANSWER_PROMPT && b->r->number == a->leader)
            return b->step_rows || (is_leader(b) && session_length(b->session.s) < a->share);
    }
    return false;
}

/* Of those that restore, the one that was asked next after slot `last` of request `number`. */
static struct engine_answer *next_restored(struct ingle_scheduler *s, int64_t number, int64_t last)
{
    struct engine_answer *next = NULL;
    for (int64_t i = 0; i < s->o.max_running; i++) {
        struct engine_answer *a = &s->slot[i];
        const bool later = a->state == ENGINE_ANSWER_RESTORES &&
                           (a->r->number > number || (a->r->number == number && i > last));
        if (later && (!next || a->r->number < next->r->number))
            next = a;
    }
    return next;
}

/* The store is asked once: of two that wait for its look, the first to come reads, the other
 * shares. */
void engine_start_shares(struct ingle_scheduler *s)
{
    const bool store_looks = session_runner_looks(s->e->runner);
    int64_t number = 0;
    for (struct engine_answer *a = NULL; (a = next_restored(s, number, a ? a - s->slot : 0));) {
        number = a->r->number;
        go_on(s, a, store_looks);
    }
    for (int64_t i = 0; i < s->o.max_running; i++)
        if (s->slot[i].state == ENGINE_ANSWER_SHARES && !is_coming(s, &s->slot[i]))
            start_or_end(s, &s->slot[i]);
}

/* ---- who begins ---- */

static struct engine_answer *take_slot(struct ingle_scheduler *s, struct ingle_request *r,
                                       int index)
{
    struct engine_answer *a = s->slot;
    while (a->state != ENGINE_ANSWER_FREE)
        a++;
    a->r = r;
    a->index = index;
    a->state = ENGINE_ANSWER_FORKS;
    a->n_generated = 0;
    a->step_rows = 0;
    a->looks = false;
    a->plain = false;
    a->fork = 0;
    session_set_salt(a->session.s, r->salt);
    session_set_way(a->session.s, &r->way);
    s->n_free--;
    return a;
}

static void begin(struct ingle_scheduler *s, struct ingle_request *r)
{
    r->begun = true;
    r->next = s->begun;
    s->begun = r;
    s->reserved_bytes += r->reserve_bytes;
    for (int k = 0; k < INGLE_WAYS; k++)
        if (r->unsupported[k])
            engine_way_refuse(s->e, (enum kv_way_kind)k);
    struct engine_answer *first = take_slot(s, r, 0);
    for (int i = 1; i < r->o.n; i++)
        take_slot(s, r, i);
    start_or_end(s, first);
}

/* The parked request that goes on first; NULL: none is parked, except for those that are held. */
static struct ingle_request *parked_one(const struct ingle_scheduler *s)
{
    struct ingle_request *first = NULL;
    for (struct ingle_request *r = s->begun; r; r = r->next)
        if (r->parked && !engine_is_held(r) && (!first || is_less_urgent(first, r)))
            first = r;
    return first;
}

static void unpark(struct ingle_scheduler *s, struct ingle_request *r)
{
    r->parked = false;
    s->reserved_bytes += r->reserve_bytes;
    int left = r->n_open;
    for (int64_t i = 0; i < s->o.max_running && left; i++) {
        struct engine_answer *a = &s->slot[i];
        if (a->r != r)
            continue;
        left--;
        if (a->state == ENGINE_ANSWER_PARKED)
            start_or_end(s, a);
        if (a->state == ENGINE_ANSWER_FREE)
            return; /* it could not, and was ended */
    }
}

/* Something must have ended since it was parked, or it would be parked again. */
static bool can_go_on(const struct ingle_scheduler *s, const struct ingle_request *r)
{
    return !s->reserved_bytes || (has_room(s, r) && s->n_ended != r->parked_at);
}

void engine_admit(struct ingle_scheduler *s)
{
    for (struct ingle_request *r; (r = parked_one(s)); unpark(s, r))
        if (!can_go_on(s, r))
            return;
    for (;;) {
        bool go = false;
        pthread_mutex_lock(&s->lock);
        struct sched_ticket *t = sched_queue_head(s->queue);
        struct ingle_request *r = t ? engine_request_of(t) : NULL;
        if (r && r->o.n <= s->n_free && has_room(s, r)) {
            sched_queue_take(s->queue, t);
            go = true;
        }
        pthread_mutex_unlock(&s->lock);
        if (go) {
            begin(s, r);
            continue;
        }
        if (r && !r->prefetched && !r->o.prompt_logprobs)
            session_prefetch(s->e->runner, r->scope, r->o.prompt, r->o.n_prompt, r->soft,
                             r->n_soft);
        if (r)
            r->prefetched = true;
        return;
    }
}
