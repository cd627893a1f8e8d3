/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_value - whether a value that a schema names (enum, const) is valid under the rest of it.
 */
#include "grammar/schema.h"
#include "grammar/schema_value.h"

#include "base/mem.h"
#include "grammar/match.h"
#include <math.h>
#include <string.h>

enum { CHECK_DEPTH = 128 };

static struct json_object *get(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    return json_object_object_get_ex(o, key, &v) ? v : NULL;
}

static bool is_number(struct json_object *v)
{
    return json_object_is_type(v, json_type_int) || json_object_is_type(v, json_type_double);
}

static bool fail(struct schema_check *c, ingle_status st, const char *text)
{
    grammar_s_fail(c->s, st, c->at, "%s", text);
    return false;
}

/* ---- of one type ---- */

static bool is_called(struct json_object *v, const char *type)
{
    switch (json_object_get_type(v)) {
    case json_type_null:
        return strcmp(type, "null") == 0;
    case json_type_boolean:
        return strcmp(type, "boolean") == 0;
    case json_type_int:
        return strcmp(type, "integer") == 0 || strcmp(type, "number") == 0;
    case json_type_double:
        return strcmp(type, "number") == 0 ||
               (strcmp(type, "integer") == 0 &&
                !(floor(json_object_get_double(v)) < json_object_get_double(v)));
    case json_type_string:
        return strcmp(type, "string") == 0;
    case json_type_array:
        return strcmp(type, "array") == 0;
    case json_type_object:
        return strcmp(type, "object") == 0;
    }
    return false;
}

static bool is_of_type(struct json_object *v, struct json_object *type,
                       struct json_object *nullable)
{
    if (!v && json_object_is_type(nullable, json_type_boolean) && json_object_get_boolean(nullable))
        return true;
    if (json_object_is_type(type, json_type_string))
        return is_called(v, json_object_get_string(type));
    bool any = !json_object_is_type(type, json_type_array);
    for (size_t i = 0; !any && i < json_object_array_length(type); i++) {
        struct json_object *t = json_object_array_get_idx(type, i);
        any = json_object_is_type(t, json_type_string) && is_called(v, json_object_get_string(t));
    }
    return any;
}

static bool number_fits(struct json_object *schema, double x)
{
    struct json_object *low = get(schema, "minimum"), *high = get(schema, "maximum");
    struct json_object *above = get(schema, "exclusiveMinimum"),
                       *below = get(schema, "exclusiveMaximum");
    struct json_object *step = get(schema, "multipleOf");
    /* draft 4 has booleans, which are about the others */
    const bool not_low =
        json_object_is_type(above, json_type_boolean) && json_object_get_boolean(above);
    const bool not_high =
        json_object_is_type(below, json_type_boolean) && json_object_get_boolean(below);
    const double l = json_object_get_double(low), h = json_object_get_double(high);
    if (is_number(low) && (x < l || (not_low && x <= l)))
        return false;
    if (is_number(high) && (x > h || (not_high && x >= h)))
        return false;
    if ((is_number(above) && x <= json_object_get_double(above)) ||
        (is_number(below) && x >= json_object_get_double(below)))
        return false;
    if (!is_number(step))
        return true;
    const double q = x / json_object_get_double(step);
    return fabs(q - round(q)) <= 1e-9 * fmax(1, fabs(q));
}

static bool count_fits(struct json_object *schema, const char *min, const char *max, size_t n)
{
    struct json_object *low = get(schema, min), *high = get(schema, max);
    return !(is_number(low) && (double)n < json_object_get_double(low)) &&
           !(is_number(high) && (double)n > json_object_get_double(high));
}

void grammar_s_check_end(struct schema_check *c)
{
    grammar_matcher_free(c->matcher);
    grammar_free(c->grammar);
    c->matcher = NULL;
    c->grammar = NULL;
}

/* Of one pattern alone: another would have to be compiled for each value. */
static bool matches(struct schema_check *c, const char *pattern, bool whole, const char *text,
                    size_t n)
{
    static const struct grammar_vocab none = {.n_words = 1};
    struct err err;
    size_t taken = 0;
    ingle_status st = INGLE_OK;
    if (c->pattern && strcmp(c->pattern, pattern) != 0)
        return fail(c, INGLE_UNSUP, "several patterns beside 'enum' or 'const' are not supported");
    if (!c->pattern) {
        struct grammar_builder b;
        c->pattern = pattern;
        st = grammar_g_begin(&b, c->s->b->work, &err);
        if (!st) {
            const uint32_t root = grammar_g_rule(&b, "pattern", 7);
            grammar_g_body(
                &b, root,
                grammar_f_regex(&b, NULL, pattern, strlen(pattern), whole, 0, GRAMMAR_INFINITE));
            st = grammar_g_end(&b, root, &c->grammar);
        }
        if (!st)
            st = grammar_matcher_create(&c->matcher, c->grammar, &none, &err);
    }
    if (!st && !c->matcher)
        return false;
    if (!st)
        st = grammar_matcher_reset(c->matcher, &err);
    if (!st)
        st = grammar_matcher_accept_bytes(c->matcher, text, n, &taken, &err);
    if (st)
        return fail(c, st, err.msg);
    (void)grammar_g_step(c->s->b, c->matcher->n_steps);
    return taken == n && grammar_matcher_may_end(c->matcher);
}

bool grammar_s_matches(struct schema_check *c, const char *pattern, const char *text, size_t n)
{
    return matches(c, pattern, false, text, n);
}

static bool string_fits(struct schema_check *c, struct json_object *schema, struct json_object *v)
{
    struct json_object *pattern = get(schema, "pattern"), *format = get(schema, "format");
    const char *text = json_object_get_string(v);
    const size_t n_bytes = (size_t)json_object_get_string_len(v);
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++)
        n += ((uint8_t)text[i] & 0xC0) != 0x80;
    if (!count_fits(schema, "minLength", "maxLength", n))
        return false;
    if (json_object_is_type(pattern, json_type_string))
        return matches(c, json_object_get_string(pattern), false, text, n_bytes);
    const char *known = json_object_is_type(format, json_type_string)
                            ? grammar_s_format(json_object_get_string(format))
                            : NULL;
    return !known || matches(c, known, true, text, n_bytes);
}

/* ---- of many values ---- */

static bool allows(struct schema_check *c, struct json_object *schema, struct json_object *v,
                   int depth);

static bool is_unique(struct schema_check *c, struct json_object *list)
{
    struct schema_set set = {0};
    grammar_s_set_add_all(c->s->b, &set, list);
    const bool unique = set.n == json_object_array_length(list);
    grammar_s_set_release(&set);
    return unique;
}

static bool array_fits(struct schema_check *c, struct json_object *schema, struct json_object *v,
                       int depth)
{
    struct json_object *prefix = get(schema, "prefixItems"), *items = get(schema, "items");
    if (json_object_is_type(items, json_type_array)) {
        prefix = items;
        items = get(schema, "additionalItems");
    }
    const size_t n = json_object_array_length(v);
    const size_t n_prefix =
        json_object_is_type(prefix, json_type_array) ? json_object_array_length(prefix) : 0;
    bool fits = count_fits(schema, "minItems", "maxItems", n) &&
                (!json_object_get_boolean(get(schema, "uniqueItems")) || is_unique(c, v));
    for (size_t i = 0; i < n && fits; i++) {
        struct json_object *of = i < n_prefix ? json_object_array_get_idx(prefix, i) : items;
        fits = !of || allows(c, of, json_object_array_get_idx(v, i), depth + 1);
    }
    return fits;
}

static bool object_fits(struct schema_check *c, struct json_object *schema, struct json_object *v,
                        int depth)
{
    struct json_object *needed = get(schema, "required"), *properties = get(schema, "properties");
    struct json_object *more = get(schema, "additionalProperties");
    bool fits = true;
    if (json_object_is_type(needed, json_type_array) &&
        !grammar_g_step(c->s->b, 4 * json_object_array_length(needed)))
        return false;
    for (size_t i = 0;
         json_object_is_type(needed, json_type_array) && i < json_object_array_length(needed);
         i++) {
        const char *name = json_object_get_string(json_object_array_get_idx(needed, i));
        fits = fits && (!name || json_object_object_get_ex(v, name, NULL));
    }
    json_object_object_foreach(v, key, value)
    {
        struct json_object *of = NULL;
        if (!json_object_is_type(properties, json_type_object) ||
            !json_object_object_get_ex(properties, key, &of))
            of = more;
        fits = fits && (!of || allows(c, of, value, depth + 1));
    }
    return fits;
}

/* ---- a schema ---- */

bool grammar_s_lists(struct schema *s, struct json_object *list, struct json_object *v)
{
    struct schema_set *set = grammar_s_map_get(&s->sets, list);
    if (!set) {
        set = mem_zalloc(sizeof *set);
        if (!set) {
            grammar_g_nomem(s->b);
            return false;
        }
        grammar_s_map_put(s->b, &s->sets, list, set);
        if (!grammar_g_ok(s->b)) {
            mem_free(set);
            return false;
        }
        grammar_s_set_add_all(s->b, set, list);
    }
    return grammar_s_set_has(s->b, set, v);
}

static bool is_named(struct schema *s, struct json_object *schema, struct json_object *v,
                     bool enums)
{
    struct json_object *constant = NULL, *list = get(schema, "enum");
    if (json_object_object_get_ex(schema, "const", &constant) && !grammar_s_same(s->b, constant, v))
        return false;
    return !enums || !json_object_is_type(list, json_type_array) || grammar_s_lists(s, list, v);
}

/* How many of a keyword's schemas allow v; *n_all: of so many. */
static size_t count(struct schema_check *c, struct json_object *schema, const char *key,
                    struct json_object *v, int depth, size_t *n_all)
{
    struct json_object *list = get(schema, key);
    size_t n = 0;
    *n_all = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    for (size_t i = 0; i < *n_all; i++)
        n += allows(c, json_object_array_get_idx(list, i), v, depth + 1);
    return n;
}

static bool combined(struct schema_check *c, struct json_object *schema, struct json_object *v,
                     int depth)
{
    size_t n_all, n = count(c, schema, "allOf", v, depth, &n_all);
    if (n < n_all)
        return false;
    n = count(c, schema, "anyOf", v, depth, &n_all);
    if (n_all && !n)
        return false;
    n = count(c, schema, "oneOf", v, depth, &n_all);
    if (n_all && n != 1)
        return false;
    struct json_object *ref = get(schema, "$ref"), *not = get(schema, "not");
    if (not && allows(c, not, v, depth + 1))
        return false;
    if (!ref)
        return true;
    struct json_object *target = grammar_s_resolve(c->s, ref, c->at);
    return target && allows(c, target, v, depth + 1);
}

static bool of_its_type(struct schema_check *c, struct json_object *schema, struct json_object *v,
                        int depth)
{
    if (!is_of_type(v, get(schema, "type"), get(schema, "nullable")))
        return false;
    if (is_number(v))
        return number_fits(schema, json_object_get_double(v));
    if (json_object_is_type(v, json_type_string))
        return string_fits(c, schema, v);
    if (json_object_is_type(v, json_type_array))
        return array_fits(c, schema, v, depth);
    return !json_object_is_type(v, json_type_object) || object_fits(c, schema, v, depth);
}

static bool allows(struct schema_check *c, struct json_object *schema, struct json_object *v,
                   int depth)
{
    if (!grammar_g_ok(c->s->b))
        return false;
    if (json_object_is_type(schema, json_type_boolean))
        return json_object_get_boolean(schema);
    if (!json_object_is_type(schema, json_type_object))
        return fail(c, INGLE_ARG, "a schema is neither an object nor a boolean");
    if (depth > CHECK_DEPTH)
        return fail(c, INGLE_LIMIT, "'enum' or 'const' nests too deep to be checked");
    if (!grammar_g_step(c->s->b, 8 + 4 * (uint64_t)json_object_object_length(schema)))
        return false;
    json_object_object_foreach(schema, key, unused)
    {
        (void)unused;
        if (grammar_s_is_refused(key) ||
            (grammar_s_is_unchecked(key) && json_object_is_type(v, json_type_object)))
            grammar_s_leave(c->s, c->at, "'%s' beside 'enum' or 'const' is not supported", key);
        if (!grammar_g_ok(c->s->b))
            return false;
    }
    return is_named(c->s, schema, v, depth > 0) && of_its_type(c, schema, v, depth) &&
           combined(c, schema, v, depth);
}

bool grammar_s_allows(struct schema_check *c, struct json_object *schema, struct json_object *v)
{
    return allows(c, schema, v, 0) && grammar_g_ok(c->s->b);
}
