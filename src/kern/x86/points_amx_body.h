/*
 * points_amx_body - products on tiles of the codes that are looked up (points of a book); included once
 * for real tiles and once for emulated ones, which defines KERNEL_NAME(name) to be theirs.
 *
 * A coordinate is one of four or eight sizes v with a sign, and a sub-scale 2 t + 1 of 4 bits, so that both planes
 * of their product are looked up as well, by the number of v, the sign and as many bits of t as six bits have room for.
 *   2 bits of v, 3 of t   v (2 t + 1) = 16 high + low.  high, v times the mean of t and its neighbour, / 16,
 *                         has the upper three bits of t; low, what is left, is the same for t and t + 8.
 *   3 bits of v, 2 of t   with t = 4 u + a, low = v (2 a + 1), high = v u: 8 high + low.  IQ3_XXS, whose v are even
 *                         and up to 62, has v / 2, and the multiple of 8 that brings low close to 0 in high.
 */
#ifndef INGLE_KERN_X86_POINTS_AMX_BODY_H
#define INGLE_KERN_X86_POINTS_AMX_BODY_H

#include "kern/x86/lookup512.h"
#include "kern/x86/quads512.h"
#include "kern/x86/super_tiles.h"

/* Entry i of the tables: v in the lowest bits, then the sign, then bits of t. */
#define SIGNED(i, bit, v) (uint8_t)((i) >> (bit) & 1 ? -(v) : (v))
#define PART_OF(v, t) (((v) * (4 * ((t) / 2) + 2) + 8) / 16)
#define LOW_2_OF(v, t) ((v) * (2 * (t) + 1) - 16 * PART_OF(v, t))
#define LOW_2(i) SIGNED(i, 2, LOW_2_OF(LEVEL_2((i) & 3), (i) >> 3))
#define HIGH_2(i) SIGNED(i, 2, PART_OF(LEVEL_2((i) & 3), (i) >> 3 << 1))
#define EIGHTS(w) (((w) + 1) / 2)
#define LOW_3_OF(w, a) ((w) * (2 * (a) + 1) - 8 * EIGHTS(w))
#define HIGH_3_OF(w, u) ((w) * (u) + EIGHTS(w))
#define LOW_3(i) SIGNED(i, 3, LOW_3_OF(LEVEL_3((i) & 7) / 2, (i) >> 4))
#define HIGH_3(i) SIGNED(i, 3, HIGH_3_OF(LEVEL_3((i) & 7) / 2, (i) >> 4))
#define LOW_ODD(i) SIGNED(i, 3, ODD_3((i) & 7) * (2 * ((i) >> 4) + 1))
#define HIGH_ODD(i) SIGNED(i, 3, ODD_3((i) & 7) * ((i) >> 4))
static const uint8_t planes_2[2][64] = {{VALUES_64(LOW_2, 0)}, {VALUES_64(HIGH_2, 0)}};
static const uint8_t planes_3[2][64] = {{VALUES_64(LOW_3, 0)}, {VALUES_64(HIGH_3, 0)}};
static const uint8_t planes_odd[2][64] = {{VALUES_64(LOW_ODD, 0)}, {VALUES_64(HIGH_ODD, 0)}};

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
/* Four times the bits of each row's dword from `first` on, which may be less than 0. */
static ATTR_INLINE __m512i four(__m512i dwords, int first)
{
    return _mm512_multishift_epi64_epi8(BOTH((uint32_t)(first + 64), 0u), dwords);
}

/* Signs of points, of which byte 4 r + l has those of k = 8 l .. 8 l + 7, by quads: bit SIGN_AT(j) of byte 4 r + i is
 * k = 4 j + i.  Byte c of `of`: the bits that have the sign of k = 8 l + c, if their number is odd.
 * Rows go in pairs: 8 x 8 bits are turned, and nibbles of the two rows then change places. */
#define SIGN_AT(j) (7 - (j) / 2 - 4 * ((j) % 2))
static ATTR_INLINE __m512i by_quads(__m512i points, uint64_t of)
{
    const __m512i turned = _mm512_gf2p8affine_epi64_epi8(_mm512_set1_epi64((long long)of), points, 0);
    const __m512i other = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x140C04FC3C342C24), turned);
    return _mm512_ternarylogic_epi32(turned, _mm512_set1_epi64(0x0F0F0F0FF0F0F0F0), other, 0xE2);
}
static ATTR_INLINE __m512i eight_signs(__m512i points) { return by_quads(points, 0x8040201008040201); }
static ATTR_INLINE __m512i seven_signs_above(__m512i points) { return by_quads(points, 0xFE80402010080402); }
static ATTR_INLINE __m512i word_signs(__m512i words)
{
    return by_quads(_mm512_multishift_epi64_epi8(BOTH(0u, 7u), words), 0x7F40201008040201);
}

/* Bits of t for the low and for the high plane, above those of v and of the sign. */
struct subs {
    __m512i low, high;
};
/* Of t at bit `at` of each dword. */
static ATTR_INLINE struct subs subs_2(__m512i dwords, int at)
{
    return (struct subs){four(dwords, at - 3), four(dwords, at - 2)};
}
static ATTR_INLINE struct subs subs_3(__m512i dwords, int at)
{
    return (struct subs){four(dwords, at - 4), four(dwords, at - 2)};
}

/* A quad: n low bits of v, the sign in bit n. */
static ATTR_INLINE void put(struct planes *e, int at, __m512i v, int n, __m512i sign, struct subs t,
                            const uint8_t planes[2][64])
{
    const __m512i both = above(v, n, sign);
    _mm512_store_si512(e->low + 64 * at, _mm512_permutexvar_epi8(above(both, n + 1, t.low), line(planes[0])));
    _mm512_store_si512(e->high + 64 * at, _mm512_permutexvar_epi8(above(both, n + 1, t.high), line(planes[1])));
}
/* Group h: 2 bits each of the first and of the last four coordinates of points; t of each half. */
#define PUT_2(j, four_, t)                                                                   \
    put(e, 8 * h + (j), _mm512_multishift_epi64_epi8(BOTH((j) / 2 * 8u, 2u), four_), 2, \
        quad_moved(sign, SIGN_AT(j), 2), t, planes_2);
#define GROUP_2(t0, t1)                                                                   \
    PUT_2(0, first4, t0) PUT_2(1, last4, t0) PUT_2(2, first4, t0) PUT_2(3, last4, t0)     \
    PUT_2(4, first4, t1) PUT_2(5, last4, t1) PUT_2(6, first4, t1) PUT_2(7, last4, t1)

/* 3 bits each of the first and of the last two coordinates of the points of half m; words of these. */
#define AT_3(byte) (0x0B080300u + 0x01010101u * (byte))
#define BOTH_3(byte) _mm512_set1_epi64((long long)((uint64_t)AT_3((byte) + 32u) << 32 | AT_3(byte)))
#define PUT_3(j, words_, planes)                                                                               \
    put(e, 8 * h + (j), _mm512_multishift_epi64_epi8(BOTH_3((j) % 4 / 2 * 16u), words_), 3, \
        quad_moved(sign, SIGN_AT(j), 3), t, planes);
#define HALF_3(m, first2, last2, planes)                                                                       \
    {                                                                                                          \
        const __m512i a_ = first2, b_ = last2;                                                                 \
        const __m512i even = bytes_of(a_, _mm512_slli_epi16(b_, 8)), odd = bytes_of(_mm512_srli_epi16(a_, 8), b_); \
        PUT_3(4 * (m), even, planes) PUT_3(4 * (m) + 1, odd, planes)                                           \
        PUT_3(4 * (m) + 2, even, planes) PUT_3(4 * (m) + 3, odd, planes)                                       \
    }

/* GROUP_ does group h of a super-block, group g of its chunk, whose lines are at `at`; what is behind them, at `behind`. */
#define EXPAND(name, NAME, factor, SETUP, GROUP_)                                                             \
    static ATTR_INLINE void expand_##name(struct block from, struct block ahead, struct planes *e,            \
                                          struct scales *to)                                                  \
    {                                                                                                         \
        const uint8_t *behind = from.chunk + KERN_BEHIND_##NAME;                                              \
        SETUP                                                                                                 \
        for (int h = 0; h < 8; h++) {                                                                         \
            const int g = 8 * from.part + h;                                                                  \
            const uint8_t *at = from.chunk + KERN_GROUP_##NAME * g;                                           \
            fetch(ahead.chunk + 8 * ahead.part * KERN_GROUP_##NAME, h, 8 * KERN_GROUP_##NAME / 64);           \
            if (ahead.part == 0)                                                                              \
                fetch(ahead.chunk + KERN_BEHIND_##NAME, h, (KERN_CHUNK_##NAME - KERN_BEHIND_##NAME) / 64);    \
            GROUP_                                                                                            \
        }                                                                                                     \
        _mm512_store_ps(to->d, scales(from.chunk + KERN_CHUNK_##NAME - 64 + 32 * from.part, factor));         \
        (void)behind;                                                                                         \
    }

#define GROUP_IQ2_XXS                                                                               \
    const __m512i number = line(at), word = line(at + 64), sign = word_signs(word);                 \
    const __mmask64 bit7 = _mm512_movepi8_mask(number);                                             \
    const __m512i first4 = look_up(codes.a, number, bit7), last4 = look_up(codes.b, number, bit7);  \
    const struct subs t = subs_2(word, 28);                                                         \
    GROUP_2(t, t)
EXPAND(iq2_xxs, IQ2_XXS, 0.125f, const struct tables codes = load_tables(quant_codes_iq2_xxs);, GROUP_IQ2_XXS)

#define GROUP_IQ2_XS                                                                                \
    const __m512i number = line(at), seven = line(at + 64), sign = seven_signs_above(seven);        \
    const __mmask64 bit7 = _mm512_movepi8_mask(number);                                             \
    const __mmask64 bit8 = _mm512_test_epi8_mask(seven, _mm512_set1_epi8(1));                       \
    const __m512i first4 = look_up_512(quant_codes_iq2_xs[0], number, bit7, bit8);                  \
    const __m512i last4 = look_up_512(quant_codes_iq2_xs[1], number, bit7, bit8);                   \
    const __m512i sub = bytes_of_rows(behind + 16 * g);                                             \
    const struct subs t0 = subs_2(sub, 0), t1 = subs_2(sub, 4);                                     \
    GROUP_2(t0, t1)
EXPAND(iq2_xs, IQ2_XS, 0.125f, , GROUP_IQ2_XS)

#define GROUP_IQ2_S                                                                                 \
    const __m512i number = line(at), sign = eight_signs(line(at + 64));                             \
    const __m512i more = bytes_of_rows(behind + 16 * g), sub = bytes_of_rows(behind + 256 + 16 * g); \
    const __mmask64 bit7 = _mm512_movepi8_mask(number);                                             \
    const __mmask64 bit8 = bits(more, BOTH(0u, 2u)), bit9 = bits(more, BOTH(1u, 2u));               \
    const __m512i first4 = look_up_1024(quant_codes_iq2_s[0], number, bit7, bit8, bit9);            \
    const __m512i last4 = look_up_1024(quant_codes_iq2_s[1], number, bit7, bit8, bit9);             \
    const struct subs t0 = subs_2(sub, 0), t1 = subs_2(sub, 4);                                     \
    GROUP_2(t0, t1)
EXPAND(iq2_s, IQ2_S, 0.125f, , GROUP_IQ2_S)

#define HALF_IQ3_XXS(m)                                                                             \
    {                                                                                               \
        const __m512i number = line(at + 64 * (m));                                                 \
        const __mmask64 bit7 = _mm512_movepi8_mask(number);                                         \
        HALF_3(m, look_up(codes.a, number, bit7), look_up(codes.b, number, bit7), planes_3)         \
    }
#define GROUP_IQ3_XXS                                                                               \
    const __m512i word = line(at + 128), sign = word_signs(word);                                   \
    const struct subs t = subs_3(word, 28);                                                         \
    HALF_IQ3_XXS(0)                                                                                 \
    HALF_IQ3_XXS(1)
EXPAND(iq3_xxs, IQ3_XXS, 0.25f, const struct tables codes = load_tables(quant_codes_iq3_xxs);, GROUP_IQ3_XXS)

#define HALF_IQ3_S(m)                                                                               \
    {                                                                                               \
        const __m512i number = line(at + 64 * (m));                                                 \
        const __mmask64 bit7 = _mm512_movepi8_mask(number), bit8 = bits(more, BOTH(4u * (m), 1u));  \
        HALF_3(m, look_up_512(quant_codes_iq3_s[0], number, bit7, bit8),                            \
               look_up_512(quant_codes_iq3_s[1], number, bit7, bit8), planes_odd)                   \
    }
#define GROUP_IQ3_S                                                                                 \
    const __m512i sign = eight_signs(line(at + 128)), more = bytes_of_rows(behind + 16 * g);        \
    const struct subs t = subs_3(bytes_of_rows(behind + 256 + g / 2 * 16), g % 2 * 4);              \
    HALF_IQ3_S(0)                                                                                   \
    HALF_IQ3_S(1)
EXPAND(iq3_s, IQ3_S, 1.0f, , GROUP_IQ3_S)

#define POINTS(name, NAME, ...)                                                                     \
    KERNEL(name, .chunk_bytes = KERN_CHUNK_##NAME, .n_parts = 2, .n_planes = 2, .low_signed = true, \
           .high_signed = true, __VA_ARGS__)
POINTS(iq2_xxs, IQ2_XXS, .shift = 4)
POINTS(iq2_xs, IQ2_XS, .shift = 4)
POINTS(iq2_s, IQ2_S, .shift = 4)
POINTS(iq3_xxs, IQ3_XXS, .low_shift = 1, .shift = 4)
POINTS(iq3_s, IQ3_S, .shift = 3)

#endif
