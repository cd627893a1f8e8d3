/* checks - what the kernel checks of math and attention share: random data, comparison. */
#ifndef INGLE_TESTS_KERNCHECK_CHECKS_H
#define INGLE_TESTS_KERNCHECK_CHECKS_H

#include "kerncheck/fence.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Each compares every kernel that cpu allows with plain C and with double precision, prints
 * what differs and returns how many things did. */
int check_matmul(uint64_t seed, uint32_t cpu);
int check_math(uint64_t seed, uint32_t cpu);
int check_attend(uint64_t seed, uint32_t cpu);
int check_attend_coded(uint64_t seed, uint32_t cpu);
int check_sparse(uint64_t seed, uint32_t cpu);
int check_select(uint64_t seed, uint32_t cpu);
int check_latent(uint64_t seed, uint32_t cpu);

/* Rates of each kernel that cpu allows, on standard output. */
/* kernel: part of the names of those that are measured, or NULL */
void bench_attend(uint32_t cpu, int n_threads, const char *kernel);
void bench_sparse(uint32_t cpu);
void bench_latent(uint32_t cpu);
struct bench_matmul {
    uint32_t cpu;
    const char *type, *kernel; /* NULL: all; part of the name of a kernel */
    int n_threads, rounds;
    int64_t out, in;
};
void bench_matmul(const struct bench_matmul *o);

struct noise {
    uint64_t s;
};

static inline uint64_t noise_next(struct noise *n)
{
    uint64_t z = (n->s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* [0, n) */
static inline int64_t noise_below(struct noise *n, int64_t limit)
{
    return (int64_t)(noise_next(n) % (uint64_t)limit);
}

/* [-1, 1) */
static inline float noise_unit(struct noise *n)
{
    return (float)(int32_t)(noise_next(n) >> 40) * (1.0f / 8388608.0f) - 1.0f;
}

static inline float noise_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Bit for bit, but any NaN equals any other. */
static inline bool noise_same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

#endif
