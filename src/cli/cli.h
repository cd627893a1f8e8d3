/*
 * cli - the `ingle` command: one file per command, everything through ingle.h.
 *
 * Exit codes: 0 done, 1 failure, 2 wrong usage, 74 a file vanished under us, 130 interrupted.
 * Results go to standard output; progress, reports, statistics and errors to standard error, an
 * error on one line that begins "ingle: error: ".
 */
#ifndef INGLE_CLI_CLI_H
#define INGLE_CLI_CLI_H

#include "base/err.h"
#include "base/str.h"
#include "cli/launch.h"
#include "ingle/ingle.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CLI_OK = 0, CLI_FAILURE = 1, CLI_USAGE = 2, CLI_IO = 74, CLI_INTERRUPTED = 130 };

/* What standard error shows: reports and the progress of long jobs. */
struct cli_screen {
    /* what follows `progress`, and standard error: reports come from any thread */
    pthread_mutex_t lock;
    bool terminal, colour;
    ingle_report_level level; /* up to this one */
    bool progress;
    char job[24];     /* that runs, or "" */
    uint64_t began;   /* its start, ns */
    double first;     /* what was done by then */
    uint64_t drawn;   /* last time something was drawn, ns */
    int tenth;        /* last tenth printed as a line */
    bool line_open;   /* a bar stands on the screen */
};

struct output_guard;

struct cli {
    const char *command;
    const char *program; /* as it was called, for commands to copy: "ingle", or a path */
    struct cli_launch launch;
    struct ingle_config *config;
    char **arg; /* what is no option: [n_arg], borrowed from argv */
    int n_arg;
    bool help_all;
    /* [n_typed], options that were given under another name; more than these count under ours */
    struct {
        const char *ours;
        char spelt[40];
    } typed[16];
    size_t n_typed;
    struct cli_notes notes; /* options of other engines that have no effect */
    char *plan_folder; /* of a model of which only the headers were fetched, or NULL */
    struct cli_screen screen;
    struct output_guard *guard; /* what the call reads and writes */
    int write_error; /* errno of the first write to standard output that failed; 0: none */
};

typedef int cli_command_fn(struct cli *c);

struct cli_command {
    const char *name, *arguments, *help, *more;
    cli_command_fn *run;
};
enum { CLI_COMMANDS = 32 }; /* at most */
const struct cli_command *cli_commands(size_t *n);
const struct cli_command *cli_command_find(const char *name);

/* completion.c: scripts for shells. */
void cli_completion_bash(FILE *to);
void cli_completion_zsh(FILE *to);
void cli_completion_fish(FILE *to);

/* files.c */
/* Fills c->guard; an error if an output is a file that the call reads, or a file of another kind
 * stands there. */
MUST_CHECK ingle_status cli_files(struct cli *c, struct err *err);

/* bus.c */
/* A mapped file that is cut while it is used ends the program with a word that names it. */
void cli_watch_files(void);

/* screen.c */
void cli_screen_init(struct cli_screen *s, const struct ingle_config *config);
struct ingle_callbacks cli_callbacks(struct cli *c);
void cli_screen_clear(struct cli_screen *s); /* takes a bar off the screen */
/* A line of standard error: all of it is shown as one line shows text from outside (base/utf8.h,
 * UTF8_LINE), a line end added. */
ATTR_PRINTF(1, 2) void cli_line(const char *fmt, ...);
/* A text from outside in a table or a line of our own: the same, in the n bytes of out. */
const char *cli_shown(char *out, size_t n, const char *text);
#define CLI_SHOWN(text) cli_shown((char[512]){0}, 512, text) /* lives as long as the block */
/* What a model wrote: byte by byte, but a terminal gets no control characters (UTF8_TEXT). */
void cli_put_text(FILE *to, const char *text, size_t n);
/* At a terminal: "reading 9,003 tokens ...", until the bar of the job "prompt" takes its place. */
void cli_screen_reading(struct cli_screen *s, int64_t n);
void cli_thousands(int64_t n, char *out, size_t cap); /* 9,003 */
/* Prints "ingle: error: ..." and returns CLI_FAILURE, or CLI_INTERRUPTED for a cancel. */
int cli_fail(struct cli *c, const struct ingle_error *error);
int cli_fail_err(struct cli *c, const struct err *err);
ATTR_PRINTF(2, 3) int cli_usage(struct cli *c, const char *fmt, ...);
/* Flushes standard output; what goes wrong is kept for cli_flush(). */
void cli_push(struct cli *c);
/* Flushes standard output; CLI_FAILURE (with an error, unless the reader has closed the pipe) if
 * something could not be written. */
int cli_flush(struct cli *c);

/* experts.c */
/* Adds how often each expert was chosen to the file at path ("-": prints it to standard
 * error); CLI_OK, or the exit code after saying why. */
int cli_experts_keep(struct cli *c, const struct ingle_model *m, const struct ingle_engine *e,
                     const char *path);
/* Whether it could: before anything is computed. */
MUST_CHECK ingle_status cli_experts_check(const struct ingle_model *m, const struct ingle_engine *e,
                                          const char *path, struct err *err);
/* Prints what such a file says; model: NULL, or a model that it must fit. */
int cli_experts_show(struct cli *c, const char *path, const char *model, bool json);

/* stream.c */
/* Answers the lines of standard input with token ids to the descriptor; the exit code. */
int cli_stream(struct cli *c, int fd);

/* The commands. */
cli_command_fn cli_tokenize, cli_render, cli_parse, cli_inspect, cli_run, cli_chat, cli_eval,
    cli_bench, cli_cache, cli_doctor, cli_models, cli_compare, cli_serve, cli_daemon, cli_quantize,
    cli_convert, cli_check, cli_imatrix, cli_pull, cli_worker;
/* cmd_check.c: a pool of --threads; CLI_OK, or the exit code after saying why. */
struct pool;
int cli_pool(struct cli *c, struct pool **out);

#endif
