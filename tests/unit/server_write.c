/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/json.h"
#include "server/write.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void commas_stand_between_values(void **state)
{
    (void)state;
    struct str s;
    str_init(&s);
    str_adds(&s, "data: ");
    write_open(&s, '{');
    write_member(&s, "id", "a{");
    write_key(&s, "list");
    write_open(&s, '[');
    write_int(&s, -1);
    write_uint(&s, UINT64_MAX);
    write_open(&s, '[');
    write_close(&s, ']');
    write_open(&s, '{');
    write_close(&s, '}');
    write_text(&s, NULL);
    write_close(&s, ']');
    write_member_bool(&s, "yes", true);
    write_member_number(&s, "x", 0.1);
    write_member_null(&s, "n");
    write_key(&s, "raw");
    write_raw(&s, "{\"a\":\r\n 1}\n", 11);
    write_member_string(&s, "bytes", "\0\"\xff", 3);
    write_member_int(&s, "last", 7);
    write_close(&s, '}');
    assert_string_equal(s.at, "data: {\"id\":\"a{\",\"list\":[-1,18446744073709551615,[],{},null],"
                              "\"yes\":true,\"x\":0.1,\"n\":null,\"raw\":{\"a\":   1},"
                              "\"bytes\":\"\\u0000\\\"\xEF\xBF\xBD\",\"last\":7}");
    assert_int_equal(json_gate(s.at + 6, s.n - 6, NULL, NULL), INGLE_OK);
    str_release(&s);
}

static void numbers_read_back_as_they_were(void **state)
{
    (void)state;
    static const double v[] = {0, -0.5, 0.1, 1e300, 5e-324, 1.0 / 3, 123456789012345680.0, -1e-7};
    struct str s;
    str_init(&s);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        str_clear(&s);
        write_number(&s, v[i]);
        assert_true(strtod(s.at, NULL) == v[i]);
        assert_int_equal(json_gate(s.at, s.n, NULL, NULL), INGLE_OK);
        str_clear(&s);
        write_float(&s, (float)v[i]);
        assert_true(isinf((float)v[i]) || strtof(s.at, NULL) == (float)v[i]);
    }
    str_clear(&s);
    write_number(&s, (double)NAN);
    write_number(&s, -(double)INFINITY);
    write_float(&s, INFINITY);
    assert_string_equal(s.at, "null,null,null");
    str_release(&s);
}

/* As the commands print it. */
static void blanks_and_digits_are_as_asked(void **state)
{
    (void)state;
    struct str s;
    str_init(&s);
    s.spaced = true;
    write_open(&s, '{');
    write_member_uint(&s, "n", 18446744073709551615u);
    write_member_fixed(&s, "ms", 2, 1.005e3);
    write_member_significant(&s, "kl", 3, 1.0 / 3);
    write_key(&s, "list");
    write_open(&s, '[');
    write_fixed(&s, 0, 2.0);
    write_significant(&s, 6, (double)INFINITY);
    write_fixed(&s, 1, (double)NAN);
    write_close(&s, ']');
    write_close(&s, '}');
    assert_string_equal(s.at, "{\"n\": 18446744073709551615, \"ms\": 1005.00, \"kl\": 0.333, "
                              "\"list\": [2, null, null]}");
    str_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_stand_between_values),
        cmocka_unit_test(numbers_read_back_as_they_were),
        cmocka_unit_test(blanks_and_digits_are_as_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
