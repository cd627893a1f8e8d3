/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_object - objects of a schema: which members they have, and in which order. */
#include "grammar/schema.h"
#include "grammar/schema_members.h"
#include "grammar/schema_value.h"

#include "base/json.h"
#include "base/mem.h"
#include <string.h>

static void check_object(struct schema *s, struct json_object *v, const struct schema_path *at)
{
    struct json_object *properties = json_member(v, "properties"),
                       *required = json_member(v, "required");
    if (properties && !json_object_is_type(properties, json_type_object))
        grammar_s_fail(s, INGLE_ARG, at, "'properties' is no object");
    if (required && !json_object_is_type(required, json_type_array))
        grammar_s_fail(s, INGLE_ARG, at, "'required' is no array");
    if (!grammar_g_ok(s->b))
        return; /* json-c aborts when it is asked for the length of another kind */
    const size_t n = (properties ? (size_t)json_object_object_length(properties) : 0) +
                     (required ? json_object_array_length(required) : 0);
    if (grammar_g_ok(s->b) && n > GRAMMAR_MAX_RULES)
        grammar_s_fail(s, INGLE_LIMIT, at,
                       "%zu properties and required names are above the limit of %d", n,
                       GRAMMAR_MAX_RULES);
    for (size_t i = 0; grammar_g_ok(s->b) && required && i < json_object_array_length(required);
         i++)
        if (!json_object_is_type(json_object_array_get_idx(required, i), json_type_string))
            grammar_s_fail(s, INGLE_ARG, at, "'required' holds something else than a name");
}

/* The strings of a list as the keys of an object. */
static struct json_object *names_of(struct schema *s, struct json_object *list, size_t n)
{
    struct json_object *o = json_object_new_object();
    for (size_t i = 0; o && i < n && grammar_g_step(s->b, 4); i++)
        if (json_object_object_add(o, json_object_get_string(json_object_array_get_idx(list, i)),
                                   NULL))
            grammar_g_nomem(s->b);
    return o;
}

void grammar_s_members_release(struct schema_members *m)
{
    mem_free(m->at);
    mem_free(m->others);
    json_object_put(m->names);
    *m = (struct schema_members){0};
}

/* The kinds of others: those of patterns, and the rest. */
static void find_others(struct schema *s, struct json_object *v, const struct schema_path *at,
                        struct schema_members *m)
{
    struct json_object *patterns = json_member(v, "patternProperties"),
                       *more = json_member(v, "additionalProperties");
    const struct schema_path here = {at, "patternProperties", 0};
    if (!more)
        more = json_member(v, "unevaluatedProperties");
    const bool is_bool = json_object_is_type(more, json_type_boolean);
    const bool rest = more ? !is_bool || json_object_get_boolean(more)
                           : !json_member(v, "properties") && !patterns;
    if (patterns && !json_object_is_type(patterns, json_type_object))
        grammar_s_fail(s, INGLE_ARG, at, "'patternProperties' is no object");
    const size_t n =
        grammar_g_ok(s->b) && patterns ? (size_t)json_object_object_length(patterns) : 0;
    if (n + 4 > MEET_MAX_PARTS)
        grammar_s_fail(s, INGLE_UNSUP, &here, "%zu patterns are above the limit of %d", n,
                       MEET_MAX_PARTS - 4);
    m->others = mem_calloc(n + 1, sizeof *m->others);
    if (!m->others)
        grammar_g_nomem(s->b);
    if (!m->others || !grammar_g_ok(s->b))
        return;
    if (n) {
        json_object_object_foreach(patterns, key, value)
        {
            m->others[m->n_others++] = (struct schema_other){key, value};
        }
    }
    if (rest)
        m->others[m->n_others++] = (struct schema_other){NULL, is_bool ? NULL : more};
    m->open = m->n_others > 0;
}

/* What a member that is not listed has to be: of all patterns that its name fits; else of the rest.
 * NULL: it cannot be there. */
static struct json_object *schema_of_name(struct schema *s, const struct schema_members *m,
                                          const char *name, struct json_object *own,
                                          const struct schema_path *at)
{
    static const char any[] = "true";
    bool fits_any = false;
    struct json_object *all = own;
    for (size_t i = 0; i < m->n_others && grammar_g_ok(s->b); i++) {
        struct schema_check check = {.s = s, .at = at};
        const struct schema_other *o = &m->others[i];
        if (o->pattern ? !grammar_s_matches(&check, o->pattern, name, strlen(name))
                       : fits_any || own) {
            grammar_s_check_end(&check);
            continue;
        }
        grammar_s_check_end(&check);
        struct json_object *x = o->value ? o->value : grammar_s_keep(s, json_tokener_parse(any));
        all = all && x ? grammar_s_both(s, all, x) : x;
        fits_any = true;
    }
    return all;
}

/* A member of an object, in its place in the list unless the name is there. */
static void add_member(struct schema *s, struct schema_members *m, const char *name,
                       struct json_object *value, bool required)
{
    if (!grammar_g_step(s->b, 4) || json_object_object_get_ex(m->names, name, NULL))
        return;
    if (json_object_object_add(m->names, name, NULL) ||
        !mem_grow(&m->at, &m->cap, m->n + 1, sizeof *m->at)) {
        grammar_g_nomem(s->b);
        return;
    }
    m->at[m->n++] = (struct schema_member){name, value, required};
}

/* Names that "propertyNames" lists are members of their own, any of which may be missing. */
static void add_listed_names(struct schema *s, struct schema_members *m, struct json_object *names,
                             struct json_object *needed, const struct schema_path *at)
{
    struct json_object *list = grammar_s_values_of(s, names, at);
    for (size_t i = 0; list && i < json_object_array_length(list) && grammar_g_ok(s->b); i++) {
        struct json_object *name = json_object_array_get_idx(list, i);
        const char *word = json_object_get_string(name);
        if (!json_object_is_type(name, json_type_string) ||
            strlen(word) != (size_t)json_object_get_string_len(name))
            continue;
        struct json_object *value = schema_of_name(s, m, word, NULL, at);
        if (value)
            add_member(s, m, word, value, json_object_object_get_ex(needed, word, NULL));
    }
    m->n_others = 0;
    m->open = false;
}

/* Whether the names of others come from a list. */
static bool lists_names(struct json_object *names)
{
    return json_member(names, "enum") || json_member(names, "const");
}

/* "propertyNames", flattened; NULL: none that says anything. */
static struct json_object *name_schema(struct schema *s, struct json_object *v,
                                       const struct schema_path *at)
{
    static const char *const known[] = {"type",   "pattern", "minLength", "maxLength",
                                        "format", "enum",    "const"};
    struct json_object *names = json_member(v, "propertyNames");
    names = names ? grammar_s_flatten(s, names, at, 0) : NULL;
    if (json_object_is_type(names, json_type_boolean) || !names)
        return names && !json_object_get_boolean(names) ? names : NULL;
    if (!json_object_is_type(names, json_type_object)) {
        grammar_s_fail(s, INGLE_ARG, at, "'propertyNames' is no schema");
        return NULL;
    }
    if (json_member(names, "enum") &&
        !json_object_is_type(json_member(names, "enum"), json_type_array)) {
        grammar_s_fail(s, INGLE_ARG, at, "'enum' of 'propertyNames' is no array of values");
        return NULL;
    }
    json_object_object_foreach(names, key, value)
    {
        bool is_known = grammar_s_is_note(key);
        (void)value;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known = is_known || strcmp(known[i], key) == 0;
        if (!is_known) {
            grammar_s_leave(s, at, "'%.60s' is not supported for names", key);
            return NULL;
        }
    }
    return names;
}

static bool name_fits(struct schema *s, struct json_object *names, const char *name,
                      const struct schema_path *at)
{
    struct schema_check check = {.s = s, .at = at};
    if (!names)
        return true;
    if (json_object_is_type(names, json_type_boolean))
        return json_object_get_boolean(names);
    struct json_object *text = grammar_s_keep(s, json_object_new_string(name));
    const bool fits =
        text &&
        (!json_member(names, "enum") || grammar_s_lists(s, json_member(names, "enum"), text)) &&
        grammar_s_allows(&check, names, text);
    grammar_s_check_end(&check);
    return fits;
}

static void add_members(struct schema *s, struct json_object *v, const struct schema_path *at,
                        struct schema_members *m)
{
    struct json_object *properties = json_member(v, "properties"),
                       *required = json_member(v, "required");
    const struct schema_path at_names = {at, "propertyNames", 0};
    const size_t n_required = required ? json_object_array_length(required) : 0;
    struct json_object *needed = names_of(s, required, n_required);
    struct json_object *names = name_schema(s, v, &at_names);
    if (!needed)
        grammar_g_nomem(s->b);
    if (properties && grammar_g_ok(s->b)) {
        json_object_object_foreach(properties, key, value)
        {
            const bool must = json_object_object_get_ex(needed, key, NULL);
            if (json_object_is_type(value, json_type_boolean) && !json_object_get_boolean(value) &&
                !must)
                continue;
            if (name_fits(s, names, key, &at_names))
                add_member(s, m, key, m->n_others > 1 || (m->n_others && m->others[0].pattern)
                                          ? schema_of_name(s, m, key, value, at) : value, must);
        }
    }
    if (names && lists_names(names) && m->open && grammar_g_ok(s->b))
        add_listed_names(s, m, names, needed, &at_names);
    else if (json_object_is_type(names, json_type_boolean))
        m->n_others = m->open = 0;
    else
        m->name_schema = names;
    for (size_t i = 0; i < n_required && grammar_g_ok(s->b); i++) {
        const char *name = json_object_get_string(json_object_array_get_idx(required, i));
        if (json_object_object_get_ex(m->names, name, NULL))
            continue;
        struct json_object *value = schema_of_name(s, m, name, NULL, at);
        const bool closed = json_member(v, "additionalProperties") ||
                            json_member(v, "unevaluatedProperties") ||
                            json_member(v, "patternProperties") || names;
        if (!value && closed)
            grammar_s_fail(s, INGLE_ARG, at, "'required' names '%.60s', which cannot be there",
                           name);
        else
            add_member(s, m, name, value, true);
    }
    json_object_put(needed);
}

bool grammar_s_members(struct schema *s, struct json_object *v, const struct schema_path *at,
                    struct schema_members *out)
{
    struct schema_members m = {.names = json_object_new_object()};
    check_object(s, v, at);
    if (!m.names)
        grammar_g_nomem(s->b);
    if (grammar_g_ok(s->b))
        find_others(s, v, at, &m);
    if (grammar_g_ok(s->b))
        add_members(s, v, at, &m);
    if (!grammar_g_ok(s->b))
        grammar_s_members_release(&m);
    *out = m;
    return grammar_g_ok(s->b);
}

struct grammar_piece grammar_s_other_name(struct schema *s, const struct schema_members *m,
                                          size_t i, struct grammar_form *form)
{
    struct form_meeting meet = {.b = s->b};
    const char *own = m->others[i].pattern;
    bool empty;
    if (m->n_others == 1 && !own && !m->name_schema)
        return grammar_f_other(form, m->names);
    for (size_t k = 0; k < m->n_others; k++)
        if (m->others[k].pattern)
            grammar_f_meet_regex(&meet, m->others[k].pattern, strlen(m->others[k].pattern), false,
                                 k != i);
    if (json_object_object_length(m->names))
        grammar_f_meet_words(&meet, m->names, true);
    if (m->name_schema) {
        const struct schema_path at = {NULL, "propertyNames", 0};
        struct json_object *pattern = json_member(m->name_schema, "pattern"),
                           *format = json_member(m->name_schema, "format");
        const char *known = json_object_is_type(format, json_type_string)
                                ? grammar_s_format(json_object_get_string(format))
                                : NULL;
        if (json_object_is_type(pattern, json_type_string))
            grammar_f_meet_regex(&meet, json_object_get_string(pattern),
                                 strlen(json_object_get_string(pattern)), false, false);
        if (known)
            grammar_f_meet_regex(&meet, known, strlen(known), true, false);
        grammar_f_meet_length(
            &meet, grammar_s_count(s, m->name_schema, "minLength", 0, &at),
            grammar_s_count(s, m->name_schema, "maxLength", GRAMMAR_INFINITE, &at));
    }
    return grammar_f_meet_name(&meet, form, &empty);
}

/* A rule for name and value. */
static uint32_t member_rule(struct schema *s, struct grammar_piece name, struct json_object *v,
                            const struct schema_path *at)
{
    const uint32_t rule = grammar_g_rule(s->b, "member", 6);
    const struct grammar_piece value =
        v ? grammar_s_compile(s, v, at, SCHEMA_ALL) : grammar_f_any(s->form);
    grammar_g_body(s->b, rule, grammar_g_cat(s->b, name, value));
    return rule;
}

/* A rule for those that are not listed. */
static uint32_t other_rule(struct schema *s, const struct schema_members *m,
                           const struct schema_path *at)
{
    struct grammar_piece all = {0};
    for (size_t i = 0; i < m->n_others && grammar_g_ok(s->b); i++) {
        const struct grammar_piece name =
            grammar_f_named(s->form, grammar_s_other_name(s, m, i, s->form));
        const uint32_t rule = member_rule(s, name, m->others[i].value, at);
        if (m->n_others == 1)
            return rule;
        const struct grammar_piece p = grammar_g_call(s->b, rule);
        all = i ? grammar_g_alt(s->b, all, p) : p;
    }
    const uint32_t any = grammar_g_rule(s->b, "member", 6);
    grammar_g_body(s->b, any, all);
    return any;
}

/* Two chains of the members, last one first: a comma is due before those of `later`, which
 * stand after at least one member.  rule [m->n]. */
static struct grammar_piece chain_members(struct schema *s, const struct schema_members *m,
                                          const uint32_t *rule, uint32_t other)
{
    struct grammar_builder *b = s->b;
    const struct grammar_piece close = grammar_g_word(b, "}");
    const struct grammar_piece end = grammar_f_space(s->form);
    grammar_g_tie(b, end, close.in);
    uint32_t first = close.in, later = end.in;
    if (m->open) {
        const struct grammar_piece more = grammar_g_star(b, grammar_s_next_item(s, other));
        const struct grammar_piece one = grammar_g_call(b, other);
        grammar_g_tie(b, more, end.in);
        grammar_g_tie(b, one, more.in);
        later = more.in;
        first = grammar_g_node(b, GRAMMAR_SPLIT, one.in, close.in);
    }
    for (size_t i = m->n; i-- > 0 && grammar_g_ok(b);) {
        const struct grammar_piece x = grammar_g_call(b, rule[i]),
                                   y = grammar_s_next_item(s, rule[i]);
        grammar_g_tie(b, x, later);
        grammar_g_tie(b, y, later);
        first = m->at[i].required ? x.in : grammar_g_node(b, GRAMMAR_SPLIT, x.in, first);
        later = m->at[i].required ? y.in : grammar_g_node(b, GRAMMAR_SPLIT, y.in, later);
    }
    const struct grammar_piece open =
        grammar_g_cat(b, grammar_g_word(b, "{"), grammar_f_space(s->form));
    grammar_g_tie(b, open, first);
    return (struct grammar_piece){open.in, close.out};
}

bool grammar_s_any_order(const struct schema *s, const struct schema_members *m)
{
    return s->any_order && m->n <= GRAMMAR_MAX_ONCE;
}

uint32_t grammar_s_required(const struct schema_members *m)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < m->n; i++)
        bits |= (uint32_t)m->at[i].required << i;
    return bits;
}

/* The members in any order, in a rule of their own. */
static struct grammar_piece free_members(struct schema *s, const struct schema_members *m,
                                         const uint32_t *rule, uint32_t other)
{
    struct grammar_builder *b = s->b;
    const uint32_t object = grammar_g_rule(b, "object", 6), all = grammar_s_required(m);
    const uint32_t comma = grammar_g_rule(b, "comma", 5), *others = m->open ? &other : NULL;
    const struct grammar_piece close = grammar_g_word(b, "}"), end = grammar_f_space(s->form);
    const struct grammar_piece open =
        grammar_g_cat(b, grammar_g_word(b, "{"), grammar_f_space(s->form));
    const struct grammar_piece later = grammar_g_empty(b);
    grammar_g_body(b, comma, grammar_g_cat(b, grammar_g_word(b, ","), grammar_f_space(s->form)));
    grammar_g_tie(b, end, close.in);
    grammar_g_tie(b, later,
               grammar_g_node(b, GRAMMAR_SPLIT,
                           grammar_g_any_order(b, rule, m->n, 0, others, &comma, later.in),
                           grammar_g_node(b, GRAMMAR_ALL, end.in, all)));
    grammar_g_tie(b, open,
               grammar_g_node(b, GRAMMAR_SPLIT,
                           grammar_g_any_order(b, rule, m->n, 0, others, NULL, later.in),
                           grammar_g_node(b, GRAMMAR_ALL, close.in, all)));
    grammar_g_body(b, object, (struct grammar_piece){open.in, close.out});
    return grammar_g_call(b, object);
}

struct grammar_piece grammar_s_object(struct schema *s, struct json_object *v,
                                           const struct schema_path *at)
{
    const struct schema_path at_more = {at, "additionalProperties", 0}, up = {at, "properties", 0};
    struct schema_members m;
    uint32_t other = 0;
    if (!grammar_s_members(s, v, at, &m))
        return grammar_g_never(s->b);
    if (!m.n && m.n_others == 1 && !m.others[0].pattern && !m.others[0].value && !m.name_schema) {
        grammar_s_members_release(&m);
        return grammar_f_any_object(s->form);
    }
    uint32_t *rule = mem_calloc(m.n + 1, sizeof *rule);
    if (!rule)
        grammar_g_nomem(s->b);
    for (size_t i = 0; rule && i < m.n && grammar_g_ok(s->b); i++) {
        const struct schema_path here = {&up, m.at[i].name, 0};
        const struct grammar_piece name =
            grammar_f_name(s->form, m.at[i].name, strlen(m.at[i].name));
        rule[i] = member_rule(s, name, m.at[i].value, &here);
    }
    if (m.open && grammar_g_ok(s->b))
        other = other_rule(s, &m, &at_more);
    struct grammar_piece p = grammar_g_never(s->b);
    if (rule && grammar_g_ok(s->b))
        p = grammar_s_any_order(s, &m) ? free_members(s, &m, rule, other)
                                    : chain_members(s, &m, rule, other);
    mem_free(rule);
    grammar_s_members_release(&m);
    return p;
}

