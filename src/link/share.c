/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share - memory that two processes of one host and user have together, for rows that would else go
 * through a socket.
 *
 * The engine makes it, sealed so that nobody can make it shorter; the worker opens it by the
 * engine's process and descriptor, and takes nothing but memory of that kind, with the number that
 * the engine has put into it.  Whatever is there may change at any time: a reader copies first
 * and checks the copy.
 */
#define _GNU_SOURCE
#include "link/link.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static uint64_t get_u64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static void put_u64(uint8_t *at, uint64_t v)
{
    memcpy(at, &v, sizeof v);
}

static ingle_status map(struct link_share *s, struct err *err)
{
    void *p = mmap(NULL, LINK_SHARE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (p == MAP_FAILED)
        return err_set(err, INGLE_NOMEM, "shared memory of %d bytes: %s", LINK_SHARE_BYTES,
                       strerror(errno));
    s->at = p;
    return INGLE_OK;
}

ingle_status link_share_create(struct link_share *out, struct err *err)
{
    struct link_share s = {.fd = memfd_create("ingle rows", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    ingle_status st = INGLE_OK;
    if (s.fd < 0 || ftruncate(s.fd, LINK_SHARE_BYTES) != 0 ||
        fcntl(s.fd, F_ADD_SEALS, SEALS) != 0 ||
        getrandom(&s.mark, sizeof s.mark, GRND_NONBLOCK) != (ssize_t)sizeof s.mark)
        st = err_set(err, INGLE_UNSUP, "shared memory cannot be made: %s", strerror(errno));
    if (!st)
        st = map(&s, err);
    if (st) {
        link_share_close(&s);
        return st;
    }
    put_u64(s.at, s.mark);
    *out = s;
    return INGLE_OK;
}

void link_share_close(struct link_share *s)
{
    if (s->at)
        (void)munmap(s->at, LINK_SHARE_BYTES);
    if (s->at || s->fd > 0)
        (void)close(s->fd);
    *s = (struct link_share){0};
}

void link_share_write(const struct link_share *s, uint8_t out[LINK_SHARE_HELLO])
{
    put_u64(out, (uint64_t)getpid());
    put_u64(out + 8, (uint64_t)s->fd);
    put_u64(out + 16, s->mark);
}

/* What is opened is a file of the peer's choice: nothing but sealed memory of this user and size is
 * kept. */
static ingle_status take(struct link_share *s, struct err *err)
{
    struct stat st;
    if (fstat(s->fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        st.st_size != LINK_SHARE_BYTES)
        return err_set(err, INGLE_UNSUP,
                       "what is to be shared is no memory of this user with %d bytes",
                       LINK_SHARE_BYTES);
    if ((fcntl(s->fd, F_GET_SEALS) & SEALS) != SEALS || (fcntl(s->fd, F_GET_SEALS) & F_SEAL_WRITE))
        return err_set(err, INGLE_UNSUP, "shared memory is not sealed");
    const ingle_status m = map(s, err);
    if (m)
        return m;
    return get_u64(s->at) == s->mark
               ? INGLE_OK
               : err_set(
                     err, INGLE_UNSUP,
                     "shared memory has another mark: the process is not the one that is meant");
}

ingle_status link_share_open(struct link_share *out, const uint8_t hello[LINK_SHARE_HELLO],
                             struct err *err)
{
    const uint64_t pid = get_u64(hello), fd = get_u64(hello + 8);
    char path[64];
    struct link_share s = {.mark = get_u64(hello + 16)};
    if (!pid || pid > INT32_MAX || fd > INT32_MAX)
        return err_set(err, INGLE_FORMAT, "shared memory is descriptor %llu of process %llu",
                       (unsigned long long)fd, (unsigned long long)pid);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, (int)fd);
    s.fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (s.fd < 0)
        return err_set(err, INGLE_UNSUP, "'%s' cannot be opened: %s", path, strerror(errno));
    const ingle_status st = take(&s, err);
    if (st) {
        if (s.at)
            (void)munmap(s.at, LINK_SHARE_BYTES);
        (void)close(s.fd);
        return st;
    }
    *out = s;
    return INGLE_OK;
}

uint8_t *link_share_place(const struct link_share *s, int slot, bool back)
{
    return s->at + 4096 + ((size_t)slot * 2 + back) * LINK_SHARE_PLACE;
}
