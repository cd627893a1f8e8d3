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

/* Text that comes from outside, as a terminal, a log or a report may show it.  Control characters,
 * DEL, C1 controls, controls of direction, separators of lines, invisible tags and ill-formed bytes
 * become escapes: \n, \x1b, \u009b, \u202e, \xff.  A backslash stays as it is. */
enum utf8_shown {
    UTF8_LINE, /* part of a line: nothing ends it */
    /* a text of its own: line feeds, tabs and marks of direction (U+200E, U+200F, U+061C) stay */
    UTF8_TEXT
};
enum { UTF8_SHOWN = 12 }; /* bytes that one character takes at most, with a 0 */
/* Shows the first character of s (n > 0) in out, which ends in a 0.  Returns how many bytes of s it
 * took. */
size_t utf8_show_one(const char *s, size_t n, enum utf8_shown how, char out[UTF8_SHOWN]);
/* Shows s in out [cap > 0], which ends in a 0; what does not fit is left out, no character is cut.
 * Returns its length. */
size_t utf8_show(const char *s, size_t n, enum utf8_shown how, char *out, size_t cap);

#endif
