/* SPDX-License-Identifier: Apache-2.0 */
/*
 * template_gemma4 - the Gemma 4 prompt, by the rules of Google's template of 2026-07-09.
 *
 * A turn is <|turn>ROLE\n ... <turn|>\n.  Calls, results and the text around them share one
 * model turn; role "tool" messages never have a turn of their own.
 *
 * Two deviations from the template (docs/how/gemma4.md): the text of a message with calls stands in
 * front of them, and the schemas of tools are normalised before they are shown.
 */
#include "text/template.h"
#include "text/tool_schema.h"

#include "base/mem.h"
#include <string.h>
#include <utf8proc.h>

#define QUOTE "<|\"|>"

enum role { SYSTEM, USER, ASSISTANT, TOOL };

/* What the last shown message ended with: decides how the model goes on. */
enum ending { END_TEXT, END_CALL, END_RESPONSE };

struct gemma {
    struct text_writer *w;
    const struct text_chat_options *o;
    struct json_object *messages;
    size_t first, n;  /* messages [first, n) are turns; one before is in the system turn */
    size_t last_user; /* n: none */
    enum ending ending;
};

static void put_quoted(struct text_writer *w, struct text_view v)
{
    text_mark(w, QUOTE);
    text_put(w, v);
    text_mark(w, QUOTE);
}

/* null, "quoted" text, true, numbers, {key:value} by key, [values]. */
static void put_value(struct text_writer *w, struct json_object *v, bool quote_keys, int depth);

/* key:value,... of a map, without braces. */
static void put_members(struct text_writer *w, struct json_object *v, bool quote_keys, int depth)
{
    struct text_sorted s;
    if (!text_sort(w, v, &s))
        return;
    for (size_t i = 0; i < s.n; i++) {
        const struct text_view key = {s.at[i].key, strlen(s.at[i].key)};
        text_puts(w, i ? "," : "");
        if (quote_keys)
            put_quoted(w, key);
        else
            text_put(w, key);
        text_puts(w, ":");
        put_value(w, s.at[i].value, quote_keys, depth + 1);
    }
    text_sorted_release(&s);
}

static void put_value(struct text_writer *w, struct json_object *v, bool quote_keys, int depth)
{
    if (depth > TEXT_DEPTH) {
        text_fail(w, "nested deeper than the limit of %d", TEXT_DEPTH);
        return;
    }
    switch (json_object_get_type(v)) {
    case json_type_null:
        text_puts(w, "null");
        break;
    case json_type_string:
        put_quoted(w, text_string(v));
        break;
    case json_type_boolean:
        text_puts(w, json_object_get_boolean(v) ? "true" : "false");
        break;
    case json_type_int:
    case json_type_double:
        text_put_number(w, v);
        break;
    case json_type_object:
        text_puts(w, "{");
        put_members(w, v, quote_keys, depth);
        text_puts(w, "}");
        break;
    case json_type_array:
        text_puts(w, "[");
        for (size_t i = 0; i < json_object_array_length(v); i++) {
            text_puts(w, i ? "," : "");
            put_value(w, json_object_array_get_idx(v, i), quote_keys, depth + 1);
        }
        text_puts(w, "]");
        break;
    }
}

/* Declarations of tools.  JSON Schema keywords other than those below are not shown. */

static void put_upper(struct text_writer *w, struct text_view v)
{
    for (size_t i = 0; i < v.n;) {
        utf8proc_int32_t c;
        utf8proc_uint8_t utf8[4];
        const utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)v.at + i, (utf8proc_ssize_t)(v.n - i), &c);
        if (n <= 0) {
            text_put(w, (struct text_view){v.at + i, 1});
            i++;
            continue;
        }
        if (c == 0xDF) /* sharp s: the one common letter whose upper case is two */
            text_puts(w, "SS");
        else
            str_add(&w->out->text, (const char *)utf8,
                    (size_t)utf8proc_encode_char(utf8proc_toupper(c), utf8));
        i += (size_t)n;
    }
}

/* type:"UPPER".  A list of types prints as Python prints it, as in the template. */
static void put_type(struct text_writer *w, struct json_object *type)
{
    text_mark(w, QUOTE);
    if (json_object_is_type(type, json_type_array)) {
        text_puts(w, "[");
        for (size_t i = 0; i < json_object_array_length(type); i++) {
            struct json_object *t = json_object_array_get_idx(type, i);
            if (!json_object_is_type(t, json_type_string))
                text_fail(w, "'type' holds %s, not only strings", text_type_name(t));
            text_puts(w, i ? ", '" : "'");
            put_upper(w, text_string(t));
            text_puts(w, "'");
        }
        text_puts(w, "]");
    } else if (json_object_is_type(type, json_type_string)) {
        put_upper(w, text_string(type));
    } else if (type) {
        text_fail(w, "'type' is %s, not a string", text_type_name(type));
    }
    text_mark(w, QUOTE);
}

static bool is_type(struct json_object *type, const char *name)
{
    if (!json_object_is_type(type, json_type_string))
        return false;
    const struct text_view t = text_string(type);
    if (t.n != strlen(name))
        return false;
    for (size_t i = 0; i < t.n; i++)
        if ((t.at[i] | 32) != (name[i] | 32))
            return false;
    return true;
}

/* [Q a Q,Q b Q] */
static void put_names(struct text_writer *w, struct json_object *names)
{
    text_puts(w, "[");
    for (size_t i = 0; i < json_object_array_length(names); i++) {
        struct json_object *name = json_object_array_get_idx(names, i);
        if (!json_object_is_type(name, json_type_string)) {
            text_fail(w, "'required' holds %s, not only strings", text_type_name(name));
            return;
        }
        text_puts(w, i ? "," : "");
        put_quoted(w, text_string(name));
    }
    text_puts(w, "]");
}

static bool is_standard(const char *key)
{
    static const char *const standard[] = {"description", "type", "properties", "required",
                                           "nullable"};
    for (size_t i = 0; i < sizeof standard / sizeof *standard; i++)
        if (strcmp(key, standard[i]) == 0)
            return true;
    return false;
}

static void put_properties(struct text_writer *w, struct json_object *properties,
                           bool skip_standard, int depth);

/* The items of an array schema, key by key. */
static void put_items(struct text_writer *w, struct json_object *items, int depth)
{
    struct text_sorted s;
    if (!text_sort(w, items, &s))
        return;
    const char *comma = "";
    for (size_t i = 0; i < s.n; i++) {
        const char *key = s.at[i].key;
        struct json_object *v = s.at[i].value;
        if (!v)
            continue;
        text_puts(w, comma);
        comma = ",";
        text_puts(w, key);
        text_puts(w, ":");
        if (strcmp(key, "properties") == 0) {
            text_puts(w, "{");
            if (json_object_is_type(v, json_type_object))
                put_properties(w, v, false, depth + 1);
            text_puts(w, "}");
        } else if (strcmp(key, "required") == 0) {
            if (text_get_type(w, items, key, json_type_array))
                put_names(w, v);
        } else if (strcmp(key, "type") == 0 && json_object_is_type(v, json_type_array)) {
            text_puts(w, "[");
            for (size_t t = 0; t < json_object_array_length(v); t++) {
                text_puts(w, t ? "," : "");
                put_type(w, json_object_array_get_idx(v, t));
            }
            text_puts(w, "]");
        } else if (strcmp(key, "type") == 0) {
            put_type(w, v);
        } else {
            put_value(w, v, true, depth + 1);
        }
    }
    text_sorted_release(&s);
}

/* The inside of one property's braces. */
static void put_schema(struct text_writer *w, struct json_object *schema, int depth)
{
    struct json_object *type = text_get(schema, "type");
    struct json_object *list;
    const struct text_view description = text_get_string(w, schema, "description");
    if (description.n) {
        text_puts(w, "description:");
        put_quoted(w, description);
        text_puts(w, ",");
    }
    if (is_type(type, "STRING") && text_truth(list = text_get(schema, "enum"))) {
        text_puts(w, "enum:");
        put_value(w, list, true, depth + 1);
        text_puts(w, ",");
    }
    struct json_object *items = text_get(schema, "items");
    if (is_type(type, "ARRAY") && json_object_is_type(items, json_type_object) &&
        text_truth(items)) {
        text_puts(w, "items:{");
        put_items(w, items, depth + 1);
        text_puts(w, "},");
    }
    if (text_truth(text_get(schema, "nullable")))
        text_puts(w, "nullable:true,");
    if (is_type(type, "OBJECT")) {
        struct json_object *inner = text_get(schema, "properties");
        const bool named = json_object_is_type(inner, json_type_object);
        text_puts(w, "properties:{");
        put_properties(w, named ? inner : schema, !named, depth + 1);
        text_puts(w, "},");
        if (text_truth(list = text_get_type(w, schema, "required", json_type_array))) {
            text_puts(w, "required:");
            put_names(w, list);
            text_puts(w, ",");
        }
    }
    text_puts(w, "type:");
    put_type(w, type);
}

static void put_properties(struct text_writer *w, struct json_object *properties,
                           bool skip_standard, int depth)
{
    if (depth > TEXT_DEPTH) {
        text_fail(w, "nested deeper than the limit of %d", TEXT_DEPTH);
        return;
    }
    struct text_sorted s;
    if (!text_sort(w, properties, &s))
        return;
    const char *comma = "";
    for (size_t i = 0; i < s.n; i++) {
        if (skip_standard && is_standard(s.at[i].key))
            continue;
        text_puts(w, comma);
        comma = ",";
        text_puts(w, s.at[i].key);
        text_puts(w, ":{");
        put_schema(w, s.at[i].value, depth + 1);
        text_puts(w, "}");
    }
    text_sorted_release(&s);
}

/* The brace after parameters is written with the type alone, as in the template. */
static void put_parameters(struct text_writer *w, struct json_object *parameters)
{
    struct json_object *v;
    text_puts(w, ",parameters:{");
    if (text_truth(v = text_get_type(w, parameters, "properties", json_type_object))) {
        text_puts(w, "properties:{");
        put_properties(w, v, false, 0);
        text_puts(w, "},");
    }
    if (text_truth(v = text_get_type(w, parameters, "required", json_type_array))) {
        text_puts(w, "required:");
        put_names(w, v);
        text_puts(w, ",");
    }
    if (text_truth(v = text_get(parameters, "type"))) {
        text_puts(w, "type:");
        put_type(w, v);
        text_puts(w, "}");
    }
}

static void put_response_schema(struct text_writer *w, struct json_object *response)
{
    text_puts(w, ",response:{");
    const struct text_view description = text_get_string(w, response, "description");
    if (description.n) {
        text_puts(w, "description:");
        put_quoted(w, description);
        text_puts(w, ",");
    }
    struct json_object *type = text_get(response, "type");
    if (is_type(type, "OBJECT")) {
        text_puts(w, "type:");
        put_type(w, type);
        text_puts(w, "}");
    }
}

static void put_tool(struct text_writer *w, struct json_object *tool)
{
    struct json_object *function = text_get_type(w, tool, "function", json_type_object), *v;
    const struct text_view name = text_get_string(w, function, "name");
    if (!name.n) {
        text_fail(w, "'function.name' is missing or empty");
        return;
    }
    text_mark(w, "<|tool>");
    text_puts(w, "declaration:");
    text_put(w, name);
    text_puts(w, "{description:");
    put_quoted(w, text_get_string(w, function, "description"));
    if (text_truth(v = text_get_type(w, function, "parameters", json_type_object))) {
        v = text_tool_schema(w, v, true);
        put_parameters(w, v);
        json_object_put(v);
    }
    if ((v = text_get_type(w, function, "response", json_type_object)))
        put_response_schema(w, v);
    text_puts(w, "}");
    text_mark(w, "<tool|>");
}

/* Messages. */

static struct json_object *message_at(const struct gemma *g, size_t i)
{
    return json_object_array_get_idx(g->messages, i);
}

static bool read_role(struct text_writer *w, struct json_object *message, enum role *role)
{
    static const struct {
        const char *name;
        enum role role;
    } known[] = {{"system", SYSTEM},
                 {"developer", SYSTEM},
                 {"user", USER},
                 {"assistant", ASSISTANT},
                 {"tool", TOOL}};
    if (!json_object_is_type(message, json_type_object))
        return text_fail(w, "%s, not an object", text_type_name(message));
    const struct text_view name = text_get_string(w, message, "role");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (text_is(name, known[i].name)) {
            *role = known[i].role;
            return true;
        }
    if (!name.at)
        return text_fail(w, "'role' is missing");
    return text_fail(w, "'role' is '%.40s', not system, developer, user, assistant or tool",
                     name.at);
}

static enum role role_of(const struct gemma *g, size_t i)
{
    enum role role = USER; /* all roles were read before */
    (void)read_role(g->w, message_at(g, i), &role);
    return role;
}

/* How text is written: without white space at its ends; an assistant's without thoughts, too;
 * and what stands in front of a call as the model wrote it, except for thoughts. */
enum manner { TRIMMED, ANSWER, BEFORE_CALL };

/* The text of an assistant without <|channel>...<channel|>; an opening without an end hides
 * the rest of its piece. */
static bool strip_thoughts(struct str *kept, struct text_view v)
{
    for (size_t i = 0; i < v.n;) {
        const size_t end = text_seek(v, i, "<channel|>");
        const struct text_view piece = {v.at + i, end - i};
        str_add(kept, piece.at, text_seek(piece, 0, "<|channel>"));
        i = end + strlen("<channel|>");
    }
    return str_ok(kept);
}

static bool follows_token(const struct text_prompt *p)
{
    return p->n_special && p->special[p->n_special - 1].end == p->text.n;
}

/* Line feeds at the beginning of a turn would become one token with the one of its header. */
static void put_text(struct text_writer *w, struct text_view v, enum manner manner, bool first)
{
    struct str kept;
    if (manner == TRIMMED) {
        text_put(w, text_trim(v));
        return;
    }
    str_init(&kept);
    if (!strip_thoughts(&kept, v))
        text_fail_nomem(w);
    const struct text_view all = {kept.at, kept.n}, inner = text_trim(all);
    if (manner == ANSWER)
        text_put(w, inner);
    else if (first && !follows_token(w->out))
        text_put(w, (struct text_view){inner.at, (size_t)(all.at + all.n - inner.at)});
    else
        text_put(w, all);
    str_release(&kept);
}

static const char *medium_of(struct text_view type)
{
    if (text_is(type, "image") || text_is(type, "image_url"))
        return "<|image|>";
    if (text_is(type, "audio") || text_is(type, "input_audio"))
        return "<|audio|>";
    return text_is(type, "video") ? "<|video|>" : NULL;
}

/* Part i of a content list: its text, or its medium. */
static void read_part(struct text_writer *w, struct json_object *parts, size_t i,
                      struct text_view *text, const char **medium)
{
    struct json_object *part = json_object_array_get_idx(parts, i);
    *text = (struct text_view){NULL, 0};
    *medium = NULL;
    if (!json_object_is_type(part, json_type_object)) {
        text_fail(w, "'content' part %zu is %s, not an object", i, text_type_name(part));
        return;
    }
    const struct text_view type = text_get_string(w, part, "type");
    if (text_is_thought(part))
        return; /* put_thought() */
    if (text_is(type, "text")) {
        *text = text_get_string(w, part, "text");
        if (!text->at && !json_object_object_get_ex(part, "text", NULL))
            text_fail(w, "'content' part %zu has no 'text'", i);
        return;
    }
    *medium = medium_of(type);
    if (!*medium)
        text_fail(w,
                  "'content' part %zu has type '%.40s', not text, image_url, input_audio or video",
                  i, type.at ? type.at : "");
}

static void put_content(struct text_writer *w, struct json_object *content, enum manner manner)
{
    if (json_object_is_type(content, json_type_string)) {
        put_text(w, text_string(content), manner, true);
        return;
    }
    if (content && !json_object_is_type(content, json_type_array)) {
        text_fail(w, "'content' is %s, not a string or an array", text_type_name(content));
        return;
    }
    const size_t begin = w->out->text.n;
    for (size_t i = 0; content && i < json_object_array_length(content); i++) {
        struct text_view text;
        const char *medium;
        read_part(w, content, i, &text, &medium);
        if (medium)
            text_mark_medium(w, medium, json_object_array_get_idx(content, i));
        else
            put_text(w, text, manner, w->out->text.n == begin);
    }
}

/* The first message, when it belongs into the system turn: each part is followed by a space.
 * Google's template writes only this space for a medium; with system_media it is shown. */
static void put_system_content(struct gemma *g, struct json_object *content)
{
    struct text_writer *w = g->w;
    if (!json_object_is_type(content, json_type_array)) {
        put_content(w, content, TRIMMED);
        return;
    }
    for (size_t i = 0; i < json_object_array_length(content); i++) {
        struct text_view text;
        const char *medium;
        read_part(w, content, i, &text, &medium);
        if (medium && g->o->system_media)
            text_mark_medium(w, medium, json_object_array_get_idx(content, i));
        else if (medium)
            w->out->n_media++;
        text_put(w, text_trim(text));
        text_puts(w, " ");
    }
}

static void put_arguments(struct text_writer *w, struct json_object *arguments)
{
    if (!json_object_is_type(arguments, json_type_string)) {
        if (json_object_is_type(arguments, json_type_object))
            put_members(w, arguments, false, 0);
        else if (arguments)
            text_fail(w, "'arguments' is %s, not an object or its JSON text",
                      text_type_name(arguments));
        return;
    }
    const struct text_view text = text_string(arguments);
    if (!text_trim(text).n)
        return;
    struct json_object *parsed = NULL;
    struct err why;
    if (json_parse(text.at, text.n, NULL, &parsed, &why) != INGLE_OK) {
        if (why.status == INGLE_NOMEM)
            text_fail_nomem(w);
        text_fail(w, "'arguments' is not JSON: %.160s", why.msg);
        return;
    }
    if (json_object_is_type(parsed, json_type_object))
        put_members(w, parsed, false, 0);
    else
        text_fail(w, "'arguments' holds %s, not an object", text_type_name(parsed));
    json_object_put(parsed);
}

static void put_calls(struct gemma *g, size_t i, struct json_object *calls)
{
    struct text_writer *w = g->w;
    for (size_t c = 0; c < json_object_array_length(calls); c++) {
        text_at(w, "message %zu: tool call %zu", i, c);
        struct json_object *call = json_object_array_get_idx(calls, c);
        struct json_object *function = text_get_type(w, call, "function", json_type_object);
        const struct text_view name = text_get_string(w, function, "name");
        if (!name.n) {
            text_fail(w, "'function.name' is missing or empty");
            return;
        }
        text_mark(w, "<|tool_call>");
        text_puts(w, "call:");
        text_put(w, name);
        text_puts(w, "{");
        put_arguments(w, text_get(function, "arguments"));
        text_puts(w, "}");
        text_mark(w, "<tool_call|>");
    }
    text_at(w, "message %zu", i);
}

/* <|tool_response>response:NAME{...}<tool_response|>; value or, when that is NULL, text. */
static void put_response(struct text_writer *w, struct text_view name, struct json_object *value,
                         const struct text_view *text)
{
    text_mark(w, "<|tool_response>");
    text_puts(w, "response:");
    text_put(w, name.n ? name : TEXT_LITERAL("unknown"));
    text_puts(w, "{");
    if (json_object_is_type(value, json_type_object)) {
        put_members(w, value, false, 0);
    } else {
        text_puts(w, "value:");
        if (text)
            put_quoted(w, *text);
        else
            put_value(w, value, false, 0);
    }
    text_puts(w, "}");
    text_mark(w, "<tool_response|>");
}

/* A list of parts as one response of its texts, media after it. */
static void put_parts_response(struct text_writer *w, struct text_view name,
                               struct json_object *parts)
{
    struct str all;
    struct text_view text;
    const char *medium;
    str_init(&all);
    for (size_t i = 0; i < json_object_array_length(parts); i++) {
        read_part(w, parts, i, &text, &medium);
        str_add(&all, text.at, text.n);
    }
    if (!str_ok(&all))
        text_fail_nomem(w);
    text = (struct text_view){all.at, all.n};
    put_response(w, name, NULL, &text);
    str_release(&all);
    for (size_t i = 0; i < json_object_array_length(parts); i++) {
        read_part(w, parts, i, &text, &medium);
        if (medium)
            text_mark_medium(w, medium, json_object_array_get_idx(parts, i));
    }
}

/* {call id: function name}, the last call of an id counting.  The names are shared. */
static struct json_object *names_by_id(struct text_writer *w, struct json_object *calls)
{
    struct json_object *names = json_object_new_object();
    for (size_t c = 0; names && c < json_object_array_length(calls); c++) {
        struct json_object *call = json_object_array_get_idx(calls, c);
        const struct text_view id = text_get_string(w, call, "id");
        struct json_object *name = text_get(text_get(call, "function"), "name");
        if (id.at && name && json_object_object_add(names, id.at, json_object_get(name)) != 0) {
            json_object_put(name);
            json_object_put(names);
            names = NULL;
        }
    }
    if (!names)
        text_fail_nomem(w);
    return names;
}

/* The tool messages right after message i.  True: there was one. */
static bool put_tool_messages(struct gemma *g, size_t i, struct json_object *calls)
{
    struct text_writer *w = g->w;
    struct json_object *names = names_by_id(w, calls);
    bool any = false;
    for (size_t t = i + 1; names && t < g->n && role_of(g, t) == TOOL; t++) {
        text_at(w, "message %zu", t);
        struct json_object *message = message_at(g, t), *content = text_get(message, "content");
        const struct text_view id = text_get_string(w, message, "tool_call_id");
        struct text_view name = {NULL, 0};
        if (id.at)
            name = text_get_string(w, names, id.at);
        if (!name.at)
            name = text_get_string(w, message, "name");
        if (json_object_is_type(content, json_type_array))
            put_parts_response(w, name, content);
        else
            put_response(w, name, content, NULL);
        any = true;
    }
    json_object_put(names);
    text_at(w, "message %zu", i);
    return any;
}

static bool put_tool_responses(struct gemma *g, size_t i, struct json_object *responses)
{
    for (size_t r = 0; r < json_object_array_length(responses); r++) {
        text_at(g->w, "message %zu: tool response %zu", i, r);
        struct json_object *response = json_object_array_get_idx(responses, r);
        if (!json_object_is_type(response, json_type_object))
            return text_fail(g->w, "%s, not an object", text_type_name(response));
        put_response(g->w, text_get_string(g->w, response, "name"), text_get(response, "response"),
                     NULL);
    }
    text_at(g->w, "message %zu", i);
    return true;
}

static void put_thought(struct gemma *g, size_t i, struct json_object *message, bool has_calls)
{
    struct text_writer *w = g->w;
    struct str thought;
    str_init(&thought);
    text_add_thought(w, message, "reasoning", "reasoning_content", &thought);
    const bool current = g->last_user == g->n || i > g->last_user;
    if (!str_ok(&thought))
        text_fail_nomem(w);
    if (thought.n && (current || (g->o->preserve_thinking && has_calls))) {
        text_mark(w, "<|channel>");
        text_puts(w, "thought\n");
        text_put(w, (struct text_view){thought.at, thought.n});
        text_puts(w, "\n");
        text_mark(w, "<channel|>");
    }
    str_release(&thought);
}

/* The next message that is not of a tool, or n. */
static size_t next_shown(const struct gemma *g, size_t i)
{
    for (i++; i < g->n && role_of(g, i) == TOOL; i++)
        ;
    return i;
}

static void put_message(struct gemma *g, size_t i, bool same_turn)
{
    struct text_writer *w = g->w;
    struct json_object *message = message_at(g, i);
    const bool assistant = role_of(g, i) == ASSISTANT;
    text_at(w, "message %zu", i);
    if (!same_turn) {
        text_mark(w, "<|turn>");
        text_put(w, assistant ? TEXT_LITERAL("model") : text_get_string(w, message, "role"));
        text_puts(w, "\n");
    }
    struct json_object *calls = text_get_type(w, message, "tool_calls", json_type_array);
    struct json_object *responses = text_get_type(w, message, "tool_responses", json_type_array);
    const bool has_calls = text_truth(calls);
    /* tool_responses are followed by what the model said then, in the same message. */
    const bool in_front = assistant && has_calls && !text_truth(responses);
    bool answered = false, spoke = false;
    put_thought(g, i, message, has_calls);
    if (in_front)
        put_content(w, text_get(message, "content"), BEFORE_CALL);
    if (has_calls)
        put_calls(g, i, calls);
    if (text_truth(responses))
        answered = put_tool_responses(g, i, responses);
    else if (has_calls)
        answered = put_tool_messages(g, i, calls);

    if (!in_front) {
        const size_t content_at = w->out->text.n;
        put_content(w, text_get(message, "content"), assistant ? ANSWER : TRIMMED);
        spoke = w->out->text.n > content_at;
    }
    const size_t next = next_shown(g, i);
    g->ending = answered ? END_RESPONSE : END_TEXT;
    if (has_calls && !answered) {
        text_mark(w, "<|tool_response>");
        g->ending = END_CALL;
    } else if (assistant && next < g->n && role_of(g, next) == ASSISTANT &&
               (!has_calls || answered)) {
        /* the same turn goes on */
    } else if (!(answered && !spoke && next == g->n)) {
        text_mark(w, "<turn|>");
        text_puts(w, "\n");
    }
}

static void put_system_turn(struct gemma *g, struct json_object *tools)
{
    struct text_writer *w = g->w;
    const bool has_system = g->n && role_of(g, 0) == SYSTEM;
    if (!g->o->thinking && !text_truth(tools) && !has_system)
        return;
    text_mark(w, "<|turn>");
    text_puts(w, "system\n");
    if (g->o->thinking) {
        text_mark(w, "<|think|>");
        text_puts(w, "\n");
    }
    if (has_system) {
        text_at(w, "message 0");
        put_system_content(g, text_get(message_at(g, 0), "content"));
        g->first = 1;
    }
    for (size_t t = 0; tools && t < json_object_array_length(tools); t++) {
        text_at(w, "tool %zu", t);
        put_tool(w, json_object_array_get_idx(tools, t));
    }
    text_mark(w, "<turn|>");
    text_puts(w, "\n");
}

static void put_generation_prompt(struct gemma *g)
{
    struct text_writer *w = g->w;
    if (g->ending == END_TEXT) {
        text_mark(w, "<|turn>");
        text_puts(w, "model\n");
    }
    const bool suppress = g->ending == END_TEXT && g->o->large && !g->o->thinking;
    if (suppress || (g->ending == END_RESPONSE && g->o->thinking)) {
        text_mark(w, "<|channel>");
        text_puts(w, "thought\n");
    }
    if (suppress)
        text_mark(w, "<channel|>");
}

void text_render_gemma4(struct text_writer *w, struct json_object *messages,
                        struct json_object *tools, const struct text_chat_options *o)
{
    struct gemma g = {.w = w, .o = o, .messages = messages};
    g.n = json_object_array_length(messages);
    g.last_user = g.n;
    for (size_t i = 0; i < g.n; i++) {
        enum role role = USER;
        text_at(w, "message %zu", i);
        if (!read_role(w, message_at(&g, i), &role))
            return;
        if (role == USER)
            g.last_user = i;
    }
    text_mark(w, "<bos>");
    put_system_turn(&g, tools);
    bool same_turn = false; /* the last shown message was an assistant's */
    for (size_t i = g.first; i < g.n && w->status == INGLE_OK; i++) {
        const enum role role = role_of(&g, i);
        if (role == TOOL)
            continue;
        put_message(&g, i, same_turn && role == ASSISTANT);
        same_turn = role == ASSISTANT;
    }
    if (o->add_generation_prompt)
        put_generation_prompt(&g);
}
