/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/numa.h"

#include <stdio.h>
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

bool numa_nodes_of(const void **at, size_t n, int *node)
{
    return syscall(SYS_move_pages, 0, (unsigned long)n, at, NULL, node, 0) == 0;
}

#else

enum { PREFERRED, INTERLEAVE };

static bool bind(void *at, size_t n_bytes, int mode, const struct numa_nodes *nodes)
{
    (void)at, (void)n_bytes, (void)mode, (void)nodes;
    return false;
}

bool numa_nodes_of(const void **at, size_t n, int *node)
{
    (void)at, (void)n, (void)node;
    return false;
}

#endif

int numa_node_of(const void *at)
{
    int node = -1;
    return numa_nodes_of(&at, 1, &node) && node >= 0 ? node : -1;
}

bool numa_prefer(void *at, size_t n_bytes, int id)
{
    return bind(at, n_bytes, PREFERRED, &(struct numa_nodes){1, {id}});
}

bool numa_interleave(void *at, size_t n_bytes, const struct numa_nodes *nodes)
{
    return nodes->n < 2 || bind(at, n_bytes, INTERLEAVE, nodes);
}

void numa_memory(int id, uint64_t *bytes, uint64_t *free_bytes)
{
    char path[64], line[128];
    unsigned long long kib;
    *bytes = *free_bytes = 0;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", id);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "Node %*d MemTotal: %llu kB", &kib) == 1)
            *bytes = (uint64_t)kib << 10;
        if (sscanf(line, "Node %*d MemFree: %llu kB", &kib) == 1)
            *free_bytes = (uint64_t)kib << 10;
    }
    if (f)
        fclose(f);
}
