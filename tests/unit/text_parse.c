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
    int n_calls, n_cut;
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
    case TEXT_EVENT_CALL_CUT:
        assert_true(h->open && call == h->n_calls - 1);
        h->open = false;
        h->n_cut += kind == TEXT_EVENT_CALL_CUT;
        break;
    }
}

/* What is heard of a text that comes step bytes at a time, its calls being trusted or not. */
static void listen(struct heard *h, enum text_chat_family family,
                   const struct text_parser_options *o, const char *s, size_t n, size_t step,
                   bool trust, const char *end)
{
    struct text_parser *p;
    struct json_object *message;
    heard_init(h);
    assert_int_equal(text_parser_create(&p, family, o, hear, h, NULL), INGLE_OK);
    for (size_t at = 0, m; at < n; at += m) {
        const char *rest;
        size_t n_rest;
        m = step < n - at ? step : n - at;
        assert_int_equal(text_parser_add(p, s + at, m, NULL), INGLE_OK);
        if (trust && text_parser_in_call(p, &rest, &n_rest) && rest) {
            assert_memory_equal(rest, s + at + m - n_rest, n_rest);
            text_parser_trust_call(p);
        }
    }
    assert_int_equal(text_parser_end(p, end, NULL), INGLE_OK);
    assert_int_equal(text_parser_message(p, &message, NULL), INGLE_OK);
    assert_false(h->open);
    json_object_put(message);
    text_parser_free(p);
}

static void same_heard(const struct heard *a, const struct heard *b)
{
    assert_string_equal(a->content.at, b->content.at);
    assert_string_equal(a->reasoning.at, b->reasoning.at);
    assert_int_equal(a->n_calls, b->n_calls);
    assert_int_equal(a->n_cut, b->n_cut);
    for (int i = 0; i < a->n_calls; i++) {
        assert_string_equal(a->name[i].at, b->name[i].at);
        assert_string_equal(a->json[i].at, b->json[i].at);
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

static const char *end_of(struct json_object *c)
{
    struct json_object *v;
    if (json_object_object_get_ex(c, "eos", &v) && !json_object_get_boolean(v))
        return "length";
    return json_object_object_get_ex(c, "end", &v) ? json_object_get_string(v) : "turn";
}

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
    assert_int_equal(text_parser_end(p, end_of(c), NULL), INGLE_OK);
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

static struct json_object *load(const char *path)
{
    size_t n;
    char *text = test_slurp(path, &n);
    assert_non_null(text);
    struct json_object *file;
    assert_int_equal(json_parse(text, n, NULL, &file, NULL), INGLE_OK);
    mem_free(text);
    return file;
}

/* Where this project reads more than the vectors' rules say: a case's own result. */
static void apply_deviations(struct json_object *cases, const char *name)
{
    struct json_object *all = load("tests/data/text/parse-deviations.json");
    struct json_object *file = member(all, name);
    assert_true(json_object_get_string_len(member(file, "reason")) > 40);
    struct json_object *list = member(file, "cases");
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *own = json_object_array_get_idx(list, i);
        struct json_object *c = json_object_array_get_idx(
            cases, (size_t)json_object_get_int64(member(own, "case")));
        json_object_object_add(c, "expected", json_object_get(member(own, "expected")));
        json_object_object_add(c, "loose", json_object_new_boolean(1));
    }
    json_object_put(all);
}

static void check_cases(enum text_chat_family family, struct json_object *cases,
                        const char *thought)
{
    for (size_t i = 0; i < json_object_array_length(cases); i++) {
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
}

static void check_file(enum text_chat_family family, const char *name, size_t n_cases,
                       const char *thought)
{
    char path[96];
    snprintf(path, sizeof path, "tests/data/text/%s.json.xz", name);
    struct json_object *file = load(path), *cases = member(file, "cases");
    assert_int_equal(json_object_array_length(cases), n_cases);
    apply_deviations(cases, name);
    check_cases(family, cases, thought);
    json_object_put(file);
}

/* Calls that are not spelled as their format says. */
static void other_spellings_are_read_however_they_are_cut(void **state)
{
    struct json_object *all = load("tests/data/text/spellings.json");
    (void)state;
    check_cases(TEXT_CHAT_GEMMA4, member(all, "gemma4"), "open_thought");
    check_cases(TEXT_CHAT_DEEPSEEK_V4, member(all, "deepseek4"), "thinking");
    json_object_put(all);
}

static void gemma_output_is_read_by_the_rules_however_it_is_cut(void **state)
{
    (void)state;
    check_file(TEXT_CHAT_GEMMA4, "gemma4-parse-vectors", 104,
               "open_thought");
}

static void deepseek_output_is_read_by_the_rules_however_it_is_cut(void **state)
{
    (void)state;
    check_file(TEXT_CHAT_DEEPSEEK_V4, "deepseek-v4-parse-vectors", 98,
               "thinking");
}

/* Where a call was one anyway, trust changes when it is told and nothing else. */
static void check_trusted(enum text_chat_family family, const struct text_parser_options *o,
                          struct json_object *c, const char *marker)
{
    const char *s = json_object_get_string(member(c, "text"));
    const size_t n = (size_t)json_object_get_string_len(member(c, "text"));
    struct heard plain, trusted;
    listen(&plain, family, o, s, n, n + 1, false, end_of(c));
    for (size_t step = 1; step < 8; step++) {
        listen(&trusted, family, o, s, n, step, true, end_of(c));
        if (!strstr(plain.content.at, marker)) {
            if (trusted.n_cut)
                fail_msg("'%s' is cut", s);
            same_heard(&plain, &trusted);
        }
        heard_release(&trusted);
    }
    heard_release(&plain);
}

static void certain_calls_are_told_as_they_come(void **state)
{
    static const char *const path[] = {"tests/data/text/gemma4-parse-vectors.json.xz",
                                       "tests/data/text/deepseek-v4-parse-vectors.json.xz"};
    (void)state;
    static const char *const name[] = {"gemma4-parse-vectors", "deepseek-v4-parse-vectors"};
    for (int f = 0; f < 2; f++) {
        struct json_object *file = load(path[f]), *cases = member(file, "cases"), *loose;
        apply_deviations(cases, name[f]);
        for (size_t i = 0; i < json_object_array_length(cases); i++) {
            struct json_object *c = json_object_array_get_idx(cases, i);
            if (json_object_object_get_ex(c, "loose", &loose))
                continue; /* a grammar allows none of them */
            const struct text_parser_options o = {
                .tools_enabled = json_object_get_boolean(member(c, "tools_enabled")),
                .open_thought = json_object_get_boolean(member(c, f ? "thinking" : "open_thought")),
            };
            check_trusted(f ? TEXT_CHAT_DEEPSEEK_V4 : TEXT_CHAT_GEMMA4, &o, c,
                          f ? "DSML" : "<|tool_call");
        }
        json_object_put(file);
    }
}

#define BAR "\xEF\xBD\x9C"
#define D   BAR "DSML" BAR

static const struct partial {
    enum text_chat_family family;
    const char *text, *json;
    const char *first; /* the text up to where its name is known */
} partials[] = {
    {TEXT_CHAT_GEMMA4,
     "Well:<|tool_call>call:edit{path:<|\"|>a \xC3\xA9\"<|\"|>,n:[1, <|\"|>x\n<|\"|>,{}],ok:true,"
     "text:<|\"|>\xF0\x9F\x90\x9D<|b<|\"|>}<tool_call|>",
     "{\"path\": \"a \xC3\xA9\\\"\", \"n\": [1, \"x\\n\", {}], \"ok\": true, \"text\": "
     "\"\xF0\x9F\x90\x9D<|b\"}",
     "Well:<|tool_call>call:edit{"},
    {TEXT_CHAT_DEEPSEEK_V4,
     "Well:\n\n<" D "tool_calls>\n<" D "invoke name=\"edit\">\n"
     "<" D "parameter name=\"path\" string=\"true\">a \xC3\xA9\"</" D "parameter>\n"
     "<" D "parameter name=\"n\" string=\"false\">[1, {}]</" D "parameter>\n"
     "<" D "parameter name=\"text\" string=\"true\">\xF0\x9F\x90\x9D</" BAR "b</" D "parameter>\n"
     "</" D "invoke>\n</" D "tool_calls>",
     "{\"path\": \"a \xC3\xA9\\\"\", \"n\": [1, {}], \"text\": \"\xF0\x9F\x90\x9D</" BAR "b\"}",
     "Well:\n\n<" D "tool_calls>\n<" D "invoke name=\"edit\">"},
};

/* However it came, and however certain it was: a call that the length cuts is a call with the
 * beginning of its arguments. */
static void calls_are_cut_anywhere(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof partials / sizeof *partials; k++) {
        const struct partial *x = &partials[k];
        const struct text_parser_options o = {.tools_enabled = true, .partial_calls = true};
        const char *marker = strchr(x->first, '>') + 1;
        const size_t n_call = (size_t)(marker - x->first), n = strlen(x->text);
        const size_t n_json = strlen(x->json);
        size_t before = 0;
        for (size_t cut = n_call; cut <= n; cut++) {
            struct heard h, g;
            listen(&h, x->family, &o, x->text, cut, n + 1, false, "length");
            for (size_t step = 1; step < 40; step += 12)
                for (int trust = 0; trust < 2; trust++) {
                    listen(&g, x->family, &o, x->text, cut, step, trust, "length");
                    same_heard(&h, &g);
                    heard_release(&g);
                }
            assert_string_equal(h.content.at, "Well:");
            assert_int_equal(h.n_calls, cut >= strlen(x->first));
            if (h.n_calls) {
                assert_string_equal(h.name[0].at, "edit");
                assert_true(h.json[0].n >= before && h.json[0].n <= n_json);
                assert_memory_equal(h.json[0].at, x->json, h.json[0].n);
                assert_true(h.n_cut == 1 || h.json[0].n == n_json);
                before = h.json[0].n;
            }
            heard_release(&h);
        }
        assert_int_equal(before, n_json);
    }
}

/* However it is spelled: a call that the length cuts has the beginning of its arguments. */
static void other_spellings_are_cut_anywhere(void **state)
{
    static const struct {
        enum text_chat_family family;
        const char *text, *json;
    } example[] = {
        {TEXT_CHAT_GEMMA4, "<|tool_call>call:f{\"a\":\"b c\",\"n\":[1,{\"x\":\"y\"}]}<tool_call|>",
         "{\"a\": \"b c\", \"n\": [1, {\"x\": \"y\"}]}"},
        {TEXT_CHAT_DEEPSEEK_V4,
         "<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"a\">b</" D
         "parameter>\n<" D "parameter name=\"n\">2</" D "parameter>\n</" D "invoke>\n</" D
         "function_calls>",
         "{\"a\": \"b\", \"n\": 2}"},
        {TEXT_CHAT_DEEPSEEK_V4, "<" D "toolcall>f\n```json\n{\"a\":\"b\"}\n```", "{\"a\": \"b\"}"},
    };
    const struct text_parser_options o = {.tools_enabled = true, .partial_calls = true};
    (void)state;
    for (size_t k = 0; k < sizeof example / sizeof *example; k++) {
        const size_t n = strlen(example[k].text);
        size_t most = 0;
        for (size_t cut = 20; cut <= n; cut++) {
            struct heard h, g;
            listen(&h, example[k].family, &o, example[k].text, cut, n + 1, false, "length");
            listen(&g, example[k].family, &o, example[k].text, cut, 1, false, "length");
            same_heard(&h, &g);
            assert_string_equal(h.content.at, "");
            if (h.n_calls) {
                assert_string_equal(h.name[0].at, "f");
                assert_memory_equal(h.json[0].at, example[k].json, h.json[0].n);
                assert_true(h.json[0].n >= most);
                most = h.json[0].n;
            }
            heard_release(&h);
            heard_release(&g);
        }
        assert_int_equal(most, strlen(example[k].json));
    }
}

/* A name that comes twice would make the arguments no JSON that everybody reads alike. */
static void repeated_members_of_certain_calls_are_left_out(void **state)
{
    static const char gemma[] =
        "<|tool_call>call:f{a:1,a:{a:2,b:[3]},b:<|\"|>x<|\"|>,b:<|\"|>y<|\"|>,"
        "c:[{d:1,d:2},{d:3}],a:4}<tool_call|>";
    static const char dsml[] =
        "<" D "tool_calls>\n<" D "invoke name=\"f\">\n"
        "<" D "parameter name=\"a\" string=\"true\">x</" D "parameter>\n"
        "<" D "parameter name=\"a\" string=\"true\">y</" D "parameter>\n"
        "<" D "parameter name=\"a\" string=\"false\">1</" D "parameter>\n"
        "<" D "parameter name=\"b\" string=\"false\">2</" D "parameter>\n"
        "</" D "invoke>\n</" D "tool_calls>";
    const struct text_parser_options o = {.tools_enabled = true};
    (void)state;
    for (size_t step = 1; step < 9; step++) {
        struct heard h;
        listen(&h, TEXT_CHAT_GEMMA4, &o, gemma, sizeof gemma - 1, step, true, "turn");
        assert_string_equal(h.json[0].at,
                            "{\"a\": 1, \"b\": \"x\", \"c\": [{\"d\": 1}, {\"d\": 3}]}");
        assert_int_equal(h.n_cut, 0);
        heard_release(&h);
        listen(&h, TEXT_CHAT_DEEPSEEK_V4, &o, dsml, sizeof dsml - 1, step, true, "turn");
        assert_string_equal(h.json[0].at, "{\"a\": \"x\", \"b\": 2}");
        assert_int_equal(h.n_cut, 0);
        heard_release(&h);
    }
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
        cmocka_unit_test(other_spellings_are_read_however_they_are_cut),
        cmocka_unit_test(other_spellings_are_cut_anywhere),
        cmocka_unit_test(certain_calls_are_told_as_they_come),
        cmocka_unit_test(calls_are_cut_anywhere),
        cmocka_unit_test(repeated_members_of_certain_calls_are_left_out),
        cmocka_unit_test(limits_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
