/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that choose pages (--kv-select) from the door of the library: what is stored of them and
 * of others is kept apart, on disk and in files; drafts are single steps; what was left out is
 * told, by a session and by a scheduler; where it cannot be, that is said. */
#define _DEFAULT_SOURCE
#include "unit/door.h"
#include "unit/folder.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 1100, N_DRAWN = 70 }; /* 9 pages; a row in 64 sees all */
static const char model[] = "tests/data/goldens/gemma4_dense/model-Q8_0.gguf";
static const char how[] = "1/4,least=5";

struct place {
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_engine_info info;
    int32_t ids[N];
    int n_notes, n_warnings;
    char said[400];
};

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    struct place *p = arg;
    if (strcmp(kind, "kv-select") != 0)
        return;
    p->n_notes += level == INGLE_REPORT_NOTE;
    p->n_warnings += level == INGLE_REPORT_WARN;
    snprintf(p->said, sizeof p->said, "%s: %s", subject, text);
}

static void open_place(struct place *p, struct ingle_engine_options o)
{
    *p = (struct place){0};
    o.n_ctx = 1280;
    o.threads = 2;
    o.no_pin = true;
    o.max_logits = 8;
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

/* Greedy tokens behind the prompt, drawn with drafts or one by one. */
static void draw(struct place *p, int32_t text[N_DRAWN], struct ingle_reuse *reuse,
                 struct ingle_select *out)
{
    struct ingle_session *s;
    struct ingle_sampler *sampler;
    struct ingle_sampling sampling = {.top_p = 1, .typical_p = 1, .repeat_penalty = 1};
    struct ingle_token token[N_DRAWN];
    must(ingle_session_open(&s, p->e, &error));
    must(ingle_sampler_open(&sampler, p->e, &sampling, &error));
    must(ingle_session_sync(s, p->ids, N, reuse, &error));
    for (int64_t n = 0, k; n < N_DRAWN; n += k) {
        must(ingle_session_draw(s, sampler, token, N_DRAWN - n, &k, &error));
        for (int64_t i = 0; i < k; i++)
            text[n + i] = token[i].id;
    }
    struct ingle_way_use use;
    ingle_session_way_use(s, &use);
    *out = use.select;
    ingle_sampler_close(sampler);
    ingle_session_close(s);
}

static void drafts_and_reports(void **state)
{
    (void)state;
    static const char *const off = "off", *const ngram = "ngram";
    int32_t text[2][N_DRAWN];
    for (int drafts = 0; drafts < 2; drafts++) {
        struct place p;
        struct ingle_select use;
        open_place(&p, (struct ingle_engine_options){.kv_select = how,
                                                     .draft = drafts ? &ngram : &off,
                                                     .n_draft = 1,
                                                     .draft_min = drafts ? 3 : 0});
        assert_string_equal(p.info.kv_select, how);
        assert_string_equal(p.info.kv_select_why, "");
        assert_string_equal(p.info.numerics, "exact+sel4-p5");
        assert_true(p.n_notes == 1 && p.n_warnings == 0);
        assert_non_null(strstr(p.said, "rows of answers read 1/4 of the pages"));
        draw(&p, text[drafts], NULL, &use);
        assert_int_equal(p.n_notes, 2);
        assert_non_null(strstr(
            p.said,
            "attention of 2 layers: pages of small weights were replaced by their means: missed"));
        assert_non_null(strstr(p.said, "; measured "));
        assert_true(use.pairs > 0 && use.missed > 0 && use.missed <= use.most * (double)use.pairs &&
                    use.most < 1);
        assert_true(use.checked > 0 && use.missed_true > 0 && use.most_true < 1);
        assert_true(use.pages_read < use.pages_seen && use.pages_read * 9 > use.pages_seen * 4 &&
                    use.bytes_read > 0);
        close_place(&p);
    }
    assert_memory_equal(text[0], text[1], sizeof text[0]);
}

static void kept_apart(void **state)
{
    (void)state;
    static const char *const off = "off";
    char dir[] = "/tmp/ingle-select-XXXXXX", path[64];
    int32_t dense[N_DRAWN], text[N_DRAWN];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/saved", dir);
    struct ingle_engine_options o = {
        .store = dir, .store_tokens = 128, .restore_every = 256, .draft = &off, .n_draft = 1};
    const char *const ways[] = {NULL, how, "1/8,least=5", how, NULL};
    for (int i = 0; i < 5; i++) { /* each another process */
        struct place p;
        struct ingle_reuse r;
        struct ingle_select use;
        struct ingle_session *s;
        o.kv_select = ways[i];
        open_place(&p, o);
        draw(&p, text, &r, &use);
        /* nothing of another way; then each its own */
        assert_true(i < 3 ? r.kept == 0 : r.from_disk >= 1000);
        assert_int_equal(use.pages_seen > 0, ways[i] != NULL);
        must(ingle_session_open(&s, p.e, &error));
        if (i == 0) {
            memcpy(dense, text, sizeof dense);
            must(ingle_session_sync(s, p.ids, N, NULL, &error));
            const float *row;
            must(ingle_session_finish(s, &row, &error));
            must(ingle_session_save(s, path, &error));
        } else {
            assert_int_equal(ingle_session_load(s, path, &error), i == 4 ? INGLE_OK : INGLE_UNSUP);
        }
        ingle_session_close(s);
        close_place(&p);
    }
    assert_memory_equal(text, dense, sizeof dense);
    remove_dir(dir);
}

/* ---- the scheduler ---- */

struct ended {
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool over;
    struct ingle_usage usage;
};

static void done(void *arg, const struct ingle_usage *usage)
{
    struct ended *e = arg;
    pthread_mutex_lock(&e->lock);
    e->usage = *usage;
    e->over = true;
    pthread_cond_signal(&e->news);
    pthread_mutex_unlock(&e->lock);
}

static void by_a_scheduler(void **state)
{
    (void)state;
    static const char *const off = "off";
    struct place p;
    struct ingle_scheduler *sched;
    struct ingle_scheduler_status now;
    struct ended e = {.over = false};
    pthread_mutex_init(&e.lock, NULL);
    pthread_cond_init(&e.news, NULL);
    open_place(&p, (struct ingle_engine_options){.kv_select = how, .draft = &off, .n_draft = 1});
    must(ingle_scheduler_open(&sched, p.e, NULL, &error));
    struct ingle_request_options o = {.prompt = p.ids,
                                      .n_prompt = N,
                                      .max_tokens = N_DRAWN,
                                      .sampling = {.top_p = 1, .typical_p = 1, .repeat_penalty = 1},
                                      .done = done,
                                      .arg = &e};
    struct ingle_request *r;
    must(ingle_scheduler_submit(sched, &o, &r, NULL, &error));
    pthread_mutex_lock(&e.lock);
    while (!e.over)
        pthread_cond_wait(&e.news, &e.lock);
    pthread_mutex_unlock(&e.lock);
    ingle_scheduler_status(sched, &now, NULL, 0);
    assert_true(e.usage.n_generated > 1 &&
                e.usage.way.select.pages_seen > e.usage.way.select.pages_read &&
                e.usage.way.select.pairs > 0);
    assert_memory_equal(&now.way, &e.usage.way, sizeof now.way);
    assert_int_equal(p.n_notes, 2);
    ingle_scheduler_close(sched);
    close_place(&p);
    pthread_cond_destroy(&e.news);
    pthread_mutex_destroy(&e.lock);
}

static void where_it_cannot_be(void **state)
{
    (void)state;
    struct place p;
    open_place(&p, (struct ingle_engine_options){.numerics = "reference", .kv_select = how});
    assert_string_equal(p.info.kv_select, "off");
    assert_non_null(strstr(p.info.kv_select_why, "reference"));
    assert_string_equal(p.info.numerics, "reference");
    assert_true(p.n_warnings == 1 && p.n_notes == 0);
    assert_non_null(
        strstr(p.said, "not used, answers read all keys and values: --numerics reference"));
    close_place(&p);
}

static void values_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *how, *why;
    } bad[] = {
        {"on", "'on' is neither off nor 1/N with N from 1 to 256"},
        {"1/0", "is neither"},
        {"1/257", "is neither"},
        {"2/3", "is neither"},
        {"1/-4", "is neither"},
        {"1/", "is neither"},
        {"1/99999999999999999999999", "is neither"},
        {"1/4,least=4", "'least=4' is not least=PAGES with 5 to 65536 pages"},
        {"1/4,", "is not least=PAGES"},
        {"1/4,least=65537", "is not least=PAGES"},
        {"1/4,least=", "is not least=PAGES"},
        {"1/4,most=9", "is not least=PAGES"},
        {"1/4,least=9,least=9", "is not least=PAGES"},
    };
    struct ingle_config *c;
    must(ingle_config_open(&c, &error));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(ingle_config_set(c, "run", "kv-select", bad[i].how, &error), INGLE_ARG);
        if (!strstr(error.text, bad[i].why) || !strstr(error.text, "option '--kv-select'"))
            fail_msg("%s: %s", bad[i].how, error.text);
    }
    static const char *const good[] = {"off", "1/1", "1/16", "1/256,least=5", "1/16,least=65536"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct ingle_engine_options o = {0};
        must(ingle_config_set(c, "serve", "kv-select", good[i], &error));
        ingle_config_engine(c, &o);
        assert_string_equal(o.kv_select, good[i]);
    }
    ingle_config_close(c);
    struct ingle_model *m;
    struct ingle_engine *e;
    must(ingle_model_open(&m, model, NULL, &error));
    const struct ingle_engine_options o = {.kv_select = "1/x", .threads = 1};
    assert_int_equal(ingle_engine_open(&e, m, &o, &error), INGLE_ARG);
    ingle_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_checked), cmocka_unit_test(drafts_and_reports),
        cmocka_unit_test(kept_apart), cmocka_unit_test(by_a_scheduler),
        cmocka_unit_test(where_it_cannot_be)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
