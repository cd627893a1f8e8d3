/* SPDX-License-Identifier: Apache-2.0 */
/* Experts beyond memory where there is no memory: opening a store ends with an error that says so,
 * whichever allocation fails, and leaves nothing behind; giving slots back and taking them again
 * under pressure allocates nothing, and steps allocate what they do with all experts in memory.
 * Steps open no file, with experts, prefixes, keys and values on disk. */
#define _GNU_SOURCE
#include "unit/door.h"
#include "unit/folder.h"
#include "unit/mem_fail.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "expert/store.h"
#include "kv/disk.h"
#include "model/packed.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model[] = "tests/data/nano-v4/nano-v4-MXFP4.gguf";
enum { TOKENS = 24, ANSWER = 4, PLENTY = 1 << 30, EXPERTS = 100 << 10 };

static char dir[64];

/* ---- files that are opened; the program is linked with --wrap for each of these ---- */

static atomic_bool in_step;
static _Thread_local bool steps; /* this thread runs them */
/* within steps, but for what the thread that saves prefixes opens meanwhile */
static atomic_int n_opened, n_times; /* n_times: once for each thread of an engine */
static char opened[256];    /* the last of them */

int __real_open(const char *path, int flags, ...);
int __real_openat(int at, const char *path, int flags, ...);
FILE *__real_fopen(const char *path, const char *mode);
int __wrap_open(const char *path, int flags, ...);
int __wrap_openat(int at, const char *path, int flags, ...);
FILE *__wrap_fopen(const char *path, const char *mode);

static void note_open(const char *path)
{
    /* in its directory */
    const bool of_store = strncmp(path, ".ingle-", 7) == 0 || strcmp(path, ".") == 0;
    if (!atomic_load(&in_step) || (of_store && !steps))
        return;
    if (strcmp(path, "/proc/thread-self/schedstat") == 0) {
        atomic_fetch_add(&n_times, 1);
        return;
    }
    snprintf(opened, sizeof opened, "%s", path);
    atomic_fetch_add(&n_opened, 1);
}

/* The rights of a file that is made; else nothing was given. */
#define MODE_OF(flags, mode)          \
    do {                              \
        va_list more;                 \
        va_start(more, flags);        \
        if (flags & O_CREAT)          \
            mode = va_arg(more, int); \
        va_end(more);                 \
    } while (0)

int __wrap_open(const char *path, int flags, ...)
{
    int mode = 0;
    MODE_OF(flags, mode);
    note_open(path);
    return __real_open(path, flags, mode);
}

int __wrap_openat(int at, const char *path, int flags, ...)
{
    int mode = 0;
    MODE_OF(flags, mode);
    note_open(path);
    return __real_openat(at, path, flags, mode);
}

FILE *__wrap_fopen(const char *path, const char *mode)
{
    note_open(path);
    return __real_fopen(path, mode);
}

/* ---- */

struct world {
    struct ingle_model *m;
    struct ingle_engine *e;
    uint64_t allocated; /* within steps behind the first one */
};

static void open_world(struct world *w, uint64_t budget, bool packed)
{
    const struct ingle_engine_options o = {.pack_cache = packed ? dir : NULL,
                                           .pack_write = packed,
                                           .n_ctx = 512,
                                           .threads = 2,
                                           .expert_bytes = budget};
    w->allocated = 0;
    must(ingle_model_open(&w->m, model, NULL, &error));
    must(ingle_engine_open(&w->e, w->m, &o, &error));
}

static void close_world(struct world *w)
{
    ingle_engine_close(w->e);
    ingle_model_close(w->m);
}

/* Hash of logits behind some tokens. */
static uint64_t compute(struct world *w)
{
    struct ingle_engine_info info;
    struct ingle_session *s;
    int32_t tokens[TOKENS + ANSWER];
    const float *logits;
    uint64_t h = 1;
    ingle_engine_info(w->e, &info);
    ingle_engine_forget(w->e);
    for (int i = 0; i < TOKENS + ANSWER; i++)
        tokens[i] = (int32_t)((i * 7919 + 5) % info.n_vocab);
    must(ingle_session_open(&s, w->e, &error));
    for (int n = TOKENS; n <= TOKENS + ANSWER; n++) {
        must(ingle_session_sync(s, tokens, n, NULL, &error));
        mem_fail_in = n > TOKENS ? PLENTY : 0;
        must(ingle_session_finish(s, &logits, &error));
        w->allocated += n > TOKENS ? (uint64_t)(PLENTY - mem_fail_in) : 0;
        mem_fail_in = 0;
        h = h * 31 + model_packed_sum_of(logits, (size_t)info.n_vocab * sizeof *logits).lo;
    }
    ingle_session_close(s);
    return h;
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ingle-nomem-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    remove_dir(dir);
    return 0;
}

static uint64_t plain_of(uint64_t *all, uint64_t *allocated)
{
    struct world w;
    open_world(&w, 0, false);
    const uint64_t h = compute(&w);
    w.allocated = 0; /* what grows once has grown */
    assert_true(compute(&w) == h);
    *all = model_expert_bytes(w.e->weights);
    *allocated = w.allocated;
    close_world(&w);
    return h;
}

static bool is_short(void *arg, char *why, size_t n)
{
    snprintf(why, n, "a test");
    return *(bool *)arg;
}

static void any_allocation_may_fail_at_the_start(void **state)
{
    (void)state;
    uint64_t all, usual;
    const uint64_t plain = plain_of(&all, &usual);
    for (int packed = 0; packed < 2; packed++) {
        struct world w;
        int n_failed = 0;
        bool whole = false;
        open_world(&w, all - 1, packed);
        expert_store_close(w.e->experts);
        for (int64_t n = 1; !whole; n++) {
            struct err err = {0};
            w.e->experts = NULL;
            mem_fail_in = n;
            const ingle_status st = expert_store_open(
                &w.e->experts, w.e->weights,
                &(struct expert_store_options){.budget_bytes = all - 1, .n_used = 2}, &err);
            whole = mem_fail_in > 0;
            mem_fail_in = 0;
            n_failed += st != INGLE_OK;
            assert_true(n < 200 && (!st || (st == INGLE_NOMEM && strlen(err.msg) > 8)));
            if (!whole) /* what is only useful may do without */
                expert_store_close(w.e->experts);
        }
        assert_true(n_failed > 10);
        assert_true(compute(&w) == plain);
        close_world(&w);
    }
}

static void nothing_is_allocated_under_pressure(void **state)
{
    (void)state;
    uint64_t all, usual, now = clock_now() + EXPERT_QUIET_NS;
    const uint64_t plain = plain_of(&all, &usual);
    struct world w;
    struct ingle_experts full, x;
    struct err err;
    bool pressed = true;
    open_world(&w, all - 1, true);
    expert_store_close(w.e->experts);
    w.e->experts = NULL;
    if (expert_store_open(
            &w.e->experts, w.e->weights,
            &(struct expert_store_options){
                .budget_bytes = all - 1, .n_used = 2, .is_short = is_short, .short_arg = &pressed},
            &err))
        fail_msg("%s", err.msg);
    assert_true(compute(&w) == plain && ingle_engine_experts(w.e, &full));
    for (int i = 0; i < 12; i++) {
        if (i == 6) {
            assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes < full.memory_bytes);
            pressed = false;
            now += EXPERT_QUIET_NS;
        }
        mem_fail_in = PLENTY;
        expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
        assert_int_equal(mem_fail_in, PLENTY);
        mem_fail_in = 0;
        w.allocated = 0;
        assert_true(compute(&w) == plain);
        assert_int_equal(w.allocated, usual);
    }
    assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes == full.memory_bytes);
    close_world(&w);
}

/* Without a file of packed weights, then with one. */
static void steps_open_no_file(void **state)
{
    (void)state;
    enum { PROMPT = 3000, MORE = 20 };
    steps = true;
    for (int packed = 0; packed < 2; packed++) {
        struct ingle_model *m;
        struct ingle_engine *e;
        struct ingle_engine_info info;
        struct ingle_experts x;
        struct kv_disk_counts kv;
        int32_t tokens[PROMPT + MORE];
        char store[96], disk[96];
        snprintf(store, sizeof store, "%s/store%d", dir, packed);
        snprintf(disk, sizeof disk, "%s/kv%d", dir, packed);
        const struct ingle_engine_options o = {.pack_cache = packed ? dir : NULL,
                                               .pack_write = packed,
                                               .n_ctx = 4096,
                                               .max_rows = 64,
                                               .threads = 2,
                                               .expert_bytes = EXPERTS,
                                               .store = store,
                                               .store_tokens = 64,
                                               .kv_disk = disk,
                                               .kv_disk_bytes = 64 << 20,
                                               .cache_bytes = 1,
                                               .kv_pool_tokens = 512};
        must(ingle_model_open(&m, "tests/data/goldens/gemma4_moe/model-F32.gguf", NULL, &error));
        must(ingle_engine_open(&e, m, &o, &error));
        ingle_engine_info(e, &info);
        for (int i = 0; i < PROMPT + MORE; i++)
            tokens[i] = (int32_t)((i * 7919 + 5) % info.n_vocab);
        /* then a part of the prompt comes from the store */
        for (int again = 0; again < 2; again++) {
            struct ingle_session *s;
            struct ingle_reuse r;
            const float *logits;
            must(ingle_session_open(&s, e, &error));
            for (int n = PROMPT; n <= PROMPT + MORE; n++) {
                must(ingle_session_sync(s, tokens, n, &r, &error));
                assert_true(n > PROMPT || !again == !r.from_disk);
                atomic_store(&in_step, true);
                const ingle_status st = ingle_session_finish(s, &logits, &error);
                atomic_store(&in_step, false);
                must(st);
            }
            ingle_session_close(s);
            ingle_engine_forget(e);
        }
        session_runner_disk_count(e->runner, &kv);
        assert_true(kv.written_bytes > 0 && kv.read_bytes > 0);
        assert_true(ingle_engine_experts(e, &x) && x.misses > 0 && x.read_bytes > 0 &&
                    x.packed == packed);
        assert_true(atomic_exchange(&n_times, 0) <= 2);
        if (atomic_load(&n_opened))
            fail_msg("%d files were opened within steps, '%s' at last", atomic_load(&n_opened),
                     opened);
        ingle_engine_close(e);
        ingle_model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(steps_open_no_file, setup, teardown),
        cmocka_unit_test_setup_teardown(any_allocation_may_fail_at_the_start, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_is_allocated_under_pressure, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
