/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring - reads by io_uring: one thread asks for pieces and takes in what is done.
 *
 * Many pieces of demands may be under way, few early ones, so that a demand waits for few.  A piece
 * that does not end keeps its place; others take new ones.  Memory is not registered with the
 * kernel: a megabyte at a time that gains nothing, and registered pages cannot be given back to the
 * system.
 */
#define _GNU_SOURCE
#include "expert/reads.h"

#ifdef INGLE_URING
#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* ENTRIES: two for each piece that waits for a descriptor first, and one to be woken by. */
enum { PIECES = 32, LIVE = 16, ENTRIES = 128, MOST_DONE = 32 };

/* Sync: f->lock for used, lost and since_ns; piece: the ring's thread. */
struct flight {
    bool used, lost;
    uint64_t since_ns;
    struct fetch_piece piece;
};

struct fetch_ring {
    struct io_uring u;
    int wake;        /* eventfd */
    bool watched;    /* the ring waits for it, too */
    bool asleep;     /* Sync: f->lock */
    int n_live, n_lost; /* Sync: f->lock */
    struct flight flight[PIECES];
};

/* There is one: what is requested at a time is less than ENTRIES. */
static struct io_uring_sqe *entry(struct io_uring *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(u);
    BUG_IF(!sqe);
    return sqe;
}

/* ---- opening ---- */

/* Whether the kernel runs an operation, too: filters may allow one call and refuse the other. */
static int try_nothing(struct io_uring *u)
{
    struct io_uring_sqe *sqe = entry(u);
    struct io_uring_cqe *cqe;
    io_uring_prep_nop(sqe);
    const int got = io_uring_submit_and_wait(u, 1);
    if (got < 0)
        return got;
    const int st = io_uring_peek_cqe(u, &cqe);
    if (!st)
        io_uring_cqe_seen(u, cqe);
    return st;
}

static int check_operations(struct io_uring *u)
{
    struct io_uring_probe *p = io_uring_get_probe_ring(u);
    if (!p)
        return -ENOSYS;
    const bool all = io_uring_opcode_supported(p, IORING_OP_READ) &&
                     io_uring_opcode_supported(p, IORING_OP_POLL_ADD);
    io_uring_free_probe(p);
    return all ? try_nothing(u) : -ENOSYS;
}

ingle_status expert_ring_open(struct fetch_ring **out, struct err *err)
{
    struct fetch_ring *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_set(err, INGLE_NOMEM, "no memory for a ring of reads");
    int st = io_uring_queue_init(ENTRIES, &r->u, 0);
    if (st) {
        mem_free(r);
        return err_set(err, INGLE_UNSUP, "the kernel refuses io_uring: %s", strerror(-st));
    }
    st = check_operations(&r->u);
    r->wake = st ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (st || r->wake < 0) {
        st = st ? -st : errno;
        io_uring_queue_exit(&r->u);
        mem_free(r);
        return err_set(err, INGLE_UNSUP, "the kernel refuses io_uring: %s", strerror(st));
    }
    *out = r;
    return INGLE_OK;
}

void expert_ring_close(struct fetch_ring *r)
{
    if (!r)
        return;
    io_uring_queue_exit(&r->u);
    (void)close(r->wake);
    mem_free(r);
}

/* ---- the thread ---- */

/* Under the lock: a piece is over. */
static void finish(struct fetch *f, struct fetch_ring *r, struct flight *fl)
{
    *(fl->lost ? &r->n_lost : &r->n_live) -= 1;
    fl->used = false;
    if (f->done_fn) /* nobody is there any more */
        return;
    if (!fl->lost)
        expert_fetch_busy(f, -1);
    const struct fetch_piece p = fl->piece; /* its place may be taken again while a sum is made */
    expert_fetch_give(f, &p);
}

/* Asks for what is missing.  True: it is over instead. */
static bool submit(struct fetch *f, struct fetch_ring *r, struct flight *fl)
{
    struct fetch_piece *p = &fl->piece;
    int wait;
    ssize_t n;
    while ((n = expert_fetch_before(f, p, &wait)) <= 0)
        if (expert_fetch_after(f, p, n))
            return true;
    if (wait >= 0) {
        struct io_uring_sqe *first = entry(&r->u);
        io_uring_prep_poll_add(first, wait, POLLIN);
        io_uring_sqe_set_data(first, NULL);
        io_uring_sqe_set_flags(first, IOSQE_IO_LINK);
    }
    struct io_uring_sqe *sqe = entry(&r->u);
    io_uring_prep_read(sqe, f->o.fd, p->to, (unsigned)n, p->at);
    io_uring_sqe_set_data(sqe, fl);
    return false;
}

static struct flight *free_flight(struct fetch_ring *r)
{
    for (int i = 0; i < PIECES; i++)
        if (!r->flight[i].used)
            return &r->flight[i];
    return NULL;
}

/* Under the lock: new pieces, as many as may be under way. */
static void fill(struct fetch *f, struct fetch_ring *r)
{
    struct flight *fl;
    while (!f->stop && r->n_live < LIVE && (fl = free_flight(r)) &&
           expert_fetch_take(f, &fl->piece)) {
        fl->used = true;
        fl->lost = false;
        fl->since_ns = clock_now();
        r->n_live++;
        expert_fetch_busy(f, 1);
        if (submit(f, r, fl))
            finish(f, r, fl);
    }
    if (!r->watched) {
        struct io_uring_sqe *sqe = entry(&r->u);
        io_uring_prep_poll_add(sqe, r->wake, POLLIN);
        io_uring_sqe_set_data(sqe, r);
        r->watched = true;
    }
}

/* What is done, at most MOST_DONE.  Not under the lock.  Returns how many of them are over. */
static int take_in(struct fetch *f, struct fetch_ring *r, struct flight **done)
{
    struct io_uring_cqe *cqe;
    int n = 0;
    while (n < MOST_DONE && !io_uring_peek_cqe(&r->u, &cqe)) {
        void *const what = io_uring_cqe_get_data(cqe);
        const ssize_t got = cqe->res;
        uint64_t count;
        io_uring_cqe_seen(&r->u, cqe);
        if (what == r) {
            r->watched = false;
            if (read(r->wake, &count, sizeof count) < 0) /* it was taken in before */
                continue;
        } else if (what) {
            struct flight *fl = what;
            if (expert_fetch_after(f, &fl->piece, got) || submit(f, r, fl))
                done[n++] = fl;
        }
    }
    return n;
}

/* Under the lock: what will never come is left to come.  False: it is the end. */
static bool goes_on(struct fetch *f, struct fetch_ring *r, struct fetch_worker *w)
{
    if (!f->stop || r->n_live)
        return true;
    if (r->n_lost && w->state == WORKER_WORKS) {
        w->state = WORKER_DEAD;
        f->n_threads--;
        f->n_dead++;
        pthread_cond_signal(&f->ended);
    }
    return r->n_lost;
}

void *expert_ring_run(void *worker)
{
    struct fetch_worker *w = worker;
    struct fetch *f = w->f;
    struct fetch_ring *r = f->ring;
    struct flight *done[MOST_DONE];
    pthread_mutex_lock(&f->lock);
    for (fill(f, r); goes_on(f, r, w); fill(f, r)) {
        r->asleep = true;
        pthread_mutex_unlock(&f->lock);
        const int st = io_uring_submit_and_wait(&r->u, 1);
        /* it has no memory at present: what is requested stays asked for */
        if (st < 0 && st != -EINTR)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        const int n = take_in(f, r, done);
        pthread_mutex_lock(&f->lock);
        r->asleep = false;
        for (int i = 0; i < n; i++)
            finish(f, r, done[i]);
    }
    expert_fetch_end(f, w);
    return NULL;
}

void expert_ring_wake(struct fetch_ring *r)
{
    const uint64_t one = 1;
    if (!r->asleep)
        return;
    r->asleep = false;
    if (write(r->wake, &one, sizeof one) < 0) /* it is full: the thread wakes in any case */
        return;
}

int expert_ring_lose(struct fetch *f, uint64_t longer_ns)
{
    struct fetch_ring *r = f->ring;
    const uint64_t now = clock_now();
    for (int i = 0; i < PIECES; i++) {
        struct flight *fl = &r->flight[i];
        if (!fl->used || fl->lost || now - fl->since_ns < longer_ns)
            continue;
        fl->lost = true;
        r->n_live--;
        r->n_lost++;
        expert_fetch_busy(f, -1);
    }
    expert_ring_wake(r);
    return r->n_lost;
}

int expert_ring_lost(const struct fetch_ring *r)
{
    return r->n_lost;
}

#else

ingle_status expert_ring_open(struct fetch_ring **out, struct err *err)
{
    *out = NULL;
    return err_set(err, INGLE_UNSUP, "ingle was built without liburing");
}

void expert_ring_close(struct fetch_ring *r)
{
    (void)r;
}

void *expert_ring_run(void *worker)
{
    return worker;
}

void expert_ring_wake(struct fetch_ring *r)
{
    (void)r;
}

int expert_ring_lose(struct fetch *f, uint64_t longer_ns)
{
    (void)f;
    (void)longer_ns;
    return 0;
}

int expert_ring_lost(const struct fetch_ring *r)
{
    (void)r;
    return 0;
}

#endif
