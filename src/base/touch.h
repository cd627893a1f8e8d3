/*
 * touch - informs the sanitizer of a build of what code reads and writes that it does not see:
 * kernels, which are the same objects in every build, and memory from the system.  Without a
 * sanitizer all of this is nothing.
 */
#ifndef INGLE_BASE_TOUCH_H
#define INGLE_BASE_TOUCH_H

#include <stddef.h>
#include <stdint.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
void *__asan_region_is_poisoned(void *begin, size_t n);
void __asan_poison_memory_region(void const volatile *begin, size_t n);
void __asan_unpoison_memory_region(void const volatile *begin, size_t n);
#elif defined(__SANITIZE_THREAD__)
void __tsan_read_range(void *at, size_t n);
void __tsan_write_range(void *at, size_t n);
#endif

/* Bytes after a block of mem_big_alloc() that touch_forbid() marks. */
#if defined(__SANITIZE_ADDRESS__)
enum { TOUCH_MARGIN = 64 };
#else
enum { TOUCH_MARGIN = 0 };
#endif

static inline void touch_read(const void *p, size_t n_bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    const volatile char *bad =
        n_bytes ? __asan_region_is_poisoned((void *)(uintptr_t)p, n_bytes) : NULL;
    if (bad)
        (void)*bad; /* the report names this line, and who called */
#elif defined(__SANITIZE_THREAD__)
    __tsan_read_range((void *)(uintptr_t)p, n_bytes);
#else
    (void)p, (void)n_bytes;
#endif
}

static inline void touch_write(void *p, size_t n_bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    volatile char *bad = n_bytes ? __asan_region_is_poisoned(p, n_bytes) : NULL;
    if (bad)
        *bad = 0;
#elif defined(__SANITIZE_THREAD__)
    __tsan_write_range(p, n_bytes);
#else
    (void)p, (void)n_bytes;
#endif
}

/* Memory that nobody may read or write from then on, and that they may again. */
static inline void touch_forbid(const void *p, size_t n_bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(p, n_bytes);
#else
    (void)p, (void)n_bytes;
#endif
}

static inline void touch_allow(const void *p, size_t n_bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(p, n_bytes);
#else
    (void)p, (void)n_bytes;
#endif
}

#endif
