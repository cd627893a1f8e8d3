/*
 * attend_f32 - exact attention's form: f32 [k_width][tile] of queries, keys and values as they are
 * stored, or decoded to f32 once for a group of many tiles.  A part of attend_body.h.
 */

enum {
    /* Pairs up to which decoding in registers is no slower: 16 bits on 512-bit registers (Sapphire
     * Rapids), else (Zen 4). */
    DIRECT_16 = 64,
    DIRECT = 32,
};

/* Decoded values stand in panels of 32 dimensions, f32 [whole/32][128][32]: a pass over some
 * dimensions reads memory in order.  Where dimension d of slot j is: */
LANES_INLINE int64_t panel_at(int64_t j, int64_t d)
{
    return (d / ATTEND_PANEL * KERN_PAGE + j) * ATTEND_PANEL + d % ATTEND_PANEL;
}

#ifdef __AVX512F__
#define TILE_R 12
#define TILE_P 2
#define TILE_D 2
#include "kern/x86/attend/attend_tile.h"
#define TILE_R 8
#define TILE_P 2
#define TILE_D 2
#include "kern/x86/attend/attend_tile.h"
#define TILE_R 4
#define TILE_P 4
#define TILE_D 4
#include "kern/x86/attend/attend_tile.h"
#define TILE_R 2
#define TILE_P 4
#define TILE_D 8
#include "kern/x86/attend/attend_tile.h"
#define TILE_R 1
#define TILE_P 4
#define TILE_D 16
#include "kern/x86/attend/attend_tile.h"
enum { MAX_R = 12 };
#else
#define TILE_R 6
#define TILE_P 1
#define TILE_D 1
#include "kern/x86/attend/attend_tile.h"
#define TILE_R 4
#define TILE_P 1
#define TILE_D 1
#include "kern/x86/attend/attend_tile.h"
#define TILE_R 2
#define TILE_P 2
#define TILE_D 2
#include "kern/x86/attend/attend_tile.h"
#define TILE_R 1
#define TILE_P 4
#define TILE_D 4
#include "kern/x86/attend/attend_tile.h"
enum { MAX_R = 6 };
#endif

/* The queries of size pairs from pair on as tiles read them: f32 [k_width][size]. */
static void lay_out(const struct kern_attend *a, int64_t pair, int64_t size, float *q)
{
    const float *x[MAX_R];
    for (int64_t r = 0; r < size; r++)
        x[r] = a->q + (pair + r) / a->n_heads * a->q_stride + (pair + r) % a->n_heads * a->k_width;
    int64_t k = 0;
    for (; k + 4 <= a->k_width; k += 4) {
        int64_t r = 0;
        for (; r + 4 <= size; r += 4) {
            __m128 y0 = _mm_loadu_ps(x[r] + k), y1 = _mm_loadu_ps(x[r + 1] + k);
            __m128 y2 = _mm_loadu_ps(x[r + 2] + k), y3 = _mm_loadu_ps(x[r + 3] + k);
            _MM_TRANSPOSE4_PS(y0, y1, y2, y3);
            _mm_storeu_ps(q + k * size + r, y0);
            _mm_storeu_ps(q + (k + 1) * size + r, y1);
            _mm_storeu_ps(q + (k + 2) * size + r, y2);
            _mm_storeu_ps(q + (k + 3) * size + r, y3);
        }
        for (; r < size; r++)
            for (int64_t j = k; j < k + 4; j++)
                q[j * size + r] = x[r][j];
    }
    for (; k < a->k_width; k++)
        for (int64_t r = 0; r < size; r++)
            q[k * size + r] = x[r][k];
}

/* Whether pages are decoded before the tiles of a group of n pairs see them. */
static bool decodes(int64_t n, enum kern_kv_codec c)
{
#ifdef __AVX512F__
    if (c != KERN_KV_Q8_0)
        return c != KERN_KV_F32 && n > DIRECT_16;
#endif
    return c != KERN_KV_F32 && n > DIRECT;
}

LANES_INLINE void decode_keys_on(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                 int64_t b0, int64_t b1, float *to)
{
    struct v16 by = v_zero();
    for (int64_t b = b0; b < b1; b++)
        for (int64_t k = 0; k < width; k++) {
            if (c == KERN_KV_Q8_0 && k % ATTEND_QUANT == 0)
                by = key_scale(block, width, b, k);
            int64_t i = (b * width + k) * 16;
            v_store(to + i, element(c, block, i, by));
        }
}

/* 16-blocks [b0, b1) of a block of keys to f32, in the same order. */
static void decode_keys(enum kern_kv_codec c, const uint8_t *block, int64_t width, int64_t b0,
                        int64_t b1, float *to)
{
    if (c == KERN_KV_F16)
        decode_keys_on(KERN_KV_F16, block, width, b0, b1, to);
    else if (c == KERN_KV_BF16)
        decode_keys_on(KERN_KV_BF16, block, width, b0, b1, to);
    else
        decode_keys_on(KERN_KV_Q8_0, block, width, b0, b1, to);
}

/* The scales of a block of Q8_0 values to f32. */
static void decode_scales(const uint8_t *block, int64_t width, float *to)
{
    const void *p = block + width * KERN_PAGE;
    int64_t n = KERN_PAGE * (width / ATTEND_QUANT);
    for (int64_t i = 0; i < n; i += 16)
        v_store(to + i, v_from_f16((const uint16_t *)p + i));
}

LANES_INLINE void decode_values_on(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                   int64_t j0, int64_t j1, float *to)
{
    for (int64_t j = j0; j < j1; j++) {
        struct v16 by = v_zero();
        for (int64_t d = 0; d + 16 <= width; d += 16) {
            if (c == KERN_KV_Q8_0 && d % ATTEND_QUANT == 0)
                by = value_scale(block, width, j, d);
            v_store(to + panel_at(j, d), element(c, block, j * width + d, by));
        }
        if (width % 16)
            v_store(to + panel_at(j, width / 16 * 16),
                    value_end(c, block, width, j, width / 16 * 16));
    }
}

/* Slots [j0, j1) of a block of values to panels, with zeros after the width. */
static void decode_values(enum kern_kv_codec c, const uint8_t *block, int64_t width, int64_t j0,
                          int64_t j1, float *to)
{
    PLAIN_CODEC(c, decode_values_on, block, width, j0, j1, to)
}

/* Weights are read as they are. */
static void round_weights(float *s, struct view v)
{
    (void)s;
    (void)v;
}

/* Where a block may be cut between rows. */
static int64_t cut_before(int64_t slot) { return slot; }
static int64_t cut_after(int64_t slot)
{
    return slot;
}
