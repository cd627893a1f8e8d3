/*
 * super_amx_body - products on tiles of codes with super-blocks of 256; included once for real
 * tiles and once for emulated ones, which defines KERNEL_NAME(name) to be theirs.
 *
 * The dot of a super-block is an exact integer, so sub-scales go into the weights when a panel is
 * expanded, once for all rows of activations: sub-scale * value is (high << shift) + low, two
 * bytes, and each of these planes is multiplied in full tiles of K = 64, four a super-block.
 * One pass in f32 adds a super-block.
 */
#ifndef INGLE_KERN_X86_SUPER_AMX_BODY_H
#define INGLE_KERN_X86_SUPER_AMX_BODY_H

#include "base/num.h"
#include "kern/kernels.h"
#include "kern/x86/quads512.h"
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
    int n_planes;     /* 1: low alone, signed */
    int shift;        /* of the high plane; low is unsigned */
    bool high_signed;
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
/* ahead: the chunk that is to be asked for meanwhile. */
typedef void expand_fn(const uint8_t *chunk, const uint8_t *ahead, struct planes *e, struct scales *to);

static inline __m512i words(int v) { return _mm512_set1_epi16((short)v); }
static inline __m128i bytes16(const void *at) { return _mm_loadu_si128((const __m128i *)at); }
/* 16 bytes, one a lane. */
static inline __m512i lanes(const uint8_t *at) { return _mm512_cvtepu8_epi32(bytes16(at)); }
static inline __m512i twice(__m512i v) { return _mm512_or_si512(v, _mm512_slli_epi32(v, 16)); }
static inline void put_halves(float *to, const uint8_t *at)
{
    _mm512_store_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at)));
}

/* ---- expansion ---- */

static ATTR_INLINE __m512i quad_nl4(const uint8_t *g, int j) { return quad_listed(quant_nl4, quad_4(g, j)); }

/* A code times a small number is a byte, so that two fit a multiplication of 16 bits: here the
 * low and the high bits of a sub-scale of 6. */
struct split {
    __m512i low, high;
};
static ATTR_INLINE struct split split_of(const uint8_t *at, int n_low)
{
    const __m512i sub = twice(lanes(at));
    return (struct split){_mm512_and_si512(sub, words((1 << n_low) - 1)),
                          _mm512_srl_epi16(sub, _mm_cvtsi32_si128(n_low))};
}
static ATTR_INLINE void put_split(struct planes *e, int at, __m512i v, struct split s)
{
    _mm512_store_si512(e->low + 64 * at, _mm512_mullo_epi16(v, s.low));
    _mm512_store_si512(e->high + 64 * at, _mm512_mullo_epi16(v, s.high));
}
static ATTR_INLINE void put_times(struct planes *e, int at, __m512i v, __m512i sub)
{
    _mm512_store_si512(e->low + 64 * at, _mm512_mullo_epi16(v, sub));
}

/* Signed sub-scales of 8 bits times the codes less a bias: words of the even and of the odd codes,
 * whose bytes then change places. */
struct whole {
    __m512i even, odd, bias;
};
static ATTR_INLINE struct whole whole_of(const uint8_t *at, int bias)
{
    const __m512i even = twice(lanes(at));
    const __m512i sub = _mm512_and_si512(_mm512_cvtepi8_epi32(bytes16(at)), _mm512_set1_epi32(0xFFFF));
    return (struct whole){even, _mm512_slli_epi16(even, 8), _mm512_mullo_epi16(twice(sub), words(bias))};
}
static ATTR_INLINE void put_whole(struct planes *e, int at, __m512i v, struct whole s)
{
    const __mmask64 is_odd = 0xAAAAAAAAAAAAAAAA;
    const __m512i other = _mm512_broadcast_i32x4(
        _mm_set_epi8(14, 15, 12, 13, 10, 11, 8, 9, 6, 7, 4, 5, 2, 3, 0, 1));
    const __m512i even = _mm512_sub_epi16(_mm512_maddubs_epi16(v, s.even), s.bias);
    const __m512i odd = _mm512_sub_epi16(_mm512_maddubs_epi16(v, s.odd), s.bias);
    _mm512_store_si512(e->low + 64 * at, _mm512_mask_shuffle_epi8(even, is_odd, odd, other));
    _mm512_store_si512(e->high + 64 * at, _mm512_mask_shuffle_epi8(odd, ~is_odd, even, other));
}

/* sub * (4 - code), of 6 and 3 bits, is a byte, and |sub| times the code or 7 less the code one
 * without a sign. */
struct small {
    __m512i size, off, flip;
};
static ATTR_INLINE struct small small_of(const uint8_t *at)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i four = _mm512_mullo_epi32(lane, _mm512_set1_epi32(0x01010101)); /* bytes of a lane */
    const __m512i sub = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes16(at)), four);
    const __mmask64 minus = _mm512_movepi8_mask(sub);
    const __m512i size = _mm512_abs_epi8(sub), three = _mm512_add_epi8(_mm512_add_epi8(size, size), size);
    return (struct small){_mm512_and_si512(size, words(255)), _mm512_mask_add_epi8(three, minus, three, size),
                          _mm512_maskz_mov_epi8(~minus, quad_bytes(7))};
}
static ATTR_INLINE void put_small(struct planes *e, int at, __m512i v, struct small s)
{
    const __m512i product = _mm512_mullo_epi16(_mm512_xor_si512(v, s.flip), s.size);
    _mm512_store_si512(e->low + 64 * at, _mm512_sub_epi8(product, s.off));
}
static ATTR_INLINE void put_less(struct planes *e, int at, __m512i v, __m512i bias)
{
    _mm512_store_si512(e->low + 64 * at, _mm512_sub_epi8(v, bias));
}

/* Minimums of two groups, side by side. */
static inline void put_min(struct scales *to, int pair, __m512i first, __m512i second)
{
    _mm512_store_si512(to->min[pair], _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
}

/* Part h of 8 of n lines.  A burst of them waits for itself. */
static ATTR_INLINE void fetch(const uint8_t *at, int h, int n)
{
    for (int i = (n * h + 7) / 8; i < (n * (h + 1) + 7) / 8; i++)
        _mm_prefetch((const char *)at + 64 * i, _MM_HINT_T1);
}

#define PUT(j, put, quad, sub) put(e, 8 * h + (j), quad(g, j), sub);
#define FIRST_HALF(...) \
    PUT(0, __VA_ARGS__) PUT(1, __VA_ARGS__) PUT(2, __VA_ARGS__) PUT(3, __VA_ARGS__)
#define LAST_HALF(...) \
    PUT(4, __VA_ARGS__) PUT(5, __VA_ARGS__) PUT(6, __VA_ARGS__) PUT(7, __VA_ARGS__)

/* GROUP_ does group h, at g; scales, at s, follow all of them, d behind n_sub bytes. */
#define EXPAND(name, bits, behind, n_sub, has_min, GROUP_)                                           \
    static ATTR_INLINE void expand_##name(const uint8_t *chunk, const uint8_t *ahead, struct planes *e, \
                                          struct scales *to)                                         \
    {                                                                                                \
        const uint8_t *s = chunk + KERN_SCALES_AT(bits, 8);                                          \
        for (int h = 0; h < 8; h++) {                                                                \
            const uint8_t *g = chunk + KERN_GROUP_BYTES(bits) * h;                                   \
            fetch(ahead, h, KERN_CHUNK_BYTES(bits, KERN_SCALES_##behind, 8, 0) / 64);                \
            GROUP_                                                                                   \
        }                                                                                            \
        put_halves(to->d, s + (n_sub));                                                              \
        if (has_min)                                                                                 \
            put_halves(to->dmin, s + (n_sub) + 32);                                                  \
    }

#define SPLIT(quad, n_low)                                       \
    const struct split a = split_of(s + 16 * h, n_low);          \
    FIRST_HALF(put_split, quad, a) LAST_HALF(put_split, quad, a) \
    if (h % 2)                                                   \
        put_min(to, h / 2, lanes(s + 112 + 16 * h), lanes(s + 128 + 16 * h));
EXPAND(q4_k, 4, SUB8_MIN, 256, true, SPLIT(quad_4, 4))
EXPAND(q5_k, 5, SUB8_MIN, 256, true, SPLIT(quad_5, 3))
#define WHOLE(quad, bias, sub_a, sub_b)                                                  \
    const struct whole a = whole_of(s + (sub_a), bias), b = whole_of(s + (sub_b), bias); \
    FIRST_HALF(put_whole, quad, a) LAST_HALF(put_whole, quad, b)
EXPAND(q6_k, 6, SUB16, 256, false, WHOLE(quad_6, 32, 32 * h, 32 * h + 16))
EXPAND(iq4_xs, 4, SUB8, 128, false, WHOLE(quad_nl4, 128, 16 * h, 16 * h))
#define SMALL(quad)                                                                \
    const struct small a = small_of(s + 32 * h), b = small_of(s + 32 * h + 16);    \
    FIRST_HALF(put_small, quad, a) LAST_HALF(put_small, quad, b)
EXPAND(q3_k, 3, SUB16, 256, false, SMALL(quad_3))
#define NIBBLES(quad)                                                                               \
    const __m512i a = lanes(s + 32 * h), b = lanes(s + 32 * h + 16), low = _mm512_set1_epi32(15);   \
    const __m512i sub_a = twice(_mm512_and_si512(a, low)), sub_b = twice(_mm512_and_si512(b, low)); \
    FIRST_HALF(put_times, quad, sub_a) LAST_HALF(put_times, quad, sub_b)                            \
    put_min(to, h, _mm512_srli_epi32(a, 4), _mm512_srli_epi32(b, 4));
EXPAND(q2_k, 2, SUB16_NIB, 256, true, NIBBLES(quad_2))
#define LESS(quad, bias) FIRST_HALF(put_less, quad, quad_bytes(bias)) LAST_HALF(put_less, quad, quad_bytes(bias))
EXPAND(tq2_0, 2, NONE, 0, false, LESS(quad_2, 1))

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
        if (f.n_planes == 1)             \
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

/* Super-block b of panel p. */
static inline const uint8_t *chunk_at(const struct kern_matrix *w, int64_t p, int64_t b, size_t chunk_bytes)
{
    const int64_t step = w->stretch / 256;
    return kern_code_stretch(w, p, b / step) + (size_t)(b % step) * chunk_bytes;
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
                expand(chunk_at(m->w, p + k, b, f.chunk_bytes),
                       chunk_at(m->w, p + k, num_min(b + 1, n_blocks - 1), f.chunk_bytes), &w->e[k - k0], &s[k - k0]);
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
            const uint8_t *chunk = kern_code_stretch(m->w, p + k, b0 / step);
            for (int64_t b = 0; b < nb; b++, chunk += f.chunk_bytes) {
                struct scales *s = w->s[at = (at + 1) % 3];
                expand(chunk, chunk + AHEAD, &w->e[0], s);
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

#define KERNEL(name, code_bits, scales, n_planes, shift, high_signed, negative, n_min)                     \
    void KERNEL_NAME(matmul_##name)(const struct kern_matmul *m, int64_t p0, int64_t p1)                   \
    {                                                                                                      \
        const struct form f = {KERN_CHUNK_BYTES(code_bits, KERN_SCALES_##scales, 8, 0), n_planes,          \
                               shift, high_signed, negative, n_min};                                       \
        run(m, p0, p1, f, expand_##name);                                                                  \
    }
KERNEL(q4_k, 4, SUB8_MIN, 2, 4, false, false, 4)
KERNEL(q5_k, 5, SUB8_MIN, 2, 3, false, false, 4)
KERNEL(q6_k, 6, SUB16, 2, 8, true, false, 0)
KERNEL(iq4_xs, 4, SUB8, 2, 8, true, false, 0)
KERNEL(q3_k, 3, SUB16, 1, 0, false, true, 0)
KERNEL(q2_k, 2, SUB16_NIB, 1, 0, false, false, 8)
KERNEL(tq2_0, 2, NONE, 1, 0, false, false, 0)

#endif
