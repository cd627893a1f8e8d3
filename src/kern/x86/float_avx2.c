/* SPDX-License-Identifier: Apache-2.0 */
/* Products with float weights on AVX2: two vectors of 8 rows per k. */
#include "kern/kernels.h"
#include "kern/x86/drive.h"

#include <immintrin.h>

enum { AHEAD = 4096 };

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
    __m256 lo##c = first ? _mm256_setzero_ps() : _mm256_loadu_ps(y + (c) * stride);           \
    __m256 hi##c = first ? _mm256_setzero_ps() : _mm256_loadu_ps(y + (c) * stride + 8);       \
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
                                  float *y, int64_t stride, bool first)         \
    {                                                                                        \
        EACH_##C(LOAD_Y, _)                                                                  \
        for (int64_t k = 0; k < n; k++) {                                                  \
            const uint8_t *at = w + k * (line);                                              \
            if ((line) == 64 || !(k & 1))                                                    \
                _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);                         \
            const __m256 w0 = load_##type(at), w1 = load_##type(at + (line) / 2);            \
            EACH_##C(ADD, _)                                                                 \
        }                                                                                    \
        EACH_##C(STORE_Y, _)                                                                 \
    }
#define TILES(type, line, stretch)                                                         \
    TILE(type, 1, line)                                                                      \
    TILE(type, 2, line)                                                                      \
    TILE(type, 4, line)                                                                      \
    TILE(type, 6, line)                                                                      \
    static const struct drive drive_##type = {                                               \
        {{tile_##type##_6, 6}, {tile_##type##_4, 4}, {tile_##type##_2, 2}, {tile_##type##_1, 1}}, \
        1, 1, line, stretch};                                                                    \
    void kern_matmul_##type##_avx2(const struct kern_matmul *m, int64_t p0, int64_t p1)      \
    {                                                                                        \
        drive_run(m, &drive_##type, p0, p1);                                                 \
    }

TILES(f32, 64, 256)
TILES(f16, 32, 256)
TILES(bf16, 32, 256)
