/* SPDX-License-Identifier: Apache-2.0 */
/* scratch - the arena of a step, and memory beside it that operations read and write. */
#include "device/near.h"
#include "device/ops.h"

#include "base/mem.h"
#include "base/num.h"

enum { ALIGN = 64 };

void *device_bytes(struct device *d, size_t n_bytes)
{
    size_t n;
    if (!num_align(n_bytes, ALIGN, &n) || (!d->dry && n > d->cap - d->used)) {
        struct err e;
        err_set(&e, INGLE_LIMIT, "the step needs %zu bytes of scratch, %zu of %zu are left",
                n_bytes, d->cap - d->used, d->cap);
        device_fail(d, &e);
        return NULL;
    }
    uint8_t *p = d->dry ? NULL : d->arena + d->used;
    if (d->ops->took)
        d->ops->took(d, d->used, n);
    d->used += n;
    if (d->used > d->peak)
        d->peak = d->used;
    return p;
}

/* In a dry run rows get different addresses that are never read or written. */
struct rows device_rows(struct device *d, int64_t n, int64_t width)
{
    const int64_t stride = (width + 15) / 16 * 16;
    const size_t at = d->used;
    size_t count, n_bytes;
    struct rows r = {NULL, n, width, stride};
    if (!num_mul((size_t)n, (size_t)stride, &count) || !num_mul(count, sizeof(float), &n_bytes))
        n_bytes = SIZE_MAX;
    void *p = device_bytes(d, n_bytes);
    r.at = d->dry ? (float *)(uintptr_t)(at + ALIGN) : p;
    return r;
}

void device_read(struct device *d, const void *at, size_t n_bytes)
{
    if (d->ops->read && at && n_bytes && !d->dry)
        d->ops->read(d, at, n_bytes);
}

void device_wrote(struct device *d, const void *at, size_t n_bytes)
{
    if (d->ops->wrote && at && n_bytes && !d->dry)
        d->ops->wrote(d, at, n_bytes);
}

void *device_host_take(struct device *d, size_t n_bytes)
{
    return d->ops->host_take ? d->ops->host_take(d, n_bytes) : mem_big_alloc(n_bytes);
}

void device_host_give(struct device *d, void *at, size_t n_bytes)
{
    if (!at)
        return;
    if (d->ops->host_give)
        d->ops->host_give(d, at, n_bytes);
    else
        mem_big_free(at, n_bytes);
}

size_t device_mark(const struct device *d)
{
    return d->used;
}

void device_release(struct device *d, size_t mark)
{
    if (d->ops->released)
        d->ops->released(d, mark);
    d->used = mark;
}

void device_dry_begin(struct device *d)
{
    device_begin(d, NULL);
    d->dry = true;
    d->peak = d->held = 0;
}

size_t device_dry_end(struct device *d)
{
    device_release(d, 0);
    d->dry = false;
    return d->peak + device_near_bytes(d);
}

size_t device_dry_held(const struct device *d)
{
    return d->held;
}

ingle_status device_arena_reserve(struct device *d, size_t n_bytes, struct err *err)
{
    const ingle_status s = device_near_reserve(d, err);
    if (s || n_bytes <= d->cap)
        return s;
    if (d->ops->arena) {
        d->filled = 0;
        return d->ops->arena(d, n_bytes, err);
    }
    void *p = mem_big_alloc(n_bytes);
    if (!p)
        return err_set(err, INGLE_NOMEM, "no %zu bytes of scratch for a step", n_bytes);
    numa_interleave(p, n_bytes, &d->nodes);
    mem_big_free(d->arena, d->cap);
    d->arena = p;
    d->cap = n_bytes;
    d->filled = 0;
    return INGLE_OK;
}

size_t device_arena_bytes(const struct device *d)
{
    return d->cap;
}

bool device_arena_fill(struct device *d, size_t n_bytes)
{
    const size_t end = n_bytes < d->cap ? n_bytes : d->cap,
                 most = (size_t)pool_size(d->pool) * MEM_BIG_PAGE;
    const size_t left = end > d->filled ? end - d->filled : 0;
    const size_t n = left < most ? left : most;
    pool_fill(d->pool, d->arena + d->filled, n);
    d->filled += n;
    return n > 0;
}
