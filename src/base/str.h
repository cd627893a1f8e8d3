/*
 * str - a growing byte string.  at is never NULL after str_init() and always ends in a 0
 * that n does not count; the bytes may contain zeros.  Out of memory is sticky: later
 * appends do nothing, and str_ok() says so once at the end.
 */
#ifndef INGLE_BASE_STR_H
#define INGLE_BASE_STR_H

#include "base/attr.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct str {
    char *at;
    size_t n, cap;
    bool failed;
    bool spaced; /* write.h */
};

void str_init(struct str *s);
void str_release(struct str *s);
void str_clear(struct str *s);
void str_add(struct str *s, const char *bytes, size_t n);
void str_adds(struct str *s, const char *text);
void str_addc(struct str *s, char c);
ATTR_PRINTF(2, 3) void str_addf(struct str *s, const char *fmt, ...);
static inline bool str_ok(const struct str *s) { return !s->failed; }
/* The bytes become the caller's (ended with mem_free()); s is empty again.  NULL when
 * memory ran out on the way. */
char *str_detach(struct str *s);

/* Appends a JSON string literal with its quotes.  Ill-formed UTF-8 becomes U+FFFD. */
void str_add_json(struct str *s, const char *bytes, size_t n);
/* The same without quotes and piece by piece: returns how many of the n bytes it took.  The
 * beginning of a character at the end is left, but not of the last piece. */
size_t str_add_json_part(struct str *s, const char *bytes, size_t n, bool last);

/* Appends text from outside as a line may show it: base/utf8.h, UTF8_LINE. */
void str_add_shown(struct str *s, const char *text, size_t n);
/* The same, filled with blanks up to `width` bytes and a blank: a column of a table. */
void str_add_column(struct str *s, const char *text, size_t width);

/* What a hexadecimal digit stands for, or -1. */
int str_hex_value(char c);

/* What stands after the last '/' of a path: all of it where there is none. */
const char *str_last_name(const char *path);
bool str_ends(const char *text, const char *end);
bool str_ends_any_case(const char *text, const char *end);

/* strtod() with a decimal point, whatever locale the host has set. */
double str_to_double(const char *text, char **end);

#endif
