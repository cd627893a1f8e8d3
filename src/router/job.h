/*
 * job - inside the room: a request to a model's process.
 */
#ifndef INGLE_ROUTER_JOB_H
#define INGLE_ROUTER_JOB_H

#include "router/inner.h"

/* A request that is passed on.  Only the router's thread uses it, except for members that are
 * atomic and those that the handler sets before. */
struct router_job {
    struct router_job *next;         /* in `incoming`, or of those that wait for a model */
    struct router_job *next_flagged; /* Sync: router->lock */
    bool flagged;                    /* Sync: router->lock */
    struct router_job *next_active, **active_at; /* of those that a process has */
    struct router *router;
    struct http_exchange *x; /* NULL: it asks for the router itself */
    struct router_model *model;
    struct http_request rq; /* method, path, id: what errors look at */
    char *user;             /* of its key; "" without keys */
    char *target;           /* with its query */
    struct curl_slist *headers;
    char *body; /* [n_body] */
    size_t n_body;
    /* [n_candidates] numbers of models that are asked in turn while the answer is 404 */
    uint32_t *candidate;
    size_t n_candidates, at_candidate;
    bool sse;        /* the answer will be a stream of events */
    bool use;        /* it counts as a use of the model */
    bool autoload;
    bool let_go;     /* its model is unloaded when its answers are done */
    bool passed;     /* the client has something of the answer */
    atomic_bool closed, room, silent;
    uint64_t arrived;

    CURL *easy; /* NULL: it is not with a process */
    int n_tries; /* connections that were refused */
    int n_lost;  /* processes that ended before they had answered */
    int status;
    bool begun, streams, whole, paused, finished, counted;
    char content_type[128];
    struct str head;  /* "name\0value\0" ... */
    struct str reply; /* a whole answer, or the beginning of an event */
    struct router_gather *gather; /* instead of x */
};

/* Answers of several processes that become one. */
struct router_gather {
    struct http_exchange *x; /* held; NULL: an entry of a list of models */
    struct http_request rq;
    int n_left;
    struct {
        char *id;
        struct str text;
    } *part; /* [n] */
    size_t n;
};

#endif
