/* SPDX-License-Identifier: Apache-2.0 */
/* Raw bytes to the HTTP ground through a socket.  Whoever hides a request from a proxy before
 * us must not have it answered: what the handler sees is the beginning of what a strict reader
 * of RFC 9112 finds in the same bytes, request by request.  The first byte says how many pieces
 * they come in. */
#define _GNU_SOURCE
#include "base/bug.h"
#include "http/http.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX = 32, HEADER_BYTES = 4096, BODY_BYTES = 8192, PATIENCE_MS = 10000 };

struct request {
    char method[24];
    size_t n_body;
    uint64_t sum; /* of the body */
};

/* What the handler saw. */
static struct site {
    pthread_mutex_t lock;
    struct request seen[MAX]; /* [n] Sync: lock */
    int n;
    struct http *http;
    struct sockaddr_un at;
} site = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t add_up(uint64_t sum, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ (unsigned char)p[i]) * 0x100000001B3u;
    return sum;
}

static void handle(void *arg, struct http_exchange *x, const struct http_request *rq)
{
    struct site *s = arg;
    BUG_IF(rq->body[rq->n_body] != 0);
    pthread_mutex_lock(&s->lock);
    if (s->n < MAX) {
        struct request *r = &s->seen[s->n];
        snprintf(r->method, sizeof r->method, "%s", rq->method);
        r->n_body = rq->n_body;
        r->sum = add_up(0, rq->body, rq->n_body);
    }
    s->n++;
    pthread_mutex_unlock(&s->lock);
    http_reply(x, 200, "text/plain", "ok", 2);
}

/* ---- the strict reader ---- */

struct text {
    const char *at, *end;
};

static int is_token(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* A line up to CR LF; 0 when there is none. */
static int line(struct text *t, struct text *out)
{
    const char *crlf = t->end > t->at ? memmem(t->at, (size_t)(t->end - t->at), "\r\n", 2) : NULL;
    if (!crlf)
        return 0;
    *out = (struct text){t->at, crlf};
    t->at = crlf + 2;
    return 1;
}

static int is(const struct text *t, const char *word)
{
    return (size_t)(t->end - t->at) == strlen(word) &&
           strncasecmp(t->at, word, strlen(word)) == 0;
}

/* A number of at most 8 digits in that base, behind zeros. */
static int number(const struct text *t, int base, size_t *out)
{
    static const char digits[] = "0123456789abcdef";
    const char *p = t->at;
    *out = 0;
    while (p + 1 < t->end && *p == '0')
        p++;
    if (p == t->end || t->end - p > 8)
        return 0;
    for (; p < t->end; p++) {
        const char c = (char)(*p >= 'A' && *p <= 'F' ? *p + 32 : *p);
        const char *d = c ? memchr(digits, c, (size_t)base) : NULL;
        if (!d)
            return 0;
        *out = *out * (size_t)base + (size_t)(d - digits);
    }
    return 1;
}

static int head_line(struct text l, struct request *r)
{
    const char *p = l.at;
    while (p < l.end && is_token(*p))
        p++;
    const size_t n = (size_t)(p - l.at);
    if (!n || p == l.end || *p != ' ')
        return 0;
    snprintf(r->method, sizeof r->method, "%.*s", (int)n, l.at); /* cut, as the ground does */
    const char *target = ++p;
    while (p < l.end && (unsigned char)*p > ' ' && *p != 0x7F)
        p++;
    return p > target && l.end - p == 9 && memcmp(p, " HTTP/1.", 8) == 0 && p[8] >= '0' &&
           p[8] <= '9';
}

static int header(struct text l, int *n_length, size_t *length, int *n_chunked)
{
    struct text name = {l.at, l.at}, value = {NULL, l.end};
    while (name.end < l.end && is_token(*name.end))
        name.end++;
    if (name.end == name.at || name.end == l.end || *name.end != ':')
        return 0;
    value.at = name.end + 1;
    for (const char *p = value.at; p < value.end; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7F)
            return 0;
    while (value.at < value.end && (*value.at == ' ' || *value.at == '\t'))
        value.at++;
    while (value.at < value.end && (value.end[-1] == ' ' || value.end[-1] == '\t'))
        value.end--;
    if (is(&name, "content-length"))
        return ++*n_length == 1 && number(&value, 10, length);
    if (is(&name, "transfer-encoding"))
        return ++*n_chunked == 1 && is(&value, "chunked");
    return 1;
}

/* In the frame of a chunked body, and in what trails it, the library takes a bare line feed too;
 * and a name that is empty there for the end. */
static int loose_line(struct text *t, struct text *out)
{
    const char *lf = t->end > t->at ? memchr(t->at, '\n', (size_t)(t->end - t->at)) : NULL;
    if (!lf)
        return 0;
    *out = (struct text){t->at, lf > t->at && lf[-1] == '\r' ? lf - 1 : lf};
    t->at = lf + 1;
    return 1;
}

static int chunks(struct text *t, struct request *r)
{
    for (;;) {
        struct text l;
        size_t n;
        if (!loose_line(t, &l))
            return 0;
        const char *semicolon = memchr(l.at, ';', (size_t)(l.end - l.at));
        if (semicolon)
            l.end = semicolon;
        while (l.end > l.at && (l.end[-1] == ' ' || l.end[-1] == '\t'))
            l.end--;
        if (!number(&l, 16, &n))
            return 0;
        if (!n)
            break;
        if ((size_t)(t->end - t->at) < n)
            return 0;
        r->sum = add_up(r->sum, t->at, n);
        r->n_body += n;
        t->at += n;
        if (!loose_line(t, &l) || l.at < l.end)
            return 0;
    }
    for (;;) {
        struct text l;
        if (!loose_line(t, &l))
            return 0;
        if (l.at == l.end || *l.at == ':')
            return 1;
    }
}

static int request(struct text *t, struct request *r)
{
    struct text l;
    size_t length = 0;
    int n_length = 0, n_chunked = 0;
    *r = (struct request){0};
    while (t->at < t->end && (*t->at == '\r' || *t->at == '\n'))
        t->at++; /* empty lines before a request are nothing */
    if (!line(t, &l) || !head_line(l, r))
        return 0;
    for (;;) {
        if (!line(t, &l))
            return 0;
        if (l.at == l.end)
            break;
        if (!header(l, &n_length, &length, &n_chunked))
            return 0;
    }
    if (n_length && n_chunked)
        return 0;
    if (n_chunked)
        return chunks(t, r);
    if ((size_t)(t->end - t->at) < length)
        return 0;
    r->n_body = length;
    r->sum = add_up(0, t->at, length);
    t->at += length;
    return 1;
}

/* ---- the wire ---- */

static void end(void) { http_close(site.http); }

static void start(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/ingle-fuzz-http-%ld", (long)getpid());
    const struct http_options o = {.n_host = -1,
                                   .unix_path = path,
                                   .header_bytes = HEADER_BYTES,
                                   .body_bytes = BODY_BYTES,
                                   .half_close_ok = true,
                                   .handle = handle,
                                   .arg = &site};
    struct err err = {0};
    if (http_open(&site.http, &o, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    atexit(end); /* the socket's file goes */
    site.at.sun_family = AF_UNIX;
    snprintf(site.at.sun_path, sizeof site.at.sun_path, "%s", path);
}

/* Until the server has closed: whatever came, it must not leave us hanging. */
static void read_all(int fd)
{
    char buf[4096];
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        BUG_IF(poll(&p, 1, PATIENCE_MS) == 0);
        const ssize_t got = read(fd, buf, sizeof buf);
        if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN))
            return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!n || n > 32 * 1024)
        return 0;
    if (!site.http)
        start();
    const size_t pieces = 1 + data[0] % 5, n_text = n - 1;
    const char *text = (const char *)data + 1;
    site.n = 0;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    BUG_IF(fd < 0 || connect(fd, (const struct sockaddr *)&site.at, sizeof site.at));
    for (size_t i = 0; i < pieces; i++) {
        const size_t from = n_text * i / pieces, to = n_text * (i + 1) / pieces;
        if (send(fd, text + from, to - from, MSG_NOSIGNAL) < 0)
            break;
    }
    shutdown(fd, SHUT_WR);
    read_all(fd);
    close(fd);

    /* The library puts zeros in the place of what ends names and lines.  A header without a name
     * ends the head for version 0.9.75, and a zero is one, too: both leave the same bytes as an
     * empty line, so there is no telling.  Proxies refuse both. */
    if (memmem(text, n_text, "\n:", 2) || memchr(text, 0, n_text))
        return 0;
    struct text t = {text, text + n_text};
    pthread_mutex_lock(&site.lock);
    for (int i = 0; i < site.n && i < MAX; i++) {
        struct request r;
        const struct request *s = &site.seen[i];
        BUG_IF(!request(&t, &r));
        BUG_IF(strcmp(r.method, s->method) != 0 || r.n_body != s->n_body || r.sum != s->sum);
    }
    pthread_mutex_unlock(&site.lock);
    return 0;
}
