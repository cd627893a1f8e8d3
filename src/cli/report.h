/* report - of `ingle eval`: how far a model is from a reference, by layer and by token. */
#ifndef INGLE_CLI_REPORT_H
#define INGLE_CLI_REPORT_H

#include "cli/cli.h"
#include "tool/tool.h"

struct cli_report_token {
    /* nats: KL to the reference; -log p of the text's next token, here and there */
    float kl, surprise, reference;
    int32_t top, reference_top;
};

struct cli_report_layer {
    struct tool_matrix *matrix; /* of the reference, or NULL: it has none */
    double square, total;       /* of differences, and of the reference */
};

struct cli_report {
    const struct ingle_model *model;
    struct ingle_engine_info info;
    const char *against; /* path, or NULL: there is no reference */
    const int32_t *ids;
    int64_t n;
    struct tool_matrix *logits;
    float *row;                /* of the reference */
    int64_t row_cap;
    struct tool_difference difference;
    struct cli_report_token *token;  /* [n]; surprise of the last one is 0 */
    struct cli_report_layer *layer;  /* [info.n_layers + 2]: embed, layers, norm */
    bool has_layers;
    ingle_status status; /* of a tap that failed */
    struct err err;
    /* drafts, made for the page */
    int64_t n_drafts, n_positions;
    int64_t *accepted;         /* [n_positions]: drafts whose tokens so far are those of the text */
};

/* against: NULL, or a file of `ingle eval --logits` or `--taps`.  Ended by cli_report_release()
 * also after a failure. */
MUST_CHECK ingle_status cli_report_init(struct cli_report *r, const struct ingle_model *m,
                                        const struct ingle_engine *e, const char *against,
                                        const int32_t *ids, int64_t n, struct err *err);
void cli_report_release(struct cli_report *r);
/* A tap's rows, which begin at token `at`; part: 0 the embedding, 1 + layer, or the last one. */
void cli_report_hidden(struct cli_report *r, int64_t part, int64_t at, const float *x, int64_t n,
                       int64_t width, int64_t stride);
MUST_CHECK ingle_status cli_report_row(struct cli_report *r, int64_t at, const float *row,
                                       struct err *err);
double cli_report_layer_rms(const struct cli_report *r, int64_t part); /* negative: there is none */
const char *cli_report_part(const struct cli_report *r, int64_t part, char name[24]);
/* The n tokens that are farthest from the reference, the farthest first (without one: those of most
 * surprise). */
size_t cli_report_worst(const struct cli_report *r, int64_t *at, size_t n);
/* Members of a JSON object, after another one. */
void cli_report_json(struct str *out, const struct cli_report *r);
void cli_report_text(const struct cli_report *r);

/* report_html.c: one file with plots; drafts are made at some places first if a network drafts. */
int cli_report_html(struct cli *c, struct cli_report *r, struct ingle_engine *e,
                    struct ingle_session *s, const char *path);

#endif
