/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve - a stage: the layers of one engine's steps, and its part of that engine's pages.
 *
 * One thread does everything.  What the engine says is done in its order: a step whose rows are
 * still at the stage before keeps all after it waiting.  An engine that breaks a rule gets a reason
 * and no more answers.  When it has left, its pages are dropped.
 */
#define _POSIX_C_SOURCE 200809L
#include "stage/chain.h"
#include "stage/step.h"
#include "stage/store.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    TURN_MS = 100,
    STORE_MS = 2,
    SPARE_BYTES = 64 << 20,
    MOST_WAITING = 4096,
    MOST_RECEIVED = 64,
    FLYING = 8 /* messages of steps that memory is there for */
};
#define MOST_WAITING_BYTES ((size_t)4 * LINK_MAX_BYTES)
#define ROOM_NS UINT64_C(10000000000)

/* What the engine has said and is not done yet. */
struct waiting {
    struct waiting *next;
    struct link_head h;
    struct link_in in;
    bool dropped; /* a step that is not wanted any more */
};

struct stage_serve {
    struct stage_serve_options o;
    struct stage_hello hello;
    struct device *d;
    struct link *link;
    bool asked; /* for other layers */
    bool over;  /* the engine has ended, and nobody else is served */
    struct stage_asked ask;
    struct kv_spec spec;
    struct kv_pool *pool;
    struct kv_timeline **timeline; /* [n_timelines]: of the spans of a step */
    int64_t n_timelines;
    size_t cap_timelines;
    int64_t border_in, border_out;
    struct link_peer peer;
    bool joined;
    struct stage_hello engine; /* who has joined, ... */
    uint64_t number;           /* ... for the so-manieth time */
    struct waiting *first, *last, *spare; /* spare: used by later messages */
    struct work *work; /* owned: the memory of a step */
    size_t n_waiting, waiting_bytes;
    struct stage_chain chain;
    int64_t reserved_rows;
    size_t planned_bytes; /* of scratch, as it was started */
    struct stage_pages pages;
    struct stage_store *store; /* or NULL */
    bool keeps; /* something goes on there */
    struct err broken; /* of pages, until they are taken anew: steps fail with it */
    struct stage_counts n;
};

/* A step.  Its memory stays for later ones, and grows to what the largest one needs. */
struct work {
    struct stage_step step;
    struct family_span *span;
    struct family_mirror *mirror;
    int32_t *token; /* [n_rows] */
    float *taps;    /* of its layers that are asked for: f32 [n][n_rows][tap_width] */
    size_t cap_spans, cap_mirrors, cap_tokens, cap_taps;
    struct rows out; /* those that go on, in their order */
    bool bad;        /* some row is no number */
    struct device *d;
    uint32_t from, to;  /* layers of the stage */
    int64_t tap_width, n_taps;
};

static void work_free(struct work *w)
{
    if (!w)
        return;
    stage_step_release(&w->step);
    mem_free(w->span);
    mem_free(w->mirror);
    mem_free(w->token);
    mem_free(w->taps);
    mem_free(w);
}

static const struct link_shape any_shape = {1, 1, 1, 1, 1};

/* ---- opening ---- */

static ingle_status reserve(struct stage_serve *s, int64_t max_rows, int64_t n_ctx,
                            struct err *err)
{
    const size_t n = stage_dry_run(s->o.family, s->o.self, s->o.info, s->d, &s->spec, n_ctx,
                                   max_rows, s->hello.from, s->hello.to);
    ingle_status st = device_status(s->d, err);
    if (!st)
        st = device_arena_reserve(s->d, n, err);
    if (!st)
        s->reserved_rows = max_rows;
    if (!st && !s->planned_bytes)
        s->planned_bytes = n;
    return st;
}

/* Longer steps than it was started for: in the memory that the engine leaves of that for pages. */
static ingle_status reserve_more(struct stage_serve *s, const struct stage_hello *engine,
                                 struct err *err)
{
    const size_t n = stage_dry_run(s->o.family, s->o.self, s->o.info, s->d, &s->spec,
                                   s->hello.n_ctx, engine->max_rows, s->hello.from, s->hello.to);
    const double left = (double)(s->hello.budget_bytes - engine->budget_bytes) * s->o.share;
    const ingle_status st = device_status(s->d, err);
    if (st)
        return st;
    if (n > s->planned_bytes && (double)(n - s->planned_bytes) > left)
        return err_set(err, INGLE_LIMIT,
                       "steps of %u rows take %llu MiB, %llu MiB are there (%lld rows): a smaller "
                       "--chunk at the engine, or more --memory here",
                       engine->max_rows, (unsigned long long)(n >> 20),
                       (unsigned long long)((s->planned_bytes + (size_t)left) >> 20),
                       (long long)s->hello.max_rows);
    return engine->max_rows > s->reserved_rows ? reserve(s, engine->max_rows, s->hello.n_ctx, err)
                                               : INGLE_OK;
}

/* Streams that are kept here: those of its layers, and those that they borrow. */
static void mark(struct stage_serve *s)
{
    for (uint32_t i = 0; i < s->spec.n_streams; i++) {
        struct kv_stream *st = &s->spec.stream[i];
        st->twin = st->layer < s->hello.from && s->o.family->borrows &&
                   s->o.family->borrows(s->o.self, i, s->hello.from, s->hello.to);
    }
}

/* For messages that wait. */
static bool add_spares(struct stage_serve *s)
{
    for (int i = 0; i < FLYING; i++) {
        struct waiting *w = mem_zalloc(sizeof *w);
        if (!w)
            return false;
        w->next = s->spare;
        s->spare = w;
    }
    return true;
}

ingle_status stage_serve_open(struct stage_serve **out, struct device *d,
                              const struct stage_serve_options *o, struct err *err)
{
    struct stage_serve *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a stage");
    s->o = *o;
    s->chain.o = &s->o;
    s->d = d;
    s->hello = *o->hello;
    s->work = mem_zalloc(sizeof *s->work);
    if (!s->work || !add_spares(s)) {
        stage_serve_close(s);
        return err_set(err, INGLE_NOMEM, "no memory for a stage");
    }
    s->work->from = s->hello.from;
    s->work->to = s->hello.to;
    s->border_in = o->family->border(o->self, s->hello.from);
    s->border_out = o->family->border(o->self, s->hello.to);
    ingle_status st = o->family->kv(o->self, o->kv, &s->spec, err);
    if (!st) {
        mark(s);
        s->hello.pages = stage_pages_hash(&s->spec);
        st = kv_pool_create(&s->pool, &s->spec, UINT64_MAX / 4, o->sink, err);
    }
    if (!st)
        st = reserve(s, s->hello.max_rows, s->hello.n_ctx, err);
    s->hello.keeps = o->store != NULL;
    if (!st && o->store)
        st = stage_store_open(&s->store, o, &s->spec, &s->pages, err);
    const struct link_options l = {.address = o->address,
                                   .key_file = o->key_file,
                                   .plain = o->plain,
                                   .most_bytes = LINK_STRANGER_BYTES,
                                   .strangers = true};
    s->link = o->link;
    if (!st && !s->link)
        st = link_listen(&s->link, &l, err);
    if (st) {
        stage_serve_close(s);
        return st;
    }
    if (o->greet)
        stage_hello_send(s->link, o->greet, &s->hello, 0);
    *out = s;
    return st;
}

static void send_empty(struct stage_serve *s, const struct link_peer *to, enum link_kind kind)
{
    const struct link_head h = {.kind = kind};
    struct link_out m;
    if (link_out_init(&m, 0))
        (void)!link_send(s->link, to, &h, &m);
}

static void pop(struct stage_serve *s)
{
    struct waiting *w = s->first;
    s->first = w->next;
    s->last = s->first ? s->last : NULL;
    s->n_waiting--;
    s->waiting_bytes -= w->in.n_payload;
    link_in_release(&w->in);
    w->next = s->spare;
    s->spare = w;
}

/* The engine has left: its pages are dropped. */
static void leave(struct stage_serve *s)
{
    while (s->first)
        pop(s);
    stage_chain_clear(&s->chain);
    for (int64_t i = 0; i < s->n_timelines; i++)
        kv_timeline_clear(s->timeline[i]);
    stage_store_leave(s->store);
    stage_pages_clear(&s->pages);
    s->broken = (struct err){0};
    s->joined = false;
}

void stage_serve_close(struct stage_serve *s)
{
    if (!s)
        return;
    if (s->joined)
        send_empty(s, &s->peer, LINK_BYE);
    leave(s);
    stage_store_close(s->store);
    while (s->spare) {
        struct waiting *w = s->spare;
        s->spare = w->next;
        mem_free(w);
    }
    work_free(s->work);
    if (!s->o.link)
        link_close(s->link);
    for (int64_t i = 0; i < s->n_timelines; i++)
        kv_timeline_free(s->timeline[i]);
    mem_free(s->timeline);
    kv_pool_free(s->pool);
    kv_spec_release(&s->spec);
    mem_free(s);
}

const char *stage_serve_name(const struct stage_serve *s)
{
    return link_name(s->link);
}

void stage_serve_count(const struct stage_serve *s, struct stage_counts *out)
{
    *out = s->n;
    out->page_bytes = s->pages.n_bytes;
}

/* ---- answers ---- */

/* tag 0: nothing more is answered. */
static void refuse(struct stage_serve *s, const struct link_peer *to, uint64_t tag,
                   const char *why)
{
    const size_t n = strnlen(why, LINK_MAX_TEXT);
    const struct link_head h = {.kind = LINK_FAIL, .tag = tag};
    struct link_out m;
    s->n.refused += !tag;
    s->n.failed += tag != 0;
    if (link_out_init(&m, n)) {
        memcpy(m.payload, why, n);
        (void)!link_send(s->link, to, &h, &m);
    }
    if (tag)
        return;
    report(s->o.sink, INGLE_REPORT_WARN, "stage", stage_serve_name(s),
           "an engine is not answered any more: %s", why);
    if (s->joined && to->n == s->peer.n && memcmp(to->id, s->peer.id, to->n) == 0)
        leave(s);
}

static bool is_peer(const struct stage_serve *s, const struct link_peer *p)
{
    return s->joined && p->n == s->peer.n && memcmp(p->id, s->peer.id, p->n) == 0;
}

/* To the engine; takes m, and waits for room. */
static void say(struct stage_serve *s, const struct link_head *h, struct link_out *m)
{
    const uint64_t start = clock_now();
    const struct timespec nap = {.tv_nsec = 200000};
    while (!link_has_room(s->link, &s->peer) && link_is_up(s->link, &s->peer) &&
           clock_now() - start < ROOM_NS && !atomic_load(s->o.stop))
        nanosleep(&nap, NULL);
    (void)!link_send(s->link, &s->peer, h, m);
}

static void say_of_store(void *arg, const struct link_head *h, struct link_out *m)
{
    say(arg, h, m);
}

/* How it is with a neighbour. */
static void report_next(struct stage_serve *s, uint32_t flags, const char *why)
{
    const size_t n = strnlen(why, LINK_MAX_TEXT);
    const struct link_head h = {.kind = LINK_NEXT, .tag = s->number, .flags = flags};
    struct link_out m;
    if (!link_out_init(&m, n))
        return;
    memcpy(m.payload, why, n);
    say(s, &h, &m);
}

static ingle_status agree(struct stage_serve *s, const struct stage_hello *e, struct err *err)
{
    const ingle_status st = stage_hello_agree(e, &s->hello, err);
    if (st || e->look == STAGE_LOOKS)
        return st;
    if (s->joined && s->engine.instance != e->instance)
        return err_set(err, INGLE_UNSUP,
                       "this stage serves another engine (ingle %s, %s): one at a time",
                       s->engine.engine, s->engine.cpu);
    if (e->look == STAGE_ASSIGNS && s->hello.open && e->from)
        return INGLE_OK;
    if (e->from != s->hello.from || e->to != s->hello.to)
        return err_set(err, INGLE_UNSUP, "layers %u:%u are asked of a stage that has %u:%u",
                       e->from, e->to, s->hello.from, s->hello.to);
    if (e->budget_bytes > s->hello.budget_bytes)
        return err_set(err, INGLE_UNSUP,
                       "keys and values of %llu MiB (all layers together) are planned here, of "
                       "%llu MiB there: both ends need the same --ctx, --cache and sessions",
                       (unsigned long long)(e->budget_bytes >> 20),
                       (unsigned long long)(s->hello.budget_bytes >> 20));
    return INGLE_OK;
}

/* Of an engine that has said other layers. */
static void move(struct stage_serve *s, const struct link_in *in, const struct stage_hello *theirs)
{
    struct stage_hello h = s->hello;
    h.from = theirs->from;
    h.to = theirs->to;
    h.loading = true;
    stage_hello_send(s->link, &in->from, &h, 0);
    s->asked = true;
    s->ask = (struct stage_asked){in->from, h.from, h.to, theirs->n_ctx > 1 ? theirs->n_ctx : 0};
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static size_t widest(const struct stage_serve *s)
{
    return (size_t)num_max(s->border_in, s->border_out);
}

/* The longest message that the engine may send: a step, things that happen to pages, a prefix for
 * the files, or a trial. */
static uint64_t most_of_engine(const struct stage_serve *s)
{
    uint64_t n = stage_step_longest(&s->spec, s->engine.max_rows, s->hello.n_ctx,
                                    s->hello.n_layers, s->border_in);
    for (uint32_t g = 0; g < s->spec.n_groups; g++)
        n = most(n, STAGE_OPS_BYTES + STAGE_OP + s->spec.group[g].page_bytes);
    if (s->store)
        n = most(n, stage_store_longest(s->store));
    return most(n, STAGE_TRY_BYTES);
}

static void join(struct stage_serve *s, const struct link_in *in, uint64_t number)
{
    struct stage_hello theirs;
    struct err err;
    ingle_status st = stage_hello_read(in->payload, in->n_payload, &theirs, &err);
    if (!st)
        st = agree(s, &theirs, &err);
    if (!st && theirs.look == STAGE_ASSIGNS &&
        (theirs.from != s->hello.from || theirs.to != s->hello.to)) {
        move(s, in, &theirs);
        return;
    }
    if (!st && !theirs.look && theirs.max_rows > s->hello.max_rows)
        st = reserve_more(s, &theirs, &err);
    if (st) {
        refuse(s, &in->from, 0, err.msg);
        return;
    }
    if (!theirs.look) {
        leave(s);
        s->joined = true;
        s->number = number;
        s->peer = in->from;
        s->engine = theirs;
        s->n.engines++;
        link_admit(s->link, &in->from, most_of_engine(s));
        link_reserve(s->link,
                     stage_step_line(&s->spec, theirs.n_ctx) + sizeof(float) * widest(s), FLYING);
        report(s->o.sink, INGLE_REPORT_NOTE, "stage", stage_serve_name(s),
               "an engine is there (ingle %s, %s)", theirs.engine, theirs.cpu);
    }
    if (theirs.look)
        link_admit(s->link, &in->from, STAGE_TRY_BYTES);
    stage_hello_send(s->link, &in->from, &s->hello, number);
}

/* ---- neighbours ---- */

/* Where the next stage is; nothing: there is none. */
static void aim(struct stage_serve *s, const struct link_in *in)
{
    uint8_t hello[STAGE_CHAIN];
    struct wire w = {.at = hello, .cap = sizeof hello};
    stage_put_u64(&w, s->engine.instance);
    stage_put_u32(&w, s->hello.to);
    stage_put_u32(&w, (uint64_t)s->border_out);
    stage_chain_aim(&s->chain, in->payload, in->n_payload, s->number, hello);
}

/* The stage before is there. */
static void greet(struct stage_serve *s, const struct link_in *in, uint64_t number)
{
    struct wire_in w = {.at = in->payload, .cap = in->n_payload};
    const uint64_t engine = stage_get_u64(&w);
    const uint32_t layer = stage_get_u32(&w), width = stage_get_u32(&w);
    const struct link_head h = {.kind = LINK_CHAIN, .tag = number};
    struct link_out m;
    char why[120];
    if (w.bad || in->n_payload != STAGE_CHAIN || !s->joined || engine != s->engine.instance ||
        number != s->number) {
        refuse(s, &in->from, number | 1, "that stage serves another engine, or none");
        return;
    }
    if (layer != s->hello.from || width != s->border_in) {
        snprintf(why, sizeof why, "rows of width %u before layer %u are offered, not %lld and %u",
                 width, layer, (long long)s->border_in, s->hello.from);
        refuse(s, &in->from, number | 1, why);
        return;
    }
    s->chain.has_before = true;
    s->chain.before = in->from;
    link_admit(s->link, &in->from,
               STAGE_REPLY + sizeof(float) * (uint64_t)s->engine.max_rows * (uint64_t)s->border_in);
    if (link_out_init(&m, 0))
        (void)!link_send(s->link, &in->from, &h, &m);
}

static void lose_before(struct stage_serve *s, const char *why)
{
    s->chain.has_before = false;
    report_next(s, STAGE_NEXT_BEFORE, why);
}

/* ---- pages ---- */

static ingle_status take(struct stage_serve *s, uint64_t at, uint64_t n, uint64_t page,
                         struct err *err)
{
    bool known = false; /* else a hash for each byte could be asked for */
    for (uint32_t g = 0; g < s->spec.n_groups; g++)
        known = known || s->spec.group[g].page_bytes == page;
    if (!known)
        return err_set(err, INGLE_FORMAT, "pages of %llu bytes are of no group",
                       (unsigned long long)page);
    const uint64_t most = 2 * s->engine.budget_bytes + SPARE_BYTES;
    if (n > most || s->pages.n_bytes > most - n)
        return err_set(err, INGLE_LIMIT, "%llu bytes of pages and %llu more are above %llu",
                       (unsigned long long)s->pages.n_bytes, (unsigned long long)n,
                       (unsigned long long)most);
    return stage_pages_take(&s->pages, at, n, page, true, err);
}

/* One thing of a PAGES message; INGLE_FORMAT: it is wrong. */
static ingle_status change_one(struct stage_serve *s, struct wire_in *w, struct err *err)
{
    const uint32_t op = stage_get_u32(w);
    const uint64_t a = stage_get_u64(w), b = stage_get_u64(w), c = stage_get_u64(w);
    bool ok = !w->bad;
    if (ok && op == STAGE_TAKE) {
        const ingle_status st = take(s, a, b, c, err);
        if (st != INGLE_NOMEM)
            return st;
        s->broken = *err;
        return INGLE_OK;
    }
    if (ok && op == STAGE_GIVE) {
        const struct stage_slab *p = stage_pages_find(&s->pages, a, 1);
        if (p)
            stage_store_give(s->store, p->at, p->n_bytes);
        ok = stage_pages_give(&s->pages, a);
    } else if (ok && op == STAGE_COPY) {
        ok = stage_pages_copy(&s->pages, a, b);
    } else if (ok && op == STAGE_WRITE) {
        const struct stage_slab *p = stage_pages_find(&s->pages, a, b);
        const uint8_t *bytes = stage_get(w, (size_t)b);
        ok = p && !w->bad;
        if (ok) {
            memcpy(p->memory + (a - p->at), bytes, (size_t)b);
            stage_pages_mark(&s->pages, a, c);
        }
    } else {
        ok = false;
    }
    return ok || (s->broken.status && !w->bad)
               ? INGLE_OK
               : err_set(err, INGLE_FORMAT, "PAGES %u of %llx, %llu, %llu has no such pages", op,
                         (unsigned long long)a, (unsigned long long)b, (unsigned long long)c);
}

static ingle_status change(struct stage_serve *s, const struct link_in *in, struct err *err)
{
    struct wire_in w = {.at = in->payload, .cap = in->n_payload};
    ingle_status st = INGLE_OK;
    for (int i = 0; !st && w.n < w.cap; i++)
        st = i < STAGE_MOST_OPS ? change_one(s, &w, err)
                                : err_set(err, INGLE_LIMIT, "a PAGES has more than %d changes",
                                          STAGE_MOST_OPS);
    return st;
}

static ingle_status read_page(struct stage_serve *s, const struct link_in *in, uint64_t tag,
                              struct err *err)
{
    struct wire_in w = {.at = in->payload, .cap = in->n_payload};
    const uint64_t at = stage_get_u64(&w), n = stage_get_u64(&w);
    const struct stage_slab *p = w.bad ? NULL : stage_pages_find(&s->pages, at, n);
    const struct link_head h = {.kind = LINK_PAGE, .tag = tag};
    struct link_out m;
    if (!p || n > LINK_MAX_BYTES)
        return err_set(err, INGLE_FORMAT, "a page at %llx of %llu bytes is not there",
                       (unsigned long long)at, (unsigned long long)n);
    if (!link_out_take(s->link, &m, (size_t)n))
        return err_set(err, INGLE_NOMEM, "no memory for a page of %llu bytes",
                       (unsigned long long)n);
    memcpy(m.payload, p->memory + (at - p->at), (size_t)n);
    say(s, &h, &m);
    return INGLE_OK;
}

/* ---- a step ---- */

static ingle_status add_timelines(struct stage_serve *s, int64_t n, struct err *err)
{
    while (s->n_timelines < n) {
        struct kv_timeline *t;
        if (!mem_grow(&s->timeline, &s->cap_timelines, (size_t)s->n_timelines + 1,
                      sizeof(struct kv_timeline *)))
            return err_set(err, INGLE_NOMEM, "no memory for %lld spans", (long long)n);
        const ingle_status st = kv_timeline_create(&t, s->pool, s->hello.n_ctx, err);
        if (st)
            return st;
        s->timeline[s->n_timelines++] = t;
    }
    return INGLE_OK;
}

/* Whether layers of the stage have rows in a group. */
static bool uses(const struct stage_serve *s, uint32_t g)
{
    for (uint32_t i = 0; i < s->spec.n_streams; i++) {
        const struct kv_stream *st = &s->spec.stream[i];
        if (st->group == g && (st->twin || (st->layer >= s->hello.from && st->layer < s->hello.to)))
            return true;
    }
    return false;
}

/* Layers read every page of a group, or those of its window, up to the span's last row; of a mirror
 * they only write rows. */
static ingle_status check_pages(const struct stage_serve *s, const struct stage_line *l,
                                struct err *err)
{
    for (uint32_t g = 0; g < s->spec.n_groups; g++) {
        const int64_t window = s->spec.group[g].window;
        const int64_t least = l->mirror ? l->at : window ? num_max(0, l->at - window + 1) : 0;
        const int64_t from = least / KV_PAGE;
        for (int64_t i = from; uses(s, g) && i <= (l->at + l->n - 1) / KV_PAGE; i++)
            if (!stage_table_page(&l->table[g], i))
                return err_set(err, INGLE_FORMAT,
                               "a STEP at position %lld lacks page %lld of group %u",
                               (long long)l->at, (long long)i, g);
    }
    return INGLE_OK;
}

/* Page i of the line's group, by address; pages are whole ones. */
static ingle_status lay(struct stage_serve *s, const struct stage_line *l, struct kv_timeline *t,
                        struct err *err)
{
    kv_timeline_clear(t);
    for (uint32_t g = 0; g < s->spec.n_groups; g++)
        for (int64_t i = l->table[g].first; i < l->table[g].end; i++) {
            const uint64_t at = stage_table_page(&l->table[g], i);
            const size_t n = s->spec.group[g].page_bytes;
            const struct stage_slab *p = at ? stage_pages_find(&s->pages, at, n) : NULL;
            if (at && (!p || p->page_bytes != n || (at - p->at) % n))
                return err_set(err, INGLE_FORMAT, "a STEP has page %lld of group %u at %llx, "
                               "where there is none", (long long)i, g, (unsigned long long)at);
            if (at && !kv_timeline_lay(t, g, i, p->memory + (at - p->at)))
                return err_set(err, INGLE_FORMAT, "a STEP has page %lld beyond the context",
                               (long long)i);
        }
    return check_pages(s, l, err);
}

static ingle_status compare(struct stage_serve *s, const struct stage_line *l, struct err *err)
{
    const uint64_t before = stage_pages_before(&s->pages, l->table, s->spec.n_groups, l->at);
    if (before != l->before)
        return err_set(err, INGLE_FORMAT,
                       "tokens before position %lld differ: their hash is %016llx here, %016llx at "
                       "the engine",
                       (long long)l->at, (unsigned long long)before, (unsigned long long)l->before);
    stage_pages_wrote(&s->pages, l->table, s->spec.n_groups, l->at, l->token, l->n, before);
    return INGLE_OK;
}

static bool tap_wants(void *arg, enum family_tap tap, int layer)
{
    const struct work *w = arg;
    bool any = false;
    for (uint32_t i = 0; i < w->step.n_taps && tap == FAMILY_TAP_LAYER; i++)
        any = any || stage_step_tap(&w->step, i) == (uint32_t)layer;
    return any;
}

static void keep_tap(void *arg, enum family_tap tap, int layer, struct rows x)
{
    struct work *w = arg;
    int64_t k = 0;
    if (!tap_wants(arg, tap, layer))
        return;
    for (uint32_t i = 0; stage_step_tap(&w->step, i) != (uint32_t)layer; i++)
        k += stage_step_tap(&w->step, i) >= w->from;
    device_read_rows(w->d, x);
    for (int64_t i = 0; i < x.n; i++)
        memcpy(w->taps + (k * x.n + i) * w->tap_width, x.at + i * x.stride,
               (size_t)w->tap_width * sizeof(float));
}

static ingle_status make_taps(struct stage_serve *s, struct work *w, struct err *err)
{
    size_t n;
    w->n_taps = 0;
    for (uint32_t i = 0; i < w->step.n_taps; i++) {
        const uint32_t layer = stage_step_tap(&w->step, i);
        w->n_taps += layer >= w->from && layer < w->to;
    }
    w->tap_width = s->o.family->tap_width(s->o.self);
    w->d = s->d;
    if (!num_mul((size_t)(w->step.n_rows * w->tap_width), (size_t)w->n_taps, &n) ||
        n > LINK_MAX_BYTES / sizeof(float))
        return err_set(err, INGLE_LIMIT, "rows after %lld layers are more than %d bytes",
                       (long long)w->n_taps, LINK_MAX_BYTES);
    return mem_grow(&w->taps, &w->cap_taps, n, sizeof(float))
               ? INGLE_OK
               : err_set(err, INGLE_NOMEM, "no memory for rows after %lld layers",
                         (long long)w->n_taps);
}

static ingle_status build(struct stage_serve *s, struct work *w, struct err *err)
{
    const struct stage_step *step = &w->step;
    const int64_t n = step->n_spans + step->n_mirrors;
    if (!mem_grow(&w->span, &w->cap_spans, (size_t)step->n_spans, sizeof *w->span) ||
        !mem_grow(&w->mirror, &w->cap_mirrors, (size_t)step->n_mirrors, sizeof *w->mirror) ||
        !mem_grow(&w->token, &w->cap_tokens, (size_t)step->n_rows, sizeof *w->token))
        return err_set(err, INGLE_NOMEM, "no memory for a step of %lld rows",
                       (long long)step->n_rows);
    ingle_status st = make_taps(s, w, err);
    if (!st)
        st = add_timelines(s, n, err);
    for (int64_t i = 0; !st && i < n; i++)
        st = lay(s, &step->line[i], s->timeline[i], err);
    for (int64_t i = 0; !st && i < n; i++) /* mirrors first */
        st = compare(s, &step->line[(i + step->n_spans) % n], err);
    for (int64_t i = 0; !st && i < n; i++) {
        const struct stage_line *l = &step->line[i];
        if (l->mirror) {
            w->mirror[i - step->n_spans] =
                (struct family_mirror){s->timeline[i], l->row, l->n, l->at};
            continue;
        }
        memcpy(w->token + l->row, l->token, (size_t)l->n * sizeof *w->token);
        for (int64_t k = 0; k < l->n; k++)
            if (w->token[l->row + k] < 0 || w->token[l->row + k] >= s->o.info->n_vocab)
                return err_set(err, INGLE_FORMAT, "a STEP has token %d of %lld",
                               w->token[l->row + k], (long long)s->o.info->n_vocab);
        w->span[i] = (struct family_span){.timeline = s->timeline[i],
                                          .token = w->token + l->row,
                                          .n = l->n,
                                          .at = l->at,
                                          .want = (enum family_logits)l->want,
                                          .prompt = l->prompt,
                                          .soft = step->soft + l->soft,
                                          .n_soft = l->n_soft};
    }
    return st;
}

static bool is_bad(struct rows x)
{
    bool bad = false;
    for (int64_t i = 0; i < x.n; i++) {
        const union { const float *f; const uint8_t *b; } at = {.f = x.at + i * x.stride};
        bad = stage_has_bad(at.b, (size_t)x.width * sizeof(float)) || bad;
    }
    return bad;
}

/* The rows whose logits are wanted come first. */
static struct rows pick(const struct stage_step *step, struct rows x)
{
    int64_t n = 0;
    for (int64_t i = 0; i < step->n_spans; i++) {
        const struct stage_line *l = &step->line[i];
        int64_t k = l->want == FAMILY_LOGITS_ALL    ? 0
                    : l->want == FAMILY_LOGITS_LAST ? l->n - 1
                                                    : l->n;
        for (; k < l->n; k++, n++)
            if (l->row + k != n)
                memcpy(x.at + n * x.stride, x.at + (l->row + k) * x.stride,
                       (size_t)x.width * sizeof(float));
    }
    return rows_slice(x, 0, n);
}

/* Rows [n_rows][border] after the stage's layers become those that go on; spent: as many rows that
 * nobody needs any more, as wide as those before the stage. */
static void leave_rows(const struct stage_serve *s, struct work *w, bool all, struct rows x,
                       struct rows spent)
{
    w->out = x;
    if (!device_runs(s->d))
        return;
    device_read_rows(s->d, x);
    w->bad = is_bad(x);
    if (all)
        return;
    w->out = pick(&w->step, x);
    if (s->hello.to < s->hello.n_layers)
        return;
    device_wrote_rows(s->d, w->out);
    w->out = stage_collapse(s->o.family, s->o.self, s->d, w->out,
                            rows_columns(rows_slice(spent, 0, w->out.n), 0, s->o.info->n_embd));
    device_read_rows(s->d, w->out);
}

/* all: all rows go on. */
static ingle_status compute(struct stage_serve *s, struct work *w, bool all, struct err *err)
{
    const struct stage_step *in = &w->step;
    const struct family_step step = {.span = w->span,
                                     .n_spans = in->n_spans,
                                     .n_rows = in->n_rows,
                                     .mirror = w->mirror,
                                     .n_mirrors = in->n_mirrors};
    const struct family_forward f = {.device = s->d,
                                     .step = &step,
                                     .kv = &s->spec,
                                     .n_ctx = s->hello.n_ctx,
                                     .tap = w->n_taps ? keep_tap : NULL,
                                     .tap_wants = tap_wants,
                                     .tap_arg = w};
    const size_t n = (size_t)s->border_in * sizeof(float);
    pool_enter(device_pool(s->d));
    device_begin(s->d, s->o.stop);
    struct family_range range = {.from = s->hello.from,
                                 .to = s->hello.to,
                                 .in = device_rows(s->d, in->n_rows, s->border_in),
                                 .out = device_rows(s->d, in->n_rows, s->border_out)};
    if (range.in.at && range.out.at) {
        for (int64_t i = 0; i < in->n_rows; i++)
            memcpy(range.in.at + i * range.in.stride, in->rows + (size_t)i * n, n);
        device_wrote_rows(s->d, range.in);
        stage_forward(s->o.family, s->o.self, &f, &range);
        leave_rows(s, w, all, range.out, range.in);
    }
    (void)device_runs(s->d);
    const ingle_status st = device_status(s->d, err);
    pool_leave(device_pool(s->d));
    return st;
}

/* Rows, one after the other, and more bytes; false: there is no memory. */
static bool write_rows(struct link *to, struct rows x, uint64_t ns, const float *more,
                       size_t n_more, struct link_out *m)
{
    const size_t bytes = (size_t)x.width * sizeof(float);
    if (!link_out_take(to, m, STAGE_REPLY + (size_t)x.n * bytes + n_more))
        return false;
    struct wire out = {.at = m->payload, .cap = m->n};
    stage_put_u64(&out, ns);
    stage_put_u32(&out, (uint64_t)x.n);
    stage_put_u32(&out, (uint64_t)x.width);
    for (int64_t i = 0; i < x.n; i++)
        stage_put(&out, x.at + i * x.stride, bytes);
    stage_put(&out, more, n_more);
    return true;
}

/* Rows to the next stage, or to the engine, which gets what it asks for beside them. */
static void answer(struct stage_serve *s, const struct link_head *asked, const struct work *w,
                   uint64_t ns)
{
    const struct stage_step *step = &w->step;
    const bool pass = (asked->flags & STAGE_PASS) != 0;
    const struct rows none = {NULL, 0, w->out.width, w->out.width};
    const size_t taps = (size_t)(w->n_taps * step->n_rows * w->tap_width) * sizeof(float);
    struct link_head h = {
        .kind = LINK_ROWS, .tag = asked->tag, .step = asked->step, .n_rows = (uint32_t)w->out.n};
    struct link_out m;
    struct link *next = s->chain.link ? s->chain.link : s->link;
    if (pass && (!write_rows(next, w->out, ns, NULL, 0, &m) ||
                 !stage_chain_send(&s->chain, &h, &m)))
        report_next(s, 0, "the next stage takes no more rows");
    h.flags = w->bad ? STAGE_BAD : 0;
    h.n_rows = pass ? 0 : h.n_rows;
    if (write_rows(s->link, pass ? none : w->out, ns, w->taps, taps, &m))
        say(s, &h, &m); /* else the engine takes it for late */
}

/* Rows that came by themselves. */
static ingle_status take_rows(struct stage_serve *s, struct stage_step *step, uint64_t tag,
                              struct err *err)
{
    const struct link_in *in = &s->chain.held[stage_chain_find(&s->chain, tag)].in;
    struct wire_in w = {.at = in->payload, .cap = in->n_payload};
    (void)stage_get_u64(&w);
    const uint32_t n = stage_get_u32(&w), width = stage_get_u32(&w);
    if (w.bad || n != step->n_rows || width != s->border_in || step->n_row_bytes)
        return err_set(err, INGLE_FORMAT,
                       "%u rows of width %u and %zu bytes beside them came for a STEP of %lld rows "
                       "of width %lld",
                       n, width, step->n_row_bytes, (long long)step->n_rows,
                       (long long)s->border_in);
    step->rows = in->payload + STAGE_REPLY;
    step->n_row_bytes = in->n_payload - STAGE_REPLY;
    return INGLE_OK;
}

static void run_step(struct stage_serve *s, const struct link_in *in, const struct link_head *h)
{
    struct work *w = s->work;
    const struct stage_step_limits most = {
        h->n_rows, s->hello.n_ctx, s->hello.n_layers, s->spec.n_groups};
    struct err err = s->broken;
    ingle_status st = err.status;
    const uint64_t start = clock_now();
    if (!st && (h->n_rows < 1 || h->n_rows > s->reserved_rows))
        st = err_set(&err, INGLE_FORMAT, "a STEP has %u rows, not 1 to %lld", h->n_rows,
                     (long long)s->reserved_rows);
    if (!st)
        st = stage_step_read(in->payload, in->n_payload, &most, &w->step, &err);
    if (!st && (h->flags & STAGE_AWAIT))
        st = take_rows(s, &w->step, h->tag, &err);
    if (!st && w->step.n_row_bytes != (size_t)w->step.n_rows * (size_t)s->border_in * sizeof(float))
        st = err_set(&err, INGLE_FORMAT, "a STEP of %lld rows of width %lld has %zu bytes of rows",
                     (long long)w->step.n_rows, (long long)s->border_in, w->step.n_row_bytes);
    if (!st)
        st = build(s, w, &err);
    if (!st)
        st = compute(s, w, (h->flags & STAGE_ALL) != 0, &err);
    if (st && st != INGLE_CANCEL) {
        refuse(s, &in->from, st == INGLE_FORMAT ? 0 : h->tag, err.msg);
    } else if (!st) { /* a stage that ends says nothing: what it had is then computed again */
        const uint64_t ns = clock_now() - start;
        s->n.steps++;
        s->n.rows += (uint64_t)w->step.n_rows;
        s->n.compute_ns += ns;
        answer(s, h, w, ns);
    }
}

/* ---- what is said ---- */

/* What waits, and rows that wait for their step, have a bound together. */
static bool has_room(const struct stage_serve *s, const struct link_in *in)
{
    return in->n_payload <= MOST_WAITING_BYTES - s->waiting_bytes &&
           s->chain.held_bytes <= MOST_WAITING_BYTES - s->waiting_bytes - in->n_payload;
}

/* Rows of a step; takes in.  False: they are too many. */
static bool hold(struct stage_serve *s, struct link_in *in, uint64_t tag)
{
    return has_room(s, in) && stage_chain_hold(&s->chain, in, tag);
}

/* Takes in. */
static ingle_status wait_for_turn(struct stage_serve *s, struct link_in *in,
                                  const struct link_head *h, struct err *err)
{
    if (s->n_waiting == MOST_WAITING || !has_room(s, in))
        return err_set(err, INGLE_LIMIT, "more than %d messages or %zu bytes wait", MOST_WAITING,
                       MOST_WAITING_BYTES);
    struct waiting *w = s->spare;
    s->spare = w ? w->next : NULL;
    if (!w)
        w = mem_alloc(sizeof *w);
    if (!w)
        return err_set(err, INGLE_NOMEM, "no memory for a message");
    *w = (struct waiting){.h = *h};
    link_in_move(&w->in, in);
    *(s->last ? &s->last->next : &s->first) = w;
    s->last = w;
    s->n_waiting++;
    s->waiting_bytes += w->in.n_payload;
    return INGLE_OK;
}

/* The first message can be done. */
static bool has_turn(const struct stage_serve *s)
{
    const struct waiting *w = s->first;
    return w && (w->dropped || w->h.kind != LINK_STEP || !(w->h.flags & STAGE_AWAIT) ||
                 stage_chain_find(&s->chain, w->h.tag) >= 0);
}

static void do_first(struct stage_serve *s)
{
    struct waiting *w = s->first;
    const struct link_peer from = w->in.from;
    const uint64_t tag = w->h.kind == LINK_STEP ? w->h.tag : 0;
    struct err err;
    ingle_status st = INGLE_OK;
    if (w->h.kind == LINK_STEP && !w->dropped)
        run_step(s, &w->in, &w->h);
    else if (w->h.kind == LINK_PAGES)
        st = change(s, &w->in, &err);
    else if (w->h.kind == LINK_PAGE)
        st = read_page(s, &w->in, w->h.tag, &err);
    else if (w->h.kind == LINK_NEXT)
        aim(s, &w->in);
    else if (w->h.kind == LINK_KEEP)
        st = stage_store_receive(s->store, &w->in, &w->h, &err);
    if (st)
        refuse(s, &from, 0, err.msg);
    if (s->first != w) /* all of it is over */
        return;
    if (tag)
        stage_chain_drop(&s->chain, tag);
    pop(s);
}

/* A step that waits is not wanted. */
static void drop(struct stage_serve *s, uint64_t tag)
{
    for (struct waiting *w = s->first; w; w = w->next)
        if (w->h.kind == LINK_STEP && w->h.tag == tag)
            w->dropped = true;
}

/* Of the stage before. */
static void receive_before(struct stage_serve *s, struct link_in *in)
{
    struct link_head h;
    struct err err;
    if (link_head_read(in->head, in->n_head, in->payload, in->n_payload, &any_shape, &h, &err))
        lose_before(s, err.msg);
    else if (h.kind == LINK_ROWS && !hold(s, in, h.tag))
        lose_before(s, "more rows come than steps are under way");
}

static void end_engine(struct stage_serve *s)
{
    leave(s);
    s->over = s->o.once;
}

/* What is left of in is to be released. */
static void receive(struct stage_serve *s, struct link_in *in)
{
    struct link_head h;
    struct err err;
    const bool mine = is_peer(s, &in->from);
    const struct link_peer from = in->from;
    ingle_status st = link_head_read(in->head, in->n_head, in->payload, in->n_payload, &any_shape,
                                     &h, &err);
    const bool in_order = !st && mine && (h.kind == LINK_STEP || h.kind == LINK_PAGES ||
                                          h.kind == LINK_PAGE || h.kind == LINK_NEXT ||
                                          h.kind == LINK_KEEP);
    if (!st && h.kind == LINK_HELLO)
        st = err_set(&err, INGLE_UNSUP,
                     "this is a stage (ingle worker --stage), not a worker for experts: its "
                     "address belongs to --stages");
    else if (!st && h.kind == LINK_JOIN)
        join(s, in, h.tag);
    else if (!st && h.kind == LINK_TRY)
        st = stage_answer_try(s->link, in, &h, &err);
    else if (!st && h.kind == LINK_CHAIN)
        greet(s, in, h.tag);
    else if (in_order)
        st = wait_for_turn(s, in, &h, &err);
    else if (!st && h.kind == LINK_ROWS && mine && !hold(s, in, h.tag))
        st = err_set(&err, INGLE_FORMAT, "more rows come than steps are under way");
    else if (!st && h.kind == LINK_CANCEL && mine)
        drop(s, h.tag);
    else if (!st && h.kind == LINK_BYE && mine)
        end_engine(s);
    else if (!st && h.kind != LINK_FAIL && h.kind != LINK_BYE && h.kind != LINK_ROWS)
        st = err_set(&err, INGLE_FORMAT, "a message of kind %d is none that an engine sends",
                     (int)h.kind);
    if (st)
        refuse(s, &from, 0, err.msg);
}

/* Whatever has come. */
static void receive_all(struct stage_serve *s)
{
    char why[200];
    bool up;
    for (int i = 0; i < MOST_RECEIVED; i++) {
        struct link_in in;
        const enum link_event what = link_wait(s->link, 0, &in, why, sizeof why);
        if (what == LINK_NOTHING)
            break;
        if (what == LINK_DOWN && is_peer(s, &in.from))
            leave(s);
        else if (what == LINK_DOWN && stage_chain_is_before(&s->chain, &in.from))
            lose_before(s, why);
        if (what != LINK_MESSAGE)
            continue;
        if (stage_chain_is_before(&s->chain, &in.from))
            receive_before(s, &in);
        else
            receive(s, &in);
        link_in_release(&in);
    }
    if (!s->joined || !stage_chain_look(&s->chain, &up, why, sizeof why))
        return;
    if (up)
        link_reserve(s->chain.link, STAGE_REPLY + sizeof(float) * (size_t)s->border_out, FLYING);
    report_next(s, up ? STAGE_NEXT_UP : 0, up ? "" : why);
}

bool stage_serve_run(struct stage_serve *s, struct stage_asked *out)
{
    while (!s->asked && !s->over && !atomic_load_explicit(s->o.stop, memory_order_relaxed)) {
        if (!has_turn(s)) {
            struct link *const from[] = {s->link, s->chain.link};
            link_sleep(from, 2, s->keeps ? STORE_MS : TURN_MS);
        }
        receive_all(s);
        if (has_turn(s))
            do_first(s);
        s->keeps = stage_store_tend(s->store, s->joined ? s->number : 0, say_of_store, s);
        if (s->o.tend)
            s->o.tend(s->o.tend_arg);
    }
    *out = s->ask;
    return s->asked;
}
