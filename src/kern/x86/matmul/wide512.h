/*
 * wide512 - quantised weights as --numerics fast has them ("fast-wide", kern/matmul.h): the bytes
 * that a row's 256 k are brought to, under one scale.  A code is multiplied in 16 bits, a byte of
 * its high half is kept.
 *
 * A file that includes it defines WIDE_BIAS, 0 for signed bytes and 128 for unsigned ones that are
 * so much more, and WIDE(name, bytes), which makes the kernel of expand_NAME(), of codes with so
 * many packed bytes for 256 k.
 */
#include "kern/x86/matmul/expand512.h"
#include "kern/x86/matmul/quads512.h"

enum {
    TINY = 0x12800000,     /* 2^-90 as bits */
    INFINITE = 0x7F800000,
    FINE = 127 * 256,      /* the reach of words whose high byte is kept */
    FINE_BYTES = 127 << 15, /* and of factors of codes of 8 bits */
};

static ATTR_INLINE __m512 unsigned_of(const uint8_t *at)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)));
}
static ATTR_INLINE __m512 signed_of(const uint8_t *at)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)));
}
static ATTR_INLINE __m512i size_bits(__m512 v)
{
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7FFFFFFF));
}
static ATTR_INLINE __m512i longer(__m512i bits, __m512 v)
{
    return _mm512_max_epi32(bits, size_bits(v));
}
/* Low halves of the lanes twice. */
static ATTR_INLINE __m512i words_of(__m512 v)
{
    const __m512i low =
        _mm512_broadcast_i32x4(_mm_set_epi8(13, 12, 13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0));
    return _mm512_shuffle_epi8(_mm512_cvtps_epi32(v), low);
}
/* The scale of rows whose largest weight has these bits, and what a weight is multiplied by;
 * returned is the latter. NaN and infinity: scale NaN. */
static ATTR_INLINE __m512 put_scale(float *d, __m512i top, int fine)
{
    const __mmask16 finite = _mm512_cmplt_epi32_mask(top, _mm512_set1_epi32(INFINITE));
    const __mmask16 some = finite & _mm512_cmpge_epi32_mask(top, _mm512_set1_epi32(TINY));
    const __m512 size = _mm512_castsi512_ps(top);
    const __m512 s = _mm512_maskz_mul_ps(some, size, _mm512_set1_ps(1.0f / 127.0f));
    _mm512_store_ps(d, _mm512_mask_mov_ps(s, (__mmask16)~finite,
                                          _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000))));
    return _mm512_maskz_div_ps(some, _mm512_set1_ps((float)fine), size);
}

/* word = code * by + more */
struct affine {
    __m512i by, more;
};
/* more, in words, is that of the value 0. */
static ATTR_INLINE struct affine affine_of(__m512 by, __m512i more, int bias)
{
    const __m512i a = words_of(by);
    if (bias)
        more = _mm512_sub_epi16(more, _mm512_mullo_epi16(a, _mm512_set1_epi16((short)bias)));
    return (struct affine){
        a, WIDE_BIAS ? _mm512_xor_si512(more, _mm512_set1_epi16((short)(WIDE_BIAS << 8))) : more};
}
static ATTR_INLINE void put_words(uint8_t *e, int at, __m512i v, struct affine s)
{
    const __m512i even = _mm512_and_si512(v, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(v, 8);
    const __m512i first = _mm512_add_epi16(_mm512_mullo_epi16(even, s.by), s.more);
    const __m512i second = _mm512_add_epi16(_mm512_mullo_epi16(odd, s.by), s.more);
    _mm512_store_si512(e + 64 * at,
                       _mm512_ternarylogic_epi32(second, _mm512_set1_epi16((short)0xFF00),
                                                 _mm512_srli_epi16(first, 8), 0xEA));
}
/* Codes of 8 bits, less 128. */
static ATTR_INLINE void put_bytes(uint8_t *e, int at, __m512i v, struct affine s)
{
    const __m512i q = _mm512_xor_si512(v, quad_bytes(128));
    const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(q, 8), 8),
                  odd = _mm512_srai_epi16(q, 8);
    const __m512i first = _mm512_mulhrs_epi16(even, s.by), second = _mm512_mulhrs_epi16(odd, s.by);
    const __m512i both = _mm512_ternarylogic_epi32(first, _mm512_set1_epi16(255),
                                                   _mm512_slli_epi16(second, 8), 0xEA);
    _mm512_store_si512(e + 64 * at,
                       WIDE_BIAS ? _mm512_xor_si512(both, quad_bytes(WIDE_BIAS)) : both);
}

/* A super-block of a panel, from its packed bytes, as 64 lines at e and 16 scales; the next one's
 * are requested, if any. */
#define EXPAND(name)                                                                               \
    static ATTR_INLINE void expand_##name(const uint8_t *from, const uint8_t *ahead, uint8_t *e,   \
                                          float *scale)

static ATTR_INLINE __m512i quad_e2m1(const uint8_t *g, int j)
{
    return quad_listed(quant_e2m1_doubled, quad_4(g, j));
}
/* The value 0 in words that are to be rounded. */
static ATTR_INLINE __m512i half(void) { return _mm512_set1_epi16(128); }

/* Groups of 32, n a chunk; reach: of a code's value. */
#define BYTES_32(bits, scales, n) (8 / (n) * KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n, 0))
#define GROUPS_32(name, bits, scales, n, put, quad, bias, reach, d_of, fine)                       \
    EXPAND(name)                                                                                   \
    {                                                                                              \
        __m512 d[8];                                                                               \
        __m512i top = _mm512_setzero_si512();                                                      \
        for (int h = 0; h < 8; h++) {                                                              \
            const uint8_t *chunk =                                                                 \
                from + h / (n)*KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n, 0);                 \
            d[h] = d_of(chunk + KERN_SCALES_AT(bits, n) +                                          \
                        h % (n)*KERN_SCALE_BYTES(KERN_SCALES_##scales));                           \
            top = longer(top, d[h]);                                                               \
        }                                                                                          \
        top = size_bits(_mm512_mul_ps(_mm512_castsi512_ps(top), _mm512_set1_ps(reach)));           \
        const __m512 by = put_scale(scale, top, fine);                                             \
        for (int h = 0; h < 8; h++) {                                                              \
            const uint8_t *g = from + h / (n)*KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n, 0) + \
                               h % (n)*KERN_GROUP_BYTES(bits);                                     \
            if (ahead)                                                                             \
                fetch(ahead, h, BYTES_32(bits, scales, n) / 64);                                   \
            const struct affine a = affine_of(_mm512_mul_ps(d[h], by), half(), bias);              \
            FIRST_HALF(put, quad, a) LAST_HALF(put, quad, a)                                       \
        }                                                                                          \
    }                                                                                              \
    WIDE(name, BYTES_32(bits, scales, n))
GROUPS_32(q4_0, 4, D, 2, put_words, quad_4, 8, 8, halves, FINE)
GROUPS_32(q5_0, 5, D, 2, put_words, quad_5, 16, 16, halves, FINE)
GROUPS_32(mxfp4, 4, E, 4, put_words, quad_e2m1, 128, 12, half_e8m0, FINE)
GROUPS_32(q8_0, 8, D, 2, put_bytes, quad_8, 0, 128, halves, FINE_BYTES)
GROUPS_32(iq4_nl, 4, D, 2, put_bytes, quad_nl4, 0, 128, halves, FINE_BYTES)

/* Two scales in a group. */
EXPAND(nvfp4)
{
    enum { N_BYTES = KERN_CHUNK_BYTES(4, KERN_SCALES_E2, 2, 0), AT = KERN_SCALES_AT(4, 2) };
    __m512 d[16];
    __m512i top = _mm512_setzero_si512();
    for (int h = 0; h < 16; h++) {
        d[h] = half_ue4m3(from + h / 4 * N_BYTES + AT + h % 4 * 16);
        top = longer(top, d[h]);
    }
    const __m512 by = put_scale(
        scale, size_bits(_mm512_mul_ps(_mm512_castsi512_ps(top), _mm512_set1_ps(12))), FINE);
    for (int h = 0; h < 8; h++) {
        const uint8_t *g = from + h / 2 * N_BYTES + h % 2 * KERN_GROUP_BYTES(4);
        if (ahead)
            fetch(ahead, h, BYTES_32(4, E2, 2) / 64);
        const struct affine a = affine_of(_mm512_mul_ps(d[2 * h], by), half(), 128);
        FIRST_HALF(put_words, quad_e2m1, a)
        const struct affine b = affine_of(_mm512_mul_ps(d[2 * h + 1], by), half(), 128);
        LAST_HALF(put_words, quad_e2m1, b)
    }
}
WIDE(nvfp4, BYTES_32(4, E2, 2))

/* With minimums m, one group a chunk. */
#define GROUPS_32_MIN(name, bits, quad, most)                                                      \
    EXPAND(name)                                                                                   \
    {                                                                                              \
        __m512 d[8], m[8];                                                                         \
        __m512i top = _mm512_setzero_si512();                                                      \
        for (int h = 0; h < 8; h++) {                                                              \
            const uint8_t *s =                                                                     \
                from + h * KERN_CHUNK_BYTES(bits, KERN_SCALES_DM, 1, 0) + KERN_SCALES_AT(bits, 1); \
            d[h] = halves(s);                                                                      \
            m[h] = halves(s + 32);                                                                 \
            top = longer(longer(top, m[h]), _mm512_fmadd_ps(d[h], _mm512_set1_ps(most), m[h]));    \
        }                                                                                          \
        const __m512 by = put_scale(scale, top, FINE);                                             \
        for (int h = 0; h < 8; h++) {                                                              \
            const uint8_t *g = from + h * KERN_CHUNK_BYTES(bits, KERN_SCALES_DM, 1, 0);            \
            if (ahead)                                                                             \
                fetch(ahead, h, BYTES_32(bits, DM, 1) / 64);                                       \
            const __m512 more = _mm512_add_ps(_mm512_mul_ps(m[h], by), _mm512_set1_ps(128));       \
            const struct affine a = affine_of(_mm512_mul_ps(d[h], by), words_of(more), 0);         \
            FIRST_HALF(put_words, quad, a) LAST_HALF(put_words, quad, a)                           \
        }                                                                                          \
    }                                                                                              \
    WIDE(name, BYTES_32(bits, DM, 1))
GROUPS_32_MIN(q4_1, 4, quad_4, 15)
GROUPS_32_MIN(q5_1, 5, quad_5, 31)

/* Super-blocks without minimums: sub-scales for n_sub groups, in signed bytes, d after them. */
static ATTR_INLINE __m128i largest(const uint8_t *at, int n_sub)
{
    __m512i v = _mm512_setzero_si512();
    for (int i = 0; i < n_sub; i += 4)
        v = _mm512_max_epu8(v, _mm512_abs_epi8(_mm512_loadu_si512(at + 16 * i)));
    const __m256i two = _mm256_max_epu8(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    return _mm_max_epu8(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}
#define SUPER(name, bits, scales, n_sub, put, quad, bias, reach, fine)                             \
    EXPAND(name)                                                                                   \
    {                                                                                              \
        const uint8_t *chunk = from, *s = chunk + KERN_SCALES_AT(bits, 8);                         \
        const __m512 d = halves(s + 16 * (n_sub)),                                                 \
                     most = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(largest(s, n_sub)));           \
        const __m512 by = _mm512_mul_ps(                                                           \
            put_scale(scale,                                                                       \
                      size_bits(_mm512_mul_ps(_mm512_mul_ps(d, most), _mm512_set1_ps(reach))),     \
                      fine),                                                                       \
            d);                                                                                    \
        for (int h = 0; h < 8; h++) {                                                              \
            const uint8_t *g = chunk + KERN_GROUP_BYTES(bits) * h;                                 \
            if (ahead)                                                                             \
                fetch(ahead, h, CHUNK(bits, scales) / 64);                                         \
            const struct affine a =                                                                \
                affine_of(_mm512_mul_ps(by, signed_of(s + 2 * (n_sub)*h)), half(), bias);          \
            FIRST_HALF(put, quad, a)                                                               \
            const struct affine b =                                                                \
                (n_sub) == 8                                                                       \
                    ? a                                                                            \
                    : affine_of(_mm512_mul_ps(by, signed_of(s + 32 * h + 16)), half(), bias);      \
            LAST_HALF(put, quad, b)                                                                \
        }                                                                                          \
    }                                                                                              \
    WIDE(name, CHUNK(bits, scales))
SUPER(q6_k, 6, SUB16, 16, put_words, quad_6, 32, 32, FINE)
SUPER(q3_k, 3, SUB16, 16, put_words, quad_3, 4, 4, FINE)
SUPER(iq4_xs, 4, SUB8, 8, put_bytes, quad_nl4, 0, 128, FINE_BYTES)

/* With minimums.  sub, min: of group i of n_sub. */
#define SUPER_MIN(name, bits, scales, n_sub, quad, most, sub, min)                                 \
    EXPAND(name)                                                                                   \
    {                                                                                              \
        const uint8_t *chunk = from, *s = chunk + KERN_SCALES_AT(bits, 8);                         \
        const __m512 d = halves(s + 256), dmin = halves(s + 288);                                  \
        __m512i top = _mm512_setzero_si512();                                                      \
        for (int i = 0; i < (n_sub); i++) {                                                        \
            const __m512 off = _mm512_mul_ps(dmin, min(i));                                        \
            top = longer(longer(top, off),                                                         \
                         _mm512_fmsub_ps(_mm512_mul_ps(d, sub(i)), _mm512_set1_ps(most), off));    \
        }                                                                                          \
        const __m512 k = put_scale(scale, top, FINE), by = _mm512_mul_ps(d, k),                    \
                     less = _mm512_mul_ps(dmin, k);                                                \
        for (int h = 0; h < 8; h++) {                                                              \
            const uint8_t *g = chunk + KERN_GROUP_BYTES(bits) * h;                                 \
            const int i = (n_sub) / 8 * h;                                                         \
            if (ahead)                                                                             \
                fetch(ahead, h, CHUNK(bits, scales) / 64);                                         \
            const struct affine a =                                                                \
                affine_of(_mm512_mul_ps(by, sub(i)),                                               \
                          words_of(_mm512_fnmadd_ps(less, min(i), _mm512_set1_ps(128))), 0);       \
            FIRST_HALF(put_words, quad, a)                                                         \
            const struct affine b =                                                                \
                (n_sub) == 8                                                                       \
                    ? a                                                                            \
                    : affine_of(_mm512_mul_ps(by, sub(i + 1)),                                     \
                                words_of(_mm512_fnmadd_ps(less, min(i + 1), _mm512_set1_ps(128))), \
                                0);                                                                \
            LAST_HALF(put_words, quad, b)                                                          \
        }                                                                                          \
    }                                                                                              \
    WIDE(name, CHUNK(bits, scales))
#define SUB_BYTE(i) unsigned_of(s + 16 * (i))
#define MIN_BYTE(i) unsigned_of(s + 128 + 16 * (i))
static ATTR_INLINE __m512 low_of(const uint8_t *at)
{
    const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    return _mm512_cvtepi32_ps(_mm512_and_si512(v, _mm512_set1_epi32(15)));
}
static ATTR_INLINE __m512 high_of(const uint8_t *at)
{
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(
        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)), 4));
}
#define SUB_LOW(i) low_of(s + 16 * (i))
#define MIN_HIGH(i) high_of(s + 16 * (i))
SUPER_MIN(q4_k, 4, SUB8_MIN, 8, quad_4, 15, SUB_BYTE, MIN_BYTE)
SUPER_MIN(q5_k, 5, SUB8_MIN, 8, quad_5, 31, SUB_BYTE, MIN_BYTE)
SUPER_MIN(q2_k, 2, SUB16_NIB, 16, quad_2, 3, SUB_LOW, MIN_HIGH)
