/* http_inner - what the files of http share.  See http.h for the ideas. */
#ifndef INGLE_HTTP_INNER_H
#define INGLE_HTTP_INNER_H

#include "base/str.h"
#include "http/lane.h"
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum { HTTP_LISTENERS = 8 };

enum http_phase {
    HTTP_HEADER, /* the request line and headers arrive */
    HTTP_BODY,
    HTTP_ANSWER, /* the handler has the request */
    HTTP_IDLE,   /* between two requests */
};

/* A connection.  I/O thread only. */
struct http_conn {
    int fd;
    uint32_t generation; /* distinguishes a descriptor's users in events that arrive late */
    struct MHD_Connection *mhd;
    struct http_exchange *x; /* the request at hand, or NULL */
    enum http_phase phase;
    uint64_t since, last; /* start of the phase, last piece of it; ns */
    uint64_t due;         /* of a body: when it is late; ns */
    uint64_t step;        /* ... and when it had last brought a step of n_step bytes; ns */
    size_t n_step;
    size_t n_body;        /* bytes of this body, also dropped ones */
    bool input_ended;     /* the client has ended its sending side, or all */
    bool hung_up;         /* and is taken to have left */
    const char *uri;      /* [n_uri] as it came, while the head is looked at */
    size_t n_uri;
    bool bad_uri;
    unsigned char address[16]; /* of IPv6 the network (/64) */
    bool counted;         /* the address counts for max_per_address */
};

struct http_exchange {
    atomic_int refs;
    pthread_mutex_t lock;

    /* Sync: lock */
    struct http *http; /* NULL: over */
    enum { HTTP_OPEN, HTTP_STARTED, HTTP_ENDED } state;
    bool closed, whole;
    int status;
    char *content_type;
    struct str header; /* "name\0value\0" ... */
    char *out;         /* [n_out], of which the first n_sent were sent */
    size_t n_out, n_sent, cap_out;
    uint64_t last_write, last_drain; /* ns */
    uint64_t full_since; /* ns; 0: there is room */
    size_t n_counted;    /* of it in http->replies_bytes */
    uint64_t full_mark;  /* ns; when it had taken enough, recently, ... */
    size_t n_taken;      /* ... and what it has taken since */

    /* Sync: http->lock */
    bool queued;
    struct http_exchange *next;

    bool returned; /* the handler's thread is through with it */
    uint64_t arrived; /* ns; set before the handler is called */

    /* Sync: http->lock */
    struct http_exchange *next_away;

    /* I/O thread only; what handlers set (tag, close, close_fn to silence_ns) belongs to the
     * handler's thread while it is away */
    bool away, takes_long;
    struct http_conn *conn; /* NULL: over */
    bool suspended, answered, handled, close_called, close;
    int tag;
    int refused;         /* status, decided while the body arrives; 0: none */
    const char *reason;
    double retry_seconds; /* ... and when it may be tried again; 0: not said */
    void (*close_fn)(void *arg);
    void *close_arg;
    void (*silence_fn)(void *arg);
    void *silence_arg;
    uint64_t silence_ns, last_silence;
    void (*room_fn)(void *arg);
    void *room_arg;

    struct http_request rq;
    char *path;
    char method[24], id[HTTP_ID + 1];
    char *body; /* [n_body] */
    size_t n_body, cap_body;
    struct http_owner *owner; /* NULL: the body has no room of its own */
    size_t n_room;            /* bytes of it that count for the owner */
    void (*own_fn)(void *arg);
    void *own_arg;
};

struct http {
    struct http_options o;
    struct MHD_Daemon *mhd;
    int epoll, wake, mhd_epoll;
    int listener[HTTP_LISTENERS], n_listeners, port;
    atomic_bool listening; /* written by the I/O thread alone, once it runs */
    bool paused;           /* I/O thread only */
    bool at_rest;           /* no tick is needed before something happens; I/O thread only */
    bool unix_bound; /* unix_path is ours: this file */
    dev_t unix_dev;
    ino_t unix_ino;
    pthread_t thread;
    bool thread_runs;
    atomic_bool stop, no_more, letting_go;
    struct http_conn **by_fd; /* [n_by_fd]; I/O thread only */
    size_t n_by_fd;
    size_t checked; /* of by_fd, in the round of tick() that goes on; 0: none does */
    uint32_t generation;
    uint64_t id_seed, id_count;
    atomic_size_t bodies_bytes; /* written by the I/O thread alone */
    struct http_owner *owners;  /* of large bodies, which count here: */
    size_t room_bytes;          /* I/O thread only */
    atomic_size_t replies_bytes;
    atomic_uint_least64_t n_no_room;
    uint64_t pressed_until;     /* who reads nothing goes at once until then; I/O thread only */
    atomic_bool no_room;        /* an answer has found no room recently */
    int64_t most_exchanges;     /* since memory was given back; I/O thread only */
    struct http_lane lane[2]; /* for small bodies, for large ones */
    pthread_mutex_t handling; /* while the I/O thread itself calls a handler */
    atomic_bool no_handlers, ending;
    struct http_worker *aside; /* Sync: lock */
    int n_aside;               /* Sync: lock */

    pthread_mutex_t lock;
    struct http_exchange *ready; /* Sync: lock */
    atomic_int n_signals;        /* threads about to wake this one */

    atomic_uint_least64_t n_connections, n_requests, n_bad, n_timeouts, n_disconnected, n_overruns,
        n_full;
    atomic_uint_least64_t full_ns;
    atomic_int_least64_t n_open, n_exchanges;
    atomic_uint_least64_t busy_ns, longest_ns;
};

#endif
