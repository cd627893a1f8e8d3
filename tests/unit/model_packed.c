/* SPDX-License-Identifier: Apache-2.0 */
/* Files of packed weights: the same bits, and whatever happens to the files, an answer. */
#define _GNU_SOURCE
#include "unit/door.h"

#include "base/cpu.h"
#include "base/file.h"
#include "base/output.h"
#include "base/mem.h"
#include "model/packed.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char nano[] = "assets/nano-gemma4-Q8_0.gguf";
static const char moe[] = "tests/data/goldens/gemma4_moe/model-F32.gguf";

bool __real_cpu_topology_read(struct cpu_topology *t);
bool __wrap_cpu_topology_read(struct cpu_topology *t);

/* The machine has so many memory nodes, with two processors each; 0: what it has. */
static int made_up_nodes;

bool __wrap_cpu_topology_read(struct cpu_topology *t)
{
    if (!made_up_nodes)
        return __real_cpu_topology_read(t);
    *t = (struct cpu_topology){.n_packages = 1, .n_nodes = made_up_nodes};
    t->n_cpus = t->n_cores = 2 * made_up_nodes;
    t->cpu = mem_calloc((size_t)t->n_cpus, sizeof *t->cpu);
    for (int i = 0; i < t->n_cpus; i++) /* the first threads are of different nodes */
        t->cpu[i] = (struct cpu_place){4000 + i, 4000 + i, 0, i % made_up_nodes, false, -1};
    for (int k = 0; k < made_up_nodes; k++)
        t->node_id[k] = 10 + k;
    return t->cpu;
}

static char dir[64], said[4096];

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    (void)arg;
    (void)subject;
    const size_t n = strlen(said);
    if (level <= INGLE_REPORT_NOTE && strcmp(kind, "memory") != 0 && strcmp(kind, "kernel") != 0)
        snprintf(said + n, sizeof said - n, "%s\n", text);
}

struct start {
    bool write, lock;
    uint64_t bytes;
    const char *dir; /* NULL: the test's; "": none */
    ingle_progress_fn *progress;
};

/* Starts an engine, computes, ends it: a hash of the logits of a few tokens. */
static uint64_t start(const char *path, const struct start *how, struct ingle_engine_info *info)
{
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_session *s;
    int32_t tokens[24];
    const float *logits;
    struct ingle_engine_options o = {.pack_cache = how->dir ? how->dir : dir,
                                     .pack_write = how->write,
                                     .pack_bytes = how->bytes,
                                     .lock = how->lock,
                                     .n_ctx = 512,
                                     .threads = made_up_nodes > 2 ? made_up_nodes : 2,
                                     .callbacks = {.report = hear, .progress = how->progress}};
    if (!*o.pack_cache)
        o.pack_cache = NULL;
    said[0] = 0;
    must(ingle_model_open(&m, path, NULL, &error));
    must(ingle_engine_open(&e, m, &o, &error));
    ingle_engine_info(e, info);
    for (int i = 0; i < 24; i++)
        tokens[i] = (int32_t)((i * 7919 + 5) % info->n_vocab);
    must(ingle_session_open(&s, e, &error));
    must(ingle_session_sync(s, tokens, 24, NULL, &error));
    must(ingle_session_finish(s, &logits, &error));
    const struct packed_sum sum =
        model_packed_sum_of(logits, (size_t)info->n_vocab * sizeof *logits);
    ingle_session_close(s);
    ingle_engine_close(e);
    ingle_model_close(m);
    return sum.lo;
}

static const struct start plain = {.dir = ""}, use = {0}, write_it = {.write = true};

static uint64_t plain_hash(const char *path)
{
    struct ingle_engine_info info;
    const uint64_t h = start(path, &plain, &info);
    assert_false(info.mapped || info.packed);
    return h;
}

/* The only file in the directory that counts; "" when there is none. */
static int files(char path[512])
{
    int n = 0;
    DIR *d = opendir(dir);
    path[0] = 0;
    for (const struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(path, 512, "%s/%.200s", dir, e->d_name);
            n++;
        }
    if (d)
        closedir(d);
    return n;
}

static int setup(void **state)
{
    (void)state;
    made_up_nodes = 0;
    strcpy(dir, "/tmp/ingle-packed-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char path[512];
    while (files(path))
        if (unlink(path) != 0)
            return -1;
    return rmdir(dir);
}

static void written_and_mapped_starts_give_the_same_bits(void **state)
{
    static const char *const models[] = {
        nano,
        moe,
        "tests/data/goldens/gemma4_moe",
        "tests/data/goldens/gemma4_ple_e2b/model-F32.gguf",
        "tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf",
        "tests/data/goldens/deepseek_v4_published",
    };
    (void)state;
    struct ingle_engine_info info;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const uint64_t cold = plain_hash(models[i]);
        assert_int_equal(start(models[i], &use, &info), cold); /* none is there, none is written */
        assert_false(info.mapped || info.packed);
        assert_int_equal(start(models[i], &write_it, &info), cold);
        assert_true(info.packed && !info.mapped);
        assert_non_null(strstr(said, "wrote"));
        for (int again = 0; again < 2; again++) {
            assert_int_equal(start(models[i], again ? &write_it : &use, &info), cold);
            assert_true(info.mapped && !info.packed);
            assert_true(info.huge_bytes == 0 && info.matrix_bytes > 0);
        }
    }
    char path[512];
    assert_int_equal(files(path), sizeof models / sizeof *models);
}

/* Experts that are divided among nodes in memory are written as ever. */
static void nodes_change_no_file(void **state)
{
    static const char *const models[] = {
        moe, "tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf"};
    (void)state;
    struct ingle_engine_info info;
    char path[512];
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char *plain_file, *file;
        size_t n_plain, n;
        const uint64_t cold = start(models[i], &write_it, &info);
        assert_int_equal(files(path), 1);
        assert_int_equal(file_slurp(path, 64 << 20, &plain_file, &n_plain, NULL), INGLE_OK);
        for (made_up_nodes = 2; made_up_nodes <= 3; made_up_nodes++) {
            assert_int_equal(unlink(path), 0);
            assert_int_equal(start(models[i], &write_it, &info), cold);
            assert_true(info.packed);
            assert_non_null(strstr(said, "each has the rows of the weights"));
            assert_int_equal(strstr(said, "too few rows") != NULL, i == 0);
            assert_int_equal(file_slurp(path, 64 << 20, &file, &n, NULL), INGLE_OK);
            assert_int_equal(n, n_plain);
            assert_memory_equal(file, plain_file, n);
            mem_free(file);
            assert_int_equal(start(models[i], &use, &info), cold);
            assert_true(info.mapped);
        }
        made_up_nodes = 0;
        mem_free(plain_file);
        assert_int_equal(unlink(path), 0);
    }
}

static void built_in_weights_have_no_file(void **state)
{
    (void)state;
    char path[512];
    struct ingle_engine_info info;
    start(NULL, &use, &info);
    assert_string_equal(said, "");
    start(NULL, &write_it, &info);
    assert_non_null(strstr(said, "lie in no file"));
    assert_int_equal(files(path), 0);
}

static void flip(const char *path, uint64_t at)
{
    uint8_t b;
    const int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &b, 1, (off_t)at), 1);
    b ^= 0x40;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)at), 1);
    close(fd);
}

static void any_flipped_bit_of_header_or_table_is_found(void **state)
{
    (void)state;
    struct ingle_engine_info info;
    struct packed_file f;
    struct err err;
    char path[512];
    start(moe, &write_it, &info);
    assert_int_equal(files(path), 1);
    const char *name = strrchr(path, '/') + 1;
    const int d = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(model_packed_open(&f, d, name, &err), INGLE_OK);
    const uint64_t end = sizeof f.head + f.head.n_matrices * sizeof *f.matrix +
                         f.head.n_groups * sizeof *f.group + f.head.n_sources * sizeof *f.source +
                         f.head.n_blocks * sizeof *f.block + f.head.n_extents * sizeof *f.extent;
    assert_true(f.head.n_groups > 0 && f.head.n_extents > 0);
    model_packed_close(&f);
    for (uint64_t at = 0; at < end; at++) {
        flip(path, at);
        const ingle_status s = model_packed_open(&f, d, name, &err);
        assert_true(s == INGLE_FORMAT || s == INGLE_UNSUP);
        flip(path, at);
    }
    assert_int_equal(model_packed_open(&f, d, name, &err), INGLE_OK);
    assert_int_equal(model_packed_verify(&f, name, &err), INGLE_OK);
    const uint64_t places[] = {f.head.dense_bytes / 2, f.head.dense_bytes, f.head.image_bytes - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        flip(path, f.head.image_at + places[i]);
        assert_int_equal(model_packed_verify(&f, name, &err), INGLE_FORMAT);
        flip(path, f.head.image_at + places[i]);
    }
    model_packed_close(&f);
    close(d);
}

/* Bad files are reported, deleted and written again. */
static void damaged_files_cost_a_start(void **state)
{
    (void)state;
    const uint64_t cold = plain_hash(moe);
    struct ingle_engine_info info;
    struct stat st;
    char path[512];
    start(moe, &write_it, &info);
    for (int how = 0; how < 5; how++) {
        assert_int_equal(files(path), 1);
        assert_int_equal(stat(path, &st), 0);
        if (how == 0)
            flip(path, 100);
        else if (how == 1)
            assert_int_equal(truncate(path, st.st_size - 1), 0);
        else if (how == 2)
            assert_int_equal(truncate(path, st.st_size + 4096), 0);
        else if (how == 3)
            assert_int_equal(truncate(path, 20), 0);
        else
            assert_int_equal(truncate(path, 0), 0);
        assert_int_equal(start(moe, &use, &info), cold);
        assert_false(info.mapped);
        assert_non_null(strstr(said, "damaged"));
        assert_int_equal(files(path), 0);
        assert_int_equal(start(moe, &write_it, &info), cold);
        assert_true(info.packed);
    }
    assert_int_equal(files(path), 1);
    assert_int_equal(chmod(path, 0622), 0);
    /* others may write to it: not used, not deleted */
    assert_int_equal(start(moe, &use, &info), cold);
    assert_false(info.mapped);
    assert_non_null(strstr(said, "by others"));
    assert_int_equal(files(path), 1);
}

/* A file of other sources is not theirs, even under their name. */
static void each_file_belongs_to_its_model(void **state)
{
    (void)state;
    char copy[128], path[512], other[512];
    struct ingle_engine_info info;
    char *bytes;
    size_t n;
    assert_int_equal(file_slurp(moe, 64 << 20, &bytes, &n, NULL), INGLE_OK);
    snprintf(copy, sizeof copy, "%s.gguf", dir);
    assert_int_equal(unit_write(copy, bytes, n, NULL), INGLE_OK);
    start(copy, &write_it, &info);
    assert_int_equal(files(other), 1);
    bytes[n - 1] ^= 1; /* the same size; another file, another time */
    assert_int_equal(unit_write(copy, bytes, n, NULL), INGLE_OK);
    start(copy, &use, &info);
    assert_false(info.mapped);
    start(copy, &write_it, &info); /* the file of what was at this path is outdated */
    assert_true(info.packed);
    assert_non_null(strstr(said, "outdated"));
    assert_int_equal(files(path), 1);
    assert_string_not_equal(path, other);
    const uint64_t cold = plain_hash(copy);
    assert_int_equal(start(copy, &use, &info), cold);
    assert_true(info.mapped);

    /* Under the name of another one. */
    files(path);
    start(moe, &write_it, &info);
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && strcmp(e->d_name, strrchr(path, '/') + 1) != 0)
            snprintf(other, sizeof other, "%s/%.200s", dir, e->d_name);
    closedir(d);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(start(moe, &use, &info), plain_hash(moe));
    start(moe, &use, &info);
    assert_false(info.mapped);
    assert_int_equal(files(path), 0); /* damaged: deleted */
    unlink(copy);
    mem_free(bytes);
}

static void what_does_not_fit_is_not_written(void **state)
{
    (void)state;
    char path[512], below[640];
    struct ingle_engine_info info;
    const struct start small = {.write = true, .bytes = 4096};
    const uint64_t cold = plain_hash(moe);
    assert_int_equal(start(moe, &small, &info), cold);
    assert_false(info.packed);
    assert_non_null(strstr(said, "do not fit"));
    assert_int_equal(files(path), 0);

    start(nano, &write_it, &info);
    assert_int_equal(files(path), 1);
    const struct start one = {.write = true, .bytes = info.matrix_bytes + 65536};
    assert_int_equal(start(moe, &one, &info), cold); /* the older one has to go */
    assert_true(info.packed);
    assert_non_null(strstr(said, "was deleted"));
    assert_int_equal(files(path), 1);

    snprintf(below, sizeof below, "%s/below", path); /* a directory below a file */
    const struct start nowhere = {.write = true, .dir = below};
    assert_int_equal(start(moe, &nowhere, &info), cold);
    assert_false(info.packed);
    assert_non_null(strstr(said, "cannot make the directory"));
}

/* A file that a clock far ahead has dated is no younger than the others. */
static void the_oldest_one_goes_first(void **state)
{
    (void)state;
    char path[512], other[600], *bytes;
    size_t n;
    struct stat st;
    struct ingle_engine_info info;
    start(nano, &write_it, &info);
    assert_int_equal(files(path), 1);
    assert_int_equal(file_slurp(path, 64 << 20, &bytes, &n, NULL), INGLE_OK);
    snprintf(other, sizeof other, "%s/%032x.packed", dir, 1);
    assert_int_equal(unit_write(other, bytes, n, NULL), INGLE_OK);
    mem_free(bytes);
    const struct timespec ahead = {.tv_sec = time(NULL) + 1000000};
    assert_int_equal(utimensat(AT_FDCWD, other, (struct timespec[2]){ahead, ahead}, 0), 0);
    assert_int_equal(stat(path, &st), 0);
    const struct start two = {.write = true, .bytes = 2 * (uint64_t)st.st_blocks * 512};
    start(moe, &two, &info);
    assert_true(info.packed);
    assert_int_not_equal(access(other, F_OK), 0);
    assert_int_equal(access(path, F_OK), 0);
}

/* As a full disk would: the child may write no byte of a file. */
static void a_full_disk_is_a_report(void **state)
{
    (void)state;
    char path[512];
    const pid_t child = fork();
    if (child == 0) {
        struct ingle_engine_info info;
        const struct rlimit limit = {200000, 200000};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        start(moe, &write_it, &info);
        _exit(info.packed || !strstr(said, "are not written") ? 1 : 0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_int_equal(files(path), 0);
}

static int die(void *arg, const char *job, double done, double total)
{
    (void)arg;
    (void)done;
    (void)total;
    if (strcmp(job, "write") == 0)
        raise(SIGKILL);
    return 0;
}

static void a_killed_writer_leaves_nothing_that_is_used(void **state)
{
    (void)state;
    char path[512];
    struct ingle_engine_info info;
    const struct start dying = {.write = true, .progress = die};
    const uint64_t cold = plain_hash(nano);
    const pid_t child = fork();
    if (child == 0) {
        start(nano, &dying, &info);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_int_equal(files(path), 1);
    assert_non_null(strstr(path, ".tmp"));
    assert_int_equal(start(nano, &use, &info), cold);
    assert_false(info.mapped);
    assert_int_equal(start(nano, &write_it, &info), cold); /* takes the place over */
    assert_true(info.packed);
    assert_int_equal(files(path), 1);
    assert_null(strstr(path, ".tmp"));
    assert_int_equal(start(nano, &use, &info), cold);
    assert_true(info.mapped);
}

static void one_process_writes(void **state)
{
    (void)state;
    enum { N = 6 };
    char path[512], tmp[600];
    struct ingle_engine_info info;
    const uint64_t cold = plain_hash(moe);
    pid_t child[N];
    for (int i = 0; i < N; i++)
        if ((child[i] = fork()) == 0)
            _exit(start(moe, &write_it, &info) == cold ? 0 : 1);
    for (int i = 0; i < N; i++) {
        int how;
        assert_int_equal(waitpid(child[i], &how, 0), child[i]);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    }
    assert_int_equal(files(path), 1);
    assert_null(strstr(path, ".tmp"));
    assert_int_equal(start(moe, &use, &info), cold);
    assert_true(info.mapped);

    assert_int_equal(unlink(path), 0);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    const int fd = open(tmp, O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(start(moe, &write_it, &info), cold);
    assert_false(info.packed);
    assert_non_null(strstr(said, "another process"));
    close(fd);
    assert_int_equal(start(moe, &write_it, &info), cold);
    assert_true(info.packed);
}

static void weights_are_locked_or_it_is_said(void **state)
{
    (void)state;
    const pid_t child = fork();
    if (child == 0) { /* limits cannot be raised again */
        struct ingle_engine_info info;
        const struct start locked = {.write = true, .lock = true};
        const struct rlimit none = {4096, 4096};
        if (setrlimit(RLIMIT_MEMLOCK, &none) != 0)
            _exit(2);
        for (int mapped = 0; mapped < 2; mapped++) {
            start(nano, &locked, &info);
            /* root may lock whatever the limit says */
            if (info.mapped != (mapped == 1) ||
                (!info.locked && !strstr(said, "(RLIMIT_MEMLOCK) is 4 KiB")) ||
                (info.locked && geteuid() != 0))
                _exit(1);
        }
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

/* What is in the way is named and stays as it is. */
static void names_in_the_way(void **state)
{
    (void)state;
    char path[512], tmp[600], kept[128];
    struct ingle_engine_info info;
    struct stat st;
    start(moe, &write_it, &info);
    assert_int_equal(files(path), 1);
    assert_int_equal(unlink(path), 0);
    snprintf(kept, sizeof kept, "%s.kept", dir);
    assert_int_equal(unit_write(kept, "precious", 8, NULL), INGLE_OK);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    assert_int_equal(link(kept, tmp), 0);
    start(moe, &write_it, &info);
    assert_false(info.packed);
    assert_non_null(strstr(said, "in the way"));
    assert_int_equal(stat(kept, &st), 0);
    assert_int_equal(st.st_size, 8);
    assert_int_equal(unlink(tmp), 0);
    assert_int_equal(unlink(kept), 0);
    assert_int_equal(chmod(dir, 0777), 0);
    start(moe, &write_it, &info);
    assert_false(info.packed);
    assert_non_null(strstr(said, "others may write"));
    assert_int_equal(chmod(dir, 0700), 0);
}

/* root may delete all files, and leaves those of others and those that others may write to. */
static void files_of_others_stay(void **state)
{
    (void)state;
    char path[512];
    struct ingle_engine_info info;
    if (geteuid() != 0)
        skip();
    const struct start small = {.write = true, .bytes = 3 << 20};
    for (int how = 0; how < 2; how++) {
        start(moe, &write_it, &info);
        assert_int_equal(files(path), 1);
        assert_int_equal(how ? chmod(path, 0660) : chown(path, 1000, 1000), 0);
        start(nano, how ? &write_it : &small, &info);
        assert_null(strstr(said, "was deleted"));
        assert_int_equal(access(path, F_OK), 0);
        while (files(path))
            assert_int_equal(unlink(path), 0);
    }
}

/* The same for people who clear the directory, who are told what is left. */
static void clearing_leaves_files_of_others(void **state)
{
    (void)state;
    char path[512];
    struct ingle_engine_info info;
    int64_t n;
    uint64_t bytes;
    if (geteuid() != 0)
        skip();
    start(moe, &write_it, &info);
    start(nano, &write_it, &info);
    assert_int_equal(files(path), 2);
    assert_int_equal(chown(path, 1000, 1000), 0);
    assert_int_equal(ingle_pack_clear(dir, &n, &bytes, &error), INGLE_UNSUP);
    assert_int_equal(n, 1);
    assert_non_null(strstr(error.text, "1 files of other users are left"));
    assert_int_equal(files(path), 1);
    assert_int_equal(chown(path, 0, 0), 0);
    must(ingle_pack_clear(dir, &n, &bytes, &error));
    assert_int_equal(files(path), 0);
}

/* Sizes of small things are not told as 0.00 GiB. */
static void small_limits_are_readable(void **state)
{
    (void)state;
    struct ingle_engine_info info;
    const struct start tiny = {.write = true, .bytes = 1 << 10};
    start(moe, &tiny, &info);
    assert_false(info.packed);
    assert_non_null(strstr(said, "the 1.00 KiB that it may take"));
    assert_null(strstr(said, "0.00 GiB"));
}

/* The lock of who asks whether a file is in use is waited for. */
static void a_moment_of_a_lock_is_waited_for(void **state)
{
    (void)state;
    char path[512];
    struct ingle_engine_info info;
    start(moe, &write_it, &info);
    files(path);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        const int fd = open(path, O_RDONLY);
        if (flock(fd, LOCK_EX | LOCK_NB) != 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        _exit(0);
    }
    char c;
    assert_int_equal(read(ready[0], &c, 1), 1);
    const int d = open(dir, O_RDONLY | O_DIRECTORY), fd = open(path, O_RDONLY);
    struct packed_file f;
    struct err err;
    const ingle_status s = model_packed_open(&f, d, strrchr(path, '/') + 1, &err);
    assert_true(s == INGLE_OK || s == INGLE_IO); /* a slow machine */
    if (!s) {
        assert_int_not_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
        model_packed_close(&f);
    }
    close(d);
    close(fd);
    close(ready[0]);
    close(ready[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

/* A model changed in place under its old time of modification is another one. */
static void a_change_in_place_is_seen(void **state)
{
    (void)state;
    char copy[128], path[512];
    struct ingle_engine_info info, packed, mapped;
    struct stat st;
    char *bytes;
    size_t n;
    assert_int_equal(file_slurp(moe, 64 << 20, &bytes, &n, NULL), INGLE_OK);
    snprintf(copy, sizeof copy, "%s.gguf", dir);
    assert_int_equal(unit_write(copy, bytes, n, NULL), INGLE_OK);
    mem_free(bytes);
    const uint64_t cold = start(copy, &plain, &info);
    start(copy, &write_it, &packed);
    assert_int_equal(start(copy, &use, &mapped), cold);
    assert_true(packed.packed && mapped.mapped);
    assert_true(info.identity == packed.identity && packed.identity == mapped.identity);
    assert_int_equal(start(moe, &plain, &packed), cold);
    assert_true(info.identity == packed.identity); /* wherever it lies */
    assert_int_equal(stat(copy, &st), 0);
    flip(copy, n - 3000);
    assert_int_equal(utimensat(AT_FDCWD, copy, (struct timespec[2]){st.st_atim, st.st_mtim}, 0), 0);
    start(copy, &use, &mapped);
    assert_false(mapped.mapped);
    assert_true(info.identity != mapped.identity);
    files(path);
    unlink(copy);
}

/* Rows of a table that is read from the file: one that was cut short ends an answer, not the
 * process. */
static void a_file_cut_short_ends_an_answer(void **state)
{
    (void)state;
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_session *s;
    char copy[128], *bytes;
    size_t n;
    const struct ingle_engine_options o = {.n_ctx = 256, .threads = 2};
    const int32_t tokens[] = {2, 300, 17, 400};
    assert_int_equal(
        file_slurp("tests/data/goldens/gemma4_ple_e2b/model-F32.gguf", 64 << 20, &bytes, &n, NULL),
        INGLE_OK);
    snprintf(copy, sizeof copy, "%s.gguf", dir);
    assert_int_equal(unit_write(copy, bytes, n, NULL), INGLE_OK);
    must(ingle_model_open(&m, copy, NULL, &error));
    must(ingle_engine_open(&e, m, &o, &error));
    must(ingle_session_open(&s, e, &error));
    assert_int_equal(truncate(copy, 4096), 0);
    ingle_status st = ingle_session_sync(s, tokens, 4, NULL, &error);
    const float *logits;
    if (!st)
        st = ingle_session_finish(s, &logits, &error);
    assert_int_equal(st, INGLE_IO);
    assert_non_null(strstr(error.text, copy));
    ingle_session_close(s);
    const int fd = open(copy, O_WRONLY);
    assert_int_equal(pwrite(fd, bytes, n, 0), (ssize_t)n); /* it is whole again */
    close(fd);
    must(ingle_session_open(&s, e, &error));
    must(ingle_session_sync(s, tokens, 4, NULL, &error));
    must(ingle_session_finish(s, &logits, &error));
    ingle_session_close(s);
    ingle_engine_close(e);
    ingle_model_close(m);
    unlink(copy);
    mem_free(bytes);
}

struct listed { int n, ready, temporary, damaged; };

static void look(void *arg, const struct ingle_pack_entry *e)
{
    struct listed *s = arg;
    s->n++;
    assert_in_range(e->age_seconds, 0, 3600);
    s->temporary += e->temporary;
    s->damaged += e->damage != NULL;
    s->ready += !e->temporary && !e->damage && !e->in_use;
}

static void files_are_listed_and_deleted(void **state)
{
    (void)state;
    char path[512], tmp[600];
    struct ingle_engine_info info;
    struct listed s = {0};
    int64_t n;
    uint64_t bytes;
    start(moe, &write_it, &info);
    files(path);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    close(open(tmp, O_RDWR | O_CREAT, 0600));
    const struct timespec ahead = {.tv_sec = time(NULL) + 1000}; /* another machine's clock */
    assert_int_equal(utimensat(AT_FDCWD, tmp, (struct timespec[2]){ahead, ahead}, 0), 0);
    must(ingle_pack_list(dir, true, look, &s, &error));
    assert_true(s.n == 2 && s.ready == 1 && s.temporary == 1 && s.damaged == 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    flip(path, (uint64_t)st.st_size - 5000);
    s = (struct listed){0};
    must(ingle_pack_list(dir, false, look, &s, &error));
    assert_int_equal(s.damaged, 0); /* only reading all of it can tell */
    must(ingle_pack_list(dir, true, look, &s, &error));
    assert_int_equal(s.damaged, 1);
    must(ingle_pack_clear(dir, &n, &bytes, &error));
    assert_true(n == 2 && bytes >= info.matrix_bytes);
    assert_int_equal(files(path), 0);
    char none[512];
    snprintf(none, sizeof none, "%s/none", dir);
    assert_int_equal(ingle_pack_list(none, false, look, &s, &error), INGLE_NOTFOUND);
    assert_int_equal(ingle_pack_clear(none, &n, &bytes, &error), INGLE_NOTFOUND);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(written_and_mapped_starts_give_the_same_bits),
        TEST(nodes_change_no_file),
        TEST(built_in_weights_have_no_file),
        TEST(any_flipped_bit_of_header_or_table_is_found),
        TEST(damaged_files_cost_a_start),
        TEST(each_file_belongs_to_its_model),
        TEST(what_does_not_fit_is_not_written),
        TEST(the_oldest_one_goes_first),
        TEST(a_full_disk_is_a_report),
        TEST(a_killed_writer_leaves_nothing_that_is_used),
        TEST(one_process_writes),
        TEST(weights_are_locked_or_it_is_said),
        TEST(files_are_listed_and_deleted),
        TEST(names_in_the_way),
        TEST(files_of_others_stay),
        TEST(clearing_leaves_files_of_others),
        TEST(small_limits_are_readable),
        TEST(a_moment_of_a_lock_is_waited_for),
        TEST(a_change_in_place_is_seen),
        TEST(a_file_cut_short_ends_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
