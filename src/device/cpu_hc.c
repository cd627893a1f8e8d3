/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_hc - hyper-connections: n residual streams instead of one.
 *
 * What a sub-layer reads is a gated sum of the streams; what it gives goes back to each
 * stream beside a mixture of all of them, whose matrix is made doubly stochastic by
 * Sinkhorn's normalisation.  Everything is f32, in the order written here.
 */
#include "base/bug.h"
#include "device/cpu.h"
#include "device/ops.h"
#include <math.h>
#include <string.h>

enum { MAX_STREAMS = 8 };

static void row_range(pool_fn *fn, struct device *d, void *arg, int64_t n, int64_t width)
{
    device_cpu_for(d, n, n * width, fn, arg);
}

/* M from its logits: softmax of rows, then columns and rows in turn; it ends on columns. */
static void sinkhorn(float *m, int64_t n, int iterations, float eps)
{
    for (int64_t j = 0; j < n; j++) {
        float *row = m + j * n, max = row[0], sum = 0.0f;
        for (int64_t k = 1; k < n; k++)
            max = row[k] > max ? row[k] : max;
        for (int64_t k = 0; k < n; k++) {
            row[k] = kern_exp(row[k] - max);
            sum += row[k];
        }
        for (int64_t k = 0; k < n; k++)
            row[k] = row[k] / sum + eps;
    }
    for (int i = 0; i < iterations; i++) {
        for (int64_t j = 0; i && j < n; j++) {
            float sum = eps;
            for (int64_t k = 0; k < n; k++)
                sum += m[j * n + k];
            for (int64_t k = 0; k < n; k++)
                m[j * n + k] /= sum;
        }
        for (int64_t k = 0; k < n; k++) {
            float sum = eps;
            for (int64_t j = 0; j < n; j++)
                sum += m[j * n + k];
            for (int64_t j = 0; j < n; j++)
                m[j * n + k] /= sum;
        }
    }
}

struct pre_job { struct device *d; const struct device_hc_pre_args *a; };

static void pre_chunk(void *arg, int64_t i, int worker)
{
    (void)worker;
    const struct pre_job *job = arg;
    const struct kern_math_table *k = &job->d->kern.math;
    const struct device_hc_pre_args *a = job->a;
    const struct device_hc *hc = a->hc;
    const int64_t n = hc->n, width = a->out.width;
    const float *x = a->x.at + i * a->x.stride, *mix = a->mix.at + i * a->mix.stride;
    const float *scale = hc->scale->at, *base = hc->base->at;
    float *out = a->out.at + i * a->out.stride;
    kern_touch_in(x, a->x.width);
    kern_touch_out(out, width);
    const float r = 1.0f / sqrtf(k->dot(x, x, a->x.width) / (float)a->x.width + hc->norm_eps);
    memset(out, 0, (size_t)width * sizeof *out);
    for (int64_t j = 0; j < n; j++) {
        const float pre = kern_sigmoid(mix[j] * r * scale[0] + base[j]) + hc->eps;
        k->add_scaled(out, x + j * width, pre, width);
    }
    if (!a->gates.at)
        return;
    float *post = a->gates.at + i * a->gates.stride, *m = post + n;
    for (int64_t j = 0; j < n; j++)
        post[j] = 2.0f * kern_sigmoid(mix[n + j] * r * scale[1] + base[n + j]);
    for (int64_t j = 0; j < n * n; j++)
        m[j] = mix[2 * n + j] * r * scale[2] + base[2 * n + j];
    sinkhorn(m, n, hc->iterations, hc->eps);
}

void device_cpu_hc_pre(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    struct pre_job j = {d, args};
    BUG_IF(j.a->hc->n > MAX_STREAMS || j.a->x.width != j.a->hc->n * j.a->out.width);
    row_range(pre_chunk, d, &j, j.a->x.n, 2 * j.a->x.width);
}

struct post_job { struct device *d; const struct device_hc_post_args *a; };

static void post_chunk(void *arg, int64_t i, int worker)
{
    (void)worker;
    const struct post_job *job = arg;
    const struct kern_math_table *math = &job->d->kern.math;
    const struct device_hc_post_args *a = job->a;
    const int64_t n = a->hc->n, width = a->out.width;
    const float *post = a->gates.at + i * a->gates.stride, *m = post + n;
    for (int64_t k = 0; k < n; k++) {
        float *y = a->y.at + i * a->y.stride + k * width;
        kern_touch(y, a->out.at + i * a->out.stride, width);
        math->scale(y, a->out.at + i * a->out.stride, post[k], width);
        for (int64_t j = 0; j < n; j++) {
            kern_touch_in(a->x.at + i * a->x.stride + j * width, width);
            math->add_scaled(y, a->x.at + i * a->x.stride + j * width, m[j * n + k], width);
        }
    }
}

void device_cpu_hc_post(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    struct post_job j = {d, args};
    row_range(post_chunk, d, &j, j.a->x.n, 5 * j.a->x.width);
}
