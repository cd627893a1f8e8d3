/*
 * matmul_amx_body - products on tiles; included once for real ones and once for emulated ones,
 * which defines KERNEL_NAME(name) to be theirs.
 *
 * Integer products are exact in K = 32 tiles: a group's dots of 16 rows of activations with 16
 * rows of weights are one tile, and a pass in f32 adds it scaled, as everywhere else.  Codes
 * become signed bytes once for all rows of activations.  bf16 products are those of
 * --numerics fast ("fast-tiles"), for any number of rows, so that a row's bits are its own.
 */
#ifndef INGLE_KERN_X86_MATMUL_AMX_BODY_H
#define INGLE_KERN_X86_MATMUL_AMX_BODY_H

#include "base/num.h"
#include "kern/kernels.h"
#include "kern/x86/tile.h"

#include <immintrin.h>

#ifndef KERNEL_NAME
#define KERNEL_NAME(name) kern_##name##_amx
#endif

enum {
    ROWS = 16,              /* of activations in a tile */
    GROUPS = 32,            /* of 32 k in a stretch of integer codes */
    CHUNK = 4,              /* of them that are expanded, multiplied and scaled together */
    STRIPS = 8,             /* of rows that are gathered at a time, */
    PANELS = 32,            /* and how many panels they meet */
    BLOCKS = 8,             /* of 32 k in 256 k of floats */
    WEIGHT_BYTES = 512,     /* of a group: 8 lines */
    PAIR_BYTES = 1024,      /* of a block: 16 lines */
    ACT_STRIDE = BLOCKS * 64 + 64, /* of gathered rows; an odd number of lines */
};

/* Activation rows i .. i + n of a product from byte `from` on: where they stand, or copied to
 * `copy`, with zeros for rows that are not there. */
static const uint8_t *rows_at(const struct kern_matmul *m, int64_t i, int64_t n, size_t from,
                              size_t n_bytes, uint8_t *copy, int64_t *stride)
{
    if (!m->row && n == ROWS) {
        *stride = (int64_t)m->x->row_bytes;
        return m->x->q + (size_t)i * m->x->row_bytes + from;
    }
    *stride = ACT_STRIDE;
    for (int64_t r = 0; r < ROWS; r++) {
        if (r < n)
            memcpy(copy + r * ACT_STRIDE, kern_matmul_act(m, i + r) + from, n_bytes);
        else
            memset(copy + r * ACT_STRIDE, 0, n_bytes);
    }
    return copy;
}

/* Results of rows i .. i + n of panel p to and from a square of 16. */
static ATTR_INLINE __mmask16 columns(const struct kern_matmul *m, int64_t p)
{
    return (__mmask16)((1u << kern_matmul_width(m, p)) - 1);
}
static ATTR_INLINE void y_read(const struct kern_matmul *m, int64_t p, int64_t i, int64_t n, bool first, float *y)
{
    const __mmask16 mask = columns(m, p);
    const float *at = m->y + i * m->y_stride + p * KERN_PANEL;
    for (int64_t r = 0; r < ROWS; r++)
        _mm512_store_ps(y + r * KERN_PANEL, r < n && !first ? _mm512_maskz_loadu_ps(mask, at + r * m->y_stride)
                                                            : _mm512_setzero_ps());
}
static ATTR_INLINE void y_write(const struct kern_matmul *m, int64_t p, int64_t i, int64_t n, const float *y)
{
    const __mmask16 mask = columns(m, p);
    float *at = m->y + i * m->y_stride + p * KERN_PANEL;
    for (int64_t r = 0; r < n; r++)
        _mm512_mask_storeu_ps(at + r * m->y_stride, mask, _mm512_load_ps(y + r * KERN_PANEL));
}

/* ---- integer codes, groups of 32 ---- */

/* A group of a panel as signed bytes, and its scales. */
struct codes {
    ATTR_ALIGNED(64) int8_t w[WEIGHT_BYTES];
};
struct factors {
    ATTR_ALIGNED(64) float d[KERN_PANEL];
    float m[KERN_PANEL];
};
/* Does group g of a stretch and fetches what will be needed `ahead` bytes further on. */
typedef void expand_fn(const uint8_t *stretch, int64_t g, ptrdiff_t ahead, struct codes *to, struct factors *f);

static inline __m512i bytes(int v) { return _mm512_set1_epi8((char)v); }
static inline __m512i quad_8(const uint8_t *g, int j) { return _mm512_loadu_si512(g + 64 * j); }
static inline __m512i quad_4(const uint8_t *g, int j)
{
    const __m512i v = _mm512_loadu_si512(g + 64 * (j % 4));
    return _mm512_and_si512(j < 4 ? v : _mm512_srli_epi16(v, 4), bytes(15));
}
static inline __m512i quad_5(const uint8_t *g, int j)
{
    const __m512i bit = _mm512_and_si512(
        _mm512_srl_epi16(_mm512_loadu_si512(g + 256), _mm_cvtsi32_si128(j)), bytes(1));
    return _mm512_or_si512(quad_4(g, j), _mm512_slli_epi16(bit, 4));
}
static inline __m512i listed(const int8_t *list, __m512i code)
{
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)list)), code);
}
static inline __m512 halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
/* 2^(e - 128), NaN for 255. */
static inline __m512 half_e8m0(const uint8_t *at)
{
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __m512i v = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    v = _mm512_mask_mov_epi32(v, _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), small);
    v = _mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)),
                              _mm512_set1_epi32(0x7FC00000));
    return _mm512_castsi512_ps(v);
}

#define EXPAND(name, bits, n_group, scales, value, d_of, m_of)                                   \
    static ATTR_INLINE void expand_##name(const uint8_t *stretch, int64_t g, ptrdiff_t ahead,    \
                                          struct codes *to, struct factors *f)               \
    {                                                                                            \
        const uint8_t *chunk =                                                                   \
            stretch + g / (n_group) * KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, 0);  \
        const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * (g % (n_group));                 \
        const uint8_t *scale = chunk + KERN_SCALES_AT(bits, n_group) +                           \
                               g % (n_group) * KERN_SCALE_BYTES(KERN_SCALES_##scales);           \
        for (int i = 0; i < (bits); i++)                                                         \
            _mm_prefetch((const char *)group + ahead + 64 * i, _MM_HINT_T0);                     \
        _mm_prefetch((const char *)scale + ahead, _MM_HINT_T0);                                  \
        const __m512i w0 = value(0), w1 = value(1), w2 = value(2), w3 = value(3);                \
        const __m512i w4 = value(4), w5 = value(5), w6 = value(6), w7 = value(7);                \
        _mm512_store_si512(to->w, w0);                                                            \
        _mm512_store_si512(to->w + 64, w1);                                                       \
        _mm512_store_si512(to->w + 128, w2);                                                      \
        _mm512_store_si512(to->w + 192, w3);                                                      \
        _mm512_store_si512(to->w + 256, w4);                                                      \
        _mm512_store_si512(to->w + 320, w5);                                                      \
        _mm512_store_si512(to->w + 384, w6);                                                      \
        _mm512_store_si512(to->w + 448, w7);                                                      \
        _mm512_store_ps(f->d, d_of(scale));                                                  \
        _mm512_store_ps(f->m, m_of(scale + 32));                                             \
    }
#define NONE(at) _mm512_setzero_ps()
#define Q4_0(j) _mm512_sub_epi8(quad_4(group, j), bytes(8))
#define Q4_1(j) quad_4(group, j)
#define Q5_0(j) _mm512_sub_epi8(quad_5(group, j), bytes(16))
#define Q5_1(j) quad_5(group, j)
#define Q8_0(j) _mm512_xor_si512(quad_8(group, j), bytes(128))
#define IQ4_NL(j) listed(quant_nl4, quad_4(group, j))
#define MXFP4(j) listed(quant_e2m1_doubled, quad_4(group, j))
EXPAND(q4_0, 4, 2, D, Q4_0, halves, NONE)
EXPAND(q4_1, 4, 1, DM, Q4_1, halves, halves)
EXPAND(q5_0, 5, 2, D, Q5_0, halves, NONE)
EXPAND(q5_1, 5, 1, DM, Q5_1, halves, halves)
EXPAND(q8_0, 8, 2, D, Q8_0, halves, NONE)
EXPAND(iq4_nl, 4, 2, D, IQ4_NL, halves, NONE)
EXPAND(mxfp4, 4, 4, E, MXFP4, half_e8m0, NONE)

/* Up to 16 rows of activations over a chunk of groups. */
struct rows {
    ATTR_ALIGNED(64) int8_t q[CHUNK][ROWS][32];
    float scale[ROWS][CHUNK], sum[ROWS][CHUNK];
};
/* Rows i .. i + n, the last of them again up to n_rows, n_groups groups from g0 on. */
static void gather(const struct kern_matmul *m, int64_t i, int64_t n, int64_t n_rows, int64_t g0,
                   int64_t n_groups, struct rows *to)
{
    for (int64_t r = 0; r < n_rows; r++) {
        const struct kern_act32 *x =
            (const struct kern_act32 *)(const void *)kern_matmul_act(m, i + num_min(r, n - 1)) + g0;
        const struct kern_act32 *next =
            (const struct kern_act32 *)(const void *)kern_matmul_act(m, i + num_min(r + 2, n - 1)) + g0;
        for (int64_t g = 0; g < n_groups; g++) {
            _mm_prefetch((const char *)(next + g), _MM_HINT_T0);
            struct rows *at = &to[g / CHUNK];
            const __m256i q = _mm256_load_si256((const __m256i *)(const void *)x[g].q);
            _mm256_store_si256((__m256i *)(void *)at->q[g % CHUNK][r], q);
            at->scale[r][g % CHUNK] = x[g].scale;
            at->sum[r][g % CHUNK] = x[g].sum;
        }
    }
}

/*
 * A product of 16 rows with two panels goes a chunk of groups at a time: the tiles of a chunk
 * are multiplied while those of the chunk before are scaled, a few rows after each tile, because
 * one takes the tile unit and the other the vector unit, and an order of all tiles before all
 * rows leaves one of them idle.
 *
 * Tiles are not cleared between the groups of a chunk: they begin as MAGIC, which as float is
 * 1.5 * 2^23, and each sum is then also the bits of a float, whose difference from the one
 * before is the dot as float, exactly: four dots are below 2^22.  So no integer has to be
 * converted, for which there is but one port next to tiles (Sapphire Rapids: no multiplication,
 * no conversion on the second port while tiles are in use, but sums).
 */
enum { MAGIC = 0x4B400000, SQUARE = ROWS * KERN_PANEL };
static_assert(CHUNK * 32 * 127 * 128 < 1 << 22, "sums stay where floats are 1 apart");

/* n groups of two panels whose tiles are there; 0: nothing. */
struct chunk {
    int64_t n;
    const float *dots;       /* [2][CHUNK][ROWS][16] */
    const struct factors *f;  /* [2][CHUNK] */
    const struct rows *x;
    float *y;                /* [2][STRIPS][ROWS][16], of one strip */
};
struct work {
    struct tiles t;
    int64_t n_rows;          /* of a tile */
    struct chunk before;
    ATTR_ALIGNED(64) int32_t magic[SQUARE];
    ATTR_ALIGNED(64) float dots[2][2 * CHUNK * SQUARE];
    struct codes w[2][KERN_BAND][CHUNK];     /* by turns: those in use and the next, ... */
    struct factors f[3][KERN_BAND][CHUNK];   /* ... and those of what is to be scaled */
    ATTR_ALIGNED(64) float y[PANELS][STRIPS][SQUARE];
    struct rows x[STRIPS][GROUPS / CHUNK];
};

/* A row of c, of which n groups count. */
#define ADD(i)                                                                                      \
    if ((i) < n) {                                                                                  \
        const __m512 next = _mm512_load_ps(dots + (i) * SQUARE);                                    \
        y = _mm512_fmadd_ps(_mm512_sub_ps(next, s), _mm512_mul_ps(d[i], _mm512_set1_ps(scale[i])), y); \
        if (has_min)                                                                                \
            y = _mm512_fmadd_ps(_mm512_set1_ps(sum[i]),                                             \
                                _mm512_mul_ps(_mm512_load_ps(f[i].m), _mm512_set1_ps(scale[i])), y); \
        s = next;                                                                                   \
    }
static ATTR_INLINE void scale_row(const float *dots, const __m512 *d, const struct factors *f, const float *scale,
                                  const float *sum, float *at, int64_t n, bool has_min)
{
    __m512 y = _mm512_load_ps(at), s = _mm512_castsi512_ps(_mm512_set1_epi32(MAGIC));
    (void)f;
    (void)sum;
    ADD(0) ADD(1) ADD(2) ADD(3)
    _mm512_store_ps(at, y);
}
/* Rows r .. r + 4, of `end` that there are, of panel j. */
static ATTR_INLINE void scale_four(const struct chunk *c, int j, int64_t r, int64_t end, int64_t n, bool has_min)
{
    const struct factors *f = c->f + j * CHUNK;
    const __m512 d[CHUNK] = {_mm512_load_ps(f[0].d), _mm512_load_ps(f[1].d), _mm512_load_ps(f[2].d),
                             _mm512_load_ps(f[3].d)};
    const float *dots = c->dots + j * CHUNK * SQUARE + r * KERN_PANEL;
    float *y = c->y + j * STRIPS * SQUARE + r * KERN_PANEL;
#define ROW(i)                                                                                     \
    if (r + (i) < end)                                                                             \
        scale_row(dots + (i) * KERN_PANEL, d, f, c->x->scale[r + (i)], c->x->sum[r + (i)],         \
                  y + (i) * KERN_PANEL, n, has_min);
    ROW(0) ROW(1) ROW(2) ROW(3)
}

/* All of what is left to be scaled. */
static void scale_rest(struct work *w, bool has_min)
{
    for (int j = 0; w->before.n && j < 2; j++)
        for (int64_t r = 0; r < w->n_rows; r += 4)
            scale_four(&w->before, j, r, w->n_rows, w->before.n, has_min);
    w->before.n = 0;
}

/* Where a chunk of a band of panels is. */
struct place {
    int64_t g, p;                   /* group, from the first of the matrix, and panel */
    int64_t n, n_panels;            /* how many of them */
    const uint8_t *stretch[KERN_BAND];
    ptrdiff_t ahead;                /* to the chunk after it */
};

/* Tiles of n groups of rows x with two panels, and an even share of what is before, of `rows`
 * rows, after each; next: and a group of panels j, j + 1 of the next chunk.  Tiles 0, 1: sums;
 * 2, 3: activations; 4 to 7: weights. */
#define STEP(i, sum, last, a, b)                                                                   \
    if ((i) / 2 < n) {                                                                             \
        if ((i) / 2 == 0)                                                                          \
            TILE_LOAD(&w->t, sum, magic, 64);                                                      \
        if ((i) % 2 == 0)                                                                          \
            TILE_LOAD(&w->t, a, x->q[(i) / 2], 32);                                                \
        TILE_LOAD(&w->t, b, v[(i) % 2 * CHUNK + (i) / 2].w, 64);                                   \
        if (expand)                                                                                \
            expand(next->stretch[j + (i) / 4], next->g % GROUPS + (i) % 4, next->ahead,            \
                   &to[(i) / 4 * CHUNK + (i) % 4], &to_f[(i) / 4 * CHUNK + (i) % 4]);              \
        if (rows > (i) % 4 * 4)                                                                    \
            scale_four(&c, (i) / 4, (i) % 4 * 4, rows, CHUNK, has_min);                            \
        TILE_DOT_S8(&w->t, sum, a, b);                                                             \
        if ((i) > 0)                                                                               \
            TILE_STORE(&w->t, last, dots + ((i) % 2 ? 0 : CHUNK * SQUARE) + ((i) - 1) / 2 * SQUARE, 64); \
    }
static ATTR_INLINE void multiply(struct work *w, const struct rows *x, const struct codes *v, const struct factors *f,
                                 float *y, int64_t n, int64_t rows, bool has_min, expand_fn *expand,
                                 const struct place *next, int64_t j, struct codes *to, struct factors *to_f)
{
    const struct chunk c = w->before;
    const int32_t *const magic = w->magic;
    float *const dots = w->dots[c.dots == w->dots[0]];
    (void)next;
    (void)j;
    (void)to;
    (void)to_f;
    STEP(0, 0, 1, 2, 4)
    STEP(1, 1, 0, 2, 5)
    STEP(2, 0, 1, 3, 6)
    STEP(3, 1, 0, 3, 7)
    STEP(4, 0, 1, 2, 4)
    STEP(5, 1, 0, 2, 5)
    STEP(6, 0, 1, 3, 6)
    STEP(7, 1, 0, 3, 7)
    TILE_STORE(&w->t, 1, dots + (CHUNK + n - 1) * SQUARE, 64);
    w->before = (struct chunk){n, dots, f, x, y};
}

static void configure(struct tiles *t, int64_t rows, bool bf16)
{
    struct tile_config c = {0};
    for (int i = 0; i < 8; i++) {
        if (bf16 ? i < 4 : i < 2)
            tile_shape(&c, i, (int)rows, 64); /* sums */
        else if (bf16 ? i == 4 : i < 4)
            tile_shape(&c, i, (int)rows, bf16 ? 64 : 32); /* activations */
        else
            tile_shape(&c, i, bf16 ? 16 : 8, 64); /* weights */
    }
    tile_configure(t, &c);
}

static void find(const struct kern_matmul *m, struct place *at)
{
    for (int64_t j = 0; j < at->n_panels; j++)
        at->stretch[j] = kern_code_stretch(m->w, at->p + j, at->g / GROUPS);
}
/* The chunk after `at` of panels [p0, p1): of the stretch, of the next band, of the next stretch. */
static bool advance(const struct kern_matmul *m, struct place *at, int64_t p0, int64_t p1)
{
    const int64_t n_groups = m->w->in / 32, end = num_min(n_groups, (at->g / GROUPS + 1) * GROUPS);
    at->g += CHUNK;
    if (at->g >= end) {
        at->p += KERN_BAND;
        at->g = at->p < p1 ? (end - 1) / GROUPS * GROUPS : end;
        at->p = at->p < p1 ? at->p : p0;
        if (at->g >= n_groups)
            return false;
        at->n_panels = num_min(KERN_BAND, p1 - at->p);
        find(m, at);
    }
    at->n = num_min(CHUNK, n_groups - at->g);
    return true;
}
/* How far `to` is from `from`, in bytes. */
static ptrdiff_t distance(const struct kern_matmul *m, const struct place *from, const struct place *to)
{
    const size_t group = m->w->stretch_bytes / GROUPS;
    const uint8_t *a = from->stretch[0] + (size_t)(from->g % GROUPS) * group;
    const uint8_t *b = to->stretch[0] + (size_t)(to->g % GROUPS) * group;
    return b - a;
}

/* The chunk `at`, as number i of them, times the gathered rows, onto y; next is expanded. */
static ATTR_INLINE void run_chunk(struct work *w, const struct place *at, const struct place *next, int64_t i,
                                  int64_t n_strips, float (*y)[STRIPS][SQUARE], expand_fn *expand, bool has_min)
{
    struct codes(*const v)[CHUNK] = w->w[i % 2], (*const to)[CHUNK] = w->w[(i + 1) % 2];
    struct factors(*const f)[CHUNK] = w->f[i % 3], (*const to_f)[CHUNK] = w->f[(i + 1) % 3];
    bool mixed = w->n_rows == ROWS && at->n == CHUNK && at->n_panels == KERN_BAND && next &&
                 next->n == CHUNK && next->n_panels == KERN_BAND && w->before.n;
    if (!mixed && next)
        for (int64_t j = 0; j < next->n_panels; j++)
            for (int64_t g = 0; g < next->n; g++)
                expand(next->stretch[j], next->g % GROUPS + g, next->ahead, &to[j][g], &to_f[j][g]);
    for (int64_t s = 0; s < n_strips; s++) {
        const struct rows *x = &w->x[s][at->g % GROUPS / CHUNK];
        for (int64_t j = 0; j < at->n_panels; j += 2) {
            if (at->n < CHUNK)
                multiply(w, x, v[j], f[j], y[j][s], at->n, 0, has_min, NULL, NULL, 0, NULL, NULL);
            else if (mixed)
                multiply(w, x, v[j], f[j], y[j][s], CHUNK, ROWS, has_min, expand, next, j, to[j], to_f[j]);
            else if (LIKELY(w->n_rows == ROWS && w->before.n))
                multiply(w, x, v[j], f[j], y[j][s], CHUNK, ROWS, has_min, NULL, NULL, 0, NULL, NULL);
            else
                multiply(w, x, v[j], f[j], y[j][s], CHUNK, w->before.n ? w->n_rows : 0, has_min, NULL, NULL, 0, NULL, NULL);
            if (at->n < CHUNK)
                scale_rest(w, has_min);
        }
        mixed = false;
    }
}

/* Panels [p0, p1), at most PANELS, times rows i .. i + n, at most STRIPS times 16, in strips of
 * as many rows each. */
static ATTR_INLINE void run_rows(const struct kern_matmul *m, struct work *w, int64_t p0, int64_t p1, int64_t i,
                                 int64_t n, expand_fn *expand, bool has_min)
{
    const int64_t n_groups = m->w->in / 32, n_strips = num_div_up(n, ROWS), each = num_div_up(n, n_strips);
    struct place at = {.p = p0, .n = num_min(CHUNK, n_groups), .n_panels = num_min(KERN_BAND, p1 - p0)}, next, then;
    if (each != w->n_rows)
        configure(&w->t, each, false);
    w->n_rows = each;
    for (int64_t p = 0; p < p1 - p0; p++)
        memset(w->y[p], 0, (size_t)n_strips * sizeof w->y[p][0]);
    find(m, &at);
    for (int64_t j = 0; j < at.n_panels; j++)
        for (int64_t g = 0; g < at.n; g++)
            expand(at.stretch[j], g, 0, &w->w[0][j][g], &w->f[0][j][g]);
    next = at;
    bool more = true;
    for (int64_t k = 0; more; k++) {
        more = advance(m, &next, p0, p1);
        then = next;
        next.ahead = more && advance(m, &then, p0, p1) ? distance(m, &next, &then) : 0;
        if (at.g % GROUPS == 0 && at.p == p0) {
            scale_rest(w, has_min);
            for (int64_t s = 0; s < n_strips; s++)
                gather(m, i + s * each, num_min(each, n - s * each), each, at.g, num_min(GROUPS, n_groups - at.g), w->x[s]);
        }
        if (at.n < CHUNK)
            scale_rest(w, has_min);
        run_chunk(w, &at, more ? &next : NULL, k, n_strips, &w->y[at.p - p0], expand, has_min);
        at = next;
    }
    scale_rest(w, has_min);
    for (int64_t s = 0; s < n_strips; s++)
        for (int64_t p = p0; p < p1; p++)
            y_write(m, p, i + s * each, num_min(each, n - s * each), w->y[p - p0][s]);
}

static ATTR_INLINE void run_groups(const struct kern_matmul *m, int64_t p0, int64_t p1,
                                   expand_fn *expand, bool has_min)
{
    struct work w;
    w.n_rows = 0;
    w.before = (struct chunk){0};
    for (int i = 0; i < SQUARE; i++)
        w.magic[i] = MAGIC;
    memset(w.f, 0, sizeof w.f);
    if ((p1 - p0) % 2)
        memset(w.w, 0, sizeof w.w);
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, p0 + PANELS);
        for (int64_t i = 0; i < m->n; i += STRIPS * ROWS)
            run_rows(m, &w, p0, end, i, num_min(STRIPS * ROWS, m->n - i), expand, has_min);
    }
    if (w.n_rows)
        tile_done(&w.t);
}

#define KERNEL(name, has_min)                                                                  \
    void KERNEL_NAME(matmul_##name)(const struct kern_matmul *m, int64_t p0, int64_t p1)       \
    {                                                                                          \
        run_groups(m, p0, p1, expand_##name, has_min);                                         \
    }
KERNEL(q4_0, false)
KERNEL(q4_1, true)
KERNEL(q5_0, false)
KERNEL(q5_1, true)
KERNEL(q8_0, false)
KERNEL(iq4_nl, false)
KERNEL(mxfp4, false)

/* ---- bf16 ---- */

/* Two lines of 16 halves, row by row side by side. */
static inline __m512i interleaved(__m512i two)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i at = _mm512_or_si512(
        lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(16)), 16));
    return _mm512_permutexvar_epi16(at, two);
}
/* Floats to bf16, to nearest even; subnormal numbers are zeros. */
static inline __m256i rounded(__m512 x)
{
    const __m512i u = _mm512_castps_si512(x), size = _mm512_and_si512(u, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(size, _mm512_set1_epi32(0x7F800000));
    const __mmask16 small = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x00800000));
    __m512i h = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    h = _mm512_mask_or_epi32(h, nan, u, _mm512_set1_epi32(0x00400000));
    h = _mm512_mask_andnot_epi32(h, small, _mm512_set1_epi32(0x7FFFFFFF), u);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(h, 16));
}
static inline __m512i joined(__m256i a, __m256i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* Pairs of 32 k, block b of a stretch, of the floats of a panel. */
typedef void pairs_fn(const uint8_t *stretch, int64_t b, uint8_t *to);

static void pairs_bf16(const uint8_t *stretch, int64_t b, uint8_t *to)
{
    for (int i = 0; i < PAIR_BYTES; i += 64)
        _mm512_store_si512(to + i, interleaved(_mm512_loadu_si512(stretch + b * PAIR_BYTES + i)));
}
static void pairs_f16(const uint8_t *stretch, int64_t b, uint8_t *to)
{
    for (int i = 0; i < PAIR_BYTES; i += 64) {
        const uint8_t *at = stretch + b * PAIR_BYTES + i;
        _mm512_store_si512(to + i, interleaved(joined(rounded(halves(at)), rounded(halves(at + 32)))));
    }
}
/* 16 codes of E4M3: their bits are a half that is 256 times too small. */
static inline __m512 e4m3(const uint8_t *at)
{
    const __m256i b = _mm256_slli_epi16(
        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at)), 7);
    const __m256i all = _mm256_set1_epi16(0x3F80), sign = _mm256_set1_epi16((short)0xBF80);
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(b, all), all);
    const __m256i h = _mm256_mask_mov_epi16(_mm256_and_si256(b, sign), nan, _mm256_set1_epi16(0x7E00));
    return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(256));
}
static void pairs_f8(const uint8_t *stretch, int64_t b, uint8_t *to)
{
    const uint8_t *chunk = stretch + b / 4 * KERN_F8_CHUNK, *at = chunk + b % 4 * 512;
    const __m512 half = half_e8m0(chunk + KERN_F8_SCALES + b % 4 * 16), s = _mm512_add_ps(half, half);
    for (int i = 0; i < PAIR_BYTES; i += 64, at += 32)
        _mm512_store_si512(to + i, interleaved(joined(rounded(_mm512_mul_ps(e4m3(at), s)),
                                                      rounded(_mm512_mul_ps(e4m3(at + 16), s)))));
}

/* n blocks of up to four panels times the rows that the tiles are shaped for. */
static void tile_blocks(struct tiles *t, const uint8_t *w, int64_t n_panels, int64_t n,
                        const uint8_t *a, int64_t stride, float *y)
{
    const int64_t square = ROWS * KERN_PANEL, panel = BLOCKS * PAIR_BYTES;
    (void)t;
    TILE_LOAD(t, 0, y, 64);
    TILE_LOAD(t, 1, y + square, 64);
    TILE_LOAD(t, 2, y + 2 * square, 64);
    TILE_LOAD(t, 3, y + 3 * square, 64);
    for (int64_t b = 0; b < n; b++) {
        TILE_LOAD(t, 4, a + 64 * b, stride);
        TILE_LOAD(t, 5, w + PAIR_BYTES * b, 64);
        TILE_DOT_BF16(t, 0, 4, 5);
        if (n_panels > 1) {
            TILE_LOAD(t, 6, w + panel + PAIR_BYTES * b, 64);
            TILE_DOT_BF16(t, 1, 4, 6);
        }
        if (n_panels > 2) {
            TILE_LOAD(t, 7, w + 2 * panel + PAIR_BYTES * b, 64);
            TILE_DOT_BF16(t, 2, 4, 7);
        }
        if (n_panels > 3) {
            TILE_LOAD(t, 5, w + 3 * panel + PAIR_BYTES * b, 64);
            TILE_DOT_BF16(t, 3, 4, 5);
        }
    }
    TILE_STORE(t, 0, y, 64);
    TILE_STORE(t, 1, y + square, 64);
    TILE_STORE(t, 2, y + 2 * square, 64);
    TILE_STORE(t, 3, y + 3 * square, 64);
}

static void run_blocks(const struct kern_matmul *m, int64_t p0, int64_t p1, pairs_fn *pairs)
{
    ATTR_ALIGNED(64) uint8_t w[KERN_BAND][BLOCKS * PAIR_BYTES];
    ATTR_ALIGNED(64) uint8_t copy[ROWS * ACT_STRIDE];
    ATTR_ALIGNED(64) float y[KERN_BAND][ROWS * KERN_PANEL] = {{0}};
    struct tiles t;
    const int64_t n_blocks = m->w->in / 32, step = m->w->stretch / 32;
    int64_t shape = 0;
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, (p0 / KERN_BAND + 1) * KERN_BAND);
        for (int64_t b0 = 0; b0 < n_blocks; b0 += BLOCKS) {
            const int64_t n = num_min(BLOCKS, n_blocks - b0);
            for (int64_t p = p0; p < end; p++)
                for (int64_t b = 0; b < n; b++)
                    pairs(kern_code_stretch(m->w, p, b0 / step), b0 % step + b,
                          w[p - p0] + b * PAIR_BYTES);
            for (int64_t i = 0; i < m->n; i += ROWS) {
                const int64_t rows = num_min(ROWS, m->n - i);
                int64_t stride;
                if (rows != shape)
                    configure(&t, rows, true);
                shape = rows;
                const uint8_t *a = rows_at(m, i, rows, (size_t)b0 * 64, (size_t)n * 64, copy, &stride);
                for (int64_t p = p0; p < end; p++)
                    y_read(m, p, i, rows, b0 == 0, y[p - p0]);
                tile_blocks(&t, w[0], end - p0, n, a, stride, y[0]);
                for (int64_t p = p0; p < end; p++)
                    y_write(m, p, i, rows, y[p - p0]);
            }
        }
    }
    if (shape)
        tile_done(&t);
}

#define FAST(type)                                                                             \
    void KERNEL_NAME(fast_##type)(const struct kern_matmul *m, int64_t p0, int64_t p1)         \
    {                                                                                          \
        run_blocks(m, p0, p1, pairs_##type);                                                   \
    }
FAST(bf16)
FAST(f16)
FAST(f8)

#endif
