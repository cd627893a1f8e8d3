/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_gbnf - llama.cpp's notation for grammars. */
#include "grammar/build.h"
#include "grammar/impl.h"

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include <string.h>

struct name {
    const char *at;
    size_t n;
    uint32_t rule;
    int line; /* of its first mention */
    bool defined;
};

struct gbnf {
    struct grammar_builder b;
    const struct tokenizer *t;
    const char *at, *end;
    int line;
    struct name *name;
    size_t n_names, cap_names;
    uint32_t *slot; /* name + 1; 0: empty */
    size_t n_slots;
};

static void bad(struct gbnf *p, const char *what)
{
    grammar_g_fail(&p->b, INGLE_ARG, "grammar line %d: %s", p->line, what);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static bool next_is(const struct gbnf *p, char c)
{
    return p->at < p->end && *p->at == c;
}

/* White space and comments; line feeds only where lines is set. */
static void skip(struct gbnf *p, bool lines)
{
    for (; p->at < p->end; p->at++) {
        if (*p->at == '#')
            while (p->at < p->end && *p->at != '\n')
                p->at++;
        if (p->at == p->end)
            return;
        if (*p->at == '\n' && lines)
            p->line++;
        else if (*p->at != ' ' && *p->at != '\t' && *p->at != '\r')
            return;
    }
}

/* ---- names ---- */

static uint32_t hash(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h ^ h >> 15;
}

static bool grow_names(struct gbnf *p)
{
    const size_t n = p->n_slots ? 2 * p->n_slots : 64;
    uint32_t *slot = mem_calloc(n, sizeof *slot);
    if (!slot)
        return false;
    for (size_t i = 0; i < p->n_names; i++) {
        size_t at = hash(p->name[i].at, p->name[i].n) & (n - 1);
        while (slot[at])
            at = (at + 1) & (n - 1);
        slot[at] = (uint32_t)i + 1;
    }
    mem_free(p->slot);
    p->slot = slot;
    p->n_slots = n;
    return true;
}

/* The index of a name, which is made on its first mention.  0 after a failure. */
static size_t name_of(struct gbnf *p, const char *s, size_t n)
{
    if (2 * (p->n_names + 1) > p->n_slots && !grow_names(p)) {
        grammar_g_nomem(&p->b);
        return 0;
    }
    size_t at = hash(s, n) & (p->n_slots - 1);
    for (; p->slot[at]; at = (at + 1) & (p->n_slots - 1)) {
        const struct name *x = &p->name[p->slot[at] - 1];
        if (x->n == n && memcmp(x->at, s, n) == 0)
            return p->slot[at] - 1;
    }
    if (!mem_grow(&p->name, &p->cap_names, p->n_names + 1, sizeof *p->name)) {
        grammar_g_nomem(&p->b);
        return 0;
    }
    p->name[p->n_names] =
        (struct name){.at = s, .n = n, .rule = grammar_g_rule(&p->b, s, n), .line = p->line};
    p->slot[at] = (uint32_t)p->n_names + 1;
    return p->n_names++;
}

static size_t read_name(struct gbnf *p, const char **s)
{
    *s = p->at;
    while (p->at < p->end && is_word(*p->at))
        p->at++;
    return (size_t)(p->at - *s);
}

/* ---- characters ---- */

static uint32_t read_hex(struct gbnf *p, int n)
{
    uint32_t cp = 0;
    for (int i = 0; i < n; i++, p->at++) {
        const int v = p->at < p->end ? str_hex_value(*p->at) : -1;
        if (v < 0) {
            bad(p, "an escape needs more hexadecimal digits");
            return 0;
        }
        cp = cp << 4 | (uint32_t)v;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        bad(p, "an escape is no Unicode character");
    return cp;
}

static uint32_t read_escape(struct gbnf *p)
{
    const char c = p->at < p->end ? *p->at++ : 0;
    switch (c) {
    case 'x':
        return read_hex(p, 2);
    case 'u':
        return read_hex(p, 4);
    case 'U':
        return read_hex(p, 8);
    case 't':
        return '\t';
    case 'r':
        return '\r';
    case 'n':
        return '\n';
    default:
        if (c && strchr("\\\"[]^-'/.()|*+?{}<>#$", c))
            return (uint32_t)c;
        bad(p, "unknown escape in a literal or class");
        return 0;
    }
}

static uint32_t read_char(struct gbnf *p)
{
    uint32_t cp;
    if (*p->at == '\\') {
        p->at++;
        return read_escape(p);
    }
    if (*p->at == '\n')
        p->line++;
    p->at += utf8_decode(p->at, (size_t)(p->end - p->at), &cp);
    if (cp == UTF8_BAD)
        bad(p, "ill-formed UTF-8");
    return cp;
}

static struct grammar_piece read_literal(struct gbnf *p)
{
    struct str s;
    str_init(&s);
    p->at++;
    while (grammar_g_ok(&p->b) && !next_is(p, '"')) {
        char utf8[4];
        if (p->at == p->end) {
            bad(p, "a literal has no closing quote");
            break;
        }
        const uint32_t cp = read_char(p);
        if (grammar_g_ok(&p->b))
            str_add(&s, utf8, utf8_encode(cp, utf8));
    }
    p->at += p->at < p->end;
    if (!str_ok(&s))
        grammar_g_nomem(&p->b);
    const struct grammar_piece x = grammar_g_literal(&p->b, s.at, s.n);
    str_release(&s);
    return x;
}

static struct grammar_piece read_class(struct gbnf *p)
{
    struct grammar_class c = {0};
    p->at++;
    const bool inverse = next_is(p, '^');
    p->at += inverse;
    while (grammar_g_ok(&p->b) && !next_is(p, ']')) {
        if (p->at == p->end) {
            bad(p, "a character class has no closing ]");
            break;
        }
        const uint32_t first = read_char(p);
        uint32_t last = first;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            last = read_char(p);
        }
        if (grammar_g_ok(&p->b) && last < first)
            bad(p, "a range of a character class ends before it begins");
        grammar_g_range(&p->b, &c, first, last);
    }
    p->at += p->at < p->end;
    if (inverse)
        grammar_g_invert(&p->b, &c);
    const struct grammar_piece x = grammar_g_class(&p->b, &c);
    grammar_g_class_release(&c);
    return x;
}

static struct grammar_piece any_char(struct gbnf *p)
{
    struct grammar_class c = {0};
    p->at++;
    grammar_g_invert(&p->b, &c);
    const struct grammar_piece x = grammar_g_class(&p->b, &c);
    grammar_g_class_release(&c);
    return x;
}

/* <spelling> or <[id]> */
static struct grammar_piece read_token(struct gbnf *p)
{
    const char *close = memchr(p->at, '>', (size_t)(p->end - p->at));
    int32_t id = -1;
    if (!close || memchr(p->at, '\n', (size_t)(close - p->at)))
        bad(p, "a token has no closing >");
    else if (p->at[1] == '[') {
        int64_t v = 0;
        const char *s = p->at + 2;
        for (; s < close && *s >= '0' && *s <= '9' && v <= INT32_MAX; s++)
            v = 10 * v + (*s - '0');
        if (s == p->at + 2 || *s != ']' || s + 1 != close || v > INT32_MAX)
            bad(p, "a token in <[ ]> is no number");
        else
            id = (int32_t)v;
    } else if (p->t) {
        id = text_find(p->t, p->at, (size_t)(close + 1 - p->at));
    }
    if (grammar_g_ok(&p->b) &&
        (id < 0 || (p->t && (size_t)id >= text_n_tokens(p->t))))
        grammar_g_fail(&p->b, INGLE_ARG, "grammar line %d: the vocabulary has no token '%.*s'",
                       p->line, close - p->at < 80 ? (int)(close - p->at) + 1 : 80, p->at);
    p->at = close ? close + 1 : p->end;
    return grammar_g_token(&p->b, id);
}

/* ---- rules ---- */

static struct grammar_piece read_alternatives(struct gbnf *p, int depth);

static struct grammar_piece read_group(struct gbnf *p, int depth)
{
    if (depth == GRAMMAR_MAX_NESTING) {
        grammar_g_fail(&p->b, INGLE_LIMIT,
                       "grammar line %d: groups nest deeper than the limit of %d", p->line,
                       GRAMMAR_MAX_NESTING);
        return (struct grammar_piece){0};
    }
    p->at += p->at < p->end;
    skip(p, true);
    const struct grammar_piece x = read_alternatives(p, depth + 1);
    if (grammar_g_ok(&p->b) && !next_is(p, ')'))
        bad(p, "a group has no closing )");
    p->at += p->at < p->end;
    return x;
}

static struct grammar_piece read_element(struct gbnf *p, int depth)
{
    switch (*p->at) {
    case '"':
        return read_literal(p);
    case '[':
        return read_class(p);
    case '.':
        return any_char(p);
    case '<':
        return read_token(p);
    case '(':
        return read_group(p, depth);
    default: {
        const char *s;
        const size_t n = read_name(p, &s);
        const size_t i = name_of(p, s, n);
        return grammar_g_call(&p->b, grammar_g_ok(&p->b) ? p->name[i].rule : 0);
    }
    }
}

static uint32_t read_number(struct gbnf *p)
{
    uint64_t v = 0;
    const char *from = p->at;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        v = v > GRAMMAR_MAX_REPEAT ? v : 10 * v + (uint64_t)(*p->at - '0');
    if (p->at == from)
        bad(p, "a repetition has no number");
    else if (v > GRAMMAR_MAX_REPEAT)
        grammar_g_fail(&p->b, INGLE_LIMIT, "grammar line %d: a repetition is above the limit of %d",
                    p->line, GRAMMAR_MAX_REPEAT);
    skip(p, false);
    return (uint32_t)v;
}

static struct grammar_piece read_braces(struct gbnf *p, struct grammar_piece x)
{
    p->at++;
    skip(p, false);
    const uint32_t min = read_number(p);
    uint32_t max = min;
    if (next_is(p, ',')) {
        p->at++;
        skip(p, false);
        max = next_is(p, '}') ? GRAMMAR_INFINITE : read_number(p);
    }
    if (grammar_g_ok(&p->b) && !next_is(p, '}'))
        bad(p, "a repetition has no closing }");
    else if (grammar_g_ok(&p->b) && max < min)
        bad(p, "a repetition ends below its beginning");
    p->at += p->at < p->end;
    return grammar_g_ok(&p->b) ? grammar_g_repeat(&p->b, x, min, max) : x;
}

static struct grammar_piece read_postfix(struct gbnf *p, struct grammar_piece x, bool *more)
{
    *more = true;
    switch (p->at < p->end ? *p->at : 0) {
    case '*':
        p->at++;
        return grammar_g_star(&p->b, x);
    case '+':
        p->at++;
        return grammar_g_plus(&p->b, x);
    case '?':
        p->at++;
        return grammar_g_opt(&p->b, x);
    case '{':
        return read_braces(p, x);
    default:
        *more = false;
        return x;
    }
}

static bool at_element(const struct gbnf *p)
{
    return p->at < p->end && *p->at && (is_word(*p->at) || strchr("\"[.<(", *p->at));
}

static struct grammar_piece read_sequence(struct gbnf *p, int depth)
{
    struct grammar_piece all = grammar_g_empty(&p->b);
    while (grammar_g_ok(&p->b) && at_element(p)) {
        struct grammar_piece x = read_element(p, depth);
        for (bool more = true; more && grammar_g_ok(&p->b);) {
            skip(p, depth > 0);
            x = read_postfix(p, x, &more);
        }
        all = grammar_g_cat(&p->b, all, x);
    }
    return all;
}

static struct grammar_piece read_alternatives(struct gbnf *p, int depth)
{
    struct grammar_piece x = read_sequence(p, depth);
    while (grammar_g_ok(&p->b)) {
        if (depth == 0) { /* the next line may go on with another alternative */
            const char *at = p->at;
            const int line = p->line;
            skip(p, true);
            if (!next_is(p, '|')) {
                p->at = at;
                p->line = line;
            }
        }
        if (!next_is(p, '|'))
            break;
        p->at++;
        skip(p, true);
        x = grammar_g_alt(&p->b, x, read_sequence(p, depth));
    }
    return x;
}

static void read_rule(struct gbnf *p)
{
    const char *s;
    const size_t n = read_name(p, &s);
    if (!n) {
        bad(p, "expected the name of a rule");
        return;
    }
    const size_t i = name_of(p, s, n);
    skip(p, false);
    if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0)
        grammar_g_fail(&p->b, INGLE_ARG, "grammar line %d: no '::=' after rule '%.*s'", p->line,
                    n < 80 ? (int)n : 80, s);
    else if (grammar_g_ok(&p->b) && p->name[i].defined)
        grammar_g_fail(&p->b, INGLE_ARG, "grammar line %d: rule '%.*s' is defined twice", p->line,
                    n < 80 ? (int)n : 80, s);
    if (!grammar_g_ok(&p->b))
        return;
    p->at += 3;
    skip(p, true);
    p->name[i].defined = true;
    const struct grammar_piece x = read_alternatives(p, 0);
    grammar_g_body(&p->b, p->name[i].rule, x);
    if (grammar_g_ok(&p->b) && p->at < p->end && *p->at != '\n')
        grammar_g_fail(&p->b, INGLE_ARG, "grammar line %d: rule '%.*s': unexpected '%.1s'", p->line,
                    n < 80 ? (int)n : 80, s, *p->at < 0x7F && *p->at > ' ' ? p->at : "?");
}

static uint32_t read_all(struct gbnf *p)
{
    skip(p, true);
    while (grammar_g_ok(&p->b) && p->at < p->end) {
        read_rule(p);
        skip(p, true);
    }
    for (size_t i = 0; i < p->n_names && grammar_g_ok(&p->b); i++) {
        const struct name *x = &p->name[i];
        if (!x->defined)
            grammar_g_fail(&p->b, INGLE_ARG, "grammar line %d: rule '%.*s' is not defined", x->line,
                        x->n < 80 ? (int)x->n : 80, x->at);
    }
    if (!grammar_g_ok(&p->b))
        return 0;
    const size_t n = p->n_names, root = name_of(p, "root", 4);
    if (grammar_g_ok(&p->b) && root == n)
        grammar_g_fail(&p->b, INGLE_ARG, "the grammar has no rule 'root'");
    return grammar_g_ok(&p->b) ? p->name[root].rule : 0;
}

ingle_status grammar_gbnf(struct grammar **out, const struct tokenizer *t, const char *text,
                          size_t n, struct grammar_work *work, struct err *err)
{
    struct grammar_work own = {0};
    struct gbnf p = {.t = t, .at = text, .end = text + n, .line = 1};
    if (n > GRAMMAR_TEXT_BYTES)
        return err_set(err, INGLE_LIMIT, "a grammar of %zu bytes is above the limit of %d", n,
                       GRAMMAR_TEXT_BYTES);
    const ingle_status st = grammar_g_begin(&p.b, work ? work : &own, err);
    if (st)
        return st;
    const uint32_t root = read_all(&p);
    mem_free(p.name);
    mem_free(p.slot);
    return grammar_g_end(&p.b, root, out);
}
