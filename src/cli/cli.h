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
#include "base/plain.h"
#include "base/str.h"
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

/* foreign.c, foreign_take.c, foreign_json.c: names that other engines have for options. */
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

/* launch.c: one model over several processes, as others say it. */
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
};

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

/* By the n bytes of a name without "--", or of a short one without "-": of several the first, or if
 * that is an option that the command has not, the first that it has; NULL: nobody has it. */
const struct cli_foreign *cli_foreign_name(const char *command, const char *name, size_t n);
const struct cli_foreign *cli_foreign_letters(const char *command, const char *letters, size_t n);
/* Keeps an option of a launcher. */
void cli_launch_take(struct cli *c, const struct cli_foreign *f, const char *spelt,
                     const char *value, const char *second);
/* Whether its value has two words, "HOST PORT", of which next is the second one. */
bool cli_launch_has_two(const struct cli_foreign *f, const char *next);
/* When all options are read. */
MUST_CHECK ingle_status cli_launch_check(struct cli *c, struct err *err);
/* When the model is there: sets what a stage needs.  *command: NULL, or what is run instead. */
MUST_CHECK ingle_status cli_launch(struct cli *c, const char **command, struct err *err);
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
/* wrap.c: what a model writes on a terminal, where words are not cut at the edge.  Elsewhere as
 * cli_put_text(). */
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
/* At a terminal: "reading 9,003 tokens ...", until the bar of the job "prompt" takes its place. */
void cli_screen_reading(struct cli_screen *s, int64_t n);
void cli_thousands(int64_t n, char *out, size_t cap); /* 9,003 */
/* Prints "ingle: error: ..." and returns CLI_FAILURE, or CLI_INTERRUPTED for a cancel. */
int cli_fail(struct cli *c, const struct ingle_error *error);
int cli_fail_err(struct cli *c, const struct err *err);
ATTR_PRINTF(2, 3) int cli_usage(struct cli *c, const char *fmt, ...);
/* Flushes standard output; what goes wrong is kept for cli_flush(). */
void cli_push(struct cli *c);
/* Flushes standard output; CLI_FAILURE (with an error, unless the reader has gone) if
 * something could not be written. */
int cli_flush(struct cli *c);

/* input.c: text comes in as base/plain.h says. */
/* The whole of a file ("-": standard input) with a 0 behind it; ended with mem_free(). */
MUST_CHECK ingle_status cli_slurp(const char *path, char **out, size_t *n, struct err *err);
/* The input of a command: -f FILE, else its arguments joined by a space, else standard
 * input. */
MUST_CHECK ingle_status cli_input(struct cli *c, char **out, size_t *n, struct err *err);
/* Text line by line. */
struct cli_reader {
    FILE *f;
    struct plain plain;
    uint64_t line; /* number of the last one, from 1 */
    bool over;
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
/* Prints what s has, with `end` behind it; s is empty again. */
void cli_json_print(struct str *s, const char *end);
/* The same, and s is released. */
void cli_json_end(struct str *s, const char *end);

/* talk.c: a model that answers. */
/* A picture or sound of a conversation. */
struct json_object;
struct cli_medium {
    char *path;
    struct ingle_medium *medium;
    bool is_sound;
};
enum { CLI_MOST_MEDIA = 64 }; /* in one prompt */

struct cli_talk {
    struct cli *c;
    struct ingle_model *model;
    struct ingle_engine *engine;
    struct ingle_scheduler *scheduler; /* from the first answer on */
    struct ingle_grammar *grammar; /* NULL: answers are free */
    /* [n_system], what the system message says; NULL: there is none */
    char *system;
    size_t n_system;
    struct ingle_sampling sampling;
    int64_t predict; /* tokens at most; -1: no limit */
    bool ignore_end; /* end-of-generation tokens are ordinary ones; not where a grammar ends */
    struct cli_medium *medium; /* [n_media] that were opened */
    size_t n_media, cap_media;
};

/* cli/media.c.  Opens a file, unless it is open; *out is valid until the next one. */
ingle_status cli_media_add(struct cli_talk *t, const char *path, enum ingle_media_kind kind,
                           const struct cli_medium **out, struct ingle_error *error);
/* Opens those of --image and --audio and appends their parts. */
int cli_media_options(struct cli *c, struct cli_talk *t, struct str *parts);
/* The same without parts: in the order of the options, without references. */
int cli_media_list(struct cli *c, struct cli_talk *t, struct ingle_medium *out[CLI_MOST_MEDIA],
                   size_t *n);
/* Appends its part of a message, with a comma. */
void cli_media_put(struct str *s, const struct cli_medium *m);
/* Those of messages, in order; opens what is not open: files of "path", "data:" URLs. */
ingle_status cli_media_of(struct cli_talk *t, struct json_object *messages,
                          struct ingle_medium *out[CLI_MOST_MEDIA], size_t *n,
                          struct ingle_error *error);
void cli_media_close(struct cli_talk *t);

struct cli_answer {
    int64_t computed_tokens; /* of the prompt's, those that were not left out */
    /* of those, what was not there before and was read until the end or an interruption */
    int64_t read_tokens;
    int64_t prompt_tokens, reused_tokens, disk_tokens, tokens, drafts, drafted_tokens,
        accepted_tokens;
    int64_t media_tokens, n_media, n_encoded; /* of pictures and sounds */
    double encode_s;
    struct ingle_sparse sparse;
    struct ingle_select select;
    struct ingle_page_use pages;
    double prompt_s, answer_s, draft_saved_s, shorten_s;
    char draft_why[96]; /* why most steps had no drafts, or "" */
    struct ingle_expert_use experts;
    const char *end; /* "stop", "length", "interrupted" */
    char *message;   /* JSON; ended with ingle_free() */
    size_t n_message;
};

/* Opens model and engine as the options say; CLI_OK, or the exit code after saying
 * why.  Ctrl-C cancels what the engine does from then on. */
int cli_talk_open(struct cli *c, struct cli_talk *t);
void cli_talk_close(struct cli_talk *t);
/* Answers a prompt; events go to fn.  Being interrupted is an end, not an error. */
MUST_CHECK ingle_status cli_talk_answer(struct cli_talk *t, const struct ingle_prompt *p,
                                        const struct ingle_reader_options *o, ingle_event_fn *fn,
                                        void *arg, struct cli_answer *out,
                                        struct ingle_error *error);
double cli_answer_mean(const struct cli_answer *a); /* tokens of a step that verified a draft */
void cli_answer_release(struct cli_answer *a);
/* Writes a member "sparse" of an object (base/write.h), if there were sparse prompts. */
void cli_add_sparse(struct str *to, const struct ingle_sparse *s);
/* The same, "kv_select", if rows of answers chose pages. */
void cli_select_print(FILE *to, const struct ingle_select *s);
void cli_add_select(struct str *to, const struct ingle_select *s);
/* The same, "kv_disk", if keys and values were read from disk. */
void cli_add_pages(struct str *to, const struct ingle_page_use *p);
/* "prompt: 17 tokens, 340 t/s (0 from the cache); answer: ..." */
void cli_answer_print(FILE *to, const struct cli_answer *a);
/* Opens an engine as the options say. */
MUST_CHECK ingle_status cli_open_engine(struct cli *c, struct ingle_model *m, int64_t max_logits,
                                        struct ingle_engine **out, struct ingle_error *error);

/* eval_draft.c */
/* Drafts behind the places of --draft-at in ids [n], prints them and writes --draft-out; the exit
 * code. */
int cli_eval_draft(struct cli *c, struct ingle_engine *e, struct ingle_session *s,
                   const int32_t *ids, int64_t n);

/* cmd_models.c */
struct pool;
enum { CLI_ROUNDS = 5 };
struct cli_rate {
    double bytes_per_s, round[CLI_ROUNDS]; /* the best; each */
    bool measured, busy[CLI_ROUNDS];       /* busy: other programs used the processors meanwhile */
    int n_busy;
};
/* What the threads of pool read from memory, in a second or two. */
MUST_CHECK ingle_status cli_memory_rate(struct pool *pool, int n_processors, struct cli_rate *out,
                                        struct err *err);
/* The plans of an engine and its stages; of one, an object of JSON that is not closed. */
void cli_print_parts(const struct ingle_stage_part *part, int n);
void cli_write_part(struct str *out, const struct ingle_stage_part *p);
void cli_memory_rate_print(const struct cli_rate *r);
/* A line for each published model with its best code: tokens a second with so many bytes of free
 * memory, read at `rate`. */
void cli_models_short(uint64_t memory, double rate);

/* cmd_inspect.c */
void cli_print_plan(const struct ingle_plan *p, bool json);

/* cmd_pull.c */
/* -m, --draft and --prompt-drafter hf:OWNER/NAME:CODE become paths of files, which are fetched if
 * they are not there. */
MUST_CHECK ingle_status cli_hub_model(struct cli *c, const struct ingle_callbacks *callbacks,
                                      struct err *err);
/* Removes what a plan fetched. */
void cli_hub_drop(struct cli *c);
/* Rates of a disk that holds no weights mean nothing. */
void cli_hub_plan(const struct cli *c, struct ingle_plan *plan);
bool cli_hub_any(const struct cli *c);        /* whether one of them is of a hub */
/* "hf:...", or the address of a page of the usual hub; NULL: no */
bool cli_hub_names(const char *value);
/* Whether an argument that is no option would be a model, and no -m has said which: a name on a
 * hub, a GGUF file, or a checkpoint. */
bool cli_names_model(const struct cli *c, const char *value);

/* eval_official.c */
/* --official FILE: a line each prompt; the exit code, 3 where a best token is another one. */
int cli_eval_official(struct cli *c, struct ingle_model *m, struct ingle_engine *e,
                      struct ingle_session *s, const char *path);

/* bench_fast.c */
enum { CLI_FAST_STEP = 16 }; /* rows of logits that the engine must give at a time */
/* Prints how far the logits of *engine (closed and set to NULL) are from exact ones, over the
 * last tokens of ids [n]; CLI_OK, or the exit code after saying why. */
int cli_bench_fast(struct cli *c, struct ingle_model *m, struct ingle_engine **engine,
                   const struct ingle_engine_options *o, const int32_t *ids, int64_t n, bool json);

/* bench_draft.c */
/* Answers with and without drafts in turn: how often drafts are right, what they cost and bring;
 * the exit code. */
int cli_bench_draft(struct cli *c);

/* depths.c: lengths of the prompts that are measured, and their tokens. */
enum { CLI_MOST_DEPTHS = 16 };
struct cli_depths {
    int64_t depth[CLI_MOST_DEPTHS], n; /* ascending */
    /* where nobody says: first, twice that, ... below it, and all of the text, or `usual` tokens;
     * set before */
    int64_t first, usual;
    int32_t *ids;                      /* of the longest; owned by whoever has this */
    const char *file;                  /* NULL: the tokens are made up */
};
/* --depth. */
int cli_depths_parse(struct cli *c, struct cli_depths *d);
/* --text, or tokens without a meaning. */
int cli_depths_tokens(struct cli *c, struct ingle_model *model, struct cli_depths *d);
int64_t cli_depths_most(const struct cli_depths *d);
const char *cli_depths_name(const struct cli_depths *d);

/* bench_threads.c: --scaling. */
int cli_bench_threads(struct cli *c);

/* bench_shorten.c: prompts that --prompt-drafter shortens beside whole ones, by --depth. */
int cli_bench_shorten(struct cli *c);
/* bench_media.c: the encoders, for --image and --audio. */
int cli_bench_media(struct cli *c);

/* sparse.c: prompts computed in the way `how` beside the way `against`, by --depth. */
int cli_sparse_beside(struct cli *c, const char *how, const char *against);

/* cmd_cache.c */
/* Unless the options say where files of packed weights are: in the user's cache. */
MUST_CHECK ingle_status cli_pack_default(struct cli *c, struct ingle_error *error);
/* Tells how the weights came into memory, where that is news. */
void cli_pack_say(struct cli *c, const struct ingle_engine *e);

/* experts.c */
/* Adds how often each expert was chosen to the file at path ("-": prints it to standard
 * error); CLI_OK, or the exit code after saying why. */
int cli_experts_keep(struct cli *c, const struct ingle_model *m, const struct ingle_engine *e,
                     const char *path);
/* Whether it could: before anything is computed. */
MUST_CHECK ingle_status cli_experts_check(const struct ingle_model *m, const struct ingle_engine *e,
                                          const char *path, struct err *err);
/* Prints what such a file tells; model: NULL, or a model that it must fit. */
int cli_experts_show(struct cli *c, const char *path, const char *model, bool json);

/* cmd_quantize.c */
enum { CLI_MAX_RULES = 64 };
struct tool_rule;
struct tool_quantize_options;
/* --tensor PATTERN=CODE into rule [CLI_MAX_RULES]; CLI_OK, or the exit code after saying why. */
int cli_rules(struct cli *c, struct tool_rule *rule, size_t *n);
/* tool_quantize() with its summary printed; the exit code. */
int cli_write_codes(struct cli *c, const char *in, const char *out,
                    const struct tool_quantize_options *o);

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

/* stream.c */
/* Answers the lines of standard input with token ids to the descriptor; the exit code. */
int cli_stream(struct cli *c, int fd);

/* interrupt.c: Ctrl-C. */
/* From now on Ctrl-C cancels this engine (NULL: ends the program). */
void cli_interrupt_engine(struct ingle_engine *e);
/* How often since the last cli_interrupt_reset(). */
int cli_interrupts(void);
void cli_interrupt_reset(void);
/* A signal at a prompt: the first one explains, the second one leaves.  While a line is edited
 * Ctrl-C is a key, between two lines it is a signal: asked says that the first one was a key. */
void cli_interrupt_prompt(bool at_prompt, bool asked);
/* Keeps the terminal's settings, which come back when a signal ends the program. */
void cli_interrupt_terminal(void);
#define CLI_LEAVE_HINT "(press Ctrl-C again or Ctrl-D to quit)"

/* The commands. */
cli_command_fn cli_tokenize, cli_render, cli_parse, cli_inspect, cli_run, cli_chat, cli_eval,
    cli_bench, cli_cache, cli_doctor, cli_models, cli_compare, cli_serve, cli_daemon, cli_quantize,
    cli_convert, cli_check, cli_imatrix, cli_pull, cli_worker;
/* cmd_check.c: a pool of --threads; CLI_OK, or the exit code after saying why. */
struct pool;
int cli_pool(struct cli *c, struct pool **out);

#endif
