/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "tool/tool.h"

static int show_file(struct cli *c, const char *path)
{
    const struct tool_inspect_options o = {
        .json = ingle_config_flag(c->config, "json"),
        .tensors = ingle_config_flag(c->config, "tensors"),
    };
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const struct report_sink sink = {callbacks.report, callbacks.progress, callbacks.arg};
    struct str out;
    struct err err;
    size_t n = 0;
    const void *nano = path ? NULL : ingle_nano(&n);
    str_init(&out);
    int rc = CLI_OK;
    if (tool_inspect(path ? path : "nano-gemma4 (built in)", nano, n, &o, &sink, &out, &err))
        rc = cli_fail_err(c, &err);
    else
        fwrite(out.at, 1, out.n, stdout);
    str_release(&out);
    return rc;
}

int cli_inspect(struct cli *c)
{
    const char *path = ingle_config_text(c->config, "model", 0);
    if (c->n_arg > 1 || (c->n_arg && path))
        return cli_usage(c, "one file at a time, not '%s'", c->arg[c->n_arg - 1]);
    return show_file(c, c->n_arg ? c->arg[0] : path);
}
