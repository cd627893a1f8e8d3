/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the server put together, and the way of a request to its endpoint.
 */
#define _POSIX_C_SOURCE 200809L
#include "server/server.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/plain.h"
#include "base/num.h"
#include "server/address.h"
#include "server/answer.h"
#include "server/auth.h"
#include "server/fleet.h"
#include "server/guard.h"
#include "server/media_url.h"
#include "server/metrics.h"
#include "server/responses/responses.h"
#include "server/responses/store.h"
#include "server/scrape.h"
#include "server/serve.h"
#include "server/slots.h"
#include "server/streams.h"
#include "server/tape.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PARALLEL = 4 };

struct server {
    struct serve serve; /* first: endpoints get it */
    struct address address;
    /* model_id: at first, and of a model that was fetched */
    char model_id[2][128], fingerprint[64], instance[128];
    ingle_status (*fetch)(void *arg, struct err *err);
    void *fetch_arg;
    struct guard *guard; /* NULL: none */
    struct media_gate *media_gate;
    struct scrape *scrape; /* NULL: no --metrics-address */
    int claim;             /* replica_claim(); -1: none */
};

/* ---- the way of a request ---- */

static void unavailable(struct http_exchange *x, const struct http_request *rq,
                        enum serve_phase phase)
{
    const struct serve_error e = {.status = 503, .retry_seconds = phase == SERVE_LOADING ? 2 : 5};
    serve_fail(x, rq, &e, phase == SERVE_LOADING ? "Loading model" : "the server is stopping");
}

/* The headers are there: everything that can be refused without the body is. */
static void admit(void *arg, struct http_exchange *x, const struct http_request *rq,
                  const char **user)
{
    struct server *s = arg;
    const struct route_table table = route_table();
    const struct route *r = address_admit(&s->address, x, rq, &table, 1, user);
    const enum serve_phase phase = serve_phase(&s->serve);
    if (s->serve.replica)
        http_header(x, "X-Ingle-Replica", s->serve.replica);
    if (!r)
        return;
    if (phase == SERVE_LOADING && !(r->flags & SERVE_EARLY))
        unavailable(x, rq, phase);
    else if (phase == SERVE_DRAINING && strcmp(r->method, "POST") == 0)
        unavailable(x, rq, phase);
    else if (r->flags & SERVE_LONG)
        http_takes_long(x);
}

/* False: the request was there twice when the server died, and is refused. */
static bool guarded(struct server *s, struct http_exchange *x, const struct http_request *rq)
{
    if (!s->guard || !rq->n_body)
        return true;
    const int place =
        guard_enter(s->guard, rq->user ? rq->user : "", rq->path, rq->body, rq->n_body);
    if (place == -2) {
        serve_fail(x, rq, &(struct serve_error){.status = 500, .no_retry = true},
                   "the server died twice while it computed this request; it may be tried again an "
                   "hour later");
        return false;
    }
    http_tag(x, place + 1);
    return true;
}

static void on_end(void *arg, int tag)
{
    guard_leave(((struct server *)arg)->guard, tag - 1);
}

/* An answer outlives its exchange when it runs in the background, or may be taken up again. */
static void hold_tag(void *arg, int tag, bool held)
{
    struct server *s = arg;
    if (held)
        guard_again(s->guard, tag - 1);
    else
        guard_leave(s->guard, tag - 1);
}

static int max_priority(void *arg, const char *key)
{
    return auth_priority(((struct server *)arg)->serve.auth, key);
}

static void handle(void *arg, struct http_exchange *x, const struct http_request *rq)
{
    struct server *s = arg;
    bool other_method;
    const struct route_table table = route_table();
    const struct route *r = route_find(&table, 1, rq, &other_method);
    if (!guarded(s, x, rq))
        return;
    r->fn(&s->serve, x, rq); /* admit() has seen that there is one */
}

static void refuse(void *arg, struct http_exchange *x, const struct http_request *rq, int status,
                   const char *reason)
{
    (void)arg;
    http_header(x, "X-Request-Id", rq->id);
    serve_fail(x, rq, &(struct serve_error){.status = status}, "%s", reason);
}

/* Who listens to a tape holds an exchange. */
static bool tick(void *arg)
{
    const struct server *s = arg;
    tape_tick(s->serve.tapes);
    streams_tick(s->serve.streams);
    return serve_phase(&s->serve) != SERVE_LOADING && answer_tick(s->serve.answers);
}

/* ---- options ---- */

static ingle_status read_codex_model(struct server *s, struct err *err)
{
    const char *path = ingle_config_text(s->serve.config, "codex-model", 0);
    char *text;
    size_t n;
    if (!path)
        return INGLE_OK;
    ingle_status st = file_slurp(path, 1 << 20, &text, &n, err);
    if (st)
        return st;
    st = plain_text(path, &text, &n, err);
    if (!st && (st = json_parse(text, n, NULL, &s->serve.codex_model, err)))
        st = err_prefix(err, "%s", path);
    mem_free(text);
    if (!st && !json_object_is_type(s->serve.codex_model, json_type_object))
        st = err_set(err, INGLE_FORMAT, "%s: it holds no JSON object", path);
    return st;
}

static int parallel(const struct ingle_config *c)
{
    const int n = (int)ingle_config_number(c, "parallel");
    return n ? n : PARALLEL;
}

/* The name of the model: what was requested, else its file's without folder and ending. */
static void name_model(struct server *s, char out[128])
{
    const char *name = ingle_config_text(s->serve.config, "alias", 0);
    const char *path = ingle_config_text(s->serve.config, "model", 0);
    if (!name && path) {
        size_t n = strlen(path);
        while (n > 1 && path[n - 1] == '/')
            n--;
        size_t from = n;
        while (from && path[from - 1] != '/')
            from--;
        if (n - from > 5 && strncmp(path + n - 5, ".gguf", 5) == 0)
            n -= 5;
        snprintf(out, 128, "%.*s", (int)(n - from), path + from);
    } else {
        snprintf(out, 128, "%s", name ? name : "nano-gemma4");
    }
    s->serve.model_id = out;
}

/* The host, the process and when it began: no two processes have the same. */
static void name_instance(struct server *s)
{
    char host[65] = "";
    (void)gethostname(host, sizeof host - 1);
    s->serve.replica = ingle_config_text(s->serve.config, "replica", 0);
    if (s->serve.replica) {
        s->serve.instance = s->serve.replica;
        return;
    }
    snprintf(s->instance, sizeof s->instance, "%s-%ld-%llx", host, (long)getpid(),
             (unsigned long long)clock_now());
    s->serve.instance = s->instance;
}

static ingle_status start_http(struct server *s, struct err *err)
{
    const struct http_options calls = {.admit = admit,
                                       .handle = handle,
                                       .refuse = refuse,
                                       .finished = on_end,
                                       .tick = tick,
                                       .arg = s};
    return address_listen(&s->address, &calls, &s->serve.http, err);
}

/* A stream takes at most a quarter of what is kept, a client's unread part of it half of what would
 * have it dropped. */
static ingle_status open_tapes(struct server *s, struct err *err)
{
    const struct ingle_config *c = s->serve.config;
    const struct streams_options o = {
        .n = (size_t)ingle_config_number(c, "resumable"),
        .n_bytes = (size_t)ingle_config_number(c, "resumable-bytes"),
        .unread = (size_t)ingle_config_number(c, "max-unread") / 2,
        .keepalive_seconds = ingle_config_number(c, "keep-alive"),
    };
    const ingle_status st = o.n ? streams_open(&s->serve.streams, &o, err) : INGLE_OK;
    if (st)
        return st;
    return tape_open_all(&s->serve.tapes, (size_t)ingle_config_number(c, "max-responses-bytes") / 4,
                         o.unread, o.keepalive_seconds, err);
}

/* What is wrong with the file alone is said, and does not keep the server from answering. */
static ingle_status open_guard(struct server *s, struct err *err)
{
    const struct report_sink sink = {.report = s->serve.callbacks.report,
                                     .arg = s->serve.callbacks.arg};
    const char *directory = ingle_config_text(s->serve.config, "state-dir", 0);
    struct err why;
    const ingle_status st = directory ? guard_open(&s->guard, directory, &why) : INGLE_OK;
    if (st == INGLE_IO)
        report(&sink, INGLE_REPORT_WARN, "guard", directory,
               "requests that crash the server are not counted: %s", why.msg);
    else if (st)
        return err_set(err, st, "--state-dir: %s", why.msg);
    return INGLE_OK;
}

static ingle_status fail(struct err *err, const struct ingle_error *error)
{
    return error->status ? err_set(err, error->status, "%s", error->text) : INGLE_OK;
}

/* What may be wrong with the files that the engine will need, as far as that is known at once. */
static ingle_status open_model(struct server *s, struct err *err)
{
    struct serve *v = &s->serve;
    struct ingle_error error = {0};
    const char *store = ingle_config_text(v->config, "store", 0);
    if (store && ingle_store_check(store, &error))
        return fail(err, &error);
    if (!ingle_model_open(&v->model, ingle_config_text(v->config, "model", 0), &v->callbacks,
                          &error))
        (void)ingle_config_check(v->config, v->model, &error);
    return fail(err, &error);
}

ingle_status server_open(struct server **out, const struct server_options *o, struct err *err)
{
    struct server *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for the server");
    s->claim = -1;
    s->serve.config = o->config;
    s->serve.callbacks = o->callbacks;
    s->serve.created = (int64_t)time(NULL);
    s->serve.began = clock_now();
    name_model(s, s->model_id[0]);
    s->fetch = o->fetch;
    s->fetch_arg = o->fetch_arg;
    s->serve.watchdog_seconds = o->watchdog_seconds;
    name_instance(s);
    ingle_status st = s->serve.replica ? replica_check(s->serve.replica, err) : INGLE_OK;
    if (!st)
        st = responses_store_create(
            &s->serve.responses, (size_t)ingle_config_number(o->config, "max-responses"),
            (size_t)ingle_config_number(o->config, "max-responses-bytes"), err);
    if (!st)
        responses_store_name(s->serve.responses, s->serve.replica);
    if (!st)
        st = open_tapes(s, err);
    if (!st)
        st = metrics_open(&s->serve.metrics, err);
    s->address.sink =
        (struct report_sink){.report = o->callbacks.report, .arg = o->callbacks.arg};
    if (!st)
        st = address_open(&s->address, o->config, o->listener, o->n_listeners, err);
    s->serve.auth = s->address.auth;
    if (!st)
        st = read_codex_model(s, err);
    const char *slots = ingle_config_text(o->config, "slot-save-path", 0);
    if (!st && slots)
        st = slots_open(&s->serve.slots, slots, parallel(s->serve.config), err);
    const char *hosts = ingle_config_text(o->config, "media-urls", 0);
    if (!st && hosts)
        st = media_url_check_hosts(hosts, err);
    if (!st)
        st = open_guard(s, err);
    if (!st && !s->fetch)
        st = open_model(s, err);
    if (!st)
        st = start_http(s, err);
    const char *watched = ingle_config_text(o->config, "metrics-address", 0);
    if (!st && watched)
        st = scrape_open(&s->scrape, watched, &s->serve, err);
    if (st) {
        server_close(s);
        return st;
    }
    *out = s;
    return INGLE_OK;
}

/* ---- the model ---- */

static bool knows(void *arg, const char *name, const char **known)
{
    const struct server *s = arg;
    *known = s->serve.model_id;
    return serve_knows(&s->serve, name);
}

static void keep(void *arg, const struct chat_request *r, const struct answer_tokens *t)
{
    slots_keep(((struct server *)arg)->serve.slots, r->id_slot, r->user.n ? r->user.at : NULL,
               &r->way, t);
}

static void observe(void *arg, const struct answer_record *r)
{
    const struct serve *v = &((struct server *)arg)->serve;
    const struct report_sink sink = {.report = v->callbacks.report, .arg = v->callbacks.arg};
    metrics_observe(v->metrics, r);
    report(&sink, INGLE_REPORT_DEBUG, "request", r->request_id,
           "%s, %s: %lld tokens of prompt (%lld known), %lld of answer, %.3f s%s%s", r->dialect,
           r->outcome, (long long)r->usage.n_prompt, (long long)r->usage.reuse.kept,
           (long long)r->usage.n_generated, r->whole_seconds, *r->trace ? ", traceparent " : "",
           r->trace);
}

/* Tokens of a prompt that may be shortened. */
static int64_t prompt_ctx(const struct serve *v)
{
    struct ingle_shortener_info i;
    ingle_shortener(v->engine, &i);
    return i.n_ctx;
}

static ingle_status open_answers(struct server *s, struct err *err)
{
    const struct serve *v = &s->serve;
    s->media_gate = media_gate_create();
    if (!s->media_gate)
        return err_set(err, INGLE_NOMEM, "no memory for a server");
    struct answer_options o = {
        .model = v->model,
        .scheduler = v->scheduler,
        .engine = v->engine,
        .prompt_ctx = prompt_ctx(v),
        .n_ctx = v->engine_info.n_ctx,
        .n_vocab = v->engine_info.n_vocab,
        .max_running = parallel(s->serve.config),
        .name = v->model_id,
        .fingerprint = v->fingerprint,
        .replica = v->replica,
        .seeded = ingle_config_is_set(v->config, "seed") &&
                  ingle_config_number(v->config, "seed") >= 0,
        .thinking = ingle_config_flag(v->config, "think"),
        .ignore_end = ingle_config_flag(v->config, "ignore-eos"),
        .developer_own = strcmp(ingle_config_text(v->config, "developer-role", 0), "own") == 0,
        .max_tokens = (int64_t)ingle_config_number(v->config, "predict"),
        .max_logprobs = (int64_t)ingle_config_number(v->config, "max-logprobs"),
        .any_top = ingle_config_flag(v->config, "many-logprobs"),
        .drop_unsupported =
            strcmp(ingle_config_text(v->config, "schema-unsupported", 0), "drop") == 0,
        .always_usage = ingle_config_flag(v->config, "always-usage"),
        .verbose = ingle_config_flag(v->config, "verbose-replies"),
        .sees = v->engine_info.sees,
        .hears = v->engine_info.hears,
        .media_urls = ingle_config_text(v->config, "media-urls", 0),
        .media_gate = s->media_gate,
        .note_media = strcmp(ingle_config_text(v->config, "media", 0), "note") == 0,
        .sink = {.report = v->callbacks.report, .arg = v->callbacks.arg},
        .keepalive_seconds = ingle_config_number(v->config, "keep-alive"),
        .grace_seconds = ingle_config_number(v->config, "retry-grace"),
        .queue_seconds = ingle_config_number(v->config, "queue-timeout"),
        .request_seconds = ingle_config_number(v->config, "max-request-seconds"),
        .hold_tag = hold_tag,
        .max_priority = max_priority,
        .knows = ingle_config_flag(v->config, "strict-model") ? knows : NULL,
        .observe = observe,
        .keep = v->slots ? keep : NULL,
        .arg = s,
    };
    ingle_sampling_defaults(v->model, &o.sampling);
    ingle_config_sampling(v->config, &o.sampling);
    /* A token that is none is the starter's mistake, not that of each request. */
    struct ingle_sampler *probe;
    struct ingle_error error;
    if (ingle_sampler_open(&probe, v->engine, &o.sampling, &error))
        return err_set(err, error.status, "%s", error.text);
    ingle_sampler_close(probe);
    return answer_open(&s->serve.answers, &o, err);
}

static struct ingle_engine_options engine_options(const struct ingle_config *c,
                                                  struct ingle_callbacks callbacks)
{
    struct ingle_engine_options o = {.callbacks = callbacks};
    ingle_config_engine(c, &o);
    o.n_sessions = parallel(c);
    o.max_logits = num_max(16, 2 * o.n_sessions);
    return o;
}

ingle_status server_plan(const struct ingle_config *config, struct ingle_callbacks callbacks,
                         struct ingle_plan *out, struct err *err)
{
    struct ingle_model *m;
    struct ingle_error error = {0};
    const struct ingle_engine_options o = engine_options(config, callbacks);
    if (ingle_model_open(&m, ingle_config_text(config, "model", 0), &callbacks, &error))
        return fail(err, &error);
    (void)ingle_engine_plan(m, &o, out, &error);
    ingle_model_close(m);
    return fail(err, &error);
}

/* Two replicas of one name answer for each other's ids: seen where they share a store. */
static void claim_name(struct server *s)
{
    const struct serve *v = &s->serve;
    const struct report_sink sink = {.report = v->callbacks.report, .arg = v->callbacks.arg};
    const char *store = ingle_config_text(v->config, "store", 0);
    bool taken = false;
    if (v->replica && store)
        s->claim = replica_claim(store, v->replica, &taken);
    if (taken)
        report(&sink, INGLE_REPORT_WARN, "replica", v->replica,
               "another server that uses the store '%s' has this name, too (--replica): each needs "
               "one of its own, as ids of answers end in it",
               store);
}

static ingle_status load(struct server *s, struct err *err)
{
    struct serve *v = &s->serve;
    struct ingle_error error = {0};
    const struct ingle_engine_options eo = engine_options(v->config, v->callbacks);
    const struct ingle_scheduler_options so = {
        .max_running = eo.n_sessions,
        .max_waiting = (int64_t)ingle_config_number(v->config, "max-waiting"),
        .max_waiting_tokens = (int64_t)ingle_config_number(v->config, "max-waiting-tokens"),
    };
    ingle_model_info(v->model, &v->info);
    if (ingle_engine_open(&v->engine, v->model, &eo, &error) ||
        ingle_scheduler_open(&v->scheduler, v->engine, &so, &error))
        return fail(err, &error);
    ingle_engine_info(v->engine, &v->engine_info);
    snprintf(s->fingerprint, sizeof s->fingerprint, "b%s-%08llx", ingle_version(),
             (unsigned long long)(v->engine_info.identity & 0xFFFFFFFFu));
    v->fingerprint = s->fingerprint;
    claim_name(s);
    const ingle_status st = open_answers(s, err);
    if (st)
        return st;
    atomic_store(&s->serve.loaded, clock_now());
    atomic_store(&s->serve.phase, SERVE_READY);
    return INGLE_OK;
}

ingle_status server_load(struct server *s, struct err *err)
{
    ingle_status st = s->fetch ? s->fetch(s->fetch_arg, err) : INGLE_OK;
    if (!st && s->fetch) {
        name_model(s, s->model_id[1]);
        st = open_model(s, err);
    }
    return st ? st : load(s, err);
}

void server_set_away(struct server *s, bool away) { atomic_store(&s->serve.away, away); }

void server_set_lingering(struct server *s)
{
    atomic_store(&s->serve.lingering, true);
    http_let_go(s->serve.http);
}

bool server_renew_keys(struct server *s) { return address_renew_keys(&s->address); }

void server_drain(struct server *s)
{
    const uint64_t end = serve_close_address(&s->serve);
    if (s->guard)
        guard_pardon(s->guard);
    http_wait(s->serve.http, false, end);
    /* Those that are left get the error of their dialect, and a moment to take it. */
    answer_stop(s->serve.answers);
    http_hurry(s->serve.http);
    http_wait(s->serve.http, false, clock_now() + SERVE_LAST_NS);
}

void server_close(struct server *s)
{
    if (!s)
        return;
    /* The scheduler first: it ends the running answers in their own words. */
    answer_stop(s->serve.answers);
    scrape_close(s->scrape);
    if (s->serve.http)
        http_stop_handlers(s->serve.http); /* none of them meets a closed scheduler */
    slots_close(s->serve.slots);
    ingle_scheduler_close(s->serve.scheduler);
    http_close(s->serve.http);
    answer_close(s->serve.answers);
    media_gate_free(s->media_gate);
    ingle_engine_close(s->serve.engine);
    ingle_model_close(s->serve.model);
    responses_store_free(s->serve.responses);
    streams_close(s->serve.streams);
    tape_close_all(s->serve.tapes);
    json_object_put(s->serve.codex_model);
    metrics_close(s->serve.metrics);
    guard_close(s->guard);
    address_close(&s->address);
    if (s->claim >= 0)
        (void)close(s->claim);
    mem_free(s);
}

void server_describe(const struct server *s, struct server_info *out)
{
    struct http_counters now = {0};
    if (s->serve.http)
        http_counters(s->serve.http, &now);
    *out = (struct server_info){
        .model = s->serve.model_id,
        .n_ctx = s->serve.engine_info.n_ctx,
        .parallel = parallel(s->serve.config),
        .weight_bytes = s->serve.engine_info.weight_bytes,
        .kv_bytes = s->serve.engine_info.kv_budget_bytes,
        .n_running = now.n_exchanges,
    };
    out->metrics_port = s->scrape ? scrape_port(s->scrape) : 0;
    address_describe(&s->address, s->serve.http, out);
}

bool server_alive(struct server *s) { return fleet_lives(&s->serve); }
