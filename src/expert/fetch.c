/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch - threads that read pieces.
 *
 * One lock guards the table of reads, both queues and the list of what is done.  A thread holds it to take a piece and to
 * give one back, never while it reads.
 */
#define _GNU_SOURCE
#include "expert/fetch.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { PIECE = 1 << 20, MOST_THREADS = 16, USUAL_THREADS = 4, ALIGN = 4096 };
enum state { IDLE, QUEUED, RUNNING, DONE };

/* Sync: f->lock. */
struct read {
    struct fetch_request r;
    enum state state;
    uint64_t next;   /* first byte that no thread has taken */
    int under_way;   /* pieces */
    int after;       /* in its queue or in the list of done ones; -1: the last */
    uint64_t since_ns;
    ingle_status status;
    char why[160];
};

struct list { int first, last; };

struct worker { struct fetch *f; void *work; };

struct fetch {
    struct fetch_options o;
    bool direct;
    struct stat stamp;
    pthread_mutex_t lock;
    pthread_cond_t more, done; /* for threads; for the owner */
    struct read *read;         /* [o.n_tickets] */
    struct list queue[2], ready; /* Sync: lock.  demands, early ones; done */
    bool stop;                 /* Sync: lock */
    int busy;                  /* Sync: lock.  pieces under way */
    uint64_t busy_since;       /* Sync: lock */
    struct fetch_counts count; /* Sync: lock */
    int n_threads;
    pthread_t thread[MOST_THREADS];
    struct worker worker[MOST_THREADS];
};

/* ---- lists of tickets ---- */

static void append(struct fetch *f, struct list *l, int t)
{
    f->read[t].after = -1;
    if (l->last >= 0)
        f->read[l->last].after = t;
    else
        l->first = t;
    l->last = t;
}

static void unlink_ticket(struct fetch *f, struct list *l, int t)
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

static ssize_t plain_read(void *arg, int fd, void *to, size_t n, off_t at)
{
    (void)arg;
    return pread(fd, to, n, at);
}

/* What else has happened to the file since it was opened. */
static const char *changed(const struct fetch *f)
{
    struct stat now;
    if (f->o.fd < 0 || fstat(f->o.fd, &now) != 0)
        return "";
    if (now.st_size < f->stamp.st_size)
        return "; it was cut short while in use";
    const bool same = now.st_size == f->stamp.st_size && now.st_mtim.tv_sec == f->stamp.st_mtim.tv_sec &&
                      now.st_mtim.tv_nsec == f->stamp.st_mtim.tv_nsec;
    return same ? "" : "; it was written to while in use";
}

/* n bytes, whatever interrupts: a short read is asked for again, a failed one once more. */
static ingle_status read_piece(struct fetch *f, uint8_t *to, size_t n, uint64_t at, uint64_t *retries, char why[160])
{
    bool again = false;
    while (n) {
        const ssize_t got = f->o.read(f->o.read_arg, f->o.fd, to, n, (off_t)at);
        if (got > 0) {
            to += got;
            at += (uint64_t)got;
            n -= (size_t)got;
            continue;
        }
        if (got < 0 && errno == EINTR)
            continue;
        if (!again) {
            again = true;
            ++*retries;
            continue;
        }
        snprintf(why, 160, "%.60s at byte %llu%s", got < 0 ? strerror(errno) : "the file ends", (unsigned long long)at, changed(f));
        return INGLE_IO;
    }
    return INGLE_OK;
}

/* The next piece of a read that is not taken; -1: none.  Under the lock. */
static int take(struct fetch *f, uint64_t *at, size_t *n)
{
    for (int c = 0; c < 2; c++) {
        struct list *q = &f->queue[c];
        const int t = q->first;
        if (t < 0)
            continue;
        struct read *r = &f->read[t];
        *at = r->next;
        const uint64_t left = r->r.bytes - r->next;
        *n = f->o.make ? (size_t)left : left < PIECE ? (size_t)left : PIECE;
        r->next += *n;
        r->state = RUNNING;
        r->under_way++;
        if (r->next == r->r.bytes)
            unlink_ticket(f, q, t);
        return t;
    }
    return -1;
}

static void check_sum(struct fetch *f, const struct fetch_request *q, ingle_status *s, char why[160])
{
    if (*s || !q->check || XXH3_64bits(q->to, (size_t)q->bytes) == q->sum)
        return;
    *s = INGLE_IO;
    snprintf(why, 160, "its checksum is wrong%s", changed(f));
}

/* A piece of read t is over.  Under the lock, which is given up for a sum. */
static void give(struct fetch *f, int t, ingle_status s, const char *why)
{
    struct read *r = &f->read[t];
    if (s && !r->status) {
        r->status = s;
        snprintf(r->why, sizeof r->why, "%s", why);
        if (r->next < r->r.bytes) { /* the rest is not wanted */
            unlink_ticket(f, &f->queue[!r->r.urgent], t);
            r->next = r->r.bytes;
        }
    }
    if (--r->under_way > 0 || r->next < r->r.bytes)
        return;
    if (r->r.check && !r->status) {
        char bad[160] = "";
        ingle_status sum = INGLE_OK;
        pthread_mutex_unlock(&f->lock);
        check_sum(f, &r->r, &sum, bad);
        pthread_mutex_lock(&f->lock);
        r->status = sum;
        memcpy(r->why, bad, sizeof bad);
    }
    r->state = DONE;
    f->count.reads++;
    f->count.bytes += r->r.bytes;
    append(f, &f->ready, t);
    pthread_cond_signal(&f->done);
}

static void count_busy(struct fetch *f, int change)
{
    const uint64_t now = clock_now();
    if (f->busy)
        f->count.busy_ns += now - f->busy_since;
    f->busy_since = now;
    f->busy += change;
}

static void *run(void *arg)
{
    const struct worker *w = arg;
    struct fetch *f = w->f;
    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        uint64_t at = 0, retries = 0;
        size_t n = 0;
        char why[160] = "";
        const int t = take(f, &at, &n);
        if (t < 0) {
            pthread_cond_wait(&f->more, &f->lock);
            continue;
        }
        count_busy(f, 1);
        const struct fetch_request r = f->read[t].r;
        pthread_mutex_unlock(&f->lock);
        ingle_status s;
        if (f->o.make) {
            struct err err = {0};
            s = f->o.make(f->o.make_arg, r.what, r.to, w->work, &err);
            snprintf(why, sizeof why, "%.159s", err.msg);
        } else {
            s = read_piece(f, (uint8_t *)r.to + at, n, r.at + at, &retries, why);
            if (!f->direct)
                (void)posix_fadvise(f->o.fd, (off_t)(r.at + at), (off_t)n, POSIX_FADV_DONTNEED);
        }
        pthread_mutex_lock(&f->lock);
        f->count.retries += retries;
        count_busy(f, -1);
        give(f, t, s, why);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- the owner's side ---- */

/* Sets direct I/O on the file and reads a page: some file systems take the flag and refuse the read. */
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

static ingle_status start_threads(struct fetch *f, struct err *err)
{
    const int n = f->o.n_threads ? f->o.n_threads : USUAL_THREADS;
    for (int i = 0; i < n && i < MOST_THREADS; i++) {
        f->worker[i] = (struct worker){f, f->o.make_work ? mem_alloc(f->o.make_work) : NULL};
        if (f->o.make_work && !f->worker[i].work)
            return err_set(err, INGLE_NOMEM, "no %zu bytes for a thread that reads experts", f->o.make_work);
        if (pthread_create(&f->thread[i], NULL, run, &f->worker[i]) != 0) {
            mem_free(f->worker[i].work);
            return err_set(err, INGLE_NOMEM, "cannot start a thread that reads experts");
        }
        f->n_threads++;
    }
    return INGLE_OK;
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
    f->o.read = o->read ? o->read : plain_read;
    f->queue[0] = f->queue[1] = f->ready = (struct list){-1, -1};
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->more, NULL);
    pthread_cond_init(&f->done, &clock);
    pthread_condattr_destroy(&clock);
    if (o->fd >= 0) {
        (void)fstat(o->fd, &f->stamp);
        f->direct = o->io != FETCH_CACHED && try_direct(o);
        if (!f->direct)
            (void)posix_fadvise(o->fd, 0, 0, POSIX_FADV_RANDOM);
    }
    ingle_status s = INGLE_OK;
    if (o->io == FETCH_DIRECT && !f->direct)
        s = err_set(err, INGLE_UNSUP, "%s: this file cannot be read directly: the file system has no direct I/O for it", o->path);
    if (!s)
        s = start_threads(f, err);
    if (s)
        expert_fetch_close(f);
    else
        *out = f;
    return s;
}

void expert_fetch_close(struct fetch *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_broadcast(&f->more);
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < f->n_threads; i++) {
        pthread_join(f->thread[i], NULL);
        mem_free(f->worker[i].work);
    }
    pthread_cond_destroy(&f->more);
    pthread_cond_destroy(&f->done);
    pthread_mutex_destroy(&f->lock);
    mem_free(f->read);
    mem_free(f);
}

bool expert_fetch_is_direct(const struct fetch *f)
{
    return f->direct;
}

void expert_fetch_submit(struct fetch *f, const struct fetch_request *r)
{
    pthread_mutex_lock(&f->lock);
    struct read *to = &f->read[r->ticket];
    BUG_IF(to->state != IDLE);
    *to = (struct read){.r = *r, .state = QUEUED, .since_ns = clock_now()};
    append(f, &f->queue[!r->urgent], r->ticket);
    if (f->o.make)
        pthread_cond_signal(&f->more);
    else
        pthread_cond_broadcast(&f->more); /* one read has work for several */
    pthread_mutex_unlock(&f->lock);
}

void expert_fetch_hurry(struct fetch *f, int ticket)
{
    pthread_mutex_lock(&f->lock);
    struct read *r = &f->read[ticket];
    if (!r->r.urgent && (r->state == QUEUED || r->state == RUNNING) && r->next < r->r.bytes) {
        unlink_ticket(f, &f->queue[1], ticket);
        append(f, &f->queue[0], ticket);
    }
    r->r.urgent = true;
    pthread_mutex_unlock(&f->lock);
}

bool expert_fetch_drop(struct fetch *f, int ticket)
{
    pthread_mutex_lock(&f->lock);
    struct read *r = &f->read[ticket];
    const bool dropped = r->state == QUEUED;
    if (dropped) {
        unlink_ticket(f, &f->queue[!r->r.urgent], ticket);
        r->state = IDLE;
    }
    pthread_mutex_unlock(&f->lock);
    return dropped;
}

int expert_fetch_poll(struct fetch *f, struct fetch_done *out, int n, uint64_t until_ns)
{
    int got = 0;
    pthread_mutex_lock(&f->lock);
    while (f->ready.first < 0 && until_ns && clock_now() < until_ns) {
        const struct timespec until = {(time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};
        pthread_cond_timedwait(&f->done, &f->lock, &until);
    }
    for (int t; got < n && (t = f->ready.first) >= 0; got++) {
        struct read *r = &f->read[t];
        unlink_ticket(f, &f->ready, t);
        r->state = IDLE;
        out[got] = (struct fetch_done){.ticket = t, .status = r->status, .ns = clock_now() - r->since_ns};
        memcpy(out[got].why, r->why, sizeof out->why);
    }
    pthread_mutex_unlock(&f->lock);
    return got;
}

void expert_fetch_count(struct fetch *f, struct fetch_counts *out)
{
    pthread_mutex_lock(&f->lock);
    count_busy(f, 0);
    *out = f->count;
    pthread_mutex_unlock(&f->lock);
}
