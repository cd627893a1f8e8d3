/*
 * kv_code - codecs of keys and values that turn a head before they round it.
 *
 * A turn is an orthogonal matrix: products of two turned rows are those of the rows, so queries are
 * turned in the
 * place of keys, and a weighted sum of turned values is turned back once.  H is the Walsh-Hadamard
 * matrix of natural
 * order over the root of its width (kern_row_hadamard()).
 *
 *   q8r    H of the whole head; one f16 scale, max|y| / 127; codes y / scale rounded half to even
 *   within +-127.
 *          Not finite, or a scale that is not: scale NaN, codes 0.
 *   n4r    H of the whole head; groups of 128 (a narrower head is one group); 16 levels, of which
 *   the largest is
 *          127; index: the midpoints of levels that are <= t, t = y * 529 sqrt(group / 128) / |y|
 *          (0 where |y| <=
 *          1e-10); f16 norm = |y| / |levels|.  Not finite, or a norm that rounds to infinity: norm
 *          NaN, indices 0.
 *   tq3_0  groups of 128, each turned by two rows of signs around H of 128; 8 levels; index and
 *   norm alike, of
 *          y / |y|; |y| of less than 1e-14 of the group counts as zero, which goes up.  The same
 *          rule for NaN.
 *   +rot   q8r and n4r for layers whose keys are weight * value before positions turn a quarter of
 *   a head, dimensions
 *          [0, width/8) and [width/2, width/2 + width/8).  A head is cut into four parts of
 *          width/4: that quarter, then the
 *          other dimensions, ascending; each part is turned by its own H and has its own scale or
 *          norm.  Of values all parts are
 *          stored, of keys the first: part g > 0 of a key is that of its value, with which the
 *          weight of a query's
 *          dimensions is multiplied.
 *
 * In a block of 128 positions (kern/attend.h), with scales or norms f16 [groups][128] after the
 * codes:
 *   q8r    keys [128/16][width/4][16][4], codes + 128; values [128/4][width][4], codes;
 *   n4r    keys [128/16][groups][group/8][16][4], values [128/32][4][width][4]; a byte has two
 *   indices: dimensions d
 *          and d + group/2 of a group of keys, positions j and j + 16 of 32 of values, the first
 *          one in the low half;
 *   +rot   keys as a head of width/4, values as above, with four scales or norms;
 *   tq3_0  in the order of plain blocks two bits of each index, sixteen to a u32, then the third,
 *   sixteen to a u16.
 */
#ifndef INGLE_KERN_KV_CODE_H
#define INGLE_KERN_KV_CODE_H

#include "kern/attend.h"

enum {
    /* the widest head that q8r and n4r hold: 512 * 127 * 127 is exact in f32 */
    KERN_KV_WIDE = 512,
    KERN_KV_GROUP = 128,      /* numbers that share a norm of n4r and tq3_0 */
    KERN_KV_PARTS = 4         /* of a head of +rot */
};

extern const int8_t kern_n4r_level[16];
extern const float kern_tq3_level[8];

static inline bool kern_kv_is_rot(enum kern_kv_codec c)
{
    return c == KERN_KV_Q8R_ROT || c == KERN_KV_N4R_ROT;
}
/* With +rot what it is without; else itself. */
static inline enum kern_kv_codec kern_kv_code(enum kern_kv_codec c)
{
    return c == KERN_KV_Q8R_ROT ? KERN_KV_Q8R : c == KERN_KV_N4R_ROT ? KERN_KV_N4R : c;
}
/* Codes are whole numbers that are multiplied as such. */
static inline bool kern_kv_is_whole(enum kern_kv_codec c)
{
    return kern_kv_code(c) == KERN_KV_Q8R || kern_kv_code(c) == KERN_KV_N4R;
}
/* Whole or tq3_0: their blocks are for kern_attend_kernels.coded alone. */
static inline bool kern_kv_is_coded(enum kern_kv_codec c)
{
    return kern_kv_is_whole(c) || c == KERN_KV_TQ3_0;
}
/* Numbers that share a scale or norm. */
static inline int64_t kern_kv_group(enum kern_kv_codec c, int64_t width)
{
    return kern_kv_is_rot(c)                           ? width / KERN_KV_PARTS
           : c == KERN_KV_Q8R || width < KERN_KV_GROUP ? width
                                                       : KERN_KV_GROUP;
}
static inline int64_t kern_kv_groups(enum kern_kv_codec c, int64_t width)
{
    return kern_kv_is_rot(c)                           ? KERN_KV_PARTS
           : c == KERN_KV_Q8R || width < KERN_KV_GROUP ? 1
                                                       : width / KERN_KV_GROUP;
}
/* Of a block of values, or of keys without +rot: bytes in front of scales or norms. */
static inline size_t kern_kv_code_bytes(enum kern_kv_codec c, int64_t width)
{
    const size_t n = (size_t)width * KERN_PAGE;
    return kern_kv_code(c) == KERN_KV_Q8R ? n : kern_kv_code(c) == KERN_KV_N4R ? n / 2 : n / 8 * 3;
}
/* The dimension that is number i of a head in the order of its parts. */
static inline int64_t kern_kv_rot_dim(int64_t width, int64_t i)
{
    const int64_t turns = width / 8, others = width / 2 - turns; /* of half a head */
    if (i < 2 * turns)
        return i < turns ? i : width / 2 - turns + i;
    return i - 2 * turns < others ? i - turns : i;
}

/* x [width] to what the codec rounds, and back; of other codecs: nothing.  +rot: in the order of
 * parts. */
void kern_kv_turn(enum kern_kv_codec c, float *x, int64_t width);
void kern_kv_turn_back(enum kern_kv_codec c, float *x, int64_t width);

/* One head of one position (+rot: of a value).  norm [groups]: f16; code [width]: q8r's as they
 * are, else indices. */
void kern_kv_encode(enum kern_kv_codec c, const float *x, int64_t width, uint16_t *norm,
                    int8_t *code);
/* q8r of a row that is turned already. */
void kern_kv_round_q8r(const float *y, int64_t width, uint16_t *scale, int8_t *code);
/* The turned values. */
void kern_kv_decode(enum kern_kv_codec c, const uint16_t *norm, const int8_t *code, int64_t width,
                    float *y);

/* Codes of a block that is coded, and of rows into it: what kern_attend_table.kv_write does of
 * such.  Of keys with +rot: those of the part that is stored, out of rows of whole keys. */
void kern_kv_codes_read(enum kern_kv_codec c, bool key, int64_t width, const void *block,
                        int64_t slot, uint16_t *norm, int8_t *code);
void kern_kv_codes_write(enum kern_kv_codec c, bool key, int64_t width, void *block, int64_t slot,
                         const float *rows, int64_t n, int64_t stride);

/* Keys that are made of values where a layer has no others: key = turn(weight * value).  half:
 * dimension i < n_pairs turns with i + half; for +rot n_pairs is an eighth of the width and half
 * its half.  slot: cos and sin of the angles of positions 0 to 127, f32 [128][n_pairs][2]. */
struct kern_from_v {
    const float *weight;    /* f32 [width] */
    const double *inv_freq; /* [n_pairs] */
    const float *slot;
    int64_t n_pairs, half;
};

#endif
