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
#include "kern/x86/points512.h"

enum { BIAS = 43 };

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

#define START(c, _) \
    __m512i a##c = _mm512_madd_epi16(words32(X256(c)->sum16 + 2 * h), _mm512_set1_epi16(-BIAS));
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
            const uint8_t *at = chunk + b / 2 * KERN_CHUNK_IQ2_XXS;                                \
            const __m512 d = scales(at + KERN_BEHIND_IQ2_XXS + b % 2 * 32, 0.125f);                             \
            at += b % 2 * 8 * KERN_GROUP_IQ2_XXS;                                                  \
            EACH_##C(ZERO_T, _)                                                                  \
            for (int h = 0; h < 8; h++, at += KERN_GROUP_IQ2_XXS) {                                \
                const __m512i number = line(at), words = line(at + 64);                          \
                FETCH(at, KERN_GROUP_IQ2_XXS)                                                    \
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

/* Dword i of each 32 as q[i], q[8 + i], q[16 + i], q[24 + i]. */
#define TURNED(h, i) (h) + (i), (h) + 8 + (i), (h) + 16 + (i), (h) + 24 + (i)
#define TURNED_32(h) \
    TURNED(h, 0), TURNED(h, 1), TURNED(h, 2), TURNED(h, 3), TURNED(h, 4), TURNED(h, 5), TURNED(h, 6), TURNED(h, 7)
static const uint8_t order[64] = {TURNED_32(0), TURNED_32(32)};

/* ---- many rows ---- */

/* A block of spread values is 8 groups of 8 lines and a line of sub-scales,
 * then d as floats. */
enum { SPREAD_GROUP = 576, SPREAD_D = 8 * SPREAD_GROUP, SPREAD_BYTES = SPREAD_D + 64 };
static_assert(2 * SPREAD_BYTES <= DRIVE_SCRATCH, "two blocks at a time");

static void spread(const struct kern_matrix *w, const uint8_t *panel, int64_t b, uint8_t *to)
{
    (void)w;
    const struct tables codes = load_tables(quant_codes_iq2_xxs);
    const uint8_t *at = panel + b / 2 * KERN_CHUNK_IQ2_XXS;
    _mm512_store_ps((float *)(void *)(to + SPREAD_D), scales(at + KERN_BEHIND_IQ2_XXS + b % 2 * 32, 0.125f));
    at += b % 2 * 8 * KERN_GROUP_IQ2_XXS;
    for (int h = 0; h < 8; h++, at += KERN_GROUP_IQ2_XXS, to += SPREAD_GROUP) {
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
    static const struct drive few = {
        {{tile_8, 8}, {tile_6, 6}, {tile_4, 4}, {tile_3, 3}, {tile_2, 2}, {tile_1, 1}}, 256, 0, 0};
    if (m->n <= FEW)
        run_few(m, &few, order, p0, p1);
    else
        drive_run_spread(m, &many, spread, p0, p1);
}
