/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a draw costs: bench_sample [VOCABULARY [DRAWS]].  Logits are like a model's: a bell and a
 * few likely tokens.  Prints the median of microseconds for each set of options.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "session/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 1;

static double dice(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)((state >> 11) + 1) * 0x1p-53;
}

static void fill(float *logits, int64_t n)
{
    for (int64_t t = 0; t < n; t++)
        logits[t] = (float)(2.2 * sqrt(-2 * log(dice())) * cos(6.283185307179586 * dice()));
    for (int i = 0; i < 8; i++)
        logits[(int64_t)(dice() * (double)n) % n] += (float)(8 - 4 * log(dice()));
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *name, struct sample_options o, const float *logits, int64_t n,
                    int64_t draws)
{
    struct sampler *s;
    struct sample_token t;
    double *us = mem_calloc((size_t)draws, sizeof *us);
    if (!us || session_sample_create(&s, &o, n, 64, NULL))
        exit(1);
    for (int64_t i = 0; i < draws; i++) {
        const uint64_t from = clock_used();
        if (session_sample_draw(s, logits, (uint64_t)i, NULL, 0, &t, NULL))
            exit(1);
        us[i] = (double)(clock_used() - from) / 1e3;
    }
    qsort(us, (size_t)draws, sizeof *us, by_value);
    printf("%-28s %9.1f us\n", name, us[draws / 2]);
    session_sample_free(s);
    mem_free(us);
}

int main(int argc, char **argv)
{
    const int64_t n = argc > 1 ? atoll(argv[1]) : 262144, draws = argc > 2 ? atoll(argv[2]) : 31;
    float *logits = n > 0 && draws > 0 ? mem_calloc((size_t)n, sizeof *logits) : NULL;
    if (!logits)
        return 1;
    fill(logits, n);
    struct sample_options o;
    session_sample_defaults(&o);
    measure("greedy", o, logits, n, draws);
    o.temperature = 1;
    measure("temperature 1", o, logits, n, draws);
    o.temperature = 0.6f;
    measure("temperature 0.6", o, logits, n, draws);
    o.top_k = 64;
    o.top_p = 0.95f;
    measure("top-k 64, top-p 0.95", o, logits, n, draws);
    o.top_k = 0;
    measure("top-p 0.95", o, logits, n, draws);
    o.top_p = 1;
    o.min_p = 0.05f;
    measure("min-p 0.05", o, logits, n, draws);
    o.xtc_probability = 0.5f;
    o.xtc_threshold = 0.1f;
    measure("min-p 0.05, XTC", o, logits, n, draws);
    o.min_p = 0;
    o.xtc_probability = 0;
    o.typical_p = 0.9f;
    measure("typical 0.9", o, logits, n, draws);
    mem_free(logits);
    return 0;
}
