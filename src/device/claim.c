/* SPDX-License-Identifier: Apache-2.0 */
#include "device/claim.h"

#include "base/bug.h"
#include <string.h>

void device_claim_share(struct claim_region *region, const struct pool *p, int node, int64_t first,
                        int64_t end)
{
    const int w0 = pool_node_first(p, node), n = pool_node_first(p, node + 1) - w0;
    for (int i = 0; i < n; i++) {
        atomic_init(&region[w0 + i].next, first + (end - first) * i / n);
        region[w0 + i].end = first + (end - first) * (i + 1) / n;
    }
}

static bool take(struct claim_region *r, int64_t *chunk)
{
    if (atomic_load_explicit(&r->next, memory_order_relaxed) >= r->end)
        return false;
    *chunk = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
    return *chunk < r->end;
}

int64_t device_claim(struct claim_region *region, const struct pool *p, int worker)
{
    const int all = pool_size(p), node = pool_node_of(p, worker);
    const int first = pool_node_first(p, node), n = pool_node_first(p, node + 1) - first;
    int64_t chunk;
    for (int i = 0; i < n; i++)
        if (take(&region[first + (worker - first + i) % n], &chunk))
            return chunk;
    for (int i = n; i < all; i++)
        if (take(&region[(first + i) % all], &chunk))
            return chunk;
    BUG("more calls than chunks");
}

int64_t device_claim_task(const int64_t *first, size_t step, int64_t n, int64_t chunk)
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
