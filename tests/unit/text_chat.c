/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "io/io.h"
#include "text/text.h"
#include "unit/xz.h"
#include <stdio.h>
#include <string.h>

static struct json_object *load(const char *path)
{
    size_t n;
    char *text = test_slurp(path, &n);
    assert_non_null(text);
    struct json_object *o = NULL;
    struct err err;
    if (json_parse(text, n, NULL, &o, &err) != INGLE_OK)
        fail_msg("%s: %s", path, err.msg);
    mem_free(text);
    return o;
}

static const char *field(struct json_object *c, const char *key)
{
    struct json_object *v;
    return json_object_object_get_ex(c, key, &v) ? json_object_get_string(v) : NULL;
}

/* Every range is the spelling of one special token, they are in order and disjoint. */
static void check_ranges(const struct text_prompt *p, const char *const *marker, size_t n_markers)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_special; i++) {
        const struct text_range r = p->special[i];
        assert_true(r.begin >= at && r.begin < r.end && r.end <= p->text.n);
        at = r.end;
        bool known = false;
        for (size_t m = 0; m < n_markers && !known; m++)
            known = strlen(marker[m]) == r.end - r.begin &&
                    memcmp(p->text.at + r.begin, marker[m], r.end - r.begin) == 0;
        assert_true(known);
    }
}

static const char *const gemma_marker[] = {
    "<bos>",   "<|turn>",   "<turn|>",      "<|channel>",   "<channel|>",       "<|think|>",
    "<|tool>", "<tool|>",   "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
    "<|\"|>",  "<|image|>", "<|audio|>",    "<|video|>"};
enum { N_GEMMA_MARKERS = sizeof gemma_marker / sizeof *gemma_marker };

static void check_case(enum text_chat_family family, struct json_object *c, size_t i,
                       const char *want, const char *const *marker, size_t n_markers)
{
    struct text_prompt p;
    struct err err;
    text_prompt_init(&p);
    if (text_chat_render_case(family, c, &p, &err) != INGLE_OK)
        fail_msg("case %zu: %s", i, err.msg);
    if (strcmp(p.text.at, want) != 0)
        fail_msg("case %zu:\n%s\n got:\n%s\n not:\n%s", i, json_object_to_json_string(c), p.text.at,
                 want);
    check_ranges(&p, marker, n_markers);
    text_prompt_release(&p);
}

/* What this project writes otherwise than the published rules: {file: {reason, cases: [{case,
 * prompt}]}}, to {case: prompt} of one file. */
static struct json_object *deviations(const char *name, size_t n)
{
    struct json_object *all = load("tests/data/text/template-deviations.json.xz"), *file, *cases;
    struct json_object *by_case = json_object_new_object();
    assert_true(json_object_object_get_ex(all, name, &file));
    assert_true(strlen(field(file, "reason")) > 40);
    assert_true(json_object_object_get_ex(file, "cases", &cases));
    assert_int_equal(json_object_array_length(cases), n);
    for (size_t i = 0; i < n; i++) {
        struct json_object *c = json_object_array_get_idx(cases, i), *prompt;
        assert_true(json_object_object_get_ex(c, "prompt", &prompt));
        json_object_object_add(by_case, field(c, "case"), json_object_get(prompt));
    }
    json_object_put(all);
    return by_case;
}

static const char *wanted(struct json_object *deviating, size_t i, const char *published)
{
    char key[24];
    snprintf(key, sizeof key, "%zu", i);
    const char *own = field(deviating, key);
    if (own)
        assert_string_not_equal(own, published); /* the list names nothing else */
    return own ? own : published;
}

static void gemma_prompts_equal_the_template(void **state)
{
    (void)state;
    struct json_object *cases = load("tests/data/text/gemma4-template-vectors.json.xz");
    struct json_object *own = deviations("gemma4-template-vectors", 104);
    assert_int_equal(json_object_array_length(cases), 608);
    for (size_t i = 0; i < 608; i++) {
        struct json_object *c = json_object_array_get_idx(cases, i);
        check_case(TEXT_CHAT_GEMMA4, c, i, wanted(own, i, field(c, "expected")), gemma_marker,
                   N_GEMMA_MARKERS);
    }
    json_object_put(own);
    json_object_put(cases);
}

/* Conversations of an older template, by today's rules. */
static void gemma_interleaved_conversations_follow_the_canonical_rules(void **state)
{
    (void)state;
    struct json_object *cases = load("tests/data/text/gemma4-interleaved-template-vectors.json.xz");
    struct json_object *own = deviations("gemma4-interleaved-template-vectors", 6);
    assert_int_equal(json_object_array_length(cases), 64);
    for (size_t i = 0; i < 64; i++) {
        struct json_object *c = json_object_array_get_idx(cases, i);
        const char *canonical = field(c, "canonical");
        check_case(TEXT_CHAT_GEMMA4, c, i,
                   wanted(own, i, canonical ? canonical : field(c, "expected")), gemma_marker,
                   N_GEMMA_MARKERS);
    }
    json_object_put(own);
    json_object_put(cases);
}

static const char *const deepseek_marker[] = {"<｜begin▁of▁sentence｜>",
                                              "<｜end▁of▁sentence｜>",
                                              "<｜User｜>",
                                              "<｜Assistant｜>",
                                              "<think>",
                                              "</think>",
                                              "｜DSML｜",
                                              "<｜latest_reminder｜>",
                                              "<｜action｜>",
                                              "<｜query｜>",
                                              "<｜title｜>",
                                              "<｜authority｜>",
                                              "<｜domain｜>",
                                              "<｜read_url｜>"};
enum { N_DEEPSEEK_MARKERS = sizeof deepseek_marker / sizeof *deepseek_marker };

/* The official encoder wins over the template, except where the template was asked for a
 * generation prompt that the encoder does not have. */
static void deepseek_prompts_equal_the_encoder(void **state)
{
    (void)state;
    struct json_object *cases = load("tests/data/text/deepseek-v4-template-vectors.json.xz");
    struct json_object *own = deviations("deepseek-v4-template-vectors", 6);
    assert_int_equal(json_object_array_length(cases), 309);
    for (size_t i = 0; i < 309; i++) {
        struct json_object *c = json_object_array_get_idx(cases, i);
        const char *want = field(c, "encoder"), *why = field(c, "why");
        if (!want || (why && strstr(why, "generation-prompt-forced")))
            want = field(c, "expected");
        check_case(TEXT_CHAT_DEEPSEEK_V4, c, i, wanted(own, i, want), deepseek_marker,
                   N_DEEPSEEK_MARKERS);
    }
    json_object_put(own);
    json_object_put(cases);
}

/* A conversation as JSON text gives this prompt. */
static void check_text(enum text_chat_family family, const char *text, const char *want)
{
    struct json_object *c;
    struct text_prompt p;
    struct err err;
    text_prompt_init(&p);
    assert_int_equal(json_parse(text, strlen(text), NULL, &c, NULL), INGLE_OK);
    if (text_chat_render_case(family, c, &p, &err) != INGLE_OK)
        fail_msg("%s: %s", text, err.msg);
    assert_string_equal(p.text.at, want);
    text_prompt_release(&p);
    json_object_put(c);
}

#define BOS             "<｜begin▁of▁sentence｜>"
#define EOS             "<｜end▁of▁sentence｜>"
#define U               "<｜User｜>"
#define A               "<｜Assistant｜>"
#define SAY(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define CHAT(m)         "{\"add_generation_prompt\":false,\"messages\":[" m "]}"
#define THINK(m)        "{\"add_generation_prompt\":false,\"thinking\":true,\"messages\":[" m "]}"

/* What only the encoder knows: reminders, tasks, developers, and its quirks. */
static void deepseek_turns_lead_to_each_other_like_the_encoders(void **state)
{
    (void)state;
    static const char *const example[][2] = {
        {CHAT(SAY("user", "Hi")), BOS U "Hi" A "</think>"},
        {THINK(SAY("system", "Be brief.") "," SAY("user", "Hi")),
         BOS "Be brief." U "Hi" A "<think>"},
        {THINK(
             SAY("system", "S") "," SAY("latest_reminder", "2026-01-01") "," SAY("developer", "D")),
         BOS "S<｜latest_reminder｜>2026-01-01" U "D" A "<think>"},
        {CHAT("{\"role\":\"user\",\"content\":\"x\",\"task\":\"action\"}"),
         BOS U "x" A "</think><｜action｜>"},
        {CHAT(SAY("user", "x") "," SAY("assistant", "y") ",{\"role\":\"user\",\"content\":\"z\","
                                                         "\"task\":\"title\"}"),
         BOS U "x" A "</think>y" EOS U "z<｜title｜>"},
        {CHAT(SAY("user", "a") "," SAY("user", "b")), BOS U "a\n\nb" A "</think>"},
        {CHAT(SAY("user", "")), BOS U A "</think>"},
        {CHAT(SAY("system", "S")), BOS "S"},
        {THINK(SAY("developer", "D1") "," SAY("assistant", "r") "," SAY("user", "u2")),
         BOS "r" EOS U "u2" A "<think>"},
        {CHAT(SAY("user", "go") "," SAY("system", "mid") "," SAY("user", "x")),
         BOS U "go\n\n<system>\nmid\n</system>" U "x" A "</think>"},
        {CHAT(SAY("user", "go") "," SAY("latest_reminder", "L") "," SAY("assistant", "z")),
         BOS U "go" A "</think><｜latest_reminder｜>Lz" EOS},
        {CHAT(SAY("user", "go") ",{\"role\":\"assistant\",\"content\":\"z\",\"wo_eos\":true}"),
         BOS U "go" A "</think>z"},
        {"{\"add_generation_prompt\":false,\"response_format\":{\"type\":\"object\"},\"messages\":"
         "[" SAY("system", "Sys") "," SAY("user", "x") "]}",
         BOS "Sys\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to "
             "reply:\n{\"type\": \"object\"}" U "x" A "</think>"},
        /* A user text behind one with a task is a turn of its own, a tool's result is not. */
        {CHAT("{\"role\":\"user\",\"content\":\"a\",\"task\":\"query\"}," SAY("tool", "r") "," SAY(
             "user", "b")),
         BOS U "a\n\n<tool_result>r</tool_result>" U "b" A "</think>"},
    };
    for (size_t i = 0; i < sizeof example / sizeof *example; i++)
        check_text(TEXT_CHAT_DEEPSEEK_V4, example[i][0], example[i][1]);
}

/* A system text runs into nothing in front of it, wherever it stands. */
static void deepseek_system_texts_are_set_apart(void **state)
{
    (void)state;
    static const char *const example[][2] = {
        {"{\"messages\":[" SAY("user", "Italy?") "," SAY("system", "Short.") "]}",
         BOS U "Italy?\n\n<system>\nShort.\n</system>" A "</think>"},
        {CHAT(SAY("user", "a") "," SAY("system", "b") "," SAY("system", "c") "," SAY("assistant",
                                                                                     "d")),
         BOS U "a\n\n<system>\nb\n</system>\n\n<system>\nc\n</system>" A "</think>d" EOS},
        {CHAT(SAY("system", "a") "," SAY("system", "") "," SAY("system", "b") "," SAY("user", "c")),
         BOS "a\n\nb" U "c" A "</think>"},
        {CHAT(SAY("system", "") "," SAY("system", "b") "," SAY("user", "c")),
         BOS "b" U "c" A "</think>"},
        {CHAT(SAY("user", "a") "," SAY("system", "")), BOS U "a"},
        {CHAT(SAY("tool", "r") "," SAY("system", "b") "," SAY("user", "c")),
         BOS U "<tool_result>r</tool_result>\n\n<system>\nb\n</system>" U "c" A "</think>"},
        {CHAT(SAY("developer", "a") "," SAY("system", "b") "," SAY("user", "c")),
         BOS U "a\n\n<system>\nb\n</system>" U "c" A "</think>"},
        {CHAT(SAY("user", "a") "," SAY("assistant", "b") "," SAY("system", "c") "," SAY("user",
                                                                                        "d")),
         BOS U "a" A "</think>b" EOS "c" U "d" A "</think>"},
    };
    for (size_t i = 0; i < sizeof example / sizeof *example; i++)
        check_text(TEXT_CHAT_DEEPSEEK_V4, example[i][0], example[i][1]);
}

#define CALL_OF(name)  "{\"id\":\"" name "\",\"function\":{\"name\":\"" name "\",\"arguments\":{}}}"
#define RESULT(id, t)  "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" t "\"}"
#define TURN(more)     "{\"large\":false," more "\"messages\":[" SAY("user", "q") ","
#define ASKED          "<bos><|turn>user\nq<turn|>\n<|turn>model\n"
#define CALLED(name)   "<|tool_call>call:" name "{}<tool_call|>"
#define ANSWERED(n, t) "<|tool_response>response:" n "{value:<|\"|>" t "<|\"|>}<tool_response|>"

/* Text, calls, results: the order in which they came to be.  Behind a result the turn is open. */
static void gemma_results_are_last_in_an_open_turn(void **state)
{
    (void)state;
    static const char *const example[][2] = {
        {TURN("") "{\"role\":\"assistant\",\"content\":\"I look. "
                  "\",\"tool_calls\":[" CALL_OF("f") "]}," RESULT("f", "r") "]}",
         ASKED "I look. " CALLED("f") ANSWERED("f", "r")},
        {TURN("") "{\"role\":\"assistant\",\"content\":\"I "
                  "look.\",\"tool_calls\":[" CALL_OF("f") "," CALL_OF("g") "]}," RESULT(
                      "g", "s") "," RESULT("f", "r") "]}",
         ASKED "I look." CALLED("f") CALLED("g") ANSWERED("g", "s") ANSWERED("f", "r")},
        {TURN("") "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\" "
                  "I \"},{\"type\":\"text\","
                  "\"text\":\"look.\"}],\"reasoning_content\":\"Hm.\",\"tool_calls\":"
                  "[" CALL_OF("f") "]}," RESULT("f", "r") "]}",
         ASKED "<|channel>thought\nHm.\n<channel|> I look." CALLED("f") ANSWERED("f", "r")},
        {TURN("") "{\"role\":\"assistant\",\"content\":\"\\n\",\"tool_calls\":[" CALL_OF(
             "f") "]}," RESULT("f", "r") "," SAY("assistant", "So.") "," SAY("user", "p") "]}",
         ASKED CALLED("f") ANSWERED("f", "r") "So.<turn|>\n<|turn>user\np<turn|>\n<|turn>model\n"},
        {TURN("\"enable_thinking\":true,") "{\"role\":\"assistant\",\"content\":\"A\","
                                           "\"tool_calls\":[" CALL_OF("f") "]}," RESULT(
                                               "f", "r") ",{\"role\":\"assistant\","
                                                         "\"content\":\"B\",\"tool_calls\":"
                                                         "[" CALL_OF("g") "]}," RESULT("g",
                                                                                       "s") "]}",
         "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nq<turn|>\n<|turn>model\n"
         "A" CALLED("f") ANSWERED("f", "r") "B" CALLED("g")
             ANSWERED("g", "s") "<|channel>thought\n"},
        {TURN("") "{\"role\":\"assistant\",\"content\":\"A\",\"tool_calls\":[" CALL_OF("f") "]}]}",
         ASKED "A" CALLED("f") "<|tool_response>"},
        {TURN("") "{\"role\":\"assistant\",\"content\":\"B\",\"tool_responses\":[{"
                  "\"name\":\"f\","
                  "\"response\":\"r\"}]}," SAY("user", "p") "]}",
         ASKED ANSWERED("f", "r") "B<turn|>\n<|turn>user\np<turn|>\n<|turn>model\n"},
    };
    for (size_t i = 0; i < sizeof example / sizeof *example; i++)
        check_text(TEXT_CHAT_GEMMA4, example[i][0], example[i][1]);
}

/* Thoughts by the names that other vendors give them, and contents that are null or empty. */
static void thoughts_are_written_by_the_rules_of_the_family(void **state)
{
    (void)state;
    static const char *const form[] = {
        "\"content\":\"A\",\"reasoning\":\"T\"",
        "\"content\":\"A\",\"reasoning_content\":\"T\",\"thinking\":null",
        "\"content\":\"A\",\"reasoning\":null,\"thinking\":\"T\"",
        "\"content\":[{\"type\":\"thinking\",\"thinking\":\"T\",\"signature\":\"s\"},{\"type\":"
        "\"text\",\"text\":\"A\"}]",
        ("\"content\":[{\"type\":\"redacted_thinking\",\"data\":\"x\"},{\"type\":\"reasoning\","
         "\"text\":\"T\"},"
         "{\"type\":\"text\",\"text\":\"A\"}],\"tool_calls\":null"),
    };
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        char text[600];
        snprintf(
            text, sizeof text,
            TURN("\"thinking\":true,\"enable_thinking\":true,\"drop_thinking\":false,") "{\"role\":"
                                                                                        "\"assistan"
                                                                                        "t\",%s}]}",
            form[i]);
        check_text(TEXT_CHAT_GEMMA4, text,
                   "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nq<turn|>\n<|turn>model\n"
                   "<|channel>thought\nT\n<channel|>A<turn|>\n<|turn>model\n");
        check_text(TEXT_CHAT_DEEPSEEK_V4, text, BOS U "q" A "<think>T</think>A" EOS A "<think>");
        snprintf(text, sizeof text,
                 TURN("\"add_generation_prompt\":false,") "{\"role\":\"assistant\",%s}," SAY(
                     "user", "p") "]}",
                 form[i]);
        /* an older thought */
        check_text(TEXT_CHAT_GEMMA4, text, ASKED "A<turn|>\n<|turn>user\np<turn|>\n");
        check_text(TEXT_CHAT_DEEPSEEK_V4, text, BOS U "q" A "</think>A" EOS U "p" A "</think>");
    }
    static const char empty[] = TURN(
        "") "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"\",\"tool_calls\":["
            "{\"function\":{\"name\":\"f\",\"arguments\":null}}]},"
            "{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":null}]}],\"tools\":null}";
    check_text(TEXT_CHAT_GEMMA4, empty, ASKED CALLED("f") ANSWERED("unknown", ""));
    check_text(TEXT_CHAT_DEEPSEEK_V4, empty,
               BOS U "q" A "</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\n"
                     "</｜DSML｜invoke>\n</｜DSML｜tool_calls>" EOS U
                     "<tool_result></tool_result>" A "</think>");
}

/* What the model wrote behind the prompt stands there in the next one: the cache has all of it. */
static void a_prompt_begins_with_what_the_model_wrote(void **state)
{
    (void)state;
    static const struct {
        enum text_chat_family family;
        /* the conversation; an answer; the same conversation later */
        const char *open, *written, *then;
    } example[] = {
        {TEXT_CHAT_GEMMA4, TURN("") "{}]}", "I look.\n\n" CALLED("f"),
         TURN("") "{\"role\":\"assistant\",\"content\":\"I look.\\n\\n\",\"tool_calls\":[" CALL_OF(
             "f") "]}," RESULT("f", "r") "]}"},
        {TEXT_CHAT_GEMMA4, TURN("\"enable_thinking\":true,") "{}]}",
         "<|channel>thought\nHm.\n<channel|>\nI look." CALLED("f") CALLED("g"),
         TURN("\"enable_thinking\":true,") "{\"role\":\"assistant\",\"reasoning_content\":\"Hm.\","
                                           "\"content\":"
                                           "\"\\nI look.\",\"tool_calls\":[" CALL_OF(
                                               "f") "," CALL_OF("g") "]}," RESULT("f", "r") "]}"},
        {TEXT_CHAT_DEEPSEEK_V4, TURN("") "{}]}",
         "I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke "
         "name=\"f\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
         TURN("") "{\"role\":\"assistant\",\"content\":\"I look.\",\"tool_calls\":[" CALL_OF(
             "f") "]}," RESULT("f", "r") "]}"},
    };
    for (size_t i = 0; i < sizeof example / sizeof *example; i++) {
        struct json_object *c, *list;
        struct text_prompt a, b;
        struct err err;
        text_prompt_init(&a);
        text_prompt_init(&b);
        assert_int_equal(json_parse(example[i].open, strlen(example[i].open), NULL, &c, NULL),
                         INGLE_OK);
        assert_true(json_object_object_get_ex(c, "messages", &list));
        json_object_array_del_idx(list, 1, 1);
        assert_int_equal(text_chat_render_case(example[i].family, c, &a, &err), INGLE_OK);
        json_object_put(c);
        assert_int_equal(json_parse(example[i].then, strlen(example[i].then), NULL, &c, NULL),
                         INGLE_OK);
        assert_int_equal(text_chat_render_case(example[i].family, c, &b, &err), INGLE_OK);
        json_object_put(c);
        str_adds(&a.text, example[i].written);
        if (b.text.n <= a.text.n || memcmp(a.text.at, b.text.at, a.text.n) != 0)
            fail_msg("%s\n" "does not begin with\n%s", b.text.at, a.text.at);
        text_prompt_release(&a);
        text_prompt_release(&b);
    }
}

static void numbers_print_as_in_python(void **state)
{
    (void)state;
    check_text(
        TEXT_CHAT_GEMMA4,
        "{\"add_generation_prompt\":false,\"messages\":[{\"role\":\"assistant\","
        "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"n\":[17,1.5,1E-7,2.0,"
        "1e5,1e15,1e16,0.0001,0.00001,-0.0,-0,5.684341886080802e-14,5e-324,0.1,"
        "1.7976931348623157e308,9007199254740993.0,100000000000000000000,"
        "-9223372036854775809,18446744073709551615,1e400]}}}]}]}",
        "<bos><|turn>model\n<|tool_call>call:f{n:[17,1.5,1e-07,2.0,"
        "100000.0,1000000000000000.0,1e+16,0.0001,1e-05,-0.0,0,5.684341886080802e-14,5e-324,"
        "0.1,1.7976931348623157e+308,9007199254740992.0,100000000000000000000,"
        "-9223372036854775809,18446744073709551615,1e400]}<tool_call|><|tool_response>");
}

static const char *name_in(enum text_chat_family family, const char *path)
{
    size_t n_file, n;
    const char *jinja;
    struct io_file *f;
    char *gguf = test_slurp(path, &n_file);
    assert_non_null(gguf);
    assert_int_equal(io_open_memory(&f, path, gguf, n_file, NULL, NULL), INGLE_OK);
    assert_int_equal(io_get_str(io_metadata(f), "tokenizer.chat_template", &jinja, &n, NULL),
                     INGLE_OK);
    const char *name = text_chat_template_name(family, jinja, n);
    io_close(f);
    mem_free(gguf);
    return name ? name : "unknown";
}

static void templates_are_known_by_their_hash(void **state)
{
    (void)state;
    static const char gemma[] = "tests/data/vocab/gemma-4-vocab.gguf.xz";
    static const char deepseek[] = "tests/data/vocab/deepseek-v4-vocab.gguf.xz";
    assert_null(text_chat_template_name(TEXT_CHAT_GEMMA4, "{{ bos_token }}", 15));
    assert_null(text_chat_template_name(TEXT_CHAT_DEEPSEEK_V4, "", 0));
    assert_string_equal(name_in(TEXT_CHAT_GEMMA4, gemma), "gemma4 older, 12045 bytes");
    assert_string_equal(name_in(TEXT_CHAT_DEEPSEEK_V4, gemma), "unknown");
    assert_string_equal(name_in(TEXT_CHAT_DEEPSEEK_V4, deepseek), "deepseek4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma_prompts_equal_the_template),
        cmocka_unit_test(gemma_interleaved_conversations_follow_the_canonical_rules),
        cmocka_unit_test(deepseek_prompts_equal_the_encoder),
        cmocka_unit_test(deepseek_turns_lead_to_each_other_like_the_encoders),
        cmocka_unit_test(deepseek_system_texts_are_set_apart),
        cmocka_unit_test(gemma_results_are_last_in_an_open_turn),
        cmocka_unit_test(a_prompt_begins_with_what_the_model_wrote),
        cmocka_unit_test(thoughts_are_written_by_the_rules_of_the_family),
        cmocka_unit_test(numbers_print_as_in_python),
        cmocka_unit_test(templates_are_known_by_their_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
