/*
 * talk - a model that answers.
 */
#ifndef INGLE_CLI_TALK_H
#define INGLE_CLI_TALK_H

#include "cli/cli.h"

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

#endif
