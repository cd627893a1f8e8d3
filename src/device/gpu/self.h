/* self - where a card's kernels are compared with the processor, before they are used. */
#ifndef INGLE_DEVICE_GPU_SELF_H
#define INGLE_DEVICE_GPU_SELF_H

#include "device/gpu/run.h"

enum { GPU_SELF_BYTES = 1 << 20 };

/* Memory of both sides at the same offsets.  What a test puts there goes up before its launches;
 * what they leave comes back beside it. */
struct gpu_self {
    struct device *d;
    const char *name; /* of the kernel */
    uint8_t *host, *back, *card;
    size_t used;
    bool full; /* a test wanted more than there is */
};

/* The card's address of a copy of n_bytes (NULL: zeros). */
void *device_gpu_self_in(struct gpu_self *s, const void *host, size_t n_bytes);
/* Of floats of mixed sizes and signs, among them some that are odd; where the host has them. */
float *device_gpu_self_floats(struct gpu_self *s, int64_t n, bool odd, float **host);
/* Sends all, and starts again to collect launches. */
bool device_gpu_self_send(struct gpu_self *s);
/* Whether the n floats at a card's address are those, NaN being one value; or the bytes. */
bool device_gpu_self_same(const struct gpu_self *s, const void *card, const float *want, int64_t n);
bool device_gpu_self_same_bytes(const struct gpu_self *s, const void *card, const void *want,
                                size_t n_bytes);
/* After the launches: what there is on the card is in s->back. */
bool device_gpu_self_fetch(struct gpu_self *s);

/* A kernel on small, awkward inputs; false: its bits are not the processor's. */
typedef bool gpu_self_fn(struct gpu_self *s, enum gpu_kernel k);
/* Whether kernels of a module are compared. */
bool device_gpu_self_tests(const char *module);
gpu_self_fn device_gpu_self_row, device_gpu_self_pages, device_gpu_self_product,
    device_gpu_self_stream;

#endif
