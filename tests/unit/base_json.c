/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

static ingle_status gate(const char *text, struct err *err)
{
    return json_gate(text, strlen(text), NULL, err);
}

static void good_texts_pass(void **state)
{
    (void)state;
    static const char *good[] = {
        "1",
        "-0",
        "0.5e-3",
        "1E+9",
        "\"\"",
        "null",
        " true ",
        "[]",
        "{}",
        "[[],{}]",
        "[1,2 , 3]\n",
        "{\"a\":{\"a\":1},\"b\":[{\"a\":2}]}",
        "\"\\u00e9\\ud83d\\ude00\\n\"",
        "\"\xC3\xA9\"",
        "[{\"x\":1},{\"x\":2}]",
        "1000000000000000019884624838656",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct err err = {0};
        if (gate(good[i], &err))
            fail_msg("'%s' was refused: %s", good[i], err.msg);
        struct json_object *o;
        if (json_parse(good[i], strlen(good[i]), NULL, &o, &err))
            fail_msg("'%s' did not parse: %s", good[i], err.msg);
        json_object_put(o);
    }
}

static void bad_texts_are_refused_with_their_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "expected a value at byte 0: the text ends"},
        {" ", "expected a value"},
        {"{", "expected a key at byte 1: the text ends"},
        {"[1", "expected ',' or ']'"},
        {"[1,]", "expected a value at byte 3, found ']'"},
        {"[1 2]", "expected ',' or ']' at byte 3, found '2'"},
        {"{\"a\" 1}", "expected ':'"},
        {"{\"a\":1,}", "expected a key"},
        {"{a:1}", "expected a key"},
        {"[1}", "expected ',' or ']'"},
        {"1 2", "something after the value at byte 2"},
        {"{} x", "something after the value"},
        {"01", "something after the value"},
        {"+1", "expected a value"},
        {".5", "expected a value"},
        {"1.", "expected a digit after the point"},
        {"1e", "expected a digit in the exponent"},
        {"-", "expected a digit"},
        {"NaN", "expected a value"},
        {"-Infinity", "expected a digit"},
        {"tru", "expected a value"},
        {"True", "expected a value"},
        {"'a'", "expected a value"},
        {"/**/1", "expected a value"},
        {"\xEF\xBB\xBF{}", "expected a value at byte 0, found byte 0xef"},
        {"\"a", "a string without end"},
        {"\"\x01\"", "a raw control character in a string at byte 1, found byte 0x01"},
        {"\"\n\"", "a raw control character"},
        {"\"\\x\"", "unknown escape"},
        {"\"\\u12g4\"", "unknown escape"},
        {"\"\\u12", "unknown escape"},
        {"\"\xFF\"", "ill-formed UTF-8"},
        {"\"\xC0\x80\"", "ill-formed UTF-8"},
        {"\"\xED\xA0\x80\"", "ill-formed UTF-8"},
        {"\"\xE2\x82\"", "ill-formed UTF-8"},
        {"{\"a\":1,\"b\":2,\"a\":3}", "duplicate key 'a' at bytes 1 and 13"},
        {"{\"a\":1,\"\\u0061\":3}", "duplicate key 'a'"},
        {"{\"x\":{\"k\":1,\"k\":2}}", "duplicate key 'k'"},
        {"{\"a\\u0000b\":1}", "a NUL in a key"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {0};
        struct json_object *o = NULL;
        assert_int_equal(gate(bad[i].text, &err), INGLE_FORMAT);
        if (!strstr(err.msg, bad[i].says))
            fail_msg("'%s' said: %s", bad[i].text, err.msg);
        assert_int_equal(json_parse(bad[i].text, strlen(bad[i].text), NULL, &o, NULL),
                         INGLE_FORMAT);
        assert_null(o);
    }
    /* A NUL byte is a control character inside a string and no white space outside. */
    assert_int_equal(json_gate("\"\0\"", 3, NULL, NULL), INGLE_FORMAT);
    assert_int_equal(json_gate("1\0", 2, NULL, NULL), INGLE_FORMAT);
}

static void limits_hold_exactly(void **state)
{
    (void)state;
    struct err err;
    const struct json_limits depth = {.depth = 3};
    assert_int_equal(json_gate("[[[1]]]", 7, &depth, NULL), INGLE_OK);
    assert_int_equal(json_gate("[[[[]]]]", 8, &depth, &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "json: nesting of 4 at byte 3, the limit is 3");
    struct json_object *o;
    assert_int_equal(json_parse("[[[1]]]", 7, &depth, &o, NULL), INGLE_OK);
    json_object_put(o);

    const struct json_limits values = {.n_values = 4};
    assert_int_equal(json_gate("[1,2,3]", 7, &values, NULL), INGLE_OK);
    assert_int_equal(json_gate("[1,2,3,4]", 9, &values, &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "json: more than 4 values");

    const struct json_limits keys = {.n_keys = 2};
    const char two[] = "{\"a\":{\"a\":1,\"b\":2},\"b\":{\"c\":3,\"d\":4}}";
    assert_int_equal(json_gate(two, sizeof two - 1, &keys, NULL), INGLE_OK);
    const char three[] = "{\"a\":{\"b\":1,\"c\":2,\"d\":3}}";
    assert_int_equal(json_gate(three, sizeof three - 1, &keys, &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "json: an object with more than 2 keys at byte 18");

    const struct json_limits objects = {.n_objects = 2};
    assert_int_equal(json_gate("[{},[],{}]", 10, &objects, NULL), INGLE_OK);
    assert_int_equal(json_gate("[{},{\"a\":{}}]", 13, &objects, &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "json: more than 2 objects");

    const struct json_limits bytes = {.n_bytes = 3};
    assert_int_equal(json_gate("[1]", 3, &bytes, NULL), INGLE_OK);
    assert_int_equal(json_gate("[1] ", 4, &bytes, &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "json: 4 bytes, the limit is 3");

    /* Depth costs memory on the heap, never the stack. */
    const struct json_limits deep = {.depth = 1 << 20};
    struct str s;
    str_init(&s);
    for (int i = 0; i < 1 << 20; i++)
        str_addc(&s, '[');
    assert_int_equal(json_gate(s.at, s.n, &deep, NULL), INGLE_FORMAT);
    str_release(&s);
}

static void values_arrive(void **state)
{
    (void)state;
    static const char text[] = "{\"s\":\"a\\u0000b\",\"n\":18446744073709551615,\"z\":null}";
    struct json_object *o, *v;
    assert_int_equal(json_parse(text, strlen(text), NULL, &o, NULL), INGLE_OK);
    assert_true(json_object_object_get_ex(o, "s", &v));
    assert_int_equal(json_object_get_string_len(v), 3);
    assert_true(json_object_object_get_ex(o, "n", &v));
    assert_true(json_object_get_uint64(v) == UINT64_MAX);
    assert_true(json_object_object_get_ex(o, "z", &v));
    assert_null(v);
    json_object_put(o);
}

static void numbers_keep_their_digits(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\":[100000000000000000000,-9223372036854775808,1000000000000000000],"
        "\"b\":{\"c\":-9223372036854775809,\"d\":1234567890123456789.0},"
        "\"e\":18446744073709551615,\"f\":2.0,\"g\":1e-07,\"h\":18446744073709551616}";
    struct json_object *o;
    assert_int_equal(json_parse(text, strlen(text), NULL, &o, NULL), INGLE_OK);
    assert_string_equal(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN), text);
    json_object_put(o);
    assert_int_equal(json_parse("98765432109876543210", 20, NULL, &o, NULL), INGLE_OK);
    assert_string_equal(json_object_to_json_string(o), "98765432109876543210");
    json_object_put(o);
}

static void beginnings_of_objects_are_closed(void **state)
{
    static const char *const c[][2] = {
        {"{", "{}"},
        {" {\"a", " {}"},
        {"{\"a\"", "{}"},
        {"{\"a\":", "{}"},
        {"{\"a\": 1", "{}"},
        {"{\"a\": 1,", "{\"a\": 1}"},
        {"{\"a\": \"x\\\"", "{}"},
        {"{\"a\": \"x\", \"b\": \"y", "{\"a\": \"x\"}"},
        {"{\"a\": [1, {\"b\": true}, {\"c\": nul", "{\"a\": [1, {\"b\": true}, {}]}"},
        {"{\"a\": {}} and more", "{\"a\": {}}"},
        {"{\"a\": 1}", "{\"a\": 1}"},
        {"{\"a\": nope, \"b\": 1", NULL},
        {"{\"a\": 1, \"a\": 2,", NULL},
        {"{]", NULL},
        {"{broken", NULL},
        {"{\"a\": 1, b", NULL},
        {"[1", NULL},
        {"1", NULL},
        {"", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct str out;
        str_init(&out);
        str_adds(&out, "x");
        const bool closed = json_close(&out, c[i][0], strlen(c[i][0]));
        if (closed != (c[i][1] != NULL) || strcmp(out.at + 1, closed ? c[i][1] : "") != 0)
            fail_msg("'%s': %d '%s'", c[i][0], closed, out.at);
        str_release(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_texts_pass),
        cmocka_unit_test(bad_texts_are_refused_with_their_place),
        cmocka_unit_test(limits_hold_exactly),
        cmocka_unit_test(beginnings_of_objects_are_closed),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(numbers_keep_their_digits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
