/* SPDX-License-Identifier: Apache-2.0 */
#include "server/serve.h"

#include "base/clock.h"
#include "server/ollama/ollama.h"

#include "server/request.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum serve_phase serve_phase(const struct serve *s)
{
    return (enum serve_phase)atomic_load(&s->phase);
}

uint64_t serve_close_address(struct serve *s)
{
    const uint64_t now = clock_now();
    const uint64_t end = now + (uint64_t)(ingle_config_number(s->config, "drain") * 1e9);
    const uint64_t last = now + SERVE_LAST_NS;
    http_close_listener(s->http);
    if (atomic_load(&s->lingering))
        http_wait(s->http, true, last < end ? last : end);
    atomic_store(&s->phase, SERVE_DRAINING);
    return end;
}

double serve_load_seconds(const struct serve *s)
{
    const uint64_t loaded = atomic_load(&s->loaded);
    return (double)((loaded ? loaded : clock_now()) - s->began) * 1e-9;
}

const char *serve_path(const struct http_request *rq)
{
    const char *p = rq->path;
    if (strncmp(p, "/v1", 3) == 0 && (p[3] == '/' || p[3] == 0))
        p += 3;
    return *p ? p : "/";
}

bool serve_knows(const struct serve *s, const char *name)
{
    const char *alias;
    for (size_t i = 0; (alias = ingle_config_text(s->config, "alias", i)); i++)
        if (strcmp(alias, name) == 0)
            return true;
    return strcmp(s->model_id, name) == 0;
}

/* What each vendor calls a failure of this status. */
static const char *type_of(int status, bool anthropic)
{
    static const struct {
        int status;
        const char *openai, *anthropic;
    } names[] = {
        {400, "invalid_request_error", "invalid_request_error"},
        {401, "authentication_error", "authentication_error"},
        {403, "permission_error", "permission_error"},
        {404, "not_found_error", "not_found_error"},
        {405, "invalid_request_error", "invalid_request_error"},
        {413, "invalid_request_error", "request_too_large"},
        {429, "rate_limit_error", "rate_limit_error"},
        {501, "not_supported_error", "invalid_request_error"},
        {503, "unavailable_error", "overloaded_error"},
        {504, "timeout_error", "timeout_error"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].status == status)
            return anthropic ? names[i].anthropic : names[i].openai;
    if (status < 500)
        return "invalid_request_error";
    return anthropic ? "api_error" : "server_error";
}

void serve_error_write(struct str *s, bool anthropic, const struct serve_error *e,
                       const char *request_id, const char *message)
{
    const char *type = e->type && !anthropic ? e->type : type_of(e->status, anthropic);
    write_open(s, '{');
    if (anthropic)
        write_member(s, "type", "error");
    write_key(s, "error");
    write_open(s, '{');
    write_member(s, "message", message);
    write_member(s, "type", type);
    if (!anthropic) {
        write_member(s, "param", e->param);
        write_member(s, "code", e->code);
        write_member_int(s, "status", e->status);
        if (e->extra) {
            str_addc(s, ',');
            str_adds(s, e->extra);
        }
    }
    write_close(s, '}');
    if (anthropic)
        write_member(s, "request_id", request_id);
    write_close(s, '}');
}

void serve_fail(struct http_exchange *x, const struct http_request *rq,
                const struct serve_error *e, const char *fmt, ...)
{
    char message[1024], seconds[32];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    struct str s;
    str_init(&s);
    const bool anthropic = e->anthropic || strncmp(serve_path(rq), "/messages", 9) == 0;
    if (strncmp(serve_path(rq), "/api/", 5) == 0)
        ollama_put_error(&s, message);
    else
        serve_error_write(&s, anthropic, e, rq->id, message);
    if (e->retry_seconds > 0) {
        snprintf(seconds, sizeof seconds, "%.0f", ceil(e->retry_seconds));
        http_header(x, "Retry-After", seconds);
    }
    if (e->no_retry)
        http_header(x, "X-Should-Retry", "false");
    http_reply(x, e->status, "application/json", s.at, s.n);
    str_release(&s);
}

struct serve_error serve_error_of(ingle_status st)
{
    switch (st) {
    case INGLE_OK:
        return (struct serve_error){.status = 200};
    case INGLE_ARG:
    case INGLE_FORMAT:
    case INGLE_LIMIT:
    case INGLE_UNSUP:
        return (struct serve_error){.status = 400};
    case INGLE_NOTFOUND:
        return (struct serve_error){.status = 404};
    case INGLE_CANCEL:
        return (struct serve_error){.status = 503, .retry_seconds = 1};
    case INGLE_NOMEM:
    case INGLE_IO:
    case INGLE_NUMERIC:
    case INGLE_LOST:
        break;
    }
    return (struct serve_error){.status = 500, .no_retry = st == INGLE_NUMERIC};
}

static void poll(void *arg, struct fault *f)
{
    switch (http_poll(arg)) {
    case HTTP_WANTED:
        break;
    case HTTP_LEFT:
        request_fault(f, FAULT_STOPPING, NULL, "the client has left");
        break;
    case HTTP_LATE:
        request_fault(f, FAULT_DEADLINE, NULL,
                      "the time for this request is up (--limit request-seconds)");
        break;
    case HTTP_ENDING:
        request_fault(f, FAULT_STOPPING, NULL, "the server is stopping");
        f->retry_seconds = 5;
        break;
    }
}

struct fault serve_watch(struct http_exchange *x)
{
    return (struct fault){.poll = poll, .arg = x};
}

void serve_json(struct http_exchange *x, const struct http_request *rq, struct str *s)
{
    if (str_ok(s))
        http_reply(x, 200, "application/json", s->at, s->n);
    else
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
    str_release(s);
}
