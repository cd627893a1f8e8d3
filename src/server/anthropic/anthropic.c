/* SPDX-License-Identifier: Apache-2.0 */
#include "server/anthropic/anthropic.h"
#include "server/fields.h"

#include "server/answer.h"
#include "server/answer_prompt.h"
#include "server/serve.h"

/* The body of a request as a chat_request; *s may be NULL. */
static void read_body(struct serve *v, const struct http_request *rq, struct chat_request *r,
                      struct anthropic **s, struct fault *f)
{
    const struct answer_options *o = answer_get_options(v->answers);
    const struct report_sink sink = {.report = v->callbacks.report, .arg = v->callbacks.arg};
    struct json_object *body = request_body(rq->body, rq->n_body, f);
    *s = NULL;
    request_init(r, &o->sampling);
    r->o.max_tokens = o->max_tokens;
    r->o.ignore_end = o->ignore_end;
    anthropic_read(body, o, rq->id, &sink, r, s, f);
    json_object_put(body);
}

void anthropic_messages(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    struct chat_request r;
    struct anthropic *s;
    struct fault f = serve_watch(x);
    read_body(v, rq, &r, &s, &f);
    if (s)
        answer_start(v->answers, x, rq, &r, &anthropic_dialect, s, &f);
    else
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
    request_release(&r);
}

void anthropic_count_tokens(struct serve *v, struct http_exchange *x,
                            const struct http_request *rq)
{
    struct chat_request r;
    struct anthropic *s;
    struct fault f = serve_watch(x);
    read_body(v, rq, &r, &s, &f);
    if (s)
        answer_reply_count(v->answers, x, &r, &anthropic_dialect, s, "", &f);
    else
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
    anthropic_free(s);
    request_release(&r);
}
