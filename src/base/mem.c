/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/mem.h"

#include "base/num.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BIG_PAGE = 2 << 20 };

void *mem_alloc(size_t n_bytes)
{
    return malloc(n_bytes ? n_bytes : 1);
}

void *mem_zalloc(size_t n_bytes)
{
    return calloc(1, n_bytes ? n_bytes : 1);
}

void *mem_calloc(size_t n, size_t size)
{
    size_t n_bytes;
    if (!num_mul(n, size, &n_bytes))
        return NULL;
    return mem_zalloc(n_bytes);
}

void *mem_realloc(void *p, size_t n, size_t size)
{
    size_t n_bytes;
    if (!num_mul(n, size, &n_bytes))
        return NULL;
    return realloc(p, n_bytes ? n_bytes : 1);
}

char *mem_strndup(const char *s, size_t n)
{
    char *p = mem_alloc(n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

void mem_free(void *p)
{
    free(p);
}

void *mem_big_alloc(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes ? n_bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (n_bytes >= BIG_PAGE)
        (void)madvise(p, n_bytes, MADV_HUGEPAGE); /* a hint: small pages work too */
    return p;
}

void mem_big_free(void *p, size_t n_bytes)
{
    if (p)
        munmap(p, n_bytes ? n_bytes : 1);
}

bool mem_grow(void *p, size_t *cap, size_t n, size_t size)
{
    void **array = p;
    if (n <= *cap)
        return true;
    size_t want = *cap < 8 ? 8 : *cap;
    while (want < n)
        if (!num_mul(want, 2, &want))
            return false;
    void *grown = mem_realloc(*array, want, size);
    if (!grown)
        return false;
    *array = grown;
    *cap = want;
    return true;
}
