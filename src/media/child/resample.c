/* SPDX-License-Identifier: Apache-2.0 */
/* Another sampling rate: a sinc under a Kaiser window, cut off below half of the lower rate.  The
 * kernel is read from a table with lines between its points, so any pair of rates costs the same:
 * an error of 4e-7 of a sample's size. */
#include "media/child/child.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>

enum { N_ZEROS = 32, N_STEPS = 1024, N_POINTS = N_ZEROS * N_STEPS };
static const double PI = 3.14159265358979323846, CUT = 0.94, BETA = 9;

size_t media_child_resampled(size_t n, uint32_t rate)
{
    return (size_t)(((uint64_t)n * MEDIA_RATE + rate - 1) / rate);
}

/* The modified Bessel function of order 0. */
static double bessel(double x)
{
    double sum = 1, term = 1;
    for (int k = 1; term > sum * 1e-17; k++) {
        term *= x * x / 4 / ((double)k * k);
        sum += term;
    }
    return sum;
}

/* kernel: f64 [N_POINTS + 2], from the middle to N_ZEROS */
static void fill(double *kernel)
{
    for (int i = 0; i < N_POINTS; i++) {
        const double x = (double)i / N_STEPS, r = x / N_ZEROS, at = PI * CUT * x;
        const double sinc = i ? sin(at) / at : 1;
        kernel[i] = CUT * sinc * bessel(BETA * sqrt(1 - r * r)) / bessel(BETA);
    }
    kernel[N_POINTS] = kernel[N_POINTS + 1] = 0;
}

ingle_status media_child_resample(const float *in, size_t n, uint32_t rate, float *out,
                                  struct err *err)
{
    const double step = (double)rate / MEDIA_RATE, low = step > 1 ? 1 / step : 1;
    const double reach = N_ZEROS / low; /* of input samples on each side */
    double *kernel = mem_calloc(N_POINTS + 2, sizeof *kernel);
    if (!kernel)
        return err_set(err, INGLE_ARG, "WAV: no memory to change the rate");
    fill(kernel);
    const size_t n_out = media_child_resampled(n, rate);
    for (size_t o = 0; o < n_out; o++) {
        const double centre = (double)((uint64_t)o * rate) / MEDIA_RATE;
        const int64_t from = num_max((int64_t)ceil(centre - reach), 0);
        const int64_t to = num_min((int64_t)floor(centre + reach), (int64_t)n - 1);
        double sum = 0;
        for (int64_t i = from; i <= to; i++) {
            const double x = fabs((double)i - centre) * low * N_STEPS;
            const size_t k = (size_t)x;
            if (k <= N_POINTS)
                sum += (double)in[i] * (kernel[k] + (kernel[k + 1] - kernel[k]) * (x - (double)k));
        }
        out[o] = (float)(sum * low);
    }
    mem_free(kernel);
    return INGLE_OK;
}
