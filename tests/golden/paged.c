/* SPDX-License-Identifier: Apache-2.0 */
/* paged - keys and values beyond memory: what can go wrong with their file.  combinations.c
 * compares the bits with those of pages in memory. */
#define _DEFAULT_SOURCE
#include "golden/golden.h"
#include "unit/folder.h"

#include "base/mem.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Its keys are shared. */
static const char model[] = "tests/data/goldens/gemma4_ple_e2b/model-F32.gguf";
enum { N_CTX = 4800, LONG = 1900 };

struct trouble {
    char dir[32];
    struct golden_model g;
    struct session *s;
    int32_t tokens[N_CTX];
    float *want; /* f32 [n_vocab]: the last row's logits */
};

static struct golden_options small(const char *dir)
{
    return (struct golden_options){.codec = KERN_KV_F16,
                                   .n_ctx = N_CTX,
                                   .max_rows = 96,
                                   .restore_every = 512,
                                   .media_rows = -1, /* pages for them would be most of kv_bytes */
                                   .disk = dir,
                                   .kv_bytes = 176 << 10};
}

static void begin(struct trouble *t)
{
    struct err e;
    snprintf(t->dir, sizeof t->dir, "/tmp/ingle-paged-XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    const struct golden_options o = small(t->dir);
    int64_t n;
    int32_t *ids = golden_ints("tests/data/goldens/gemma4_ple_e2b/golden.safetensors", "input_ids",
                               &n);
    for (int64_t i = 0; i < N_CTX; i++)
        t->tokens[i] = ids[(i * 7 + i / n) % n];
    mem_free(ids);
    golden_open(&t->g, model, &o);
    GOLDEN_OK(session_create(&t->s, t->g.runner, &e));
    t->want = NULL;
}

static ingle_status compute(struct trouble *t, struct err *err)
{
    const float *logits;
    struct err e;
    GOLDEN_OK(session_sync(t->s, t->tokens, LONG, NULL, &e));
    const ingle_status st = session_finish(t->s, &logits, NULL, err);
    if (st)
        return st;
    const size_t n = (size_t)t->g.info.n_vocab * sizeof *logits;
    if (t->want)
        assert_memory_equal(logits, t->want, n);
    else
        memcpy(t->want = mem_alloc(n), logits, n);
    return st;
}

static void end(struct trouble *t)
{
    session_free(t->s);
    golden_close(&t->g);
    mem_free(t->want);
    assert_int_equal(rmdir(t->dir), 0); /* the file went with the runner */
}

/* The runner's file. */
static void file_of(const struct trouble *t, char out[512])
{
    DIR *d = opendir(t->dir);
    out[0] = 0;
    for (const struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".pages"))
            snprintf(out, 512, "%s/%s", t->dir, e->d_name);
    closedir(d);
    assert_true(out[0]);
}

/* A block that is not what was written: the request ends, the next one computes anew. */
static void damaged(void **state)
{
    (void)state;
    static const char zeros[4096] = {0};
    struct trouble t;
    struct err e;
    char path[512];
    const float *logits;
    begin(&t);
    assert_int_equal(compute(&t, &e), INGLE_OK);
    file_of(&t, path);
    const int fd = open(path, O_RDWR);
    for (off_t at = 0; at < 1 << 20; at += (off_t)sizeof zeros)
        assert_int_equal(pwrite(fd, zeros, sizeof zeros, at), sizeof zeros);
    close(fd);
    /* what is in memory already is not read again */
    for (ingle_status status = INGLE_OK; !status;) {
        GOLDEN_OK(session_append(t.s, t.tokens, 1, &e));
        status = session_finish(t.s, &logits, NULL, &e);
        assert_true(!status || status == INGLE_IO);
    }
    assert_non_null(strstr(e.msg, path));
    assert_non_null(strstr(e.msg, "page "));
    assert_non_null(strstr(e.msg, "checksum"));
    assert_int_equal(session_length(t.s), 0);
    assert_int_equal(compute(&t, &e), INGLE_OK);
    end(&t);
}

/* A file of its largest size, and one that cannot be written. */
static void full(void **state)
{
    (void)state;
    struct trouble t;
    struct err e;
    struct kv_disk_counts disk;
    struct rlimit was, none;
    begin(&t);
    session_free(t.s);
    golden_close(&t.g);
    struct golden_options o = small(t.dir);
    o.disk_bytes = 16 << 10;
    golden_open(&t.g, model, &o);
    GOLDEN_OK(session_create(&t.s, t.g.runner, &e));
    assert_int_equal(compute(&t, &e), INGLE_LIMIT);
    assert_non_null(strstr(e.msg, "largest size"));
    session_free(t.s);
    golden_close(&t.g);

    o = small(t.dir);
    golden_open(&t.g, model, &o);
    GOLDEN_OK(session_create(&t.s, t.g.runner, &e));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    none = was;
    none.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_int_equal(compute(&t, &e), INGLE_LIMIT);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_non_null(strstr(e.msg, "cannot write"));
    session_runner_disk_count(t.g.runner, &disk);
    assert_int_equal(disk.failed, 1);
    assert_true(disk.error[0]);
    GOLDEN_OK(session_sync(t.s, t.tokens, 200, NULL, &e)); /* the runner lives on */
    const float *logits;
    GOLDEN_OK(session_finish(t.s, &logits, NULL, &e));
    end(&t);
}

static ingle_status opens(const char *dir, struct err *e)
{
    return kv_disk_check(dir, e);
}

/* Directories that will not do, and what killed processes leave behind. */
static void directories(void **state)
{
    (void)state;
    struct trouble t;
    struct err e;
    char file[64], dead[64], alive[64], below[96];
    snprintf(t.dir, sizeof t.dir, "/tmp/ingle-paged-XXXXXX");
    assert_non_null(mkdtemp(t.dir));
    snprintf(file, sizeof file, "%s/file", t.dir);
    snprintf(dead, sizeof dead, "%s/ingle-kv-1-7.pages", t.dir);
    snprintf(alive, sizeof alive, "%s/ingle-kv-2-7.pages", t.dir);
    snprintf(below, sizeof below, "%s/below", file);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(opens(file, &e), INGLE_IO); /* no directory */
    assert_non_null(strstr(e.msg, file));
    assert_int_equal(opens(below, &e), INGLE_IO);
    assert_int_equal(chmod(t.dir, 0777), 0); /* others may write there */
    assert_int_equal(opens(t.dir, &e), INGLE_ARG);
    assert_int_equal(chmod(t.dir, 0500), 0);
    if (geteuid() != 0)
        assert_int_equal(opens(t.dir, &e), INGLE_IO);
    assert_int_equal(chmod(t.dir, 0700), 0);
    close(open(dead, O_CREAT | O_WRONLY, 0600));
    const int fd = open(alive, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    const struct golden_options o = small(t.dir);
    golden_open(&t.g, model, &o);
    assert_int_equal(access(dead, F_OK), -1);
    assert_int_equal(access(alive, F_OK), 0);
    assert_int_equal(access(file, F_OK), 0);
    struct golden_model other; /* they share a directory */
    golden_open(&other, model, &o);
    golden_close(&other);
    golden_close(&t.g);
    close(fd);
    remove_dir(t.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(damaged), cmocka_unit_test(full),
                                       cmocka_unit_test(directories)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
