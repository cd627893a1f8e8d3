/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of pages: its kernels, its budget, its order against a sort, ties, NaN, and means. */
#include "unit/unit.h"

#include "base/cpu.h"
#include "kern/kern.h"
#include "kerncheck/checks.h"
#include <math.h>
#include <stdlib.h>

static void kernels(void **state)
{
    (void)state;
    assert_int_equal(check_select(3, cpu_detect()), 0);
}

static void budgets(void **state)
{
    (void)state;
    const struct kern_select p = {.part = 16, .least = 8},
                           all = {.part = 1, .least = KERN_SELECT_ALWAYS};
    assert_int_equal(kern_select_budget(&p, 0), 1);
    assert_int_equal(kern_select_budget(&p, 8 * KERN_PAGE - 1), 8);
    assert_int_equal(kern_select_budget(&p, 8 * KERN_PAGE), 8);
    assert_int_equal(kern_select_budget(&p, 128 * KERN_PAGE - 1), 8);
    assert_int_equal(kern_select_budget(&p, 128 * KERN_PAGE), 9);
    uint8_t whole[130] = {0};
    const struct kern_select few = {.part = 16, .least = 8};
    whole[0] = whole[9] = whole[10] = whole[129] = 1;
    assert_int_equal(kern_select_count(&few, 130 * KERN_PAGE - 1, whole), 9 + 2);
    assert_int_equal(kern_select_count(&few, 14 * KERN_PAGE - 1, whole), 8 + 1);
    assert_int_equal(kern_select_count(&few, 12 * KERN_PAGE - 1, whole), 8);
    assert_int_equal(kern_select_count(&few, 130 * KERN_PAGE - 1, NULL), 9);
    memset(whole, 1, sizeof whole);
    assert_int_equal(kern_select_count(&few, 130 * KERN_PAGE - 1, whole), 130);
    for (int64_t pos = 0; pos < 40 * KERN_PAGE; pos += 77)
        assert_int_equal(kern_select_budget(&all, pos), pos / KERN_PAGE + 1);
    assert_true(kern_select_checks(63) && kern_select_checks(127) && !kern_select_checks(64));
}

enum { HEADS = 3, PAGES = 90 };
static double share[PAGES];

static int by_share(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return share[x] > share[y] ? -1 : share[x] < share[y] ? 1 : x < y ? -1 : 1;
}

static int ascending(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

/* Written another way: all others sorted by share, then by index. */
static void order(void **state)
{
    (void)state;
    struct noise r = {9}, media_r = {10};
    for (int round = 0; round < 60; round++) {
        float mass[HEADS * PAGES * 2];
        uint64_t key[PAGES + PAGES / 64 + 1];
        int32_t got[PAGES], want[PAGES], others[PAGES];
        const int64_t n_pages =
            KERN_SELECT_ALWAYS + 1 + noise_below(&r, PAGES - KERN_SELECT_ALWAYS - 1);
        uint8_t whole[PAGES];
        const bool media = noise_below(&media_r, 2);
        int64_t n = KERN_SELECT_ALWAYS + noise_below(&r, n_pages - KERN_SELECT_ALWAYS);
        for (int64_t i = 0; i < n_pages; i++) {
            whole[i] = noise_below(&media_r, 6) == 0;
            n += media && i && i < n_pages - KERN_SELECT_PAGES && n < n_pages ? whole[i] : 0;
        }
        assert_true(kern_select_keys(n_pages) <= (int64_t)(sizeof key / sizeof *key));
        for (int i = 0; i < PAGES; i++)
            share[i] = -HUGE_VAL;
        for (int64_t h = 0; h < HEADS; h++) {
            double sum = 0, w[PAGES];
            for (int64_t i = 0; i < n_pages; i++) {
                /* steps of 4: ties are equal in any arithmetic, and others are apart */
                float *m = mass + (h * n_pages + i) * 2;
                m[0] = 4.0f * (float)noise_below(&r, 5);
                m[1] = 1.0f + (float)noise_below(&r, 3);
                sum += w[i] = (double)m[1] * exp((double)m[0]);
            }
            /* what differs in the last places only is equal */
            for (int64_t i = 0; i < n_pages; i++)
                share[i] = fmax(share[i], rint(log(w[i] / sum) * 1e4));
        }
        int64_t k = 0, n_others = 0;
        for (int32_t i = 0; i < n_pages; i++)
            if (i == 0 || i >= n_pages - KERN_SELECT_PAGES || (media && whole[i]))
                want[k++] = i;
            else
                others[n_others++] = i;
        qsort(others, (size_t)n_others, sizeof *others, by_share);
        memcpy(want + k, others, (size_t)(n - k) * sizeof *want);
        qsort(want, (size_t)n, sizeof *want, ascending);
        kern_select_choose(mass, HEADS, n_pages, media ? whole : NULL, n, got, key);
        assert_memory_equal(got, want, (size_t)n * sizeof *want);
    }
}

static void odd_masses(void **state)
{
    (void)state;
    float mass[2 * 12] = {0};
    uint64_t key[13];
    int32_t got[12];
    for (int i = 0; i < 12; i++)
        mass[2 * i + 1] = 1.0f;
    kern_select_choose(mass, 1, 12, NULL, 7, got, key); /* all alike: the lowest */
    assert_memory_equal(got, ((int32_t[]){0, 1, 2, 8, 9, 10, 11}), 7 * sizeof *got);
    mass[2 * 5 + 1] = NAN; /* the sum is none: all alike */
    kern_select_choose(mass, 1, 12, NULL, 6, got, key);
    assert_memory_equal(got, ((int32_t[]){0, 1, 8, 9, 10, 11}), 6 * sizeof *got);
    kern_select_choose(mass, 1, 12, NULL, 12, got, key);
    assert_true(got[0] == 0 && got[11] == 11);
}

static void means(void **state)
{
    (void)state;
    enum { WIDTH = 128 };
    static const enum kern_kv_codec codecs[] = {KERN_KV_F32, KERN_KV_F16, KERN_KV_Q8_0, KERN_KV_Q8R,
                                                KERN_KV_N4R};
    struct noise r = {4};
    static float rows[KERN_PAGE * WIDTH];
    static _Alignas(64) uint8_t block[KERN_PAGE * WIDTH * 4];
    struct kern_table t;
    kern_table_init(&t, cpu_detect());
    for (int i = 0; i < KERN_PAGE * WIDTH; i++)
        rows[i] = noise_unit(&r);
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        float mean[WIDTH];
        t.attend.coded.kv_write(codecs[c], false, WIDTH, block, 0, rows, KERN_PAGE, WIDTH);
        kern_select_mean(codecs[c], WIDTH, block, mean);
        kern_kv_turn_back(codecs[c], mean, WIDTH);
        for (int d = 0; d < WIDTH; d++) {
            double want = 0;
            for (int j = 0; j < KERN_PAGE; j++)
                want += (double)rows[j * WIDTH + d] / KERN_PAGE;
            /* n4r: a tenth of values of 0.58, over 128 of them */
            assert_true(fabs((double)mean[d] - want) < (codecs[c] == KERN_KV_N4R   ? 0.03
                                                        : codecs[c] == KERN_KV_F32 ? 1e-6
                                                                                   : 3e-3));
        }
    }
    size_t at;
    assert_int_equal(kern_select_bytes(512, 512, &at), 264 * KERN_PAGE + 2048);
    assert_int_equal(at, 264 * KERN_PAGE);
    assert_int_equal(kern_select_bytes(96, 96, &at), 0);
    assert_non_null(kern_select_refuses(KERN_KV_F16, KERN_KV_F16, 96, 96));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels), cmocka_unit_test(budgets),
                                       cmocka_unit_test(order), cmocka_unit_test(odd_masses),
                                       cmocka_unit_test(means)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
