/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* PIECE: bytes, STEPS: values, between two questions whether to stop. */
enum { DEPTH = 64, SHOWN = 48, PIECE = 256 * 1024, STEPS = 4096 };
static const size_t N_VALUES = (size_t)16 << 20, N_BYTES = (size_t)1 << 30;

/* An open array or object.  The keys of an object are the top of the key stack while it
 * is the innermost one, so that they can be sorted in place when it ends. */
struct level {
    bool object;
    size_t first_key;
    size_t first_text;
};

struct key {
    size_t at, n; /* in gate.text */
    size_t pos;
};

/* An integer that may not fit 64 bits: json-c would clamp it. */
struct wide {
    size_t at, n; /* in the text */
};
enum { WIDE_DIGITS = 19 };
static const uint64_t WIDE = 1000000000000000000u; /* the smallest of 19 digits */

struct gate {
    const char *s;
    size_t n, pos, n_values, n_objects;
    struct json_limits lim;
    struct level *level;
    size_t depth, cap_level;
    struct key *key;
    size_t n_keys, cap_key;
    struct str text;   /* the decoded keys */
    struct wide *wide; /* in the order of the text */
    size_t n_wide, cap_wide;
    struct err *err;
};

static struct json_limits with_defaults(const struct json_limits *given)
{
    struct json_limits lim = given ? *given : (struct json_limits){0};
    if (!lim.depth)
        lim.depth = DEPTH;
    if (!lim.n_values)
        lim.n_values = N_VALUES;
    if (!lim.n_keys)
        lim.n_keys = lim.n_values;
    if (!lim.n_objects)
        lim.n_objects = JSON_OBJECTS;
    if (!lim.n_bytes)
        lim.n_bytes = N_BYTES;
    return lim;
}

static ingle_status gate_fail(struct gate *g, const char *what)
{
    if (g->pos >= g->n)
        return err_set(g->err, INGLE_FORMAT, "json: %s at byte %zu: the text ends", what, g->n);
    const unsigned char c = (unsigned char)g->s[g->pos];
    if (c > 0x20 && c < 0x7F)
        return err_set(g->err, INGLE_FORMAT, "json: %s at byte %zu, found '%c'", what, g->pos, c);
    return err_set(g->err, INGLE_FORMAT, "json: %s at byte %zu, found byte 0x%02x", what, g->pos,
                   c);
}

static ingle_status gate_nomem(struct gate *g)
{
    return err_set(g->err, INGLE_NOMEM, "json: no memory to check a text of %zu bytes", g->n);
}

/* Whether nobody waits for it any more. */
static bool is_stopped(const struct json_limits *lim) { return lim->stop && lim->stop(lim->arg); }

static ingle_status say_stopped(struct err *err)
{
    return err_set(err, INGLE_CANCEL, "json: the request has ended");
}

static int gate_peek(const struct gate *g)
{
    return g->pos < g->n ? (unsigned char)g->s[g->pos] : -1;
}

static void gate_space(struct gate *g)
{
    while (g->pos < g->n && (g->s[g->pos] == ' ' || g->s[g->pos] == '\n' || g->s[g->pos] == '\r' ||
                             g->s[g->pos] == '\t'))
        g->pos++;
}

/* Four hex digits at pos, or -1. */
static int32_t gate_hex4(const struct gate *g, size_t pos)
{
    if (g->n < 4 || pos > g->n - 4)
        return -1;
    int32_t v = 0;
    for (size_t i = 0; i < 4; i++) {
        const int d = str_hex_value(g->s[pos + i]);
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* After a backslash.  text: where a key's characters go, or NULL. */
static ingle_status gate_escape(struct gate *g, struct str *text)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const int c = gate_peek(g);
    const char *hit = c > 0 ? strchr(from, c) : NULL;
    if (hit) {
        g->pos++;
        if (text)
            str_addc(text, to[hit - from]);
        return INGLE_OK;
    }
    int32_t u = c == 'u' ? gate_hex4(g, g->pos + 1) : -1;
    if (u < 0)
        return gate_fail(g, "unknown escape");
    if (text && !u)
        return gate_fail(g, "a NUL in a key");
    g->pos += 5;
    if (u >= 0xD800 && u < 0xDC00 && g->n - g->pos >= 6 && g->s[g->pos] == '\\' &&
        g->s[g->pos + 1] == 'u') {
        const int32_t low = gate_hex4(g, g->pos + 2);
        if (low >= 0xDC00 && low < 0xE000) {
            u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
            g->pos += 6;
        }
    }
    if (u >= 0xD800 && u < 0xE000)
        u = 0xFFFD; /* a lone surrogate: what json-c makes of it */
    char utf8[4];
    if (text)
        str_add(text, utf8, utf8_encode((uint32_t)u, utf8));
    return INGLE_OK;
}

/* A string; pos is at its opening quote. */
static ingle_status gate_string(struct gate *g, struct str *text)
{
    g->pos++;
    for (;;) {
        size_t from = g->pos;
        while (g->pos < g->n && (unsigned char)g->s[g->pos] >= 0x20 &&
               (unsigned char)g->s[g->pos] < 0x80 && g->s[g->pos] != '"' && g->s[g->pos] != '\\')
            g->pos++;
        if (text)
            str_add(text, g->s + from, g->pos - from);
        const int c = gate_peek(g);
        if (c < 0)
            return gate_fail(g, "a string without end");
        if (c < 0x20)
            return gate_fail(g, "a raw control character in a string");
        if (c >= 0x80) {
            uint32_t cp;
            const size_t len = utf8_decode(g->s + g->pos, g->n - g->pos, &cp);
            if (cp == UTF8_BAD)
                return gate_fail(g, "ill-formed UTF-8");
            if (text)
                str_add(text, g->s + g->pos, len);
            g->pos += len;
            continue;
        }
        g->pos++;
        if (c == '"')
            return INGLE_OK;
        ingle_status s = gate_escape(g, text);
        if (s)
            return s;
    }
}

static bool gate_digits(struct gate *g)
{
    const size_t from = g->pos;
    while (g->pos < g->n && g->s[g->pos] >= '0' && g->s[g->pos] <= '9')
        g->pos++;
    return g->pos > from;
}

static ingle_status gate_number(struct gate *g)
{
    const size_t from = g->pos;
    if (gate_peek(g) == '-')
        g->pos++;
    const size_t digits = g->pos;
    if (gate_peek(g) == '0')
        g->pos++;
    else if (!gate_digits(g))
        return gate_fail(g, "expected a digit");
    const size_t whole = g->pos;
    if (gate_peek(g) == '.') {
        g->pos++;
        if (!gate_digits(g))
            return gate_fail(g, "expected a digit after the point");
    }
    if (gate_peek(g) == 'e' || gate_peek(g) == 'E') {
        g->pos++;
        if (gate_peek(g) == '+' || gate_peek(g) == '-')
            g->pos++;
        if (!gate_digits(g))
            return gate_fail(g, "expected a digit in the exponent");
    }
    if (whole - digits < WIDE_DIGITS || g->pos > whole)
        return INGLE_OK;
    if (!mem_grow(&g->wide, &g->cap_wide, g->n_wide + 1, sizeof *g->wide))
        return gate_nomem(g);
    g->wide[g->n_wide++] = (struct wide){from, g->pos - from};
    return INGLE_OK;
}

static ingle_status gate_word(struct gate *g, const char *word)
{
    const size_t n = strlen(word);
    if (n > g->n - g->pos || memcmp(g->s + g->pos, word, n) != 0)
        return gate_fail(g, "expected a value");
    g->pos += n;
    return INGLE_OK;
}

struct sorted_key {
    const char *at;
    size_t n, pos;
};

static int key_order(const void *a, const void *b)
{
    const struct sorted_key *x = a, *y = b;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    const int c = memcmp(x->at, y->at, x->n);
    return c ? c : x->pos < y->pos ? -1 : x->pos > y->pos;
}

/* The innermost object ends: its keys must be distinct. */
static ingle_status gate_keys(struct gate *g, const struct level *lv)
{
    const size_t n = g->n_keys - lv->first_key;
    ingle_status s = INGLE_OK;
    if (n > 1) {
        struct sorted_key *k = mem_calloc(n, sizeof *k);
        if (!k)
            return gate_nomem(g);
        for (size_t i = 0; i < n; i++) {
            const struct key *from = &g->key[lv->first_key + i];
            k[i] = (struct sorted_key){g->text.at + from->at, from->n, from->pos};
        }
        qsort(k, n, sizeof *k, key_order);
        for (size_t i = 1; i < n && !s; i++)
            if (k[i].n == k[i - 1].n && memcmp(k[i].at, k[i - 1].at, k[i].n) == 0)
                s = err_set(g->err, INGLE_FORMAT, "json: duplicate key '%.*s' at bytes %zu and %zu",
                            (int)(k[i].n < SHOWN ? k[i].n : SHOWN), k[i].at, k[i - 1].pos,
                            k[i].pos);
        mem_free(k);
    }
    g->n_keys = lv->first_key;
    g->text.n = lv->first_text;
    return s;
}

static ingle_status gate_key(struct gate *g)
{
    if (gate_peek(g) != '"')
        return gate_fail(g, "expected a key");
    if (g->n_keys - g->level[g->depth - 1].first_key >= g->lim.n_keys)
        return err_set(g->err, INGLE_LIMIT, "json: an object with more than %zu keys at byte %zu",
                       g->lim.n_keys, g->pos);
    if (!mem_grow(&g->key, &g->cap_key, g->n_keys + 1, sizeof *g->key))
        return gate_nomem(g);
    struct key k = {.at = g->text.n, .pos = g->pos};
    ingle_status s = gate_string(g, &g->text);
    if (s)
        return s;
    if (!str_ok(&g->text))
        return gate_nomem(g);
    k.n = g->text.n - k.at;
    g->key[g->n_keys++] = k;
    gate_space(g);
    if (gate_peek(g) != ':')
        return gate_fail(g, "expected ':'");
    g->pos++;
    return INGLE_OK;
}

static ingle_status gate_open(struct gate *g, bool object)
{
    if (g->depth >= (size_t)g->lim.depth)
        return err_set(g->err, INGLE_LIMIT, "json: nesting of %zu at byte %zu, the limit is %d",
                       g->depth + 1, g->pos, g->lim.depth);
    if (object && ++g->n_objects > g->lim.n_objects)
        return err_set(g->err, INGLE_LIMIT, "json: more than %zu objects", g->lim.n_objects);
    if (!mem_grow(&g->level, &g->cap_level, g->depth + 1, sizeof *g->level))
        return gate_nomem(g);
    g->level[g->depth++] = (struct level){object, g->n_keys, g->text.n};
    g->pos++;
    return INGLE_OK;
}

/* One value, or the beginning of one: *opened says that an array or object was begun. */
static ingle_status gate_value(struct gate *g, bool *opened)
{
    *opened = false;
    gate_space(g);
    if (++g->n_values > g->lim.n_values)
        return err_set(g->err, INGLE_LIMIT, "json: more than %zu values", g->lim.n_values);
    const int c = gate_peek(g);
    if (c == '{' || c == '[') {
        *opened = true;
        return gate_open(g, c == '{');
    }
    if (c == '"')
        return gate_string(g, NULL);
    if (c == 't')
        return gate_word(g, "true");
    if (c == 'f')
        return gate_word(g, "false");
    if (c == 'n')
        return gate_word(g, "null");
    if (c == '-' || (c >= '0' && c <= '9'))
        return gate_number(g);
    return gate_fail(g, "expected a value");
}

/* After a value: closes what ends here and stands before the next value, or at the end. */
static ingle_status gate_after(struct gate *g, bool opened)
{
    while (g->depth) {
        struct level *lv = &g->level[g->depth - 1];
        gate_space(g);
        if (gate_peek(g) == (lv->object ? '}' : ']')) {
            ingle_status s = lv->object ? gate_keys(g, lv) : INGLE_OK;
            if (s)
                return s;
            g->pos++;
            g->depth--;
            opened = false;
            continue;
        }
        if (!opened) {
            if (gate_peek(g) != ',')
                return gate_fail(g, lv->object ? "expected ',' or '}'" : "expected ',' or ']'");
            g->pos++;
            gate_space(g);
        }
        return lv->object ? gate_key(g) : INGLE_OK;
    }
    return INGLE_OK;
}

static ingle_status gate_run(struct gate *g)
{
    if (g->n > g->lim.n_bytes)
        return err_set(g->err, INGLE_LIMIT, "json: %zu bytes, the limit is %zu", g->n,
                       g->lim.n_bytes);
    ingle_status s;
    size_t polled = 0;
    do {
        bool opened;
        if (g->n_values % STEPS == 0 || g->pos - polled > PIECE) {
            polled = g->pos;
            if (is_stopped(&g->lim))
                return say_stopped(g->err);
        }
        s = gate_value(g, &opened);
        if (!s)
            s = gate_after(g, opened);
    } while (!s && g->depth);
    if (!s) {
        gate_space(g);
        if (g->pos < g->n)
            s = gate_fail(g, "something after the value");
    }
    return s;
}

static void gate_init(struct gate *g, const char *text, size_t n, const struct json_limits *limits,
                      struct err *err)
{
    *g = (struct gate){.s = text, .n = n, .lim = with_defaults(limits), .err = err};
    str_init(&g->text);
}

static void gate_release(struct gate *g)
{
    str_release(&g->text);
    mem_free(g->key);
    mem_free(g->level);
    mem_free(g->wide);
}

ingle_status json_gate(const char *text, size_t n, const struct json_limits *limits,
                       struct err *err)
{
    struct gate g;
    gate_init(&g, text, n, limits, err);
    const ingle_status s = gate_run(&g);
    gate_release(&g);
    return s;
}

/* v, or for an integer beyond 64 bits its replacement: a double that prints as the digits of
 * the text.  Integers of 19 and more digits are visited in the order of the text, *i counts
 * them.  NULL: out of memory (or v is null). */
static struct json_object *widen(const struct gate *g, struct json_object *v, size_t *i)
{
    if (!json_object_is_type(v, json_type_int))
        return v;
    const int64_t x = json_object_get_int64(v);
    if ((x < 0 ? 0 - (uint64_t)x : (uint64_t)x) < WIDE)
        return v;
    const struct wide *w = &g->wide[(*i)++];
    const char *now = json_object_get_string(v);
    if (now && strlen(now) == w->n && memcmp(now, g->s + w->at, w->n) == 0)
        return v;
    char *digits = mem_strndup(g->s + w->at, w->n);
    struct json_object *wide =
        digits ? json_object_new_double_s(strtod(digits, NULL), digits) : NULL;
    mem_free(digits);
    return wide;
}

/* Depth is that of the gate, or less. */
static bool widen_all(const struct gate *g, struct json_object *o, size_t *i)
{
    if (json_object_is_type(o, json_type_object)) {
        json_object_object_foreach(o, key, member)
        {
            struct json_object *v = widen(g, member, i);
            /* A value that is replaced in place leaves the iteration intact. */
            if (v != member && (!v || json_object_object_add(o, key, v) != 0)) {
                json_object_put(v);
                return false;
            }
            if (!widen_all(g, v, i))
                return false;
        }
    } else if (json_object_is_type(o, json_type_array)) {
        for (size_t k = 0; k < json_object_array_length(o); k++) {
            struct json_object *member = json_object_array_get_idx(o, k);
            struct json_object *v = widen(g, member, i);
            if (v != member && (!v || json_object_array_put_idx(o, k, v) != 0)) {
                json_object_put(v);
                return false;
            }
            if (!widen_all(g, v, i))
                return false;
        }
    }
    return true;
}

/* json-c does not report that it has no memory: it ends early, with the innermost value that it
 * has, or with none.  The gate has seen that the text is whole, so it must have been read to its
 * end, and only `null` is no value. */
static bool is_whole(const struct gate *g, size_t end, const struct json_object *o)
{
    static const char blank[] = " \t\r\n";
    size_t begin = 0;
    while (end < g->n && g->s[end] && strchr(blank, g->s[end]))
        end++;
    while (begin < g->n && g->s[begin] && strchr(blank, g->s[begin]))
        begin++;
    return end == g->n && (o || (begin < g->n && g->s[begin] == 'n'));
}

static ingle_status read_gated(struct gate *g, struct json_object **out)
{
    if (g->n > INT_MAX)
        return err_set(g->err, INGLE_LIMIT, "json: %zu bytes, the limit is %d", g->n, INT_MAX);
    /* json-c counts the innermost scalar as a level, too. */
    struct json_tokener *tok = json_tokener_new_ex(g->lim.depth + 2);
    if (!tok)
        return gate_nomem(g);
    struct json_object *o = NULL;
    bool stopped = false;
    size_t end = 0;
    for (size_t at = 0; at < g->n && !o && !stopped;) {
        const size_t n = g->n - at < PIECE ? g->n - at : PIECE;
        o = json_tokener_parse_ex(tok, g->s + at, (int)n);
        end = at + json_tokener_get_parse_end(tok);
        at += n;
        if (json_tokener_get_error(tok) != json_tokener_continue)
            break;
        stopped = at < g->n && is_stopped(&g->lim);
    }
    /* A number at the end waits for what comes after it. */
    if (!stopped && json_tokener_get_error(tok) == json_tokener_continue)
        o = json_tokener_parse_ex(tok, " ", 1);
    const enum json_tokener_error e = json_tokener_get_error(tok);
    json_tokener_free(tok);
    if (stopped)
        return say_stopped(g->err);
    if (e != json_tokener_success) {
        json_object_put(o);
        return err_set(g->err, INGLE_FORMAT, "json: %s", json_tokener_error_desc(e));
    }
    if (!is_whole(g, end, o)) {
        json_object_put(o);
        return gate_nomem(g);
    }
    size_t i = 0;
    struct json_object *root = g->n_wide ? widen(g, o, &i) : o;
    if (root != o)
        json_object_put(o);
    if (g->n_wide && (!root || !widen_all(g, root, &i))) {
        json_object_put(root);
        return gate_nomem(g);
    }
    *out = root;
    return INGLE_OK;
}

ingle_status json_parse(const char *text, size_t n, const struct json_limits *limits,
                        struct json_object **out, struct err *err)
{
    struct gate g;
    gate_init(&g, text, n, limits, err);
    ingle_status s = gate_run(&g);
    if (!s)
        s = read_gated(&g, out);
    gate_release(&g);
    return s;
}

/* ---- beginnings ---- */

enum { CLOSE_DEPTH = 64 };

struct close {
    const char *s;
    size_t i, n;
    char open[CLOSE_DEPTH];
    int depth;
    bool key; /* the next string is a name */
    bool bad; /* something else is there */
    /* Where it may be closed, and what is open there. */
    size_t good;
    char good_open[CLOSE_DEPTH];
    int good_depth;
};

static void close_mark(struct close *c, size_t at)
{
    c->good = at;
    c->good_depth = c->depth;
    memcpy(c->good_open, c->open, (size_t)c->depth);
}

/* After a string that begins at c->i; false: it has no end. */
static bool close_string(struct close *c)
{
    for (c->i++; c->i < c->n && c->s[c->i] != '"'; c->i++)
        if (c->s[c->i] == '\\')
            c->i++;
    if (c->i >= c->n)
        return false;
    if (!c->key)
        close_mark(c, c->i + 1);
    return true;
}

/* One byte, or a string.  False: nothing good follows. */
static bool close_read(struct close *c)
{
    switch (c->s[c->i]) {
    case '{':
    case '[':
        if (c->depth == CLOSE_DEPTH)
            return false;
        c->open[c->depth++] = c->s[c->i];
        c->key = c->s[c->i] == '{';
        close_mark(c, c->i + 1);
        return true;
    case '}':
    case ']':
        c->depth--;
        c->key = false;
        close_mark(c, c->i + 1);
        return c->depth > 0;
    case ',':
        close_mark(c, c->i);
        c->key = c->open[c->depth - 1] == '{';
        return true;
    case ':':
        c->key = false;
        return true;
    case '"':
        return close_string(c);
    default:
        c->bad = c->key && !strchr(" \t\r\n", c->s[c->i]);
        return !c->bad;
    }
}

struct json_object *json_member(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    return json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, key, &v) ? v
                                                                                             : NULL;
}

bool json_close(struct str *out, const char *text, size_t n)
{
    struct close c = {.s = text, .n = n};
    struct str all;
    while (c.i < n && strchr(" \t\r\n", text[c.i]) && text[c.i])
        c.i++;
    if (c.i == n || text[c.i] != '{')
        return false;
    while (c.i < n && close_read(&c))
        c.i++;
    str_init(&all);
    str_add(&all, text, c.good);
    while (c.good_depth-- > 0)
        str_addc(&all, c.good_open[c.good_depth] == '{' ? '}' : ']');
    const bool good = !c.bad && str_ok(&all) && json_gate(all.at, all.n, NULL, NULL) == INGLE_OK;
    if (good)
        str_add(out, all.at, all.n);
    str_release(&all);
    return good;
}
