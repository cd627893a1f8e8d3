/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/sched.h"

#include "base/bug.h"
#include "base/mem.h"

#include <string.h>

struct sched_user {
    struct sched_user *next;
    char *name;     /* owned; NULL: everybody */
    int64_t served; /* tokens; of a newcomer: as many as of the least served one */
    int64_t n_tickets;
    int64_t n_waiting, n_tokens; /* of the tickets that wait */
};

struct sched_queue {
    int64_t max_waiting, max_tokens;
    int64_t n_waiting, n_tokens;
    struct sched_ticket *first, *last;
    struct sched_ticket *displaced;
    struct sched_user *users;
};

ingle_status sched_queue_create(struct sched_queue **out, int64_t max_waiting, int64_t max_tokens,
                                struct err *err)
{
    struct sched_queue *q = mem_zalloc(sizeof *q);
    if (!q)
        return err_set(err, INGLE_NOMEM, "no memory for a queue");
    q->max_waiting = max_waiting;
    q->max_tokens = max_tokens;
    *out = q;
    return INGLE_OK;
}

void sched_queue_free(struct sched_queue *q)
{
    if (!q)
        return;
    BUG_IF(q->users);
    mem_free(q);
}

static bool same_name(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* Somebody who comes back, or is new, has no claim from the time before. */
static struct sched_user *user_find(struct sched_queue *q, const char *name)
{
    int64_t least = INT64_MAX;
    for (struct sched_user *u = q->users; u; u = u->next) {
        if (same_name(u->name, name))
            return u;
        least = u->served < least ? u->served : least;
    }
    struct sched_user *u = mem_zalloc(sizeof *u);
    if (u && name)
        u->name = mem_strdup(name);
    if (!u || (name && !u->name)) {
        mem_free(u);
        return NULL;
    }
    u->served = q->users ? least : 0;
    u->next = q->users;
    q->users = u;
    return u;
}

static void user_forget(struct sched_queue *q, struct sched_user *u)
{
    struct sched_user **at = &q->users;
    while (*at != u)
        at = &(*at)->next;
    *at = u->next;
    mem_free(u->name);
    mem_free(u);
}

static bool lacks_tokens(const struct sched_queue *q, const struct sched_ticket *t)
{
    return q->n_waiting && t->n_tokens > q->max_tokens - q->n_tokens;
}

/* Who has the most places, or the most waiting tokens, if u has fewer also with t; NULL: u has to
 * wait itself. */
static const struct sched_user *find_greedy(const struct sched_queue *q,
                                            const struct sched_ticket *t,
                                            const struct sched_user *u, bool by_count)
{
    int64_t most = by_count ? u->n_waiting + 1 : u->n_tokens + t->n_tokens;
    const struct sched_user *greedy = NULL;
    for (const struct sched_user *o = q->users; o; o = o->next) {
        const int64_t has = by_count ? o->n_waiting : o->n_tokens;
        if (o != u && has > most) {
            most = has;
            greedy = o;
        }
    }
    return greedy;
}

static void displace_youngest(struct sched_queue *q, const struct sched_user *u)
{
    struct sched_ticket *victim = NULL;
    for (struct sched_ticket *t = q->first; t; t = t->next)
        if (t->user == u)
            victim = t;
    BUG_IF(!victim);
    sched_queue_take(q, victim);
    victim->displaced = true;
    victim->next = q->displaced;
    q->displaced = victim;
}

/* Room for t of u.  A greedy user's waiting tokens are more than those of t, so nobody is displaced
 * for nothing. */
static bool make_room(struct sched_queue *q, const struct sched_ticket *t,
                      const struct sched_user *u)
{
    const bool full = q->n_waiting >= q->max_waiting, long_ones = lacks_tokens(q, t);
    const struct sched_user *by_count = full ? find_greedy(q, t, u, true) : NULL;
    const struct sched_user *by_tokens = long_ones ? find_greedy(q, t, u, false) : NULL;
    if ((full && !by_count) || (long_ones && !by_tokens))
        return false;
    while (by_tokens && lacks_tokens(q, t) && by_tokens->n_waiting)
        displace_youngest(q, by_tokens);
    if (q->n_waiting >= q->max_waiting)
        displace_youngest(q, by_count);
    return true;
}

ingle_status sched_queue_put(struct sched_queue *q, struct sched_ticket *t, const char *user,
                             struct err *err)
{
    struct sched_user *u = user_find(q, user);
    if (!u)
        return err_set(err, INGLE_NOMEM, "no memory for a place in the queue");
    if (!make_room(q, t, u)) {
        const ingle_status st =
            q->n_waiting >= q->max_waiting
                ? err_set(err, INGLE_LIMIT,
                          "the queue is full: %lld requests wait, the limit is %lld",
                          (long long)q->n_waiting, (long long)q->max_waiting)
                : err_set(
                      err, INGLE_LIMIT,
                      "the queue is full: prompts of %lld tokens wait, %lld more exceed the limit "
                      "of %lld",
                      (long long)q->n_tokens, (long long)t->n_tokens, (long long)q->max_tokens);
        if (!u->n_tickets)
            user_forget(q, u);
        return st;
    }
    t->user = u;
    u->n_tickets++;
    u->n_waiting++;
    u->n_tokens += t->n_tokens;
    t->next = NULL;
    t->waits = true;
    *(q->first ? &q->last->next : &q->first) = t;
    q->last = t;
    q->n_waiting++;
    q->n_tokens += t->n_tokens;
    return INGLE_OK;
}

static bool goes_before(const struct sched_ticket *a, const struct sched_ticket *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority;
    return a->user->served < b->user->served;
}

struct sched_ticket *sched_queue_head(const struct sched_queue *q)
{
    struct sched_ticket *head = q->first;
    for (struct sched_ticket *t = q->first; t; t = t->next)
        if (goes_before(t, head))
            head = t;
    return head;
}

struct sched_ticket *sched_queue_first(const struct sched_queue *q)
{
    return q->first;
}

void sched_queue_take(struct sched_queue *q, struct sched_ticket *t)
{
    struct sched_ticket *before = NULL;
    for (struct sched_ticket *at = q->first; at != t; at = at->next)
        before = at;
    *(before ? &before->next : &q->first) = t->next;
    if (q->last == t)
        q->last = before;
    t->next = NULL;
    t->waits = false;
    q->n_waiting--;
    q->n_tokens -= t->n_tokens;
    t->user->n_waiting--;
    t->user->n_tokens -= t->n_tokens;
}

struct sched_ticket *sched_queue_displaced(struct sched_queue *q)
{
    struct sched_ticket *t = q->displaced;
    if (t) {
        q->displaced = t->next;
        t->next = NULL;
    }
    return t;
}

void sched_queue_leave(struct sched_queue *q, struct sched_ticket *t)
{
    if (t->waits)
        sched_queue_take(q, t);
    if (t->user && !--t->user->n_tickets)
        user_forget(q, t->user);
    t->user = NULL;
}

void sched_queue_serve(struct sched_ticket *t, int64_t n)
{
    t->user->served += n;
}

void sched_queue_count(const struct sched_queue *q, int64_t *n_waiting, int64_t *n_tokens)
{
    *n_waiting = q->n_waiting;
    *n_tokens = q->n_tokens;
}
