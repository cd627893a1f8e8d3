/*
 * input - text and JSON, in and out.
 */
#ifndef INGLE_CLI_INPUT_H
#define INGLE_CLI_INPUT_H

#include "base/plain.h"
#include "cli/cli.h"

/* input.c: text comes in as base/plain.h says. */
/* The whole of a file ("-": standard input) with a 0 after it; ended with mem_free(). */
MUST_CHECK ingle_status cli_slurp(const char *path, char **out, size_t *n, struct err *err);
/* The input of a command: -f FILE, else its arguments joined by a space, else standard
 * input. */
MUST_CHECK ingle_status cli_input(struct cli *c, char **out, size_t *n, struct err *err);
/* Text line by line. */
struct cli_reader {
    FILE *f;
    struct plain plain;
    uint64_t line; /* number of the last one, from 1 */
    bool ended;
};
void cli_reader_init(struct cli_reader *r, FILE *f, const char *name, bool lax);
/* The next line without its end, LF or (unless lax) CR LF; of one that is longer than most its
 * beginning and a byte more.  1, 0: there is none, -1: an error. */
int cli_reader_line(struct cli_reader *r, size_t most, struct str *out, struct err *err);
/* A file, or the text itself, as llama.cpp has it: no file has this name, and its first letter is
 * `mark`, or, of several letters, the mark stands in it. */
MUST_CHECK ingle_status cli_slurp_or_text(const char *value, const char *mark, char **out,
                                          size_t *n, struct err *err);
/* The same for a JSON array, which is checked. */
MUST_CHECK ingle_status cli_slurp_json(const char *path, char **out, size_t *n, struct err *err);
/* An error of ingle_chat_render() begins with what it is about: puts the file in front that it came
 * from.  NULL: none. */
void cli_name_files(struct ingle_error *error, const char *messages, const char *tools);
/* Calls fn for every line of the input (-f FILE, else the first argument as a file, else standard
 * input), of at most `most` bytes (0: 1 GiB), as cli_reader_line(); stops at the first nonzero
 * result and returns it. */
enum cli_lines_kind {
    CLI_TEXT, /* what is no text is an error */
    CLI_JSON  /* fn looks at the bytes: a line that is wrong is no end */
};
typedef int cli_line_fn(struct cli *c, void *arg, char *line, size_t n);
int cli_lines(struct cli *c, enum cli_lines_kind kind, size_t most, cli_line_fn *fn, void *arg);
/* Token ids of m from a file, "-": standard input.  *ids [*n] is ended with mem_free(). */
MUST_CHECK ingle_status cli_ids(const struct ingle_model *m, const char *path, int32_t **ids,
                                size_t *n, struct err *err);
/* n without the line end that ends a text file: it is no part of the text. */
size_t cli_without_end(const char *text, size_t n);
MUST_CHECK ingle_status cli_open_model(struct cli *c, struct ingle_model **out,
                                       struct ingle_error *error);
/* --developer-role */
bool cli_developer_own(const struct cli *c);
void cli_print_json(const char *bytes, size_t n); /* a string with its quotes */
/* JSON for standard output (base/write.h), with blanks after commas and colons. */
void cli_json(struct str *s);
/* Begins a line of a list: a comma and a line end stand before what follows. */
void cli_json_line(struct str *s, bool first);
/* Prints what s has, with `end` after it; s is empty again. */
void cli_json_print(struct str *s, const char *end);
/* The same, and s is released. */
void cli_json_end(struct str *s, const char *end);

#endif
