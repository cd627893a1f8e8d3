/*
 * utf8 - reading and writing UTF-8.  Ill-formed input is cut into maximal parts as
 * Unicode recommends (and as Python's errors="replace" does): each part is one U+FFFD.
 */
#ifndef INGLE_BASE_UTF8_H
#define INGLE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_BAD 0xFFFFFFFFu  /* an ill-formed part */
#define UTF8_PART 0xFFFFFFFEu /* a good beginning that needs more bytes (utf8_step only) */

/* Reads one character of s (n > 0).  Returns its length in bytes (>= 1) and the code
 * point; for an ill-formed part its length and UTF8_BAD (a truncated end is ill-formed). */
size_t utf8_decode(const char *s, size_t n, uint32_t *cp);

/* The same for a stream: a truncated but so far well-formed end gives UTF8_PART and the
 * number of bytes that are there. */
size_t utf8_step(const char *s, size_t n, uint32_t *cp);

/* Writes cp (a scalar value) and returns its length, 1 to 4. */
size_t utf8_encode(uint32_t cp, char out[4]);

bool utf8_valid(const char *s, size_t n);

#endif
