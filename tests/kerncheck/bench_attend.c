/* SPDX-License-Identifier: Apache-2.0 */
/* bench_attend - attention of one thread: decoding against the rate at which memory can be
 * read, prompts in arithmetic. */
#include "kerncheck/checks.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "kern/kv_code.h"
#include "tool/tool.h"
#include <math.h>
#include <stdlib.h>
#include <time.h>

#define KERN_ATTEND(needs, table)                   extern const struct kern_attend_table table;
#define KERN_ATTEND_FAST(needs, recipe, law, table) extern const struct kern_attend_table table;
#define KERN_ATTEND_CODED(needs, table)             extern const struct kern_attend_table table;
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_FAST
#undef KERN_ATTEND_CODED

static const struct set {
    const char *name;
    uint32_t needs;
    bool fast;  /* for prompts alone */
    bool coded; /* for keys and values of kern/kv_code.h alone */
    const struct kern_attend_table *t;
} sets[] = {
#define KERN_ATTEND(needs, table)                   {#table, needs, false, false, &table},
#define KERN_ATTEND_FAST(needs, recipe, law, table) {#table, needs, true, false, &table},
#define KERN_ATTEND_CODED(needs, table)             {#table, needs, false, true, &table},
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_FAST
#undef KERN_ATTEND_CODED
};

/* What a set reads; the first ones for decoding. */
static const enum kern_kv_codec plain_codecs[] = {KERN_KV_F16, KERN_KV_Q8_0, KERN_KV_F32,
                                                  KERN_KV_BF16},
                                coded_codecs[] = {KERN_KV_Q8R, KERN_KV_N4R, KERN_KV_Q8R_ROT,
                                                  KERN_KV_N4R_ROT, KERN_KV_TQ3_0};
enum { N_PLAIN = 4, N_CODED = 5 };
static const enum kern_kv_codec *codecs_of(const struct set *s)
{
    return s->coded ? coded_codecs : plain_codecs;
}
static int n_codecs(const struct set *s, bool decode)
{
    return s->coded ? N_CODED - decode : decode ? 2 : N_PLAIN;
}
/* Of +rot keys. */
static const float weight[512];
static const struct kern_from_v from_v = {.weight = weight};

enum { MAX_PAGES = 1 << 16, MAX_OUT = 4 << 20 };
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
    const size_t keys = kern_kv_block_bytes(c, true, width),
                 both = keys + kern_kv_block_bytes(c, false, width);
    struct noise r = {7};
    for (int64_t i = 0; i < KERN_PAGE * width; i++)
        b->out[i] = noise_unit(&r);
    for (size_t at = 0; at + both <= pool_bytes; at += both) {
        if (at) {
            memcpy(b->pool + at, b->pool, both);
            continue;
        }
        kern_attend_coded_ref.kv_write(c, true, width, b->pool, 0, b->out, KERN_PAGE, width);
        kern_attend_coded_ref.kv_write(c, false, width, b->pool + keys, 0, b->out, KERN_PAGE,
                                       width);
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

/* Decoding: every thread takes splits of key/value heads, as the device does. */
struct heads {
    const struct set *set;
    struct kern_attend a;
    const uint8_t *const *page; /* [n][pages of a head] */
    int64_t n, n_pages, n_splits, first; /* key/value heads; the first split that is seen */
    float *state;
    uint8_t *scratch;
    size_t scratch_bytes, state_floats;
};

static void head_chunk(void *arg, int64_t chunk, int worker)
{
    struct heads *h = arg;
    struct kern_attend a = h->a;
    a.page = h->page + chunk / h->n_splits * h->n_pages;
    h->set->t->split(&a, h->first + chunk % h->n_splits, h->state + (size_t)chunk * h->state_floats,
                     h->scratch + (size_t)worker * h->scratch_bytes);
}

/* Seconds to attend once with as many heads as the pool of memory holds; *bytes: what they read. */
static double decode_once(struct bench *b, struct pool *threads, struct kern_attend a,
                          const struct set *s, double *bytes)
{
    const size_t kb = kern_kv_block_bytes(a.k_codec, true, a.k_width),
                 page = kb + kern_kv_block_bytes(a.v_codec, false, a.v_width);
    struct heads h = {.set = s, .a = a, .n_pages = a.pos0 / KERN_PAGE + 1};
    const int64_t seen = a.window ? num_min(a.window, a.pos0 + 1) : a.pos0 + 1;
    const int64_t unseen = (a.pos0 + 1 - seen) / KERN_PAGE;
    h.first = (a.pos0 + 1 - seen) / KERN_SPLIT;
    h.n_splits = a.pos0 / KERN_SPLIT + 1 - h.first;
    h.n = num_min((int64_t)(pool_bytes / page) / (h.n_pages - unseen), MAX_PAGES / h.n_pages);
    for (int64_t i = 0; i < h.n * h.n_pages; i++)
        b->page[i] = b->pool + (size_t)(i / h.n_pages * (h.n_pages - unseen) +
                                        num_max(0, i % h.n_pages - unseen)) *
                                   page;
    h.page = b->page;
    h.a.v_at = kb;
    h.state = b->out;
    h.scratch = b->scratch;
    h.scratch_bytes = (kern_attend_scratch(&a) + 63) / 64 * 64;
    h.state_floats = (size_t)(a.n_heads * kern_attend_state(a.v_width));
    *bytes = (double)(h.n * seen) * (double)page / KERN_PAGE;
    const uint64_t t = clock_now();
    pool_run(threads, h.n * h.n_splits, head_chunk, &h);
    return (double)(clock_now() - t) * 1e-9;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Layers of Gemma 4: width, query heads of a key/value head, window. */
static const struct layer {
    const char *name;
    int64_t width, heads, window;
} layers[] = {{"full, 31B and 26B-A4B", 512, 8, 0},
              {"full, E4B", 512, 4, 0},
              {"window, 31B and 26B-A4B", 256, 2, 1024},
              {"window, E4B", 256, 4, 512}};

static void decode(struct bench *b, struct pool *threads, const struct tool_memory *read,
                   const struct set *s)
{
    static const int64_t at[] = {8192, 32768, 131072};
    const enum kern_kv_codec *codecs = codecs_of(s);
    enum { ROUNDS = 5 };
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++)
        for (int c = 0; c < n_codecs(s, true); c++) {
            fill(b, codecs[c], layers[l].width);
            printf("%s decode, %s, %s:", s->name, layers[l].name, kern_kv_name(codecs[c]));
            for (int i = 0; i < (layers[l].window ? 1 : 3); i++) {
                double rate[ROUNDS], share[ROUNDS];
                for (int r = 0; r < ROUNDS; r++) {
                    const struct kern_attend a = {.k_codec = codecs[c],
                                                  .v_codec = codecs[c],
                                                  .k_width = layers[l].width,
                                                  .v_width = layers[l].width,
                                                  .q = b->q,
                                                  .q_stride = layers[l].heads * layers[l].width,
                                                  .out = b->out,
                                                  .out_stride = layers[l].heads * layers[l].width,
                                                  .n_rows = 1,
                                                  .n_heads = layers[l].heads,
                                                  .pos0 = at[i] - 1,
                                                  .window = layers[l].window,
                                                  .scale = 0.1f,
                                                  .from_v = &from_v};
                    double bytes = 0, most = 0;
                    for (int n = 1; n <= 8; n *= 2)
                        most = fmax(most, tool_memory_read(read, threads, n));
                    rate[r] = 1 / decode_once(b, threads, a, s, &bytes);
                    rate[r] *= bytes;
                    share[r] = rate[r] / most;
                }
                qsort(rate, ROUNDS, sizeof *rate, compare);
                qsort(share, ROUNDS, sizeof *share, compare);
                printf("  %dk %.1f GB/s %.2f of read, %.0f ns a position", (int)(at[i] / 1024),
                       rate[ROUNDS / 2] * 1e-9, share[ROUNDS / 2],
                       1e9 *
                           (double)(kern_kv_block_bytes(codecs[c], true, layers[l].width) +
                                    kern_kv_block_bytes(codecs[c], false, layers[l].width)) /
                           KERN_PAGE / rate[ROUNDS / 2]);
            }
            printf("\n");
            fflush(stdout);
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
        for (int c = 0; c < n_codecs(s, false); c++) {
            const enum kern_kv_codec codec = codecs_of(s)[c];
            if (!kern_kv_block_bytes(codec, true, p->width))
                continue;
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
                                    .scale = 0.1f,
                                    .from_v = &from_v};
            double seen = 0;
            for (int64_t r = 0; r < p->rows; r++)
                seen += (double)(p->window ? num_min(p->window, p->pos0 + r + 1) : p->pos0 + r + 1);
            printf(" %s %.1f", kern_kv_name(codec),
                   4 * seen * (double)(p->width * p->heads) / run(b, s, &a) * 1e-9);
        }
        printf(" GFLOP/s\n");
    }
}

void bench_attend(uint32_t cpu, int n_threads, const char *kernel)
{
    struct bench b = {.scratch_bytes = (size_t)8 << 20};
    struct pool *threads = NULL;
    struct tool_memory read = {NULL, 0};
    struct err err;
    b.pool = mem_big_alloc(pool_bytes);
    b.scratch = mem_big_alloc(b.scratch_bytes);
    b.q = mem_calloc(MAX_OUT, sizeof *b.q);
    b.out = mem_calloc(MAX_OUT, sizeof *b.out);
    if (!b.pool || !b.scratch || !b.q || !b.out || pool_create(&threads, n_threads, true, &err) ||
        tool_memory_create(&read, threads, pool_bytes, &err))
        exit(1);
    pool_enter(threads);
    struct noise r = {3};
    for (int64_t i = 0; i < MAX_OUT; i++)
        b.q[i] = noise_unit(&r);
    for (size_t i = 1; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].needs && (sets[i].needs & ~cpu) == 0 &&
            (!kernel || strstr(sets[i].name, kernel))) {
            if (!sets[i].fast)
                decode(&b, threads, &read, &sets[i]);
            prompt(&b, &sets[i]);
        }
    tool_memory_release(&read);
    pool_leave(threads);
    pool_free(threads);
    mem_big_free(b.pool, pool_bytes);
    mem_big_free(b.scratch, b.scratch_bytes);
    mem_free(b.q);
    mem_free(b.out);
}
