/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel runs a product: of few and of many rows, and of fast numerics. */
#include "unit/unit.h"

#include "base/cpu.h"
#include "kern/kern.h"
#include "kern/kernels.h"
#include <string.h>

static int n_notes;

static void note(void *arg, ingle_report_level level, const char *kind, const char *subject, const char *text)
{
    (void)arg;
    (void)text;
    n_notes++;
    assert_int_equal(level, INGLE_REPORT_NOTE);
    assert_string_equal(kind, "kernel");
    assert_non_null(strstr(subject, "emulated"));
}

static void test_nothing_competes(void **state)
{
    (void)state;
    const struct report_sink sink = {.report = note};
    struct kern_matmul_table t;
    n_notes = 0;
    kern_matmul_table_init(&t, cpu_detect() & ~(uint32_t)CPU_AMX);
    kern_matmul_calibrate(&t, &sink);
    assert_int_equal(n_notes, 0);
    struct kern_matrix w = {.code = KERN_CODE_Q4_0};
    assert_true(kern_matmul_pick(&t, &w, 1) == t.run[KERN_CODE_Q4_0]);
    assert_true(kern_matmul_pick(&t, &w, 4096) == t.run[KERN_CODE_Q4_0]);
}

/* The kernels for AMX in plain C take part like real ones: they are tested, timed, chosen. */
static void test_competing(void **state)
{
    (void)state;
    const struct report_sink sink = {.report = note};
    struct kern_matmul_table t;
    if (!(cpu_detect() & CPU_AVX512VNNI))
        skip();
    n_notes = 0;
    kern_matmul_table_init(&t, CPU_AVX2 | CPU_AVX512 | CPU_AVX512VNNI | CPU_AMX_EMULATED);
    assert_int_equal(kern_matmul_self_test(&t, CPU_AVX2 | CPU_AVX512 | CPU_AVX512VNNI, &sink), 0);
    struct kern_matrix w = {.code = KERN_CODE_Q4_0};
    assert_non_null(t.many[w.code]);
    assert_true(kern_matmul_pick(&t, &w, 4096) == t.run[w.code]); /* nobody has measured */
    kern_matmul_calibrate(&t, &sink);
    assert_int_equal(n_notes, 7);
    t.many_from[w.code] = 12;
    assert_true(kern_matmul_pick(&t, &w, 11) == t.run[w.code]);
    assert_true(kern_matmul_pick(&t, &w, 12) == t.many[w.code]);
}

/* Fast kernels go by code and width alone; F32 has none. */
static void test_fast(void **state)
{
    (void)state;
    struct kern_matmul_table t;
    struct kern_matrix w = {.code = KERN_CODE_BF16, .in = 64};
    kern_matmul_table_init(&t, CPU_AVX2);
    assert_null(t.recipe);
    assert_null(kern_matmul_fast(&t, &w));
    kern_matmul_table_init(&t, CPU_AVX2 | CPU_AVX512 | CPU_BF16PAIRS);
    if (!t.recipe)
        skip(); /* not this architecture */
    assert_string_equal(t.recipe, "fast-pairs");
    assert_true(kern_matmul_fast(&t, &w) == t.fast[KERN_CODE_BF16]);
    assert_non_null(t.fast[KERN_CODE_BF16]);
    w.in = 80;
    assert_null(kern_matmul_fast(&t, &w));
    w = (struct kern_matrix){.code = KERN_CODE_F32, .in = 64};
    assert_null(kern_matmul_fast(&t, &w));
    w.code = KERN_CODE_Q4_0;
    assert_null(kern_matmul_fast(&t, &w));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_competes),
                                       cmocka_unit_test(test_competing), cmocka_unit_test(test_fast)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
