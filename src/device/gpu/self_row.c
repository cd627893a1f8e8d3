/* SPDX-License-Identifier: Apache-2.0 */
/* self_row - kernels of row.h beside the processor's. */
#include "device/gpu/self.h"
#include "kern/kern.h"
#include <math.h>
#include <string.h>

enum { ROWS = 3, WIDTH = 301, STRIDE = 304, ALL = ROWS * STRIDE, HEADS = 2, GROUPS = 512 };

/* Rows x and y, of which the second are to be changed, on both sides. */
struct two {
    float *x, *y, *z;            /* the card's */
    float *host_x, *host_y, *host_z;
    float want[ALL];
};

static void fill(struct gpu_self *s, struct two *t, bool odd)
{
    t->x = device_gpu_self_floats(s, ALL, odd, &t->host_x);
    t->y = device_gpu_self_floats(s, ALL, odd, &t->host_y);
    t->z = device_gpu_self_floats(s, ALL, false, &t->host_z);
    memcpy(t->want, t->host_y, sizeof t->want);
}

static bool run(struct gpu_self *s, enum gpu_kernel k, struct gpu_grid grid, const void *args,
                size_t n_args)
{
    return device_gpu_self_send(s) && device_gpu_launch(s->d, k, grid, args, n_args, 0) &&
           device_gpu_self_fetch(s);
}

static bool norms(struct gpu_self *s, enum gpu_kernel k, struct two *t)
{
    const struct kern_math_table *m = &s->d->kern.math;
    fill(s, t, false);
    for (int r = 0; r < ROWS; r++) {
        float *want = t->want + r * STRIDE, *x = t->host_x + r * STRIDE;
        float normed[WIDTH];
        m->norm(k == GPU_K_row_norm ? want : normed, x, t->host_z, WIDTH, 1e-6f);
        if (k == GPU_K_row_norm)
            continue;
        m->add(want, normed, WIDTH);
        m->scale(want, want, 0.7f, WIDTH);
    }
    const struct row_norm_args n = {t->x, t->z, t->y, STRIDE, STRIDE, ROWS, 1, WIDTH, 1e-6f};
    const struct row_add_norm_args a = {t->y, t->x, t->z, STRIDE, STRIDE, ROWS, WIDTH, 1e-6f, 0.7f};
    return (k == GPU_K_row_norm ? run(s, k, row_norm_grid(&n), &n, sizeof n)
                                : run(s, k, row_add_norm_grid(&a), &a, sizeof a)) &&
           device_gpu_self_same(s, t->y, t->want, ALL);
}

static bool pairs(struct gpu_self *s, enum gpu_kernel k, struct two *t)
{
    const struct kern_math_table *m = &s->d->kern.math;
    fill(s, t, true);
    for (int r = 0; r < ROWS; r++) {
        float *want = t->want + r * STRIDE;
        const float *x = t->host_x + r * STRIDE;
        if (k == GPU_K_row_add)
            m->add(want, x, WIDTH);
        else if (k == GPU_K_row_mul)
            m->mul(want, x, WIDTH);
        else if (k == GPU_K_row_scale)
            m->scale(want, x, 0.3f, WIDTH);
        else
            memcpy(want, x, WIDTH * sizeof *want);
    }
    const struct row_pair_args a = {t->y, t->x, STRIDE, STRIDE, ROWS, WIDTH, 0.3f};
    return run(s, k, row_pair_grid(&a), &a, sizeof a) &&
           device_gpu_self_same(s, t->y, t->want, ALL);
}

static bool ones(struct gpu_self *s, enum gpu_kernel k, struct two *t)
{
    const struct kern_math_table *m = &s->d->kern.math;
    fill(s, t, true);
    for (int r = 0; r < ROWS; r++) {
        float *want = t->want + r * STRIDE;
        if (k == GPU_K_row_softcap)
            m->softcap(want, 30.0f, WIDTH);
        else if (k == GPU_K_row_sqrt_softplus)
            m->sqrt_softplus(want, WIDTH);
        else
            m->softmax(want, want, WIDTH);
    }
    const struct row_one_args a = {t->y, STRIDE, ROWS, WIDTH, 30.0f};
    const struct row_softmax_args b = {t->y, STRIDE, ROWS, WIDTH};
    return (k == GPU_K_row_softmax ? run(s, k, row_softmax_grid(&b), &b, sizeof b)
                                   : run(s, k, row_one_grid(&a), &a, sizeof a)) &&
           device_gpu_self_same(s, t->y, t->want, ALL);
}

static bool glu(struct gpu_self *s, enum gpu_kernel k, struct two *t)
{
    for (int gelu = 0; gelu < 2; gelu++) {
        s->used = 0;
        fill(s, t, true);
        for (int r = 0; r < ROWS; r++)
            (gelu ? s->d->kern.math.glu_gelu : s->d->kern.math.glu_silu)(
                t->want + r * STRIDE, t->host_x + r * STRIDE, t->host_z + r * STRIDE, WIDTH);
        const struct row_glu_args a = {t->y, t->x, t->z, STRIDE, STRIDE,
                                       STRIDE, ROWS, WIDTH, gelu, 0.0f};
        if (!run(s, k, row_glu_grid(&a), &a, sizeof a) ||
            !device_gpu_self_same(s, t->y, t->want, ALL))
            return false;
    }
    return true;
}

static bool turns(struct gpu_self *s, enum gpu_kernel k, struct two *t)
{
    enum { WIDE = 128, PAIRS = 30 };
    fill(s, t, false);
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < HEADS; h++) {
            float *want = t->want + r * STRIDE + h * WIDE;
            const float *cs = t->host_x + r * STRIDE;
            if (k == GPU_K_row_hadamard)
                kern_row_hadamard(want, WIDE);
            else if (k == GPU_K_row_rope)
                s->d->kern.math.rope(want, cs, PAIRS, WIDE / 2);
            else
                s->d->kern.math.rope_pairs(want + 5, cs, PAIRS, true);
        }
    const struct row_rope_args a = {t->y, t->x, STRIDE, STRIDE, ROWS, HEADS,
                                    WIDE, PAIRS, WIDE / 2, 5, 1};
    const struct row_hadamard_args b = {t->y, STRIDE, ROWS, HEADS, WIDE,
                                        (float)(1.0 / sqrt((double)WIDE))};
    return (k == GPU_K_row_hadamard ? run(s, k, row_hadamard_grid(&b), &b, sizeof b)
                                    : run(s, k, row_rope_grid(&a), &a, sizeof a)) &&
           device_gpu_self_same(s, t->y, t->want, ALL);
}

static bool lists(struct gpu_self *s, enum gpu_kernel k, struct two *t)
{
    static const int32_t list[ROWS * 2] = {2, 0, 1, 1, 2, 0};
    fill(s, t, true);
    const int32_t *at = device_gpu_self_in(s, list, sizeof list);
    for (int r = 0; r < ROWS; r++) {
        float *want = t->want + r * STRIDE;
        memcpy(want, t->host_x + list[r] * STRIDE, WIDTH * sizeof *want);
        if (k == GPU_K_row_gather)
            continue;
        memset(want, 0, WIDTH * sizeof *want);
        for (int i = 2 * r; i < 2 * r + 2; i++)
            s->d->kern.math.add_scaled(want, t->host_x + list[i] * STRIDE, t->host_z[i], WIDTH);
    }
    const struct row_gather_args a = {t->y, t->x, at, STRIDE, STRIDE, ROWS, WIDTH};
    const struct row_weighted_sum_args b = {t->y, t->x, t->z, at, STRIDE, STRIDE, ROWS, WIDTH, 2};
    return (k == GPU_K_row_gather ? run(s, k, row_gather_grid(&a), &a, sizeof a)
                                  : run(s, k, row_weighted_sum_grid(&b), &b, sizeof b)) &&
           device_gpu_self_same(s, t->y, t->want, ALL);
}

static bool activations(struct gpu_self *s, enum gpu_kernel k)
{
    enum { MOST = 2 * GROUPS * 3 };
    const enum kern_act_kind kind = k == GPU_K_row_act32 ? KERN_ACT_Q32 : KERN_ACT_Q256;
    ATTR_ALIGNED(64) uint8_t want[MOST];
    float *host, *x = device_gpu_self_floats(s, 2 * GROUPS, false, &host);
    struct kern_act a;
    memset(want, 0, sizeof want);
    host[5] = 0x1p-91f;
    for (int i = 0; i < 32; i++)
        host[64 + i] = i % 2 ? -0.0f : 0x1p-92f;
    kern_act_init(&a, kind, 2, GROUPS, host, GROUPS, want);
    if (2 * a.row_bytes > sizeof want)
        return false;
    s->d->kern.matmul.act[kind](&a, 0, 2);
    uint8_t *q = device_gpu_self_in(s, NULL, sizeof want);
    const struct row_act_args b = {.x = x, .q = q, .x_stride = GROUPS,
                                   .q_bytes = (int64_t)a.row_bytes, .n_rows = 2, .k = GROUPS};
    return run(s, k, kind == KERN_ACT_Q32 ? row_act32_grid(&b) : row_act256_grid(&b), &b,
               sizeof b) &&
           device_gpu_self_same_bytes(s, q, want, 2 * a.row_bytes);
}

static bool finds_bad(struct gpu_self *s, enum gpu_kernel k, struct two *t)
{
    int32_t want[ROWS];
    fill(s, t, false);
    t->host_x[2 * STRIDE + 200] = INFINITY;
    t->host_x[STRIDE + 300] = NAN;
    for (int r = 0; r < ROWS; r++)
        want[r] = (int32_t)s->d->kern.math.find_bad(t->host_x + r * STRIDE, WIDTH);
    int32_t *at = device_gpu_self_in(s, NULL, sizeof want);
    const struct row_find_bad_args a = {t->x, at, STRIDE, ROWS, WIDTH};
    return run(s, k, row_find_bad_grid(&a), &a, sizeof a) &&
           device_gpu_self_same_bytes(s, at, want, sizeof want);
}

bool device_gpu_self_row(struct gpu_self *s, enum gpu_kernel k)
{
    struct two t;
    switch (k) {
    case GPU_K_row_norm:
    case GPU_K_row_add_norm:
        return norms(s, k, &t);
    case GPU_K_row_add:
    case GPU_K_row_mul:
    case GPU_K_row_scale:
    case GPU_K_row_copy:
        return pairs(s, k, &t);
    case GPU_K_row_softcap:
    case GPU_K_row_sqrt_softplus:
    case GPU_K_row_softmax:
        return ones(s, k, &t);
    case GPU_K_row_glu:
        return glu(s, k, &t);
    case GPU_K_row_rope:
    case GPU_K_row_rope_pairs:
    case GPU_K_row_hadamard:
        return turns(s, k, &t);
    case GPU_K_row_gather:
    case GPU_K_row_weighted_sum:
        return lists(s, k, &t);
    case GPU_K_row_act32:
    case GPU_K_row_act256:
        return activations(s, k);
    case GPU_K_row_find_bad:
        return finds_bad(s, k, &t);
    default:
        return true;
    }
}
