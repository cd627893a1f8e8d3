/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd - what the HTTP layer alone does with many streams, some of which nobody reads.
 *
 * usage: bench_crowd [STREAMS] [NOT_READ] [EVENTS_PER_SECOND] [SECONDS]
 *
 * A thread writes an event with the time in it to every stream; another process reads them.
 * Printed are the times from the write to the read, the server's memory and processor time,
 * and how many of those that do not read were dropped.
 */
#define _GNU_SOURCE
#include "http/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STREAMS = 4000, MAX_TIMES = 1 << 23, EVENT_BYTES = 250 };

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the server ---- */

struct site {
    pthread_mutex_t lock;
    struct http_exchange *x[MAX_STREAMS]; /* Sync: lock; NULL: it has ended */
    int n;                                /* Sync: lock */
    double rate;
    atomic_bool stop;
};

static void handle(void *arg, struct http_exchange *x, const struct http_request *rq)
{
    struct site *s = arg;
    (void)rq;
    pthread_mutex_lock(&s->lock);
    if (s->n < MAX_STREAMS) {
        http_hold(x);
        http_begin(x, 200, "text/event-stream");
        s->x[s->n++] = x;
    }
    pthread_mutex_unlock(&s->lock);
}

static void *produce(void *arg)
{
    struct site *s = arg;
    const uint64_t step = (uint64_t)(1e9 / s->rate);
    char event[EVENT_BYTES + 1];
    for (uint64_t next = now(); !atomic_load(&s->stop); next += step) {
        for (uint64_t t; (t = now()) < next;)
            nanosleep(&(struct timespec){.tv_nsec = (long)(next - t)}, NULL);
        pthread_mutex_lock(&s->lock);
        for (int i = 0; i < s->n; i++) {
            if (!s->x[i])
                continue;
            const int n = snprintf(event, sizeof event, "data: %llu ", (unsigned long long)now());
            memset(event + n, 'x', sizeof event - (size_t)n);
            memcpy(event + EVENT_BYTES - 2, "\n\n", 2);
            if (http_write(s->x[i], event, EVENT_BYTES))
                continue;
            http_release(s->x[i]);
            s->x[i] = NULL;
        }
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

static double resident(void)
{
    long pages = 0, all;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &all, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

/* ---- the clients ---- */

static uint32_t *took; /* us */
static size_t n_took;

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int dial(int port, bool reads)
{
    const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static const char ask[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const int fd = socket(AF_INET, SOCK_STREAM, 0), small = 4096;
    if (!reads)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof a) ||
        send(fd, ask, sizeof ask - 1, 0) < 0) {
        perror("connect");
        exit(1);
    }
    return fd;
}

static void count(const char *text, uint64_t t)
{
    for (const char *p = text; (p = strstr(p, "data: ")) && n_took < MAX_TIMES; p += 6) {
        const unsigned long long then = strtoull(p + 6, NULL, 10);
        if (then > t / 2 && then <= t) /* whole: it was not cut by the end of the read */
            took[n_took++] = (uint32_t)((t - then) / 1000);
    }
}

static void read_streams(int port, int n, int n_not_read, double seconds)
{
    struct epoll_event e = {.events = EPOLLIN}, ready[256];
    static char text[65536 + 1];
    const int epoll = epoll_create1(0);
    took = calloc(MAX_TIMES, sizeof *took);
    if (!took)
        exit(1);
    for (int i = 0; i < n; i++) {
        const bool reads = i >= n_not_read;
        e.data.fd = dial(port, reads);
        if (reads)
            epoll_ctl(epoll, EPOLL_CTL_ADD, e.data.fd, &e);
    }
    const uint64_t end = now() + (uint64_t)(seconds * 1e9);
    while (now() < end) {
        const int k = epoll_wait(epoll, ready, 256, 100);
        for (int i = 0; i < k; i++) {
            const ssize_t got = recv(ready[i].data.fd, text, sizeof text - 1, MSG_DONTWAIT);
            if (got <= 0) {
                epoll_ctl(epoll, EPOLL_CTL_DEL, ready[i].data.fd, NULL);
                continue;
            }
            text[got] = 0;
            count(text, now());
        }
    }
    qsort(took, n_took, sizeof *took, by_value);
    if (!n_took)
        exit(1);
    printf("%d streams, %d of them not read: %zu events, %.0f a second; p50 %.2f ms, p95 %.2f ms, "
           "p99 %.2f ms, max %.1f ms\n",
           n, n_not_read, n_took, (double)n_took / seconds, took[n_took / 2] * 1e-3,
           took[n_took * 95 / 100] * 1e-3, took[n_took * 99 / 100] * 1e-3, took[n_took - 1] * 1e-3);
    exit(0);
}

int main(int argc, char **argv)
{
    const int n = argc > 1 ? atoi(argv[1]) : 500, n_not_read = argc > 2 ? atoi(argv[2]) : 100;
    const double seconds = argc > 4 ? atof(argv[4]) : 9;
    static struct site s;
    struct http *h;
    struct err err;
    pthread_t producer;
    s.rate = argc > 3 ? atof(argv[3]) : 50;
    if (n < 1 || n > MAX_STREAMS || n_not_read < 0 || n_not_read >= n || s.rate <= 0)
        return 1;
    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){2 * MAX_STREAMS, 2 * MAX_STREAMS});
    pthread_mutex_init(&s.lock, NULL);
    const struct http_options o = {.max_connections = MAX_STREAMS, .handle = handle, .arg = &s};
    int tell[2];
    const pid_t child = pipe(tell) ? -1 : fork();
    if (child < 0)
        return 1;
    if (!child) {
        int port = 0;
        if (read(tell[0], &port, sizeof port) == (ssize_t)sizeof port)
            read_streams(port, n, n_not_read, seconds);
        exit(1);
    }
    if (http_open(&h, &o, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const int port = http_port(h);
    const double before = resident();
    pthread_create(&producer, NULL, produce, &s);
    if (write(tell[1], &port, sizeof port) != (ssize_t)sizeof port)
        return 1;
    double most = 0;
    int status;
    while (waitpid(child, &status, WNOHANG) == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        const double r = resident();
        most = r > most ? r : most;
    }
    struct http_counters c;
    struct rusage u;
    http_counters(h, &c);
    getrusage(RUSAGE_SELF, &u);
    printf("the server: %.1f MiB before, at most %.1f MiB; %.2f s of processor time, of them the "
           "I/O thread "
           "%.2f s; %llu dropped, longest turn %.1f ms\n",
           before, most,
           (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
               (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6,
           c.busy_seconds, (unsigned long long)c.n_overruns, c.longest_seconds * 1e3);
    atomic_store(&s.stop, true);
    pthread_join(producer, NULL);
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    printf("afterwards: %.1f MiB\n", resident());
    http_close(h);
    return status != 0;
}
