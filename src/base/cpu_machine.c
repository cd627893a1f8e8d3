/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the machine has and what the control groups of this process leave of it.  Reads
 * /proc and /sys; whatever they hide keeps a safe default.
 */
#define _GNU_SOURCE
#include "base/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

enum { PATH_BYTES = 4096 };

/* The first bytes of a file as text; false when it cannot be read. */
static bool read_text(const char *path, char *buf, size_t cap)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    const size_t n = fread(buf, 1, cap - 1, f);
    buf[n] = 0;
    fclose(f);
    return n > 0;
}

static bool read_u64(const char *dir, const char *name, uint64_t *out)
{
    char path[PATH_BYTES + 64], buf[64], *end;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!read_text(path, buf, sizeof buf))
        return false;
    const unsigned long long v = strtoull(buf, &end, 10);
    if (end == buf || buf[0] == '-') /* "max": no limit; -1: none either */
        return false;
    *out = v;
    return true;
}

/* The number after "key" at the start of a line; 0 when there is none. */
static uint64_t field_u64(const char *text, const char *key)
{
    const size_t n = strlen(key);
    for (const char *at = text; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, key, n) == 0)
            return strtoull(at + n, NULL, 10);
    }
    return 0;
}

/* ---- control groups: one folder a level, each may limit ---- */

static void limit_cpu(struct cpu_machine *m, double cores)
{
    if (cores > 0 && cores < m->quota_cores)
        m->quota_cores = cores;
}

static void limit_memory(struct cpu_machine *m, uint64_t limit, uint64_t used, uint64_t reclaimable)
{
    if (limit >= m->memory_bytes) /* version 1 writes a huge number for none */
        return;
    if (limit < m->memory_limit_bytes)
        m->memory_limit_bytes = limit;
    used -= reclaimable < used ? reclaimable : used;
    const uint64_t free_bytes = used < limit ? limit - used : 0;
    if (free_bytes < m->memory_free_bytes)
        m->memory_free_bytes = free_bytes;
}

/* Pages of files on either list: the kernel takes them back for whoever needs memory, as
 * MemAvailable counts them for the machine.  Those that have to be written first are left out. */
static uint64_t page_cache(const char *dir, const char *total)
{
    static const char *const plus[] = {"inactive_file ", "active_file ", "slab_reclaimable "};
    static const char *const minus[] = {"file_dirty ", "file_writeback ", "dirty ", "writeback "};
    char path[PATH_BYTES + 64], buf[8192], key[64];
    uint64_t sum = 0, busy = 0;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (!read_text(path, buf, sizeof buf))
        return 0;
    for (size_t i = 0; i < sizeof plus / sizeof *plus; i++) {
        snprintf(key, sizeof key, "%s%s", total, plus[i]);
        sum += field_u64(buf, key);
    }
    for (size_t i = 0; i < sizeof minus / sizeof *minus; i++) {
        snprintf(key, sizeof key, "%s%s", total, minus[i]);
        busy += field_u64(buf, key);
    }
    return sum > busy ? sum - busy : 0;
}

static void limits_v2(struct cpu_machine *m, const char *dir)
{
    char path[PATH_BYTES + 64], buf[64];
    unsigned long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (read_text(path, buf, sizeof buf) && sscanf(buf, "%llu %llu", &quota, &period) == 2 &&
        period)
        limit_cpu(m, (double)quota / (double)period);
    /* Beyond memory.high a group is slowed down until it is useless; beyond memory.max it is
     * ended. */
    static const char *const name[] = {"memory.max", "memory.high"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        uint64_t limit, used = 0;
        if (!read_u64(dir, name[i], &limit))
            continue;
        if (!read_u64(dir, "memory.current", &used))
            used = 0;
        limit_memory(m, limit, used, page_cache(dir, ""));
    }
}

static void limits_v1(struct cpu_machine *m, const char *dir)
{
    uint64_t quota, period, limit, used = 0;
    if (read_u64(dir, "cpu.cfs_quota_us", &quota) && read_u64(dir, "cpu.cfs_period_us", &period) &&
        period)
        limit_cpu(m, (double)quota / (double)period);
    if (read_u64(dir, "memory.limit_in_bytes", &limit)) {
        if (!read_u64(dir, "memory.usage_in_bytes", &used))
            used = 0;
        limit_memory(m, limit, used, page_cache(dir, "total_"));
    }
}

/* Whether the comma list holds the word. */
static bool lists(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == 0))
            return true;
    }
    return false;
}

/* The group of this process under a controller ("" for version 2), from /proc/self/cgroup. */
static bool group_of(const char *groups, const char *controller, char *out, size_t cap)
{
    char line[PATH_BYTES];
    for (const char *at = groups; *at;) {
        const size_t n = strcspn(at, "\n");
        if (n < sizeof line) {
            memcpy(line, at, n);
            line[n] = 0;
            char *list = strchr(line, ':');
            char *path = list ? strchr(list + 1, ':') : NULL;
            if (path) {
                *path++ = 0;
                list++;
                if (*controller ? lists(list, controller) : !*list) {
                    snprintf(out, cap, "%s", path);
                    return true;
                }
            }
        }
        at += n + (at[n] == '\n');
    }
    return false;
}

typedef void limits_fn(struct cpu_machine *m, const char *dir);

/* Every level from the group up to the mount point.  A container sees its own group as the
 * root of the mount while /proc still names it from the host's root. */
static void walk_up(struct cpu_machine *m, const char *root, const char *mount, const char *mounted,
                    const char *group, limits_fn *limits)
{
    char dir[PATH_BYTES];
    const size_t n_mounted = strcmp(mounted, "/") == 0 ? 0 : strlen(mounted);
    if (n_mounted && strncmp(group, mounted, n_mounted) == 0 &&
        (group[n_mounted] == '/' || !group[n_mounted]))
        group += n_mounted;
    const int n = snprintf(dir, sizeof dir, "%s%s%s", root, mount, group);
    const size_t n_base = strlen(root) + strlen(mount);
    if (n < 0 || (size_t)n >= sizeof dir)
        return;
    for (;;) {
        limits(m, dir);
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= n_base || !slash || (size_t)(slash - dir) < n_base)
            return;
        *slash = 0;
    }
}

/* ulimit -v, of which this process has taken some already. */
static void limit_address_space(struct cpu_machine *m, const char *root)
{
    static const char name[] = "Max address space";
    char path[PATH_BYTES], buf[8192];
    snprintf(path, sizeof path, "%s/proc/self/limits", root);
    const bool known = read_text(path, buf, sizeof buf);
    const char *at = known ? strstr(buf, name) : NULL;
    unsigned long long limit;
    struct rlimit own;
    if (!known && !*root && !getrlimit(RLIMIT_AS, &own) && own.rlim_cur != RLIM_INFINITY)
        limit = own.rlim_cur;
    else if (!at || sscanf(at + sizeof name - 1, "%llu", &limit) != 1) /* unlimited */
        return;
    snprintf(path, sizeof path, "%s/proc/self/status", root);
    const uint64_t used = read_text(path, buf, sizeof buf) ? field_u64(buf, "VmSize:") << 10 : 0;
    limit_memory(m, limit, used, 0);
}

static void read_limits(struct cpu_machine *m, const char *root)
{
    limit_address_space(m, root);
    char path[PATH_BYTES], groups[8192], line[PATH_BYTES * 2], group[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_text(path, groups, sizeof groups))
        return;
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        char mounted[1024], mount[1024], type[64], options[1024];
        const char *rest = strstr(line, " - ");
        if (!rest || sscanf(line, "%*s %*s %*s %1023s %1023s", mounted, mount) != 2 ||
            sscanf(rest, " - %63s %*s %1023s", type, options) != 2)
            continue;
        if (strcmp(type, "cgroup2") == 0 && group_of(groups, "", group, sizeof group))
            walk_up(m, root, mount, mounted, group, limits_v2);
        if (strcmp(type, "cgroup") != 0)
            continue;
        if (lists(options, "cpu") && group_of(groups, "cpu", group, sizeof group))
            walk_up(m, root, mount, mounted, group, limits_v1);
        if (lists(options, "memory") && group_of(groups, "memory", group, sizeof group))
            walk_up(m, root, mount, mounted, group, limits_v1);
    }
    fclose(f);
}

/* ---- the machine itself ---- */

/* Where /proc says nothing the system call still knows how much there is; what of it is free but
 * filled with files' pages, it does not know. */
static void read_memory(struct cpu_machine *m, const char *root)
{
    char path[PATH_BYTES], buf[8192];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (read_text(path, buf, sizeof buf)) {
        m->memory_bytes = field_u64(buf, "MemTotal:") << 10;
        m->memory_free_bytes = field_u64(buf, "MemAvailable:") << 10;
        if (!m->memory_free_bytes) /* Linux before 3.14 */
            m->memory_free_bytes = (field_u64(buf, "MemFree:") + field_u64(buf, "Cached:")) << 10;
    }
    if (!m->memory_bytes || !m->memory_free_bytes) {
        struct sysinfo all;
        m->memory_unread = true;
        m->memory_bytes = !*root && !sysinfo(&all) ? (uint64_t)all.totalram * all.mem_unit : 0;
        m->memory_free_bytes = m->memory_bytes;
    }
    m->memory_limit_bytes = m->memory_bytes;
}

static void read_caches(struct cpu_machine *m, const char *root)
{
    for (int i = 0; i < 8; i++) {
        char dir[PATH_BYTES], path[PATH_BYTES + 64], type[32], size[32];
        uint64_t level;
        snprintf(dir, sizeof dir, "%s/sys/devices/system/cpu/cpu0/cache/index%d", root, i);
        if (!read_u64(dir, "level", &level))
            return;
        snprintf(path, sizeof path, "%s/type", dir);
        if (!read_text(path, type, sizeof type) || strncmp(type, "Instruction", 11) == 0)
            continue;
        snprintf(path, sizeof path, "%s/size", dir);
        if (!read_text(path, size, sizeof size))
            continue;
        char *unit;
        size_t n = (size_t)strtoull(size, &unit, 10);
        n <<= *unit == 'K' ? 10 : *unit == 'M' ? 20 : 0;
        if (level == 1)
            m->l1d_bytes = n;
        else if (level == 2)
            m->l2_bytes = n;
        else if (level == 3)
            m->l3_bytes = n;
    }
}

static void read_model(struct cpu_machine *m, const char *root)
{
    char path[PATH_BYTES], buf[8192];
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    if (!read_text(path, buf, sizeof buf))
        return;
    const char *at = strstr(buf, "model name");
    at = at ? strchr(at, ':') : NULL;
    if (!at)
        return;
    at += 1 + strspn(at + 1, " \t");
    snprintf(m->model, sizeof m->model, "%.*s", (int)strcspn(at, "\n"), at);
}

static void read_processors(struct cpu_machine *m, const char *root)
{
    struct cpu_topology t;
    m->n_logical = m->n_physical = m->n_packages = m->n_nodes = 1;
    if (!cpu_topology_read_at(&t, root))
        return;
    m->n_logical = t.n_cpus;
    m->n_physical = t.n_cores;
    m->n_slow = t.n_slow;
    m->n_packages = t.n_packages;
    m->n_nodes = t.n_nodes;
    cpu_topology_release(&t);
}

void cpu_machine_read_at(struct cpu_machine *m, const char *root)
{
    *m = (struct cpu_machine){0};
    read_processors(m, root);
    m->quota_cores = m->n_logical;
    read_model(m, root);
    read_caches(m, root);
    read_memory(m, root);
    read_limits(m, root);
}

void cpu_machine_read(struct cpu_machine *m)
{
    cpu_machine_read_at(m, "");
}
