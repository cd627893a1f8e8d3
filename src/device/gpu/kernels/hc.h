/*
 * hc - hyper-connections: n residual streams side by side, x f32 [n_rows][n * width]
 * (device_hc_pre(), device_hc_post()).
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_HC_H
#define INGLE_DEVICE_GPU_KERNELS_HC_H

#include "device/gpu/kernels/args.h"

enum { HC_THREADS = 128, HC_MOST = 8, HC_COLUMNS = 512 };

/* out = sum_j pre[j] stream[j]; gates [n_rows][n + n * n] = post, M. */
struct hc_pre_args {
    const float *x;            /* [n_rows][n * width] */
    const float *mix;          /* [n_rows][2 n + n * n], of the head [n_rows][n] */
    const float *scale, *base; /* [3] and [2 n + n * n], of the head [1] and [n] */
    float *out;                /* [n_rows][width] */
    float *gates;              /* NULL: the head */
    int64_t x_stride, mix_stride, out_stride, gates_stride;
    int32_t n_rows, n, width, iterations;
    float eps, norm_eps;
};
static inline struct gpu_grid hc_pre_grid(const struct hc_pre_args *a)
{
    return gpu_grid_of(a->n_rows, 1, 1);
}

/* y[k] = post[k] out + sum_j M[j][k] x[j]; y is not x. */
struct hc_post_args {
    const float *x, *out, *gates;
    float *y;
    int64_t x_stride, out_stride, gates_stride, y_stride;
    int32_t n_rows, n, width;
};
static inline struct gpu_grid hc_post_grid(const struct hc_post_args *a)
{
    return gpu_grid_of(a->n_rows * gpu_parts(a->width, HC_COLUMNS), 1, 1);
}

#endif
