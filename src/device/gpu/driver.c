/* SPDX-License-Identifier: Apache-2.0 */
/* driver - the one place that names a driver; programs of the tests have another one here. */
#include "device/gpu/api.h"

ingle_status device_gpu_driver(struct gpu_api *out, struct err *err)
{
    return device_gpu_cuda(out, err);
}
