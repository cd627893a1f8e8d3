/* SPDX-License-Identifier: Apache-2.0 */
/* look - at a worker from outside: what it says of itself, how fast it is reached, and whether this
 * model would be computed there. */
#define _POSIX_C_SOURCE 200809L
#include "engine/engine.h"
#include "engine/plan.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "link/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PATIENCE_MS = 5000,
    TRIPS = 51,
    ROUNDS = 3,
    MOST_BYTES = 4 << 20,
    SHARE_MS = 500,
    TURN_MS = 20
};
static const uint64_t a_ms = 1000000;

/* A connection to one, and who it is. */
struct query {
    struct link *link;
    const char *address;
    struct link_hello hello;
    struct link_shape shape; /* hidden 0: nothing was agreed on */
    struct link_share share;
    uint64_t tag;
    char why[LINK_MAX_TEXT + 1];
};

/* The next message of a kind, or a FAIL, whose text is in why; those of other kinds are left.
 * False: none has come, or it was a FAIL. */
static bool receive(struct query *l, enum link_kind kind, uint64_t ms, struct link_in *in,
                    struct link_head *h)
{
    const uint64_t start = clock_now();
    struct err err;
    snprintf(l->why, sizeof l->why, "it does not answer for %.1f s", (double)ms * 1e-3);
    while (clock_now() - start < ms * a_ms) {
        const enum link_event what = link_wait(l->link, TURN_MS, in, l->why, sizeof l->why);
        if (what == LINK_DOWN)
            return false;
        if (what != LINK_MESSAGE)
            continue;
        const bool bad = link_head_read(in->head, in->n_head, in->payload, in->n_payload,
                                        l->shape.hidden ? &l->shape : NULL, h, &err) != INGLE_OK;
        if (!bad && h->kind == kind)
            return true;
        if (bad)
            snprintf(l->why, sizeof l->why, "%.399s", err.msg);
        else if (h->kind == LINK_FAIL)
            link_fail_text(in->payload, in->n_payload, l->why);
        link_in_release(in);
        if (bad || h->kind == LINK_FAIL)
            return false;
    }
    return false;
}

static bool say(struct query *l, const struct link_head *h, const void *payload, size_t n)
{
    struct link_out m;
    if (!link_out_init(&m, n))
        return false;
    if (n)
        memcpy(m.payload, payload, n);
    return link_send(l->link, NULL, h, &m);
}

/* Until there is a connection, and the worker has said who it is. */
static ingle_status greet(struct query *l, const struct ingle_engine_options *o, double *ms,
                          struct err *err)
{
    /* The worker's own words are wanted, and nothing is agreed on: any HELLO within its limits
     * does. */
    struct link_hello any = {.version_min = LINK_VERSION,
                             .version_max = LINK_VERSION,
                             .range = {true, 0, 0},
                             .n_layers = 1,
                             .n_experts = 1,
                             .n_used = 1,
                             .hidden = 1,
                             .width = 1,
                             .most_rows = 1,
                             .most_pairs = 1,
                             .threads = 1};
    const struct link_options how = {.address = l->address,
                                     .key_file = o->worker_key,
                                     .plain = o->worker_plain,
                                     .most_bytes = MOST_BYTES + LINK_RESULT_BYTES};
    uint8_t bytes[LINK_HELLO_BYTES];
    struct link_address a;
    struct link_in in;
    struct link_head h;
    const uint64_t start = clock_now();
    ingle_status st = link_address_parse(l->address, false, &a, err);
    if (!st && link_is_built() && !o->worker_key && !o->worker_plain && !a.near)
        st = err_set(err, INGLE_ARG,
                     "worker '%s' is beyond this host: a key is needed (--worker-key FILE), or "
                     "--worker-plain where the network itself "
                     "encrypts",
                     l->address);
    if (!st)
        st = link_dial(&l->link, &how, err);
    if (st)
        return st;
    snprintf(l->why, sizeof l->why, "there is no connection");
    enum link_event what = LINK_NOTHING;
    while (what == LINK_NOTHING && clock_now() - start < PATIENCE_MS * a_ms)
        what = link_wait(l->link, TURN_MS, &in, l->why, sizeof l->why);
    if (what != LINK_UP)
        return err_set(err, INGLE_IO, "worker '%s' cannot be reached: %s%s", l->address, l->why,
                       strcmp(l->why, "there is no handshake")
                           ? ""
                           : ": one end has another key, or none, or is no ingle");
    *ms = (double)(clock_now() - start) * 1e-6;
    snprintf(any.engine, sizeof any.engine, "%.31s", ingle_version());
    link_hello_write(&any, bytes);
    if (!say(l, &(struct link_head){.kind = LINK_HELLO, .flags = LINK_LOOK}, bytes, sizeof bytes) ||
        !receive(l, LINK_HELLO, PATIENCE_MS, &in, &h))
        return err_set(err, INGLE_IO, "worker '%s' does not say who it is: %s", l->address, l->why);
    st = link_hello_read(in.payload, in.n_payload, &l->hello, err);
    link_in_release(&in);
    return st;
}

/* What it has said is said back: it agrees with itself, and takes questions. */
static bool agree(struct query *l)
{
    struct link_in in;
    struct link_head h;
    uint8_t bytes[LINK_HELLO_BYTES];
    link_hello_write(&l->hello, bytes);
    if (!say(l, &(struct link_head){.kind = LINK_HELLO}, bytes, sizeof bytes) ||
        !receive(l, LINK_HELLO, PATIENCE_MS, &in, &h))
        return false;
    link_in_release(&in);
    l->shape = (struct link_shape){l->hello.n_layers, l->hello.n_experts, l->hello.hidden,
                                   l->hello.most_rows, l->hello.most_pairs};
    return true;
}

/* Its counters are requested: a question without work.  0: it did not answer. */
static double measure_trip(struct query *l, uint64_t *resident)
{
    double us[TRIPS];
    for (int i = 0; i < TRIPS; i++) {
        struct link_in in;
        struct link_head h;
        struct link_stats s;
        const uint64_t start = clock_now();
        if (!say(l, &(struct link_head){.kind = LINK_STATS}, NULL, 0) ||
            !receive(l, LINK_STATS, PATIENCE_MS, &in, &h))
            return 0;
        us[i] = (double)(clock_now() - start) * 1e-3;
        if (!link_stats_read(in.payload, in.n_payload, &s, NULL))
            *resident = s.resident;
        link_in_release(&in);
    }
    qsort(us, TRIPS, sizeof *us, num_order_f64);
    return us[TRIPS / 2];
}

/* n rows for expert 0 of a layer; *ns: from the question to its answer without computing, *work:
 * computing.  False: it fails, why says so. */
static bool request_rows(struct query *l, uint32_t layer, uint32_t n, uint64_t *ns, uint64_t *work)
{
    struct link_head h = {.kind = LINK_EVAL,
                          .layer = layer,
                          .n_rows = n,
                          .n_pairs = n,
                          .tag = ++l->tag,
                          .flags = l->share.at ? LINK_SHARED : 0};
    const size_t bytes = link_eval_bytes(&h, &l->shape);
    const uint64_t slot = 0, start = clock_now();
    struct link_out m;
    struct link_in in;
    struct link_head back;
    struct link_result r;
    struct err err;
    snprintf(l->why, sizeof l->why, "no memory for %u rows", n);
    if (!bytes || !link_out_init(&m, l->share.at ? sizeof slot : bytes))
        return false;
    uint8_t *at = l->share.at ? link_share_place(&l->share, 0, false) : m.payload;
    memset(at, 0, bytes); /* rows of zeros */
    link_eval_begin(at, 0, 0);
    for (uint32_t i = 0; i < n; i++)
        link_put_u32(at + LINK_EVAL_BYTES + 4 * (size_t)i, i);
    if (l->share.at)
        memcpy(m.payload, &slot, sizeof slot);
    if (!link_send(l->link, NULL, &h, &m) ||
        !receive(l, LINK_RESULT, (uint64_t)12 * PATIENCE_MS, &in, &back))
        return false;
    const uint8_t *payload = l->share.at ? link_share_place(&l->share, 0, true) : in.payload;
    const bool ok =
        !link_result_read(&h, &l->shape, payload,
                          l->share.at ? link_result_bytes(&h, &l->shape) : in.n_payload, &r, &err);
    *ns = clock_now() - start;
    *work = ok && r.compute_ns < *ns ? r.compute_ns : 0;
    *ns -= *work;
    if (!ok)
        snprintf(l->why, sizeof l->why, "%.399s", err.msg);
    link_in_release(&in);
    return ok;
}

/* Bytes a second of rows and results, there and back; 0: it does not compute. */
static double measure_rate(struct query *l, uint32_t layer)
{
    const int64_t row = (int64_t)l->hello.hidden * (int64_t)sizeof(float);
    const int64_t n =
        num_max(1, num_min(MOST_BYTES / row, num_min(l->hello.most_rows, l->hello.most_pairs)));
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t ns, work;
        if (!request_rows(l, layer, (uint32_t)n, &ns, &work))
            return 0;
        const double rate = (double)(2 * n * row) / ((double)ns * 1e-9);
        best = rate > best ? rate : best;
    }
    return best;
}

/* Whether the worker has this process's memory, too. */
static bool share(struct query *l, char *why, size_t n)
{
    uint8_t bytes[LINK_SHARE_HELLO];
    struct link_address a;
    struct link_in in;
    struct link_head h;
    struct err err;
    snprintf(why, n, "only with unix:PATH");
    if (link_address_parse(l->address, false, &a, NULL) || a.place != LINK_UNIX)
        return false;
    if (link_share_create(&l->share, &err)) {
        snprintf(why, n, "%.159s", err.msg);
        return false;
    }
    link_share_write(&l->share, bytes);
    if (say(l, &(struct link_head){.kind = LINK_SHARE}, bytes, sizeof bytes) &&
        receive(l, LINK_SHARE, SHARE_MS, &in, &h)) {
        link_in_release(&in);
        why[0] = 0;
        return true;
    }
    snprintf(why, n,
             "the worker cannot open this process's memory: another user, or another name space of "
             "processes");
    link_share_close(&l->share);
    return false;
}

/* What the engine of model m would say to it. */
static ingle_status compare(const struct query *l, struct ingle_model *m,
                            const struct ingle_engine_options *o, struct ingle_worker_seen *out,
                            struct err *err)
{
    static const char *const off[] = {"off"};
    struct ingle_engine_options own = *o;
    struct ingle_engine *e = NULL;
    struct link_hello mine;
    struct err why = {0};
    own.draft = off;
    own.n_draft = 1;
    own.mmproj = "off";
    ingle_status st = engine_prepare(&e, m, &own, err);
    if (!st)
        st = engine_worker_describe(e, &mine, err);
    ingle_engine_close(e);
    if (!st && link_hello_agree(&mine, &l->hello, &why))
        snprintf(out->refused, sizeof out->refused, "%.399s", why.msg);
    out->compared = !st;
    return st;
}

static void copy_hello(const struct link_hello *h, struct ingle_worker_seen *out)
{
    *out = (struct ingle_worker_seen){.version_min = h->version_min,
                                      .version_max = h->version_max,
                                      .arithmetic = h->arithmetic,
                                      .layout = h->layout,
                                      .n_layers = h->n_layers,
                                      .n_experts = h->n_experts,
                                      .n_used = h->n_used,
                                      .hidden = h->hidden,
                                      .width = h->width,
                                      .most_rows = h->most_rows,
                                      .most_pairs = h->most_pairs,
                                      .threads = h->threads,
                                      .slots = h->slots,
                                      .budget_bytes = h->budget_bytes,
                                      .all_bytes = h->sum != 0};
    link_range_text(&h->range, out->layers, sizeof out->layers);
    snprintf(out->engine, sizeof out->engine, "%.31s", h->engine);
    snprintf(out->cpu, sizeof out->cpu, "%.31s", h->cpu);
    snprintf(out->family, sizeof out->family, "%.31s", h->family);
    snprintf(out->numerics, sizeof out->numerics, "%.47s", h->numerics);
    out->experts =
        (uint64_t)(h->range.all ? h->n_layers : h->range.to - h->range.from) * h->n_experts;
}

static void measure(struct query *l, struct ingle_worker_seen *out)
{
    const uint32_t layer = l->hello.range.all ? 0 : l->hello.range.from;
    uint64_t ns, work;
    if (!agree(l)) {
        snprintf(out->no_rates, sizeof out->no_rates, "%.239s", l->why);
        return;
    }
    out->trip_us = measure_trip(l, &out->resident);
    bool ok = true;
    for (int i = 0; ok && i < ROUNDS; i++) /* after the first time it is in memory */
        ok = request_rows(l, layer, 1, &ns, &work);
    out->expert_us = ok ? (double)work * 1e-3 : 0;
    out->socket_bytes_per_s = ok ? measure_rate(l, layer) : 0;
    if (!(out->socket_bytes_per_s > 0))
        snprintf(out->no_rates, sizeof out->no_rates, "%.239s", l->why);
    else if (share(l, out->no_share, sizeof out->no_share))
        out->shared_bytes_per_s = measure_rate(l, layer);
}

ingle_status ingle_worker_look(const char *address, struct ingle_model *m,
                               const struct ingle_engine_options *o, struct ingle_worker_seen *out,
                               struct ingle_error *error)
{
    struct query l = {.address = address};
    struct err err;
    double ms = 0;
    ingle_status st = greet(&l, o, &ms, &err);
    if (!st) {
        copy_hello(&l.hello, out);
        out->connect_ms = ms;
        const char *slow, *cipher = link_cipher(l.link, NULL, &slow);
        snprintf(out->cipher, sizeof out->cipher, "%s", cipher ? cipher : "");
        snprintf(out->slow, sizeof out->slow, "%s", slow ? slow : "");
        st = m ? compare(&l, m, o, out, &err) : INGLE_OK;
    }
    if (!st)
        measure(&l, out);
    if (!st)
        (void)say(&l, &(struct link_head){.kind = LINK_BYE}, NULL, 0);
    link_close(l.link);
    link_share_close(&l.share);
    return engine_say(error, st, &err);
}
