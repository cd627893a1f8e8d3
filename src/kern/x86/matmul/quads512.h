/*
 * quads512 - codes of a group as bytes: quad j (a literal) is k = 4 j .. 4 j + 3 of 16 rows, one
 * line of 64, byte 4 r + i of row r, unsigned as they are stored (kern/code.h has the planes).  And
 * their scales.
 */
#ifndef INGLE_KERN_X86_MATMUL_QUADS512_H
#define INGLE_KERN_X86_MATMUL_QUADS512_H

#include "kern/x86/matmul/codes.h"

#include <immintrin.h>
#include <stdint.h>

static ATTR_INLINE __m512i quad_bytes(int v) { return _mm512_set1_epi8((char)v); }
static ATTR_INLINE __m512i quad_line(const uint8_t *at) { return _mm512_loadu_si512(at); }
/* Bit t of each byte moved to bit `to`; others are noise.  Literal counts, because the intrinsics'
 * types differ between compilers. */
static ATTR_INLINE __m512i quad_moved(__m512i v, int t, int to)
{
    switch (to - t) {
#define BY(n) case n: return _mm512_slli_epi16(v, n); case -n: return _mm512_srli_epi16(v, n);
        BY(1) BY(2) BY(3) BY(4) BY(5) BY(6) BY(7)
#undef BY
    default: return v;
    }
}
/* a & mask | b */
static ATTR_INLINE __m512i quad_merge(__m512i a, int mask, __m512i b)
{
    return _mm512_ternarylogic_epi32(a, quad_bytes(mask), b, 0xEA);
}
static ATTR_INLINE __m512i quad_8(const uint8_t *g, int j) { return quad_line(g + 64 * j); }
static ATTR_INLINE __m512i quad_4(const uint8_t *g, int j)
{
    const __m512i v = quad_line(g + 64 * (j % 4));
    return _mm512_and_si512(j < 4 ? v : _mm512_srli_epi16(v, 4), quad_bytes(15));
}
static ATTR_INLINE __m512i quad_5(const uint8_t *g, int j)
{
    return quad_merge(quad_moved(quad_line(g + 256), j, 4), 16, quad_4(g, j));
}
static ATTR_INLINE __m512i quad_6(const uint8_t *g, int j)
{
    return quad_merge(quad_moved(quad_line(g + 256 + 64 * (j / 4)), 2 * (j % 4), 4), 48,
                      quad_4(g, j));
}
static ATTR_INLINE __m512i quad_2(const uint8_t *g, int j)
{
    return _mm512_and_si512(quad_moved(quad_line(g + 64 * (j / 4)), 2 * (j % 4), 0), quad_bytes(3));
}
static ATTR_INLINE __m512i quad_3(const uint8_t *g, int j)
{
    return quad_merge(quad_moved(quad_line(g + 128), j, 2), 4, quad_2(g, j));
}
/* The 16 numbers that 4-bit codes stand for, plus 128, in each lane. */
static ATTR_INLINE __m512i quad_list(const int8_t *list)
{
    const __m128i all = _mm_loadu_si128((const __m128i *)(const void *)list);
    return _mm512_xor_si512(_mm512_broadcast_i32x4(all), quad_bytes(128));
}
static ATTR_INLINE __m512i quad_listed(const int8_t *list, __m512i code)
{
    return _mm512_shuffle_epi8(quad_list(list), code);
}
static ATTR_INLINE __m512i quad_nl4(const uint8_t *g, int j)
{
    return quad_listed(quant_nl4, quad_4(g, j));
}

/* What quad() looks up codes in, if it does. */
static ATTR_INLINE __m512i quad_table(const struct kern_code *code)
{
    return code->table && code->bits > 1 ? quad_list(code->table) : _mm512_setzero_si512();
}
/* Quad j of a group: codes, or what they stand for plus a bias. */
static ATTR_INLINE __m512i quad(const struct kern_code *code, __m512i table, const uint8_t *group,
                                int j)
{
    switch (code->bits) {
    case 1: return _mm512_and_si512(quad_moved(quad_line(group), j, 1), quad_bytes(2));
    case 2: return quad_2(group, j);
    case 3: return quad_3(group, j);
    case 4: return code->table ? _mm512_shuffle_epi8(table, quad_4(group, j)) : quad_4(group, j);
    case 5: return quad_5(group, j);
    case 6: return quad_6(group, j);
    default: return quad_8(group, j);
    }
}

static ATTR_INLINE __m512 halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
/* 2^(e - 128), NaN for 255. */
static ATTR_INLINE __m512 half_e8m0(const uint8_t *at)
{
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __m512i v = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    v = _mm512_mask_mov_epi32(v, _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), small);
    v = _mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)),
                              _mm512_set1_epi32(0x7FC00000));
    return _mm512_castsi512_ps(v);
}

/* Unsigned E4M3, halved: the code's bits are a half that is 256 times too small.  Not by way
 * of subnormal floats, which are slow to multiply. */
static inline __m512 half_ue4m3(const uint8_t *at)
{
    const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(b, 7)), _mm512_set1_ps(128));
}

/* d of 16 rows: scales of a group of 32. */
static ATTR_INLINE __m512 d32(const struct kern_code *code, const uint8_t *scale)
{
    switch (code->scales) {
    case KERN_SCALES_E: return half_e8m0(scale);
    case KERN_SCALES_E2: return half_ue4m3(scale);
    default: return halves(scale);
    }
}

#endif
