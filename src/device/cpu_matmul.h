/* cpu_matmul - the steps of a list of products, for the operations that are made of some. */
#ifndef INGLE_DEVICE_CPU_MATMUL_H
#define INGLE_DEVICE_CPU_MATMUL_H

#include "device/near.h"
#include "device/ops.h"

/* Activations that are prepared, and of what. */
struct device_ready {
    const float *x;
    enum kern_act_kind kind;
    struct kern_act act;
    struct device_near near;
};

/* A product, or the rows of one that have the same kernel. */
struct device_part {
    struct device_product p;
    kern_matmul_fn *fast; /* of fast numerics, or NULL */
    const struct kern_act *x; /* what the rows are of */
    uint8_t *rows;        /* where they stand one after another, or NULL */
    bool fill;            /* once this part has brought them there */
    struct device_near near; /* the block that x or rows is */
    const struct device_columns *only; /* columns of y, [n_only]; n_only 0: all */
    int64_t n_only;
};

static inline size_t device_round64(size_t n) { return (n + 63) & ~(size_t)63; }

/* The kernel of fast numerics, for any row or for a prompt's alone, or NULL. */
kern_matmul_fn *device_cpu_fast(const struct device *d, const struct device_matrix *w, bool prompt);
/* How w, with that kernel, wants its activations. */
enum kern_act_kind device_cpu_act_kind(const struct device *d, const struct device_matrix *w,
                                       kern_matmul_fn *fast);

/* Quantises the rows of act and brings them in the order of tiles, if it has a place for them; or
 * that alone.  Returns whether threads of all nodes did. */
bool device_cpu_prepare(struct device *d, const struct kern_act *act, bool tiles_single);
/* The block of what kernels read of act; by_all: written by chunks of all nodes. */
struct device_near device_cpu_near(struct device *d, const struct kern_act *act, bool by_all);
/* act as a worker reads it, whose codes or tiles may be of that block. */
void device_cpu_read_near(const struct device *d, const struct device_near *b, struct kern_act *act,
                          int worker);
/* Prepares the activations of n parts in memory from at on, and brings listed rows together; sets
 * what the parts say of them.  ready: [n].  Returns the address after them. */
uint8_t *device_cpu_ready(struct device *d, struct device_part *part, int64_t n,
                          struct device_ready *ready, uint8_t *at);
/* Computes n parts.  lists: device_cpu_parts_bytes(); decoded: of reference numerics, f32
 * [workers][widest], or NULL. */
void device_cpu_parts(struct device *d, const struct device_part *part, int64_t n, void *lists,
                      float *decoded, int64_t widest);
size_t device_cpu_parts_bytes(const struct device *d, int64_t n);

#endif
