/* SPDX-License-Identifier: Apache-2.0 */
/* Products for many rows of codes that are unpacked by shifts. */
#include "kern/kernels.h"
#include "kern/x86/matmul/quads512.h"
#include "kern/x86/matmul/spread512.h"

#define KERNEL(name, tile, block, type, n_packed)                                                  \
    SPREAD_KERNEL(kern_matmul_##name##_spread_avx512vnni, spread_##name, tile, block, type,        \
                  n_packed)
#define EACH_QUAD(F, ...)                                                                          \
    F(0, __VA_ARGS__)                                                                              \
    F(1, __VA_ARGS__) F(2, __VA_ARGS__) F(3, __VA_ARGS__) F(4, __VA_ARGS__) F(5, __VA_ARGS__)      \
        F(6, __VA_ARGS__) F(7, __VA_ARGS__)

/* ---- groups of 32 ---- */

SPREAD_TILES32(tile, false)
SPREAD_TILES32(tile_min, true)

#define BYTE(v, bias) _mm512_add_epi8(v, quad_bytes(128 - (bias)))
#define LISTED(v, list) quad_listed(list, v)
#define PUT32(j, quad, value, arg) _mm512_store_si512(to->w[j], value(quad(group, j), arg));
#define SPREAD32(name, bits, n_group, scales, tile, d_of, m_of, ...)                               \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *all)                          \
    {                                                                                              \
        struct spread32 *to = all;                                                                 \
        for (int64_t g = 0; g < n;                                                                 \
             chunk += KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, 0))                    \
            for (int i = 0; i < (n_group) && g < n; i++, g++, to++) {                              \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * i;                         \
                const uint8_t *scale = chunk + KERN_SCALES_AT(bits, n_group) +                     \
                                       i * KERN_SCALE_BYTES(KERN_SCALES_##scales);                 \
                EACH_QUAD(PUT32, __VA_ARGS__)                                                      \
                _mm512_store_ps(to->d, d_of(scale));                                               \
                m_of                                                                               \
            }                                                                                      \
    }                                                                                              \
    KERNEL(name, tile, 32, struct spread32,                                                        \
           SPREAD_K / 32 / (n_group)*KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, 0))
#define MIN32 _mm512_store_ps(to->m, halves(scale + 32));
SPREAD32(q4_0, 4, 2, D, tile, halves, , quad_4, BYTE, 8)
SPREAD32(q4_1, 4, 1, DM, tile_min, halves, MIN32, quad_4, BYTE, 0)
SPREAD32(q5_0, 5, 2, D, tile, halves, , quad_5, BYTE, 16)
SPREAD32(q5_1, 5, 1, DM, tile_min, halves, MIN32, quad_5, BYTE, 0)
SPREAD32(q8_0, 8, 2, D, tile, halves, , quad_8, BYTE, 128)
SPREAD32(iq4_nl, 4, 2, D, tile, halves, , quad_4, LISTED, quant_nl4)
SPREAD32(mxfp4, 4, 4, E, tile, half_e8m0, , quad_4, LISTED, quant_e2m1_doubled)

SPREAD_TILES_HALVES(tile_halves)
#define SECOND_HALF _mm512_store_ps(to->m, half_ue4m3(scale + 16));
SPREAD32(nvfp4, 4, 2, E2, tile_halves, half_ue4m3, SECOND_HALF, quad_4, LISTED, quant_e2m1_doubled)

/* ---- super-blocks of 256 ---- */

SPREAD_TILES256(tile_q4_k, SPREAD_GROUP_32W, 0, 32)
SPREAD_TILES256(tile_q5_k, SPREAD_GROUP_32, 0, 32)
SPREAD_TILES256(tile_q6_k, SPREAD_GROUP_16, 16, 0)
SPREAD_TILES256(tile_q3_k, SPREAD_GROUP_WHOLE, 32, 0)
SPREAD_TILES256(tile_q2_k, SPREAD_GROUP_WHOLE, 0, 16)
SPREAD_TILES256(tile_iq4_xs, SPREAD_GROUP_32, 32, 0)

static ATTR_INLINE __m512i unsigned_lanes(const uint8_t *at)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
}
static ATTR_INLINE __m512i signed_lanes(const uint8_t *at)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
}
/* Lanes of 16 bits, side by side. */
static ATTR_INLINE __m512i paired(__m512i first, __m512i second)
{
    return _mm512_mask_mov_epi16(first, 0xAAAAAAAA, _mm512_slli_epi32(second, 16));
}
/* A word twice. */
static ATTR_INLINE __m512i twice(__m512i v)
{
    return _mm512_or_si512(_mm512_and_si512(v, _mm512_set1_epi32(0xFFFF)),
                           _mm512_slli_epi32(v, 16));
}

#define PUT256(j, quad, value, arg)                                                                \
    _mm512_store_si512(to->w[8 * h + (j)], value(quad(group, j), arg));
#define PLAIN(v, arg) v
/* GROUP does group h of a super-block; scales stand at s, d n_sub bytes behind. */
#define SPREAD256(name, bits, scales, n_sub, has_min, GROUP)                                       \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *all)                          \
    {                                                                                              \
        struct spread256 *to = all;                                                                \
        for (int64_t b = 0; b < n;                                                                 \
             b++, to++, chunk += KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, 8, 0)) {             \
            const uint8_t *s = chunk + KERN_SCALES_AT(bits, 8);                                    \
            for (int h = 0; h < 8; h++) {                                                          \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * h;                         \
                GROUP                                                                              \
            }                                                                                      \
            _mm512_store_ps(to->d, halves(s + (n_sub)));                                           \
            if (has_min)                                                                           \
                _mm512_store_ps(to->dmin, halves(s + (n_sub) + 32));                               \
        }                                                                                          \
    }                                                                                              \
    KERNEL(name, tile_##name, 256, struct spread256,                                               \
           2 * KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, 8, 0))

#define PUT_SUB(i, v) _mm512_store_si512(to->sub[i], v);
#define PUT_PAIR(line, i, first, second) _mm512_store_si512(to->line[i], paired(first, second));
#define SUB32_MIN                                                                                  \
    PUT_SUB(h, unsigned_lanes(s + 16 * h))                                                         \
    if (h % 2)                                                                                     \
    PUT_PAIR(min, h / 2, unsigned_lanes(s + 112 + 16 * h), unsigned_lanes(s + 128 + 16 * h))
#define QUADS_PLAIN(quad) EACH_QUAD(PUT256, quad, PLAIN, 0)
SPREAD256(q4_k, 4, SUB8_MIN, 256, true, QUADS_PLAIN(quad_4) SUB32_MIN)
SPREAD256(q5_k, 5, SUB8_MIN, 256, true, QUADS_PLAIN(quad_5) SUB32_MIN)

#define TIMES(v, bias) _mm512_mullo_epi32(v, _mm512_set1_epi32(-(bias)))
#define SUB16(bias)                                                                                \
    const __m512i first = signed_lanes(s + 32 * h), second = signed_lanes(s + 32 * h + 16);        \
    PUT_SUB(2 * h, first)                                                                          \
    PUT_SUB(2 * h + 1, second) PUT_PAIR(less, h, TIMES(first, bias), TIMES(second, bias))
SPREAD256(q6_k, 6, SUB16, 256, false, QUADS_PLAIN(quad_6) SUB16(32))

/* Codes of 2 and 3 bits times their sub-scales are bytes, two of which one product of words makes:
 * nothing is left to scale in tiles. */
#define PUT_TIMES(j, quad, sub, plus)                                                              \
    _mm512_store_si512(to->w[8 * h + (j)],                                                         \
                       _mm512_add_epi16(_mm512_mullo_epi16(quad(group, j), sub), plus));
#define QUADS_TIMES(quad, sub0, plus0, sub1, plus1)                                                \
    PUT_TIMES(0, quad, sub0, plus0)                                                                \
    PUT_TIMES(1, quad, sub0, plus0) PUT_TIMES(2, quad, sub0, plus0)                                \
        PUT_TIMES(3, quad, sub0, plus0) PUT_TIMES(4, quad, sub1, plus1)                            \
            PUT_TIMES(5, quad, sub1, plus1) PUT_TIMES(6, quad, sub1, plus1)                        \
                PUT_TIMES(7, quad, sub1, plus1)

/* Unsigned 15 * 3. */
#define LOW(v) _mm512_and_si512(v, _mm512_set1_epi32(15))
#define NIBBLES                                                                                    \
    const __m512i first = unsigned_lanes(s + 32 * h), second = unsigned_lanes(s + 32 * h + 16);    \
    const __m512i sub0 = twice(LOW(first)), sub1 = twice(LOW(second)),                             \
                  none = _mm512_setzero_si512();                                                   \
    QUADS_TIMES(quad_2, sub0, none, sub1, none)                                                    \
    PUT_PAIR(min, h, _mm512_srli_epi32(first, 4), _mm512_srli_epi32(second, 4))
SPREAD256(q2_k, 2, SUB16_NIB, 256, true, NIBBLES)

/* (code - 4) * sub-scale, of -32 to 31, is -124 to 128: plus 124. */
enum { BIAS_3 = 124 };
static ATTR_INLINE __m512i plus_3(__m512i sub)
{
    const __m512i plus = _mm512_sub_epi16(_mm512_set1_epi16(BIAS_3), _mm512_slli_epi16(sub, 2));
    return _mm512_or_si512(plus, _mm512_slli_epi16(plus, 8));
}
#define SMALL                                                                                      \
    const __m512i sub0 = twice(signed_lanes(s + 32 * h)),                                          \
                  sub1 = twice(signed_lanes(s + 32 * h + 16));                                     \
    QUADS_TIMES(quad_3, sub0, plus_3(sub0), sub1, plus_3(sub1))                                    \
    if (h % 2)                                                                                     \
        _mm512_store_si512(to->less[h / 2], _mm512_set1_epi16(-BIAS_3));
SPREAD256(q3_k, 3, SUB16, 256, false, SMALL)

#define SUB32                                                                                      \
    PUT_SUB(h, signed_lanes(s + 16 * h))                                                           \
    if (h % 2)                                                                                     \
    PUT_PAIR(less, h / 2, TIMES(signed_lanes(s + 16 * h - 16), 128),                               \
             TIMES(signed_lanes(s + 16 * h), 128))
SPREAD256(iq4_xs, 4, SUB8, 128, false, EACH_QUAD(PUT256, quad_4, LISTED, quant_nl4) SUB32)
