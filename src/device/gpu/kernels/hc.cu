/* SPDX-License-Identifier: Apache-2.0 */
/* hc - hyper-connections (hc.h). */
#include "device/gpu/kernels/gpu.h"
#include "device/gpu/kernels/fold.h"
#include "device/gpu/kernels/hc.h"
#include "device/gpu/kernels/number.h"

struct hc_shared {
    float part[HC_THREADS];
    float pre[HC_MOST];
    float m[HC_MOST * HC_MOST];
};

/* M from its logits: softmax of rows, then columns and rows in turn; it ends on columns.  One warp,
 * a lane a row or a column. */
GPU_DEV void hc_sinkhorn(float *m, int n, int iterations, float eps)
{
    const int i = gpu_lane();
    if (i < n) {
        float *row = m + i * n, max = row[0], sum = 0.0f;
        for (int k = 1; k < n; k++)
            max = row[k] > max ? row[k] : max;
        for (int k = 0; k < n; k++) {
            row[k] = poly_exp(row[k] - max);
            sum = sum + row[k];
        }
        for (int k = 0; k < n; k++)
            row[k] = row[k] / sum + eps;
    }
    gpu_warp_sync();
    for (int turn = 0; turn < 2 * iterations - 1; turn++) {
        const int across = turn % 2 ? 1 : n, along = turn % 2 ? n : 1;
        if (i < n) {
            float sum = eps;
            for (int k = 0; k < n; k++)
                sum = sum + m[i * along + k * across];
            for (int k = 0; k < n; k++)
                m[i * along + k * across] = m[i * along + k * across] / sum;
        }
        gpu_warp_sync();
    }
}

GPU_ENTRY(hc_pre, struct hc_pre_args)
{
    GPU_SHARED(struct hc_shared, sh);
    const int t = gpu_tid(), n = a.n, r = gpu_block(0);
    const float *x = a.x + r * a.x_stride, *mix = a.mix + r * a.mix_stride;
    float s = 0.0f;
    for (int i = t; i < n * a.width; i += HC_THREADS)
        s = gpu_fma(x[i], x[i], s);
    s = fold_sum(sh->part, s);
    const float by = 1.0f / gpu_sqrt(s / (float)(n * a.width) + a.norm_eps);
    if (t < n)
        sh->pre[t] = poly_sigmoid(mix[t] * by * a.scale[0] + a.base[t]) + a.eps;
    if (a.gates) {
        float *post = a.gates + r * a.gates_stride;
        if (t < n)
            post[t] = 2.0f * poly_sigmoid(mix[n + t] * by * a.scale[1] + a.base[n + t]);
        if (t < n * n)
            sh->m[t] = mix[2 * n + t] * by * a.scale[2] + a.base[2 * n + t];
        gpu_sync();
        if (gpu_warp() == 0)
            hc_sinkhorn(sh->m, n, a.iterations, a.eps);
        gpu_sync();
        if (t < n * n)
            post[n + t] = sh->m[t];
    } else {
        gpu_sync();
    }
    float *out = a.out + r * a.out_stride;
    for (int c = t; c < a.width; c += HC_THREADS) {
        float y = 0.0f;
        for (int j = 0; j < n; j++)
            y = gpu_fma(x[j * a.width + c], sh->pre[j], y);
        out[c] = y;
    }
}

GPU_ENTRY(hc_post, struct hc_post_args)
{
    const int blocks = (a.width + HC_COLUMNS - 1) / HC_COLUMNS, r = gpu_block(0) / blocks;
    const int c0 = gpu_block(0) % blocks * HC_COLUMNS, n = a.n;
    const int end = a.width - c0 < HC_COLUMNS ? a.width : c0 + HC_COLUMNS;
    const float *post = a.gates + r * a.gates_stride, *m = post + n;
    const float *x = a.x + r * a.x_stride, *out = a.out + r * a.out_stride;
    float *y = a.y + r * a.y_stride;
    for (int c = c0 + gpu_tid(); c < end; c += HC_THREADS)
        for (int k = 0; k < n; k++) {
            float s = out[c] * post[k];
            for (int j = 0; j < n; j++)
                s = gpu_fma(x[j * a.width + c], m[j * n + k], s);
            y[k * a.width + c] = s;
        }
}
