/* SPDX-License-Identifier: Apache-2.0 */
/* Whichever allocation fails, rendering and parsing say so or give the same as ever. */
#include "unit/unit.h"

#include "text/text.h"
#include "unit/mem_fail.h"
#include <string.h>

static const char gemma_case[] =
    "{\"enable_thinking\":true,\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"u\"},{\"type\":\"image_url\"}]},"
    "{\"role\":\"assistant\",\"content\":\"x<|channel>y<channel|>z\",\"reasoning\":\"r\","
    "\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"k\\\":[1,{"
    "\\\"a\\\":"
    "2.5}]}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":[{\"type\":\"text\","
    "\"text\":"
    "\"o\"}]}],\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"k\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{"
    "\"b\":{},"
    "\"A\":{\"type\":\"string\"}}}}}}}}]}";

static const char deepseek_case[] = "{\"thinking\":true,\"messages\":[{\"role\":\"user\","
                                    "\"content\":\"u\"},{\"role\":\"assistant\","
                                    "\"content\":\"c\",\"reasoning_content\":\"r\",\"tool_calls\":["
                                    "{\"id\":\"1\",\"function\":{\"name\":"
                                    "\"f\",\"arguments\":\"{\\\"k\\\":[1,{\\\"a\\\":2.5}]}\"}},{"
                                    "\"id\":\"2\",\"function\":{\"name\":\"g\","
                                    "\"arguments\":{\"s\":\"v\"}}}]},{\"role\":\"tool\",\"tool_"
                                    "call_id\":\"2\",\"content\":\"two\"},"
                                    "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"one\"}"
                                    "],\"tools\":[{\"function\":{\"name\":"
                                    "\"f\",\"description\":\"d\"}}]}";

static void check_render(enum text_chat_family family, const char *text)
{
    struct json_object *c;
    struct text_prompt want, got;
    struct err err;
    ingle_status s = INGLE_NOMEM;
    text_prompt_init(&want);
    assert_int_equal(json_parse(text, strlen(text), NULL, &c, NULL), INGLE_OK);
    assert_int_equal(text_chat_render_case(family, c, &want, NULL), INGLE_OK);
    int64_t n = 0;
    while (s != INGLE_OK) {
        text_prompt_init(&got);
        mem_fail_in = ++n;
        s = text_chat_render_case(family, c, &got, &err);
        mem_fail_in = 0;
        if (s == INGLE_OK) {
            assert_string_equal(got.text.at, want.text.at);
            assert_int_equal(got.n_special, want.n_special);
        } else {
            assert_int_equal(s, INGLE_NOMEM);
            assert_int_equal(got.text.n + got.n_special, 0);
        }
        text_prompt_release(&got);
    }
    assert_true(n > 10);
    text_prompt_release(&want);
    json_object_put(c);
}

static void rendering_survives_every_failing_allocation(void **state)
{
    (void)state;
    check_render(TEXT_CHAT_GEMMA4, gemma_case);
    check_render(TEXT_CHAT_DEEPSEEK_V4, deepseek_case);
}

static ingle_status parse(enum text_chat_family family, const char *text, struct json_object **out)
{
    struct text_parser *p;
    const struct text_parser_options o = {.tools_enabled = true, .open_thought = true};
    ingle_status s = text_parser_create(&p, family, &o, NULL, NULL, NULL);
    if (s)
        return s;
    for (size_t i = 0; !s && text[i]; i++)
        s = text_parser_add(p, text + i, 1, NULL);
    if (!s)
        s = text_parser_end(p, "turn", NULL);
    if (!s)
        s = text_parser_message(p, out, NULL);
    text_parser_free(p);
    return s;
}

static void check_parse(enum text_chat_family family, const char *text)
{
    struct json_object *want, *got = NULL;
    ingle_status s = INGLE_NOMEM;
    assert_int_equal(parse(family, text, &want), INGLE_OK);
    int64_t n = 0;
    while (s != INGLE_OK) {
        mem_fail_in = ++n;
        s = parse(family, text, &got);
        mem_fail_in = 0;
        if (s != INGLE_OK)
            assert_int_equal(s, INGLE_NOMEM);
    }
    assert_true(n > 10);
    assert_true(json_object_equal(want, got));
    json_object_put(want);
    json_object_put(got);
}

static void parsing_survives_every_failing_allocation(void **state)
{
    (void)state;
    check_parse(TEXT_CHAT_GEMMA4,
                "thought that takes some room<channel|>content that takes some room"
                "<|tool_call>call:name of more than eight{a long enough key:<|\"|>a value with "
                "several words<|\"|>,b:[true,{<|\"|>q:r<|\"|>:-1.5e+10}]}<tool_call|> tail"
                "<|tool_call>call:f{a:1}");
    check_parse(
        TEXT_CHAT_DEEPSEEK_V4,
        "reasoning that takes some room</think>content that takes some room\n\n"
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"name of more than eight\">\n"
        "<｜DSML｜parameter name=\"a long enough key\" string=\"true\">a value with several "
        "words</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" string=\"false\">"
        "[true,{\"q\":1}]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rendering_survives_every_failing_allocation),
        cmocka_unit_test(parsing_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
