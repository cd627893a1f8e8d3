/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/quantize.h"

#include "base/cpu.h"
#include "base/pool.h"
#include "tool/tool.h"
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

int cli_rules(struct cli *c, struct tool_rule *rule, size_t *n)
{
    const char *text;
    for (*n = 0; (text = ingle_config_text(c->config, "tensor", *n)) != NULL; ++*n) {
        const char *equals = strrchr(text, '=');
        if (!equals || equals == text || !equals[1])
            return cli_usage(c, "--tensor wants PATTERN=CODE, not '%s'", text);
        if (*n == CLI_MAX_RULES)
            return cli_usage(c, "--tensor is there more than %d times", CLI_MAX_RULES);
        rule[*n] = (struct tool_rule){
            .pattern = text, .n_pattern = (size_t)(equals - text), .code = equals + 1};
    }
    return CLI_OK;
}

/* What is written stays for the next call. */
static void say_interrupted(int signal_number)
{
    static const char text[] = "\ningle: interrupted: the same command continues\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

int cli_write_codes(struct cli *c, const char *in, const char *out,
                    const struct tool_quantize_options *o)
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
    if (!o->dry && !ingle_config_flag(c->config, "quiet"))
        (void)signal(SIGINT, say_interrupted);
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

/* Options of llama-quantize that are rules for one tensor. */
static int llama_rules(struct cli *c, struct tool_rule *rule, size_t *n)
{
    const bool leave = ingle_config_flag(c->config, "leave-output-tensor");
    const char *const one[][2] = {
        {"output.weight", leave ? "COPY" : ingle_config_text(c->config, "output-tensor-type", 0)},
        {"token_embd.weight", ingle_config_text(c->config, "token-embedding-type", 0)}};
    for (size_t i = 0; i < 2; i++) {
        if (!one[i][1])
            continue;
        if (*n == CLI_MAX_RULES)
            return cli_usage(c, "--tensor is there more than %d times", CLI_MAX_RULES - 2);
        rule[(*n)++] = (struct tool_rule){one[i][0], one[i][1], strlen(one[i][0]), true};
    }
    return CLI_OK;
}

/* IN OUT CODE THREADS, as llama-quantize has it. */
static int llama_threads(struct cli *c)
{
    struct ingle_error error;
    if (c->n_arg != 4 || strspn(c->arg[3], "0123456789") != strlen(c->arg[3]))
        return CLI_OK;
    c->n_arg = 3;
    return ingle_config_set(c->config, "quantize", "threads", c->arg[3], &error)
               ? cli_usage(c, "%s", error.text)
               : CLI_OK;
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
        .pure = ingle_config_flag(c->config, "pure"),
        .requantize = ingle_config_flag(c->config, "allow-requantize"),
        .guard = c->guard,
        .force = ingle_config_flag(c->config, "force"),
        .keep_split = ingle_config_flag(c->config, "keep-split"),
        .split_bytes = (uint64_t)ingle_config_number(c->config, "split-max-size"),
        .split_tensors = (uint64_t)ingle_config_number(c->config, "split-max-tensors"),
    };
    const int rc = cli_rules(c, rule, &o.n_rules);
    if (rc)
        return rc;
    if (llama_rules(c, rule, &o.n_rules) || llama_threads(c))
        return CLI_USAGE;
    if (c->n_arg != 3 && !(c->n_arg == 2 && (o.like || o.fit_bytes)))
        return cli_usage(
            c, "quantize needs IN, OUT and CODE, or IN and OUT with --like FILE or --fit SIZE");
    if (o.fit_bytes && (o.like || (c->n_arg == 3 && !tool_quantize_is_partial(c->arg[2]))))
        return cli_usage(c, "--fit chooses all codes itself: there is no %s",
                         o.like ? "--like" : "CODE, except those that leave experts (Q4_K_DENSE)");
    if (o.keep_split && (o.split_bytes || o.split_tensors))
        return cli_usage(c, "--keep-split has the parts of IN: there is no --split-max-%s",
                         o.split_bytes ? "size" : "tensors");
    o.code = c->n_arg == 3 && strcasecmp(c->arg[2], "COPY") != 0 ? c->arg[2] : NULL;
    return cli_write_codes(c, c->arg[0], c->arg[1], &o);
}
