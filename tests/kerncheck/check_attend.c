/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_attend - every attention kernel against plain C to the bit, plain C against a
 * softmax in double precision, and rows against themselves: alone, in chunks, in splits,
 * and with NaN wherever they must not look.
 */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "kern/attend.h"
#include <math.h>

#define KERN_ATTEND(needs, table)                   extern const struct kern_attend_table table;
#define KERN_ATTEND_FAST(needs, recipe, law, table)                                                \
    extern const struct kern_attend_table law, table;
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_FAST

/* Kernels, and the plain ones that say what they compute. */
static const struct set {
    const char *name;
    uint32_t needs;
    const struct kern_attend_table *t, *law;
} sets[] = {
#define KERN_ATTEND(needs, table)                  {#table, needs, &table, &kern_attend_ref},
#define KERN_ATTEND_FAST(needs, recipe, law, table)                                                \
    {#law, 0, &law, &law}, {#table, needs, &table, &law},
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_FAST
};

enum { MAX_PAGES = 64, PAD = 64 };

/* A task with memory of its own. */
struct trial {
    struct kern_attend a;
    uint8_t *mem;
    const uint8_t *page[MAX_PAGES];
    size_t page_bytes, scratch_bytes, mem_bytes;
    int64_t n_pages, n_out;
    float *q, *out, *want, *nan_row, sink[64];
    void *scratch;
};

static void *take(size_t n)
{
    void *p = mem_big_alloc(n);
    if (!p)
        printf("out of memory\n");
    return p;
}

static void release(struct trial *t)
{
    mem_big_free(t->mem, t->mem_bytes);
    mem_big_free(t->scratch, t->scratch_bytes);
    mem_free(t->q);
    mem_free(t->out);
    mem_free(t->want);
    mem_free(t->nan_row);
}

/* Slots [from, to) of both blocks. */
static void put(struct trial *t, int64_t pos, const float *k, const float *v)
{
    uint8_t *page = t->mem + (size_t)(pos / KERN_PAGE) * t->page_bytes;
    const struct kern_attend *a = &t->a;
    sets[0].t->kv_write(a->k_codec, true, a->k_width, page + a->k_at, pos % KERN_PAGE, k, 1, 0);
    sets[0].t->kv_write(a->v_codec, false, a->v_width, page + a->v_at, pos % KERN_PAGE, v, 1, 0);
}

static bool prepare(struct trial *t, struct noise *r, int kind)
{
    struct kern_attend *a = &t->a;
    int64_t n_pos = a->pos0 + a->n_rows, kw = a->k_width, vw = a->v_width;
    size_t kb = kern_kv_block_bytes(a->k_codec, true, kw);
    a->k_at = PAD;
    a->v_at = 2 * PAD + kb;
    t->page_bytes = 3 * PAD + kb + kern_kv_block_bytes(a->v_codec, false, vw);
    t->n_pages = num_div_up(n_pos, KERN_PAGE);
    t->mem_bytes = (size_t)t->n_pages * t->page_bytes;
    t->scratch_bytes = kern_attend_scratch(a);
    a->q_stride = a->n_heads * kw + 3;
    a->out_stride = a->n_heads * vw + 5;
    t->n_out = a->n_rows * a->out_stride;
    t->mem = take(t->mem_bytes);
    t->scratch = take(t->scratch_bytes);
    t->q = mem_calloc((size_t)(a->n_rows * a->q_stride), sizeof(float));
    t->out = mem_calloc((size_t)t->n_out, sizeof(float));
    t->want = mem_calloc((size_t)t->n_out, sizeof(float));
    t->nan_row = mem_calloc((size_t)(kw > vw ? kw : vw), 2 * sizeof(float));
    if (!t->mem || !t->scratch || !t->q || !t->out || !t->want || !t->nan_row)
        return false;
    memset(t->mem, 0xff, t->mem_bytes);
    float *k = t->nan_row, *v = t->nan_row + (kw > vw ? kw : vw);
    for (int64_t pos = 0; pos < n_pos; pos++) {
        float big = kind == 1 && noise_below(r, 8) == 0 ? 30.0f : 1.0f;
        for (int64_t i = 0; i < kw; i++)
            k[i] = noise_unit(r) * big;
        for (int64_t i = 0; i < vw; i++)
            v[i] = noise_unit(r) * big;
        if (kind == 2 && noise_below(r, 60) == 0)
            k[noise_below(r, kw)] = noise_below(r, 2) ? INFINITY : -INFINITY;
        if (kind == 2 && noise_below(r, 200) == 0)
            v[noise_below(r, vw)] = noise_below(r, 2) ? NAN : 3e38f;
        put(t, pos, k, v);
    }
    for (int64_t i = 0; i < a->n_rows * a->q_stride; i++)
        t->q[i] = noise_unit(r);
    for (int64_t i = 0; i < 2 * (kw > vw ? kw : vw); i++)
        t->nan_row[i] = NAN;
    for (int64_t i = 0; i < t->n_pages; i++)
        t->page[i] = t->mem + (size_t)i * t->page_bytes;
    if (a->window && a->pos0 >= a->window) /* nobody looks there */
        for (int64_t i = 0; i < (a->pos0 - a->window + 1) / KERN_PAGE; i++)
            t->page[i] = NULL;
    for (int i = 0; i < 64; i++)
        t->sink[i] = noise_unit(r) * 4.0f;
    if (kind == 2)
        t->sink[noise_below(r, 8)] = noise_below(r, 2) ? INFINITY : -INFINITY;
    a->sink = noise_below(r, 3) ? NULL : t->sink;
    a->page = t->page;
    a->q = t->q;
    a->out = t->out;
    return true;
}

static int differ(const struct trial *t, const struct set *s, const char *what, int64_t r0,
                  int64_t r1, int64_t h0, int64_t h1)
{
    const struct kern_attend *a = &t->a;
    for (int64_t r = r0; r < r1; r++)
        for (int64_t i = h0 * a->v_width; i < h1 * a->v_width; i++) {
            float want = t->want[r * a->out_stride + i], got = t->out[r * a->out_stride + i];
            if (!noise_same(want, got)) {
                printf("%s, %s: k %s %d, v %s %d, %d rows, %d heads, pos %d, window %d: row %d "
                       "[%d] is %.9g, not %.9g\n",
                       s->name, what, kern_kv_name(a->k_codec), (int)a->k_width,
                       kern_kv_name(a->v_codec), (int)a->v_width, (int)a->n_rows, (int)a->n_heads,
                       (int)a->pos0, (int)a->window, (int)r, (int)i, (double)got, (double)want);
                return 1;
            }
        }
    return 0;
}

/* Rows [r0, r1) and heads [h0, h1) as a task of their own. */
static struct kern_attend cut(const struct kern_attend *a, int64_t r0, int64_t r1, int64_t h0,
                              int64_t h1)
{
    struct kern_attend b = *a;
    b.q += r0 * a->q_stride + h0 * a->k_width;
    b.out += r0 * a->out_stride + h0 * a->v_width;
    b.pos0 += r0;
    b.sink = a->sink ? a->sink + h0 : NULL;
    b.n_rows = r1 - r0;
    b.n_heads = h1 - h0;
    return b;
}

static void wipe(struct trial *t)
{
    for (int64_t i = 0; i < t->n_out; i++)
        t->out[i] = 12345.0f;
}

static int check_splits(struct trial *t, const struct set *s)
{
    const struct kern_attend *a = &t->a;
    int64_t n = (a->pos0 + a->n_rows - 1) / KERN_SPLIT + 1;
    int64_t step = a->n_rows * a->n_heads * kern_attend_state(a->v_width);
    float *state = mem_calloc((size_t)(n * step), sizeof *state);
    if (!state)
        return 1;
    wipe(t);
    for (int64_t i = n - 1; i >= 0; i--)
        s->t->split(a, i, state + i * step, t->scratch);
    s->t->merge(a, n, state, t->scratch);
    mem_free(state);
    return differ(t, s, "split and merge", 0, a->n_rows, 0, a->n_heads);
}

/* One row and head with everything that it does not see made NaN; spoils the trial. */
static int check_blind(struct trial *t, const struct set *s, int64_t row, int64_t head)
{
    int64_t pos = t->a.pos0 + row, n_pos = t->a.pos0 + t->a.n_rows;
    const float *v = t->nan_row;
    for (int64_t p = pos + 1; p < n_pos; p++)
        put(t, p, v, v);
    for (int64_t p = num_max(0, pos - 200); t->a.window && p <= pos - t->a.window; p++)
        put(t, p, v, v);
    struct kern_attend one = cut(&t->a, row, row + 1, head, head + 1);
    wipe(t);
    s->t->rows(&one, t->scratch);
    return differ(t, s, "one row, NaN around", row, row + 1, head, head + 1);
}

static int check_set(struct trial *t, const struct set *s, struct noise *r)
{
    const struct kern_attend *a = &t->a;
    int n_bad = 0;
    if (s->t == s->law) { /* did so already */
        memcpy(t->out, t->want, (size_t)t->n_out * sizeof *t->out);
    } else {
        wipe(t);
        s->t->rows(a, t->scratch);
        n_bad += differ(t, s, "rows", 0, a->n_rows, 0, a->n_heads);
    }
    for (int64_t i = 0; i < a->n_rows; i++)
        for (int64_t j = a->n_heads * a->v_width; j < a->out_stride; j++)
            n_bad += t->out[i * a->out_stride + j] != 12345.0f;
    n_bad += check_splits(t, s);
    int64_t r1 = noise_below(r, a->n_rows), h1 = noise_below(r, a->n_heads);
    wipe(t);
    for (int i = 0; i < 4; i++) {
        struct kern_attend b =
            cut(a, i & 1 ? r1 : 0, i & 1 ? a->n_rows : r1, i & 2 ? h1 : 0, i & 2 ? a->n_heads : h1);
        if (b.n_rows && b.n_heads)
            s->t->rows(&b, t->scratch);
    }
    return n_bad + differ(t, s, "in chunks", 0, a->n_rows, 0, a->n_heads);
}

/* Plain C against double precision.  With u = 2^-24 a score of width w is off by at most (w + 2) u
 * scale sum|q k|, a weight by that plus the same of the maximum, relatively, and sums over n
 * positions add n u; exp and the rescaling add a few u a block.  rounding: of each factor. */
static int check_truth(struct trial *t, double rounding, struct noise *r)
{
    const struct kern_attend *a = &t->a;
    int64_t row = noise_below(r, a->n_rows), head = noise_below(r, a->n_heads);
    int64_t pos = a->pos0 + row, kw = a->k_width, vw = a->v_width;
    int64_t from = a->window && pos >= a->window ? pos - a->window + 1 : 0;
    const float *q = t->q + row * a->q_stride + head * kw;
    float *x = mem_calloc((size_t)(kw + vw), sizeof *x);
    double *sum = mem_calloc((size_t)vw * 2 + 2, sizeof *sum), top = -HUGE_VAL, mass = 0, l = 0;
    double *score = mem_calloc((size_t)(pos + 1), sizeof *score);
    int n_bad = !x || !sum || !score;
    for (int64_t p = from; p <= pos && !n_bad; p++) {
        double dot = 0, m = 0;
        kern_kv_read(a->k_codec, true, kw, t->page[p / KERN_PAGE] + a->k_at, p % KERN_PAGE, x);
        for (int64_t k = 0; k < kw; k++) {
            dot += (double)q[k] * (double)x[k];
            m += fabs((double)q[k] * (double)x[k]);
        }
        score[p] = dot * (double)a->scale;
        top = fmax(top, score[p]);
        mass = fmax(mass, m * fabs((double)a->scale));
    }
    for (int64_t p = from; p <= pos && !n_bad; p++) {
        double w = exp(score[p] - top);
        l += w;
        kern_kv_read(a->v_codec, false, vw, t->page[p / KERN_PAGE] + a->v_at, p % KERN_PAGE, x);
        for (int64_t d = 0; d < vw; d++) {
            sum[d] += w * (double)x[d];
            sum[vw + d] += w * fabs((double)x[d]);
        }
    }
    if (a->sink)
        l += exp((double)a->sink[head] - top);
    double u = ldexp(1, -24), n = (double)(pos + 1 - from);
    double both = 2 * rounding + rounding * rounding;
    double bound =
        expm1(2 * ((double)(kw + 2) * u + both) * mass) * (1 + both) + both + (n + n / 4 + 40) * u;
    for (int64_t d = 0; d < vw && !n_bad; d++) {
        double got = (double)t->want[row * a->out_stride + head * vw + d];
        if (!(fabs(got - sum[d] / l) <= bound * sum[vw + d] / l)) {
            printf("plain attention: row %d [%d] is %.9g, not %.9g (bound %.3g)\n", (int)row,
                   (int)d, got, sum[d] / l, bound);
            n_bad = 1;
        }
    }
    mem_free(x);
    mem_free(sum);
    mem_free(score);
    return n_bad;
}

static int run_trial(struct kern_attend a, const struct kern_attend_table *law, struct noise *r,
                     int kind, uint32_t cpu)
{
    struct trial t = {.a = a};
    int n_bad = 0;
    if (!prepare(&t, r, kind)) {
        release(&t);
        return 1;
    }
    wipe(&t);
    law->rows(&t.a, t.scratch);
    memcpy(t.want, t.out, (size_t)t.n_out * sizeof *t.out);
    if (kind != 2)
        n_bad += check_truth(&t, law == sets[0].law ? 0 : ldexp(1, -9), r);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].law == law && (sets[i].needs & ~cpu) == 0)
            n_bad += check_set(&t, &sets[i], r);
    int64_t row = noise_below(r, a.n_rows), head = noise_below(r, a.n_heads);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].law == law && (sets[i].needs & ~cpu) == 0)
            n_bad += check_blind(&t, &sets[i], row, head);
    release(&t);
    return n_bad;
}

/* Blocks written by each set, in pieces, decoded, against plain C. */
static int check_write(struct noise *r, uint32_t cpu)
{
    enum { WIDE = 512 };
    static float rows[KERN_PAGE * WIDE], want[WIDE], got[WIDE];
    size_t bytes = WIDE * KERN_PAGE * 4;
    uint8_t *block = take(2 * bytes);
    int n_bad = !block;
    static const int64_t widths[] = {4, 16, 32, 36, 64, 96, 256, 512};
    for (int round = 0; round < 64 && !n_bad; round++) {
        enum kern_kv_codec c = (enum kern_kv_codec)(round % KERN_KV_BLOCK_CODECS);
        bool key = round / KERN_KV_BLOCK_CODECS % 2;
        int64_t width = widths[round / 8];
        size_t need = kern_kv_block_bytes(c, key, width);
        if (!need)
            continue;
        float size = ldexpf(1.0f, (int)noise_below(r, 60) - 40);
        for (int i = 0; i < KERN_PAGE * WIDE; i++)
            rows[i] = noise_unit(r) * size;
        for (int i = 0; i < 20; i++)
            rows[noise_below(r, KERN_PAGE * WIDE)] = i < 4 ? NAN : i < 8 ? INFINITY : 70000.0f;
        for (int i = 0; i < 2; i++) /* groups of zeros */
            memset(rows + noise_below(r, KERN_PAGE * WIDE - 64), 0, 64 * sizeof *rows);
        for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
            if ((sets[i].needs & ~cpu) != 0)
                continue;
            memset(block, 0x77, 2 * bytes);
            sets[0].t->kv_write(c, key, width, block, 0, rows, KERN_PAGE, WIDE);
            for (int64_t slot = 0, n; slot < KERN_PAGE; slot += n) {
                n = 1 + noise_below(r, KERN_PAGE - slot);
                sets[i].t->kv_write(c, key, width, block + bytes, slot, rows + slot * WIDE, n,
                                    WIDE);
            }
            for (int64_t slot = 0; slot < KERN_PAGE && !n_bad; slot++) {
                kern_kv_read(c, key, width, block, slot, want);
                kern_kv_read(c, key, width, block + bytes, slot, got);
                for (int64_t k = 0; k < width && !n_bad; k++)
                    if (!noise_same(want[k], got[k])) {
                        printf("%s: %s of width %d written: slot %d [%d] is %.9g, not %.9g\n",
                               sets[i].name, kern_kv_name(c), (int)width, (int)slot, (int)k,
                               (double)got[k], (double)want[k]);
                        n_bad = 1;
                    }
            }
            for (size_t j = need; j < bytes; j++)
                n_bad += block[j] != 0x77 || block[bytes + j] != 0x77;
        }
    }
    mem_big_free(block, 2 * bytes);
    return n_bad;
}

/* Whether cpu has more of a law than its plain C. */
static bool has_kernel(const struct kern_attend_table *law, uint32_t cpu)
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].law == law && sets[i].t != law && (sets[i].needs & ~cpu) == 0)
            return true;
    return false;
}

int check_attend(uint64_t seed, uint32_t cpu)
{
    static const int64_t widths[] = {16, 32, 64, 256, 512, 4, 20, 100, 128, 80};
    static const int64_t at[] = {0,    1,    15,   31,   32,   100,  126,  127,  128,  129,
                                 1000, 2046, 2047, 2048, 2049, 4095, 4096, 4100, 6200, 300};
    static const int64_t windows[] = {0, 1, 24, 128, 1024};
    struct noise r = {seed};
    int n_bad = check_write(&r, cpu);
    const struct kern_attend_table *const fast = sets[sizeof sets / sizeof *sets - 1].law;
    /* plain C's cuts alone: at each of the places once */
    const int step = has_kernel(fast, cpu) ? 1 : 3;
    for (int i = 0; i < 240 && n_bad < 10; i += i < 160 ? 1 : step) {
        const struct kern_attend_table *law = i < 160 ? sets[0].law : fast;
        struct kern_attend a = {
            .k_width = widths[noise_below(&r, 10)],
            .k_codec = (enum kern_kv_codec)noise_below(&r, KERN_KV_BLOCK_CODECS),
            .v_codec = (enum kern_kv_codec)noise_below(&r, KERN_KV_BLOCK_CODECS),
            .pos0 = at[i % 20],
            .window = windows[i / 20 % 5],
            .n_heads = 1 + noise_below(&r, noise_below(&r, 4) ? 9 : 33)};
        a.v_width = noise_below(&r, 3) ? a.k_width : widths[noise_below(&r, 10)];
        if (!kern_kv_block_bytes(a.k_codec, true, a.k_width))
            a.k_codec = KERN_KV_F32;
        if (!kern_kv_block_bytes(a.v_codec, false, a.v_width))
            a.v_codec = KERN_KV_F16;
        int64_t seen = (a.window ? num_min(a.window, a.pos0) : a.pos0) + 40;
        if (fence_sparse_trials())
            a.n_heads = num_min(a.n_heads, num_max(1, 2000000 / (seen * (a.k_width + a.v_width))));
        int64_t budget = (fence_sparse_trials() ? 1000000 : 3000000) /
                         (seen * (a.k_width + a.v_width) * a.n_heads);
        a.n_rows = 1 + noise_below(&r, num_max(1, num_min(budget, 200)));
        int kind = (int)noise_below(&r, 3);
        a.scale = (kind == 1 ? 1.0f : 2.0f) / sqrtf((float)a.k_width);
        n_bad += run_trial(a, law, &r, kind, cpu);
    }
    return n_bad;
}
