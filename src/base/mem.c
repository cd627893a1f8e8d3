/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/mem.h"

#include "base/num.h"
#include "base/touch.h"
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE /* headers may be older than the system */
#define MADV_POPULATE_WRITE 23
#endif

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

void mem_trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

void mem_keep_little(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_ARENA_MAX, 4);
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 20); /* fixed: else it grows to 32 MiB */
#endif
}

/* What is mapped for n bytes: whole huge pages, unless that takes a sixteenth more. */
static size_t big_bytes(size_t n)
{
    n = n > SIZE_MAX - TOUCH_MARGIN ? n : n + TOUCH_MARGIN;
    const size_t whole =
        n > SIZE_MAX - MEM_BIG_PAGE ? n : (n + MEM_BIG_PAGE - 1) / MEM_BIG_PAGE * MEM_BIG_PAGE;
    return n < MEM_BIG_PAGE ? (n ? n : 1) : whole - n <= n / 16 ? whole : n;
}

/* From a border of huge pages on: what is before the first one is on small pages, which are
 * read at less than half of the rate (Zen 4, a guest). */
static void *big_alloc(size_t n_bytes, int flags)
{
    const size_t n = big_bytes(n_bytes),
                 spare = n < MEM_BIG_PAGE || n > SIZE_MAX - MEM_BIG_PAGE ? 0 : MEM_BIG_PAGE;
    uint8_t *p = mmap(NULL, n + spare, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (!spare) {
        touch_forbid(p + n_bytes, n - n_bytes);
        return p;
    }
    const size_t before = (MEM_BIG_PAGE - (uintptr_t)p % MEM_BIG_PAGE) % MEM_BIG_PAGE;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), end = (before + n + page - 1) / page * page;
    if (before)
        munmap(p, before);
    if (end < n + spare)
        munmap(p + end, n + spare - end);
    (void)madvise(p + before, n, MADV_HUGEPAGE); /* a hint: small pages work too */
    touch_forbid(p + before + n_bytes, n - n_bytes);
    return p + before;
}

void *mem_big_alloc(size_t n_bytes)
{
    return big_alloc(n_bytes, 0);
}

void *mem_big_reserve(size_t n_bytes)
{
    return big_alloc(n_bytes, MAP_NORESERVE);
}

void mem_drop(void *p, size_t n_bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)p,
                    before = (page - at % page) % page;
    if (n_bytes < before + page)
        return;
    (void)madvise((uint8_t *)p + before, (n_bytes - before) / page * page, MADV_DONTNEED);
}

void mem_big_free(void *p, size_t n_bytes)
{
    if (!p)
        return;
    touch_allow(p, big_bytes(n_bytes));
    munmap(p, big_bytes(n_bytes));
}

void mem_fill(void *p, size_t n_bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)p % page;
    if (n_bytes)
        (void)madvise((uint8_t *)p - before, n_bytes + before, MADV_POPULATE_WRITE);
}

/* /proc/self/smaps: for each mapping "BEGIN-END flags ..." and lines of "Key: N kB", in the order
 * of addresses: what is after the memory, mostly libraries, is not read. */
uint64_t mem_huge_bytes(const void *p, size_t n_bytes)
{
    char line[512];
    const uint64_t first = (uint64_t)(uintptr_t)p, end = first + n_bytes;
    uint64_t huge = 0;
    bool inside = false;
    FILE *f = fopen("/proc/self/smaps", "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        unsigned long long a, b;
        if (sscanf(line, "%llx-%llx ", &a, &b) == 2) {
            if (a >= end)
                break;
            inside = b > first;
        } else if (inside && (sscanf(line, "AnonHugePages: %llu kB", &a) == 1 ||
                              sscanf(line, "FilePmdMapped: %llu kB", &a) == 1)) {
            huge += (uint64_t)a * 1024;
        }
    }
    fclose(f);
    return huge < n_bytes ? huge : n_bytes;
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
