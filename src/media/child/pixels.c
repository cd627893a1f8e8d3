/* SPDX-License-Identifier: Apache-2.0 */
/* pixels - what the formats of pictures have in common. */
#include "media/child/child.h"

#include "base/mem.h"
#include "base/num.h"

ingle_status media_child_pixels(uint8_t **out, int64_t w, int64_t h, int n_channels,
                                const char *format, struct err *err)
{
    size_t n;
    const ingle_status s = media_check_pixels(w, h, format, err);
    if (s != INGLE_OK)
        return s;
    uint8_t *p = NULL;
    if (num_mul((size_t)w * (size_t)h, (size_t)n_channels, &n))
        p = mem_zalloc(n);
    if (!p)
        return err_set(err, INGLE_ARG,
                       "%s: %lld x %lld pixels need more memory than the decoder has", format,
                       (long long)w, (long long)h);
    *out = p;
    return INGLE_OK;
}

void media_child_on_white(uint8_t *at, size_t n)
{
    uint8_t *out = at;
    for (size_t i = 0; i < n; i++, at += 4, out += 3) {
        const unsigned a = at[3];
        for (int c = 0; c < 3; c++)
            out[c] = (uint8_t)((at[c] * a + 255 * (255 - a) + 127) / 255);
    }
}
