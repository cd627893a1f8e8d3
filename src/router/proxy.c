/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests on their way to a process and back, by libcurl over the process's socket.  What comes is
 * passed on as it comes; when the client has too much unread, the transfer pauses, the socket
 * fills, and the process waits.  Of a stream the beginning of an event is held until its end is
 * there, so that an error can follow whole events.
 */
#include "router/inner.h"
#include "router/job.h"
#include "router/parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/write.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MOST_EVENT = 1 << 20, MOST_HEAD = 1 << 16, MOST_TRIES = 3, MOST_LOST = 2 };
static const uint64_t DOUBT_NS = 2000000000;

/* ---- queues ---- */

void router_jobs_add(struct router_jobs *q, struct router_job *j)
{
    j->next = NULL;
    *(q->last ? &q->last->next : &q->first) = j;
    q->last = j;
}

struct router_job *router_jobs_take(struct router_jobs *q)
{
    struct router_job *j = q->first;
    if (j && !(q->first = j->next))
        q->last = NULL;
    return j;
}

bool router_jobs_remove(struct router_jobs *q, const struct router_job *j)
{
    struct router_job *before = NULL;
    for (struct router_job *at = q->first; at; before = at, at = at->next) {
        if (at != j)
            continue;
        *(before ? &before->next : &q->first) = at->next;
        if (q->last == at)
            q->last = before;
        return true;
    }
    return false;
}

void router_job_flag(struct router_job *j)
{
    struct router *r = j->router;
    pthread_mutex_lock(&r->lock);
    if (!j->flagged) {
        j->flagged = true;
        j->next_flagged = r->flagged;
        r->flagged = j;
        http_hold(j->x);
    }
    pthread_mutex_unlock(&r->lock);
    router_wake(r);
}

void router_job_free(void *job)
{
    struct router_job *j = job;
    curl_slist_free_all(j->headers);
    mem_free((void *)(uintptr_t)j->rq.path);
    mem_free(j->target);
    mem_free(j->user);
    mem_free(j->body);
    mem_free(j->candidate);
    str_release(&j->head);
    str_release(&j->reply);
    mem_free(j);
}

/* ---- the end of one ---- */

static void uncount(struct router_job *j)
{
    struct router *r = j->router;
    if (!j->counted)
        return;
    j->counted = false;
    r->n_waiting--;
    r->waiting_bytes -= j->n_body;
}

static void leave_process(struct router_job *j)
{
    if (!j->easy)
        return;
    (void)curl_multi_remove_handle(j->router->multi, j->easy);
    curl_easy_cleanup(j->easy);
    j->easy = NULL;
    *j->active_at = j->next_active;
    if (j->next_active)
        j->next_active->active_at = j->active_at;
    j->model->n_active--;
    j->model->idle_since = clock_now();
    if (j->use)
        router_used(j->model);
    j->model->let_go |= j->let_go;
}

static void take_info(struct router_job *j)
{
    struct json_object *list = NULL, *data;
    struct router_model *m = j->model;
    if (!m || j->status != 200 || json_parse(j->reply.at, j->reply.n, NULL, &list, NULL))
        return;
    if (json_object_object_get_ex(list, "data", &data) &&
        json_object_is_type(data, json_type_array) && json_object_array_length(data)) {
        json_object_put(m->info);
        m->info = json_object_get(json_object_array_get_idx(data, 0));
    }
    json_object_put(list);
}

static void end_gather(struct router_job *j)
{
    struct router_gather *g = j->gather;
    struct router *r = j->router;
    if (!g->x) {
        take_info(j);
        mem_free(g);
        return;
    }
    for (size_t i = 0; i < g->n; i++)
        if (j->model && j->status == 200 && strcmp(g->part[i].id, j->model->id) == 0)
            str_add(&g->part[i].text, j->reply.at, j->reply.n);
    if (--g->n_left > 0)
        return;
    struct str out;
    str_init(&out);
    router_put_metrics(r, g, &out);
    if (str_ok(&out))
        http_reply(g->x, 200, "text/plain; version=0.0.4", out.at, out.n);
    else
        serve_fail(g->x, &g->rq, &(struct serve_error){.status = 500}, "out of memory");
    str_release(&out);
    http_release(g->x);
}

/* The router is done with it. */
static void finish(struct router_job *j)
{
    if (j->finished)
        return;
    j->finished = true;
    uncount(j);
    leave_process(j);
    if (j->gather) {
        end_gather(j);
        router_job_free(j);
    } else {
        http_release(j->x); /* its memory is the exchange's */
    }
}

/* An error as an event of the stream that has begun. */
static void write_error(struct router_job *j, const struct serve_error *e, const char *text)
{
    struct str s;
    str_init(&s);
    const char *path = serve_path(&j->rq);
    if (strncmp(path, "/api/", 5) == 0) {
        write_open(&s, '{');
        write_member(&s, "error", text);
        write_close(&s, '}');
        str_addc(&s, '\n');
    } else if (strncmp(path, "/responses", 10) == 0) {
        str_adds(&s, "event: error\ndata: ");
        write_open(&s, '{');
        write_member(&s, "type", "error");
        write_member(&s, "code", e->code ? e->code : "server_error");
        write_member(&s, "message", text);
        write_member_null(&s, "param");
        write_close(&s, '}');
        str_adds(&s, "\n\n");
    } else {
        const bool anthropic = strncmp(path, "/messages", 9) == 0;
        str_adds(&s, anthropic ? "event: error\ndata: " : "data: ");
        serve_error_write(&s, anthropic, e, j->rq.id, text);
        str_adds(&s, "\n\n");
    }
    if (str_ok(&s))
        (void)http_write(j->x, s.at, s.n);
    str_release(&s);
    http_end(j->x);
}

void router_job_fail(struct router_job *j, const struct serve_error *e, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (j->x && j->begun)
        write_error(j, e, text);
    else if (j->x)
        serve_fail(j->x, &j->rq, e, "%s", text);
    finish(j);
}

/* ---- what comes back ---- */

/* Headers that this server sends itself, or that belong to one connection. */
static bool is_own_header(const char *name, size_t n)
{
    static const char *const word[] = {
        "connection",
        "keep-alive",
        "transfer-encoding",
        "content-length",
        "content-type",
        "date",
        "x-request-id",
        "request-id",
        "cache-control",
        "x-accel-buffering",
        "x-content-type-options",
    };
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (strlen(word[i]) == n && strncasecmp(word[i], name, n) == 0)
            return true;
    return false;
}

static size_t on_header(char *bytes, size_t size, size_t n, void *arg)
{
    struct router_job *j = arg;
    const size_t all = size * n;
    const char *colon = memchr(bytes, ':', all);
    if (all > 5 && strncmp(bytes, "HTTP/", 5) == 0) {
        str_clear(&j->head);
        j->content_type[0] = 0;
        j->whole = false;
        return all;
    }
    if (!colon || j->head.n > MOST_HEAD)
        return all;
    const size_t n_name = (size_t)(colon - bytes);
    const char *value = colon + 1;
    size_t n_value = all - n_name - 1;
    while (n_value && (*value == ' ' || *value == '\t'))
        value++, n_value--;
    while (n_value && strchr("\r\n \t", value[n_value - 1]))
        n_value--;
    if (n_name == 12 && strncasecmp(bytes, "content-type", 12) == 0)
        snprintf(j->content_type, sizeof j->content_type, "%.*s",
                 (int)(n_value < 120 ? n_value : 120), value);
    if (n_name == 14 && strncasecmp(bytes, "content-length", 14) == 0)
        j->whole = true;
    if (is_own_header(bytes, n_name))
        return all;
    str_add(&j->head, bytes, n_name);
    str_addc(&j->head, 0);
    str_add(&j->head, value, n_value);
    str_addc(&j->head, 0);
    return all;
}

static void put_headers(struct router_job *j)
{
    for (const char *p = j->head.at, *end = p + j->head.n; p < end;) {
        const char *value = p + strlen(p) + 1;
        http_header(j->x, p, value);
        p = value + strlen(value) + 1;
    }
}

/* How many of the bytes are whole events, or lines. */
static size_t whole_events(const struct router_job *j)
{
    const bool sse = strncmp(j->content_type, "text/event-stream", 17) == 0;
    const char *at = j->reply.at;
    for (size_t i = j->reply.n; i > 0; i--)
        if (at[i - 1] == '\n' && (!sse || (i > 1 && at[i - 2] == '\n')))
            return i;
    return j->reply.n > MOST_EVENT ? j->reply.n : 0;
}

static void pass_events(struct router_job *j, bool all)
{
    const size_t n = all ? j->reply.n : whole_events(j);
    if (!n)
        return;
    (void)http_write(j->x, j->reply.at, n);
    j->passed = true;
    memmove(j->reply.at, j->reply.at + n, j->reply.n - n);
    j->reply.n -= n;
    j->reply.at[j->reply.n] = 0;
}

static size_t on_body(char *bytes, size_t size, size_t n, void *arg)
{
    struct router_job *j = arg;
    long status = 0;
    const size_t all = size * n;
    if (!j->status) {
        (void)curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &status);
        j->status = (int)status;
        j->streams = j->x && !j->whole && j->status == 200;
        if (j->streams && !j->begun) {
            put_headers(j);
            http_begin(j->x, j->status, j->content_type);
            j->begun = true;
        }
    }
    if (j->streams && http_full(j->x)) {
        j->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    str_add(&j->reply, bytes, all);
    if (!str_ok(&j->reply))
        return 0;
    if (j->streams)
        pass_events(j, false);
    return all;
}

/* ---- the way there ---- */

static void on_close(void *arg)
{
    struct router_job *j = arg;
    atomic_store(&j->closed, true);
    router_job_flag(j);
}

static void on_room(void *arg)
{
    struct router_job *j = arg;
    atomic_store(&j->room, true);
    router_job_flag(j);
}

static void on_silence(void *arg)
{
    struct router_job *j = arg;
    atomic_store(&j->silent, true);
    router_job_flag(j);
}

void router_job_watch(struct router_job *j, double keepalive_seconds)
{
    http_own(j->x, router_job_free, j);
    http_on_close(j->x, on_close, j);
    http_on_room(j->x, on_room, j);
    if (j->sse)
        http_silence(j->x, keepalive_seconds, on_silence, j);
}

static bool prepare(struct router_job *j, const struct router_model *m)
{
    CURL *e = j->easy;
    const bool get = strcmp(j->rq.method, "GET") == 0, head = strcmp(j->rq.method, "HEAD") == 0;
    struct str url;
    str_init(&url);
    str_addf(&url, "http://localhost%s", j->target);
    bool ok = str_ok(&url) && curl_easy_setopt(e, CURLOPT_URL, url.at) == CURLE_OK;
    str_release(&url);
    ok = ok && curl_easy_setopt(e, CURLOPT_UNIX_SOCKET_PATH, m->child.socket) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_FORBID_REUSE, 1L) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_HTTPHEADER, j->headers) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_HEADERDATA, j) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_WRITEDATA, j) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_PRIVATE, j) == CURLE_OK;
    if (ok && j->n_body)
        ok = curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)j->n_body) == CURLE_OK &&
             curl_easy_setopt(e, CURLOPT_POSTFIELDS, j->body) == CURLE_OK;
    if (ok && head)
        ok = curl_easy_setopt(e, CURLOPT_NOBODY, 1L) == CURLE_OK;
    else if (ok && !get)
        ok = curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, j->rq.method) == CURLE_OK;
    return ok;
}

void router_job_start(struct router_job *j, struct router_model *m)
{
    uncount(j);
    j->model = m;
    j->status = 0;
    j->whole = j->streams = j->paused = false;
    str_clear(&j->head);
    str_clear(&j->reply);
    j->easy = curl_easy_init();
    m->n_active++;
    m->n_requests += j->x != NULL;
    if (j->use) {
        router_used(m);
        m->let_go = false; /* somebody else goes on */
    }
    if (!j->easy) {
        m->n_active--;
        router_job_fail(j, &(struct serve_error){.status = 500}, "out of memory");
        return;
    }
    j->next_active = j->router->active;
    j->active_at = &j->router->active;
    if (j->next_active)
        j->next_active->active_at = &j->next_active;
    j->router->active = j;
    if (!prepare(j, m) || curl_multi_add_handle(j->router->multi, j->easy) != CURLM_OK) {
        router_job_fail(j, &(struct serve_error){.status = 500},
                        "out of memory for the way to the model '%s'", m->id);
    }
}

void router_job_wait(struct router_job *j, struct router_model *m)
{
    struct router *r = j->router;
    j->model = m;
    if (!j->counted &&
        (r->n_waiting >= r->max_waiting || (double)r->waiting_bytes + (double)j->n_body >
                                               ingle_config_number(r->o.config, "max-bodies"))) {
        router_job_fail(j, &(struct serve_error){.status = 429, .retry_seconds = 5},
                        "too many requests wait for models that are not loaded");
        return;
    }
    if (!j->counted) {
        j->counted = true;
        r->n_waiting++;
        r->waiting_bytes += j->n_body;
    }
    router_jobs_add(&m->waiting, j);
}

/* ---- what happens to it ---- */

static void keep_alive(struct router_job *j)
{
    char text[96];
    if (j->easy || j->finished)
        return; /* the process does that */
    if (!j->begun)
        http_begin(j->x, 200, "text/event-stream");
    j->begun = true;
    const int n = snprintf(text, sizeof text, ": the model is being loaded, %.0f %%\n\n",
                           j->model ? 100 * j->model->progress : 0);
    (void)http_write(j->x, text, (size_t)n);
}

void router_job_flagged(struct router_job *j)
{
    if (atomic_load(&j->closed) && !j->finished) {
        if (!j->easy && j->model)
            (void)router_jobs_remove(&j->model->waiting, j);
        finish(j);
        return;
    }
    if (atomic_exchange(&j->silent, false))
        keep_alive(j);
    if (atomic_exchange(&j->room, false) && j->paused && j->easy) {
        j->paused = false;
        (void)curl_easy_pause(j->easy, CURLPAUSE_CONT);
    }
}

void router_jobs_expire(struct router_model *m, uint64_t now)
{
    for (struct router_job *j = m->waiting.first, *next; j; j = next) {
        next = j->next;
        const double limit = ingle_config_number(j->router->o.config, "queue-timeout");
        const bool late = http_poll(j->x) == HTTP_LATE;
        const bool queued =
            limit > 0 && now > j->arrived && (double)(now - j->arrived) > limit * 1e9;
        if (!late && !queued)
            continue;
        (void)router_jobs_remove(&m->waiting, j);
        if (late)
            router_job_fail(j, &(struct serve_error){.status = 504},
                            "the time for this request is up (--limit request-seconds)");
        else
            router_job_fail(j, &(struct serve_error){.status = 429, .retry_seconds = 5},
                            "the model '%s' was not loaded within --limit queue-timeout", m->id);
    }
}

/* The next model that may know what is requested.  False: there is none. */
static bool try_next(struct router_job *j)
{
    struct router *r = j->router;
    while (j->at_candidate < j->n_candidates) {
        struct router_model *m = router_by_number(r, j->candidate[j->at_candidate++]);
        if (!m || !router_is_up(m))
            continue;
        leave_process(j);
        router_job_start(j, m);
        return true;
    }
    return false;
}

static void reply_whole(struct router_job *j)
{
    if (j->begun) { /* comments went out before */
        struct json_object *body = NULL, *error, *message;
        const char *text = NULL;
        if (!json_parse(j->reply.at, j->reply.n, NULL, &body, NULL) &&
            json_object_object_get_ex(body, "error", &error))
            text = json_object_is_type(error, json_type_string) ? json_object_get_string(error)
                   : json_object_object_get_ex(error, "message", &message)
                       ? json_object_get_string(message)
                       : NULL;
        write_error(j, &(struct serve_error){.status = j->status},
                    text ? text : "the request was refused");
        json_object_put(body);
        return;
    }
    put_headers(j);
    http_reply(j->x, j->status, j->content_type[0] ? j->content_type : "application/octet-stream",
               j->reply.at, j->reply.n);
}

/* The request goes to the next process of its model: its answer has not begun. */
static void again(struct router_job *j)
{
    struct router_model *m = j->model;
    j->let_go = false; /* what it has asked for comes after the answer */
    leave_process(j);
    j->arrived = clock_now();
    router_job_wait(j, m);
    if (!j->finished && m->waiting.first)
        router_want(j->router, m);
}

/* Whether it is the other end that broke a connection. */
static bool is_broken(CURLcode code)
{
    return code == CURLE_COULDNT_CONNECT || code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR ||
           code == CURLE_GOT_NOTHING || code == CURLE_PARTIAL_FILE;
}

/* The connection to the process broke. */
static void lost(struct router_job *j, CURLcode code)
{
    struct router_model *m = j->model;
    const bool refused = code == CURLE_COULDNT_CONNECT, broken = is_broken(code);
    if (m->state == ROUTER_LOADED && m->child.pid && broken)
        m->child.doubt_until = clock_now() + DOUBT_NS;
    /* what it asks for ended with the process */
    if (j->x && j->n_candidates && broken && !j->passed) {
        if (try_next(j))
            return;
        router_job_fail(j, &(struct serve_error){.status = 404},
                        "no model has this: the process of the model '%s' ended", m->id);
        return;
    }
    if (j->x && !j->passed && broken &&
        (refused ? ++j->n_tries < MOST_TRIES : ++j->n_lost < MOST_LOST)) {
        again(j);
        return;
    }
    if (j->x && j->begun && j->reply.n) { /* half an event: nobody can read it */
        str_clear(&j->reply);
    }
    router_job_fail(
        j,
        &(struct serve_error){.status = 502, .type = "server_error", .code = "model_process_ended"},
        "the process of the model '%s' ended while it answered", m->id);
}

void router_job_done(struct router_job *j, CURLcode code)
{
    long status = 0;
    if (!j->status && curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &status) == CURLE_OK)
        j->status = (int)status; /* an answer without a body */
    if (code != CURLE_OK) {
        lost(j, code);
        return;
    }
    if (j->status == 404 && try_next(j))
        return;
    const bool ends =
        j->model->state != ROUTER_LOADED || j->model->child.ended || j->model->child.stderr_closed;
    /* "the server is stopping": the next one is not */
    if (j->x && j->status == 503 && ends && !j->passed && ++j->n_lost < MOST_LOST) {
        again(j);
        return;
    }
    if (j->x && j->streams) {
        pass_events(j, true);
        http_end(j->x);
    } else if (j->x) {
        reply_whole(j);
    }
    finish(j);
}
