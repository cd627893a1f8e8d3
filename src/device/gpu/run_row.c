/* SPDX-License-Identifier: Apache-2.0 */
/* run_row - operations of rows and elements on the card. */
#include "device/gpu/memory.h"
#include "device/gpu/run.h"
#include <math.h>

static bool pair(struct device *d, enum gpu_kernel k, struct rows y, struct rows x, float by)
{
    const struct row_pair_args a = {gpu_rows(d, y), gpu_rows(d, x), y.stride, x.stride,
                                    (int32_t)y.n,   (int32_t)y.width, by};
    if (!device_gpu_has(d, k))
        return false;
    (void)device_gpu_launch(d, k, row_pair_grid(&a), &a, sizeof a, 0);
    return true;
}

GPU_RUN(copy)
{
    const struct device_copy_args *a = args;
    (void)scratch;
    return pair(d, GPU_K_row_copy, a->y, a->x, 1.0f);
}

GPU_RUN(add)
{
    const struct device_add_args *a = args;
    (void)scratch;
    return pair(d, GPU_K_row_add, a->x, a->y, 1.0f);
}

GPU_RUN(mul)
{
    const struct device_mul_args *a = args;
    (void)scratch;
    return pair(d, GPU_K_row_mul, a->y, a->x, 1.0f);
}

GPU_RUN(scale)
{
    const struct device_scale_args *a = args;
    (void)scratch;
    return pair(d, GPU_K_row_scale, a->y, a->x, a->s);
}

GPU_RUN(mul_vector)
{
    const struct device_mul_vector_args *a = args;
    const struct row_pair_args k = {gpu_rows(d, a->y), a->w->card, a->y.stride, 0,
                                    (int32_t)a->y.n,   (int32_t)a->y.width, 1.0f};
    (void)scratch;
    if (!a->w->card || !device_gpu_has(d, GPU_K_row_mul))
        return false;
    (void)GPU_LAUNCH(d, row_mul, row_pair_grid(&k), &k);
    return true;
}

GPU_RUN(norm)
{
    const struct device_norm_args *a = args;
    const struct row_norm_args k = {gpu_rows(d, a->x), a->w ? a->w->card : NULL, gpu_rows(d, a->y),
                                    a->x.stride, a->y.stride, (int32_t)a->x.n,
                                    (int32_t)a->n_heads, (int32_t)(a->x.width / a->n_heads),
                                    a->eps};
    (void)scratch;
    if ((a->w && !a->w->card) || !device_gpu_has(d, GPU_K_row_norm))
        return false;
    (void)GPU_LAUNCH(d, row_norm, row_norm_grid(&k), &k);
    return true;
}

GPU_RUN(add_norm)
{
    const struct device_add_norm_args *a = args;
    const struct row_add_norm_args k = {gpu_rows(d, a->x), gpu_rows(d, a->y), a->w->card,
                                        a->x.stride, a->y.stride, (int32_t)a->x.n,
                                        (int32_t)a->x.width, a->eps, a->scale};
    (void)scratch;
    if (!a->w->card || !device_gpu_has(d, GPU_K_row_add_norm))
        return false;
    (void)GPU_LAUNCH(d, row_add_norm, row_add_norm_grid(&k), &k);
    return true;
}

GPU_RUN(glu)
{
    const struct device_glu_args *a = args;
    const struct row_glu_args k = {gpu_rows(d, a->y), gpu_rows(d, a->gate), gpu_rows(d, a->up),
                                   a->y.stride, a->gate.stride, a->up.stride, (int32_t)a->y.n,
                                   (int32_t)a->y.width, a->act == DEVICE_GELU, a->limit};
    (void)scratch;
    if (!device_gpu_has(d, GPU_K_row_glu))
        return false;
    (void)GPU_LAUNCH(d, row_glu, row_glu_grid(&k), &k);
    return true;
}

static bool one(struct device *d, enum gpu_kernel k, struct rows y, float cap)
{
    const struct row_one_args a = {gpu_rows(d, y), y.stride, (int32_t)y.n, (int32_t)y.width, cap};
    if (!device_gpu_has(d, k))
        return false;
    (void)device_gpu_launch(d, k, row_one_grid(&a), &a, sizeof a, 0);
    return true;
}

GPU_RUN(softcap)
{
    const struct device_softcap_args *a = args;
    (void)scratch;
    return one(d, GPU_K_row_softcap, a->y, a->cap);
}

GPU_RUN(sqrt_softplus)
{
    const struct device_sqrt_softplus_args *a = args;
    (void)scratch;
    return one(d, GPU_K_row_sqrt_softplus, a->y, 0.0f);
}

GPU_RUN(softmax)
{
    const struct device_softmax_args *a = args;
    const struct row_softmax_args k = {gpu_rows(d, a->y), a->y.stride, (int32_t)a->y.n,
                                       (int32_t)a->y.width};
    (void)scratch;
    if (!device_gpu_has(d, GPU_K_row_softmax))
        return false;
    (void)GPU_LAUNCH(d, row_softmax, row_softmax_grid(&k), &k);
    return true;
}

static bool rotate(struct device *d, enum gpu_kernel k, const struct row_rope_args *a)
{
    if (!device_gpu_has(d, k))
        return false;
    (void)device_gpu_launch(d, k, row_rope_grid(a), a, sizeof *a, 0);
    return true;
}

GPU_RUN(rope)
{
    const struct device_rope_args *a = args;
    (void)scratch;
    return rotate(d, GPU_K_row_rope,
                  &(struct row_rope_args){.x = gpu_rows(d, a->x),
                                          .cs = gpu_rows(d, a->r->cs),
                                          .x_stride = a->x.stride,
                                          .cs_stride = a->r->cs.stride,
                                          .n_rows = (int32_t)a->x.n,
                                          .n_heads = (int32_t)a->n_heads,
                                          .width = (int32_t)(a->x.width / a->n_heads),
                                          .n_pairs = (int32_t)a->r->n_pairs,
                                          .half = (int32_t)a->half});
}

GPU_RUN(rope_pairs)
{
    const struct device_rope_pairs_args *a = args;
    (void)scratch;
    return rotate(d, GPU_K_row_rope_pairs,
                  &(struct row_rope_args){.x = gpu_rows(d, a->x),
                                          .cs = gpu_rows(d, a->r->cs),
                                          .x_stride = a->x.stride,
                                          .cs_stride = a->r->cs.stride,
                                          .n_rows = (int32_t)a->x.n,
                                          .n_heads = (int32_t)a->n_heads,
                                          .width = (int32_t)(a->x.width / a->n_heads),
                                          .n_pairs = (int32_t)a->r->n_pairs,
                                          .first = (int32_t)a->first,
                                          .inverse = a->inverse});
}

GPU_RUN(hadamard)
{
    const struct device_hadamard_args *a = args;
    const int64_t width = a->x.width / a->n_heads;
    const struct row_hadamard_args k = {gpu_rows(d, a->x),   a->x.stride,
                                        (int32_t)a->x.n,     (int32_t)a->n_heads,
                                        (int32_t)width,      (float)(1.0 / sqrt((double)width))};
    (void)scratch;
    if (width > ROW_MOST_HEAD || (width & (width - 1)) || !device_gpu_has(d, GPU_K_row_hadamard))
        return false;
    (void)GPU_LAUNCH(d, row_hadamard, row_hadamard_grid(&k), &k);
    return true;
}

GPU_RUN(gather)
{
    const struct device_gather_args *a = args;
    (void)scratch;
    if (!device_gpu_has(d, GPU_K_row_gather))
        return false;
    const int32_t *row = device_gpu_list(d, a->row, (size_t)a->y.n * sizeof *row);
    if (!row)
        return d->gpu->lost;
    const struct row_gather_args k = {gpu_rows(d, a->y), gpu_rows(d, a->x), row, a->y.stride,
                                      a->x.stride, (int32_t)a->y.n, (int32_t)a->y.width};
    (void)GPU_LAUNCH(d, row_gather, row_gather_grid(&k), &k);
    return true;
}

GPU_RUN(weighted_sum)
{
    const struct device_weighted_sum_args *a = args;
    const size_t n = (size_t)(a->out.n * a->k);
    (void)scratch;
    if (!device_gpu_has(d, GPU_K_row_weighted_sum))
        return false;
    const int32_t *slot = device_gpu_list(d, a->slot, n * sizeof *slot);
    const float *weight = slot ? device_gpu_list(d, a->weight, n * sizeof *weight) : NULL;
    if (!weight)
        return d->gpu->lost;
    const struct row_weighted_sum_args k = {gpu_rows(d, a->out), gpu_rows(d, a->y), weight, slot,
                                            a->out.stride, a->y.stride, (int32_t)a->out.n,
                                            (int32_t)a->out.width, (int32_t)a->k};
    (void)GPU_LAUNCH(d, row_weighted_sum, row_weighted_sum_grid(&k), &k);
    return true;
}
