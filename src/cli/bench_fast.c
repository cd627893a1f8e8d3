/* SPDX-License-Identifier: Apache-2.0 */
/* What --numerics fast costs in accuracy: the same prompt both ways. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/editor.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/write.h"
#include "tool/tool.h"

#include <string.h>

enum { ROWS = 64 };

/* The logits of the last n_rows of ids [n]: f32 [n_rows][n_vocab]. */
static ingle_status last_logits(struct ingle_engine *e, const int32_t *ids, int64_t n,
                                int64_t n_rows, int64_t n_vocab, float *logits,
                                struct ingle_error *error)
{
    struct ingle_session *s = NULL;
    ingle_status st = ingle_session_open(&s, e, error);
    if (!st)
        st = ingle_session_sync(s, ids, n, NULL, error);
    const int64_t first = n - n_rows;
    while (!st && ingle_session_pending(s) > 0) {
        const int64_t at = ingle_session_length(s);
        struct ingle_work w = {.session = s,
                               .max_tokens = at < first ? first - at : CLI_FAST_STEP,
                               .want = at < first ? INGLE_WANT_NONE : INGLE_WANT_ALL};
        st = ingle_step(e, &w, 1, error);
        if (!st && w.n_logits)
            memcpy(logits + (at - first) * n_vocab, w.logits,
                   (size_t)(w.n_logits * n_vocab) * sizeof *logits);
    }
    ingle_session_close(s);
    return st;
}

static void print(const struct tool_difference *d, const char *recipe, int64_t n, bool json)
{
    const double rows = (double)d->n_rows, rms = tool_difference_rms(d);
    if (json) {
        char test[64];
        struct str out;
        snprintf(test, sizeof test, "%s against exact", recipe);
        cli_json(&out);
        write_open(&out, '{');
        write_member(&out, "test", test);
        write_member_int(&out, "tokens", n);
        write_member_int(&out, "rows", d->n_rows);
        write_member_significant(&out, "relative_rms", 6, rms);
        write_member_significant(&out, "kl", 6, d->kl_sum / rows);
        write_member_significant(&out, "kl_max", 6, d->kl_max);
        write_member_significant(&out, "same_top", 6, (double)d->n_same_top / rows);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
        return;
    }
    printf("\n%s against exact, %lld tokens, logits of the last %lld: relative RMS %.2e, "
           "KL divergence %.2e (at most %.2e), equal best token %.1f %%\n",
           recipe, (long long)n, (long long)d->n_rows, rms, d->kl_sum / rows, d->kl_max,
           (double)d->n_same_top / rows * 100);
}

int cli_bench_fast(struct cli *c, struct ingle_model *m, struct ingle_engine **engine,
                   const struct ingle_engine_options *o, const int32_t *ids, int64_t n, bool json)
{
    struct ingle_engine_options exact = *o;
    struct ingle_engine_info info;
    struct tool_difference d = {0};
    struct ingle_error error;
    ingle_engine_info(*engine, &info);
    if (strcmp(info.numerics, "exact") == 0) {
        if (!json)
            puts("\nfast numerics: no kernel on this machine is faster than exact for this model; "
                 "exact used");
        return CLI_OK;
    }
    char recipe[32];
    snprintf(recipe, sizeof recipe, "%s", info.numerics);
    const int64_t v = info.n_vocab, rows = num_min(n - 1, ROWS);
    float *fast = mem_calloc((size_t)rows, (size_t)v * sizeof *fast);
    float *want = mem_calloc((size_t)rows, (size_t)v * sizeof *want);
    int rc = CLI_OK;
    exact.numerics = "exact";
    if (!fast || !want) {
        struct err err;
        err_set(&err, INGLE_NOMEM, "no memory for %lld rows of logits", (long long)rows);
        rc = cli_fail_err(c, &err);
    } else {
        ingle_status st = last_logits(*engine, ids, n, rows, v, fast, &error);
        cli_interrupt_engine(NULL);
        ingle_engine_close(*engine); /* there may be no room for two */
        *engine = NULL;
        if (!st)
            st = ingle_engine_open(engine, m, &exact, &error);
        if (!st) {
            cli_interrupt_engine(*engine);
            st = last_logits(*engine, ids, n, rows, v, want, &error);
        }
        if (st) {
            rc = cli_fail(c, &error);
        } else {
            for (int64_t i = 0; i < rows; i++)
                tool_difference_add(&d, fast + i * v, want + i * v, v);
            print(&d, recipe, n, json);
        }
    }
    mem_free(fast);
    mem_free(want);
    return rc;
}
