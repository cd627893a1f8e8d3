/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/cpu.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__) && !defined(INGLE_PLAIN)
#include <cpuid.h>
#endif

#if UINTPTR_MAX < 0xFFFFFFFFFFFFFFFF
#error "ingle needs a processor with addresses of 64 bits"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "ingle needs a little-endian processor: files are read as they lie"
#endif

static const struct {
    const char *name;
    uint32_t bit;
} level[] = {
    {"ref", 0},
    {"avx2", CPU_AVX2},
    {"avxvnni", CPU_AVXVNNI},
    {"avx512", CPU_AVX512},
    {"avx512vnni", CPU_AVX512VNNI},
    {"avx512vbmi", CPU_AVX512VBMI | CPU_BF16PAIRS},
    {"amx", CPU_AMX},
};
enum { N_LEVELS = sizeof level / sizeof *level };

bool cpu_level(const char *name, uint32_t *mask)
{
    uint32_t m = 0;
    for (int i = 0; i < N_LEVELS; i++) {
        m |= level[i].bit;
        if (strcmp(name, level[i].name) == 0) {
            *mask = m;
            return true;
        }
    }
    return false;
}

const char *cpu_name(uint32_t mask)
{
    int best = 0;
    for (int i = 1; i < N_LEVELS; i++)
        if (mask & level[i].bit)
            best = i;
    return level[best].name;
}

#if defined(__x86_64__) && !defined(INGLE_PLAIN)

static bool has(uint32_t reg, uint32_t bits)
{
    return (reg & bits) == bits;
}

/* The register states that the system saves on a switch. */
static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool is_amd(void)
{
    uint32_t a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) &&
           ((b == 0x68747541 && d == 0x69746e65 && c == 0x444d4163) || /* AuthenticAMD */
            (b == 0x6f677948 && d == 0x6e65476e && c == 0x656e6975));  /* HygonGenuine */
}

/* Linux grants the tile registers to a process that asks, once for all its threads. */
static bool amx_granted(void)
{
#ifdef SYS_arch_prctl
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

uint32_t cpu_detect(void)
{
    enum { STATE_AVX = 0x6, STATE_AVX512 = 0xe6, STATE_AMX = 0x60000 };
    uint32_t a, b1, c1, d1, b7, c7, d7, a71 = 0, b71, c71, d71;
    if (!__get_cpuid(1, &a, &b1, &c1, &d1) || !has(c1, 1u << 27)) /* OSXSAVE */
        return 0;
    uint32_t n_sub;
    if (!__get_cpuid_count(7, 0, &n_sub, &b7, &c7, &d7))
        return 0;
    if (n_sub >= 1)
        __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71);
    const uint64_t state = xcr0();

    /* FMA, AVX, F16C; AVX2, BMI2 */
    if ((state & STATE_AVX) != STATE_AVX || !has(c1, 1u << 12 | 1u << 28 | 1u << 29) ||
        !has(b7, 1u << 5 | 1u << 8))
        return 0;
    uint32_t mask = CPU_AVX2;
    if (has(a71, 1u << 4))
        mask |= CPU_AVXVNNI;
    /* F, DQ, CD, BW, VL */
    if ((state & STATE_AVX512) != STATE_AVX512 ||
        !has(b7, 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31))
        return mask;
    mask |= CPU_AVX512;
    if (has(c7, 1u << 11))
        mask |= CPU_AVX512VNNI;
    /* VBMI, GFNI, VNNI, BITALG */
    if (has(c7, 1u << 1 | 1u << 8 | 1u << 11 | 1u << 12))
        mask |= CPU_AVX512VBMI;
    if (mask & CPU_AVX512VBMI && has(a71, 1u << 5) && is_amd())
        mask |= CPU_BF16PAIRS;
    /* BF16, TILE, INT8; the tile kernels convert with AVX512_BF16, which a hypervisor may hide */
    if ((state & STATE_AMX) == STATE_AMX && has(d7, 1u << 22 | 1u << 24 | 1u << 25) &&
        has(a71, 1u << 5) && amx_granted())
        mask |= CPU_AMX;
    return mask;
}

#else

uint32_t cpu_detect(void)
{
    return 0;
}

#endif

int cpu_default_threads(const struct cpu_machine *m)
{
    const int quota = (int)m->quota_cores;
    int n = m->n_physical;
    if (quota < n)
        n = quota;
    return n < 1 ? 1 : n;
}
