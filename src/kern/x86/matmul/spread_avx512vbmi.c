/* SPDX-License-Identifier: Apache-2.0 */
/* Products for many rows of the codes that are looked up.  Bytes are sizes with their signs plus a
 * bias. */
#include "kern/kernels.h"
#include "kern/x86/matmul/points_quads512.h"
#include "kern/x86/matmul/spread512.h"

enum { BIAS_2 = 43, BIAS_3 = 62, BIAS_ODD = 15 };
#define SIGNED(i, bit, v) ((i) >> (bit) & 1 ? -(v) : (v))
#define SIZE_2(i) SIGNED(i, 2, LEVEL_2((i) & 3))
#define SIZE_3(i) SIGNED(i, 3, LEVEL_3((i) & 7))
#define SIZE_ODD(i) SIGNED(i, 3, ODD_3((i) & 7))
static const uint8_t table_2[64] = {VALUES_64(SIZE_2, BIAS_2)};
static const uint8_t table_3[64] = {VALUES_64(SIZE_3, BIAS_3)};
static const uint8_t table_odd[64] = {VALUES_64(SIZE_ODD, BIAS_ODD)};

SPREAD_TILES(tile_32, tile256, ((struct spread_block){GROUP_32, 32, 0}))
SPREAD_TILES(tile_16, tile256, ((struct spread_block){GROUP_16, 16, 0}))

/* 2 t + 1 of four bits t. */
static ATTR_INLINE __m512i sub_of(__m512i dwords, int bit)
{
    const __m512i t = _mm512_srl_epi32(dwords, _mm_cvtsi32_si128(bit));
    return _mm512_ternarylogic_epi32(_mm512_slli_epi32(t, 1), _mm512_set1_epi32(30),
                                     _mm512_set1_epi32(1), 0xEA);
}
/* Pairs of -bias times two sub-scales. */
static ATTR_INLINE __m512i less(__m512i first, __m512i second, int bias)
{
    return _mm512_mullo_epi16(_mm512_or_si512(first, _mm512_slli_epi32(second, 16)),
                              _mm512_set1_epi16((short)-bias));
}

/* Bytes of sizes and signs of a code, and their bias. */
static ATTR_INLINE const uint8_t *table_of(const struct code_points *code)
{
    return size_bits_of(code) == 2         ? table_2
           : code->id == KERN_CODE_IQ3_XXS ? table_3
                                           : table_odd;
}
static ATTR_INLINE int bias_of(const struct code_points *code)
{
    return size_bits_of(code) == 2         ? BIAS_2
           : code->id == KERN_CODE_IQ3_XXS ? BIAS_3
                                           : BIAS_ODD;
}
static ATTR_INLINE void spread_points(const struct code_points *code, const uint8_t *chunk,
                                      int64_t n, struct spread256 *to)
{
    const int n_bits = size_bits_of(code), bias = bias_of(code);
    const uint8_t *after = chunk + code->after, *at = chunk;
    const struct tables k = point_tables(code);
    __m512i last = _mm512_setzero_si512();
    for (int64_t b = 0; b < n; b++, to++) {
        for (int h = 0; h < 8; h++, at += code->group_bytes) {
            const struct point_group q = point_group(code, &k, at, after, (int)(8 * b) + h);
            const __m512i sub = sub_of(q.subs, q.sub_at);
            if (has_two_subs(code)) {
                last = sub_of(q.subs, 4);
                _mm512_store_si512(to->sub[2 * h], sub);
                _mm512_store_si512(to->sub[2 * h + 1], last);
                _mm512_store_si512(to->less[h], less(sub, last, bias));
            } else {
                _mm512_store_si512(to->sub[h], sub);
                if (h % 2)
                    _mm512_store_si512(to->less[h / 2], less(last, sub, bias));
                last = sub;
            }
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                const __m512i sign = quad_moved(q.sign, sign_at(j), n_bits),
                              i = above(point_quad(code, &q, j), n_bits, sign);
                _mm512_store_si512(to->w[8 * h + j],
                                   _mm512_permutexvar_epi8(i, line(table_of(code))));
            }
        }
        _mm512_store_ps(to->d, scales(chunk + code->chunk_bytes - 64 + 32 * b, code->factor));
    }
}

#define KERNEL(name, NAME, tile)                                                                   \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *to)                           \
    {                                                                                              \
        spread_points(&points_##NAME, chunk, n, to);                                               \
    }                                                                                              \
    SPREAD_KERNEL(kern_matmul_##name##_spread_avx512vbmi, spread_##name, tile, 256,                \
                  struct spread256, KERN_CHUNK_##NAME)
KERNEL(iq2_xxs, IQ2_XXS, tile_32)
KERNEL(iq2_xs, IQ2_XS, tile_16)
KERNEL(iq2_s, IQ2_S, tile_16)
KERNEL(iq3_xxs, IQ3_XXS, tile_32)
KERNEL(iq3_s, IQ3_S, tile_32)
