/*
 * spread - products for many rows on x86, without the tiles of AMX.
 *
 * Two panels are spread to bytes, 512 k at a time, once for all rows that pass by, so that
 * unpacking costs nothing.  Tiles take these two panels times up to six rows of activations;
 * spread512.h has those of AVX-512, spread256.h those of 256-bit vectors.  Sums of a slice, and the
 * sums of slices, stand side by side in memory of the kernel's own until all k are through.
 *
 * A code says how it is spread and which tiles it has; spread_run() walks.
 */
#ifndef INGLE_KERN_X86_MATMUL_SPREAD_H
#define INGLE_KERN_X86_MATMUL_SPREAD_H

#include "base/num.h"
#include "kern/code.h"

#include <immintrin.h>
#include <string.h>

enum {
    SPREAD_K = 512,
    SPREAD_ROWS = 6,    /* of the widest tile */
    SPREAD_LEAST = 3,   /* of the narrowest; fewer rows are filled up with the last one */
    /* rows that pass by, whose activations for 512 k stay in the second cache */
    SPREAD_MOST = 120,
    SPREAD_PANELS = 32, /* whose sums do */
    SPREAD_PAIR = 2 * KERN_PANEL,
};

/* Bytes of SPREAD_K of a panel, packed. */
enum {
#define X(id, act, bits, bias, table, n, scales, shift)                                            \
    SPREAD_BYTES_##id = SPREAD_K / 32 / (n)*KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n, shift),
    KERN_CODE_LIST(X)
#undef X
};

/* A panel, spread: bytes are unsigned, line j of a group is quad j, as in kern/code.h. */
struct spread32 { /* 32 k; bytes are values + 128 */
    uint8_t w[8][64];
    float d[KERN_PANEL], m[KERN_PANEL]; /* m: minimums, or d of the second half */
};
struct spread256 { /* 256 k */
    uint8_t w[64][64];
    int32_t sub[16][KERN_PANEL]; /* sub-scales of groups of 16, or of 32 in the first eight */
    /* pairs that take the bytes' bias off: times sums of q they are added to the dot */
    int16_t less[8][SPREAD_PAIR];
    int16_t min[8][SPREAD_PAIR];  /* pairs of sub-minimums */
    float d[KERN_PANEL], dmin[KERN_PANEL];
};
static_assert(sizeof(struct spread32) % 64 == 0 && sizeof(struct spread256) % 64 == 0,
              "whole lines");

/* Spreads n blocks (of 32 or 256 k) from packed ones, which begin a chunk. */
typedef void spread_fn(const uint8_t *packed, int64_t n, void *to);
/* Adds n blocks of two panels times some rows of activations to their sums over a slice.  The last
 * tile of a slice adds these to the sums of the slices before. */
struct spread_call {
    const void *w0, *w1;           /* spread */
    int64_t n;
    const uint8_t *const *x;       /* where the first block of each row is */
    const uint8_t *const *next;    /* rows that come next: they are requested meanwhile, */
    /* as are packed weights from here on, `step` bytes a quad: lines that */
    const uint8_t *prefetch;
    size_t step;                   /* are requested at once would wait for each other */
    float *y;                      /* [rows][32], 64-byte aligned */
    bool first;                    /* y is not read: sums begin with zeros */
    /* as y, of the slices before, if the slice ends here and is not the first one; else NULL */
    float *total;
};
typedef void spread_tile_fn(const struct spread_call *v);

/* Spreads n blocks of a row of activations, too, for tiles that do not read them as they are. */
typedef void spread_act_fn(const uint8_t *act, int64_t n, uint8_t *to);

struct spread_code {
    spread_fn *spread;
    spread_tile_fn *tile[SPREAD_ROWS - SPREAD_LEAST + 1]; /* of 3, 4, 5, 6 rows */
    int64_t block;      /* 32 or 256 k */
    size_t block_bytes; /* spread */
    size_t part_bytes;  /* `k` of a panel, packed */
    int64_t k, most;    /* of a panel at a time, rows that pass by: at most SPREAD_K, SPREAD_MOST */
    spread_act_fn *act; /* or NULL */
    size_t act_bytes;   /* of a row and `k`; rows are side by side */
};

/* For tiles of so many rows whose sums stand in y. */
static ATTR_INLINE void spread_end(const struct spread_call *v, int rows)
{
    for (int i = 0; v->total && i < rows * SPREAD_PAIR; i += 8)
        _mm256_store_ps(v->total + i,
                        _mm256_add_ps(_mm256_load_ps(v->total + i), _mm256_load_ps(v->y + i)));
}

/* Into the second cache. */
static ATTR_INLINE void spread_prefetch(const uint8_t *at)
{
    __asm__ volatile("prefetcht1 %0" : : "m"(*at));
}

/* Asks for line n of the rows that come next. */
static ATTR_INLINE void spread_next(const int rows, const struct spread_call *v, int64_t n)
{
#pragma GCC unroll 8
    for (int c = 0; c < rows; c++)
        _mm_prefetch((const char *)v->next[c] + 64 * n, _MM_HINT_T0);
}

/* ---- the walk ---- */

struct spread_work {
    /* pairs, as many rows each as pass by */
    ATTR_ALIGNED(64) float y[SPREAD_PANELS / 2 * SPREAD_MOST][SPREAD_PAIR];
    ATTR_ALIGNED(64) float slice[SPREAD_MOST][SPREAD_PAIR];                 /* of a pair */
    ATTR_ALIGNED(64) uint8_t w[2][SPREAD_K / 256 * sizeof(struct spread256)];
    const uint8_t *x[SPREAD_MOST];
    int32_t n_tiles, rows[SPREAD_MOST / SPREAD_ROWS]; /* that pass by, cut into tiles */
    uint8_t *act; /* spread activations of a stretch, [parts][rows][act_bytes], or NULL */
};
static_assert(sizeof(struct spread32) * (SPREAD_K / 32) <=
                  SPREAD_K / 256 * sizeof(struct spread256),
              "either fits");

static inline size_t spread_act_bytes(const struct kern_matmul *m)
{
    return m->x->kind == KERN_ACT_Q32 ? sizeof(struct kern_act32) : sizeof(struct kern_act256);
}

/* Into tiles of as equal widths as may be: a division for each would take a twentieth of its
 * time. */
static void spread_cut(struct spread_work *s, int64_t n_rows)
{
    s->n_tiles = (int32_t)num_div_up(n_rows, SPREAD_ROWS);
    for (int32_t i = 0, t = 0; t < s->n_tiles; i += s->rows[t++])
        s->rows[t] = (int32_t)num_max(SPREAD_LEAST, (n_rows - i) / (s->n_tiles - t));
}

/* Two panels, spread, n blocks of k, times n_rows rows whose activations begin at x.  first, total:
 * as above.  Meanwhile n_prefetch bytes are requested. */
static void spread_rows(const struct spread_code *c, struct spread_work *s, int64_t n,
                        int64_t n_rows, float (*y)[SPREAD_PAIR], bool first,
                        float (*total)[SPREAD_PAIR], const uint8_t *prefetch, size_t n_prefetch)
{
    const int64_t n_quads = s->n_tiles * n * c->block / 4;
    struct spread_call v = {.w0 = s->w[0],
                            .w1 = s->w[1],
                            .n = n,
                            .x = s->x,
                            .prefetch = prefetch,
                            .first = first,
                            .step = (uint32_t)n_prefetch / (uint32_t)n_quads + 1};
    for (int64_t i = 0, t = 0; t < s->n_tiles; t++) {
        const int64_t rows = s->rows[t];
        v.x = s->x + i;
        v.next = s->x + (i + rows < n_rows ? i + rows : 0);
        v.y = y[i];
        v.total = total ? total[i] : NULL;
        c->tile[rows - SPREAD_LEAST](&v);
        v.prefetch += v.step * (size_t)(n * c->block / 4);
        i += rows;
    }
}

/* Where row r, at most SPREAD_MOST of n_rows, has its activations for part `part`, which begins at
 * k. */
static ATTR_INLINE void spread_acts(const struct kern_matmul *m, const struct spread_code *c,
                                    struct spread_work *s, int64_t i, int64_t n, int64_t n_rows,
                                    int64_t k, int64_t part)
{
    for (int64_t r = 0; r < n_rows; r++)
        s->x[r] = c->act ? s->act + (size_t)(part * n_rows + r) * c->act_bytes
                         : kern_matmul_act(m, i + num_min(r, n - 1)) +
                               (size_t)(k / c->block) * spread_act_bytes(m);
}
/* Spreads those of a stretch. */
static void spread_all_acts(const struct kern_matmul *m, const struct spread_code *c,
                            struct spread_work *s, int64_t i, int64_t n, int64_t n_rows, int64_t k0,
                            int64_t end)
{
    for (int64_t k = k0, part = 0; k < end; k += c->k, part++)
        for (int64_t r = 0; r < n_rows; r++)
            c->act(kern_matmul_act(m, i + num_min(r, n - 1)) +
                       (size_t)(k / c->block) * spread_act_bytes(m),
                   num_min(c->k, end - k) / c->block,
                   s->act + (size_t)(part * n_rows + r) * c->act_bytes);
}

/* Panels p0 .. p1, at most SPREAD_PANELS, times rows i .. i + n, at most SPREAD_MOST.  Panels of a
 * band and a stretch are side by side in memory, so that pairs are requested as a whole. */
static void spread_block(const struct kern_matmul *m, const struct spread_code *c,
                         struct spread_work *s, int64_t p0, int64_t p1, int64_t i, int64_t n)
{
    const int64_t n_rows = num_max(n, SPREAD_LEAST), step = m->w->stretch, in = m->w->in;
    spread_cut(s, n_rows);
    for (int64_t k0 = 0; k0 < in; k0 += step) {
        const int64_t end = num_min(in, k0 + step);
        if (c->act)
            spread_all_acts(m, c, s, i, n, n_rows, k0, end);
        for (int64_t p = p0; p < p1; p += 2) {
            const int64_t second = num_min(p + 1, p1 - 1),
                          next_k = p + 2 < p1 || k0 + step >= in ? k0 : k0 + step;
            const uint8_t *const w0 = kern_code_stretch(m->w, p, k0 / step), *const w1 =
                                                                                 kern_code_stretch(
                                                                                     m->w, second,
                                                                                     k0 / step);
            const uint8_t *prefetch =
                kern_code_stretch(m->w, p + 2 < p1 ? p + 2 : p0, next_k / step);
            float(*const y)[SPREAD_PAIR] = s->y + (p - p0) / 2 * n_rows;
            for (int64_t k = k0, part = 0; k < end; k += c->k, part++) {
                const int64_t n_blocks = num_min(c->k, in - k) / c->block;
                spread_acts(m, c, s, i, n, n_rows, k, part);
                c->spread(w0 + (size_t)part * c->part_bytes, n_blocks, s->w[0]);
                c->spread(w1 + (size_t)part * c->part_bytes, n_blocks, s->w[1]);
                spread_rows(c, s, n_blocks, n_rows, k0 ? s->slice : y, k == k0,
                            k0 && k + c->k >= end ? y : NULL, prefetch, 2 * c->part_bytes);
                prefetch += 2 * c->part_bytes;
            }
        }
    }
    for (int64_t r = 0; r < n; r++)
        for (int64_t p = p0; p < p1; p++) {
            const float *const from = s->y[(p - p0) / 2 * n_rows + r] + (p - p0) % 2 * KERN_PANEL;
            float *const to = m->y + (i + r) * m->y_stride + p * KERN_PANEL;
            const int width = kern_matmul_width(m, p);
            if (LIKELY(width == KERN_PANEL))
                memcpy(to, from, KERN_PANEL * sizeof *to);
            else
                memcpy(to, from, (size_t)width * sizeof *to);
        }
}

/* acts: memory of c->most times c->act_bytes for each part of a stretch, or NULL. */
static void spread_run(const struct kern_matmul *m, const struct spread_code *c, uint8_t *acts,
                       int64_t p0, int64_t p1)
{
    struct spread_work s;
    s.act = acts;
    for (; p0 < p1; p0 += SPREAD_PANELS)
        for (int64_t i = 0; i < m->n; i += c->most)
            spread_block(m, c, &s, p0, num_min(p1, p0 + SPREAD_PANELS), i,
                         num_min(c->most, m->n - i));
}

/* Tiles of all widths of a function with these arguments; how a code is spread; its kernel. */
#define SPREAD_TILES(name, tile, ...)                                                              \
    static void name##_3(const struct spread_call *v) { tile(3, __VA_ARGS__, v); }                 \
    static void name##_4(const struct spread_call *v) { tile(4, __VA_ARGS__, v); }                 \
    static void name##_5(const struct spread_call *v) { tile(5, __VA_ARGS__, v); }                 \
    static void name##_6(const struct spread_call *v) { tile(6, __VA_ARGS__, v); }
#define SPREAD_KERNEL(function, spread, tile, block, type, n_packed)                               \
    void function(const struct kern_matmul *m, int64_t p0, int64_t p1)                             \
    {                                                                                              \
        static const struct spread_code c = {spread,                                               \
                                             {tile##_3, tile##_4, tile##_5, tile##_6},             \
                                             block,                                                \
                                             sizeof(type),                                         \
                                             n_packed,                                             \
                                             SPREAD_K,                                             \
                                             SPREAD_MOST,                                          \
                                             NULL,                                                 \
                                             0};                                                   \
        spread_run(m, &c, NULL, p0, p1);                                                           \
    }

#endif
