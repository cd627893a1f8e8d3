/*
 * super_tiles - products on tiles of codes with super-blocks of 256, but for the expansion of these.
 *
 * The dot of a super-block is an exact integer, so sub-scales go into the weights when a panel is
 * expanded, once for all rows of activations: sub-scale * value is (high << shift) + (low << low_shift),
 * two bytes, and each of these planes is multiplied in full tiles of K = 64, four a super-block.
 * One pass in f32 adds a super-block.
 */
#ifndef INGLE_KERN_X86_SUPER_TILES_H
#define INGLE_KERN_X86_SUPER_TILES_H

#include "base/num.h"
#include "kern/kernels.h"
#include "kern/x86/tile.h"

#include <immintrin.h>
#include <string.h>

#ifndef KERNEL_NAME
#define KERNEL_NAME(name) kern_##name##_amx
#endif

enum {
    ROWS = 16,             /* of activations in a tile */
    SQUARE = ROWS * KERN_PANEL,
    UNIT = 2 * ROWS,
    HIGH = UNIT * KERN_PANEL, /* where these sums of a unit stand behind its low ones */
    MOST = 256,            /* rows and ... */
    FEW = 64,              /* rows of which the activations of a stretch stay in the second cache */
    AHEAD = 8192,          /* bytes */
    PANELS = 16,           /* ... panels whose sums stay in the second cache */
    GROUP = 2,             /* panels that stand expanded in the first one */
    PLANE = 4096,          /* bytes of a super-block of a panel: 64 lines */
    TILE = 1024,
    ACT = sizeof(struct kern_act256),
};

/* What a code's planes are. */
struct form {
    size_t chunk_bytes;
    int n_parts;      /* super-blocks of a chunk */
    int n_planes;     /* 1: low alone */
    int low_shift, shift; /* of the low and of the high plane */
    bool low_signed, high_signed;
    bool negative;    /* the planes are of - sub-scale * value */
    int n_min;        /* pairs of sub-minimums: 0, 4 (of 32) or 8 (of 16) */
};

/* A super-block of a panel, expanded. */
struct planes {
    ATTR_ALIGNED(64) uint8_t low[PLANE], high[PLANE];
};
struct scales {
    ATTR_ALIGNED(64) float d[KERN_PANEL], dmin[KERN_PANEL];
    int16_t min[8][2 * KERN_PANEL]; /* pairs, row by row */
};
struct block {
    const uint8_t *chunk;
    int part;
};
/* ahead: what is to be asked for meanwhile. */
typedef void expand_fn(struct block from, struct block ahead, struct planes *e, struct scales *to);

/* Part h of 8 of n lines.  A burst of them waits for itself. */
static ATTR_INLINE void fetch(const uint8_t *at, int h, int n)
{
    for (int i = (n * h + 7) / 8; i < (n * (h + 1) + 7) / 8; i++)
        _mm_prefetch((const char *)at + 64 * i, _MM_HINT_T1);
}

/* ---- tiles ---- */

/* Rows of a product go by in units of up to two tiles, side by side in memory: all have 32 rows
 * but the last one, which is one tile where that is enough and begins earlier so that it is full. */
struct unit {
    int64_t row, n;
};
static struct unit unit_at(int64_t n, int64_t i)
{
    const int64_t left = n - i, full = left > ROWS ? UNIT : ROWS;
    return n < full ? (struct unit){0, n} : left < full ? (struct unit){n - full, full} : (struct unit){i, full};
}

/* 0, 1: sums of the first row tile, low and high; 2, 3: of the second one; 4, 5: activations;
 * 6, 7: weights. */
static void configure(struct tiles *t, int64_t n)
{
    struct tile_config c = {0};
    const int first = (int)num_min(n, ROWS), second = n > ROWS ? (int)num_min(n - ROWS, ROWS) : 1;
    for (int i = 0; i < 8; i++)
        tile_shape(&c, i, i > 5 ? 16 : i == 2 || i == 3 || i == 5 ? second : first, 64);
    tile_configure(t, &c);
}

/* Dots of a unit that are to be added to its sums. */
struct waiting {
    const struct scales *s;
    const uint8_t *a; /* activations; next row */
    int64_t stride, n_rows;
    const int32_t *dot;
    float *y;
};

static inline __m512i pair_of(const int16_t *at)
{
    int32_t v;
    memcpy(&v, at, sizeof v);
    return _mm512_set1_epi32(v);
}

/* Its scales, in registers. */
struct held {
    __m512 d, dmin;
    __m512i m0, m1, m2, m3, m4, m5, m6, m7;
};
static ATTR_INLINE struct held hold(const struct form f, const struct scales *s)
{
    struct held h = {0};
    h.d = _mm512_load_ps(s->d);
    if (f.n_min) {
        h.dmin = _mm512_load_ps(s->dmin);
        h.m0 = _mm512_load_si512(s->min[0]);
        h.m1 = _mm512_load_si512(s->min[1]);
        h.m2 = _mm512_load_si512(s->min[2]);
        h.m3 = _mm512_load_si512(s->min[3]);
    }
    if (f.n_min > 4) {
        h.m4 = _mm512_load_si512(s->min[4]);
        h.m5 = _mm512_load_si512(s->min[5]);
        h.m6 = _mm512_load_si512(s->min[6]);
        h.m7 = _mm512_load_si512(s->min[7]);
    }
    return h;
}

#define ADD_MIN(to, i) to = _mm512_dpwssd_epi32(to, h->m##i, pair_of(q + 2 * (i)));

/* Adds up to n rows. */
static ATTR_INLINE void add(const struct form f, struct waiting *v, const struct held *h, int64_t n)
{
    for (n = num_min(n, v->n_rows), v->n_rows -= n; n > 0; n--) {
        const struct kern_act256 *x = (const struct kern_act256 *)(const void *)v->a;
        const __m512 scale = _mm512_set1_ps(x->scale);
        __m512i dot = _mm512_load_si512(v->dot);
        if (f.low_shift)
            dot = _mm512_slli_epi32(dot, (unsigned)f.low_shift);
        if (f.n_planes > 1)
            dot = _mm512_add_epi32(
                dot, _mm512_slli_epi32(_mm512_load_si512(v->dot + HIGH), (unsigned)f.shift));
        const __m512 by = _mm512_mul_ps(h->d, scale), y = _mm512_load_ps(v->y);
        __m512 sum = f.negative ? _mm512_fnmadd_ps(_mm512_cvtepi32_ps(dot), by, y)
                                : _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), by, y);
        if (f.n_min) {
            __m512i min = _mm512_setzero_si512();
            const int16_t *q = f.n_min == 4 ? x->sum32 : x->sum16;
            ADD_MIN(min, 0) ADD_MIN(min, 1) ADD_MIN(min, 2) ADD_MIN(min, 3)
            if (f.n_min > 4) {
                ADD_MIN(min, 4) ADD_MIN(min, 5) ADD_MIN(min, 6) ADD_MIN(min, 7)
            }
            sum = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min), _mm512_mul_ps(h->dmin, scale), sum);
        }
        _mm512_store_ps(v->y, sum);
        v->a += v->stride;
        v->dot += KERN_PANEL;
        v->y += KERN_PANEL;
    }
}

#define DOT_LOW(t, c, a, b)              \
    {                                    \
        if (f.low_signed)                \
            TILE_DOT_S8(t, c, a, b);     \
        else                             \
            TILE_DOT_SU8(t, c, a, b);    \
    }
#define DOT_HIGH(t, c, a, b)             \
    {                                    \
        if (f.high_signed)               \
            TILE_DOT_S8(t, c, a, b);     \
        else                             \
            TILE_DOT_SU8(t, c, a, b);    \
    }

/* The sums of the unit before this one leave their tiles when the next ones need them: stores
 * that come earlier keep the multiplications waiting.  Between these the rows of the unit before
 * that are added. */
#define LEAVE(c, at)           \
    if (k == 0) {              \
        TILE_STORE(t, c, at, 64); \
        TILE_ZERO(t, c);       \
    }
#define LEAVE_SECOND(c, at)           \
    if (k == 0) {                     \
        if (two)                      \
            TILE_STORE(t, c, at, 64); \
        TILE_ZERO(t, c);              \
    }

/* One row tile times a panel.  dot: where the sums before go, two row tiles or one; v: what waits. */
static ATTR_INLINE void multiply_one(struct tiles *t, const struct form f, const struct planes *e, const uint8_t *a,
                                     int64_t stride, int32_t *dot, bool two, struct waiting v)
{
    const struct held h = hold(f, v.s);
    const int64_t part = num_div_up(v.n_rows, 4 * f.n_planes);
    (void)t;
    for (int k = 0; k < 4; k++) {
        TILE_LOAD(t, 4, a + 64 * k, stride);
        TILE_LOAD(t, 6, e->low + TILE * k, 64);
        LEAVE(0, dot)
        DOT_LOW(t, 0, 4, 6)
        add(f, &v, &h, part);
        if (f.n_planes > 1) {
            TILE_LOAD(t, 7, e->high + TILE * k, 64);
            LEAVE(1, dot + HIGH)
            DOT_HIGH(t, 1, 4, 7)
            add(f, &v, &h, part);
        }
        LEAVE_SECOND(2, dot + SQUARE)
        if (f.n_planes > 1) {
            LEAVE_SECOND(3, dot + HIGH + SQUARE)
        }
    }
}

/* Two. */
static ATTR_INLINE void multiply_two(struct tiles *t, const struct form f, const struct planes *e, const uint8_t *a,
                                     int64_t stride, int32_t *dot, bool two, struct waiting v)
{
    const struct held h = hold(f, v.s);
    const int64_t part = num_div_up(v.n_rows, 8 * f.n_planes);
    const uint8_t *b = a + ROWS * stride;
    (void)t;
    for (int k = 0; k < 4; k++) {
        TILE_LOAD(t, 4, a + 64 * k, stride);
        TILE_LOAD(t, 6, e->low + TILE * k, 64);
        LEAVE(0, dot)
        DOT_LOW(t, 0, 4, 6)
        add(f, &v, &h, part);
        TILE_LOAD(t, 5, b + 64 * k, stride);
        LEAVE_SECOND(2, dot + SQUARE)
        DOT_LOW(t, 2, 5, 6)
        add(f, &v, &h, part);
        if (f.n_planes > 1) {
            TILE_LOAD(t, 7, e->high + TILE * k, 64);
            LEAVE(1, dot + HIGH)
            DOT_HIGH(t, 1, 4, 7)
            add(f, &v, &h, part);
            LEAVE_SECOND(3, dot + HIGH + SQUARE)
            DOT_HIGH(t, 3, 5, 7)
            add(f, &v, &h, part);
        }
    }
}

/* ---- a product ---- */

static void y_write(const struct kern_matmul *m, int64_t p, int64_t i, int64_t n, const float *y)
{
    const size_t width = (size_t)kern_matmul_width(m, p) * sizeof *y;
    for (int64_t r = 0; r < n; r++)
        memcpy(m->y + (i + r) * m->y_stride + p * KERN_PANEL, y + r * KERN_PANEL, width);
}

struct work {
    ATTR_ALIGNED(64) float y[MOST / UNIT][PANELS][UNIT * KERN_PANEL];
    struct planes e[GROUP];
    struct scales s[3][GROUP]; /* of these panels, and of those whose sums are not added */
    ATTR_ALIGNED(64) int32_t dots[2][2 * HIGH]; /* low, high */
    ATTR_ALIGNED(64) uint8_t copy[MOST * ACT];
    struct waiting v, in_tiles;
    int turn;
};

/* Super-blocks b .. b + nb of rows i .. i + n: where they stand, or of listed rows copied. */
static const uint8_t *rows_at(const struct kern_matmul *m, int64_t i, int64_t n, int64_t b, int64_t nb, uint8_t *copy,
                              int64_t *stride)
{
    const size_t n_bytes = (size_t)nb * ACT;
    if (!m->row) {
        *stride = (int64_t)m->x->row_bytes;
        return m->x->q + (size_t)i * m->x->row_bytes + (size_t)b * ACT;
    }
    *stride = (int64_t)n_bytes;
    for (int64_t r = 0; r < n; r++)
        memcpy(copy + (size_t)r * n_bytes, kern_matmul_act(m, i + r) + (size_t)b * ACT, n_bytes);
    return copy;
}

/* Adds what waits, in memory and in tiles. */
static ATTR_INLINE void drain(struct tiles *t, const struct form f, struct work *w)
{
    struct held h = hold(f, w->v.s);
    struct waiting v = w->v;
    (void)t;
    add(f, &v, &h, UNIT);
    v = w->in_tiles;
    if (v.n_rows) {
        int32_t *dot = w->dots[w->turn];
        TILE_STORE(t, 0, dot, 64);
        if (f.n_planes > 1)
            TILE_STORE(t, 1, dot + HIGH, 64);
        if (v.n_rows > ROWS) {
            TILE_STORE(t, 2, dot + SQUARE, 64);
            if (f.n_planes > 1)
                TILE_STORE(t, 3, dot + HIGH + SQUARE, 64);
        }
        h = hold(f, v.s);
        add(f, &v, &h, UNIT);
    }
    w->v.n_rows = w->in_tiles.n_rows = 0;
}

/* n rows, at a, times panels [k0, k1) of the work, which stand expanded. */
static ATTR_INLINE void all_rows(struct tiles *t, const struct form f, struct work *w, const uint8_t *a, int64_t stride,
                                 int64_t n, int64_t k0, int64_t k1, const struct scales *s)
{
    for (int64_t i = 0; i < n; i += UNIT) {
        const struct unit u = unit_at(n, i);
        const uint8_t *x = a + u.row * stride;
        for (int64_t k = k0; k < k1; k++) {
            int32_t *dot = w->dots[w->turn];
            if (u.n > ROWS)
                multiply_two(t, f, &w->e[k - k0], x, stride, dot, w->in_tiles.n_rows > ROWS, w->v);
            else
                multiply_one(t, f, &w->e[k - k0], x, stride, dot, w->in_tiles.n_rows > ROWS, w->v);
            w->v = w->in_tiles;
            w->turn ^= 1;
            w->in_tiles = (struct waiting){&s[k - k0], x, stride, u.n, w->dots[w->turn], w->y[i / UNIT][k]};
        }
    }
}

/* Super-block b of a stretch. */
static ATTR_INLINE struct block block_of(const uint8_t *stretch, int64_t b, const struct form f)
{
    return (struct block){stretch + (size_t)(b / f.n_parts) * f.chunk_bytes, (int)(b % f.n_parts)};
}
/* Super-block b of panel p. */
static ATTR_INLINE struct block block_at(const struct kern_matrix *w, int64_t p, int64_t b, const struct form f)
{
    const int64_t step = w->stretch / 256;
    return block_of(kern_code_stretch(w, p, b / step), b % step, f);
}

/* Panels p .. p + np times rows i .. i + n.  Super-blocks in turn, all panels each: many rows, whose
 * activations are read once for all of them. */
static ATTR_INLINE void across(struct tiles *t, const struct kern_matmul *m, struct work *w, int64_t p, int64_t np,
                               int64_t i, int64_t n, const struct form f, expand_fn *expand)
{
    const int64_t n_blocks = m->w->in / 256;
    for (int64_t b = 0, at = 0; b < n_blocks; b++) {
        int64_t stride;
        const uint8_t *a = rows_at(m, i, n, b, 1, w->copy, &stride);
        for (int64_t k0 = 0; k0 < np; k0 += GROUP) {
            const int64_t k1 = num_min(np, k0 + GROUP);
            struct scales *s = w->s[at = (at + 1) % 3];
            for (int64_t k = k0; k < k1; k++)
                expand(block_at(m->w, p + k, b, f), block_at(m->w, p + k, num_min(b + 1, n_blocks - 1), f),
                       &w->e[k - k0], &s[k - k0]);
            all_rows(t, f, w, a, stride, n, k0, k1, s);
        }
        if (m->row)
            drain(t, f, w); /* before the copy goes */
    }
}

/* The same in the order of memory: few rows, for which the panels' bytes take most of the time and
 * come fastest as one stream. */
static ATTR_INLINE void along(struct tiles *t, const struct kern_matmul *m, struct work *w, int64_t p, int64_t np,
                              int64_t i, int64_t n, const struct form f, expand_fn *expand)
{
    const int64_t n_blocks = m->w->in / 256, step = m->w->stretch / 256;
    for (int64_t b0 = 0, at = 0; b0 < n_blocks; b0 += step) {
        const int64_t nb = num_min(step, n_blocks - b0);
        int64_t stride;
        const uint8_t *a = rows_at(m, i, n, b0, nb, w->copy, &stride);
        for (int64_t k = 0; k < np; k++) {
            const uint8_t *stretch = kern_code_stretch(m->w, p + k, b0 / step);
            for (int64_t b = 0; b < nb; b++) {
                struct scales *s = w->s[at = (at + 1) % 3];
                expand(block_of(stretch, b, f), block_of(stretch + AHEAD, b, f), &w->e[0], s);
                all_rows(t, f, w, a + b * ACT, stride, n, k, k + 1, s);
            }
        }
        if (m->row)
            drain(t, f, w);
    }
}

static ATTR_INLINE void run(const struct kern_matmul *m, int64_t p0, int64_t p1, const struct form f, expand_fn *expand)
{
    struct work w;
    struct tiles t;
    w.turn = 0;
    w.v = w.in_tiles = (struct waiting){w.s[0], NULL, 0, 0, NULL, NULL};
    for (int64_t i = 0; i < m->n; i += MOST) {
        const int64_t n = num_min(MOST, m->n - i);
        configure(&t, n);
        for (int64_t p = p0, end; p < p1; p = end) {
            end = n <= FEW ? num_min(p1, (p / KERN_BAND + 1) * KERN_BAND) : num_min(p1, p + PANELS);
            for (int64_t j = 0; j < n; j += UNIT)
                memset(w.y[j / UNIT], 0, (size_t)(end - p) * sizeof w.y[0][0]);
            if (n <= FEW)
                along(&t, m, &w, p, end - p, i, n, f, expand);
            else
                across(&t, m, &w, p, end - p, i, n, f, expand);
            drain(&t, f, &w);
            for (int64_t j = 0; j < n; j += UNIT)
                for (int64_t k = p; k < end; k++)
                    y_write(m, k, i + unit_at(n, j).row, unit_at(n, j).n, w.y[j / UNIT][k - p]);
        }
    }
    if (m->n > 0)
        tile_done(&t);
}

/* The rest is its form. */
#define KERNEL(name, ...)                                                                \
    void KERNEL_NAME(matmul_##name)(const struct kern_matmul *m, int64_t p0, int64_t p1) \
    {                                                                                    \
        const struct form f = {__VA_ARGS__};                                             \
        run(m, p0, p1, f, expand_##name);                                                \
    }

#endif
