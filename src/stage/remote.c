/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote - an engine's stages: connections, what is said to them, and their pages.
 *
 * The thread of the steps and those that save sessions may be here at a time: one lock guards all,
 * and whoever waits for an answer keeps it.
 */
#define _GNU_SOURCE
#include "stage/inner.h"
#include "stage/chain.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    LATE_TIMES = 20,
    FIRST_STEPS = 3,
    UNHEARD_BYTES = 256 << 20,
    HOP_BREAKS = 3
};
#define SECOND_NS UINT64_C(1000000000)
#define LATE_NS (10 * SECOND_NS)
#define FIRST_NS (120 * SECOND_NS) /* steps before anything was measured */
#define HOP_WAIT_NS (2 * SECOND_NS)
#define HOP_REST_NS (60 * SECOND_NS) /* that broke HOP_BREAKS times */

static const struct link_shape any_shape = {1, 1, 1, 1, 1};

/* ---- connections ---- */

void stage_set_lost(struct stage_remote *r)
{
    if (!r->started)
        return;
    atomic_fetch_add(&r->losses, 1);
    atomic_store(&r->lost, true);
}

/* The connections to the stages beside it are to be asked for anew. */
static void forget_hops(struct stage *s)
{
    for (int i = 0; i < 2 && s - i >= s->r->stage; i++) {
        s[-i].hop = STAGE_HOP_NEW;
        s[-i].asked = 0;
    }
}

void stage_lose(struct stage *s, const char *why)
{
    if (s->had) {
        s->had = false;
        s->n.losses++;
        s->r->late = NULL;
        stage_set_lost(s->r);
        report(s->r->o.sink, INGLE_REPORT_WARN, "stage", s->address, "layers %u:%u are lost: %s",
               s->hello.from, s->hello.to, why);
    }
    if (s->state != STAGE_REFUSED)
        s->state = STAGE_AWAY;
    s->to_load = s->loading = false;
    s->n_ops = 0;
    forget_hops(s);
    stage_keep_lose(s);
    err_set(&s->why, INGLE_IO, "%s", why);
}

/* A stage that is wrong or late is given a new connection. */
void stage_dial_again(struct stage *s)
{
    const struct stage_remote_options *o = &s->r->o;
    const struct link_options l = {.address = s->address,
                                   .key_file = o->key_file,
                                   .plain = o->plain,
                                   .most_bytes = LINK_STRANGER_BYTES,
                                   .strangers = true,
                                   .heartbeat_ms = o->heartbeat_ms,
                                   .dead_ms = o->dead_ms};
    struct err err;
    link_close(s->link);
    s->link = NULL;
    s->up = false;
    if (link_dial(&s->link, &l, &err))
        s->why = err;
}

/* Says who this engine is; what it asks for, or (before it has started) only looks. */
static void say(struct stage *s)
{
    struct stage_hello h = s->r->hello;
    struct link_out m;
    const struct link_head head = {.kind = LINK_JOIN, .tag = s->r->number};
    h.look = s->to_load ? STAGE_ASSIGNS : s->r->started ? STAGE_JOINS : STAGE_LOOKS;
    h.from = s->known ? s->hello.from : 0;
    h.to = s->known ? s->hello.to : h.n_layers;
    if (s->to_load)
        h.n_ctx = (uint32_t)(s->r->n_ctx ? s->r->n_ctx : 1);
    s->n_ops = 0;
    if (!link_out_init(&m, LINK_JOIN_BYTES))
        return;
    stage_hello_write(&h, m.payload);
    s->said_ns = clock_now();
    if (link_send(s->link, NULL, &head, &m))
        s->state = STAGE_SAID;
}

/* Waits for room, as long as for an answer. */
bool stage_send(struct stage *s, const struct link_head *h, struct link_out *m)
{
    const uint64_t start = clock_now();
    const struct timespec nap = {.tv_nsec = 200000};
    while (!link_has_room(s->link, NULL) && link_is_up(s->link, NULL) && s->state == STAGE_READY &&
           clock_now() - start < (s->r->o.late_ns ? s->r->o.late_ns : LATE_NS))
        nanosleep(&nap, NULL);
    s->n.sent_bytes += m->n;
    return link_send(s->link, NULL, h, m);
}

/* What is said of pages waits at a stage for the steps before it. */
static void leave_room(struct stage *s)
{
    const bool flies = stage_trip_flies(s->r);
    s->unheard_bytes = flies ? s->unheard_bytes + s->n_ops : 0;
    while (s->unheard_bytes > UNHEARD_BYTES && s->state == STAGE_READY &&
           stage_trip_flies(s->r)) {
        stage_look_at_all(s->r, STAGE_TURN_MS);
        stage_trip_check(s->r);
    }
}

bool stage_flush_pages(struct stage *s)
{
    const struct link_head h = {.kind = LINK_PAGES};
    struct link_out m;
    if (s->n_ops)
        leave_room(s);
    if (!s->n_ops)
        return true;
    if (!link_out_take(s->link, &m, s->n_ops))
        return false;
    memcpy(m.payload, s->ops, s->n_ops);
    s->n_ops = 0;
    return stage_send(s, &h, &m);
}

/* Said before the next step, or when it has become much. */
static bool send_pages(struct stage *s, const uint64_t number[3], enum stage_op op,
                       const void *bytes, size_t n)
{
    if (s->n_ops + STAGE_OP + n > STAGE_OPS_BYTES && !stage_flush_pages(s))
        return false;
    if (!mem_grow(&s->ops, &s->cap_ops, s->n_ops + STAGE_OP + n, 1))
        return false;
    struct wire w = {.at = s->ops, .n = s->n_ops, .cap = s->cap_ops};
    stage_put_u32(&w, op);
    for (int i = 0; i < 3; i++)
        stage_put_u64(&w, number[i]);
    stage_put(&w, bytes, n);
    s->n_ops = w.n;
    return !w.bad;
}

/* It has agreed: all pages that there are, without contents. */
static void take_again(struct stage *s)
{
    const struct stage_pages *p = &s->r->pages;
    for (size_t i = 0; i < p->n && s->state == STAGE_READY; i++) {
        const uint64_t v[] = {p->slab[i].at, p->slab[i].n_bytes, p->slab[i].page_bytes};
        if (!send_pages(s, v, STAGE_TAKE, NULL, 0))
            stage_lose(s, "it takes no more messages");
    }
}

/* For messages of steps of a row, as many as are under way. */
static void reserve(struct stage *s)
{
    const struct stage_remote *r = s->r;
    const int64_t in = r->fam->border(r->self, s->hello.from);
    const size_t row = sizeof(float) * (size_t)num_max(in, s->border);
    link_reserve(s->link, stage_step_line(r->spec, r->hello.n_ctx) + row, 2 * (r->n + 2));
}

static uint64_t longer(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* It may answer trials, say which prefixes it has, send parts of pages, and rows that it was asked
 * for. */
static void admit(struct stage *s, const struct stage_hello *h)
{
    const struct kv_spec *spec = s->r->spec;
    s->longest = longer(s->longest, STAGE_TRY_BYTES);
    if (h->keeps)
        s->longest = longer(s->longest, STAGE_KEEP_LIST_HEAD +
                                                 STAGE_KEEP_MOST * sizeof(struct kv_key));
    for (uint32_t g = 0; spec && g < spec->n_groups; g++)
        s->longest = longer(s->longest, spec->group[g].page_bytes);
    link_admit(s->link, NULL, s->longest);
}

void stage_await(struct stage *s, uint64_t n)
{
    if (n <= s->longest)
        return;
    s->longest = n;
    link_admit(s->link, NULL, n);
}

static void receive_join(struct stage *s, const struct link_in *in)
{
    struct stage_hello h;
    struct err err;
    ingle_status st = stage_hello_read(in->payload, in->n_payload, &h, &err);
    if (!st)
        st = stage_hello_agree(&s->r->hello, &h, &err);
    if (!st && h.open && s->known && !s->r->assigned) { /* what was chosen for it stays */
        h.from = s->hello.from;
        h.to = s->hello.to;
    }
    if (!st)
        admit(s, &h);
    const bool other = s->known && (h.from != s->hello.from || h.to != s->hello.to);
    const bool began = !s->loading;
    s->loading = !st && h.loading && s->to_load;
    if (s->loading && began)
        report(s->r->o.sink, INGLE_REPORT_NOTE, "stage", s->address, "it loads layers %u:%u",
               h.from, h.to);
    if (s->loading)
        return;
    if (!st && other && h.open && s->r->assigned && !s->to_load) { /* it was started anew */
        s->to_load = true;
        say(s);
        return;
    }
    if (!st && other)
        st = err_set(&err, INGLE_UNSUP, "it has layers %u:%u, and had %u:%u before", h.from, h.to,
                     s->hello.from, s->hello.to);
    if (st && s->state == STAGE_READY) { /* nobody has asked: perhaps another one is right */
        stage_lose(s, err.msg);
        stage_dial_again(s);
        return;
    }
    if (st) {
        s->why = err;
        s->state = STAGE_REFUSED;
        return;
    }
    s->hello = h;
    s->known = true;
    if (s->to_load && s->r->started) { /* it has the layers; now pages and steps */
        s->to_load = false;
        say(s);
        return;
    }
    s->to_load = false;
    s->state = STAGE_READY;
    s->had = true;
    s->joined_ns = clock_now();
    forget_hops(s);
    s->why = (struct err){0};
    s->n.trip_us = (double)(clock_now() - s->said_ns) * 1e-3;
    if (!s->r->started)
        return;
    reserve(s);
    take_again(s);
}

/* ---- from stage to stage ---- */

/* Its rows to the next one go through the engine. */
static void use_star(struct stage *s, const char *why)
{
    s->hop = STAGE_HOP_STAR;
    if (!s->hop_reported)
        report(s->r->o.sink, INGLE_REPORT_WARN, "fallback", s->address,
               "its rows to '%s' go through the engine: %s", s[1].address, why);
    s->hop_reported = true;
}

/* Sends each stage where the next one is, when all are there. */
static void ask_hops(struct stage_remote *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->stage[i].state != STAGE_READY)
            return;
    for (int i = 0; r->started && i + 1 < r->n; i++) {
        struct stage *s = &r->stage[i];
        const size_t n = strlen(s[1].address);
        const struct link_head h = {.kind = LINK_NEXT, .tag = r->number};
        struct link_out m;
        if (s->hop != STAGE_HOP_NEW || s->asked == r->number)
            continue;
        s->asked = r->number;
        if (s->hop_breaks && clock_now() - s->hop_ns > HOP_REST_NS)
            s->hop_breaks = 0;
        if (s->hop_breaks >= HOP_BREAKS) {
            use_star(s, "the connection has broken again and again");
            continue;
        }
        if (!link_out_init(&m, n))
            return;
        memcpy(m.payload, s[1].address, n);
        if (!stage_send(s, &h, &m))
            return;
        s->hop = STAGE_HOP_ASKED;
        s->asked_ns = clock_now();
    }
}

/* What a stage says of a connection to a neighbour. */
static void receive_next(struct stage *from, const struct link_head *h, const struct link_in *in)
{
    struct stage *s = h->flags & STAGE_NEXT_BEFORE ? from - 1 : from;
    char why[LINK_MAX_TEXT + 1];
    if (h->tag != from->r->number || s < from->r->stage || s + 1 >= from->r->stage + from->r->n)
        return;
    link_fail_text(in->payload, in->n_payload, why);
    if (h->flags & STAGE_NEXT_UP) {
        if (s->hop_reported)
            report(s->r->o.sink, INGLE_REPORT_NOTE, "stage", s->address,
                   "its rows go to '%s' directly", s[1].address);
        s->hop = STAGE_HOP_UP;
        s->hop_reported = false;
    } else if (s->hop == STAGE_HOP_ASKED && s == from) {
        use_star(s, why);
    } else if (s->hop == STAGE_HOP_UP) {
        s->hop = STAGE_HOP_NEW;
        s->hop_breaks++;
        s->hop_ns = clock_now();
        report(s->r->o.sink, INGLE_REPORT_WARN, "stage", s->address,
               "the connection to '%s' is lost, as '%s' says: %s", s[1].address, from->address,
               why);
        stage_set_lost(s->r);
    }
}

/* Until all are decided; a firewall may say nothing. */
static bool hops_wait(const struct stage_remote *r)
{
    for (int i = 0; r->started && i + 1 < r->n; i++) {
        const struct stage *s = &r->stage[i];
        if (s->hop == STAGE_HOP_NEW ? s->asked != r->number
                                    : s->hop == STAGE_HOP_ASKED && !s->hop_reported &&
                                          clock_now() - s->asked_ns < HOP_WAIT_NS)
            return true;
    }
    return false;
}

/* What a message that is no answer says; true: it is an answer, and *h its head. */
static bool receive(struct stage *s, const struct link_in *in, struct link_head *h)
{
    char text[LINK_MAX_TEXT + 1];
    struct err err;
    if (link_head_read(in->head, in->n_head, in->payload, in->n_payload, &any_shape, h, &err)) {
        stage_lose(s, err.msg);
        stage_dial_again(s);
        return false;
    }
    s->n.received_bytes += in->n_payload;
    if (h->kind == LINK_JOIN) {
        if (!h->tag || h->tag == s->r->number) /* of the last one */
            receive_join(s, in);
    } else if (h->kind == LINK_NEXT) {
        receive_next(s, h, in);
    } else if (h->kind == LINK_KEEP) {
        stage_keep_receive(s, in, h);
    } else if (h->kind == LINK_BYE) {
        stage_lose(s, "it has ended");
        stage_dial_again(s);
    } else if (h->kind == LINK_FAIL && !h->tag) {
        link_fail_text(in->payload, in->n_payload, text);
        const bool was = s->state == STAGE_READY;
        stage_lose(s, text);
        if (!was) { /* it does not fit */
            err_set(&s->why, INGLE_UNSUP, "%s", text);
            s->state = STAGE_REFUSED;
        } else {
            stage_dial_again(s);
        }
    } else {
        return true;
    }
    return false;
}

/* Waits for one message at most.  True: an answer is in *in. */
bool stage_look(struct stage *s, int timeout_ms, struct link_in *in, struct link_head *h)
{
    char why[200];
    if (!s->link)
        stage_dial_again(s);
    if (!s->link)
        return false;
    const enum link_event what = link_wait(s->link, timeout_ms, in, why, sizeof why);
    if (what == LINK_UP) {
        s->up = true;
        say(s);
    } else if (what == LINK_DOWN) {
        s->up = false;
        stage_lose(s, why);
    } else if (what == LINK_MESSAGE) {
        if (receive(s, in, h))
            return true;
        link_in_release(in);
    }
    return false;
}

/* What has come meanwhile. */
void stage_look_at_all(struct stage_remote *r, int timeout_ms)
{
    for (int i = 0; i < r->n; i++) {
        struct link_in in;
        struct link_head h;
        struct stage *s = &r->stage[i];
        for (int k = 0; k < 8; k++)
            if (stage_look(s, k ? 0 : timeout_ms, &in, &h))
                stage_trip_take(s, &in, &h);
    }
    ask_hops(r);
}

static const char *trouble_of(const struct stage *s)
{
    const char *why = *s->why.msg || !s->link ? s->why.msg : link_trouble(s->link);
    if (why && strcmp(why, "there is no handshake") == 0)
        return "there is no handshake: one end has another key (--worker-key), or is no ingle";
    return why ? why : "";
}

static struct stage *first_missing(struct stage_remote *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->stage[i].state != STAGE_READY)
            return &r->stage[i];
    return NULL;
}

/* One that was refused may be another one by now, and one that never answers may do so anew. */
static void dial_silent(struct stage_remote *r)
{
    for (int i = 0; i < r->n; i++) {
        struct stage *s = &r->stage[i];
        const uint64_t ns = clock_now() - s->said_ns;
        const bool refused = s->state == STAGE_REFUSED && r->started && ns > SECOND_NS,
                   silent = s->state == STAGE_SAID && !s->loading && ns > LATE_NS;
        if (!s->up || !(refused || silent))
            continue;
        stage_dial_again(s);
        s->state = STAGE_AWAY;
    }
}

/* Until all are there.  The lock is held. */
static ingle_status wait_for_all(struct stage_remote *r, const atomic_bool *cancel,
                                 struct err *err)
{
    const uint64_t begun = clock_now();
    uint64_t start = begun;
    const struct stage *s;
    bool reported = false;
    ask_hops(r);
    while ((s = first_missing(r)) || hops_wait(r) || stage_keep_waits(r)) {
        if (!s) {
            stage_look_at_all(r, 1);
            continue;
        }
        const uint64_t now = clock_now();
        if (s->loading && s->up) /* as long as that takes */
            start = now;
        if (s->state == STAGE_REFUSED && !r->started)
            return err_set(err, s->why.status == INGLE_OK ? INGLE_UNSUP : s->why.status,
                           "stage '%s': %s", s->address, s->why.msg);
        if (now - start > r->o.wait_ns)
            return err_set(err, INGLE_IO,
                           "stage '%s' is not there, %.0f s were waited (--stage-wait)%s%s",
                           s->address, (double)r->o.wait_ns * 1e-9, *trouble_of(s) ? ": " : "",
                           trouble_of(s));
        if ((cancel && atomic_load(cancel)) ||
            (!r->started && report_progress(r->o.sink, "stages", 0, 0)))
            return err_set(err, INGLE_CANCEL, "cancelled");
        if (!reported && s->loading && now - begun > SECOND_NS) {
            reported = true;
            report(r->o.sink, INGLE_REPORT_WARN, "stage", s->address,
                   "it loads its layers; ingle waits for it");
        }
        if (!reported && now - start > SECOND_NS) {
            reported = true;
            report(r->o.sink, INGLE_REPORT_WARN, "stage", s->address,
                   "it is not there yet; ingle waits up to %.0f s for it (--stage-wait)%s%s",
                   (double)r->o.wait_ns * 1e-9, *trouble_of(s) ? ": " : "", trouble_of(s));
        }
        stage_look_at_all(r, STAGE_TURN_MS);
        dial_silent(r);
    }
    return INGLE_OK;
}

/* ---- opening ---- */

/* By two names, perhaps. */
static ingle_status check_twice(const struct stage_remote *r, struct err *err)
{
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < i; k++)
            if (r->stage[i].hello.instance &&
                r->stage[i].hello.instance == r->stage[k].hello.instance)
                return err_set(err, INGLE_ARG,
                               "stages '%s' and '%s' are one process, which is named twice "
                               "(--stages)",
                               r->stage[k].address, r->stage[i].address);
    return INGLE_OK;
}

/* Stages follow each other and have all layers after the engine's. */
static ingle_status check_order(struct stage_remote *r, struct err *err)
{
    for (int i = 0; i + 1 < r->n; i++) {
        const struct stage_hello *a = &r->stage[i].hello, *b = &r->stage[i + 1].hello;
        if (a->to != b->from)
            return err_set(err, INGLE_ARG,
                           "stages '%s' with layers %u:%u and '%s' with %u:%u %s: each must begin "
                           "where the one before it ends",
                           r->stage[i].address, a->from, a->to, r->stage[i + 1].address, b->from,
                           b->to, b->from > a->to ? "leave a gap" : "overlap");
    }
    const struct stage *first = &r->stage[0], *last = &r->stage[r->n - 1];
    for (int i = 0; i < r->n; i++)
        r->end[i] = r->stage[i].hello.from;
    r->end[r->n] = last->hello.to;
    if (last->hello.to != r->hello.n_layers)
        return err_set(err, INGLE_ARG,
                       "the last stage, '%s', ends at layer %u, the model has %u: one is missing",
                       last->address, last->hello.to, r->hello.n_layers);
    if (!first->hello.from)
        return err_set(err, INGLE_ARG,
                       "stage '%s' has layers 0:%u: the engine has the embedding and needs at "
                       "least layer 0",
                       first->address, first->hello.to);
    r->hello.first = first->hello.from;
    return INGLE_OK;
}

/* Open stages get layers, so far only here. */
static ingle_status choose(struct stage_remote *r, struct err *err)
{
    int n_open = 0;
    for (int i = 0; i < r->n; i++)
        n_open += r->stage[i].hello.open != 0;
    if (!n_open)
        return INGLE_OK;
    const ingle_status st = r->o.cut ? r->o.cut(r->o.cut_arg, r, r->end, err)
                                     : err_set(err, INGLE_ARG, "stage '%s' has no layers",
                                               r->stage[0].address);
    for (int i = 0; !st && i < r->n; i++) {
        struct stage_hello *h = &r->stage[i].hello;
        if (!h->open)
            continue;
        r->stage[i].assign = h->from != (uint32_t)r->end[i] || h->to != (uint32_t)r->end[i + 1];
        h->from = (uint32_t)r->end[i];
        h->to = (uint32_t)r->end[i + 1];
    }
    return st;
}

ingle_status stage_remote_assign(struct stage_remote *r, int64_t n_ctx, struct err *err)
{
    pthread_mutex_lock(&r->lock);
    r->n_ctx = n_ctx;
    r->assigned = true;
    for (int i = 0; i < r->n; i++) {
        struct stage *s = &r->stage[i];
        if (!s->assign)
            continue;
        s->to_load = true;
        s->state = STAGE_AWAY;
        if (s->up)
            say(s);
    }
    const ingle_status st = wait_for_all(r, NULL, err);
    pthread_mutex_unlock(&r->lock);
    return st;
}

static ingle_status check_addresses(const struct stage_remote_options *o, struct err *err)
{
    if (o->n < 1 || o->n > STAGE_MOST)
        return err_set(err, INGLE_ARG, "%d stages are outside 1 to %d (--stages)", o->n,
                       STAGE_MOST);
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(o->address[i], o->address[k]) == 0)
                return err_set(err, INGLE_ARG, "stage '%s' is named twice (--stages)",
                               o->address[i]);
    return INGLE_OK;
}

ingle_status stage_remote_open(struct stage_remote **out, const struct stage_remote_options *o,
                               struct err *err)
{
    ingle_status st = check_addresses(o, err);
    struct stage_remote *r = st ? NULL : mem_zalloc(sizeof *r);
    if (st)
        return st;
    if (!r || pthread_mutex_init(&r->lock, NULL)) {
        mem_free(r);
        return err_set(err, INGLE_NOMEM, "no memory for stages");
    }
    r->o = *o;
    r->hello = *o->hello;
    r->hello.instance = clock_now() ^ (uint64_t)(uintptr_t)r;
    atomic_init(&r->lost, false);
    atomic_init(&r->losses, 0);
    atomic_init(&r->n_late, 0);
    for (; !st && r->n < o->n; r->n++) {
        struct stage *s = &r->stage[r->n];
        struct link_address a;
        s->r = r;
        s->address = mem_strdup(o->address[r->n]);
        if (!s->address)
            st = err_set(err, INGLE_NOMEM, "no memory for stages");
        else if (!(st = link_address_parse(s->address, false, &a, err))) {
            stage_dial_again(s);
            if (!s->link)
                st = err_set(err, s->why.status, "%s", s->why.msg);
        }
    }
    if (!st)
        st = wait_for_all(r, NULL, err);
    if (!st)
        st = check_twice(r, err);
    if (!st)
        st = choose(r, err);
    if (!st)
        st = check_order(r, err);
    if (st)
        stage_remote_close(r);
    else
        *out = r;
    return st;
}

/* One TRY, there and back, in seconds; below 0: it does not answer. */
static double try_once(struct stage *s, size_t n, uint64_t back)
{
    const struct link_head h = {.kind = LINK_TRY, .tag = ++s->r->tag};
    const uint64_t start = clock_now();
    struct link_out m;
    if (s->state != STAGE_READY || !link_out_init(&m, n))
        return -1;
    memset(m.payload, 0, n);
    memcpy(m.payload, &back, sizeof back);
    if (!stage_send(s, &h, &m))
        return -1;
    while (s->state == STAGE_READY && clock_now() - start < LATE_NS) {
        struct link_in in;
        struct link_head got;
        if (!stage_look(s, STAGE_TURN_MS, &in, &got))
            continue;
        const bool mine = got.kind == LINK_TRY && got.tag == h.tag && in.n_payload == back;
        link_in_release(&in);
        if (mine)
            return (double)(clock_now() - start) * 1e-9;
    }
    return -1;
}

ingle_status stage_remote_try(struct stage_remote *r, int i, struct stage_rates *out,
                              struct err *err)
{
    enum { TRIPS = 15, BIG = 4 << 20 };
    struct stage *s = &r->stage[i];
    const char *slow, *cipher;
    double trip = 1e9, to = 1e9, back = 1e9, t = 0;
    pthread_mutex_lock(&r->lock);
    for (int k = 0; k < TRIPS && t >= 0; k++)
        trip = (t = try_once(s, sizeof(uint64_t), 0)) < trip ? t : trip;
    for (int k = 0; k < 3 && t >= 0; k++)
        to = (t = try_once(s, BIG, 0)) < to ? t : to;
    for (int k = 0; k < 3 && t >= 0; k++)
        back = (t = try_once(s, sizeof(uint64_t), BIG)) < back ? t : back;
    cipher = s->link ? link_cipher(s->link, NULL, &slow) : NULL;
    snprintf(out->cipher, sizeof out->cipher, "%s", cipher ? cipher : "");
    pthread_mutex_unlock(&r->lock);
    if (t < 0)
        return err_set(err, INGLE_IO, "stage '%s' does not answer: %s", s->address, s->why.msg);
    out->trip_us = trip * 1e6;
    out->out_bytes_per_s = BIG / (to > trip ? to - trip : to);
    out->in_bytes_per_s = BIG / (back > trip ? back - trip : back);
    return INGLE_OK;
}

void stage_remote_close(struct stage_remote *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n; i++) {
        const struct link_head h = {.kind = LINK_BYE};
        union { const char *in; void *out; } address = {.in = r->stage[i].address};
        struct link_out m;
        if (r->stage[i].link && r->stage[i].state == STAGE_READY && r->started &&
            link_out_init(&m, 0))
            (void)!link_send(r->stage[i].link, NULL, &h, &m);
        link_close(r->stage[i].link);
        mem_free(r->stage[i].ops);
        mem_free(r->stage[i].key);
        mem_free(address.out);
    }
    for (size_t i = 0; i < r->pages.n; i++) {
        union { uint64_t at; void *p; } p = {.at = r->pages.slab[i].at};
        munmap(p.p, (size_t)r->pages.slab[i].n_bytes);
    }
    stage_pages_clear(&r->pages);
    stage_trips_close(r);
    stage_keep_end(r);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

int stage_remote_n(const struct stage_remote *r)
{
    return r ? r->n : 0;
}

const struct stage_hello *stage_remote_hello(const struct stage_remote *r, int i)
{
    return &r->stage[i].hello;
}

const char *stage_remote_address(const struct stage_remote *r, int i)
{
    return r->stage[i].address;
}

int64_t stage_remote_first(const struct stage_remote *r)
{
    return r->hello.first;
}

void stage_remote_mark(const struct stage_remote *r, const struct family *fam, const void *self,
                       struct kv_spec *spec)
{
    const int64_t first = r->hello.first, n_layers = r->hello.n_layers;
    for (uint32_t i = 0; i < spec->n_streams; i++) {
        struct kv_stream *st = &spec->stream[i];
        const bool guests = spec->n_own && st->group >= spec->n_own;
        st->own = !guests && st->layer >= first;
        st->twin = !guests && st->layer < first && fam->borrows &&
                   fam->borrows(self, i, first, n_layers);
    }
    kv_spec_set_away(spec);
}

ingle_status stage_remote_start(struct stage_remote *r, const struct family *fam, const void *self,
                                const struct kv_spec *spec, const struct stage_hello *hello,
                                struct err *err)
{
    const uint64_t instance = r->hello.instance;
    const uint32_t first = r->hello.first;
    pthread_mutex_lock(&r->lock);
    r->fam = fam;
    r->self = self;
    for (int i = 0; i < r->n; i++)
        r->stage[i].border = fam->border(self, r->stage[i].hello.to);
    r->hello = *hello;
    r->hello.instance = instance;
    r->hello.first = first;
    r->hello.pages = stage_pages_hash(spec);
    r->spec = spec;
    r->number = 1;
    for (int i = 0; i < r->n; i++) /* as it has looked */
        r->stage[i].state = STAGE_AWAY;
    /* steps under way, one more, and one between its pieces */
    ingle_status st = stage_trips_open(r, r->n + 3, err);
    for (int i = 0; !st && i < r->n; i++)
        st = stage_hello_agree(&r->hello, &r->stage[i].hello, err);
    r->started = true;
    for (int i = 0; !st && i < r->n; i++)
        if (r->stage[i].up)
            say(&r->stage[i]);
    /* what does not fit is said at once */
    for (uint64_t start = clock_now();
         !st && (first_missing(r) || hops_wait(r) || stage_keep_waits(r));) {
        const struct stage *s = first_missing(r);
        if (!s)
            stage_look_at_all(r, 1);
        else if (s->state == STAGE_REFUSED)
            st = err_set(err, s->why.status ? s->why.status : INGLE_UNSUP, "stage '%s': %s",
                         s->address, s->why.msg);
        else if (clock_now() - start > r->o.wait_ns)
            st = err_set(err, INGLE_IO, "stage '%s' is not there: %s", s->address, s->why.msg);
        else
            stage_look_at_all(r, STAGE_TURN_MS);
    }
    atomic_store(&r->lost, false);
    pthread_mutex_unlock(&r->lock);
    return st;
}

/* ---- pages ---- */

static void post_all(struct stage_remote *r, enum stage_op op, const uint64_t v[3],
                     const void *bytes, size_t n)
{
    for (int i = 0; i < r->n; i++)
        if (r->stage[i].state == STAGE_READY && !send_pages(&r->stage[i], v, op, bytes, n))
            stage_lose(&r->stage[i], "it takes no more messages");
}

/* Addresses that stand for pages elsewhere: nothing is ever there. */
static void *take(void *arg, uint32_t group, size_t n_bytes)
{
    struct stage_remote *r = arg;
    void *p = mmap(NULL, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    const uint64_t v[] = {(uintptr_t)p, n_bytes, r->spec->group[group].own_bytes};
    pthread_mutex_lock(&r->lock);
    const ingle_status st = stage_pages_take(&r->pages, v[0], v[1], v[2], false, NULL);
    if (!st)
        post_all(r, STAGE_TAKE, v, NULL, 0);
    pthread_mutex_unlock(&r->lock);
    if (!st)
        return p;
    munmap(p, n_bytes);
    return NULL;
}

static void give(void *arg, void *own, size_t n_bytes)
{
    struct stage_remote *r = arg;
    const uint64_t v[] = {(uintptr_t)own, 0, 0};
    pthread_mutex_lock(&r->lock);
    (void)stage_pages_give(&r->pages, v[0]);
    post_all(r, STAGE_GIVE, v, NULL, 0);
    pthread_mutex_unlock(&r->lock);
    munmap(own, n_bytes);
}

static void copy(void *arg, void *to, const void *from, size_t n_bytes)
{
    struct stage_remote *r = arg;
    const uint64_t v[] = {(uintptr_t)to, (uintptr_t)from, 0};
    (void)n_bytes;
    pthread_mutex_lock(&r->lock);
    (void)stage_pages_copy(&r->pages, v[0], v[1]);
    post_all(r, STAGE_COPY, v, NULL, 0);
    pthread_mutex_unlock(&r->lock);
}

/* The stage of a stream; NULL: it is the engine's. */
static struct stage *stage_of(struct stage_remote *r, uint32_t stream)
{
    const uint32_t layer = r->spec->stream[stream].layer;
    for (int i = 0; i < r->n; i++)
        if (layer >= r->stage[i].hello.from && layer < r->stage[i].hello.to)
            return &r->stage[i];
    return NULL;
}

static uint64_t late_after(const struct stage *s, int64_t n_rows)
{
    const uint64_t least = s->r->o.late_ns ? s->r->o.late_ns : LATE_NS;
    const double usual = LATE_TIMES * (s->step_ns + s->unit_ns * (double)n_rows);
    if (s->n.steps < FIRST_STEPS && !s->r->o.late_ns)
        return FIRST_NS;
    return usual > (double)least ? (uint64_t)usual : least;
}

bool stage_is_late(struct stage *s, uint64_t since_ns, int64_t n_rows)
{
    const uint64_t now = clock_now();
    if (s->state != STAGE_READY || now <= since_ns || now - since_ns <= late_after(s, n_rows))
        return false;
    char why[80];
    const bool again = s->r->late == s;
    snprintf(why, sizeof why, "it has not answered for %.1f s", (double)(now - since_ns) * 1e-9);
    stage_lose(s, why);
    s->r->late = s;
    atomic_store(&s->r->n_late, again ? atomic_load(&s->r->n_late) + 1 : 1);
    stage_dial_again(s);
    return true;
}

/* A part of a page that was asked for with this tag; the lock is held.  Steps that the stage has
 * before this question take their time, and may need what others answer. */
static bool await_page(struct stage *s, uint64_t tag, struct link_in *in)
{
    struct stage_remote *r = s->r;
    const uint64_t start = clock_now();
    struct link *from[LINK_SLEEP];
    struct link_head h;
    int n = 0;
    for (int i = 0; i < r->n && n < LINK_SLEEP; i++)
        if (&r->stage[i] == s || stage_trip_flies(r))
            from[n++] = r->stage[i].link;
    while (s->state == STAGE_READY) {
        bool any = false;
        for (int i = 0; i < r->n; i++) {
            if (!stage_look(&r->stage[i], 0, in, &h))
                continue;
            if (&r->stage[i] == s && h.tag == tag && h.kind == LINK_PAGE)
                return true;
            stage_trip_take(&r->stage[i], in, &h);
            any = true;
        }
        const uint64_t since = start > s->answered_ns ? start : s->answered_ns;
        if (stage_trip_flies(r))
            stage_trip_check(r);
        else
            (void)stage_is_late(s, since, (int64_t)r->hello.max_rows);
        if (s->state == STAGE_READY && !any)
            link_sleep(from, n, STAGE_TURN_MS);
    }
    return false;
}

static bool read(void *arg, uint32_t stream, void *host, const void *own, size_t n_bytes)
{
    struct stage_remote *r = arg;
    struct stage *s = stage_of(r, stream);
    struct link_in in;
    struct link_out m;
    bool ok = false;
    pthread_mutex_lock(&r->lock);
    const struct link_head h = {.kind = LINK_PAGE, .tag = ++r->tag};
    if (s && s->state == STAGE_READY && !atomic_load(&r->lost) &&
        link_out_take(s->link, &m, 16)) {
        const uint64_t v[] = {(uintptr_t)own, n_bytes};
        memcpy(m.payload, v, sizeof v);
        if (stage_flush_pages(s) && stage_send(s, &h, &m) && await_page(s, h.tag, &in)) {
            ok = in.n_payload == n_bytes;
            if (ok)
                memcpy(host, in.payload, n_bytes);
            link_in_release(&in);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return ok;
}

static void write_page(void *arg, uint32_t stream, void *own, const void *host, size_t n_bytes)
{
    struct stage_remote *r = arg;
    pthread_mutex_lock(&r->lock);
    const uint64_t v[] = {(uintptr_t)own, n_bytes, UINT64_C(1) << 63 | ++r->marks};
    const struct stage *owner = stage_of(r, stream);
    stage_pages_mark(&r->pages, v[0], v[2]);
    for (int i = 0; i < r->n; i++) {
        struct stage *s = &r->stage[i];
        const bool has = s == owner || (r->fam->borrows && r->fam->borrows(r->self, stream,
                                                                           s->hello.from,
                                                                           s->hello.to));
        const size_t n = has ? n_bytes : 0; /* who does not have the stream learns the hash */
        const uint64_t part[] = {v[0], n, v[2]};
        if (s->state == STAGE_READY && !send_pages(s, part, STAGE_WRITE, host, n))
            stage_lose(s, "it takes no more messages");
    }
    pthread_mutex_unlock(&r->lock);
}

struct kv_memory stage_remote_memory(struct stage_remote *r)
{
    return (struct kv_memory){r, take, give, copy, read, write_page};
}

bool stage_remote_is_lost(const struct stage_remote *r)
{
    return r && atomic_load(&r->lost);
}

bool stage_remote_stays_late(struct stage_remote *r, bool over)
{
    enum { MOST = 2 };
    const bool late = r && atomic_load(&r->n_late) >= MOST;
    if (r && (over || late))
        atomic_store(&r->n_late, 0);
    return late;
}

uint64_t stage_remote_losses(const struct stage_remote *r)
{
    return r ? atomic_load(&r->losses) : 0;
}

ingle_status stage_remote_renew(struct stage_remote *r, const atomic_bool *cancel, struct err *err)
{
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->pages.n; i++)
        memset(r->pages.slab[i].hash, 0,
               (size_t)(r->pages.slab[i].n_bytes / r->pages.slab[i].page_bytes) * KV_PAGE *
                   sizeof(uint64_t));
    r->number++;
    stage_trips_drop(r);
    /* those that are there forget, too */
    for (int i = 0; i < r->n; i++)
        stage_keep_lose(&r->stage[i]);
    for (int i = 0; i < r->n; i++)
        if (r->stage[i].state == STAGE_READY || r->stage[i].state == STAGE_SAID)
            say(&r->stage[i]);
    const ingle_status st = wait_for_all(r, cancel, err);
    if (!st)
        atomic_store(&r->lost, false);
    pthread_mutex_unlock(&r->lock);
    return st;
}

/* ---- counts ---- */

static void count(struct stage_remote *r, int i, struct stage_remote_counts *out)
{
    const struct stage *s = &r->stage[i];
    *out = s->n;
    out->address = s->address;
    out->from = s->hello.from;
    out->to = s->hello.to;
    out->ready = s->state == STAGE_READY;
    out->direct = s->hop == STAGE_HOP_UP;
    out->weight_bytes = s->hello.weight_bytes;
    out->limit_bytes = s->hello.limit_bytes;
    out->read_rate = s->hello.read_rate;
    out->budget_bytes = s->hello.budget_bytes;
    snprintf(out->trouble, sizeof out->trouble, "%.*s", (int)sizeof out->trouble - 1, s->why.msg);
}

void stage_remote_count(struct stage_remote *r, int i, struct stage_remote_counts *out)
{
    pthread_mutex_lock(&r->lock);
    count(r, i, out);
    pthread_mutex_unlock(&r->lock);
}

bool stage_remote_is_ready(struct stage_remote *r, char *why, size_t n_why)
{
    bool ready = true;
    if (!r)
        return true;
    if (pthread_mutex_trylock(&r->lock)) /* a step runs, or waits for a stage */
        return !atomic_load(&r->lost);
    stage_look_at_all(r, 0);
    const struct stage *s = first_missing(r);
    if (s) {
        ready = false;
        snprintf(why, n_why, "stage '%s': %s", s->address, s->why.msg);
    }
    pthread_mutex_unlock(&r->lock);
    return ready;
}
