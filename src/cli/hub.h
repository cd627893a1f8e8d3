/*
 * hub - models on a hub, their plans, and files beside them.
 */
#ifndef INGLE_CLI_HUB_H
#define INGLE_CLI_HUB_H

#include "cli/cli.h"

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

/* cmd_cache.c */
/* Unless the options say where files of packed weights are: in the user's cache. */
MUST_CHECK ingle_status cli_pack_default(struct cli *c, struct ingle_error *error);
/* Prints how the weights came into memory, unless that is usual. */
void cli_pack_say(struct cli *c, const struct ingle_engine *e);

#endif
