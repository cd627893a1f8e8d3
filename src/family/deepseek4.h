/* deepseek4 - inside the room: what the parts of the family share. */
#ifndef INGLE_FAMILY_DEEPSEEK4_H
#define INGLE_FAMILY_DEEPSEEK4_H

#include "family/family.h"

enum { RATIO_CSA = 4, RATIO_HCA = 128 };

struct hc {
    const struct device_matrix *fn;
    struct device_hc op;
};

struct compressor {
    const struct device_matrix *kv, *gate;
    const struct device_vector *norm;
    float *ape;                  /* f32 [ratio][wide]; owned */
    uint32_t in, out;            /* streams */
    int64_t width, wide;         /* of a row; of a value (twice the width if blocks overlap) */
};

struct layer {
    int64_t ratio;               /* 0, 4 or 128 */
    struct hc hc_attn, hc_ffn;
    const struct device_vector *attn_norm, *q_a_norm, *kv_norm, *ffn_norm;
    const struct device_matrix *q_a, *q_b, *kv, *o_a, *o_b;
    const struct device_vector *sink; /* [n_heads] */
    uint32_t raw;                /* stream of latents */
    struct compressor comp, index;
    const struct device_matrix *index_q, *index_w;
    const struct device_matrix *router;
    const struct device_vector *bias; /* [n_experts], or NULL */
    int32_t *table;              /* [n_vocab][n_used], or NULL; owned */
    struct expert_layer experts;
    const struct device_matrix *sh_gate, *sh_up, *sh_down;
    float limit, sh_limit;
};

struct deepseek4 {
    int64_t n_layers, n_embd, n_heads, head, n_rot, n_vocab, n_ctx, q_rank, o_rank, o_groups;
    int64_t window, index_heads, index_head, index_top_k;
    int64_t n_experts, n_used, n_ff, n_hash;
    int64_t n_hc;
    int iterations;
    float eps, hc_eps, weight_scale;
    bool weight_norm;
    double *inv_freq[2];         /* f64 [n_rot / 2]: [window layers, compressed layers] */
    struct layer *layer;
    const struct device_matrix *embed, *out;
    const struct device_vector *out_norm;
    struct hc hc_head;
};

/* ---- deepseek4_hf.c: the published checkpoint ---- */

ingle_status family_deepseek4_config(struct json_object *config, struct io_meta *out,
                                     const struct report_sink *sink, struct err *err);
bool family_deepseek4_rename(const char *name, char *out, size_t n_out);
bool family_deepseek4_hf_name(const char *name, char *out, size_t n_out);
ingle_status family_deepseek4_to_config(const struct io_file *file, struct json_object *out,
                                        struct err *err);
/* Names that early or private converters wrote into GGUF files. */
bool family_deepseek4_alias(const char *name, char *out, size_t n_out);

/* ---- deepseek4_load.c: hyper-parameters and weights ---- */

ingle_status family_deepseek4_bind(void **self, struct model *m, const struct io_meta *meta,
                                   struct family_info *info, struct err *err);
void family_deepseek4_free(void *self);

/* Binds tensors whose names begin with prefix; keeps the first error. */
struct binder {
    struct model *m;
    const struct deepseek4 *g;
    const char *prefix; /* "", "blk.3.", "mtp.0." */
    ingle_status s;     /* the first error; later calls do nothing */
    struct err *err;
    const struct io_meta *meta; /* keys that shapes follow from; NULL: errors do not name them */
};
const struct device_matrix *family_deepseek4_matrix(struct binder *b, const char *suffix,
                                                    int64_t out, int64_t in, int64_t n_stack);
const struct device_vector *family_deepseek4_vector(struct binder *b, const char *suffix,
                                                    int64_t n);
void family_deepseek4_bind_hc(struct binder *b, const char *name, bool head, struct hc *h);
/* A layer with l->ratio and the limits set; hashed: its experts follow from the token. */
void family_deepseek4_bind_layer(struct binder *b, struct layer *l, bool hashed);
void family_deepseek4_free_layer(struct layer *l);

/* ---- deepseek4.c: the forward pass ---- */

struct pass {
    const struct deepseek4 *g;
    const struct family_forward *f;
    struct device *d;
    const int32_t *tokens;
    const int64_t *pos;
    struct device_rope rope[2]; /* [window layers, compressed layers] */
    /* of each row, where rows do not see what their positions say: drafters */
    const struct family_view *view;
    int64_t widest;                 /* of the views; 0: the window */
    int64_t end;                    /* layers from here on are not computed */
};
/* Both sub-layers: x becomes the streams after them; y: as large, spent. */
void family_deepseek4_layer(struct pass *p, const struct layer *l, struct rows x, struct rows y);
/* What the first sub-layer reads of the streams. */
struct rows family_deepseek4_attn_input(struct pass *p, const struct layer *l, struct rows streams);
/* The latents of rows x of a window layer, into its stream. */
void family_deepseek4_latents(struct pass *p, const struct layer *l, struct rows x);
/* The gated sum of the streams that a head reads. */
struct rows family_deepseek4_collapse(struct pass *p, const struct hc *h, struct rows streams);

#endif
