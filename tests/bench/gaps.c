/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gaps - how long streams wait for their next token while a long prompt is computed.
 *
 * usage: bench_gaps [MODEL|-] [PROMPT_TOKENS] [STREAMS] [THREADS] [STEP_SECONDS] [FROM]
 *
 * Some answers run alone for a while, then a long prompt arrives, of which FROM tokens were
 * computed before.  Printed are the gaps between two tokens of a stream before, during and
 * after it, and their ratio to the median gap of the streams alone.  A stream begins anew
 * after a few hundred tokens, so that its own length is not what makes it slower.
 *
 * The phases before and after last as long as the prompt, up to some seconds: what the machine
 * does to steps that no prompt shares is seen there.
 */
#define _POSIX_C_SOURCE 200809L
#include "ingle/ingle.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_STREAMS = 16, MAX_GAPS = 1 << 20, STREAM_TOKENS = 256 };
static const double PHASE_SECONDS = 5;
enum phase { ALONE, DURING, AFTER, N_PHASES };

static const char *const phase_name[] = {"alone", "prompt", "after"};

/* Written on the scheduler's thread; read when everything is done. */
struct bench {
    double gap[N_PHASES][MAX_GAPS];
    int64_t n[N_PHASES];
    enum phase phase;
    double last[MAX_STREAMS];
    double phase_began, prompt_began, prompt_ended;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int step; /* Sync: lock; phases that are over */
    bool idle[MAX_STREAMS]; /* Sync: lock; it has ended and may begin anew */
};

struct stream {
    struct bench *b;
    int index;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void phase_is_over(struct bench *b)
{
    pthread_mutex_lock(&b->lock);
    b->step++;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static int stream_token(void *arg, int index, const struct ingle_drawn *d)
{
    const struct stream *s = arg;
    struct bench *b = s->b;
    const double t = now();
    (void)index;
    (void)d;
    if (b->last[s->index] > 0 && b->n[b->phase] < MAX_GAPS)
        b->gap[b->phase][b->n[b->phase]++] = t - b->last[s->index];
    b->last[s->index] = t;
    if (b->phase == DURING)
        return 0;
    if (b->phase_began == 0)
        b->phase_began = t;
    if (b->phase_began > 0 && t - b->phase_began > PHASE_SECONDS) {
        b->phase_began = -1;
        phase_is_over(b);
    }
    return 0;
}

static void prompt_begin(void *arg, const struct ingle_reuse *reuse)
{
    struct bench *b = arg;
    (void)reuse;
    b->phase = DURING;
    b->prompt_began = now();
}

static int prompt_token(void *arg, int index, const struct ingle_drawn *d)
{
    struct bench *b = arg;
    (void)index;
    (void)d;
    b->prompt_ended = now();
    b->phase = AFTER;
    b->phase_began = 0;
    return 1;
}

static void stream_done(void *arg, const struct ingle_usage *usage)
{
    const struct stream *s = arg;
    struct bench *b = s->b;
    (void)usage;
    pthread_mutex_lock(&b->lock);
    b->last[s->index] = 0;
    b->idle[s->index] = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(struct bench *b)
{
    double normal = 0;
    printf("%-7s %8s %10s %10s %10s %8s %8s %8s\n", "phase", "gaps", "median us", "p99 us", "max us",
           "median", "p99", "max");
    for (int p = 0; p < N_PHASES; p++) {
        const int64_t n = b->n[p];
        double *g = b->gap[p];
        if (!n)
            continue;
        qsort(g, (size_t)n, sizeof *g, by_value);
        const double median = g[n / 2], p99 = g[n * 99 / 100], max = g[n - 1];
        if (p == ALONE)
            normal = median;
        printf("%-7s %8lld %10.0f %10.0f %10.0f %7.2fx %7.2fx %7.2fx\n", phase_name[p],
               (long long)n, median * 1e6, p99 * 1e6, max * 1e6, median / normal, p99 / normal,
               max / normal);
    }
}

/* How many gaps are how many times the median of the streams alone. */
static void print_histogram(const struct bench *b)
{
    static const double edge[] = {1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 6, 10, 30, 1e30};
    const double normal = b->n[ALONE] ? b->gap[ALONE][b->n[ALONE] / 2] : 1;
    printf("gaps up to");
    for (size_t k = 0; k + 1 < sizeof edge / sizeof *edge; k++)
        printf(" %6.2fx", edge[k]);
    printf("    more\n");
    for (int p = 0; p < N_PHASES; p++) {
        int64_t i = 0;
        printf("%-10s", phase_name[p]);
        for (size_t k = 0; k < sizeof edge / sizeof *edge; k++) {
            const int64_t from = i;
            while (i < b->n[p] && b->gap[p][i] <= edge[k] * normal)
                i++;
            printf(" %7lld", (long long)(i - from));
        }
        printf("\n");
    }
}

static struct ingle_error error;

static void must(ingle_status st)
{
    if (!st)
        return;
    fprintf(stderr, "%s\n", error.text);
    exit(1);
}

/* Keeps the streams going until so many phases are over. */
static void run_streams(struct ingle_scheduler *s, struct bench *b, struct stream *stream,
                        int n_streams, struct ingle_request_options *o, int step)
{
    struct ingle_request *r;
    pthread_mutex_lock(&b->lock);
    while (b->step < step) {
        for (int i = 0; i < n_streams; i++) {
            if (!b->idle[i])
                continue;
            b->idle[i] = false;
            o->arg = &stream[i];
            o->n_prompt = 20 + i;
            o->sampling.seed++;
            must(ingle_scheduler_submit(s, o, &r, NULL, &error));
        }
        pthread_cond_wait(&b->changed, &b->lock);
    }
    pthread_mutex_unlock(&b->lock);
}

/* Computes the prompt's first n tokens, which the engine remembers. */
static void compute(struct ingle_scheduler *s, struct ingle_request_options o, int64_t n,
                    struct bench *b)
{
    struct ingle_request *r;
    struct stream none = {b, 0};
    o.n_prompt = n;
    o.max_tokens = 0;
    o.token = NULL;
    o.begin = NULL;
    o.done = stream_done;
    o.arg = &none;
    must(ingle_scheduler_submit(s, &o, &r, NULL, &error));
    pthread_mutex_lock(&b->lock);
    while (!b->idle[0])
        pthread_cond_wait(&b->changed, &b->lock);
    b->idle[0] = false;
    pthread_mutex_unlock(&b->lock);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 && strcmp(argv[1], "-") ? argv[1] : NULL;
    const int64_t n_prompt = argc > 2 ? atoll(argv[2]) : 100000;
    const int n_streams = argc > 3 ? atoi(argv[3]) : 4;
    const struct ingle_engine_options eo = {.threads = argc > 4 ? atoi(argv[4]) : 0,
                                            .n_ctx = n_prompt + 4096,
                                            .n_sessions = 3};
    const struct ingle_scheduler_options so = {.step_seconds = argc > 5 ? atof(argv[5]) : 0};
    const int64_t from = argc > 6 ? atoll(argv[6]) : 0;
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_scheduler *s;
    struct ingle_request *r;
    struct ingle_model_info info;
    struct bench *b = calloc(1, sizeof *b);
    struct stream stream[MAX_STREAMS];
    int32_t *ids = calloc((size_t)n_prompt, sizeof *ids);
    if (!b || !ids || n_streams < 1 || n_streams > MAX_STREAMS || n_prompt < 1 ||
        from >= n_prompt)
        return 1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    must(ingle_model_open(&m, path, NULL, &error));
    must(ingle_engine_open(&e, m, &eo, &error));
    must(ingle_scheduler_open(&s, e, &so, &error));
    ingle_model_info(m, &info);
    for (int64_t i = 0; i < n_prompt; i++)
        ids[i] = (int32_t)(200 + (i * 7919 + i / 13) % (info.n_vocab - 300));
    struct ingle_request_options o = {.prompt = ids, .max_tokens = STREAM_TOKENS, .ignore_end = true};
    ingle_sampling_defaults(m, &o.sampling);
    struct ingle_request_options prompt = o;
    o.token = stream_token;
    o.done = stream_done;
    prompt.arg = b;
    prompt.n_prompt = n_prompt;
    prompt.max_tokens = 1;
    prompt.begin = prompt_begin;
    prompt.token = prompt_token;
    if (from > 0)
        compute(s, prompt, from, b);
    for (int i = 0; i < n_streams; i++) {
        stream[i] = (struct stream){b, i};
        b->idle[i] = true;
    }
    run_streams(s, b, stream, n_streams, &o, 1);
    must(ingle_scheduler_submit(s, &prompt, &r, NULL, &error));
    run_streams(s, b, stream, n_streams, &o, 2);
    ingle_scheduler_close(s);
    const double took = b->prompt_ended - b->prompt_began;
    printf("%s: tokens %lld to %lld of a prompt beside %d streams took %.1f s, %.0f tokens/s\n",
           info.path, (long long)from, (long long)n_prompt, n_streams, took,
           (double)(n_prompt - from) / took);
    print(b);
    print_histogram(b);
    ingle_engine_close(e);
    ingle_model_close(m);
    free(ids);
    free(b);
    return 0;
}
