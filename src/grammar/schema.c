/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_schema - JSON schemas to pieces of a grammar.
 *
 * What is compiled is a part of what a schema allows, never more: properties come in the
 * schema's order, and where additionalProperties is not given next to properties there are no
 * others.  Keywords that would have to be ignored for that are refused by name.
 */
#include "grammar/schema.h"
#include "grammar/schema_value.h"

#include "base/json.h"
#include "base/mem.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SCHEMA_DEPTH = 128, SCHEMA_MOST = 200000 };

void grammar_s_init(struct schema *s, struct grammar_builder *b, const struct report_sink *sink)
{
    *s = (struct schema){.b = b, .sink = sink};
}

void grammar_s_release(struct schema *s)
{
    for (size_t i = 0; i < s->sets.n_slots; i++) {
        struct schema_set *set = s->sets.slot[i].value;
        if (set)
            grammar_s_set_release(set);
        mem_free(set);
    }
    grammar_s_map_release(&s->sets);
    grammar_s_map_release(&s->flat);
    grammar_s_map_release(&s->ref_of);
    while (s->n_made)
        json_object_put(s->made[--s->n_made]);
    mem_free(s->made);
    mem_free(s->ref);
}

/* Its beginning is what counts. */
static void put_path(struct str *out, const struct schema_path *at)
{
    enum { MOST_PATH = 240 };
    if (!at)
        return;
    put_path(out, at->up);
    if (out->n >= MOST_PATH)
        return;
    if (at->up)
        str_addc(out, '/');
    if (at->key)
        str_addf(out, "%.*s", MOST_PATH, at->key);
    else
        str_addf(out, "%zu", at->index);
}

/* Each text once, however many places there are; and not more texts than anybody reads. */
static bool is_new(struct schema *s, const char *text)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001B3u;
    for (int i = 0; i < s->n_notes; i++)
        if (s->note[i] == hash)
            return false;
    if (s->n_notes == SCHEMA_MOST_NOTES)
        return false;
    s->note[s->n_notes++] = hash;
    return true;
}

void grammar_s_fail(struct schema *s, ingle_status st, const struct schema_path *at,
                    const char *fmt, ...)
{
    char text[256];
    struct str path;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    str_init(&path);
    put_path(&path, at);
    grammar_g_fail(s->b, st, "schema at '%.160s': %s", path.at, text);
    str_release(&path);
}

void grammar_s_note(struct schema *s, const struct schema_path *at, const char *fmt, ...)
{
    char text[256];
    struct str path;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!is_new(s, text))
        return;
    str_init(&path);
    put_path(&path, at);
    report(s->sink, INGLE_REPORT_WARN, "schema", path.at, "%s", text);
    str_release(&path);
}

void grammar_s_leave(struct schema *s, const struct schema_path *at, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (s->b->work->drop)
        grammar_s_note(s, at, "%s: left out", text);
    else
        grammar_s_fail(s, INGLE_UNSUP, at, "%s", text);
}

/* ---- numbers of keywords ---- */

uint32_t grammar_s_count(struct schema *s, struct json_object *v, const char *key, uint32_t none,
                         const struct schema_path *at)
{
    struct json_object *n = json_member(v, key);
    if (!n)
        return none;
    const double x = json_object_get_double(n);
    const bool number = json_object_is_type(n, json_type_int) ||
                        json_object_is_type(n, json_type_double);
    if (!number || !(x >= 0) || floor(x) < x)
        grammar_s_fail(s, INGLE_ARG, at, "'%s' is no whole number at or above 0", key);
    else if (x > (double)GRAMMAR_MAX_REPEAT)
        grammar_s_fail(s, INGLE_LIMIT, at, "'%s' is above the limit of %d", key,
                       GRAMMAR_MAX_REPEAT);
    return grammar_g_ok(s->b) ? (uint32_t)x : 0;
}

/* A bound from `key`, and `flag`: a bound that excludes itself, or (draft 4) true. */
static struct form_bound bound_of(struct schema *s, struct json_object *v, const char *key,
                                  const char *flag, bool low, const struct schema_path *at)
{
    struct form_bound x = {0};
    struct json_object *plain = json_member(v, key), *strict = json_member(v, flag);
    const bool is_flag = json_object_is_type(strict, json_type_boolean);
    const bool only_flag = is_flag && json_object_get_boolean(strict);
    struct json_object *n = plain;
    bool exclusive = only_flag;
    if (strict && !is_flag) {
        const double a = json_object_get_double(plain), b = json_object_get_double(strict);
        if (!plain || (low ? b >= a : b <= a)) {
            n = strict;
            exclusive = true;
        }
    }
    if (!n)
        return x;
    bool large = false;
    if (!json_object_is_type(n, json_type_int) && !json_object_is_type(n, json_type_double))
        grammar_s_fail(s, INGLE_ARG, at, "'%s' is no number", n == plain ? key : flag);
    else if (grammar_f_bound(&x, json_object_to_json_string_ext(n, JSON_C_TO_STRING_PLAIN), &large))
        x.exclusive = exclusive;
    else if (large &&
             low == (json_object_get_double(n) < 0)) /* it keeps out none that would be written */
        (void)grammar_f_bound(&x, low ? "-1e38" : "1e38", &large);
    else
        grammar_s_leave(s, at, "'%s': a number with more than %d digits on a side is not supported",
                        n == plain ? key : flag, FORM_DIGITS);
    return x;
}

static struct grammar_piece number_between(struct schema *s, const struct form_bound *low,
                                           const struct form_bound *high, bool whole)
{
    if (!grammar_g_ok(s->b) || (!low->set && !high->set))
        return whole ? grammar_f_integer(s->form) : grammar_f_number(s->form);
    return grammar_f_between(s->form, low, high, whole);
}

static struct grammar_piece compile_multiples(struct schema *s, struct json_object *v,
                                              const struct form_bound *low,
                                              const struct form_bound *high, bool whole,
                                              const struct schema_path *at)
{
    const struct form_bound step = bound_of(s, v, "multipleOf", "", true, at);
    struct grammar_piece p = grammar_g_never(s->b);
    if (grammar_g_ok(s->b) && !(json_object_get_double(json_member(v, "multipleOf")) > 0))
        grammar_s_fail(s, INGLE_ARG, at, "'multipleOf' is not above 0");
    if (grammar_g_ok(s->b) &&
        (!step.set || !grammar_f_multiples(s->form, low, high, &step, whole, &p))) {
        grammar_s_leave(s, at,
                        "'multipleOf' with more digits than the limit, here or in the bounds, is "
                        "not supported");
        p = number_between(s, low, high, whole);
    }
    return p;
}

static struct grammar_piece compile_number(struct schema *s, struct json_object *v, bool whole,
                                           const struct schema_path *at)
{
    const struct form_bound low = bound_of(s, v, "minimum", "exclusiveMinimum", true, at);
    const struct form_bound high = bound_of(s, v, "maximum", "exclusiveMaximum", false, at);
    if (json_member(v, "multipleOf") && grammar_g_ok(s->b))
        return compile_multiples(s, v, &low, &high, whole, at);
    return number_between(s, &low, &high, whole);
}

/* ---- strings ---- */

#define DATE                                                                                     \
    "[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|"  \
    "30)|02-(?:0[1-9]|1\\d|2[0-8]))"
#define TIME                                                                                     \
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define DUR_TIME "T(?:\\d{1,4}H(?:\\d{1,4}M(?:\\d{1,4}S)?)?|\\d{1,4}M(?:\\d{1,4}S)?|\\d{1,4}S)"
#define DUR_DATE                                                                                 \
    "(?:\\d{1,4}Y(?:\\d{1,4}M(?:\\d{1,4}D)?)?|\\d{1,4}M(?:\\d{1,4}D)?|\\d{1,4}D)(?:" DUR_TIME ")?"
#define BYTE  "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
/* Four labels of a host's name have at most 253 bytes with their dots, what is in front of an @ 64,
 * and an address 254. */
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,60}[A-Za-z0-9])?"
#define SHORT "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"

const char *grammar_s_format(const char *name)
{
    static const char *const known[][2] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "T" TIME},
        {"duration", "P(?:" DUR_DATE "|" DUR_TIME "|\\d{1,4}W)"},
        {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
        {"ipv4", BYTE "(?:\\." BYTE "){3}"},
        {"ipv6", "[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}"},
        {"hostname", LABEL "(?:\\." LABEL "){0,3}"},
        {"email", "[A-Za-z0-9_%+-]{1,30}(?:\\.[A-Za-z0-9_%+-]{1,16}){0,2}@" SHORT "(?:\\." SHORT
                  "){1,3}"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i][0], name) == 0)
            return known[i][1];
    return NULL;
}

/* What a string has to fit. */
struct string_rules {
    const char *pattern, *format; /* regular expressions; NULL: none */
    uint32_t min, max;
};

/* Bare regular expressions fail without a place.  *left: they are not supported, and this is
 * reported.
 *  */
static struct grammar_piece compile_regex(struct schema *s, const struct string_rules *r,
                                          bool *left, const struct schema_path *at)
{
    struct grammar_builder *b = s->b;
    struct err own = {0};
    struct err *err = b->err;
    struct grammar_piece p;
    bool empty = false;
    b->err = &own;
    if (r->pattern && r->format) {
        struct form_meeting m = {.b = b};
        grammar_f_meet_regex(&m, r->pattern, strlen(r->pattern), false, false);
        grammar_f_meet_regex(&m, r->format, strlen(r->format), true, false);
        grammar_f_meet_length(&m, r->min, r->max);
        p = grammar_f_meet_string(&m, s->form, &empty);
    } else {
        const char *text = r->pattern ? r->pattern : r->format;
        p = grammar_f_regex(b, s->form, text, strlen(text), !r->pattern, r->min, r->max);
    }
    b->err = err;
    const ingle_status st = b->status;
    *left = st == INGLE_UNSUP || empty;
    if (!st && !empty)
        return grammar_f_quoted(s->form, p);
    b->status = INGLE_OK;
    if (r->pattern && r->format && *left)
        return p; /* the pattern will do */
    if (st == INGLE_UNSUP)
        grammar_s_leave(s, at, "%.300s", own.msg);
    else
        grammar_s_fail(s, st, at, "%.300s", own.msg);
    return p;
}

static struct grammar_piece compile_string(struct schema *s, struct json_object *v,
                                           const struct schema_path *at)
{
    struct json_object *pattern = json_member(v, "pattern"), *format = json_member(v, "format");
    struct string_rules r = {.min = grammar_s_count(s, v, "minLength", 0, at),
                             .max = grammar_s_count(s, v, "maxLength", GRAMMAR_INFINITE, at)};
    const struct schema_path at_pattern = {at, "pattern", 0}, at_format = {at, "format", 0};
    struct grammar_piece p = {0};
    bool left = true;
    if (grammar_g_ok(s->b) && r.min > r.max)
        grammar_s_fail(s, INGLE_ARG, at, "'minLength' is above 'maxLength'");
    if (json_object_is_type(format, json_type_string))
        r.format = grammar_s_format(json_object_get_string(format));
    if (format && !r.format)
        grammar_s_note(s, &at_format, "the format '%.60s' is not enforced",
                       json_object_get_string(format));
    if (pattern && !json_object_is_type(pattern, json_type_string))
        grammar_s_fail(s, INGLE_ARG, &at_pattern, "'pattern' is no string");
    r.pattern = pattern ? json_object_get_string(pattern) : NULL;
    if (r.pattern && r.format && grammar_g_ok(s->b)) {
        p = compile_regex(s, &r, &left, &at_pattern);
        if (left && grammar_g_ok(s->b)) {
            const struct string_rules only = {.pattern = r.pattern, .min = r.min, .max = r.max};
            p = compile_regex(s, &only, &left, &at_pattern);
            if (!left)
                grammar_s_note(s, &at_format,
                               "the format '%.60s' is not enforced beside the pattern",
                               json_object_get_string(format));
            r.pattern = NULL;
        }
    } else if (r.pattern && grammar_g_ok(s->b)) {
        p = compile_regex(s, &r, &left, &at_pattern);
        r.pattern = NULL;
    }
    if (left && r.format && !r.pattern && grammar_g_ok(s->b))
        p = compile_regex(s, &r, &left, &at_format);
    if (!grammar_g_ok(s->b))
        return grammar_g_never(s->b);
    return left ? grammar_f_string(s->form, r.min, r.max) : p;
}

/* ---- arrays ---- */

struct grammar_piece grammar_s_next_item(struct schema *s, uint32_t rule)
{
    struct grammar_builder *b = s->b;
    return grammar_g_cat(b, grammar_g_cat(b, grammar_g_word(b, ","), grammar_f_space(s->form)),
                      grammar_g_call(b, rule));
}

/* [ inner ], and [] where inner may be missing. */
static struct grammar_piece in_brackets(struct schema *s, struct grammar_piece inner, bool missing)
{
    struct grammar_builder *b = s->b;
    inner = grammar_g_cat(b, inner, grammar_f_space(s->form));
    if (missing)
        inner = grammar_g_opt(b, inner);
    inner =
        grammar_g_cat(b, grammar_g_cat(b, grammar_g_word(b, "["), grammar_f_space(s->form)), inner);
    return grammar_g_cat(b, inner, grammar_g_word(b, "]"));
}

struct json_object *grammar_s_values_of(struct schema *s, struct json_object *v,
                                        const struct schema_path *at)
{
    static const char few[] = "[true,false,null]";
    v = v ? grammar_s_flatten(s, v, at, 0) : NULL;
    struct json_object *list = json_member(v, "enum"), *type = json_member(v, "type"), *all = NULL,
                       *constant = NULL;
    struct schema_set set = {0};
    struct schema_check check = {.s = s, .at = at};
    if (json_object_object_get_ex(v, "const", &constant)) {
        all = json_object_new_array();
        if (!all || json_object_array_add(all, json_object_get(constant)))
            grammar_g_nomem(s->b);
    } else if (json_object_is_type(list, json_type_array)) {
        all = json_object_get(list);
    } else if (json_object_is_type(type, json_type_string) && !json_member(v, "anyOf") &&
               !json_member(v, "oneOf") &&
               (strcmp(json_object_get_string(type), "boolean") == 0 ||
                strcmp(json_object_get_string(type), "null") == 0)) {
        all = json_tokener_parse(few);
    }
    struct json_object *out = all ? grammar_s_keep(s, json_object_new_array()) : NULL;
    for (size_t i = 0; out && i < json_object_array_length(all) && grammar_g_ok(s->b); i++) {
        struct json_object *x = json_object_array_get_idx(all, i);
        if (grammar_s_allows(&check, v, x) && grammar_s_set_add(s->b, &set, x) &&
            json_object_array_add(out, json_object_get(x)))
            grammar_g_nomem(s->b);
    }
    grammar_s_check_end(&check);
    grammar_s_set_release(&set);
    json_object_put(all);
    return grammar_g_ok(s->b) ? out : NULL;
}

/* Items each of which is another one of few values, in a rule of its own, whose counter says which
 * were taken. */
static struct grammar_piece unique_items(struct schema *s, struct json_object *values, uint32_t min,
                                         uint32_t max)
{
    struct grammar_builder *b = s->b;
    const size_t n = json_object_array_length(values);
    const uint32_t array = grammar_g_rule(b, "items", 5), comma = grammar_g_rule(b, "comma", 5);
    const uint32_t most = max < n ? max : 0;
    const struct grammar_piece open =
        grammar_g_cat(b, grammar_g_word(b, "["), grammar_f_space(s->form));
    const struct grammar_piece close = grammar_g_word(b, "]"), end = grammar_f_space(s->form);
    const struct grammar_piece later = grammar_g_empty(b);
    uint32_t rule[GRAMMAR_MAX_ONCE] = {0};
    if (min > n)
        return grammar_g_never(b);
    grammar_g_body(b, comma, grammar_g_cat(b, grammar_g_word(b, ","), grammar_f_space(s->form)));
    for (size_t i = 0; i < n; i++) {
        rule[i] = grammar_g_rule(b, "item", 4);
        grammar_g_body(b, rule[i],
                       grammar_f_exactly(s->form, json_object_array_get_idx(values, i)));
    }
    grammar_g_tie(b, end, close.in);
    grammar_g_tie(b, later,
                  grammar_g_node(b, GRAMMAR_SPLIT,
                                 grammar_g_any_order(b, rule, n, most, NULL, &comma, later.in),
                                 grammar_g_node(b, GRAMMAR_LEAST, end.in, min)));
    const uint32_t some = grammar_g_any_order(b, rule, n, most, NULL, NULL, later.in);
    grammar_g_tie(b, open, min ? some : grammar_g_node(b, GRAMMAR_SPLIT, some, close.in));
    grammar_g_body(b, array, (struct grammar_piece){open.in, close.out});
    return grammar_g_call(b, array);
}

static struct grammar_piece compile_array(struct schema *s, struct json_object *v,
                                          const struct schema_path *at)
{
    struct grammar_builder *b = s->b;
    struct json_object *prefix = json_member(v, "prefixItems"), *items = json_member(v, "items");
    uint32_t min = grammar_s_count(s, v, "minItems", 0, at);
    const uint32_t max = grammar_s_count(s, v, "maxItems", GRAMMAR_INFINITE, at);
    const struct schema_path at_items = {at, "items", 0};
    if (json_object_is_type(items, json_type_array)) { /* as older drafts have it */
        prefix = items;
        items = json_member(v, "additionalItems");
    }
    if (!items)
        items = json_member(v, "unevaluatedItems");
    if (prefix && !json_object_is_type(prefix, json_type_array))
        grammar_s_fail(s, INGLE_ARG, at, "'prefixItems' is no array");
    if (grammar_g_ok(b) && min > max)
        grammar_s_fail(s, INGLE_ARG, at, "'minItems' is above 'maxItems'");
    if (!grammar_g_ok(b))
        return grammar_g_never(b);
    if (json_object_get_boolean(json_member(v, "uniqueItems")) && max > 1) {
        struct json_object *values = prefix ? NULL : grammar_s_values_of(s, items, &at_items);
        if (values && json_object_array_length(values) <= GRAMMAR_MAX_ONCE &&
            json_object_array_length(values))
            return unique_items(s, values, min, max);
        if (grammar_g_ok(b))
            grammar_s_leave(s, at,
                            "'uniqueItems' of other items than 1 to %d values is not supported",
                            GRAMMAR_MAX_ONCE);
    }
    if (!prefix && !items && !min && max == GRAMMAR_INFINITE)
        return grammar_f_any_array(s->form);

    const size_t n = prefix ? json_object_array_length(prefix) : 0;
    struct grammar_piece all = grammar_g_empty(b);
    uint32_t done = 0;
    for (size_t i = 0; i < n && done < max && grammar_g_ok(b); i++, done++) {
        const struct schema_path up = {at, "prefixItems", 0}, here = {&up, NULL, i};
        if (i)
            all = grammar_g_cat(b, all,
                                grammar_g_cat(b, grammar_g_word(b, ","), grammar_f_space(s->form)));
        all = grammar_g_cat(
            b, all, grammar_s_compile(s, json_object_array_get_idx(prefix, i), &here, SCHEMA_ALL));
    }
    const bool closed =
        json_object_is_type(items, json_type_boolean) && !json_object_get_boolean(items);
    if (closed && min > n)
        return grammar_g_never(b);
    const bool more = done < max && !closed && (items || !n || min > n);
    if (closed && !n)
        return grammar_g_cat(b, grammar_g_word(b, "["), grammar_g_word(b, "]"));
    if (!more)
        return in_brackets(s, all, done == 0);
    const uint32_t rule = grammar_g_rule(b, "item", 4);
    grammar_g_body(b, rule,
                   items ? grammar_s_compile(s, items, &at_items, SCHEMA_ALL)
                         : grammar_f_any(s->form));
    bool missing = false;
    if (!done) {
        all = grammar_g_call(b, rule);
        missing = min == 0;
        done = 1;
    }
    min = min > done ? min - done : 0;
    all = grammar_g_cat(b, all, grammar_g_repeat(b, grammar_s_next_item(s, rule), min,
                                           max == GRAMMAR_INFINITE ? max : max - done));
    return in_brackets(s, all, missing);
}

/* ---- schemas ---- */

static bool wants(enum schema_part part, bool string)
{
    return part == SCHEMA_ALL || (part == SCHEMA_STRINGS) == string;
}

static struct grammar_piece compile_anything(struct schema *s, enum schema_part part)
{
    struct grammar_builder *b = s->b;
    if (part == SCHEMA_ALL)
        return grammar_f_any(s->form);
    if (part == SCHEMA_STRINGS)
        return grammar_f_string(s->form, 0, GRAMMAR_INFINITE);
    struct grammar_piece p =
        grammar_g_alt(b, grammar_f_any_object(s->form), grammar_f_any_array(s->form));
    p = grammar_g_alt(b, p, grammar_f_number(s->form));
    p = grammar_g_alt(b, p, grammar_g_word(b, "true"));
    p = grammar_g_alt(b, p, grammar_g_word(b, "false"));
    return grammar_g_alt(b, p, grammar_g_word(b, "null"));
}

static struct grammar_piece compile_type(struct schema *s, struct json_object *v, const char *type,
                                         const struct schema_path *at, enum schema_part part)
{
    struct grammar_builder *b = s->b;
    if (!wants(part, strcmp(type, "string") == 0))
        return grammar_g_never(b);
    if (strcmp(type, "object") == 0)
        return grammar_s_object(s, v, at);
    if (strcmp(type, "array") == 0)
        return compile_array(s, v, at);
    if (strcmp(type, "string") == 0)
        return compile_string(s, v, at);
    if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
        return compile_number(s, v, type[0] == 'i', at);
    if (strcmp(type, "boolean") == 0)
        return grammar_g_alt(b, grammar_g_word(b, "true"), grammar_g_word(b, "false"));
    if (strcmp(type, "null") == 0)
        return grammar_g_word(b, "null");
    grammar_s_fail(s, INGLE_ARG, at, "'type' is '%.40s', not a type of JSON", type);
    return grammar_g_never(b);
}

/* The type that keywords speak of, or NULL. */
static const char *type_of_keywords(struct json_object *v)
{
    static const char *const word[][2] = {{"properties", "object"},
                                          {"required", "object"},
                                          {"additionalProperties", "object"},
                                          {"patternProperties", "object"},
                                          {"propertyNames", "object"},
                                          {"unevaluatedProperties", "object"},
                                          {"uniqueItems", "array"},
                                          {"unevaluatedItems", "array"},
                                          {"items", "array"},
                                          {"prefixItems", "array"},
                                          {"minItems", "array"},
                                          {"maxItems", "array"},
                                          {"pattern", "string"},
                                          {"format", "string"},
                                          {"minLength", "string"},
                                          {"maxLength", "string"},
                                          {"minimum", "number"},
                                          {"maximum", "number"},
                                          {"exclusiveMinimum", "number"},
                                          {"exclusiveMaximum", "number"},
                                          {"multipleOf", "number"}};
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (json_member(v, word[i][0]))
            return word[i][1];
    return NULL;
}

/* The values of a list that the schema's other keywords allow. */
static struct grammar_piece compile_values(struct schema *s, struct json_object *schema,
                                           struct json_object *list, const struct schema_path *at,
                                           enum schema_part part)
{
    struct grammar_builder *b = s->b;
    struct grammar_piece p = grammar_g_never(b);
    struct schema_check check = {.s = s, .at = at};
    for (size_t i = json_object_array_length(list); i-- > 0 && grammar_g_ok(b);) {
        struct json_object *v = json_object_array_get_idx(list, i);
        if (wants(part, json_object_is_type(v, json_type_string)) &&
            grammar_s_allows(&check, schema, v))
            p = grammar_g_alt(b, grammar_f_exactly(s->form, v), p);
    }
    grammar_s_check_end(&check);
    return p;
}

/* The value of const, if the schema's other keywords (of which enum is one) allow it. */
static struct grammar_piece compile_const(struct schema *s, struct json_object *schema,
                                          struct json_object *v, const struct schema_path *at,
                                          enum schema_part part)
{
    struct schema_check check = {.s = s, .at = at};
    struct json_object *list = json_member(schema, "enum");
    const bool named = !json_object_is_type(list, json_type_array) || grammar_s_lists(s, list, v);
    const bool fits = named && wants(part, json_object_is_type(v, json_type_string)) &&
                      grammar_s_allows(&check, schema, v);
    grammar_s_check_end(&check);
    return fits ? grammar_f_exactly(s->form, v) : grammar_g_never(s->b);
}

static struct grammar_piece compile_any_of(struct schema *s, struct json_object *v,
                                           const char *keyword, const struct schema_path *at,
                                           enum schema_part part)
{
    struct grammar_builder *b = s->b;
    struct json_object *list = json_member(v, keyword);
    const struct schema_path up = {at, keyword, 0};
    struct grammar_piece p = grammar_g_never(b);
    if (!json_object_is_type(list, json_type_array) || !json_object_array_length(list)) {
        grammar_s_fail(s, INGLE_ARG, at, "'%s' is no array of schemas", keyword);
        return p;
    }
    if (keyword[0] == 'o')
        grammar_s_note(s, at, "'oneOf' is read as 'anyOf'");
    const bool has_more = grammar_s_has_more(v, keyword, NULL);
    struct json_object *base = has_more ? grammar_s_without(s, v, keyword) : NULL;
    for (size_t i = 0; i < json_object_array_length(list) && grammar_g_ok(b); i++) {
        const struct schema_path here = {&up, NULL, i};
        struct json_object *x = json_object_array_get_idx(list, i);
        if (base) {
            x = grammar_s_flatten(s, x, &here, 0);
            x = x ? grammar_s_merge(s, base, x, &here) : NULL;
        }
        if (x || grammar_g_ok(b))
            p = grammar_g_alt(b, grammar_s_compile(s, x, &here, part), p);
    }
    return p;
}

static struct grammar_piece compile_ref(struct schema *s, struct json_object *pointer,
                                        const struct schema_path *at, enum schema_part part)
{
    struct json_object *target = grammar_s_resolve(s, pointer, at);
    if (!target)
        return grammar_g_never(s->b);
    const size_t first = (size_t)(uintptr_t)grammar_s_map_get(&s->ref_of, target);
    for (size_t i = first; i; i = s->ref[i - 1].next)
        if (s->ref[i - 1].form == s->form && s->ref[i - 1].part == part)
            return grammar_g_call(s->b, s->ref[i - 1].rule);
    if (!mem_grow(&s->ref, &s->cap_refs, s->n_refs + 1, sizeof *s->ref)) {
        grammar_g_nomem(s->b);
        return grammar_g_never(s->b);
    }
    const char *name = json_object_get_string(pointer);
    const uint32_t rule = grammar_g_rule(s->b, name, strlen(name));
    s->ref[s->n_refs++] = (struct schema_ref){target, name, s->form, part, rule, first};
    grammar_s_map_put(s->b, &s->ref_of, target, (void *)(uintptr_t)s->n_refs);
    return grammar_g_call(s->b, rule);
}

void grammar_s_finish(struct schema *s)
{
    for (; s->n_refs_done < s->n_refs && grammar_g_ok(s->b); s->n_refs_done++) {
        const struct schema_ref r = s->ref[s->n_refs_done];
        const struct schema_path at = {NULL, r.pointer, 0};
        s->form = r.form;
        grammar_g_body(s->b, r.rule, grammar_s_compile(s, r.target, &at, r.part));
    }
}

bool grammar_s_is_refused(const char *keyword)
{
    static const char *const refused[] = {
        "if",           "then",          "else",          "contains",          "minContains",
        "maxContains",  "minProperties", "maxProperties", "dependentRequired", "dependentSchemas",
        "dependencies", "$dynamicRef",   "$recursiveRef"};
    bool is = false;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        is = is || strcmp(refused[i], keyword) == 0;
    return is;
}

bool grammar_s_is_unchecked(const char *k)
{
    return strcmp(k, "patternProperties") == 0 || strcmp(k, "propertyNames") == 0 ||
           strncmp(k, "unevaluated", 11) == 0;
}

static void check_keywords(struct schema *s, struct json_object *v, const struct schema_path *at)
{
    static const char *const known[] = {
        "type", "properties", "required", "additionalProperties", "items", "prefixItems",
        "additionalItems", "minItems", "maxItems", "enum", "const", "anyOf", "oneOf", "allOf",
        "$ref", "minLength", "maxLength", "pattern", "format", "minimum", "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "nullable", "not", "uniqueItems",
        "patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"};
    (void)grammar_g_step(s->b, 4 * (uint64_t)json_object_object_length(v));
    json_object_object_foreach(v, key, value)
    {
        bool is_known = grammar_s_is_note(key);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known = is_known || strcmp(known[i], key) == 0;
        (void)value;
        if (grammar_s_is_refused(key))
            grammar_s_leave(s, at, "'%s' is not supported", key);
        else if (!is_known)
            grammar_s_note(s, at, "the keyword '%.60s' is not known and means nothing", key);
    }
}

/* A schema without $ref, allOf, anyOf and oneOf. */
static struct grammar_piece compile_plain(struct schema *s, struct json_object *v,
                                          const struct schema_path *at, enum schema_part part)
{
    struct grammar_builder *b = s->b;
    struct json_object *type = json_member(v, "type"), *list = json_member(v, "enum"),
                       *constant = NULL;
    if (json_object_object_get_ex(v, "const", &constant))
        return compile_const(s, v, constant, at, part);
    if (list && (!json_object_is_type(list, json_type_array) || !json_object_array_length(list))) {
        grammar_s_fail(s, INGLE_ARG, at, "'enum' is no array of values");
        return grammar_g_never(b);
    }
    if (list)
        return compile_values(s, v, list, at, part);
    if (json_object_is_type(type, json_type_string))
        return compile_type(s, v, json_object_get_string(type), at, part);
    if (json_object_is_type(type, json_type_array)) {
        struct grammar_piece p = grammar_g_never(b);
        for (size_t i = json_object_array_length(type); i-- > 0 && grammar_g_ok(b);) {
            struct json_object *t = json_object_array_get_idx(type, i);
            if (!json_object_is_type(t, json_type_string))
                grammar_s_fail(s, INGLE_ARG, at, "'type' holds something else than a name");
            else
                p = grammar_g_alt(b, compile_type(s, v, json_object_get_string(t), at, part), p);
        }
        return p;
    }
    if (type) {
        grammar_s_fail(s, INGLE_ARG, at, "'type' is no name");
        return grammar_g_never(b);
    }
    const char *guess = type_of_keywords(v);
    return guess ? compile_type(s, v, guess, at, part) : compile_anything(s, part);
}

static const char *const json_types[] = {"object",  "array",   "string", "number",
                                         "integer", "boolean", "null"};
enum { N_JSON_TYPES = sizeof json_types / sizeof *json_types };

/* The types that v names, as bits. */
static unsigned types_of(struct json_object *type)
{
    unsigned bits = 0;
    const size_t n =
        json_object_is_type(type, json_type_array) ? json_object_array_length(type) : 1;
    for (size_t i = 0; i < n; i++) {
        struct json_object *t =
            json_object_is_type(type, json_type_array) ? json_object_array_get_idx(type, i) : type;
        for (unsigned k = 0; k < N_JSON_TYPES && json_object_is_type(t, json_type_string); k++)
            if (strcmp(json_object_get_string(t), json_types[k]) == 0)
                bits |= 1u << k;
    }
    return bits;
}

/* "not": everything (then nothing is left: false), types, or whatever enum and const name; *v
 * becomes what is left of it. */
static bool refuse(struct schema *s, struct json_object **v, const struct schema_path *at)
{
    const unsigned number = 1u << 3, integer = 1u << 4;
    struct json_object *not = json_member(*v, "not"), *type = json_member(not, "type");
    const bool is_bool = json_object_is_type(not, json_type_boolean);
    if (is_bool ? json_object_get_boolean(not)
                : json_object_is_type(not, json_type_object) && !grammar_s_has_more(not, "", NULL))
        return false;
    if (json_member(*v, "enum") || json_object_object_get_ex(*v, "const", NULL))
        return true; /* the values are looked at one by one */
    const unsigned out = types_of(type);
    const unsigned all = json_member(*v, "type") ? types_of(json_member(*v, "type"))
                                                 : (1u << N_JSON_TYPES) - 1 - integer;
    *v = grammar_s_without(s, *v, "not");
    if (is_bool || !*v)
        return *v != NULL;
    if (!out || grammar_s_has_more(not, "type", NULL) ||
        (out & integer && !(out & number) && all & number)) {
        grammar_s_leave(s, at, "'not' of anything but types is not supported");
        return true;
    }
    const unsigned left = all & ~out & ~(out & number ? integer : 0u);
    struct json_object *list = grammar_s_keep(s, json_object_new_array());
    for (unsigned k = 0; list && k < N_JSON_TYPES; k++)
        if (left >> k & 1 && json_object_array_add(list, json_object_new_string(json_types[k])))
            grammar_g_nomem(s->b);
    if (list && json_object_object_add(*v, "type", json_object_get(list)))
        grammar_g_nomem(s->b);
    return list && left;
}

static struct grammar_piece compile_object_schema(struct schema *s, struct json_object *v,
                                                  const struct schema_path *at,
                                                  enum schema_part part)
{
    struct json_object *all = json_member(v, "allOf"), *any = json_member(v, "anyOf"),
                       *one = json_member(v, "oneOf");
    check_keywords(s, v, at);
    if (!grammar_g_ok(s->b))
        return grammar_g_never(s->b);
    if (json_member(v, "$ref") && !grammar_s_has_more(v, "$ref", NULL))
        return compile_ref(s, json_member(v, "$ref"), at, part);
    if (json_object_is_type(all, json_type_array) && json_object_array_length(all) == 1 &&
        !grammar_s_has_more(v, "allOf", NULL))
        return grammar_s_compile(s, json_object_array_get_idx(all, 0), at, part);
    if (json_member(v, "$ref") || all) {
        v = grammar_s_flatten(s, v, at, 0);
        return v ? grammar_s_compile(s, v, at, part) : grammar_g_never(s->b);
    }
    if (json_member(v, "not")) {
        if (!refuse(s, &v, at))
            return grammar_g_never(s->b);
    }
    if (any && one)
        grammar_s_leave(s, at, "'oneOf' together with 'anyOf' is not supported");
    if (any || one)
        return compile_any_of(s, v, any ? "anyOf" : "oneOf", at, part);
    return compile_plain(s, v, at, part);
}

struct grammar_piece grammar_s_compile(struct schema *s, struct json_object *v,
                                    const struct schema_path *at, enum schema_part part)
{
    struct grammar_builder *b = s->b;
    struct grammar_piece p = grammar_g_never(b);
    if (!grammar_g_ok(b))
        return p;
    if (json_object_is_type(v, json_type_boolean))
        return json_object_get_boolean(v) ? compile_anything(s, part) : p;
    if (!json_object_is_type(v, json_type_object)) {
        grammar_s_fail(s, INGLE_ARG, at, "a schema is no object");
        return p;
    }
    if (s->depth == SCHEMA_DEPTH || s->n_compiled == SCHEMA_MOST) {
        grammar_s_fail(s, INGLE_LIMIT, at, "the schema %s the limit of %d",
                    s->depth == SCHEMA_DEPTH ? "nests deeper than" : "has more parts than",
                    s->depth == SCHEMA_DEPTH ? SCHEMA_DEPTH : SCHEMA_MOST);
        return p;
    }
    s->depth++;
    s->n_compiled++;
    p = compile_object_schema(s, v, at, part);
    s->depth--;
    struct json_object *nullable = json_member(v, "nullable");
    if (json_object_is_type(nullable, json_type_boolean) && json_object_get_boolean(nullable) &&
        part != SCHEMA_STRINGS)
        p = grammar_g_alt(b, p, grammar_g_word(b, "null"));
    return p;
}

ingle_status grammar_schema(struct grammar **out, const char *text, size_t n,
                                 const struct report_sink *sink, struct grammar_work *work,
                                 struct err *err)
{
    struct grammar_builder b;
    struct grammar_work own = {0};
    struct grammar_form form = {.kind = FORM_JSON};
    struct schema s;
    struct json_object *root = NULL;
    const struct json_limits limits = {.n_bytes = GRAMMAR_TEXT_BYTES,
                                       .n_values = GRAMMAR_TEXT_VALUES};
    const struct schema_path at = {NULL, "#", 0};
    ingle_status st = json_parse(text, n, &limits, &root, err);
    if (st)
        return err_prefix(err, "json schema");
    st = grammar_g_begin(&b, work ? work : &own, err);
    if (st) {
        json_object_put(root);
        return st;
    }
    form.b = &b;
    grammar_s_init(&s, &b, sink);
    s.root = root;
    s.form = &form;
    const uint32_t rule = grammar_g_rule(&b, "root", 4);
    grammar_g_body(&b, rule, grammar_s_compile(&s, root, &at, SCHEMA_ALL));
    grammar_s_finish(&s);
    grammar_s_release(&s);
    json_object_put(root);
    return grammar_g_end(&b, rule, out);
}
