/* SPDX-License-Identifier: Apache-2.0 */
/* address - where an end is, and the secret that both know. */
#define _GNU_SOURCE
#include "link/link.h"

#include "base/mem.h"
#include "base/file.h"
#include "base/sha256.h"

#include <ctype.h>
#include <errno.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static bool starts(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* ---- addresses ---- */

static bool is_near_six(const struct in6_addr *a)
{
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

static bool is_near_host(const char *host)
{
    char inner[64];
    struct in_addr four;
    struct in6_addr six;
    if (strcmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &four) == 1) /* a name may begin with 127., too */
        return ntohl(four.s_addr) >> 24 == 127;
    if (host[0] != '[' || strlen(host) > sizeof inner)
        return false;
    snprintf(inner, sizeof inner, "%.*s", (int)strlen(host) - 2, host + 1);
    return inet_pton(AF_INET6, inner, &six) == 1 && is_near_six(&six);
}

/* The address of a socket that somebody else has opened. */
static ingle_status look_at_handed(const char *text, int fd, struct link_address *out,
                                   struct err *err)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a, n_int = sizeof(int);
    int listens = 0;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return err_set(err, INGLE_ARG, "'%s': descriptor %d is no socket: %s", text, fd,
                       strerror(errno));
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n_int) != 0 || !listens)
        return err_set(err, INGLE_ARG,
                       "'%s': the socket does not listen: listen() comes before it is handed over",
                       text);
    if (a.ss_family == AF_UNIX) {
        struct sockaddr_un u;
        memcpy(&u, &a, sizeof u);
        if (!u.sun_path[0])
            return err_set(err, INGLE_ARG, "'%s': a socket without a path", text);
        snprintf(out->endpoint, sizeof out->endpoint, "ipc://%.*s", (int)sizeof u.sun_path,
                 u.sun_path);
        out->near = true;
    } else if (a.ss_family == AF_INET) {
        struct sockaddr_in i;
        memcpy(&i, &a, sizeof i);
        const uint32_t v = ntohl(i.sin_addr.s_addr);
        out->near = v >> 24 == 127;
        snprintf(out->endpoint, sizeof out->endpoint, "tcp://%u.%u.%u.%u:%u", v >> 24,
                 v >> 16 & 255, v >> 8 & 255, v & 255, ntohs(i.sin_port));
    } else if (a.ss_family == AF_INET6) {
        struct sockaddr_in6 i;
        memcpy(&i, &a, sizeof i);
        out->near = is_near_six(&i.sin6_addr);
        snprintf(out->endpoint, sizeof out->endpoint, "tcp://[%s]:%u",
                 out->near ? "::1" : "::", ntohs(i.sin6_port));
    } else {
        return err_set(err, INGLE_ARG, "'%s': a socket that is neither TCP's nor of a file system",
                       text);
    }
    out->place = LINK_HANDED;
    out->fd = fd;
    return INGLE_OK;
}

/* A number within 0 to most at the whole of text; -1: it is none. */
static long number_of(const char *text, long most)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return -1;
    errno = 0;
    const long v = strtol(text, &end, 10);
    return *end || errno || v > most ? -1 : v;
}

ingle_status link_address_parse(const char *text, bool listening, struct link_address *out,
                                struct err *err)
{
    struct link_address a = {.fd = -1};
    if (starts(text, "fd:")) {
        const long fd = number_of(text + 3, 1 << 20);
        if (!listening || fd < 0)
            return err_set(err, INGLE_ARG, "address '%s': %s", text,
                           listening ? "it is fd:N with the number of a descriptor"
                                     : "only who listens is handed a descriptor");
        const ingle_status st = look_at_handed(text, (int)fd, &a, err);
        if (!st)
            *out = a;
        return st;
    }
    if (starts(text, "unix:")) {
        const size_t most = sizeof((struct sockaddr_un *)0)->sun_path - 1, n = strlen(text + 5);
        if (!n || n > most)
            return err_set(err, INGLE_ARG, "address '%s': the path has %zu bytes, outside 1 to %zu",
                           text, n, most);
        a.place = LINK_UNIX;
        a.near = true;
        snprintf(a.endpoint, sizeof a.endpoint, "ipc://%s", text + 5);
        *out = a;
        return INGLE_OK;
    }
    const char *colon = strrchr(text, ':');
    const size_t n = colon ? (size_t)(colon - text) : 0;
    const bool six = n > 2 && text[0] == '[' && text[n - 1] == ']';
    if (!colon || !n || n > 253 || number_of(colon + 1, 65535) < 0 ||
        (!six && memchr(text, ':', n)) || memchr(text, '/', n))
        return err_set(err, INGLE_ARG,
                       "address '%s' is none of HOST:PORT, [IPV6]:PORT and unix:PATH%s", text,
                       listening ? " and fd:N" : "");
    if (!listening && number_of(colon + 1, 65535) == 0)
        return err_set(err, INGLE_ARG, "address '%s' has port 0: nobody listens there", text);
    char host[256];
    memcpy(host, text, n);
    host[n] = 0;
    a.near = is_near_host(host);
    snprintf(a.endpoint, sizeof a.endpoint, "tcp://%s:%s",
             listening && strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, colon + 1);
    *out = a;
    return INGLE_OK;
}

/* ---- the secret ---- */

ingle_status link_addresses_cut(char *text, const char *option, const char **out, int most, int *n,
                                struct err *err)
{
    const size_t n_text = strlen(text);
    if (!n_text || *text == ',' || text[n_text - 1] == ',' || strstr(text, ",,"))
        return err_set(err, INGLE_ARG, "%s '%.200s' has an empty address", option, text);
    *n = 0;
    for (char *rest, *at = strtok_r(text, ",", &rest); at && *n <= most;
         at = strtok_r(NULL, ",", &rest))
        out[(*n)++] = at;
    return INGLE_OK;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static ingle_status read_digits(const char *path, const char *text, size_t n,
                                uint8_t out[LINK_SECRET], struct err *err)
{
    while (n && isspace((unsigned char)text[n - 1]))
        n--;
    bool ok = n == 2 * LINK_SECRET;
    for (size_t i = 0; ok && i < LINK_SECRET; i++) {
        const int hi = digit_of(text[2 * i]), lo = digit_of(text[2 * i + 1]);
        ok = hi >= 0 && lo >= 0;
        out[i] = (uint8_t)(ok ? hi << 4 | lo : 0);
    }
    return ok ? INGLE_OK
              : err_set(err, INGLE_FORMAT,
                        "%s: a key has %d hexadecimal digits (openssl rand -hex %d)", path,
                        2 * LINK_SECRET, LINK_SECRET);
}

ingle_status link_secret_read(const char *path, uint8_t out[LINK_SECRET], struct err *err)
{
    enum { MOST = 4096 };
    struct stat s;
    char *text;
    size_t n;
    if (stat(path, &s) == 0 && !file_is_private(&s))
        return err_set(err, INGLE_ARG,
                       "%s: others may read or write the key (--worker-key, mode %03o): chmod 600",
                       path, (unsigned)s.st_mode & 0777);
    ingle_status st = file_slurp(path, MOST, &text, &n, err);
    if (st)
        return st;
    st = read_digits(path, text, n, out, err);
    memset(text, 0, n);
    mem_free(text);
    return st;
}

void link_secret_derive(const uint8_t secret[LINK_SECRET], const char *role,
                        uint8_t out[LINK_SECRET])
{
    static const char what[] = "ingle experts ";
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, what, sizeof what - 1);
    sha256_add(&s, role, strlen(role) + 1);
    sha256_add(&s, secret, LINK_SECRET);
    sha256_end(&s, out);
}
