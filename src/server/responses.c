/* SPDX-License-Identifier: Apache-2.0 */
#include "server/responses.h"

#include "server/answer.h"
#include "server/openai.h"
#include "server/serve.h"

#include <string.h>

static const char *user_of(const struct http_request *rq) { return rq->user ? rq->user : ""; }

/* The body of a request as a chat_request; *s may be NULL. */
static void read_body(struct serve *v, const struct http_request *rq, struct chat_request *r,
                      struct responses **s, struct fault *f)
{
    const struct answer_options *o = answer_get_options(v->answers);
    const struct report_sink sink = {.report = v->callbacks.report, .arg = v->callbacks.arg};
    struct json_object *body = request_body(rq->body, rq->n_body, f);
    *s = NULL;
    request_init(r, &o->sampling);
    r->max_tokens = o->max_tokens;
    responses_read(body, v->responses, user_of(rq), &sink, r, s, f);
    json_object_put(body);
}

static void no_memory(struct http_exchange *x, const struct http_request *rq)
{
    serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
}

void responses_create(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    struct chat_request r;
    struct responses *s;
    struct fault f = {0};
    read_body(v, rq, &r, &s, &f);
    if (s)
        answer_start(v->answers, x, rq, &r, &responses_dialect, s, &f);
    else
        no_memory(x, rq);
    request_release(&r);
}

void responses_input_tokens(struct serve *v, struct http_exchange *x,
                            const struct http_request *rq)
{
    struct chat_request r;
    struct responses *s;
    struct fault f = {0};
    read_body(v, rq, &r, &s, &f);
    if (s)
        answer_reply_count(v->answers, x, &r, &responses_dialect, s,
                           "\"object\":\"response.input_tokens\",", &f);
    else
        no_memory(x, rq);
    responses_free(s);
    request_release(&r);
}

/* The segment behind "/responses/". */
static void id_of(const struct http_request *rq, char id[80])
{
    const char *at = serve_path(rq) + strlen("/responses/");
    const size_t n = strcspn(at, "/");
    id[0] = 0;
    if (n < 80) {
        memcpy(id, at, n);
        id[n] = 0;
    }
}

static void not_found(struct http_exchange *x, const struct http_request *rq, const char *id)
{
    serve_fail(x, rq, &(struct serve_error){.status = 404, .code = "not_found"},
               "there is no response '%s' (any more)", id);
}

void responses_get(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[80];
    struct str out;
    id_of(rq, id);
    str_init(&out);
    if (responses_store_get(v->responses, user_of(rq), id, RESPONSES_OBJECT, &out)) {
        serve_json(x, rq, &out);
        return;
    }
    str_release(&out);
    not_found(x, rq, id);
}

void responses_delete(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[80];
    struct str out;
    id_of(rq, id);
    if (!responses_store_delete(v->responses, user_of(rq), id)) {
        not_found(x, rq, id);
        return;
    }
    str_init(&out);
    write_open(&out, '{');
    write_member(&out, "id", id);
    str_adds(&out, ",\"object\":\"response.deleted\",\"deleted\":true}");
    serve_json(x, rq, &out);
}
