/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/editor.h"
#include "cli/talk.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/write.h"
#include "tool/tool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTHS = 32,
    MAX_REPEATS = 1000,
    MAX_OPS = 128,
    MOST_THREADS = 1024,
    READ_BYTES = 256 << 20,
    STREAMS = 8,
};
static const double foreign_most = 0.06; /* a round with more is measured again */

/* What the machine could do around a measurement. */
struct limits {
    double read; /* bytes a second */
    struct tool_peak peak[TOOL_PEAKS];
    size_t n_peaks;
};

/* The rounds of one test. */
struct rounds {
    const char *test;
    int64_t depth, n;
    bool one_by_one;
    double bytes; /* read from memory for it: weights, keys and values */
    double joins, launches; /* jobs that threads share, kernels on a card, a token */
    double seconds[MAX_REPEATS], foreign[MAX_REPEATS], read_share[MAX_REPEATS];
    int64_t done;
    struct ingle_profile op[MAX_OPS];
    int n_ops;
    double profiled_s;                 /* what the profile's run took */
    double busy[INGLE_STAGE_PARTS];    /* the share of it in which each stage computed */
    int n_stages;
    uint64_t pieces[MOST_THREADS];     /* that each thread ran */
};

struct bench {
    struct cli *c;
    struct ingle_model *model;
    struct ingle_engine *engine;
    struct ingle_session *base, *work; /* base holds the depth, work is forked from it */
    struct ingle_engine_info info;
    struct pool *pool; /* for what the machine can do */
    struct tool_memory memory;
    struct limits last;
    uint32_t cpu;
    int n_logical;
    double huge;
    int64_t n_prompt, n_answer, n_repeats;
    int32_t *ids; /* enough of them */
    bool json, pinned, profile;
    bool selects; /* rows of answers choose pages */
};

/* Seconds that n tokens took, read at once or one by one. */
static ingle_status time_tokens(struct bench *b, int64_t n, bool one_by_one, double *seconds,
                                struct ingle_error *error)
{
    const float *logits;
    ingle_status st = ingle_session_fork(b->work, b->base, error);
    const uint64_t start = clock_now();
    if (!st && !one_by_one) {
        st = ingle_session_append(b->work, b->ids, n, error);
        if (!st && b->selects)
            ingle_session_prompt(b->work, true);
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

/* ---- the limits of the machine ---- */

static void measure_limits(struct bench *b)
{
    struct limits *l = &b->last;
    pool_enter(b->pool);
    const double eight = tool_memory_read(&b->memory, b->pool, STREAMS);
    const double four = tool_memory_read(&b->memory, b->pool, STREAMS / 2);
    l->read = eight > four ? eight : four;
    l->n_peaks = tool_peaks(b->pool, b->cpu, l->peak, TOOL_PEAKS);
    pool_leave(b->pool);
}

/* The highest of the peaks that an operation could reach: integers for products, floats else. */
static double peak_of(const struct limits *l, const char *op)
{
    const bool integers = strcmp(op, "matmul") == 0 || strcmp(op, "mlp") == 0;
    double best = 0;
    for (size_t i = 0; i < l->n_peaks; i++) {
        const char *name = l->peak[i].name;
        const bool is_int = strncmp(name, "vnni", 4) == 0 || strcmp(name, "maddubs") == 0;
        const bool is_float = strncmp(name, "fma", 3) == 0;
        if ((integers ? is_int : is_float) && l->peak[i].ops_per_s > best)
            best = l->peak[i].ops_per_s;
    }
    return best;
}

static ingle_status open_limits(struct bench *b, const struct ingle_engine_options *o,
                                struct err *err)
{
    struct cpu_machine machine;
    uint32_t mask = UINT32_MAX;
    cpu_machine_read(&machine);
    b->n_logical = machine.n_logical;
    (void)cpu_level(b->info.cpu, &mask);
    b->cpu = mask & cpu_detect();
    b->pinned = !o->no_pin && b->info.threads <= machine.n_logical;
    b->huge = tool_huge_share();
    ingle_status st = pool_create(&b->pool, b->info.threads, b->pinned, err);
    if (!st)
        st = tool_memory_create(&b->memory, b->pool, READ_BYTES, err);
    if (!st)
        measure_limits(b);
    return st;
}

/* ---- rounds ---- */

static double middle(const double *v, int64_t n)
{
    double copy[MAX_REPEATS];
    memcpy(copy, v, (size_t)n * sizeof *v);
    qsort(copy, (size_t)n, sizeof *copy, num_order_f64);
    return copy[n / 2];
}

/* Takes the work once without counting it, and finds what it reads. */
static ingle_status warm(struct bench *b, struct rounds *r, struct ingle_error *error)
{
    double s;
    const int64_t n = r->one_by_one && r->n > 4 ? 4 : r->n;
    if (!n)
        return INGLE_OK;
    struct ingle_engine_stage stage;
    for (int i = 0; ingle_engine_stage(b->engine, i, &stage); i++)
        r->busy[i] = -(double)stage.compute_ns;
    ingle_engine_profile(b->engine, true);
    const ingle_status st = time_tokens(b, n, r->one_by_one, &s, error);
    for (r->n_stages = 0; ingle_engine_stage(b->engine, r->n_stages, &stage); r->n_stages++)
        r->busy[r->n_stages] = (r->busy[r->n_stages] + (double)stage.compute_ns) * 1e-9 / s;
    r->profiled_s = s;
    r->n_ops = ingle_engine_profile_read(b->engine, r->op, MAX_OPS);
    ingle_engine_profile(b->engine, false);
    for (int i = 0; i < r->n_ops; i++) {
        r->bytes += r->op[i].bytes * (double)r->n / (double)n;
        r->joins += (double)r->op[i].joins / (double)n;
        r->launches += (double)r->op[i].launches / (double)n;
    }
    return st;
}

static void count_pieces(const struct bench *b, struct rounds *r, bool before)
{
    uint64_t n[MOST_THREADS];
    const int n_threads = ingle_engine_pieces(b->engine, n, MOST_THREADS);
    for (int i = 0; i < n_threads && i < MOST_THREADS; i++)
        r->pieces[i] += before ? -n[i] : n[i];
}

static ingle_status one_round(struct bench *b, struct rounds *r, bool *quiet,
                              struct ingle_error *error)
{
    struct tool_busy from, to;
    const int64_t i = r->done;
    if (!r->n)
        return INGLE_OK;
    count_pieces(b, r, true);
    tool_busy_read(&from);
    const uint64_t start = clock_now();
    const ingle_status st = time_tokens(b, r->n, r->one_by_one, &r->seconds[i], error);
    if (st)
        return st;
    tool_busy_read(&to);
    count_pieces(b, r, false);
    r->foreign[i] =
        tool_busy_foreign(&from, &to, (double)(clock_now() - start) * 1e-9, b->n_logical);
    r->read_share[i] = r->bytes / r->seconds[i] / b->last.read;
    *quiet &= r->foreign[i] <= foreign_most;
    return INGLE_OK;
}

/* Rounds of all tests in turn; before each the limits are taken again. */
static ingle_status run_rounds(struct bench *b, struct rounds *r, size_t n_tests,
                               struct ingle_error *error)
{
    for (int64_t left = 2 * b->n_repeats, i = 0; i < b->n_repeats; left--) {
        bool quiet = true;
        measure_limits(b);
        for (size_t t = 0; t < n_tests; t++)
            if (one_round(b, &r[t], &quiet, error))
                return error->status;
        if (!quiet && left > b->n_repeats - i)
            continue;
        i++;
        for (size_t t = 0; t < n_tests; t++)
            r[t].done = i;
    }
    return INGLE_OK;
}

static void print_peaks(const struct bench *b, struct str *out)
{
    write_key(out, "peak_GOPs");
    write_open(out, '{');
    for (size_t i = 0; i < b->last.n_peaks; i++)
        write_member_fixed(out, b->last.peak[i].name, 1, b->last.peak[i].ops_per_s * 1e-9);
    write_close(out, '}');
}

static void print_select(const struct bench *b, struct str *out)
{
    struct ingle_way_use n;
    ingle_session_way_use(b->work, &n);
    cli_add_select(out, &n.select);
}

/* What each row of --json begins with; the caller closes it. */
static void begin_row(struct str *out, const struct rounds *r)
{
    cli_json(out);
    write_open(out, '{');
    write_member(out, "test", r->test);
    write_member_int(out, "depth", r->depth);
}

static uint64_t all_pieces(const struct bench *b, const struct rounds *r)
{
    uint64_t all = 0;
    for (int i = 0; i < b->info.threads; i++)
        all += r->pieces[i];
    return all;
}

/* How threads shared the work: each one's share of the pieces, or of many threads the extremes. */
static void print_pieces(const struct bench *b, const struct rounds *r)
{
    enum { FEW = 16 };
    const double all = (double)all_pieces(b, r);
    double least = 1, most = 0;
    if (b->info.threads < 2 || all <= 0)
        return;
    for (int i = 0; i < b->info.threads; i++) {
        const double share = (double)r->pieces[i] / all;
        least = share < least ? share : least;
        most = share > most ? share : most;
    }
    fputs("  pieces of each thread:", stdout);
    for (int i = 0; i < b->info.threads && b->info.threads <= FEW; i++)
        printf(" %.1f %%", 100 * (double)r->pieces[i] / all);
    if (b->info.threads > FEW)
        printf(" %.2f to %.2f %%", 100 * least, 100 * most);
    putchar('\n');
}

static void write_pieces(const struct bench *b, const struct rounds *r, struct str *out)
{
    write_key(out, "pieces");
    write_open(out, '[');
    for (int i = 0; i < b->info.threads; i++)
        write_uint(out, r->pieces[i]);
    write_close(out, ']');
}

static void print_result(const struct bench *b, struct rounds *r)
{
    if (!r->n)
        return;
    const double seconds = middle(r->seconds, r->done), per_s = (double)r->n / seconds;
    const double share = r->one_by_one ? middle(r->read_share, r->done) : 0;
    const double foreign = middle(r->foreign, r->done);
    qsort(r->seconds, (size_t)r->done, sizeof *r->seconds, num_order_f64);
    const double least = r->seconds[0], most = r->seconds[r->done - 1];
    if (b->json) {
        struct ingle_engine_info now;
        ingle_engine_info(b->engine, &now);
        struct str out;
        begin_row(&out, r);
        write_member_int(&out, "tokens", r->n);
        write_member_significant(&out, "per_s", 6, per_s);
        write_member_significant(&out, "seconds", 6, seconds);
        write_member_significant(&out, "least", 6, least);
        write_member_significant(&out, "most", 6, most);
        write_member_significant(&out, "spread", 4, (most - least) / seconds);
        write_member_int(&out, "rounds", r->done);
        write_member_significant(&out, "read_share", 4, share);
        write_member_significant(&out, "bytes", 6, r->bytes);
        write_member_significant(&out, "joins", 6, r->joins);
        write_member_significant(&out, "foreign", 4, foreign);
        write_member_int(&out, "threads", b->info.threads);
        write_member_bool(&out, "pinned", b->pinned);
        write_member(&out, "cpu", b->info.cpu);
        write_member(&out, "kv", b->info.kv);
        write_member(&out, "numerics", b->info.numerics);
        write_member_fixed(&out, "huge_pages", 3, b->huge);
        write_member_fixed(&out, "read_GBps", 2, b->last.read * 1e-9);
        if (now.gpu[0]) {
            write_member(&out, "gpu", now.gpu);
            write_member_int(&out, "gpu_layers", now.gpu_end - now.gpu_first);
            write_member_int(&out, "gpu_draft_layers", now.gpu_draft_end - now.gpu_draft_first);
            write_member_significant(&out, "launches", 6, r->launches);
        }
        if (now.paging.budget_bytes) {
            write_member_uint(&out, "kv_disk_bytes", now.paging.bytes);
            write_member_uint(&out, "kv_disk_read_bytes", now.paging.read_bytes);
            write_member_fixed(&out, "kv_disk_wait_s", 6, now.paging.waited_seconds);
        }
        if (r->one_by_one)
            print_select(b, &out);
        if (b->profile)
            write_pieces(b, r, &out);
        print_peaks(b, &out);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    } else {
        printf("%-8s %8lld %8lld %12.2f %11.3f %11.3f", r->test, (long long)r->depth,
               (long long)r->n, per_s, least * 1e3, most * 1e3);
        if (share > 0)
            printf(" %8.1f %%", share * 100);
        else
            printf(" %10s", "");
        printf(" %7.1f %%%s\n", foreign * 100, foreign > foreign_most ? " !" : "");
    }
    cli_push(b->c);
}

static void print_op(const struct bench *b, const struct rounds *r, const struct ingle_profile *p,
                     double all_ns)
{
    const double s = (double)p->ns * 1e-9, share = (double)p->ns / all_ns;
    const double peak = peak_of(&b->last, p->op);
    const double of_read = p->bytes / s / b->last.read, of_peak = peak > 0 ? p->ops / s / peak : 0;
    if (b->json) {
        struct str out;
        begin_row(&out, r);
        write_member(&out, "op", p->op);
        write_member_uint(&out, "calls", p->calls);
        write_member_uint(&out, "joins", p->joins);
        if (b->info.gpu[0])
            write_member_uint(&out, "launches", p->launches);
        write_member_fixed(&out, "ms", 3, s * 1e3);
        write_member_fixed(&out, "share", 4, share);
        write_member_fixed(&out, "GBps", 3, p->bytes / s * 1e-9);
        write_member_fixed(&out, "of_read", 4, of_read);
        write_member_fixed(&out, "GOPs", 3, p->ops / s * 1e-9);
        write_member_fixed(&out, "of_peak", 4, of_peak);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
        return;
    }
    printf("  %-14s %8llu %8llu", p->op, (unsigned long long)p->calls,
           (unsigned long long)p->joins);
    if (b->info.gpu[0])
        printf(" %8llu", (unsigned long long)p->launches);
    printf(" %10.3f %7.1f %%", s * 1e3, share * 100);
    if (p->ops > 0)
        printf(" %8.1f GB/s %5.1f %% %8.1f GOP/s %5.1f %%", p->bytes / s * 1e-9, of_read * 100,
               p->ops / s * 1e-9, of_peak * 100);
    putchar('\n');
}

/* k 0: the engine. */
static void print_idle(const struct bench *b, const struct rounds *r, int k, double busy)
{
    struct ingle_engine_stage s = {.address = "engine", .to = 0};
    const double idle = busy < 1 ? 1 - busy : 0;
    if (k)
        (void)ingle_engine_stage(b->engine, k - 1, &s);
    else if (ingle_engine_stage(b->engine, 0, &s)) {
        s.to = s.from;
        s.from = 0;
        s.address = "engine";
    }
    if (b->json) {
        struct str out;
        begin_row(&out, r);
        write_member(&out, "stage", s.address);
        write_member_int(&out, "from", s.from);
        write_member_int(&out, "to", s.to);
        write_member_fixed(&out, "idle", 4, idle);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    } else {
        printf("  %-24s layers %lld:%lld   idle %5.1f %%\n", CLI_SHOWN(s.address),
               (long long)s.from, (long long)s.to, 100 * idle);
    }
}

/* Of the warming run: what no operation accounts for is left out. */
static void print_profile(const struct bench *b, const struct rounds *r)
{
    double all = 0;
    for (int i = 0; i < r->n_ops; i++)
        all += (double)r->op[i].ns;
    for (int k = 0; r->n_stages && r->n_ops && k <= r->n_stages; k++)
        print_idle(b, r, k, k ? r->busy[k - 1] : all * 1e-9 / r->profiled_s);
    if (!b->json && r->n_ops)
        printf("  %-14s %8s %8s%s %10s %9s %22s %23s\n", "operation", "calls", "joins",
               b->info.gpu[0] ? " launches" : "", "ms", "share", "memory, of what reads",
               "arithmetic, of the peak");
    for (int i = 0; i < r->n_ops; i++)
        print_op(b, r, &r->op[i], all);
    if (!b->json && r->one_by_one && r->n_ops)
        printf("  joins: %.1f a token, %.2f for each of %lld layers\n", r->joins,
               r->joins / (double)b->info.n_layers, (long long)b->info.n_layers);
    if (!b->json && r->n_ops)
        print_pieces(b, r);
    if (!b->json && r->one_by_one && r->n_ops && b->info.gpu_end > b->info.gpu_first)
        printf("  launches: %.1f a token, %.2f for each of %lld layers on the card\n", r->launches,
               r->launches / (double)(b->info.gpu_end - b->info.gpu_first),
               (long long)(b->info.gpu_end - b->info.gpu_first));
}

/* Experts that are not all in memory: since the engine was opened. */
static void print_experts(const struct bench *b)
{
    struct ingle_experts n;
    struct ingle_expert_layer l;
    if (b->json || !ingle_engine_experts(b->engine, &n) || !n.choices)
        return;
    printf("  experts: %.1f %% of %llu choices in memory, %.1f %% more read early; %.2f GB read at "
           "%.2f GB/s, waited %.0f ms\n",
           100 * (double)n.hits / (double)n.choices, (unsigned long long)n.choices,
           100 * (double)n.early_hits / (double)n.choices, (double)n.read_bytes * 1e-9,
           n.busy_ns ? (double)n.read_bytes / (double)n.busy_ns : 0, (double)n.stall_ns * 1e-6);
    printf("  early reads: %s; %llu, of which %llu were chosen (%llu in time); ",
           n.reads_early ? "on" : "off", (unsigned long long)n.early_reads,
           (unsigned long long)n.early_hits, (unsigned long long)n.early_in_time);
    if (n.early_tries)
        printf("steps with them took %.1f %% %s (%llu comparisons), ", 100 * fabs(n.early_change),
               n.early_change < 0 ? "less" : "more", (unsigned long long)n.early_tries);
    printf("%.0f %% of guesses were right\n", 100 * n.early_right);
    printf("  %-6s %10s %8s %8s %12s %10s\n", "layer", "choices", "hits", "early", "read MB",
           "waited ms");
    for (size_t i = 0; ingle_engine_expert_layer(b->engine, i, &l); i++)
        printf("  %-6lld %10llu %7.1f%% %7.1f%% %12.1f %10.1f\n", (long long)l.layer,
               (unsigned long long)l.choices,
               l.choices ? 100 * (double)l.hits / (double)l.choices : 0,
               l.choices ? 100 * (double)l.early_hits / (double)l.choices : 0,
               (double)l.read_bytes * 1e-6, (double)l.stall_ns * 1e-6);
}

/* Keys and values that were read from disk: since the engine was opened. */
static void print_paging(const struct bench *b)
{
    struct ingle_engine_info i;
    ingle_engine_info(b->engine, &i);
    const struct ingle_paging *p = &i.paging;
    if (p->budget_bytes && !b->json)
        printf("  keys and values: %.1f MiB on disk, %.2f GB read at %.2f GB/s, waited %.2f s for "
               "them\n",
               (double)p->bytes / (1 << 20), (double)p->read_bytes * 1e-9, p->bytes_per_s * 1e-9,
               p->waited_seconds);
}

static ingle_status measure_depth(struct bench *b, int64_t depth, struct ingle_error *error)
{
    static struct rounds r[2];
    struct ingle_way_use use;
    const float *logits;
    ingle_status st = INGLE_OK;
    r[0] = (struct rounds){.test = "prefill", .depth = depth, .n = b->n_prompt};
    r[1] = (struct rounds){.test = "decode", .depth = depth, .n = b->n_answer, .one_by_one = true};
    ingle_session_close(b->base);
    ingle_session_close(b->work);
    b->base = b->work = NULL;
    ingle_engine_forget(b->engine);
    if (ingle_session_open(&b->base, b->engine, error) ||
        ingle_session_open(&b->work, b->engine, error))
        return error->status;
    if (depth) {
        st = ingle_session_append(b->base, b->ids, depth, error);
        if (!st && b->selects)
            ingle_session_prompt(b->base, true);
        if (!st)
            st = ingle_session_finish(b->base, &logits, error);
    }
    for (int i = 0; !st && i < 2; i++)
        st = warm(b, &r[i], error);
    if (!st)
        st = run_rounds(b, r, 2, error);
    for (int i = 0; !st && i < 2; i++) {
        print_result(b, &r[i]);
        if (b->profile)
            print_profile(b, &r[i]);
    }
    if (!st)
        print_paging(b);
    if (!st && !b->json) {
        ingle_session_way_use(b->work, &use);
        fputs(use.select.pages_seen ? "  " : "", stdout);
        cli_select_print(stdout, &use.select);
    }
    if (!st && b->profile)
        print_experts(b);
    return st;
}

static void print_head(const struct bench *b)
{
    struct cpu_machine machine;
    cpu_machine_read(&machine);
    printf("%s; %d threads%s, %s, keys and values %s, %s\nweights %.1f MiB, huge pages %.0f %%, "
           "memory reads "
           "at %.1f GB/s",
           machine.model[0] ? machine.model : "unknown processor", b->info.threads,
           b->pinned ? ", bound to cores" : ", not bound", b->info.cpu, b->info.kv,
           b->info.numerics, (double)b->info.weight_bytes / 1048576.0, b->huge * 100,
           b->last.read * 1e-9);
    for (size_t i = 0; i < b->last.n_peaks; i++)
        printf(", %s %.0f", b->last.peak[i].name, b->last.peak[i].ops_per_s * 1e-9);
    puts(b->last.n_peaks ? " GOP/s" : "");
    if (b->info.gpu_end > b->info.gpu_first)
        printf("layers %lld to %lld of %lld on %s\n", (long long)b->info.gpu_first,
               (long long)b->info.gpu_end - 1, (long long)b->info.n_layers, b->info.gpu);
    if (b->info.gpu_draft_end > b->info.gpu_draft_first)
        printf("layers %lld to %lld of the drafter's %lld on %s\n",
               (long long)b->info.gpu_draft_first, (long long)b->info.gpu_draft_end - 1,
               (long long)b->info.draft_layers, b->info.gpu);
    printf("\n%-8s %8s %8s %12s %11s %11s %10s %9s\n", "test", "depth", "tokens", "tokens/s",
           "least ms", "most ms", "read share", "foreign");
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
            return cli_usage(b->c, "option '--depth' needs a number of 0 to 16777216, not '%s'",
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
    b->selects = strcmp(b->info.kv_select, "off") != 0;
    if (open_limits(b, &o, &err))
        return cli_fail_err(b->c, &err);
    b->ids = mem_calloc((size_t)n_ids + 1, sizeof *b->ids);
    if (!b->ids)
        return cli_usage(b->c, "no memory for %lld tokens", (long long)n_ids);
    for (int64_t i = 0; i < n_ids; i++)
        b->ids[i] = (int32_t)((i * 7919 + 13) % b->info.n_vocab);
    if (!b->json)
        print_head(b);
    for (int64_t i = 0; i < n_depths; i++)
        if (measure_depth(b, depth[i], &error))
            return cli_fail(b->c, &error);
    return fast && b->n_prompt > 1 ? measure_error(b, &o) : CLI_OK;
}

int cli_bench(struct cli *c)
{
    struct bench b = {.c = c,
                      .json = ingle_config_flag(c->config, "json"),
                      .profile = ingle_config_flag(c->config, "profile")};
    int64_t depth[MAX_DEPTHS], n_depths, longest = 0;
    if (c->n_arg)
        return cli_usage(c, "'bench' takes no argument such as '%s'", c->arg[0]);
    if (ingle_config_is_set(c->config, "image") || ingle_config_is_set(c->config, "audio"))
        return cli_bench_media(c);
    if (ingle_config_is_set(c->config, "scaling"))
        return cli_bench_threads(c);
    if (ingle_config_text(c->config, "prompt-drafter", 0))
        return cli_bench_shorten(c);
    if (ingle_config_is_set(c->config, "draft") || ingle_config_is_set(c->config, "draft-method"))
        return cli_bench_draft(c);
    const char *sparse = ingle_config_text(c->config, "sparse", 0);
    if (strcmp(sparse, "off") != 0)
        return cli_sparse_compare(c, sparse, "off");
    if (ingle_config_is_set(c->config, "text"))
        return cli_usage(c, "'--text' goes with '--sparse on' and '--prompt-drafter'");
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
    tool_memory_release(&b.memory);
    pool_free(b.pool);
    ingle_session_close(b.base);
    ingle_session_close(b.work);
    ingle_engine_close(b.engine);
    ingle_model_close(b.model);
    return rc;
}
