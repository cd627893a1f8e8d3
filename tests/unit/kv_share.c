/* SPDX-License-Identifier: Apache-2.0 */
/* kv_share - one directory for several machines: files that vanish under a reader, directories that
 * appear late, clocks that differ, one that deletes at a time, and file systems that cannot
 * rename.  Linked with --wrap for the calls that such a file system answers in its own way. */
#define _GNU_SOURCE
#include "unit/kv_depot.h"

#include "base/clock.h"
#include <errno.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

/* ---- a file system of another machine ---- */

/* The call at which it says `fails_with`: counted down, on any thread; -1: never.  often: also each
 * so many calls after it. */
static atomic_long until = -1;
static atomic_int fails_with = ESTALE, often;
static atomic_long clock_ahead_s; /* of this machine, against what dates files */
static atomic_int rename_fails, late_opens, listing_ends = -1;
static int deleting = -1; /* a file that is locked while files are deleted; -1: not looked at */

static bool fails(void)
{
    long n = atomic_load(&until);
    while (n >= 0 && !atomic_compare_exchange_weak(&until, &n, n - 1))
        ;
    if (n != 0)
        return false;
    atomic_store(&until, atomic_load(&often) ? atomic_load(&often) : -1);
    errno = atomic_load(&fails_with);
    return true;
}

int __real_openat(int dir, const char *name, int flags, mode_t mode);
int __wrap_openat(int dir, const char *name, int flags, mode_t mode);
int __real_open(const char *name, int flags, mode_t mode);
int __wrap_open(const char *name, int flags, mode_t mode);
ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);
ssize_t __real_preadv(int fd, const struct iovec *v, int n, off_t at);
ssize_t __wrap_preadv(int fd, const struct iovec *v, int n, off_t at);
ssize_t __real_pwritev(int fd, const struct iovec *v, int n, off_t at);
ssize_t __wrap_pwritev(int fd, const struct iovec *v, int n, off_t at);
int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __real_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st);
int __real_fstatat(int dir, const char *name, struct stat *st, int flags);
int __wrap_fstatat(int dir, const char *name, struct stat *st, int flags);
int __real_renameat(int a, const char *from, int b, const char *to);
int __wrap_renameat(int a, const char *from, int b, const char *to);
int __real_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags);
struct dirent *__real_readdir(DIR *d);
struct dirent *__wrap_readdir(DIR *d);
time_t __real_time(time_t *out);
time_t __wrap_time(time_t *out);
int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);

int __wrap_openat(int dir, const char *name, int flags, mode_t mode)
{
    return fails() ? -1 : __real_openat(dir, name, flags, mode);
}

int __wrap_open(const char *name, int flags, mode_t mode)
{
    int n = atomic_load(&late_opens);
    if ((flags & O_DIRECTORY) && n > 0) {
        atomic_store(&late_opens, n - 1);
        errno = n % 2 ? ENOENT : ESTALE;
        return -1;
    }
    return __real_open(name, flags, mode);
}

ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
    return fails() ? -1 : __real_pread(fd, to, n, at);
}

ssize_t __wrap_preadv(int fd, const struct iovec *v, int n, off_t at)
{
    return fails() ? -1 : __real_preadv(fd, v, n, at);
}

ssize_t __wrap_pwritev(int fd, const struct iovec *v, int n, off_t at)
{
    return fails() ? -1 : __real_pwritev(fd, v, n, at);
}

int __wrap_fdatasync(int fd)
{
    return fails() ? -1 : __real_fdatasync(fd);
}

int __wrap_fstat(int fd, struct stat *st)
{
    return fails() ? -1 : __real_fstat(fd, st);
}

int __wrap_fstatat(int dir, const char *name, struct stat *st, int flags)
{
    return fails() ? -1 : __real_fstatat(dir, name, st, flags);
}

int __wrap_renameat(int a, const char *from, int b, const char *to)
{
    const int e = atomic_load(&rename_fails);
    if (e) {
        errno = e;
        return -1;
    }
    return fails() ? -1 : __real_renameat(a, from, b, to);
}

/* Of two processes that delete restore points at the same time the second one ends. */
int __wrap_unlinkat(int dir, const char *name, int flags)
{
    const bool point = deleting >= 0 && strstr(name, ".kv") != NULL;
    if (point && flock(deleting, LOCK_EX | LOCK_NB) != 0) {
        fprintf(stderr, "two processes delete at the same time\n");
        _exit(3);
    }
    if (point)
        (void)nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
    const int result = fails() ? -1 : __real_unlinkat(dir, name, flags);
    const int e = errno;
    if (point)
        (void)flock(deleting, LOCK_UN);
    errno = e;
    return result;
}

struct dirent *__wrap_readdir(DIR *d)
{
    const int n = atomic_load(&listing_ends);
    if (n >= 0)
        atomic_store(&listing_ends, n - 1);
    if (!n)
        errno = ESTALE;
    return !n || fails() ? NULL : __real_readdir(d);
}

time_t __wrap_time(time_t *out)
{
    const time_t t = __real_time(NULL) + atomic_load(&clock_ahead_s);
    if (out)
        *out = t;
    return t;
}

int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    const int result = __real_clock_gettime(id, t);
    if (id == CLOCK_REALTIME)
        t->tv_sec += atomic_load(&clock_ahead_s);
    return result;
}

static void calm(void)
{
    atomic_store(&until, -1);
    atomic_store(&often, 0);
}

/* ---- what is gone is a miss ---- */

/* A line that others share up to 256 tokens. */
static void line_of(struct depot *d, int line, int64_t script)
{
    struct world_line *l = &d->w.line[line];
    kv_timeline_clear(l->t);
    l->length = l->rewind_to = 0;
    for (int64_t k = 0; k < WORLD_MAX; k++)
        l->token[k] = (int32_t)(k < 256 ? 1 : k < 512 ? script : script * 7 + k % 3);
}

/* Writes, looks, reads and gives up; what comes back is checked by depot_get(). */
static void use(struct depot *d, int64_t script)
{
    line_of(d, 0, script);
    (void)depot_get(d, 0, 0, 700);
    depot_put(d, 0, 0, 200);
    depot_put(d, 0, 0, 150);
    kv_store_flush(d->store);
    line_of(d, 1, script);
    (void)depot_get(d, 1, 0, 700);
}

/* Each call in turn finds that its file or directory is gone. */
static void whatever_is_gone_is_a_miss(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    d->o.budget_bytes = 60000;
    d->o.retry_seconds = 0.001;
    depot_reopen(d);
    for (int64_t i = 0; i < 4; i++)
        use(d, i); /* it is full */
    const int64_t evicted = depot_counts(d).evicted;
    assert_true(evicted > 0);
    long calls = 1;
    for (long at = 0; at < calls && at < 600; at++) {
        atomic_store(&until, at);
        use(d, 10 + at % 7);
        if (atomic_load(&until) < 0)
            calls = at + 2; /* there was such a call */
        calm();
    }
    assert_true(calls > 50);
    assert_int_equal(depot_counts(d).damaged, 0);
    assert_string_equal(depot_counts(d).error, "");
    if (d->n_warned)
        print_message("%d: %s\n", d->n_warned, d->said);
    assert_int_equal(d->n_warned, 0);
    depot_close(d);
}

/* A listing that breaks off: what it did not show is still there. */
static void a_listing_that_breaks_off_forgets_nothing(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    for (int64_t i = 0; i < 3; i++) {
        line_of(d, 0, i);
        depot_put(d, 0, 0, 300);
    }
    kv_store_flush(d->store);
    const int64_t files = depot_counts(d).files;
    for (int i = 0; i < 12; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/other", d->dir);
        const int fd = __real_open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        close(fd);
        assert_int_equal(unlink(path), 0); /* the directory has changed */
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        atomic_store(&listing_ends, i % 6);
        (void)kv_store_look(d->store, true);
        atomic_store(&listing_ends, -1);
        assert_int_equal(depot_counts(d).files, files);
    }
    line_of(d, 1, 1);
    assert_int_equal(depot_get(d, 1, 0, 700), 300);
    depot_close(d);
}

static void a_directory_may_appear_late(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    kv_store_close(d->store);
    atomic_store(&late_opens, 5);
    depot_open_store(d);
    assert_int_equal(atomic_load(&late_opens), 0);
    depot_close(d);
}

/* ---- clocks ---- */

/* A machine whose clock is hours off gives up what was not used for longest, and leaves alone what
 * another one writes. */
static void clocks_may_differ(void **state)
{
    (void)state;
    static const struct {
        long ahead, used;
    } cases[] = {{7200, -3600}, {-7200, -3600}, {0, 3600}};
    for (size_t k = 0; k < 3; k++) {
        struct depot *d = depot_open(1 << 20);
        char tmp[128];
        kv_store_close(d->store);
        atomic_store(&clock_ahead_s, cases[k].ahead);
        snprintf(tmp, sizeof tmp, "%s/.ingle-1-1.tmp", d->dir);
        const int fd = __real_open(tmp, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        close(fd); /* a writer that has not locked it yet */
        d->o.budget_bytes = 40000;
        depot_open_store(d);
        line_of(d, 0, 1);
        depot_put(d, 0, 0, 600);
        kv_store_flush(d->store);
        int n = depot_files(d, NULL, NULL);
        assert_int_equal(n, 2);
        /* the first one was used an hour ago, by the clock that dates files, or by one that was
         * ahead for a while */
        DIR *dir = opendir(d->dir);
        for (const struct dirent *e; (e = __real_readdir(dir));)
            if (strstr(e->d_name, ".kv")) {
                const time_t used = __real_time(NULL) + cases[k].used;
                const struct timespec then[2] = {{.tv_sec = used}, {.tv_sec = used}};
                assert_int_equal(utimensat(dirfd(dir), e->d_name, then, 0), 0);
            }
        closedir(dir);
        depot_reopen(d);
        for (int64_t i = 2; i < 5; i++) {
            line_of(d, 0, i * 1000);
            d->w.line[0].token[0] = (int32_t)i;
            depot_put(d, 0, 0, 300);
            kv_store_flush(d->store);
        }
        assert_true(depot_counts(d).evicted > 0);
        line_of(d, 1, 1);
        assert_int_equal(depot_get(d, 1, 0, 700), 0); /* the oldest one went first */
        line_of(d, 1, 4000);
        d->w.line[1].token[0] = 4;
        assert_int_equal(depot_get(d, 1, 0, 700), 300);
        assert_int_equal(d->n_warned, 0);
        atomic_store(&clock_ahead_s, 0);
        depot_close(d);
    }
}

/* ---- one that deletes ---- */

static void lease_path(const struct depot *d, char *out, size_t n)
{
    snprintf(out, n, "%s/.ingle-deletes", d->dir);
}

/* Somebody else's lease is respected while it changes, and expires when it does not. */
static void a_lease_expires(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    char path[128];
    lease_path(d, path, sizeof path);
    d->o.budget_bytes = 20000;
    depot_reopen(d);
    line_of(d, 0, 1);
    depot_put(d, 0, 0, 600);
    kv_store_flush(d->store);
    const int fd = __real_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, "another machine 1\n", 18) == 18);
    const uint64_t start = clock_now();
    int64_t refused = 0;
    for (int i = 0; i < 40 && !depot_counts(d).evicted; i++) {
        line_of(d, 0, 2);
        d->w.line[0].token[0] = 2;
        depot_put(d, 0, 0, 600);
        kv_store_flush(d->store);
        refused += !depot_counts(d).evicted;
        if (i == 0)
            assert_true(kv_store_gave_up(d->store)); /* it is offered again */
        if (i == 1)                                  /* it lives */
            assert_true(pwrite(fd, "another machine 2\n", 18, 0) == 18);
    }
    close(fd);
    const double s = (double)(clock_now() - start) * 1e-9;
    assert_true(refused >= 3 && depot_counts(d).evicted > 0);
    assert_true(s > 5);
    assert_int_not_equal(access(path, F_OK), 0); /* it is given back */
    assert_int_equal(d->n_warned, 0);
    depot_close(d);
}

/* A full disk has no room for a lease, and just then files must go. */
static void without_a_lease_files_go_all_the_same(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    char path[128];
    lease_path(d, path, sizeof path);
    d->o.budget_bytes = 20000;
    depot_reopen(d);
    line_of(d, 0, 1);
    depot_put(d, 0, 0, 600);
    kv_store_flush(d->store);
    assert_int_equal(mkdir(path, 0700), 0); /* nobody can read it or write to it as a file */
    line_of(d, 0, 2);
    d->w.line[0].token[0] = 2;
    depot_put(d, 0, 0, 600);
    kv_store_flush(d->store);
    assert_true(depot_counts(d).evicted > 0);
    assert_int_equal(rmdir(path), 0);
    depot_close(d);
}

/* Two processes that need the same little room: each checks all that it gets. */
static int fight(const struct depot *parent, int who)
{
    struct depot *d = mem_zalloc(sizeof *d);
    char path[128];
    snprintf(path, sizeof path, "%s.lock", parent->dir);
    deleting = __real_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    memcpy(d->dir, parent->dir, sizeof d->dir);
    d->o = parent->o;
    d->o.dir = d->dir;
    d->o.budget_bytes = 80000;
    d->o.retry_seconds = 0.001;
    d->w.seed = (uint64_t)who + 7;
    atomic_store(&clock_ahead_s, who ? 5000 : -5000);
    atomic_store(&often, 400 + 100 * who);
    atomic_store(&until, 50);
    depot_open_pool(d, 1 << 20);
    depot_open_store(d);
    int64_t got = 0;
    for (int round = 0; round < 150; round++) {
        const int line = (int)world_pick(&d->w, 0, WORLD_LINES - 1);
        line_of(d, line, world_pick(&d->w, 0, 3));
        got += depot_get(d, line, 0, world_pick(&d->w, 1, 800)) > 0;
        depot_put(d, line, 0, world_pick(&d->w, 1, 300));
        if (!world_pick(&d->w, 0, 10))
            kv_store_flush(d->store);
    }
    calm();
    kv_store_flush(d->store);
    const struct kv_store_counts n = depot_counts(d);
    const int bad = d->n_warned + (int)n.damaged + (got < 10) + (n.evicted < 1);
    if (bad)
        print_message("%d: %s (%lld restored, %lld damaged, %lld evicted)\n", who, d->said,
                      (long long)got, (long long)n.damaged, (long long)n.evicted);
    kv_store_close(d->store);
    world_close(&d->w);
    mem_free(d);
    return bad ? 1 : 0;
}

static void one_process_deletes_at_a_time(void **state)
{
    (void)state;
    char path[128];
    struct depot *d = depot_open(1 << 20);
    snprintf(path, sizeof path, "%s.lock", d->dir);
    kv_store_close(d->store); /* no thread may be there at a fork */
    pid_t pid[2];
    for (int i = 0; i < 2; i++)
        if (!(pid[i] = fork()))
            _exit(fight(d, i));
    for (int i = 0; i < 2; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    depot_open_store(d);
    (void)unlink(path);
    depot_close(d);
}

/* ---- file systems ---- */

static void who_cannot_rename_is_refused_by_name(void **state)
{
    (void)state;
    static const int errors[] = {ENOSYS, EOPNOTSUPP, EXDEV, EPERM};
    struct err err;
    struct depot *d = depot_open(1 << 20);
    kv_store_close(d->store);
    d->store = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        atomic_store(&rename_fails, errors[i]);
        assert_int_equal(kv_store_open(&d->store, d->w.pool, &d->o, &err), INGLE_UNSUP);
        assert_non_null(strstr(err.msg, d->dir));
        assert_non_null(strstr(err.msg, "cannot rename files"));
        assert_non_null(strstr(err.msg, strerror(errors[i])));
        assert_int_equal(kv_store_check(d->dir, &err), INGLE_UNSUP);
        assert_int_equal(depot_files(d, NULL, NULL), 0); /* nothing stays */
    }
    atomic_store(&rename_fails, 0);
    depot_open_store(d);
    depot_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_is_gone_is_a_miss),
        cmocka_unit_test(a_listing_that_breaks_off_forgets_nothing),
        cmocka_unit_test(a_directory_may_appear_late),
        cmocka_unit_test(clocks_may_differ),
        cmocka_unit_test(a_lease_expires),
        cmocka_unit_test(without_a_lease_files_go_all_the_same),
        cmocka_unit_test(one_process_deletes_at_a_time),
        cmocka_unit_test(who_cannot_rename_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
