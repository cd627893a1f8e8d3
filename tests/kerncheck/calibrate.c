/* SPDX-License-Identifier: Apache-2.0 */
/* calibrate - what the processor can do at most, to hold product kernels against: 256-bit
 * instructions on registers alone.  Plain assembly, because nothing else promises that the
 * compiler leaves a loop without a result as it is. */
#include "kerncheck/checks.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/pool.h"

enum { LOOPS = 1 << 18, CHAINS = 12 };

struct calibration {
    bool integers;
};

#if defined(__x86_64__)

#define CHAINS_12(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
#define ALL_REGISTERS                                                                        \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"
#define CLEAR(i) "vxorps %%ymm" #i ", %%ymm" #i ", %%ymm" #i "\n\t"
#define FMA(i) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #i "\n\t"
#define DOT(i) "vpmaddubsw %%ymm12, %%ymm13, %%ymm14\n\tvpaddw %%ymm14, %%ymm" #i ", %%ymm" #i "\n\t"
#define LOOP(op)                                                                             \
    __asm__ volatile(CHAINS_12(CLEAR) CLEAR(12) CLEAR(13) "1:\n\t" CHAINS_12(op)             \
                     "dec %0\n\tjnz 1b\n\tvzeroupper" : "+r"(n) : : ALL_REGISTERS)

static void spin(void *arg, int64_t chunk, int worker)
{
    const struct calibration *c = arg;
    int64_t n = LOOPS;
    (void)chunk, (void)worker;
    if (c->integers)
        LOOP(DOT);
    else
        LOOP(FMA);
}

double calibrate(struct pool *pool, int n_threads, uint32_t cpu, bool integers)
{
    struct calibration c = {integers};
    if (!(cpu & CPU_AVX2))
        return 0;
    const uint64_t t = clock_now();
    pool_run(pool, n_threads, spin, &c);
    const double s = (double)(clock_now() - t) * 1e-9;
    return (double)n_threads * LOOPS * CHAINS * (integers ? 64 : 16) / s * 1e-9;
}

#else

double calibrate(struct pool *pool, int n_threads, uint32_t cpu, bool integers)
{
    (void)pool, (void)n_threads, (void)cpu, (void)integers;
    return 0;
}

#endif
