/* SPDX-License-Identifier: Apache-2.0 */
/* Code of kernels that the build has made: the best that a card accepts. */
#include "device/gpu/image.h"
#include "base/mem.h"

#include <string.h>
#ifdef INGLE_ZLIB
#define ZLIB_CONST
#include <zlib.h>

enum { GZIP_LEAST = 18 }; /* bytes of its head and of its end */

/* Text of PTX and a zero, from what gzip made of it; NULL: no memory, or not gzip's. */
static uint8_t *unpack(const uint8_t *from, size_t n_from, size_t *n_bytes)
{
    /* the last four bytes are the length of the text */
    const uint8_t *last = from + n_from - 4;
    const size_t n = last[0] | (size_t)last[1] << 8 | (size_t)last[2] << 16 | (size_t)last[3] << 24;
    uint8_t *text = mem_alloc(n + 1);
    z_stream z = {.next_in = from, .avail_in = (uInt)n_from};
    if (!text)
        return NULL;
    z.next_out = text;
    z.avail_out = (uInt)n;
    const bool begun = inflateInit2(&z, 16 + MAX_WBITS) == Z_OK; /* 16: gzip's head and end */
    const bool whole = begun && inflate(&z, Z_FINISH) == Z_STREAM_END && z.total_out == n;
    if (begun)
        (void)inflateEnd(&z);
    if (!whole) {
        mem_free(text);
        return NULL;
    }
    text[n] = 0;
    *n_bytes = n + 1;
    return text;
}

static bool is_gzip(const struct gpu_image *image)
{
    const uint8_t *at = image->at;
    return image->n_bytes >= GZIP_LEAST && at[0] == 0x1f && at[1] == 0x8b;
}
#endif

const struct device_gpu_code *device_gpu_code_of(const struct device_gpu_code *table,
                                                 const char *module, int capability, bool text)
{
    const struct device_gpu_code *best = NULL;
    for (const struct device_gpu_code *c = table; c->module; c++)
        if (!strcmp(c->module, module) && c->least <= capability && c->end - c->begin > 1 &&
            (!c->exact || (!text && c->least / 10 == capability / 10)) &&
            (!best || c->exact > best->exact ||
             (c->exact == best->exact && c->least > best->least)))
            best = c;
    return best;
}

bool device_gpu_image(const char *module, int capability, bool text, struct gpu_image *out)
{
    const struct device_gpu_code *best =
        device_gpu_code_of(device_gpu_codes, module, capability, text);
    if (!best)
        return false;
    *out = (struct gpu_image){best->module, best->begin, (size_t)(best->end - best->begin), NULL,
                              best->exact};
#ifdef INGLE_ZLIB
    if (is_gzip(out))
        out->at = out->own = unpack(best->begin, out->n_bytes, &out->n_bytes);
#endif
    return out->at != NULL;
}

void device_gpu_image_free(struct gpu_image *image)
{
    mem_free(image->own);
    *image = (struct gpu_image){0};
}
