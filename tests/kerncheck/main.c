/* SPDX-License-Identifier: Apache-2.0 */
/* kerncheck - every kernel that this machine can run against its plain twin.
 * usage: kerncheck [--seed=N] [--cpu=LEVEL] [--bench] */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include <stdlib.h>

static const struct level {
    const char *name;
    uint32_t bit;
} levels[] = {{"ref", 0}, {"avx2", CPU_AVX2}, {"avxvnni", CPU_AVXVNNI}, {"avx512", CPU_AVX512},
              {"avx512vnni", CPU_AVX512VNNI}, {"amx", CPU_AMX}};

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
    bool bench = false;
    for (int i = 1; i < argc; i++) {
        uint32_t mask;
        if (!strncmp(argv[i], "--seed=", 7)) {
            seed = strtoull(argv[i] + 7, NULL, 0);
        } else if (!strncmp(argv[i], "--cpu=", 6) && cpu_level(argv[i] + 6, &mask)) {
            cpu &= mask;
        } else if (!strcmp(argv[i], "--bench")) {
            bench = true;
        } else {
            printf("usage: kerncheck [--seed=N] [--cpu=LEVEL] [--bench]\n");
            return 2;
        }
    }
    if (bench) {
        bench_attend(cpu);
        return 0;
    }
    int bad = check_matmul(seed, cpu) + check_math(seed, cpu) + check_attend(seed, cpu);
    print_covered(cpu);
    printf("%d differences, seed %llu\n", bad,
           (unsigned long long)seed);
    return bad != 0;
}
