/*
 * expert_world - an engine whose experts are beyond memory, its logits as a hash, and a gate at
 * the reads of its store.
 */
#ifndef INGLE_TESTS_EXPERT_WORLD_H
#define INGLE_TESTS_EXPERT_WORLD_H

#include "unit/hash.h"

#include "base/mem.h"
#include "device/ops.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "expert/tiered.h"
#include "model/packed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
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

static char dir[64], said[4096];
static enum expert_by by; /* who reads in this test */

/* Reads that end have the usual time: a busy disk may take longer than this. */
static const uint64_t SHORT_NS = 50000000;

static inline void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
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

static inline void open_world(struct world *w, const char *path, uint64_t budget, bool packed)
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

static inline void close_world(struct world *w)
{
    ingle_engine_close(w->e);
    ingle_model_close(w->m);
}

/* Instead of the engine's own store: one with hooks. */
static inline void reopen(struct world *w, const struct expert_store_options *o)
{
    struct err err;
    struct expert_store_options with = *o;
    with.by = by;
    expert_store_close(w->e->experts);
    w->e->experts = NULL;
    if (expert_store_open(&w->e->experts, w->e->weights, &with, &err))
        fail_msg("%s", err.msg);
}

static inline uint64_t compute(struct world *w) { return hash_of(w->e, PROMPT, ANSWER); }

/* What `compute` gives with all experts in memory, which is the same each time. */
static inline uint64_t in_memory(const char *path)
{
    static const char *known;
    static uint64_t h;
    if (known == path)
        return h;
    struct world w;
    open_world(&w, path, 0, false);
    struct ingle_experts x;
    assert_false(ingle_engine_experts(w.e, &x));
    h = compute(&w);
    known = path;
    close_world(&w);
    return h;
}

/* The only file in the directory. */
static inline void the_file(char path[512])
{
    DIR *d = opendir(dir);
    path[0] = 0;
    for (const struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            snprintf(path, 512, "%s/%.200s", dir, e->d_name);
    if (d)
        closedir(d);
}

static inline int setup(void **state)
{
    by = *state ? *(const enum expert_by *)*state : EXPERT_BY_AUTO;
    strcpy(dir, "/tmp/ingle-experts-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static inline int teardown(void **state)
{
    (void)state;
    char path[512];
    for (the_file(path); *path; the_file(path))
        if (unlink(path) != 0)
            return -1;
    return rmdir(dir);
}

/* The least budget, and the bytes of all experts. */
static inline uint64_t least_of(const char *path, uint64_t *all)
{
    static const char *known;
    static uint64_t least, experts;
    if (known != path) {
        struct world w;
        open_world(&w, path, 0, false);
        least = expert_store_least(w.e->weights);
        experts = model_expert_bytes(w.e->weights);
        known = path;
        close_world(&w);
    }
    *all = experts;
    return least;
}

static inline void check_counts(struct world *w, uint64_t budget)
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

static inline struct place *place_of(struct hook *h, off_t at)
{
    return &h->place[(uint64_t)at / 4096 % PLACES];
}

static inline struct target *target_of(struct hook *h, const void *to)
{
    return &h->target[(uintptr_t)to / 4096 % PLACES];
}

static inline void open_gate(struct hook *h, bool open)
{
    uint64_t n = 1;
    const ssize_t got = open ? write(h->gate, &n, sizeof n) : read(h->gate, &n, sizeof n);
    (void)got; /* it may be so already */
}

static inline void set_how(struct hook *h, enum how how)
{
    open_gate(h, how != STUCK);
    atomic_store(&h->how, (int)how);
}

static inline void let_go(struct hook *h)
{
    atomic_store(&h->hold, 0);
    open_gate(h, true);
}

/* Readable after ns. */
static inline int timer_of(uint64_t ns)
{
    const struct itimerspec t = {.it_value = {.tv_nsec = (long)ns + 1}};
    const int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (fd >= 0)
        (void)timerfd_settime(fd, 0, &t, NULL);
    return fd;
}

static inline bool is_held(struct hook *h, struct target *t)
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

static inline ssize_t before(void *arg, const void *to, size_t n, off_t at, int *wait)
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

static inline ssize_t after(void *arg, void *to, ssize_t got, off_t at)
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

static inline void over(void *arg)
{
    atomic_store(&((struct hook *)arg)->over, 1);
}

static inline void open_hook(struct hook *h, enum how how)
{
    memset(h, 0, sizeof *h);
    h->f = (struct fetch_hook){.arg = h, .before = before, .after = after, .over = over};
    h->gate = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(h->gate >= 0);
    set_how(h, how);
}

static inline void flip(const char *path, off_t at)
{
    uint8_t b = 0;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &b, 1, at) == 1);
    b ^= 0x41;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    close(fd);
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

#endif
