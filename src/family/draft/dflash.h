/*
 * dflash - inside the room: what drafters have in common that fill a block of masked positions at
 * once (DFlash, DFlash2, DSpark for Gemma 4).
 *
 * Context: the streams that the target has behind some of its layers, side by side, become one row
 * of the drafter's width by a projection and a norm; every layer keeps keys and values of that row,
 * by position.  A round runs a block, the anchor and masks behind it, through the layers; their
 * keys and values stand behind the context for the round alone.
 *
 * Blocks come in two kinds: that of Qwen 3, and that of Gemma 4 with norms behind attention and
 * MLP.
 */
#ifndef INGLE_FAMILY_DFLASH_H
#define INGLE_FAMILY_DFLASH_H

#include "family/family.h"

enum { DFLASH_MAX_TAPS = 64, DFLASH_MAX_BLOCK = 64, DFLASH_MAX_LAYERS = 64 };

/* A convolution along the block before and behind a part of a layer: taps are a learned base plus
 * what the row says. */
struct dflash_conv {
    const struct device_matrix *proj; /* [2 * kernel * groups][n_embd]; NULL: there is none */
    float *base;                      /* f32 [2][kernel][n_embd], owned */
};

struct dflash_layer {
    const struct device_vector *attn_norm, *q_norm, *k_norm, *ffn_norm;
    const struct device_vector *post_attn_norm, *post_ffn_norm; /* Gemma 4 */
    const struct device_matrix *q, *k, *v /* NULL: V is K */, *o, *gate, *up, *down;
    struct dflash_conv attn_conv, ffn_conv;
    bool sliding;
    float scale; /* of the whole stream, at the end */
};

/* What a row of the block sees of the block: all of it, or nothing behind itself. */
enum dflash_mask { DFLASH_WHOLE, DFLASH_CAUSAL };

/* The first member of every kind's own struct. */
struct dflash {
    struct family_draft_target target;
    struct device *target_device; /* of taps, which come without a step */
    struct family_ends ends;
    int64_t n_layers, n_embd, n_heads, n_kv_heads, head, n_ff, n_vocab, window;
    int64_t n_out;         /* logits of the head: n_vocab, or those tokens that `to` lists */
    int64_t block, trained; /* rows of a round; as trained */
    /* row of the block that drafts the first token: 1, or 0 where the anchor's does */
    int64_t first;
    int64_t context;       /* newest positions that a round sees; 0: all */
    int32_t mask;          /* the masks' token */
    bool gemma;            /* kind of block */
    enum dflash_mask sliding, full; /* of sliding and of full layers */
    bool no_window;        /* sliding layers see everything, too */
    bool block_seen;       /* a block longer than the window sees all of itself */
    enum device_glu act;
    float eps, scale, softcap, logit_scale, embed_scale;
    int64_t n_taps;
    int tap[DFLASH_MAX_TAPS];    /* layer whose end is tapped; -1: the embedding */
    float tap_scale[DFLASH_MAX_TAPS];
    int64_t n_pairs, half;       /* rotating pairs (i, i + half) of a head */
    double *inv_freq;            /* f64 [n_pairs], owned */
    int64_t conv_kernel, conv_group;
    const struct device_matrix *fc, *head_matrix;
    const struct device_vector *context_norm, *norm;
    struct dflash_layer *layer;  /* owned */
    /* token of each logit, [n_out], owned; NULL: they are the vocabulary */
    int32_t *to;
};

/* ---- dflash_load.c ---- */

/* A key of a drafter's file, under the first of these names that is there
 * ("block_size|dflash.block_size"). */
struct dflash_keys {
    const struct io_meta *meta;
    const char *path, *arch;
    bool checkpoint;  /* keys are made from config.json */
    ingle_status s;   /* the first error; later calls do nothing */
    struct err *err;
};
void family_dflash_keys(struct dflash_keys *k, const struct model *m, const struct io_meta *meta,
                        struct err *err);
const struct io_value *family_dflash_key(const struct dflash_keys *k, const char *names,
                                         char full[128]);
/* fallback < 0: the key must be there. */
int64_t family_dflash_whole(struct dflash_keys *k, const char *names, int64_t min, int64_t max,
                            int64_t fallback);
double family_dflash_number(struct dflash_keys *k, const char *names, double min, double max,
                            double fallback);
bool family_dflash_flag(struct dflash_keys *k, const char *names, bool fallback);

/* Whether it is a file of a drafter of these kinds, by its architecture. */
bool family_dflash_is_file(const struct io_meta *meta);
bool family_dflash_has_key(const struct model *m, const struct io_meta *meta, const char *names);

int64_t family_dflash_columns(const struct model *m, const char *name);

/* Checks the pairing and binds all but heads; what it owns ends with family_dflash_release(), also
 * after an error. */
MUST_CHECK ingle_status family_dflash_bind(struct dflash *g, struct dflash_keys *k,
                                           const struct family_draft_target *target,
                                           struct model *m, struct err *err);
/* The head: the target's, or `output.weight` of fewer tokens with the list of them. */
MUST_CHECK ingle_status family_dflash_bind_head(struct dflash *g, struct dflash_keys *k,
                                                struct model *m, struct err *err);
/* The end of a bind(): the status, with an error that names the file. */
MUST_CHECK ingle_status family_dflash_told(struct dflash_keys *k);
void family_dflash_release(struct dflash *g);
MUST_CHECK ingle_status family_dflash_set(struct dflash *g, const struct family_draft_options *o,
                                          struct err *err);
/* "causal", "window", "bidir", ... ; false: none of them. */
bool family_dflash_rule(struct dflash *g, const char *name);

static inline struct family_draft_info family_dflash_info(const struct dflash *g)
{
    return (struct family_draft_info){.most = g->block - g->first, .rows = g->block};
}

/* ---- dflash_hf.c ---- */

bool family_dflash_is_named(struct json_object *config, const char *architecture);
ingle_status family_dflash_config(struct json_object *config, struct io_meta *out,
                                  const struct report_sink *sink, struct err *err);
bool family_dflash_rename(const char *name, char *out, size_t n_out);
bool family_dflash_alias(const char *name, char *out, size_t n_out);
/* Of a GGUF file: its tensors' names in a checkpoint, and the config.json. */
bool family_dflash_hf_name(const struct io_file *file, const char *name, char *out, size_t n_out);
ingle_status family_dflash_to_config(const struct io_file *file, struct json_object *out,
                                     struct err *err);
/* Members of o: its taps, layers behind which the network reads (*last: as many layers as it
 * needs), and the token of rows to fill. */
struct family_back;
void family_dflash_back_taps(struct family_back *b, struct json_object *o, const char *key,
                             uint64_t *last);
void family_dflash_back_mask(struct family_back *b, struct json_object *o, const char *key);
/* Whether a file's tensor is one of these networks'. */
bool family_dflash_is_tensor(const char *name, bool checkpoint);

/* ---- dflash_net.c: members of struct family_draft; self begins with a struct dflash ---- */

ingle_status family_dflash_kv(const void *self, const struct kv_types *types, struct kv_spec *out,
                              struct err *err);
void *family_dflash_observe_begin(const void *self, const struct family_forward *f);
bool family_dflash_observe_wants(const void *self, enum family_tap tap, int layer);
void family_dflash_observe_tap(const void *self, void *state, enum family_tap tap, int layer,
                               struct rows x);
void family_dflash_observe_end(const void *self, const struct family_forward *f, void *state);
struct rows family_dflash_observed(const void *self, const void *state, int64_t n_rows);

/* What a round has computed. */
struct dflash_round {
    struct rows y;      /* [n_spans * its block][n_embd]: behind the last norm */
    /* of some drafts of all spans, draft by draft: the head's input and output */
    struct rows x, logits;
    int64_t first, n;   /* these drafts */
    int64_t n_spans;    /* spans of each of them */
    int64_t most;       /* drafts, at most */
    int64_t block;      /* rows of each span that were run */
};
void family_dflash_block(const struct dflash *g, struct family_round *r, struct dflash_round *d);
/* What it leaves in a dry run, whose later parts count what they would take, too. */
void family_dflash_dry(const struct dflash *g, const struct family_round *r,
                       struct dflash_round *d);
/* The rows of y that draft the j-th token of the first n spans. */
struct rows family_dflash_hidden(const struct dflash *g, const struct dflash_round *d, int64_t j,
                                 int64_t n);
/* Their logits [n][n_out], scaled and capped. */
struct rows family_dflash_logits(const struct dflash *g, const struct family_round *r,
                                 struct dflash_round *d, int64_t j, int64_t n);
/* A head's logits as those of all tokens: one that a reduced head lacks has FAMILY_NEVER. */
void family_dflash_put(const struct dflash *g, struct family_round *r, struct rows z,
                       struct rows logits);

#endif
