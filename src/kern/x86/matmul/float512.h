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
static ATTR_INLINE void fetch(const uint8_t *at)
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
/* ---- tiles; sums of row c are element c of an array ---- */

enum float_kind { F32, F16, BF16, F8, F8S, W8 };

/* 16 weights of a kind without scales; the scales of a group of 32 k. */
static ATTR_INLINE __m512 load(enum float_kind kind, const uint8_t *at)
{
    return kind == F32 ? load_f32(at) : kind == F16 ? load_f16(at) : load_bf16(at);
}
static ATTR_INLINE __m512 load_scales(enum float_kind kind, const uint8_t *chunk, int g)
{
    const uint8_t *at = chunk + KERN_F8_SCALES;
    return kind == F8 ? e8m0(at + g * 16) : kind == F8S ? load_f32(at + g * 64)
                                                        : load_f16(at + g * 32);
}
static ATTR_INLINE void add(const int rows, __m512 w, const float *const *x, int64_t k, __m512 *y)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        y[c] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[c][k]), y[c]);
}
static ATTR_INLINE void add_plain(const int rows, enum float_kind kind, const uint8_t *w, int64_t n,
                                  const float *const *x, __m512 *y)
{
    const int line = kind == F32 ? 64 : 32;
    for (int64_t k = 0; k < n; k++) {
        const uint8_t *at = w + k * line;
        if ((AHEAD || rows > 1) && (line == 64 || !(k & 1)))
            fetch(at);
        add(rows, load(kind, at), x, k, y);
    }
}
static ATTR_INLINE void add_scaled(const int rows, enum float_kind kind, const uint8_t *w,
                                   int64_t n, const float *const *x, __m512 *y)
{
    const int size = kind == F8    ? KERN_F8_CHUNK
                     : kind == F8S ? KERN_F8S_CHUNK
                                   : KERN_W8_CHUNK;
    for (int64_t g = 0; g < n; g++) {
        const uint8_t *chunk = w + g / 4 * size, *at = chunk + g % 4 * 512;
        const __m512 s = load_scales(kind, chunk, (int)(g % 4));
        for (int64_t k = 32 * g; k < 32 * g + 32; k += kind == W8 ? 1 : 2) {
            if (!(k & 3))
                fetch(at);
            if (kind == W8) {
                add(rows, w8(at, s), x, k, y);
                at += 16;
                continue;
            }
            const __m512i two = e4m3_halves(at);
            add(rows, _mm512_mul_ps(e4m3(_mm512_castsi512_si256(two)), s), x, k, y);
            add(rows, _mm512_mul_ps(e4m3(_mm512_extracti64x4_epi64(two, 1)), s), x, k + 1, y);
            at += 32;
        }
    }
}
static ATTR_INLINE void tile(const int rows, enum float_kind kind, const uint8_t *w, int64_t n,
                             const uint8_t *const *x, float *to, int64_t stride)
{
    const float *a[DRIVE_MAX];
    __m512 y[DRIVE_MAX];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        a[c] = (const float *)(const void *)x[c];
        y[c] = _mm512_setzero_ps();
    }
    if (kind <= BF16)
        add_plain(rows, kind, w, n, a, y);
    else
        add_scaled(rows, kind, w, n, a, y);
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        _mm512_storeu_ps(to + c * stride, y[c]);
}

/* Two panels of a band at once for eight rows: sixteen sums, so that none waits for the one before,
 * and a load of an activation for two products. */
typedef void pair_fn(const uint8_t *w, const uint8_t *v, int64_t n, const uint8_t *const *x,
                     float *y, float *z, int64_t stride);
enum { PAIR_ROWS = 8 };
static ATTR_INLINE void pair(enum float_kind kind, const uint8_t *w, const uint8_t *v, int64_t n,
                             const uint8_t *const *x, float *to, float *second, int64_t stride)
{
    const int line = kind == F32 ? 64 : 32;
    const float *a[PAIR_ROWS];
    __m512 y[PAIR_ROWS], z[PAIR_ROWS];
#pragma GCC unroll 8
    for (int c = 0; c < PAIR_ROWS; c++) {
        a[c] = (const float *)(const void *)x[c];
        y[c] = z[c] = _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < n; k++) {
        if (line == 64 || !(k & 1)) {
            fetch(w + k * line);
            fetch(v + k * line);
        }
        const __m512 w0 = load(kind, w + k * line), w1 = load(kind, v + k * line);
#pragma GCC unroll 8
        for (int c = 0; c < PAIR_ROWS; c++) {
            const __m512 q = _mm512_set1_ps(a[c][k]);
            y[c] = _mm512_fmadd_ps(w0, q, y[c]);
            z[c] = _mm512_fmadd_ps(w1, q, z[c]);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < PAIR_ROWS; c++) {
        _mm512_storeu_ps(to + c * stride, y[c]);
        _mm512_storeu_ps(second + c * stride, z[c]);
    }
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
    TILE(name, 6, kind, times)                                                                     \
    TILE(name, 8, kind, times)                                                                     \
    static const struct drive drive_##name = {                                                     \
        {{name##_8, 8}, {name##_6, 6}, {name##_4, 4}, {name##_3, 3}, {name##_2, 2},                \
         {name##_1, 1}}, block, __VA_ARGS__};
#define PLAIN(type, kind)                                                                          \
    TILES(type, kind, 1, 1, 0, 0)                                                                  \
    static void pair_##type(const uint8_t *w, const uint8_t *v, int64_t n,                         \
                            const uint8_t *const *x, float *y, float *z, int64_t stride)           \
    {                                                                                              \
        pair(kind, w, v, n, x, y, z, stride);                                                      \
    }                                                                                              \
    void NAME(type)(const struct kern_matmul *m, int64_t p0, int64_t p1)                           \
    {                                                                                              \
        if (m->n < PAIR_ROWS)                                                                      \
            drive_run(m, &drive_##type, p0, p1);                                                   \
        else                                                                                       \
            pair_run(m, &drive_##type, pair_##type, p0, p1);                                       \
    }
PLAIN(f32, F32)
PLAIN(f16, F16)
PLAIN(bf16, BF16)

/* Many rows run from a group as f32. */
TILES(spread, F32, 32, 32, 8, 2048)
#define SCALED(type, kind)                                                                         \
    TILES(type, kind, 32, 1, 0, 0)                                                                 \
    void NAME(type)(const struct kern_matmul *m, int64_t p0, int64_t p1)                           \
    {                                                                                              \
        if (m->n <= 8)                                                                             \
            drive_run(m, &drive_##type, p0, p1);                                                   \
        else                                                                                       \
            drive_run_spread(m, &drive_spread, spread_##type, p0, p1);                             \
    }
SCALED(f8, F8)
SCALED(f8s, F8S)
SCALED(w8, W8)
