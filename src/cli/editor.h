/*
 * editor - a line of the terminal, earlier ones, and Ctrl-C.
 */
#ifndef INGLE_CLI_EDITOR_H
#define INGLE_CLI_EDITOR_H

#include "cli/cli.h"

/* editor.c: a line of the terminal. */
#define CLI_PASTE_ON "\033[?2004h" /* from now on the terminal brackets what is pasted */
#define CLI_PASTE_OFF "\033[?2004l"
struct cli_editor;
/* NULL: there is none; lines are read as from a file. */
struct cli_editor *cli_editor_open(void);
void cli_editor_close(struct cli_editor *e);
/* Until it is closed the terminal keeps what is typed, whole and unseen, for the next line. */
enum cli_got {
    CLI_LINE,
    CLI_NO_LINE /* there is no more */,
    CLI_LINE_DROPPED /* by Ctrl-C; it was not empty */,
    CLI_LINE_BREAK /* Ctrl-C on an empty line */
};
/* Appends the next line without its end, in UTF-8. */
enum cli_got cli_editor_line(struct cli_editor *e, const char *prompt, struct str *out);
/* The arrow keys bring this text back. */
void cli_editor_remember(struct cli_editor *e, const char *text, size_t n);

/* Tab completes the text before the cursor: calls fn, which adds each word that may stand there,
 * whole, with cli_editor_offer(). */
typedef void cli_complete_fn(void *arg, struct cli_editor *e, const char *before);
void cli_editor_complete(struct cli_editor *e, cli_complete_fn *fn, void *arg);
/* n_same: bytes before the cursor that the word takes the place of; ends: a blank follows. */
void cli_editor_offer(struct cli_editor *e, const char *word, size_t n_same, bool ends);

/* history.c: lines of earlier chats, in $XDG_STATE_HOME/ingle/history or
 * ~/.local/state/ingle/history. */
struct cli_history;
/* Gives the editor what is there.  NULL: no memory.  What cannot be read or written is a note,
 * once. */
struct cli_history *cli_history_open(struct cli *c, struct cli_editor *e);
void cli_history_close(struct cli_history *h);
/* text [n], which ends in a 0, joins the file; not if it begins with a blank. */
void cli_history_add(struct cli_history *h, const char *text, size_t n);
/* False: it cannot be turned on. */
bool cli_history_switch(struct cli_history *h, bool on);

/* interrupt.c: Ctrl-C. */
/* From now on Ctrl-C cancels this engine (NULL: ends the program). */
void cli_interrupt_engine(struct ingle_engine *e);
/* How often since the last cli_interrupt_reset(). */
int cli_interrupts(void);
void cli_interrupt_reset(void);
/* A signal at a prompt: the first one explains, the second one leaves.  While a line is edited
 * Ctrl-C is a key, between two lines it is a signal: asked says that the first one was a key. */
void cli_interrupt_prompt(bool at_prompt, bool on_exit);
/* Keeps the terminal's settings, which come back when a signal ends the program. */
void cli_interrupt_terminal(void);
#define CLI_LEAVE_HINT "(press Ctrl-C again or Ctrl-D to quit)"

#endif
