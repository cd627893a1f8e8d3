/* SPDX-License-Identifier: Apache-2.0 */
/* Products of --numerics fast by VDPBF16PS, two k at a time.  For many rows of activations 256 k
 * of a panel are brought into the order of that instruction once, in the first cache. */
#include "kern/kernels.h"
#include "kern/x86/matmul/drive.h"

#include <immintrin.h>

/* Blocks of 32 k: 16 lines of pairs, row r's two halves in dword r. */
enum { AHEAD = 4096, BLOCK = 32, BLOCK_BYTES = 1024, SPREAD = 8 };

/* ---- from a panel to pairs ---- */

/* Two lines of 16 halves, row by row side by side. */
static inline __m512i interleaved(__m512i two)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i at = _mm512_or_si512(
        lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(16)), 16));
    return _mm512_permutexvar_epi16(at, two);
}
static inline __m512i rounded(__m512 k0, __m512 k1)
{
    return interleaved((__m512i)_mm512_cvtne2ps_pbh(k1, k0));
}

/* 32 k of a panel, and two pairs of it, 2 i and 2 i + 1. */
struct block {
    const uint8_t *at;
    /* F8: */
    bool plain; /* no weight leaves the range of normal numbers */
    __m512 scale;
    __m512i shift; /* its exponent less 7, where bf16 has it */
};

struct pairs {
    __m512i a, b;
};

static ATTR_INLINE struct block block_halves(const uint8_t *stretch, int64_t b)
{
    return (struct block){.at = stretch + b * BLOCK_BYTES};
}
static ATTR_INLINE struct pairs pairs_bf16(struct block b, int i)
{
    const uint8_t *at = b.at + 128 * i;
    _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)at + AHEAD + 64, _MM_HINT_T0);
    return (struct pairs){interleaved(_mm512_loadu_si512(at)),
                          interleaved(_mm512_loadu_si512(at + 64))};
}

static ATTR_INLINE __m512i pair_f16(const uint8_t *at)
{
    const __m512i two = _mm512_loadu_si512(at);
    _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
    return rounded(_mm512_cvtph_ps(_mm512_castsi512_si256(two)),
                   _mm512_cvtph_ps(_mm512_extracti64x4_epi64(two, 1)));
}
static ATTR_INLINE struct pairs pairs_f16(struct block b, int i)
{
    return (struct pairs){pair_f16(b.at + 128 * i), pair_f16(b.at + 128 * i + 64)};
}

/* Two lines of E4M3 codes as halves that are 256 times too small: the code's bits, moved. */
static inline __m512i e4m3_halves(const uint8_t *at)
{
    const __m512i b = _mm512_slli_epi16(
        _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)at)), 7);
    const __m512i all = _mm512_set1_epi16(0x3F80), sign = _mm512_set1_epi16((short)0xBF80);
    const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(b, all), all);
    return _mm512_mask_mov_epi16(_mm512_and_si512(b, sign), nan, _mm512_set1_epi16(0x7E00));
}
static inline __m512 e4m3(__m256i halves, __m512 scale)
{
    return _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256)), scale);
}
static inline __m512 e8m0(const uint8_t *at)
{
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    __m512i v = _mm512_max_epi32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(0x00400000));
    v = _mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)),
                              _mm512_set1_epi32(0x7FC00000));
    return _mm512_castsi512_ps(v);
}
static ATTR_INLINE struct block block_f8(const uint8_t *stretch, int64_t b)
{
    const uint8_t *chunk = stretch + b / 4 * KERN_F8_CHUNK;
    const uint8_t *scale = chunk + KERN_F8_SCALES + b % 4 * 16;
    const __m128i e = _mm_loadu_si128((const __m128i *)(const void *)scale);
    const __m128i kept = _mm_min_epu8(_mm_max_epu8(e, _mm_set1_epi8(10)), _mm_set1_epi8((char)230));
    const __m512i shift = _mm512_slli_epi32(
        _mm512_sub_epi32(_mm512_cvtepu8_epi32(e), _mm512_set1_epi32(7)), 7);
    return (struct block){.at = chunk + b % 4 * 512,
                          .plain = _mm_movemask_epi8(_mm_cmpeq_epi8(e, kept)) == 0xFFFF,
                          .scale = e8m0(scale),
                          .shift = _mm512_or_si512(shift, _mm512_slli_epi32(shift, 16))};
}

/* The bf16 of code c, 2^120 times too small so that its exponent may be below 0: its high and
 * its low byte.  NaN is complete. */
#define F8_FIELD(c)                                                                          \
    ((c) == 0     ? 0                                                                         \
     : (c) == 127 ? 0x7FC0                                                                    \
     : (c) > 7    ? (c) << 4                                                                  \
     : (c) > 3    ? 0x0000 + ((c) - 4) * 32                                                   \
     : (c) > 1    ? 0xFF80 + ((c) - 2) * 64                                                   \
                  : 0xFF00)
#define HIGH(c) (uint8_t)(F8_FIELD(c) >> 8)
#define LOW(c) (uint8_t)(F8_FIELD(c) & 255)
#define LIST_8(F, c) \
    F(c), F((c) + 1), F((c) + 2), F((c) + 3), F((c) + 4), F((c) + 5), F((c) + 6), F((c) + 7)
#define LIST_64(F, c)                                                                         \
    LIST_8(F, c), LIST_8(F, (c) + 8), LIST_8(F, (c) + 16), LIST_8(F, (c) + 24),               \
        LIST_8(F, (c) + 32), LIST_8(F, (c) + 40), LIST_8(F, (c) + 48), LIST_8(F, (c) + 56)
ATTR_ALIGNED(64) static const uint8_t high_byte[128] = {LIST_64(HIGH, 0), LIST_64(HIGH, 64)};
ATTR_ALIGNED(64) static const uint8_t low_byte[128] = {LIST_64(LOW, 0), LIST_64(LOW, 64)};
/* From four lines of codes to the order in which unpacking two bytes to a word makes pairs. */
ATTR_ALIGNED(64)
static const uint8_t order[64] = {
     0, 16,  1, 17,  2, 18,  3, 19, 32, 48, 33, 49, 34, 50, 35, 51,
     4, 20,  5, 21,  6, 22,  7, 23, 36, 52, 37, 53, 38, 54, 39, 55,
     8, 24,  9, 25, 10, 26, 11, 27, 40, 56, 41, 57, 42, 58, 43, 59,
    12, 28, 13, 29, 14, 30, 15, 31, 44, 60, 45, 61, 46, 62, 47, 63,
};

static ATTR_INLINE __m512i table_of(const uint8_t *list, __m512i at)
{
    return _mm512_permutex2var_epi8(_mm512_load_si512(list), at, _mm512_load_si512(list + 64));
}
static ATTR_INLINE struct pairs plain_f8(const uint8_t *at, __m512i shift)
{
    const __m512i c = _mm512_permutexvar_epi8(_mm512_load_si512(order), _mm512_loadu_si512(at));
    const __m512i size = _mm512_and_si512(c, _mm512_set1_epi8(0x7F));
    const __m512i low = table_of(low_byte, c), high = table_of(high_byte, c);
    const __m512i a = _mm512_unpacklo_epi8(low, high), b = _mm512_unpackhi_epi8(low, high);
    const __m512i zero = _mm512_setzero_si512(), sign = _mm512_set1_epi16((short)0x8000);
    /* Zeros and NaN stay what they are. */
    const __mmask64 moves = _mm512_cmp_epu8_mask(_mm512_sub_epi8(size, _mm512_set1_epi8(1)),
                                                 _mm512_set1_epi8(126), _MM_CMPINT_LT);
    const __m512i all = _mm512_movm_epi8(moves);
    const __m512i sa = _mm512_and_si512(shift, _mm512_unpacklo_epi8(all, all));
    const __m512i sb = _mm512_and_si512(shift, _mm512_unpackhi_epi8(all, all));
    return (struct pairs){_mm512_ternarylogic_epi32(_mm512_add_epi16(a, sa),
                                                    _mm512_unpacklo_epi8(zero, c), sign, 0xF8),
                          _mm512_ternarylogic_epi32(_mm512_add_epi16(b, sb),
                                                    _mm512_unpackhi_epi8(zero, c), sign, 0xF8)};
}
static ATTR_INLINE struct pairs pairs_f8(struct block b, int i)
{
    const uint8_t *at = b.at + 64 * i;
    _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
    if (LIKELY(b.plain))
        return plain_f8(at, b.shift);
    const __m512i two = e4m3_halves(at), more = e4m3_halves(at + 32);
    return (struct pairs){rounded(e4m3(_mm512_castsi512_si256(two), b.scale),
                                  e4m3(_mm512_extracti64x4_epi64(two, 1), b.scale)),
                          rounded(e4m3(_mm512_castsi512_si256(more), b.scale),
                                  e4m3(_mm512_extracti64x4_epi64(more, 1), b.scale))};
}

/* The kinds of panels; LINES: pairs, as spread_pairs() leaves them. */
enum kind { BF16, F16, F8, LINES };

static ATTR_INLINE struct block block_of(enum kind kind, const uint8_t *stretch, int64_t b)
{
    return kind == F8 ? block_f8(stretch, b) : block_halves(stretch, b);
}
static ATTR_INLINE struct pairs pairs_of(enum kind kind, struct block b, int i)
{
    return kind == F8 ? pairs_f8(b, i) : kind == F16 ? pairs_f16(b, i) : pairs_bf16(b, i);
}

/* ---- tiles; sums of row c are element c of an array ---- */

static inline __m512bh pair_of(const uint8_t *at)
{
    int32_t v;
    memcpy(&v, at, sizeof v);
    return (__m512bh)_mm512_set1_epi32(v);
}

static ATTR_INLINE void add(const int rows, __m512i w, const uint8_t *const *x, int64_t at,
                            __m512 *y)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        y[c] = _mm512_dpbf16_ps(y[c], (__m512bh)w, pair_of(x[c] + at));
}
/* From pairs, or right from a panel: for few rows, whose time is that of reading it. */
static ATTR_INLINE void tile(const int rows, enum kind kind, const uint8_t *w, int64_t n,
                             const uint8_t *const *x, float *to, int64_t stride)
{
    const uint8_t *a[DRIVE_MAX];
    __m512 y[DRIVE_MAX];
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++) {
        a[c] = x[c];
        y[c] = _mm512_setzero_ps();
    }
    if (kind == LINES) {
        for (int64_t k = 0; k < n * BLOCK / 2; k++)
            add(rows, _mm512_load_si512(w + 64 * k), a, 4 * k, y);
    } else {
        int64_t k = 0;
        for (int64_t b = 0; b < n; b++) {
            const struct block block = block_of(kind, w, b);
            for (int i = 0; i < BLOCK / 4; i++, k += 2) {
                const struct pairs two = pairs_of(kind, block, i);
                add(rows, two.a, a, 4 * k, y);
                add(rows, two.b, a, 4 * k + 4, y);
            }
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        _mm512_storeu_ps(to + c * stride, y[c]);
}
#define TILE(name, rows, kind)                                                                 \
    static void name##_##rows(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,  \
                              int64_t stride)                                                  \
    {                                                                                          \
        tile(rows, kind, w, n, x, y, stride);                                                  \
    }
#define TILES(name, kind)                                                                      \
    TILE(name, 1, kind)                                                                        \
    TILE(name, 2, kind)                                                                        \
    TILE(name, 3, kind)                                                                        \
    TILE(name, 4, kind)                                                                        \
    TILE(name, 6, kind)                                                                        \
    TILE(name, 8, kind)                                                                        \
    static const struct drive drive_##name = {                                                 \
        {{name##_8, 8}, {name##_6, 6}, {name##_4, 4}, {name##_3, 3}, {name##_2, 2},            \
         {name##_1, 1}}, BLOCK, 0, 0};

/* ---- kernels ---- */

/* Block b of a stretch becomes pairs. */
typedef void spread_fn(const uint8_t *stretch, int64_t b, uint8_t *to);
static ATTR_INLINE void spread_pairs(enum kind kind, const uint8_t *stretch, int64_t b, uint8_t *to)
{
    const struct block block = block_of(kind, stretch, b);
    for (int i = 0; i < BLOCK / 4; i++) {
        const struct pairs two = pairs_of(kind, block, i);
        _mm512_store_si512(to + 128 * i, two.a);
        _mm512_store_si512(to + 128 * i + 64, two.b);
    }
}
TILES(lines, LINES)
static void run_many(const struct kern_matmul *m, spread_fn *spread, int64_t p0, int64_t p1)
{
    ATTR_ALIGNED(64) uint8_t pairs[SPREAD * BLOCK_BYTES];
    const int64_t n_blocks = m->w->in / BLOCK, step = m->w->stretch / BLOCK;
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, (p0 / KERN_BAND + 1) * KERN_BAND);
        for (int64_t b = 0; b < n_blocks; b += SPREAD)
            for (int64_t p = p0; p < end; p++) {
                const uint8_t *stretch = kern_code_stretch(m->w, p, b / step);
                const int64_t n = num_min(SPREAD, n_blocks - b);
                for (int64_t i = 0; i < n; i++)
                    spread(stretch, b % step + i, pairs + i * BLOCK_BYTES);
                drive_slice(m, &drive_lines, pairs, p, b, n, 0, m->n);
            }
    }
}
/* Up to `most` rows run right from a panel. */
#define KERNEL(type, kind, most)                                                               \
    TILES(type, kind)                                                                          \
    static void spread_##type(const uint8_t *stretch, int64_t b, uint8_t *to)                  \
    {                                                                                          \
        spread_pairs(kind, stretch, b, to);                                                    \
    }                                                                                          \
    void kern_fast_##type##_avx512bf16(const struct kern_matmul *m, int64_t p0, int64_t p1)    \
    {                                                                                          \
        if (m->n <= (most))                                                                    \
            drive_run(m, &drive_##type, p0, p1);                                               \
        else                                                                                   \
            run_many(m, spread_##type, p0, p1);                                                \
    }
KERNEL(bf16, BF16, 24)
KERNEL(f16, F16, 16)
KERNEL(f8, F8, 8)
