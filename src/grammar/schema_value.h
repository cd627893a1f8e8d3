/*
 * schema_value - inside the room: values of schemas, compared, checked and kept in sets.
 */
#ifndef INGLE_GRAMMAR_SCHEMA_VALUE_H
#define INGLE_GRAMMAR_SCHEMA_VALUE_H

#include "grammar/schema.h"

/* Checks of values that a schema names: zeroed except for s and at. */
struct schema_check {
    struct schema *s;
    const struct schema_path *at;
    const char *pattern; /* that grammar and matcher are of; NULL: none so far */
    struct grammar *grammar;
    struct grammar_matcher *matcher;
};
/* Whether v is valid under a schema, whose own enum does not count.  False after a failure, too. */
bool grammar_s_allows(struct schema_check *c, struct json_object *schema, struct json_object *v);
void grammar_s_check_end(struct schema_check *c);
/* The regular expression of a format, or NULL. */
const char *grammar_s_format(const char *name);
/* Whether a pattern (not anchored) fits a text; one pattern a check. */
bool grammar_s_matches(struct schema_check *c, const char *pattern, const char *text, size_t n);
/* A keyword that cannot be had; and one that is not looked at where values are checked. */
bool grammar_s_is_refused(const char *keyword);
bool grammar_s_is_unchecked(const char *keyword);

/* Whether two values are the same: 1 and 1.0 are. */
bool grammar_s_same(struct grammar_builder *b, struct json_object *x, struct json_object *y);
/* False: it was there, or b failed. */
bool grammar_s_set_add(struct grammar_builder *b, struct schema_set *s, struct json_object *v);
void grammar_s_set_add_all(struct grammar_builder *b, struct schema_set *s,
                           struct json_object *list);
bool grammar_s_set_has(struct grammar_builder *b, const struct schema_set *s,
                       struct json_object *v);
void grammar_s_set_release(struct schema_set *s);
/* NULL: it is not there. */
void *grammar_s_map_get(const struct schema_map *m, const void *key);
void grammar_s_map_put(struct grammar_builder *b, struct schema_map *m, const void *key,
                       void *value);
void grammar_s_map_release(struct schema_map *m);
/* Whether a list of values (an enum) has v. */
bool grammar_s_lists(struct schema *s, struct json_object *list, struct json_object *v);

#endif
