/* SPDX-License-Identifier: Apache-2.0 */
/* check_select - the choice of pages: every kernel against plain C to the bit, whole, in pieces and
 * head by head; plain C against double precision with a dense Hadamard matrix; NaN behind the row's
 * position. */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "kern/kern.h"
#include "quant/quant.h"
#include <math.h>

#define KERN_ATTEND(needs, table)
#define KERN_SELECT(needs, table) extern const struct kern_select_table table;
#include "kern/attend.inc"
#undef KERN_SELECT

static const struct set {
    const char *name;
    uint32_t needs;
    const struct kern_select_table *t;
} sets[] = {
#define KERN_SELECT(needs, table) {#table, needs, &table},
#include "kern/attend.inc"
#undef KERN_SELECT
#undef KERN_ATTEND
};

enum { N_SETS = sizeof sets / sizeof *sets, MAX_PAGES = 12 };

struct trial {
    struct kern_select_task t;
    const uint8_t *page[MAX_PAGES];
    uint8_t *mem;
    float *q, *mass, *want, *state, *want_state;
    void *scratch;
    size_t page_bytes, scratch_bytes;
    int64_t n_pages, n_mass, n_state;
    int32_t chosen[MAX_PAGES];
    int64_t n_chosen;
};

static void release(struct trial *x)
{
    mem_big_free(x->mem, x->page_bytes * MAX_PAGES);
    mem_big_free(x->scratch, x->scratch_bytes);
    float *const each[] = {x->q, x->mass, x->want, x->state, x->want_state};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        mem_free(each[i]);
}

static bool take(struct trial *x, struct noise *r, bool odd)
{
    struct kern_select_task *t = &x->t;
    float key[KERN_KV_WIDE];
    x->n_pages = t->pos / KERN_PAGE + 1;
    t->at = 64;
    x->page_bytes = 64 + kern_select_bytes(t->k_width, t->v_width, &t->mean_at);
    t->mean_at += 64;
    x->scratch_bytes = kern_select_scratch(t->k_width, t->n_heads);
    x->n_mass = t->n_heads * x->n_pages * 2;
    x->n_state = t->n_heads * kern_attend_state(t->v_width);
    x->mem = mem_big_alloc(x->page_bytes * MAX_PAGES);
    x->scratch = mem_big_alloc(x->scratch_bytes);
    x->q = mem_calloc((size_t)(t->n_heads * t->k_width), sizeof *x->q);
    x->mass = mem_calloc((size_t)x->n_mass, sizeof *x->mass);
    x->want = mem_calloc((size_t)x->n_mass, sizeof *x->want);
    x->state = mem_calloc((size_t)x->n_state, sizeof *x->state);
    x->want_state = mem_calloc((size_t)x->n_state, sizeof *x->want_state);
    if (!x->mem || !x->scratch || !x->q || !x->mass || !x->want || !x->state || !x->want_state)
        return false;
    for (int64_t i = 0; i < MAX_PAGES; i++)
        x->page[i] = x->mem + (size_t)i * x->page_bytes;
    for (int64_t pos = 0; pos < x->n_pages * KERN_PAGE; pos++) {
        uint8_t *page = x->mem + (size_t)(pos / KERN_PAGE) * x->page_bytes;
        const float big = noise_below(r, 9) ? 1.0f : 3.0f;
        for (int64_t i = 0; i < t->k_width; i++)
            key[i] = pos > t->pos ? NAN : noise_unit(r) * big;
        if (odd && noise_below(r, 200) == 0)
            key[noise_below(r, t->k_width)] = noise_below(r, 2) ? INFINITY : NAN;
        kern_kv_codes_write(KERN_KV_N4R, true, t->k_width, page + t->at, pos % KERN_PAGE, key, 1,
                            t->k_width);
        for (int64_t d = 0; d < t->v_width && pos % KERN_PAGE == 0; d++)
            ((float *)(void *)(page + t->mean_at))[d] = noise_unit(r);
    }
    for (int64_t i = 0; i < t->n_heads * t->k_width; i++)
        x->q[i] = noise_unit(r) * 2.0f;
    t->shadow = x->page;
    t->q = x->q;
    for (int64_t i = 0; i < x->n_pages; i++)
        if (noise_below(r, 2))
            x->chosen[x->n_chosen++] = (int32_t)i;
    return true;
}

static int differ(const struct trial *x, const char *name, const char *what, const float *want,
                  const float *got, int64_t n)
{
    const int64_t step = kern_attend_state(x->t.v_width);
    for (int64_t i = 0; i < n; i++)
        if (!noise_same(want[i], got[i]) && (n == x->n_mass || i % step < x->t.v_width + 2)) {
            printf("%s, %s: width %d, %d heads, pos %d: [%d] is %.9g, not %.9g\n", name, what,
                   (int)x->t.k_width, (int)x->t.n_heads, (int)x->t.pos, (int)i, (double)got[i],
                   (double)want[i]);
            return 1;
        }
    return 0;
}

static void wipe(float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = 12345.0f;
}

static int check_set(struct trial *x, const struct set *s, struct noise *r)
{
    const struct kern_select_task *t = &x->t;
    int n_bad = 0;
    wipe(x->mass, x->n_mass);
    s->t->mass(t, 0, x->n_pages, x->n_pages, x->mass, x->scratch);
    n_bad += differ(x, s->name, "masses", x->want, x->mass, x->n_mass);
    wipe(x->mass, x->n_mass);
    for (int64_t at = 0, n; at < x->n_pages; at += n) {
        n = 1 + noise_below(r, x->n_pages - at);
        s->t->mass(t, at, at + n, x->n_pages, x->mass, x->scratch);
    }
    n_bad += differ(x, s->name, "masses in pieces", x->want, x->mass, x->n_mass);
    wipe(x->mass, x->n_mass);
    for (int64_t h = 0; h < t->n_heads; h++) {
        struct kern_select_task one = *t;
        one.q += h * t->k_width;
        one.n_heads = 1;
        s->t->mass(&one, 0, x->n_pages, x->n_pages, x->mass + h * x->n_pages * 2, x->scratch);
    }
    n_bad += differ(x, s->name, "masses by head", x->want, x->mass, x->n_mass);
    s->t->rest(t, x->want, x->n_pages, x->chosen, x->n_chosen, x->state);
    return n_bad + differ(x, s->name, "the rest", x->want_state, x->state, x->n_state);
}

/* Entry of the Hadamard matrix. */
static double sign(int64_t i, int64_t j)
{
    int odd = 0;
    for (int64_t b = i & j; b; b &= b - 1)
        odd ^= 1;
    return odd ? -1 : 1;
}

static int check_truth(const struct trial *x, struct noise *r)
{
    const struct kern_select_task *t = &x->t;
    const int64_t h = noise_below(r, t->n_heads), width = t->k_width,
                  page = noise_below(r, x->n_pages), group = width < 128 ? width : 128;
    double y[KERN_KV_WIDE], top = 0, best = -HUGE_VAL, sum = 0, score[KERN_PAGE];
    int n_bad = 0;
    for (int64_t i = 0; i < width; i++) {
        y[i] = 0;
        for (int64_t j = 0; j < width; j++)
            y[i] += sign(i, j) * (double)t->q[h * width + j];
        y[i] /= sqrt((double)width);
        top = fmax(top, fabs(y[i]));
    }
    const int64_t n = num_min(KERN_PAGE, t->pos + 1 - page * KERN_PAGE);
    for (int64_t s = 0; s < n; s++) {
        uint16_t norm[KERN_KV_WIDE / KERN_KV_GROUP];
        int8_t code[KERN_KV_WIDE];
        kern_kv_codes_read(KERN_KV_N4R, true, width, x->page[page] + t->at, s, norm, code);
        score[s] = 0;
        for (int64_t i = 0; i < width; i++)
            score[s] += rint(y[i] / (top / 127)) * kern_n4r_level[code[i]] *
                        (double)quant_f16_to_f32(norm[i / group]) * (top / 127) * (double)t->scale;
        best = fmax(best, score[s]);
    }
    for (int64_t s = 0; s < n; s++)
        sum += exp(score[s] - best);
    const float *m = x->want + (h * x->n_pages + page) * 2;
    /* A number at the border of two codes may go either way: one code of 127 in a score of a
     * few. */
    const double got = (double)m[0] + log((double)m[1]), want = best + log(sum), bound = 2.0 / 127;
    if (!(fabs(got - want) <= bound)) {
        printf("plain: width %d, pos %d, page %d: mass %.6g, not %.6g\n", (int)width, (int)t->pos,
               (int)page, got, want);
        n_bad++;
    }
    double l = 0, acc = 0, max = -HUGE_VAL;
    const int64_t d = noise_below(r, t->v_width);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0, k = 0; i < x->n_pages; i++) {
            const float *each = x->want + (h * x->n_pages + i) * 2;
            if (k < x->n_chosen && x->chosen[k] == i) {
                k++;
                continue;
            }
            const double w = pass ? (double)each[1] * exp((double)each[0] - max) : 0;
            max = pass ? max : fmax(max, (double)each[0]);
            l += w;
            acc += w * (double)((const float *)(const void *)(x->page[i] + t->mean_at))[d];
        }
    const float *state = x->want_state + h * kern_attend_state(t->v_width);
    if (!(fabs((double)state[1] - l) <= 1e-5 * (1 + l)) ||
        !(fabs((double)state[2 + d] - acc) <= 1e-5 * (1 + l))) {
        printf("plain: the rest is %.6g, %.6g, not %.6g, %.6g\n", (double)state[1],
               (double)state[2 + d], l, acc);
        n_bad++;
    }
    return n_bad;
}

int check_select(uint64_t seed, uint32_t cpu)
{
    static const int64_t widths[] = {512, 64, 16, 128, 256, 32};
    static const int64_t at[] = {0, 1, 15, 127, 128, 300, 511, 512, 777, 1024, 1279};
    struct noise r = {seed};
    int n_bad = 0;
    for (int i = 0; i < (fence_sparse_trials() ? 8 : 13) && n_bad < 10; i++) {
        const bool odd = i % 3 == 2;
        struct trial x = {.t = {.k_width = widths[i % 6],
                                .pos = at[i % 11],
                                .n_heads = 1 + noise_below(&r, noise_below(&r, 4) ? 9 : 17)}};
        x.t.v_width = i % 4 ? x.t.k_width : 32;
        x.t.scale = 1.0f / sqrtf((float)x.t.k_width);
        if (!take(&x, &r, odd)) {
            release(&x);
            return 1;
        }
        sets[0].t->mass(&x.t, 0, x.n_pages, x.n_pages, x.want, x.scratch);
        sets[0].t->rest(&x.t, x.want, x.n_pages, x.chosen, x.n_chosen, x.want_state);
        if (!odd)
            n_bad += check_truth(&x, &r);
        for (int s = 0; s < N_SETS; s++)
            if ((sets[s].needs & ~cpu) == 0)
                n_bad += check_set(&x, &sets[s], &r);
        release(&x);
    }
    return n_bad;
}
