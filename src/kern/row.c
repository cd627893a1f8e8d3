/* SPDX-License-Identifier: Apache-2.0 */
#include "kern/row.h"

#include "kern/row_fn.h"
#include "quant/quant.h"
#include <math.h>
#include <string.h>

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
        return (size_t)((width + tail + (width - tail + KERN_ROW_GROUP - 1) / KERN_ROW_GROUP + 3) &
                        ~3);
    case KERN_KV_FP4:
        if (tail || width % KERN_ROW_GROUP4)
            return 0;
        return (size_t)((width / 2 + width / KERN_ROW_GROUP4 + 3) & ~3);
    default:
        return 0;
    }
}

enum kern_kv_codec kern_row_block(enum kern_kv_codec c)
{
    return c == KERN_KV_FP8 ? KERN_KV_BF16 : c;
}

/* Of the largest number or max; false: one is none. */
static bool largest(const float *x, int64_t n, float *max)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return false;
        *max = fabsf(x[i]) > *max ? fabsf(x[i]) : *max;
    }
    return true;
}

static uint8_t scale_of(const float *x, int64_t n)
{
    float max = ROW_FP8_FLOOR;
    return largest(x, n, &max) ? row_fp8_scale(max) : 255;
}

static uint8_t scale4_of(const float *x)
{
    float max = ROW_FP4_FLOOR;
    return largest(x, KERN_ROW_GROUP4, &max) ? row_fp4_scale(max) : 255;
}

static void write_fp4(int64_t width, uint8_t *dst, const float *src)
{
    uint8_t *scale = dst + width / 2;
    for (int64_t at = 0; at < width; at += KERN_ROW_GROUP4, dst += KERN_ROW_GROUP4 / 2) {
        const uint8_t s = scale4_of(src + at);
        const float by = row_code_factor(s);
        for (int64_t j = 0; j < KERN_ROW_GROUP4 / 2; j++)
            dst[j] = (uint8_t)(s == 255 ? 0
                                        : row_fp4_code(src[at + j] * by) |
                                              row_fp4_code(src[at + j + 16] * by) << 4);
        *scale++ = s;
    }
}

static void read_fp4(int64_t width, const uint8_t *src, float *dst)
{
    const uint8_t *scale = src + width / 2;
    for (int64_t at = 0; at < width; at += KERN_ROW_GROUP4, src += KERN_ROW_GROUP4 / 2) {
        const float half = 0.5f * quant_e8m0_to_f32(*scale++);
        for (int64_t j = 0; j < KERN_ROW_GROUP4 / 2; j++) {
            dst[at + j] = half * (float)quant_e2m1_doubled[src[j] & 15];
            dst[at + j + 16] = half * (float)quant_e2m1_doubled[src[j] >> 4];
        }
    }
}

void kern_row_hadamard(float *x, int64_t n)
{
    const float by = (float)(1.0 / sqrt((double)n));
    for (int64_t h = 1; h < n; h *= 2)
        for (int64_t i = 0; i < n; i += 2 * h)
            for (int64_t j = i; j < i + h; j++) {
                const float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
    for (int64_t i = 0; i < n; i++)
        x[i] *= by;
}

static void write_fp8(int64_t width, int64_t tail, uint8_t *dst, const float *src)
{
    const int64_t n = width - tail;
    uint8_t *scale = dst + n + 2 * tail;
    for (int64_t at = 0; at < n; at += KERN_ROW_GROUP) {
        const int64_t m = n - at < KERN_ROW_GROUP ? n - at : KERN_ROW_GROUP;
        const uint8_t s = scale_of(src + at, m);
        const float by = row_code_factor(s);
        for (int64_t i = at; i < at + m; i++)
            dst[i] = s == 255 ? 0 : row_fp8_code(src[i] * by);
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
    else if (c == KERN_KV_FP4)
        write_fp4(width, dst, src);
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
    else if (c == KERN_KV_FP4)
        read_fp4(width, src, dst);
    else
        quant_decode(c == KERN_KV_F16 ? QUANT_F16 : QUANT_BF16, src, dst, (size_t)width);
}
