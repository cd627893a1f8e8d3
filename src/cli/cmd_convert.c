/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "base/cpu.h"
#include "base/pool.h"
#include "tool/tool.h"
#include <string.h>

int cli_convert(struct cli *c)
{
    struct tool_rule rule[CLI_MAX_RULES];
    const bool mtp = ingle_config_flag(c->config, "mtp"), dspark = ingle_config_flag(c->config, "dspark");
    const char *out = ingle_config_text(c->config, "outfile", 0), *type = ingle_config_text(c->config, "outtype", 0);
    const struct tool_source_options source = {
        .part = mtp ? TOOL_SOURCE_MTP : dspark ? TOOL_SOURCE_DSPARK : TOOL_SOURCE_MAIN,
        .target = ingle_config_text(c->config, "target-model-dir", 0),
        .name = ingle_config_text(c->config, "model-name", 0),
    };
    struct tool_quantize_options o = {
        .code = type && strcmp(type, "auto") != 0 ? type : NULL,
        .rule = rule,
        .keep_coded = true,
        .split_bytes = (uint64_t)ingle_config_number(c->config, "split-max-size"),
        .split_tensors = (uint64_t)ingle_config_number(c->config, "split-max-tensors"),
        .dry = ingle_config_flag(c->config, "dry-run"),
        .job = "convert",
        .source = &source,
    };
    const int rc = cli_rules(c, rule, &o.n_rules);
    if (rc)
        return rc;
    if (c->n_arg != 1 || (!out && !o.dry))
        return cli_usage(c, "wanted are a checkpoint's directory and -o FILE");
    if (mtp && dspark)
        return cli_usage(c, "--mtp and --dspark are two drafters: one at a time");
    return cli_write_codes(c, c->arg[0], out ? out : "", &o);
}
