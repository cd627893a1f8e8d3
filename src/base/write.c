/* SPDX-License-Identifier: Apache-2.0 */
#include "base/write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A comma, if a finished value stands before. */
static void between(struct str *s)
{
    if (s->n && !strchr("{[:, \n", s->at[s->n - 1]))
        str_adds(s, s->spaced ? ", " : ",");
}

void write_open(struct str *s, char bracket)
{
    between(s);
    str_addc(s, bracket);
}

void write_close(struct str *s, char bracket) { str_addc(s, bracket); }

void write_key(struct str *s, const char *key)
{
    between(s);
    str_add_json(s, key, strlen(key));
    str_adds(s, s->spaced ? ": " : ":");
}

void write_string(struct str *s, const char *bytes, size_t n)
{
    between(s);
    str_add_json(s, bytes, n);
}

void write_text(struct str *s, const char *text)
{
    if (text)
        write_string(s, text, strlen(text));
    else
        write_null(s);
}

void write_int(struct str *s, int64_t v)
{
    between(s);
    str_addf(s, "%lld", (long long)v);
}

void write_uint(struct str *s, uint64_t v)
{
    between(s);
    str_addf(s, "%llu", (unsigned long long)v);
}

void write_number(struct str *s, double v)
{
    char text[40];
    if (!isfinite(v)) {
        write_null(s);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) /* NOLINT: the same bits are requested */
            break;
    }
    between(s);
    str_adds(s, text);
}

void write_float(struct str *s, float v)
{
    char text[40];
    if (!isfinite(v)) {
        write_null(s);
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) /* NOLINT: the same bits are requested */
            break;
    }
    between(s);
    str_adds(s, text);
}

void write_bool(struct str *s, bool v)
{
    between(s);
    str_adds(s, v ? "true" : "false");
}

void write_null(struct str *s)
{
    between(s);
    str_adds(s, "null");
}

void write_raw(struct str *s, const char *json, size_t n)
{
    between(s);
    while (n && strchr(" \t\r\n", json[n - 1]))
        n--;
    const size_t start = s->n;
    str_add(s, json, n);
    /* Inside strings JSON has no raw line ends: all of them are white space. */
    for (size_t i = start; i < s->n; i++)
        if (s->at[i] == '\n' || s->at[i] == '\r')
            s->at[i] = ' ';
}

void write_member(struct str *s, const char *key, const char *text)
{
    write_key(s, key);
    write_text(s, text);
}

void write_member_string(struct str *s, const char *key, const char *bytes, size_t n)
{
    write_key(s, key);
    write_string(s, bytes, n);
}

void write_member_int(struct str *s, const char *key, int64_t v)
{
    write_key(s, key);
    write_int(s, v);
}

void write_member_number(struct str *s, const char *key, double v)
{
    write_key(s, key);
    write_number(s, v);
}

void write_member_bool(struct str *s, const char *key, bool v)
{
    write_key(s, key);
    write_bool(s, v);
}

void write_member_null(struct str *s, const char *key)
{
    write_key(s, key);
    write_null(s);
}

void write_member_texts(struct str *s, const char *key, const char *const *text, size_t n)
{
    if (!n)
        return;
    write_key(s, key);
    write_open(s, '[');
    for (size_t i = 0; i < n; i++)
        write_text(s, text[i]);
    write_close(s, ']');
}

void write_significant(struct str *s, int digits, double v)
{
    between(s);
    if (isfinite(v))
        str_addf(s, "%.*g", digits, v);
    else
        str_adds(s, "null");
}

void write_fixed(struct str *s, int digits, double v)
{
    between(s);
    if (isfinite(v))
        str_addf(s, "%.*f", digits, v);
    else
        str_adds(s, "null");
}

void write_member_uint(struct str *s, const char *key, uint64_t v)
{
    write_key(s, key);
    write_uint(s, v);
}

void write_member_significant(struct str *s, const char *key, int digits, double v)
{
    write_key(s, key);
    write_significant(s, digits, v);
}

void write_member_fixed(struct str *s, const char *key, int digits, double v)
{
    write_key(s, key);
    write_fixed(s, digits, v);
}
