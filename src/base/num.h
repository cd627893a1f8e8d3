/*
 * num - checked arithmetic for every size that comes from a file or a request.
 *
 * Each returns true and writes *out when the exact result fits, otherwise false and
 * *out is untouched.  Bounds are compared as a > n - b, never a + b > n.
 */
#ifndef INGLE_BASE_NUM_H
#define INGLE_BASE_NUM_H

#include "base/attr.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

MUST_CHECK static inline bool num_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

MUST_CHECK static inline bool num_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

MUST_CHECK static inline bool num_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

MUST_CHECK static inline bool num_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

MUST_CHECK static inline bool num_u32(uint64_t a, uint32_t *out)
{
    if (a > UINT32_MAX)
        return false;
    *out = (uint32_t)a;
    return true;
}

/* Smallest multiple of the power of two a that is >= n; false on overflow. */
MUST_CHECK static inline bool num_align(size_t n, size_t a, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(n, a - 1, &r))
        return false;
    *out = r & ~(a - 1);
    return true;
}

/* For qsort(): doubles, the least first. */
static inline int num_order_f64(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline int64_t num_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t num_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t num_max(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
