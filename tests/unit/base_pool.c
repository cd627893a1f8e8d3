/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "unit/unit.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/pool_inner.h"
#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { N_MAX = 1000 };

struct marks {
    int hit[N_MAX]; /* plain on purpose: the pool itself must order them */
    int n_threads;
    _Atomic int bad_worker;
};

static void mark(void *arg, int64_t chunk, int worker)
{
    struct marks *m = arg;
    if (worker < 0 || worker >= m->n_threads)
        m->bad_worker = 1;
    m->hit[chunk]++;
}

static void check_every_chunk_once(int n_threads, bool pin, int rounds)
{
    struct pool *p;
    assert_int_equal(pool_create(&p, n_threads, pin, NULL), INGLE_OK);
    assert_int_equal(pool_size(p), n_threads);
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, N_MAX};
    for (int r = 0; r < rounds; r++) {
        const int64_t n = sizes[r % 7];
        struct marks m = {.n_threads = n_threads};
        pool_run(p, n, mark, &m);
        assert_int_equal(m.bad_worker, 0);
        for (int64_t i = 0; i < N_MAX; i++)
            assert_int_equal(m.hit[i], i < n);
    }
    pool_free(p);
}

static void test_one_thread(void **state)
{
    (void)state;
    check_every_chunk_once(1, true, 14);
}

static void test_two_threads(void **state)
{
    (void)state;
    check_every_chunk_once(2, true, 3000);
}

static void test_more_threads_than_processors(void **state)
{
    (void)state;
    check_every_chunk_once(9, true, 300);
    check_every_chunk_once(3, false, 300);
}

/* Trees of one, two and three levels; more chunks than a lane's word counts. */
static void test_many_threads(void **state)
{
    (void)state;
    check_every_chunk_once(17, false, 50);
    check_every_chunk_once(64, false, 30);
    check_every_chunk_once(300, false, 7);
}

/* As if threads had run so many chunks since shares were learned. */
static void pretend_ran(struct pool *p, int lane, uint64_t n)
{
    atomic_store(&p->lane[lane].ran, p->ran_before[lane] + n);
}

static void pretend_speeds(struct pool *p, uint64_t *noise)
{
    for (int i = 0; i < pool_size(p); i++) {
        *noise = *noise * 6364136223846793005u + 1442695040888963407u;
        pretend_ran(p, i, *noise >> 61 ? *noise >> 55 : 0);
    }
    pool_learn_shares(p);
}

/* Parts follow the speed of threads, are equal where speeds nearly are, and never nothing. */
static void test_shares_follow_speed(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_create(&p, 4, false, NULL), INGLE_OK);
    for (int r = 0; r < 8; r++) { /* 3 : 3 : 1 : 1, and noise */
        for (int i = 0; i < 4; i++)
            pretend_ran(p, i, (i < 2 ? 300u : 100u) + (unsigned)(r * i % 5));
        pool_learn_shares(p);
    }
    assert_int_not_equal(p->in_use, 0);
    static const int parts[] = {3, 6, 7, 8};
    for (int i = 0; i < 4; i++)
        assert_in_range(p->shares.end[i] + 500, SHARE_ONE / 8 * parts[i],
                        SHARE_ONE / 8 * parts[i] + 1000);
    for (int r = 0; r < 8; r++) { /* one stands still */
        for (int i = 0; i < 4; i++)
            pretend_ran(p, i, i ? 100 : 0);
        pool_learn_shares(p);
    }
    assert_in_range(p->shares.end[0], SHARE_ONE / 100, SHARE_ONE / 20);
    for (int r = 0; r < 8; r++) {
        for (int i = 0; i < 4; i++)
            pretend_ran(p, i, 100 + (unsigned)i);
        pool_learn_shares(p);
    }
    assert_int_equal(p->in_use, 0);
    pretend_ran(p, 0, 40); /* too little to say anything */
    pool_learn_shares(p);
    assert_int_equal(p->in_use, 0);
    pool_free(p);
}

/* Jobs of any size with pauses of any length between them, so that workers are met awake, half
 * asleep and asleep, at every level of the tree; some waits are as long as gaps between steps. */
static void random_jobs(uint64_t noise)
{
    static const int threads[] = {2, 3, 9, 17, 40, 64};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct pool *p;
        assert_int_equal(pool_create(&p, threads[t], t % 2, NULL), INGLE_OK);
        const uint64_t joins = pool_joins(p);
        (void)pool_join_ns(p);
        assert_int_equal(pool_joins(p), joins);
        for (int r = 0; r < 60; r++) {
            if (r % 5 == 4)
                pretend_speeds(p, &noise);
            struct marks m = {.n_threads = threads[t]};
            noise = noise * 6364136223846793005u + 1442695040888963407u;
            const int64_t n = (int64_t)(noise >> 40) % (r % 3 ? 40 : N_MAX);
            pool_run(p, n, mark, &m);
            for (int64_t i = 0; i < N_MAX; i++)
                assert_int_equal(m.hit[i], i < n);
            if (r % 4 == 0)
                nanosleep(&(struct timespec){.tv_nsec = (long)(noise >> 50) * (r % 8 ? 20 : 60)},
                          NULL);
        }
        pool_free(p);
    }
}

/* A job that may be cancelled within, as the device's are: chunks after that only count. */
struct cancelled {
    struct marks m;
    atomic_bool stop;
    int64_t stop_at, slow_at; /* chunks; -1: none */
    _Atomic uint64_t sum;
};

static void work_or_stop(void *arg, int64_t chunk, int worker)
{
    struct cancelled *c = arg;
    mark(&c->m, chunk, worker);
    if (chunk == c->stop_at)
        atomic_store(&c->stop, true);
    if (chunk == c->slow_at)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    for (int i = 0; i < 500 && !atomic_load_explicit(&c->stop, memory_order_relaxed); i++)
        atomic_fetch_add_explicit(&c->sum, (uint64_t)i, memory_order_relaxed);
}

static uint64_t next_of(uint64_t *noise, uint64_t n)
{
    *noise = *noise * 6364136223846793005u + 1442695040888963407u;
    return (*noise >> 33) % n;
}

/* Threads of made-up nodes, whose jobs have places; many are cancelled. */
static void random_nodes(uint64_t noise)
{
    enum { THREADS = 40, JOBS = 40 };
    const int n_nodes = 2 + (int)next_of(&noise, 3),
              n_threads = n_nodes + (int)next_of(&noise, THREADS - 4);
    struct cpu_place cpu[THREADS];
    struct cpu_topology t = {.cpu = cpu, .n_cpus = n_threads, .n_cores = n_threads,
                             .n_packages = 1, .n_nodes = n_nodes};
    struct pool *p;
    for (int i = 0; i < n_threads; i++)
        cpu[i] = (struct cpu_place){
            4000 + i, 4000 + i, 0, i < n_nodes ? i : (int)next_of(&noise, (uint64_t)n_nodes), false,
            -1};
    for (int k = 0; k < n_nodes; k++)
        t.node_id[k] = 10 + k;
    assert_int_equal(pool_create_on(&p, n_threads, true, &t, NULL), INGLE_OK);
    assert_int_equal(pool_nodes(p), n_nodes);
    for (int r = 0; r < JOBS; r++) {
        struct cancelled c = {.m.n_threads = n_threads, .stop_at = -1, .slow_at = -1};
        int64_t from[CPU_NODES_MAX], n[CPU_NODES_MAX], all = 0;
        for (int k = 0; k < n_nodes; k++) {
            from[k] = all;
            n[k] = next_of(&noise, 4) ? (int64_t)next_of(&noise, r % 3 ? 20 : N_MAX / 4) : 0;
            all += n[k];
        }
        if (all && r % 2)
            c.stop_at = (int64_t)next_of(&noise, (uint64_t)all);
        if (all && r % 8 == 7)
            c.slow_at = (int64_t)next_of(&noise, (uint64_t)all);
        if (r % 5 == 4)
            pretend_speeds(p, &noise);
        pool_run_placed(p, from, n, work_or_stop, &c);
        assert_int_equal(c.m.bad_worker, 0);
        for (int64_t i = 0; i < N_MAX; i++)
            assert_int_equal(c.m.hit[i], i < all);
        if (r % 4 == 0)
            nanosleep(&(struct timespec){.tv_nsec = (long)next_of(&noise, 600000)}, NULL);
    }
    pool_free(p);
}

static int64_t seconds; /* that random jobs are to take; 0: once */

static void test_random_jobs(void **state)
{
    (void)state;
    const uint64_t end = clock_now() + (uint64_t)seconds * 1000000000u;
    uint64_t noise = 12345;
    do {
        random_nodes(noise);
        random_jobs(noise++);
    } while (clock_now() < end);
}

static void add_one(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    atomic_fetch_add((_Atomic int64_t *)arg, 1 + 0 * chunk);
}

static void test_very_many_chunks(void **state)
{
    (void)state;
    struct pool *p;
    _Atomic int64_t n = 0;
    assert_int_equal(pool_create(&p, 2, false, NULL), INGLE_OK);
    pool_run(p, 100003, add_one, &n);
    assert_int_equal(n, 100003);
    pool_free(p);
}

static size_t resident(void *at, size_t n_bytes)
{
    enum { PAGES = 4096 };
    static unsigned char in[PAGES];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = n_bytes / page;
    size_t k = 0;
    assert_true(n <= PAGES);
    assert_int_equal(mincore(at, n_bytes, in), 0);
    for (size_t i = 0; i < n; i++)
        k += in[i] & 1;
    return k * page;
}

/* What was asked for is there, and as it was; what lies behind it is not.  A system older than the
 * hint (Linux 5.14) has nothing there, which is no failure. */
static void test_fill(void **state)
{
    (void)state;
    enum { N = 5 * MEM_BIG_PAGE, AT = MEM_BIG_PAGE + 12345, BYTES = 2 * MEM_BIG_PAGE };
    for (int n_threads = 1; n_threads < 4; n_threads++) {
        struct pool *p;
        assert_int_equal(pool_create(&p, n_threads, false, NULL), INGLE_OK);
        uint8_t *at = mem_big_alloc(N);
        assert_non_null(at);
        assert_int_equal((uintptr_t)at % MEM_BIG_PAGE, 0);
        assert_int_equal(resident(at, N), 0);
        pool_fill(p, at, 0);
        assert_int_equal(resident(at, N), 0);
        at[AT] = 7;
        const size_t before = resident(at, N);
        pool_fill(p, at + AT, BYTES);
        const size_t page = (size_t)sysconf(_SC_PAGESIZE), filled = resident(at, N);
        assert_true(filled == before || filled >= BYTES);
        if (filled != before)
            assert_int_equal(resident(at + AT / page * page, BYTES), BYTES);
        assert_int_equal(resident(at + 4 * MEM_BIG_PAGE, MEM_BIG_PAGE), 0);
        assert_int_equal(at[AT], 7);
        assert_int_equal(at[AT + 1], 0);
        mem_big_free(at, N);
        pool_free(p);
    }
}

static void nap(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* Within enter and leave the caller keeps to one processor; afterwards it has all it had. */
static void test_enter(void **state)
{
    (void)state;
    struct pool *p;
    cpu_set_t before, in, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    const int n = CPU_COUNT(&before) < 2 ? 1 : 2;
    for (int pin = 0; pin < 2; pin++) {
        assert_int_equal(pool_create(&p, n, pin, NULL), INGLE_OK);
        pool_enter(p);
        pool_enter(p);
        assert_int_equal(sched_getaffinity(0, sizeof in, &in), 0);
        assert_int_equal(CPU_COUNT(&in), pin && n > 1 ? 1 : CPU_COUNT(&before));
        pool_leave(p);
        pool_leave(p);
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&before, &after));
        pool_free(p);
    }
}

/* As taskset and control groups do: all threads of this process. */
static void set_all_threads(const cpu_set_t *set)
{
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e; e = readdir(d))
        if (e->d_name[0] != '.')
            assert_int_equal(sched_setaffinity((pid_t)atoi(e->d_name), sizeof *set, set), 0);
    closedir(d);
}

/* Jobs, as steps have them, until so many threads rest. */
static void run_until_resting(struct pool *p, int n)
{
    for (int i = 0; pool_taken(p) != n || i < 10; i++) {
        struct marks m = {.n_threads = pool_size(p)};
        assert_true(i < 30000);
        pool_enter(p);
        pool_run(p, 7, mark, &m);
        pool_leave(p);
        for (int k = 0; k < 7; k++)
            assert_int_equal(m.hit[k], 1);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* The caller's processor or the worker's is taken: one thread rests, until it is given back. */
static void test_taken_processors(void **state)
{
    (void)state;
    cpu_set_t all, two, one;
    struct pool *p;
    size_t cpu[2] = {0}, n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2)
        skip();
    CPU_ZERO(&two);
    for (size_t i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &all)) {
            cpu[n++] = i;
            CPU_SET(i, &two);
        }
    assert_int_equal(sched_setaffinity(0, sizeof two, &two), 0);
    assert_int_equal(pool_create(&p, 2, true, NULL), INGLE_OK);
    assert_int_equal(pool_unbound(p), 0);
    run_until_resting(p, 0);
    for (int left = 0; left < 2; left++) {
        CPU_ZERO(&one);
        CPU_SET(cpu[left], &one);
        set_all_threads(&one);
        run_until_resting(p, 1);
        set_all_threads(&two);
        run_until_resting(p, 0);
    }
    set_all_threads(&one); /* it ends while a thread rests */
    run_until_resting(p, 1);
    pool_free(p);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static int n_processors_of_worker(const struct pool *p)
{
    cpu_set_t set;
    assert_int_equal(pthread_getaffinity_np(p->worker[1].thread, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

/* Where others take all processors again and again, threads run on any that the pool has. */
static void test_crowded(void **state)
{
    (void)state;
    struct pool *p;
    cpu_set_t in;
    assert_int_equal(sched_getaffinity(0, sizeof in, &in), 0);
    if (CPU_COUNT(&in) < 2)
        skip();
    assert_int_equal(pool_create(&p, 2, true, NULL), INGLE_OK);
    assert_false(pool_crowded(p));
    atomic_fetch_add(&p->n_shared, 2); /* as if both had seen it */
    for (int i = 0; n_processors_of_worker(p) != 2; i++) {
        assert_true(i < 100);
        run_until_resting(p, 0);
    }
    pool_enter(p);
    assert_int_equal(sched_getaffinity(0, sizeof in, &in), 0);
    assert_int_equal(CPU_COUNT(&in), 2);
    pool_leave(p);
    atomic_fetch_add(&p->n_shared, -2);
    for (int i = 0; n_processors_of_worker(p) != 1 && !pool_crowded(p); i++) {
        assert_true(i < 100);
        run_until_resting(p, 0);
    }
    pool_free(p);
}

/* A thread that rests for both reasons is one. */
static void test_resting_once(void **state)
{
    (void)state;
    struct worker w[4] = {{0}};
    struct pool p = {.n_threads = 4, .worker = w};
    w[1].rests = w[1].left_out = w[2].rests = true;
    p.n_resting = 2;
    p.n_left_out = 1;
    assert_int_equal(pool_resting(&p), 2);
    assert_int_equal(pool_taken(&p), 2);
    assert_int_equal(pool_left_out(&p), 1);
}

static void stand_still(void *arg, int64_t chunk, int worker)
{
    mark(arg, chunk, worker);
    const uint64_t start = clock_now();
    if (worker)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    while (clock_now() - start < 30000)
        ;
}

/* A thread that stands still in the middle of chunks is left out, and let in again later, where
 * there are processors for all.  All chunks are run all the same. */
static void test_left_out(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_create(&p, 2, false, NULL), INGLE_OK);
    for (int out = p->spin_ns == POOL_SPIN_NS; out >= 0; out--)
        for (int i = 0; pool_left_out(p) != out; i++) {
            struct marks m = {.n_threads = 2};
            assert_true(i < 30000);
            pool_run(p, 7, out ? stand_still : mark, &m);
            for (int k = 0; k < 7; k++)
                assert_int_equal(m.hit[k], 1);
            if (!out)
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    pool_free(p);
}

/* Jobs that find the workers asleep, half asleep and spinning. */
static void test_wakes_sleepers(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_create(&p, 3, false, NULL), INGLE_OK);
    for (int r = 0; r < 60; r++) {
        struct marks m = {.n_threads = 3};
        pool_run(p, 10, mark, &m);
        for (int i = 0; i < 10; i++)
            assert_int_equal(m.hit[i], 1);
        nanosleep(&(struct timespec){.tv_nsec = (r % 6) * 20000}, NULL);
    }
    pool_free(p);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void test_idle_costs_nothing(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_create(&p, 4, false, NULL), INGLE_OK);
    struct marks m = {.n_threads = 4};
    pool_run(p, 100, mark, &m);
    double used = 1;
    for (int i = 0; i < 20 && used >= 0.02; i++) { /* workers may get no turn to fall asleep */
        nap(50);
        const double before = cpu_seconds();
        nap(300);
        used = cpu_seconds() - before;
    }
    assert_true(used < 0.02);
    pool_free(p);
}

static void slow_first(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    if (chunk == 0)
        nap(30);
    ((int *)arg)[chunk] = 1;
}

/* A thread that is held up holds up its own chunk and no other. */
static void test_waits_for_a_late_chunk(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_create(&p, 2, false, NULL), INGLE_OK);
    int done[100] = {0};
    pool_run(p, 100, slow_first, done);
    for (int i = 0; i < 100; i++)
        assert_int_equal(done[i], 1);
    pool_free(p);
}

static void test_refuses_silly_sizes(void **state)
{
    (void)state;
    struct pool *p = NULL;
    struct err err = {0};
    assert_int_equal(pool_create(&p, 0, false, &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "0 is not in 1"));
    assert_int_equal(pool_create(&p, 1 << 20, false, NULL), INGLE_ARG);
    assert_null(p);
    pool_free(NULL);
}

static void test_create_free_many(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct pool *p;
        assert_int_equal(pool_create(&p, 1 + i % 4, i % 2, NULL), INGLE_OK);
        pool_free(p);
    }
}

/* Pools of different processes, or of one, share the processors out before they share one. */
static void test_pools_stand_side_by_side(void **state)
{
    (void)state;
    struct cpu_topology t, u;
    struct pool *p, *q;
    assert_true(cpu_topology_read(&t));
    assert_true(cpu_topology_read(&u));
    cpu_topology_join(&t);
    cpu_topology_join(&u);
    if (t.n_cpus < 2) {
        cpu_topology_release(&t);
        cpu_topology_release(&u);
        skip();
    }
    assert_int_equal(pool_create_with(&p, 1, true, &t, NULL), INGLE_OK);
    assert_int_equal(pool_create_with(&q, 1, true, &u, NULL), INGLE_OK);
    /* Another test's pool may have both; then they keep the order of the system. */
    const int first = t.cpu[0].id, second = u.cpu[0].id;
    pool_free(q);
    pool_free(p);
    if (first == second)
        print_message("all processors are taken by other programs\n");
    cpu_topology_release(&u);
    assert_true(cpu_topology_read(&u));
    cpu_topology_join(&u);
    assert_int_equal(u.n_cpus, t.n_cpus);
    for (int i = 0; i < u.n_cpus; i++) { /* none was lost, none is there twice */
        int n = 0;
        for (int k = 0; k < t.n_cpus; k++)
            n += t.cpu[k].id == u.cpu[i].id;
        assert_int_equal(n, 1);
    }
    cpu_topology_release(&t);
    cpu_topology_release(&u);
}

/* base_pool [SECONDS] */
int main(int argc, char **argv)
{
    seconds = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_two_threads),
        cmocka_unit_test(test_more_threads_than_processors),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_shares_follow_speed),
        cmocka_unit_test(test_random_jobs),
        cmocka_unit_test(test_very_many_chunks),
        cmocka_unit_test(test_wakes_sleepers),
        cmocka_unit_test(test_enter),
        cmocka_unit_test(test_taken_processors),
        cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_resting_once),
        cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_pools_stand_side_by_side),
        cmocka_unit_test(test_fill),
        cmocka_unit_test(test_idle_costs_nothing),
        cmocka_unit_test(test_waits_for_a_late_chunk),
        cmocka_unit_test(test_refuses_silly_sizes),
        cmocka_unit_test(test_create_free_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
