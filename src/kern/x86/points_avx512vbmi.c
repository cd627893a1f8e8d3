/* SPDX-License-Identifier: Apache-2.0 */
/* Products of IQ2_XXS with byte permutes: tables of 256 bytes are four registers, so that a
 * line of 64 numbers is looked up at once.  Values carry a bias of 43, which the start of each
 * dot product takes off.
 *
 * Few rows: a quad is one coordinate of the four points of 32 k, k = i, 8 + i, 16 + i, 24 + i.
 * Numbers become those of two half points, these the values of 8 quads, by one permute each.
 * Activations are turned to that order first, once for the panels of a band.
 * Many rows: numbers become 2-bit codes, and values in the order of k are spread for all rows. */
#include "kern/kernels.h"
#include "kern/x86/drive.h"

#include <immintrin.h>

enum { BIAS = 43 };

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

static ATTR_INLINE __m512i with_signs(__m512i v, __mmask64 minus)
{
    return _mm512_mask_sub_epi8(v, minus, _mm512_set1_epi8(2 * BIAS), v);
}

/* Quad j (a literal) as values plus BIAS. */
static ATTR_INLINE __m512i quad(int j, __m512i first, __m512i last, __m512i sign)
{
    const uint32_t bit = 8 * (uint32_t)(j / 2);
    const __m512i value = _mm512_set1_epi32((BIAS + 43) << 16 | (BIAS + 25) << 8 | (BIAS + 8));
    const __m512i code = _mm512_multishift_epi64_epi8(BOTH(bit, 2u), j % 2 ? last : first);
    const __m512i v = _mm512_permutexvar_epi8(code, value);
    const __mmask64 minus = _mm512_bitshuffle_epi64_mask(sign, BOTH(bit + 4u * (uint32_t)(j % 2), 1u));
    return with_signs(v, minus);
}

/* 2 s + 1 of the top four bits: the lowest bit is set whatever it was. */
static ATTR_INLINE __m512i sub_scales(__m512i words)
{
    return _mm512_or_si512(_mm512_srli_epi32(words, 27), _mm512_set1_epi32(1));
}

static ATTR_INLINE __m512 scales(const uint8_t *halves)
{
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)halves)),
                         _mm512_set1_ps(0.125f));
}

#define X256(c) ((const struct kern_act256 *)(const void *)x[c] + b)
#define LOAD_Y(c, _) \
    __m512 y##c = first ? _mm512_setzero_ps() : _mm512_loadu_ps(y + (c) * stride);
#define STORE_Y(c, _) _mm512_storeu_ps(y + (c) * stride, y##c);
#define ZERO_T(c, _) __m512i t##c = _mm512_setzero_si512();
#define START(c, _) \
    __m512i a##c = _mm512_madd_epi16(words32(X256(c)->sum16 + 2 * h), _mm512_set1_epi16(-BIAS));
#define DOT(c, j) a##c = _mm512_dpbusd_epi32(a##c, w_, words32(X256(c)->q + 32 * h + 4 * (j)));
#define ADD_SUB(c, _) t##c = _mm512_add_epi32(t##c, _mm512_mullo_epi32(a##c, sub));
#define FINISH(c, _)                                                 \
    y##c = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t##c),                 \
                           _mm512_mul_ps(d, _mm512_set1_ps(X256(c)->scale)), y##c);
#define QUADS(Q, C) Q(C, 0) Q(C, 1) Q(C, 2) Q(C, 3) Q(C, 4) Q(C, 5) Q(C, 6) Q(C, 7)

/* ---- few rows, straight from the panel ---- */

#define VALUE(i) \
    const __m512i value##i = _mm512_add_epi8(line(quant_values_iq2_xxs[i]), _mm512_set1_epi8(BIAS));
#define QUAD(C, i, half)                                                                         \
    {                                                                                            \
        const __m512i v_ = _mm512_permutexvar_epi8(half, value##i);                              \
        const __m512i w_ =                                                                       \
            with_signs(v_, _mm512_test_epi8_mask(sign, _mm512_set1_epi8((char)(1 << (i)))));     \
        EACH_##C(DOT, i)                                                                         \
    }
#define TILE(C)                                                                                  \
    static void tile_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,     \
                         int64_t stride, bool first)                                             \
    {                                                                                            \
        const struct tables halves = load_tables(quant_halves_iq2_xxs);                          \
        VALUE(0) VALUE(1) VALUE(2) VALUE(3) VALUE(4) VALUE(5) VALUE(6) VALUE(7)                  \
        EACH_##C(LOAD_Y, _)                                                                      \
        for (int64_t b = 0; b < n; b++) {                                                        \
            const uint8_t *at = chunk + b / 2 * KERN_POINT_CHUNK;                                \
            const __m512 d = scales(at + KERN_POINT_D + b % 2 * 32);                             \
            at += b % 2 * 8 * KERN_POINT_GROUP;                                                  \
            EACH_##C(ZERO_T, _)                                                                  \
            for (int h = 0; h < 8; h++, at += KERN_POINT_GROUP) {                                \
                const __m512i number = line(at), words = line(at + 64);                          \
                _mm_prefetch((const char *)at + 8192, _MM_HINT_T1);                              \
                _mm_prefetch((const char *)at + 8192 + 64, _MM_HINT_T1);                         \
                const __mmask64 high = _mm512_movepi8_mask(number);                              \
                const __m512i p = look_up(halves.a, number, high);                               \
                const __m512i q = look_up(halves.b, number, high);                               \
                const __m512i sign = signs(words), sub = sub_scales(words);                      \
                EACH_##C(START, _)                                                               \
                QUAD(C, 0, p) QUAD(C, 1, q) QUAD(C, 2, q) QUAD(C, 3, q)                          \
                QUAD(C, 4, p) QUAD(C, 5, p) QUAD(C, 6, p) QUAD(C, 7, q)                          \
                EACH_##C(ADD_SUB, _)                                                             \
            }                                                                                    \
            EACH_##C(FINISH, _)                                                                  \
        }                                                                                        \
        EACH_##C(STORE_Y, _)                                                                     \
    }
TILE(1) TILE(2) TILE(3) TILE(4) TILE(6) TILE(8)

enum { FEW = 8, STRETCH = 4 };

/* n blocks of activations with dword i of each 32 as q[i], q[8 + i], q[16 + i], q[24 + i]. */
static void turn(const uint8_t *from, int64_t n, struct kern_act256 *to)
{
    const __m512i order = _mm512_set_epi64(0x3F372F273E362E26, 0x3D352D253C342C24, 0x3B332B233A322A22,
                                           0x3931292138302820, 0x1F170F071E160E06, 0x1D150D051C140C04,
                                           0x1B130B031A120A02, 0x1911090118100800);
    memcpy(to, from, (size_t)n * sizeof *to);
    for (int64_t b = 0; b < n; b++)
        for (int i = 0; i < 4; i++)
            _mm512_storeu_si512(to[b].q + 64 * i, _mm512_permutexvar_epi8(order, line((const uint8_t *)to[b].q + 64 * i)));
}

static void stretch_few(const struct kern_matmul *m, const struct drive *d, int64_t p0, int64_t p1,
                        int64_t b, int64_t n)
{
    ATTR_ALIGNED(64) struct kern_act256 act[FEW][STRETCH];
    const uint8_t *x[FEW];
    for (int64_t i = 0; i < m->n; i++) {
        turn(drive_x(m, d, i, b), n, act[i]);
        x[i] = (const uint8_t *)act[i];
    }
    for (int64_t p = p0; p < p1; p++) {
        for (int64_t i = 0; i < m->n;) {
            const int t = drive_next(d, m->n - i), c = d->tile[t].c;
            drive_tile_at(m, d->tile[t].fn, c, kern_code_stretch(m->w, p, b / STRETCH), x + i, p, b == 0, n, i);
            i += c;
        }
    }
}

static void run_few(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    static const struct drive d = {
        {{tile_8, 8}, {tile_6, 6}, {tile_4, 4}, {tile_3, 3}, {tile_2, 2}, {tile_1, 1}}, 256, 0, 0};
    const int64_t n_blocks = m->w->in / 256;
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, (p0 / KERN_BAND + 1) * KERN_BAND);
        for (int64_t b = 0; b < n_blocks; b += STRETCH)
            stretch_few(m, &d, p0, end, b, num_min(STRETCH, n_blocks - b));
    }
}

/* ---- many rows ---- */

/* A block of spread values is 8 groups of 8 lines and a line of sub-scales,
 * then d as floats. */
enum { SPREAD_GROUP = 576, SPREAD_D = 8 * SPREAD_GROUP, SPREAD_BYTES = SPREAD_D + 64 };
static_assert(2 * SPREAD_BYTES <= DRIVE_SCRATCH, "two blocks at a time");

static void spread(const struct kern_matrix *w, const uint8_t *panel, int64_t b, uint8_t *to)
{
    (void)w;
    const struct tables codes = load_tables(quant_codes_iq2_xxs);
    const uint8_t *at = panel + b / 2 * KERN_POINT_CHUNK;
    _mm512_store_ps((float *)(void *)(to + SPREAD_D), scales(at + KERN_POINT_D + b % 2 * 32));
    at += b % 2 * 8 * KERN_POINT_GROUP;
    for (int h = 0; h < 8; h++, at += KERN_POINT_GROUP, to += SPREAD_GROUP) {
        const __m512i number = line(at), words = line(at + 64);
        _mm_prefetch((const char *)at + 8192, _MM_HINT_T1);
        _mm_prefetch((const char *)at + 8192 + 64, _MM_HINT_T1);
        const __mmask64 high = _mm512_movepi8_mask(number);
        const __m512i first4 = look_up(codes.a, number, high);
        const __m512i last4 = look_up(codes.b, number, high), sign = signs(words);
#define PUT(_, j) _mm512_store_si512(to + 64 * (j), quad(j, first4, last4, sign));
        QUADS(PUT, _)
#undef PUT
        _mm512_store_si512(to + 512, sub_scales(words));
    }
}

#define QUAD_SPREAD(C, j)                               \
    {                                                   \
        const __m512i w_ = line(group + 64 * (j));      \
        EACH_##C(DOT, j)                                \
    }
#define TILE_SPREAD(C)                                                                           \
    static void spread_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,   \
                           int64_t stride, bool first)                                           \
    {                                                                                            \
        EACH_##C(LOAD_Y, _)                                                                      \
        for (int64_t b = 0; b < n; b++, chunk += SPREAD_BYTES) {                                 \
            const __m512 d = _mm512_load_ps(chunk + SPREAD_D);                                   \
            EACH_##C(ZERO_T, _)                                                                  \
            for (int h = 0; h < 8; h++) {                                                        \
                const uint8_t *group = chunk + SPREAD_GROUP * h;                                 \
                const __m512i sub = line(group + 512);                                           \
                EACH_##C(START, _)                                                               \
                QUADS(QUAD_SPREAD, C)                                                            \
                EACH_##C(ADD_SUB, _)                                                             \
            }                                                                                    \
            EACH_##C(FINISH, _)                                                                  \
        }                                                                                        \
        EACH_##C(STORE_Y, _)                                                                     \
    }
TILE_SPREAD(1) TILE_SPREAD(2) TILE_SPREAD(3) TILE_SPREAD(4) TILE_SPREAD(6) TILE_SPREAD(8)

void kern_matmul_iq2_xxs_avx512vbmi(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    static const struct drive many = {
        {{spread_8, 8}, {spread_6, 6}, {spread_4, 4}, {spread_3, 3}, {spread_2, 2}, {spread_1, 1}},
        256, 2, SPREAD_BYTES};
    if (m->n <= FEW)
        run_few(m, p0, p1);
    else
        drive_run_spread(m, &many, spread, p0, p1);
}
