/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "base/cpu.h"
#include "base/pool.h"
#include "tool/tool.h"

enum { WARNINGS = 3 }; /* the exit code: nothing is wrong, something is unusual */

int cli_pool(struct cli *c, struct pool **out)
{
    struct cpu_machine machine;
    struct err err;
    cpu_machine_read(&machine);
    const int threads = (int)ingle_config_number(c->config, "threads");
    return pool_create(out, threads ? threads : cpu_default_threads(&machine), false, &err)
               ? cli_fail_err(c, &err)
               : CLI_OK;
}

/* For which models the file drafts; false: for none, or it is no model, which the check itself
 * says. */
static bool drafts(const char *path, char *out, size_t n)
{
    struct ingle_model *m;
    const struct ingle_callbacks silent = {0};
    if (ingle_model_open(&m, path, &silent, NULL))
        return false;
    const bool yes = ingle_model_drafts(m, out, n);
    ingle_model_close(m);
    return yes;
}

int cli_check(struct cli *c)
{
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const struct report_sink sink = {callbacks.report, callbacks.progress, callbacks.arg};
    struct tool_check seen;
    struct pool *pool = NULL;
    struct str text;
    struct err err;
    if (c->n_arg != 1)
        return cli_usage(c, "check needs one FILE");
    int rc = cli_pool(c, &pool);
    if (rc)
        return rc;
    str_init(&text);
    char about[256];
    const bool drafter = drafts(c->arg[0], about, sizeof about);
    const ingle_status s =
        tool_check(pool, c->arg[0], drafter ? about : NULL, ingle_config_flag(c->config, "json"),
                   &sink, &seen, &text, &err);
    pool_free(pool);
    cli_screen_clear(&c->screen);
    if (!s) {
        cli_put_text(stdout, text.at, text.n);
        rc = seen.n_problems ? CLI_FAILURE : seen.n_warnings ? WARNINGS : CLI_OK;
    }
    str_release(&text);
    return s ? cli_fail_err(c, &err) : rc;
}
