/* SPDX-License-Identifier: Apache-2.0 */
#include "text/template.h"

#include "base/mem.h"
#include "base/utf8.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void text_prompt_init(struct text_prompt *p)
{
    *p = (struct text_prompt){0};
    str_init(&p->text);
}

void text_prompt_clear(struct text_prompt *p)
{
    str_clear(&p->text);
    p->n_special = 0;
    p->n_media = p->n_media_marks = 0;
}

void text_prompt_release(struct text_prompt *p)
{
    str_release(&p->text);
    mem_free(p->special);
    mem_free(p->medium);
    text_prompt_init(p);
}

void text_writer_init(struct text_writer *w, struct text_prompt *out, struct err *err)
{
    *w = (struct text_writer){.out = out, .err = err};
}

ingle_status text_writer_end(struct text_writer *w)
{
    if (!str_ok(&w->out->text))
        text_fail_nomem(w);
    if (w->status != INGLE_OK)
        text_prompt_clear(w->out);
    return w->status;
}

void text_at(struct text_writer *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w->where, sizeof w->where, fmt, ap);
    va_end(ap);
    if (w->stop && ++w->n_at % 64 == 0 && w->status == INGLE_OK && w->stop(w->arg))
        w->status = err_set(w->err, INGLE_CANCEL, "%s: the request has ended", w->where);
}

bool text_fail(struct text_writer *w, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (w->status == INGLE_OK)
        w->status = err_set(w->err, INGLE_ARG, "%s: %s", w->where, text);
    return false;
}

bool text_fail_nomem(struct text_writer *w)
{
    if (w->status == INGLE_OK)
        w->status =
            err_set(w->err, INGLE_NOMEM, "no memory for a prompt of %zu bytes", w->out->text.n);
    return false;
}

bool text_is(struct text_view v, const char *s)
{
    const size_t n = strlen(s);
    return v.at && v.n == n && memcmp(v.at, s, n) == 0;
}

/* What Python's str.isspace() says. */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

struct text_view text_trim(struct text_view v)
{
    uint32_t c;
    while (v.n) {
        const size_t n = utf8_decode(v.at, v.n, &c);
        if (!is_space(c))
            break;
        v.at += n;
        v.n -= n;
    }
    while (v.n) {
        size_t n = 1;
        while (n < v.n && n < 4 && ((unsigned char)v.at[v.n - n] & 0xC0) == 0x80)
            n++;
        if (utf8_decode(v.at + v.n - n, n, &c) != n || !is_space(c))
            break;
        v.n -= n;
    }
    return v;
}

size_t text_seek(struct text_view v, size_t i, const char *part)
{
    const size_t n = strlen(part);
    for (; i < v.n && v.n - i >= n; i++) {
        const char *p = memchr(v.at + i, part[0], v.n - i - n + 1);
        if (!p)
            break;
        i = (size_t)(p - v.at);
        if (memcmp(p, part, n) == 0)
            return i;
    }
    return v.n;
}

void text_put(struct text_writer *w, struct text_view v)
{
    str_add(&w->out->text, v.at, v.n);
}

void text_puts(struct text_writer *w, const char *s)
{
    str_adds(&w->out->text, s);
}

void text_mark(struct text_writer *w, const char *marker)
{
    struct text_prompt *p = w->out;
    const size_t begin = p->text.n;
    if (!mem_grow(&p->special, &p->cap_special, p->n_special + 1, sizeof *p->special)) {
        text_fail_nomem(w);
        return;
    }
    str_adds(&p->text, marker);
    p->special[p->n_special++] = (struct text_range){begin, p->text.n};
}

void text_mark_medium(struct text_writer *w, const char *marker, struct json_object *part)
{
    struct text_prompt *p = w->out;
    struct json_object *v = text_get(part, "medium");
    const int64_t number = v ? json_object_get_int64(v) : -1;
    text_mark(w, marker);
    p->n_media++;
    if (!mem_grow(&p->medium, &p->cap_medium, p->n_media_marks + 1, sizeof *p->medium))
        text_fail_nomem(w);
    else
        p->medium[p->n_media_marks++] = number < 0 || number > INT32_MAX ? -1 : (int32_t)number;
}

/* Adds one to the last of n decimal digits; false when that needs another digit. */
static bool digits_up(char *digit, int n)
{
    while (n--) {
        if (digit[n] != '9') {
            digit[n]++;
            return true;
        }
        digit[n] = '0';
    }
    return false;
}

/* The shortest digits that read back as v > 0: d.ddd x 10^exp.  The nearest decimal of a
 * given length may miss (above a power of two the gap below is half as wide), so the one
 * above it is tried too.  printf and strtod may use a decimal comma; both use the same. */
static int shortest(double v, char digit[20], int *exp)
{
    for (int n = 1;; n++) {
        char text[48];
        snprintf(text, sizeof text, "%.*e", n - 1, v);
        char *e = strchr(text, 'e');
        char *dot = n > 1 ? text + 1 : NULL;
        *exp = (int)strtol(e + 1, NULL, 10);
        digit[0] = text[0];
        if (dot)
            memcpy(digit + 1, dot + 1, (size_t)(n - 1));
        if (n == 17 || strtod(text, NULL) == v)
            return n;
        if (!digits_up(digit, n))
            continue;
        text[0] = digit[0];
        if (dot)
            memcpy(dot + 1, digit + 1, (size_t)(n - 1));
        if (strtod(text, NULL) == v)
            return n;
    }
}

/* As Python's repr: an exponent below 1e-4 and from 1e16 on. */
static void put_double(struct str *s, double v)
{
    if (signbit(v))
        str_addc(s, '-');
    v = fabs(v);
    if (v <= 0) {
        str_adds(s, "0.0");
        return;
    }
    char digit[20];
    int exp;
    const int n = shortest(v, digit, &exp);
    if (exp < -4 || exp >= 16) {
        str_addc(s, digit[0]);
        if (n > 1)
            str_addc(s, '.');
        str_add(s, digit + 1, (size_t)(n - 1));
        str_addf(s, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
        return;
    }
    if (exp < 0)
        str_adds(s, "0.");
    for (int i = exp + 1; i < 0; i++)
        str_addc(s, '0');
    for (int i = 0; i < n || i <= exp; i++) {
        str_addc(s, i < n ? digit[i] : '0');
        if (i == exp)
            str_adds(s, i + 1 < n ? "." : ".0");
    }
}

void text_put_number(struct text_writer *w, struct json_object *v)
{
    const char *text = json_object_get_string(v);
    if (!text) {
        text_fail_nomem(w);
        return;
    }
    /* Whole numbers keep their digits, however many. */
    if (!json_object_is_type(v, json_type_double) || !text[strspn(text, "-0123456789")]) {
        text_puts(w, text);
        return;
    }
    const double d = json_object_get_double(v);
    if (isfinite(d))
        put_double(&w->out->text, d);
    else
        text_puts(w, text);
}

/* A JSON string with only quotes, backslashes and control characters escaped. */
static void put_json_string(struct str *s, struct text_view v)
{
    static const char short_form[] = "btn\0fr"; /* for 8 to 13 */
    size_t from = 0;
    str_addc(s, '"');
    for (size_t i = 0; i < v.n; i++) {
        const unsigned char c = (unsigned char)v.at[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        str_add(s, v.at + from, i - from);
        from = i + 1;
        if (c >= 8 && c <= 13 && c != 11)
            str_addf(s, "\\%c", short_form[c - 8]);
        else if (c < 0x20)
            str_addf(s, "\\u%04x", c);
        else
            str_addf(s, "\\%c", c);
    }
    str_add(s, v.at + from, v.n - from);
    str_addc(s, '"');
}

void text_put_json(struct text_writer *w, struct json_object *v, int depth)
{
    if (depth > TEXT_DEPTH) {
        text_fail(w, "nested deeper than the limit of %d", TEXT_DEPTH);
        return;
    }
    switch (json_object_get_type(v)) {
    case json_type_null:
        text_puts(w, "null");
        break;
    case json_type_boolean:
        text_puts(w, json_object_get_boolean(v) ? "true" : "false");
        break;
    case json_type_int:
    case json_type_double:
        text_put_number(w, v);
        break;
    case json_type_string:
        put_json_string(&w->out->text, text_string(v));
        break;
    case json_type_array:
        text_puts(w, "[");
        for (size_t i = 0; i < json_object_array_length(v); i++) {
            text_puts(w, i ? ", " : "");
            text_put_json(w, json_object_array_get_idx(v, i), depth + 1);
        }
        text_puts(w, "]");
        break;
    case json_type_object: {
        const char *comma = "";
        text_puts(w, "{");
        json_object_object_foreach(v, key, member)
        {
            text_puts(w, comma);
            put_json_string(&w->out->text, (struct text_view){key, strlen(key)});
            text_puts(w, ": ");
            text_put_json(w, member, depth + 1);
            comma = ", ";
        }
        text_puts(w, "}");
        break;
    }
    }
}

struct text_view text_string(struct json_object *v)
{
    return (struct text_view){json_object_get_string(v), (size_t)json_object_get_string_len(v)};
}

struct json_object *text_get(struct json_object *o, const char *key)
{
    struct json_object *v;
    if (!json_object_is_type(o, json_type_object) || !json_object_object_get_ex(o, key, &v))
        return NULL;
    return v;
}

static const char *type_name(enum json_type type)
{
    switch (type) {
    case json_type_null:
        return "null";
    case json_type_boolean:
        return "a boolean";
    case json_type_int:
    case json_type_double:
        return "a number";
    case json_type_string:
        return "a string";
    case json_type_array:
        return "an array";
    case json_type_object:
        return "an object";
    }
    return "unknown";
}

const char *text_type_name(struct json_object *v)
{
    return type_name(json_object_get_type(v));
}

struct json_object *text_get_type(struct text_writer *w, struct json_object *o, const char *key,
                                  enum json_type type)
{
    struct json_object *v = text_get(o, key);
    if (!v || json_object_is_type(v, type))
        return v;
    text_fail(w, "'%s' is %s, not %s", key, text_type_name(v), type_name(type));
    return NULL;
}

struct text_view text_get_string(struct text_writer *w, struct json_object *o, const char *key)
{
    struct json_object *v = text_get_type(w, o, key, json_type_string);
    return v ? text_string(v) : (struct text_view){NULL, 0};
}

bool text_is_thought(struct json_object *part)
{
    static const char *const known[] = {"thinking", "reasoning", "redacted_thinking",
                                        "reasoning_text"};
    struct json_object *type = text_get(part, "type");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (json_object_is_type(type, json_type_string) && text_is(text_string(type), known[i]))
            return true;
    return false;
}

void text_add_thought(struct text_writer *w, struct json_object *message, const char *first,
                      const char *second, struct str *out)
{
    const char *const field[] = {first, second, "thinking"};
    static const char *const inside[] = {"thinking", "reasoning", "text"};
    struct text_view v = {NULL, 0};
    for (size_t i = 0; i < 3 && !v.n; i++)
        v = text_get_string(w, message, field[i]);
    str_add(out, v.at, v.n);
    struct json_object *parts = text_get(message, "content");
    if (v.n || !json_object_is_type(parts, json_type_array))
        return;
    for (size_t i = 0; i < json_object_array_length(parts); i++) {
        struct json_object *part = json_object_array_get_idx(parts, i), *text = NULL;
        for (size_t k = 0; k < 3 && text_is_thought(part) && !text; k++)
            text = text_get(part, inside[k]);
        if (!json_object_is_type(text, json_type_string) || !json_object_get_string_len(text))
            continue;
        str_adds(out, out->n ? "\n" : "");
        str_add(out, text_string(text).at, text_string(text).n);
    }
}

bool text_truth(struct json_object *v)
{
    switch (json_object_get_type(v)) {
    case json_type_null:
        return false;
    case json_type_boolean:
        return json_object_get_boolean(v);
    case json_type_int:
    case json_type_double:
        return json_object_get_double(v) != 0;
    case json_type_string:
        return json_object_get_string_len(v) > 0;
    case json_type_array:
        return json_object_array_length(v) > 0;
    case json_type_object:
        return json_object_object_length(v) > 0;
    }
    return false;
}

/* Simple case mapping, plus the one letter whose full lower case is two.  (A final sigma
 * stays sigma: it would only move a key past another that differs in nothing else.) */
static void add_lower(struct str *s, const char *key)
{
    const size_t n = strlen(key);
    for (size_t i = 0; i < n;) {
        uint32_t c;
        char utf8[4];
        const size_t used = utf8_decode(key + i, n - i, &c);
        if (c == 0x130)
            str_adds(s, "i\xCC\x87");
        else if (c == UTF8_BAD)
            str_add(s, key + i, used);
        else
            str_add(s, utf8, utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)c), utf8));
        i += used;
    }
    str_addc(s, 0);
}

static int by_key(const void *a, const void *b)
{
    const struct text_pair *x = a, *y = b;
    const int c = strcmp(x->low, y->low);
    return c ? c : (x->i > y->i) - (x->i < y->i);
}

bool text_sort(struct text_writer *w, struct json_object *o, struct text_sorted *out)
{
    const size_t n = (size_t)json_object_object_length(o);
    struct text_pair *at = mem_calloc(n, sizeof *at);
    struct str low;
    str_init(&low);
    size_t i = 0;
    if (at) {
        json_object_object_foreach(o, key, value)
        {
            at[i] = (struct text_pair){key, NULL, value, low.n};
            i++;
            add_lower(&low, key);
        }
    }
    char *lower = str_detach(&low);
    if (!at || !lower) {
        mem_free(at);
        mem_free(lower);
        return text_fail_nomem(w);
    }
    for (i = 0; i < n; i++) {
        at[i].low = lower + at[i].i;
        at[i].i = i;
    }
    qsort(at, n, sizeof *at, by_key);
    *out = (struct text_sorted){at, n, lower};
    return true;
}

void text_sorted_release(struct text_sorted *s)
{
    mem_free(s->at);
    mem_free(s->low);
    *s = (struct text_sorted){0};
}
