/* SPDX-License-Identifier: Apache-2.0 */
/* run - the operations that the card has. */
#include "device/gpu/card.h"

gpu_run_fn *const device_gpu_run[DEVICE_OPS] = {0};

size_t device_gpu_scratch(const struct device *d, enum device_op op, const void *args)
{
    (void)d;
    (void)op;
    (void)args;
    return 0;
}

const char *device_card_refuses(struct device *d, const struct device_matrix *m)
{
    (void)d;
    (void)m;
    return "the card has no kernel for it";
}

const char *device_card_refuses_kv(struct device *d, const struct device_kv *kv)
{
    (void)d;
    (void)kv;
    return "the card has no kernel for it";
}

const char *device_card_refuses_stream(struct device *d, const struct device_stream *s)
{
    (void)d;
    (void)s;
    return "the card has no kernel for it";
}

bool device_gpu_image(const char *module, int least, struct gpu_image *out)
{
    (void)module;
    (void)least;
    (void)out;
    return false;
}
