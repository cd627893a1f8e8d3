/* SPDX-License-Identifier: Apache-2.0 */
/* paged - keys and values beyond memory: a session whose pages are on disk has the bits of one
 * whose pages are in memory, in prompts, answers, batches, drafts that are verified, forks, rewinds
 * and restores. */
#define _DEFAULT_SOURCE
#include "golden/golden.h"

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

static const struct {
    const char *path, *golden, *kv; /* kv NULL: f16 */
    int64_t n;       /* tokens of the prompt */
    uint64_t memory;
    bool sparse, alone; /* a sparse prompt; one session, and memory for no more */
} models[] = {
    /* shared keys */
    {"tests/data/goldens/gemma4_ple_e2b/model-F32.gguf",
     "tests/data/goldens/gemma4_ple_e2b/golden.safetensors", NULL, 2900, 340 << 10, false, false},
    {"tests/data/goldens/gemma4_realhd/model-F32.gguf",
     "tests/data/goldens/gemma4_realhd/golden.safetensors", "q8r+rot", 2000, 2350 << 10, true,
     true},
    {"tests/data/goldens/gemma4_moe/model-F32.gguf",
     "tests/data/goldens/gemma4_moe/golden.safetensors", "n4r", 1900, 150 << 10, false, true},
};
enum {
    N_MODELS = sizeof models / sizeof *models,
    STEP = UNIT_TSAN || UNIT_ASAN ? N_MODELS : 1,
    CHUNK = 96,
    N_CTX = 4800
};

static void prompt(int model, int32_t out[N_CTX])
{
    int64_t n;
    int32_t *ids = golden_ints(models[model].golden, "input_ids", &n);
    for (int64_t i = 0; i < N_CTX; i++)
        out[i] = ids[(i * 7 + i / n) % n];
    mem_free(ids);
}

/* What was computed, in the order of the script. */
struct record {
    float *at;
    size_t n, cap;
    int64_t width;
};

static void note(struct record *r, const float *logits, int64_t n)
{
    assert_non_null(logits);
    assert_true(mem_grow(&r->at, &r->cap, r->n + (size_t)(n * r->width), sizeof *r->at));
    memcpy(r->at + r->n, logits, (size_t)(n * r->width) * sizeof *r->at);
    r->n += (size_t)(n * r->width);
}

static void finish(struct session *s, struct record *r)
{
    struct err e;
    const float *logits;
    GOLDEN_OK(session_finish(s, &logits, NULL, &e));
    note(r, logits, 1);
}

/* Steps of all of them until nothing waits. */
static void finish_all(struct golden_model *g, struct session *const *s, int n, struct record *r)
{
    struct err e;
    struct session_work w[3];
    for (bool more = true; more;) {
        int k = 0;
        more = false;
        for (int i = 0; i < n; i++)
            if (session_pending(s[i]))
                w[k++] =
                    (struct session_work){.s = s[i], .want = FAMILY_LOGITS_LAST, .max_tokens = 40};
        if (!k)
            break;
        GOLDEN_OK(session_step(g->runner, w, k, NULL, &e));
        for (int i = 0; i < k; i++) {
            assert_true(w[i].n_done > 0);
            if (w[i].n_logits)
                note(r, w[i].logits, 1);
            more = true;
        }
    }
}

static void play(struct golden_model *g, int model, const int32_t *tokens, struct record *r)
{
    struct err e;
    struct session *a, *b, *c;
    const int64_t n = models[model].n;
    r->width = g->info.n_vocab;
    GOLDEN_OK(session_create(&a, g->runner, &e));
    GOLDEN_OK(session_create(&b, g->runner, &e));
    GOLDEN_OK(session_create(&c, g->runner, &e));
    if (models[model].sparse)
        golden_set_sparse(a, kv_sparse_of(3, 256));
    GOLDEN_OK(session_sync(a, tokens, n, NULL, &e));
    finish(a, r);
    for (int i = 0; i < 6; i++) { /* an answer */
        GOLDEN_OK(session_append(a, tokens + n + i, 1, &e));
        finish(a, r);
    }
    GOLDEN_OK(session_append(a, tokens + n + 6, 5, &e)); /* a draft, of which two tokens stay */
    struct session_work w = {.s = a, .want = FAMILY_LOGITS_ALL, .guessed = true};
    GOLDEN_OK(session_step(g->runner, &w, 1, NULL, &e));
    note(r, w.logits, w.n_logits);
    session_keep(a, n + 8);
    if (!models[model].alone)
        GOLDEN_OK(session_fork(b, a, &e));
    /* into a page that is on disk */
    GOLDEN_OK(session_rewind(a, models[model].alone ? 1200 : 2000, &e));
    GOLDEN_OK(session_append(a, tokens + 100, 200, &e));
    if (!models[model].alone) {
        GOLDEN_OK(session_append(b, tokens + 300, 100, &e));
        GOLDEN_OK(session_append(c, tokens + 17, 120, &e));
    }
    struct session *const all[] = {a, b, c};
    finish_all(g, all, 3, r);
    session_free(c);
    session_free(a);
    if (!models[model].alone) {
        GOLDEN_OK(session_append(b, tokens, 30, &e));
        finish(b, r);
    }
    session_free(b);
}

static void compare(const struct record *a, const struct record *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i += (size_t)a->width)
        if (memcmp(a->at + i, b->at + i, (size_t)a->width * sizeof(float)) != 0)
            fail_msg("row %zu differs", i / (size_t)a->width);
}

static void empty(const char *dir)
{
    char name[512];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(name, sizeof name, "%s/%s", dir, e->d_name);
            (void)unlink(name);
        }
    if (d)
        closedir(d);
}

static struct golden_options options(int model)
{
    return (struct golden_options){.codec = KERN_KV_F16,
                                   .kv = models[model].kv,
                                   .n_ctx = N_CTX,
                                   .max_rows = CHUNK,
                                   .restore_every = 512,
                                   .media_rows = -1, /* pages for them would be most of kv_bytes */
                                   .tree_bytes = 256 << 10};
}

static void same_bits(void **state)
{
    (void)state;
    char dir[] = "/tmp/ingle-paged-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (int m = 0; m < N_MODELS; m += STEP) {
        struct golden_model g;
        struct record here = {0}, away = {0};
        int32_t tokens[N_CTX];
        struct kv_disk_counts disk;
        struct golden_options o = options(m);
        prompt(m, tokens);
        golden_open(&g, models[m].path, &o);
        play(&g, m, tokens, &here);
        golden_close(&g);
        o.disk = dir;
        o.kv_bytes = models[m].memory;
        golden_open(&g, models[m].path, &o);
        play(&g, m, tokens, &away);
        session_runner_disk_count(g.runner, &disk);
        assert_true(disk.written_bytes > 0 && disk.read_bytes > 0 && disk.rate > 0);
        assert_int_equal(disk.failed, 0);
        golden_close(&g);
        compare(&here, &away);
        mem_free(here.at);
        mem_free(away.at);
    }
    empty(dir);
    assert_int_equal(rmdir(dir), 0);
}

/* What one run saved in a store and in a file, another one takes up again, with pages on disk or
 * without. */
static void restored(void **state)
{
    (void)state;
    enum { M = 0, LENGTH = 2400 };
    char dir[] = "/tmp/ingle-paged-XXXXXX", store[64], pages[64], path[64];
    float *want = NULL;
    int32_t tokens[N_CTX];
    assert_non_null(mkdtemp(dir));
    snprintf(store, sizeof store, "%s/store", dir);
    snprintf(pages, sizeof pages, "%s/pages", dir);
    snprintf(path, sizeof path, "%s/session", dir);
    prompt(M, tokens);
    /* 0: saves all; then restores, without pages on disk and with */
    for (int i = 0; i < 4; i += 1 + (!i && (UNIT_ASAN || UNIT_TSAN))) {
        struct golden_model g;
        struct session *s;
        struct err e;
        struct record r = {0};
        struct session_reuse reuse;
        struct kv_disk_counts disk;
        struct golden_options o = options(M);
        o.store = store;
        o.tree_bytes = i == 3 ? 0 : 8 << 20;
        o.disk = i == 1 ? NULL : pages;
        o.kv_bytes = 220 << 10;
        golden_open(&g, models[M].path, &o);
        r.width = g.info.n_vocab;
        GOLDEN_OK(session_create(&s, g.runner, &e));
        if (i == 3) {
            GOLDEN_OK(session_load(s, path, &e));
            assert_int_equal(session_length(s), LENGTH);
            GOLDEN_OK(session_append(s, tokens + LENGTH, 40, &e));
        } else {
            GOLDEN_OK(session_sync(s, tokens, i ? LENGTH + 40 : LENGTH, &reuse, &e));
            assert_int_equal(i ? reuse.from_disk : 0, i ? LENGTH : 0);
        }
        if (!i) {
            finish(s, &r);
            r.n = 0;
            GOLDEN_OK(session_save(s, path, &e));
            GOLDEN_OK(session_append(s, tokens + LENGTH, 40, &e));
        }
        finish(s, &r);
        if (want)
            assert_memory_equal(r.at, want, (size_t)r.width * sizeof *want);
        else
            want = r.at;
        if (i)
            mem_free(r.at);
        session_runner_disk_count(g.runner, &disk);
        assert_true(i == 1 || disk.pages > 0);
        session_free(s);
        golden_close(&g);
    }
    mem_free(want);
    empty(store);
    assert_int_equal(rmdir(store), 0);
    assert_int_equal(rmdir(pages), 0);
    empty(dir);
    assert_int_equal(rmdir(dir), 0);
}

/* ---- what can go wrong ---- */

enum { LONG = 1900 };

struct trouble {
    char dir[32];
    struct golden_model g;
    struct session *s;
    int32_t tokens[N_CTX];
    float *want; /* f32 [n_vocab]: the last row's logits */
};

static struct golden_options small(const char *dir)
{
    struct golden_options o = options(0);
    o.tree_bytes = 0;
    o.disk = dir;
    o.kv_bytes = 176 << 10;
    return o;
}

static void begin(struct trouble *t)
{
    struct err e;
    snprintf(t->dir, sizeof t->dir, "/tmp/ingle-paged-XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    const struct golden_options o = small(t->dir);
    prompt(0, t->tokens);
    golden_open(&t->g, models[0].path, &o);
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
    golden_open(&t.g, models[0].path, &o);
    GOLDEN_OK(session_create(&t.s, t.g.runner, &e));
    assert_int_equal(compute(&t, &e), INGLE_LIMIT);
    assert_non_null(strstr(e.msg, "largest size"));
    session_free(t.s);
    golden_close(&t.g);

    o = small(t.dir);
    golden_open(&t.g, models[0].path, &o);
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
    golden_open(&t.g, models[0].path, &o);
    assert_int_equal(access(dead, F_OK), -1);
    assert_int_equal(access(alive, F_OK), 0);
    assert_int_equal(access(file, F_OK), 0);
    struct golden_model other; /* they share a directory */
    golden_open(&other, models[0].path, &o);
    golden_close(&other);
    golden_close(&t.g);
    close(fd);
    empty(t.dir);
    assert_int_equal(rmdir(t.dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits), cmocka_unit_test(restored),
                                       cmocka_unit_test(damaged), cmocka_unit_test(full),
                                       cmocka_unit_test(directories)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
