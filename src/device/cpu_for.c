/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_for - how the chunks of an operation are shared out among threads, and where it may be
 * stopped. */
#include "base/clock.h"
#include "base/num.h"
#include "device/ops.h"
#include <string.h>

/* In pieces that take about as long as another step may be kept waiting.  A cancelled step
 * leaves the rest out: nobody looks at what it computes. */
static void for_pieces(struct device *d, const struct device_share *s, int64_t n_chunks,
                       pool_fn *fn, void *arg)
{
    const int64_t n_workers = pool_size(d->pool);
    const int n_nodes = pool_nodes(d->pool);
    double each = 0;
    for (int64_t done = 0, n = n_workers; done < n_chunks && device_runs(d);) {
        const int64_t here = num_min(n, n_chunks - done);
        if (done > 0)
            device_may_stop(d, (uint64_t)(each * (double)here));
        const uint64_t began = clock_now();
        struct device_share piece;
        for (int k = 0; k < n_nodes; k++) { /* of each node the same part */
            const int64_t first = done * s->n[k] / n_chunks;
            piece.from[k] = s->from[k] + first;
            piece.n[k] = (done + here) * s->n[k] / n_chunks - first;
        }
        pool_run_placed(d->pool, piece.from, piece.n, fn, arg);
        done += here;
        each = (double)(clock_now() - began + 1) / (double)here;
        const double fit = (double)d->between->piece_ns / each;
        n = fit < (double)n_chunks ? num_max(n_workers, (int64_t)fit / n_workers * n_workers)
                                   : n_chunks;
    }
}

void device_cpu_for_placed(struct device *d, const struct device_share *s, int64_t work,
                           pool_fn *fn, void *arg)
{
    int64_t n_chunks = 0;
    for (int k = 0; k < pool_nodes(d->pool); k++)
        n_chunks += s->n[k];
    if (device_in_pieces(d) && n_chunks > pool_size(d->pool) && work > d->small_work)
        for_pieces(d, s, n_chunks, fn, arg);
    else if (n_chunks > 1 && work > d->small_work && pool_size(d->pool) > 1)
        pool_run_placed(d->pool, s->from, s->n, fn, arg);
    else
        for (int k = 0; k < pool_nodes(d->pool); k++)
            for (int64_t i = 0; i < s->n[k]; i++)
                fn(arg, s->from[k] + i, 0);
}

void device_cpu_for(struct device *d, int64_t n_chunks, int64_t work, pool_fn *fn, void *arg)
{
    struct device_share s;
    if (device_in_pieces(d) && n_chunks > pool_size(d->pool) && work > d->small_work) {
        for (int k = 0; k < pool_nodes(d->pool); k++) {
            s.from[k] = n_chunks * pool_node_first(d->pool, k) / pool_size(d->pool);
            s.n[k] = n_chunks * pool_node_first(d->pool, k + 1) / pool_size(d->pool) - s.from[k];
        }
        for_pieces(d, &s, n_chunks, fn, arg);
    } else if (n_chunks > 1 && work > d->small_work && pool_size(d->pool) > 1) {
        pool_run(d->pool, n_chunks, fn, arg);
    } else {
        for (int64_t i = 0; i < n_chunks; i++)
            fn(arg, i, 0);
    }
}

int64_t device_task_of(const int64_t *first, size_t step, int64_t n, int64_t chunk)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const int64_t mid = (lo + hi + 1) / 2;
        int64_t at;
        memcpy(&at, (const uint8_t *)first + (size_t)mid * step, sizeof at);
        if (at <= chunk)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}
