/* SPDX-License-Identifier: Apache-2.0 */
/*
 * self - a kernel of the card runs on small, awkward inputs once before it is used: what a
 * compiler, an assembler or a card makes of it must be the processor's bits.
 */
#include "device/gpu/memory.h"
#include "device/gpu/self.h"

#include "base/mem.h"
#include <string.h>

static gpu_self_fn *test_of(const char *module)
{
    if (!strcmp(module, "row"))
        return device_gpu_self_row;
    if (!strcmp(module, "pages") || !strcmp(module, "attend"))
        return device_gpu_self_pages;
    if (!strcmp(module, "route") || !strcmp(module, "hc") || !strcmp(module, "compress") ||
        !strcmp(module, "select"))
        return device_gpu_self_stream;
    if (!strncmp(module, "product_", 8) || !strncmp(module, "many_", 5))
        return device_gpu_self_product;
    return NULL;
}

bool device_gpu_self_tests(const char *module)
{
    return test_of(module) != NULL;
}

/* As long as the device is there: a copy that has failed may still go on. */
static bool room_of(struct device *d)
{
    struct device_gpu *g = d->gpu;
    if (!g->self_host)
        g->self_host = mem_big_alloc(GPU_SELF_BYTES);
    if (!g->self_back)
        g->self_back = mem_big_alloc(GPU_SELF_BYTES);
    if (!g->self_card && g->self_host && g->self_back)
        g->self_card = device_gpu_take(d, GPU_SELF_BYTES);
    return g->self_card != NULL;
}

void device_gpu_self_close(struct device *d)
{
    device_gpu_give(d, d->gpu->self_card, GPU_SELF_BYTES);
    mem_big_free(d->gpu->self_host, GPU_SELF_BYTES);
    mem_big_free(d->gpu->self_back, GPU_SELF_BYTES);
}

bool device_gpu_self(struct device *d, enum gpu_kernel k, const char *name, const char *module)
{
    gpu_self_fn *const test = test_of(module);
    struct device_gpu *g = d->gpu;
    struct gpu_self s = {.d = d, .name = name};
    if (!test)
        return true;
    if (!room_of(d))
        return true; /* no room for a test is no fault of the kernel */
    s.host = g->self_host;
    s.back = g->self_back;
    s.card = g->self_card;
    return test(&s, k) || g->lost || s.full;
}
