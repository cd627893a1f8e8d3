/* SPDX-License-Identifier: Apache-2.0 */
/*
 * one_arithmetic - the contract: the bits of a row's logits are a function of the tokens
 * before it alone, whatever else is in the batch, however the prompt is cut, with any
 * number of threads and any kernel; a rewound, forked or restored session continues with
 * the bits of a fresh one.
 */
#define _DEFAULT_SOURCE
#include "golden/golden.h"
#include "unit/folder.h"

#include "base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sliding and full layers, K = V, int8 activations; experts; shared keys and values;
 * compressed rows, their choice and hyper-connections. */
static const struct {
    const char *path, *golden;
    enum device_numerics numerics;
    const char *kv; /* NULL: f16 */
} models[] = {
    {"tests/data/goldens/gemma4_dense/model-Q4_0.gguf",
     "tests/data/goldens/gemma4_dense/golden.safetensors", DEVICE_EXACT, NULL},
    {"tests/data/goldens/gemma4_moe/model-F32.gguf",
     "tests/data/goldens/gemma4_moe/golden.safetensors", DEVICE_EXACT, NULL},
    {"tests/data/goldens/gemma4_ple_e2b/model-F32.gguf",
     "tests/data/goldens/gemma4_ple_e2b/golden.safetensors", DEVICE_EXACT, NULL},
    {"tests/data/nano/nano-gemma4-Q4_K_M.gguf",
     "tests/data/goldens/gemma4_dense/golden.safetensors", DEVICE_EXACT, NULL},
    {"tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf",
     "tests/data/goldens/deepseek_v4_full/golden-MXFP4.safetensors", DEVICE_EXACT, NULL},
    /* FP8 and BF16: another arithmetic, the same contract */
    {"tests/data/goldens/deepseek_v4_published/model.safetensors",
     "tests/data/goldens/deepseek_v4_published/golden.safetensors", DEVICE_FAST, NULL},
    {"tests/data/goldens/gemma4_realhd/model-F32.gguf",
     "tests/data/goldens/gemma4_realhd/golden.safetensors", DEVICE_EXACT, "q8r:n4r+rot"},
    {"tests/data/goldens/gemma4_realhd/model-F32.gguf",
     "tests/data/goldens/gemma4_realhd/golden.safetensors", DEVICE_EXACT,
     "full=tq3_0,sliding=q8r,0=f16,1=n4r:q8r"},
    {"tests/data/goldens/gemma4_moe/model-F32.gguf",
     "tests/data/goldens/gemma4_moe/golden.safetensors", DEVICE_EXACT, "f16v"},
};
/* the last ones: under the thread sanitizer threads do the same with any codec */
enum { CODED = 3 };
enum { N_MODELS = sizeof models / sizeof *models - (UNIT_TSAN ? CODED : 0), N = 300 };
/* a test takes every second model, under sanitizers every third, the next test others */
static int step(void)
{
    return UNIT_TSAN || UNIT_ASAN || GOLDEN_CARD ? 3 : unit_some(2, 1);
}

/* 300 tokens: pages, windows and their borders are crossed. */
static void prompt(int model, int32_t out[N])
{
    int64_t n;
    int32_t *ids = golden_ints(models[model].golden, "input_ids", &n);
    for (int64_t i = 0; i < N; i++)
        out[i] = ids[(i + i / n) % n];
    mem_free(ids);
}

static struct golden_options plain(int model)
{
    return (struct golden_options){.numerics = models[model].numerics,
                                   .codec = KERN_KV_F16,
                                   .kv = models[model].kv,
                                   .tree_bytes = 64 << 20};
}

static void open_plain(struct golden_model *g, int model)
{
    const struct golden_options o = plain(model);
    golden_open(g, models[model].path, &o);
}

static float *fresh(struct golden_model *g, const int32_t *tokens, int64_t n, int64_t chunk)
{
    struct err e;
    struct session *s;
    GOLDEN_OK(session_create(&s, g->runner, &e));
    float *logits = golden_logits(g, s, tokens, n, chunk, NULL);
    session_free(s);
    return logits;
}

static void same(const char *what, const float *a, const float *b, int64_t n)
{
    if (n && !memcmp(a, b, (size_t)n * sizeof *a))
        return;
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s: element %lld is %a, not %a", what, (long long)i, (double)a[i],
                     (double)b[i]);
}

static void any_cut_of_a_prompt(void **state)
{
    (void)state;
    static const int64_t chunks[] = {1, 7, 64, 127, 128, 129, 250};
    for (int m = 0 % step(); m < N_MODELS; m += step()) {
        struct golden_model g;
        int32_t tokens[N];
        prompt(m, tokens);
        open_plain(&g, m);
        float *whole = fresh(&g, tokens, N, 0);
        for (size_t i = UNIT_TSAN     ? 6
                        : GOLDEN_CARD ? 4
                        : UNIT_ASAN   ? 1
                                      : 0;
             i < sizeof chunks / sizeof *chunks; i += UNIT_ASAN ? 2 : 1) {
            float *cut = fresh(&g, tokens, N, chunks[i]);
            same("chunks", cut, whole, N * g.info.n_vocab);
            mem_free(cut);
        }
        mem_free(whole);
        golden_close(&g);
    }
}

static void any_threads_and_kernels(void **state)
{
    (void)state;
    static const char *const levels[] = {"ref", "avx2", "avx512", "avx512vnni", "avx512vbmi"};
    for (int m = 1 % step(); m < N_MODELS; m += step()) {
        struct golden_model g;
        int32_t tokens[N];
        prompt(m, tokens);
        open_plain(&g, m);
        float *want = fresh(&g, tokens, N, 0);
        golden_close(&g);
        /* Each recipe of fast is one instruction set's. */
        for (int i = UNIT_TSAN                           ? 7
                     : models[m].numerics == DEVICE_FAST ? 5
                                                         : 0;
             i < (UNIT_ASAN ? 7 : 8); i++) {
            struct golden_options o = plain(m);
            uint32_t mask = UINT32_MAX;
            if (i < 5)
                assert_true(cpu_level(levels[i], &mask));
            else
                o.n_threads = (int[]){1, 3, 5}[i - 5];
            if (i < 5 && strcmp(cpu_name(mask & cpu_detect()), levels[i]))
                print_message("not on this machine: %s\n", levels[i]);
            /* ref has no bits set; bit 31 is no bundle */
            o.cpu = mask | UINT32_C(1) << 31;
            golden_open(&g, models[m].path, &o);
            const int64_t n = i ? N : 140; /* plain C is slow */
            float *got = fresh(&g, tokens, n, 0);
            same(i < 5 ? levels[i] : "threads", got, want, n * g.info.n_vocab);
            mem_free(got);
            golden_close(&g);
        }
        mem_free(want);
    }
}

static void alone_or_in_a_batch(void **state)
{
    (void)state;
    enum { K = UNIT_TSAN || GOLDEN_CARD ? 3 : 5 };
    for (int m = 2 % step(); m < N_MODELS; m += step()) {
        struct err e;
        struct golden_model g;
        int32_t tokens[K][N];
        float *want[K];
        struct session *s[K];
        int64_t done[K] = {0};
        open_plain(&g, m);
        for (int k = 0; k < K; k++) {
            prompt(m, tokens[k]);
            for (int i = 0; i < k * 40; i++)
                tokens[k][N - 1 - i] = tokens[k][i];
            want[k] = fresh(&g, tokens[k], N, 0);
            GOLDEN_OK(session_create(&s[k], g.runner, &e));
            GOLDEN_OK(session_append(s[k], tokens[k], N, &e));
            session_prompt(s[k], session_pending(s[k]));
        }
        /* Each session moves by another number of tokens a step. */
        for (int64_t left = K * N; left && (!UNIT_TSAN || done[0] < 40);) {
            struct session_work w[K];
            for (int k = 0; k < K; k++)
                w[k] = (struct session_work){
                    .s = s[k], .max_tokens = 1 + k * 13, .want = FAMILY_LOGITS_ALL};
            GOLDEN_OK(session_step(g.runner, w, K, NULL, &e));
            for (int k = 0; k < K; k++) {
                same("batch", w[k].logits, want[k] + done[k] * g.info.n_vocab,
                     w[k].n_done * g.info.n_vocab);
                done[k] += w[k].n_done;
                left -= w[k].n_done;
            }
        }
        for (int k = 0; k < K; k++) {
            session_free(s[k]);
            mem_free(want[k]);
        }
        golden_close(&g);
    }
}

/* A prompt in steps of `chunk` tokens (0: as many as fit), then an answer, `each` tokens a step,
 * beside another session's prompt (or NULL), 10 tokens a step: f32 [ANSWER + 1][n_vocab]. */
enum { PROMPT = 200, ANSWER = 12 };
static float *answer(struct golden_model *g, const int32_t *tokens, int64_t chunk, int64_t each,
                     struct session *other)
{
    struct err e;
    struct session *s;
    const size_t v = (size_t)g->info.n_vocab;
    float *logits = mem_calloc((ANSWER + 1) * v, sizeof *logits), *to = logits;
    assert_non_null(logits);
    GOLDEN_OK(session_create(&s, g->runner, &e));
    GOLDEN_OK(session_sync(s, tokens, PROMPT, NULL, &e));
    for (int64_t n = PROMPT; n < PROMPT + ANSWER;) {
        struct session_work w[] = {
            {.s = other ? other : s, .max_tokens = 10, .want = FAMILY_LOGITS_NONE},
            {.s = s, .max_tokens = chunk, .want = FAMILY_LOGITS_LAST}};
        struct session_work *const mine = &w[1];
        const bool prompts = session_length(s) < PROMPT;
        if (!prompts) {
            GOLDEN_OK(session_append(s, tokens + n, each, &e));
            n += each;
            mine->max_tokens = 0;
            mine->want = FAMILY_LOGITS_ALL;
        }
        const bool both = other && !prompts && session_pending(other) > 0;
        GOLDEN_OK(session_step(g->runner, both ? w : mine, both ? 2 : 1, NULL, &e));
        assert_int_equal(session_pending(s), prompts ? PROMPT - session_length(s) : 0);
        memcpy(to, mine->logits ? mine->logits : to, (size_t)mine->n_logits * v * sizeof *to);
        to += (size_t)mine->n_logits * v;
    }
    assert_ptr_equal(to, logits + (ANSWER + 1) * v);
    session_free(s);
    return logits;
}

/* Steps longer than what is attended at a time, of sessions that begin and end anywhere in its
 * blocks. */
static void long_steps(void **state)
{
    (void)state;
    enum { LONG = 700, SHORT = 30, LAST = 650, K = 3 };
    static const int64_t length[K] = {SHORT, LONG, LAST};
    for (int m = 4; m < N_MODELS; m += GOLDEN_CARD ? 4 : 1) {
        struct err e;
        struct golden_model g;
        struct session *s[K];
        struct session_work w[K];
        int32_t some[N], tokens[LONG];
        float *want[K];
        struct golden_options o = plain(m);
        o.n_ctx = 1024;
        prompt(m, some);
        for (int64_t i = 0; i < LONG; i++)
            tokens[i] = some[(i * 7 + i / N) % N];
        golden_open(&g, models[m].path, &o);
        for (int k = 0; k < K; k++)
            want[k] = fresh(&g, tokens + k, length[k] - k, 100);
        golden_close(&g);
        o.max_rows = SHORT + LONG + LAST;
        golden_open(&g, models[m].path, &o);
        for (int k = 0; k < K; k++) {
            GOLDEN_OK(session_create(&s[k], g.runner, &e));
            GOLDEN_OK(session_append(s[k], tokens + k, length[k] - k, &e));
            session_prompt(s[k], session_pending(s[k]));
            w[k] = (struct session_work){.s = s[k], .want = FAMILY_LOGITS_ALL};
        }
        GOLDEN_OK(session_step(g.runner, w, K, NULL, &e));
        for (int k = 0; k < K; k++) {
            assert_int_equal(w[k].n_done, length[k] - k);
            same("long steps", w[k].logits, want[k], w[k].n_done * g.info.n_vocab);
            session_free(s[k]);
            mem_free(want[k]);
        }
        golden_close(&g);
    }
}

/* With fast numerics a prompt is attended, and its quantised weights are multiplied, otherwise, and
 * that is all that its rows know. */
static void check_fast(int model)
{
    static const struct { int64_t chunk, each; } ways[] = {{7, 1}, {64, 3}, {0, ANSWER}};
    const struct golden_options o = {.numerics = DEVICE_FAST, .codec = KERN_KV_F16};
    struct err e;
    struct golden_model g;
    int32_t tokens[N];
    golden_open(&g, models[model].path, &o);
    if (!strcmp(device_numerics_name(g.device), "exact")) { /* no instructions for it here */
        golden_close(&g);
        return;
    }
    const int64_t v = g.info.n_vocab;
    prompt(model, tokens);
    float *want = answer(&g, tokens, 0, 1, NULL);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        float *got = answer(&g, tokens, ways[i].chunk, ways[i].each, NULL);
        same("cut", got, want, (ANSWER + 1) * v);
        mem_free(got);
    }
    struct session *other;
    const float *last;
    GOLDEN_OK(session_create(&other, g.runner, &e));
    GOLDEN_OK(session_sync(other, tokens + 1, PROMPT, NULL, &e));
    float *got = answer(&g, tokens, 0, 1, other);
    same("beside a prompt", got, want, (ANSWER + 1) * v);
    float *alone = answer(&g, tokens + 1, 0, 1, NULL);
    GOLDEN_OK(session_finish(other, &last, NULL, &e));
    same("the prompt", last, alone, v);
    mem_free(alone);
    mem_free(got);
    mem_free(want);
    session_free(other);
    golden_close(&g);
}

static void a_fast_prompt_and_its_answer(void **state)
{
    (void)state;
    for (int model = 0; model < N_MODELS; model++)
        check_fast(model);
}

/* Goes back to `to` tokens and computes again what it had. */
static void check_rewind(struct golden_model *g, struct session *s, const int32_t *tokens,
                         const float *want, int64_t to)
{
    struct err e;
    GOLDEN_OK(session_rewind(s, to, &e));
    assert_int_equal(session_length(s) + session_pending(s), to);
    const int64_t recomputed = session_pending(s);
    int64_t at = session_length(s);
    GOLDEN_OK(session_append(s, tokens + to, N - to, &e));
    while (at < N) {
        struct session_work w = {
            .s = s, .max_tokens = recomputed ? 0 : 9, .want = FAMILY_LOGITS_ALL};
        GOLDEN_OK(session_step(g->runner, &w, 1, NULL, &e));
        same("rewind", w.logits, want + at * g->info.n_vocab, w.n_done * g->info.n_vocab);
        at += w.n_done;
    }
}

static void after_a_rewind(void **state)
{
    (void)state;
    for (int m = 3 % step(); m < N_MODELS; m += step()) {
        struct err e;
        struct golden_model g;
        struct session *s;
        int32_t tokens[N], other[64];
        prompt(m, tokens);
        open_plain(&g, m);
        float *want = fresh(&g, tokens, N, 0);
        GOLDEN_OK(session_create(&s, g.runner, &e));
        mem_free(golden_logits(&g, s, tokens, N, 0, NULL));
        for (int64_t back = UNIT_TSAN ? 31 : UNIT_ASAN ? 7 : 1; back <= 64; back = back * 2 + 1) {
            /* Other tokens first, so that stale rows would show. */
            memcpy(other, tokens + 10, sizeof other);
            GOLDEN_OK(session_rewind(s, N - back, &e));
            mem_free(golden_logits(&g, s, other, back, 0, NULL));
            check_rewind(&g, s, tokens, want, N - back);
        }
        check_rewind(&g, s, tokens, want, 100); /* further than the window's pages go back */
        check_rewind(&g, s, tokens, want, 1);
        mem_free(want);
        session_free(s);
        golden_close(&g);
    }
}

static void forked_and_diverged(void **state)
{
    (void)state;
    for (int m = 4 % step(); m < N_MODELS; m += step()) {
        struct err e;
        struct golden_model g;
        struct session *a, *b;
        int32_t tokens[N], other[N];
        prompt(m, tokens);
        memcpy(other, tokens, sizeof other);
        for (int i = 201; i < N; i++)
            other[i] = tokens[i - 100];
        open_plain(&g, m);
        const int64_t v = g.info.n_vocab;
        float *want_a = fresh(&g, tokens, N, 0), *want_b = fresh(&g, other, N, 0);
        GOLDEN_OK(session_create(&a, g.runner, &e));
        GOLDEN_OK(session_create(&b, g.runner, &e));
        mem_free(golden_logits(&g, a, tokens, 201, 0, NULL));
        GOLDEN_OK(session_fork(b, a, &e));
        /* turn about, in the page that they shared */
        for (int i = 201; i < (UNIT_TSAN || UNIT_ASAN ? 221 : N); i++) {
            float *x = golden_logits(&g, a, tokens + i, 1, 0, NULL);
            float *y = golden_logits(&g, b, other + i, 1, 0, NULL);
            same("fork", x, want_a + i * v, v);
            same("fork", y, want_b + i * v, v);
            mem_free(x);
            mem_free(y);
        }
        mem_free(want_a);
        mem_free(want_b);
        session_free(a);
        session_free(b);
        golden_close(&g);
    }
}

static void restored_from_the_tree(void **state)
{
    (void)state;
    for (int m = 5 % step(); m < N_MODELS; m += step()) {
        struct err e;
        struct golden_model g;
        struct session *s;
        int32_t tokens[N];
        struct session_reuse reuse;
        const float *last;
        struct golden_options o = plain(m);
        o.restore_every = 96;
        prompt(m, tokens);
        golden_open(&g, models[m].path, &o);
        const int64_t v = g.info.n_vocab;
        float *want = fresh(&g, tokens, N, 0);
        session_runner_clear_tree(g.runner);
        GOLDEN_OK(session_create(&s, g.runner, &e));
        GOLDEN_OK(session_sync(s, tokens, 150, NULL, &e));
        GOLDEN_OK(session_finish(s, &last, NULL, &e));
        same("first run", last, want + 149 * v, v);
        session_free(s);
        static const struct { int64_t n, kept; } again[] = {
            {150, 149}, {151, 150}, {N, 151}, {120, 96}, {96, 95}, {40, 0}};
        for (size_t i = 0; i < sizeof again / sizeof *again; i++) {
            GOLDEN_OK(session_create(&s, g.runner, &e));
            GOLDEN_OK(session_sync(s, tokens, again[i].n, &reuse, &e));
            assert_int_equal(reuse.kept, again[i].kept);
            assert_int_equal(reuse.from_tree, again[i].kept);
            GOLDEN_OK(session_finish(s, &last, NULL, &e));
            same("restored", last, want + (again[i].n - 1) * v, v);
            session_free(s); /* its end is a restore point of the next run */
        }
        mem_free(want);
        golden_close(&g);
    }
}

/* Not all kinds of keys and values are for all models. */
static bool holds(int model, const char *kv)
{
    struct golden_model g;
    struct kv_types types;
    struct kv_spec spec;
    struct err e;
    open_plain(&g, model);
    GOLDEN_OK(kv_types_parse(kv, NULL, NULL, NULL, &types, &e));
    const bool ok = g.family->kv(g.self, &types, &spec, &e) == INGLE_OK;
    if (ok)
        kv_spec_release(&spec);
    golden_close(&g);
    return ok;
}

/* What a process leaves behind another one goes on with: the bits are those of a cold run.  Models
 * with each layout of pages; combinations.c has the others. */
static void restored_from_disk(void **state)
{
    (void)state;
    static const char *const kinds[] = {"f32",     "f16",   "bf16", "q8_0",  "fp8",    "q8r",
                                        "f16:n4r", "tq3_0", "f16v", "q8r+rot"};
    static const struct { int64_t n, kept; } again[] = {
        {150, 149}, {151, 150}, {N, 151}, {120, 96}, {96, 95}, {40, 0}};
    for (int m = 0; m < N_MODELS; m += 4)
        for (size_t c = 0; c < sizeof kinds / sizeof *kinds; c++) {
            struct err e;
            struct golden_model g;
            struct session *s;
            int32_t tokens[N];
            struct session_reuse reuse;
            const float *last;
            char dir[] = "/tmp/ingle-store-XXXXXX";
            struct golden_options o = plain(m);
            if (models[m].kv || !holds(m, kinds[c]) || (UNIT_TSAN && strcmp(kinds[c], "f16")))
                continue;
            o.kv = kinds[c];
            o.restore_every = 96;
            o.store_min = 1;
            assert_non_null(mkdtemp(dir));
            prompt(m, tokens);
            golden_open(&g, models[m].path, &o);
            const int64_t v = g.info.n_vocab;
            float *want = fresh(&g, tokens, N, 0);
            golden_close(&g);
            o.store = dir;
            golden_open(&g, models[m].path, &o);
            GOLDEN_OK(session_create(&s, g.runner, &e));
            GOLDEN_OK(session_sync(s, tokens, 150, NULL, &e));
            GOLDEN_OK(session_finish(s, &last, NULL, &e));
            same("first run", last, want + 149 * v, v);
            session_free(s);
            for (size_t i = 0; i < (UNIT_TSAN ? 1 : sizeof again / sizeof *again); i++) {
                golden_close(&g);
                golden_open(&g, models[m].path, &o);
                GOLDEN_OK(session_create(&s, g.runner, &e));
                GOLDEN_OK(session_sync(s, tokens, again[i].n, &reuse, &e));
                assert_int_equal(reuse.kept, again[i].kept);
                assert_int_equal(reuse.from_disk, again[i].kept);
                GOLDEN_OK(session_finish(s, &last, NULL, &e));
                same("from disk", last, want + (again[i].n - 1) * v, v);
                session_free(s);
            }
            golden_close(&g);
            mem_free(want);
            remove_dir(dir);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_of_a_prompt),    cmocka_unit_test(any_threads_and_kernels),
        cmocka_unit_test(alone_or_in_a_batch),    cmocka_unit_test(after_a_rewind),
        cmocka_unit_test(forked_and_diverged),    cmocka_unit_test(restored_from_the_tree),
        cmocka_unit_test(restored_from_disk),     cmocka_unit_test(long_steps),
        cmocka_unit_test(a_fast_prompt_and_its_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
