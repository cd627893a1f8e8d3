/* SPDX-License-Identifier: Apache-2.0 */
#include "server/fields.h"
#include "server/responses/responses.h"
#include "server/responses/store.h"

#include "server/answer.h"
#include "server/answer_prompt.h"
#include "server/openai/openai.h"
#include "server/serve.h"

#include <stdlib.h>
#include <string.h>

static const char *user_of(const struct http_request *rq) { return rq->user ? rq->user : ""; }

/* The body of a request as a chat_request; *s may be NULL. */
static void read_body(struct serve *v, const struct http_request *rq, bool compact,
                      struct chat_request *r, struct responses **s, struct fault *f)
{
    const struct answer_options *o = answer_get_options(v->answers);
    const struct report_sink sink = {.report = v->callbacks.report, .arg = v->callbacks.arg};
    struct json_object *body = request_body(rq->body, rq->n_body, f);
    *s = NULL;
    request_init(r, &o->sampling);
    r->o.max_tokens = o->max_tokens;
    r->o.ignore_end = o->ignore_end;
    (compact ? responses_read_compact : responses_read)(body, o, v->responses, user_of(rq), &sink,
                                                        r, s, f);
    json_object_put(body);
}

static void no_memory(struct http_exchange *x, const struct http_request *rq)
{
    serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
}

/* The answer needs no client from now on, and all of it is events. */
static void detach(struct serve *v, struct chat_request *r, struct responses *s, struct fault *f)
{
    r->tape = tape_create(v->tapes, r->stream);
    r->follow = r->stream;
    if (!r->tape) {
        request_fault_from(f, INGLE_NOMEM, NULL, "no memory for an answer in the background");
        return;
    }
    r->stream = s->stream = true;
    s->tape = tape_ref(r->tape);
}

void responses_create(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    struct chat_request r;
    struct responses *s;
    struct fault f = serve_watch(x);
    read_body(v, rq, false, &r, &s, &f);
    if (s && s->background && !f.kind)
        detach(v, &r, s, &f);
    if (s)
        answer_start(v->answers, x, rq, &r, &responses_dialect, s, &f);
    else
        no_memory(x, rq);
    request_release(&r);
}

void responses_compact(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    struct chat_request r;
    struct responses *s;
    struct fault f = serve_watch(x);
    read_body(v, rq, true, &r, &s, &f);
    if (s)
        answer_start(v->answers, x, rq, &r, &responses_compact_dialect, s, &f);
    else
        no_memory(x, rq);
    request_release(&r);
}

void responses_input_tokens(struct serve *v, struct http_exchange *x,
                            const struct http_request *rq)
{
    struct chat_request r;
    struct responses *s;
    struct fault f = serve_watch(x);
    read_body(v, rq, false, &r, &s, &f);
    if (s)
        answer_reply_count(v->answers, x, &r, &responses_dialect, s,
                           "\"object\":\"response.input_tokens\",", &f);
    else
        no_memory(x, rq);
    responses_free(s);
    request_release(&r);
}

/* What stands between "/responses/" and after; "" where it can be no id. */
static void id_of(const struct http_request *rq, const char *tail, char id[RESPONSES_ID])
{
    const char *at = serve_path(rq) + strlen("/responses/");
    const size_t n = strcspn(at, "/");
    id[0] = 0;
    if (n < RESPONSES_ID && strncmp(at, "resp_", 5) == 0 && strcmp(at + n, tail) == 0) {
        memcpy(id, at, n);
        id[n] = 0;
    }
}

static void not_found(const struct serve *v, struct http_exchange *x,
                      const struct http_request *rq)
{
    char words[REPLICA_WORDS];
    const char *id = serve_path(rq) + strlen("/responses/");
    const size_t n = strcspn(id, "/");
    const bool foreign = replica_is_foreign(v->replica, id, n, words);
    serve_fail(x, rq, &(struct serve_error){.status = 404, .code = "not_found"},
               "there is no response '%.*s'%s%s", (int)(n < RESPONSES_ID ? n : RESPONSES_ID), id,
               foreign ? " here" : " (any more)", words);
}

static void refuse(struct http_exchange *x, const struct http_request *rq, const struct fault *f)
{
    serve_fail(x, rq, &(struct serve_error){.status = f->status, .param = f->param}, "%s",
               f->message);
}

static bool wants_stream(const struct http_request *rq, struct fault *f)
{
    const char *stream = http_request_query(rq, "stream");
    if (stream && strcmp(stream, "true") != 0 && strcmp(stream, "false") != 0)
        request_fault(f, FAULT_REQUEST, "stream", "'stream' is '%.40s', not true or false", stream);
    return stream && strcmp(stream, "true") == 0;
}

/* The number of the first event that is wanted. */
static int64_t first_event(const struct http_request *rq, struct fault *f)
{
    const char *after = http_request_query(rq, "starting_after");
    char *end = NULL;
    const long long n = after ? strtoll(after, &end, 10) : -1;
    if (after && (*after < '0' || *after > '9' || *end || n > INT32_MAX))
        request_fault(f, FAULT_REQUEST, "starting_after",
                      "'starting_after' is '%.40s', not the number of an event", after);
    return n + 1;
}

static void follow(struct http_exchange *x, const struct http_request *rq, struct tape *t,
                   int64_t first)
{
    struct fault f = serve_watch(x);
    if (!t || !tape_keeps(t))
        request_fault(
            &f, FAULT_REQUEST, "stream",
            "only a response that was made with background and stream can be streamed again");
    if (!f.kind && !tape_listen(t, x, first))
        request_fault(&f, FAULT_REQUEST, "starting_after",
                      "the events after %lld were deleted", (long long)first - 1);
    if (f.kind)
        refuse(x, rq, &f);
}

static void send_object(struct http_exchange *x, const struct responses_item *object)
{
    http_reply(x, 200, "application/json", object->text, object->n);
}

void responses_get(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[RESPONSES_ID];
    struct fault f = serve_watch(x);
    struct responses_found found = {0};
    const bool stream = wants_stream(rq, &f);
    const int64_t first = first_event(rq, &f);
    id_of(rq, "", id);
    if (f.kind)
        refuse(x, rq, &f);
    else if (!responses_store_get(v->responses, user_of(rq), id, &found))
        not_found(v, x, rq);
    else if (stream)
        follow(x, rq, found.tape, first);
    else
        send_object(x, found.object);
    responses_found_release(&found);
}

void responses_input_items(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[RESPONSES_ID];
    struct str out;
    struct fault f = serve_watch(x);
    struct responses_items items = {0};
    struct responses_found found = {.items = &items};
    id_of(rq, "/input_items", id);
    str_init(&out);
    const bool there = responses_store_get(v->responses, user_of(rq), id, &found);
    responses_found_release(&found);
    if (there)
        responses_page(rq, &items, found.n_input, &out, &f);
    responses_items_release(&items);
    if (there && !f.kind) {
        serve_json(x, rq, &out);
        return;
    }
    str_release(&out);
    if (there)
        refuse(x, rq, &f);
    else
        not_found(v, x, rq);
}

/* The object with another status. */
static void put_cancelled(const struct responses_item *object, struct str *out)
{
    struct json_object *o = NULL;
    if (json_parse(object->text, object->n, NULL, &o, NULL) == INGLE_OK &&
        !json_object_object_add(o, "status", json_object_new_string("cancelled")))
        view_put_json(out, o);
    json_object_put(o);
}

void responses_cancel(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[RESPONSES_ID];
    struct str out;
    struct responses_found found = {0};
    id_of(rq, "/cancel", id);
    str_init(&out);
    if (!responses_store_get(v->responses, user_of(rq), id, &found)) {
        not_found(v, x, rq);
    } else if (!found.tape) {
        serve_fail(x, rq, &(struct serve_error){.status = 400},
                   "only a response that was made with background can be cancelled");
    } else if (found.open) {
        const struct responses_kept k = {.object = &out, .open = true};
        tape_cancel(found.tape);
        put_cancelled(found.object, &out);
        (void)responses_store_set(v->responses, user_of(rq), id, &k);
        serve_json(x, rq, &out);
        str_init(&out);
    } else {
        send_object(x, found.object);
    }
    responses_found_release(&found);
    str_release(&out);
}

void responses_delete(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[RESPONSES_ID];
    struct str out;
    id_of(rq, "", id);
    if (!responses_store_delete(v->responses, user_of(rq), id)) {
        not_found(v, x, rq);
        return;
    }
    str_init(&out);
    write_open(&out, '{');
    write_member(&out, "id", id);
    str_adds(&out, ",\"object\":\"response.deleted\",\"deleted\":true}");
    serve_json(x, rq, &out);
}
