/* SPDX-License-Identifier: Apache-2.0 */
/* Plain numbers: floats of 8 to 64 bits, exponents, integers. */
#include "quant/codec.h"

float quant_f16_to_f32(uint16_t h)
{
    return codec_f16(h);
}

uint16_t quant_f32_to_f16(float f)
{
    return number_to_f16(f);
}

float quant_bf16_to_f32(uint16_t b)
{
    return number_bf16(b);
}

uint16_t quant_f32_to_bf16(float f)
{
    return number_to_bf16(f);
}

float quant_e8m0_to_f32(uint8_t e)
{
    return number_e8m0(e);
}

float quant_fp8_e4m3_to_f32(uint8_t b)
{
    return number_e4m3(b);
}

void quant_decode_f32(const void *src, float *dst, size_t n)
{
    memcpy(dst, src, n * sizeof *dst);
}

void quant_encode_f32(const float *src, void *dst, size_t n)
{
    memcpy(dst, src, n * sizeof *src);
}

/* Element-wise decoders: type T as it is stored in the file, converted by EXPR of v. */
#define ELEMENTS(fn, T, expr)                                                                      \
    void quant_decode_##fn(const void *src, float *dst, size_t n)                                  \
    {                                                                                              \
        const char *at = src;                                                                      \
        for (size_t i = 0; i < n; i++) {                                                           \
            T v;                                                                                   \
            memcpy(&v, at + i * sizeof v, sizeof v);                                               \
            dst[i] = (expr);                                                                       \
        }                                                                                          \
    }

ELEMENTS(f16, uint16_t, codec_f16(v))
ELEMENTS(bf16, uint16_t, number_bf16(v))
ELEMENTS(f64, double, (float)v)
ELEMENTS(i8, int8_t, (float)v)
ELEMENTS(i16, int16_t, (float)v)
ELEMENTS(i32, int32_t, (float)v)
ELEMENTS(i64, int64_t, (float)v)
ELEMENTS(u8, uint8_t, (float)v)
ELEMENTS(bool, uint8_t, v ? 1.0f : 0.0f)
ELEMENTS(fp8_e4m3, uint8_t, number_e4m3(v))
ELEMENTS(e8m0, uint8_t, quant_e8m0_to_f32(v))

/* Exact: four significant bits times a power of two. */
void quant_decode_fp8_b32(const void *src, float *dst, size_t n)
{
    const struct quant_fp8_b32 *b = src;
    for (size_t i = 0; i < n; i++, b++) {
        const float scale = quant_e8m0_to_f32(b->scale);
        for (int j = 0; j < 32; j++)
            *dst++ = number_e4m3(b->code[j]) * scale;
    }
}

/* One rounding: the product that a decoder in floats would write. */
void quant_decode_fp8_s32(const void *src, float *dst, size_t n)
{
    const struct quant_fp8_s32 *b = src;
    for (size_t i = 0; i < n; i++, b++) {
        float scale;
        memcpy(&scale, b->scale, sizeof scale);
        for (int j = 0; j < 32; j++)
            *dst++ = number_e4m3(b->code[j]) * scale;
    }
}

void quant_encode_f16(const float *src, void *dst, size_t n)
{
    char *at = dst;
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = quant_f32_to_f16(src[i]);
        memcpy(at + i * sizeof h, &h, sizeof h);
    }
}

void quant_encode_bf16(const float *src, void *dst, size_t n)
{
    char *at = dst;
    for (size_t i = 0; i < n; i++) {
        const uint16_t b = quant_f32_to_bf16(src[i]);
        memcpy(at + i * sizeof b, &b, sizeof b);
    }
}
