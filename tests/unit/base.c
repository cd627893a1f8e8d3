/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/clock.h"
#include "base/num.h"
#include "base/str.h"
#include "base/utf8.h"
#include <string.h>
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

static void text_from_outside_is_shown(void **state)
{
    (void)state;
    static const char text[] =
        "a\\\t\n\r\0\x1b["
        "31m\x7f\xc2\x9b\xe2\x80\xae\xe2\x80\x8f\xe2\x80\xa8\xf3\xa0\x80\x81\xff\xe2\x82\xc3\xa9";
    char out[256];
    const size_t n = utf8_show(text, sizeof text - 1, UTF8_LINE, out, sizeof out);
    assert_string_equal(out,
                        "a\\\\t\\n\\r\\x00\\x1b["
                        "31m\\x7f\\u009b\\u202e\\u200f\\u2028\\U0e0001\\xff\\xe2\\x82\xc3\xa9");
    assert_int_equal(n, strlen(out));
    utf8_show("a\tb\n\xe2\x80\x8f\x1b", 8, UTF8_TEXT, out, sizeof out);
    assert_string_equal(out, "a\tb\n\xe2\x80\x8f\\x1b");
    for (size_t cap = 1; cap < 8; cap++) { /* nothing is cut in its middle */
        assert_true(utf8_show("\xc3\xa9\n\x1b", 4, UTF8_LINE, out, cap) < cap);
        assert_int_equal(strlen(out), cap < 3 ? 0 : cap < 5 ? 2 : 4);
    }
    struct str s;
    str_init(&s);
    str_add_shown(&s, "x\n\xe2\x80\xae", 5);
    assert_string_equal(s.at, "x\\n\\u202e");
    str_release(&s);
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
        cmocka_unit_test(text_from_outside_is_shown),
        cmocka_unit_test(ages_of_files_are_not_negative),
        cmocka_unit_test(json_strings_are_escaped),
        cmocka_unit_test(ill_formed_utf8_is_cut_into_maximal_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
