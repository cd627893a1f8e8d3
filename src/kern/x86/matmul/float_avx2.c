/* SPDX-License-Identifier: Apache-2.0 */
/* Products with float weights on AVX2: two vectors of 8 rows per k. */
#include "kern/kernels.h"
#include "kern/x86/matmul/drive.h"

#include <immintrin.h>

/* Asks for the lines after the one at `at`: long before their use into the second cache,
 * shortly before into the first.  One row leaves it to the processor. */
static inline void fetch(const uint8_t *at)
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

#define LOAD_Y(c, _)                                                                       \
    __m256 lo##c = _mm256_setzero_ps();           \
    __m256 hi##c = _mm256_setzero_ps();       \
    const float *const x##c = (const float *)(const void *)x[c];
#define STORE_Y(c, _)                         \
    _mm256_storeu_ps(y + (c) * stride, lo##c); \
    _mm256_storeu_ps(y + (c) * stride + 8, hi##c);
#define ADD(c, _)                                \
    {                                            \
        const __m256 x_ = _mm256_set1_ps(x##c[k]); \
        lo##c = _mm256_fmadd_ps(w0, x_, lo##c);  \
        hi##c = _mm256_fmadd_ps(w1, x_, hi##c);  \
    }

#define TILE(type, C, line)                                                                  \
    static void tile_##type##_##C(const uint8_t *w, int64_t n, const uint8_t *const *x, \
                                  float *y, int64_t stride)                    \
    {                                                                                        \
        EACH_##C(LOAD_Y, _)                                                                  \
        for (int64_t k = 0; k < n; k++) {                                                  \
            const uint8_t *at = w + k * (line);                                              \
            if ((C) > 1 && ((line) == 64 || !(k & 1)))                                       \
                fetch(at);                                                               \
            const __m256 w0 = load_##type(at), w1 = load_##type(at + (line) / 2);            \
            EACH_##C(ADD, _)                                                                 \
        }                                                                                    \
        EACH_##C(STORE_Y, _)                                                                 \
    }
#define TILES(type, line)                                                         \
    TILE(type, 1, line)                                                                      \
    TILE(type, 2, line)                                                                      \
    TILE(type, 3, line)                                                                      \
    TILE(type, 4, line)                                                                      \
    TILE(type, 5, line)                                                                      \
    TILE(type, 6, line)                                                                      \
    static const struct drive drive_##type = {                                               \
        {{tile_##type##_6, 6}, {tile_##type##_5, 5}, {tile_##type##_4, 4},                   \
         {tile_##type##_3, 3}, {tile_##type##_2, 2}, {tile_##type##_1, 1}},                  \
        1, 0, 0};                                                                    \
    void kern_matmul_##type##_avx2(const struct kern_matmul *m, int64_t p0, int64_t p1)      \
    {                                                                                        \
        drive_run(m, &drive_##type, p0, p1);                                                 \
    }

TILES(f32, 64)
TILES(f16, 32)
TILES(bf16, 32)

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
#define TILE_W8(C)                                                                                 \
    static void tile_w8_##C(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,        \
                            int64_t stride)                                                        \
    {                                                                                              \
        EACH_##C(LOAD_Y, _) for (int64_t g = 0; g < n; g++)                                        \
        {                                                                                          \
            const uint8_t *chunk = w + g / 4 * KERN_W8_CHUNK, *at = chunk + g % 4 * 512;           \
            const uint8_t *scale = chunk + KERN_F8_SCALES + g % 4 * 32;                            \
            const __m256 s0 = load_f16(scale), s1 = load_f16(scale + 16);                          \
            for (int64_t k = 32 * g; k < 32 * g + 32; k++, at += 16) {                             \
                if (!(k & 3))                                                                      \
                    fetch(at);                                                                     \
                const __m256 w0 = w8(at, s0), w1 = w8(at + 8, s1);                                 \
                EACH_##C(ADD, _)                                                                   \
            }                                                                                      \
        }                                                                                          \
        EACH_##C(STORE_Y, _)                                                                       \
    }
TILE_W8(1) TILE_W8(2) TILE_W8(3) TILE_W8(4) TILE_W8(5) TILE_W8(6)

#define TILE_F8(F, SIZE, WIDTH, LOAD, C)                                                           \
    static void tile_##F##_##C(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,     \
                               int64_t stride)                                                     \
    {                                                                                              \
        EACH_##C(LOAD_Y, _) for (int64_t g = 0; g < n; g++)                                        \
        {                                                                                          \
            const uint8_t *chunk = w + g / 4 * (SIZE), *at = chunk + g % 4 * 512;                  \
            const uint8_t *scale = chunk + KERN_F8_SCALES + g % 4 * (WIDTH);                       \
            const __m256 s0 = LOAD(scale), s1 = LOAD(scale + (WIDTH) / 2);                         \
            for (int64_t k = 32 * g; k < 32 * g + 32; k++, at += 16) {                             \
                if (!(k & 3))                                                                      \
                    fetch(at);                                                                     \
                const __m256i v_ = e4m3_halves(at);                                                \
                const __m256 w0 = _mm256_mul_ps(e4m3(_mm256_castsi256_si128(v_)), s0);             \
                const __m256 w1 = _mm256_mul_ps(e4m3(_mm256_extracti128_si256(v_, 1)), s1);        \
                EACH_##C(ADD, _)                                                                   \
            }                                                                                      \
        }                                                                                          \
        EACH_##C(STORE_Y, _)                                                                       \
    }
#define TILE_F8E(C) TILE_F8(f8, KERN_F8_CHUNK, 16, e8m0, C)
#define TILE_F8S(C) TILE_F8(f8s, KERN_F8S_CHUNK, 64, f32s, C)
TILE_F8E(1) TILE_F8E(2) TILE_F8E(3) TILE_F8E(4) TILE_F8E(5) TILE_F8E(6)
TILE_F8S(1) TILE_F8S(2) TILE_F8S(3) TILE_F8S(4) TILE_F8S(5) TILE_F8S(6)

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
#define SPREAD(C)                                                                             \
    static void spread_##C(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,    \
                           int64_t stride)                                                   \
    {                                                                                         \
        tile_f32_##C(w, 32 * n, x, y, stride);                                                \
    }
SPREAD(1) SPREAD(2) SPREAD(3) SPREAD(4) SPREAD(5) SPREAD(6)

#define MATMUL_F8(F)                                                                               \
    void kern_matmul_##F##_avx2(const struct kern_matmul *m, int64_t p0, int64_t p1)               \
    {                                                                                              \
        static const struct drive few = {{{tile_##F##_6, 6},                                       \
                                          {tile_##F##_5, 5},                                       \
                                          {tile_##F##_4, 4},                                       \
                                          {tile_##F##_3, 3},                                       \
                                          {tile_##F##_2, 2},                                       \
                                          {tile_##F##_1, 1}},                                      \
                                         32,                                                       \
                                         0,                                                        \
                                         0};                                                       \
        static const struct drive many = {{{spread_6, 6},                                          \
                                           {spread_5, 5},                                          \
                                           {spread_4, 4},                                          \
                                           {spread_3, 3},                                          \
                                           {spread_2, 2},                                          \
                                           {spread_1, 1}},                                         \
                                          32,                                                      \
                                          8,                                                       \
                                          2048};                                                   \
        if (m->n <= 8)                                                                             \
            drive_run(m, &few, p0, p1);                                                            \
        else                                                                                       \
            drive_run_spread(m, &many, spread_##F, p0, p1);                                        \
    }
MATMUL_F8(f8)
MATMUL_F8(f8s)
MATMUL_F8(w8)
