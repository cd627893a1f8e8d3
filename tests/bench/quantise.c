/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quantise - error and speed of quant_fit(), beside llama.cpp's encoders if its library is given.
 *
 * usage: quantise [LIBGGML-BASE.so|- [ROWS [CODES]]]
 *
 * Rows of 4096: Gaussian, Laplacian with outliers.  Errors are relative, sum w (x - y)^2 / sum w
 * x^2; w is 1 without importance, then random; codes without a better search there have 1.0 or less
 * here, too.  One thread, and its processor time.
 */
#include "base/clock.h"
#include "base/cpu.h"
#include "quant/quant.h"
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4096 };

static uint32_t state = 0x9e3779b9;

static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return ((double)state + 0.5) / 4294967296.0;
}

static double gauss(void)
{
    const double r = sqrt(-2 * log(uniform()));
    return r * cos(6.283185307179586 * uniform());
}

static void fill(float *x, size_t n_rows, int kind)
{
    for (size_t r = 0; r < n_rows; r++) {
        const double scale = exp(0.3 * gauss()) * 0.02;
        for (size_t i = 0; i < N; i++) {
            const double u = uniform() - 0.5;
            double v = kind == 0 ? gauss() : -(u < 0 ? -1 : 1) * log(1 - 2 * fabs(u)) * 0.707;
            if (kind == 1 && uniform() < 0.002)
                v *= 8;
            x[r * N + i] = (float)(v * scale);
        }
    }
}

/* large: errors of large values count more, w sqrt(mean + x^2) */
static double error(const float *x, const float *y, const float *w, size_t n_rows, bool large)
{
    double e = 0, s = 0;
    for (size_t r = 0; r < n_rows; r++) {
        double mean = 0;
        for (size_t i = 0; i < N; i++)
            mean += (double)x[r * N + i] * (double)x[r * N + i] / N;
        for (size_t i = 0; i < N; i++) {
            double wi = w ? (double)w[i] : 1.0;
            wi *= large ? sqrt(mean + (double)x[r * N + i] * (double)x[r * N + i]) : 1;
            const double d = (double)x[r * N + i] - (double)y[r * N + i];
            e += wi * d * d;
            s += wi * (double)x[r * N + i] * (double)x[r * N + i];
        }
    }
    return e / s;
}

typedef size_t chunk_fn(int type, const float *src, void *dst, int64_t start, int64_t n_rows,
                        int64_t n, const float *w);

int main(int argc, char **argv)
{
    static const uint32_t types[] = {
        QUANT_Q4_0,  QUANT_Q4_1,  QUANT_Q5_0,    QUANT_Q5_1,   QUANT_Q8_0,   QUANT_Q2_K,
        QUANT_Q3_K,  QUANT_Q4_K,  QUANT_Q5_K,    QUANT_Q6_K,   QUANT_IQ4_NL, QUANT_IQ4_XS,
        QUANT_MXFP4, QUANT_NVFP4, QUANT_IQ2_XXS, QUANT_IQ2_XS, QUANT_IQ2_S,  QUANT_IQ3_XXS,
        QUANT_IQ3_S, QUANT_IQ1_S, QUANT_IQ1_M,   QUANT_TQ1_0,  QUANT_TQ2_0,  QUANT_Q1_0,
    };
    const size_t n_rows = argc > 2 ? (size_t)atol(argv[2]) : 64;
    void *lib =
        argc > 1 && strcmp(argv[1], "-") != 0 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (argc > 1 && strcmp(argv[1], "-") != 0 && !lib) {
        fprintf(stderr, "quantise: %s\n", dlerror());
        return 1;
    }
    union {
        void *p;
        chunk_fn *fn;
    } theirs = {.p = lib ? dlsym(lib, "ggml_quantize_chunk") : NULL};
    float *x = malloc(n_rows * N * sizeof *x), *y = malloc(n_rows * N * sizeof *y),
          *w = malloc(N * sizeof *w);
    unsigned char *out = malloc(n_rows * N * 2);
    for (size_t i = 0; i < N; i++)
        w[i] = (float)exp(1.5 * gauss());
    printf("%-8s %-8s %-7s %10s %10s %7s %7s %9s %9s %6s\n", "code", "data", "weights", "ours",
           "theirs", "ratio", "large", "ours M/s", "theirs", "times");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int kind = 0; kind < 2; kind++)
            for (int weighted = 0; weighted < 2; weighted++) {
                const uint32_t type = types[t];
                const char *only = argc > 3 ? argv[3] : NULL;
                if (!quant_can_fit(type) || (only && !strstr(only, quant_info(type)->name)))
                    continue;
                double err[2] = {0}, large[2] = {0}, s[2] = {1e9, 1e9};
                state = 12345;
                fill(x, n_rows, kind);
                for (int who = 0; who < (theirs.p ? 2 : 1); who++) {
                    if (who && !weighted &&
                        (type == QUANT_IQ2_XXS || type == QUANT_IQ2_XS || type == QUANT_IQ1_S))
                        continue;
                    for (int k = 0; k < 2; k++) {
                        const uint64_t from = clock_used();
                        if (who)
                            theirs.fn((int)type, x, out, 0, (int64_t)n_rows, N,
                                      weighted ? w : NULL);
                        else
                            quant_fit(cpu_detect(), type, x, weighted ? w : NULL, out, N, n_rows);
                        s[who] = fmin(s[who], (double)(clock_used() - from) * 1e-9);
                    }
                    quant_decode(type, out, y, N * n_rows);
                    err[who] = error(x, y, weighted ? w : NULL, n_rows, false);
                    large[who] = error(x, y, weighted ? w : NULL, n_rows, true);
                }
                const double m = (double)(N * n_rows) * 1e-6;
                printf("%-8s %-8s %-7s %10.4e %10.4e %7.4f %7.4f %9.2f %9.2f %6.2f\n",
                       quant_info(type)->name, kind ? "laplace" : "gauss", weighted ? "yes" : "no",
                       err[0], err[1], err[1] > 0 ? err[0] / err[1] : 0,
                       err[1] > 0 ? large[0] / large[1] : 0, m / s[0], m / s[1], s[1] / s[0]);
                fflush(stdout);
            }
    return 0;
}
