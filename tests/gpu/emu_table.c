/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the emulated card: those of kernels.inc. */
#include "device/gpu/kernels/kernels.h"
#include "gpu/emu.h"

#include <string.h>

#define GPU_KERNEL(name, args, threads, blocks, shared, registers, module) \
    void emu_entry_##name(const void *a);
#include "device/gpu/kernels/kernels.inc"
#undef GPU_KERNEL

static const struct emu_kernel kernels[] = {
#define GPU_KERNEL(name, args, threads, blocks, shared, registers, module) \
    {#name, #module, emu_entry_##name, sizeof(args), threads, shared},
#include "device/gpu/kernels/kernels.inc"
#undef GPU_KERNEL
};

const struct emu_kernel *emu_kernel_at(int i)
{
    return i >= 0 && i < (int)(sizeof kernels / sizeof *kernels) ? &kernels[i] : NULL;
}

const struct emu_kernel *emu_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, name))
            return &kernels[i];
    return NULL;
}
