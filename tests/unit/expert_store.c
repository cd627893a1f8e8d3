/* SPDX-License-Identifier: Apache-2.0 */
/* Long file: every case of a store needs the same gate at its reads.
 * Experts beyond memory: the bits of all in memory, whatever the budget, the file, the order of
 * arrival and who leaves; and when a read fails, an error with file, layer and expert, and the next
 * step computes again. */
#define _GNU_SOURCE
#include "unit/unit.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "base/clock.h"
#include "device/ops.h"
#include "expert/tiered.h"
#include "model/packed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static const char moe[] = "tests/data/goldens/gemma4_moe/model-F32.gguf";
static const char *const models[] = {moe, "tests/data/goldens/gemma4_moe",
                                     "tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf",
                                     "tests/data/nano-v4/nano-v4-MXFP4.gguf"};
enum {
    N_MODELS = sizeof models / sizeof *models,
    PROMPT = UNIT_TSAN ? 12 : 24,
    ANSWER = UNIT_TSAN ? 3 : 6
};
/* every other model under sanitizers, which are slow */
enum { STEP = UNIT_ASAN || UNIT_TSAN ? 2 : 1 };

static struct ingle_error error;
static char dir[64], said[4096];
static enum expert_by by; /* who reads in this test */

/* Reads that end have the usual time: a busy disk may take longer than this. */
static const uint64_t SHORT_NS = 50000000;

static void must(ingle_status st)
{
    if (st)
        fail_msg("%s", error.text);
}

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
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
    static const char *const io[] = {
        [EXPERT_BY_AUTO] = "auto", [EXPERT_BY_THREADS] = "threads", [EXPERT_BY_URING] = "uring"};
    const struct ingle_engine_options o = {.pack_cache = packed ? dir : NULL,
                                           .pack_write = packed,
                                           .n_ctx = 512,
                                           .threads = 2,
                                           .expert_bytes = budget,
                                           .experts_io = io[by],
                                           .callbacks = {.report = hear}};
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
    struct expert_store_options with = *o;
    with.by = by;
    expert_store_close(w->e->experts);
    w->e->experts = NULL;
    if (expert_store_open(&w->e->experts, w->e->weights, &with, &err))
        fail_msg("%s", err.msg);
}

/* Hash of the logits of a prompt and of some tokens behind it; 0 with `error` where a step
 * fails. */
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
        if (ingle_session_sync(s, tokens, n, NULL, &error) ||
            ingle_session_finish(s, &logits, &error))
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
    by = *state ? *(const enum expert_by *)*state : EXPERT_BY_AUTO;
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
    assert_true(x.memory_bytes <= budget && x.resident <= x.slots &&
                x.memory_bytes < x.expert_bytes);
    assert_true(x.misses > 0 && x.read_bytes > 0 && x.failed_reads == 0);
}

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

/* ---- reads that do what they like ---- */

/* FAIL_HELD: those that are held, twice each, when another one comes. */
enum how { FAIR, LATE, FAIL_ONCE, FAIL, END, FLIP, STUCK, FAIL_HELD };

enum { PLACES = 4096 };
struct hook {
    struct fetch_hook f;
    int gate;                   /* readable: nobody waits there */
    _Atomic uint64_t n;         /* Sync: atomic */
    _Atomic int how;            /* Sync: atomic */
    /* Sync: atomic.  Reads that do not end until hold is 0; how many there are */
    _Atomic int hold, held;
    int most_held;
    _Atomic int over;           /* Sync: atomic */
    /* Sync: atomic */
    struct place { _Atomic int tries, fails; } place[PLACES]; /* in the file */
    struct target { _Atomic int held, timer; } target[PLACES]; /* in memory */
};

static struct place *place_of(struct hook *h, off_t at)
{
    return &h->place[(uint64_t)at / 4096 % PLACES];
}

static struct target *target_of(struct hook *h, const void *to)
{
    return &h->target[(uintptr_t)to / 4096 % PLACES];
}

static void open_gate(struct hook *h, bool open)
{
    uint64_t n = 1;
    const ssize_t got = open ? write(h->gate, &n, sizeof n) : read(h->gate, &n, sizeof n);
    (void)got; /* it may be so already */
}

static void set_how(struct hook *h, enum how how)
{
    open_gate(h, how != STUCK);
    atomic_store(&h->how, (int)how);
}

static void let_go(struct hook *h)
{
    atomic_store(&h->hold, 0);
    open_gate(h, true);
}

/* Readable after ns. */
static int timer_of(uint64_t ns)
{
    const struct itimerspec t = {.it_value = {.tv_nsec = (long)ns + 1}};
    const int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (fd >= 0)
        (void)timerfd_settime(fd, 0, &t, NULL);
    return fd;
}

static bool is_held(struct hook *h, struct target *t)
{
    if (!atomic_load(&h->hold))
        return false;
    if (atomic_fetch_add(&h->held, 1) < h->most_held) {
        atomic_store(&t->held, 1);
        return true;
    }
    atomic_fetch_sub(&h->held, 1);
    if (atomic_load(&h->how) == FAIL_HELD)
        let_go(h);
    return false;
}

static ssize_t before(void *arg, const void *to, size_t n, off_t at, int *wait)
{
    struct hook *h = arg;
    struct target *t = target_of(h, to);
    struct place *p = place_of(h, at);
    const uint64_t i = atomic_fetch_add(&h->n, 1), r = (i * 0x9E3779B97F4A7C15u) >> 33;
    const int how = atomic_load(&h->how);
    if (how == LATE) {
        if (r % 5 == 0)
            return -EINTR;
        *wait = timer_of(r % 300000);
        atomic_store(&t->timer, *wait);
        return n > 4096 && r % 3 == 0 ? 4096 : (ssize_t)n; /* a short read */
    }
    if (how == FAIL || (how == FAIL_ONCE && atomic_fetch_add(&p->tries, 1) % 2 == 0) ||
        atomic_exchange(&p->fails, 0))
        return -EIO;
    if (how == END)
        return 0;
    if (how == STUCK || is_held(h, t))
        *wait = h->gate;
    return (ssize_t)n;
}

static ssize_t after(void *arg, void *to, ssize_t got, off_t at)
{
    struct hook *h = arg;
    struct target *t = target_of(h, to);
    const int how = atomic_load(&h->how), timer = atomic_exchange(&t->timer, 0);
    if (timer > 0)
        close(timer);
    if (how == FLIP)
        ((uint8_t *)to)[got / 2] ^= 1;
    if (!atomic_exchange(&t->held, 0))
        return got;
    atomic_store(&place_of(h, at)->fails, how == FAIL_HELD);
    atomic_fetch_sub(&h->held, 1);
    return how == FAIL_HELD ? -EIO : got;
}

static void over(void *arg)
{
    atomic_store(&((struct hook *)arg)->over, 1);
}

static void open_hook(struct hook *h, enum how how)
{
    memset(h, 0, sizeof *h);
    h->f = (struct fetch_hook){.arg = h, .before = before, .after = after, .over = over};
    h->gate = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(h->gate >= 0);
    set_how(h, how);
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

static void flip(const char *path, off_t at)
{
    uint8_t b = 0;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &b, 1, at) == 1);
    b ^= 0x41;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    close(fd);
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
    reopen(&w, &(struct expert_store_options){.budget_bytes = all - 1,
                                              .n_used = 2,
                                              .is_short = is_short,
                                              .short_arg = &pressed,
                                              .sink = &w.e->sink});
    assert_true(compute(&w) == plain);
    expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
    assert_true(ingle_engine_experts(w.e, &full) && full.memory_bytes < all);
    assert_true(resident_bytes(w.e->experts) <= full.memory_bytes);
    pressed = true;
    uint64_t last = full.memory_bytes;
    for (int i = 0; i < 8; i++) {
        expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
        assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes <= last &&
                    (i > 3 || x.memory_bytes < last));
        assert_true(resident_bytes(w.e->experts) <= x.memory_bytes && x.resident <= x.slots);
        last = x.memory_bytes;
        assert_true(compute(&w) == plain);
        assert_true(resident_bytes(w.e->experts) <= x.memory_bytes);
    }
    assert_true(2 * x.slots >= full.slots); /* at most half */
    assert_non_null(strstr(said, "given back"));
    pressed = false;
    expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
    /* not before it is quiet */
    assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes == last);
    now += EXPERT_QUIET_NS;
    for (int i = 0; i < 8; i++)
        expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
    assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes == full.memory_bytes &&
                x.slots == full.slots);
    assert_non_null(strstr(said, "taken again"));
    assert_true(compute(&w) == plain && compute(&w) == plain);
    assert_true(resident_bytes(w.e->experts) <= x.memory_bytes);
    close_world(&w);
}

/* ---- a device with memory of its own ---- */

enum { AREAS = 16 };
/* It computes as the processor does, and its memory can be touched within its own functions
 * only. */
struct pretend {
    struct device_ops ops; /* first: a device has its address */
    struct device_own_ops own;
    uint64_t bytes;
    struct { uint8_t *at; size_t n; } area[AREAS];
    uint64_t computed, puts, gets; /* of matrices there: products; moves */
};

static struct pretend *pretend_of(const struct device *d)
{
    return (struct pretend *)(uintptr_t)d->ops;
}

static void protect(const struct pretend *p, int how)
{
    for (int i = 0; i < AREAS; i++)
        if (p->area[i].at)
            assert_int_equal(mprotect(p->area[i].at, p->area[i].n, how), 0);
}

static uint64_t pretend_bytes(const struct device *d)
{
    return pretend_of(d)->bytes;
}

static void *pretend_take(struct device *d, size_t n)
{
    struct pretend *p = pretend_of(d);
    int i = 0;
    while (p->area[i].at)
        i++;
    p->area[i].n = n;
    p->area[i].at = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p->area[i].at != MAP_FAILED);
    return p->area[i].at;
}

static void pretend_give(struct device *d, void *own, size_t n)
{
    struct pretend *p = pretend_of(d);
    int i = 0;
    while (p->area[i].at != own)
        i++;
    assert_int_equal(p->area[i].n, n);
    assert_int_equal(munmap(own, n), 0);
    p->area[i].at = NULL;
}

static void pretend_put(struct device *d, void *own, const void *host, size_t n)
{
    struct pretend *p = pretend_of(d);
    protect(p, PROT_READ | PROT_WRITE);
    memcpy(own, host, n);
    protect(p, PROT_NONE);
    p->puts++;
}

static void pretend_get(struct device *d, void *host, const void *own, size_t n)
{
    struct pretend *p = pretend_of(d);
    protect(p, PROT_READ);
    memcpy(host, own, n);
    protect(p, PROT_NONE);
    p->gets++;
}

/* Places of what lies in the device's memory are shown to the kernels, or hidden. */
static uint64_t show_own(const struct device_matrix *m, const struct device_mlp *a, bool show)
{
    uint64_t n = 0;
    for (int64_t i = 0; m && m->own && i < m->n_stack; i++)
        if (m->own[i]) {
            m->each[i] = show ? m->own[i] : NULL;
            n += (!a->only || a->only[i]) && a->first[i + 1] > a->first[i];
        }
    return n;
}

static void pretend_mlp(struct device *d, const void *args, void *scratch)
{
    struct pretend *p = pretend_of(d);
    const struct device_mlp *a = ((const struct device_mlp_args *)args)->m;
    protect(p, PROT_READ);
    p->computed += show_own(a->down, a, true);
    (void)show_own(a->gate, a, true);
    (void)show_own(a->up, a, true);
    device_cpu_mlp(d, args, scratch);
    (void)show_own(a->down, a, false);
    (void)show_own(a->gate, a, false);
    (void)show_own(a->up, a, false);
    protect(p, PROT_NONE);
}

static void pretend(struct world *w, struct pretend *p, uint64_t bytes)
{
    *p = (struct pretend){
        .ops = *w->e->device->ops,
        .bytes = bytes,
        .own = {pretend_bytes, pretend_take, pretend_give, pretend_put, pretend_get, NULL}};
    p->ops.own = &p->own;
    p->ops.run[DEVICE_OP_mlp] = pretend_mlp;
    w->e->device->ops = &p->ops;
}

/* Each expert is in one place, and the second set of slots holds the most used ones. */
static void check_own(struct expert_store *s)
{
    for (int k = 0; k < s->n_classes; k++) {
        const struct store_class *c = &s->class[k];
        int n = 0;
        for (int64_t i = 0; i < c->n_experts; i++) {
            assert_true(!expert_own_has(c, i) ||
                        (c->slot_of[i] < 0 && !expert_policy_is_in(c->policy, i)));
            n += expert_own_has(c, i);
        }
        assert_true(n == c->n_own_in && (!c->n_own || n < c->n_own));
    }
}

static void a_device_with_memory_of_its_own_has_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i += 3) { /* one of each family */
        uint64_t all;
        const uint64_t least = least_of(models[i], &all), plain = in_memory(models[i]),
                       budget = least + (all - least) / 4;
        uint64_t misses[2];
        for (int k = 0; k < 4; k++) {
            struct world w;
            struct pretend p;
            struct hook h;
            struct ingle_experts x;
            open_world(&w, models[i], budget, true);
            const struct device_ops *const cpu = w.e->device->ops;
            open_hook(&h, k > 1 ? LATE : FAIR);
            pretend(&w, &p, k ? all / 3 : 0);
            reopen(&w, &(struct expert_store_options){.budget_bytes = budget,
                                                      .n_used = 2,
                                                      .hook = &h.f,
                                                      .early = k > 1 ? -1 : 0,
                                                      .shake = k == 3 ? 99 : 0});
            for (int n = 0; n < 7; n++) {
                assert_true(compute(&w) == plain);
                check_own(w.e->experts);
            }
            assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes <= budget &&
                        x.hits + x.misses == x.choices);
            if (k < 2)
                misses[k] = x.misses;
            assert_true((p.computed > 0) == (k > 0) && (p.puts > 0) == (k > 0) &&
                        p.puts == w.e->experts->own_moves);
            assert_true(k < 3 || p.gets > 0);
            expert_store_close(w.e->experts);
            w.e->experts = NULL;
            for (int n = 0; n < AREAS; n++)
                assert_null(p.area[n].at);
            w.e->device->ops = cpu;
            close_world(&w);
            close(h.gate);
        }
        assert_true(misses[1] < misses[0]);
    }
}

/* ---- profiles ---- */

static uint64_t misses_of_first_prompt(struct world *w, const struct expert_store_options *o,
                                       uint64_t plain)
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
    struct expert_store_options o = {.budget_bytes = least + (all - least) / 2,
                                     .n_used = 2,
                                     .profile = profile,
                                     .identity = 7,
                                     .sink = &w.e->sink};
    const uint64_t first = misses_of_first_prompt(&w, &o, plain),
                   again = misses_of_first_prompt(&w, &o, plain);
    assert_true(again < first);
    assert_null(strstr(said, "profile"));
    assert_int_equal(stat(profile, &st), 0);
    o.identity = 8;
    assert_true(misses_of_first_prompt(&w, &o, plain) == first);
    assert_non_null(strstr(said, "it is of another model"));
    expert_store_close(w.e->experts); /* which leaves that of 7 */
    w.e->experts = NULL;
    o.identity = 7;
    flip(profile, st.st_size - 2);
    said[0] = 0;
    assert_true(misses_of_first_prompt(&w, &o, plain) == first);
    assert_non_null(strstr(said, "its checksum is wrong"));
    o.profile = NULL;
    reopen(&w, &o);
    assert_int_equal(truncate(profile, 30), 0);
    o.profile = profile, said[0] = 0;
    assert_true(misses_of_first_prompt(&w, &o, plain) == first);
    assert_non_null(strstr(said, "it is no profile"));
    close_world(&w);
    assert_int_equal(unlink(profile), 0);
}

/* A test with each of those who read; under sanitizers, which are slow, with one of them, by
 * turns. */
static enum expert_by by_threads = EXPERT_BY_THREADS, by_uring = EXPERT_BY_URING;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BOTH(f) {#f, f, setup, teardown, __LINE__ % 2 ? &by_threads : &by_uring}
#else
#define BOTH(f)                                                                                    \
    {#f ", threads", f, setup, teardown, &by_threads},                                             \
    {                                                                                              \
#f ", uring", f, setup, teardown, &by_uring                                                \
    }
#endif

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
        BOTH(memory_is_given_back_and_taken_again),
        cmocka_unit_test_setup_teardown(a_device_with_memory_of_its_own_has_the_same_bits, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_profile_lives_from_run_to_run, setup, teardown),
        cmocka_unit_test_setup_teardown(a_kernel_that_refuses_io_uring, setup, teardown),
        cmocka_unit_test_setup_teardown(the_reader_that_is_asked_for_reads, setup, teardown),
        BOTH(early_reads_change_no_hit),
        cmocka_unit_test_setup_teardown(both_writers_write_the_same_file, setup, teardown),
        BOTH(a_file_cut_short_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
