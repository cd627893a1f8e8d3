/* SPDX-License-Identifier: Apache-2.0 */
#include "server/openai.h"
#include "server/serve.h"

#include <string.h>

void openai_answer(struct serve *serve, struct http_exchange *x, const struct http_request *rq,
                   const struct openai_kind *kind)
{
    const struct answer_options *o = answer_get_options(serve->answers);
    struct chat_request r;
    struct fault f = {0};
    void *state = kind->create();
    if (!state) {
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
        return;
    }
    request_init(&r, &o->sampling);
    struct json_object *body = request_body(rq->body, rq->n_body, &f);
    if (body)
        kind->read(&r, body, o, state, &f);
    json_object_put(body);
    answer_start(serve->answers, x, rq, &r, kind->dialect, state, &f);
    request_release(&r);
}

void openai_chat(struct serve *serve, struct http_exchange *x, const struct http_request *rq)
{
    openai_answer(serve, x, rq, &openai_kind_chat);
}

void openai_chat_tokens(struct serve *serve, struct http_exchange *x, const struct http_request *rq)
{
    const struct answer_options *o = answer_get_options(serve->answers);
    const struct openai_kind *kind = &openai_kind_chat;
    struct chat_request r;
    struct fault f = {0};
    void *state = kind->create();
    if (!state) {
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
        return;
    }
    request_init(&r, &o->sampling);
    struct json_object *body = request_body(rq->body, rq->n_body, &f);
    if (body)
        kind->read(&r, body, o, state, &f);
    json_object_put(body);
    answer_reply_count(serve->answers, x, &r, kind->dialect, state,
                       "\"object\":\"response.input_tokens\",", &f);
    kind->dialect->free(state);
    request_release(&r);
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
