/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench --threads 1,2,4: what more threads bring.  For each number the model is opened anew, for
 * its weights are placed for the threads that read them.
 */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/editor.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/write.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 32, MAX_OPS = 128, MOST_THREADS = 1024, READ_BYTES = 256 << 20, STREAMS = 8 };

/* One number of threads. */
struct row {
    int threads;
    double decode, prefill;  /* tokens a second */
    double read, read_share; /* bytes a second that memory gives; the share that decode uses */
    double joins, join_us;   /* a token; what each costs */
    double local;            /* share of weights; below 0: not known */
    int unbound;
};

/* "1,2,4". */
static int read_list(struct cli *c, int *threads, int *n)
{
    const char *text = ingle_config_text(c->config, "scaling", 0);
    *n = 0;
    for (const char *at = text;; at++) {
        char *end;
        const long v = strtol(at, &end, 10);
        if (end == at || *at < '0' || *at > '9' || v < 1 || v > MOST_THREADS ||
            (*end && *end != ','))
            return cli_usage(c, "option '--threads' needs numbers of 1 to %d such as 1,2,4, not "
                                "'%s'", MOST_THREADS, text);
        if (*n == MAX_ROWS)
            return cli_usage(c, "option '--threads' has more than %d numbers", MAX_ROWS);
        threads[(*n)++] = (int)v;
        if (!*end)
            return CLI_OK;
        at = end;
    }
}

/* Seconds of n tokens after what the session has, at once or one by one. */
static ingle_status run(struct ingle_session *s, const int32_t *ids, int64_t n, bool one_by_one,
                        double *seconds, struct ingle_error *error)
{
    const float *logits;
    const int64_t each = one_by_one ? 1 : n;
    const uint64_t start = clock_now();
    ingle_status st = INGLE_OK;
    for (int64_t i = 0; !st && i < n; i += each) {
        st = ingle_session_append(s, ids + i, each, error);
        if (!st)
            st = ingle_session_finish(s, &logits, error);
    }
    *seconds = (double)(clock_now() - start) * 1e-9;
    return st;
}

/* Bytes and joins of a token, by a profile of a few. */
static ingle_status measure_step(struct ingle_engine *e, struct ingle_session *s,
                                 const int32_t *ids, int64_t n, double *bytes, struct row *r,
                                 struct ingle_error *error)
{
    static struct ingle_profile op[MAX_OPS];
    double seconds;
    ingle_engine_profile(e, true);
    const ingle_status st = run(s, ids, n, true, &seconds, error);
    const int n_ops = ingle_engine_profile_read(e, op, MAX_OPS);
    ingle_engine_profile(e, false);
    for (int i = 0; i < n_ops; i++) {
        *bytes += op[i].bytes / (double)n;
        r->joins += (double)op[i].joins / (double)n;
    }
    return st;
}

static double better(double a, double b)
{
    return a > b ? a : b;
}

static ingle_status measure_tokens(struct cli *c, struct ingle_engine *e, struct row *r,
                                   double *bytes, struct ingle_error *error)
{
    const int64_t n_prompt = (int64_t)ingle_config_number(c->config, "prompt-tokens"),
                  n_answer = (int64_t)ingle_config_number(c->config, "answer-tokens"),
                  n_repeats = (int64_t)ingle_config_number(c->config, "repeat");
    const int64_t n = n_prompt + n_answer + 8;
    struct ingle_engine_info info;
    struct ingle_session *s = NULL;
    int32_t *ids = mem_calloc((size_t)n, sizeof *ids);
    ingle_engine_info(e, &info);
    ingle_status st = ids ? INGLE_OK : INGLE_NOMEM;
    for (int64_t i = 0; ids && i < n; i++)
        ids[i] = (int32_t)((i * 7919 + 13) % info.n_vocab);
    for (int64_t k = 0; !st && k <= n_repeats; k++) {
        double p = 0, a = 0;
        st = ingle_session_open(&s, e, error);
        if (!st && n_prompt)
            st = run(s, ids, n_prompt, false, &p, error);
        if (!st && !k) /* the first round warms up */
            st = measure_step(e, s, ids, n_answer < 4 ? n_answer : 4, bytes, r, error);
        else if (!st && n_answer)
            st = run(s, ids, n_answer, true, &a, error);
        if (k && p > 0)
            r->prefill = better(r->prefill, (double)n_prompt / p);
        if (k && a > 0)
            r->decode = better(r->decode, (double)n_answer / a);
        ingle_session_close(s);
        s = NULL;
        ingle_engine_forget(e);
    }
    mem_free(ids);
    return st;
}

/* What memory gives to so many threads. */
static ingle_status measure_memory(struct row *r, bool pinned, struct err *err)
{
    struct tool_memory memory = {0};
    struct pool *pool;
    ingle_status st = pool_create(&pool, r->threads, pinned, err);
    if (st)
        return st;
    st = tool_memory_create(&memory, pool, READ_BYTES, err);
    pool_enter(pool);
    for (int i = 0; !st && i < 5; i++)
        r->read = better(r->read, tool_memory_read(&memory, pool, i % 2 ? STREAMS : STREAMS / 2));
    pool_leave(pool);
    tool_memory_release(&memory);
    pool_free(pool);
    return st;
}

static int measure(struct cli *c, struct row *r)
{
    struct ingle_engine_options o = {
        .max_logits = 1, .n_sessions = 2, .callbacks = cli_callbacks(c)};
    struct ingle_engine_info info;
    struct ingle_engine *e = NULL;
    struct ingle_model *m = NULL;
    struct ingle_error error;
    struct err err;
    double bytes = 0;
    ingle_config_engine(c->config, &o);
    o.threads = r->threads;
    if (!o.n_ctx)
        o.n_ctx = (int64_t)(ingle_config_number(c->config, "prompt-tokens") +
                            ingle_config_number(c->config, "answer-tokens")) + 16;
    if (measure_memory(r, !o.no_pin, &err))
        return cli_fail_err(c, &err);
    if (cli_open_model(c, &m, &error))
        return cli_fail(c, &error);
    ingle_status st = ingle_engine_open(&e, m, &o, &error);
    cli_interrupt_engine(e);
    if (!st)
        st = measure_tokens(c, e, r, &bytes, &error);
    if (!st) {
        ingle_engine_info(e, &info);
        r->read_share = r->decode * bytes / r->read;
        r->join_us = info.join_us;
        r->local = info.local_share;
        r->unbound = info.unbound_threads;
    }
    cli_interrupt_engine(NULL);
    ingle_engine_close(e);
    ingle_model_close(m);
    return st ? cli_fail(c, &error) : CLI_OK;
}

static void print_head(void)
{
    printf("%7s %10s %8s %10s %8s %8s %7s %8s %8s %7s %8s\n", "threads", "decode/s", "times",
           "prompt/s", "times", "GB/s", "read", "joins", "us each", "of time", "local");
}

static void print_row(struct cli *c, const struct row *r, const struct row *first, bool json)
{
    const double cost = r->joins * r->join_us * 1e-6 * r->decode;
    if (json) {
        struct str out;
        cli_json(&out);
        write_open(&out, '{');
        write_member(&out, "test", "scaling");
        write_member_int(&out, "threads", r->threads);
        write_member_significant(&out, "decode_per_s", 6, r->decode);
        write_member_significant(&out, "prefill_per_s", 6, r->prefill);
        write_member_fixed(&out, "read_GBps", 3, r->read * 1e-9);
        write_member_fixed(&out, "read_share", 4, r->read_share);
        write_member_significant(&out, "joins", 6, r->joins);
        write_member_fixed(&out, "join_us", 3, r->join_us);
        write_member_fixed(&out, "join_share", 5, cost);
        if (r->local < 0)
            write_member_null(&out, "local_share");
        else
            write_member_fixed(&out, "local_share", 4, r->local);
        write_member_int(&out, "unbound_threads", r->unbound);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    } else {
        printf("%7d %10.2f %8.2f %10.1f %8.2f %8.1f %5.1f %% %8.1f %8.2f %5.1f %%", r->threads,
               r->decode, first->decode > 0 ? r->decode / first->decode : 0, r->prefill,
               first->prefill > 0 ? r->prefill / first->prefill : 0, r->read * 1e-9,
               r->read_share * 100, r->joins, r->join_us, cost * 100);
        if (r->local >= 0)
            printf(" %6.1f %%", r->local * 100);
        printf("%s\n", r->unbound ? "  not all threads are bound to processors" : "");
    }
    cli_push(c);
}

int cli_bench_threads(struct cli *c)
{
    const bool json = ingle_config_flag(c->config, "json");
    int threads[MAX_ROWS], n, rc = read_list(c, threads, &n);
    struct row first = {0};
    if (!rc && !json)
        print_head();
    for (int i = 0; !rc && i < n; i++) {
        struct row r = {.threads = threads[i], .local = -1};
        rc = measure(c, &r);
        if (!i)
            first = r;
        if (!rc)
            print_row(c, &r, &first, json);
    }
    if (!rc && !json)
        puts("\ntimes: of the first row; read: the share of GB/s, which memory gives to these "
             "threads, that decode uses;\njoins: jobs a token that threads share; us each: what "
             "one costs at start; of time: their\nshare of a token's time; local: weights on the "
             "memory node whose threads read them");
    return rc;
}
