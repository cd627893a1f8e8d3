/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a pool: where they run, and how they begin and end.  Jobs: pool_run.c. */
#define _GNU_SOURCE
#include "base/pool_inner.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { THREADS_MAX = 4096 };

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

/* Starts worker i on processor cpu, or anywhere when cpu < 0. */
static bool start(struct pool *p, int i, int cpu)
{
    struct worker *w = &p->worker[i];
    pthread_attr_t attr;
    w->cpu = w->at = cpu; /* before it looks */
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
            ok = pthread_create(&w->thread, &attr, pool_worker_main, w) == 0;
        CPU_FREE(set);
        p->n_unbound += !ok;
        if (!ok)
            w->cpu = w->at = -1;
    }
    ok = ok || pthread_create(&w->thread, NULL, pool_worker_main, w) == 0;
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
    return x->node != y->node     ? (x->node > y->node) - (x->node < y->node)
           : x->cache != y->cache ? (x->cache > y->cache) - (x->cache < y->cache)
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

/* cache: as in pool_build_tree(). */
static bool build_tree(struct pool *p, const int *cache)
{
    const size_t n = (size_t)pool_build_tree(p, NULL, cache);
    p->knot = mem_big_alloc(n * sizeof *p->knot);
    if (!p->knot)
        return false;
    p->n_knots = pool_build_tree(p, p->knot, cache);
    for (int k = 0; k < p->n_knots; k++)
        atomic_init(&p->knot[k].number, 1);
    return true;
}

static bool start_on(struct pool *p, bool pin, const struct cpu_topology *t)
{
    struct cpu_place *cpu = pin ? mem_calloc((size_t)p->n_threads, sizeof *cpu) : NULL;
    int *id = pin ? mem_calloc((size_t)p->n_threads, 2 * sizeof *id) : NULL,
        *cache = id ? id + p->n_threads : NULL;
    p->n_nodes = 1;
    p->node_first[1] = p->n_threads;
    if (cpu && id) {
        set_nodes(p, t, cpu);
        for (int i = 0; i < p->n_threads; i++) {
            id[i] = cpu[i].id;
            cache[i] = cpu[i].cache;
        }
        p->caller_cpu = p->n_threads > 1 ? id[0] : -1;
    }
    pool_cpus_init(p);
    const bool ok =
        build_tree(p, cpu ? cache : NULL) && start_all(p, cpu ? id : NULL);
    mem_free(cpu);
    mem_free(id);
    return ok;
}

ingle_status pool_create_on(struct pool **out, int n_threads, bool pin,
                            const struct cpu_topology *t, struct err *err)
{
    if (n_threads < 1 || n_threads > THREADS_MAX)
        return err_set(err, INGLE_ARG, "threads: %d is not in 1..%d", n_threads, THREADS_MAX);
    const size_t n = (size_t)n_threads, lanes = sizeof(struct pool) + n * sizeof(struct lane),
                 before = lanes + n * sizeof(struct worker), ends = before + n * sizeof(uint64_t),
                 speeds = ends + n * sizeof(uint32_t),
                 held = (speeds + n * sizeof(float) + POOL_LINE - 1) / POOL_LINE * POOL_LINE,
                 n_bytes = held + 2 * n * sizeof(struct pool_held);
    struct pool *p = mem_big_alloc(n_bytes); /* for its alignment */
    if (!p)
        return err_set(err, INGLE_NOMEM, "no memory for %d threads", n_threads);
    p->lane = (struct lane *)(void *)(p + 1);
    p->worker = (struct worker *)(void *)((char *)p + lanes);
    p->ran_before = (uint64_t *)(void *)((char *)p + before);
    p->shares.end = (_Atomic uint32_t *)(void *)((char *)p + ends);
    p->speed = (float *)(void *)((char *)p + speeds);
    p->held[0] = (struct pool_held *)(void *)((char *)p + held);
    p->held[1] = p->held[0] + n;
    for (int i = 0; i < n_threads; i++) {
        p->speed[i] = 1;
        p->worker[i].pool = p;
        p->worker[i].index = i;
        p->worker[i].cpu = p->worker[i].at = -1;
    }
    p->number = 1;
    p->n_threads = n_threads;
    p->n_bytes = n_bytes;
    p->spin_ns = n_threads > t->n_cpus ? POOL_SPIN_CROWDED_NS : POOL_SPIN_NS;
    p->caller_cpu = -1;
    if (!start_on(p, pin && n_threads <= t->n_cpus, t)) {
        const int started = p->n_started;
        pool_free(p);
        return err_set(err, INGLE_LIMIT, "the system gave %d of %d threads", started + 1,
                       n_threads);
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
            order[t->n_cpus - 1 - n_taken++] = t->cpu[i]; /* from after, where there is room */
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

ingle_status pool_create_with(struct pool **out, int n_threads, bool pin, struct cpu_topology *t,
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
    const ingle_status s = pool_create_with(out, n_threads, pin, &t, err);
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

int pool_near(const struct pool *p)
{
    return p->n_near;
}

int pool_unbound(const struct pool *p)
{
    return p->n_unbound;
}

enum { TRIED_NS = 5000 };

static void be_busy(void *arg, int64_t chunk, int worker)
{
    (void)arg, (void)chunk, (void)worker;
    const uint64_t start = clock_now();
    while (clock_now() - start < TRIED_NS)
        ;
}

static int rising(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Chunks without work would all be done by the caller before another thread hears of them. */
uint64_t pool_join_ns(struct pool *p)
{
    enum { TRIES = 65, LEAST = 5 };
    static const uint64_t most_ns = 10000000;
    uint64_t took[TRIES];
    const uint64_t number = p->number, begin = clock_now();
    int n = 0;
    while (n < TRIES && (n < LEAST || clock_now() - begin < most_ns)) {
        const uint64_t start = clock_now();
        pool_run(p, p->n_threads, be_busy, NULL);
        took[n++] = clock_now() - start;
    }
    p->n_tries += p->number - number;
    pool_held_forget(p);
    qsort(took, (size_t)n, sizeof *took, rising);
    return took[n / 4] > TRIED_NS ? took[n / 4] - TRIED_NS : 0;
}

uint64_t pool_joins(const struct pool *p)
{
    return p->number - 1 - p->n_tries;
}

uint64_t pool_chunks(const struct pool *p, int worker)
{
    return atomic_load_explicit(&p->lane[worker].ran, memory_order_relaxed);
}

int pool_size(const struct pool *p)
{
    return p->n_threads;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    pool_stop_workers(p);
    for (int i = 1; i <= p->n_started; i++)
        pthread_join(p->worker[i].thread, NULL);
    pool_cpus_close(p);
    if (p->claim)
        drop_claims(p->claim, p->n_threads);
    mem_free(p->claim);
    if (p->knot)
        mem_big_free(p->knot, (size_t)p->n_knots * sizeof *p->knot);
    mem_big_free(p, p->n_bytes);
}
