/* SPDX-License-Identifier: Apache-2.0 */
/* base_topology - made-up machines: what is read of them, and which threads they get. */
#define _GNU_SOURCE
#include "unit/machine_tree.h"

#include "base/cpu.h"
#include "base/spare.h"

#define CPU "/sys/devices/system/cpu/"
#define NODE "/sys/devices/system/node/"

struct file { const char *path, *text; };

/* siblings: pairs {processor, list} come as files; the rest is in `file`. */
struct machine {
    const char *name;
    const char *allowed, *online; /* NULL: the file is missing */
    int n_siblings;               /* processors of a core: i, i + n_cpus / n_siblings, ... */
    int n_cpus;                   /* for which sibling lists are written */
    struct file file[12];
    const char *quota;            /* cpu.max of version 2 */
    /* expected */
    int cpus, cores, slow, packages, nodes, threads;
    const char *order;            /* the first processors, "id.node id.node" */
};

static const struct machine machines[] = {
    {"two threads a core",
     "0-7",
     "0-7",
     2,
     8,
     {{0}},
     NULL,
     8,
     4,
     0,
     1,
     1,
     4,
     "0.0 1.0 2.0 3.0 4.0"},
    {"one thread a core", "0-3", "0-3", 1, 4, {{0}}, NULL, 4, 4, 0, 1, 1, 4, "0.0 1.0 2.0 3.0"},
    {"fast cores with siblings, slow ones without",
     "0-5",
     "0-5",
     0,
     0,
     {{CPU "cpu0/topology/thread_siblings_list", "0-1\n"},
      {CPU "cpu1/topology/thread_siblings_list", "0-1\n"},
      {CPU "cpu2/topology/thread_siblings_list", "2-3\n"},
      {CPU "cpu3/topology/thread_siblings_list", "2-3\n"},
      {CPU "cpu4/topology/thread_siblings_list", "4\n"},
      {CPU "cpu5/topology/thread_siblings_list", "5\n"},
      {"/sys/devices/cpu_core/cpus", "0-3\n"},
      {"/sys/devices/cpu_atom/cpus", "4-5\n"}},
     NULL,
     6,
     4,
     2,
     1,
     1,
     4,
     "0.0 2.0 4.0 5.0 1.0 3.0"},
    {"little cores first",
     "0-3",
     "0-3",
     1,
     4,
     {{CPU "cpu0/cpu_capacity", "400\n"},
      {CPU "cpu1/cpu_capacity", "400\n"},
      {CPU "cpu2/cpu_capacity", "1024\n"},
      {CPU "cpu3/cpu_capacity", "1024\n"}},
     NULL,
     4,
     4,
     2,
     1,
     1,
     4,
     "2.0 3.0 0.0 1.0"},
    {"two sockets",
     "0-7",
     "0-7",
     1,
     8,
     {{CPU "cpu4/topology/physical_package_id", "1\n"},
      {CPU "cpu5/topology/physical_package_id", "1\n"},
      {CPU "cpu6/topology/physical_package_id", "1\n"},
      {CPU "cpu7/topology/physical_package_id", "1\n"},
      {NODE "online", "0-1\n"},
      {NODE "has_memory", "0-1\n"},
      {NODE "node0/cpulist", "0-3\n"},
      {NODE "node1/cpulist", "4-7\n"}},
     NULL,
     8,
     8,
     0,
     2,
     2,
     8,
     "0.0 4.1 1.0 5.1 2.0 6.1 3.0 7.1"},
    {"half of one node",
     "4-5",
     "0-7",
     1,
     8,
     {{NODE "online", "0-1\n"},
      {NODE "has_memory", "0-1\n"},
      {NODE "node0/cpulist", "0-3\n"},
      {NODE "node1/cpulist", "4-7\n"}},
     NULL,
     2,
     2,
     0,
     1,
     1,
     2,
     "4.0 5.0"},
    {"uneven nodes",
     "0-5",
     "0-5",
     1,
     6,
     {{NODE "online", "0,2\n"},
      {NODE "has_memory", "0,2\n"},
      {NODE "node0/cpulist", "0-3\n"},
      {NODE "node2/cpulist", "4-5\n"}},
     NULL,
     6,
     6,
     0,
     1,
     2,
     6,
     "0.0 1.0 4.1 2.0 3.0 5.1"},
    {"a node without memory goes to its nearest",
     "0-5",
     "0-5",
     1,
     6,
     {{NODE "online", "0-3\n"},
      {NODE "has_memory", "0,2-3\n"},
      {NODE "node0/cpulist", "0-1\n"},
      {NODE "node1/cpulist", "2-3\n"},
      {NODE "node2/cpulist", "4-5\n"},
      {NODE "node3/cpulist", "\n"},
      {NODE "node1/distance", "20 10 12 30\n"}},
     NULL,
     6,
     6,
     0,
     1,
     2,
     6,
     "2.1 0.0 3.1 4.1 1.0 5.1"},
    {"a quota of one and a half",
     "0-7",
     "0-7",
     1,
     8,
     {{0}},
     "150000 100000\n",
     8,
     8,
     0,
     1,
     1,
     1,
     "0.0 1.0"},
    {"a quota of three", "0-7", "0-7", 1, 8, {{0}}, "300000 100000\n", 8, 8, 0, 1, 1, 3, "0.0 1.0"},
    {"some are offline", "0-7", "0,2,4-5", 1, 8, {{0}}, NULL, 4, 4, 0, 1, 1, 4, "0.0 2.0 4.0 5.0"},
    {"a sibling is not ours", "2-3", "0-3", 2, 4, {{0}}, NULL, 2, 2, 0, 1, 1, 2, "2.0 3.0"},
    {"no list of what is online", "2-3", NULL, 1, 4, {{0}}, NULL, 2, 2, 0, 1, 1, 2, "2.0 3.0"},
    {"4,096 processors", "0-4095", "0-4095", 0, 0, {{0}}, NULL, 4096, 4096, 0, 1, 1, 4096,
     "0.0 1.0 2.0"},
    {"no affinity", NULL, "0-2", 1, 3, {{0}}, NULL, 3, 3, 0, 1, 1, 3, "0.0 1.0 2.0"},
    {"nothing at all", NULL, NULL, 0, 0, {{0}}, NULL, 1, 1, 0, 1, 1, 1, "0.0"},
    {"garbage",
     "0-1,x",
     "3-1",
     0,
     0,
     {{CPU "cpu0/topology/thread_siblings_list", "99999999999999999999\n"},
      {NODE "online", "-1\n"},
      {NODE "node0/cpulist", "0-\n"},
      {CPU "cpu0/topology/physical_package_id", "one\n"}},
     NULL,
     1,
     1,
     0,
     1,
     1,
     1,
     "0.0"},
    {"garbage beside what is right",
     "0-3",
     "0-3",
     0,
     0,
     {{CPU "cpu0/topology/thread_siblings_list", "1-2\n"},
      {CPU "cpu1/topology/thread_siblings_list", "0-1,,\n"},
      {CPU "cpu2/topology/physical_package_id", "-1\n"},
      {NODE "online", "0-1\n"},
      {NODE "has_memory", "lots\n"},
      {NODE "node0/cpulist", "0-9999\n"},
      {NODE "node1/cpulist", "0-3\n"},
      {"/sys/devices/cpu_atom/cpus", "0-3\n"},
      {CPU "cpu1/cpu_capacity", "0x\n"}},
     NULL,
     4,
     4,
     0,
     1,
     1,
     4,
     "0.0 1.0 2.0 3.0"},
    {"cores that go round, a node without an end, distances of nothing",
     "0-3",
     "0-3",
     0,
     0,
     {{CPU "cpu0/topology/thread_siblings_list", "0-1\n"},
      {CPU "cpu1/topology/thread_siblings_list", "1-2\n"},
      {CPU "cpu2/topology/thread_siblings_list", "2-3\n"},
      {CPU "cpu3/topology/thread_siblings_list", "0,3\n"},
      {CPU "cpu0/cache/index3/shared_cpu_list", "0-18446744073709551615\n"},
      {CPU "cpu2/topology/physical_package_id", "9223372036854775807\n"},
      {NODE "online", "0-1,8191\n"},
      {NODE "has_memory", "8191\n"},
      {NODE "node0/cpulist", "0-3\n"},
      {NODE "node1/cpulist", "0-3\n"},
      {NODE "node8191/cpulist", "\n"},
      {NODE "node0/distance", "-9223372036854775809 x\n"}},
     NULL,
     4,
     3,
     0,
     1,
     1,
     3,
     "0.0 1.0 2.0 3.0"},
    {"processors and sizes beyond all",
     "0-18446744073709551616",
     "0-1048576",
     0,
     0,
     {{CPU "cpu0/topology/thread_siblings_list", "\n"},
      {NODE "online", "0-100000\n"},
      {NODE "node0/cpulist", "0\n"}},
     NULL,
     1,
     1,
     0,
     1,
     1,
     1,
     "0.0"},
    {"empty files", "", "", 0, 0, {{NODE "online", ""}, {NODE "has_memory", ""}}, NULL, 1, 1, 0, 1,
     1, 1, "0.0"},
    {"two nodes of the system, none of them ours by number",
     "0-1",
     "0-1",
     1,
     2,
     {{NODE "online", "4,6\n"}, {NODE "node4/cpulist", "0\n"}, {NODE "node6/cpulist", "1\n"}},
     NULL,
     2,
     2,
     0,
     1,
     2,
     2,
     "0.0 1.1"},
};

static void make(const struct machine *m)
{
    char path[128], text[256];
    assert_int_equal(make_root(NULL), 0);
    if (m->allowed) {
        snprintf(text, sizeof text,
                 "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\nMems_allowed:\t1\n",
                 m->allowed);
        put("/proc/thread-self/status", text);
    }
    if (m->online) {
        snprintf(text, sizeof text, "%s\n", m->online);
        put(CPU "online", text);
    }
    for (int i = 0; i < m->n_cpus; i++) {
        const int step = m->n_cpus / m->n_siblings, core = i % step;
        size_t n = 0;
        for (int k = 0; k < m->n_siblings; k++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%d", k ? "," : "", core + k * step);
        snprintf(path, sizeof path, CPU "cpu%d/topology/thread_siblings_list", i);
        put(path, text);
    }
    for (size_t i = 0; i < sizeof m->file / sizeof *m->file && m->file[i].path; i++)
        put(m->file[i].path, m->file[i].text);
    if (m->quota) {
        put("/proc/self/cgroup", "0::/one\n");
        put("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
        put("/sys/fs/cgroup/one/cpu.max", m->quota);
    }
}

static void test_machines(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof machines / sizeof *machines; k++) {
        const struct machine *m = &machines[k];
        struct cpu_topology t;
        struct cpu_machine all;
        char order[256] = "";
        make(m);
        assert_true(cpu_topology_read_at(&t, root));
        cpu_machine_read_at(&all, root);
        assert_int_equal(drop_root(NULL), 0);
        for (int i = 0; i < t.n_cpus; i++) {
            const size_t n = strlen(order);
            snprintf(order + n, sizeof order - n, "%s%d.%d", i ? " " : "", t.cpu[i].id,
                     t.cpu[i].node);
        }
        if (t.n_cpus != m->cpus || t.n_cores != m->cores || t.n_slow != m->slow ||
            t.n_packages != m->packages || t.n_nodes != m->nodes ||
            strncmp(order, m->order, strlen(m->order)) != 0 ||
            cpu_default_threads(&all) != m->threads || all.n_physical != m->cores ||
            all.n_nodes != m->nodes)
            fail_msg("%s: %d processors, %d cores, %d slow, %d packages, %d nodes, %d threads: %s",
                     m->name, t.n_cpus, t.n_cores, t.n_slow, t.n_packages, t.n_nodes,
                     cpu_default_threads(&all), order);
        cpu_topology_join(&t);
        assert_int_equal(t.n_nodes, 1);
        cpu_topology_release(&t);
    }
}

/* A list of every `step`th of n processors, from `first` on. */
static void put_list(const char *path, int first, int step, int n)
{
    char *text = malloc((size_t)n * 5 + 2);
    size_t at = 0;
    for (int i = first; i < n; i += step)
        at += (size_t)sprintf(text + at, "%s%d", at ? "," : "", i);
    text[at++] = '\n';
    text[at] = 0;
    put(path, text);
    free(text);
}

static void put_machine(int n_cpus, int n_nodes)
{
    char path[64], text[64];
    assert_int_equal(make_root(NULL), 0);
    snprintf(text, sizeof text, "Name:\tx\nCpus_allowed_list:\t0-%d\n", n_cpus - 1);
    put("/proc/thread-self/status", text);
    put(CPU "cpu0/topology/thread_siblings_list", "0\n");
    snprintf(text, sizeof text, "0-%d\n", n_nodes - 1);
    put(NODE "online", text);
    put(NODE "has_memory", text);
    for (int i = 0; i < n_nodes; i++) {
        snprintf(path, sizeof path, NODE "node%d/cpulist", i);
        put_list(path, i, n_nodes, n_cpus);
    }
}

/* Lists of 10,000 bytes; each thread of a few, and all, are divided among the nodes. */
static void test_many_processors(void **state)
{
    (void)state;
    char out[SPARE_BYTES];
    struct cpu_topology t;
    int n_of[2] = {0};
    put_machine(4096, 2);
    assert_true(cpu_topology_read_at(&t, root));
    assert_int_equal(t.n_cpus, 4096);
    assert_int_equal(t.n_nodes, 2);
    for (int i = 0; i < t.n_cpus; i++) {
        assert_int_equal(t.cpu[i].node, t.cpu[i].id % 2);
        n_of[t.cpu[i].node]++;
        assert_in_range(n_of[0] - n_of[1] + 1, 0, 2);
    }
    assert_false(spare_report(out, &t, root));
    cpu_topology_release(&t);
    assert_int_equal(drop_root(NULL), 0);
}

/* More nodes than ingle tells apart: all processors are there, and it is said where they count. */
static void test_many_nodes(void **state)
{
    (void)state;
    char out[SPARE_BYTES];
    struct cpu_topology t;
    put_machine(140, 70);
    assert_true(cpu_topology_read_at(&t, root));
    assert_int_equal(t.n_cpus, 140);
    assert_int_equal(t.n_nodes, CPU_NODES_MAX);
    for (int i = 0; i < t.n_cpus; i++)
        assert_int_equal(t.cpu[i].node, t.cpu[i].id % 70 < CPU_NODES_MAX ? t.cpu[i].id % 70 : 0);
    assert_true(spare_report(out, &t, root));
    assert_non_null(strstr(out, "there are more than 64 nodes: processors of node 64 count as "
                                "node 0's; "));
    assert_non_null(strstr(out, "; and 2 more"));
    cpu_topology_release(&t);
    assert_int_equal(drop_root(NULL), 0);
}

static void test_this_machine(void **state)
{
    (void)state;
    struct cpu_topology t;
    assert_true(cpu_topology_read(&t));
    assert_true(t.n_cpus >= t.n_cores && t.n_cores >= 1 && t.n_nodes >= 1 && t.n_slow <= t.n_cores);
    for (int i = 0; i < t.n_cpus; i++) {
        assert_in_range(t.cpu[i].node, 0, t.n_nodes - 1);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(t.cpu[i].id, t.cpu[j].id);
    }
    cpu_topology_release(&t);
    cpu_topology_release(&t);
}

/* What is not used is told: processors 0 and 1 are ours. */
static void test_spare(void **state)
{
    (void)state;
    static const struct {
        const char *online, *memory, *list[3], *said;
        bool cores;
    } cases[] = {
        {"0\n", "0\n", {"0-3\n"}, "", true},
        {"0-1\n", NULL, {"0\n", "1-3\n"}, "", true},
        {"0-1\n",
         "0\n",
         {"0\n", "1\n"},
         "node 1 has no memory: its processors count as node 0's",
         true},
        {"0-1\n",
         "0-1\n",
         {"0-7\n", "\n"},
         "node 1 has no processors: its memory is used when others are full",
         true},
        {"0,2\n",
         "0,2\n",
         {"0-3\n", NULL, "4-7\n"},
         "node 2 has no processors that this process may use: its memory is used when others are "
         "full",
         true},
        {"0-1\n",
         "0\n",
         {"4\n", "0-1\n"},
         "node 0 has no processors that this process may use: its memory is used when others are "
         "full; node 1 has no memory: its processors count as node 0's",
         true},
        {NULL,
         NULL,
         {NULL},
         "the system does not list its memory nodes: all memory counts as one; the system does not "
         "list its cores: each processor counts as one",
         false},
        {";\n",
         "x",
         {"-1,,"},
         "the system does not list its memory nodes: all memory counts as one",
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64], out[SPARE_BYTES];
        struct cpu_topology t;
        assert_int_equal(make_root(NULL), 0);
        put("/proc/thread-self/status", "Name:\tx\nCpus_allowed_list:\t0-1\n");
        if (cases[i].online)
            put(NODE "online", cases[i].online);
        if (cases[i].memory)
            put(NODE "has_memory", cases[i].memory);
        for (int k = 0; k < 3; k++) {
            snprintf(path, sizeof path, NODE "node%d/cpulist", k);
            if (cases[i].list[k])
                put(path, cases[i].list[k]);
        }
        if (cases[i].cores)
            put(CPU "cpu0/topology/thread_siblings_list", "0\n");
        assert_true(cpu_topology_read_at(&t, root));
        assert_int_equal(spare_report(out, &t, root), *cases[i].said != 0);
        assert_string_equal(out, cases[i].said);
        cpu_topology_release(&t);
        assert_int_equal(drop_root(NULL), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spare),
        cmocka_unit_test(test_machines),
        cmocka_unit_test(test_many_processors),
        cmocka_unit_test(test_many_nodes),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
