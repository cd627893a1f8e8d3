/*
 * dflash - inside the room: what drafters have in common that fill a block of masked positions at
 * once (DFlash, DFlash2, DSpark for Gemma 4).
 *
 * Context: the streams that the target has after some of its layers, side by side, become one row
 * of the drafter's width by a projection and a norm; every layer keeps keys and values of that row,
 * by position.  A round runs a block, the anchor and masks after it, through the layers; their
 * keys and values stand after the context for the round alone.
 *
 * Blocks come in two kinds: that of Qwen 3, and that of Gemma 4 with norms after attention and
 * MLP.
 */
#ifndef INGLE_FAMILY_DFLASH_H
#define INGLE_FAMILY_DFLASH_H

#include "family/family.h"

enum { DFLASH_MAX_TAPS = 64, DFLASH_MAX_BLOCK = 64, DFLASH_MAX_LAYERS = 64 };

/* A convolution along the block before and after a part of a layer: taps are a learned base plus
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

/* What a row of the block sees of the block: all of it, or nothing after itself. */
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

static inline struct family_draft_info family_dflash_info(const struct dflash *g)
{
    return (struct family_draft_info){.most = g->block - g->first, .rows = g->block};
}

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
    struct rows y; /* [n_spans * its block][n_embd]: after the last norm */
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
