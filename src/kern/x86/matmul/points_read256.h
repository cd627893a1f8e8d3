/*
 * points_read256 - points of a book as they stand in panels (kern/code.h), as vectors of 256 bits.
 *
 * A vector holds 8 coordinates of four rows in the order of the book, so that a point is one load
 * and no byte changes its place.
 */
#ifndef INGLE_KERN_X86_MATMUL_POINTS_READ256_H
#define INGLE_KERN_X86_MATMUL_POINTS_READ256_H

#include "kern/x86/matmul/codes.h"

#include <immintrin.h>
#include <string.h>

static inline uint32_t load32(const void *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}
static inline __m256i load256(const void *at) { return _mm256_loadu_si256((const __m256i *)at); }
static inline __m128i load128(const void *at) { return _mm_loadu_si128((const __m128i *)at); }

/* Constants that compilers would make anew where they are used, from general registers. */
struct constants {
    __m256i bit;             /* of sign byte l, for byte i: bit i */
    __m256i odd, seven;      /* parities of 4 bits; 7 in each byte */
    __m256i low, high;       /* seven bits of low and of high bytes */
    __m256i one;             /* in each dword */
};
static ATTR_INLINE struct constants constants_of(void)
{
    struct constants k;
    k.bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    k.odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    k.seven = _mm256_set1_epi8(7);
    k.low = _mm256_set1_epi16(0x7F);
    k.high = _mm256_set1_epi16(0x7F00);
    k.one = _mm256_set1_epi32(1);
    __asm__("" : "+x"(k.bit), "+x"(k.odd), "+x"(k.seven), "+x"(k.low), "+x"(k.high), "+x"(k.one));
    return k;
}

/* Bytes of seven sign bits: the eighth makes the number of ones even. */
static ATTR_INLINE __m256i even_signs(__m256i x, const struct constants *k)
{
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), k->seven);
    return _mm256_or_si256(
        x, _mm256_xor_si256(_mm256_shuffle_epi8(k->odd, x), _mm256_shuffle_epi8(k->odd, high)));
}
/* Signs of eight words of 4 x 7 sign bits and a scale in the top 4: pairs of 7 first. */
static ATTR_INLINE __m256i signs_of_words(__m256i w, const struct constants *k)
{
    const __m256i pairs = _mm256_blend_epi16(w, _mm256_slli_epi32(w, 2), 0xAA);
    return even_signs(_mm256_or_si256(_mm256_and_si256(pairs, k->low),
                                      _mm256_and_si256(_mm256_add_epi16(pairs, pairs), k->high)),
                      k);
}

struct numbers { uint16_t of[32]; };
/* Numbers of 8 rows of a line, with bits from 8 on: 16 of them at a time. */
static ATTR_INLINE void put_numbers(uint16_t *number, const uint8_t *line, __m256i high0,
                                    __m256i high1)
{
    _mm256_store_si256((__m256i *)(void *)number,
                       _mm256_or_si256(_mm256_cvtepu8_epi16(load128(line)), high0));
    _mm256_store_si256((__m256i *)(void *)(number + 16),
                       _mm256_or_si256(_mm256_cvtepu8_epi16(load128(line + 16)), high1));
    /* loads of words are cheaper than extracting them */
    __asm__ volatile("" : "+m"(*(struct numbers *)(void *)number));
}
/* Bits bit, bit + step, ... of the bytes of rows r .. r + 3 moved to bit 8 and on; mask: 0x100 or
 * 0x300. */
static ATTR_INLINE __m256i high_bits(const uint8_t *bytes, int r, int bit, int step, int mask)
{
    const __m256i which = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1,
                                           2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1);
    const __m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32((int)load32(bytes + r)), which);
    const uint64_t up = UINT64_C(1) << (8 - bit) | UINT64_C(1) << (24 - bit - step) |
                        UINT64_C(1) << (40 - bit - 2 * step) | UINT64_C(1) << (56 - bit - 3 * step);
    return _mm256_and_si256(_mm256_mullo_epi16(b, _mm256_set1_epi64x((long long)up)),
                            _mm256_set1_epi16((short)mask));
}

/* One load each, which no unit has to move: points of four rows are blended. */
static ATTR_INLINE __m256i of_eight(const uint64_t *book, uint32_t number)
{
    return _mm256_castpd_si256(_mm256_broadcast_sd((const double *)(const void *)(book + number)));
}
static ATTR_INLINE __m256i of_four(const uint32_t *book, uint32_t number)
{
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)(const void *)(book + number)));
}
/* Two points, four, side by side.  Halves of a register are loaded as floats: integers would be
 * inserted, which is two instructions each. */
static ATTR_INLINE __m128 two_points(const uint64_t *book, uint32_t a, uint32_t b)
{
    const __m128 low = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)(book + a)));
    return _mm_loadh_pi(low, (const __m64 *)(const void *)(book + b));
}
static ATTR_INLINE __m256i four_points(const uint64_t *book, uint32_t a, uint32_t b, uint32_t c,
                                       uint32_t d)
{
#ifdef __AVX512VL__ /* loads that are blended on their way */
    const __m256i v =
        _mm256_mask_set1_epi64(_mm256_set1_epi64x((long long)book[a]), 2, (long long)book[b]);
    return _mm256_mask_set1_epi64(_mm256_mask_set1_epi64(v, 4, (long long)book[c]), 8,
                                  (long long)book[d]);
#else
    return _mm256_castps_si256(_mm256_insertf128_ps(_mm256_castps128_ps256(two_points(book, a, b)),
                                                    two_points(book, c, d), 1));
#endif
}
/* Bytes of rows [8 i, 8 i + 8) as words of 32 bits. */
static ATTR_INLINE __m256i row_bytes(const uint8_t *at, int i)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(at + 8 * i)));
}
/* 2 s + 1 of the top four bits of each dword; of four from bit `at` on. */
static ATTR_INLINE __m256i sub_of_top(__m256i v, const struct constants *k)
{
    return _mm256_or_si256(_mm256_srli_epi32(v, 27), k->one);
}
static ATTR_INLINE __m256i sub_of(__m256i v, int at, const struct constants *k)
{
    return sub_of_top(_mm256_sll_epi32(v, _mm_cvtsi32_si128(28 - at)), k);
}
/* Group n of a chunk: its lines; after those of all groups the high bits of its numbers, then
 * sub-scales of all. */
struct group {
    const uint8_t *line, *high, *sub;
    int n;
};
static ATTR_INLINE struct group group_at(const struct code_points *code, const uint8_t *chunk,
                                         int n)
{
    const bool has_high = code->id == KERN_CODE_IQ2_S || code->id == KERN_CODE_IQ3_S;
    return (struct group){chunk + n * code->group_bytes, chunk + code->after + 16 * n,
                          chunk + code->after + (has_high ? 256 : 0), n};
}
static ATTR_INLINE void group_prefetch(const struct code_points *code, struct group g)
{
    for (int l = 0; l < code->group_bytes; l += 64)
        _mm_prefetch((const char *)g.line + 8192 + l, _MM_HINT_T1);
}

/* ---- rows [8 i, 8 i + 8) of a group ---- */

/* Half of line m. */
static ATTR_INLINE const uint8_t *half_of(struct group g, int m, int i)
{
    return g.line + 64 * m + 32 * i;
}
/* Numbers of points: bytes as they stand or, with bits from 8 on, words. */
struct point_numbers {
    ATTR_ALIGNED(32) uint16_t word[64];
    const uint8_t *byte;
};
/* Those of line m, whose high bits are `step` apart from `bit` on. */
static ATTR_INLINE void high_numbers(struct group g, int m, int i, int bit, int step, int mask,
                                     struct point_numbers *to)
{
    put_numbers(to->word + 32 * m, half_of(g, m, i), high_bits(g.high, 8 * i, bit, step, mask),
                high_bits(g.high, 8 * i + 4, bit, step, mask));
}
static ATTR_INLINE void point_numbers(uint32_t id, struct group g, int i, struct point_numbers *to)
{
    to->byte = half_of(g, 0, i);
    if (id == KERN_CODE_IQ2_XS) {
        const __m256i high = _mm256_and_si256(load256(half_of(g, 1, i)), _mm256_set1_epi8(1));
        put_numbers(to->word, half_of(g, 0, i),
                    _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(high)), 8),
                    _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(high, 1)), 8));
    } else if (id == KERN_CODE_IQ2_S) {
        high_numbers(g, 0, i, 0, 2, 0x300, to);
    } else if (id == KERN_CODE_IQ3_S) {
        high_numbers(g, 0, i, 0, 1, 0x100, to);
        high_numbers(g, 1, i, 4, 1, 0x100, to);
    }
}
static ATTR_INLINE uint32_t number(uint32_t id, const struct point_numbers *n, int i)
{
    return id == KERN_CODE_IQ2_XXS || id == KERN_CODE_IQ3_XXS ? n->byte[i] : n->word[i];
}
/* Two points of four coordinates, side by side. */
static ATTR_INLINE __m256i pair_of(uint32_t id, const uint32_t *book, const struct point_numbers *n,
                                   int at)
{
    const __m256i a = of_four(book, number(id, n, at)), b = of_four(book, number(id, n, at + 1));
    return _mm256_blend_epi32(a, b, 0xAA);
}
/* Coordinates, without signs, of point l (or points 2 l and 2 l + 1) of rows 2 v + {0, 1, 4, 5},
 * which have four numbers each. */
static ATTR_INLINE __m256i point_values(uint32_t id, const struct point_numbers *n, int l, int v)
{
    if (id == KERN_CODE_IQ3_XXS || id == KERN_CODE_IQ3_S) {
        /* points 2 l and 2 l + 1: line l / 2, numbers 2 (l % 2) and the next */
        const uint32_t *const book =
            id == KERN_CODE_IQ3_S ? quant_book_iq3_s : quant_book_iq3_xxs;
        const int at = 8 * v + (id == KERN_CODE_IQ3_S ? 32 : 64) * (l / 2) + 2 * (l % 2);
        return _mm256_blend_epi32(
            _mm256_blend_epi32(pair_of(id, book, n, at), pair_of(id, book, n, at + 4), 0x0C),
            _mm256_blend_epi32(pair_of(id, book, n, at + 16), pair_of(id, book, n, at + 20), 0xC0),
            0xF0);
    }
    const uint64_t *const book = id == KERN_CODE_IQ2_XXS  ? quant_book_iq2_xxs
                                 : id == KERN_CODE_IQ2_XS ? quant_book_iq2_xs
                                                          : quant_book_iq2_s;
    const int at = 8 * v + l;
    return _mm256_blend_epi32(_mm256_blend_epi32(of_eight(book, number(id, n, at)),
                                                 of_eight(book, number(id, n, at + 4)), 0x0C),
                              _mm256_blend_epi32(of_eight(book, number(id, n, at + 16)),
                                                 of_eight(book, number(id, n, at + 20)), 0xC0),
                              0xF0);
}
/* Sign byte l of each row. */
static ATTR_INLINE __m256i point_signs(uint32_t id, struct group g, int i,
                                       const struct constants *k)
{
    switch (id) {
    case KERN_CODE_IQ2_XXS: return signs_of_words(load256(half_of(g, 1, i)), k);
    case KERN_CODE_IQ2_XS:
        return even_signs(_mm256_and_si256(_mm256_srli_epi16(load256(half_of(g, 1, i)), 1),
                                           _mm256_set1_epi8(127)),
                          k);
    case KERN_CODE_IQ2_S: return load256(half_of(g, 1, i));
    case KERN_CODE_IQ3_XXS: return signs_of_words(load256(half_of(g, 2, i)), k);
    default: return load256(half_of(g, 2, i));
    }
}
/* The sub-scale of a half, or of both. */
static ATTR_INLINE __m256i point_subs(uint32_t id, struct group g, int i, int half,
                                      const struct constants *k)
{
    switch (id) {
    case KERN_CODE_IQ2_XXS: return sub_of_top(load256(half_of(g, 1, i)), k);
    case KERN_CODE_IQ3_XXS: return sub_of_top(load256(half_of(g, 2, i)), k);
    case KERN_CODE_IQ3_S: return sub_of(row_bytes(g.sub + g.n / 2 * 16, i), g.n % 2 * 4, k);
    default: return sub_of(row_bytes(g.sub + 16 * g.n, i), 4 * half, k);
    }
}
/* Whether both halves have sub-scales of their own. */
static ATTR_INLINE bool point_halves(uint32_t id)
{
    return id == KERN_CODE_IQ2_XS || id == KERN_CODE_IQ2_S;
}

/* Half a line of values, with signs and bias; minus: which are negative.  -p = ~p + 1. */
static ATTR_INLINE void put_signed(uint8_t *half_line, __m256i v, __m256i minus, __m256i bias)
{
    _mm256_store_si256((__m256i *)(void *)half_line,
                       _mm256_add_epi8(_mm256_xor_si256(v, minus), _mm256_sub_epi8(bias, minus)));
}
/* 8 coordinates of 8 rows, at v of rows {0, 1, 4, 5} and {2, 3, 6, 7}, as two half lines; sign byte
 * l of each row. */
static ATTR_INLINE void put_eight(uint8_t *lines, __m256i v0, __m256i v1, __m256i signs, int l,
                                  __m256i bias)
{
    const __m256i each = _mm256_shuffle_epi8(
        signs, _mm256_add_epi8(_mm256_set1_epi8((char)l),
                               _mm256_set_epi32(0x0C0C0C0C, 0x08080808, 0x04040404, 0, 0x0C0C0C0C,
                                                0x08080808, 0x04040404, 0)));
    const __m256i low = _mm256_set1_epi32(0x08040201), high = _mm256_set1_epi32((int)0x80402010u);
    const __m256 a = _mm256_castsi256_ps(v0), b = _mm256_castsi256_ps(v1);
    put_signed(lines + 128 * l, _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
               _mm256_cmpeq_epi8(_mm256_and_si256(each, low), low), bias);
    put_signed(lines + 128 * l + 64, _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD)),
               _mm256_cmpeq_epi8(_mm256_and_si256(each, high), high), bias);
}
/* Eight rows of a group. */
static ATTR_INLINE void put_points(uint32_t id, struct group g, int i, uint8_t *lines, __m256i bias,
                                   const struct constants *k)
{
    struct point_numbers n;
    point_numbers(id, g, i, &n);
    const __m256i signs = point_signs(id, g, i, k);
#pragma GCC unroll 4
    for (int l = 0; l < 4; l++)
        put_eight(lines + 32 * i, point_values(id, &n, l, 0), point_values(id, &n, l, 1), signs, l,
                  bias);
}

#endif
