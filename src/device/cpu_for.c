/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_for - how the chunks of an operation are shared out among threads, and where it may be
 * stopped. */
#include "base/clock.h"
#include "base/num.h"
#include "device/ops.h"

struct piece {
    pool_fn *fn;
    void *arg;
    int64_t first;
};

static void piece_chunk(void *arg, int64_t chunk, int worker)
{
    const struct piece *p = arg;
    p->fn(p->arg, p->first + chunk, worker);
}

/* In pieces that take about as long as another step may be kept waiting.  A cancelled step
 * leaves the rest out: nobody looks at what it computes. */
static void for_pieces(struct device *d, int64_t n_chunks, pool_fn *fn, void *arg)
{
    const int64_t n_workers = pool_size(d->pool);
    double each = 0;
    for (int64_t first = 0, n = n_workers; first < n_chunks && device_runs(d);) {
        const int64_t here = num_min(n, n_chunks - first);
        if (first > 0)
            device_may_stop(d, (uint64_t)(each * (double)here));
        const uint64_t began = clock_now();
        struct piece p = {fn, arg, first};
        pool_run(d->pool, here, piece_chunk, &p);
        first += here;
        each = (double)(clock_now() - began + 1) / (double)here;
        const double fit = (double)d->between->piece_ns / each;
        n = fit < (double)n_chunks ? num_max(n_workers, (int64_t)fit / n_workers * n_workers)
                                   : n_chunks;
    }
}

void device_cpu_for(struct device *d, int64_t n_chunks, int64_t work, pool_fn *fn, void *arg)
{
    if (device_in_pieces(d) && n_chunks > pool_size(d->pool) && work > DEVICE_SMALL_WORK) {
        for_pieces(d, n_chunks, fn, arg);
        return;
    }
    if (n_chunks > 1 && work > DEVICE_SMALL_WORK && pool_size(d->pool) > 1) {
        pool_run(d->pool, n_chunks, fn, arg);
        return;
    }
    for (int64_t i = 0; i < n_chunks; i++)
        fn(arg, i, 0);
}
