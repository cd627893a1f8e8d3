/*
 * row - kernels of rows and of single elements.
 *
 * Rows are f32 [n_rows][stride] of the card, of which `width` elements are used.  A row kernel has
 * a block a row, or a head of a row; an element kernel has a block for ROW_BLOCK columns of a row.
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_ROW_H
#define INGLE_DEVICE_GPU_KERNELS_ROW_H

#include "device/gpu/kernels/args.h"

enum {
    ROW_THREADS = 128,   /* one a partial sum */
    ROW_ELEMENTS = 256,  /* threads of an element kernel */
    ROW_BLOCK = 1024,    /* columns of its block */
    ROW_MOST_HEAD = 4096 /* width of a head that row_hadamard turns */
};

/* y = x / sqrt(mean(x^2) + eps) * w for each head; y may be x. */
struct row_norm_args {
    const float *x;
    const float *w; /* [width], or NULL */
    float *y;
    int64_t x_stride, y_stride;
    int32_t n_rows, n_heads;
    int32_t width; /* of a head */
    float eps;
};
static inline struct gpu_grid row_norm_grid(const struct row_norm_args *a)
{
    return gpu_grid_of((int64_t)a->n_rows * a->n_heads, 1, 1);
}

/* x = (x + y / sqrt(mean(y^2) + eps) * w) * scale; y stays. */
struct row_add_norm_args {
    float *x;
    const float *y, *w; /* w: [width] */
    int64_t x_stride, y_stride;
    int32_t n_rows, width;
    float eps, scale;
};
static inline struct gpu_grid row_add_norm_grid(const struct row_add_norm_args *a)
{
    return gpu_grid_of(a->n_rows, 1, 1);
}

/* y = softmax(y) */
struct row_softmax_args {
    float *y;
    int64_t stride;
    int32_t n_rows, width;
};
static inline struct gpu_grid row_softmax_grid(const struct row_softmax_args *a)
{
    return gpu_grid_of(a->n_rows, 1, 1);
}

/* Elements: y from y and x, or from x alone.
 *   row_add     y = y + x
 *   row_mul     y = y * x
 *   row_scale   y = x * by; y may be x
 *   row_copy    y = x
 * x_stride 0: one row for all, as the vector of row_mul. */
struct row_pair_args {
    float *y;
    const float *x;
    int64_t y_stride, x_stride;
    int32_t n_rows, width;
    float by;
};
static inline struct gpu_grid row_pair_grid(const struct row_pair_args *a)
{
    return gpu_grid_of(a->n_rows * gpu_parts(a->width, ROW_BLOCK), 1, 1);
}

/* y = act(gate) * up; y may be gate.  limit > 0: gate is at most limit, up within +-limit, and both
 * are written.  gelu: else silu. */
struct row_glu_args {
    float *y, *gate, *up;
    int64_t y_stride, gate_stride, up_stride;
    int32_t n_rows, width, gelu;
    float limit;
};
static inline struct gpu_grid row_glu_grid(const struct row_glu_args *a)
{
    return gpu_grid_of(a->n_rows * gpu_parts(a->width, ROW_BLOCK), 1, 1);
}

/* row_softcap: y = cap * tanh(y / cap); row_sqrt_softplus: y = sqrt(log(1 + exp(y))). */
struct row_one_args {
    float *y;
    int64_t stride;
    int32_t n_rows, width;
    float cap;
};
static inline struct gpu_grid row_one_grid(const struct row_one_args *a)
{
    return gpu_grid_of(a->n_rows * gpu_parts(a->width, ROW_BLOCK), 1, 1);
}

/* y[i] = x[row[i]]: row: [n_rows], of the card. */
struct row_gather_args {
    float *y;
    const float *x;
    const int32_t *row;
    int64_t y_stride, x_stride;
    int32_t n_rows, width;
};
static inline struct gpu_grid row_gather_grid(const struct row_gather_args *a)
{
    return gpu_grid_of(a->n_rows * gpu_parts(a->width, ROW_BLOCK), 1, 1);
}

/* out[r] = sum over i < k, ascending, of weight[r * k + i] * y[slot[r * k + i]], by fma from 0. */
struct row_weighted_sum_args {
    float *out;
    const float *y, *weight;
    const int32_t *slot;
    int64_t out_stride, y_stride;
    int32_t n_rows, width, k;
};
static inline struct gpu_grid row_weighted_sum_grid(const struct row_weighted_sum_args *a)
{
    return gpu_grid_of(a->n_rows * gpu_parts(a->width, ROW_BLOCK), 1, 1);
}

/* Rotates pairs of each of n_heads heads, which are `width` apart, by cs [n_rows][cs_stride] =
 * {cos, sin} of each pair.
 *   row_rope        (i, i + half), i < n_pairs; inverse is not used
 *   row_rope_pairs  (first + 2 i, first + 2 i + 1); inverse: by the negative angle */
struct row_rope_args {
    float *x;
    const float *cs;
    int64_t x_stride, cs_stride;
    int32_t n_rows, n_heads, width;
    int32_t n_pairs, half, first, inverse;
};
static inline struct gpu_grid row_rope_grid(const struct row_rope_args *a)
{
    return gpu_grid_of(
        a->n_rows * gpu_parts((int64_t)a->n_heads * a->n_pairs, ROW_ELEMENTS), 1, 1);
}

/* Each head becomes kern_row_hadamard() of itself.  width: a power of two, at most ROW_MOST_HEAD;
 * by: (float)(1 / sqrt(width)). */
struct row_hadamard_args {
    float *x;
    int64_t stride;
    int32_t n_rows, n_heads, width;
    float by;
};
static inline struct gpu_grid row_hadamard_grid(const struct row_hadamard_args *a)
{
    return gpu_grid_of((int64_t)a->n_rows * a->n_heads, 1, 1);
}

/* Activations as products read them: struct kern_act32 or kern_act256 (kern/code.h), byte for byte;
 * q: 16-byte aligned, [n_rows][q_bytes].  k: a multiple of the group of 32 or 256. */
struct row_act_args {
    const float *x;
    uint8_t *q;
    int64_t x_stride, q_bytes;
    int32_t n_rows, k;
    /* Not NULL: of act(x) * up, as row_glu has it; x and up are not written. */
    const float *up;
    int64_t up_stride;
    int32_t gelu;
    float limit;
};
enum { ROW_ACT_WARPS = 8 };
static inline struct gpu_grid row_act32_grid(const struct row_act_args *a)
{
    return gpu_grid_of(gpu_parts((int64_t)a->n_rows * (a->k / 32), ROW_ACT_WARPS), 1, 1);
}
static inline struct gpu_grid row_act256_grid(const struct row_act_args *a)
{
    return gpu_grid_of(gpu_parts((int64_t)a->n_rows * (a->k / 256), ROW_ACT_WARPS), 1, 1);
}

/* Of each row: the first column that is NaN or infinite, or -1. */
struct row_find_bad_args {
    const float *x;
    int32_t *column; /* [n_rows] */
    int64_t stride;
    int32_t n_rows, width;
};
static inline struct gpu_grid row_find_bad_grid(const struct row_find_bad_args *a)
{
    return gpu_grid_of(a->n_rows, 1, 1);
}

#endif
