/*
 * image - code of kernels in this library: PTX, which a driver compiles for its card, or machine
 * code, where the build had an assembler.
 */
#ifndef INGLE_DEVICE_GPU_IMAGE_H
#define INGLE_DEVICE_GPU_IMAGE_H

#include "device/gpu/api.h"

struct device_gpu_code {
    const char *module;
    int least;  /* compute capability, as 75 */
    bool exact; /* machine code: of cards with the same major number */
    const uint8_t *begin, *end; /* PTX ends with a zero, or is what gzip made of its text */
};
/* The build's; the last has no module. */
extern const struct device_gpu_code device_gpu_codes[];

/* Of a table: the best code of a module for a card of that compute capability; text: PTX only.
 * NULL: there is none. */
const struct device_gpu_code *device_gpu_code_of(const struct device_gpu_code *table,
                                                 const char *module, int capability, bool text);
/* The build's; false: it has made none, or there is no memory for it.  It lives until
 * device_gpu_image_free(). */
bool device_gpu_image(const char *module, int capability, bool text, struct gpu_image *out);
void device_gpu_image_free(struct gpu_image *image); /* also of one that is all zero */

#endif
