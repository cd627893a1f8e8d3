/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "kerncheck/fence.h"

#include "base/mem.h"
#include "base/num.h"
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *__real_mem_alloc(size_t n_bytes);
void *__real_mem_zalloc(size_t n_bytes);
void *__real_mem_calloc(size_t n, size_t size);
void __real_mem_free(void *p);
void *__real_mem_big_alloc(size_t n_bytes);
void __real_mem_big_free(void *p, size_t n_bytes);
void *__wrap_mem_alloc(size_t n_bytes);
void *__wrap_mem_zalloc(size_t n_bytes);
void *__wrap_mem_calloc(size_t n, size_t size);
void __wrap_mem_free(void *p);
void *__wrap_mem_big_alloc(size_t n_bytes);
void __wrap_mem_big_free(void *p, size_t n_bytes);

static struct {
    enum fence_side side;
    size_t page, n, cap;
    struct block {
        uint8_t *map, *at;
        size_t map_bytes, n_bytes;
    } *block;
} fence; /* of the one thread that checks */

static void print(const char *s)
{
    if (write(STDOUT_FILENO, s, strlen(s)) < 0)
        _exit(1);
}

static void fault(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number;
    (void)context;
    const uint8_t *at = info->si_addr;
    for (size_t i = 0; i < fence.n; i++) {
        const struct block *b = &fence.block[i];
        if (at < b->map || at >= b->map + b->map_bytes)
            continue;
        char text[160];
        snprintf(text, sizeof text, "a kernel went %td bytes past the %s of a block of %zu bytes\n",
                 at < b->at ? b->at - at : at - b->at - (ptrdiff_t)b->n_bytes + 1,
                 at < b->at ? "begin" : "end", b->n_bytes);
        print(text);
        _exit(1);
    }
    print("a kernel read or wrote where there is no memory\n");
    _exit(1);
}

void fence_set(enum fence_side side)
{
    const struct sigaction act = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    fence.page = (size_t)sysconf(_SC_PAGESIZE);
    fence.side = side;
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
}

enum fence_side fence_now(void)
{
    return fence.side;
}

bool fence_sparse_trials(void)
{
    return fence.side == FENCE_BEGIN;
}

/* n bytes, zero, between two pages that cannot be read, at one of them. */
static void *fence_alloc(size_t n_bytes, size_t align)
{
    const size_t inner = (n_bytes + fence.page) / fence.page * fence.page,
                 map_bytes = inner + 2 * fence.page;
    if (fence.n == fence.cap) {
        fence.cap = fence.cap ? 2 * fence.cap : 256;
        fence.block = realloc(fence.block, fence.cap * sizeof *fence.block);
        if (!fence.block)
            abort();
    }
    uint8_t *map = mmap(NULL, map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + fence.page, inner, PROT_READ | PROT_WRITE))
        return NULL;
    uint8_t *at = map + fence.page;
    if (fence.side == FENCE_END)
        at += (inner - n_bytes) / align * align;
    fence.block[fence.n++] = (struct block){map, at, map_bytes, n_bytes};
    return at;
}

static bool fence_free(const void *p)
{
    for (size_t i = fence.n; i-- > 0;)
        if (fence.block[i].at == p) {
            munmap(fence.block[i].map, fence.block[i].map_bytes);
            fence.block[i] = fence.block[--fence.n];
            return true;
        }
    return false;
}

static size_t align_of(size_t n_bytes)
{
    return n_bytes % 16 == 0 ? 16 : n_bytes % 4 == 0 ? 4 : 1;
}

void *__wrap_mem_alloc(size_t n_bytes)
{
    return fence.side ? fence_alloc(n_bytes, align_of(n_bytes)) : __real_mem_alloc(n_bytes);
}

void *__wrap_mem_zalloc(size_t n_bytes)
{
    return fence.side ? fence_alloc(n_bytes, align_of(n_bytes)) : __real_mem_zalloc(n_bytes);
}

void *__wrap_mem_calloc(size_t n, size_t size)
{
    size_t n_bytes;
    if (!fence.side)
        return __real_mem_calloc(n, size);
    return num_mul(n, size, &n_bytes) ? fence_alloc(n_bytes, align_of(n_bytes)) : NULL;
}

void __wrap_mem_free(void *p)
{
    if (p && !fence_free(p))
        __real_mem_free(p);
}

void *__wrap_mem_big_alloc(size_t n_bytes)
{
    return fence.side ? fence_alloc(n_bytes, 64) : __real_mem_big_alloc(n_bytes);
}

void __wrap_mem_big_free(void *p, size_t n_bytes)
{
    if (p && !fence_free(p))
        __real_mem_big_free(p, n_bytes);
}
