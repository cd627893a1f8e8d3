/* SPDX-License-Identifier: Apache-2.0 */
/*
 * openai_messages - the messages of a client to those that the chat templates know: every
 * field checked, older spellings translated, what has no meaning left out.
 */
#include "server/openai/openai.h"

#include "server/convert.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TOOL_BYTES = 1 << 20, MAX_CALLS = 1024 };

/* One message on its way. */
struct reading {
    struct str *out;
    struct fault *f;
    size_t i;         /* its number */
    char where[64];   /* "messages[3]" */
    size_t n_calls;   /* tool calls so far */
    size_t n_results; /* answers to them so far */
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

static void put_part(struct reading *m, struct json_object *part, size_t k)
{
    char member[40];
    snprintf(member, sizeof member, "content[%zu]", k);
    if (!json_object_is_type(part, json_type_object)) {
        say(m, member, "is no object");
        return;
    }
    struct json_object *type = request_get(part, "type");
    const char *key = request_text_is(type, "refusal") ? "refusal" : "text";
    const bool known = !type || request_text_is(type, "text") || request_text_is(type, "refusal") ||
                       request_text_is(type, "input_text") || request_text_is(type, "output_text");
    if (!known) {
        say(m, member, "has the type %.60s: this version reads text alone",
            json_object_get_string(type));
        return;
    }
    struct json_object *text = request_get(part, key);
    if (!request_is_text(text)) {
        say(m, member, "has no string '%s'", key);
        return;
    }
    write_open(m->out, '{');
    write_member(m->out, "type", "text");
    put_text(m->out, "text", text);
    write_close(m->out, '}');
}

/* needed: there is nothing else in the message. */
static void put_content(struct reading *m, struct json_object *o, bool needed)
{
    struct json_object *v = request_get(o, "content");
    if (!v) {
        if (needed)
            say(m, "content", "is missing");
        write_member(m->out, "content", "");
        return;
    }
    if (request_is_text(v)) {
        put_text(m->out, "content", v);
        return;
    }
    if (!json_object_is_type(v, json_type_array)) {
        say(m, "content", "is neither a string nor a list of parts");
        return;
    }
    write_key(m->out, "content");
    write_open(m->out, '[');
    for (size_t k = 0; k < json_object_array_length(v) && request_go_on(m->f); k++)
        put_part(m, json_object_array_get_idx(v, k), k);
    write_close(m->out, ']');
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

static void put_function(struct reading *m, struct json_object *fn, const char *member)
{
    struct json_object *name = request_get(fn, "name");
    struct json_object *arguments = request_get(fn, "arguments");
    if (!request_is_text(name)) {
        say(m, member, "has no string 'name'");
        return;
    }
    write_key(m->out, "function");
    write_open(m->out, '{');
    put_text(m->out, "name", name);
    write_key(m->out, "arguments");
    if (request_is_text(arguments) && json_object_get_string_len(arguments))
        put_arguments(m->out, arguments);
    else if (json_object_is_type(arguments, json_type_object))
        request_add_value(m->out, arguments);
    else if (!arguments || request_is_text(arguments))
        write_text(m->out, "{}");
    else
        say(m, member, "has 'arguments' that are neither a string nor an object");
    write_close(m->out, '}');
}

static void put_call(struct reading *m, struct json_object *call, size_t k)
{
    char member[64];
    snprintf(member, sizeof member, "tool_calls[%zu].function", k);
    struct json_object *fn =
        json_object_is_type(call, json_type_object) ? request_get(call, "function") : NULL;
    if (!json_object_is_type(fn, json_type_object)) {
        say(m, member, "is no object");
        return;
    }
    write_open(m->out, '{');
    put_id(m->out, "id", request_get(call, "id"), m->n_calls++);
    write_member(m->out, "type", "function");
    put_function(m, fn, member);
    write_close(m->out, '}');
}

static void put_calls(struct reading *m, struct json_object *calls)
{
    if (json_object_array_length(calls) > MAX_CALLS) {
        say(m, "tool_calls", "has more than %d calls", (int)MAX_CALLS);
        return;
    }
    m->n_results = m->n_calls; /* results belong to the latest calls */
    write_key(m->out, "tool_calls");
    write_open(m->out, '[');
    for (size_t k = 0; k < json_object_array_length(calls) && request_go_on(m->f); k++)
        put_call(m, json_object_array_get_idx(calls, k), k);
    write_close(m->out, ']');
}

/* function_call: a call from before there were tools. */
static void put_legacy_call(struct reading *m, struct json_object *call)
{
    m->n_results = m->n_calls;
    write_key(m->out, "tool_calls");
    write_open(m->out, '[');
    write_open(m->out, '{');
    put_id(m->out, "id", NULL, m->n_calls++);
    write_member(m->out, "type", "function");
    put_function(m, call, "function_call");
    write_close(m->out, '}');
    write_close(m->out, ']');
}

static void put_assistant(struct reading *m, struct json_object *o)
{
    struct json_object *calls = request_get(o, "tool_calls");
    struct json_object *legacy = request_get(o, "function_call");
    struct json_object *reasoning = request_get(o, "reasoning_content");
    if (calls && !json_object_is_type(calls, json_type_array)) {
        say(m, "tool_calls", "is no list");
        return;
    }
    if (!request_is_text(reasoning))
        reasoning = request_get(o, "reasoning");
    const bool called = has_items(calls) || json_object_is_type(legacy, json_type_object);
    put_content(m, o, !called && !request_is_text(reasoning) &&
                          !request_is_text(request_get(o, "refusal")));
    if (request_is_text(reasoning))
        put_text(m->out, "reasoning_content", reasoning);
    if (has_items(calls))
        put_calls(m, calls);
    else if (called)
        put_legacy_call(m, legacy);
}

static void put_message(struct reading *m, struct json_object *o)
{
    static const struct {
        const char *theirs, *ours;
    } roles[] = {
        {"system", "system"},       {"developer", "system"}, {"user", "user"},
        {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"},
    };
    struct json_object *role =
        json_object_is_type(o, json_type_object) ? request_get(o, "role") : NULL;
    const char *ours = NULL;
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
        if (request_text_is(role, roles[k].theirs))
            ours = roles[k].ours;
    if (!ours) {
        say(m, "role", "is not system, developer, user, assistant or tool");
        return;
    }
    write_open(m->out, '{');
    write_member(m->out, "role", ours);
    if (strcmp(ours, "assistant") == 0)
        put_assistant(m, o);
    else
        put_content(m, o, true);
    if (strcmp(ours, "tool") == 0)
        put_id(m->out, "tool_call_id", request_get(o, "tool_call_id"), m->n_results++);
    if (request_is_text(request_get(o, "name")))
        put_text(m->out, "name", request_get(o, "name"));
    write_close(m->out, '}');
}

void openai_read_messages(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct reading m = {.out = &r->messages, .f = f};
    struct json_object *list = request_get_array(body, "messages", REQUEST_MAX_MESSAGES, f);
    const size_t n = list ? json_object_array_length(list) : 0;
    r->chat = true;
    if (!n) {
        request_fault(f, FAULT_REQUEST, "messages", "'messages' is %s", list ? "empty" : "missing");
        return;
    }
    str_clear(m.out);
    write_open(m.out, '[');
    for (m.i = 0; m.i < n && request_go_on(f); m.i++) {
        snprintf(m.where, sizeof m.where, "messages[%zu]", m.i);
        put_message(&m, json_object_array_get_idx(list, m.i));
    }
    write_close(m.out, ']');
}

/* ---- tools ---- */

static bool check_function(struct json_object *fn, const char *where, size_t k, struct fault *f)
{
    char param[64];
    snprintf(param, sizeof param, "%s[%zu]", where, k);
    struct json_object *name =
        json_object_is_type(fn, json_type_object) ? request_get(fn, "name") : NULL;
    if (!request_is_text(name) || json_object_get_string_len(name) < 1 ||
        json_object_get_string_len(name) > REQUEST_MAX_TOOL_NAME) {
        request_fault(f, FAULT_REQUEST, param, "'%s' has no name of 1 to %d bytes", param,
                      (int)REQUEST_MAX_TOOL_NAME);
        return false;
    }
    struct json_object *parameters = request_get(fn, "parameters");
    if (parameters && !json_object_is_type(parameters, json_type_object)) {
        request_fault(f, FAULT_REQUEST, param, "the parameters of '%s' are no object", param);
        return false;
    }
    struct json_object *description = request_get(fn, "description");
    if (description && !request_is_text(description)) {
        request_fault(f, FAULT_REQUEST, param, "the description of '%s' is no string", param);
        return false;
    }
    return true;
}

static void put_tool(struct str *out, struct json_object *fn, const char *where, size_t k,
                     struct fault *f)
{
    const size_t before = out->n;
    if (!check_function(fn, where, k, f))
        return;
    write_open(out, '{');
    write_member(out, "type", "function");
    write_key(out, "function");
    request_add_value(out, fn);
    write_close(out, '}');
    if (out->n - before > MAX_TOOL_BYTES)
        request_fault(f, FAULT_REQUEST, where, "'%s[%zu]' has more than %d bytes", where, k,
                      (int)MAX_TOOL_BYTES);
}

static void put_tools(struct chat_request *r, struct json_object *list, bool wrapped,
                      const char *where, struct fault *f)
{
    str_clear(&r->tools);
    if (!json_object_array_length(list))
        return;
    write_open(&r->tools, '[');
    for (size_t k = 0; k < json_object_array_length(list) && request_go_on(f); k++) {
        struct json_object *tool = json_object_array_get_idx(list, k), *fn = tool;
        if (wrapped) {
            struct json_object *type =
                json_object_is_type(tool, json_type_object) ? request_get(tool, "type") : NULL;
            fn = json_object_is_type(tool, json_type_object) ? request_get(tool, "function") : NULL;
            if (type && !request_text_is(type, "function"))
                request_fault(f, FAULT_REQUEST, "tools", "'tools[%zu].type' is %.60s, not function",
                              k, json_object_get_string(type));
        }
        put_tool(&r->tools, fn, where, k, f);
    }
    write_close(&r->tools, ']');
}

static bool knows_tool(const char *name, struct json_object *list, bool wrapped)
{
    for (size_t k = 0; list && k < json_object_array_length(list); k++) {
        struct json_object *fn = json_object_array_get_idx(list, k);
        if (wrapped)
            fn = request_get(fn, "function");
        if (request_text_is(request_get(fn, "name"), name))
            return true;
    }
    return false;
}

/* Those of the request's tools that a list of allowed ones names. */
static void read_allowed(struct chat_request *r, struct json_object *allowed, struct json_object *tools,
                         const char *param, struct fault *f)
{
    struct json_object *list = request_get(allowed, "tools");
    size_t n = 0;
    if (!list)
        return;
    write_open(&r->allowed, '[');
    for (size_t i = 0; json_object_is_type(list, json_type_array) && i < json_object_array_length(list); i++) {
        struct json_object *t = json_object_array_get_idx(list, i);
        struct json_object *fn = json_object_is_type(t, json_type_object) ? request_get(t, "function") : NULL;
        struct json_object *name = json_object_is_type(fn, json_type_object) ? request_get(fn, "name") : NULL;
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

void openai_read_tools(struct chat_request *r, struct json_object *body, struct openai_wish *w,
                       struct fault *f)
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
        put_tools(r, list, !w->legacy_functions, w->legacy_functions ? "functions" : "tools", f);
    if (w->legacy_functions)
        choice = choice ? choice : call;
    if (choice && !f->kind)
        read_choice(r, choice, list, param, f);
    request_get_bool(body, "parallel_tool_calls", &r->parallel_calls, f);
    if (w->legacy_functions)
        r->parallel_calls = false;
    if (f->kind)
        return;
    if (r->tool_choice == TOOLS_REQUIRED && !r->tools.n)
        request_fault(f, FAULT_REQUEST, param, "'%s' requires a call, but there are no tools", param);
    if (r->tool_choice == TOOLS_NAMED && !knows_tool(r->tool_name.at, list, !w->legacy_functions))
        request_fault(f, FAULT_REQUEST, param, "'%s' names '%.64s', which is no tool of the request",
                      param, r->tool_name.at);
}
