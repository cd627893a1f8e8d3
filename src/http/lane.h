/*
 * lane - inside the room: threads that handle requests, and their queues.
 */
#ifndef INGLE_HTTP_LANE_H
#define INGLE_HTTP_LANE_H

#include "http/http.h"
#include <pthread.h>

/* A thread that handles requests.  Sync: http->lock */
struct http_worker {
    struct http_lane *lane;
    struct http_worker *next; /* of those aside */
    pthread_t thread;
    int tid;        /* 0: not known yet */
    uint64_t began; /* ns, with the request at hand; 0: there is none */
    size_t n_body;  /* bytes of the last request */
    bool aside;     /* it ends with that request */
    bool over;      /* it can be joined at once */
};

/* A queue of requests and the worker who takes from it. */
struct http_lane {
    struct http *http;
    pthread_cond_t wake;
    bool large, runs;
    /* Sync: http->lock, as all below */
    struct http_worker *worker;
    struct http_exchange *first, *last;
    bool stop, trim;       /* trim: the allocator's memory is to be given back */
    int n;                 /* requests that wait, */
    size_t n_bytes;        /* ... and their bodies */
    size_t n_done;         /* bytes of bodies that are over since memory was given back */
    double byte_seconds;   /* what a byte takes, recently */
};

#endif
