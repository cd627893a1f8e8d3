/* SPDX-License-Identifier: Apache-2.0 */
/*
 * openai_messages - the messages of a client to those that the chat templates know: every
 * field checked, older spellings translated, what has no meaning left out.
 */
#include "server/fields.h"
#include "server/openai/openai.h"

#include "server/convert.h"
#include "server/medium.h"
#include "server/part.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_TOOL_BYTES = 1 << 20, MAX_CALLS = 1024 };

/* One message on its way. */
struct reading {
    struct str *out;
    struct chat_request *r;
    const struct answer_options *o;
    struct fault *f;
    const struct report_sink *sink;
    bool notes;       /* a note stands for media of the last turn, too */
    size_t i;         /* its number */
    size_t answered;  /* messages before this one have been answered */
    char where[64];   /* "messages[3]" */
    size_t n_calls;   /* tool calls so far */
    /* The calls whose results may come now: those of the last message of the assistant. */
    struct json_object *calls; /* NULL: a function_call */
    size_t first_call, n_open;
    size_t n_results; /* answers to them so far, and ... */
    uint64_t named;   /* ... those of the first 64 calls that were named */
    struct str thought; /* scratch: of an assistant's parts */
};

static bool has_items(struct json_object *v)
{
    return json_object_is_type(v, json_type_array) && json_object_array_length(v) > 0;
}

static void put_text(struct str *out, const char *key, struct json_object *v)
{
    write_member_string(out, key, json_object_get_string(v), (size_t)json_object_get_string_len(v));
}

ATTR_PRINTF(3, 4) static void say(struct reading *m, const char *member, const char *fmt, ...)
{
    char text[200], param[96];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(param, sizeof param, "%s%s%s", m->where, *member ? "." : "", member);
    request_fault(m->f, FAULT_REQUEST, param, "'%s' %s", param, text);
}

/* ---- content ---- */

/* What the model cannot be shown: a note where nobody can send it otherwise, else a fault. */
static bool note(struct reading *m, const char *member, struct json_object *part, bool medium)
{
    struct json_object *type =
        json_object_is_type(part, json_type_object) ? request_get(part, "type") : NULL;
    const char *word = type ? json_object_get_string(type) : NULL;
    if (m->i < m->answered || (medium && m->notes)) {
        report(m->sink, INGLE_REPORT_NOTE, "content", "a part", "shown as '" PART_NOTE "'");
        return true;
    }
    if (medium)
        say(m, member, "%s%.60s: this model reads %s (--media note)",
            word ? "has the type " : "is an image", word ? word : "", medium_readable(m->o));
    else if (word)
        say(m, member, "has the type %.60s, not " PART_TYPES, word);
    else
        say(m, member, "is neither a string nor a part with a type");
    return false;
}

static void say_mistyped(struct reading *m, const char *member, struct json_object *part)
{
    if (!json_object_is_type(part, json_type_object))
        say(m, member, "is neither a string nor a part with a type");
    else
        say(m, member, "has the type %.60s, which is no string",
            json_object_get_string(request_get(part, "type")));
}

static void put_text_part(struct reading *m, const char *text, size_t n)
{
    write_open(m->out, '{');
    write_member(m->out, "type", "text");
    write_member_string(m->out, "text", text, n);
    write_close(m->out, '}');
}

/* False: the model is not shown it. */
static bool put_medium(struct reading *m, struct json_object *part, const char *member, size_t k)
{
    char param[96];
    if (!medium_is_shown(m->o, part))
        return false;
    snprintf(param, sizeof param, "%s.%s", m->where, member);
    const struct medium_place at = {"message", "part", m->i, k, param};
    const int i = medium_read(m->r, part, &at, m->o, m->f);
    if (i >= 0)
        medium_put_part(m->out, m->r, i);
    return true;
}

static void put_part(struct reading *m, struct json_object *part, size_t k)
{
    char member[40];
    struct str text;
    str_init(&text);
    snprintf(member, sizeof member, "content[%zu]", k);
    const enum part kind = part_read(part, &text);
    switch (kind) {
    case PART_TEXT:
        put_text_part(m, text.at, text.n);
        break;
    case PART_THOUGHT:
        str_adds(&m->thought, m->thought.n ? "\n\n" : "");
        str_add(&m->thought, text.at, text.n);
        break;
    case PART_NONE:
        break;
    case PART_BROKEN:
        if (m->i >= m->answered)
            say(m, member, "has no string 'text'");
        break;
    case PART_MISTYPED:
        say_mistyped(m, member, part);
        break;
    case PART_MEDIUM:
    case PART_UNKNOWN:
        if (kind == PART_MEDIUM && put_medium(m, part, member, k))
            break;
        if (note(m, member, part, kind == PART_MEDIUM))
            put_text_part(m, PART_NOTE, sizeof PART_NOTE - 1);
        break;
    }
    m->out->failed |= text.failed;
    str_release(&text);
}

/* Ollama's messages have their images beside the text. */
static void put_images(struct reading *m, struct json_object *images)
{
    for (size_t k = 0;
         has_items(images) && k < json_object_array_length(images) && request_go_on(m->f); k++) {
        struct json_object *image = json_object_array_get_idx(images, k);
        char member[40];
        snprintf(member, sizeof member, "images[%zu]", k);
        if (medium_is_shown(m->o, image) && !request_is_text(image))
            say(m, member, "is no string");
        else if (!put_medium(m, image, member, k) && note(m, "images", NULL, true))
            put_text_part(m, PART_NOTE, sizeof PART_NOTE - 1);
    }
}

/* A list of parts, or one, and images. */
static void put_parts(struct reading *m, struct json_object *v, struct json_object *images)
{
    const bool list = json_object_is_type(v, json_type_array);
    write_key(m->out, "content");
    write_open(m->out, '[');
    put_images(m, images);
    if (!list)
        put_part(m, v, 0);
    for (size_t k = 0; list && k < json_object_array_length(v) && request_go_on(m->f); k++)
        put_part(m, json_object_array_get_idx(v, k), k);
    write_close(m->out, ']');
}

/* needed: there is nothing else in the message.  null is an empty text. */
static void put_content(struct reading *m, struct json_object *o, bool needed)
{
    struct json_object *v = NULL;
    const bool there = json_object_object_get_ex(o, "content", &v);
    struct json_object *images = request_get(o, "images");
    if (images && !json_object_is_type(images, json_type_array))
        say(m, "images", "is no list");
    if (has_items(images)) {
        put_parts(m, v, images);
    } else if (!v) {
        if (needed && !there)
            say(m, "content", "is missing");
        write_member(m->out, "content", "");
    } else if (request_is_text(v)) {
        put_text(m->out, "content", v);
    } else if (json_object_is_type(v, json_type_array) ||
               json_object_is_type(v, json_type_object)) {
        put_parts(m, v, NULL);
    } else {
        say(m, "content", "is neither a string nor a list of parts");
    }
}

/* The result of a tool may be any value: its JSON text. */
static void put_result(struct reading *m, struct json_object *o)
{
    struct json_object *v = request_get(o, "content");
    const size_t answered = m->answered;
    struct str text;
    m->answered = m->i + 1; /* nobody can send it otherwise */
    if (!v || request_is_text(v) || part_is_content(v)) {
        put_content(m, o, false);
    } else {
        str_init(&text);
        request_add_value(&text, v);
        write_member_string(m->out, "content", text.at, text.n);
        m->out->failed |= text.failed;
        str_release(&text);
    }
    m->answered = answered;
}

/* ---- calls and their results ---- */

/* What an id that is missing would have been. */
static void put_id(struct str *out, const char *key, struct json_object *id, size_t number)
{
    write_key(out, key);
    if (request_is_text(id) && json_object_get_string_len(id))
        write_text(out, json_object_get_string(id));
    else
        str_addf(out, "\"call_%zu\"", number);
}

static bool is_call_of(struct json_object *call, struct json_object *name)
{
    struct json_object *fn =
        json_object_is_type(call, json_type_object) ? request_get(call, "function") : NULL;
    struct json_object *own =
        json_object_is_type(fn, json_type_object) ? request_get(fn, "name") : NULL;
    return request_is_text(own) &&
           strcmp(json_object_get_string(own), json_object_get_string(name)) == 0;
}

/* Which call has this result: by the name of its tool, which Ollama's have, else by its place. */
static size_t call_of_result(struct reading *m, struct json_object *o)
{
    struct json_object *name = request_get(o, "tool_name");
    const size_t k = m->n_results++;
    const size_t n = m->calls ? json_object_array_length(m->calls) : 0;
    for (size_t i = 0; request_is_text(name) && i < n && i < 64; i++) {
        if ((m->named >> i & 1) || !is_call_of(json_object_array_get_idx(m->calls, i), name))
            continue;
        m->named |= UINT64_C(1) << i;
        return i;
    }
    return k;
}

/* A result without an id has that of its call. */
static void put_result_id(struct reading *m, struct json_object *o)
{
    struct json_object *id = request_get(o, "tool_call_id");
    const size_t k = call_of_result(m, o);
    if (!request_is_text(id) && m->calls && k < json_object_array_length(m->calls)) {
        struct json_object *call = json_object_array_get_idx(m->calls, k);
        id = json_object_is_type(call, json_type_object) ? request_get(call, "id") : NULL;
    }
    put_id(m->out, "tool_call_id", id, m->first_call + k);
}

/* arguments: a string. */
static void put_arguments(struct str *out, struct json_object *arguments)
{
    struct str object;
    str_init(&object);
    convert_arguments(&object, arguments);
    write_string(out, object.at, object.n);
    out->failed = out->failed || !str_ok(&object);
    str_release(&object);
}

/* A custom tool has an input, which is its one argument. */
static void put_input(struct str *out, struct json_object *input)
{
    struct str object;
    str_init(&object);
    write_open(&object, '{');
    write_key(&object, "input");
    request_add_value(&object, input);
    write_close(&object, '}');
    write_string(out, object.at, object.n);
    out->failed |= object.failed;
    str_release(&object);
}

/* What clients sent of a call, whatever state it was in: a model reads it, and nothing is
 * called. */
static void put_function(struct reading *m, struct json_object *fn)
{
    struct json_object *name = request_get(fn, "name");
    struct json_object *arguments = request_get(fn, "arguments"), *input = request_get(fn, "input");
    write_key(m->out, "function");
    write_open(m->out, '{');
    if (request_is_text(name) && json_object_get_string_len(name))
        put_text(m->out, "name", name);
    else
        write_member(m->out, "name", "unknown");
    write_key(m->out, "arguments");
    if (!arguments && input)
        put_input(m->out, input);
    else if (json_object_is_type(arguments, json_type_object))
        request_add_value(m->out, arguments);
    else
        put_arguments(m->out, arguments);
    write_close(m->out, '}');
}

/* Its function, or what stands beside the id as in other dialects. */
static void put_call(struct reading *m, struct json_object *call, size_t k)
{
    char member[64];
    const bool object = json_object_is_type(call, json_type_object);
    struct json_object *fn = object ? request_get(call, "function") : NULL;
    if (!fn && object)
        fn = request_get(call, "custom");
    if (!fn && object && request_get(call, "name"))
        fn = call;
    snprintf(member, sizeof member, "tool_calls[%zu].function", k);
    if (!json_object_is_type(fn, json_type_object)) {
        say(m, member, "is no object");
        return;
    }
    write_open(m->out, '{');
    put_id(m->out, "id", request_get(call, "id"), m->n_calls++);
    write_member(m->out, "type", "function");
    put_function(m, fn);
    write_close(m->out, '}');
}

static void open_calls(struct reading *m, struct json_object *calls, size_t n)
{
    m->calls = calls;
    m->first_call = m->n_calls;
    m->n_open = n;
    m->n_results = 0;
    m->named = 0;
    write_key(m->out, "tool_calls");
    write_open(m->out, '[');
}

static void put_calls(struct reading *m, struct json_object *calls)
{
    if (json_object_array_length(calls) > MAX_CALLS) {
        say(m, "tool_calls", "has more than %d calls", (int)MAX_CALLS);
        return;
    }
    open_calls(m, calls, json_object_array_length(calls));
    for (size_t k = 0; k < json_object_array_length(calls) && request_go_on(m->f); k++)
        put_call(m, json_object_array_get_idx(calls, k), k);
    write_close(m->out, ']');
}

/* function_call: a call from before there were tools. */
static void put_legacy_call(struct reading *m, struct json_object *call)
{
    open_calls(m, NULL, 1);
    write_open(m->out, '{');
    put_id(m->out, "id", NULL, m->n_calls++);
    write_member(m->out, "type", "function");
    put_function(m, call);
    write_close(m->out, '}');
    write_close(m->out, ']');
}

/* Vendors have four members for it; OpenRouter's is a list of parts. */
static void read_thought(struct reading *m, struct json_object *o)
{
    static const char *const member[] = {"reasoning_content", "reasoning", "thinking"};
    struct json_object *details = request_get(o, "reasoning_details");
    str_clear(&m->thought);
    for (size_t i = 0; i < sizeof member / sizeof *member && !m->thought.n; i++) {
        struct json_object *v = request_get(o, member[i]);
        if (request_is_text(v))
            str_add(&m->thought, json_object_get_string(v), (size_t)json_object_get_string_len(v));
    }
    if (m->thought.n || !json_object_is_type(details, json_type_array))
        return;
    for (size_t i = 0; i < json_object_array_length(details) && request_go_on(m->f); i++) {
        struct json_object *part = json_object_array_get_idx(details, i);
        char place[48];
        snprintf(place, sizeof place, "reasoning_details[%zu]", i);
        if (part_read(part, &m->thought) == PART_MISTYPED)
            say_mistyped(m, place, part);
    }
}

static void put_assistant(struct reading *m, struct json_object *o)
{
    struct json_object *calls = request_get(o, "tool_calls");
    struct json_object *legacy = request_get(o, "function_call");
    struct json_object *refusal = request_get(o, "refusal");
    if (calls && !json_object_is_type(calls, json_type_array)) {
        say(m, "tool_calls", "is no list");
        return;
    }
    read_thought(m, o);
    const bool called = has_items(calls) || json_object_is_type(legacy, json_type_object);
    if (!request_get(o, "content") && request_is_text(refusal))
        put_text(m->out, "content", refusal);
    else
        put_content(m, o, !called && !m->thought.n);
    if (m->thought.n)
        write_member_string(m->out, "reasoning_content", m->thought.at, m->thought.n);
    m->out->failed |= m->thought.failed;
    if (has_items(calls))
        put_calls(m, calls);
    else if (called)
        put_legacy_call(m, legacy);
    else
        m->n_open = 0;
}

/* What nobody called for is text of the user: templates show results after their calls alone. */
static void put_tool(struct reading *m, struct json_object *o)
{
    const bool open = m->n_open > 0;
    write_member(m->out, "role", open ? "tool" : "user");
    put_result(m, o);
    if (open)
        put_result_id(m, o);
}

static const char *role_of(struct json_object *o)
{
    static const struct {
        const char *theirs, *ours;
    } roles[] = {
        {"system", "system"},       {"developer", "developer"}, {"user", "user"}, {"human", "user"},
        {"assistant", "assistant"}, {"model", "assistant"},  {"ai", "assistant"},
        {"tool", "tool"},           {"function", "tool"},
    };
    struct json_object *role =
        json_object_is_type(o, json_type_object) ? request_get(o, "role") : NULL;
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
        if (request_is_text(role) && strcasecmp(json_object_get_string(role), roles[k].theirs) == 0)
            return roles[k].ours;
    return "";
}

static void put_message(struct reading *m, struct json_object *o)
{
    const char *role = role_of(o);
    if (!*role) {
        say(m, "role", "is not system, developer, user, assistant or tool");
        return;
    }
    write_open(m->out, '{');
    if (strcmp(role, "tool") == 0) {
        put_tool(m, o);
    } else {
        write_member(m->out, "role", role);
        if (strcmp(role, "assistant") == 0) {
            put_assistant(m, o);
        } else {
            str_clear(&m->thought);
            put_content(m, o, true);
            m->n_open = 0;
        }
    }
    if (request_is_text(request_get(o, "name")))
        put_text(m->out, "name", request_get(o, "name"));
    write_close(m->out, '}');
}

void openai_read_messages(struct chat_request *r, struct json_object *body,
                          const struct answer_options *o, struct fault *f)
{
    struct reading m = {
        .out = &r->messages, .r = r, .o = o, .f = f, .sink = request_notes(r, &o->sink),
        .notes = o->note_media};
    struct json_object *list = request_get_array(body, "messages", REQUEST_MAX_MESSAGES, f);
    const size_t n = list ? json_object_array_length(list) : 0;
    r->chat = true;
    if (!n) {
        request_fault(f, FAULT_REQUEST, "messages", "'messages' is %s", list ? "empty" : "missing");
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (strcmp(role_of(json_object_array_get_idx(list, i)), "assistant") == 0)
            m.answered = i + 1;
    str_init(&m.thought);
    str_clear(m.out);
    write_open(m.out, '[');
    for (m.i = 0; m.i < n && request_go_on(f); m.i++) {
        snprintf(m.where, sizeof m.where, "messages[%zu]", m.i);
        put_message(&m, json_object_array_get_idx(list, m.i));
    }
    write_close(m.out, ']');
    str_release(&m.thought);
}

/* ---- tools ---- */

/* A JSON schema as an object, or its text; NULL: there is none.  Ended with json_object_put(). */
static struct json_object *schema_of(struct json_object *v)
{
    static const struct json_limits limits = {
        .depth = REQUEST_MAX_DEPTH, .n_values = REQUEST_MAX_VALUES, .n_keys = REQUEST_MAX_KEYS};
    struct json_object *o = NULL;
    if (json_object_is_type(v, json_type_object))
        return json_object_get(v);
    if (!request_is_text(v) || json_parse(json_object_get_string(v),
                                          (size_t)json_object_get_string_len(v), &limits, &o, NULL))
        return NULL;
    if (json_object_is_type(o, json_type_object))
        return o;
    json_object_put(o);
    return NULL;
}

/* The function of a tool: inside it, or as in other dialects the tool itself. */
static struct json_object *function_of(struct json_object *tool, bool wrapped)
{
    struct json_object *fn = NULL;
    if (!json_object_is_type(tool, json_type_object))
        return NULL;
    if (wrapped)
        fn = request_get(tool, "function");
    if (!fn && request_get(tool, "name"))
        fn = tool;
    return json_object_is_type(fn, json_type_object) && !(wrapped && part_is_mistyped(tool)) ? fn
                                                                                             : NULL;
}

/* A tool that the provider's servers run. */
static bool is_foreign(struct json_object *tool, bool wrapped)
{
    struct json_object *type =
        wrapped && json_object_is_type(tool, json_type_object) ? request_get(tool, "type") : NULL;
    return request_is_text(type) && json_object_get_string_len(type) &&
           strcasecmp(json_object_get_string(type), "function") != 0;
}

static const char *function_name(struct json_object *fn)
{
    struct json_object *name = fn ? request_get(fn, "name") : NULL;
    const int n = request_is_text(name) ? json_object_get_string_len(name) : 0;
    return n >= 1 && n <= REQUEST_MAX_TOOL_NAME ? json_object_get_string(name) : NULL;
}

/* Members that are no schema and no text are left out, the others stay as they are. */
static void put_tool_of(struct str *out, struct json_object *fn, const struct report_sink *sink)
{
    struct json_object *given = request_get(fn, "parameters");
    given = given ? given : request_get(fn, "input_schema");
    struct json_object *schema = schema_of(given);
    if (given && !schema)
        report(sink, INGLE_REPORT_NOTE, "tool", function_name(fn),
               "its parameters are left out: they are no JSON schema");
    write_open(out, '{');
    write_member(out, "type", "function");
    write_key(out, "function");
    write_open(out, '{');
    json_object_object_foreach(fn, key, value)
    {
        const bool is_schema = strcmp(key, "input_schema") == 0 || strcmp(key, "parameters") == 0;
        if (strcmp(key, "type") == 0 ||
            (strcmp(key, "description") == 0 && !request_is_text(value)) ||
            (is_schema && (!schema || value != given)))
            continue;
        write_key(out, is_schema ? "parameters" : key);
        request_add_value(out, is_schema ? schema : value);
    }
    write_close(out, '}');
    write_close(out, '}');
    json_object_put(schema);
}

/* One odd tool among many leaves the others as they are; where it is alone, it is a fault. */
static void put_tools(struct chat_request *r, struct json_object *list, bool wrapped,
                      const char *where, const struct report_sink *sink, struct fault *f)
{
    struct fault odd = {0};
    char param[64];
    size_t n = 0;
    str_clear(&r->tools);
    write_open(&r->tools, '[');
    for (size_t k = 0; k < json_object_array_length(list) && request_go_on(f); k++) {
        struct json_object *tool = json_object_array_get_idx(list, k),
                           *fn = function_of(tool, wrapped);
        const size_t before = r->tools.n;
        snprintf(param, sizeof param, "%s[%zu]", where, k);
        if (is_foreign(tool, wrapped)) {
            report(sink, INGLE_REPORT_NOTE, "tool",
                   json_object_get_string(request_get(tool, "type")),
                   "skipped: tools of this type run on the provider's servers");
            continue;
        }
        if (!function_name(fn)) {
            const char *why = part_is_mistyped(tool) ? "has a type that is no string"
                                                     : "has no name of 1 to 256 bytes";
            request_fault(&odd, FAULT_REQUEST, param, "'%s' %s", param, why);
            report(sink, INGLE_REPORT_NOTE, "tool", param, "skipped: it %s", why);
            continue;
        }
        put_tool_of(&r->tools, fn, sink);
        n++;
        if (r->tools.n - before > MAX_TOOL_BYTES)
            request_fault(f, FAULT_REQUEST, where, "'%s[%zu]' has more than %d bytes", where, k,
                          (int)MAX_TOOL_BYTES);
    }
    write_close(&r->tools, ']');
    if (n)
        return;
    str_clear(&r->tools);
    if (odd.kind)
        request_fault(f, FAULT_REQUEST, odd.param, "%s", odd.message);
}

static bool knows_tool(const char *name, struct json_object *list, bool wrapped)
{
    for (size_t k = 0; list && k < json_object_array_length(list); k++) {
        struct json_object *tool = json_object_array_get_idx(list, k),
                           *fn = function_of(tool, wrapped);
        if (!is_foreign(tool, wrapped) && function_name(fn) && strcmp(function_name(fn), name) == 0)
            return true;
    }
    return false;
}

/* Those of the request's tools that a list of allowed ones names. */
static void read_allowed(struct chat_request *r, struct json_object *allowed,
                         struct json_object *tools, const char *param, struct fault *f)
{
    struct json_object *list = request_get(allowed, "tools");
    size_t n = 0;
    if (!list)
        return;
    write_open(&r->allowed, '[');
    for (size_t i = 0;
         json_object_is_type(list, json_type_array) && i < json_object_array_length(list); i++) {
        struct json_object *t = json_object_array_get_idx(list, i);
        struct json_object *fn =
            json_object_is_type(t, json_type_object) ? request_get(t, "function") : NULL;
        struct json_object *name =
            json_object_is_type(fn, json_type_object) ? request_get(fn, "name") : NULL;
        if (!request_is_text(name) || !knows_tool(json_object_get_string(name), tools, true))
            continue;
        write_text(&r->allowed, json_object_get_string(name));
        n++;
    }
    write_close(&r->allowed, ']');
    if (!n)
        request_fault(f, FAULT_REQUEST, param, "'%s' allows no tool of the request", param);
}

/* none, auto, required; an object names a function. */
static void read_choice(struct chat_request *r, struct json_object *v, struct json_object *tools,
                        const char *param, struct fault *f)
{
    struct json_object *name = NULL;
    if (json_object_is_type(v, json_type_object)) {
        struct json_object *allowed = request_get(v, "allowed_tools");
        struct json_object *fn = request_get(v, "function");
        if (json_object_is_type(allowed, json_type_object)) {
            read_allowed(r, allowed, tools, param, f);
            v = request_get(allowed, "mode");
        } else {
            name = request_get(json_object_is_type(fn, json_type_object) ? fn : v, "name");
            if (!name)
                v = request_get(v, "type"); /* auto, none, any: Anthropic's form */
        }
    }
    if (request_is_text(name)) {
        r->tool_choice = TOOLS_NAMED;
        str_clear(&r->tool_name);
        str_adds(&r->tool_name, json_object_get_string(name));
    } else if (request_text_is(v, "none")) {
        r->tool_choice = TOOLS_NONE;
    } else if (request_text_is(v, "required") || request_text_is(v, "any")) {
        r->tool_choice = TOOLS_REQUIRED;
    } else if (!request_text_is(v, "auto")) {
        request_fault(f, FAULT_REQUEST, param,
                      "'%s' is not none, auto, required or the name of a function", param);
    }
}

void openai_read_tools(struct chat_request *r, struct json_object *body,
                       const struct answer_options *o, struct openai_wish *w, struct fault *f)
{
    struct json_object *tools = request_get_array(body, "tools", REQUEST_MAX_TOOLS, f);
    struct json_object *functions = request_get_array(body, "functions", REQUEST_MAX_TOOLS, f);
    struct json_object *choice = request_get(body, "tool_choice");
    struct json_object *call = request_get(body, "function_call");
    if (f->kind)
        return;
    w->legacy_functions = !tools && functions;
    struct json_object *list = tools ? tools : functions;
    const char *param = w->legacy_functions ? "function_call" : "tool_choice";
    if (list)
        put_tools(r, list, !w->legacy_functions, w->legacy_functions ? "functions" : "tools",
                  request_notes(r, &o->sink), f);
    if (w->legacy_functions)
        choice = choice ? choice : call;
    if (choice && !f->kind && !(request_is_text(choice) && !json_object_get_string_len(choice)))
        read_choice(r, choice, list, param, f);
    request_get_bool(body, "parallel_tool_calls", &r->parallel_calls, f);
    if (w->legacy_functions)
        r->parallel_calls = false;
    if (f->kind)
        return;
    if (r->tool_choice == TOOLS_REQUIRED && !r->tools.n)
        request_fault(f, FAULT_REQUEST, param, "'%s' requires a call, but there are no tools",
                      param);
    if (r->tool_choice == TOOLS_NAMED && !knows_tool(r->tool_name.at, list, !w->legacy_functions))
        request_fault(f, FAULT_REQUEST, param,
                      "'%s' names '%.64s', which is no tool of the request", param,
                      r->tool_name.at);
}
