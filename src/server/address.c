/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "server/address.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "server/auth.h"
#include "server/server.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const uint64_t CHECK_NS = 1000000000;

/* ---- options ---- */

static ingle_status too_open(const struct address *a, const char *what, const char *address,
                             struct err *err)
{
    if (auth_n_keys(a->auth) || ingle_config_flag(a->config, "insecure-no-auth"))
        return INGLE_OK;
    return err_set(
        err, INGLE_ARG,
        "'%s%s' is reachable from other machines, and there is no key: give --api-key-file, or "
        "--insecure-no-auth if that is what you want",
        what, address);
}

static ingle_status read_listeners(struct address *a, struct err *err)
{
    ingle_status st = INGLE_OK;
    for (int i = 0; i < a->n_listeners && !st; i++) {
        char name[HTTP_NAME];
        bool local;
        st = http_describe_listener(a->listener[i], name, sizeof name, &local, err);
        if (!st && !local)
            st = too_open(a, "", name, err);
        if (!st && !i)
            memcpy(a->handed, name, sizeof name);
    }
    return st;
}

static ingle_status read_hosts(struct address *a, struct err *err)
{
    const struct ingle_config *c = a->config;
    const char *host;
    for (size_t i = 0; (host = ingle_config_text(c, "host", i)); i++) {
        if (strncmp(host, "unix:", 5) == 0) {
            a->unix_path = host + 5;
            if (!*a->unix_path)
                return err_set(err, INGLE_ARG, "'--host unix:' needs a path after the colon");
            continue;
        }
        if (a->n_hosts >= (int)(sizeof a->host / sizeof *a->host) - 1)
            return err_set(err, INGLE_LIMIT, "option '--host' is given more than 7 times");
        bool local;
        ingle_status st = http_host_is_local(host, &local, err);
        if (!st && !local)
            st = too_open(a, "--host ", host, err);
        if (st)
            return st;
        a->host[a->n_hosts++] = host;
    }
    return INGLE_OK;
}

static ingle_status read_keys(const struct address *a, struct auth *into, struct err *err)
{
    const char *path = ingle_config_text(a->config, "api-key-file", 0), *key;
    ingle_status st = path ? auth_add_keys(into, path, err) : INGLE_OK;
    for (size_t i = 0; !st && (key = ingle_config_text(a->config, "api-key", i)); i++)
        st = auth_add_key(into, key, err);
    return st;
}

/* What a changed file of keys is recognised by; zeros: there is none. */
static struct address_file stat_keys(const struct address *a)
{
    struct stat is;
    const char *path = ingle_config_text(a->config, "api-key-file", 0);
    if (!path || stat(path, &is))
        return (struct address_file){0};
    return (struct address_file){is.st_mtim.tv_sec,     is.st_mtim.tv_nsec,
                                 (uint64_t)is.st_dev,   (uint64_t)is.st_ino,
                                 (uint64_t)is.st_size,  (uint64_t)is.st_mode,
                                 (uint64_t)is.st_uid << 32 | (uint64_t)is.st_gid};
}

/* A file of keys that has changed is read again, within a second of it; the old keys stay where
 * the new ones cannot be read. */
static void read_again(struct address *a, const char *path)
{
    const uint64_t now = clock_now();
    if (now - a->checked_at < CHECK_NS)
        return;
    a->checked_at = now;
    const struct address_file is = stat_keys(a);
    if (memcmp(&is, &a->keys, sizeof is) == 0)
        return;
    a->keys = is;
    struct auth *fresh = NULL;
    struct err err = {0};
    ingle_status st = auth_open(&fresh, &err);
    if (!st)
        st = read_keys(a, fresh, &err);
    if (!st)
        st = auth_take_keys(a->auth, fresh, &err);
    if (st)
        report(&a->sink, INGLE_REPORT_WARN, "keys", path,
               "it has changed and cannot be used, so the old keys stay: %s", err.msg);
    else
        report(&a->sink, INGLE_REPORT_NOTE, "keys", path, "it has changed: %zu keys",
               auth_n_keys(a->auth));
    auth_close(fresh);
}

bool address_renew_keys(struct address *a)
{
    const char *path = ingle_config_text(a->config, "api-key-file", 0);
    if (!path)
        return false;
    if (!atomic_exchange(&a->renews, true)) { /* else another thread is at it */
        read_again(a, path);
        atomic_store(&a->renews, false);
    }
    return true;
}

static ingle_status read_access(struct address *a, struct err *err)
{
    const struct ingle_config *c = a->config;
    const char *origins = ingle_config_text(c, "cors-origins", 0), *name;
    ingle_status st = auth_open(&a->auth, err);
    if (!st && ingle_config_flag(c, "trust-user"))
        auth_trust(a->auth);
    a->keys = stat_keys(a);
    if (!st)
        st = read_keys(a, a->auth, err);
    if (!st && origins)
        st = auth_add_origins(a->auth, origins, err);
    for (size_t i = 0; !st && (name = ingle_config_text(c, "max-priority", i)); i++)
        st = auth_add_priority(a->auth, name, err);
    for (size_t i = 0; !st && (name = ingle_config_text(c, "allowed-host", i)); i++)
        st = auth_add_host(a->auth, name, err);
    if (!st)
        st = a->n_listeners ? read_listeners(a, err) : read_hosts(a, err);
    if (!st && auth_trusts(a->auth) && (a->n_listeners || a->n_hosts || !a->unix_path))
        st = err_set(err, INGLE_ARG,
                     "'--trust-user' is only for '--host unix:PATH': at another address anybody "
                     "could be anybody");
    return st;
}

static ingle_status read_tls(struct address *a, struct err *err)
{
    const char *cert = ingle_config_text(a->config, "tls-cert", 0);
    const char *key = ingle_config_text(a->config, "tls-key", 0);
    size_t n;
    if (!cert && !key)
        return INGLE_OK;
    if (!cert || !key)
        return err_set(err, INGLE_ARG, "'--tls-cert' and '--tls-key' must be given together");
    ingle_status st = file_slurp(cert, 1 << 20, &a->tls_cert, &n, err);
    if (!st)
        st = file_slurp(key, 1 << 20, &a->tls_key, &n, err);
    if (!st && !strstr(a->tls_cert, "-----BEGIN CERTIFICATE-----"))
        st = err_set(err, INGLE_FORMAT, "--tls-cert '%s' has no certificate in PEM form", cert);
    if (!st && !strstr(a->tls_key, "PRIVATE KEY-----"))
        st = err_set(err, INGLE_FORMAT, "--tls-key '%s' has no private key in PEM form", key);
    return st;
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

ingle_status address_listen(struct address *a, const struct http_options *calls, struct http **out,
                            struct err *err)
{
    const struct ingle_config *c = a->config;
    const struct http_options o = {
        .listener = a->listener,
        .n_listeners = a->n_listeners,
        .host = a->host,
        .n_host = a->n_hosts     ? a->n_hosts
                  : a->unix_path ? -1
                                 : 0,
        .port = (int)ingle_config_number(c, "port"),
        .unix_path = a->unix_path,
        .tls_cert = a->tls_cert,
        .tls_key = a->tls_key,
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
        .admit = calls->admit,
        .handle = calls->handle,
        .refuse = calls->refuse,
        .finished = calls->finished,
        .tick = calls->tick,
        .arg = calls->arg,
    };
    raise_descriptors((rlim_t)o.max_connections + 128);
    return http_open(out, &o, err);
}

ingle_status address_open(struct address *a, const struct ingle_config *config, const int *listener,
                          int n, struct err *err)
{
    a->config = config;
    a->listener = listener;
    a->n_listeners = n;
    const ingle_status st = read_access(a, err);
    return st ? st : read_tls(a, err);
}

void address_close(struct address *a)
{
    auth_close(a->auth);
    mem_free(a->tls_cert);
    if (a->tls_key)
        memset(a->tls_key, 0, strlen(a->tls_key));
    mem_free(a->tls_key);
}

void address_describe(const struct address *a, const struct http *h, struct server_info *out)
{
    const char *host = a->n_hosts ? a->host[0] : "127.0.0.1";
    const bool v6 = strchr(host, ':') != NULL;
    out->n_keys = auth_n_keys(a->auth);
    out->more = a->host + 1;
    out->n_more = a->n_hosts > 1 ? (size_t)a->n_hosts - 1 : 0;
    out->more_path = a->n_hosts ? a->unix_path : NULL;
    if (a->handed[0])
        snprintf(out->url, sizeof out->url, "%s%s", strncmp(a->handed, "unix:", 5) == 0 ? ""
                 : a->tls_cert ? "https://" : "http://", a->handed);
    else if (a->unix_path && !a->n_hosts)
        snprintf(out->url, sizeof out->url, "unix:%s", a->unix_path);
    else
        snprintf(out->url, sizeof out->url, "http%s://%s%s%s:%d", a->tls_cert ? "s" : "",
                 v6 ? "[" : "", host, v6 ? "]" : "", http_port(h));
}

/* ---- requests ---- */

void address_headers(struct http_exchange *x, const struct http_request *rq)
{
    http_header(x, "X-Request-Id", rq->id);
    http_header(x, "Request-Id", rq->id);
    http_header(x, "Cache-Control", "no-cache, no-transform");
    http_header(x, "X-Accel-Buffering", "no");
    http_header(x, "X-Content-Type-Options", "nosniff");
}

/* Requests that a web page of somebody else sends are refused, whatever they ask. */
static bool browser_may(const struct address *a, struct http_exchange *x,
                        const struct http_request *rq)
{
    const struct serve_error no = {.status = 403};
    const char *host = http_request_header(rq, "host");
    const char *origin = http_request_header(rq, "origin");
    const char *site = http_request_header(rq, "sec-fetch-site");
    if (!auth_host(a->auth, host)) {
        serve_fail(x, rq, &no, "host '%s' is not allowed: see --allowed-host", host);
        return false;
    }
    /* A preflight is answered: that the answer names no origin is the refusal. */
    if (origin && strcmp(rq->method, "OPTIONS") != 0 && !auth_origin(a->auth, origin, host)) {
        serve_fail(x, rq, &no, "origin '%s' is not allowed: see --cors-origins", origin);
        return false;
    }
    if (!origin && site && strcmp(site, "cross-site") == 0) {
        serve_fail(x, rq, &no, "requests from other web sites are not allowed");
        return false;
    }
    const char *cors = auth_cors(a->auth, origin);
    if (cors) {
        http_header(x, "Access-Control-Allow-Origin", cors);
        http_header(x, "Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After");
        http_header(x, "Vary", "Origin");
    }
    return true;
}

/* OPTIONS: what a browser asks before it sends the real request. */
static void preflight(const struct address *a, struct http_exchange *x,
                      const struct http_request *rq, const struct route_table *table, size_t n)
{
    const char *asked = http_request_header(rq, "access-control-request-headers");
    char allow[ROUTE_METHODS];
    route_methods(table, n, rq, allow);
    if (auth_cors(a->auth, http_request_header(rq, "origin"))) {
        http_header(x, "Access-Control-Allow-Methods", allow);
        http_header(x, "Access-Control-Allow-Headers",
                    asked ? asked : "Authorization, Content-Type, X-Api-Key");
        http_header(x, "Access-Control-Max-Age", "600");
    }
    http_header(x, "Allow", allow);
    http_reply(x, 200, "text/plain", "", 0);
}

static void wrong_method(struct http_exchange *x, const struct http_request *rq,
                         const struct route_table *table, size_t n)
{
    char allow[ROUTE_METHODS];
    route_methods(table, n, rq, allow);
    http_header(x, "Allow", allow);
    char *at;
    while ((at = strstr(allow, "HEAD, ")))
        memmove(at, at + 6, strlen(at + 6) + 1);
    if ((at = strstr(allow, ", OPTIONS")))
        *at = 0;
    serve_fail(x, rq, &(struct serve_error){.status = 405}, "%s takes %s, not %s", rq->path, allow,
               rq->method);
}

/* Without second slashes and a second /v1, as base URLs bring them: "" if that is no endpoint
 * either. */
static void near_path(const struct http_request *rq, const struct route_table *table, size_t n,
                      char out[256])
{
    size_t k = 0;
    bool other;
    for (const char *p = rq->path; *p && k < 255; p++)
        if (*p != '/' || !k || out[k - 1] != '/')
            out[k++] = *p;
    out[k] = 0;
    while (strncmp(out, "/v1/v1/", 7) == 0)
        memmove(out, out + 3, strlen(out + 3) + 1);
    const struct http_request other_path = {.method = rq->method, .path = out};
    if (strcmp(out, rq->path) == 0 || (!route_find(table, n, &other_path, &other) && !other))
        out[0] = 0;
}

static void no_endpoint(struct http_exchange *x, const struct http_request *rq,
                        const struct route_table *table, size_t n)
{
    char near[256];
    near_path(rq, table, n, near);
    serve_fail(x, rq, &(struct serve_error){.status = 404, .code = "unknown_url"},
               "there is no endpoint %s %s%s%s%s", rq->method, rq->path, *near ? "; it is " : "",
               near, *near ? ": the client's base URL has too much at its end" : "");
}

const struct route *address_admit(struct address *a, struct http_exchange *x,
                                  const struct http_request *rq, const struct route_table *table,
                                  size_t n, const char **user)
{
    bool other_method;
    address_headers(x, rq);
    (void)address_renew_keys(a);
    if (!browser_may(a, x, rq))
        return NULL;
    if (strcmp(rq->method, "OPTIONS") == 0) {
        preflight(a, x, rq, table, n);
        return NULL;
    }
    const struct route *r = route_find(table, n, rq, &other_method);
    if (auth_n_keys(a->auth)) {
        *user = auth_key(a->auth, http_request_header(rq, "authorization"),
                         http_request_header(rq, "x-api-key"));
        if (!*user && !(r && (r->flags & SERVE_OPEN))) {
            http_header(x, "WWW-Authenticate", "Bearer");
            serve_fail(x, rq, &(struct serve_error){.status = 401, .code = "invalid_api_key"},
                       "Invalid API Key");
            return NULL;
        }
    }
    const char *user_name = auth_trusts(a->auth) ? http_request_header(rq, "x-ingle-user") : NULL;
    if (user_name && *user_name)
        *user = auth_user(a->auth, user_name);
    if (r)
        return r;
    if (other_method)
        wrong_method(x, rq, table, n);
    else
        no_endpoint(x, rq, table, n);
    return NULL;
}
