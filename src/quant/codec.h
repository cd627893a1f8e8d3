/*
 * codec - what the format families of this room share.
 *
 * A family file defines a static function that decodes one block and makes the decoder of
 * many blocks with QUANT_DECODER.  Names follow quant/types.inc.
 */
#ifndef INGLE_QUANT_CODEC_H
#define INGLE_QUANT_CODEC_H

#include "quant/number.h"
#include "quant/quant.h"
#include <string.h>

typedef void quant_decode_fn(const void *src, float *dst, size_t n_blocks);
typedef void quant_encode_fn(const float *src, void *dst, size_t n_blocks);

#define QUANT_TYPE(id, name, fn, n, n_bytes, quantised, scales, encode)                            \
    quant_decode_fn quant_decode_##fn;
#include "quant/types.inc"
#undef QUANT_TYPE

quant_encode_fn quant_encode_f32, quant_encode_f16, quant_encode_bf16;
quant_encode_fn quant_encode_q8_0, quant_encode_q4_0, quant_encode_q4_1;
quant_encode_fn quant_encode_q5_0, quant_encode_q5_1, quant_encode_mxfp4;

/* Makes quant_decode_FN from FN_block(const struct quant_FN *, float [n]); blocks may be
 * at any address. */
#define QUANT_DECODER(fn, n)                                                                       \
    void quant_decode_##fn(const void *src, float *dst, size_t n_blocks)                           \
    {                                                                                              \
        const char *at = src;                                                                      \
        for (size_t i = 0; i < n_blocks; i++) {                                                    \
            struct quant_##fn b;                                                                   \
            memcpy(&b, at + i * sizeof b, sizeof b);                                               \
            fn##_block(&b, dst + i * (n));                                                         \
        }                                                                                          \
    }

#define QUANT_ENCODER(fn, n)                                                                       \
    void quant_encode_##fn(const float *src, void *dst, size_t n_blocks)                           \
    {                                                                                              \
        char *at = dst;                                                                            \
        for (size_t i = 0; i < n_blocks; i++) {                                                    \
            struct quant_##fn b;                                                                   \
            fn##_pack(src + i * (n), &b);                                                          \
            memcpy(at + i * sizeof b, &b, sizeof b);                                               \
        }                                                                                          \
    }

static inline float codec_bits_to_f32(uint32_t bits)
{
    return both_float(bits);
}

static inline uint32_t codec_f32_to_bits(float f)
{
    return both_word(f);
}

static inline float codec_f16(uint16_t h)
{
    return number_f16(h);
}

/* 2^(e - 128): half an E8M0 scale, because the codes of MXFP4 are doubled. */
static inline float codec_half_e8m0(uint8_t e)
{
    if (e == 255)
        return quant_e8m0_to_f32(e);
    return codec_bits_to_f32(e < 2 ? 0x00200000u << e : (e - 1u) << 23);
}

/* Unsigned E4M3, halved because the codes of NVFP4 are doubled; 0x7F is the reference's zero. */
static inline float codec_half_ue4m3(uint8_t b)
{
    const uint32_t e = b >> 3 & 15, m = b & 7;
    if (b == 0x7F)
        return 0;
    return e ? codec_bits_to_f32((e + 119) << 23 | m << 20) : (float)m * 0x1p-10f;
}

/* Spreads 32 codes of 5 bits: nibbles and the high bits. */
static inline void codec_put_5bit(const uint8_t code[32], uint8_t qh[4], uint8_t n[16])
{
    uint32_t h = 0;
    for (int j = 0; j < 32; j++)
        h |= (uint32_t)(code[j] >> 4) << j;
    memcpy(qh, &h, sizeof h);
    for (int j = 0; j < 16; j++)
        n[j] = (uint8_t)((code[j] & 15) | (code[j + 16] & 15) << 4);
}

#endif
