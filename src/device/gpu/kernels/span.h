/*
 * span - rows of a batch that are positions of one timeline, as kernels read them (struct
 * device_span of device.h), and how to find a row's.
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_SPAN_H
#define INGLE_DEVICE_GPU_KERNELS_SPAN_H

#include "device/gpu/kernels/args.h"

/* Rows [row0, row0 + n) of the batch are positions pos0..; all addresses are the card's. */
struct gpu_span {
    uint8_t *const *page; /* of the stream's group, by position / 128; NULL: not there */
    const int32_t *first; /* of attention, [n]; or NULL */
    int64_t row0, n, pos0;
    int64_t window;       /* of attention: the span's own or the operation's; 0: none */
    int64_t through;
};

#if defined(__NVPTX__) || defined(GPU_EMULATOR)
#include "device/gpu/kernels/gpu.h"

struct gpu_place {
    const struct gpu_span *span;
    int64_t i; /* row of the span */
};

/* Row i of all rows of the spans, one span after the other. */
GPU_DEV struct gpu_place gpu_place_of(const struct gpu_span *span, int64_t i)
{
    struct gpu_place p;
    for (; i >= span->n; span++)
        i -= span->n;
    p.span = span;
    p.i = i;
    return p;
}
#endif

#endif
