/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ini.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/plain.h"
#include "base/str.h"

#include <string.h>

struct reader {
    const char *name;
    int line;
    struct str section, key, value;
    ini_fn *fn;
    void *arg;
};

static void trim(const char *text, size_t *from, size_t *to)
{
    while (*from < *to && strchr(" \t\r", text[*from]))
        ++*from;
    while (*from < *to && strchr(" \t\r", text[*to - 1]))
        --*to;
}

static bool put(struct str *s, const char *text, size_t from, size_t to)
{
    str_clear(s);
    str_add(s, text + from, to - from);
    return str_ok(s);
}

static ingle_status call(struct reader *r, const char *key, const char *value, struct err *err)
{
    struct err why = {0};
    const ingle_status st = r->fn(r->arg, r->line, r->section.at, key, value, &why);
    return st ? err_set(err, st, "%s:%d: %s", r->name, r->line, why.msg) : INGLE_OK;
}

static ingle_status bad(const struct reader *r, const char *what, struct err *err)
{
    return err_set(err, INGLE_FORMAT, "%s:%d: %s", r->name, r->line, what);
}

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

static bool begins_comment(char c) { return c == '#' || c == ';'; }

/* Where text [from, to) ends before a comment; text[from - 1] exists. */
static size_t before_comment(const char *text, size_t from, size_t to)
{
    const bool json = from < to && (text[from] == '{' || text[from] == '[');
    bool string = false;
    for (size_t i = from; i < to; i++) {
        if (string && text[i] == '\\')
            i++;
        else if (json && text[i] == '"')
            string = !string;
        else if (!string && begins_comment(text[i]) && is_blank(text[i - 1]))
            return i;
    }
    return to;
}

/* A value [*from, *to) without its comment and quotes.  False: a quote is not closed. */
static bool strip(const char *text, size_t *from, size_t *to)
{
    const char quote = *from < *to ? text[*from] : 0;
    bool closed = quote != '"' && quote != '\'';
    for (size_t i = *from + 1; i < *to && (quote == '"' || quote == '\''); i++) {
        size_t next = i + 1, end = *to;
        if (text[i] != quote)
            continue;
        closed = true;
        trim(text, &next, &end);
        if (next < end && !(begins_comment(text[next]) && next > i + 1))
            continue; /* it is one of the value's own */
        ++*from;
        *to = i;
        return true;
    }
    *to = before_comment(text, *from, *to);
    trim(text, from, to);
    return closed;
}

/* text [from, to): "[name]" */
static ingle_status take_section(struct reader *r, const char *text, size_t from, size_t to,
                                 struct err *err)
{
    size_t end = to;
    for (size_t i = from + 1; i + 1 < to; i++)
        if (text[i] == ']' && is_blank(text[i + 1])) { /* a comment after it */
            size_t next = i + 1;
            trim(text, &next, &end);
            to = begins_comment(text[next]) ? i + 1 : to;
            break;
        }
    if (text[to - 1] != ']')
        return bad(r, "a section has no ']' at its end", err);
    from++;
    to--;
    trim(text, &from, &to);
    if (from == to || to - from > INI_MAX_NAME)
        return bad(r, "a section has no name, or one of more than 255 bytes", err);
    if (!put(&r->section, text, from, to))
        return err_set(err, INGLE_NOMEM, "%s: no memory for a section", r->name);
    return call(r, NULL, NULL, err);
}

static ingle_status take_line(struct reader *r, const char *text, size_t n, struct err *err)
{
    size_t from = 0, to = n;
    trim(text, &from, &to);
    if (from == to || text[from] == '#' || text[from] == ';')
        return INGLE_OK;
    if (text[from] == '[')
        return take_section(r, text, from, to, err);
    const char *equals = memchr(text + from, '=', to - from);
    if (!equals)
        return bad(r, "a line is neither 'key = value', a [section] nor a comment", err);
    size_t end = (size_t)(equals - text), at = end + 1;
    trim(text, &from, &end);
    trim(text, &at, &to);
    if (from == end || end - from > INI_MAX_NAME)
        return bad(r, "a key has no name, or one of more than 255 bytes", err);
    if (!strip(text, &at, &to))
        return bad(r,
                   "a value begins with a quote that is not closed: put the whole of it into "
                   "quotes of the other kind",
                   err);
    if (to - at > INI_MAX_VALUE)
        return bad(r, "a value has more than 16384 bytes", err);
    if (!put(&r->key, text, from, end) || !put(&r->value, text, at, to))
        return err_set(err, INGLE_NOMEM, "%s: no memory for a line", r->name);
    return call(r, r->key.at, r->value.at, err);
}

/* A line is wrong.  True: the next one is read still. */
static bool goes_on(const struct reader *r, ini_bad_fn *warn_line, ingle_status st,
                    const struct err *why, ingle_status *first, struct err *err)
{
    if (!*first)
        *first = err_set(err, st, "%s", why->msg);
    if (warn_line)
        warn_line(r->arg, why->msg);
    return warn_line && st != INGLE_NOMEM;
}

ingle_status ini_read_on(const char *name, const char *text, size_t n, ini_fn *fn,
                         ini_bad_fn *warn_line, void *arg, struct err *err)
{
    struct reader r = {.name = name, .fn = fn, .arg = arg};
    struct err why = {0};
    ingle_status first = INGLE_OK;
    str_init(&r.section);
    str_init(&r.key);
    str_init(&r.value);
    for (size_t i = 0; i < n;) {
        const char *end = memchr(text + i, '\n', n - i);
        const size_t k = end ? (size_t)(end - text) - i : n - i;
        r.line++;
        const ingle_status st = memchr(text + i, 0, k) ? bad(&r, "a line has a zero byte", &why)
                                                       : take_line(&r, text + i, k, &why);
        if (st && !goes_on(&r, warn_line, st, &why, &first, err))
            break;
        i += k + 1;
    }
    str_release(&r.section);
    str_release(&r.key);
    str_release(&r.value);
    return first;
}

ingle_status ini_read(const char *name, const char *text, size_t n, ini_fn *fn, void *arg,
                      struct err *err)
{
    return ini_read_on(name, text, n, fn, NULL, arg, err);
}

ingle_status ini_slurp(const char *path, char **out, size_t *n, struct err *err)
{
    const ingle_status st = file_slurp(path, INI_MAX_BYTES, out, n, err);
    if (st)
        return st;
    const ingle_status text = plain_text(path, out, n, err);
    if (text)
        mem_free(*out);
    return text;
}
