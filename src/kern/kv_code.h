/*
 * kv_code - codecs of keys and values that turn a head before they round it.
 *
 * A turn is an orthogonal matrix: products of two turned rows are those of the rows, so queries are turned in the
 * place of keys, and a weighted sum of turned values is turned back once.  H is the Walsh-Hadamard matrix of natural
 * order over the root of its width (kern_row_hadamard()).
 *
 *   q8r    H of the whole head; one f16 scale, max|y| / 127; codes y / scale rounded half to even within +-127.
 *          Not finite, or a scale that is not: scale NaN, codes 0.
 *   n4r    H of the whole head; groups of 128 (a narrower head is one group); 16 levels, of which the largest is
 *          127; index: the midpoints of levels that are <= t, t = y * 529 sqrt(group / 128) / |y| (0 where |y| <=
 *          1e-10); f16 norm = |y| / |levels|.  Not finite, or a norm that rounds to infinity: norm NaN, indices 0.
 *   tq3_0  groups of 128, each turned by two rows of signs around H of 128; 8 levels; index and norm alike, of
 *          y / |y|; |y| of less than 1e-14 of the group counts as zero, which goes up.  The same rule for NaN.
 *
 * In a block of 128 positions (kern/attend.h), with scales or norms f16 [groups][128] behind the codes:
 *   q8r    keys [128/16][width/4][16][4], codes + 128; values [128/4][width][4], codes;
 *   n4r    keys [128/16][groups][group/8][16][4], values [128/32][4][width][4]; a byte has two indices: dimensions d
 *          and d + group/2 of a group of keys, positions j and j + 16 of 32 of values, the first one in the low half;
 *   tq3_0  in the order of plain blocks two bits of each index, sixteen to a u32, then the third, sixteen to a u16.
 */
#ifndef INGLE_KERN_KV_CODE_H
#define INGLE_KERN_KV_CODE_H

#include "kern/attend.h"

enum {
    KERN_KV_WIDE = 512,       /* the widest head that q8r and n4r hold: 512 * 127 * 127 is exact in f32 */
    KERN_KV_GROUP = 128,      /* numbers that share a norm of n4r and tq3_0 */
    KERN_TQ3_BLOCK = 32,      /* numbers of a block of TQ3_0 as files have it */
    KERN_TQ3_BLOCK_BYTES = 14 /* its norm, f16; two bits of each index; one bit of each */
};

extern const int8_t kern_n4r_level[16];
extern const float kern_tq3_level[8];

/* q8r, n4r or tq3_0: their blocks are for kern_attend_kernels.coded alone. */
static inline bool kern_kv_is_coded(enum kern_kv_codec c) { return c == KERN_KV_Q8R || c == KERN_KV_N4R || c == KERN_KV_TQ3_0; }
/* Numbers that share a scale or norm. */
static inline int64_t kern_kv_group(enum kern_kv_codec c, int64_t width)
{
    return c == KERN_KV_Q8R || width < KERN_KV_GROUP ? width : KERN_KV_GROUP;
}

/* x [width] to what the codec rounds, and back; of other codecs: nothing. */
void kern_kv_turn(enum kern_kv_codec c, float *x, int64_t width);
void kern_kv_turn_back(enum kern_kv_codec c, float *x, int64_t width);

/* One head of one position.  norm [groups]: f16; code [width]: q8r's as they are, else indices. */
void kern_kv_encode(enum kern_kv_codec c, const float *x, int64_t width, uint16_t *norm, int8_t *code);
/* q8r of a row that is turned already. */
void kern_kv_round_q8r(const float *y, int64_t width, uint16_t *scale, int8_t *code);
/* The turned values. */
void kern_kv_decode(enum kern_kv_codec c, const uint16_t *norm, const int8_t *code, int64_t width, float *y);

/* Codes of a block that is coded, and of rows into it: what kern_attend_table.kv_write does of such. */
void kern_kv_codes_read(enum kern_kv_codec c, bool key, int64_t width, const void *block, int64_t slot, uint16_t *norm, int8_t *code);
void kern_kv_codes_write(enum kern_kv_codec c, bool key, int64_t width, void *block, int64_t slot, const float *rows, int64_t n,
                         int64_t stride);

/* TQ3_0 as files have it: width / 32 blocks of 14 bytes, of which four have the same norm.  False: they do not. */
void kern_tq3_to_blocks(const uint16_t *norm, const int8_t *code, int64_t width, uint8_t *blocks);
bool kern_tq3_from_blocks(const uint8_t *blocks, int64_t width, uint16_t *norm, int8_t *code);

/* Keys that are made of values where a layer has no others: key = turn(weight * value).  half: dimension i < n_pairs
 * turns with i + half.  slot: cos and sin of the angles of positions 0 to 127, f32 [128][n_pairs][2]. */
struct kern_from_v {
    const float *weight;    /* f32 [width] */
    const double *inv_freq; /* [n_pairs] */
    const float *slot;
    int64_t n_pairs, half;
};

#endif
