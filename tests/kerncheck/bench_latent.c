/* SPDX-License-Identifier: Apache-2.0 */
/* bench_latent - what a row of DeepSeek V4's attention costs on one thread: its list laid
 * out, attended to by 64 heads of width 512, keys scored by 64 heads of width 128, and the
 * pooling of a block.  The best of some rounds: the machine may be shared. */
#include "kerncheck/checks.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "kern/kern.h"
#include <math.h>

enum { ROWS = 640, WIDTH = 512, HEADS = 64, KEY = 128, POOL = 128, ROUNDS = 20 };

struct data {
    _Alignas(64) uint8_t stored[ROWS * WIDTH * 4];
    _Alignas(64) uint8_t pages[2 * ROWS * WIDTH * 4];
    uint8_t query[HEADS * WIDTH];
    float q[HEADS * WIDTH], out[HEADS * WIDTH], x[POOL * WIDTH], score[ROWS];
    _Alignas(64) float scratch[1 << 20];
};

static void lay_out(const struct kern_table *t, const struct kern_row *f, struct data *d, int64_t n)
{
    const enum kern_kv_codec block = kern_row_block(f->codec);
    const size_t key = kern_kv_block_bytes(block, true, WIDTH),
                 bytes = kern_row_bytes(f->codec, f->width, f->tail);
    for (int64_t r = 0; r < n; r += KERN_ROW_TILE) {
        const void *row[KERN_ROW_TILE];
        uint8_t *page = d->pages + (size_t)(r / KERN_PAGE) * 2 * key;
        for (int64_t i = 0; i < KERN_ROW_TILE; i++) /* far apart, as chosen rows are */
            row[i] = d->stored + (size_t)((r + i) * 37 % ROWS) * bytes;
        t->latent.gather(f, row, KERN_ROW_TILE, r % KERN_PAGE, page, page + key);
    }
}

static void attend(const struct kern_table *t, const struct kern_row *f, struct data *d, int64_t n)
{
    const enum kern_kv_codec block = kern_row_block(f->codec);
    const size_t key = kern_kv_block_bytes(block, true, WIDTH);
    const uint8_t *page[ROWS / KERN_PAGE];
    for (int64_t i = 0; i < ROWS / KERN_PAGE; i++)
        page[i] = d->pages + (size_t)i * 2 * key;
    const struct kern_attend a = {.k_codec = block,
                                  .v_codec = block,
                                  .k_width = WIDTH,
                                  .v_width = WIDTH,
                                  .page = page,
                                  .v_at = key,
                                  .q = d->q,
                                  .q_stride = HEADS * WIDTH,
                                  .out = d->out,
                                  .out_stride = HEADS * WIDTH,
                                  .n_rows = 1,
                                  .n_heads = HEADS,
                                  .pos0 = n - 1,
                                  .scale = 0.04f};
    if (kern_attend_scratch(&a) <= sizeof d->scratch)
        t->attend.exact.rows(&a, d->scratch);
}

static void score(const struct kern_table *t, const struct kern_row *f, struct data *d, int64_t n)
{
    /* as the family has it */
    const struct kern_row key = {f->codec == KERN_KV_FP8 ? KERN_KV_FP4 : f->codec, KEY, 0};
    const void *q = key.codec == KERN_KV_FP4 ? d->query : (const void *)d->q;
    const size_t bytes = kern_row_bytes(key.codec, KEY, 0);
    for (int64_t i = 0; i < n; i += 32) {
        const struct kern_scores s = {key, d->stored + (size_t)i * bytes, 32, q, d->x, HEADS, NULL,
                                      0};
        t->latent.scores(&s, d->score + i, d->scratch);
    }
}

static void pool(const struct kern_table *t, const struct kern_row *f, struct data *d, int64_t n)
{
    (void)f;
    const float *value[POOL], *gate[POOL];
    for (int i = 0; i < n; i++) {
        value[i] = d->x + i * WIDTH;
        gate[i] = d->x + (n - 1 - i) * WIDTH;
    }
    t->latent.pool(value, gate, n, WIDTH, d->out, d->scratch, d->scratch + WIDTH);
}

static double best(void (*fn)(const struct kern_table *, const struct kern_row *, struct data *,
                              int64_t),
                   const struct kern_table *t, const struct kern_row *f, struct data *d, int64_t n)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t from = clock_now();
        fn(t, f, d, n);
        const uint64_t took = clock_now() - from;
        least = took < least ? took : least;
    }
    return (double)least * 1e-3;
}

void bench_latent(uint32_t cpu)
{
    static const enum kern_kv_codec codecs[] = {KERN_KV_F32, KERN_KV_F16, KERN_KV_FP8};
    struct kern_table t;
    struct noise r = {3};
    struct data *d = mem_big_alloc(sizeof *d);
    if (!d)
        return;
    kern_table_init(&t, cpu);
    for (int i = 0; i < HEADS * WIDTH; i++)
        d->q[i] = noise_unit(&r);
    for (int i = 0; i < POOL * WIDTH; i++)
        d->x[i] = noise_unit(&r);
    kern_query4(&t.latent, KEY, d->q, HEADS, d->query);
    for (int c = 0; c < 3; c++) {
        const struct kern_row f = {codecs[c], WIDTH, 64};
        for (int64_t i = 0; i < ROWS; i++)
            t.latent.write(&f, d->stored + (size_t)i * kern_row_bytes(f.codec, WIDTH, 64),
                           d->x + i % POOL * WIDTH);
        printf("latent %s, us:", kern_kv_name(f.codec));
        for (int64_t n = 128; n <= ROWS; n = n == 128 ? 256 : n + 384)
            printf(" %d rows laid out %.0f, attended %.0f (%.1f GFMA/s);", (int)n,
                   best(lay_out, &t, &f, d, n), best(attend, &t, &f, d, n),
                   (double)n * HEADS * WIDTH * 2e-3 / best(attend, &t, &f, d, n));
        printf(" %d keys scored %.0f; %d rows pooled %.0f\n", ROWS, best(score, &t, &f, d, ROWS),
               POOL, best(pool, &t, &f, d, POOL));
    }
    mem_big_free(d, sizeof *d);
}
