/*
 * row - one row of a paged stream: a latent that is key and value, or a compressed row.
 *
 * F32, F16 and BF16 store every element so.  FP8 is the form that DeepSeek V4 was trained
 * with: all but the last `tail` elements as e4m3 in groups of 64 (the last group may be
 * shorter) with one power-of-two scale each, 2^ceil(log2(max / 448)), max at least 1e-4;
 * the tail as bf16.  Bytes: codes, tail, scales (e8m0).  Codes are x / scale rounded half to
 * even; the exponent of a scale is exact bit work.  A group with a NaN or an infinity has
 * the scale 255 and reads as NaN, so that it is seen.
 *
 * FP4 is the form of the same model's indexer keys: e2m1 in groups of 32 with a scale each,
 * 2^ceil(log2(max / 6)), max at least 6 * 2^-126.  No tail; bytes: the codes, 16 a group,
 * element j in the low half and j + 16 in the high half of byte j, then the scales.
 */
#ifndef INGLE_KERN_ROW_H
#define INGLE_KERN_ROW_H

#include "kern/attend.h"

enum { KERN_ROW_GROUP = 64, KERN_ROW_GROUP4 = 32, KERN_ROW_TILE = 16 };

/* A multiple of 4; 0: the codec cannot hold such rows (FP4: widths of whole groups). */
size_t kern_row_bytes(enum kern_kv_codec c, int64_t width, int64_t tail);

/* The codec of the attention blocks (kern/attend.h) that hold such rows without loss: FP8
 * rows are bf16 numbers.  (FP4 rows are never laid out in blocks.) */
enum kern_kv_codec kern_row_block(enum kern_kv_codec c);

/* x times Sylvester's Hadamard matrix over the root of n, a power of two: what makes keys and
 * queries fit for FP4.  Products of two rows rotated so are those of the rows. */
void kern_row_hadamard(float *x, int64_t n);

/* Plain C, usable anywhere. */
void kern_row_write(enum kern_kv_codec c, int64_t width, int64_t tail, void *dst,
                    const float *src);
void kern_row_read(enum kern_kv_codec c, int64_t width, int64_t tail, const void *src,
                   float *dst);

#endif
