/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_avx2 - rows encoded and decoded eight elements at a time, and sixteen of them laid
 * side by side as attention reads keys.
 */
#include "kern/x86/row_part.h"

#include "kern/x86/lanes_half.h"
#include "quant/quant.h"
#include <string.h>

enum { TILE = KERN_ROW_TILE };

/* ---- one row ---- */

/* Eight f32, or the first n of them. */
static inline __m256 load(const float *p, int64_t n)
{
    float x[8] = {0};
    if (n >= 8)
        return _mm256_loadu_ps(p);
    memcpy(x, p, (size_t)n * sizeof *x);
    return _mm256_loadu_ps(x);
}

static void write_half(enum kern_kv_codec c, int64_t n, uint8_t *dst, const float *src)
{
    for (int64_t i = 0; i < n; i += 8) {
        const int64_t m = n - i < 8 ? n - i : 8;
        const __m256 x = load(src + i, m);
        const __m128i h = c == KERN_KV_F16 ? lanes_to_f16(x) : lanes_to_bf16(x);
        uint16_t all[8];
        _mm_storeu_si128((__m128i *)(void *)all, h);
        memcpy(dst + 2 * i, all, 2 * (size_t)m);
    }
}

/* Eight e4m3 codes of numbers up to 448, as 32-bit integers. */
static inline __m256i fp8_codes(__m256 x)
{
    const __m256i u = _mm256_castps_si256(x);
    const __m256i mag = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(u, 24), _mm256_set1_epi32(0x80));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(mag, 20), _mm256_set1_epi32(1));
    __m256i normal = _mm256_add_epi32(_mm256_add_epi32(mag, _mm256_set1_epi32(0x7ffff)), odd);
    normal = _mm256_sub_epi32(_mm256_srli_epi32(normal, 20), _mm256_set1_epi32(120 << 3));
    const __m256 by = _mm256_set1_ps(16384.0f); /* its last place is 2^-9 */
    const __m256i small = _mm256_sub_epi32(
        _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(mag), by)), _mm256_castps_si256(by));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), mag); /* 2^-6 */
    return _mm256_or_si256(_mm256_blendv_epi8(normal, small, is_small), sign);
}

/* The bits of the largest of eight. */
static inline uint32_t largest(__m256 max)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return (uint32_t)_mm_cvtsi128_si32(_mm_castps_si128(m));
}

/* The scale of up to 64 numbers. */
static uint8_t fp8_scale(const float *x, int64_t n)
{
    const __m256 abs = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 max = _mm256_set1_ps(1e-4f), sum = _mm256_setzero_ps();
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 v = load(x + i, n - i);
        max = _mm256_max_ps(_mm256_and_ps(v, abs), max);
        sum = _mm256_or_ps(sum,
                           _mm256_cmp_ps(_mm256_sub_ps(v, v), _mm256_sub_ps(v, v), _CMP_UNORD_Q));
    }
    if (_mm256_movemask_ps(sum))
        return 255;
    return (uint8_t)(((largest(max) + 0x1fffff) >> 23) - 8);
}

static void write_fp8(const struct kern_row *f, uint8_t *dst, const float *src)
{
    const int64_t n = f->width - f->tail;
    uint8_t *scale = dst + n + 2 * f->tail;
    for (int64_t at = 0; at < n; at += KERN_ROW_GROUP) {
        const int64_t end = n - at < KERN_ROW_GROUP ? n : at + KERN_ROW_GROUP;
        const uint8_t s = fp8_scale(src + at, end - at);
        *scale++ = s;
        if (s == 255) {
            memset(dst + at, 0, (size_t)(end - at));
            continue;
        }
        const __m256 by = _mm256_castsi256_ps(_mm256_set1_epi32((254 - s) << 23));
        for (int64_t i = at; i < end; i += 8) {
            const __m256i code = fp8_codes(_mm256_mul_ps(load(src + i, end - i), by));
            __m128i b =
                _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
            uint8_t all[16];
            _mm_storeu_si128((__m128i *)(void *)all, _mm_packus_epi16(b, b));
            memcpy(dst + i, all, (size_t)(end - i < 8 ? end - i : 8));
        }
    }
    write_half(KERN_KV_BF16, f->tail, dst + n, src + n);
}

/* Sixteen numbers up to 6 as e2m1 codes with their signs, one a byte. */
static inline __m128i fp4_codes(const float *x, __m256 by)
{
    static const float edge[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const __m256 abs = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256i code[2];
    LANES_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * h), by), m = _mm256_and_ps(v, abs);
        code[h] =
            _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(v), 28), _mm256_set1_epi32(8));
        LANES_UNROLL
        for (int i = 0; i < 7; i++) { /* the odd edges are ties that go up */
            const __m256 e = _mm256_set1_ps(edge[i]);
            const __m256 up =
                i % 2 ? _mm256_cmp_ps(m, e, _CMP_GE_OQ) : _mm256_cmp_ps(m, e, _CMP_GT_OQ);
            code[h] = _mm256_sub_epi32(code[h], _mm256_castps_si256(up));
        }
    }
    const __m256i w = _mm256_permute4x64_epi64(_mm256_packus_epi32(code[0], code[1]), 0xd8);
    return _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}

/* The scale of 32 numbers. */
static uint8_t fp4_scale(const float *x)
{
    const __m256 abs = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 max = _mm256_set1_ps(0x1.8p-124f), bad = _mm256_setzero_ps();
    for (int i = 0; i < KERN_ROW_GROUP4; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        max = _mm256_max_ps(_mm256_and_ps(v, abs), max);
        bad = _mm256_or_ps(bad,
                           _mm256_cmp_ps(_mm256_sub_ps(v, v), _mm256_sub_ps(v, v), _CMP_UNORD_Q));
    }
    return _mm256_movemask_ps(bad) ? 255 : (uint8_t)(((largest(max) + 0x3fffff) >> 23) - 2);
}

static void write_fp4(const struct kern_row *f, uint8_t *dst, const float *src)
{
    uint8_t *scale = dst + f->width / 2;
    for (int64_t at = 0; at < f->width; at += KERN_ROW_GROUP4, dst += KERN_ROW_GROUP4 / 2) {
        const uint8_t s = fp4_scale(src + at);
        const __m256 by = _mm256_castsi256_ps(_mm256_set1_epi32((int)((254u - s) << 23)));
        const __m128i low = fp4_codes(src + at, by), high = fp4_codes(src + at + 16, by);
        const __m128i both = _mm_or_si128(low, _mm_slli_epi16(high, 4));
        _mm_storeu_si128((__m128i *)(void *)dst, s == 255 ? _mm_setzero_si128() : both);
        *scale++ = s;
    }
}

void kern_row_write_avx2(const struct kern_row *f, void *dst, const float *src)
{
    if (f->codec == KERN_KV_F32)
        memcpy(dst, src, (size_t)f->width * sizeof *src);
    else if (f->codec == KERN_KV_FP8)
        write_fp8(f, dst, src);
    else if (f->codec == KERN_KV_FP4)
        write_fp4(f, dst, src);
    else
        write_half(f->codec, f->width, dst, src);
}

/* Eight codes as f32 before their scale: an e4m3 number has the bits of an f16 number that
 * is 256 times smaller.  (Codes of NaN are never written.) */
static inline __m256 fp8_values(const uint8_t *p)
{
    const __m128i w = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    const __m128i h = _mm_and_si128(_mm_slli_epi16(w, 7), _mm_set1_epi16((short)0xbfff));
    return _mm256_mul_ps(_mm256_cvtph_ps(h), _mm256_set1_ps(256.0f));
}

static float scale_at(const struct kern_row *f, const uint8_t *src, int64_t i)
{
    return quant_e8m0_to_f32(src[f->width + f->tail + i / KERN_ROW_GROUP]);
}

static void read_fp8(const struct kern_row *f, const uint8_t *src, float *dst)
{
    const int64_t n = f->width - f->tail;
    for (int64_t i = 0; i < n;) {
        const int64_t end = n - i < KERN_ROW_GROUP ? n : i + KERN_ROW_GROUP;
        const float scale = scale_at(f, src, i);
        for (; i + 8 <= end; i += 8)
            _mm256_storeu_ps(dst + i, _mm256_mul_ps(fp8_values(src + i), _mm256_set1_ps(scale)));
        for (; i < end; i++)
            dst[i] = quant_fp8_e4m3_to_f32(src[i]) * scale;
    }
    for (int64_t i = 0; i < f->tail; i++) {
        uint16_t h;
        memcpy(&h, src + n + 2 * i, sizeof h);
        dst[n + i] = quant_bf16_to_f32(h);
    }
}

static void read_fp4(const struct kern_row *f, const uint8_t *src, float *dst)
{
    const uint8_t *scale = src + f->width / 2;
    const __m128i value = _mm_loadu_si128((const __m128i *)(const void *)quant_e2m1_doubled);
    for (int64_t at = 0; at < f->width; at += KERN_ROW_GROUP4, src += KERN_ROW_GROUP4 / 2) {
        const __m128i both = _mm_loadu_si128((const __m128i *)(const void *)src),
                      low4 = _mm_set1_epi8(15);
        const __m256 half = _mm256_set1_ps(0.5f * quant_e8m0_to_f32(*scale++));
        const __m128i q[2] = {
            _mm_shuffle_epi8(value, _mm_and_si128(both, low4)),
            _mm_shuffle_epi8(value, _mm_and_si128(_mm_srli_epi16(both, 4), low4))};
        LANES_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q[h]));
            const __m256 y = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q[h], 8)));
            _mm256_storeu_ps(dst + at + 16 * h, _mm256_mul_ps(x, half));
            _mm256_storeu_ps(dst + at + 16 * h + 8, _mm256_mul_ps(y, half));
        }
    }
}

void kern_row_read_avx2(const struct kern_row *f, const void *src, float *dst)
{
    const uint16_t *h = src;
    int64_t i = 0;
    if (f->codec == KERN_KV_F32) {
        memcpy(dst, src, (size_t)f->width * sizeof *dst);
    } else if (f->codec == KERN_KV_FP8) {
        read_fp8(f, src, dst);
    } else if (f->codec == KERN_KV_FP4) {
        read_fp4(f, src, dst);
    } else if (f->codec == KERN_KV_F16) {
        for (; i + 16 <= f->width; i += 16)
            v_store(dst + i, v_from_f16(h + i));
        for (; i < f->width; i++)
            dst[i] = _cvtsh_ss(h[i]);
    } else {
        for (; i + 16 <= f->width; i += 16)
            v_store(dst + i, v_from_bf16(h + i));
        for (; i < f->width; i++)
            dst[i] = quant_bf16_to_f32(h[i]);
    }
}

/* ---- sixteen rows ---- */

/* Every value of an FP8 row is a bf16 number. */
static void fp8_to_bf16(const struct kern_row *f, const uint8_t *src, uint16_t *dst)
{
    const int64_t n = f->width - f->tail;
    for (int64_t i = 0; i < n;) {
        const int64_t end = n - i < KERN_ROW_GROUP ? n : i + KERN_ROW_GROUP;
        const float scale = scale_at(f, src, i);
        for (; i + 8 <= end; i += 8) {
            const __m256 x = _mm256_mul_ps(fp8_values(src + i), _mm256_set1_ps(scale));
            const __m256i u = _mm256_srli_epi32(_mm256_castps_si256(x), 16);
            const __m128i h =
                _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
            _mm_storeu_si128((__m128i *)(void *)(dst + i), h);
        }
        for (; i < end; i++)
            dst[i] = quant_f32_to_bf16(quant_fp8_e4m3_to_f32(src[i]) * scale);
    }
    memcpy(dst + n, src + n, (size_t)f->tail * sizeof *dst);
}

static inline __m128i row8(const uint16_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* to[k][r] = row r[k] for eight k: lanes of 128 bits hold rows 0-7 and 8-15. */
static inline void turn_half(const uint16_t *const r[TILE], int64_t k, uint16_t *to)
{
    __m256i a[8], b[8], c[8];
    LANES_UNROLL
    for (int i = 0; i < 8; i++)
        a[i] =
            _mm256_inserti128_si256(_mm256_castsi128_si256(row8(r[i] + k)), row8(r[i + 8] + k), 1);
    LANES_UNROLL
    for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm256_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    LANES_UNROLL
    for (int i = 0; i < 4; i++) { /* rows 0-3, then 4-7; dimensions 0-3, then 4-7 */
        const int from = i / 2 * 4 + i % 2;
        c[i / 2 * 4 + i % 2 * 2] = _mm256_unpacklo_epi32(b[from], b[from + 2]);
        c[i / 2 * 4 + i % 2 * 2 + 1] = _mm256_unpackhi_epi32(b[from], b[from + 2]);
    }
    LANES_UNROLL
    for (int i = 0; i < 4; i++) {
        __m256i *at = (__m256i *)(void *)(to + 2 * i * TILE);
        _mm256_storeu_si256(at, _mm256_unpacklo_epi64(c[i], c[i + 4]));
        _mm256_storeu_si256(at + 1, _mm256_unpackhi_epi64(c[i], c[i + 4]));
    }
}

static inline __m256 row4(const float *low, const float *high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}

/* The same for four k of f32. */
static inline void turn_float(const float *const r[TILE], int64_t k, float *to)
{
    LANES_UNROLL
    for (int h = 0; h < TILE; h += 8) {
        const __m256 a = row4(r[h] + k, r[h + 4] + k), b = row4(r[h + 1] + k, r[h + 5] + k);
        const __m256 c = row4(r[h + 2] + k, r[h + 6] + k), d = row4(r[h + 3] + k, r[h + 7] + k);
        const __m256 ab = _mm256_unpacklo_ps(a, b), ab2 = _mm256_unpackhi_ps(a, b);
        const __m256 cd = _mm256_unpacklo_ps(c, d), cd2 = _mm256_unpackhi_ps(c, d);
        _mm256_storeu_ps(to + h, _mm256_shuffle_ps(ab, cd, 0x44));
        _mm256_storeu_ps(to + TILE + h, _mm256_shuffle_ps(ab, cd, 0xee));
        _mm256_storeu_ps(to + 2 * TILE + h, _mm256_shuffle_ps(ab2, cd2, 0x44));
        _mm256_storeu_ps(to + 3 * TILE + h, _mm256_shuffle_ps(ab2, cd2, 0xee));
    }
}

/* rows [n][width] to keys [width][16]; lanes from n on repeat the last row. */
static void turn_floats(const float *rows, int64_t n, int64_t width, float *keys)
{
    const float *r[TILE];
    int64_t k = 0;
    for (int64_t i = 0; i < TILE; i++)
        r[i] = rows + (i < n ? i : n - 1) * width;
    for (; k + 4 <= width; k += 4)
        turn_float(r, k, keys + k * TILE);
    for (; k < width; k++)
        for (int64_t i = 0; i < TILE; i++)
            keys[k * TILE + i] = r[i][k];
}

static void turn_halves(const uint16_t *rows, int64_t stride, int64_t n, int64_t width,
                        uint16_t *keys)
{
    const uint16_t *r[TILE];
    int64_t k = 0;
    for (int64_t i = 0; i < TILE; i++)
        r[i] = rows + (i < n ? i : n - 1) * stride;
    for (; k + 8 <= width; k += 8)
        turn_half(r, k, keys + k * TILE);
    for (; k < width; k++)
        for (int64_t i = 0; i < TILE; i++)
            keys[k * TILE + i] = r[i][k];
}

void kern_row_gather_avx2(const struct kern_row *f, const void *const *row, int64_t n, int64_t slot,
                          void *keys, void *values)
{
    const size_t size = f->codec == KERN_KV_F32 ? 4 : 2, bytes = (size_t)f->width * size;
    uint8_t *value = (uint8_t *)values + (size_t)slot * bytes;
    void *key = (uint8_t *)keys + (size_t)slot * bytes;
    if (n < 1)
        return;
    for (int64_t i = 0; i < n; i++) {
        void *to = value + (size_t)i * bytes;
        if (f->codec == KERN_KV_FP8)
            fp8_to_bf16(f, row[i], to);
        else
            memcpy(to, row[i], bytes);
    }
    if (size == 4)
        turn_floats((const float *)(const void *)value, n, f->width, key);
    else
        turn_halves((const uint16_t *)(const void *)value, f->width, n, f->width, key);
}

/* Sixteen code bytes of eight rows: to[i] has the i-th word of each. */
static inline void turn_words(const uint8_t *const r[8], int64_t at, __m256i to[4])
{
    __m256i x[4];
    LANES_UNROLL
    for (int i = 0; i < 4; i++) {
        const __m128i *low = (const __m128i *)(const void *)(r[i] + at),
                      *high = (const __m128i *)(const void *)(r[i + 4] + at);
        x[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                       _mm_loadu_si128(high), 1);
    }
    const __m256i a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpackhi_epi32(x[0], x[1]);
    const __m256i c = _mm256_unpacklo_epi32(x[2], x[3]), d = _mm256_unpackhi_epi32(x[2], x[3]);
    to[0] = _mm256_unpacklo_epi64(a, c);
    to[1] = _mm256_unpackhi_epi64(a, c);
    to[2] = _mm256_unpacklo_epi64(b, d);
    to[3] = _mm256_unpackhi_epi64(b, d);
}

/* Eight e8m0 bytes, one in each 32 bits, as floats. */
static inline __m256 e8m0_values(__m256i e)
{
    __m256i u = _mm256_slli_epi32(e, 23);
    u = _mm256_blendv_epi8(u, _mm256_set1_epi32(0x00400000),
                           _mm256_cmpeq_epi32(e, _mm256_setzero_si256()));
    return _mm256_castsi256_ps(
        _mm256_or_si256(u, _mm256_and_si256(_mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)),
                                            _mm256_set1_epi32(0x00400000))));
}

void kern_row_quads_avx2(const struct kern_row *f, const void *src, int64_t n, uint8_t *quads,
                         float *scale)
{
    const size_t bytes = kern_row_bytes(KERN_KV_FP4, f->width, 0);
    const __m128i value = _mm_loadu_si128((const __m128i *)(const void *)quant_e2m1_doubled);
    const __m256i above = _mm256_broadcastsi128_si256(_mm_add_epi8(value, _mm_set1_epi8(12))),
                  low4 = _mm256_set1_epi8(15);
    const int64_t groups = f->width / KERN_ROW_GROUP4;
    const uint8_t *r[TILE];
    uint32_t word[TILE];
    for (int64_t i = 0; i < TILE; i++)
        r[i] = (const uint8_t *)src + (size_t)(i < n ? i : n - 1) * bytes;
    for (int64_t g = 0; g < groups; g++, scale += TILE) {
        if (g % 4 == 0)
            for (int i = 0; i < TILE; i++)
                memcpy(&word[i], r[i] + f->width / 2 + g,
                       groups - g >= 4 ? 4 : (size_t)(groups - g));
        for (int h = 0; h < TILE; h += 8) {
            const __m256i e = _mm256_srli_epi32(
                _mm256_loadu_si256((const __m256i *)(const void *)(word + h)), (int)(g % 4 * 8));
            __m256i w[4];
            _mm256_storeu_ps(scale + h, e8m0_values(_mm256_and_si256(e, _mm256_set1_epi32(255))));
            turn_words(r + h, g * KERN_ROW_GROUP4 / 2, w);
            LANES_UNROLL
            for (int i = 0; i < 4; i++) {
                uint8_t *to = quads + ((g * 8 + i) * TILE + h) * 4;
                const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w[i], 4), low4);
                _mm256_storeu_si256((__m256i *)(void *)to,
                                    _mm256_shuffle_epi8(above, _mm256_and_si256(w[i], low4)));
                _mm256_storeu_si256((__m256i *)(void *)(to + 4 * TILE * 4),
                                    _mm256_shuffle_epi8(above, high));
            }
        }
    }
}

void kern_row_tile_avx2(const struct kern_row *f, const void *src, int64_t n, float *rows,
                        float *tile)
{
    const size_t bytes = kern_row_bytes(f->codec, f->width, f->tail);
    const int64_t width = f->width;
    uint16_t *half = (uint16_t *)(void *)rows, *turned = half + TILE * width;
    if (f->codec == KERN_KV_F32) {
        turn_floats(src, n, width, tile);
        return;
    }
    if (f->codec == KERN_KV_FP8) {
        for (int64_t i = 0; i < n; i++)
            fp8_to_bf16(f, (const uint8_t *)src + (size_t)i * bytes, half + i * width);
        turn_halves(half, width, n, width, turned);
    } else {
        turn_halves(src, (int64_t)bytes / 2, n, width, turned);
    }
    for (int64_t k = 0; k < width; k++)
        v_store(tile + k * TILE, f->codec == KERN_KV_F16 ? v_from_f16(turned + k * TILE)
                                                         : v_from_bf16(turned + k * TILE));
}
