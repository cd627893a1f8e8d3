/*
 * address - where a server listens, and who may ask it: --host, --port, TLS, keys, names, web
 * sites, and the limits of HTTP.
 */
#ifndef INGLE_SERVER_ADDRESS_H
#define INGLE_SERVER_ADDRESS_H

#include "base/err.h"
#include "base/report.h"
#include "http/http.h"
#include "server/route.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdatomic.h>

struct auth;
struct ingle_config;
struct server_info;

enum { ADDRESS_HOSTS = 8 };

struct address {
    const struct ingle_config *config; /* borrowed until address_close() */
    struct auth *auth;
    const char *host[ADDRESS_HOSTS];
    int n_hosts;
    const char *unix_path;
    const int *listener; /* [n_listeners], of the starter; until address_listen() alone */
    int n_listeners;
    char handed[HTTP_NAME]; /* the address of the first one, or "" */
    char *tls_cert, *tls_key;
    struct report_sink sink; /* for a changed file of keys; set before address_open() */
    struct address_file {
        int64_t seconds, ns;
        uint64_t device, inode, size, mode, owner;
    } keys;             /* the file of keys as it was last looked at; who set `renews` */
    uint64_t checked_at; /* clock_now(); the same */
    atomic_bool renews; /* Sync: atomic; a thread looks at the file */
};

/* Reads the options and the files that they name.  *a is zero before except for the sink; ended by
 * address_close() also after a failure. listener [n]: sockets that the starter handed over; they
 * replace --host and --port. */
MUST_CHECK ingle_status address_open(struct address *a, const struct ingle_config *config,
                                     const int *listener, int n, struct err *err);
/* Reads a file of keys again if it has changed, at most once a second.  False: there is none.  Any
 * thread. */
bool address_renew_keys(struct address *a);
/* Listens and starts HTTP.  calls: the functions, and arg; the rest of it comes from the
 * options. */
MUST_CHECK ingle_status address_listen(struct address *a, const struct http_options *calls,
                                       struct http **out, struct err *err);
void address_close(struct address *a);
/* "http://127.0.0.1:8080", what else --host names, and the number of keys. */
void address_describe(const struct address *a, const struct http *h, struct server_info *out);

/* For http_options.admit: adds the headers of every answer, and answers what may not be asked,
 * preflights, and what is in none of the tables [n].  The route, or NULL: it is answered.  *user:
 * the name of the key. */
const struct route *address_admit(struct address *a, struct http_exchange *x,
                                  const struct http_request *rq, const struct route_table *table,
                                  size_t n, const char **user);
/* The headers of every answer, for one that address_admit() has not seen. */
void address_headers(struct http_exchange *x, const struct http_request *rq);

#endif
