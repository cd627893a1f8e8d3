/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedules - one_arithmetic's contract where a card computes a part: random steps of some
 * sessions with layers, experts, pages and single operations on random sides.  Every row of logits
 * has the bits that the processor computes for the same tokens in one piece.
 *
 *   gpu_schedules [FIRST [N]]: seeds FIRST .. FIRST + N - 1 (0, 20)
 *
 * A seed: a model on a random card; prompts in pieces, batches, forks, rewinds, drafts that are
 * verified, restores from the tree; then what it has is saved, and the other side goes on with it.
 */
#define _DEFAULT_SOURCE
#include "golden/golden.h"
#include "gpu/random_card.h"

#include "base/mem.h"
#include "base/num.h"
#include "gpu/api_emu.h"
#include "kv/store_file.h"
#include "unit/xz.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
     "tests/data/goldens/gemma4_dense/golden.safetensors", DEVICE_EXACT, "q8_0"},
    {"tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf",
     "tests/data/goldens/deepseek_v4_full/golden-MXFP4.safetensors", DEVICE_EXACT, NULL},
    {"tests/data/goldens/deepseek_v4_published/model.safetensors",
     "tests/data/goldens/deepseek_v4_published/golden.safetensors", DEVICE_FAST, NULL},
    {"tests/data/goldens/gemma4_realhd/model-F32.gguf",
     "tests/data/goldens/gemma4_realhd/golden.safetensors", DEVICE_EXACT, "q8r:n4r+rot"},
    {"tests/data/goldens/gemma4_realhd/model-F32.gguf",
     "tests/data/goldens/gemma4_realhd/golden.safetensors", DEVICE_EXACT,
     "full=tq3_0,sliding=bf16,0=f16,1=n4r:q8r"},
    {"tests/data/goldens/gemma4_moe/model-F32.gguf",
     "tests/data/goldens/gemma4_moe/golden.safetensors", DEVICE_EXACT, "f16v"},
    {"tests/data/goldens/gemma4_realhd/model-F32.gguf",
     "tests/data/goldens/gemma4_realhd/golden.safetensors", DEVICE_EXACT, "f32:bf16"},
    {"tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf",
     "tests/data/goldens/deepseek_v4_full/golden-MXFP4.safetensors", DEVICE_EXACT, "fp8"},
};
/* Two texts, alike in the first ALIKE tokens. */
enum { MODELS = sizeof models / sizeof *models, N = 256, TEXTS = 2, ALIKE = 150, SESSIONS = 3 };

static uint32_t rng, first_seed;
static int n_seeds = UNIT_ASAN ? 4 : 20;
static bool is_long; /* seeds that were asked for: more of everything */

static int64_t draw(int64_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (int64_t)((rng >> 9) % (uint32_t)n);
}

/* What the processor computes: f32 [TEXTS][N][n_vocab]. */
static struct {
    int32_t token[TEXTS][N];
    float *logits[TEXTS];
    char *file[TEXTS]; /* all of it, saved: its pages are full */
    size_t n_file[TEXTS];
} want[MODELS];

static struct golden_options options_of(int m)
{
    return (struct golden_options){.numerics = models[m].numerics,
                                   .codec = KERN_KV_F16,
                                   .kv = models[m].kv,
                                   .n_threads = 1 + (int)draw(2),
                                   .max_rows = draw(2) ? 0 : 90,
                                   .restore_every = 64,
                                   .tree_bytes = 64 << 20};
}

static void test_spill(const char *path, const char *at, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(at, 1, n, f) == n);
    assert_int_equal(fclose(f), 0);
}

static char *saved(const struct session *s, size_t *n)
{
    struct err e;
    char path[] = "/tmp/ingle-schedule-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    GOLDEN_OK(session_save(s, path, &e));
    char *file = test_slurp(path, n);
    unlink(path);
    return file;
}

static void compute_want(int m)
{
    struct err e;
    struct golden_model g;
    int64_t n;
    if (want[m].logits[0])
        return;
    int32_t *ids = golden_ints(models[m].golden, "input_ids", &n);
    for (int t = 0; t < TEXTS; t++)
        for (int64_t i = 0; i < N; i++)
            want[m].token[t][i] = ids[(i + i / n + (i < ALIKE ? 0 : 5 * t)) % n];
    mem_free(ids);
    const struct golden_options o = options_of(m);
    random_card_set(0, RANDOM_CARD_NO);
    golden_open(&g, models[m].path, &o);
    for (int t = 0; t < TEXTS; t++) {
        struct session *s;
        GOLDEN_OK(session_create(&s, g.runner, &e));
        want[m].logits[t] = golden_logits(&g, s, want[m].token[t], N, 0, NULL);
        want[m].file[t] = saved(s, &want[m].n_file[t]);
        session_free(s);
    }
    golden_close(&g);
}

/* ---- one seed ---- */

struct seat { struct session *s; int text; };
struct world {
    struct golden_model g;
    int model;
    uint32_t seed;
    const char *now; /* what it does */
    struct seat seat[SESSIONS];
};

static void hold(const struct world *w, const struct seat *t, const float *got, int64_t at,
                 int64_t n)
{
    const int64_t v = w->g.info.n_vocab;
    const float *right = want[w->model].logits[t->text] + at * v;
    for (int64_t i = 0; i < n * v; i++)
        if (memcmp(&got[i], &right[i], sizeof *got))
            fail_msg("seed %u, %s, %s: position %lld, element %lld is %a, not %a", w->seed,
                     models[w->model].path, w->now, (long long)(at + i / v), (long long)(i % v),
                     (double)got[i], (double)right[i]);
}

static int64_t end_of(const struct seat *t)
{
    return session_length(t->s) + session_pending(t->s);
}

/* Some more tokens of the text wait. */
static void append(struct world *w, struct seat *t, int64_t n)
{
    struct err e;
    const int64_t at = end_of(t);
    n = num_min(n, N - at);
    if (n > 0)
        GOLDEN_OK(session_append(t->s, want[w->model].token[t->text] + at, n, &e));
    session_prompt(t->s, end_of(t));
}

/* A step of the sessions that have tokens; they move as far as it goes. */
static void step(struct world *w)
{
    struct err e;
    struct session_work work[SESSIONS];
    const struct seat *of[SESSIONS];
    int64_t at[SESSIONS], n = 0;
    for (int i = 0; i < SESSIONS; i++) {
        const struct seat *t = &w->seat[i];
        if (!session_pending(t->s) || (n && draw(3) == 0))
            continue;
        of[n] = t;
        at[n] = session_length(t->s);
        work[n++] = (struct session_work){
            .s = t->s, .max_tokens = draw(3) ? 0 : 1 + draw(40), .want = FAMILY_LOGITS_ALL};
    }
    if (!n)
        return;
    GOLDEN_OK(session_step(w->g.runner, work, n, NULL, &e));
    for (int64_t i = 0; i < n; i++)
        hold(w, of[i], work[i].logits, at[i], work[i].n_done);
}

static void finish(struct world *w)
{
    for (bool more = true; more;) {
        step(w);
        more = false;
        for (int i = 0; i < SESSIONS; i++)
            more = more || session_pending(w->seat[i].s);
    }
}

static void rewind_some(struct world *w, struct seat *t)
{
    struct err e;
    const int64_t n = end_of(t), far = draw(6) == 0 ? n : num_min(n, 60);
    if (!n)
        return;
    const int64_t to = n - 1 - draw(far);
    GOLDEN_OK(session_rewind(t->s, to, &e));
    if (to <= ALIKE)
        t->text = (int)draw(TEXTS);
    (void)w;
}

static void fork_some(struct world *w, const struct seat *from, struct seat *to)
{
    struct err e;
    (void)w;
    if (from == to || session_pending(from->s))
        return;
    GOLDEN_OK(session_fork(to->s, from->s, &e));
    to->text = end_of(to) <= ALIKE ? (int)draw(TEXTS) : from->text;
}

/* Guesses of which the first ones are right: their rows count, the others go. */
static void verify(struct world *w, struct seat *t)
{
    struct err e;
    int32_t guess[8];
    finish(w);
    const int64_t at = session_length(t->s), n = num_min(1 + draw(8), N - at);
    if (n < 1 || !at)
        return;
    const int64_t right = 1 + draw(n);
    for (int64_t i = 0; i < n; i++)
        guess[i] = i < right ? want[w->model].token[t->text][at + i]
                             : want[w->model].token[t->text][(at + i + 7) % N];
    GOLDEN_OK(session_append(t->s, guess, n, &e));
    struct session_work work = {.s = t->s, .want = FAMILY_LOGITS_ALL, .guessed = true};
    GOLDEN_OK(session_step(w->g.runner, &work, 1, NULL, &e));
    hold(w, t, work.logits, at, num_min(right, work.n_done));
    session_keep(t->s, at + num_min(right, work.n_done));
}

static void restore(struct world *w, struct seat *t)
{
    struct err e;
    const float *last;
    finish(w);
    GOLDEN_OK(session_remember(t->s, &e));
    session_free(t->s);
    GOLDEN_OK(session_create(&t->s, w->g.runner, &e));
    t->text = (int)draw(TEXTS);
    const int64_t n = 20 + draw(N - 20);
    GOLDEN_OK(session_sync(t->s, want[w->model].token[t->text], n, NULL, &e));
    GOLDEN_OK(session_finish(t->s, &last, NULL, &e));
    hold(w, t, last, n - 1, 1);
}

static void act(struct world *w)
{
    static const char *const names[] = {"append", "step", "rewind", "fork", "verify", "restore"};
    struct seat *t = &w->seat[draw(SESSIONS)];
    const int64_t what = draw(12);
    w->now = names[what < 4 ? 0 : what < 7 ? 1 : what - 7 > 3 ? 5 : 2 + (what - 7)];
    if (what < 4)
        append(w, t, 1 + draw(draw(2) ? 8 : is_long ? 140 : 50));
    else if (what < 7)
        step(w);
    else if (what == 7)
        rewind_some(w, t);
    else if (what == 8)
        fork_some(w, t, &w->seat[draw(SESSIONS)]);
    else if (what == 9)
        verify(w, t);
    else if (what == 10)
        restore(w, t);
}

static void begin(struct world *w, enum random_card_kind kind)
{
    struct err e;
    const struct golden_options o = options_of(w->model);
    random_card_set(w->seed, kind);
    golden_open(&w->g, models[w->model].path, &o);
    for (int i = 0; i < SESSIONS; i++) {
        GOLDEN_OK(session_create(&w->seat[i].s, w->g.runner, &e));
        w->seat[i].text = (int)draw(TEXTS);
    }
}

static void end(struct world *w)
{
    for (int i = 0; i < SESSIONS; i++)
        session_free(w->seat[i].s);
    golden_close(&w->g);
}

/* Tokens and pages are those of the other side's; the header has a time. */
static void same_file(const struct world *w, const char *what, const char *got, size_t n_got,
                      const char *right, size_t n_right)
{
    size_t i = sizeof(struct kv_file_header);
    while (i < n_got && i < n_right && got[i] == right[i])
        i++;
    if (n_got != n_right || i < n_got)
        fail_msg("seed %u, %s: %s: files of %zu and %zu bytes differ from byte %zu on", w->seed,
                 models[w->model].path, what, n_got, n_right, i);
}

/* The sessions of w go on on the other side, to the end of the text. */
static void move_over(struct world *w, enum random_card_kind to)
{
    struct err e;
    struct seat had[SESSIONS];
    char *file[SESSIONS] = {NULL}, path[] = "/tmp/ingle-schedule-XXXXXX";
    size_t n_file[SESSIONS], n;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    finish(w);
    for (int i = 0; i < SESSIONS; i++) {
        had[i] = w->seat[i];
        if (session_length(had[i].s))
            file[i] = saved(had[i].s, &n_file[i]);
    }
    end(w);
    w->seed += 1000003;
    begin(w, to);
    w->now = "saved, read by the other side";
    for (int i = 0; i < SESSIONS; i++) {
        struct seat *t = &w->seat[i];
        t->text = had[i].text;
        if (!file[i])
            continue;
        test_spill(path, file[i], n_file[i]);
        GOLDEN_OK(session_load(t->s, path, &e));
        char *again = saved(t->s, &n);
        same_file(w, "saved again", again, n, file[i], n_file[i]);
        append(w, t, 1 + draw(12));
        mem_free(again);
        mem_free(file[i]);
    }
    finish(w);
    unlink(path);
    if (!is_long && draw(3))
        return;
    append(w, &w->seat[0], N);
    finish(w);
    char *whole = saved(w->seat[0].s, &n);
    same_file(w, "all of the text", whole, n, want[w->model].file[w->seat[0].text],
              want[w->model].n_file[w->seat[0].text]);
    mem_free(whole);
}

static void run_seed(uint32_t seed)
{
    struct world w = {.model = (int)(seed % MODELS), .seed = seed};
    rng = seed * 2246822519u + 7;
    compute_want(w.model);
    rng = seed * 2246822519u + 7;
    begin(&w, RANDOM_CARD_YES);
    for (int64_t n = is_long ? 12 + draw(10) : 5 + draw(6); n > 0; n--)
        act(&w);
    move_over(&w, RANDOM_CARD_NO);
    if (is_long && draw(2))
        move_over(&w, RANDOM_CARD_YES);
    end(&w);
    assert_int_equal(emu_cards_taken(), 0);
}

static void any_schedule(void **state)
{
    (void)state;
    for (int i = 0; i < n_seeds; i++) {
        print_message("seed %u\n", first_seed + (uint32_t)i);
        run_seed(first_seed + (uint32_t)i);
    }
    for (int m = 0; m < MODELS; m++)
        for (int t = 0; t < TEXTS; t++) {
            mem_free(want[m].logits[t]);
            mem_free(want[m].file[t]);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_schedule)};
    is_long = argc > 1;
    if (is_long)
        first_seed = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        n_seeds = atoi(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
