/*
 * server - `ingle serve` without its terminal.
 *
 * server_open() reads the options and opens every file that they name, then binds the address and
 * answers from then on (/health says that the model loads); server_load() opens engine and
 * scheduler on the caller's thread; server_drain() lets running answers end; server_close() ends
 * everything.
 */
#ifndef INGLE_SERVER_SERVER_H
#define INGLE_SERVER_SERVER_H

#include "base/err.h"
#include "ingle/ingle.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct server;

struct server_options {
    /* [n_listeners] sockets that the starter handed over, instead of "host" and "port"; the
     * server's from server_open() on */
    const int *listener;
    int n_listeners;
    const struct ingle_config *config; /* borrowed until server_close() */
    struct ingle_callbacks callbacks;  /* may be called from any thread of the server */
    /* Brings the files of the models that the options name, and puts their paths there; NULL: they
     * are there.  With it server_load() calls it and opens the model, on the caller's thread. */
    ingle_status (*fetch)(void *arg, struct err *err);
    void *fetch_arg;
    double watchdog_seconds; /* of a step, after which /livez fails; 0: never */
};

MUST_CHECK ingle_status server_open(struct server **out, const struct server_options *o,
                                    struct err *err);
/* The memory that server_load() would plan; without a server. */
MUST_CHECK ingle_status server_plan(const struct ingle_config *config,
                                    struct ingle_callbacks callbacks, struct ingle_plan *out,
                                    struct err *err);
MUST_CHECK ingle_status server_load(struct server *s, struct err *err);
/* Whether /readyz says that no new requests should come; they are accepted all the same. */
void server_set_away(struct server *s, bool away);
/* The same, because the server stops soon. */
void server_set_lingering(struct server *s);
/* Reads a changed file of keys while no request comes; to be called about once a second.  False:
 * there is no such file. */
bool server_renew_keys(struct server *s);
/* No new requests; waits until the running ones are done, at most the seconds of the option
 * "drain", then cancels them. */
void server_drain(struct server *s);
void server_close(struct server *s);

struct server_info {
    char url[192];       /* "http://127.0.0.1:8080" */
    const char *const *more; /* [n_more] what else --host names, at the same port */
    size_t n_more;
    int metrics_port;        /* of --metrics-address; 0: there is none */
    const char *more_path;   /* unix:PATH beside addresses, or NULL */
    const char *model;   /* its id */
    int64_t n_ctx;
    int parallel;        /* answers at once */
    uint64_t weight_bytes, kv_bytes;
    size_t n_keys;
    int64_t n_running;   /* requests whose answers are not complete */
};
void server_describe(const struct server *s, struct server_info *out);
/* Whether steps are being made when there is work: false when one has taken longer than
 * watchdog_seconds. */
bool server_alive(struct server *s);

#endif
