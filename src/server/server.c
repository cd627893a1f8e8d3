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
#include "server/answer.h"
#include "server/auth.h"
#include "server/guard.h"
#include "server/metrics.h"
#include "server/responses/responses.h"
#include "server/serve.h"
#include "server/slots.h"
#include "server/streams.h"
#include "server/tape.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { PARALLEL = 4, LAST_WORDS_S = 2, ALLOW = 64 };

struct server {
    struct serve serve; /* first: endpoints get it */
    const char *host[8];
    int n_hosts;
    const char *unix_path;
    const int *listener; /* [n_listeners], of server_open()'s caller; there alone */
    int n_listeners;
    char handed[HTTP_NAME]; /* the address of the first one, or "" */
    char model_id[128], fingerprint[64];
    char *tls_cert, *tls_key;
    struct guard *guard; /* NULL: none */
};

/* ---- the way of a request ---- */

struct route {
    const char *method, *path;
    serve_route_fn *fn;
    int flags;
};

static const struct route routes[] = {
#define ROUTE(method, path, fn, flags) {method, path, fn, flags},
#include "server/routes.inc"
#undef ROUTE
};

/* "{}" is one segment of the path; rest: the last one is all that is left. */
static bool path_matches(const char *pattern, const char *path, bool rest)
{
    while (*pattern && *path) {
        if (rest && strcmp(pattern, "{}") == 0)
            return true;
        if (strncmp(pattern, "{}", 2) == 0) {
            const size_t n = strcspn(path, "/");
            if (!n)
                return false;
            path += n;
            pattern += 2;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return !*pattern && !*path;
}

/* A path that stands there as it is comes before one with "{}". */
static bool is_literal(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (strcmp(routes[i].path, path) == 0)
            return true;
    return false;
}

static bool serves(const struct route *r, const char *path, bool literal)
{
    return literal ? strcmp(r->path, path) == 0 : path_matches(r->path, path, r->flags & SERVE_REST);
}

/* The endpoint; NULL and whether the path exists with another method. */
static const struct route *find_route(const struct http_request *rq, bool *other_method)
{
    const char *path = serve_path(rq);
    const char *method = strcmp(rq->method, "HEAD") == 0 ? "GET" : rq->method;
    const bool literal = is_literal(path);
    *other_method = false;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!serves(&routes[i], path, literal))
            continue;
        if (strcmp(routes[i].method, method) == 0)
            return &routes[i];
        *other_method = true;
    }
    return NULL;
}

static void add_standard_headers(struct http_exchange *x, const struct http_request *rq)
{
    http_header(x, "X-Request-Id", rq->id);
    http_header(x, "Request-Id", rq->id);
    http_header(x, "Cache-Control", "no-cache, no-transform");
    http_header(x, "X-Accel-Buffering", "no");
    http_header(x, "X-Content-Type-Options", "nosniff");
}

/* Requests that a web page of somebody else sends are refused, whatever they ask. */
static bool browser_may(const struct server *s, struct http_exchange *x,
                        const struct http_request *rq)
{
    const struct serve_error no = {.status = 403};
    const char *host = http_request_header(rq, "host");
    const char *origin = http_request_header(rq, "origin");
    const char *site = http_request_header(rq, "sec-fetch-site");
    if (!auth_host(s->serve.auth, host)) {
        serve_fail(x, rq, &no, "host '%s' is not allowed: see --allowed-host", host);
        return false;
    }
    /* A preflight is answered: that the answer names no origin is the refusal. */
    if (origin && strcmp(rq->method, "OPTIONS") != 0 && !auth_origin(s->serve.auth, origin, host)) {
        serve_fail(x, rq, &no, "origin '%s' is not allowed: see --cors-origins", origin);
        return false;
    }
    if (!origin && site && strcmp(site, "cross-site") == 0) {
        serve_fail(x, rq, &no, "requests from other web sites are not allowed");
        return false;
    }
    const char *cors = auth_cors(s->serve.auth, origin);
    if (cors) {
        http_header(x, "Access-Control-Allow-Origin", cors);
        http_header(x, "Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After");
        http_header(x, "Vary", "Origin");
    }
    return true;
}

/* "GET, HEAD, OPTIONS": what the path takes. */
static void list_methods(const struct http_request *rq, char out[ALLOW])
{
    const bool literal = is_literal(serve_path(rq));
    out[0] = 0;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const size_t n = strlen(out);
        if (serves(&routes[i], serve_path(rq), literal) && !strstr(out, routes[i].method))
            snprintf(out + n, (size_t)ALLOW - n, "%s%s", routes[i].method,
                     strcmp(routes[i].method, "GET") == 0 ? ", HEAD, " : ", ");
    }
    const size_t n = strlen(out);
    snprintf(out + n, (size_t)ALLOW - n, "OPTIONS");
}

/* OPTIONS: what a browser asks before it sends the real request. */
static void preflight(const struct server *s, struct http_exchange *x,
                      const struct http_request *rq)
{
    const char *asked = http_request_header(rq, "access-control-request-headers");
    char allow[ALLOW];
    list_methods(rq, allow);
    if (auth_cors(s->serve.auth, http_request_header(rq, "origin"))) {
        http_header(x, "Access-Control-Allow-Methods", allow);
        http_header(x, "Access-Control-Allow-Headers",
                    asked ? asked : "Authorization, Content-Type, X-Api-Key");
        http_header(x, "Access-Control-Max-Age", "600");
    }
    http_header(x, "Allow", allow);
    http_reply(x, 200, "text/plain", "", 0);
}

static void unavailable(struct http_exchange *x, const struct http_request *rq,
                        enum serve_phase phase)
{
    const struct serve_error e = {.status = 503, .retry_seconds = phase == SERVE_LOADING ? 2 : 5};
    serve_fail(x, rq, &e, phase == SERVE_LOADING ? "Loading model" : "the server is stopping");
}

static void wrong_method(struct http_exchange *x, const struct http_request *rq)
{
    char allow[ALLOW];
    list_methods(rq, allow);
    http_header(x, "Allow", allow);
    serve_fail(x, rq, &(struct serve_error){.status = 405}, "%s is not what %s takes", rq->method,
               rq->path);
}

/* The headers are there: everything that can be refused without the body is. */
static void admit(void *arg, struct http_exchange *x, const struct http_request *rq,
                  const char **user)
{
    struct server *s = arg;
    bool other_method;
    add_standard_headers(x, rq);
    if (!browser_may(s, x, rq))
        return;
    if (strcmp(rq->method, "OPTIONS") == 0) {
        preflight(s, x, rq);
        return;
    }
    const struct route *r = find_route(rq, &other_method);
    if (auth_n_keys(s->serve.auth)) {
        *user = auth_key(s->serve.auth, http_request_header(rq, "authorization"),
                         http_request_header(rq, "x-api-key"));
        if (!*user && !(r && (r->flags & SERVE_OPEN))) {
            http_header(x, "WWW-Authenticate", "Bearer");
            serve_fail(x, rq, &(struct serve_error){.status = 401, .code = "invalid_api_key"},
                       "Invalid API Key");
            return;
        }
    }
    const enum serve_phase phase = serve_phase(&s->serve);
    if (!r && other_method)
        wrong_method(x, rq);
    else if (!r)
        serve_fail(x, rq, &(struct serve_error){.status = 404, .code = "unknown_url"},
                   "there is no endpoint %s %s", rq->method, rq->path);
    else if (phase == SERVE_LOADING && !(r->flags & SERVE_EARLY))
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
    const int place = guard_enter(s->guard, rq->user ? rq->user : "", rq->path, rq->body, rq->n_body);
    if (place == -2) {
        serve_fail(x, rq, &(struct serve_error){.status = 500, .no_retry = true},
                   "the server died twice while it computed this request; it may be tried again an hour later");
        return false;
    }
    http_tag(x, place + 1);
    return true;
}

static void over(void *arg, int tag) { guard_leave(((struct server *)arg)->guard, tag - 1); }

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
    const struct route *r = find_route(rq, &other_method);
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

static ingle_status too_open(const struct server *s, const char *what, const char *address,
                             struct err *err)
{
    if (auth_n_keys(s->serve.auth) || ingle_config_flag(s->serve.config, "insecure-no-auth"))
        return INGLE_OK;
    return err_set(err, INGLE_ARG,
                   "'%s%s' is reachable from other machines, and there is no key: give --api-key-file, or "
                   "--insecure-no-auth if that is what you want", what, address);
}

static ingle_status read_listeners(struct server *s, struct err *err)
{
    ingle_status st = INGLE_OK;
    for (int i = 0; i < s->n_listeners && !st; i++) {
        char name[HTTP_NAME];
        bool local;
        st = http_describe_listener(s->listener[i], name, sizeof name, &local, err);
        if (!st && !local)
            st = too_open(s, "", name, err);
        if (!st && !i)
            memcpy(s->handed, name, sizeof name);
    }
    return st;
}

static ingle_status read_hosts(struct server *s, struct err *err)
{
    const struct ingle_config *c = s->serve.config;
    const char *host;
    for (size_t i = 0; (host = ingle_config_text(c, "host", i)); i++) {
        if (strncmp(host, "unix:", 5) == 0) {
            s->unix_path = host + 5;
            if (!*s->unix_path)
                return err_set(err, INGLE_ARG, "'--host unix:' needs a path after the colon");
            continue;
        }
        if (s->n_hosts >= (int)(sizeof s->host / sizeof *s->host) - 1)
            return err_set(err, INGLE_LIMIT, "option '--host' is given more than 7 times");
        bool local;
        ingle_status st = http_host_is_local(host, &local, err);
        if (!st && !local)
            st = too_open(s, "--host ", host, err);
        if (st)
            return st;
        s->host[s->n_hosts++] = host;
    }
    return INGLE_OK;
}

static ingle_status read_access(struct server *s, struct err *err)
{
    const struct ingle_config *c = s->serve.config;
    const char *keys = ingle_config_text(c, "api-key-file", 0);
    const char *origins = ingle_config_text(c, "cors-origins", 0), *name;
    ingle_status st = auth_open(&s->serve.auth, err);
    if (!st && keys)
        st = auth_add_keys(s->serve.auth, keys, err);
    for (size_t i = 0; !st && (name = ingle_config_text(c, "api-key", i)); i++)
        st = auth_add_key(s->serve.auth, name, err);
    if (!st && origins)
        st = auth_add_origins(s->serve.auth, origins, err);
    for (size_t i = 0; !st && (name = ingle_config_text(c, "max-priority", i)); i++)
        st = auth_add_priority(s->serve.auth, name, err);
    for (size_t i = 0; !st && (name = ingle_config_text(c, "allowed-host", i)); i++)
        st = auth_add_host(s->serve.auth, name, err);
    if (!st)
        st = s->n_listeners ? read_listeners(s, err) : read_hosts(s, err);
    return st;
}

static ingle_status read_tls(struct server *s, struct err *err)
{
    const char *cert = ingle_config_text(s->serve.config, "tls-cert", 0);
    const char *key = ingle_config_text(s->serve.config, "tls-key", 0);
    size_t n;
    if (!cert && !key)
        return INGLE_OK;
    if (!cert || !key)
        return err_set(err, INGLE_ARG, "'--tls-cert' and '--tls-key' must be given together");
    ingle_status st = file_slurp(cert, 1 << 20, &s->tls_cert, &n, err);
    if (!st)
        st = file_slurp(key, 1 << 20, &s->tls_key, &n, err);
    if (!st && !strstr(s->tls_cert, "-----BEGIN CERTIFICATE-----"))
        st = err_set(err, INGLE_FORMAT, "--tls-cert '%s' has no certificate in PEM form", cert);
    if (!st && !strstr(s->tls_key, "PRIVATE KEY-----"))
        st = err_set(err, INGLE_FORMAT, "--tls-key '%s' has no private key in PEM form", key);
    return st;
}

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

static int parallel(const struct server *s)
{
    const int n = (int)ingle_config_number(s->serve.config, "parallel");
    return n ? n : PARALLEL;
}

/* The name of the model: what was asked for, else its file's without folder and ending. */
static void name_model(struct server *s)
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
        snprintf(s->model_id, sizeof s->model_id, "%.*s", (int)(n - from), path + from);
    } else {
        snprintf(s->model_id, sizeof s->model_id, "%s", name ? name : "nano-gemma4");
    }
    s->serve.model_id = s->model_id;
}

/* As many descriptors as the connections may need, if the system grants them. */
static void raise_descriptors(rlim_t want)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur >= want)
        return;
    l.rlim_cur = l.rlim_max == RLIM_INFINITY || l.rlim_max > want ? want : l.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &l);
}

static ingle_status start_http(struct server *s, struct err *err)
{
    const struct ingle_config *c = s->serve.config;
    const struct http_options o = {
        .listener = s->listener,
        .n_listeners = s->n_listeners,
        .host = s->host,
        .n_host = s->n_hosts ? s->n_hosts : s->unix_path ? -1 : 0,
        .port = (int)ingle_config_number(c, "port"),
        .unix_path = s->unix_path,
        .tls_cert = s->tls_cert,
        .tls_key = s->tls_key,
        .max_connections = (int)ingle_config_number(c, "max-connections"),
        .max_per_address = (int)ingle_config_number(c, "max-per-address"),
        .header_bytes = (size_t)ingle_config_number(c, "max-header"),
        .body_bytes = (size_t)ingle_config_number(c, "max-body"),
        .bodies_bytes = (size_t)ingle_config_number(c, "max-bodies"),
        .replies_bytes = (size_t)ingle_config_number(c, "max-replies"),
        .max_reading = (int)ingle_config_number(c, "max-reading"),
        .reading_bytes = (size_t)ingle_config_number(c, "max-reading-bytes"),
        .ring_bytes = (size_t)ingle_config_number(c, "max-unread"),
        .header_seconds = ingle_config_number(c, "header-timeout"),
        .body_seconds = ingle_config_number(c, "body-timeout"),
        .idle_seconds = ingle_config_number(c, "idle-timeout"),
        .stall_seconds = ingle_config_number(c, "stall-timeout"),
        .request_seconds = ingle_config_number(c, "max-request-seconds"),
        .half_close_ok = ingle_config_flag(c, "half-close-ok"),
        .admit = admit,
        .handle = handle,
        .refuse = refuse,
        .over = over,
        .tick = tick,
        .arg = s,
    };
    raise_descriptors((rlim_t)o.max_connections + 128);
    return http_open(&s->serve.http, &o, err);
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
    const struct report_sink sink = {.report = s->serve.callbacks.report, .arg = s->serve.callbacks.arg};
    const char *directory = ingle_config_text(s->serve.config, "state-dir", 0);
    struct err why;
    const ingle_status st = directory ? guard_open(&s->guard, directory, &why) : INGLE_OK;
    if (st == INGLE_IO)
        report(&sink, INGLE_REPORT_WARN, "guard", directory, "requests that crash the server are not counted: %s", why.msg);
    else if (st)
        return err_set(err, st, "--state-dir: %s", why.msg);
    return INGLE_OK;
}

static ingle_status told(struct err *err, const struct ingle_error *error)
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
        return told(err, &error);
    if (!ingle_model_open(&v->model, ingle_config_text(v->config, "model", 0), &v->callbacks, &error))
        (void)ingle_config_check(v->config, v->model, &error);
    return told(err, &error);
}

ingle_status server_open(struct server **out, const struct server_options *o, struct err *err)
{
    struct server *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for the server");
    s->serve.config = o->config;
    s->serve.callbacks = o->callbacks;
    s->serve.created = (int64_t)time(NULL);
    s->listener = o->listener;
    s->n_listeners = o->n_listeners;
    name_model(s);
    ingle_status st = responses_store_create(
        &s->serve.responses, (size_t)ingle_config_number(o->config, "max-responses"),
        (size_t)ingle_config_number(o->config, "max-responses-bytes"), err);
    if (!st)
        st = open_tapes(s, err);
    if (!st)
        st = metrics_open(&s->serve.metrics, err);
    if (!st)
        st = read_access(s, err);
    if (!st)
        st = read_tls(s, err);
    if (!st)
        st = read_codex_model(s, err);
    const char *slots = ingle_config_text(o->config, "slot-save-path", 0);
    if (!st && slots)
        st = slots_open(&s->serve.slots, slots, parallel(s), err);
    if (!st)
        st = open_guard(s, err);
    if (!st)
        st = open_model(s, err);
    if (!st)
        st = start_http(s, err);
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
    *known = s->model_id;
    return serve_knows(&s->serve, name);
}

static void keep(void *arg, const struct chat_request *r, const struct answer_tokens *t)
{
    slots_keep(((struct server *)arg)->serve.slots, r->id_slot, r->user.n ? r->user.at : NULL, t);
}

static void observe(void *arg, const struct answer_record *r)
{
    metrics_observe(((struct server *)arg)->serve.metrics, r);
}

static ingle_status open_answers(struct server *s, struct err *err)
{
    const struct serve *v = &s->serve;
    struct answer_options o = {
        .model = v->model,
        .scheduler = v->scheduler,
        .n_ctx = v->engine_info.n_ctx,
        .n_vocab = v->engine_info.n_vocab,
        .max_running = parallel(s),
        .name = v->model_id,
        .fingerprint = v->fingerprint,
        .seeded = ingle_config_is_set(v->config, "seed"),
        .thinking = ingle_config_flag(v->config, "think"),
        .ignore_end = ingle_config_flag(v->config, "ignore-eos"),
        .developer_own = strcmp(ingle_config_text(v->config, "developer-role", 0), "own") == 0,
        .max_tokens = (int64_t)ingle_config_number(v->config, "predict"),
        .max_logprobs = (int64_t)ingle_config_number(v->config, "max-logprobs"),
        .any_top = ingle_config_flag(v->config, "many-logprobs"),
        .drop_unsupported = strcmp(ingle_config_text(v->config, "schema-unsupported", 0), "drop") == 0,
        .always_usage = ingle_config_flag(v->config, "always-usage"),
        .verbose = ingle_config_flag(v->config, "verbose-replies"),
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

ingle_status server_load(struct server *s, struct err *err)
{
    struct serve *v = &s->serve;
    struct ingle_error error = {0};
    struct ingle_engine_options eo = {.callbacks = v->callbacks};
    ingle_config_engine(v->config, &eo);
    eo.n_sessions = parallel(s);
    eo.max_logits = num_max(16, 2 * eo.n_sessions);
    const struct ingle_scheduler_options so = {
        .max_running = eo.n_sessions,
        .max_waiting = (int64_t)ingle_config_number(v->config, "max-waiting"),
        .max_waiting_tokens = (int64_t)ingle_config_number(v->config, "max-waiting-tokens"),
    };
    ingle_model_info(v->model, &v->info);
    if (ingle_engine_open(&v->engine, v->model, &eo, &error) ||
        ingle_scheduler_open(&v->scheduler, v->engine, &so, &error))
        return told(err, &error);
    ingle_engine_info(v->engine, &v->engine_info);
    snprintf(s->fingerprint, sizeof s->fingerprint, "b%s-%08llx", ingle_version(),
             (unsigned long long)(v->engine_info.identity & 0xFFFFFFFFu));
    v->fingerprint = s->fingerprint;
    const ingle_status st = open_answers(s, err);
    if (st)
        return st;
    atomic_store(&s->serve.phase, SERVE_READY);
    return INGLE_OK;
}

/* Until every request has its answer, at most so long. */
static void wait_for_answers(const struct server *s, double seconds)
{
    const uint64_t start = clock_now();
    struct http_counters n;
    for (;;) {
        http_counters(s->serve.http, &n);
        if (!n.n_exchanges || (double)(clock_now() - start) > seconds * 1e9)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

void server_drain(struct server *s)
{
    atomic_store(&s->serve.phase, SERVE_DRAINING);
    if (s->guard)
        guard_pardon(s->guard);
    http_close_listener(s->serve.http);
    wait_for_answers(s, ingle_config_number(s->serve.config, "drain"));
    /* Those that are left get the error of their dialect, and a moment to take it. */
    answer_stop(s->serve.answers);
    http_hurry(s->serve.http);
    wait_for_answers(s, LAST_WORDS_S);
}

void server_close(struct server *s)
{
    if (!s)
        return;
    /* The scheduler first: it ends the running answers in their own words. */
    answer_stop(s->serve.answers);
    if (s->serve.http)
        http_stop_handlers(s->serve.http); /* none of them meets a closed scheduler */
    slots_close(s->serve.slots);
    ingle_scheduler_close(s->serve.scheduler);
    http_close(s->serve.http);
    answer_close(s->serve.answers);
    ingle_engine_close(s->serve.engine);
    ingle_model_close(s->serve.model);
    responses_store_free(s->serve.responses);
    streams_close(s->serve.streams);
    tape_close_all(s->serve.tapes);
    json_object_put(s->serve.codex_model);
    metrics_close(s->serve.metrics);
    guard_close(s->guard);
    auth_close(s->serve.auth);
    mem_free(s->tls_cert);
    if (s->tls_key)
        memset(s->tls_key, 0, strlen(s->tls_key));
    mem_free(s->tls_key);
    mem_free(s);
}

void server_describe(const struct server *s, struct server_info *out)
{
    const char *host = s->n_hosts ? s->host[0] : "127.0.0.1";
    const bool v6 = strchr(host, ':') != NULL;
    struct http_counters now = {0};
    if (s->serve.http)
        http_counters(s->serve.http, &now);
    *out = (struct server_info){
        .model = s->serve.model_id,
        .n_ctx = s->serve.engine_info.n_ctx,
        .parallel = parallel(s),
        .weight_bytes = s->serve.engine_info.weight_bytes,
        .kv_bytes = s->serve.engine_info.kv_budget_bytes,
        .n_keys = auth_n_keys(s->serve.auth),
        .n_running = now.n_exchanges,
        .more = s->host + 1,
        .n_more = s->n_hosts > 1 ? (size_t)s->n_hosts - 1 : 0,
        .more_path = s->n_hosts ? s->unix_path : NULL,
    };
    if (s->handed[0])
        snprintf(out->url, sizeof out->url, "%s%s", strncmp(s->handed, "unix:", 5) == 0 ? ""
                 : s->tls_cert ? "https://" : "http://", s->handed);
    else if (s->unix_path && !s->n_hosts)
        snprintf(out->url, sizeof out->url, "unix:%s", s->unix_path);
    else
        snprintf(out->url, sizeof out->url, "http%s://%s%s%s:%d", s->tls_cert ? "s" : "",
                 v6 ? "[" : "", host, v6 ? "]" : "", http_port(s->serve.http));
}

bool server_alive(struct server *s, double seconds)
{
    struct ingle_scheduler_status now;
    if (serve_phase(&s->serve) == SERVE_LOADING || !s->serve.scheduler)
        return true;
    (void)ingle_scheduler_status(s->serve.scheduler, &now, NULL, 0);
    return now.since_step_seconds < seconds;
}
