/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_cpus - processors that are taken from a pool while it runs, and given back: by a control
 * group, by taskset, or because they go offline.
 *
 * A thread whose processor was taken away moves to one that no other thread of the pool has.  Where
 * there is none it rests, and others run its chunks: two threads on one processor wait for each
 * other. The system does not notify anybody, so a worker checks once a second while it waits.
 *
 * Where other programs have a large part of the processors of all threads, threads run on any
 * processor of their node that the pool has: the system then moves them to where less is going on,
 * while bound ones wait for their own, and all for the last of them.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/pool_inner.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool has(const struct pool_cpus *set, int cpu)
{
    return cpu >= 0 && CPU_ISSET_S((size_t)cpu, sizeof *set, set->of);
}

static bool read_own(struct pool_cpus *set)
{
    return sched_getaffinity(0, sizeof *set, set->of) == 0;
}

static bool bind_to(int cpu)
{
    struct pool_cpus set;
    CPU_ZERO_S(sizeof set, set.of);
    CPU_SET_S((size_t)cpu, sizeof set, set.of);
    return sched_setaffinity(0, sizeof set, set.of) == 0;
}

/* The processors of a worker and its node's other ones. */
static void read_node(const struct pool *p, const struct worker *w, struct pool_cpus *set)
{
    CPU_ZERO_S(sizeof *set, set->of);
    for (int i = p->node_first[w->node]; i < p->node_first[w->node + 1]; i++)
        if (p->worker[i].cpu >= 0)
            CPU_SET_S((size_t)p->worker[i].cpu, sizeof *set, set->of);
}

static void close_times(struct worker *w)
{
    if (w->times_of && w->times >= 0)
        close(w->times);
    w->times_of = 0;
}

/* Time that this thread, which is the worker now, ran, and that it could have run while others had
 * its processor.  The file stays open: no step opens one. */
static bool read_times(struct worker *w, uint64_t *ran_ns, uint64_t *waited_ns)
{
    char text[96];
    const pid_t me = (pid_t)syscall(SYS_gettid);
    if (w->times_of != me) {
        close_times(w);
        w->times = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
        w->times_of = me;
        w->ran_ns = w->waited_ns = 0;
    }
    const ssize_t n = w->times < 0 ? -1 : pread(w->times, text, sizeof text - 1, 0);
    if (n <= 0)
        return false;
    text[n] = '\0';
    char *end, *at = text;
    *ran_ns = strtoull(at, &end, 10);
    const bool any = end > at;
    *waited_ns = strtoull(at = end, &end, 10);
    return any && end > at;
}

void pool_cpus_close(struct pool *p)
{
    for (int i = 0; i < p->n_threads; i++)
        close_times(&p->worker[i]);
}

/* Whether others have a large part of the processor. */
static void check_shared(struct pool *p, struct worker *w)
{
    enum { LEAST_NS = 20000000 };
    uint64_t ran, waited;
    if (!read_times(w, &ran, &waited))
        return;
    if (ran - w->ran_ns < LEAST_NS)
        return;
    const bool shared = (waited - w->waited_ns) * (w->shared ? 4 : 2) > ran - w->ran_ns;
    w->ran_ns = ran;
    w->waited_ns = waited;
    if (shared == w->shared)
        return;
    w->shared = shared;
    atomic_fetch_add(&p->n_shared, shared ? 1 : -1);
}

bool pool_crowded(const struct pool *p)
{
    return p->n_threads > 1 &&
           atomic_load_explicit(&p->n_shared, memory_order_relaxed) >= p->n_threads;
}

/* The processor of a set that a thread is to have: its own, or the next that nobody has; -1: there
 * is none. */
static int choose(const struct pool *p, int index, const struct pool_cpus *set)
{
    struct pool_cpus nobodys = *set;
    int before = 0; /* threads that choose first */
    if (has(set, p->worker[index].cpu))
        return p->worker[index].cpu;
    for (int i = 0; i < p->n_threads; i++) {
        const int cpu = p->worker[i].cpu;
        if (has(set, cpu))
            CPU_CLR_S((size_t)cpu, sizeof nobodys, nobodys.of);
        else
            before += i < index && cpu >= 0;
    }
    for (int cpu = 0; cpu < CPU_IDS_MAX; cpu++)
        if (has(&nobodys, cpu) && before-- == 0)
            return cpu;
    return -1;
}

void pool_cpus_init(struct pool *p)
{
    struct pool_cpus set;
    if (!read_own(&set))
        return;
    p->n_allowed = CPU_COUNT_S(sizeof set, set.of);
    if (p->caller_cpu >= 0 && has(&set, p->caller_cpu))
        p->worker[0].cpu = p->caller_cpu;
}

static void set_resting(struct pool *p, struct worker *w, bool rests)
{
    if (rests == atomic_load_explicit(&w->rests, memory_order_relaxed))
        return;
    atomic_store_explicit(&w->rests, rests, memory_order_relaxed);
    atomic_fetch_add(&p->n_resting, rests ? 1 : -1);
}

void pool_cpus_check(struct pool *p, struct worker *w)
{
    struct pool_cpus set, node;
    w->next_check = clock_now() + POOL_CHECK_NS;
    if (p->spin_ns < POOL_SPIN_NS || !read_own(&set))
        return;
    const int n = CPU_COUNT_S(sizeof set, set.of);
    const bool displaced = atomic_load_explicit(&w->displaced, memory_order_relaxed);
    if (w->cpu < 0) { /* it runs on any of them */
        set_resting(p, w, w->index >= n && w->index < p->n_allowed);
        return;
    }
    read_node(p, w, &node);
    if (!displaced &&
        (w->roams ? CPU_EQUAL_S(sizeof set, set.of, node.of) : n == 1 && has(&set, w->at))) {
        check_shared(p, w);
        if (w->at == w->cpu && pool_crowded(p) != w->roams)
            w->roams = w->roams ? !bind_to(w->cpu)
                                : sched_setaffinity(0, sizeof node, node.of) == 0;
        return;
    }
    const int cpu = displaced ? -1 : choose(p, w->index, &set);
    w->roams = false;
    w->at = cpu >= 0 && bind_to(cpu) ? cpu : -1;
    set_resting(p, w, cpu < 0);
}

/* A thread that is bound to what was left keeps to that when more is given back.  The program's
 * first thread has it then. */
static void read_main(struct pool *p)
{
    struct pool_cpus set;
    if (!has(&p->came_from, p->worker[0].cpu) &&
        sched_getaffinity(getpid(), sizeof set, set.of) == 0 && has(&set, p->worker[0].cpu))
        p->came_from = set;
}

/* The caller never rests: where no processor is free, the last worker gives up its own. */
static int for_caller(struct pool *p)
{
    int cpu = choose(p, 0, &p->came_from), victim = 0;
    for (int i = p->n_threads - 1; i > 0 && cpu < 0; i--)
        if (has(&p->came_from, p->worker[i].cpu)) {
            cpu = p->worker[i].cpu;
            victim = i;
        }
    if (victim != p->victim) {
        atomic_store_explicit(&p->worker[p->victim].displaced, false, memory_order_relaxed);
        atomic_store_explicit(&p->worker[victim].displaced, victim > 0, memory_order_relaxed);
        p->victim = victim;
    }
    return cpu;
}

void pool_enter(struct pool *p)
{
    if (p->worker[0].cpu < 0 || p->entered || !read_own(&p->came_from))
        return;
    struct worker *w = &p->worker[0];
    struct pool_cpus node;
    read_main(p);
    const int cpu = for_caller(p);
    const uint64_t now = clock_now();
    if (now >= w->next_check) {
        w->next_check = now + POOL_CHECK_NS;
        check_shared(p, w);
    }
    if (cpu == w->cpu && pool_crowded(p)) {
        read_node(p, w, &node);
        p->entered = sched_setaffinity(0, sizeof node, node.of) == 0;
    } else {
        p->entered = cpu >= 0 && bind_to(cpu);
    }
}

void pool_leave(struct pool *p)
{
    if (p->entered)
        (void)sched_setaffinity(0, sizeof p->came_from, p->came_from.of);
    p->entered = false;
}

int pool_taken(const struct pool *p)
{
    return atomic_load_explicit(&p->n_resting, memory_order_relaxed);
}

int pool_resting(const struct pool *p)
{
    int n = 0;
    for (int i = 1; i < p->n_threads; i++)
        n += pool_is_out(&p->worker[i]);
    return n;
}
