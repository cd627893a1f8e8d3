/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP ground, spoken to through real sockets.
 */
#define _GNU_SOURCE
#include "unit/unit.h"

#include "base/clock.h"
#include "base/mem.h"
#include "http/http.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- a server with one thread that answers later ---- */

enum { WORKERS = 8 };
struct site {
    struct http *http;
    char long_thread[16]; /* who handled /long */
    sem_t inside, go_on;  /* /wait was begun; it may end */
    atomic_int asked;     /* what http_poll() told /wanted at its end, and 1 */
    pthread_t worker[WORKERS];
    int n_workers;
    atomic_int n_gone, n_freed, n_refused_writes, n_silent, n_handled;
    _Atomic uint64_t gone_at;
    atomic_int n_full;
    atomic_size_t most_unread;
};
struct job {
    struct site *site;
    struct http_exchange *x;
    int n_events;
    sem_t room; /* http_on_room() */
};

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000},
              NULL);
}

static void *answer_later(void *arg)
{
    struct job *j = arg;
    sleep_ms(20);
    http_header(j->x, "X-Odd", "a\r\nb: c");
    http_reply(j->x, 200, "text/plain", "later", 5);
    http_release(j->x);
    mem_free(j);
    return NULL;
}

static void *stream(void *arg)
{
    struct job *j = arg;
    char text[1000];
    memset(text, 'x', sizeof text);
    http_begin(j->x, 200, "text/event-stream");
    for (int i = 0; i < j->n_events; i++) {
        if (!http_write(j->x, text, sizeof text)) {
            atomic_fetch_add(&j->site->n_refused_writes, 1);
            break;
        }
        if (i % 64 == 0)
            sleep_ms(1);
    }
    http_end(j->x);
    http_release(j->x);
    mem_free(j);
    return NULL;
}

static void free_job(void *arg)
{
    struct job *j = arg;
    atomic_fetch_add(&j->site->n_freed, 1);
    sem_destroy(&j->room);
    mem_free(j);
}

static void room(void *arg) { sem_post(&((struct job *)arg)->room); }

static void polite_gone(void *arg)
{
    struct job *j = arg;
    atomic_fetch_add(&j->site->n_gone, 1);
    sem_post(&j->room);
}

enum { PIECE = 1000 };

static void make_piece(char to[PIECE], int i)
{
    for (int k = 0; k < PIECE; k++)
        to[k] = (char)('a' + (i * 7 + k) % 23);
}

/* Writes as fast as it can, but stops when it is told to. */
static void *stream_politely(void *arg)
{
    struct job *j = arg;
    struct site *s = j->site;
    struct http_exchange *x = j->x;
    char text[PIECE];
    http_begin(x, 200, "text/event-stream");
    for (int i = 0; i < j->n_events; i++) {
        make_piece(text, i);
        if (!http_write(x, text, sizeof text))
            break;
        if (http_full(x)) {
            const size_t unread = http_unread(x);
            if (unread > atomic_load(&s->most_unread))
                atomic_store(&s->most_unread, unread);
            atomic_fetch_add(&s->n_full, 1);
            sem_wait(&j->room);
        }
    }
    http_end(x);
    http_release(x);
    return NULL;
}

static void gone(void *arg)
{
    struct site *s = arg;
    atomic_store(&s->gone_at, clock_now());
    atomic_fetch_add(&s->n_gone, 1);
}

static void freed(void *arg) { atomic_fetch_add(&((struct site *)arg)->n_freed, 1); }

static void ping(void *arg)
{
    struct job *j = arg;
    if (atomic_fetch_add(&j->site->n_silent, 1) < 2) {
        http_write(j->x, "ping", 4);
        return;
    }
    http_end(j->x);
}

static void start(struct site *s, void *(*fn)(void *), struct http_exchange *x, int n_events)
{
    struct job *j = mem_zalloc(sizeof *j);
    j->site = s;
    j->x = x;
    j->n_events = n_events;
    if (fn == stream_politely) {
        sem_init(&j->room, 0, 0);
        http_own(x, free_job, j);
        http_on_close(x, polite_gone, j);
        http_on_room(x, room, j);
    }
    http_hold(x);
    assert_true(s->n_workers < WORKERS);
    assert_int_equal(pthread_create(&s->worker[s->n_workers++], NULL, fn, j), 0);
}

/* Computes until it is told that it is in vain. */
static void be_wanted(struct site *s, struct http_exchange *x)
{
    enum http_poll asked;
    sem_post(&s->inside);
    while ((asked = http_poll(x)) == HTTP_WANTED)
        sleep_ms(1);
    http_reply(x, asked == HTTP_LATE ? 504 : 503, "text/plain", "no", 2);
    atomic_store(&s->asked, (int)asked + 1);
}

static void handle(void *arg, struct http_exchange *x, const struct http_request *rq)
{
    struct site *s = arg;
    char text[256];
    atomic_fetch_add(&s->n_handled, 1);
    http_own(x, freed, s);
    http_on_close(x, gone, s);
    if (strcmp(rq->path, "/later") == 0) {
        start(s, answer_later, x, 0);
    } else if (strcmp(rq->path, "/stream") == 0) {
        start(s, stream, x, atoi(http_request_query(rq, "n")));
    } else if (strcmp(rq->path, "/polite") == 0) {
        start(s, stream_politely, x, atoi(http_request_query(rq, "n")));
    } else if (strcmp(rq->path, "/silent") == 0) {
        struct job *j = mem_zalloc(sizeof *j); /* freed with the exchange */
        j->site = s;
        j->x = x;
        http_own(x, mem_free, j);
        http_silence(x, 0.15, ping, j);
        http_begin(x, 200, "text/event-stream");
    } else if (strcmp(rq->path, "/whole") == 0) {
        const size_t n = (size_t)atoi(http_request_query(rq, "n"));
        char *bytes = mem_zalloc(n);
        http_reply(x, 200, "application/octet-stream", bytes, n);
        mem_free(bytes);
    } else if (strcmp(rq->path, "/wait") == 0) {
        sem_post(&s->inside);
        sem_wait(&s->go_on);
        http_reply(x, 200, "text/plain", "waited", 6);
    } else if (strcmp(rq->path, "/wanted") == 0) {
        be_wanted(s, x);
    } else if (strcmp(rq->path, "/hold") != 0) {
        if (strcmp(rq->path, "/long") == 0)
            pthread_getname_np(pthread_self(), s->long_thread, sizeof s->long_thread);
        snprintf(text, sizeof text, "%s %s %zu %s", rq->method, rq->path, rq->n_body,
                 http_request_query(rq, "q") ? http_request_query(rq, "q") : "-");
        http_reply(x, 200, "text/plain", text, strlen(text));
    }
}

static void admit(void *arg, struct http_exchange *x, const struct http_request *rq,
                  const char **user)
{
    (void)arg;
    (void)user;
    if (strcmp(rq->path, "/long") == 0 || strcmp(rq->path, "/wait") == 0 ||
        strcmp(rq->path, "/wanted") == 0)
        http_takes_long(x);
}

static struct site *open_site(struct http_options o)
{
    struct site *s = mem_zalloc(sizeof *s);
    struct err err;
    sem_init(&s->inside, 0, 0);
    sem_init(&s->go_on, 0, 0);
    o.admit = admit;
    o.handle = handle;
    o.arg = s;
    if (http_open(&s->http, &o, &err))
        fail_msg("%s", err.msg);
    return s;
}

static void close_site(struct site *s)
{
    http_close(s->http);
    for (int i = 0; i < s->n_workers; i++)
        pthread_join(s->worker[i], NULL);
    sem_destroy(&s->inside);
    sem_destroy(&s->go_on);
    mem_free(s);
}

/* ---- a client ---- */

static int dial(const struct site *s)
{
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)http_port(s->http)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0), small = 65536;
    /* Else the system takes megabytes in for a client that does not read. */
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void say(int fd, const char *bytes, size_t n)
{
    while (n) {
        const ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        bytes += sent;
        n -= (size_t)sent;
    }
}

static void tell(int fd, const char *text) { say(fd, text, strlen(text)); }

/* Reads until the other side ends or `until` has come; what came, with a 0 behind it. */
static size_t hear(int fd, char *to, size_t cap, const char *until)
{
    size_t n = 0;
    to[0] = 0;
    while (n + 1 < cap) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 120000) <= 0)
            break;
        const ssize_t got = recv(fd, to + n, cap - n - 1, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
        to[n] = 0;
        if (until && strstr(to, until))
            break;
    }
    return n;
}

/* The status of the answer to these bytes; 0: none came. */
static int ask(const struct site *s, const char *bytes, size_t n, char *to, size_t cap)
{
    const int fd = dial(s);
    int status = 0;
    say(fd, bytes, n);
    hear(fd, to, cap, "\r\n\r\n");
    close(fd);
    (void)sscanf(to, "HTTP/1.1 %d", &status);
    return status;
}

#define ASK(s, text, to) ask(s, text, sizeof text - 1, to, sizeof to)

static void wait_until(const atomic_int *n, int value, int line)
{
    for (int i = 0; i < 24000 && atomic_load(n) < value; i++)
        sleep_ms(5);
    if (atomic_load(n) != value)
        fail_msg("line %d: %d instead of %d", line, atomic_load(n), value);
}
#define wait_for(n, value) wait_until(n, value, __LINE__)

/* What the server tells of itself, once it counts at least so many bytes of bodies and has at most
 * so many connections open. */
static void wait_counted(const struct site *s, uint64_t bodies_bytes, int64_t n_open)
{
    struct http_counters c;
    http_counters(s->http, &c);
    for (int i = 0; i < 120000 && (c.bodies_bytes < bodies_bytes || c.n_open > n_open); i++) {
        sleep_ms(1);
        http_counters(s->http, &c);
    }
    assert_true(c.bodies_bytes >= bodies_bytes && c.n_open <= n_open);
}

/* A normal request is answered: whatever happened before left nothing behind. */
static void still_well(const struct site *s)
{
    char to[4096];
    int status = 0;
    /* Where a header has 0.2 s this thread may be kept waiting for longer between two calls. */
    for (int i = 0; i < 100 && (status == 0 || status == 408); i++)
        status = ASK(s, "GET /well HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", to);
    assert_int_equal(status, 200);
}

/* ---- the tests ---- */

static void requests_are_read_and_answered(void **state)
{
    (void)state;
    char to[4096];
    struct site *s = open_site((struct http_options){0});
    const int fd = dial(s);
    static const char two[] = "GET /a%20b/?q=x%26y HTTP/1.1\r\nHost: a\r\n\r\n"
                              "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    say(fd, two, sizeof two - 1);
    hear(fd, to, sizeof to, "POST /p 3 -");
    assert_non_null(strstr(to, "GET /a b 0 x&y"));
    assert_non_null(strstr(to, "POST /p 3 -"));
    static const char chunked[] =
        "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    say(fd, chunked, sizeof chunked - 1);
    hear(fd, to, sizeof to, "POST /c 5 -");
    assert_non_null(strstr(to, "POST /c 5 -"));
    close(fd);
    assert_int_equal(ASK(s, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n", to), 200);
    assert_non_null(strstr(to, "X-Odd: a  b: c\r\n"));
    wait_for(&s->n_freed, 4);
    assert_int_equal(atomic_load(&s->n_gone), 0);
    close_site(s);
}

static void bad_heads_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        int status;
    } bad[] = {
#define BAD(text, status) {text, sizeof text - 1, status}
        BAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        BAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
            "0\r\n\r\n",
            400),
        BAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        BAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400),
        BAD("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        BAD("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
        BAD("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\nY: c\r\n\r\n", 400),
        BAD("GET / HTTP/1.1\r\nHost: a\r\nX: a\001b\r\n\r\n", 400),
        BAD("GET / HTTP/1.1\r\nHost: a\r\nX: a\x7f\r\n\r\n", 400),
        BAD("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n folded\r\nY: c\r\n\r\n", 400),
        BAD("GET / HTTP/1.1\r\nHost: a\nX: a\r\nY: b\r\n\r\n", 400),
        BAD("GET / HTTP/1.1\r\nHost: a\r\nX{: a\r\n\r\n", 400),
        BAD("\001GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        BAD("G\0ET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        BAD("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        BAD("GET /a%00b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        BAD("GET / HTTP/1.1\r\n\r\n", 400),
        BAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        BAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n", 413),
        BAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        BAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffff\r\n",
            408),
#undef BAD
    };
    struct site *s = open_site((struct http_options){.body_bytes = 1000, .body_seconds = 0.5});
    char to[4096];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int status = ask(s, bad[i].bytes, bad[i].n, to, sizeof to);
        if (status != bad[i].status && !(status == 0 && bad[i].status == 413))
            fail_msg("%zu: %d instead of %d: %s", i, status, bad[i].status, bad[i].bytes);
        still_well(s);
    }
    /* What is odd but fine. */
    assert_int_equal(ASK(s, "GET / HTTP/1.1\r\nHost:a\r\nX:  \ty\r\nEmpty:\r\nZ: a b\r\n\r\n", to),
                     200);
    assert_int_equal(ASK(s, "GET / HTTP/1.0\r\n\r\n", to), 200);
    assert_int_equal(ASK(s, "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", to), 200);
    assert_int_equal(ASK(s, "GET / HTTP/1.1\r\nHost: a\r\nX: \xc3\xa4\xff\r\n\r\n", to), 200);
    close_site(s);
}

static void bodies_have_a_limit(void **state)
{
    (void)state;
    char to[4096], request[4096];
    struct site *s = open_site((struct http_options){.body_bytes = 1000, .body_seconds = 1});
    memset(request, 'x', sizeof request);
    int n =
        sprintf(request, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5dc\r\n");
    request[n] = 'x';
    memcpy(request + n + 1500, "\r\n0\r\n\r\n", 7);
    assert_int_equal(ask(s, request, (size_t)n + 1507, to, sizeof to), 413);
    still_well(s);
    /* Without an end the reading ends all the same. */
    const int fd = dial(s);
    tell(fd, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n");
    memset(request, 'x', sizeof request);
    say(fd, request, sizeof request);
    hear(fd, to, sizeof to, NULL);
    close(fd);
    still_well(s);
    close_site(s);
    /* Two bodies that are too large together. */
    s = open_site((struct http_options){.body_bytes = 1000, .bodies_bytes = 1500});
    const int first = dial(s);
    n = sprintf(request, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    memset(request + n, 'y', 1000);
    say(first, request, (size_t)n + 900);
    wait_counted(s, 900, INT64_MAX);
    assert_int_equal(ask(s, request, (size_t)n + 1000, to, sizeof to), 503);
    say(first, request + n, 100);
    hear(first, to, sizeof to, "POST / 1000 -");
    assert_non_null(strstr(to, "POST / 1000 -"));
    close(first);
    assert_int_equal(ask(s, request, (size_t)n + 1000, to, sizeof to), 200);
    close_site(s);
}

static void streams_arrive_whole(void **state)
{
    (void)state;
    static char to[2000000];
    struct site *s = open_site((struct http_options){.ring_bytes = 1 << 22});
    const int fd = dial(s);
    tell(fd, "GET /stream?n=1000 HTTP/1.0\r\n\r\n");
    const size_t n = hear(fd, to, sizeof to, NULL);
    const char *body = strstr(to, "\r\n\r\n");
    assert_non_null(body);
    assert_int_equal(n - (size_t)(body + 4 - to), 1000000);
    close(fd);
    wait_for(&s->n_freed, 1);
    assert_int_equal(atomic_load(&s->n_gone), 0);
    close_site(s);
}

/* The end of what a client sends may come in one event with the last bytes of it. */
static void half_a_head_is_not_waited_for(void **state)
{
    (void)state;
    static const char *const half[] = {
        "GET /a HT", "GET /a HTTP/1.1\r\nHost: a\r\n",
        "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab"};
    for (int half_close_ok = 0; half_close_ok < 2; half_close_ok++) {
        struct site *s = open_site((struct http_options){.half_close_ok = half_close_ok,
                                                         .header_seconds = 1000,
                                                         .body_seconds = 1000});
        for (int i = 0; i < 300; i++) {
            char to[4096];
            const int fd = dial(s);
            tell(fd, half[i % 3]);
            shutdown(fd, SHUT_WR);
            hear(fd, to, sizeof to, NULL);
            if (recv(fd, to, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN)
                fail_msg("still open after: %s", half[i % 3]);
            close(fd);
        }
        assert_int_equal(atomic_load(&s->n_handled), 0);
        close_site(s);
    }
}

static void one_who_leaves_is_noticed_while_suspended(void **state)
{
    (void)state;
    struct site *s = open_site((struct http_options){0});
    const int fd = dial(s);
    tell(fd, "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
    wait_for(&s->n_handled, 1);
    sleep_ms(30);
    const uint64_t left = clock_now();
    close(fd);
    wait_for(&s->n_gone, 1);
    /* 50 ms are promised; a busy machine gets more. */
    assert_true(atomic_load(&s->gone_at) - left < 60000000000u);
    wait_for(&s->n_freed, 1);
    /* The same for one that has ended its sending side, */
    const int half = dial(s);
    tell(half, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    shutdown(half, SHUT_WR);
    wait_for(&s->n_gone, 2);
    close(half);
    /* but what is answered at once is answered. */
    char to[4096];
    const int quick = dial(s);
    tell(quick, "GET /now HTTP/1.1\r\nHost: a\r\n\r\n");
    shutdown(quick, SHUT_WR);
    hear(quick, to, sizeof to, NULL);
    assert_non_null(strstr(to, "GET /now 0 -"));
    close(quick);
    close_site(s);
}

static void a_half_closed_client_may_wait(void **state)
{
    (void)state;
    char to[4096];
    struct site *s = open_site((struct http_options){.half_close_ok = true});
    const int fd = dial(s);
    tell(fd, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
    shutdown(fd, SHUT_WR);
    hear(fd, to, sizeof to, NULL);
    assert_non_null(strstr(to, "later"));
    close(fd);
    assert_int_equal(atomic_load(&s->n_gone), 0);
    close_site(s);
}

static void one_who_does_not_read_is_dropped(void **state)
{
    (void)state;
    struct site *s = open_site((struct http_options){.ring_bytes = 16384});
    const int fd = dial(s);
    tell(fd, "GET /stream?n=20000 HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&s->n_refused_writes, 1);
    wait_for(&s->n_gone, 1);
    still_well(s);
    struct http_counters c;
    http_counters(s->http, &c);
    assert_int_equal(c.n_overruns, 1);
    close(fd);
    close_site(s);
}

#define WHOLE "GET /whole?n=8000000 HTTP/1.1\r\nHost: a\r\n\r\n"

/* What waits in whole answers has a limit; small ones find room all the same, and who reads nothing
 * goes when there is none. */
static void whole_answers_have_a_limit(void **state)
{
    (void)state;
    char to[4096];
    int fd[2];
    struct http_counters c;
    struct site *s = open_site((struct http_options){.replies_bytes = 20000000});
    for (int i = 0; i < 2; i++) {
        fd[i] = dial(s);
        tell(fd[i], WHOLE);
        hear(fd[i], to, 200, "\r\n\r\n");
    }
    http_counters(s->http, &c);
    assert_int_equal(c.replies_bytes, 16000000);
    assert_int_equal(ASK(s, WHOLE, to), 503);
    assert_non_null(strstr(to, "Retry-After: 1"));
    assert_int_equal(ASK(s, "GET /whole?n=60000 HTTP/1.1\r\nHost: a\r\n\r\n", to), 200);
    for (int i = 0; i < 24000 && c.n_overruns < 2; i++) {
        sleep_ms(5);
        http_counters(s->http, &c);
    }
    assert_int_equal(c.n_overruns, 2);
    assert_int_equal(c.n_replies_refused, 1);
    wait_counted(s, 0, 0 + 2);
    for (int i = 0; i < 2; i++)
        close(fd[i]);
    wait_counted(s, 0, 0);
    assert_int_equal(ASK(s, WHOLE, to), 200);
    wait_counted(s, 0, 0);
    http_counters(s->http, &c);
    assert_int_equal(c.replies_bytes, 0);
    close_site(s);
}

static void one_who_stalls_is_dropped(void **state)
{
    (void)state;
    struct site *s = open_site((struct http_options){.ring_bytes = 1 << 26, .stall_seconds = 0.3});
    const int fd = dial(s);
    tell(fd, "GET /stream?n=10000 HTTP/1.1\r\nHost: a\r\n\r\n");
    for (int i = 0; i < 24000; i++) {
        struct http_counters c;
        http_counters(s->http, &c);
        if (c.n_overruns)
            break;
        sleep_ms(5);
    }
    wait_for(&s->n_freed, 1);
    still_well(s);
    close(fd);
    close_site(s);
}

/* One who reads, only more slowly than the other side writes, gets every byte, and the writer never
 * has more waiting than what makes the stream full and a piece. */
static void one_who_reads_slowly_gets_all(void **state)
{
    (void)state;
    enum { N = 3000, RING = 65536 };
    static char to[N * PIECE + 1000];
    char piece[PIECE], some[5000];
    struct site *s = open_site((struct http_options){.ring_bytes = RING});
    const int fd = dial(s);
    tell(fd, "GET /polite?n=3000 HTTP/1.0\r\n\r\n");
    size_t n = 0;
    for (ssize_t got; (got = recv(fd, some, sizeof some, 0)) > 0; n += (size_t)got) {
        assert_true(n + (size_t)got < sizeof to);
        memcpy(to + n, some, (size_t)got);
        if (got == sizeof some)
            sleep_ms(1);
    }
    to[n] = 0;
    const char *body = strstr(to, "\r\n\r\n");
    assert_non_null(body);
    body += 4;
    assert_int_equal(n - (size_t)(body - to), N * PIECE);
    for (int i = 0; i < N; i++) {
        make_piece(piece, i);
        assert_memory_equal(body + (size_t)i * PIECE, piece, PIECE);
    }
    wait_for(&s->n_freed, 1);
    struct http_counters c;
    http_counters(s->http, &c);
    assert_int_equal(c.n_overruns, 0);
    assert_int_equal(c.n_full, atomic_load(&s->n_full));
    assert_true(c.n_full > 1 && c.full_seconds > 0);
    assert_true(atomic_load(&s->most_unread) <= RING + PIECE);
    assert_int_equal(atomic_load(&s->n_gone), 0);
    close(fd);
    close_site(s);
}

/* One who reads nothing is dropped, and one who reads a little now and then. */
static void one_who_reads_too_slowly_is_dropped(void **state)
{
    (void)state;
    struct site *s = open_site((struct http_options){.ring_bytes = 1 << 20, .stall_seconds = 0.5});
    for (int reads = 0; reads < 2; reads++) {
        const int fd = dial(s);
        char some[64];
        tell(fd, "GET /polite?n=100000 HTTP/1.0\r\n\r\n");
        for (int i = 0; i < 120000 && atomic_load(&s->n_gone) <= reads; i++) {
            sleep_ms(1);
            if (reads)
                (void)!recv(fd, some, sizeof some, MSG_DONTWAIT);
        }
        wait_for(&s->n_gone, reads + 1);
        close(fd);
    }
    wait_for(&s->n_freed, 2);
    still_well(s);
    struct http_counters c;
    http_counters(s->http, &c);
    assert_int_equal(c.n_overruns, 2);
    close_site(s);
}

static void silence_is_broken(void **state)
{
    (void)state;
    char to[4096];
    struct site *s = open_site((struct http_options){0});
    const int fd = dial(s);
    tell(fd, "GET /silent HTTP/1.0\r\n\r\n");
    hear(fd, to, sizeof to, NULL);
    assert_non_null(strstr(to, "pingping"));
    assert_int_equal(atomic_load(&s->n_silent), 3);
    close(fd);
    close_site(s);
}

static void the_slow_are_cut(void **state)
{
    (void)state;
    char to[4096];
    struct site *s = open_site((struct http_options){
        .header_seconds = 0.2, .body_seconds = 0.2, .idle_seconds = 0.2});
    static const char *const begun[] = {
        "", "GE", "GET / HTTP/1.1\r\nHost: a\r\nX:",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof begun / sizeof *begun; i++) {
        const int fd = dial(s);
        tell(fd, begun[i]);
        hear(fd, to, sizeof to, NULL); /* returns when the server hangs up */
        close(fd);
        still_well(s);
    }
    /* One that sends a byte now and then is cut as well. */
    const int fd = dial(s);
    for (int i = 0; i < 100; i++) {
        if (send(fd, "GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 1,
                 MSG_NOSIGNAL) < 0 || recv(fd, to, 1, MSG_DONTWAIT) == 0)
            break;
        sleep_ms(50);
    }
    assert_int_equal(hear(fd, to, sizeof to, NULL), 0);
    close(fd);
    close_site(s);
}

static void connections_have_a_limit(void **state)
{
    (void)state;
    char to[4096];
    int fd[4];
    struct site *s = open_site((struct http_options){.max_connections = 3});
    for (int i = 0; i < 3; i++) {
        fd[i] = dial(s);
        say(fd[i], "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 27);
        hear(fd[i], to, sizeof to, "GET / 0 -");
    }
    fd[3] = dial(s);
    hear(fd[3], to, sizeof to, NULL);
    assert_non_null(strstr(to, " 503 "));
    const char *body = strstr(to, "\r\n\r\n"), *length = strstr(to, "Content-Length: ");
    assert_int_equal(strlen(body + 4), strtoul(length + 16, NULL, 10));
    for (int i = 0; i < 4; i++)
        close(fd[i]);
    wait_counted(s, 0, 0);
    still_well(s);
    close_site(s);
}

static void closing_ends_what_runs(void **state)
{
    (void)state;
    struct site *s = open_site((struct http_options){.ring_bytes = 1 << 26});
    int fd[6];
    for (int i = 0; i < 6; i++) {
        fd[i] = dial(s);
        if (i % 2)
            say(fd[i], "GET /stream?n=9000 HTTP/1.1\r\nHost: a\r\n\r\n", 40);
        else
            say(fd[i], "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n", 31);
    }
    wait_for(&s->n_handled, 6);
    http_close_listener(s->http);
    http_close(s->http);
    for (int i = 0; i < s->n_workers; i++)
        pthread_join(s->worker[i], NULL);
    assert_int_equal(atomic_load(&s->n_freed), 6);
    for (int i = 0; i < 6; i++)
        close(fd[i]);
    mem_free(s);
}

static void what_takes_long_is_not_handled_by_the_io_thread(void **state)
{
    (void)state;
    char to[4096];
    struct site *s = open_site((struct http_options){.port = 0});
    assert_int_equal(ASK(s, "GET /long?q=a HTTP/1.1\r\nHost: a\r\n\r\n", to), 200);
    assert_non_null(strstr(to, "a"));
    assert_string_equal(s->long_thread, "ingle-small");
    assert_int_equal(ASK(s, "GET /short HTTP/1.1\r\nHost: a\r\n\r\n", to), 200);
    close_site(s);
}

#define WAIT "GET /wait HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
#define POST "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"

/* Three that hang in the same lane move aside one by one, and others are read meanwhile. */
static void who_computes_for_long_moves_aside(void **state)
{
    (void)state;
    enum { SLOW = 3 };
    char to[4096];
    int fd[SLOW];
    struct http_counters c;
    struct site *s = open_site((struct http_options){.port = 0});
    for (int i = 0; i < SLOW; i++) {
        fd[i] = dial(s);
        tell(fd[i], WAIT);
        sem_wait(&s->inside);
        assert_int_equal(ASK(s, POST, to), 200);
        http_counters(s->http, &c);
        assert_int_equal(c.n_aside, i + 1);
    }
    for (int i = 0; i < SLOW; i++)
        sem_post(&s->go_on);
    for (int i = 0; i < SLOW; i++) {
        hear(fd[i], to, sizeof to, NULL);
        assert_non_null(strstr(to, "waited"));
        close(fd[i]);
    }
    for (int i = 0; i < 24000 && c.n_aside; i++) {
        sleep_ms(5);
        http_counters(s->http, &c);
    }
    assert_int_equal(c.n_aside, 0);
    still_well(s);
    close_site(s);
}

/* A handler learns that its client has left, that time is up, and that the server is ending; so
 * does one that has moved aside. */
static void handlers_learn_that_they_are_not_wanted(void **state)
{
    (void)state;
    static const enum http_poll why[] = {HTTP_LEFT, HTTP_LATE, HTTP_ENDING};
    for (int i = 0; i < 6; i++) {
        char to[4096];
        const enum http_poll w = why[i % 3];
        if (i / 3 && w == HTTP_LATE)
            continue; /* on a busy machine the one behind it would be late, too */
        struct site *s =
            open_site((struct http_options){.request_seconds = w == HTTP_LATE ? 4 : 0});
        const int fd = dial(s);
        tell(fd, "GET /wanted HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        sem_wait(&s->inside);
        if (i / 3)
            assert_int_equal(ASK(s, POST, to), 200); /* it is aside then */
        if (w == HTTP_LEFT)
            close(fd);
        if (w == HTTP_ENDING)
            http_hurry(s->http);
        wait_for(&s->asked, (int)w + 1);
        if (w != HTTP_LEFT) {
            hear(fd, to, sizeof to, "\r\n\r\n");
            assert_non_null(strstr(to, w == HTTP_LATE ? " 504 " : " 503 "));
            close(fd);
        }
        close_site(s);
    }
}

static void a_socket_in_the_file_system_answers(void **state)
{
    (void)state;
    struct err err;
    struct http *taken;
    char path[64];
    snprintf(path, sizeof path, "/tmp/ingle-test-%d.sock", (int)getpid());
    struct site *s = open_site((struct http_options){.unix_path = path});
    still_well(s);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(
        http_open(&taken, &(struct http_options){.unix_path = path, .n_host = -1}, &err), INGLE_IO);
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(http_open(&taken, &(struct http_options){.port = http_port(s->http)}, &err),
                     INGLE_IO);
    close_site(s);
    assert_int_not_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_read_and_answered),
        cmocka_unit_test(bad_heads_are_refused),
        cmocka_unit_test(bodies_have_a_limit),
        cmocka_unit_test(streams_arrive_whole),
        cmocka_unit_test(half_a_head_is_not_waited_for),
        cmocka_unit_test(one_who_leaves_is_noticed_while_suspended),
        cmocka_unit_test(a_half_closed_client_may_wait),
        cmocka_unit_test(one_who_does_not_read_is_dropped),
        cmocka_unit_test(whole_answers_have_a_limit),
        cmocka_unit_test(one_who_stalls_is_dropped),
        cmocka_unit_test(one_who_reads_slowly_gets_all),
        cmocka_unit_test(one_who_reads_too_slowly_is_dropped),
        cmocka_unit_test(silence_is_broken),
        cmocka_unit_test(the_slow_are_cut),
        cmocka_unit_test(connections_have_a_limit),
        cmocka_unit_test(closing_ends_what_runs),
        cmocka_unit_test(what_takes_long_is_not_handled_by_the_io_thread),
        cmocka_unit_test(who_computes_for_long_moves_aside),
        cmocka_unit_test(handlers_learn_that_they_are_not_wanted),
        cmocka_unit_test(a_socket_in_the_file_system_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
