/*
 * http - the HTTP/1.1 ground: sockets, limits, timeouts, requests in, bytes out.
 *
 * One I/O thread does everything with sockets (libmicrohttpd parses; our own epoll loop drives it,
 * watches for clients that leave, and keeps the time).  An exchange is one request and its answer.
 * The handler is called when the body is complete: on the I/O thread if there is none (then it must
 * not take long), else, or when http_takes_long() was said, on a thread for small bodies or on one
 * for large ones, so that no client waits for another one's megabytes. One that takes longer than a
 * second moves aside, so that others are read meanwhile.  It answers at once, or keeps the exchange
 * with http_hold() and lets another thread answer later.  A handler that computes asks http_poll()
 * now and then whether anybody still wants what it does.
 *
 * An answer is either whole (http_reply) or a stream (http_begin, http_write ..., http_end). These
 * calls may come from any thread, one at a time for one exchange, and never block: what the client
 * has not read yet waits in memory.  Whoever writes a stream stops when http_full() says so and
 * goes on when http_on_room() reports room again: then the client may be as slow
 * as it likes, but not slower than half of options.ring_bytes in stall_seconds while the stream is
 * full; one that is, is dropped.  So is a client of a stream whose writer stops for nobody, when it
 * takes nothing for stall_seconds.  When an answer has ended or is whole, half of ring_bytes must
 * be taken in three times that while more is left.
 *
 * The functions given to http_on_close() and http_silence() are called on the I/O thread, never
 * after the exchange's memory was freed; http_own() ties the dialect's own memory to it.
 */
#ifndef INGLE_HTTP_HTTP_H
#define INGLE_HTTP_HTTP_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http;
struct http_exchange;

enum { HTTP_ID = 128 }; /* bytes of a client's own id for a request, at most */

struct http_request {
    const char *method; /* "GET" */
    const char *path;   /* percent-decoded, query cut, one trailing slash stripped ("/" stays) */
    const char *body;   /* [n_body] and a 0 after it; inside the handler only */
    size_t n_body;
    const char *user;   /* name of the API key that was used, "" */
    /* the client's x-request-id, if it is one of 1 to HTTP_ID visible characters, else
     * "req_0123456789abcdef"; sent as x-request-id and request-id */
    const char *id;
    struct http_exchange *exchange; /* for the look-ups below */
};

/* A header's value (names without regard to case) or a query parameter's, percent-decoded;
 * NULL if it is not there.  Inside the handler only. */
const char *http_request_header(const struct http_request *rq, const char *name);
const char *http_request_query(const struct http_request *rq, const char *name);
/* Calls fn for each header, or each query parameter, percent-decoded; value may be "". */
typedef void http_field_fn(void *arg, const char *name, const char *value);
void http_request_each(const struct http_request *rq, bool query, http_field_fn *fn, void *arg);

typedef void http_handler_fn(void *arg, struct http_exchange *x, const struct http_request *rq);

/* ---- the answer; any thread ---- */

/* Adds a header to the answer, before http_reply() or http_begin().  Control characters in
 * the value become spaces. */
void http_header(struct http_exchange *x, const char *name, const char *value);
/* The whole answer.  bytes are copied.  Nothing happens if the client has disconnected.  Where so
 * much waits in whole answers that this one finds no room (options.replies_bytes), the client gets
 * a 503 instead. */
void http_reply(struct http_exchange *x, int status, const char *content_type, const void *bytes,
                size_t n);
/* Starts a stream (chunked).  The headers go out with the first bytes or at once. */
void http_begin(struct http_exchange *x, int status, const char *content_type);
/* False when the client has disconnected or was dropped: nothing more will be sent. */
bool http_write(struct http_exchange *x, const void *bytes, size_t n);
void http_end(struct http_exchange *x);
/* Whether the client has disconnected (or was dropped). */
bool http_is_closed(struct http_exchange *x);
/* After a write, by who has set http_on_room(): more than ring_bytes are unread, so no more
 * should come, until that function is called.  False as well when the client has disconnected. */
bool http_full(struct http_exchange *x);
/* Bytes that were written and not sent yet. */
size_t http_unread(struct http_exchange *x);

/* ---- the exchange's life ---- */

/* Called once on the I/O thread if the client leaves, or is dropped, before http_reply() or
 * http_end(); within 50 ms of the event, but not before the handler has returned.  Set it in
 * the handler. */
void http_on_close(struct http_exchange *x, void (*fn)(void *arg), void *arg);
/* fn is called on the I/O thread after http_full() was true, when no more than half of ring_bytes
 * are unread; not any more when the answer has ended.  Set it in the handler. */
void http_on_room(struct http_exchange *x, void (*fn)(void *arg), void *arg);
/* fn is called on the I/O thread each time `seconds` have passed without a write, from the
 * handler's return until the answer ends: for keep-alive.  It may write.  Set it in the
 * handler; seconds 0: never. */
void http_silence(struct http_exchange *x, double seconds, void (*fn)(void *arg), void *arg);
/* A reference, for another thread; each hold is ended by one release. */
void http_hold(struct http_exchange *x);
void http_release(struct http_exchange *x);
/* Whether the answer is wanted: the client may have left, options.request_seconds may be over, or
 * the server may be ending.  Any thread. */
enum http_poll { HTTP_WANTED, HTTP_LEFT, HTTP_LATE, HTTP_ENDING };
enum http_poll http_poll(struct http_exchange *x);
/* When all of the request was there; clock_now().  From the handler on. */
uint64_t http_arrived(const struct http_exchange *x);
/* The handler is called on a thread for requests with bodies although there is none.  Inside
 * admit. */
void http_takes_long(struct http_exchange *x);
/* A number for http_options.over; inside the handler. */
void http_tag(struct http_exchange *x, int tag);
int http_get_tag(const struct http_exchange *x); /* 0: it has none; inside the handler */
/* free_fn(arg) is called when the last reference goes (on whatever thread); neither of the
 * two functions above is called after it. */
void http_own(struct http_exchange *x, void (*free_fn)(void *arg), void *arg);

/* ---- the server ---- */

struct http_options {
    const int *listener; /* [n_listeners] sockets that listen already: no other is bound, these are
                            closed by http_close(); borrowed for the call */
    int n_listeners;
    const char *const *host; /* [n_host] addresses or names to listen on; 0: 127.0.0.1 and ::1 */
    int n_host;
    int port;              /* 0: any free one, see http_port() */
    const char *unix_path; /* NULL, or a socket in the file system, besides the hosts; with
                              n_host < 0 it is the only one */
    const char *tls_cert, *tls_key; /* PEM texts; NULL: no TLS */
    int max_connections;  /* 0: 1024 */
    int max_per_address;   /* from one address, loopback excepted; 0: 64 */
    size_t header_bytes;   /* of request line and headers; 0: 32 KiB */
    size_t body_bytes;     /* 0: 64 MiB */
    size_t bodies_bytes;   /* of all bodies at once; 0: 4 x body_bytes */
    /* Requests whose bodies wait for the thread that handles them, small and large ones apart;
     * more are refused with 429.  0: 256, 2 x body_bytes; one that waits alone may be larger. */
    int max_reading;
    size_t reading_bytes;
    size_t ring_bytes;     /* unread bytes of a stream that make it full; 0: 256 KiB */
    /* of whole answers above 64 KiB whose clients have not taken all; 0: 4 x body_bytes */
    size_t replies_bytes;
    /* For the headers to arrive, between two pieces of the body, between two requests of a
     * connection, for the client to take what is there; 0: 10, 30, 60, 10 */
    double header_seconds, body_seconds, idle_seconds, stall_seconds;
    /* from a request's arrival to the end of its answer, for http_poll(); 0: any */
    double request_seconds;
    bool half_close_ok;    /* a client that has ended its sending side has not left */
    /* Called when the headers are there, before the body is read (rq->body is NULL): answers
     * what must be refused, else sets *user (may stay NULL; borrowed until http_close()). */
    void (*admit)(void *arg, struct http_exchange *x, const struct http_request *rq,
                  const char **user);
    http_handler_fn *handle;
    /* Answers (with http_reply()) a request that this layer refuses: status and reason in
     * words.  NULL: plain text. */
    void (*refuse)(void *arg, struct http_exchange *x, const struct http_request *rq, int status,
                   const char *reason);
    /* An exchange whose tag is not 0 is over.  On the I/O thread; may be NULL. */
    void (*finished)(void *arg, int tag);
    /* On the I/O thread, ten times a second while there are connections or exchanges, or while it
     * returns true; may be NULL. */
    bool (*tick)(void *arg);
    void *arg;
};

/* The address of a listening socket ("127.0.0.1:80", "[::1]:80", "unix:/run/x") and whether only
 * this machine reaches it.  INGLE_ARG: it is none. */
enum { HTTP_NAME = 128 };
MUST_CHECK ingle_status http_describe_listener(int fd, char *name, size_t n_name, bool *local,
                                               struct err *err);

/* Whether only this machine reaches the address, or all addresses of the name.  INGLE_ARG: there is
 * no such host. */
MUST_CHECK ingle_status http_host_is_local(const char *host, bool *local, struct err *err);

/* Binds the socket and starts the I/O thread. */
MUST_CHECK ingle_status http_open(struct http **out, const struct http_options *o,
                                  struct err *err);
int http_port(const struct http *h);
/* Each connection ends after its next answer from now on, so that clients open new ones, which a
 * balancer sends elsewhere. */
void http_let_go(struct http *h);
/* No new connections from now on, and http_let_go(); those at which nothing is asked end. */
void http_close_listener(struct http *h);
/* Until every request has its answer, or clock_now() is `end`.  `connections`: until all of them
 * have ended, too, so that who came before http_close_listener() can still ask. */
void http_wait(struct http *h, bool connections, uint64_t end);
/* http_poll() says HTTP_ENDING from now on; requests that wait for their handler get a 503. */
void http_hurry(struct http *h);
/* No handler is called from now on; those that run have ended.  Requests get a 503. */
void http_stop_handlers(struct http *h);
/* Ends every exchange (their on_gone is called), the thread, and the sockets. */
void http_close(struct http *h);

struct http_counters {
    uint64_t n_connections, n_requests, n_bad_requests, n_timeouts, n_disconnected, n_overruns;
    uint64_t n_full;        /* times that a stream was full, */
    double full_seconds;    /* ... and for how long, all together, those that are not any more */
    int64_t n_open, n_exchanges;
    int64_t n_reading;        /* requests that wait for their handler */
    int64_t n_aside;          /* handlers that have moved aside */
    uint64_t reading_bytes;   /* ... and their bodies */
    uint64_t bodies_bytes;    /* of all requests that arrive, wait, or are being read */
    uint64_t replies_bytes;   /* of whole answers that count for the limit, */
    uint64_t n_replies_refused; /* ... and those that found no room */
    double busy_seconds;    /* of the I/O thread, */
    double longest_seconds; /* ... and the longest time that it was not there for others */
};
void http_counters(struct http *h, struct http_counters *out);

#endif
