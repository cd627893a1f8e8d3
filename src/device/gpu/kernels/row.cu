/* SPDX-License-Identifier: Apache-2.0 */
/* row - norms, elements, rotations and activations (row.h). */
#include "device/gpu/kernels/gpu.h"
#include "device/gpu/kernels/fold.h"
#include "device/gpu/kernels/number.h"
#include "device/gpu/kernels/row.h"

struct row_shared {
    float part[ROW_THREADS];
};

/* ---- rows ---- */

/* 1 / sqrt(mean(x^2) + eps) */
GPU_DEV float row_factor(float *part, const float *x, int n, float eps)
{
    float s = 0.0f;
    for (int i = gpu_tid(); i < n; i += ROW_THREADS)
        s = gpu_fma(x[i], x[i], s);
    return 1.0f / gpu_sqrt(fold_sum(part, s) / (float)n + eps);
}

GPU_ENTRY(row_norm, struct row_norm_args)
{
    GPU_SHARED(struct row_shared, sh);
    const int r = gpu_block(0) / a.n_heads, h = gpu_block(0) % a.n_heads;
    const float *x = a.x + r * a.x_stride + (int64_t)h * a.width;
    float *y = a.y + r * a.y_stride + (int64_t)h * a.width;
    const float f = row_factor(sh->part, x, a.width, a.eps);
    for (int i = gpu_tid(); i < a.width; i += ROW_THREADS)
        y[i] = a.w ? x[i] * f * a.w[i] : x[i] * f;
}

GPU_ENTRY(row_add_norm, struct row_add_norm_args)
{
    GPU_SHARED(struct row_shared, sh);
    float *x = a.x + gpu_block(0) * a.x_stride;
    const float *y = a.y + gpu_block(0) * a.y_stride;
    const float f = row_factor(sh->part, y, a.width, a.eps);
    const bool scaled = a.scale < 1.0f || a.scale > 1.0f;
    for (int i = gpu_tid(); i < a.width; i += ROW_THREADS) {
        const float v = x[i] + y[i] * f * a.w[i];
        x[i] = scaled ? v * a.scale : v;
    }
}

/* The largest of all threads' m, none of which is NaN, in any order: equal ones weigh the same. */
GPU_DEV float row_largest(float *part, float m)
{
    const int t = gpu_tid();
    part[t] = m;
    gpu_sync();
    for (int h = ROW_THREADS / 2; h; h /= 2) {
        if (t < h)
            part[t] = part[t + h] > part[t] ? part[t + h] : part[t];
        gpu_sync();
    }
    m = part[0];
    gpu_sync();
    return m;
}

GPU_ENTRY(row_softmax, struct row_softmax_args)
{
    GPU_SHARED(struct row_shared, sh);
    float *y = a.y + gpu_block(0) * a.stride;
    float m = -NUMBER_INFINITY, s = 0.0f;
    for (int i = gpu_tid(); i < a.width; i += ROW_THREADS)
        m = y[i] > m ? y[i] : m;
    m = row_largest(sh->part, m);
    for (int i = gpu_tid(); i < a.width; i += ROW_THREADS) {
        y[i] = poly_exp(y[i] - m);
        s = s + y[i];
    }
    s = fold_sum(sh->part, s);
    for (int i = gpu_tid(); i < a.width; i += ROW_THREADS)
        y[i] = y[i] / s;
}

GPU_ENTRY(row_find_bad, struct row_find_bad_args)
{
    GPU_SHARED(struct row_shared, sh);
    const float *x = a.x + gpu_block(0) * a.stride;
    int *first = (int *)(void *)sh->part;
    const int t = gpu_tid();
    int at = a.width;
    for (int i = t; i < a.width && at == a.width; i += ROW_THREADS)
        at = number_is_finite(x[i]) ? at : i;
    first[t] = at;
    gpu_sync();
    for (int h = ROW_THREADS / 2; h; h /= 2) {
        if (t < h)
            first[t] = first[t + h] < first[t] ? first[t + h] : first[t];
        gpu_sync();
    }
    if (t == 0)
        a.column[gpu_block(0)] = first[0] < a.width ? first[0] : -1;
}

struct row_hadamard_shared {
    float x[ROW_MOST_HEAD];
};

GPU_ENTRY(row_hadamard, struct row_hadamard_args)
{
    GPU_SHARED(struct row_hadamard_shared, sh);
    const int r = gpu_block(0) / a.n_heads, head = gpu_block(0) % a.n_heads;
    float *x = a.x + r * a.stride + (int64_t)head * a.width;
    for (int i = gpu_tid(); i < a.width; i += ROW_THREADS)
        sh->x[i] = x[i];
    gpu_sync();
    for (int h = 1; h < a.width; h *= 2) {
        for (int i = gpu_tid(); i < a.width / 2; i += ROW_THREADS) {
            const int j = i / h * 2 * h + i % h;
            const float u = sh->x[j], v = sh->x[j + h];
            sh->x[j] = u + v;
            sh->x[j + h] = u - v;
        }
        gpu_sync();
    }
    for (int i = gpu_tid(); i < a.width; i += ROW_THREADS)
        x[i] = sh->x[i] * a.by;
}

/* ---- elements ---- */

/* Row r and the columns c, c + ROW_ELEMENTS, ... below end of this thread. */
struct row_part {
    int64_t r;
    int c, end;
};

GPU_DEV struct row_part row_part_of(int width)
{
    const int n = (width + ROW_BLOCK - 1) / ROW_BLOCK, at = gpu_block(0) % n * ROW_BLOCK;
    struct row_part p;
    p.r = gpu_block(0) / n;
    p.c = at + gpu_tid();
    p.end = width - at < ROW_BLOCK ? width : at + ROW_BLOCK;
    return p;
}

GPU_ENTRY(row_add, struct row_pair_args)
{
    const struct row_part p = row_part_of(a.width);
    float *y = a.y + p.r * a.y_stride;
    const float *x = a.x + p.r * a.x_stride;
    for (int c = p.c; c < p.end; c += ROW_ELEMENTS)
        y[c] = y[c] + x[c];
}

GPU_ENTRY(row_mul, struct row_pair_args)
{
    const struct row_part p = row_part_of(a.width);
    float *y = a.y + p.r * a.y_stride;
    const float *x = a.x + p.r * a.x_stride;
    for (int c = p.c; c < p.end; c += ROW_ELEMENTS)
        y[c] = y[c] * x[c];
}

GPU_ENTRY(row_scale, struct row_pair_args)
{
    const struct row_part p = row_part_of(a.width);
    float *y = a.y + p.r * a.y_stride;
    const float *x = a.x + p.r * a.x_stride;
    for (int c = p.c; c < p.end; c += ROW_ELEMENTS)
        y[c] = x[c] * a.by;
}

GPU_ENTRY(row_copy, struct row_pair_args)
{
    const struct row_part p = row_part_of(a.width);
    float *y = a.y + p.r * a.y_stride;
    const float *x = a.x + p.r * a.x_stride;
    for (int c = p.c; c < p.end; c += ROW_ELEMENTS)
        y[c] = x[c];
}

GPU_ENTRY(row_gather, struct row_gather_args)
{
    const struct row_part p = row_part_of(a.width);
    float *y = a.y + p.r * a.y_stride;
    const float *x = a.x + a.row[p.r] * a.x_stride;
    for (int c = p.c; c < p.end; c += ROW_ELEMENTS)
        y[c] = x[c];
}

GPU_DEV float row_gated(float g, float u, int gelu)
{
    return (gelu ? poly_gelu(g) : g * poly_sigmoid(g)) * u;
}
GPU_DEV float row_most(float g, float limit) { return g > limit ? limit : g; }
GPU_DEV float row_within(float u, float limit)
{
    return u > limit ? limit : u < -limit ? -limit : u;
}

GPU_ENTRY(row_glu, struct row_glu_args)
{
    const struct row_part p = row_part_of(a.width);
    float *y = a.y + p.r * a.y_stride;
    float *gate = a.gate + p.r * a.gate_stride, *up = a.up + p.r * a.up_stride;
    for (int c = p.c; c < p.end; c += ROW_ELEMENTS) {
        float g = gate[c], u = up[c];
        if (a.limit > 0) {
            g = row_most(g, a.limit);
            u = row_within(u, a.limit);
            gate[c] = g;
            up[c] = u;
        }
        y[c] = row_gated(g, u, a.gelu);
    }
}

GPU_ENTRY(row_softcap, struct row_one_args)
{
    const struct row_part p = row_part_of(a.width);
    float *y = a.y + p.r * a.stride;
    for (int c = p.c; c < p.end; c += ROW_ELEMENTS)
        y[c] = a.cap * poly_tanh(y[c] / a.cap);
}

GPU_ENTRY(row_sqrt_softplus, struct row_one_args)
{
    const struct row_part p = row_part_of(a.width);
    float *y = a.y + p.r * a.stride;
    for (int c = p.c; c < p.end; c += ROW_ELEMENTS)
        y[c] = gpu_sqrt(poly_log1p_exp(y[c]));
}

GPU_ENTRY(row_weighted_sum, struct row_weighted_sum_args)
{
    const struct row_part p = row_part_of(a.width);
    const int32_t *slot = a.slot + p.r * a.k;
    const float *weight = a.weight + p.r * a.k;
    float *out = a.out + p.r * a.out_stride;
    for (int c = p.c; c < p.end; c += ROW_ELEMENTS) {
        float s = 0.0f;
        for (int i = 0; i < a.k; i++)
            s = gpu_fma(a.y[slot[i] * a.y_stride + c], weight[i], s);
        out[c] = s;
    }
}

/* ---- rotations ---- */

/* The pair of this thread. */
struct row_turn {
    bool there;
    float c, s;
    float *x; /* of its head */
    int i;
};

GPU_DEV struct row_turn row_turn_of(const struct row_rope_args *a)
{
    const int all = a->n_heads * a->n_pairs, n = (all + ROW_ELEMENTS - 1) / ROW_ELEMENTS;
    const int64_t r = gpu_block(0) / n;
    const int at = gpu_block(0) % n * ROW_ELEMENTS + gpu_tid();
    struct row_turn p = {at < all, 0.0f, 0.0f, a->x, 0};
    if (!p.there)
        return p;
    p.i = at % a->n_pairs;
    p.x = a->x + r * a->x_stride + (int64_t)(at / a->n_pairs) * a->width;
    p.c = a->cs[r * a->cs_stride + 2 * p.i];
    p.s = a->cs[r * a->cs_stride + 2 * p.i + 1];
    return p;
}

GPU_ENTRY(row_rope, struct row_rope_args)
{
    const struct row_turn p = row_turn_of(&a);
    if (!p.there)
        return;
    const float u = p.x[p.i], v = p.x[p.i + a.half];
    p.x[p.i] = gpu_fma(-v, p.s, u * p.c);
    p.x[p.i + a.half] = gpu_fma(u, p.s, v * p.c);
}

GPU_ENTRY(row_rope_pairs, struct row_rope_args)
{
    const struct row_turn p = row_turn_of(&a);
    if (!p.there)
        return;
    float *x = p.x + a.first + 2 * p.i;
    const float s = (a.inverse ? -1.0f : 1.0f) * p.s, u = x[0], v = x[1];
    x[0] = u * p.c - v * s;
    x[1] = v * p.c + u * s;
}

/* ---- activations ---- */

/* Of a group of which this lane's largest magnitude is top, infinity if one is not finite. */
struct row_group {
    float scale, inverse; /* inverse 0: all codes are 0 */
};

GPU_DEV struct row_group row_group_of(float top)
{
    for (int h = 16; h; h /= 2) {
        const float other = gpu_shfl_xor(top, h);
        top = other > top ? other : top;
    }
    struct row_group g = {0.0f, 0.0f};
    if (!number_is_finite(top)) {
        g.scale = NUMBER_NAN;
    } else if (top >= 0x1p-90f) {
        g.scale = top / 127.0f;
        g.inverse = 127.0f / top;
    }
    return g;
}

/* |x|, of NaN infinity */
GPU_DEV float row_magnitude(float x)
{
    return number_is_finite(x) ? number_magnitude(x) : NUMBER_INFINITY;
}

/* Half to even; of a group without a factor 0, whatever x is. */
GPU_DEV int row_code(const struct row_group *g, float x)
{
    return g->inverse > 0.0f ? (int)gpu_rint(x * g->inverse) : 0;
}

/* The sum of v over the lanes that differ in the bits of mask alone. */
GPU_DEV int row_sum_bits(int v, int mask)
{
    for (int h = 16; h; h /= 2)
        v += mask & h ? gpu_shfl_xor_int(v, h) : 0;
    return v;
}

/* Two 16-bit integers as a word. */
GPU_DEV uint32_t row_two(int low, int high)
{
    return ((uint32_t)low & 0xffffu) | (uint32_t)high << 16;
}

/* What is to be prepared: element c of row r. */
GPU_DEV float row_act_in(const struct row_act_args *a, int64_t r, int64_t c)
{
    float g = a->x[r * a->x_stride + c];
    if (!a->up)
        return g;
    float u = a->up[r * a->up_stride + c];
    if (a->limit > 0) {
        g = row_most(g, a->limit);
        u = row_within(u, a->limit);
    }
    return row_gated(g, u, a->gelu);
}

/* A lane an element. */
GPU_ENTRY(row_act32, struct row_act_args)
{
    const int lane = gpu_lane(), groups = a.k / 32;
    const int64_t g = (int64_t)gpu_block(0) * ROW_ACT_WARPS + gpu_warp();
    if (g >= (int64_t)a.n_rows * groups)
        return;
    const int64_t r = g / groups, i = g % groups;
    const float x = row_act_in(&a, r, i * 32 + lane);
    uint8_t *to = a.q + r * a.q_bytes + i * 64;
    const struct row_group b = row_group_of(row_magnitude(x));
    const int code = row_code(&b, x);
    /* of the lanes of this half of which k % 4 is in {0, 1} or in {2, 3} as here */
    const int sum = row_sum_bits(code, 13);
    const int low0 = gpu_shfl_int(sum, 0), high0 = gpu_shfl_int(sum, 2);
    const int low1 = gpu_shfl_int(sum, 16), high1 = gpu_shfl_int(sum, 18);
    const int low = low0 + low1, high = high0 + high1;
    const uint32_t word = lane == 0   ? gpu_word(b.scale)
                          : lane == 1 ? gpu_word((float)(low + high))
                          : lane == 2 ? (uint32_t)(-8 * (low + high))
                          : lane == 3 ? (uint32_t)(-128 * (low + high))
                          : lane == 4 ? row_two(-8 * low, -8 * high)
                          : lane == 5 ? row_two(-16 * low, -16 * high)
                          : lane == 6 ? row_two(low0, high0)
                                      : row_two(low1, high1);
    ((int8_t *)to)[lane] = (int8_t)code;
    if (lane < 8)
        *(uint32_t *)(void *)(to + 32 + 4 * lane) = word;
}

/* A lane 8 elements: half of 16. */
GPU_ENTRY(row_act256, struct row_act_args)
{
    const int lane = gpu_lane(), groups = a.k / 256;
    const int64_t g = (int64_t)gpu_block(0) * ROW_ACT_WARPS + gpu_warp();
    if (g >= (int64_t)a.n_rows * groups)
        return;
    const int64_t r = g / groups, i = g % groups;
    uint8_t *to = a.q + r * a.q_bytes + i * 384;
    float x[8], top = 0.0f;
    GPU_UNROLL
    for (int j = 0; j < 8; j++) {
        x[j] = row_act_in(&a, r, i * 256 + lane * 8 + j);
        const float m = row_magnitude(x[j]);
        top = m > top ? m : top;
    }
    const struct row_group b = row_group_of(top);
    int low = 0, high = 0;
    GPU_UNROLL
    for (int j = 0; j < 8; j++) {
        const int code = row_code(&b, x[j]);
        ((int8_t *)to)[lane * 8 + j] = (int8_t)code;
        low += j / 2 % 2 ? 0 : code;
        high += j / 2 % 2 ? code : 0;
    }
    low = row_sum_bits(low, 1);
    high = row_sum_bits(high, 1);
    const int sum16 = low + high, sum32 = row_sum_bits(sum16, 2), all = row_sum_bits(sum32, 28);
    uint32_t *pairs = (uint32_t *)(void *)(to + 256);
    int16_t *sums = (int16_t *)(void *)(to + 320);
    if (lane % 2 == 0) {
        pairs[lane / 2] = row_two(-32 * low, -32 * high);
        sums[lane / 2] = (int16_t)sum16;
    }
    if (lane % 4 == 0)
        sums[16 + lane / 4] = (int16_t)sum32;
    if (lane < 4) {
        const uint32_t last = lane == 0   ? gpu_word(b.scale)
                              : lane == 1 ? (uint32_t)(-128 * all)
                                          : 0;
        *(uint32_t *)(void *)(to + 368 + 4 * lane) = last;
    }
}
