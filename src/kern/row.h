/*
 * row - one row of a paged stream: a latent that is key and value, or a compressed row.
 *
 * F32, F16 and BF16 store every element so.  FP8 is the form that DeepSeek V4 was trained
 * with: all but the last `tail` elements as e4m3 in groups of 64 (the last group may be
 * shorter) with one power-of-two scale each, 2^ceil(log2(max / 448)), max at least 1e-4;
 * the tail as bf16.  Bytes: codes, tail, scales (e8m0).  Codes are x / scale rounded half to
 * even; the exponent of a scale is exact bit work.  A group with a NaN or an infinity has
 * the scale 255 and reads as NaN, so that it is seen.
 */
#ifndef INGLE_KERN_ROW_H
#define INGLE_KERN_ROW_H

#include "kern/attend.h"

enum { KERN_ROW_GROUP = 64, KERN_ROW_TILE = 16 };

/* A multiple of 4; 0: the codec cannot hold such rows. */
size_t kern_row_bytes(enum kern_kv_codec c, int64_t width, int64_t tail);

/* The codec of the attention blocks (kern/attend.h) that hold such rows without loss: FP8
 * rows are bf16 numbers. */
enum kern_kv_codec kern_row_block(enum kern_kv_codec c);

/* Plain C, usable anywhere. */
void kern_row_write(enum kern_kv_codec c, int64_t width, int64_t tail, void *dst,
                    const float *src);
void kern_row_read(enum kern_kv_codec c, int64_t width, int64_t tail, const void *src,
                   float *dst);

#endif
