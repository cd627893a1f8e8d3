/* SPDX-License-Identifier: Apache-2.0 */
#include "server/fields.h"
#include "server/fleet.h"

#include "server/answer.h"
#include "server/answer_prompt.h"
#include "server/openai/openai.h"
#include "server/serve.h"

#include <stdio.h>
#include <string.h>

/* ---- probes ---- */

const char *fleet_why_not_ready(const struct serve *s)
{
    switch (serve_phase(s)) {
    case SERVE_LOADING:
        return "the model is being loaded";
    case SERVE_DRAINING:
        return "the server is stopping";
    case SERVE_READY:
        break;
    }
    if (atomic_load(&s->lingering))
        return "the server stops soon (--linger)";
    char why[256];
    if (s->engine && !ingle_engine_stages_ready(s->engine, why, sizeof why))
        return "a stage that has some of the layers is not there (/props, runtime.stages)";
    return atomic_load(&s->away) ? "the server was taken out by SIGUSR2" : NULL;
}

bool fleet_lives(struct serve *s)
{
    struct ingle_scheduler_status now;
    if (serve_phase(s) == SERVE_LOADING || !s->scheduler || s->watchdog_seconds <= 0)
        return true;
    (void)ingle_scheduler_status(s->scheduler, &now, NULL, 0);
    return now.since_step_seconds < s->watchdog_seconds;
}

static void answer_status(struct http_exchange *x, const struct http_request *rq, const char *why)
{
    struct str out;
    if (why) {
        serve_fail(x, rq, &(struct serve_error){.status = 503, .retry_seconds = 2}, "%s", why);
        return;
    }
    str_init(&out);
    write_open(&out, '{');
    write_member(&out, "status", "ok");
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

void fleet_answer_live(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    char why[96];
    snprintf(why, sizeof why, "a step takes longer than %g seconds", s->watchdog_seconds);
    answer_status(x, rq, fleet_lives(s) ? NULL : why);
}

void fleet_answer_ready(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    answer_status(x, rq, fleet_why_not_ready(s));
}

void fleet_livez(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    fleet_answer_live(s, x, rq);
}

void fleet_readyz(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    fleet_answer_ready(s, x, rq);
}

/* As vLLM has it for SageMaker: its health, without a body. */
void fleet_ping(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    const enum serve_phase phase = serve_phase(s);
    if (phase == SERVE_READY)
        http_reply(x, 200, "text/plain", "", 0);
    else
        answer_status(x, rq, fleet_why_not_ready(s));
}

void fleet_version(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct str out;
    (void)s;
    str_init(&out);
    write_open(&out, '{');
    write_member(&out, "version", ingle_version());
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

/* Requests that are computed or wait. */
void fleet_load(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct ingle_scheduler_status now;
    struct str out;
    int64_t n;
    if (s->scheduler) {
        (void)ingle_scheduler_status(s->scheduler, &now, NULL, 0);
        n = now.n_running + now.n_waiting;
    } else { /* of several models: all but this one */
        struct http_counters open = {.n_exchanges = 1};
        if (s->http)
            http_counters(s->http, &open);
        n = open.n_exchanges - 1;
    }
    str_init(&out);
    write_open(&out, '{');
    write_member_int(&out, "server_load", n);
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

void fleet_is_sleeping(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct str out;
    (void)s;
    str_init(&out);
    write_open(&out, '{');
    write_member_bool(&out, "is_sleeping", false);
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

/* ---- the server, for routers ---- */

void fleet_server_info(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct str out;
    str_init(&out);
    write_open(&out, '{');
    write_member(&out, "model_id", s->model_id);
    write_member(&out, "model_path", s->info.path);
    write_member(&out, "served_model_name", s->model_id);
    write_member(&out, "instance_id", s->instance);
    write_member(&out, "version", ingle_version());
    write_member_int(&out, "max_model_len", s->engine_info.n_ctx);
    write_member_int(&out, "kv_block_size", FLEET_BLOCK);
    write_member_int(&out, "tp_size", 1);
    write_member_int(&out, "dp_size", 1);
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

void fleet_model_info(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct str out;
    str_init(&out);
    write_open(&out, '{');
    write_member(&out, "model_path", s->info.path);
    write_member(&out, "tokenizer_path", s->info.path);
    write_member(&out, "served_model_name", s->model_id);
    write_member_bool(&out, "is_generation", true);
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

/* ---- rendered prompts ---- */

struct rendering {
    const char *prefix;  /* of the ids: "chatcmpl-" */
    const char *request; /* the id of the HTTP request */
    const struct serve *serve;
    const struct chat_request *r;
    struct str out;
    size_t n; /* prompts so far */
};

/* What a request says of its sampling, by vLLM's names. */
static void put_sampling(const struct chat_request *r, struct str *out)
{
    write_key(out, "sampling_params");
    write_open(out, '{');
    write_member_int(out, "n", r->o.n);
    write_key(out, "temperature");
    write_float(out, r->o.sampling.temperature);
    write_key(out, "top_p");
    write_float(out, r->o.sampling.top_p);
    write_member_int(out, "top_k", r->o.sampling.top_k);
    write_key(out, "min_p");
    write_float(out, r->o.sampling.min_p);
    if (r->o.max_tokens >= 0)
        write_member_int(out, "max_tokens", r->o.max_tokens);
    else
        write_member_null(out, "max_tokens");
    write_close(out, '}');
}

static void put_prompt(void *arg, const int32_t *ids, size_t n)
{
    struct rendering *q = arg;
    const char *digits = strncmp(q->request, "req_", 4) == 0 ? q->request + 4 : q->request;
    char id[192];
    snprintf(id, sizeof id, q->n ? "%s%s-%zu" : "%s%s", q->prefix, digits, q->n);
    q->n++;
    write_open(&q->out, '{');
    write_member(&q->out, "request_id", id);
    write_key(&q->out, "token_ids");
    write_open(&q->out, '[');
    for (size_t i = 0; i < n; i++)
        write_int(&q->out, ids[i]);
    write_close(&q->out, ']');
    write_member_int(&q->out, "count", (int64_t)n);
    write_member_int(&q->out, "max_model_len", q->serve->engine_info.n_ctx);
    put_sampling(q->r, &q->out);
    write_member(&q->out, "model", q->serve->model_id);
    write_member_bool(&q->out, "stream", q->r->stream);
    write_member_int(&q->out, "priority", q->r->o.priority);
    write_close(&q->out, '}');
}

static void render(struct serve *s, struct http_exchange *x, const struct http_request *rq,
                   const struct openai_kind *kind)
{
    const struct answer_options *o = answer_get_options(s->answers);
    const bool list = kind != &openai_kind_chat;
    struct rendering q = {
        .prefix = list ? "cmpl-" : "chatcmpl-", .request = rq->id, .serve = s};
    struct chat_request r;
    struct fault f = serve_watch(x);
    void *state = kind->create();
    if (!state) {
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
        return;
    }
    q.r = &r;
    str_init(&q.out);
    request_init(&r, &o->sampling);
    struct json_object *body = request_body(rq->body, rq->n_body, &f);
    if (body)
        kind->read(&r, body, o, state, &f);
    json_object_put(body);
    if (list)
        write_open(&q.out, '[');
    if (!f.kind)
        answer_each_prompt(s->answers, x, &r, false, put_prompt, &q, &f);
    if (list)
        write_close(&q.out, ']');
    if (f.kind) {
        const bool long_one = f.kind == FAULT_CONTEXT;
        char extra[80];
        snprintf(extra, sizeof extra, "\"n_prompt_tokens\":%lld,\"n_ctx\":%lld",
                 (long long)f.n_prompt, (long long)f.n_ctx);
        const struct serve_error e = {.status = f.status,
                                      .code = long_one ? "context_length_exceeded" : NULL,
                                      .param = f.param[0] ? f.param : NULL,
                                      .extra = long_one ? extra : NULL};
        serve_fail(x, rq, &e, "%s", f.message);
        str_release(&q.out);
    } else {
        serve_json(x, rq, &q.out);
    }
    kind->dialect->free(state);
    request_release(&r);
}

void fleet_render_chat(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    render(s, x, rq, &openai_kind_chat);
}

void fleet_render_text(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    render(s, x, rq, &openai_kind_text);
}

/* ---- events of the KV cache ---- */

static void put_source(struct str *out, const struct ingle_events *e)
{
    write_open(out, '{');
    write_member_int(out, "data_parallel_rank", 0);
    write_member(out, "endpoint", e->address);
    write_member(out, "replay_endpoint", e->replay);
    write_member(out, "topic", e->topic);
    write_member(out, "publisher", "zmq");
    write_member_bool(out, "enable_kv_cache_events", true);
    write_close(out, '}');
}

/* An object by rank, as vllm-router 0.1.17 reads it; ?form=list: a list, as later ones do. */
void fleet_event_sources(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    const char *form = http_request_query(rq, "form");
    const bool list = form && strcmp(form, "list") == 0;
    struct ingle_events e;
    struct str out;
    str_init(&out);
    write_open(&out, list ? '[' : '{');
    if (ingle_engine_events(s->engine, &e)) {
        if (!list)
            write_key(&out, "0");
        put_source(&out, &e);
    }
    write_close(&out, list ? ']' : '}');
    serve_json(x, rq, &out);
}
