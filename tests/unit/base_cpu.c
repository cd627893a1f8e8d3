/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "unit/machine_tree.h"

#include "base/cpu.h"

static void test_names(void **state)
{
    (void)state;
    static const char *const names[] = {"ref",        "avx2",       "avxvnni", "avx512",
                                        "avx512vnni", "avx512vbmi", "amx"};
    uint32_t below = 0, mask = 99;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_true(cpu_level(names[i], &mask));
        assert_int_equal(mask & below, below);
        assert_string_equal(cpu_name(mask), names[i]);
        below = mask;
    }
    assert_false(cpu_level("avx1024", &mask));
    assert_false(cpu_level("", &mask));
    assert_int_equal(mask, below);
}

static bool flag(const char *flags, const char *word)
{
    char padded[64];
    snprintf(padded, sizeof padded, " %s ", word);
    return strstr(flags, padded);
}

/* What the system says in /proc/cpuinfo is another witness of the same facts. */
static void test_detect_agrees_with_the_system(void **state)
{
    (void)state;
    const uint32_t mask = cpu_detect();
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[8192] = "";
    while (f && fgets(line, sizeof line, f) && strncmp(line, "flags", 5) != 0)
        continue;
    if (f)
        fclose(f);
    char *end = strchr(line, '\n');
    if (strncmp(line, "flags", 5) != 0 || !end)
        skip();
    *end = ' ';
    const bool avx2 = flag(line, "avx2") && flag(line, "fma") && flag(line, "f16c") &&
                      flag(line, "bmi2");
    const bool avx512 = avx2 && flag(line, "avx512f") && flag(line, "avx512bw") &&
                        flag(line, "avx512dq") && flag(line, "avx512vl") && flag(line, "avx512cd");
    assert_int_equal(!!(mask & CPU_AVX2), avx2);
    assert_int_equal(!!(mask & CPU_AVX512), avx512);
    assert_int_equal(!!(mask & CPU_AVX512VNNI), avx512 && flag(line, "avx512_vnni"));
    assert_int_equal(!!(mask & CPU_AVX512VBMI),
                     avx512 && flag(line, "avx512_vnni") && flag(line, "avx512vbmi") &&
                         flag(line, "avx512_bitalg") && flag(line, "gfni"));
    assert_int_equal(!!(mask & CPU_AVXVNNI), avx2 && flag(line, "avx_vnni"));
    if (mask & CPU_AMX)
        assert_true(flag(line, "amx_int8"));
}

static void test_this_machine(void **state)
{
    (void)state;
    struct cpu_machine m;
    cpu_machine_read(&m);
    assert_true(m.n_logical >= 1 && m.n_physical >= 1 && m.n_physical <= m.n_logical);
    assert_true(m.quota_cores > 0 && m.quota_cores <= m.n_logical);
    assert_true(m.memory_bytes > 0 && m.memory_limit_bytes <= m.memory_bytes);
    assert_true(m.memory_free_bytes <= m.memory_limit_bytes);
    const int n = cpu_default_threads(&m);
    assert_true(n >= 1 && n <= m.n_physical);
}

/* ---- made-up machines ---- */

static void test_no_groups(void **state)
{
    (void)state;
    struct cpu_machine m;
    put("/sys/devices/system/cpu/cpu0/cache/index0/level", "1\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/type", "Data\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n");
    put("/sys/devices/system/cpu/cpu0/cache/index1/level", "1\n");
    put("/sys/devices/system/cpu/cpu0/cache/index1/type", "Instruction\n");
    put("/sys/devices/system/cpu/cpu0/cache/index1/size", "32K\n");
    put("/sys/devices/system/cpu/cpu0/cache/index2/level", "3\n");
    put("/sys/devices/system/cpu/cpu0/cache/index2/type", "Unified\n");
    put("/sys/devices/system/cpu/cpu0/cache/index2/size", "24M\n");
    put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: A Chip 9000\nflags\t: x\n");
    cpu_machine_read_at(&m, root);
    assert_int_equal(m.memory_bytes, 8ull << 30);
    assert_int_equal(m.memory_limit_bytes, 8ull << 30);
    assert_int_equal(m.memory_free_bytes, 4ull << 30);
    assert_int_equal(m.l1d_bytes, 48 << 10);
    assert_int_equal(m.l3_bytes, 24 << 20);
    assert_string_equal(m.model, "A Chip 9000");
}

static void test_version_2(void **state)
{
    (void)state;
    struct cpu_machine m;
    put("/proc/self/cgroup", "0::/jobs/one\n");
    put("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/jobs/one/cpu.max", "50000 100000\n");
    put("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
    put("/sys/fs/cgroup/jobs/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/jobs/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/jobs/memory.current", "1073741824\n");
    put("/sys/fs/cgroup/jobs/memory.stat",
        "anon 5\ninactive_file 268435456\nactive_file 402653184\n"
        "file_dirty 100663296\nfile_writeback 33554432\n");
    cpu_machine_read_at(&m, root);
    assert_true(m.quota_cores == 0.5);
    assert_int_equal(cpu_default_threads(&m), 1);
    assert_int_equal(m.memory_limit_bytes, 2ull << 30);
    assert_int_equal(m.memory_free_bytes, (1ull << 30) + (512ull << 20));
    put("/sys/fs/cgroup/jobs/memory.high", "1610612736\n"); /* where it is slowed down */
    cpu_machine_read_at(&m, root);
    assert_int_equal(m.memory_limit_bytes, 1536ull << 20);
    assert_int_equal(m.memory_free_bytes, 1ull << 30);
    put("/sys/fs/cgroup/jobs/memory.high", "max\n");
}

/* ulimit -v, of which a part is taken; the smallest limit holds. */
static void test_address_space(void **state)
{
    (void)state;
    struct cpu_machine m;
    put("/proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 3145728 kB\n");
    put("/proc/self/limits", "Limit Soft Limit Hard Limit Units\n"
        "Max address space         1610612736           unlimited            bytes     \n");
    put("/proc/self/status", "Name:\tingle\nVmSize:\t  524288 kB\n");
    cpu_machine_read_at(&m, root);
    assert_int_equal(m.memory_free_bytes, 1ull << 30);
    put("/proc/self/limits",
        "Max address space         unlimited            unlimited            bytes     \n");
    cpu_machine_read_at(&m, root);
    assert_int_equal(m.memory_free_bytes, 3ull << 30);
}

static void test_unread_memory(void **state)
{
    (void)state;
    struct cpu_machine m;
    /* before Linux 3.14 */
    put("/proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 1048576 kB\nCached: 1048576 kB\n");
    cpu_machine_read_at(&m, root);
    assert_false(m.memory_unread);
    assert_int_equal(m.memory_free_bytes, 2ull << 30);
    static const char *const nothing[] = {"", "MemTotal: 0 kB\n", "garbage"};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        put("/proc/meminfo", nothing[i]);
        cpu_machine_read_at(&m, root);
        assert_true(m.memory_unread);
    }
    cpu_machine_read(&m);
    assert_false(m.memory_unread);
}

/* A container: its own group is the root of the mount, /proc names it from the host. */
static void test_version_1_in_a_container(void **state)
{
    (void)state;
    struct cpu_machine m;
    put("/proc/self/cgroup", "4:memory:/docker/ab\n1:cpu,cpuacct:/docker/ab\n0::/\n");
    put("/proc/self/mountinfo",
        "31 23 0:27 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "32 23 0:28 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "garbage\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "25000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    cpu_machine_read_at(&m, root);
    assert_true(m.quota_cores == 0.25);
    assert_int_equal(m.memory_limit_bytes, 1 << 30);
    assert_int_equal(m.memory_free_bytes, 0);
}

static void test_version_1_without_limits(void **state)
{
    (void)state;
    struct cpu_machine m;
    put("/proc/self/cgroup", "4:memory:/\n1:cpu:/\n");
    put("/proc/self/mountinfo",
        "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    cpu_machine_read_at(&m, root);
    assert_true(m.quota_cores == (double)m.n_logical);
    assert_int_equal(m.memory_limit_bytes, 8ull << 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_detect_agrees_with_the_system),
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test_setup_teardown(test_no_groups, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_address_space, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_unread_memory, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_version_2, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_version_1_in_a_container, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_version_1_without_limits, make_root, drop_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
