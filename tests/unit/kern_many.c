/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel runs a product: of few and of many rows, and of fast numerics. */
#include "unit/unit.h"

#include "base/cpu.h"
#include "kern/kern.h"
#include "kern/kernels.h"
#include <string.h>

static int n_notes, n_ahead; /* of kernels for many rows; of those that ask for memory ahead */

static void note(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    (void)arg;
    (void)text;
    assert_int_equal(level, INGLE_REPORT_NOTE);
    assert_string_equal(kind, "kernel");
    if (strstr(subject, "ahead")) {
        n_ahead++;
        return;
    }
    n_notes++;
    assert_true(strstr(subject, "emulated") || strstr(subject, "spread") ||
                strstr(subject, "words") || strstr(subject, "bytes"));
}

/* What is made for less than the chosen kernels does not compete with them. */
static void test_nothing_competes(void **state)
{
    (void)state;
    const struct report_sink sink = {.report = note};
    struct kern_matmul_table t;
    n_notes = 0;
    kern_matmul_table_init(&t, 0);
    kern_matmul_calibrate(&t, &sink);
    assert_int_equal(n_notes, 0);
    struct kern_matrix w = {.code = KERN_CODE_Q4_0};
    assert_true(kern_matmul_choose(&t, &w, 4096) == t.run[KERN_CODE_Q4_0]);
    kern_matmul_table_init(&t, CPU_AVX2 | CPU_AVXVNNI); /* a list: none runs */
    bool built = false; /* builds with sanitizers leave out what this machine cannot run */
    for (int code = 0; code < KERN_CODES; code++)
        built |= t.many[code] && strstr(t.many_name[code], "avxvnni");
    for (int code = 0; code < KERN_CODES && built; code++) {
        assert_true(!t.many[code] || !strstr(t.many_name[code], "avx2"));
        assert_null(t.ahead[code]);
    }
}

/* On AVX2 codes of 8-bit values are spread to words for many rows, others to bytes; neither are
 * those that are looked up. */
static void test_avx2(void **state)
{
    (void)state;
    const struct report_sink sink = {.report = note};
    struct kern_matmul_table t;
    if (!(cpu_detect() & CPU_AVX2))
        skip();
    n_notes = 0;
    kern_matmul_table_init(&t, CPU_AVX2);
    assert_int_equal(kern_matmul_self_test(&t, CPU_AVX2, &sink), 0);
    assert_non_null(strstr(t.many_name[KERN_CODE_Q8_0], "words"));
    assert_non_null(strstr(t.many_name[KERN_CODE_IQ4_XS], "words"));
    assert_non_null(strstr(t.many_name[KERN_CODE_Q4_0], "bytes"));
    assert_non_null(strstr(t.many_name[KERN_CODE_Q6_K], "bytes"));
    assert_null(t.many[KERN_CODE_IQ2_XXS]);
    assert_null(t.many[KERN_CODE_F32]);
    struct kern_matrix w = {.code = KERN_CODE_Q8_0};
    assert_true(kern_matmul_choose(&t, &w, 4096) == t.run[w.code]); /* nobody has measured */
    kern_matmul_calibrate_code(&t, w.code, &sink);
    assert_int_equal(n_notes, 1);
    kern_matmul_calibrate_code(&t, w.code, &sink); /* once */
    kern_matmul_calibrate_code(&t, KERN_CODE_IQ2_XXS, &sink); /* nothing competes */
    assert_int_equal(n_notes, 1);
    assert_true(t.many_from[KERN_CODE_Q4_0] == INT64_MAX);
    kern_matmul_calibrate(&t, &sink);
    int n_many = 0;
    for (int code = 0; code < KERN_CODES; code++)
        n_many += t.many[code] != NULL;
    assert_int_equal(n_notes, n_many);
    t.many_from[w.code] = 12;
    assert_true(kern_matmul_choose(&t, &w, 11) == t.run[w.code]);
    assert_true(kern_matmul_choose(&t, &w, 12) == t.many[w.code]);
}

/* Each code that has a kernel which asks ahead is measured once, and its choice is its own: a Zen 5
 * reads some formats at the full rate without, and others at half of it. */
static void ahead_of(uint32_t cpu)
{
    const struct report_sink sink = {.report = note};
    struct kern_matmul_table t, was;
    n_ahead = 0;
    kern_matmul_table_init(&t, cpu);
    assert_int_equal(kern_matmul_self_test(&t, cpu, &sink), 0);
    was = t;
    int n = 0;
    for (int code = 0; code < KERN_CODES; code++)
        n += was.ahead[code] != NULL;
    for (int round = 0; round < 2; round++) {
        kern_matmul_calibrate(&t, &sink);
        assert_int_equal(n_ahead, n);
    }
    for (int code = 0; code < KERN_CODES; code++) {
        const bool used = was.ahead[code] && t.run[code] == was.ahead[code];
        assert_null(t.ahead[code]);
        assert_true(used || t.run[code] == was.run[code]);
        assert_true(t.name[code] == (used ? t.ahead_name[code] : was.name[code]));
    }
    if (!n)
        skip();
}

static void test_ahead(void **state)
{
    (void)state;
    ahead_of(cpu_detect() & ~(uint32_t)CPU_AMX);
}

static void test_ahead_avx2(void **state)
{
    (void)state;
    ahead_of(cpu_detect() & CPU_AVX2);
}

/* They are tested, timed, chosen. */
static void competes(uint32_t level, uint32_t with)
{
    const uint32_t cpu = CPU_AVX2 | level | (with & CPU_AVX512VBMI);
    const struct report_sink sink = {.report = note};
    struct kern_matmul_table t;
    if (level & ~cpu_detect())
        skip();
    n_notes = 0;
    kern_matmul_table_init(&t, cpu | with);
    assert_int_equal(kern_matmul_self_test(&t, cpu, &sink), 0);
    struct kern_matrix w = {.code = KERN_CODE_Q4_0};
    assert_non_null(t.many[w.code]);
    /* looked up by byte permutes */
    assert_true(!t.many[KERN_CODE_IQ2_XXS] == !(with & CPU_AVX512VBMI));
    assert_true(kern_matmul_choose(&t, &w, 4096) == t.run[w.code]); /* nobody has measured */
    kern_matmul_calibrate(&t, &sink);
    int n_many = 0;
    for (int code = 0; code < KERN_CODES; code++)
        n_many += t.many[code] != NULL;
    assert_true(n_many > 0);
    assert_int_equal(n_notes, n_many);
    t.many_from[w.code] = 12;
    assert_true(kern_matmul_choose(&t, &w, 11) == t.run[w.code]);
    assert_true(kern_matmul_choose(&t, &w, 12) == t.many[w.code]);
    assert_non_null(strstr(t.many_name[w.code], with ? "emulated" : "spread"));
}

static void test_spread(void **state)
{
    (void)state;
    competes(CPU_AVX512 | CPU_AVX512VNNI, 0);
}

static void test_spread_vnni(void **state)
{
    (void)state;
    competes(CPU_AVXVNNI, 0);
}

/* The kernels for AMX in plain C like real ones. */
static void test_emulated(void **state)
{
    (void)state;
    competes(CPU_AVX512 | CPU_AVX512VNNI, CPU_AMX_EMULATED);
}

static void test_emulated_points(void **state)
{
    (void)state;
    if (!(cpu_detect() & CPU_AVX512VBMI))
        skip();
    competes(CPU_AVX512 | CPU_AVX512VNNI, CPU_AMX_EMULATED | CPU_AVX512VBMI);
}

/* Fast kernels go by code and width alone; F32 has none. */
static void test_fast(void **state)
{
    (void)state;
    struct kern_matmul_table t;
    struct kern_matrix w = {.code = KERN_CODE_BF16, .in = 64};
    kern_matmul_table_init(&t, CPU_AVX2);
    assert_null(t.recipe[KERN_CODE_BF16]);
    assert_null(kern_matmul_fast(&t, &w, false));
    kern_matmul_table_init(&t, CPU_AVX2 | CPU_AVX512 | CPU_BF16PAIRS);
    if (!t.recipe[KERN_CODE_BF16])
        skip(); /* not this architecture */
    assert_string_equal(t.recipe[KERN_CODE_BF16], "fast-pairs");
    assert_true(kern_matmul_fast(&t, &w, false) == t.fast[KERN_CODE_BF16]);
    assert_non_null(t.fast[KERN_CODE_BF16]);
    w.in = 80;
    assert_null(kern_matmul_fast(&t, &w, false));
    w = (struct kern_matrix){.code = KERN_CODE_F32, .in = 64};
    assert_null(kern_matmul_fast(&t, &w, false));
    w = (struct kern_matrix){.code = KERN_CODE_Q4_0, .act = KERN_ACT_Q32, .in = 64};
    assert_null(kern_matmul_fast(&t, &w, true));
    kern_matmul_table_init(&t, CPU_AVX512VNNI | CPU_AMX_EMULATED);
    assert_string_equal(t.recipe[KERN_CODE_BF16], "fast-panels");
    assert_string_equal(t.recipe[KERN_CODE_Q4_0], "fast-wide");
    assert_null(kern_matmul_fast(&t, &w, true)); /* too narrow */
    w.in = 512;
    assert_null(kern_matmul_fast(&t, &w, false));
    assert_non_null(kern_matmul_fast(&t, &w, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_competes),
                                       cmocka_unit_test(test_avx2),
                                       cmocka_unit_test(test_spread),
                                       cmocka_unit_test(test_spread_vnni),
                                       cmocka_unit_test(test_emulated),
                                       cmocka_unit_test(test_emulated_points),
                                       cmocka_unit_test(test_ahead),
                                       cmocka_unit_test(test_ahead_avx2),
                                       cmocka_unit_test(test_fast)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
