/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/server_dialect.h"

#include "server/responses/responses.h"
#include "server/responses/store.h"
#include "server/thought.h"
#include <stdio.h>

#include <stdlib.h>

static const struct ingle_sampling sampling = {.temperature = 1, .top_p = 1};

struct world {
    struct chat_request r;
    struct responses *s;
    struct fault f;
    struct json_object *body;
};

static void open_world(struct world *w, struct responses_store *store, const char *text)
{
    struct err err = {0};
    *w = (struct world){0};
    request_init(&w->r, &sampling);
    if (json_parse(text, strlen(text), NULL, &w->body, &err) != INGLE_OK)
        fail_msg("%s", err.msg);
    responses_read(w->body, &(struct answer_options){0}, store, "me", NULL, &w->r, &w->s, &w->f);
    assert_non_null(w->s);
}

static void close_world(struct world *w)
{
    responses_free(w->s);
    request_release(&w->r);
    json_object_put(w->body);
}

static void expect_late(const char *body, const char *messages, const char *tools, const char *late)
{
    struct world w;
    open_world(&w, NULL, body);
    if (w.f.kind)
        fail_msg("%s: %s", w.f.param, w.f.message);
    assert_string_equal(w.r.messages.at, messages);
    assert_string_equal(w.r.tools.at, tools);
    assert_string_equal(w.r.late_tools.at, late);
    close_world(&w);
}

static void expect(const char *body, const char *messages, const char *tools)
{
    expect_late(body, messages, tools, "");
}

static void refuses(const char *body, const char *param, const char *part)
{
    struct world w;
    open_world(&w, NULL, body);
    assert_int_equal(w.f.kind, FAULT_REQUEST);
    assert_string_equal(w.f.param, param);
    if (!strstr(w.f.message, part))
        fail_msg("'%s' is not in '%s'", part, w.f.message);
    close_world(&w);
}

#define S(t) "{\"role\":\"system\",\"content\":\"" t "\"}"
#define U(t) "{\"role\":\"user\",\"content\":\"" t "\"}"
#define CALL(id, name, arguments)                                                              \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name                   \
    "\",\"arguments\":" arguments "}}"
#define A(text, calls)                                                                             \
    "{\"role\":\"assistant\",\"content\":\"" text "\",\"tool_calls\":[" calls "]}"
#define T(id, text) "{\"role\":\"tool\",\"content\":\"" text "\",\"tool_call_id\":\"" id "\"}"

static void input_becomes_chat(void **state)
{
    (void)state;
    expect("{\"input\":\"hi\"}", "[" U("hi") "]", "");
    expect("{\"instructions\":\"be brief\",\"input\":[{\"type\":\"message\",\"role\":"
           "\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":\"and kind\"}]},"
           "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":"
           "\"input_text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":"
           "\"output_text\",\"text\":\"c\",\"annotations\":[]}]},{\"role\":\"user\",\"content\":"
           "\"d\"},{\"role\":\"developer\",\"content\":\"e\"}]}",
           "[" S("be brief\\n\\nand kind") "," U("a\\n\\nb")
           ",{\"role\":\"assistant\",\"content\":\"c\"}," U("d\\n\\n<system>\\ne\\n</system>") "]",
           "");
}

static void calls_and_outputs(void **state)
{
    (void)state;
    expect(
        "{\"input\":[{\"role\":\"user\",\"content\":\"go\"},"
        "{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":"
        "\"{\\\"x\\\":1}\"},"
        "{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"g\",\"namespace\":\"mcp__s__\","
        "\"arguments\":\"{broken\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"one\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":"
        "\"input_text\",\"text\":\"two\"},{\"type\":\"input_image\",\"image_url\":\"data:\"}]}]}",
        "[" U("go") "," A(
            "", CALL("c1", "f", "{\"x\":1}") "," CALL(
                    "c2", "mcp__s__g",
                    "{\"arguments\":\"{broken\"}")) "," T("c1",
                                                          "one") "," T("c2",
                                                                       "two\\n[an image or file "
                                                                       "that cannot be shown]") "]",
        "");
    /* Calls without ids go by their order. */
    expect("{\"input\":[{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"},"
           "{\"type\":\"function_call_output\",\"output\":\"x\"}]}",
           "[" A("", CALL("call-0", "f", "{}")) "," T("call-0", "x") "]", "");
}

static void other_items(void **state)
{
    (void)state;
    expect("{\"input\":["
           "{\"type\":\"custom_tool_call\",\"call_id\":\"c1\",\"name\":\"apply_patch\",\"input\":"
           "\"*** Begin\"},{\"type\":\"custom_tool_call_output\",\"call_id\":\"c1\",\"output\":"
           "\"ok\"},"
           "{\"type\":\"local_shell_call\",\"call_id\":\"c2\",\"status\":\"completed\",\"action\":{"
           "\"type\":\"exec\",\"command\":[\"ls\"],\"env\":{}}},"
           "{\"type\":\"local_shell_call_output\",\"call_id\":\"c2\",\"output\":\"a b\"},"
           "{\"type\":\"web_search_call\",\"status\":\"completed\"},{\"type\":\"compaction\","
           "\"encrypted_content\":\"x\"},{\"type\":\"image_generation_call\",\"result\":\"x\"},"
           "{\"type\":\"mcp_call\",\"id\":\"m1\",\"name\":\"look\",\"arguments\":\"{}\",\"output\":"
           "\"seen\"},{\"type\":\"mcp_list_tools\",\"tools\":[]},"
           "{\"type\":\"something_new\",\"content\":\"text\"}]}",
           "[" A("", CALL("c1", "apply_patch", "{\"input\":\"*** Begin\"}")) "," T("c1", "ok") ","
           A("", CALL("c2", "local_shell", "{\"command\":[\"ls\"]}")) "," T("c2", "a b") ","
           A("", CALL("m1", "look", "{}")) "," T("m1", "seen") "," U("text") "]",
           "");
}

static void reasoning_comes_back(void **state)
{
    (void)state;
    struct str body;
    str_init(&body);
    str_adds(&body, "{\"input\":[{\"role\":\"user\",\"content\":\"q\"},{\"type\":\"reasoning\","
                    "\"summary\":[],\"encrypted_content\":\"");
    thought_seal(&body, VIEW("hm"), true);
    str_adds(&body, "\"},{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"a\"},"
                    "{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":"
                    "\"so\"}]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\","
                    "\"arguments\":\"\"},{\"type\":\"function_call_output\",\"call_id\":\"c\","
                    "\"output\":{\"k\":1}},{\"type\":\"reasoning\",\"summary\":[],"
                    "\"encrypted_content\":\"gAAAAA\"}]}");
    expect(body.at,
           "[" U("q") ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"hm\"},"
           "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"so\",\"tool_calls\":["
           CALL("c", "f", "{}") "]}," T("c", "{\\\"k\\\":1}") "]",
           "");
    str_release(&body);
}

#define F(name, parameters)                                                                    \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"parameters\":" parameters "}}"

static void tools_are_flattened(void **state)
{
    (void)state;
    struct world w;
    open_world(
        &w, NULL,
        "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{"
        "\"type\":\"object\"},\"strict\":false},{\"type\":\"web_search\"},"
        "{\"type\":\"namespace\",\"name\":\"mcp__s__\",\"description\":\"d\",\"tools\":["
        "{\"type\":\"function\",\"name\":\"g\",\"parameters\":{\"type\":\"object\"}}]},"
        "{\"type\":\"namespace\",\"name\":\"ns\",\"tools\":[{\"type\":\"custom\",\"name\":"
        "\"h\"}]},{\"type\":\"image_generation\"},{\"type\":\"local_shell\"},"
        "{\"type\":\"tool_search\",\"execution\":\"client\",\"parameters\":{\"type\":"
        "\"object\"}},{\"type\":\"tool_search\"},{\"type\":\"brand_new\"},"
        "{\"type\":\"function\",\"name\":\"f\"}],"
        "\"tool_choice\":{\"type\":\"function\",\"name\":\"g\",\"namespace\":\"mcp__s__\"}}");
    if (w.f.kind)
        fail_msg("%s: %s", w.f.param, w.f.message);
    static const struct {
        const char *flat, *name, *space;
        enum responses_kind kind;
    } want[] = {{"f", "f", "", RESPONSES_FUNCTION},
                {"mcp__s__g", "g", "mcp__s__", RESPONSES_FUNCTION},
                {"ns__h", "h", "ns", RESPONSES_CUSTOM},
                {"local_shell", "local_shell", "", RESPONSES_LOCAL_SHELL},
                {"tool_search", "tool_search", "", RESPONSES_TOOL_SEARCH}};
    assert_int_equal(w.s->n_tools, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(w.s->tool[i].flat.at, want[i].flat);
        assert_string_equal(w.s->tool[i].name.at, want[i].name);
        assert_string_equal(w.s->tool[i].space.at, want[i].space);
        assert_int_equal(w.s->tool[i].kind, want[i].kind);
    }
    assert_int_equal(w.r.tool_choice, TOOLS_NAMED);
    assert_string_equal(w.r.tool_name.at, "mcp__s__g");
    close_world(&w);
}

static void found_tools_can_be_called(void **state)
{
    (void)state;
    /* Not at the start of the prompt: it stays what it was. */
    expect_late(
        "{\"input\":[{\"type\":\"tool_search_call\",\"call_id\":\"c\",\"execution\":\"client\","
        "\"arguments\":{\"query\":\"cal\"}},{\"type\":\"tool_search_output\",\"call_id\":\"c\","
        "\"status\":\"completed\",\"tools\":[{\"type\":\"namespace\",\"name\":\"cal\",\"tools\":["
        "{\"type\":\"function\",\"name\":\"new\",\"parameters\":{}}]}]},"
        "{\"type\":\"additional_tools\",\"role\":\"developer\",\"tools\":[{\"type\":\"function\","
        "\"name\":\"late\",\"parameters\":{}}]}]}",
        "[" A("", CALL("c", "tool_search", "{\"query\":\"cal\"}")) "," T("c", "These tools can be "
                                                                              "called "
                                                                              "now:\\n{"
                                                                              "\\\"name\\\":"
                                                                              "\\\"cal__new\\\","
                                                                              "\\\"parameters\\\":{"
                                                                              "}}") "," U(
            "<system>\\nThese tools can be called "
            "now:\\n{\\\"name\\\":\\\"late\\\",\\\"parameters\\\":{}}\\n</system>") "]",
        "", "[" F("cal__new", "{}") "," F("late", "{}") "]");
    expect("{\"input\":[{\"type\":\"additional_tools\",\"role\":\"developer\",\"tools\":[{\"type\":"
           "\"function\",\"name\":\"early\",\"parameters\":{}}]},{\"role\":\"user\",\"content\":"
           "\"a\"}]}",
           "[" U("a") "]", "[" F("early", "{}") "]");
}

static void fields_are_read(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, NULL,
               "{\"input\":\"x\",\"max_output_tokens\":5,\"temperature\":0.25,\"top_p\":null,"
               "\"stream\":true,\"store\":false,\"parallel_tool_calls\":false,\"reasoning\":{"
               "\"effort\":\"low\",\"summary\":\"auto\"},\"text\":{\"format\":{\"type\":"
               "\"json_schema\",\"name\":\"n\",\"schema\":{\"type\":\"object\"}}},\"include\":["
               "\"message.output_text.logprobs\"],\"top_logprobs\":2,\"tool_choice\":\"required\","
               "\"tools\":[{\"type\":\"web_search\"}],\"future\":{}}");
    assert_int_equal(w.f.kind, FAULT_NONE);
    assert_int_equal(w.r.o.max_tokens, 5);
    assert_true(w.r.stream && w.s->stream && w.s->sealed && w.s->summary);
    assert_true(w.r.logprobs);
    assert_int_equal(w.r.o.n_top, 2);
    assert_false(w.r.parallel_calls);
    assert_int_equal(w.r.tool_choice, TOOLS_AUTO); /* it was skipped */
    assert_string_equal(w.r.effort.at, "low");
    assert_string_equal(w.r.grammar.at, "{\"type\":\"object\"}");
    assert_non_null(strstr(w.s->echo.at, "\"temperature\":0.25,"));
    assert_null(w.s->store);
    close_world(&w);
}

static void bad_requests_are_named(void **state)
{
    (void)state;
    refuses("{}", "input", "null");
    refuses("{\"input\":[]}", "input", "empty");
    refuses("{\"input\":\"x\",\"tool_choice\":\"required\"}", "tool_choice", "no tools");
    refuses("{\"input\":3}", "input", "a number");
    refuses("{\"input\":[3]}", "input[0]", "a number");
    refuses("{\"input\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "input[0]", "robot");
    refuses("{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
            "input[0]", "input_image");
    refuses("{\"input\":\"x\",\"tools\":7}", "tools", "a number");
    refuses("{\"input\":\"x\",\"tools\":[{\"type\":\"function\"}]}", "tools[0]", "0 bytes");
    refuses("{\"input\":\"x\",\"tool_choice\":\"maybe\"}", "tool_choice", "maybe");
    refuses("{\"input\":\"x\",\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}}",
            "tool_choice", "there is no tool 'f'");
    refuses("{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"xml\"}}}", "text.format", "xml");
    refuses("{\"input\":\"x\",\"conversation\":\"c\"}", "conversation", "no conversation");
    refuses("{\"input\":\"x\",\"prompt\":{}}", "prompt", "not kept");
    refuses("{\"input\":\"x\",\"background\":true,\"store\":false}", "background", "store");
    refuses("{\"input\":\"x\",\"previous_response_id\":\"resp_1\"}", "previous_response_id",
            "resp_1");
}

static const struct piece pieces[] = {{'r', "let me see"}, {'t', "I "}, {'t', "look"},
                                      {'c', "f{\"a\":1}"}, {0, NULL}};

static void a_stream_has_its_events_in_order(void **state)
{
    (void)state;
    struct world w;
    struct play p;
    struct str names;
    char name[64];
    struct json_object *o;
    open_world(&w, NULL, "{\"stream\":true,\"input\":\"hi\",\"reasoning\":{\"summary\":\"auto\"}}");
    play_init(&p);
    responses_dialect.keepalive(w.s, &p.info, &p.out);
    responses_dialect.keepalive(w.s, &p.info, &p.out);
    play(&p, &responses_dialect, w.s, true, pieces, ANSWER_CALLS);
    event_names(&p.out, &names);
    assert_string_equal(
        names.at,
        "response.created response.in_progress response.in_progress "
        "response.output_item.added response.reasoning_summary_part.added "
        "response.reasoning_summary_text.delta response.reasoning_summary_text.done "
        "response.reasoning_summary_part.done response.output_item.done "
        "response.output_item.added response.content_part.added response.output_text.delta "
        "response.output_text.delta response.output_text.done response.content_part.done "
        "response.output_item.done "
        "response.output_item.added response.function_call_arguments.delta "
        "response.function_call_arguments.done response.output_item.done "
        "response.completed");
    for (size_t i = 0; (o = event_at(&p.out, i, name)); i++) {
        assert_int_equal(strtol(text_at(o, "sequence_number"), NULL, 10), i);
        json_object_put(o);
    }
    o = event_at(&p.out, 19, name);
    assert_string_equal(text_at(o, "item"),
                        "{ \"id\": \"fc_0123456789abcdef0123456789abcdef0002\", \"type\": "
                        "\"function_call\", \"call_id\": \"call_00000000000000000000000\", "
                        "\"name\": \"f\", \"arguments\": \"{\\\"a\\\":1}\", \"status\": "
                        "\"completed\" }");
    json_object_put(o);
    str_release(&names);
    play_release(&p);
    close_world(&w);
}

static void names_and_kinds_are_restored(void **state)
{
    (void)state;
    static const struct piece calls[] = {{'c', "ns__f{\"a\":1}"},
                                         {'c', "apply_patch{\"input\":\"*** x\"}"},
                                         {'c', "local_shell{\"command\":[\"ls\"]}"},
                                         {'c', "tool_search{\"query\":\"q\"}"},
                                         {0, NULL}};
    static const char *const want[] = {
        "\"type\":\"function_call\",\"call_id\":\"call_00000000000000000000000\",\"name\":\"f\","
        "\"namespace\":\"ns\",\"arguments\":\"{\\\"a\\\":1}\"",
        "\"type\":\"custom_tool_call\",\"call_id\":\"call_00000000000000000000001\",\"name\":"
        "\"apply_patch\",\"input\":\"*** x\"",
        "\"type\":\"local_shell_call\",\"call_id\":\"call_00000000000000000000002\",\"action\":{"
        "\"type\":\"exec\",\"command\":[\"ls\"],\"working_directory\":null,\"timeout_ms\":null,"
        "\"env\":{},\"user\":null}",
        "\"type\":\"tool_search_call\",\"call_id\":\"call_00000000000000000000003\",\"execution\":"
        "\"client\",\"arguments\":{\"query\":\"q\"}"};
    for (int stream = 0; stream < 2; stream++) {
        struct world w;
        struct play p;
        open_world(
            &w, NULL,
            "{\"input\":\"x\",\"stream\":true,\"tools\":[{\"type\":\"namespace\",\"name\":"
            "\"ns\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]},{\"type\":\"custom\","
            "\"name\":\"apply_patch\"},{\"type\":\"local_shell\"},{\"type\":\"tool_search\","
            "\"execution\":\"client\"}]}");
        w.s->stream = stream;
        play_init(&p);
        play(&p, &responses_dialect, w.s, stream, calls, ANSWER_CALLS);
        for (size_t i = 0; i < 4; i++)
            if (!strstr(p.out.at, want[i]))
                fail_msg("%s\nis not in\n%s", want[i], p.out.at);
        play_release(&p);
        close_world(&w);
    }
}

static void a_cut_answer_is_incomplete(void **state)
{
    (void)state;
    static const struct piece cut[] = {{'t', "half"}, {0, NULL}};
    struct world w;
    struct play p;
    open_world(&w, NULL, "{\"input\":\"x\"}");
    play_init(&p);
    play(&p, &responses_dialect, w.s, false, cut, ANSWER_LENGTH);
    assert_non_null(strstr(p.out.at, "\"status\":\"incomplete\",\"completed_at\":"));
    assert_non_null(strstr(p.out.at, "\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"));
    assert_non_null(strstr(p.out.at, "\"usage\":{\"input_tokens\":20,\"input_tokens_details\":{"
                                     "\"cached_tokens\":5,\"cache_write_tokens\":0},"
                                     "\"output_tokens\":7,\"output_tokens_details\":{"
                                     "\"reasoning_tokens\":3},\"total_tokens\":27}"));
    play_release(&p);
    close_world(&w);
}

static void an_overflow_in_a_stream(void **state)
{
    (void)state;
    struct world w;
    struct str out, names;
    char name[64];
    const struct fault f = {.kind = FAULT_CONTEXT, .status = 400, .message = "too long",
                            .n_prompt = 300, .n_ctx = 256};
    open_world(&w, NULL, "{\"stream\":true,\"input\":\"hi\"}");
    str_init(&out);
    responses_dialect.error(w.s, &f, true, &out);
    event_names(&out, &names);
    assert_string_equal(names.at, "response.created response.in_progress response.failed");
    struct json_object *o = event_at(&out, 2, name);
    assert_non_null(strstr(text_at(o, "response"),
                           "\"error\": { \"code\": \"context_length_exceeded\", \"message\": "
                           "\"too long\" }"));
    json_object_put(o);
    str_clear(&out);
    responses_dialect.error(w.s, &f, false, &out);
    assert_string_equal(out.at, "{\"error\":{\"message\":\"too long\",\"type\":"
                                "\"invalid_request_error\",\"param\":null,\"code\":"
                                "\"context_length_exceeded\",\"status\":400,"
                                "\"n_prompt_tokens\":300,\"n_ctx\":256}}");
    str_release(&out);
    str_release(&names);
    close_world(&w);
}

/* An answer of n items, the text of each so long; their ids are id0, id1 ... */
static void add_items(struct responses_store *s, const char *user, const char *id, size_t n,
                      size_t length)
{
    struct responses_items list = {0};
    struct str r, text;
    char name[40];
    str_init(&r);
    str_init(&text);
    str_addf(&r, "{\"id\":\"%s\"}", id);
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s%zu", id, i);
        str_clear(&text);
        str_addf(&text, "{\"id\":\"%s\",\"role\":\"user\",\"content\":\"\"}", name);
        while (text.n < length)
            str_addc(&text, ' ');
        assert_true(responses_items_add(
            &list, responses_item_create(text.at, text.n, (struct view){name, strlen(name)})));
    }
    responses_store_add(s, user, id,
                        &(struct responses_kept){.items = &list, .n_input = n, .object = &r});
    responses_items_release(&list);
    str_release(&r);
    str_release(&text);
}

static void add(struct responses_store *s, const char *user, const char *id)
{
    add_items(s, user, id, 0, 0);
}

static bool has(struct responses_store *s, const char *user, const char *id)
{
    struct responses_found f = {0};
    const bool found = responses_store_get(s, user, id, &f);
    assert_true(!f.open && !f.tape);
    assert_true(found == (f.object != NULL));
    responses_found_release(&f);
    return found;
}

static bool has_item(struct responses_store *s, const char *user, const char *id)
{
    struct responses_item *i = responses_store_item(s, user, (struct view){id, strlen(id)});
    const bool found = i != NULL;
    if (found)
        assert_string_equal(responses_item_id(i), id);
    responses_item_unref(i);
    return found;
}

static void the_store_is_bounded(void **state)
{
    (void)state;
    struct responses_store *s;
    size_t n, n_bytes;
    assert_int_equal(responses_store_create(&s, 3, 20000, NULL), INGLE_OK);
    add_items(s, "me", "a", 2, 0);
    add(s, "me", "b");
    assert_true(has(s, "me", "a") && has(s, "me", "b"));
    assert_false(has(s, "you", "a") || has(s, "me", "c"));
    assert_true(has_item(s, "me", "a1"));
    assert_false(has_item(s, "you", "a1") || has_item(s, "me", "a2"));
    add(s, "me", "c");
    add(s, "me", "d");
    assert_false(has(s, "me", "a") || has_item(s, "me", "a1"));
    assert_true(has(s, "me", "b") && has(s, "me", "d"));
    assert_true(responses_store_delete(s, "me", "d"));
    assert_false(responses_store_delete(s, "me", "d"));
    add(s, "me", "e");
    assert_true(has(s, "me", "b") && has(s, "me", "c") && has(s, "me", "e"));
    add_items(s, "me", "f", 1, 17000);
    assert_true(has(s, "me", "f") && has(s, "me", "e"));
    add_items(s, "me", "g", 1, 19000);
    assert_true(has(s, "me", "g"));
    assert_false(has(s, "me", "f") || has(s, "me", "e"));
    add_items(s, "me", "h", 1, 36000);
    assert_false(has(s, "me", "h"));
    assert_true(has(s, "me", "g"));
    assert_true(responses_store_delete(s, "me", "g"));
    responses_store_count(s, &n, &n_bytes);
    assert_int_equal(n, 0);
    assert_int_equal(n_bytes, 0);
    responses_store_free(s);
}

/* Who fills the store takes from himself, until all have the same. */
static void each_user_has_a_share(void **state)
{
    (void)state;
    struct responses_store *s;
    char id[32];
    for (int by_bytes = 0; by_bytes < 2; by_bytes++) {
        const size_t length = by_bytes ? 9000 : 0;
        assert_int_equal(responses_store_create(&s, by_bytes ? 1000 : 10, 100000, NULL), INGLE_OK);
        for (int i = 0; i < 4; i++) {
            snprintf(id, sizeof id, "mine%d", i);
            add_items(s, "me", id, 1, length);
        }
        for (int i = 0; i < 100; i++) {
            snprintf(id, sizeof id, "many%d", i);
            add_items(s, "mal", id, 1, length);
        }
        for (int i = 0; i < 4; i++) {
            snprintf(id, sizeof id, "mine%d", i);
            assert_true(has(s, "me", id));
            snprintf(id, sizeof id, "mine%d0", i);
            assert_true(has_item(s, "me", id));
        }
        for (int i = 4; i < 8; i++) { /* above the half it is his own that go */
            snprintf(id, sizeof id, "mine%d", i);
            add_items(s, "me", id, 1, length);
        }
        assert_true(has(s, "me", "mine7") && has(s, "mal", "many99"));
        assert_false(has(s, "me", "mine0"));
        responses_store_free(s);
    }
}

/* Of two items with one id the newer is found, and the other when that has gone. */
static void an_id_leads_to_the_newest_item(void **state)
{
    (void)state;
    struct responses_store *s;
    struct responses_items list = {0};
    struct str object;
    str_init(&object);
    str_adds(&object, "{}");
    assert_int_equal(responses_store_create(&s, 0, 0, NULL), INGLE_OK);
    for (int i = 0; i < 3; i++) {
        char text[32], id[16];
        snprintf(text, sizeof text, "{\"id\":\"x\",\"n\":%d}", i);
        snprintf(id, sizeof id, "e%d", i);
        assert_true(
            responses_items_add(&list, responses_item_create(text, strlen(text), VIEW("x"))));
        responses_store_add(s, "me", id,
                            &(struct responses_kept){.items = &list, .object = &object});
        responses_items_release(&list);
    }
    static const char *const order[] = {"e1", "e2", "e0"};
    static const char wanted[] = "20-";
    for (int i = 0; i < 3; i++) {
        assert_true(responses_store_delete(s, "me", order[i]));
        struct responses_item *found = responses_store_item(s, "me", VIEW("x"));
        assert_true((found != NULL) == (wanted[i] != '-'));
        if (found)
            assert_int_equal(found->text[found->n - 2], wanted[i]);
        responses_item_unref(found);
    }
    responses_store_free(s);
    str_release(&object);
}

/* An item that many answers share is kept once, and goes with the last of them. */
static void a_chain_keeps_its_items_once(void **state)
{
    (void)state;
    struct responses_store *s;
    struct responses_items list = {0};
    struct str object, text;
    size_t n, before, after;
    char id[16];
    str_init(&object);
    str_init(&text);
    str_adds(&object, "{}");
    for (int i = 0; i < 10000; i++)
        str_addc(&text, 'x');
    assert_int_equal(responses_store_create(&s, 0, 0, NULL), INGLE_OK);
    assert_true(responses_items_add(&list, responses_item_create(text.at, text.n, VIEW("x"))));
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "e%d", i);
        responses_store_add(s, "me", id,
                            &(struct responses_kept){.items = &list, .object = &object});
        if (!i)
            responses_store_count(s, &n, &before);
    }
    responses_store_count(s, &n, &after);
    assert_int_equal(n, 20);
    assert_true(after < before + 19 * 1000);
    assert_int_equal(responses_store_append(s, "me", "e3", &list), RESPONSES_CHANGED);
    assert_true(responses_store_remove(s, "me", "e3", "x"));
    assert_true(responses_store_remove(s, "me", "e3", "x"));
    assert_false(responses_store_remove(s, "me", "e3", "x"));
    for (int i = 0; i < 20; i++) {
        assert_true(has_item(s, "me", "x"));
        snprintf(id, sizeof id, "e%d", i);
        assert_true(responses_store_delete(s, "me", id));
    }
    assert_false(has_item(s, "me", "x"));
    responses_store_count(s, &n, &after);
    assert_int_equal(after, 0);
    responses_items_release(&list);
    responses_store_free(s);
    str_release(&object);
    str_release(&text);
}

static void references_have_limits(void **state)
{
    (void)state;
    struct responses_store *s;
    struct world w;
    struct str body;
    assert_int_equal(responses_store_create(&s, 0, 0, NULL), INGLE_OK);
    add_items(s, "me", "a", 2, 1 << 20);
    for (int by_bytes = 0; by_bytes < 2; by_bytes++) {
        str_init(&body);
        str_adds(&body, "{\"input\":[");
        for (int i = 0; i < (by_bytes ? 17 : 5000); i++)
            str_addf(&body, "%s{\"type\":\"item_reference\",\"id\":\"a0\"}", i ? "," : "");
        str_adds(&body, "]}");
        open_world(&w, s, body.at);
        assert_int_equal(w.f.status, 400);
        assert_non_null(strstr(w.f.message, "references"));
        close_world(&w);
        str_release(&body);
    }
    responses_store_free(s);
}

static void a_conversation_goes_on(void **state)
{
    (void)state;
    static const struct piece one[] = {{'r', "hm"}, {'t', "first"}, {0, NULL}};
    struct responses_store *s;
    struct world w;
    struct play p;
    assert_int_equal(responses_store_create(&s, 0, 0, NULL), INGLE_OK);
    for (int turn = 0; turn < 2; turn++) {
        open_world(&w, s, turn ? "{\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":"
                                 "\"b\"}],\"previous_response_id\":"
                                 "\"resp_0123456789abcdef0123456789abcdef\"}"
                               : "{\"input\":\"a\",\"instructions\":\"i\"}");
        if (w.f.kind)
            fail_msg("%s: %s", w.f.param, w.f.message);
        play_init(&p);
        p.info.id[31] = turn ? '0' : 'f';
        play(&p, &responses_dialect, w.s, false, one, ANSWER_STOP);
        play_release(&p);
        close_world(&w);
    }
    open_world(&w, s, "{\"input\":[{\"type\":\"item_reference\",\"id\":"
                      "\"msg_0123456789abcdef0123456789abcde00001\"},{\"role\":\"user\","
                      "\"content\":\"c\"}],\"previous_response_id\":"
                      "\"resp_0123456789abcdef0123456789abcde0\"}");
    if (w.f.kind)
        fail_msg("%s: %s", w.f.param, w.f.message);
#define SAID "{\"role\":\"assistant\",\"content\":\"first\",\"reasoning_content\":\"hm\"}"
    assert_string_equal(w.r.messages.at,
                        "[" U("a") "," SAID "," U("b") ",{\"role\":\"assistant\",\"content\":"
                        "\"first\\n\\nfirst\",\"reasoning_content\":\"hm\"}," U("c") "]");
    close_world(&w);
    open_world(&w, s, "{\"input\":\"x\",\"previous_response_id\":\"resp_2\"}");
    assert_int_equal(w.f.status, 404);
    close_world(&w);
    responses_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(input_becomes_chat),
        cmocka_unit_test(calls_and_outputs),
        cmocka_unit_test(other_items),
        cmocka_unit_test(reasoning_comes_back),
        cmocka_unit_test(tools_are_flattened),
        cmocka_unit_test(found_tools_can_be_called),
        cmocka_unit_test(fields_are_read),
        cmocka_unit_test(bad_requests_are_named),
        cmocka_unit_test(a_stream_has_its_events_in_order),
        cmocka_unit_test(names_and_kinds_are_restored),
        cmocka_unit_test(a_cut_answer_is_incomplete),
        cmocka_unit_test(an_overflow_in_a_stream),
        cmocka_unit_test(the_store_is_bounded),
        cmocka_unit_test(each_user_has_a_share),
        cmocka_unit_test(an_id_leads_to_the_newest_item),
        cmocka_unit_test(a_chain_keeps_its_items_once),
        cmocka_unit_test(references_have_limits),
        cmocka_unit_test(a_conversation_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
