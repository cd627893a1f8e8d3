/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/server_dialect.h"

#include "server/anthropic/anthropic.h"
#include "server/thought.h"

static const struct ingle_sampling sampling = {.temperature = 1, .top_p = 1};

struct world {
    struct chat_request r;
    struct anthropic *s;
    struct fault f;
    struct json_object *body;
};

static void open_world(struct world *w, const char *text)
{
    struct err err = {0};
    *w = (struct world){0};
    request_init(&w->r, &sampling);
    if (json_parse(text, strlen(text), NULL, &w->body, &err) != INGLE_OK)
        fail_msg("%s", err.msg);
    anthropic_read(w->body, &(struct answer_options){0}, "req_1", NULL, &w->r, &w->s, &w->f);
    assert_non_null(w->s);
}

static void close_world(struct world *w)
{
    anthropic_free(w->s);
    request_release(&w->r);
    json_object_put(w->body);
}

static void expect_late(const char *body, const char *messages, const char *tools, const char *late)
{
    struct world w;
    open_world(&w, body);
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
    open_world(&w, body);
    assert_int_equal(w.f.kind, FAULT_REQUEST);
    assert_string_equal(w.f.param, param);
    if (!strstr(w.f.message, part))
        fail_msg("'%s' is not in '%s'", part, w.f.message);
    close_world(&w);
}

#define U "{\"role\":\"user\",\"content\":"
#define A "{\"role\":\"assistant\",\"content\":"

static void messages_become_chat(void **state)
{
    (void)state;
    expect("{\"messages\":[" U "\"hi\"}]}", "[" U "\"hi\"}]", "");
    expect("{\"system\":\"be brief\",\"messages\":[" U "[{\"type\":\"text\",\"text\":\"a\"},"
           "{\"type\":\"text\",\"text\":\"b\",\"cache_control\":{\"type\":\"ephemeral\"}}]}," A
           "\"c\"}," U "\"d\"}]}",
           "[{\"role\":\"system\",\"content\":\"be brief\"}," U "\"a\\n\\nb\"}," A "\"c\"}," U
           "\"d\"}]",
           "");
}

static void billing_header_is_no_text(void **state)
{
    (void)state;
    expect("{\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=1;\"},"
           "{\"type\":\"text\",\"text\":\"one\"},{\"type\":\"text\",\"text\":\"two\"}],"
           "\"messages\":[" U "\"hi\"}]}",
           "[{\"role\":\"system\",\"content\":\"one\\n\\ntwo\"}," U "\"hi\"}]", "");
}

static void tools_and_results(void **state)
{
    (void)state;
    expect("{\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":"
           "\"object\"}},{\"type\":\"web_search_20250305\",\"name\":\"web_search\"},"
           "{\"type\":\"custom\",\"name\":\"g\"}],\"messages\":[" U "\"go\"}," A
           "[{\"type\":\"text\",\"text\":\"well\"},{\"type\":\"tool_use\",\"id\":\"t1\","
           "\"name\":\"f\",\"input\":{\"x\":1}},{\"type\":\"tool_use\",\"id\":\"t2\",\"name\":"
           "\"g\",\"input\":{}}]}," U
           "[{\"type\":\"text\",\"text\":\"and now\"},{\"type\":\"tool_result\",\"tool_use_id\":"
           "\"t1\",\"content\":[{\"type\":\"text\",\"text\":\"p\"},{\"type\":\"image\",\"source\":"
           "{}}]},{\"type\":\"tool_result\",\"tool_use_id\":\"t2\",\"is_error\":true,\"content\":"
           "\"bad\"}]}]}",
           "[" U "\"go\"}," A
           "\"well\",\"tool_calls\":[{\"id\":\"t1\",\"type\":\"function\",\"function\":{\"name\":"
           "\"f\",\"arguments\":{\"x\":1}}},{\"id\":\"t2\",\"type\":\"function\",\"function\":{"
           "\"name\":\"g\",\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"p\\n[an image or "
           "file that cannot be shown]\",\"tool_call_id\":\"t1\"},{\"role\":\"tool\",\"content\":"
           "\"Error:\\nbad\",\"tool_call_id\":\"t2\"}," U "\"and now\"}]",
           "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
           "\"parameters\":{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":{\"name\":"
           "\"g\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]");
}

#define SEARCH "{\"name\":\"search\",\"input_schema\":{}}"
#define DEFERRED "{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{},\"defer_loading\":true}"
#define SEARCH_SENT "{\"type\":\"function\",\"function\":{\"name\":\"search\",\"parameters\":{}}}"
#define F_SENT                                                                                     \
    "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{}}" \
    "}"
#define F_SHOWN "{\\\"name\\\":\\\"f\\\",\\\"description\\\":\\\"d\\\",\\\"parameters\\\":{}}"

/* As Claude Code sends them: the start of the prompt stays what it was. */
static void deferred_tools_come_where_they_are_named(void **state)
{
    (void)state;
    expect("{\"tools\":[" SEARCH "," DEFERRED "],\"messages\":[" U "\"go\"}]}",
           "[" U "\"go\"}]", "[" SEARCH_SENT "]");
    expect_late(
        "{\"tools\":[" SEARCH "," DEFERRED "],\"messages\":[" U "\"go\"}," A
        "[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"search\",\"input\":{}}]}," U
        "[{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":[{\"type\":"
        "\"tool_reference\",\"tool_name\":\"f\"},{\"type\":\"tool_reference\",\"tool_name\":"
        "\"search\"}]}]}]}",
        "[" U "\"go\"}," A
        "\"\",\"tool_calls\":[{\"id\":\"t\",\"type\":\"function\",\"function\":{\"name\":"
        "\"search\",\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"This tool can be "
        "called now:\\n" F_SHOWN "\\nsearch\",\"tool_call_id\":\"t\"}]",
        "[" SEARCH_SENT "]", "[" F_SENT "]");
    /* The choice of one makes it callable; a provider's own search would find nothing here. */
    expect_late("{\"tools\":[" SEARCH "," DEFERRED "],\"tool_choice\":{\"type\":\"tool\",\"name\":"
                "\"f\"},\"messages\":[" U "\"go\"}]}",
                "[" U "\"go\"}]", "[" SEARCH_SENT "]", "[" F_SENT "]");
    expect("{\"tools\":[{\"type\":\"tool_search_tool_regex_20251119\",\"name\":\"s\"}," DEFERRED
           "],\"messages\":[" U "\"go\"}]}",
           "[" U "\"go\"}]", "[" F_SENT "]");
}

static void tools_change_in_a_conversation(void **state)
{
    (void)state;
    expect_late(
        "{\"tools\":[" SEARCH "," DEFERRED "],\"messages\":[" U "\"go\"},{\"role\":\"system\","
        "\"content\":[{\"type\":\"tool_addition\",\"tool\":{\"type\":\"tool_reference\","
        "\"name\":\"f\"}},{\"type\":\"tool_addition\",\"tool\":{\"type\":\"tool_definition\","
        "\"definition\":{\"name\":\"g\"}}},{\"type\":\"tool_removal\",\"tool\":{\"type\":"
        "\"tool_reference\",\"name\":\"search\"}}]}]}",
        "[" U "\"go\\n\\n<system>\\nThis tool can be called now:\\n" F_SHOWN
        "\\nThis tool can be called now:\\n{\\\"name\\\":\\\"g\\\",\\\"parameters\\\":"
        "{\\\"type\\\":\\\"object\\\",\\\"properties\\\":{}}}\\nThis tool cannot be called any "
        "more: search\\n</system>\"}]",
        "[" SEARCH_SENT "]",
        "[" F_SENT ",{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{}}}}]");
    refuses("{\"messages\":[" U
            "[{\"type\":\"tool_addition\",\"tool\":{\"type\":\"tool_definition\","
            "\"definition\":{}}}]}]}",
            "messages[0]", "a tool's 'name' has 0 bytes");
}

static void calls_and_results_find_each_other(void **state)
{
    (void)state;
    /* A call that nobody answered, and a result that nobody asked for. */
    expect("{\"messages\":[" U "\"go\"}," A
           "[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\",\"input\":{}}]}," U "\"stop\"}]}",
           "[" U "\"go\"}," A
           "\"\",\"tool_calls\":[{\"id\":\"t1\",\"type\":\"function\",\"function\":{\"name\":"
           "\"f\",\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"(no result)\","
           "\"tool_call_id\":\"t1\"}," U "\"stop\"}]",
           "");
    expect("{\"messages\":[" U "[{\"type\":\"tool_result\",\"tool_use_id\":\"x\",\"content\":"
           "\"late\"}]}]}",
           "[" U "\"Result of a tool:\\n\\nlate\"}]", "");
}

static void documents_give_their_text(void **state)
{
    (void)state;
    expect("{\"messages\":[" U
           "[{\"type\":\"document\",\"title\":\"T\",\"source\":{\"type\":\"text\",\"data\":\"x\"}},"
           "{\"type\":\"search_result\",\"source\":\"s\",\"title\":\"R\",\"content\":[{\"type\":"
           "\"text\",\"text\":\"found\"}]}]}]}",
           "[" U "\"T\\nx\\n\\nR\\ns\\nfound\"}]", "");
    refuses("{\"messages\":[" U "[{\"type\":\"image\",\"source\":{\"type\":\"base64\"}}]}]}",
            "messages[0]", "image");
    refuses("{\"messages\":[" U
            "[{\"type\":\"document\",\"source\":{\"type\":\"base64\",\"data\":\"\"}}]}]}",
            "messages[0]", "only text");
}

static void thoughts_come_back(void **state)
{
    (void)state;
    struct str body, seal;
    const struct view thought = VIEW("hmm");
    for (int way = 0; way < 4; way++) {
        str_init(&body);
        str_init(&seal);
        thought_seal(&seal, thought, way == 1);
        /* shown, omitted, altered, another provider's */
        str_addf(&body,
                 "{\"messages\":[" U "\"q\"}," A "[{\"type\":\"thinking\",\"thinking\":\"%s\","
                 "\"signature\":\"%s\"},{\"type\":\"text\",\"text\":\"a\"}]}," U "\"r\"}]}",
                 way == 1 ? "" : way == 2 ? "other" : "hmm", way == 3 ? "EqQBCg" : seal.at);
        expect(body.at,
               way < 2 ? "[" U "\"q\"}," A "\"a\",\"reasoning_content\":\"hmm\"}," U "\"r\"}]"
                       : "[" U "\"q\"}," A "\"a\"}," U "\"r\"}]",
               "");
        str_release(&body);
        str_release(&seal);
    }
}

static void fields_are_read(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, "{\"model\":\"m\",\"max_tokens\":9,\"stream\":true,\"temperature\":0.5,"
                   "\"top_k\":3,\"stop_sequences\":[\"END\",\"x\"],\"thinking\":{\"type\":"
                   "\"enabled\",\"budget_tokens\":2048,\"display\":\"omitted\"},"
                   "\"tools\":[{\"name\":\"f\"}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\","
                   "\"disable_parallel_tool_use\":true},\"output_config\":{\"effort\":\"high\","
                   "\"format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\"}}},"
                   "\"metadata\":{\"user_id\":\"u\"},\"something_new\":[1],\"messages\":[" U
                   "\"hi\"}]}");
    assert_int_equal(w.f.kind, FAULT_NONE);
    assert_string_equal(w.r.model.at, "m");
    assert_int_equal(w.r.o.max_tokens, 9);
    assert_true(w.r.stream);
    assert_int_equal(w.r.o.sampling.top_k, 3);
    assert_int_equal(w.r.n_stop, 2);
    assert_int_equal(w.r.thinking, THINKING_ON);
    assert_int_equal(w.r.thinking_budget, 2048);
    assert_true(w.s->omit);
    assert_int_equal(w.r.tool_choice, TOOLS_NAMED);
    assert_string_equal(w.r.tool_name.at, "f");
    assert_false(w.r.parallel_calls);
    assert_string_equal(w.r.effort.at, "high");
    assert_true(w.r.has_grammar);
    assert_string_equal(w.r.grammar.at, "{\"type\":\"object\"}");
    close_world(&w);
}

static void effort_alone_is_no_wish_to_think(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, "{\"output_config\":{\"effort\":\"low\"},\"messages\":[" U "\"hi\"}]}");
    assert_int_equal(w.f.kind, FAULT_NONE);
    assert_int_equal(w.r.thinking, THINKING_DEFAULT);
    assert_string_equal(w.r.effort.at, "low");
    close_world(&w);
}

static void bad_requests_are_named(void **state)
{
    (void)state;
    refuses("{}", "messages", "null");
    refuses("{\"messages\":[]}", "messages", "0 messages");
    refuses("{\"messages\":[3]}", "messages[0]", "a number");
    refuses("{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "messages[0]", "robot");
    refuses("{\"messages\":[" U "7}]}", "messages[0]", "'content' is a number");
    refuses("{\"messages\":[" U "\"x\"}],\"tools\":{}}", "tools", "an object");
    refuses("{\"messages\":[" U "\"x\"}],\"tools\":[{\"input_schema\":{}}]}", "tools[0]", "'name'");
    refuses("{\"messages\":[" U "\"x\"}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}}",
            "tool_choice", "there is no tool 'f'");
    refuses("{\"messages\":[" U "\"x\"}],\"thinking\":{\"type\":\"deep\"}}", "thinking", "deep");
    refuses("{\"messages\":[" U "\"x\"}],\"max_tokens\":-2}", "max_tokens", "-2");
}

static const struct piece pieces[] = {{'r', "let "}, {'r', "me see"},     {'t', "I "},
                                      {'t', "look"}, {'c', "f{\"a\":1}"}, {'c', "g{}"},
                                      {0, NULL}};

static void a_stream_has_its_events_in_order(void **state)
{
    (void)state;
    struct world w;
    struct play p;
    struct str names;
    char name[64];
    open_world(&w, "{\"stream\":true,\"messages\":[" U "\"hi\"}]}");
    play_init(&p);
    anthropic_dialect.keepalive(w.s, &p.info, &p.out);
    play(&p, &anthropic_dialect, w.s, true, pieces, ANSWER_CALLS);
    event_names(&p.out, &names);
    assert_string_equal(
        names.at, "message_start ping "
                  "content_block_start content_block_delta content_block_delta "
                  "content_block_delta content_block_stop "
                  "content_block_start content_block_delta content_block_delta content_block_stop "
                  "content_block_start content_block_delta content_block_stop "
                  "content_block_start content_block_delta content_block_stop "
                  "message_delta message_stop");
    struct json_object *o = event_at(&p.out, 17, name);
    assert_string_equal(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN),
                        "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\","
                        "\"stop_sequence\":null},\"usage\":{\"input_tokens\":15,"
                        "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":5,"
                        "\"output_tokens\":7,\"output_tokens_details\":{\"thinking_tokens\":3}}}");
    json_object_put(o);
    str_release(&names);
    play_release(&p);
    close_world(&w);
}

static void a_whole_reply(void **state)
{
    (void)state;
    struct world w;
    struct play p;
    struct str want;
    open_world(&w, "{\"messages\":[" U "\"hi\"}]}");
    play_init(&p);
    play(&p, &anthropic_dialect, w.s, false, pieces, ANSWER_CALLS);
    str_init(&want);
    str_adds(&want, "{\"id\":\"msg_0123456789abcdef0123456789abcdef\",\"type\":\"message\","
                    "\"role\":\"assistant\",\"model\":\"nano\",\"content\":[{\"type\":\"thinking\","
                    "\"thinking\":\"let me see\",\"signature\":\"");
    thought_seal(&want, VIEW("let me see"), false);
    str_adds(&want,
             "\"},{\"type\":\"text\",\"text\":\"I look\"},{\"type\":\"tool_use\",\"id\":"
             "\"toolu_00000000000000000000000\",\"name\":\"f\",\"input\":{\"a\":1}},"
             "{\"type\":\"tool_use\",\"id\":\"toolu_00000000000000000000001\",\"name\":\"g\","
             "\"input\":{}}],\"stop_reason\":\"tool_use\",\"stop_sequence\":null,\"usage\":{"
             "\"input_tokens\":15,\"cache_creation_input_tokens\":0,"
             "\"cache_read_input_tokens\":5,\"output_tokens\":7,"
             "\"output_tokens_details\":{\"thinking_tokens\":3}}}");
    assert_string_equal(p.out.at, want.at);
    str_release(&want);
    play_release(&p);
    close_world(&w);
}

static void faults_have_their_words(void **state)
{
    (void)state;
    struct world w;
    struct str out;
    const struct fault f = {.kind = FAULT_CONTEXT, .status = 400, .n_prompt = 300, .n_ctx = 256};
    open_world(&w, "{\"messages\":[" U "\"hi\"}]}");
    str_init(&out);
    anthropic_dialect.error(w.s, &f, false, &out);
    assert_string_equal(out.at, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\","
                                "\"message\":\"prompt is too long: 300 tokens > 256 maximum\"},"
                                "\"request_id\":\"req_1\"}");
    str_release(&out);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_become_chat),
        cmocka_unit_test(billing_header_is_no_text),
        cmocka_unit_test(tools_and_results),
        cmocka_unit_test(deferred_tools_come_where_they_are_named),
        cmocka_unit_test(tools_change_in_a_conversation),
        cmocka_unit_test(calls_and_results_find_each_other),
        cmocka_unit_test(documents_give_their_text),
        cmocka_unit_test(thoughts_come_back),
        cmocka_unit_test(fields_are_read),
        cmocka_unit_test(effort_alone_is_no_wish_to_think),
        cmocka_unit_test(bad_requests_are_named),
        cmocka_unit_test(a_stream_has_its_events_in_order),
        cmocka_unit_test(a_whole_reply),
        cmocka_unit_test(faults_have_their_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
