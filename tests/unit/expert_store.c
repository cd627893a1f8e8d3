/* SPDX-License-Identifier: Apache-2.0 */
/* Experts beyond memory: the bits of all in memory, whatever the budget, the file, the order of arrival and who leaves;
 * and when a read fails, an error with file, layer and expert, and the next step computes again. */
#define _GNU_SOURCE
#include "unit/unit.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "base/clock.h"
#include "expert/tiered.h"
#include "model/packed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char moe[] = "tests/data/goldens/gemma4_moe/model-F32.gguf";
static const char *const models[] = {moe, "tests/data/goldens/gemma4_moe", "tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf",
                                     "tests/data/nano-v4/nano-v4-MXFP4.gguf"};
enum { N_MODELS = sizeof models / sizeof *models, PROMPT = 24, ANSWER = 6 };

static struct ingle_error error;
static char dir[64], said[4096];

static void must(ingle_status st)
{
    if (st)
        fail_msg("%s", error.text);
}

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject, const char *text)
{
    (void)arg;
    (void)level;
    (void)subject;
    const size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s: %s\n", kind, text);
}

struct world {
    struct ingle_model *m;
    struct ingle_engine *e;
};

static void open_world(struct world *w, const char *path, uint64_t budget, bool packed)
{
    const struct ingle_engine_options o = {.pack_cache = packed ? dir : NULL, .pack_write = packed, .n_ctx = 512, .threads = 2,
                                           .expert_bytes = budget, .callbacks = {.report = hear}};
    said[0] = 0;
    must(ingle_model_open(&w->m, path, NULL, &error));
    must(ingle_engine_open(&w->e, w->m, &o, &error));
}

static void close_world(struct world *w)
{
    ingle_engine_close(w->e);
    ingle_model_close(w->m);
}

/* Instead of the engine's own store: one with hooks. */
static void reopen(struct world *w, const struct expert_store_options *o)
{
    struct err err;
    expert_store_close(w->e->experts);
    w->e->experts = NULL;
    if (expert_store_open(&w->e->experts, w->e->weights, o, &err))
        fail_msg("%s", err.msg);
}

/* Hash of the logits of a prompt and of some tokens behind it; 0 with `error` where a step fails. */
static uint64_t compute(struct world *w)
{
    struct ingle_engine_info info;
    struct ingle_session *s;
    int32_t tokens[PROMPT + ANSWER];
    const float *logits;
    uint64_t h = 1;
    ingle_engine_info(w->e, &info);
    ingle_engine_forget(w->e);
    for (int i = 0; i < PROMPT + ANSWER; i++)
        tokens[i] = (int32_t)((i * 7919 + 5) % info.n_vocab);
    must(ingle_session_open(&s, w->e, &error));
    for (int n = PROMPT; h && n <= PROMPT + ANSWER; n++) {
        if (ingle_session_sync(s, tokens, n, NULL, &error) || ingle_session_finish(s, &logits, &error))
            h = 0;
        else
            h = h * 31 + model_packed_sum_of(logits, (size_t)info.n_vocab * sizeof *logits).lo;
    }
    ingle_session_close(s);
    return h;
}

static uint64_t in_memory(const char *path)
{
    struct world w;
    open_world(&w, path, 0, false);
    struct ingle_experts x;
    assert_false(ingle_engine_experts(w.e, &x));
    const uint64_t h = compute(&w);
    close_world(&w);
    return h;
}

/* The only file in the directory. */
static void the_file(char path[512])
{
    DIR *d = opendir(dir);
    path[0] = 0;
    for (const struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            snprintf(path, 512, "%s/%.200s", dir, e->d_name);
    if (d)
        closedir(d);
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ingle-experts-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char path[512];
    for (the_file(path); *path; the_file(path))
        if (unlink(path) != 0)
            return -1;
    return rmdir(dir);
}

static uint64_t least_of(const char *path, uint64_t *all)
{
    struct world w;
    open_world(&w, path, 0, false);
    const uint64_t least = expert_store_least(w.e->weights);
    *all = model_expert_bytes(w.e->weights);
    close_world(&w);
    return least;
}

static void check_counts(struct world *w, uint64_t budget)
{
    struct ingle_experts x;
    struct ingle_expert_layer l;
    uint64_t choices = 0, hits = 0;
    assert_true(ingle_engine_experts(w->e, &x));
    for (size_t i = 0; ingle_engine_expert_layer(w->e, i, &l); i++) {
        assert_true(l.choices > 0 && l.hits <= l.choices);
        choices += l.choices;
        hits += l.hits;
    }
    assert_true(x.choices == choices && x.hits == hits && x.hits + x.misses == x.choices);
    assert_true(x.memory_bytes <= budget && x.resident <= x.slots && x.memory_bytes < x.expert_bytes);
    assert_true(x.misses > 0 && x.read_bytes > 0 && x.failed_reads == 0);
}

static void any_budget_has_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        uint64_t all;
        const uint64_t least = least_of(models[i], &all), plain = in_memory(models[i]);
        const uint64_t budgets[] = {least, least + (all - least) / 4, all - 1};
        for (int k = 0; k < 6; k++) {
            struct world w;
            const uint64_t budget = budgets[k / 2];
            open_world(&w, models[i], budget, k % 2);
            assert_true(strstr(said, k % 2 ? "experts: " : "experts-unpacked: ") != NULL);
            assert_true(compute(&w) == plain);
            assert_true(compute(&w) == plain);
            check_counts(&w, budget);
            close_world(&w);
        }
    }
}

static void too_small_a_budget_is_refused(void **state)
{
    (void)state;
    uint64_t all;
    const uint64_t least = least_of(moe, &all);
    struct ingle_model *m;
    struct ingle_engine *e;
    const struct ingle_engine_options o = {.n_ctx = 512, .threads = 1, .expert_bytes = least - 1};
    must(ingle_model_open(&m, moe, NULL, &error));
    assert_int_equal(ingle_engine_open(&e, m, &o, &error), INGLE_LIMIT);
    assert_non_null(strstr(error.text, "the least is"));
    ingle_model_close(m);
}

/* Memory for the rest and for some experts: a plan, not a refusal. */
static void auto_leaves_experts_on_disk(void **state)
{
    (void)state;
    uint64_t all;
    (void)least_of(moe, &all);
    struct ingle_model *m;
    struct world w;
    struct ingle_plan plan;
    struct ingle_engine_options o = {.n_ctx = 512, .max_rows = 64, .threads = 2, .cache_bytes = 1 << 16, .callbacks = {.report = hear}};
    must(ingle_model_open(&m, moe, NULL, &error));
    must(ingle_engine_plan(m, &o, &plan, &error));
    assert_true(plan.fits && plan.expert_memory_bytes == plan.expert_bytes && plan.expert_bytes == all);
    o.memory_bytes = plan.total_bytes - all / 2;
    must(ingle_engine_plan(m, &o, &plan, &error));
    assert_true(plan.fits && plan.expert_memory_bytes < plan.expert_bytes && plan.total_bytes <= o.memory_bytes);
    w.m = m;
    must(ingle_engine_open(&w.e, m, &o, &error));
    assert_true(compute(&w) == in_memory(moe));
    check_counts(&w, plan.expert_memory_bytes);
    close_world(&w);
}

/* ---- reads that do what they like ---- */

enum how { FAIR, LATE, FAIL_ONCE, FAIL, END, FLIP, STUCK };

enum { PLACES = 4096 };
struct hook {
    _Atomic uint64_t n, random; /* Sync: atomic */
    _Atomic int how;            /* Sync: atomic */
    _Atomic int hold, held;     /* Sync: atomic.  Reads that do not end until hold is 0; how many there are */
    int most_held;
    _Atomic uint8_t tries[PLACES]; /* Sync: atomic.  Of places in the file */
};

static ssize_t hooked(void *arg, int fd, void *to, size_t n, off_t at)
{
    struct hook *h = arg;
    const uint64_t i = atomic_fetch_add(&h->n, 1), r = (i * 0x9E3779B97F4A7C15u) >> 33;
    const int how = atomic_load(&h->how);
    if (how == LATE) {
        nanosleep(&(struct timespec){.tv_nsec = (long)(r % 300000)}, NULL);
        if (r % 5 == 0) {
            errno = EINTR;
            return -1;
        }
        n = n > 4096 && r % 3 == 0 ? 4096 : n; /* a short read */
    }
    if (how == FAIL || (how == FAIL_ONCE && atomic_fetch_add(&h->tries[(uint64_t)at / 4096 % PLACES], 1) % 2 == 0)) {
        errno = EIO;
        return -1;
    }
    if (how == END)
        return 0;
    while (atomic_load(&h->how) == STUCK)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (atomic_load(&h->hold)) {
        if (atomic_fetch_add(&h->held, 1) < h->most_held)
            while (atomic_load(&h->hold))
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        atomic_fetch_sub(&h->held, 1);
    }
    const ssize_t got = pread(fd, to, n, at);
    if (how == FLIP && got > 0)
        ((uint8_t *)to)[got / 2] ^= 1;
    return got;
}

static void late_reads_and_random_evictions_change_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        uint64_t all;
        const uint64_t least = least_of(models[i], &all), plain = in_memory(models[i]);
        for (uint64_t k = 0; k < 4; k++) {
            struct world w;
            struct hook h = {.how = LATE};
            const uint64_t budget = k % 2 ? least : (least + all) / 2;
            open_world(&w, models[i], budget, true);
            reopen(&w, &(struct expert_store_options){.budget_bytes = budget, .n_used = 2, .read = hooked, .read_arg = &h,
                                                      .shake = k < 2 ? 77 + k : 0, .early = -1});
            assert_true(compute(&w) == plain && compute(&w) == plain);
            check_counts(&w, budget);
            close_world(&w);
        }
    }
}

static void a_failed_read_ends_the_step_and_no_more(void **state)
{
    static const struct { enum how how; const char *text; } cases[] = {
        {FAIL, "Input/output error"}, {END, "the file ends"}, {FLIP, "checksum is wrong"}, {STUCK, "no read has ended"},
    };
    (void)state;
    uint64_t all;
    const uint64_t least = least_of(moe, &all), plain = in_memory(moe);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct world w;
        struct hook h = {.how = FAIR};
        open_world(&w, moe, least, true);
        reopen(&w, &(struct expert_store_options){.budget_bytes = least, .n_used = 2, .read = hooked, .read_arg = &h,
                                                  .verify = EXPERT_VERIFY_ALWAYS, .stall_ns = 50000000});
        assert_true(compute(&w) == plain);
        for (int again = 0; again < 2; again++) {
            struct ingle_experts x;
            atomic_store(&h.how, cases[i].how);
            assert_true(compute(&w) == 0);
            assert_int_equal(error.status, INGLE_IO);
            assert_non_null(strstr(error.text, cases[i].text));
            assert_non_null(strstr(error.text, dir)); /* the file that was read */
            assert_non_null(strstr(error.text, "layer "));
            assert_non_null(strstr(error.text, "expert "));
            assert_true(ingle_engine_experts(w.e, &x) && strcmp(x.trouble, error.text) == 0);
            assert_true(cases[i].how == STUCK || x.bad > 0);
            atomic_store(&h.how, again ? FAIL_ONCE : FAIR); /* what fails once is read again */
            assert_true(compute(&w) == plain);
        }
        close_world(&w);
    }
}

/* Logits of the last of some tokens; 0: the step failed. */
static uint64_t ask(struct ingle_session *s, const int32_t *tokens, int n, int64_t n_vocab)
{
    const float *logits;
    if (ingle_session_sync(s, tokens, n, NULL, &error) || ingle_session_finish(s, &logits, &error))
        return 0;
    return model_packed_sum_of(logits, (size_t)n_vocab * sizeof *logits).lo;
}

/* Without its disk a model still computes what is in memory; and a session goes on where a step failed. */
static void a_disk_that_is_gone_fails_misses_only(void **state)
{
    (void)state;
    uint64_t all;
    (void)least_of(moe, &all);
    struct world w;
    struct hook h = {.how = FAIR};
    struct ingle_engine_info info;
    struct ingle_session *s;
    const int32_t hot[] = {5, 7}, cold[] = {5, 7, 11, 13, 17, 19, 23, 29, 31};
    open_world(&w, moe, all / 2, true);
    reopen(&w, &(struct expert_store_options){.budget_bytes = all / 2, .n_used = 2, .read = hooked, .read_arg = &h});
    ingle_engine_info(w.e, &info);
    must(ingle_session_open(&s, w.e, &error));
    uint64_t want = 0;
    for (int i = 0; i < 12; i++) { /* until they stay */
        ingle_engine_forget(w.e);
        want = ask(s, hot, 1, info.n_vocab);
        must(ingle_session_rewind(s, 0, &error));
    }
    assert_true(want != 0);
    atomic_store(&h.how, FAIL);
    ingle_engine_forget(w.e);
    assert_true(ask(s, hot, 1, info.n_vocab) == want);
    assert_true(ask(s, cold, 9, info.n_vocab) == 0);
    assert_int_equal(error.status, INGLE_IO);
    atomic_store(&h.how, FAIR);
    const uint64_t late = ask(s, cold, 9, info.n_vocab);
    ingle_session_close(s);
    must(ingle_session_open(&s, w.e, &error));
    ingle_engine_forget(w.e);
    assert_true(late && ask(s, cold, 1, info.n_vocab) && ask(s, cold, 9, info.n_vocab) == late);
    ingle_session_close(s);
    close_world(&w);
}

/* Threads whose reads do not end are left alone: others read, and nobody waits for them at the end. */
static void reads_that_never_end_are_left_alone(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    uint64_t all;
    struct world w;
    struct ingle_experts x;
    const char *model = models[3];
    (void)least_of(model, &all);
    const uint64_t plain = in_memory(model);
    static struct hook h;
    h = (struct hook){.how = FAIR, .most_held = THREADS};
    open_world(&w, model, all - 1, true);
    reopen(&w, &(struct expert_store_options){.budget_bytes = all - 1, .n_used = 2, .read = hooked,
                                              .read_arg = &h, .stall_ns = 50000000, .sink = &w.e->sink});
    atomic_store(&h.hold, 1);
    assert_true(compute(&w) == 0);
    assert_non_null(strstr(error.text, "no read has ended"));
    while (atomic_load(&h.held) < THREADS) /* one may have been idle: a step fails until all are held */
        (void)compute(&w);
    assert_true(ingle_engine_experts(w.e, &x) && x.stuck > 0 && x.stuck <= THREADS);
    assert_non_null(strstr(said, "do not come back"));
    uint64_t got = 0;
    for (int i = 0; !got && i < 4; i++)
        got = compute(&w);
    if (got != plain)
        fail_msg("%llu: %s", (unsigned long long)got, error.text);
    assert_true(ingle_engine_experts(w.e, &x) && x.stuck == THREADS);
    close_world(&w);
    assert_int_equal(atomic_load(&h.held), THREADS); /* it did not wait */
    atomic_store(&h.hold, 0);
    while (atomic_load(&h.held))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Early reads bring bytes sooner; who stays and what counts as a hit does not depend on them. */
static void early_reads_change_no_hit(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        uint64_t all, hits[2], choices[2];
        const uint64_t least = least_of(models[i], &all), budget = (least + all) / 2, plain = in_memory(models[i]);
        for (int k = 0; k < 2; k++) {
            struct world w;
            struct ingle_experts x;
            open_world(&w, models[i], budget, true);
            reopen(&w, &(struct expert_store_options){.budget_bytes = budget, .n_used = 2, .early = k ? -1 : 0});
            assert_true(compute(&w) == plain);
            assert_true(ingle_engine_experts(w.e, &x));
            hits[k] = x.hits;
            choices[k] = x.choices;
            assert_true(k || (!x.early_reads && !x.early_hits));
            close_world(&w);
        }
        assert_true(hits[0] == hits[1] && choices[0] == choices[1]);
    }
}

/* ---- files ---- */

static void slurp(const char *path, char **bytes, size_t *n)
{
    struct stat st;
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    *n = (size_t)st.st_size;
    *bytes = mem_alloc(*n);
    assert_int_equal(read(fd, *bytes, *n), (ssize_t)*n);
    close(fd);
}

/* The file that is written piece by piece is the one that is written from memory. */
static void both_writers_write_the_same_file(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        char path[512], *bytes[2];
        size_t n[2];
        uint64_t all;
        const uint64_t budget[2] = {0, least_of(models[i], &all)};
        for (int k = 0; k < 2; k++) {
            struct world w;
            open_world(&w, models[i], budget[k], true);
            close_world(&w);
            the_file(path);
            slurp(path, &bytes[k], &n[k]);
            assert_int_equal(unlink(path), 0);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(bytes[0], bytes[1], n[0]);
        mem_free(bytes[0]);
        mem_free(bytes[1]);
    }
}

/* Experts are never mapped: a file that is cut short is an error of a step, and not the end of the process. */
static void a_file_cut_short_is_an_error(void **state)
{
    (void)state;
    char path[512], *bytes;
    size_t n;
    uint64_t all;
    struct world w;
    const uint64_t least = least_of(moe, &all), plain = in_memory(moe);
    open_world(&w, moe, least, true);
    assert_true(compute(&w) == plain);
    the_file(path);
    slurp(path, &bytes, &n);
    const struct packed_header *head = (const struct packed_header *)(const void *)bytes;
    assert_int_equal(truncate(path, (off_t)(head->image_at + head->dense_bytes)), 0);
    assert_true(compute(&w) == 0);
    assert_int_equal(error.status, INGLE_IO);
    assert_non_null(strstr(error.text, "cut short"));
    const int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, bytes, n, 0), (ssize_t)n);
    close(fd);
    assert_true(compute(&w) == plain);
    mem_free(bytes);
    close_world(&w);
}

static void flip(const char *path, off_t at)
{
    uint8_t b = 0;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &b, 1, at) == 1);
    b ^= 0x41;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    close(fd);
}

/* Each expert was read, and was right, before somebody writes to the file. */
static void a_file_that_is_written_to_gives_no_wrong_answer(void **state)
{
    (void)state;
    char path[512];
    struct world w;
    uint64_t all;
    struct ingle_experts x;
    const uint64_t least = least_of(moe, &all), plain = in_memory(moe);
    open_world(&w, moe, least, true);
    assert_true(compute(&w) == plain && compute(&w) == plain);
    the_file(path);
    struct packed_header head;
    const int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, &head, sizeof head), (ssize_t)sizeof head);
    close(fd);
    const off_t from = (off_t)(head.image_at + head.dense_bytes);
    for (off_t at = from; at < (off_t)head.file_bytes; at += 4096)
        flip(path, at);
    assert_true(compute(&w) == 0);
    assert_non_null(strstr(error.text, "checksum is wrong; it was changed while in use"));
    assert_true(ingle_engine_experts(w.e, &x) && x.bad > 0);
    for (off_t at = from; at < (off_t)head.file_bytes; at += 4096)
        flip(path, at);
    assert_true(compute(&w) == plain && compute(&w) == plain);
    assert_true(ingle_engine_experts(w.e, &x) && x.bad == 0);
    close_world(&w);
}

static void see_entry(void *arg, const struct model_pack_entry *e)
{
    snprintf(arg, 200, "%.199s", e->damage ? e->damage : "good");
}

/* A damaged file is known as such by `ingle cache`, is not deleted in use, and is packed again by the next start. */
static void a_damaged_file_is_packed_again(void **state)
{
    (void)state;
    char path[512], damage[200];
    struct world w;
    uint64_t all;
    const uint64_t least = least_of(moe, &all), plain = in_memory(moe);
    open_world(&w, moe, least, true);
    the_file(path);
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    struct packed_header head;
    const int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, &head, sizeof head), (ssize_t)sizeof head);
    for (off_t at = (off_t)(head.image_at + head.dense_bytes); at < (off_t)head.file_bytes; at += 4096)
        flip(path, at);
    assert_true(compute(&w) == 0);
    assert_non_null(strstr(error.text, path));
    assert_non_null(strstr(said, "the next start does not use it"));
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(model_pack_list(dir, false, see_entry, damage, NULL), INGLE_OK);
    assert_non_null(strstr(damage, "checksum was wrong"));
    close_world(&w);
    open_world(&w, moe, least, true);
    assert_non_null(strstr(said, "it is deleted, the weights are packed again"));
    assert_true(stat(path, &after) == 0 && before.st_ino != after.st_ino);
    close(fd); /* until here nobody could get its inode */
    assert_true(compute(&w) == plain);
    assert_int_equal(model_pack_list(dir, true, see_entry, damage, NULL), INGLE_OK);
    assert_string_equal(damage, "good");
    close_world(&w);
}

/* The model's own file, of which experts are read, has no checksums: another file under its name is not its business,
 * bytes written to it are an error. */
static void a_model_that_is_replaced_or_written_to(void **state)
{
    (void)state;
    char path[96], *bytes;
    size_t n;
    struct world w;
    uint64_t all;
    const uint64_t least = least_of(moe, &all), plain = in_memory(moe);
    snprintf(path, sizeof path, "%s/model.gguf", dir);
    slurp(moe, &bytes, &n);
    for (int replaced = 0; replaced < 2; replaced++) {
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        assert_int_equal(write(fd, bytes, n), (ssize_t)n);
        close(fd);
        open_world(&w, path, least, false);
        assert_true(compute(&w) == plain);
        if (replaced) {
            assert_int_equal(unlink(path), 0);
            fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
            assert_int_equal(write(fd, "nothing", 7), 7);
            close(fd);
            assert_true(compute(&w) == plain);
        } else {
            for (off_t at = (off_t)n / 2; at < (off_t)n; at += 64)
                flip(path, at);
            assert_true(compute(&w) == 0);
            assert_int_equal(error.status, INGLE_IO);
            assert_non_null(strstr(error.text, "was changed while in use"));
            assert_int_equal(truncate(path, 4096), 0);
            assert_true(compute(&w) == 0);
            assert_int_equal(error.status, INGLE_IO);
        }
        close_world(&w);
        assert_int_equal(unlink(path), 0);
    }
    mem_free(bytes);
}

/* A budget that the memory does not have: refused with the table before anything is loaded, unless it is forced. */
static void a_budget_beyond_memory_is_refused(void **state)
{
    (void)state;
    uint64_t all;
    (void)least_of(moe, &all);
    struct ingle_model *m;
    struct world w;
    struct ingle_engine_options o = {.n_ctx = 512, .threads = 1, .expert_bytes = all - 1, .memory_bytes = all / 2};
    must(ingle_model_open(&m, moe, NULL, &error));
    assert_int_equal(ingle_engine_open(&w.e, m, &o, &error), INGLE_LIMIT);
    assert_non_null(strstr(error.text, "experts"));
    o.force = true;
    must(ingle_engine_open(&w.e, m, &o, &error));
    w.m = m;
    close_world(&w);
}

/* ---- memory ---- */

/* Bytes of all slots that are in memory, as the system tells. */
static uint64_t resident_bytes(const struct expert_store *s)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t n = 0;
    for (int k = 0; k < s->n_classes; k++) {
        const struct store_class *c = &s->class[k];
        const size_t n_pages = ((size_t)c->n_slots * c->bytes + page - 1) / page;
        unsigned char *in = mem_alloc(n_pages);
        assert_int_equal(mincore(c->memory, n_pages * page, in), 0);
        for (size_t i = 0; i < n_pages; i++)
            n += in[i] & 1 ? page : 0;
        mem_free(in);
    }
    return n;
}

static bool is_short(void *arg, char *why, size_t n)
{
    snprintf(why, n, "a test");
    return *(bool *)arg;
}

static void memory_is_given_back_and_taken_again(void **state)
{
    (void)state;
    uint64_t all, now = clock_now() + EXPERT_QUIET_NS;
    const char *model = models[3];
    (void)least_of(model, &all);
    const uint64_t plain = in_memory(model);
    struct world w;
    struct ingle_experts full, x;
    bool pressed = false;
    open_world(&w, model, all - 1, true);
    reopen(&w, &(struct expert_store_options){.budget_bytes = all - 1, .n_used = 2, .is_short = is_short, .short_arg = &pressed,
                                              .sink = &w.e->sink});
    assert_true(compute(&w) == plain);
    expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
    assert_true(ingle_engine_experts(w.e, &full) && full.memory_bytes < all);
    assert_true(resident_bytes(w.e->experts) <= full.memory_bytes);
    pressed = true;
    uint64_t last = full.memory_bytes;
    for (int i = 0; i < 8; i++) {
        expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
        assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes <= last && (i > 3 || x.memory_bytes < last));
        assert_true(resident_bytes(w.e->experts) <= x.memory_bytes && x.resident <= x.slots);
        last = x.memory_bytes;
        assert_true(compute(&w) == plain);
        assert_true(resident_bytes(w.e->experts) <= x.memory_bytes);
    }
    assert_true(2 * x.slots >= full.slots); /* at most half */
    assert_non_null(strstr(said, "given back"));
    pressed = false;
    expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
    assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes == last); /* not before it is quiet */
    now += EXPERT_QUIET_NS;
    for (int i = 0; i < 8; i++)
        expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
    assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes == full.memory_bytes && x.slots == full.slots);
    assert_non_null(strstr(said, "taken again"));
    assert_true(compute(&w) == plain && compute(&w) == plain);
    assert_true(resident_bytes(w.e->experts) <= x.memory_bytes);
    close_world(&w);
}

/* ---- profiles ---- */

static uint64_t misses_of_first_prompt(struct world *w, const struct expert_store_options *o, uint64_t plain)
{
    struct ingle_experts x;
    reopen(w, o);
    assert_true(compute(w) == plain);
    assert_true(ingle_engine_experts(w->e, &x));
    return x.misses;
}

static void a_profile_lives_from_run_to_run(void **state)
{
    (void)state;
    char profile[96];
    uint64_t all;
    const char *model = models[3];
    const uint64_t least = least_of(model, &all), plain = in_memory(model);
    struct world w;
    struct stat st;
    snprintf(profile, sizeof profile, "%s.profile", dir);
    open_world(&w, model, least + (all - least) / 2, true);
    struct expert_store_options o = {.budget_bytes = least + (all - least) / 2, .n_used = 2, .profile = profile, .identity = 7,
                                     .sink = &w.e->sink};
    const uint64_t first = misses_of_first_prompt(&w, &o, plain), again = misses_of_first_prompt(&w, &o, plain);
    assert_true(again < first);
    assert_null(strstr(said, "profile"));
    assert_int_equal(stat(profile, &st), 0);
    o.identity = 8;
    assert_true(misses_of_first_prompt(&w, &o, plain) == first);
    assert_non_null(strstr(said, "it is of another model"));
    expert_store_close(w.e->experts); /* which writes that of 8 */
    w.e->experts = NULL;
    flip(profile, st.st_size - 2);
    said[0] = 0;
    assert_true(misses_of_first_prompt(&w, &o, plain) == first);
    assert_non_null(strstr(said, "its checksum is wrong"));
    o.profile = NULL;
    reopen(&w, &o);
    assert_int_equal(truncate(profile, 30), 0);
    o.profile = profile;
    said[0] = 0;
    assert_true(misses_of_first_prompt(&w, &o, plain) == first);
    assert_non_null(strstr(said, "it is no profile"));
    close_world(&w);
    assert_int_equal(unlink(profile), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_budget_has_the_same_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(too_small_a_budget_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(auto_leaves_experts_on_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(late_reads_and_random_evictions_change_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_read_ends_the_step_and_no_more, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_that_is_gone_fails_misses_only, setup, teardown),
        cmocka_unit_test_setup_teardown(reads_that_never_end_are_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_written_to_gives_no_wrong_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_file_is_packed_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_model_that_is_replaced_or_written_to, setup, teardown),
        cmocka_unit_test_setup_teardown(a_budget_beyond_memory_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_is_given_back_and_taken_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_profile_lives_from_run_to_run, setup, teardown),
        cmocka_unit_test_setup_teardown(early_reads_change_no_hit, setup, teardown),
        cmocka_unit_test_setup_teardown(both_writers_write_the_same_file, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_cut_short_is_an_error, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
