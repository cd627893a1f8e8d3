/*
 * points256 - groups of book points as lines of bytes (value + STORED_BIAS) in the order of k: points are looked up four
 * or eight at a time and get their signs as vectors.
 */
#ifndef INGLE_KERN_X86_POINTS256_H
#define INGLE_KERN_X86_POINTS256_H

#include "kern/x86/stored.h"

#include <immintrin.h>
#include <string.h>

static inline uint32_t load32(const void *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}
/* Bytes of seven sign bits: the eighth makes the number of ones even. */
static inline __m256i even_signs(__m256i x)
{
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m256i a = _mm256_shuffle_epi8(odd, _mm256_and_si256(x, low));
    const __m256i b = _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(x, 4), low));
    return _mm256_or_si256(x, _mm256_xor_si256(a, b));
}
/* Signs of eight words of 4 x 7 sign bits and a scale in the top 4. */
static inline __m256i signs_of_words(__m256i w)
{
    return even_signs(_mm256_or_si256(
        _mm256_or_si256(_mm256_and_si256(w, _mm256_set1_epi32(0x7F)),
                        _mm256_and_si256(_mm256_slli_epi32(w, 1), _mm256_set1_epi32(0x7F00))),
        _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi32(w, 2), _mm256_set1_epi32(0x7F0000)),
                        _mm256_and_si256(_mm256_slli_epi32(w, 3), _mm256_set1_epi32(0x7F000000)))));
}
static inline __m256i load256(const void *at) { return _mm256_loadu_si256((const __m256i *)at); }
static inline __m128i load128(const void *at) { return _mm_loadu_si128((const __m128i *)at); }

/* Two points, four.  Halves of a register are loaded as floats: integers would be inserted, which
 * is two instructions each. */
static ATTR_INLINE __m128 two_points(const uint64_t *book, uint32_t a, uint32_t b)
{
    const __m128 low = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)(book + a)));
    return _mm_loadh_pi(low, (const __m64 *)(const void *)(book + b));
}
static ATTR_INLINE __m256 four_points(const uint64_t *book, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(two_points(book, a, b)), two_points(book, c, d), 1);
}

/* ---- points: a group of 8 rows at a time; its numbers are 16-bit, [8 rows][4] in each line ---- */

/* The points' values, with signs and bias, as half a line: bit i of a row's dword of `sign` in `bit`
 * is for byte i.  -p = ~p + 1. */
static ATTR_INLINE void put_signed(uint8_t *half_line, __m256i v, __m256i sign, __m256i bit)
{
    const __m256i m = _mm256_cmpeq_epi8(_mm256_and_si256(sign, bit), bit);
    _mm256_store_si256((__m256i *)(void *)half_line,
                       _mm256_add_epi8(_mm256_xor_si256(v, m), _mm256_sub_epi8(_mm256_set1_epi8(STORED_BIAS), m)));
}

/* Sign byte l of each of 8 rows, four times. */
static ATTR_INLINE __m256i sign_bytes(__m256i sign, int l)
{
    return _mm256_shuffle_epi8(
        sign, _mm256_add_epi8(_mm256_set1_epi8((char)l),
                              _mm256_set_epi32(0x0C0C0C0C, 0x08080808, 0x04040404, 0, 0x0C0C0C0C, 0x08080808,
                                               0x04040404, 0)));
}

/* Point l of 4, of 8 coordinates: two half lines.  number: bytes or words. */
#define POINT_8(book, number, l)                                                                                      \
    {                                                                                                                 \
        const __m256 a_ = four_points(book, (number)[l], (number)[4 + (l)], (number)[16 + (l)], (number)[20 + (l)]);  \
        const __m256 b_ = four_points(book, (number)[8 + (l)], (number)[12 + (l)], (number)[24 + (l)], (number)[28 + (l)]); \
        const __m256i each_ = sign_bytes(sign, l);                                                                    \
        put_signed(to + 128 * (l), _mm256_castps_si256(_mm256_shuffle_ps(a_, b_, 0x88)), each_,                       \
                   _mm256_set1_epi32(0x08040201));                                                                    \
        put_signed(to + 128 * (l) + 64, _mm256_castps_si256(_mm256_shuffle_ps(a_, b_, 0xDD)), each_,                  \
                   _mm256_set1_epi32((int)0x80402010u));                                                              \
    }

/* Points 2 l and 2 l + 1 of 8, of 4 coordinates: the same. */
#define POINT_4(book, number, at)                                                                                \
    _mm256_setr_epi32((int)(book)[(number)[at]], (int)(book)[(number)[(at) + 4]], (int)(book)[(number)[(at) + 8]], \
                      (int)(book)[(number)[(at) + 12]], (int)(book)[(number)[(at) + 16]],                        \
                      (int)(book)[(number)[(at) + 20]], (int)(book)[(number)[(at) + 24]], (int)(book)[(number)[(at) + 28]])
#define POINTS_4(book, number, l)                                                                                     \
    {                                                                                                                 \
        const __m256i each_ = sign_bytes(sign, l);                                                                    \
        put_signed(to + 128 * (l), POINT_4(book, number, 2 * ((l) % 2)), each_, _mm256_set1_epi32(0x08040201));       \
        put_signed(to + 128 * (l) + 64, POINT_4(book, number, 2 * ((l) % 2) + 1), each_, _mm256_set1_epi32((int)0x80402010u)); \
    }

/* Loads that follow are loads: compilers would take the numbers from vectors, two instructions each. */
struct numbers { uint16_t n[32]; };
/* Numbers of 8 rows of a line, with bits from 8 on: 16 of them at a time. */
static ATTR_INLINE void put_numbers(uint16_t *number, const uint8_t *line, __m256i high0, __m256i high1)
{
    _mm256_store_si256((__m256i *)(void *)number,
                       _mm256_or_si256(_mm256_cvtepu8_epi16(load128(line)), high0));
    _mm256_store_si256((__m256i *)(void *)(number + 16),
                       _mm256_or_si256(_mm256_cvtepu8_epi16(load128(line + 16)), high1));
    __asm__("" : "+m"(*(struct numbers *)(void *)number));
}
/* Bits bit, bit + step, ... of the bytes of rows r .. r + 3 moved to bit 8 and on; mask: 0x100 or 0x300. */
static ATTR_INLINE __m256i high_bits(const uint8_t *bytes, int r, int bit, int step, int mask)
{
    const __m256i which = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 2, -1, 2, -1, 2,
                                           -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1);
    const __m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32((int)load32(bytes + r)), which);
    const uint64_t up = UINT64_C(1) << (8 - bit) | UINT64_C(1) << (24 - bit - step) |
                        UINT64_C(1) << (40 - bit - 2 * step) | UINT64_C(1) << (56 - bit - 3 * step);
    return _mm256_and_si256(_mm256_mullo_epi16(b, _mm256_set1_epi64x((long long)up)), _mm256_set1_epi16((short)mask));
}

/* What a group is read from. */
struct points {
    const uint8_t *line, *high, *sub;
};
/* Numbers and signs of rows [8 i, 8 i + 8), by type. */
#define NUMBERS_HIGH(m, bit, step, mask)                                                       \
    put_numbers(number + 32 * (m), g->line + 64 * (m) + 32 * i, high_bits(g->high, 8 * i, bit, step, mask), \
                high_bits(g->high, 8 * i + 4, bit, step, mask));
#define EIGHT(book, number) \
    POINT_8(book, number, 0) POINT_8(book, number, 1) POINT_8(book, number, 2) POINT_8(book, number, 3)
#define FOUR(book, first, last) \
    POINTS_4(book, first, 0) POINTS_4(book, first, 1) POINTS_4(book, last, 2) POINTS_4(book, last, 3)

#define EXPAND(name, NUMBERS, SIGN, SPREAD)                                                    \
    static void expand_##name(const struct points *g, uint8_t *lines)                          \
    {                                                                                          \
        for (int i = 0; i < 2; i++) {                                                          \
            uint8_t *to = lines + 32 * i;                                                      \
            NUMBERS                                                                            \
            const __m256i sign = SIGN;                                                         \
            SPREAD                                                                             \
        }                                                                                      \
    }
#define PLAIN const uint8_t *const number = g->line + 32 * i;
#define WORDS(n) ATTR_ALIGNED(32) uint16_t number[n];
EXPAND(iq2_xxs, PLAIN, signs_of_words(load256(g->line + 64 + 32 * i)), EIGHT(quant_book_iq2_xxs, number))
#define NUMBERS_XS                                                                             \
    WORDS(32)                                                                                  \
    const __m256i bit = _mm256_and_si256(load256(g->line + 64 + 32 * i), _mm256_set1_epi8(1)); \
    put_numbers(number, g->line + 32 * i,                                                      \
                _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(bit)), 8),       \
                _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(bit, 1)), 8));
EXPAND(iq2_xs, NUMBERS_XS,
       even_signs(_mm256_and_si256(_mm256_srli_epi16(load256(g->line + 64 + 32 * i), 1), _mm256_set1_epi8(127))),
       EIGHT(quant_book_iq2_xs, number))
EXPAND(iq2_s, WORDS(32) NUMBERS_HIGH(0, 0, 2, 0x300), load256(g->line + 64 + 32 * i), EIGHT(quant_book_iq2_s, number))
EXPAND(iq3_xxs, PLAIN, signs_of_words(load256(g->line + 128 + 32 * i)),
       FOUR(quant_book_iq3_xxs, number, number + 64))
EXPAND(iq3_s, WORDS(64) NUMBERS_HIGH(0, 0, 1, 0x100) NUMBERS_HIGH(1, 4, 1, 0x100), load256(g->line + 128 + 32 * i),
       FOUR(quant_book_iq3_s, number, number + 32))

#endif
