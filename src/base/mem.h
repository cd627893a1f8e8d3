/*
 * mem - the one home of the C allocator.
 *
 * Out of memory is an ordinary error: these return NULL.  Sizes are checked products.
 * A test build can make the n-th allocation fail and can count live blocks.
 */
#ifndef INGLE_BASE_MEM_H
#define INGLE_BASE_MEM_H

#include "base/attr.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t n_bytes);
void *mem_zalloc(size_t n_bytes);
/* n x size bytes, zeroed; NULL when the product overflows. */
void *mem_calloc(size_t n, size_t size);
/* Like realloc of n x size bytes; on failure NULL and p is still the caller's. */
void *mem_realloc(void *p, size_t n, size_t size);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
void mem_free(void *p);

/* Gives the system back what the allocator keeps for later, as far as it can.  Takes
 * milliseconds: for those who have just freed much and expect no more of it. */
void mem_trim(void);
/* For a program of many threads whose large blocks come and go, at its start: what threads free is
 * kept in few places, and blocks of a mebibyte and more go back to the system at once. */
void mem_keep_little(void);

/* Large memory, 64-byte aligned at least, zero, backed by huge pages where the system grants them:
 * 2 MiB or more begins on a border of one.  Ends with mem_big_free() and the same size. */
enum { MEM_BIG_PAGE = 2 << 20 };
void *mem_big_alloc(size_t n_bytes);
/* The same where only parts of it will be filled at a time: more than the machine has, too. */
void *mem_big_reserve(size_t n_bytes);
void mem_big_free(void *p, size_t n_bytes);
/* Gives the system back the whole pages that are in this range: zeros then; of a file that is
 * mapped, its bytes, read again by whoever looks. */
void mem_drop(void *p, size_t n_bytes);
/* Has the system fill the pages of such memory now, without a change to what is in them; a hint,
 * which Linux takes since 5.14.  One page is filled by one thread: those who meet at a new huge
 * page each clear one, and all but one are thrown away. */
void mem_fill(void *p, size_t n_bytes);
/* Bytes of such memory that are on huge pages now, as the system reports; it may count a
 * neighbour that the system has joined with it. */
uint64_t mem_huge_bytes(const void *p, size_t n_bytes);

/* Grows the array *p of *cap elements to hold at least n; capacity doubles.  False when
 * out of memory (the array is untouched). */
MUST_CHECK bool mem_grow(void *p, size_t *cap, size_t n, size_t size);

#endif
