/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_merge - $ref and allOf: several schemas as one. */
#include "grammar/schema.h"

#include "base/mem.h"
#include "base/str.h"
#include <math.h>
#include <string.h>

enum { MERGE_DEPTH = 64 };

/* Takes o. */
static struct json_object *keep(struct schema *s, struct json_object *o)
{
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
    struct json_object *share = json_object_get(value);
    if (json_object_object_add(o, key, share) == 0)
        return true;
    json_object_put(share);
    grammar_g_nomem(s->b);
    return false;
}

static struct json_object *get(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    return json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, key, &v) ? v
                                                                                              : NULL;
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
        return get(at, step);
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
        grammar_s_fail(s, INGLE_UNSUP, at, "'$ref' to '%.80s' is not supported, only to '#/...'", p);
        return NULL;
    }
    str_init(&step);
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
    struct json_object *o = keep(s, json_object_new_object());
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

static struct json_object *all_of(struct schema *s, struct json_object *x, struct json_object *y)
{
    struct json_object *o = keep(s, json_object_new_object());
    struct json_object *list = o ? json_object_new_array() : NULL;
    if (!o || !list)
        return NULL;
    const int bad = json_object_array_add(list, json_object_get(x)) ||
                    json_object_array_add(list, json_object_get(y)) ||
                    json_object_object_add(o, "allOf", list);
    if (bad)
        grammar_g_nomem(s->b);
    return bad ? NULL : o;
}

static struct json_object *merge_properties(struct schema *s, struct json_object *x,
                                            struct json_object *y)
{
    struct json_object *o = keep(s, json_object_new_object());
    if (!o || !json_object_is_type(x, json_type_object) || !json_object_is_type(y, json_type_object))
        return o;
    json_object_object_foreach(x, key, value)
    {
        struct json_object *other = get(y, key);
        struct json_object *both =
            other && !json_object_equal(value, other) ? all_of(s, value, other) : value;
        if (!grammar_g_ok(s->b) || !put(s, o, key, both))
            return NULL;
    }
    json_object_object_foreach(y, name, rest)
    {
        if (!get(x, name) && !put(s, o, name, rest))
            return NULL;
    }
    return o;
}

static bool list_has(struct json_object *list, struct json_object *v)
{
    for (size_t i = 0; i < json_object_array_length(list); i++)
        if (json_object_equal(json_object_array_get_idx(list, i), v))
            return true;
    return false;
}

/* both: what x and y share; else x and what only y has. */
static struct json_object *merge_lists(struct schema *s, struct json_object *x,
                                       struct json_object *y, bool both)
{
    struct json_object *o = keep(s, json_object_new_array());
    for (size_t i = 0; o && i < json_object_array_length(x); i++) {
        struct json_object *v = json_object_array_get_idx(x, i);
        if (!both || list_has(y, v))
            json_object_array_add(o, json_object_get(v));
    }
    for (size_t i = 0; o && !both && i < json_object_array_length(y); i++) {
        struct json_object *v = json_object_array_get_idx(y, i);
        if (!list_has(x, v))
            json_object_array_add(o, json_object_get(v));
    }
    return o;
}

static bool type_allows(struct json_object *type, const char *name)
{
    if (json_object_is_type(type, json_type_string))
        return strcmp(json_object_get_string(type), name) == 0;
    for (size_t i = 0; json_object_is_type(type, json_type_array) && i < json_object_array_length(type); i++)
        if (type_allows(json_object_array_get_idx(type, i), name))
            return true;
    return false;
}

static struct json_object *merge_types(struct schema *s, struct json_object *x,
                                       struct json_object *y)
{
    static const char *const all[] = {"object", "array",  "string", "integer",
                                      "number", "boolean", "null"};
    struct json_object *o = keep(s, json_object_new_array());
    for (size_t i = 0; o && i < sizeof all / sizeof *all; i++) {
        const bool integer = strcmp(all[i], "integer") == 0;
        const bool in_x = type_allows(x, all[i]) || (integer && type_allows(x, "number"));
        const bool in_y = type_allows(y, all[i]) || (integer && type_allows(y, "number"));
        const bool number = integer && type_allows(x, "number") && type_allows(y, "number");
        if (in_x && in_y && !number)
            json_object_array_add(o, json_object_new_string(all[i]));
    }
    return o;
}

/* additionalProperties: the stricter one. */
static struct json_object *merge_more(struct schema *s, struct json_object *x,
                                      struct json_object *y)
{
    const bool x_bool = json_object_is_type(x, json_type_boolean);
    const bool y_bool = json_object_is_type(y, json_type_boolean);
    if (x_bool)
        return json_object_get_boolean(x) ? y : x;
    if (y_bool)
        return json_object_get_boolean(y) ? x : y;
    return all_of(s, x, y);
}

static bool one_of(const char *k, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], k) == 0)
            return true;
    return false;
}

/* Whole numbers: their least common multiple, as long as it fits; NULL for others. */
static struct json_object *merge_steps(struct schema *s, struct json_object *x, struct json_object *y)
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
    return keep(s, json_object_new_int64(one / a * two));
}

static struct json_object *merge_keyword(struct schema *s, const char *k, struct json_object *x,
                                         struct json_object *y, const struct schema_path *at)
{
    static const char *const low[] = {"minimum", "exclusiveMinimum", "minLength", "minItems"};
    static const char *const high[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems"};
    const bool arrays =
        json_object_is_type(x, json_type_array) && json_object_is_type(y, json_type_array);
    if (json_object_equal(x, y))
        return x;
    if (one_of(k, low, 4))
        return json_object_get_double(x) >= json_object_get_double(y) ? x : y;
    if (one_of(k, high, 4))
        return json_object_get_double(x) <= json_object_get_double(y) ? x : y;
    if (strcmp(k, "properties") == 0)
        return merge_properties(s, x, y);
    if (strcmp(k, "required") == 0 && arrays)
        return merge_lists(s, x, y, false);
    if (strcmp(k, "enum") == 0 && arrays)
        return merge_lists(s, x, y, true);
    if (strcmp(k, "type") == 0)
        return merge_types(s, x, y);
    if (strcmp(k, "additionalProperties") == 0)
        return merge_more(s, x, y);
    if (strcmp(k, "items") == 0)
        return all_of(s, x, y);
    struct json_object *step = strcmp(k, "multipleOf") == 0 ? merge_steps(s, x, y) : NULL;
    if (step || !grammar_g_ok(s->b))
        return step;
    grammar_s_fail(s, INGLE_UNSUP, at, "two different '%.40s' in one 'allOf' are not supported", k);
    return NULL;
}

/* x forbids properties that it does not list itself. */
static bool refuses(struct json_object *x, struct json_object *y)
{
    struct json_object *more = get(x, "additionalProperties"), *own = get(x, "properties");
    struct json_object *other = get(y, "properties");
    if (!json_object_is_type(more, json_type_boolean) || json_object_get_boolean(more) || !other)
        return false;
    json_object_object_foreach(other, key, value)
    {
        (void)value;
        if (!get(own, key))
            return true;
    }
    return false;
}

struct json_object *grammar_s_merge(struct schema *s, struct json_object *x, struct json_object *y,
                                 const struct schema_path *at)
{
    if (json_object_is_type(x, json_type_boolean))
        return json_object_get_boolean(x) ? y : x;
    if (json_object_is_type(y, json_type_boolean))
        return json_object_get_boolean(y) ? x : y;
    if (!json_object_is_type(x, json_type_object) || !json_object_is_type(y, json_type_object)) {
        grammar_s_fail(s, INGLE_ARG, at, "a schema is no object");
        return NULL;
    }
    if (refuses(x, y) || refuses(y, x)) {
        grammar_s_fail(s, INGLE_UNSUP, at,
                    "'additionalProperties': false next to other properties in one 'allOf' is not supported");
        return NULL;
    }
    struct json_object *o = grammar_s_without(s, x, "");
    if (!o)
        return NULL;
    json_object_object_foreach(y, key, value)
    {
        struct json_object *own = get(o, key);
        if (grammar_s_is_note(key))
            continue;
        struct json_object *both = own ? merge_keyword(s, key, own, value, at) : value;
        if (!grammar_g_ok(s->b) || (both != own && !put(s, o, key, both)))
            return NULL;
    }
    return o;
}

struct json_object *grammar_s_flatten(struct schema *s, struct json_object *v,
                                   const struct schema_path *at, int depth)
{
    struct json_object *ref = get(v, "$ref"), *list = get(v, "allOf");
    if (depth == MERGE_DEPTH) {
        grammar_s_fail(s, INGLE_LIMIT, at, "'$ref' and 'allOf' nest deeper than the limit of %d",
                    MERGE_DEPTH);
        return NULL;
    }
    if (!ref && !list)
        return v;
    struct json_object *o = grammar_s_without(s, v, "allOf");
    if (o)
        json_object_object_del(o, "$ref");
    if (ref && o) {
        struct json_object *target = grammar_s_resolve(s, ref, at);
        target = target ? grammar_s_flatten(s, target, at, depth + 1) : NULL;
        o = target ? grammar_s_merge(s, target, o, at) : NULL;
    }
    if (list && !json_object_is_type(list, json_type_array)) {
        grammar_s_fail(s, INGLE_ARG, at, "'allOf' is no array");
        return NULL;
    }
    for (size_t i = 0; o && list && i < json_object_array_length(list); i++) {
        struct json_object *x =
            grammar_s_flatten(s, json_object_array_get_idx(list, i), at, depth + 1);
        o = x ? grammar_s_merge(s, o, x, at) : NULL;
    }
    return o;
}
