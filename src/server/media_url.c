/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "server/media_url.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_URL = 4096, MOST_SECONDS = 10, MOST_WAIT = 60, MOST_BYTES = 20 << 20, MOST_HOST = 253 };

/* ---- addresses ---- */

struct range4 {
    uint32_t at;
    int bits;
};

static bool is_public4(uint32_t a)
{
    static const struct range4 closed[] = {
        {0x00000000, 8},  /* this network */
        {0x0A000000, 8},  /* private */
        {0x64400000, 10}, /* carriers */
        {0x7F000000, 8},  /* loopback */
        {0xA9FE0000, 16}, /* link-local */
        {0xAC100000, 12}, /* private */
        {0xC0000000, 24}, /* protocols */
        {0xC0000200, 24}, /* examples */
        {0xC0586300, 24}, /* 6to4 relays */
        {0xC0A80000, 16}, /* private */
        {0xC6120000, 15}, /* benchmarks */
        {0xC6336400, 24}, /* examples */
        {0xCB007100, 24}, /* examples */
        {0xE0000000, 3},  /* multicast, reserved, broadcast */
    };
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        if ((a ^ closed[i].at) >> (32 - closed[i].bits) == 0)
            return false;
    return true;
}

/* 2000::/3 is the open internet; inside it some ranges carry addresses of other kinds. */
static bool is_public6(const uint8_t a[16])
{
    if ((a[0] & 0xE0) != 0x20)
        return false; /* ::, ::1, ::ffff:, 64:ff9b:, fc00::, fe80::, ff00:: */
    const bool six_to_four = a[0] == 0x20 && a[1] == 0x02;
    const bool protocols = a[0] == 0x20 && a[1] == 0x01 && (a[2] & 0xFE) == 0; /* Teredo, too */
    const bool example = a[0] == 0x20 && a[1] == 0x01 && a[2] == 0x0D && a[3] == 0xB8;
    const bool example2 = a[0] == 0x3F && a[1] == 0xFF;
    return !six_to_four && !protocols && !example && !example2;
}

bool media_url_is_public(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        return is_public4(ntohl(in.sin_addr.s_addr));
    }
    if (a->sa_family != AF_INET6)
        return false;
    struct sockaddr_in6 in;
    memcpy(&in, a, sizeof in);
    return is_public6(in.sin6_addr.s6_addr);
}

/* ---- hosts ---- */

static bool host_matches(const char *host, const char *rule, size_t n)
{
    const size_t n_host = strlen(host);
    if (n > 2 && rule[0] == '*') /* "*.example.org": names below it */
        return n_host >= n && strncasecmp(host + n_host - (n - 1), rule + 1, n - 1) == 0;
    return n_host == n && strncasecmp(host, rule, n) == 0;
}

static bool is_listed(const char *host, const char *hosts)
{
    while (*hosts) {
        const size_t n = strcspn(hosts, ",");
        if (n && host_matches(host, hosts, n))
            return true;
        hosts += n + (hosts[n] == ',');
    }
    return false;
}

ingle_status media_url_check_hosts(const char *hosts, struct err *err)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.";
    if (!*hosts)
        return err_set(err, INGLE_ARG, "'media-urls' is empty; it takes hosts: 'example.org'");
    for (;;) {
        const size_t n = strcspn(hosts, ","), star = strncmp(hosts, "*.", 2) == 0 ? 2 : 0;
        if (n <= star || n > MOST_HOST || strspn(hosts + star, allowed) < n - star)
            return err_set(err, INGLE_ARG,
                           "'media-urls': '%.*s' is no host such as 'example.org' or "
                           "'*.example.org'",
                           (int)(n < 60 ? n : 60), hosts);
        hosts += n;
        if (!*hosts)
            return INGLE_OK;
        hosts++;
    }
}

/* ---- URLs ---- */

struct address {
    CURLU *url;
    char *host, *port;
};

static void address_release(struct address *a)
{
    curl_free(a->host);
    curl_free(a->port);
    curl_url_cleanup(a->url);
}

/* The name that the certificate is for; a dot at the end makes no other one. */
static void cut_dot(char *host)
{
    const size_t n = strlen(host);
    if (n > 1 && host[n - 1] == '.')
        host[n - 1] = 0;
}

static const char *parse(const char *text, const char *hosts, struct address *a)
{
    char *part = NULL;
    *a = (struct address){.url = curl_url()};
    if (!a->url)
        return "there is no memory for it";
    if (strlen(text) > MOST_URL)
        return "it has more than 4096 bytes";
    if (curl_url_set(a->url, CURLUPART_URL, text, 0) != CURLUE_OK)
        return "it is no URL";
    if (curl_url_get(a->url, CURLUPART_SCHEME, &part, 0) != CURLUE_OK)
        return "it has no scheme";
    const bool https = strcasecmp(part, "https") == 0;
    curl_free(part);
    if (!https)
        return "only https: is fetched";
    part = NULL;
    if (curl_url_get(a->url, CURLUPART_USER, &part, 0) == CURLUE_OK) {
        curl_free(part);
        return "it has a user name";
    }
    if (curl_url_get(a->url, CURLUPART_HOST, &a->host, 0) != CURLUE_OK ||
        curl_url_get(a->url, CURLUPART_PORT, &a->port, CURLU_DEFAULT_PORT) != CURLUE_OK)
        return "it has no host";
    cut_dot(a->host);
    return is_listed(a->host, hosts) ? NULL : "its host is not among those of --media-urls";
}

static void say(struct fault *f, const char *where, const char *param, const char *why)
{
    request_fault(f, FAULT_REQUEST, param, "%s: the address is not fetched: %s", where, why);
}

void media_url_check(const char *url, const char *hosts, const char *where, const char *param,
                     struct fault *f)
{
    struct address a;
    const char *why = parse(url, hosts, &a);
    if (why)
        say(f, where, param, why);
    address_release(&a);
}

/* ---- so many at once ---- */

struct media_gate {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    int n; /* Sync: lock; fetches that run */
};

struct media_gate *media_gate_create(void)
{
    struct media_gate *g = mem_zalloc(sizeof *g);
    if (!g)
        return NULL;
    BUG_IF(pthread_mutex_init(&g->lock, NULL) || pthread_cond_init(&g->freed, NULL));
    return g;
}

void media_gate_free(struct media_gate *g)
{
    if (!g)
        return;
    pthread_cond_destroy(&g->freed);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

/* When to look again: a client that has left wakes nobody. */
static struct timespec soon(void)
{
    static const long CHECK_NS = 50000000;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += CHECK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

/* NULL, or why not. */
static const char *enter(struct media_gate *g, struct fault *f)
{
    const uint64_t began = clock_now();
    const char *why = NULL;
    pthread_mutex_lock(&g->lock);
    while (g->n >= MEDIA_URLS_AT_ONCE && !why) {
        const struct timespec until = soon();
        (void)pthread_cond_timedwait(&g->freed, &g->lock, &until);
        if (request_has_ended(f))
            why = "its request is over";
        else if (clock_now() - began > (uint64_t)MOST_WAIT * 1000000000)
            why = "4 others were being fetched for 60 s";
    }
    g->n += !why;
    pthread_mutex_unlock(&g->lock);
    return why;
}

static void leave(struct media_gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->n--;
    pthread_cond_signal(&g->freed);
    pthread_mutex_unlock(&g->lock);
}

/* ---- fetching ---- */

struct fetch {
    struct str *out;
    struct fault *f;
    uint64_t end; /* by clock_now() */
    bool too_large, refused;
};

static size_t on_body(char *at, size_t one, size_t n, void *arg)
{
    struct fetch *g = arg;
    (void)one;
    if (n > MOST_BYTES - g->out->n) {
        g->too_large = true;
        return 0;
    }
    str_add(g->out, at, n);
    return str_ok(g->out) ? n : 0;
}

static int on_time(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct fetch *g = arg;
    (void)a, (void)b, (void)c, (void)d;
    return request_has_ended(g->f);
}

/* The last look: at the address that is connected to. */
static curl_socket_t on_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct fetch *g = arg;
    (void)purpose;
    if (!media_url_is_public(&a->addr)) {
        g->refused = true;
        return CURL_SOCKET_BAD;
    }
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

/* A question to the resolver, which nothing can stop: it has a thread of its own, and who gives up
 * leaves it there. */
struct lookup {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done, left;      /* Sync: lock */
    struct addrinfo *all; /* owns; written before it is over */
    char host[MOST_HOST + 1], port[8];
};

static void lookup_free(struct lookup *l)
{
    if (l->all)
        freeaddrinfo(l->all);
    pthread_cond_destroy(&l->ended);
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
}

static void *look_up(void *arg)
{
    struct lookup *l = arg;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    if (getaddrinfo(l->host, l->port, &hints, &all))
        all = NULL;
    pthread_mutex_lock(&l->lock);
    l->all = all;
    l->done = true;
    const bool left = l->left;
    pthread_cond_signal(&l->ended);
    pthread_mutex_unlock(&l->lock);
    if (left)
        lookup_free(l);
    return NULL;
}

static struct lookup *lookup_begin(const struct address *a)
{
    pthread_t thread;
    struct lookup *l = mem_zalloc(sizeof *l);
    if (!l)
        return NULL;
    BUG_IF(pthread_mutex_init(&l->lock, NULL) || pthread_cond_init(&l->ended, NULL));
    (void)snprintf(l->host, sizeof l->host, "%s", a->host);
    (void)snprintf(l->port, sizeof l->port, "%s", a->port);
    if (!pool_thread(&thread, look_up, l)) {
        lookup_free(l);
        return NULL;
    }
    pthread_detach(thread);
    return l;
}

/* Until the resolver has answered; why not, or NULL: then *l is the caller's. */
static const char *lookup_wait(struct lookup *l, uint64_t end, struct fault *f)
{
    const char *why = NULL;
    pthread_mutex_lock(&l->lock);
    while (!l->done && !why) {
        const struct timespec until = soon();
        (void)pthread_cond_timedwait(&l->ended, &l->lock, &until);
        if (request_has_ended(f))
            why = "its request is over";
        else if (clock_now() > end)
            why = "its host's address takes more than 10 s";
    }
    const bool done = l->done;
    l->left = why && !done;
    pthread_mutex_unlock(&l->lock);
    if (why && done)
        lookup_free(l);
    return why;
}

/* "host:port:address" of the first address; every one must be public. */
static const char *resolve(const struct address *a, struct fetch *g, char *out, size_t n)
{
    char text[INET6_ADDRSTRLEN + 32];
    struct lookup *l = lookup_begin(a);
    const char *why = l ? lookup_wait(l, g->end, g->f) : "there is no thread for it";
    if (why)
        return why;
    const struct addrinfo *all = l->all;
    if (!all)
        why = "its host has no address";
    for (const struct addrinfo *i = all; i && !why; i = i->ai_next)
        if (!media_url_is_public(i->ai_addr))
            why = "its host has an address that is not of the open internet";
    if (!why &&
        getnameinfo(all->ai_addr, all->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0)
        why = "its host has no address";
    if (!why)
        (void)snprintf(out, n, all->ai_family == AF_INET6 ? "%s:%s:[%s]" : "%s:%s:%s", a->host,
                       a->port, text);
    lookup_free(l);
    return why;
}

/* Of the time for the address and the file. */
static long left_ms(const struct fetch *g)
{
    const uint64_t now = clock_now();
    return now < g->end ? (long)((g->end - now) / 1000000) + 1 : 1;
}

static bool set(CURL *e, const char *url, struct curl_slist *resolved, struct fetch *g)
{
    return curl_easy_setopt(e, CURLOPT_URL, url) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_RESOLVE, resolved) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "https") == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, left_ms(g)) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_MAXFILESIZE, (long)MOST_BYTES) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_USERAGENT, "ingle") == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, on_socket) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_OPENSOCKETDATA, g) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_XFERINFOFUNCTION, on_time) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_XFERINFODATA, g) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_NOPROGRESS, 0L) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_WRITEDATA, g) == CURLE_OK;
}

static const char *get(const char *url, struct curl_slist *resolved, struct fetch *g)
{
    long status = 0;
    CURL *e = curl_easy_init();
    const char *why = "there is no memory for it";
    if (e && set(e, url, resolved, g)) {
        const CURLcode code = curl_easy_perform(e);
        (void)curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &status);
        why = g->refused                                        ? "its address is not public"
              : g->too_large || code == CURLE_FILESIZE_EXCEEDED ? "it has more than 20 MiB"
              : code == CURLE_OPERATION_TIMEDOUT                ? "it takes more than 10 s"
              : code != CURLE_OK                                ? curl_easy_strerror(code)
              : status >= 300 && status < 400 ? "it redirects, which is not followed"
              : status != 200                 ? "its server does not have it"
                                              : NULL;
    }
    if (e)
        curl_easy_cleanup(e);
    return why;
}

bool media_url_fetch(const char *url, const char *hosts, struct media_gate *gate,
                     const char *where, const char *param, struct str *out, struct fault *f)
{
    struct address a;
    char line[MOST_HOST + 160];
    struct fetch g = {.out = out, .f = f};
    const char *why = parse(url, hosts, &a);
    why = why || !gate ? why : enter(gate, f);
    const bool entered = gate && !why;
    g.end = clock_now() + (uint64_t)MOST_SECONDS * 1000000000;
    why = why ? why : resolve(&a, &g, line, sizeof line);
    struct curl_slist *resolved = why ? NULL : curl_slist_append(NULL, line);
    if (!why)
        why = resolved ? get(url, resolved, &g) : "there is no memory for it";
    if (entered)
        leave(gate);
    if (why)
        say(f, where, param, why);
    curl_slist_free_all(resolved);
    address_release(&a);
    return !why;
}
