/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch - queues of reads, and threads that read pieces where ring.c does not.
 */
#define _GNU_SOURCE
#include "expert/reads.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { ALIGN = 4096 };
static const uint64_t close_ns = 5000000000; /* a read that has not ended by then is left alone */

/* ---- lists of tickets ---- */

static void append(struct fetch *f, struct fetch_list *l, int t)
{
    f->read[t].after = -1;
    if (l->last >= 0)
        f->read[l->last].after = t;
    else
        l->first = t;
    l->last = t;
}

static void unlink_ticket(struct fetch *f, struct fetch_list *l, int t)
{
    int before = -1;
    for (int i = l->first; i >= 0 && i != t; i = f->read[i].after)
        before = i;
    if (before >= 0)
        f->read[before].after = f->read[t].after;
    else
        l->first = f->read[t].after;
    if (l->last == t)
        l->last = before;
}

/* ---- reading ---- */

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* The time of modification is what programs like it to be: the time of change is not. */
static bool same_stamp(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && same_time(a->st_mtim, b->st_mtim) &&
           same_time(a->st_ctim, b->st_ctim);
}

/* What else has happened to the file since it was opened. */
static const char *changed(const struct fetch *f)
{
    struct stat now;
    if (f->o.fd < 0 || fstat(f->o.fd, &now) != 0)
        return "";
    if (now.st_size < f->opened.st_size)
        return "; it was cut short while in use";
    return same_stamp(&now, &f->opened) ? "" : "; it was changed while in use";
}

/* The number of the file's state, under the lock. */
static uint32_t poll_residents(struct fetch *f)
{
    struct stat now;
    if (f->o.fd >= 0 && fstat(f->o.fd, &now) == 0 && !same_stamp(&now, &f->stamp)) {
        f->stamp = now;
        f->seen++;
    }
    return f->seen;
}

/* Bytes that were right a moment ago may have changed without a change of the time: it moves in
 * ticks of some milliseconds. */
static bool is_stable(const struct fetch *f)
{
    enum { SETTLE_NS = 100000000, SECOND = 1000000000 };
    struct timespec now;
    if (f->o.fd < 0 || clock_gettime(CLOCK_REALTIME, &now) != 0)
        return true;
    const int64_t seconds = now.tv_sec - f->stamp.st_ctim.tv_sec;
    return seconds < 0 || seconds > 1 ||
           seconds * SECOND + now.tv_nsec - f->stamp.st_ctim.tv_nsec >= SETTLE_NS;
}

ssize_t expert_fetch_before(const struct fetch *f, const struct fetch_piece *p, int *wait)
{
    *wait = -1;
    return f->o.hook ? f->o.hook->before(f->o.hook->arg, p->to, p->n, (off_t)p->at, wait)
                     : (ssize_t)p->n;
}

/* Whatever interrupts: after a short read the rest is requested, what fails is done once more. */
bool expert_fetch_after(const struct fetch *f, struct fetch_piece *p, ssize_t got)
{
    if (got > 0 && f->o.hook)
        got = f->o.hook->after(f->o.hook->arg, p->to, got, (off_t)p->at);
    if (got > 0) {
        p->to += got;
        p->at += (uint64_t)got;
        p->n -= (size_t)got;
        if (p->n)
            return false;
    } else if (got == -EINTR) {
        return false;
    } else if (!p->again) {
        p->again = true;
        p->retries++;
        return false;
    } else {
        p->status = INGLE_IO;
        snprintf(p->why, sizeof p->why, "%.60s at byte %llu%s",
                 got ? strerror((int)-got) : "the file ends", (unsigned long long)p->at,
                 changed(f));
    }
    if (!f->direct)
        (void)posix_fadvise(f->o.fd, (off_t)(p->at + p->n - p->all), (off_t)p->all,
                            POSIX_FADV_DONTNEED);
    return true;
}

/* Early pieces are as small as half a millisecond: a demand waits for what has begun. */
static size_t early_piece(const struct fetch *f)
{
    enum { LEAST = 128 << 10, USUAL = 256 << 10 };
    const double half_ms = 500000;
    const double n =
        f->count.busy_ns ? half_ms * (double)f->count.bytes / (double)f->count.busy_ns : USUAL;
    return n < LEAST ? LEAST : n > FETCH_PIECE ? FETCH_PIECE : (size_t)n / LEAST * LEAST;
}

/* Early reads have the time in which no demand is under way. */
static bool is_early_time(const struct fetch *f)
{
    return f->n_early < FETCH_MOST_EARLY && f->busy <= f->n_early;
}

bool expert_fetch_take(struct fetch *f, struct fetch_piece *p)
{
    for (int c = 0; c < 2; c++) {
        struct fetch_list *q = &f->queue[c];
        const int t = q->first;
        if (t < 0 || (c && !is_early_time(f)))
            continue;
        struct fetch_read *r = &f->read[t];
        const uint64_t left = r->r.bytes - r->next;
        const size_t most = c ? early_piece(f) : FETCH_PIECE;
        const size_t n = f->o.make || left < most ? (size_t)left : most;
        *p = (struct fetch_piece){.ticket = t,
                                  .to = (uint8_t *)r->r.to + r->next,
                                  .at = r->r.at + r->next,
                                  .n = n,
                                  .all = n,
                                  .what = r->r.what,
                                  .early = c > 0};
        f->n_early += c;
        r->next += n;
        r->state = FETCH_RUNNING;
        r->under_way++;
        if (r->next == r->r.bytes)
            unlink_ticket(f, q, t);
        return true;
    }
    return false;
}

/* Under the lock, which is given up meanwhile: whether the bytes are what they should be. */
static bool is_right(struct fetch *f, const struct fetch_request *q, uint32_t seen)
{
    if (!q->check || q->seen == seen)
        return true;
    pthread_mutex_unlock(&f->lock);
    const bool right = XXH3_64bits(q->to, (size_t)q->bytes) == q->sum;
    pthread_mutex_lock(&f->lock);
    return right;
}

/* All pieces are there.  True: it is read again. */
static bool check(struct fetch *f, struct fetch_read *r, int t)
{
    const uint32_t seen = poll_residents(f);
    if (is_right(f, &r->r, seen)) {
        r->seen = is_stable(f) ? seen : 0;
        return false;
    }
    if (!r->again) {
        r->again = true;
        r->next = 0;
        r->state = FETCH_QUEUED;
        f->count.retries++;
        append(f, &f->queue[!r->r.urgent], t);
        pthread_cond_broadcast(&f->more);
        return true;
    }
    r->wrong = true;
    r->status = INGLE_IO;
    snprintf(r->why, sizeof r->why, "its checksum is wrong%s", changed(f));
    return false;
}

void expert_fetch_give(struct fetch *f, const struct fetch_piece *p)
{
    struct fetch_read *r = &f->read[p->ticket];
    f->n_early -= p->early;
    if (f->queue[1].first >= 0 && is_early_time(f))
        pthread_cond_signal(&f->more);
    if (p->status && !r->status) {
        r->status = p->status;
        memcpy(r->why, p->why, sizeof r->why);
        if (r->next < r->r.bytes) { /* the rest is not wanted */
            unlink_ticket(f, &f->queue[!r->r.urgent], p->ticket);
            r->next = r->r.bytes;
        }
    }
    f->count.retries += p->retries;
    if (--r->under_way > 0 || r->next < r->r.bytes)
        return;
    if (!r->status && !r->cut && check(f, r, p->ticket))
        return;
    r->state = FETCH_DONE;
    f->count.reads++;
    f->count.bytes += r->r.bytes;
    append(f, &f->ready, p->ticket);
    pthread_cond_signal(&f->done);
}

void expert_fetch_busy(struct fetch *f, int change)
{
    const uint64_t now = clock_now();
    if (f->busy)
        f->count.busy_ns += now - f->busy_since;
    f->busy_since = now;
    f->busy += change;
}

/* ---- threads ---- */

static ssize_t read_some(const struct fetch *f, const struct fetch_piece *p)
{
    int wait;
    const ssize_t n = expert_fetch_before(f, p, &wait);
    if (n <= 0)
        return n;
    struct pollfd ready = {.fd = wait, .events = POLLIN};
    while (wait >= 0 && poll(&ready, 1, -1) < 0 && errno == EINTR)
        ;
    const ssize_t got = pread(f->o.fd, p->to, (size_t)n, (off_t)p->at);
    return got < 0 ? -errno : got;
}

static void do_piece(const struct fetch *f, void *work, struct fetch_piece *p)
{
    if (!f->o.make) {
        while (!expert_fetch_after(f, p, read_some(f, p)))
            ;
        return;
    }
    struct err err = {0};
    p->status = f->o.make(f->o.make_arg, p->what, p->to, work, &err);
    if (p->status == INGLE_IO) {
        p->retries++;
        p->status = f->o.make(f->o.make_arg, p->what, p->to, work, &err);
    }
    snprintf(p->why, sizeof p->why, "%.159s", err.msg);
}

static void destroy(struct fetch *f)
{
    const struct fetch_hook *hook = f->o.hook;
    for (int i = 0; i < FETCH_MOST_THREADS; i++)
        mem_free(f->worker[i].work);
    pthread_cond_destroy(&f->more);
    pthread_cond_destroy(&f->done);
    pthread_cond_destroy(&f->ended);
    pthread_mutex_destroy(&f->lock);
    expert_ring_close(f->ring);
    if (f->o.fd >= 0)
        (void)close(f->o.fd);
    mem_free(f->read);
    mem_free(f);
    if (hook)
        hook->over(hook->arg);
}

void expert_fetch_end(struct fetch *f, struct fetch_worker *w)
{
    const bool dead = w->state == WORKER_DEAD;
    *(dead ? &f->n_dead : &f->n_threads) -= 1;
    w->state = WORKER_ENDED;
    const bool last = f->done_fn && !f->n_dead && !f->n_threads;
    pthread_cond_signal(&f->ended);
    pthread_mutex_unlock(&f->lock);
    if (!last)
        return;
    f->done_fn(f->done_arg);
    destroy(f);
}

static void *run(void *arg)
{
    struct fetch_worker *w = arg;
    struct fetch *f = w->f;
    pthread_mutex_lock(&f->lock);
    while (!f->stop && w->state == WORKER_WORKS) {
        struct fetch_piece p;
        if (!expert_fetch_take(f, &p)) {
            pthread_cond_wait(&f->more, &f->lock);
            continue;
        }
        expert_fetch_busy(f, 1);
        w->since_ns = clock_now();
        pthread_mutex_unlock(&f->lock);
        do_piece(f, w->work, &p);
        pthread_mutex_lock(&f->lock);
        if (f->done_fn) /* nobody is there any more */
            break;
        w->since_ns = 0;
        if (w->state == WORKER_WORKS)
            expert_fetch_busy(f, -1);
        expert_fetch_give(f, &p);
    }
    expert_fetch_end(f, w);
    return NULL;
}

/* ---- the owner's side ---- */

/* Sets direct I/O on the file and reads a page: some file systems take the flag and refuse the
 * read. */
static bool try_direct(const struct fetch_options *o)
{
    const int flags = fcntl(o->fd, F_GETFL);
    if (flags < 0 || fcntl(o->fd, F_SETFL, flags | O_DIRECT) != 0)
        return false;
    void *page = mem_big_alloc(MEM_BIG_PAGE); /* which begins on a border */
    const bool ok = page && pread(o->fd, page, ALIGN, (off_t)o->test_at) == ALIGN;
    if (page)
        mem_big_free(page, MEM_BIG_PAGE);
    if (!ok)
        (void)fcntl(o->fd, F_SETFL, flags);
    return ok;
}

/* A thread in a place that has none, under the lock.  INGLE_LIMIT: there is no such place. */
static ingle_status start_thread(struct fetch *f, struct err *err)
{
    for (int i = 0; i < FETCH_MOST_THREADS; i++) {
        struct fetch_worker *w = &f->worker[i];
        if (w->state == WORKER_ENDED) {
            pthread_join(w->thread, NULL);
            w->state = WORKER_NONE;
        }
        if (w->state != WORKER_NONE)
            continue;
        w->f = f;
        w->since_ns = 0;
        if (f->o.make_work && !w->work && !(w->work = mem_alloc(f->o.make_work)))
            return err_set(err, INGLE_NOMEM, "no %zu bytes for a thread that reads experts",
                           f->o.make_work);
        w->state = WORKER_WORKS;
        if (pthread_create(&w->thread, NULL, f->ring ? expert_ring_run : run, w) != 0) {
            w->state = WORKER_NONE;
            return err_set(err, INGLE_NOMEM, "cannot start a thread that reads experts");
        }
        f->n_threads++;
        return INGLE_OK;
    }
    return err_set(err, INGLE_LIMIT, "%d threads that read experts are too many",
                   FETCH_MOST_THREADS);
}

static int wanted_threads(const struct fetch *f)
{
    return f->ring                               ? 1
           : f->o.n_threads > FETCH_MOST_THREADS ? FETCH_MOST_THREADS
           : f->o.n_threads                      ? f->o.n_threads
                                                 : FETCH_USUAL_THREADS;
}

static ingle_status start_threads(struct fetch *f, struct err *err)
{
    ingle_status s = INGLE_OK;
    pthread_mutex_lock(&f->lock);
    while (!s && f->n_threads < wanted_threads(f))
        s = start_thread(f, err);
    pthread_mutex_unlock(&f->lock);
    return s;
}

/* Threads read where there is no ring. */
static void open_ring(struct fetch *f)
{
    struct err err;
    if (f->o.by == FETCH_BY_THREADS)
        return;
    if (f->o.make)
        snprintf(f->no_ring, sizeof f->no_ring, "experts are packed while they are read");
    else if (expert_ring_open(&f->ring, &err))
        snprintf(f->no_ring, sizeof f->no_ring, "%.119s", err.msg);
}

ingle_status expert_fetch_open(struct fetch **out, const struct fetch_options *o, struct err *err)
{
    struct fetch *f = mem_zalloc(sizeof *f);
    if (f)
        f->read = mem_calloc((size_t)o->n_tickets, sizeof *f->read);
    if (!f || !f->read) {
        mem_free(f);
        return err_set(err, INGLE_NOMEM, "no memory to read experts");
    }
    f->o = *o;
    f->queue[0] = f->queue[1] = f->ready = (struct fetch_list){-1, -1};
    f->seen = FETCH_OPENED;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->more, NULL);
    pthread_cond_init(&f->done, &clock);
    pthread_cond_init(&f->ended, &clock);
    pthread_condattr_destroy(&clock);
    ingle_status s = INGLE_OK;
    if (o->fd >= 0) { /* its own descriptor: a read may be under way when the owner's is closed */
        f->o.fd = fcntl(o->fd, F_DUPFD_CLOEXEC, 0);
        if (f->o.fd < 0)
            s = err_set(err, INGLE_IO, "%s: cannot open it once more: %s", o->path,
                        strerror(errno));
        (void)fstat(o->fd, &f->opened);
        f->stamp = f->opened;
        f->direct = o->io != FETCH_CACHED && try_direct(o);
        if (!f->direct)
            (void)posix_fadvise(o->fd, 0, 0, POSIX_FADV_RANDOM);
    }
    if (!s && o->io == FETCH_DIRECT && !f->direct)
        s = err_set(
            err, INGLE_UNSUP,
            "%s: this file cannot be read directly: the file system has no direct I/O for it",
            o->path);
    if (!s)
        open_ring(f);
    if (!s)
        s = start_threads(f, err);
    if (s)
        expert_fetch_close(f, NULL, NULL);
    else
        *out = f;
    return s;
}

static void nothing(void *arg)
{
    (void)arg;
}

/* Under the lock: there is work for one thread, or for all. */
static void wake(struct fetch *f, bool all)
{
    if (f->ring)
        expert_ring_wake(f->ring);
    else if (all)
        pthread_cond_broadcast(&f->more);
    else
        pthread_cond_signal(&f->more);
}

void expert_fetch_close(struct fetch *f, void (*done_fn)(void *arg), void *arg)
{
    done_fn = done_fn ? done_fn : nothing;
    if (!f) {
        done_fn(arg);
        return;
    }
    const struct timespec until = clock_at(clock_now() + close_ns);
    int timeout = 0;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    wake(f, true);
    /* What make() touches is the owner's, and goes with it: those are waited for in any case. */
    while (f->o.make ? f->n_threads + f->n_dead > 0 : f->n_threads > 0 && !timeout)
        timeout = f->o.make ? pthread_cond_wait(&f->ended, &f->lock)
                            : pthread_cond_timedwait(&f->ended, &f->lock, &until);
    const bool left = f->n_threads + f->n_dead > 0;
    for (int i = 0; i < FETCH_MOST_THREADS; i++) {
        struct fetch_worker *w = &f->worker[i];
        if (w->state == WORKER_ENDED)
            pthread_join(w->thread, NULL);
        else if (w->state != WORKER_NONE)
            pthread_detach(w->thread);
    }
    if (left) {
        f->done_fn = done_fn;
        f->done_arg = arg;
    }
    pthread_mutex_unlock(&f->lock);
    if (left)
        return;
    done_fn(arg);
    destroy(f);
}

int expert_fetch_reset(struct fetch *f, uint64_t longer_ns)
{
    pthread_mutex_lock(&f->lock);
    const uint64_t now = clock_now();
    int n = f->ring ? expert_ring_lose(f, longer_ns) : 0;
    for (int i = 0; i < FETCH_MOST_THREADS; i++) {
        struct fetch_worker *w = &f->worker[i];
        if (w->state != WORKER_WORKS || !w->since_ns || now - w->since_ns < longer_ns)
            continue;
        w->state = WORKER_DEAD;
        expert_fetch_busy(f, -1);
        f->n_threads--;
        f->n_dead++;
    }
    while (f->n_threads < wanted_threads(f) && !start_thread(f, NULL))
        ;
    n += f->n_dead;
    pthread_mutex_unlock(&f->lock);
    return n;
}

const char *expert_fetch_no_ring(const struct fetch *f)
{
    return f->ring ? NULL : f->no_ring;
}

bool expert_fetch_is_direct(const struct fetch *f)
{
    return f->direct;
}

void expert_fetch_submit(struct fetch *f, const struct fetch_request *r)
{
    pthread_mutex_lock(&f->lock);
    struct fetch_read *to = &f->read[r->ticket];
    BUG_IF(to->state != FETCH_IDLE);
    *to = (struct fetch_read){.r = *r, .state = FETCH_QUEUED, .since_ns = clock_now()};
    append(f, &f->queue[!r->urgent], r->ticket);
    wake(f, !f->o.make); /* one read has work for several */
    pthread_mutex_unlock(&f->lock);
}

void expert_fetch_hurry(struct fetch *f, int ticket)
{
    pthread_mutex_lock(&f->lock);
    struct fetch_read *r = &f->read[ticket];
    if (!r->r.urgent && (r->state == FETCH_QUEUED || r->state == FETCH_RUNNING) &&
        r->next < r->r.bytes) {
        unlink_ticket(f, &f->queue[1], ticket);
        append(f, &f->queue[0], ticket);
        wake(f, !f->o.make);
    }
    r->r.urgent = true;
    pthread_mutex_unlock(&f->lock);
}

bool expert_fetch_drop(struct fetch *f, int ticket)
{
    pthread_mutex_lock(&f->lock);
    struct fetch_read *r = &f->read[ticket];
    const bool begun = r->state == FETCH_RUNNING, rest = begun && r->next < r->r.bytes;
    if (rest || r->state == FETCH_QUEUED)
        unlink_ticket(f, &f->queue[!r->r.urgent], ticket);
    if (rest) {
        r->r.bytes = r->next;
        r->cut = true;
    }
    const bool dropped = r->state == FETCH_QUEUED || (rest && !r->under_way);
    if (dropped) {
        f->count.bytes += begun ? r->r.bytes : 0;
        r->state = FETCH_IDLE;
    }
    pthread_mutex_unlock(&f->lock);
    return dropped;
}

int expert_fetch_poll(struct fetch *f, struct fetch_done *out, int n, uint64_t until_ns)
{
    int got = 0;
    pthread_mutex_lock(&f->lock);
    while (f->ready.first < 0 && until_ns && clock_now() < until_ns) {
        const struct timespec until = clock_at(until_ns);
        pthread_cond_timedwait(&f->done, &f->lock, &until);
    }
    for (int t; got < n && (t = f->ready.first) >= 0; got++) {
        struct fetch_read *r = &f->read[t];
        unlink_ticket(f, &f->ready, t);
        r->state = FETCH_IDLE;
        out[got] = (struct fetch_done){.ticket = t,
                                       .status = r->status,
                                       .ns = clock_now() - r->since_ns,
                                       .seen = r->seen,
                                       .wrong = r->wrong};
        memcpy(out[got].why, r->why, sizeof out->why);
    }
    pthread_mutex_unlock(&f->lock);
    return got;
}

void expert_fetch_count(struct fetch *f, struct fetch_counts *out)
{
    pthread_mutex_lock(&f->lock);
    expert_fetch_busy(f, 0);
    *out = f->count;
    const int lost = f->ring ? expert_ring_lost(f->ring) : 0;
    out->stuck = (uint64_t)f->n_dead + (uint64_t)lost;
    pthread_mutex_unlock(&f->lock);
}
