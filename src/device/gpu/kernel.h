/*
 * kernel - inside the folder: kernels, operations on the card, and the processor in their place.
 */
#ifndef INGLE_DEVICE_GPU_KERNEL_H
#define INGLE_DEVICE_GPU_KERNEL_H

#include "device/gpu/card.h"

/* ---- what operations read and write (uses.c) ---- */

enum { GPU_READS = 1, GPU_WRITES = 2, GPU_LIST = 4 /* integers or numbers of the host */ };
struct gpu_use {
    const void *at;
    size_t n_bytes;
    int how;
    bool whole; /* rows without columns between them that are not theirs */
};
typedef void gpu_use_fn(void *arg, const struct gpu_use *use);
void device_gpu_uses(enum device_op op, const void *args, gpu_use_fn *fn, void *arg);

/* Where matrix `index` of m is on the card; NULL: it does not. */
const uint8_t *device_gpu_weights(const struct device_matrix *m, int64_t index);

/* The matrices of an operation, of which some may have no contents in the host's memory, get them
 * there.  False: they cannot, and the device has failed. */
bool device_gpu_home(struct device *d, enum device_op op, const void *args);
/* The whole stack to m->card (upload.c). */
bool device_gpu_put_stack(struct device_matrix *m);

/* ---- the processor (stand.c) ---- */

/* Runs it on the processor; what of pages and matrices is on the card is copied for it. */
void device_gpu_on_host(struct device *d, enum device_op op, const void *args, void *scratch);
/* An operation on a side that it is known to have. */
void device_gpu_on_side(struct device *d, enum device_op op, const void *args, void *scratch,
                        enum device_side side);
/* Products and experts of which some are on the card: each side has its own. */
void device_gpu_divide(struct device *d, enum device_op op, const void *args, void *scratch);

void device_gpu_set_choice(struct device *d, device_gpu_choice_fn *fn, void *arg);

/* ---- kernels (kernels.c, launch.c) ---- */

struct gpu_kernel_about {
    const char *name, *module;
    int number, threads; /* number: of its module */
    size_t shared;
};
extern const struct gpu_kernel_about device_gpu_kernels[GPU_KERNELS];
/* Whether the card has it; loads its module the first time: not within a step. */
bool device_gpu_has(struct device *d, enum gpu_kernel k);
/* Why the kernel that was requested last is not used, if that was not reported yet; or `otherwise`.
 */
const char *device_gpu_why(struct device *d, const char *otherwise);
/* As device_gpu_has(), of a kernel that a slower one of the card replaces: that is reported. */
bool device_gpu_has_faster(struct device *d, enum gpu_kernel k);
/* The comparison's memory, when the stream is no more. */
void device_gpu_self_close(struct device *d);
/* Runs it once beside the processor (self.c); false: its bits differ. */
bool device_gpu_self(struct device *d, enum gpu_kernel k, const char *name, const char *module);
/* shared: bytes, at most those of the list; 0: those.  False: the card is lost.  An empty grid is
 * nothing to do. */
bool device_gpu_launch(struct device *d, enum gpu_kernel k, struct gpu_grid grid, const void *args,
                       size_t n_args, size_t shared);
/* Loads the first kernel; INGLE_UNSUP: the driver refuses the code, or it computes wrongly. */
MUST_CHECK ingle_status device_gpu_kernels_open(struct device *d, struct err *err);
void device_gpu_kernels_close(struct device *d);

/* ---- operations on the card (run_*.c) ---- */

/* False: the card has no kernel for this; nothing has been done. */
typedef bool gpu_run_fn(struct device *d, const void *args, void *scratch);
extern gpu_run_fn *const device_gpu_run[DEVICE_OPS];
/* Bytes of scratch that it wants on the card. */
size_t device_gpu_scratch(const struct device *d, enum device_op op, const void *args);

#endif
