/* SPDX-License-Identifier: Apache-2.0 */
/* bench_sparse - a prompt's rows of eight heads behind 32,768 positions: attention to all of them
 * against attention to few, with a planted share of keys that every row wants.  Processor time of
 * one thread; the two take turns. */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "kern/kern.h"
#include <math.h>
#include <stdlib.h>
#include <time.h>

#define KERN_ATTEND(needs, table)     extern const struct kern_attend_table table;
#define KERN_ATTEND_SPARSE(needs, table) extern const struct kern_sparse_table table;
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_SPARSE

static const struct all {
    const char *name;
    uint32_t needs;
    const struct kern_attend_table *t;
} dense[] = {
#define KERN_ATTEND(needs, table) {#table, needs, &table},
#define KERN_ATTEND_SPARSE(needs, table)
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_SPARSE
};
static const struct sparse {
    const char *name;
    uint32_t needs;
    const struct kern_sparse_table *t;
} fews[] = {
#define KERN_ATTEND(needs, table)
#define KERN_ATTEND_SPARSE(needs, table) {#table, needs, &table},
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_SPARSE
};

extern const struct kern_attend_table kern_attend_coded_ref;
#define KERN_ATTEND(needs, table)
#define KERN_ATTEND_FAST(needs, recipe, law, table) extern const struct kern_attend_table table;
#include "kern/attend.inc"
#undef KERN_ATTEND_FAST
/* That of pairs of BF16, if there is one, and one that ends the list. */
static const struct fast {
    uint32_t needs;
    const struct kern_attend_table *t;
} fast[] = {
#define KERN_ATTEND_FAST(needs, recipe, law, table) {needs, &table},
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_FAST
    {0, NULL},
};

enum {
    WIDTH = 512,
    HEADS = 8,
    ROWS = 128,
    BEHIND = 32768,
    ROUNDS = 3,
    N_PAGES = BEHIND / KERN_PAGE + 1,
    DIFFERENT = 8
};

struct bench {
    struct kern_sparse_task f;
    const uint8_t *page[N_PAGES];
    uint8_t *mem;
    size_t page_bytes, mem_bytes, scratch_bytes;
    float *q, *out, *missed;
    int32_t *kept;
    void *scratch;
};

static double now(void) { return (double)clock() / (double)CLOCKS_PER_SEC; }

/* Pages of two kinds, those that are always seen and others, each of some different ones.  Keys lie
 * along the direction that queries have: of a wanted position with the score 0, of others with
 * -12. */
static void fill(struct bench *b, enum kern_kv_codec k, int percent)
{
    struct noise r = {5};
    float key[WIDTH], value[WIDTH];
    struct kern_attend *a = &b->f.attend;
    a->k_codec = k;
    a->v_codec = KERN_KV_F16;
    a->v_at = kern_kv_block_bytes(k, true, WIDTH);
    b->page_bytes = a->v_at + kern_kv_block_bytes(KERN_KV_F16, false, WIDTH);
    for (int p = 0; p < 2 * DIFFERENT; p++)
        for (int64_t j = 0; j < KERN_PAGE; j++) {
            const bool hot = p < DIFFERENT || (j + 1) * percent / 100 > j * percent / 100;
            for (int i = 0; i < WIDTH; i++) {
                key[i] = 0.02f * noise_unit(&r) + (hot ? 0.0f : (i % 3 ? -12.0f : 12.0f) / WIDTH);
                value[i] = noise_unit(&r);
            }
            kern_attend_coded_ref.kv_write(k, true, WIDTH, b->mem + (size_t)p * b->page_bytes, j,
                                           key, 1, 0);
            kern_attend_coded_ref.kv_write(KERN_KV_F16, false, WIDTH,
                                           b->mem + (size_t)p * b->page_bytes + a->v_at, j, value,
                                           1, 0);
        }
    for (int64_t i = 0; i < N_PAGES; i++) { /* as far apart as in a cache of pages */
        const bool always = i == 0 || i > N_PAGES - 1 - KERN_SPARSE_PAGES - 1;
        uint8_t *to = b->mem + (size_t)(i + 2 * DIFFERENT) * b->page_bytes;
        memcpy(to, b->mem + (size_t)(i % DIFFERENT + (always ? 0 : DIFFERENT)) * b->page_bytes,
               b->page_bytes);
        b->page[i] = to;
    }
    for (int64_t i = 0; i < ROWS * HEADS * WIDTH; i++)
        b->q[i] = (i % WIDTH % 3 ? 1.0f : -1.0f) + 0.1f * noise_unit(&r);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of attention to all values, as the device cuts it. */
static double attend_all(struct bench *b, const struct kern_attend_table *t, int percent)
{
    fill(b, KERN_KV_F16, percent);
    struct kern_attend some = b->f.attend;
    some.n_rows = 24;
    const double began = now();
    t->rows(&some, b->scratch);
    return (now() - began) * ROWS / 24;
}

static void measure(struct bench *b, const struct all *all, const struct sparse *sparse,
                    uint32_t cpu, int percent)
{
    double t[2][ROUNDS], pairs[ROUNDS], kept = 0, missed = 0;
    const struct kern_attend_table *bf16 =
        cpu & fast[0].needs && all->needs & CPU_AVX512 ? fast[0].t : NULL;
    static const enum kern_kv_codec codecs[] = {KERN_KV_F16, KERN_KV_Q8R};
    printf("%s, %3d %% wanted:", sparse->name, percent);
    for (int c = 0; c < 2; c++) {
        for (int i = 0; i < ROUNDS; i++) {
            if (!c) {
                t[0][i] = attend_all(b, all->t, percent);
                pairs[i] = bf16 ? attend_all(b, bf16, percent) : 0;
            }
            fill(b, codecs[c], percent);
            const double began = now();
            sparse->t->rows(&b->f, b->scratch);
            t[1][i] = now() - began;
        }
        qsort(t[0], ROUNDS, sizeof(double), compare);
        qsort(t[1], ROUNDS, sizeof(double), compare);
        qsort(pairs, ROUNDS, sizeof(double), compare);
        kept = missed = 0;
        for (int i = 0; i < ROWS * HEADS; i++) {
            kept += (double)b->kept[i] / (BEHIND + 64) / (ROWS * HEADS);
            missed += (double)b->missed[i] / (ROWS * HEADS);
        }
        printf(
            " keys %s: %.0f ms, %.2f times as fast as %s (%.0f ms), kept %.1f %%, missed %.3f %%",
            kern_kv_name(codecs[c]), t[1][ROUNDS / 2] * 1e3, t[0][ROUNDS / 2] / t[1][ROUNDS / 2],
            all->name, t[0][ROUNDS / 2] * 1e3, 100 * kept, 100 * missed);
        if (bf16)
            printf(", %.2f times as attend-pairs (%.0f ms)", pairs[ROUNDS / 2] / t[1][ROUNDS / 2],
                   pairs[ROUNDS / 2] * 1e3);
        printf(";");
        fflush(stdout);
    }
    printf("\n");
}

void bench_sparse(uint32_t cpu)
{
    static const int percent[] = {10, 100};
    struct bench *b = mem_calloc(1, sizeof *b);
    if (!b)
        exit(1);
    b->mem_bytes = (size_t)(N_PAGES + 2 * DIFFERENT) * 2 * KERN_PAGE * WIDTH * 2;
    b->scratch_bytes = (size_t)16 << 20;
    b->mem = mem_big_alloc(b->mem_bytes);
    b->scratch = mem_big_alloc(b->scratch_bytes);
    b->q = mem_calloc(ROWS * HEADS * WIDTH, sizeof *b->q);
    b->out = mem_calloc(ROWS * HEADS * WIDTH, sizeof *b->out);
    b->missed = mem_calloc(ROWS * HEADS, sizeof *b->missed);
    b->kept = mem_calloc(ROWS * HEADS, sizeof *b->kept);
    if (!b->mem || !b->scratch || !b->q || !b->out || !b->missed || !b->kept)
        exit(1);
    b->f = (struct kern_sparse_task){.attend = {.k_width = WIDTH,
                                             .v_width = WIDTH,
                                             .page = b->page,
                                             .q = b->q,
                                             .q_stride = HEADS * WIDTH,
                                             .out = b->out,
                                             .out_stride = HEADS * WIDTH,
                                             .n_rows = ROWS,
                                             .n_heads = HEADS,
                                             .pos0 = BEHIND,
                                             .scale = 1.0f},
                                  .eps = 3,
                                  .missed = b->missed,
                                  .kept = b->kept,
                                  .pair_stride = HEADS};
    if (kern_sparse_scratch(&b->f.attend) > b->scratch_bytes)
        exit(1);
    for (size_t f = sizeof fews / sizeof *fews; f-- > 1;)
        for (size_t a = sizeof dense / sizeof *dense; a-- > 1 && (fews[f].needs & ~cpu) == 0;)
            if ((dense[a].needs & ~cpu) == 0 &&
                ((dense[a].needs & CPU_AVX512) == 0 ||
                 (fews[f].needs & CPU_AVX512VNNI))) { /* of the same registers */
                for (size_t i = 0; i < sizeof percent / sizeof *percent; i++)
                    measure(b, &dense[a], &fews[f], cpu, percent[i]);
                break;
            }
    mem_big_free(b->mem, b->mem_bytes);
    mem_big_free(b->scratch, b->scratch_bytes);
    mem_free(b->q);
    mem_free(b->out);
    mem_free(b->missed);
    mem_free(b->kept);
    mem_free(b);
}
