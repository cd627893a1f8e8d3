/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stages - a model whose layers are divided has the bits of one process, wherever it is cut:
 * prompts, answers, forks, rewinds, what is saved and remembered, and what is computed anew when a
 * stage was lost.
 */
#define _GNU_SOURCE
#include "golden/golden.h"
#include "unit/allocations.h"

#include "base/mem.h"
#include <dirent.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct { const char *path, *golden, *kv; enum device_numerics numerics;
} models[] = {
    {"tests/data/goldens/gemma4_dense/model-Q4_0.gguf",
     "tests/data/goldens/gemma4_dense/golden.safetensors", NULL, DEVICE_EXACT},
    {"tests/data/goldens/gemma4_moe/model-F32.gguf",
     "tests/data/goldens/gemma4_moe/golden.safetensors", "f16v", DEVICE_EXACT},
    {"tests/data/goldens/gemma4_ple_e2b/model-F32.gguf",
     "tests/data/goldens/gemma4_ple_e2b/golden.safetensors", NULL, DEVICE_EXACT},
    {"tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf",
     "tests/data/goldens/deepseek_v4_full/golden-MXFP4.safetensors", NULL, DEVICE_EXACT},
    {"tests/data/goldens/deepseek_v4_published/model.safetensors",
     "tests/data/goldens/deepseek_v4_published/golden.safetensors", NULL, DEVICE_FAST},
    {"tests/data/goldens/gemma4_realhd/model-F32.gguf",
     "tests/data/goldens/gemma4_realhd/golden.safetensors", "q8r:n4r+rot", DEVICE_EXACT},
};
enum { N_MODELS = sizeof models / sizeof *models, N = 200 };
enum { SEEDS = UNIT_ASAN || UNIT_TSAN ? 2 : 20 };
static uint64_t first_seed = 1, n_seeds = SEEDS;

static struct golden_options plain(int m)
{
    return (struct golden_options){.numerics = models[m].numerics,
                                   .codec = KERN_KV_F16,
                                   .kv = models[m].kv,
                                   .n_threads = 1,
                                   .max_rows = 64,
                                   .tree_bytes = 16 << 20};
}

static void prompt(int m, int32_t out[N])
{
    int64_t n;
    int32_t *ids = golden_ints(models[m].golden, "input_ids", &n);
    for (int64_t i = 0; i < N; i++)
        out[i] = ids[(i + i / n) % n];
    mem_free(ids);
}

static float *all_of(struct golden_model *g, const int32_t *tokens, int64_t n)
{
    struct err e;
    struct session *s;
    GOLDEN_OK(session_create(&s, g->runner, &e));
    float *x = golden_logits(g, s, tokens, n, 0, NULL);
    session_free(s);
    return x;
}

static void same(const char *what, int m, uint64_t cut, const float *a, const float *b, int64_t n)
{
    if (memcmp(a, b, (size_t)n * sizeof *a) != 0)
        fail_msg("%s: %s, cut %llu: other bits", what, models[m].path, (unsigned long long)cut);
}

static void at_every_cut(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m += UNIT_ASAN || UNIT_TSAN ? 3 : 1) {
        struct golden_model g;
        struct golden_options o = plain(m);
        int32_t tokens[N];
        prompt(m, tokens);
        golden_n_stages = 0;
        golden_open(&g, models[m].path, &o);
        const int64_t n_layers = g.info.n_layers, v = g.info.n_vocab;
        float *want = all_of(&g, tokens, N);
        golden_close(&g);
        for (int k = 1; k <= GOLDEN_STAGES; k++)
            for (int64_t cut = 0; cut < (k == 1 ? n_layers - 1 : 1); cut++) {
                golden_n_stages = k;
                golden_cuts = (uint64_t)(k == 1 ? cut : 7 * m);
                golden_piece_rows = k == 1 ? 0 : 9; /* whole, and in pieces */
                golden_open(&g, models[m].path, &o);
                float *got = all_of(&g, tokens, N);
                same("prompt", m, (uint64_t)cut, got, want, N * v);
                mem_free(got);
                golden_close(&g);
            }
        mem_free(want);
    }
    golden_n_stages = 0;
    golden_piece_rows = 0;
}

static char folder[64]; /* of the engine's files; those of stages have -1, -2, -4 behind it */

static const char *store_of(int i, char out[80])
{
    snprintf(out, 80, i < 0 ? "%s" : "%s-%d", folder, 1 << (i < 0 ? 0 : i));
    return out;
}

/* What to do with each file: NULL counts. */
static int each_file(int i, void (*fn)(const char *path))
{
    char dir[80], path[400];
    int n = 0;
    DIR *d = opendir(store_of(i, dir));
    for (const struct dirent *e; d && (e = readdir(d));) {
        const size_t len = strlen(e->d_name);
        if (len < 4 || strcmp(e->d_name + len - 3, ".kv") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (fn)
            fn(path);
        n++;
    }
    if (d)
        closedir(d);
    return n;
}

static void remove_file(const char *path) { unlink(path); }
static void damage(const char *path)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -100, SEEK_END);
    const int c = getc(f);
    fseek(f, -100, SEEK_END);
    putc(c ^ 1, f);
    fclose(f);
}

static void remove_stores(void)
{
    char dir[80];
    for (int i = -1; i < GOLDEN_STAGES; i++) {
        each_file(i, remove_file);
        rmdir(store_of(i, dir));
    }
}

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    return *seed ^= *seed << 17;
}

/* Any number of tokens, a rewind, a fork, a file, a prefix that is remembered. */
static void do_one(struct golden_model *g, struct session *s[2], int m, const int32_t *tokens,
                   const float *want, uint64_t *seed)
{
    struct err e;
    char path[64];
    const int a = (int)(next(seed) % 2);
    const int64_t v = g->info.n_vocab, length = session_length(s[a]);
    const uint64_t what = next(seed) % 7;
    if (what == 0 && length) {
        GOLDEN_OK(session_rewind(s[a], (int64_t)(next(seed) % (uint64_t)length), &e));
    } else if (what == 1) {
        GOLDEN_OK(session_fork(s[!a], s[a], &e));
    } else if (what == 2 && length && !session_pending(s[a])) {
        snprintf(path, sizeof path, "%s/session", golden_folder());
        const float *logits;
        ingle_status st = session_save(s[a], path, &e);
        for (int i = 0; st == INGLE_LOST && i < 3; i++) { /* what a lost stage had is anew first */
            GOLDEN_OK(session_finish(s[a], &logits, NULL, &e));
            st = session_save(s[a], path, &e);
        }
        GOLDEN_OK(st);
        GOLDEN_OK(session_load(s[!a], path, &e));
        session_prompt(s[!a], N); /* no file says it: fast computes anew what a stage has lost */
        unlink(path);
    } else if (what == 3 && length) {
        GOLDEN_OK(session_remember(s[a], &e));
        GOLDEN_OK(session_sync(s[!a], tokens, length, NULL, &e));
    } else if (what == 5 && length && session_runner_store(g->runner)) {
        GOLDEN_OK(session_remember(s[a], &e));
        if (next(seed) % 2)
            kv_store_flush(session_runner_store(g->runner));
        session_runner_clear_tree(g->runner);
        GOLDEN_OK(session_sync(s[!a], tokens, length, NULL, &e));
        if (g->stages && next(seed) % 4 == 0) /* perhaps in the middle of a save */
            golden_lose_stage(g, (int)(next(seed) % (uint64_t)g->n_stages));
    } else if (what == 4 && g->stages && next(seed) % 3 == 0) {
        golden_lose_stage(g, (int)(next(seed) % (uint64_t)g->n_stages));
    }
    const int64_t at = session_length(s[a]), have = at + session_pending(s[a]),
                  n = 1 + (int64_t)(next(seed) % 40);
    if (have < N)
        GOLDEN_OK(session_append(s[a], tokens + have, n < N - have ? n : N - have, &e));
    session_prompt(s[a], N); /* as those that are compared: fast computes answers otherwise */
    struct session_branch *b;
    GOLDEN_OK(session_branch_create(&b, g->runner, &e));
    for (int64_t from = at; session_pending(s[a]); from = session_length(s[a])) {
        struct session_work w = {.s = s[a], .want = FAMILY_LOGITS_ALL};
        if (session_pending(s[a]) > 8 && next(seed) % 2) { /* nobody waits for it */
            w.want = FAMILY_LOGITS_NONE;
            w.max_tokens = 1 + (int64_t)(next(seed) % 7);
            GOLDEN_OK(session_step(g->runner, &w, 1, NULL, &e));
            if (g->stages && next(seed) % 16 == 0)
                golden_lose_stage(g, (int)(next(seed) % (uint64_t)g->n_stages));
            continue;
        }
        if (session_pending(s[a]) > 4 && session_pending(s[a]) < 40) { /* as what it parts from */
            session_branch_set(b, from + 2, tokens + from + 2, 2);
            w.branch = &b;
            w.n_branches = 1;
        }
        GOLDEN_OK(session_step(g->runner, &w, 1, NULL, &e));
        same("schedule", m, golden_cuts, w.logits, want + from * v, w.n_done * v);
        if (w.n_branches && session_branch_logits(b))
            same("branch", m, golden_cuts, session_branch_logits(b), want + (from + 2) * v, 2 * v);
        session_branch_clear(b);
    }
    session_branch_free(b);
}

static void any_schedule(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct err e;
        struct golden_model g;
        struct session *s[2];
        int32_t tokens[N];
        uint64_t random = seed * UINT64_C(0x9E3779B97F4A7C15);
        const int m = (int)(next(&random) % N_MODELS);
        struct golden_options o = plain(m);
        prompt(m, tokens);
        golden_n_stages = 0;
        golden_open(&g, models[m].path, &o);
        float *want = all_of(&g, tokens, N);
        golden_close(&g);
        golden_n_stages = 1 + (int)(next(&random) % GOLDEN_STAGES);
        golden_cuts = next(&random);
        golden_piece_rows = (int64_t)(next(&random) % 3) * 5;
        const uint64_t stores = next(&random) % 3; /* none, the engine's, at each stage */
        snprintf(folder, sizeof folder, "%s/store", golden_folder());
        o.store = stores ? folder : NULL;
        o.store_min = 1;
        golden_stages_store = stores > 1 ? folder : NULL;
        golden_open(&g, models[m].path, &o);
        for (int k = 0; k < 2; k++)
            GOLDEN_OK(session_create(&s[k], g.runner, &e));
        for (int k = 0; k < 12; k++)
            do_one(&g, s, m, tokens, want, &random);
        for (int k = 0; k < 2; k++)
            session_free(s[k]);
        golden_close(&g);
        remove_stores();
        mem_free(want);
    }
    golden_n_stages = 0;
    golden_piece_rows = 0;
    golden_stages_store = NULL;
}

/* ---- steps that are under way together ---- */

enum { SESSIONS = 5 };

struct flying {
    struct golden_model g;
    struct session *s[SESSIONS];
    bool busy[SESSIONS];
    struct session_work work[SESSION_MOST_FLIGHTS];
    int who[SESSION_MOST_FLIGHTS], m;
    const float *want;
    bool lost;
};

static void compare(struct flying *f, const struct session_work *w, int64_t from)
{
    const int64_t v = f->g.info.n_vocab;
    same("flight", f->m, golden_cuts, w->logits, f->want + from * v, w->n_done * v);
}

static void land(struct flying *f, int i)
{
    struct err e;
    const int64_t from = session_length(f->work[i].s);
    const ingle_status st = session_land(f->g.runner, i, &e);
    if (st && st != INGLE_IO)
        fail_msg("%s", e.msg);
    if (!st && f->who[i] >= 0)
        compare(f, &f->work[i], from);
    f->lost = f->lost || st;
    if (f->who[i] >= 0)
        f->busy[f->who[i]] = false;
}

static void land_all(struct flying *f, int n)
{
    struct err e;
    for (int i = 0; i < n; i++)
        if (session_flies(f->g.runner, i))
            land(f, i);
    for (int k = 0; k < SESSIONS && f->lost; k++)
        while (session_pending(f->s[k])) {
            struct session_work w = {.s = f->s[k], .want = FAMILY_LOGITS_ALL};
            const int64_t from = session_length(f->s[k]);
            GOLDEN_OK(session_step(f->g.runner, &w, 1, NULL, &e));
            compare(f, &w, from);
        }
    f->lost = false;
}

/* A part of the sends are chunks of which nothing comes back: whose they are goes on at once. */
static void send(struct flying *f, int i, const int32_t *tokens, uint64_t *seed)
{
    struct err e;
    const int k = (int)(next(seed) % SESSIONS);
    const int64_t have = session_length(f->s[k]), n = 1 + (int64_t)(next(seed) % 30);
    if (f->busy[k])
        return;
    if (have && next(seed) % 8 == 0) {
        GOLDEN_OK(session_rewind(f->s[k], (int64_t)(next(seed) % (uint64_t)have), &e));
        return;
    }
    if (have == N)
        return;
    GOLDEN_OK(session_append(f->s[k], tokens + have, n < N - have ? n : N - have, &e));
    session_prompt(f->s[k], N);
    const bool chunk = next(seed) % 3 == 0;
    f->work[i] = (struct session_work){.s = f->s[k],
                                       .want = chunk ? FAMILY_LOGITS_NONE : FAMILY_LOGITS_ALL};
    f->who[i] = chunk ? -1 : k;
    f->lost = session_fly(f->g.runner, i, &f->work[i], 1, &e) || f->lost;
    f->busy[k] = session_flies(f->g.runner, i) && !chunk;
    if (chunk && session_flies(f->g.runner, i))
        assert_int_equal(session_pending(f->s[k]), 0);
}

static void steps_under_way(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + (n_seeds + 3) / 4; seed++) {
        struct err e;
        int32_t tokens[N];
        uint64_t random = seed * UINT64_C(0x9E3779B97F4A7C15);
        struct flying f = {.m = (int)(next(&random) % N_MODELS)};
        struct golden_options o = plain(f.m);
        prompt(f.m, tokens);
        golden_n_stages = 0;
        golden_open(&f.g, models[f.m].path, &o);
        float *want = all_of(&f.g, tokens, N);
        f.want = want;
        golden_close(&f.g);
        golden_n_stages = 1 + (int)(next(&random) % GOLDEN_STAGES);
        golden_cuts = next(&random);
        golden_open(&f.g, models[f.m].path, &o);
        const int n = session_runner_flights(f.g.runner);
        assert_int_equal(n, f.g.n_stages + 1);
        for (int k = 0; k < SESSIONS; k++)
            GOLDEN_OK(session_create(&f.s[k], f.g.runner, &e));
        for (int k = 0; k < 60; k++) {
            const int i = (int)(next(&random) % (uint64_t)n);
            if (session_flies(f.g.runner, i))
                land(&f, i);
            else if (!f.lost)
                send(&f, i, tokens, &random);
            if (next(&random) % 40 == 0)
                golden_lose_stage(&f.g, (int)(next(&random) % (uint64_t)f.g.n_stages));
            if (f.lost)
                land_all(&f, n);
        }
        land_all(&f, n);
        for (int k = 0; k < SESSIONS; k++)
            session_free(f.s[k]);
        golden_close(&f.g);
        mem_free(want);
    }
    golden_n_stages = 0;
}

/* A file of one process is that of several, and fits them. */
static void one_file(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m += 2) {
        struct err e;
        struct golden_model g;
        int32_t tokens[N];
        char path[2][64];
        struct golden_options o = plain(m);
        prompt(m, tokens);
        for (int k = 0; k < 2; k++) {
            struct session *s, *t;
            snprintf(path[k], sizeof path[k], "%s/session-%d", golden_folder(), k);
            golden_n_stages = k;
            golden_cuts = 1;
            golden_open(&g, models[m].path, &o);
            GOLDEN_OK(session_create(&s, g.runner, &e));
            mem_free(golden_logits(&g, s, tokens, N - 1, 0, NULL));
            GOLDEN_OK(session_save(s, path[k], &e));
            if (k) { /* the other one's */
                float *want = golden_logits(&g, s, tokens + N - 1, 1, 0, NULL);
                GOLDEN_OK(session_create(&t, g.runner, &e));
                GOLDEN_OK(session_load(t, path[0], &e));
                float *got = golden_logits(&g, t, tokens + N - 1, 1, 0, NULL);
                same("file", m, 1, got, want, g.info.n_vocab);
                mem_free(got);
                mem_free(want);
                session_free(t);
            }
            session_free(s);
            golden_close(&g);
        }
        golden_same_files(path[0], path[1]);
        unlink(path[0]);
        unlink(path[1]);
    }
    golden_n_stages = 0;
}

/* ---- files at each stage ---- */

/* A process that has all of the prompt at once, and what it finds of it on disk. */
static int64_t ask_again(int m, const int32_t *tokens, int64_t n, const float *want)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    struct session_reuse reuse;
    struct golden_options o = plain(m);
    o.store = folder;
    o.store_min = 1;
    golden_open(&g, models[m].path, &o);
    GOLDEN_OK(session_create(&s, g.runner, &e));
    GOLDEN_OK(session_sync(s, tokens, n, &reuse, &e));
    for (int64_t from = session_length(s); session_pending(s); from = session_length(s)) {
        struct session_work w = {.s = s, .want = FAMILY_LOGITS_ALL};
        GOLDEN_OK(session_step(g.runner, &w, 1, NULL, &e));
        same("restored", m, golden_cuts, w.logits, want + from * g.info.n_vocab,
             w.n_done * g.info.n_vocab);
    }
    GOLDEN_OK(session_remember(s, &e));
    session_free(s);
    golden_close(&g);
    return reuse.from_disk;
}

static void files_at_stages(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m += UNIT_ASAN || UNIT_TSAN ? 3 : 1) {
        struct golden_model g;
        struct golden_options o = plain(m);
        int32_t tokens[N];
        prompt(m, tokens);
        snprintf(folder, sizeof folder, "%s/store", golden_folder());
        golden_n_stages = 0;
        golden_stages_store = NULL;
        golden_open(&g, models[m].path, &o);
        float *want = all_of(&g, tokens, N);
        const int most = (int)g.info.n_layers - 1;
        golden_close(&g);
        golden_n_stages = 1 + m % GOLDEN_STAGES < most ? 1 + m % GOLDEN_STAGES : most;
        golden_cuts = (uint64_t)(m * 5 + 1);
        golden_stages_store = folder;
        assert_int_equal(ask_again(m, tokens, 90, want), 0);
        for (int i = -1; i < golden_n_stages; i++)
            assert_int_equal(each_file(i, NULL), 1);
        assert_int_equal(ask_again(m, tokens, 150, want), 90);
        assert_int_equal(ask_again(m, tokens, N, want), 150);
        for (int i = -1; i < golden_n_stages; i++)
            assert_int_equal(each_file(i, NULL), 3);
        /* what one has lost is had by nobody, until it is computed and saved again */
        each_file(golden_n_stages - 1, remove_file);
        assert_int_equal(ask_again(m, tokens, N, want), 0);
        assert_int_equal(ask_again(m, tokens, N, want), N - 1);
        each_file(0, damage);
        assert_int_equal(ask_again(m, tokens, N, want), 0);
        for (int i = 0; ask_again(m, tokens, N, want) != N - 1; i++) /* one after the other */
            assert_true(i < 3);
        each_file(-1, damage);
        assert_int_equal(ask_again(m, tokens, N, want), 0);
        /* a stage without a store: other files */
        golden_stages_without = 1;
        assert_int_equal(ask_again(m, tokens, 100, want), 0);
        assert_int_equal(ask_again(m, tokens, N, want), 100);
        golden_stages_without = 0;
        remove_stores();
        mem_free(want);
    }
    golden_n_stages = 0;
    golden_stages_store = NULL;
}

/* One that is there again and again, and late each time, ends the step after the second time. */
static void a_stage_that_stays_late(void **state)
{
    (void)state;
    struct err e;
    struct golden_model g;
    struct session *s;
    int32_t tokens[N];
    struct golden_options o = plain(0);
    const float *logits;
    prompt(0, tokens);
    golden_n_stages = 1;
    golden_cuts = 1;
    golden_late_ns = 300000000;
    atomic_store(&golden_stalls, 0);
    golden_open(&g, models[0].path, &o);
    GOLDEN_OK(session_create(&s, g.runner, &e));
    float *want = golden_logits(&g, s, tokens, 40, 0, NULL);
    atomic_store(&golden_stall_ms, 700);
    ingle_status st = INGLE_OK;
    for (int k = 0; k < 50 && !st; k++) { /* without a processor it is in time */
        GOLDEN_OK(session_rewind(s, 0, &e));
        GOLDEN_OK(session_append(s, tokens, 40, &e));
        const int before = atomic_load(&golden_stalls);
        for (int i = 0; i < 60000 && atomic_load(&golden_stalls) == before; i++)
            usleep(1000); /* until it stands still */
        st = session_finish(s, &logits, NULL, &e);
    }
    assert_int_equal(st, INGLE_IO);
    assert_non_null(strstr(e.msg, "it has not answered for"));
    assert_true(stage_remote_losses(g.stages) >= 2);
    atomic_store(&golden_stall_ms, 0);
    GOLDEN_OK(session_finish(s, &logits, NULL, &e));
    same("late", 0, 1, logits, want + 39 * g.info.n_vocab, g.info.n_vocab);
    mem_free(want);
    session_free(s);
    golden_close(&g);
    golden_n_stages = 0;
    golden_late_ns = 0;
}

/* Steps of which nothing comes back end before the stages do; what fails there is computed anew. */
static void a_prompt_ahead(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m += UNIT_ASAN || UNIT_TSAN ? 3 : 1) {
        struct err e;
        struct golden_model g;
        struct session *s;
        int32_t tokens[N];
        struct golden_options o = plain(m);
        const float *logits;
        prompt(m, tokens);
        golden_n_stages = 0;
        golden_open(&g, models[m].path, &o);
        float *want = all_of(&g, tokens, N);
        golden_close(&g);
        golden_n_stages = 1 + m % 2;
        golden_cuts = 1;
        o.max_rows = 24;
        golden_open(&g, models[m].path, &o);
        const int64_t v = g.info.n_vocab;
        GOLDEN_OK(session_create(&s, g.runner, &e));
        for (int k = 0; k < 2; k++) { /* whole; and a stage is lost with steps */
            GOLDEN_OK(session_rewind(s, 0, &e));
            GOLDEN_OK(session_append(s, tokens, N, &e));
            session_prompt(s, N);
            atomic_store(&golden_stall_ms, 100);
            for (int i = 0; i < 3; i++) {
                struct session_work w = {.s = s, .want = FAMILY_LOGITS_NONE};
                GOLDEN_OK(session_step(g.runner, &w, 1, NULL, &e));
            }
            assert_true(stage_remote_is_ahead(g.stages));
            atomic_store(&golden_stall_ms, 0);
            if (k)
                golden_lose_stage(&g, 0);
            GOLDEN_OK(session_finish(s, &logits, NULL, &e));
            assert_false(stage_remote_is_ahead(g.stages));
            same("ahead", m, 1, logits, want + (N - 1) * v, v);
        }
        mem_free(want);
        session_free(s);
        golden_close(&g);
    }
    golden_n_stages = 0;
}

/* ---- memory ---- */

/* Bytes to the first stage and from the last one since then. */
struct moved { uint64_t there, back; };
static struct moved moved_since(const struct golden_model *g, struct moved then)
{
    struct stage_remote_counts first, last;
    stage_remote_count(g->stages, 0, &first);
    stage_remote_count(g->stages, g->n_stages - 1, &last);
    return (struct moved){first.sent_bytes - then.there, last.received_bytes - then.back};
}

/* A step of an answer has its memory, also of messages, before the first one, here and at the
 * stages.  DeepSeek V4's four streams of a row go there, and one row comes back. */
static void steps_of_an_answer(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) { /* one by one, and under way together */
        struct err e;
        struct golden_model g;
        struct session *s;
        int32_t tokens[N];
        struct golden_options o = plain(3);
        prompt(3, tokens);
        golden_n_stages = 2;
        golden_cuts = 1;
        golden_open(&g, models[3].path, &o);
        GOLDEN_OK(session_create(&s, g.runner, &e));
        GOLDEN_OK(session_append(s, tokens, N, &e)); /* its list has room */
        GOLDEN_OK(session_rewind(s, 0, &e));
        mem_free(golden_logits(&g, s, tokens, 20, 0, NULL));
        const struct moved then = moved_since(&g, (struct moved){0, 0});
        for (int i = 0; i < 40; i++) {
            struct session_work w = {.s = s, .want = FAMILY_LOGITS_LAST};
            const int before = atomic_load(&allocations);
            GOLDEN_OK(session_append(s, tokens + 20 + i, 1, &e));
            if (k) {
                GOLDEN_OK(session_fly(g.runner, 0, &w, 1, &e));
                GOLDEN_OK(session_land(g.runner, 0, &e));
            } else {
                GOLDEN_OK(session_step(g.runner, &w, 1, NULL, &e));
            }
            assert_int_equal(atomic_load(&allocations), before);
        }
        const struct moved moved = moved_since(&g, then);
        const uint64_t row = sizeof(float) * (uint64_t)g.info.n_embd, head = 16, most = 256;
        assert_in_range(moved.there, 40 * 4 * row, 40 * (4 * row + most));
        assert_int_equal(moved.back, 40 * (row + head));
        session_free(s);
        golden_close(&g);
    }
    assert_true(atomic_load(&allocations) > 0); /* they are counted */
    golden_n_stages = 0;
}

/* ---- networks that draft ---- */

enum { ROUNDS = 12, DRAFTS = 4 };

static bool draw_best(void *arg, int64_t i, int64_t j, const float *logits, int32_t *token)
{
    const struct golden_model *g = arg;
    (void)i;
    (void)j;
    *token = (int32_t)golden_best(logits, g->info.n_vocab);
    return true;
}

static int32_t finish(struct golden_model *g, struct session *s)
{
    struct err e;
    const float *logits = NULL;
    GOLDEN_OK(session_finish(s, &logits, NULL, &e));
    return (int32_t)golden_best(logits, g->info.n_vocab);
}

/* Rounds after a prompt, each for the tokens that come next: what was drafted. */
static void drafts_of(const char *target, const char *draft, int32_t out[ROUNDS * DRAFTS])
{
    struct err e;
    struct golden_model g;
    struct session *s;
    int32_t tokens[N];
    prompt(3, tokens);
    golden_open(&g, target,
                &(struct golden_options){.n_threads = 1,
                                         .max_rows = 64,
                                         .draft = true,
                                         .draft_file = draft});
    assert_true(!golden_n_stages || g.stages);
    const int64_t width = g.draft_info.most < DRAFTS ? g.draft_info.most : DRAFTS;
    for (int i = 0; i < N; i++)
        tokens[i] = (int32_t)((int64_t)tokens[i] % g.info.n_vocab);
    GOLDEN_OK(session_create(&s, g.runner, &e));
    GOLDEN_OK(session_append(s, tokens, N / 2, &e));
    int32_t token = finish(&g, s);
    for (int i = 0; i < ROUNDS; i++) {
        struct session_draft item = {.s = s, .width = width, .token = out + i * DRAFTS};
        GOLDEN_OK(session_append(s, &token, 1, &e));
        GOLDEN_OK(session_draft(g.runner, &item, 1, draw_best, &g, NULL, &e));
        assert_int_equal(item.n, width);
        if (i == ROUNDS / 2 && g.stages)
            golden_lose_stage(&g, 0);
        token = finish(&g, s);
    }
    session_free(s);
    golden_close(&g);
}

/* The same rounds of two sessions, each while a step of the other one is at the stages. */
static void drafts_under_way(const char *target, const char *draft,
                             const int32_t want[ROUNDS * DRAFTS])
{
    struct err e;
    struct golden_model g;
    struct session *s[2];
    struct session_work work[2];
    int32_t tokens[N], token[2], got[DRAFTS];
    prompt(3, tokens);
    golden_open(&g, target,
                &(struct golden_options){.n_threads = 1,
                                         .max_rows = 64,
                                         .draft = true,
                                         .draft_file = draft});
    const int64_t width = g.draft_info.most < DRAFTS ? g.draft_info.most : DRAFTS;
    for (int i = 0; i < N; i++)
        tokens[i] = (int32_t)((int64_t)tokens[i] % g.info.n_vocab);
    for (int k = 0; k < 2; k++)
        GOLDEN_OK(session_create(&s[k], g.runner, &e));
    GOLDEN_OK(session_append(s[0], tokens, N / 2, &e));
    token[0] = token[1] = finish(&g, s[0]);
    GOLDEN_OK(session_fork(s[1], s[0], &e));
    for (int i = 0; i < 2 * ROUNDS + 2; i++) {
        const int k = i % 2;
        if (session_flies(g.runner, k)) {
            const bool landed = session_land(g.runner, k, &e) == INGLE_OK;
            token[k] = landed ? (int32_t)golden_best(work[k].logits, g.info.n_vocab) : -1;
        }
        if (i >= 2 && token[k] < 0) { /* a stage was lost */
            if (session_flies(g.runner, !k))
                token[!k] = session_land(g.runner, !k, &e) ? -1 : (int32_t)golden_best(
                                                    work[!k].logits, g.info.n_vocab);
            token[k] = finish(&g, s[k]);
        }
        if (i >= 2 * ROUNDS)
            continue;
        struct session_draft item = {.s = s[k], .width = width, .token = got};
        GOLDEN_OK(session_append(s[k], &token[k], 1, &e));
        GOLDEN_OK(session_draft(g.runner, &item, 1, draw_best, &g, NULL, &e));
        if (item.n) /* else a stage was lost just now */
            assert_memory_equal(got, want + i / 2 * DRAFTS, (size_t)width * sizeof *got);
        if (i == ROUNDS)
            golden_lose_stage(&g, 0);
        work[k] = (struct session_work){.s = s[k], .want = FAMILY_LOGITS_LAST};
        token[k] = -1;
        (void)!session_fly(g.runner, k, &work[k], 1, &e);
    }
    for (int k = 0; k < 2; k++)
        session_free(s[k]);
    golden_close(&g);
}

static void drafters(void **state)
{
    (void)state;
    static const struct { const char *target, *draft;
    } pairs[] = {
        {"tests/data/nano-v4/nano-v4-MXFP4.gguf", "tests/data/nano-v4/nano-v4-dspark-Q8_0.gguf"},
        {"tests/data/nano-v4/nano-v4-MXFP4.gguf", "tests/data/nano-v4/nano-v4-mtp0-Q8_0.gguf"},
        {"tests/data/nano/nano-gemma4-Q4_K_M.gguf",
         "tests/data/nano/nano-gemma4-dflash-Q8_0.gguf"},
        {"tests/data/nano/nano-gemma4-Q4_K_M.gguf",
         "tests/data/nano/nano-gemma4-dspark-Q8_0.gguf"}};
    for (int i = 0; i < (int)(sizeof pairs / sizeof *pairs); i += UNIT_ASAN || UNIT_TSAN ? 3 : 1) {
        int32_t want[ROUNDS * DRAFTS] = {0}, got[ROUNDS * DRAFTS] = {0};
        golden_n_stages = 0;
        drafts_of(pairs[i].target, pairs[i].draft, want);
        golden_n_stages = 1 + i % 2;
        golden_cuts = (uint64_t)i;
        golden_piece_rows = i % 2 ? 16 : 0;
        drafts_of(pairs[i].target, pairs[i].draft, got);
        assert_memory_equal(got, want, sizeof want);
        drafts_under_way(pairs[i].target, pairs[i].draft, want);
    }
    golden_n_stages = 0;
    golden_piece_rows = 0;
}

/* --seeds=FIRST:N: schedules of other seeds, and nothing else. */
int main(int argc, char **argv)
{
    const struct CMUnitTest some[] = {cmocka_unit_test(any_schedule),
                                      cmocka_unit_test(steps_under_way)};
    if (argc == 2 && sscanf(argv[1], "--seeds=%" SCNu64 ":%" SCNu64, &first_seed, &n_seeds) == 2)
        return cmocka_run_group_tests(some, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_every_cut),
        cmocka_unit_test(any_schedule),
        cmocka_unit_test(steps_under_way),
        cmocka_unit_test(one_file),
        cmocka_unit_test(files_at_stages),
        cmocka_unit_test(a_stage_that_stays_late),
        cmocka_unit_test(a_prompt_ahead),
        cmocka_unit_test(steps_of_an_answer),
        cmocka_unit_test(drafters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
