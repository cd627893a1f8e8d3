/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a long context costs: time of a decoded token behind 1k to 300k tokens (the
 * median, the best, and by operation), and the memory that the process took against the plan.
 * Prints one JSON object a line.
 *
 *   bench_long_context FILE [TOKENS [THREADS]]     TOKENS: 300000 unless told
 *
 * Exits with 1 when the memory is more than a tenth away from the plan.
 */
#include "ingle/ingle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DECODED = 32 };

static void must(ingle_status s, const struct ingle_error *e)
{
    if (s == INGLE_OK)
        return;
    fprintf(stderr, "bench_long_context: %s\n", e->text);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* "RssAnon:" in bytes: pages of program files are nobody's plan. */
static double memory(const char *what)
{
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, what, strlen(what)))
            kib = strtod(line + strlen(what), NULL);
    if (f)
        fclose(f);
    return kib * 1024;
}

/* n more tokens; seconds. */
static double add(struct ingle_session *s, int64_t n, int64_t each, int64_t n_vocab)
{
    static uint64_t x = 88172645463325252u;
    struct ingle_error e;
    const float *logits;
    const double start = now();
    for (int64_t i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        const int32_t token = (int32_t)(x % (uint64_t)n_vocab);
        must(ingle_session_append(s, &token, 1, &e), &e);
        if ((i + 1) % each == 0 || i + 1 == n)
            must(ingle_session_finish(s, &logits, &e), &e);
    }
    return now() - start;
}

static int order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct times { double median, best; };

/* Of one decoded token.  A busy machine takes pauses: the best is what the work costs. */
static struct times decode(struct ingle_session *s, int64_t n_vocab)
{
    double t[DECODED];
    for (int i = 0; i < DECODED; i++)
        t[i] = add(s, 1, 1, n_vocab);
    qsort(t, DECODED, sizeof *t, order);
    return (struct times){t[DECODED / 2], t[0]};
}

static void print_bytes(const char *item, double plan, double taken)
{
    printf("{\"item\":\"%s\",\"plan_mb\":%.2f,\"taken_mb\":%.2f,\"off\":%.3f}\n", item, 1e-6 * plan,
           1e-6 * taken, taken / plan - 1);
}

/* The plan beside what was taken; gives how far off the sum is.  Only keys and values are
 * counted while they are taken; what remains of the process is compared as one. */
static double compare(const struct ingle_plan *plan, const struct ingle_engine *engine, double took)
{
    struct ingle_engine_info info;
    double known = 0, pages = 0, rest = 0;
    ingle_engine_info(engine, &info);
    for (int i = 0; i < plan->n_items; i++) {
        const double n = (double)plan->item[i].bytes;
        if (!strcmp(plan->item[i].name, "keys and values") ||
            !strcmp(plan->item[i].name, "windows"))
            pages += n;
        else if (strcmp(plan->item[i].name, "samplers") != 0) /* none here */
            rest += n;
    }
    print_bytes("keys, values and windows", pages, known = (double)info.kv_peak_bytes);
    print_bytes("all else", rest, took - known);
    print_bytes("together", (double)plan->total_bytes, took);
    return took / (double)plan->total_bytes - 1;
}

/* Where the decoded tokens' time went. */
static void print_profile(const struct ingle_engine *engine)
{
    struct ingle_profile op[64];
    const int n = ingle_engine_profile_read(engine, op, 64);
    for (int i = 0; i < n; i++)
        if (op[i].ns)
            printf("{\"op\":\"%s\",\"ms\":%.3f}\n", op[i].op, 1e-6 * (double)op[i].ns / DECODED);
}

int main(int n_args, char **arg)
{
    static const int64_t depths[] = {1000, 10000, 30000, 100000, 300000, 1000000};
    struct ingle_error e;
    struct ingle_model *m;
    struct ingle_engine *engine;
    struct ingle_session *s;
    struct ingle_plan plan;
    struct ingle_engine_info info;
    if (n_args < 2 || n_args > 4)
        return fprintf(stderr, "usage: bench_long_context FILE [TOKENS [THREADS]]\n"), 2;
    const int64_t most = n_args > 2 ? atoll(arg[2]) : 300000;
    const struct ingle_engine_options o = {.n_ctx = most + 4 * DECODED * 8, .cache_bytes = 1,
                                           .threads = n_args > 3 ? atoi(arg[3]) : 0};
    must(ingle_model_open(&m, arg[1], NULL, &e), &e);
    must(ingle_engine_plan(m, &o, &plan, &e), &e);
    const double before = memory("RssAnon:");
    must(ingle_engine_open(&engine, m, &o, &e), &e);
    must(ingle_session_open(&s, engine, &e), &e);
    ingle_engine_info(engine, &info);
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        const int64_t depth = depths[i] < most ? depths[i] : most;
        const int64_t left = depth - ingle_session_length(s);
        if (left <= 0)
            break;
        const double fill = add(s, left, 4096, info.n_vocab);
        const double rate = (double)left / fill;
        ingle_engine_profile(engine, true);
        const struct times one = decode(s, info.n_vocab);
        printf("{\"depth\":%lld,\"prefill_tokens_s\":%.0f,\"decode_ms\":%.3f,\"best_ms\":%.3f}\n",
               (long long)depth, rate, 1e3 * one.median, 1e3 * one.best);
        print_profile(engine);
        ingle_engine_profile(engine, false);
        fflush(stdout);
    }
    const double off = compare(&plan, engine, memory("RssAnon:") - before);
    ingle_session_close(s);
    ingle_engine_close(engine);
    ingle_model_close(m);
    return fabs(off) <= 0.1 ? 0 : 1;
}
