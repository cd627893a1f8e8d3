/* SPDX-License-Identifier: Apache-2.0 */
#include "server/anthropic/anthropic.h"

#include "server/thought.h"
#include "server/write.h"

#include <string.h>

static void event_begin(struct str *out, const char *type)
{
    str_addf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void event_end(struct str *out) { str_adds(out, "}\n\n"); }

/* What is cached counts apart.  r: NULL at the beginning. */
static void put_usage(struct str *out, int64_t n_prompt, int64_t n_cached,
                      const struct answer_result *r)
{
    write_key(out, "usage");
    write_open(out, '{');
    write_member_int(out, "input_tokens", n_prompt - n_cached);
    write_member_int(out, "cache_creation_input_tokens", 0);
    write_member_int(out, "cache_read_input_tokens", n_cached);
    write_member_int(out, "output_tokens", r ? r->usage.n_generated : 0);
    write_key(out, "output_tokens_details");
    write_open(out, '{');
    write_member_int(out, "thinking_tokens", r ? r->n_reasoning : 0);
    if (r)
        write_drafted(out, r->usage.n_drafted, r->usage.n_accepted);
    write_close(out, '}');
    if (r) {
        write_computed(out, &r->usage);
        write_ways(out, &r->usage.way);
        write_pages(out, &r->usage.pages);
    }
    write_close(out, '}');
}

static const char *stop_reason(const struct answer_choice *c)
{
    switch (c->finish) {
    case ANSWER_LENGTH:
        return c->context_full ? "model_context_window_exceeded" : "max_tokens";
    case ANSWER_CALLS:
        return "tool_use";
    default:
        return c->stop ? "stop_sequence" : "end_turn";
    }
}

static void put_stop(struct str *out, const struct answer_choice *c)
{
    write_member(out, "stop_reason", c ? stop_reason(c) : NULL);
    write_member(out, "stop_sequence", c && c->finish == ANSWER_STOP ? c->stop : NULL);
}

/* {"id", "type", "role", "model": what begins every message. */
static void put_head(struct str *out, const struct answer_info *i)
{
    write_open(out, '{');
    write_key(out, "id");
    str_addf(out, "\"msg_%s\"", i->id);
    str_adds(out, ",\"type\":\"message\",\"role\":\"assistant\"");
    write_member(out, "model", i->model);
    write_member_texts(out, "warnings", i->warnings, i->n_warnings);
}

/* ---- blocks ---- */

static void delta_begin(const struct anthropic *s, struct str *out, const char *type)
{
    event_begin(out, "content_block_delta");
    str_addf(out, ",\"index\":%lld,\"delta\":{\"type\":\"%s\"", (long long)s->index, type);
}

static void delta_end(struct str *out)
{
    write_close(out, '}');
    event_end(out);
}

static void block_begin(struct anthropic *s, enum anthropic_block kind, struct str *out)
{
    s->open = kind;
    event_begin(out, "content_block_start");
    str_addf(out, ",\"index\":%lld,\"content_block\":", (long long)s->index);
}

static void block_end(struct anthropic *s, struct str *out)
{
    if (s->open == ANTHROPIC_NONE)
        return;
    if (s->open == ANTHROPIC_THINKING) {
        delta_begin(s, out, "signature_delta");
        str_adds(out, ",\"signature\":\"");
        thought_seal(out, view_str(&s->text), s->omit);
        str_addc(out, '"');
        delta_end(out);
        str_clear(&s->text);
    }
    event_begin(out, "content_block_stop");
    str_addf(out, ",\"index\":%lld", (long long)s->index);
    event_end(out);
    s->open = ANTHROPIC_NONE;
    s->index++;
}

/* "call_0123" is "toolu_0123" here. */
static void put_call_id(struct str *out, const struct answer_call *k)
{
    const char *digits = strchr(k->id, '_');
    str_addf(out, "\"toolu_%s\"", digits ? digits + 1 : k->id);
}

/* ---- the dialect ---- */

static void begin_message(struct anthropic *s, const struct answer_info *i, struct str *out)
{
    if (s->begun)
        return;
    s->begun = true;
    event_begin(out, "message_start");
    write_key(out, "message");
    put_head(out, i);
    str_adds(out, ",\"content\":[]");
    put_stop(out, NULL);
    put_usage(out, i->n_prompt, i->reuse.kept, NULL);
    write_close(out, '}');
    event_end(out);
}

static void on_begin(void *state, const struct answer_info *i, struct str *out)
{
    begin_message(state, i, out);
}

/* Nothing may come before message_start. */
static void on_keepalive(void *state, const struct answer_info *i, struct str *out)
{
    begin_message(state, i, out);
    event_begin(out, "ping");
    event_end(out);
}

static void on_text(void *state, const struct answer_choice *c, enum answer_text kind,
                    const char *text, size_t n, size_t first_token, struct str *out)
{
    struct anthropic *s = state;
    const bool thinking = kind == ANSWER_REASONING;
    const enum anthropic_block want = thinking ? ANTHROPIC_THINKING : ANTHROPIC_TEXT;
    (void)c;
    (void)first_token;
    if (s->open != want) {
        block_end(s, out);
        block_begin(s, want, out);
        str_adds(out, thinking ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
                               : "{\"type\":\"text\",\"text\":\"\"}");
        event_end(out);
    }
    if (thinking)
        str_add(&s->text, text, n);
    if (thinking && s->omit)
        return;
    delta_begin(s, out, thinking ? "thinking_delta" : "text_delta");
    write_member_string(out, thinking ? "thinking" : "text", text, n);
    delta_end(out);
}

static void on_call_begin(void *state, const struct answer_choice *c, size_t call, struct str *out)
{
    struct anthropic *s = state;
    const struct answer_call *k = &c->call[call];
    block_end(s, out);
    block_begin(s, ANTHROPIC_TOOL_USE, out);
    str_adds(out, "{\"type\":\"tool_use\",\"id\":");
    put_call_id(out, k);
    write_member_string(out, "name", k->name.at, k->name.n);
    str_adds(out, ",\"input\":{}}");
    event_end(out);
}

static void on_call_arguments(void *state, const struct answer_choice *c, size_t call,
                              const char *text, size_t n, struct str *out)
{
    (void)c;
    (void)call;
    delta_begin(state, out, "input_json_delta");
    write_member_string(out, "partial_json", text, n);
    delta_end(out);
}

static void on_call_end(void *state, const struct answer_choice *c, size_t call, struct str *out)
{
    (void)c;
    (void)call;
    block_end(state, out);
}

static void on_end(void *state, const struct answer_choice *c, struct str *out)
{
    (void)c;
    block_end(state, out);
}

static void on_done(void *state, const struct answer_result *r, struct str *out)
{
    (void)state;
    event_begin(out, "message_delta");
    write_key(out, "delta");
    write_open(out, '{');
    put_stop(out, &r->choice[0]);
    write_close(out, '}');
    put_usage(out, r->usage.n_prompt, r->usage.reuse.kept, r);
    event_end(out);
    event_begin(out, "message_stop");
    event_end(out);
}

/* Of a call that was cut, what is complete: what clients make of the pieces of a stream. */
static void put_tool_use(struct str *out, const struct answer_call *k)
{
    struct json_object *input = NULL;
    struct str closed;
    str_init(&closed);
    if (!k->cut || !json_close(&closed, k->arguments.at, k->arguments.n)) {
        str_clear(&closed);
        str_add(&closed, k->arguments.at, k->arguments.n);
    }
    write_open(out, '{');
    write_member(out, "type", "tool_use");
    write_key(out, "id");
    put_call_id(out, k);
    write_member_string(out, "name", k->name.at, k->name.n);
    write_key(out, "input");
    if (json_parse(closed.at, closed.n, NULL, &input, NULL) == INGLE_OK &&
        json_object_is_type(input, json_type_object))
        view_put_json(out, input);
    else
        str_adds(out, "{}");
    json_object_put(input);
    str_release(&closed);
    write_close(out, '}');
}

static void put_thinking(const struct anthropic *s, struct str *out, const struct str *text)
{
    write_open(out, '{');
    write_member(out, "type", "thinking");
    write_member_string(out, "thinking", text->at, s->omit ? 0 : text->n);
    str_adds(out, ",\"signature\":\"");
    thought_seal(out, view_str(text), s->omit);
    str_adds(out, "\"}");
}

static void on_whole(void *state, const struct answer_result *r, struct str *out)
{
    const struct answer_choice *c = &r->choice[0];
    put_head(out, r->info);
    write_key(out, "content");
    write_open(out, '[');
    if (c->reasoning.n)
        put_thinking(state, out, &c->reasoning);
    if (c->content.n) {
        write_open(out, '{');
        write_member(out, "type", "text");
        write_member_string(out, "text", c->content.at, c->content.n);
        write_close(out, '}');
    }
    for (size_t i = 0; i < c->n_calls; i++)
        put_tool_use(out, &c->call[i]);
    write_close(out, ']');
    put_stop(out, c);
    put_usage(out, r->usage.n_prompt, r->usage.reuse.kept, r);
    write_close(out, '}');
}

static const char *error_type(const struct fault *f)
{
    if (f->status == 413)
        return "request_too_large";
    if (f->status == 404)
        return "not_found_error";
    switch (f->kind) {
    case FAULT_BUSY:
        return "rate_limit_error";
    case FAULT_STOPPING:
        return "overloaded_error";
    case FAULT_DEADLINE:
        return "timeout_error";
    case FAULT_ENGINE:
        return "api_error";
    default:
        return "invalid_request_error";
    }
}

/* Clients make room when they read these words, and only then. */
static void put_too_long(struct str *out, const struct fault *f)
{
    struct str text;
    str_init(&text);
    str_addf(&text, "prompt is too long: %lld tokens > %lld maximum", (long long)f->n_prompt,
             (long long)f->n_ctx);
    write_member_string(out, "message", text.at, text.n);
    str_release(&text);
}

/* Whether a message names the field: in quotes, with what is inside of it, or as its first word. */
static bool names(const char *message, const char *field)
{
    const size_t n = strlen(field);
    for (const char *at = message; (at = strstr(at, field)); at += n)
        if (at == message ? at[n] == ':' || at[n] == ' ' : at[-1] == '\'' && strchr("'[.", at[n]))
            return true;
    return false;
}

void anthropic_put_error(struct str *out, const struct fault *f, const char *request_id)
{
    write_open(out, '{');
    write_member(out, "type", "error");
    write_key(out, "error");
    write_open(out, '{');
    write_member(out, "type", error_type(f));
    if (f->kind == FAULT_CONTEXT) {
        put_too_long(out, f);
    } else {
        struct str text;
        str_init(&text);
        if (f->param[0] && !names(f->message, f->param))
            str_addf(&text, "%s: ", f->param);
        str_adds(&text, f->message);
        write_member_string(out, "message", text.at, text.n);
        str_release(&text);
    }
    write_close(out, '}');
    write_member(out, "request_id", request_id);
    write_close(out, '}');
}

static void on_error(void *state, const struct fault *f, bool in_stream, struct str *out)
{
    const struct anthropic *s = state;
    if (in_stream)
        str_adds(out, "event: error\ndata: ");
    anthropic_put_error(out, f, s->request_id.at);
    if (in_stream)
        str_adds(out, "\n\n");
}

static void on_free(void *state) { anthropic_free(state); }

const struct dialect anthropic_dialect = {
    .name = "anthropic",
    .begin = on_begin,
    .text = on_text,
    .call_begin = on_call_begin,
    .call_arguments = on_call_arguments,
    .call_end = on_call_end,
    .end = on_end,
    .done = on_done,
    .keepalive = on_keepalive,
    .error = on_error,
    .whole = on_whole,
    .free = on_free,
    .begins_at_once = true,
};
