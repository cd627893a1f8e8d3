/*
 * table - inside the room: the list of operations, and the table that a device fills.
 *
 * One function an operation, each with a plain struct of arguments, so that another device
 * can fill the same table and refuse an operation by number.
 */
#ifndef INGLE_DEVICE_TABLE_H
#define INGLE_DEVICE_TABLE_H

#include "device/args.h"
#include "device/args_pages.h"

#define DEVICE_OP_LIST(X)                                                                  \
    X(embed) X(write) X(copy) X(norm) X(add_norm) X(add) X(scale) X(mul) X(mul_vector)     \
    X(glu) X(softcap) X(softmax) X(sqrt_softplus) X(rope_table) X(rope) X(rope_pairs)      \
    X(matmul) X(kv_append) X(attend) X(weighted_sum) X(hc_pre) X(hc_post) X(rows_append)   \
    X(compress) X(select) X(attend_latent) X(hadamard) X(mlp) X(rows_read)       \
    X(shadow_append) X(select_pages) X(attend_selected) X(probe) X(clamp) X(layer_norm)    \
    X(dense_put) X(dense_attend) X(each) X(route) X(gather)

enum device_op {
#define X(name) DEVICE_OP_##name,
    DEVICE_OP_LIST(X)
#undef X
    DEVICE_OPS
};

/* What an operation must move and compute, whoever does it. */
struct device_cost { double bytes, ops; };

/* Of a device that has memory for itself; its products know which matrices are there
 * (device_matrix.own). */
struct device_own_ops {
    uint64_t (*bytes)(const struct device *d);
    void *(*take)(struct device *d, size_t n_bytes);
    void (*give)(struct device *d, void *own, size_t n_bytes);
    void (*put)(struct device *d, void *own, const void *host, size_t n_bytes);
    void (*get)(struct device *d, void *host, const void *own, size_t n_bytes);
    void (*copy)(struct device *d, void *to, const void *from, size_t n_bytes);
};

struct device_ops {
    const char *name;
    /* Bytes of arena that an operation needs while it runs (at most, in a dry run). */
    size_t (*scratch)(const struct device *d, enum device_op op, const void *args);
    void (*run[DEVICE_OPS])(struct device *d, const void *args, void *scratch);
    /* device_read(), device_wrote(), device_host_take() and device_host_give(); NULL: the arena is
     * the host's only. */
    void (*read)(struct device *d, const void *at, size_t n_bytes);
    void (*wrote)(struct device *d, const void *at, size_t n_bytes);
    void *(*host_take)(struct device *d, size_t n_bytes);
    void (*host_give)(struct device *d, void *at, size_t n_bytes);
    /* The arena: reserved, a piece of it begins, pieces from mark on end; NULL as above. */
    ingle_status (*arena)(struct device *d, size_t n_bytes, struct err *err);
    void (*took)(struct device *d, size_t at, size_t n_bytes);
    void (*released)(struct device *d, size_t mark);
    void (*resumed)(struct device *d); /* after device_resume() */
    /* For the profile: weights or keys and values read from memory; zeros where it is too little
     * to count. */
    struct device_cost (*cost)(const struct device *d, enum device_op op, const void *args);
    /* For the profile: kernels that were launched, all of which have ended; NULL: it has none. */
    uint64_t (*launches)(struct device *d);
    const struct device_own_ops *own; /* NULL: it has the host's memory only */
};

#endif
