/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_coded - attention over coded keys and values: every kernel against plain C to the bit,
 * whole, in chunks, in splits, alone with NaN wherever a row must not look; and plain C against a
 * softmax in double precision over what the codes stand for.
 */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "kern/attend_coded.h"
#include "kern/math.h"
#include <math.h>

#define KERN_ATTEND(needs, table)
#define KERN_ATTEND_CODED(needs, table) extern const struct kern_attend_table table;
#include "kern/attend.inc"
#undef KERN_ATTEND_CODED

static const struct set {
    const char *name;
    uint32_t needs;
    const struct kern_attend_table *t;
} sets[] = {
#define KERN_ATTEND_CODED(needs, table) {#table, needs, &table},
#include "kern/attend.inc"
#undef KERN_ATTEND_CODED
#undef KERN_ATTEND
};

enum { MAX_PAGES = 64, MAX_WIDTH = 512, MAX_PAIRS = 64, N_SETS = sizeof sets / sizeof *sets };

struct trial {
    struct kern_attend a;
    struct kern_from_v from_v;
    const uint8_t *page[MAX_PAGES];
    uint8_t *mem;
    float *q, *out, *want, *state, *row, sink[64];
    void *scratch;
    size_t page_bytes, mem_bytes, scratch_bytes;
    int64_t n_out;
};

static void release(struct trial *t)
{
    mem_big_free(t->mem, t->mem_bytes);
    mem_big_free(t->scratch, t->scratch_bytes);
    mem_free(t->q);
    mem_free(t->out);
    mem_free(t->want);
    mem_free(t->state);
    mem_free(t->row);
}

static int64_t n_splits(const struct kern_attend *a)
{
    return (a->pos0 + a->n_rows - 1) / KERN_SPLIT + 1;
}

static bool take(struct trial *t)
{
    struct kern_attend *a = &t->a;
    const size_t kb = kern_kv_block_bytes(a->k_codec, true, a->k_width);
    a->k_at = 64;
    a->v_at = 64 + kb;
    t->page_bytes = 128 + kb + kern_kv_block_bytes(a->v_codec, false, a->v_width);
    t->mem_bytes = (size_t)num_div_up(a->pos0 + a->n_rows, KERN_PAGE) * t->page_bytes;
    t->scratch_bytes = kern_attend_scratch(a);
    a->q_stride = a->n_heads * a->k_width + 3;
    a->out_stride = a->n_heads * a->v_width + 5;
    t->n_out = a->n_rows * a->out_stride;
    t->mem = mem_big_alloc(t->mem_bytes);
    t->scratch = mem_big_alloc(t->scratch_bytes);
    t->q = mem_calloc((size_t)(a->n_rows * a->q_stride), sizeof *t->q);
    t->out = mem_calloc((size_t)t->n_out, sizeof *t->out);
    t->want = mem_calloc((size_t)t->n_out, sizeof *t->want);
    t->state =
        mem_calloc((size_t)(n_splits(a) * a->n_rows * a->n_heads * kern_attend_state(a->v_width)),
                   sizeof *t->state);
    t->row = mem_calloc(2 * MAX_WIDTH, sizeof *t->row);
    return t->mem && t->scratch && t->q && t->out && t->want && t->state && t->row;
}

static void put(struct trial *t, const struct set *s, int64_t pos, const float *k, const float *v)
{
    const struct kern_attend *a = &t->a;
    uint8_t *page = t->mem + (size_t)(pos / KERN_PAGE) * t->page_bytes;
    s->t->kv_write(a->k_codec, true, a->k_width, page + a->k_at, pos % KERN_PAGE, k, 1, 0);
    s->t->kv_write(a->v_codec, false, a->v_width, page + a->v_at, pos % KERN_PAGE, v, 1, 0);
}

static void fill(struct trial *t, struct noise *r, bool odd)
{
    struct kern_attend *a = &t->a;
    float *k = t->row, *v = t->row + MAX_WIDTH;
    memset(t->mem, 0xff, t->mem_bytes);
    for (int64_t pos = 0; pos < a->pos0 + a->n_rows; pos++) {
        const float big = noise_below(r, 8) ? 1.0f : noise_below(r, 8) ? 4.0f : 0.0f;
        for (int64_t i = 0; i < a->k_width; i++)
            k[i] = noise_unit(r) * big;
        for (int64_t i = 0; i < a->v_width; i++)
            v[i] = noise_unit(r) * big;
        if (odd && noise_below(r, 90) == 0)
            k[noise_below(r, a->k_width)] = noise_below(r, 2) ? INFINITY : NAN;
        if (odd && noise_below(r, 300) == 0)
            v[noise_below(r, a->v_width)] = noise_below(r, 2) ? NAN : 3e38f;
        put(t, &sets[0], pos, k, v);
    }
    for (int64_t i = 0; i < a->n_rows * a->q_stride; i++)
        t->q[i] = noise_unit(r);
    if (odd && noise_below(r, 3) == 0)
        t->q[noise_below(r, a->n_rows * a->q_stride)] = NAN;
    for (int64_t i = 0; i < MAX_PAGES; i++)
        t->page[i] =
            (size_t)i * t->page_bytes < t->mem_bytes ? t->mem + (size_t)i * t->page_bytes : NULL;
    for (int64_t i = 0; a->window && i < (a->pos0 - a->window + 1) / KERN_PAGE; i++)
        t->page[i] = NULL; /* nobody looks there */
    for (int i = 0; i < 64; i++)
        t->sink[i] = noise_unit(r) * 4.0f;
    a->sink = noise_below(r, 3) ? NULL : t->sink;
    a->page = t->page;
    a->q = t->q;
    a->out = t->out;
}

static int differ(const struct trial *t, const char *name, const char *what, int64_t r0, int64_t r1,
                  int64_t h0, int64_t h1)
{
    const struct kern_attend *a = &t->a;
    for (int64_t r = r0; r < r1; r++)
        for (int64_t i = h0 * a->v_width; i < h1 * a->v_width; i++) {
            const float want = t->want[r * a->out_stride + i], got = t->out[r * a->out_stride + i];
            if (noise_same(want, got))
                continue;
            printf("%s, %s: k %s %d, v %s %d, %d rows, %d heads, pos %d, window %d: row %d [%d] is "
                   "%.9g, not %.9g\n",
                   name, what, kern_kv_name(a->k_codec), (int)a->k_width, kern_kv_name(a->v_codec),
                   (int)a->v_width, (int)a->n_rows, (int)a->n_heads, (int)a->pos0, (int)a->window,
                   (int)r, (int)i, (double)got, (double)want);
            return 1;
        }
    return 0;
}

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

static int check_set(struct trial *t, const struct set *s, struct noise *r)
{
    const struct kern_attend *a = &t->a;
    int n_bad = 0;
    wipe(t);
    s->t->rows(a, t->scratch);
    n_bad += differ(t, s->name, "rows", 0, a->n_rows, 0, a->n_heads);
    for (int64_t i = 0; i < a->n_rows; i++)
        for (int64_t j = a->n_heads * a->v_width; j < a->out_stride; j++)
            n_bad += t->out[i * a->out_stride + j] != 12345.0f;
    wipe(t);
    for (int64_t i = 0; i < n_splits(a); i++) {
        float *state = t->state + i * a->n_rows * a->n_heads * kern_attend_state(a->v_width);
        const int64_t first = a->window && a->pos0 >= a->window ? a->pos0 - a->window + 1 : 0;
        if ((i + 1) * KERN_SPLIT > first)
            s->t->split(a, i, state, t->scratch);
        for (int64_t p = 0; (i + 1) * KERN_SPLIT <= first && p < a->n_rows * a->n_heads; p++) {
            state[p * kern_attend_state(a->v_width)] = -INFINITY;
            state[p * kern_attend_state(a->v_width) + 1] = 0.0f;
        }
    }
    s->t->merge(a, n_splits(a), t->state, t->scratch);
    n_bad += differ(t, s->name, "in splits", 0, a->n_rows, 0, a->n_heads);
    const int64_t r1 = noise_below(r, a->n_rows), h1 = noise_below(r, a->n_heads);
    wipe(t);
    for (int i = 0; i < 4; i++) {
        const struct kern_attend b =
            cut(a, i & 1 ? r1 : 0, i & 1 ? a->n_rows : r1, i & 2 ? h1 : 0, i & 2 ? a->n_heads : h1);
        if (b.n_rows && b.n_heads)
            s->t->rows(&b, t->scratch);
    }
    return n_bad + differ(t, s->name, "in chunks", 0, a->n_rows, 0, a->n_heads);
}

/* A row and head alone; then with NaN in all that it does not see. */
static int check_standalone(struct trial *t, uint32_t cpu, struct noise *r)
{
    const struct kern_attend *a = &t->a;
    const int64_t row = noise_below(r, a->n_rows), head = noise_below(r, a->n_heads),
                  pos = a->pos0 + row;
    const struct kern_attend one = cut(a, row, row + 1, head, head + 1);
    int n_bad = 0;
    for (int i = 0; i < MAX_WIDTH * 2; i++)
        t->row[i] = NAN;
    for (int64_t p = 0; p < a->pos0 + a->n_rows; p++)
        if (p > pos || (a->window && p <= pos - a->window))
            put(t, &sets[0], p, t->row, t->row);
    for (int i = 0; i < N_SETS; i++)
        if ((sets[i].needs & ~cpu) == 0) {
            wipe(t);
            sets[i].t->rows(&one, t->scratch);
            n_bad += differ(t, sets[i].name, "one row, NaN around", row, row + 1, head, head + 1);
        }
    return n_bad;
}

/* The key of a position as f64. */
static void true_key(const struct trial *t, int64_t pos, double *key)
{
    const struct kern_attend *a = &t->a;
    const struct kern_from_v *f = a->from_v;
    float x[MAX_WIDTH];
    if (a->k_codec != KERN_KV_FROM_V) {
        if (kern_kv_is_rot(a->k_codec))
            kern_attend_rot_key(a, t->page[pos / KERN_PAGE], pos % KERN_PAGE, x);
        else
            kern_kv_read(a->k_codec, true, a->k_width, t->page[pos / KERN_PAGE] + a->k_at,
                         pos % KERN_PAGE, x);
        for (int64_t i = 0; i < a->k_width; i++)
            key[i] = (double)x[i];
        return;
    }
    kern_kv_read(a->v_codec, false, a->v_width, t->page[pos / KERN_PAGE] + a->v_at, pos % KERN_PAGE,
                 x);
    for (int64_t i = 0; i < a->k_width; i++)
        key[i] = (double)x[i] * (double)f->weight[i];
    for (int64_t i = 0; i < f->n_pairs; i++) {
        const double y = key[i], z = key[i + f->half], angle = (double)pos * f->inv_freq[i];
        key[i] = y * cos(angle) - z * sin(angle);
        key[i + f->half] = z * cos(angle) + y * sin(angle);
    }
}

/* Queries and weights of bytes cost up to 2 % here, all else is f32. */
static int check_truth(struct trial *t, struct noise *r)
{
    const struct kern_attend *a = &t->a;
    const int64_t row = noise_below(r, a->n_rows), head = noise_below(r, a->n_heads),
                  pos = a->pos0 + row;
    const int64_t from = a->window && pos >= a->window ? pos - a->window + 1 : 0;
    const float *q = t->q + row * a->q_stride + head * a->k_width;
    double *score = mem_calloc((size_t)(pos + 1), sizeof *score), key[MAX_WIDTH],
           sum[MAX_WIDTH] = {0}, top = -HUGE_VAL, l = 0;
    float x[MAX_WIDTH];
    for (int64_t p = from; p <= pos; p++) {
        true_key(t, p, key);
        for (int64_t i = 0; i < a->k_width; i++)
            score[p] += (double)q[i] * key[i] * (double)a->scale;
        top = fmax(top, score[p]);
    }
    for (int64_t p = from; p <= pos; p++) {
        const double w = exp(score[p] - top);
        l += w;
        kern_kv_read(a->v_codec, false, a->v_width, t->page[p / KERN_PAGE] + a->v_at, p % KERN_PAGE,
                     x);
        for (int64_t d = 0; d < a->v_width; d++)
            sum[d] += w * (double)x[d];
    }
    if (a->sink)
        l += exp((double)a->sink[head] - top);
    double off = 0, all = 0;
    for (int64_t d = 0; d < a->v_width; d++) {
        const double e = (double)t->want[row * a->out_stride + head * a->v_width + d] - sum[d] / l;
        off += e * e;
        all += sum[d] / l * (sum[d] / l);
    }
    mem_free(score);
    const bool bytes = kern_kv_is_coded(a->k_codec) || kern_kv_is_coded(a->v_codec);
    const double bound = bytes ? 0.03 : 2e-5;
    if (off <= bound * bound * all || all == 0)
        return 0;
    printf("plain, k %s, v %s, width %d, pos %d: off by %.3g of the output (bound %.3g)\n",
           kern_kv_name(a->k_codec), kern_kv_name(a->v_codec), (int)a->k_width, (int)pos,
           sqrt(off / all), bound);
    return 1;
}

static int run_trial(struct kern_attend a, struct noise *r, bool odd, uint32_t cpu)
{
    struct trial t = {.a = a};
    float weight[MAX_WIDTH], slot[KERN_PAGE * MAX_WIDTH];
    double inv_freq[MAX_WIDTH / 2];
    int n_bad = 0;
    const int64_t n_pairs =
        kern_kv_is_rot(a.k_codec) ? a.k_width / 8 : a.k_width / 2 / (1 + noise_below(r, 4));
    for (int64_t i = 0; i < a.k_width; i++)
        weight[i] = 0.5f + noise_unit(r) * 0.4f;
    for (int64_t i = 0; i < n_pairs; i++)
        inv_freq[i] = pow(10000, -2.0 * (double)i / (double)a.k_width);
    for (int64_t j = 0; j < KERN_PAGE; j++)
        kern_rope_angles(slot + j * n_pairs * 2, j, inv_freq, n_pairs);
    t.from_v = (struct kern_from_v){.weight = weight,
                                    .inv_freq = inv_freq,
                                    .slot = slot,
                                    .n_pairs = n_pairs,
                                    .half = a.k_width / 2};
    t.a.from_v = a.k_codec == KERN_KV_FROM_V || kern_kv_is_rot(a.k_codec) ? &t.from_v : NULL;
    if (!take(&t)) {
        release(&t);
        return 1;
    }
    fill(&t, r, odd);
    sets[0].t->rows(&t.a, t.scratch);
    memcpy(t.want, t.out, (size_t)t.n_out * sizeof *t.out);
    if (!odd)
        n_bad += check_truth(&t, r);
    for (int i = 0; i < N_SETS; i++)
        if ((sets[i].needs & ~cpu) == 0)
            n_bad += check_set(&t, &sets[i], r);
    n_bad += check_standalone(&t, cpu, r);
    release(&t);
    return n_bad;
}

int check_attend_coded(uint64_t seed, uint32_t cpu)
{
    static const int64_t widths[] = {64, 128, 256, 512, 16, 32};
    static const int64_t at[] = {0,   1,   31,   32,   127,  128,  129,  200,  255,
                                 256, 257, 1000, 2047, 2048, 2100, 4095, 4096, 300};
    static const enum kern_kv_codec keys[] = {
        KERN_KV_Q8R,  KERN_KV_N4R,  KERN_KV_TQ3_0, KERN_KV_FROM_V,  KERN_KV_Q8R,    KERN_KV_F16,
        KERN_KV_Q8_0, KERN_KV_BF16, KERN_KV_F32,   KERN_KV_Q8R_ROT, KERN_KV_N4R_ROT};
    static const enum kern_kv_codec values[] = {KERN_KV_Q8R, KERN_KV_N4R,  KERN_KV_TQ3_0,
                                                KERN_KV_F16, KERN_KV_Q8_0, KERN_KV_BF16,
                                                KERN_KV_F32};
    struct noise r = {seed};
    int n_bad = 0;
    for (int i = 0; i < (fence_sparse_trials() ? 20 : 33) && n_bad < 10; i++) {
        struct kern_attend a = {.k_width = widths[noise_below(&r, 6)],
                                .k_codec = keys[i % 11],
                                .v_codec = values[noise_below(&r, 7)],
                                .pos0 = at[i % 18],
                                .window = noise_below(&r, 4) ? 0 : 1 + noise_below(&r, 500),
                                .n_heads = 1 + noise_below(&r, noise_below(&r, 4) ? 9 : 17)};
        a.v_width = a.k_width;
        if (a.k_codec == KERN_KV_FROM_V)
            a.v_codec = values[3 + noise_below(&r, 4)];
        if (!kern_kv_needs_coded(a.k_codec, a.v_codec))
            a.v_codec = KERN_KV_N4R;
        if (kern_kv_is_rot(a.k_codec)) {
            a.v_codec = noise_below(&r, 2) ? KERN_KV_Q8R_ROT : KERN_KV_N4R_ROT;
            a.k_width = a.v_width = 64 << noise_below(&r, 4);
        }
        if (a.k_codec == KERN_KV_TQ3_0 || a.v_codec == KERN_KV_TQ3_0)
            a.k_width = a.v_width = 128 << noise_below(&r, 3);
        if (a.k_width < 32)
            a.k_width = a.v_width =
                a.k_codec == KERN_KV_Q8_0 || a.v_codec == KERN_KV_Q8_0 ? 32 : a.k_width;
        const int64_t seen = (a.window ? num_min(a.window, a.pos0) : a.pos0) + 40;
        const int64_t budget =
            (fence_sparse_trials() ? 100000 : 200000) / (seen * a.k_width * a.n_heads);
        a.n_rows = 1 + noise_below(&r, num_max(1, num_min(budget, 60)));
        a.scale = 1.0f / sqrtf((float)a.k_width);
        n_bad += run_trial(a, &r, i % 3 == 2, cpu);
    }
    return n_bad;
}
