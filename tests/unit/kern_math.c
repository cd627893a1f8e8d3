/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"
#include "kern/math.h"
#include <math.h>

static void limits(void **state)
{
    (void)state;
    assert_true(kern_exp(0.0f) == 1.0f);
    assert_true(kern_exp(INFINITY) == INFINITY && kern_exp(89.0f) == INFINITY);
    assert_true(kern_exp(-INFINITY) == 0.0f && kern_exp(-87.01f) == 0.0f);
    assert_true(kern_exp(-87.0f) >= 0x1p-126f && isnan(kern_exp(NAN)));
    assert_true(kern_tanh(INFINITY) == 1.0f && kern_tanh(-INFINITY) == -1.0f);
    assert_true(signbit(kern_tanh(-0.0f)) && kern_tanh(1e-42f) == 1e-42f && isnan(kern_tanh(NAN)));
    assert_true(kern_sigmoid(INFINITY) == 1.0f && kern_sigmoid(-INFINITY) == 0.0f);
    assert_true(kern_sigmoid(0.0f) == 0.5f && isnan(kern_sigmoid(NAN)));
    assert_true(kern_log1p_exp(INFINITY) == INFINITY && kern_log1p_exp(-INFINITY) == 0.0f);
    assert_true(isnan(kern_log1p_exp(NAN)));
}

static void choices(void **state)
{
    (void)state;
    struct kern_math_table t;
    kern_math_table_init(&t, 0);
    const float x[] = {NAN, -2.0f, 5.0f, 5.0f, NAN}, bad[] = {0.0f, INFINITY, NAN};
    assert_int_equal(t.argmax(x, 5), 2);
    assert_int_equal(t.argmax(x, 1), -1);
    assert_int_equal(t.argmax(x, 0), -1);
    assert_int_equal(t.find_bad(bad, 3), 1);
    assert_int_equal(t.find_bad(bad, 1), -1);
    assert_int_equal(t.find_bad(x, 5), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(limits), cmocka_unit_test(choices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
