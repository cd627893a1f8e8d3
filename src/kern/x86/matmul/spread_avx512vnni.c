/* SPDX-License-Identifier: Apache-2.0 */
/* Products for many rows of codes that are unpacked by shifts. */
#include "kern/kernels.h"
#include "kern/x86/matmul/quads512.h"
#include "kern/x86/matmul/spread512.h"

/* ---- groups of 32 ---- */

static ATTR_INLINE void spread_all32(const struct kern_code *code, const uint8_t *chunk, int64_t n,
                                     struct spread32 *to)
{
    const __m512i table = quad_table(code), plus = quad_bytes(128 - code_bias(code, 128));
    for (int64_t g = 0; g < n; chunk += code->chunk_bytes)
        for (int i = 0; i < code->n_group && g < n; i++, g++, to++) {
            const uint8_t *group = code_group(code, chunk, i), *scale = code_scale(code, chunk, i);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                _mm512_store_si512(to->w[j],
                                   _mm512_add_epi8(quad(code, table, group, j), plus));
            _mm512_store_ps(to->d, d32(code, scale));
            if (code->scales == KERN_SCALES_E2)
                _mm512_store_ps(to->m, d32(code, scale + 16));
            if (code_has_min(code))
                _mm512_store_ps(to->m, halves(scale + 32));
        }
}
#define SPREAD32(name, id, tile)                                                                   \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *to)                           \
    {                                                                                              \
        spread_all32(&tile_codes[KERN_CODE_##id], chunk, n, to);                                   \
    }                                                                                              \
    SPREAD_KERNEL(kern_matmul_##name##_spread_avx512vnni, spread_##name, tile, 32,                 \
                  struct spread32, SPREAD_BYTES_##id)
SPREAD_TILES(tile, tile32, SPREAD_WHOLE)
SPREAD_TILES(tile_min, tile32, SPREAD_MIN)
SPREAD_TILES(tile_halves, tile32, SPREAD_HALVES)
SPREAD32(q4_0, Q4_0, tile)
SPREAD32(q4_1, Q4_1, tile_min)
SPREAD32(q5_0, Q5_0, tile)
SPREAD32(q5_1, Q5_1, tile_min)
SPREAD32(q8_0, Q8_0, tile)
SPREAD32(iq4_nl, IQ4_NL, tile)
SPREAD32(mxfp4, MXFP4, tile)
SPREAD32(nvfp4, NVFP4, tile_halves)

/* ---- super-blocks of 256 ---- */

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
static ATTR_INLINE __m512i times(__m512i v, int by)
{
    return _mm512_mullo_epi32(v, _mm512_set1_epi32(by));
}

/* Codes of 2 and 3 bits times their sub-scales are bytes, two of which one product of words makes:
 * nothing is left to scale in tiles.  Of 2 bits they are 15 * 3 at most, unsigned; of 3 bits
 * (code - 4) * sub-scale, of -32 to 31, is -124 to 128: plus 124. */
enum { BIAS_3 = 124 };
static ATTR_INLINE bool is_scaled(const struct kern_code *code)
{
    return code->bits == 2 || code->bits == 3;
}
/* A word twice; what is added to bytes times that. */
static ATTR_INLINE __m512i sub_of(const struct kern_code *code, const uint8_t *at)
{
    return twice(code->bits == 3
                     ? signed_lanes(at)
                     : _mm512_and_si512(unsigned_lanes(at), _mm512_set1_epi32(15)));
}
static ATTR_INLINE __m512i plus_of(const struct kern_code *code, __m512i sub)
{
    const __m512i plus = _mm512_sub_epi16(_mm512_set1_epi16(BIAS_3), _mm512_slli_epi16(sub, 2));
    return code->bits == 3 ? _mm512_or_si512(plus, _mm512_slli_epi16(plus, 8))
                           : _mm512_setzero_si512();
}
static ATTR_INLINE void put_codes(const struct kern_code *code, __m512i table, const uint8_t *group,
                                  const uint8_t *s, int h, struct spread256 *to)
{
    const __m512i sub[2] = {sub_of(code, s + 32 * h), sub_of(code, s + 32 * h + 16)};
    const __m512i plus[2] = {plus_of(code, sub[0]), plus_of(code, sub[1])};
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m512i v = quad(code, table, group, j);
        if (is_scaled(code))
            v = _mm512_add_epi16(_mm512_mullo_epi16(v, sub[j / 4]), plus[j / 4]);
        _mm512_store_si512(to->w[8 * h + j], v);
    }
}
/* Sub-scales, and pairs of minimums and of what takes the bias off. */
static ATTR_INLINE void put_subs(const struct kern_code *code, const uint8_t *s, int h,
                                 struct spread256 *to)
{
    const int bias = code_bias(code, 128);
    const uint8_t *const at = s + 16 * code_subs(code) * h;
    switch (code->scales) {
    case KERN_SCALES_SUB8_MIN:
        _mm512_store_si512(to->sub[h], unsigned_lanes(at));
        if (h % 2)
            _mm512_store_si512(to->min[h / 2],
                               paired(unsigned_lanes(at + 112), unsigned_lanes(at + 128)));
        break;
    case KERN_SCALES_SUB16_NIB:
        _mm512_store_si512(to->min[h], paired(_mm512_srli_epi32(unsigned_lanes(at), 4),
                                              _mm512_srli_epi32(unsigned_lanes(at + 16), 4)));
        break;
    case KERN_SCALES_SUB8:
        _mm512_store_si512(to->sub[h], signed_lanes(at));
        if (h % 2)
            _mm512_store_si512(to->less[h / 2], paired(times(signed_lanes(at - 16), -bias),
                                                       times(signed_lanes(at), -bias)));
        break;
    default:
        if (is_scaled(code) && h % 2)
            _mm512_store_si512(to->less[h / 2], _mm512_set1_epi16(-BIAS_3));
        if (is_scaled(code))
            break;
        _mm512_store_si512(to->sub[2 * h], signed_lanes(at));
        _mm512_store_si512(to->sub[2 * h + 1], signed_lanes(at + 16));
        _mm512_store_si512(to->less[h], paired(times(signed_lanes(at), -bias),
                                               times(signed_lanes(at + 16), -bias)));
    }
}
static ATTR_INLINE void spread_all256(const struct kern_code *code, const uint8_t *chunk, int64_t n,
                                      struct spread256 *to)
{
    const __m512i table = quad_table(code);
    for (int64_t b = 0; b < n; b++, to++, chunk += code->chunk_bytes) {
        const uint8_t *s = chunk + KERN_SCALES_AT(code->bits, 8), *d = s + code_sub_bytes(code);
        for (int h = 0; h < 8; h++) {
            put_codes(code, table, code_group(code, chunk, h), s, h, to);
            put_subs(code, s, h, to);
        }
        _mm512_store_ps(to->d, halves(d));
        if (code_has_min(code))
            _mm512_store_ps(to->dmin, halves(d + 32));
    }
}
/* group, less, min: of struct spread_block. */
#define SPREAD256(name, id, ...)                                                                   \
    SPREAD_TILES(tile_##name, tile256, ((struct spread_block){__VA_ARGS__}))                       \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *to)                           \
    {                                                                                              \
        spread_all256(&tile_codes[KERN_CODE_##id], chunk, n, to);                                  \
    }                                                                                              \
    SPREAD_KERNEL(kern_matmul_##name##_spread_avx512vnni, spread_##name, tile_##name, 256,         \
                  struct spread256, SPREAD_BYTES_##id)
SPREAD256(q4_k, Q4_K, GROUP_32_WORDS, 0, 32)
SPREAD256(q5_k, Q5_K, GROUP_32, 0, 32)
SPREAD256(q6_k, Q6_K, GROUP_16, 16, 0)
SPREAD256(q3_k, Q3_K, GROUP_SCALED, 32, 0)
SPREAD256(q2_k, Q2_K, GROUP_SCALED, 0, 16)
SPREAD256(iq4_xs, IQ4_XS, GROUP_32, 32, 0)
