/*
 * near - inside the room: copies on each memory node of what threads of all nodes read (near.c).
 */
#ifndef INGLE_DEVICE_NEAR_H
#define INGLE_DEVICE_NEAR_H

#include "device/state.h"

/* A block that threads of all nodes read, written by those of node `home`, or by all (-1).
 * from NULL: there is none. */
struct device_near {
    const uint8_t *from;
    size_t n_bytes;
    int home;
    size_t state, at; /* in the memory of a node: which line, and where the copy is */
    uint64_t number;
};
/* Blocks of the last operation are over. */
void device_near_begin(struct device *d);
/* Without a block where there is one node, or no room. */
struct device_near device_near_add(struct device *d, const uint8_t *from, size_t n_bytes, int home);
static inline bool device_near_has(const struct device_near *b, const uint8_t *at)
{
    return at >= b->from && at < b->from + b->n_bytes;
}
/* Where a worker reads what is at `at` of the block; within a job. */
const uint8_t *device_near_read(const struct device *d, const struct device_near *b,
                                const uint8_t *at, int worker);
/* Memory of each node for what its threads write and read in an operation; returns node 0's, or
 * NULL where there is one node, or no room.  Another step that comes in between overwrites it. */
uint8_t *device_near_take(struct device *d, size_t n_bytes);
/* What was taken, of a node. */
static inline uint8_t *device_near_of(const struct device *d, uint8_t *taken, int node)
{
    return taken + (size_t)node * d->near.n_bytes;
}
/* By a dry run: an operation may have blocks of so many bytes in all, each rounded up to 64. */
void device_near_want(struct device *d, size_t n_bytes);
/* On all nodes. */
size_t device_near_bytes(const struct device *d);
MUST_CHECK ingle_status device_near_reserve(struct device *d, struct err *err);
void device_near_release(struct device *d);

#endif
