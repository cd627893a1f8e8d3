/* SPDX-License-Identifier: Apache-2.0 */
#include "kern/row.h"

#include "quant/quant.h"
#include <string.h>

size_t kern_row_bytes(enum kern_kv_codec c, int64_t width, int64_t tail)
{
    (void)tail;
    if (width < 1)
        return 0;
    switch (c) {
    case KERN_KV_F32:
        return (size_t)width * sizeof(float);
    case KERN_KV_F16:
    case KERN_KV_BF16:
        return ((size_t)width * sizeof(uint16_t) + 3) & ~(size_t)3;
    default:
        return 0;
    }
}

void kern_row_write(enum kern_kv_codec c, int64_t width, int64_t tail, void *dst,
                    const float *src)
{
    (void)tail;
    uint16_t *h = dst;
    if (c == KERN_KV_F32)
        memcpy(dst, src, (size_t)width * sizeof(float));
    else
        for (int64_t i = 0; i < width; i++)
            h[i] = c == KERN_KV_F16 ? quant_f32_to_f16(src[i]) : quant_f32_to_bf16(src[i]);
}

void kern_row_read(enum kern_kv_codec c, int64_t width, int64_t tail, const void *src,
                   float *dst)
{
    (void)tail;
    if (c == KERN_KV_F32)
        memcpy(dst, src, (size_t)width * sizeof(float));
    else
        quant_decode(c == KERN_KV_F16 ? QUANT_F16 : QUANT_BF16, src, dst, (size_t)width);
}
