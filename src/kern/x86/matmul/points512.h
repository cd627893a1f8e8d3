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
#define FETCH(at, n_bytes)                                               \
    for (int i_ = 0; i_ < (n_bytes); i_ += 64) {                         \
        _mm_prefetch((const char *)(at) + 2048 + i_, _MM_HINT_T0);       \
        _mm_prefetch((const char *)(at) + 16384 + i_, _MM_HINT_T1);      \
    }

#define X256(c) ((const struct kern_act256 *)(const void *)x[c] + b)
#define LOAD_Y(c, _) \
    __m512 y##c = _mm512_setzero_ps();
#define STORE_Y(c, _) _mm512_storeu_ps(y + (c) * stride, y##c);
#define ZERO_T(c, _) __m512i t##c = _mm512_setzero_si512();
#define DOT(c, j) a##c = _mm512_dpbusd_epi32(a##c, w_, words32(X256(c)->q + 32 * h + 4 * (j)));
#define ADD_SUB(c, _) t##c = _mm512_add_epi32(t##c, _mm512_mullo_epi32(a##c, sub));
#define FINISH(c, _)                                                 \
    y##c = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t##c),                 \
                           _mm512_mul_ps(d, _mm512_set1_ps(X256(c)->scale)), y##c);

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

#endif
