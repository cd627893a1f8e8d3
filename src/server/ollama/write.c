/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "server/ollama/ollama.h"

#include "server/view.h"
#include "server/write.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void ollama_put_time(struct str *out, const char *key, int64_t seconds, int64_t nanoseconds)
{
    const time_t t = (time_t)seconds;
    struct tm tm;
    char text[64];
    write_key(out, key);
    if (!gmtime_r(&t, &tm) || !strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm))
        snprintf(text, sizeof text, "1970-01-01T00:00:00");
    str_addf(out, nanoseconds < 0 ? "\"%sZ\"" : "\"%s.%09lldZ\"", text, (long long)nanoseconds);
}

void ollama_put_error(struct str *out, const char *message)
{
    write_open(out, '{');
    write_member(out, "error", message);
    write_close(out, '}');
}

static void put_now(struct str *out)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    ollama_put_time(out, "created_at", (int64_t)now.tv_sec, (int64_t)now.tv_nsec);
}

/* ---- pieces ---- */

static void line_open(const char *model, struct str *out)
{
    write_open(out, '{');
    write_member(out, "model", model);
    put_now(out);
}

/* What of the members of a message there is: text of its kind, or a call. */
struct said {
    const char *content, *thinking;
    size_t n_content, n_thinking;
    const struct answer_choice *c; /* its calls from first_call on; NULL: none */
    size_t first_call, n_calls;
};

/* Arguments as an object; of a call that was cut, what is complete. */
static void put_arguments(struct str *out, const struct answer_call *k)
{
    struct json_object *o = NULL;
    struct str closed;
    str_init(&closed);
    if (!k->cut || !json_close(&closed, k->arguments.at, k->arguments.n)) {
        str_clear(&closed);
        str_add(&closed, k->arguments.at, k->arguments.n);
    }
    if (json_parse(closed.at, closed.n, NULL, &o, NULL) == INGLE_OK &&
        json_object_is_type(o, json_type_object))
        view_put_json(out, o);
    else
        str_adds(out, "{}");
    json_object_put(o);
    str_release(&closed);
}

static void put_calls(struct str *out, const struct said *t)
{
    write_key(out, "tool_calls");
    write_open(out, '[');
    for (size_t i = t->first_call; i < t->first_call + t->n_calls; i++) {
        const struct answer_call *k = &t->c->call[i];
        write_open(out, '{');
        write_member(out, "id", k->id);
        write_key(out, "function");
        write_open(out, '{');
        write_member_int(out, "index", (int64_t)i);
        write_member_string(out, "name", k->name.at, k->name.n);
        write_key(out, "arguments");
        put_arguments(out, k);
        write_close(out, '}');
        write_close(out, '}');
    }
    write_close(out, ']');
}

/* The members of a message, or (generate) of the line itself. */
static void put_said(const struct ollama *s, struct str *out, const struct said *t)
{
    if (!s->generate) {
        write_key(out, "message");
        write_open(out, '{');
        write_member(out, "role", "assistant");
    }
    write_member_string(out, s->generate ? "response" : "content", t->content ? t->content : "",
                        t->n_content);
    if (t->n_thinking)
        write_member_string(out, "thinking", t->thinking, t->n_thinking);
    if (t->n_calls)
        put_calls(out, t);
    if (!s->generate)
        write_close(out, '}');
}

static void put_logprobs(struct ollama *s, const struct answer_choice *c, struct str *out)
{
    if (!s->info || !s->info->request->logprobs || s->n_sent == c->n_tokens)
        return;
    write_key(out, "logprobs");
    openai_put_tokens(out, c, s->n_sent);
    s->n_sent = c->n_tokens;
}

static int64_t ns(double seconds) { return seconds > 0 ? (int64_t)(seconds * 1e9) : 0; }

/* The members that the last line has. */
static void put_end(struct str *out, const struct answer_result *r)
{
    const struct ingle_usage *u = &r->usage;
    write_member_bool(out, "done", true);
    write_member(out, "done_reason", r->choice[0].finish == ANSWER_LENGTH ? "length" : "stop");
    write_member_int(out, "total_duration",
                     ns(u->queue_seconds + u->prefill_seconds + u->decode_seconds));
    write_member_int(out, "load_duration", ns(u->queue_seconds));
    write_member_int(out, "prompt_eval_count", u->n_prompt);
    write_member_int(out, "prompt_eval_duration", ns(u->prefill_seconds));
    write_member_int(out, "eval_count", u->n_generated);
    write_member_int(out, "eval_duration", ns(u->decode_seconds));
    write_drafted(out, u->n_drafted, u->n_accepted);
    write_computed(out, u);
    write_ways(out, &u->way);
    write_pages(out, &u->pages);
    write_member_texts(out, "warnings", r->info->warnings, r->info->n_warnings);
    write_close(out, '}');
}

static void line_close(struct str *out)
{
    write_member_bool(out, "done", false);
    str_adds(out, "}\n");
}

void ollama_put_loaded(struct str *out, const struct ollama *s, const char *model)
{
    line_open(model, out);
    put_said(s, out, &(struct said){0});
    write_member_bool(out, "done", true);
    write_member(out, "done_reason", "load");
    str_adds(out, "}\n");
}

/* ---- the dialect ---- */

static void on_begin(void *state, const struct answer_info *i, struct str *out)
{
    (void)out;
    ((struct ollama *)state)->info = i;
}

static void on_progress(void *state, const struct answer_progress *p, struct str *out)
{
    (void)state;
    (void)p;
    (void)out;
}

static void on_text(void *state, const struct answer_choice *c, enum answer_text kind,
                    const char *text, size_t n, size_t first_token, struct str *out)
{
    struct ollama *s = state;
    const bool thought = kind == ANSWER_REASONING;
    (void)first_token;
    line_open(s->info->model, out);
    put_said(s, out, thought ? &(struct said){.thinking = text, .n_thinking = n}
                             : &(struct said){.content = text, .n_content = n});
    if (!thought)
        put_logprobs(s, c, out);
    line_close(out);
}

static void on_call_begin(void *state, const struct answer_choice *c, size_t call, struct str *out)
{
    (void)state;
    (void)c;
    (void)call;
    (void)out;
}

static void on_call_arguments(void *state, const struct answer_choice *c, size_t call,
                              const char *text, size_t n, struct str *out)
{
    (void)text;
    (void)n;
    on_call_begin(state, c, call, out);
}

/* A call is one line: its arguments are an object. */
static void on_call_end(void *state, const struct answer_choice *c, size_t call, struct str *out)
{
    const struct ollama *s = state;
    line_open(s->info->model, out);
    put_said(s, out, &(struct said){.c = c, .first_call = call, .n_calls = 1});
    line_close(out);
}

static void on_end(void *state, const struct answer_choice *c, struct str *out)
{
    (void)state;
    (void)c;
    (void)out;
}

static void on_done(void *state, const struct answer_result *r, struct str *out)
{
    struct ollama *s = state;
    s->info = r->info;
    line_open(r->info->model, out);
    put_said(s, out, &(struct said){0});
    put_logprobs(s, &r->choice[0], out);
    put_end(out, r);
    str_addc(out, '\n');
}

/* There are no comments: a line that says nothing. */
static void on_keepalive(void *state, const struct answer_info *i, struct str *out)
{
    const struct ollama *s = state;
    line_open(i->model, out);
    put_said(s, out, &(struct said){0});
    line_close(out);
}

static void on_error(void *state, const struct fault *f, bool in_stream, struct str *out)
{
    (void)state;
    ollama_put_error(out, f->message);
    if (in_stream)
        str_addc(out, '\n');
}

static void on_whole(void *state, const struct answer_result *r, struct str *out)
{
    struct ollama *s = state;
    const struct answer_choice *c = &r->choice[0];
    s->info = r->info;
    line_open(r->info->model, out);
    put_said(s, out,
             &(struct said){.content = c->content.at,
                            .n_content = c->content.n,
                            .thinking = c->reasoning.at,
                            .n_thinking = c->reasoning.n,
                            .c = c,
                            .n_calls = c->n_calls});
    put_logprobs(s, c, out);
    put_end(out, r);
}

static void on_free(void *state) { ollama_free(state); }

#define OLLAMA_DIALECT(title)                                                                      \
    {                                                                                              \
        .name = (title), .begin = on_begin, .progress = on_progress, .text = on_text,              \
        .call_begin = on_call_begin, .call_arguments = on_call_arguments, .call_end = on_call_end, \
        .end = on_end, .done = on_done, .keepalive = on_keepalive, .error = on_error,              \
        .whole = on_whole, .free = on_free, .stream_type = "application/x-ndjson"                  \
    }

const struct dialect ollama_chat_dialect = OLLAMA_DIALECT("ollama-chat");
const struct dialect ollama_generate_dialect = OLLAMA_DIALECT("ollama-generate");
