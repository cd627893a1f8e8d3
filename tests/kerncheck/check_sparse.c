/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_sparse - attention to few positions: every kernel against plain C to the bit (values, what
 * was missed, what was kept), whole, in splits, in chunks, and alone with NaN wherever a row must
 * not look; plain C against double precision, and the bound of every row.
 */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "kern/attend_coded.h"
#include "kern/kern.h"
#include "quant/quant.h"
#include <math.h>

#define KERN_ATTEND(needs, table)
#define KERN_ATTEND_SPARSE(needs, table) extern const struct kern_sparse_table table;
#include "kern/attend.inc"
#undef KERN_ATTEND_SPARSE

static const struct set {
    const char *name;
    uint32_t needs;
    const struct kern_sparse_table *t;
} sets[] = {
#define KERN_ATTEND_SPARSE(needs, table) {#table, needs, &table},
#include "kern/attend.inc"
#undef KERN_ATTEND_SPARSE
#undef KERN_ATTEND
};

extern const struct kern_attend_table kern_attend_coded_ref;

enum { MAX_PAGES = 64, N_SETS = sizeof sets / sizeof *sets, GUARD = 64 };
enum kind { RANDOM, PLANTED, ODD, KINDS };

struct trial {
    struct kern_sparse_task f;
    struct kern_from_v from_v;
    const uint8_t *page[MAX_PAGES];
    uint8_t whole[MAX_PAGES];
    uint8_t *mem;
    float *q, *out, *want, *missed, *want_missed, *state, *first, *row;
    int32_t *kept, *want_kept;
    uint8_t *scratch;
    size_t page_bytes, mem_bytes, scratch_bytes;
    int64_t n_out, n_pairs;
    float weight[KERN_KV_WIDE], slot[KERN_PAGE * KERN_KV_WIDE];
    double inv_freq[KERN_KV_WIDE / 2];
};

static void release(struct trial *t)
{
    mem_big_free(t->mem, t->mem_bytes);
    mem_big_free(t->scratch, t->scratch_bytes + GUARD);
    float *const floats[] = {t->q,           t->out,   t->want,  t->missed,
                             t->want_missed, t->state, t->first, t->row};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        mem_free(floats[i]);
    mem_free(t->kept);
    mem_free(t->want_kept);
    mem_free(t);
}

static int64_t n_splits(const struct kern_attend *a)
{
    return (a->pos0 + a->n_rows - 1) / KERN_SPLIT + 1;
}

static float *floats(int64_t n) { return mem_calloc((size_t)n, sizeof(float)); }

static bool take(struct trial *t)
{
    struct kern_attend *a = &t->f.attend;
    const size_t kb = kern_kv_block_bytes(a->k_codec, true, a->k_width);
    a->k_at = 64;
    a->v_at = 64 + kb;
    t->page_bytes = 128 + kb + kern_kv_block_bytes(a->v_codec, false, a->v_width);
    t->mem_bytes = (size_t)num_div_up(a->pos0 + a->n_rows, KERN_PAGE) * t->page_bytes;
    t->scratch_bytes = kern_sparse_scratch(a);
    a->q_stride = a->n_heads * a->k_width + 3;
    a->out_stride = a->n_heads * a->v_width + 5;
    t->f.pair_stride = a->n_heads + 2;
    t->n_out = a->n_rows * a->out_stride;
    t->n_pairs = a->n_rows * t->f.pair_stride;
    t->mem = mem_big_alloc(t->mem_bytes);
    t->scratch = mem_big_alloc(t->scratch_bytes + GUARD);
    t->q = floats(a->n_rows * a->q_stride);
    t->out = floats(t->n_out);
    t->want = floats(t->n_out);
    t->missed = floats(t->n_pairs);
    t->want_missed = floats(t->n_pairs);
    t->kept = mem_calloc((size_t)t->n_pairs, sizeof *t->kept);
    t->want_kept = mem_calloc((size_t)t->n_pairs, sizeof *t->kept);
    t->state = floats(n_splits(a) * a->n_rows * a->n_heads * kern_sparse_state(a->v_width));
    t->first = floats(2 * a->n_rows * a->n_heads);
    t->row = floats(2 * KERN_KV_WIDE);
    return t->mem && t->scratch && t->q && t->out && t->want && t->missed && t->want_missed &&
           t->kept && t->want_kept && t->state && t->first && t->row;
}

static void put(struct trial *t, int64_t pos, const float *k, const float *v)
{
    const struct kern_attend *a = &t->f.attend;
    uint8_t *page = t->mem + (size_t)(pos / KERN_PAGE) * t->page_bytes;
    kern_attend_coded_ref.kv_write(a->k_codec, true, a->k_width, page + a->k_at, pos % KERN_PAGE, k,
                                   1, 0);
    kern_attend_coded_ref.kv_write(a->v_codec, false, a->v_width, page + a->v_at, pos % KERN_PAGE,
                                   v, 1, 0);
}

static void make_from_v(struct trial *t, struct noise *r)
{
    struct kern_attend *a = &t->f.attend;
    const int64_t n =
        kern_kv_is_rot(a->k_codec) ? a->k_width / 8 : a->k_width / 2 / (1 + noise_below(r, 4));
    for (int64_t i = 0; i < a->k_width; i++)
        t->weight[i] = 0.5f + noise_unit(r) * 0.4f;
    for (int64_t i = 0; i < n; i++)
        t->inv_freq[i] = pow(10000, -2.0 * (double)i / (double)a->k_width);
    for (int64_t j = 0; j < KERN_PAGE; j++)
        kern_rope_angles(t->slot + j * n * 2, j, t->inv_freq, n);
    t->from_v = (struct kern_from_v){.weight = t->weight,
                                     .inv_freq = t->inv_freq,
                                     .slot = t->slot,
                                     .n_pairs = n,
                                     .half = a->k_width / 2};
    a->from_v = a->k_codec == KERN_KV_FROM_V || kern_kv_is_rot(a->k_codec) ? &t->from_v : NULL;
}

static void fill(struct trial *t, struct noise *r, enum kind kind)
{
    struct kern_attend *a = &t->f.attend;
    float *k = t->row, *v = t->row + KERN_KV_WIDE;
    memset(t->mem, 0xff, t->mem_bytes);
    for (int64_t i = 0; i < a->n_rows * a->q_stride; i++)
        t->q[i] = noise_unit(r);
    const int64_t share = 1 + noise_below(r, 40);
    for (int64_t pos = 0; pos < a->pos0 + a->n_rows; pos++) {
        const bool hot = kind == PLANTED && noise_below(r, share) == 0;
        const float big = kind == PLANTED     ? 0.4f
                          : noise_below(r, 8) ? 1.0f
                          : noise_below(r, 8) ? 4.0f
                                              : 0.0f;
        for (int64_t i = 0; i < a->k_width; i++)
            k[i] = noise_unit(r) * big +
                   (hot ? 3.0f * t->q[i] : 0.0f); /* towards the first row's first head */
        for (int64_t i = 0; i < a->v_width; i++)
            v[i] = noise_unit(r);
        if (kind == ODD && noise_below(r, 700) == 0)
            k[noise_below(r, a->k_width)] = noise_below(r, 2) ? INFINITY : NAN;
        if (kind == ODD && noise_below(r, 200) == 0)
            v[noise_below(r, a->v_width)] = noise_below(r, 3)   ? NAN
                                            : noise_below(r, 2) ? INFINITY
                                                                : 3e38f;
        put(t, pos, k, v);
    }
    if (kind == ODD && noise_below(r, 3) == 0)
        t->q[noise_below(r, a->n_rows * a->q_stride)] = NAN;
    for (int64_t i = 0; i < MAX_PAGES; i++)
        t->page[i] =
            (size_t)i * t->page_bytes < t->mem_bytes ? t->mem + (size_t)i * t->page_bytes : NULL;
    a->page = t->page;
    a->q = t->q;
    a->out = t->out;
    t->f.missed = t->missed;
    t->f.kept = t->kept;
}

static void wipe(struct trial *t)
{
    for (int64_t i = 0; i < t->n_out; i++)
        t->out[i] = 12345.0f;
    for (int64_t i = 0; i < t->n_pairs; i++) {
        t->missed[i] = 12345.0f;
        t->kept[i] = 12345;
    }
    memset(t->scratch + t->scratch_bytes, 0x5a, GUARD);
}

static int differ(const struct trial *t, const char *name, const char *what, int64_t r0, int64_t r1,
                  int64_t h0, int64_t h1)
{
    const struct kern_attend *a = &t->f.attend;
    for (int64_t r = r0; r < r1; r++)
        for (int64_t h = h0; h < h1; h++) {
            const int64_t p = r * t->f.pair_stride + h;
            bool bad =
                !noise_same(t->missed[p], t->want_missed[p]) || t->kept[p] != t->want_kept[p];
            int64_t at = -1;
            for (int64_t i = h * a->v_width; i < (h + 1) * a->v_width && !bad; i++) {
                at = r * a->out_stride + i;
                bad = !noise_same(t->want[at], t->out[at]);
            }
            if (!bad)
                continue;
            printf("%s, %s: k %s %d, v %s %d, %d rows, %d heads, pos %d, eps %d: row %d, head %d: "
                   "missed %.9g, not %.9g, kept %d, not %d",
                   name, what, kern_kv_name(a->k_codec), (int)a->k_width, kern_kv_name(a->v_codec),
                   (int)a->v_width, (int)a->n_rows, (int)a->n_heads, (int)a->pos0, t->f.eps, (int)r,
                   (int)h, (double)t->missed[p], (double)t->want_missed[p], (int)t->kept[p],
                   (int)t->want_kept[p]);
            if (at >= 0)
                printf(", [%d] is %.9g, not %.9g", (int)(at - r * a->out_stride),
                       (double)t->out[at], (double)t->want[at]);
            printf("\n");
            return 1;
        }
    for (int i = 0; i < GUARD; i++)
        if (t->scratch[t->scratch_bytes + (size_t)i] != 0x5a) {
            printf("%s, %s: wrote behind its scratch\n", name, what);
            return 1;
        }
    return 0;
}

static struct kern_sparse_task cut(const struct kern_sparse_task *f, int64_t r0, int64_t r1,
                                   int64_t h0, int64_t h1)
{
    struct kern_sparse_task b = *f;
    b.attend.q += r0 * f->attend.q_stride + h0 * f->attend.k_width;
    b.attend.out += r0 * f->attend.out_stride + h0 * f->attend.v_width;
    b.missed += r0 * f->pair_stride + h0;
    b.kept += r0 * f->pair_stride + h0;
    b.attend.pos0 += r0;
    b.attend.n_rows = r1 - r0;
    b.attend.n_heads = h1 - h0;
    return b;
}

static int check_set(struct trial *t, const struct set *s, struct noise *r)
{
    const struct kern_attend *a = &t->f.attend;
    int n_bad = 0;
    wipe(t);
    s->t->rows(&t->f, t->scratch);
    n_bad += differ(t, s->name, "rows", 0, a->n_rows, 0, a->n_heads);
    for (int64_t i = 0; i < a->n_rows; i++)
        for (int64_t j = a->n_heads * a->v_width; j < a->out_stride; j++)
            n_bad += t->out[i * a->out_stride + j] != 12345.0f;
    for (int64_t i = 0; i < a->n_rows; i++)
        for (int64_t j = a->n_heads; j < t->f.pair_stride; j++)
            n_bad += t->missed[i * t->f.pair_stride + j] != 12345.0f ||
                     t->kept[i * t->f.pair_stride + j] != 12345;
    wipe(t);
    s->t->select(&t->f, t->first, t->scratch);
    for (int64_t i = n_splits(a) - 1; i >= 0; i--)
        s->t->split(&t->f, i, t->first,
                    t->state + i * a->n_rows * a->n_heads * kern_sparse_state(a->v_width),
                    t->scratch);
    s->t->merge(&t->f, n_splits(a), t->state, t->scratch);
    n_bad += differ(t, s->name, "in splits", 0, a->n_rows, 0, a->n_heads);
    const int64_t r1 = noise_below(r, a->n_rows), h1 = noise_below(r, a->n_heads);
    wipe(t);
    for (int i = 0; i < 4; i++) {
        const struct kern_sparse_task b = cut(&t->f, i & 1 ? r1 : 0, i & 1 ? a->n_rows : r1,
                                           i & 2 ? h1 : 0, i & 2 ? a->n_heads : h1);
        if (b.attend.n_rows && b.attend.n_heads)
            s->t->rows(&b, t->scratch);
    }
    return n_bad + differ(t, s->name, "in chunks", 0, a->n_rows, 0, a->n_heads);
}

/* A row and head alone; then with NaN in all that it does not see. */
static int check_standalone(struct trial *t, uint32_t cpu, struct noise *r)
{
    const struct kern_attend *a = &t->f.attend;
    const int64_t row = noise_below(r, a->n_rows), head = noise_below(r, a->n_heads),
                  pos = a->pos0 + row;
    const struct kern_sparse_task one = cut(&t->f, row, row + 1, head, head + 1);
    int n_bad = 0;
    for (int i = 0; i < 2 * KERN_KV_WIDE; i++)
        t->row[i] = NAN;
    for (int64_t p = pos + 1; p < a->pos0 + a->n_rows; p++)
        put(t, p, t->row, t->row);
    for (int i = 0; i < N_SETS; i++)
        if ((sets[i].needs & ~cpu) == 0) {
            wipe(t);
            sets[i].t->rows(&one, t->scratch);
            n_bad += differ(t, sets[i].name, "one row, NaN around", row, row + 1, head, head + 1);
        }
    return n_bad;
}

/* Scores of a row and head as sparse.h has them. */
static void scores_of(struct trial *t, int64_t row, int64_t head, float *s)
{
    const struct kern_attend *a = &t->f.attend;
    float q[KERN_KV_WIDE], key[KERN_KV_WIDE];
    int8_t x[KERN_KV_WIDE], y[KERN_KV_WIDE];
    memcpy(q, t->q + row * a->q_stride + head * a->k_width, (size_t)a->k_width * sizeof *q);
    kern_row_hadamard(q, a->k_width);
    const float by = kern_attend_coded_query(q, a->k_width, x) * a->scale;
    for (int64_t pos = 0; pos <= a->pos0 + row; pos++) {
        uint16_t scale;
        const uint8_t *page = t->page[pos / KERN_PAGE];
        int32_t dot = 0;
        if (a->k_codec == KERN_KV_Q8R) {
            kern_kv_codes_read(a->k_codec, true, a->k_width, page + a->k_at, pos % KERN_PAGE,
                               &scale, y);
        } else {
            kern_sparse_key(a, page, pos, key);
            kern_kv_round_q8r(key, a->k_width, &scale, y);
        }
        for (int64_t i = 0; i < a->k_width; i++)
            dot += x[i] * y[i];
        s[pos] = (float)dot * (by * quant_f16_to_f32(scale));
    }
}

/* Plain C against double precision from the same scores; a weight is off by the few units of exp
 * and of the distance to the maximum (at most 2^-24 of it, of some tens), sums over n positions by
 * n units. */
static int check_truth(struct trial *t, struct noise *r)
{
    const struct kern_attend *a = &t->f.attend;
    const int64_t row = noise_below(r, a->n_rows), head = noise_below(r, a->n_heads),
                  pos = a->pos0 + row;
    const int64_t pair = row * t->f.pair_stride + head;
    float *s = floats(pos + 1), x[KERN_KV_WIDE];
    double out[KERN_KV_WIDE] = {0}, size = 0, sum = 0, lost = 0, top = -HUGE_VAL, first = -HUGE_VAL,
           mass = 0, mean[KERN_KV_WIDE];
    int n_bad = 0, n_kept = 0, near = 0;
    if (!s)
        return 1;
    scores_of(t, row, head, s);
    for (int64_t p = 0; p <= pos; p++) {
        top = fmax(top, (double)s[p]);
        if (kern_sparse_always(pos, p / KERN_PAGE))
            first = fmax(first, (double)s[p]);
    }
    for (int64_t p = 0; p <= pos; p++)
        mass += kern_sparse_always(pos, p / KERN_PAGE) ? exp((double)s[p] - first) : 0.0;
    const double theta = first + log(ldexp(mass, -t->f.eps) / (double)(pos + 1));
    for (int64_t page = 0; page * KERN_PAGE <= pos; page++) {
        double gone = 0;
        memset(mean, 0, sizeof mean);
        for (int64_t p = page * KERN_PAGE; p <= pos && p < (page + 1) * KERN_PAGE; p++) {
            const double w = exp((double)s[p] - top);
            const bool all = kern_sparse_always(pos, page) || (t->f.whole && t->whole[page]);
            const bool keep = all || (double)s[p] > theta;
            near += !all && fabs((double)s[p] - theta) < 1e-4;
            n_kept += keep;
            sum += w;
            gone += keep ? 0 : w;
            kern_attend_coded_read(a->v_codec, false, a->v_width, t->page[page] + a->v_at,
                                   p % KERN_PAGE, x);
            for (int64_t d = 0; d < a->v_width; d++) {
                mean[d] += (double)x[d] / KERN_PAGE;
                out[d] += keep ? w * (double)x[d] : 0.0;
                size = fmax(size, fabs((double)x[d]));
            }
        }
        for (int64_t d = 0; d < a->v_width; d++)
            out[d] += gone * mean[d];
        lost += gone;
    }
    mem_free(s);
    for (int64_t d = 0; d < a->v_width; d++)
        x[d] = (float)(out[d] / sum);
    kern_kv_turn_back(a->v_codec, x, a->v_width);
    double off = 0, bound = 2e-6 + 1e-7 * sqrt((double)pos) + (near ? ldexp(1, -t->f.eps) : 0);
    for (int64_t d = 0; d < a->v_width; d++)
        off =
            fmax(off, fabs((double)(x[d] - t->want[row * a->out_stride + head * a->v_width + d])));
    n_bad += !(off <= bound * size * sqrt((double)a->v_width));
    n_bad += !(fabs(lost / sum - (double)t->want_missed[pair]) <= 1e-5 + (near ? 1 : 0));
    n_bad += near == 0 && n_kept != t->want_kept[pair];
    if (n_bad)
        printf("plain attention to few, k %s, v %s, width %d, pos %d: off by %.3g (bound %.3g), "
               "missed %.6g, not %.6g, kept %d, not %d\n",
               kern_kv_name(a->k_codec), kern_kv_name(a->v_codec), (int)a->k_width, (int)pos, off,
               bound * size, (double)t->want_missed[pair], lost / sum, (int)t->want_kept[pair],
               n_kept);
    return n_bad;
}

static int check_bound(const struct trial *t)
{
    int n_bad = 0;
    for (int64_t r = 0; r < t->f.attend.n_rows; r++)
        for (int64_t h = 0; h < t->f.attend.n_heads; h++)
            n_bad +=
                !(t->want_missed[r * t->f.pair_stride + h] <= ldexpf(1.0f, -t->f.eps) * 1.00001f);
    if (n_bad)
        printf("attention to few: %d pairs miss more than 2^-%d\n", n_bad, t->f.eps);
    return n_bad;
}

static int run_trial(const struct kern_attend *a, int eps, struct noise *r, enum kind kind,
                     uint32_t cpu)
{
    struct trial *t = mem_calloc(1, sizeof *t);
    int n_bad = 0;
    if (!t)
        return 1;
    t->f = (struct kern_sparse_task){.attend = *a, .eps = eps};
    make_from_v(t, r);
    if (!take(t)) {
        release(t);
        return 1;
    }
    fill(t, r, kind);
    /* pages with pictures, few or most */
    const int64_t one_in = 1 + noise_below(r, 4);
    for (int i = 0; i < MAX_PAGES; i++)
        t->whole[i] = noise_below(r, one_in) == 0;
    t->f.whole = noise_below(r, 2) ? t->whole : NULL;
    sets[0].t->rows(&t->f, t->scratch);
    memcpy(t->want, t->out, (size_t)t->n_out * sizeof *t->out);
    memcpy(t->want_missed, t->missed, (size_t)t->n_pairs * sizeof *t->missed);
    memcpy(t->want_kept, t->kept, (size_t)t->n_pairs * sizeof *t->kept);
    if (kind != ODD)
        n_bad += check_truth(t, r) + check_bound(t);
    for (int i = 0; i < N_SETS; i++)
        if ((sets[i].needs & ~cpu) == 0)
            n_bad += check_set(t, &sets[i], r);
    n_bad += check_standalone(t, cpu, r);
    release(t);
    return n_bad;
}

int check_sparse(uint64_t seed, uint32_t cpu)
{
    static const int64_t widths[] = {64, 128, 256, 512, 16, 32};
    static const int64_t at[] = {0,   1,    127,  128,  511,  512,  639,  640, 641,  767,
                                 768, 1000, 1151, 1279, 2047, 2048, 2100, 700, 2600, 900};
    static const enum kern_kv_codec keys[] = {
        KERN_KV_Q8R, KERN_KV_F16,  KERN_KV_FROM_V, KERN_KV_Q8R,     KERN_KV_F32,    KERN_KV_Q8_0,
        KERN_KV_N4R, KERN_KV_BF16, KERN_KV_TQ3_0,  KERN_KV_Q8R_ROT, KERN_KV_N4R_ROT};
    static const enum kern_kv_codec values[] = {KERN_KV_F16,  KERN_KV_Q8_0, KERN_KV_BF16,
                                                KERN_KV_F32,  KERN_KV_Q8R,  KERN_KV_N4R,
                                                KERN_KV_TQ3_0};
    struct noise r = {seed};
    int n_bad = 0;
    for (int i = 0; i < (fence_sparse_trials() ? 14 : 22) && n_bad < 10; i++) {
        struct kern_attend a = {.k_width = widths[noise_below(&r, 6)],
                                .k_codec = keys[i % 11],
                                .v_codec = values[noise_below(&r, 7)],
                                .pos0 = at[i % 20],
                                .n_heads = 1 + noise_below(&r, 9)};
        if (a.k_codec == KERN_KV_FROM_V)
            a.v_codec = values[noise_below(&r, 4)];
        const int64_t least = a.k_codec == KERN_KV_TQ3_0 || a.v_codec == KERN_KV_TQ3_0 ? 128 : 32;
        a.k_width = num_max(a.k_width, least);
        a.v_width = a.k_codec != KERN_KV_FROM_V && noise_below(&r, 4) == 0
                        ? num_max(widths[noise_below(&r, 6)], least)
                        : a.k_width;
        if (noise_below(&r, 8) == 0 && a.k_codec == KERN_KV_F16 && a.v_codec == KERN_KV_F16)
            a.k_width = a.v_width = 16;
        if (kern_kv_is_rot(a.k_codec)) {
            a.v_codec = noise_below(&r, 2) ? KERN_KV_Q8R_ROT : KERN_KV_N4R_ROT;
            a.k_width = a.v_width = 64 << noise_below(&r, 4);
        }
        const int64_t budget =
            (fence_sparse_trials() ? 30000 : 100000) / ((a.pos0 + 300) * a.k_width * a.n_heads);
        a.n_rows = 1 + noise_below(&r, num_max(1, num_min(budget, 150)));
        const enum kind kind = (enum kind)noise_below(&r, KINDS);
        a.scale = (kind == PLANTED ? 4.0f : 8.0f) / sqrtf((float)a.k_width);
        n_bad += run_trial(&a, (int)noise_below(&r, KERN_SPARSE_EPS_MOST + 1), &r, kind, cpu);
    }
    return n_bad;
}
