/*
 * compress - blocks of `ratio` positions pooled into one row, with norm and rotation
 * (device_compress()).
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_COMPRESS_H
#define INGLE_DEVICE_GPU_KERNELS_COMPRESS_H

#include "device/gpu/kernels/span.h"

enum {
    COMPRESS_THREADS = 128,
    COMPRESS_MOST_MEMBERS = 256, /* of a row: ratio, with overlap twice that */
    COMPRESS_MOST_WIDTH = 1024
};

struct compress_args {
    const struct gpu_span *in, *out; /* the same rows in the pages of both streams */
    const float *norm;               /* [width] */
    const float *cs;                 /* [n_blocks][2 * n_pairs]: angles of the first positions */
    const float *step;               /* f32 [batch rows][step_stride], or NULL */
    int64_t step_stride;
    int64_t in_at, out_at, in_bytes, out_bytes; /* in a page; of a row */
    int32_t n_blocks;                           /* that the spans complete, of all of them */
    int32_t ratio, overlap, width, n_pairs;
    int32_t in_every, out_every, out_codec, out_tail;
    float eps;
    float turn; /* (float)(1 / sqrt(width)): hadamard at the end; 0: none */
};
static inline struct gpu_grid compress_grid(const struct compress_args *a)
{
    return gpu_grid_of(a->n_blocks, 1, 1);
}
/* Blocks that a span completes. */
static inline int64_t compress_blocks(int64_t pos0, int64_t n, int64_t ratio)
{
    return (pos0 + n) / ratio - pos0 / ratio;
}

#endif
