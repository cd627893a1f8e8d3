/*
 * quads256 - codes of a group as bytes, for 256-bit vectors: quad j (a literal) is k = 4 j .. 4 j +
 * 3 of 8 rows, half a line (kern/code.h has the planes).  And scales.
 */
#ifndef INGLE_KERN_X86_MATMUL_QUADS256_H
#define INGLE_KERN_X86_MATMUL_QUADS256_H

#include "kern/x86/matmul/codes.h"

#include <immintrin.h>
#include <string.h>

static inline __m256i half_line(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}
static inline __m256i bytes(int v) { return _mm256_set1_epi8((char)v); }
static inline __m256i words32(const void *at)
{
    int32_t v;
    memcpy(&v, at, sizeof v);
    return _mm256_set1_epi32(v);
}
static inline __m128i row16(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}
static inline __m256 halves(const uint8_t *at) { return _mm256_cvtph_ps(row16(at)); }
static inline __m256i lut(const int8_t *table, int bias)
{
    return _mm256_add_epi8(_mm256_broadcastsi128_si256(row16((const uint8_t *)table)),
                           bytes(bias));
}

/* Bit t of each byte of v moved to bit `to`; others are noise. */
static ATTR_INLINE __m256i moved(__m256i v, int t, int to)
{
    return t < to ? _mm256_slli_epi16(v, to - t) : t > to ? _mm256_srli_epi16(v, t - to) : v;
}
static ATTR_INLINE __m256i masked(__m256i v, int t, int to, int mask)
{
    return _mm256_and_si256(moved(v, t, to), bytes(mask));
}
/* Quad j (a literal) of a group, rows 0..7; + 32: rows 8..15. */
static ATTR_INLINE __m256i quad_4(const uint8_t *g, int j)
{
    return masked(half_line(g + 64 * (j % 4)), j < 4 ? 0 : 4, 0, 15);
}
static ATTR_INLINE __m256i quad_5(const uint8_t *g, int j)
{
    return _mm256_or_si256(quad_4(g, j), masked(half_line(g + 256), j, 4, 16));
}
static ATTR_INLINE __m256i quad_6(const uint8_t *g, int j)
{
    return _mm256_or_si256(quad_4(g, j),
                           masked(half_line(g + 256 + 64 * (j / 4)), 2 * (j % 4), 4, 48));
}
static ATTR_INLINE __m256i quad_2(const uint8_t *g, int j)
{
    return masked(half_line(g + 64 * (j / 4)), 2 * (j % 4), 0, 3);
}
static ATTR_INLINE __m256i quad_3(const uint8_t *g, int j)
{
    return _mm256_or_si256(quad_2(g, j), masked(half_line(g + 128), j, 2, 4));
}
/* 0 or 2: the value plus 1. */
static ATTR_INLINE __m256i quad_1(const uint8_t *g, int j)
{
    return masked(half_line(g), j, 1, 2);
}
/* The value, signed. */
static ATTR_INLINE __m256i quad_8(const uint8_t *g, int j)
{
    return _mm256_xor_si256(half_line(g + 64 * j), bytes(128));
}

/* What quad() looks up codes in, if it does, plus a bias. */
static ATTR_INLINE __m256i quad_table(const struct kern_code *code, int bias)
{
    return code->table && code->bits > 1 ? lut(code->table, bias) : _mm256_setzero_si256();
}
/* Codes as they are stored, those of 1 bit and those with a table as what they stand for plus their
 * bias. */
static ATTR_INLINE __m256i quad(const struct kern_code *code, __m256i table, const uint8_t *g,
                                int j)
{
    switch (code->bits) {
    case 1: return quad_1(g, j);
    case 2: return quad_2(g, j);
    case 3: return quad_3(g, j);
    case 4: return code->table ? _mm256_shuffle_epi8(table, quad_4(g, j)) : quad_4(g, j);
    case 5: return quad_5(g, j);
    case 6: return quad_6(g, j);
    default: return half_line(g + 64 * j);
    }
}

/* ---- scales ---- */

/* 2^(e - 128), NaN for 255. */
static inline __m256 half_e8m0(const uint8_t *at)
{
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i v = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    v = _mm256_blendv_epi8(v, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
    v = _mm256_blendv_epi8(v, _mm256_set1_epi32(0x7FC00000),
                           _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)));
    return _mm256_castsi256_ps(v);
}
/* The same of 16 rows.  Exponents are hardly ever at either end. */
static ATTR_INLINE void halves_e8m0(const uint8_t *at, __m256 *d0, __m256 *d1)
{
    const __m128i e = row16(at), less = _mm_sub_epi8(e, _mm_set1_epi8(1));
    const __m128i ends =
        _mm_cmpeq_epi8(_mm_max_epu8(_mm_sub_epi8(e, _mm_set1_epi8(2)), _mm_set1_epi8(-3)),
                       _mm_sub_epi8(e, _mm_set1_epi8(2)));
    if (UNLIKELY(_mm_movemask_epi8(ends))) { /* 0, 1 or 255 */
        *d0 = half_e8m0(at);
        *d1 = half_e8m0(at + 8);
        return;
    }
    *d0 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(less), 23));
    *d1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(less, 8)), 23));
}
/* Unsigned E4M3, halved: the code's bits are a half that is 256 times too small.  Not by way
 * of subnormal floats, which are slow to multiply. */
static inline __m256 half_ue4m3(const uint8_t *at)
{
    const __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)at));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(b, 7)), _mm256_set1_ps(128));
}

/* d of rows 0..7 and 8..15: scales of a group of 32. */
static ATTR_INLINE void d32(const struct kern_code *code, const uint8_t *scale, __m256 d[2])
{
    switch (code->scales) {
    case KERN_SCALES_E: halves_e8m0(scale, &d[0], &d[1]); break;
    case KERN_SCALES_E2:
        d[0] = half_ue4m3(scale);
        d[1] = half_ue4m3(scale + 8);
        break;
    default:
        d[0] = halves(scale);
        d[1] = halves(scale + 16);
    }
}
/* Bytes of 8 rows (0..7, or 8..15 with high) as words, twice each. */
static ATTR_INLINE __m256i doubled_u8(__m128i v, int high)
{
    const __m128i w = high ? _mm_unpackhi_epi8(v, v) : _mm_unpacklo_epi8(v, v);
    return _mm256_cvtepu8_epi16(w);
}
static ATTR_INLINE __m256i doubled_s8(__m128i v, int high)
{
    const __m128i w = high ? _mm_unpackhi_epi8(v, v) : _mm_unpacklo_epi8(v, v);
    return _mm256_cvtepi8_epi16(w);
}
/* Rows of two groups paired, as words: for sums of q of two groups at a time. */
static ATTR_INLINE __m256i paired(const uint8_t *s, int high)
{
    const __m128i a = row16(s), b = row16(s + 16);
    return _mm256_cvtepu8_epi16(high ? _mm_unpackhi_epi8(a, b) : _mm_unpacklo_epi8(a, b));
}


#endif
