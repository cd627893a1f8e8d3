/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_regex - regular expressions, as ECMAScript writes them, without what is not
 * regular.  Anchors only stand at the ends of the outermost alternatives.
 */
#include "grammar/form.h"

#include "base/num.h"
#include "base/str.h"
#include "base/utf8.h"
#include <string.h>

struct regex {
    struct grammar_builder *b;
    struct grammar_form *f;
    const char *text, *at, *end;
    const char *begin; /* of what is read, which may be a part of text */
    bool here;         /* it begins there, even without ^ */
    int n_ahead;       /* look-aheads around it */
    uint32_t min, max; /* asked for */
};

enum { MOST_AHEAD = 8 };

/* A piece and how many characters its texts have. */
struct part {
    struct grammar_piece p;
    uint64_t min, max; /* max UINT64_MAX: no end */
    bool is_char;
};

static void bad(struct regex *r, ingle_status st, const char *what)
{
    grammar_g_fail(r->b, st, "regular expression '%.60s': %s at byte %zu", r->text, what,
                (size_t)(r->at - r->text));
}

static bool next_is(const struct regex *r, const char *s)
{
    const size_t n = strlen(s);
    return (size_t)(r->end - r->at) >= n && memcmp(r->at, s, n) == 0;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return num_add_u64(a, b, &sum) ? sum : UINT64_MAX;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return num_mul_u64(a, b, &product) ? product : UINT64_MAX;
}

static struct part empty(struct regex *r)
{
    return (struct part){.p = grammar_g_empty(r->b)};
}

static struct part join(struct regex *r, struct part x, struct part y)
{
    return (struct part){grammar_g_cat(r->b, x.p, y.p), plus(x.min, y.min), plus(x.max, y.max),
                         false};
}

static struct part either(struct regex *r, struct part x, struct part y)
{
    return (struct part){grammar_g_alt(r->b, x.p, y.p), x.min < y.min ? x.min : y.min,
                         x.max > y.max ? x.max : y.max, false};
}

/* Takes the class. */
static struct part part_of(struct regex *r, struct grammar_class *c)
{
    const struct part x = {r->f ? grammar_f_char_of(r->f, c) : grammar_g_class(r->b, c), 1, 1,
                           true};
    grammar_g_class_release(c);
    return x;
}

/* ---- characters ---- */

static uint32_t read_hex(struct regex *r, int n)
{
    uint32_t cp = 0;
    for (int i = 0; i < n; i++, r->at++) {
        const int v = r->at < r->end ? str_hex_value(*r->at) : -1;
        if (v < 0) {
            bad(r, INGLE_ARG, "an escape needs more hexadecimal digits");
            return 0;
        }
        cp = cp << 4 | (uint32_t)v;
    }
    return cp;
}

static uint32_t read_unicode(struct regex *r)
{
    uint32_t cp = 0;
    if (r->at < r->end && *r->at == '{') {
        for (r->at++; r->at < r->end && str_hex_value(*r->at) >= 0 && cp <= 0x10FFFF; r->at++)
            cp = cp << 4 | (uint32_t)str_hex_value(*r->at);
        if (r->at == r->end || *r->at != '}')
            bad(r, INGLE_ARG, "\\u{ has no closing }");
        else
            r->at++;
    } else {
        cp = read_hex(r, 4);
        if (cp >= 0xD800 && cp <= 0xDBFF && next_is(r, "\\u")) {
            r->at += 2;
            const uint32_t low = read_hex(r, 4);
            cp = low >= 0xDC00 && low <= 0xDFFF ? 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00)
                                                : 0xD800;
        }
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        bad(r, INGLE_ARG, "an escape is no Unicode character");
    return cp;
}

static void add_spaces(struct regex *r, struct grammar_class *c, bool all)
{
    grammar_g_range(r->b, c, 9, 13);
    grammar_g_range(r->b, c, ' ', ' ');
    if (!all)
        return;
    static const uint32_t more[][2] = {{0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                       {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                       {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        grammar_g_range(r->b, c, more[i][0], more[i][1]);
}

static void add_words(struct regex *r, struct grammar_class *c)
{
    grammar_g_range(r->b, c, '0', '9');
    grammar_g_range(r->b, c, 'A', 'Z');
    grammar_g_range(r->b, c, '_', '_');
    grammar_g_range(r->b, c, 'a', 'z');
}

/* \d and its like.  False: another escape. */
static bool named_class(struct regex *r, char name, struct grammar_class *c)
{
    struct grammar_class own = {0};
    switch (name) {
    case 'd':
    case 'D':
        grammar_g_range(r->b, &own, '0', '9');
        break;
    case 'w':
    case 'W':
        add_words(r, &own);
        break;
    case 's':
    case 'S':
        add_spaces(r, &own, name == 'S');
        break;
    default:
        return false;
    }
    if (name < 'a')
        grammar_g_invert(r->b, &own);
    grammar_g_sorted(r->b, &own);
    for (size_t i = 0; i < own.n; i++)
        grammar_g_range(r->b, c, own.at[i].first, own.at[i].last);
    grammar_g_class_release(&own);
    return true;
}

/* One character after a backslash. */
static uint32_t read_escape(struct regex *r)
{
    static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v";
    const char c = r->at < r->end ? *r->at : 0;
    const char *known = c ? strchr(from, c) : NULL;
    r->at += r->at < r->end;
    if (known)
        return (uint32_t)to[known - from];
    if (c == 'x')
        return read_hex(r, 2);
    if (c == 'u')
        return read_unicode(r);
    r->at--;
    if (c >= '1' && c <= '9')
        bad(r, INGLE_UNSUP, "back-references are not supported");
    else if (c == 'k')
        bad(r, INGLE_UNSUP, "named back-references are not supported");
    else if (c == 'b' || c == 'B')
        bad(r, INGLE_UNSUP, "word boundaries are not supported");
    else if (c == 'p' || c == 'P')
        bad(r, INGLE_UNSUP, "\\p classes are not supported");
    else if (!c || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 0x80)
        bad(r, INGLE_ARG, "unknown escape");
    r->at++;
    return (unsigned char)c;
}

static uint32_t read_char(struct regex *r)
{
    uint32_t cp;
    r->at += utf8_decode(r->at, (size_t)(r->end - r->at), &cp);
    if (cp == UTF8_BAD)
        bad(r, INGLE_ARG, "ill-formed UTF-8");
    return cp;
}

/* A character of a class, or false: a named class was added. */
static bool class_char(struct regex *r, struct grammar_class *c, uint32_t *cp)
{
    if (*r->at != '\\') {
        *cp = read_char(r);
        return true;
    }
    r->at++;
    if (r->at < r->end && named_class(r, *r->at, c)) {
        r->at++;
        return false;
    }
    if (r->at < r->end && *r->at == 'b') {
        r->at++;
        *cp = 8;
        return true;
    }
    *cp = read_escape(r);
    return true;
}

static struct part read_class(struct regex *r)
{
    struct grammar_class c = {0};
    r->at++;
    const bool inverse = next_is(r, "^");
    r->at += inverse;
    while (grammar_g_ok(r->b) && !next_is(r, "]")) {
        uint32_t first, last;
        if (r->at == r->end) {
            bad(r, INGLE_ARG, "a class has no closing ]");
            break;
        }
        if (!class_char(r, &c, &first))
            continue;
        last = first;
        if (r->end - r->at >= 2 && r->at[0] == '-' && r->at[1] != ']') {
            r->at++;
            if (!class_char(r, &c, &last)) {
                grammar_g_range(r->b, &c, '-', '-');
                last = first;
            }
        }
        if (grammar_g_ok(r->b) && last < first)
            bad(r, INGLE_ARG, "a range ends before it begins");
        if (grammar_g_ok(r->b))
            grammar_g_range(r->b, &c, first, last);
    }
    r->at += r->at < r->end;
    if (inverse)
        grammar_g_invert(r->b, &c);
    return part_of(r, &c);
}

static struct part any_char(struct regex *r, bool lines)
{
    struct grammar_class c = {0};
    if (!lines) {
        grammar_g_range(r->b, &c, '\n', '\n');
        grammar_g_range(r->b, &c, '\r', '\r');
        grammar_g_range(r->b, &c, 0x2028, 0x2029);
    }
    grammar_g_invert(r->b, &c);
    return part_of(r, &c);
}

/* ---- structure ---- */

/* Where alternatives stand: how deep; whether nothing is after them but what they say themselves;
 * and whether the text ends with them. */
struct spot {
    int depth;
    bool last, whole;
};
static struct part read_alternatives(struct regex *r, struct spot at);

static struct part read_group(struct regex *r, struct spot at)
{
    const int depth = at.depth;
    if (depth == GRAMMAR_MAX_NESTING) {
        grammar_g_fail(r->b, INGLE_LIMIT,
                       "regular expression '%.60s': groups nest deeper than the limit of %d",
                       r->text, GRAMMAR_MAX_NESTING);
        return empty(r);
    }
    if (next_is(r, "(?=") || next_is(r, "(?!") || next_is(r, "(?<=") || next_is(r, "(?<!")) {
        bad(r, INGLE_UNSUP,
            next_is(r, "(?<") ? "look-behind is not supported"
                              : "look-around inside of a group is not supported");
        return empty(r);
    }
    const bool named = next_is(r, "(?<") || next_is(r, "(?P<");
    if (next_is(r, "(?:")) {
        r->at += 3;
    } else if (named) {
        const char *close = memchr(r->at, '>', (size_t)(r->end - r->at));
        if (!close)
            bad(r, INGLE_ARG, "a group's name has no closing >");
        r->at = close ? close + 1 : r->end;
    } else if (next_is(r, "(?")) {
        bad(r, INGLE_UNSUP, "(? with flags or conditions is not supported");
        return empty(r);
    } else {
        r->at++;
    }
    at.depth++;
    const struct part x = read_alternatives(r, at);
    if (grammar_g_ok(r->b) && !next_is(r, ")"))
        bad(r, INGLE_ARG, "a group has no closing )");
    r->at += r->at < r->end;
    return x;
}

static struct part read_atom(struct regex *r, struct spot group)
{
    struct grammar_class c = {0};
    switch (*r->at) {
    case '(':
        return read_group(r, group);
    case '[':
        return read_class(r);
    case '.':
        r->at++;
        return any_char(r, false);
    case '*':
    case '+':
    case '?':
    case '{':
        bad(r, INGLE_ARG, "there is nothing to repeat");
        return empty(r);
    case '^':
    case '$':
        bad(r, INGLE_UNSUP, "anchors are supported only at the ends");
        return empty(r);
    case '\\':
        r->at++;
        if (r->at < r->end && named_class(r, *r->at, &c)) {
            r->at++;
        } else {
            const uint32_t cp = read_escape(r);
            grammar_g_range(r->b, &c, cp, cp);
        }
        return part_of(r, &c);
    default: {
        const uint32_t cp = read_char(r);
        if (grammar_g_ok(r->b))
            grammar_g_range(r->b, &c, cp, cp);
        return part_of(r, &c);
    }
    }
}

static bool read_count(struct regex *r, uint32_t *out)
{
    uint64_t v = 0;
    const char *from = r->at;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        v = v > GRAMMAR_MAX_REPEAT ? v : 10 * v + (uint64_t)(*r->at - '0');
    if (v > GRAMMAR_MAX_REPEAT)
        grammar_g_fail(r->b, INGLE_LIMIT,
                    "regular expression '%.60s': a repetition is above the limit of %d", r->text,
                    GRAMMAR_MAX_REPEAT);
    *out = (uint32_t)v;
    return r->at > from;
}

/* A quantifier, if there is one. */
static bool read_quantifier(struct regex *r, uint32_t *min, uint32_t *max)
{
    *min = 0;
    *max = GRAMMAR_INFINITE;
    if (next_is(r, "*")) {
        r->at++;
    } else if (next_is(r, "+")) {
        r->at++;
        *min = 1;
    } else if (next_is(r, "?")) {
        r->at++;
        *max = 1;
    } else if (next_is(r, "{")) {
        r->at++;
        bool ok = read_count(r, min);
        *max = *min;
        if (next_is(r, ",")) {
            r->at++;
            if (!read_count(r, max))
                *max = GRAMMAR_INFINITE;
        }
        ok = ok && next_is(r, "}");
        if (!ok || *max < *min)
            bad(r, INGLE_ARG, "a repetition is not {m}, {m,} or {m,n}");
        r->at += r->at < r->end;
    } else {
        return false;
    }
    if (next_is(r, "+"))
        bad(r, INGLE_UNSUP, "possessive quantifiers are not supported");
    r->at += next_is(r, "?"); /* lazy: the same texts */
    return true;
}

static struct part repeat(struct regex *r, struct part x, uint32_t min, uint32_t max)
{
    const uint64_t most = max == GRAMMAR_INFINITE ? (x.max ? UINT64_MAX : 0) : times(x.max, max);
    return (struct part){grammar_g_repeat(r->b, x.p, min, max), times(x.min, min), most, false};
}

/* Whether what was read from start on is all of the expression. */
static bool is_all(const struct regex *r, const char *start, bool whole)
{
    const bool first = start == r->begin + (r->begin < r->end && *r->begin == '^');
    const bool last = r->at == r->end || (r->at + 1 == r->end && *r->at == '$');
    return first && last && (whole || ((start > r->begin || r->here) && r->at < r->end));
}

/* ---- look-ahead ---- */

/* The end of what begins at p: the ) that closes it, or (alternatives) the | after it, or the
 * end. */
static const char *skip_to(struct regex *r, const char *p, bool alternatives)
{
    const char *from = p;
    int depth = 0;
    bool class = false;
    for (; p < r->end; p++) {
        if (*p == '\\' && p + 1 < r->end)
            p++;
        else if (class)
            class = *p != ']';
        else if (*p == '[')
            class = true;
        else if (*p == '(')
            depth++;
        else if ((*p == ')' && depth-- == 0) || (*p == '|' && alternatives && !depth))
            break;
    }
    (void)grammar_g_step(r->b, (uint64_t)(p - from) / 4);
    return p;
}

static struct part read_all(struct regex *r, bool whole);

static bool at_lookahead(const struct regex *r)
{
    return next_is(r, "(?=") || next_is(r, "(?!");
}

/* A part of the expression as a grammar of its own. */
static void gather(struct regex *r, struct form_meeting *m, const char *from, const char *to,
                   bool whole, bool inverse)
{
    struct grammar_builder own;
    struct err err = {0};
    struct regex part = {.b = &own,
                         .text = r->text,
                         .at = from,
                         .end = to,
                         .begin = from,
                         .here = true,
                         .n_ahead = r->n_ahead + 1,
                         .max = GRAMMAR_INFINITE};
    if (grammar_f_meet_begin(m, &own, &err))
        grammar_f_meet_take(m, &own, &err, read_all(&part, whole).p, inverse);
}

/* Look-aheads and what is after them, up to the end of the alternative: texts that fit the latter
 * and, from here on, each of the former. */
static struct part read_ahead(struct regex *r, bool whole)
{
    struct form_meeting m = {.b = r->b};
    bool empty;
    if (r->n_ahead == MOST_AHEAD) {
        grammar_g_fail(r->b, INGLE_LIMIT,
                       "regular expression '%.60s': more than %d look-aheads in a row", r->text,
                       MOST_AHEAD);
        return (struct part){0};
    }
    while (at_lookahead(r) && grammar_g_ok(r->b)) {
        const bool inverse = r->at[2] == '!';
        const char *from = r->at + 3, *to = skip_to(r, from, false);
        if (to == r->end)
            bad(r, INGLE_ARG, "a group has no closing )");
        gather(r, &m, from, to, false, inverse);
        r->at = to < r->end ? to + 1 : to;
    }
    const char *end = skip_to(r, r->at, true);
    gather(r, &m, r->at, end, whole, false);
    r->at = end;
    const struct grammar_piece p =
        r->f ? grammar_f_meet_string(&m, r->f, &empty) : grammar_f_meet_raw(&m, &empty);
    return (struct part){p, 0, UINT64_MAX, false};
}

/* Whether the group here is the last thing of its alternative and needs to know it: it has
 * look-aheads or ends of the text inside.  *ends: it is followed by one. */
static bool is_last_group(struct regex *r, bool *ends)
{
    if (*r->at != '(' || at_lookahead(r))
        return false;
    const char *close = skip_to(r, r->at + 1, false), *next = close + (close < r->end);
    *ends = next < r->end && *next == '$';
    next += *ends;
    if (next < r->end && *next != '|' && *next != ')')
        return false;
    for (const char *p = r->at; p < close; p++)
        if (*p == '$' ||
            (*p == '(' && close - p > 2 && p[1] == '?' && (p[2] == '=' || p[2] == '!')))
            return true;
    return false;
}

/* ---- sequences ---- */

static struct part any_text(struct regex *r)
{
    return repeat(r, any_char(r, true), 0, GRAMMAR_INFINITE);
}

/* An atom and how often. */
static struct part read_element(struct regex *r, const struct spot *at)
{
    uint32_t min, max;
    const char *start = r->at;
    struct part x = read_atom(r, (struct spot){.depth = at->depth});
    if (!grammar_g_ok(r->b) || !read_quantifier(r, &min, &max) || !grammar_g_ok(r->b))
        return x;
    if (x.is_char && at->depth == 0 && is_all(r, start, at->whole)) {
        min = min > r->min ? min : r->min; /* one counter serves both */
        max = max < r->max ? max : r->max;
        if (min > max)
            bad(r, INGLE_ARG, "no text has the length that is asked for");
    }
    return grammar_g_ok(r->b) ? repeat(r, x, min, max) : x;
}

/* *before, *behind: whether any text may be there, too. */
static struct part read_sequence(struct regex *r, const struct spot *at, bool *before,
                                 bool *any_after)
{
    struct part all = empty(r);
    const bool begins = at->depth == 0 && next_is(r, "^");
    bool ends = at->whole || !at->last;
    r->at += begins;
    *before = at->depth == 0 && !begins && !at->whole && !r->here;
    while (grammar_g_ok(r->b) && r->at < r->end && *r->at != '|' && *r->at != ')') {
        bool closed = false;
        if (at->last && *r->at == '$' &&
            (r->at + 1 == r->end || r->at[1] == '|' || r->at[1] == ')')) {
            r->at++;
            ends = true;
            break;
        }
        if (at->last && at_lookahead(r)) {
            all = join(r, all, read_ahead(r, at->whole));
            ends = true;
        } else if (at->last && is_last_group(r, &closed)) {
            const struct spot inner = {at->depth, true, closed || at->whole};
            all = join(r, all, read_group(r, inner));
            r->at += closed;
            ends = true;
        } else {
            all = join(r, all, read_element(r, at));
        }
    }
    *any_after = !ends;
    return all;
}

/* Alternatives with any text before or after them have it in common: many words are as many
 * beginnings, not as many loops. */
static struct part read_alternatives(struct regex *r, struct spot at)
{
    struct part kind[4] = {0};
    bool there[4] = {false};
    for (bool more = true; more && grammar_g_ok(r->b);) {
        bool before, any_after;
        const struct part x = read_sequence(r, &at, &before, &any_after);
        const int k = 2 * before + any_after;
        kind[k] = there[k] ? either(r, kind[k], x) : x;
        there[k] = true;
        more = next_is(r, "|");
        r->at += more;
    }
    struct part all = {0};
    bool any = false;
    for (int k = 0; k < 4 && grammar_g_ok(r->b); k++) {
        if (!there[k])
            continue;
        struct part x = k >= 2 ? join(r, any_text(r), kind[k]) : kind[k];
        x = k % 2 ? join(r, x, any_text(r)) : x;
        all = any ? either(r, all, x) : x;
        any = true;
    }
    return any ? all : empty(r);
}

static struct part read_all(struct regex *r, bool whole)
{
    const struct part x = read_alternatives(r, (struct spot){0, true, whole});
    if (grammar_g_ok(r->b) && r->at < r->end)
        bad(r, INGLE_ARG, "unexpected )");
    return x;
}

struct grammar_piece grammar_f_regex(struct grammar_builder *b, struct grammar_form *f,
                                     const char *text, size_t n, bool whole, uint32_t min,
                                     uint32_t max)
{
    struct regex r = {.b = b,
                      .f = f,
                      .text = text,
                      .at = text,
                      .end = text + n,
                      .begin = text,
                      .min = min,
                      .max = max};
    const struct part x = read_all(&r, whole);
    if (!grammar_g_ok(b) || (x.min >= min && (max == GRAMMAR_INFINITE || x.max <= max)))
        return x.p;
    bool empty;
    struct form_meeting m = {.b = b};
    grammar_f_meet_regex(&m, text, n, whole, false);
    grammar_f_meet_length(&m, min, max);
    return f ? grammar_f_meet_string(&m, f, &empty) : grammar_f_meet_raw(&m, &empty);
}

ingle_status grammar_regex(struct grammar **out, const char *text, size_t n,
                                struct grammar_work *work, struct err *err)
{
    struct grammar_builder b;
    struct grammar_work own = {0};
    if (n > GRAMMAR_TEXT_BYTES)
        return err_set(err, INGLE_LIMIT,
                       "a regular expression of %zu bytes is above the limit of %d", n,
                       GRAMMAR_TEXT_BYTES);
    const ingle_status st = grammar_g_begin(&b, work ? work : &own, err);
    if (st)
        return st;
    const uint32_t root = grammar_g_rule(&b, "root", 4);
    struct str copy; /* messages want an end */
    str_init(&copy);
    str_add(&copy, text, n);
    if (!str_ok(&copy))
        grammar_g_nomem(&b);
    else
        grammar_g_body(&b, root, grammar_f_regex(&b, NULL, copy.at, n, true, 0, GRAMMAR_INFINITE));
    str_release(&copy);
    return grammar_g_end(&b, root, out);
}
