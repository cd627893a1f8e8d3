/* SPDX-License-Identifier: Apache-2.0 */
#include "server/responses/responses.h"

#include "base/mem.h"
#include "server/part.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 256 };

void responses_flat(struct view space, struct view name, struct str *out)
{
    str_add(out, space.at, space.n);
    if (space.n && !(space.n > 1 && memcmp(space.at + space.n - 2, "__", 2) == 0))
        str_adds(out, "__");
    str_add(out, name.at, name.n);
}

const struct responses_tool *responses_find(const struct responses *s,
                                                          struct view flat)
{
    for (size_t i = 0; i < s->n_tools; i++)
        if (view_is(flat, s->tool[i].flat.at))
            return &s->tool[i];
    return NULL;
}

static void skip(struct responses_reader *d, struct view type, const char *why)
{
    char subject[64];
    report(d->sink, INGLE_REPORT_NOTE, "tool", view_cut(type, subject), "skipped: %s", why);
}

/* The new tool, or NULL: it is there already, or one too many. */
static struct responses_tool *add_tool(struct responses_reader *d,
                                              enum responses_kind kind,
                                              struct view space, struct view name,
                                              const char *where)
{
    struct responses *s = d->state;
    const bool odd = !name.n || name.n > MAX_NAME || space.n > MAX_NAME;
    if (odd && d->skip_odd) {
        skip(d, (struct view){where, strlen(where)}, "it has no name of 1 to 256 bytes");
        return NULL;
    }
    if (odd) {
        request_fault(d->fault, FAULT_REQUEST, where, "a tool's name has %zu bytes, not 1 to %d",
                      name.n > space.n ? name.n : space.n, MAX_NAME);
        return NULL;
    }
    if (s->n_tools >= REQUEST_MAX_TOOLS) {
        request_fault(d->fault, FAULT_REQUEST, where, "more tools than the limit of %d",
                      REQUEST_MAX_TOOLS);
        return NULL;
    }
    struct responses_tool t = {.kind = kind};
    str_init(&t.flat);
    str_init(&t.name);
    str_init(&t.space);
    responses_flat(space, name, &t.flat);
    str_add(&t.name, name.at, name.n);
    str_add(&t.space, space.at, space.n);
    if (responses_find(s, view_str(&t.flat))) {
        skip(d, name, "there is a tool of that name already");
    } else if (str_ok(&t.flat) && str_ok(&t.name) && str_ok(&t.space) &&
               mem_grow(&s->tool, &s->cap_tools, s->n_tools + 1, sizeof *s->tool)) {
        s->tool[s->n_tools] = t;
        return &s->tool[s->n_tools++];
    } else {
        d->convert.failed = true;
    }
    str_release(&t.flat);
    str_release(&t.name);
    str_release(&t.space);
    return NULL;
}

static void declare(struct responses_reader *d, const struct responses_tool *t,
                    struct view description, struct json_object *parameters)
{
    if (t && d->shown)
        convert_late_tool(&d->convert, view_str(&t->flat), description, parameters, d->shown);
    else if (t)
        convert_tool(&d->convert, view_str(&t->flat), description, parameters);
}

/* As declare(), the parameters from their JSON text. */
static void declare_text(struct responses_reader *d, const struct responses_tool *t,
                         struct view description, const char *parameters)
{
    struct json_object *o = NULL;
    if (!t)
        return;
    if (json_parse(parameters, strlen(parameters), NULL, &o, NULL) != INGLE_OK)
        d->convert.failed = true;
    declare(d, t, description, o);
    json_object_put(o);
}

static void read_function(struct responses_reader *d, struct json_object *tool,
                          struct view space, const char *where)
{
    /* Some clients nest the members as chat completions do. */
    struct json_object *nested = view_get(tool, "function");
    struct json_object *f = json_object_is_type(nested, json_type_object) ? nested : tool;
    struct json_object *parameters = view_get(f, "parameters");
    if (!parameters)
        parameters = view_get(f, "input_schema");
    if (parameters && !json_object_is_type(parameters, json_type_object)) {
        skip(d, view_member(f, "name"), "its parameters, which are no JSON schema");
        parameters = NULL;
    }
    declare(d, add_tool(d, RESPONSES_FUNCTION, space, view_member(f, "name"), where),
            view_member(f, "description"), parameters);
}

/* Free text, perhaps of a grammar that only the description can give. */
static void read_custom(struct responses_reader *d, struct json_object *tool,
                        struct view space, const char *where)
{
    static const char parameters[] =
        "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\",\"description\":"
        "\"The whole input of the tool, as it is.\"}},\"required\":[\"input\"]}";
    struct json_object *format = view_get(tool, "format");
    const struct view definition = view_member(format, "definition");
    const struct view syntax = view_member(format, "syntax");
    const struct view description = view_member(tool, "description");
    struct str text;
    str_init(&text);
    str_add(&text, description.at, description.n);
    if (definition.n) {
        str_adds(&text, text.n ? "\n\n" : "");
        str_adds(&text, "The input follows this grammar");
        if (syntax.n) {
            str_adds(&text, " (");
            str_add(&text, syntax.at, syntax.n);
            str_adds(&text, ")");
        }
        str_adds(&text, ":\n");
        str_add(&text, definition.at, definition.n);
    }
    d->convert.failed = d->convert.failed || !str_ok(&text);
    declare_text(d,
                 add_tool(d, RESPONSES_CUSTOM, space, view_member(tool, "name"),
                          where),
                 view_str(&text), parameters);
    str_release(&text);
}

static void read_local_shell(struct responses_reader *d, const char *where)
{
    static const char parameters[] =
        "{\"type\":\"object\",\"properties\":{\"command\":{\"type\":\"array\",\"items\":{\"type\":"
        "\"string\"},\"description\":\"The program and its arguments.\"},\"working_directory\":{"
        "\"type\":\"string\"},\"timeout_ms\":{\"type\":\"integer\"}},\"required\":[\"command\"]}";
    declare_text(d,
                 add_tool(d, RESPONSES_LOCAL_SHELL, VIEW(""),
                          VIEW("local_shell"), where),
                 VIEW("Runs a command on the user's machine and returns its output."),
                 parameters);
}

static void read_tool_search(struct responses_reader *d, struct json_object *tool,
                             const char *where)
{
    static const char standard[] =
        "{\"type\":\"object\",\"properties\":{\"query\":{\"type\":\"string\",\"description\":"
        "\"What the tool should do.\"},\"limit\":{\"type\":\"integer\"}},\"required\":[\"query\"]}";
    struct json_object *parameters = view_get(tool, "parameters");
    const struct view type = VIEW("tool_search");
    struct view description = view_member(tool, "description");
    if (!view_is(view_member(tool, "execution"), "client")) {
        skip(d, type, "the server itself has no tools to search");
        return;
    }
    if (!description.n)
        description = VIEW("Finds further tools by what they do.");
    const struct responses_tool *t =
        add_tool(d, RESPONSES_TOOL_SEARCH, VIEW(""), type, where);
    if (json_object_is_type(parameters, json_type_object))
        declare(d, t, description, parameters);
    else
        declare_text(d, t, description, standard);
}

static void read_tool(struct responses_reader *d, struct json_object *tool,
                      struct view space, const char *where)
{
    const struct view type = view_member(tool, "type");
    if (!json_object_is_type(tool, json_type_object) && d->skip_odd)
        skip(d, (struct view){where, strlen(where)}, "it is no object");
    else if (!json_object_is_type(tool, json_type_object))
        request_fault(d->fault, FAULT_REQUEST, where, "a tool is %s, not an object",
                      view_type(tool));
    else if (part_is_mistyped(tool) && d->skip_odd)
        skip(d, (struct view){where, strlen(where)}, "its type is no string");
    else if (part_is_mistyped(tool))
        request_fault(d->fault, FAULT_REQUEST, where, "'type' of a tool is %s, not a string",
                      view_type(view_get(tool, "type")));
    else if (view_is(type, "function") || (!type.at && view_get(tool, "name")))
        read_function(d, tool, space, where);
    else if (view_is(type, "custom"))
        read_custom(d, tool, space, where);
    else if (view_is(type, "local_shell"))
        read_local_shell(d, where);
    else if (view_is(type, "tool_search"))
        read_tool_search(d, tool, where);
    else
        skip(d, type, "tools of this type run on the provider's servers");
}

static bool is_odd(struct json_object *tool)
{
    const struct view type = view_member(tool, "type");
    struct json_object *fn = view_get(tool, "function");
    const bool named = !type.at || view_is(type, "function") || view_is(type, "custom") ||
                       view_is(type, "namespace");
    return !json_object_is_type(tool, json_type_object) || part_is_mistyped(tool) ||
           (named && !view_member(json_object_is_type(fn, json_type_object) ? fn : tool, "name").n);
}

void responses_read_tools(struct responses_reader *d, struct json_object *tools,
                                 const char *where)
{
    if (tools && !json_object_is_type(tools, json_type_array)) {
        request_fault(d->fault, FAULT_REQUEST, where, "'tools' is %s, not an array",
                      view_type(tools));
        return;
    }
    d->skip_odd = false;
    for (size_t i = 0; tools && i < json_object_array_length(tools) && !d->skip_odd; i++)
        d->skip_odd = !is_odd(json_object_array_get_idx(tools, i));
    for (size_t i = 0; tools && i < json_object_array_length(tools) && request_go_on(d->fault);
         i++) {
        struct json_object *tool = json_object_array_get_idx(tools, i);
        struct json_object *inner = view_get(tool, "tools");
        const struct view space = view_member(tool, "name");
        char at[64];
        snprintf(at, sizeof at, "%s[%zu]", where, i);
        if (!view_is(view_member(tool, "type"), "namespace")) {
            read_tool(d, tool, VIEW(""), at);
        } else if (!json_object_is_type(inner, json_type_array) && d->skip_odd) {
            skip(d, space, "a namespace without tools");
        } else if (!json_object_is_type(inner, json_type_array)) {
            request_fault(d->fault, FAULT_REQUEST, at, "a namespace's 'tools' is %s, not an array",
                          view_type(inner));
        } else {
            for (size_t k = 0; k < json_object_array_length(inner) && request_go_on(d->fault); k++)
                read_tool(d, json_object_array_get_idx(inner, k), space, at);
        }
    }
}

static bool has_type(struct json_object *tools, struct view type)
{
    for (size_t i = 0; type.n && json_object_is_type(tools, json_type_array) &&
                       i < json_object_array_length(tools);
         i++)
        if (view_is(view_member(json_object_array_get_idx(tools, i), "type"), type.at))
            return true;
    return false;
}

/* A tool that must be called: TOOLS_NAMED. */
static void choose(struct responses_reader *d, struct json_object *choice,
                   struct json_object *tools, struct chat_request *r)
{
    const struct view own = view_member(choice, "name");
    struct view name = own.at ? own : view_member(choice, "type");
    struct str flat;
    str_init(&flat);
    responses_flat(view_member(choice, "namespace"), name, &flat);
    name = view_str(&flat);
    if (responses_find(d->state, name)) {
        r->tool_choice = TOOLS_NAMED;
        str_clear(&r->tool_name);
        str_add(&r->tool_name, flat.at, flat.n);
    } else if (own.at) {
        request_fault(d->fault, FAULT_REQUEST, "tool_choice", "there is no tool '%.100s'", flat.at);
    } else if (has_type(tools, name)) {
        skip(d, name, "a choice of a tool that is not there");
    } else {
        request_fault(d->fault, FAULT_REQUEST, "tool_choice",
                      "'tool_choice' has the type '%.60s', not function, custom, allowed_tools or "
                      "that of a tool",
                      flat.at);
    }
    str_release(&flat);
}

static void read_mode(struct responses_reader *d, struct view mode,
                      struct chat_request *r)
{
    if (view_is(mode, "none"))
        r->tool_choice = TOOLS_NONE;
    else if ((view_is(mode, "required") || view_is(mode, "any")) && d->no_tools)
        request_fault(d->fault, FAULT_REQUEST, "tool_choice",
                      "'tool_choice' requires a call, but there are no tools");
    else if (view_is(mode, "required") || view_is(mode, "any"))
        r->tool_choice = d->state->n_tools ? TOOLS_REQUIRED : TOOLS_AUTO;
    else if (view_is(mode, "auto"))
        r->tool_choice = TOOLS_AUTO;
    else
        request_fault(d->fault, FAULT_REQUEST, "tool_choice",
                      "'tool_choice' is '%.40s', not auto, none or required",
                      mode.at ? mode.at : "");
}

/* Where all that are allowed were skipped, none is left to call. */
static void read_allowed(struct responses_reader *d, struct json_object *tools,
                         struct chat_request *r)
{
    size_t n = 0;
    write_open(&r->allowed, '[');
    for (size_t i = 0;
         json_object_is_type(tools, json_type_array) && i < json_object_array_length(tools); i++) {
        struct json_object *tool = json_object_array_get_idx(tools, i);
        const struct view own = view_member(tool, "name");
        struct str flat;
        str_init(&flat);
        responses_flat(view_member(tool, "namespace"), own.at ? own : view_member(tool, "type"),
                       &flat);
        if (responses_find(d->state, view_str(&flat))) {
            write_string(&r->allowed, flat.at, flat.n);
            n++;
        } else {
            skip(d, view_str(&flat), "an allowed tool that is not there");
        }
        str_release(&flat);
    }
    write_close(&r->allowed, ']');
    if (!n)
        r->tool_choice = TOOLS_NONE;
}

void responses_read_choice(struct responses_reader *d, struct json_object *choice,
                           struct json_object *tools, struct chat_request *r)
{
    if (!choice)
        return;
    if (json_object_is_type(choice, json_type_string)) {
        read_mode(d, view_of(choice), r);
        return;
    }
    if (!json_object_is_type(choice, json_type_object)) {
        request_fault(d->fault, FAULT_REQUEST, "tool_choice",
                      "'tool_choice' is %s, not a string or an object", view_type(choice));
        return;
    }
    if (!view_is(view_member(choice, "type"), "allowed_tools")) {
        choose(d, choice, tools, r);
        return;
    }
    read_mode(d, view_member(choice, "mode"), r);
    if (view_get(choice, "tools"))
        read_allowed(d, view_get(choice, "tools"), r);
}
