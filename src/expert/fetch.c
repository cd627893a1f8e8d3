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
static const uint64_t close_ns = 5000000000; /* a read that has not ended by then is left alone */

/* Sync: f->lock. */
struct read {
    struct fetch_request r;
    enum state state;
    uint64_t next;   /* first byte that no thread has taken */
    int under_way;   /* pieces */
    int after;       /* in its queue or in the list of done ones; -1: the last */
    uint64_t since_ns;
    bool again;      /* its checksum was wrong once */
    bool wrong;      /* and twice */
    uint32_t seen;   /* the file's state behind it */
    ingle_status status;
    char why[160];
};

struct list { int first, last; };

/* GONE: another thread has its place; it ends when its piece has. */
enum worker_state { NOBODY, WORKS, GONE, ENDED };

/* Sync: f->lock, but for f and work, which are fixed. */
struct worker {
    struct fetch *f;
    void *work;
    pthread_t thread;
    enum worker_state state;
    uint64_t since_ns; /* its piece began; 0: it has none */
};

struct fetch {
    struct fetch_options o;
    bool direct;
    struct stat opened, stamp; /* Sync: stamp: lock.  When it was opened, and last */
    uint32_t seen;             /* Sync: lock.  Grows with each change of stamp */
    pthread_mutex_t lock;
    pthread_cond_t more, done, ended; /* for threads; for the owner; for who closes */
    struct read *read;         /* [o.n_tickets] */
    struct list queue[2], ready; /* Sync: lock.  demands, early ones; done */
    bool stop;                 /* Sync: lock */
    int busy;                  /* Sync: lock.  pieces under way */
    uint64_t busy_since;       /* Sync: lock */
    struct fetch_counts count; /* Sync: lock */
    int n_threads, n_gone;     /* Sync: lock.  That work; that do not come back */
    void (*over)(void *arg);   /* Sync: lock.  Called by the last thread; NULL: by expert_fetch_close() */
    void *over_arg;
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

static bool same_stamp(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
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
static uint32_t look(struct fetch *f)
{
    struct stat now;
    if (f->o.fd >= 0 && fstat(f->o.fd, &now) == 0 && !same_stamp(&now, &f->stamp)) {
        f->stamp = now;
        f->seen++;
    }
    return f->seen;
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
static bool check(struct fetch *f, struct read *r, int t)
{
    const uint32_t seen = look(f);
    if (is_right(f, &r->r, seen)) {
        r->seen = seen;
        return false;
    }
    if (!r->again) {
        r->again = true;
        r->next = 0;
        r->state = QUEUED;
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
    if (!r->status && check(f, r, t))
        return;
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

static ingle_status do_piece(struct fetch *f, void *work, const struct fetch_request *r, uint64_t at, size_t n, uint64_t *retries,
                             char why[160])
{
    if (!f->o.make) {
        const ingle_status s = read_piece(f, (uint8_t *)r->to + at, n, r->at + at, retries, why);
        if (!f->direct)
            (void)posix_fadvise(f->o.fd, (off_t)(r->at + at), (off_t)n, POSIX_FADV_DONTNEED);
        return s;
    }
    struct err err = {0};
    ingle_status s = f->o.make(f->o.make_arg, r->what, r->to, work, &err);
    if (s == INGLE_IO) {
        ++*retries;
        s = f->o.make(f->o.make_arg, r->what, r->to, work, &err);
    }
    snprintf(why, 160, "%.159s", err.msg);
    return s;
}

static void destroy(struct fetch *f)
{
    for (int i = 0; i < MOST_THREADS; i++)
        mem_free(f->worker[i].work);
    pthread_cond_destroy(&f->more);
    pthread_cond_destroy(&f->done);
    pthread_cond_destroy(&f->ended);
    pthread_mutex_destroy(&f->lock);
    if (f->o.fd >= 0)
        (void)close(f->o.fd);
    mem_free(f->read);
    mem_free(f);
}

/* The end of a thread, under the lock, which it gives up for good. */
static void end(struct fetch *f, struct worker *w)
{
    const bool gone = w->state == GONE;
    *(gone ? &f->n_gone : &f->n_threads) -= 1;
    w->state = ENDED;
    const bool last = f->over && !f->n_gone && !f->n_threads;
    pthread_cond_signal(&f->ended);
    pthread_mutex_unlock(&f->lock);
    if (!last)
        return;
    f->over(f->over_arg);
    destroy(f);
}

static void *run(void *arg)
{
    struct worker *w = arg;
    struct fetch *f = w->f;
    pthread_mutex_lock(&f->lock);
    while (!f->stop && w->state == WORKS) {
        uint64_t at = 0, retries = 0;
        size_t n = 0;
        char why[160] = "";
        const int t = take(f, &at, &n);
        if (t < 0) {
            pthread_cond_wait(&f->more, &f->lock);
            continue;
        }
        count_busy(f, 1);
        w->since_ns = clock_now();
        const struct fetch_request r = f->read[t].r;
        pthread_mutex_unlock(&f->lock);
        const ingle_status s = do_piece(f, w->work, &r, at, n, &retries, why);
        pthread_mutex_lock(&f->lock);
        if (f->over) /* nobody is there any more */
            break;
        f->count.retries += retries;
        w->since_ns = 0;
        if (w->state == WORKS)
            count_busy(f, -1);
        give(f, t, s, why);
    }
    end(f, w);
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

/* A thread in a place that has none, under the lock.  INGLE_LIMIT: there is no such place. */
static ingle_status start_thread(struct fetch *f, struct err *err)
{
    for (int i = 0; i < MOST_THREADS; i++) {
        struct worker *w = &f->worker[i];
        if (w->state == ENDED) {
            pthread_join(w->thread, NULL);
            w->state = NOBODY;
        }
        if (w->state != NOBODY)
            continue;
        w->f = f;
        w->since_ns = 0;
        if (f->o.make_work && !w->work && !(w->work = mem_alloc(f->o.make_work)))
            return err_set(err, INGLE_NOMEM, "no %zu bytes for a thread that reads experts", f->o.make_work);
        w->state = WORKS;
        if (pthread_create(&w->thread, NULL, run, w) != 0) {
            w->state = NOBODY;
            return err_set(err, INGLE_NOMEM, "cannot start a thread that reads experts");
        }
        f->n_threads++;
        return INGLE_OK;
    }
    return err_set(err, INGLE_LIMIT, "%d threads that read experts are too many", MOST_THREADS);
}

static int wanted_threads(const struct fetch *f)
{
    return f->o.n_threads > MOST_THREADS ? MOST_THREADS : f->o.n_threads ? f->o.n_threads : USUAL_THREADS;
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
            s = err_set(err, INGLE_IO, "%s: cannot open it once more: %s", o->path, strerror(errno));
        (void)fstat(o->fd, &f->opened);
        f->stamp = f->opened;
        f->direct = o->io != FETCH_CACHED && try_direct(o);
        if (!f->direct)
            (void)posix_fadvise(o->fd, 0, 0, POSIX_FADV_RANDOM);
    }
    if (!s && o->io == FETCH_DIRECT && !f->direct)
        s = err_set(err, INGLE_UNSUP, "%s: this file cannot be read directly: the file system has no direct I/O for it", o->path);
    if (!s)
        s = start_threads(f, err);
    if (s)
        expert_fetch_close(f, NULL, NULL);
    else
        *out = f;
    return s;
}

static struct timespec time_at(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

static void nothing(void *arg)
{
    (void)arg;
}

void expert_fetch_close(struct fetch *f, void (*over)(void *arg), void *arg)
{
    over = over ? over : nothing;
    if (!f) {
        over(arg);
        return;
    }
    const struct timespec until = time_at(clock_now() + close_ns);
    int timeout = 0;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_broadcast(&f->more);
    /* What make() touches is the owner's, and goes with it: those are waited for in any case. */
    while (f->o.make ? f->n_threads + f->n_gone > 0 : f->n_threads > 0 && !timeout)
        timeout = f->o.make ? pthread_cond_wait(&f->ended, &f->lock) : pthread_cond_timedwait(&f->ended, &f->lock, &until);
    const bool left = f->n_threads + f->n_gone > 0;
    for (int i = 0; i < MOST_THREADS; i++) {
        struct worker *w = &f->worker[i];
        if (w->state == ENDED)
            pthread_join(w->thread, NULL);
        else if (w->state != NOBODY)
            pthread_detach(w->thread);
    }
    if (left) {
        f->over = over;
        f->over_arg = arg;
    }
    pthread_mutex_unlock(&f->lock);
    if (left)
        return;
    over(arg);
    destroy(f);
}

int expert_fetch_reset(struct fetch *f, uint64_t longer_ns)
{
    pthread_mutex_lock(&f->lock);
    const uint64_t now = clock_now();
    for (int i = 0; i < MOST_THREADS; i++) {
        struct worker *w = &f->worker[i];
        if (w->state != WORKS || !w->since_ns || now - w->since_ns < longer_ns)
            continue;
        w->state = GONE;
        count_busy(f, -1);
        f->n_threads--;
        f->n_gone++;
    }
    while (f->n_threads < wanted_threads(f) && !start_thread(f, NULL))
        ;
    const int n = f->n_gone;
    pthread_mutex_unlock(&f->lock);
    return n;
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
        const struct timespec until = time_at(until_ns);
        pthread_cond_timedwait(&f->done, &f->lock, &until);
    }
    for (int t; got < n && (t = f->ready.first) >= 0; got++) {
        struct read *r = &f->read[t];
        unlink_ticket(f, &f->ready, t);
        r->state = IDLE;
        out[got] = (struct fetch_done){.ticket = t, .status = r->status, .ns = clock_now() - r->since_ns,
                                       .seen = r->seen, .wrong = r->wrong};
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
    out->stuck = (uint64_t)f->n_gone;
    pthread_mutex_unlock(&f->lock);
}
