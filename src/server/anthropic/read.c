/* SPDX-License-Identifier: Apache-2.0 */
#include "server/anthropic/anthropic.h"
#include "server/fields.h"

#include "base/mem.h"
#include "server/medium.h"
#include "server/odd.h"
#include "server/openai/openai.h"
#include "server/part.h"
#include "server/thought.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* MOST_SHOWN: bytes of definitions that references to tools bring, each as often as it is named. */
enum { MAX_NAME = 256, MOST_SHOWN = 16 << 20 };

struct reader {
    struct convert convert;
    const struct report_sink *sink;
    struct fault *fault;
    const char *where; /* "messages[3]" */
    struct json_object *tools; /* of the request; NULL: none */
    struct json_object *by_name; /* {name: tool}, once one was looked for */
    size_t n_shown;              /* bytes of definitions that references brought */
    bool defers; /* those with defer_loading wait until the conversation names them */
    struct chat_request *r;
    const struct answer_options *o;
    size_t i, k;       /* numbers of the message and its block, or ... */
    bool in_system;    /* ... of a block of 'system' */
    bool answered; /* the message has been: nobody can send it otherwise */
    bool notes;    /* a note stands for media of the last turn, too */
    size_t n_calls, n_results; /* without an id so far */
};

static void drop(struct reader *d, struct view what, const char *why)
{
    char subject[64];
    report(d->sink, INGLE_REPORT_NOTE, "block", view_cut(what, subject), "left out: %s", why);
}

static void fail_type(struct reader *d, const char *where, const char *what, struct json_object *v,
                      const char *want)
{
    request_fault(d->fault, FAULT_REQUEST, where, "%s is %s, not %s", what, view_type(v), want);
}

/* A block that is not an object, or whose 'type' is not a string. */
static void fail_block(struct reader *d, struct json_object *block)
{
    const bool object = json_object_is_type(block, json_type_object);
    fail_type(d, d->where, object ? "'type' of a content block" : "a content block",
              object ? view_get(block, "type") : block, object ? "a string" : "an object");
}

/* ---- blocks of text ---- */

static void add_line(struct str *out, struct view t)
{
    str_adds(out, out->n && t.n && !medium_joins(out, t) ? "\n" : "");
    str_add(out, t.at, t.n);
}

/* Appends the mark of a picture or sound.  False: the model is not shown it. */
static bool add_medium(struct reader *d, struct json_object *block, struct str *out)
{
    char param[96];
    if (!medium_is_shown(d->o, block))
        return false;
    snprintf(param, sizeof param, "%s%s[%zu]", d->where, d->in_system ? "" : ".content", d->k);
    const struct medium_place at = {d->in_system ? "system" : "message", "block",
                                    d->in_system ? MEDIUM_UNNUMBERED : d->i, d->k, param};
    const int i = medium_read(d->r, block, &at, d->o, d->fault);
    if (i >= 0)
        medium_put_mark(out, d->r, i);
    return true;
}

/* Appends the texts of a string or a list of blocks.  False: there is a medium in it. */
static bool add_texts(struct reader *d, struct json_object *content, struct str *out,
                      int depth);

static bool add_document(struct reader *d, struct json_object *block, struct str *out,
                         int depth)
{
    struct json_object *source = view_get(block, "source");
    const struct view type = view_member(source, "type");
    add_line(out, view_member(block, "title"));
    add_line(out, view_member(block, "context"));
    if (view_is(type, "text")) {
        add_line(out, view_member(source, "data"));
        return true;
    }
    return view_is(type, "content") && add_texts(d, view_get(source, "content"), out, depth);
}

/* ---- tools that come later ---- */

/* Some clients send OpenAI's form. */
static struct json_object *inner_tool(struct json_object *tool)
{
    struct json_object *fn = view_get(tool, "function");
    return json_object_is_type(fn, json_type_object) ? fn : tool;
}

static void name_tools(struct reader *d)
{
    d->by_name = json_object_new_object();
    d->convert.failed = d->convert.failed || !d->by_name;
    for (size_t i = 0;
         d->by_name && i < json_object_array_length(d->tools) && request_go_on(d->fault); i++) {
        struct json_object *tool = json_object_array_get_idx(d->tools, i);
        const struct view name = view_member(inner_tool(tool), "name");
        if (name.at && !json_object_object_get_ex(d->by_name, name.at, NULL) &&
            json_object_object_add(d->by_name, name.at, json_object_get(tool)))
            d->convert.failed = true;
    }
}

/* The first one of that name. */
static struct json_object *find_tool(struct reader *d, struct view name)
{
    if (!json_object_is_type(d->tools, json_type_array) || !name.at)
        return NULL;
    if (!d->by_name)
        name_tools(d);
    return view_get(d->by_name, name.at);
}

static bool is_deferred(const struct reader *d, struct json_object *tool)
{
    return d->defers && json_object_get_boolean(view_get(tool, "defer_loading"));
}

/* From now on the tool can be called; a repeated one counts once. */
static void add_late_tool(struct reader *d, struct json_object *tool, struct str *shown)
{
    struct json_object *schema = view_get(tool, "input_schema");
    const struct view name = view_member(tool, "name");
    if (schema && !json_object_is_type(schema, json_type_object))
        schema = NULL;
    if (!name.n || name.n > MAX_NAME) {
        request_fault(d->fault, FAULT_REQUEST, d->where,
                      "a tool's 'name' has %zu bytes, not 1 to %d", name.n, MAX_NAME);
    } else {
        convert_late_tool(&d->convert, name, view_member(tool, "description"), schema, shown);
    }
}

/* A tool of the list by its name, or one that is defined here. */
static void show_tool(struct reader *d, struct view name, struct json_object *definition,
                      struct str *out)
{
    struct json_object *tool = definition ? definition : find_tool(d, name);
    if (!definition && !is_deferred(d, tool)) {
        add_line(out, name); /* it stands in front, or nobody knows it */
        return;
    }
    const size_t before = out->n;
    add_line(out, VIEW("This tool can be called now:"));
    add_late_tool(d, tool, out);
    d->n_shown += out->n - before;
    if (d->n_shown > MOST_SHOWN)
        request_fault(
            d->fault, FAULT_REQUEST, d->where,
            "the definitions of tools that are referred to have more than %d bytes together",
            MOST_SHOWN);
}

/* The text of one block.  False: it is a medium. */
static bool add_block(struct reader *d, struct json_object *block, struct str *out,
                      int depth)
{
    const struct view type = view_member(block, "type");
    const struct view own = view_of(block), text = own.at ? own : view_member(block, "text");
    struct str said;
    str_init(&said);
    if (part_is_mistyped(block)) {
        fail_block(d, block);
    } else if (text.at) {
        add_line(out, text);
    } else if (!view_is(type, "document") && part_read(block, &said) == PART_MEDIUM) {
        str_release(&said);
        return add_medium(d, block, out);
    } else if (said.n) {
        add_line(out, view_str(&said));
    } else if (view_is(type, "document")) {
        str_release(&said);
        return add_document(d, block, out, depth) || add_medium(d, block, out);
    } else if (view_is(type, "tool_reference")) {
        show_tool(d, view_member(block, "tool_name"), NULL, out);
    } else if (view_is(type, "tool_addition")) {
        struct json_object *tool = view_get(block, "tool");
        show_tool(d, view_member(tool, "name"), view_get(tool, "definition"), out);
    } else if (view_is(type, "tool_removal")) {
        add_line(out, VIEW("This tool cannot be called any more: "));
        const struct view name = view_member(view_get(block, "tool"), "name");
        str_add(out, name.at, name.n);
    } else {
        /* search_result and the results of server tools */
        add_line(out, view_member(block, "title"));
        add_line(out, view_member(block, "source"));
        add_line(out, view_member(block, "url"));
        str_release(&said);
        return add_texts(d, view_get(block, "content"), out, depth);
    }
    d->convert.failed |= said.failed;
    str_release(&said);
    return true;
}

static bool add_texts(struct reader *d, struct json_object *content, struct str *out,
                      int depth)
{
    bool all = true;
    if (depth > 8)
        return true;
    if (json_object_is_type(content, json_type_string))
        add_line(out, view_of(content));
    else if (json_object_is_type(content, json_type_object))
        all = add_block(d, content, out, depth + 1);
    for (size_t i = 0; json_object_is_type(content, json_type_array) &&
                       i < json_object_array_length(content) && request_go_on(d->fault);
         i++)
        all = add_block(d, json_object_array_get_idx(content, i), out, depth + 1) && all;
    return all;
}

/* ---- turns ---- */

/* A block of text must have one, or null; others say what they have.  Where it can still be sent
 * otherwise, a type that nobody knows is a fault. */
static bool check_block(struct reader *d, struct json_object *block)
{
    const struct view type = view_member(block, "type");
    struct str text;
    str_init(&text);
    const enum part kind = part_read(block, &text);
    str_release(&text);
    if (kind == PART_MISTYPED)
        fail_block(d, block);
    if (kind == PART_MISTYPED || d->answered ||
        (kind != PART_BROKEN && (kind != PART_UNKNOWN || part_is_block(type))))
        return true;
    if (!type.at)
        request_fault(d->fault, FAULT_REQUEST, d->where, "'type' of a content block is missing");
    else if (kind == PART_BROKEN)
        request_fault(d->fault, FAULT_REQUEST, d->where, "a %.20s block has no string 'text'",
                      type.at);
    else
        request_fault(d->fault, FAULT_REQUEST, d->where,
                      "a content block has the type '%.40s', not " PART_BLOCKS, type.at);
    return false;
}

/* Ids that are missing are those of the places. */
static struct view id_of(struct reader *d, struct json_object *block, const char *key,
                         size_t *n_without, char space[32])
{
    struct view id = view_member(block, key);
    char what[32];
    snprintf(what, sizeof what, "'%s'", key);
    if (view_get(block, key) && !id.at)
        fail_type(d, d->where, what, view_get(block, key), "a string");
    else if (!id.n)
        report(d->sink, INGLE_REPORT_NOTE, "block", d->where,
               "%s is missing: calls and results belong together by their order", what);
    if (!id.n) {
        snprintf(space, 32, "call-%zu", (*n_without)++);
        id = (struct view){space, strlen(space)};
    }
    return id;
}

static void read_result(struct reader *d, struct json_object *block)
{
    struct json_object *content = view_get(block, "content");
    char space[32];
    struct str text;
    str_init(&text);
    if (json_object_get_boolean(view_get(block, "is_error")))
        str_adds(&text, "Error:");
    if (content && !part_is_content(content)) { /* any value: its JSON text */
        str_adds(&text, text.n ? "\n" : "");
        view_put_json(&text, content);
    } else if (!add_texts(d, content, &text, 0)) {
        drop(d, VIEW("tool_result"), "a part that this model does not read");
        add_line(&text, VIEW(PART_NOTE));
    }
    d->convert.failed = d->convert.failed || !str_ok(&text);
    convert_result(&d->convert, id_of(d, block, "tool_use_id", &d->n_results, space),
                   view_str(&text));
    str_release(&text);
}

static bool is_result(struct json_object *block)
{
    return view_is(view_member(block, "type"), "tool_result");
}

static void read_user_block(struct reader *d, struct json_object *block)
{
    const struct view type = view_member(block, "type");
    struct str text;
    if (is_result(block))
        return; /* before the others */
    if (!check_block(d, block))
        return;
    str_init(&text);
    const bool all = add_block(d, block, &text, 0);
    if (!all && (d->answered || d->notes)) {
        drop(d, type, "this model does not read it");
        add_line(&text, VIEW(PART_NOTE));
    } else if (!all)
        request_fault(d->fault, FAULT_REQUEST, d->where,
                      "message %zu, block %zu: it has the type %.40s and holds more than text: "
                      "this model reads %s (--media note)",
                      d->i + 1, d->k + 1, type.at ? type.at : "null", medium_readable(d->o));
    d->convert.failed = d->convert.failed || !str_ok(&text);
    convert_user(&d->convert, view_str(&text));
    str_release(&text);
}

/* Our own thoughts come back whole; another provider's would pass for the model's own. */
static void read_thinking(struct reader *d, struct view text, struct view seal)
{
    struct str carried;
    str_init(&carried);
    if (thought_open(seal, &carried))
        convert_thought(&d->convert, view_str(&carried));
    else if (text.n && (!seal.n || thought_check(seal, text) == THOUGHT_OURS))
        convert_thought(&d->convert, text);
    else if (text.n || seal.n)
        drop(d, VIEW("thinking"),
             thought_check(seal, text) == THOUGHT_ALTERED ? "it was altered"
                                                          : "its signature is not from here");
    d->convert.failed = d->convert.failed || !str_ok(&carried);
    str_release(&carried);
}

static void read_assistant_block(struct reader *d, struct json_object *block)
{
    const struct view type = view_member(block, "type");
    if (view_is(type, "thinking") && view_member(block, "thinking").at) {
        read_thinking(d, view_member(block, "thinking"), view_member(block, "signature"));
    } else if (view_is(type, "redacted_thinking")) {
        read_thinking(d, VIEW(""), view_member(block, "data"));
    } else if (view_is(type, "tool_use")) {
        const struct view name = view_member(block, "name");
        char space[32];
        convert_call(&d->convert, id_of(d, block, "id", &d->n_calls, space),
                     name.n ? name : VIEW("unknown"), view_get(block, "input"));
    } else if (view_is(type, "server_tool_use")) {
        drop(d, type, "tools of this type run on the provider's servers");
    } else if (check_block(d, block)) {
        struct str text;
        str_init(&text);
        const bool thought = part_read(block, &text) == PART_THOUGHT;
        str_clear(&text);
        if (!add_block(d, block, &text, 0))
            drop(d, type, "this model does not read it");
        d->convert.failed = d->convert.failed || !str_ok(&text);
        if (text.n)
            (thought ? convert_thought : convert_say)(&d->convert, view_str(&text));
        str_release(&text);
    }
}

static void read_user(struct reader *d, struct json_object *content)
{
    const size_t n = json_object_array_length(content);
    for (d->k = 0; d->k < n && request_go_on(d->fault); d->k++)
        if (is_result(json_object_array_get_idx(content, d->k)))
            read_result(d, json_object_array_get_idx(content, d->k));
    for (d->k = 0; d->k < n && request_go_on(d->fault); d->k++)
        read_user_block(d, json_object_array_get_idx(content, d->k));
}

static bool has_role(struct json_object *message, const char *role)
{
    const struct view own = view_member(message, "role");
    return own.at && strcasecmp(own.at, role) == 0;
}

static bool is_assistant(struct json_object *message)
{
    return has_role(message, "assistant") || has_role(message, "model");
}

/* One block, null, or nothing but missing are a list, too. */
static struct json_object *blocks_of(struct reader *d, struct json_object *message)
{
    struct json_object *content = NULL, *list;
    const bool there = json_object_is_type(message, json_type_object) &&
                       json_object_object_get_ex(message, "content", &content);
    if (json_object_is_type(content, json_type_string) ||
        json_object_is_type(content, json_type_array) || !there)
        return json_object_get(content);
    if (content && !json_object_is_type(content, json_type_object))
        return json_object_get(content);
    list = json_object_new_array();
    if (!list || (content && json_object_array_add(list, json_object_get(content))))
        d->convert.failed = true;
    return list;
}

static void read_system_turn(struct reader *d, struct json_object *message,
                             struct json_object *content)
{
    struct json_object *block = NULL;
    const bool text = json_object_is_type(content, json_type_string);
    struct str all;
    str_init(&all);
    if (text)
        add_line(&all, view_of(content));
    for (d->k = 0; !text && d->k < json_object_array_length(content) && request_go_on(d->fault);
         d->k++) {
        block = json_object_array_get_idx(content, d->k);
        if (add_block(d, block, &all, 0))
            continue;
        drop(d, view_member(block, "type"), "this model does not read it");
        add_line(&all, VIEW(PART_NOTE));
    }
    d->convert.failed = d->convert.failed || !str_ok(&all);
    if (has_role(message, "system"))
        convert_system(&d->convert, view_str(&all));
    else
        convert_developer(&d->convert, view_str(&all));
    str_release(&all);
}

static void read_content(struct reader *d, struct json_object *message, struct json_object *content)
{
    const bool text = json_object_is_type(content, json_type_string);
    const struct view role = view_member(message, "role");
    if (!json_object_is_type(message, json_type_object)) {
        fail_type(d, d->where, "a message", message, "an object");
    } else if (!text && !json_object_is_type(content, json_type_array)) {
        fail_type(d, d->where, "'content'", content, "a string or an array");
    } else if (has_role(message, "user") || has_role(message, "human")) {
        if (text || !json_object_array_length(content))
            convert_user(&d->convert, text ? view_of(content) : VIEW(""));
        else
            read_user(d, content);
    } else if (is_assistant(message)) {
        convert_assistant(&d->convert);
        if (text)
            convert_say(&d->convert, view_of(content));
        for (d->k = 0;
             !text && d->k < json_object_array_length(content) && request_go_on(d->fault); d->k++)
            read_assistant_block(d, json_object_array_get_idx(content, d->k));
    } else if (has_role(message, "system") || has_role(message, "developer")) {
        read_system_turn(d, message, content);
    } else {
        request_fault(d->fault, FAULT_REQUEST, d->where,
                      "'role' is '%.40s', not user, assistant or system", role.at ? role.at : "");
    }
}

static void read_message(struct reader *d, struct json_object *message)
{
    struct json_object *content = blocks_of(d, message);
    read_content(d, message, content);
    json_object_put(content);
}

static void read_messages(struct reader *d, struct json_object *body)
{
    struct json_object *messages = view_get(body, "messages");
    size_t answered = 0;
    if (!json_object_is_type(messages, json_type_array)) {
        fail_type(d, "messages", "'messages'", messages, "an array");
        return;
    }
    const size_t n = json_object_array_length(messages);
    if (!n || n > REQUEST_MAX_MESSAGES)
        request_fault(d->fault, FAULT_REQUEST, "messages", "%zu messages, not 1 to %d", n,
                      REQUEST_MAX_MESSAGES);
    for (size_t i = 0; i < n; i++)
        if (is_assistant(json_object_array_get_idx(messages, i)))
            answered = i + 1;
    for (size_t i = 0; i < n && request_go_on(d->fault); i++) {
        char where[40];
        snprintf(where, sizeof where, "messages[%zu]", i);
        d->where = where;
        d->answered = i < answered;
        d->i = i;
        read_message(d, json_object_array_get_idx(messages, i));
    }
    d->where = "messages";
}

/* A picture or a sound that the model is shown. */
static bool read_system_medium(struct reader *d, struct json_object *block)
{
    struct str said;
    str_init(&said);
    bool is_shown = json_object_is_type(block, json_type_object) && !part_is_mistyped(block) &&
                    part_read(block, &said) == PART_MEDIUM;
    str_clear(&said);
    is_shown = is_shown && add_medium(d, block, &said);
    if (is_shown)
        convert_system(&d->convert, view_str(&said));
    d->convert.failed = d->convert.failed || !str_ok(&said);
    str_release(&said);
    return is_shown;
}

/* Claude Code's first block is another one in each request: it would make every prefix new. */
static void read_system(struct reader *d, struct json_object *body)
{
    struct json_object *system = view_get(body, "system");
    if (json_object_is_type(system, json_type_string)) {
        convert_system(&d->convert, view_of(system));
        return;
    }
    if (system && !json_object_is_type(system, json_type_array)) {
        fail_type(d, "system", "'system'", system, "a string or an array");
        return;
    }
    d->where = "system";
    d->in_system = true;
    for (d->k = 0; system && d->k < json_object_array_length(system) && request_go_on(d->fault);
         d->k++) {
        struct json_object *block = json_object_array_get_idx(system, d->k);
        const struct view own = view_of(block), text = own.at ? own : view_member(block, "text");
        if (read_system_medium(d, block))
            continue;
        if (part_is_mistyped(block))
            fail_type(d, "system", "'type' of a block", view_get(block, "type"), "a string");
        else if (!text.at && (!block || json_object_is_type(block, json_type_object)))
            drop(d, view_member(block, "type"), "a block of 'system' without a text");
        else if (!text.at)
            request_fault(d->fault, FAULT_REQUEST, "system", "block %zu is %s, not a block of text",
                          d->k, view_type(block));
        else if (!view_starts(text, "x-anthropic-billing-header:"))
            convert_system(&d->convert, text);
    }
    d->in_system = false;
    d->where = "messages";
}

/* ---- tools ---- */

/* Tools that run on the provider's servers, or whose schema only the provider knows. */
static bool is_skipped(struct json_object *tool)
{
    const struct view type = view_member(tool, "type");
    return type.n && !view_is(type, "custom") && !view_is(type, "function");
}

static bool is_odd(struct json_object *tool)
{
    const struct view name = view_member(inner_tool(tool), "name");
    return !json_object_is_type(tool, json_type_object) ||
           (view_get(tool, "type") && !view_member(tool, "type").at) ||
           (!is_skipped(tool) && (!name.n || name.n > MAX_NAME));
}

static bool has_items(struct json_object *list)
{
    return json_object_is_type(list, json_type_array) && json_object_array_length(list) > 0;
}

static void read_tool(struct reader *d, struct json_object *tool, const char *where)
{
    struct json_object *own = inner_tool(tool);
    const struct view type = view_member(tool, "type"), name = view_member(own, "name");
    struct json_object *schema = view_get(own, "input_schema");
    if (!schema)
        schema = view_get(own, "parameters");
    if (schema && !json_object_is_type(schema, json_type_object)) {
        fail_type(d, where, "'input_schema'", schema, "an object");
        return;
    }
    char subject[64];
    if (!json_object_is_type(tool, json_type_object)) {
        fail_type(d, where, "a tool", tool, "an object");
    } else if (view_get(tool, "type") && !type.at) {
        fail_type(d, where, "'type'", view_get(tool, "type"), "a string");
    } else if (is_skipped(tool)) {
        report(d->sink, INGLE_REPORT_NOTE, "tool", view_cut(type, subject),
               "skipped: its schema is the provider's secret");
    } else if (!name.n || name.n > MAX_NAME) {
        request_fault(d->fault, FAULT_REQUEST, where, "'name' has %zu bytes, not 1 to %d", name.n,
                      MAX_NAME);
    } else if (!is_deferred(d, tool)) {
        convert_tool(&d->convert, name, view_member(own, "description"), schema);
    }
}

/* A search that the provider's servers would make: without them nobody would find a tool. */
static bool has_search(struct json_object *tools)
{
    for (size_t i = 0; i < json_object_array_length(tools); i++)
        if (view_starts(view_member(json_object_array_get_idx(tools, i), "type"),
                        "tool_search_tool"))
            return true;
    return false;
}

static void read_tools(struct reader *d, struct json_object *body)
{
    struct json_object *tools = view_get(body, "tools");
    if (tools && !json_object_is_type(tools, json_type_array)) {
        fail_type(d, "tools", "'tools'", tools, "an array");
        return;
    }
    d->tools = tools;
    d->defers = tools && !has_search(tools);
    const size_t n = tools ? json_object_array_length(tools) : 0;
    size_t n_odd = 0;
    for (size_t i = 0; i < n; i++)
        n_odd += is_odd(json_object_array_get_idx(tools, i));
    for (size_t i = 0; i < n && request_go_on(d->fault); i++) {
        char where[40];
        snprintf(where, sizeof where, "tools[%zu]", i);
        if (n_odd < n && is_odd(json_object_array_get_idx(tools, i))) {
            drop(d, (struct view){where, strlen(where)}, "it has no name");
            continue;
        }
        read_tool(d, json_object_array_get_idx(tools, i), where);
    }
}

static void read_choice(struct reader *d, struct json_object *body, struct chat_request *r)
{
    struct json_object *choice = view_get(body, "tool_choice");
    const struct view type = view_member(choice, "type"), name = view_member(choice, "name");
    if (!choice)
        return;
    if (view_is(type, "auto")) {
        r->tool_choice = TOOLS_AUTO;
    } else if (view_is(type, "none")) {
        r->tool_choice = TOOLS_NONE;
    } else if (view_is(type, "any")) {
        if (!has_items(d->tools))
            request_fault(d->fault, FAULT_REQUEST, "tool_choice",
                          "'any' requires a call, but there are no tools");
        r->tool_choice = d->convert.n_tools ? TOOLS_REQUIRED : TOOLS_AUTO;
    } else if (!view_is(type, "tool")) {
        request_fault(d->fault, FAULT_REQUEST, "tool_choice",
                      "'type' is '%.40s', not auto, any, tool or none", type.at ? type.at : "");
    } else if (!find_tool(d, name)) {
        request_fault(d->fault, FAULT_REQUEST, "tool_choice", "there is no tool '%.100s'",
                      name.at ? name.at : "");
    } else if (is_skipped(find_tool(d, name))) {
        char subject[64];
        report(d->sink, INGLE_REPORT_NOTE, "tool_choice", view_cut(name, subject),
               "left to the model: the tool was skipped");
    } else {
        r->tool_choice = TOOLS_NAMED;
        str_add(&r->tool_name, name.at, name.n);
        if (is_deferred(d, find_tool(d, name)))
            add_late_tool(d, find_tool(d, name), NULL);
    }
    if (json_object_get_boolean(view_get(choice, "disable_parallel_tool_use")))
        r->parallel_calls = false;
}

/* ---- the other fields ---- */

static void read_thinking_field(struct reader *d, struct json_object *body, struct anthropic *s,
                                struct chat_request *r)
{
    struct json_object *thinking = view_get(body, "thinking");
    const struct view type = view_member(thinking, "type");
    if (!thinking)
        return;
    if (view_is(type, "disabled"))
        r->thinking = THINKING_OFF;
    else if (view_is(type, "enabled") || view_is(type, "adaptive") ||
             view_is(type, "between_tools"))
        r->thinking = THINKING_ON;
    else
        request_fault(d->fault, FAULT_REQUEST, "thinking",
                      "'type' is '%.40s', not enabled, disabled or adaptive",
                      type.at ? type.at : "");
    request_get_int(thinking, "budget_tokens", 0, INT32_MAX, &r->thinking_budget, d->fault);
    s->omit = view_is(view_member(thinking, "display"), "omitted");
}

static void read_format(struct reader *d, struct json_object *body, struct chat_request *r)
{
    struct json_object *format = view_get(view_get(body, "output_config"), "format");
    const char *field = format ? "output_config.format" : "output_format";
    if (!format)
        format = view_get(body, "output_format");
    struct json_object *schema = view_get(format, "schema");
    const struct view type = view_member(format, "type");
    if (!format)
        return;
    if (!view_is(type, "json_schema")) {
        request_fault(d->fault, FAULT_REQUEST, field,
                      "'type' is '%.40s', not json_schema", type.at ? type.at : "");
    } else if (!json_object_is_type(schema, json_type_object)) {
        fail_type(d, field, "'schema'", schema, "an object");
    } else {
        r->has_grammar = true;
        r->grammar_param = strcmp(field, "output_format") != 0 ? "output_config.format.schema"
                                                               : "output_format.schema";
        r->grammar_kind = INGLE_GRAMMAR_JSON_SCHEMA;
        view_put_json(&r->grammar, schema);
    }
}

static void read_stops(struct reader *d, struct json_object *body, struct chat_request *r)
{
    struct json_object *stops =
        request_get_array(body, "stop_sequences", REQUEST_MAX_STOPS, d->fault);
    for (size_t i = 0; stops && i < json_object_array_length(stops); i++) {
        struct json_object *stop = json_object_array_get_idx(stops, i);
        if (!json_object_is_type(stop, json_type_string))
            fail_type(d, "stop_sequences", "a stop sequence", stop, "a string");
        else
            request_add_stop(r, view_of(stop).at, view_of(stop).n, "stop_sequences", d->fault);
    }
}

static void read_fields(struct reader *d, struct json_object *body, const struct answer_options *o,
                        struct anthropic *s, struct chat_request *r)
{
    struct json_object *config = request_get_object(body, "output_config", d->fault);
    const struct view effort = view_member(config, "effort");
    request_get_text(body, "model", 256, &r->model, d->fault);
    openai_read_params(r, body, o, PARAMS_MESSAGES, d->fault);
    if (view_get(config, "effort") && !effort.at)
        fail_type(d, "output_config.effort", "'effort'", view_get(config, "effort"), "a string");
    if (effort.at) {
        /* It says how hard to think, not whether. */
        request_effort(r, effort.at, "output_config.effort", d->fault);
        r->thinking = THINKING_DEFAULT;
    }
    openai_read_think(r, body, d->fault);
    read_thinking_field(d, body, s, r);
    read_format(d, body, r);
    openai_read_format(r, body, d->fault);
    read_stops(d, body, r);
    openai_read_stop(r, body, d->fault);
    read_system(d, body);
    read_tools(d, body);
    read_choice(d, body, r);
    read_messages(d, body);
    if (d->convert.n_tools + d->convert.n_late > REQUEST_MAX_TOOLS)
        request_fault(d->fault, FAULT_REQUEST, "tools", "%zu tools, more than the limit of %d",
                      d->convert.n_tools + d->convert.n_late, REQUEST_MAX_TOOLS);
}

void anthropic_free(struct anthropic *s)
{
    if (!s)
        return;
    str_release(&s->request_id);
    str_release(&s->text);
    mem_free(s);
}

void anthropic_read(struct json_object *body, const struct answer_options *o,
                    const char *request_id, const struct report_sink *sink, struct chat_request *r,
                    struct anthropic **out, struct fault *fault)
{
    struct reader d = {.r = r,
                       .o = o,
                       .sink = request_notes(r, sink),
                       .fault = fault,
                       .where = "messages",
                       .notes = o->note_media};
    struct anthropic *s = mem_zalloc(sizeof *s);
    struct err err;
    *out = s;
    if (!s) {
        request_fault_from(fault, INGLE_NOMEM, NULL, "no memory for a request");
        return;
    }
    str_init(&s->request_id);
    str_init(&s->text);
    str_adds(&s->request_id, request_id ? request_id : "");
    convert_init(&d.convert);
    d.convert.own_developer = o->developer_own;
    r->chat = true;
    r->parallel_calls = true;
    read_fields(&d, body, o, s, r);
    odd_members(body, d.sink, fault);
    const ingle_status st = convert_end(&d.convert, &err);
    if (st)
        request_fault_from(fault, st, NULL, err.msg);
    convert_give(&d.convert, &r->messages, &r->tools, &r->late_tools);
    json_object_put(d.by_name);
    convert_release(&d.convert);
}
