/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "unit/unit.h"

#include "base/file.h"
#include "base/output.h"
#include "base/mem.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/ingle-file-XXXXXX";
static char path[64];

static int make_dir(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/f", dir);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir); /* fails when a temporary file was left behind */
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    assert_int_equal(unit_write(path, "old old old", 11, NULL), INGLE_OK);
    assert_int_equal(unit_write(path, "ab\0cd", 5, NULL), INGLE_OK);
    char *text;
    size_t n;
    assert_int_equal(file_slurp(path, 5, &text, &n, NULL), INGLE_OK);
    assert_int_equal(n, 5);
    assert_memory_equal(text, "ab\0cd\0", 6);
    mem_free(text);

    int fd;
    uint64_t n_bytes;
    const void *map;
    assert_int_equal(file_open(path, &fd, &n_bytes, NULL), INGLE_OK);
    assert_int_equal(n_bytes, 5);
    assert_int_equal(file_map(fd, path, n_bytes, &map, NULL), INGLE_OK);
    assert_memory_equal(map, "ab\0cd", 5);
    file_unmap(map, n_bytes);
    char two[2];
    assert_int_equal(file_read_at(fd, path, 3, two, 2, NULL), INGLE_OK);
    assert_memory_equal(two, "cd", 2);
    struct err err;
    assert_int_equal(file_read_at(fd, path, 4, two, 2, &err), INGLE_IO);
    assert_non_null(strstr(err.msg, "wanted 2 bytes at 4 but the file ends after 1"));
    assert_int_equal(file_read_at(fd, path, UINT64_MAX, two, 2, &err), INGLE_IO);
    file_close(fd);
}

static void an_empty_file_is_a_file(void **state)
{
    (void)state;
    assert_int_equal(unit_write(path, "", 0, NULL), INGLE_OK);
    int fd;
    uint64_t n_bytes;
    const void *map = NULL;
    assert_int_equal(file_open(path, &fd, &n_bytes, NULL), INGLE_OK);
    assert_int_equal(file_map(fd, path, n_bytes, &map, NULL), INGLE_OK);
    assert_non_null(map);
    file_unmap(map, n_bytes);
    file_close(fd);
    char *text;
    size_t n;
    assert_int_equal(file_slurp(path, 0, &text, &n, NULL), INGLE_OK);
    assert_int_equal(n, 0);
    mem_free(text);
}

static void refusals_name_the_file(void **state)
{
    (void)state;
    struct err err;
    int fd;
    uint64_t n_bytes;
    char *text;
    size_t n;
    char other[80];
    snprintf(other, sizeof other, "%s/none", dir);
    assert_int_equal(file_open(other, &fd, &n_bytes, &err), INGLE_NOTFOUND);
    assert_non_null(strstr(err.msg, other));
    assert_int_equal(file_open(dir, &fd, &n_bytes, &err), INGLE_IO);
    assert_non_null(strstr(err.msg, "not a regular file"));
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_int_equal(file_open(other, &fd, &n_bytes, &err), INGLE_IO);
    unlink(other);
    assert_int_equal(unit_write(path, "abc", 3, NULL), INGLE_OK);
    assert_int_equal(file_slurp(path, 2, &text, &n, &err), INGLE_LIMIT);
    assert_non_null(strstr(err.msg, "has 3 bytes, the limit is 2"));
    snprintf(other, sizeof other, "%s/none/f", dir);
    assert_int_equal(unit_write(other, "abc", 3, &err), INGLE_NOTFOUND);
    assert_non_null(strstr(err.msg, "/none: no such directory"));
    /* A directory in the way: nothing is left behind (drop_dir checks). */
    snprintf(other, sizeof other, "%s/d", dir);
    assert_int_equal(mkdir(other, 0700), 0);
    assert_int_equal(unit_write(other, "abc", 3, &err), INGLE_IO);
    assert_non_null(strstr(err.msg, "is a directory"));
    rmdir(other);
    /* A device or a pipe is never replaced. */
    struct file_new f;
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_int_equal(unit_write(other, "abc", 3, &err), INGLE_IO);
    assert_non_null(strstr(err.msg, "no regular file"));
    assert_int_equal(file_new_again(&f, other, &err), INGLE_IO);
    unlink(other);
}

/* A host's file size limit is an error, not its end; its signal stays as it was. */
static void a_limit_on_files_is_an_error(void **state)
{
    (void)state;
    static char large[100000];
    struct rlimit before;
    struct err err;
    sigset_t pending;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){50000, before.rlim_max}), 0);
    const ingle_status s = unit_write(path, large, sizeof large, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(s, INGLE_IO);
    assert_non_null(strstr(err.msg, "File too large"));
    assert_int_equal(sigpending(&pending), 0);
    assert_int_equal(sigismember(&pending, SIGXFSZ), 0);
    assert_int_equal(unit_write(path, large, sizeof large, &err), INGLE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(an_empty_file_is_a_file),
        cmocka_unit_test(refusals_name_the_file),
        cmocka_unit_test(a_limit_on_files_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
