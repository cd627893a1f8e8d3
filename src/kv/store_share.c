/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_share - a directory that processes of several machines use.
 *
 * Files are whole or absent by rename, so only two things need more.  One process at a time
 * deletes: it holds a lease, a file with its own number in it.  A lease that somebody else holds
 * has expired when its bytes have not changed for LEASE_NS by the clock of the one who waits, so
 * clocks need not agree.  And ages of files are counted by the clock that dates them, which is seen
 * in the date of a file that was just made.
 */
#define _GNU_SOURCE
#include "kv/store_impl.h"
#include "kv/store_parts.h"

#include "base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static const char lease_name[] = ".ingle-deletes";
enum {
    TURN_MS = 10,
    CONFIRM_MS = 100, /* of two that take over an expired lease the second one has it */
    NAME = 96
};
#define SECOND UINT64_C(1000000000)
static const uint64_t LEASE_NS = 5 * SECOND, RENEW_NS = 2 * SECOND, WAIT_NS = SECOND;

/* ---- clocks ---- */

static int64_t rounded_s(int64_t ns)
{
    const int64_t half = (int64_t)SECOND / 2;
    return (ns >= 0 ? ns + half : ns - half) / (int64_t)SECOND;
}

int64_t kv_store_time(const struct kv_store *s)
{
    return (int64_t)time(NULL) + rounded_s(atomic_load(&s->skew_ns));
}

/* ---- the lease ---- */

static void pause_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void text_of(const struct kv_lease *l, char out[KV_LEASE_BYTES])
{
    memset(out, 0, KV_LEASE_BYTES);
    snprintf(out, KV_LEASE_BYTES, "ingle %016llx %llu process %ld\n", (unsigned long long)l->id,
             (unsigned long long)l->count, (long)getpid());
}

/* What it says, with zeros after it.  False: there is none, errno says why. */
static bool read_lease(const struct kv_store *s, char out[KV_LEASE_BYTES])
{
    memset(out, 0, KV_LEASE_BYTES);
    const int fd = openat(s->dir, lease_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, out, KV_LEASE_BYTES - 1);
    const int e = errno;
    close(fd);
    errno = e;
    return n >= 0;
}

static bool is_ours(const struct kv_store *s, const char text[KV_LEASE_BYTES])
{
    char own[KV_LEASE_BYTES];
    text_of(&s->lease, own);
    return strncmp(text, own, strlen("ingle 0123456789abcdef")) == 0;
}

/* Writes a file of ours.  False: errno says why. */
static bool write_lease(struct kv_store *s, const char *name, int flags)
{
    char text[KV_LEASE_BYTES];
    const int fd = openat(s->dir, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd < 0)
        return false;
    s->lease.count++;
    text_of(&s->lease, text);
    bool ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    int e = errno;
    kv_store_learn_skew(fd, &s->skew_ns);
    if (close(fd) != 0 && ok) {
        ok = false;
        e = errno;
    }
    errno = e;
    return ok;
}

/* An expired one is replaced.  False: somebody else was later, and has it. */
static bool take_over(struct kv_store *s)
{
    char name[NAME], text[KV_LEASE_BYTES];
    snprintf(name, sizeof name, ".ingle-%ld-%016llx.tmp", (long)getpid(),
             (unsigned long long)s->lease.id);
    if (!write_lease(s, name, O_CREAT | O_TRUNC) ||
        renameat(s->dir, name, s->dir, lease_name) != 0) {
        (void)unlinkat(s->dir, name, 0);
        return false;
    }
    pause_ms(CONFIRM_MS);
    return read_lease(s, text) && is_ours(s, text);
}

/* Whether it is ours now.  *none: there can be no lease here. */
static bool try_lease(struct kv_store *s, bool *none)
{
    struct kv_lease *l = &s->lease;
    char text[KV_LEASE_BYTES];
    if (write_lease(s, lease_name, O_CREAT | O_EXCL))
        return true;
    if (errno != EEXIST) { /* a full disk, among others, where there must be deletions */
        *none = !kv_store_is_missing(errno);
        (void)(*none && unlinkat(s->dir, lease_name, 0));
        return false;
    }
    if (!read_lease(s, text)) {
        *none = !kv_store_is_missing(errno);
        return false;
    }
    if (is_ours(s, text)) /* it could not be removed */
        return write_lease(s, lease_name, O_TRUNC);
    if (memcmp(text, l->seen, sizeof text) != 0 || !l->seen_at) {
        memcpy(l->seen, text, sizeof text);
        l->seen_at = clock_now();
        return false;
    }
    return clock_now() - l->seen_at >= LEASE_NS && take_over(s);
}

/* The lock is held on entry and on return, and released meanwhile. */
bool kv_store_lease(struct kv_store *s)
{
    struct kv_lease *l = &s->lease;
    const uint64_t start = clock_now();
    bool none = false, ours = false;
    while (!l->id)
        if (getrandom(&l->id, sizeof l->id, GRND_NONBLOCK) != (ssize_t)sizeof l->id)
            l->id = clock_now() ^ (uint64_t)getpid() << 40;
    for (;;) {
        pthread_mutex_unlock(&s->lock);
        ours = try_lease(s, &none);
        if (!ours && !none)
            pause_ms(TURN_MS);
        kv_store_beat(s);
        pthread_mutex_lock(&s->lock);
        if (ours || none)
            break;
        kv_store_serve(s); /* whoever waits for a read goes first */
        if (clock_now() - start >= WAIT_NS || (s->running && s->running->cancel) ||
            (s->stop && l->busy)) {
            l->busy = true;
            return false;
        }
    }
    l->busy = false;
    l->held = ours;
    l->seen_at = 0;
    l->renewed = clock_now();
    return true;
}

bool kv_store_lease_goes_on(struct kv_store *s)
{
    struct kv_lease *l = &s->lease;
    char text[KV_LEASE_BYTES];
    if (!l->held || clock_now() - l->renewed < RENEW_NS)
        return true;
    if (!read_lease(s, text) || !is_ours(s, text) || !write_lease(s, lease_name, O_TRUNC)) {
        l->held = false;
        return false;
    }
    l->renewed = clock_now();
    return true;
}

void kv_store_lease_end(struct kv_store *s)
{
    char text[KV_LEASE_BYTES];
    if (s->lease.held && read_lease(s, text) && is_ours(s, text))
        (void)unlinkat(s->dir, lease_name, 0);
    s->lease.held = false;
}
