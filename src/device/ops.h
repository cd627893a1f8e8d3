/*
 * ops - inside the room: what a device implements, and what its files have for each other.
 */
#ifndef INGLE_DEVICE_OPS_H
#define INGLE_DEVICE_OPS_H

#include "device/state.h"
#include "kern/touch.h"

extern const struct device_ops device_cpu_ops;
/* Bytes that an operation may want in the memory of each node: copies of codes, lists of rows. */
size_t device_cpu_near_bytes(const struct device *d, enum device_op op, const void *args);

/* gpu/gpu.c */
void device_gpu_close(struct device *d);
/* gpu/weight.c */
void device_gpu_matrix_release(struct device_matrix *m);
void device_gpu_vector_open(struct device_vector *v);
void device_gpu_vector_release(struct device_vector *v);

/* A recipe of fast numerics is used. */
void device_note_recipe(struct device *d, const char *recipe);

/* watch.c: of a device that is watched. */
void device_watch_products(struct device *d, const struct device_product *p, int64_t n);
void device_watch_mlp(struct device *d, const struct device_mlp *m, struct rows x, struct rows y);

/* The other step, if there may be one now; it may again after next_ns, 0: not known. */
void device_may_stop(struct device *d, uint64_t next_ns);
/* Whether operations are to stop in between. */
static inline bool device_in_pieces(const struct device *d)
{
    return d->between && d->between->piece_ns;
}

/* Floats: below this a wake-up of the pool costs more than it gains.  Where a join costs more than
 * a thread needs for so many, it is what a thread does in that time, up to MOST. */
enum { DEVICE_SMALL_WORK = 16384, DEVICE_MOST_SMALL_WORK = 16 * DEVICE_SMALL_WORK };
/* Runs fn over n_chunks: inline when the work (in floats touched, roughly) is at most
 * d->small_work. */
void device_cpu_for(struct device *d, int64_t n_chunks, int64_t work, pool_fn *fn, void *arg);
/* The same with chunks that have places: those of memory node k are [from[k], from[k] + n[k]). */
struct device_share { int64_t from[CPU_NODES_MAX], n[CPU_NODES_MAX]; };
void device_cpu_for_placed(struct device *d, const struct device_share *s, int64_t work,
                           pool_fn *fn, void *arg);
/* Which of n tasks has a chunk: the last one whose first chunk does not come after it.  first: that
 * of task 0; those of the others follow `step` bytes apart. */
int64_t device_task_of(const int64_t *first, size_t step, int64_t n, int64_t chunk);

#endif
