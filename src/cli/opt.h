/*
 * opt - options: read, found by name, explained.
 */
#ifndef INGLE_CLI_OPT_H
#define INGLE_CLI_OPT_H

#include "cli/cli.h"

/* opt.c */
/* Reads argv[first..] into c->config and c->arg; CLI_OK, or the exit code after saying why.
 * *help: --help was among them, or --help-all, which also sets c->help_all. */
int cli_options_read(struct cli *c, int argc, char **argv, int first, bool *help);
/* Sets an option of a command as a line of a file has it: key is its name or letter, or what
 * another engine calls it; a flag is true or false.  What has no effect is added to notes, which
 * may be NULL. */
MUST_CHECK ingle_status cli_option_line(const char *command, struct ingle_config *config,
                                        const char *key, const char *value, struct cli_notes *notes,
                                        struct err *err);
/* Paths that begin with "~/", as values of files do, which no shell has seen. */
MUST_CHECK ingle_status cli_option_home(struct ingle_config *config, struct err *err);
/* Reads the file of --config, if there is one: what the command line says stays. */
MUST_CHECK ingle_status cli_option_file(struct cli *c, struct err *err);
/* Warns of options that have no effect, because the one that they belong to is not there. */
void cli_options_idle(const struct cli *c);

/* help.c */
void cli_help_all(FILE *to);
/* whole: with the options of rare use */
void cli_help_command(FILE *to, const struct cli_command *command, bool whole);
/* All commands and options as a manual page or as Markdown. */
void cli_help_manual(FILE *to);
void cli_help_markdown(FILE *to);

/* opt_names.c */
bool cli_has_word(const char *list, const char *word); /* list: words with blanks between them */
/* Whether NAME=VALUE of another one sets it: help lists limits there, and nothing else does. */
bool cli_is_limit(const struct ingle_option *o);
bool cli_option_takes(const char *command, const struct ingle_option *o);
/* Commands may give a letter to options of their own; what another command has is found by its
 * name. NULL: nobody has it. */
const struct ingle_option *cli_by_letter(const char *command, char letter);
const struct ingle_option *cli_by_name(const char *name);
/* Whether the command has that option of ours. */
bool cli_takes(const char *command, const char *name);

#endif
