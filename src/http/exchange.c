/* SPDX-License-Identifier: Apache-2.0
 *
 * An answer on its way: other threads append to its buffer under its lock, the I/O thread
 * hands the bytes to libmicrohttpd, which asks for them when the socket takes more.  While
 * nothing is there the connection is suspended.
 */
#include "http/inner.h"
#include "http/parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* What is on its way when a stream is full comes still, and an answer's last event may hold all of
 * it: so many times ring_bytes may be unread before another write. */
enum { BURST = 64 };
/* A whole answer that counts for nothing: there are as many as connections. */
enum { SMALL_REPLY = 64 * 1024 };
/* While there is no room for others, who has taken nothing for so long goes. */
static const uint64_t PATIENCE_NS = 1000000000;

struct http_exchange *http_exchange_create(struct http *h, struct http_conn *c)
{
    struct http_exchange *x = mem_zalloc(sizeof *x);
    if (!x)
        return NULL;
    if (pthread_mutex_init(&x->lock, NULL)) {
        mem_free(x);
        return NULL;
    }
    atomic_init(&x->refs, 1);
    x->http = h;
    x->conn = c;
    x->last_write = x->last_drain = x->last_silence = clock_now();
    str_init(&x->header);
    x->rq.exchange = x;
    atomic_fetch_add(&h->n_exchanges, 1);
    return x;
}

void http_hold(struct http_exchange *x) { atomic_fetch_add(&x->refs, 1); }

void http_release(struct http_exchange *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    if (x->own_fn)
        x->own_fn(x->own_arg);
    str_release(&x->header);
    mem_free(x->content_type);
    mem_free(x->out);
    mem_free(x->path);
    mem_free(x->body);
    pthread_mutex_destroy(&x->lock);
    mem_free(x);
}

void http_own(struct http_exchange *x, void (*free_fn)(void *arg), void *arg)
{
    x->own_fn = free_fn;
    x->own_arg = arg;
}

void http_tag(struct http_exchange *x, int tag) { x->tag = tag; }
int http_get_tag(const struct http_exchange *x) { return x->tag; }

void http_on_close(struct http_exchange *x, void (*fn)(void *arg), void *arg)
{
    x->close_fn = fn;
    x->close_arg = arg;
}

void http_on_room(struct http_exchange *x, void (*fn)(void *arg), void *arg)
{
    x->room_fn = fn;
    x->room_arg = arg;
}

void http_silence(struct http_exchange *x, double seconds, void (*fn)(void *arg), void *arg)
{
    x->silence_fn = fn;
    x->silence_arg = arg;
    x->silence_ns = seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
    x->last_silence = clock_now();
}

/* Asks the I/O thread to look after x, whose lock is held.  The result is for signal_thread(), when
 * the lock is free: the I/O thread would only wait for it. */
static struct http *queue(struct http_exchange *x)
{
    struct http *h = x->http;
    if (!h)
        return NULL;
    pthread_mutex_lock(&h->lock);
    const bool first = !h->ready;
    if (!x->queued) {
        x->queued = true;
        x->next = h->ready;
        h->ready = x;
        http_hold(x);
    }
    pthread_mutex_unlock(&h->lock);
    if (!first)
        return NULL;
    atomic_fetch_add(&h->n_signals, 1);
    return h;
}

/* h waits for it before it is freed. */
static void signal_thread(struct http *h)
{
    if (!h)
        return;
    (void)eventfd_write(h->wake, 1);
    atomic_fetch_sub(&h->n_signals, 1);
}

/* ---- the writers' side ---- */

static void add_header(struct http_exchange *x, const char *name, const char *value)
{
    const size_t start = x->header.n + strlen(name) + 1;
    str_add(&x->header, name, strlen(name) + 1);
    str_add(&x->header, value, strlen(value) + 1);
    if (!str_ok(&x->header))
        return;
    for (size_t i = start; i + 1 < x->header.n; i++)
        if ((unsigned char)x->header.at[i] < ' ' || x->header.at[i] == 0x7F)
            x->header.at[i] = ' ';
}

void http_header(struct http_exchange *x, const char *name, const char *value)
{
    pthread_mutex_lock(&x->lock);
    if (x->state == HTTP_OPEN)
        add_header(x, name, value);
    pthread_mutex_unlock(&x->lock);
}

/* Appends to what waits; false when memory is out. */
static bool append(struct http_exchange *x, const void *bytes, size_t n)
{
    if (x->n_sent && x->n_sent >= x->n_out / 2) {
        memmove(x->out, x->out + x->n_sent, x->n_out - x->n_sent);
        x->n_out -= x->n_sent;
        x->n_sent = 0;
    }
    size_t want;
    if (!num_add(x->n_out, n, &want) || (want && !mem_grow(&x->out, &x->cap_out, want, 1)))
        return false;
    if (n)
        memcpy(x->out + x->n_out, bytes, n);
    x->n_out = want;
    return true;
}

static bool start(struct http_exchange *x, int status, const char *content_type)
{
    if (x->state != HTTP_OPEN || x->closed)
        return false;
    x->status = status;
    x->content_type = content_type ? mem_strdup(content_type) : NULL;
    x->state = HTTP_STARTED;
    x->last_write = x->last_drain = x->full_mark = clock_now();
    x->n_taken = 0;
    return true;
}

/* Counts a whole answer of n bytes; false: there is no room for it. */
static bool reserve(struct http_exchange *x, size_t n)
{
    pthread_mutex_lock(&x->lock);
    struct http *h = x->http;
    bool ok = h && !x->closed;
    if (ok) {
        size_t now = atomic_load(&h->replies_bytes);
        do
            ok = now <= h->o.replies_bytes && n <= h->o.replies_bytes - now;
        while (ok && !atomic_compare_exchange_weak(&h->replies_bytes, &now, now + n));
        x->n_counted += ok ? n : 0;
        if (!ok) {
            atomic_store(&h->no_room, true);
            atomic_fetch_add(&h->n_no_room, 1);
        }
    } else {
        ok = true; /* nobody gets it */
    }
    pthread_mutex_unlock(&x->lock);
    return ok;
}

static void say_no_room(struct http_exchange *x)
{
    static const char text[] = "too much waits in answers that are not read (--limit replies)";
    pthread_mutex_lock(&x->lock);
    const struct http *h = x->http;
    pthread_mutex_unlock(&x->lock);
    http_header(x, "Retry-After", "1");
    if (h && h->o.refuse)
        h->o.refuse(h->o.arg, x, &x->rq, 503, text);
    else
        http_reply(x, 503, "text/plain; charset=utf-8", text, sizeof text - 1);
}

void http_reply(struct http_exchange *x, int status, const char *content_type, const void *bytes,
                size_t n)
{
    struct http *h = NULL;
    if (n > SMALL_REPLY && !reserve(x, n)) {
        say_no_room(x);
        return;
    }
    pthread_mutex_lock(&x->lock);
    if (start(x, status, content_type)) {
        x->whole = true;
        x->state = HTTP_ENDED;
        if (!append(x, bytes, n))
            x->closed = true;
        h = queue(x);
    }
    pthread_mutex_unlock(&x->lock);
    signal_thread(h);
}

void http_begin(struct http_exchange *x, int status, const char *content_type)
{
    pthread_mutex_lock(&x->lock);
    struct http *h = start(x, status, content_type) ? queue(x) : NULL;
    pthread_mutex_unlock(&x->lock);
    signal_thread(h);
}

size_t http_exchange_unread(const struct http_exchange *x) { return x->n_out - x->n_sent; }

bool http_write(struct http_exchange *x, const void *bytes, size_t n)
{
    struct http *h = NULL;
    pthread_mutex_lock(&x->lock);
    bool ok = x->http && !x->closed && x->state == HTTP_STARTED;
    if (ok) {
        const size_t unread = http_exchange_unread(x);
        x->last_write = clock_now();
        if (!unread)
            x->last_drain = x->last_write;
        if (unread / BURST > x->http->o.ring_bytes) {
            atomic_fetch_add(&x->http->n_overruns, 1);
            ok = false;
        } else {
            ok = append(x, bytes, n);
        }
        x->closed = !ok;
        h = queue(x);
    }
    pthread_mutex_unlock(&x->lock);
    signal_thread(h);
    return ok;
}

/* Under its lock, while it has its server. */
static void end_full(struct http_exchange *x)
{
    if (x->full_since)
        atomic_fetch_add(&x->http->full_ns, clock_now() - x->full_since);
    x->full_since = 0;
}

bool http_full(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    const bool live = x->http && !x->closed && x->state == HTTP_STARTED;
    if (live && !x->full_since && http_exchange_unread(x) > x->http->o.ring_bytes) {
        x->full_since = x->full_mark = clock_now();
        x->n_taken = 0;
        atomic_fetch_add(&x->http->n_full, 1);
    }
    const bool full = live && x->full_since;
    pthread_mutex_unlock(&x->lock);
    return full;
}

void http_end(struct http_exchange *x)
{
    struct http *h = NULL;
    pthread_mutex_lock(&x->lock);
    if (x->state == HTTP_STARTED && !x->closed) {
        end_full(x);
        x->state = HTTP_ENDED;
        x->full_mark = clock_now();
        x->n_taken = 0;
        h = queue(x);
    }
    pthread_mutex_unlock(&x->lock);
    signal_thread(h);
}

bool http_is_closed(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    const bool closed = x->closed || !x->http;
    pthread_mutex_unlock(&x->lock);
    return closed;
}

enum http_poll http_poll(struct http_exchange *x)
{
    enum http_poll answer = HTTP_WANTED;
    pthread_mutex_lock(&x->lock);
    const struct http *h = x->http;
    if (!h || x->closed)
        answer = HTTP_LEFT;
    else if (h->o.request_seconds > 0 &&
             (double)(clock_now() - x->arrived) > h->o.request_seconds * 1e9)
        answer = HTTP_LATE;
    else if (atomic_load(&h->ending))
        answer = HTTP_ENDING;
    pthread_mutex_unlock(&x->lock);
    return answer;
}

uint64_t http_arrived(const struct http_exchange *x) { return x->arrived; }

void http_takes_long(struct http_exchange *x) { x->takes_long = true; }

size_t http_unread(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    const size_t n = http_exchange_unread(x);
    pthread_mutex_unlock(&x->lock);
    return n;
}

void http_exchange_return(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->returned = true;
    struct http *h = queue(x);
    pthread_mutex_unlock(&x->lock);
    signal_thread(h);
}

/* ---- the I/O thread's side ---- */

/* Notifies the owner, once, and only of an answer that had not been finished. */
static void notify_closed(struct http_exchange *x, bool was_ended)
{
    if (x->close_called)
        return;
    x->close_called = true;
    if (was_ended)
        return;
    atomic_fetch_add(&x->http->n_disconnected, 1);
    if (x->close_fn)
        x->close_fn(x->close_arg);
}

static void resume(struct http_exchange *x)
{
    if (!x->suspended)
        return;
    x->suspended = false;
    MHD_resume_connection(x->conn->mhd);
}

void http_exchange_drop(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    const bool was_ended = x->state == HTTP_ENDED;
    x->closed = true;
    pthread_mutex_unlock(&x->lock);
    if (x->away)
        return; /* the rest when it comes back */
    notify_closed(x, was_ended);
    /* libmicrohttpd sees the end of the connection in whatever it does with it. */
    shutdown(x->conn->fd, SHUT_RDWR);
    resume(x);
}

void http_exchange_attend(struct http_exchange *x)
{
    if (!x->conn)
        return;
    pthread_mutex_lock(&x->lock);
    const bool away = x->away && !x->returned;
    const bool closed = x->closed || (x->conn->hung_up && x->away && x->state != HTTP_ENDED);
    pthread_mutex_unlock(&x->lock);
    if (away)
        return;
    if (x->away) {
        x->last_silence = clock_now();
        http_request_forget_body(x);
    }
    x->away = false;
    if (closed)
        http_exchange_drop(x);
    else
        resume(x);
}

/* The client takes too little; x's lock is held.  A writer that stops for it is kept waiting only
 * when it is full, any other one by all that is there. */
static bool is_late(const struct http_exchange *x, uint64_t now)
{
    const bool ended = x->state == HTTP_ENDED;
    const size_t unread = http_exchange_unread(x);
    const bool waits = x->answered && (ended || unread);
    const bool much = ended ? unread > x->http->o.ring_bytes / 2 : x->room_fn != NULL;
    const uint64_t since = much ? x->full_mark : x->last_drain;
    /* The last bytes of a finished answer are in buffers that have no notification. */
    const double limit = x->http->o.stall_seconds * (ended ? 3 : 1);
    if (waits && x->n_counted && unread && now < x->http->pressed_until && now > x->last_drain &&
        now - x->last_drain > PATIENCE_NS)
        return true;
    if (!ended && x->room_fn && !x->full_since)
        return false;
    return waits && now > since && (double)(now - since) > limit * 1e9;
}

void http_exchange_tick(struct http_exchange *x, uint64_t now)
{
    if (x->away)
        return;
    pthread_mutex_lock(&x->lock);
    const bool ended = x->state == HTTP_ENDED, late = is_late(x, now), full = x->full_since;
    const uint64_t written = x->last_write;
    pthread_mutex_unlock(&x->lock);
    if (late) {
        atomic_fetch_add(&x->http->n_overruns, 1);
        http_exchange_drop(x);
        return;
    }
    if (!x->silence_fn || !x->silence_ns || ended || full || !x->handled || x->close_called)
        return;
    const uint64_t last = written > x->last_silence ? written : x->last_silence;
    if (now > last && now - last >= x->silence_ns) {
        x->last_silence = now;
        x->silence_fn(x->silence_arg);
    }
}

/* The client has taken n bytes more; x's lock is held.  True: a stream that was full has room. */
static bool take(struct http_exchange *x, size_t n)
{
    const size_t half = x->http->o.ring_bytes / 2;
    x->n_sent += n;
    x->last_drain = clock_now();
    x->n_taken += n;
    if (x->n_taken >= half) {
        x->n_taken = 0;
        x->full_mark = x->last_drain;
    }
    if (!x->full_since || http_exchange_unread(x) > half)
        return false;
    end_full(x);
    return true;
}

/* libmicrohttpd asks for up to max bytes of the answer. */
static ssize_t read_answer(void *arg, uint64_t at, char *to, size_t max)
{
    struct http_exchange *x = arg;
    (void)at;
    ssize_t result;
    bool room = false;
    pthread_mutex_lock(&x->lock);
    const size_t unread = http_exchange_unread(x), n = unread < max ? unread : max;
    if (x->closed) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (n) {
        memcpy(to, x->out + x->n_sent, n);
        room = take(x, n);
        result = (ssize_t)n;
    } else if (x->state == HTTP_ENDED) {
        x->last_drain = clock_now();
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = true;
        result = 0;
    }
    pthread_mutex_unlock(&x->lock);
    if (result == 0)
        MHD_suspend_connection(x->conn->mhd);
    if (room)
        x->room_fn(x->room_arg);
    return result;
}

static void answer_freed(void *arg) { http_release(arg); }

/* The answer with its headers, or NULL. */
static struct MHD_Response *response(struct http_exchange *x)
{
    http_hold(x); /* the response's */
    struct MHD_Response *r = MHD_create_response_from_callback(
        x->whole ? x->n_out : MHD_SIZE_UNKNOWN, 32768, read_answer, x, answer_freed);
    if (!r) {
        http_release(x);
        return NULL;
    }
    bool ok = str_ok(&x->header);
    for (const char *p = x->header.at; ok && p < x->header.at + x->header.n;) {
        const char *value = p + strlen(p) + 1;
        /* What breaks the rules of header values was replaced: a refusal is no memory. */
        ok = MHD_add_response_header(r, p, value) == MHD_YES;
        p = value + strlen(value) + 1;
    }
    if (ok && x->content_type)
        ok = MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, x->content_type) == MHD_YES;
    if (ok && (x->close || atomic_load(&x->http->letting_go)))
        ok = MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES;
    if (!ok) {
        MHD_destroy_response(r);
        return NULL;
    }
    return r;
}

enum MHD_Result http_exchange_answer(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    const bool closed = x->closed;
    const bool begun = x->state != HTTP_OPEN;
    pthread_mutex_unlock(&x->lock);
    if (closed)
        return MHD_NO;
    if (!begun) {
        x->suspended = true;
        MHD_suspend_connection(x->conn->mhd);
        return MHD_YES;
    }
    pthread_mutex_lock(&x->lock);
    const unsigned int status = (unsigned int)x->status;
    struct MHD_Response *r = response(x);
    pthread_mutex_unlock(&x->lock);
    if (!r)
        return MHD_NO;
    const enum MHD_Result ok = MHD_queue_response(x->conn->mhd, status, r);
    x->answered = true;
    MHD_destroy_response(r);
    return ok;
}

void http_exchange_finish(struct http_exchange *x)
{
    struct http *h = x->http;
    pthread_mutex_lock(&x->lock);
    const bool was_ended = x->state == HTTP_ENDED;
    x->closed = x->closed || !was_ended;
    pthread_mutex_unlock(&x->lock);
    notify_closed(x, was_ended);
    pthread_mutex_lock(&x->lock);
    end_full(x);
    atomic_fetch_sub(&h->replies_bytes, x->n_counted);
    x->n_counted = 0;
    http_room_give(x);
    x->http = NULL;
    x->conn->x = NULL;
    x->conn = NULL;
    pthread_mutex_unlock(&x->lock);
    atomic_fetch_sub(&h->bodies_bytes, x->n_body);
    x->n_body = 0;
    if (x->tag && h->o.finished)
        h->o.finished(h->o.arg, x->tag);
    atomic_fetch_sub(&h->n_exchanges, 1);
    http_release(x);
}
