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
    struct linear q, k, v, o, gate, up, down;
    const struct device_vector *ln1, *q_norm, *k_norm, *attn_post, *ln2, *ffn_post;
};

struct vision {
    int64_t n_layers, d, n_ff, n_heads, patch, pool;
    bool channel_first; /* elements of a patch are (c, y, x), as in GGUF, else (y, x, c) */
    const struct device_matrix *embed, *project;
    float *std_bias, *std_scale; /* f32 [d], or NULL */
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
    struct { struct linear up, down; const struct device_vector *norm, *post; } ff[2];
    const struct device_vector *attn_pre, *attn_post;
    struct linear q, k, v, o;
    const struct device_matrix *k_rel;
    float *q_scale;      /* f32 [d]: of each dimension of a query */
    const struct device_vector *conv_pre, *conv_norm, *out_norm;
    struct linear pw1, pw2;
    float *dw;           /* f32 [d][5] */
};

struct conformer {
    int64_t n_layers, d, n_ff, n_heads, channels[2], d_out;
    const struct device_matrix *conv[2]; /* [channels][channels before * 9] */
    const struct device_vector *conv_norm[2];
    const struct device_matrix *input, *output, *project;
    float *output_bias; /* f32 [d_out] */
    struct conformer_layer *layer;
};

/* Sound without an encoder. */
struct frames {
    const struct device_matrix *project;
};

enum tower_eyes { EYES_NONE, EYES_VISION, EYES_PATCHES };
enum tower_ears { EARS_NONE, EARS_CONFORMER, EARS_FRAMES };
/* What a checkpoint's config.json says of tensors; SAYS_NOTHING: those that there are tell. */
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
    enum tower_eyes eyes;
    enum tower_ears ears;
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

/* A run, between tower_begin() and tower_end(). */
struct pass {
    const struct tower *t;
    struct device *d;
    const struct tower_run *run;
    int64_t done, all; /* steps */
    bool cancelled;
};

/* False: the rest is not to be computed. */
bool tower_step(struct pass *p);
void tower_see(const struct pass *p, int64_t row, struct rows rows, const char *format, ...)
    ATTR_PRINTF(4, 5);

/* ---- binding ---- */

struct binder {
    struct tower *t;
    struct model *m;
    const char *prefix; /* "v", "a" */
    int64_t il;         /* of a layer; -1: none */
    ingle_status s;     /* the first error; later calls do nothing */
    struct err *err;
};

const struct device_matrix *tower_matrix(struct binder *b, const char *name, int64_t out,
                                         int64_t in);
const struct device_vector *tower_vector(struct binder *b, const char *name, int64_t n);
void tower_linear(struct binder *b, const char *name, int64_t out, int64_t in, struct linear *l);
bool tower_has(const struct binder *b, const char *name);
/* f32 [n], which the caller frees; NULL after an error. */
float *tower_floats(struct binder *b, const char *name, int64_t n);
float *tower_floats_2d(struct binder *b, const char *name, int64_t width, int64_t rows);
void tower_places(struct binder *b, int64_t d, struct places *out);
/* "clip.vision.block_count" within limits. */
void tower_key(struct binder *b, const char *key, uint64_t least, uint64_t most, int64_t *out);

/* Whether its kinds are those of one size of Gemma 4, and those of the host. */
MUST_CHECK ingle_status tower_match_kinds(const struct tower *t, const struct tower_options *o,
                                          struct err *err);
/* The same of what its tensors tell. */
MUST_CHECK ingle_status tower_match_tensors(const struct tower *t, const struct tower_options *o,
                                            struct err *err);
const char *tower_eyes_name(enum tower_eyes eyes);
const char *tower_ears_name(enum tower_ears ears);

void tower_bind_vision(struct binder *b, struct vision *v);
void tower_bind_patches(struct binder *b, struct patches *v);
void tower_bind_conformer(struct binder *b, struct conformer *c);
void tower_release_vision(struct vision *v);
void tower_release_conformer(struct conformer *c);

/* ---- forward ---- */

/* y = clamp(W clamp(x)); x stays. */
void tower_apply(struct pass *p, const struct linear *l, struct rows x, struct rows y);
/* x = x + v, f32 [x.width]. */
void tower_add(struct pass *p, struct rows x, const float *v);
void tower_matmul(struct device *d, const struct device_matrix *w, struct rows x, struct rows y);
/* soft = W norm(x), without a weight. */
void tower_project(struct pass *p, const struct device_matrix *w, struct rows x, int64_t row,
                   float *soft);
/* Rows of places 0 .. n - 1 of one axis, f32 [n][d], from the arena. */
struct rows tower_place_rows(struct pass *p, const struct places *from, int axis, int64_t n);

/* rgb NULL: a dry run for n_across x n_down soft tokens. */
void tower_see_vision(struct pass *p, const struct vision *v, const unsigned char *rgb,
                      int64_t n_across, int64_t n_down, float *soft);
void tower_see_patches(struct pass *p, const struct patches *v, const unsigned char *rgb,
                       int64_t n_across, int64_t n_down, float *soft);
/* mel: f32 [n][TOWER_MELS]; NULL: a dry run. */
void tower_hear_mel(struct pass *p, const struct conformer *c, const float *mel, int64_t n,
                    float *soft);
void tower_hear_frames(struct pass *p, const struct frames *f, const float *samples, int64_t n,
                       float *soft);
/* How many steps they have. */
int64_t tower_vision_steps(const struct tower *t, int64_t n_tokens);
int64_t tower_conformer_steps(const struct conformer *c);

#endif
