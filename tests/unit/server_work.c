/* SPDX-License-Identifier: Apache-2.0
 *
 * How much work a request makes for those who read it, counted in steps: the blocks of code that
 * are entered (server and templates are built with -fsanitize-coverage=trace-pc for this), calls of
 * json-c, and bytes that are copied or compared, eight a step.  Four times the input must not cost
 * more than four times as many steps, and somewhat.
 */
#include "unit/unit.h"

#include "base/json.h"
#include "base/mem.h"
#include "server/fields.h"
#include "server/anthropic/anthropic.h"
#include "server/openai/openai.h"
#include "server/responses/responses.h"
#include "server/responses/store.h"
#include "text/text.h"
#include <stdio.h>
#include <string.h>

static uint64_t n_steps;

/* ---- what counts ---- */

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) { n_steps++; }

void *__real_memcpy(void *to, const void *from, size_t n);
void *__wrap_memcpy(void *to, const void *from, size_t n);
void *__wrap_memcpy(void *to, const void *from, size_t n)
{
    n_steps += 1 + n / 8;
    return __real_memcpy(to, from, n);
}

void *__real_memmove(void *to, const void *from, size_t n);
void *__wrap_memmove(void *to, const void *from, size_t n);
void *__wrap_memmove(void *to, const void *from, size_t n)
{
    n_steps += 1 + n / 8;
    return __real_memmove(to, from, n);
}

int __real_memcmp(const void *a, const void *b, size_t n);
int __wrap_memcmp(const void *a, const void *b, size_t n);
int __wrap_memcmp(const void *a, const void *b, size_t n)
{
    n_steps += 1 + n / 8;
    return __real_memcmp(a, b, n);
}

size_t __real_strlen(const char *s);
size_t __wrap_strlen(const char *s);
size_t __wrap_strlen(const char *s)
{
    const size_t n = __real_strlen(s);
    n_steps += 1 + n / 8;
    return n;
}

char *__real_strstr(const char *s, const char *part);
char *__wrap_strstr(const char *s, const char *part);
char *__wrap_strstr(const char *s, const char *part)
{
    char *at = __real_strstr(s, part);
    n_steps += 1 + (at ? (size_t)(at - s) : __real_strlen(s)) / 8;
    return at;
}

const char *__real_json_object_to_json_string_length(struct json_object *o, int flags, size_t *n);
const char *__wrap_json_object_to_json_string_length(struct json_object *o, int flags, size_t *n);
const char *__wrap_json_object_to_json_string_length(struct json_object *o, int flags, size_t *n)
{
    const char *text = __real_json_object_to_json_string_length(o, flags, n);
    n_steps += 1 + *n / 8;
    return text;
}

int __real_json_object_array_del_idx(struct json_object *o, size_t at, size_t n);
int __wrap_json_object_array_del_idx(struct json_object *o, size_t at, size_t n);
int __wrap_json_object_array_del_idx(struct json_object *o, size_t at, size_t n)
{
    n_steps += 1 + json_object_array_length(o) - at;
    return __real_json_object_array_del_idx(o, at, n);
}

/* A parse costs its text. */
struct json_object *__real_json_tokener_parse_ex(struct json_tokener *t, const char *text, int n);
struct json_object *__wrap_json_tokener_parse_ex(struct json_tokener *t, const char *text, int n);
struct json_object *__wrap_json_tokener_parse_ex(struct json_tokener *t, const char *text, int n)
{
    n_steps += (uint64_t)n;
    return __real_json_tokener_parse_ex(t, text, n);
}

/* ---- bodies of n things ---- */

typedef void make_fn(struct str *s, int n);

static void comma(struct str *s, int i) { str_adds(s, i ? "," : ""); }

static void messages(struct str *s, int n)
{
    str_adds(s, "{\"max_tokens\":5,\"messages\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "{\"role\":\"%s\",\"content\":\"text %d\"}", i % 2 ? "assistant" : "user", i);
    }
    str_adds(s, "]}");
}

static void parts(struct str *s, int n)
{
    str_adds(s, "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "{\"type\":\"text\",\"text\":\"part %d\"}", i);
    }
    str_adds(s, "]}]}");
}

/* One turn with n calls, whose results come in the reverse order. */
static void openai_calls(struct str *s, int n)
{
    str_adds(s, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
                "\"tool_calls\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(
            s,
            "{\"id\":\"c%d\",\"type\":\"function\",\"function\":{\"name\":\"f%d\",\"arguments\":"
            "\"{\\\"a\\\":%d}\"}}",
            i, i, i);
    }
    str_adds(s, "]}");
    for (int i = n; i-- > 0;)
        str_addf(s, ",{\"role\":\"tool\",\"tool_call_id\":\"c%d\",\"content\":\"r%d\"}", i, i);
    str_adds(s, "]}");
}

/* n turns of one call and its result each. */
static void openai_turns(struct str *s, int n)
{
    str_adds(s, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}");
    for (int i = 0; i < n; i++)
        str_addf(
            s,
            ",{\"role\":\"assistant\",\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"c%d\","
            "\"type\":"
            "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\","
            "\"tool_call_id\":\"c%d\",\"content\":\"r\"}",
            i, i);
    str_adds(s, "]}");
}

/* Results that nobody asked for. */
static void openai_orphans(struct str *s, int n)
{
    str_adds(s,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_"
             "calls\":[{\"id\":"
             "\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}");
    for (int i = 0; i < n; i++)
        str_addf(s, ",{\"role\":\"tool\",\"tool_call_id\":\"x%d\",\"content\":\"r\"}", i);
    str_adds(s, "]}");
}

static void parameters(struct str *s, int n)
{
    str_adds(s, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "\"p%d\":{\"type\":\"string\",\"description\":\"d\"}", i);
    }
    str_adds(s, "},\"required\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "\"p%d\"", i);
    }
    str_adds(s, "]}");
}

static void openai_tools(struct str *s, int n)
{
    str_adds(s, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "{\"type\":\"function\",\"function\":{\"name\":\"f%d\",\"parameters\":", i);
        parameters(s, 8);
        str_adds(s, "}}");
    }
    str_adds(s, "]}"); /* allowed_tools are looked up in the list, which has 256 at most */
}

static void openai_parameters(struct str *s, int n)
{
    str_adds(s, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"type\":"
                "\"function\",\"function\":{"
                "\"name\":\"f\",\"parameters\":");
    parameters(s, n);
    str_adds(s, "}}]}");
}

static void stops(struct str *s, int n)
{
    str_adds(s, "{\"prompt\":\"q\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"max_"
                "tokens\":5,\"stop\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "\"%01000d\"", i);
    }
    str_adds(s, "]}");
}

static void biases(struct str *s, int n)
{
    str_adds(
        s,
        "{\"prompt\":\"q\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"logit_bias\":{");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "\"%d\":1", i);
    }
    str_adds(s, "}}");
}

static void bias_pairs(struct str *s, int n)
{
    str_adds(
        s,
        "{\"prompt\":\"q\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"logit_bias\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "[%d,1]", i);
    }
    str_adds(s, "]}");
}

/* Members that nobody knows. */
static void strangers(struct str *s, int n)
{
    str_adds(
        s,
        "{\"prompt\":\"q\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"max_tokens\":5");
    for (int i = 0; i < n; i++)
        str_addf(s, ",\"x%d\":%d", i, i);
    str_adds(s, "}");
}

static void unknown(struct str *s, int n)
{
    str_adds(s, "{\"input\":\"q\"");
    for (int i = 0; i < n; i++)
        str_addf(s, ",\"x%d\":%d", i, i);
    str_adds(s, "}");
}

static void prompts(struct str *s, int n)
{
    str_adds(s, "{\"prompt\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "\"%01000d\"", i);
    }
    str_adds(s, "]}");
}

static void prompt_ids(struct str *s, int n)
{
    str_adds(s, "{\"prompt\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "%d", i % 2000);
    }
    str_adds(s, "]}");
}

static void fields(struct str *s, int n)
{
    str_adds(s, "{\"prompt\":\"q\",\"response_fields\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "\"f%d\"", i);
    }
    str_adds(s, "]}");
}

static void claude_calls(struct str *s, int n)
{
    str_adds(s, "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
                "\"assistant\",\"content\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "{\"type\":\"tool_use\",\"id\":\"c%d\",\"name\":\"f\",\"input\":{}}", i);
    }
    str_adds(s, "]},{\"role\":\"user\",\"content\":[");
    for (int i = n; i-- > 0;)
        str_addf(s, "{\"type\":\"tool_result\",\"tool_use_id\":\"c%d\",\"content\":\"r\"}%s", i,
                 i ? "," : "");
    str_adds(s, "]}]}");
}

static void claude_turns(struct str *s, int n)
{
    str_adds(s, "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}");
    for (int i = 0; i < n; i++)
        str_addf(s,
                 ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"t\"},{"
                 "\"type\":\"tool_use\","
                 "\"id\":\"c%d\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\",\"content\":[{"
                 "\"type\":"
                 "\"tool_result\",\"tool_use_id\":\"c%d\",\"content\":\"r\"}]}",
                 i, i);
    str_adds(s, "]}");
}

static void claude_tools(struct str *s, int n)
{
    str_adds(s,
             "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "{\"name\":\"f%d\",\"input_schema\":", i);
        parameters(s, 8);
        str_adds(s, "}");
    }
    str_adds(s, "]}");
}

/* n tools that wait until they are named, and each of them is. */
static void claude_references(struct str *s, int n)
{
    str_adds(
        s, "{\"max_tokens\":5,\"tools\":[{\"name\":\"s\",\"input_schema\":{\"type\":\"object\"}}");
    for (int i = 0; i < n; i++)
        str_addf(
            s, ",{\"name\":\"f%d\",\"defer_loading\":true,\"input_schema\":{\"type\":\"object\"}}",
            i);
    str_adds(s, "],\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
                "\"content\":[{\"type\":"
                "\"tool_use\",\"id\":\"c\",\"name\":\"s\",\"input\":{}}]},{\"role\":\"user\","
                "\"content\":[{\"type\":"
                "\"tool_result\",\"tool_use_id\":\"c\",\"content\":[");
    for (int i = 0; i < 8 * n; i++) {
        comma(s, i);
        str_addf(s, "{\"type\":\"tool_reference\",\"tool_name\":\"f%d\"}", n - 1 - i / 8);
    }
    str_adds(s, "]}]}]}");
}

static void claude_stops(struct str *s, int n)
{
    str_adds(s, "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"stop_"
                "sequences\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "\"%01000d\"", i);
    }
    str_adds(s, "]}");
}

static void claude_system(struct str *s, int n)
{
    str_adds(s,
             "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"system\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "{\"type\":\"text\",\"text\":\"part %d\"}", i);
    }
    str_adds(s, "]}");
}

static void items(struct str *s, int n)
{
    str_adds(s, "{\"input\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "{\"role\":\"%s\",\"content\":\"text %d\"}", i % 2 ? "assistant" : "user", i);
    }
    str_adds(s, "]}");
}

static void item_parts(struct str *s, int n)
{
    str_adds(s, "{\"input\":[{\"role\":\"user\",\"content\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "{\"type\":\"input_text\",\"text\":\"part %d\"}", i);
    }
    str_adds(s, "]}]}");
}

static void item_calls(struct str *s, int n)
{
    str_adds(s, "{\"input\":[{\"role\":\"user\",\"content\":\"q\"}");
    for (int i = 0; i < n; i++)
        str_addf(
            s,
            ",{\"type\":\"function_call\",\"call_id\":\"c%d\",\"name\":\"f\",\"arguments\":\"{}\"}",
            i);
    for (int i = n; i-- > 0;)
        str_addf(s, ",{\"type\":\"function_call_output\",\"call_id\":\"c%d\",\"output\":\"r\"}", i);
    str_adds(s, "]}");
}

/* Calls without ids, which their order matches. */
static void item_calls_in_order(struct str *s, int n)
{
    str_adds(s, "{\"input\":[{\"role\":\"user\",\"content\":\"q\"}");
    for (int i = 0; i < n; i++)
        str_adds(s, ",{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":"
                    "\"function_call_output\",\"output\":\"r\"}");
    str_adds(s, "]}");
}

static void item_tools(struct str *s, int n)
{
    str_adds(s, "{\"input\":\"q\",\"tools\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "{\"type\":\"function\",\"name\":\"f%d\",\"parameters\":", i);
        parameters(s, 8);
        str_adds(s, "}");
    }
    str_adds(s, "],\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[");
    for (int i = n; i-- > 0;)
        str_addf(s, "{\"type\":\"function\",\"name\":\"f%d\"}%s", i, i ? "," : "");
    str_adds(s, "]}}");
}

/* Tools that a search finds late. */
static void late_tools(struct str *s, int n)
{
    str_adds(s, "{\"input\":[{\"role\":\"user\",\"content\":\"q\"}");
    for (int i = 0; i < n; i++)
        str_addf(s,
                 ",{\"type\":\"tool_search_call\",\"call_id\":\"c%d\",\"arguments\":{}},{\"type\":"
                 "\"tool_search_output\",\"call_id\":\"c%d\",\"tools\":[{\"type\":\"function\","
                 "\"name\":\"f%d\"}]}",
                 i, i, i);
    str_adds(s, "]}");
}

static void references(struct str *s, int n)
{
    str_adds(s, "{\"input\":[");
    for (int i = 0; i < n; i++) {
        comma(s, i);
        str_addf(s, "{\"type\":\"item_reference\",\"id\":\"k%d\"}", i);
    }
    str_adds(s, "]}");
}

static void previous(struct str *s, int n)
{
    str_addf(s, "{\"input\":\"q\",\"previous_response_id\":\"resp_%d\"}", n);
}

static void conversation(struct str *s, int n)
{
    str_addf(s, "{\"input\":\"q\",\"conversation\":\"conv_%d\"}", n);
}

/* ---- readers ---- */

static struct responses_store *store;

/* The store has answers and conversations of n items for each n that is asked for, among others. */
static void fill_store(int n)
{
    struct responses_items list = {0};
    struct str object, text;
    str_init(&object);
    str_init(&text);
    str_adds(&object, "{}");
    for (int i = 0; i < n; i++) {
        char id[32];
        snprintf(id, sizeof id, "k%d", i);
        str_clear(&text);
        str_addf(&text, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"user\",\"content\":\"c\"}",
                 id);
        assert_true(responses_items_add(
            &list, responses_item_create(text.at, text.n, (struct view){id, strlen(id)})));
    }
    const struct responses_kept k = {.items = &list, .object = &object};
    str_clear(&text);
    str_addf(&text, "resp_%d", n);
    responses_store_add(store, "u", text.at, &k);
    str_clear(&text);
    str_addf(&text, "conv_%d", n);
    responses_store_add(store, "u", text.at, &k);
    responses_items_release(&list);
    str_release(&object);
    str_release(&text);
}

/* Templates cost as little as readers. */
static void render(const struct chat_request *r)
{
    struct json_object *list = NULL, *tools = NULL;
    struct err err;
    assert_int_equal(json_parse(r->messages.at, r->messages.n, NULL, &list, &err), INGLE_OK);
    if (r->tools.n)
        assert_int_equal(json_parse(r->tools.at, r->tools.n, NULL, &tools, &err), INGLE_OK);
    const struct text_chat_options o = {.add_generation_prompt = true, .thinking = true};
    for (int family = 0; family < 2; family++) {
        struct text_prompt p;
        text_prompt_init(&p);
        (void)!text_chat_render((enum text_chat_family)family, list, tools, &o, &p, &err);
        text_prompt_release(&p);
    }
    json_object_put(list);
    json_object_put(tools);
}

typedef void read_fn(struct json_object *body, struct chat_request *r, struct fault *f);

static void read_openai(const struct openai_kind *kind, struct json_object *body,
                        struct chat_request *r, struct fault *f)
{
    const struct answer_options o = {.n_vocab = 4096, .max_tokens = -1, .n_ctx = 4096};
    void *state = kind->create();
    kind->read(r, body, &o, state, f);
    kind->dialect->free(state);
}

static void read_chat(struct json_object *body, struct chat_request *r, struct fault *f)
{
    read_openai(&openai_kind_chat, body, r, f);
}

static void read_text(struct json_object *body, struct chat_request *r, struct fault *f)
{
    read_openai(&openai_kind_text, body, r, f);
}

static void read_native(struct json_object *body, struct chat_request *r, struct fault *f)
{
    read_openai(&openai_kind_native, body, r, f);
}

static void read_claude(struct json_object *body, struct chat_request *r, struct fault *f)
{
    const struct answer_options o = {.n_vocab = 4096, .max_tokens = -1, .n_ctx = 4096};
    struct anthropic *s;
    anthropic_read(body, &o, "req", NULL, r, &s, f);
    anthropic_free(s);
}

static void read_codex(struct json_object *body, struct chat_request *r, struct fault *f)
{
    const struct answer_options o = {.n_vocab = 4096, .max_tokens = -1, .n_ctx = 4096};
    struct responses *s;
    responses_read(body, &o, store, "u", NULL, r, &s, f);
    responses_free(s);
}

/* ---- the measure ---- */

static uint64_t steps(make_fn *make, read_fn *read, int n, const char *what)
{
    struct str text;
    struct chat_request r;
    struct fault f = {0};
    str_init(&text);
    make(&text, n);
    struct json_object *body = request_body(text.at, text.n, &f);
    if (f.kind)
        fail_msg("%s: %s", what, f.message);
    request_init(&r, &(struct ingle_sampling){.temperature = 1, .top_p = 1});
    n_steps = 0;
    read(body, &r, &f);
    if (!f.kind && r.chat)
        render(&r);
    const uint64_t n_done = n_steps;
    if (f.kind)
        fail_msg("%s of %d: %s: %s", what, n, f.param, f.message);
    request_release(&r);
    json_object_put(body);
    str_release(&text);
    return n_done;
}

static void expect_linear(const char *what, const uint64_t n[3])
{
    print_message("%-32s %10llu %10llu %10llu\n", what, (unsigned long long)n[0],
                  (unsigned long long)n[1], (unsigned long long)n[2]);
    if (n[1] > n[0] * 5 / 2 || n[2] > n[1] * 5 / 2)
        fail_msg("%s: %llu, %llu, %llu steps for n, 2n, 4n", what, (unsigned long long)n[0],
                 (unsigned long long)n[1], (unsigned long long)n[2]);
}

static void measure(const char *what, make_fn *make, read_fn *read, int n)
{
    uint64_t k[3];
    for (int i = 0; i < 3; i++)
        k[i] = steps(make, read, n << i, what);
    expect_linear(what, k);
}
#define MEASURE(make, read, n) measure(#read " " #make, make, read, n)

static void openai(void **state)
{
    (void)state;
    MEASURE(messages, read_chat, 1000);
    MEASURE(parts, read_chat, 1000);
    MEASURE(openai_calls, read_chat, 250);
    MEASURE(openai_turns, read_chat, 500);
    MEASURE(openai_orphans, read_chat, 500);
    MEASURE(openai_tools, read_chat, 60);
    MEASURE(openai_parameters, read_chat, 1000);
    MEASURE(stops, read_chat, 16);
    MEASURE(biases, read_chat, 250);
    MEASURE(bias_pairs, read_chat, 250);
    MEASURE(strangers, read_chat, 1000);
    MEASURE(stops, read_text, 16);
    MEASURE(biases, read_text, 250);
    MEASURE(prompts, read_text, 16);
    MEASURE(prompt_ids, read_text, 1000);
    MEASURE(strangers, read_text, 1000);
    MEASURE(stops, read_native, 16);
    MEASURE(biases, read_native, 250);
    MEASURE(prompts, read_native, 16);
    MEASURE(prompt_ids, read_native, 1000);
    MEASURE(fields, read_native, 16);
}

static void anthropic(void **state)
{
    (void)state;
    MEASURE(messages, read_claude, 1000);
    MEASURE(parts, read_claude, 1000);
    MEASURE(claude_calls, read_claude, 250);
    MEASURE(claude_turns, read_claude, 500);
    MEASURE(claude_tools, read_claude, 60);
    MEASURE(claude_references, read_claude, 60);
    MEASURE(claude_stops, read_claude, 16);
    MEASURE(claude_system, read_claude, 500);
    MEASURE(strangers, read_claude, 1000);
}

static void responses(void **state)
{
    (void)state;
    assert_int_equal(responses_store_create(&store, 0, 0, NULL), INGLE_OK);
    for (int n = 500; n <= 4000; n *= 2)
        fill_store(n);
    MEASURE(items, read_codex, 1000);
    MEASURE(item_parts, read_codex, 1000);
    MEASURE(item_calls, read_codex, 250);
    MEASURE(item_calls_in_order, read_codex, 500);
    MEASURE(item_tools, read_codex, 60);
    MEASURE(late_tools, read_codex, 60);
    MEASURE(references, read_codex, 500);
    MEASURE(previous, read_codex, 500);
    MEASURE(conversation, read_codex, 500);
    MEASURE(unknown, read_codex, 1000);
    responses_store_free(store);
}

/* What is asked of a stored conversation of n items: steps of a page, of one item, of a removal, of
 * adding. */
static void conversations(void **state)
{
    (void)state;
    uint64_t k[4][3];
    static const char *const what[] = {"a page", "one item", "a removal", "adding one by one"};
    for (int i = 0; i < 3; i++) {
        const int n = 1000 << i;
        struct str out, id;
        struct responses_items list = {0}, one = {0};
        struct fault f = {0};
        assert_int_equal(responses_store_create(&store, 0, 0, NULL), INGLE_OK);
        fill_store(n);
        str_init(&out);
        str_init(&id);
        str_addf(&id, "conv_%d", n);
        n_steps = 0;
        struct responses_found found = {.items = &list};
        assert_true(responses_store_get(store, "u", id.at, &found));
        responses_page(NULL, &list, SIZE_MAX, &out, &f);
        responses_found_release(&found);
        k[0][i] = n_steps;
        n_steps = 0;
        assert_int_equal(responses_items_find(&list, "nosuch"), n);
        k[1][i] = n_steps;
        n_steps = 0;
        assert_true(responses_store_remove(store, "u", id.at, "k7"));
        k[2][i] = n_steps;
        assert_true(responses_items_share(&one, &list, 0, 1));
        n_steps = 0;
        for (int added = 0; added < n; added++)
            assert_int_equal(responses_store_append(store, "u", id.at, &one), RESPONSES_CHANGED);
        k[3][i] = n_steps;
        responses_items_release(&list);
        responses_items_release(&one);
        responses_store_free(store);
        str_release(&out);
        str_release(&id);
    }
    for (int w = 0; w < 4; w++)
        expect_linear(what[w], k[w]);
}

/* ---- who is asked whether to go on ---- */

static int n_asked;

static void tire(void *arg, struct fault *f)
{
    if (++n_asked > *(int *)arg)
        request_fault(f, FAULT_DEADLINE, NULL, "enough");
}

/* A tool that is named often brings its definition each time: so much and no more. */
static void named_tools_have_a_limit(void **state)
{
    (void)state;
    struct str text;
    struct chat_request r;
    const struct answer_options o = {.n_vocab = 4096, .max_tokens = -1, .n_ctx = 4096};
    struct anthropic *s;
    struct fault f = {0};
    str_init(&text);
    str_addf(&text,
             "{\"max_tokens\":5,\"tools\":[{\"name\":\"f\",\"defer_loading\":true,\"description\":"
             "\"%0100000d\","
             "\"input_schema\":{\"type\":\"object\"}}],\"messages\":[{\"role\":\"user\","
             "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c\","
             "\"content\":[",
             0);
    for (int i = 0; i < 1000; i++)
        str_addf(&text, "%s{\"type\":\"tool_reference\",\"tool_name\":\"f\"}", i ? "," : "");
    str_adds(&text, "]}]}]}");
    struct json_object *body = request_body(text.at, text.n, &f);
    request_init(&r, &(struct ingle_sampling){.temperature = 1, .top_p = 1});
    anthropic_read(body, &o, "req", NULL, &r, &s, &f);
    assert_int_equal(f.kind, FAULT_REQUEST);
    assert_non_null(strstr(f.message, "definitions of tools"));
    anthropic_free(s);
    request_release(&r);
    json_object_put(body);
    str_release(&text);
}

/* A reader stops soon after it was told to, wherever that is. */
static void readers_stop(void **state)
{
    (void)state;
    static const struct {
        make_fn *make;
        read_fn *read;
        int n;
    } t[] = {{messages, read_chat, 20000},     {parts, read_chat, 20000},
             {openai_turns, read_chat, 20000}, {messages, read_claude, 20000},
             {parts, read_claude, 20000},      {items, read_codex, 20000},
             {item_parts, read_codex, 20000}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int patience = 2;
        struct str text;
        struct chat_request r;
        struct fault f = {0};
        str_init(&text);
        t[i].make(&text, t[i].n);
        struct json_object *body = request_body(text.at, text.n, &f);
        assert_non_null(body);
        f = (struct fault){.poll = tire, .arg = &patience};
        request_init(&r, &(struct ingle_sampling){.temperature = 1, .top_p = 1});
        n_asked = 0;
        t[i].read(body, &r, &f);
        if (f.kind != FAULT_DEADLINE)
            fail_msg("case %zu: asked %d times, %s", i, n_asked, f.message);
        assert_int_equal(n_asked, patience + 1);
        request_release(&r);
        json_object_put(body);
        f = (struct fault){.poll = tire, .arg = &patience};
        n_asked = 0;
        assert_null(request_body(text.at, text.n, &f));
        assert_int_equal(f.kind, FAULT_DEADLINE);
        str_release(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(openai),       cmocka_unit_test(anthropic),
        cmocka_unit_test(responses),    cmocka_unit_test(conversations),
        cmocka_unit_test(readers_stop), cmocka_unit_test(named_tools_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
