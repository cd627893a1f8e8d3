/* SPDX-License-Identifier: Apache-2.0 */
/* Many requests at once, on the built-in model. */
#include "unit/unit.h"

#include "ingle/ingle.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ingle_error error;

static void must(ingle_status st)
{
    if (st)
        fail_msg("%s", error.text);
}

enum { MAX_ANSWERS = 4, MAX_TOKENS = 512 };

struct answer {
    int32_t id[MAX_TOKENS];
    int64_t n;
    bool ended;
    enum ingle_finish why;
    char error[480];
};

/* A request and what its functions were told.  They run on the scheduler's thread. */
struct asked {
    struct ingle_request_options o;
    struct ingle_request *r;
    struct ingle_scheduler *s;
    struct answer answer[MAX_ANSWERS];
    int64_t n_begin, n_progress, last_progress, n_end, n_prompt_tokens;
    struct ingle_reuse reuse;
    struct ingle_usage usage;
    int64_t stop_after;   /* token() asks for the end then; 0: never */
    int64_t cancel_after; /* token() cancels the request then; 0: never */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done; /* Sync: lock */
};

static void on_begin(void *arg, const struct ingle_reuse *reuse)
{
    struct asked *a = arg;
    a->n_begin++;
    a->reuse = *reuse;
}

static void on_progress(void *arg, int64_t n_done, int64_t n_prompt)
{
    struct asked *a = arg;
    assert_true(n_done > a->last_progress && n_done <= n_prompt);
    a->last_progress = n_done;
    a->n_progress++;
}

static int on_token(void *arg, int index, const struct ingle_drawn *t)
{
    struct asked *a = arg;
    if (index < 0) {
        a->n_prompt_tokens++;
        return 0;
    }
    struct answer *w = &a->answer[index];
    assert_true(!w->ended && w->n < MAX_TOKENS);
    assert_int_equal(t->position, a->o.n_prompt + w->n);
    w->id[w->n++] = t->id;
    if (a->cancel_after && w->n == a->cancel_after)
        ingle_request_cancel(a->s, a->r);
    return a->stop_after && w->n >= a->stop_after;
}

static void on_end(void *arg, int index, enum ingle_finish why, const struct ingle_error *e)
{
    struct asked *a = arg;
    assert_false(a->answer[index].ended);
    a->answer[index].ended = true;
    a->answer[index].why = why;
    if (why == INGLE_FINISH_ERROR)
        memcpy(a->answer[index].error, e->text, sizeof e->text);
    a->n_end++;
}

static void on_done(void *arg, const struct ingle_usage *usage)
{
    struct asked *a = arg;
    a->usage = *usage;
    pthread_mutex_lock(&a->lock);
    a->done = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

struct place {
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_scheduler *s;
};

static void open_place(struct place *p, const struct ingle_engine_options *eo,
                       const struct ingle_scheduler_options *so)
{
    must(ingle_model_open(&p->m, NULL, NULL, &error));
    must(ingle_engine_open(&p->e, p->m, eo, &error));
    must(ingle_scheduler_open(&p->s, p->e, so, &error));
}

static void close_place(struct place *p)
{
    ingle_scheduler_close(p->s);
    ingle_engine_close(p->e);
    ingle_model_close(p->m);
}

/* A prompt of n tokens that depends on `which`. */
static int32_t *make_prompt(int which, int64_t n)
{
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    uint32_t x = (uint32_t)which * 2654435761u + 1;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = i ? (int32_t)(200 + (x >> 16) % 1500) : 2;
    }
    return ids;
}

static struct asked *make_asked(const struct place *p, int which, int64_t n_prompt,
                                int64_t max_tokens)
{
    struct asked *a = calloc(1, sizeof *a);
    a->o = (struct ingle_request_options){.n_prompt = n_prompt,
                                          .max_tokens = max_tokens,
                                          .begin = on_begin,
                                          .progress = on_progress,
                                          .token = on_token,
                                          .end = on_end,
                                          .done = on_done,
                                          .arg = a};
    a->o.prompt = make_prompt(which, n_prompt);
    ingle_sampling_defaults(p->m, &a->o.sampling);
    a->o.sampling.seed = (uint64_t)which;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    return a;
}

static void submit(struct place *p, struct asked *a)
{
    a->s = p->s;
    must(ingle_scheduler_submit(p->s, &a->o, &a->r, NULL, &error));
}

static void wait_done(struct asked *a)
{
    pthread_mutex_lock(&a->lock);
    while (!a->done)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
    assert_int_equal(a->n_end, a->o.n ? a->o.n : 1);
}

static void free_asked(struct asked *a)
{
    free((void *)(uintptr_t)a->o.prompt);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    free(a);
}

/* What a session of its own answers. */
static int64_t alone(struct ingle_model *m, const struct ingle_request_options *o, int32_t *out)
{
    struct ingle_engine *e;
    struct ingle_session *s;
    struct ingle_sampler *sampler;
    const float *logits;
    int64_t n = 0;
    must(ingle_engine_open(&e, m, NULL, &error));
    must(ingle_session_open(&s, e, &error));
    must(ingle_sampler_open(&sampler, e, &o->sampling, &error));
    must(ingle_session_sync(s, o->prompt, o->n_prompt, NULL, &error));
    while (n < o->max_tokens) {
        struct ingle_token t;
        must(ingle_session_finish(s, &logits, &error));
        must(ingle_sample(sampler, logits, s, &t, &error));
        out[n++] = t.id;
        if (!o->ignore_end && ingle_model_is_end(m, t.id))
            break;
        must(ingle_session_append(s, &t.id, 1, &error));
    }
    ingle_sampler_close(sampler);
    ingle_session_close(s);
    ingle_engine_close(e);
    return n;
}

static void check_alone(struct place *p, const struct asked *a, int index)
{
    int32_t want[MAX_TOKENS];
    struct ingle_request_options o = a->o;
    o.sampling.seed += (uint64_t)index;
    const int64_t n = alone(p->m, &o, want);
    assert_int_equal(a->answer[index].n, n);
    assert_memory_equal(a->answer[index].id, want, (size_t)n * sizeof *want);
}

static void sixteen_answers_are_those_of_one(void **state)
{
    (void)state;
    enum { N = 16 };
    struct place p;
    struct asked *a[N];
    open_place(&p, &(struct ingle_engine_options){.n_sessions = 4}, NULL);
    for (int i = 0; i < N; i++) {
        a[i] = make_asked(&p, i, 1 + (i * 37) % 300, 10 + i * 3);
        submit(&p, a[i]);
    }
    for (int i = 0; i < N; i++) {
        wait_done(a[i]);
        assert_int_equal(a[i]->n_begin, 1);
        assert_int_equal(a[i]->last_progress, a[i]->o.n_prompt);
        assert_int_equal(a[i]->usage.n_generated, a[i]->answer[0].n);
        check_alone(&p, a[i], 0);
        free_asked(a[i]);
    }
    close_place(&p);
}

static void several_answers_to_one_prompt(void **state)
{
    (void)state;
    struct place p;
    open_place(&p, &(struct ingle_engine_options){.n_sessions = 4}, NULL);
    struct asked *a = make_asked(&p, 3, 150, 30);
    a->o.n = 4;
    a->o.ignore_end = true;
    submit(&p, a);
    wait_done(a);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(a->answer[i].why, INGLE_FINISH_LENGTH);
        check_alone(&p, a, i);
    }
    free_asked(a);
    close_place(&p);
}

static void the_ways_to_end(void **state)
{
    (void)state;
    struct place p;
    struct ingle_scheduler_status status;
    open_place(&p, NULL, NULL);
    struct asked *none = make_asked(&p, 1, 700, 0), *stops = make_asked(&p, 2, 20, 100);
    struct asked *cancels = make_asked(&p, 3, 20, 100);
    stops->stop_after = 5;
    stops->o.ignore_end = cancels->o.ignore_end = true;
    cancels->cancel_after = 3;
    submit(&p, none);
    wait_done(none);
    submit(&p, stops);
    wait_done(stops);
    submit(&p, cancels);
    wait_done(cancels);
    assert_int_equal(none->answer[0].why, INGLE_FINISH_LENGTH);
    assert_int_equal(none->answer[0].n, 0);
    assert_int_equal(none->last_progress, 700);
    assert_int_equal(stops->answer[0].why, INGLE_FINISH_ASKED);
    assert_int_equal(stops->answer[0].n, 5);
    assert_int_equal(cancels->answer[0].why, INGLE_FINISH_CANCEL);
    assert_int_equal(cancels->answer[0].n, 3);
    ingle_scheduler_status(p.s, &status, NULL, 0);
    assert_int_equal(status.n_done, 2);
    assert_int_equal(status.n_cancelled, 1);
    free_asked(none);
    free_asked(stops);
    free_asked(cancels);
    close_place(&p);
}

static void closing_ends_everything(void **state)
{
    (void)state;
    enum { N = 8 };
    struct place p;
    struct asked *a[N];
    open_place(&p, NULL, &(struct ingle_scheduler_options){.max_running = 2});
    for (int i = 0; i < N; i++) {
        a[i] = make_asked(&p, i, 600, 400);
        a[i]->o.ignore_end = true;
        submit(&p, a[i]);
    }
    close_place(&p);
    for (int i = 0; i < N; i++) {
        assert_true(a[i]->done);
        assert_int_equal(a[i]->answer[0].why, INGLE_FINISH_CANCEL);
        free_asked(a[i]);
    }
}

static void what_is_refused(void **state)
{
    (void)state;
    struct place p;
    double retry = 0;
    open_place(&p, NULL, &(struct ingle_scheduler_options){.max_running = 1, .max_waiting = 1});
    struct asked *a = make_asked(&p, 1, 4097, 1);
    assert_int_equal(ingle_scheduler_submit(p.s, &a->o, &a->r, &retry, &error), INGLE_LIMIT);
    assert_string_equal(error.text, "the prompt has 4097 tokens, the context holds 4096");
    assert_true(retry == -1);
    a->o.n_prompt = 0;
    assert_int_equal(ingle_scheduler_submit(p.s, &a->o, &a->r, &retry, &error), INGLE_ARG);
    a->o.n_prompt = 10;
    a->o.priority = 11;
    assert_int_equal(ingle_scheduler_submit(p.s, &a->o, &a->r, &retry, &error), INGLE_ARG);
    assert_string_equal(error.text, "priority is 11, outside -10 to 10");
    a->o.priority = 0;
    a->o.sampling.temperature = -1;
    assert_int_equal(ingle_scheduler_submit(p.s, &a->o, &a->r, &retry, &error), INGLE_ARG);
    free_asked(a);

    struct asked *long_one = make_asked(&p, 1, 3000, 300), *waits = make_asked(&p, 2, 10, 5);
    submit(&p, long_one);
    struct ingle_scheduler_status status;
    do
        ingle_scheduler_status(p.s, &status, NULL, 0);
    while (status.n_waiting);
    submit(&p, waits);
    a = make_asked(&p, 3, 10, 5);
    assert_int_equal(ingle_scheduler_submit(p.s, &a->o, &a->r, &retry, &error), INGLE_LIMIT);
    assert_string_equal(error.text, "the queue is full: 1 requests wait, the limit is 1");
    assert_true(retry > 0);
    ingle_request_cancel(p.s, long_one->r);
    wait_done(long_one);
    wait_done(waits);
    assert_int_equal(long_one->answer[0].why, INGLE_FINISH_CANCEL);
    free_asked(a);
    free_asked(long_one);
    free_asked(waits);
    close_place(&p);
}

static void note_engine(struct ingle_engine *e, void *arg)
{
    struct ingle_engine_info info;
    ingle_engine_info(e, &info);
    *(int64_t *)arg = info.n_ctx;
}

static void a_call_runs_between_steps(void **state)
{
    (void)state;
    struct place p;
    int64_t n_ctx = 0;
    open_place(&p, NULL, NULL);
    ingle_scheduler_call(p.s, note_engine, &n_ctx);
    assert_int_equal(n_ctx, 4096);
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_answers_are_those_of_one),
        cmocka_unit_test(several_answers_to_one_prompt),
        cmocka_unit_test(the_ways_to_end),
        cmocka_unit_test(closing_ends_everything),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(a_call_runs_between_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
