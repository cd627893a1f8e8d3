/*
 * lookup512 - numbers of book points become values: look-ups in tables of registers by byte
 * permutes (kern/code.h has the lines).
 */
#ifndef INGLE_KERN_X86_MATMUL_LOOKUP512_H
#define INGLE_KERN_X86_MATMUL_LOOKUP512_H

#include "kern/x86/matmul/codes.h"

#include <immintrin.h>

static inline __m512i line(const uint8_t *at) { return _mm512_loadu_si512(at); }

/* Two words of 32 bits, each its four bytes from `first` (and 32) on, in steps. */
static ATTR_INLINE __m512i bit_steps(unsigned first, unsigned step)
{
    const uint64_t steps = step << 8 | 2u * step << 16 | 3u * step << 24;
    return _mm512_set1_epi64((long long)(((first + 32u) * 0x01010101u + steps) << 32 |
                                         (first * 0x01010101u + steps)));
}

/* Two tables of 256 bytes. */
struct tables { __m512i a[4], b[4]; };

static ATTR_INLINE struct tables load_tables(const uint8_t from[2][256])
{
    struct tables k;
    for (int i = 0; i < 4; i++) {
        k.a[i] = line(from[0] + 64 * i);
        k.b[i] = line(from[1] + 64 * i);
    }
    return k;
}

static ATTR_INLINE __m512i look_up(const __m512i t[4], __m512i number, __mmask64 high)
{
    return _mm512_mask_blend_epi8(high, _mm512_permutex2var_epi8(t[0], number, t[1]),
                                  _mm512_permutex2var_epi8(t[2], number, t[3]));
}

/* Bytes of seven signs each, with the eighth that makes their number even. */
static ATTR_INLINE __m512i signs(__m512i words)
{
    const __m512i seven = _mm512_multishift_epi64_epi8(bit_steps(0, 7), words);
    return _mm512_gf2p8affine_epi64_epi8(seven, _mm512_set1_epi64(0x010204081020407F), 0);
}

/* The same of seven signs each above a bit that is not one. */
static ATTR_INLINE __m512i signs_above(__m512i seven)
{
    return _mm512_gf2p8affine_epi64_epi8(seven, _mm512_set1_epi64(0x02040810204080FE), 0);
}

/* 2 s + 1 of the top four bits: the lowest bit is set whatever it was. */
static ATTR_INLINE __m512i sub_scales(__m512i words)
{
    return _mm512_or_si512(_mm512_srli_epi32(words, 27), _mm512_set1_epi32(1));
}

/* d of 16 rows. */
static ATTR_INLINE __m512 scales(const uint8_t *halves, float factor)
{
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)halves)),
                         _mm512_set1_ps(factor));
}

/* Numbers with bits from 8 on, as masks, in tables of 512 and of 1,024 bytes. */
static ATTR_INLINE __m512i look_up_256(const uint8_t *t, __m512i number, __mmask64 bit7)
{
    const __m512i k[4] = {line(t), line(t + 64), line(t + 128), line(t + 192)};
    return look_up(k, number, bit7);
}
static ATTR_INLINE __m512i look_up_512(const uint8_t *t, __m512i number, __mmask64 bit7,
                                       __mmask64 bit8)
{
    return _mm512_mask_blend_epi8(bit8, look_up_256(t, number, bit7),
                                  look_up_256(t + 256, number, bit7));
}
static ATTR_INLINE __m512i look_up_1024(const uint8_t *t, __m512i number, __mmask64 bit7,
                                        __mmask64 bit8, __mmask64 bit9)
{
    return _mm512_mask_blend_epi8(bit9, look_up_512(t, number, bit7, bit8),
                                  look_up_512(t + 512, number, bit7, bit8));
}

static ATTR_INLINE __m512i bytes_of_rows(const uint8_t *at)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
}
/* Bits first, first + step, ... of each row's dword, one for each byte of a line. */
static ATTR_INLINE __mmask64 bits(__m512i dwords, __m512i which)
{
    return _mm512_bitshuffle_epi64_mask(dwords, which);
}

/* The coordinates of points, without signs; F of 64 numbers, for tables. */
#define LEVEL_3(i) ((i) == 7 ? 62 : 8 * (i) + 4)
#define ODD_3(i) (2 * (i) + 1)
#define LEVEL_2(i) ((i) == 2 ? 43 : (i) == 1 ? 25 : 8)
#define VALUES_8(F, bias, at) \
    bias + F(at), bias + F((at) + 1), bias + F((at) + 2), bias + F((at) + 3), bias + F((at) + 4), \
        bias + F((at) + 5), bias + F((at) + 6), bias + F((at) + 7)
#define VALUES_64(F, bias)                                                                         \
    VALUES_8(F, bias, 0), VALUES_8(F, bias, 8), VALUES_8(F, bias, 16), VALUES_8(F, bias, 24),      \
        VALUES_8(F, bias, 32), VALUES_8(F, bias, 40), VALUES_8(F, bias, 48), VALUES_8(F, bias, 56)

#endif
