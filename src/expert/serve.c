/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve - a worker's side: who asks, and what is computed for them.
 *
 * A peer is known by what the carrier calls its connection.  One that breaks a rule gets a reason
 * and no more answers; a new connection begins anew.  What a message says is checked by
 * link_head_read() and link_eval_read() before any of it is used.
 *
 * EVALs wait in a ring, so that a CANCEL that is after them is seen before they are computed.
 * While one is computed, messages are taken in between operations and their pieces: a CANCEL of it
 * ends it there, all others wait until it is done.
 */
#define _POSIX_C_SOURCE 200809L
#include "expert/serve.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

enum {
    PEERS = 64,
    TURN_MS = 100,
    MOST_PAIRS = 4096,
    LEAST_PAIRS = 64,
    MOST_ROWS = 2048,
    RESULT_BYTES = 64 << 20,
    WAITING = 16,
    PROMPT_ROWS = 8
};
#define HAVE_NS ((uint64_t)500000000) /* from one HAVE to the next */
#define PIECE_NS ((uint64_t)5000000)  /* about so long a CANCEL waits */

struct peer {
    struct link_peer id;
    uint64_t received_ns; /* 0: there is none */
    bool agreed, closed;
    bool hung_up;            /* the connection is: it is forgotten when nothing of it is computed */
    struct link_share share; /* of an engine on this host */
    bool places, wants; /* it has sent a PLACE; it is to have a HAVE */
};

/* An EVAL that came. */
struct waiting {
    struct link_in in;
    struct link_head h;
    bool cancelled;
};

struct expert_serve {
    struct expert_serve_options o;
    struct link_hello hello;
    struct link_shape shape;
    struct device *d;
    struct link *link;
    struct peer peer[PEERS];
    struct waiting waiting[WAITING]; /* a ring: n_waiting from first on */
    int first, n_waiting;
    /* a ring: n_received from first_received on, that came while one was computed */
    struct link_in received[WAITING];
    int first_received, n_received;
    struct device_between between;   /* looks for messages */
    /* Sync: one thread; atomic for the device: what is computed ends */
    atomic_bool halt;
    bool dropped;                    /* it is not wanted any more */
    /* [LINK_SHARE_PLACE]: of an EVAL in shared memory, which may change */
    uint8_t *copy;
    /* bits as last sent, then those of now: link_have_bytes() each */
    uint8_t *have;
    uint64_t have_ns, start_ns;
    struct expert_serve_counts n;
};

/* ---- opening ---- */

static ingle_status reserve(struct expert_serve *s, struct err *err);

ingle_status expert_serve_open(struct expert_serve **out, struct device *d,
                               const struct expert_serve_options *o, struct err *err)
{
    struct expert_serve *s = mem_zalloc(sizeof *s);
    struct expert_store_counts store;
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a worker");
    s->o = *o;
    s->d = d;
    s->hello = *o->hello;
    expert_store_count(o->store, &store);
    const int64_t fit = RESULT_BYTES / ((int64_t)s->hello.hidden * (int64_t)sizeof(float));
    s->hello.most_pairs = (uint32_t)num_max(LEAST_PAIRS, num_min(MOST_PAIRS, fit));
    s->hello.most_rows = (uint32_t)num_min(MOST_ROWS, s->hello.most_pairs);
    s->hello.slots = store.slots;
    s->hello.budget_bytes = store.slot_bytes;
    s->shape = (struct link_shape){s->hello.n_layers, s->hello.n_experts, s->hello.hidden,
                                   s->hello.most_rows, s->hello.most_pairs};
    const struct link_options l = {.address = o->address,
                                   .key_file = o->key_file,
                                   .plain = o->plain,
                                   .most_bytes = LINK_STRANGER_BYTES,
                                   .strangers = true};
    s->start_ns = clock_now();
    atomic_init(&s->halt, false);
    s->have = mem_calloc(2, link_have_bytes(&s->shape));
    s->copy = mem_big_alloc(LINK_SHARE_PLACE);
    ingle_status st = s->have && s->copy
                          ? reserve(s, err)
                          : err_set(err, INGLE_NOMEM, "no memory for what a worker has");
    if (!st)
        st = link_listen(&s->link, &l, err);
    if (st)
        expert_serve_close(s);
    else
        *out = s;
    return st;
}

void expert_serve_close(struct expert_serve *s)
{
    if (!s)
        return;
    for (int i = 0; s->link && i < PEERS; i++) {
        const struct link_head h = {.kind = LINK_BYE};
        struct link_out m;
        if (s->peer[i].received_ns && !s->peer[i].closed && link_out_init(&m, 0))
            (void)!link_send(s->link, &s->peer[i].id, &h, &m);
    }
    for (; s->n_waiting > 0; s->n_waiting--)
        link_in_release(&s->waiting[s->first++ % WAITING].in);
    for (; s->n_received > 0; s->n_received--)
        link_in_release(&s->received[s->first_received++ % WAITING]);
    link_close(s->link);
    for (int i = 0; i < PEERS; i++)
        link_share_close(&s->peer[i].share);
    mem_big_free(s->copy, LINK_SHARE_PLACE);
    mem_free(s->have);
    mem_free(s);
}

const char *expert_serve_name(const struct expert_serve *s)
{
    return link_name(s->link);
}

void expert_serve_count(const struct expert_serve *s, struct expert_serve_counts *out)
{
    *out = s->n;
}

/* ---- computing ---- */

/* What an EVAL takes from the arena, in its order. */
struct work {
    struct expert_eval v;
    struct rows y, out;
    float *weight; /* [n_rows * n_used]: of sums */
    int32_t *filled;
};

static void lay_out(const struct expert_serve *s, const struct expert_layer *l, int64_t n_rows,
                    int64_t n_pairs, struct work *w)
{
    struct device *d = s->d;
    *w = (struct work){.v = {.d = d, .layer = l}};
    struct expert_eval *v = &w->v;
    v->x = device_rows(d, n_rows, s->shape.hidden);
    v->choice.first = device_bytes(d, (size_t)(l->n + 2) * sizeof(int32_t));
    v->choice.row = device_bytes(d, (size_t)n_pairs * sizeof(int32_t));
    v->choice.slot = device_bytes(d, (size_t)n_pairs * sizeof(int32_t));
    w->weight = device_bytes(d, (size_t)n_pairs * sizeof(float));
    w->filled = device_bytes(d, (size_t)n_rows * sizeof(int32_t));
    w->out = v->out = device_rows(d, n_rows, s->shape.hidden);
    w->y = device_rows(d, n_pairs, s->shape.hidden);
    v->tier = expert_tier_here(l);
    v->choice.k = 1; /* nobody asks */
}

static void compute(struct work *w)
{
    if (w->v.tier->begin)
        w->v.tier->begin(&w->v);
    w->v.tier->end(&w->v, w->y);
}

static bool is_of(const struct link_in *in, const struct link_peer *p)
{
    return in->from.n == p->n && memcmp(in->from.id, p->id, p->n) == 0;
}

/* Whether a message says that what is computed is not wanted: its CANCEL, or its engine's BYE. */
static bool drops_first(const struct expert_serve *s, const struct link_in *in)
{
    const struct waiting *w = &s->waiting[s->first];
    struct link_head h;
    if (in->n_payload || !is_of(in, &w->in.from) ||
        link_head_read(in->head, in->n_head, in->payload, 0, &s->shape, &h, NULL))
        return false;
    return (h.kind == LINK_CANCEL && h.tag == w->h.tag) || h.kind == LINK_BYE;
}

static void mark_hung_up(struct expert_serve *s, const struct link_peer *id)
{
    for (int i = 0; i < PEERS; i++)
        if (s->peer[i].received_ns && s->peer[i].id.n == id->n &&
            memcmp(s->peer[i].id.id, id->id, id->n) == 0)
            s->peer[i].hung_up = true;
}

/* Between operations and their pieces. */
static void overhear(void *arg)
{
    struct expert_serve *s = arg;
    char why[8];
    while (s->n_received < WAITING) {
        struct link_in *in = &s->received[(s->first_received + s->n_received) % WAITING];
        const enum link_event what = link_wait(s->link, 0, in, why, sizeof why);
        if (what == LINK_DOWN) {
            s->dropped = s->dropped || is_of(in, &s->waiting[s->first].in.from);
            mark_hung_up(s, &in->from);
            continue;
        }
        if (what != LINK_MESSAGE)
            break;
        s->n_received++;
        s->dropped = s->dropped || drops_first(s, in);
    }
    if (s->dropped || atomic_load_explicit(s->o.stop, memory_order_relaxed))
        atomic_store_explicit(&s->halt, true, memory_order_relaxed);
}

/* Scratch of the largest EVAL. */
static ingle_status reserve(struct expert_serve *s, struct err *err)
{
    size_t most = 0;
    for (uint32_t i = 0; i < s->hello.n_layers; i++) {
        struct work w;
        if (!s->o.layer[i])
            continue;
        device_dry_begin(s->d);
        lay_out(s, s->o.layer[i], s->hello.most_rows, s->hello.most_pairs, &w);
        compute(&w);
        const size_t n = device_dry_end(s->d);
        most = n > most ? n : most;
    }
    return device_arena_reserve(s->d, most + 4096, err);
}

/* Pairs as they came: by expert. */
static void read_pairs(const struct link_head *h, const struct link_eval *e, struct work *w)
{
    struct device_routed *p = &w->v.choice;
    const int64_t n = w->v.layer->n;
    memset(p->first, 0, (size_t)(n + 2) * sizeof *p->first);
    for (uint32_t i = 0; i < h->n_pairs; i++) {
        p->first[link_u32(e->expert + 4 * (size_t)i) + 1]++;
        p->row[i] = (int32_t)link_u32(e->row + 4 * (size_t)i);
    }
    for (int64_t k = 0; k < n; k++)
        p->first[k + 1] += p->first[k];
    p->first[n + 1] = p->first[n];
}

/* Of sums: which pairs a row has, by ascending expert.  False: not each has as many as the
 * others. */
static bool read_sums(const struct link_head *h, const struct link_eval *e, struct work *w)
{
    memset(w->filled, 0, h->n_rows * sizeof *w->filled);
    for (uint32_t i = 0; i < h->n_pairs; i++) {
        const int32_t row = w->v.choice.row[i];
        if (w->filled[row] >= e->n_used)
            return false;
        const int64_t at = row * e->n_used + w->filled[row]++;
        w->v.choice.slot[at] = (int32_t)i;
        memcpy(&w->weight[at], e->weight + 4 * (size_t)i, sizeof(float));
    }
    return true; /* as many pairs as places */
}

static void wrote_pairs(struct device *d, const struct link_head *h, const struct work *w)
{
    const struct device_routed *p = &w->v.choice;
    device_wrote(d, p->first, (size_t)(w->v.layer->n + 2) * sizeof *p->first);
    device_wrote(d, p->row, h->n_pairs * sizeof *p->row);
    device_wrote(d, p->slot, h->n_pairs * sizeof *p->slot);
    device_wrote(d, w->weight, h->n_pairs * sizeof *w->weight);
}

static ingle_status compute_eval(struct expert_serve *s, const struct link_head *h,
                                 const struct link_eval *e, struct work *w, struct err *err)
{
    const size_t n = (size_t)s->shape.hidden * sizeof(float);
    s->dropped = false;
    atomic_store_explicit(&s->halt, false, memory_order_relaxed);
    device_begin(s->d, &s->halt);
    /* for the age of uses */
    device_prompt_rows(s->d, h->n_rows, h->n_rows > PROMPT_ROWS ? h->n_rows : 0);
    lay_out(s, s->o.layer[h->layer], h->n_rows, h->n_pairs, w);
    if (!device_runs(s->d) || !w->v.choice.first || !w->filled || !w->v.x.at) {
        const ingle_status st = device_status(s->d, err);
        /* cannot be: it was planned */
        return st ? st : err_set(err, INGLE_LIMIT, "the scratch of a worker is too small");
    }
    w->v.act = h->flags & LINK_SILU ? DEVICE_SILU : DEVICE_GELU;
    w->v.limit = e->limit;
    for (uint32_t r = 0; r < h->n_rows; r++)
        memcpy(w->v.x.at + r * w->v.x.stride, e->x + r * n, n);
    device_wrote_rows(s->d, w->v.x);
    read_pairs(h, e, w);
    if ((h->flags & LINK_SUM) && !read_sums(h, e, w))
        return err_set(err, INGLE_FORMAT, "an EVAL has rows with more than %lld experts",
                       (long long)e->n_used);
    wrote_pairs(s->d, h, w);
    s->between = (struct device_between){
        .fn = overhear, .arg = s, .piece_ns = h->n_rows > PROMPT_ROWS ? PIECE_NS : 0};
    device_set_between(s->d, &s->between);
    compute(w);
    device_set_between(s->d, NULL);
    if (h->flags & LINK_SUM)
        device_weighted_sum(s->d, w->out, w->y, w->v.choice.slot, w->weight, e->n_used);
    device_read_rows(s->d, h->flags & LINK_SUM ? w->out : w->y);
    (void)device_runs(s->d);
    return device_status(s->d, err);
}

/* ---- answers ---- */

/* tag 0: the peer gets no more answers. */
static void refuse(struct expert_serve *s, struct peer *p, uint64_t tag, const char *why)
{
    const size_t n = strnlen(why, LINK_MAX_TEXT);
    const struct link_head h = {.kind = LINK_FAIL, .tag = tag};
    struct link_out m;
    p->closed = p->closed || !tag;
    if (p->closed)
        link_share_close(&p->share);
    s->n.refused += !tag;
    s->n.failed += tag != 0;
    if (link_out_init(&m, n)) {
        memcpy(m.payload, why, n);
        (void)!link_send(s->link, &p->id, &h, &m);
    }
    if (!tag)
        report(s->o.sink, INGLE_REPORT_WARN, "worker", expert_serve_name(s),
               "a peer is not answered any more: %s", why);
}

/* The longest message that an engine may send: rows, or which experts are to stay. */
static uint64_t longest(const struct expert_serve *s)
{
    const struct link_head h = {.kind = LINK_EVAL,
                                .n_rows = s->hello.most_rows,
                                .n_pairs = s->hello.most_pairs,
                                .flags = LINK_SUM};
    const uint64_t rows = link_eval_bytes(&h, &s->shape);
    const uint64_t most = LINK_MAX_PLACES * sizeof(uint32_t);
    return rows > most ? rows : most;
}

static void greet(struct expert_serve *s, struct peer *p, const struct link_in *in, bool looks)
{
    struct link_hello theirs;
    struct link_out m;
    struct err err;
    ingle_status st = link_hello_read(in->payload, in->n_payload, &theirs, &err);
    if (!st && !looks)
        st = link_hello_agree(&s->hello, &theirs, &err);
    if (st) {
        refuse(s, p, 0, err.msg);
        return;
    }
    p->agreed = p->agreed || !looks;
    if (p->agreed)
        link_admit(s->link, &p->id, longest(s));
    s->n.peers += !looks;
    const struct link_head h = {.kind = LINK_HELLO};
    if (!link_out_init(&m, LINK_HELLO_BYTES))
        return;
    link_hello_write(&s->hello, m.payload);
    const char *slow;
    (void)link_cipher(s->link, &p->id, &slow);
    if (link_send(s->link, &p->id, &h, &m) && !looks)
        report(s->o.sink, INGLE_REPORT_NOTE, "worker", expert_serve_name(s),
               "an engine is there (ingle %s, %s)%s%s", theirs.engine, theirs.cpu,
               slow ? "; rows are encrypted by ChaCha20-Poly1305, not by AES-256-GCM: " : "",
               slow ? slow : "");
}

static void send_result(struct expert_serve *s, const struct peer *p, const struct link_head *asked,
                        int slot, const struct work *w, struct link_result *r)
{
    const bool sum = (asked->flags & LINK_SUM) != 0;
    const struct rows from = sum ? w->out : w->y;
    const size_t n = (size_t)s->shape.hidden * sizeof(float);
    struct link_head h = *asked;
    struct link_out m;
    h.kind = LINK_RESULT;
    const bool shared = (asked->flags & LINK_SHARED) != 0;
    if (!link_out_take(s->link, &m,
                       shared ? sizeof(uint64_t) : link_result_bytes(&h, &s->shape)))
        return; /* the engine would call it late */
    uint8_t *const at = shared ? link_share_place(&p->share, slot, true) : m.payload;
    if (shared)
        memcpy(m.payload, &(uint64_t){(uint64_t)slot}, sizeof(uint64_t));
    link_result_begin(at, r);
    for (int64_t i = 0; i < from.n; i++)
        memcpy(at + LINK_RESULT_BYTES + (size_t)i * n, from.at + i * from.stride, n);
    s->n.evals++;
    s->n.pairs += asked->n_pairs;
    (void)!link_send(s->link, &p->id, &h, &m);
}

/* An EVAL in shared memory: where its copy is, and how long it is by its head. */
static ingle_status copy_shared(const struct expert_serve *s, const struct peer *p,
                                const struct link_head *h, const uint8_t **payload, size_t *n,
                                int *slot, struct err *err)
{
    const size_t bytes = link_eval_bytes(h, &s->shape), back = link_result_bytes(h, &s->shape);
    const ingle_status st = link_share_slot(*payload, *n, slot, err);
    if (st)
        return st;
    if (!p->share.at)
        return err_set(err, INGLE_FORMAT, "rows lie in shared memory, of which there is none");
    if (!bytes || bytes > LINK_SHARE_PLACE || !back || back > LINK_SHARE_PLACE)
        return err_set(err, INGLE_FORMAT,
                       "rows of %zu bytes and results of %zu do not fit into %d of shared memory",
                       bytes, back, LINK_SHARE_PLACE);
    memcpy(s->copy, link_share_place(&p->share, *slot, false), bytes);
    *payload = s->copy;
    *n = bytes;
    return INGLE_OK;
}

static void answer(struct expert_serve *s, struct peer *p, const struct link_head *h,
                   const struct link_in *in)
{
    struct link_eval e;
    struct work w;
    struct err err;
    struct expert_store_counts before, after;
    const uint8_t *payload = in->payload;
    size_t n = in->n_payload;
    int slot = 0;
    if (((h->flags & LINK_SHARED) && copy_shared(s, p, h, &payload, &n, &slot, &err)) ||
        link_eval_read(h, &s->shape, payload, n, &e, &err)) {
        refuse(s, p, 0, err.msg);
        return;
    }
    if (!s->o.layer[h->layer] || !link_range_has(&s->hello.range, h->layer)) {
        snprintf(err.msg, sizeof err.msg, "layer %u is none of those that are computed here",
                 h->layer);
        refuse(s, p, 0, err.msg);
        return;
    }
    const uint64_t start = clock_now();
    expert_store_count(s->o.store, &before);
    const ingle_status st = compute_eval(s, h, &e, &w, &err);
    if (st) {
        s->n.cancelled += s->dropped;
        s->n.stopped += s->dropped;
        refuse(s, p, st == INGLE_FORMAT ? 0 : h->tag,
               s->dropped ? "it was cancelled while it was computed" : err.msg);
        return;
    }
    expert_store_count(s->o.store, &after);
    struct link_result r = {.compute_ns = clock_now() - start,
                            .stall_ns = after.stall_ns - before.stall_ns,
                            .hits = (uint32_t)(after.hits - before.hits),
                            .misses = (uint32_t)(after.misses - before.misses)};
    send_result(s, p, h, slot, &w, &r);
}

static struct peer *peer_of(struct expert_serve *s, const struct link_peer *id)
{
    struct peer *oldest = &s->peer[0];
    for (int i = 0; i < PEERS; i++) {
        struct peer *p = &s->peer[i];
        if (p->received_ns && p->id.n == id->n && memcmp(p->id.id, id->id, id->n) == 0)
            return p;
        if (p->agreed != oldest->agreed ? oldest->agreed : p->received_ns < oldest->received_ns)
            oldest = p; /* engines stay; there are as many places as connections */
    }
    link_share_close(&oldest->share);
    *oldest = (struct peer){.id = *id};
    return oldest;
}

static void send_stats(struct expert_serve *s, const struct peer *p)
{
    struct expert_store_counts c;
    struct link_out m;
    const struct link_head h = {.kind = LINK_STATS};
    struct link_stats now = {.evals = s->n.evals,
                             .pairs = s->n.pairs,
                             .failed = s->n.failed,
                             .cancelled = s->n.cancelled,
                             .up_ns = clock_now() - s->start_ns};
    expert_store_count(s->o.store, &c);
    for (int i = 0; i < PEERS; i++)
        now.peers += s->peer[i].received_ns && s->peer[i].agreed && !s->peer[i].closed;
    now.slots = c.slots;
    now.resident = c.resident;
    now.bad = c.bad;
    now.read_bytes = c.read_bytes;
    now.stall_ns = c.stall_ns;
    if (!link_out_take(s->link, &m, LINK_STATS_BYTES))
        return;
    link_stats_write(&now, m.payload);
    (void)!link_send(s->link, &p->id, &h, &m);
}

/* Experts of layers that are not computed here are left out. */
static void place(struct expert_serve *s, struct peer *p, const struct link_in *in)
{
    const size_t n = in->n_payload / 4;
    for (size_t i = 0; i < n; i++) {
        int64_t layer, e;
        link_place_at(in->payload, i, &layer, &e);
        if (s->o.layer[layer])
            expert_store_place(s->o.store, s->o.layer[layer]->home, e, (double)i / (double)n);
    }
    p->places = p->wants = true;
    s->n.places += n;
}

/* To those that have placed experts: what is there, when it has changed. */
static void send_have(struct expert_serve *s, uint64_t now)
{
    const size_t n = link_have_bytes(&s->shape);
    bool wants = false, places = false;
    for (int i = 0; i < PEERS; i++) {
        wants = wants || s->peer[i].wants;
        places = places || s->peer[i].places;
    }
    if (!places || (!wants && now - s->have_ns < HAVE_NS))
        return;
    uint8_t *bits = s->have + n;
    s->have_ns = now;
    memset(bits, 0, n);
    for (int64_t l = 0; l < s->shape.n_layers; l++)
        for (int64_t e = 0; s->o.layer[l] && e < s->shape.n_experts; e++) {
            const size_t i = (size_t)(l * s->shape.n_experts + e);
            bits[i / 8] |= (uint8_t)(expert_store_has(s->o.layer[l]->home, e) << i % 8);
        }
    const bool changed = memcmp(s->have, bits, n) != 0;
    memcpy(s->have, bits, n);
    for (int i = 0; i < PEERS; i++) {
        struct peer *p = &s->peer[i];
        struct link_out m;
        if (!p->places || p->closed || !(p->wants || changed) || !link_out_take(s->link, &m, n))
            continue;
        p->wants = false;
        memcpy(m.payload, bits, n);
        (void)!link_send(s->link, &p->id, &(struct link_head){.kind = LINK_HAVE}, &m);
    }
}

/* An engine whose memory cannot be had gets no answer, and sends rows through the socket. */
static void share(struct expert_serve *s, struct peer *p, const struct link_in *in)
{
    struct err err;
    struct link_out m;
    link_share_close(&p->share);
    if (link_share_open(&p->share, in->payload, &err)) {
        report(s->o.sink, INGLE_REPORT_NOTE, "worker", expert_serve_name(s),
               "rows go through the socket: %s", err.msg);
        return;
    }
    if (link_out_init(&m, 0))
        (void)!link_send(s->link, &p->id, &(struct link_head){.kind = LINK_SHARE}, &m);
}

static void forget(struct peer *p)
{
    link_share_close(&p->share);
    *p = (struct peer){0};
}

static struct waiting *waiting_at(struct expert_serve *s, int i)
{
    return &s->waiting[(s->first + i) % WAITING];
}

static void cancel(struct expert_serve *s, const struct peer *p, uint64_t tag)
{
    for (int i = 0; i < s->n_waiting; i++) {
        struct waiting *w = waiting_at(s, i);
        if (w->h.tag == tag && is_of(&w->in, &p->id))
            w->cancelled = true;
    }
}

/* The message at the ring's end.  True: it stays there. */
static bool receive(struct expert_serve *s, struct waiting *w)
{
    const struct link_in *in = &w->in;
    struct err err;
    struct peer *p = peer_of(s, &in->from);
    p->received_ns = clock_now();
    w->cancelled = false;
    if (p->closed)
        return false;
    if (link_head_read(in->head, in->n_head, in->payload, in->n_payload,
                       p->agreed ? &s->shape : NULL, &w->h, &err))
        refuse(s, p, 0, err.msg);
    else if (w->h.kind == LINK_HELLO)
        greet(s, p, in, (w->h.flags & LINK_LOOK) != 0);
    else if (w->h.kind == LINK_EVAL)
        return true;
    else if (w->h.kind == LINK_CANCEL)
        cancel(s, p, w->h.tag);
    else if (w->h.kind == LINK_STATS && !in->n_payload)
        send_stats(s, p);
    else if (w->h.kind == LINK_PLACE)
        place(s, p, in);
    else if (w->h.kind == LINK_SHARE && in->n_payload)
        share(s, p, in);
    else if (w->h.kind == LINK_BYE)
        forget(p);
    else
        refuse(s, p, 0,
               w->h.kind == LINK_JOIN
                   ? "this is a worker for experts, not a stage (ingle worker --stage): its "
                     "address belongs to --experts-worker"
                   : "an engine says what only a worker says");
    return false;
}

/* The EVAL that has waited longest. */
static void answer_first(struct expert_serve *s)
{
    struct waiting *w = waiting_at(s, 0);
    struct peer *p = peer_of(s, &w->in.from);
    p->received_ns = clock_now();
    s->n.cancelled += w->cancelled;
    if (p->agreed && !p->closed) {
        if (w->cancelled)
            refuse(s, p, w->h.tag, "it was cancelled");
        else
            answer(s, p, &w->h, &w->in);
    }
    link_in_release(&w->in);
    s->first = (s->first + 1) % WAITING;
    s->n_waiting--;
}

/* The next message; those that came while something was computed first. */
static bool next_message(struct expert_serve *s, struct link_in *in)
{
    char why[8];
    if (!s->n_received) {
        const enum link_event what =
            link_wait(s->link, s->n_waiting ? 0 : TURN_MS, in, why, sizeof why);
        if (what == LINK_DOWN)
            mark_hung_up(s, &in->from);
        return what == LINK_MESSAGE;
    }
    link_in_move(in, &s->received[s->first_received]);
    s->first_received = (s->first_received + 1) % WAITING;
    s->n_received--;
    return true;
}

void expert_serve_run(struct expert_serve *s)
{
    /* in this turn: whoever talks without end does not keep others from their answers */
    int received = 0;
    while (!atomic_load_explicit(s->o.stop, memory_order_relaxed)) {
        struct waiting *next = waiting_at(s, s->n_waiting);
        if (s->n_waiting < WAITING && received < WAITING && next_message(s, &next->in)) {
            if (receive(s, next))
                s->n_waiting++;
            else
                link_in_release(&next->in);
            received++;
            continue;
        }
        received = 0;
        if (s->n_waiting)
            answer_first(s);
        for (int i = 0; i < PEERS; i++)
            if (s->peer[i].hung_up)
                forget(&s->peer[i]);
        const uint64_t now = clock_now();
        expert_store_tend(s->o.store, now);
        send_have(s, now);
    }
}
