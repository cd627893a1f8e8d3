/* SPDX-License-Identifier: Apache-2.0 */
/* Stored blocks spread for the tiles: points are looked up four or eight at a time, get
 * their signs as vectors, and 16 rows are transposed into lines of a panel. */
#include "kern/x86/stored.h"

#include "base/bug.h"
#include <immintrin.h>
#include <string.h>

/* Of one row: 8 groups of 32 codes, sub-scales by column of the chunk's table. */
struct row {
    uint8_t *code; /* [8][ROW_STEP]: group h of this row at h * 512 */
    uint8_t *sub;  /* [16][16], this row's column */
};
enum { GROUP_STEP = 512, SUB_STEP = 16 };

static inline uint32_t load32(const void *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}
static inline uint64_t load64(const void *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}
static inline void put(const struct row *r, int h, __m256i codes)
{
    _mm256_store_si256((__m256i *)(void *)(r->code + h * GROUP_STEP), codes);
}
static inline void put_sub(const struct row *r, int g, uint32_t v)
{
    r->sub[g * SUB_STEP] = (uint8_t)v;
}
static inline uint32_t nibble(const uint8_t *at, int i) { return (uint32_t)at[i / 2] >> 4 * (i % 2) & 15; }

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

/* Four times seven sign bits: bytes whose eighth bit makes the number of ones even. */
static inline uint32_t even_signs(uint32_t w)
{
    const uint32_t x = _pdep_u32(w, 0x7F7F7F7F);
    uint32_t p = (x ^ x >> 4) & 0x0F0F0F0F;
    p ^= p >> 2;
    p ^= p >> 1;
    return x | (p & 0x01010101) << 7;
}

static inline __m256i points8(const uint64_t *book, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return _mm256_setr_epi64x((long long)book[a], (long long)book[b], (long long)book[c],
                              (long long)book[d]);
}
/* Index bytes of 8 points, with a ninth bit each from high. */
static inline __m256i points4(const uint32_t *book, uint64_t idx, uint32_t high)
{
#define AT(k) (int)book[(idx >> 8 * (k) & 255) | (high >> (k) & 1) << 8]
    return _mm256_setr_epi32(AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7));
#undef AT
}

static uint16_t expand_iq2_xxs(const uint8_t *at, const struct row *r)
{
    for (int h = 0; h < 8; h++) {
        const uint32_t idx = load32(at + 2 + 8 * h), w = load32(at + 6 + 8 * h);
        put(r, h, with_signs(points8(quant_book_iq2_xxs, idx & 255, idx >> 8 & 255,
                                     idx >> 16 & 255, idx >> 24), even_signs(w)));
        put_sub(r, 2 * h, 2 * (w >> 28) + 1);
        put_sub(r, 2 * h + 1, 2 * (w >> 28) + 1);
    }
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint16_t expand_iq2_xs(const uint8_t *at, const struct row *r)
{
    for (int h = 0; h < 8; h++) {
        const uint64_t q = load64(at + offsetof(struct quant_iq2_xs, q) + 8 * h);
        const uint32_t seven = (uint32_t)_pext_u64(q >> 9, 0x007F007F007F007F);
        put(r, h, with_signs(points8(quant_book_iq2_xs, q & 511, q >> 16 & 511, q >> 32 & 511,
                                     q >> 48 & 511), even_signs(seven)));
    }
    for (int g = 0; g < 16; g++)
        put_sub(r, g, 2 * nibble(at + offsetof(struct quant_iq2_xs, sc), g) + 1);
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint16_t expand_iq2_s(const uint8_t *at, const struct row *r)
{
    for (int h = 0; h < 8; h++) {
        const uint32_t idx = load32(at + offsetof(struct quant_iq2_s, idx) + 4 * h);
        const uint32_t high = at[offsetof(struct quant_iq2_s, qh) + (size_t)h];
        put(r, h, with_signs(points8(quant_book_iq2_s, (idx & 255) | (high & 3) << 8,
                                     (idx >> 8 & 255) | (high >> 2 & 3) << 8,
                                     (idx >> 16 & 255) | (high >> 4 & 3) << 8,
                                     idx >> 24 | high >> 6 << 8),
                             load32(at + offsetof(struct quant_iq2_s, sign) + 4 * h)));
    }
    for (int g = 0; g < 16; g++)
        put_sub(r, g, 2 * nibble(at + offsetof(struct quant_iq2_s, sc), g) + 1);
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint16_t expand_iq3_xxs(const uint8_t *at, const struct row *r)
{
    for (int h = 0; h < 8; h++) {
        const uint32_t w = load32(at + offsetof(struct quant_iq3_xxs, w) + 4 * h);
        const uint64_t idx = load64(at + offsetof(struct quant_iq3_xxs, idx) + 8 * h);
        put(r, h, with_signs(points4(quant_book_iq3_xxs, idx, 0), even_signs(w)));
        put_sub(r, 2 * h, 2 * (w >> 28) + 1);
        put_sub(r, 2 * h + 1, 2 * (w >> 28) + 1);
    }
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint16_t expand_iq3_s(const uint8_t *at, const struct row *r)
{
    for (int h = 0; h < 8; h++) {
        const uint64_t idx = load64(at + offsetof(struct quant_iq3_s, idx) + 8 * h);
        const uint32_t s = 2 * nibble(at + offsetof(struct quant_iq3_s, sc), h) + 1;
        put(r, h, with_signs(points4(quant_book_iq3_s, idx,
                                     at[offsetof(struct quant_iq3_s, qh) + (size_t)h]),
                             load32(at + offsetof(struct quant_iq3_s, sign) + 4 * h)));
        put_sub(r, 2 * h, s);
        put_sub(r, 2 * h + 1, s);
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
    case KERN_CODE_IQ2_XXS: return expand_iq2_xxs(at, r);
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

/* Eight rows of 32 bytes at `at` into halves of eight lines. */
static inline void transpose(const uint8_t *at, uint8_t *lines)
{
    __m256i v[8], t[8];
    for (int i = 0; i < 8; i++)
        v[i] = _mm256_load_si256((const __m256i *)(const void *)(at + 32 * i));
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            v[4 * i + 2 * j] = _mm256_unpacklo_epi64(t[4 * i + j], t[4 * i + j + 2]);
            v[4 * i + 2 * j + 1] = _mm256_unpackhi_epi64(t[4 * i + j], t[4 * i + j + 2]);
        }
    for (int j = 0; j < 4; j++) {
        _mm256_store_si256((__m256i *)(void *)(lines + 64 * j),
                           _mm256_permute2x128_si256(v[j], v[j + 4], 0x20));
        _mm256_store_si256((__m256i *)(void *)(lines + 64 * (j + 4)),
                           _mm256_permute2x128_si256(v[j], v[j + 4], 0x31));
    }
}

void kern_stored_expand_avx2(const struct kern_matrix *w, const uint8_t *panel, int64_t b,
                             uint8_t *chunk)
{
    ATTR_ALIGNED(32) uint8_t rows[8 * GROUP_STEP];
    const size_t n_bytes = quant_info(w->type)->n_bytes, n = (size_t)(w->in / 256);
    const size_t share = (w->panel_bytes / n + 63) / 64 * 64;
    uint16_t d[KERN_PANEL];
    /* The part of the next panel that will be wanted when this panel is done. */
    for (size_t i = 0; i < share; i += 64)
        _mm_prefetch((const char *)panel + w->panel_bytes + (size_t)b * share + i, _MM_HINT_T1);
    for (int r = 0; r < KERN_PANEL; r++) {
        const struct row row = {rows + 32 * r, chunk + STORED_SUB + r};
        d[r] = expand_row(w->code, panel + ((size_t)r * n + (size_t)b) * n_bytes, &row);
    }
    for (int h = 0; h < 8; h++) {
        transpose(rows + h * GROUP_STEP, chunk + h * GROUP_STEP);
        transpose(rows + h * GROUP_STEP + 256, chunk + h * GROUP_STEP + 32);
    }
    const __m256 factor = _mm256_set1_ps(kern_code_find(w->code)->factor);
    for (int i = 0; i < 2; i++) {
        const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(d + 8 * i));
        _mm256_store_ps((float *)(void *)(chunk + STORED_D + 32 * i),
                        _mm256_mul_ps(_mm256_cvtph_ps(half), factor));
    }
}
