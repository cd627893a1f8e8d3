/*
 * foreign - names that other engines have for options: foreign.c, foreign_take.c, foreign_json.c.
 */
#ifndef INGLE_CLI_FOREIGN_H
#define INGLE_CLI_FOREIGN_H

#include "base/err.h"
#include "ingle/ingle.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct cli;

enum cli_foreign_kind { /* cli/foreign.inc */
                        CLI_FOREIGN_SAME,
                        CLI_FOREIGN_HAS,
                        CLI_FOREIGN_DONE,
                        CLI_FOREIGN_NONE,
                        CLI_FOREIGN_WORD,
                        CLI_FOREIGN_TAKEN,
                        CLI_FOREIGN_HUB,
                        CLI_FOREIGN_JSON,
                        CLI_FOREIGN_SETS,
                        CLI_FOREIGN_MAYBE,
                        CLI_FOREIGN_SOME,
                        CLI_FOREIGN_ONLY,
                        CLI_FOREIGN_ORDER,
                        CLI_FOREIGN_UNLESS,
                        CLI_FOREIGN_MIB,
                        CLI_FOREIGN_MOST,
                        CLI_FOREIGN_CARD,
                        CLI_FOREIGN_PART,
                        CLI_FOREIGN_LAUNCH
};
struct cli_foreign {
    const char *of, *name, *letters; /* letters, ours, note: or NULL */
    enum cli_foreign_kind kind;
    const char *ours, *note;
};
/* What had no effect: "-ngl 99, --main-gpu 0", and why not. */
enum { CLI_NOTES = 32 }; /* reasons, at most */
struct cli_notes {
    struct {
        const char *why; /* borrowed from the table */
        char names[240];
    } at[CLI_NOTES];
    size_t n, n_more; /* n_more: those that had no room */
};
/* Nothing is added twice.  to: may be NULL; value: NULL or text. */
void cli_note_add(struct cli_notes *to, const char *spelt, const char *value, const char *why);
void cli_notes_print(const struct cli_notes *notes); /* to standard error, a line for each reason */

/* By the n bytes of a name without "--", or of a short one without "-": of several the first, or if
 * that is an option that the command has not, the first that it has; NULL: nobody has it. */
const struct cli_foreign *cli_foreign_name(const char *command, const char *name, size_t n);
const struct cli_foreign *cli_foreign_letters(const char *command, const char *letters, size_t n);
/* Of a WORD or SOME: our word for a value, or for a list with commas the one for all of it ("auto"
 * if they differ); false: it has none.  out [n]. */
bool cli_foreign_word(const struct cli_foreign *f, const char *value, char *out, size_t n);
/* What ingle has instead: "it is --ctx here". */
void cli_foreign_say(const struct cli_foreign *f, char *out, size_t n);
const char *cli_foreign_why(const struct cli_foreign *f); /* the sentence of a note */
enum cli_values { CLI_NO_VALUE, CLI_MAY_HAVE_VALUE /* on, off, auto ... */, CLI_HAS_VALUE };
enum cli_values cli_foreign_values(const struct cli_foreign *f);
bool cli_switch(const char *word); /* on, off, auto and others that such a value is */
/* What such an option asks for: one of ours (name; NULL: nothing) with a value (NULL: a flag
 * without one), which is borrowed from `value`, the table or out->room.  INGLE_ARG: ingle cannot do
 * it.  What has no effect is added to notes (or NULL). The value of a JSON is for
 * cli_foreign_json(). */
struct cli_setting {
    const char *name, *value;
    char room[1024];
};
MUST_CHECK ingle_status cli_foreign_take(const struct cli_foreign *f, const char *spelt,
                                         const char *value, struct cli_setting *out,
                                         struct cli_notes *notes, struct err *err);
/* Sets the options that the members of a JSON object ask for, the value of option `parent`. */
MUST_CHECK ingle_status cli_foreign_json(const char *parent, const char *text, const char *command,
                                         struct ingle_config *config, struct cli_notes *notes,
                                         struct err *err);
void cli_foreign_json_markdown(FILE *to);
/* Says which variables among NAME=VALUE ... NULL belong to other engines. */
void cli_foreign_environment(struct cli *c, char *const *names);
void cli_foreign_markdown(FILE *to);

#endif
