/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One 64-bit ticket names the job and how many of its chunks are unclaimed.  A thread claims
 * a chunk by a compare-and-swap of the whole ticket, so a thread that was held up between
 * reading a job and claiming from it fails harmlessly when that job is over.  Therefore the
 * caller waits for chunks, never for threads.
 */
#define _GNU_SOURCE
#include "base/pool.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/fp.h"
#include "base/mem.h"
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    THREADS_MAX = 4096,
    LINE_BYTES = 64,        /* what two processors fight over */
    SPIN_NS = 50000,        /* longer than the gap between two jobs of a step */
    SPIN_CROWDED_NS = 2000, /* with fewer processors than threads, someone else needs this one */
    PAUSES = 32             /* between two looks at the clock */
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
};

struct pool {
    /* Sync: written by the caller of pool_run() while no chunk is unclaimed or running;
     * read by a thread between loading the ticket and claiming from it. */
    _Atomic(pool_fn *) fn;
    _Atomic(void *) arg;
    _Atomic uint32_t n_chunks;

    _Alignas(LINE_BYTES) _Atomic uint64_t ticket; /* job number << 32 | unclaimed chunks */
    _Alignas(LINE_BYTES) _Atomic uint32_t left;   /* chunks not finished; futex of the caller */
    _Atomic uint32_t caller_sleeps;
    _Alignas(LINE_BYTES) _Atomic uint32_t signal; /* counts jobs and the stop; futex of workers */
    _Atomic uint32_t n_asleep;
    _Atomic bool stop;

    _Alignas(LINE_BYTES) int n_threads; /* from here on fixed after pool_create() */
    int n_started;                      /* workers that run: n_threads - 1 but in a failed create */
    uint64_t spin_ns;
    size_t n_bytes;
    int caller_cpu;                     /* -1: not pinned */
    int *claim;                         /* [n_threads], or NULL: see prefer_free() */
    bool entered;                       /* by the one thread that calls; came_from is its mask */
    int n_nodes, node_id[CPU_NODES_MAX], node_first[CPU_NODES_MAX + 1]; /* workers of a node */
    cpu_set_t came_from[CPU_IDS_MAX / CPU_SETSIZE];
    struct worker worker[];
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_sleep(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static bool has_work(struct pool *p)
{
    return (uint32_t)atomic_load_explicit(&p->ticket, memory_order_acquire) != 0;
}

/* Claims and runs chunks until none is unclaimed. */
static void work(struct pool *p, int worker)
{
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    uint32_t n_done = 0;
    while ((uint32_t)t) {
        pool_fn *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        uint32_t n = atomic_load_explicit(&p->n_chunks, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(arg, (int64_t)n - (int64_t)(uint32_t)t, worker);
        n_done++;
        t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
    /* All n_done are of one job: it cannot end before they are taken off. */
    if (!n_done)
        return;
    if (atomic_fetch_sub(&p->left, n_done) == n_done && atomic_load(&p->caller_sleeps))
        futex_wake(&p->left, 1);
}

/* True when there may be work, or the end, to look at. */
static bool spin_for_work(struct pool *p)
{
    const uint64_t end = clock_now() + p->spin_ns;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (has_work(p) || atomic_load_explicit(&p->stop, memory_order_acquire))
                return true;
            relax();
        }
    } while (clock_now() < end);
    if (p->spin_ns == SPIN_CROWDED_NS)
        sched_yield();
    return has_work(p);
}

static void sleep_for_work(struct pool *p)
{
    atomic_fetch_add(&p->n_asleep, 1);
    const uint32_t seen = atomic_load(&p->signal);
    if (!(uint32_t)atomic_load(&p->ticket) && !atomic_load(&p->stop))
        futex_sleep(&p->signal, seen);
    atomic_fetch_sub(&p->n_asleep, 1);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    fp_default();
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        work(p, w->index);
        if (!spin_for_work(p))
            sleep_for_work(p);
    }
    return NULL;
}

static void wait_for_chunks(struct pool *p)
{
    const uint64_t end = clock_now() + p->spin_ns;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (!atomic_load_explicit(&p->left, memory_order_acquire))
                return;
            relax();
        }
    } while (clock_now() < end);
    atomic_store(&p->caller_sleeps, 1);
    for (uint32_t left; (left = atomic_load(&p->left)) != 0;)
        futex_sleep(&p->left, left);
    atomic_store(&p->caller_sleeps, 0);
}

void pool_run(struct pool *p, int64_t n_chunks, pool_fn *fn, void *arg)
{
    if (p->n_threads == 1 || n_chunks <= 1) {
        for (int64_t i = 0; i < n_chunks; i++)
            fn(arg, i, 0);
        return;
    }
    BUG_IF(n_chunks > INT32_MAX);
    BUG_IF(atomic_load_explicit(&p->left, memory_order_relaxed)); /* fn called pool_run() */
    const uint32_t n = (uint32_t)n_chunks;
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->n_chunks, n, memory_order_relaxed);
    atomic_store_explicit(&p->left, n, memory_order_relaxed);
    const uint64_t job = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&p->ticket, job << 32 | n);
    atomic_fetch_add(&p->signal, 1);
    if (atomic_load(&p->n_asleep))
        futex_wake(&p->signal, (int)n - 1);
    work(p, 0);
    wait_for_chunks(p);
}

struct fill { uint8_t *at; size_t before, n_bytes; };

static void fill_page(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct fill *f = arg;
    const size_t end = (size_t)(chunk + 1) * MEM_BIG_PAGE - f->before;
    const size_t at = chunk ? end - MEM_BIG_PAGE : 0;
    mem_fill(f->at + at, (end < f->n_bytes ? end : f->n_bytes) - at);
}

void pool_fill(struct pool *p, void *at, size_t n_bytes)
{
    struct fill f = {at, (uintptr_t)at % MEM_BIG_PAGE, n_bytes};
    if (n_bytes)
        pool_run(p, (int64_t)((f.before + n_bytes - 1) / MEM_BIG_PAGE) + 1, fill_page, &f);
}

void pool_enter(struct pool *p)
{
    const size_t n = sizeof p->came_from;
    cpu_set_t set[CPU_IDS_MAX / CPU_SETSIZE];
    if (p->caller_cpu < 0 || p->entered || sched_getaffinity(0, n, p->came_from) != 0 ||
        !CPU_ISSET_S((size_t)p->caller_cpu, n, p->came_from))
        return;
    CPU_ZERO_S(n, set);
    CPU_SET_S((size_t)p->caller_cpu, n, set);
    p->entered = sched_setaffinity(0, n, set) == 0;
}

void pool_leave(struct pool *p)
{
    if (p->entered)
        (void)sched_setaffinity(0, sizeof p->came_from, p->came_from);
    p->entered = false;
}

/* Starts worker i on processor cpu, or anywhere when cpu < 0. */
static bool start(struct pool *p, int i, int cpu)
{
    struct worker *w = &p->worker[i - 1];
    w->pool = p;
    w->index = i;
    pthread_attr_t attr;
    if (pthread_attr_init(&attr))
        return false;
    bool ok = false;
    if (cpu >= 0) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpu + 1);
        if (!set)
            goto out;
        const size_t n = CPU_ALLOC_SIZE((size_t)cpu + 1);
        CPU_ZERO_S(n, set);
        CPU_SET_S((size_t)cpu, n, set);
        /* A processor may have left our set since we looked: then run anywhere. */
        if (pthread_attr_setaffinity_np(&attr, n, set) == 0)
            ok = pthread_create(&w->thread, &attr, worker_main, w) == 0;
        CPU_FREE(set);
    }
    ok = ok || pthread_create(&w->thread, NULL, worker_main, w) == 0;
    if (ok)
        pthread_setname_np(w->thread, "ingle-worker");
out:
    pthread_attr_destroy(&attr);
    return ok;
}

/* Signals are for the threads of the program, not for ours. */
static void mask_signals(sigset_t *before)
{
    static const int own[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGABRT};
    sigset_t others;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&others, own[i]);
    pthread_sigmask(SIG_SETMASK, &others, before);
}

bool pool_thread(pthread_t *out, void *(*fn)(void *), void *arg)
{
    sigset_t before;
    mask_signals(&before);
    const bool ok = pthread_create(out, NULL, fn, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

static bool start_all(struct pool *p, const int *cpu)
{
    sigset_t before;
    mask_signals(&before);
    bool ok = true;
    for (int i = 1; ok && i < p->n_threads; i++) {
        ok = start(p, i, cpu ? cpu[i] : -1);
        p->n_started += ok;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

static int by_node(const void *a, const void *b)
{
    const struct cpu_place *x = a, *y = b;
    return x->node != y->node ? (x->node > y->node) - (x->node < y->node)
                              : (x->id > y->id) - (x->id < y->id);
}

/* Processors of the workers, those of a node side by side; the caller is the first. */
static void set_nodes(struct pool *p, const struct cpu_topology *t, struct cpu_place *cpu)
{
    memcpy(cpu, t->cpu, (size_t)p->n_threads * sizeof *cpu);
    qsort(cpu, (size_t)p->n_threads, sizeof *cpu, by_node);
    p->n_nodes = 0;
    for (int i = 0; i < p->n_threads; i++)
        if (!i || cpu[i].node != cpu[i - 1].node) {
            p->node_id[p->n_nodes] = t->node_id[cpu[i].node];
            p->node_first[p->n_nodes++] = i;
        }
    p->node_first[p->n_nodes] = p->n_threads;
}

static bool start_on(struct pool *p, bool pin, const struct cpu_topology *t)
{
    struct cpu_place *cpu = pin ? mem_calloc((size_t)p->n_threads, sizeof *cpu) : NULL;
    int *id = pin ? mem_calloc((size_t)p->n_threads, sizeof *id) : NULL;
    p->n_nodes = 1;
    p->node_first[1] = p->n_threads;
    if (cpu && id) {
        set_nodes(p, t, cpu);
        for (int i = 0; i < p->n_threads; i++)
            id[i] = cpu[i].id;
        p->caller_cpu = p->n_threads > 1 ? id[0] : -1;
    }
    const bool ok = start_all(p, cpu ? id : NULL);
    mem_free(cpu);
    mem_free(id);
    return ok;
}

ingle_status pool_create_on(struct pool **out, int n_threads, bool pin,
                            const struct cpu_topology *t, struct err *err)
{
    if (n_threads < 1 || n_threads > THREADS_MAX)
        return err_set(err, INGLE_ARG, "threads: %d is not in 1..%d", n_threads, THREADS_MAX);
    const size_t n_bytes = sizeof(struct pool) + (size_t)n_threads * sizeof(struct worker);
    struct pool *p = mem_big_alloc(n_bytes); /* for its alignment */
    if (!p)
        return err_set(err, INGLE_NOMEM, "no memory for %d threads", n_threads);
    p->n_threads = n_threads;
    p->n_bytes = n_bytes;
    p->spin_ns = n_threads > t->n_cpus ? SPIN_CROWDED_NS : SPIN_NS;
    p->caller_cpu = -1;
    if (!start_on(p, pin && n_threads <= t->n_cpus, t)) {
        const int n = p->n_started;
        pool_free(p);
        return err_set(err, INGLE_LIMIT, "the system gave %d of %d threads", n + 1, n_threads);
    }
    *out = p;
    return INGLE_OK;
}

/* ---- several engines on one machine ---- */

/* A processor that a pool is pinned to is claimed by a name in the abstract namespace of sockets,
 * which the system forgets with the process.  -1: somebody else's pool has it (or there are no such
 * names: *works). */
static int claim(int cpu, bool *works)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "ingle/processor/%d", cpu);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&a,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0)
        return fd;
    *works = errno == EADDRINUSE;
    close(fd);
    return -1;
}

/* Puts processors that no other pool is pinned to in front, until there are n of them; the order is
 * kept otherwise.  claims [n]: theirs, then -1. */
static void prefer_free(struct cpu_topology *t, int n, int *claims)
{
    struct cpu_place *order = mem_calloc((size_t)t->n_cpus, sizeof *order);
    int n_free = 0, n_taken = 0;
    bool works = true;
    for (int i = 0; i < n; i++)
        claims[i] = -1;
    for (int i = 0; order && works && i < t->n_cpus && n_free < n; i++) {
        const int fd = claim(t->cpu[i].id, &works);
        if (fd >= 0) {
            claims[n_free] = fd;
            order[n_free++] = t->cpu[i];
        } else {
            order[t->n_cpus - 1 - n_taken++] = t->cpu[i]; /* from behind, where there is room */
        }
    }
    if (order && works && n_taken) {
        for (int i = 0; i < n_taken; i++)
            t->cpu[n_free + i] = order[t->n_cpus - 1 - i];
        memcpy(t->cpu, order, (size_t)n_free * sizeof *order);
    }
    mem_free(order);
}

static void drop_claims(const int *claims, int n)
{
    for (int i = 0; i < n; i++)
        if (claims[i] >= 0)
            close(claims[i]);
}

ingle_status pool_create_beside(struct pool **out, int n_threads, bool pin, struct cpu_topology *t,
                                struct err *err)
{
    const bool claims = pin && n_threads >= 1 && n_threads <= t->n_cpus;
    int *claimed = claims ? mem_calloc((size_t)n_threads, sizeof *claimed) : NULL;
    if (claimed)
        prefer_free(t, n_threads, claimed);
    const ingle_status s = pool_create_on(out, n_threads, pin, t, err);
    if (!s) {
        (*out)->claim = claimed;
    } else if (claimed) {
        drop_claims(claimed, n_threads);
        mem_free(claimed);
    }
    return s;
}

ingle_status pool_create(struct pool **out, int n_threads, bool pin, struct err *err)
{
    struct cpu_topology t;
    if (!cpu_topology_read(&t))
        return err_set(err, INGLE_NOMEM, "no memory for %d threads", n_threads);
    cpu_topology_join(&t);
    const ingle_status s = pool_create_beside(out, n_threads, pin, &t, err);
    cpu_topology_release(&t);
    return s;
}

int pool_nodes(const struct pool *p)
{
    return p->n_nodes;
}

int pool_node_first(const struct pool *p, int node)
{
    return p->node_first[node];
}

int pool_node_of(const struct pool *p, int worker)
{
    int k = 0;
    while (worker >= p->node_first[k + 1])
        k++;
    return k;
}

int pool_node_id(const struct pool *p, int node)
{
    return p->node_id[node];
}

int pool_size(const struct pool *p)
{
    return p->n_threads;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->signal, 1);
    futex_wake(&p->signal, INT_MAX);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->worker[i].thread, NULL);
    if (p->claim)
        drop_claims(p->claim, p->n_threads);
    mem_free(p->claim);
    mem_big_free(p, p->n_bytes);
}
