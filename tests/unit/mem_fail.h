/*
 * mem_fail - makes the n-th allocation of the code under test fail.  The test program is
 * linked with --wrap for each of the functions here (tests/CMakeLists.txt).
 */
#ifndef INGLE_TESTS_MEM_FAIL_H
#define INGLE_TESTS_MEM_FAIL_H

#include "base/mem.h"

static int64_t mem_fail_in; /* counted down; the call that makes it 0 fails */

static bool mem_fail_now(void)
{
    return mem_fail_in && --mem_fail_in == 0;
}

void *__real_mem_alloc(size_t n_bytes);
void *__real_mem_zalloc(size_t n_bytes);
void *__real_mem_calloc(size_t n, size_t size);
void *__real_mem_big_alloc(size_t n_bytes);
bool __real_mem_grow(void *p, size_t *cap, size_t n, size_t size);
void *__wrap_mem_alloc(size_t n_bytes);
void *__wrap_mem_zalloc(size_t n_bytes);
void *__wrap_mem_calloc(size_t n, size_t size);
void *__wrap_mem_big_alloc(size_t n_bytes);
bool __wrap_mem_grow(void *p, size_t *cap, size_t n, size_t size);

void *__wrap_mem_alloc(size_t n_bytes)
{
    return mem_fail_now() ? NULL : __real_mem_alloc(n_bytes);
}

void *__wrap_mem_zalloc(size_t n_bytes)
{
    return mem_fail_now() ? NULL : __real_mem_zalloc(n_bytes);
}

void *__wrap_mem_calloc(size_t n, size_t size)
{
    return mem_fail_now() ? NULL : __real_mem_calloc(n, size);
}

void *__wrap_mem_big_alloc(size_t n_bytes)
{
    return mem_fail_now() ? NULL : __real_mem_big_alloc(n_bytes);
}

bool __wrap_mem_grow(void *p, size_t *cap, size_t n, size_t size)
{
    if (n > *cap && mem_fail_now())
        return false;
    return __real_mem_grow(p, cap, n, size);
}

#endif
