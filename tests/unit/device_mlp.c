/* SPDX-License-Identifier: Apache-2.0 */
/* Gated products and the way back have the bits of the operations that they are made of, however
 * many rows there are, however they are listed, and on however many threads and nodes. */
#include "unit/unit.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "device/device.h"
#include "kerncheck/checks.h"
#include <string.h>

enum { MOST = 8, MOST_ROWS = 700, MOST_EMBD = 256, MOST_WIDTH = 1280, ARENA = 96 << 20 };

struct shape { int n_nodes, threads[2]; };

/* Of stacks n_stack > 1. */
struct block {
    uint32_t gate, up, down; /* types */
    bool joined;             /* gate and up in one matrix */
    int64_t embd, width, n_stack;
    enum device_glu act;
    float limit;
    bool scaled;
};

static const struct block blocks[] = {
    {QUANT_Q4_0, QUANT_Q4_0, QUANT_Q8_0, true, 128, 704, 3, DEVICE_GELU, 0, false},
    /* up begins within a band */
    {QUANT_Q4_0, QUANT_Q4_0, QUANT_Q4_0, true, 64, 96, 3, DEVICE_SILU, 0.5f, true},
    {QUANT_Q4_0, QUANT_Q8_0, QUANT_MXFP4, false, 160, 160, 2, DEVICE_SILU, 0.25f, true},
    {QUANT_Q4_K, QUANT_Q4_K, QUANT_Q6_K, true, 256, 1280, 3, DEVICE_SILU, 4, false},
    {QUANT_Q4_K, QUANT_Q8_0, QUANT_Q4_K, false, 256, 512, 1, DEVICE_GELU, 0, false},
    {QUANT_Q6_K, QUANT_Q6_K, QUANT_Q5_0, false, 256, 736, 1, DEVICE_GELU, 0, false},
    /* up begins within a panel */
    {QUANT_F32, QUANT_F32, QUANT_F32, true, 40, 36, 3, DEVICE_GELU, 0, false},
    {QUANT_BF16, QUANT_BF16, QUANT_BF16, true, 128, 320, 3, DEVICE_SILU, 0, false},
    {QUANT_BF16, QUANT_Q4_0, QUANT_BF16, false, 64, 320, 1, DEVICE_SILU, 0, false},
    {QUANT_Q4_0, QUANT_Q4_0, QUANT_Q4_0, true, 128, 832, 1, DEVICE_GELU, 0, false},
    {QUANT_Q4_0, QUANT_Q4_0, QUANT_Q4_0, true, 256, 768, 1, DEVICE_GELU, 0, false},
    {QUANT_Q4_0, QUANT_Q4_K, QUANT_BF16, false, 256, 512, 1, DEVICE_SILU, 0, false},
    {QUANT_Q4_0, QUANT_Q4_0, QUANT_Q8_0, true, 64, 96, 1, DEVICE_SILU, 0.5f, true},
};
enum { N_BLOCKS = sizeof blocks / sizeof *blocks };
/* Whether nodes can have rows of all matrices of a block. */
static bool divides(const struct block *b)
{
    return b->n_stack > 1 && (!b->joined || b->width % 64 == 0);
}

struct weights { struct device_matrix *m; };

/* Blocks of 256: any codes, and small scales. */
static void random_row(uint32_t type, int64_t in, uint8_t *to, uint64_t n_bytes, struct noise *r)
{
    float x[MOST_WIDTH];
    for (int64_t k = 0; k < in; k++)
        x[k] = noise_unit(r);
    if (quant_encode(type, x, to, (size_t)in))
        return;
    const uint64_t each = n_bytes / (uint64_t)(in / 256);
    for (uint64_t i = 0; i < n_bytes; i++)
        to[i] = (uint8_t)noise_next(r);
    for (uint64_t b = 0; b < n_bytes; b += each) {
        to[b + (type == QUANT_Q6_K ? each - 1 : 1)] = 0x10;
        to[b + (type == QUANT_Q6_K ? each - 1 : 3)] = 0x10;
    }
}

static void load(struct weights *w, const struct block *b, struct noise *r)
{
    uint64_t row;
    float scale[3] = {1.5f, 0.75f, 1.0f};
    const int64_t out = device_matrix_out(w->m), in = device_matrix_in(w->m);
    const uint32_t type = device_matrix_type(w->m);
    assert_true(quant_bytes(type, (uint64_t)in, 1, &row));
    uint8_t *stored = mem_alloc((size_t)(row * (uint64_t)out));
    assert_non_null(stored);
    for (int64_t s = 0; s < b->n_stack; s++) {
        for (int64_t i = 0; i < out; i++)
            random_row(type, in, stored + (uint64_t)i * row, row, r);
        device_matrix_load(w->m, s, 0, out, stored);
    }
    mem_free(stored);
    if (b->scaled)
        assert_int_equal(device_matrix_set_scales(w->m, scale, NULL), INGLE_OK);
}

struct net {
    struct weights gate, up, down;
    struct device_mlp mlp;
    void *packed;
    size_t n_bytes;
};

static void create(struct weights *w, struct device *d, uint32_t type, int64_t out, int64_t in,
                   const struct block *b)
{
    assert_int_equal(device_matrix_create(&w->m, d, type, out, in, b->n_stack, NULL), INGLE_OK);
}

/* The matrices of an expert lie together, as those of a model do, or are divided among nodes, if
 * there are no others as a run. */
static void place(struct net *t, const struct block *b, bool divided)
{
    struct device_matrix *part[3] = {t->gate.m};
    size_t at[3], step = 0;
    int n = 1;
    if (!b->joined)
        part[n++] = t->up.m;
    part[n++] = t->down.m;
    for (int i = 0; i < n; i++) {
        at[i] = step;
        step += (size_t)device_matrix_bytes(part[i]) / (size_t)b->n_stack;
    }
    t->n_bytes = step * (size_t)b->n_stack;
    t->packed = mem_big_alloc(t->n_bytes);
    assert_non_null(t->packed);
    for (int i = 0; i < n; i++)
        device_matrix_place(part[i], (uint8_t *)t->packed + at[i], step);
    if (divided && b->n_stack == 1) {
        assert_true(device_matrix_divide_run(part, (size_t)n, t->packed, t->n_bytes));
        return;
    }
    if (divided)
        assert_int_equal(device_matrix_divide(part, n, t->packed, t->n_bytes), divides(b));
    device_matrix_spread(part[0]);
}

static void open_net(struct net *t, struct device *d, const struct block *b, bool divided)
{
    struct noise r = {b->down + 7};
    *t = (struct net){0};
    create(&t->gate, d, b->gate, b->joined ? 2 * b->width : b->width, b->embd, b);
    if (!b->joined)
        create(&t->up, d, b->up, b->width, b->embd, b);
    create(&t->down, d, b->down, b->embd, b->width, b);
    place(t, b, divided);
    load(&t->gate, b, &r);
    if (!b->joined)
        load(&t->up, b, &r);
    load(&t->down, b, &r);
    t->mlp = (struct device_mlp){
        .gate = t->gate.m, .up = t->up.m, .down = t->down.m, .act = b->act, .limit = b->limit};
}

static void close_net(struct net *t)
{
    struct weights *const w[] = {&t->gate, &t->up, &t->down};
    for (int i = 0; i < 3; i++)
        device_matrix_free(w[i]->m);
    mem_big_free(t->packed, t->n_bytes);
}

/* Products, gates, products.  Rows of stacks are listed, so that fast numerics take none for the
 * step's own. */
static void run_parts(struct device *d, const struct block *b, const struct device_mlp *m,
                      struct rows x, struct rows y)
{
    const int64_t w = b->width;
    struct device_product p[8];
    static int32_t self[MOST_ROWS];
    int64_t n = 0;
    for (int32_t i = 0; i < MOST_ROWS; i++)
        self[i] = i;
    const struct rows both = device_rows(d, y.n, 2 * w), gate = rows_columns(both, 0, w),
                      up = rows_columns(both, w, w);
    const struct rows *const to = b->joined ? &both : &gate;
    for (int64_t e = 0; e < b->n_stack; e++) {
        const int64_t first = m->first ? m->first[e] : 0,
                      rows = m->first ? m->first[e + 1] - first : y.n;
        const int32_t *row = m->row ? m->row + first : NULL;
        p[n++] = (struct device_product){m->gate, e, x, rows_slice(*to, first, rows), row};
        if (!b->joined)
            p[n++] = (struct device_product){m->up, e, x, rows_slice(up, first, rows), row};
    }
    device_matmul(d, p, n);
    device_glu(d, m->act, m->limit, gate, gate, up);
    for (int64_t e = 0; e < b->n_stack; e++) {
        const int64_t first = m->first ? m->first[e] : 0,
                      rows = m->first ? m->first[e + 1] - first : y.n;
        p[e] = (struct device_product){m->down, e, gate, rows_slice(y, first, rows),
                                       m->row ? self + first : NULL};
    }
    device_matmul(d, p, b->n_stack);
}

struct rows_case { int64_t n_rows, n_prompt; int32_t first[4]; }; /* first: of stacks of three */

static const struct rows_case cases[] = {
    {1, 0, {0, 0, 1, 1}},         {5, 2, {0, 3, 3, 10}},      {40, 40, {0, 9, 30, 70}},
    {150, 100, {0, 20, 40, 300}}, {600, 0, {0, 1, 600, 612}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* Sums of results with exact numerics, whatever the threads and nodes. */
static uint64_t known[N_BLOCKS][N_CASES];

static void check_known(const struct block *b, const struct rows_case *c, const float *y, int64_t n)
{
    uint64_t sum = 1, *to = &known[b - blocks][c - cases];
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &y[i], sizeof bits);
        sum = (sum ^ bits) * 0x100000001b3;
    }
    if (*to)
        assert_int_equal(*to, sum);
    *to = sum;
}

static float *floats(int64_t n)
{
    float *p = mem_calloc((size_t)n, sizeof *p);
    assert_non_null(p);
    return p;
}

static void check(struct device *d, const struct block *b, const struct rows_case *c,
                  const struct net *t)
{
    static int32_t row[MOST_ROWS];
    int32_t first[4];
    struct noise r = {9};
    struct device_mlp m = t->mlp;
    memcpy(first, c->first, sizeof first);
    if (b->n_stack == 2)
        first[2] = first[3];
    const int64_t n_out = b->n_stack > 1 ? first[b->n_stack] : c->n_rows, n_y = n_out * b->embd;
    for (int64_t i = 0; i < MOST_ROWS; i++)
        row[i] = (int32_t)noise_below(&r, c->n_rows);
    float *x = floats(c->n_rows * b->embd), *plain = floats(n_y), *y = floats(n_y);
    for (int64_t i = 0; i < c->n_rows * b->embd; i++)
        x[i] = noise_unit(&r);
    if (b->n_stack > 1)
        m.first = first, m.row = row;
    const struct rows in = {x, c->n_rows, b->embd, b->embd};
    device_begin(d, NULL);
    device_prompt_rows(d, c->n_rows, c->n_prompt);
    run_parts(d, b, &m, in, (struct rows){plain, n_out, b->embd, b->embd});
    assert_int_equal(device_status(d, NULL), INGLE_OK);
    device_begin(d, NULL);
    device_prompt_rows(d, c->n_rows, c->n_prompt);
    device_mlp(d, &m, in, (struct rows){y, n_out, b->embd, b->embd});
    assert_int_equal(device_status(d, NULL), INGLE_OK);
    assert_memory_equal(y, plain, (size_t)n_y * sizeof *y);
    if (device_numerics(d) == DEVICE_EXACT)
        check_known(b, c, y, n_y);
    mem_free(x);
    mem_free(plain);
    mem_free(y);
}

/* Rows and lists of one of two blocks. */
struct one { struct device_mlp m; float *x, *plain, *y; int64_t n_y; struct device_mlp_call call; };

static void open_one(struct one *o, struct device *d, const struct block *b, const struct net *t,
                     const struct rows_case *c, const int32_t *row, int32_t first[4])
{
    struct noise r = {(uint64_t)b->width + 3};
    *o = (struct one){.m = t->mlp, .x = floats(c->n_rows * b->embd)};
    memcpy(first, c->first, sizeof c->first);
    if (b->n_stack == 2)
        first[2] = first[3];
    if (b->n_stack > 1)
        o->m.first = first, o->m.row = row;
    const int64_t n_out = b->n_stack > 1 ? first[b->n_stack] : c->n_rows;
    o->n_y = n_out * b->embd;
    o->plain = floats(o->n_y);
    o->y = floats(o->n_y);
    for (int64_t i = 0; i < c->n_rows * b->embd; i++)
        o->x[i] = noise_unit(&r);
    const struct rows in = {o->x, c->n_rows, b->embd, b->embd};
    o->call = (struct device_mlp_call){&o->m, in, {o->y, n_out, b->embd, b->embd}};
    device_begin(d, NULL);
    device_prompt_rows(d, c->n_rows, c->n_prompt);
    device_mlp(d, &o->m, in, (struct rows){o->plain, n_out, b->embd, b->embd});
    assert_int_equal(device_status(d, NULL), INGLE_OK);
}

/* Two blocks in the same jobs, also of the same rows. */
static void check_both(struct device *d, const struct block *const b[2], const struct net t[2],
                       const struct rows_case *c)
{
    static int32_t row[MOST_ROWS];
    int32_t first[2][4];
    struct noise r = {9};
    struct one o[2];
    for (int64_t i = 0; i < MOST_ROWS; i++)
        row[i] = (int32_t)noise_below(&r, c->n_rows);
    for (int i = 0; i < 2; i++)
        open_one(&o[i], d, b[i], &t[i], c, row, first[i]);
    if (b[0]->embd == b[1]->embd) {
        memcpy(o[1].x, o[0].x, (size_t)(c->n_rows * b[0]->embd) * sizeof(float));
        device_mlp(d, &o[1].m, o[0].call.x,
                   (struct rows){o[1].plain, o[1].call.y.n, b[1]->embd, b[1]->embd});
        o[1].call.x = o[0].call.x;
    }
    device_begin(d, NULL);
    device_prompt_rows(d, c->n_rows, c->n_prompt);
    device_mlp_both(d, &o[0].call, &o[1].call);
    assert_int_equal(device_status(d, NULL), INGLE_OK);
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(o[i].y, o[i].plain, (size_t)o[i].n_y * sizeof(float));
        mem_free(o[i].x);
        mem_free(o[i].plain);
        mem_free(o[i].y);
    }
}

/* Nodes are numbered 10, 11: none of this machine, so that nothing is placed. */
static struct device *open_device(const struct shape *s, enum device_numerics numerics,
                                  size_t arena)
{
    struct cpu_place cpu[MOST];
    struct cpu_topology t = {.cpu = cpu, .n_packages = 1, .n_nodes = s->n_nodes};
    for (int k = 0; k < s->n_nodes; k++) {
        t.node_id[k] = 10 + k;
        for (int i = 0; i < s->threads[k]; i++, t.n_cpus++)
            cpu[t.n_cpus] = (struct cpu_place){4000 + t.n_cpus, 4000 + t.n_cpus, 0, k, false, -1};
    }
    t.n_cores = t.n_cpus;
    const struct device_options o = {.n_threads = t.n_cpus,
                                     .pin = true,
                                     .cpu = UINT32_MAX,
                                     .numerics = numerics,
                                     .topology = &t};
    struct device *d;
    struct err e;
    if (device_create(&d, &o, &e) || device_arena_reserve(d, arena, &e))
        fail_msg("%s", e.msg);
    return d;
}

/* Kernels on emulated tiles, which also read activations in the order of tiles. */
static void use_tiles(struct device *d)
{
    struct kern_matmul_table *t = (struct kern_matmul_table *)(uintptr_t)&device_kernels(d)->matmul;
    kern_matmul_table_init(t, cpu_detect() | CPU_AMX_EMULATED);
    for (int i = 0; i < KERN_CODES; i++)
        t->many_from[i] = t->many[i] ? 9 : INT64_MAX;
}

static void check_all(const struct shape *s, enum device_numerics numerics, int64_t n_cases,
                      size_t step, bool tiles)
{
    struct device *d = open_device(s, numerics, ARENA);
    if (tiles)
        use_tiles(d);
    static struct net t[2];
    memset(t, 0, sizeof t);
    const bool divided = s->n_nodes > 1 && (s->threads[0] + s->threads[1]) % 4;
    for (size_t i = 0; i < N_BLOCKS; i += step) {
        open_net(&t[1], d, &blocks[i], divided);
        for (int64_t k = 0; k < n_cases; k++)
            if (!tiles || k < N_CASES - 1 || i == N_BLOCKS - 1) /* emulated ones are slow */
                check(d, &blocks[i], &cases[k], &t[1]);
        for (int64_t k = 0; i && k < 3; k++)
            check_both(d, (const struct block *[]){&blocks[i - step], &blocks[i]}, t, &cases[k]);
        close_net(&t[0]);
        t[0] = t[1];
    }
    close_net(&t[0]);
    device_free(d);
}

static void test_exact(void **state)
{
    (void)state;
    static const struct shape shapes[] = {{1, {1}}, {1, {3}}, {2, {1, 2}}, {2, {4, 4}}};
    for (size_t i = UNIT_ASAN ? 2 : 0; i < sizeof shapes / sizeof *shapes; i++)
        check_all(&shapes[i], DEVICE_EXACT,
                  !UNIT_ASAN && (i == 1 || i == 3) ? N_CASES : N_CASES - 1, 1,
                  false); /* the last is slow */
}

static void test_reference(void **state)
{
    (void)state;
    check_all(&(struct shape){2, {2, 1}}, DEVICE_REFERENCE, 3, 1, false);
}

static void test_fast(void **state)
{
    (void)state;
    check_all(&(struct shape){1, {2}}, DEVICE_FAST, N_CASES, 1, false);
    check_all(&(struct shape){2, {1, 1}}, DEVICE_FAST, N_CASES - 1, 1, false);
}

static void test_tiles(void **state)
{
    (void)state;
    check_all(&(struct shape){1, {2}}, DEVICE_EXACT, N_CASES, 1, true);
    check_all(&(struct shape){2, {1, 2}}, DEVICE_FAST, N_CASES - 1, 3, true);
}

/* A dry run, which knows no lists, counts enough for any rows. */
static void test_dry(void **state)
{
    (void)state;
    for (int numerics = DEVICE_EXACT; numerics <= DEVICE_FAST; numerics++)
        for (size_t i = 0; i < N_BLOCKS; i += UNIT_ASAN ? 3 : 1) {
            const struct block *b = &blocks[i];
            struct device *d =
                open_device(&(struct shape){2, {1, 2}}, (enum device_numerics)numerics, 64);
            use_tiles(d);
            struct net t;
            static int32_t row[MOST_ROWS], first[4] = {0, 30, 130, 300};
            open_net(&t, d, b, true);
            const int64_t n = 150, n_out = b->n_stack > 1 ? 300 : n;
            float *x = floats(n * b->embd), *y = floats(n_out * b->embd);
            const struct rows in = {x, n, b->embd, b->embd}, out = {y, n_out, b->embd, b->embd};
            device_dry_begin(d);
            const struct device_mlp_call call = {&t.mlp, in, out};
            device_mlp_both(d, &call, &call);
            assert_int_equal(device_arena_reserve(d, device_dry_end(d), NULL), INGLE_OK);
            if (b->n_stack == 2)
                first[2] = 300;
            if (b->n_stack > 1)
                t.mlp.first = first, t.mlp.row = row;
            for (int k = 0; k < MOST_ROWS; k++)
                row[k] = k * 7 % (int)n;
            device_begin(d, NULL);
            device_prompt_rows(d, n, 70);
            float *z = floats(n_out * b->embd);
            device_mlp_both(d, &call,
                            &(struct device_mlp_call){
                                &t.mlp, in, {z, n_out, b->embd, b->embd}});
            assert_memory_equal(y, z, (size_t)(n_out * b->embd) * sizeof *y);
            mem_free(z);
            assert_int_equal(device_status(d, NULL), INGLE_OK);
            mem_free(x);
            mem_free(y);
            close_net(&t);
            device_free(d);
        }
}

struct stop { atomic_bool cancel; int calls, at; };

static void count(void *arg)
{
    struct stop *s = arg;
    if (++s->calls == s->at)
        atomic_store(&s->cancel, true);
}

/* In small pieces, and cancelled within. */
static void test_pieces(void **state)
{
    (void)state;
    const struct block *b = &blocks[0];
    const int64_t n = 300;
    struct device *d = open_device(&(struct shape){2, {1, 1}}, DEVICE_EXACT, ARENA);
    struct net t;
    open_net(&t, d, b, true);
    static int32_t row[300];
    static const int32_t first[4] = {0, 100, 200, 300};
    float *x = floats(n * b->embd), *plain = floats(n * b->embd), *y = floats(n * b->embd);
    for (int i = 0; i < n * b->embd; i++)
        x[i] = (float)(i % 17) - 8.0f;
    for (int i = 0; i < n; i++)
        row[i] = i;
    t.mlp.first = first, t.mlp.row = row;
    const struct rows in = {x, n, b->embd, b->embd};
    device_begin(d, NULL);
    device_mlp(d, &t.mlp, in, (struct rows){plain, n, b->embd, b->embd});
    for (int at = 0; at < 3; at++) {
        struct stop s = {false, 0, at};
        struct device_between between = {.fn = count, .arg = &s, .piece_ns = 1};
        device_begin(d, &s.cancel);
        device_set_between(d, &between);
        device_mlp(d, &t.mlp, in, (struct rows){y, n, b->embd, b->embd});
        device_set_between(d, NULL);
        assert_true(s.calls > 1);
        assert_int_equal(device_runs(d), at == 0);
        assert_int_equal(device_status(d, NULL), at ? INGLE_CANCEL : INGLE_OK);
        if (!at)
            assert_memory_equal(y, plain, (size_t)(n * b->embd) * sizeof *y);
    }
    mem_free(x);
    mem_free(plain);
    mem_free(y);
    close_net(&t);
    device_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact), cmocka_unit_test(test_reference),
        cmocka_unit_test(test_fast),  cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_dry),   cmocka_unit_test(test_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
