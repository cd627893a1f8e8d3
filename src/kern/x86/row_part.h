/* row_part - what moves rows, for the kernels of any width of register: it is bound by memory,
 * and 256 bits are enough. */
#ifndef INGLE_KERN_X86_ROW_PART_H
#define INGLE_KERN_X86_ROW_PART_H

#include "kern/latent.h"

void kern_row_write_avx2(const struct kern_row *f, void *dst, const float *src);
void kern_row_read_avx2(const struct kern_row *f, const void *src, float *dst);
void kern_row_gather_avx2(const struct kern_row *f, const void *const *row, int64_t n, int64_t slot,
                          void *keys, void *values);
/* n <= 16 rows, none of FP4, that are side by side to f32 [width][16]; rows: f32 [16][width] of
 * scratch. The other lanes repeat the last row. */
void kern_row_tile_avx2(const struct kern_row *f, const void *src, int64_t n, float *rows,
                        float *tile);
/* n <= 16 FP4 rows that are side by side: doubled codes plus 12 as uint8 [width / 4][16][4], scales
 * as f32 [width / 32][16].  The other lanes repeat the last row. */
void kern_row_quads_avx2(const struct kern_row *f, const void *src, int64_t n, uint8_t *quads,
                         float *scale);

#endif
