/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head - a model of which only the headers are fetched, for a plan: files of the right size, with
 * holes where the weights would be.
 */
#define _GNU_SOURCE
#include "hub/inner.h"

#include "base/mem.h"
#include "base/num.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    FIRST_BYTES = 1 << 20,
    MOST_HEAD = 512 << 20,
    MOST_SMALL = 128 << 20,
    MOST_NEST = 4,
    OLD_S = 3600
};
#define PREFIX ".ingle-plan-"

/* ---- how long a header is ---- */

struct cursor {
    const unsigned char *at;
    uint64_t n, pos;
    bool bad; /* it ends before, or is none */
};

static void skip(struct cursor *c, uint64_t n)
{
    if (c->bad || n > c->n - c->pos)
        c->bad = true;
    else
        c->pos += n;
}

static uint64_t number(struct cursor *c, int n_bytes)
{
    uint64_t v = 0;
    const uint64_t from = c->pos;
    skip(c, (uint64_t)n_bytes);
    for (int i = n_bytes - 1; i >= 0 && !c->bad; i--)
        v = v << 8 | c->at[from + (uint64_t)i];
    return v;
}

static void skip_value(struct cursor *c, uint64_t type, int nest)
{
    static const unsigned char bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    enum { STRING = 8, ARRAY = 9 };
    if (type == STRING) {
        skip(c, number(c, 8));
    } else if (type == ARRAY && nest < MOST_NEST) {
        const uint64_t inner = number(c, 4), n = number(c, 8);
        uint64_t all;
        if (inner < sizeof bytes && bytes[inner]) {
            if (num_mul_u64(n, bytes[inner], &all))
                skip(c, all);
            else
                c->bad = true;
        } else {
            for (uint64_t i = 0; i < n && !c->bad; i++)
                skip_value(c, inner, nest + 1);
        }
    } else if (type < sizeof bytes && bytes[type]) {
        skip(c, bytes[type]);
    } else {
        c->bad = true;
    }
}

/* Whether the n bytes hold all of a GGUF header. */
static bool gguf_is_whole(const char *bytes, size_t n)
{
    struct cursor c = {.at = (const unsigned char *)bytes, .n = n, .pos = 8};
    c.bad = n < 24;
    const uint64_t n_tensors = number(&c, 8), n_keys = number(&c, 8);
    for (uint64_t i = 0; i < n_keys && !c.bad; i++) {
        skip(&c, number(&c, 8));
        skip_value(&c, number(&c, 4), 0);
    }
    for (uint64_t i = 0; i < n_tensors && !c.bad; i++) {
        skip(&c, number(&c, 8));
        const uint64_t n_dims = number(&c, 4);
        if (n_dims > 8)
            c.bad = true;
        skip(&c, n_dims * 8 + 4 + 8);
    }
    return !c.bad;
}

static bool tensors_are_whole(const char *bytes, size_t n)
{
    struct cursor c = {.at = (const unsigned char *)bytes, .n = n};
    skip(&c, number(&c, 8));
    return !c.bad;
}

static bool is_gguf(const char *path)
{
    return strlen(path) > 5 && strcasecmp(path + strlen(path) - 5, ".gguf") == 0;
}
static bool is_tensors(const char *path)
{
    return strlen(path) > 12 && strcasecmp(path + strlen(path) - 12, ".safetensors") == 0;
}

/* Bytes that are not a header keep their length: opening the file reports why. */
static bool is_whole(const char *path, const struct str *s)
{
    if (is_gguf(path))
        return s->n < 4 || memcmp(s->at, "GGUF", 4) != 0 || gguf_is_whole(s->at, s->n);
    return tensors_are_whole(s->at, s->n);
}

/* ---- files ---- */

static ingle_status get_range(const struct hub_options *o, const char *path, const char *url,
                              uint64_t from, uint64_t to, struct str *all, struct err *err)
{
    char range[64];
    struct str part;
    str_init(&part);
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)from,
             (unsigned long long)to - 1);
    ingle_status st = hub_get(o, path, url, range, (size_t)(to - from), &part, NULL, err);
    if (st == INGLE_LIMIT)
        st = err_set(err, INGLE_IO, "%.200s: the server sends no ranges", path);
    if (!st && part.n != to - from)
        st = err_set(err, INGLE_IO, "%.200s: the hub sends %zu bytes where %llu were asked for",
                     path, part.n, (unsigned long long)(to - from));
    if (!st)
        str_add(all, part.at, part.n);
    str_release(&part);
    return st || str_ok(all)
               ? st
               : err_set(err, INGLE_NOMEM, "no memory for the header of '%.200s'", path);
}

/* The header, or all of a small file. */
static ingle_status get_head(const struct hub_options *o, const char *repository,
                             const struct hub_file *f, struct str *all, struct err *err)
{
    struct str url;
    const bool weights = is_gguf(f->path) || is_tensors(f->path);
    const uint64_t most = weights ? MOST_HEAD : MOST_SMALL;
    ingle_status st = INGLE_OK;
    str_init(&url);
    str_addf(&url, "%s/%s/resolve/", o->address, repository);
    hub_escape(&url, o->revision);
    str_addc(&url, '/');
    hub_escape(&url, f->path);
    if (!str_ok(&url))
        st = err_set(err, INGLE_NOMEM, "no memory for an address");
    while (!st && all->n < f->n_bytes && (!all->n || !weights || !is_whole(f->path, all))) {
        const uint64_t want = all->n ? 2 * (uint64_t)all->n : FIRST_BYTES,
                       to = want < f->n_bytes ? want : f->n_bytes;
        st = to > most ? err_set(err, INGLE_LIMIT, "%.200s: has a header of more than %llu bytes",
                                 f->path, (unsigned long long)most)
                       : get_range(o, f->path, url.at, all->n, to, all, err);
    }
    str_release(&url);
    return st;
}

static ingle_status write_head(const char *path, const struct hub_file *f, const struct str *head,
                               struct err *err)
{
    ingle_status st = hub_make_folders(path, err);
    const int fd = st ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (!st && fd < 0)
        st = err_set(err, INGLE_IO, "'%s': %s", path, strerror(errno));
    for (size_t at = 0; !st && at < head->n;) {
        const ssize_t k = write(fd, head->at + at, head->n - at);
        if (k < 0 && errno != EINTR)
            st = err_set(err, INGLE_IO, "'%s': %s", path, strerror(errno));
        at += k > 0 ? (size_t)k : 0;
    }
    if (!st && ftruncate(fd, (off_t)f->n_bytes))
        st = err_set(err, INGLE_IO, "'%s' cannot have %llu bytes: %s", path,
                     (unsigned long long)f->n_bytes, strerror(errno));
    if (fd >= 0)
        close(fd);
    return st;
}

/* ---- the folder ---- */

static void remove_all(const char *path, int depth)
{
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) {
        struct stat is;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        char *inner = hub_join(path, e->d_name);
        if (inner && lstat(inner, &is) == 0 && S_ISDIR(is.st_mode) && depth < 8)
            remove_all(inner, depth + 1);
        else if (inner)
            (void)unlink(inner);
        mem_free(inner);
    }
    if (d)
        closedir(d);
    (void)rmdir(path);
}

void hub_head_drop(const char *folder)
{
    const char *base = strrchr(folder, '/');
    if (base && strncmp(base + 1, PREFIX, sizeof PREFIX - 1) == 0)
        remove_all(folder, 0);
}

/* Those of programs that were killed. */
static void drop_old(const char *directory)
{
    DIR *d = opendir(directory);
    for (const struct dirent *e; d && (e = readdir(d));) {
        struct stat is;
        char *path = strncmp(e->d_name, PREFIX, sizeof PREFIX - 1) == 0
                         ? hub_join(directory, e->d_name)
                         : NULL;
        if (path && lstat(path, &is) == 0 && S_ISDIR(is.st_mode) &&
            difftime(time(NULL), is.st_mtime) > OLD_S)
            remove_all(path, 0);
        mem_free(path);
    }
    if (d)
        closedir(d);
}

static ingle_status make_folder(const struct hub_options *o, char **folder, struct err *err)
{
    char *path = hub_join(o->directory, PREFIX "XXXXXX");
    ingle_status st =
        path ? hub_make_folders(path, err) : err_set(err, INGLE_NOMEM, "no memory for a path");
    if (!st) {
        drop_old(o->directory);
        if (!mkdtemp(path))
            st = err_set(err, INGLE_IO, "'%s': %s", path, strerror(errno));
    }
    if (st)
        mem_free(path);
    else
        *folder = path;
    return st;
}

ingle_status hub_head(const char *text, const struct hub_options *o, char **path, char **folder,
                      struct err *err)
{
    struct hub_name name;
    struct hub_options own;
    struct hub_list l = {0};
    const char *first = "";
    uint64_t n_got = 0, n_all = 0;
    char got[32], all[32];
    *folder = NULL;
    ingle_status st = hub_begin(text, o, &name, &own, err);
    if (!st)
        st = hub_list_files(&own, name.repository, &l, err);
    if (!st && (st = o->drafter ? hub_choose_drafter(&l, name.code, &first, err)
                                : hub_choose(&l, name.code, &first, err)))
        st = err_prefix(err, "%s", name.repository);
    if (!st)
        st = make_folder(o, folder, err);
    for (size_t i = 0; !st && i < l.n; i++) {
        struct str head;
        if (!l.at[i].wanted)
            continue;
        str_init(&head);
        st = get_head(&own, name.repository, &l.at[i], &head, err);
        char *at = st ? NULL : hub_join(*folder, l.at[i].path);
        if (!st)
            st = at ? write_head(at, &l.at[i], &head, err)
                    : err_set(err, INGLE_NOMEM, "no memory for a path");
        n_got += head.n;
        n_all += l.at[i].n_bytes;
        mem_free(at);
        str_release(&head);
    }
    if (!st && !(*path = hub_join(*folder, first)))
        st = err_set(err, INGLE_NOMEM, "no memory for a path");
    hub_bytes(got, n_got);
    hub_bytes(all, n_all);
    if (!st)
        report(o->sink, INGLE_REPORT_NOTE, "hub", text,
               "was not fetched: the plan is made of its headers (%s of %s)", got, all);
    hub_list_release(&l);
    if (st && *folder) {
        hub_head_drop(*folder);
        mem_free(*folder);
        *folder = NULL;
    }
    return st;
}
