/*
 * words - what a card makes of each word of gpu.h, for the self-test at start: that compiler,
 * assembler and card do what their description says.
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_WORDS_H
#define INGLE_DEVICE_GPU_KERNELS_WORDS_H

#include "device/gpu/kernels/args.h"

enum { WORDS_THREADS = 64, WORDS_OUT = 24, WORDS_MATRIX_OUT = 20 };

/* One block. */
struct words_check_args {
    const uint32_t *a, *b, *c; /* [64]; 16-byte aligned */
    const float *x, *y, *z;    /* [64] */
    uint32_t *out;             /* [WORDS_OUT][64]: words and bits of floats */
};

/* One block of a warp. */
struct words_matrix_check_args {
    const uint32_t *a, *b; /* [32][4]: two matrices of 16 and 8 rows of 32 bytes each */
    uint32_t *out;         /* [WORDS_MATRIX_OUT][32] */
};

#endif
