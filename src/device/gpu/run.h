/* run - what the files run_*.c share, and their operations. */
#ifndef INGLE_DEVICE_GPU_RUN_H
#define INGLE_DEVICE_GPU_RUN_H

#include "device/gpu/card.h"
#include "device/gpu/memory.h"
#include "device/gpu/kernel.h"

/* Rows of the arena, on the card. */
static inline float *gpu_rows(struct device *d, struct rows r)
{
    return device_gpu_address(d->gpu, r.at);
}
/* Rows of all spans. */
static inline int64_t gpu_span_rows(const struct device_span *s, int64_t n)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < n; i++)
        rows += s[i].n;
    return rows;
}
/* A kernel's launch; the operation goes on in the next one. */
#define GPU_LAUNCH(d, name, grid, args) \
    device_gpu_launch(d, GPU_K_##name, grid, args, sizeof *(args), 0)

/* Spans as kernels read them, with their pages on the card; NULL: not there.  every: positions of
 * a row of the stream. window: where a span has none. */
const struct gpu_span *device_gpu_spans(struct device *d, const struct device_span *s, int64_t n,
                                        int64_t every, int64_t window);

#define GPU_RUN(name) bool device_gpu_run_##name(struct device *d, const void *args, void *scratch)
GPU_RUN(embed);
GPU_RUN(copy);
GPU_RUN(norm);
GPU_RUN(add_norm);
GPU_RUN(add);
GPU_RUN(scale);
GPU_RUN(mul);
GPU_RUN(mul_vector);
GPU_RUN(glu);
GPU_RUN(softcap);
GPU_RUN(softmax);
GPU_RUN(sqrt_softplus);
GPU_RUN(rope);
GPU_RUN(rope_pairs);
GPU_RUN(hadamard);
GPU_RUN(gather);
GPU_RUN(weighted_sum);
GPU_RUN(matmul);
GPU_RUN(mlp);
GPU_RUN(kv_append);
GPU_RUN(attend);
GPU_RUN(rows_append);
GPU_RUN(rows_read);
GPU_RUN(attend_latent);
GPU_RUN(route);
GPU_RUN(hc_pre);
GPU_RUN(hc_post);
GPU_RUN(compress);
GPU_RUN(select);

size_t device_gpu_attend_scratch(const struct device_attend_args *a);
size_t device_gpu_latent_scratch(const struct device_attend_latent_args *a);
size_t device_gpu_select_scratch(const struct device_select_args *a);
size_t device_gpu_matmul_scratch(const struct device *d, const struct device_matmul_args *a);
size_t device_gpu_mlp_scratch(const struct device *d, const struct device_mlp_args *a);

#endif
