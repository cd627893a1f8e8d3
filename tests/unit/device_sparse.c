/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of prompts to few positions on a device: any cut, batch and number of threads gives the
 * bits of plain C, rows before its beginning and other spans those of attention to all; what it
 * counts; what it leaves alone. */
#include "unit/unit.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "device/device.h"
#include "kerncheck/checks.h"
#include <math.h>

extern const struct kern_sparse_table kern_sparse_ref;

enum {
    WIDTH = 32,
    KV_HEADS = 2,
    HEADS = 6,
    GROUP = HEADS / KV_HEADS,
    CONTEXT = 2200,
    N_PAGES = (CONTEXT + KERN_PAGE - 1) / KERN_PAGE,
    FROM = 700
};
enum { LINE = HEADS * WIDTH };

struct world {
    struct device *d;
    struct device_kv kv;
    size_t page_bytes;
    uint8_t *mem, *page[N_PAGES];
    float *q, *out, *want, *sparse; /* [CONTEXT][LINE]; want: to all; few: of rows from FROM on */
    float *missed;
    int32_t *kept;
};

#define OK(call)                   \
    do {                           \
        if (call)                  \
            fail_msg("%s", e.msg); \
    } while (0)

static float *noise(struct noise *r, int64_t n)
{
    float *x = mem_calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = noise_unit(r);
    return x;
}

static struct rows rows_of(float *x, int64_t at, int64_t n, int64_t width)
{
    return (struct rows){x + at * width, n, width, width};
}

static void open_world(struct world *w, int n_threads, uint32_t cpu, enum device_numerics numerics)
{
    struct err e;
    struct noise r = {11};
    *w = (struct world){0};
    const struct device_options o = {.n_threads = n_threads, .cpu = cpu, .numerics = numerics};
    OK(device_create(&w->d, &o, &e));
    const size_t block = kern_kv_block_bytes(KERN_KV_F16, true, WIDTH);
    w->kv = (struct device_kv){.k_codec = KERN_KV_F16,
                               .v_codec = KERN_KV_F16,
                               .n_heads = KV_HEADS,
                               .k_width = WIDTH,
                               .v_width = WIDTH,
                               .at = 64,
                               .head_bytes = 2 * block,
                               .v_at = block};
    w->page_bytes = 64 + KV_HEADS * 2 * block;
    w->mem = mem_big_alloc(w->page_bytes * N_PAGES);
    assert_non_null(w->mem);
    for (int i = 0; i < N_PAGES; i++)
        w->page[i] = w->mem + (size_t)i * w->page_bytes;
    w->q = noise(&r, CONTEXT * LINE);
    w->out = noise(&r, CONTEXT * LINE);
    w->want = noise(&r, CONTEXT * LINE);
    w->sparse = noise(&r, CONTEXT * LINE);
    w->missed = noise(&r, CONTEXT * HEADS);
    w->kept = mem_calloc(CONTEXT * HEADS, sizeof *w->kept);
    assert_non_null(w->kept);
    float *k = noise(&r, CONTEXT * KV_HEADS * WIDTH), *v = noise(&r, CONTEXT * KV_HEADS * WIDTH);
    OK(device_arena_reserve(w->d, 96 << 20, &e));
    const struct device_span all = {.n = CONTEXT, .page = w->page};
    device_begin(w->d, NULL);
    device_kv_append(w->d, &w->kv, &all, 1, rows_of(k, 0, CONTEXT, KV_HEADS * WIDTH),
                     rows_of(v, 0, CONTEXT, KV_HEADS * WIDTH));
    device_attend(w->d, &w->kv, &all, 1, rows_of(w->q, 0, CONTEXT, LINE), HEADS,
                  rows_of(w->want, 0, CONTEXT, LINE), 0, 1.0f);
    OK(device_status(w->d, &e));
    mem_free(k);
    mem_free(v);
}

static void close_world(struct world *w)
{
    device_free(w->d);
    mem_big_free(w->mem, w->page_bytes * N_PAGES);
    float *const each[] = {w->q, w->out, w->want, w->sparse, w->missed};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        mem_free(each[i]);
    mem_free(w->kept);
}

/* By plain C: rows from FROM on, of which only every 37th and those around borders. */
static bool is_chosen(int64_t pos)
{
    return pos >= FROM &&
           (pos % 61 == 0 || pos % KERN_PAGE == 0 || pos == FROM || pos == CONTEXT - 1);
}

static void plain(struct world *w, const struct kern_sparse *sparse)
{
    for (int64_t h = 0; h < KV_HEADS; h++)
        for (int64_t pos = FROM; pos < CONTEXT; pos++) {
            const struct kern_sparse_task t = {
                .attend = {.k_codec = KERN_KV_F16,
                           .v_codec = KERN_KV_F16,
                           .k_width = WIDTH,
                           .v_width = WIDTH,
                           .page = (const uint8_t *const *)w->page,
                           .k_at = w->kv.at + (size_t)h * w->kv.head_bytes,
                           .v_at = w->kv.at + (size_t)h * w->kv.head_bytes + w->kv.v_at,
                           .q = w->q + pos * LINE + h * GROUP * WIDTH,
                           .q_stride = LINE,
                           .out = w->sparse + pos * LINE + h * GROUP * WIDTH,
                           .out_stride = LINE,
                           .n_rows = 1,
                           .n_heads = GROUP,
                           .pos0 = pos,
                           .scale = 1.0f},
                .eps = sparse->eps,
                .missed = w->missed + pos * HEADS + h * GROUP,
                .kept = w->kept + pos * HEADS + h * GROUP,
                .pair_stride = HEADS};
            if (!is_chosen(pos))
                continue;
            void *scratch = mem_big_alloc(kern_sparse_scratch(&t.attend));
            assert_non_null(scratch);
            kern_sparse_ref.rows(&t, scratch);
            mem_big_free(scratch, kern_sparse_scratch(&t.attend));
        }
}

static void same_rows(const struct world *w, int64_t at, int64_t n, bool sparse)
{
    for (int64_t pos = at; pos < at + n; pos++)
        if (!sparse || pos < FROM || is_chosen(pos))
            assert_memory_equal(w->out + pos * LINE,
                                (sparse && pos >= FROM ? w->sparse : w->want) + pos * LINE,
                                LINE * sizeof(float));
}

/* Positions [at, at + n) as one span. */
static void attend(struct world *w, int64_t at, int64_t n, const struct kern_sparse *sparse,
                   bool prompt, struct kern_sparse_seen *seen)
{
    struct err e;
    const struct device_span span = {
        .n = n, .pos0 = at, .page = w->page, .prompt = prompt, .sparse = sparse, .seen = seen};
    device_begin(w->d, NULL);
    device_attend(w->d, &w->kv, &span, 1, rows_of(w->q, at, n, LINE), HEADS,
                  rows_of(w->out, at, n, LINE), 0, 1.0f);
    OK(device_status(w->d, &e));
}

static bool is_refused(const struct world *w)
{
    if (!device_sparse_refuses(w->d, &w->kv))
        return false;
    print_message("not on this machine: %s\n", device_sparse_refuses(w->d, &w->kv));
    return true;
}

static void any_cut(void **state)
{
    (void)state;
    static const struct {
        int threads;
        uint32_t cpu;
    } devices[] = {{2, UINT32_MAX}, {1, CPU_AVX2 | CPU_AVX512}, {8, UINT32_MAX}, {3, CPU_AVX2}};
    static const int64_t cuts[] = {CONTEXT, 512, 129, 40, 1};
    const struct kern_sparse sparse = {.eps = 3, .from = FROM};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i += UNIT_TSAN   ? 4
                                                                  : UNIT_ASAN ? 3
                                                                              : 1) {
        struct world w;
        struct kern_sparse_seen first = {0};
        open_world(&w, devices[i].threads, devices[i].cpu, DEVICE_EXACT);
        plain(&w, &sparse);
        for (size_t k = 0; !is_refused(&w) && k < sizeof cuts / sizeof *cuts;
             k += UNIT_TSAN ? 3 : 1) {
            struct kern_sparse_seen seen = {0};
            const int64_t end = cuts[k] == 1 ? 760 : CONTEXT;
            for (int64_t at = cuts[k] == 1 ? 690 : 0; at < end; at += cuts[k])
                attend(&w, at, num_min(cuts[k], end - at), &sparse, true, &seen);
            same_rows(&w, cuts[k] == 1 ? 690 : 0, end - (cuts[k] == 1 ? 690 : 0), true);
            if (k == 0) {
                first = seen;
                assert_int_equal(seen.rows, CONTEXT - FROM);
                assert_int_equal(seen.pairs, (CONTEXT - FROM) * HEADS);
                assert_int_equal(
                    seen.seen,
                    HEADS * ((int64_t)CONTEXT * (CONTEXT + 1) - (int64_t)FROM * (FROM + 1)) / 2);
                assert_true(seen.kept < seen.seen && seen.missed > 0 && seen.most > 0.0f &&
                            seen.most <= 0.125f);
                assert_true((double)seen.missed * 0x1p-32 <=
                            (double)seen.most * (double)seen.pairs);
            } else if (cuts[k] > 1) {
                assert_memory_equal(&seen, &first, sizeof seen);
            }
        }
        close_world(&w);
    }
}

/* One request of a batch is sparse, others are not, one of them in another way. */
static void in_a_batch(void **state)
{
    (void)state;
    struct world w;
    struct err e;
    const struct kern_sparse sparse = {.eps = 3, .from = FROM}, other = {.eps = 10, .from = 0};
    struct kern_sparse_seen seen = {0}, seen_other = {0};
    open_world(&w, 2, UINT32_MAX, DEVICE_EXACT);
    plain(&w, &sparse);
    /* Rows of out are the positions that they stand for: FROM - 20 .. are few's, 100 .. all's, 1700
     * .. other's, 2199 an answer's. */
    const struct device_span span[] = {
        {.row0 = 0, .n = 40, .pos0 = 100, .page = w.page, .prompt = true},
        {.row0 = 40,
         .n = 90,
         .pos0 = FROM - 20,
         .page = w.page,
         .prompt = true,
         .sparse = &sparse,
         .seen = &seen},
        {.row0 = 130,
         .n = 30,
         .pos0 = 1700,
         .page = w.page,
         .prompt = true,
         .sparse = &other,
         .seen = &seen_other},
        {.row0 = 160,
         .n = 1,
         .pos0 = CONTEXT - 1,
         .page = w.page,
         .sparse = &sparse,
         .seen = &seen}};
    float *q = mem_calloc(161 * LINE, sizeof *q), *out = mem_calloc(161 * LINE, sizeof *out);
    assert_true(q && out);
    for (int i = 0; i < 4; i++)
        memcpy(q + span[i].row0 * LINE, w.q + span[i].pos0 * LINE,
               (size_t)span[i].n * LINE * sizeof *q);
    if (!is_refused(&w)) {
        device_begin(w.d, NULL);
        device_attend(w.d, &w.kv, span, 4, rows_of(q, 0, 161, LINE), HEADS,
                      rows_of(out, 0, 161, LINE), 0, 1.0f);
        OK(device_status(w.d, &e));
        for (int i = 0; i < 4; i++) {
            memcpy(w.out + span[i].pos0 * LINE, out + span[i].row0 * LINE,
                   (size_t)span[i].n * LINE * sizeof *out);
            if (i != 2)
                same_rows(&w, span[i].pos0, span[i].n, i == 1);
        }
        assert_int_equal(seen.rows, 70);
        assert_int_equal(seen_other.rows, 30);
        assert_true(seen_other.most <= 0x1p-10f);
        assert_memory_not_equal(w.out + 1700 * LINE, w.want + 1700 * LINE, LINE * sizeof(float));
    }
    mem_free(q);
    mem_free(out);
    close_world(&w);
}

/* Answers, windows and reference numerics take all. */
static void left_alone(void **state)
{
    (void)state;
    struct world w;
    const struct kern_sparse sparse = {.eps = 0, .from = 0};
    struct kern_sparse_seen seen = {0};
    open_world(&w, 2, UINT32_MAX, DEVICE_EXACT);
    attend(&w, 1000, 30, &sparse, false, &seen);
    same_rows(&w, 1000, 30, false);
    struct device_kv wide = w.kv;
    wide.k_width = wide.v_width = 96;
    assert_non_null(device_sparse_refuses(w.d, &wide));
    close_world(&w);
    open_world(&w, 2, UINT32_MAX, DEVICE_REFERENCE);
    assert_non_null(device_sparse_refuses(w.d, &w.kv));
    attend(&w, 1000, 30, &sparse, true, &seen);
    same_rows(&w, 1000, 30, false);
    close_world(&w);
    struct err e;
    struct device *plain_c;
    OK(device_create(&plain_c, &(struct device_options){.n_threads = 1}, &e));
    assert_non_null(device_sparse_refuses(plain_c, &w.kv));
    device_free(plain_c);
    assert_int_equal(seen.rows, 0);
}

struct pause { int n; };
static void pause_fn(void *arg) { ((struct pause *)arg)->n++; }

/* The profile counts products with keys, and with values that were wanted. */
static void same_cost(const struct world *w, const struct kern_sparse_seen *seen, int64_t at,
                      int64_t n)
{
    struct device_profile p[8];
    double exact = 0, sparse = 0,
           share = seen->seen ? (double)seen->kept / (double)seen->seen : 1.0;
    for (int64_t pos = at; pos < at + n; pos++)
        *(pos < FROM ? &exact : &sparse) += (double)(pos + 1);
    assert_int_equal(device_profile_read(w->d, p, 8), 1);
    assert_true(fabs(p[0].ops - 2.0 * HEADS * WIDTH * (2.0 * exact + (1.0 + share) * sparse)) <
                1.0);
}

/* While another step waits, in pieces. */
static void in_pieces(void **state)
{
    (void)state;
    struct world w;
    const struct kern_sparse sparse = {.eps = 3, .from = FROM};
    struct pause p = {0};
    struct kern_sparse_seen seen = {0};
    open_world(&w, 2, UINT32_MAX, DEVICE_EXACT);
    plain(&w, &sparse);
    struct device_between between = {.fn = pause_fn, .arg = &p, .piece_ns = 1000};
    device_set_between(w.d, &between);
    device_profile(w.d, true);
    attend(&w, 600, 1500, &sparse, true, &seen);
    same_rows(&w, 600, 1500, !is_refused(&w));
    same_cost(&w, &seen, 600, 1500);
    device_set_between(w.d, NULL);
    assert_true(p.n > 1);
    assert_true(seen.rows == 1400 || is_refused(&w));
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_cut), cmocka_unit_test(in_a_batch),
                                       cmocka_unit_test(left_alone), cmocka_unit_test(in_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
