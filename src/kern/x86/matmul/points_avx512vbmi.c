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

/* Dword i of each 32 as q[i], q[8 + i], q[16 + i], q[24 + i]. */
#define TURNED(h, i) (h) + (i), (h) + 8 + (i), (h) + 16 + (i), (h) + 24 + (i)
#define TURNED_32(h)                                                                               \
    TURNED(h, 0), TURNED(h, 1), TURNED(h, 2), TURNED(h, 3), TURNED(h, 4), TURNED(h, 5),            \
        TURNED(h, 6), TURNED(h, 7)
static const uint8_t order[64] = {TURNED_32(0), TURNED_32(32)};

/* Adds group h, whose lines are at `at`, to t. */
static ATTR_INLINE void group(const int rows, const struct tables *halves, const __m512i *values,
                              const uint8_t *at, const uint8_t *const *x, int64_t b, int h,
                              __m512i *t)
{
    const __m512i number = line(at), words = line(at + 64);
    const __mmask64 high = _mm512_movepi8_mask(number);
    const __m512i p = look_up(halves->a, number, high), q = look_up(halves->b, number, high);
    const __m512i sign = signs(words), sub = sub_scales(words);
    __m512i a[FEW];
    fetch(at, KERN_GROUP_IQ2_XXS);
    start(rows, _mm512_set1_epi16(-BIAS), x, b, h, a);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const __m512i v =
            _mm512_permutexvar_epi8(i == 0 || (i > 3 && i < 7) ? p : q, values[i]);
        const __mmask64 minus = _mm512_test_epi8_mask(sign, _mm512_set1_epi8((char)(1 << i)));
        add_dots(rows, with_signs(v, minus), x, b, h, i, a);
    }
    add_scaled(rows, a, sub, t);
}
static ATTR_INLINE void tile(const int rows, const struct code_points *code, const uint8_t *chunk,
                             int64_t n, const uint8_t *const *x, float *to, int64_t stride)
{
    const struct tables halves = load_tables(quant_halves_iq2_xxs);
    __m512i values[8];
    __m512 y[FEW];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        values[i] = _mm512_add_epi8(line(quant_values_iq2_xxs[i]), _mm512_set1_epi8(BIAS));
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        y[c] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n; b++) {
        const uint8_t *at = chunk + b / 2 * code->chunk_bytes;
        const __m512 d = scales(at + code->after + b % 2 * 32, code->factor);
        __m512i t[FEW];
        at += b % 2 * 8 * code->group_bytes;
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            t[c] = _mm512_setzero_si512();
        for (int h = 0; h < 8; h++, at += code->group_bytes)
            group(rows, &halves, values, at, x, b, h, t);
        finish(rows, t, d, x, b, y);
    }
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        _mm512_storeu_ps(to + c * stride, y[c]);
}
POINTS_KERNEL(iq2_xxs, tile, &points_IQ2_XXS)
