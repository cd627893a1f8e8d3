/*
 * latent_body - scores and pooling on sixteen lanes, compiled once for each width of
 * register, with and without VPDPBUSD, as LATENT_TABLE.  Lanes are keys or dimensions: no
 * fold, and the order of plain C.
 */
#include "kern/latent.h"
#include "kern/x86/lanes_exp.h"
#include "kern/x86/row_part.h"
#include "kern/x86/latent/scores4.h"
#include <immintrin.h>
#include <math.h>

#ifdef __AVX512F__
enum { HEADS = 8 };
#else
enum { HEADS = 4 };
#endif

/* sum[p] takes in n_heads heads: q [n_heads][width] against keys [n_tiles][width][16]. */
LANES_INLINE void take(int n_heads, int n_tiles, const float *keys, int64_t width, const float *q,
                       const float *weight, struct v16 *sum)
{
    struct v16 acc[8][2];
    LANES_UNROLL
    for (int h = 0; h < n_heads; h++) {
        LANES_UNROLL
        for (int p = 0; p < n_tiles; p++)
            acc[h][p] = v_zero();
    }
    for (int64_t k = 0; k < width; k++) {
        struct v16 key[2];
        LANES_UNROLL
        for (int p = 0; p < n_tiles; p++)
            key[p] = v_load(keys + (p * width + k) * KERN_ROW_TILE);
        LANES_UNROLL
        for (int h = 0; h < n_heads; h++) {
            LANES_UNROLL
            for (int p = 0; p < n_tiles; p++)
                acc[h][p] = v_fma(v_set(q[h * width + k]), key[p], acc[h][p]);
        }
    }
    LANES_UNROLL
    for (int h = 0; h < n_heads; h++) {
        LANES_UNROLL
        for (int p = 0; p < n_tiles; p++)
            sum[p] = v_fma(v_set(weight[h]), v_max(acc[h][p], v_zero()), sum[p]);
    }
}

/* Pages are apart, and what a page holds of one layer is too short for the processor to
 * read on by itself: sixteen keys ahead for sixteen that are scored.  Into the second cache;
 * what is requested in the first one waits (Zen 4, keys of 128 bytes in 400 MB: 30 ns a key
 * alone, 26 into the first, 12 into the second; 10 in cache). */
LANES_INLINE void fetch_next(const struct kern_scores *s, int64_t j)
{
    const int64_t n = s->n_next - j < KERN_ROW_TILE ? s->n_next - j : KERN_ROW_TILE;
    const size_t bytes = kern_row_bytes(s->form.codec, s->form.width, s->form.tail);
    for (int64_t at = 0; at < n * (int64_t)bytes; at += 64)
        _mm_prefetch((const char *)s->next + (size_t)j * bytes + (size_t)at, _MM_HINT_T1);
}

/* Keys [j, j + n) in FP4. */
LANES_INLINE void score_tiles4(const struct kern_scores *s, int n_tiles, int64_t j, int64_t n,
                               float *score, float *scratch)
{
    const int64_t width = s->form.width, head = (int64_t)kern_query4_bytes(width),
                  groups = width / KERN_ROW_GROUP4;
    uint8_t *quads = (uint8_t *)scratch;
    float *scale = scratch + n_tiles * KERN_ROW_TILE * width / 4;
    const uint8_t *q = s->q;
    struct v16 sum[2];
    for (int p = 0; p < n_tiles; p++) {
        const int64_t from = p * KERN_ROW_TILE, left = n - from;
        fetch_next(s, j + from);
        kern_row_quads_avx2(&s->form,
                            (const uint8_t *)s->keys +
                                (size_t)(j + from) * kern_row_bytes(KERN_KV_FP4, width, 0),
                            left < KERN_ROW_TILE ? left : KERN_ROW_TILE, quads + from * width,
                            scale + from * groups);
        sum[p] = v_zero();
    }
    int64_t h = 0;
    for (; h + HEADS4 <= s->n_heads; h += HEADS4)
        take4(HEADS4, n_tiles, quads, scale, width, q + h * head, s->weight + h, sum);
    for (; h < s->n_heads; h++)
        take4(1, n_tiles, quads, scale, width, q + h * head, s->weight + h, sum);
    for (int p = 0; p < n_tiles; p++)
        v_store_n(score + j + p * KERN_ROW_TILE, sum[p], n - p * KERN_ROW_TILE);
}

/* Keys [j, j + n) with n <= 16 n_tiles. */
LANES_INLINE void score_tiles(const struct kern_scores *s, int n_tiles, int64_t j, int64_t n,
                              float *score, float *scratch)
{
    const int64_t width = s->form.width;
    const size_t bytes = kern_row_bytes(s->form.codec, width, s->form.tail);
    float *keys = scratch, *rows = scratch + 2 * KERN_ROW_TILE * width;
    const float *q = s->q;
    struct v16 sum[2];
    for (int p = 0; p < n_tiles; p++) {
        const int64_t from = p * KERN_ROW_TILE, left = n - from;
        fetch_next(s, j + from);
        kern_row_tile_avx2(&s->form, (const uint8_t *)s->keys + (size_t)(j + from) * bytes,
                           left < KERN_ROW_TILE ? left : KERN_ROW_TILE, rows, keys + from * width);
        sum[p] = v_zero();
    }
    int64_t h = 0;
    for (; h + HEADS <= s->n_heads; h += HEADS)
        take(HEADS, n_tiles, keys, width, q + h * width, s->weight + h, sum);
    for (; h + 4 <= s->n_heads; h += 4)
        take(4, n_tiles, keys, width, q + h * width, s->weight + h, sum);
    for (; h < s->n_heads; h++)
        take(1, n_tiles, keys, width, q + h * width, s->weight + h, sum);
    for (int p = 0; p < n_tiles; p++)
        v_store_n(score + j + p * KERN_ROW_TILE, sum[p], n - p * KERN_ROW_TILE);
}

static void scores(const struct kern_scores *s, float *score, float *scratch)
{
    int64_t j = 0;
    if (s->form.codec == KERN_KV_FP4) {
        for (; s->n - j > KERN_ROW_TILE; j += 2 * KERN_ROW_TILE)
            score_tiles4(s, 2, j, s->n - j, score, scratch);
        if (j < s->n)
            score_tiles4(s, 1, j, s->n - j, score, scratch);
        return;
    }
    for (; s->n - j > KERN_ROW_TILE; j += 2 * KERN_ROW_TILE)
        score_tiles(s, 2, j, s->n - j, score, scratch);
    if (j < s->n)
        score_tiles(s, 1, j, s->n - j, score, scratch);
}

#define EACH(d, m, width) \
    for (int64_t d = 0, m; d < (width) && (m = (width)-d < 16 ? (width)-d : 16); d += 16)

static void pool(const float *const *value, const float *const *gate, int64_t n, int64_t width,
                 float *y, float *top, float *sum)
{
    EACH(d, m, width)
    {
        v_store_n(top + d, v_set(-INFINITY), m);
        v_store_n(sum + d, v_zero(), m);
        v_store_n(y + d, v_zero(), m);
    }
    for (int64_t i = 0; i < n; i++)
        EACH(d, m, width)
        v_store_n(top + d, v_max(v_load_n(gate[i] + d, m), v_load_n(top + d, m)), m);
    for (int64_t i = 0; i < n; i++)
        EACH(d, m, width)
        {
            const struct v16 e = v_exp(v_sub(v_load_n(gate[i] + d, m), v_load_n(top + d, m)));
            v_store_n(sum + d, v_add(v_load_n(sum + d, m), e), m);
            v_store_n(y + d, v_fma(e, v_load_n(value[i] + d, m), v_load_n(y + d, m)), m);
        }
    EACH(d, m, width)
    v_store_n(y + d, v_div(v_load_n(y + d, m), v_load_n(sum + d, m)), m);
}

const struct kern_latent_table LATENT_TABLE = {.write = kern_row_write_avx2,
                                               .read = kern_row_read_avx2,
                                               .gather = kern_row_gather_avx2,
                                               .scores = scores,
                                               .pool = pool};
