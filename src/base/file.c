/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "base/file.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char nothing[1]; /* what the map of an empty file points to */

static ingle_status file_errno(struct err *err, const char *path, const char *what)
{
    const int e = errno;
    if (e == ENOENT || e == ENOTDIR)
        return err_set(err, INGLE_NOTFOUND, "%s: %s: %s", path, what, strerror(e));
    if (e == ENOMEM)
        return err_set(err, INGLE_NOMEM, "%s: %s: %s", path, what, strerror(e));
    return err_set(err, INGLE_IO, "%s: %s: %s", path, what, strerror(e));
}

ingle_status file_open(const char *path, int *fd, uint64_t *n_bytes, struct err *err)
{
    /* O_NONBLOCK: a named pipe must not hang us before it can be refused. */
    const int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0)
        return file_errno(err, path, "cannot open");
    struct stat st;
    if (fstat(f, &st) != 0) {
        ingle_status s = file_errno(err, path, "cannot stat");
        close(f);
        return s;
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        return err_set(err, INGLE_IO, "%s: not a regular file", path);
    }
    *fd = f;
    *n_bytes = (uint64_t)st.st_size;
    return INGLE_OK;
}

void file_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

ingle_status file_read_at(int fd, const char *path, uint64_t offset, void *dst, size_t n,
                          struct err *err)
{
    char *at = dst;
    if (offset > INT64_MAX || n > INT64_MAX - offset)
        return err_set(err, INGLE_IO, "%s: cannot read %zu bytes at %llu: beyond any file", path, n,
                       (unsigned long long)offset);
    for (size_t done = 0; done < n;) {
        const ssize_t got = pread(fd, at + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return file_errno(err, path, "cannot read");
        if (got == 0)
            return err_set(err, INGLE_IO,
                           "%s: wanted %zu bytes at %llu but the file ends after %zu", path, n,
                           (unsigned long long)offset, done);
        done += (size_t)got;
    }
    return INGLE_OK;
}

bool file_is_folder(const char *path)
{
    struct stat is;
    return path && stat(path, &is) == 0 && S_ISDIR(is.st_mode);
}

DIR *file_list(int dir)
{
    const int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d && fd >= 0)
        close(fd);
    return d;
}

static bool is_own_group(gid_t group)
{
    gid_t of[1024];
    const int n = getgroups(sizeof of / sizeof *of, of);
    for (int i = 0; i < n; i++)
        if (of[i] == group)
            return true;
    return group == getegid();
}

bool file_is_private(const struct stat *is)
{
    return !(is->st_mode & 037) &&
           (!(is->st_mode & 040) ||
            (is->st_uid == 0 && (is->st_gid == 0 || is_own_group(is->st_gid))));
}

ingle_status file_slurp(const char *path, size_t limit, char **out, size_t *n, struct err *err)
{
    int fd;
    uint64_t n_bytes;
    ingle_status s = file_open(path, &fd, &n_bytes, err);
    if (s)
        return s;
    char *at = NULL;
    if (n_bytes > limit || n_bytes >= SIZE_MAX) {
        s = err_set(err, INGLE_LIMIT, "%s: has %llu bytes, the limit is %zu", path,
                    (unsigned long long)n_bytes, limit);
        goto out;
    }
    at = mem_alloc((size_t)n_bytes + 1);
    if (!at) {
        s = err_set(err, INGLE_NOMEM, "%s: no %llu bytes to read it", path,
                    (unsigned long long)n_bytes);
        goto out;
    }
    s = file_read_at(fd, path, 0, at, (size_t)n_bytes, err);
    if (s)
        goto out;
    at[n_bytes] = 0;
    *out = at;
    *n = (size_t)n_bytes;
    at = NULL;
out:
    mem_free(at);
    file_close(fd);
    return s;
}

ingle_status file_map(int fd, const char *path, uint64_t n_bytes, const void **out, struct err *err)
{
    if (!n_bytes) {
        *out = nothing;
        return INGLE_OK;
    }
    if (n_bytes > SIZE_MAX)
        return err_set(err, INGLE_LIMIT, "%s: cannot map %llu bytes, the limit is %zu", path,
                       (unsigned long long)n_bytes, (size_t)SIZE_MAX);
    void *p = mmap(NULL, (size_t)n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return file_errno(err, path, "cannot map");
    *out = p;
    return INGLE_OK;
}

void file_unmap(const void *at, uint64_t n_bytes)
{
    if (!at || !n_bytes)
        return;
    union {
        const void *in;
        void *out;
    } p = {.in = at};
    munmap(p.out, (size_t)n_bytes);
}

void file_limit_hold(struct file_limit *l)
{
    sigset_t one, pending;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    l->was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    sigset_t before;
    pthread_sigmask(SIG_BLOCK, &one, &before);
    static_assert(sizeof before <= sizeof l->before, "a signal set");
    memcpy(l->before, &before, sizeof before);
}

void file_limit_drop(const struct file_limit *l)
{
    const int e = errno;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    if (!l->was_pending)
        while (sigtimedwait(&one, NULL, &(struct timespec){0}) < 0 && errno == EINTR)
            ;
    sigset_t before;
    memcpy(&before, l->before, sizeof before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = e;
}

/* Makes a rename in path's directory last.  A file system that cannot sync a directory
 * is not an error: the file itself is already on disk. */
static void sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = !slash          ? mem_strdup(".")
                : slash == path ? mem_strdup("/")
                                : mem_strndup(path, (size_t)(slash - path));
    if (!dir)
        return;
    const int fd = open(dir, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    mem_free(dir);
    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

/* A rename would put a file in the place of a device, and cannot in that of a directory. */
static ingle_status check_place(const char *path, struct err *err)
{
    struct stat is;
    if (stat(path, &is) == 0 && !S_ISREG(is.st_mode))
        return err_set(err, INGLE_IO, "%s: is %s", path,
                       S_ISDIR(is.st_mode) ? "a directory" : "no regular file");
    return INGLE_OK;
}

/* "/nodir: no such directory" is what a person can mend; the temporary name is not theirs. */
static ingle_status no_new_file(struct err *err, const char *path)
{
    const int e = errno;
    const char *slash = strrchr(path, '/');
    if (e == ENOENT && slash && slash != path)
        return err_set(err, INGLE_NOTFOUND, "%.*s: no such directory", (int)(slash - path), path);
    errno = e;
    return file_errno(err, path, "cannot create");
}

/* PID of "PATH.PID-N.tmp" without its directory; 0: it is no such name. */
static long left_by(const char *name, const char *base, size_t n_base)
{
    char *end;
    if (strncmp(name, base, n_base) != 0 || name[n_base] != '.' || name[n_base + 1] < '1' ||
        name[n_base + 1] > '9')
        return 0;
    const long pid = strtol(name + n_base + 1, &end, 10);
    if (*end != '-' || end[1] < '0' || end[1] > '9')
        return 0;
    (void)strtol(end + 1, &end, 10);
    return strcmp(end, ".tmp") == 0 ? pid : 0;
}

/* Removes temporary files of this path whose writers have died: they hold no lock, and have no
 * process. */
static void remove_left(const char *path)
{
    enum { MOST = 1 << 16 }; /* names that are looked at */
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char *dir = !slash          ? mem_strdup(".")
                : slash == path ? mem_strdup("/")
                                : mem_strndup(path, (size_t)(slash - path));
    DIR *d = dir ? opendir(dir) : NULL;
    mem_free(dir);
    struct dirent *e;
    for (int i = 0; d && i < MOST && (e = readdir(d)); i++) {
        const long pid = left_by(e->d_name, base, strlen(base));
        if (!pid || pid > INT32_MAX || kill((pid_t)pid, 0) == 0 || errno != ESRCH)
            continue;
        const int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            (void)unlinkat(dirfd(d), e->d_name, 0);
        file_close(fd);
    }
    if (d)
        closedir(d);
}

ingle_status file_new_open(struct file_new *f, const char *path, struct err *err)
{
    struct str tmp;
    str_init(&tmp);
    *f = (struct file_new){.fd = -1};
    ingle_status s = check_place(path, err);
    if (s)
        return s;
    remove_left(path);
    f->path = mem_strdup(path);
    for (int i = 0; i < 64 && f->path && f->fd < 0; i++) {
        str_clear(&tmp);
        str_addf(&tmp, "%s.%ld-%d.tmp", path, (long)getpid(), i);
        if (!str_ok(&tmp))
            break;
        f->fd = open(tmp.at, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd < 0 && errno != EEXIST)
            break;
    }
    if (f->fd >= 0)
        /* until it is closed: a process in another container has this number, too */
        (void)flock(f->fd, LOCK_EX | LOCK_NB);
    if (!f->path || !str_ok(&tmp))
        s = err_set(err, INGLE_NOMEM, "%s: no memory for a temporary name", path);
    else if (f->fd < 0)
        s = no_new_file(err, path);
    else if (!(f->tmp = mem_strdup(tmp.at))) {
        (void)unlink(tmp.at);
        close(f->fd);
        s = err_set(err, INGLE_NOMEM, "%s: no memory for a temporary name", path);
    }
    str_release(&tmp);
    if (s)
        file_new_drop(f);
    return s;
}

/* Opens f->tmp and locks it; *same: nobody renamed it in between. */
static ingle_status open_locked(struct file_new *f, bool *same, struct err *err)
{
    struct stat open_one, named;
    *same = false;
    f->fd = open(f->tmp, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (f->fd < 0)
        return no_new_file(err, f->tmp);
    ingle_status s = INGLE_OK;
    if (fstat(f->fd, &open_one) != 0)
        s = file_errno(err, f->tmp, "cannot read");
    else if (!S_ISREG(open_one.st_mode))
        s = err_set(err, INGLE_IO, "%s: is no regular file", f->tmp);
    else if (flock(f->fd, LOCK_EX | LOCK_NB) != 0)
        s = errno == EWOULDBLOCK ? err_set(err, INGLE_IO, "%s: another process writes it", f->tmp)
                                 : file_errno(err, f->tmp, "cannot lock");
    else
        *same = stat(f->tmp, &named) == 0 && named.st_dev == open_one.st_dev &&
                named.st_ino == open_one.st_ino;
    if (s || !*same) {
        close(f->fd);
        f->fd = -1;
    }
    return s;
}

ingle_status file_new_again(struct file_new *f, const char *path, struct err *err)
{
    enum { TRIES = 16 };
    struct str tmp;
    bool same = false;
    *f = (struct file_new){.fd = -1};
    ingle_status s = check_place(path, err);
    if (s)
        return s;
    str_init(&tmp);
    str_addf(&tmp, "%s.part", path);
    *f = (struct file_new){
        .fd = -1, .path = mem_strdup(path), .tmp = str_detach(&tmp), .again = true};
    s = f->path && f->tmp ? INGLE_OK
                          : err_set(err, INGLE_NOMEM, "%s: no memory for a temporary name", path);
    for (int i = 0; i < TRIES && !s && !same; i++)
        s = open_locked(f, &same, err);
    if (!s && !same)
        s = err_set(err, INGLE_IO, "%s: another process writes it", f->tmp);
    if (s)
        file_new_leave(f);
    return s;
}

ingle_status file_new_size(const struct file_new *f, uint64_t *n_bytes, struct err *err)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return file_errno(err, f->tmp, "cannot read");
    *n_bytes = (uint64_t)st.st_size;
    return INGLE_OK;
}

ingle_status file_new_empty(const struct file_new *f, struct err *err)
{
    return ftruncate(f->fd, 0) == 0 ? INGLE_OK : file_errno(err, f->tmp, "cannot truncate");
}

void file_new_leave(struct file_new *f)
{
    if (f->fd >= 0)
        close(f->fd);
    mem_free(f->tmp);
    mem_free(f->path);
    *f = (struct file_new){.fd = -1};
}

ingle_status file_new_write(const struct file_new *f, uint64_t offset, const void *bytes, size_t n,
                            struct err *err)
{
    const char *at = bytes;
    struct file_limit limit;
    ingle_status s = INGLE_OK;
    if (offset > INT64_MAX || n > INT64_MAX - offset)
        return err_set(err, INGLE_LIMIT, "%s: cannot write %zu bytes at %llu: beyond any file",
                       f->path, n, (unsigned long long)offset);
    file_limit_hold(&limit);
    for (size_t done = 0; done < n && !s;) {
        const ssize_t put = pwrite(f->fd, at + done, n - done, (off_t)(offset + done));
        if (put < 0 && errno != EINTR)
            s = file_errno(err, f->tmp, "cannot write");
        done += put > 0 ? (size_t)put : 0;
    }
    file_limit_drop(&limit);
    return s;
}

ingle_status file_new_finish(struct file_new *f, struct err *err)
{
    ingle_status s = INGLE_OK;
    if (fsync(f->fd) != 0)
        s = file_errno(err, f->tmp, "cannot sync");
    const int locked = f->again ? f->fd : -1; /* nobody may take it before it has its name */
    if (!f->again && close(f->fd) != 0 && !s)
        s = file_errno(err, f->tmp, "cannot close");
    f->fd = -1;
    if (!s && rename(f->tmp, f->path) != 0)
        s = file_errno(err, f->path, "cannot rename into place");
    if (locked >= 0)
        close(locked);
    if (!s) {
        sync_parent(f->path);
        mem_free(f->tmp);
        f->tmp = NULL;
    }
    file_new_drop(f);
    return s;
}

void file_new_drop(struct file_new *f)
{
    if (f->tmp) {
        (void)unlink(f->tmp);
        if (f->fd >= 0)
            close(f->fd);
    }
    mem_free(f->tmp);
    mem_free(f->path);
    *f = (struct file_new){.fd = -1};
}
