/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/clock.h"
#include "base/num.h"
#include "base/str.h"
#include "base/utf8.h"
#include <time.h>

static void sizes_are_checked(void **state)
{
    (void)state;
    size_t n = 7;
    assert_false(num_mul(SIZE_MAX, 2, &n));
    assert_false(num_add(SIZE_MAX, 1, &n));
    assert_false(num_align(SIZE_MAX - 3, 64, &n));
    assert_int_equal(n, 7);
    assert_true(num_align(65, 64, &n));
    assert_int_equal(n, 128);
}

static void json_strings_are_escaped(void **state)
{
    (void)state;
    struct str s;
    str_init(&s);
    str_add_json(&s, "a\"\\\n\x01\xC3\xA9\xFF", 8);
    assert_string_equal(s.at, "\"a\\\"\\\\\\n\\u0001\xC3\xA9\xEF\xBF\xBD\"");
    str_release(&s);
}

static void ill_formed_utf8_is_cut_into_maximal_parts(void **state)
{
    (void)state;
    uint32_t cp;
    assert_int_equal(utf8_decode("\xE2\x82", 2, &cp), 2);
    assert_true(cp == UTF8_BAD);
    assert_int_equal(utf8_step("\xE2\x82", 2, &cp), 2);
    assert_true(cp == UTF8_PART);
    assert_int_equal(utf8_decode("\xED\xA0\x80", 3, &cp), 1);
    assert_true(cp == UTF8_BAD);
    assert_int_equal(utf8_decode("\xF0\x9F\x98\x80", 4, &cp), 4);
    assert_true(cp == 0x1F600);
}

static void ages_of_files_are_not_negative(void **state)
{
    (void)state;
    assert_in_range(clock_age((int64_t)time(NULL) - 100), 100, 200);
    assert_int_equal(clock_age((int64_t)time(NULL) + 100), 0);
    assert_int_equal(clock_age(INT64_MAX), 0);
    assert_true(clock_age(INT64_MIN) >= (int64_t)time(NULL) - 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(ages_of_files_are_not_negative),
        cmocka_unit_test(json_strings_are_escaped),
        cmocka_unit_test(ill_formed_utf8_is_cut_into_maximal_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
