/*
 * serve - what all endpoints of the server share: the model, the scheduler, the answers, and
 * how an error looks.
 *
 * An endpoint is a line in routes.inc and a function of this type, called with the
 * whole body on one of HTTP's threads (http.h): it checks the request, submits work, and returns.
 */
#ifndef INGLE_SERVER_SERVE_H
#define INGLE_SERVER_SERVE_H

#include "base/json.h"
#include "ingle/ingle.h"
#include "http/http.h"
#include "server/write.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct auth;
struct answer_core;
struct metrics;
struct responses_store;
struct slots;
struct streams;
struct tapes;

enum serve_phase { SERVE_LOADING, SERVE_READY, SERVE_DRAINING };

struct serve {
    atomic_int phase; /* enum serve_phase */
    /* These are there from the start. */
    const struct ingle_config *config; /* the options, also those of group "server" */
    struct ingle_callbacks callbacks;
    struct auth *auth;
    struct http *http;
    struct metrics *metrics;
    const char *_Atomic model_id; /* what /v1/models calls it */
    int64_t created;      /* seconds since 1970 when the server started */
    uint64_t began;          /* clock_now() */
    _Atomic uint64_t loaded; /* the same when the model was there; 0: not yet */
    const char *replica;     /* its name in a fleet; NULL: it has none */
    const char *instance; /* names this process among others */
    double watchdog_seconds; /* of a step, after which the server counts as hung; 0: none */
    atomic_bool away;        /* no new requests should come: SIGUSR2 */
    atomic_bool lingering;   /* ... because the server stops soon */
    struct slots *slots;             /* NULL: none are saved */
    struct json_object *codex_model; /* entry of Codex's catalogue; NULL: none */
    struct responses_store *responses; /* answers and conversations that /v1/responses keeps */
    struct streams *streams;           /* NULL: none can be taken up again */
    struct tapes *tapes;               /* streams of those that need no client */

    /* These once the phase is not SERVE_LOADING; no endpoint without SERVE_EARLY sees that. */
    struct ingle_model *model;
    struct ingle_engine *engine;
    struct ingle_scheduler *scheduler;
    struct answer_core *answers;
    struct ingle_model_info info;
    struct ingle_engine_info engine_info;
    const char *fingerprint; /* "b0.2.0-89abcdef": build and weights */
};
/* For so long a server that ends waits for last requests, and for last words to be read. */
#define SERVE_LAST_NS UINT64_C(2000000000)
/* No new connections from now on.  After --linger a connection that is there may still ask, if it
 * does so soon; all other requests are refused.  Returns the clock_now() at which --drain ends. */
uint64_t serve_close_address(struct serve *s);
/* Time that loading took, or has taken so far. */
double serve_load_seconds(const struct serve *s);
/* May be asked from any thread. */
enum serve_phase serve_phase(const struct serve *s);

typedef void serve_route_fn(struct serve *s, struct http_exchange *x,
                            const struct http_request *rq);

/* The endpoints of routes.inc. */
#define ROUTE(method, path, fn, flags) serve_route_fn fn;
#include "server/routes.inc"
#undef ROUTE

enum {
    SERVE_OPEN = 1,  /* needs no key */
    SERVE_EARLY = 2, /* answers while the model loads */
    SERVE_LONG = 8,  /* may take long without a body: it is not answered on the I/O thread */
    SERVE_REST = 4,  /* the "{}" at its end may have slashes in it */
};

/* The path without a leading /v1: "/models/nano". */
const char *serve_path(const struct http_request *rq);

/* Whether this is one of the model's names. */
bool serve_knows(const struct serve *s, const char *name);

/* A failure as clients see it.  type: "invalid_request_error", "authentication_error",
 * "rate_limit_error", "unavailable_error", "not_supported_error", "server_error"; it is spelt for
 * the dialect of the request's path (OpenAI; Anthropic under /messages, Ollama under /api). */
struct serve_error {
    int status;
    const char *type;     /* NULL: what belongs to the status */
    const char *code;     /* "context_length_exceeded"; NULL: null */
    const char *param;    /* the field of the request; NULL: null */
    double retry_seconds; /* > 0: retry-after */
    bool no_retry;        /* x-should-retry: false */
    const char *extra;    /* more members of the error object: "\"n_ctx\":4096", or NULL */
    bool anthropic;       /* in Anthropic's words, whatever the path is */
};
ATTR_PRINTF(4, 5)
void serve_fail(struct http_exchange *x, const struct http_request *rq,
                const struct serve_error *e, const char *fmt, ...);
/* The error object alone, as an event of a stream carries it:
 * OpenAI: {"error":{...}}, Anthropic: {"type":"error","error":{...},"request_id":...}. */
void serve_error_write(struct str *s, bool anthropic, const struct serve_error *e,
                       const char *request_id, const char *message);
/* The HTTP status that belongs to what the engine said. */
struct serve_error serve_error_of(ingle_status st);

struct fault;
/* No fault, and one that becomes one when nobody waits for the answer of x any more. */
struct fault serve_watch(struct http_exchange *x);

/* 200 and JSON; s is released.  500 if memory ran out while it was written. */
void serve_json(struct http_exchange *x, const struct http_request *rq, struct str *s);

#endif
