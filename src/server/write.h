/*
 * write - JSON that goes out, appended to a string.
 *
 * The functions put commas where they belong by looking at the last byte of the string: a
 * value or key that follows a finished value gets one, behind '{', '[', ':', ' ', a line end
 * or in an empty string there is none.  So a piece may start behind "data: ".  Text may be
 * any bytes: ill-formed UTF-8 becomes U+FFFD.  Nothing fails here; str_ok() tells at the end
 * whether memory ran out.
 *
 *     write_open(s, '{');
 *     write_key(s, "id");  write_text(s, id);
 *     write_key(s, "choices");  write_open(s, '[');  ...  write_close(s, ']');
 *     write_close(s, '}');
 */
#ifndef INGLE_SERVER_WRITE_H
#define INGLE_SERVER_WRITE_H

#include "base/str.h"
#include "ingle/ingle.h"
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
void write_bool(struct str *s, bool v);
void write_null(struct str *s);
/* n bytes that are JSON already.  Line ends become spaces, so it may stand in an event. */
void write_raw(struct str *s, const char *json, size_t n);

/* Members: key and value at once. */
void write_member(struct str *s, const char *key, const char *text);
void write_member_string(struct str *s, const char *key, const char *bytes, size_t n);
void write_member_int(struct str *s, const char *key, int64_t v);
void write_member_number(struct str *s, const char *key, double v);
void write_member_bool(struct str *s, const char *key, bool v);
void write_member_null(struct str *s, const char *key);
/* Drafted tokens that were right, and the others, by OpenAI's names; n_drafted 0: nothing. */
void write_drafted(struct str *s, int64_t n_drafted, int64_t n_right);
/* The counters of a group (ingle_facts) as members of an object. */
void write_facts(struct str *s, const char *group, const void *of);
/* "sparse" and "kv_select", what prompts and answers left out; nothing where there were none. */
void write_ways(struct str *s, const struct ingle_way_use *u);
/* "computed_tokens": those of a prompt that was shortened, the cached ones among them; nothing of
 * one that was not.  And those of pictures and sounds, if there are any. */
void write_computed(struct str *s, const struct ingle_usage *u);
/* A member "kv_disk", if keys and values were read from disk. */
void write_pages(struct str *s, const struct ingle_page_use *u);
/* an array; n 0: nothing */
void write_member_texts(struct str *s, const char *key, const char *const *text, size_t n);

#endif
