/*
 * points_quads512 - groups of book points as quads in the order of k.  GROUP_name does group h of a
 * super-block,
 * group g of its chunk, whose lines are at `at` and what is behind them at `behind`, and wants of
 * its includer
 *   SUB_1(n, dwords, bit)   the sub-scale of the group: four bits of each row's dword, from `bit`
 *   on;
 *   SUB_2(n, dwords)        those of its halves, in the low eight bits;
 *   POINT(j, n, v, table)   takes quad j: numbers of sizes in the low n bits of v, above which is
 *   noise, and their signs,
 *                           bit SIGN_AT(j) of `sign`.
 * n is 2 or 3, table is table_2, table_3 or table_odd, of the code's sizes.
 */
#ifndef INGLE_KERN_X86_MATMUL_POINTS_QUADS512_H
#define INGLE_KERN_X86_MATMUL_POINTS_QUADS512_H

#include "kern/x86/matmul/lookup512.h"
#include "kern/x86/matmul/quads512.h"

/* The low n bits of each byte of a, the others of b. */
static ATTR_INLINE __m512i above(__m512i a, int n, __m512i b)
{
    return _mm512_ternarylogic_epi32(a, _mm512_set1_epi8((char)((1 << n) - 1)), b, 0xE2);
}
/* The low bytes of the words of a, the high ones of b. */
static ATTR_INLINE __m512i bytes_of(__m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(a, _mm512_set1_epi16(0xFF), b, 0xE2);
}

/* Signs of points, of which byte 4 r + l has those of k = 8 l .. 8 l + 7, by quads: bit SIGN_AT(j)
 * of byte 4 r + i is k = 4 j + i.  Byte c of `of`: the bits that have the sign of k = 8 l + c, if
 * their number is odd. Rows go in pairs: 8 x 8 bits are turned, and nibbles of the two rows then
 * change places. */
#define SIGN_AT(j) (7 - (j) / 2 - 4 * ((j) % 2))
static ATTR_INLINE __m512i by_quads(__m512i points, uint64_t of)
{
    const __m512i turned =
        _mm512_gf2p8affine_epi64_epi8(_mm512_set1_epi64((long long)of), points, 0);
    const __m512i other =
        _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x140C04FC3C342C24), turned);
    return _mm512_ternarylogic_epi32(turned, _mm512_set1_epi64(0x0F0F0F0FF0F0F0F0), other, 0xE2);
}
static ATTR_INLINE __m512i eight_signs(__m512i points)
{
    return by_quads(points, 0x8040201008040201);
}
static ATTR_INLINE __m512i seven_signs_above(__m512i points)
{
    return by_quads(points, 0xFE80402010080402);
}
static ATTR_INLINE __m512i word_signs(__m512i words)
{
    return by_quads(_mm512_multishift_epi64_epi8(bit_steps(0u, 7u), words), 0x7F40201008040201);
}

/* 2 bits each of the first and of the last four coordinates of points. */
#define POINT_2(j, of_four)                                                                        \
    POINT(j, 2, _mm512_multishift_epi64_epi8(bit_steps((j) / 2 * 8u, 2u), of_four), table_2)
#define POINTS_2                                                                   \
    POINT_2(0, first4) POINT_2(1, last4) POINT_2(2, first4) POINT_2(3, last4)      \
    POINT_2(4, first4) POINT_2(5, last4) POINT_2(6, first4) POINT_2(7, last4)

/* 3 bits each of the first and of the last two coordinates of the points of half m; words of
 * these. */
#define AT_3(byte) (0x0B080300u + 0x01010101u * (byte))
#define BOTH_3(byte) _mm512_set1_epi64((long long)((uint64_t)AT_3((byte) + 32u) << 32 | AT_3(byte)))
#define POINT_3(j, of_two, table)                                                                  \
    POINT(j, 3, _mm512_multishift_epi64_epi8(BOTH_3((j) % 4 / 2 * 16u), of_two), table)
#define POINTS_3(m, first2, last2, table)                                                          \
    {                                                                                              \
        const __m512i a_ = first2, b_ = last2;                                                     \
        const __m512i even = bytes_of(a_, _mm512_slli_epi16(b_, 8)),                               \
                      odd = bytes_of(_mm512_srli_epi16(a_, 8), b_);                                \
        POINT_3(4 * (m), even, table)                                                              \
        POINT_3(4 * (m) + 1, odd, table) POINT_3(4 * (m) + 2, even, table)                         \
            POINT_3(4 * (m) + 3, odd, table)                                                       \
    }

#define SETUP_IQ2_XXS const struct tables codes = load_tables(quant_codes_iq2_xxs);
#define GROUP_IQ2_XXS                                                                              \
    const __m512i number = line(at), word = line(at + 64), sign = word_signs(word);                \
    const __mmask64 bit7 = _mm512_movepi8_mask(number);                                            \
    const __m512i first4 = look_up(codes.a, number, bit7), last4 = look_up(codes.b, number, bit7); \
    SUB_1(2, word, 28)                                                                             \
    POINTS_2

#define SETUP_IQ2_XS
#define GROUP_IQ2_XS                                                                               \
    const __m512i number = line(at), seven = line(at + 64), sign = seven_signs_above(seven);       \
    const __mmask64 bit7 = _mm512_movepi8_mask(number);                                            \
    const __mmask64 bit8 = _mm512_test_epi8_mask(seven, _mm512_set1_epi8(1));                      \
    const __m512i first4 = look_up_512(quant_codes_iq2_xs[0], number, bit7, bit8);                 \
    const __m512i last4 = look_up_512(quant_codes_iq2_xs[1], number, bit7, bit8);                  \
    SUB_2(2, bytes_of_rows(behind + 16 * g))                                                       \
    POINTS_2

#define SETUP_IQ2_S
#define GROUP_IQ2_S                                                                                \
    const __m512i number = line(at), sign = eight_signs(line(at + 64));                            \
    const __m512i more = bytes_of_rows(behind + 16 * g);                                           \
    const __mmask64 bit7 = _mm512_movepi8_mask(number);                                            \
    const __mmask64 bit8 = bits(more, bit_steps(0, 2)), bit9 = bits(more, bit_steps(1, 2));        \
    const __m512i first4 = look_up_1024(quant_codes_iq2_s[0], number, bit7, bit8, bit9);           \
    const __m512i last4 = look_up_1024(quant_codes_iq2_s[1], number, bit7, bit8, bit9);            \
    SUB_2(2, bytes_of_rows(behind + 256 + 16 * g))                                                 \
    POINTS_2

#define SETUP_IQ3_XXS const struct tables codes = load_tables(quant_codes_iq3_xxs);
#define HALF_IQ3_XXS(m)                                                                            \
    {                                                                                              \
        const __m512i number = line(at + 64 * (m));                                                \
        const __mmask64 bit7 = _mm512_movepi8_mask(number);                                        \
        POINTS_3(m, look_up(codes.a, number, bit7), look_up(codes.b, number, bit7), table_3)       \
    }
#define GROUP_IQ3_XXS                                                                              \
    const __m512i word = line(at + 128), sign = word_signs(word);                                  \
    SUB_1(3, word, 28)                                                                             \
    HALF_IQ3_XXS(0)                                                                                \
    HALF_IQ3_XXS(1)

#define SETUP_IQ3_S
#define HALF_IQ3_S(m)                                                                              \
    {                                                                                              \
        const __m512i number = line(at + 64 * (m));                                                \
        const __mmask64 bit7 = _mm512_movepi8_mask(number);                                        \
        const __mmask64 bit8 = bits(more, bit_steps(4u * (m), 1));                                 \
        POINTS_3(m, look_up_512(quant_codes_iq3_s[0], number, bit7, bit8),                         \
                 look_up_512(quant_codes_iq3_s[1], number, bit7, bit8), table_odd)                 \
    }
#define GROUP_IQ3_S                                                                                \
    const __m512i sign = eight_signs(line(at + 128)), more = bytes_of_rows(behind + 16 * g);       \
    SUB_1(3, bytes_of_rows(behind + 256 + g / 2 * 16), g % 2 * 4)                                  \
    HALF_IQ3_S(0)                                                                                  \
    HALF_IQ3_S(1)

#endif
