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

#define SUB_1(n, dwords, bit)                               \
    const __m512i sub = sub_of(dwords, bit);                \
    _mm512_store_si512(to->sub[h], sub);                    \
    if (h % 2)                                              \
        _mm512_store_si512(to->less[h / 2], less(last, sub, bias)); \
    last = sub;
#define SUB_2(n, dwords)                                              \
    const __m512i both = dwords, sub = sub_of(both, 0);               \
    last = sub_of(both, 4);                                           \
    _mm512_store_si512(to->sub[2 * h], sub);                          \
    _mm512_store_si512(to->sub[2 * h + 1], last);                     \
    _mm512_store_si512(to->less[h], less(sub, last, bias));
#define POINT(j, n, v, table)                                                                      \
    _mm512_store_si512(                                                                            \
        to->w[8 * h + (j)],                                                                        \
        _mm512_permutexvar_epi8(above(v, n, quad_moved(sign, SIGN_AT(j), n)), line(table)));

#define KERNEL(name, NAME, tile, bias_, factor)                                                    \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *all)                          \
    {                                                                                              \
        enum { bias = bias_ };                                                                     \
        const uint8_t *behind = chunk + KERN_BEHIND_##NAME, *at = chunk;                           \
        struct spread256 *to = all;                                                                \
        __m512i last = _mm512_setzero_si512();                                                     \
        SETUP_##NAME for (int64_t b = 0; b < n; b++, to++)                                         \
        {                                                                                          \
            for (int h = 0; h < 8; h++, at += KERN_GROUP_##NAME) {                                 \
                const int g = (int)(8 * b) + h;                                                    \
                GROUP_##NAME(void) g;                                                              \
            }                                                                                      \
            _mm512_store_ps(to->d, scales(chunk + KERN_CHUNK_##NAME - 64 + 32 * b, factor));       \
        }                                                                                          \
        (void)behind;                                                                              \
    }                                                                                              \
    SPREAD_KERNEL(kern_matmul_##name##_spread_avx512vbmi, spread_##name, tile, 256,                \
                  struct spread256, KERN_CHUNK_##NAME)
KERNEL(iq2_xxs, IQ2_XXS, tile_32, BIAS_2, 0.125f)
KERNEL(iq2_xs, IQ2_XS, tile_16, BIAS_2, 0.125f)
KERNEL(iq2_s, IQ2_S, tile_16, BIAS_2, 0.125f)
KERNEL(iq3_xxs, IQ3_XXS, tile_32, BIAS_3, 0.25f)
KERNEL(iq3_s, IQ3_S, tile_32, BIAS_ODD, 1.0f)
