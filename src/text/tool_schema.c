/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tool_schema.h"

#include <stdio.h>
#include <string.h>

/* Bounds: parts of the result, targets of $ref, and how many of them may be in each other. */
enum { MOST_PARTS = 4096, MOST_TARGETS = 256, MOST_OPEN = 32, MOST_STEP = 256 };

struct target {
    struct json_object *from, *shaped; /* shaped: owned; NULL while it is worked on */
    size_t n_parts;
};

struct shaper {
    struct text_writer *w;
    struct json_object *root;
    bool plain;
    bool left; /* some $ref stayed */
    size_t n_parts, n_open;
    struct target target[MOST_TARGETS];
    size_t n_targets;
};

static struct json_object *shape(struct shaper *s, struct json_object *v, int depth);

/* Takes value. */
static void put(struct shaper *s, struct json_object *o, const char *key, struct json_object *value)
{
    if (o && value && json_object_object_add(o, key, value) == 0)
        return;
    json_object_put(value);
    text_fail_nomem(s->w);
}

static void put_share(struct shaper *s, struct json_object *o, const char *key,
                      struct json_object *value)
{
    if (value)
        put(s, o, key, json_object_get(value));
    else if (json_object_object_add(o, key, NULL) != 0)
        text_fail_nomem(s->w);
}

static void put_text(struct shaper *s, struct json_object *o, const char *key, const char *text)
{
    put(s, o, key, json_object_new_string(text));
}

static void push(struct shaper *s, struct json_object *list, struct json_object *value)
{
    if (list && json_object_array_add(list, value) == 0)
        return;
    json_object_put(value);
    text_fail_nomem(s->w);
}

static bool has(struct json_object *o, const char *key)
{
    return json_object_object_get_ex(o, key, NULL);
}

static size_t count(struct json_object *list)
{
    return json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
}

static bool holds(struct json_object *list, struct json_object *v)
{
    for (size_t i = 0; i < count(list); i++)
        if (json_object_equal(json_object_array_get_idx(list, i), v))
            return true;
    return false;
}

/* ---- $ref ---- */

/* A member or item; the step of the pointer is the n bytes at p. */
static struct json_object *step_into(struct json_object *at, const char *p, size_t n)
{
    char key[MOST_STEP];
    size_t k = 0, index = 0;
    for (size_t i = 0; i < n && k + 1 < sizeof key; i++) {
        const bool escaped = p[i] == '~' && i + 1 < n && (p[i + 1] == '0' || p[i + 1] == '1');
        key[k++] = !escaped ? p[i] : p[i + 1] == '0' ? '~' : '/';
        i += escaped;
    }
    key[k] = 0;
    if (n >= sizeof key || !json_object_is_type(at, json_type_array))
        return n < sizeof key ? text_get(at, key) : NULL;
    for (size_t i = 0; i < k; i++) {
        if (key[i] < '0' || key[i] > '9' || index > 100000)
            return NULL;
        index = 10 * index + (size_t)(key[i] - '0');
    }
    return k && index < json_object_array_length(at) ? json_object_array_get_idx(at, index) : NULL;
}

/* What #/a/b points to in the schema, or NULL. */
static struct json_object *resolve(const struct shaper *s, struct json_object *pointer)
{
    const char *p =
        json_object_is_type(pointer, json_type_string) ? json_object_get_string(pointer) : "";
    struct json_object *at = s->root;
    if (*p++ != '#')
        return NULL;
    for (int step = 0; at && *p == '/' && step < TEXT_DEPTH; step++) {
        const size_t n = strcspn(++p, "/");
        at = step_into(at, p, n);
        p += n;
    }
    return *p ? NULL : at;
}

/* A target in place of what cannot be shown in full. */
static struct json_object *stub(struct shaper *s, struct json_object *from)
{
    struct json_object *o = json_object_new_object(), *type = text_get(from, "type");
    put(s, o, "type", type ? json_object_get(type) : json_object_new_string("object"));
    if (text_get(from, "description"))
        put_share(s, o, "description", text_get(from, "description"));
    return o;
}

/* Owned; NULL: it is not to be put in. */
static struct json_object *expand(struct shaper *s, struct json_object *from, int depth)
{
    size_t i = 0;
    while (i < s->n_targets && s->target[i].from != from)
        i++;
    if (i < s->n_targets && s->target[i].shaped &&
        s->n_parts + s->target[i].n_parts <= MOST_PARTS) {
        s->n_parts += s->target[i].n_parts;
        return json_object_get(s->target[i].shaped);
    }
    if (i < s->n_targets || i == MOST_TARGETS || s->n_open == MOST_OPEN || s->n_parts >= MOST_PARTS)
        return NULL;
    s->target[s->n_targets++] = (struct target){.from = from};
    const size_t before = s->n_parts;
    s->n_open++;
    s->target[i].shaped = shape(s, from, depth + 1);
    s->n_open--;
    s->target[i].n_parts = s->n_parts - before;
    return json_object_get(s->target[i].shaped);
}

/* ---- several schemas as one ---- */

static void join(struct shaper *s, struct json_object *o, const char *key, struct json_object *more)
{
    struct json_object *all = json_object_new_array(), *old = text_get(o, key);
    for (size_t i = 0; i < count(old); i++)
        push(s, all, json_object_get(json_object_array_get_idx(old, i)));
    for (size_t i = 0; i < count(more); i++)
        if (!holds(all, json_object_array_get_idx(more, i)))
            push(s, all, json_object_get(json_object_array_get_idx(more, i)));
    put(s, o, key, all);
}

/* Puts the properties of more after those of o. */
static void join_properties(struct shaper *s, struct json_object *o, struct json_object *more)
{
    struct json_object *all = json_object_new_object(), *old = text_get(o, "properties");
    if (json_object_is_type(old, json_type_object)) {
        json_object_object_foreach(old, key, value)
            put_share(s, all, key, value);
    }
    json_object_object_foreach(more, name, schema)
    {
        if (!has(all, name))
            put_share(s, all, name, schema);
    }
    put(s, o, "properties", all);
}

/* Adds what more says and o does not; both hold. */
static void merge(struct shaper *s, struct json_object *o, struct json_object *more)
{
    if (!json_object_is_type(more, json_type_object))
        return;
    json_object_object_foreach(more, key, value)
    {
        if (strcmp(key, "properties") == 0 && json_object_is_type(value, json_type_object))
            join_properties(s, o, value);
        else if (strcmp(key, "required") == 0 && json_object_is_type(value, json_type_array))
            join(s, o, key, value);
        else if (!has(o, key))
            put_share(s, o, key, value);
    }
}

static bool is_null(struct json_object *v)
{
    struct json_object *type = text_get(v, "type"), *values = text_get(v, "enum");
    return text_is(text_string(json_object_is_type(type, json_type_string) ? type : NULL),
                   "null") ||
           (has(v, "const") && !text_get(v, "const")) ||
           (count(values) == 1 && holds(values, NULL));
}

/* Several branches: their types; of objects all properties, required where all require them; of
 * enums all values. */
static void unite(struct shaper *s, struct json_object *o, struct json_object *branches)
{
    struct json_object *types = json_object_new_array();
    bool enums = true;
    for (size_t i = 0; i < count(branches); i++) {
        struct json_object *b = json_object_array_get_idx(branches, i), *type = text_get(b, "type");
        enums = enums && text_get(b, "enum");
        if (json_object_is_type(type, json_type_string) && !holds(types, type))
            push(s, types, json_object_get(type));
        if (json_object_is_type(text_get(b, "properties"), json_type_object))
            join_properties(s, o, text_get(b, "properties"));
        if (json_object_is_type(text_get(b, "items"), json_type_object) && !has(o, "items"))
            put_share(s, o, "items", text_get(b, "items"));
    }
    for (size_t i = 0; enums && i < count(branches); i++)
        join(s, o, "enum", text_get(json_object_array_get_idx(branches, i), "enum"));
    struct json_object *first = text_get(json_object_array_get_idx(branches, 0), "required");
    struct json_object *required = json_object_new_array();
    for (size_t k = 0; k < count(first); k++) {
        struct json_object *name = json_object_array_get_idx(first, k);
        bool all = true;
        for (size_t i = 1; i < count(branches); i++)
            all = all && holds(text_get(json_object_array_get_idx(branches, i), "required"), name);
        if (all)
            push(s, required, json_object_get(name));
    }
    if (count(required))
        join(s, o, "required", required);
    json_object_put(required);
    if (count(types) == 1 && !has(o, "type"))
        put_share(s, o, "type", json_object_array_get_idx(types, 0));
    else if (count(types) && !has(o, "type"))
        put_share(s, o, "type", types);
    json_object_put(types);
}

static void put_branches(struct shaper *s, struct json_object *o, struct json_object *list,
                         int depth)
{
    struct json_object *kept = json_object_new_array();
    bool nullable = false;
    for (size_t i = 0; i < count(list); i++) {
        struct json_object *b = shape(s, json_object_array_get_idx(list, i), depth + 1);
        if (is_null(b)) {
            nullable = true;
            json_object_put(b);
        } else if (b) {
            nullable = nullable || text_truth(text_get(b, "nullable"));
            push(s, kept, b);
        }
    }
    if (nullable && !has(o, "nullable"))
        put(s, o, "nullable", json_object_new_boolean(1));
    if (count(kept) == 1)
        merge(s, o, json_object_array_get_idx(kept, 0));
    else if (count(kept))
        unite(s, o, kept);
    json_object_put(kept);
}

/* ---- types ---- */

static const char *type_of(struct json_object *v)
{
    switch (json_object_get_type(v)) {
    case json_type_boolean:
        return "boolean";
    case json_type_int:
        return "integer";
    case json_type_double:
        return "number";
    case json_type_string:
        return "string";
    case json_type_array:
        return "array";
    case json_type_object:
        return "object";
    case json_type_null:
        break;
    }
    return "null";
}

/* The list without null, which is nullable.  NULL: there was none in it. */
static struct json_object *without_null(struct shaper *s, struct json_object *o,
                                        struct json_object *list, struct json_object *null)
{
    if (!holds(list, null))
        return NULL;
    struct json_object *rest = json_object_new_array();
    for (size_t i = 0; i < count(list); i++)
        if (!json_object_equal(json_object_array_get_idx(list, i), null))
            push(s, rest, json_object_get(json_object_array_get_idx(list, i)));
    put(s, o, "nullable", json_object_new_boolean(1));
    return rest;
}

static void put_types(struct shaper *s, struct json_object *o)
{
    if (has(o, "const") && !has(o, "enum")) {
        struct json_object *list = json_object_new_array();
        push(s, list, json_object_get(text_get(o, "const")));
        put(s, o, "enum", list);
    }
    json_object_object_del(o, "const");
    struct json_object *values = text_get(o, "enum"), *rest = without_null(s, o, values, NULL);
    if (rest && count(rest))
        put_share(s, o, "enum", rest);
    json_object_put(rest);
    values = text_get(o, "enum");
    if (!text_get(o, "type") && count(values)) {
        const char *type = type_of(json_object_array_get_idx(values, 0));
        for (size_t i = 1; i < count(values); i++)
            type =
                strcmp(type, type_of(json_object_array_get_idx(values, i))) == 0 ? type : "string";
        put_text(s, o, "type", type);
    }
    struct json_object *null = json_object_new_string("null"), *type = text_get(o, "type");
    rest =
        json_object_is_type(type, json_type_array) && null ? without_null(s, o, type, null) : NULL;
    type = rest ? rest : type;
    if (json_object_is_type(type, json_type_array) && count(type) == 1)
        put_share(s, o, "type", json_object_array_get_idx(type, 0));
    else if (rest && count(rest))
        put_share(s, o, "type", rest);
    json_object_put(rest);
    json_object_put(null);
    if (!text_get(o, "type") && json_object_is_type(text_get(o, "properties"), json_type_object))
        put_text(s, o, "type", "object");
    else if (!text_get(o, "type") && json_object_is_type(text_get(o, "items"), json_type_object))
        put_text(s, o, "type", "array");
}

/* Gemma's template takes the keywords of an object without properties for properties. */
static void drop_keywords(struct json_object *o)
{
    static const char *const keyword[] = {"title", "default", "examples", "additionalProperties",
                                          "minProperties", "maxProperties", "propertyNames",
                                          "patternProperties", "discriminator", "deprecated"};
    if (json_object_is_type(text_get(o, "properties"), json_type_object))
        return;
    for (size_t i = 0; i < sizeof keyword / sizeof *keyword; i++)
        json_object_object_del(o, keyword[i]);
}

/* ---- a schema ---- */

static bool is_composed(const char *key)
{
    static const char *const known[] = {"$ref", "$defs", "definitions", "allOf", "anyOf", "oneOf"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(key, known[i]) == 0)
            return true;
    return false;
}

static struct json_object *shape_map(struct shaper *s, struct json_object *map, int depth)
{
    struct json_object *out = json_object_new_object();
    json_object_object_foreach(map, key, value)
    {
        struct json_object *v = shape(s, value, depth + 1);
        if (v)
            put(s, out, key, v);
        else
            put_share(s, out, key, value);
    }
    return out;
}

static struct json_object *shape_plain(struct shaper *s, struct json_object *v, int depth)
{
    struct json_object *o = json_object_new_object();
    json_object_object_foreach(v, key, value)
    {
        const bool object = json_object_is_type(value, json_type_object);
        if (is_composed(key) && !object)
            continue;
        if (strcmp(key, "$defs") == 0 || strcmp(key, "definitions") == 0)
            continue;
        if (object && strcmp(key, "properties") == 0)
            put(s, o, key, shape_map(s, value, depth));
        else if (object && strcmp(key, "items") == 0)
            put(s, o, key, shape(s, value, depth + 1));
        else
            put_share(s, o, key, value);
    }
    struct json_object *from = resolve(s, text_get(v, "$ref"));
    if (from) {
        struct json_object *target = expand(s, from, depth);
        target = target ? target : stub(s, from);
        merge(s, o, target);
        json_object_put(target);
    }
    struct json_object *all = text_get(v, "allOf");
    for (size_t i = 0; i < count(all); i++) {
        struct json_object *part = shape(s, json_object_array_get_idx(all, i), depth + 1);
        merge(s, o, part);
        json_object_put(part);
    }
    put_branches(s, o, text_get(v, "anyOf"), depth);
    put_branches(s, o, text_get(v, "oneOf"), depth);
    put_types(s, o);
    drop_keywords(o);
    return o;
}

/* Any JSON with the targets of $ref in their places. */
static struct json_object *shape_refs(struct shaper *s, struct json_object *v, int depth)
{
    if (json_object_is_type(v, json_type_array)) {
        struct json_object *list = json_object_new_array();
        for (size_t i = 0; i < count(v); i++)
            push(s, list, shape(s, json_object_array_get_idx(v, i), depth + 1));
        return list;
    }
    struct json_object *o = json_object_new_object();
    struct json_object *from = resolve(s, text_get(v, "$ref"));
    struct json_object *target = from ? expand(s, from, depth) : NULL;
    s->left = s->left || (text_get(v, "$ref") && !target);
    json_object_object_foreach(v, key, value)
    {
        if (target && strcmp(key, "$ref") == 0)
            continue;
        if (v == s->root && (strcmp(key, "$defs") == 0 || strcmp(key, "definitions") == 0))
            continue;
        struct json_object *inner = shape(s, value, depth + 1);
        if (inner)
            put(s, o, key, inner);
        else
            put_share(s, o, key, value);
    }
    merge(s, o, target);
    json_object_put(target);
    return o;
}

/* Owned; NULL for null. */
static struct json_object *shape(struct shaper *s, struct json_object *v, int depth)
{
    const bool object = json_object_is_type(v, json_type_object);
    if (depth > TEXT_DEPTH || s->n_parts >= MOST_PARTS || (!object && (s->plain || !count(v)))) {
        s->left = s->left || object || count(v);
        return object && s->plain ? stub(s, v) : json_object_get(v);
    }
    s->n_parts++;
    return s->plain ? shape_plain(s, v, depth) : shape_refs(s, v, depth);
}

/* Whether a string $ref stands in it. */
static bool refers(struct json_object *v, int depth)
{
    if (depth > TEXT_DEPTH)
        return false;
    for (size_t i = 0; i < count(v); i++)
        if (refers(json_object_array_get_idx(v, i), depth + 1))
            return true;
    if (!json_object_is_type(v, json_type_object))
        return false;
    json_object_object_foreach(v, key, value)
    {
        if ((strcmp(key, "$ref") == 0 && json_object_is_type(value, json_type_string)) ||
            refers(value, depth + 1))
            return true;
    }
    return false;
}

struct json_object *text_tool_schema(struct text_writer *w, struct json_object *schema, bool plain)
{
    if (!json_object_is_type(schema, json_type_object) || (!plain && !refers(schema, 0)))
        return json_object_get(schema);
    struct shaper s = {.w = w, .root = schema, .plain = plain};
    struct json_object *o = shape(&s, schema, 0);
    for (size_t i = 0; i < s.n_targets; i++)
        json_object_put(s.target[i].shaped);
    if (!plain && s.left) { /* it holds itself, or too much: it is shown with its definitions */
        json_object_put(o);
        o = json_object_get(schema);
    }
    return o;
}
