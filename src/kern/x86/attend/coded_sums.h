/*
 * coded_sums - sixteen sums of products of bytes, four to a step, for the widths of registers: 64
 * bytes of keys (codes + 128, position by position) or of values (codes, dimension by dimension)
 * times four codes of a query or four weights. A part of coded_body.h.
 */

#if defined(__AVX512VNNI__)

#define CODED_SET(name) name##_avx512vnni
typedef int8_t coded_code;
struct unit {
    __m512i a;
};
struct sum16 {
    __m512i a;
};
typedef __m512i quad;

LANES_INLINE quad quad_load(const coded_code *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}
LANES_INLINE struct unit unit_keys(const uint8_t *p)
{
    return (struct unit){_mm512_loadu_si512(p)};
}
LANES_INLINE struct unit unit_values(const uint8_t *p)
{
    return (struct unit){_mm512_loadu_si512(p)};
}
LANES_INLINE struct sum16 sum_start(int32_t x) { return (struct sum16){_mm512_set1_epi32(x)}; }
LANES_INLINE struct sum16 sum_keys(struct sum16 s, struct unit u, quad q)
{
    return (struct sum16){_mm512_dpbusd_epi32(s.a, u.a, q)};
}
LANES_INLINE struct sum16 sum_values(struct sum16 s, struct unit u, quad q)
{
    return (struct sum16){_mm512_dpbusd_epi32(s.a, q, u.a)};
}
LANES_INLINE struct v16 sum_float(struct sum16 s) { return (struct v16){_mm512_cvtepi32_ps(s.a)}; }
/* Sixteen whole numbers of 0 to 255. */
LANES_INLINE void codes_store(coded_code *to, struct v16 x)
{
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.a)));
}
LANES_INLINE void expand(const uint8_t *packed, const int8_t *level, uint8_t *low, uint8_t *high)
{
    const __m512i lut =
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)level));
    const __m512i x = _mm512_loadu_si512(packed), half = _mm512_set1_epi8(15);
    _mm512_storeu_si512(low, _mm512_shuffle_epi8(lut, _mm512_and_si512(x, half)));
    _mm512_storeu_si512(high,
                        _mm512_shuffle_epi8(lut, _mm512_and_si512(_mm512_srli_epi16(x, 4), half)));
}
/* Bytes [4][16][4] of sixteen dimensions, four positions to a step, to [4][16][4] of sixteen
 * positions, four dimensions each; steps are `each` bytes apart, bits of flip change. */
LANES_INLINE void turn_around(const uint8_t *from, int64_t each, uint8_t *to, int flip)
{
    const __m512i four =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i bits = _mm512_set1_epi8((char)flip);
    __m512i x[4], y[4];
    LANES_UNROLL
    for (int i = 0; i < 4; i++)
        x[i] =
            _mm512_shuffle_epi8(_mm512_xor_si512(_mm512_loadu_si512(from + i * each), bits), four);
    y[0] = _mm512_shuffle_i32x4(x[0], x[1], 0x44);
    y[1] = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    y[2] = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
    y[3] = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    _mm512_storeu_si512(to, _mm512_shuffle_i32x4(y[0], y[2], 0x88));
    _mm512_storeu_si512(to + 64, _mm512_shuffle_i32x4(y[0], y[2], 0xdd));
    _mm512_storeu_si512(to + 128, _mm512_shuffle_i32x4(y[1], y[3], 0x88));
    _mm512_storeu_si512(to + 192, _mm512_shuffle_i32x4(y[1], y[3], 0xdd));
}
/* Sixteen indices of three bits to numbers. */
LANES_INLINE struct v16 from_three(uint32_t two, uint16_t one, const float *level)
{
    const __m512i lane =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i i = _mm512_and_si512(_mm512_srlv_epi32(_mm512_set1_epi32((int)two), lane),
                                 _mm512_set1_epi32(3));
    i = _mm512_mask_or_epi32(i, one, i, _mm512_set1_epi32(4));
    return (struct v16){_mm512_permutexvar_ps(i, _mm512_broadcast_f32x8(_mm256_loadu_ps(level)))};
}

#else


LANES_INLINE void expand(const uint8_t *packed, const int8_t *level, uint8_t *low, uint8_t *high)
{
    const __m256i lut =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)level));
    for (int i = 0; i < 64; i += 32) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(packed + i)),
                      half = _mm256_set1_epi8(15);
        _mm256_storeu_si256((__m256i *)(void *)(low + i),
                            _mm256_shuffle_epi8(lut, _mm256_and_si256(x, half)));
        _mm256_storeu_si256(
            (__m256i *)(void *)(high + i),
            _mm256_shuffle_epi8(lut, _mm256_and_si256(_mm256_srli_epi16(x, 4), half)));
    }
}
LANES_INLINE void turn_around(const uint8_t *from, int64_t each, uint8_t *to, int flip)
{
    const __m256i four = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i bits = _mm256_set1_epi8((char)flip);
    for (int half = 0; half < 2; half++) /* of the sixteen dimensions */
        for (int two = 0; two < 2; two++) { /* of the four steps */
            const uint8_t *at = from + half * 32 + 2 * two * each;
            const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)at);
            const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(at + each));
            const __m256i a = _mm256_shuffle_epi8(_mm256_xor_si256(x, bits), four),
                          b = _mm256_shuffle_epi8(_mm256_xor_si256(y, bits), four);
            __m256i *out = (__m256i *)(void *)(to + half * 128 + two * 32);
            _mm256_storeu_si256(out, _mm256_permute2x128_si256(a, b, 0x20));
            _mm256_storeu_si256(out + 2, _mm256_permute2x128_si256(a, b, 0x31));
        }
}
LANES_INLINE __m256 from_three8(uint32_t two, uint32_t one, const float *level)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i low = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32((int)two), _mm256_add_epi32(lane, lane)),
        _mm256_set1_epi32(3));
    const __m256i high = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)one), lane),
                                          _mm256_set1_epi32(1));
    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(level),
                                    _mm256_or_si256(low, _mm256_slli_epi32(high, 2)));
}
LANES_INLINE struct v16 from_three(uint32_t two, uint16_t one, const float *level)
{
    return (struct v16){from_three8(two, one, level), from_three8(two >> 16, one >> 8u, level)};
}

#if defined(__AVXVNNI__)

#define CODED_SET(name) name##_avxvnni
typedef int8_t coded_code;
struct unit {
    __m256i a, b;
};
struct sum16 {
    __m256i a, b;
};
typedef __m256i quad;

LANES_INLINE quad quad_load(const coded_code *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}
LANES_INLINE struct unit unit_keys(const uint8_t *p)
{
    const __m256i *at = (const __m256i *)(const void *)p;
    return (struct unit){_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
LANES_INLINE struct unit unit_values(const uint8_t *p) { return unit_keys(p); }
LANES_INLINE struct sum16 sum_start(int32_t x)
{
    return (struct sum16){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
LANES_INLINE struct sum16 sum_keys(struct sum16 s, struct unit u, quad q)
{
    return (struct sum16){_mm256_dpbusd_avx_epi32(s.a, u.a, q),
                          _mm256_dpbusd_avx_epi32(s.b, u.b, q)};
}
LANES_INLINE struct sum16 sum_values(struct sum16 s, struct unit u, quad q)
{
    return (struct sum16){_mm256_dpbusd_avx_epi32(s.a, q, u.a),
                          _mm256_dpbusd_avx_epi32(s.b, q, u.b)};
}
LANES_INLINE struct v16 sum_float(struct sum16 s)
{
    return (struct v16){_mm256_cvtepi32_ps(s.a), _mm256_cvtepi32_ps(s.b)};
}
LANES_INLINE void codes_store(coded_code *to, struct v16 x)
{
    const __m256i w = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)to,
                     _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}

#else /* AVX2: words, of which two products are added at once; a sum is two words' */

#define CODED_SET(name) name##_avx2
typedef int16_t coded_code;
struct unit {
    __m256i a[4];
};
struct sum16 {
    __m256i a[4];
};
typedef __m256i quad;

LANES_INLINE quad quad_load(const coded_code *p)
{
    int64_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi64x(x);
}
LANES_INLINE struct unit unit_keys(const uint8_t *p)
{
    const __m128i *at = (const __m128i *)(const void *)p;
    return (struct unit){{_mm256_cvtepu8_epi16(_mm_loadu_si128(at)),
                          _mm256_cvtepu8_epi16(_mm_loadu_si128(at + 1)),
                          _mm256_cvtepu8_epi16(_mm_loadu_si128(at + 2)),
                          _mm256_cvtepu8_epi16(_mm_loadu_si128(at + 3))}};
}
LANES_INLINE struct unit unit_values(const uint8_t *p)
{
    const __m128i *at = (const __m128i *)(const void *)p;
    return (struct unit){{_mm256_cvtepi8_epi16(_mm_loadu_si128(at)),
                          _mm256_cvtepi8_epi16(_mm_loadu_si128(at + 1)),
                          _mm256_cvtepi8_epi16(_mm_loadu_si128(at + 2)),
                          _mm256_cvtepi8_epi16(_mm_loadu_si128(at + 3))}};
}
LANES_INLINE struct sum16 sum_start(int32_t x)
{
    const __m256i first = _mm256_set1_epi64x((int64_t)(uint32_t)x);
    return (struct sum16){{first, first, first, first}};
}
LANES_INLINE struct sum16 sum_values(struct sum16 s, struct unit u, quad q)
{
    return (struct sum16){{_mm256_add_epi32(s.a[0], _mm256_madd_epi16(u.a[0], q)),
                           _mm256_add_epi32(s.a[1], _mm256_madd_epi16(u.a[1], q)),
                           _mm256_add_epi32(s.a[2], _mm256_madd_epi16(u.a[2], q)),
                           _mm256_add_epi32(s.a[3], _mm256_madd_epi16(u.a[3], q))}};
}
LANES_INLINE struct sum16 sum_keys(struct sum16 s, struct unit u, quad q)
{
    return sum_values(s, u, q);
}
LANES_INLINE __m256 sum_pairs(__m256i x, __m256i y)
{
    return _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(_mm256_hadd_epi32(x, y), 0xd8));
}
LANES_INLINE struct v16 sum_float(struct sum16 s)
{
    return (struct v16){sum_pairs(s.a[0], s.a[1]), sum_pairs(s.a[2], s.a[3])};
}
LANES_INLINE void codes_store(coded_code *to, struct v16 x)
{
    const __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute4x64_epi64(w, 0xd8));
}

#endif
#endif
