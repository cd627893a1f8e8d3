/*
 * pages - kernels that put rows into pages and read them: keys and values in the blocks of
 * kern/attend.h (f32, f16, bf16, q8_0), rows of streams as kern/row.h has them (f32, f16, bf16,
 * fp8, fp4).
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_PAGES_H
#define INGLE_DEVICE_GPU_KERNELS_PAGES_H

#include "device/gpu/kernels/span.h"

enum { PAGES_THREADS = 128 };

/* Keys and values of n_rows rows, all of the spans, into their pages.  A row's page that is not
 * there is left out. */
struct pages_kv_append_args {
    const struct gpu_span *span;
    const float *k, *v;             /* f32 [rows][n_heads * k_width], [rows][n_heads * v_width] */
    int64_t k_stride, v_stride;
    int64_t at, head_bytes, v_at;   /* in a page, as in struct device_kv */
    int32_t n_rows, n_heads;
    int32_t k_width, v_width;
    int32_t k_codec, v_codec;       /* enum kern_kv_codec, below KERN_KV_BLOCK_CODECS */
};
static inline struct gpu_grid pages_kv_append_grid(const struct pages_kv_append_args *a)
{
    return gpu_grid_of((int64_t)a->n_rows * a->n_heads, 1, 1);
}

/* Rows of a stream that has one for every `every` positions, at `at` in a page, row_bytes each.
 *   pages_rows_append  x into the pages; a page that is not there is left out
 *   pages_rows_read    x from the pages; positions below 0 or without a page: zeros */
struct pages_rows_args {
    const struct gpu_span *span;
    float *x; /* f32 [rows][stride] */
    int64_t stride, at, row_bytes;
    int32_t n_rows, width, tail, every;
    int32_t codec; /* F32, F16, BF16, FP8, FP4 */
};
static inline struct gpu_grid pages_rows_grid(const struct pages_rows_args *a)
{
    return gpu_grid_of(a->n_rows, 1, 1);
}

#endif
