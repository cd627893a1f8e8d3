/* SPDX-License-Identifier: Apache-2.0 */
/* How often the lines of a pool are written in a job, with pretended threads: the tree of
 * pool_run.c is built for T threads on N nodes, and one thread plays all of them, a chunk at a time
 * in turn. Beside it what one ticket for all costs: a write a chunk and one a thread. */
#define POOL_COUNT
#include "base/pool_run.c"

#include <stdio.h>
#include <stdlib.h>

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
            if (claim(&p->lane[w], number, (uint64_t)each, &k)) {
                j->fn(j->arg, (int64_t)w * each + (int64_t)k, w);
                done[w]++;
                continue;
            }
            finish(p, w, p->worker[w].node, j, done[w]);
            help(p, j, w);
            drained[w] = true;
            left--;
        }
    if (atomic_load(&p->done) != (uint32_t)number ||
        memchr(ran, 0, (size_t)p->n_threads * (size_t)each))
        exit(1);
}

int main(void)
{
    static const struct { int threads, nodes; } shape[] = {{2, 1},  {8, 1},   {16, 1},
                                                           {64, 2}, {128, 2}, {192, 2}};
    puts("threads  nodes  chunks a thread | writes of the busiest line a job | with one ticket | "
         "lines on the way of an end");
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
            printf("%7d  %5d  %15d | %32.1f | %15d | %d\n", p->n_threads, p->n_nodes, each,
                   (double)most / JOBS, p->n_threads * (each + 1), levels);
        }
    return 0;
}
