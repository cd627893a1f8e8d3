/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place - what a worker and an engine send each other besides work: counters, which experts
 * should be near, which are.
 *
 * Those that are used most and are not in this process's memory are to be in the worker's.  All of
 * it is advice: a wrong one costs time and nothing else.
 */
#include "expert/away.h"

#include "base/num.h"
#include "expert/tiered.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PLACES = 4096 };
static const uint64_t stats_ns = 1000000000, place_ns = 5000000000;

static void send(struct worker *w, const struct link_head *h, struct link_out *m)
{
    w->n.sent_bytes += LINK_HEAD + m->n;
    if (!link_send(w->link, NULL, h, m))
        expert_worker_lose(w, "it takes nothing more");
}

void expert_worker_cancel(struct worker *w, uint64_t tag)
{
    struct link_out m;
    if (w->state != WORKER_READY || !link_out_init(&m, 0))
        return;
    w->n.cancels++;
    send(w, &(struct link_head){.kind = LINK_CANCEL, .tag = tag}, &m);
}

void expert_worker_share(struct worker *w)
{
    struct link_address a;
    struct link_out m;
    struct err err;
    if (w->r->o.no_share || link_address_parse(w->address, false, &a, NULL) || a.place != LINK_UNIX)
        return;
    if (link_share_create(&w->share, &err)) {
        report(w->r->o.sink, INGLE_REPORT_NOTE, "worker", w->address,
               "rows go through the socket: %s", err.msg);
        return;
    }
    if (!link_out_init(&m, LINK_SHARE_HELLO))
        return;
    link_share_write(&w->share, m.payload);
    send(w, &(struct link_head){.kind = LINK_SHARE}, &m);
}

static int by_uses(const void *a, const void *b)
{
    const struct placing *x = a, *y = b;
    return x->uses > y->uses   ? -1
           : x->uses < y->uses ? 1
                               : (x->what > y->what) - (x->what < y->what);
}

/* Experts of its layers that were used and stay in no memory here; where all are here, those that
 * were used. */
static size_t list_places(const struct worker *w)
{
    const struct expert_remote *r = w->r;
    size_t n = 0;
    for (size_t i = 0; i < r->n_layers; i++) {
        const struct model_experts *home = r->layer[i].home;
        const struct store_layer *l = home->keeper;
        if (!home->workers || !link_range_has(&w->hello.range, home->layer))
            continue;
        for (int64_t e = 0; e < home->n; e++) {
            const uint32_t uses = r->uses[i * r->hello.n_experts + (size_t)e];
            if (uses && !(l && (expert_own_has(l->class, l->first + e) ||
                                expert_policy_is_in(l->class->policy, l->first + e))))
                r->placing[n++] = (struct placing){uses, link_place(home->layer, e)};
        }
    }
    qsort(r->placing, n, sizeof *r->placing, by_uses);
    return n < MOST_PLACES                ? (n < w->hello.slots ? n : (size_t)w->hello.slots)
           : w->hello.slots < MOST_PLACES ? (size_t)w->hello.slots
                                          : MOST_PLACES;
}

static void place(struct worker *w)
{
    struct expert_remote *r = w->r;
    struct link_out m;
    const size_t n = list_places(w);
    if (n && link_out_take(w->link, &m, 4 * n)) {
        for (size_t i = 0; i < n; i++)
            link_put_u32(m.payload + 4 * i, r->placing[i].what);
        send(w, &(struct link_head){.kind = LINK_PLACE}, &m);
    }
    for (size_t i = 0; w == &r->worker[0] && i < r->n_layers * r->hello.n_experts; i++)
        r->uses[i] /= 2;
}

void expert_worker_send_stats(struct worker *w, uint64_t now)
{
    struct link_out m;
    if (now - w->asked_ns >= stats_ns && link_out_take(w->link, &m, 0)) {
        w->asked_ns = now;
        send(w, &(struct link_head){.kind = LINK_STATS}, &m);
    }
    if (w->state != WORKER_READY || w->placed_step == w->r->step || now - w->placed_ns < place_ns)
        return;
    w->placed_ns = now;
    w->placed_step = w->r->step;
    place(w);
}

void expert_worker_said(struct worker *w, const struct link_head *h, const uint8_t *payload,
                        size_t n)
{
    struct err err;
    if (h->kind == LINK_SHARE) {
        w->shares = w->n.shares = true;
        return;
    }
    if (h->kind == LINK_STATS) {
        if (link_stats_read(payload, n, &w->n.there, &err))
            expert_worker_lose(w, err.msg);
        else
            expert_worker_show(w);
        return;
    }
    memcpy(w->have, payload, n);
    memset(w->missed_at, 0, w->r->n_layers * w->r->hello.n_experts * sizeof *w->missed_at);
    w->n.n_have = 0;
    for (size_t i = 0; i < 8 * n; i++)
        w->n.n_have += link_have_at(payload, i);
    expert_worker_show(w);
}
