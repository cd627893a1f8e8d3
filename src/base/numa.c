/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/numa.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(SYS_mbind) && defined(SYS_move_pages)

/* Of linux/mempolicy.h, which not every system has. */
enum {
    PREFERRED = 1,
    INTERLEAVE = 3,
    MOVE = 2,
    MASK_BITS = 1024,
    WORD_BITS = 8 * sizeof(unsigned long)
};

static bool bind(void *at, size_t n_bytes, int mode, const struct numa_nodes *nodes)
{
    unsigned long mask[MASK_BITS / WORD_BITS] = {0};
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)at + page - 1) / page * page,
                    end = ((uintptr_t)at + n_bytes) / page * page;
    for (int i = 0; i < nodes->n; i++) {
        if (nodes->id[i] < 0 || nodes->id[i] >= MASK_BITS)
            return false;
        mask[(unsigned)nodes->id[i] / WORD_BITS] |= 1ul << (unsigned)nodes->id[i] % WORD_BITS;
    }
    return first >= end ||
           syscall(SYS_mbind, first, end - first, mode, mask, (unsigned long)MASK_BITS, MOVE) == 0;
}

int numa_node_of(const void *at)
{
    int node = -1;
    return syscall(SYS_move_pages, 0, 1ul, &at, NULL, &node, 0) == 0 ? node : -1;
}

#else

enum { PREFERRED, INTERLEAVE };

static bool bind(void *at, size_t n_bytes, int mode, const struct numa_nodes *nodes)
{
    (void)at, (void)n_bytes, (void)mode, (void)nodes;
    return false;
}

int numa_node_of(const void *at)
{
    (void)at;
    return -1;
}

#endif

bool numa_prefer(void *at, size_t n_bytes, int id)
{
    return bind(at, n_bytes, PREFERRED, &(struct numa_nodes){1, {id}});
}

bool numa_interleave(void *at, size_t n_bytes, const struct numa_nodes *nodes)
{
    return nodes->n < 2 || bind(at, n_bytes, INTERLEAVE, nodes);
}
