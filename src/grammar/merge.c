/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_merge - $ref and allOf: several schemas as one. */
#include "grammar/schema.h"
#include "grammar/schema_value.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <math.h>
#include <string.h>

enum { MERGE_DEPTH = 64 };

/* What json-c takes for an object or a list, and for a member. */
enum { OBJECT_BYTES = 1024, MEMBER_BYTES = 128 };

/* Takes o. */
struct json_object *grammar_s_keep(struct schema *s, struct json_object *o)
{
    if (o && !grammar_g_spend(s->b, OBJECT_BYTES)) {
        json_object_put(o);
        return NULL;
    }
    if (o && !mem_grow(&s->made, &s->cap_made, s->n_made + 1, sizeof(struct json_object *))) {
        json_object_put(o);
        o = NULL;
    }
    if (o)
        s->made[s->n_made++] = o;
    else
        grammar_g_nomem(s->b);
    return o;
}

/* Puts a share of value into o. */
static bool put(struct schema *s, struct json_object *o, const char *key, struct json_object *value)
{
    if (!grammar_g_step(s->b, 4) || !grammar_g_spend(s->b, MEMBER_BYTES))
        return false;
    struct json_object *share = json_object_get(value);
    if (json_object_object_add(o, key, share) == 0)
        return true;
    json_object_put(share);
    grammar_g_nomem(s->b);
    return false;
}

struct json_object *grammar_s_both(struct schema *s, struct json_object *x, struct json_object *y)
{
    struct json_object *o = grammar_s_keep(s, json_object_new_object());
    struct json_object *list = o ? grammar_s_keep(s, json_object_new_array()) : NULL;
    if (!list || !put(s, o, "allOf", list))
        return NULL;
    if (json_object_array_add(list, json_object_get(x)) ||
        json_object_array_add(list, json_object_get(y)))
        grammar_g_nomem(s->b);
    return o;
}

/* ---- pointers ---- */

/* One step of a pointer, up to its next slash, decoded. */
static const char *read_step(const char *p, struct str *out)
{
    str_clear(out);
    for (; *p && *p != '/'; p++) {
        if (p[0] == '~' && (p[1] == '0' || p[1] == '1')) {
            str_addc(out, p[1] == '0' ? '~' : '/');
            p++;
        } else if (p[0] == '%' && str_hex_value(p[1]) >= 0 && str_hex_value(p[2]) >= 0) {
            str_addc(out, (char)(str_hex_value(p[1]) << 4 | str_hex_value(p[2])));
            p += 2;
        } else {
            str_addc(out, *p);
        }
    }
    return p;
}

static struct json_object *step_into(struct json_object *at, const char *step)
{
    size_t i = 0;
    if (json_object_is_type(at, json_type_object))
        return json_member(at, step);
    if (!json_object_is_type(at, json_type_array) || !*step)
        return NULL;
    for (; *step >= '0' && *step <= '9' && i < 1000000; step++)
        i = 10 * i + (size_t)(*step - '0');
    return *step ? NULL : json_object_array_get_idx(at, i);
}

struct json_object *grammar_s_resolve(struct schema *s, struct json_object *pointer,
                                   const struct schema_path *at)
{
    const char *p = json_object_is_type(pointer, json_type_string)
                        ? json_object_get_string(pointer)
                        : "";
    struct json_object *v = s->root;
    struct str step;
    if (p[0] != '#' || (p[1] && p[1] != '/')) {
        grammar_s_leave(s, at, "'$ref' to '%.80s' is not supported, only to '#/...'", p);
        return grammar_g_ok(s->b) ? grammar_s_keep(s, json_object_new_boolean(1)) : NULL;
    }
    str_init(&step);
    (void)grammar_g_step(s->b, strlen(p));
    for (p++; *p == '/' && v;) {
        p = read_step(p + 1, &step);
        v = str_ok(&step) ? step_into(v, step.at) : NULL;
    }
    if (!str_ok(&step))
        grammar_g_nomem(s->b);
    str_release(&step);
    if (!v)
        grammar_s_fail(s, INGLE_ARG, at, "'$ref' to '%.80s': there is no such schema",
                    json_object_get_string(pointer));
    return v;
}

/* ---- keywords ---- */

bool grammar_s_is_note(const char *k)
{
    static const char *const note[] = {"title",     "description", "default",     "examples",
                                       "example",   "$schema",     "$id",         "id",
                                       "$comment",  "deprecated",  "readOnly",    "writeOnly",
                                       "$defs",     "definitions", "$anchor",     "$vocabulary",
                                       "strict",    "contentEncoding", "contentMediaType"};
    for (size_t i = 0; i < sizeof note / sizeof *note; i++)
        if (strcmp(note[i], k) == 0)
            return true;
    return k[0] == 'x' && k[1] == '-';
}

bool grammar_s_has_more(struct json_object *v, const char *but, const char *also)
{
    json_object_object_foreach(v, key, value)
    {
        (void)value;
        if (strcmp(key, but) != 0 && (!also || strcmp(key, also) != 0) && !grammar_s_is_note(key))
            return true;
    }
    return false;
}

struct json_object *grammar_s_without(struct schema *s, struct json_object *v, const char *keyword)
{
    struct json_object *o = grammar_s_keep(s, json_object_new_object());
    if (!o)
        return NULL;
    json_object_object_foreach(v, key, value)
    {
        if (strcmp(key, keyword) != 0 && !grammar_s_is_note(key) && !put(s, o, key, value))
            return NULL;
    }
    return o;
}

/* ---- merging ---- */

/* One object that grows by others.  What it shares with them is copied before it is changed. */
struct growth {
    struct schema *s;
    const struct schema_path *at;
    struct json_object *o;
    void *mark;                   /* userdata of what is its own */
    struct schema_set required;   /* the names in "required", once that is its own */
};

static bool is_own(const struct growth *g, struct json_object *v)
{
    return v && json_object_get_userdata(v) == g->mark;
}

/* A new object or list, as a part of g->o if key is not NULL.  NULL: failed. */
static struct json_object *own(struct growth *g, const char *key, bool list)
{
    struct json_object *o =
        grammar_s_keep(g->s, list ? json_object_new_array() : json_object_new_object());
    if (!o)
        return NULL;
    json_object_set_userdata(o, g->mark, NULL);
    return !key || put(g->s, g->o, key, o) ? o : NULL;
}

static bool add_item(struct growth *g, struct json_object *list, struct json_object *v)
{
    if (!grammar_g_step(g->s->b, 1) || !grammar_g_spend(g->s->b, sizeof v))
        return false;
    struct json_object *share = json_object_get(v);
    if (json_object_array_add(list, share) == 0)
        return true;
    json_object_put(share);
    grammar_g_nomem(g->s->b);
    return false;
}

/* Member `key` of o, a part of g, becomes both. */
static void conjoin(struct growth *g, struct json_object *o, const char *key, struct json_object *x,
                    struct json_object *y)
{
    struct json_object *both = x;
    if (!is_own(g, x)) {
        both = own(g, NULL, false);
        struct json_object *list = both ? own(g, NULL, true) : NULL;
        if (!list || !put(g->s, both, "allOf", list) || !add_item(g, list, x) ||
            !put(g->s, o, key, both))
            return;
    }
    (void)add_item(g, json_member(both, "allOf"), y);
}

/* properties, patternProperties: those of both, of which the common ones have to be valid under
 * both. */
static void add_properties(struct growth *g, const char *k, struct json_object *x,
                           struct json_object *y)
{
    if (!json_object_is_type(x, json_type_object) || !json_object_is_type(y, json_type_object)) {
        grammar_s_fail(g->s, INGLE_ARG, g->at, "'%s' is no object", k);
        return;
    }
    if (!is_own(g, x)) {
        struct json_object *copy = own(g, k, false);
        if (!copy)
            return;
        json_object_object_foreach(x, key, value)
        {
            if (!put(g->s, copy, key, value))
                return;
        }
        x = copy;
    }
    json_object_object_foreach(y, name, other)
    {
        struct json_object *mine = NULL;
        if (!grammar_g_ok(g->s->b))
            return;
        if (!json_object_object_get_ex(x, name, &mine))
            (void)put(g->s, x, name, other);
        else if (!grammar_s_same(g->s->b, mine, other))
            conjoin(g, x, name, mine, other);
    }
}

/* required: x and what only y has. */
static void add_required(struct growth *g, struct json_object *x, struct json_object *y)
{
    if (!is_own(g, x)) {
        struct json_object *copy = own(g, "required", true);
        for (size_t i = 0; copy && i < json_object_array_length(x); i++)
            if (grammar_s_set_add(g->s->b, &g->required, json_object_array_get_idx(x, i)) &&
                !add_item(g, copy, json_object_array_get_idx(x, i)))
                return;
        x = copy;
    }
    for (size_t i = 0; x && i < json_object_array_length(y); i++)
        if (grammar_s_set_add(g->s->b, &g->required, json_object_array_get_idx(y, i)) &&
            !add_item(g, x, json_object_array_get_idx(y, i)))
            return;
}

/* enum: those of x that y has, too. */
static void keep_common(struct growth *g, const char *k, struct json_object *x,
                        struct json_object *y)
{
    struct schema_set in_y = {0};
    struct json_object *common = own(g, NULL, true);
    grammar_s_set_add_all(g->s->b, &in_y, y);
    for (size_t i = 0; common && i < json_object_array_length(x) && grammar_g_ok(g->s->b); i++) {
        struct json_object *v = json_object_array_get_idx(x, i);
        if (grammar_s_set_has(g->s->b, &in_y, v))
            (void)add_item(g, common, v);
    }
    if (common && grammar_g_ok(g->s->b))
        (void)put(g->s, g->o, k, common);
    grammar_s_set_release(&in_y);
}

static bool type_allows(struct json_object *type, const char *name)
{
    if (json_object_is_type(type, json_type_string))
        return strcmp(json_object_get_string(type), name) == 0;
    for (size_t i = 0;
         json_object_is_type(type, json_type_array) && i < json_object_array_length(type); i++) {
        struct json_object *t = json_object_array_get_idx(type, i);
        if (json_object_is_type(t, json_type_string) &&
            strcmp(json_object_get_string(t), name) == 0)
            return true;
    }
    return false;
}

static void keep_types(struct growth *g, struct json_object *x, struct json_object *y)
{
    static const char *const all[] = {"object", "array",  "string", "integer",
                                      "number", "boolean", "null"};
    struct json_object *o = own(g, NULL, true);
    const size_t n = (json_object_is_type(x, json_type_array) ? json_object_array_length(x) : 1) +
                     (json_object_is_type(y, json_type_array) ? json_object_array_length(y) : 1);
    for (size_t i = 0; o && i < sizeof all / sizeof *all && grammar_g_step(g->s->b, n); i++) {
        const bool integer = strcmp(all[i], "integer") == 0;
        const bool in_x = type_allows(x, all[i]) || (integer && type_allows(x, "number"));
        const bool in_y = type_allows(y, all[i]) || (integer && type_allows(y, "number"));
        const bool number = integer && type_allows(x, "number") && type_allows(y, "number");
        if (in_x && in_y && !number && json_object_array_add(o, json_object_new_string(all[i])))
            grammar_g_nomem(g->s->b);
    }
    if (o && grammar_g_ok(g->s->b))
        (void)put(g->s, g->o, "type", o);
}

/* A schema that has to hold together with another; of booleans the stricter one. */
static void add_schema(struct growth *g, const char *k, struct json_object *x,
                       struct json_object *y)
{
    const bool x_bool = json_object_is_type(x, json_type_boolean);
    const bool y_bool = json_object_is_type(y, json_type_boolean);
    if (!x_bool && !y_bool)
        conjoin(g, g->o, k, x, y);
    else if (x_bool && json_object_get_boolean(x))
        (void)put(g->s, g->o, k, y);
    else if (!x_bool && !json_object_get_boolean(y))
        (void)put(g->s, g->o, k, y);
}

static bool one_of(const char *k, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], k) == 0)
            return true;
    return false;
}

/* Whole numbers: their least common multiple, as long as it fits; NULL for others. */
static struct json_object *merge_steps(struct schema *s, struct json_object *x,
                                       struct json_object *y)
{
    if (!json_object_is_type(x, json_type_int) || !json_object_is_type(y, json_type_int))
        return NULL;
    const int64_t one = json_object_get_int64(x), two = json_object_get_int64(y);
    int64_t a = one, b = two;
    while (a > 0 && b > 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    if (one <= 0 || two <= 0 || one / a > INT64_MAX / two)
        return NULL;
    return grammar_s_keep(s, json_object_new_int64(one / a * two));
}

/* Keyword k of g is x and has to be y, too. */
static void add_keyword(struct growth *g, const char *k, struct json_object *x,
                        struct json_object *y)
{
    static const char *const low[] = {"minimum", "exclusiveMinimum", "minLength", "minItems"};
    static const char *const high[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems"};
    static const char *const schema[] = {"additionalProperties", "items", "propertyNames",
                                         "unevaluatedProperties"};
    const bool arrays =
        json_object_is_type(x, json_type_array) && json_object_is_type(y, json_type_array);
    if (grammar_s_same(g->s->b, x, y))
        return;
    if (one_of(k, low, 4) || one_of(k, high, 4)) {
        const double a = json_object_get_double(x), b = json_object_get_double(y);
        if (one_of(k, low, 4) ? b > a : b < a)
            (void)put(g->s, g->o, k, y);
    } else if (strcmp(k, "properties") == 0 || strcmp(k, "patternProperties") == 0) {
        add_properties(g, k, x, y);
    } else if (strcmp(k, "required") == 0 && arrays) {
        add_required(g, x, y);
    } else if (strcmp(k, "enum") == 0 && arrays) {
        keep_common(g, k, x, y);
    } else if (strcmp(k, "uniqueItems") == 0) {
        if (json_object_get_boolean(y))
            (void)put(g->s, g->o, k, y);
    } else if (strcmp(k, "type") == 0) {
        keep_types(g, x, y);
    } else if (one_of(k, schema, 4)) {
        add_schema(g, k, x, y);
    } else {
        struct json_object *step = strcmp(k, "multipleOf") == 0 ? merge_steps(g->s, x, y) : NULL;
        if (step)
            (void)put(g->s, g->o, k, step);
        else
            grammar_s_leave(g->s, g->at, "two different '%.40s' in one 'allOf' are not supported",
                            k);
    }
}

/* x forbids properties that it does not list itself; unevaluated: those that it has not looked
 * at. */
static bool refuses(struct schema *s, struct json_object *x, struct json_object *y,
                    bool unevaluated)
{
    struct json_object *more = json_member(x, "additionalProperties"),
                       *mine = json_member(x, "properties");
    struct json_object *other = json_member(y, "properties");
    if (!more && unevaluated)
        more = json_member(x, "unevaluatedProperties");
    if (!json_object_is_type(more, json_type_boolean) || json_object_get_boolean(more) ||
        !json_object_is_type(other, json_type_object))
        return false;
    json_object_object_foreach(other, key, value)
    {
        (void)value;
        if (!grammar_g_step(s->b, 1) || !json_member(mine, key))
            return true;
    }
    return false;
}

static void growth_begin(struct growth *g, struct schema *s, const struct schema_path *at)
{
    *g = (struct growth){.s = s, .at = at, .mark = (void *)(uintptr_t)++s->n_growths};
    g->o = own(g, NULL, false);
}

/* The merged schema; NULL: failed. */
static struct json_object *growth_end(struct growth *g)
{
    grammar_s_set_release(&g->required);
    return grammar_g_ok(g->s->b) ? g->o : NULL;
}

/* All of y but $ref and allOf, which have been looked at.  part: y is one of several, and
 * "unevaluated..." in it is about that part alone, so it closes it. */
static void grow(struct growth *g, struct json_object *y, bool part)
{
    if (!grammar_g_ok(g->s->b) || !g->o || !y)
        return;
    if (json_object_is_type(g->o, json_type_boolean) || json_object_is_type(y, json_type_boolean)) {
        const bool none =
            !json_object_get_boolean(json_object_is_type(y, json_type_boolean) ? y : g->o);
        if (none) /* nothing is valid any more */
            g->o = grammar_s_keep(g->s, json_object_new_boolean(0));
        return;
    }
    if (!json_object_is_type(y, json_type_object)) {
        grammar_s_fail(g->s, INGLE_ARG, g->at, "a schema is no object");
        return;
    }
    if (refuses(g->s, g->o, y, false) || refuses(g->s, y, g->o, part))
        grammar_s_leave(g->s, g->at,
                        "'additionalProperties': false next to other properties in one 'allOf' is "
                        "not supported");
    json_object_object_foreach(y, own_key, value)
    {
        struct json_object *x = NULL;
        const char *key = own_key;
        if (!grammar_g_ok(g->s->b))
            return;
        if (part && strcmp(key, "unevaluatedProperties") == 0 &&
            !json_member(y, "additionalProperties"))
            key = "additionalProperties";
        if (grammar_s_is_note(key) || strcmp(key, "$ref") == 0 || strcmp(key, "allOf") == 0)
            continue;
        if (json_object_object_get_ex(g->o, key, &x))
            add_keyword(g, key, x, value);
        else
            (void)put(g->s, g->o, key, value);
    }
}

struct json_object *grammar_s_merge(struct schema *s, struct json_object *x, struct json_object *y,
                                 const struct schema_path *at)
{
    struct growth g;
    growth_begin(&g, s, at);
    grow(&g, x, false);
    grow(&g, y, false);
    return growth_end(&g);
}

struct json_object *grammar_s_flatten(struct schema *s, struct json_object *v,
                                   const struct schema_path *at, int depth)
{
    struct json_object *ref = json_member(v, "$ref"), *list = json_member(v, "allOf");
    struct growth g;
    if (depth == MERGE_DEPTH) {
        grammar_s_fail(s, INGLE_LIMIT, at, "'$ref' and 'allOf' nest deeper than the limit of %d",
                    MERGE_DEPTH);
        return NULL;
    }
    if (!ref && !list)
        return v;
    struct json_object *known = grammar_s_map_get(&s->flat, v);
    if (known)
        return known;
    if (list && !json_object_is_type(list, json_type_array)) {
        grammar_s_fail(s, INGLE_ARG, at, "'allOf' is no array");
        return NULL;
    }
    growth_begin(&g, s, at);
    if (ref) {
        struct json_object *target = grammar_s_resolve(s, ref, at);
        grow(&g, target ? grammar_s_flatten(s, target, at, depth + 1) : NULL, true);
    }
    grow(&g, v, false);
    for (size_t i = 0; list && i < json_object_array_length(list) && grammar_g_ok(s->b); i++)
        grow(&g, grammar_s_flatten(s, json_object_array_get_idx(list, i), at, depth + 1), true);
    struct json_object *o = growth_end(&g);
    if (o)
        grammar_s_map_put(s->b, &s->flat, v, o);
    return grammar_g_ok(s->b) ? o : NULL;
}
