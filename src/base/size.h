/*
 * size - numbers of bytes in messages: three digits, in units of 1024, as tables of memory and
 * files have them. Rates stay in GB/s, as vendors name them, and what a hub offers in GB, as its
 * pages do.
 */
#ifndef INGLE_BASE_SIZE_H
#define INGLE_BASE_SIZE_H

#include <stdint.h>

enum { SIZE_TEXT = 16 };
/* "812 B", "1.00 KiB", "17.6 GiB" in out; returns it. */
const char *size_text(uint64_t n_bytes, char out[SIZE_TEXT]);
#define SIZE_OF(n_bytes) size_text(n_bytes, (char[SIZE_TEXT]){0}) /* lives as long as the block */

#endif
