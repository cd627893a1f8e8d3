/* SPDX-License-Identifier: Apache-2.0 */
/* http_listen - the sockets that clients reach: bound here, or handed over by the starter. */
#define _GNU_SOURCE
#include "http/inner.h"
#include "http/parts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { SEND_BUFFER = 64 * 1024, BACKLOG = 1024 };

static void set_number(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof value);
}

/* Accepted sockets inherit these.  A small buffer, so that a client that does not read is
 * noticed; probes, so that one whose machine has vanished is. */
static void tune(int fd)
{
    set_number(fd, SOL_SOCKET, SO_SNDBUF, SEND_BUFFER);
    set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_number(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_number(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_number(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

static int port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n))
        return 0;
    return a.ss_family == AF_INET6  ? ntohs(((struct sockaddr_in6 *)&a)->sin6_port)
           : a.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&a)->sin_port)
                                    : 0;
}

/* ---- bound here ---- */

static ingle_status keep(struct http *h, int fd, struct err *err)
{
    if (h->n_listeners == HTTP_LISTENERS) {
        close(fd);
        return err_set(err, INGLE_LIMIT, "more than %d addresses to listen on", HTTP_LISTENERS);
    }
    h->listener[h->n_listeners++] = fd;
    return INGLE_OK;
}

/* *why: errno */
static ingle_status listen_on(struct http *h, int fd, const struct sockaddr *a, socklen_t n,
                              const char *name, int *why, struct err *err)
{
    if (!bind(fd, a, n) && !listen(fd, BACKLOG))
        return keep(h, fd, err);
    const int e = *why = errno;
    close(fd);
    if (a->sa_family == AF_UNIX)
        return err_set(err, INGLE_IO, "cannot listen on 'unix:%s': %s", name, strerror(e));
    return err_set(err, INGLE_IO, "cannot listen on '%s' port %d: %s%s", name, h->port, strerror(e),
                   e == EADDRINUSE ? " (--port takes another one, 0 any free one)"
                   : e == EACCES   ? " (ports below 1024 are the system's; --port takes another)"
                                   : "");
}

static ingle_status listen_at(struct http *h, const struct addrinfo *a, const char *host,
                              int *why, struct err *err)
{
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *why = errno;
    if (fd < 0)
        return err_set(err, INGLE_IO, "no socket for '%s': %s", host, strerror(*why));
    set_number(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    tune(fd);
    if (a->ai_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)a->ai_addr;
        const bool four = strcmp(host, "::") == 0 || IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);
        set_number(fd, IPPROTO_IPV6, IPV6_V6ONLY, !four);
    }
    const ingle_status st = listen_on(h, fd, a->ai_addr, a->ai_addrlen, host, why, err);
    if (!st)
        h->port = port_of(fd);
    return st;
}

static ingle_status find(int number, const char *host, struct addrinfo **out, struct err *err)
{
    char port[16];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    snprintf(port, sizeof port, "%d", number);
    const int bad = getaddrinfo(host, port, &hints, out);
    if (bad)
        return err_set(err, INGLE_ARG, "host '%s': %s%s", host, gai_strerror(bad),
                       strchr(host, ':') ? " (the port is --port N)" : "");
    return INGLE_OK;
}

static bool is_local(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
    }
    return a->sa_family == AF_INET &&
           ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
}

ingle_status http_host_is_local(const char *host, bool *local, struct err *err)
{
    struct addrinfo *found;
    const ingle_status st = find(0, host, &found, err);
    if (st)
        return st;
    *local = true;
    for (const struct addrinfo *a = found; a; a = a->ai_next)
        *local = *local && is_local(a->ai_addr);
    freeaddrinfo(found);
    return INGLE_OK;
}

/* Whether an earlier result was the same: a name may stand twice in /etc/hosts. */
static bool is_again(const struct addrinfo *first, const struct addrinfo *a)
{
    for (; first != a; first = first->ai_next)
        if (first->ai_addrlen == a->ai_addrlen &&
            memcmp(first->ai_addr, a->ai_addr, a->ai_addrlen) == 0)
            return true;
    return false;
}

/* Whether another name had the same: --host localhost --host 127.0.0.1. */
static bool is_listening(const struct http *h, const struct sockaddr_storage *a, socklen_t n_bytes)
{
    for (int i = 0; i < h->n_listeners; i++) {
        struct sockaddr_storage own;
        socklen_t n = sizeof own;
        if (!getsockname(h->listener[i], (struct sockaddr *)&own, &n) && n == n_bytes &&
            memcmp(&own, a, n) == 0)
            return true;
    }
    return false;
}

/* All addresses of a name ("localhost": 127.0.0.1 and ::1), of which the machine must have one. */
static ingle_status listen_name(struct http *h, const char *host, struct err *err)
{
    struct addrinfo *found;
    struct err none;
    int n = 0, why;
    ingle_status st = find(h->port, host, &found, err);
    if (st)
        return st;
    for (const struct addrinfo *a = found; a && !st; a = a->ai_next) {
        struct sockaddr_storage with_port;
        struct addrinfo here = *a;
        if (is_again(found, a))
            continue;
        memcpy(&with_port, a->ai_addr, a->ai_addrlen);
        here.ai_addr = (struct sockaddr *)&with_port; /* --port 0: as the first one has it */
        if (a->ai_family == AF_INET6)
            ((struct sockaddr_in6 *)&with_port)->sin6_port = htons((uint16_t)h->port);
        else
            ((struct sockaddr_in *)&with_port)->sin_port = htons((uint16_t)h->port);
        if (is_listening(h, &with_port, a->ai_addrlen)) {
            n++;
            continue;
        }
        st = listen_at(h, &here, host, &why, &none);
        n += !st;
        if (st && (why == EADDRNOTAVAIL || why == EAFNOSUPPORT) && (n || a->ai_next))
            st = INGLE_OK;
    }
    freeaddrinfo(found);
    return st ? err_set(err, none.status, "%s", none.msg) : INGLE_OK;
}

/* 127.0.0.1, and ::1 where there is IPv6: what "localhost" is to different clients. */
static ingle_status listen_local(struct http *h, struct err *err)
{
    const bool any = h->port == 0;
    struct addrinfo *found;
    struct err none;
    int why;
    ingle_status st = listen_name(h, "127.0.0.1", err);
    if (st || find(h->port, "::1", &found, &none))
        return st;
    const int port = h->port;
    st = listen_at(h, found, "::1", &why, &none);
    const bool taken = st && why == EADDRINUSE && !any;
    freeaddrinfo(found);
    h->port = port;
    return taken ? err_set(err, none.status, "%s", none.msg) : INGLE_OK;
}

static ingle_status listen_unix(struct http *h, const char *path, struct err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat is;
    int why;
    if (strlen(path) >= sizeof a.sun_path)
        return err_set(err, INGLE_ARG, "socket '%s': longer than %zu bytes", path,
                       sizeof a.sun_path - 1);
    strncpy(a.sun_path, path, sizeof a.sun_path - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set(err, INGLE_IO, "no socket for '%s': %s", path, strerror(errno));
    if (lstat(path, &is) == 0 && S_ISSOCK(is.st_mode)) {
        /* Left over by an earlier server, unless somebody answers. */
        /* A server that does not accept (stopped, or busy) has a full backlog: EAGAIN. */
        const int try = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        const bool alive = try >= 0 && (connect(try, (struct sockaddr *)&a, sizeof a) == 0 ||
                                        errno == EAGAIN || errno == EINPROGRESS);
        if (try >= 0)
            close(try);
        if (!alive)
            unlink(path);
    }
    set_number(fd, SOL_SOCKET, SO_SNDBUF, SEND_BUFFER);
    const mode_t mask = umask(0177);
    const ingle_status st = listen_on(h, fd, (struct sockaddr *)&a, sizeof a, path, &why, err);
    umask(mask);
    if (!st && lstat(path, &is) == 0) {
        h->unix_bound = true;
        h->unix_dev = is.st_dev;
        h->unix_ino = is.st_ino;
    }
    return st;
}

/* Only our own: the path may be somebody else's by now. */
void http_unlink_unix(struct http *h)
{
    struct stat is;
    if (h->unix_bound && lstat(h->o.unix_path, &is) == 0 && S_ISSOCK(is.st_mode) &&
        is.st_dev == h->unix_dev && is.st_ino == h->unix_ino)
        (void)unlink(h->o.unix_path);
    h->unix_bound = false;
}

/* ---- handed over ---- */

ingle_status http_describe_listener(int fd, char *name, size_t n_name, bool *local, struct err *err)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a, n_flag = sizeof(int);
    int listens = 0, type = 0;
    char text[INET6_ADDRSTRLEN] = "";
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n_flag) || !listens ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n_flag) || type != SOCK_STREAM ||
        getsockname(fd, (struct sockaddr *)&a, &n))
        return err_set(err, INGLE_ARG, "descriptor %d, handed over as a socket, does not listen "
                       "for streams", fd);
    if (a.ss_family == AF_UNIX) {
        *local = true;
        snprintf(name, n_name, "unix:%s", ((struct sockaddr_un *)&a)->sun_path);
    } else if (a.ss_family == AF_INET) {
        const struct in_addr *in = &((struct sockaddr_in *)&a)->sin_addr;
        *local = is_local((struct sockaddr *)&a);
        snprintf(name, n_name, "%s:%d", inet_ntop(AF_INET, in, text, sizeof text), port_of(fd));
    } else if (a.ss_family == AF_INET6) {
        const struct in6_addr *in = &((struct sockaddr_in6 *)&a)->sin6_addr;
        *local = is_local((struct sockaddr *)&a);
        snprintf(name, n_name, "[%s]:%d", inet_ntop(AF_INET6, in, text, sizeof text), port_of(fd));
    } else {
        return err_set(err, INGLE_UNSUP, "descriptor %d is a socket of family %d, not of IP or of "
                       "the file system", fd, a.ss_family);
    }
    return INGLE_OK;
}

static ingle_status adopt(struct http *h, int fd, struct err *err)
{
    char name[HTTP_NAME];
    bool local;
    const ingle_status st = http_describe_listener(fd, name, sizeof name, &local, err);
    if (st)
        return st;
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    tune(fd);
    if (!h->port)
        h->port = port_of(fd);
    return keep(h, fd, err);
}

ingle_status http_listen(struct http *h, struct err *err)
{
    const struct http_options *o = &h->o;
    ingle_status st = INGLE_OK;
    h->port = o->n_listeners ? 0 : o->port;
    for (int i = 0; i < o->n_listeners && !st; i++)
        st = adopt(h, o->listener[i], err);
    if (o->n_listeners)
        return st;
    for (int i = 0; i < o->n_host && !st; i++)
        st = listen_name(h, o->host[i], err);
    if (!o->n_host)
        st = listen_local(h, err);
    return !st && o->unix_path ? listen_unix(h, o->unix_path, err) : st;
}
