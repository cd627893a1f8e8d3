/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests with a body are handled on threads of their own, one for small bodies and one for large
 * ones: reading, rendering and tokenising megabytes takes seconds, and the I/O thread has other
 * clients.  While a request is away the I/O thread leaves it and its connection alone; a client
 * that leaves meanwhile is noted, and its owner is notified afterwards.
 *
 * A request that has computed for ASIDE_NS while others wait keeps its thread, which stands back
 * and ends with it; the lane gets another one.  There are at most MOST_ASIDE such: then the lane
 * waits.
 *
 * What waits here is bounded by number and by bytes.  What one byte took recently says when those
 * that are refused should try again.
 */
#define _GNU_SOURCE /* gettid */
#include "http/inner.h"
#include "http/parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

#include <sys/resource.h>
#include <unistd.h>

/* What takes a few milliseconds; and by how much the thread for more stands back. */
enum { SMALL_BODY = 64 * 1024, LARGE_NICE = 5, ASIDE_NICE = 10, MOST_ASIDE = 4 };
enum { TRIM_BYTES = 256 * 1024 }; /* of bodies */
static const uint64_t ASIDE_NS = 1000000000;

static void stand_back(int tid, int nice)
{
    (void)setpriority(PRIO_PROCESS, (id_t)tid, getpriority(PRIO_PROCESS, 0) + nice);
}

/* Not the thread for large bodies: while it gives memory back the allocator keeps everybody waiting
 * (60 ms of computing for 200 MB in small pieces), and that thread stands back on a busy
 * machine.  Sync: http->lock */
static void ask_trim(struct http *h)
{
    struct http_lane *lane = &h->lane[0];
    lane->trim = true;
    pthread_cond_signal(&lane->wake);
}

/* The worker's last request is over.  What a large body becomes is many times as large, and the
 * allocator keeps it: it is trimmed when nothing more waits.  Sync: http->lock */
static void end_request(struct http_worker *w)
{
    struct http_lane *lane = w->lane;
    w->began = 0;
    lane->n_done += lane->large ? w->n_body : 0;
    w->n_body = 0;
    if (lane->n_done < TRIM_BYTES || lane->first)
        return;
    lane->n_done = 0;
    ask_trim(lane->http);
}

/* The next request; NULL: there will be none for this worker. */
static struct http_exchange *take(struct http_worker *w)
{
    struct http_lane *lane = w->lane;
    struct http *h = lane->http;
    pthread_mutex_lock(&h->lock);
    end_request(w);
    while (!w->aside && !lane->first && !lane->stop) {
        const bool trim = lane->trim;
        lane->trim = false;
        if (trim) {
            pthread_mutex_unlock(&h->lock);
            mem_trim();
            pthread_mutex_lock(&h->lock);
        } else {
            pthread_cond_wait(&lane->wake, &h->lock);
        }
    }
    struct http_exchange *x = w->aside ? NULL : lane->first;
    if (x) {
        lane->first = x->next_away;
        lane->n--;
        lane->n_bytes -= x->n_body;
        w->began = clock_now();
        w->n_body = x->n_body;
    }
    if (x && !lane->first)
        lane->last = NULL;
    pthread_mutex_unlock(&h->lock);
    return x;
}

/* A body of n bytes took so long; the mean forgets slowly. */
static void note(struct http_lane *lane, size_t n, double seconds)
{
    const double each = seconds / (double)(n ? n : 1);
    pthread_mutex_lock(&lane->http->lock);
    lane->byte_seconds += (each - lane->byte_seconds) / (lane->byte_seconds > 0 ? 8 : 1);
    pthread_mutex_unlock(&lane->http->lock);
}

static void *worker_main(void *arg)
{
    struct http_worker *w = arg;
    struct http *h = w->lane->http;
    pthread_mutex_lock(&h->lock);
    w->tid = gettid();
    pthread_mutex_unlock(&h->lock);
    if (w->lane->large)
        stand_back(gettid(), LARGE_NICE);
    for (struct http_exchange *x; (x = take(w)); http_release(x)) {
        const size_t n = x->n_body;
        const uint64_t began = clock_now();
        if (!http_is_closed(x)) {
            http_request_handle(x);
            if (n)
                note(w->lane, n, (double)(clock_now() - began) * 1e-9);
        }
        http_exchange_return(x);
    }
    pthread_mutex_lock(&h->lock);
    w->over = true;
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* NULL: no memory, or no thread. */
static struct http_worker *start_worker(struct http_lane *lane)
{
    struct http_worker *w = mem_zalloc(sizeof *w);
    if (!w)
        return NULL;
    w->lane = lane;
    if (!pool_thread(&w->thread, worker_main, w)) {
        mem_free(w);
        return NULL;
    }
    pthread_setname_np(w->thread, lane->large ? "ingle-large" : "ingle-small");
    return w;
}

static void end_worker(struct http_worker *w)
{
    pthread_join(w->thread, NULL);
    mem_free(w);
}

bool http_lane_start(struct http_lane *lane, struct http *h, bool large)
{
    lane->http = h;
    lane->large = large;
    if (pthread_cond_init(&lane->wake, NULL))
        return false;
    lane->worker = start_worker(lane);
    lane->runs = lane->worker != NULL;
    if (!lane->runs)
        pthread_cond_destroy(&lane->wake);
    return lane->runs;
}

void http_lane_stop(struct http_lane *lane)
{
    if (!lane->runs)
        return;
    pthread_mutex_lock(&lane->http->lock);
    lane->stop = true;
    pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&lane->http->lock);
    end_worker(lane->worker);
    pthread_cond_destroy(&lane->wake);
    lane->runs = false;
}

/* One of those aside: any, or one that is over; NULL: there is none. */
static struct http_worker *take_aside(struct http *h, bool any)
{
    pthread_mutex_lock(&h->lock);
    struct http_worker **at = &h->aside, *w;
    while (*at && !any && !(*at)->over)
        at = &(*at)->next;
    w = *at;
    if (w) {
        *at = w->next;
        h->n_aside--;
    }
    pthread_mutex_unlock(&h->lock);
    return w;
}

void http_lane_join_aside(struct http *h)
{
    for (struct http_worker *w; (w = take_aside(h, true));)
        end_worker(w);
}

/* The lane's worker, if it keeps others waiting for too long and may move aside. */
static bool is_slow(const struct http_lane *lane, uint64_t now)
{
    const struct http_worker *w = lane->worker;
    return !lane->stop && w && lane->first && w->began && now > w->began &&
           now - w->began > ASIDE_NS && lane->http->n_aside < MOST_ASIDE;
}

void http_lane_tick(struct http *h, uint64_t now)
{
    for (struct http_worker *w; (w = take_aside(h, false));)
        end_worker(w);
    for (int i = 0; i < 2; i++) {
        struct http_lane *lane = &h->lane[i];
        pthread_mutex_lock(&h->lock);
        struct http_worker *slow = is_slow(lane, now) ? lane->worker : NULL;
        struct http_worker *w = slow ? start_worker(lane) : NULL; /* it waits for the lock */
        if (w) {
            slow->aside = true;
            slow->next = h->aside;
            h->aside = slow;
            h->n_aside++;
            lane->worker = w;
            if (slow->tid)
                stand_back(slow->tid, ASIDE_NICE);
        }
        pthread_mutex_unlock(&h->lock);
    }
}

enum http_lane_answer http_lane_put(struct http_exchange *x, double *retry)
{
    struct http *h = x->http;
    struct http_lane *lane = &h->lane[x->n_body > SMALL_BODY];
    enum http_lane_answer answer = HTTP_LANE_TAKEN;
    pthread_mutex_lock(&h->lock);
    if (lane->stop) {
        answer = HTTP_LANE_STOPS;
    } else if (lane->n && (lane->n >= h->o.max_reading || lane->n_bytes > h->o.reading_bytes ||
                           x->n_body > h->o.reading_bytes - lane->n_bytes)) {
        const double wait = lane->byte_seconds * (double)lane->n_bytes;
        answer = HTTP_LANE_FULL;
        *retry = wait < 1 ? 1 : wait > 60 ? 60 : wait;
    } else {
        x->next_away = NULL;
        *(lane->last ? &lane->last->next_away : &lane->first) = x;
        lane->last = x;
        lane->n++;
        lane->n_bytes += x->n_body;
        pthread_cond_signal(&lane->wake);
        http_hold(x);
    }
    pthread_mutex_unlock(&h->lock);
    return answer;
}

void http_lane_trim(struct http *h)
{
    pthread_mutex_lock(&h->lock);
    ask_trim(h);
    pthread_mutex_unlock(&h->lock);
}
