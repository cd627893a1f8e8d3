/* SPDX-License-Identifier: Apache-2.0 */
/* bench_matmul - speed of the product kernels.  Weights of one row are read from memory:
 * more than 300 MB of them.  Each round measures the memory and the arithmetic first, and
 * what is printed is the middle of the rounds' ratios, because neighbours come and go.
 * N rows: time over that of one row, GOP/s, and (that over the rate of the widest FMA). */
#include "kerncheck/checks.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "kern/kernels.h"
#include "tool/tool.h"
#include <math.h>
#include <stdlib.h>

enum { MAX_ROWS = 512, MAX_ROUNDS = 32, READ_BYTES = 256 << 20 };
static const int64_t least_bytes = 320 << 20;

struct bench {
    struct pool *pool;
    kern_matmul_fn *fn;
    struct kern_matmul m;
    int64_t grain;
    uint8_t *memory;
    int64_t bytes; /* of it */
    int n_threads, rounds;
    uint32_t cpu;
    const char *kernel; /* part of the names of those that are measured, or NULL */
    struct tool_memory read;
};

static void run_chunk(void *arg, int64_t chunk, int worker)
{
    struct bench *b = arg;
    (void)worker;
    const int64_t p = chunk * b->grain;
    b->fn(&b->m, p, num_min(p + b->grain, b->m.w->n_panels));
}

static double seconds(uint64_t since) { return (double)(clock_now() - since) * 1e-9; }

/* The pattern that is fastest here. */
static double read_rate(struct bench *b)
{
    static const int streams[] = {1, 4, 8};
    double best = 0;
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        best = fmax(best, tool_memory_read(&b->read, b->pool, streams[i]));
    return best * 1e-9;
}

/* 1e9 operations a second of a unit; 0 where cpu lacks it. */
static double peak(struct bench *b, const char *unit)
{
    struct tool_peak p[TOOL_PEAKS];
    const size_t n = tool_peaks(b->pool, b->cpu, p, TOOL_PEAKS);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(p[i].name, unit))
            return p[i].ops_per_s * 1e-9;
    return 0;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double middle(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

/* Stored rows of random bits without large exponents, packed, and copied to fill memory. */
static int64_t make_weights(const struct bench *b, struct kern_matrix *w)
{
    struct noise r = {5};
    uint64_t n_bytes;
    if (!quant_bytes(w->type, (uint64_t)w->in, (uint64_t)w->out, &n_bytes))
        exit(1);
    uint8_t *stored = mem_alloc(n_bytes);
    if (!stored)
        exit(1);
    for (uint64_t i = 0; i < n_bytes; i++)
        stored[i] = (uint8_t)(noise_next(&r) & 0xBF);
    const struct quant_info *info = quant_info(w->type);
    float x[256]; /* real values where there is an encoder: no subnormal scales */
    for (int i = 0; i < 256; i++)
        x[i] = noise_unit(&r);
    if (quant_encode(w->type, x, stored, 256))
        for (uint64_t at = 256 / info->n * info->n_bytes; at < n_bytes; at++)
            stored[at] = stored[at - 256 / info->n * info->n_bytes];
    for (uint64_t at = 0; w->type == QUANT_FP8_B32 && at < n_bytes; at += info->n_bytes)
        stored[at] = 120;
    w->at = b->memory;
    const uint64_t t = clock_now();
    kern_pack(w, 0, w->n_panels, stored);
    printf("%-8s packs at %.2f GB/s\n", quant_info(w->type)->name,
           (double)n_bytes / seconds(t) * 1e-9);
    mem_free(stored);
    const size_t size = kern_matrix_bytes(w);
    const int64_t n = b->bytes / (int64_t)size;
    for (int64_t i = 1; i < n; i++)
        memcpy(b->memory + (size_t)i * size, b->memory, size);
    return n;
}

static const int64_t n_rows[] = {1, 2, 3, 4, 6, 8, 12, 16, 64, 512};
enum { N_ROWS = sizeof n_rows / sizeof *n_rows };

/* What the rounds measured. */
struct figures {
    double read[MAX_ROUNDS], fma[MAX_ROUNDS], dot[MAX_ROUNDS];
    double rate[MAX_ROUNDS], of_read[MAX_ROUNDS];
    double cost[N_ROWS][MAX_ROUNDS], gops[N_ROWS][MAX_ROUNDS], of_fma[N_ROWS][MAX_ROUNDS];
};

/* Seconds of one product with n rows; copies of the weights take turns. */
static double time_rows(struct bench *b, struct kern_matrix *w, int64_t n, int64_t n_copies)
{
    const int64_t turns = n <= 4 ? n_copies : n <= 16 ? num_min(8, n_copies) : 1;
    b->m.n = n;
    b->grain = kern_matmul_grain(w, n);
    const uint64_t t = clock_now();
    for (int64_t k = 0; k < turns; k++) {
        w->at = b->memory + (size_t)k * kern_matrix_bytes(w);
        pool_run(b->pool, num_div_up(w->n_panels, b->grain), run_chunk, b);
    }
    return seconds(t) / (double)turns;
}

static void measure(struct bench *b, struct kern_matrix *w, int64_t n_copies, int r,
                    struct figures *f)
{
    f->read[r] = read_rate(b);
    f->fma[r] = fmax(peak(b, "fma"), peak(b, "fma512"));
    f->dot[r] = peak(b, "maddubs");
    double one = 0;
    for (int i = 0; i < N_ROWS; i++) {
        const double s = time_rows(b, w, n_rows[i], n_copies);
        one = i ? one : s;
        f->cost[i][r] = s / one;
        f->gops[i][r] = 2.0 * (double)w->out * (double)w->in * (double)n_rows[i] / s * 1e-9;
        f->of_fma[i][r] = f->fma[r] > 0 ? f->gops[i][r] / f->fma[r] : 0;
    }
    f->rate[r] = (double)kern_matrix_bytes(w) / one * 1e-9;
    f->of_read[r] = f->rate[r] / f->read[r];
}

static void bench_kernel(struct bench *b, const char *name, struct kern_matrix *w, int64_t n_copies)
{
    static struct figures f;
    const int n = b->rounds;
    uint64_t stored = 0;
    if (b->kernel && !strstr(name, b->kernel))
        return;
    if (!quant_bytes(w->type, (uint64_t)w->in, (uint64_t)w->out, &stored))
        exit(1);
    for (int r = 0; r < n; r++)
        measure(b, w, n_copies, r, &f);
    const double rate = middle(f.rate, n);
    printf("  reads %.1f GB/s, FMA %.0f, maddubs %.0f GOP/s\n", middle(f.read, n), middle(f.fma, n),
           middle(f.dot, n));
    printf("  %-34s M=1 %5.1f GB/s %.2f of read (stored %.1f)", name, rate, middle(f.of_read, n),
           (double)stored / (double)kern_matrix_bytes(w) * rate);
    for (int i = 1; i < N_ROWS; i++) {
        printf("  %lld:", (long long)n_rows[i]);
        if (n_rows[i] <= 8)
            printf(" %.2fx", middle(f.cost[i], n));
        printf(" %.0f (%.2f)", middle(f.gops[i], n), middle(f.of_fma[i], n));
    }
    printf(" GOP/s\n");
    fflush(stdout);
}

static void *take(size_t n_bytes)
{
    void *p = mem_big_alloc(n_bytes);
    if (!p)
        exit(1);
    return p;
}

static void bench_type(struct bench *b, struct kern_matrix *w, const struct kern_act *act, float *y)
{
    b->bytes = num_max(least_bytes, (int64_t)kern_matrix_bytes(w));
    b->memory = take((size_t)b->bytes);
    const int64_t n = make_weights(b, w);
    b->m = (struct kern_matmul){w, &act[w->act], NULL, 1, y, w->out};
#define KERN_MATMUL(needs, code_, fn_)                                                   \
    if ((needs) && ((needs) & ~b->cpu) == 0 && w->code == KERN_CODE_##code_) {           \
        b->fn = fn_;                                                                     \
        bench_kernel(b, #fn_, w, n);                                                     \
    }
#include "kern/matmul.inc"
#undef KERN_MATMUL
#define KERN_AHEAD(needs, code_, fn_)                                               \
    if (((needs) & ~b->cpu) == 0 && w->code == KERN_CODE_##code_) {                      \
        b->fn = fn_;                                                                     \
        bench_kernel(b, #fn_, w, n);                                                     \
    }
#include "kern/ahead.inc"
#undef KERN_AHEAD
#define KERN_MANY(needs, code_, fn_)                                                \
    if (((needs) & ~b->cpu) == 0 && w->code == KERN_CODE_##code_) {                      \
        b->fn = fn_;                                                                     \
        bench_kernel(b, #fn_, w, n);                                                     \
    }
#include "kern/many.inc"
#undef KERN_MANY
    b->m.x = &act[kern_matmul_fast_act(w)];
#define KERN_FAST_REF(recipe, fn)
#define KERN_FAST(needs, recipe, code_, fn_)                                             \
    if (((needs) & ~b->cpu) == 0 && w->code == KERN_CODE_##code_) {                      \
        b->fn = fn_;                                                                     \
        bench_kernel(b, #fn_, w, n);                                                     \
    }
#include "kern/fast.inc"
#undef KERN_FAST
#undef KERN_FAST_REF
    mem_big_free(b->memory, (size_t)b->bytes);
}

void bench_matmul(const struct bench_matmul *o)
{
    struct bench b = {.cpu = o->cpu,
                      .kernel = o->kernel,
                      .n_threads = o->n_threads < 1 ? 1 : o->n_threads,
                      .rounds = o->rounds < 1            ? 1
                                : o->rounds > MAX_ROUNDS ? MAX_ROUNDS
                                                         : o->rounds};
    struct err err;
    struct kern_act act[KERN_ACT_KINDS];
    void *q[KERN_ACT_KINDS];
    if (o->out < 1 || o->in < 1 || o->out > 1 << 20 || o->in > 1 << 20 ||
        pool_create(&b.pool, b.n_threads, true, &err) != INGLE_OK)
        exit(1);
    pool_enter(b.pool);
    if (tool_memory_create(&b.read, b.pool, (size_t)READ_BYTES, &err))
        exit(1);
    const size_t x_bytes = sizeof(float) * MAX_ROWS * (size_t)o->in;
    const size_t y_bytes = sizeof(float) * MAX_ROWS * (size_t)o->out;
    float *x = take(x_bytes), *y = take(y_bytes);
    struct noise r = {9};
    for (int64_t i = 0; i < MAX_ROWS * o->in; i++)
        x[i] = noise_unit(&r);
    struct kern_matmul_table t;
    kern_matmul_table_init(&t, o->cpu);
    for (int k = 0; k < KERN_ACT_KINDS; k++) {
        const size_t n_bytes = kern_act_bytes((enum kern_act_kind)k, MAX_ROWS, o->in);
        q[k] = n_bytes ? take(n_bytes) : NULL;
        kern_act_init(&act[k], (enum kern_act_kind)k, MAX_ROWS, o->in, x, o->in, q[k]);
        const uint64_t start = clock_now();
        if (t.act[k]) {
            t.act[k](&act[k], 0, MAX_ROWS);
            printf("activations kind %d: %.2f GB/s of f32\n", k,
                   (double)x_bytes / seconds(start) * 1e-9);
        }
    }
    for (uint32_t type = 0; type < 256; type++) {
        struct kern_matrix w;
        if (quant_info(type) && (!o->type || !strcmp(o->type, quant_info(type)->name)) &&
            kern_matrix_init(&w, type, o->out, o->in, NULL) == INGLE_OK)
            bench_type(&b, &w, act, y);
    }
    for (int k = 0; k < KERN_ACT_KINDS; k++)
        if (q[k])
            mem_big_free(q[k], kern_act_bytes((enum kern_act_kind)k, MAX_ROWS, o->in));
    mem_big_free(x, x_bytes);
    mem_big_free(y, y_bytes);
    tool_memory_release(&b.read);
    pool_leave(b.pool);
    pool_free(b.pool);
}
