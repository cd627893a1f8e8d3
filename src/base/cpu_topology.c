/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processors share a core, a package and a memory node, and in which order threads are
 * given to them.  Reads /proc and /sys under a root; what they hide or garble keeps a default:
 * every processor a core of its own, one package, one node.
 */
#define _GNU_SOURCE
#include "base/cpu.h"

#include "base/mem.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, LIST_BYTES = 32768 };

struct set { bool has[CPU_IDS_MAX]; };

struct reader {
    const char *root;
    char *text; /* [LIST_BYTES] */
    struct set *list;
};

/* A file as text, cut where it is too long; false when it cannot be read. */
static bool read_text(const struct reader *r, const char *path)
{
    char full[PATH_BYTES];
    if ((size_t)snprintf(full, sizeof full, "%s%s", r->root, path) >= sizeof full)
        return false;
    FILE *f = fopen(full, "re");
    if (!f)
        return false;
    const size_t n = fread(r->text, 1, LIST_BYTES - 1, f);
    r->text[n] = 0;
    fclose(f);
    return n > 0;
}

/* "0-3,8,10-11" and after it only a line's end. */
static bool parse_list(const char *at, struct set *out)
{
    bool any = false;
    memset(out, 0, sizeof *out);
    for (;;) {
        char *end;
        if (*at < '0' || *at > '9')
            return false;
        const unsigned long first = strtoul(at, &end, 10);
        unsigned long last = first;
        if (*end == '-') {
            at = end + 1;
            if (*at < '0' || *at > '9')
                return false;
            last = strtoul(at, &end, 10);
        }
        if (last < first || last >= CPU_IDS_MAX)
            return false;
        for (unsigned long i = first; i <= last; i++)
            out->has[i] = any = true;
        if (*end != ',')
            return any && (!*end || *end == '\n');
        at = end + 1;
    }
}

static bool read_list(const struct reader *r, const char *path, struct set *out)
{
    return read_text(r, path) && parse_list(r->text, out);
}

static bool read_int(const struct reader *r, const char *path, long *out)
{
    char *end;
    if (!read_text(r, path))
        return false;
    *out = strtol(r->text, &end, 10);
    return end != r->text && (!*end || *end == '\n');
}

static bool read_of_cpu(const struct reader *r, int cpu, const char *name, long *out)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", cpu, name);
    return read_int(r, path, out);
}

/* ---- which processors ---- */

/* The affinity of the calling thread: of a made-up machine from its /proc. */
static bool read_affinity(const struct reader *r, struct set *may)
{
    static const char key[] = "\nCpus_allowed_list:";
    if (*r->root) {
        const char *at = read_text(r, "/proc/thread-self/status") ? strstr(r->text, key) : NULL;
        return at && parse_list(at + sizeof key - 1 + strspn(at + sizeof key - 1, " \t"), may);
    }
    const size_t n = CPU_ALLOC_SIZE(CPU_IDS_MAX);
    cpu_set_t *set = CPU_ALLOC(CPU_IDS_MAX);
    const bool ok = set && sched_getaffinity(0, n, set) == 0;
    for (size_t i = 0; ok && i < CPU_IDS_MAX; i++)
        may->has[i] = CPU_ISSET_S(i, n, set);
    CPU_FREE(set);
    return ok;
}

static void read_processors(const struct reader *r, struct set *may)
{
    const bool bound = read_affinity(r, may);
    bool any = false;
    if (read_list(r, "/sys/devices/system/cpu/online", r->list)) {
        for (int i = 0; i < CPU_IDS_MAX; i++)
            any |= (r->list->has[i] &= !bound || may->has[i]);
        if (any)
            memcpy(may, r->list, sizeof *may);
    }
    for (int i = 0; bound && i < CPU_IDS_MAX; i++)
        any |= may->has[i];
    if (!any) {
        memset(may, 0, sizeof *may);
        may->has[0] = true;
    }
}

/* The lowest processor of a list that i belongs to; `unknown` when the system hides it. */
static int first_of(const struct reader *r, int i, const char *list, int unknown)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", i, list);
    if (!read_list(r, path, r->list) || !r->list->has[i])
        return unknown;
    int first = 0;
    while (!r->list->has[first])
        first++;
    return first;
}


/* Slow are the cores that Intel calls atoms, and those of less capacity than others (Arm). */
static void find_slow(const struct reader *r, struct cpu_topology *t)
{
    long most = 0, c;
    if (read_list(r, "/sys/devices/cpu_atom/cpus", r->list))
        for (int i = 0; i < t->n_cpus; i++)
            t->cpu[i].slow = r->list->has[t->cpu[i].id];
    for (int i = 0; i < t->n_cpus; i++)
        if (read_of_cpu(r, t->cpu[i].id, "cpu_capacity", &c) && c > most)
            most = c;
    for (int i = 0; most && i < t->n_cpus; i++)
        if (read_of_cpu(r, t->cpu[i].id, "cpu_capacity", &c) && c > 0)
            t->cpu[i].slow |= c < most;
    int n_fast = 0;
    for (int i = 0; i < t->n_cpus; i++)
        n_fast += !t->cpu[i].slow;
    for (int i = 0; !n_fast && i < t->n_cpus; i++)
        t->cpu[i].slow = false;
}

/* ---- nodes ---- */

/* The nearest node that has memory: the node itself if it has. */
static int with_memory(const struct reader *r, int node, const struct set *memory)
{
    char path[128];
    if (memory->has[node])
        return node;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/distance", node);
    const char *at = read_text(r, path) ? r->text : "";
    int best = -1;
    long least = 0;
    /* One distance for each node that is online, in their order. */
    struct set *online = mem_calloc(1, sizeof *online);
    char *line = mem_strdup(at);
    if (online && line && read_list(r, "/sys/devices/system/node/online", online)) {
        char *next = line;
        for (int i = 0; i < CPU_IDS_MAX; i++) {
            if (!online->has[i])
                continue;
            char *end;
            const long d = strtol(next, &end, 10);
            if (end == next)
                break;
            next = end;
            if (memory->has[i] && (best < 0 || d < least)) {
                best = i;
                least = d;
            }
        }
    }
    mem_free(online);
    mem_free(line);
    for (int i = 0; best < 0 && i < CPU_IDS_MAX; i++)
        if (memory->has[i])
            best = i;
    return best < 0 ? node : best;
}

/* The number of a home among ours; it is a new one, or there are too many. */
static int index_of(struct cpu_topology *t, int home)
{
    int i = 0;
    while (i < t->n_nodes && t->node_id[i] != home)
        i++;
    if (i == CPU_NODES_MAX)
        return 0;
    t->node_id[i] = home;
    t->n_nodes += i == t->n_nodes;
    return i;
}

/* Nodes that have processors of ours, numbered from 0. */
static bool read_nodes(const struct reader *r, struct cpu_topology *t)
{
    struct set *online = mem_calloc(3, sizeof *online), *memory = online + 1, *here = online + 2;
    char path[128];
    if (!online)
        return false;
    if (!read_list(r, "/sys/devices/system/node/online", online))
        memset(online, 0, sizeof *online);
    if (!read_list(r, "/sys/devices/system/node/has_memory", memory))
        memcpy(memory, online, sizeof *memory);
    for (int node = 0; node < CPU_IDS_MAX; node++) {
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        if (!online->has[node] || !read_list(r, path, here))
            continue;
        int index = -1;
        for (int i = 0; i < t->n_cpus; i++)
            if (here->has[t->cpu[i].id]) {
                if (index < 0)
                    index = index_of(t, with_memory(r, node, memory));
                t->cpu[i].node = index;
            }
    }
    mem_free(online);
    if (!t->n_nodes)
        t->n_nodes = 1;
    return true;
}

/* ---- order ---- */

/* Threads go to fast cores, then slow ones, then siblings; of each the nodes get shares in
 * proportion, so that any number of threads reads from all of them. */
static bool set_order(struct cpu_topology *t)
{
    struct cpu_place *sorted = mem_calloc((size_t)t->n_cpus, sizeof *sorted);
    bool *taken = mem_calloc(CPU_IDS_MAX, 2 * sizeof *taken),
         *core = taken ? taken + CPU_IDS_MAX : NULL;
    int has[CPU_NODES_MAX] = {0}, got[CPU_NODES_MAX] = {0};
    if (!sorted || !taken) {
        mem_free(sorted);
        mem_free(taken);
        return false;
    }
    for (int i = 0; i < t->n_cpus; i++)
        has[t->cpu[i].node]++;
    for (int n = 0; n < t->n_cpus; n++) {
        int best = -1, best_rank = 0;
        for (int i = 0; i < t->n_cpus; i++) {
            const struct cpu_place *p = &t->cpu[i];
            if (taken[i])
                continue;
            const int rank = core[p->core] ? 2 : p->slow, a = p->node,
                      b = best < 0 ? a : t->cpu[best].node;
            if (best < 0 || rank < best_rank ||
                (rank == best_rank && (got[a] + 1) * has[b] < (got[b] + 1) * has[a])) {
                best = i;
                best_rank = rank;
            }
        }
        sorted[n] = t->cpu[best];
        taken[best] = core[sorted[n].core] = true;
        got[sorted[n].node]++;
        t->n_cores += best_rank < 2;
        t->n_slow += best_rank == 1;
    }
    mem_free(taken);
    mem_free(t->cpu);
    t->cpu = sorted;
    return true;
}

static int count_packages(const struct cpu_topology *t)
{
    int n = 0;
    for (int i = 0; i < t->n_cpus; i++) {
        int j = 0;
        while (t->cpu[j].package != t->cpu[i].package)
            j++;
        n += i == j;
    }
    return n;
}

static bool read_all(const struct reader *r, struct cpu_topology *t, struct set *may)
{
    read_processors(r, may);
    for (int i = 0; i < CPU_IDS_MAX; i++)
        t->n_cpus += may->has[i];
    t->cpu = mem_calloc((size_t)t->n_cpus, sizeof *t->cpu);
    if (!t->cpu)
        return false;
    for (int i = 0, n = 0; i < CPU_IDS_MAX; i++) {
        long package;
        if (!may->has[i])
            continue;
        struct cpu_place *p = &t->cpu[n++];
        p->id = i;
        p->core = first_of(r, i, "topology/thread_siblings_list", i);
        p->cache = first_of(r, i, "cache/index3/shared_cpu_list", -1);
        if (read_of_cpu(r, i, "topology/physical_package_id", &package) && package >= 0 &&
            package < CPU_IDS_MAX)
            p->package = (int)package;
    }
    find_slow(r, t);
    t->n_packages = count_packages(t);
    return read_nodes(r, t) && set_order(t);
}

bool cpu_topology_read_at(struct cpu_topology *t, const char *root)
{
    struct reader r = {root, mem_alloc(LIST_BYTES), mem_calloc(1, sizeof *r.list)};
    struct set *may = mem_calloc(1, sizeof *may);
    *t = (struct cpu_topology){0};
    const bool ok = r.text && r.list && may && read_all(&r, t, may);
    mem_free(r.text);
    mem_free(r.list);
    mem_free(may);
    if (!ok)
        cpu_topology_release(t);
    return ok;
}

bool cpu_topology_read(struct cpu_topology *t)
{
    return cpu_topology_read_at(t, "");
}

void cpu_topology_release(struct cpu_topology *t)
{
    mem_free(t->cpu);
    *t = (struct cpu_topology){0};
}

void cpu_topology_join(struct cpu_topology *t)
{
    for (int i = 0; i < t->n_cpus; i++)
        t->cpu[i].node = 0;
    t->n_nodes = 1;
}
