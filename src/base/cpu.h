/*
 * cpu - which instruction sets this processor and its operating system offer, as bundles
 * that exist on real chips, and what the machine grants this process.
 */
#ifndef INGLE_BASE_CPU_H
#define INGLE_BASE_CPU_H

#include "base/attr.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CPU_AVX2 = 1 << 0,       /* AVX2, FMA, F16C, BMI2 */
    CPU_AVXVNNI = 1 << 1,    /* AVX2 and VEX VPDPBUSD */
    CPU_AVX512 = 1 << 2,     /* F, BW, DQ, VL, CD */
    CPU_AVX512VNNI = 1 << 3, /* AVX512 and VNNI */
    CPU_AVX512VBMI = 1 << 5, /* AVX512VNNI and VBMI, BITALG, GFNI */
    CPU_AMX = 1 << 4,        /* AMX-TILE, AMX-INT8, AMX-BF16, granted by the system */
    /* a VDPBF16PS that does twice FMA's work; part of the level avx512vbmi. */
    CPU_BF16PAIRS = 1 << 6,
                             /* Intel's does half of it and does not count. */
    CPU_AMX_EMULATED = 1 << 7, /* no machine has it: tests run the kernels for AMX on vectors */
};

/* The bundles of this machine (0 where the build has no vector kernels: plain C computes). */
uint32_t cpu_detect(void);

/* Masks for "ref", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512vbmi", "amx": the named
 * level and all below it.  False: no such name. */
bool cpu_level(const char *name, uint32_t *mask);

/* The name of the highest bundle in the mask, "ref" for none. */
const char *cpu_name(uint32_t mask);

enum { CPU_IDS_MAX = 8192, CPU_NODES_MAX = 64 };

struct cpu_place {
    int id;      /* the system's number */
    int core;    /* the lowest number of those that share it */
    int package;
    int node;    /* of memory, 0 to n_nodes; of a node without memory its nearest one with */
    bool slow;   /* an efficiency core beside faster ones */
    int cache;   /* the lowest number of those that share a third-level cache; -1: not known */
};

/* The processors that this thread may run on, in the order in which threads get them: fast
 * cores, slow cores, siblings; among equals nodes in proportion to what they have. */
struct cpu_topology {
    struct cpu_place *cpu; /* owned */
    int n_cpus, n_cores, n_slow, n_packages; /* at least 1; n_slow: of the cores */
    int n_nodes;                             /* with processors of ours */
    int node_id[CPU_NODES_MAX];              /* the system's numbers */
};

/* False: out of memory. */
MUST_CHECK bool cpu_topology_read(struct cpu_topology *t);
/* The same with /proc and /sys under another root, "" for the real ones. */
MUST_CHECK bool cpu_topology_read_at(struct cpu_topology *t, const char *root);
void cpu_topology_release(struct cpu_topology *t);
/* All nodes become one. */
void cpu_topology_join(struct cpu_topology *t);

struct cpu_machine {
    char model[96];      /* "" when unknown */
    int n_logical;       /* processors this process may run on */
    int n_physical;      /* distinct cores among them */
    int n_slow;          /* efficiency cores among those */
    int n_packages, n_nodes;
    double quota_cores;  /* cgroup limit, or n_logical */
    size_t l1d_bytes, l2_bytes, l3_bytes;
    uint64_t memory_bytes;       /* of the machine */
    uint64_t memory_limit_bytes; /* of the cgroup, or memory_bytes */
    uint64_t memory_free_bytes;  /* available now, within the limit */
    /* /proc/meminfo cannot be read: memory_free_bytes is all that there is, or 0 if that is not
     * known either */
    bool memory_unread;
};

void cpu_machine_read(struct cpu_machine *m);

/* The same with /proc and /sys under another root, "" for the real ones. */
void cpu_machine_read_at(struct cpu_machine *m, const char *root);

/* Threads to use when nobody said: physical cores within the quota, at least 1. */
int cpu_default_threads(const struct cpu_machine *m);

#endif
