/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTHS = 32, MAX_REPEATS = 1000, READ_BYTES = 256 << 20 };

struct bench {
    struct cli *c;
    struct ingle_model *model;
    struct ingle_engine *engine;
    struct ingle_session *base, *work; /* base holds the depth, work is forked from it */
    struct ingle_engine_info info;
    double read_per_s;
    int64_t n_prompt, n_answer, n_repeats;
    int32_t *ids; /* enough of them */
    bool json;
};

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds that n tokens took, read at once or one by one. */
static ingle_status time_tokens(struct bench *b, int64_t n, bool one_by_one, double *seconds,
                                struct ingle_error *error)
{
    const float *logits;
    ingle_status st = ingle_session_fork(b->work, b->base, error);
    const uint64_t start = clock_now();
    if (!st && !one_by_one) {
        st = ingle_session_append(b->work, b->ids, n, error);
        if (!st)
            st = ingle_session_finish(b->work, &logits, error);
    }
    for (int64_t i = 0; !st && one_by_one && i < n; i++) {
        st = ingle_session_append(b->work, b->ids + i, 1, error);
        if (!st)
            st = ingle_session_finish(b->work, &logits, error);
    }
    *seconds = (double)(clock_now() - start) * 1e-9;
    return st;
}

static void print_result(const struct bench *b, const char *test, int64_t depth, int64_t n,
                         double seconds, double least, double most)
{
    const double per_s = (double)n / seconds;
    /* Of dense weights every step reads all once. */
    const double share = strcmp(test, "decode") == 0 && !b->info.n_experts && b->read_per_s > 0
                             ? per_s * (double)b->info.weight_bytes / b->read_per_s
                             : 0;
    if (b->json) {
        printf("{\"test\": \"%s\", \"depth\": %lld, \"tokens\": %lld, \"per_s\": %.6g, "
               "\"seconds\": %.6g, \"least\": %.6g, \"most\": %.6g, \"read_share\": %.4g, "
               "\"threads\": %d, \"cpu\": \"%s\", \"kv\": \"%s\", \"numerics\": \"%s\"}\n",
               test, (long long)depth, (long long)n, per_s, seconds, least, most, share,
               b->info.threads, b->info.cpu, b->info.kv, b->info.numerics);
    } else {
        printf("%-8s %8lld %8lld %12.2f %11.3f %11.3f", test, (long long)depth, (long long)n, per_s,
               least * 1e3, most * 1e3);
        if (share > 0)
            printf(" %8.1f %%", share * 100);
        putchar('\n');
    }
    cli_push(b->c);
}

static ingle_status measure(struct bench *b, const char *test, int64_t depth, int64_t n,
                            bool one_by_one, struct ingle_error *error)
{
    double s[MAX_REPEATS], warm;
    if (!n)
        return INGLE_OK;
    ingle_status st = time_tokens(b, one_by_one && n > 4 ? 4 : n, one_by_one, &warm, error);
    for (int64_t i = 0; !st && i < b->n_repeats; i++)
        st = time_tokens(b, n, one_by_one, &s[i], error);
    if (st)
        return st;
    qsort(s, (size_t)b->n_repeats, sizeof *s, by_value);
    print_result(b, test, depth, n, s[b->n_repeats / 2], s[0], s[b->n_repeats - 1]);
    return INGLE_OK;
}

static ingle_status measure_depth(struct bench *b, int64_t depth, struct ingle_error *error)
{
    const float *logits;
    ingle_status st = INGLE_OK;
    ingle_session_close(b->base);
    ingle_session_close(b->work);
    b->base = b->work = NULL;
    ingle_engine_forget(b->engine);
    if (ingle_session_open(&b->base, b->engine, error) ||
        ingle_session_open(&b->work, b->engine, error))
        return error->status;
    if (depth) {
        st = ingle_session_append(b->base, b->ids, depth, error);
        if (!st)
            st = ingle_session_finish(b->base, &logits, error);
    }
    if (!st)
        st = measure(b, "prefill", depth, b->n_prompt, false, error);
    if (!st)
        st = measure(b, "decode", depth, b->n_answer, true, error);
    return st;
}

static void print_profile(const struct bench *b)
{
    struct ingle_profile p[64];
    const int n = ingle_engine_profile_read(b->engine, p, 64);
    uint64_t all = 0;
    for (int i = 0; i < n; i++)
        all += p[i].ns;
    if (!b->json)
        printf("\n%-16s %12s %12s %8s\n", "operation", "calls", "ms", "share");
    for (int i = 0; i < n; i++) {
        if (!p[i].calls)
            continue;
        const double share = (double)p[i].ns / (double)(all ? all : 1);
        printf(b->json ? "{\"op\": \"%s\", \"calls\": %llu, \"ms\": %.3f, \"share\": %.4f}\n"
                       : "%-16s %12llu %12.3f %7.1f %%\n",
               p[i].op, (unsigned long long)p[i].calls, (double)p[i].ns * 1e-6,
               b->json ? share : share * 100);
    }
}

static int read_depths(struct bench *b, int64_t depth[MAX_DEPTHS], int64_t *n)
{
    const char *text;
    for (*n = 0; (text = ingle_config_text(b->c->config, "depth", (size_t)*n)); (*n)++) {
        char *end;
        const long long v = strtoll(text, &end, 10);
        if (*n == MAX_DEPTHS)
            return cli_usage(b->c, "option '--depth' is given more than %d times", MAX_DEPTHS);
        if (*end || end == text || v < 0 || v > 16777216)
            return cli_usage(b->c, "option '--depth' wants a number of 0 to 16777216, not '%s'",
                             text);
        depth[*n] = v;
    }
    if (!*n)
        depth[(*n)++] = 0;
    return CLI_OK;
}

/* What coarser arithmetic costs: the last rows of a prompt beside exact ones. */
static int measure_error(struct bench *b, struct ingle_engine_options *o)
{
    ingle_session_close(b->base);
    ingle_session_close(b->work);
    b->base = b->work = NULL;
    return cli_bench_fast(b->c, b->model, &b->engine, o, b->ids, b->n_prompt, b->json);
}

static int run_bench(struct bench *b, const int64_t *depth, int64_t n_depths, int64_t longest)
{
    struct ingle_error error;
    struct ingle_engine_options o = {.max_logits = 1,
                                     .n_sessions = 2,
                                     .callbacks = cli_callbacks(b->c)};
    const int64_t n_ids = num_max(longest, num_max(b->n_prompt, b->n_answer));
    struct err err;
    struct pool *pool = NULL;
    struct cpu_machine machine;
    ingle_config_engine(b->c->config, &o);
    const bool fast = o.numerics && strcmp(o.numerics, "fast") == 0;
    if (fast)
        o.max_logits = CLI_FAST_STEP;
    if (!o.n_ctx)
        o.n_ctx = longest + b->n_prompt + b->n_answer + 1;
    if (cli_open_model(b->c, &b->model, &error) ||
        ingle_engine_open(&b->engine, b->model, &o, &error))
        return cli_fail(b->c, &error);
    cli_interrupt_engine(b->engine);
    ingle_engine_info(b->engine, &b->info);
    cpu_machine_read(&machine);
    if (pool_create(&pool, b->info.threads, !o.no_pin, &err) == INGLE_OK &&
        tool_machine_bandwidth(pool, READ_BYTES, 2, &b->read_per_s, &err))
        b->read_per_s = 0;
    pool_free(pool);
    b->ids = mem_calloc((size_t)n_ids + 1, sizeof *b->ids);
    if (!b->ids)
        return cli_usage(b->c, "no memory for %lld tokens", (long long)n_ids);
    for (int64_t i = 0; i < n_ids; i++)
        b->ids[i] = (int32_t)((i * 7919 + 13) % b->info.n_vocab);
    if (!b->json)
        printf("%s; %d threads, %s, keys and values %s, %s\nweights %.1f MiB, memory reads at %.1f "
               "GB/s\n\n%-8s %8s %8s %12s %11s %11s %10s\n",
               machine.model[0] ? machine.model : "unknown processor", b->info.threads, b->info.cpu,
               b->info.kv, b->info.numerics, (double)b->info.weight_bytes / 1048576.0,
               b->read_per_s / 1e9, "test", "depth", "tokens", "tokens/s", "least ms", "most ms",
               "read share");
    ingle_engine_profile(b->engine, ingle_config_flag(b->c->config, "profile"));
    for (int64_t i = 0; i < n_depths; i++)
        if (measure_depth(b, depth[i], &error))
            return cli_fail(b->c, &error);
    if (ingle_config_flag(b->c->config, "profile"))
        print_profile(b);
    return fast && b->n_prompt > 1 ? measure_error(b, &o) : CLI_OK;
}

int cli_bench(struct cli *c)
{
    struct bench b = {.c = c, .json = ingle_config_flag(c->config, "json")};
    int64_t depth[MAX_DEPTHS], n_depths, longest = 0;
    if (c->n_arg)
        return cli_usage(c, "'bench' takes no argument such as '%s'", c->arg[0]);
    b.n_prompt = (int64_t)ingle_config_number(c->config, "prompt-tokens");
    b.n_answer = (int64_t)ingle_config_number(c->config, "answer-tokens");
    b.n_repeats = (int64_t)ingle_config_number(c->config, "repeat");
    int rc = read_depths(&b, depth, &n_depths);
    if (rc)
        return rc;
    for (int64_t i = 0; i < n_depths; i++)
        longest = depth[i] > longest ? depth[i] : longest;
    rc = run_bench(&b, depth, n_depths, longest);
    cli_interrupt_engine(NULL);
    mem_free(b.ids);
    ingle_session_close(b.base);
    ingle_session_close(b.work);
    ingle_engine_close(b.engine);
    ingle_model_close(b.model);
    return rc;
}
