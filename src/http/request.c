/* SPDX-License-Identifier: Apache-2.0
 *
 * A request on its way in: what libmicrohttpd lets through and should not is refused here,
 * the body is gathered, and the handler is called.
 */
#include "http/inner.h"
#include "http/parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *http_request_header(const struct http_request *rq, const char *name)
{
    const struct http_exchange *x = rq->exchange;
    return x->conn ? MHD_lookup_connection_value(x->conn->mhd, MHD_HEADER_KIND, name) : NULL;
}

const char *http_request_query(const struct http_request *rq, const char *name)
{
    const struct http_exchange *x = rq->exchange;
    return x->conn ? MHD_lookup_connection_value(x->conn->mhd, MHD_GET_ARGUMENT_KIND, name) : NULL;
}

struct each {
    http_field_fn *fn;
    void *arg;
};

static enum MHD_Result call_each(void *arg, enum MHD_ValueKind kind, const char *name,
                                 const char *value)
{
    const struct each *e = arg;
    (void)kind;
    e->fn(e->arg, name, value ? value : "");
    return MHD_YES;
}

void http_request_each(const struct http_request *rq, bool query, http_field_fn *fn, void *arg)
{
    struct each e = {fn, arg};
    const struct http_exchange *x = rq->exchange;
    if (x->conn)
        (void)MHD_get_connection_values(
            x->conn->mhd, query ? MHD_GET_ARGUMENT_KIND : MHD_HEADER_KIND, call_each, &e);
}

/* ---- strictness ---- */

/* Version 1.0 of the library refuses itself what is seen by the layout of the head. */
#define HAS_LAYOUT (MHD_VERSION < 0x01000000)

struct headers {
    int n_length, n_encoding, n_host;
    bool bad_name, bad_value, bad_layout, bad_encoding;
    const char *host; /* the value of Host, or NULL */
    const char *next; /* where the next name must begin if nothing is hidden between */
};

static bool is_token(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c <= ' ' || c >= 0x7F || strchr("\"(),/:;<=>?@[\\]{}", c))
            return false;
    }
    return n > 0;
}

static enum MHD_Result check_header(void *arg, enum MHD_ValueKind kind, const char *key,
                                    size_t n_key, const char *value, size_t n_value)
{
    struct headers *h = arg;
    (void)kind;
    h->bad_name |= !is_token(key, n_key);
    for (size_t i = 0; i < n_value; i++) {
        const unsigned char c = (unsigned char)value[i];
        h->bad_value |= (c < ' ' && c != '\t') || c == 0x7F;
    }
    h->n_length += strcasecmp(key, "content-length") == 0;
    if (strcasecmp(key, "host") == 0) {
        h->n_host++;
        h->host = value;
    }
    if (strcasecmp(key, "transfer-encoding") == 0) {
        h->n_encoding++;
        h->bad_encoding |= !value || strcasecmp(value, "chunked") != 0;
    }
    /* The library ends names and values by zeros in the bytes that came, so a header begins
     * two bytes (CR, LF) after the value before it, and the head ends two after the last;
     * otherwise a zero, a bare line feed or a folded line stood between. */
    h->bad_layout |= !value || h->next != key;
    h->next = value ? value + n_value + 2 : key;
    return MHD_YES;
}

/* The host of "http://host/path", [*n]; NULL: the target is a path alone. */
static const char *authority_of(const char *url, size_t *n)
{
    const char *host = strncasecmp(url, "http://", 7) == 0 ? url + 7 : NULL;
    if (strncasecmp(url, "https://", 8) == 0)
        host = url + 8;
    *n = host ? strcspn(host, "/?# ") : 0;
    return host;
}

/* Without its port. */
static size_t name_length(const char *host, size_t n)
{
    const char *end = memchr(host, ']', n), *from = end ? end : host;
    const char *colon = memchr(from, ':', n - (size_t)(from - host));
    return colon ? (size_t)(colon - host) : n;
}

/* Proxies may ask for http://host/path.  Who may ask is decided by Host, so the two must agree. */
static bool names_other_host(const struct headers *h, const char *url)
{
    size_t n;
    const char *host = authority_of(url, &n), *asked_for = h->host ? h->host : "";
    n = host ? name_length(host, n) : 0;
    return n &&
           (name_length(asked_for, strlen(asked_for)) != n || strncasecmp(asked_for, host, n) != 0);
}

/* Why the request's head is refused, or NULL. */
static const char *head_fault(const struct http_conn *c, const char *version, const char *method)
{
    struct headers h = {0};
    if (HAS_LAYOUT)
        h.next = version + strlen(version) + 2;
    /* Of the words of the request's line each ends where the next begins, one byte between. */
    h.bad_layout = c->uri != method + strlen(method) + 1 || version != c->uri + c->n_uri + 1;
    MHD_get_connection_values_n(c->mhd, MHD_HEADER_KIND, check_header, &h);
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    h.bad_layout |= !i || h.next + 2 != method + i->header_size;
    if (!is_token(method, strlen(method)))
        return "the request's method holds bytes that no method may hold";
    if (c->bad_uri)
        return "the request's path holds bytes that no path may hold";
    if (h.bad_name || h.bad_value)
        return "a header holds bytes that no header may hold";
    if (HAS_LAYOUT && h.bad_layout)
        return "the head is folded, or holds a zero, a bare line feed or a second space";
    if (h.n_length > 1)
        return "there is more than one content-length";
    if (h.n_length && h.n_encoding)
        return "there are both content-length and transfer-encoding";
    if (h.n_encoding > 1 || h.bad_encoding)
        return "the only transfer-encoding understood is 'chunked'";
    if (h.n_encoding && strcmp(version, MHD_HTTP_VERSION_1_0) == 0)
        return "HTTP/1.0 has no transfer-encoding";
    if (h.n_host > 1)
        return "there is more than one host";
    if (names_other_host(&h, c->uri))
        return "the request's target names another host than its Host header";
    return NULL;
}

/* ---- the request ---- */

static void refuse(struct http_exchange *x, int status, const char *reason)
{
    struct http *h = x->http;
    char seconds[32];
    atomic_fetch_add(&h->n_bad, 1);
    x->close = status != 429; /* what was too much in all was read, and is no fault of its form */
    if (x->retry_seconds > 0) {
        snprintf(seconds, sizeof seconds, "%.0f", ceil(x->retry_seconds));
        http_header(x, "Retry-After", seconds);
    }
    if (h->o.refuse) {
        h->o.refuse(h->o.arg, x, &x->rq, status, reason);
        return;
    }
    struct str s;
    str_init(&s);
    str_addf(&s, "%s\n", reason);
    http_reply(x, status, "text/plain; charset=utf-8", s.at, s.n);
    str_release(&s);
}

/* "req_" and 16 digits that do not repeat; the mixing is that of splitmix64. */
static void name_request(struct http *h, char id[HTTP_ID + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint64_t z = h->id_seed + ++h->id_count * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    memcpy(id, "req_", 4);
    for (int i = 0; i < 16; i++, z >>= 4)
        id[4 + i] = digits[z & 15];
    id[20] = 0;
}

/* The client's own id, so that logs of proxies and of this server name the same request. */
static bool take_id(struct http_exchange *x)
{
    const char *id = http_request_header(&x->rq, "x-request-id");
    size_t n = 0;
    while (id && n <= HTTP_ID && id[n] > ' ' && id[n] <= '~' && !strchr("\"\\", id[n]))
        n++;
    if (!n || n > HTTP_ID || id[n])
        return false;
    memcpy(x->id, id, n + 1);
    return true;
}

static const char *path_of(const char *url)
{
    size_t n;
    const char *host = authority_of(url, &n);
    if (!host)
        return url;
    const char *path = strchr(host, '/');
    return path ? path : "/";
}

static bool take_request(struct http_exchange *x, const char *url, const char *method)
{
    url = path_of(url);
    size_t n = strlen(url);
    if (n > 1 && url[n - 1] == '/')
        n--;
    x->path = mem_strndup(url, n);
    if (!x->path)
        return false;
    strncpy(x->method, method, sizeof x->method - 1);
    if (!take_id(x))
        name_request(x->http, x->id);
    x->rq.method = x->method;
    x->rq.path = x->path;
    x->rq.user = "";
    x->rq.id = x->id;
    return true;
}

/* The headers are there. */
static void begin_request(struct http_exchange *x, const char *version, const char *method)
{
    struct http *h = x->http;
    struct http_conn *c = x->conn;
    const char *fault = head_fault(c, version, method), *user = NULL;
    if (fault) {
        refuse(x, 400, fault);
        return;
    }
    const char *length = http_request_header(&x->rq, "content-length");
    if (length && strtoull(length, NULL, 10) > h->o.body_bytes) {
        refuse(x, 413, "the request's body is too large");
        return;
    }
    const char *coding = http_request_header(&x->rq, "content-encoding");
    if (coding && strcasecmp(coding, "identity") != 0) {
        refuse(x, 415, "the request's body must not be compressed");
        return;
    }
    if (h->o.admit) {
        h->o.admit(h->o.arg, x, &x->rq, &user);
        if (user)
            x->rq.user = user;
    }
}

static bool begun(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    const bool b = x->state != HTTP_OPEN;
    pthread_mutex_unlock(&x->lock);
    return b;
}

static bool has_body(const struct http_exchange *x)
{
    const char *length = http_request_header(&x->rq, "content-length");
    return http_request_header(&x->rq, "transfer-encoding") || (length && strcmp(length, "0") != 0);
}

static enum MHD_Result first_call(struct http *h, struct MHD_Connection *mhd, const char *url,
                                  const char *method, const char *version, void **mine)
{
    struct http_conn *c = http_conn_of(h, mhd);
    if (!c || c->x)
        return MHD_NO;
    c->mhd = mhd;
    struct http_exchange *x = http_exchange_create(h, c);
    if (!x)
        return MHD_NO;
    *mine = c->x = x;
    atomic_fetch_add(&h->n_requests, 1);
    c->phase = HTTP_BODY;
    c->since = c->last = clock_now();
    c->due = c->since + (uint64_t)(h->o.body_seconds * 1e9);
    c->n_body = 0;
    http_room_start(c);
    if (!take_request(x, url, method))
        return MHD_NO;
    begin_request(x, version, method);
    /* An answer before the body ends the connection; without a body it can wait for its turn. */
    return begun(x) && (x->close || has_body(x)) ? http_exchange_answer(x) : MHD_YES;
}

void http_request_forget_body(struct http_exchange *x)
{
    atomic_fetch_sub(&x->http->bodies_bytes, x->n_body);
    http_room_give(x);
    mem_free(x->body);
    x->body = NULL;
    x->rq.body = "";
    x->n_body = x->cap_body = x->rq.n_body = 0;
}

static void set_refusal(struct http_exchange *x, int status, const char *reason, double retry)
{
    x->refused = status;
    x->reason = reason;
    x->retry_seconds = retry;
    http_request_forget_body(x);
}

void http_request_give_way(struct http_exchange *x)
{
    set_refusal(x, 503,
                "the room for large requests (--limit bodies) was needed for another one; this "
                "one came slower, or its client had most of it",
                1);
}

/* A piece earns time, so that a body is not slower than 16 KiB/s in any minute. */
static void earn_time(struct http_conn *c, size_t n, double seconds)
{
    const uint64_t most = c->last + (uint64_t)((seconds > 60 ? seconds : 60) * 1e9);
    c->due += (uint64_t)((double)n / 16384 * 1e9);
    if (c->due > most)
        c->due = most;
}

static enum MHD_Result take_body(struct http_exchange *x, const char *data, size_t n)
{
    struct http *h = x->http;
    struct http_conn *c = x->conn;
    c->last = clock_now();
    c->n_body += n;
    earn_time(c, n, h->o.body_seconds);
    http_room_piece(c, n);
    if (x->refused) /* the rest is thrown away, within reason */
        return c->n_body / 2 > h->o.body_bytes ? MHD_NO : MHD_YES;
    size_t want;
    if (c->n_body > h->o.body_bytes) {
        set_refusal(x, 413, "the request's body is too large", 0);
    } else if (!http_room_take(x, n)) {
        set_refusal(x, 503, "too many large requests at once (--limit bodies)", 1);
    } else if (!num_add(x->n_body, n + 1, &want) || !mem_grow(&x->body, &x->cap_body, want, 1)) {
        set_refusal(x, 503, "out of memory for the request's body", 1);
    } else {
        memcpy(x->body + x->n_body, data, n);
        x->n_body += n;
        x->body[x->n_body] = 0;
        atomic_fetch_add(&h->bodies_bytes, n);
    }
    return MHD_YES;
}

void http_request_handle(struct http_exchange *x)
{
    struct http *h = x->http;
    if (x->refused)
        refuse(x, x->refused, x->reason);
    else if (begun(x))
        return;
    else if (atomic_load(&h->no_handlers) || http_poll(x) == HTTP_ENDING)
        refuse(x, 503, "the server is stopping");
    else if (http_poll(x) == HTTP_LATE)
        refuse(x, 504, "the time for this request is up (--limit request-seconds)");
    else
        h->o.handle(h->o.arg, x, &x->rq);
}

/* False: it is away. */
static bool call_handler(struct http_exchange *x)
{
    struct http *h = x->http;
    enum http_lane_answer answer = HTTP_LANE_STOPS;
    double retry = 0;
    x->handled = true;
    x->arrived = clock_now();
    x->conn->phase = HTTP_ANSWER;
    x->rq.body = x->body ? x->body : "";
    x->rq.n_body = x->n_body;
    x->away = (x->n_body || x->takes_long) && !x->refused && !begun(x);
    if (x->away && (answer = http_lane_put(x, &retry)) == HTTP_LANE_TAKEN)
        return false;
    x->away = false;
    if (answer == HTTP_LANE_FULL)
        set_refusal(x, 429, "too many requests wait to be read (--limit reading)", retry);
    pthread_mutex_lock(&h->handling);
    http_request_handle(x);
    pthread_mutex_unlock(&h->handling);
    http_request_forget_body(x);
    x->last_silence = clock_now();
    return true;
}

enum MHD_Result http_request_access(void *arg, struct MHD_Connection *mhd, const char *url,
                                    const char *method, const char *version, const char *data,
                                    size_t *n_data, void **mine)
{
    struct http *h = arg;
    struct http_exchange *x = *mine;
    if (!x)
        return first_call(h, mhd, url, method, version, mine);
    if (*n_data) {
        const size_t n = *n_data;
        *n_data = 0;
        return x->answered ? MHD_YES : take_body(x, data, n);
    }
    if (x->answered)
        return MHD_YES;
    if (!x->handled) {
        if (!call_handler(x)) {
            x->suspended = true;
            MHD_suspend_connection(mhd);
            return MHD_YES;
        }
        /* The client may have hung up while the body came; what is finished is still sent. */
        pthread_mutex_lock(&x->lock);
        const bool ended = x->state == HTTP_ENDED;
        pthread_mutex_unlock(&x->lock);
        if (x->conn->hung_up && !ended) {
            http_exchange_drop(x);
            return MHD_NO;
        }
    }
    return http_exchange_answer(x);
}

void *http_request_uri(void *arg, const char *uri, struct MHD_Connection *mhd)
{
    struct http_conn *c = http_conn_of(arg, mhd);
    if (!c)
        return NULL;
    c->mhd = mhd;
    c->phase = HTTP_HEADER;
    c->since = c->last = clock_now();
    c->uri = uri;
    c->n_uri = strlen(uri);
    c->bad_uri = strstr(uri, "%00") != NULL;
    for (const char *p = uri; *p; p++)
        c->bad_uri |= (unsigned char)*p <= ' ' || *p == 0x7F;
    return NULL;
}

void http_request_completed(void *arg, struct MHD_Connection *mhd, void **mine,
                            enum MHD_RequestTerminationCode why)
{
    struct http_exchange *x = *mine;
    (void)arg, (void)mhd, (void)why;
    if (!x)
        return;
    struct http_conn *c = x->conn;
    *mine = NULL;
    c->phase = HTTP_IDLE;
    c->since = c->last = clock_now();
    http_exchange_finish(x);
}

struct http_conn *http_conn_of(struct http *h, struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    return i && i->connect_fd >= 0 && (size_t)i->connect_fd < h->n_by_fd
               ? h->by_fd[i->connect_fd]
               : NULL;
}
