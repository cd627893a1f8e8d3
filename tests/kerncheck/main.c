/* SPDX-License-Identifier: Apache-2.0 */
/* kerncheck - every kernel that this machine can run against its plain twin, and their
 * speed.  usage: kerncheck [--seed=N] [--cpu=LEVEL] [--bench [--threads=N] [--rounds=N]
 * [--type=NAME|attend|few|latent] [--shape=OUTxIN]] */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include "kern/kern.h"
#include <stdlib.h>

static const struct level {
    const char *name;
    uint32_t bit;
} levels[] = {{"ref", 0}, {"avx2", CPU_AVX2}, {"avxvnni", CPU_AVXVNNI}, {"avx512", CPU_AVX512},
              {"avx512vnni", CPU_AVX512VNNI}, {"avx512vbmi", CPU_AVX512VBMI}, {"amx", CPU_AMX},
              {"amx-emulated", CPU_AMX_EMULATED}};

static void print_covered(uint32_t cpu)
{
    for (int here = 1; here >= 0; here--) {
        printf(here ? "covered:" : "; not covered:");
        for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
            if (((levels[i].bit & ~cpu) == 0) == here)
                printf(" %s", levels[i].name);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    uint32_t cpu = cpu_detect();
    struct bench_matmul o = {.n_threads = 2, .rounds = 5, .out = 4096, .in = 4096};
    bool bench = false;
    for (int i = 1; i < argc; i++) {
        uint32_t mask;
        if (!strncmp(argv[i], "--seed=", 7)) {
            seed = strtoull(argv[i] + 7, NULL, 0);
        } else if (!strncmp(argv[i], "--cpu=", 6) && cpu_level(argv[i] + 6, &mask)) {
            cpu &= mask;
        } else if (!strncmp(argv[i], "--type=", 7)) {
            o.type = argv[i] + 7;
        } else if (!strncmp(argv[i], "--kernel=", 9)) {
            o.kernel = argv[i] + 9;
        } else if (!strncmp(argv[i], "--threads=", 10)) {
            o.n_threads = atoi(argv[i] + 10);
        } else if (!strncmp(argv[i], "--rounds=", 9)) {
            o.rounds = atoi(argv[i] + 9);
        } else if (!strncmp(argv[i], "--shape=", 8)) {
            char *x;
            o.out = strtoll(argv[i] + 8, &x, 10);
            o.in = *x == 'x' ? strtoll(x + 1, NULL, 10) : 0;
        } else if (!strcmp(argv[i], "--bench")) {
            bench = true;
        } else {
            printf(
                "usage: kerncheck [--seed=N] [--cpu=LEVEL]\n"
                "       kerncheck --bench [--cpu=LEVEL] [--threads=N] [--rounds=N]\n"
                "            [--type=NAME|attend|few|latent] [--kernel=TEXT] [--shape=OUTxIN]\n");
            return 2;
        }
    }
    if (bench) {
        const bool latent = o.type && !strcmp(o.type, "latent"),
                   attend = o.type && !strcmp(o.type, "attend"),
                   sparse = o.type && !strcmp(o.type, "few");
        if (!o.type || latent)
            bench_latent(cpu);
        if (!o.type || attend)
            bench_attend(cpu, o.n_threads, o.kernel);
        if (!o.type || sparse)
            bench_sparse(cpu);
        if (latent || attend || sparse)
            return 0;
        o.cpu = cpu;
        bench_matmul(&o);
        return 0;
    }
    if (cpu & CPU_AVX512VNNI)
        cpu |= CPU_AMX_EMULATED;
    struct kern_table t;
    kern_table_init(&t, cpu);
    int bad = kern_self_test(&t, NULL);
    if (bad)
        printf("the self-test found %d kernels\n", bad);
    for (enum fence_side side = FENCE_END; side <= FENCE_BEGIN; side++) {
        fence_set(side);
        bad += check_matmul(seed, cpu) + check_math(seed, cpu) + check_attend(seed, cpu) +
               check_attend_coded(seed, cpu) + check_sparse(seed, cpu) + check_select(seed, cpu) +
               check_latent(seed, cpu);
    }
    print_covered(cpu);
    printf("%d differences, seed %llu\n", bad, (unsigned long long)seed);
    return bad != 0;
}
