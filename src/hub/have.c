/* SPDX-License-Identifier: Apache-2.0 */
/* have - what is in the folder of the hub's files, and its removal. */
#define _GNU_SOURCE
#include "hub/inner.h"

#include "base/drafter.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/names.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { MOST_NAMES = 20000, MOST_DEPTH = 8 };

/* No names where there is no folder. */
static ingle_status names_of(const char *folder, struct names *out, struct err *err)
{
    const ingle_status st = names_read(folder, MOST_NAMES, out, err);
    return st == INGLE_IO ? INGLE_OK : st;
}

/* ---- one folder ---- */

/* Files below FOLDER/INNER that are regular; sizes are those on the disk. */
static ingle_status walk(struct hub_list *l, const char *folder, const char *inner, int depth,
                         struct err *err)
{
    struct names names = {0};
    char *at = hub_join(folder, inner);
    ingle_status st =
        at ? names_of(at, &names, err) : err_set(err, INGLE_NOMEM, "no memory for a path");
    for (size_t i = 0; i < names.n && !st; i++) {
        struct stat is;
        struct hub_file f = {0};
        char *path = *inner ? hub_join(inner, names.at[i]) : mem_strdup(names.at[i]),
             *full = path ? hub_join(folder, path) : NULL;
        if (!full)
            st = err_set(err, INGLE_NOMEM, "no memory for a path");
        else if (lstat(full, &is) == 0 && S_ISDIR(is.st_mode) && depth < MOST_DEPTH)
            st = walk(l, folder, path, depth + 1, err);
        else if (stat(full, &is) == 0 && S_ISREG(is.st_mode) && hub_path_is_safe(path)) {
            const bool part = str_ends_any_case(path, ".part");
            f.n_bytes = part ? (uint64_t)is.st_blocks * 512 : (uint64_t)is.st_size;
            st = hub_list_add(l, &f, path, err);
        }
        mem_free(full);
        mem_free(path);
    }
    names_release(&names);
    mem_free(at);
    return st;
}

struct show {
    const char *directory, *repository, *hub, *revision, *folder;
    hub_have_fn *fn;
    void *arg;
};

static void show_file(const struct show *s, enum hub_have_kind kind, const char *path,
                      uint64_t n_bytes)
{
    struct str name;
    const size_t n = path ? strlen(path) : 0;
    str_init(&name);
    str_adds(&name, s->repository);
    if (path) { /* what is not whole has the name of what it will be */
        str_addc(&name, ':');
        str_add(&name, path, str_ends_any_case(path, ".part") ? n - 5 : n);
    }
    const struct hub_have h = {.name = name.at,
                               .hub = s->hub,
                               .revision = s->revision,
                               .folder = s->folder,
                               .kind = kind,
                               .n_bytes = n_bytes};
    if (str_ok(&name))
        s->fn(s->arg, &h);
    str_release(&name);
}

/* Each model once: its parts together. */
static void report_all(const struct show *s, struct hub_list *l)
{
    uint64_t checkpoint = 0;
    bool weights = false;
    for (size_t i = 0; i < l->n; i++) {
        const struct hub_file *f = &l->at[i];
        uint64_t n = 0;
        if (str_ends_any_case(f->path, ".part")) {
            show_file(s, HUB_HAVE_PART, f->path, f->n_bytes);
            continue;
        }
        if (!strchr(f->path, '/') && !str_ends_any_case(f->path, ".gguf") &&
            !str_ends_any_case(f->path, ".state")) {
            checkpoint += f->n_bytes;
            weights |= str_ends_any_case(f->path, ".safetensors");
        }
        if (!str_ends_any_case(f->path, ".gguf") || f->wanted)
            continue;
        struct err err;
        const bool whole = !hub_want(l, f->path, &err);
        for (size_t k = 0; whole && k < l->n; k++)
            n += l->at[k].wanted && str_ends_any_case(l->at[k].path, ".gguf") &&
                         hub_same_model(l->at[k].path, f->path)
                     ? l->at[k].n_bytes
                     : 0;
        show_file(s,
                  drafter_by_name(f->path) ? HUB_HAVE_DRAFTER
                  : hub_is_aside(f->path)  ? HUB_HAVE_OTHER
                  : whole                  ? HUB_HAVE_MODEL
                                           : HUB_HAVE_PART,
                  f->path, whole ? n : f->n_bytes);
    }
    if (weights)
        show_file(s, HUB_HAVE_CHECKPOINT, NULL, checkpoint);
}

static ingle_status show_folder(const struct hub_options *o, const char *owner, const char *name,
                                hub_have_fn *fn, void *arg, struct err *err)
{
    char repository[220], *at = hub_join(o->directory, owner),
                          *folder = at ? hub_join(at, name) : NULL;
    struct hub_note note = {0};
    struct hub_list l = {0};
    ingle_status st = folder ? hub_note_read(&note, folder, err)
                             : err_set(err, INGLE_NOMEM, "no memory for a path");
    if (!st)
        st = walk(&l, folder, "", 0, err);
    snprintf(repository, sizeof repository, "%.100s/%.*s", owner, (int)strcspn(name, "@"), name);
    const struct show s = {.directory = o->directory,
                           .repository = repository,
                           .hub = note.there ? note.hub : NULL,
                           .revision = note.there ? note.revision : "main",
                           .folder = folder,
                           .fn = fn,
                           .arg = arg};
    if (!st)
        report_all(&s, &l);
    hub_note_release(&note);
    hub_list_release(&l);
    mem_free(folder);
    mem_free(at);
    return st;
}

ingle_status hub_each(const struct hub_options *o, hub_have_fn *fn, void *arg, struct err *err)
{
    struct names owners = {0};
    ingle_status st = names_of(o->directory, &owners, err);
    for (size_t i = 0; i < owners.n && !st; i++) {
        struct names inner = {0};
        char *at = hub_join(o->directory, owners.at[i]);
        st = !at             ? err_set(err, INGLE_NOMEM, "no memory for a path")
             : file_is_folder(at) ? names_of(at, &inner, err)
                             : INGLE_OK;
        for (size_t k = 0; k < inner.n && !st; k++)
            st = show_folder(o, owners.at[i], inner.at[k], fn, arg, err);
        names_release(&inner);
        mem_free(at);
    }
    names_release(&owners);
    return st;
}

/* ---- removal ---- */

/* The folder of a file, if it is below the folder of the hub's files. */
static bool is_inside(const char *directory, const char *path)
{
    char root[PATH_MAX], real[PATH_MAX], *up = mem_strdup(path),
                                         *slash = up ? strrchr(up, '/') : NULL;
    if (slash)
        *slash = 0;
    const bool ok = slash && realpath(directory, root) && realpath(up, real) &&
                    strncmp(real, root, strlen(root)) == 0 && real[strlen(root)] == '/';
    mem_free(up);
    return ok;
}

/* Whether a line of /proc/PID/maps is of that file. */
static bool maps_have(const char *line, const struct stat *is)
{
    unsigned major_no, minor_no;
    unsigned long long inode;
    return sscanf(line, "%*s %*s %*s %x:%x %llu", &major_no, &minor_no, &inode) == 3 &&
           inode == (unsigned long long)is->st_ino && makedev(major_no, minor_no) == is->st_dev;
}

static bool process_has(const char *pid, const struct stat *is)
{
    char path[300], line[600];
    bool has = false;
    snprintf(path, sizeof path, "/proc/%.20s/maps", pid);
    FILE *f = fopen(path, "re");
    while (f && !has && fgets(line, sizeof line, f))
        has = maps_have(line, is);
    if (f)
        (void)fclose(f);
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *d = has ? NULL : opendir(path);
    for (const struct dirent *e; d && !has && (e = readdir(d));) {
        struct stat other;
        snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, e->d_name);
        has = stat(path, &other) == 0 && other.st_dev == is->st_dev && other.st_ino == is->st_ino;
    }
    if (d)
        closedir(d);
    return has;
}

/* The process that has the file open, of those that may be looked at; 0: none. */
static long user_of(const struct stat *is)
{
    DIR *d = opendir("/proc");
    long found = 0;
    for (const struct dirent *e; d && !found && (e = readdir(d));) {
        const long pid =
            strspn(e->d_name, "0123456789") == strlen(e->d_name) ? strtol(e->d_name, NULL, 10) : 0;
        if (pid && pid != (long)getpid() && process_has(e->d_name, is))
            found = pid;
    }
    if (d)
        closedir(d);
    return found;
}

/* A lock that a running program has, or a file that it has open. */
static ingle_status check_free(const char *path, struct err *err)
{
    struct stat is;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return INGLE_OK;
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK,
               there = fstat(fd, &is) == 0;
    close(fd);
    const long pid = locked || !there ? 0 : user_of(&is);
    if (locked)
        return err_set(err, INGLE_ARG, "'%s' is used by another process: nothing was deleted",
                       path);
    return pid ? err_set(err, INGLE_ARG, "'%s' is used by process %ld: nothing was deleted", path,
                         pid)
               : INGLE_OK;
}

static ingle_status check_all(const struct hub_options *o, const char *folder,
                              const struct hub_list *l, struct err *err)
{
    static const char *const more[] = {"", ".part"};
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < l->n * 2 && !st; i++) {
        struct str path;
        if (!l->at[i / 2].wanted)
            continue;
        str_init(&path);
        str_addf(&path, "%s/%s%s", folder, l->at[i / 2].path, more[i % 2]);
        if (!str_ok(&path))
            st = err_set(err, INGLE_NOMEM, "no memory for a path");
        else if (access(path.at, F_OK) == 0 && !is_inside(o->directory, path.at))
            st = err_set(err, INGLE_ARG, "'%s' lies outside of '%s': nothing was deleted", path.at,
                         o->directory);
        else
            st = check_free(path.at, err);
        str_release(&path);
    }
    return st;
}

/* Empty folders above a file, up to the hub's. */
static void drop_empty(const char *directory, const char *path)
{
    char *up = mem_strdup(path);
    for (char *slash; up && (slash = strrchr(up, '/'));) {
        *slash = 0;
        if (strlen(up) <= strlen(directory) || rmdir(up))
            break;
    }
    mem_free(up);
}

static ingle_status drop_files(const char *folder, const struct hub_list *l, struct err *err)
{
    static const char *const more[] = {"", ".part", ".part.state"};
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < l->n * 3 && !st; i++) {
        struct str path;
        if (!l->at[i / 3].wanted)
            continue;
        str_init(&path);
        str_addf(&path, "%s/%s%s", folder, l->at[i / 3].path, more[i % 3]);
        if (!str_ok(&path))
            st = err_set(err, INGLE_NOMEM, "no memory for a path");
        else if (unlink(path.at) && errno != ENOENT)
            st = err_set(err, INGLE_IO, "'%s' cannot be deleted: %s", path.at, strerror(errno));
        str_release(&path);
    }
    return st;
}

/* Notes of a folder without files; then the folder, and those above it. */
static void drop_folder(const char *directory, const char *folder)
{
    struct hub_list left = {0};
    struct err err;
    DIR *d = !walk(&left, folder, "", 0, &err) && !left.n ? opendir(folder) : NULL;
    for (const struct dirent *e; d && (e = readdir(d));) {
        char *path = strncmp(e->d_name, ".ingle-", 7) == 0 ? hub_join(folder, e->d_name) : NULL;
        if (path)
            (void)unlink(path);
        mem_free(path);
    }
    if (d)
        closedir(d);
    if (!left.n && !rmdir(folder))
        drop_empty(directory, folder);
    hub_list_release(&left);
}

static bool is_model(const char *path)
{
    return str_ends_any_case(path, ".gguf") && !hub_is_aside(path) && !drafter_by_name(path);
}

/* Encoders go with the last model beside them. */
static void mark_encoders(struct hub_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        bool goes = false, stays = false;
        if (!hub_is_mmproj(l->at[i].path) || l->at[i].wanted)
            continue;
        for (size_t k = 0; k < l->n; k++)
            if (is_model(l->at[k].path) && hub_same_folder(l->at[i].path, l->at[k].path))
                *(l->at[k].wanted ? &goes : &stays) = true;
        l->at[i].wanted = goes && !stays;
    }
}

/* Which of the files in the folder a name means. */
static ingle_status mark(struct hub_list *l, const struct hub_name *name, struct err *err)
{
    const char *first;
    size_t n_models = 0, last = 0;
    for (size_t i = 0; i < l->n; i++) { /* what is not whole has the name of what it will be */
        char *path = l->at[i].path;
        const size_t n = strlen(path);
        if (n > 5 && str_ends_any_case(path, ".part"))
            path[n - 5] = 0;
        if (!str_ends_any_case(path, ".gguf") || hub_is_mmproj(path))
            continue;
        n_models += !n_models || !hub_same_model(path, l->at[last].path);
        last = i;
    }
    for (size_t i = 0; i < l->n && !name->code[0] && n_models == 1; i++)
        l->at[i].wanted = str_ends_any_case(l->at[i].path, ".gguf") &&
                          hub_same_model(l->at[i].path, l->at[last].path);
    if (!name->code[0] && n_models == 1)
        return INGLE_OK;
    if (!name->code[0] && n_models > 1)
        return err_set(
            err, INGLE_ARG,
            "%zu files of %s are there: name one by its code or its file, as --have lists them",
            n_models, name->repository);
    const ingle_status st = hub_choose(l, name->code, &first, err);
    bool any = false;
    for (size_t i = 0; i < l->n; i++)
        any |= l->at[i].wanted;
    return st == INGLE_FORMAT && any ? INGLE_OK : st; /* some parts of a split file */
}

ingle_status hub_delete(const char *text, const struct hub_options *o, hub_delete_fn *ask,
                        void *arg, struct err *err)
{
    struct hub_name name;
    struct hub_options own;
    struct hub_note note = {0};
    struct hub_list l = {0};
    char *folder = NULL;
    uint64_t n_bytes = 0;
    size_t n = 0;
    ingle_status st = hub_begin(text, o, &name, &own, err);
    if (!st)
        st = hub_place(&own, name.repository, &folder, &note, err);
    if (!st)
        st = walk(&l, folder, "", 0, err);
    if (!st && !l.n)
        st = err_set(err, INGLE_NOTFOUND, "there is nothing of %s in '%s'", name.repository,
                     o->directory);
    else if (!st && (st = mark(&l, &name, err)))
        st = err_prefix(err, "%s", name.repository);
    if (!st)
        mark_encoders(&l);
    for (size_t i = 0; i < l.n && !st; i++)
        if (l.at[i].wanted) {
            n++;
            n_bytes += l.at[i].n_bytes;
        }
    if (!st)
        st = check_all(o, folder, &l, err);
    if (!st && !ask(arg, folder, n, n_bytes))
        st = err_set(err, INGLE_CANCEL, "nothing was deleted");
    if (!st)
        st = drop_files(folder, &l, err);
    if (!st && note.there)
        st = hub_note_change(folder, note.hub, note.revision, &(struct hub_change){.removed = &l},
                             err);
    if (!st) {
        for (size_t i = 0; i < l.n; i++) {
            char *path = l.at[i].wanted ? hub_join(folder, l.at[i].path) : NULL;
            if (path)
                drop_empty(folder, path);
            mem_free(path);
        }
        drop_folder(o->directory, folder);
    }
    hub_note_release(&note);
    hub_list_release(&l);
    mem_free(folder);
    return st;
}
