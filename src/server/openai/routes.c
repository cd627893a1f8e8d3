/* SPDX-License-Identifier: Apache-2.0 */
#include "server/answer_prompt.h"
#include "server/fields.h"
#include "server/openai/openai.h"
#include "server/serve.h"
#include "server/streams.h"
#include "server/tape.h"

#include <string.h>

/* A client that names its conversation may come back for the stream: where --limit resumable was
 * given, and where the request asks for it.  Elsewhere the name is for proxies, and a client that
 * leaves ends its answer. */
static void make_resumable(struct serve *serve, const struct http_request *rq,
                           struct chat_request *r, struct openai_wish *w)
{
    const char *name = http_request_header(rq, "x-conversation-id");
    if (!serve->streams || !(r->resumable || ingle_config_is_set(serve->config, "resumable")) ||
        !r->stream || !name || !*name || strlen(name) > STREAMS_MAX_NAME)
        return;
    r->tape = streams_create(serve->streams);
    r->follow = true;
    w->streams = serve->streams;
    w->user = rq->user ? rq->user : "";
    w->conversation = name;
    w->tape = r->tape;
}

/* The request, and the kind's state for it; NULL: answered, r holds nothing. */
static void *read_request(const struct serve *serve, struct http_exchange *x,
                          const struct http_request *rq, const struct openai_kind *kind,
                          struct chat_request *r, struct fault *f)
{
    const struct answer_options *o = answer_get_options(serve->answers);
    void *state = kind->create();
    if (!state) {
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
        return NULL;
    }
    request_init(r, &o->sampling);
    struct json_object *body = request_body(rq->body, rq->n_body, f);
    if (body)
        kind->read(r, body, o, state, f);
    json_object_put(body);
    return state;
}

void openai_answer(struct serve *serve, struct http_exchange *x, const struct http_request *rq,
                   const struct openai_kind *kind)
{
    struct chat_request r;
    struct fault f = serve_watch(x);
    void *state = read_request(serve, x, rq, kind, &r, &f);
    if (!state)
        return;
    if (!f.kind)
        make_resumable(serve, rq, &r, state);
    answer_start(serve->answers, x, rq, &r, kind->dialect, state, &f);
    request_release(&r);
}

void openai_chat(struct serve *serve, struct http_exchange *x, const struct http_request *rq)
{
    openai_answer(serve, x, rq, &openai_kind_chat);
}

void openai_chat_tokens(struct serve *serve, struct http_exchange *x, const struct http_request *rq)
{
    const struct openai_kind *kind = &openai_kind_chat;
    struct chat_request r;
    struct fault f = serve_watch(x);
    void *state = read_request(serve, x, rq, kind, &r, &f);
    if (!state)
        return;
    answer_reply_count(serve->answers, x, &r, kind->dialect, state,
                       "\"object\":\"response.input_tokens\",", &f);
    kind->dialect->free(state);
    request_release(&r);
}

void openai_control(struct serve *serve, struct http_exchange *x, const struct http_request *rq)
{
    static const char prefix[] = "chatcmpl-";
    struct fault f = serve_watch(x);
    struct str id, out;
    const char *why = NULL;
    bool done = false;
    str_init(&id);
    struct json_object *body = request_body(rq->body, rq->n_body, &f);
    if (body && !request_text_is(request_get(body, "action"), "reasoning_end"))
        request_fault(&f, FAULT_REQUEST, "action", "'action' is not 'reasoning_end'");
    if (body)
        request_get_text(body, "id", 128, &id, &f);
    if (!f.kind && strncmp(id.at, prefix, sizeof prefix - 1) != 0)
        request_fault(&f, FAULT_REQUEST, "id", "'id' is not that of a chat completion");
    json_object_put(body);
    if (f.kind) {
        const struct serve_error e = {.status = f.status, .param = f.param[0] ? f.param : NULL};
        serve_fail(x, rq, &e, "%s", f.message);
    } else {
        done = answer_end_thought(serve->answers, rq->user ? rq->user : "",
                                  id.at + sizeof prefix - 1, &why);
        str_init(&out);
        write_open(&out, '{');
        write_member_bool(&out, "success", done);
        if (!done)
            write_member(&out, "message", why);
        write_close(&out, '}');
        serve_json(x, rq, &out);
    }
    str_release(&id);
}

/* Without /v1 the path is llama-server's. */
void openai_completions(struct serve *serve, struct http_exchange *x, const struct http_request *rq)
{
    const bool v1 = strncmp(rq->path, "/v1/", 4) == 0;
    openai_answer(serve, x, rq, v1 ? &openai_kind_text : &openai_kind_native);
}

void openai_native(struct serve *serve, struct http_exchange *x, const struct http_request *rq)
{
    openai_answer(serve, x, rq, &openai_kind_native);
}
