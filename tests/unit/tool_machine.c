/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

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
    pool_free(p);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bandwidth),
        cmocka_unit_test(test_refuses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
