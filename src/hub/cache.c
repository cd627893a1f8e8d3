/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache - the folder of Hugging Face's own tools: models--OWNER--NAME/refs/REVISION names a commit,
 * snapshots/COMMIT/PATH are links to blobs/HASH.  It is read only.
 */
#define _GNU_SOURCE
#include "hub/inner.h"

#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_DEPTH = 6 };

/* CACHE/models--OWNER--NAME */
static char *repository_folder(const struct hub_options *o, const char *repository)
{
    struct str s;
    const int n = (int)strcspn(repository, "/");
    str_init(&s);
    str_addf(&s, "%s/models--%.*s--%s", o->cache, n, repository, repository + n + 1);
    return str_detach(&s);
}

/* The folder of a revision; NULL: it is not there. */
static char *snapshot(const struct hub_options *o, const char *repository)
{
    char *all = repository_folder(o, repository), *text = NULL, *found = NULL;
    struct str s;
    size_t n;
    str_init(&s);
    str_addf(&s, "%s/refs/%s", all ? all : "", o->revision);
    const bool named = all && str_ok(&s) && !file_slurp(s.at, 256, &text, &n, NULL);
    if (named)
        text[strcspn(text, " \r\n")] = 0;
    const char *commit = named ? text : o->revision;
    if (hub_path_is_safe(commit) && !strchr(commit, '/')) {
        str_clear(&s);
        str_addf(&s, "%s/snapshots/%s", all ? all : "", commit);
        found = str_ok(&s) && file_is_folder(s.at) ? mem_strdup(s.at) : NULL;
    }
    str_release(&s);
    mem_free(text);
    mem_free(all);
    return found;
}

/* The hash that the link's target has for a name. */
static void name_blob(const char *path, struct hub_file *f)
{
    char to[600];
    const ssize_t n = readlink(path, to, sizeof to - 1);
    if (n <= 0)
        return;
    to[n] = 0;
    const char *base = strrchr(to, '/') ? strrchr(to, '/') + 1 : to;
    if (strspn(base, "0123456789abcdef") != strlen(base))
        return;
    if (strlen(base) == 64)
        memcpy(f->sha256, base, sizeof f->sha256);
    else if (strlen(base) < sizeof f->oid)
        memcpy(f->oid, base, strlen(base) + 1);
}

/* The files below FOLDER/INNER; a link to nothing is none. */
static ingle_status walk(struct hub_list *l, const char *folder, const char *inner, int depth,
                         struct err *err)
{
    char *at = hub_join(folder, inner);
    DIR *d = at ? opendir(at) : NULL;
    ingle_status st = at ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a path");
    for (const struct dirent *e; d && !st && (e = readdir(d));) {
        struct stat is;
        struct hub_file f = {0};
        if (e->d_name[0] == '.')
            continue;
        char *path = *inner ? hub_join(inner, e->d_name) : mem_strdup(e->d_name),
             *full = path ? hub_join(folder, path) : NULL;
        if (!full)
            st = err_set(err, INGLE_NOMEM, "no memory for a path");
        else if (stat(full, &is) == 0 && S_ISDIR(is.st_mode) && depth < MOST_DEPTH)
            st = walk(l, folder, path, depth + 1, err);
        else if (stat(full, &is) == 0 && S_ISREG(is.st_mode) && hub_path_is_safe(path)) {
            f.n_bytes = (uint64_t)is.st_size;
            name_blob(full, &f);
            st = hub_list_add(l, &f, path, err);
        }
        mem_free(full);
        mem_free(path);
    }
    if (d)
        closedir(d);
    mem_free(at);
    return st;
}

ingle_status hub_cache_list(const struct hub_options *o, const char *repository, struct hub_list *l,
                            char **folder, struct err *err)
{
    *folder = o->cache ? snapshot(o, repository) : NULL;
    if (!*folder)
        return INGLE_OK;
    const ingle_status st = walk(l, *folder, "", 0, err);
    if (st) {
        mem_free(*folder);
        *folder = NULL;
    }
    return st;
}

char *hub_cache_blob(const struct hub_options *o, const char *repository, const struct hub_file *f)
{
    struct stat is;
    struct str s;
    char *all = o->cache && f->sha256[0] ? repository_folder(o, repository) : NULL, *real = NULL;
    str_init(&s);
    str_addf(&s, "%s/blobs/%s", all ? all : "", f->sha256);
    if (all && str_ok(&s) && stat(s.at, &is) == 0 && S_ISREG(is.st_mode) &&
        (uint64_t)is.st_size == f->n_bytes)
        real = mem_strdup(s.at);
    str_release(&s);
    mem_free(all);
    return real;
}
