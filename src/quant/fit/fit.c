/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/fit/fit.h"

#include "base/bug.h"
#include "base/cpu.h"

static quant_fit_fn *fit_for(uint32_t cpu)
{
#if defined(__x86_64__) && !defined(INGLE_PLAIN)
    if (cpu & CPU_AVX512)
        return quant_fit_avx512;
    if (cpu & CPU_AVX2)
        return quant_fit_avx2;
#endif
    (void)cpu;
    return quant_fit_plain;
}

bool quant_can_fit(uint32_t type)
{
    switch (type) {
    case QUANT_Q4_0:
    case QUANT_Q4_1:
    case QUANT_Q5_0:
    case QUANT_Q5_1:
    case QUANT_Q8_0:
    case QUANT_Q2_K:
    case QUANT_Q3_K:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
    case QUANT_Q6_K:
    case QUANT_IQ4_NL:
    case QUANT_IQ4_XS:
    case QUANT_MXFP4:
    case QUANT_NVFP4:
    case QUANT_TQ1_0:
    case QUANT_TQ2_0:
    case QUANT_Q1_0:
    case QUANT_IQ1_S:
    case QUANT_IQ1_M:
    case QUANT_IQ2_XXS:
    case QUANT_IQ2_XS:
    case QUANT_IQ2_S:
    case QUANT_IQ3_XXS:
    case QUANT_IQ3_S:
    case QUANT_F32:
    case QUANT_F16:
    case QUANT_BF16:
        return true;
    default:
        return false;
    }
}

/* Of 32 k numbers; eight sums that do not wait for each other. */
static float row_mean(const float *x, size_t n)
{
    double lane[8] = {0};
    for (size_t i = 0; i < n; i += 8)
        for (size_t k = 0; k < 8; k++)
            lane[k] += (double)x[i + k] * (double)x[i + k];
    double sum = 0;
    for (size_t k = 0; k < 8; k++)
        sum += lane[k];
    return (float)(sum / (double)n);
}

/* Weights of these codes depend on the row. */
static bool has_mean(uint32_t type)
{
    return type == QUANT_Q4_0 || type == QUANT_Q4_1 || type == QUANT_Q5_0 || type == QUANT_Q5_1;
}

void quant_fit(uint32_t cpu, uint32_t type, const float *src, const float *importance, void *dst,
               size_t n, size_t n_rows)
{
    const struct quant_info *info = quant_info(type);
    BUG_IF(!info || !quant_can_fit(type) || n % info->n);
    if (!info->quantised) {
        BUG_IF(!quant_encode(type, src, dst, n * n_rows));
        return;
    }
    quant_fit_fn *fn = fit_for(cpu);
    struct quant_fit_job j = {.type = type, .weight = importance, .n_blocks = n / info->n};
    for (size_t r = 0; r < n_rows; r++) {
        j.x = src + r * n;
        j.dst = (unsigned char *)dst + r * (n / info->n) * info->n_bytes;
        j.mean = importance && has_mean(type) ? row_mean(j.x, n) : 0;
        if (!importance && r == 0) { /* rows do not matter: all blocks at once */
            j.n_blocks *= n_rows;
            r = n_rows - 1;
        }
        fn(&j);
    }
}
