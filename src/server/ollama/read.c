/* SPDX-License-Identifier: Apache-2.0 */
#include "server/fields.h"
#include "server/ollama/ollama.h"

#include "server/odd.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_TEXT = 64 << 20 };

struct ollama *ollama_create(void) { return mem_zalloc(sizeof(struct ollama)); }

void ollama_free(struct ollama *s) { mem_free(s); }

/* "nano:latest" is "nano". */
static void read_model(struct chat_request *r, struct json_object *body, struct fault *f)
{
    static const char latest[] = ":latest";
    const size_t n = sizeof latest - 1;
    request_get_text(body, "model", 256, &r->model, f);
    if (r->model.n > n && strcmp(r->model.at + r->model.n - n, latest) == 0) {
        r->model.n -= n;
        r->model.at[r->model.n] = 0;
    }
}

/* Options have the names of llama.cpp; those of how a model is loaded are ignored. */
static void read_options(struct chat_request *r, struct json_object *body,
                         const struct answer_options *o, struct fault *f)
{
    struct json_object *options = request_get_object(body, "options", f);
    int64_t n = -1;
    if (!options)
        return;
    openai_read_params(r, options, o, PARAMS_OLLAMA, f);
    openai_read_stop(r, options, f);
    request_get_int(options, "num_predict", -2, INT32_MAX, &n, f);
    if (n > 0)
        r->o.max_tokens = n;
}

static void read_logprobs(struct chat_request *r, struct json_object *body, struct fault *f)
{
    int64_t top = 0;
    request_get_bool(body, "logprobs", &r->logprobs, f);
    request_get_int(body, "top_logprobs", 0, REQUEST_MAX_TOP, &top, f);
    r->o.n_top = (int)top;
}

/* Seconds, a text like "5m", or -1: the model stays in any case; a router ends it
 * (docs/use/router.md). */
static void read_life(struct json_object *body, struct fault *f)
{
    struct json_object *v = request_get(body, "keep_alive");
    if (json_object_is_type(v, json_type_array) || json_object_is_type(v, json_type_object))
        request_fault(f, FAULT_REQUEST, "keep_alive",
                      "'keep_alive' is neither a number nor a text");
}

static void put_message(struct str *out, const char *role, struct json_object *content,
                        struct json_object *images)
{
    write_open(out, '{');
    write_member(out, "role", role);
    write_key(out, "content");
    request_add_value(out, content);
    if (images) {
        write_key(out, "images");
        request_add_value(out, images);
    }
    write_close(out, '}');
}

/* system and prompt as the messages of a conversation. */
static void read_turn(struct chat_request *r, struct json_object *body,
                      const struct answer_options *o, struct fault *f)
{
    struct json_object *system = request_get(body, "system"), *prompt = request_get(body, "prompt");
    struct json_object *made = NULL;
    struct str text;
    str_init(&text);
    str_adds(&text, "{\"messages\":[");
    if (system && json_object_get_string_len(system))
        put_message(&text, "system", system, NULL);
    if (prompt)
        put_message(&text, "user", prompt, request_get(body, "images"));
    str_adds(&text, "]}");
    if (!str_ok(&text) || json_parse(text.at, text.n, NULL, &made, NULL) != INGLE_OK)
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a prompt");
    else
        openai_read_messages(r, made, o, f);
    json_object_put(made);
    str_release(&text);
    r->prompt_param = "prompt";
}

/* What would make another prompt and cannot. */
static void refuse(struct json_object *body, struct fault *f)
{
    static const struct {
        const char *name, *why;
    } refused[] = {
        {"suffix", "there is no insertion in front of a suffix"},
        {"template", "the model's own format is used; raw takes a prompt as it stands"},
        {"context", "/api/chat takes the messages of a conversation"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct json_object *v = request_get(body, refused[i].name);
        const bool empty =
            !v || (request_is_text(v) && !json_object_get_string_len(v)) ||
            (json_object_is_type(v, json_type_array) && !json_object_array_length(v));
        if (!empty)
            request_fault(f, FAULT_REQUEST, refused[i].name, "'%s' cannot be done here: %s",
                          refused[i].name, refused[i].why);
    }
}

static void read_generate(struct chat_request *r, struct json_object *body,
                          const struct answer_options *o, struct ollama *s, struct fault *f)
{
    struct json_object *prompt = request_get(body, "prompt"), *images = NULL;
    struct str unused;
    bool raw = false;
    str_init(&unused);
    request_get_bool(body, "raw", &raw, f);
    request_get_text(body, "prompt", MAX_TEXT, &unused, f);
    request_get_text(body, "system", MAX_TEXT, &unused, f);
    str_release(&unused);
    images = request_get_array(body, "images", REQUEST_MAX_MESSAGES, f);
    refuse(body, f);
    s->nothing = !prompt || !json_object_get_string_len(prompt);
    if (f->kind)
        return;
    if (raw && images && json_object_array_length(images)) {
        request_fault(f, FAULT_REQUEST, "images",
                      "'images' cannot be combined with 'raw': a raw prompt has no place for them");
    } else if (s->nothing) {
        return;
    } else if (!raw) {
        read_turn(r, body, o, f);
    } else {
        r->hide_special = true;
        openai_read_prompt(r, prompt, o, f);
    }
}

void ollama_read(struct chat_request *r, struct json_object *body, const struct answer_options *o,
                 struct ollama *s, struct fault *f)
{
    struct openai_wish unused = {0};
    r->o.max_tokens = o->max_tokens;
    r->o.ignore_end = o->ignore_end;
    r->stream = true;
    read_model(r, body, f);
    request_get_bool(body, "stream", &r->stream, f);
    read_options(r, body, o, f);
    openai_read_json_format(r, body, f);
    openai_think_word(r, body, "think", f);
    read_logprobs(r, body, f);
    if (s->generate) {
        read_generate(r, body, o, s, f);
    } else {
        struct json_object *messages = request_get_array(body, "messages", REQUEST_MAX_MESSAGES, f);
        s->nothing = !messages || !json_object_array_length(messages);
        if (!s->nothing)
            openai_read_messages(r, body, o, f);
        openai_read_tools(r, body, o, &unused, f);
    }
    read_life(body, f);
    odd_members(body, request_notes(r, &o->sink), f);
}
