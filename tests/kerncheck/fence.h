/*
 * fence - memory with a page that cannot be read beside it: a kernel that reads or writes one byte
 * too far dies of SIGSEGV, tiles and inline assembly included, in a release build at full speed.
 *
 * A program that links fence.c with FENCED of tests/CMakeLists.txt gets all memory of base/mem.h
 * so.
 */
#ifndef INGLE_TESTS_KERNCHECK_FENCE_H
#define INGLE_TESTS_KERNCHECK_FENCE_H

#include <stdbool.h>
#include <stddef.h>

enum fence_side { FENCE_NONE, FENCE_END, FENCE_BEGIN };

/* Where later blocks have the page.  What is not a multiple of its alignment (16 bytes, of large
 * memory 64; floats that are no multiple of 16 bytes: 4) has up to that many bytes between. */
void fence_set(enum fence_side side);
enum fence_side fence_now(void);
/* Whether trials are to be smaller and fewer: in a second round, in which the numbers are known. */
bool fence_sparse_trials(void);

#endif
