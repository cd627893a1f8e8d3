/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows times IQ2_XXS with byte permutes: tables of 256 bytes are four registers, so that a
 * line of 64 numbers is looked up at once.  Values carry a bias of 43, which the start of each
 * dot product takes off.
 *
 * A quad is one coordinate of the four points of 32 k, k = i, 8 + i, 16 + i, 24 + i.
 * Numbers become those of two half points, these the values of 8 quads, by one permute each.
 * Activations are turned to that order first, once for the panels of a band. */
#include "kern/kernels.h"
#include "kern/x86/matmul/points512.h"

enum { BIAS = 43 };

static ATTR_INLINE __m512i with_signs(__m512i v, __mmask64 minus)
{
    return _mm512_mask_sub_epi8(v, minus, _mm512_set1_epi8(2 * BIAS), v);
}

#define START(c, _) \
    __m512i a##c = _mm512_madd_epi16(words32(X256(c)->sum16 + 2 * h), _mm512_set1_epi16(-BIAS));

#define VALUE(i) \
    const __m512i value##i = _mm512_add_epi8(line(quant_values_iq2_xxs[i]), _mm512_set1_epi8(BIAS));
#define QUAD(C, i, half)                                                                         \
    {                                                                                            \
        const __m512i v_ = _mm512_permutexvar_epi8(half, value##i);                              \
        const __m512i w_ =                                                                       \
            with_signs(v_, _mm512_test_epi8_mask(sign, _mm512_set1_epi8((char)(1 << (i)))));     \
        EACH_##C(DOT, i)                                                                         \
    }
#define TILE(C)                                                                                    \
    static void tile_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,       \
                         int64_t stride)                                                           \
    {                                                                                              \
        const struct tables halves = load_tables(quant_halves_iq2_xxs);                            \
        VALUE(0)                                                                                   \
        VALUE(1) VALUE(2) VALUE(3) VALUE(4) VALUE(5) VALUE(6) VALUE(7)                             \
            EACH_##C(LOAD_Y, _) for (int64_t b = 0; b < n; b++)                                    \
        {                                                                                          \
            const uint8_t *at = chunk + b / 2 * KERN_CHUNK_IQ2_XXS;                                \
            const __m512 d = scales(at + KERN_BEHIND_IQ2_XXS + b % 2 * 32, 0.125f);                \
            at += b % 2 * 8 * KERN_GROUP_IQ2_XXS;                                                  \
            EACH_##C(ZERO_T, _) for (int h = 0; h < 8; h++, at += KERN_GROUP_IQ2_XXS)              \
            {                                                                                      \
                const __m512i number = line(at), words = line(at + 64);                            \
                FETCH(at, KERN_GROUP_IQ2_XXS)                                                      \
                const __mmask64 high = _mm512_movepi8_mask(number);                                \
                const __m512i p = look_up(halves.a, number, high);                                 \
                const __m512i q = look_up(halves.b, number, high);                                 \
                const __m512i sign = signs(words), sub = sub_scales(words);                        \
                EACH_##C(START, _) QUAD(C, 0, p) QUAD(C, 1, q) QUAD(C, 2, q) QUAD(C, 3, q)         \
                    QUAD(C, 4, p) QUAD(C, 5, p) QUAD(C, 6, p) QUAD(C, 7, q) EACH_##C(ADD_SUB, _)   \
            }                                                                                      \
            EACH_##C(FINISH, _)                                                                    \
        }                                                                                          \
        EACH_##C(STORE_Y, _)                                                                       \
    }
TILE(1)
TILE(2) TILE(3) TILE(4) TILE(6) TILE(8)

/* Dword i of each 32 as q[i], q[8 + i], q[16 + i], q[24 + i]. */
#define TURNED(h, i) (h) + (i), (h) + 8 + (i), (h) + 16 + (i), (h) + 24 + (i)
#define TURNED_32(h)                                                                               \
    TURNED(h, 0), TURNED(h, 1), TURNED(h, 2), TURNED(h, 3), TURNED(h, 4), TURNED(h, 5),            \
        TURNED(h, 6), TURNED(h, 7)
    static const uint8_t order[64] = {TURNED_32(0), TURNED_32(32)};

void kern_matmul_iq2_xxs_avx512vbmi(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    static const struct drive few = {
        {{tile_8, 8}, {tile_6, 6}, {tile_4, 4}, {tile_3, 3}, {tile_2, 2}, {tile_1, 1}}, 256, 0, 0};
    if (m->n <= FEW)
        run_few(m, &few, order, p0, p1);
    else
        kern_matmul_iq2_xxs_spread_avx512vbmi(m, p0, p1);
}
