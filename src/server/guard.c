/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "server/guard.h"

#include "base/mem.h"
#include "base/sha256.h"
#include "base/output.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PLACES = 500, LIMIT = 2, BAN_SECONDS = 3600 };

/* The file.  A request is first at work; what is found so at a start has crashed once more,
 * and stays, with running 0, until its place is needed. */
struct place {
    uint8_t hash[20];
    uint16_t running, crashes;
    int64_t when; /* seconds since 1970 of the start that counted its last crash */
};
struct page {
    char magic[8];
    uint64_t used; /* counts up: which place is the oldest */
    struct place place[PLACES];
};
static_assert(sizeof(struct place) == 32, "a file format");
static_assert(sizeof(struct page) == 16 + 32 * PLACES, "a file format");
static const char MAGIC[8] = {'i', 'n', 'g', 'l', 'e', 'G', '2', '\n'};

struct guard {
    int fd;
    struct page *page;
    pthread_mutex_t lock; /* Sync: for page */
};

/* Who may write to the directory can cut the file under its map, or ban requests. */
static ingle_status check_directory(const char *directory, struct err *err)
{
    struct stat is;
    if (mkdir(directory, 0700) && errno != EEXIST)
        return err_set(err, INGLE_IO, "'%s': %s", directory, strerror(errno));
    if (stat(directory, &is))
        return err_set(err, INGLE_IO, "'%s': %s", directory, strerror(errno));
    if (!S_ISDIR(is.st_mode))
        return err_set(err, INGLE_ARG, "'%s' is not a directory", directory);
    if (is.st_uid != geteuid())
        return err_set(err, INGLE_ARG,
                       "'%s' belongs to user %u: the directory must belong to the server's user",
                       directory, (unsigned)is.st_uid);
    if (is.st_mode & 022)
        return err_set(err, INGLE_ARG, "others may write to '%s' (mode %03o): chmod 700", directory,
                       (unsigned)is.st_mode & 0777);
    return INGLE_OK;
}

static ingle_status map(struct guard *g, const char *path, struct err *err)
{
    struct stat is;
    g->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (g->fd < 0 || fstat(g->fd, &is))
        return err_set(err, INGLE_IO, "'%s': %s", path, strerror(errno));
    const enum output_kind kind = output_kind_of(path);
    if (kind != OUTPUT_EMPTY && kind != OUTPUT_REQUESTS)
        return err_set(
            err, INGLE_ARG,
            "'%s' is there, is %s and not %s, and stays: choose another --state-dir, or remove it",
            path, output_kind_name(kind), output_kind_name(OUTPUT_REQUESTS));
    if (flock(g->fd, LOCK_EX | LOCK_NB))
        return err_set(err, INGLE_LIMIT, "'%s' is used by another server", path);
    if (is.st_size != (off_t)sizeof *g->page &&
        (ftruncate(g->fd, 0) || ftruncate(g->fd, (off_t)sizeof *g->page)))
        return err_set(err, INGLE_IO, "'%s': %s", path, strerror(errno));
    /* A map over holes would end the process when the disk is full. */
    const int full = posix_fallocate(g->fd, 0, (off_t)sizeof *g->page);
    if (full)
        return err_set(err, INGLE_IO, "'%s': %s", path, strerror(full));
    void *at = mmap(NULL, sizeof *g->page, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
    if (at == MAP_FAILED)
        return err_set(err, INGLE_IO, "'%s': %s", path, strerror(errno));
    g->page = at;
    return INGLE_OK;
}

ingle_status guard_open(struct guard **out, const char *directory, struct err *err)
{
    char path[4096];
    struct guard *g = mem_zalloc(sizeof *g);
    if (!g || pthread_mutex_init(&g->lock, NULL)) {
        mem_free(g);
        return err_set(err, INGLE_NOMEM, "no memory for '%s'", directory);
    }
    g->fd = -1;
    const int n = snprintf(path, sizeof path, "%s/requests", directory);
    ingle_status st = INGLE_OK;
    if (n < 0 || (size_t)n >= sizeof path)
        st = err_set(err, INGLE_ARG, "directory '%.80s...' has too long a name", directory);
    else
        st = check_directory(directory, err);
    if (!st)
        st = map(g, path, err);
    if (st) {
        guard_close(g);
        return st;
    }
    if (memcmp(g->page->magic, MAGIC, sizeof MAGIC) != 0) {
        memset(g->page, 0, sizeof *g->page);
        memcpy(g->page->magic, MAGIC, sizeof MAGIC);
    }
    for (int i = 0; i < PLACES; i++) {
        struct place *p = &g->page->place[i];
        if (p->running) {
            p->crashes = (uint16_t)(p->crashes + (p->crashes < UINT16_MAX));
            p->when = (int64_t)time(NULL);
        }
        p->running = 0;
    }
    *out = g;
    return INGLE_OK;
}

void guard_pardon(struct guard *g)
{
    pthread_mutex_lock(&g->lock);
    for (int i = 0; g->page && i < PLACES; i++)
        g->page->place[i].running = 0;
    pthread_mutex_unlock(&g->lock);
}

void guard_close(struct guard *g)
{
    if (!g)
        return;
    guard_pardon(g);
    if (g->page)
        munmap(g->page, sizeof *g->page);
    if (g->fd >= 0)
        close(g->fd);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

/* The place of this hash, else a free one, else one that has crashed once, in turn; -1: all
 * are at work. */
static int find(struct page *page, const uint8_t *hash)
{
    int free = -1, old = -1;
    for (int i = 0; i < PLACES; i++) {
        const int at = (int)((page->used + (uint64_t)i) % PLACES);
        const struct place *p = &page->place[at];
        if (memcmp(p->hash, hash, sizeof p->hash) == 0 && (p->running || p->crashes))
            return at;
        if (!p->running && !p->crashes && free < 0)
            free = at;
        else if (!p->running && old < 0)
            old = at;
    }
    return free >= 0 ? free : old;
}

/* A clock that was set back ends a ban. */
static bool is_banned(const struct place *p)
{
    const int64_t ago = (int64_t)time(NULL) - p->when;
    return p->crashes >= LIMIT && ago >= 0 && ago < BAN_SECONDS;
}

int guard_enter(struct guard *g, const char *user, const char *path, const void *bytes, size_t n)
{
    uint8_t hash[SHA256_BYTES];
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, user, strlen(user) + 1);
    sha256_add(&s, path, strlen(path) + 1);
    sha256_add(&s, bytes, n);
    sha256_end(&s, hash);
    pthread_mutex_lock(&g->lock);
    int at = find(g->page, hash);
    if (at >= 0) {
        struct place *p = &g->page->place[at];
        if (memcmp(p->hash, hash, sizeof p->hash) != 0) {
            memcpy(p->hash, hash, sizeof p->hash);
            p->crashes = 0;
            g->page->used++;
        }
        if (is_banned(p))
            at = -2;
        else if (p->running < UINT16_MAX)
            p->running++;
    }
    pthread_mutex_unlock(&g->lock);
    return at;
}

void guard_again(struct guard *g, int number)
{
    if (!g || number < 0)
        return;
    pthread_mutex_lock(&g->lock);
    struct place *p = &g->page->place[number];
    if (p->running < UINT16_MAX)
        p->running++;
    pthread_mutex_unlock(&g->lock);
}

void guard_leave(struct guard *g, int number)
{
    if (!g || number < 0)
        return;
    pthread_mutex_lock(&g->lock);
    struct place *p = &g->page->place[number];
    if (p->running)
        p->running--;
    /* It has ended well: crashes before were not its fault. */
    if (!p->running)
        p->crashes = 0;
    pthread_mutex_unlock(&g->lock);
}
