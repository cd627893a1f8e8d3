/* SPDX-License-Identifier: Apache-2.0 */
#include "server/replica.h"

#include <stdio.h>
#include <string.h>

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
