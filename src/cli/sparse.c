/* SPDX-License-Identifier: Apache-2.0 */
/* Two ways to compute a prompt, beside each other: how fast they are by depth, and how far the one
 * is from the other. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/editor.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/write.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 512, STEP_ROWS = 64, FIRST_DEPTH = 1024, USUAL_DEPTH = 16384 };

struct side {
    const char *how;
    struct ingle_session *session;
    /* Since the last depth, of steps [0] without logits and [1] with those of every row. */
    double seconds[2];
    int64_t n[2]; /* their tokens */
};

struct sparse {
    struct cli *c;
    struct ingle_model *model;
    struct ingle_engine *engine;
    struct ingle_engine_info info;
    struct side side[2]; /* the one that is asked about, and what it is compared with */
    struct cli_depths d;
    float *row;          /* f32 [STEP_ROWS][n_vocab]: the first side's */
    double *kl;          /* [ROWS] */
    bool json;
};

/* ---- what is computed ---- */

static ingle_status step(struct sparse *s, struct side *d, int64_t n, enum ingle_want want,
                         const float **logits, struct ingle_error *error)
{
    struct ingle_work w = {.session = d->session, .max_tokens = n, .want = want};
    const uint64_t began = clock_now();
    const ingle_status st = ingle_step(s->engine, &w, 1, error);
    if (st)
        return st;
    d->seconds[want != INGLE_WANT_NONE] += (double)(clock_now() - began) * 1e-9;
    d->n[want != INGLE_WANT_NONE] += w.n_done;
    if (want != INGLE_WANT_NONE && w.n_logits != n) {
        error->status = INGLE_LIMIT;
        snprintf(error->text, sizeof error->text, "a step has %lld rows of logits, not %lld",
                 (long long)w.n_logits, (long long)n);
        return INGLE_LIMIT;
    }
    *logits = w.logits;
    return INGLE_OK;
}

/* Both sides in turns, to position `to`. */
static ingle_status go(struct sparse *s, int64_t to, struct ingle_error *error)
{
    const struct ingle_callbacks screen = cli_callbacks(s->c);
    ingle_status st = INGLE_OK;
    for (int64_t at; !st && (at = ingle_session_length(s->side[1].session)) < to;) {
        const float *none;
        for (int i = 0; i < 2 && !st; i++)
            while (!st &&
                   ingle_session_length(s->side[i].session) < num_min(to, at + s->info.max_rows))
                st = step(s, &s->side[i],
                          num_min(to, at + s->info.max_rows) -
                              ingle_session_length(s->side[i].session),
                          INGLE_WANT_NONE, &none, error);
        screen.progress(screen.arg, "prefill", (double)at, (double)cli_depths_most(&s->d));
    }
    return st;
}

/* The rows up to position `to`, beside each other. */
static ingle_status compare(struct sparse *s, int64_t to, struct tool_difference *d,
                            struct ingle_error *error)
{
    const int64_t v = s->info.n_vocab, step_rows = num_min(STEP_ROWS, s->info.max_rows);
    ingle_status st = INGLE_OK;
    for (int64_t at; !st && (at = ingle_session_length(s->side[1].session)) < to;) {
        const int64_t n = num_min(step_rows, to - at);
        const float *x, *y;
        st = step(s, &s->side[0], n, INGLE_WANT_ALL, &x, error);
        if (st)
            break;
        memcpy(s->row, x, (size_t)(n * v) * sizeof *x);
        st = step(s, &s->side[1], n, INGLE_WANT_ALL, &y, error);
        for (int64_t i = 0; !st && i < n; i++) {
            const double before = d->kl_sum;
            tool_difference_add(d, s->row + i * v, y + i * v, v);
            s->kl[d->n_rows - 1] = d->kl_sum - before;
        }
    }
    return st;
}

/* ---- what is printed ---- */

static void print_head(const struct sparse *s)
{
    printf("--sparse %s beside %s; %s; the last %d rows of each depth; attention of %lld "
           "layers\n\n%8s %9s %9s %6s %10s %10s %10s %9s "
           "%9s %9s %7s\n",
           s->side[0].how, s->side[1].how, cli_depths_name(&s->d), ROWS,
           (long long)s->info.sparse_layers, "depth", "tokens/s", "beside", "times", "mean KL",
           "99 % KL", "most KL", "same best", "missed", "at most", "read");
}

/* Logits cost time of their own.  A depth of up to ROWS tokens has no steps without them. */
static bool has_plain_steps(const struct side *d) { return d->n[0] > 0; }

static double rate(const struct side *d)
{
    const int with = !has_plain_steps(d);
    return d->seconds[with] > 0 ? (double)d->n[with] / d->seconds[with] : 0;
}

static void print_depth(struct sparse *s, int64_t depth, const struct tool_difference *d,
                        const struct ingle_sparse *u)
{
    const struct side *a = &s->side[0], *b = &s->side[1];
    const double rows = (double)d->n_rows, times = rate(b) > 0 ? rate(a) / rate(b) : 0;
    const double missed = u->pairs ? u->missed / (double)u->pairs : 0,
                 read = u->n_seen ? (double)u->n_read / (double)u->n_seen : 1;
    qsort(s->kl, (size_t)d->n_rows, sizeof *s->kl, num_order_f64);
    const double high = s->kl[(d->n_rows * 99 + 99) / 100 - 1];
    if (s->json) {
        struct str out;
        cli_json(&out);
        write_open(&out, '{');
        write_member(&out, "test", "sparse");
        write_member(&out, "sparse", a->how);
        write_member(&out, "against", b->how);
        write_member_int(&out, "depth", depth);
        write_member_fixed(&out, "tokens_per_s", 3, rate(a));
        write_member_fixed(&out, "against_tokens_per_s", 3, rate(b));
        write_member_int(&out, "rows", d->n_rows);
        write_member_significant(&out, "kl", 6, d->kl_sum / rows);
        write_member_significant(&out, "kl_99", 6, high);
        write_member_significant(&out, "kl_max", 6, d->kl_max);
        write_member_significant(&out, "same_top", 6, (double)d->n_same_top / rows);
        write_member_significant(&out, "missed_mean", 6, missed);
        write_member_significant(&out, "missed_most", 6, u->most);
        write_member_fixed(&out, "values_read", 4, read);
        write_member_bool(&out, "rate_with_logits", !has_plain_steps(a));
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    } else {
        printf(
            "%8lld %9.1f %9.1f %6.2f %10.2e %10.2e %10.2e %7.2f %% %7.2f %% %7.2f %% %5.1f %%%s\n",
            (long long)depth, rate(a), rate(b), times, d->kl_sum / rows, high, d->kl_max,
            100 * (double)d->n_same_top / rows, 100 * missed, 100 * u->most, 100 * read,
            has_plain_steps(a) ? "" : "  (rates with the logits of every row)");
    }
}

static ingle_status measure(struct sparse *s, struct ingle_error *error)
{
    ingle_status st = INGLE_OK;
    for (int64_t i = 0; i < s->d.n && !st; i++) {
        const int64_t to = s->d.depth[i];
        struct tool_difference d = {0};
        struct ingle_way_use use;
        for (int k = 0; k < 2; k++)
            memset(s->side[k].seconds, 0, sizeof s->side[k].seconds),
                memset(s->side[k].n, 0, sizeof s->side[k].n);
        st = go(s, num_max(to - ROWS, 0), error);
        if (!st)
            st = compare(s, to, &d, error);
        if (st)
            break;
        ingle_session_way_use(s->side[0].session, &use);
        cli_screen_clear(&s->c->screen);
        print_depth(s, to, &d, &use.sparse);
        cli_push(s->c);
    }
    return st;
}

/* A table of zeros is no measurement. */
static void warn_if_none(const struct sparse *s)
{
    for (int i = 0; i < 2; i++) {
        struct ingle_way_use use;
        struct ingle_way way;
        ingle_session_way_use(s->side[i].session, &use);
        ingle_session_way(s->side[i].session, &way);
        const char *how = way.text[INGLE_WAY_SPARSE];
        if (!use.sparse.pairs && strcmp(how, "off") != 0 && s->c->screen.level >= INGLE_REPORT_WARN)
            fprintf(
                stderr,
                "ingle: warning: no row up to depth %lld is sparse with %s: all values were read\n",
                (long long)cli_depths_most(&s->d), how);
    }
}

/* ---- what is asked ---- */

static int open_engine(struct sparse *s)
{
    const int64_t most = cli_depths_most(&s->d);
    struct ingle_engine_options o = {
        .max_logits = STEP_ROWS, .n_sessions = 2, .callbacks = cli_callbacks(s->c)};
    struct ingle_error error;
    ingle_config_engine(s->c->config, &o);
    o.store = NULL; /* everything is computed */
    if (!o.n_ctx)
        o.n_ctx = most + 1;
    ingle_status st = ingle_engine_open(&s->engine, s->model, &o, &error);
    if (st)
        return cli_fail(s->c, &error);
    cli_interrupt_engine(s->engine);
    ingle_engine_info(s->engine, &s->info);
    if (s->info.sparse_why[0]) {
        struct err err;
        err_set(&err, INGLE_UNSUP, "no prompt can be sparse here: %s", s->info.sparse_why);
        return cli_fail_err(s->c, &err);
    }
    for (int i = 0; i < 2 && !st; i++) {
        st = ingle_session_open(&s->side[i].session, s->engine, &error);
        if (!st) {
            /* neither has what the other computed */
            ingle_session_set_user(s->side[i].session, i ? "beside" : "asked");
            st = ingle_session_set_way(s->side[i].session, INGLE_WAY_SPARSE,
                                       s->side[i].how, &error);
        }
        if (!st)
            st = ingle_session_sync(s->side[i].session, s->d.ids, most, NULL, &error);
    }
    s->row = mem_calloc((size_t)s->info.n_vocab * STEP_ROWS, sizeof *s->row);
    s->kl = mem_calloc(ROWS, sizeof *s->kl);
    if (!st && (!s->row || !s->kl))
        return cli_usage(s->c, "no memory for %d rows of logits", STEP_ROWS);
    return st ? cli_fail(s->c, &error) : CLI_OK;
}

int cli_sparse_compare(struct cli *c, const char *how, const char *against)
{
    struct sparse s = {.c = c,
                       .side = {{.how = how}, {.how = against}},
                       .d = {.first = FIRST_DEPTH, .usual = USUAL_DEPTH},
                       .json = ingle_config_flag(c->config, "json")};
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
    if (!rc)
        warn_if_none(&s);
    cli_interrupt_engine(NULL);
    for (int i = 0; i < 2; i++)
        ingle_session_close(s.side[i].session);
    ingle_engine_close(s.engine);
    ingle_model_close(s.model);
    mem_free(s.d.ids);
    mem_free(s.row);
    mem_free(s.kl);
    return rc;
}
