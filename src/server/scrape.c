/* SPDX-License-Identifier: Apache-2.0 */
#include "server/scrape.h"

#include "base/mem.h"
#include "http/http.h"
#include "server/auth.h"
#include "server/fleet.h"
#include "server/route.h"
#include "server/serve.h"

#include <stdlib.h>
#include <string.h>

enum { HOST = 256, CONNECTIONS = 64 };

struct scrape {
    struct serve *serve;
    struct http *http;
};

static const struct route routes[] = {
    {"GET", "/metrics", endpoints_metrics, 0, 0},
    {"GET", "/livez", fleet_livez, 0, 0},
    {"GET", "/readyz", fleet_readyz, 0, 0},
};
static const struct route_table table = {routes, sizeof routes / sizeof *routes};

/* No pages of other web sites read the counters of this machine. */
static bool browser_may(const struct scrape *c, const struct http_request *rq)
{
    return auth_host(c->serve->auth, http_request_header(rq, "host")) &&
           !http_request_header(rq, "origin");
}

static void admit(void *arg, struct http_exchange *x, const struct http_request *rq,
                  const char **user)
{
    bool other_method;
    (void)user;
    http_header(x, "Cache-Control", "no-cache");
    if (!browser_may(arg, rq))
        serve_fail(x, rq, &(struct serve_error){.status = 403},
                   "this host is not allowed: see --allowed-host");
    else if (!route_find(&table, 1, rq, &other_method))
        serve_fail(x, rq, &(struct serve_error){.status = other_method ? 405 : 404},
                   "this address has /metrics, /livez and /readyz, and GET for them");
}

static void handle(void *arg, struct http_exchange *x, const struct http_request *rq)
{
    const struct scrape *c = arg;
    bool other_method;
    route_find(&table, 1, rq, &other_method)->fn(c->serve, x, rq);
}

static void refuse(void *arg, struct http_exchange *x, const struct http_request *rq, int status,
                   const char *reason)
{
    (void)arg;
    serve_fail(x, rq, &(struct serve_error){.status = status}, "%s", reason);
}

/* "[::1]:9090" to "::1" and 9090. */
static ingle_status split(const char *address, char host[HOST], int *port, struct err *err)
{
    const char *colon = strrchr(address, ':');
    const size_t n = colon ? (size_t)(colon - address) : 0;
    const bool brackets = n > 2 && address[0] == '[' && address[n - 1] == ']';
    char *end = NULL;
    const long v = colon && colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &end, 10) : -1;
    if (!n || n >= HOST || v < 0 || *end)
        return err_set(err, INGLE_ARG, "'--metrics-address %s' is not HOST:PORT", address);
    if (v > 65535)
        return err_set(err, INGLE_ARG, "'--metrics-address %s': port %ld is above 65535", address,
                       v);
    memcpy(host, address + brackets, n - 2 * (size_t)brackets);
    host[n - 2 * (size_t)brackets] = 0;
    *port = (int)v;
    return INGLE_OK;
}

ingle_status scrape_open(struct scrape **out, const char *address, struct serve *s, struct err *err)
{
    char host[HOST];
    const char *hosts[] = {host};
    struct scrape *c = mem_zalloc(sizeof *c);
    if (!c)
        return err_set(err, INGLE_NOMEM, "no memory for --metrics-address");
    c->serve = s;
    struct http_options o = {.host = hosts,
                             .n_host = 1,
                             .max_connections = CONNECTIONS,
                             .max_per_address = CONNECTIONS,
                             .body_bytes = 1024,
                             .admit = admit,
                             .handle = handle,
                             .refuse = refuse,
                             .arg = c};
    ingle_status st = split(address, host, &o.port, err);
    if (!st && (st = http_open(&c->http, &o, err)))
        st = err_prefix(err, "--metrics-address %s", address);
    if (st) {
        mem_free(c);
        return st;
    }
    *out = c;
    return INGLE_OK;
}

int scrape_port(const struct scrape *c) { return http_port(c->http); }

void scrape_close(struct scrape *c)
{
    if (!c)
        return;
    http_close(c->http);
    mem_free(c);
}
