/*
 * route - which experts rows use, and the pairs of rows and experts (device_route()).
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_ROUTE_H
#define INGLE_DEVICE_GPU_KERNELS_ROUTE_H

#include "device/gpu/kernels/args.h"

enum { ROUTE_THREADS = 128, ROUTE_MOST_IDS = 4096, ROUTE_MOST_USED = 64 };

/* Of each row of score + bias the k largest (ties: the lower index), or what the table says for
 * the row's token; ids ascending, weights as struct device_route has them.  All addresses are the
 * card's. */
struct route_choose_args {
    const float *score;    /* f32 [n_rows][stride] */
    const float *bias;     /* [n_ids], or NULL */
    const float *factor;   /* [n_ids], or NULL */
    const int32_t *table;  /* [n_tokens][k], or NULL */
    const int32_t *tokens; /* [n_rows], with a table */
    int32_t *id;           /* [n_rows][k] */
    float *weight;         /* [n_rows][k] */
    int64_t stride;
    int32_t n_rows, n_ids, k, normalise;
    float scale;
};
static inline struct gpu_grid route_choose_grid(const struct route_choose_args *a)
{
    return gpu_grid_of(a->n_rows, 1, 1);
}

/* Pairs by id, ascending, and by row: those of id e are [first[e], first[e + 1]). */
struct route_pairs_args {
    const int32_t *id; /* [n_rows][k] */
    int32_t *first;    /* [n_ids + 2] */
    int32_t *row;      /* [n_rows * k] */
    int32_t *slot;     /* [n_rows * k] */
    int32_t n_rows, n_ids, k;
};
/* A block an id. */
static inline struct gpu_grid route_pairs_grid(const struct route_pairs_args *a)
{
    return gpu_grid_of(a->n_ids, 1, 1);
}

#endif
