/* SPDX-License-Identifier: Apache-2.0 */
/* Experts beyond memory: the bits of all in memory, whatever the budget, the file, the order of
 * arrival and who leaves; and when a read fails, an error with file, layer and expert, and the next
 * step computes again. */
#define _GNU_SOURCE
#include "unit/expert_world.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void any_budget_has_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i += STEP) {
        uint64_t all;
        const uint64_t least = least_of(models[i], &all), plain = in_memory(models[i]);
        const uint64_t budgets[] = {least, least + (all - least) / 4, all - 1};
        for (int k = 0; k < 6; k += UNIT_ASAN || UNIT_TSAN ? 3 : 1) {
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
    struct ingle_engine_options o = {.n_ctx = 512,
                                     .max_rows = 64,
                                     .threads = 2,
                                     .cache_bytes = 1 << 16,
                                     .callbacks = {.report = hear}};
    must(ingle_model_open(&m, moe, NULL, &error));
    must(ingle_engine_plan(m, &o, &plan, &error));
    assert_true(plan.fits && plan.expert_memory_bytes == plan.expert_bytes &&
                plan.expert_bytes == all);
    o.memory_bytes = plan.total_bytes - all / 2;
    must(ingle_engine_plan(m, &o, &plan, &error));
    assert_true(plan.fits && plan.expert_memory_bytes < plan.expert_bytes &&
                plan.total_bytes <= o.memory_bytes);
    w.m = m;
    must(ingle_engine_open(&w.e, m, &o, &error));
    assert_true(compute(&w) == in_memory(moe));
    check_counts(&w, plan.expert_memory_bytes);
    close_world(&w);
}

static void late_reads_and_random_evictions_change_nothing(void **state)
{
    (void)state;
    for (int i = STEP - 1; i < N_MODELS; i += STEP) {
        uint64_t all;
        const uint64_t least = least_of(models[i], &all), plain = in_memory(models[i]);
        for (uint64_t k = 0; k < 4; k += UNIT_TSAN ? 3 : 1) {
            struct world w;
            struct hook h;
            open_hook(&h, LATE);
            const uint64_t budget = k % 2 ? least : (least + all) / 2;
            open_world(&w, models[i], budget, true);
            reopen(&w, &(struct expert_store_options){.budget_bytes = budget,
                                                      .n_used = 2,
                                                      .hook = &h.f,
                                                      .shake = k < 2 ? 77 + k : 0,
                                                      .early = -1});
            assert_true(compute(&w) == plain && compute(&w) == plain);
            check_counts(&w, budget);
            close_world(&w);
            close(h.gate);
        }
    }
}

static void a_failed_read_ends_the_step_and_no_more(void **state)
{
    static const struct { enum how how; const char *text;
    } cases[] = {
        {FAIL, "Input/output error"},
        {END, "the file ends"},
        {FLIP, "checksum is wrong"},
        {STUCK, "no read has ended"},
    };
    (void)state;
    uint64_t all;
    const uint64_t least = least_of(moe, &all), plain = in_memory(moe);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct world w;
        struct hook h;
        open_hook(&h, FAIR);
        open_world(&w, moe, least, true);
        reopen(&w, &(struct expert_store_options){.budget_bytes = least,
                                                  .n_used = 2,
                                                  .hook = &h.f,
                                                  .verify = EXPERT_VERIFY_ALWAYS});
        const uint64_t usual = w.e->experts->o.stall_ns;
        assert_true(compute(&w) == plain);
        for (int again = 0; again < 2; again++) {
            struct ingle_experts x;
            set_how(&h, cases[i].how);
            if (cases[i].how == STUCK)
                w.e->experts->o.stall_ns = SHORT_NS;
            assert_true(compute(&w) == 0);
            assert_int_equal(error.status, INGLE_IO);
            assert_non_null(strstr(error.text, cases[i].text));
            assert_non_null(strstr(error.text, dir)); /* the file that was read */
            assert_non_null(strstr(error.text, "layer "));
            assert_non_null(strstr(error.text, "expert "));
            assert_true(ingle_engine_experts(w.e, &x) && strcmp(x.trouble, error.text) == 0);
            assert_true(cases[i].how == STUCK || x.bad > 0);
            w.e->experts->o.stall_ns = usual;
            set_how(&h, again ? FAIL_ONCE : FAIR); /* what fails once is read again */
            assert_true(compute(&w) == plain);
        }
        close_world(&w);
        close(h.gate);
    }
}

/* A step may want an expert whose read, for an earlier one, is about to fail: it is read anew for
 * this step. */
static void a_read_of_an_earlier_step_that_fails_is_done_anew(void **state)
{
    (void)state;
    enum { HELD = 2 }; /* so many early pieces are under way at a time */
    static const int32_t ids[HELD] = {0, 1};
    const char *model = models[3];
    uint64_t all;
    (void)least_of(model, &all);
    const uint64_t plain = in_memory(model);
    struct world w;
    struct hook h;
    open_hook(&h, FAIL_HELD);
    h.most_held = HELD;
    open_world(&w, model, all - 1, true);
    reopen(&w, &(struct expert_store_options){.budget_bytes = all - 1, .n_used = 2, .hook = &h.f});
    open_gate(&h, false);
    atomic_store(&h.hold, 1);
    expert_store_read_early(w.e->experts, w.e->experts->layer[0].home, ids, HELD, HELD);
    while (atomic_load(&h.held) < HELD)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    assert_true(compute(&w) == plain);
    struct ingle_experts x;
    assert_true(ingle_engine_experts(w.e, &x) && x.failed_reads > 0 && x.bad == 0 && !x.trouble[0]);
    close_world(&w);
    close(h.gate);
}

/* Logits of the last of some tokens; 0: the step failed. */
static uint64_t ask(struct ingle_session *s, const int32_t *tokens, int n, int64_t n_vocab)
{
    const float *logits;
    if (ingle_session_sync(s, tokens, n, NULL, &error) || ingle_session_finish(s, &logits, &error))
        return 0;
    return model_packed_sum_of(logits, (size_t)n_vocab * sizeof *logits).lo;
}

/* Without its disk a model still computes what is in memory; and a session goes on where a step
 * failed. */
static void a_disk_that_is_gone_fails_misses_only(void **state)
{
    (void)state;
    uint64_t all;
    (void)least_of(moe, &all);
    struct world w;
    struct hook h;
    open_hook(&h, FAIR);
    struct ingle_engine_info info;
    struct ingle_session *s;
    const int32_t hot[] = {5, 7}, cold[] = {5, 7, 11, 13, 17, 19, 23, 29, 31};
    open_world(&w, moe, all / 2, true);
    reopen(&w, &(struct expert_store_options){.budget_bytes = all / 2, .n_used = 2, .hook = &h.f});
    ingle_engine_info(w.e, &info);
    must(ingle_session_open(&s, w.e, &error));
    uint64_t want = 0;
    for (int i = 0; i < 12; i++) { /* until they stay */
        ingle_engine_forget(w.e);
        want = ask(s, hot, 1, info.n_vocab);
        must(ingle_session_rewind(s, 0, &error));
    }
    assert_true(want != 0);
    set_how(&h, FAIL);
    ingle_engine_forget(w.e);
    assert_true(ask(s, hot, 1, info.n_vocab) == want);
    assert_true(ask(s, cold, 9, info.n_vocab) == 0);
    assert_int_equal(error.status, INGLE_IO);
    set_how(&h, FAIR);
    const uint64_t late = ask(s, cold, 9, info.n_vocab);
    ingle_session_close(s);
    must(ingle_session_open(&s, w.e, &error));
    ingle_engine_forget(w.e);
    assert_true(late && ask(s, cold, 1, info.n_vocab) && ask(s, cold, 9, info.n_vocab) == late);
    ingle_session_close(s);
    close_world(&w);
    close(h.gate);
}

/* Threads whose reads do not end are left alone: others read, and nobody waits for them at the
 * end. */
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
    open_hook(&h, FAIR);
    h.most_held = THREADS;
    open_world(&w, model, all - 1, true);
    reopen(&w, &(struct expert_store_options){
                   .budget_bytes = all - 1, .n_used = 2, .hook = &h.f, .sink = &w.e->sink});
    const uint64_t usual = w.e->experts->o.stall_ns;
    w.e->experts->o.stall_ns = SHORT_NS;
    open_gate(&h, false);
    atomic_store(&h.hold, 1);
    assert_true(compute(&w) == 0);
    assert_non_null(strstr(error.text, "no read has ended"));
    do /* one may have been idle: a step fails until all are held */
        (void)compute(&w);
    while (ingle_engine_experts(w.e, &x) && (atomic_load(&h.held) < THREADS || x.stuck < THREADS));
    assert_non_null(strstr(said, "do not come back"));
    w.e->experts->o.stall_ns = usual;
    const uint64_t got = compute(&w);
    if (got != plain)
        fail_msg("%llu: %s", (unsigned long long)got, error.text);
    assert_true(ingle_engine_experts(w.e, &x) && x.stuck == THREADS);
    close_world(&w);
    assert_int_equal(atomic_load(&h.held), THREADS); /* it did not wait */
    assert_int_equal(atomic_load(&h.over), 0);
    let_go(&h);
    while (!atomic_load(&h.over))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    close(h.gate);
}

/* ---- who reads ---- */

/* Of this thread, and of those that it starts: calls of number nr fail with error code. */
static bool forbid(unsigned nr, unsigned code)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog p = {sizeof f / sizeof *f, f};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) == 0;
}

struct refusal {
    unsigned nr, code;
    uint64_t budget, got;
    bool forbidden, uring;
};

static void *compute_without(void *arg)
{
    struct refusal *r = arg;
    struct world w;
    struct ingle_experts x;
    r->forbidden = forbid(r->nr, r->code);
    open_world(&w, moe, r->budget, true);
    r->got = compute(&w);
    r->uring = ingle_engine_experts(w.e, &x) && x.uring;
    close_world(&w);
    return NULL;
}

/* Containers and administrators forbid io_uring: threads read, and that is said. */
static void a_kernel_that_refuses_io_uring(void **state)
{
    (void)state;
    static const struct { unsigned nr, code;
    } cases[] = {
        {SYS_io_uring_setup, EPERM},    {SYS_io_uring_setup, ENOSYS}, {SYS_io_uring_setup, ENOMEM},
        {SYS_io_uring_register, EPERM}, {SYS_io_uring_enter, EPERM},
    };
    uint64_t all;
    const uint64_t least = least_of(moe, &all), plain = in_memory(moe);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct refusal r = {cases[i].nr, cases[i].code, .budget = least};
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, compute_without, &r), 0);
        assert_int_equal(pthread_join(t, NULL), 0);
        if (!r.forbidden)
            skip();
        assert_true(r.got == plain && !r.uring);
        assert_non_null(strstr(said, "threads read, and not io_uring"));
    }
}

/* Each way is had when it is asked for, as far as this kernel has it. */
static void the_reader_that_is_asked_for_reads(void **state)
{
    (void)state;
    uint64_t all;
    struct world w;
    struct ingle_experts x;
    const uint64_t least = least_of(moe, &all);
    by = EXPERT_BY_URING;
    open_world(&w, moe, least, true);
    assert_true(ingle_engine_experts(w.e, &x) && x.uring == !strstr(said, "threads read"));
    const bool has = x.uring;
    close_world(&w);
    by = EXPERT_BY_AUTO;
    open_world(&w, moe, least, true);
    assert_true(ingle_engine_experts(w.e, &x) && x.uring == has);
    close_world(&w);
    by = EXPERT_BY_THREADS;
    open_world(&w, moe, least, true);
    assert_true(ingle_engine_experts(w.e, &x) && !x.uring && !strstr(said, "threads read"));
    close_world(&w);
    by = EXPERT_BY_URING; /* what is packed while it is read takes threads */
    open_world(&w, moe, least, false);
    assert_true(ingle_engine_experts(w.e, &x) && !x.uring && strstr(said, "threads read"));
    close_world(&w);
}

/* Early reads bring bytes sooner; who stays and what counts as a hit does not depend on them. */
static void early_reads_change_no_hit(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i += STEP) {
        enum { OFF, ALWAYS, AUTO, N };
        static const int how[N] = {[OFF] = 0, [ALWAYS] = EXPERT_MAX, [AUTO] = -1};
        uint64_t all, hits[N], choices[N];
        const uint64_t least = least_of(models[i], &all), budget = (least + all) / 2,
                       plain = in_memory(models[i]);
        for (int k = 0; k < N; k++) {
            struct world w;
            struct ingle_experts x;
            open_world(&w, models[i], budget, true);
            reopen(&w, &(struct expert_store_options){
                           .budget_bytes = budget, .n_used = 2, .early = how[k]});
            assert_true(compute(&w) == plain);
            assert_true(ingle_engine_experts(w.e, &x));
            hits[k] = x.hits;
            choices[k] = x.choices;
            assert_true(k != OFF || (!x.early_reads && !x.early_hits));
            assert_true(x.early_in_time <= x.early_hits && x.early_hits <= x.early_reads &&
                        x.reads_early == (k == ALWAYS));
            close_world(&w);
            assert_true(hits[k] == hits[OFF] && choices[k] == choices[OFF]);
        }
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
    for (int i = STEP - 1; i < N_MODELS; i += STEP) {
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

/* Experts are never mapped: a file that is cut short is an error of a step, and not the end of the
 * process. */
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

/* With the time of modification that it had. */
static void flip_quietly(const char *path, off_t from, off_t to, off_t step)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (off_t at = from; at < to; at += step)
        flip(path, at);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[2]){st.st_atim, st.st_mtim}, 0), 0);
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
    flip_quietly(path, from, (off_t)head.file_bytes, 4096);
    assert_true(compute(&w) == 0);
    assert_non_null(strstr(error.text, "checksum is wrong; it was changed while in use"));
    assert_true(ingle_engine_experts(w.e, &x) && x.bad > 0);
    flip_quietly(path, from, (off_t)head.file_bytes, 4096);
    assert_true(compute(&w) == plain && compute(&w) == plain);
    assert_true(ingle_engine_experts(w.e, &x) && x.bad == 0);
    close_world(&w);
}

static void see_entry(void *arg, const struct model_pack_entry *e)
{
    snprintf(arg, 200, "%.199s", e->damage ? e->damage : "good");
}

/* A damaged file is known as such by `ingle cache`, is not deleted in use, and is packed again by
 * the next start. */
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
    for (off_t at = (off_t)(head.image_at + head.dense_bytes); at < (off_t)head.file_bytes;
         at += 4096)
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

/* The model's own file, of which experts are read, has no checksums: another file under its name is
 * not its business, bytes written to it are an error. */
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
            flip_quietly(path, (off_t)n / 2, (off_t)n, 64);
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

/* A budget that the memory does not have: refused with the table before anything is loaded, unless
 * it is forced. */
static void a_budget_beyond_memory_is_refused(void **state)
{
    (void)state;
    uint64_t all;
    (void)least_of(moe, &all);
    struct ingle_model *m;
    struct world w;
    struct ingle_engine_options o = {
        .n_ctx = 512, .threads = 1, .expert_bytes = all - 1, .memory_bytes = all / 2};
    must(ingle_model_open(&m, moe, NULL, &error));
    assert_int_equal(ingle_engine_open(&w.e, m, &o, &error), INGLE_LIMIT);
    assert_non_null(strstr(error.text, "experts"));
    o.force = true;
    must(ingle_engine_open(&w.e, m, &o, &error));
    w.m = m;
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_budget_has_the_same_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(too_small_a_budget_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(auto_leaves_experts_on_disk, setup, teardown),
        BOTH(late_reads_and_random_evictions_change_nothing),
        BOTH(a_failed_read_ends_the_step_and_no_more),
        BOTH(a_read_of_an_earlier_step_that_fails_is_done_anew),
        BOTH(a_disk_that_is_gone_fails_misses_only),
        BOTH(reads_that_never_end_are_left_alone),
        BOTH(a_file_that_is_written_to_gives_no_wrong_answer),
        BOTH(a_damaged_file_is_packed_again),
        cmocka_unit_test_setup_teardown(a_model_that_is_replaced_or_written_to, setup, teardown),
        cmocka_unit_test_setup_teardown(a_budget_beyond_memory_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_kernel_that_refuses_io_uring, setup, teardown),
        cmocka_unit_test_setup_teardown(the_reader_that_is_asked_for_reads, setup, teardown),
        BOTH(early_reads_change_no_hit),
        cmocka_unit_test_setup_teardown(both_writers_write_the_same_file, setup, teardown),
        BOTH(a_file_cut_short_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
