/* SPDX-License-Identifier: Apache-2.0 */
#include "server/view.h"

#include <string.h>

struct view view_of(struct json_object *v)
{
    if (!json_object_is_type(v, json_type_string))
        return (struct view){NULL, 0};
    return (struct view){json_object_get_string(v), (size_t)json_object_get_string_len(v)};
}

struct view view_member(struct json_object *o, const char *key)
{
    return view_of(view_get(o, key));
}

bool view_is(struct view t, const char *s)
{
    return t.at && t.n == strlen(s) && memcmp(t.at, s, t.n) == 0;
}

bool view_starts(struct view t, const char *s)
{
    const size_t n = strlen(s);
    return t.at && t.n >= n && memcmp(t.at, s, n) == 0;
}

bool view_ends(struct view t, const char *s)
{
    const size_t n = strlen(s);
    return t.at && t.n >= n && memcmp(t.at + t.n - n, s, n) == 0;
}

const char *view_cut(struct view t, char space[64])
{
    const size_t n = t.n < 63 ? t.n : 63;
    if (t.at)
        memcpy(space, t.at, n);
    space[t.at ? n : 0] = 0;
    return space;
}

const char *view_type(struct json_object *v)
{
    static const char *const name[] = {"null",      "a boolean", "a number", "a number",
                                       "an object", "an array",  "a string"};
    return name[json_object_get_type(v)];
}

void view_put_json(struct str *s, struct json_object *v)
{
    const int flags = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
    size_t n;
    const char *text = json_object_to_json_string_length(v, flags, &n);
    if (text)
        str_add(s, text, n);
    else
        s->failed = true;
}

void view_put(struct str *s, struct view t)
{
    str_add_json(s, t.at ? t.at : "", t.n);
}

void view_put_comma(struct str *s)
{
    if (s->n && s->at[s->n - 1] != '[' && s->at[s->n - 1] != '{')
        str_addc(s, ',');
}

int view_base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c == '-' ? '+' : c == '_' ? '/' : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

void view_add_percent(struct str *out, struct view t)
{
    for (size_t i = 0; i < t.n; i++) {
        const bool is_code = t.at[i] == '%' && t.n - i > 2 && str_hex_value(t.at[i + 1]) >= 0 &&
                             str_hex_value(t.at[i + 2]) >= 0;
        str_addc(out, is_code ? (char)(str_hex_value(t.at[i + 1]) * 16 + str_hex_value(t.at[i + 2]))
                              : t.at[i]);
        i += is_code ? 2 : 0;
    }
}
