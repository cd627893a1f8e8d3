/*
 * points512 - what products with byte permutes share: look-ups in tables of registers, and the walk
 * for a few rows of activations, which are put into the order of the look-ups first.
 */
#ifndef INGLE_KERN_X86_POINTS512_H
#define INGLE_KERN_X86_POINTS512_H

#include "kern/x86/drive.h"

#include <immintrin.h>

static inline __m512i line(const uint8_t *at) { return _mm512_loadu_si512(at); }
static inline __m512i words32(const void *at)
{
    int32_t v;
    memcpy(&v, at, sizeof v);
    return _mm512_set1_epi32(v);
}

/* Two words of 32 bits, each its four bytes from `byte` on, in steps. */
#define STEPS(byte, step) \
    ((byte) * 0x01010101u + ((step) << 8 | 2u * (step) << 16 | 3u * (step) << 24))
#define BOTH(first, step) \
    _mm512_set1_epi64((long long)((uint64_t)STEPS((first) + 32u, step) << 32 | STEPS(first, step)))

/* Asks for lines far ahead and, shortly before their use, for the first cache: tiles of so many
 * instructions do not see far enough to wait for the second one (Zen 4, one row: 1.4 to 1.7 times
 * the speed of the far one alone). */
#define FETCH(at, n_bytes)                                               \
    for (int i_ = 0; i_ < (n_bytes); i_ += 64) {                         \
        _mm_prefetch((const char *)(at) + 2048 + i_, _MM_HINT_T0);       \
        _mm_prefetch((const char *)(at) + 16384 + i_, _MM_HINT_T1);      \
    }

/* Two tables of 256 bytes. */
struct tables { __m512i a[4], b[4]; };

static ATTR_INLINE struct tables load_tables(const uint8_t from[2][256])
{
    struct tables k;
    for (int i = 0; i < 4; i++) {
        k.a[i] = line(from[0] + 64 * i);
        k.b[i] = line(from[1] + 64 * i);
    }
    return k;
}

static ATTR_INLINE __m512i look_up(const __m512i t[4], __m512i number, __mmask64 high)
{
    return _mm512_mask_blend_epi8(high, _mm512_permutex2var_epi8(t[0], number, t[1]),
                                  _mm512_permutex2var_epi8(t[2], number, t[3]));
}

/* Bytes of seven signs each, with the eighth that makes their number even. */
static ATTR_INLINE __m512i signs(__m512i words)
{
    const __m512i seven = _mm512_multishift_epi64_epi8(BOTH(0u, 7u), words);
    return _mm512_gf2p8affine_epi64_epi8(seven, _mm512_set1_epi64(0x010204081020407F), 0);
}

/* 2 s + 1 of the top four bits: the lowest bit is set whatever it was. */
static ATTR_INLINE __m512i sub_scales(__m512i words)
{
    return _mm512_or_si512(_mm512_srli_epi32(words, 27), _mm512_set1_epi32(1));
}

/* d of 16 rows. */
static ATTR_INLINE __m512 scales(const uint8_t *halves, float factor)
{
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)halves)),
                         _mm512_set1_ps(factor));
}

#define X256(c) ((const struct kern_act256 *)(const void *)x[c] + b)
#define LOAD_Y(c, _) \
    __m512 y##c = first ? _mm512_setzero_ps() : _mm512_loadu_ps(y + (c) * stride);
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
            _mm512_storeu_si512(to[b].q + 64 * i, _mm512_permutexvar_epi8(by, line((const uint8_t *)to[b].q + 64 * i)));
}

static void stretch_few(const struct kern_matmul *m, const struct drive *d, const uint8_t order[64], int64_t p0,
                        int64_t p1, int64_t b, int64_t n)
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
            drive_tile_at(m, d->tile[t].fn, (int)c, kern_code_stretch(m->w, p, b / STRETCH), x, p, b == 0, n, i0);
    }
}

static void run_few(const struct kern_matmul *m, const struct drive *d, const uint8_t order[64], int64_t p0, int64_t p1)
{
    const int64_t n_blocks = m->w->in / 256;
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, (p0 / KERN_BAND + 1) * KERN_BAND);
        for (int64_t b = 0; b < n_blocks; b += STRETCH)
            stretch_few(m, d, order, p0, end, b, num_min(STRETCH, n_blocks - b));
    }
}

#endif
