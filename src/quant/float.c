/* SPDX-License-Identifier: Apache-2.0 */
/* Plain numbers: floats of 8 to 64 bits, exponents, integers. */
#include "quant/codec.h"

float quant_f16_to_f32(uint16_t h)
{
    return codec_f16(h);
}

uint16_t quant_f32_to_f16(float f)
{
    const uint32_t bits = codec_f32_to_bits(f), x = bits & 0x7FFFFFFF;
    const uint32_t sign = bits >> 16 & 0x8000;
    uint32_t h;
    if (x > 0x7F800000)
        h = 0x7E00 | (x >> 13 & 0x1FF); /* a quiet NaN */
    else if (x >= 0x477FF000)
        h = 0x7C00;          /* 65520 and more round to infinity */
    else if (x < 0x38800000) /* the sum's last place is the subnormal quantum 2^-24 */
        h = codec_f32_to_bits(codec_bits_to_f32(x) + 0.5f) - 0x3F000000;
    else
        h = (x - (112u << 23) + 0xFFF + (x >> 13 & 1)) >> 13;
    return (uint16_t)(sign | h);
}

static inline float bf16(uint16_t b)
{
    return codec_bits_to_f32((uint32_t)b << 16);
}

float quant_bf16_to_f32(uint16_t b)
{
    return bf16(b);
}

uint16_t quant_f32_to_bf16(float f)
{
    const uint32_t x = codec_f32_to_bits(f);
    if ((x & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(x >> 16 | 0x40);
    return (uint16_t)((x + 0x7FFF + (x >> 16 & 1)) >> 16);
}

float quant_e8m0_to_f32(uint8_t e)
{
    return codec_bits_to_f32(e == 255 ? 0x7FC00000u : e ? (uint32_t)e << 23 : 0x00400000u);
}

static inline float fp8_e4m3(uint8_t b)
{
    const uint32_t em = b & 0x7F, sign = (uint32_t)(b & 0x80) << 24;
    const uint32_t sub = codec_f32_to_bits((float)em * 0x1p-9f);
    const uint32_t normal = em == 0x7F ? 0x7FC00000u : (em << 20) + (120u << 23);
    return codec_bits_to_f32(sign | (em < 8 ? sub : normal));
}

float quant_fp8_e4m3_to_f32(uint8_t b)
{
    return fp8_e4m3(b);
}

void quant_decode_f32(const void *src, float *dst, size_t n)
{
    memcpy(dst, src, n * sizeof *dst);
}

void quant_encode_f32(const float *src, void *dst, size_t n)
{
    memcpy(dst, src, n * sizeof *src);
}

/* Element-wise decoders: type T as it lies in the file, converted by EXPR of v. */
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
ELEMENTS(bf16, uint16_t, bf16(v))
ELEMENTS(f64, double, (float)v)
ELEMENTS(i8, int8_t, (float)v)
ELEMENTS(i16, int16_t, (float)v)
ELEMENTS(i32, int32_t, (float)v)
ELEMENTS(i64, int64_t, (float)v)
ELEMENTS(u8, uint8_t, (float)v)
ELEMENTS(bool, uint8_t, v ? 1.0f : 0.0f)
ELEMENTS(fp8_e4m3, uint8_t, fp8_e4m3(v))
ELEMENTS(e8m0, uint8_t, quant_e8m0_to_f32(v))

/* Exact: four significant bits times a power of two. */
void quant_decode_fp8_b32(const void *src, float *dst, size_t n)
{
    const struct quant_fp8_b32 *b = src;
    for (size_t i = 0; i < n; i++, b++) {
        const float scale = quant_e8m0_to_f32(b->scale);
        for (int j = 0; j < 32; j++)
            *dst++ = fp8_e4m3(b->code[j]) * scale;
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
            *dst++ = fp8_e4m3(b->code[j]) * scale;
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
