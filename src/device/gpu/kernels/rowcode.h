/* rowcode - rows of streams (kern/row.h) by the threads of a block, and one element of them. */
#ifndef INGLE_DEVICE_GPU_KERNELS_ROWCODE_H
#define INGLE_DEVICE_GPU_KERNELS_ROWCODE_H

#include "device/gpu/kernels/gpu.h"
#include "device/gpu/kernels/number.h"
GPU_BOTH_BEGIN
#include "kern/attend_part.h"
#include "kern/row.h"
GPU_BOTH_END

/* The scale of a group of 64 of FP8, or of 32 of FP4, of which this lane has up to two elements;
 * 255: one is not finite. */
GPU_DEV int rowcode_scale(bool fp4, float x, float y)
{
    float top = number_is_finite(x) && number_is_finite(y) ? 0.0f : NUMBER_INFINITY;
    if (number_is_finite(top)) {
        top = number_magnitude(x);
        top = number_magnitude(y) > top ? number_magnitude(y) : top;
    }
    for (int h = 16; h; h /= 2) {
        const float other = gpu_shfl_xor(top, h);
        top = other > top ? other : top;
    }
    const float least = fp4 ? ROW_FP4_FLOOR : ROW_FP8_FLOOR;
    if (!number_is_finite(top))
        return 255;
    top = top > least ? top : least;
    return fp4 ? row_fp4_scale(top) : row_fp8_scale(top);
}

/* A warp a group of 64. */
GPU_DEV void rowcode_write_fp8(int width, int tail, uint8_t *dst, const float *src)
{
    const int n = width - tail, lane = gpu_lane(), warps = gpu_threads() / 32;
    for (int at = gpu_warp() * KERN_ROW_GROUP; at < n; at += warps * KERN_ROW_GROUP) {
        const int i = at + lane, j = i + 32;
        const float x = i < n ? src[i] : 0.0f, y = j < n ? src[j] : 0.0f;
        const int scale = rowcode_scale(false, x, y);
        const float by = scale == 255 ? 0.0f : row_code_factor((uint8_t)scale);
        if (i < n)
            dst[i] = scale == 255 ? 0 : row_fp8_code(x * by);
        if (j < n)
            dst[j] = scale == 255 ? 0 : row_fp8_code(y * by);
        if (lane == 0)
            dst[n + 2 * tail + at / KERN_ROW_GROUP] = (uint8_t)scale;
    }
    /* The codes may end at an odd address. */
    for (int i = gpu_tid(); i < tail; i += gpu_threads()) {
        const uint16_t h = number_to_bf16(src[n + i]);
        dst[n + 2 * i] = (uint8_t)h;
        dst[n + 2 * i + 1] = (uint8_t)(h >> 8);
    }
}

/* A warp a group of 32. */
GPU_DEV void rowcode_write_fp4(int width, uint8_t *dst, const float *src)
{
    const int lane = gpu_lane(), warps = gpu_threads() / 32;
    for (int g = gpu_warp(); g < width / KERN_ROW_GROUP4; g += warps) {
        const float x = src[g * KERN_ROW_GROUP4 + lane];
        const int scale = rowcode_scale(true, x, 0.0f);
        const int code = scale == 255 ? 0 : row_fp4_code(x * row_code_factor((uint8_t)scale));
        const int high = gpu_shfl_int(code, (lane + 16) & 31);
        if (lane < 16)
            dst[g * 16 + lane] = (uint8_t)(code | high << 4);
        if (lane == 0)
            dst[width / 2 + g] = (uint8_t)scale;
    }
}

/* All threads of a block, whole warps. */
GPU_DEV void rowcode_write(int codec, int width, int tail, uint8_t *dst, const float *src)
{
    if (codec == KERN_KV_FP8) {
        rowcode_write_fp8(width, tail, dst, src);
        return;
    }
    if (codec == KERN_KV_FP4) {
        rowcode_write_fp4(width, dst, src);
        return;
    }
    for (int i = gpu_tid(); i < width; i += gpu_threads()) {
        if (codec == KERN_KV_F32)
            ((float *)(void *)dst)[i] = src[i];
        else
            ((uint16_t *)(void *)dst)[i] =
                codec == KERN_KV_F16 ? number_to_f16(src[i]) : number_to_bf16(src[i]);
    }
}

/* Element i of a row. */
GPU_DEV float rowcode_read(int codec, int width, int tail, const uint8_t *src, int i)
{
    if (codec == KERN_KV_F32)
        return ((const float *)(const void *)src)[i];
    if (codec == KERN_KV_F16)
        return number_f16(((const uint16_t *)(const void *)src)[i]);
    if (codec == KERN_KV_BF16)
        return number_bf16(((const uint16_t *)(const void *)src)[i]);
    if (codec == KERN_KV_FP4) {
        const int g = i / KERN_ROW_GROUP4, j = i % KERN_ROW_GROUP4;
        const int both = src[g * 16 + j % 16], code = j < 16 ? both & 15 : both >> 4;
        return 0.5f * number_e8m0(src[width / 2 + g]) * (float)number_e2m1_doubled(code);
    }
    const int n = width - tail;
    if (i < n)
        return number_e4m3(src[i]) * number_e8m0(src[n + 2 * tail + i / KERN_ROW_GROUP]);
    i = n + 2 * (i - n);
    return number_bf16((uint16_t)(src[i] | src[i + 1] << 8));
}

#endif
