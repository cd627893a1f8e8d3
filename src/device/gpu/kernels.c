/* SPDX-License-Identifier: Apache-2.0 */
/* kernels - those of kernels.inc are found and loaded. */
#include "device/gpu/card.h"
#include "device/gpu/memory.h"
#include "device/gpu/kernel.h"
#include "device/gpu/image.h"
#include <stdarg.h>
#include <stdio.h>

static const struct { const char *name; int least; } modules[] = {
#define GPU_MODULE(name, least) {#name, least},
#include "device/gpu/kernels/modules.inc"
#undef GPU_MODULE
};

/* Why a kernel is not used; "": there is none for this card, or it was said. */
struct trouble { char text[256]; };

static void trouble(struct trouble *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void trouble(struct trouble *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->text, sizeof t->text, fmt, ap);
    va_end(ap);
}

static struct gpu_module *module_of(struct device *d, int number, struct trouble *t)
{
    struct device_gpu *g = d->gpu;
    struct gpu_image image = {.module = modules[number].name};
    char log[160] = "";
    if (g->module_tried[number])
        return g->module[number];
    g->module_tried[number] = true;
    const int capability = 10 * g->info.major + g->info.minor;
    int code = 0;
    if (capability < modules[number].least)
        return NULL;
    /* machine code of another driver's time may be refused: text is what all of them read */
    for (int text = 0; text < 2; text++) {
        if (!g->api.has_kernels && !device_gpu_image(image.module, capability, text, &image)) {
            trouble(t, "this build has no code of '%s' for cards", modules[number].name);
            return NULL;
        }
        code = g->api.module_load(g->api.self, &image, &g->module[number], log, sizeof log);
        const bool machine = image.machine;
        device_gpu_image_free(&image);
        if (!code || !machine || g->api.kind(g->api.self, code) == GPU_FAULT_LOST)
            break;
        image.module = modules[number].name;
        report(d->sink, INGLE_REPORT_NOTE, "gpu", image.module,
               "the card's driver refuses machine code (%s): it compiles the text",
               g->api.text(g->api.self, code));
    }
    if (!code)
        return g->module[number];
    g->module[number] = NULL;
    if (g->api.kind(g->api.self, code) == GPU_FAULT_LOST)
        (void)device_gpu_ok(d, code, "module_load");
    else
        trouble(t, "the card's driver refuses the code of '%s': %s%s%s", modules[number].name,
                g->api.text(g->api.self, code), log[0] ? ": " : "", log);
    return NULL;
}

static bool find(struct device *d, enum gpu_kernel k, struct trouble *t)
{
    struct device_gpu *g = d->gpu;
    const char *name = device_gpu_kernels[k].name;
    g->kernel_tried[k] = true;
    struct gpu_module *m = module_of(d, device_gpu_kernels[k].number, t);
    if (!m || device_gpu_kernels[k].shared > g->info.shared)
        return false;
    const int code =
        g->api.function(g->api.self, m, name, device_gpu_kernels[k].shared, &g->kernel[k]);
    if (!code && device_gpu_self(d, k, name, device_gpu_kernels[k].module))
        return !g->lost;
    g->kernel[k] = NULL;
    if (!code)
        trouble(t, "the card's '%s' differs from the plain kernel", name);
    else if (g->api.kind(g->api.self, code) == GPU_FAULT_LOST)
        (void)device_gpu_ok(d, code, "function");
    else
        trouble(t, "the card's driver does not find '%s' (%s)", name,
                g->api.text(g->api.self, code));
    return false;
}

bool device_gpu_has(struct device *d, enum gpu_kernel k)
{
    struct device_gpu *g = d->gpu;
    struct trouble t = {0};
    if (g->lost)
        return false;
    if (g->kernel_tried[k])
        return g->kernel[k] != NULL;
    const bool has = find(d, k, &t);
    if (t.text[0])
        snprintf(g->why, sizeof g->why, "%s", t.text);
    g->is_new = g->is_new || t.text[0];
    return has;
}

const char *device_gpu_why(struct device *d, const char *otherwise)
{
    struct device_gpu *g = d->gpu;
    const bool said = g->is_new;
    g->is_new = false;
    return said ? g->why : otherwise;
}

bool device_gpu_has_faster(struct device *d, enum gpu_kernel k)
{
    const bool has = device_gpu_has(d, k);
    const char *why = has ? NULL : device_gpu_why(d, NULL);
    if (why)
        report(d->sink, INGLE_REPORT_WARN, "fallback", "matmul",
               "%s: a slower one of the card computes", why);
    return has;
}

ingle_status device_gpu_kernels_open(struct device *d, struct err *err)
{
    const enum gpu_kernel k = GPU_K_row_norm;
    const struct device_gpu *g = d->gpu;
    struct trouble t = {0};
    if (find(d, k, &t) || g->lost)
        return INGLE_OK;
    return t.text[0] ? err_set(err, INGLE_UNSUP, "card '%s' cannot be used: %s", g->info.name,
                               t.text)
                     : err_set(err, INGLE_UNSUP,
                               "card '%s' has %zu bytes of shared memory for a block, least are "
                               "%zu",
                               g->info.name, g->info.shared, device_gpu_kernels[k].shared);
}

void device_gpu_kernels_close(struct device *d)
{
    struct device_gpu *g = d->gpu;
    for (int i = 0; i < GPU_MODULES; i++)
        if (g->module[i])
            (void)g->api.module_free(g->api.self, g->module[i]);
}
