/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/cpu.h"
#include "base/pool.h"
#include "tool/tool.h"
#include <string.h>

static void test_bandwidth(void **state)
{
    (void)state;
    struct pool *p;
    double got = 0;
    assert_int_equal(pool_create(&p, 2, false, NULL), INGLE_OK);
    assert_int_equal(tool_machine_bandwidth(p, 16 << 20, 2, &got, NULL), INGLE_OK);
    assert_true(got > 1e6 && got < 1e14);
    struct tool_round round[2];
    assert_int_equal(tool_memory_rounds(p, 16 << 20, 2, round, 2, NULL), INGLE_OK);
    for (int i = 0; i < 2; i++)
        assert_true(round[i].bytes_per_s > 1e6 && round[i].others >= 0);
    pool_free(p);
}

/* What fits gets slower with less memory, and never faster than with all of it. */
static void test_models(void **state)
{
    (void)state;
    size_t n;
    const struct tool_model *m = tool_models(&n);
    for (size_t i = 0; i < n; i++) {
        double share = 0, last = 0;
        enum tool_fit before = TOOL_TOO_LARGE;
        for (uint64_t gib = 1; gib <= 256; gib++) {
            const enum tool_fit fit = tool_model_fit(&m[i], gib << 30, &share);
            const double rate =
                fit == TOOL_TOO_LARGE ? 0 : tool_model_rate(&m[i], share, 60e9, 1e9);
            assert_true(fit <= before && share >= 0 && share <= 1 && rate >= last);
            before = fit;
            last = rate;
        }
        assert_int_equal(before, TOOL_FITS);
        assert_true(tool_model_rate(&m[i], 1, 60e9, 1e9) == last);
    }
    double share;
    assert_int_equal(tool_model_fit(&m[0], 0, &share), TOOL_TOO_LARGE);
}

static void test_refuses_nothing(void **state)
{
    (void)state;
    struct pool *p;
    double got = 7;
    struct err err;
    assert_int_equal(pool_create(&p, 1, false, NULL), INGLE_OK);
    assert_int_equal(tool_machine_bandwidth(p, 100, 1, &got, &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "100 bytes"));
    assert_int_equal(tool_machine_bandwidth(p, 16 << 20, 0, &got, NULL), INGLE_ARG);
    assert_true(got == 7);
    pool_free(p);
}

static void test_peaks_and_others(void **state)
{
    (void)state;
    struct pool *p;
    struct tool_peak peak[TOOL_PEAKS];
    struct tool_busy a, b;
    struct tool_memory m;
    const uint32_t cpu = cpu_detect();
    assert_int_equal(pool_create(&p, 2, false, NULL), INGLE_OK);
    tool_busy_read(&a);
    const size_t n = tool_peaks(p, cpu, peak, TOOL_PEAKS);
    assert_true(cpu & CPU_AVX2 ? n >= 2 : n == 0);
    for (size_t i = 0; i < n; i++)
        assert_true(peak[i].ops_per_s > 1e6 && strlen(peak[i].name) > 2);
    assert_true(n < 2 || tool_peaks(p, cpu, peak, 1) == 1);
    assert_int_equal(tool_peaks(p, 0, peak, TOOL_PEAKS), 0);
    assert_int_equal(tool_memory_create(&m, p, 16 << 20, NULL), INGLE_OK);
    for (int streams = 1; streams <= 8; streams *= 2)
        assert_true(tool_memory_read(&m, p, streams) > 1e6);
    tool_memory_release(&m);
    tool_busy_read(&b);
    assert_true(b.all >= a.all && b.own >= a.own);
    assert_true(tool_huge_share() >= 0 && tool_huge_share() <= 1);
    pool_free(p);
}

static void test_what_others_used(void **state)
{
    (void)state;
    const struct tool_busy from = {10, 1}, to = {13, 2};
    assert_true(tool_busy_foreign(&from, &to, 2, 2) == 0.5);
    assert_true(tool_busy_foreign(&from, &from, 2, 2) == 0);
    assert_true(tool_busy_foreign(&from, &to, 0, 2) == 0);
    assert_true(tool_busy_foreign(&from, &(struct tool_busy){10, 5}, 2, 2) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bandwidth), cmocka_unit_test(test_models),
        cmocka_unit_test(test_refuses_nothing),
        cmocka_unit_test(test_peaks_and_others),
        cmocka_unit_test(test_what_others_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
