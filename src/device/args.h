/*
 * args - inside the room: the arguments of each operation.
 */
#ifndef INGLE_DEVICE_ARGS_H
#define INGLE_DEVICE_ARGS_H

#include "device/device.h"

struct device_embed_args {
    struct rows y;
    const struct device_matrix *m;
    const int32_t *tokens;
    float scale;
};
struct device_write_args { struct rows y; const float *src; int64_t src_stride; };
struct device_copy_args { struct rows y, x; };
struct device_gather_args { struct rows y, x; const int32_t *row; };
struct device_route_args {
    const struct device_route *route;
    struct rows scores;
    struct device_routed out;
};
struct device_norm_args {
    struct rows y, x;
    const struct device_vector *w;
    int64_t n_heads;
    float eps;
};
struct device_add_norm_args { struct rows x, y; const struct device_vector *w; float eps, scale; };
struct device_add_args { struct rows x, y; };
struct device_scale_args { struct rows y, x; float s; };
struct device_mul_args { struct rows y, x; };
struct device_mul_vector_args { struct rows y; const struct device_vector *w; };
struct device_glu_args { enum device_glu act; float limit; struct rows y, gate, up; };
struct device_softcap_args { struct rows y; float cap; };
struct device_softmax_args { struct rows y; };
struct device_sqrt_softplus_args { struct rows y; };
struct device_rope_pairs_args {
    struct rows x;
    const struct device_rope *r;
    int64_t n_heads, first;
    bool inverse;
};
struct device_hc_pre_args { const struct device_hc *hc; struct rows x, mix, out, gates; };
struct device_hc_post_args { const struct device_hc *hc; struct rows x, out, gates, y; };
struct device_hadamard_args { struct rows x; int64_t n_heads; };
struct device_rope_table_args {
    struct rows cs;
    const int64_t *pos;
    const double *inv_freq;
    int64_t n_pairs;
};
struct device_rope_args { struct rows x; const struct device_rope *r; int64_t n_heads, half; };
struct device_matmul_args {
    const struct device_product *p;
    int64_t n;
    const struct device_columns *only;
    int64_t n_only;
};
/* beside: another block in the same jobs, or NULL; only of the device that is the processor's. */
struct device_mlp_args {
    const struct device_mlp *m;
    struct rows x, y;
    const struct device_mlp_call *second;
};
struct device_clamp_args { struct rows y, x; float least, most; };
struct device_layer_norm_args {
    struct rows y, x;
    const struct device_vector *w, *b;
    float eps;
};
struct device_dense_put_args {
    const struct device_dense *to;
    int64_t row0;
    struct rows k, v;
};
struct device_dense_attend_args { const struct device_dense *kv; struct rows q, out; };
struct device_each_args { int64_t n, work; device_each_fn *fn; void *arg; };
struct device_weighted_sum_args {
    struct rows out, y;
    const int32_t *slot;
    const float *weight;
    int64_t k;
};

#endif
