/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests with a body are handled on threads of their own, one for small bodies and one for
 * large ones: reading, rendering and tokenising megabytes takes seconds, and the I/O thread
 * has other clients.  While a request is away the I/O thread leaves it and its connection
 * alone; a client that leaves meanwhile is noted, and its owner is told afterwards.
 *
 * What waits here is bounded by number and by bytes.  What one byte took of late says when
 * those that are refused should try again.
 */
#define _GNU_SOURCE /* gettid */
#include "http/inner.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

#include <sys/resource.h>
#include <unistd.h>

/* What takes a few milliseconds; and by how much the thread for more stands back. */
enum { SMALL_BODY = 64 * 1024, LARGE_NICE = 5 };

static void stand_back(void)
{
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, 0) + LARGE_NICE);
}

/* The next request; NULL: there will be none. */
static struct http_exchange *take(struct http_lane *lane)
{
    struct http *h = lane->http;
    pthread_mutex_lock(&h->lock);
    while (!lane->first && !lane->stop) {
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
    struct http_exchange *x = lane->first;
    if (x) {
        lane->first = x->next_away;
        lane->n--;
        lane->n_bytes -= x->n_body;
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

static void *lane_main(void *arg)
{
    struct http_lane *lane = arg;
    if (lane->large)
        stand_back();
    for (struct http_exchange *x; (x = take(lane)); http_release(x)) {
        const size_t n = x->n_body;
        const uint64_t began = clock_now();
        if (!http_gone(x)) {
            http_request_handle(x);
            note(lane, n, (double)(clock_now() - began) * 1e-9);
        }
        http_exchange_return(x);
    }
    return NULL;
}

bool http_lane_start(struct http_lane *lane, struct http *h, bool large)
{
    lane->http = h;
    lane->large = large;
    if (pthread_cond_init(&lane->wake, NULL))
        return false;
    lane->runs = pool_thread(&lane->thread, lane_main, lane);
    if (lane->runs)
        pthread_setname_np(lane->thread, large ? "ingle-large" : "ingle-small");
    else
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
    pthread_join(lane->thread, NULL);
    pthread_cond_destroy(&lane->wake);
    lane->runs = false;
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

/* Not the thread for large bodies: while it gives memory back the allocator keeps everybody waiting
 * (60 ms of computing for 200 MB in small pieces), and that thread stands back on a busy machine. */
void http_lane_trim(struct http *h)
{
    struct http_lane *lane = &h->lane[0];
    pthread_mutex_lock(&h->lock);
    lane->trim = true;
    pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&h->lock);
}
