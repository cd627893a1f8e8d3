/* SPDX-License-Identifier: Apache-2.0 */
/* launch - the table of kernels, and one of them runs. */
#include "device/gpu/card.h"
#include "device/gpu/memory.h"
#include "device/gpu/kernel.h"

const struct gpu_kernel_about device_gpu_kernels[GPU_KERNELS] = {
#define GPU_KERNEL(name, args, threads, blocks, shared, registers, module)                        \
    {#name, #module, GPU_M_##module, threads, shared},
#include "device/gpu/kernels/kernels.inc"
#undef GPU_KERNEL
};

bool device_gpu_launch(struct device *d, enum gpu_kernel k, struct gpu_grid grid, const void *args,
                       size_t n_args, size_t shared)
{
    struct device_gpu *g = d->gpu;
    const struct gpu_launch l = {
        {grid.x, grid.y, grid.z},
        device_gpu_kernels[k].threads,
        shared ? shared : device_gpu_kernels[k].shared,
        args,
        n_args};
    if (g->lost)
        return device_gpu_ok(d, 0, "");
    if (grid.x <= 0 || grid.y <= 0 || grid.z <= 0)
        return true;
    g->n_launches++;
    const int code = g->api.launch(g->api.self, g->stream, g->kernel[k], &l);
    return device_gpu_ok(d, code, device_gpu_kernels[k].name);
}
