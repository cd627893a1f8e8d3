/*
 * quantize - what quantize and convert share.
 */
#ifndef INGLE_CLI_QUANTIZE_H
#define INGLE_CLI_QUANTIZE_H

#include "cli/cli.h"

/* cmd_quantize.c */
enum { CLI_MAX_RULES = 64 };
struct tool_rule;
struct tool_quantize_options;
/* --tensor PATTERN=CODE into rule [CLI_MAX_RULES]; CLI_OK, or the exit code after saying why. */
int cli_rules(struct cli *c, struct tool_rule *rule, size_t *n);
/* tool_quantize() with its summary printed; the exit code. */
int cli_write_codes(struct cli *c, const char *in, const char *out,
                    const struct tool_quantize_options *o);

#endif
