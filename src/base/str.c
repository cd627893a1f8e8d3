/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "base/str.h"

#include "base/mem.h"
#include "base/utf8.h"
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static char empty[1];

void str_init(struct str *s)
{
    *s = (struct str){.at = empty};
}

void str_release(struct str *s)
{
    if (s->at != empty)
        mem_free(s->at);
    str_init(s);
}

void str_clear(struct str *s)
{
    s->n = 0;
    s->failed = false;
    if (s->at != empty)
        s->at[0] = 0;
}

static bool str_room(struct str *s, size_t n)
{
    if (s->failed)
        return false;
    if (n < s->cap - s->n)
        return true;
    char *at = s->at == empty ? NULL : s->at;
    size_t cap = s->cap;
    if (n >= (size_t)-1 - s->n || !mem_grow(&at, &cap, s->n + n + 1, 1)) {
        s->failed = true;
        return false;
    }
    s->at = at;
    s->cap = cap;
    return true;
}

void str_add(struct str *s, const char *bytes, size_t n)
{
    if (!n || !str_room(s, n))
        return;
    memcpy(s->at + s->n, bytes, n);
    s->n += n;
    s->at[s->n] = 0;
}

void str_adds(struct str *s, const char *text)
{
    str_add(s, text, strlen(text));
}

void str_addc(struct str *s, char c)
{
    str_add(s, &c, 1);
}

void str_addf(struct str *s, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0 && str_room(s, (size_t)n + 1)) {
        vsnprintf(s->at + s->n, (size_t)n + 1, fmt, again);
        s->n += (size_t)n;
    } else if (n < 0) {
        s->failed = true;
    }
    va_end(again);
}

char *str_detach(struct str *s)
{
    char *at = NULL;
    if (!s->failed)
        at = s->at == empty ? mem_strdup("") : s->at;
    else
        str_release(s);
    str_init(s);
    return at;
}

size_t str_add_json_part(struct str *s, const char *bytes, size_t n, bool last)
{
    size_t i = 0;
    while (i < n) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c >= 0x80) {
            uint32_t cp;
            const size_t len = utf8_step(bytes + i, n - i, &cp);
            if (cp == UTF8_PART && !last)
                break;
            if (cp == UTF8_BAD || cp == UTF8_PART)
                str_adds(s, "\xEF\xBF\xBD");
            else
                str_add(s, bytes + i, len);
            i += len;
            continue;
        }
        if (c == '"' || c == '\\')
            str_addf(s, "\\%c", c);
        else if (c == '\n')
            str_adds(s, "\\n");
        else if (c == '\r')
            str_adds(s, "\\r");
        else if (c == '\t')
            str_adds(s, "\\t");
        else if (c < 0x20 || c == 0x7F)
            str_addf(s, "\\u%04x", c);
        else
            str_addc(s, (char)c);
        i++;
    }
    return i;
}

void str_add_json(struct str *s, const char *bytes, size_t n)
{
    str_addc(s, '"');
    (void)str_add_json_part(s, bytes, n, true);
    str_addc(s, '"');
}

void str_add_shown(struct str *s, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        char one[UTF8_SHOWN];
        i += utf8_show_one(text + i, n - i, UTF8_LINE, one);
        str_adds(s, one);
    }
}

void str_add_column(struct str *s, const char *text, size_t width)
{
    const size_t before = s->n;
    str_add_shown(s, text, strlen(text));
    do
        str_addc(s, ' ');
    while (!s->failed && s->n - before <= width);
}

int str_hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

const char *str_last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool str_ends(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

bool str_ends_any_case(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcasecmp(text + n - k, end) == 0;
}

double str_to_double(const char *text, char **end)
{
    const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    const locale_t before = c ? uselocale(c) : (locale_t)0;
    const double v = strtod(text, end);
    if (c) {
        (void)uselocale(before);
        freelocale(c);
    }
    return v;
}
