/*
 * wide_amx_body - products of quantised weights with --numerics fast ("fast-wide", kern/matmul.h)
 * on tiles; included once for real ones and once for emulated ones, which defines KERNEL_NAME(name)
 * to be theirs: a super-block with one plane and no minimums.
 */
#ifndef INGLE_KERN_X86_MATMUL_WIDE_AMX_BODY_H
#define INGLE_KERN_X86_MATMUL_WIDE_AMX_BODY_H

#include "kern/x86/matmul/super_tiles.h"

FORM(wide, .n_parts = 1, .n_planes = 1, .low_signed = true)

#define WIDE_BIAS 0
#define WIDE(name, bytes)                                                                          \
    static void block_##name(struct block from, struct block ahead, struct planes *e,              \
                             struct scales *to)                                                    \
    {                                                                                              \
        expand_##name(from.chunk, ahead.chunk, e->low, to->d);                                     \
    }                                                                                              \
    void KERNEL_NAME(wide_##name)(const struct kern_matmul *m, int64_t p0, int64_t p1)             \
    {                                                                                              \
        run_wide(m, p0, p1, bytes, block_##name);                                                  \
    }
#include "kern/x86/matmul/wide512.h"

#endif
