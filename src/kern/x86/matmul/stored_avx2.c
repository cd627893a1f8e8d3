/* SPDX-License-Identifier: Apache-2.0 */
/* Stored blocks spread for the tiles: points are looked up four or eight at a time, get
 * their signs as vectors, and 16 rows are transposed into lines of a panel. */
#include "kern/x86/matmul/points_read256.h"
#include "kern/x86/matmul/stored.h"

#include "base/bug.h"
#include <immintrin.h>
#include <string.h>

/* Of one row: 8 groups of 32 codes, 16 sub-scales. */
struct row {
    uint8_t *code; /* group h of this row at h * GROUP_STEP */
    uint8_t *sub;
};
enum { GROUP_STEP = 512 };

static inline void put(const struct row *r, int h, __m256i codes)
{
    _mm256_store_si256((__m256i *)(void *)(r->code + h * GROUP_STEP), codes);
}
/* 8 T + delta + bias; delta: bytes. */
static inline __m256i with_delta(__m256i points, __m256i delta)
{
    const __m256i eight = _mm256_and_si256(_mm256_slli_epi16(points, 3),
                                           _mm256_set1_epi8((char)0xF8));
    return _mm256_add_epi8(eight, delta);
}

/* 32 numbers of 11 bits: low bytes at idx, high bits in bits 8 to 10 of the words of high. */
static ATTR_INLINE void put_numbers_iq1(uint16_t *number, const uint8_t *idx, const __m256i *high)
{
    for (int i = 0; i < 2; i++)
        _mm256_store_si256(
            (__m256i *)(void *)(number + 16 * i),
            _mm256_or_si256(_mm256_cvtepu8_epi16(load128(idx + 16 * i)),
                            _mm256_and_si256(high[i], _mm256_set1_epi16(0x700))));
}

/* Words of a row's four groups, four times each. */
static ATTR_INLINE __m256i four_times(const void *words)
{
    const __m128i w = _mm_loadl_epi64((const __m128i *)words);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(w),
                               _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4,
                                                5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7));
}

/* Sub-scales 2 s + 1, s in bits 1 to 3 of 16 bytes. */
static ATTR_INLINE void put_subs16(const struct row *r, __m128i s)
{
    _mm_store_si128((__m128i *)(void *)r->sub,
                    _mm_or_si128(_mm_and_si128(s, _mm_set1_epi8(14)), _mm_set1_epi8(1)));
}

static uint16_t expand_iq1_s(const uint8_t *at, const struct row *r)
{
    ATTR_ALIGNED(32) uint16_t number[32];
    const __m256i up = _mm256_set1_epi64x(1 << 8 | 1LL << 21 | 1LL << 34); /* 8, 5, 2 bits */
    uint16_t delta[8];
    __m256i high[2];
    const uint8_t *words = at + offsetof(struct quant_iq1_s, h);
    const __m128i w = load128(words);
    /* of both bytes: 1, or -1 where the top bit is set */
    _mm_storeu_si128((__m128i *)(void *)delta,
                     _mm_add_epi16(_mm_and_si128(_mm_srai_epi16(w, 15), _mm_set1_epi16(-0x202)),
                                   _mm_set1_epi16((STORED_BIAS + 1) * 0x101)));
    for (int i = 0; i < 2; i++) {
        const __m256i each = four_times(words + 8 * i);
        high[i] =
            _mm256_blend_epi16(_mm256_mullo_epi16(each, up), _mm256_srli_epi16(each, 1), 0x88);
    }
    put_numbers_iq1(number, at + offsetof(struct quant_iq1_s, idx), high);
    for (int h = 0; h < 8; h++) {
        const uint16_t *n = number + 4 * h;
        put(r, h, with_delta(four_points(quant_book_iq1, n[0], n[1], n[2], n[3]),
                             _mm256_set1_epi16((int16_t)delta[h])));
    }
    put_subs16(r, _mm_mullo_epi16(_mm_srli_epi16(w, 11), _mm_set1_epi16(0x101)));
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint16_t expand_iq1_m(const uint8_t *at, const struct row *r)
{
    ATTR_ALIGNED(32) uint16_t number[32];
    ATTR_ALIGNED(32) int16_t minus[32]; /* -1 where delta is negative */
    uint16_t sc[4];
    __m256i high[2];
    memcpy(sc, at + offsetof(struct quant_iq1_m, sc), sizeof sc);
    for (int i = 0; i < 2; i++) { /* a byte of qh for two points */
        const __m128i b = _mm_loadl_epi64(
            (const __m128i *)(const void *)(at + offsetof(struct quant_iq1_m, qh) + 8 * i));
        const __m256i each = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(b, b));
        high[i] = _mm256_mullo_epi16(each, _mm256_set1_epi32(1 << 8 | 1 << 20));
        _mm256_store_si256(
            (__m256i *)(void *)(minus + 16 * i),
            _mm256_srai_epi16(_mm256_mullo_epi16(each, _mm256_set1_epi32(1 << 12 | 1 << 24)), 15));
    }
    put_numbers_iq1(number, at + offsetof(struct quant_iq1_m, idx), high);
    for (int h = 0; h < 8; h++) {
        const uint16_t *n = number + 4 * h;
        const __m256i delta =
            _mm256_cvtepi16_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(minus + 4 * h)));
        put(r, h,
            with_delta(
                four_points(quant_book_iq1, n[0], n[1], n[2], n[3]),
                _mm256_add_epi8(_mm256_add_epi8(delta, delta), _mm256_set1_epi8(STORED_BIAS + 1))));
    }
    const __m256i sub = _mm256_srli_epi16(
        _mm256_mullo_epi16(four_times(sc),
                           _mm256_set1_epi64x(1 << 9 | 1 << 22 | 1LL << 35 | 1LL << 48)),
        8);
    put_subs16(r, _mm_packus_epi16(_mm256_castsi256_si128(sub), _mm256_extracti128_si256(sub, 1)));
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
    put_subs16(r, _mm_setzero_si128());
    return (uint16_t)(at[52] | at[53] << 8);
}

static uint16_t expand_row(uint32_t code, const uint8_t *at, const struct row *r)
{
    switch (code) {
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
        _mm256_store_ps(
            (float *)(void *)(chunk + STORED_D + 32 * i),
            _mm256_mul_ps(_mm256_cvtph_ps(load128(halves + 16 * i)), _mm256_set1_ps(factor)));
}

/* ---- points ---- */

/* Dwords of 16 rows as bytes. */
static ATTR_INLINE __m128i row_subs(__m256i first, __m256i last)
{
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(first, last), 0xD8);
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

static ATTR_INLINE void expand_of(const struct code_points *code, const uint8_t *chunk, int odd,
                                  uint8_t *to)
{
    const struct constants k = constants_of();
    __m256i bias = _mm256_set1_epi8(STORED_BIAS), sub0[2], sub1[2];
    __asm__("" : "+x"(bias));
    for (int h = 0; h < 8; h++) {
        struct group g = group_at(code, chunk, 8 * odd + h);
        uint8_t *lines = to + 512 * h;
        /* or pointers to each half spill those of numbers */
        __asm__("" : "+r"(g.line), "+r"(lines));
        group_prefetch(code, g);
        for (int i = 0; i < 2; i++) {
            put_points(code->id, g, i, lines, bias, &k);
            sub0[i] = point_subs(code->id, g, i, 0, &k);
            sub1[i] = point_subs(code->id, g, i, 1, &k);
        }
        __m128i *const subs = (__m128i *)(void *)(to + STORED_SUB + 32 * h);
        _mm_store_si128(subs, row_subs(sub0[0], sub0[1]));
        _mm_store_si128(subs + 1, row_subs(sub1[0], sub1[1]));
    }
}

static void expand_points(const struct kern_matrix *w, const uint8_t *panel, int64_t b, uint8_t *to)
{
    const struct kern_code *c = kern_code_find(w->code);
    const uint8_t *chunk = panel + (size_t)(b / 2) * c->chunk_bytes;
    const int odd = (int)(b % 2);
    switch (w->code) {
    case KERN_CODE_IQ2_XXS: expand_of(&points_IQ2_XXS, chunk, odd, to); break;
    case KERN_CODE_IQ2_XS: expand_of(&points_IQ2_XS, chunk, odd, to); break;
    case KERN_CODE_IQ2_S: expand_of(&points_IQ2_S, chunk, odd, to); break;
    case KERN_CODE_IQ3_XXS: expand_of(&points_IQ3_XXS, chunk, odd, to); break;
    default: expand_of(&points_IQ3_S, chunk, odd, to); break;
    }
    put_d(to, chunk + c->chunk_bytes - 64 + 32 * odd, c->factor);
}

void kern_stored_expand_avx2(const struct kern_matrix *w, const uint8_t *panel, int64_t b,
                             uint8_t *chunk)
{
    ATTR_ALIGNED(32) uint8_t rows[8 * GROUP_STEP], subs[KERN_PANEL * 16];
    const size_t n_bytes = quant_info(w->type)->n_bytes, n = (size_t)(w->in / 256);
    const size_t share = (w->panel_bytes / n + 63) / 64 * 64;
    uint16_t d[KERN_PANEL];
    if (w->code >= KERN_CODE_IQ2_XXS && w->code <= KERN_CODE_IQ3_S) {
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
