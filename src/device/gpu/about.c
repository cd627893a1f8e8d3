/* SPDX-License-Identifier: Apache-2.0 */
/* about - what is known of the card of a device, and how it is to be used. */
#include "device/gpu/card.h"
#include "device/gpu/kernel.h"

void device_gpu_set_choice(struct device *d, device_gpu_choice_fn *fn, void *arg)
{
    if (d->gpu) {
        d->gpu->choice = fn;
        d->gpu->choice_arg = arg;
    }
}

const struct device_card_info *device_card(const struct device *d)
{
    return d->gpu && !d->gpu->lost ? &d->gpu->info : NULL;
}

void device_card_idle(struct device *d, bool idle)
{
    if (d->gpu)
        d->gpu->idle = idle;
}

bool device_card_lost(const struct device *d)
{
    return d->gpu && d->gpu->lost;
}

uint64_t device_card_left(const struct device *d)
{
    return device_card(d) ? d->gpu->budget - d->gpu->used : 0;
}
