/*
 * matmul_amx_body - products on tiles; included once for real ones and once for emulated ones,
 * which defines KERNEL_NAME(name) to be theirs.
 *
 * Integer products are exact in bf16 tiles of K = 32: codes and activations have at most 8 bits,
 * and a group's dots of 16 rows of activations with 16 rows of weights, sums below 2^24, are one
 * tile of floats.  Another pass adds it scaled, as everywhere else.  Byte tiles take as long for K
 * = 32 and give integers, whose way to floats costs more than bf16.
 */
#ifndef INGLE_KERN_X86_MATMUL_MATMUL_AMX_BODY_H
#define INGLE_KERN_X86_MATMUL_MATMUL_AMX_BODY_H

#include "base/num.h"
#include "kern/kernels.h"
#include "kern/x86/matmul/quads512.h"
#include "kern/x86/matmul/tile.h"

#include <immintrin.h>

#ifndef KERNEL_NAME
#define KERNEL_NAME(name) kern_##name##_amx
#endif

enum {
    ROWS = 16,              /* of activations in a tile */
    GROUPS = KERN_SLICE / 32, /* of a stretch of integer codes, which is a slice */
    CHUNK = 4,              /* of them that are multiplied and scaled together */
    STRIPS = 16,            /* of rows that are gathered at a time, */
    TILED_STRIPS = 32,      /* or stand in the order of tiles, */
    PANELS = 32,            /* and how many panels they meet */
};

/* Results of rows i .. i + n of panel p from a square of 16, the sums of the last slice, and from
 * the total of those before it, or NULL. */
static ATTR_INLINE __mmask16 columns(const struct kern_matmul *m, int64_t p)
{
    return (__mmask16)((1u << kern_matmul_width(m, p)) - 1);
}
static ATTR_INLINE void y_write(const struct kern_matmul *m, int64_t p, int64_t i, int64_t n,
                                const float *y, const float *total)
{
    const __mmask16 mask = columns(m, p);
    float *at = m->y + i * m->y_stride + p * KERN_PANEL;
    for (int64_t r = 0; r < n; r++) {
        __m512 v = _mm512_load_ps(y + r * KERN_PANEL);
        if (total)
            v = _mm512_add_ps(_mm512_load_ps(total + r * KERN_PANEL), v);
        _mm512_mask_storeu_ps(at + r * m->y_stride, mask, v);
    }
}

/* ---- integer codes, groups of 32 ---- */

/* A group of a panel: row 2 j + i has pairs of k = 4 j + i and 4 j + i + 2.  And its scales. */
struct codes {
    ATTR_ALIGNED(64) uint16_t w[16][2 * KERN_PANEL];
};
struct factors {
    ATTR_ALIGNED(64) float d[KERN_PANEL];
    float m[KERN_PANEL];
};
/* Does group g of a stretch.  table: bf16 of each code of 4 bits twice, or of 5 bits: the look-up
 * takes the low 5 bits of a word. */
typedef void expand_fn(const uint8_t *stretch, int64_t g, __m512i table, struct codes *to,
                       struct factors *f);

/* Pairs of bf16 of floats that are such. */
static ATTR_INLINE __m512i merged(__m512 a, __m512 b)
{
    const __m512i first = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    return _mm512_mask_mov_epi16(first, 0xAAAAAAAA, _mm512_castps_si512(b));
}
/* The table of n codes: list[code], or the code less a bias. */
static inline __m512i table_of(const int8_t *list, int n, int bias)
{
    ATTR_ALIGNED(64) uint16_t w[32];
    for (int i = 0; i < 32; i++) {
        const float f = (float)(list ? list[i % n] : i % n - bias);
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        w[i] = (uint16_t)(u >> 16);
    }
    return _mm512_load_si512(w);
}

#define EXPAND(name, bits, n_group, scales, PUT_ALL, d_of, m_of)                                 \
    static ATTR_INLINE void expand_##name(const uint8_t *stretch, int64_t g, __m512i table,      \
                                          struct codes *to, struct factors *f)                   \
    {                                                                                            \
        const uint8_t *chunk =                                                                   \
            stretch + g / (n_group) * KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, 0);  \
        const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * (g % (n_group));                 \
        const uint8_t *scale = chunk + KERN_SCALES_AT(bits, n_group) +                           \
                               g % (n_group) * KERN_SCALE_BYTES(KERN_SCALES_##scales);           \
        (void)table;                                                                             \
        PUT_ALL                                                                                  \
        _mm512_store_ps(f->d, d_of(scale));                                                      \
        _mm512_store_ps(f->m, m_of(scale + 32));                                                 \
    }
#define NONE(at) _mm512_setzero_ps()
#define PUT(row, v) _mm512_store_si512(to->w[row], v);
#define PUT_CODE(row, v) PUT(row, _mm512_permutexvar_epi16(v, table))
/* Words of line j: nibbles of quad j, of quad j + 4, of quad j, of quad j + 4. */
#define PUT_4                                                    \
    for (int j = 0; j < 4; j++) {                                \
        const __m512i v = _mm512_loadu_si512(group + 64 * j);    \
        PUT_CODE(2 * j, v)                                       \
        PUT_CODE(2 * j + 8, _mm512_srli_epi16(v, 4))             \
        PUT_CODE(2 * j + 1, _mm512_srli_epi16(v, 8))             \
        PUT_CODE(2 * j + 9, _mm512_srli_epi16(v, 12))            \
    }
/* v, and bit 4 of h. */
#define WITH(h, v) _mm512_ternarylogic_epi32(v, h, _mm512_set1_epi16(16), 0xD8)
#define PUT_5                                                                                      \
    for (int j = 0; j < 4; j++) {                                                                  \
        const __m512i v = _mm512_loadu_si512(group + 64 * j),                                      \
                      bits_ = _mm512_loadu_si512(group + 256);                                     \
        const __m512i h = _mm512_srl_epi16(bits_, _mm_cvtsi32_si128(j));                           \
        const __m512i low = _mm512_srl_epi16(_mm512_slli_epi16(bits_, 4), _mm_cvtsi32_si128(j));   \
        PUT_CODE(2 * j, WITH(low, v))                                                              \
        PUT_CODE(2 * j + 8, WITH(h, _mm512_srli_epi16(v, 4)))                                      \
        PUT_CODE(2 * j + 1, WITH(_mm512_srli_epi16(h, 4), _mm512_srli_epi16(v, 8)))                \
        PUT_CODE(2 * j + 9, WITH(_mm512_srli_epi16(h, 8), _mm512_srli_epi16(v, 12)))               \
    }
/* Byte 0 or 1 of each lane less 128: under the exponent that gives its lowest bit the value 1 it is
 * a float. */
static ATTR_INLINE __m512 byte_of(__m512i v, int i)
{
    const __m512i all = _mm512_ternarylogic_epi32(
        v, _mm512_set1_epi32(255 << 8 * i), _mm512_set1_epi32(i ? 0x47000000 : 0x4B000000), 0xEA);
    return _mm512_sub_ps(_mm512_castsi512_ps(all),
                         _mm512_set1_ps(i ? 0x1p15f + 128 : 0x1p23f + 128));
}
#define PUT_8                                                                                      \
    for (int j = 0; j < 8; j++) {                                                                  \
        const __m512i v = _mm512_loadu_si512(group + 64 * j), high = _mm512_srli_epi32(v, 16);     \
        PUT(2 * j, merged(byte_of(v, 0), byte_of(high, 0)))                                        \
        PUT(2 * j + 1, merged(byte_of(v, 1), byte_of(high, 1)))                                    \
    }
EXPAND(q4_0, 4, 2, D, PUT_4, halves, NONE)
EXPAND(q4_1, 4, 1, DM, PUT_4, halves, halves)
EXPAND(q5_0, 5, 2, D, PUT_5, halves, NONE)
EXPAND(q5_1, 5, 1, DM, PUT_5, halves, halves)
EXPAND(q8_0, 8, 2, D, PUT_8, halves, NONE)
EXPAND(mxfp4, 4, 4, E, PUT_4, half_e8m0, NONE)

/* Up to 16 rows of activations over a chunk of groups; kern_act.tiles is [chunks][strips] of
 * them. */
struct rows {
    ATTR_ALIGNED(64) uint16_t q[CHUNK][ROWS][32];
    float factor[ROWS][CHUNK][2]; /* scale, sum */
};
static_assert(sizeof(struct rows) == KERN_TILES_BYTES && (int)CHUNK == (int)KERN_TILES_GROUPS &&
                  (int)ROWS == (int)KERN_TILES_STRIP, "kern_act_tiles_bytes()");
/* A group of a row in the order of struct codes. */
static ATTR_INLINE __m512i paired(const int8_t *q)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_set_epi8(15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0));
    const __m256i all = _mm256_load_si256((const __m256i *)(const void *)q);
    const __m256i v = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(all, order), 0xD8);
    return merged(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(v))),
                  _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(v, 1))));
}
/* Rows i .. i + n, the last of them again up to n_rows, n_groups groups from g0 on, then zeros up
 * to a whole chunk.  Chunks are n_strips apart. */
static void gather(const struct kern_matmul *m, int64_t i, int64_t n, int64_t n_rows, int64_t g0,
                   int64_t n_groups, struct rows *to, int64_t n_strips)
{
    for (int64_t r = 0; r < n_rows; r++) {
        const struct kern_act32 *x =
            (const struct kern_act32 *)(const void *)kern_matmul_act(m, i + num_min(r, n - 1)) + g0;
        const struct kern_act32 *next =
            (const struct kern_act32 *)(const void *)kern_matmul_act(m, i + num_min(r + 2, n - 1)) +
            g0;
        for (int64_t g = 0; g < n_groups; g++) {
            _mm_prefetch((const char *)(next + g), _MM_HINT_T0);
            struct rows *at = to + g / CHUNK * n_strips;
            _mm512_store_si512(at->q[g % CHUNK][r], paired(x[g].q));
            memcpy(at->factor[r][g % CHUNK], &x[g].scale, sizeof at->factor[r][0]);
        }
        for (int64_t g = n_groups; g % CHUNK; g++) {
            struct rows *at = to + g / CHUNK * n_strips;
            memset(at->q[g % CHUNK][r], 0, sizeof at->q[0][0]);
            memset(at->factor[r][g % CHUNK], 0, sizeof at->factor[0][0]);
        }
    }
}

void KERNEL_NAME(act_tiles)(const struct kern_act *a, int64_t r0, int64_t r1)
{
    const struct kern_matmul m = {.x = a};
    const int64_t n_groups = a->k / 32, n_strips = num_div_up(a->n, ROWS);
    struct rows *to = (struct rows *)(void *)a->tiles;
    for (int64_t i = r0; i < r1; i += ROWS)
        for (int64_t g = 0; g < n_groups; g += GROUPS)
            gather(&m, i, num_min(ROWS, r1 - i), ROWS, g, num_min(GROUPS, n_groups - g),
                   to + g / CHUNK * n_strips + i / ROWS, n_strips);
}

enum { SQUARE = ROWS * KERN_PANEL, TILE_BYTES = 1024 };
static_assert(offsetof(struct kern_act32, sum) ==
                  offsetof(struct kern_act32, scale) + sizeof(float),
              "gather()");

/* Where in k a chunk is: within a slice, or at the start of one.  Most are within: their code has
 * no other case. */
enum start { WITHIN, FIRST_SLICE, SECOND_SLICE, NEXT_SLICE };
/* A chunk of a panel and a strip whose tiles are there. */
struct chunk {
    const float *dots;       /* [CHUNK][ROWS][16]; NULL: nothing */
    const struct factors *f; /* [CHUNK] */
    const struct rows *x;
    float *y, *total;        /* [ROWS][16]: sums of a slice, and of the slices before */
    enum start start;
};
struct work {
    struct tiles t;
    int64_t n_rows;          /* of a tile */
    struct chunk before;
    ATTR_ALIGNED(64) float dots[2][CHUNK * SQUARE];
    struct codes w[KERN_BAND][CHUNK];
    struct factors f[2][KERN_BAND][CHUNK]; /* by turns: those in use, and of what is to be scaled */
    /* sums of a slice */
    ATTR_ALIGNED(64) float y[PANELS / KERN_BAND][TILED_STRIPS][KERN_BAND][SQUARE];
    float total[PANELS / KERN_BAND][TILED_STRIPS][KERN_BAND][SQUARE];
    struct rows x[GROUPS / CHUNK][STRIPS];
};

/* A group of a row. */
#define ADD(i)                                                                                     \
    {                                                                                              \
        const __m512 by = _mm512_set1_ps(x[i][0]);                                                 \
        y = _mm512_fmadd_ps(_mm512_load_ps(dots + (i)*SQUARE), _mm512_mul_ps(d[i], by), y);        \
        if (has_min)                                                                               \
            y = _mm512_fmadd_ps(_mm512_set1_ps(x[i][1]),                                           \
                                _mm512_mul_ps(_mm512_load_ps(f[i].m), by), y);                     \
    }
static ATTR_INLINE void scale_row(const float *dots, const __m512 *d, const struct factors *f,
                                  const float (*x)[2], float *sum, float *total, enum start start,
                                  bool has_min)
{
    __m512 y = _mm512_setzero_ps();
    (void)f;
    if (start != FIRST_SLICE)
        y = _mm512_load_ps(sum);
    if (start > FIRST_SLICE) {
        if (start == NEXT_SLICE)
            y = _mm512_add_ps(_mm512_load_ps(total), y);
        _mm512_store_ps(total, y);
        y = _mm512_setzero_ps();
    }
    ADD(0) ADD(1) ADD(2) ADD(3)
    _mm512_store_ps(sum, y);
}
/* A line into the first cache, asked for here: gathered at one place, such requests wait for each
 * other. */
static ATTR_INLINE void prefetch(const uint8_t *at)
{
    __asm__ volatile("prefetcht0 %0" : : "m"(*at));
}
/* So many lines into the second cache. */
static ATTR_INLINE void prefetch_lines(const uint8_t *at, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        __asm__ volatile("prefetcht1 %0" : : "m"(at[64 * i]));
}
/* Rows r .. r + 4, of `end` that there are.  next: a line is requested with each row, or NULL. */
static ATTR_INLINE void scale_four(const struct chunk *c, int64_t r, int64_t end, enum start start,
                                   const uint8_t *next, bool has_min)
{
    const struct factors *f = c->f;
    const __m512 d[CHUNK] = {_mm512_load_ps(f[0].d), _mm512_load_ps(f[1].d), _mm512_load_ps(f[2].d),
                             _mm512_load_ps(f[3].d)};
#define ROW(i)                                                                                     \
    if (next)                                                                                      \
        prefetch(next + 64 * (r + (i)));                                                           \
    if (r + (i) < end)                                                                             \
        scale_row(c->dots + (r + (i)) * KERN_PANEL, d, f, c->x->factor[r + (i)],                   \
                  c->y + (r + (i)) * KERN_PANEL, c->total + (r + (i)) * KERN_PANEL, start,         \
                  has_min);
    ROW(0) ROW(1) ROW(2) ROW(3)
}

/* What is left to be scaled. */
static void scale_rest(struct work *w, bool has_min)
{
    if (w->before.dots)
        for (int64_t r = 0; r < w->n_rows; r += 4)
            scale_four(&w->before, r, w->n_rows, w->before.start, NULL, has_min);
    w->before.dots = NULL;
}

/* Where a chunk of a band of panels is. */
struct place {
    int64_t g, p;                   /* group, from the first of the matrix, and panel */
    int64_t n, n_panels;            /* how many of them */
    const uint8_t *stretch[KERN_BAND];
};

/*
 * The tiles of a chunk of a panel and a strip are multiplied while those of the panel before are
 * scaled, a few rows after each tile: one takes the tile unit and the other the vector unit, of
 * which next to tiles one port of two multiplies (Sapphire Rapids) and the other stores tiles. The
 * next strip's activations are on their way from the second cache, a part with each panel of a
 * band.
 *
 * Tiles 0, 1: sums; 2, 3: weights; 4 to 7: activations.  rows: of a tile, or 0 for nothing before;
 * start: of what was before; next: what to ask for; now: what is multiplied, except for its dots.
 */
enum { PART = sizeof(struct rows) / KERN_BAND }; /* 18 lines */
#define STEP(i, sum, last, a, b)                                                                   \
    TILE_ZERO(&w->t, sum);                                                                         \
    TILE_LOAD_AT(&w->t, b, v, (i)*TILE_BYTES, 64);                                                 \
    if (rows)                                                                                      \
        scale_four(&c, 4 * (i), rows, start, next, has_min);                                       \
    if ((i) < 2)                                                                                   \
        prefetch(next + 64 * (ROWS + (i)));                                                        \
    TILE_DOT_BF16(&w->t, sum, a, b);                                                               \
    if ((i) > 0)                                                                                   \
        TILE_STORE_AT(&w->t, last, dots, ((i)-1) * TILE_BYTES, 64);
static ATTR_INLINE void multiply(struct work *w, const struct codes *v, const struct chunk *now,
                                 int64_t rows, enum start start, const uint8_t *next, bool has_min)
{
    const struct chunk c = w->before;
    float *const dots = w->dots[c.dots == w->dots[0]];
    STEP(0, 0, 1, 4, 2)
    STEP(1, 1, 0, 5, 3)
    STEP(2, 0, 1, 6, 2)
    STEP(3, 1, 0, 7, 3)
    TILE_STORE_AT(&w->t, 1, dots, 3 * TILE_BYTES, 64);
    w->before = *now;
    w->before.dots = dots;
}

/* What is not a whole tile after a whole tile, all codes together. */
static ATTR_NOINLINE void multiply_other(struct work *w, const struct codes *v,
                                         const struct chunk *now, const uint8_t *next, bool has_min)
{
    const int64_t rows = w->before.dots ? w->n_rows : 0;
    if (has_min)
        multiply(w, v, now, rows, w->before.start, next, true);
    else
        multiply(w, v, now, rows, w->before.start, next, false);
}

/* 2, 3: weights; the others have the rows. */
static void configure(struct tiles *t, int64_t rows)
{
    struct tile_config c = {0};
    for (int i = 0; i < 8; i++)
        tile_shape(&c, i, i < 2 || i > 3 ? (int)rows : 16, 64);
    tile_configure(t, &c);
}

static void find(const struct kern_matmul *m, struct place *at)
{
    for (int64_t j = 0; j < at->n_panels; j++)
        at->stretch[j] = kern_code_stretch(m->w, at->p + j, at->g / GROUPS);
}
/* The chunk after `at` of panels [p0, p1): of the next band, or the next one of the first band, so
 * that the activations of a chunk stay in the second cache for all bands.  False: there is none,
 * and `at` stays. */
static bool advance(const struct kern_matmul *m, struct place *at, int64_t p0, int64_t p1)
{
    const int64_t n_groups = m->w->in / 32;
    const bool wrap = at->p + KERN_BAND >= p1;
    if (wrap && at->g + CHUNK >= n_groups)
        return false;
    at->p = wrap ? p0 : at->p + KERN_BAND;
    at->g += wrap ? CHUNK : 0;
    at->n = num_min(CHUNK, n_groups - at->g);
    at->n_panels = num_min(KERN_BAND, p1 - at->p);
    find(m, at);
    return true;
}

/* What will be read after a chunk: weights, and some bytes of the activations of the chunk
 * after. */
struct soon {
    const struct place *next;
    const uint8_t *x;
    int64_t x_bytes;
};

/* The chunk `at`, as number i of them, times the rows of strips from x0 on, onto the sums of its
 * band.  What the chunk lacks of CHUNK groups adds zero.  With each strip a part of what comes soon
 * is requested: together such requests would be waited for. */
static ATTR_INLINE void run_chunk(const struct kern_matmul *m, struct work *w,
                                  const struct place *at, const struct soon *soon, int64_t i,
                                  const struct rows *x0, int64_t n_strips, int64_t band,
                                  expand_fn *expand, __m512i table, bool has_min)
{
    const enum start start = at->g % GROUPS    ? WITHIN
                             : at->g == 0      ? FIRST_SLICE
                             : at->g == GROUPS ? SECOND_SLICE
                                               : NEXT_SLICE;
    const int64_t group = (int64_t)(m->w->stretch_bytes / GROUPS),
                  ahead = soon->next->g % GROUPS * group;
    const int64_t x_lines = num_div_up(soon->x_bytes, 64 * n_strips),
                  w_lines = num_div_up(CHUNK * group, 64 * n_strips);
    struct factors(*const f)[CHUNK] = w->f[i % 2];
    for (int64_t j = 0; j < at->n_panels; j++) {
        for (int64_t g = 0; g < at->n; g++)
            expand(at->stretch[j], at->g % GROUPS + g, table, &w->w[j][g], &f[j][g]);
        for (int64_t g = at->n; g < CHUNK; g++)
            memset(&f[j][g], 0, sizeof f[j][g]);
    }
    for (int64_t s = 0; s < n_strips; s++) {
        const struct rows *x = x0 + s;
        TILE_LOAD_AT(&w->t, 4, x, 0, 64);
        TILE_LOAD_AT(&w->t, 5, x, TILE_BYTES, 64);
        TILE_LOAD_AT(&w->t, 6, x, 2 * TILE_BYTES, 64);
        TILE_LOAD_AT(&w->t, 7, x, 3 * TILE_BYTES, 64);
        prefetch_lines(soon->x + 64 * x_lines * s, x_lines);
        for (int64_t j = 0; j < at->n_panels; j++) {
            const uint8_t *next = (const uint8_t *)(x + 1) + PART * j;
            const struct chunk now = {NULL, f[j], x, w->y[band][s][j], w->total[band][s][j], start};
            prefetch_lines(soon->next->stretch[j] + ahead + 64 * w_lines * s, w_lines);
            if (LIKELY(w->n_rows == ROWS && w->before.dots && w->before.start == WITHIN))
                multiply(w, w->w[j], &now, ROWS, WITHIN, next, has_min);
            else
                multiply_other(w, w->w[j], &now, next, has_min);
        }
    }
}

/* Panels [p0, p1), at most PANELS, times rows i .. i + n, at most STRIPS times 16, in strips of
 * as many rows each; or of rows that stand in `tiles`, TILED_STRIPS times 16. */
static ATTR_INLINE void run_rows(const struct kern_matmul *m, struct work *w, int64_t p0,
                                 int64_t p1, int64_t i, int64_t n, const struct rows *tiles,
                                 expand_fn *expand, __m512i table, bool has_min)
{
    const int64_t n_groups = m->w->in / 32, n_strips = num_div_up(n, ROWS);
    const int64_t each = tiles ? ROWS : num_div_up(n, n_strips);
    const int64_t n_bands = num_div_up(p1 - p0, KERN_BAND), all_strips = num_div_up(m->x->n, ROWS);
    struct place at = {.p = p0,
                       .n = num_min(CHUNK, n_groups),
                       .n_panels = num_min(KERN_BAND, p1 - p0)},
                 next;
    struct soon soon = {&next, m->w->at, 0};
    if (each != w->n_rows)
        configure(&w->t, each);
    w->n_rows = each;
    find(m, &at);
    next = at;
    bool more = true;
    for (int64_t k = 0; more; k++) {
        more = advance(m, &next, p0, p1);
        if (!tiles && at.g % GROUPS == 0 && at.p == p0) {
            scale_rest(w, has_min);
            for (int64_t s = 0; s < n_strips; s++)
                gather(m, i + s * each, num_min(each, n - s * each), each, at.g,
                       num_min(GROUPS, n_groups - at.g), &w->x[0][s], STRIPS);
        }
        const int64_t band = (at.p - p0) / KERN_BAND;
        const struct rows *x =
            tiles ? tiles + at.g / CHUNK * all_strips + i / ROWS : w->x[at.g % GROUPS / CHUNK];
        if (tiles && at.g + CHUNK < n_groups) {
            soon.x_bytes = n_strips * (int64_t)sizeof *x / n_bands;
            soon.x = (const uint8_t *)(x + all_strips) + band * soon.x_bytes;
        } else {
            soon.x_bytes = 0;
        }
        run_chunk(m, w, &at, &soon, k, x, n_strips, band, expand, table, has_min);
        at = next;
    }
    scale_rest(w, has_min);
    for (int64_t s = 0; s < n_strips; s++)
        for (int64_t p = p0; p < p1; p++) {
            const int64_t band = (p - p0) / KERN_BAND, j = (p - p0) % KERN_BAND;
            y_write(m, p, i + s * each, num_min(each, n - s * each), w->y[band][s][j],
                    n_groups > GROUPS ? w->total[band][s][j] : NULL);
        }
}

static ATTR_INLINE void run_groups(const struct kern_matmul *m, int64_t p0, int64_t p1,
                                   expand_fn *expand, __m512i table, bool has_min)
{
    struct work w;
    const struct rows *tiles = m->row ? NULL : (const struct rows *)(const void *)m->x->tiles;
    const int64_t most = (tiles ? TILED_STRIPS : STRIPS) * ROWS;
    w.n_rows = 0;
    w.before = (struct chunk){0};
    memset(w.w, 0, sizeof w.w);
    for (int64_t end; p0 < p1; p0 = end) {
        end = num_min(p1, p0 + PANELS);
        for (int64_t i = 0; i < m->n; i += most)
            run_rows(m, &w, p0, end, i, num_min(most, m->n - i), tiles, expand, table, has_min);
    }
    if (w.n_rows)
        tile_done(&w.t);
}

#define KERNEL(name, expand, list, n_list, bias, has_min)                                      \
    void KERNEL_NAME(matmul_##name)(const struct kern_matmul *m, int64_t p0, int64_t p1)       \
    {                                                                                          \
        run_groups(m, p0, p1, expand, table_of(list, n_list, bias), has_min);                  \
    }
KERNEL(q4_0, expand_q4_0, NULL, 16, 8, false)
KERNEL(q4_1, expand_q4_1, NULL, 16, 0, true)
KERNEL(q5_0, expand_q5_0, NULL, 32, 16, false)
KERNEL(q5_1, expand_q5_1, NULL, 32, 0, true)
KERNEL(q8_0, expand_q8_0, NULL, 32, 0, false)
KERNEL(iq4_nl, expand_q4_0, quant_nl4, 16, 0, false)
KERNEL(mxfp4, expand_mxfp4, quant_e2m1_doubled, 16, 0, false)

#endif
