/*
 * code - how the panels of each code are laid out; for this room only.
 *
 * A panel is a row of chunks, cut into stretches (matmul.h), a chunk some groups of 32 k: first
 * their codes, then their scales.  Codes of a group are planes of lines of 64 bytes; byte 4 r + i
 * of a line belongs to row r and to k = 4 quad + i:
 *   8-bit plane, 8 lines: line j is quad j;
 *   4-bit plane, 4 lines: line j is quad j in the low nibbles, quad j + 4 in the high ones;
 *   2-bit plane, 2 lines: line h is quads 4 h .. 4 h + 3 in bits 0, 2, 4, 6;
 *   1-bit plane, 1 line: quad t in bit t.
 * 5 bits are a 4-bit and a 1-bit plane, 6 are 4 + 2, 3 are 2 + 1, low bits first.  Scales
 * are one array of 16 per kind: bytes or halves, row by row.
 *
 * Float panels are [k][16].  F8 is e4m3 codes with a power-of-two scale for 32 k: chunks of
 * 4 groups, codes [128][16], then scales [4][16].  F8S is the same with scales f32 [4][16].
 * W8 is the codes of Q8_0 for activations that stay f32, with scales as halves [4][16]: w = code *
 * scale, which f32 holds exactly.
 *
 * Points are numbers of a book, the stored bytes interleaved.  A group has one line of numbers
 * (books of 8 coordinates; byte 4 r + l for point l, k = 8 l ..., of row r) or two (of 4; line m
 * has the points 4 m + l), and one of signs, byte 4 r + l for k = 8 l ...:
 *   IQ2_XXS, IQ3_XXS  words of 32 bits of 4 x 7 sign bits and the sub-scale in the top 4;
 *   IQ2_XS            bit 8 of the number in bit 0, seven signs above it;
 *   IQ2_S, IQ3_S      eight signs.
 * A chunk is 16 groups; after their lines are, for each group, bytes of high bits of the numbers
 * row by row (IQ2_S, IQ3_S) and of two sub-scales (IQ2_XS, IQ2_S; IQ3_S: for two groups); then
 * halves d [2][16].
 *
 * Stored panels are the 16 rows as they stand in the file, row after row, padded to a multiple
 * of 64 bytes; rows past the end are zero.
 */
#ifndef INGLE_KERN_CODE_H
#define INGLE_KERN_CODE_H

#include "kern/blocks.h"
#include "kern/matmul.h"
#include <assert.h>

enum {
    KERN_CODE_F32, KERN_CODE_F16, KERN_CODE_BF16, KERN_CODE_F8, KERN_CODE_F8S, KERN_CODE_W8,
#define X(name, ...) KERN_CODE_##name,
    KERN_CODE_LIST(X) KERN_POINT_LIST(X) KERN_STORED_LIST(X)
#undef X
    KERN_CODE_N
};
static_assert((int)KERN_CODE_N <= (int)KERN_CODES, "the table has no room");

struct kern_code {
    const char *name;
    enum kern_act_kind act;
    enum kern_scales scales;
    int bits;            /* of a code; 0: float, points or stored */
    int bias;            /* value = code - bias ... */
    const int8_t *table; /* ... or table[code] */
    int n_group;         /* groups of 32 in a chunk */
    int scale_shift;
    float factor;        /* points, stored: on d */
    size_t chunk_bytes;
};

extern const int8_t kern_code_pm1[2];

/* That of a code of KERN_CODE_LIST. */
#define KERN_CODE_ROW(id, act_, bits_, bias_, table_, n, scales_, shift)                           \
    [KERN_CODE_##id] = {.name = #id, .act = KERN_ACT_##act_, .scales = KERN_SCALES_##scales_,      \
                        .bits = bits_, .bias = bias_, .table = table_, .n_group = n,               \
                        .scale_shift = shift,                                                      \
                        .chunk_bytes = KERN_CHUNK_BYTES(bits_, KERN_SCALES_##scales_, n, shift)},

const struct kern_code *kern_code_find(uint32_t code);

/* One row's part of a block as integers: 32 (Q32) or 256 (Q256) values.  value =
 * d * sub * q - m * min (Q256), d * q + m (Q32); NVFP4 has its second half's d in m. */
struct kern_block {
    int8_t q[256];
    int16_t sub[16], min[16]; /* of groups of 16 */
    float d, m;
};

/* Block i of row r (0..15) of panel p of a matrix whose code is quantised. */
void kern_code_read(const struct kern_matrix *w, int64_t p, int64_t i, int r,
                    struct kern_block *b);
/* The same from the stored form of a type that runs from it. */
void kern_stored_read(uint32_t code, const uint8_t *stored, struct kern_block *b);
/* A stored block of points as block i of row r of panel p, and back (to KERN_POINT_BYTES). */
enum { KERN_POINT_BYTES = sizeof(struct quant_iq3_s) };
void kern_points_put(const struct kern_matrix *w, int64_t p, int64_t i, int r,
                     const uint8_t *stored);
void kern_points_get(const struct kern_matrix *w, int64_t p, int64_t i, int r, uint8_t *stored);

/* Panel p, of n_rows rows, from stored rows, for the types that have a fast way; false: others. */
bool kern_pack_words(const struct kern_matrix *m, int64_t p, int n_rows, const uint8_t *stored);

/* Weight k of row r of panel p of a matrix whose code is float. */
float kern_code_float(const struct kern_matrix *w, int64_t p, int64_t k, int r);
/* Weights k .. k + 32, k a multiple of 32, of a matrix of floats or packed codes (no points). */
void kern_code_floats(const struct kern_matrix *w, int64_t p, int64_t k, int r, float *to);

/* kern_act.tiles of Q32: [4 groups][16 rows] as pairs of bf16, and two factors of each row and
 * group. */
enum {
    KERN_TILES_STRIP = 16,
    KERN_TILES_GROUPS = 4,
    KERN_TILES_BYTES = KERN_TILES_STRIP * KERN_TILES_GROUPS * (64 + 8)
};

/* kern_act.tiles of Q256: [super-blocks][32 rows], the last ones zeros. */
struct kern_tiles256 {
    int8_t q[2][4][16][64]; /* 16 rows, 64 k: a tile */
    float scale[32];
    int16_t sum32[32][8], sum16[32][16];
};
static_assert(sizeof(struct kern_tiles256) % 64 == 0, "whole cache lines");

/* Bytes of stretch s. */
static inline size_t kern_code_stretch_bytes(const struct kern_matrix *w, int64_t s)
{
    const size_t left = w->panel_bytes - (size_t)s * w->stretch_bytes;
    return left < w->stretch_bytes ? left : w->stretch_bytes;
}
/* Stretch s of panel p. */
static inline uint8_t *kern_code_stretch(const struct kern_matrix *w, int64_t p, int64_t s)
{
    const int64_t first = p / KERN_BAND * KERN_BAND, left = w->n_panels - first;
    const size_t n = (size_t)(left < KERN_BAND ? left : KERN_BAND);
    return w->at + (size_t)first * w->panel_bytes + (size_t)s * w->stretch_bytes * n +
           (size_t)(p - first) * kern_code_stretch_bytes(w, s);
}
/* Where panel p would begin if it had no gaps and weight k of it stood where it does. */
static inline uint8_t *kern_code_panel(const struct kern_matrix *w, int64_t p, int64_t k)
{
    const int64_t s = k / w->stretch;
    return kern_code_stretch(w, p, s) - (size_t)s * w->stretch_bytes;
}
static inline int64_t kern_matmul_row(const struct kern_matmul *m, int64_t i)
{
    return m->row ? m->row[i] : i;
}
static inline const uint8_t *kern_matmul_act(const struct kern_matmul *m, int64_t i)
{
    return m->x->q + (size_t)kern_matmul_row(m, i) * m->x->row_bytes;
}
/* Output rows of panel p that exist. */
static inline int kern_matmul_width(const struct kern_matmul *m, int64_t p)
{
    const int64_t left = m->w->out - p * KERN_PANEL;
    return left < KERN_PANEL ? (int)left : KERN_PANEL;
}

#endif
