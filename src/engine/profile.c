/* SPDX-License-Identifier: Apache-2.0 */
/* profile - what steps spend their time on, and which threads did the work. */
#include "engine/engine.h"

#include "base/pool.h"
#include "device/device.h"

void ingle_engine_profile(struct ingle_engine *e, bool on)
{
    device_profile(e->device, on);
}

int ingle_engine_profile_read(const struct ingle_engine *e, struct ingle_profile *out, int n_max)
{
    struct device_profile p[128];
    const int n = device_profile_read(e->device, p, n_max < 128 ? n_max : 128);
    for (int i = 0; i < n; i++)
        out[i] = (struct ingle_profile){p[i].op,  p[i].calls, p[i].ns, p[i].bytes,
                                        p[i].ops, p[i].joins, p[i].launches};
    return n;
}

int ingle_engine_pieces(const struct ingle_engine *e, uint64_t *n, int n_max)
{
    const struct pool *p = device_pool(e->device);
    for (int i = 0; i < pool_size(p) && i < n_max; i++)
        n[i] = pool_chunks(p, i);
    return pool_size(p);
}
