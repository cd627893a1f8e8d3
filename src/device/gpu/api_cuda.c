/* SPDX-License-Identifier: Apache-2.0 */
/* api_cuda - NVIDIA's driver, opened with dlopen. */
#include "device/gpu/api.h"

ingle_status device_gpu_cuda(struct gpu_api *out, struct err *err)
{
    (void)out;
    return err_set(err, INGLE_UNSUP, "not built");
}
