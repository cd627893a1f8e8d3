/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_latent - compressed rows, their choice and attention over them: a batch against
 * its rows one by one, whatever way the device takes, on any kernels and number of threads;
 * and against double precision.
 */
#include "unit/unit.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "device/device.h"
#include "device/near.h"
#include "kerncheck/checks.h"
#include <math.h>

enum {
    WIDTH = 32,
    TAIL = 8,
    HEADS = 5,
    WINDOW = 128,
    TOP = 40,
    INDEX_WIDTH = 32,
    INDEX_HEADS = 3,
    N_PAIRS = 4
};
enum { CONTEXT = 1536, N_PAGES = CONTEXT / KERN_PAGE, MOST_THREADS = 8 };
/* Plain results exist for 0, for all of [FIRST, LATE) and for every seventh from LATE on. */
enum { FIRST = 30, LATE = 601 };

/* One timeline with everything in pages of one group. */
struct world {
    struct device *d;
    struct device_stream near, in, far4, far128, keys;
    size_t page_bytes;
    uint8_t *mem;
    uint8_t *page[N_PAGES];
    float *x, *q, *index_q, *weight;
    float sink[HEADS];
    struct device_vector *sinks; /* the same */
    double inv_freq[N_PAIRS];
};

#define OK(call)                   \
    do {                           \
        if (call)                  \
            fail_msg("%s", e.msg); \
    } while (0)

static float *noise(struct noise *r, int64_t n)
{
    float *x = mem_calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = noise_unit(r);
    return x;
}

static struct device_stream stream(struct world *w, enum kern_kv_codec c, int64_t width,
                                   int64_t tail, int64_t every)
{
    const struct device_stream s = {c, width, tail, every, w->page_bytes};
    w->page_bytes += ((size_t)(KERN_PAGE / every) * kern_row_bytes(c, width, tail) + 63) / 64 * 64;
    return s;
}

/* nodes: threads of each memory node of a made-up machine, 0 behind the last one; or NULL. */
static void open_on(struct world *w, enum kern_kv_codec c, int n_threads, uint32_t cpu,
                    const int *nodes)
{
    struct err e;
    struct noise r = {7};
    struct cpu_place place[MOST_THREADS];
    struct cpu_topology t = {.cpu = place, .n_packages = 1};
    *w = (struct world){0};
    for (; nodes && nodes[t.n_nodes]; t.n_nodes++) {
        t.node_id[t.n_nodes] = 10 + t.n_nodes;
        for (int i = 0; i < nodes[t.n_nodes]; i++, t.n_cpus++)
            place[t.n_cpus] =
                (struct cpu_place){4000 + t.n_cpus, 4000 + t.n_cpus, 0, t.n_nodes, false, -1};
    }
    t.n_cores = t.n_cpus;
    const struct device_options o = {.n_threads = nodes ? t.n_cpus : n_threads,
                                     .pin = nodes != NULL,
                                     .cpu = cpu,
                                     .topology = nodes ? &t : NULL};
    OK(device_create(&w->d, &o, &e));
    w->near = stream(w, c, WIDTH, TAIL, 1);
    w->in = stream(w, KERN_KV_F32, 4 * WIDTH, 0, 1);
    w->far4 = stream(w, c, WIDTH, TAIL, 4);
    w->far128 = stream(w, c, WIDTH, TAIL, 128);
    w->keys = stream(w, c == KERN_KV_FP8 ? KERN_KV_FP4 : c, INDEX_WIDTH, 0, 4);
    w->mem = mem_zalloc(w->page_bytes * N_PAGES);
    assert_non_null(w->mem);
    for (int i = 0; i < N_PAGES; i++)
        w->page[i] = w->mem + (size_t)i * w->page_bytes;
    w->x = noise(&r, CONTEXT * 4 * WIDTH);
    w->q = noise(&r, CONTEXT * HEADS * WIDTH);
    w->index_q = noise(&r, CONTEXT * INDEX_HEADS * INDEX_WIDTH);
    w->weight = noise(&r, CONTEXT * INDEX_HEADS);
    for (int i = 0; i < HEADS; i++)
        w->sink[i] = noise_unit(&r) * 3.0f;
    OK(device_vector_create(&w->sinks, w->d, w->sink, HEADS, &e));
    for (int i = 0; i < N_PAIRS; i++)
        w->inv_freq[i] = pow(10000.0, -(double)i / N_PAIRS);
    OK(device_arena_reserve(w->d, 64 << 20, &e));
}

static void open_world(struct world *w, enum kern_kv_codec c, int n_threads, uint32_t cpu)
{
    open_on(w, c, n_threads, cpu, NULL);
}

static void close_world(struct world *w)
{
    device_vector_free(w->sinks);
    device_free(w->d);
    mem_free(w->mem);
    mem_free(w->x);
    mem_free(w->q);
    mem_free(w->index_q);
    mem_free(w->weight);
}

static struct rows rows_of(float *x, int64_t at, int64_t n, int64_t width)
{
    return (struct rows){x + at * width, n, width, width};
}

/* Rows of both streams, compressed rows and keys for the positions of a span. */
static void append(struct world *w, int64_t pos0, int64_t n)
{
    const struct device_span span = {0, n, pos0, w->page, false, 0, NULL, NULL, NULL, 0};
    struct rows all = rows_of(w->x, pos0, n, 4 * WIDTH);
    struct err e;
    float ones[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        ones[i] = 1.0f + (float)i / 100;
    struct device_vector *norm;
    OK(device_vector_create(&norm, w->d, ones, WIDTH, &e));
    struct device_compress c = {w->in, w->far4,     4,       true,  norm,
                                1e-6f, w->inv_freq, N_PAIRS, false, {0}};
    device_begin(w->d, NULL);
    device_rows_append(w->d, &w->near, &span, 1, rows_columns(all, 0, WIDTH));
    device_rows_append(w->d, &w->in, &span, 1, all);
    device_compress(w->d, &c, &span, &span, 1);
    c.out = w->far128;
    c.ratio = 128;
    c.overlap = false;
    c.in.width = 4 * WIDTH;
    device_compress(w->d, &c, &span, &span, 1);
    OK(device_status(w->d, &e));
    device_vector_free(norm);
    for (int64_t i = pos0 / 4; i < (pos0 + n) / 4; i++) /* keys need no law here */
        kern_row_write(w->keys.codec, INDEX_WIDTH, 0,
                       w->page[i / 32] + w->keys.at +
                           (size_t)(i % 32) * kern_row_bytes(w->keys.codec, INDEX_WIDTH, 0),
                       w->x + i * 64);
}

struct result { float *out4, *out128; int32_t *sel, *count; };

static struct result result_new(void)
{
    const struct result r = {mem_calloc(CONTEXT * HEADS * WIDTH, 4),
                             mem_calloc(CONTEXT * HEADS * WIDTH, 4), mem_calloc(CONTEXT * TOP, 4),
                             mem_calloc(CONTEXT, 4)};
    assert_true(r.out4 && r.out128 && r.sel && r.count);
    return r;
}

static void result_free(struct result *r)
{
    mem_free(r->out4);
    mem_free(r->out128);
    mem_free(r->sel);
    mem_free(r->count);
}

/* Both kinds of layers for spans of one timeline, side by side in x, q and out: rows [at,
 * at + n) of the batch are positions at.. of the timeline. */
static void attend(struct world *w, const struct device_span *span, int64_t n_spans, int64_t at,
                   int64_t n, const struct result *r)
{
    struct err e;
    const struct device_select s = {w->keys, INDEX_HEADS, TOP};
    const struct rows q = rows_of(w->q, at, n, HEADS * WIDTH);
    device_begin(w->d, NULL);
    device_select(w->d, &s, span, n_spans, rows_of(w->index_q, at, n, INDEX_HEADS * INDEX_WIDTH),
                  rows_of(w->weight, at, n, INDEX_HEADS), r->sel + at * TOP, r->count + at);
    struct device_latent a = {w->near,           w->far4,       WINDOW, w->sinks,
                              r->sel + at * TOP, r->count + at, TOP};
    device_attend_latent(w->d, &a, span, span, n_spans, q, HEADS,
                         rows_of(r->out4, at, n, HEADS * WIDTH), 0.3f);
    a.far = w->far128;
    a.sel = a.count = NULL;
    a.top_k = 0;
    device_attend_latent(w->d, &a, span, span, n_spans, q, HEADS,
                         rows_of(r->out128, at, n, HEADS * WIDTH), 0.3f);
    OK(device_status(w->d, &e));
}

static void same(const char *what, const struct result *a, const struct result *b, int64_t from,
                 int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        if (a->count[i] != b->count[i] ||
            memcmp(a->sel + i * TOP, b->sel + i * TOP, (size_t)a->count[i] * sizeof *a->sel))
            fail_msg("%s: position %d chooses other rows", what, (int)i);
        for (int64_t k = i * HEADS * WIDTH; k < (i + 1) * HEADS * WIDTH; k++)
            if (!noise_same(a->out4[k], b->out4[k]) || !noise_same(a->out128[k], b->out128[k]))
                fail_msg("%s: position %d differs: %a %a, %a %a", what, (int)i, (double)a->out4[k],
                         (double)b->out4[k], (double)a->out128[k], (double)b->out128[k]);
    }
}

static void read_row(const struct world *w, const struct device_stream *s, int64_t i, float *x)
{
    const int64_t per = KERN_PAGE / s->every;
    kern_row_read(s->codec, s->width, s->tail,
                  w->page[i / per] + s->at +
                      (size_t)(i % per) * kern_row_bytes(s->codec, s->width, s->tail),
                  x);
}

/* One position and head in double precision. */
static void truth(const struct world *w, const struct result *r, int64_t pos, int64_t head,
                  bool four)
{
    const int64_t near = pos + 1 < WINDOW ? pos + 1 : WINDOW;
    const int64_t n = near + (four ? r->count[pos] : (pos + 1) / 128);
    const float *q = w->q + (pos * HEADS + head) * WIDTH, *out = four ? r->out4 : r->out128;
    double sum = exp((double)w->sink[head]), acc[WIDTH] = {0};
    for (int64_t i = 0; i < n; i++) {
        float x[WIDTH];
        if (i < near)
            read_row(w, &w->near, pos + 1 - near + i, x);
        else
            read_row(w, four ? &w->far4 : &w->far128,
                     four ? r->sel[pos * TOP + i - near] : i - near, x);
        double dot = 0;
        for (int k = 0; k < WIDTH; k++)
            dot += (double)q[k] * (double)x[k];
        const double e = exp(dot * (double)0.3f);
        sum += e;
        for (int k = 0; k < WIDTH; k++)
            acc[k] += e * (double)x[k];
    }
    for (int k = 0; k < WIDTH; k++)
        assert_true(fabs(acc[k] / sum - (double)out[(pos * HEADS + head) * WIDTH + k]) < 1e-5);
}

/* Each row alone on plain kernels is what every other way must give. */
static void one_codec(enum kern_kv_codec c)
{
    struct world plain, w;
    struct result want = result_new();
    open_world(&plain, c, 1, UNIT_TSAN ? UINT32_MAX : UINT32_C(1) << 31);
    append(&plain, 0, CONTEXT);
    for (int64_t pos = 0; pos < CONTEXT; pos += pos ? pos < LATE ? 1 : 7 : FIRST) {
        const struct device_span one = {0, 1, pos, plain.page, false, 0, NULL, NULL, NULL, 0};
        attend(&plain, &one, 1, pos, 1, &want);
    }
    static const int64_t some[] = {0, 100, 130, 259, 518, LATE + 7 * 30, LATE + 7 * 130};
    for (int i = 0; i < 7; i++)
        for (int four = 0; four < 2; four++)
            truth(&plain, &want, some[i], i % HEADS, four);
    for (int threads = 1 + 2 * UNIT_TSAN; threads <= 3; threads++) {
        struct result got = result_new();
        open_world(&w, c, threads, UINT32_MAX);
        for (int64_t pos = 0, n; pos < CONTEXT; pos += n) {
            n = pos < 900 ? 300 : 318;
            append(&w, pos, n);
        }
        assert_memory_equal(w.mem, plain.mem, w.page_bytes * N_PAGES);
        /* One span over the borders of the window and of what is dropped; ... */
        const struct device_span whole = {0, LATE - FIRST, FIRST, w.page, false,
                                          0, NULL,         NULL,  NULL, 0};
        attend(&w, &whole, 1, FIRST, LATE - FIRST, &got);
        same("one span", &got, &want, FIRST, LATE);
        /* ... and several in one batch, some of one row. */
        const struct device_span many[] = {{0, 3, 100, w.page, false, 0, NULL, NULL, NULL, 0},
                                           {3, 1, 103, w.page, false, 0, NULL, NULL, NULL, 0},
                                           {4, 70, 104, w.page, false, 0, NULL, NULL, NULL, 0},
                                           {74, 126, 174, w.page, false, 0, NULL, NULL, NULL, 0},
                                           {200, 1, 300, w.page, false, 0, NULL, NULL, NULL, 0},
                                           {201, 2, 301, w.page, false, 0, NULL, NULL, NULL, 0}};
        struct result again = result_new();
        attend(&w, many, 6, 100, 203, &again);
        same("spans", &again, &want, 100, 303);
        for (int64_t pos = LATE; pos < CONTEXT; pos += 7) {
            const struct device_span one = {0, 1, pos, w.page, false, 0, NULL, NULL, NULL, 0};
            attend(&w, &one, 1, pos, 1, &got);
            same("one row", &got, &want, pos, pos + 1);
        }
        result_free(&got);
        result_free(&again);
        close_world(&w);
    }
    result_free(&want);
    close_world(&plain);
}

/* What a compressor pooled, rotated for FP4, and the queries for it. */
static void rotated(void **state)
{
    (void)state;
    struct world w;
    struct err e;
    open_world(&w, KERN_KV_F32, 2, UINT32_MAX);
    const struct device_span span = {0, KERN_PAGE, 0, w.page, false, 0, NULL, NULL, NULL, 0};
    float ones[WIDTH], plain[WIDTH], turned[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        ones[i] = 1.0f;
    struct device_vector *norm;
    OK(device_vector_create(&norm, w.d, ones, WIDTH, &e));
    struct device_compress c = {w.in,  w.far4,     4,       true,  norm,
                                1e-6f, w.inv_freq, N_PAIRS, false, {0}};
    device_begin(w.d, NULL);
    device_rows_append(w.d, &w.in, &span, 1, rows_of(w.x, 0, KERN_PAGE, 4 * WIDTH));
    for (int block = 0; block < 32; block += 31) {
        device_compress(w.d, &c, &span, &span, 1);
        read_row(&w, &w.far4, block, plain);
        c.hadamard = true;
        device_compress(w.d, &c, &span, &span, 1);
        read_row(&w, &w.far4, block, turned);
        c.hadamard = false;
        device_hadamard(w.d, (struct rows){plain, 1, WIDTH, WIDTH}, 1);
        assert_memory_equal(plain, turned, sizeof plain);
    }
    float twice[2 * WIDTH];
    memcpy(twice, w.x, sizeof twice);
    device_hadamard(w.d, (struct rows){twice, 1, 2 * WIDTH, 2 * WIDTH}, 2);
    memcpy(plain, w.x + WIDTH, sizeof plain);
    kern_row_hadamard(plain, WIDTH);
    assert_memory_equal(plain, twice + WIDTH, sizeof plain);
    OK(device_status(w.d, &e));
    device_vector_free(norm);
    close_world(&w);
}

static void ways_agree(void **state)
{
    (void)state;
    one_codec(KERN_KV_F32);
    one_codec(KERN_KV_F16);
    one_codec(KERN_KV_FP8);
}

/* Rows come back as they were stored; of positions that are not there, as zeros. */
static void rows_back(void **state)
{
    (void)state;
    static const enum kern_kv_codec codecs[] = {KERN_KV_F32, KERN_KV_F16, KERN_KV_FP8};
    for (int c = 0; c < 3; c++) {
        struct world w;
        struct err e;
        enum { N = 2 * KERN_PAGE };
        open_world(&w, codecs[c], 2, UINT32_MAX);
        append(&w, 0, N);
        uint8_t *const pages[] = {w.page[0], w.page[1], NULL};
        const struct device_span span[] = {{0, 60, 100, pages, false, 0, NULL, NULL, NULL, 0},
                                           {60, 1, -1, pages, false, 0, NULL, NULL, NULL, 0},
                                           {61, 2, N - 1, pages, false, 0, NULL, NULL, NULL, 0}};
        float got[63 * WIDTH], want[WIDTH];
        const float zeros[WIDTH] = {0};
        memset(got, 0x7f, sizeof got);
        device_begin(w.d, NULL);
        device_rows_read(w.d, &w.near, span, 3, rows_of(got, 0, 63, WIDTH));
        OK(device_status(w.d, &e));
        for (int i = 0; i < 63; i++) {
            const int64_t pos = i < 60 ? 100 + i : N - 1;
            read_row(&w, &w.near, (int)pos, want);
            assert_memory_equal(got + i * WIDTH, i == 60 || i == 62 ? zeros : want, sizeof want);
        }
        close_world(&w);
    }
}

/* Rows with windows of their own see what an operation with that window shows them, and nothing
 * before it. */
static void own_windows(void **state)
{
    (void)state;
    struct world w;
    struct err e;
    enum { N = 3 * KERN_PAGE, ROWS = 40 };
    open_world(&w, KERN_KV_F32, 2, UINT32_MAX);
    append(&w, 0, N);
    static float got[ROWS * HEADS * WIDTH], want[HEADS * WIDTH];
    for (int sparse = 0; sparse < 2; sparse++) {
        const int n = sparse ? 3 : ROWS;
        struct device_span span[ROWS];
        for (int i = 0; i < n; i++)
            span[i] = (struct device_span){
                .row0 = i, .n = 1, .pos0 = 150 + 5 * i, .page = w.page, .window = 1 + 7 * i % 140};
        struct device_latent a = {.near = w.near, .window = 140, .sink = w.sinks};
        device_begin(w.d, NULL);
        device_attend_latent(w.d, &a, span, NULL, n, rows_of(w.q, 0, n, HEADS * WIDTH), HEADS,
                             rows_of(got, 0, n, HEADS * WIDTH), 0.3f);
        OK(device_status(w.d, &e));
        for (int i = 0; i < n; i++) {
            a.window = span[i].window;
            const struct device_span one =
                {0, 1, span[i].pos0, w.page, false, 0, NULL, NULL, NULL, 0};
            device_begin(w.d, NULL);
            device_attend_latent(w.d, &a, &one, NULL, 1, rows_of(w.q, i, 1, HEADS * WIDTH), HEADS,
                                 rows_of(want, 0, 1, HEADS * WIDTH), 0.3f);
            OK(device_status(w.d, &e));
            assert_memory_equal(got + i * HEADS * WIDTH, want, sizeof want);
        }
    }
    close_world(&w);
}

/* Threads of several memory nodes, which lay lists out once for each node and score the keys of
 * their own.  The timeline has the same pages again and again, so that many scores are equal. */
static void nodes_agree(void **state)
{
    (void)state;
    enum { LONG = 9000, ROWS = 40, CASES = 8 };
    static const int nodes[][5] = {{1}, {2, 2}, {1, 2, 3}, {1, 1, 1, 1}};
    static const struct { int64_t pos, n; } cases[CASES] = {
        {100, 1}, {2040, 1}, {4099, 3}, {LONG - 1, 1}, {LONG - 1, 2},
        {300, ROWS}, {1500, ROWS}, {LONG - ROWS, ROWS}};
    for (int codec = 0; codec < 2; codec++) {
        struct result want[CASES], got = result_new();
        for (size_t k = 0; k < sizeof nodes / sizeof *nodes; k++) {
            static uint8_t *page[LONG / KERN_PAGE + 2];
            struct world w;
            struct err e;
            open_on(&w, codec ? KERN_KV_FP8 : KERN_KV_F16, 0, UINT32_MAX, nodes[k]);
            append(&w, 0, CONTEXT);
            for (size_t i = 0; i < sizeof page / sizeof *page; i++)
                page[i] = w.page[i % N_PAGES];
            const struct device_span last = {.n = ROWS, .pos0 = LONG - ROWS, .page = page};
            device_dry_begin(w.d);
            attend(&w, &last, 1, 0, ROWS, &got);
            OK(device_arena_reserve(w.d, device_dry_end(w.d), &e));
            assert_int_equal(device_near_bytes(w.d) > 0, k > 0);
            w.d->quiet_small_work = 0; /* all work is shared */
            for (int i = 0; i < CASES; i++) {
                const struct device_span s = {
                    .n = cases[i].n, .pos0 = cases[i].pos, .page = page};
                if (!k)
                    want[i] = result_new();
                attend(&w, &s, 1, 0, s.n, k ? &got : &want[i]);
                same("nodes", k ? &got : &want[i], &want[i], 0, s.n);
            }
            close_world(&w);
        }
        for (int i = 0; i < CASES; i++)
            result_free(&want[i]);
        result_free(&got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ways_agree), cmocka_unit_test(rotated),
                                       cmocka_unit_test(rows_back), cmocka_unit_test(own_windows),
                                       cmocka_unit_test(nodes_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
