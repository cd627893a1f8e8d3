/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
/* Many requests at once, on the built-in model. */
#include "unit/scheduler_world.h"

#include "base/num.h"

#include <stdatomic.h>
#include <time.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define INGLE_SANITIZED
#endif
#endif

/* A thread that asks all the time how far everything is: the thread sanitizer sees what changes
 * outside of the lock. */
struct poller {
    struct ingle_scheduler *s;
    pthread_t thread;
    atomic_bool over;
    int64_t last; /* tokens */
    bool wrong;   /* there were fewer of them than before */
};

static void *ask_on(void *arg)
{
    struct poller *p = arg;
    while (!atomic_load(&p->over)) {
        struct ingle_scheduler_status now;
        struct ingle_slot slot[4];
        ingle_scheduler_status(p->s, &now, slot, 4);
        p->wrong = p->wrong || now.generated_tokens < p->last;
        p->last = now.generated_tokens;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return NULL;
}

static void sixteen_answers_are_those_of_one(void **state)
{
    (void)state;
    enum { N = 16 };
    struct place p;
    struct poller asks = {0};
    struct asked *a[N];
    open_place(&p, &(struct ingle_engine_options){.n_sessions = 4}, NULL);
    asks.s = p.s;
    assert_int_equal(pthread_create(&asks.thread, NULL, ask_on, &asks), 0);
    for (int i = 0; i < N; i++) {
        a[i] = make_asked(&p, i, 1 + (i * 37) % 300, 10 + i * 3);
        submit(&p, a[i]);
    }
    for (int i = 0; i < N; i++) {
        wait_done(a[i]);
        assert_int_equal(a[i]->n_begin, 1);
        assert_int_equal(a[i]->last_progress, a[i]->o.n_prompt);
        assert_int_equal(a[i]->usage.n_generated, a[i]->answer[0].n);
        check_standalone(&p, a[i], 0);
        free_asked(a[i]);
    }
    atomic_store(&asks.over, true);
    pthread_join(asks.thread, NULL);
    assert_false(asks.wrong);
    close_place(&p);
}

/* Large steps of prompts stop for those of answers, for who comes and for who is cancelled:
 * no token changes. */
static void long_prompts_stop_for_the_others(void **state)
{
    enum { STREAMS = 3, ALL = STREAMS + 3 };
    (void)state;
    struct place p;
    struct asked *a[ALL];
    open_place(&p, NULL, NULL);
    for (int i = 0; i < STREAMS; i++)
        submit(&p, a[i] = make_asked(&p, 400 + i, 20 + i, 300));
    a[STREAMS] = make_asked(&p, 410, 2500, 5);
    a[STREAMS + 1] = make_asked(&p, 411, 2600, 5);
    /* should its prompt be over, it does not end before it is cancelled */
    a[STREAMS + 1]->o.ignore_end = true;
    a[STREAMS + 1]->hold_after = 1;
    a[STREAMS + 2] = make_asked(&p, 412, 60, 20);
    a[STREAMS + 2]->o.priority = 1;
    submit(&p, a[STREAMS]);
    submit(&p, a[STREAMS + 1]);
    wait_steps(&p, 60);
    submit(&p, a[STREAMS + 2]);
    ingle_request_cancel(p.s, a[STREAMS + 1]->r);
    for (int i = 0; i < ALL; i++) {
        wait_done(a[i]);
        if (i != STREAMS + 1)
            check_standalone(&p, a[i], 0);
        else
            assert_int_equal(a[i]->answer[0].why, INGLE_FINISH_CANCEL);
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
        check_standalone(&p, a, i);
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


/* ---- many at once ---- */

/* Kinds of requests whose answers are known. */
enum { KINDS = 20 };
struct kind {
    int64_t n_prompt, shared, max_tokens;
    int n;
    int32_t want[MAX_ANSWERS][MAX_TOKENS];
    int64_t n_want[MAX_ANSWERS];
};

static struct asked *make_kind(const struct place *p, int which, const struct kind *k)
{
    struct asked *a = make_asked(p, which, k->n_prompt, k->max_tokens);
    share_prompt(p, a, which, k->shared);
    a->o.n = k->n;
    return a;
}

static void learn_kinds(struct kind *kind)
{
    struct place p;
    uint32_t x = 77;
    open_place(&p, NULL, NULL);
    for (int i = 0; i < KINDS; i++) {
        struct kind *k = &kind[i];
        k->n_prompt = 1 + next(&x) % (i % 4 == 0 ? 700 : 60);
        k->shared = i % 3 ? k->n_prompt * 2 / 3 : 0;
        k->max_tokens = next(&x) % 30;
        k->n = i % 5 == 4 ? 3 : 1;
        struct asked *a = make_kind(&p, i, k);
        for (int j = 0; j < k->n; j++) {
            struct ingle_request_options o = a->o;
            o.sampling.seed += (uint64_t)j;
            k->n_want[j] = UNIT_TSAN ? -1 : alone(p.m, &o, k->want[j]); /* texts: without */
        }
        free_asked(a);
    }
    close_place(&p);
}

/* Cancelled answers are beginnings of the right ones, all others are the right ones. */
static void check_kind(const struct asked *a, const struct kind *k)
{
    for (int j = 0; j < k->n; j++) {
        const struct answer *w = &a->answer[j];
        if (w->why == INGLE_FINISH_ERROR)
            fail_msg("%s", w->error);
        if (UNIT_TSAN)
            continue;
        assert_true(w->n <= k->n_want[j]);
        if (w->why <= INGLE_FINISH_LENGTH)
            assert_int_equal(w->n, k->n_want[j]);
        assert_memory_equal(w->id, k->want[j], (size_t)w->n * sizeof *w->id);
    }
}

static void play_schedule(const struct kind *kind, uint32_t x)
{
    enum { MOST = 12 };
    static const char *const users[] = {NULL, "ann", "bob"};
    struct place p;
    struct asked *a[MOST];
    int which[MOST];
    bool any_held = false;
    const int n = 2 + (int)(next(&x) % (MOST - 1));
    const struct ingle_engine_options eo = {.threads = 1 + (int)(next(&x) % 2),
                                            .max_rows = 8 << next(&x) % 6,
                                            .max_logits = 1 + next(&x) % 8,
                                            .n_ctx = 1024,
                                            .n_sessions = 3 + next(&x) % 2};
    const struct ingle_scheduler_options so = {.max_running = 3 + next(&x) % 6,
                                               .step_seconds = next(&x) % 2 ? 0.5 : 0};
    open_place(&p, &eo, &so);
    for (int i = 0; i < n; i++) {
        which[i] = (int)(next(&x) % KINDS);
        a[i] = make_kind(&p, which[i], &kind[which[i]]);
        a[i]->o.user = users[next(&x) % 3];
        a[i]->o.priority = (int)(next(&x) % 3) - 1;
        if (next(&x) % 4 == 0)
            a[i]->cancel_after = 1 + next(&x) % 8;
        if (next(&x) % 6 == 0)
            a[i]->stop_after = 1 + next(&x) % 8;
        submit(&p, a[i]);
        if (next(&x) % 2 && !any_held) /* there might be no step */
            wait_steps(&p, next(&x) % 12);
        const bool held = next(&x) % 3;
        if (next(&x) % 3 == 0)
            hold_unless_done(&p, a[next(&x) % (uint32_t)(i + 1)], held);
        any_held |= held;
        const int other = (int)(next(&x) % (uint32_t)(i + 1));
        if (next(&x) % 8 == 0)
            cancel_unless_done(&p, a[other]);
    }
    for (int i = 0; i < n; i++)
        hold_unless_done(&p, a[i], false);
    for (int i = 0; i < n; i++) {
        wait_done(a[i]);
        check_kind(a[i], &kind[which[i]]);
        free_asked(a[i]);
    }
    close_place(&p);
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(INGLE_SANITIZED)
enum { SCHEDULES = 1, MORE = 2 }; /* they make it many times slower */
#else
enum { SCHEDULES = 8, MORE = 200 };
#endif
static uint32_t n_schedules(void)
{
    return (uint32_t)unit_some(SCHEDULES, MORE);
}

static void random_schedules_change_no_token(void **state)
{
    (void)state;
    static struct kind kind[KINDS];
    learn_kinds(kind);
    for (uint32_t i = 0; i < n_schedules(); i++)
        play_schedule(kind, i * 7919 + 1);
}

static void neither_with_compressed_rows(void **state)
{
    (void)state;
    static struct kind kind[KINDS];
    model_path = "tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf";
    learn_kinds(kind);
    for (uint32_t i = 0; i < (n_schedules() + 7) / 8; i++)
        play_schedule(kind, i * 104729 + 5);
    model_path = NULL;
}

static void wait_for_it(struct ingle_engine *e, void *arg)
{
    struct asked *a = arg;
    (void)e;
    pthread_mutex_lock(&a->lock);
    a->n_begin = 1;
    pthread_cond_broadcast(&a->changed);
    while (!a->done)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

static void *hold(void *arg)
{
    struct asked *a = arg;
    ingle_scheduler_call(a->s, wait_for_it, a);
    return NULL;
}

/* One prompt is computed, the others wait for what they share with it. */
static void a_shared_prefix_is_computed_once(void **state)
{
    (void)state;
    enum { N = 16, SHARED = 800 };
    struct place p;
    struct asked *a[N];
    int64_t n_begin = 0;
    pthread_t holder;
    open_place(&p, &(struct ingle_engine_options){.n_sessions = 16}, NULL);
    struct asked *gate = make_asked(&p, 0, 1, 1); /* the scheduler stands still until it opens */
    gate->s = p.s;
    assert_int_equal(pthread_create(&holder, NULL, hold, gate), 0);
    pthread_mutex_lock(&gate->lock);
    while (!gate->n_begin)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
    for (int i = 0; i < N; i++) {
        a[i] = make_asked(&p, i, SHARED + 20 + i, 12);
        share_prompt(&p, a[i], i, i < N - 1 ? SHARED : 600);
        submit(&p, a[i]);
    }
    on_done(gate, &gate->usage);
    pthread_join(holder, NULL);
    free_asked(gate);
    for (int i = 0; i < N; i++) {
        wait_done(a[i]);
        n_begin += a[i]->reuse.kept >= (i < N - 1 ? SHARED : 600);
        check_standalone(&p, a[i], 0);
    }
    assert_int_equal(n_begin, N - 1);
    const int64_t computed = status_of(&p).prompt_tokens;
    assert_true(computed < SHARED + 500 + N * 40);
    for (int i = 0; i < N; i++)
        free_asked(a[i]);
    close_place(&p);
}

/* Where prompts part becomes a restore point: the third one finds it. */
static void a_fork_in_the_road_is_remembered(void **state)
{
    (void)state;
    static const int64_t kept[] = {0, 0, 600, 600};
    struct place p;
    open_place(&p, NULL, NULL);
    for (int i = 0; i < 4; i++) {
        struct asked *a = make_asked(&p, i, 900 + i, 3);
        share_prompt(&p, a, i, 600);
        submit(&p, a);
        wait_done(a);
        assert_int_equal(a->reuse.kept, kept[i]);
        check_standalone(&p, a, 0);
        free_asked(a);
    }
    close_place(&p);
}

static void users_share_no_prefix(void **state)
{
    (void)state;
    struct place p;
    static const char *const users[] = {"ann", "ann", "bob", NULL, NULL};
    static const bool known[] = {false, true, false, false, true};
    open_place(&p, NULL, NULL);
    for (int i = 0; i < 5; i++) {
        struct asked *a = make_asked(&p, 1, 300, 3);
        a->o.user = users[i];
        submit(&p, a);
        wait_done(a);
        assert_int_equal(a->reuse.kept, known[i] ? 299 : 0);
        free_asked(a);
    }
    close_place(&p);
}

static void a_miss_says_why(void **state)
{
    (void)state;
    struct place p;
    open_place(&p, NULL, NULL);
    struct asked *a = make_asked(&p, 1, 900, 3), *b = make_asked(&p, 2, 900, 3);
    submit(&p, a);
    wait_done(a);
    assert_string_equal(a->reuse.why, "");
    share_prompt(&p, b, 2, 0);
    memcpy((void *)(uintptr_t)b->o.prompt, a->o.prompt, 500 * sizeof *b->o.prompt);
    submit(&p, b);
    wait_done(b);
    assert_int_equal(b->reuse.kept, 0);
    assert_int_equal(b->reuse.matched, 500);
    assert_string_equal(b->reuse.why, "differs at token 500, no restore point between 0 and it");
    free_asked(a);
    free_asked(b);
    close_place(&p);
}

/* More answers than there is memory for: some give way for a while, none is lost. */
static void short_of_memory_nobody_dies(void **state)
{
    (void)state;
    enum { N = 4, CONTEXT = 1200, SOME = 300 };
    if (UNIT_TSAN) /* one thread's decisions */
        skip();
    struct place p;
    struct asked *a[N];
    struct hog hog = {.p = &p, .leave = 1500000};
    open_place(&p, &(struct ingle_engine_options){.n_ctx = CONTEXT, .n_sessions = 2, .max_rows = 64,
                                                  .cache_bytes = 1 << 20}, NULL);
    ingle_scheduler_call(p.s, take_memory, &hog);
    for (int i = 0; i < N; i++) {
        a[i] = make_asked(&p, i, 20 + i, i ? SOME : -1);
        a[i]->o.ignore_end = true;
        a[i]->o.draft_max = -1; /* they grow at the same rate */
        a[i]->o.priority = i == 2;
        submit(&p, a[i]);
    }
    for (int i = 0; i < N; i++)
        wait_done(a[i]);
    ingle_scheduler_call(p.s, give_memory, &hog);
    assert_true(status_of(&p).n_parked > 0);
    for (int i = 0; i < N; i++) {
        if (a[i]->answer[0].why != INGLE_FINISH_LENGTH)
            fail_msg("%s", a[i]->answer[0].error);
        a[i]->o.max_tokens = i ? SOME : CONTEXT - a[i]->o.n_prompt;
        assert_int_equal(a[i]->answer[0].n, a[i]->o.max_tokens);
        check_standalone(&p, a[i], 0);
        free_asked(a[i]);
    }
    close_place(&p);
}

/* Waits until n slots are held. */
static void wait_held(struct place *p, int n)
{
    for (int is = -1; is != n;) {
        struct ingle_scheduler_status t;
        struct ingle_slot slot[16];
        const int64_t n_slots = ingle_scheduler_status(p->s, &t, slot, 16);
        is = 0;
        for (int64_t i = 0; i < n_slots; i++)
            is += slot[i].request && slot[i].held;
        if (is != n)
            let_others();
    }
}

static void cancelled_wherever_it_is(void **state)
{
    (void)state;
    struct place p;
    open_place(&p, &(struct ingle_engine_options){.n_sessions = 2},
               &(struct ingle_scheduler_options){.max_running = 2});
    struct asked *runs = make_asked(&p, 1, 30, 400), *prompt = make_asked(&p, 2, 4000, 50);
    struct asked *waits = make_asked(&p, 3, 30, 5);
    runs->o.ignore_end = true;
    runs->hold_after = 20; /* neither ends before it is time, however slow this thread is */
    prompt->hold_prompt = true;
    submit(&p, runs);
    wait_held(&p, 1);
    submit(&p, prompt);
    wait_held(&p, 2);
    submit(&p, waits);
    ingle_request_cancel(p.s, waits->r);
    wait_done(waits);
    assert_int_equal(waits->answer[0].why, INGLE_FINISH_CANCEL);
    assert_int_equal(waits->n_begin, 0);
    ingle_request_cancel(p.s, prompt->r);
    wait_done(prompt);
    assert_int_equal(prompt->answer[0].why, INGLE_FINISH_CANCEL);
    assert_int_equal(prompt->answer[0].n, 0);
    const int64_t there = prompt->last_progress;
    assert_true(there > 0);

    struct asked *again = make_asked(&p, 2, 4000, 5); /* what was computed is there */
    submit(&p, again);
    wait_done(again);
    assert_int_equal(again->reuse.kept, there);
    assert_int_equal(runs->answer[0].n, 20);
    ingle_request_hold(p.s, runs->r, false);
    wait_done(runs);
    assert_int_equal(runs->answer[0].n, 400);
    check_standalone(&p, runs, 0);
    check_standalone(&p, again, 0);
    free_asked(runs);
    free_asked(prompt);
    free_asked(waits);
    free_asked(again);
    close_place(&p);
}

/* In the middle of steps that it shares with others, whatever it waits for. */
static void cancelled_among_others(void **state)
{
    (void)state;
    enum { TOKENS = UNIT_TSAN || UNIT_ASAN ? 300 : 1500 };
    const int times = UNIT_TSAN || UNIT_ASAN ? unit_some(6, 20) : 20;
    struct place p;
    open_place(&p, &(struct ingle_engine_options){.n_sessions = 5},
               &(struct ingle_scheduler_options){.max_running = 5});
    struct asked *stay[2];
    for (int i = 0; i < 2; i++) {
        stay[i] = make_asked(&p, 1 + i, 30, TOKENS);
        stay[i]->o.ignore_end = true;
        stay[i]->o.draft_max = -1; /* neither ends before the last one has left */
        submit(&p, stay[i]);
    }
    for (int i = 0; i < times; i++) {
        struct asked *leaves = make_asked(&p, 3 + i, 30, TOKENS),
                     *queued = make_asked(&p, 100 + i, 30, 5);
        leaves->o.ignore_end = true;
        leaves->o.draft_max = 3; /* so many steps do not end it */
        leaves->o.n = 1 + i % 3;
        queued->o.n = 4; /* there is no room */
        submit(&p, leaves);
        submit(&p, queued);
        const int64_t steps = status_of(&p).n_steps;
        for (int k = 0; k < 1000 && status_of(&p).n_steps < steps + i % 17; k++)
            nanosleep(&(struct timespec){.tv_nsec = 20000 + 1000 * i}, NULL);
        ingle_request_cancel(p.s, i % 2 ? queued->r : leaves->r);
        ingle_request_cancel(p.s, i % 2 ? leaves->r : queued->r);
        wait_done(leaves);
        wait_done(queued);
        free_asked(leaves);
        free_asked(queued);
    }
    for (int i = 0; i < 2; i++) {
        wait_done(stay[i]);
        assert_int_equal(stay[i]->answer[0].n, TOKENS);
        check_standalone(&p, stay[i], 0);
        free_asked(stay[i]);
    }
    struct asked *all = make_asked(&p, 7, 30, 5); /* every slot is free again */
    all->o.n = MAX_ANSWERS;
    submit(&p, all);
    wait_done(all);
    check_standalone(&p, all, 0);
    free_asked(all);
    assert_int_equal(status_of(&p).n_running, 0);
    close_place(&p);
}

static void deadlines_hold_in_the_queue_and_later(void **state)
{
    (void)state;
    struct place p;
    open_place(&p, NULL, &(struct ingle_scheduler_options){.max_running = 1});
    struct asked *runs = make_asked(&p, 1, 30, 512), *waits = make_asked(&p, 3, 30, 5);
    runs->o.ignore_end = true;
    runs->o.max_tokens = -1; /* would run for longer than that */
    runs->o.deadline_seconds = 0.03;
    runs->stop_after = MAX_TOKENS - 1;
    waits->o.deadline_seconds = 1e-6;
    submit(&p, runs);
    submit(&p, waits);
    wait_done(waits);
    assert_int_equal(waits->answer[0].why, INGLE_FINISH_DEADLINE);
    assert_int_equal(waits->n_begin, 0);
    wait_done(runs);
    assert_true(runs->answer[0].why == INGLE_FINISH_DEADLINE ||
                runs->answer[0].why == INGLE_FINISH_ASKED);
    free_asked(runs);
    free_asked(waits);
    close_place(&p);
}

/* ---- answers that are held ---- */

static struct asked *make_held(const struct place *p, int which, int64_t hold_after)
{
    struct asked *a = make_asked(p, which, 30, 60);
    a->o.ignore_end = true;
    a->hold_after = hold_after;
    return a;
}

static void no_op(struct ingle_engine *e, void *arg)
{
    (void)e, (void)arg;
}

/* The thread sleeps: it takes no step, and no time of the processor. */
static void check_asleep(struct place *p)
{
    ingle_scheduler_call(p->s, no_op, NULL);
    const int64_t n_steps = status_of(p).n_steps;
    const clock_t before = clock();
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    assert_true(clock() - before < CLOCKS_PER_SEC / 10);
    ingle_scheduler_call(p->s, no_op, NULL);
    assert_int_equal(status_of(p).n_steps, n_steps);
}

static void held_answers_wait_and_others_go_on(void **state)
{
    (void)state;
    struct place p;
    open_place(&p, &(struct ingle_engine_options){.n_sessions = 3},
               &(struct ingle_scheduler_options){.max_running = 3});
    struct asked *a = make_held(&p, 1, 5), *b = make_held(&p, 2, 7), *c = make_held(&p, 3, 0);
    /* both are held with the first that asks for it, and one may have fewer drafts that are
     * right */
    b->o.n = 2;
    submit(&p, a);
    wait_held(&p, 1);
    submit(&p, c);
    wait_done(c);
    submit(&p, b);
    wait_held(&p, 3);
    check_asleep(&p);
    assert_int_equal(a->answer[0].n, 5);
    assert_int_equal(num_max(b->answer[0].n, b->answer[1].n), 7);
    ingle_request_hold(p.s, b->r, false);
    wait_done(b);
    assert_int_equal(a->answer[0].n, 5);
    ingle_request_hold(p.s, a->r, false);
    wait_done(a);
    check_standalone(&p, a, 0);
    check_standalone(&p, b, 0);
    check_standalone(&p, b, 1);
    check_standalone(&p, c, 0);
    free_asked(a);
    free_asked(b);
    free_asked(c);
    close_place(&p);
}

/* What ends a request does so while the thread sleeps. */
static void held_answers_end(void **state)
{
    (void)state;
    struct place p;
    open_place(&p, NULL, &(struct ingle_scheduler_options){.max_running = 1});
    struct asked *held = make_held(&p, 1, 5), *queued = make_held(&p, 2, 0);
    struct asked *late = make_held(&p, 3, 0), *next_one = make_held(&p, 4, 5);
    submit(&p, held);
    wait_held(&p, 1);
    submit(&p, queued);
    late->o.deadline_seconds = 0.2;
    submit(&p, late);
    wait_done(late);
    assert_int_equal(late->answer[0].why, INGLE_FINISH_DEADLINE);
    assert_int_equal(late->n_begin, 0);
    check_asleep(&p);
    ingle_request_cancel(p.s, queued->r);
    wait_done(queued);
    assert_int_equal(queued->n_begin, 0);
    next_one->o.deadline_seconds = 2;
    submit(&p, next_one);
    ingle_request_cancel(p.s, held->r);
    wait_done(held);
    assert_int_equal(held->answer[0].why, INGLE_FINISH_CANCEL);
    assert_int_equal(held->answer[0].n, 5);
    wait_done(next_one);
    assert_int_equal(next_one->answer[0].why, INGLE_FINISH_DEADLINE);
    assert_true(next_one->answer[0].n == 5 || !next_one->answer[0].n); /* a slow machine */

    struct asked *last = make_held(&p, 5, 5);
    submit(&p, last);
    wait_held(&p, 1);
    close_place(&p);
    wait_done(last);
    assert_int_equal(last->answer[0].why, INGLE_FINISH_CANCEL);
    free_asked(held);
    free_asked(queued);
    free_asked(late);
    free_asked(next_one);
    free_asked(last);
}

/* A prompt that is held is not computed, and nobody waits for what both begin with. */
static void held_prompts_lead_nobody(void **state)
{
    (void)state;
    struct place p;
    if (UNIT_TSAN) /* one thread's decisions */
        return;
    open_place(&p, &(struct ingle_engine_options){.n_sessions = 2},
               &(struct ingle_scheduler_options){.max_running = 2});
    struct asked *a = make_asked(&p, 1, 3000, 5), *b = make_asked(&p, 2, 3000, 5);
    share_prompt(&p, a, 1, 2500);
    share_prompt(&p, b, 2, 2500);
    a->hold_prompt = true;
    submit(&p, a);
    wait_held(&p, 1);
    submit(&p, b);
    wait_done(b);
    assert_int_equal(a->answer[0].n, 0);
    a->hold_prompt = false;
    ingle_request_hold(p.s, a->r, false);
    wait_done(a);
    check_standalone(&p, a, 0);
    check_standalone(&p, b, 0);
    free_asked(a);
    free_asked(b);
    close_place(&p);
}

/* ---- log probabilities ---- */

struct told {
    struct asked a;
    float logprob[300], top[300][5];
    int32_t top_id[300][5];
};

static int tell(void *arg, int index, const struct ingle_drawn *t)
{
    struct told *w = (struct told *)arg;
    assert_int_equal(t->n_top, t->position ? 5 : 0);
    assert_true(index == 0 || t->id == w->a.o.prompt[t->position]);
    w->logprob[t->position] = t->logprob;
    for (int i = 0; i < t->n_top; i++) {
        w->top[t->position][i] = t->top[i].logprob;
        w->top_id[t->position][i] = t->top[i].id;
        assert_true(!i || t->top[i].logprob <= t->top[i - 1].logprob);
        assert_true(t->top[i].id != t->id ||
                    memcmp(&t->top[i].logprob, &t->logprob, sizeof t->logprob) == 0);
    }
    return on_token(arg, index, t);
}

static void the_same_tokens_are_as_probable_in_a_prompt(void **state)
{
    (void)state;
    struct place p;
    open_place(&p, NULL, NULL);
    struct told *w = calloc(2, sizeof *w);
    for (int k = 0; k < 2; k++) {
        struct asked *a = make_asked(&p, 5, 200, 20);
        w[k].a = *a;
        pthread_mutex_init(&w[k].a.lock, NULL);
        pthread_cond_init(&w[k].a.changed, NULL);
        free(a);
        w[k].a.o.arg = &w[k].a;
        w[k].a.o.token = tell;
        w[k].a.o.n_top = 5;
        w[k].a.o.ignore_end = w[k].a.o.prompt_logprobs = true;
    }
    submit(&p, &w[0].a);
    wait_done(&w[0].a);
    assert_int_equal(w[0].a.n_prompt_tokens, 200);
    assert_int_equal(w[0].a.answer[0].n, 20);
    /* The whole of it as a prompt. */
    int32_t *longer = realloc((void *)(uintptr_t)w[1].a.o.prompt, 220 * sizeof *longer);
    memcpy(longer + 200, w[0].a.answer[0].id, 20 * sizeof *longer);
    w[1].a.o.prompt = longer;
    w[1].a.o.n_prompt = 220;
    w[1].a.o.max_tokens = 0;
    submit(&p, &w[1].a);
    wait_done(&w[1].a);
    assert_int_equal(w[1].a.n_prompt_tokens, 220);
    assert_memory_equal(w[0].logprob, w[1].logprob, 220 * sizeof *w->logprob);
    assert_memory_equal(w[0].top, w[1].top, 220 * sizeof *w->top);
    assert_memory_equal(w[0].top_id, w[1].top_id, 220 * sizeof *w->top_id);
    for (int k = 0; k < 2; k++)
        free((void *)(uintptr_t)w[k].a.o.prompt);
    free(w);
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_answers_are_those_of_one),
        cmocka_unit_test(several_answers_to_one_prompt),
        cmocka_unit_test(long_prompts_stop_for_the_others),
        cmocka_unit_test(the_ways_to_end),
        cmocka_unit_test(closing_ends_everything),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(a_call_runs_between_steps),
        cmocka_unit_test(random_schedules_change_no_token),
        cmocka_unit_test(neither_with_compressed_rows),
        cmocka_unit_test(a_shared_prefix_is_computed_once),
        cmocka_unit_test(a_fork_in_the_road_is_remembered),
        cmocka_unit_test(users_share_no_prefix),
        cmocka_unit_test(a_miss_says_why),
        cmocka_unit_test(short_of_memory_nobody_dies),
        cmocka_unit_test(cancelled_wherever_it_is),
        cmocka_unit_test(cancelled_among_others),
        cmocka_unit_test(deadlines_hold_in_the_queue_and_later),
        cmocka_unit_test(held_answers_wait_and_others_go_on),
        cmocka_unit_test(held_answers_end),
        cmocka_unit_test(held_prompts_lead_nobody),
        cmocka_unit_test(the_same_tokens_are_as_probable_in_a_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
