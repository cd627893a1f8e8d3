/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/form.h"

#include "base/mem.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

#define QUOTE "<|\"|>"

static bool is_json(const struct grammar_form *f)
{
    return f->kind == FORM_JSON || f->kind == FORM_DSML;
}

int32_t grammar_f_mark_id(const struct tokenizer *t, const char *spelling)
{
    const int32_t id = t ? text_find(t, spelling, strlen(spelling)) : -1;
    const enum text_token_type type = id >= 0 ? text_token_type(t, id) : TEXT_NORMAL;
    return type == TEXT_CONTROL || type == TEXT_USER_DEFINED ? id : -1;
}

struct grammar_piece grammar_f_mark(struct grammar_form *f, const char *spelling)
{
    const int32_t id = grammar_f_mark_id(f->t, spelling);
    return id >= 0 ? grammar_g_token(f->b, id) : grammar_g_word(f->b, spelling);
}

/* The rule of something that many places share; *fresh: its body is still to be made. */
static uint32_t shared(struct grammar_form *f, enum form_shared what, const char *name, bool *fresh)
{
    *fresh = !f->shared[what];
    if (*fresh)
        f->shared[what] = grammar_g_rule(f->b, name, strlen(name)) + 1;
    return f->shared[what] - 1;
}

struct grammar_piece grammar_f_space(struct grammar_form *f)
{
    bool fresh;
    if (!is_json(f))
        return grammar_g_empty(f->b);
    const uint32_t rule = shared(f, SHARED_SPACE, "space", &fresh);
    if (fresh) {
        struct grammar_class blank = {0};
        grammar_g_range(f->b, &blank, ' ', ' ');
        grammar_g_range(f->b, &blank, '\t', '\t');
        struct grammar_piece line =
            grammar_g_cat(f->b, grammar_g_word(f->b, "\n"),
                       grammar_g_repeat(f->b, grammar_g_class(f->b, &blank), 0, 20));
        grammar_g_body(f->b, rule,
                    grammar_g_opt(f->b, grammar_g_alt(f->b, grammar_g_word(f->b, " "), line)));
        grammar_g_class_release(&blank);
    }
    return grammar_g_call(f->b, rule);
}

/* ---- strings ---- */

struct form_mark grammar_f_forbidden(enum form_kind kind)
{
    switch (kind) {
    case FORM_GEMMA:
        return (struct form_mark){{'<', '|', '"'}, 3};
    case FORM_DSML:
    case FORM_RAW:
        return (struct form_mark){{'<', '/', 0xFF5C}, 3};
    case FORM_JSON:
        break;
    }
    return (struct form_mark){{0}, 0};
}

void grammar_f_plain_chars(struct grammar_form *f, struct grammar_class *out)
{
    grammar_g_range(f->b, out, 0x20, 0x7E);
    grammar_g_range(f->b, out, 0x80, 0x10FFFF);
    if (is_json(f)) {
        grammar_g_without(f->b, out, '"', '"');
        grammar_g_without(f->b, out, '\\', '\\');
    } else {
        grammar_g_range(f->b, out, '\t', '\n');
        grammar_g_range(f->b, out, '\r', '\r');
    }
}

static struct grammar_piece one_of(struct grammar_builder *b, const char *bytes)
{
    struct grammar_class c = {0};
    for (; *bytes; bytes++)
        grammar_g_range(b, &c, (unsigned char)*bytes, (unsigned char)*bytes);
    const struct grammar_piece p = grammar_g_class(b, &c);
    grammar_g_class_release(&c);
    return p;
}

static struct grammar_piece hex(struct grammar_builder *b, uint32_t n)
{
    struct grammar_piece p = grammar_g_empty(b);
    while (n--)
        p = grammar_g_cat(b, p, one_of(b, "0123456789abcdefABCDEF"));
    return p;
}

/* \n, \", and \u with four digits or, beyond them, a pair of surrogates. */
static struct grammar_piece escape(struct grammar_builder *b)
{
    const struct grammar_piece one =
        grammar_g_cat(b, one_of(b, "0123456789abcABCefEF"), hex(b, 3));
    const struct grammar_piece low =
        grammar_g_cat(b, grammar_g_cat(b, one_of(b, "dD"), one_of(b, "01234567")), hex(b, 2));
    struct grammar_piece pair =
        grammar_g_cat(b, grammar_g_cat(b, one_of(b, "dD"), one_of(b, "89abAB")), hex(b, 2));
    pair = grammar_g_cat(b, pair, grammar_g_word(b, "\\u"));
    pair = grammar_g_cat(b, pair, grammar_g_cat(b, one_of(b, "dD"), one_of(b, "cdefCDEF")));
    pair = grammar_g_cat(b, pair, hex(b, 2));
    const struct grammar_piece u = grammar_g_cat(
        b, grammar_g_word(b, "u"), grammar_g_alt(b, grammar_g_alt(b, one, low), pair));
    return grammar_g_cat(b, grammar_g_word(b, "\\"), grammar_g_alt(b, one_of(b, "\"\\/bfnrt"), u));
}

/* A string's characters as an automaton whose state q says how many characters of the
 * forbidden mark were just read. */
struct string_body {
    struct grammar_form *f;
    struct form_mark mark;
    bool counted;
    uint32_t at[3]; /* the LOOP or SPLIT of each state: out, or one more character */
};

static void lead_to(struct string_body *s, struct grammar_piece p, int state)
{
    struct grammar_builder *b = s->f->b;
    const uint32_t to =
        s->counted ? grammar_g_node(b, GRAMMAR_COUNT, s->at[state], 0) : s->at[state];
    grammar_g_tie(b, p, to);
}

static struct grammar_piece single(struct grammar_builder *b, uint32_t cp)
{
    struct grammar_class c = {0};
    grammar_g_range(b, &c, cp, cp);
    const struct grammar_piece p = grammar_g_class(b, &c);
    grammar_g_class_release(&c);
    return p;
}

/* All characters in state q, as the start of one more. */
static uint32_t more_chars(struct string_body *s, int q)
{
    struct grammar_builder *b = s->f->b;
    struct grammar_class c = {0};
    grammar_f_plain_chars(s->f, &c);
    if (s->mark.n) {
        grammar_g_without(b, &c, s->mark.cp[0], s->mark.cp[0]);
        grammar_g_without(b, &c, s->mark.cp[q], s->mark.cp[q]);
    }
    struct grammar_piece p = grammar_g_class(b, &c);
    grammar_g_class_release(&c);
    uint32_t in = p.in;
    lead_to(s, p, 0);
    if (is_json(s->f)) {
        p = escape(b);
        lead_to(s, p, 0);
        in = grammar_g_node(b, GRAMMAR_SPLIT, in, p.in);
    }
    if (s->mark.n) {
        p = single(b, s->mark.cp[0]);
        lead_to(s, p, 1);
        in = grammar_g_node(b, GRAMMAR_SPLIT, in, p.in);
    }
    if (q > 0 && q + 1 < s->mark.n) {
        p = single(b, s->mark.cp[q]);
        lead_to(s, p, q + 1);
        in = grammar_g_node(b, GRAMMAR_SPLIT, in, p.in);
    }
    return in;
}

/* A rule for the inside of a string. */
static uint32_t string_body(struct grammar_form *f, uint32_t min, uint32_t max)
{
    struct grammar_builder *b = f->b;
    struct string_body s = {.f = f, .mark = grammar_f_forbidden(f->kind)};
    s.counted = min > 0 || max != GRAMMAR_INFINITE;
    const int n = s.mark.n ? s.mark.n : 1;
    const uint32_t rule = grammar_g_rule(b, "characters", 10);
    for (int q = 0; q < n; q++)
        s.at[q] = grammar_g_node(b, s.counted ? GRAMMAR_LOOP : GRAMMAR_SPLIT, 0, 0);
    for (int q = 0; q < n; q++) {
        const uint32_t in = more_chars(&s, q);
        if (grammar_g_ok(b))
            b->g->node[s.at[q]].a = in;
    }
    if (grammar_g_ok(b)) {
        b->g->rule[rule].start = s.at[0];
        b->g->rule[rule].min = min;
        b->g->rule[rule].max = max;
    }
    return rule;
}

struct grammar_piece grammar_f_quoted(struct grammar_form *f, struct grammar_piece inner)
{
    struct grammar_builder *b = f->b;
    if (f->kind == FORM_RAW)
        return inner;
    if (f->kind == FORM_GEMMA) {
        inner = grammar_g_cat(b, grammar_f_mark(f, QUOTE), inner);
        return grammar_g_cat(b, inner, grammar_f_mark(f, QUOTE));
    }
    return grammar_g_cat(b, grammar_g_cat(b, grammar_g_word(b, "\""), inner),
                         grammar_g_word(b, "\""));
}

struct grammar_piece grammar_f_string(struct grammar_form *f, uint32_t min, uint32_t max)
{
    bool fresh;
    if (min > 0 || max != GRAMMAR_INFINITE)
        return grammar_f_quoted(f, grammar_g_call(f->b, string_body(f, min, max)));
    const uint32_t rule = shared(f, SHARED_STRING, "string", &fresh);
    if (fresh)
        grammar_g_body(f->b, rule,
                       grammar_f_quoted(f, grammar_g_call(f->b, string_body(f, 0, max))));
    return grammar_g_call(f->b, rule);
}

/* p (if it is any text), or that part of c that is written as one escape after a backslash. */
static struct grammar_piece or_escaped(struct grammar_form *f, const struct grammar_class *c,
                                       struct grammar_piece p, bool any)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    struct grammar_builder *b = f->b;
    for (size_t k = 0; plain[k]; k++)
        for (size_t i = 0; i < c->n; i++)
            if (c->at[i].first <= (uint32_t)plain[k] && c->at[i].last >= (uint32_t)plain[k]) {
                const char text[2] = {'\\', letter[k]};
                const struct grammar_piece e = grammar_g_literal(b, text, 2);
                p = any ? grammar_g_alt(b, e, p) : e;
                any = true;
            }
    return p;
}

struct grammar_piece grammar_f_char_of(struct grammar_form *f, struct grammar_class *c)
{
    struct grammar_builder *b = f->b;
    struct grammar_class plain = {0}, inside = {0};
    const struct form_mark mark = grammar_f_forbidden(f->kind);
    grammar_g_sorted(b, c);
    grammar_f_plain_chars(f, &plain);
    if (mark.n) /* without its last character the mark cannot be written */
        grammar_g_without(b, &plain, mark.cp[mark.n - 1], mark.cp[mark.n - 1]);
    grammar_g_sorted(b, &plain);
    for (size_t i = 0; i < plain.n; i++)
        for (size_t j = 0; j < c->n && grammar_g_ok(b); j++) {
            const struct grammar_range x = plain.at[i], y = c->at[j];
            grammar_g_range(b, &inside, x.first > y.first ? x.first : y.first,
                         x.last < y.last ? x.last : y.last);
        }
    struct grammar_piece p = grammar_g_class(b, &inside);
    if (is_json(f))
        p = or_escaped(f, c, p, inside.n > 0);
    grammar_g_class_release(&plain);
    grammar_g_class_release(&inside);
    return p;
}

/* ---- names ---- */

static bool is_bare(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x80 && !(name[i] >= 'a' && name[i] <= 'z') &&
            !(name[i] >= 'A' && name[i] <= 'Z') && !(name[i] >= '0' && name[i] <= '9') &&
            !strchr("_-.$@/", name[i]))
            return false;
    return n > 0;
}

/* A string as JSON writes it, in the least way. */
static struct grammar_piece json_text(struct grammar_builder *b, const char *s, size_t n)
{
    struct str json;
    str_init(&json);
    str_add_json(&json, s, n);
    if (!str_ok(&json))
        grammar_g_nomem(b);
    const struct grammar_piece p = grammar_g_literal(b, json.at, json.n);
    str_release(&json);
    return p;
}

static bool holds_mark(enum form_kind kind, const char *s, size_t n)
{
    const struct form_mark mark = grammar_f_forbidden(kind);
    char bytes[12];
    size_t len = 0;
    for (int i = 0; i < mark.n; i++)
        len += utf8_encode(mark.cp[i], bytes + len);
    for (size_t i = 0; len && i + len <= n; i++)
        if (memcmp(s + i, bytes, len) == 0)
            return true;
    return false;
}

static struct grammar_piece exact_text(struct grammar_form *f, const char *s, size_t n)
{
    if (holds_mark(f->kind, s, n))
        grammar_g_fail(f->b, INGLE_UNSUP,
                       "a text in the schema holds the model's own marker '%.40s'", s);
    return is_json(f) ? json_text(f->b, s, n) : grammar_f_quoted(f, grammar_g_literal(f->b, s, n));
}

struct grammar_piece grammar_f_name(struct grammar_form *f, const char *name, size_t n)
{
    struct grammar_builder *b = f->b;
    struct grammar_piece p;
    if (f->kind == FORM_GEMMA && !n)
        grammar_g_fail(b, INGLE_UNSUP, "a property without a name cannot be written in a call");
    if (f->kind == FORM_GEMMA && is_bare(name, n))
        p = grammar_g_literal(b, name, n);
    else
        p = exact_text(f, name, n);
    p = grammar_g_cat(b, p, grammar_g_word(b, ":"));
    return grammar_g_cat(b, p, grammar_f_space(f));
}

/* The names that must not be met, as a tree by characters; node 0 is the root.  They are added in
 * their order, so that only the last child of a node is looked at. */
struct name_tree {
    struct name_node {
        uint32_t cp, child, last, sibling; /* 0: none */
        bool ends;
    } *at;
    size_t n, cap;
};

static void tree_add(struct grammar_builder *b, struct name_tree *t, const char *s)
{
    const size_t n = strlen(s);
    uint32_t node = 0;
    for (size_t i = 0; i < n && grammar_g_step(b, 1);) {
        uint32_t cp;
        i += utf8_decode(s + i, n - i, &cp);
        uint32_t c = t->at[node].last;
        if (!c || t->at[c].cp != cp) {
            if (!mem_grow(&t->at, &t->cap, t->n + 1, sizeof *t->at)) {
                grammar_g_nomem(b);
                return;
            }
            t->at[t->n] = (struct name_node){.cp = cp};
            *(c ? &t->at[c].sibling : &t->at[node].child) = (uint32_t)t->n;
            c = t->at[node].last = (uint32_t)t->n++;
        }
        node = c;
    }
    t->at[node].ends = true;
}

static int by_bytes(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

static void tree_add_all(struct grammar_builder *b, struct name_tree *t, struct json_object *names)
{
    const size_t n = (size_t)json_object_object_length(names);
    const char **name = mem_calloc(n + 1, sizeof *name);
    size_t k = 0;
    if (!name || !grammar_g_step(b, n)) {
        if (!name)
            grammar_g_nomem(b);
        mem_free(name);
        return;
    }
    json_object_object_foreach(names, key, value)
    {
        (void)value;
        name[k++] = key;
    }
    qsort(name, n, sizeof *name, by_bytes);
    for (size_t i = 0; i < n && grammar_g_ok(b); i++)
        tree_add(b, t, name[i]);
    mem_free(name);
}

/* What a free name is made of: JSON without escapes, or a bare word. */
void grammar_f_name_chars(struct grammar_form *f, bool first, struct grammar_class *c)
{
    struct grammar_builder *b = f->b;
    if (f->kind != FORM_GEMMA) {
        grammar_f_plain_chars(f, c);
        if (f->kind == FORM_DSML)
            grammar_g_without(b, c, 0xFF5C, 0xFF5C);
        return;
    }
    grammar_g_range(b, c, 'a', 'z');
    grammar_g_range(b, c, 'A', 'Z');
    grammar_g_range(b, c, '_', '_');
    if (first)
        return;
    grammar_g_range(b, c, '0', '9');
    grammar_g_range(b, c, '-', '-');
}

/* From each node of the tree (later ones first): its characters lead to the children, all
 * others out of the tree; the name may end where no forbidden one does. */
static struct grammar_piece outside_tree(struct grammar_form *f, const struct name_tree *t)
{
    struct grammar_builder *b = f->b;
    struct grammar_class c = {0};
    const struct grammar_piece out = grammar_g_empty(b);
    uint32_t *in = mem_calloc(t->n, sizeof *in);
    if (!in)
        grammar_g_nomem(b);
    grammar_f_name_chars(f, false, &c);
    const struct grammar_piece rest = grammar_g_star(b, grammar_g_class(b, &c));
    grammar_g_tie(b, rest, out.in);
    grammar_g_class_release(&c);
    for (size_t i = t->n; in && i-- > 0 && grammar_g_ok(b);) {
        struct grammar_class taken = {0};
        c = (struct grammar_class){0};
        grammar_f_name_chars(f, i == 0, &c);
        for (uint32_t k = t->at[i].child; k; k = t->at[k].sibling)
            grammar_g_range(b, &taken, t->at[k].cp, t->at[k].cp);
        grammar_g_subtract(b, &c, &taken);
        struct grammar_piece p = grammar_g_class(b, &c);
        grammar_g_class_release(&c);
        grammar_g_class_release(&taken);
        grammar_g_tie(b, p, rest.in);
        in[i] = p.in;
        for (uint32_t k = t->at[i].child; k; k = t->at[k].sibling) {
            p = single(b, t->at[k].cp);
            grammar_g_tie(b, p, in[k]);
            in[i] = grammar_g_node(b, GRAMMAR_SPLIT, in[i], p.in);
        }
        if ((i || f->kind != FORM_GEMMA) && !t->at[i].ends)
            in[i] = grammar_g_node(b, GRAMMAR_SPLIT, in[i], out.in);
    }
    const struct grammar_piece p = {in ? in[0] : out.in, out.out};
    mem_free(in);
    return p;
}

struct grammar_piece grammar_f_other(struct grammar_form *f, struct json_object *but)
{
    struct grammar_builder *b = f->b;
    struct name_tree t = {0};
    if (mem_grow(&t.at, &t.cap, 1, sizeof *t.at))
        t.at[t.n++] = (struct name_node){0};
    else
        grammar_g_nomem(b);
    if (but && grammar_g_ok(b))
        tree_add_all(b, &t, but);
    const struct grammar_piece p = grammar_g_ok(b) ? outside_tree(f, &t) : grammar_g_never(b);
    mem_free(t.at);
    return p;
}

struct grammar_piece grammar_f_named(struct grammar_form *f, struct grammar_piece p)
{
    struct grammar_builder *b = f->b;
    if (f->kind != FORM_GEMMA)
        p = grammar_f_quoted(f, p);
    return grammar_g_cat(b, grammar_g_cat(b, p, grammar_g_word(b, ":")), grammar_f_space(f));
}

/* ---- values ---- */

static struct grammar_piece exact_members(struct grammar_form *f, struct json_object *v)
{
    struct grammar_builder *b = f->b;
    struct grammar_piece p = grammar_g_cat(b, grammar_g_word(b, "{"), grammar_f_space(f));
    bool any = false;
    json_object_object_foreach(v, key, value)
    {
        if (any)
            p = grammar_g_cat(b, p, grammar_g_cat(b, grammar_g_word(b, ","), grammar_f_space(f)));
        p = grammar_g_cat(b, p, grammar_f_name(f, key, strlen(key)));
        p = grammar_g_cat(b, p, grammar_f_exactly(f, value));
        any = true;
    }
    if (any)
        p = grammar_g_cat(b, p, grammar_f_space(f));
    return grammar_g_cat(b, p, grammar_g_word(b, "}"));
}

static struct grammar_piece exact_items(struct grammar_form *f, struct json_object *v)
{
    struct grammar_builder *b = f->b;
    const size_t n = json_object_array_length(v);
    struct grammar_piece p = grammar_g_cat(b, grammar_g_word(b, "["), grammar_f_space(f));
    for (size_t i = 0; i < n && grammar_g_ok(b); i++) {
        if (i)
            p = grammar_g_cat(b, p, grammar_g_cat(b, grammar_g_word(b, ","), grammar_f_space(f)));
        p = grammar_g_cat(b, p, grammar_f_exactly(f, json_object_array_get_idx(v, i)));
    }
    if (n)
        p = grammar_g_cat(b, p, grammar_f_space(f));
    return grammar_g_cat(b, p, grammar_g_word(b, "]"));
}

struct grammar_piece grammar_f_exactly(struct grammar_form *f, struct json_object *v)
{
    switch (json_object_get_type(v)) {
    case json_type_string:
        return exact_text(f, json_object_get_string(v), (size_t)json_object_get_string_len(v));
    case json_type_object:
        return exact_members(f, v);
    case json_type_array:
        return exact_items(f, v);
    case json_type_null:
    case json_type_boolean:
    case json_type_int:
    case json_type_double:
        break;
    }
    return grammar_g_word(f->b, json_object_to_json_string_ext(v, JSON_C_TO_STRING_PLAIN));
}

static struct grammar_piece digits(struct grammar_builder *b, uint32_t min, uint32_t max)
{
    return grammar_g_repeat(b, grammar_g_byte_range(b, '0', '9'), min, max);
}

/* At most 16 digits: longer ones are no more exact, and a model may not find an end. */
static struct grammar_piece whole_part(struct grammar_builder *b)
{
    const struct grammar_piece p =
        grammar_g_cat(b, grammar_g_byte_range(b, '1', '9'), digits(b, 0, 15));
    return grammar_g_cat(b, grammar_g_opt(b, grammar_g_word(b, "-")),
                         grammar_g_alt(b, grammar_g_word(b, "0"), p));
}

struct grammar_piece grammar_f_integer(struct grammar_form *f)
{
    bool fresh;
    const uint32_t rule = shared(f, SHARED_INTEGER, "integer", &fresh);
    if (fresh)
        grammar_g_body(f->b, rule, whole_part(f->b));
    return grammar_g_call(f->b, rule);
}

struct grammar_piece grammar_f_number(struct grammar_form *f)
{
    bool fresh;
    struct grammar_builder *b = f->b;
    const uint32_t rule = shared(f, SHARED_NUMBER, "number", &fresh);
    if (fresh) {
        const struct grammar_piece fraction =
            grammar_g_cat(b, grammar_g_word(b, "."), digits(b, 1, 16));
        struct grammar_piece power =
            grammar_g_cat(b, one_of(b, "eE"), grammar_g_opt(b, one_of(b, "+-")));
        power = grammar_g_cat(b, power, digits(b, 1, 2));
        struct grammar_piece p = grammar_g_cat(b, whole_part(b), grammar_g_opt(b, fraction));
        grammar_g_body(b, rule, grammar_g_cat(b, p, grammar_g_opt(b, power)));
    }
    return grammar_g_call(b, rule);
}

/* open item, item ... close */
static struct grammar_piece list_of(struct grammar_form *f, const char *open,
                                    struct grammar_piece first, struct grammar_piece other,
                                    const char *close)
{
    struct grammar_builder *b = f->b;
    struct grammar_piece more =
        grammar_g_cat(b, grammar_g_cat(b, grammar_g_word(b, ","), grammar_f_space(f)), other);
    struct grammar_piece some = grammar_g_cat(b, first, grammar_g_star(b, more));
    some = grammar_g_opt(b, grammar_g_cat(b, some, grammar_f_space(f)));
    some = grammar_g_cat(b, grammar_g_cat(b, grammar_g_word(b, open), grammar_f_space(f)), some);
    return grammar_g_cat(b, some, grammar_g_word(b, close));
}

struct grammar_piece grammar_f_any_array(struct grammar_form *f)
{
    bool fresh;
    const uint32_t rule = shared(f, SHARED_ARRAY, "array", &fresh);
    if (fresh)
        grammar_g_body(f->b, rule, list_of(f, "[", grammar_f_any(f), grammar_f_any(f), "]"));
    return grammar_g_call(f->b, rule);
}

struct grammar_piece grammar_f_any_object(struct grammar_form *f)
{
    bool fresh;
    struct grammar_builder *b = f->b;
    const uint32_t rule = shared(f, SHARED_OBJECT, "object", &fresh);
    if (fresh) {
        const uint32_t member = grammar_g_rule(b, "member", 6);
        grammar_g_body(
            b, member,
            grammar_g_cat(b, grammar_f_named(f, grammar_f_other(f, NULL)), grammar_f_any(f)));
        grammar_g_body(b, rule,
                       list_of(f, "{", grammar_g_call(b, member), grammar_g_call(b, member), "}"));
    }
    return grammar_g_call(b, rule);
}

struct grammar_piece grammar_f_any(struct grammar_form *f)
{
    bool fresh;
    struct grammar_builder *b = f->b;
    const uint32_t rule = shared(f, SHARED_VALUE, "value", &fresh);
    if (fresh) {
        struct grammar_piece p = grammar_g_alt(b, grammar_f_any_object(f), grammar_f_any_array(f));
        p = grammar_g_alt(b, p, grammar_f_string(f, 0, GRAMMAR_INFINITE));
        p = grammar_g_alt(b, p, grammar_f_number(f));
        p = grammar_g_alt(b, p, grammar_g_word(b, "true"));
        p = grammar_g_alt(b, p, grammar_g_word(b, "false"));
        grammar_g_body(b, rule, grammar_g_alt(b, p, grammar_g_word(b, "null")));
    }
    return grammar_g_call(b, rule);
}

ingle_status grammar_json(struct grammar **out, struct err *err)
{
    struct grammar_builder b;
    struct grammar_work work = {0};
    struct grammar_form f = {.b = &b, .kind = FORM_JSON};
    const ingle_status st = grammar_g_begin(&b, &work, err);
    if (st)
        return st;
    const uint32_t root = grammar_g_rule(&b, "root", 4);
    grammar_g_body(&b, root, grammar_f_any_object(&f));
    return grammar_g_end(&b, root, out);
}
