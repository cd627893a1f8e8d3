/* SPDX-License-Identifier: Apache-2.0 */
#include "device/claim.h"

#include "base/bug.h"

void device_claim_share(struct claim_region *region, const struct pool *p, int node, int64_t first, int64_t end)
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
