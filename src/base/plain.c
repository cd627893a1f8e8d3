/* SPDX-License-Identifier: Apache-2.0 */
#include "base/plain.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>

void plain_init(struct plain *p, const char *name, bool lax)
{
    *p = (struct plain){.name = name, .lax = lax};
}

static ingle_status no_utf8(const struct plain *p, uint64_t at, unsigned byte, struct err *err)
{
    if (!byte)
        return err_set(err, INGLE_FORMAT,
                       "%s: a NUL byte at offset %llu: this is no text, or UTF-16 or UTF-32 "
                       "without a byte order mark",
                       p->name, (unsigned long long)at);
    return err_set(err, INGLE_FORMAT,
                   "%s: byte 0x%02X at offset %llu is no UTF-8; text is read as UTF-8, or as "
                   "UTF-16 or UTF-32 with a byte order mark",
                   p->name, byte, (unsigned long long)at);
}

/* ---- UTF-8 ---- */

/* What is held, with more of its bytes; *used of the n new ones. */
static ingle_status add_held(struct plain *p, struct str *out, const char *bytes, size_t n,
                             size_t *used, struct err *err)
{
    *used = 0;
    while (p->n_held && *used < n) {
        uint32_t cp;
        p->held[p->n_held++] = (unsigned char)bytes[(*used)++];
        utf8_step((const char *)p->held, p->n_held, &cp);
        if (cp == UTF8_BAD)
            return no_utf8(p, p->at, p->held[0], err);
        if (cp == UTF8_PART)
            continue;
        str_add(out, (const char *)p->held, p->n_held);
        p->at += p->n_held;
        p->n_held = 0;
    }
    return INGLE_OK;
}

static ingle_status add_utf8(struct plain *p, struct str *out, const char *bytes, size_t n,
                             struct err *err)
{
    size_t i;
    if (p->lax) {
        str_add(out, bytes, n);
        p->at += n;
        return INGLE_OK;
    }
    const ingle_status st = add_held(p, out, bytes, n, &i, err);
    if (st || p->n_held)
        return st;
    const size_t from = i;
    while (i < n) {
        uint32_t cp;
        if ((unsigned char)bytes[i] - 1u < 0x7F) { /* ASCII */
            i++;
            continue;
        }
        const size_t k = utf8_step(bytes + i, n - i, &cp);
        if (cp == UTF8_PART)
            break;
        if (cp == UTF8_BAD || cp == 0)
            return no_utf8(p, p->at + (i - from), (unsigned char)bytes[i], err);
        i += k;
    }
    str_add(out, bytes + from, i - from);
    p->at += i - from;
    p->n_held = (unsigned)(n - i); /* at most 3 */
    memcpy(p->held, bytes + i, n - i);
    return INGLE_OK;
}

/* ---- UTF-16 and UTF-32 ---- */

static void add_character(struct str *out, uint32_t cp)
{
    char text[4];
    str_add(out, text, utf8_encode(cp, text));
}

/* One unit of 2 or 4 bytes that stands at p->at. */
static ingle_status add_unit(struct plain *p, struct str *out, uint32_t unit, struct err *err)
{
    const bool wide = p->form == PLAIN_UTF32LE || p->form == PLAIN_UTF32BE;
    const bool high = unit >= 0xD800 && unit < 0xDC00, low = unit >= 0xDC00 && unit < 0xE000;
    const unsigned long long at = p->at;
    if (!unit)
        return err_set(err, INGLE_FORMAT, "%s: a NUL character at offset %llu: this is no text",
                       p->name, at);
    if (wide && (high || low || unit > 0x10FFFF))
        return err_set(err, INGLE_FORMAT, "%s: 0x%X at offset %llu is no character of UTF-32",
                       p->name, unit, at);
    if (wide || (!high && !low && !p->high)) {
        add_character(out, unit);
    } else if (high && !p->high) {
        p->high = unit;
    } else if (low && p->high) {
        add_character(out, 0x10000 + ((p->high - 0xD800) << 10) + (unit - 0xDC00));
        p->high = 0;
    } else {
        const bool before = p->high != 0;
        return err_set(err, INGLE_FORMAT, "%s: 0x%X at offset %llu is half a character of UTF-16",
                       p->name, before ? p->high : unit, before ? at - 2 : at);
    }
    return INGLE_OK;
}

static ingle_status add_units(struct plain *p, struct str *out, const char *bytes, size_t n,
                              struct err *err)
{
    const bool wide = p->form == PLAIN_UTF32LE || p->form == PLAIN_UTF32BE;
    const bool big = p->form == PLAIN_UTF16BE || p->form == PLAIN_UTF32BE;
    const unsigned size = wide ? 4 : 2;
    for (size_t i = 0; i < n; i++) {
        p->held[p->n_held++] = (unsigned char)bytes[i];
        if (p->n_held < size)
            continue;
        uint32_t unit = 0;
        for (unsigned k = 0; k < size; k++)
            unit = unit << 8 | p->held[big ? k : size - 1 - k];
        const ingle_status st = add_unit(p, out, unit, err);
        if (st)
            return st;
        p->at += size;
        p->n_held = 0;
    }
    return INGLE_OK;
}

/* ---- marks ---- */

static const struct {
    enum plain_form form;
    unsigned n;
    unsigned char mark[4];
} marks[] = {
    {PLAIN_UTF8, 3, {0xEF, 0xBB, 0xBF}},
    /* before UTF-16, whose mark begins it: a text has no NUL */
    {PLAIN_UTF32LE, 4, {0xFF, 0xFE, 0, 0}},
    {PLAIN_UTF32BE, 4, {0, 0, 0xFE, 0xFF}},
    {PLAIN_UTF16LE, 2, {0xFF, 0xFE}},
    {PLAIN_UTF16BE, 2, {0xFE, 0xFF}},
};
enum { N_MARKS = sizeof marks / sizeof *marks };

/* The form by what is held at the beginning; PLAIN_UNKNOWN while a mark may still become whole.
 * *n: bytes of the mark. */
static enum plain_form find_form(const struct plain *p, bool last, unsigned *n)
{
    for (size_t i = 0; !last && i < N_MARKS; i++)
        if (p->n_held < marks[i].n && memcmp(p->held, marks[i].mark, p->n_held) == 0)
            return PLAIN_UNKNOWN;
    for (size_t i = 0; i < N_MARKS; i++)
        if (p->n_held >= marks[i].n && memcmp(p->held, marks[i].mark, marks[i].n) == 0) {
            *n = marks[i].n;
            return marks[i].form;
        }
    *n = 0;
    return PLAIN_UTF8;
}

static ingle_status add(struct plain *p, struct str *out, const char *bytes, size_t n,
                        struct err *err)
{
    return p->form == PLAIN_UTF8 ? add_utf8(p, out, bytes, n, err)
                                 : add_units(p, out, bytes, n, err);
}

/* Takes bytes until the form is known, and the held ones that are no mark as text. */
static ingle_status begin(struct plain *p, struct str *out, const char *bytes, size_t n, bool last,
                          size_t *used, struct err *err)
{
    unsigned n_mark = 0;
    *used = 0;
    while (p->form == PLAIN_UNKNOWN && (*used < n || last)) {
        if (*used < n)
            p->held[p->n_held++] = (unsigned char)bytes[(*used)++];
        p->form = find_form(p, last && *used == n, &n_mark);
    }
    if (p->form == PLAIN_UNKNOWN)
        return INGLE_OK;
    const unsigned k = p->n_held - n_mark;
    char rest[4];
    memcpy(rest, p->held + n_mark, k);
    p->n_held = 0;
    p->at = n_mark;
    return add(p, out, rest, k, err);
}

ingle_status plain_add(struct plain *p, struct str *out, const char *bytes, size_t n,
                       struct err *err)
{
    size_t used = 0;
    if (p->form == PLAIN_UNKNOWN) {
        const ingle_status st = begin(p, out, bytes, n, false, &used, err);
        if (st)
            return st;
    }
    return used < n ? add(p, out, bytes + used, n - used, err) : INGLE_OK;
}

ingle_status plain_end(struct plain *p, struct str *out, struct err *err)
{
    size_t used;
    if (p->form == PLAIN_UNKNOWN) {
        const ingle_status st = begin(p, out, NULL, 0, true, &used, err);
        if (st)
            return st;
    }
    if (p->n_held && p->form == PLAIN_UTF8)
        return no_utf8(p, p->at, p->held[0], err);
    if (p->n_held || p->high)
        return err_set(err, INGLE_FORMAT,
                       "%s: it ends at offset %llu in the middle of a character of %s", p->name,
                       (unsigned long long)(p->at + p->n_held),
                       p->form == PLAIN_UTF16LE || p->form == PLAIN_UTF16BE ? "UTF-16" : "UTF-32");
    return INGLE_OK;
}

ingle_status plain_text(const char *name, char **text, size_t *n, struct err *err)
{
    struct plain p;
    struct str s;
    plain_init(&p, name, false);
    str_init(&s);
    ingle_status st = plain_add(&p, &s, *text, *n, err);
    if (!st)
        st = plain_end(&p, &s, err);
    const size_t n_out = s.n;
    char *out = st ? NULL : s.n ? str_detach(&s) : mem_strdup("");
    str_release(&s);
    if (!st && !out)
        st = err_set(err, INGLE_NOMEM, "%s: no memory for its text", name);
    if (st)
        return st;
    mem_free(*text);
    *text = out;
    *n = n_out;
    return INGLE_OK;
}

ingle_status plain_check(const char *name, const char *text, size_t n, struct err *err)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t k = utf8_decode(text + i, n - i, &cp);
        if (cp == UTF8_BAD || cp == 0)
            return err_set(err, INGLE_FORMAT, "%s: byte 0x%02X at offset %zu is no UTF-8", name,
                           (unsigned)(unsigned char)text[i], i);
        i += k;
    }
    return INGLE_OK;
}
