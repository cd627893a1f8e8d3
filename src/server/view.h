/* view - text inside a JSON value, and reading and writing such values with few words. */
#ifndef INGLE_SERVER_VIEW_H
#define INGLE_SERVER_VIEW_H

#include "base/json.h"
#include "base/str.h"
#include <stdbool.h>

/* Borrowed; need not end in a 0; at is NULL when there is none. */
struct view {
    const char *at;
    size_t n;
};
#define VIEW(s) ((struct view){s, sizeof(s) - 1})
static inline struct view view_str(const struct str *s) { return (struct view){s->at, s->n}; }

/* The member, NULL when it is missing or null. */
static inline struct json_object *view_get(struct json_object *o, const char *key)
{
    return json_member(o, key);
}
/* The string, or {NULL, 0} for anything else. */
struct view view_of(struct json_object *v);
struct view view_member(struct json_object *o, const char *key);
bool view_is(struct view t, const char *s);
bool view_starts(struct view t, const char *s);
bool view_ends(struct view t, const char *s);
/* "a string", "an object" ... */
const char *view_type(struct json_object *v);
/* What a digit of either base64 alphabet stands for, or -1. */
int view_base64_value(char c);
/* Appends the text, with bytes for "%41". */
void view_add_percent(struct str *out, struct view t);
/* A subject for a report: the text, cut to fit. */
const char *view_cut(struct view t, char space[64]);

/* Writing: the value as JSON, "null" for NULL; the text as a JSON string. */
void view_put_json(struct str *s, struct json_object *v);
void view_put(struct str *s, struct view t);
/* A comma, unless the list in the making is empty or ends in an opening bracket. */
void view_put_comma(struct str *s);

#endif
