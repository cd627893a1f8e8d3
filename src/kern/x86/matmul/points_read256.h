/*
 * points_read256 - points of a book as they stand in panels (kern/code.h), as vectors of 256 bits.
 *
 * A vector holds 8 coordinates of four rows in the order of the book, so that a point is one load
 * and no byte changes its place.
 */
#ifndef INGLE_KERN_X86_MATMUL_POINTS_READ256_H
#define INGLE_KERN_X86_MATMUL_POINTS_READ256_H

#include "kern/code.h"

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
#define BLEND(a, b, mask) _mm256_blend_epi32(a, b, mask)
/* n: numbers of four rows, 0, 1, 4 and 5, four numbers each. */
#define EIGHTS(book, n)                                                    \
    BLEND(BLEND(of_eight(book, (n)[0]), of_eight(book, (n)[4]), 0x0C),     \
          BLEND(of_eight(book, (n)[16]), of_eight(book, (n)[20]), 0xC0), 0xF0)
/* The same of two points of four coordinates, side by side. */
#define PAIR(book, n, mask) BLEND(of_four(book, (n)[0]), of_four(book, (n)[1]), mask)
#define FOURS(book, n)                                                     \
    BLEND(BLEND(PAIR(book, n, 0x02), PAIR(book, (n) + 4, 0x08), 0x0C),     \
          BLEND(PAIR(book, (n) + 16, 0x20), PAIR(book, (n) + 20, 0x80), 0xC0), 0xF0)

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
/* What a group is read from. */
struct group {
    const uint8_t *line, *high, *sub;
};
#define LINE_AT(m) (g.line + 64 * (m) + 32 * i)

/* For each code, rows [8 i, 8 i + 8) of group g: NUMBERS_code makes ready what VALUES_code(l, v)
 * takes its numbers from, the coordinates, without signs, of point l (or points 2 l and 2 l + 1) of
 * rows 2 v + {0, 1, 4, 5}; SIGNS_code has sign byte l of each row; SUB_code(half) is the sub-scale
 * of both halves or of one, group n of its chunk. They read constants k. */
#define NUMBERS_PLAIN const uint8_t *const number = LINE_AT(0);
#define NUMBERS_WIDE ATTR_ALIGNED(32) uint16_t number[64];
#define EIGHT_OF(book, l, v) EIGHTS(book, number + 8 * (v) + (l))
/* Points 2 l and 2 l + 1: line l / 2, numbers 2 (l % 2) and the next; lines are `step` numbers
 * apart. */
#define FOUR_OF(book, step, l, v) FOURS(book, number + 8 * (v) + (step) * ((l) / 2) + 2 * ((l) % 2))
#define NUMBERS_HIGH(m, bit, step, mask)                                                       \
    put_numbers(number + 32 * (m), LINE_AT(m), high_bits(g.high, 8 * i, bit, step, mask),      \
                high_bits(g.high, 8 * i + 4, bit, step, mask));
#define SUB_OF_WORDS(m) sub_of_top(load256(LINE_AT(m)), &k)
#define SUB_OF_BYTES(half) sub_of(row_bytes(g.sub + 16 * n, i), 4 * (half), &k)

#define NUMBERS_IQ2_XXS NUMBERS_PLAIN
#define VALUES_IQ2_XXS(l, v) EIGHT_OF(quant_book_iq2_xxs, l, v)
#define SIGNS_IQ2_XXS signs_of_words(load256(LINE_AT(1)), &k)
#define SUB_IQ2_XXS(half) SUB_OF_WORDS(1)

#define NUMBERS_IQ2_XS                                                                             \
    NUMBERS_WIDE                                                                                   \
    const __m256i high = _mm256_and_si256(load256(LINE_AT(1)), _mm256_set1_epi8(1));               \
    put_numbers(number, LINE_AT(0),                                                                \
                _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(high)), 8),          \
                _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(high, 1)), 8));
#define VALUES_IQ2_XS(l, v) EIGHT_OF(quant_book_iq2_xs, l, v)
#define SIGNS_IQ2_XS                                                                               \
    even_signs(_mm256_and_si256(_mm256_srli_epi16(load256(LINE_AT(1)), 1), _mm256_set1_epi8(127)), \
               &k)
#define SUB_IQ2_XS(half) SUB_OF_BYTES(half)

#define NUMBERS_IQ2_S NUMBERS_WIDE NUMBERS_HIGH(0, 0, 2, 0x300)
#define VALUES_IQ2_S(l, v) EIGHT_OF(quant_book_iq2_s, l, v)
#define SIGNS_IQ2_S load256(LINE_AT(1))
#define SUB_IQ2_S(half) SUB_OF_BYTES(half)

#define NUMBERS_IQ3_XXS NUMBERS_PLAIN
#define VALUES_IQ3_XXS(l, v) FOUR_OF(quant_book_iq3_xxs, 64, l, v)
#define SIGNS_IQ3_XXS signs_of_words(load256(LINE_AT(2)), &k)
#define SUB_IQ3_XXS(half) SUB_OF_WORDS(2)

#define NUMBERS_IQ3_S NUMBERS_WIDE NUMBERS_HIGH(0, 0, 1, 0x100) NUMBERS_HIGH(1, 4, 1, 0x100)
#define VALUES_IQ3_S(l, v) FOUR_OF(quant_book_iq3_s, 32, l, v)
#define SIGNS_IQ3_S load256(LINE_AT(2))
#define SUB_IQ3_S(half) sub_of(row_bytes(g.sub + n / 2 * 16, i), n % 2 * 4, &k)

/* Group n of a chunk: its lines, behind those of all groups the high bits of numbers, then
 * sub-scales. */
#define GROUP_AT(NAME, chunk, n)                                                                   \
    {                                                                                              \
        (chunk) + (n)*KERN_GROUP_##NAME, (chunk) + KERN_BEHIND_##NAME + 16 * (n),                  \
            (chunk) + KERN_BEHIND_##NAME +                                                         \
                (KERN_CODE_##NAME == KERN_CODE_IQ2_S || KERN_CODE_##NAME == KERN_CODE_IQ3_S ? 256  \
                                                                                            : 0)   \
    }
#define GROUP_ASK(NAME)                                \
    for (int l_ = 0; l_ < KERN_GROUP_##NAME; l_ += 64) \
        _mm_prefetch((const char *)g.line + 8192 + l_, _MM_HINT_T1);

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
#define POINT_PUT(NAME, l)                                                                         \
    put_eight(lines + 32 * i, VALUES_##NAME(l, 0), VALUES_##NAME(l, 1), signs, l, bias);
#define POINTS_PUT(NAME) POINT_PUT(NAME, 0) POINT_PUT(NAME, 1) POINT_PUT(NAME, 2) POINT_PUT(NAME, 3)

#endif
