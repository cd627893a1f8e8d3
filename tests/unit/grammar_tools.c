/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that a grammar allows: the family's parser reads them as calls of a tool of the list,
 * with arguments that fit the tool's schema (by the grammar of that schema).
 */
#include "unit/grammar_world.h"

#include "base/json.h"
#include "text/chat.h"
#include <stdlib.h>

#define DSML "\xEF\xBD\x9C" "DSML\xEF\xBD\x9C"

static const char *const schema[] = {
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":"
    "\"integer\",\"minimum\":1,\"maximum\":14}},\"required\":[\"city\"]}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":[\"string\",\"number\"]},\"b\":{\"enum\":"
    "[\"x\",\"y z\",3,null]},\"c\":{\"type\":\"boolean\"}},\"required\":[\"a\",\"b\"]}",
    "{\"type\":\"object\",\"properties\":{\"list\":{\"type\":\"array\",\"items\":{\"type\":"
    "\"object\",\"properties\":{\"k\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":5},\"v\":{"
    "\"type\":\"null\"}},\"required\":[\"k\"]},\"maxItems\":3}},\"required\":[\"list\"]}",
    "{\"type\":\"object\",\"properties\":{\"when\":{\"type\":\"string\",\"pattern\":\"^[0-9]{2}:[0-"
    "9]{2}$\"},\"odd key!\":{\"type\":\"string\",\"maxLength\":4}},\"required\":[\"when\",\"odd "
    "key!\"],\"additionalProperties\":{\"type\":\"integer\"}}",
    "{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"string\"},\"next\":{"
    "\"anyOf\":[{\"$ref\":\"#/$defs/"
    "t\"},{\"type\":\"null\"}]}},\"required\":[\"n\",\"next\"]}},\"type\":\"object\","
    "\"properties\":{\"t\":{\"$ref\":\"#/$defs/t\"}},\"required\":[\"t\"]}",
    "{\"type\":\"object\",\"anyOf\":[{\"properties\":{\"p\":{\"type\":\"string\"}},\"required\":["
    "\"p\"]},{\"properties\":{\"q\":{\"type\":\"number\"}},\"required\":[\"q\"]}]}",
    "{\"type\":\"object\",\"properties\":{\"any\":{}}}",
    "{\"type\":\"object\",\"properties\":{\"o\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
    "s\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
    "s\"}}]}},\"required\":[\"o\"],\"$defs\":{\"s\":{\"type\":\"string\"}}}",
};
#define BEHIND ",\"behind\":true"
enum { N_SCHEMAS = sizeof schema / sizeof *schema };

static void add_tools(struct str *s)
{
    str_adds(s, "{\"tools\":[");
    for (size_t i = 0; i < N_SCHEMAS; i++)
        str_addf(s,
                 "%s{\"type\":\"function\",\"function\":{\"name\":\"tool_%zu\",\"parameters\":%s}}",
                 i ? "," : "", i, schema[i]);
    str_adds(s, "]");
}

static struct grammar *tools_grammar(const struct world *w, enum text_chat_family family,
                                          const char *rest)
{
    struct grammar *g = NULL;
    struct err err = {0};
    struct str s;
    str_init(&s);
    add_tools(&s);
    str_adds(&s, rest);
    str_addc(&s, '}');
    if (grammar_tools(&g, family, w->t, s.at, s.n, NULL, NULL, &err))
        fail_msg("%s", err.msg);
    str_release(&s);
    return g;
}

/* Draws tokens, those that may close something more often; false: it did not end in time. */
static bool generate(const struct world *w, const struct grammar *g, struct str *out)
{
    struct grammar_matcher *m = world_matcher(w, g);
    struct err err = {0};
    bool ended = false;
    for (int i = 0; i < 1500 && !ended; i++) {
        const uint64_t *bit;
        int32_t token;
        bool fits = false;
        if (grammar_matcher_mask(m, &bit, &err))
            fail_msg("%s", err.msg);
        uint64_t copy[16] = {0};
        memcpy(copy, bit, (w->n + 3 + 63) / 64 * 8);
        for (int tries = 0; tries < 8 && !fits; tries++) {
            static const char closers[] = "}]\"<|/>,1}]\"";
            token =
                rand() % 3
                    ? text_find(w->t, (char[]){closers[(size_t)rand() % (sizeof closers - 1)]}, 1)
                    : (int32_t)(w->n - 1 - (size_t)rand() % 5);
            fits = token >= 0 && (copy[token / 64] >> token % 64 & 1);
        }
        while (!fits) {
            token = rand() % (int32_t)w->n;
            fits = copy[token / 64] >> token % 64 & 1;
        }
        assert_int_equal(grammar_matcher_accept(m, token, &err), INGLE_OK);
        ended = token == w->end;
        assert_int_equal(text_decode(w->t, token, false, out, &err), INGLE_OK);
    }
    grammar_matcher_free(m);
    return ended;
}

struct seen {
    const struct world *w;
    struct grammar *const *json; /* [N_SCHEMAS] */
    struct str content, name, arguments;
    size_t n_calls, most;
    const char *text;
};

/* The members in the order in which the schema names them, which the schema's own grammar asks
 * for: a new object. */
static struct json_object *ordered(struct json_object *v, const char *text)
{
    struct json_object *out;
    if (json_object_is_type(v, json_type_array)) {
        out = json_object_new_array();
        for (size_t i = 0; i < json_object_array_length(v); i++)
            json_object_array_add(out, ordered(json_object_array_get_idx(v, i), text));
        return out;
    }
    if (!json_object_is_type(v, json_type_object))
        return json_object_get(v);
    out = json_object_new_object();
    for (const char *at = text; (at = strchr(at, '"')) != NULL; at++) {
        json_object_object_foreach(v, named, x) {
            const size_t n = strlen(named);
            if (strncmp(at + 1, named, n) == 0 && at[1 + n] == '"' &&
                !json_object_object_get_ex(out, named, NULL))
                json_object_object_add(out, named, ordered(x, text));
        }
    }
    json_object_object_foreach(v, name, y) {
        if (!json_object_object_get_ex(out, name, NULL))
            json_object_object_add(out, name, ordered(y, text));
    }
    return out;
}

static bool fits(const struct seen *s, int i)
{
    struct json_object *v = json_tokener_parse(s->arguments.at), *in_order = ordered(v, schema[i]);
    const char *text = json_object_to_json_string_ext(
        in_order, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    const bool yes = world_fits(s->w, s->json[i], text, strlen(text), false);
    json_object_put(v);
    json_object_put(in_order);
    return yes;
}

static void on_event(void *arg, enum text_event_kind kind, int call, const char *text, size_t n)
{
    struct seen *s = arg;
    (void)call;
    switch (kind) {
    case TEXT_EVENT_CONTENT:
    case TEXT_EVENT_REASONING:
        str_add(&s->content, text, n);
        break;
    case TEXT_EVENT_CALL_BEGIN:
        str_clear(&s->name);
        str_clear(&s->arguments);
        str_add(&s->name, text, n);
        break;
    case TEXT_EVENT_CALL_ARGUMENTS:
        str_add(&s->arguments, text, n);
        break;
    case TEXT_EVENT_CALL_END: {
        assert_int_equal(strncmp(s->name.at, "tool_", 5), 0);
        const int i = atoi(s->name.at + 5);
        assert_in_range(i, 0, N_SCHEMAS - 1);
        if (!fits(s, i))
            fail_msg("%s\nis read as %s, which does not fit %s", s->text, s->arguments.at,
                     schema[i]);
        s->n_calls++;
        break;
    }
    case TEXT_EVENT_CALL_CUT:
        fail_msg("a call of %s is cut", s->text);
    }
}

static void check_calls(struct seen *s, enum text_chat_family family, const struct str *text)
{
    const struct text_parser_options o = {.tools_enabled = true};
    struct text_parser *p = NULL;
    struct err err = {0};
    str_init(&s->content);
    str_init(&s->name);
    str_init(&s->arguments);
    s->n_calls = 0;
    s->text = text->at;
    assert_int_equal(text_parser_create(&p, family, &o, on_event, s, &err), INGLE_OK);
    assert_int_equal(text_parser_add(p, text->at, text->n, &err), INGLE_OK);
    assert_int_equal(text_parser_end(p, "turn", &err), INGLE_OK);
    if (s->content.n || s->n_calls < 1 || s->n_calls > s->most)
        fail_msg("%s\nis read as %zu calls and '%s'", text->at, s->n_calls, s->content.at);
    text_parser_free(p);
    str_release(&s->content);
    str_release(&s->name);
    str_release(&s->arguments);
}

static void check_family(enum text_chat_family family, bool marks, bool parallel)
{
    struct world w;
    struct grammar *json[N_SCHEMAS];
    size_t n_done = 0;
    world_open(&w, marks);
    for (size_t i = 0; i < N_SCHEMAS; i++)
        json[i] = world_grammar(&w, SCHEMA, schema[i]);
    struct grammar *g =
        tools_grammar(&w, family, parallel ? ",\"choice\":\"required\"" : ",\"parallel\":false");
    struct seen seen = {.w = &w, .json = json, .most = parallel ? 1000 : 1};
    srand(7);
    for (int i = 0; i < 150; i++) {
        struct str text;
        str_init(&text);
        if (generate(&w, g, &text)) {
            check_calls(&seen, family, &text);
            n_done++;
        }
        str_release(&text);
    }
    assert_true(n_done > 50);
    for (size_t i = 0; i < N_SCHEMAS; i++)
        grammar_free(json[i]);
    grammar_free(g);
    world_close(&w);
}

static void test_gemma4(void **state)
{
    (void)state;
    check_family(TEXT_CHAT_GEMMA4, false, false);
    check_family(TEXT_CHAT_GEMMA4, true, true);
}

static void test_deepseek4(void **state)
{
    (void)state;
    check_family(TEXT_CHAT_DEEPSEEK_V4, false, false);
    check_family(TEXT_CHAT_DEEPSEEK_V4, true, true);
}

/* Texts as the models' own templates write them. */
static void test_forms(void **state)
{
    static const struct {
        enum text_chat_family family;
        const char *rest, *text;
        bool fits;
    } c[] = {
        {TEXT_CHAT_GEMMA4, "", "<|tool_call>call:tool_0{city:<|\"|>Paris<|\"|>,days:3}<tool_call|>",
         true},
        {TEXT_CHAT_GEMMA4, "",
         "<|tool_call>call:tool_0{city:<|\"|>a<|b<|\"|>}<tool_call|><|tool_call>call:tool_6{}<tool_"
         "call|>",
         true},
        {TEXT_CHAT_GEMMA4, "", "<|tool_call>call:tool_6{any:{x:[1,{y:<|\"|>z<|\"|>}]}}<tool_call|>",
         true},
        {TEXT_CHAT_GEMMA4, "",
         "<|tool_call>call:tool_3{when:<|\"|>12:30<|\"|>,<|\"|>odd "
         "key!<|\"|>:<|\"|><<|\"|>,n:5}<tool_call|>",
         true},
        {TEXT_CHAT_GEMMA4, "", "<|tool_call>call:tool_0{days:3,city:<|\"|>Paris<|\"|>}<tool_call|>",
         true},
        {TEXT_CHAT_GEMMA4, "", "<|tool_call>call:tool_0{days:3}<tool_call|>", false},
        {TEXT_CHAT_GEMMA4, "",
         "<|tool_call>call:tool_0{city:<|\"|>Paris<|\"|>,days:15}<tool_call|>", false},
        {TEXT_CHAT_GEMMA4, "", "<|tool_call>call:tool_9{}<tool_call|>", false},
        {TEXT_CHAT_GEMMA4, "", "call it", false},
        {TEXT_CHAT_GEMMA4, ",\"choice\":\"tool_6\"", "<|tool_call>call:tool_6{}<tool_call|>", true},
        {TEXT_CHAT_GEMMA4, ",\"choice\":\"tool_6\"",
         "<|tool_call>call:tool_0{city:<|\"|>Paris<|\"|>}<tool_call|>", false},
        {TEXT_CHAT_GEMMA4, ",\"parallel\":false",
         "<|tool_call>call:tool_6{}<tool_call|><|tool_call>call:tool_6{}<tool_call|>", false},
        {TEXT_CHAT_DEEPSEEK_V4, "",
         "\n\n<" DSML "tool_calls>\n<" DSML "invoke name=\"tool_0\">\n<" DSML
         "parameter name=\"city\" string=\"true\">Pa</ris</" DSML "parameter>\n<" DSML
         "parameter name=\"days\" string=\"false\">3</" DSML "parameter>\n</" DSML
         "invoke>\n</" DSML "tool_calls>",
         true},
        {TEXT_CHAT_DEEPSEEK_V4, "",
         "<" DSML "tool_calls>\n<" DSML "invoke name=\"tool_6\">\n</" DSML "invoke>\n<" DSML
         "invoke name=\"tool_1\">\n<" DSML "parameter name=\"a\" string=\"false\">-2.5</" DSML
         "parameter>\n<" DSML "parameter name=\"b\" string=\"true\">y z</" DSML
         "parameter>\n</" DSML "invoke>\n</" DSML "tool_calls>",
         true},
        {TEXT_CHAT_DEEPSEEK_V4, "",
         "<" DSML "tool_calls>\n<" DSML "invoke name=\"tool_0\">\n<" DSML
         "parameter name=\"city\" string=\"false\">1</" DSML "parameter>\n</" DSML
         "invoke>\n</" DSML "tool_calls>",
         false},
        {TEXT_CHAT_DEEPSEEK_V4, "", "<" DSML "tool_calls>\n</" DSML "tool_calls>", false},
        {TEXT_CHAT_GEMMA4, BEHIND, "call:tool_0{days:3,city:<|\"|>Paris<|\"|>}<tool_call|>", true},
        {TEXT_CHAT_GEMMA4, BEHIND, "call:tool_0{city:<|\"|>Paris<|\"|>,days:3}<tool_call|>", true},
        {TEXT_CHAT_GEMMA4, BEHIND, "call:tool_0{days:3}<tool_call|>", false},
        {TEXT_CHAT_GEMMA4, BEHIND, "call:tool_0{city:<|\"|>a<|\"|>,city:<|\"|>a<|\"|>}<tool_call|>",
         false},
        {TEXT_CHAT_GEMMA4, BEHIND, "call:tool_6{}<tool_call|><|tool_call>", false},
        {TEXT_CHAT_GEMMA4, BEHIND, "call:tool_2{list:[{v:null,k:<|\"|>x<|\"|>}]}<tool_call|>",
         true},
        {TEXT_CHAT_GEMMA4, BEHIND,
         "call:tool_3{n:5,<|\"|>odd "
         "key!<|\"|>:<|\"|><<|\"|>,m:6,when:<|\"|>12:30<|\"|>}<tool_call|>",
         true},
        {TEXT_CHAT_DEEPSEEK_V4, BEHIND,
         "tool_calls>\n<" DSML "invoke name=\"tool_0\">\n<" DSML
         "parameter name=\"days\" string=\"false\">3</" DSML "parameter>\n<" DSML
         "parameter name=\"city\" string=\"true\">x</" DSML "parameter>\n</" DSML "invoke>\n<" DSML
         "invoke name=\"tool_6\">\n</" DSML "invoke>\n</" DSML "tool_calls>",
         true},
        {TEXT_CHAT_DEEPSEEK_V4, BEHIND,
         "tool_calls>\n<" DSML "invoke name=\"tool_0\">\n<" DSML
         "parameter name=\"days\" string=\"false\">3</" DSML "parameter>\n</" DSML
         "invoke>\n</" DSML "tool_calls>",
         false},
        {TEXT_CHAT_DEEPSEEK_V4, BEHIND,
         "tool_calls>\n<" DSML "invoke name=\"tool_0\">\n<" DSML
         "parameter name=\"city\" string=\"true\">x</" DSML "parameter>\n<" DSML
         "parameter name=\"city\" string=\"true\">x</" DSML "parameter>\n</" DSML "invoke>\n</" DSML
         "tool_calls>",
         false},
    };
    struct world w;
    (void)state;
    world_open(&w, false);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct grammar *g = tools_grammar(&w, c[i].family, c[i].rest);
        if (world_fits(&w, g, c[i].text, strlen(c[i].text), i < 2) != c[i].fits)
            fail_msg("%s %s", c[i].text, c[i].fits ? "does not fit" : "fits");
        grammar_free(g);
    }
    world_close(&w);
}

static void test_refused(void **state)
{
    static const struct {
        ingle_status status;
        const char *text, *says;
    } c[] = {
        {INGLE_FORMAT, "{", "tools"},
        {INGLE_ARG, "{}", "'tools' is no array"},
        {INGLE_ARG, "{\"tools\":[]}", "no tool"},
        {INGLE_ARG, "{\"tools\":[{\"function\":{}}]}", "tool 0: 'name'"},
        {INGLE_ARG, "{\"tools\":[{\"function\":{\"name\":\"a b\"}}]}", "tool 0: 'name'"},
        {INGLE_ARG, "{\"tools\":[{\"function\":{\"name\":\"f\"}}],\"choice\":\"g\"}", "named g"},
        {INGLE_ARG, "{\"tools\":[{\"function\":{\"name\":\"f\"}}],\"choice\":{}}", "'choice'"},
        {INGLE_ARG, "{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":1}}]}",
         "tool 0: #': 'parameters'"},
        {INGLE_ARG,
         "{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"string\"}}}]}",
         "object"},
        {INGLE_UNSUP,
         "{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"if\":{"
         "}}}}}}]}",
         "tool 0: #/properties/a"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (int family = 0; family < 2; family++) {
            struct grammar *g = NULL;
            struct err err = {0};
            const ingle_status st = grammar_tools(&g, (enum text_chat_family)family, NULL,
                                                  c[i].text, strlen(c[i].text), NULL, NULL, &err);
            if (st != c[i].status || !strstr(err.msg, c[i].says))
                fail_msg("%s: %d %s", c[i].text, (int)st, st ? err.msg : "");
        }
}

/* A tool whose schema does not compile takes any arguments, the others theirs; it is told. */
static void count_reports(void *arg, ingle_report_level level, const char *kind,
                          const char *subject, const char *text)
{
    (void)level;
    if (strcmp(kind, "tool") != 0)
        return;
    assert_string_equal(subject, "hard");
    assert_non_null(strstr(text, "'if' is not supported"));
    ++*(int *)arg;
}

static void test_schemas_that_are_not_supported(void **state)
{
    static const char tools[] = "{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{"
                                "\"properties\":{\"a\":{\"type\":\"integer\"}}}}},"
                                "{\"function\":{\"name\":\"hard\",\"parameters\":{\"properties\":{"
                                "\"a\":{\"if\":{}}}}}}],\"behind\":true}";
    int n = 0;
    const struct report_sink sink = {.report = count_reports, .arg = &n};
    struct world w;
    struct grammar *g = NULL;
    struct err err = {0};
    (void)state;
    world_open(&w, false);
    assert_int_equal(
        grammar_tools(&g, TEXT_CHAT_GEMMA4, w.t, tools, sizeof tools - 1, &sink, NULL, &err),
        INGLE_OK);
    assert_int_equal(n, 1);
    assert_true(world_fits(&w, g, "call:hard{a:1,b:[{}]}<tool_call|>", 33, false));
    assert_true(world_fits(&w, g, "call:f{a:1}<tool_call|>", 23, false));
    assert_false(world_fits(&w, g, "call:f{b:1}<tool_call|>", 23, false));
    grammar_free(g);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_gemma4),
        cmocka_unit_test(test_deepseek4),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_schemas_that_are_not_supported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
