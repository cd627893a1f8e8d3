/*
 * float512 - products with float weights on AVX-512: a vector of 16 rows per k.
 *
 * Included twice, as vnni512.h is: NAME(x) is the kernel's name; AHEAD: one row, too, asks for its
 * lines.
 */
#include "kern/kernels.h"
#include "kern/x86/matmul/drive.h"

#include <immintrin.h>

/* Asks for the lines after the one at `at`: long before their use into the second cache,
 * shortly before into the first.  One row leaves it to the processor where that keeps up. */
static inline void fetch(const uint8_t *at)
{
    _mm_prefetch((const char *)at + (AHEAD ? 6144 : 16384), _MM_HINT_T1);
    _mm_prefetch((const char *)at + (AHEAD ? 3072 : 2048), _MM_HINT_T0);
}

static inline __m512 load_f32(const uint8_t *at)
{
    return _mm512_loadu_ps((const float *)(const void *)at);
}
static inline __m512 load_f16(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
static inline __m512 load_bf16(const uint8_t *at)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)at)), 16));
}

#define LOAD_Y(c, _)                                                                       \
    __m512 y##c = _mm512_setzero_ps();           \
    const float *const x##c = (const float *)(const void *)x[c];
#define STORE_Y(c, _) _mm512_storeu_ps(y + (c) * stride, y##c);
#define ADD(c, _) y##c = _mm512_fmadd_ps(w_, _mm512_set1_ps(x##c[k]), y##c);

#define TILE(type, C, line)                                                                        \
    static void tile_##type##_##C(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,  \
                                  int64_t stride)                                                  \
    {                                                                                              \
        EACH_##C(LOAD_Y, _) for (int64_t k = 0; k < n; k++)                                        \
        {                                                                                          \
            const uint8_t *at = w + k * (line);                                                    \
            if ((AHEAD || (C) > 1) && ((line) == 64 || !(k & 1)))                                  \
                fetch(at);                                                                         \
            const __m512 w_ = load_##type(at);                                                     \
            EACH_##C(ADD, _)                                                                       \
        }                                                                                          \
        EACH_##C(STORE_Y, _)                                                                       \
    }
/* Two panels of a band at once for eight rows: sixteen sums, so that none waits for the one before,
 * and a load of an activation for two products. */
typedef void pair_fn(const uint8_t *w, const uint8_t *v, int64_t n, const uint8_t *const *x,
                     float *y, float *z, int64_t stride);
enum { PAIR_ROWS = 8 };
#define LOAD_PAIR(c, _) LOAD_Y(c, _) __m512 z##c = _mm512_setzero_ps();
#define STORE_PAIR(c, _)                                                                           \
    STORE_Y(c, _)                                                                                  \
    _mm512_storeu_ps(z + (c) * stride, z##c);
#define ADD_PAIR(c, _)                                                                             \
    {                                                                                              \
        const __m512 x_ = _mm512_set1_ps(x##c[k]);                                                 \
        y##c = _mm512_fmadd_ps(w_, x_, y##c);                                                      \
        z##c = _mm512_fmadd_ps(v_, x_, z##c);                                                      \
    }
#define PAIR(type, line)                                                                           \
    static void pair_##type(const uint8_t *w, const uint8_t *v, int64_t n,                         \
                            const uint8_t *const *x, float *y, float *z, int64_t stride)           \
    {                                                                                              \
        EACH_8(LOAD_PAIR, _) for (int64_t k = 0; k < n; k++)                                       \
        {                                                                                          \
            const uint8_t *at = w + k * (line), *beside = v + k * (line);                          \
            if ((line) == 64 || !(k & 1)) {                                                        \
                fetch(at);                                                                         \
                fetch(beside);                                                                     \
            }                                                                                      \
            const __m512 w_ = load_##type(at), v_ = load_##type(beside);                           \
            EACH_8(ADD_PAIR, _)                                                                    \
        }                                                                                          \
        EACH_8(STORE_PAIR, _)                                                                      \
    }

/* drive_tile() of panels p and p + 1, which are whole ones. */
static inline void pair_tile(const struct kern_matmul *m, const struct drive *d, pair_fn *fn,
                             const uint8_t *w, const uint8_t *v, int64_t p, int64_t b, int64_t n,
                             int64_t i)
{
    const uint8_t *x[PAIR_ROWS];
    float *y = m->y + i * m->y_stride + p * KERN_PANEL;
    for (int j = 0; j < PAIR_ROWS; j++)
        x[j] = drive_x(m, d, i + j, b);
    if (b == 0) {
        fn(w, v, n, x, y, y + KERN_PANEL, m->y_stride);
        return;
    }
    ATTR_ALIGNED(64) float slice[2 * PAIR_ROWS * KERN_PANEL];
    fn(w, v, n, x, slice, slice + KERN_PANEL, 2 * KERN_PANEL);
    for (int j = 0; j < PAIR_ROWS; j++, y += m->y_stride)
        for (int k = 0; k < 2 * KERN_PANEL; k += KERN_PANEL)
            drive_add(y + k, slice + 2 * KERN_PANEL * j + k, KERN_PANEL, false);
}

/* drive_run() of eight rows and more. */
static inline void pair_run(const struct kern_matmul *m, const struct drive *d, pair_fn *fn,
                            int64_t p0, int64_t p1)
{
    const int64_t step = m->w->stretch, slice = kern_matrix_slice(m->w);
    const size_t slice_bytes = m->w->stretch_bytes * (size_t)slice / (size_t)step;
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, (p0 / KERN_BAND + 1) * KERN_BAND);
        for (int64_t b0 = 0, s = 0; b0 < m->w->in; b0 += step, s++)
            for (int64_t i = 0; i < m->n; i += DRIVE_ROWS)
                for (int64_t p = p0; p < end; p += 2) {
                    const bool two = p + 1 < end && kern_matmul_width(m, p + 1) == KERN_PANEL;
                    const uint8_t *w = kern_code_stretch(m->w, p, s),
                                  *v = kern_code_stretch(m->w, p + 1 < end ? p + 1 : p, s);
                    const int64_t last = num_min(i + DRIVE_ROWS, m->n);
                    for (int64_t b = b0; b < num_min(m->w->in, b0 + step);
                         b += slice, w += slice_bytes, v += slice_bytes) {
                        const int64_t n = num_min(slice, m->w->in - b);
                        int64_t r = i;
                        for (; two && last - r >= PAIR_ROWS; r += PAIR_ROWS)
                            pair_tile(m, d, fn, w, v, p, b, n, r);
                        drive_slice(m, d, w, p, b, n, r, last);
                        if (p + 1 < end)
                            drive_slice(m, d, v, p + 1, b, n, r, last);
                    }
                }
    }
}

#define TILES(type, line)                                                         \
    TILE(type, 1, line)                                                                      \
    TILE(type, 2, line)                                                                      \
    TILE(type, 3, line)                                                                      \
    TILE(type, 4, line)                                                                      \
    TILE(type, 6, line)                                                                      \
    TILE(type, 8, line)                                                                      \
    PAIR(type, line)                                                                         \
    static const struct drive drive_##type = {                                               \
        {{tile_##type##_8, 8}, {tile_##type##_6, 6}, {tile_##type##_4, 4},                   \
         {tile_##type##_3, 3}, {tile_##type##_2, 2}, {tile_##type##_1, 1}},                  \
        1, 0, 0};                                                                    \
    void NAME(type)(const struct kern_matmul *m, int64_t p0, int64_t p1)      \
    {                                                                                        \
        if (m->n < PAIR_ROWS)                                                                \
            drive_run(m, &drive_##type, p0, p1);                                             \
        else                                                                                 \
            pair_run(m, &drive_##type, pair_##type, p0, p1);                                 \
    }

TILES(f32, 64)
TILES(f16, 32)
TILES(bf16, 32)

/* ---- e4m3 codes with a scale for 32 k, a power of two (F8) or any float (F8S): w = code * scale
 * ---- */

/* Two k at a time: the code's bits are a half that is 256 times too small. */
static inline __m512i e4m3_halves(const uint8_t *at)
{
    const __m512i b = _mm512_slli_epi16(
        _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)at)), 7);
    const __m512i all = _mm512_set1_epi16(0x3F80), sign = _mm512_set1_epi16((short)0xBF80);
    const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(b, all), all);
    return _mm512_mask_mov_epi16(_mm512_and_si512(b, sign), nan, _mm512_set1_epi16(0x7E00));
}
static inline __m512 e4m3(__m256i halves)
{
    return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256));
}
static inline __m512 e8m0(const uint8_t *at)
{
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    __m512i v = _mm512_max_epi32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(0x00400000));
    v = _mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)),
                              _mm512_set1_epi32(0x7FC00000));
    return _mm512_castsi512_ps(v);
}

/* Codes that are whole numbers, times the scales of their group. */
static inline __m512 w8(const uint8_t *at, __m512 s)
{
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                             _mm_loadu_si128((const __m128i *)(const void *)at))),
                         s);
}
#define TILE_W8(C)                                                                                 \
    static void tile_w8_##C(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,        \
                            int64_t stride)                                                        \
    {                                                                                              \
        EACH_##C(LOAD_Y, _) for (int64_t g = 0; g < n; g++)                                        \
        {                                                                                          \
            const uint8_t *chunk = w + g / 4 * KERN_W8_CHUNK, *at = chunk + g % 4 * 512;           \
            const __m512 s0 = load_f16(chunk + KERN_F8_SCALES + g % 4 * 32);                       \
            for (int64_t k = 32 * g; k < 32 * g + 32; k++, at += 16) {                             \
                if (!(k & 3))                                                                      \
                    fetch(at);                                                                     \
                const __m512 w_ = w8(at, s0);                                                      \
                EACH_##C(ADD, _)                                                                   \
            }                                                                                      \
        }                                                                                          \
        EACH_##C(STORE_Y, _)                                                                       \
    }
TILE_W8(1) TILE_W8(2) TILE_W8(3) TILE_W8(4) TILE_W8(6) TILE_W8(8)

#define TILE_F8(F, SIZE, WIDTH, LOAD, C)                                                           \
    static void tile_##F##_##C(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,     \
                               int64_t stride)                                                     \
    {                                                                                              \
        EACH_##C(LOAD_Y, _) for (int64_t g = 0; g < n; g++)                                        \
        {                                                                                          \
            const uint8_t *chunk = w + g / 4 * (SIZE), *at = chunk + g % 4 * 512;                  \
            const uint8_t *scale = chunk + KERN_F8_SCALES + g % 4 * (WIDTH);                       \
            const __m512 s0 = LOAD(scale);                                                         \
            for (int64_t k = 32 * g; k < 32 * g + 32; at += 32) {                                  \
                if (!(k & 3))                                                                      \
                    fetch(at);                                                                     \
                const __m512i two_ = e4m3_halves(at);                                              \
                {                                                                                  \
                    const __m512 w_ = _mm512_mul_ps(e4m3(_mm512_castsi512_si256(two_)), s0);       \
                    EACH_##C(ADD, _) k++;                                                          \
                }                                                                                  \
                {                                                                                  \
                    const __m512 w_ = _mm512_mul_ps(e4m3(_mm512_extracti64x4_epi64(two_, 1)), s0); \
                    EACH_##C(ADD, _) k++;                                                          \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        EACH_##C(STORE_Y, _)                                                                       \
    }
#define TILE_F8E(C) TILE_F8(f8, KERN_F8_CHUNK, 16, e8m0, C)
#define TILE_F8S(C) TILE_F8(f8s, KERN_F8S_CHUNK, 64, load_f32, C)
TILE_F8E(1) TILE_F8E(2) TILE_F8E(3) TILE_F8E(4) TILE_F8E(6) TILE_F8E(8)
TILE_F8S(1) TILE_F8S(2) TILE_F8S(3) TILE_F8S(4) TILE_F8S(6) TILE_F8S(8)

/* A group as f32 [32][16]. */
static ATTR_INLINE void spread_codes(const uint8_t *at, __m512 s, uint8_t *to)
{
    for (int k = 0; k < 32; k += 2, at += 32, to += 128) {
        const __m512i two = e4m3_halves(at);
        fetch(at);
        _mm512_store_ps((float *)(void *)to,
                        _mm512_mul_ps(e4m3(_mm512_castsi512_si256(two)), s));
        _mm512_store_ps((float *)(void *)(to + 64),
                        _mm512_mul_ps(e4m3(_mm512_extracti64x4_epi64(two, 1)), s));
    }
}
static void spread_f8(const struct kern_matrix *w, const uint8_t *panel, int64_t g, uint8_t *to)
{
    const uint8_t *chunk = panel + g / 4 * KERN_F8_CHUNK;
    (void)w;
    spread_codes(chunk + g % 4 * 512, e8m0(chunk + KERN_F8_SCALES + g % 4 * 16), to);
}
static void spread_f8s(const struct kern_matrix *w, const uint8_t *panel, int64_t g, uint8_t *to)
{
    const uint8_t *chunk = panel + g / 4 * KERN_F8S_CHUNK;
    (void)w;
    spread_codes(chunk + g % 4 * 512, load_f32(chunk + KERN_F8_SCALES + g % 4 * 64), to);
}
static void spread_w8(const struct kern_matrix *w, const uint8_t *panel, int64_t g, uint8_t *to)
{
    const uint8_t *chunk = panel + g / 4 * KERN_W8_CHUNK, *at = chunk + g % 4 * 512;
    const __m512 s = load_f16(chunk + KERN_F8_SCALES + g % 4 * 32);
    (void)w;
    fetch(at);
    for (int k = 0; k < 32; k++)
        _mm512_store_ps((float *)(void *)(to + 64 * k), w8(at + 16 * k, s));
}
#define SPREAD(C)                                                                             \
    static void spread_##C(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,    \
                           int64_t stride)                                                   \
    {                                                                                         \
        tile_f32_##C(w, 32 * n, x, y, stride);                                                \
    }
SPREAD(1) SPREAD(2) SPREAD(3) SPREAD(4) SPREAD(6) SPREAD(8)

#define MATMUL_F8(F)                                                                               \
    void NAME(F)(const struct kern_matmul *m, int64_t p0, int64_t p1)                              \
    {                                                                                              \
        static const struct drive few = {{{tile_##F##_8, 8},                                       \
                                          {tile_##F##_6, 6},                                       \
                                          {tile_##F##_4, 4},                                       \
                                          {tile_##F##_3, 3},                                       \
                                          {tile_##F##_2, 2},                                       \
                                          {tile_##F##_1, 1}},                                      \
                                         32,                                                       \
                                         0,                                                        \
                                         0};                                                       \
        static const struct drive many = {{{spread_8, 8},                                          \
                                           {spread_6, 6},                                          \
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
