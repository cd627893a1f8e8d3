/*
 * launch - one model over several processes, as others say it.
 */
#ifndef INGLE_CLI_LAUNCH_H
#define INGLE_CLI_LAUNCH_H

#include "cli/foreign.h"

enum cli_launch_option {
    CLI_LAUNCH_NODES,
    CLI_LAUNCH_RANK,
    CLI_LAUNCH_HOST,
    CLI_LAUNCH_PORT,
    CLI_LAUNCH_STAGES,
    CLI_LAUNCH_ROLE,
    CLI_LAUNCH_COORDINATOR,
    CLI_LAUNCH_LAYERS,
    CLI_LAUNCH_LISTEN,
    CLI_LAUNCH_MODE,
    CLI_LAUNCH_BEGINS,
    CLI_LAUNCH_ENDS,
    CLI_LAUNCH_HIDDEN,
    CLI_LAUNCH_VOCAB,
    CLI_LAUNCH_ROWS,
    CLI_LAUNCH_STREAM,
    CLI_LAUNCH_CTX,
    CLI_LAUNCH_OPTIONS
};
struct cli_launch {
    /* borrowed from argv and the table; text NULL: it was not given */
    const char *text[CLI_LAUNCH_OPTIONS], *second[CLI_LAUNCH_OPTIONS], *why[CLI_LAUNCH_OPTIONS];
    char spelt[CLI_LAUNCH_OPTIONS][40];
    bool stage; /* this process is a part of several */
    bool once;  /* ... of a launcher's job, which ends with the first one */
};
/* Keeps an option of a launcher. */
void cli_launch_take(struct cli *c, const struct cli_foreign *f, const char *spelt,
                     const char *value, const char *second);
/* Whether its value has two words, "HOST PORT", of which next is the second one. */
bool cli_launch_has_two(const struct cli_foreign *f, const char *next);
/* When all options are read. */
MUST_CHECK ingle_status cli_launch_check(struct cli *c, struct err *err);
/* When the model is there: sets what a stage needs.  *command: NULL, or what is run instead. */
MUST_CHECK ingle_status cli_launch(struct cli *c, const char **command, struct err *err);

#endif
