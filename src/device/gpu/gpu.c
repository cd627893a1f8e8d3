/* SPDX-License-Identifier: Apache-2.0 */
/* gpu - a device on a card is opened and closed. */
#include "base/mem.h"
#include "device/gpu/card.h"
#include "device/gpu/memory.h"
#include "device/gpu/kernel.h"
#include <stdio.h>

enum { LEAST_CAPABILITY = 75, CONTEXT_BYTES = 512 << 20, PATIENCE_S = 30 };

static bool fail_open(struct device *d, struct err *err, int code, const char *function)
{
    const struct device_gpu *g = d->gpu;
    if (code)
        err_set(err, INGLE_UNSUP, "the driver '%s' fails in %s: %s", g->api.name, function,
                g->api.text(g->api.self, code));
    return code != 0;
}

/* The card that is requested, or with DEVICE_CARD_AUTO the first that can. */
static ingle_status choose_card(struct device *d, int want, int *card, struct err *err)
{
    struct device_gpu *g = d->gpu;
    struct gpu_about about = {0};
    int n = 0;
    if (fail_open(d, err, g->api.count(g->api.self, &n), "count"))
        return INGLE_UNSUP;
    if (n < 1)
        return err_set(err, INGLE_UNSUP, "the driver '%s' has no card", g->api.name);
    if (want > n)
        return err_set(err, INGLE_ARG, "there is no card %d: the driver '%s' has %d, from 0 on",
                       want - 1, g->api.name, n);
    err_set(err, INGLE_UNSUP, "no card can be used");
    for (int i = want > 0 ? want - 1 : 0; i < (want > 0 ? want : n); i++) {
        if (fail_open(d, err, g->api.about(g->api.self, i, &about), "about"))
            continue;
        if (10 * about.major + about.minor < LEAST_CAPABILITY) {
            err_set(err, INGLE_UNSUP, "card '%s' has compute capability %d.%d, least is %d.%d",
                    about.name, about.major, about.minor, LEAST_CAPABILITY / 10,
                    LEAST_CAPABILITY % 10);
            continue;
        }
        *card = i;
        g->info = (struct device_card_info){.number = i,
                                            .driver = about.driver,
                                            .major = about.major,
                                            .minor = about.minor,
                                            .shared = about.shared,
                                            .bytes = about.bytes,
                                            .free_bytes = about.free_bytes,
                                            .integrated = about.integrated};
        snprintf(g->info.name, sizeof g->info.name, "%s", about.name);
        return INGLE_OK;
    }
    return err->status;
}

static ingle_status open_card(struct device *d, int want, uint64_t memory, struct err *err)
{
    struct device_gpu *g = d->gpu;
    int card = 0;
    if (device_gpu_driver(&g->api, err))
        return err->status;
    if (choose_card(d, want, &card, err))
        return err->status;
    if (fail_open(d, err, g->api.open(g->api.self, card), "open"))
        return INGLE_UNSUP;
    g->opened = true;
    uint64_t left = 0;
    if (fail_open(d, err, g->api.free_bytes(g->api.self, &left), "free_bytes") ||
        fail_open(d, err, g->api.stream_make(g->api.self, &g->stream, true), "stream_make") ||
        fail_open(d, err, g->api.event_make(g->api.self, &g->event), "event_make"))
        return INGLE_UNSUP;
    g->patience_ns = (uint64_t)PATIENCE_S * 1000000000u;
    g->info.free_bytes = left;
    const uint64_t keep = left / 8 < CONTEXT_BYTES ? left / 8 : CONTEXT_BYTES;
    g->budget = left - keep;
    if (memory && memory < g->budget)
        g->budget = memory;
    if (!device_gpu_memory_open(d))
        return err_set(err, INGLE_NOMEM,
                       "card '%s' has too little memory: %llu bytes are free, %llu may be used",
                       g->info.name, (unsigned long long)left, (unsigned long long)g->budget);
    return device_gpu_kernels_open(d, err);
}

void device_gpu_close(struct device *d)
{
    struct device_gpu *g = d->gpu;
    if (!g)
        return;
    if (g->stream) { /* it may be at work, also when a call has failed */
        device_gpu_rest(g);
        (void)g->api.stream_free(g->api.self, g->stream);
    }
    device_upload_end(d);
    device_gpu_self_close(d);
    device_gpu_memory_close(d);
    device_gpu_kernels_close(d);
    if (g->event)
        (void)g->api.event_free(g->api.self, g->event);
    if (g->opened)
        g->api.close(g->api.self);
    if (g->api.unload)
        g->api.unload(g->api.self);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
    d->gpu = NULL;
}

ingle_status device_card_open(struct device *d, int card, uint64_t memory, struct err *err)
{
    struct err e = {INGLE_OK, ""};
    d->gpu = mem_zalloc(sizeof *d->gpu);
    if (!d->gpu)
        return err_set(err, INGLE_NOMEM, "no memory for a card");
    pthread_mutex_init(&d->gpu->lock, NULL);
    if (d->numerics == DEVICE_REFERENCE)
        err_set(&e, INGLE_UNSUP, "--numerics reference is the processor's");
    else if (!open_card(d, card, memory, &e)) {
        d->ops = &device_gpu_ops;
        return INGLE_OK;
    }
    const bool reported = atomic_load(&d->gpu->reported); /* it was lost on the way */
    device_gpu_close(d);
    if (e.status == INGLE_ARG) {
        if (err)
            *err = e;
        return e.status;
    }
    if (card != DEVICE_CARD_AUTO && !reported)
        report(d->sink, INGLE_REPORT_WARN, "fallback", "gpu", "%s: the processor computes", e.msg);
    return INGLE_OK;
}
