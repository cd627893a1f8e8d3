/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows times IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S, looked up by byte permutes.  Numbers of a line
 * become codes, of which a byte has two (3 bits each) or four (2 bits) coordinates, and these, 16 k
 * of 16 rows at a time, the values of four quads: quad c is k = c, 4 + c, 8 + c, 12 + c.  Values
 * carry a bias, which the start of each dot product takes off.  Many rows run from spread
 * panels. */
#include "kern/kernels.h"
#include "kern/x86/matmul/points512.h"

/* Values of a byte's low six bits. */
#define FIRST_3(i) LEVEL_3((i) & 7)
#define LAST_3(i) LEVEL_3((i) >> 3)
#define FIRST_ODD(i) ODD_3((i) & 7)
#define LAST_ODD(i) ODD_3((i) >> 3)
#define FIRST_2(i) LEVEL_2((i) & 3)
#define SECOND_2(i) LEVEL_2((i) >> 2 & 3)
#define THIRD_2(i) LEVEL_2((i) >> 4)
enum { BIAS_2 = 43, BIAS_3 = 62, BIAS_ODD = 15 };
static const uint8_t values_2[3][64] = {
    {VALUES_64(FIRST_2, BIAS_2)}, {VALUES_64(SECOND_2, BIAS_2)}, {VALUES_64(THIRD_2, BIAS_2)}};
static const uint8_t values_3[2][64] = {{VALUES_64(FIRST_3, BIAS_3)}, {VALUES_64(LAST_3, BIAS_3)}};
static const uint8_t values_odd[2][64] = {{VALUES_64(FIRST_ODD, BIAS_ODD)},
                                          {VALUES_64(LAST_ODD, BIAS_ODD)}};

/* Dword c of each 16 is q[c], q[4 + c], q[8 + c], q[12 + c]. */
#define TURNED_4(h, c) (h) + (c), (h) + 4 + (c), (h) + 8 + (c), (h) + 12 + (c)
#define TURNED_16(h) TURNED_4(h, 0), TURNED_4(h, 1), TURNED_4(h, 2), TURNED_4(h, 3)
static const uint8_t order[64] = {TURNED_16(0), TURNED_16(16), TURNED_16(32), TURNED_16(48)};

/* Bytes 4 r, 4 r + 1 (or, from 2, the next two) of a and of b: a, b, a, b. */
static ATTR_INLINE __m512i woven(__m512i a, __m512i b, int from)
{
    const __m512i pairs = _mm512_set_epi32(
#define PAIR(r) 0x41014000 + (r) * 0x04040404
        PAIR(15), PAIR(14), PAIR(13), PAIR(12), PAIR(11), PAIR(10), PAIR(9), PAIR(8), PAIR(7),
        PAIR(6), PAIR(5), PAIR(4), PAIR(3), PAIR(2), PAIR(1), PAIR(0));
#undef PAIR
    return _mm512_permutex2var_epi8(a, _mm512_add_epi8(pairs, _mm512_set1_epi8((char)from)), b);
}

static ATTR_INLINE int bias_of(uint32_t id)
{
    return id == KERN_CODE_IQ3_XXS ? BIAS_3 : id == KERN_CODE_IQ3_S ? BIAS_ODD : BIAS_2;
}
/* Values of the coordinates of a byte, and codes of numbers where these fit registers. */
struct values {
    __m512i v[3];
    struct tables codes;
};
static ATTR_INLINE struct values values_of(uint32_t id)
{
    struct values k;
    const bool is_2 = id == KERN_CODE_IQ2_XS || id == KERN_CODE_IQ2_S;
    const uint8_t (*const from)[64] =
        is_2 ? values_2 : id == KERN_CODE_IQ3_XXS ? values_3 : values_odd;
    for (int i = 0; i < 3; i++)
        k.v[i] = line(from[is_2 || i < 2 ? i : 0]);
    if (id == KERN_CODE_IQ3_XXS)
        k.codes = load_tables(quant_codes_iq3_xxs);
    return k;
}

/* Values of quad c of a half: of codes of two coordinates p and q, or of four p. */
static ATTR_INLINE __m512i value(const struct values *k, bool is_2, __m512i p, __m512i q, int c)
{
    if (!is_2)
        return _mm512_permutexvar_epi8(c < 2 ? p : q, k->v[c % 2]);
    return _mm512_permutexvar_epi8(c < 3 ? p : _mm512_srli_epi16(p, 6), k->v[c % 3]);
}
/* Quads of half m, negative where a sign bit is set. */
static ATTR_INLINE void half(const int rows, int bias, const struct values *k, bool is_2, __m512i p,
                             __m512i q, __m512i sign, int m, const uint8_t *const *x, int64_t b,
                             int h, __m512i *a)
{
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __mmask64 minus = bits(sign, bit_steps(16u * (unsigned)m + (unsigned)c, 4));
        const __m512i v = value(k, is_2, p, q, c);
        add_dots(rows, _mm512_mask_sub_epi8(v, minus, _mm512_set1_epi8((char)(2 * bias)), v), x, b,
                 h, 4 * m + c, a);
    }
}
/* 2 s + 1 of the low four bits. */
static ATTR_INLINE __m512i twice_plus_one(__m512i nibble)
{
    return _mm512_ternarylogic_epi32(_mm512_slli_epi32(nibble, 1), _mm512_set1_epi32(30),
                                     _mm512_set1_epi32(1), 0xEA);
}

/* Group h of a super-block, g of its chunk, whose lines are at `at`, is added to t: points of four
 * coordinates, ... */
static ATTR_INLINE void group_3(const int rows, uint32_t id, const struct values *k,
                                const uint8_t *at, const uint8_t *after, int g,
                                const uint8_t *const *x, int64_t b, int h, __m512i *t)
{
    const bool is_xxs = id == KERN_CODE_IQ3_XXS;
    const __m512i words = line(at + 128);
    const __m512i high = is_xxs ? words : bytes_of_rows(after + 16 * g);
    const __m512i sub =
        is_xxs ? sub_scales(words)
               : twice_plus_one(_mm512_srl_epi32(bytes_of_rows(after + 256 + g / 2 * 16),
                                                 _mm_cvtsi32_si128(h % 2 * 4)));
    const __m512i sign = is_xxs ? signs(words) : words;
    __m512i a[FEW];
    start(rows, _mm512_set1_epi16((short)-bias_of(id)), x, b, h, a);
#pragma GCC unroll 2
    for (int m = 0; m < 2; m++) {
        const __m512i number = line(at + 64 * m);
        const __mmask64 bit7 = _mm512_movepi8_mask(number);
        __m512i p, q;
        if (is_xxs) {
            p = look_up(k->codes.a, number, bit7);
            q = look_up(k->codes.b, number, bit7);
        } else {
            const __mmask64 bit8 = bits(high, bit_steps(4u * (unsigned)m, 1));
            p = look_up_512(quant_codes_iq3_s[0], number, bit7, bit8);
            q = look_up_512(quant_codes_iq3_s[1], number, bit7, bit8);
        }
        half(rows, bias_of(id), k, false, p, q, sign, m, x, b, h, a);
    }
    add_scaled(rows, a, sub, t);
}
/* ... of eight: first4 and last4 are codes of the first and of the last four of all points. */
static ATTR_INLINE void group_2(const int rows, uint32_t id, const struct values *k,
                                const uint8_t *at, const uint8_t *after, int g,
                                const uint8_t *const *x, int64_t b, int h, __m512i *t)
{
    const bool is_xs = id == KERN_CODE_IQ2_XS;
    const __m512i number = line(at), next = line(at + 64), high = bytes_of_rows(after + 16 * g),
                  subs = is_xs ? high : bytes_of_rows(after + 256 + 16 * g);
    const __mmask64 bit7 = _mm512_movepi8_mask(number);
    const __mmask64 bit8 =
        is_xs ? _mm512_test_epi8_mask(next, _mm512_set1_epi8(1)) : bits(high, bit_steps(0, 2));
    const __mmask64 bit9 = is_xs ? bit8 : bits(high, bit_steps(1, 2));
    const __m512i sign = is_xs ? signs_above(next) : next;
    const __m512i first4 = is_xs ? look_up_512(quant_codes_iq2_xs[0], number, bit7, bit8)
                                 : look_up_1024(quant_codes_iq2_s[0], number, bit7, bit8, bit9);
    const __m512i last4 = is_xs ? look_up_512(quant_codes_iq2_xs[1], number, bit7, bit8)
                                : look_up_1024(quant_codes_iq2_s[1], number, bit7, bit8, bit9);
#pragma GCC unroll 2
    for (int m = 0; m < 2; m++) {
        __m512i a[FEW];
        const __m512i codes = woven(first4, last4, 2 * m);
        const __m512i sub = twice_plus_one(m ? _mm512_srli_epi32(subs, 4) : subs);
        start(rows, _mm512_set1_epi32(m ? -BIAS_2 * 65536 : -BIAS_2 & 0xFFFF), x, b, h, a);
        half(rows, BIAS_2, k, true, codes, codes, sign, m, x, b, h, a);
        add_scaled(rows, a, sub, t);
    }
}
static ATTR_INLINE void tile(const int rows, const struct code_points *code, const uint8_t *chunk,
                             int64_t n, const uint8_t *const *x, float *to, int64_t stride)
{
    const struct values k = values_of(code->id);
    __m512 y[FEW];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        y[c] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n; b++) {
        const uint8_t *block = chunk + b / 2 * code->chunk_bytes, *after = block + code->after;
        const __m512 d = scales(block + code->chunk_bytes - 64 + b % 2 * 32, code->factor);
        __m512i t[FEW];
#pragma GCC unroll 8
        for (int c = 0; c < rows; c++)
            t[c] = _mm512_setzero_si512();
        for (int h = 0; h < 8; h++) {
            const int g = (int)(b % 2) * 8 + h;
            const uint8_t *at = block + code->group_bytes * g;
            fetch(at, code->group_bytes);
            if (64 * (g + 1) < code->chunk_bytes - code->after)
                _mm_prefetch((const char *)after + code->chunk_bytes + 64 * g, _MM_HINT_T0);
            if (code->id == KERN_CODE_IQ3_XXS || code->id == KERN_CODE_IQ3_S)
                group_3(rows, code->id, &k, at, after, g, x, b, h, t);
            else
                group_2(rows, code->id, &k, at, after, g, x, b, h, t);
        }
        finish(rows, t, d, x, b, y);
    }
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        _mm512_storeu_ps(to + c * stride, y[c]);
}
POINTS_KERNEL(iq3_xxs, tile, &points_IQ3_XXS)
POINTS_KERNEL(iq3_s, tile, &points_IQ3_S)
POINTS_KERNEL(iq2_xs, tile, &points_IQ2_XS)
POINTS_KERNEL(iq2_s, tile, &points_IQ2_S)
