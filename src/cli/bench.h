/*
 * bench - measurements of bench and eval, a file each.
 */
#ifndef INGLE_CLI_BENCH_H
#define INGLE_CLI_BENCH_H

#include "cli/talk.h"

/* eval_draft.c */
/* Drafts after the places of --draft-at in ids [n], prints them and writes --draft-out; the exit
 * code. */
int cli_eval_draft(struct cli *c, struct ingle_engine *e, struct ingle_session *s,
                   const int32_t *ids, int64_t n);

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
int cli_sparse_compare(struct cli *c, const char *how, const char *against);

#endif
