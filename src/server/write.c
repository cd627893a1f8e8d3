/* SPDX-License-Identifier: Apache-2.0 */
#include "server/write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A comma, if a finished value stands before. */
static void between(struct str *s)
{
    if (s->n && !strchr("{[:, \n", s->at[s->n - 1]))
        str_addc(s, ',');
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
    str_addc(s, ':');
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
        if (strtod(text, NULL) == v) /* NOLINT: the same bits are asked for */
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
        if (strtof(text, NULL) == v) /* NOLINT: the same bits are asked for */
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

void write_drafted(struct str *s, int64_t n_drafted, int64_t n_right)
{
    if (!n_drafted)
        return;
    write_member_int(s, "accepted_prediction_tokens", n_right);
    write_member_int(s, "rejected_prediction_tokens", n_drafted - n_right);
}

void write_facts(struct str *s, const char *group, const void *of)
{
    size_t n;
    const struct ingle_fact *f = ingle_facts(group, &n);
    for (size_t i = 0; i < n; i++) {
        const double v = ingle_fact_number(&f[i], of);
        if (!f[i].key)
            continue;
        write_key(s, f[i].key);
        if (f[i].mean || f[i].kind == INGLE_FACT_NUMBER)
            write_number(s, v);
        else if (f[i].kind == INGLE_FACT_TEXT)
            write_text(s, *ingle_fact_text(&f[i], of) ? ingle_fact_text(&f[i], of) : NULL);
        else if (f[i].kind == INGLE_FACT_FLAG)
            write_bool(s, v > 0);
        else
            write_int(s, (int64_t)(f[i].kind == INGLE_FACT_TIME ? v * 1e3 + 1e-6 : v));
    }
}

void write_ways(struct str *s, const struct ingle_way_use *u)
{
    if (u->sparse.pairs) {
        write_key(s, "sparse");
        write_open(s, '{');
        write_facts(s, "sparse", &u->sparse);
        write_close(s, '}');
    }
    if (u->select.pages_seen) {
        write_key(s, "kv_select");
        write_open(s, '{');
        write_facts(s, "select", &u->select);
        write_close(s, '}');
    }
}

void write_computed(struct str *s, const struct ingle_usage *u)
{
    if (u->n_skipped)
        write_member_int(s, "computed_tokens", u->n_prompt - u->n_skipped);
    if (u->image_tokens)
        write_member_int(s, "image_tokens", u->image_tokens);
    if (u->audio_tokens)
        write_member_int(s, "audio_tokens", u->audio_tokens);
}

void write_pages(struct str *s, const struct ingle_page_use *u)
{
    if (!u->read_bytes)
        return;
    write_key(s, "kv_disk");
    write_open(s, '{');
    write_key(s, "read_bytes");
    write_uint(s, u->read_bytes);
    write_member_number(s, "wait_ms", u->waited_seconds * 1e3);
    write_close(s, '}');
}
