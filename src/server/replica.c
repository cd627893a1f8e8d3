/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "server/replica.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

static bool is_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char c = s[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '-')
            return false;
    }
    return n && n <= REPLICA_NAME;
}

ingle_status replica_check(const char *name, struct err *err)
{
    return is_name(name, strlen(name))
               ? INGLE_OK
               : err_set(err, INGLE_ARG,
                         "'--replica %.80s' is no name: 1 to %d letters, digits and '-'", name,
                         (int)REPLICA_NAME);
}

int replica_claim(const char *folder, const char *name, bool *taken)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s/.ingle-replica-%s", folder, name);
    *taken = false;
    if (n < 0 || (size_t)n >= sizeof path)
        return -1;
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd >= 0)
        *taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    return fd;
}

bool replica_is_foreign(const char *own, const char *id, size_t n, char words[REPLICA_WORDS])
{
    size_t at = n;
    while (at && id[at - 1] != '.')
        at--;
    const size_t n_name = n - at;
    words[0] = 0;
    if (!at || !is_name(id + at, n_name) ||
        (own && strlen(own) == n_name && memcmp(own, id + at, n_name) == 0))
        return false;
    snprintf(words, REPLICA_WORDS, ": it is of replica '%.*s', and this %s%s%s", (int)n_name,
             id + at, own ? "is '" : "has no name", own ? own : "", own ? "'" : "");
    return true;
}
