/* SPDX-License-Identifier: Apache-2.0 */
/* select - rows of answers that choose pages (kern/select.h): sessions with different choices in
 * one step; all pages are what attention to all is; what is counted and saved.
 * golden/combinations.c compares the bits of cuts, batches, drafts, forks and pages on disk. */
#define _DEFAULT_SOURCE
#include "golden/golden.h"

#include "base/cpu.h"
#include "base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *path, *golden, *kv; /* kv NULL: f16 */
    int64_t n;                      /* tokens of the prompt */
} models[] = {
    /* shared keys */
    {"tests/data/goldens/gemma4_ple_e2b/model-F32.gguf",
     "tests/data/goldens/gemma4_ple_e2b/golden.safetensors", NULL, 1850},
    {"tests/data/goldens/gemma4_moe/model-F32.gguf",
     "tests/data/goldens/gemma4_moe/golden.safetensors", "f16v", 1350},
    {"tests/data/goldens/gemma4_realhd/model-F32.gguf",
     "tests/data/goldens/gemma4_realhd/golden.safetensors", "q8r:n4r+rot", 1000},
};
enum {
    N_MODELS = sizeof models / sizeof *models,
    STEP = UNIT_TSAN || UNIT_ASAN ? N_MODELS : 1,
    N_CTX = 2560,
    ANSWER = 24,
    DRAFT = 6
};
static const struct kern_select quarter = {.part = 4, .least = KERN_SELECT_ALWAYS + 1};

struct world {
    struct golden_model g;
    int32_t tokens[N_CTX];
    int64_t n, width;
};

static void begin(struct world *w, int m, struct golden_options o)
{
    int64_t n;
    int32_t *ids = golden_ints(models[m].golden, "input_ids", &n);
    for (int64_t i = 0; i < N_CTX; i++)
        w->tokens[i] = ids[(i * 7 + i / n) % n];
    mem_free(ids);
    o.kv = models[m].kv;
    o.n_ctx = N_CTX;
    o.max_rows = o.max_rows ? o.max_rows : 512;
    golden_open(&w->g, models[m].path, &o);
    w->n = models[m].n;
    w->width = w->g.info.n_vocab;
}

static struct session *after_prompt(struct world *w)
{
    struct err e;
    struct session *s;
    const float *logits;
    GOLDEN_OK(session_create(&s, w->g.runner, &e));
    GOLDEN_OK(session_sync(s, w->tokens, w->n, NULL, &e));
    GOLDEN_OK(session_finish(s, &logits, NULL, &e));
    return s;
}

/* The answer's rows, `each` tokens a step: f32 [ANSWER][width]. */
static void answer(struct world *w, struct session *s, int64_t each, float *out)
{
    struct err e;
    for (int64_t i = 0; i < ANSWER; i += each) {
        const int64_t n = each < ANSWER - i ? each : ANSWER - i;
        GOLDEN_OK(session_append(s, w->tokens + w->n + i, n, &e));
        struct session_work work = {.s = s, .want = FAMILY_LOGITS_ALL, .guessed = n > 1};
        GOLDEN_OK(session_step(w->g.runner, &work, 1, NULL, &e));
        assert_int_equal(work.n_logits, n);
        memcpy(out + i * w->width, work.logits, (size_t)(n * w->width) * sizeof *out);
    }
}

static float *room(const struct world *w)
{
    float *x = mem_calloc((size_t)(ANSWER * w->width), sizeof *x);
    assert_non_null(x);
    return x;
}

static int64_t rows_that_differ(const struct world *w, const float *a, const float *b)
{
    int64_t n = 0;
    for (int64_t i = 0; i < ANSWER; i++)
        n += memcmp(a + i * w->width, b + i * w->width, (size_t)w->width * sizeof *a) != 0;
    return n;
}

/* Rows with p mod 64 = 63 see all, and what was counted. */
static void checked(void **state)
{
    (void)state;
    const int m = N_MODELS - 1;
    const int64_t n = models[m].n / 64 * 64 + 63;
    if (UNIT_ASAN || UNIT_TSAN)
        skip(); /* heads of 512: numbers are the release's matter */
    struct world w;
    float *exact = NULL;
    for (int i = 0; i < 2; i++) {
        struct golden_options o = {.codec = KERN_KV_F16};
        if (i)
            o.select = quarter;
        begin(&w, m, o);
        w.n = n;
        struct session *s = after_prompt(&w);
        float *out = room(&w);
        answer(&w, s, 1, out);
        if (i) {
            const struct kern_select_seen seen = session_take_seen(s).select;
            const uint64_t pages = (uint64_t)n / KV_PAGE + 1,
                           budget = (uint64_t)kern_select_budget(&quarter, n);
            assert_memory_equal(out, exact, (size_t)w.width * sizeof *out);
            assert_true(rows_that_differ(&w, out, exact) > ANSWER / 2);
            assert_int_equal(seen.rows, ANSWER); /* one full layer */
            assert_int_equal(seen.checked, 2);   /* query heads */
            assert_int_equal(seen.pairs, 2 * (ANSWER - 1));
            assert_int_equal(seen.pages_read, pages + (ANSWER - 1) * budget);
            assert_true(seen.pages_seen >= ANSWER * pages &&
                        seen.pages_seen <= ANSWER * (pages + 1));
            assert_true(seen.missed > 0 && seen.most > 0.0f && seen.most < 1.0f &&
                        seen.most_true > 0.0f && seen.most_true < 1.0f);
            assert_true((double)seen.missed * 0x1p-32 <= (double)seen.most * (double)seen.pairs);
            assert_true(seen.bytes_read > 0 && seen.bytes_read % seen.pages_read == 0);
            mem_free(out);
        } else {
            exact = out;
        }
        session_free(s);
        golden_close(&w.g);
    }
    mem_free(exact);
}

/* Sessions of one runner that choose in ways of their own, or not at all, in the same steps: each
 * has the bits of a runner that has its way.  What is remembered of one serves no other. */
static void each_its_own(void **state)
{
    (void)state;
    enum { N_WAYS = 4 };
    if (UNIT_TSAN) /* threads do the same with any rule */
        return;
    static const struct kern_select way[N_WAYS] = {
        {4, KERN_SELECT_ALWAYS + 1}, {0, 0}, {8, KERN_SELECT_ALWAYS}, {1, KERN_SELECT_ALWAYS}};
    for (int m = 0; m < N_MODELS; m += STEP) {
        float *want[N_WAYS], *got[N_WAYS];
        struct world w;
        struct err e;
        for (int i = 0; i < N_WAYS; i++) {
            begin(&w, m, (struct golden_options){.codec = KERN_KV_F16, .select = way[i]});
            want[i] = room(&w);
            got[i] = room(&w);
            struct session *s = after_prompt(&w);
            answer(&w, s, 1, want[i]);
            session_free(s);
            golden_close(&w.g);
        }
        assert_int_equal(rows_that_differ(&w, want[1], want[3]), 0);
        assert_true(rows_that_differ(&w, want[0], want[1]) > ANSWER / 2 &&
                    rows_that_differ(&w, want[0], want[2]) > ANSWER / 2);
        for (int of = 0; of < 2; of++) { /* whatever the runner's own way is */
            struct session *s[N_WAYS];
            struct session_work work[N_WAYS];
            begin(&w, m,
                  (struct golden_options){
                      .codec = KERN_KV_F16, .select = way[3 * of], .tree_bytes = 64 << 20});
            for (int i = 0; i < N_WAYS; i++) {
                struct session_reuse reuse;
                const float *logits;
                GOLDEN_OK(session_create(&s[i], w.g.runner, &e));
                golden_set_select(s[i], &way[i]);
                GOLDEN_OK(session_sync(s[i], w.tokens, w.n, &reuse, &e));
                assert_int_equal(reuse.kept > 0, i == 3); /* of session 1, which has its bits */
                GOLDEN_OK(session_finish(s[i], &logits, NULL, &e));
            }
            for (int k = 0; k < ANSWER; k++) {
                for (int i = 0; i < N_WAYS; i++) {
                    GOLDEN_OK(session_append(s[i], w.tokens + w.n + k, 1, &e));
                    work[i] = (struct session_work){.s = s[i], .want = FAMILY_LOGITS_LAST};
                }
                GOLDEN_OK(session_step(w.g.runner, work, N_WAYS, NULL, &e));
                for (int i = 0; i < N_WAYS; i++)
                    memcpy(got[i] + k * w.width, work[i].logits, (size_t)w.width * sizeof(float));
            }
            for (int i = 0; i < N_WAYS; i++)
                assert_int_equal(rows_that_differ(&w, got[i], want[i]), 0);
            struct session *fork;
            GOLDEN_OK(session_create(&fork, w.g.runner, &e));
            GOLDEN_OK(session_fork(fork, s[2], &e));
            assert_true(session_way(fork).select.part == 8 && session_length(fork) == w.n + ANSWER);
            golden_set_select(fork, &way[0]);
            assert_int_equal(session_length(fork), 0);
            session_free(fork);
            for (int i = 0; i < N_WAYS; i++)
                session_free(s[i]);
            golden_close(&w.g);
        }
        for (int i = 0; i < N_WAYS; i++) {
            mem_free(want[i]);
            mem_free(got[i]);
        }
    }
}

/* Pages on disk, of which one head after the other reads those that it chose. */
static void pages_on_disk(void **state)
{
    (void)state;
    char dir[] = "/tmp/ingle-select-XXXXXX";
    assert_non_null(mkdtemp(dir));
    float *rows[2];
    for (int i = 0; i < 2; i++) {
        struct world w;
        struct golden_options o = {.codec = KERN_KV_F16, .select = quarter, .max_rows = 64};
        if (i) {
            o.disk = dir;
            o.kv_bytes = 220 << 10;
        }
        begin(&w, 0, o);
        w.n = 1300;
        struct session *s = after_prompt(&w);
        rows[i] = room(&w);
        answer(&w, s, 1, rows[i]);
        if (i) {
            struct kv_disk_counts disk;
            session_runner_disk_count(w.g.runner, &disk);
            assert_true(disk.read_bytes > 0);
            assert_int_equal(rows_that_differ(&w, rows[0], rows[1]), 0);
        }
        session_free(s);
        golden_close(&w.g);
    }
    mem_free(rows[0]);
    mem_free(rows[1]);
    assert_int_equal(rmdir(dir), 0);
}

/* A file says how its session chose, whatever the runner's own way is. */
static void files_say_how(void **state)
{
    (void)state;
    char dir[] = "/tmp/ingle-picked-XXXXXX", path[64];
    static const struct kern_select eighth = {8, KERN_SELECT_ALWAYS}, all = {1, KERN_SELECT_LEAST},
                                  none = {0, 0};
    const struct kern_select *const ways[] = {&all, &quarter, &eighth};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/session", dir);
    struct world w;
    struct err e;
    float *want = NULL, *got = NULL;
    for (int i = 0; i < 4; i++) {
        begin(&w, 0,
              (struct golden_options){.codec = KERN_KV_F16, .select = i < 3 ? *ways[i] : none});
        struct session *s;
        if (!i) {
            want = room(&w);
            got = room(&w);
            const float *logits;
            GOLDEN_OK(session_create(&s, w.g.runner, &e));
            golden_set_select(s, &eighth);
            GOLDEN_OK(session_sync(s, w.tokens, w.n, NULL, &e));
            GOLDEN_OK(session_finish(s, &logits, NULL, &e));
            GOLDEN_OK(session_save(s, path, &e));
            answer(&w, s, 1, want);
        } else {
            GOLDEN_OK(session_create(&s, w.g.runner, &e));
            const ingle_status st = session_load(s, path, &e);
            assert_int_equal(st, i < 3 ? INGLE_OK : INGLE_UNSUP);
            if (i < 3) {
                assert_int_equal(session_way(s).select.part, 8);
                answer(&w, s, 1, got);
                assert_int_equal(rows_that_differ(&w, got, want), 0);
            } else {
                assert_non_null(strstr(e.msg, "f16 exact+sel8-p5"));
            }
        }
        session_free(s);
        golden_close(&w.g);
    }
    mem_free(want);
    mem_free(got);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checked),
        cmocka_unit_test(each_its_own), cmocka_unit_test(pages_on_disk),
        cmocka_unit_test(files_say_how)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
