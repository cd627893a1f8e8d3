/* SPDX-License-Identifier: Apache-2.0 */
#include "server/route.h"

#include <stdio.h>
#include <string.h>

static const struct route routes[] = {
#define ROUTE(method, path, fn, flags) {method, path, fn, flags, 0},
#include "server/routes.inc"
#undef ROUTE
};

struct route_table route_table(void)
{
    return (struct route_table){routes, sizeof routes / sizeof *routes};
}

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

static bool is_literal(const struct route_table *table, size_t n, const char *path)
{
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < table[k].n; i++)
            if (strcmp(table[k].route[i].path, path) == 0)
                return true;
    return false;
}

static bool serves(const struct route *r, const char *path, bool literal)
{
    return literal ? strcmp(r->path, path) == 0
                   : path_matches(r->path, path, r->flags & SERVE_REST);
}

const struct route *route_find(const struct route_table *table, size_t n,
                               const struct http_request *rq, bool *other_method)
{
    const char *path = serve_path(rq);
    const char *method = strcmp(rq->method, "HEAD") == 0 ? "GET" : rq->method;
    const bool literal = is_literal(table, n, path);
    *other_method = false;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < table[k].n; i++) {
            const struct route *r = &table[k].route[i];
            if (!serves(r, path, literal))
                continue;
            if (strcmp(r->method, method) == 0)
                return r;
            *other_method = true;
        }
    return NULL;
}

void route_methods(const struct route_table *table, size_t n, const struct http_request *rq,
                   char out[ROUTE_METHODS])
{
    const char *path = serve_path(rq);
    const bool literal = is_literal(table, n, path);
    out[0] = 0;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < table[k].n; i++) {
            const struct route *r = &table[k].route[i];
            const size_t at = strlen(out);
            if (serves(r, path, literal) && !strstr(out, r->method))
                snprintf(out + at, (size_t)ROUTE_METHODS - at, "%s%s", r->method,
                         strcmp(r->method, "GET") == 0 ? ", HEAD, " : ", ");
        }
    const size_t at = strlen(out);
    snprintf(out + at, (size_t)ROUTE_METHODS - at, "OPTIONS");
}
