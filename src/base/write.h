/*
 * write - JSON that goes out, appended to a string.
 *
 * The functions put commas where they belong by looking at the last byte of the string: a
 * value or key that follows a finished value gets one, after '{', '[', ':', ' ', a line end
 * or in an empty string there is none.  So a piece may start after "data: ".  Text may be
 * any bytes: ill-formed UTF-8 becomes U+FFFD.  Nothing fails here; str_ok() says at the end
 * whether memory ran out.  A string whose `spaced` is set gets a blank after commas and colons.
 *
 *     write_open(s, '{');
 *     write_key(s, "id");  write_text(s, id);
 *     write_key(s, "choices");  write_open(s, '[');  ...  write_close(s, ']');
 *     write_close(s, '}');
 */
#ifndef INGLE_BASE_WRITE_H
#define INGLE_BASE_WRITE_H

#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void write_open(struct str *s, char bracket);  /* '{' or '[' */
void write_close(struct str *s, char bracket); /* '}' or ']' */
void write_key(struct str *s, const char *key);

void write_string(struct str *s, const char *bytes, size_t n);
void write_text(struct str *s, const char *text); /* NULL: null */
void write_int(struct str *s, int64_t v);
void write_uint(struct str *s, uint64_t v);
/* The shortest digits that read back as v; infinities and NaN become null. */
void write_number(struct str *s, double v);
void write_float(struct str *s, float v); /* the same for a float */
/* So many digits, as %g has them, or after the point; infinities and NaN become null. */
void write_significant(struct str *s, int digits, double v);
void write_fixed(struct str *s, int digits, double v);
void write_bool(struct str *s, bool v);
void write_null(struct str *s);
/* n bytes that are JSON already.  Line ends become spaces, so it may stand in an event. */
void write_raw(struct str *s, const char *json, size_t n);

/* Members: key and value at once. */
void write_member(struct str *s, const char *key, const char *text);
void write_member_string(struct str *s, const char *key, const char *bytes, size_t n);
void write_member_int(struct str *s, const char *key, int64_t v);
void write_member_uint(struct str *s, const char *key, uint64_t v);
void write_member_number(struct str *s, const char *key, double v);
void write_member_significant(struct str *s, const char *key, int digits, double v);
void write_member_fixed(struct str *s, const char *key, int digits, double v);
void write_member_bool(struct str *s, const char *key, bool v);
void write_member_null(struct str *s, const char *key);
/* an array; n 0: nothing */
void write_member_texts(struct str *s, const char *key, const char *const *text, size_t n);

#endif
