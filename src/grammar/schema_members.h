/*
 * schema_members - inside the room: what an object may have.
 */
#ifndef INGLE_GRAMMAR_SCHEMA_MEMBERS_H
#define INGLE_GRAMMAR_SCHEMA_MEMBERS_H

#include "grammar/schema.h"

struct schema_member {
    const char *name;
    struct json_object *value;
    bool required;
};
/* Members that are not listed: those whose name fits a pattern (NULL: the rest of them). */
struct schema_other {
    const char *pattern;
    struct json_object *value; /* NULL: any */
};
struct schema_members {
    struct schema_member *at; /* owned; names are borrowed from the schema */
    size_t n, cap;
    bool open;                   /* there are others, which may follow */
    struct schema_other *others; /* owned */
    size_t n_others;
    struct json_object *names;   /* owned: what an other cannot be called */
    struct json_object *name_schema; /* "propertyNames" as far as it is about others; NULL: none */
};
/* False: failed; members is empty. */
bool grammar_s_members(struct schema *s, struct json_object *v, const struct schema_path *at,
                    struct schema_members *out);
void grammar_s_members_release(struct schema_members *m);
/* The bare names of others[i]. */
struct grammar_piece grammar_s_other_name(struct schema *s, const struct schema_members *m,
                                          size_t i, struct grammar_form *form);
/* Whether they may come in any order; and the bits of those that must be there. */
bool grammar_s_any_order(const struct schema *s, const struct schema_members *m);
uint32_t grammar_s_required(const struct schema_members *m);

#endif
