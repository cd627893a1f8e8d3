/* SPDX-License-Identifier: Apache-2.0 */
/* socket - sockets of ends. */
#define _GNU_SOURCE
#include "link/inner.h"

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

enum { BACKLOG = 64 };
/* before what an endpoint names */
enum { TCP = sizeof "tcp://" - 1, IPC = sizeof "ipc://" - 1 };

static struct addrinfo *look_up(const struct link_address *a, bool passive)
{
    char host[300];
    const char *at = a->endpoint + TCP, *colon = strrchr(at, ':');
    size_t n = colon ? (size_t)(colon - at) : 0;
    struct addrinfo *list = NULL, want = {.ai_socktype = SOCK_STREAM,
                                          .ai_family = AF_INET,
                                          .ai_flags = passive ? AI_PASSIVE : 0};
    if (!colon || n >= sizeof host)
        return NULL;
    if (*at == '[') {
        want.ai_family = AF_INET6;
        at++;
        n -= 2;
    } else if (!passive) {
        want.ai_family = AF_UNSPEC;
    }
    memcpy(host, at, n);
    host[n] = 0;
    return getaddrinfo(strcmp(host, "*") ? host : NULL, colon + 1, &want, &list) == 0 ? list : NULL;
}

static bool unix_address(const struct link_address *a, struct sockaddr_un *u)
{
    *u = (struct sockaddr_un){.sun_family = AF_UNIX};
    return snprintf(u->sun_path, sizeof u->sun_path, "%s", a->endpoint + IPC) <
           (int)sizeof u->sun_path;
}

static int new_socket(int family)
{
    const int on = 1, fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && family != AF_UNIX)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* A path that a dead process has left; one at which somebody listens stays. */
static void clear_path(const struct sockaddr_un *u)
{
    struct stat st;
    const int fd = new_socket(AF_UNIX);
    const bool dead =
        fd >= 0 && connect(fd, (const struct sockaddr *)u, sizeof *u) != 0 && errno == ECONNREFUSED;
    if (dead && lstat(u->sun_path, &st) == 0 && S_ISSOCK(st.st_mode))
        (void)unlink(u->sun_path);
    if (fd >= 0)
        (void)close(fd);
}

ingle_status link_socket_listen(const struct link_address *a, int *fd, struct err *err)
{
    const int on = 1;
    *fd = -1;
    if (a->place == LINK_HANDED) {
        *fd = a->fd;
        if (fcntl(*fd, F_SETFL, fcntl(*fd, F_GETFL) | O_NONBLOCK) == 0 &&
            fcntl(*fd, F_SETFD, FD_CLOEXEC) == 0)
            return INGLE_OK;
    } else if (a->place == LINK_UNIX) {
        struct sockaddr_un u;
        if (unix_address(a, &u)) {
            clear_path(&u);
            *fd = new_socket(AF_UNIX);
            if (*fd >= 0 && bind(*fd, (const struct sockaddr *)&u, sizeof u) == 0 &&
                listen(*fd, BACKLOG) == 0)
                return INGLE_OK;
        }
    } else {
        struct addrinfo *list = look_up(a, true);
        errno = list ? 0 : EADDRNOTAVAIL;
        if (list) {
            *fd = new_socket(list->ai_family);
            const bool ok =
                *fd >= 0 && setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                bind(*fd, list->ai_addr, list->ai_addrlen) == 0 && listen(*fd, BACKLOG) == 0;
            const int e = errno;
            freeaddrinfo(list);
            errno = e;
            if (ok)
                return INGLE_OK;
        }
    }
    return err_set(err, INGLE_IO, "cannot listen there: %s", strerror(errno));
}

const char *link_socket_why(int e)
{
    switch (e) {
    case ECONNREFUSED: return "nobody listens there";
    case ENOENT: return "there is no such path";
    case EACCES:
    case EPERM: return "it may not be opened";
    case EHOSTUNREACH:
    case ENETUNREACH: return "the host cannot be reached";
    case ETIMEDOUT: return "the host does not answer";
    default: return "nobody answers";
    }
}

static int begin(int family, const struct sockaddr *to, socklen_t n, const char **why)
{
    const int fd = new_socket(family);
    if (fd < 0)
        *why = "there is no socket for it";
    if (fd >= 0 && connect(fd, to, n) != 0 && errno != EINPROGRESS) {
        *why = link_socket_why(errno);
        (void)close(fd);
        return -1;
    }
    return fd;
}

int link_socket_dial(const struct link_address *a, unsigned attempt, const char **why)
{
    struct sockaddr_un u;
    *why = a->place == LINK_UNIX ? "the path is too long" : "the name of the host is not known";
    if (a->place == LINK_UNIX)
        return unix_address(a, &u) ? begin(AF_UNIX, (const struct sockaddr *)&u, sizeof u, why)
                                   : -1;
    struct addrinfo *list = look_up(a, false), *it;
    unsigned n = 0;
    for (it = list; it; it = it->ai_next)
        n++;
    for (it = list; it && attempt % n; it = it->ai_next)
        attempt--;
    const int fd = it ? begin(it->ai_family, it->ai_addr, it->ai_addrlen, why) : -1;
    if (list)
        freeaddrinfo(list);
    return fd;
}

int link_socket_accept(int fd, bool *wait)
{
    const int on = 1, c = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    *wait = c < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
    if (c >= 0)
        (void)setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* fails for others */
    return c;
}

void link_socket_name(int fd, char *out, size_t n)
{
    struct sockaddr_storage a;
    socklen_t n_a = sizeof a;
    char host[INET6_ADDRSTRLEN], port[8];
    if (getsockname(fd, (struct sockaddr *)&a, &n_a) != 0)
        return;
    if (a.ss_family == AF_UNIX) {
        struct sockaddr_un u;
        memcpy(&u, &a, sizeof u);
        snprintf(out, n, "unix:%.*s", (int)sizeof u.sun_path, u.sun_path);
    } else if (getnameinfo((struct sockaddr *)&a, n_a, host, sizeof host, port, sizeof port,
                           NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
        snprintf(out, n, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    }
}
