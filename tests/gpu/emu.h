/*
 * emu - a card of one multiprocessor made of fibers, for tests.
 *
 * A fiber runs until it ends, meets a barrier or exchanges with its warp: a kernel without races
 * computes what a card computes.  The order in which threads, warps and blocks go on is a
 * parameter: a kernel whose bits depend on it has a race.  Shared memory is poisoned before each
 * block, a copy's bytes are poison until they are waited for.  These are errors that end the
 * program with the kernel's name: a barrier or an exchange that a part does not reach, a copy that
 * nobody waits for, an address that is not aligned, more shared memory than was asked for.
 */
#ifndef INGLE_TESTS_GPU_EMU_H
#define INGLE_TESTS_GPU_EMU_H

#include "device/gpu/kernels/args.h"
#include <stddef.h>

/* A kernel of kernels.inc. */
struct emu_kernel {
    const char *name, *module;
    void (*run)(const void *args);
    size_t n_args;          /* bytes of its struct */
    int threads;            /* of a block */
    size_t shared_bytes;    /* of a block */
};
enum emu_order { EMU_UP, EMU_DOWN, EMU_MIXED, EMU_ORDERS };

/* NULL: there is none of that name. */
const struct emu_kernel *emu_find(const char *name);
/* Kernel i of the list; NULL: there are fewer. */
const struct emu_kernel *emu_kernel_at(int i);
/* Runs all blocks on this thread. */
void emu_launch(const struct emu_kernel *k, struct gpu_grid grid, const void *args, size_t n_args,
                enum emu_order order);
/* The same with other shared memory than the list's. */
void emu_launch_with(const struct emu_kernel *k, struct gpu_grid grid, int threads,
                     size_t shared_bytes, const void *args, size_t n_args, enum emu_order order);

/* For emu_words.h. */
enum {
    EMU_WARP = 32,
    EMU_MAX = 1024,
    EMU_SHARED = 227 * 1024,
    EMU_COPIES = 128
};
enum emu_state { EMU_READY, EMU_AT_WARP, EMU_AT_BLOCK, EMU_DONE };
struct emu_copied {
    void *to;
    const void *from;
    int group;
};
struct emu_fiber {
    void *sp;
    int tid, n_copies, group;
    uint8_t state, turn;
    struct emu_copied copy[EMU_COPIES];
};
struct emu_exchange {
    uint32_t word[EMU_WARP];
    uint32_t frag[EMU_WARP][6];
    const void *row[EMU_WARP];
};
struct emu_block {
    int n_threads, at[3], n[3];
};
extern _Thread_local struct emu_fiber *emu_self;
extern _Thread_local const struct emu_block *emu_block;
void emu_wait(enum emu_state s);
/* This warp's next buffer. */
struct emu_exchange *emu_exchange(void);
void *emu_shared(size_t n_bytes);
void emu_copy(void *to, const void *from);
void emu_copy_commit(void);
void emu_copy_wait(int n);
void emu_fail(const char *what);
static inline void emu_aligned(const void *p, unsigned n)
{
    if ((uintptr_t)p % n)
        emu_fail("an address that is not aligned");
}

#endif
