/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
/* Requests that say how their answers choose pages: saved sessions have the bits of an engine with
 * that choice; requests that gave up their pages go on as they were; what cannot be is refused.
 * golden/combinations.c compares the others. */
#define _DEFAULT_SOURCE
#include "unit/scheduler_world.h"

#include <unistd.h>

enum { N = 1100, SOME = 70, N_WAYS = 3 };
static const char *const way[N_WAYS] = {"1/4,least=5", "off", "1/8,least=6"};
static const char *const no_drafts = "off";
static struct answer want[N_WAYS];
static int n_warnings, n_notes;
static char said[300];

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    (void)arg;
    (void)subject;
    if (strcmp(kind, "kv-select") != 0)
        return;
    n_warnings += level == INGLE_REPORT_WARN;
    n_notes += level == INGLE_REPORT_NOTE;
    snprintf(said, sizeof said, "%s", text);
}

static void open_engine(struct place *p, struct ingle_engine_options o)
{
    o.n_ctx = o.n_ctx ? o.n_ctx : 1280;
    o.n_sessions = o.n_sessions ? o.n_sessions : 4;
    o.threads = 2;
    o.no_pin = true;
    o.draft = &no_drafts;
    o.n_draft = 1;
    o.mmproj = "off"; /* its rows would take most of the memory */
    o.callbacks = (struct ingle_callbacks){.report = hear};
    n_warnings = n_notes = 0;
    open_place(p, &o, NULL);
}

static struct asked *ask(struct place *p, const char *how, const char *user)
{
    struct asked *a = make_asked(p, 1, N, SOME);
    a->o.way[INGLE_WAY_SELECT] = how;
    a->o.user = user;
    a->o.ignore_end = true;
    a->o.sampling.temperature = 0;
    a->o.sampling.logprobs = true;
    a->o.n_top = 1;
    return a;
}

static void check(const struct asked *a, int i)
{
    if (a->answer[0].why != INGLE_FINISH_LENGTH)
        fail_msg("%s", a->answer[0].error);
    assert_int_equal(a->answer[0].n, SOME);
    assert_memory_equal(a->answer[0].id, want[i].id, sizeof want[i].id);
    assert_memory_equal(a->answer[0].logprob, want[i].logprob, sizeof want[i].logprob);
    assert_memory_equal(a->answer[0].top, want[i].top, sizeof want[i].top);
    assert_int_equal(a->usage.way.select.pairs > 0, strcmp(way[i], "off") != 0);
}

/* Alone; returns where its prompt came from. */
static struct ingle_reuse run(struct place *p, int i, const char *how, const char *user)
{
    struct asked *a = ask(p, how, user);
    submit(p, a);
    wait_done(a);
    check(a, i);
    const struct ingle_reuse r = a->reuse;
    free_asked(a);
    return r;
}

static int setup(void **state)
{
    (void)state;
    model_path = "tests/data/goldens/gemma4_dense/model-Q8_0.gguf";
    for (int i = 0; i < N_WAYS; i++) {
        struct place p;
        open_engine(&p, (struct ingle_engine_options){.kv_select = way[i]});
        struct asked *a = ask(&p, NULL, NULL);
        submit(&p, a);
        wait_done(a);
        want[i] = a->answer[0];
        free_asked(a);
        close_place(&p);
    }
    return 0;
}

/* A session's file says how it was computed. */
static void saved(void **state)
{
    (void)state;
    char path[] = "/tmp/ingle-select-XXXXXX";
    struct ingle_way now;
    uint64_t logits_of[SOME] = {0};
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (int k = 0; k < 3; k++) {
        struct place p;
        struct ingle_session *s;
        const float *logits;
        open_engine(&p, (struct ingle_engine_options){.kv_select = k == 0   ? "1/1"
                                                                   : k == 1 ? way[2]
                                                                            : "off"});
        int32_t *ids = make_prompt(p.m, 1, 0, N);
        must(ingle_session_open(&s, p.e, &error));
        if (!k) {
            must(ingle_session_set_way(s, INGLE_WAY_SELECT, way[0], &error));
            must(ingle_session_sync(s, ids, N, NULL, &error));
            must(ingle_session_finish(s, &logits, &error));
            must(ingle_session_append(s, want[0].id, 9, &error));
            must(ingle_session_finish(s, &logits, &error));
            must(ingle_session_save(s, path, &error));
            for (int64_t i = 9; i < SOME; i++) {
                must(ingle_session_append(s, &want[0].id[i], 1, &error));
                must(ingle_session_finish(s, &logits, &error));
                logits_of[i] = XXH3_64bits(logits, 256 * sizeof *logits);
            }
            /* nothing of it is the same */
            must(ingle_session_set_way(s, INGLE_WAY_SELECT, "off", &error));
            assert_int_equal(ingle_session_length(s), 0);
        } else {
            assert_int_equal(ingle_session_load(s, path, &error), k == 1 ? INGLE_OK : INGLE_UNSUP);
            ingle_session_way(s, &now);
            assert_string_equal(now.text[INGLE_WAY_SELECT], k == 1 ? way[0] : "off");
            assert_int_equal(ingle_session_length(s), k == 1 ? N + 9 : 0);
        }
        for (int64_t i = 9; i < SOME && k == 1; i++) { /* and the answer goes on */
            must(ingle_session_append(s, &want[0].id[i], 1, &error));
            must(ingle_session_finish(s, &logits, &error));
            if (logits_of[i] != XXH3_64bits(logits, 256 * sizeof *logits))
                fail_msg("other bits at %lld", (long long)i);
        }
        free(ids);
        ingle_session_close(s);
        close_place(&p);
    }
    assert_int_equal(unlink(path), 0);
}

/* Four answers side by side, or, crowded, with too little memory for all of them. */
struct gives_way {
    const char *model, *numerics, *kv_select, *how;
    int64_t n_prompt;
    uint64_t leave;
};

static void side_by_side(const struct gives_way *g, struct answer *alone_, bool crowded)
{
    enum { ASKED = 4, LONG = 500 };
    struct place p;
    struct asked *a[ASKED];
    struct hog hog = {.p = &p, .leave = g->leave};
    model_path = g->model;
    open_engine(&p, (struct ingle_engine_options){.n_ctx = 1280,
                                                  .n_sessions = crowded ? 2 : 6,
                                                  .max_rows = 64,
                                                  .cache_bytes = 1 << 16,
                                                  .numerics = g->numerics,
                                                  .kv_select = g->kv_select});
    if (crowded)
        ingle_scheduler_call(p.s, take_memory, &hog);
    for (int i = 0; i < ASKED; i++) {
        a[i] = make_asked(&p, i, g->n_prompt + i, crowded && i == 3 ? -1 : LONG);
        a[i]->o.ignore_end = true;
        a[i]->o.way[INGLE_WAY_SELECT] = i == 1 ? NULL : g->how;
        a[i]->o.sampling.logprobs = true;
        a[i]->o.n_top = 1;
        a[i]->o.priority = i == 2;
    }
    submit_together(&p, a, ASKED);
    for (int i = 0; i < ASKED; i++)
        wait_done(a[i]);
    if (crowded) {
        ingle_scheduler_call(p.s, give_memory, &hog);
        assert_true(status_of(&p).n_parked > 0);
    }
    for (int i = 0; i < ASKED; i++) {
        if (a[i]->answer[0].why != INGLE_FINISH_LENGTH)
            fail_msg("%s", a[i]->answer[0].error);
        for (int64_t t = 0; crowded && t < LONG; t++)
            if (alone_[i].id[t] != a[i]->answer[0].id[t] ||
                alone_[i].top[t] != a[i]->answer[0].top[t])
                fail_msg("%s: answer %d has other bits from token %lld on", g->numerics, i,
                         (long long)t);
        alone_[i] = a[i]->answer[0];
        free_asked(a[i]);
    }
    close_place(&p);
}

/* What an answer had drawn before it gave way is no prompt when it goes on, whatever the
 * numerics. */
static void those_that_gave_way(void **state)
{
    (void)state;
    const char *const golden = model_path;
    const struct gives_way g[] = {{golden, "exact", "1/1", way[0], 700, 1300000},
                                  {NULL, "exact", "off", NULL, 60, 1000000},
                                  {NULL, "fast", "off", NULL, 60, 1000000}};
    struct answer *alone_ = calloc(4, sizeof *alone_);
    assert_non_null(alone_);
    for (size_t i = 0; i < sizeof g / sizeof *g - UNIT_ASAN; i++)
        for (int crowded = 0; crowded < 2; crowded++)
            side_by_side(&g[i], alone_, crowded);
    model_path = golden;
    free(alone_);
}

static void refuse(struct place *p, const char *how, ingle_status st, const char *words)
{
    struct asked *a = ask(p, how, NULL);
    struct ingle_session *s;
    assert_int_equal(ingle_scheduler_submit(p->s, &a->o, &a->r, NULL, &error), st);
    if (!strstr(error.text, words) || strncmp(error.text, "kv_select: '", 12) != 0)
        fail_msg("%s: %s", how, error.text);
    must(ingle_session_open(&s, p->e, &error));
    assert_int_equal(ingle_session_set_way(s, INGLE_WAY_SELECT, how, &error), st);
    assert_non_null(strstr(error.text, words));
    ingle_session_close(s);
    free_asked(a);
}

static void what_cannot_be(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"yes", "is neither off nor 1/N with N from 1 to 256"},
        {"1/0", "is neither off nor 1/N with N from 1 to 256"},
        {"1/257", "1 to 256"},
        {"1/4,least=4", "'least=4' is not least=PAGES with 5 to 65536 pages"},
        {"", "is neither"},
        {"1/4,least=65537", "5 to 65536"},
        {"1/4,least=000000000000000000000000016", "has 37 bytes, more than 31"}};
    struct place p;
    open_engine(&p, (struct ingle_engine_options){.kv_select = "off"});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        refuse(&p, bad[i][0], INGLE_ARG, bad[i][1]);
        assert_int_equal(ingle_way_check(INGLE_WAY_SELECT, bad[i][0], &error), INGLE_ARG);
    }
    refuse(&p, "1/16", INGLE_UNSUP,
           "'1/16' needs 4-bit copies of the keys, and there are none without --kv-select");
    refuse(&p, "on", INGLE_UNSUP, "needs 4-bit copies of the keys");
    run(&p, 1, "off", NULL);
    run(&p, 1, "1/1", NULL); /* all pages */
    assert_true(n_warnings == 0 && n_notes == 0);
    close_place(&p);
    must(ingle_way_check(INGLE_WAY_SELECT, "on", &error));
    must(ingle_way_check(INGLE_WAY_SELECT, "1/256,least=65536", &error));
    must(ingle_way_check(INGLE_WAY_SELECT, NULL, &error));
    /* another arithmetic, which has no such thing: said once */
    open_engine(&p, (struct ingle_engine_options){.numerics = "reference"});
    for (int i = 0; i < 2; i++) {
        struct asked *a = ask(&p, way[0], NULL);
        submit(&p, a);
        wait_done(a);
        assert_true(a->usage.way.select.pages_seen == 0 && n_warnings == 1);
        assert_non_null(
            strstr(said, "not used, answers read all keys and values: --numerics reference"));
        free_asked(a);
    }
    close_place(&p);
}

/* With pages on disk there is room for what the engine's own way reads. */
static void no_more_than_there_is_room_for(void **state)
{
    (void)state;
    char dir[] = "/tmp/ingle-select-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct place p;
    open_engine(&p, (struct ingle_engine_options){.kv_select = "1/8,least=6",
                                                  .kv_disk = dir,
                                                  .kv_pool_tokens = 256,
                                                  .max_rows = 64,
                                                  .n_sessions = 1});
    refuse(&p, "1/1,least=5,", INGLE_ARG, "is not least=PAGES");
    refuse(&p, "1/8,least=7", INGLE_LIMIT,
           "reads up to 7 pages of a context of 1280 tokens; with --kv-disk there is room for 6");
    refuse(&p, "1/1,least=9,least=9", INGLE_ARG, "is not least=PAGES");
    run(&p, 1, "off", NULL);
    run(&p, 0, way[0], NULL);
    run(&p, 2, NULL, NULL);
    close_place(&p);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved),          cmocka_unit_test(those_that_gave_way),
        cmocka_unit_test(what_cannot_be), cmocka_unit_test(no_more_than_there_is_room_for),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
