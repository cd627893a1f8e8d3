/* SPDX-License-Identifier: Apache-2.0 */
/* own - memory that a device has beside the host's. */
#include "base/bug.h"
#include "device/ops.h"

uint64_t device_own_bytes(const struct device *d)
{
    return d->ops->own ? d->ops->own->bytes(d) : 0;
}

void *device_own_take(struct device *d, uint64_t n_bytes)
{
    return d->ops->own && n_bytes <= SIZE_MAX ? d->ops->own->take(d, (size_t)n_bytes) : NULL;
}

void device_own_give(struct device *d, void *own, uint64_t n_bytes)
{
    if (own)
        d->ops->own->give(d, own, (size_t)n_bytes);
}

void device_own_put(struct device *d, void *own, const void *host, size_t n_bytes)
{
    d->ops->own->put(d, own, host, n_bytes);
}

void device_own_get(struct device *d, void *host, const void *own, size_t n_bytes)
{
    d->ops->own->get(d, host, own, n_bytes);
}

void device_own_copy(struct device *d, void *to, const void *from, size_t n_bytes)
{
    d->ops->own->copy(d, to, from, n_bytes);
}

void device_matrix_place_own(const struct device_matrix *m, int64_t index, void *own)
{
    BUG_IF(!m->own || index < 0 || index >= m->n_stack);
    m->each[index] = NULL;
    m->own[index] = own;
}
