/* SPDX-License-Identifier: Apache-2.0 */
#include "kern/row.h"

#include "quant/quant.h"
#include <math.h>
#include <string.h>

#define FP8_MAX   448.0f
#define FP8_FLOOR 1e-4f

size_t kern_row_bytes(enum kern_kv_codec c, int64_t width, int64_t tail)
{
    if (width < 1 || width > INT32_MAX)
        return 0;
    switch (c) {
    case KERN_KV_F32:
        return (size_t)width * sizeof(float);
    case KERN_KV_F16:
    case KERN_KV_BF16:
        return ((size_t)width * sizeof(uint16_t) + 3) & ~(size_t)3;
    case KERN_KV_FP8:
        if (tail < 0 || tail > width)
            return 0;
        return (size_t)((width + tail + (width - tail + KERN_ROW_GROUP - 1) / KERN_ROW_GROUP + 3) & ~3);
    default:
        return 0;
    }
}

enum kern_kv_codec kern_row_block(enum kern_kv_codec c)
{
    return c == KERN_KV_FP8 ? KERN_KV_BF16 : c;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* 448 is 1.75 * 2^8: above 1.75 of its own power of two a maximum needs the next scale. */
static uint8_t scale_of(const float *x, int64_t n)
{
    float max = FP8_FLOOR;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return 255;
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    }
    return (uint8_t)(((bits_of(max) + 0x1fffff) >> 23) - 8);
}

/* |x| <= 448.  Below 2^-6 the codes are multiples of 2^-9. */
static uint8_t code_of(float x)
{
    const uint32_t u = bits_of(x), mag = u & 0x7fffffff;
    const uint32_t normal = ((mag + 0x7ffff + (mag >> 20 & 1)) >> 20) - (120 << 3);
    const uint32_t small = bits_of(fabsf(x) + 16384.0f) - bits_of(16384.0f);
    return (uint8_t)((mag < bits_of(0x1p-6f) ? small : normal) | (u >> 24 & 0x80));
}

static void write_fp8(int64_t width, int64_t tail, uint8_t *dst, const float *src)
{
    const int64_t n = width - tail;
    uint8_t *scale = dst + n + 2 * tail;
    for (int64_t at = 0; at < n; at += KERN_ROW_GROUP) {
        const int64_t m = n - at < KERN_ROW_GROUP ? n - at : KERN_ROW_GROUP;
        const uint8_t s = scale_of(src + at, m);
        const float by = float_of((uint32_t)(254 - s) << 23);
        for (int64_t i = at; i < at + m; i++)
            dst[i] = s == 255 ? 0 : code_of(src[i] * by);
        *scale++ = s;
    }
    for (int64_t i = 0; i < tail; i++) {
        const uint16_t h = quant_f32_to_bf16(src[n + i]);
        memcpy(dst + n + 2 * i, &h, sizeof h);
    }
}

static void read_fp8(int64_t width, int64_t tail, const uint8_t *src, float *dst)
{
    const int64_t n = width - tail;
    const uint8_t *scale = src + n + 2 * tail;
    for (int64_t i = 0; i < n; i++)
        dst[i] = quant_fp8_e4m3_to_f32(src[i]) * quant_e8m0_to_f32(scale[i / KERN_ROW_GROUP]);
    for (int64_t i = 0; i < tail; i++) {
        uint16_t h;
        memcpy(&h, src + n + 2 * i, sizeof h);
        dst[n + i] = quant_bf16_to_f32(h);
    }
}

void kern_row_write(enum kern_kv_codec c, int64_t width, int64_t tail, void *dst,
                    const float *src)
{
    uint16_t *h = dst;
    if (c == KERN_KV_F32)
        memcpy(dst, src, (size_t)width * sizeof(float));
    else if (c == KERN_KV_FP8)
        write_fp8(width, tail, dst, src);
    else
        for (int64_t i = 0; i < width; i++)
            h[i] = c == KERN_KV_F16 ? quant_f32_to_f16(src[i]) : quant_f32_to_bf16(src[i]);
}

void kern_row_read(enum kern_kv_codec c, int64_t width, int64_t tail, const void *src,
                   float *dst)
{
    if (c == KERN_KV_F32)
        memcpy(dst, src, (size_t)width * sizeof(float));
    else if (c == KERN_KV_FP8)
        read_fp8(width, tail, src, dst);
    else
        quant_decode(c == KERN_KV_F16 ? QUANT_F16 : QUANT_BF16, src, dst, (size_t)width);
}
