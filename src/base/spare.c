/* SPDX-License-Identifier: Apache-2.0 */
#include "base/spare.h"

#include "base/attr.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_BYTES = 32768, NODES = 1024, MOST_SAID = 4 };

struct lists { char online[LIST_BYTES], memory[LIST_BYTES], here[LIST_BYTES]; };

/* A file as text; false: it cannot be read. */
static bool read_text(const char *root, const char *path, char text[LIST_BYTES])
{
    char full[4096];
    if ((size_t)snprintf(full, sizeof full, "%s/sys/devices/system/%s", root, path) >= sizeof full)
        return false;
    FILE *f = fopen(full, "re");
    if (!f)
        return false;
    text[fread(text, 1, LIST_BYTES - 1, f)] = 0;
    fclose(f);
    return true;
}

/* Whether i is in "0-3,8,10-11". */
static bool has(const char *list, long i)
{
    while (*list >= '0' && *list <= '9') {
        char *end;
        const long first = strtol(list, &end, 10);
        long last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        if (i >= first && i <= last)
            return true;
        list = *end == ',' ? end + 1 : end;
    }
    return false;
}

struct said { char *out; size_t at; int n; };

ATTR_PRINTF(2, 3) static void say(struct said *s, const char *format, ...)
{
    va_list args;
    if (s->n++ >= MOST_SAID || s->at >= SPARE_BYTES)
        return;
    s->at += (size_t)snprintf(s->out + s->at, SPARE_BYTES - s->at, "%s", s->at ? "; " : "");
    if (s->at >= SPARE_BYTES)
        return;
    va_start(args, format);
    s->at += (size_t)vsnprintf(s->out + s->at, SPARE_BYTES - s->at, format, args);
    va_end(args);
}

static void report_node(struct said *s, const struct cpu_topology *t, const struct lists *l,
                        int node)
{
    int home = -1;
    for (int i = 0; i < t->n_cpus && home < 0; i++)
        if (has(l->here, t->cpu[i].id))
            home = t->node_id[t->cpu[i].node];
    const bool memory = has(l->memory, node);
    if (memory && home < 0)
        say(s, "node %d has no processors%s: its memory is used when others are full", node,
            l->here[0] >= '0' && l->here[0] <= '9' ? " that this process may use" : "");
    else if (!memory && home >= 0)
        say(s, "node %d has no memory: its processors count as node %d's", node, home);
    else if (memory && home != node)
        say(s, "there are more than %d nodes: processors of node %d count as node %d's",
            CPU_NODES_MAX, node, home);
}

bool spare_report(char out[SPARE_BYTES], const struct cpu_topology *t, const char *root)
{
    struct lists l;
    struct said s = {out, 0, 0};
    char path[64];
    out[0] = l.here[0] = 0;
    if (!read_text(root, "node/online", l.online) || l.online[0] < '0' || l.online[0] > '9') {
        say(&s, "the system does not list its memory nodes: all memory counts as one");
        l.online[0] = 0;
    }
    if (!read_text(root, "node/has_memory", l.memory))
        memcpy(l.memory, l.online, sizeof l.memory);
    snprintf(path, sizeof path, "cpu/cpu%d/topology/thread_siblings_list", t->cpu[0].id);
    if (!read_text(root, path, l.here))
        say(&s, "the system does not list its cores: each processor counts as one");
    for (int node = 0; node < NODES && l.online[0]; node++) {
        snprintf(path, sizeof path, "node/node%d/cpulist", node);
        if (has(l.online, node) && read_text(root, path, l.here))
            report_node(&s, t, &l, node);
    }
    if (s.n > MOST_SAID && s.at < SPARE_BYTES)
        snprintf(out + s.at, SPARE_BYTES - s.at, "; and %d more", s.n - MOST_SAID);
    return s.n > 0;
}
