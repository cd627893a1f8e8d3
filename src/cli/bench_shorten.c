/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts that a small model shortens beside whole ones: when the first token is there, and who
 * takes how long. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/editor.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/write.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 1000, USUAL_DEPTH = 8192 };

struct skip {
    struct cli *c;
    struct ingle_model *model;
    struct ingle_engine *engine;
    struct ingle_engine_info info;
    struct ingle_shortener_info small;
    struct cli_depths d;
    int64_t n_rounds;
    bool json;
};

/* Seconds of the rounds of one depth. */
struct times {
    double small[MOST_ROUNDS], large[MOST_ROUNDS], whole[MOST_ROUNDS];
    int64_t n_kept;
};

/* ---- what is computed ---- */

/* The prompt's last row of logits, of which the first token is drawn; nothing of it is known
 * before. */
static ingle_status read_prompt(struct skip *s, const int32_t *ids, const int32_t *position,
                                int64_t n, double *seconds, struct ingle_error *error)
{
    struct ingle_session *t = NULL;
    const float *logits;
    ingle_engine_forget(s->engine);
    ingle_status st = ingle_session_open(&t, s->engine, error);
    if (!st && position)
        st = ingle_session_set_positions(t, position, n, error);
    const uint64_t began = clock_now();
    if (!st)
        st = ingle_session_sync(t, ids, n, NULL, error);
    if (!st)
        st = ingle_session_finish(t, &logits, error);
    *seconds = (double)(clock_now() - began) * 1e-9;
    ingle_session_close(t);
    return st;
}

/* Shortened and whole in turn.  t->n_kept 0: it is not shortened, which `why` says. */
static ingle_status measure_round(struct skip *s, int64_t n, int64_t round, struct times *t,
                                  char why[200], struct ingle_error *error)
{
    struct ingle_shortened kept;
    char user[40];
    /* the small model knows nothing of it, either */
    snprintf(user, sizeof user, "%lld %lld", (long long)n, (long long)round);
    const struct ingle_shorten_options o = {.user = user};
    ingle_status st = ingle_shorten(s->engine, s->d.ids, n, &o, &kept, error);
    if (st)
        return st;
    t->n_kept = kept.n;
    t->small[round] = kept.seconds;
    memcpy(why, kept.why, sizeof kept.why);
    if (kept.n)
        st = read_prompt(s, kept.ids, kept.position, kept.n, &t->large[round], error);
    if (!st && kept.n)
        st = read_prompt(s, s->d.ids, NULL, n, &t->whole[round], error);
    ingle_shortened_release(&kept);
    return st;
}

/* ---- what is printed ---- */

static double middle(double *v, int64_t n)
{
    qsort(v, (size_t)n, sizeof *v, num_order_f64);
    return v[n / 2];
}

static void print_head(const struct skip *s)
{
    printf("prompts shortened by %s to %.3g of their tokens beside whole ones; %s\n\n%8s %8s %7s "
           "%12s %12s %12s %12s %7s\n",
           s->small.path, s->small.keep, cli_depths_name(&s->d), "depth", "kept", "share",
           "small model", "large model", "first token", "whole", "times");
}

static void print_depth(const struct skip *s, int64_t n, struct times *t, const char *why)
{
    if (!t->n_kept) {
        char text[80];
        snprintf(text, sizeof text, "shorter than %lld tokens (--prompt-keep-from)",
                 (long long)s->small.from);
        why = *why ? why : text;
        if (s->json) {
            struct str out;
            cli_json(&out);
            write_open(&out, '{');
            write_member(&out, "test", "prompt-drafter");
            write_member_int(&out, "depth", n);
            write_member_int(&out, "kept", n);
            write_close(&out, '}');
            cli_json_end(&out, "\n");
        } else {
            printf("%8lld %8lld   not shortened: %s\n", (long long)n, (long long)n, why);
        }
        return;
    }
    double first[MOST_ROUNDS];
    for (int64_t i = 0; i < s->n_rounds; i++)
        first[i] = t->small[i] + t->large[i];
    const double small = middle(t->small, s->n_rounds), large = middle(t->large, s->n_rounds),
                 all = middle(first, s->n_rounds), whole = middle(t->whole, s->n_rounds),
                 share = (double)t->n_kept / (double)n;
    if (s->json) {
        struct str out;
        cli_json(&out);
        write_open(&out, '{');
        write_member(&out, "test", "prompt-drafter");
        write_member_int(&out, "depth", n);
        write_member_int(&out, "kept", t->n_kept);
        write_member_significant(&out, "keep", 6, s->small.keep);
        write_member_significant(&out, "small_s", 6, small);
        write_member_significant(&out, "large_s", 6, large);
        write_member_significant(&out, "first_token_s", 6, all);
        write_member_significant(&out, "whole_s", 6, whole);
        write_member_significant(&out, "times", 4, whole / all);
        write_member_int(&out, "rounds", s->n_rounds);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    } else {
        printf("%8lld %8lld %5.1f %% %10.3f s %10.3f s %10.3f s %10.3f s %7.2f\n", (long long)n,
               (long long)t->n_kept, 100 * share, small, large, all, whole, whole / all);
    }
}

static ingle_status measure(struct skip *s, struct ingle_error *error)
{
    struct times t;
    char why[200];
    for (int64_t i = 0; i < s->d.n; i++) {
        ingle_status st = INGLE_OK;
        t.n_kept = 1;
        for (int64_t r = 0; r < s->n_rounds && t.n_kept && !st; r++)
            st = measure_round(s, s->d.depth[i], r, &t, why, error);
        if (st)
            return st;
        cli_screen_clear(&s->c->screen);
        print_depth(s, s->d.depth[i], &t, why);
        cli_push(s->c);
    }
    return INGLE_OK;
}

/* ---- what is asked ---- */

static int open_engine(struct skip *s)
{
    struct ingle_engine_options o = {
        .max_logits = 1, .n_sessions = 1, .callbacks = cli_callbacks(s->c)};
    struct ingle_error error;
    ingle_config_engine(s->c->config, &o);
    o.store = NULL; /* everything is computed */
    if (!o.n_ctx)
        o.n_ctx = cli_depths_most(&s->d) + 1;
    if (ingle_engine_open(&s->engine, s->model, &o, &error))
        return cli_fail(s->c, &error);
    cli_interrupt_engine(s->engine);
    ingle_engine_info(s->engine, &s->info);
    ingle_shortener(s->engine, &s->small);
    if (!*s->small.path) {
        struct err err;
        err_set(&err, INGLE_UNSUP, "no prompt can be shortened here: %s", s->small.why_never);
        return cli_fail_err(s->c, &err);
    }
    return CLI_OK;
}

int cli_bench_shorten(struct cli *c)
{
    struct skip s = {.c = c,
                     .d = {.first = INT64_MAX, .usual = USUAL_DEPTH},
                     .json = ingle_config_flag(c->config, "json"),
                     .n_rounds = (int64_t)ingle_config_number(c->config, "repeat")};
    struct ingle_error error;
    int rc = cli_depths_parse(c, &s.d);
    if (!rc && cli_open_model(c, &s.model, &error))
        rc = cli_fail(c, &error);
    if (!rc)
        rc = cli_depths_tokens(c, s.model, &s.d);
    if (!rc)
        rc = open_engine(&s);
    if (!rc && !s.json)
        print_head(&s);
    if (!rc && measure(&s, &error))
        rc = cli_fail(c, &error);
    cli_interrupt_engine(NULL);
    ingle_engine_close(s.engine);
    ingle_model_close(s.model);
    mem_free(s.d.ids);
    return rc;
}
