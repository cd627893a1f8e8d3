/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/mem.h"
#include "text/text.h"
#include "unit/xz.h"
#include <stdio.h>
#include <string.h>

/* What a listener hears. */
struct heard {
    struct str content, reasoning, json[64], name[64];
    int n_calls;
    bool open; /* between CALL_BEGIN and CALL_END */
};

static void heard_init(struct heard *h)
{
    memset(h, 0, sizeof *h);
    str_init(&h->content);
    str_init(&h->reasoning);
    for (int i = 0; i < 64; i++) {
        str_init(&h->json[i]);
        str_init(&h->name[i]);
    }
}

static void heard_release(struct heard *h)
{
    str_release(&h->content);
    str_release(&h->reasoning);
    for (int i = 0; i < 64; i++) {
        str_release(&h->json[i]);
        str_release(&h->name[i]);
    }
}

static void hear(void *arg, enum text_event_kind kind, int call, const char *bytes, size_t n)
{
    struct heard *h = arg;
    switch (kind) {
    case TEXT_EVENT_CONTENT:
    case TEXT_EVENT_REASONING:
        assert_int_equal(call, -1);
        assert_true(n > 0 && !h->open);
        str_add(kind == TEXT_EVENT_CONTENT ? &h->content : &h->reasoning, bytes, n);
        break;
    case TEXT_EVENT_CALL_BEGIN:
        assert_int_equal(call, h->n_calls);
        assert_true(call < 64 && !h->open);
        str_add(&h->name[call], bytes, n);
        h->n_calls++;
        h->open = true;
        break;
    case TEXT_EVENT_CALL_ARGUMENTS:
        assert_true(h->open && call == h->n_calls - 1);
        str_add(&h->json[call], bytes, n);
        break;
    case TEXT_EVENT_CALL_END:
        assert_true(h->open && call == h->n_calls - 1);
        h->open = false;
        break;
    }
}

static struct json_object *member(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    assert_true(json_object_object_get_ex(o, key, &v));
    return v;
}

static void check_string(struct json_object *o, const char *key, const struct str *s)
{
    struct json_object *v = member(o, key);
    assert_int_equal(json_object_get_string_len(v), s->n);
    assert_memory_equal(json_object_get_string(v), s->at, s->n);
}

/* The text of a JSON value without the white space that does not count. */
static const char *plain(struct json_object *v, struct json_object **owner)
{
    struct err err;
    if (json_parse(json_object_get_string(v), (size_t)json_object_get_string_len(v), NULL, owner,
                   &err) != INGLE_OK)
        fail_msg("arguments '%s': %s", json_object_get_string(v), err.msg);
    return json_object_to_json_string_ext(*owner, JSON_C_TO_STRING_PLAIN);
}

static void check_calls(struct json_object *got, struct json_object *want)
{
    assert_int_equal(json_object_array_length(got), json_object_array_length(want));
    for (size_t i = 0; i < json_object_array_length(got); i++) {
        struct json_object *a = json_object_array_get_idx(got, i);
        struct json_object *b = json_object_array_get_idx(want, i), *x, *y;
        assert_string_equal(json_object_get_string(member(a, "name")),
                            json_object_get_string(member(b, "name")));
        assert_string_equal(plain(member(a, "arguments"), &x), plain(member(b, "arguments"), &y));
        json_object_put(x);
        json_object_put(y);
    }
}

struct cuts {
    size_t step;               /* a cut every so many bytes, or */
    struct json_object *split; /* at these offsets */
};

static void check_parse(enum text_chat_family family, const struct text_parser_options *o,
                        struct json_object *c, struct cuts cuts)
{
    struct json_object *text = member(c, "text"), *want = member(c, "expected"), *got;
    const char *s = json_object_get_string(text);
    const size_t n = (size_t)json_object_get_string_len(text);
    struct text_parser *p;
    struct heard h;
    heard_init(&h);
    assert_int_equal(text_parser_create(&p, family, o, hear, &h, NULL), INGLE_OK);
    size_t at = 0;
    for (size_t i = 0; at < n; i++) {
        size_t to = cuts.step ? at + cuts.step : n;
        if (cuts.split && i < json_object_array_length(cuts.split))
            to = (size_t)json_object_get_int64(json_object_array_get_idx(cuts.split, i));
        to = to < n ? to : n;
        char *copy = mem_strndup(s + at, to - at); /* so that a sanitizer sees an overrun */
        assert_int_equal(text_parser_add(p, copy, to - at, NULL), INGLE_OK);
        mem_free(copy);
        at = to;
    }
    assert_int_equal(text_parser_end(p, "turn", NULL), INGLE_OK);
    assert_int_equal(text_parser_message(p, &got, NULL), INGLE_OK);
    if (strcmp(json_object_get_string(member(got, "content")),
               json_object_get_string(member(want, "content"))) != 0 ||
        strcmp(json_object_get_string(member(got, "reasoning_content")),
               json_object_get_string(member(want, "reasoning_content"))) != 0)
        fail_msg("step %zu of '%s':\n got %s\nnot %s", cuts.step, s,
                 json_object_to_json_string(got), json_object_to_json_string(want));
    check_calls(member(got, "tool_calls"), member(want, "tool_calls"));
    check_string(got, "content", &h.content);
    check_string(got, "reasoning_content", &h.reasoning);
    assert_int_equal(h.n_calls, json_object_array_length(member(got, "tool_calls")));
    for (int i = 0; i < h.n_calls; i++) {
        struct json_object *call = json_object_array_get_idx(member(got, "tool_calls"), (size_t)i);
        check_string(call, "name", &h.name[i]);
        check_string(call, "arguments", &h.json[i]);
    }
    json_object_put(got);
    text_parser_free(p);
    heard_release(&h);
}

static void check_file(enum text_chat_family family, const char *path, size_t n_cases,
                       const char *thought)
{
    size_t n;
    char *text = test_slurp(path, &n);
    assert_non_null(text);
    struct json_object *file;
    assert_int_equal(json_parse(text, n, NULL, &file, NULL), INGLE_OK);
    mem_free(text);
    struct json_object *cases = member(file, "cases");
    assert_int_equal(json_object_array_length(cases), n_cases);
    for (size_t i = 0; i < n_cases; i++) {
        struct json_object *c = json_object_array_get_idx(cases, i), *message;
        const struct text_parser_options o = {
            .tools_enabled = json_object_get_boolean(member(c, "tools_enabled")),
            .open_thought = json_object_get_boolean(member(c, thought)),
        };
        check_parse(family, &o, c, (struct cuts){0});
        for (size_t step = 1; step < 12; step++)
            check_parse(family, &o, c, (struct cuts){.step = step});
        struct json_object *splits = member(c, "splits");
        for (size_t k = 0; k < json_object_array_length(splits); k++)
            check_parse(family, &o, c,
                        (struct cuts){.split = json_object_array_get_idx(splits, k)});
        /* One cut, everywhere. */
        const int len = json_object_get_string_len(member(c, "text"));
        struct json_object *one = json_object_new_array();
        for (int at = 1; at < len; at++) {
            json_object_array_put_idx(one, 0, json_object_new_int(at));
            check_parse(family, &o, c, (struct cuts){.split = one});
        }
        json_object_put(one);
        assert_int_equal(text_chat_parse_case(family, c, &message, NULL), INGLE_OK);
        check_calls(member(message, "tool_calls"), member(member(c, "expected"), "tool_calls"));
        json_object_put(message);
    }
    json_object_put(file);
}

static void gemma_output_is_read_by_the_rules_however_it_is_cut(void **state)
{
    (void)state;
    check_file(TEXT_CHAT_GEMMA4, "tests/data/text/gemma4-parse-vectors.json.xz", 104,
               "open_thought");
}

static void deepseek_output_is_read_by_the_rules_however_it_is_cut(void **state)
{
    (void)state;
    check_file(TEXT_CHAT_DEEPSEEK_V4, "tests/data/text/deepseek-v4-parse-vectors.json.xz", 98,
               "thinking");
}

static void limits_are_named(void **state)
{
    (void)state;
    struct text_parser *p;
    struct err err;
    const struct text_parser_options o = {
        .tools_enabled = true, .limit_bytes = 40, .limit_calls = 1};
    assert_int_equal(text_parser_create(&p, TEXT_CHAT_GEMMA4, &o, NULL, NULL, NULL), INGLE_OK);
    assert_int_equal(text_parser_add(p, "0123456789012345678901234567890123456789", 40, &err),
                     INGLE_OK);
    assert_int_equal(text_parser_add(p, "x", 1, &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "model output exceeds the limit of 40 bytes");
    assert_int_equal(text_parser_add(p, "", 0, &err), INGLE_LIMIT); /* a failure stays */
    text_parser_free(p);

    static const char two[] = "<|tool_call>call:f{}<tool_call|><|tool_call>call:f{}<tool_call|>";
    const struct text_parser_options one = {.tools_enabled = true, .limit_calls = 1};
    assert_int_equal(text_parser_create(&p, TEXT_CHAT_GEMMA4, &one, NULL, NULL, NULL), INGLE_OK);
    assert_int_equal(text_parser_add(p, two, strlen(two), &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "model output exceeds the limit of 1 tool calls");
    text_parser_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma_output_is_read_by_the_rules_however_it_is_cut),
        cmocka_unit_test(deepseek_output_is_read_by_the_rules_however_it_is_cut),
        cmocka_unit_test(limits_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
