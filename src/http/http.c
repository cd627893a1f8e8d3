/* SPDX-License-Identifier: Apache-2.0
 *
 * The I/O thread.  It owns the listening sockets and every connection's descriptor in an
 * epoll set of its own: libmicrohttpd is run from here without a thread of its own, so that
 * nothing of it needs a lock, and a client that leaves is seen also while its connection is
 * suspended, which the library does not do.
 */
#define _GNU_SOURCE
#include "http/inner.h"
#include "http/parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* So long those who read nothing of large answers must go after one found no room. */
static const uint64_t PRESSED_NS = 5000000000;
enum { EVENTS = 256, TICK_NS = 100 * 1000 * 1000, TURN_NS = 2 * 1000 * 1000 };
/* What an epoll event is about; below WAKE: the index of a listener. */
enum { WAKE = HTTP_LISTENERS, LIBRARY, CONNECTION };

static uint64_t event_of(int what, int fd, uint32_t generation)
{
    return (uint64_t)generation << 32 | (uint64_t)(uint32_t)fd << 8 | (uint64_t)what;
}

static bool watch(const struct http *h, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event e = {.events = events, .data.u64 = data};
    return epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

/* ---- connections ---- */

/* True if the address counts for the limit; its bytes: IPv4 as IPv6, and of IPv6 the network,
 * /64. */
static bool address_of(const struct sockaddr_storage *a, unsigned char out[16])
{
    memset(out, 0, 16);
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;
        memcpy(out + 12, &in->sin_addr, 4);
        out[10] = out[11] = 0xFF;
    } else if (a->ss_family == AF_INET6) {
        memcpy(out, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
    } else {
        return false;
    }
    /* Who has one address of a network of IPv6 has 2^64. */
    static const unsigned char mapped[12] = {[10] = 0xFF, [11] = 0xFF}, one[16] = {[15] = 1};
    const bool is_mapped = memcmp(out, mapped, 12) == 0;
    if (memcmp(out, one, 16) == 0 || (is_mapped && out[12] == 127))
        return false;
    if (!is_mapped)
        memset(out + 8, 0, 8);
    return true;
}

/* A place for the descriptor in by_fd. */
static bool make_room(struct http *h, int fd)
{
    const size_t want = (size_t)fd + 1;
    if (want <= h->n_by_fd)
        return true;
    size_t n = h->n_by_fd ? h->n_by_fd : 64;
    while (n < want)
        n *= 2;
    struct http_conn **p = mem_realloc(h->by_fd, n, sizeof *p);
    if (!p)
        return false;
    memset(p + h->n_by_fd, 0, (n - h->n_by_fd) * sizeof *p);
    h->by_fd = p;
    h->n_by_fd = n;
    return true;
}

static int same_address(const struct http *h, const unsigned char address[16])
{
    int n = 0;
    for (size_t i = 0; i < h->n_by_fd; i++)
        n += h->by_fd[i] && h->by_fd[i]->counted && memcmp(h->by_fd[i]->address, address, 16) == 0;
    return n;
}

static void close_connection(struct http *h, struct http_conn *c)
{
    h->by_fd[c->fd] = NULL;
    (void)epoll_ctl(h->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    atomic_fetch_sub(&h->n_open, 1);
    mem_free(c);
}

/* Too many: say so without the library, and leave. */
static void turn_away(struct http *h, int fd)
{
    static const char text[] =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        "Connection: close\r\nRetry-After: 1\r\nContent-Length: 89\r\n\r\n"
        "{\"error\":{\"message\":\"too many "
        "connections\",\"type\":\"unavailable_error\",\"code\":null"
        ",\"x\":0}}";
    atomic_fetch_add(&h->n_bad, 1);
    if (!h->o.tls_cert)
        (void)send(fd, text, sizeof text - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(fd);
}

static void take_connection(struct http *h, int fd, const struct sockaddr_storage *from,
                            socklen_t n_from)
{
    unsigned char address[16];
    const bool counted = address_of(from, address);
    struct http_conn *c = NULL;
    if (atomic_load(&h->n_open) >= h->o.max_connections ||
        (counted && same_address(h, address) >= h->o.max_per_address))
    {
        turn_away(h, fd);
        return;
    }
    if (make_room(h, fd))
        c = mem_zalloc(sizeof *c);
    if (!c) {
        close(fd);
        return;
    }
    c->fd = fd;
    c->generation = ++h->generation;
    c->since = c->last = clock_now();
    memcpy(c->address, address, 16);
    c->counted = counted;
    h->by_fd[fd] = c;
    atomic_fetch_add(&h->n_open, 1);
    atomic_fetch_add(&h->n_connections, 1);
    if (!watch(h, fd, EPOLLRDHUP | EPOLLET, event_of(CONNECTION, fd, c->generation))) {
        close_connection(h, c);
        close(fd);
        return;
    }
    /* The descriptor is the library's from here on, also when it fails. */
    if (MHD_add_connection(h->mhd, fd, (const struct sockaddr *)from, n_from) != MHD_YES &&
        (size_t)fd < h->n_by_fd && h->by_fd[fd] == c)
        close_connection(h, c);
}

static void listen_again(struct http *h)
{
    for (int i = 0; i < h->n_listeners && h->listening && h->paused; i++)
        (void)watch(h, h->listener[i], EPOLLIN, event_of(i, h->listener[i], 0));
    h->paused = false;
}

static void stop_listening(struct http *h)
{
    for (int i = 0; i < h->n_listeners; i++)
        (void)epoll_ctl(h->epoll, EPOLL_CTL_DEL, h->listener[i], NULL);
}

static void accept_all(struct http *h, int listener)
{
    for (int i = 0; i < 64; i++) { /* the others want their turn, too */
        struct sockaddr_storage from = {0};
        socklen_t n = sizeof from;
        const int fd =
            accept4(listener, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            take_connection(h, fd, &from, n);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            /* No descriptors: the listener would stay ready.  It rests until the next tick. */
            stop_listening(h);
            h->paused = true;
        }
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

/* Who came is served; who comes now is refused by the system, or reaches who has the address
 * next. */
static void close_listeners(struct http *h)
{
    for (int i = 0; i < h->n_listeners; i++)
        accept_all(h, h->listener[i]);
    stop_listening(h);
    http_unlink_unix(h);
    for (int i = 0; i < h->n_listeners; i++)
        close(h->listener[i]);
    h->n_listeners = 0;
    h->listening = false;
}

/* The library closes a connection: called for each that MHD_add_connection() took. */
static void connection_notified(void *arg, struct MHD_Connection *mhd, void **context,
                                enum MHD_ConnectionNotificationCode what)
{
    struct http *h = arg;
    (void)context;
    struct http_conn *c = http_conn_of(h, mhd);
    if (!c)
        return;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        c->mhd = mhd;
    else
        close_connection(h, c);
}

/* The client sends no more, and what it sent has been read.  The library forgets an end that
 * came together with the last bytes (one edge of epoll for both, and it reads only until a
 * read comes back short), and would keep the connection until its time is over. */
static void end_input(const struct http_conn *c)
{
    char byte;
    if (c->phase != HTTP_ANSWER && recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        shutdown(c->fd, SHUT_RDWR);
}

static void hung_up(struct http *h, const struct epoll_event *e)
{
    const size_t fd = e->data.u64 >> 8 & 0xFFFFFF;
    const uint32_t generation = (uint32_t)(e->data.u64 >> 32);
    struct http_conn *c = fd < h->n_by_fd ? h->by_fd[fd] : NULL;
    if (!c || c->generation != generation)
        return;
    c->input_ended = true;
    end_input(c);
    if (h->o.half_close_ok && !(e->events & (EPOLLHUP | EPOLLERR)))
        return;
    c->hung_up = true;
    struct http_exchange *x = c->x;
    if (!x || c->phase != HTTP_ANSWER)
        return; /* what was sent before is answered still */
    pthread_mutex_lock(&x->lock);
    const bool ended = x->state == HTTP_ENDED;
    pthread_mutex_unlock(&x->lock);
    if (!ended || (e->events & (EPOLLHUP | EPOLLERR)))
        http_exchange_drop(x);
}

/* ---- time ---- */

/* The body is too slow: the error is sent without the library, which waits for the rest. */
static void refuse_slow_body(const struct http *h, const struct http_conn *c)
{
    if (!c->x || c->x->answered || h->o.tls_cert)
        return;
    const bool gave_way = c->x->refused == 503;
    const char *why =
        gave_way ? c->x->reason
                 : "the body came slower than 16 KiB/s, or paused for longer than "
                   "--limit body-timeout";
    char text[512], body[384];
    const int n_body = snprintf(body, sizeof body,
                                "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"code\":null}}",
                                why, gave_way ? "unavailable_error" : "timeout_error");
    const int n =
        snprintf(text, sizeof text,
                 "HTTP/1.1 %s\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 "Content-Length: %d\r\n\r\n%s",
                 gave_way ? "503 Service Unavailable" : "408 Request Timeout", n_body, body);
    if (n > 0 && (size_t)n < sizeof text)
        (void)send(c->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void check_time(struct http *h, struct http_conn *c, uint64_t now)
{
    const double phase = (double)(now - c->since) / 1e9, quiet = (double)(now - c->last) / 1e9;
    const struct http_options *o = &h->o;
    bool late = false;
    if (c->input_ended)
        end_input(c);
    switch (c->phase) {
    case HTTP_HEADER:
        late = phase > o->header_seconds;
        break;
    case HTTP_BODY:
        late = quiet > o->body_seconds || now > c->due;
        break;
    case HTTP_IDLE:
        late = phase > o->idle_seconds || atomic_load(&h->no_more);
        break;
    case HTTP_ANSWER:
        if (c->x)
            http_exchange_tick(c->x, now);
        break;
    }
    if (!late)
        return;
    if (c->phase != HTTP_IDLE)
        atomic_fetch_add(&h->n_timeouts, 1);
    if (c->phase == HTTP_BODY)
        refuse_slow_body(h, c);
    c->since = c->last = now;
    shutdown(c->fd, SHUT_RDWR);
}

/* Many connections were closed: the allocator keeps their memory, in holes between what is left,
 * until it is asked to return it. */
enum { CROWD = 32 };

static void give_back(struct http *h)
{
    const int64_t n = atomic_load(&h->n_exchanges);
    if (n > h->most_exchanges)
        h->most_exchanges = n;
    if (h->most_exchanges < CROWD || n > h->most_exchanges / 4)
        return;
    h->most_exchanges = n;
    http_lane_trim(h);
}

/* Looks at the connections, for a short while: dropping a crowd must not keep the others waiting.
 * False: the rest comes in the next turn. */
static bool check_times(struct http *h, uint64_t now)
{
    while (h->checked < h->n_by_fd) {
        struct http_conn *c = h->by_fd[h->checked++];
        if (!c)
            continue;
        check_time(h, c, now);
        if (clock_now() - now > TURN_NS)
            return false;
    }
    h->checked = 0;
    return true;
}

static void tick(struct http *h)
{
    if (h->paused)
        listen_again(h);
    const bool wanted = h->o.tick && h->o.tick(h->o.arg);
    give_back(h);
    http_lane_tick(h, clock_now());
    if (atomic_exchange(&h->no_room, false))
        h->pressed_until = clock_now() + PRESSED_NS;
    h->at_rest = !wanted && !atomic_load(&h->n_open) && !atomic_load(&h->n_exchanges);
}

/* ---- the loop ---- */

static void attend_ready(struct http *h)
{
    pthread_mutex_lock(&h->lock);
    struct http_exchange *x = h->ready;
    h->ready = NULL;
    pthread_mutex_unlock(&h->lock);
    while (x) {
        /* While it counts as queued nobody changes its next.  From then on a write queues it
         * anew. */
        pthread_mutex_lock(&h->lock);
        struct http_exchange *next = x->next;
        x->queued = false;
        pthread_mutex_unlock(&h->lock);
        http_exchange_attend(x);
        http_release(x);
        x = next;
    }
}

/* Runs the library until it has nothing more to do at once. */
static void run_library(struct http *h)
{
    for (int i = 0; i < 16; i++) {
        MHD_UNSIGNED_LONG_LONG wait_ms;
        (void)MHD_run(h->mhd);
        if (MHD_get_timeout(h->mhd, &wait_ms) != MHD_YES || wait_ms)
            return;
    }
}

/* -1: until something happens. */
static int wait_ms(struct http *h, uint64_t next_tick)
{
    MHD_UNSIGNED_LONG_LONG library;
    const uint64_t now = clock_now();
    const int ms = now >= next_tick ? 0 : (int)((next_tick - now + 999999) / 1000000);
    if (MHD_get_timeout(h->mhd, &library) == MHD_YES && library < (unsigned)ms)
        return (int)library;
    return h->at_rest ? -1 : ms;
}

static void handle_events(struct http *h, const struct epoll_event *e, int n)
{
    eventfd_t ignored;
    for (int i = 0; i < n; i++) {
        const int what = (int)(e[i].data.u64 & 0xFF);
        if (what < h->n_listeners)
            accept_all(h, h->listener[what]);
        else if (what == WAKE)
            (void)eventfd_read(h->wake, &ignored);
        else if (what == CONNECTION)
            hung_up(h, &e[i]);
    }
}

/* For so long nobody else was attended to. */
static void count_turn(struct http *h, uint64_t ns)
{
    atomic_fetch_add(&h->busy_ns, ns);
    if (ns > atomic_load(&h->longest_ns))
        atomic_store(&h->longest_ns, ns);
}

static void *io_thread(void *arg)
{
    struct http *h = arg;
    struct epoll_event e[EVENTS];
    uint64_t next_tick = clock_now() + TICK_NS;
    while (!atomic_load(&h->stop)) {
        const int n = epoll_wait(h->epoll, e, EVENTS, wait_ms(h, next_tick));
        const uint64_t began = clock_now();
        h->at_rest = false;
        if (h->listening && atomic_load(&h->no_more)) {
            close_listeners(h);
            next_tick = began; /* idle connections end, too */
        }
        /* Reading comes before leaving: a request that is answered at once may be followed
         * by the end of its connection. */
        run_library(h);
        handle_events(h, e, n > 0 ? n : 0);
        attend_ready(h);
        run_library(h);
        const uint64_t now = clock_now();
        if (now >= next_tick && check_times(h, now)) {
            tick(h);
            next_tick = now + TICK_NS;
        }
        count_turn(h, clock_now() - began);
    }
    stop_listening(h);
    attend_ready(h);
    for (size_t i = 0; i < h->n_by_fd; i++)
        if (h->by_fd[i] && h->by_fd[i]->x)
            http_exchange_drop(h->by_fd[i]->x);
    run_library(h);
    return NULL;
}

/* ---- open and close ---- */

/* The library's complaints about clients are counted, not printed. */
ATTR_PRINTF(2, 0) static void swallow(void *arg, const char *fmt, va_list ap)
{
    (void)arg, (void)fmt, (void)ap;
}

static ingle_status start_library(struct http *h, struct err *err)
{
    const bool tls = h->o.tls_cert && h->o.tls_key;
    const struct MHD_OptionItem more[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)h->o.tls_cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)h->o.tls_key},
        {MHD_OPTION_END, 0, NULL},
    };
    h->mhd = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
            (tls ? (unsigned)MHD_USE_TLS : 0u),
        0, NULL, NULL, http_request_access, h, MHD_OPTION_EXTERNAL_LOGGER, swallow, NULL,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->o.max_connections + 64u,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, h->o.header_bytes, MHD_OPTION_NOTIFY_CONNECTION,
        connection_notified, h, MHD_OPTION_NOTIFY_COMPLETED, http_request_completed, h,
        MHD_OPTION_URI_LOG_CALLBACK, http_request_uri, h, MHD_OPTION_ARRAY,
        tls ? more : more + 2, MHD_OPTION_END);
    if (!h->mhd)
        return err_set(err, INGLE_IO,
                       tls ? "the HTTP library does not take the certificate and the key: one is "
                             "damaged, or they do not belong together"
                           : "the HTTP library does not start");
    const union MHD_DaemonInfo *i = MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    h->mhd_epoll = i ? i->epoll_fd : -1;
    if (h->mhd_epoll < 0 || !watch(h, h->mhd_epoll, EPOLLIN, event_of(LIBRARY, 0, 0)))
        return err_set(err, INGLE_IO, "the HTTP library has no epoll");
    return INGLE_OK;
}

static void fill_defaults(struct http_options *o)
{
    o->max_connections = o->max_connections ? o->max_connections : 1024;
    o->max_per_address = o->max_per_address ? o->max_per_address : 64;
    o->header_bytes = o->header_bytes ? o->header_bytes : 32 * 1024;
    o->body_bytes = o->body_bytes ? o->body_bytes : (size_t)64 << 20;
    if (!o->bodies_bytes && !num_mul(o->body_bytes, 4, &o->bodies_bytes))
        o->bodies_bytes = SIZE_MAX;
    if (!o->replies_bytes && !num_mul(o->body_bytes, 4, &o->replies_bytes))
        o->replies_bytes = SIZE_MAX;
    o->max_reading = o->max_reading ? o->max_reading : 256;
    if (!o->reading_bytes && !num_mul(o->body_bytes, 2, &o->reading_bytes))
        o->reading_bytes = SIZE_MAX;
    o->ring_bytes = o->ring_bytes ? o->ring_bytes : 256 * 1024;
    o->header_seconds = o->header_seconds > 0 ? o->header_seconds : 10;
    o->body_seconds = o->body_seconds > 0 ? o->body_seconds : 30;
    o->idle_seconds = o->idle_seconds > 0 ? o->idle_seconds : 60;
    o->stall_seconds = o->stall_seconds > 0 ? o->stall_seconds : 10;
}

ingle_status http_open(struct http **out, const struct http_options *o, struct err *err)
{
    struct http *h = mem_zalloc(sizeof *h);
    if (!h)
        return err_set(err, INGLE_NOMEM, "no memory for the HTTP server");
    h->o = *o;
    fill_defaults(&h->o);
    ingle_status st = INGLE_OK;
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->epoll < 0 || h->wake < 0 || pthread_mutex_init(&h->lock, NULL) ||
        pthread_mutex_init(&h->handling, NULL))
        st = err_set(err, INGLE_IO, "no epoll: %s", strerror(errno));
    if (getrandom(&h->id_seed, sizeof h->id_seed, 0) != (ssize_t)sizeof h->id_seed)
        h->id_seed = clock_now();
    if (!st && !watch(h, h->wake, EPOLLIN, event_of(WAKE, 0, 0)))
        st = err_set(err, INGLE_IO, "epoll: %s", strerror(errno));
    if (!st)
        st = start_library(h, err);
    if (!st)
        st = http_listen(h, err);
    for (int i = 0; !st && i < h->n_listeners; i++)
        if (!watch(h, h->listener[i], EPOLLIN, event_of(i, h->listener[i], 0)))
            st = err_set(err, INGLE_IO, "epoll: %s", strerror(errno));
    h->listening = !st;
    if (!st && !(http_lane_start(&h->lane[0], h, false) && http_lane_start(&h->lane[1], h, true)))
        st = err_set(err, INGLE_NOMEM, "no threads for requests");
    if (!st) {
        h->thread_runs = pthread_create(&h->thread, NULL, io_thread, h) == 0;
        if (h->thread_runs)
            pthread_setname_np(h->thread, "ingle-io");
        else
            st = err_set(err, INGLE_NOMEM, "no thread for the HTTP server");
    }
    if (st) {
        http_close(h);
        return st;
    }
    *out = h;
    return INGLE_OK;
}

int http_port(const struct http *h) { return h->port; }

void http_let_go(struct http *h)
{
    atomic_store(&h->letting_go, true);
}

void http_close_listener(struct http *h)
{
    http_let_go(h);
    atomic_store(&h->no_more, true);
    (void)eventfd_write(h->wake, 1);
}

void http_wait(struct http *h, bool connections, uint64_t end)
{
    const struct timespec turn = {.tv_nsec = 20000000};
    while ((atomic_load(&h->n_exchanges) ||
            (connections && (atomic_load(&h->listening) || atomic_load(&h->n_open)))) &&
           clock_now() < end)
        nanosleep(&turn, NULL);
}

void http_hurry(struct http *h) { atomic_store(&h->ending, true); }

void http_stop_handlers(struct http *h)
{
    http_hurry(h);
    atomic_store(&h->no_handlers, true);
    pthread_mutex_lock(&h->handling); /* the I/O thread's own has ended */
    pthread_mutex_unlock(&h->handling);
    for (int i = 0; i < 2; i++)
        http_lane_stop(&h->lane[i]);
    http_lane_join_aside(h);
}

void http_close(struct http *h)
{
    if (!h)
        return;
    http_stop_handlers(h);
    atomic_store(&h->stop, true);
    if (h->wake >= 0)
        (void)eventfd_write(h->wake, 1);
    if (h->thread_runs)
        pthread_join(h->thread, NULL);
    if (h->mhd)
        MHD_stop_daemon(h->mhd); /* completes what is left */
    while (atomic_load(&h->n_signals))
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    http_unlink_unix(h);
    for (int i = 0; i < h->n_listeners; i++)
        close(h->listener[i]);
    while (h->ready) {
        struct http_exchange *x = h->ready;
        h->ready = x->next;
        http_release(x);
    }
    if (h->wake >= 0)
        close(h->wake);
    if (h->epoll >= 0)
        close(h->epoll);
    pthread_mutex_destroy(&h->lock);
    pthread_mutex_destroy(&h->handling);
    mem_free(h->by_fd);
    mem_free(h);
}

void http_counters(struct http *h, struct http_counters *out)
{
    *out = (struct http_counters){
        .n_connections = atomic_load(&h->n_connections),
        .n_requests = atomic_load(&h->n_requests),
        .n_bad_requests = atomic_load(&h->n_bad),
        .n_timeouts = atomic_load(&h->n_timeouts),
        .n_disconnected = atomic_load(&h->n_disconnected),
        .n_overruns = atomic_load(&h->n_overruns),
        .n_full = atomic_load(&h->n_full),
        .full_seconds = (double)atomic_load(&h->full_ns) * 1e-9,
        .n_open = atomic_load(&h->n_open),
        .n_exchanges = atomic_load(&h->n_exchanges),
        .busy_seconds = (double)atomic_load(&h->busy_ns) * 1e-9,
        .longest_seconds = (double)atomic_load(&h->longest_ns) * 1e-9,
        .bodies_bytes = atomic_load(&h->bodies_bytes),
        .replies_bytes = atomic_load(&h->replies_bytes),
        .n_replies_refused = atomic_load(&h->n_no_room),
    };
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < 2; i++) {
        out->n_reading += h->lane[i].n;
        out->reading_bytes += h->lane[i].n_bytes;
    }
    out->n_aside = h->n_aside;
    pthread_mutex_unlock(&h->lock);
}
