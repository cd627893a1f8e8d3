/*
 * wrap - what a model writes on a terminal, where words are not cut at the edge.
 */
#ifndef INGLE_CLI_WRAP_H
#define INGLE_CLI_WRAP_H

#include "cli/cli.h"

/* Elsewhere than on a terminal: cli_put_text(). */
struct cli_wrap {
    FILE *to;
    bool terminal;
    int width, column;  /* of the terminal (0: it does not say), and where the cursor is */
    int word_width;     /* columns of the word at the cursor */
    size_t n_word;      /* its bytes */
    uint32_t last;      /* character of that word; 0: none */
    bool stuck;         /* the word stays where it is: longer than a line, or code */
    bool blank_waits;   /* the line is full, and a blank came */
    /* fence_only: nothing but a fence in this line */
    bool in_code, line_began, fence_ended, fence_only;
    int fence, line_fence; /* marks of the fence that began the code, and of the one in this line */
    char fence_char, line_char, word[256];
};
void cli_wrap_init(struct cli_wrap *w, FILE *to);
void cli_wrap_new(struct cli_wrap *w); /* another text begins, in the first column */
void cli_wrap_put(struct cli_wrap *w, const char *text, size_t n);

#endif
