/* SPDX-License-Identifier: Apache-2.0 */
/* bench_matmul - speed of the product kernels.  Weights of one row are read from memory:
 * more than 300 MB of them, all different.  Each round measures the memory first, and what
 * is printed is the middle of the rounds' ratios, because neighbours come and go. */
#include "kerncheck/checks.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "kern/kernels.h"
#include <stdlib.h>

enum { OUT = 4096, IN = 4096, MAX_ROWS = 512, MAX_ROUNDS = 32 };
static const int64_t weight_bytes = 320 << 20;

struct bench {
    struct pool *pool;
    kern_matmul_fn *fn;
    struct kern_matmul m;
    int64_t grain;
    const uint8_t *memory;
    uint64_t sum[64]; /* per worker, so that reads are not dropped */
};

static void run_chunk(void *arg, int64_t chunk, int worker)
{
    struct bench *b = arg;
    (void)worker;
    const int64_t p = chunk * b->grain;
    b->fn(&b->m, p, num_min(p + b->grain, b->m.w->n_panels));
}

/* 256 KiB in four streams; asking ahead made it slower (Zen 4: 23 GB/s against 30). */
static void read_chunk(void *arg, int64_t chunk, int worker)
{
    struct bench *b = arg;
    const uint8_t *at = b->memory + chunk * (256 << 10);
    uint64_t sum = 0;
    for (int64_t i = 0; i < 64 << 10; i += 64)
        for (int s = 0; s < 4; s++) {
            const uint8_t *line = at + s * (64 << 10) + i;
            uint64_t v[8];
            memcpy(v, line, sizeof v);
            sum += v[0] ^ v[1] ^ v[2] ^ v[3] ^ v[4] ^ v[5] ^ v[6] ^ v[7];
        }
    b->sum[worker] += sum;
}

static double seconds(uint64_t since) { return (double)(clock_now() - since) * 1e-9; }

static double read_rate(struct bench *b)
{
    const uint64_t t = clock_now();
    pool_run(b->pool, weight_bytes / (256 << 10), read_chunk, b);
    return (double)weight_bytes / seconds(t) * 1e-9;
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
static int64_t make_weights(struct kern_matrix *w, uint8_t *memory)
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
    w->at = memory;
    const uint64_t t = clock_now();
    kern_pack(w, 0, w->n_panels, stored);
    printf("%-8s packs at %.2f GB/s\n", quant_info(w->type)->name,
           (double)n_bytes / seconds(t) * 1e-9);
    mem_free(stored);
    const size_t size = kern_matrix_bytes(w);
    const int64_t n = weight_bytes / (int64_t)size;
    for (int64_t i = 1; i < n; i++)
        memcpy(memory + (size_t)i * size, memory, size);
    return n;
}

struct activations {
    float *x, *y;
    void *q[KERN_ACT_KINDS];
};

static void bench_kernel(struct bench *b, const char *name, struct kern_matrix *w, int64_t n_copies,
                         uint8_t *memory, int rounds)
{
    static const int64_t rows[] = {1, 2, 3, 4, 8, 16, 128, 512};
    enum { N = sizeof rows / sizeof *rows };
    double ratio[MAX_ROUNDS], rate[MAX_ROUNDS], cost[N][MAX_ROUNDS], gops[N][MAX_ROUNDS];
    uint64_t stored = 0;
    if (!quant_bytes(w->type, (uint64_t)w->in, (uint64_t)w->out, &stored))
        exit(1);
    for (int r = 0; r < rounds; r++) {
        const double memory_rate = read_rate(b);
        for (int i = 0; i < N; i++) {
            const int64_t n = rows[i] <= 4 ? n_copies : rows[i] <= 16 ? num_min(8, n_copies) : 1;
            b->m.n = rows[i];
            b->grain = kern_matmul_grain(w, rows[i]);
            const uint64_t t = clock_now();
            for (int64_t k = 0; k < n; k++) {
                w->at = memory + (size_t)k * kern_matrix_bytes(w);
                pool_run(b->pool, num_div_up(w->n_panels, b->grain), run_chunk, b);
            }
            const double s = seconds(t) / (double)n;
            cost[i][r] = s / (i ? cost[0][r] : s);
            if (!i) {
                cost[0][r] = s;
                rate[r] = (double)kern_matrix_bytes(w) / s * 1e-9;
                ratio[r] = rate[r] / memory_rate;
            }
            gops[i][r] = 2.0 * OUT * IN * (double)rows[i] / s * 1e-9;
        }
    }
    printf("  %-34s M=1 %5.1f GB/s %.2f of read (stored %.1f)", name, middle(rate, rounds),
           middle(ratio, rounds), (double)stored / (double)kern_matrix_bytes(w) * rate[rounds / 2]);
    for (int i = 1; i < N; i++) {
        if (rows[i] <= 8)
            printf("  %lld: %.2fx", (long long)rows[i], middle(cost[i], rounds));
        printf(rows[i] <= 8 ? " %.0f" : "  %3.0f", (qsort(gops[i], (size_t)rounds, sizeof(double), compare), gops[i][rounds - 1]));
    }
    printf(" GOP/s\n");
    fflush(stdout);
}

void bench_matmul(uint32_t cpu, const char *type_name, int n_threads, int rounds)
{
    struct bench b = {0};
    struct err err;
    struct activations a = {0};
    struct kern_act act[KERN_ACT_KINDS];
    if (pool_create(&b.pool, n_threads, true, &err) != INGLE_OK)
        exit(1);
    uint8_t *memory = mem_big_alloc((size_t)weight_bytes);
    a.x = mem_big_alloc(sizeof(float) * MAX_ROWS * IN);
    a.y = mem_big_alloc(sizeof(float) * MAX_ROWS * OUT);
    if (!memory || !a.x || !a.y)
        exit(1);
    struct noise r = {9};
    for (int64_t i = 0; i < MAX_ROWS * IN; i++)
        a.x[i] = noise_unit(&r);
    struct kern_matmul_table t;
    kern_matmul_table_init(&t, cpu);
    for (int k = 0; k < KERN_ACT_KINDS; k++) {
        const size_t n_bytes = kern_act_bytes((enum kern_act_kind)k, MAX_ROWS, IN);
        a.q[k] = n_bytes ? mem_big_alloc(n_bytes) : NULL;
        kern_act_init(&act[k], (enum kern_act_kind)k, MAX_ROWS, IN, a.x, IN, a.q[k]);
        const uint64_t start = clock_now();
        if (t.act[k]) {
            t.act[k](&act[k], 0, MAX_ROWS);
            printf("activations kind %d: %.2f GB/s of f32\n", k, 4e-9 * MAX_ROWS * IN / seconds(start));
        }
    }
    b.memory = memory;
    for (uint32_t type = 0; type < 256; type++) {
        struct kern_matrix w;
        if (!quant_info(type) || (type_name && strcmp(type_name, quant_info(type)->name)) ||
            kern_matrix_init(&w, type, OUT, IN, NULL) != INGLE_OK)
            continue;
        const int64_t n = make_weights(&w, memory);
        b.m = (struct kern_matmul){&w, &act[w.act], NULL, 1, a.y, OUT};
#define KERN_MATMUL(needs, code_, fn_)                                               \
        if ((needs) && ((needs) & ~cpu) == 0 && w.code == KERN_CODE_##code_) {       \
            b.fn = fn_;                                                              \
            bench_kernel(&b, #fn_, &w, n, memory, rounds);                           \
        }
#include "kern/matmul.inc"
#undef KERN_MATMUL
    }
    for (int k = 0; k < KERN_ACT_KINDS; k++)
        if (a.q[k])
            mem_big_free(a.q[k], kern_act_bytes((enum kern_act_kind)k, MAX_ROWS, IN));
    mem_big_free(a.x, sizeof(float) * MAX_ROWS * IN);
    mem_big_free(a.y, sizeof(float) * MAX_ROWS * OUT);
    mem_big_free(memory, (size_t)weight_bytes);
    pool_free(b.pool);
}
