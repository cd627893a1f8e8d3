/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory - memory that both sides have, and the card's own.
 *
 * Copies to the card go through a pinned buffer in turns, so that the host may write to the memory
 * that they were made of at once. Copies from the card are waited for.
 */
#define _POSIX_C_SOURCE 200809L
#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "device/gpu/card.h"
#include "device/gpu/memory.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { STAGE_BYTES = 8 << 20, ALIGN = 256, MORE_PIECES = 256 };

/* ---- calls of the driver ---- */

static int no_give(void *self, void *at, size_t n_bytes)
{
    (void)self, (void)at, (void)n_bytes;
    return 0;
}

static int no_stream(void *self, struct gpu_stream *s)
{
    (void)self, (void)s;
    return 0;
}

static int no_event(void *self, struct gpu_event *e)
{
    (void)self, (void)e;
    return 0;
}

static int no_module(void *self, struct gpu_module *m)
{
    (void)self, (void)m;
    return 0;
}

static void no_close(void *self)
{
    (void)self;
}

/* A driver waits for the card in most of its calls.  Memory that the card may still write to stays
 * where it is until the process ends. */
static void abandon(struct device_gpu *g)
{
    g->hung = true;
    g->api.give = g->api.host_give = no_give;
    g->api.stream_wait = g->api.stream_free = no_stream;
    g->api.event_free = no_event;
    g->api.module_free = no_module;
    g->api.close = g->api.unload = no_close;
}

static void rest_a_while(uint64_t waited_ns)
{
    const struct timespec t = {0, waited_ns < 5000000 ? 20000 : 500000};
    if (waited_ns > 100000) /* a short wait is over before a thread sleeps */
        (void)nanosleep(&t, NULL);
}

/* 0, a code of the driver, or the card hangs. */
static int poll_event(struct device_gpu *g, struct gpu_event *e)
{
    bool ready = false;
    const uint64_t begin = clock_now();
    while (!g->hung) {
        const int code = g->api.event_ready(g->api.self, e, &ready);
        const uint64_t waited = clock_now() - begin;
        if (code || ready)
            return code;
        if (waited > g->patience_ns)
            abandon(g);
        rest_a_while(waited);
    }
    return 0;
}

static int poll_stream(struct device_gpu *g)
{
    const int code = g->hung ? 0 : g->api.event_record(g->api.self, g->event, g->stream);
    return code ? code : poll_event(g, g->event);
}

void device_gpu_rest(struct device_gpu *g)
{
    if (g->stream && g->event && !g->hung && poll_stream(g))
        (void)g->api.stream_wait(g->api.self, g->stream);
}

/* The card is lost from here on; one thread reports it. */
static void lose(struct device *d, const char *why, const char *function)
{
    struct device_gpu *g = d->gpu;
    if (atomic_exchange(&g->reported, true))
        return;
    g->lost_at = function;
    g->lost_base = d->base;
    g->lost = true;
    device_gpu_rest(g); /* copies that are under way end before their memory does */
    report(d->sink, INGLE_REPORT_WARN, "fallback", g->info.name,
           "the card is lost: %s in %s; the processor goes on", why, function);
}

bool device_gpu_ok(struct device *d, int code, const char *function)
{
    struct device_gpu *g = d->gpu;
    struct err e;
    if (!code && !g->lost)
        return true;
    if (!g->lost)
        lose(d, g->api.text(g->api.self, code), function);
    err_set(&e, INGLE_LOST, "card '%s' was lost in %s", g->info.name,
            g->lost_at ? g->lost_at : function);
    device_fail(d, &e);
    return false;
}

/* After a wait. */
static bool waited(struct device *d, int code, const char *function)
{
    char why[64];
    if (!d->gpu->hung)
        return device_gpu_ok(d, code, function);
    snprintf(why, sizeof why, "a kernel has not ended for %.0f s",
             (double)d->gpu->patience_ns * 1e-9);
    lose(d, why, function);
    return device_gpu_ok(d, 0, function);
}

void device_gpu_resumed(struct device *d)
{
    if (!d->gpu->lost || d->gpu->lost_base <= d->base)
        return;
    d->gpu->lost_base = d->base;
    (void)device_gpu_ok(d, 0, "");
}

bool device_gpu_wait(struct device *d)
{
    struct device_gpu *g = d->gpu;
    g->stage_at = 0;
    g->n_staged = 0;
    return !g->lost && waited(d, poll_stream(g), "stream_wait");
}

bool device_gpu_event_wait(struct device *d, struct gpu_event *e)
{
    return !d->gpu->lost && waited(d, poll_event(d->gpu, e), "event_ready");
}

/* Room of the buffer, at most n_bytes; *n: what there is. */
static size_t stage_room(struct device *d, size_t n_bytes, size_t *n)
{
    struct device_gpu *g = d->gpu;
    if (g->stage_at >= STAGE_BYTES ||
        (n_bytes <= STAGE_BYTES && n_bytes > STAGE_BYTES - g->stage_at))
        (void)device_gpu_wait(d);
    const size_t at = g->stage_at, left = STAGE_BYTES - at;
    *n = n_bytes < left ? n_bytes : left;
    g->stage_at += (*n + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

bool device_gpu_put(struct device *d, void *card, const void *host, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    for (size_t at = 0, n; at < n_bytes; at += n) {
        const size_t room = stage_room(d, n_bytes - at, &n);
        if (g->lost)
            return device_gpu_ok(d, 0, "");
        memcpy(g->stage + room, (const uint8_t *)host + at, n);
        if (!device_gpu_ok(d, g->api.put(g->api.self, g->stream, (uint8_t *)card + at,
                                         g->stage + room, n),
                           "put"))
            return false;
    }
    return true;
}

/* A session may be saved while another thread has a step: the buffer's turn is that thread's. */
bool device_gpu_get(struct device *d, void *host, const void *card, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    return device_gpu_ok(d, g->lost ? 0 : g->api.get(g->api.self, g->stream, host, card, n_bytes),
                         "get") &&
           waited(d, poll_stream(g), "stream_wait");
}

/* An equal list that is there; NULL: none, or the buffer may begin anew before it is used. */
static void *staged_before(const struct device_gpu *g, const void *host, size_t n_bytes)
{
    const int n = g->n_staged < GPU_STAGED ? g->n_staged : GPU_STAGED;
    for (int i = 0; i < n && g->stage_at < STAGE_BYTES / 2; i++)
        if (g->staged[i].n_bytes == n_bytes && !memcmp(g->stage + g->staged[i].at, host, n_bytes))
            return g->stage_card + g->staged[i].at;
    return NULL;
}

void *device_gpu_stage(struct device *d, const void *host, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    size_t n;
    if (n_bytes > STAGE_BYTES || g->lost)
        return NULL;
    void *before = staged_before(g, host, n_bytes);
    if (before)
        return before;
    const size_t room = stage_room(d, n_bytes, &n);
    if (g->lost)
        return NULL;
    memcpy(g->stage + room, host, n);
    g->staged[g->n_staged++ % GPU_STAGED] = (struct gpu_staged){room, n};
    return device_gpu_ok(d, g->api.put(g->api.self, g->stream, g->stage_card + room,
                                       g->stage + room, n),
                         "put")
               ? g->stage_card + room
               : NULL;
}

void *device_gpu_take(struct device *d, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    void *at = NULL;
    if (g->lost || !n_bytes)
        return NULL;
    pthread_mutex_lock(&g->lock);
    if (n_bytes <= g->budget - g->used) {
        const int code = g->api.take(g->api.self, &at, n_bytes);
        if (code && g->api.kind(g->api.self, code) != GPU_FAULT_MEMORY)
            (void)device_gpu_ok(d, code, "take");
        at = code ? NULL : at;
        g->used += at ? n_bytes : 0;
    }
    pthread_mutex_unlock(&g->lock);
    return at;
}

void device_gpu_give(struct device *d, void *card, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    if (!card)
        return;
    pthread_mutex_lock(&g->lock);
    (void)g->api.give(g->api.self, card, n_bytes); /* also after a loss: it may be there */
    g->used -= n_bytes;
    pthread_mutex_unlock(&g->lock);
}

/* ---- regions ---- */

static bool is_in(const struct gpu_region *r, const void *at)
{
    return (uintptr_t)at >= (uintptr_t)r->host && (uintptr_t)at - (uintptr_t)r->host < r->n_bytes;
}

/* The first of the list that ends after `at`. */
static size_t place_of(const struct device_gpu *g, const void *at)
{
    size_t a = 0, b = g->n_regions;
    while (a < b) {
        const size_t m = a + (b - a) / 2;
        if ((uintptr_t)g->region[m]->host + g->region[m]->n_bytes <= (uintptr_t)at)
            a = m + 1;
        else
            b = m;
    }
    return a;
}

struct gpu_region *device_gpu_region_of(struct device_gpu *g, const void *at)
{
    if (is_in(&g->arena, at))
        return &g->arena;
    pthread_mutex_lock(&g->lock);
    const size_t i = place_of(g, at);
    struct gpu_region *r = i < g->n_regions && is_in(g->region[i], at) ? g->region[i] : NULL;
    pthread_mutex_unlock(&g->lock);
    return r;
}

struct gpu_piece *device_gpu_piece_of(const struct gpu_region *r, const void *at)
{
    const size_t where = (size_t)((uintptr_t)at - (uintptr_t)r->host);
    size_t a = 0, b = r->n_pieces;
    while (a < b) {
        const size_t m = a + (b - a) / 2;
        if (r->piece[m].at + r->piece[m].n_bytes <= where)
            a = m + 1;
        else
            b = m;
    }
    return a < r->n_pieces && r->piece[a].at <= where ? &r->piece[a] : NULL;
}

void *device_gpu_address(struct device_gpu *g, const void *at)
{
    const struct gpu_region *r = at ? device_gpu_region_of(g, at) : NULL;
    return r && r->card ? r->card + ((uintptr_t)at - (uintptr_t)r->host) : NULL;
}

/* What only a lost card had is zeros: of results that outlive a step; those of the step are not
 * looked at, since it fails. */
static bool bring_piece(struct device *d, const struct gpu_region *r, struct gpu_piece *p,
                        enum device_side side)
{
    if (d->gpu->lost) {
        if (p->newer == GPU_CARD)
            memset(r->host + p->at, 0, p->n_bytes);
        p->newer = GPU_HOST;
        return side == DEVICE_HOST;
    }
    if (side == DEVICE_HOST && p->newer == GPU_CARD) {
        if (!device_gpu_get(d, r->host + p->at, r->card + p->at, p->n_bytes))
            return false;
        p->newer = GPU_BOTH;
    }
    if (side == DEVICE_CARD && (p->newer == GPU_HOST || p->newer == GPU_NEW)) {
        if (!device_gpu_put(d, r->card + p->at, r->host + p->at, p->n_bytes))
            return false;
        p->newer = GPU_BOTH;
    }
    return true;
}

/* The pieces of a range: fn of each. */
typedef bool piece_fn(struct device *d, const struct gpu_region *r, struct gpu_piece *p,
                      enum device_side side);
static bool each_piece(struct device *d, const void *at, size_t n_bytes, enum device_side side,
                       piece_fn *fn)
{
    struct gpu_region *r = at && n_bytes ? device_gpu_region_of(d->gpu, at) : NULL;
    if (!r)
        return side == DEVICE_HOST;
    if (!r->card)
        return side == DEVICE_HOST;
    const size_t end = (size_t)((uintptr_t)at - (uintptr_t)r->host) + n_bytes;
    for (struct gpu_piece *p = device_gpu_piece_of(r, at);
         p && p < r->piece + r->n_pieces && p->at < end; p++)
        if (!fn(d, r, p, side))
            return false;
    return true;
}

bool device_gpu_bring(struct device *d, const void *at, size_t n_bytes, enum device_side side)
{
    return each_piece(d, at, n_bytes, side, bring_piece);
}

static bool mark_piece(struct device *d, const struct gpu_region *r, struct gpu_piece *p,
                       enum device_side side)
{
    (void)d;
    (void)r;
    p->newer = side == DEVICE_HOST ? GPU_HOST : GPU_CARD;
    return true;
}

void device_gpu_mark(struct device *d, const void *at, size_t n_bytes, enum device_side side)
{
    (void)each_piece(d, at, n_bytes, side, mark_piece);
}

const void *device_gpu_list(struct device *d, const void *host, size_t n_bytes)
{
    const struct gpu_region *r = device_gpu_region_of(d->gpu, host);
    if (!r || !r->card)
        return device_gpu_stage(d, host, n_bytes);
    return device_gpu_bring(d, host, n_bytes, DEVICE_CARD) ? device_gpu_address(d->gpu, host)
                                                           : NULL;
}

void *device_gpu_room(struct device_gpu *g, size_t n_bytes)
{
    return mem_grow(&g->room, &g->cap_room, n_bytes, 1) ? g->room : NULL;
}

/* ---- what the device asks for ---- */

void device_gpu_read(struct device *d, const void *at, size_t n_bytes)
{
    (void)device_gpu_bring(d, at, n_bytes, DEVICE_HOST);
}

/* What the host has not written of a piece that is newer on the card comes first. */
static void wrote_piece(struct device *d, const struct gpu_region *r, struct gpu_piece *p,
                        size_t from, size_t to)
{
    const size_t end = p->at + p->n_bytes;
    if (p->newer == GPU_CARD && !d->gpu->lost) {
        if (from > p->at)
            (void)device_gpu_get(d, r->host + p->at, r->card + p->at, from - p->at);
        if (to < end)
            (void)device_gpu_get(d, r->host + to, r->card + to, end - to);
    }
    p->newer = GPU_HOST;
}

void device_gpu_wrote(struct device *d, const void *at, size_t n_bytes)
{
    struct gpu_region *r = device_gpu_region_of(d->gpu, at);
    if (!r || !r->card)
        return;
    const size_t from = (size_t)((uintptr_t)at - (uintptr_t)r->host);
    for (struct gpu_piece *p = device_gpu_piece_of(r, at);
         p && p < r->piece + r->n_pieces && p->at < from + n_bytes; p++)
        wrote_piece(d, r, p, from, from + n_bytes);
}

/* A piece of the arena begins. Where there are too many, the last one grows: both sides are made
 * equal first. */
void device_gpu_took(struct device *d, size_t at, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    struct gpu_region *r = &g->arena;
    if (d->dry) {
        g->dry_now++;
        g->dry_pieces = g->dry_now > g->dry_pieces ? g->dry_now : g->dry_pieces;
        return;
    }
    if (!n_bytes || !r->host)
        return;
    if (r->n_pieces < r->cap) {
        r->piece[r->n_pieces++] = (struct gpu_piece){at, n_bytes, GPU_NEW};
        return;
    }
    struct gpu_piece *p = &r->piece[r->n_pieces - 1];
    if (r->card)
        (void)bring_piece(d, r, p, DEVICE_HOST);
    p->n_bytes = at + n_bytes - p->at;
    p->newer = GPU_HOST;
}

void device_gpu_released(struct device *d, size_t mark)
{
    struct gpu_region *r = &d->gpu->arena;
    if (d->dry) {
        if (!mark)
            d->gpu->dry_now = 0;
        return;
    }
    while (r->n_pieces && r->piece[r->n_pieces - 1].at >= mark)
        r->n_pieces--;
    if (r->n_pieces && r->piece[r->n_pieces - 1].at + r->piece[r->n_pieces - 1].n_bytes > mark)
        r->piece[r->n_pieces - 1].n_bytes = mark - r->piece[r->n_pieces - 1].at;
}

static void region_close(struct device *d, struct gpu_region *r)
{
    struct device_gpu *g = d->gpu;
    device_gpu_give(d, r->card, r->n_bytes);
    if (r->pinned)
        (void)g->api.host_give(g->api.self, r->host, r->n_bytes);
    else
        mem_big_free(r->host, r->n_bytes);
    mem_free(r->piece);
    *r = (struct gpu_region){0};
}

static bool region_open(struct device *d, struct gpu_region *r, size_t n_bytes, size_t n_pieces,
                        bool pinned)
{
    struct device_gpu *g = d->gpu;
    void *host = NULL;
    *r = (struct gpu_region){.n_bytes = n_bytes, .cap = n_pieces};
    r->pinned = pinned && !g->lost && !g->api.host_take(g->api.self, &host, n_bytes) && host;
    r->host = r->pinned ? host : mem_big_alloc(n_bytes);
    r->piece = mem_calloc(n_pieces, sizeof *r->piece);
    if (!r->host || !r->piece) {
        region_close(d, r);
        return false;
    }
    r->card = g->idle ? NULL : device_gpu_take(d, n_bytes);
    return true;
}

ingle_status device_gpu_arena(struct device *d, size_t n_bytes, struct err *err)
{
    struct device_gpu *g = d->gpu;
    struct gpu_region r;
    const size_t pieces = 2 * g->dry_pieces + MORE_PIECES;
    if (g->arena.card)
        (void)device_gpu_wait(d);
    device_gpu_give(d, g->arena.card, g->arena.n_bytes);
    g->arena.card = NULL;
    if (!region_open(d, &r, n_bytes, pieces, true))
        return err_set(err, INGLE_NOMEM, "no %zu bytes of scratch for a step", n_bytes);
    if (!r.card && !g->lost && !g->idle && !g->no_arena)
        report(d->sink, INGLE_REPORT_WARN, "fallback", g->info.name,
               "no %zu bytes of the card's memory for scratch: the processor computes", n_bytes);
    g->no_arena = !r.card;
    if (g->arena.host)
        region_close(d, &g->arena);
    g->arena = r;
    d->arena = r.host;
    d->cap = n_bytes;
    return INGLE_OK;
}

void *device_gpu_host_take(struct device *d, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    struct gpu_region *r = n_bytes ? mem_zalloc(sizeof *r) : NULL;
    if (!r || !region_open(d, r, n_bytes, 1, false)) {
        mem_free(r);
        return NULL;
    }
    r->piece[r->n_pieces++] = (struct gpu_piece){0, n_bytes, GPU_NEW};
    pthread_mutex_lock(&g->lock);
    const bool room = mem_grow(&g->region, &g->cap_regions, g->n_regions + 1, sizeof *g->region);
    if (room) {
        const size_t i = place_of(g, r->host);
        memmove(g->region + i + 1, g->region + i, (g->n_regions - i) * sizeof *g->region);
        g->region[i] = r;
        g->n_regions++;
    }
    pthread_mutex_unlock(&g->lock);
    if (room)
        return r->host;
    region_close(d, r);
    mem_free(r);
    return NULL;
}

void device_gpu_host_give(struct device *d, void *at, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    (void)n_bytes;
    pthread_mutex_lock(&g->lock);
    const size_t i = place_of(g, at);
    BUG_IF(i >= g->n_regions || g->region[i]->host != at);
    struct gpu_region *r = g->region[i];
    g->n_regions--;
    memmove(g->region + i, g->region + i + 1, (g->n_regions - i) * sizeof *g->region);
    pthread_mutex_unlock(&g->lock);
    region_close(d, r);
    mem_free(r);
}

/* ---- the card's own ---- */

static size_t own_place(const struct device_gpu *g, const void *at)
{
    size_t a = 0, b = g->n_own;
    while (a < b) {
        const size_t m = a + (b - a) / 2;
        if ((uintptr_t)g->own[m].card + g->own[m].n_bytes <= (uintptr_t)at)
            a = m + 1;
        else
            b = m;
    }
    return a;
}

struct gpu_own *device_gpu_own_of(struct device_gpu *g, const void *at)
{
    const size_t i = own_place(g, at);
    return i < g->n_own && (uintptr_t)g->own[i].card <= (uintptr_t)at ? &g->own[i] : NULL;
}

bool device_gpu_own_is_host(struct device_gpu *g, const void *at)
{
    const struct gpu_own *o = g->n_own_host ? device_gpu_own_of(g, at) : NULL;
    return o && o->host;
}

static uint64_t own_bytes(const struct device *d)
{
    return d->gpu->lost || !d->gpu->has_experts ? 0 : d->gpu->budget - d->gpu->used;
}

/* Pages for which the card has no room: their steps are the processor's. */
static uint8_t *own_host_take(struct device *d, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    if (!g->lost && !g->no_pages)
        report(d->sink, INGLE_REPORT_WARN, "fallback", g->info.name,
               "no %zu bytes of the card's memory for keys and values: those stay with the "
               "processor",
               n_bytes);
    g->no_pages = true;
    return mem_big_alloc(n_bytes);
}

static void *own_take(struct device *d, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    uint8_t *card = device_gpu_take(d, n_bytes);
    const bool host = !card && !g->has_experts;
    if (host)
        card = own_host_take(d, n_bytes);
    if (!card)
        return NULL;
    pthread_mutex_lock(&g->lock);
    const bool room = mem_grow(&g->own, &g->cap_own, g->n_own + 1, sizeof *g->own);
    if (room) {
        const size_t i = own_place(g, card);
        memmove(g->own + i + 1, g->own + i, (g->n_own - i) * sizeof *g->own);
        g->own[i] = (struct gpu_own){card, host, n_bytes, host ? card : NULL};
        g->n_own++;
        g->n_own_host += host;
    }
    pthread_mutex_unlock(&g->lock);
    if (!room) {
        if (host)
            mem_big_free(card, n_bytes);
        else
            device_gpu_give(d, card, n_bytes);
        return NULL;
    }
    if (host)
        return card;
    /* pages are saved whole: what nobody has written is no other program's */
    (void)device_gpu_ok(d, g->api.fill(g->api.self, g->stream, card, 0, n_bytes), "fill");
    return card;
}

static void own_give(struct device *d, void *own, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    pthread_mutex_lock(&g->lock);
    const size_t i = own_place(g, own);
    BUG_IF(i >= g->n_own || g->own[i].card != own || g->own[i].n_bytes != n_bytes);
    const bool host = g->own[i].host;
    mem_big_free(g->own[i].stand, g->own[i].n_bytes); /* of the host's itself */
    g->n_own--;
    g->n_own_host -= host;
    memmove(g->own + i, g->own + i + 1, (g->n_own - i) * sizeof *g->own);
    pthread_mutex_unlock(&g->lock);
    if (host)
        return;
    if (!g->lost)
        (void)device_gpu_wait(d);
    device_gpu_give(d, own, n_bytes);
}

/* Where the processor stands in for it. */
static uint8_t *stand_of(struct device *d, const void *own)
{
    struct gpu_own *o = device_gpu_own_of(d->gpu, own);
    if (!o)
        return NULL;
    if (!o->stand)
        o->stand = mem_big_alloc(o->n_bytes);
    return o->stand ? o->stand + ((uintptr_t)own - (uintptr_t)o->card) : NULL;
}

static void own_put(struct device *d, void *own, const void *host, size_t n_bytes)
{
    uint8_t *stand;
    if (!d->gpu->lost && !device_gpu_own_is_host(d->gpu, own))
        (void)device_gpu_put(d, own, host, n_bytes);
    else if ((stand = stand_of(d, own)))
        memcpy(stand, host, n_bytes);
}

static void own_get(struct device *d, void *host, const void *own, size_t n_bytes)
{
    const uint8_t *stand;
    if (!d->gpu->lost && !device_gpu_own_is_host(d->gpu, own))
        (void)device_gpu_get(d, host, own, n_bytes);
    else if ((stand = stand_of(d, own)))
        memcpy(host, stand, n_bytes);
}

uint8_t *device_gpu_stand(struct device *d, const void *own)
{
    return stand_of(d, own);
}

static void own_copy(struct device *d, void *to, const void *from, size_t n_bytes)
{
    struct device_gpu *g = d->gpu;
    uint8_t *a, *b;
    const bool to_host = device_gpu_own_is_host(g, to), from_host = device_gpu_own_is_host(g, from);
    if (!g->lost && to_host != from_host && to_host)
        (void)device_gpu_get(d, to, from, n_bytes);
    else if (!g->lost && to_host != from_host)
        (void)device_gpu_put(d, to, from, n_bytes);
    else if (!g->lost && !to_host)
        (void)device_gpu_ok(d, g->api.copy(g->api.self, g->stream, to, from, n_bytes), "copy");
    else if ((a = stand_of(d, to)) && (b = stand_of(d, from)))
        memcpy(a, b, n_bytes);
}

const struct device_own_ops device_gpu_own_ops = {own_bytes, own_take, own_give,
                                                  own_put,   own_get,  own_copy};

/* ---- beginning and end ---- */

bool device_gpu_memory_open(struct device *d)
{
    struct device_gpu *g = d->gpu;
    void *host = NULL;
    if (g->api.host_take(g->api.self, &host, STAGE_BYTES))
        return false;
    g->stage = host;
    g->stage_card = device_gpu_take(d, STAGE_BYTES);
    return g->stage_card != NULL;
}

void device_gpu_memory_close(struct device *d)
{
    struct device_gpu *g = d->gpu;
    if (g->arena.host)
        region_close(d, &g->arena);
    d->arena = NULL;
    d->cap = 0;
    BUG_IF(g->n_regions);
    device_gpu_give(d, g->stage_card, STAGE_BYTES);
    if (g->stage)
        (void)g->api.host_give(g->api.self, g->stage, STAGE_BYTES);
    for (size_t i = 0; i < g->n_own; i++)
        mem_big_free(g->own[i].stand, g->own[i].n_bytes);
    mem_free(g->region);
    mem_free(g->own);
    mem_free(g->room);
}
