/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests as they come: those for the router itself are answered here, the others become jobs for
 * a model.
 */
#define _POSIX_C_SOURCE 200809L
#include "router/inner.h"
#include "router/job.h"
#include "router/parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/auth.h"
#include "server/fields.h"
#include "server/write.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum what {
    TO_MODEL, /* the server's own routes */
    HEALTH,
    PROBE, /* the server's own answer */
    PAGE,
    PAGE_FILE,
    OPENAPI,
    VERSION,
    TAGS,
    RUNNING,
    MODELS,
    EVENTS,
    MODEL,
    LOAD,
    UNLOAD,
    PULL,
    PROPS,
    METRICS
};

static const struct route routes[] = {
#define ROUTE(method, path, what, flags) {method, path, NULL, flags, what},
#include "router/routes.inc"
#undef ROUTE
};

static void tables(struct route_table out[2])
{
    out[0] = (struct route_table){routes, sizeof routes / sizeof *routes};
    out[1] = route_table();
}

/* Whether the files and folders are to be read again. */
static bool wants_reload(const struct http_request *rq)
{
    const char *reload = http_request_query(rq, "reload");
    return reload && strcmp(reload, "0") != 0 && strcmp(serve_path(rq), "/models") == 0;
}

void router_admit(void *arg, struct http_exchange *x, const struct http_request *rq,
                  const char **user)
{
    struct router *r = arg;
    struct route_table table[2];
    tables(table);
    const struct route *found = address_admit(&r->address, x, rq, table, 2, user);
    if (found && serve_phase(&r->serve) == SERVE_DRAINING && strcmp(found->method, "POST") == 0)
        serve_fail(x, rq, &(struct serve_error){.status = 503, .retry_seconds = 5},
                   "the server is stopping");
    else if (found && wants_reload(rq))
        http_takes_long(x);
}

void router_refuse(void *arg, struct http_exchange *x, const struct http_request *rq, int status,
                   const char *reason)
{
    (void)arg;
    http_header(x, "X-Request-Id", rq->id);
    serve_fail(x, rq, &(struct serve_error){.status = status}, "%s", reason);
}

/* ---- which model ---- */

/* "a, b, c" of all models; r->lock is held. */
static void list_names(const struct router *r, char *out, size_t n)
{
    size_t k = 0;
    out[0] = 0;
    for (const struct router_model *m = r->models; m && k + 4 < n; m = m->next)
        if (!m->removed)
            k += (size_t)snprintf(out + k, n - k, "%s%.80s", k ? ", " : "", m->id);
}

/* Of the ways that ask a stored thing by its own name: who has it is found out. */
static bool is_stored(const struct http_request *rq)
{
    const char *path = serve_path(rq);
    return strncmp(path, "/responses/", 11) == 0
               ? strcmp(path, "/responses/input_tokens") != 0 &&
                     strcmp(path, "/responses/compact") != 0
               : strncmp(path, "/conversations/", 15) == 0 || strcmp(path, "/stream") == 0 ||
                     strcmp(path, "/chat/completions/control") == 0;
}

/* The loaded models, the one used last first. */
static bool put_candidates(const struct router *r, struct router_job *j)
{
    size_t n = 0;
    for (const struct router_model *m = r->models; m; m = m->next)
        n += m->state == ROUTER_LOADED;
    j->candidate = mem_calloc(n ? n : 1, sizeof *j->candidate);
    if (!j->candidate)
        return false;
    int64_t before = INT64_MAX;
    uint32_t last = 0;
    while (j->n_candidates < n) {
        const struct router_model *best = NULL;
        for (const struct router_model *m = r->models; m; m = m->next) {
            const bool later =
                m->last_used_ms < before || (m->last_used_ms == before && m->number > last);
            if (m->state == ROUTER_LOADED && later &&
                (!best || m->last_used_ms > best->last_used_ms ||
                 (m->last_used_ms == best->last_used_ms && m->number < best->number)))
                best = m;
        }
        if (!best)
            break;
        j->candidate[j->n_candidates++] = best->number;
        before = best->last_used_ms;
        last = best->number;
    }
    return true;
}

/* name: as asked, or NULL.  NULL: it is answered, with r->lock held. */
static struct router_model *choose(struct router *r, struct http_exchange *x,
                                   const struct http_request *rq, const char *name)
{
    char names[400];
    struct router_model *m = NULL;
    const bool any = !name || !*name || strcmp(name, "any") == 0;
    if (!any)
        m = router_by_name(r, name);
    else
        m = router_any(r);
    if (!m && any && (!name || !*name) && r->models && !r->models->next)
        m = r->models;
    if (m)
        return m;
    list_names(r, names, sizeof names);
    if (any)
        serve_fail(x, rq, &(struct serve_error){.status = 400, .param = "model"},
                   "no model is currently resident in memory%s: name one of %s",
                   name && *name ? "" : ", and the request names none", names);
    else
        serve_fail(x, rq,
                   &(struct serve_error){.status = 404,
                                         .type = "invalid_request_error",
                                         .code = "model_not_found",
                                         .param = "model"},
                   "there is no model '%s': this server has %s", name, names);
    return NULL;
}

/* ---- a request as a job ---- */

static void encode(struct str *out, const char *text, const char *keep)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        const bool plain = (*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') ||
                           (*p >= 'a' && *p <= 'z') || strchr(keep, *p);
        if (plain)
            str_addc(out, (char)*p);
        else
            str_addf(out, "%%%02X", *p);
    }
}

struct target {
    struct str s;
    size_t n;
};

static void add_query(void *arg, const char *name, const char *value)
{
    struct target *t = arg;
    if (strcmp(name, "autoload") == 0)
        return;
    str_addc(&t->s, t->n++ ? '&' : '?');
    encode(&t->s, name, "-._~");
    str_addc(&t->s, '=');
    encode(&t->s, value, "-._~");
}

/* What belongs to this connection, or was checked here. */
static bool stays_here(const char *name)
{
    static const char *const word[] = {
        "host",    "connection",        "keep-alive", "te",
        "trailer", "transfer-encoding", "upgrade",    "content-length",
        "expect",  "authorization",     "x-api-key",  "x-ingle-user",
        "origin",  "referer",           "cookie",     "accept-encoding",
    };
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (strcasecmp(word[i], name) == 0)
            return true;
    return strncasecmp(name, "proxy-", 6) == 0 || strncasecmp(name, "sec-", 4) == 0 ||
           strncasecmp(name, "access-control-", 15) == 0 ||
           strncasecmp(name, "x-forwarded-", 12) == 0;
}

struct headers {
    struct router_job *job;
    bool ok;
};

static void put_header(struct headers *h, const char *name, const char *value)
{
    struct str s;
    str_init(&s);
    /* a ';' is curl's way to say "with an empty value" */
    str_addf(&s, *value ? "%s: %s" : "%s;", name, value);
    struct curl_slist *list = str_ok(&s) ? curl_slist_append(h->job->headers, s.at) : NULL;
    str_release(&s);
    h->ok &= list != NULL;
    if (list)
        h->job->headers = list;
}

static void add_header(void *arg, const char *name, const char *value)
{
    if (!stays_here(name))
        put_header(arg, name, value);
}

static bool copy_request(struct router_job *j, const struct http_request *rq)
{
    struct target t = {.n = 0};
    struct headers h = {j, true};
    j->rq = (struct http_request){.method = rq->method,
                                  .path = mem_strdup(rq->path),
                                  .id = rq->id,
                                  .body = "",
                                  .user = "",
                                  .exchange = rq->exchange};
    str_init(&t.s);
    encode(&t.s, rq->path, "/-._~:@");
    http_request_each(rq, true, add_query, &t);
    j->target = str_detach(&t.s);
    j->user = mem_strdup(rq->user);
    http_request_each(rq, false, add_header, &h);
    struct curl_slist *expect = curl_slist_append(j->headers, "Expect:");
    h.ok &= expect != NULL;
    if (expect)
        j->headers = expect;
    if (*rq->user)
        put_header(&h, "X-Ingle-User", rq->user);
    if (rq->n_body) {
        j->body = mem_alloc(rq->n_body);
        if (j->body)
            memcpy(j->body, rq->body, rq->n_body);
        j->n_body = j->body ? rq->n_body : 0;
        h.ok &= j->body != NULL;
    }
    return j->rq.path && j->target && j->user && h.ok;
}

/* Whether the answer will be a stream of events, into which comments may be written. */
static bool wants_events(const struct http_request *rq, struct json_object *body)
{
    static const char *const path[] = {"/chat/completions", "/completions", "/completion",
                                       "/messages", "/responses"};
    struct json_object *v = body ? request_get(body, "stream") : NULL;
    bool found = false;
    for (size_t i = 0; i < sizeof path / sizeof *path; i++)
        found |= strcmp(serve_path(rq), path[i]) == 0;
    return found && v && json_object_is_type(v, json_type_boolean) && json_object_get_boolean(v);
}

static void submit(struct router *r, struct router_job *j, struct router_model *m)
{
    j->model = m;
    router_jobs_add(&r->incoming, j);
    r->n_requests++;
}

/* A name from a body; NULL: it is none, or there is a fault. */
static const char *name_of(struct json_object *v, const char *member, struct fault *f)
{
    if (!v || !request_is_text(v))
        return NULL;
    const char *name = json_object_get_string(v);
    const size_t n = (size_t)json_object_get_string_len(v);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7F) {
            request_fault(f, FAULT_REQUEST, member,
                          "'%s' has the byte 0x%02x, which no name of a model has", member,
                          (unsigned char)name[i]);
            return NULL;
        }
    return name;
}

/* With r->lock held: the job goes to its model, or is answered. */
static void dispatch(struct router *r, struct router_job *j, const struct http_request *rq,
                     const char *name, bool autoload)
{
    struct router_model *m = NULL;
    router_children_check(r);
    if ((!name || !*name) && is_stored(rq)) {
        if (!put_candidates(r, j) || !j->n_candidates) {
            serve_fail(j->x, rq, &(struct serve_error){.status = 404},
                       "no model is loaded that could have this");
            return;
        }
        m = router_by_number(r, j->candidate[j->at_candidate++]);
    } else {
        m = choose(r, j->x, rq, name);
    }
    if (!m)
        return;
    if (!autoload && (m->state != ROUTER_LOADED || m->child.ended)) {
        serve_fail(
            j->x, rq,
            &(struct serve_error){.status = 400, .code = "model_not_loaded", .param = "model"},
            "the model '%s' is not loaded, and requests do not load models here: POST /models/load "
            "does",
            m->id);
        return;
    }
    if (m->retry_at > clock_now() && m->state == ROUTER_UNLOADED) {
        const double wait = (double)(m->retry_at - clock_now()) * 1e-9;
        serve_fail(j->x, rq,
                   &(struct serve_error){
                       .status = 503, .code = "model_not_started", .retry_seconds = wait + 1},
                   "the model '%s' did not start %d times: %s", m->id, m->n_failures, m->words);
        return;
    }
    http_hold(j->x);
    router_job_watch(j, ingle_config_number(r->o.config, "keep-alive"));
    submit(r, j, m);
}

/* ---- Ollama's keep_alive ---- */

/* 0, or a text that says so: "0", "0s". */
static bool unloads_at_once(struct json_object *body)
{
    struct json_object *v = body ? request_get(body, "keep_alive") : NULL;
    if (!v || json_object_is_type(v, json_type_array) || json_object_is_type(v, json_type_object) ||
        json_object_is_type(v, json_type_boolean))
        return false;
    const char *text = json_object_get_string(v);
    if (request_is_text(v))
        return text[0] == '0' && !strpbrk(text, "123456789");
    const double seconds = json_object_get_double(v);
    return seconds <= 0 && seconds >= 0;
}

/* Nothing to answer: the request is about the model. */
static bool is_empty_request(const struct http_request *rq, struct json_object *body)
{
    const bool chat = strcmp(serve_path(rq), "/api/chat") == 0;
    struct json_object *v = request_get(body, chat ? "messages" : "prompt");
    if (!chat && strcmp(serve_path(rq), "/api/generate") != 0)
        return false;
    return !v || (chat ? json_object_is_type(v, json_type_array) && !json_object_array_length(v)
                       : request_is_text(v) && !*json_object_get_string(v));
}

static void reply_unloaded(struct http_exchange *x, const struct http_request *rq,
                           const char *model)
{
    char text[40];
    const time_t t = time(NULL);
    struct tm tm;
    struct str out;
    str_init(&out);
    write_open(&out, '{');
    write_member(&out, "model", model);
    if (gmtime_r(&t, &tm) && strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm))
        write_member(&out, "created_at", text);
    if (strcmp(serve_path(rq), "/api/chat") == 0) {
        write_key(&out, "message");
        write_open(&out, '{');
        write_member(&out, "role", "assistant");
        write_member(&out, "content", "");
        write_close(&out, '}');
    } else {
        write_member(&out, "response", "");
    }
    write_member_bool(&out, "done", true);
    write_member(&out, "done_reason", "unload");
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

/* The model ends when nobody has a request to it any more. */
static void let_go(struct router *r, struct http_exchange *x, const struct http_request *rq,
                   const char *name)
{
    pthread_mutex_lock(&r->lock);
    struct router_model *m = choose(r, x, rq, name);
    char *id = m ? mem_strdup(m->id) : NULL;
    if (m && m->state == ROUTER_SLEEPING)
        router_unload(r, m, ROUTER_UNLOADED, "keep_alive 0");
    else if (m)
        m->let_go = m->state == ROUTER_LOADED || m->state == ROUTER_LOADING;
    pthread_mutex_unlock(&r->lock);
    router_wake(r);
    if (id)
        reply_unloaded(x, rq, id);
    else if (m)
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
    mem_free(id);
}

static void pass_on(struct router *r, struct http_exchange *x, const struct http_request *rq)
{
    struct fault f = serve_watch(x);
    const char *name = http_request_query(rq, "model"), *asked = http_request_query(rq, "autoload");
    struct json_object *body = rq->n_body ? request_body(rq->body, rq->n_body, &f) : NULL, *v;
    const bool ollama = strncmp(serve_path(rq), "/api/", 5) == 0;
    if (body && (v = request_get(body, "model")) && request_is_text(v))
        name = name_of(v, "model", &f);
    else if (body && ollama && (v = request_get(body, "name")) && request_is_text(v))
        name = name_of(v, "name", &f);
    if (f.kind) { /* the way to a model is not known */
        serve_fail(x, rq,
                   &(struct serve_error){.status = f.status, .param = f.param[0] ? f.param : NULL},
                   "%s", f.message);
        json_object_put(body);
        return;
    }
    const bool at_once = ollama && unloads_at_once(body);
    if (at_once && is_empty_request(rq, body)) {
        let_go(r, x, rq, name);
        json_object_put(body);
        return;
    }
    struct router_job *j = mem_zalloc(sizeof *j);
    const bool autoload = asked ? strcmp(asked, "true") == 0 || strcmp(asked, "1") == 0
                                : !ingle_config_flag(r->o.config, "no-autoload");
    bool ok = j != NULL;
    if (j) {
        str_init(&j->head);
        str_init(&j->reply);
        j->router = r;
        j->x = x;
        j->arrived = clock_now();
        j->use = strcmp(rq->method, "POST") == 0;
        j->let_go = at_once;
        j->sse = wants_events(rq, body);
        ok = copy_request(j, rq);
    }
    if (ok) {
        pthread_mutex_lock(&r->lock);
        dispatch(r, j, rq, name, autoload);
        ok = j->model != NULL;
        pthread_mutex_unlock(&r->lock);
        router_wake(r);
    } else {
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
    }
    if (!ok && j)
        router_job_free(j);
    json_object_put(body);
}

/* ---- the router's own ---- */

static void reply_text(struct http_exchange *x, const struct http_request *rq, const char *key,
                       bool value)
{
    struct str out;
    str_init(&out);
    write_open(&out, '{');
    if (value)
        write_member_bool(&out, key, true);
    else
        write_member(&out, key, "ok");
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

static void health(struct router *r, struct http_exchange *x, const struct http_request *rq)
{
    if (serve_phase(&r->serve) == SERVE_DRAINING)
        serve_fail(x, rq, &(struct serve_error){.status = 503, .retry_seconds = 2},
                   "the server is stopping");
    else
        reply_text(x, rq, "status", false);
}

static bool is_of_other(const struct router_job *j, const struct router_model *m, const char *user)
{
    return j->x && j->model == m && strcmp(j->user, user) != 0;
}

/* Whether requests of other keys run or wait for it. */
static bool serves_others(const struct router *r, const struct router_model *m, const char *user)
{
    for (const struct router_job *j = r->active; j; j = j->next_active)
        if (is_of_other(j, m, user))
            return true;
    for (const struct router_job *j = m->waiting.first; j; j = j->next)
        if (is_of_other(j, m, user))
            return true;
    for (const struct router_job *j = r->incoming.first; j; j = j->next)
        if (is_of_other(j, m, user))
            return true;
    return false;
}

static void load(struct router *r, struct http_exchange *x, const struct http_request *rq,
                 bool unload)
{
    struct fault f = serve_watch(x);
    struct json_object *body = request_body(rq->body, rq->n_body, &f),
                       *v = body ? request_get(body, "model") : NULL;
    const char *name = name_of(v, "model", &f);
    if (!f.kind && (!v || !request_is_text(v)))
        request_fault(&f, FAULT_REQUEST, "model", "'model' must be the name of a model");
    if (f.kind) {
        serve_fail(x, rq,
                   &(struct serve_error){.status = f.status, .param = f.param[0] ? f.param : NULL},
                   "%s", f.message);
        json_object_put(body);
        return;
    }
    pthread_mutex_lock(&r->lock);
    router_children_check(r);
    struct router_model *m = choose(r, x, rq, name);
    if (m && unload && serves_others(r, m, rq->user)) {
        serve_fail(
            x, rq, &(struct serve_error){.status = 409, .code = "model_in_use", .param = "model"},
            "the model '%s' has requests of other keys: it can be unloaded when they are answered",
            m->id);
        m = NULL;
    }
    if (m) {
        if (unload)
            router_unload(r, m, ROUTER_UNLOADED, "as asked");
        else
            router_request_load(r, m, false);
        m->retry_at = 0;
    }
    pthread_mutex_unlock(&r->lock);
    router_wake(r);
    if (m)
        reply_text(x, rq, "success", true);
    json_object_put(body);
}

/* "hf:OWNER/NAME:CODE" from a body that says so, without or with "hf:". False: it is answered. */
static bool read_pulled(struct http_exchange *x, const struct http_request *rq, char out[256])
{
    struct fault f = serve_watch(x);
    struct json_object *body = request_body(rq->body, rq->n_body, &f),
                       *v = body ? request_get(body, "model") : NULL;
    const char *name = name_of(v, "model", &f);
    if (name && strncmp(name, "hf:", 3) == 0)
        name += 3;
    if (!f.kind && (!name || !strchr(name, '/') || strstr(name, "://") || strlen(name) > 200))
        request_fault(&f, FAULT_REQUEST, "model",
                      "'model' must be OWNER/NAME or OWNER/NAME:CODE, at most 200 bytes");
    else if (!f.kind)
        snprintf(out, 256, "hf:%s", name);
    if (f.kind)
        serve_fail(x, rq,
                   &(struct serve_error){.status = f.status, .param = f.param[0] ? f.param : NULL},
                   "%s", f.message);
    json_object_put(body);
    return !f.kind;
}

/* A model of a hub joins the list and is loaded; the answer does not wait for that. */
static void pull(struct router *r, struct http_exchange *x, const struct http_request *rq)
{
    struct router_model *m;
    struct err err;
    char name[256];
    if (!ingle_config_flag(r->o.config, "page-pull")) {
        serve_fail(x, rq, &(struct serve_error){.status = 403, .code = "page_pull_off"},
                   "this server fetches no models for clients: it was started without --page-pull");
        return;
    }
    if (!read_pulled(x, rq, name))
        return;
    pthread_mutex_lock(&r->lock);
    const ingle_status st = router_models_pull(r, name, &m, &err);
    if (!st) {
        router_request_load(r, m, false);
        m->retry_at = 0;
    }
    pthread_mutex_unlock(&r->lock);
    router_wake(r);
    if (st)
        serve_fail(x, rq,
                   &(struct serve_error){.status = st == INGLE_LIMIT ? 429 : 500, .no_retry = true},
                   "%s", err.msg);
    else
        reply_text(x, rq, "success", true);
}

static void gather_free(void *arg)
{
    struct router_gather *g = arg;
    for (size_t i = 0; i < g->n; i++) {
        mem_free(g->part[i].id);
        str_release(&g->part[i].text);
    }
    mem_free(g->part);
    mem_free((void *)(uintptr_t)g->rq.path);
    mem_free(g);
}

/* One of the router's own requests to a loaded model; NULL: no memory. */
static struct router_job *own_job(struct router *r, struct router_gather *g, struct router_model *m)
{
    struct router_job *j = mem_zalloc(sizeof *j);
    char *id = mem_strdup(m->id), *target = mem_strdup("/metrics");
    if (!j || !id || !target) {
        mem_free(j);
        mem_free(id);
        mem_free(target);
        return NULL;
    }
    str_init(&j->head);
    str_init(&j->reply);
    str_init(&g->part[g->n].text);
    g->part[g->n++].id = id;
    j->router = r;
    j->rq.method = "GET";
    j->target = target;
    j->gather = g;
    j->model = m;
    return j;
}

/* One to each; r->lock is held. */
static bool ask_all(struct router *r, struct router_gather *g, struct router_jobs *out)
{
    size_t n = 0;
    for (const struct router_model *m = r->models; m; m = m->next)
        n++;
    g->part = mem_calloc(n ? n : 1, sizeof *g->part);
    for (struct router_model *m = r->models; m && g->part; m = m->next) {
        struct router_job *j;
        if (!router_is_up(m))
            continue;
        if (!(j = own_job(r, g, m)))
            return false;
        router_jobs_add(out, j);
        g->n_left++;
    }
    return g->part != NULL;
}

static void metrics(struct router *r, struct http_exchange *x, const struct http_request *rq)
{
    struct router_jobs jobs = {0};
    struct str out;
    struct router_gather *g = mem_zalloc(sizeof *g);
    pthread_mutex_lock(&r->lock);
    router_children_check(r);
    if (g) {
        g->x = x;
        g->rq = (struct http_request){.method = rq->method,
                                      .path = mem_strdup(rq->path),
                                      .id = rq->id,
                                      .body = "",
                                      .user = ""};
    }
    const bool ok = g && g->rq.path && ask_all(r, g, &jobs);
    const bool wait = ok && g->n_left;
    if (wait) {
        http_own(x, gather_free, g);
        http_hold(x);
    }
    for (struct router_job *j; (j = router_jobs_take(&jobs));) {
        if (ok)
            router_jobs_add(&r->incoming, j);
        else
            router_job_free(j);
    }
    str_init(&out);
    if (ok && !wait)
        router_put_metrics(r, g, &out);
    pthread_mutex_unlock(&r->lock);
    router_wake(r);
    if (!ok)
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
    else if (!wait)
        http_reply(x, 200, "text/plain; version=0.0.4", out.at, out.n);
    str_release(&out);
    if (g && !wait)
        gather_free(g);
}

static void model(struct router *r, struct http_exchange *x, const struct http_request *rq)
{
    const char *name = serve_path(rq) + strlen("/models/");
    struct str out;
    str_init(&out);
    pthread_mutex_lock(&r->lock);
    router_children_check(r);
    const struct router_model *m = router_by_name(r, name);
    if (m)
        router_put_model(r, rq, m, &out);
    pthread_mutex_unlock(&r->lock);
    if (m)
        serve_json(x, rq, &out);
    else
        serve_fail(x, rq,
                   &(struct serve_error){.status = 404,
                                         .type = "invalid_request_error",
                                         .code = "model_not_found",
                                         .anthropic =
                                             http_request_header(rq, "anthropic-version") != NULL},
                   "there is no model '%s'", name);
    if (!m)
        str_release(&out);
}

static void list(struct router *r, struct http_exchange *x, const struct http_request *rq)
{
    struct str out;
    str_init(&out);
    pthread_mutex_lock(&r->lock);
    router_children_check(r);
    router_put_models(r, rq, &out);
    pthread_mutex_unlock(&r->lock);
    serve_json(x, rq, &out);
}

/* On a thread of its own: nobody waits for a disk that does not answer. */
static void reload(struct router *r, struct http_exchange *x, const struct http_request *rq)
{
    struct router_presets p = {0};
    struct err err;
    pthread_mutex_lock(&r->lock);
    const bool first = !r->reading;
    r->reading = true;
    pthread_mutex_unlock(&r->lock);
    if (!first) {
        serve_fail(x, rq, &(struct serve_error){.status = 503, .retry_seconds = 1},
                   "the list of models is being read for another request");
        return;
    }
    ingle_status st = router_models_read(r, &p, &err);
    pthread_mutex_lock(&r->lock);
    r->reading = false;
    if (!st && !r->stop)
        st = router_models_take(r, &p, &err);
    pthread_mutex_unlock(&r->lock);
    router_presets_release(&p);
    router_wake(r);
    if (!st)
        list(r, x, rq);
    else
        serve_fail(x, rq, &(struct serve_error){.status = 500, .no_retry = true},
                   "the models stay as they were: %s", err.msg);
}

static void events(struct router *r, struct http_exchange *x, const struct http_request *rq)
{
    pthread_mutex_lock(&r->lock);
    const bool ok = router_listen(r, x);
    pthread_mutex_unlock(&r->lock);
    if (!ok)
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
}

static void put(struct router *r, struct http_exchange *x, const struct http_request *rq, int what)
{
    struct str out;
    str_init(&out);
    pthread_mutex_lock(&r->lock);
    router_children_check(r);
    if (what == PROPS)
        router_put_props(r, rq, &out);
    else
        router_put_ollama(r, what == RUNNING, &out);
    pthread_mutex_unlock(&r->lock);
    serve_json(x, rq, &out);
}

void router_handle(void *arg, struct http_exchange *x, const struct http_request *rq)
{
    struct router *r = arg;
    struct route_table table[2];
    bool other_method;
    tables(table);
    /* router_admit() has seen that there is one */
    const struct route *found = route_find(table, 2, rq, &other_method);
    const bool named = http_request_query(rq, "model") != NULL;
    switch ((enum what)found->what) {
    case HEALTH:
        health(r, x, rq);
        return;
    case PROBE:
        route_find(&table[1], 1, rq, &other_method)->fn(&r->serve, x, rq);
        return;
    case PAGE:
        page_get(&r->serve, x, rq);
        return;
    case PAGE_FILE:
        page_file_get(&r->serve, x, rq);
        return;
    case OPENAPI:
        page_openapi_get(&r->serve, x, rq);
        return;
    case VERSION:
        ollama_version(&r->serve, x, rq);
        return;
    case TAGS:
    case RUNNING:
        put(r, x, rq, found->what);
        return;
    case MODELS:
        if (wants_reload(rq) && (!auth_n_keys(r->address.auth) || *rq->user))
            reload(r, x, rq);
        else
            list(r, x, rq);
        return;
    case EVENTS:
        events(r, x, rq);
        return;
    case MODEL:
        model(r, x, rq);
        return;
    case LOAD:
    case UNLOAD:
        load(r, x, rq, found->what == UNLOAD);
        return;
    case PULL:
        pull(r, x, rq);
        return;
    case PROPS:
    case METRICS:
        if (!named && found->what == PROPS)
            put(r, x, rq, PROPS);
        else if (!named)
            metrics(r, x, rq);
        else
            pass_on(r, x, rq);
        return;
    case TO_MODEL:
        break;
    }
    pass_on(r, x, rq);
}
