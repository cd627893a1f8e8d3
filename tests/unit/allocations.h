/* allocations - counts those of this process, workers and stages in it included.  The program is
 * linked with --wrap for mem_alloc, mem_zalloc, mem_calloc and mem_grow. */
#ifndef INGLE_TESTS_ALLOCATIONS_H
#define INGLE_TESTS_ALLOCATIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

static atomic_int allocations;

void *__real_mem_alloc(size_t n_bytes);
void *__real_mem_zalloc(size_t n_bytes);
void *__real_mem_calloc(size_t n, size_t size);
bool __real_mem_grow(void *p, size_t *cap, size_t n, size_t size);
void *__wrap_mem_alloc(size_t n_bytes);
void *__wrap_mem_zalloc(size_t n_bytes);
void *__wrap_mem_calloc(size_t n, size_t size);
bool __wrap_mem_grow(void *p, size_t *cap, size_t n, size_t size);

void *__wrap_mem_alloc(size_t n_bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_mem_alloc(n_bytes);
}

void *__wrap_mem_zalloc(size_t n_bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_mem_zalloc(n_bytes);
}

void *__wrap_mem_calloc(size_t n, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_mem_calloc(n, size);
}

bool __wrap_mem_grow(void *p, size_t *cap, size_t n, size_t size)
{
    atomic_fetch_add(&allocations, n > *cap);
    return __real_mem_grow(p, cap, n, size);
}

#endif
