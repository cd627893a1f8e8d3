/*
 * route - which endpoint a request is for.
 *
 * A table of routes is what a server answers: the one of routes.inc, or a router's.  Paths are
 * without /v1; "{}" in one is a segment of the path.  A path that is spelt out in any of the tables
 * comes before one with "{}".
 */
#ifndef INGLE_SERVER_ROUTE_H
#define INGLE_SERVER_ROUTE_H

#include "server/serve.h"
#include <stdbool.h>
#include <stddef.h>

struct route {
    const char *method, *path;
    serve_route_fn *fn; /* of the server with a model; others look at `what` */
    int flags;          /* SERVE_OPEN ... */
    int what;
};

struct route_table {
    const struct route *route; /* [n] */
    size_t n;
};

/* Of a server with one model. */
struct route_table route_table(void);

/* The first route in the tables [n] that takes the request; NULL, and whether the path exists with
 * another method. */
const struct route *route_find(const struct route_table *table, size_t n,
                               const struct http_request *rq, bool *other_method);
/* "GET, HEAD, OPTIONS": what the path takes. */
enum { ROUTE_METHODS = 64 };
void route_methods(const struct route_table *table, size_t n, const struct http_request *rq,
                   char out[ROUTE_METHODS]);

#endif
