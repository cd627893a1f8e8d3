/* SPDX-License-Identifier: Apache-2.0 */
/* device_numa - made-up machines with several memory nodes: who computes which rows, and that the
 * bits are those of one thread. */
#define _POSIX_C_SOURCE 200809L
#include "unit/unit.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "device/near.h"
#include "device/ops.h"
#include "kerncheck/checks.h"
#include <string.h>
#include <time.h>

enum { MOST = 16, IN = 256, OUT = 1000, STACK = 7, ROWS = 3 };

struct shape { int n_nodes, threads[4]; };
static const struct shape shapes[] = {
    {1, {3}}, {2, {2, 2}}, {2, {1, 5}}, {3, {1, 2, 3}}, {4, {1, 1, 1, 1}}, {3, {4, 1, 1}},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Nodes are numbered 10, 11, ...: none of this machine, so that nothing is placed. */
static struct cpu_topology machine(const struct shape *s, struct cpu_place cpu[MOST])
{
    struct cpu_topology t = {.cpu = cpu, .n_packages = 1, .n_nodes = s->n_nodes};
    for (int k = 0; k < s->n_nodes; k++) {
        t.node_id[k] = 10 + k;
        for (int i = 0; i < s->threads[k]; i++, t.n_cpus++)
            cpu[t.n_cpus] = (struct cpu_place){4000 + t.n_cpus, 4000 + t.n_cpus, 0, k, false, -1};
    }
    t.n_cores = t.n_cpus;
    return t;
}

static struct pool *open_pool(const struct shape *s)
{
    struct cpu_place cpu[MOST], swap;
    struct cpu_topology t = machine(s, cpu);
    struct pool *p;
    struct err e;
    for (int i = 0; i < t.n_cpus / 2; i++) { /* any order: the pool sorts */
        swap = cpu[i];
        cpu[i] = cpu[t.n_cpus - 1 - i];
        cpu[t.n_cpus - 1 - i] = swap;
    }
    if (pool_create_on(&p, t.n_cpus, true, &t, &e))
        fail_msg("%s", e.msg);
    return p;
}

static void test_workers_of_a_node_are_neighbours(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct pool *p = open_pool(&shapes[i]);
        assert_int_equal(pool_nodes(p), shapes[i].n_nodes);
        for (int k = 0, first = 0; k < shapes[i].n_nodes; first += shapes[i].threads[k++]) {
            assert_int_equal(pool_node_first(p, k), first);
            assert_int_equal(pool_node_id(p, k), 10 + k);
            for (int w = 0; w < shapes[i].threads[k]; w++)
                assert_int_equal(pool_node_of(p, first + w), k);
        }
        assert_int_equal(pool_node_first(p, shapes[i].n_nodes), pool_size(p));
        pool_free(p);
    }
}

/* Fewer threads than processors: those that there are count.  Unbound ones are nowhere. */
static void test_some_threads(void **state)
{
    (void)state;
    struct cpu_place cpu[MOST];
    struct cpu_topology t = machine(&shapes[3], cpu);
    struct pool *p;
    assert_int_equal(pool_create_on(&p, 2, true, &t, NULL), INGLE_OK);
    assert_int_equal(pool_nodes(p), 2);
    pool_free(p);
    assert_int_equal(pool_create_on(&p, 6, false, &t, NULL), INGLE_OK);
    assert_int_equal(pool_nodes(p), 1);
    pool_free(p);
    assert_int_equal(pool_create_on(&p, 9, true, &t, NULL), INGLE_OK); /* more than processors */
    assert_int_equal(pool_nodes(p), 1);
    pool_free(p);
}

/* Who ran what: chunk c by worker who[c] - 1. */
struct seen { int who[400]; int slow; };

static void note_chunk(void *arg, int64_t chunk, int worker)
{
    struct seen *s = arg;
    s->who[chunk] += 1 + worker + 1000 * (s->who[chunk] != 0);
    if (worker == s->slow) /* held up: others do what it has not begun */
        nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
}

/* Each chunk is run once, whatever the nodes have and whoever is held up. */
static void test_placed_chunks(void **state)
{
    (void)state;
    struct noise r = {3};
    for (size_t i = 0; i < N_SHAPES * 10; i++) {
        const struct shape *s = &shapes[i % N_SHAPES];
        struct pool *p = open_pool(s);
        for (int round = 0; round < 5; round++) {
            struct seen seen = {.slow = (int)(noise_next(&r) % (uint64_t)pool_size(p))};
            int64_t from[4] = {0}, n[4], all = 0;
            for (int k = 0; k < s->n_nodes; k++) {
                from[k] = all;
                n[k] = (int64_t)(noise_next(&r) % 60);
                all += n[k];
            }
            pool_run_placed(p, from, n, note_chunk, &seen);
            for (int64_t c = 0; c < 400; c++)
                assert_true(c < all ? seen.who[c] > 0 && seen.who[c] <= pool_size(p)
                                    : !seen.who[c]);
        }
        pool_free(p);
    }
}

static struct device *open_device(const struct shape *s, enum device_numa numa)
{
    struct cpu_place cpu[MOST];
    struct cpu_topology t = machine(s, cpu);
    const struct device_options o = {
        .n_threads = t.n_cpus, .pin = true, .cpu = UINT32_MAX, .numa = numa, .topology = &t};
    struct device *d;
    struct err e;
    if (device_create(&d, &o, &e) || device_arena_reserve(d, 8 << 20, &e))
        fail_msg("%s", e.msg);
    return d;
}

/* Every panel of every matrix is one node's: by rows where a matrix is large or alone, by matrices
 * in a stack of small ones. */
static void test_shares(void **state)
{
    (void)state;
    static const int64_t out[] = {16, 100, 1000, 300000};
    for (size_t i = 0; i < N_SHAPES && !UNIT_TSAN; i++) { /* one thread's sums */
        struct device *d = open_device(&shapes[i], DEVICE_NUMA_AUTO);
        for (size_t k = 0; k < 4; k++)
            for (int64_t n_stack = 1; n_stack <= STACK; n_stack += STACK - 1) {
                struct device_matrix *m;
                assert_int_equal(device_matrix_create(&m, d, QUANT_Q4_0, out[k], IN, n_stack, NULL),
                                 INGLE_OK);
                for (int64_t index = 0; index < n_stack; index++) {
                    int64_t end = 0, most = 0;
                    const int64_t panels = num_div_up(out[k], KERN_PANEL);
                    for (int node = 0; node < shapes[i].n_nodes; node++) {
                        int64_t p0, p1;
                        device_matrix_share(m, index, node, 0, &p0, &p1);
                        assert_true(p0 <= p1 && p1 <= panels);
                        if (p0 == p1)
                            continue;
                        assert_int_equal(p0, end);
                        end = p1;
                        most = num_max(most, p1 - p0);
                    }
                    assert_int_equal(end, panels);
                    if (shapes[i].n_nodes > 1 && n_stack > 1 && k < 3)
                        assert_int_equal(most, panels);
                    if (shapes[i].n_nodes > 1 && k == 3 && n_stack == 1)
                        assert_true(most < panels);
                }
                device_matrix_free(m);
            }
        device_free(d);
    }
}

struct weights { uint8_t *stored; void *packed; size_t n_bytes; struct device_matrix *m; };

static void load(struct weights *w, struct device *d, int64_t n_stack)
{
    struct noise r = {11};
    uint64_t row;
    assert_true(quant_bytes(QUANT_Q8_0, IN, 1, &row));
    assert_int_equal(device_matrix_create(&w->m, d, QUANT_Q8_0, OUT, IN, n_stack, NULL), INGLE_OK);
    w->n_bytes = (size_t)device_matrix_bytes(w->m);
    w->packed = mem_big_alloc(w->n_bytes);
    w->stored = mem_alloc((size_t)(OUT * row));
    assert_true(w->packed && w->stored);
    device_matrix_place(w->m, w->packed, 0);
    device_matrix_spread(w->m); /* the system has no such nodes: nothing happens */
    float x[IN];
    for (int64_t s = 0; s < n_stack; s++) {
        for (int64_t i = 0; i < OUT; i++) {
            for (int k = 0; k < IN; k++)
                x[k] = noise_unit(&r);
            assert_true(quant_encode(QUANT_Q8_0, x, w->stored + (uint64_t)i * row, IN));
        }
        device_matrix_load(w->m, s, 0, OUT, w->stored);
    }
}

static void unload(struct weights *w)
{
    device_matrix_free(w->m);
    mem_big_free(w->packed, w->n_bytes);
    mem_free(w->stored);
}

/* The arena of a dry run of a list of products, and the memory for copies on nodes. */
static void reserve(struct device *d, const struct device_product *p, int64_t n)
{
    device_dry_begin(d);
    device_matmul(d, p, n);
    assert_int_equal(device_arena_reserve(d, device_dry_end(d), NULL), INGLE_OK);
    assert_int_equal(device_near_bytes(d) > 0, pool_nodes(device_pool(d)) > 1);
}

/* Products of a stack and of a single matrix in one list. */
static void multiply(struct device *d, float *y)
{
    struct weights one, stack;
    struct noise r = {5};
    static float x[ROWS * IN];
    struct device_product p[4];
    load(&one, d, 1);
    load(&stack, d, STACK);
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = noise_unit(&r);
    for (int i = 0; i < 4; i++)
        p[i] = (struct device_product){.w = i ? stack.m : one.m,
                                       .index = i ? 2 * i : 0,
                                       .x = {x, ROWS, IN, IN},
                                       .y = {y + (size_t)i * ROWS * OUT, ROWS, OUT, OUT}};
    reserve(d, p, 4);
    for (int round = 0; round < 20; round++) {
        device_begin(d, NULL);
        device_matmul(d, p, 4);
        assert_int_equal(device_status(d, NULL), INGLE_OK);
    }
    unload(&one);
    unload(&stack);
}

static void test_same_bits(void **state)
{
    (void)state;
    enum { N = 4 * ROWS * OUT };
    static float plain[N], y[N];
    struct device *d = open_device(&(struct shape){1, {1}}, DEVICE_NUMA_AUTO);
    multiply(d, plain);
    device_free(d);
    for (size_t i = 0; i < N_SHAPES; i += UNIT_TSAN ? 2 : 1)
        for (int numa = DEVICE_NUMA_AUTO;
             numa <= (UNIT_TSAN ? DEVICE_NUMA_AUTO : DEVICE_NUMA_INTERLEAVE); numa++) {
            d = open_device(&shapes[i], (enum device_numa)numa);
            assert_int_equal(pool_nodes(device_pool(d)),
                             numa == DEVICE_NUMA_AUTO ? shapes[i].n_nodes : 1);
            assert_int_equal(device_nodes(d)->n, numa == DEVICE_NUMA_OFF ? 1 : shapes[i].n_nodes);
            memset(y, 0xff, sizeof y);
            multiply(d, y);
            assert_memory_equal(y, plain, sizeof y);
            device_free(d);
        }
}

enum { MANY = 96, LISTED = 20, MANY_FLOATS = (MANY + 2 * LISTED) * OUT };

/* Many rows, whose codes threads of all nodes write, and listed ones, which are gathered. */
static void multiply_many(struct device *d, float *y)
{
    static float x[MANY * IN];
    int32_t row[LISTED];
    struct weights one, stack;
    struct noise r = {8};
    load(&one, d, 1);
    load(&stack, d, STACK);
    for (int i = 0; i < MANY * IN; i++)
        x[i] = noise_unit(&r);
    for (int i = 0; i < LISTED; i++)
        row[i] = (MANY - 7) * i % MANY;
    struct device_product p[3];
    for (int i = 0; i < 3; i++) {
        const int64_t n = i ? LISTED : MANY, at = i ? MANY + (i - 1) * LISTED : 0;
        p[i] = (struct device_product){.w = i ? stack.m : one.m,
                                       .index = 2 * i,
                                       .x = {x, MANY, IN, IN},
                                       .y = {y + at * OUT, n, OUT, OUT},
                                       .row = i ? row : NULL};
    }
    p[0].index = 0;
    reserve(d, p, 3);
    for (int round = 0; round < 5; round++) {
        device_begin(d, NULL);
        device_matmul(d, p, 3);
        assert_int_equal(device_status(d, NULL), INGLE_OK);
    }
    unload(&one);
    unload(&stack);
}

static void test_same_bits_of_many_rows(void **state)
{
    (void)state;
    static float plain[MANY_FLOATS], y[MANY_FLOATS];
    for (size_t i = 0; i < N_SHAPES; i += UNIT_TSAN ? 4 : 1) {
        struct device *d = open_device(&shapes[i], DEVICE_NUMA_AUTO);
        memset(y, 0xff, sizeof y);
        multiply_many(d, i ? y : plain);
        if (i)
            assert_memory_equal(y, plain, sizeof y);
        device_free(d);
    }
}

struct readers { struct device *d; struct device_near block[3]; const uint8_t *at[3]; };

/* Reads until it finds a copy, of which there will be one. */
static void read_blocks(void *arg, int64_t chunk, int worker)
{
    const struct readers *r = arg;
    const struct device_near *b = &r->block[chunk % 3];
    const uint8_t *own = r->at[chunk % 3] + chunk % 7, *at;
    const bool at_home = pool_node_of(device_pool(r->d), worker) == b->home;
    do
        at = device_near_read(r->d, b, own, worker);
    while (at == own && !at_home);
    if ((at == own) != at_home || memcmp(at, own, b->n_bytes - 7) != 0)
        abort();
}

/* Every node but the writers' own has a copy, of this operation's bytes. */
static void test_copies(void **state)
{
    (void)state;
    enum { BYTES = 100000 };
    uint8_t *from = mem_alloc(BYTES);
    assert_non_null(from);
    for (size_t i = 0; i < N_SHAPES; i += UNIT_TSAN ? 2 : 1) {
        struct readers r = {.d = open_device(&shapes[i], DEVICE_NUMA_AUTO)};
        const bool any = pool_nodes(device_pool(r.d)) > 1;
        assert_null(device_near_add(r.d, from, BYTES, -1).from); /* no memory for copies yet */
        device_near_want(r.d, BYTES);
        assert_int_equal(device_near_reserve(r.d, NULL), INGLE_OK);
        for (int round = 0; round < 20; round++) {
            const size_t n[] = {100, 40000 + (size_t)round, 30000};
            device_near_begin(r.d);
            for (int k = 0, at = 0; k < 3; at += (int)n[k++]) {
                r.at[k] = from + at;
                memset(from + at, round + k, n[k]);
                r.block[k] = device_near_add(r.d, r.at[k], n[k], k - 1);
                assert_int_equal(r.block[k].from != NULL, any);
            }
            if (any)
                pool_run(device_pool(r.d), 50, read_blocks, &r);
            assert_null(device_near_add(r.d, from, 4 << 20, -1).from); /* no room */
        }
        device_free(r.d);
    }
    mem_free(from);
}

struct stacks { struct device_matrix *part[3]; uint8_t *at; size_t n_bytes; int n; };

enum { WIDE = 320, HIDDEN = 512 };

/* Experts as a model has them: gate and up (or both in one) and down, whose rows are 0, 1, ... */
static void open_stacks(struct stacks *s, struct device *d, bool merged, uint32_t down)
{
    const uint32_t type[] = {QUANT_Q8_0, QUANT_Q8_0, down};
    size_t one = 0, at[3];
    *s = (struct stacks){.n = merged ? 2 : 3};
    for (int k = 0; k < s->n; k++) {
        const bool last = k == s->n - 1;
        const int64_t out = last ? WIDE : merged ? 2 * HIDDEN : HIDDEN;
        assert_int_equal(device_matrix_create(&s->part[k], d, type[last ? 2 : k], out,
                                              last ? HIDDEN : WIDE, STACK, NULL),
                         INGLE_OK);
        at[k] = one;
        one += (size_t)device_matrix_bytes(s->part[k]) / STACK;
    }
    s->n_bytes = one * STACK;
    s->at = mem_big_alloc(s->n_bytes);
    assert_non_null(s->at);
    for (int k = 0; k < s->n; k++)
        device_matrix_place(s->part[k], s->at + at[k], one);
}

static void fill_stacks(const struct stacks *s)
{
    for (int k = 0; k < s->n; k++) {
        uint64_t row;
        struct noise r = {(uint64_t)k};
        const int64_t out = device_matrix_out(s->part[k]);
        assert_true(quant_bytes(device_matrix_type(s->part[k]),
                                (uint64_t)device_matrix_in(s->part[k]), 1, &row));
        uint8_t *stored = mem_alloc((size_t)out * row);
        assert_non_null(stored);
        for (int64_t e = 0; e < STACK; e++) {
            for (uint64_t i = 0; i < (uint64_t)out * row; i++)
                stored[i] = (uint8_t)noise_next(&r);
            for (int64_t first = 0; first < out; first += 48) /* as a file is read */
                device_matrix_load(s->part[k], e, first, num_min(48, out - first),
                                   stored + (uint64_t)first * row);
        }
        mem_free(stored);
    }
}

static void close_stacks(struct stacks *s)
{
    for (int k = 0; k < s->n; k++)
        device_matrix_free(s->part[k]);
    mem_big_free(s->at, s->n_bytes);
}

/* Every panel is one node's, each node has about its part, and groups of hidden values are whole
 * where down reads groups of 256. */
static void check_divided(const struct stacks *s, const struct shape *shape, int64_t unit)
{
    int n_threads = 0;
    size_t regions = 0;
    for (int node = 0; node < shape->n_nodes; node++)
        n_threads += shape->threads[node];
    for (int k = 0; k < s->n; k++) {
        const int halves = device_matrix_halves(s->part[k]);
        const int64_t panels = device_matrix_out(s->part[k]) / KERN_PANEL;
        assert_int_equal(halves, k == 0 && s->n == 2 ? 2 : 1);
        for (int64_t i = 0, end = 0; i < halves * shape->n_nodes; i++) {
            const int node = (int)(i % shape->n_nodes), half = (int)(i / shape->n_nodes);
            int64_t p0, p1;
            device_matrix_share(s->part[k], 1, node, half, &p0, &p1);
            assert_int_equal(p0, end);
            end = p1;
            const int64_t want = panels / halves * shape->threads[node] / n_threads,
                          most = (k < s->n - 1 ? unit : 1) * KERN_BAND;
            assert_true(p1 - p0 <= want + most && p1 - p0 >= want - most);
            assert_int_equal(p1 % most == 0 || p1 % (panels / halves) == 0, true);
            if (i == halves * shape->n_nodes - 1)
                assert_int_equal(end, panels);
        }
    }
    for (int node = 0; node < shape->n_nodes; node++) {
        uint8_t *at;
        size_t n;
        device_matrix_region(s->part[0], node, &at, &n);
        assert_ptr_equal(at, s->at + regions);
        regions += n;
    }
    assert_int_equal(regions, s->n_bytes);
}

/* Stacks whose rows are divided have, put together, the bytes of those that are not. */
static void test_divided(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES * 4 && !UNIT_TSAN; i++) {
        const struct shape *shape = &shapes[i % N_SHAPES];
        const bool merged = i / N_SHAPES % 2;
        const uint32_t down = i / N_SHAPES > 1 ? QUANT_Q6_K : QUANT_Q4_0;
        const int64_t unit = down == QUANT_Q6_K ? 4 : 1;
        struct device *d = open_device(shape, DEVICE_NUMA_AUTO);
        struct stacks whole, s;
        open_stacks(&whole, d, merged, down);
        open_stacks(&s, d, merged, down);
        fill_stacks(&whole);
        const bool can = shape->n_nodes > 1 && HIDDEN / 64 / unit >= shape->n_nodes;
        assert_int_equal(device_matrix_divide(s.part, s.n, s.at, s.n_bytes), can);
        if (can) {
            uint8_t *one = mem_alloc(s.n_bytes / STACK);
            assert_non_null(one);
            check_divided(&s, shape, unit);
            device_matrix_spread(s.part[0]);
            fill_stacks(&s);
            size_t at = 0;
            for (int k = 0; k < s.n; k++) {
                const size_t n = (size_t)device_matrix_bytes(s.part[k]) / STACK;
                for (int64_t e = 0; e < STACK; e++) {
                    device_matrix_gather(s.part[k], e, one);
                    assert_memory_equal(one, whole.at + (size_t)e * (s.n_bytes / STACK) + at, n);
                }
                at += n;
            }
            mem_free(one);
        }
        close_stacks(&whole);
        close_stacks(&s);
        device_free(d);
    }
}

enum { RUN = 4 };
struct run {
    struct device_matrix *m[RUN];
    uint8_t *at;
    size_t n_bytes;
};

/* Matrices of several shapes, with a gap between two of them. */
static void open_run(struct run *r, struct device *d, bool divided)
{
    static const struct {
        uint32_t type;
        int64_t out, in, n_stack;
    } shape[RUN] = {{QUANT_Q8_0, 1000, 64, 1},
                    {QUANT_F32, 24, 40, 1},
                    {QUANT_Q8_0, 200, 64, 3},
                    {QUANT_Q4_K, 516, 256, 1}};
    size_t at[RUN], n = 0;
    for (int i = 0; i < RUN; i++) {
        assert_int_equal(device_matrix_create(&r->m[i], d, shape[i].type, shape[i].out, shape[i].in,
                                              shape[i].n_stack, NULL),
                         INGLE_OK);
        at[i] = n;
        n += (size_t)device_matrix_bytes(r->m[i]) + (i == 1 ? 4096 : 0);
    }
    r->n_bytes = n;
    r->at = mem_big_alloc(n);
    assert_non_null(r->at);
    for (int i = 0; i < RUN; i++)
        device_matrix_place(r->m[i], r->at + at[i], 0);
    if (divided)
        assert_true(device_matrix_divide_run(r->m, RUN, r->at, n));
    for (int i = 0; i < RUN; i++) {
        uint64_t row;
        struct noise noise = {(uint64_t)i};
        assert_true(quant_bytes(shape[i].type, (uint64_t)shape[i].in, 1, &row));
        const size_t n_stored = (size_t)row * (size_t)shape[i].out;
        uint8_t *stored = mem_zalloc(n_stored);
        assert_non_null(stored);
        for (int64_t e = 0; e < shape[i].n_stack; e++) {
            for (size_t b = 0; shape[i].type != QUANT_F32 && b < n_stored; b++)
                stored[b] = (uint8_t)(noise_next(&noise) & 0x1f);
            device_matrix_load(r->m[i], e, 0, shape[i].out, stored);
        }
        mem_free(stored);
    }
}

static void close_run(struct run *r)
{
    for (int i = 0; i < RUN; i++)
        device_matrix_free(r->m[i]);
    mem_big_free(r->at, r->n_bytes);
}

/* Every node has one piece of memory, and its rows of every matrix follow one another there. */
static void check_run(const struct run *r, const struct shape *shape)
{
    uint8_t *next = r->at, *at;
    for (int node = 0; node < shape->n_nodes; node++)
        for (int i = 0; i < RUN; i++) {
            size_t n;
            int64_t p0, p1;
            assert_true(device_matrix_is_divided(r->m[i]));
            device_matrix_region(r->m[i], node, &at, &n);
            device_matrix_share(r->m[i], 0, node, 0, &p0, &p1);
            assert_ptr_equal(at, next);
            assert_true((p0 == p1) == (n == 0));
            next += n;
        }
    assert_true((size_t)(next - r->at) == r->n_bytes - 4096);
}

static void product(struct device *d, const struct device_matrix *m, float *y)
{
    static float x[ROWS * IN];
    struct noise r = {5};
    const int64_t in = device_matrix_in(m), out = device_matrix_out(m);
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = noise_unit(&r);
    const struct device_product p = {
        m, device_matrix_stack(m) - 1, {x, ROWS, in, in}, {y, ROWS, out, out}, NULL};
    device_begin(d, NULL);
    device_matmul(d, &p, 1);
    assert_int_equal(device_status(d, NULL), INGLE_OK);
}

/* Rows that are looked up, of matrices that are no stacks. */
static void look_up(struct device *d, const struct device_matrix *m, float *y)
{
    const int64_t in = device_matrix_in(m);
    const int32_t row[] = {0, (int32_t)device_matrix_out(m) - 1, 15, 16};
    device_begin(d, NULL);
    device_embed(d, (struct rows){y, 4, in, in}, m, row, 1);
    assert_int_equal(device_status(d, NULL), INGLE_OK);
}

/* Matrices of a run have the same bytes and results as others. */
static void test_runs(void **state)
{
    (void)state;
    static float plain[ROWS * OUT], y[ROWS * OUT];
    static uint8_t one[1 << 20];
    for (size_t i = 1; i < N_SHAPES && !UNIT_TSAN; i++) {
        struct device *d = open_device(&shapes[i], DEVICE_NUMA_AUTO);
        struct run whole, r;
        open_run(&whole, d, false);
        open_run(&r, d, true);
        check_run(&r, &shapes[i]);
        const uint8_t *at = whole.at;
        for (int k = 0; k < RUN; k++) {
            const int64_t n_stack = device_matrix_stack(r.m[k]);
            const size_t n = (size_t)device_matrix_bytes(r.m[k]) / (size_t)n_stack;
            for (int64_t e = 0; e < n_stack; e++, at += n) {
                device_matrix_gather(r.m[k], e, one);
                assert_memory_equal(one, at, n);
            }
            at += k == 1 ? 4096 : 0;
            product(d, whole.m[k], plain);
            product(d, r.m[k], y);
            assert_memory_equal(y, plain, ROWS * (size_t)device_matrix_out(r.m[k]) * sizeof *y);
            look_up(d, whole.m[k], plain);
            look_up(d, r.m[k], y);
            assert_memory_equal(y, plain, 4 * (size_t)device_matrix_in(r.m[k]) * sizeof *y);
        }
        close_run(&whole);
        close_run(&r);
        device_free(d);
    }
    struct device *d = open_device(&shapes[0], DEVICE_NUMA_AUTO); /* of one node: nothing */
    struct run r;
    open_run(&r, d, false);
    assert_false(device_matrix_divide_run(r.m, RUN, r.at, r.n_bytes));
    assert_false(device_matrix_is_divided(r.m[0]));
    close_run(&r);
    device_free(d);
}

enum { HEADS = 2, WIDTH = 64, PAGES = 80, QUERIES = 4 };

/* Attention over timelines of several lengths, some of them longer than a split for each node. */
static void attend_all(struct device *d, const struct device_kv *kv, uint8_t *const *page, float *y)
{
    static const int64_t length[] = {5000, 100, 9900, 4097};
    enum { N = sizeof length / sizeof *length, LINE = HEADS * QUERIES * WIDTH };
    static float q[2 * N * LINE];
    struct device_span span[N];
    struct noise r = {21};
    int64_t n = 0;
    for (int i = 0; i < N; i++) {
        const int64_t rows = 1 + i % 2;
        span[i] = (struct device_span){
            .row0 = n, .n = rows, .pos0 = length[i] - rows, .page = page};
        n += rows;
    }
    for (int64_t i = 0; i < n * LINE; i++)
        q[i] = noise_unit(&r);
    device_begin(d, NULL);
    device_attend(d, kv, span, N, (struct rows){q, n, LINE, LINE}, HEADS * QUERIES,
                  (struct rows){y, n, LINE, LINE}, 0, 0.125f);
    assert_int_equal(device_status(d, NULL), INGLE_OK);
}

/* Nodes that have splits in turn give the bits of one. */
static void test_attend(void **state)
{
    (void)state;
    enum { OUT_FLOATS = 6 * HEADS * QUERIES * WIDTH, LONG = 10000 };
    static float plain[OUT_FLOATS], y[OUT_FLOATS];
    const size_t block = kern_kv_block_bytes(KERN_KV_F16, true, WIDTH);
    const struct device_kv kv = {.k_codec = KERN_KV_F16, .v_codec = KERN_KV_F16, .n_heads = HEADS,
                                 .k_width = WIDTH, .v_width = WIDTH,
                                 .head_bytes = 2 * block, .v_at = block};
    const size_t n_bytes = PAGES * HEADS * 2 * block;
    uint8_t *mem = mem_big_alloc(n_bytes), *page[PAGES];
    float *x = mem_calloc((size_t)LONG * HEADS * WIDTH, sizeof *x);
    assert_true(mem && x);
    struct noise r = {13};
    for (int i = 0; i < PAGES; i++)
        page[i] = mem + (size_t)i * HEADS * 2 * block;
    for (int64_t i = 0; i < (int64_t)LONG * HEADS * WIDTH; i++)
        x[i] = noise_unit(&r);
    for (size_t i = 0; i < N_SHAPES && !UNIT_TSAN; i++) {
        struct device *d = open_device(&shapes[i], DEVICE_NUMA_AUTO);
        const struct rows k = {x, LONG, HEADS * WIDTH, HEADS * WIDTH};
        const struct device_span all = {.n = LONG, .page = page};
        if (!i) {
            device_begin(d, NULL);
            device_kv_append(d, &kv, &all, 1, k, k);
        }
        memset(y, 0xff, sizeof y);
        attend_all(d, &kv, page, i ? y : plain);
        if (i)
            assert_memory_equal(y, plain, sizeof y);
        device_free(d);
    }
    mem_free(x);
    mem_big_free(mem, n_bytes);
}

/* The one node that this machine has takes what is asked of it. */
static void test_system(void **state)
{
    (void)state;
    struct cpu_topology t;
    enum { BYTES = 4 << 20 };
    assert_true(cpu_topology_read(&t));
    uint8_t *at = mem_big_alloc(BYTES);
    assert_non_null(at);
    const bool asked = numa_prefer(at, BYTES, t.node_id[0]);
    memset(at, 1, BYTES);
    if (asked && numa_node_of(at) >= 0)
        assert_int_equal(numa_node_of(at), t.node_id[0]);
    assert_false(numa_prefer(at, BYTES, -1));
    assert_false(numa_prefer(at, BYTES, 1 << 20));
    assert_true(numa_interleave(at, BYTES, &(struct numa_nodes){1, {77}}));
    mem_big_free(at, BYTES);
    cpu_topology_release(&t);
}

/* What the system says of pages beside where they should lie: all on this machine's node, none on
 * made-up ones; nothing where no node is to have rows. */
static void test_look(void **state)
{
    (void)state;
    struct cpu_topology t;
    struct weights w;
    assert_true(cpu_topology_read(&t));
    const bool one = t.n_nodes == 1;
    cpu_topology_release(&t);
    for (int made_up = 0; made_up < 2 && !UNIT_TSAN; made_up++)
        for (int numa = DEVICE_NUMA_AUTO; numa <= DEVICE_NUMA_OFF; numa++) {
            const struct device_options o = {
                .n_threads = 1, .pin = true, .cpu = UINT32_MAX, .numa = (enum device_numa)numa};
            struct device *d = NULL;
            struct device_placement p = {0};
            if (made_up)
                d = open_device(&shapes[1], (enum device_numa)numa);
            else
                assert_int_equal(device_create(&d, &o, NULL), INGLE_OK);
            load(&w, d, STACK);
            device_matrix_placement(w.m, &p);
            const bool known = p.pages > p.unknown;
            if (numa == DEVICE_NUMA_OFF)
                assert_true(p.pages == 0 && p.bytes <= 0);
            else if (known)
                assert_true(p.bytes > 0 && (made_up ? p.local_bytes <= 0
                                                    : !one || p.local_bytes >= p.bytes));
            unload(&w);
            device_free(d);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers_of_a_node_are_neighbours),
        cmocka_unit_test(test_some_threads),
        cmocka_unit_test(test_placed_chunks),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_same_bits_of_many_rows),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_divided),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_attend),
        cmocka_unit_test(test_system),
        cmocka_unit_test(test_look),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
