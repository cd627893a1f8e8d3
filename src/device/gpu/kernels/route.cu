/* SPDX-License-Identifier: Apache-2.0 */
/* route - the choice of experts, and pairs sorted by expert (route.h). */
#include "device/gpu/kernels/gpu.h"
#include "device/gpu/kernels/number.h"
#include "device/gpu/kernels/route.h"

struct route_shared {
    float value[ROUTE_MOST_IDS];
    uint8_t taken[ROUTE_MOST_IDS];
    float best_value[ROUTE_MOST_USED];
    int best[ROUTE_MOST_USED], id[ROUTE_MOST_USED];
    int odd[ROUTE_THREADS / 32];
};

/* id = best in ascending order; one thread. */
GPU_DEV void route_sort(struct route_shared *sh, int k)
{
    for (int i = 0; i < k; i++) {
        int at = i;
        for (; at > 0 && sh->id[at - 1] > sh->best[i]; at--)
            sh->id[at] = sh->id[at - 1];
        sh->id[at] = sh->best[i];
    }
}

/* One after the other: the law where values are NaN.  One thread. */
GPU_DEV void route_by_one(struct route_shared *sh, int n_ids, int k)
{
    int n = 0;
    for (int e = 0; e < n_ids; e++) {
        const float v = sh->value[e];
        if (n == k && !(v > sh->best_value[k - 1]))
            continue;
        int at = n < k ? n++ : k - 1;
        for (; at > 0 && v > sh->best_value[at - 1]; at--) {
            sh->best[at] = sh->best[at - 1];
            sh->best_value[at] = sh->best_value[at - 1];
        }
        sh->best[at] = e;
        sh->best_value[at] = v;
    }
    route_sort(sh, k);
}

/* By rank: how many are larger, or equal and before it.  No NaN. */
GPU_DEV void route_by_rank(struct route_shared *sh, int n_ids, int k)
{
    for (int e = gpu_tid(); e < n_ids; e += ROUTE_THREADS) {
        const float v = sh->value[e];
        int rank = 0;
        for (int i = 0; i < n_ids; i++)
            rank += sh->value[i] > v || (i < e && sh->value[i] >= v);
        sh->taken[e] = rank < k;
    }
    gpu_sync();
    if (gpu_warp() == 0) {
        int n = 0;
        for (int e = gpu_lane(); e - gpu_lane() < n_ids; e += 32) {
            const bool taken = e < n_ids && sh->taken[e];
            const uint32_t all = gpu_ballot(taken), below = all & ((1u << gpu_lane()) - 1);
            if (taken)
                sh->id[n + gpu_count(below)] = e;
            n += gpu_count(all);
        }
    }
}

GPU_ENTRY(route_choose, struct route_choose_args)
{
    GPU_SHARED(struct route_shared, sh);
    const int r = gpu_block(0), t = gpu_tid();
    const float *score = a.score + r * a.stride;
    if (a.table) {
        if (t == 0) {
            for (int i = 0; i < a.k; i++)
                sh->best[i] = a.table[(int64_t)a.tokens[r] * a.k + i];
            route_sort(sh, a.k);
        }
    } else {
        bool odd = false;
        for (int e = t; e < a.n_ids; e += ROUTE_THREADS) {
            const float v = a.bias ? score[e] + a.bias[e] : score[e];
            sh->value[e] = v;
            odd = odd || !(v <= v);
        }
        const uint32_t any = gpu_ballot(odd);
        if (gpu_lane() == 0)
            sh->odd[gpu_warp()] = any != 0;
        gpu_sync();
        odd = false;
        for (int i = 0; i < ROUTE_THREADS / 32; i++)
            odd = odd || sh->odd[i];
        if (!odd)
            route_by_rank(sh, a.n_ids, a.k);
        else if (t == 0)
            route_by_one(sh, a.n_ids, a.k);
    }
    gpu_sync();
    if (t == 0) {
        float sum = 0.0f;
        for (int i = 0; i < a.k; i++)
            sum = sum + score[sh->id[i]];
        for (int i = 0; i < a.k; i++) {
            const int e = sh->id[i];
            float w = score[e];
            if (a.normalise)
                w = w / sum;
            if (a.factor)
                w = w * a.factor[e];
            a.id[(int64_t)r * a.k + i] = e;
            a.weight[(int64_t)r * a.k + i] = w * a.scale;
        }
    }
}

struct route_pairs_shared {
    int below[ROUTE_THREADS / 32], here[ROUTE_THREADS / 32];
};

/* Sums of what the warps have before this one, and of all; n: [warps], shared. */
GPU_DEV int route_before(const int *n, int *all)
{
    int before = 0;
    *all = 0;
    for (int i = 0; i < ROUTE_THREADS / 32; i++) {
        before += i < gpu_warp() ? n[i] : 0;
        *all += n[i];
    }
    return before;
}

GPU_ENTRY(route_pairs, struct route_pairs_args)
{
    GPU_SHARED(struct route_pairs_shared, sh);
    const int e = gpu_block(0), t = gpu_tid(), n = a.n_rows * a.k;
    int below = 0, all;
    for (int i = t; i < n; i += ROUTE_THREADS)
        below += a.id[i] < e;
    for (int h = 16; h; h /= 2)
        below += gpu_shfl_xor_int(below, h);
    if (gpu_lane() == 0)
        sh->below[gpu_warp()] = below;
    gpu_sync();
    route_before(sh->below, &all);
    int at = all;
    if (t == 0) {
        a.first[e] = at;
        if (e == a.n_ids - 1) {
            a.first[e + 1] = n;
            a.first[e + 2] = n;
        }
    }
    for (int i = t; i - t < n; i += ROUTE_THREADS) {
        const bool here = i < n && a.id[i] == e;
        const uint32_t mask = gpu_ballot(here);
        if (gpu_lane() == 0)
            sh->here[gpu_warp()] = gpu_count(mask);
        gpu_sync();
        const int before = route_before(sh->here, &all);
        if (here) {
            const int p = at + before + gpu_count(mask & ((1u << gpu_lane()) - 1));
            a.row[p] = i / a.k;
            a.slot[i] = p;
        }
        at += all;
        gpu_sync();
    }
}
