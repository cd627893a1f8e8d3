/* SPDX-License-Identifier: Apache-2.0 */
#include "server/tape.h"

#include "base/mem.h"
#include "base/str.h"
#include "http/http.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct listener {
    struct tapes *tapes;
    struct listener *next, **before; /* Sync: tapes->lock; before is NULL when it is not listed */
    struct tape *tape;               /* a reference while it is listed */
    struct http_exchange *x;         /* held while it is listed */
    size_t at;                       /* Sync: tapes->lock; what was sent of the tape's bytes */
};

struct tapes {
    pthread_mutex_t lock;
    struct listener *first; /* Sync: lock */
    size_t n_bytes, unread;
    double keepalive_seconds;
};

struct tape {
    struct tapes *tapes;
    atomic_int refs;
    atomic_bool cancelled;
    bool keep;
    struct str bytes;      /* Sync: tapes->lock */
    int64_t n_forgotten;   /* Sync: tapes->lock; events in front of bytes, */
    int64_t forgotten_bytes; /* ... and their bytes */
    bool ended;            /* Sync: tapes->lock */
};

ingle_status tape_open_all(struct tapes **out, size_t n_bytes, size_t unread,
                        double keepalive_seconds, struct err *err)
{
    struct tapes *s = mem_zalloc(sizeof *s);
    if (!s || pthread_mutex_init(&s->lock, NULL)) {
        mem_free(s);
        return err_set(err, INGLE_NOMEM, "no memory for resumable streams");
    }
    s->n_bytes = n_bytes;
    s->unread = unread;
    s->keepalive_seconds = keepalive_seconds;
    *out = s;
    return INGLE_OK;
}

void tape_close_all(struct tapes *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

struct tape *tape_create(struct tapes *s, bool keep)
{
    struct tape *t = mem_zalloc(sizeof *t);
    if (!t)
        return NULL;
    t->tapes = s;
    t->keep = keep;
    atomic_init(&t->refs, 1);
    atomic_init(&t->cancelled, false);
    str_init(&t->bytes);
    return t;
}

struct tape *tape_ref(struct tape *t)
{
    atomic_fetch_add(&t->refs, 1);
    return t;
}

void tape_unref(struct tape *t)
{
    if (!t || atomic_fetch_sub(&t->refs, 1) != 1)
        return;
    str_release(&t->bytes);
    mem_free(t);
}

void tape_cancel(struct tape *t) { atomic_store(&t->cancelled, true); }

bool tape_cancelled(const struct tape *t) { return atomic_load(&t->cancelled); }

bool tape_keeps(const struct tape *t) { return t->keep; }

size_t tape_bytes(const struct tape *t)
{
    pthread_mutex_lock(&t->tapes->lock);
    const size_t n = t->bytes.n;
    pthread_mutex_unlock(&t->tapes->lock);
    return n;
}

/* ---- listeners ---- */

/* Takes l out of the list and puts it into *dropped, which is freed without the lock: that may
 * end the exchange, and l with it. */
static void unlist(struct listener *l, struct listener **dropped)
{
    if (!l->before)
        return;
    *l->before = l->next;
    if (l->next)
        l->next->before = l->before;
    l->before = NULL;
    l->next = *dropped;
    *dropped = l;
}

static void let_go(struct listener *dropped)
{
    while (dropped) {
        struct listener *l = dropped;
        dropped = l->next;
        tape_unref(l->tape);
        http_release(l->x);
    }
}

/* Sends what there is and the client has room for. */
static void feed(struct listener *l, struct listener **dropped)
{
    const struct tape *t = l->tape;
    const size_t unread = http_unread(l->x), room = l->tapes->unread;
    size_t n = t->bytes.n - l->at;
    if (n > room)
        n = room;
    if (n && unread < room) {
        if (!http_write(l->x, t->bytes.at + l->at, n)) {
            unlist(l, dropped);
            return;
        }
        l->at += n;
    }
    if (!t->ended || l->at < t->bytes.n)
        return;
    http_end(l->x);
    unlist(l, dropped);
}

static void feed_all(struct tapes *s, const struct tape *t)
{
    struct listener *dropped = NULL, *next;
    pthread_mutex_lock(&s->lock);
    for (struct listener *l = s->first; l; l = next) {
        next = l->next;
        if (!t || l->tape == t)
            feed(l, &dropped);
    }
    pthread_mutex_unlock(&s->lock);
    let_go(dropped);
}

void tape_tick(struct tapes *s) { feed_all(s, NULL); }

static void on_free(void *arg) { mem_free(arg); }

static void on_close(void *arg)
{
    struct listener *l = arg, *dropped = NULL;
    struct tapes *s = l->tapes;
    pthread_mutex_lock(&s->lock);
    unlist(l, &dropped);
    pthread_mutex_unlock(&s->lock);
    let_go(dropped);
}

/* Whether l has no part of an event. */
static bool between_events(const struct listener *l)
{
    const char *end = l->tape->bytes.at + l->at;
    return l->at < 2 ? !l->at : end[-1] == '\n' && end[-2] == '\n';
}

static void on_silence(void *arg)
{
    static const char comment[] = ": keep-alive\n\n";
    struct listener *l = arg;
    pthread_mutex_lock(&l->tapes->lock);
    if (l->before && between_events(l))
        (void)http_write(l->x, comment, sizeof comment - 1);
    pthread_mutex_unlock(&l->tapes->lock);
}

/* ---- writing ---- */

/* Where the event after `at` begins. */
static size_t next_event(const struct str *s, size_t at)
{
    while (at < s->n) {
        const char *lf = memchr(s->at + at, '\n', s->n - at);
        at = lf ? (size_t)(lf - s->at) + 1 : s->n;
        if (at < s->n && s->at[at] == '\n')
            return at + 1;
    }
    return s->n;
}

/* l misses events: it gets a note of that after the event that it has a part of, and no more
 * events. */
static void miss(struct listener *l, struct listener **dropped)
{
    static const char text[] =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"the stream was read too "
        "slowly: what comes next is not kept any more\",\"type\":\"server_error\",\"param\":null,"
        "\"code\":\"stream_forgotten\"}}\n\n";
    const struct str *s = &l->tape->bytes;
    const size_t end = between_events(l) ? l->at : next_event(s, l->at - 1);
    if (http_write(l->x, s->at + l->at, end - l->at) && http_write(l->x, text, sizeof text - 1))
        http_end(l->x);
    unlist(l, dropped);
}

/* Those who have not read the first `cut` bytes miss them. */
static void cut_off(struct tape *t, size_t cut, struct listener **dropped)
{
    struct listener *next;
    for (struct listener *l = t->tapes->first; l; l = next) {
        next = l->next;
        if (l->tape != t)
            continue;
        if (l->at < cut)
            miss(l, dropped);
        else
            l->at -= cut;
    }
}

/* Half of what is there. */
static void forget(struct tape *t, struct listener **dropped)
{
    size_t cut = 0;
    while (cut < t->bytes.n / 2) {
        cut = next_event(&t->bytes, cut);
        t->n_forgotten++;
    }
    cut_off(t, cut, dropped);
    t->forgotten_bytes += (int64_t)cut;
    memmove(t->bytes.at, t->bytes.at + cut, t->bytes.n - cut + 1);
    t->bytes.n -= cut;
}

void tape_write(struct tape *t, const char *bytes, size_t n)
{
    struct tapes *s = t->tapes;
    struct listener *dropped = NULL;
    if (!t->keep || !n)
        return;
    pthread_mutex_lock(&s->lock);
    str_add(&t->bytes, bytes, n);
    if (!str_ok(&t->bytes)) /* no memory for it */
        cut_off(t, SIZE_MAX, &dropped);
    else if (t->bytes.n > s->n_bytes)
        forget(t, &dropped);
    pthread_mutex_unlock(&s->lock);
    let_go(dropped);
    feed_all(s, t);
}

void tape_end(struct tape *t)
{
    pthread_mutex_lock(&t->tapes->lock);
    t->ended = true;
    pthread_mutex_unlock(&t->tapes->lock);
    feed_all(t->tapes, t);
}

/* Where the event of that number begins; false: it is forgotten. */
static bool find_event(const struct tape *t, int64_t first, size_t *at)
{
    *at = 0;
    for (int64_t i = t->n_forgotten; i < first && *at < t->bytes.n; i++)
        *at = next_event(&t->bytes, *at);
    return first >= t->n_forgotten && str_ok(&t->bytes);
}

static bool find_byte(const struct tape *t, int64_t n_bytes, size_t *at)
{
    const int64_t n = n_bytes - t->forgotten_bytes;
    *at = (size_t)n;
    return n >= 0 && (uint64_t)n <= t->bytes.n && str_ok(&t->bytes);
}

static bool listen_at(struct tape *t, struct http_exchange *x, int64_t first,
                      bool (*find)(const struct tape *t, int64_t first, size_t *at))
{
    struct tapes *s = t->tapes;
    struct listener *l = mem_zalloc(sizeof *l);
    if (!l)
        return false;
    l->tapes = s;
    l->tape = t;
    l->x = x;
    pthread_mutex_lock(&s->lock);
    const bool found = find(t, first, &l->at);
    if (found) {
        (void)tape_ref(t);
        http_hold(x);
        http_own(x, on_free, l);
        http_on_close(x, on_close, l);
        http_silence(x, s->keepalive_seconds, on_silence, l);
        http_begin(x, 200, "text/event-stream");
        l->next = s->first;
        l->before = &s->first;
        if (l->next)
            l->next->before = &l->next;
        s->first = l;
    }
    pthread_mutex_unlock(&s->lock);
    if (found)
        feed_all(s, t);
    else
        mem_free(l);
    return found;
}

bool tape_listen(struct tape *t, struct http_exchange *x, int64_t first)
{
    return listen_at(t, x, first, find_event);
}

bool tape_listen_from(struct tape *t, struct http_exchange *x, int64_t n_bytes)
{
    return listen_at(t, x, n_bytes, find_byte);
}
