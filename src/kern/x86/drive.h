/*
 * drive - how the vector kernels walk over a product; static functions for each of them.
 *
 * A tile computes one panel times some rows of activations over a range of blocks
 * and keeps its sums in y.  The walk decides the order: for few rows some panels at once,
 * a stretch of each in turn, because memory is fastest with a few streams; for many rows
 * one panel's stretch stays in the first cache while all rows pass by.
 */
#ifndef INGLE_KERN_X86_DRIVE_H
#define INGLE_KERN_X86_DRIVE_H

#include "kern/code.h"

#include "base/num.h"
#include <string.h>

/* Adds blocks [b0, b1) of panel w times C rows of activations x[c] to y + c * stride
 * (b0 == 0: starts from zero); b0 begins a chunk. */
typedef void drive_tile_fn(const uint8_t *w, int64_t b0, int64_t b1, const uint8_t *const *x,
                           float *y, int64_t stride);

enum { DRIVE_MAX = 8 }; /* rows of the widest tile */

struct drive {
    struct { drive_tile_fn *fn; int32_t c; } tile[6]; /* widest first, to c = 1 */
    int32_t block;      /* k of a block: 1, 32 or 256 */
    int32_t few, many;  /* blocks of a stretch: whole chunks */
    int32_t panels;     /* in flight, few rows */
};

static inline void drive_tile(const struct kern_matmul *m, drive_tile_fn *fn, int c, int64_t p,
                              int64_t b0, int64_t b1, int64_t i)
{
    const int width = kern_matmul_width(m, p);
    const uint8_t *x[DRIVE_MAX];
    for (int j = 0; j < c; j++)
        x[j] = m->w->act == KERN_ACT_F32
                   ? (const uint8_t *)(m->x->x + kern_matmul_row(m, i + j) * m->x->stride)
                   : kern_matmul_act(m, i + j);
    float *y = m->y + i * m->y_stride + p * KERN_PANEL;
    if (LIKELY(width == KERN_PANEL)) {
        fn(kern_matmul_panel(m, p), b0, b1, x, y, m->y_stride);
        return;
    }
    float part[DRIVE_MAX * KERN_PANEL];
    memset(part, 0, sizeof part);
    for (int j = 0; j < c && b0; j++)
        memcpy(part + j * KERN_PANEL, y + j * m->y_stride, (size_t)width * sizeof *y);
    fn(kern_matmul_panel(m, p), b0, b1, x, part, KERN_PANEL);
    for (int j = 0; j < c; j++)
        memcpy(y + j * m->y_stride, part + j * KERN_PANEL, (size_t)width * sizeof *y);
}

/* All rows over one stretch of one panel. */
static inline void drive_stretch(const struct kern_matmul *m, const struct drive *d, int64_t p,
                                 int64_t b0, int64_t b1)
{
    int64_t i = 0;
    for (int t = 0; i < m->n; t++)
        for (const int c = d->tile[t].c; m->n - i >= c; i += c)
            drive_tile(m, d->tile[t].fn, c, p, b0, b1, i);
}

static inline void drive_run(const struct kern_matmul *m, const struct drive *d, int64_t p0,
                             int64_t p1)
{
    const bool few = m->n <= DRIVE_MAX;
    const int64_t n_blocks = m->w->in / d->block, step = few ? d->few : d->many;
    const int64_t n_panels = few ? d->panels : 1;
    for (int64_t p = p0; p < p1; p += n_panels) {
        const int64_t end = num_min(p + n_panels, p1);
        for (int64_t b = 0; b < n_blocks; b += step)
            for (int64_t q = p; q < end; q++)
                drive_stretch(m, d, q, b, num_min(b + step, n_blocks));
    }
}

/* Macros over the columns of a tile: F(c, a). */
#define EACH_1(F, a) F(0, a)
#define EACH_2(F, a) EACH_1(F, a) F(1, a)
#define EACH_4(F, a) EACH_2(F, a) F(2, a) F(3, a)
#define EACH_6(F, a) EACH_4(F, a) F(4, a) F(5, a)
#define EACH_8(F, a)                                                             \
    EACH_4(F, a) F(4, a) F(5, a) F(6, a) \
    F(7, a)

#endif
