/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse prompts by the interface of the library: memory and disk keep them apart from dense ones;
 * what was left out is reported.  golden/combinations.c compares their bits. */
#define _DEFAULT_SOURCE
#include "unit/door.h"
#include "unit/folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 800, N_DRAWN = 12, BATCH = 4 };
/* Two of its layers see everything, so that keys and values behind the first one are others where
 * prompts are sparse. */
static const char model[] = "tests/data/goldens/gemma4_dense/model-Q8_0.gguf";
static const char how[] = "on:eps=1/8,from=0", late[] = "on:eps=1/8,from=256";

struct place {
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_engine_info info;
    int32_t ids[N];
    int n_reports, n_refused;
    char said[256];
};

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    struct place *p = arg;
    if (strcmp(kind, "sparse") != 0)
        return;
    p->n_reports += level == INGLE_REPORT_NOTE;
    p->n_refused += level == INGLE_REPORT_WARN;
    snprintf(p->said, sizeof p->said, "%s: %s", subject, text);
}

static void open_place(struct place *p, struct ingle_engine_options o)
{
    *p = (struct place){0};
    o.n_ctx = 1024;
    o.n_sessions = BATCH + 1;
    o.no_pin = true;
    o.max_logits = o.max_logits ? o.max_logits : 1;
    o.callbacks = (struct ingle_callbacks){.report = hear, .arg = p};
    must(ingle_model_open(&p->m, model, NULL, &error));
    must(ingle_engine_open(&p->e, p->m, &o, &error));
    ingle_engine_info(p->e, &p->info);
    for (int64_t i = 0; i < N; i++)
        p->ids[i] = (int32_t)((i * 7919 + i / 50 + 13) % p->info.n_vocab);
}

static void close_place(struct place *p)
{
    ingle_engine_close(p->e);
    ingle_model_close(p->m);
}

static struct ingle_session *session_of(const struct place *p, const char *sparse, const char *user)
{
    struct ingle_session *s;
    must(ingle_session_open(&s, p->e, &error));
    ingle_session_set_user(s, user);
    must(ingle_session_set_way(s, INGLE_WAY_SPARSE, sparse, &error));
    return s;
}

/* The logits of the last of n tokens, and of N_DRAWN greedy ones behind it, as a hash. */
static uint64_t add_row(uint64_t h, const float *row, int64_t n, int32_t *best)
{
    *best = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        h = (h ^ bits) * 0x100000001b3u;
        if (row[i] > row[*best])
            *best = (int32_t)i;
    }
    return h;
}

static uint64_t answer_of(const struct place *p, struct ingle_session *s, const float *row)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < N_DRAWN; i++) {
        int32_t best;
        h = add_row(h, row, p->info.n_vocab, &best);
        must(ingle_session_append(s, &best, 1, &error));
        must(ingle_session_finish(s, &row, &error));
    }
    return h;
}

static uint64_t run(const struct place *p, struct ingle_session *s, int64_t n,
                    struct ingle_reuse *reuse)
{
    const float *row;
    must(ingle_session_sync(s, p->ids, n, reuse, &error));
    must(ingle_session_finish(s, &row, &error));
    return answer_of(p, s, row);
}

static uint64_t run_alone(const struct place *p, const char *sparse, const char *user,
                          struct ingle_reuse *reuse)
{
    struct ingle_session *s = session_of(p, sparse, user);
    const uint64_t h = run(p, s, N, reuse);
    ingle_session_close(s);
    return h;
}

/* As one engine with one thread and whole steps has it. */
static uint64_t wanted(const char *sparse, struct ingle_sparse *use)
{
    struct place p;
    open_place(&p, (struct ingle_engine_options){.threads = 1});
    struct ingle_session *s = session_of(&p, sparse, "cold");
    const uint64_t h = run(&p, s, N, NULL);
    struct ingle_way_use all;
    ingle_session_way_use(s, &all);
    *use = all.sparse;
    assert_int_equal(p.n_reports, use->pairs > 0);
    ingle_session_close(s);
    close_place(&p);
    return h;
}

static struct {
    uint64_t dense, sparse, late;
    struct ingle_sparse use;
} want;

static int setup(void **state)
{
    (void)state;
    struct ingle_sparse none;
    want.dense = wanted("off", &none);
    assert_int_equal(none.pairs, 0);
    want.sparse = wanted(how, &want.use);
    want.late = wanted(late, &none);
    assert_true(none.pairs > 0 && none.pairs < want.use.pairs);
    return 0;
}

static void what_was_left_out_is_told(void **state)
{
    (void)state;
    struct place p;
    open_place(&p, (struct ingle_engine_options){.threads = 2, .sparse = how});
    assert_true(want.sparse != want.dense && want.late != want.sparse && want.late != want.dense);
    assert_string_equal(p.info.sparse, how);
    assert_string_equal(p.info.sparse_why, "");
    assert_string_equal(p.info.numerics, "exact+few3-w4-f0");
    assert_true(p.info.sparse_layers == 2 && want.use.pairs % (uint64_t)N == 0);
    assert_true(want.use.missed >= 0 && want.use.most <= 0.125 + 1e-5 &&
                want.use.missed <= want.use.most * (double)want.use.pairs);
    assert_true(want.use.n_read > 0 && want.use.n_read <= want.use.n_seen);
    assert_int_equal(run_alone(&p, NULL, NULL, NULL), want.sparse); /* as the engine says */
    assert_int_equal(p.n_reports, 1);
    assert_non_null(strstr(
        p.said, "values of weights below 1/8 of the sum were replaced by page means: missed"));
    close_place(&p);
}

static void memory_keeps_sparse_and_dense_apart(void **state)
{
    (void)state;
    struct place p;
    struct ingle_reuse r;
    open_place(&p, (struct ingle_engine_options){.threads = 2, .restore_every = 256});
    assert_int_equal(run_alone(&p, how, "a", NULL), want.sparse);
    assert_int_equal(run_alone(&p, how, "a", &r), want.sparse);
    assert_true(r.from_cache >= 768);
    assert_int_equal(run_alone(&p, "off", "a", &r), want.dense); /* nothing of it */
    assert_int_equal(r.kept, 0);
    assert_int_equal(run_alone(&p, late, "a", &r), want.late);   /* what is dense of it is shared */
    assert_int_equal(r.kept, 256);
    assert_int_equal(run_alone(&p, late, "a", &r), want.late);
    assert_true(r.kept >= 768);
    assert_int_equal(run_alone(&p, "off", "b", NULL), want.dense);
    assert_int_equal(run_alone(&p, how, "b", &r), want.sparse); /* the reverse */
    assert_int_equal(r.kept, 0);
    assert_int_equal(run_alone(&p, late, "b", &r), want.late);
    assert_int_equal(r.kept, 256);
    assert_int_equal(run_alone(&p, "on:eps=1/16,from=256", "b", &r) != want.dense, 1);
    assert_int_equal(r.kept, 256);
    close_place(&p);
}

static void disk_and_files_keep_them_apart(void **state)
{
    (void)state;
    char dir[] = "/tmp/ingle-sparse-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/saved", dir);
    const struct ingle_engine_options o = {
        .threads = 2, .restore_every = 256, .store = dir, .store_tokens = 128};
    struct place p;
    struct ingle_reuse r;
    open_place(&p, o);
    struct ingle_session *s = session_of(&p, late, NULL);
    const float *row;
    must(ingle_session_sync(s, p.ids, N, NULL, &error));
    must(ingle_session_finish(s, &row, &error));
    must(ingle_session_save(s, path, &error));
    ingle_session_close(s);
    close_place(&p);

    open_place(&p, o); /* another process */
    assert_int_equal(run_alone(&p, late, NULL, &r), want.late);
    assert_true(r.from_disk >= 600);
    s = session_of(&p, "off", "other");
    must(ingle_session_load(s, path, &error)); /* it is as the file says */
    assert_int_equal(ingle_session_length(s), N);
    struct ingle_way way;
    ingle_session_way(s, &way);
    assert_string_equal(way.text[INGLE_WAY_SPARSE], late);
    /* ... and what is not dense of it waits again */
    must(ingle_session_set_way(s, INGLE_WAY_SPARSE, "off", &error));
    assert_true(ingle_session_length(s) <= 256);
    assert_int_equal(run(&p, s, N, NULL), want.dense);
    must(ingle_session_load(s, path, &error));
    /* What is computed again of the prompt is a prompt still. */
    must(ingle_session_rewind(s, N - 20, &error));
    must(ingle_session_append(s, &p.ids[N - 20], 20, &error));
    must(ingle_session_finish(s, &row, &error));
    assert_int_equal(answer_of(&p, s, row), want.late);
    ingle_session_close(s);
    close_place(&p);

    open_place(&p, o);
    assert_int_equal(run_alone(&p, "off", NULL, &r), want.dense);
    assert_true(r.from_disk > 0 && r.from_disk <= 256); /* what is dense of it */
    close_place(&p);
    remove_dir(dir);
}

static void where_it_cannot_be_it_is_said_once(void **state)
{
    (void)state;
    struct place p;
    open_place(&p,
               (struct ingle_engine_options){.threads = 2, .numerics = "reference", .sparse = how});
    assert_string_equal(p.info.sparse, "off");
    assert_non_null(strstr(p.info.sparse_why, "reference"));
    assert_string_equal(p.info.numerics, "reference");
    assert_int_equal(p.n_refused, 1);
    struct ingle_session *s = session_of(&p, how, NULL);
    assert_int_equal(p.n_refused, 1);
    ingle_session_close(s);
    close_place(&p);
}

static void values_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *how, *why;
    } bad[] = {
        {"", "none of off, on and on:eps=1/8,from=4096"},
        {"yes", "'yes' is none of"},
        {"onward", "is none of"},
        {"on:", "neither eps=1/N nor from=POSITION"},
        {"on:eps=1/3", "eps '1/3' is no power of two from 1/1024 to 1"},
        {"on:eps=1/2048", "eps '1/2048' is no power of two from 1/1024 to 1"},
        {"on:eps=2", "eps '2' is no power of two"},
        {"on:eps=0", "eps '0' is no power of two"},
        {"on:eps=-1/8", "eps '-1/8'"},
        {"on:eps=nan", "eps 'nan'"},
        {"on:from=-1", "from '-1' is no position from 0 to 16777216"},
        {"on:from=16777217", "from '16777217' is no position"},
        {"on:from=99999999999999999999", "is no position"},
        {"on:from=1.5", "is no position"},
        {"on:eps=1/8,", "neither"},
        {"on:eps=1/8,,from=1", "neither"},
        {"on:alpha=1", "'alpha=1' is neither"},
        {"on:eps=1/8,from=1,eps=1/8,from=1,eps=1/8,from=1,from=2", "more than 47"},
    };
    static const char *const good[] = {"off",
                                       "on",
                                       "on:eps=1",
                                       "on:eps=1/1024",
                                       "on:eps=0.125",
                                       "on:from=0,eps=1/2",
                                       "on:from=16777216"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(ingle_way_check(INGLE_WAY_SPARSE, bad[i].how, &error), INGLE_ARG);
        if (!strstr(error.text, bad[i].why))
            fail_msg("%s: %s", bad[i].how, error.text);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        must(ingle_way_check(INGLE_WAY_SPARSE, good[i], &error));
    struct ingle_config *c;
    must(ingle_config_open(&c, &error));
    assert_int_equal(ingle_config_set(c, "run", "sparse", "on:eps=1/3", &error), INGLE_ARG);
    assert_non_null(strstr(error.text, "option '--sparse': eps '1/3'"));
    must(ingle_config_set(c, "run", "sparse", "on", &error));
    struct ingle_engine_options o = {0};
    ingle_config_engine(c, &o);
    assert_string_equal(o.sparse, "on");
    ingle_config_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_checked),
        cmocka_unit_test(what_was_left_out_is_told),
        cmocka_unit_test(memory_keeps_sparse_and_dense_apart),
        cmocka_unit_test(disk_and_files_keep_them_apart),
        cmocka_unit_test(where_it_cannot_be_it_is_said_once),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
