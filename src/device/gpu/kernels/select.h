/*
 * select - which rows of a stream an indexer chooses (device_select()): queries to FP4 where the
 * keys are, scores of all keys that a row sees, the best ones in ascending order.
 *
 * A row that sees at most top_k keys has no scores: select_choose lists them all.
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_SELECT_H
#define INGLE_DEVICE_GPU_KERNELS_SELECT_H

#include "device/gpu/kernels/span.h"

enum { SELECT_THREADS = 128, SELECT_CHOOSE_THREADS = 256 };

/* What kern_query4() makes of queries: [n_rows][n_heads][width + 8 * width / 32] bytes. */
struct select_query_args {
    const float *q; /* f32 [n_rows][n_heads * width] */
    uint8_t *to;
    int64_t q_stride;
    int32_t n_rows, n_heads, width;
};
static inline struct gpu_grid select_query_grid(const struct select_query_args *a)
{
    return gpu_grid_of(
        gpu_parts((int64_t)a->n_rows * a->n_heads * (a->width / 32), SELECT_THREADS / 32), 1, 1);
}

/* Scores of the keys that rows [row0, row0 + n_rows) of all rows of the spans see, at most 65,535;
 * one that is no number is -inf. */
struct select_scores_args {
    const struct gpu_span *span;
    const float *q;       /* f32 [batch rows][n_heads * width]; keys that are not FP4 */
    const uint8_t *query; /* of select_query, of all batch rows; keys of FP4 */
    const float *weight;  /* f32 [batch rows][n_heads] */
    float *score;         /* f32 [n_rows][n_keys] */
    int64_t row0, q_stride, weight_stride;
    int64_t at, row_bytes;
    int32_t n_rows, n_keys; /* n_keys: the most that a row sees */
    int32_t n_heads, width, tail, every, codec, top_k;
};
static inline struct gpu_grid select_scores_grid(const struct select_scores_args *a)
{
    return gpu_grid_of(gpu_parts(a->n_keys, SELECT_THREADS), a->n_rows, 1);
}

/* The top_k best of each row, ascending; ties: the lower index. */
struct select_choose_args {
    const struct gpu_span *span;
    const float *score;
    int32_t *sel, *count; /* [batch rows][top_k], [batch rows] */
    int64_t row0;
    int32_t n_rows, n_keys, every, top_k;
};
static inline struct gpu_grid select_choose_grid(const struct select_choose_args *a)
{
    return gpu_grid_of(a->n_rows, 1, 1);
}

#endif
