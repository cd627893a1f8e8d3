/* SPDX-License-Identifier: Apache-2.0 */
/* Products with float weights on AVX2: two vectors of 8 rows per k. */
#include "kern/kernels.h"
#include "kern/x86/matmul/drive.h"

#include <immintrin.h>

/* Asks for the lines after the one at `at`: long before their use into the second cache,
 * shortly before into the first.  One row leaves it to the processor. */
static ATTR_INLINE void fetch(const uint8_t *at)
{
    _mm_prefetch((const char *)at + 16384, _MM_HINT_T1);
    _mm_prefetch((const char *)at + 2048, _MM_HINT_T0);
}

static inline __m256 load_f32(const uint8_t *at)
{
    return _mm256_loadu_ps((const float *)(const void *)at);
}
static inline __m256 load_f16(const uint8_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}
static inline __m256 load_bf16(const uint8_t *at)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)), 16));
}

/* ---- e4m3 codes with a scale for 32 k, a power of two (F8) or any float (F8S): w = code * scale
 * ---- */

/* The code's bits are a half that is 256 times too small. */
static inline __m256i e4m3_halves(const uint8_t *at)
{
    const __m256i b = _mm256_slli_epi16(
        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at)), 7);
    const __m256i all = _mm256_set1_epi16(0x3F80), sign = _mm256_set1_epi16((short)0xBF80);
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(b, all), all);
    return _mm256_or_si256(_mm256_and_si256(b, sign), nan);
}
static inline __m256 e4m3(__m128i halves)
{
    return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256));
}
static inline __m256 f32s(const uint8_t *at)
{
    return _mm256_loadu_ps((const float *)(const void *)at);
}
static inline __m256 e8m0(const uint8_t *at)
{
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
    const __m256i v = _mm256_max_epi32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
    return _mm256_castsi256_ps(_mm256_or_si256(v, nan));
}

/* Codes that are whole numbers, times the scales of their group. */
static inline __m256 w8(const uint8_t *at, __m256 s)
{
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
                             _mm_loadl_epi64((const __m128i *)(const void *)at))),
                         s);
}
/* ---- tiles; sums of row c are element c of arrays, of rows 0..7 and 8..15 of the panel ---- */

enum float_kind { F32, F16, BF16, F8, F8S, W8 };
enum { FLOAT_ROWS = 6 };

/* 8 weights of a kind without scales; the scales of half a group of 32 k. */
static ATTR_INLINE __m256 load(enum float_kind kind, const uint8_t *at)
{
    return kind == F32 ? load_f32(at) : kind == F16 ? load_f16(at) : load_bf16(at);
}
static ATTR_INLINE __m256 load_scales(enum float_kind kind, const uint8_t *chunk, int g, int half)
{
    const uint8_t *at = chunk + KERN_F8_SCALES;
    return kind == F8    ? e8m0(at + g * 16 + half * 8)
           : kind == F8S ? f32s(at + g * 64 + half * 32)
                         : load_f16(at + g * 32 + half * 16);
}
static ATTR_INLINE void add(const int rows, __m256 w0, __m256 w1, const float *const *x, int64_t k,
                            __m256 *lo, __m256 *hi)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        const __m256 q = _mm256_set1_ps(x[c][k]);
        lo[c] = _mm256_fmadd_ps(w0, q, lo[c]);
        hi[c] = _mm256_fmadd_ps(w1, q, hi[c]);
    }
}
static ATTR_INLINE void add_plain(const int rows, enum float_kind kind, const uint8_t *w, int64_t n,
                                  const float *const *x, __m256 *lo, __m256 *hi)
{
    const int line = kind == F32 ? 64 : 32;
    for (int64_t k = 0; k < n; k++) {
        const uint8_t *at = w + k * line;
        if (rows > 1 && (line == 64 || !(k & 1)))
            fetch(at);
        const __m256 w0 = load(kind, at), w1 = load(kind, at + line / 2);
        add(rows, w0, w1, x, k, lo, hi);
    }
}
static ATTR_INLINE void add_scaled(const int rows, enum float_kind kind, const uint8_t *w,
                                   int64_t n, const float *const *x, __m256 *lo, __m256 *hi)
{
    const int size = kind == F8    ? KERN_F8_CHUNK
                     : kind == F8S ? KERN_F8S_CHUNK
                                   : KERN_W8_CHUNK;
    for (int64_t g = 0; g < n; g++) {
        const uint8_t *chunk = w + g / 4 * size, *at = chunk + g % 4 * 512;
        const __m256 s0 = load_scales(kind, chunk, (int)(g % 4), 0),
                     s1 = load_scales(kind, chunk, (int)(g % 4), 1);
        for (int64_t k = 32 * g; k < 32 * g + 32; k++, at += 16) {
            if (!(k & 3))
                fetch(at);
            if (kind == W8) {
                add(rows, w8(at, s0), w8(at + 8, s1), x, k, lo, hi);
                continue;
            }
            const __m256i v = e4m3_halves(at);
            const __m256 w0 = _mm256_mul_ps(e4m3(_mm256_castsi256_si128(v)), s0),
                         w1 = _mm256_mul_ps(e4m3(_mm256_extracti128_si256(v, 1)), s1);
            add(rows, w0, w1, x, k, lo, hi);
        }
    }
}
static ATTR_INLINE void tile(const int rows, enum float_kind kind, const uint8_t *w, int64_t n,
                             const uint8_t *const *x, float *y, int64_t stride)
{
    const float *a[FLOAT_ROWS];
    __m256 lo[FLOAT_ROWS], hi[FLOAT_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        a[c] = (const float *)(const void *)x[c];
        lo[c] = hi[c] = _mm256_setzero_ps();
    }
    if (kind <= BF16)
        add_plain(rows, kind, w, n, a, lo, hi);
    else
        add_scaled(rows, kind, w, n, a, lo, hi);
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        _mm256_storeu_ps(y + c * stride, lo[c]);
        _mm256_storeu_ps(y + c * stride + 8, hi[c]);
    }
}

/* A group as f32 [32][16]. */
static ATTR_INLINE void spread_codes(const uint8_t *at, __m256 s0, __m256 s1, uint8_t *to)
{
    for (int k = 0; k < 32; k++, at += 16, to += 64) {
        const __m256i v = e4m3_halves(at);
        fetch(at);
        _mm256_store_ps((float *)(void *)to,
                        _mm256_mul_ps(e4m3(_mm256_castsi256_si128(v)), s0));
        _mm256_store_ps((float *)(void *)(to + 32),
                        _mm256_mul_ps(e4m3(_mm256_extracti128_si256(v, 1)), s1));
    }
}
static void spread_f8(const struct kern_matrix *w, const uint8_t *panel, int64_t g, uint8_t *to)
{
    const uint8_t *chunk = panel + g / 4 * KERN_F8_CHUNK,
                  *scale = chunk + KERN_F8_SCALES + g % 4 * 16;
    (void)w;
    spread_codes(chunk + g % 4 * 512, e8m0(scale), e8m0(scale + 8), to);
}
static void spread_f8s(const struct kern_matrix *w, const uint8_t *panel, int64_t g, uint8_t *to)
{
    const uint8_t *chunk = panel + g / 4 * KERN_F8S_CHUNK,
                  *scale = chunk + KERN_F8_SCALES + g % 4 * 64;
    (void)w;
    spread_codes(chunk + g % 4 * 512, f32s(scale), f32s(scale + 32), to);
}
static void spread_w8(const struct kern_matrix *w, const uint8_t *panel, int64_t g, uint8_t *to)
{
    const uint8_t *chunk = panel + g / 4 * KERN_W8_CHUNK, *at = chunk + g % 4 * 512,
                  *scale = chunk + KERN_F8_SCALES + g % 4 * 32;
    const __m256 s0 = load_f16(scale), s1 = load_f16(scale + 16);
    (void)w;
    fetch(at);
    for (int k = 0; k < 32; k++) {
        _mm256_store_ps((float *)(void *)(to + 64 * k), w8(at + 16 * k, s0));
        _mm256_store_ps((float *)(void *)(to + 64 * k + 32), w8(at + 16 * k + 8, s1));
    }
}
/* ---- kernels ---- */

#define TILE(name, rows, kind, times)                                                              \
    static void name##_##rows(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,      \
                              int64_t stride)                                                      \
    {                                                                                              \
        tile(rows, kind, w, (times)*n, x, y, stride);                                              \
    }
/* Blocks of `block` k, which are `times` numbers for the tile. */
#define TILES(name, kind, block, times, ...)                                                       \
    TILE(name, 1, kind, times)                                                                     \
    TILE(name, 2, kind, times)                                                                     \
    TILE(name, 3, kind, times)                                                                     \
    TILE(name, 4, kind, times)                                                                     \
    TILE(name, 5, kind, times)                                                                     \
    TILE(name, 6, kind, times)                                                                     \
    static const struct drive drive_##name = {                                                     \
        {{name##_6, 6}, {name##_5, 5}, {name##_4, 4}, {name##_3, 3}, {name##_2, 2},                \
         {name##_1, 1}}, block, __VA_ARGS__};
#define PLAIN(type, kind)                                                                          \
    TILES(type, kind, 1, 1, 0, 0)                                                                  \
    void kern_matmul_##type##_avx2(const struct kern_matmul *m, int64_t p0, int64_t p1)            \
    {                                                                                              \
        drive_run(m, &drive_##type, p0, p1);                                                       \
    }
PLAIN(f32, F32)
PLAIN(f16, F16)
PLAIN(bf16, BF16)

/* Many rows run from a group as f32. */
TILES(spread, F32, 32, 32, 8, 2048)
#define SCALED(type, kind)                                                                         \
    TILES(type, kind, 32, 1, 0, 0)                                                                 \
    void kern_matmul_##type##_avx2(const struct kern_matmul *m, int64_t p0, int64_t p1)            \
    {                                                                                              \
        if (m->n <= 8)                                                                             \
            drive_run(m, &drive_##type, p0, p1);                                                   \
        else                                                                                       \
            drive_run_spread(m, &drive_spread, spread_##type, p0, p1);                             \
    }
SCALED(f8, F8)
SCALED(f8s, F8S)
SCALED(w8, W8)
