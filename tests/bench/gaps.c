/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gaps - how long streams wait for their next token while a long prompt is computed.
 *
 * usage: bench_gaps [MODEL|-] [PROMPT_TOKENS] [STREAMS] [THREADS] [STEP_SECONDS] [FROM] [PARTS]
 *        [STORE|-] [BUDGET]
 *
 * Some answers run; a long prompt, of which FROM tokens were computed before, arrives in PARTS,
 * one after the other.  Before, between and after these the answers run alone.  A gap is the time
 * between two tokens of a stream, told as a multiple of the median of the streams alone before and
 * after the same part; where those two differ the machine has changed its speed, and the part does
 * not
 * count.  A stream begins anew after a few hundred tokens, so that its own length is not what
 * makes it slower.
 *
 * BUDGET (70 to 1120): each part is a picture of so many tokens that nobody has seen.
 *
 * Gaps are told twice: as a clock has them, and as time that the scheduler's thread had a
 * processor; what a busy machine takes away is in the first only.
 */
#define _POSIX_C_SOURCE 200809L
#include "ingle/ingle.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIDE = 384, SOFT = 1120, WORDS = 10 };
enum { MAX_STREAMS = 16, MAX_GAPS = 1 << 22, STREAM_TOKENS = 256, MAX_PARTS = 64 };
static const double ALONE_SECONDS = 5, LEAST_ALONE_SECONDS = 1;
/* Of the answers alone before a part and after it, at most, for the part to count. */
static const double SPEED_CHANGE = 1.15;

enum measure { WALL, OWN, N_MEASURES };

struct gap {
    double seconds[N_MEASURES];
    int phase; /* even: alone; odd: beside a part */
};

/* Written on the scheduler's thread; read when everything is done. */
struct bench {
    struct gap *gap; /* [MAX_GAPS] */
    int64_t n;
    double last[N_MEASURES][MAX_STREAMS];
    double alone_seconds, alone_began; /* alone_began below 0: this phase has been long enough */
    double asked[MAX_PARTS], began[MAX_PARTS], ended[MAX_PARTS];
    int64_t kept[MAX_PARTS];
    int phase;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int over;               /* Sync: lock; phases that are over */
    bool idle[MAX_STREAMS]; /* Sync: lock; it has ended and may begin anew */
};

struct stream {
    struct bench *b;
    int index;
};

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void phase_is_over(struct bench *b)
{
    pthread_mutex_lock(&b->lock);
    b->over++;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static int stream_token(void *arg, int index, const struct ingle_drawn *d)
{
    const struct stream *s = arg;
    struct bench *b = s->b;
    const double at[] = {seconds(CLOCK_MONOTONIC), seconds(CLOCK_THREAD_CPUTIME_ID)};
    const bool counts = b->last[WALL][s->index] > 0 && b->n < MAX_GAPS;
    (void)index;
    (void)d;
    if (counts)
        b->gap[b->n].phase = b->phase;
    for (int m = 0; m < N_MEASURES; m++) {
        if (counts)
            b->gap[b->n].seconds[m] = at[m] - b->last[m][s->index];
        b->last[m][s->index] = at[m];
    }
    b->n += counts;
    if (b->phase % 2)
        return 0;
    if (b->alone_began == 0)
        b->alone_began = at[WALL];
    if (b->alone_began > 0 && at[WALL] - b->alone_began > b->alone_seconds) {
        b->alone_began = -1;
        phase_is_over(b);
    }
    return 0;
}

/* Between two steps, right before the prompt is submitted. */
static void part_begins(struct ingle_engine *e, void *arg)
{
    struct bench *b = arg;
    (void)e;
    b->asked[b->phase / 2] = seconds(CLOCK_MONOTONIC);
    b->phase++;
}

static void prompt_begin(void *arg, const struct ingle_reuse *reuse)
{
    struct bench *b = arg;
    b->kept[b->phase / 2] = reuse->kept;
    b->began[b->phase / 2] = seconds(CLOCK_MONOTONIC);
}

static int prompt_token(void *arg, int index, const struct ingle_drawn *d)
{
    struct bench *b = arg;
    (void)index;
    (void)d;
    b->ended[b->phase / 2] = seconds(CLOCK_MONOTONIC);
    b->phase++;
    b->alone_began = 0;
    return 1;
}

static void prompt_over(void *arg, const struct ingle_usage *usage)
{
    (void)usage;
    phase_is_over(arg);
}

static void stream_done(void *arg, const struct ingle_usage *usage)
{
    const struct stream *s = arg;
    struct bench *b = s->b;
    (void)usage;
    pthread_mutex_lock(&b->lock);
    b->last[WALL][s->index] = 0;
    b->idle[s->index] = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* ---- what came of it ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Gaps of the phases [p0, p1] that are odd or even as p0 is, sorted; returns how many. */
static int64_t collect(const struct bench *b, enum measure m, int p0, int p1, double *out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < b->n; i++)
        if (b->gap[i].phase >= p0 && b->gap[i].phase <= p1 && (b->gap[i].phase - p0) % 2 == 0)
            out[n++] = b->gap[i].seconds[m];
    qsort(out, (size_t)n, sizeof *out, by_value);
    return n;
}

static double part_of(const double *sorted, int64_t n, double q)
{
    return n ? sorted[(int64_t)((double)(n - 1) * q)] : 0;
}

/* What the streams wait alone, around a part; 0: the speed has changed. */
static double usual(const struct bench *b, enum measure m, int part, double *room)
{
    int64_t n = collect(b, m, 2 * part, 2 * part, room);
    const double before = part_of(room, n, 0.5);
    n = collect(b, m, 2 * part + 2, 2 * part + 2, room);
    const double after = part_of(room, n, 0.5);
    return before < SPEED_CHANGE * after && after < SPEED_CHANGE * before ? sqrt(before * after)
                                                                          : 0;
}

static void print_ratios(const char *what, const double *sorted, int64_t n)
{
    static const double edge[] = {1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 6, 10, 30, 1e30};
    int64_t i = 0;
    printf("%-7s %8lld %7.2fx %7.2fx %7.2fx |", what, (long long)n, part_of(sorted, n, 0.5),
           part_of(sorted, n, 0.99), part_of(sorted, n, 1));
    for (size_t k = 0; k < sizeof edge / sizeof *edge; k++) {
        const int64_t from = i;
        while (i < n && sorted[i] <= edge[k])
            i++;
        printf(" %6lld", (long long)(i - from));
    }
    printf("\n");
}

/* Gaps of all parts that count, as multiples of what is usual around each. */
static void print_all(const struct bench *b, int n_parts, enum measure m, double *room,
                      double *ratio)
{
    printf("%-7s %8s %8s %8s %8s | up to 1.25    1.5   1.75      2   2.25    2.5   2.75      3    "
           "3.5      4"
           "      6     10     30   more\n",
           m == WALL ? "clock" : "own", "gaps", "median", "p99", "max");
    for (int beside = 0; beside < 2; beside++) {
        int64_t n = 0;
        for (int k = 0; k < n_parts; k++) {
            const double unit = usual(b, m, k, room);
            if (unit <= 0)
                continue;
            const int64_t k_n = collect(b, m, 2 * k + beside, 2 * k + 2 - beside, room);
            for (int64_t i = 0; i < k_n; i++)
                ratio[n++] = room[i] / unit;
        }
        qsort(ratio, (size_t)n, sizeof *ratio, by_value);
        print_ratios(beside ? "prompt" : "alone", ratio, n);
    }
}

static void print_part(const struct bench *b, int k, int64_t to, double *room)
{
    const double took = b->ended[k] - b->began[k];
    printf("tokens %6lld to %6lld %6.0f tokens/s, begun after %.3f s;", (long long)b->kept[k],
           (long long)to, (double)(to - b->kept[k]) / took, b->began[k] - b->asked[k]);
    for (enum measure m = WALL; m < N_MEASURES; m++) {
        const double unit = usual(b, m, k, room);
        int64_t n = collect(b, m, 2 * k, 2 * k + 2, room);
        const double alone = part_of(room, n, 0.5);
        n = collect(b, m, 2 * k + 1, 2 * k + 1, room);
        if (unit > 0)
            printf(" %s: alone %.0f us, median %.2fx, p99 %.2fx", m == WALL ? "clock" : "; own",
                   unit * 1e6, part_of(room, n, 0.5) / unit, part_of(room, n, 0.99) / unit);
        else
            printf(" %s: alone about %.0f us, the speed changed", m == WALL ? "clock" : "; own",
                   alone * 1e6);
    }
    printf("\n");
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
                        int n_streams, struct ingle_request_options *o, int over)
{
    struct ingle_request *r;
    pthread_mutex_lock(&b->lock);
    while (b->over < over) {
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

/* A picture between some words as the prompt of o. */
static void show(const struct ingle_model *m, struct ingle_engine *e, int k, int32_t budget,
                 int32_t *ids, struct ingle_span *span, struct ingle_request_options *o)
{
    static uint8_t rgb[SIDE * SIDE * 3];
    struct ingle_medium_info info;
    for (size_t i = 0; i < sizeof rgb; i++)
        rgb[i] = (uint8_t)(i * 7 / 3 + i / 1000 * (size_t)k);
    const struct ingle_media in = {.rgb = rgb, .width = SIDE, .height = SIDE, .budget = budget};
    must(ingle_medium_open(&span->medium, e, &in, &error));
    ingle_medium_info(span->medium, &info);
    span->start = WORDS;
    span->n = info.n_soft;
    ids[WORDS - 1] = ingle_find_token(m, "<|image>", 8);
    for (int64_t i = 0; i < info.n_soft; i++)
        ids[WORDS + i] = ingle_find_token(m, "<|image|>", 9);
    ids[WORDS + info.n_soft] = ingle_find_token(m, "<image|>", 8);
    o->prompt = ids;
    o->n_prompt = WORDS + info.n_soft + 1;
    o->span = span;
    o->n_spans = 1;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 && strcmp(argv[1], "-") ? argv[1] : NULL;
    const int64_t n_prompt = argc > 2 ? atoll(argv[2]) : 100000;
    const int n_streams = argc > 3 ? atoi(argv[3]) : 4;
    static const char *const off = "off"; /* one token a step */
    const int32_t budget = argc > 9 ? (int32_t)atoi(argv[9]) : 0;
    const struct ingle_engine_options eo = {.threads = argc > 4 ? atoi(argv[4]) : 0,
                                            .n_ctx = n_prompt + 4096,
                                            .n_sessions = 3,
                                            .draft = &off,
                                            .n_draft = budget > 0,
                                            .store = argc > 8 && strcmp(argv[8], "-") ? argv[8]
                                                                              : NULL};
    static int32_t shown[SOFT + 2 * WORDS];
    struct ingle_span span[MAX_PARTS];
    const struct ingle_scheduler_options so = {.step_seconds = argc > 5 ? atof(argv[5]) : 0};
    const int64_t from = argc > 6 ? atoll(argv[6]) : 0;
    const int n_parts = argc > 7 ? atoi(argv[7]) : 1;
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_scheduler *s;
    struct ingle_request *r;
    struct ingle_model_info info;
    struct bench *b = calloc(1, sizeof *b);
    struct stream stream[MAX_STREAMS];
    int32_t *ids = calloc((size_t)(n_prompt > 0 ? n_prompt : 1), sizeof *ids);
    double *room = calloc(MAX_GAPS, sizeof *room), *ratio = calloc(2 * MAX_GAPS, sizeof *ratio);
    if (!b || !ids || !room || !ratio || !(b->gap = calloc(MAX_GAPS, sizeof *b->gap)) ||
        n_streams < 1 || n_streams > MAX_STREAMS || n_prompt < 1 || from < 0 || n_parts < 1 ||
        n_parts > MAX_PARTS || from + n_parts > n_prompt)
        return 1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    must(ingle_model_open(&m, path, NULL, &error));
    must(ingle_engine_open(&e, m, &eo, &error));
    must(ingle_scheduler_open(&s, e, &so, &error));
    ingle_model_info(m, &info);
    for (int64_t i = 0; i < n_prompt; i++)
        ids[i] = (int32_t)(200 + (i * 7919 + i / 13) % (info.n_vocab - 300));
    struct ingle_request_options o = {
        .prompt = ids, .max_tokens = STREAM_TOKENS, .ignore_end = true};
    ingle_sampling_defaults(m, &o.sampling);
    struct ingle_request_options prompt = o;
    o.token = stream_token;
    o.done = stream_done;
    prompt.arg = b;
    prompt.max_tokens = 1;
    if (from > 0)
        compute(s, prompt, from, b);
    fprintf(stderr, "%lld tokens are computed\n", (long long)from);
    prompt.begin = prompt_begin;
    prompt.token = prompt_token;
    prompt.done = prompt_over;
    b->alone_seconds = fmax(LEAST_ALONE_SECONDS, ALONE_SECONDS / n_parts);
    for (int i = 0; i < n_streams; i++) {
        stream[i] = (struct stream){b, i};
        b->idle[i] = true;
    }
    for (int k = 0; k < n_parts; k++) {
        run_streams(s, b, stream, n_streams, &o, 2 * k + 1);
        prompt.n_prompt = from + (n_prompt - from) * (k + 1) / n_parts;
        if (budget) {
            memcpy(shown, ids, WORDS * sizeof *ids);
            show(m, e, k + 1, budget, shown, &span[k], &prompt);
        }
        ingle_scheduler_call(s, part_begins, b);
        must(ingle_scheduler_submit(s, &prompt, &r, NULL, &error));
        run_streams(s, b, stream, n_streams, &o, 2 * k + 2);
    }
    run_streams(s, b, stream, n_streams, &o, 2 * n_parts + 1);
    ingle_scheduler_close(s);
    for (int k = 0; budget && k < n_parts; k++)
        ingle_medium_close(span[k].medium);
    printf("%s beside %d streams\n", info.path, n_streams);
    for (int k = 0; k < n_parts; k++)
        print_part(b, k, from + (n_prompt - from) * (k + 1) / n_parts, room);
    for (enum measure k = WALL; k < N_MEASURES; k++)
        print_all(b, n_parts, k, room, ratio);
    ingle_engine_close(e);
    ingle_model_close(m);
    free(ids);
    free(room);
    free(ratio);
    free(b->gap);
    free(b);
    return 0;
}
