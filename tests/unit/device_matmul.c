/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many rows, however they are cut and listed, have the bits of each row alone. */
#include "unit/unit.h"

#include "base/mem.h"
#include "device/device.h"
#include "kerncheck/checks.h"
#include <string.h>

enum { IN = 256, OUT = 104, STACK = 3, ROWS = 200, WIDE = IN + 16, MANY = 2 * ROWS };

struct weights { void *packed; size_t n_bytes; struct device_matrix *m; };

static void load(struct weights *w, struct device *d, uint32_t type, struct noise *r)
{
    static uint8_t stored[OUT * IN * sizeof(float)];
    float x[IN];
    uint64_t row;
    assert_true(quant_bytes(type, IN, 1, &row));
    assert_int_equal(device_matrix_create(&w->m, d, type, OUT, IN, STACK, NULL), INGLE_OK);
    w->n_bytes = (size_t)device_matrix_bytes(w->m);
    w->packed = mem_big_alloc(w->n_bytes);
    assert_non_null(w->packed);
    device_matrix_place(w->m, w->packed, 0);
    for (int64_t s = 0; s < STACK; s++) {
        for (int64_t i = 0; i < OUT; i++) {
            for (int k = 0; k < IN; k++)
                x[k] = noise_unit(r);
            assert_true(quant_encode(type, x, stored + (uint64_t)i * row, IN));
        }
        device_matrix_load(w->m, s, 0, OUT, stored);
    }
}

static void run(struct device *d, const struct device_product *p, int64_t n)
{
    device_begin(d, NULL);
    device_matmul(d, p, n);
    assert_int_equal(device_status(d, NULL), INGLE_OK);
}

static void check(struct device *d, uint32_t type)
{
    static float x[ROWS * WIDE], y[STACK][MANY * OUT], alone[OUT];
    static int32_t row[STACK][MANY];
    /* scattered, the same ones twice, one after another */
    static const int64_t n_rows[STACK] = {MANY, 9, 130};
    struct noise r = {type + 3};
    struct weights w;
    struct device_product p[STACK];
    load(&w, d, type, &r);
    for (int i = 0; i < ROWS * WIDE; i++)
        x[i] = noise_unit(&r);
    for (int64_t s = 0; s < STACK; s++) {
        for (int64_t i = 0; i < n_rows[s]; i++)
            row[s][i] = s == 0   ? (int32_t)noise_below(&r, ROWS)
                        : s == 1 ? row[0][i]
                                 : (int32_t)(i + 40);
        p[s] = (struct device_product){
            w.m, s, {x, ROWS, IN, WIDE}, {y[s], n_rows[s], OUT, OUT}, row[s]};
    }
    for (int listed = 0; listed < 2; listed++) {
        if (!listed)
            run(d,
                &(struct device_product){w.m, 1, {x, ROWS, IN, WIDE}, {y[1], ROWS, OUT, OUT}, NULL},
                1);
        else
            run(d, p, STACK);
        for (int64_t s = listed ? 0 : 1; s < (listed ? STACK : 2); s++)
            for (int64_t i = 0; i < (listed ? n_rows[s] : ROWS); i++) {
                const float *at = x + (listed ? row[s][i] : i) * WIDE;
                run(d,
                    &(struct device_product){
                        w.m, s, {(float *)(uintptr_t)at, 1, IN, WIDE}, {alone, 1, OUT, OUT}, NULL},
                    1);
                assert_memory_equal(y[s] + i * OUT, alone, sizeof alone);
            }
    }
    device_matrix_free(w.m);
    mem_big_free(w.packed, w.n_bytes);
}

/* Some columns of a product are those of the whole, and the others stay as they are. */
static void columns(struct device *d, uint32_t type)
{
    static const struct device_columns lists[][2] = {
        {{0, 64}, {0, 0}}, {{64, 40}, {0, 0}}, {{0, 104}, {0, 0}}, {{0, 64}, {64, 40}}};
    static const int n_list[] = {1, 1, 1, 2};
    static float x[40 * IN], whole[40 * OUT], some[40 * OUT];
    struct noise r = {type + 5};
    struct weights w;
    load(&w, d, type, &r);
    for (int i = 0; i < 40 * IN; i++)
        x[i] = noise_unit(&r);
    for (int64_t n = 1; n <= 40; n += 13)
        for (int k = 0; k < 4; k++) {
            const struct device_product p = {w.m, 2, {x, n, IN, IN}, {some, n, OUT, OUT}, NULL};
            run(d, &(struct device_product){w.m, 2, {x, n, IN, IN}, {whole, n, OUT, OUT}, NULL}, 1);
            for (int64_t i = 0; i < n * OUT; i++)
                some[i] = -7;
            device_begin(d, NULL);
            device_matmul_columns(d, &p, lists[k], n_list[k]);
            assert_int_equal(device_status(d, NULL), INGLE_OK);
            for (int64_t i = 0; i < n * OUT; i++) {
                bool in = false;
                for (int c = 0; c < n_list[k]; c++)
                    in |=
                        i % OUT >= lists[k][c].first && i % OUT < lists[k][c].first + lists[k][c].n;
                const float want = in ? whole[i] : -7;
                assert_memory_equal(&some[i], &want, sizeof want);
            }
        }
    device_matrix_free(w.m);
    mem_big_free(w.packed, w.n_bytes);
}

static void test_rows(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        const struct device_options o = {.n_threads = n_threads, .cpu = UINT32_MAX};
        struct device *d;
        assert_int_equal(device_create(&d, &o, NULL), INGLE_OK);
        assert_int_equal(device_arena_reserve(d, 8 << 20, NULL), INGLE_OK);
        check(d, QUANT_F32);
        check(d, QUANT_Q4_0);
        columns(d, QUANT_F32);
        columns(d, QUANT_Q4_0);
        device_free(d);
    }
}

/* A page a thread at a time until all are there, then no more; a larger arena begins anew, and what
 * a step has in it stays. */
static void test_arena_is_filled(void **state)
{
    (void)state;
    static const size_t sizes[] = {128, 5 * MEM_BIG_PAGE, 7 * MEM_BIG_PAGE + 4096};
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        const struct device_options o = {.n_threads = n_threads, .cpu = UINT32_MAX};
        struct device *d;
        assert_int_equal(device_create(&d, &o, NULL), INGLE_OK);
        assert_false(device_arena_fill(d, 1));
        for (int i = 0; i < 3; i++) {
            const size_t n_bytes = sizes[i];
            assert_int_equal(device_arena_reserve(d, n_bytes, NULL), INGLE_OK);
            device_begin(d, NULL);
            uint8_t *at = device_bytes(d, n_bytes);
            assert_non_null(at);
            at[n_bytes - 1] = 7;
            assert_false(device_arena_fill(d, 0));
            const size_t pages = (n_bytes + MEM_BIG_PAGE - 1) / MEM_BIG_PAGE;
            for (size_t k = 0; k < pages; k += (size_t)n_threads)
                assert_true(device_arena_fill(d, SIZE_MAX));
            assert_false(device_arena_fill(d, SIZE_MAX));
            assert_int_equal(at[n_bytes - 1], 7);
            /* what it has already */
            assert_int_equal(device_arena_reserve(d, n_bytes, NULL), INGLE_OK);
            assert_false(device_arena_fill(d, SIZE_MAX));
        }
        device_free(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_arena_is_filled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
