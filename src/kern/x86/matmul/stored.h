/*
 * stored - blocks of the types that run from their stored rows, spread for the tiles.
 */
#ifndef INGLE_KERN_X86_MATMUL_STORED_H
#define INGLE_KERN_X86_MATMUL_STORED_H

#include "kern/code.h"

/* A super-block of 16 rows: codes (value + 64) as an 8-bit plane [8 groups][8 lines][64],
 * signed sub-scales [16][16], d as f32 [16]. */
enum { STORED_BIAS = 64, STORED_SUB = 4096, STORED_D = 4352, STORED_BYTES = 4416 };

void kern_stored_expand_avx2(const struct kern_matrix *w, const uint8_t *panel, int64_t b,
                             uint8_t *chunk);

#endif
