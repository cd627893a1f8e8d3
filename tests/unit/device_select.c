/* SPDX-License-Identifier: Apache-2.0 */
/* Attention to chosen pages on a device, against double precision: shadow keys, masses, the choice
 * and the output are computed anew from the keys and values that were appended; any batch and
 * number of threads gives the same bits; what is counted. */
#include "unit/unit.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "device/device.h"
#include "kerncheck/checks.h"
#include "quant/quant.h"
#include <math.h>
#include <stdlib.h>

enum {
    WIDTH = 32,
    HEADS = 2,
    GROUP = 3,
    QUERIES = HEADS * GROUP,
    PAGES = 11,
    CONTEXT = PAGES * KERN_PAGE - 40,
    ROWS = 9
};
enum { LINE = QUERIES * WIDTH, OWN = HEADS * WIDTH };
static const struct kern_select rule = {.part = 4, .least = KERN_SELECT_ALWAYS + 2};
/* 1023, 1087, 1279: p mod 64 = 63 */
static const int64_t positions[ROWS] = {900, 1023, 1024, 1087, 1090, 1200, 1279, 1350, CONTEXT - 1};

#define OK(call)                   \
    do {                           \
        if (call)                  \
            fail_msg("%s", e.msg); \
    } while (0)

struct world {
    struct device *d;
    struct device_kv kv;
    struct device_shadow shadow;
    size_t page_bytes, shadow_bytes;
    uint8_t *mem, *shadow_mem, *page[PAGES], *shadows[PAGES];
    float *k, *v, *q, *out; /* [CONTEXT][OWN], [ROWS][LINE] */
};

static float *noise(struct noise *r, int64_t n, float size)
{
    float *x = mem_calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = noise_unit(r) * size;
    return x;
}

static struct rows rows_of(float *x, int64_t at, int64_t n, int64_t width)
{
    return (struct rows){x + at * width, n, width, width};
}

static void append(struct world *w, int64_t at, int64_t n)
{
    const struct device_span own = {.n = n, .pos0 = at, .page = w->page},
                             to = {.n = n, .pos0 = at, .page = w->shadows};
    device_kv_append(w->d, &w->kv, &own, 1, rows_of(w->k, at, n, OWN), rows_of(w->v, at, n, OWN));
    device_shadow_append(w->d, &w->shadow, &w->kv, &to, &own, 1, rows_of(w->k, at, n, OWN));
}

static void open_world(struct world *w, int n_threads, uint32_t cpu)
{
    struct err e;
    struct noise r = {21};
    *w = (struct world){0};
    const struct device_options o = {.n_threads = n_threads, .cpu = cpu};
    OK(device_create(&w->d, &o, &e));
    const size_t block = kern_kv_block_bytes(KERN_KV_F32, true, WIDTH);
    w->kv = (struct device_kv){.k_codec = KERN_KV_F32,
                               .v_codec = KERN_KV_F32,
                               .n_heads = HEADS,
                               .k_width = WIDTH,
                               .v_width = WIDTH,
                               .at = 64,
                               .head_bytes = 2 * block,
                               .v_at = block};
    assert_null(device_select_refuses(w->d, &w->kv));
    w->page_bytes = 64 + HEADS * 2 * block;
    w->shadow.at = 128;
    w->shadow.head_bytes = kern_select_bytes(WIDTH, WIDTH, &w->shadow.mean_at);
    w->shadow_bytes = 128 + HEADS * w->shadow.head_bytes;
    w->mem = mem_big_alloc(w->page_bytes * PAGES);
    w->shadow_mem = mem_big_alloc(w->shadow_bytes * PAGES);
    assert_true(w->mem && w->shadow_mem);
    for (int i = 0; i < PAGES; i++) {
        w->page[i] = w->mem + (size_t)i * w->page_bytes;
        w->shadows[i] = w->shadow_mem + (size_t)i * w->shadow_bytes;
    }
    w->k = noise(&r, CONTEXT * OWN, 1.0f);
    w->v = noise(&r, CONTEXT * OWN, 1.0f);
    w->q = noise(&r, ROWS * LINE, 2.0f);
    w->out = noise(&r, ROWS * LINE, 1.0f);
    for (int64_t p = 0; p < CONTEXT; p++) /* pages differ */
        for (int64_t i = 0; i < OWN; i++)
            w->k[p * OWN + i] += 0.25f * (float)((p / KERN_PAGE * 7 + i * 5) % 11 - 5) / 5.0f;
    OK(device_arena_reserve(w->d, 64 << 20, &e));
    device_begin(w->d, NULL);
    for (int64_t at = 0, n; at < CONTEXT; at += n) { /* in cuts of all sizes */
        n = num_min(CONTEXT - at, 1 + noise_below(&r, 300));
        append(w, at, n);
    }
    OK(device_status(w->d, &e));
}

static void close_world(struct world *w)
{
    device_free(w->d);
    mem_big_free(w->mem, w->page_bytes * PAGES);
    mem_big_free(w->shadow_mem, w->shadow_bytes * PAGES);
    float *const each[] = {w->k, w->v, w->q, w->out};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        mem_free(each[i]);
}

/* Rows [first, first + n), at most DEVICE_SELECT_ROWS; each key/value head alone if one is set. */
static void attend(struct world *w, int64_t first, int64_t n, bool one,
                   struct kern_select_seen *seen, int32_t *chosen)
{
    struct err e;
    struct device_select_row row[DEVICE_SELECT_ROWS];
    struct device_page_select p = {.rule = &rule,
                             .shadow = w->shadow,
                             .n_heads = HEADS,
                             .k_width = WIDTH,
                             .v_width = WIDTH,
                             .row = row,
                             .n_rows = n,
                             .most = kern_select_budget(&rule, CONTEXT - 1),
                             .chosen = chosen};
    p.rest = mem_calloc((size_t)(n * QUERIES * kern_attend_state(WIDTH)), sizeof *p.rest);
    assert_non_null(p.rest);
    for (int64_t i = 0; i < n; i++)
        row[i] = (struct device_select_row){.row = i,
                                          .pos = positions[first + i],
                                          .shadow = w->shadows,
                                          .page = w->page,
                                          .seen = seen};
    const struct rows q = rows_of(w->q, first, n, LINE), out = rows_of(w->out, first, n, LINE);
    device_begin(w->d, NULL);
    device_select_pages(w->d, &p, q, QUERIES, 0.7f);
    if (!one)
        device_attend_selected(w->d, &w->kv, &p, 0, q, QUERIES, out, 0.7f);
    for (int64_t h = 0; one && h < HEADS; h++) {
        struct device_kv kv = w->kv;
        kv.n_heads = 1;
        kv.at += (size_t)h * kv.head_bytes;
        device_attend_selected(w->d, &kv, &p, h, rows_columns(q, h * GROUP * WIDTH, GROUP * WIDTH),
                             GROUP, rows_columns(out, h * GROUP * WIDTH, GROUP * WIDTH), 0.7f);
    }
    OK(device_status(w->d, &e));
    mem_free(p.rest);
}

/* ---- anew, in double precision ---- */

static double sign(int64_t i, int64_t j)
{
    int odd = 0;
    for (int64_t b = i & j; b; b &= b - 1)
        odd ^= 1;
    return odd ? -1 : 1;
}

static void turned(const float *x, double y[WIDTH])
{
    for (int64_t i = 0; i < WIDTH; i++) {
        y[i] = 0;
        for (int64_t j = 0; j < WIDTH; j++)
            y[i] += sign(i, j) * (double)x[j];
        y[i] /= sqrt(WIDTH);
    }
}

/* The 16 levels, and a head of 32 as one group: written from the specification. */
static void shadow_key(const float *k, double y[WIDTH])
{
    static const double level[16] = {-127, -96, -75, -58, -44, -30, -18, -6,
                                     6,    18,  30,  44,  58,  75,  96,  127};
    double g = 0, l = 0;
    turned(k, y);
    for (int i = 0; i < WIDTH; i++)
        g += y[i] * y[i];
    g = sqrt(g);
    for (int i = 0; i < WIDTH; i++) {
        int index = 0;
        while (index < 15 &&
               y[i] * (529 * sqrt(WIDTH / 128.0) / g) >= (level[index] + level[index + 1]) / 2)
            index++;
        y[i] = level[index];
        l += y[i] * y[i];
    }
    const double norm = (double)quant_f16_to_f32(quant_f32_to_f16((float)(g / sqrt(l))));
    for (int i = 0; i < WIDTH; i++)
        y[i] *= norm;
}

struct truth {
    int64_t n_pages, n;
    int32_t chosen[PAGES];
    double mass[GROUP][PAGES], share[PAGES], missed[GROUP], would[GROUP]; /* estimated; true */
    double out[GROUP][WIDTH];
    double margin; /* between the last that is chosen and the first that is not */
};

static void masses(const struct world *w, int64_t row, int64_t h, struct truth *t)
{
    const int64_t pos = positions[row];
    double shadow[WIDTH], y[GROUP][WIDTH], a[GROUP];
    for (int g = 0; g < GROUP; g++) {
        double top = 0;
        turned(w->q + row * LINE + (h * GROUP + g) * WIDTH, y[g]);
        for (int i = 0; i < WIDTH; i++)
            top = fmax(top, fabs(y[g][i]));
        a[g] = top / 127;
        for (int i = 0; i < WIDTH; i++)
            y[g][i] = rint(y[g][i] / a[g]);
    }
    for (int64_t p = 0; p <= pos; p++) {
        shadow_key(w->k + p * OWN + h * WIDTH, shadow);
        for (int g = 0; g < GROUP; g++) {
            double s = 0;
            for (int i = 0; i < WIDTH; i++)
                s += y[g][i] * shadow[i];
            t->mass[g][p / KERN_PAGE] += exp(s * a[g] * 0.7);
        }
    }
}

static void choose(const struct world *w, int64_t row, struct truth *t)
{
    (void)w;
    bool in[PAGES] = {false};
    t->n_pages = positions[row] / KERN_PAGE + 1;
    t->n = kern_select_budget(&rule, positions[row]);
    for (int g = 0; g < GROUP; g++) {
        double sum = 0;
        for (int64_t i = 0; i < t->n_pages; i++)
            sum += t->mass[g][i];
        for (int64_t i = 0; i < t->n_pages; i++)
            t->share[i] = fmax(t->share[i], t->mass[g][i] / sum);
    }
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_pages; i++)
        n += in[i] = i == 0 || i > t->n_pages - 1 - 4;
    double last = 2;
    for (; n < t->n; n++) {
        int64_t best = -1;
        for (int64_t i = 0; i < t->n_pages; i++)
            if (!in[i] && (best < 0 || t->share[i] > t->share[best]))
                best = i;
        in[best] = true;
        last = t->share[best];
    }
    t->margin = 1;
    for (int64_t i = 0, k = 0; i < t->n_pages; i++) {
        if (in[i])
            t->chosen[k++] = (int32_t)i;
        else
            t->margin = fmin(t->margin, last - t->share[i]);
    }
}

static void output(const struct world *w, int64_t row, int64_t h, struct truth *t)
{
    const int64_t pos = positions[row];
    const bool all = pos % 64 == 63;
    for (int g = 0; g < GROUP; g++) {
        const float *q = w->q + row * LINE + (h * GROUP + g) * WIDTH;
        double sum = 0, kept = 0, rest = 0;
        for (int64_t i = 0, k = 0; i < t->n_pages; i++) {
            const bool in = k < t->n && t->chosen[k] == i;
            const int64_t end = num_min(pos + 1, (i + 1) * KERN_PAGE);
            k += in;
            for (int64_t p = i * KERN_PAGE; p < end; p++) {
                double s = 0;
                for (int d = 0; d < WIDTH; d++)
                    s += (double)q[d] * (double)w->k[p * OWN + h * WIDTH + d];
                /* the mean of values */
                const double e = in || all ? exp(s * 0.7) : t->mass[g][i] / KERN_PAGE;
                sum += e;
                kept += in ? e : 0;
                rest += in ? 0 : e;
                for (int d = 0; d < WIDTH; d++)
                    t->out[g][d] += e * (double)w->v[p * OWN + h * WIDTH + d];
            }
        }
        for (int d = 0; d < WIDTH; d++)
            t->out[g][d] /= sum;
        t->missed[g] = all ? 0 : rest / sum;
        t->would[g] = all ? 1 - kept / sum : 0;
    }
}

static void against_double(void **state)
{
    (void)state;
    struct world w;
    int32_t chosen[DEVICE_SELECT_ROWS * HEADS * PAGES];
    double sum = 0, most = 0, sum_true = 0, most_true = 0;
    struct kern_select_seen seen = {0};
    open_world(&w, 2, UINT32_MAX);
    const int64_t budget = kern_select_budget(&rule, CONTEXT - 1);
    for (int64_t row = 0; row < ROWS; row++) {
        attend(&w, row, 1, false, &seen, chosen);
        for (int64_t h = 0; h < HEADS; h++) {
            struct truth t = {0};
            masses(&w, row, h, &t);
            choose(&w, row, &t);
            assert_true(t.margin > 1e-5); /* else float could choose otherwise: take another seed */
            assert_memory_equal(chosen + h * budget, t.chosen, (size_t)t.n * sizeof *chosen);
            output(&w, row, h, &t);
            for (int g = 0; g < GROUP; g++) {
                for (int d = 0; d < WIDTH; d++)
                    assert_true(fabs((double)w.out[row * LINE + (h * GROUP + g) * WIDTH + d] -
                                     t.out[g][d]) < 2e-5);
                sum += t.missed[g];
                most = fmax(most, t.missed[g]);
                sum_true += t.would[g];
                most_true = fmax(most_true, t.would[g]);
            }
        }
    }
    assert_true(most > 0.01 && most_true > 0.01);
    assert_int_equal(seen.rows, ROWS);
    assert_int_equal(seen.pairs, (ROWS - 3) * QUERIES);
    assert_int_equal(seen.checked, 3 * QUERIES);
    assert_true(fabs((double)seen.missed * 0x1p-32 - sum) < 1e-4 &&
                fabs((double)seen.most - most) < 1e-5);
    assert_true(fabs((double)seen.missed_true * 0x1p-32 - sum_true) < 1e-4 &&
                fabs((double)seen.most_true - most_true) < 1e-5);
    assert_int_equal(seen.bytes_read, seen.pages_read * 2 * KERN_PAGE * WIDTH * sizeof(float));
    close_world(&w);
}

static void same_bits(void **state)
{
    (void)state;
    static const struct {
        int threads;
        uint32_t cpu;
    } devices[] = {{1, 0}, {2, UINT32_MAX}, {5, CPU_AVX2}};
    float *want = NULL;
    struct kern_select_seen first = {0};
    int32_t chosen[DEVICE_SELECT_ROWS * HEADS * PAGES];
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        struct world w;
        open_world(&w, devices[i].threads, devices[i].cpu);
        for (int each = 1; each <= DEVICE_SELECT_ROWS; each += each == 1 ? 2 : 5) {
            struct kern_select_seen seen = {0};
            memset(w.out, 0, ROWS * LINE * sizeof *w.out);
            for (int64_t row = 0; row < ROWS; row += each)
                attend(&w, row, num_min(each, ROWS - row), each == 3, &seen, chosen);
            if (!want) {
                want = mem_calloc(ROWS * LINE, sizeof *want);
                assert_non_null(want);
                memcpy(want, w.out, ROWS * LINE * sizeof *want);
                first = seen;
            }
            assert_memory_equal(w.out, want, ROWS * LINE * sizeof *want);
            assert_memory_equal(&seen, &first, sizeof seen);
        }
        close_world(&w);
    }
    mem_free(want);
}

static void refused(void **state)
{
    (void)state;
    struct err e;
    struct device *d;
    OK(device_create(&d, &(struct device_options){.n_threads = 1, .numerics = DEVICE_REFERENCE},
                     &e));
    const struct device_kv kv = {
        .k_codec = KERN_KV_F16, .v_codec = KERN_KV_F16, .n_heads = 1, .k_width = 64, .v_width = 64};
    assert_non_null(strstr(device_select_refuses(d, &kv), "reference"));
    device_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(against_double),
                                       cmocka_unit_test(same_bits), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
