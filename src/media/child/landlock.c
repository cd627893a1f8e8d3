/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the kernel that name what a process may open: here, nothing.  Newer versions know more
 * kinds of rights; each gets all that it knows. */
#define _GNU_SOURCE
#include "media/child/child.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_restrict_self 446
#endif

/* The kernel's struct; headers of a distribution lack its newer members. */
struct ruleset { uint64_t files, net, scoped; };
_Static_assert(sizeof(struct ruleset) == 24, "layout");

ingle_status media_child_landlock(struct err *err)
{
    static const struct { int version; uint64_t files; } rights[] = {
        {1, 0x1FFF}, {2, 0x3FFF}, {3, 0x7FFF}, {5, 0xFFFF}};
    enum { TCP = 3, ABSTRACT_SOCKETS_AND_SIGNALS = 3, NET_FROM = 4, SCOPED_FROM = 6 };
    const int version = media_landlock();
    struct ruleset r = {0, 0, 0};
    if (!version)
        return INGLE_OK;
    for (size_t i = 0; i < sizeof rights / sizeof *rights; i++)
        r.files = version >= rights[i].version ? rights[i].files : r.files;
    r.net = version >= NET_FROM ? TCP : 0;
    r.scoped = version >= SCOPED_FROM ? ABSTRACT_SOCKETS_AND_SIGNALS : 0;
    const size_t n = version >= SCOPED_FROM ? 24 : version >= NET_FROM ? 16 : 8;
    const long fd = syscall(SYS_landlock_create_ruleset, &r, n, 0U);
    const bool done = fd >= 0 && syscall(SYS_landlock_restrict_self, fd, 0U) == 0;
    const int e = errno;
    if (fd >= 0)
        close((int)fd);
    return done ? INGLE_OK
                : err_set(err, INGLE_UNSUP, "the kernel refuses the decoder's Landlock rules: %s",
                          strerror(e));
}
