/*
 * args - what the host and the kernels of a card share: C11 that is C++, too.
 *
 * Each theme of kernels has a header THEME.h with one plain struct of arguments for each kernel
 * and, beside it, a function THEME_NAME_grid() that says how many blocks a launch has.  A struct
 * has fixed-width members, floats and pointers of the card; at most 4 KB.
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_ARGS_H
#define INGLE_DEVICE_GPU_KERNELS_ARGS_H

#include <stdbool.h>
#include <stdint.h>

/* Blocks of a launch: x at most 2^31 - 1, y and z at most 65,535. */
struct gpu_grid {
    int32_t x, y, z;
};

static inline struct gpu_grid gpu_grid_of(int64_t x, int64_t y, int64_t z)
{
    struct gpu_grid g = {(int32_t)x, (int32_t)y, (int32_t)z};
    return g;
}

/* Whole parts of n. */
static inline int64_t gpu_parts(int64_t n, int64_t part)
{
    return (n + part - 1) / part;
}

#endif
