/* SPDX-License-Identifier: Apache-2.0 */
/* kernels - those of kernels.inc: found, loaded, launched. */
#include "device/gpu/card.h"
#include "device/gpu/image.h"

static const struct {
    const char *name, *module;
    int number, threads;
    size_t shared;
} kernels[] = {
#define GPU_KERNEL(name, args, threads, blocks, shared, registers, module)                        \
    {#name, #module, GPU_M_##module, threads, shared},
#include "device/gpu/kernels/kernels.inc"
#undef GPU_KERNEL
};

static const struct { const char *name; int least; } modules[] = {
#define GPU_MODULE(name, least) {#name, least},
#include "device/gpu/kernels/modules.inc"
#undef GPU_MODULE
};

/* NULL, reported: the processor stands in for what needs it. */
static struct gpu_module *module_of(struct device *d, int number)
{
    struct device_gpu *g = d->gpu;
    struct gpu_image image = {modules[number].name, NULL, 0, NULL};
    char log[160] = "";
    if (g->module_tried[number])
        return g->module[number];
    g->module_tried[number] = true;
    const int capability = 10 * g->info.major + g->info.minor;
    if (capability < modules[number].least)
        return NULL;
    if (!g->api.has_kernels && !device_gpu_image(image.module, capability, &image)) {
        report(d->sink, INGLE_REPORT_WARN, "fallback", image.module,
               "this build has no code for cards of it: the processor computes");
        return NULL;
    }
    const int code = g->api.module_load(g->api.self, &image, &g->module[number], log, sizeof log);
    device_gpu_image_free(&image);
    if (!code)
        return g->module[number];
    g->module[number] = NULL;
    if (g->api.kind(g->api.self, code) == GPU_FAULT_LOST)
        (void)device_gpu_ok(d, code, "module_load");
    else
        report(d->sink, INGLE_REPORT_WARN, "fallback", modules[number].name,
               "the card's driver refuses its code (%s) %s: the processor computes",
               g->api.text(g->api.self, code), log);
    return NULL;
}

bool device_gpu_has(struct device *d, enum gpu_kernel k)
{
    struct device_gpu *g = d->gpu;
    if (g->lost)
        return false;
    if (g->kernel_tried[k])
        return g->kernel[k] != NULL;
    g->kernel_tried[k] = true;
    struct gpu_module *m = module_of(d, kernels[k].number);
    if (!m || kernels[k].shared > g->info.shared)
        return false;
    const int code =
        g->api.function(g->api.self, m, kernels[k].name, kernels[k].shared, &g->kernel[k]);
    if (!code && device_gpu_self(d, k, kernels[k].name, kernels[k].module))
        return !g->lost;
    g->kernel[k] = NULL;
    if (!code)
        report(d->sink, INGLE_REPORT_WARN, "kernel", kernels[k].name,
               "differs from the plain kernel: the processor computes");
    else if (g->api.kind(g->api.self, code) == GPU_FAULT_LOST)
        (void)device_gpu_ok(d, code, "function");
    else
        report(d->sink, INGLE_REPORT_WARN, "fallback", kernels[k].name,
               "the card's driver does not find the kernel (%s): the processor computes",
               g->api.text(g->api.self, code));
    return false;
}

bool device_gpu_launch(struct device *d, enum gpu_kernel k, struct gpu_grid grid, const void *args,
                       size_t n_args, size_t shared)
{
    struct device_gpu *g = d->gpu;
    const struct gpu_launch l = {
        {grid.x, grid.y, grid.z},
        kernels[k].threads,
        shared ? shared : kernels[k].shared,
        args,
        n_args};
    if (g->lost)
        return device_gpu_ok(d, 0, "");
    if (grid.x <= 0 || grid.y <= 0 || grid.z <= 0)
        return true;
    g->n_launches++;
    const int code = g->api.launch(g->api.self, g->stream, g->kernel[k], &l);
    return device_gpu_ok(d, code, kernels[k].name);
}

void device_gpu_kernels_close(struct device *d)
{
    struct device_gpu *g = d->gpu;
    for (int i = 0; i < GPU_MODULES; i++)
        if (g->module[i])
            (void)g->api.module_free(g->api.self, g->module[i]);
}
