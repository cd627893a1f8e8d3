/* SPDX-License-Identifier: Apache-2.0 */
#include "server/responses/responses.h"
#include "server/responses/store.h"

#include "server/openai/openai.h"
#include "server/thought.h"
#include "server/write.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- events ---- */

static void event_begin(struct responses *s, struct str *out, const char *type)
{
    str_addf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lld", type, type,
             (long long)s->sequence++);
}

static void event_end(struct str *out) { str_adds(out, "}\n\n"); }

/* ---- the response object ---- */

void responses_put_usage(struct str *out, const struct answer_result *r)
{
    const struct ingle_usage *u = &r->usage;
    write_key(out, "usage");
    write_open(out, '{');
    write_member_int(out, "input_tokens", u->n_prompt);
    write_key(out, "input_tokens_details");
    write_open(out, '{');
    write_member_int(out, "cached_tokens", u->reuse.kept);
    write_member_int(out, "cache_write_tokens", 0);
    write_computed(out, u);
    write_close(out, '}');
    write_member_int(out, "output_tokens", u->n_generated);
    write_key(out, "output_tokens_details");
    write_open(out, '{');
    write_member_int(out, "reasoning_tokens", r->n_reasoning);
    write_drafted(out, u->n_drafted, u->n_accepted);
    write_close(out, '}');
    write_member_int(out, "total_tokens", u->n_prompt + u->n_generated);
    write_ways(out, &u->way);
    write_pages(out, &u->pages);
    write_close(out, '}');
}

struct ending {
    const char *status; /* "in_progress", "completed", "incomplete", "failed" */
    const char *error_code, *error_text; /* of a failure */
    const struct answer_result *result;  /* NULL: no usage yet */
    bool brief;                          /* without what repeats the request */
};

static void put_response(const struct responses *s, struct str *out, const struct ending *e)
{
    str_addf(out, "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%lld", s->id,
             (long long)s->created);
    write_member(out, "status", e->status);
    write_key(out, "completed_at");
    if (e->result)
        write_int(out, (int64_t)time(NULL));
    else
        write_null(out);
    write_key(out, "error");
    if (e->error_code) {
        write_open(out, '{');
        write_member(out, "code", e->error_code);
        write_member(out, "message", e->error_text);
        write_close(out, '}');
    } else {
        write_null(out);
    }
    write_key(out, "incomplete_details");
    str_adds(out, strcmp(e->status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}"
                                                       : "null");
    write_member_string(out, "model", s->model.at, s->model.n);
    if (e->result)
        write_member_texts(out, "warnings", e->result->info->warnings, e->result->info->n_warnings);
    write_key(out, "output");
    write_open(out, '[');
    if (!e->brief)
        str_add(out, s->output.at, s->output.n);
    write_close(out, ']');
    if (e->result)
        responses_put_usage(out, e->result);
    else
        write_member_null(out, "usage");
    if (e->brief)
        str_adds(out, ",\"parallel_tool_calls\":true,\"tool_choice\":\"auto\",\"tools\":[]");
    else
        str_add(out, s->echo.at, s->echo.n);
    str_addc(out, '}');
}

static void put_life(struct responses *s, struct str *out, const char *type,
                     const struct ending *e)
{
    event_begin(s, out, type);
    write_key(out, "response");
    put_response(s, out, e);
    event_end(out);
}

/* ---- items ---- */

static const char *item_prefix(const struct responses *s)
{
    if (s->open == RESPONSES_REASONING)
        return "rs_";
    if (s->open == RESPONSES_MESSAGE)
        return "msg_";
    if (!s->called || s->called->kind == RESPONSES_FUNCTION)
        return "fc_";
    if (s->called->kind == RESPONSES_CUSTOM)
        return "ctc_";
    return s->called->kind == RESPONSES_LOCAL_SHELL ? "lsh_" : "tsc_";
}

/* Of a replica ids end in its name. */
static const char *replica_part(const struct responses *s)
{
    return strlen(s->id) > ANSWER_DIGITS ? s->id + ANSWER_DIGITS : "";
}

static void put_item_id(const struct responses *s, struct str *out, const char *key)
{
    write_key(out, key);
    str_addf(out, "\"%s%.*s%04zx%s\"", item_prefix(s), (int)ANSWER_DIGITS, s->id, s->n_output,
             replica_part(s));
}

static void put_part(const struct responses *s, struct str *out, const char *type)
{
    write_open(out, '{');
    write_member(out, "type", type);
    if (s->open == RESPONSES_MESSAGE) {
        str_adds(out, ",\"annotations\":[],\"logprobs\":[");
        str_add(out, s->logprob.at, s->logprob.n);
        str_addc(out, ']');
    }
    write_member_string(out, "text", s->text.at, s->text.n);
    write_close(out, '}');
}

static void put_reasoning(const struct responses *s, struct str *out, bool done)
{
    const char *const type = s->summary ? "summary_text" : "reasoning_text";
    if (!s->summary)
        str_adds(out, ",\"summary\":[]");
    write_key(out, s->summary ? "summary" : "content");
    write_open(out, '[');
    if (done)
        put_part(s, out, type);
    write_close(out, ']');
    write_key(out, "encrypted_content");
    if (done && s->sealed) {
        str_addc(out, '"');
        thought_seal(out, view_str(&s->text), true);
        str_addc(out, '"');
    } else {
        write_null(out);
    }
}

/* A byte after a backslash as our parsers write it; 0: another one. */
static char unescaped(char c)
{
    static const char written[] = "nrt\"\\", meant[] = "\n\r\t\"\\";
    const char *at = c ? strchr(written, c) : NULL;
    return at ? meant[at - written] : 0;
}

/* Reads on in {"input": "..., from which the string of a free-form tool is sent while it comes.
 * Where it meets what it does not know it stays; the rest is sent at the end. */
static void read_input(struct responses *s)
{
    static const char head[] = "{\"input\": \"";
    const struct str *t = &s->text;
    if (!s->input_at && (t->n < sizeof head - 1 || memcmp(t->at, head, sizeof head - 1) != 0))
        return;
    size_t i = s->input_at ? s->input_at : sizeof head - 1;
    while (i < t->n && t->at[i] != '"') {
        const bool escape = t->at[i] == '\\';
        if (escape && (i + 1 == t->n || !unescaped(t->at[i + 1])))
            break;
        str_addc(&s->input, escape ? unescaped(t->at[i + 1]) : t->at[i]);
        i += 1 + escape;
    }
    s->input_at = i;
}

/* The one string that the model wrote for a free-form tool. */
static struct view custom_input(const struct responses *s, struct json_object *arguments)
{
    struct view input = view_member(arguments, "input");
    if (!input.at && json_object_is_type(arguments, json_type_object) &&
        json_object_object_length(arguments) == 1) {
        json_object_object_foreach(arguments, key, value)
        {
            (void)key;
            input = view_of(value);
        }
    }
    if (!input.at && s->input_at) /* it was cut */
        input = view_str(&s->input);
    if (!input.at && json_object_is_type(arguments, json_type_object) &&
        !json_object_object_length(arguments))
        input = VIEW("");
    return input.at ? input : view_str(&s->text);
}

/* command and the like, under the names of the item. */
static void put_action(struct str *out, struct json_object *arguments)
{
    static const char *const member[] = {"working_directory", "timeout_ms"};
    struct json_object *command = view_get(arguments, "command");
    str_adds(out, "{\"type\":\"exec\",\"command\":");
    if (json_object_is_type(command, json_type_array)) {
        view_put_json(out, command);
    } else {
        str_addc(out, '[');
        if (command)
            view_put_json(out, command);
        str_addc(out, ']');
    }
    for (size_t i = 0; i < 2; i++) {
        write_key(out, member[i]);
        view_put_json(out, view_get(arguments, member[i]));
    }
    str_adds(out, ",\"env\":{},\"user\":null}");
}

/* What the model wrote, or what is complete of it; NULL if it is not JSON. */
static struct json_object *parse_arguments(const struct responses *s)
{
    struct json_object *o = NULL;
    struct str closed;
    if (json_parse(s->text.at, s->text.n, NULL, &o, NULL) == INGLE_OK)
        return o;
    str_init(&closed);
    if (!json_close(&closed, s->text.at, s->text.n) ||
        json_parse(closed.at, closed.n, NULL, &o, NULL) != INGLE_OK)
        o = NULL;
    str_release(&closed);
    return o;
}

static enum responses_kind called_kind(const struct responses *s)
{
    return s->called ? s->called->kind : RESPONSES_FUNCTION;
}

static void put_call(const struct responses *s, struct str *out, bool done)
{
    struct json_object *arguments = done ? parse_arguments(s) : NULL;
    const struct responses_tool *t = s->called;
    write_member_string(out, "call_id", s->call_id.at, s->call_id.n);
    switch (called_kind(s)) {
    case RESPONSES_FUNCTION:
    case RESPONSES_CUSTOM: {
        const bool custom = called_kind(s) == RESPONSES_CUSTOM;
        const struct view text = custom && done ? custom_input(s, arguments) : view_str(&s->text);
        const struct str *name = t ? &t->name : &s->call_name;
        write_member_string(out, "name", name->at, name->n);
        if (t && t->space.n)
            write_member_string(out, "namespace", t->space.at, t->space.n);
        write_member_string(out, custom ? "input" : "arguments", text.at, text.n);
        break;
    }
    case RESPONSES_LOCAL_SHELL:
        write_key(out, "action");
        put_action(out, arguments);
        break;
    case RESPONSES_TOOL_SEARCH:
        write_member(out, "execution", "client");
        write_key(out, "arguments");
        if (arguments)
            view_put_json(out, arguments);
        else
            str_adds(out, "{}");
        break;
    }
    json_object_put(arguments);
}

/* The open item as an object. */
static void put_item(const struct responses *s, struct str *out, const char *status)
{
    static const char *const call[] = {"function_call", "custom_tool_call", "local_shell_call",
                                       "tool_search_call"};
    const bool done = strcmp(status, "in_progress") != 0;
    write_open(out, '{');
    put_item_id(s, out, "id");
    if (s->open == RESPONSES_REASONING) {
        write_member(out, "type", "reasoning");
        put_reasoning(s, out, done);
    } else if (s->open == RESPONSES_MESSAGE) {
        str_adds(out, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        if (done)
            put_part(s, out, "output_text");
        str_addc(out, ']');
    } else {
        write_member(out, "type", call[called_kind(s)]);
        put_call(s, out, done);
    }
    write_member(out, "status", status);
    write_close(out, '}');
}

static void put_item_event(struct responses *s, struct str *out, const char *type,
                           const char *status)
{
    event_begin(s, out, type);
    str_addf(out, ",\"output_index\":%zu", s->n_output);
    write_key(out, "item");
    put_item(s, out, status);
    event_end(out);
}

/* An event of a part of the open item, up to its own members. */
static void part_begin(struct responses *s, struct str *out, const char *type)
{
    event_begin(s, out, type);
    put_item_id(s, out, "item_id");
    str_addf(out, ",\"output_index\":%zu", s->n_output);
    if (s->open != RESPONSES_CALL)
        str_addf(out, ",\"%s\":0",
                 s->open == RESPONSES_REASONING && s->summary ? "summary_index" : "content_index");
}

static void send_input(struct responses *s, struct view input, struct str *out)
{
    if (input.n <= s->n_sent)
        return;
    part_begin(s, out, "response.custom_tool_call_input.delta");
    write_member_string(out, "delta", input.at + s->n_sent, input.n - s->n_sent);
    event_end(out);
    s->n_sent = input.n;
}

static void part_event(struct responses *s, struct str *out, const char *type,
                       const char *part_type)
{
    part_begin(s, out, type);
    write_key(out, "part");
    put_part(s, out, part_type);
    event_end(out);
}

static void open_item(struct responses *s, enum responses_open kind, struct str *out)
{
    s->open = kind;
    if (!s->stream)
        return;
    put_item_event(s, out, "response.output_item.added", "in_progress");
    if (kind == RESPONSES_MESSAGE)
        part_event(s, out, "response.content_part.added", "output_text");
    else if (kind == RESPONSES_REASONING && s->summary)
        part_event(s, out, "response.reasoning_summary_part.added", "summary_text");
}

static void close_part(struct responses *s, struct str *out)
{
    if (s->open == RESPONSES_MESSAGE) {
        part_begin(s, out, "response.output_text.done");
        write_member_string(out, "text", s->text.at, s->text.n);
        str_adds(out, ",\"logprobs\":[");
        str_add(out, s->logprob.at, s->logprob.n);
        str_addc(out, ']');
        event_end(out);
        part_event(s, out, "response.content_part.done", "output_text");
    } else if (s->open == RESPONSES_REASONING) {
        part_begin(s, out, s->summary ? "response.reasoning_summary_text.done"
                                      : "response.reasoning_text.done");
        write_member_string(out, "text", s->text.at, s->text.n);
        event_end(out);
        if (s->summary)
            part_event(s, out, "response.reasoning_summary_part.done", "summary_text");
    } else if (called_kind(s) == RESPONSES_FUNCTION) {
        part_begin(s, out, "response.function_call_arguments.done");
        const struct str *name = s->called ? &s->called->name : &s->call_name;
        write_member_string(out, "name", name->at, name->n);
        write_member_string(out, "arguments", s->text.at, s->text.n);
        event_end(out);
    } else if (called_kind(s) == RESPONSES_CUSTOM) {
        struct json_object *arguments = parse_arguments(s);
        const struct view input = custom_input(s, arguments);
        send_input(s, input, out);
        part_begin(s, out, "response.custom_tool_call_input.done");
        write_member_string(out, "input", input.at, input.n);
        event_end(out);
        json_object_put(arguments);
    }
}

static void keep_item(struct responses *s, const char *text, size_t n)
{
    char id[RESPONSES_ID];
    const int n_id = snprintf(id, sizeof id, "%s%.*s%04zx%s", item_prefix(s), (int)ANSWER_DIGITS,
                              s->id, s->n_output, replica_part(s));
    (void)responses_items_add(&s->items,
                              responses_item_create(text, n, (struct view){id, (size_t)n_id}));
}

static void close_item(struct responses *s, const char *status, struct str *out)
{
    if (s->open == RESPONSES_NONE)
        return;
    if (s->stream) {
        close_part(s, out);
        put_item_event(s, out, "response.output_item.done", status);
    }
    view_put_comma(&s->output);
    const size_t at = s->output.n;
    put_item(s, &s->output, status);
    keep_item(s, s->output.at + at, s->output.n - at);
    s->n_output++;
    s->open = RESPONSES_NONE;
    s->called = NULL;
    str_clear(&s->text);
    str_clear(&s->logprob);
}

/* ---- log-probabilities ---- */

static void put_token(struct str *out, const char *text, size_t n, const char *bytes,
                      size_t n_bytes, float logprob)
{
    write_member_string(out, "token", text, n);
    write_key(out, "bytes");
    write_open(out, '[');
    for (size_t i = 0; i < n_bytes; i++)
        write_int(out, (uint8_t)bytes[i]);
    write_close(out, ']');
    write_key(out, "logprob");
    write_float(out, logprob);
}

/* Elements for the tokens [first, n_tokens) of c. */
static void put_logprobs(struct str *out, const struct answer_choice *c, size_t first)
{
    for (size_t i = first; i < c->n_tokens; i++) {
        const struct answer_token *t = &c->token[i];
        const char *bytes = answer_bytes(c, t->bytes_at);
        view_put_comma(out);
        str_addc(out, '{');
        put_token(out, answer_token_text(c, t), t->n_text, bytes, t->n_bytes, t->logprob);
        write_key(out, "top_logprobs");
        write_open(out, '[');
        for (int k = 0; k < t->n_top; k++) {
            const struct answer_top *top = &c->top[t->top_at + (size_t)k];
            bytes = answer_bytes(c, top->bytes_at);
            write_open(out, '{');
            put_token(out, bytes, top->n_bytes, bytes, top->n_bytes, top->logprob);
            write_close(out, '}');
        }
        write_close(out, ']');
        str_addc(out, '}');
    }
}

/* ---- what is kept ---- */

static void full_id(const struct responses *s, char id[RESPONSES_ID])
{
    snprintf(id, RESPONSES_ID, "resp_%s", s->id);
}

/* Keeps the response object that out holds from `at` on. */
static void keep_object(const struct responses *s, const struct str *out, size_t at,
                        const struct responses_items *items, bool open)
{
    char id[RESPONSES_ID];
    struct str object;
    if (!s->store)
        return;
    str_init(&object);
    str_add(&object, out->at + at, out->n - at);
    full_id(s, id);
    const struct responses_kept k = {.items = items, .n_input = s->n_items, .object = &object,
                                     .tape = s->tape, .open = open};
    if (str_ok(out) && s->accepted)
        (void)responses_store_set(s->store, s->user.at, id, &k);
    else if (str_ok(out) && items)
        responses_store_add(s->store, s->user.at, id, &k);
    str_release(&object);
}

/* What this request brought, and the answer, become part of the conversation. */
static void keep_conversation(const struct responses *s)
{
    struct responses_items new = {0};
    if (s->conversations && responses_items_share(&new, &s->items, s->new_at, s->items.n))
        (void)responses_store_append(s->conversations, s->user.at, s->conversation.at, &new);
    responses_items_release(&new);
}

static bool is_cancelled(const struct responses *s) { return s->tape && tape_cancelled(s->tape); }

static const char *status_of(const struct responses *s, const struct answer_result *r)
{
    if (is_cancelled(s))
        return "cancelled";
    return r->choice[0].finish != ANSWER_LENGTH ? "completed" : "incomplete";
}

/* ---- the dialect ---- */

static void take_info(struct responses *s, const struct answer_info *i)
{
    if (s->id[0])
        return;
    memcpy(s->id, i->id, sizeof s->id);
    str_adds(&s->model, i->model);
    s->created = i->created;
}

static void begin_stream(struct responses *s, struct str *out)
{
    const struct ending e = {.status = "in_progress"};
    if (s->begun)
        return;
    s->begun = true;
    if (!s->accepted)
        put_life(s, out, "response.created", &e);
    put_life(s, out, "response.in_progress", &e);
}

static void on_begin(void *state, const struct answer_info *i, struct str *out)
{
    struct responses *s = state;
    take_info(s, i);
    s->info = i;
    openai_timer_start(&s->timer);
    begin_stream(s, out);
    if (!s->accepted || is_cancelled(s))
        return;
    const struct ending e = {.status = "in_progress"};
    struct str object;
    str_init(&object);
    put_response(s, &object, &e);
    keep_object(s, &object, 0, NULL, true);
    str_release(&object);
}

/* llama-server's: how far the prompt is, in an event that clients skip. */
static void on_progress(void *state, const struct answer_progress *p, struct str *out)
{
    const struct ending e = {.status = "in_progress", .brief = true};
    struct responses *s = state;
    event_begin(s, out, "response.in_progress");
    write_key(out, "response");
    put_response(s, out, &e);
    openai_put_progress(out, p, s->timings);
    event_end(out);
}

static void on_keepalive(void *state, const struct answer_info *i, struct str *out)
{
    const struct ending e = {.status = "in_progress", .brief = true};
    struct responses *s = state;
    take_info(s, i);
    if (s->begun)
        put_life(s, out, "response.in_progress", &e);
    else
        begin_stream(s, out);
}

static void add_text(struct responses *s, const struct answer_choice *c, enum answer_text kind,
                     const char *text, size_t n, size_t first_token, struct str *out)
{
    const enum responses_open want =
        kind == ANSWER_CONTENT ? RESPONSES_MESSAGE : RESPONSES_REASONING;
    if (s->open != want) {
        close_item(s, "completed", out);
        open_item(s, want, out);
    }
    const size_t before = s->logprob.n;
    str_add(&s->text, text, n);
    if (s->logprobs && want == RESPONSES_MESSAGE)
        put_logprobs(&s->logprob, c, first_token);
    if (!s->stream)
        return;
    if (want == RESPONSES_MESSAGE)
        part_begin(s, out, "response.output_text.delta");
    else
        part_begin(s, out, s->summary ? "response.reasoning_summary_text.delta"
                                      : "response.reasoning_text.delta");
    write_member_string(out, "delta", text, n);
    if (want == RESPONSES_MESSAGE) {
        const size_t comma = before && s->logprob.n > before;
        str_adds(out, ",\"logprobs\":[");
        str_add(out, s->logprob.at + before + comma, s->logprob.n - before - comma);
        str_addc(out, ']');
    }
    if (s->timings && s->info)
        openai_put_timer(out, &s->timer, s->info, c->n_generated);
    event_end(out);
}

static void on_text(void *state, const struct answer_choice *c, enum answer_text kind,
                    const char *text, size_t n, size_t first_token, struct str *out)
{
    add_text(state, c, kind, text, n, first_token, out);
}

static void on_call_begin(void *state, const struct answer_choice *c, size_t call, struct str *out)
{
    struct responses *s = state;
    const struct answer_call *k = &c->call[call];
    close_item(s, "completed", out);
    s->called = responses_find(s, view_str(&k->name));
    str_clear(&s->call_name);
    str_add(&s->call_name, k->name.at, k->name.n);
    str_clear(&s->input);
    s->input_at = s->n_sent = 0;
    str_clear(&s->call_id);
    str_adds(&s->call_id, k->id);
    open_item(s, RESPONSES_CALL, out);
}

static void on_call_arguments(void *state, const struct answer_choice *c, size_t call,
                              const char *text, size_t n, struct str *out)
{
    struct responses *s = state;
    (void)c;
    (void)call;
    str_add(&s->text, text, n);
    if (called_kind(s) == RESPONSES_CUSTOM)
        read_input(s);
    if (s->stream && called_kind(s) == RESPONSES_CUSTOM)
        send_input(s, view_str(&s->input), out);
    if (!s->stream || called_kind(s) != RESPONSES_FUNCTION)
        return;
    part_begin(s, out, "response.function_call_arguments.delta");
    write_member_string(out, "delta", text, n);
    event_end(out);
}

static void on_call_end(void *state, const struct answer_choice *c, size_t call, struct str *out)
{
    close_item(state, c->call[call].cut ? "incomplete" : "completed", out);
}

static void on_end(void *state, const struct answer_choice *c, struct str *out)
{
    close_item(state, c->finish == ANSWER_LENGTH ? "incomplete" : "completed", out);
}

/* The answer is over: keeps it, and appends it to *out. */
static void put_result(struct responses *s, const struct answer_result *r, struct str *out)
{
    const struct ending e = {.status = status_of(s, r), .result = r};
    const size_t at = out->n;
    put_response(s, out, &e);
    if (!str_ok(out) || !str_ok(&s->output))
        return;
    keep_object(s, out, at, &s->items, false);
    if (!is_cancelled(s))
        keep_conversation(s);
}

/* Nobody need wait: where the answer will be found, and the beginning of its stream. */
static void on_accepted(void *state, const struct answer_info *i, struct str *reply,
                        struct str *out)
{
    const struct ending e = {.status = "queued"};
    struct responses *s = state;
    take_info(s, i);
    put_response(s, reply, &e);
    keep_object(s, reply, 0, &s->items, true);
    s->accepted = true;
    put_life(s, out, "response.created", &e);
    put_life(s, out, "response.queued", &e);
}

static void on_done(void *state, const struct answer_result *r, struct str *out)
{
    struct responses *s = state;
    char type[32];
    snprintf(type, sizeof type, "response.%s", status_of(s, r));
    event_begin(s, out, type);
    write_key(out, "response");
    put_result(s, r, out);
    if (s->timings)
        openai_put_timings(out, r);
    event_end(out);
}

/* Thought, text, calls: the order in which models speak. */
static void on_whole(void *state, const struct answer_result *r, struct str *out)
{
    struct responses *s = state;
    const struct answer_choice *c = &r->choice[0];
    struct str unused;
    str_init(&unused);
    take_info(s, r->info);
    if (c->reasoning.n)
        add_text(s, c, ANSWER_REASONING, c->reasoning.at, c->reasoning.n, 0, &unused);
    if (c->content.n)
        add_text(s, c, ANSWER_CONTENT, c->content.at, c->content.n, 0, &unused);
    for (size_t i = 0; i < c->n_calls; i++) {
        const struct str *arguments = &c->call[i].arguments;
        on_call_begin(s, c, i, &unused);
        on_call_arguments(s, c, i, arguments->at, arguments->n, &unused);
        on_call_end(s, c, i, &unused);
    }
    on_end(s, c, &unused);
    str_release(&unused);
    put_result(s, r, out);
}

static const char *error_code(const struct fault *f)
{
    if (f->code)
        return f->code;
    switch (f->kind) {
    case FAULT_CONTEXT:
        return "context_length_exceeded";
    case FAULT_BUSY:
        return "rate_limit_exceeded";
    case FAULT_REQUEST:
    case FAULT_MODEL:
    case FAULT_UNSUP:
        return "invalid_prompt";
    default:
        return "server_error";
    }
}

static void on_error(void *state, const struct fault *f, bool in_stream, struct str *out)
{
    struct responses *s = state;
    const bool cancelled = is_cancelled(s);
    const struct ending e = {.status = cancelled ? "cancelled" : "failed",
                             .error_code = cancelled ? NULL : error_code(f),
                             .error_text = f->message};
    if (!in_stream) {
        openai_put_fault(out, f);
        return;
    }
    begin_stream(s, out);
    put_life(s, out, is_cancelled(s) ? "response.cancelled" : "response.failed", &e);
    if (!s->accepted)
        return;
    struct str object;
    str_init(&object);
    put_response(s, &object, &e);
    keep_object(s, &object, 0, NULL, false);
    str_release(&object);
}

static void on_free(void *state) { responses_free(state); }

const struct dialect responses_dialect = {
    .name = "openai-responses",
    .begin = on_begin,
    .progress = on_progress,
    .text = on_text,
    .call_begin = on_call_begin,
    .call_arguments = on_call_arguments,
    .call_end = on_call_end,
    .end = on_end,
    .done = on_done,
    .keepalive = on_keepalive,
    .error = on_error,
    .accepted = on_accepted,
    .whole = on_whole,
    .free = on_free,
    .faults_in_stream = true,
};
