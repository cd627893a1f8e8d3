/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peak - what the arithmetic units do at most, instruction by instruction, on registers alone.
 *
 * Plain assembly, because nothing else promises that a compiler leaves a loop without a result
 * as it is.  Twelve chains hide the latency; tiles need one.
 */
#include "tool/tool.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/num.h"
#include "base/pool.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <unistd.h>

enum {
    LOOPS = 1 << 17, /* of a chunk: some 0.5 ms */
    EACH = 8,        /* chunks for each thread that has a processor */
    CHAINS = 12
};

struct unit {
    const char *name;
    uint32_t needs;      /* bundles of base/cpu.h */
    bool bf16, tiles;    /* and AVX512_BF16; a loop takes many cycles */
    double ops_per_loop; /* multiplications and additions */
    void (*spin)(int64_t n);
};

#define CHAINS_12(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
#define ALL_REGISTERS                                                                        \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"
#define CLEAR(i) "vxorps %%ymm" #i ", %%ymm" #i ", %%ymm" #i "\n\t"
#define SPIN(name, op)                                                                       \
    static void name(int64_t n)                                                              \
    {                                                                                        \
        __asm__ volatile(CHAINS_12(CLEAR) CLEAR(12) CLEAR(13) "1:\n\t" CHAINS_12(op)         \
                         "dec %0\n\tjnz 1b\n\tvzeroupper" : "+r"(n) : : ALL_REGISTERS);      \
    }

#define FMA_256(i)  "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #i "\n\t"
#define MADDUBS(i)                                                                                 \
    "vpmaddubsw %%ymm12, %%ymm13, %%ymm14\n\tvpaddw %%ymm14, %%ymm" #i ", %%ymm" #i "\n\t"
#define VNNI_256(i) "%{vex%} vpdpbusd %%ymm12, %%ymm13, %%ymm" #i "\n\t"
#define FMA_512(i)  "vfmadd231ps %%zmm12, %%zmm13, %%zmm" #i "\n\t"
#define VNNI_512(i) "vpdpbusd %%zmm12, %%zmm13, %%zmm" #i "\n\t"
#define BF16_512(i) "vdpbf16ps %%zmm12, %%zmm13, %%zmm" #i "\n\t"
SPIN(fma_256, FMA_256)
SPIN(maddubs, MADDUBS)
SPIN(vnni_256, VNNI_256)
SPIN(fma_512, FMA_512)
SPIN(vnni_512, VNNI_512)
SPIN(bf16_512, BF16_512)

/* Palette 1, eight tiles of 16 rows of 64 bytes. */
struct tiles {
    uint8_t palette, start, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static const struct tiles tiles = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64},
                                   {16, 16, 16, 16, 16, 16, 16, 16}};

#define TILES(name, op)                                                                      \
    static void name(int64_t n)                                                              \
    {                                                                                        \
        __asm__ volatile("ldtilecfg %1\n\ttilezero %%tmm0\n\ttilezero %%tmm1\n\t"            \
                         "tilezero %%tmm2\n\ttilezero %%tmm3\n\t1:\n\t"                      \
                         op " %%tmm3, %%tmm2, %%tmm0\n\t" op " %%tmm3, %%tmm2, %%tmm1\n\t"   \
                         "dec %0\n\tjnz 1b\n\ttilerelease"                                   \
                         : "+r"(n) : "m"(tiles) : "cc", "memory");                           \
    }
TILES(amx_int8, "tdpbusd")
TILES(amx_bf16, "tdpbf16ps")

static const struct unit units[] = {
    {"fma", CPU_AVX2, false, false, 16 * CHAINS, fma_256},
    {"maddubs", CPU_AVX2, false, false, 64 * CHAINS, maddubs},
    {"vnni256", CPU_AVXVNNI, false, false, 64 * CHAINS, vnni_256},
    {"fma512", CPU_AVX512, false, false, 32 * CHAINS, fma_512},
    {"vnni512", CPU_AVX512VNNI, false, false, 128 * CHAINS, vnni_512},
    {"bf16", CPU_AVX512, true, false, 64 * CHAINS, bf16_512},
    {"amx-int8", CPU_AMX, false, true, 2 * 2 * 16 * 16 * 64, amx_int8},
    {"amx-bf16", CPU_AMX, true, true, 2 * 2 * 16 * 16 * 32, amx_bf16},
};

static bool has_bf16(void)
{
    uint32_t n_sub, a, b, c, d;
    return __get_cpuid_count(7, 0, &n_sub, &b, &c, &d) && n_sub >= 1 &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5) != 0;
}

static void spin_chunk(void *arg, int64_t chunk, int worker)
{
    (void)chunk, (void)worker;
    const struct unit *u = arg;
    u->spin(u->tiles ? LOOPS / 4 : LOOPS);
}

size_t tool_peaks(struct pool *p, uint32_t cpu, struct tool_peak *out, size_t n_max)
{
    const int64_t at_once = num_min(pool_size(p), sysconf(_SC_NPROCESSORS_ONLN)),
                  n_chunks = EACH * num_max(at_once, 1);
    size_t n = 0;
    for (size_t i = 0; i < sizeof units / sizeof *units && n < n_max; i++) {
        struct unit u = units[i];
        if (u.needs & ~cpu || (u.bf16 && !has_bf16()))
            continue;
        const uint64_t start = clock_now();
        pool_run(p, n_chunks, spin_chunk, &u);
        const double s = (double)(clock_now() - start) * 1e-9;
        const double loops = (double)n_chunks * (u.tiles ? LOOPS / 4 : LOOPS);
        out[n++] = (struct tool_peak){u.name, u.ops_per_loop * loops / s};
    }
    return n;
}

#else

size_t tool_peaks(struct pool *p, uint32_t cpu, struct tool_peak *out, size_t n_max)
{
    (void)p, (void)cpu, (void)out, (void)n_max;
    return 0;
}

#endif
