/* SPDX-License-Identifier: Apache-2.0 */
/* store_place - whether a directory, and the file system that it is on, can have a store. */
#define _GNU_SOURCE
#include "kv/store_impl.h"
#include "kv/store_parts.h"

#include "base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum {
    NAME = 96,
    /* a directory that another machine has just made appears a little later */
    LATE_TRIES = 20,
    LATE_NS = 50000000
};
#define SECOND INT64_C(1000000000)

bool kv_store_is_missing(int e)
{
    return e == ENOENT || e == ESTALE;
}

void kv_store_learn_skew(int fd, _Atomic int64_t *skew_ns)
{
    struct stat st;
    struct timespec now;
    if (fstat(fd, &st) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0)
        return;
    const int64_t most = INT64_C(1) << 33, s = (int64_t)st.st_mtim.tv_sec - (int64_t)now.tv_sec;
    if (s > -most && s < most)
        atomic_store(skew_ns, s * SECOND + st.st_mtim.tv_nsec - now.tv_nsec);
}

/* "nfs4", "fuse.s3fs": as the system's list of mounts has it. */
static void name_of_file_system(int dir, char *out, size_t n)
{
    struct stat st;
    struct statfs fs;
    char line[1024], type[64];
    FILE *f = fstat(dir, &st) == 0 ? fopen("/proc/self/mountinfo", "re") : NULL;
    snprintf(out, n, "unknown");
    if (fstatfs(dir, &fs) == 0)
        snprintf(out, n, "of type 0x%llx", (unsigned long long)fs.f_type);
    while (f && fgets(line, sizeof line, f)) {
        unsigned major, minor;
        const char *rest = strstr(line, " - ");
        if (rest && sscanf(line, "%*d %*d %u:%u", &major, &minor) == 2 &&
            major == major(st.st_dev) && minor == minor(st.st_dev) &&
            sscanf(rest + 3, "%63s", type) == 1)
            snprintf(out, n, "%s", type);
    }
    if (f)
        fclose(f);
}

static ingle_status refuse(int dir, const char *dir_name, const char *why, struct err *err)
{
    char fs[64];
    name_of_file_system(dir, fs, sizeof fs);
    return err_set(err, INGLE_UNSUP,
                   "%s: its file system (%s) cannot rename files: %s; a store needs one that can",
                   dir_name, fs, why);
}

ingle_status kv_store_try_rename(int dir, const char *dir_name, _Atomic int64_t *skew_ns,
                                 struct err *err)
{
    char from[NAME], to[NAME];
    struct stat st;
    const unsigned long long now = clock_now();
    snprintf(from, sizeof from, ".ingle-%ld-%llx-a.tmp", (long)getpid(), now);
    snprintf(to, sizeof to, ".ingle-%ld-%llx-b.tmp", (long)getpid(), now);
    const int fd = openat(dir, from, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return INGLE_OK; /* nothing can be written: it is read */
    kv_store_learn_skew(fd, skew_ns);
    close(fd);
    const int e = renameat(dir, from, dir, to) == 0 ? 0 : errno;
    const bool others =
        kv_store_is_missing(e) || e == ENOSPC || e == EDQUOT || e == EIO || e == EROFS;
    const bool copied = !e && fstatat(dir, from, &st, AT_SYMLINK_NOFOLLOW) == 0;
    (void)unlinkat(dir, from, 0);
    (void)unlinkat(dir, to, 0);
    if (copied)
        return refuse(dir, dir_name, "the old name stays", err);
    return !e || others ? INGLE_OK : refuse(dir, dir_name, strerror(e), err);
}

ingle_status kv_store_open_dir(const char *name, int *dir, struct err *err)
{
    struct stat st;
    *dir = -1;
    if (mkdir(name, 0700) != 0 && errno != EEXIST)
        return err_set(err, INGLE_IO, "%s: cannot make the directory: %s", name,
                       strerror(errno));
    for (int i = 0; i < LATE_TRIES && *dir < 0; i++) {
        if (i)
            (void)nanosleep(&(struct timespec){.tv_nsec = LATE_NS}, NULL);
        *dir = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (*dir < 0 && !kv_store_is_missing(errno))
            break;
    }
    if (*dir < 0 || fstat(*dir, &st) != 0)
        return err_set(err, INGLE_IO, "%s: cannot open the directory: %s", name,
                       strerror(errno));
    if (st.st_uid != geteuid())
        return err_set(err, INGLE_ARG, "%s: it must be your own directory, and is that of user %u",
                       name, (unsigned)st.st_uid);
    if (st.st_mode & 022)
        return err_set(err, INGLE_ARG,
                       "%s: others may write to this directory (mode %o); chmod 700 it", name,
                       (unsigned)st.st_mode & 0777);
    return INGLE_OK;
}

ingle_status kv_store_check(const char *name, struct err *err)
{
    int dir;
    _Atomic int64_t skew_ns = 0;
    ingle_status st = kv_store_open_dir(name, &dir, err);
    if (!st)
        st = kv_store_try_rename(dir, name, &skew_ns, err);
    if (dir >= 0)
        close(dir);
    return st;
}
