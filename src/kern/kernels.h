/*
 * kernels - declares the functions that the lists name; for this room and its tests.
 */
#ifndef INGLE_KERN_KERNELS_H
#define INGLE_KERN_KERNELS_H

#include "kern/code.h"
#include "kern/sets.h"
#include <math.h>

#define KERN_MATMUL(needs, code, fn) kern_matmul_fn fn;
#include "kern/matmul.inc"
#undef KERN_MATMUL
#define KERN_ACT(needs, kind, fn) kern_act_fn fn;
#include "kern/act.inc"
#undef KERN_ACT

#define KERN_TILES(needs, kind, fn) kern_act_fn fn;
#include "kern/tiles.inc"
#undef KERN_TILES
#define KERN_MANY(needs, code, fn) kern_matmul_fn fn;
#include "kern/many.inc"
#undef KERN_MANY
#define KERN_AHEAD(needs, code, fn) kern_matmul_fn fn;
#include "kern/ahead.inc"
#undef KERN_AHEAD
#define KERN_FAST_REF(recipe, fn)          kern_matmul_fn fn;
#define KERN_FAST(needs, recipe, code, fn) kern_matmul_fn fn;
#include "kern/fast.inc"
#undef KERN_FAST
#undef KERN_FAST_REF

/* Zeros of which no cache holds a line; at and n_bytes are multiples of 64. */
void kern_cold_zeros_avx2(uint8_t *at, size_t n_bytes);

/* 256 k of row r of panel p, the i-th ones, as "fast-wide" has them: bytes [256]; returned is their
 * scale. */
float kern_fast_wide_read(const struct kern_matrix *w, int64_t p, int64_t i, int r, int8_t *to);
/* x as bf16, to nearest even; subnormal numbers are zeros. */
static inline uint16_t kern_fast_bf16(float x)
{
    const uint16_t h = quant_f32_to_bf16(x);
    return fabsf(x) < 0x1p-126f ? h & 0x8000 : h;
}

#endif
