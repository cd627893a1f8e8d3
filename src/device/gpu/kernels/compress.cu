/* SPDX-License-Identifier: Apache-2.0 */
/* compress - compressors of DeepSeek V4 (compress.h). */
#include "device/gpu/kernels/gpu.h"
#include "device/gpu/kernels/compress.h"
#include "device/gpu/kernels/fold.h"
#include "device/gpu/kernels/number.h"
#include "device/gpu/kernels/rowcode.h"

struct compress_shared {
    const float *value[COMPRESS_MOST_MEMBERS];
    float y[COMPRESS_MOST_WIDTH];
    float part[COMPRESS_THREADS];
};

GPU_DEV uint8_t *compress_row(const struct gpu_span *s, int64_t at, int every, int64_t n_bytes,
                              int64_t i)
{
    const int each = KERN_PAGE / every;
    return s->page[i / each] + at + i % each * n_bytes;
}

/* Sylvester's matrix over the root of n. */
GPU_DEV void compress_turn(float *y, int n, float by)
{
    for (int h = 1; h < n; h *= 2) {
        for (int i = gpu_tid(); i < n / 2; i += COMPRESS_THREADS) {
            const int j = i / h * 2 * h + i % h;
            const float u = y[j], v = y[j + h];
            y[j] = u + v;
            y[j + h] = u - v;
        }
        gpu_sync();
    }
    for (int i = gpu_tid(); i < n; i += COMPRESS_THREADS)
        y[i] = y[i] * by;
    gpu_sync();
}

GPU_ENTRY(compress, struct compress_args)
{
    GPU_SHARED(struct compress_shared, sh);
    const struct gpu_span *in = a.in, *out = a.out;
    int64_t block = gpu_block(0);
    for (int64_t n; block >= (n = (in->pos0 + in->n) / a.ratio - in->pos0 / a.ratio); in++, out++)
        block -= n;
    block += in->pos0 / a.ratio;
    const int t = gpu_tid(), half = a.overlap ? a.width : 0, wide = a.width + half;
    const int n = a.overlap ? 2 * a.ratio : a.ratio;
    /* Positions before the first one are no members. */
    const int64_t begin = (block + 1) * a.ratio - n;
    const int skip = begin < 0 ? (int)-begin : 0;
    for (int i = skip + t; i < n; i += COMPRESS_THREADS) {
        const int64_t pos = begin + i;
        const float *row =
            a.step && pos >= in->pos0
                ? a.step + (in->row0 + pos - in->pos0) * a.step_stride
                : (const float *)(const void *)compress_row(in, a.in_at, a.in_every, a.in_bytes,
                                                            pos);
        sh->value[i - skip] = row + (a.overlap && i >= a.ratio ? half : 0);
    }
    gpu_sync();
    float s = 0.0f;
    for (int d = t; d < a.width; d += COMPRESS_THREADS) {
        float top = -NUMBER_INFINITY, sum = 0.0f, acc = 0.0f;
        for (int i = 0; i < n - skip; i++) {
            const float g = sh->value[i][wide + d];
            top = g > top ? g : top;
        }
        for (int i = 0; i < n - skip; i++) {
            const float e = poly_exp(sh->value[i][wide + d] - top);
            sum = sum + e;
            acc = gpu_fma(e, sh->value[i][d], acc);
        }
        acc = acc / sum;
        sh->y[d] = acc;
        s = gpu_fma(acc, acc, s);
    }
    s = fold_sum(sh->part, s);
    const float f = 1.0f / gpu_sqrt(s / (float)a.width + a.eps);
    for (int d = t; d < a.width; d += COMPRESS_THREADS)
        sh->y[d] = sh->y[d] * f * a.norm[d];
    gpu_sync();
    const float *cs = a.cs + (int64_t)gpu_block(0) * 2 * a.n_pairs;
    for (int p = t; p < a.n_pairs; p += COMPRESS_THREADS) {
        float *y = sh->y + a.width - 2 * a.n_pairs + 2 * p;
        const float u = y[0], v = y[1];
        y[0] = u * cs[2 * p] - v * cs[2 * p + 1];
        y[1] = v * cs[2 * p] + u * cs[2 * p + 1];
    }
    gpu_sync();
    if (a.turn > 0.0f)
        compress_turn(sh->y, a.width, a.turn);
    rowcode_write(a.out_codec, a.width, a.out_tail,
                  compress_row(out, a.out_at, a.out_every, a.out_bytes, block), sh->y);
}
