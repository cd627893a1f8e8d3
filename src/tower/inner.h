/* inner - inside the room: what a tower is made of. */
#ifndef INGLE_TOWER_INNER_H
#define INGLE_TOWER_INNER_H

#include "tower/tower.h"

#include "base/json.h"
#include "model/model.h"

enum {
    TOWER_MAX_LAYERS = 256,
    TOWER_MAX_HEADS = 256,
    TOWER_MAX_WIDTH = 1 << 16,
    TOWER_MOST_TOKENS = 1120, /* of a picture, unless the options say more */
    TOWER_TILE = 512,         /* rows that are computed together */
    TOWER_FRAME = 640,        /* samples of a soft token without an encoder */
    TOWER_MELS = 128,         /* bands of the spectrum that the conformer reads */
    TOWER_NAME = 128,
};

/* y = clamp(W clamp(x)): E2B and E4B have bounds. */
struct linear {
    const struct device_matrix *w;
    bool clamps;
    float in[2], out[2]; /* least, most */
};

/* Rows [2][n][d]: what is added to a patch for its place across, and down.  Read from the file. */
struct places {
    const struct io_tensor *t;
    int64_t n, d;
    bool by_place; /* rows are [n][2][d], as checkpoints without an encoder have it */
};

struct vision_layer {
    struct linear q, k, v, o;                                     /* [d][d] */
    struct linear gate, up;                                       /* [n_ff][d] */
    struct linear down;                                           /* [d][n_ff] */
    const struct device_vector *ln1, *attn_post, *ln2, *ffn_post; /* [d] */
    const struct device_vector *q_norm, *k_norm;                  /* [d / n_heads] */
};

struct vision {
    int64_t n_layers, d, n_ff, n_heads, patch, pool;
    bool channel_first; /* elements of a patch are (c, y, x), as in GGUF, else (y, x, c) */
    const struct device_matrix *embed;   /* [d][3 * patch * patch] */
    const struct device_matrix *project; /* [width of the model][d] */
    float *std_bias, *std_scale;         /* f32 [d], or NULL */
    struct places places;
    float *inv_freq; /* f32 [d / n_heads / 4]: of both halves of a head */
    struct vision_layer *layer;
};

/* Pictures without an encoder. */
struct patches {
    int64_t d, side;
    bool channel_first;
    const struct device_vector *ln1, *ln1_bias, *ln2, *ln2_bias, *norm, *norm_bias;
    float *bias; /* f32 [d] */
    const struct device_matrix *embed, *project;
    struct places places;
};

struct conformer_layer {
    /* up: [n_ff][d], down: [d][n_ff], norm and post: [d] */
    struct { struct linear up, down; const struct device_vector *norm, *post; } ff[2];
    const struct device_vector *attn_pre, *attn_post; /* [d] */
    struct linear q, k, v, o;                         /* [d][d] */
    const struct device_matrix *k_rel;                /* [d][d]: keys of distances */
    float *q_scale;                                   /* f32 [d]: of each dimension of a query */
    const struct device_vector *conv_pre, *conv_norm, *out_norm; /* [d] */
    struct linear pw1;                                           /* [2 * d][d] */
    struct linear pw2;                                           /* [d][d] */
    float *dw;                                                   /* f32 [d][5] */
};

struct conformer {
    int64_t n_layers, d, n_ff, n_heads, channels[2], d_out;
    const struct device_matrix *conv[2]; /* [channels][channels before * 9] */
    const struct device_vector *conv_norm[2]; /* [channels] */
    const struct device_matrix *input;        /* [d][TOWER_MELS / 4 * channels[1]] */
    const struct device_matrix *output;       /* [d_out][d] */
    const struct device_matrix *project;      /* [width of the model][d_out] */
    float *output_bias; /* f32 [d_out] */
    struct conformer_layer *layer;
};

/* Sound without an encoder. */
struct frames {
    const struct device_matrix *project; /* [width of the model][TOWER_FRAME] */
};

enum tower_vision { VISION_NONE, VISION_ENCODER, VISION_PATCHES };
enum tower_audio { AUDIO_NONE, AUDIO_CONFORMER, AUDIO_FRAMES };
/* What a checkpoint's config.json says of tensors; SAYS_NOTHING: the tensors decide. */
enum tower_says { SAYS_NOTHING, SAYS_NO, SAYS_YES };

struct tower {
    struct device *d;
    struct io_file *file;
    bool owns_file;
    struct io_meta *config;     /* of a checkpoint, as keys of an mmproj file; NULL: the file's */
    const struct io_meta *meta;
    enum tower_says standard, clamps;
    struct model *model;
    const struct report_sink *sink;
    int64_t width, budget, most_tokens, tile;
    enum tower_vision vision_kind;
    enum tower_audio audio_kind;
    struct vision vision;
    struct patches patches;
    struct conformer conformer;
    struct frames frames;
    uint64_t table_bytes;
    size_t scratch_bytes;
    uint8_t digest[TOWER_DIGEST];
    tower_tap_fn *tap;
    void *tap_arg;
};

#endif
