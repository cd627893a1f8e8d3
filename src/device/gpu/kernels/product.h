/*
 * product - matrices times rows of activations, y[i][o] = sum_k W[o][k] x[i][k], as kern/matmul.h
 * has it: weights as kern_pack() lays them out, prepared activations, the same slices and bits.
 *
 * Kernels product_CODE_ROWS, CODE of kern/code.h in lower case, take ROWS of 1 to 3 rows through
 * a band of 64 outputs at a time by dot instructions, and any number of rows in turns; many_CODE
 * takes 32 rows at a time, by matrix instructions, of floats by tiles; embed_CODE writes rows of
 * the matrix as floats.
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_PRODUCT_H
#define INGLE_DEVICE_GPU_KERNELS_PRODUCT_H

#include "device/gpu/kernels/args.h"

enum {
    PRODUCT_THREADS = 256,
    PRODUCT_BAND = 64,          /* outputs: KERN_BAND panels */
    PRODUCT_SHARED = 48 * 1024, /* bytes at most */
    PRODUCT_BOOK = 32 * 1024,   /* of them, of codes of points: copies of their book */
    PRODUCT_TURNS = 65535,      /* of grid.y */
    MANY_ROWS = 32,             /* at a time */
    MANY_TILES = 4,             /* of 8 rows */
    MANY_THREADS = 128,
    MANY_BOOK = 8 * 1024,       /* bytes: copies of a book of points */
    MANY_FROM = 4,              /* rows: fewer are not faster by matrix instructions */
    MANY_FLOATS_FROM = 9        /* the same of floats: a thread has four rows of 32 */
};

/* One matrix, or a stack with rows for each. */
struct product_args {
    const uint8_t *w;           /* kern_matrix.at of the first of the stack ... */
    int64_t stack_step;         /* ... and from one to the next, */
    const uint64_t *each;       /* or [n_stack]: their addresses, 0: not there; NULL */
    int64_t panel_bytes, stretch_bytes;
    const uint8_t *x;           /* prepared rows: struct kern_act32, kern_act256, or f32 */
    int64_t x_row_bytes;
    const int32_t *row;         /* [rows]: the row of x that gives a row of y; NULL: the same */
    const int32_t *first;       /* [n_stack + 1]: rows of y of each matrix; NULL: n of one */
    const uint8_t *only;        /* [n_stack]: matrices with 0 are left out; NULL: none is */
    const float *scale;         /* [n_stack]: factors of y; NULL: none */
    /* Another one of the same form (gate and up), of the same rows; NULL: none.  Its y begins y2
     * floats after y. */
    const uint8_t *w2;
    const float *scale2;
    int64_t y2;
    float *y;                   /* f32 [rows][y_stride] */
    int64_t y_stride;
    int32_t out, in, n_panels;
    int32_t n;                  /* rows; of a stack: the most that a matrix may have */
    int32_t n_stack;            /* 1: one matrix, of index `index` */
    int32_t index;
    int32_t band0, n_bands;     /* outputs from 64 * band0 on */
    int32_t parts;              /* slices whose sums a block keeps: product_parts() */
    int32_t book;               /* bytes of shared memory before them: product_book() */
};

/* slice: 1,024 k, of floats 256 (kern_matrix_slice()).  At least 4. */
static inline int32_t product_parts(int64_t in, int64_t slice, int32_t rows, int32_t book)
{
    const int64_t n = gpu_parts(in, slice),
                  most = (PRODUCT_SHARED - book) / (PRODUCT_BAND * 4 * rows);
    return (int32_t)(n < 4 ? 4 : n < most ? n : most / 4 * 4);
}
static inline int32_t product_shared(const struct product_args *a, int32_t rows)
{
    return a->book + a->parts * rows * PRODUCT_BAND * 4;
}
static inline struct gpu_grid product_grid(const struct product_args *a, int32_t rows)
{
    const int64_t turns = gpu_parts(a->n, rows);
    return gpu_grid_of(a->n_bands, turns < PRODUCT_TURNS ? turns : PRODUCT_TURNS,
                       (a->first ? a->n_stack : 1) * (a->w2 ? 2 : 1));
}

/* Of many_CODE; parts and book are not read. */
static inline struct gpu_grid many_grid(const struct product_args *a)
{
    return product_grid(a, MANY_ROWS);
}

/* Rows tokens[i] of one matrix, times scale: a block of 128 threads a row of y. */
struct embed_args {
    const uint8_t *w;
    int64_t panel_bytes, stretch_bytes;
    const int32_t *tokens; /* [n] */
    float *y;              /* f32 [n][y_stride] */
    int64_t y_stride;
    float scale;
    int32_t in, n_panels, n;
};
static inline struct gpu_grid embed_grid(const struct embed_args *a)
{
    return gpu_grid_of(a->n, 1, 1);
}

#endif
