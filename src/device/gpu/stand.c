/* SPDX-License-Identifier: Apache-2.0 */
/* stand - the processor in the place of the card, and beside it. */
#include "device/gpu/card.h"

void device_gpu_on_host(struct device *d, enum device_op op, const void *args, void *scratch)
{
    device_cpu_ops.run[op](d, args, scratch);
}

void device_gpu_divide(struct device *d, enum device_op op, const void *args, void *scratch)
{
    device_cpu_ops.run[op](d, args, scratch);
}
