/*
 * points512 - what products with byte permutes share: the walk for a few rows of activations, which
 * are put into the order of the look-ups first.
 */
#ifndef INGLE_KERN_X86_MATMUL_POINTS512_H
#define INGLE_KERN_X86_MATMUL_POINTS512_H

#include "kern/x86/matmul/drive.h"
#include "kern/x86/matmul/lookup512.h"

#include <immintrin.h>

static inline __m512i words32(const void *at)
{
    int32_t v;
    memcpy(&v, at, sizeof v);
    return _mm512_set1_epi32(v);
}

/* Asks for lines far ahead and, shortly before their use, for the first cache: tiles of so many
 * instructions do not see far enough to wait for the second one (Zen 4, one row: 1.4 to 1.7 times
 * the speed of the far one alone). */
static ATTR_INLINE void fetch(const uint8_t *at, int n_bytes)
{
    for (int i = 0; i < n_bytes; i += 64) {
        _mm_prefetch((const char *)at + 2048 + i, _MM_HINT_T0);
        _mm_prefetch((const char *)at + 16384 + i, _MM_HINT_T1);
    }
}

/* ---- sums of some rows, element c of an array each ---- */

static ATTR_INLINE const struct kern_act256 *act256(const uint8_t *const *x, int c, int64_t b)
{
    return (const struct kern_act256 *)(const void *)x[c] + b;
}
/* Sums of a group begin: sums of q in pairs of 16 times -bias, in each word of which. */
static ATTR_INLINE void start(const int rows, __m512i by, const uint8_t *const *x, int64_t b, int h,
                              __m512i *a)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        a[c] = _mm512_madd_epi16(words32(act256(x, c, b)->sum16 + 2 * h), by);
}
/* a += w times quad j of group h. */
static ATTR_INLINE void add_dots(const int rows, __m512i w, const uint8_t *const *x, int64_t b,
                                 int h, int j, __m512i *a)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        a[c] = _mm512_dpbusd_epi32(a[c], w, words32(act256(x, c, b)->q + 32 * h + 4 * j));
}
static ATTR_INLINE void add_scaled(const int rows, const __m512i *a, __m512i sub, __m512i *t)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        t[c] = _mm512_add_epi32(t[c], _mm512_mullo_epi32(a[c], sub));
}
static ATTR_INLINE void finish(const int rows, const __m512i *t, __m512 d, const uint8_t *const *x,
                               int64_t b, __m512 *y)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        y[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t[c]),
                               _mm512_mul_ps(d, _mm512_set1_ps(act256(x, c, b)->scale)), y[c]);
}

/* ---- the walk ---- */

enum { FEW = 8, STRETCH = 4 }; /* rows of the widest tile, blocks of a stretch */

/* n blocks of activations with every 64 bytes in another order. */
static void turn(const uint8_t *from, int64_t n, const uint8_t order[64], struct kern_act256 *to)
{
    const __m512i by = line(order);
    memcpy(to, from, (size_t)n * sizeof *to);
    for (int64_t b = 0; b < n; b++)
        for (int i = 0; i < 4; i++)
            _mm512_storeu_si512(to[b].q + 64 * i, _mm512_permutexvar_epi8(
                                                      by, line((const uint8_t *)to[b].q + 64 * i)));
}

static void stretch_few(const struct kern_matmul *m, const struct drive *d, const uint8_t order[64],
                        int64_t p0, int64_t p1, int64_t b, int64_t n)
{
    ATTR_ALIGNED(64) struct kern_act256 act[FEW][STRETCH];
    for (int64_t i0 = 0, c; i0 < m->n; i0 += c) {
        const int t = drive_next(d, m->n - i0);
        const uint8_t *x[FEW];
        c = d->tile[t].c;
        for (int64_t i = 0; i < c; i++) {
            turn(drive_x(m, d, i0 + i, b), n, order, act[i]);
            x[i] = (const uint8_t *)act[i];
        }
        for (int64_t p = p0; p < p1; p++)
            drive_tile_at(m, d->tile[t].fn, (int)c, kern_code_stretch(m->w, p, b / STRETCH), x, p,
                          b == 0, n, i0);
    }
}

static void run_few(const struct kern_matmul *m, const struct drive *d, const uint8_t order[64],
                    int64_t p0, int64_t p1)
{
    const int64_t n_blocks = m->w->in / 256;
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, (p0 / KERN_BAND + 1) * KERN_BAND);
        for (int64_t b = 0; b < n_blocks; b += STRETCH)
            stretch_few(m, d, order, p0, end, b, num_min(STRETCH, n_blocks - b));
    }
}

/* The kernel of a code: TILE(rows, ...) are its tiles. */
#define POINTS_TILE(name, rows, tile, ...)                                                         \
    static void name##_##rows(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,  \
                              int64_t stride)                                                      \
    {                                                                                              \
        tile(rows, __VA_ARGS__, chunk, n, x, y, stride);                                           \
    }
#define POINTS_KERNEL(name, ...)                                                                   \
    POINTS_TILE(name, 1, __VA_ARGS__)                                                              \
    POINTS_TILE(name, 2, __VA_ARGS__)                                                              \
    POINTS_TILE(name, 3, __VA_ARGS__)                                                              \
    POINTS_TILE(name, 4, __VA_ARGS__)                                                              \
    POINTS_TILE(name, 6, __VA_ARGS__)                                                              \
    POINTS_TILE(name, 8, __VA_ARGS__)                                                              \
    void kern_matmul_##name##_avx512vbmi(const struct kern_matmul *m, int64_t p0, int64_t p1)      \
    {                                                                                              \
        static const struct drive few = {                                                          \
            {{name##_8, 8}, {name##_6, 6}, {name##_4, 4}, {name##_3, 3}, {name##_2, 2},            \
             {name##_1, 1}}, 256, 0, 0};                                                           \
        if (m->n <= FEW)                                                                           \
            run_few(m, &few, order, p0, p1);                                                       \
        else                                                                                       \
            kern_matmul_##name##_spread_avx512vbmi(m, p0, p1);                                     \
    }

#endif
