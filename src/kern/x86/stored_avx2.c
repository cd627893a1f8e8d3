/* SPDX-License-Identifier: Apache-2.0 */
/* Stored blocks spread for the tiles: points are looked up four or eight at a time, get
 * their signs as vectors, and 16 rows are transposed into lines of a panel. */
#include "kern/x86/stored.h"

#include "base/bug.h"
#include <immintrin.h>
#include <string.h>

/* Of one row: 8 groups of 32 codes, 16 sub-scales. */
struct row {
    uint8_t *code; /* group h of this row at h * GROUP_STEP */
    uint8_t *sub;
};
enum { GROUP_STEP = 512 };

static inline uint32_t load32(const void *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}
static inline void put(const struct row *r, int h, __m256i codes)
{
    _mm256_store_si256((__m256i *)(void *)(r->code + h * GROUP_STEP), codes);
}
static inline void put_sub(const struct row *r, int g, uint32_t v)
{
    r->sub[g] = (uint8_t)v;
}
/* Points, negative where a bit of sign is set, plus the bias. */
static inline __m256i with_signs(__m256i points, uint32_t sign)
{
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                             0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i s = _mm256_shuffle_epi8(_mm256_set1_epi32((int)sign), which);
    const __m256i m = _mm256_cmpeq_epi8(_mm256_and_si256(s, bit), bit);
    return _mm256_add_epi8(_mm256_sub_epi8(_mm256_xor_si256(points, m), m),
                           _mm256_set1_epi8(STORED_BIAS));
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
/* 2 s + 1 of 16 bytes s. */
static inline void put_subs(const struct row *r, __m128i s)
{
    _mm_store_si128((__m128i *)(void *)r->sub,
                    _mm_add_epi8(_mm_add_epi8(s, s), _mm_set1_epi8(1)));
}
/* Nibbles of the low 8 bytes in order. */
static inline __m128i nibbles(__m128i v)
{
    const __m128i low = _mm_set1_epi8(15);
    return _mm_unpacklo_epi8(_mm_and_si128(v, low), _mm_and_si128(_mm_srli_epi16(v, 4), low));
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
/* The scales of such words of a row: sub-scales of 32. */
static inline void words_of_32(const struct row *r, __m256i w, uint32_t sign[8])
{
    _mm256_store_si256((__m256i *)(void *)sign, signs_of_words(w));
    const __m256i s = _mm256_srli_epi32(w, 28);
    const __m128i s16 = _mm_packus_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    const __m128i s8 = _mm_packus_epi16(s16, s16);
    put_subs(r, _mm_unpacklo_epi8(s8, s8));
}
static inline __m256i load256(const void *at) { return _mm256_loadu_si256((const __m256i *)at); }
static inline __m128i load128(const void *at) { return _mm_loadu_si128((const __m128i *)at); }
static inline __m128i load_low(const void *at) { return _mm_loadl_epi64((const __m128i *)at); }

static inline __m256i points8(const uint64_t *book, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return _mm256_setr_epi64x((long long)book[a], (long long)book[b], (long long)book[c],
                              (long long)book[d]);
}
static uint16_t expand_iq2_xs(const uint8_t *at, const struct row *r)
{
    ATTR_ALIGNED(32) uint16_t idx[32];
    ATTR_ALIGNED(32) uint32_t sign[8];
    const uint8_t *q = at + offsetof(struct quant_iq2_xs, q);
    const __m256i a = load256(q), b = load256(q + 32), low = _mm256_set1_epi16(511);
    _mm256_store_si256((__m256i *)(void *)idx, _mm256_and_si256(a, low));
    _mm256_store_si256((__m256i *)(void *)(idx + 16), _mm256_and_si256(b, low));
    const __m256i seven = _mm256_packus_epi16(_mm256_srli_epi16(a, 9), _mm256_srli_epi16(b, 9));
    _mm256_store_si256((__m256i *)(void *)sign,
                       even_signs(_mm256_permute4x64_epi64(seven, 0xD8)));
    put_subs(r, nibbles(load_low(at + offsetof(struct quant_iq2_xs, sc))));
    for (int h = 0; h < 8; h++) {
        const uint16_t *i = idx + 4 * h;
        put(r, h, with_signs(points8(quant_book_iq2_xs, i[0], i[1], i[2], i[3]), sign[h]));
    }
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint16_t expand_iq2_s(const uint8_t *at, const struct row *r)
{
    ATTR_ALIGNED(32) uint16_t idx[32];
    const uint8_t *sign = at + offsetof(struct quant_iq2_s, sign);
    const uint8_t *low = at + offsetof(struct quant_iq2_s, idx);
    const __m256i qh = _mm256_broadcastsi128_si256(load_low(at + offsetof(struct quant_iq2_s, qh)));
    const __m256i up = _mm256_set1_epi64x(0x0004001000400100), two = _mm256_set1_epi16(0x300);
    for (int i = 0; i < 2; i++) { /* index bits 8 and 9: two bits of byte k / 4 */
        const __m256i at_k = _mm256_add_epi8(
            _mm256_setr_epi8(0, -9, 0, -9, 0, -9, 0, -9, 1, -9, 1, -9, 1, -9, 1, -9, 2, -9, 2, -9,
                             2, -9, 2, -9, 3, -9, 3, -9, 3, -9, 3, -9),
            _mm256_set1_epi8((char)(4 * i)));
        const __m256i high = _mm256_and_si256(
            _mm256_mullo_epi16(_mm256_shuffle_epi8(qh, at_k), up), two);
        _mm256_store_si256((__m256i *)(void *)(idx + 16 * i),
                           _mm256_or_si256(high, _mm256_cvtepu8_epi16(load128(low + 16 * i))));
    }
    put_subs(r, nibbles(load_low(at + offsetof(struct quant_iq2_s, sc))));
    for (int h = 0; h < 8; h++) {
        const uint16_t *i = idx + 4 * h;
        put(r, h, with_signs(points8(quant_book_iq2_s, i[0], i[1], i[2], i[3]),
                             load32(sign + 4 * h)));
    }
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint16_t expand_iq3_xxs(const uint8_t *at, const struct row *r)
{
    ATTR_ALIGNED(32) uint32_t sign[8];
    words_of_32(r, load256(at + offsetof(struct quant_iq3_xxs, w)), sign);
    for (int h = 0; h < 8; h++) {
        const uint8_t *i = at + offsetof(struct quant_iq3_xxs, idx) + 8 * h;
        const uint32_t *book = quant_book_iq3_xxs;
        put(r, h, with_signs(_mm256_setr_epi32((int)book[i[0]], (int)book[i[1]], (int)book[i[2]],
                                               (int)book[i[3]], (int)book[i[4]], (int)book[i[5]],
                                               (int)book[i[6]], (int)book[i[7]]), sign[h]));
    }
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint16_t expand_iq3_s(const uint8_t *at, const struct row *r)
{
    const uint8_t *low = at + offsetof(struct quant_iq3_s, idx);
    const uint8_t *qh = at + offsetof(struct quant_iq3_s, qh);
    const uint8_t *sign = at + offsetof(struct quant_iq3_s, sign);
    const __m128i bit = _mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128);
    const __m128i s = nibbles(_mm_cvtsi32_si128((int)load32(at + offsetof(struct quant_iq3_s, sc))));
    put_subs(r, _mm_unpacklo_epi8(s, s));
    for (int h = 0; h < 8; h++) {
        ATTR_ALIGNED(16) uint16_t i[8];
        const uint32_t *book = quant_book_iq3_s;
        const __m128i set = _mm_cmpeq_epi16(_mm_and_si128(_mm_set1_epi16(qh[h]), bit), bit);
        _mm_store_si128((__m128i *)(void *)i,
                        _mm_or_si128(_mm_and_si128(set, _mm_set1_epi16(256)),
                                     _mm_cvtepu8_epi16(load_low(low + 8 * h))));
        put(r, h, with_signs(_mm256_setr_epi32((int)book[i[0]], (int)book[i[1]], (int)book[i[2]],
                                               (int)book[i[3]], (int)book[i[4]], (int)book[i[5]],
                                               (int)book[i[6]], (int)book[i[7]]),
                             load32(sign + 4 * h)));
    }
    return (uint16_t)(at[0] | at[1] << 8);
}

/* 8 T + delta + bias; delta: bytes. */
static inline __m256i with_delta(__m256i points, __m256i delta)
{
    const __m256i eight = _mm256_and_si256(_mm256_slli_epi16(points, 3),
                                           _mm256_set1_epi8((char)0xF8));
    return _mm256_add_epi8(eight, delta);
}

static uint16_t expand_iq1_s(const uint8_t *at, const struct row *r)
{
    for (int h = 0; h < 8; h++) {
        const uint32_t idx = load32(at + offsetof(struct quant_iq1_s, idx) + 4 * h);
        uint16_t w;
        memcpy(&w, at + offsetof(struct quant_iq1_s, h) + 2 * h, sizeof w);
        put(r, h, with_delta(points8(quant_book_iq1, (idx & 255) | (w & 7u) << 8,
                                     (idx >> 8 & 255) | (w >> 3 & 7u) << 8,
                                     (idx >> 16 & 255) | (w >> 6 & 7u) << 8,
                                     idx >> 24 | (w >> 9 & 7u) << 8),
                             _mm256_set1_epi8(w >> 15 ? STORED_BIAS - 1 : STORED_BIAS + 1)));
        put_sub(r, 2 * h, 2 * (w >> 12 & 7u) + 1);
        put_sub(r, 2 * h + 1, 2 * (w >> 12 & 7u) + 1);
    }
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint16_t expand_iq1_m(const uint8_t *at, const struct row *r)
{
    uint16_t sc[4];
    memcpy(sc, at + offsetof(struct quant_iq1_m, sc), sizeof sc);
    for (int h = 0; h < 8; h++) {
        const uint32_t idx = load32(at + offsetof(struct quant_iq1_m, idx) + 4 * h);
        const uint8_t *qh = at + offsetof(struct quant_iq1_m, qh) + 2 * h;
        const uint32_t w = qh[0] | (uint32_t)qh[1] << 8;
        /* Bytes of 0xFE where delta is negative. */
#define DELTA(k) ((w >> (4 * (k) + 3) & 1) ? (long long)0xFEFEFEFEFEFEFEFEu : 0)
        const __m256i minus = _mm256_setr_epi64x(DELTA(0), DELTA(1), DELTA(2), DELTA(3));
#undef DELTA
        put(r, h, with_delta(points8(quant_book_iq1, (idx & 255) | (w & 7) << 8,
                                     (idx >> 8 & 255) | (w >> 4 & 7) << 8,
                                     (idx >> 16 & 255) | (w >> 8 & 7) << 8,
                                     idx >> 24 | (w >> 12 & 7) << 8),
                             _mm256_add_epi8(minus, _mm256_set1_epi8(STORED_BIAS + 1))));
    }
    for (int g = 0; g < 16; g++)
        put_sub(r, g, 2 * ((uint32_t)sc[g / 4] >> 3 * (g % 4) & 7) + 1);
    return quant_iq1_m_scale(sc);
}

/* A trit of 16 bytes, as a code. */
static inline __m128i trits(__m128i q, int pow3)
{
    const __m256i x = _mm256_and_si256(
        _mm256_mullo_epi16(_mm256_cvtepu8_epi16(q), _mm256_set1_epi16((short)pow3)),
        _mm256_set1_epi16(255));
    const __m256i t = _mm256_srli_epi16(_mm256_mullo_epi16(x, _mm256_set1_epi16(3)), 8);
    const __m128i b = _mm_packus_epi16(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    return _mm_add_epi8(b, _mm_set1_epi8(STORED_BIAS - 1));
}
static inline void put16(const struct row *r, int k, __m128i codes)
{
    _mm_store_si128((__m128i *)(void *)(r->code + k / 32 * GROUP_STEP + k % 32), codes);
}

static uint16_t expand_tq1_0(const uint8_t *at, const struct row *r)
{
    static const int pow3[5] = {1, 3, 9, 27, 81};
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)at);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(at + 16));
    const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(at + 32));
    const uint8_t *qh = at + offsetof(struct quant_tq1_0, qh);
    uint32_t last[4];
    for (int n = 0; n < 5; n++) {
        put16(r, 32 * n, trits(a, pow3[n]));
        put16(r, 32 * n + 16, trits(b, pow3[n]));
        put16(r, 160 + 16 * n, trits(c, pow3[n]));
    }
    for (int n = 0; n < 4; n++)
        last[n] = (uint32_t)_mm_cvtsi128_si32(trits(_mm_cvtsi32_si128((int)load32(qh)), pow3[n]));
    memcpy(r->code + 7 * GROUP_STEP + 16, last, sizeof last);
    for (int g = 0; g < 16; g++)
        put_sub(r, g, 1);
    return (uint16_t)(at[52] | at[53] << 8);
}

static uint16_t expand_row(uint32_t code, const uint8_t *at, const struct row *r)
{
    switch (code) {
    case KERN_CODE_IQ2_XS: return expand_iq2_xs(at, r);
    case KERN_CODE_IQ2_S: return expand_iq2_s(at, r);
    case KERN_CODE_IQ3_XXS: return expand_iq3_xxs(at, r);
    case KERN_CODE_IQ3_S: return expand_iq3_s(at, r);
    case KERN_CODE_IQ1_S: return expand_iq1_s(at, r);
    case KERN_CODE_IQ1_M: return expand_iq1_m(at, r);
    case KERN_CODE_TQ1_0: return expand_tq1_0(at, r);
    default: BUG("no stored code");
    }
}

/* Eight rows of 32 bytes at `at` into halves of eight lines.  Written out: compilers keep
 * arrays of vectors in memory. */
static inline void transpose(const uint8_t *at, uint8_t *lines)
{
#define ROW(i) _mm256_load_si256((const __m256i *)(const void *)(at + 32 * (i)))
#define PAIRS(i)                                                                 \
    const __m256i lo##i = _mm256_unpacklo_epi32(ROW(2 * i), ROW(2 * i + 1));      \
    const __m256i hi##i = _mm256_unpackhi_epi32(ROW(2 * i), ROW(2 * i + 1));
    PAIRS(0) PAIRS(1) PAIRS(2) PAIRS(3)
#define LINES(j, half, unpack)                                                                  \
    {                                                                                           \
        const __m256i a = unpack(half##0, half##1), b = unpack(half##2, half##3);               \
        _mm256_store_si256((__m256i *)(void *)(lines + 64 * (j)),                               \
                           _mm256_permute2x128_si256(a, b, 0x20));                              \
        _mm256_store_si256((__m256i *)(void *)(lines + 64 * ((j) + 4)),                         \
                           _mm256_permute2x128_si256(a, b, 0x31));                              \
    }
    LINES(0, lo, _mm256_unpacklo_epi64)
    LINES(1, lo, _mm256_unpackhi_epi64)
    LINES(2, hi, _mm256_unpacklo_epi64)
    LINES(3, hi, _mm256_unpackhi_epi64)
#undef ROW
#undef PAIRS
#undef LINES
}

/* [16][16] bytes, rows to columns: words of four rows first, then as above. */
static inline void transpose_bytes(const uint8_t *at, uint8_t *to)
{
#define ROW(i) _mm_load_si128((const __m128i *)(const void *)(at + 16 * (i)))
    for (int i = 0; i < 4; i++, at += 64) { /* four rows: bytes of a column side by side */
        const __m128i a = _mm_unpacklo_epi8(ROW(0), ROW(2)), b = _mm_unpackhi_epi8(ROW(0), ROW(2));
        const __m128i c = _mm_unpacklo_epi8(ROW(1), ROW(3)), d = _mm_unpackhi_epi8(ROW(1), ROW(3));
        const __m128i q[4] = {_mm_unpacklo_epi8(a, c), _mm_unpackhi_epi8(a, c),
                              _mm_unpacklo_epi8(b, d), _mm_unpackhi_epi8(b, d)};
        for (int j = 0; j < 4; j++) {
            uint32_t w[4];
            memcpy(w, &q[j], sizeof w);
            for (int k = 0; k < 4; k++)
                memcpy(to + 64 * j + 16 * k + 4 * i, &w[k], sizeof w[k]);
        }
    }
#undef ROW
}

static void put_d(uint8_t *chunk, const uint8_t *halves, float factor)
{
    for (int i = 0; i < 2; i++)
        _mm256_store_ps((float *)(void *)(chunk + STORED_D + 32 * i),
                        _mm256_mul_ps(_mm256_cvtph_ps(load128(halves + 16 * i)), _mm256_set1_ps(factor)));
}

/* Eight codes of point l of 8 rows: the halves of two lines. */
static ATTR_INLINE void spread_points(const uint8_t *number, __m256i sign, int l, uint8_t *lines)
{
    const uint64_t *book = quant_book_iq2_xxs;
#define POINT(r) (long long)book[number[4 * (r) + l]]
    const __m256 a = _mm256_castsi256_ps(_mm256_setr_epi64x(POINT(0), POINT(1), POINT(4), POINT(5)));
    const __m256 b = _mm256_castsi256_ps(_mm256_setr_epi64x(POINT(2), POINT(3), POINT(6), POINT(7)));
#undef POINT
    const __m256i first = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
    const __m256i last = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
    const __m256i each = _mm256_shuffle_epi8(
        sign, _mm256_add_epi8(_mm256_set1_epi8((char)l),
                              _mm256_set_epi32(0x0C0C0C0C, 0x08080808, 0x04040404, 0, 0x0C0C0C0C, 0x08080808,
                                               0x04040404, 0)));
    const __m256i low = _mm256_set1_epi32(0x08040201), high = _mm256_set1_epi32((int)0x80402010u);
    const __m256i m0 = _mm256_cmpeq_epi8(_mm256_and_si256(each, low), low);
    const __m256i m1 = _mm256_cmpeq_epi8(_mm256_and_si256(each, high), high);
    const __m256i bias = _mm256_set1_epi8(STORED_BIAS);
    /* p, or -p = ~p + 1 */
    _mm256_store_si256((__m256i *)(void *)lines,
                       _mm256_add_epi8(_mm256_xor_si256(first, m0), _mm256_sub_epi8(bias, m0)));
    _mm256_store_si256((__m256i *)(void *)(lines + 64),
                       _mm256_add_epi8(_mm256_xor_si256(last, m1), _mm256_sub_epi8(bias, m1)));
}

static void expand_points(const struct kern_matrix *w, const uint8_t *panel, int64_t b, uint8_t *chunk)
{
    const uint8_t *at = panel + (b / 2) * KERN_POINT_CHUNK, *d = at + KERN_POINT_D + b % 2 * 32;
    at += b % 2 * 8 * KERN_POINT_GROUP;
    for (int h = 0; h < 8; h++, at += KERN_POINT_GROUP) {
        const __m256i w0 = load256(at + 64), w1 = load256(at + 96);
        const __m256i s0 = signs_of_words(w0), s1 = signs_of_words(w1);
        uint8_t *lines = chunk + 512 * h;
        _mm_prefetch((const char *)at + 8192, _MM_HINT_T1);
        _mm_prefetch((const char *)at + 8192 + 64, _MM_HINT_T1);
        spread_points(at, s0, 0, lines);
        spread_points(at + 32, s1, 0, lines + 32);
        spread_points(at, s0, 1, lines + 128);
        spread_points(at + 32, s1, 1, lines + 160);
        spread_points(at, s0, 2, lines + 256);
        spread_points(at + 32, s1, 2, lines + 288);
        spread_points(at, s0, 3, lines + 384);
        spread_points(at + 32, s1, 3, lines + 416);
        /* 2 s + 1: the lowest bit is set whatever it was */
        const __m256i sub = _mm256_permute4x64_epi64(
            _mm256_packus_epi32(_mm256_srli_epi32(w0, 27), _mm256_srli_epi32(w1, 27)), 0xD8);
        const __m128i bytes = _mm_or_si128(
            _mm_packus_epi16(_mm256_castsi256_si128(sub), _mm256_extracti128_si256(sub, 1)), _mm_set1_epi8(1));
        _mm_store_si128((__m128i *)(void *)(chunk + STORED_SUB + 32 * h), bytes);
        _mm_store_si128((__m128i *)(void *)(chunk + STORED_SUB + 32 * h + 16), bytes);
    }
    put_d(chunk, d, kern_code_find(w->code)->factor);
}

void kern_stored_expand_avx2(const struct kern_matrix *w, const uint8_t *panel, int64_t b,
                             uint8_t *chunk)
{
    ATTR_ALIGNED(32) uint8_t rows[8 * GROUP_STEP], subs[KERN_PANEL * 16];
    const size_t n_bytes = quant_info(w->type)->n_bytes, n = (size_t)(w->in / 256);
    const size_t share = (w->panel_bytes / n + 63) / 64 * 64;
    uint16_t d[KERN_PANEL];
    if (w->code == KERN_CODE_IQ2_XXS) {
        expand_points(w, panel, b, chunk);
        return;
    }
    /* The part of the next panel that will be wanted when this panel is done. */
    for (size_t i = 0; i < share; i += 64)
        _mm_prefetch((const char *)panel + w->panel_bytes + (size_t)b * share + i, _MM_HINT_T1);
    for (int r = 0; r < KERN_PANEL; r++) {
        const struct row row = {rows + 32 * r, subs + 16 * r};
        d[r] = expand_row(w->code, panel + ((size_t)r * n + (size_t)b) * n_bytes, &row);
    }
    for (int h = 0; h < 8; h++) {
        transpose(rows + h * GROUP_STEP, chunk + h * GROUP_STEP);
        transpose(rows + h * GROUP_STEP + 256, chunk + h * GROUP_STEP + 32);
    }
    transpose_bytes(subs, chunk + STORED_SUB);
    put_d(chunk, (const uint8_t *)d, kern_code_find(w->code)->factor);
}
