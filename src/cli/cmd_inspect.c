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

static void print_plan_json(const struct ingle_plan *p)
{
    fputs("{\"items\": {", stdout);
    for (int i = 0; i < p->n_items; i++)
        printf("%s\"%s\": %llu", i ? ", " : "", p->item[i].name,
               (unsigned long long)p->item[i].bytes);
    printf("}, \"total_bytes\": %llu, \"limit_bytes\": %llu, \"fits\": %s, \"ctx\": %lld, "
           "\"chunk\": %lld, \"kv\": \"%s\", \"advice\": \"%s\"}\n",
           (unsigned long long)p->total_bytes, (unsigned long long)p->limit_bytes,
           p->fits ? "true" : "false", (long long)p->n_ctx, (long long)p->max_rows, p->kv,
           p->advice);
}

static void print_plan(const struct ingle_plan *p)
{
    static const double mib = 1024.0 * 1024;
    for (int i = 0; i < p->n_items; i++)
        printf("%-18s %14.2f MiB\n", p->item[i].name, (double)p->item[i].bytes / mib);
    printf("%-18s %14.2f MiB\n%-18s %14.2f MiB\n", "together", (double)p->total_bytes / mib,
           "free", (double)p->limit_bytes / mib);
    printf("context %lld tokens, steps of %lld, keys and values %s: %s%s\n", (long long)p->n_ctx,
           (long long)p->max_rows, p->kv, p->fits ? "fits" : "does not fit; ", p->advice);
}

static int show_plan(struct cli *c, const char *path)
{
    struct ingle_model *m;
    struct ingle_error error;
    struct ingle_plan plan;
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    struct ingle_engine_options o = {.callbacks = callbacks};
    ingle_config_engine(c->config, &o);
    if (ingle_model_open(&m, path, &callbacks, &error))
        return cli_fail(c, &error);
    int rc = CLI_OK;
    if (ingle_engine_plan(m, &o, &plan, &error))
        rc = cli_fail(c, &error);
    else if (ingle_config_flag(c->config, "json"))
        print_plan_json(&plan);
    else
        print_plan(&plan);
    ingle_model_close(m);
    return rc;
}

int cli_inspect(struct cli *c)
{
    const char *path = ingle_config_text(c->config, "model", 0);
    if (c->n_arg > 1 || (c->n_arg && path))
        return cli_usage(c, "one file at a time, not '%s'", c->arg[c->n_arg - 1]);
    path = c->n_arg ? c->arg[0] : path;
    const char *experts = ingle_config_text(c->config, "experts", 0);
    if (experts)
        return cli_experts_show(c, experts, path, ingle_config_flag(c->config, "json"));
    return ingle_config_flag(c->config, "plan") ? show_plan(c, path) : show_file(c, path);
}
