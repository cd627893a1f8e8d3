/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_latent - every set of kernels of kern/latent.h against plain C to the bit; FP8 rows
 * against their definition, scores and pooling against double precision.
 */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "kern/attend_part.h"
#include "kern/latent.h"
#include <math.h>

#define KERN_LATENT(needs, table) extern const struct kern_latent_table table;
#include "kern/latent.inc"
#undef KERN_LATENT

static const struct set {
    const char *name;
    uint32_t needs;
    const struct kern_latent_table *t;
} sets[] = {
#define KERN_LATENT(needs, table) {#table, needs, &table},
#include "kern/latent.inc"
#undef KERN_LATENT
};
enum { N_SETS = sizeof sets / sizeof *sets };

enum { WIDE = 512, ROWS = 80, HEADS = 70 };
static const enum kern_kv_codec codecs[] = {KERN_KV_F32, KERN_KV_F16, KERN_KV_BF16, KERN_KV_FP8,
                                            KERN_KV_FP4};
enum { N_CODECS = sizeof codecs / sizeof *codecs };

/* Everything that a trial writes. */
struct world {
    uint8_t *stored; /* ROWS rows of a format, no byte more */
    _Alignas(64) uint8_t again[ROWS * WIDE * 4];
    _Alignas(64) uint8_t keys[2][KERN_PAGE * WIDE * 4], values[2][KERN_PAGE * WIDE * 4];
    _Alignas(64) float scratch[3 * KERN_ROW_TILE * WIDE];
    uint8_t query[HEADS * WIDE * 2];
    float x[ROWS * WIDE], q[HEADS * WIDE], weight[HEADS], want[ROWS * WIDE], got[ROWS * WIDE];
};

static int differ(const struct set *s, const char *what, const struct kern_row *f,
                  const float *want, const float *got, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!noise_same(want[i], got[i])) {
            printf("%s, %s: %s of width %d, tail %d: [%d] is %.9g, not %.9g\n", s->name, what,
                   kern_kv_name(f->codec), (int)f->width, (int)f->tail, (int)i, (double)got[i],
                   (double)want[i]);
            return 1;
        }
    return 0;
}

/* One row between pages that cannot be read. */
static int check_standalone(struct world *w, const struct set *s, const struct kern_row *f)
{
    const size_t bytes = kern_row_bytes(f->codec, f->width, f->tail),
                 n_x = (size_t)f->width * sizeof(float);
    float *x = mem_alloc(n_x), *got = mem_alloc(n_x);
    uint8_t *row = mem_alloc(bytes);
    int n_bad = !x || !got || !row;
    if (!n_bad) {
        memcpy(x, w->x + (ROWS - 1) * WIDE, n_x);
        kern_row_read(f->codec, f->width, f->tail, w->stored + (ROWS - 1) * bytes, w->want);
        s->t->write(f, row, x);
        s->t->read(f, row, got);
        n_bad = differ(s, "alone", f, w->want, got, f->width);
    }
    mem_free(x);
    mem_free(got);
    mem_free(row);
    return n_bad;
}

static int check_rows(struct world *w, const struct set *s, const struct kern_row *f)
{
    const size_t bytes = kern_row_bytes(f->codec, f->width, f->tail);
    int n_bad = 0;
    memset(w->again, 0x5a, sizeof w->again);
    for (int64_t i = 0; i < ROWS && !n_bad; i++) {
        uint8_t *row = w->again + (size_t)i * bytes;
        s->t->write(f, row, w->x + i * WIDE);
        kern_row_read(f->codec, f->width, f->tail, w->stored + (size_t)i * bytes, w->want);
        kern_row_read(f->codec, f->width, f->tail, row, w->got);
        n_bad += differ(s, "written", f, w->want, w->got, f->width);
        for (int64_t k = 0; k < f->width; k++)
            w->got[k] = 7.0f;
        s->t->read(f, row, w->got);
        n_bad += differ(s, "read", f, w->want, w->got, f->width);
    }
    for (size_t i = ROWS * bytes; i < sizeof w->again; i++)
        n_bad += w->again[i] != 0x5a;
    return n_bad;
}

static int check_gather(struct world *w, const struct set *s, const struct kern_row *f,
                        struct noise *r)
{
    const size_t bytes = kern_row_bytes(f->codec, f->width, f->tail);
    const enum kern_kv_codec block = kern_row_block(f->codec);
    const int64_t slot = noise_below(r, 8) * KERN_ROW_TILE, n = 1 + noise_below(r, KERN_ROW_TILE);
    const void *row[KERN_ROW_TILE];
    int n_bad = 0;
    for (int64_t i = 0; i < n; i++)
        row[i] = w->stored + (size_t)(i ? noise_below(r, ROWS) : ROWS - 1) * bytes;
    s->t->gather(f, row, n, slot, w->keys[1], w->values[1]);
    for (int64_t i = 0; i < n && !n_bad; i++) {
        kern_row_read(f->codec, f->width, f->tail, row[i], w->want);
        kern_kv_read(block, true, f->width, w->keys[1], slot + i, w->got);
        n_bad += differ(s, "keys", f, w->want, w->got, f->width);
        kern_kv_read(block, false, f->width, w->values[1], slot + i, w->got);
        n_bad += differ(s, "values", f, w->want, w->got, f->width);
    }
    return n_bad;
}

static int check_scores(struct world *w, const struct set *s, const struct kern_row *f,
                        struct noise *r)
{
    const size_t bytes = kern_row_bytes(f->codec, f->width, f->tail);
    const int64_t from = noise_below(r, ROWS), n = noise_below(r, ROWS - from + 1);
    const int64_t n_heads = 1 + noise_below(r, HEADS);
    if (f->codec == KERN_KV_FP4)
        kern_query4(s->t, f->width, w->q, n_heads, w->query);
    const void *q = f->codec == KERN_KV_FP4 ? w->query : (const void *)w->q;
    const struct kern_scores all = {*f, w->stored, ROWS, q, w->weight, n_heads, NULL, 0};
    struct kern_scores some = all;
    some.keys = w->stored + (size_t)from * bytes;
    some.n = n;
    sets[0].t->scores(&all, w->want, w->scratch);
    for (int64_t i = 0; i <= ROWS; i++)
        w->got[i] = 7.0f;
    s->t->scores(&some, w->got, w->scratch);
    return differ(s, "scores", f, w->want + from, w->got, n) + (w->got[n] != 7.0f);
}

/* Plain scores in FP4 against rows that both sides were written as, in double precision. */
static int check_scores4(struct world *w, const struct kern_row *f)
{
    const size_t bytes = kern_row_bytes(f->codec, f->width, 0);
    const struct kern_scores s = {*f, w->stored, ROWS, w->query, w->weight, HEADS, NULL, 0};
    kern_query4(sets[0].t, f->width, w->q, HEADS, w->query);
    sets[0].t->scores(&s, w->got, w->scratch);
    for (int64_t i = 0; i < ROWS; i++) {
        double sum = 0, mass = 0;
        kern_row_read(f->codec, f->width, 0, w->stored + (size_t)i * bytes, w->want);
        for (int64_t h = 0; h < HEADS; h++) {
            double dot = 0, all = 0;
            kern_row_write(f->codec, f->width, 0, w->again, w->q + h * f->width);
            kern_row_read(f->codec, f->width, 0, w->again, w->want + f->width);
            for (int64_t k = 0; k < f->width; k++) {
                dot += (double)w->want[k] * (double)w->want[f->width + k];
                all += fabs((double)w->want[k] * (double)w->want[f->width + k]);
            }
            sum += (double)w->weight[h] * fmax(dot, 0);
            mass += fabs((double)w->weight[h]) * all;
        }
        if (isfinite(mass) && !(fabs((double)w->got[i] - sum) <= mass * 1e-5)) {
            printf("scores of fp4, width %d: [%d] is %.9g, not %.9g\n", (int)f->width, (int)i,
                   (double)w->got[i], sum);
            return 1;
        }
    }
    return 0;
}

static int check_pool(struct world *w, const struct set *s, const struct kern_row *f,
                      struct noise *r)
{
    const float *value[ROWS], *gate[ROWS];
    const int64_t n = 1 + noise_below(r, ROWS);
    for (int64_t i = 0; i < n; i++) {
        value[i] = w->x + i * WIDE;
        gate[i] = w->x + noise_below(r, ROWS) * WIDE;
    }
    sets[0].t->pool(value, gate, n, f->width, w->want, w->scratch, w->scratch + WIDE);
    for (int64_t i = 0; i <= f->width; i++)
        w->got[i] = 7.0f;
    s->t->pool(value, gate, n, f->width, w->got, w->scratch, w->scratch + WIDE);
    int n_bad = differ(s, "pool", f, w->want, w->got, f->width) + (w->got[f->width] != 7.0f);
    for (int64_t d = 0; d < f->width && !n_bad; d++) { /* exp is good to 1 ulp; sums add n u */
        double top = -HUGE_VAL, sum = 0, acc = 0, mass = 0, flushed = 0;
        for (int64_t i = 0; i < n; i++)
            top = fmax(top, (double)gate[i][d]);
        for (int64_t i = 0; i < n; i++) {
            const double e = exp((double)gate[i][d] - top);
            sum += e;
            acc += e * (double)value[i][d];
            mass += e * fabs((double)value[i][d]);
            if ((double)gate[i][d] - top < -86) /* exp may be 0 from here on (math.h) */
                flushed += e * fabs((double)value[i][d]);
        }
        const double bound =
            (double)(2 * n + 10) * ldexp(1, -24) * (mass / sum) * 100 + flushed / sum + 0x1p-100;
        if (isfinite(acc) && !(fabs((double)w->got[d] - acc / sum) <= bound)) {
            printf("pool of %d: [%d] is %.9g, not %.9g\n", (int)n, (int)d, (double)w->got[d],
                   acc / sum);
            n_bad = 1;
        }
    }
    return n_bad;
}

/* Plain FP8 against the words of its definition. */
static int check_fp8(struct noise *r)
{
    float x[KERN_ROW_GROUP + 4], y[KERN_ROW_GROUP + 4];
    uint8_t row[KERN_ROW_GROUP + 16];
    const float size = ldexpf(1.0f, (int)noise_below(r, 60) - 30);
    double max = (double)1e-4f;
    for (int i = 0; i < KERN_ROW_GROUP + 4; i++)
        x[i] = noise_unit(r) * size * ldexpf(1.0f, -(int)noise_below(r, 12));
    for (int i = 0; i < KERN_ROW_GROUP; i++)
        max = fmax(max, fabs((double)x[i]));
    kern_row_write(KERN_KV_FP8, KERN_ROW_GROUP + 4, 4, row, x);
    kern_row_read(KERN_KV_FP8, KERN_ROW_GROUP + 4, 4, row, y);
    const double scale = exp2(ceil(log2(max / 448)));
    for (int i = 0; i < KERN_ROW_GROUP + 4; i++) {
        const double v = i < KERN_ROW_GROUP ? (double)x[i] / scale : (double)x[i];
        /* 3 bits behind the first and steps of 2^-9 at least; bf16 has 7 bits. */
        const double step = i < KERN_ROW_GROUP ? fmax(exp2(floor(log2(fabs(v))) - 3), 0x1p-9)
                                               : exp2(floor(log2(fabs(v))) - 7);
        const double want = v == 0 ? 0 : rint(v / step) * step;
        if ((double)y[i] != (i < KERN_ROW_GROUP ? want * scale : want)) {
            printf("fp8: %.9g of %.9g is stored as %.9g\n", (double)x[i], max, (double)y[i]);
            return 1;
        }
    }
    return 0;
}

/* Plain FP4 against the words of its definition. */
static int check_fp4(struct noise *r)
{
    static const double value[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    float x[KERN_ROW_GROUP4], y[KERN_ROW_GROUP4];
    uint8_t row[KERN_ROW_GROUP4];
    const float size = ldexpf(1.0f, (int)noise_below(r, 60) - 30);
    double max = 6 * 0x1p-126;
    for (int i = 0; i < KERN_ROW_GROUP4; i++) { /* ties, too */
        x[i] = noise_below(r, 3) ? noise_unit(r) * size
                                 : (float)((double)noise_below(r, 25) - 12) * 0.25f * size;
        max = fmax(max, fabs((double)x[i]));
    }
    kern_row_write(KERN_KV_FP4, KERN_ROW_GROUP4, 0, row, x);
    kern_row_read(KERN_KV_FP4, KERN_ROW_GROUP4, 0, row, y);
    const double scale = exp2(ceil(log2(max / 6)));
    for (int i = 0; i < KERN_ROW_GROUP4; i++) {
        const double v = fabs((double)x[i]) / scale;
        int best = 0;
        for (int c = 1; c < 8; c++) {
            const double old = fabs(v - value[best]), new = fabs(v - value[c]);
            if (new < old || (new <= old && c % 2 == 0))
                best = c;
        }
        if (fabs((double)y[i]) != value[best] * scale ||
            (y[i] != 0.0f && (y[i] < 0) != (x[i] < 0))) {
            printf("fp4: %.9g of %.9g is stored as %.9g\n", (double)x[i], max, (double)y[i]);
            return 1;
        }
    }
    return 0;
}

static void fill(struct world *w, struct noise *r, int kind)
{
    const float size = ldexpf(1.0f, (int)noise_below(r, 40) - 20);
    for (int64_t i = 0; i < ROWS * WIDE; i++)
        w->x[i] = noise_unit(r) * (kind ? size : 1.0f) * (noise_below(r, 5) ? 1.0f : 0.002f);
    for (int64_t i = 0; i < HEADS * WIDE; i++)
        w->q[i] = noise_unit(r);
    for (int i = 0; i < HEADS; i++)
        w->weight[i] = noise_unit(r);
    for (int i = 0; kind == 2 && i < 12; i++)
        w->x[noise_below(r, ROWS * WIDE)] = i < 4 ? NAN : i < 8 ? INFINITY : -3e38f;
    for (int i = 0; i < 4; i++)
        memset(w->x + noise_below(r, ROWS * WIDE - 200), 0, 200 * sizeof(float));
}

int check_latent(uint64_t seed, uint32_t cpu)
{
    static const int64_t widths[] = {512, 128, 32, 4, 64, 100, 84, 36, 260, 7};
    struct noise r = {seed};
    struct world *w = mem_big_alloc(sizeof *w);
    int n_bad = !w;
    for (int round = 0; round < 10 * N_CODECS && n_bad < 10 && w; round++) {
        struct kern_row f = {codecs[round % N_CODECS], widths[round / N_CODECS], 0};
        if (f.codec == KERN_KV_FP4)
            f.width = (f.width + KERN_ROW_GROUP4 - 1) / KERN_ROW_GROUP4 * KERN_ROW_GROUP4;
        else
            f.tail = noise_below(&r, 3) ? noise_below(&r, f.width + 1) : f.width >= 128 ? 64 : 0;
        const size_t bytes = kern_row_bytes(f.codec, f.width, f.tail);
        fill(w, &r, (int)noise_below(&r, 3));
        w->stored = mem_alloc(ROWS * bytes);
        if (!w->stored) {
            n_bad++;
            break;
        }
        for (int64_t i = 0; i < ROWS; i++)
            kern_row_write(f.codec, f.width, f.tail, w->stored + (size_t)i * bytes,
                           w->x + i * WIDE);
        if (f.codec == KERN_KV_FP4)
            n_bad += check_scores4(w, &f);
        for (int i = 0; i < N_SETS; i++) {
            if ((sets[i].needs & ~cpu) != 0)
                continue;
            n_bad += check_rows(w, &sets[i], &f) + check_standalone(w, &sets[i], &f);
            for (int k = 0; k < (fence_sparse_trials() ? 1 : 4); k++) {
                if (f.codec != KERN_KV_FP4)
                    n_bad += check_gather(w, &sets[i], &f, &r);
                n_bad += check_scores(w, &sets[i], &f, &r);
            }
            n_bad += check_pool(w, &sets[i], &f, &r);
        }
        mem_free(w->stored);
    }
    for (int i = 0; i < 200 && n_bad < 10; i++)
        n_bad += check_fp8(&r) + check_fp4(&r);
    mem_big_free(w, sizeof *w);
    return n_bad;
}
