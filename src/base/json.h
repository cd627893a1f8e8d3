/*
 * json - the gate in front of json-c.
 *
 * json_gate() reads the text once and refuses what the library would let through or
 * resolve silently: ill-formed UTF-8, nesting beyond the limit, more values, keys or
 * objects than the limits, duplicate keys in one object, numbers outside the JSON grammar, raw
 * control characters, a NUL in a key, anything but white space after the value.  json_parse() is
 * gate + json-c.  Integers beyond 64 bits come as doubles
 * that print as their digits.  What the gate lets through and json-c bends: numbers beyond
 * double become infinite, a lone surrogate becomes U+FFFD.
 */
#ifndef INGLE_BASE_JSON_H
#define INGLE_BASE_JSON_H

#include "base/err.h"
#include "base/str.h"
#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>

enum { JSON_OBJECTS = 250000 };

struct json_limits {
    int depth;         /* 0: 64 */
    size_t n_values;   /* 0: 16 million */
    size_t n_keys;     /* of one object; 0: as many as values */
    size_t n_objects;  /* each takes about 800 bytes; 0: JSON_OBJECTS */
    size_t n_bytes;    /* 0: 1 GiB */
    bool (*stop)(void *arg); /* NULL, or asked every few milliseconds: true is INGLE_CANCEL */
    void *arg;
};

MUST_CHECK ingle_status json_gate(const char *text, size_t n, const struct json_limits *limits,
                                  struct err *err);

/* The caller ends *out with json_object_put().  limits may be NULL. */
MUST_CHECK ingle_status json_parse(const char *text, size_t n, const struct json_limits *limits,
                                   struct json_object **out, struct err *err);

/* A member of an object; NULL: `o` has none of that name, or is no object. */
struct json_object *json_member(struct json_object *o, const char *key);

/* Appends the object of which the n bytes are the beginning, with the members and items that are
 * complete.  False: it is none; *out is unchanged. */
bool json_close(struct str *out, const char *text, size_t n);

#endif
