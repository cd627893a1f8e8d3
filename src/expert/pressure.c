/* SPDX-License-Identifier: Apache-2.0 */
/* pressure - whether memory is short: what is free, and how long the control group waited for
 * memory. */
#define _GNU_SOURCE
#include "expert/tiered.h"

#include "base/cpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t least_free = (uint64_t)512 << 20, part_free = 32; /* of all memory */
/* per cent of the last 10 s */
static const double most_waiting = 10;

/* "some avg10=0.12 avg60=..."; 0 where there is no such file. */
static double waiting_of(const char *path)
{
    char line[160] = "";
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    const char *at = fgets(line, sizeof line, f) ? strstr(line, "avg10=") : NULL;
    fclose(f);
    return at ? strtod(at + 6, NULL) : 0;
}

/* Of this process's group, by its line "0::/path". */
static double group_waiting(void)
{
    char line[512], path[640];
    double v = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "0::", 3) == 0 && line[3]) {
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.pressure", line + 3);
            v = waiting_of(path);
        }
    }
    if (f)
        fclose(f);
    return v;
}

bool expert_memory_is_short(char *why, size_t n)
{
    struct cpu_machine m;
    cpu_machine_read(&m);
    const uint64_t all = m.memory_limit_bytes && m.memory_limit_bytes < m.memory_bytes
                             ? m.memory_limit_bytes
                             : m.memory_bytes;
    const uint64_t least = all / part_free < least_free ? all / part_free : least_free;
    if (!m.memory_unread && m.memory_free_bytes < least) {
        snprintf(why, n, "%.2f GB are free", (double)m.memory_free_bytes * 1e-9);
        return true;
    }
    const double group = group_waiting(), machine = waiting_of("/proc/pressure/memory"),
                 v = group > machine ? group : machine;
    if (v < most_waiting)
        return false;
    snprintf(why, n, "%.0f %% of the last 10 s were spent waiting for memory", v);
    return true;
}
