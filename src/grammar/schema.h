/*
 * grammar_schema - JSON schemas to pieces of a grammar.
 */
#ifndef INGLE_GRAMMAR_SCHEMA_H
#define INGLE_GRAMMAR_SCHEMA_H

#include "grammar/form.h"

/* Where in the schema: a list from the inside out; the outermost key is "#" or a pointer. */
struct schema_path {
    const struct schema_path *up;
    const char *key; /* NULL: index counts */
    size_t index;
};

/* Which of a schema's values are meant. */
enum schema_part { SCHEMA_ALL, SCHEMA_STRINGS, SCHEMA_OTHERS };

/* A $ref whose rule is made when all else is done. */
struct schema_ref {
    struct json_object *target;
    const char *pointer; /* the rule's name */
    struct grammar_form *form;
    enum schema_part part;
    uint32_t rule;
    size_t next; /* of the same target, + 1; 0: none */
};

/* Values, each once; they are borrowed. */
struct schema_set_slot {
    uint64_t hash;
    struct json_object *v;
    bool used;
};
struct schema_set {
    struct schema_set_slot *slot;
    size_t n, n_slots;
};

/* From pointers to pointers. */
struct schema_map_slot {
    const void *key; /* NULL: empty */
    void *value;
};
struct schema_map {
    struct schema_map_slot *slot;
    size_t n, n_slots;
};

enum { SCHEMA_MOST_NOTES = 16 };

struct schema {
    struct grammar_builder *b;
    struct json_object *root;  /* $ref points into it */
    struct grammar_form *form;    /* of what is compiled now */
    const struct report_sink *sink;
    struct schema_ref *ref;
    size_t n_refs, cap_refs, n_refs_done;
    struct schema_map ref_of;  /* target to the number of its first ref + 1, as a pointer */
    struct schema_map flat;    /* schema to what grammar_s_flatten() made of it */
    struct schema_map sets;    /* list of an enum to its set, owned */
    struct json_object **made; /* schemas of our own, ended with the rest */
    size_t n_made, cap_made;
    size_t n_compiled;
    uint64_t n_growths;
    uint64_t note[SCHEMA_MOST_NOTES]; /* hashes of what was said */
    int n_notes;
    int depth;
    bool any_order; /* of an object's members */
};

void grammar_s_init(struct schema *s, struct grammar_builder *b, const struct report_sink *sink);
/* Makes the bodies of the $refs that were met since; forms must still be there. */
void grammar_s_finish(struct schema *s);
void grammar_s_release(struct schema *s);

struct grammar_piece grammar_s_compile(struct schema *s, struct json_object *v,
                                    const struct schema_path *at, enum schema_part part);

/* An object schema without $ref, allOf and anyOf. */
struct grammar_piece grammar_s_object(struct schema *s, struct json_object *v,
                                      const struct schema_path *at);
/* , item */
struct grammar_piece grammar_s_next_item(struct schema *s, uint32_t rule);
/* A keyword that is a whole number at or above 0; none: it is not there. */
uint32_t grammar_s_count(struct schema *s, struct json_object *v, const char *key, uint32_t none,
                         const struct schema_path *at);
/* The values that a schema of few values has, each once, as a list that s owns; NULL: it has
 * others. */
struct json_object *grammar_s_values_of(struct schema *s, struct json_object *v,
                                        const struct schema_path *at);

/* The properties of an object schema (no $ref, allOf, anyOf) one by one, for forms that have
 * no braces.  value NULL: any. */
/* Names the place. */
ATTR_PRINTF(4, 5)
void grammar_s_fail(struct schema *s, ingle_status st, const struct schema_path *at,
                    const char *fmt, ...);
/* Something of a schema cannot be had: INGLE_UNSUP, or, where that is requested, it is left out,
 * which is reported. */
ATTR_PRINTF(3, 4)
void grammar_s_leave(struct schema *s, const struct schema_path *at, const char *fmt, ...);
ATTR_PRINTF(3, 4)
void grammar_s_note(struct schema *s, const struct schema_path *at, const char *fmt, ...);

/* What a local pointer (#/$defs/x) names, or NULL: failed. */
struct json_object *grammar_s_resolve(struct schema *s, struct json_object *pointer,
                                   const struct schema_path *at);
/* A keyword that says nothing about what is valid. */
bool grammar_s_is_note(const char *keyword);
/* Whether v has keywords that say something, other than the given ones. */
bool grammar_s_has_more(struct json_object *v, const char *but, const char *also);
/* v without $ref and allOf: what they say is merged.  Owned by s; NULL: failed. */
struct json_object *grammar_s_flatten(struct schema *s, struct json_object *v,
                                   const struct schema_path *at, int depth);
/* Takes o, which ends with s; NULL: failed. */
struct json_object *grammar_s_keep(struct schema *s, struct json_object *o);
/* {"allOf": [x, y]}; NULL: failed. */
struct json_object *grammar_s_both(struct schema *s, struct json_object *x, struct json_object *y);
/* Both schemas at once, and a copy without one keyword.  Owned by s; NULL: failed. */
struct json_object *grammar_s_merge(struct schema *s, struct json_object *x, struct json_object *y,
                                 const struct schema_path *at);
struct json_object *grammar_s_without(struct schema *s, struct json_object *v, const char *keyword);

#endif
