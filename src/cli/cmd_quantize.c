/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "base/cpu.h"
#include "base/pool.h"
#include "tool/tool.h"
#include <string.h>

int cli_rules(struct cli *c, struct tool_rule *rule, size_t *n)
{
    const char *text;
    for (*n = 0; (text = ingle_config_text(c->config, "tensor", *n)) != NULL; ++*n) {
        const char *equals = strrchr(text, '=');
        if (!equals || equals == text || !equals[1])
            return cli_usage(c, "--tensor wants PATTERN=CODE, not '%s'", text);
        if (*n == CLI_MAX_RULES)
            return cli_usage(c, "--tensor is there more than %d times", CLI_MAX_RULES);
        rule[*n] = (struct tool_rule){.pattern = text, .n_pattern = (size_t)(equals - text), .code = equals + 1};
    }
    return CLI_OK;
}

int cli_write_codes(struct cli *c, const char *in, const char *out, const struct tool_quantize_options *o)
{
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const struct report_sink sink = {callbacks.report, callbacks.progress, callbacks.arg};
    struct cpu_machine machine;
    struct pool *pool = NULL;
    struct str text;
    struct err err;
    cpu_machine_read(&machine);
    int threads = (int)ingle_config_number(c->config, "threads");
    threads = threads ? threads : cpu_default_threads(&machine);
    str_init(&text);
    ingle_status s = pool_create(&pool, threads, false, &err);
    if (!s)
        s = tool_quantize(pool, cpu_detect(), in, out, o, &sink, &text, &err);
    pool_free(pool);
    cli_screen_clear(&c->screen);
    if (!s)
        cli_put_text(stdout, text.at, text.n);
    str_release(&text);
    return s ? cli_fail_err(c, &err) : CLI_OK;
}

int cli_quantize(struct cli *c)
{
    struct tool_rule rule[CLI_MAX_RULES];
    struct tool_quantize_options o = {
        .rule = rule,
        .like = ingle_config_text(c->config, "like", 0),
        .imatrix = ingle_config_text(c->config, "imatrix", 0),
        .fit_bytes = (uint64_t)ingle_config_number(c->config, "fit"),
        .dry = ingle_config_flag(c->config, "dry-run"),
        .guard = c->guard,
        .force = ingle_config_flag(c->config, "force"),
        .split_bytes = (uint64_t)ingle_config_number(c->config, "split-max-size"),
        .split_tensors = (uint64_t)ingle_config_number(c->config, "split-max-tensors"),
    };
    const int rc = cli_rules(c, rule, &o.n_rules);
    if (rc)
        return rc;
    if (c->n_arg != 3 && !(c->n_arg == 2 && (o.like || o.fit_bytes)))
        return cli_usage(c, "wanted are IN, OUT and CODE, or IN and OUT with --like FILE or --fit SIZE");
    if (o.fit_bytes && (o.like || c->n_arg == 3))
        return cli_usage(c, "--fit chooses all codes itself: there is no %s", o.like ? "--like" : "CODE");
    o.code = c->n_arg == 3 ? c->arg[2] : NULL;
    return cli_write_codes(c, c->arg[0], c->arg[1], &o);
}
