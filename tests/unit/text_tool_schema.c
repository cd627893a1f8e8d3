/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "text/tool_schema.h"
#include <stdio.h>
#include <string.h>

static struct json_object *shaped(const char *text, bool plain, struct json_object **owner)
{
    struct text_prompt p;
    struct text_writer w;
    struct err err;
    assert_int_equal(json_parse(text, strlen(text), NULL, owner, NULL), INGLE_OK);
    text_prompt_init(&p);
    text_writer_init(&w, &p, &err);
    struct json_object *o = text_tool_schema(&w, *owner, plain);
    assert_int_equal(w.status, INGLE_OK);
    text_prompt_release(&p);
    return o;
}

static void check(const char *text, bool plain, const char *want)
{
    struct json_object *in, *o = shaped(text, plain, &in);
    assert_string_equal(
        json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE),
        want);
    json_object_put(o);
    assert_int_equal(json_object_put(in), 1); /* nobody else holds it */
}

#define P(x) "{\"type\":\"object\",\"properties\":{\"x\":" x "}}"

static void schemas_of_libraries_become_plain(void **state)
{
    static const char *const c[][2] = {
        {P("{\"type\":\"string\"}"), P("{\"type\":\"string\"}")},
        {P("{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}],\"description\":\"d\"}"),
         P("{\"description\":\"d\",\"nullable\":true,\"type\":\"string\"}")},
        {P("{\"type\":[\"integer\",\"null\"]}"), P("{\"type\":\"integer\",\"nullable\":true}")},
        {P("{\"type\":[\"integer\",\"string\"]}"), P("{\"type\":[\"integer\",\"string\"]}")},
        {P("{\"enum\":[\"a\",\"b\"]}"), P("{\"enum\":[\"a\",\"b\"],\"type\":\"string\"}")},
        {P("{\"enum\":[1,2,null]}"), P("{\"enum\":[1,2],\"nullable\":true,\"type\":\"integer\"}")},
        {P("{\"const\":\"a\"}"), P("{\"enum\":[\"a\"],\"type\":\"string\"}")},
        {P("{\"allOf\":[{\"$ref\":\"#/$defs/A\"}],\"description\":\"mine\"}"),
         P("{\"description\":\"mine\"}")}, /* there is no A */
        {"{\"properties\":{\"x\":{\"allOf\":[{\"$ref\":\"#/$defs/"
         "A\"}],\"description\":\"mine\"}},\"$defs\":{\"A\":"
         "{\"enum\":[\"q\"],\"description\":\"theirs\"}}}",
         "{\"properties\":{\"x\":{\"description\":\"mine\",\"enum\":[\"q\"],\"type\":\"string\"}},"
         "\"type\":\"object\"}"},
        {"{\"properties\":{\"x\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/definitions/"
         "a~1b\"}}},\"definitions\":"
         "{\"a/b\":{\"type\":\"integer\"}}}",
         "{\"properties\":{\"x\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}},\"type\":"
         "\"object\"}"},
        {P("{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}"),
         P("{\"type\":[\"string\",\"integer\"]}")},
        {P("{\"oneOf\":[{\"const\":\"a\"},{\"const\":\"b\"}]}"),
         P("{\"enum\":[\"a\",\"b\"],\"type\":\"string\"}")},
        {P("{\"anyOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"l\":{\"type\":\"string\"}},"
           "\"required\":[\"k\",\"l\"]},"
           "{\"properties\":{\"m\":{\"type\":\"string\"}},\"required\":[\"k\"]}]}"),
         P("{\"properties\":{\"k\":{\"enum\":[\"a\"],\"type\":\"string\"},\"l\":{\"type\":"
           "\"string\"},\"m\":{\"type\":"
           "\"string\"}},\"required\":[\"k\"],\"type\":\"object\"}")},
        {P("{\"type\":\"object\",\"title\":\"T\",\"additionalProperties\":{\"type\":\"integer\"}}"),
         P("{\"type\":\"object\"}")},
        {P("{\"anyOf\":[{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},{\"type\":\"null\"}"
           "]}"),
         P("{\"nullable\":true,\"type\":\"string\"}")},
        {"{\"properties\":{\"n\":{\"$ref\":\"#\"}}}",
         "{\"properties\":{\"n\":{\"properties\":{\"n\":{\"type\":\"object\"}},\"type\":\"object\"}"
         "},\"type\":\"object\"}"},
        {P("7"), P("7")},
        {P("{\"anyOf\":7,\"$ref\":7,\"enum\":7,\"type\":7}"), P("{\"enum\":7,\"type\":7}")},
    };
    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        check(c[i][0], true, c[i][1]);
}

static void references_alone_are_put_into_json(void **state)
{
    (void)state;
    check(P("{\"anyOf\":[{\"type\":\"null\"}]}"), false, P("{\"anyOf\":[{\"type\":\"null\"}]}"));
    check("{\"properties\":{\"x\":{\"$ref\":\"#/$defs/"
          "A\",\"description\":\"d\"},\"l\":[{\"$ref\":\"#/$defs/A\"}]},"
          "\"$defs\":{\"A\":{\"type\":\"integer\"}}}",
          false,
          "{\"properties\":{\"x\":{\"description\":\"d\",\"type\":\"integer\"},\"l\":[{\"type\":"
          "\"integer\"}]}}");
    static const char self[] = "{\"$defs\":{\"A\":{\"items\":{\"$ref\":\"#/$defs/"
                               "A\"}}},\"properties\":{\"x\":{\"$ref\":\"#/$defs/A\"}}}";
    check(self, false, self);
    static const char away[] =
        "{\"properties\":{\"x\":{\"$ref\":\"https://example.org/a\"}},\"$defs\":{}}";
    check(away, false, away);
}

/* Definitions that double at each of 40 levels, and one that holds itself often. */
static void work_has_a_bound(void **state)
{
    (void)state;
    struct str s;
    str_init(&s);
    str_adds(&s, "{\"properties\":{\"x\":{\"$ref\":\"#/$defs/d0\"}},\"$defs\":{");
    for (int i = 0; i < 40; i++)
        str_addf(&s,
                 "%s\"d%d\":{\"properties\":{\"a\":{\"$ref\":\"#/$defs/d%d\"},\"b\":{\"$ref\":\"#/"
                 "$defs/d%d\"}}}",
                 i ? "," : "", i, i + 1, i + 1);
    str_adds(&s, ",\"d40\":{\"type\":\"string\"}}}");
    for (int plain = 0; plain < 2; plain++) {
        struct json_object *in, *o = shaped(s.at, plain, &in);
        const size_t n = strlen(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN));
        assert_true(n < 1 << 20);
        json_object_put(o);
        json_object_put(in);
    }
    str_clear(&s);
    str_adds(&s, "{\"properties\":{\"x0\":{\"$ref\":\"#\"}");
    for (int i = 1; i < 2000; i++)
        str_addf(&s, ",\"x%d\":{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#/properties/x0\"}]}", i);
    str_adds(&s, "}}");
    struct json_object *in, *o = shaped(s.at, true, &in);
    assert_true(strlen(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN)) < 4 << 20);
    json_object_put(o);
    json_object_put(in);
    str_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_of_libraries_become_plain),
        cmocka_unit_test(references_alone_are_put_into_json),
        cmocka_unit_test(work_has_a_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
