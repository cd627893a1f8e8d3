/* SPDX-License-Identifier: Apache-2.0 */
/* openai_chat - POST /chat/completions. */
#include "server/fields.h"
#include "server/openai/openai.h"

#include "server/odd.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_CHOICES = REQUEST_MAX_N };

struct chat {
    struct openai_wish wish;
    const struct answer_info *info;
    struct str head;    /* "data: {" and the members that all chunks share, but choices */
    int n_ended;
    int last;           /* the choice whose end waits for the timings, or -1 */
    size_t n_sent[MAX_CHOICES]; /* tokens with probabilities */
    struct openai_timer timer;
};

/* ---- a stream ---- */

static void chunk_open(const struct chat *s, struct str *out)
{
    str_adds(out, "data: ");
    str_add(out, s->head.at, s->head.n);
    write_key(out, "choices");
    write_open(out, '[');
}

static void delta_open(const struct chat *s, int index, struct str *out)
{
    chunk_open(s, out);
    write_open(out, '{');
    write_member_int(out, "index", index);
    write_key(out, "delta");
    write_open(out, '{');
}

/* Tokens from s->n_sent on, if probabilities were requested. */
static void put_logprobs(struct chat *s, const struct answer_choice *c, struct str *out)
{
    if (!s->info->request->logprobs)
        return;
    write_key(out, "logprobs");
    openai_put_chat_logprobs(out, c, s->n_sent[c->index]);
    s->n_sent[c->index] = c->n_tokens;
}

/* c: whose chunk it is; NULL: it begins a choice. */
static void put_usage(const struct chat *s, const struct answer_choice *c, struct str *out)
{
    openai_put_usage_so_far(out, s->info->request, s->info->n_prompt, c ? c->n_generated : 0);
}

static void chunk_close(const struct chat *s, const struct answer_choice *c, struct str *out)
{
    write_close(out, ']');
    put_usage(s, c, out);
    str_adds(out, "}\n\n");
}

static void delta_close(struct chat *s, const struct answer_choice *c, struct str *out)
{
    write_close(out, '}');
    write_member_null(out, "finish_reason");
    write_close(out, '}');
    write_close(out, ']');
    put_usage(s, c, out);
    if (s->info->request->timings_per_token && c)
        openai_put_timer(out, &s->timer, s->info, c->n_generated);
    str_adds(out, "}\n\n");
}

static void chat_begin(void *state, const struct answer_info *i, struct str *out)
{
    struct chat *s = state;
    s->info = i;
    openai_timer_start(&s->timer);
    str_clear(&s->head);
    write_open(&s->head, '{');
    openai_put_head(&s->head, i, "chatcmpl-", "chat.completion.chunk");
    for (int k = 0; k < i->request->o.n; k++) {
        delta_open(s, k, out);
        write_member(out, "role", "assistant");
        write_member_null(out, "content");
        delta_close(s, NULL, out);
    }
}

static void chat_progress(void *state, const struct answer_progress *p, struct str *out)
{
    struct chat *s = state;
    chunk_open(s, out);
    write_close(out, ']');
    openai_put_progress(out, p, s->info->request->timings_per_token);
    str_adds(out, "}\n\n");
}

static void chat_text(void *state, const struct answer_choice *c, enum answer_text kind,
                      const char *text, size_t n, size_t first_token, struct str *out)
{
    struct chat *s = state;
    (void)first_token;
    if (kind == ANSWER_REASONING && s->wish.hide_reasoning)
        return;
    delta_open(s, c->index, out);
    if (kind == ANSWER_REASONING) {
        write_member_string(out, "reasoning_content", text, n);
        write_member_string(out, "reasoning", text, n);
    } else {
        write_member_string(out, "content", text, n);
    }
    if (kind == ANSWER_CONTENT && s->info->request->logprobs) {
        write_close(out, '}');
        put_logprobs(s, c, out);
        write_member_null(out, "finish_reason");
        write_close(out, '}');
        chunk_close(s, c, out);
        return;
    }
    delta_close(s, c, out);
}

/* A delta with a call up to the members of its function; first: its id and type are sent. */
static void call_open(struct chat *s, const struct answer_choice *c, size_t call, bool first,
                      struct str *out)
{
    delta_open(s, c->index, out);
    if (s->wish.legacy_functions) {
        write_key(out, "function_call");
    } else {
        write_key(out, "tool_calls");
        write_open(out, '[');
        write_open(out, '{');
        write_member_int(out, "index", (int64_t)call);
        if (first) {
            write_member(out, "id", c->call[call].id);
            write_member(out, "type", "function");
        }
        write_key(out, "function");
    }
    write_open(out, '{');
}

static void call_close(struct chat *s, const struct answer_choice *c, struct str *out)
{
    write_close(out, '}');
    if (!s->wish.legacy_functions)
        str_adds(out, "}]");
    delta_close(s, c, out);
}

static void chat_call_begin(void *state, const struct answer_choice *c, size_t call,
                            struct str *out)
{
    const struct answer_call *k = &c->call[call];
    call_open(state, c, call, true, out);
    write_member_string(out, "name", k->name.at, k->name.n);
    write_member(out, "arguments", "");
    call_close(state, c, out);
}

static void chat_call_arguments(void *state, const struct answer_choice *c, size_t call,
                                const char *text, size_t n, struct str *out)
{
    call_open(state, c, call, false, out);
    write_member_string(out, "arguments", text, n);
    call_close(state, c, out);
}

static const char *finish(const struct chat *s, const struct answer_choice *c)
{
    if (c->finish == ANSWER_CALLS && s->wish.legacy_functions)
        return "function_call";
    return openai_finish(c);
}

/* The chunk up to its choices. */
static void put_end(struct chat *s, const struct answer_choice *c, struct str *out)
{
    chunk_open(s, out);
    write_open(out, '{');
    write_member_int(out, "index", c->index);
    write_key(out, "delta");
    write_open(out, '{');
    write_close(out, '}');
    if (s->n_sent[c->index] < c->n_tokens)
        put_logprobs(s, c, out);
    write_member(out, "finish_reason", finish(s, c));
    openai_put_finish_details(out, c);
    write_close(out, '}');
}

/* The last one of them waits for done(), which knows the timings. */
static void chat_end(void *state, const struct answer_choice *c, struct str *out)
{
    struct chat *s = state;
    if (++s->n_ended == s->info->request->o.n) {
        s->last = c->index;
        return;
    }
    put_end(s, c, out);
    chunk_close(s, c, out);
}

static void chat_done(void *state, const struct answer_result *r, struct str *out)
{
    struct chat *s = state;
    const bool usage = s->info->request->include_usage;
    if (s->last >= 0) {
        put_end(s, &r->choice[s->last], out);
        write_close(out, ']');
        put_usage(s, &r->choice[s->last], out);
        if (!usage)
            openai_put_timings(out, r);
        str_adds(out, "}\n\n");
    }
    if (usage) {
        chunk_open(s, out);
        write_close(out, ']');
        openai_put_usage(out, r);
        openai_put_timings(out, r);
        str_adds(out, "}\n\n");
    }
    str_adds(out, "data: [DONE]\n\n");
}

/* ---- a whole reply ---- */

static void put_calls(struct str *out, const struct answer_choice *c)
{
    write_key(out, "tool_calls");
    write_open(out, '[');
    for (size_t i = 0; i < c->n_calls; i++) {
        const struct answer_call *k = &c->call[i];
        write_open(out, '{');
        write_member(out, "id", k->id);
        write_member(out, "type", "function");
        write_key(out, "function");
        write_open(out, '{');
        write_member_string(out, "name", k->name.at, k->name.n);
        write_member_string(out, "arguments", k->arguments.at, k->arguments.n);
        write_close(out, '}');
        write_close(out, '}');
    }
    write_close(out, ']');
}

static void put_message(const struct chat *s, struct str *out, const struct answer_choice *c)
{
    write_key(out, "message");
    write_open(out, '{');
    write_member(out, "role", "assistant");
    if (c->content.n || !c->n_calls)
        write_member_string(out, "content", c->content.at, c->content.n);
    else
        write_member_null(out, "content");
    if (c->reasoning.n && !s->wish.hide_reasoning) {
        write_member_string(out, "reasoning_content", c->reasoning.at, c->reasoning.n);
        write_member_string(out, "reasoning", c->reasoning.at, c->reasoning.n);
    }
    write_member_null(out, "refusal");
    if (c->n_calls && s->wish.legacy_functions) {
        write_key(out, "function_call");
        write_open(out, '{');
        write_member_string(out, "name", c->call[0].name.at, c->call[0].name.n);
        write_member_string(out, "arguments", c->call[0].arguments.at, c->call[0].arguments.n);
        write_close(out, '}');
    } else if (c->n_calls) {
        put_calls(out, c);
    }
    write_close(out, '}');
}

static void chat_whole(void *state, const struct answer_result *r, struct str *out)
{
    const struct chat *s = state;
    write_open(out, '{');
    openai_put_head(out, r->info, "chatcmpl-", "chat.completion");
    write_member_texts(out, "warnings", r->info->warnings, r->info->n_warnings);
    write_key(out, "choices");
    write_open(out, '[');
    for (int i = 0; i < r->n_choices; i++) {
        const struct answer_choice *c = &r->choice[i];
        write_open(out, '{');
        write_member_int(out, "index", c->index);
        put_message(s, out, c);
        write_key(out, "logprobs");
        if (r->info->request->logprobs)
            openai_put_chat_logprobs(out, c, 0);
        else
            write_null(out);
        write_member(out, "finish_reason", finish(s, c));
        openai_put_finish_details(out, c);
        write_close(out, '}');
    }
    write_close(out, ']');
    openai_put_usage(out, r);
    openai_put_timings(out, r);
    if (r->info->prompt) {
        write_key(out, "__verbose");
        write_open(out, '{');
        write_member(out, "prompt", r->info->prompt);
        write_close(out, '}');
    }
    write_close(out, '}');
}

static void chat_free(void *state)
{
    struct chat *s = state;
    str_release(&s->head);
    mem_free(s);
}

static const struct dialect chat_dialect = {
    .name = "openai-chat",
    .begin = chat_begin,
    .progress = chat_progress,
    .text = chat_text,
    .call_begin = chat_call_begin,
    .call_arguments = chat_call_arguments,
    .call_end = openai_no_call,
    .end = chat_end,
    .done = chat_done,
    .keepalive = openai_keepalive,
    .error = openai_error,
    .accepted = openai_accepted,
    .whole = chat_whole,
    .free = chat_free,
};

/* ---- the request ---- */

static void read_logprobs(struct chat_request *r, struct json_object *body,
                          const struct answer_options *o, struct fault *f)
{
    int64_t top = 0, n_probs = 0;
    const int64_t most = o->any_top ? REQUEST_MOST_TOP : REQUEST_MAX_TOP;
    request_get_bool(body, "logprobs", &r->logprobs, f);
    request_get_int(body, "top_logprobs", 0, most, &top, f);
    request_get_int(body, "n_probs", 0, REQUEST_MOST_TOP, &n_probs, f);
    if (top && !r->logprobs)
        request_fault(f, FAULT_REQUEST, "top_logprobs",
                      "'top_logprobs' needs 'logprobs' to be true");
    if (n_probs) {
        r->logprobs = true;
        top = n_probs;
    }
    r->o.n_top = (int)top;
}

static void read_modalities(struct json_object *body, struct fault *f)
{
    struct json_object *list = request_get_array(body, "modalities", 8, f);
    for (size_t i = 0; list && i < json_object_array_length(list); i++) {
        const char *word = json_object_get_string(json_object_array_get_idx(list, i));
        if (!word || strcmp(word, "text") != 0)
            request_fault(f, FAULT_REQUEST, "modalities", "this version answers only in text");
    }
    if (request_get(body, "audio"))
        request_fault(f, FAULT_REQUEST, "audio", "this version answers only in text");
}

/* What vLLM and transformers say about the end of the prompt.  Without a word a last message of
 * the assistant is continued, any other is answered. */
static void read_ending(struct chat_request *r, struct json_object *body, struct fault *f)
{
    bool gen_prompt = false, go_on = false;
    const bool silent = !request_get(body, "add_generation_prompt");
    request_get_bool(body, "add_generation_prompt", &gen_prompt, f);
    request_get_bool(body, "continue_final_message", &go_on, f);
    if (gen_prompt && go_on)
        request_fault(f, FAULT_REQUEST, "continue_final_message",
                      "'continue_final_message' and 'add_generation_prompt' cannot both be true");
    r->no_generation_prompt = !silent && !gen_prompt;
    r->no_prefill = !silent && !go_on;
}

/* Objects that other dialects have in other forms. */
static void read_thinking_type(struct chat_request *r, struct json_object *type, struct fault *f)
{
    if (request_text_is(type, "disabled"))
        r->thinking = THINKING_OFF;
    else if (request_text_is(type, "enabled") || request_text_is(type, "adaptive"))
        r->thinking = THINKING_ON;
    else if (type && !request_text_is(type, "auto"))
        request_fault(f, FAULT_REQUEST, "thinking.type",
                      "'thinking.type' is %.40s, not enabled, disabled, adaptive or auto",
                      json_object_get_string(type));
}

static void read_thinking_object(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *v = request_get(body, "thinking");
    if (!v || f->kind)
        return;
    if (!json_object_is_type(v, json_type_object)) {
        openai_think_word(r, body, "thinking", f);
        return;
    }
    read_thinking_type(r, request_get(v, "type"), f);
    openai_think_budget(r, v, "budget_tokens", f);
}

static void read_thinking(struct chat_request *r, struct json_object *body, struct openai_wish *w,
                          struct fault *f)
{
    bool show = true, hide = false;
    openai_read_think(r, body, f);
    read_thinking_object(r, body, f);
    request_get_bool(body, "include_reasoning", &show, f);
    struct json_object *v = request_get(body, "reasoning");
    if (json_object_is_type(v, json_type_object)) {
        openai_think_word(r, v, "enabled", f);
        openai_think_word(r, v, "effort", f);
        openai_think_budget(r, v, "max_tokens", f);
        request_get_bool(v, "exclude", &hide, f);
    } else {
        openai_think_word(r, body, "reasoning", f);
    }
    w->hide_reasoning = hide || !show;
}

void openai_read_chat(struct chat_request *r, struct json_object *body,
                      const struct answer_options *o, struct openai_wish *w, struct fault *f)
{
    r->o.max_tokens = o->max_tokens;
    r->o.ignore_end = o->ignore_end;
    request_get_text(body, "model", 256, &r->model, f);
    openai_read_messages(r, body, o, f);
    read_ending(r, body, f);
    openai_read_tools(r, body, o, w, f);
    openai_read_params(r, body, o, PARAMS_CHAT, f);
    if (!r->cache_key.n)
        request_get_cache_key(body, "user", r);
    openai_read_stop(r, body, f);
    openai_read_stream(r, body, o, f);
    openai_read_format(r, body, f);
    read_thinking(r, body, w, f);
    read_logprobs(r, body, o, f);
    read_modalities(body, f);
    odd_members(body, request_notes(r, &o->sink), f);
}

static void read_chat(struct chat_request *r, struct json_object *body,
                      const struct answer_options *o, void *state, struct fault *f)
{
    openai_read_chat(r, body, o, &((struct chat *)state)->wish, f);
}

static void *create_chat(void)
{
    struct chat *s = mem_zalloc(sizeof *s);
    if (!s)
        return NULL;
    s->last = -1;
    str_init(&s->head);
    return s;
}

const struct openai_kind openai_kind_chat = {&chat_dialect, create_chat, read_chat};
