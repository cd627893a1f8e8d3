/* SPDX-License-Identifier: Apache-2.0 */
/* select - an indexer's scores and choice (select.h). */
#include "device/gpu/kernels/gpu.h"
#include "device/gpu/kernels/number.h"
#include "device/gpu/kernels/rowcode.h"
#include "device/gpu/kernels/select.h"

/* A warp a group of 32. */
GPU_ENTRY(select_query, struct select_query_args)
{
    const int groups = a.width / KERN_ROW_GROUP4, lane = gpu_lane();
    const int64_t i = (int64_t)gpu_block(0) * (SELECT_THREADS / 32) + gpu_warp();
    if (i >= (int64_t)a.n_rows * a.n_heads * groups)
        return;
    const int64_t head = i / groups, r = head / a.n_heads;
    const int g = (int)(i % groups);
    const float x = a.q[r * a.q_stride + head % a.n_heads * a.width + g * KERN_ROW_GROUP4 + lane];
    uint8_t *to = a.to + head * (a.width + 8 * groups);
    const int scale = rowcode_scale(true, x, 0.0f);
    const int code = scale == 255 ? 0 : row_fp4_code(x * row_code_factor((uint8_t)scale));
    const int doubled = number_e2m1_doubled(code);
    int sum = doubled;
    for (int h = 16; h; h /= 2)
        sum += gpu_shfl_xor_int(sum, h);
    ((int8_t *)to)[g * KERN_ROW_GROUP4 + lane] = (int8_t)doubled;
    if (lane == 0) {
        ((float *)(void *)(to + a.width))[g] = 0.25f * number_e8m0((uint8_t)scale);
        ((int32_t *)(void *)(to + a.width + 4 * groups))[g] = -12 * sum;
    }
}

/* Four half bytes, one a byte, as doubled values of e2m1. */
GPU_DEV uint32_t select_doubled(uint32_t codes)
{
    uint32_t c = (codes | codes >> 4) & 0x00ff00ffu;
    c = (c | c >> 8) & 0xffffu;
    const uint32_t plus = gpu_bytes(0x03020100u, 0x0c080604u, c & 0x7777u);
    const uint32_t minus = gpu_bytes(0xfdfeff00u, 0xf4f8fafcu, c & 0x7777u);
    const uint32_t sign = gpu_bytes(0x0000ff00u, 0, c >> 3 & 0x1111u);
    return (plus & ~sign) | (minus & sign);
}

/* key: an FP4 row; query: a head of select_query. */
GPU_DEV float select_dot4(const uint8_t *key, const uint8_t *query, int width)
{
    const float *quarter = (const float *)(const void *)(query + width);
    float dot = 0.0f;
    for (int g = 0; g < width / KERN_ROW_GROUP4; g++) {
        const uint32_t *k = (const uint32_t *)(const void *)(key + g * 16);
        const uint32_t *q = (const uint32_t *)(const void *)(query + g * 32);
        int d = 0;
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            d = gpu_dp4a(select_doubled(k[i] & 0x0f0f0f0fu), q[i], d);
            d = gpu_dp4a(select_doubled(k[i] >> 4 & 0x0f0f0f0fu), q[i + 4], d);
        }
        dot = gpu_fma((float)d * number_e8m0(key[width / 2 + g]), quarter[g], dot);
    }
    return dot;
}

GPU_DEV float select_dot(const struct select_scores_args *a, const uint8_t *key, const float *q)
{
    float dot = 0.0f;
    for (int i = 0; i < a->width; i++)
        dot = gpu_fma(q[i], rowcode_read(a->codec, a->width, a->tail, key, i), dot);
    return dot;
}

/* A thread a key. */
GPU_ENTRY(select_scores, struct select_scores_args)
{
    const struct gpu_place p = gpu_place_of(a.span, a.row0 + gpu_block(1));
    const int64_t row = p.span->row0 + p.i, n = (p.span->pos0 + p.i + 1) / a.every;
    const int64_t w = (int64_t)gpu_block(0) * SELECT_THREADS + gpu_tid();
    const int each = KERN_PAGE / a.every;
    if (w >= n || n <= a.top_k)
        return;
    const uint8_t *key = p.span->page[w / each] + a.at + w % each * a.row_bytes;
    const float *weight = a.weight + row * a.weight_stride;
    const int head_bytes = a.width + 8 * (a.width / KERN_ROW_GROUP4);
    float sum = 0.0f;
    for (int h = 0; h < a.n_heads; h++) {
        const float dot =
            a.codec == KERN_KV_FP4
                ? select_dot4(key, a.query + (row * a.n_heads + h) * head_bytes, a.width)
                : select_dot(&a, key, a.q + row * a.q_stride + (int64_t)h * a.width);
        sum = gpu_fma(weight[h], dot > 0.0f ? dot : 0.0f, sum);
    }
    a.score[(int64_t)gpu_block(1) * a.n_keys + w] = number_is_finite(sum) ? sum : -NUMBER_INFINITY;
}

enum { SELECT_WARPS = SELECT_CHOOSE_THREADS / 32 };

struct select_shared {
    int n[256];
    int equal[SELECT_WARPS], taken[SELECT_WARPS];
    int digit, left;
};

/* Larger scores have larger words; zeros of both signs have the same. */
GPU_DEV uint32_t select_word(float x)
{
    const uint32_t u = x == 0.0f ? 0 : gpu_word(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The top_k-th largest word of n scores; *left: how many of those that are equal to it belong to
 * the best. */
GPU_DEV uint32_t select_edge(struct select_shared *sh, const float *score, int64_t n, int top_k,
                             int *left)
{
    const int t = gpu_tid();
    uint32_t edge = 0;
    int k = top_k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        sh->n[t] = 0;
        gpu_sync();
        for (int64_t i = t; i < n; i += SELECT_CHOOSE_THREADS) {
            const uint32_t u = select_word(score[i]);
            if (shift == 24 || u >> (shift + 8) == edge >> (shift + 8))
                gpu_add_shared(&sh->n[u >> shift & 255], 1);
        }
        gpu_sync();
        if (t == 0) {
            int digit = 255;
            for (; digit > 0 && sh->n[digit] < k; digit--)
                k -= sh->n[digit];
            sh->digit = digit;
            sh->left = k;
        }
        gpu_sync();
        edge |= (uint32_t)sh->digit << shift;
        k = sh->left;
    }
    *left = k;
    return edge;
}

/* How many of the threads before this one say yes; *all: how many in all.  n: [SELECT_WARPS],
 * shared; to be used again after the next gpu_sync(). */
GPU_DEV int select_before(int *n, bool yes, int *all)
{
    const uint32_t mask = gpu_ballot(yes);
    if (gpu_lane() == 0)
        n[gpu_warp()] = gpu_count(mask);
    gpu_sync();
    int before = gpu_count(mask & ((1u << gpu_lane()) - 1));
    *all = 0;
    for (int i = 0; i < SELECT_WARPS; i++) {
        before += i < gpu_warp() ? n[i] : 0;
        *all += n[i];
    }
    return before;
}

GPU_ENTRY(select_choose, struct select_choose_args)
{
    GPU_SHARED(struct select_shared, sh);
    const struct gpu_place p = gpu_place_of(a.span, a.row0 + gpu_block(0));
    const int64_t row = p.span->row0 + p.i, n = (p.span->pos0 + p.i + 1) / a.every;
    const int t = gpu_tid();
    int32_t *sel = a.sel + row * a.top_k;
    if (t == 0)
        a.count[row] = (int32_t)(n < a.top_k ? n : a.top_k);
    if (n <= a.top_k) {
        for (int i = t; i < n; i += SELECT_CHOOSE_THREADS)
            sel[i] = i;
        return;
    }
    const float *score = a.score + (int64_t)gpu_block(0) * a.n_keys;
    int left, taken = 0;
    const uint32_t edge = select_edge(sh, score, n, a.top_k, &left);
    for (int64_t i = t; i - t < n; i += SELECT_CHOOSE_THREADS) {
        const uint32_t u = i < n ? select_word(score[i]) : 0;
        const bool equal = i < n && u == edge;
        int n_equal, n_taken;
        const int equals = select_before(sh->equal, equal, &n_equal);
        const bool take = (i < n && u > edge) || (equal && equals < left);
        const int before = select_before(sh->taken, take, &n_taken);
        if (take)
            sel[taken + before] = (int32_t)i;
        left = left > n_equal ? left - n_equal : 0;
        taken += n_taken;
    }
}
