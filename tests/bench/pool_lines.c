/* SPDX-License-Identifier: Apache-2.0 */
/* How often the lines of a pool are written in a job, with pretended threads: the tree of
 * pool_run.c is built for T threads on N nodes, and one thread plays all of them, a chunk at a time
 * in turn. Beside it what one ticket for all costs: a write a chunk and one a thread.
 *
 * Then what a move of a line between two cores costs here, and a model of a join: the moves that
 * may follow one another on its longest way, times that.  On a busy machine with chrt -f 50. */
#define POOL_COUNT
#include "base/pool_run.c"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#else
#define PAUSE() ((void)0)
#endif

enum { THREADS = 256, LINES = 1 << 16, JOBS = 64 };

static struct { uintptr_t at; long n; } line[LINES];

void pool_count(const void *at)
{
    const uintptr_t a = (uintptr_t)at / POOL_LINE;
    size_t i = a % LINES;
    while (line[i].n && line[i].at != a)
        i = (i + 1) % LINES;
    line[i].at = a;
    line[i].n++;
}

static void nothing(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    ((char *)arg)[chunk]++;
}

/* One job as T threads run it at the same speed: each claims a chunk in turn. */
static void play(struct pool *p, int each)
{
    static char ran[16 * THREADS];
    uint64_t done[THREADS] = {0}, k;
    bool drained[THREADS] = {false};
    struct pool_job job[CPU_NODES_MAX];
    const uint64_t number = ++p->number;
    memset(ran, 0, sizeof ran);
    for (int node = 0; node < p->n_nodes; node++) {
        job[node] = (struct pool_job){number, nothing, ran, (int64_t)p->node_first[node] * each,
                                      (int64_t)lanes_of(p, node) * each, 0};
        post(&p->knot[p->top[node]], &job[node]);
    }
    atomic_store(&p->left, (1ull << p->n_nodes) - 1);
    for (int w = 0; w < p->n_threads; w++)
        pass_on(p, &p->worker[w], &job[p->worker[w].node]);
    for (int left = p->n_threads; left;)
        for (int w = 0; w < p->n_threads; w++) {
            const struct pool_job *j = &job[p->worker[w].node];
            if (drained[w])
                continue;
            if (claim(&p->lane[w], number, (uint64_t)each, false, &k)) {
                j->fn(j->arg, (int64_t)w * each + (int64_t)k, w);
                done[w]++;
                continue;
            }
            finish(p, w, p->worker[w].node, j, done[w]);
            help(p, j, w, false);
            drained[w] = true;
            left--;
        }
    if (atomic_load(&p->done) != (uint32_t)number ||
        memchr(ran, 0, (size_t)p->n_threads * (size_t)each))
        exit(1);
}

/* ---- a move ---- */

enum { BURST = 16, BURSTS = 4000, WARM = 2 };
static const uint64_t LONGEST_NS = 5000000000;
static ATTR_ALIGNED(2 * POOL_LINE) _Atomic uint32_t turn;

static void pin_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static atomic_bool over;

/* Makes n moves of one parity. */
static void answer(uint32_t parity, uint32_t n)
{
    while (n && !atomic_load_explicit(&over, memory_order_relaxed))
        if (atomic_load_explicit(&turn, memory_order_acquire) % 2 == parity) {
            atomic_fetch_add(&turn, 1);
            n--;
        } else {
            PAUSE();
        }
}

static void *other_side(void *arg)
{
    pin_to(*(const int *)arg);
    answer(1, UINT32_MAX);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nanoseconds of a move, of short bursts the fastest tenth: others were interrupted.  0: there is
 * one processor. */
static double move_ns(double *median)
{
    static double burst[BURSTS];
    struct cpu_topology t;
    pthread_t other;
    if (!cpu_topology_read(&t) || t.n_cpus < 2)
        return 0;
    int second = t.cpu[1].id;
    pin_to(t.cpu[0].id);
    if (pthread_create(&other, NULL, other_side, &second))
        return 0;
    int n = 0;
    for (const uint64_t start = clock_now(); n < BURSTS && clock_now() - start < LONGEST_NS; n++) {
        answer(0, WARM);
        const uint64_t begin = clock_now();
        answer(0, BURST);
        burst[n] = (double)(clock_now() - begin) / (2 * BURST);
    }
    atomic_store(&over, true);
    (void)pthread_join(other, NULL);
    cpu_topology_release(&t);
    qsort(burst, (size_t)n, sizeof *burst, by_size);
    *median = burst[n / 2];
    return burst[n / 10];
}

/* Moves on the longest way of a job through the tree: its posts, each read by all children of a
 * knot one after the other, and the ends of all children likewise. */
static int longest_way(const struct pool *p)
{
    int n = 2 * p->n_nodes;
    for (int k = p->worker[0].leaf; k >= 0; k = p->knot[k].parent)
        n += 1 + 2 * (p->knot[k].leaf ? p->knot[k].n_lanes : p->knot[k].n_children);
    return n;
}

int main(void)
{
    double median = 0;
    const double ns = move_ns(&median);
    static const struct { int threads, nodes; } shape[] = {{2, 1},  {8, 1},   {16, 1},
                                                           {64, 2}, {128, 2}, {192, 2}};
    puts("threads  nodes  chunks a thread | writes of the busiest line a job | with one ticket | "
         "lines on the way of an end | moves on the longest way | join us | with one ticket");
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int each = 1; each <= 4; each *= 4) {
            static struct worker worker[THREADS];
            static struct lane lane[THREADS];
            static struct knot knot[THREADS];
            static struct pool pool;
            memset(lane, 0, sizeof lane);
            memset(knot, 0, sizeof knot);
            memset(line, 0, sizeof line);
            memset(&pool, 0, sizeof pool);
            struct pool *p = &pool;
            p->n_threads = shape[i].threads;
            p->n_nodes = shape[i].nodes;
            p->worker = worker;
            p->lane = lane;
            p->knot = knot;
            p->number = 1;
            for (int k = 0; k <= p->n_nodes; k++)
                p->node_first[k] = p->n_threads * k / p->n_nodes;
            for (int w = 0; w < p->n_threads; w++)
                worker[w] = (struct worker){.pool = p, .index = w};
            p->n_knots = pool_build_tree(p, knot, NULL);
            for (int k = 0; k < p->n_knots; k++)
                atomic_store(&knot[k].number, 1);
            for (int j = 0; j < JOBS; j++)
                play(p, each);
            long most = 0;
            for (size_t l = 0; l < LINES; l++)
                most = line[l].n > most ? line[l].n : most;
            int levels = 2; /* the lane and the root */
            for (int k = worker[0].leaf; k >= 0; k = knot[k].parent)
                levels++;
            const int way = longest_way(p), ticket = p->n_threads * (each + 1);
            printf("%7d  %5d  %15d | %32.1f | %15d | %26d | %24d | %7.2f | %15.2f\n", p->n_threads,
                   p->n_nodes, each, (double)most / JOBS, ticket, levels, way, way * ns * 1e-3,
                   ticket * ns * 1e-3);
        }
    printf("a move of a line between two cores: %.0f ns (fastest tenth of short bursts), "
           "median %.0f\n",
           ns, median);
    return 0;
}
