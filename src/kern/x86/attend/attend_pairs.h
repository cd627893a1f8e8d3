/*
 * attend_pairs - the form of attention's recipe "attend-pairs": everything that is multiplied is
 * bf16, in the
 * pairs of VDPBF16PS.  A part of attend_body.h.
 *   queries  [(k_width + 1) / 2][tile] pairs of dimensions
 *   keys     [128/16][(k_width + 1) / 2][16] pairs of dimensions, sixteen positions side by side
 *   weights  [128] of a row, in place of its scores
 *   values   panels of 32 dimensions: [whole/32][64][32] pairs of positions
 */

enum { AHEAD = 2048 }; /* elements that are requested before they are converted */

/* Where the pair of positions 2 i and 2 i + 1 of dimension d is. */
LANES_INLINE int64_t panel_at(int64_t i, int64_t d)
{
    return (d / ATTEND_PANEL * (KERN_PAGE / 2) + i) * ATTEND_PANEL + d % ATTEND_PANEL;
}

#define TILE_R 12
#define TILE_P 2
#define TILE_D 2
#include "kern/x86/attend/attend_pairs_tile.h"
#define TILE_R 8
#define TILE_P 2
#define TILE_D 2
#include "kern/x86/attend/attend_pairs_tile.h"
#define TILE_R 4
#define TILE_P 4
#define TILE_D 4
#include "kern/x86/attend/attend_pairs_tile.h"
#define TILE_R 2
#define TILE_P 4
#define TILE_D 8
#include "kern/x86/attend/attend_pairs_tile.h"
#define TILE_R 1
#define TILE_P 4
#define TILE_D 16
#include "kern/x86/attend/attend_pairs_tile.h"
enum { MAX_R = 12 };

/* Sixteen pairs of one of a and one of b. */
LANES_INLINE __m512i pairs_of(struct v16 a, struct v16 b)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i at =
        _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(16)), 16));
    return _mm512_permutexvar_epi16(at, (__m512i)_mm512_cvtne2ps_pbh(b.a, a.a));
}

/* The queries of size pairs of row and head from pair on. */
static void lay_out(const struct kern_attend *a, int64_t pair, int64_t size, float *q)
{
    uint32_t *to = (uint32_t *)(void *)q;
    const int64_t n = num_div_up(a->k_width, 2);
    for (int64_t r = 0; r < size; r++) {
        const float *x =
            a->q + (pair + r) / a->n_heads * a->q_stride + (pair + r) % a->n_heads * a->k_width;
        for (int64_t i = 0; i < n; i += 16) {
            uint32_t two[16];
            const int64_t left = a->k_width - 2 * i;
            const struct v16 lo = v_load_n(x + 2 * i, left),
                             hi = left > 16 ? v_load_n(x + 2 * i + 16, left - 16) : v_zero();
            _mm512_storeu_si512(two, (__m512i)_mm512_cvtne2ps_pbh(hi.a, lo.a));
            for (int64_t k = i; k < n && k < i + 16; k++)
                to[k * size + r] = two[k - i];
        }
    }
}

static bool decodes(int64_t n, enum kern_kv_codec c)
{
    (void)n;
    (void)c;
    return true;
}

LANES_INLINE void decode_keys_on(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                 int64_t b0, int64_t b1, float *to)
{
    const int64_t n = num_div_up(width, 2);
    struct v16 by = v_zero();
    for (int64_t b = b0; b < b1; b++)
        for (int64_t k = 0; k < width; k += 2) {
            if (c == KERN_KV_Q8_0 && k % ATTEND_QUANT == 0)
                by = key_scale(block, width, b, k);
            const int64_t i = (b * width + k) * 16;
            v_prefetch_far(block + (i + AHEAD) * element_bytes(c));
            const struct v16 odd = k + 1 < width ? element(c, block, i + 16, by) : v_zero();
            _mm512_storeu_si512(to + (b * n + k / 2) * 16, pairs_of(element(c, block, i, by), odd));
        }
}

/* 16-blocks [b0, b1) of a block of keys. */
static void decode_keys(enum kern_kv_codec c, const uint8_t *block, int64_t width, int64_t b0,
                        int64_t b1, float *to)
{
    PLAIN_CODEC(c, decode_keys_on, block, width, b0, b1, to)
}

static void decode_scales(const uint8_t *block, int64_t width, float *to)
{
    (void)block;
    (void)width;
    (void)to;
}

/* Sixteen dimensions from d on of the value at slot j, after the width zeros. */
LANES_INLINE struct v16 value_of(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                 int64_t j, int64_t d)
{
    if (d + 16 > width)
        return value_end(c, block, width, j, d);
    const struct v16 by = c == KERN_KV_Q8_0 ? value_scale(block, width, j, d) : v_zero();
    return element(c, block, j * width + d, by);
}

LANES_INLINE void decode_values_on(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                   int64_t j0, int64_t j1, float *to)
{
    for (int64_t j = j0 / 2 * 2; j < j1; j += 2)
        for (int64_t d = 0; d < width; d += 16) {
            v_prefetch_far(block + (j * width + 2 * d + AHEAD) * element_bytes(c));
            _mm512_storeu_si512(
                to + panel_at(j / 2, d),
                pairs_of(value_of(c, block, width, j, d), value_of(c, block, width, j + 1, d)));
        }
}

/* The pairs of slots of which one is in [j0, j1). */
static void decode_values(enum kern_kv_codec c, const uint8_t *block, int64_t width, int64_t j0,
                          int64_t j1, float *to)
{
    PLAIN_CODEC(c, decode_values_on, block, width, j0, j1, to)
}

static void round_weights(float *s, struct view v)
{
    uint16_t *to = (uint16_t *)(void *)s;
    for (int64_t j = v.from / KERN_ATTEND_BLOCK * KERN_ATTEND_BLOCK; j < v.to; j += 32)
        _mm512_storeu_si512(to + j,
                            (__m512i)_mm512_cvtne2ps_pbh(v_load(s + j + 16).a, v_load(s + j).a));
}

/* A pair of positions is added at once, so a block is cut between pairs. */
static int64_t cut_before(int64_t slot) { return slot / 2 * 2; }
static int64_t cut_after(int64_t slot)
{
    return num_div_up(slot, 2) * 2;
}
