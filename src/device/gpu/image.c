/* SPDX-License-Identifier: Apache-2.0 */
/* Code of kernels that the build has made: the best that a card accepts. */
#include "device/gpu/image.h"

#include <string.h>

bool device_gpu_image(const char *module, int capability, struct gpu_image *out)
{
    const struct device_gpu_code *best = NULL;
    for (const struct device_gpu_code *c = device_gpu_codes; c->module; c++)
        if (!strcmp(c->module, module) && c->least <= capability &&
            (!c->exact || c->least / 10 == capability / 10) &&
            (!best || c->least > best->least || (c->least == best->least && c->exact)))
            best = c;
    if (best)
        *out = (struct gpu_image){best->module, best->begin, (size_t)(best->end - best->begin)};
    return best != NULL;
}
