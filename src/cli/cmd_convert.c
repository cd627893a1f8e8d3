/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/quantize.h"

#include "base/cpu.h"
#include "base/pool.h"
#include "tool/tool.h"
#include <string.h>

static bool is_gguf(const char *path)
{
    static const char end[] = ".gguf";
    const size_t n = strlen(path), k = sizeof end - 1;
    return n > k && strcmp(path + n - k, end) == 0;
}

/* A GGUF file to a checkpoint. */
static int back(struct cli *c, const struct tool_quantize_options *o, const char *out,
                const char *type)
{
    const bool plain =
        type && (strcmp(type, "f32") == 0 || strcmp(type, "f16") == 0 || strcmp(type, "bf16") == 0);
    const struct tool_source_options source = {
        .back = true, .back_type = plain ? type : NULL, .guard = c->guard};
    if (o->source->part != TOOL_SOURCE_MAIN || o->source->target || o->source->name)
        return cli_usage(c, "--mtp, --dspark, --encoders, --target-model-dir and --model-name are "
                            "for checkpoints, not for GGUF files");
    if (type && !plain && strcmp(type, "auto") != 0)
        return cli_usage(
            c, "--outtype %s: a checkpoint that is made of a GGUF file has auto, f32, f16 or bf16",
            type);
    struct tool_quantize_options to = *o;
    to.source = &source;
    to.code = NULL;
    return cli_write_codes(c, c->arg[0], out ? out : "", &to);
}

int cli_convert(struct cli *c)
{
    struct tool_rule rule[CLI_MAX_RULES];
    const bool mtp = ingle_config_flag(c->config, "mtp"),
               dspark = ingle_config_flag(c->config, "dspark"),
               encoders = ingle_config_flag(c->config, "encoders");
    const char *out = ingle_config_text(c->config, "outfile", 0),
               *type = ingle_config_text(c->config, "outtype", 0);
    const struct tool_source_options source = {
        .part = mtp        ? TOOL_SOURCE_MTP
                : dspark   ? TOOL_SOURCE_DSPARK
                : encoders ? TOOL_SOURCE_TOWER
                           : TOOL_SOURCE_MAIN,
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
        .guard = c->guard,
        .force = ingle_config_flag(c->config, "force"),
        .source = &source,
    };
    const int rc = cli_rules(c, rule, &o.n_rules);
    if (rc)
        return rc;
    if (c->n_arg != 1 || (!out && !o.dry))
        return cli_usage(c, "convert needs a checkpoint's folder or a GGUF file, and -o FILE");
    if (mtp + dspark + encoders > 1)
        return cli_usage(c, "--mtp, --dspark and --encoders are parts of a checkpoint: one at a "
                            "time");
    return is_gguf(c->arg[0]) ? back(c, &o, out, type)
                              : cli_write_codes(c, c->arg[0], out ? out : "", &o);
}
