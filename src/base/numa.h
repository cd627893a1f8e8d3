/*
 * numa - on which memory nodes pages are.  Hints: what the system refuses changes no result.
 */
#ifndef INGLE_BASE_NUMA_H
#define INGLE_BASE_NUMA_H

#include "base/cpu.h"

struct numa_nodes {
    int n;                 /* below 2: nothing is ever asked of the system */
    int id[CPU_NODES_MAX]; /* the system's numbers */
};

/* The whole pages of [at, at + n) are on one node, or turn by turn on all, when they are first
 * touched; pages that are there move.  False: the system refused. */
bool numa_prefer(void *at, size_t n_bytes, int id);
bool numa_interleave(void *at, size_t n_bytes, const struct numa_nodes *nodes);
/* The node where the page of `at` is; -1: nowhere yet, or the system does not say. */
int numa_node_of(const void *at);
/* The same of n addresses at once, node [n].  False: the system does not say. */
bool numa_nodes_of(const void **at, size_t n, int *node);
/* Memory of a node, by the system's number; 0: the system does not say. */
void numa_memory(int id, uint64_t *bytes, uint64_t *free_bytes);

#endif
