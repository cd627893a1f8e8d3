/* SPDX-License-Identifier: Apache-2.0 */
/* bench_attend - attention of one thread: decoding against the rate at which memory can be
 * read, prompts in arithmetic. */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "kern/attend.h"
#include "kern/math.h"
#include <math.h>
#include <time.h>

#define KERN_ATTEND(needs, table) extern const struct kern_attend_table table;
#include "kern/attend.inc"
#undef KERN_ATTEND

static const struct set {
    const char *name;
    uint32_t needs;
    const struct kern_attend_table *t;
} sets[] = {
#define KERN_ATTEND(needs, table) {#table, needs, &table},
#include "kern/attend.inc"
#undef KERN_ATTEND
};

enum { MAX_PAGES = 256, MAX_OUT = 512 * 1024 };
static const size_t pool_bytes = (size_t)320 << 20;

struct bench {
    uint8_t *pool;
    float *q, *out;
    void *scratch;
    size_t scratch_bytes;
    const uint8_t *page[MAX_PAGES];
    size_t used; /* of the pool: tasks walk through it, so that nothing stays cached */
};

/* Processor time, so that a neighbour costs only what it takes from the caches. */
static double now(void)
{
    return (double)clock() / (double)CLOCKS_PER_SEC;
}

/* Points the pages of a at fresh memory. */
static void place(struct bench *b, struct kern_attend *a)
{
    size_t kb = kern_kv_block_bytes(a->k_codec, true, a->k_width);
    size_t bytes = kb + kern_kv_block_bytes(a->v_codec, false, a->v_width);
    int64_t n = num_div_up(a->pos0 + a->n_rows, KERN_PAGE);
    if (b->used + (size_t)n * bytes > pool_bytes)
        b->used = 0;
    for (int64_t i = 0; i < n; i++, b->used += bytes)
        b->page[i] = b->pool + b->used;
    a->page = b->page;
    a->k_at = 0;
    a->v_at = kb;
}

/* Fills the pool with blocks of one shape. */
static void fill(struct bench *b, enum kern_kv_codec c, int64_t width)
{
    size_t bytes = kern_kv_block_bytes(c, true, width);
    struct noise r = {7};
    for (int64_t i = 0; i < KERN_PAGE * width; i++)
        b->out[i] = noise_unit(&r);
    for (size_t at = 0; at + 2 * bytes <= pool_bytes; at += 2 * bytes) {
        if (at) {
            memcpy(b->pool + at, b->pool, 2 * bytes);
            continue;
        }
        sets[0].t->kv_write(c, true, width, b->pool, 0, b->out, KERN_PAGE, width);
        sets[0].t->kv_write(c, false, width, b->pool + bytes, 0, b->out, KERN_PAGE, width);
    }
}

/* Seconds of one task, the best of some. */
static double run(struct bench *b, const struct set *s, struct kern_attend *a)
{
    double best = 1e9, sum = 0;
    for (int i = 0; (i < 5 || sum < 0.1) && (sum < 0.4 || i < 2); i++) {
        place(b, a);
        double t = now();
        s->t->rows(a, b->scratch);
        double d = now() - t;
        sum += d;
        best = d < best ? d : best;
    }
    return best;
}

static double read_rate(struct bench *b, uint32_t cpu)
{
    struct kern_math_table t;
    kern_math_table_init(&t, cpu);
    const float *x = (const float *)(const void *)b->pool;
    double best = 0;
    float keep = 0;
    for (int i = 0; i < 3; i++) {
        double from = now();
        keep += t.dot(x, x + pool_bytes / 8, (int64_t)(pool_bytes / 8));
        best = fmax(best, (double)pool_bytes / (now() - from) * 1e-9);
    }
    b->out[0] = keep;
    return best;
}

static void decode(struct bench *b, const struct set *s, uint32_t cpu)
{
    static const int64_t at[] = {1023, 8191, 32767}, heads[] = {1, 2, 8};
    for (int w = 256; w <= 512; w *= 2)
        for (int c = 0; c < KERN_KV_BLOCK_CODECS; c++) {
            enum kern_kv_codec codec = (enum kern_kv_codec)c;
            fill(b, codec, w);
            printf("%s decode, width %d, %s; dot reads %.1f GB/s;", s->name, w, kern_kv_name(codec),
                   read_rate(b, cpu));
            for (int h = 0; h < 3; h++) {
                printf(" %d heads:", (int)heads[h]);
                for (int i = 0; i < 3; i++) {
                    struct kern_attend a = {.k_codec = codec,
                                            .v_codec = codec,
                                            .k_width = w,
                                            .v_width = w,
                                            .q = b->q,
                                            .q_stride = heads[h] * w,
                                            .out = b->out,
                                            .out_stride = heads[h] * w,
                                            .n_rows = 1,
                                            .n_heads = heads[h],
                                            .pos0 = at[i],
                                            .scale = 0.1f};
                    double bytes =
                        (double)kern_kv_block_bytes(codec, true, w) / 64 * (double)(at[i] + 1);
                    printf(" %.1f", bytes / run(b, s, &a) * 1e-9);
                }
            }
            printf(" GB/s at 1k 8k 32k\n");
        }
}

static void prompt(struct bench *b, const struct set *s)
{
    static const struct shape {
        int64_t width, heads, rows, pos0, window;
    } shapes[] = {{256, 2, 512, 0, 1024}, {256, 2, 512, 8192, 1024}, {256, 8, 128, 4096, 0},
                  {512, 8, 64, 0, 0},     {512, 8, 64, 4096, 0},     {64, 8, 128, 1024, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *p = &shapes[i];
        printf("%s prompt, width %d, %d heads, %d rows at %d, window %d:", s->name, (int)p->width,
               (int)p->heads, (int)p->rows, (int)p->pos0, (int)p->window);
        for (int c = 0; c < KERN_KV_BLOCK_CODECS; c++) {
            enum kern_kv_codec codec = (enum kern_kv_codec)c;
            fill(b, codec, p->width);
            struct kern_attend a = {.k_codec = codec,
                                    .v_codec = codec,
                                    .k_width = p->width,
                                    .v_width = p->width,
                                    .q = b->q,
                                    .q_stride = p->heads * p->width,
                                    .out = b->out,
                                    .out_stride = p->heads * p->width,
                                    .n_rows = p->rows,
                                    .n_heads = p->heads,
                                    .pos0 = p->pos0,
                                    .window = p->window,
                                    .scale = 0.1f};
            double seen = 0;
            for (int64_t r = 0; r < p->rows; r++)
                seen += (double)(p->window ? num_min(p->window, p->pos0 + r + 1) : p->pos0 + r + 1);
            printf(" %s %.1f", kern_kv_name(codec),
                   4 * seen * (double)(p->width * p->heads) / run(b, s, &a) * 1e-9);
        }
        printf(" GFLOP/s\n");
    }
}

void bench_attend(uint32_t cpu)
{
    struct bench b = {.scratch_bytes = (size_t)8 << 20};
    b.pool = mem_big_alloc(pool_bytes);
    b.scratch = mem_big_alloc(b.scratch_bytes);
    b.q = mem_calloc(MAX_OUT, sizeof *b.q);
    b.out = mem_calloc(MAX_OUT, sizeof *b.out);
    if (b.pool && b.scratch && b.q && b.out) {
        struct noise r = {3};
        for (int64_t i = 0; i < MAX_OUT; i++)
            b.q[i] = noise_unit(&r);
        for (size_t i = 1; i < sizeof sets / sizeof *sets; i++)
            if ((sets[i].needs & ~cpu) == 0) {
                decode(&b, &sets[i], cpu);
                prompt(&b, &sets[i]);
            }
    }
    mem_big_free(b.pool, pool_bytes);
    mem_big_free(b.scratch, b.scratch_bytes);
    mem_free(b.q);
    mem_free(b.out);
}
