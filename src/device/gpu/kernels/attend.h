/*
 * attend - attention over pages, as kern/attend.h has it: parts of 256 positions, each by a block
 * for each row and up to 8 query heads of a key/value head, then their join into splits and rows.
 *
 * attend_part_N (N = 1, 2, 4, 8 heads at a time, attend_heads()) reads keys and values of
 * f32, f16, bf16 or q8_0 blocks; attend_latent_N reads rows that are keys and values: a window of
 * near ones, then far ones, all of them or those of a list, whose places in this order are the
 * positions.  attend_merge ends both.
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_ATTEND_H
#define INGLE_DEVICE_GPU_KERNELS_ATTEND_H

#include "device/gpu/kernels/span.h"

enum {
    ATTEND_THREADS = 256,
    ATTEND_MOST_WIDTH = 512, /* of keys */
    ATTEND_MOST_HEADS = 8,
    ATTEND_MERGE_THREADS = 128,
    ATTEND_POSITIONS = 256 /* of a part */
};

/* How many heads of a group of query heads a block takes. */
static inline int32_t attend_heads(int32_t group)
{
    return group >= 5 ? 8 : group >= 3 ? 4 : group;
}

/* Floats of a part's state: maximum, sum, values. */
static inline int64_t attend_state(int64_t v_width)
{
    return v_width + 2;
}

/* Rows [row0, row0 + n_rows) of all rows of the spans, at most 65,535. */
struct attend_part_args {
    const struct gpu_span *span;
    const float *q;               /* f32 [rows][n_heads * group * k_width] */
    float *state;                 /* f32 [n_rows][n_heads * group][n_parts][attend_state()] */
    int64_t row0, q_stride;
    int64_t at, head_bytes, v_at; /* in a page, as in struct device_kv */
    int32_t n_rows, n_heads, group;
    int32_t n_parts;              /* the most that a row sees, or more */
    int32_t k_width, v_width;
    int32_t k_codec, v_codec;
    float scale;
};
static inline struct gpu_grid attend_part_grid(const struct attend_part_args *a)
{
    const int32_t heads = attend_heads(a->group);
    return gpu_grid_of(a->n_parts, a->n_heads * gpu_parts(a->group, heads), a->n_rows);
}
/* Parts that a row sees which sees [first, end). */
static inline int64_t attend_parts(int64_t first, int64_t end)
{
    return (end - 1) / ATTEND_POSITIONS - first / ATTEND_POSITIONS + 1;
}

struct attend_latent_args {
    const struct gpu_span *near_span; /* window: the span's own or the operation's */
    const struct gpu_span *far_span;  /* the same rows in the pages of far; NULL: no far rows */
    const float *q;                   /* f32 [rows][n_heads * width] */
    float *state;                     /* f32 [n_rows][n_heads][n_parts][attend_state()] */
    const int32_t *sel, *count;       /* [batch rows][top_k], [batch rows]; NULL: all far rows */
    int64_t row0, q_stride;
    int64_t near_at, far_at;          /* in a page */
    int64_t row_bytes;
    int32_t n_rows, n_heads, n_parts;
    int32_t width, tail, codec;       /* F32, F16, BF16, FP8: of near and far */
    int32_t near_every, far_every, top_k;
    float scale;
};
static inline struct gpu_grid attend_latent_grid(const struct attend_latent_args *a)
{
    const int32_t heads = attend_heads(a->n_heads);
    return gpu_grid_of(a->n_parts, gpu_parts(a->n_heads, heads), a->n_rows);
}

/* out = what the parts of a row and head add up to. */
struct attend_merge_args {
    const struct gpu_span *span;
    const struct gpu_span *far_span; /* of attend_latent, else NULL */
    const int32_t *count;            /* of attend_latent, or NULL */
    const float *state;
    const float *sink;               /* [n_heads], or NULL */
    float *out;                      /* f32 [rows][n_heads * v_width] */
    int64_t row0, out_stride;
    int32_t n_rows, n_heads;         /* query heads */
    int32_t n_parts, v_width;
    int32_t latent, far_every;
};
static inline struct gpu_grid attend_merge_grid(const struct attend_merge_args *a)
{
    return gpu_grid_of((int64_t)a->n_rows * a->n_heads, 1, 1);
}

#endif
