/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cancel - how long a request goes on after it was cancelled.
 *
 * usage: bench_cancel [MODEL|-] [PROMPT_TOKENS] [TIMES] [THREADS]
 *
 * Requests are cancelled while they wait, while their prompt is computed (alone, and beside two
 * answers), and while they answer (alone, and among two others).  Printed is the time from the call
 * to the request's end.
 */
#define _POSIX_C_SOURCE 200809L
#include "ingle/ingle.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_TIMES = 10000, N_BESIDE = 2 };
enum where { WAITING, PROMPT, BESIDE, ANSWER, AMONG, N_WHERE };

static const char *const where_name[] = {"waiting", "prompt", "beside", "answer", "among"};

struct asked {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool begun, answers, over; /* Sync: lock */
    double ended;              /* Sync: lock */
};

struct bench {
    struct ingle_scheduler *s;
    struct ingle_request_options o;
    int64_t n_prompt;
    int times;
    double took[MAX_TIMES];
};

static struct ingle_error error;

static void must(ingle_status st)
{
    if (!st)
        return;
    fprintf(stderr, "%s\n", error.text);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void set(struct asked *a, bool *what)
{
    pthread_mutex_lock(&a->lock);
    *what = true;
    a->ended = now();
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void on_begin(void *arg, const struct ingle_reuse *reuse)
{
    struct asked *a = arg;
    (void)reuse;
    set(a, &a->begun);
}

static int on_token(void *arg, int index, const struct ingle_drawn *d)
{
    struct asked *a = arg;
    (void)index, (void)d;
    set(a, &a->answers);
    return 0;
}

static void on_done(void *arg, const struct ingle_usage *usage)
{
    struct asked *a = arg;
    (void)usage;
    set(a, &a->over);
}

static double wait_for(struct asked *a, const bool *what)
{
    pthread_mutex_lock(&a->lock);
    while (!*what && !a->over)
        pthread_cond_wait(&a->changed, &a->lock);
    const double t = a->ended;
    pthread_mutex_unlock(&a->lock);
    return t;
}

static struct ingle_request *submit(struct bench *b, struct asked *a, int64_t n_prompt,
                                    int64_t max_tokens)
{
    struct ingle_request *r;
    *a = (struct asked){.ended = 0};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    b->o.arg = a;
    b->o.n_prompt = n_prompt;
    b->o.max_tokens = max_tokens;
    b->o.begin = on_begin;
    b->o.token = on_token;
    b->o.done = on_done;
    must(ingle_scheduler_submit(b->s, &b->o, &r, NULL, &error));
    return r;
}

/* A part of the time that the phase takes, another one each time. */
static void pause_some(int i, double most)
{
    const double t = most * (double)(i * 37 % 100) / 100;
    nanosleep(&(struct timespec){(time_t)t, (long)((t - (double)(time_t)t) * 1e9)}, NULL);
}

static double cancel_one(struct bench *b, enum where where, int i)
{
    struct asked a, beside[N_BESIDE];
    struct ingle_request *other[N_BESIDE];
    const int n_beside = where == PROMPT || where == ANSWER ? 0 : N_BESIDE;
    for (int k = 0; k < n_beside; k++) {
        other[k] = submit(b, &beside[k], 20 + k, 100000);
        wait_for(&beside[k], &beside[k].answers);
    }
    /* Another first token, so that nothing of it is known. */
    ((int32_t *)(uintptr_t)b->o.prompt)[0] = 300 + i % 1000;
    struct ingle_request *extra = NULL;
    struct asked e;
    if (where == WAITING) { /* the third place */
        extra = submit(b, &e, 19, 100000);
        wait_for(&e, &e.answers);
    }
    struct ingle_request *r =
        submit(b, &a, where == ANSWER || where == AMONG ? 40 : b->n_prompt, 100000);
    if (where == PROMPT || where == BESIDE)
        wait_for(&a, &a.begun);
    if (where == ANSWER || where == AMONG)
        wait_for(&a, &a.answers);
    pause_some(i, where == PROMPT ? 0.2 : 0.05);
    const double began = now();
    ingle_request_cancel(b->s, r);
    const double took = wait_for(&a, &a.over) - began;
    if (extra) {
        ingle_request_cancel(b->s, extra);
        wait_for(&e, &e.over);
    }
    for (int k = 0; k < n_beside; k++) {
        ingle_request_cancel(b->s, other[k]);
        wait_for(&beside[k], &beside[k].over);
    }
    return took;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 && strcmp(argv[1], "-") ? argv[1] : NULL;
    static struct bench b;
    b.n_prompt = argc > 2 ? atoll(argv[2]) : 30000;
    b.times = argc > 3 ? atoi(argv[3]) : 200;
    if (b.n_prompt < 100 || b.times < 1 || b.times > MAX_TIMES)
        return 1;
    const struct ingle_engine_options eo = {.threads = argc > 4 ? atoi(argv[4]) : 0,
                                            .n_ctx = b.n_prompt + 110000,
                                            .n_sessions = 4};
    const struct ingle_scheduler_options so = {.max_running = 3};
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_model_info info;
    int32_t *ids = calloc((size_t)b.n_prompt, sizeof *ids);
    if (!ids)
        return 1;
    must(ingle_model_open(&m, path, NULL, &error));
    must(ingle_engine_open(&e, m, &eo, &error));
    must(ingle_scheduler_open(&b.s, e, &so, &error));
    ingle_model_info(m, &info);
    for (int64_t i = 0; i < b.n_prompt; i++)
        ids[i] = (int32_t)(200 + (i * 7919 + i / 13) % (info.n_vocab - 300));
    b.o = (struct ingle_request_options){.prompt = ids, .ignore_end = true};
    ingle_sampling_defaults(m, &b.o.sampling);
    printf("%s, %d times each, prompts of %lld tokens\n%-8s %10s %10s %10s\n", info.path, b.times,
           (long long)b.n_prompt, "where", "median ms", "p99 ms", "max ms");
    for (int w = 0; w < N_WHERE; w++) {
        for (int i = 0; i < b.times; i++)
            b.took[i] = cancel_one(&b, (enum where)w, i);
        qsort(b.took, (size_t)b.times, sizeof *b.took, by_value);
        printf("%-8s %10.2f %10.2f %10.2f\n", where_name[w], b.took[b.times / 2] * 1e3,
               b.took[b.times * 99 / 100] * 1e3, b.took[b.times - 1] * 1e3);
    }
    ingle_scheduler_close(b.s);
    ingle_engine_close(e);
    ingle_model_close(m);
    free(ids);
    return 0;
}
