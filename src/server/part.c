/* SPDX-License-Identifier: Apache-2.0 */
#include "server/part.h"

#include "base/utf8.h"

#include <string.h>

static bool is_one_of(struct view type, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (view_is(type, names[i]))
            return true;
    return false;
}
#define IS_ONE_OF(type, names) is_one_of(type, names, sizeof(names) / sizeof *(names))

static bool has(struct json_object *o, const char *key)
{
    return json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, key, NULL);
}

static bool add(struct str *out, struct view t)
{
    if (!t.at)
        return false;
    str_add(out, t.at, t.n);
    return true;
}

/* A string, or a list of parts with texts: Mistral's form of thoughts. */
static bool add_thought(struct str *out, struct json_object *v)
{
    bool any = add(out, view_of(v));
    for (size_t i = 0; json_object_is_type(v, json_type_array) && i < json_object_array_length(v);
         i++)
        any = add(out, view_member(json_object_array_get_idx(v, i), "text")) || any;
    return any;
}

static enum part read_thought(struct json_object *part, struct str *text)
{
    static const char *const member[] = {"thinking", "reasoning", "reasoning_content",
                                         "text",     "content",   "summary"};
    for (size_t i = 0; i < sizeof member / sizeof *member; i++)
        if (add_thought(text, view_get(part, member[i])))
            return PART_THOUGHT;
    return PART_NONE;
}

/* ---- files that are text ---- */

static bool add_base64(struct str *out, struct view t)
{
    unsigned bits = 0, n = 0;
    while (t.n && t.at[t.n - 1] == '=')
        t.n--;
    for (size_t i = 0; i < t.n; i++) {
        const int v = view_base64_value(t.at[i]);
        if (v < 0)
            return false;
        bits = bits << 6 | (unsigned)v;
        n += 6;
        if (n >= 8)
            str_addc(out, (char)(bits >> (n -= 8) & 0xFF));
    }
    return true;
}

/* A file of "data:text/..." (or JSON, XML) with its name in front; false: it is none, or no
 * UTF-8. */
static bool add_file(struct str *out, struct json_object *part)
{
    static const char *const kinds[] = {"data:text/", "data:application/json",
                                        "data:application/xml"};
    struct json_object *inner = view_get(part, "file");
    struct json_object *file = json_object_is_type(inner, json_type_object) ? inner : part;
    const struct view data = view_member(file, "file_data"), name = view_member(file, "filename");
    const char *comma = data.at ? memchr(data.at, ',', data.n) : NULL;
    bool is_text = false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        is_text = is_text || view_starts(data, kinds[i]);
    if (!is_text || !comma)
        return false;
    const struct view head = {data.at, (size_t)(comma - data.at)},
                      rest = {comma + 1, data.n - head.n - 1};
    struct str text;
    str_init(&text);
    bool ok = true;
    if (view_ends(head, ";base64"))
        ok = add_base64(&text, rest);
    else
        view_add_percent(&text, rest);
    ok = ok && str_ok(&text) && utf8_valid(text.at, text.n) && !memchr(text.at, 0, text.n);
    if (ok && name.n) {
        str_add(out, name.at, name.n);
        str_adds(out, ":\n");
    }
    if (ok)
        str_add(out, text.at, text.n);
    str_release(&text);
    return ok;
}

bool part_is_mistyped(struct json_object *part)
{
    if (part && !json_object_is_type(part, json_type_object))
        return !json_object_is_type(part, json_type_string);
    return view_get(part, "type") && !view_member(part, "type").at;
}

enum part part_read(struct json_object *part, struct str *text)
{
    static const char *const texts[] = {"text", "input_text", "output_text", "refusal"};
    static const char *const thoughts[] = {
        "thinking",       "reasoning",    "reasoning_text", "reasoning_content",
        "reasoning.text", "summary_text", "thought",        "reasoning.summary"};
    static const char *const sealed[] = {"redacted_thinking", "reasoning.encrypted"};
    static const char *const media[] = {
        "image",       "image_url",  "input_image", "audio",       "audio_url",
        "input_audio", "video",      "video_url",   "input_video", "file",
        "file_url",    "input_file", "media",       "document",    "container_upload"};
    const struct view type = view_member(part, "type");
    if (!part)
        return PART_NONE;
    if (add(text, view_of(part)))
        return PART_TEXT;
    if (part_is_mistyped(part))
        return PART_MISTYPED;
    if (IS_ONE_OF(type, thoughts))
        return read_thought(part, text);
    if (IS_ONE_OF(type, sealed))
        return PART_NONE;
    if ((view_is(type, "file") || view_is(type, "input_file")) && add_file(text, part))
        return PART_TEXT;
    if (IS_ONE_OF(type, media))
        return PART_MEDIUM;
    const char *key = view_is(type, "refusal") ? "refusal" : "text";
    if (add(text, view_member(part, key)))
        return PART_TEXT;
    if (has(part, key) && !view_get(part, key))
        return PART_NONE;
    if (IS_ONE_OF(type, texts) || !type.at)
        return PART_BROKEN;
    return PART_UNKNOWN;
}

bool part_is_block(struct view type)
{
    static const char *const blocks[] = {"search_result", "tool_reference", "tool_addition",
                                         "tool_removal"};
    return IS_ONE_OF(type, blocks) || view_ends(type, "_result");
}

static bool is_part(struct json_object *v)
{
    return !v || json_object_is_type(v, json_type_string) ||
           (!part_is_mistyped(v) && (view_member(v, "type").at || view_member(v, "text").at));
}

bool part_is_content(struct json_object *content)
{
    if (!json_object_is_type(content, json_type_array))
        return is_part(content);
    for (size_t i = 0; i < json_object_array_length(content); i++)
        if (!is_part(json_object_array_get_idx(content, i)))
            return false;
    return true;
}
