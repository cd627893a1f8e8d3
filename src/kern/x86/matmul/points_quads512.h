/*
 * points_quads512 - groups of book points as quads in the order of k, and their signs and
 * sub-scales.
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

/* Signs of points, of which byte 4 r + l has those of k = 8 l .. 8 l + 7, by quads: bit sign_at(j)
 * of byte 4 r + i is k = 4 j + i.  Byte c of `of`: the bits that have the sign of k = 8 l + c, if
 * their number is odd. Rows go in pairs: 8 x 8 bits are turned, and nibbles of the two rows then
 * change places. */
static ATTR_INLINE int sign_at(int j) { return 7 - j / 2 - 4 * (j % 2); }
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

/* A group: codes of the first and of the last four coordinates of points of eight, or for each half
 * words of even and of odd quads of points of four. */
struct point_group {
    __m512i codes[4], sign;
    __m512i subs; /* the sub-scale of the group, or the two of its halves: four bits each ... */
    int sub_at;   /* ... of each row's dword, from this bit on */
};

static ATTR_INLINE bool points_of_four(const struct code_points *code)
{
    return code->id == KERN_CODE_IQ3_XXS || code->id == KERN_CODE_IQ3_S;
}
/* Bits of the number of a size, and whether the halves of a group have a sub-scale each. */
static ATTR_INLINE int size_bits_of(const struct code_points *code)
{
    return points_of_four(code) ? 3 : 2;
}
static ATTR_INLINE bool has_two_subs(const struct code_points *code)
{
    return code->id == KERN_CODE_IQ2_XS || code->id == KERN_CODE_IQ2_S;
}
/* Codes of points, of those whose codes fit registers. */
static ATTR_INLINE struct tables point_tables(const struct code_points *code)
{
    return load_tables(code->id == KERN_CODE_IQ3_XXS ? quant_codes_iq3_xxs : quant_codes_iq2_xxs);
}

/* Quad j: numbers of sizes in the low bits, above which is noise. */
static ATTR_INLINE __m512i point_quad(const struct code_points *code, const struct point_group *q,
                                      int j)
{
    if (!points_of_four(code))
        return _mm512_multishift_epi64_epi8(bit_steps((unsigned)j / 2 * 8, 2), q->codes[j % 2]);
    const uint64_t at = 0x0B080300 + 0x01010101 * (uint64_t)(j % 4 / 2 * 16);
    return _mm512_multishift_epi64_epi8(
        _mm512_set1_epi64((long long)((at + 0x20202020) << 32 | at)), q->codes[j / 4 * 2 + j % 2]);
}
/* Codes of the first and of the last two coordinates of the points of half m. */
static ATTR_INLINE void put_half(struct point_group *q, int m, __m512i first2, __m512i last2)
{
    q->codes[2 * m] = bytes_of(first2, _mm512_slli_epi16(last2, 8));
    q->codes[2 * m + 1] = bytes_of(_mm512_srli_epi16(first2, 8), last2);
}

/* Group g of a chunk, whose lines are at `at`; after: the bytes that follow the lines of all
 * groups. */
static ATTR_INLINE void group_of_eight(const struct code_points *code, const struct tables *k,
                                       const uint8_t *at, const uint8_t *after, int g,
                                       struct point_group *q)
{
    const __m512i number = line(at), next = line(at + 64);
    const __mmask64 bit7 = _mm512_movepi8_mask(number);
    if (code->id == KERN_CODE_IQ2_XXS) {
        q->sign = word_signs(next);
        q->subs = next;
        q->sub_at = 28;
        q->codes[0] = look_up(k->a, number, bit7);
        q->codes[1] = look_up(k->b, number, bit7);
    } else if (code->id == KERN_CODE_IQ2_XS) {
        const __mmask64 bit8 = _mm512_test_epi8_mask(next, _mm512_set1_epi8(1));
        q->sign = seven_signs_above(next);
        q->subs = bytes_of_rows(after + 16 * g);
        q->codes[0] = look_up_512(quant_codes_iq2_xs[0], number, bit7, bit8);
        q->codes[1] = look_up_512(quant_codes_iq2_xs[1], number, bit7, bit8);
    } else {
        const __m512i more = bytes_of_rows(after + 16 * g);
        const __mmask64 bit8 = bits(more, bit_steps(0, 2)), bit9 = bits(more, bit_steps(1, 2));
        q->sign = eight_signs(next);
        q->subs = bytes_of_rows(after + 256 + 16 * g);
        q->codes[0] = look_up_1024(quant_codes_iq2_s[0], number, bit7, bit8, bit9);
        q->codes[1] = look_up_1024(quant_codes_iq2_s[1], number, bit7, bit8, bit9);
    }
}
static ATTR_INLINE void group_of_four(const struct code_points *code, const struct tables *k,
                                      const uint8_t *at, const uint8_t *after, int g,
                                      struct point_group *q)
{
    const bool is_xxs = code->id == KERN_CODE_IQ3_XXS;
    const __m512i last = line(at + 128), more = is_xxs ? last : bytes_of_rows(after + 16 * g);
    q->sign = is_xxs ? word_signs(last) : eight_signs(last);
    q->subs = is_xxs ? last : bytes_of_rows(after + 256 + g / 2 * 16);
    q->sub_at = is_xxs ? 28 : g % 2 * 4;
#pragma GCC unroll 2
    for (int m = 0; m < 2; m++) {
        const __m512i number = line(at + 64 * m);
        const __mmask64 bit7 = _mm512_movepi8_mask(number);
        if (is_xxs) {
            put_half(q, m, look_up(k->a, number, bit7), look_up(k->b, number, bit7));
        } else {
            const __mmask64 bit8 = bits(more, bit_steps(4 * (unsigned)m, 1));
            put_half(q, m, look_up_512(quant_codes_iq3_s[0], number, bit7, bit8),
                       look_up_512(quant_codes_iq3_s[1], number, bit7, bit8));
        }
    }
}
static ATTR_INLINE struct point_group point_group(const struct code_points *code,
                                                  const struct tables *k, const uint8_t *at,
                                                  const uint8_t *after, int g)
{
    struct point_group q = {.sub_at = 0};
    if (points_of_four(code))
        group_of_four(code, k, at, after, g, &q);
    else
        group_of_eight(code, k, at, after, g, &q);
    return q;
}

#endif
