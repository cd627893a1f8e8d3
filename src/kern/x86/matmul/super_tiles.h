/*
 * super_tiles - products on tiles of codes with super-blocks of 256, except for the expansion of
 * these.
 *
 * The dot of a super-block is an exact integer, so sub-scales go into the weights when a panel is
 * expanded, once for all rows of activations: sub-scale * value is (high << shift) + (low <<
 * low_shift), two bytes, and each of these planes is multiplied in full tiles of K = 64, four a
 * super-block. One pass in f32 adds a super-block.
 */
#ifndef INGLE_KERN_X86_MATMUL_SUPER_TILES_H
#define INGLE_KERN_X86_MATMUL_SUPER_TILES_H

#include "base/num.h"
#include "kern/kernels.h"
#include "kern/x86/matmul/expand512.h"
#include "kern/x86/matmul/tile.h"

#include <immintrin.h>
#include <string.h>

#ifndef KERNEL_NAME
#define KERNEL_NAME(name) kern_##name##_amx
#endif

enum {
    ROWS = 16, /* of activations in a tile */
    SQUARE = ROWS * KERN_PANEL,
    UNIT = 2 * ROWS,
    /* where the sums of a unit's high plane or second panel stand after the others */
    NEIGHBOUR = UNIT * KERN_PANEL,
    MOST = 512,   /* rows in the order of tiles, ... */
    COPIED = 256, /* others, and ... */
    FEW = 64,     /* rows of which the activations of a stretch stay in the second cache */
    AHEAD = 8192, /* bytes */
    PANELS = 32,  /* ... panels whose sums stay in the second cache */
    GROUP = 2,    /* panels that stand expanded in the first one */
    PLANE = 4096, /* bytes of a super-block of a panel: 64 lines */
    TILE = 1024,
    SHARE = 1024, /* bytes of activations that are requested with a unit */
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
/* ahead: what is to be requested meanwhile; chunk NULL: nothing. */
typedef void expand_fn(struct block from, struct block ahead, struct planes *e, struct scales *to);

/* ---- tiles ---- */

/* Rows of a product go by in units of up to two tiles, side by side in memory: all have 32 rows but
 * the last one, which is one tile where that is enough and begins earlier so that it is full. */
struct unit {
    int64_t row, n;
};
static struct unit unit_at(int64_t n, int64_t i)
{
    const int64_t left = n - i, full = left > ROWS ? UNIT : ROWS;
    return n < full      ? (struct unit){0, n}
           : left < full ? (struct unit){n - full, full}
                         : (struct unit){i, full};
}

/* 0, 1: sums of the first row tile, of two planes or of two panels; 2, 3: of the second one; 4, 5:
 * activations; 6, 7: weights. */
static void configure(struct tiles *t, int64_t n)
{
    struct tile_config c = {0};
    const int first = (int)num_min(n, ROWS), second = n > ROWS ? (int)num_min(n - ROWS, ROWS) : 1;
    for (int i = 0; i < 8; i++)
        tile_shape(&c, i, i > 5 ? 16 : i == 2 || i == 3 || i == 5 ? second : first, 64);
    tile_configure(t, &c);
}

/* A super-block of a unit of activations: as they are quantised, or in the order of tiles. */
struct rows {
    /* k 0 .. 63 of the first row of the first row tile and of the second one */
    const uint8_t *a, *b;
    int64_t stride, step;    /* bytes from row to row, and from 64 k to the next ones */
    const uint8_t *scale, *sum; /* of its first row: float; int16_t[8] or [16] of sums */
    int64_t scale_step, sum_step; /* bytes from row to row */
    const uint8_t *next;          /* what is to be requested meanwhile, or NULL */
    int n_next;              /* lines of it */
};

/* Where in k a super-block is: within a slice, or at the start of one.  Most are within: their code
 * has no other case. */
enum { SLICE = KERN_SLICE / 256 };
enum start { WITHIN, FIRST_SLICE, SECOND_SLICE, NEXT_SLICE };
static inline enum start start_of(int64_t b)
{
    return b % SLICE ? WITHIN : b == 0 ? FIRST_SLICE : b == SLICE ? SECOND_SLICE : NEXT_SLICE;
}

/* Dots of a unit and a panel that are to be added to its sums. */
struct waiting {
    const struct scales *s;
    const uint8_t *scale, *sum; /* struct rows; of the next row */
    int64_t scale_step, sum_step, n_rows;
    const int32_t *dot;
    float *y, *total;        /* sums of a slice, and of the slices before */
    enum start start;
};

static inline __m512i pair_of(const uint8_t *at)
{
    int32_t v;
    memcpy(&v, at, sizeof v);
    return _mm512_set1_epi32(v);
}
static inline __m512 float_of(const uint8_t *at)
{
    float v;
    memcpy(&v, at, sizeof v);
    return _mm512_set1_ps(v);
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

#define ADD_MIN(to, i) to = _mm512_dpwssd_epi32(to, h->m##i, pair_of(v->sum + 4 * (i)));

/* Adds a row. */
static ATTR_INLINE void add_row(const struct form f, struct waiting *v, const struct held *h,
                                enum start start)
{
    const __m512 scale = float_of(v->scale);
    __m512i dot = _mm512_load_si512(v->dot);
    if (f.low_shift)
        dot = _mm512_slli_epi32(dot, (unsigned)f.low_shift);
    if (f.n_planes > 1)
        dot = _mm512_add_epi32(
            dot, _mm512_slli_epi32(_mm512_load_si512(v->dot + NEIGHBOUR), (unsigned)f.shift));
    const __m512 by = _mm512_mul_ps(h->d, scale);
    __m512 y = _mm512_setzero_ps();
    if (start != FIRST_SLICE)
        y = _mm512_load_ps(v->y);
    if (start > FIRST_SLICE) {
        if (start == NEXT_SLICE)
            y = _mm512_add_ps(_mm512_load_ps(v->total), y);
        _mm512_store_ps(v->total, y);
        y = _mm512_setzero_ps();
    }
    __m512 sum = f.negative ? _mm512_fnmadd_ps(_mm512_cvtepi32_ps(dot), by, y)
                            : _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), by, y);
    if (f.n_min) {
        __m512i min = _mm512_setzero_si512();
        ADD_MIN(min, 0) ADD_MIN(min, 1) ADD_MIN(min, 2) ADD_MIN(min, 3)
        if (f.n_min > 4) {
            ADD_MIN(min, 4) ADD_MIN(min, 5) ADD_MIN(min, 6) ADD_MIN(min, 7)
        }
        sum = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min), _mm512_mul_ps(h->dmin, scale), sum);
        v->sum += v->sum_step;
    }
    _mm512_store_ps(v->y, sum);
    v->scale += v->scale_step;
    v->dot += KERN_PANEL;
    v->y += KERN_PANEL;
    if (start != WITHIN)
        v->total += KERN_PANEL;
}
/* Up to n rows. */
static ATTR_INLINE void add(const struct form f, struct waiting *v, const struct held *h, int64_t n)
{
    for (n = num_min(n, v->n_rows), v->n_rows -= n; n > 0; n--)
        add_row(f, v, h, v->start);
}
/* One of 16 parts of a whole unit, or of 8. */
static ATTR_INLINE void add_part(const struct form f, struct waiting *v, const struct held *h,
                                 bool eight, enum start start)
{
    add_row(f, v, h, start);
    add_row(f, v, h, start);
    if (eight) {
        add_row(f, v, h, start);
        add_row(f, v, h, start);
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
/* A panel beside has the same form. */
#define DOT_PAIR(t, c, a, b)                                                                       \
    {                                                                                              \
        if (f.n_planes > 1)                                                                        \
            DOT_HIGH(t, c, a, b)                                                                   \
        else                                                                                       \
            DOT_LOW(t, c, a, b)                                                                    \
    }

/* The sums of the unit before this one leave their tiles when the next ones need them: stores
 * that come earlier keep the multiplications waiting.  Between these the rows of the unit before
 * that are added: of one panel, or half the time of each of two. */
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

/* Weights of a unit: planes of one panel, or of one plane each two panels.  beside: their second
 * tiles. */
struct weights {
    const uint8_t *low, *neighbour;
};
static ATTR_INLINE struct weights weights_of(const struct planes *e, bool pair)
{
    return (struct weights){e->low, pair ? e[1].low : e->high};
}

/* One row tile times a panel, or two.  dot: where the sums before go, two row tiles or one; v: what
 * waits, of a panel each. */
static ATTR_INLINE void multiply_one(struct tiles *t, const struct form f, bool pair,
                                     struct weights w, const struct rows *x, int32_t *dot, bool two,
                                     const struct waiting *waiting)
{
    const bool neighbour = pair || f.n_planes > 1;
    struct waiting v = waiting[0];
    struct held h = hold(f, v.s);
    const int64_t part = num_div_up(v.n_rows, pair || !neighbour ? 4 : 8);
    (void)t;
    for (int k = 0; k < 4; k++) {
        if (pair && k == 2) {
            v = waiting[1];
            h = hold(f, v.s);
        }
        TILE_LOAD(t, 4, x->a + x->step * k, x->stride);
        TILE_LOAD(t, 6, w.low + TILE * k, 64);
        LEAVE(0, dot)
        DOT_LOW(t, 0, 4, 6)
        add(f, &v, &h, part);
        fetch(x->next, 2 * k, x->n_next);
        if (neighbour) {
            TILE_LOAD(t, 7, w.neighbour + TILE * k, 64);
            LEAVE(1, dot + NEIGHBOUR)
            DOT_PAIR(t, 1, 4, 7)
            add(f, &v, &h, part);
        }
        fetch(x->next, 2 * k + 1, x->n_next);
        LEAVE_SECOND(2, dot + SQUARE)
        if (neighbour) {
            LEAVE_SECOND(3, dot + NEIGHBOUR + SQUARE)
        }
    }
}

/* A fourth of two.  v, h: what waits and its scales. */
static ATTR_INLINE void step_two(struct tiles *t, const struct form f, bool pair, bool whole,
                                 enum start start, struct weights w, const struct rows *x,
                                 int32_t *dot, bool two, const struct waiting *waiting, int k,
                                 struct waiting *v, struct held *h)
{
    const bool neighbour = pair || f.n_planes > 1, eight = pair || !neighbour;
    const int64_t part = num_div_up(waiting[0].n_rows, eight ? 8 : 16);
    (void)t;
    if (pair && k == 2) {
        *v = waiting[1];
        *h = hold(f, v->s);
    }
#define ADD                              \
    if (whole)                           \
        add_part(f, v, h, eight, start); \
    else                                 \
        add(f, v, h, part);
    TILE_LOAD(t, 4, x->a + x->step * k, x->stride);
    TILE_LOAD(t, 6, w.low + TILE * k, 64);
    LEAVE(0, dot)
    DOT_LOW(t, 0, 4, 6)
    ADD
    fetch(x->next, 2 * k, x->n_next);
    TILE_LOAD(t, 5, x->b + x->step * k, x->stride);
    LEAVE_SECOND(2, dot + SQUARE)
    DOT_LOW(t, 2, 5, 6)
    ADD if (neighbour)
    {
        TILE_LOAD(t, 7, w.neighbour + TILE * k, 64);
        LEAVE(1, dot + NEIGHBOUR)
        DOT_PAIR(t, 1, 4, 7)
        ADD LEAVE_SECOND(3, dot + NEIGHBOUR + SQUARE) DOT_PAIR(t, 3, 5, 7) ADD
    }
    fetch(x->next, 2 * k + 1, x->n_next);
#undef ADD
}
/* Two.  whole: so many wait, too, which have this start.  hot: steps in a row, without a loop. */
static ATTR_INLINE void multiply_two(struct tiles *t, const struct form f, bool pair, bool hot,
                                     bool whole, enum start start, struct weights w,
                                     const struct rows *x, int32_t *dot, bool two,
                                     const struct waiting *waiting)
{
    struct waiting v = waiting[0];
    struct held h = hold(f, v.s);
    if (hot) {
        step_two(t, f, pair, whole, start, w, x, dot, two, waiting, 0, &v, &h);
        step_two(t, f, pair, whole, start, w, x, dot, two, waiting, 1, &v, &h);
        step_two(t, f, pair, whole, start, w, x, dot, two, waiting, 2, &v, &h);
        step_two(t, f, pair, whole, start, w, x, dot, two, waiting, 3, &v, &h);
        return;
    }
    for (int k = 0; k < 4; k++)
        step_two(t, f, pair, whole, start, w, x, dot, two, waiting, k, &v, &h);
}

/* A unit of n rows times a panel, or two, in any case: whole, or not.  Each form has one such
 * function; the case that most units of a long prompt are stands in its loop, too. */
struct unit_work {
    struct weights w;
    const struct rows *x;
    int32_t *dot;
    const struct waiting *waiting;
    int64_t n;
    bool pair, two, whole;
};
typedef void unit_fn(struct tiles *t, const struct unit_work *u);
static ATTR_INLINE void multiply_any(struct tiles *t, const struct form f, bool pair,
                                     const struct unit_work *u)
{
    const enum start start = u->waiting[0].start;
    if (u->whole && start == WITHIN)
        multiply_two(t, f, pair, false, true, WITHIN, u->w, u->x, u->dot, true, u->waiting);
    else if (u->whole)
        multiply_two(t, f, pair, false, true, start, u->w, u->x, u->dot, true, u->waiting);
    else if (u->n > ROWS)
        multiply_two(t, f, pair, false, false, WITHIN, u->w, u->x, u->dot, u->two, u->waiting);
    else
        multiply_one(t, f, pair, u->w, u->x, u->dot, u->two, u->waiting);
}

/* ---- a product ---- */

struct work {
    /* sums of a slice */
    ATTR_ALIGNED(64) float y[PANELS / GROUP][MOST / UNIT][GROUP][UNIT * KERN_PANEL];
    /* of the slices before */
    ATTR_ALIGNED(64) float total[PANELS / GROUP][MOST / UNIT][GROUP][UNIT * KERN_PANEL];
    struct planes e[GROUP];
    struct scales s[3][GROUP]; /* of these panels, and of those whose sums are not added */
    ATTR_ALIGNED(64) int32_t dots[2][2 * NEIGHBOUR];
    ATTR_ALIGNED(64) uint8_t copy[COPIED * ACT];
    /* of a panel; the second ones of one beside it, or nothing */
    struct waiting v[GROUP], in_tiles[GROUP];
    int turn;
};
static ATTR_INLINE float *sums(struct work *w, int64_t panel, int64_t unit)
{
    return w->y[panel / GROUP][unit][panel % GROUP];
}
static ATTR_INLINE float *total(struct work *w, int64_t panel, int64_t unit)
{
    return w->total[panel / GROUP][unit][panel % GROUP];
}

/* Rows i .. i + n, a unit's, of panels p .. end: row after row, so that the lines of a result
 * follow each other. */
static void y_write(const struct kern_matmul *m, struct work *w, int64_t p, int64_t end,
                    int64_t unit, int64_t i, int64_t n)
{
    for (int64_t r = 0; r < n; r++) {
        float *to = m->y + (i + r) * m->y_stride + p * KERN_PANEL;
        for (int64_t k = p; k < end; k++, to += KERN_PANEL) {
            const __mmask16 mask = (__mmask16)((1u << kern_matmul_width(m, k)) - 1);
            __m512 v = _mm512_load_ps(sums(w, k - p, unit) + r * KERN_PANEL);
            if (m->w->in > KERN_SLICE)
                v = _mm512_add_ps(_mm512_load_ps(total(w, k - p, unit) + r * KERN_PANEL), v);
            _mm512_mask_storeu_ps(to, mask, v);
        }
    }
}

/* A super-block of a product's rows i .. i + n. */
struct source {
    /* its first row's struct kern_act256, or struct kern_tiles256 of its first rows */
    const uint8_t *a;
    int64_t stride;      /* from row to row of the former; 0: the latter */
    const uint8_t *next; /* the latter: the next super-block's, or NULL */
    /* the former: lines at next that are to be requested, all units together */
    int64_t n_next;
    int64_t n;
};

/* Of unit u.  share: which part of the next super-block's is to be requested. */
static ATTR_INLINE struct rows rows_of(const struct form f, const struct source *from,
                                       const struct unit *u, int64_t share)
{
    if (from->stride) {
        const uint8_t *a = from->a + u->row * from->stride;
        const size_t sum = f.n_min == 4 ? offsetof(struct kern_act256, sum32)
                                        : offsetof(struct kern_act256, sum16);
        const int64_t first = from->n_next * u->row / from->n,
                      end = from->n_next * (u->row + u->n) / from->n;
        return (struct rows){a,
                             a + ROWS * from->stride,
                             from->stride,
                             64,
                             a + offsetof(struct kern_act256, scale),
                             a + sum,
                             from->stride,
                             from->stride,
                             from->next + 64 * first,
                             (int)(end - first)};
    }
    const int64_t at = u->row / UNIT * (int64_t)sizeof(struct kern_tiles256), part = SHARE * share;
    const struct kern_tiles256 *x = (const struct kern_tiles256 *)(const void *)(from->a + at);
    const void *sum = f.n_min == 4 ? (const void *)x->sum32 : x->sum16;
    const int64_t end = (int64_t)(f.n_min ? sizeof *x : offsetof(struct kern_tiles256, sum32));
    return (struct rows){(const uint8_t *)x->q[0],
                         (const uint8_t *)x->q[1],
                         64,
                         TILE,
                         (const uint8_t *)x->scale,
                         sum,
                         sizeof x->scale[0],
                         f.n_min == 4 ? sizeof x->sum32[0] : sizeof x->sum16[0],
                         from->next + at + part,
                         from->next && part < end ? SHARE / 64 : 0};
}

/* Rows as they are quantised: super-blocks b .. b + nb of rows i .. i + n, where they stand, or of
 * listed rows copied. */
static struct source rows_at(const struct kern_matmul *m, int64_t i, int64_t n, int64_t b,
                             int64_t nb, uint8_t *copy)
{
    const size_t n_bytes = (size_t)nb * ACT;
    if (!m->row)
        return (struct source){m->x->q + (size_t)i * m->x->row_bytes + (size_t)b * ACT,
                               (int64_t)m->x->row_bytes, NULL, 0, n};
    for (int64_t r = 0; r < n; r++)
        memcpy(copy + (size_t)r * n_bytes, kern_matmul_act(m, i + r) + (size_t)b * ACT, n_bytes);
    return (struct source){copy, (int64_t)n_bytes, NULL, 0, n};
}
/* In the order of tiles. */
static struct source tiles_at(const struct kern_matmul *m, int64_t i, int64_t n, int64_t b)
{
    const struct kern_tiles256 *x = (const struct kern_tiles256 *)(const void *)m->x->tiles;
    const int64_t n_units = num_div_up(m->x->n, UNIT);
    x += b * n_units + i / UNIT;
    return (struct source){(const uint8_t *)x, 0,
                           b + 1 < m->w->in / 256 ? (const uint8_t *)(x + n_units) : NULL, 0, n};
}

/* What a form has once: super-blocks expanded, units that are not of the hot loop, and all that
 * waits. */
struct calls {
    expand_fn *expand;
    unit_fn *any;
    void (*drain)(struct tiles *t, struct work *w);
};

/* Adds what waits, in memory and in tiles. */
static ATTR_INLINE void drain(struct tiles *t, const struct form f, struct work *w)
{
    (void)t;
    for (int j = 0; j < GROUP; j++) {
        const struct held h = hold(f, w->v[j].s);
        add(f, &w->v[j], &h, UNIT);
    }
    if (w->in_tiles[0].n_rows) {
        int32_t *dot = w->dots[w->turn];
        const bool neighbour = f.n_planes > 1 || w->in_tiles[1].n_rows;
        TILE_STORE(t, 0, dot, 64);
        if (neighbour)
            TILE_STORE(t, 1, dot + NEIGHBOUR, 64);
        if (w->in_tiles[0].n_rows > ROWS) {
            TILE_STORE(t, 2, dot + SQUARE, 64);
            if (neighbour)
                TILE_STORE(t, 3, dot + NEIGHBOUR + SQUARE, 64);
        }
        for (int j = 0; j < GROUP; j++) {
            const struct held h = hold(f, w->in_tiles[j].s);
            add(f, &w->in_tiles[j], &h, UNIT);
        }
    }
    for (int j = 0; j < GROUP; j++)
        w->v[j].n_rows = w->in_tiles[j].n_rows = 0;
}

/* A unit times panel k of the work, and the one beside it, which stand expanded at e. */
static ATTR_INLINE void unit_times(struct tiles *t, const struct form f, const struct calls c,
                                   bool pair, bool hot, struct work *w, const struct planes *e,
                                   const struct rows *x, int64_t n, int64_t unit, int64_t k,
                                   const struct scales *s, enum start start)
{
    int32_t *dot = w->dots[w->turn];
    const bool two = w->in_tiles[0].n_rows > ROWS;
    const bool whole = n == UNIT && w->v[0].n_rows == UNIT && two;
    if (hot && LIKELY(whole && w->v[0].start == WITHIN)) {
        multiply_two(t, f, pair, true, true, WITHIN, weights_of(e, pair), x, dot, true, w->v);
    } else {
        const struct unit_work u = {weights_of(e, pair), x, dot, w->v, n, pair, two, whole};
        c.any(t, &u);
    }
    w->turn ^= 1;
    for (int j = 0; j < (pair ? 2 : 1); j++) {
        w->v[j] = w->in_tiles[j];
        w->in_tiles[j] = (struct waiting){&s[j],
                                          x->scale,
                                          x->sum,
                                          x->scale_step,
                                          x->sum_step,
                                          n,
                                          w->dots[w->turn] + j * NEIGHBOUR,
                                          sums(w, k + j, unit),
                                          total(w, k + j, unit),
                                          start};
    }
}

/* All rows times super-block b of panels [k0, k1) of the work, which stand expanded. */
static ATTR_INLINE void all_rows(struct tiles *t, const struct form f, const struct calls c,
                                 bool pair, bool hot, struct work *w, const struct source *from,
                                 int64_t b, int64_t k0, int64_t k1, const struct scales *s)
{
    for (int64_t i = 0; i < from->n; i += UNIT) {
        const struct unit u = from->stride ? unit_at(from->n, i)
                                           : (struct unit){i, from->n - i > ROWS ? UNIT : ROWS};
        for (int64_t k = k0; k < k1; k += pair ? 2 : 1) {
            const struct rows x = rows_of(f, from, &u, pair ? k / 2 : k);
            unit_times(t, f, c, pair, hot, w, &w->e[k - k0], &x, u.n, i / UNIT, k, &s[k - k0],
                       start_of(b));
        }
    }
}

/* Super-block b of a stretch. */
static ATTR_INLINE struct block block_of(const uint8_t *stretch, int64_t b, const struct form f)
{
    return (struct block){stretch + (size_t)(b / f.n_parts) * f.chunk_bytes, (int)(b % f.n_parts)};
}
/* Super-block b of panel p. */
static ATTR_INLINE struct block block_at(const struct kern_matrix *w, int64_t p, int64_t b,
                                         const struct form f)
{
    const int64_t step = w->stretch / 256;
    return block_of(kern_code_stretch(w, p, b / step), b % step, f);
}

/* Panels p .. p + np times rows i .. i + n.  Super-blocks in turn, all panels each: many rows,
 * whose activations are read once for all of them.  Codes of one plane take two panels side by
 * side; of an odd number the last one has what the one before left beside it, whose sums nobody
 * reads. */
static ATTR_INLINE void across(struct tiles *t, const struct kern_matmul *m, struct work *w,
                               int64_t p, int64_t np, int64_t i, int64_t n, const struct form f,
                               const struct calls c)
{
    const int64_t n_blocks = m->w->in / 256;
    for (int64_t b = 0, at = 0; b < n_blocks; b++) {
        const struct source from =
            m->x->tiles && !m->row ? tiles_at(m, i, n, b) : rows_at(m, i, n, b, 1, w->copy);
        for (int64_t k0 = 0; k0 < np; k0 += GROUP) {
            const int64_t k1 = num_min(np, k0 + GROUP);
            struct scales *s = w->s[at = (at + 1) % 3];
            for (int64_t k = k0; k < k1; k++)
                c.expand(block_at(m->w, p + k, b, f),
                       block_at(m->w, p + k, num_min(b + 1, n_blocks - 1), f), &w->e[k - k0],
                       &s[k - k0]);
            all_rows(t, f, c, f.n_planes == 1, true, w, &from, b, k0, k1, s);
        }
        if (m->row)
            c.drain(t, w); /* before the copy goes */
    }
}

/* The same in the order of memory: few rows, for which the panels' bytes take most of the time and
 * come fastest as one stream, asked for while others are multiplied. */
static ATTR_INLINE void along(struct tiles *t, const struct kern_matmul *m, struct work *w,
                              int64_t p, int64_t np, int64_t i, int64_t n, const struct form f,
                              const struct calls c)
{
    const int64_t n_blocks = m->w->in / 256, step = m->w->stretch / 256;
    for (int64_t b0 = 0, at = 0; b0 < n_blocks; b0 += step) {
        const int64_t nb = num_min(step, n_blocks - b0);
        struct source from = rows_at(m, i, n, b0, nb, w->copy);
        from.n_next = num_div_up((int64_t)f.chunk_bytes, 64 * f.n_parts);
        const uint8_t *const a = from.a;
        for (int64_t k = 0; k < np; k++) {
            const uint8_t *stretch = kern_code_stretch(m->w, p + k, b0 / step);
            for (int64_t b = 0; b < nb; b++) {
                struct scales *s = w->s[at = (at + 1) % 3];
                c.expand(block_of(stretch, b, f), (struct block){NULL, 0}, &w->e[0], s);
                from.a = a + b * ACT;
                from.next = stretch + AHEAD + b * (int64_t)f.chunk_bytes / f.n_parts;
                all_rows(t, f, c, false, false, w, &from, b0 + b, k, k + 1, s);
            }
        }
        if (m->row)
            c.drain(t, w);
    }
}

static ATTR_INLINE void run(const struct kern_matmul *m, int64_t p0, int64_t p1,
                            const struct form f, const struct calls c)
{
    struct work w;
    struct tiles t;
    const bool tiled = m->x->tiles && !m->row;
    const int64_t most = tiled ? MOST : COPIED;
    w.turn = 0;
    memset(w.e, 0, sizeof w.e);
    memset(w.s, 0, sizeof w.s);
    for (int j = 0; j < GROUP; j++)
        w.v[j] = w.in_tiles[j] = (struct waiting){.s = w.s[0]};
    for (int64_t i = 0; i < m->n; i += most) {
        const int64_t n = num_min(most, m->n - i);
        const bool few = n <= FEW && !tiled;
        configure(&t, tiled ? UNIT : n);
        for (int64_t p = p0, end; p < p1; p = end) {
            end = few ? num_min(p1, (p / KERN_BAND + 1) * KERN_BAND) : num_min(p1, p + PANELS);
            if (few)
                along(&t, m, &w, p, end - p, i, n, f, c);
            else
                across(&t, m, &w, p, end - p, i, n, f, c);
            c.drain(&t, &w);
            for (int64_t j = 0; j < n; j += UNIT) {
                const struct unit u =
                    tiled ? (struct unit){j, num_min(UNIT, n - j)} : unit_at(n, j);
                y_write(m, &w, p, end, j / UNIT, i + u.row, u.n);
            }
        }
    }
    if (m->n > 0)
        tile_done(&t);
}

/* Rows [r0, r1) of activations in the order of tiles. */
static ATTR_UNUSED void tiles_write(const struct kern_act *a, int64_t r0, int64_t r1)
{
    const int64_t n_units = num_div_up(a->n, UNIT), n_blocks = a->k / 256;
    struct kern_tiles256 *to = (struct kern_tiles256 *)(void *)a->tiles;
    const struct kern_act256 none = {0};
    for (int64_t i = r0; i < num_div_up(r1, UNIT) * UNIT; i++)
        for (int64_t b = 0; b < n_blocks; b++) {
            const struct kern_act256 *x =
                i < r1
                    ? (const struct kern_act256 *)(const void *)(a->q + (size_t)i * a->row_bytes) +
                          b
                    : &none;
            struct kern_tiles256 *t = to + b * n_units + i / UNIT;
            const int64_t r = i % UNIT;
            for (int k = 0; k < 4; k++)
                memcpy(t->q[r / ROWS][k][r % ROWS], x->q + 64 * k, 64);
            t->scale[r] = x->scale;
            memcpy(t->sum32[r], x->sum32, sizeof t->sum32[0]);
            memcpy(t->sum16[r], x->sum16, sizeof t->sum16[0]);
        }
}

/* Codes of one form except for the bytes of a chunk have one body, which calls what expands a
 * super-block of a panel, 4,096 codes: a body each took the compiler minutes.  So does what is not
 * the hot loop: it is there once for each form. */
#define CALLS(name)                                                                                \
    static ATTR_NOINLINE void any_##name(struct tiles *t, const struct unit_work *u)               \
    {                                                                                              \
        if (form_##name.n_planes == 1 && u->pair)                                                  \
            multiply_any(t, form_##name, true, u);                                                 \
        else                                                                                       \
            multiply_any(t, form_##name, false, u);                                                \
    }                                                                                              \
    static ATTR_NOINLINE void drain_##name(struct tiles *t, struct work *w)                        \
    {                                                                                              \
        drain(t, form_##name, w);                                                                  \
    }
#define FORM(name, ...)                                                                            \
    static const struct form form_##name = {__VA_ARGS__};                                          \
    CALLS(name)                                                                                    \
    static ATTR_NOINLINE void run_##name(const struct kern_matmul *m, int64_t p0, int64_t p1,      \
                                         size_t bytes, expand_fn *expand)                          \
    {                                                                                              \
        const struct form f = {.chunk_bytes = bytes, __VA_ARGS__};                                 \
        run(m, p0, p1, f, (struct calls){expand, any_##name, drain_##name});                       \
    }
#define KERNEL_OF(name, form, bytes)                                                     \
    void KERNEL_NAME(matmul_##name)(const struct kern_matmul *m, int64_t p0, int64_t p1) \
    {                                                                                    \
        run_##form(m, p0, p1, bytes, expand_##name);                                     \
    }
/* One that is alone: the rest is its form. */
#define KERNEL(name, ...)                                                                \
    static const struct form form_##name = {__VA_ARGS__};                                \
    CALLS(name)                                                                          \
    void KERNEL_NAME(matmul_##name)(const struct kern_matmul *m, int64_t p0, int64_t p1) \
    {                                                                                    \
        run(m, p0, p1, form_##name,                                                      \
            (struct calls){expand_##name, any_##name, drain_##name});                    \
    }

#endif
