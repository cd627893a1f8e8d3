/* SPDX-License-Identifier: Apache-2.0 */
/* A grammar whose masks take long beside answers that take none: on the built-in model. */
#include "unit/door.h"

#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

/* Each alternative leaves out a few letters of its own, so that nearly every text has a state of
 * its own, with nearly as many places as there are alternatives. */
enum {
    SLOW = UNIT_TSAN ? 120 : 250,
    TOO_LARGE = 1600,
    NEIGHBOUR = 30,
    HOSTILE = 6,
    MOST_TOKENS = 64
};

static char *hostile_text(int n)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ";
    char *text = calloc((size_t)n + 1, 100), *s = text;
    uint32_t x = 7;
    s += sprintf(s, "root ::= ");
    for (int i = 0; i < n; i++) {
        s += sprintf(s, "%s[", i ? " | " : "");
        for (const char *c = letters; *c; c++) {
            x = x * 1664525u + 1013904223u;
            if (x >> 16 & 31)
                *s++ = *c;
        }
        s += sprintf(s, "]* \"<%d>\"", i);
    }
    return text;
}

struct place {
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_scheduler *s;
    struct ingle_grammar *g;
};

/* A request; its functions run on the scheduler's thread. */
struct asked {
    struct ingle_request_options o;
    struct ingle_request *r;
    int32_t prompt[3];
    int32_t id[2][MOST_TOKENS];
    int n[2], n_ended;
    enum ingle_finish why[2];
    char error[480];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool begun, done; /* Sync: lock */
};

static int on_token(void *arg, int index, const struct ingle_drawn *t)
{
    struct asked *a = arg;
    assert_true(a->n[index] < MOST_TOKENS);
    a->id[index][a->n[index]++] = t->id;
    return 0;
}

static void on_begin(void *arg, const struct ingle_reuse *reuse)
{
    struct asked *a = arg;
    (void)reuse;
    pthread_mutex_lock(&a->lock);
    a->begun = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void on_end(void *arg, int index, enum ingle_finish why, const struct ingle_error *e)
{
    struct asked *a = arg;
    a->why[index] = why;
    a->n_ended++;
    if (why == INGLE_FINISH_ERROR)
        memcpy(a->error, e->text, sizeof a->error);
}

static void on_done(void *arg, const struct ingle_usage *usage)
{
    struct asked *a = arg;
    (void)usage;
    pthread_mutex_lock(&a->lock);
    a->done = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void make(struct asked *a, const struct place *p, int seed, int64_t max_tokens,
                 const struct ingle_grammar *g)
{
    *a = (struct asked){.prompt = {300 + seed, 301, 302}};
    a->o = (struct ingle_request_options){.prompt = a->prompt,
                                          .n_prompt = 3,
                                          .max_tokens = max_tokens,
                                          .ignore_end = true,
                                          .begin = on_begin,
                                          .token = on_token,
                                          .end = on_end,
                                          .done = on_done,
                                          .grammar = g,
                                          .arg = a};
    ingle_sampling_defaults(p->m, &a->o.sampling);
    a->o.sampling.temperature = 1;
    a->o.sampling.seed = (uint64_t)seed;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
}

static void wait_for(struct asked *a, const bool *what)
{
    pthread_mutex_lock(&a->lock);
    while (!*what)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

static void submit(struct place *p, struct asked *a)
{
    must(ingle_scheduler_submit(p->s, &a->o, &a->r, NULL, &error));
}

static void open_place(struct place *p, int n)
{
    char *text = hostile_text(n);
    must(ingle_model_open(&p->m, NULL, NULL, &error));
    must(ingle_engine_open(&p->e, p->m, &(struct ingle_engine_options){.threads = 2, .n_ctx = 256},
                           &error));
    must(ingle_scheduler_open(&p->s, p->e, NULL, &error));
    must(ingle_grammar_open(&p->g, p->m, INGLE_GRAMMAR_GBNF, text, strlen(text), &error));
    free(text);
}

static void close_place(struct place *p)
{
    ingle_scheduler_close(p->s);
    ingle_grammar_close(p->g);
    ingle_engine_close(p->e);
    ingle_model_close(p->m);
}

/* The tokens of a session of its own, whose masks are made at once. */
static void check_standalone(const struct place *p, const struct asked *a, int index)
{
    struct ingle_engine *e;
    struct ingle_session *s;
    struct ingle_sampler *sampler;
    struct ingle_sampling o = a->o.sampling;
    const float *logits;
    o.seed += (uint64_t)index;
    must(ingle_engine_open(&e, p->m, &(struct ingle_engine_options){.threads = 1, .n_ctx = 256},
                           &error));
    must(ingle_session_open(&s, e, &error));
    must(ingle_sampler_open(&sampler, e, &o, &error));
    must(ingle_sampler_constrain(sampler, a->o.grammar, &error));
    must(ingle_session_sync(s, a->prompt, 3, NULL, &error));
    for (int i = 0; i < a->n[index]; i++) {
        struct ingle_token t;
        must(ingle_session_finish(s, &logits, &error));
        must(ingle_sample(sampler, logits, s, &t, &error));
        assert_int_equal(t.id, a->id[index][i]);
        must(ingle_session_append(s, &t.id, 1, &error));
    }
    ingle_sampler_close(sampler);
    ingle_session_close(s);
    ingle_engine_close(e);
}

/* Two answers with slow masks, by turns, and one that needs none: their tokens are those that they
 * would have had at once. */
static void others_go_on(void **state)
{
    static struct asked hostile, neighbour;
    struct place p;
    (void)state;
    open_place(&p, SLOW);
    make(&hostile, &p, 1, HOSTILE, p.g);
    hostile.o.n = 2;
    make(&neighbour, &p, 2, NEIGHBOUR, NULL);
    submit(&p, &hostile);
    submit(&p, &neighbour);
    wait_for(&neighbour, &neighbour.done);
    wait_for(&hostile, &hostile.done);
    assert_int_equal(neighbour.n[0], NEIGHBOUR);
    for (int i = 0; i < 2; i++)
        assert_int_equal(hostile.why[i],
                         hostile.n[i] == HOSTILE ? INGLE_FINISH_LENGTH : INGLE_FINISH_END);
    if (!UNIT_TSAN) {
        check_standalone(&p, &hostile, 0);
        check_standalone(&p, &hostile, 1);
    }
    close_place(&p);
}

/* Cancelled while its mask is made; and the scheduler closes meanwhile. */
static void slow_masks_can_be_left(void **state)
{
    static struct asked first, second;
    struct place p;
    (void)state;
    open_place(&p, SLOW);
    make(&first, &p, 3, 50, p.g);
    make(&second, &p, 4, 50, p.g);
    submit(&p, &first);
    wait_for(&first, &first.begun);
    ingle_request_cancel(p.s, first.r);
    wait_for(&first, &first.done);
    assert_int_equal(first.why[0], INGLE_FINISH_CANCEL);
    submit(&p, &second);
    wait_for(&second, &second.begun);
    close_place(&p);
    assert_true(second.done);
    assert_int_equal(second.why[0], INGLE_FINISH_CANCEL);
}

/* States of more than 64 MiB end the answer, and nobody else's. */
static void too_large_a_mask_ends_its_answer(void **state)
{
    static struct asked hostile, neighbour;
    struct place p;
    (void)state;
    if (UNIT_TSAN) /* its threads are those of others_go_on */
        skip();
    open_place(&p, TOO_LARGE);
    make(&hostile, &p, 1, HOSTILE, p.g);
    make(&neighbour, &p, 2, NEIGHBOUR, NULL);
    submit(&p, &hostile);
    submit(&p, &neighbour);
    wait_for(&hostile, &hostile.done);
    wait_for(&neighbour, &neighbour.done);
    assert_int_equal(hostile.why[0], INGLE_FINISH_ERROR);
    assert_non_null(strstr(hostile.error, "limit of 64 MiB"));
    assert_int_equal(neighbour.n[0], NEIGHBOUR);
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_go_on),
        cmocka_unit_test(slow_masks_can_be_left),
        cmocka_unit_test(too_large_a_mask_ends_its_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
