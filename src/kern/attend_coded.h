/*
 * attend_coded - attention over keys or values that are coded (kern/kv_code.h), or over keys that
 * are made of values.
 *
 * The entries of struct kern_attend_table, the form of partial results, parts, splits and how they
 * are joined are those of
 * attend.h; these are the sums.  A part has one maximum for all its blocks.
 *
 * Before scores, the query of a row: turned as its keys are (kern_kv_turn()).  With whole keys
 * (q8r, n4r) then rounded to
 * bytes (of +rot part by part): a = max|q| / 127, x = q / a to nearest within +-127 (a = 0: zeros);
 * not finite: a is NaN, zeros.
 *
 *   scores  q8r     (float)dot * ((a scale) b), b the scale of the position's key
 *           n4r     (a scale) f, f from 0 over groups, ascending: fmaf(norm, (float)dot, f)
 *           +rot    f from 0 over parts, ascending: fmaf((a scale) norm, (float)dot, f); each part
 *           of the query has its own a,
 *                   the dimensions after the first part are multiplied by their weight before they
 *                   are turned
 *           FROM_V  scale times a sum of 16 partial sums (element k in sum k mod 16, fmaf,
 *           ascending; folded as in
 *                   math.h) of q' and x.  Of pair (i, i + half), i < n_pairs: q' is the query
 *                   turned by the negative
 *                   angle of the page's first position, x = weight * value turned by the angle of
 *                   the position in its
 *                   page, each as kern_math_table.rope does it (negative: the sine is).  Else: q' =
 *                   q weight, x = value
 *           others  scale dot, fmaf in ascending dimension, of turned values
 *   part    m = maximum of the visible scores (a > b ? a : b); p = exp(s - m), 0 where not visible;
 *   l[16] takes p of
 *           the part's positions, position mod 16, ascending; acc = 0
 *   values  whole     for each aligned block of 32 with visible positions, for each group of
 *   dimensions: w = p norm
 *                     where visible, 0 elsewhere; top = the largest; below 2^-90: u = 0 and t = 0;
 *                     else u = w (255 /
 *                     top) to nearest and t = top / 255; a w that is not finite: u = 0 and t = NaN.
 *                     acc = fmaf((float)(sum of u code), t, acc)
 *           others    for each visible position: acc = fmaf(p, value, acc), of turned values
 *   state   m, the fold of l by sums, acc; joined as attend.h joins splits, and a sink with them
 *   out     acc / l, turned back as values are
 */
#ifndef INGLE_KERN_ATTEND_CODED_H
#define INGLE_KERN_ATTEND_CODED_H

#include "kern/kv_code.h"

#define CODED_LEAST 0x1p-90f /* a block's largest weight below it counts as nothing */

/* The row at slot of any block, turned: what the codec stands for; of keys with +rot the part that
 * is stored. */
void kern_attend_coded_read(enum kern_kv_codec c, bool key, int64_t width, const void *block,
                            int64_t slot, float *row);

/* A key with +rot as it is meant, of what the codes of a page stand for: f32 [k_width]. */
void kern_attend_rot_key(const struct kern_attend *a, const uint8_t *page, int64_t slot,
                         float *key);

/* As kern_attend_scratch(), for tasks of kern_kv_needs_coded(). */
size_t kern_attend_coded_scratch(const struct kern_attend *a);

/* Part of kern_self_test(). */
int kern_attend_coded_self_test(struct kern_attend_kernels *t, uint32_t cpu,
                                const struct report_sink *sink);

/* A query as bytes in place of f32 [width]; returned is a. */
float kern_attend_coded_query(const float *q, int64_t width, int8_t *x);

/* The query of a row, turned: f32 [k_width], which may be q; of FROM_V: q. */
void kern_attend_coded_turn(const struct kern_attend *a, const float *q, float *to);
/* The same as bytes with a scale, or with +rot one each part: x [k_width], by [KERN_KV_PARTS], each
 * times scale; of q8r and n4r by[0] alone. */
void kern_attend_coded_bytes(const struct kern_attend *a, const float *turned, int8_t *x,
                             float *by);

/* q' of FROM_V for the page that begins at pos; q may be it. */
void kern_attend_coded_page(const struct kern_from_v *f, int64_t pos, const float *q, int64_t width,
                            float *to);

#endif
