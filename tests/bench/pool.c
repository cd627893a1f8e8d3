/* SPDX-License-Identifier: Apache-2.0 */
/* What one fork and join of the pool costs: pool_run() of empty chunks, back to back and
 * after a pause that sends the workers to sleep.  Prints the median; nothing is asserted. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/cpu.h"
#include "base/pool.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_RUNS = 2001 };

static void nothing(void *arg, int64_t chunk, int worker)
{
    (void)arg, (void)chunk, (void)worker;
}

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void measure(struct pool *p, int chunks_each, long pause_us, int n_runs)
{
    static uint64_t took[N_RUNS];
    for (int i = 0; i < n_runs; i++) {
        if (pause_us)
            nanosleep(&(struct timespec){.tv_nsec = pause_us * 1000}, NULL);
        const uint64_t start = clock_now();
        pool_run(p, (int64_t)chunks_each * pool_size(p), nothing, NULL);
        took[i] = clock_now() - start;
    }
    qsort(took, (size_t)n_runs, sizeof *took, ascending);
    printf("%2d threads, %d chunks each, %s: median %.2f us, 99 %% under %.2f us\n", pool_size(p),
           chunks_each, pause_us ? "workers asleep" : "workers awake",
           1e-3 * (double)took[n_runs / 2], 1e-3 * (double)took[n_runs - 1 - n_runs / 100]);
}

int main(void)
{
    struct cpu_machine m;
    cpu_machine_read(&m);
    printf("%s, %d cores, %s\n", m.model, m.n_physical, cpu_name(cpu_detect()));
    const int most = m.n_logical * 2;
    for (int n = 1; n <= most; n *= 2) {
        struct pool *p;
        struct err err;
        if (pool_create(&p, n, true, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        measure(p, 4, 0, N_RUNS);
        measure(p, 4, 500, N_RUNS / 10);
        pool_free(p);
    }
    return 0;
}
