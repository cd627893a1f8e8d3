/*
 * drive - how the vector kernels walk over a product; static functions for each of them.
 *
 * A tile computes one panel times some rows of activations over a slice of k; slices are added
 * here.
 */
#ifndef INGLE_KERN_X86_MATMUL_DRIVE_H
#define INGLE_KERN_X86_MATMUL_DRIVE_H

#include "kern/x86/matmul/stored.h"

#include "base/num.h"
#include <immintrin.h>
#include <string.h>

/* y + c * stride: the sums over n blocks, of which the first begins a chunk at w, times C rows of
 * activations (x[c]: where row c's first block is). */
typedef void drive_tile_fn(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,
                           int64_t stride);

/* Rows of the widest tile, number of tiles, rows at a time. */
enum { DRIVE_MAX = 8, DRIVE_TILES = 6, DRIVE_ROWS = 120 };

struct drive {
    struct { drive_tile_fn *fn; int32_t c; } tile[DRIVE_TILES]; /* widest first, to c = 1 */
    int32_t block;      /* k of a block: 1, 32 or 256 */
    int32_t spread;       /* drive_run_spread(): blocks of a slice, ... */
    int32_t spread_bytes; /* ... and bytes of each when spread */
};

/* Where block b of the activations for output row i begins. */
static inline const uint8_t *drive_x(const struct kern_matmul *m, const struct drive *d,
                                     int64_t i, int64_t b)
{
    const int64_t row = kern_matmul_row(m, i);
    switch (m->x->kind) {
    case KERN_ACT_Q32:
        return m->x->q + (size_t)row * m->x->row_bytes + (size_t)b * sizeof(struct kern_act32);
    case KERN_ACT_Q256:
        return m->x->q + (size_t)row * m->x->row_bytes + (size_t)b * sizeof(struct kern_act256);
    case KERN_ACT_BF16:
        return m->x->q + (size_t)row * m->x->row_bytes + (size_t)(b * d->block) * sizeof(uint16_t);
    default:
        return (const uint8_t *)(m->x->x + row * m->x->stride + b * d->block);
    }
}

/* A row's sums over a slice of k join those of the slices before, if there are such. */
static inline void drive_add(float *y, const float *slice, int width, bool first)
{
    if (UNLIKELY(width < KERN_PANEL)) {
        for (int r = 0; r < width; r++)
            y[r] = first ? slice[r] : y[r] + slice[r];
        return;
    }
    for (int r = 0; r < KERN_PANEL; r += 8) {
        const __m256 v = _mm256_load_ps(slice + r);
        _mm256_storeu_ps(y + r, first ? v : _mm256_add_ps(_mm256_loadu_ps(y + r), v));
    }
}

/* A slice of k, n blocks at w, of panel p times the c rows x, which give output rows from i on. */
static inline void drive_tile_at(const struct kern_matmul *m, drive_tile_fn *fn, int c,
                                 const uint8_t *w, const uint8_t *const *x, int64_t p, bool first,
                                 int64_t n, int64_t i)
{
    const int width = kern_matmul_width(m, p);
    float *y = m->y + i * m->y_stride + p * KERN_PANEL;
    if (first && LIKELY(width == KERN_PANEL)) {
        fn(w, n, x, y, m->y_stride);
        return;
    }
    ATTR_ALIGNED(64) float slice[DRIVE_MAX * KERN_PANEL];
    for (int j = 0; j < c && !first; j++)
        _mm_prefetch((const char *)(y + j * m->y_stride), _MM_HINT_T0);
    fn(w, n, x, slice, KERN_PANEL);
    for (int j = 0; j < c; j++)
        drive_add(y + j * m->y_stride, slice + j * KERN_PANEL, width, first);
}

/* A slice, n blocks from b on, at w, of panel p, times c rows from i on. */
static inline void drive_tile(const struct kern_matmul *m, const struct drive *d, drive_tile_fn *fn,
                              int c, const uint8_t *w, int64_t p, int64_t b, int64_t n, int64_t i)
{
    const uint8_t *x[DRIVE_MAX];
    for (int j = 0; j < c; j++)
        x[j] = drive_x(m, d, i + j, b);
    drive_tile_at(m, fn, c, w, x, p, b == 0, n, i);
}

/* The tile for the next of n rows.  Where there is one for each number of rows they are
 * shared out evenly (8 as 4 + 4, not 6 + 2: each tile unpacks the weights anew). */
static inline int drive_next(const struct drive *d, int64_t n)
{
    const int64_t most = d->tile[0].c, even = n > most ? num_div_up(n, num_div_up(n, most)) : n;
    int t = (int)(most - even);
    if (t < DRIVE_TILES && d->tile[t].c == even)
        return t;
    for (t = 0; d->tile[t].c > n;)
        t++;
    return t;
}

/* Output rows [i, end) over a slice of one panel, n blocks from b on. */
static inline void drive_slice(const struct kern_matmul *m, const struct drive *d, const uint8_t *w,
                               int64_t p, int64_t b, int64_t n, int64_t i, int64_t end)
{
    while (i < end) {
        const int t = drive_next(d, end - i);
        drive_tile(m, d, d->tile[t].fn, d->tile[t].c, w, p, b, n, i);
        i += d->tile[t].c;
    }
}

/* A stretch of a panel stays in the first cache while DRIVE_ROWS rows pass by, which stay in the
 * second one for the panels of a band.  Stretches come in the
 * order of memory: one long stream, and the activations of a stretch stay in the first cache
 * for the panels of a band (whole panels in turn, which flush them: 0.8 times the speed at
 * k = 5376, Zen 4). */
static inline void drive_run(const struct kern_matmul *m, const struct drive *d, int64_t p0,
                             int64_t p1)
{
    const int64_t n_blocks = m->w->in / d->block, step = m->w->stretch / d->block,
                  slice = kern_matrix_slice(m->w) / d->block;
    const size_t slice_bytes = m->w->stretch_bytes * (size_t)slice / (size_t)step;
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, (p0 / KERN_BAND + 1) * KERN_BAND);
        for (int64_t b0 = 0, s = 0; b0 < n_blocks; b0 += step, s++)
            for (int64_t i = 0; i < m->n; i += DRIVE_ROWS)
                for (int64_t p = p0; p < end; p++) {
                    const uint8_t *w = kern_code_stretch(m->w, p, s);
                    for (int64_t b = b0; b < num_min(n_blocks, b0 + step);
                         b += slice, w += slice_bytes)
                        drive_slice(m, d, w, p, b, num_min(slice, n_blocks - b), i,
                                    num_min(i + DRIVE_ROWS, m->n));
                }
    }
}

/* Spreads block b of a panel to bytes that a tile reads. */
typedef void drive_spread_fn(const struct kern_matrix *w, const uint8_t *panel, int64_t b,
                             uint8_t *to);
enum { DRIVE_SCRATCH = 4 * STORED_BYTES };

/* The same where tiles do not read panels: the blocks of a slice are spread first, once for all
 * rows. */
static inline void drive_run_spread(const struct kern_matmul *m, const struct drive *d,
                                    drive_spread_fn *spread, int64_t p0, int64_t p1)
{
    ATTR_ALIGNED(64) uint8_t scratch[DRIVE_SCRATCH];
    const int64_t n_blocks = m->w->in / d->block, step = m->w->stretch / d->block;
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, (p0 / KERN_BAND + 1) * KERN_BAND);
        for (int64_t b0 = 0; b0 < n_blocks; b0 += step)
            for (int64_t p = p0; p < end; p++)
                for (int64_t b = b0; b < num_min(n_blocks, b0 + step); b += d->spread) {
                    const uint8_t *panel = kern_code_panel(m->w, p, b * d->block);
                    const int64_t n = num_min(d->spread, num_min(n_blocks, b0 + step) - b);
                    for (int64_t i = 0; i < n; i++)
                        spread(m->w, panel, b + i, scratch + i * d->spread_bytes);
                    drive_slice(m, d, scratch, p, b, n, 0, m->n);
                }
    }
}

#endif
