/* SPDX-License-Identifier: Apache-2.0 */
/* Attention to few positions: its plain form against vectors of another program, its bound, a
 * needle, what it refuses. */
#include "unit/unit.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "kern/kern.h"
#include "quant/quant.h"
#include "unit/xz.h"
#include <math.h>
#include <string.h>

extern const struct kern_sparse_table kern_sparse_ref;

enum { WIDTH = 64, POSITIONS = 1152, PAGES = POSITIONS / KERN_PAGE, VALUES = KERN_PAGE * WIDTH * 4,
       BLOCK = VALUES + KERN_PAGE * KERN_KV_WIDE * 4 };

/* Of tests/data/attend-few.bin: whole numbers n_rows, n_cases, width, positions; positions of rows;
 * keys and values f16 [positions][width]; queries f32 [2][n_rows][width]; cases. */
struct vectors {
    char *file;
    const char *at;
    int32_t n_rows, n_cases, row[16];
    const uint16_t *k, *v;
    const float *q;
    uint8_t *page[PAGES];
};

static void take(struct vectors *w, void *to, size_t n)
{
    memcpy(to, w->at, n);
    w->at += n;
}

static const void *pass_over(struct vectors *w, size_t n)
{
    const void *p = w->at;
    w->at += n;
    return p;
}

static int open_vectors(void **state)
{
    static struct vectors w;
    size_t n;
    int32_t head[4];
    w.file = test_slurp("tests/data/attend-few.bin", &n);
    if (!w.file)
        return 1;
    w.at = w.file;
    take(&w, head, sizeof head);
    w.n_rows = head[0];
    w.n_cases = head[1];
    if (head[2] != WIDTH || head[3] != POSITIONS || w.n_rows > 16)
        return 1;
    take(&w, w.row, (size_t)w.n_rows * sizeof *w.row);
    w.k = pass_over(&w, (size_t)POSITIONS * WIDTH * 2);
    w.v = pass_over(&w, (size_t)POSITIONS * WIDTH * 2);
    w.q = pass_over(&w, (size_t)2 * (size_t)w.n_rows * WIDTH * sizeof(float));
    for (int i = 0; i < PAGES; i++)
        if (!(w.page[i] = mem_big_alloc(BLOCK)))
            return 1;
    *state = &w;
    return 0;
}

static int close_vectors(void **state)
{
    struct vectors *w = *state;
    for (int i = 0; i < PAGES; i++)
        mem_big_free(w->page[i], BLOCK);
    mem_free(w->file);
    return 0;
}

/* One task of one row; values of any width stand behind the keys. */
static struct kern_sparse_task task_of(struct vectors *w, enum kern_kv_codec k, int64_t v_width)
{
    struct kern_attend_kernels t;
    float row[WIDTH];
    kern_attend_table_init(&t, 0);
    for (int64_t pos = 0; pos < POSITIONS; pos++) {
        for (int i = 0; i < WIDTH; i++)
            row[i] = quant_f16_to_f32(w->k[pos * WIDTH + i]);
        t.coded.kv_write(k, true, WIDTH, w->page[pos / KERN_PAGE], pos % KERN_PAGE, row, 1, WIDTH);
    }
    return (struct kern_sparse_task){.attend = {.k_codec = k,
                                             .v_codec = KERN_KV_F32,
                                             .k_width = WIDTH,
                                             .v_width = v_width,
                                             .page = (const uint8_t *const *)w->page,
                                             .v_at = VALUES,
                                             .q_stride = WIDTH,
                                             .out_stride = v_width,
                                             .n_rows = 1,
                                             .n_heads = 1,
                                             .scale = 1.0f},
                                  .pair_stride = 1};
}

/* The value of each position: f32 [width], or with NULL one in the dimension pos - first and zeros
 * else. */
static void put_values(struct vectors *w, int64_t width, int64_t first, const uint16_t *from)
{
    for (int64_t pos = 0; pos < POSITIONS; pos++) {
        float *v = (float *)(void *)(w->page[pos / KERN_PAGE] + VALUES) + pos % KERN_PAGE * width;
        for (int64_t d = 0; d < width; d++)
            v[d] = from ? quant_f16_to_f32(from[pos * width + d]) : pos - first == d ? 1.0f : 0.0f;
    }
}

/* A case: what it begins with, then its ranges. */
struct one {
    int32_t eps, head, pos;
    float missed, out[WIDTH];
    int32_t n_ranges;
};

static bool in_ranges(const char *ranges, int32_t n, int64_t pos)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t r[2];
        memcpy(r, ranges + (size_t)i * sizeof r, sizeof r);
        if (pos >= r[0] && pos < r[1])
            return true;
    }
    return false;
}

typedef void case_fn(struct vectors *w, struct kern_sparse_task *t, const struct one *c,
                     const char *ranges);

static void each_case(struct vectors *w, struct kern_sparse_task t, case_fn *fn)
{
    const char *at = w->at;
    for (int i = 0; i < w->n_cases; i++) {
        struct one c;
        memcpy(&c, at, sizeof c);
        at += sizeof c;
        int row = 0;
        while (w->row[row] != c.pos)
            row++;
        t.eps = c.eps;
        t.attend.pos0 = c.pos;
        t.attend.q = w->q + (c.head * w->n_rows + row) * WIDTH;
        fn(w, &t, &c, at);
        at += (size_t)c.n_ranges * 2 * sizeof(int32_t);
    }
}

static void *scratch_of(const struct kern_sparse_task *t)
{
    static _Alignas(64) float scratch[1024 * 1024];
    assert_true(kern_sparse_scratch(&t->attend) <= sizeof scratch);
    return scratch;
}

static void check_out(struct vectors *w, struct kern_sparse_task *t, const struct one *c,
                      const char *ranges)
{
    float out[WIDTH], missed, off = 0.0f, all = 0.0f;
    int32_t kept, want = 0;
    (void)w;
    t->attend.out = out;
    t->missed = &missed;
    t->kept = &kept;
    kern_sparse_ref.rows(t, scratch_of(t));
    for (int i = 0; i < WIDTH; i++) {
        off = fmaxf(off, fabsf(out[i] - c->out[i]));
        all = fmaxf(all, fabsf(c->out[i]));
    }
    for (int64_t pos = 0; pos <= c->pos; pos++)
        want += in_ranges(ranges, c->n_ranges, pos);
    assert_int_equal(kept, want);
    assert_true(off <= 2e-6f * all);
    assert_true(fabsf(missed - c->missed) <= 1e-5f * fmaxf(c->missed, 0.1f));
    assert_true(missed <= ldexpf(1.0f, -c->eps));
}

static void vectors_out(void **state)
{
    struct vectors *w = *state;
    /* all make the codes of the vectors */
    static const enum kern_kv_codec codecs[] = {KERN_KV_F16, KERN_KV_F32, KERN_KV_Q8R};
    for (int i = 0; i < 3; i++) {
        const struct kern_sparse_task t = task_of(w, codecs[i], WIDTH);
        put_values(w, WIDTH, 0, w->v);
        each_case(w, t, check_out);
    }
}

/* One key that scores +12 at each of so many places of a long text: out is within 2 % of exact
 * attention, plain and fast alike. */
enum { LONG = 4096, NEEDLES = UNIT_ASAN ? 50 : 1000 };

static float noise(uint32_t *r)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        *r = *r * 1664525u + 1013904223u;
        sum += (float)(*r >> 8) / (float)(1 << 24) - 0.5f;
    }
    return sum * 1.7320508f; /* of variance 1 */
}

static void needles(void **state)
{
    (void)state;
    static float key[LONG][WIDTH], value[LONG][WIDTH];
    uint8_t *page[LONG / KERN_PAGE];
    float q[WIDTH], planted[WIDTH], out[2][WIDTH], missed[2], square = 0.0f, worst = 0.0f;
    double weight[LONG], sum = 0, exact[WIDTH] = {0};
    int32_t kept[2];
    uint32_t r = 7;
    struct kern_attend_kernels t;
    struct kern_sparse_kernels fast;
    kern_attend_table_init(&t, 0);
    kern_sparse_table_init(&fast, cpu_detect());
    for (int d = 0; d < WIDTH; d++) {
        q[d] = noise(&r) * 0.2f; /* scores of a deviation of 1.6 */
        square += q[d] * q[d];
    }
    for (int d = 0; d < WIDTH; d++)
        planted[d] = q[d] * 12.0f / square;
    for (int64_t p = 0; p < LONG; p++) {
        if (p % KERN_PAGE == 0)
            assert_non_null(page[p / KERN_PAGE] = mem_big_alloc(BLOCK));
        double score = 0;
        for (int d = 0; d < WIDTH; d++) {
            key[p][d] = noise(&r);
            value[p][d] = noise(&r);
            score += (double)q[d] * (double)key[p][d];
        }
        weight[p] = exp(score);
        sum += weight[p];
        for (int d = 0; d < WIDTH; d++)
            exact[d] += weight[p] * (double)value[p][d];
        t.coded.kv_write(KERN_KV_F32, true, WIDTH, page[p / KERN_PAGE], p % KERN_PAGE, key[p], 1,
                         WIDTH);
        memcpy(page[p / KERN_PAGE] + VALUES + (size_t)(p % KERN_PAGE) * sizeof value[p], value[p],
               sizeof value[p]);
    }
    for (int i = 0; i < NEEDLES; i++) {
        const int64_t at = (int64_t)i * (LONG - 1) / NEEDLES;
        struct kern_sparse_task task = {.attend = {.k_codec = KERN_KV_F32,
                                                .v_codec = KERN_KV_F32,
                                                .k_width = WIDTH,
                                                .v_width = WIDTH,
                                                .page = (const uint8_t *const *)page,
                                                .v_at = VALUES,
                                                .q = q,
                                                .q_stride = WIDTH,
                                                .out_stride = WIDTH,
                                                .n_rows = 1,
                                                .n_heads = 1,
                                                .scale = 1.0f,
                                                .pos0 = LONG - 1},
                                     .eps = 3,
                                     .pair_stride = 1};
        t.coded.kv_write(KERN_KV_F32, true, WIDTH, page[at / KERN_PAGE], at % KERN_PAGE, planted, 1,
                         WIDTH);
        for (int k = 0; k < 2; k++) {
            task.attend.out = out[k];
            task.missed = &missed[k];
            task.kept = &kept[k];
            (k && fast.name ? &fast.table : &kern_sparse_ref)->rows(&task, scratch_of(&task));
        }
        t.coded.kv_write(KERN_KV_F32, true, WIDTH, page[at / KERN_PAGE], at % KERN_PAGE, key[at], 1,
                         WIDTH);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        assert_true(missed[0] == missed[1] && kept[0] == kept[1] && kept[0] < LONG &&
                    missed[0] > 0.0f);
        double off = 0, all = 0;
        for (int d = 0; d < WIDTH; d++) {
            const double want = (exact[d] + (exp(12.0) - weight[at]) * (double)value[at][d]) /
                                (sum + exp(12.0) - weight[at]);
            off += ((double)out[0][d] - want) * ((double)out[0][d] - want);
            all += want * want;
        }
        worst = fmaxf(worst, (float)sqrt(off / all));
    }
    if (worst > 0.02f)
        fail_msg("%g of the exact result", (double)worst);
    for (int64_t i = 0; i < LONG / KERN_PAGE; i++)
        mem_big_free(page[i], BLOCK);
}

static int64_t first_of_run;

/* Each position has a dimension of its own.  What positions of a page have in common comes from its
 * mean; one that is kept has more, all of a page that is kept as a whole have something. */
static void check_kept(struct vectors *w, struct kern_sparse_task *t, const struct one *c,
                       const char *ranges)
{
    float out[KERN_KV_WIDE], missed;
    int32_t kept;
    (void)w;
    t->attend.out = out;
    t->missed = &missed;
    t->kept = &kept;
    kern_sparse_ref.rows(t, scratch_of(t));
    for (int64_t page = first_of_run; page < first_of_run + KERN_KV_WIDE && page <= c->pos;
         page += KERN_PAGE) {
        const float *own = out + (page - first_of_run);
        float base = INFINITY;
        int64_t n = 0;
        for (int64_t j = 0; j < KERN_PAGE && page + j <= c->pos; j++) {
            n += in_ranges(ranges, c->n_ranges, page + j);
            base = fminf(base, own[j]);
        }
        for (int64_t j = 0; j < KERN_PAGE && page + j <= c->pos; j++)
            if (n < KERN_PAGE && page + KERN_PAGE <= c->pos + 1)
                assert_true((own[j] > base) == in_ranges(ranges, c->n_ranges, page + j));
            else
                assert_true(own[j] > 0.0f && in_ranges(ranges, c->n_ranges, page + j));
    }
}

static void vectors_kept(void **state)
{
    struct vectors *w = *state;
    const struct kern_sparse_task t = task_of(w, KERN_KV_Q8R, KERN_KV_WIDE);
    for (first_of_run = 0; first_of_run < POSITIONS; first_of_run += KERN_KV_WIDE) {
        put_values(w, KERN_KV_WIDE, first_of_run, NULL);
        each_case(w, t, check_kept);
    }
}

static void logarithm(void **state)
{
    (void)state;
    double worst = 0;
    for (int k = -140; k < 128; k++)
        for (int i = 0; i < 400; i++) {
            const float x = ldexpf(1.0f + (float)i / 400.0f, k);
            const double want = log((double)x), u = fmax(fabs(want) * ldexp(1, -24), ldexp(1, -24));
            worst = fmax(worst, fabs((double)kern_log(x) - want) / u);
        }
    assert_true(worst <= 4.0);
    assert_true(kern_log(1.0f) == 0.0f && kern_log(0.0f) == -INFINITY &&
                kern_log(INFINITY) == INFINITY);
    assert_true(isnan(kern_log(-1.0f)) && isnan(kern_log(NAN)));
}

static void refused(void **state)
{
    (void)state;
    assert_null(kern_sparse_refuses(KERN_KV_F16, KERN_KV_F16, 512, 512));
    assert_null(kern_sparse_refuses(KERN_KV_FROM_V, KERN_KV_F16, 512, 512));
    assert_null(kern_sparse_refuses(KERN_KV_Q8R, KERN_KV_N4R, 256, 64));
    assert_non_null(kern_sparse_refuses(KERN_KV_F16, KERN_KV_F16, 96, 96));
    assert_non_null(kern_sparse_refuses(KERN_KV_F16, KERN_KV_F16, 1024, 512));
    assert_non_null(kern_sparse_refuses(KERN_KV_FP8, KERN_KV_F16, 512, 512));
    struct kern_sparse_kernels t;
    kern_sparse_table_init(&t, 0);
    assert_null(t.name); /* plain C is not faster than attending to all */
    assert_true(t.table.rows == kern_sparse_ref.rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(vectors_out, open_vectors, close_vectors),
        cmocka_unit_test_setup_teardown(vectors_kept, open_vectors, close_vectors),
        cmocka_unit_test(needles),
        cmocka_unit_test(logarithm),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
