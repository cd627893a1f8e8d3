/* SPDX-License-Identifier: Apache-2.0 */
#include "server/fields.h"
#include "server/responses/responses.h"
#include "server/responses/store.h"

#include "base/mem.h"
#include "server/medium.h"
#include "server/odd.h"
#include "server/part.h"
#include "server/thought.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* What a request may bring by references, besides what it has itself. */
enum { MAX_REFERENCES = 4096, MAX_REFERENCE_BYTES = 16 << 20 };

static void fail(struct responses_reader *d, const char *where, const char *what,
                 struct json_object *v, const char *want)
{
    request_fault(d->fault, FAULT_REQUEST, where, "%s is %s, not %s", what, view_type(v),
                  want);
}

static void drop(struct responses_reader *d, struct view what, const char *why)
{
    char subject[64];
    report(d->sink, INGLE_REPORT_NOTE, "item", view_cut(what, subject), "left out: %s", why);
}

/* A 404. */
static void missing(struct responses_reader *d, const char *where, const char *what,
                    struct view id, const char *advice)
{
    if (d->fault->kind)
        return;
    const char *own = d->store ? responses_store_replica(d->store) : NULL;
    char words[REPLICA_WORDS] = "";
    if (id.at && replica_is_foreign(own, id.at, id.n, words))
        request_fault(d->fault, FAULT_REQUEST, where, "there is no %s '%.100s' here%s", what, id.at,
                      words);
    request_fault(d->fault, FAULT_REQUEST, where, "there is no %s '%.100s' (any more)%s", what,
                  id.at ? id.at : "", advice);
    d->fault->status = 404;
}

/* ---- content ---- */

/* A part that is not an object, or whose 'type' is not a string. */
static void fail_part(struct responses_reader *d, struct json_object *part, const char *where)
{
    const bool object = json_object_is_type(part, json_type_object);
    fail(d, where, object ? "'type' of a part" : "a part of the content",
         object ? view_get(part, "type") : part, object ? "a string" : "an object");
}

typedef void say_fn(struct convert *c, struct view t);

/* What the model cannot be shown: a note where nobody can send it otherwise, else a fault. */
static void note(struct responses_reader *d, struct view type, enum part kind, size_t i,
                 say_fn *say, const char *where)
{
    const bool medium = kind == PART_MEDIUM;
    if (d->answered || say != convert_user || (medium && d->notes)) {
        drop(d, type, medium ? "this model does not read it" : "a part without text");
        if (medium)
            say(&d->convert, VIEW(PART_NOTE));
    } else if (medium) {
        request_fault(
            d->fault, FAULT_REQUEST, where,
            "part %zu of the content is '%.40s': this model reads %s (--media note)", i,
            type.at, medium_readable(d->o));
    } else if (!type.at) {
        request_fault(d->fault, FAULT_REQUEST, where, "part %zu of the content has no 'type'", i);
    } else if (kind == PART_BROKEN) {
        request_fault(d->fault, FAULT_REQUEST, where,
                      "part %zu of the content ('%.40s') has no string 'text'", i, type.at);
    } else {
        request_fault(d->fault, FAULT_REQUEST, where,
                      "part %zu of the content is '%.40s', not " PART_TYPES, i, type.at);
    }
}

/* Appends the mark of a picture or sound.  False: the model is not shown it. */
static bool add_medium(struct responses_reader *d, struct json_object *part, size_t k,
                       const char *where, struct str *out)
{
    if (!d->r || !medium_is_shown(d->o, part))
        return false;
    const bool first = strcmp(where, "instructions") == 0;
    const struct medium_place at = {first ? where : "item", "part",
                                    first ? MEDIUM_UNNUMBERED : d->i, k, where};
    const int i = medium_read(d->r, part, &at, d->o, d->fault);
    if (i >= 0)
        medium_put_mark(out, d->r, i);
    return true;
}

static void read_part(struct responses_reader *d, struct json_object *part, size_t i, say_fn *say,
                      const char *where)
{
    struct str text;
    str_init(&text);
    const enum part kind = part_read(part, &text);
    switch (kind) {
    case PART_TEXT:
        say(&d->convert, view_str(&text));
        break;
    case PART_THOUGHT:
        (say == convert_say ? convert_thought : say)(&d->convert, view_str(&text));
        break;
    case PART_NONE:
        break;
    case PART_MISTYPED:
        fail_part(d, part, where);
        break;
    case PART_BROKEN:
    case PART_MEDIUM:
    case PART_UNKNOWN:
        if (kind == PART_MEDIUM && add_medium(d, part, i, where, &text)) {
            say(&d->convert, view_str(&text));
            break;
        }
        note(d, view_member(part, "type"), kind, i, say, where);
        break;
    }
    d->convert.failed = d->convert.failed || !str_ok(&text);
    str_release(&text);
}

/* Says the texts of a string, of a part or of a list of parts. */
static void read_content(struct responses_reader *d, struct json_object *content,
                         say_fn *say, const char *where)
{
    if (json_object_is_type(content, json_type_string)) {
        say(&d->convert, view_of(content));
    } else if (json_object_is_type(content, json_type_object)) {
        read_part(d, content, 0, say, where);
    } else if (!json_object_is_type(content, json_type_array)) {
        fail(d, where, "'content'", content, "a string or an array");
    } else {
        if (say == convert_user) /* a turn, whatever is in it */
            say(&d->convert, VIEW(""));
        for (size_t i = 0; i < json_object_array_length(content) && request_go_on(d->fault); i++)
            read_part(d, json_object_array_get_idx(content, i), i, say, where);
    }
}

/* Appends the texts of parts; media leave a note, as tools may return them unasked. */
static void add_parts(struct responses_reader *d, struct json_object *parts, bool shown,
                      struct str *out, const char *where)
{
    for (size_t i = 0; i < json_object_array_length(parts) && request_go_on(d->fault); i++) {
        struct json_object *part = json_object_array_get_idx(parts, i);
        struct str text;
        str_init(&text);
        const enum part kind = part_read(part, &text);
        if (kind == PART_MISTYPED)
            fail_part(d, part, where);
        if (kind == PART_MEDIUM && !(shown && add_medium(d, part, i, where, &text))) {
            drop(d, view_member(part, "type"), "this model does not read it");
            str_adds(&text, PART_NOTE);
        }
        str_adds(out, out->n && text.n && !medium_joins(out, view_str(&text)) ? "\n" : "");
        str_add(out, text.at, text.n);
        out->failed |= text.failed;
        str_release(&text);
    }
}

static void add_value(struct responses_reader *d, struct json_object *v, struct str *out)
{
    const struct view text = view_of(v);
    if (text.at)
        str_add(out, text.at, text.n);
    else if (json_object_is_type(v, json_type_array) && part_is_content(v))
        add_parts(d, v, true, out, "input"); /* none is mistyped */
    else if (v)
        view_put_json(out, v);
}

/* What we sealed, else the raw thought, else its summary. */
static void read_reasoning(struct responses_reader *d, struct json_object *item, const char *where)
{
    static const char *const part[] = {"content", "summary"};
    struct str text;
    str_init(&text);
    bool found = thought_open(view_member(item, "encrypted_content"), &text);
    for (size_t i = 0; !found && i < 2; i++) {
        struct json_object *list = view_get(item, part[i]);
        if (json_object_is_type(list, json_type_array))
            add_parts(d, list, false, &text, where);
        found = text.n > 0;
    }
    d->convert.failed = d->convert.failed || !str_ok(&text);
    if (found)
        convert_thought(&d->convert, view_str(&text));
    else
        drop(d, VIEW("reasoning"), "it holds no text, or another provider's");
    str_release(&text);
}

/* What /responses/compact made of a conversation. */
static void read_compaction(struct responses_reader *d, struct json_object *item)
{
    struct str text;
    str_init(&text);
    const bool ours = responses_open_compaction(item, &text);
    d->convert.failed = d->convert.failed || !str_ok(&text);
    if (ours)
        convert_user(&d->convert, view_str(&text));
    else
        drop(d, VIEW("compaction"),
             "it is another provider's, or altered: what it stands for is not known here");
    str_release(&text);
}

/* ---- calls and results ---- */

/* The id of a call or result; those without one are matched by their order. */
static struct view id_of(struct json_object *item, size_t *n_without, char space[32])
{
    struct view id = view_member(item, "call_id");
    if (!id.n)
        id = view_member(item, "id");
    if (!id.n) {
        snprintf(space, 32, "call-%zu", (*n_without)++);
        id = (struct view){space, strlen(space)};
    }
    return id;
}

static void add_call(struct responses_reader *d, struct json_object *item,
                     struct view name, struct json_object *arguments)
{
    char space[32];
    struct str flat;
    str_init(&flat);
    responses_flat(view_member(item, "namespace"), name.n ? name : VIEW("unknown"), &flat);
    d->convert.failed = d->convert.failed || !str_ok(&flat);
    convert_call(&d->convert, id_of(item, &d->n_calls, space),
                        view_str(&flat), arguments);
    str_release(&flat);
}

static bool has_role(struct json_object *item, const char *role)
{
    const struct view own = view_member(item, "role");
    return own.at && strcasecmp(own.at, role) == 0;
}

/* A message of chat completions with its calls. */
static void read_chat_calls(struct responses_reader *d, struct json_object *item)
{
    struct json_object *calls = view_get(item, "tool_calls");
    const struct view thought = view_member(item, "reasoning_content");
    if (thought.n)
        convert_thought(&d->convert, thought);
    for (size_t i = 0; json_object_is_type(calls, json_type_array) &&
                       i < json_object_array_length(calls) && request_go_on(d->fault);
         i++) {
        struct json_object *call = json_object_array_get_idx(calls, i),
                           *fn = view_get(call, "function");
        add_call(d, call, view_member(fn, "name"), view_get(fn, "arguments"));
    }
}

static void read_chat_result(struct responses_reader *d, struct json_object *item)
{
    struct json_object *content = view_get(item, "content");
    const struct view id = view_member(item, "tool_call_id");
    char space[32];
    struct str text;
    str_init(&text);
    add_value(d, content, &text);
    d->convert.failed = d->convert.failed || !str_ok(&text);
    convert_result(&d->convert, id.n ? id : id_of(item, &d->n_results, space), view_str(&text));
    str_release(&text);
}

/* null is an empty text. */
static void read_message(struct responses_reader *d, struct json_object *item,
                         const char *where)
{
    const struct view role = view_member(item, "role");
    struct json_object *content = NULL;
    const bool empty = json_object_object_get_ex(item, "content", &content) && !content;
    if (has_role(item, "user") && empty) {
        convert_user(&d->convert, VIEW(""));
    } else if (has_role(item, "user")) {
        read_content(d, content, convert_user, where);
    } else if (has_role(item, "system") || has_role(item, "developer")) {
        if (!empty)
            read_content(d, content, has_role(item, "system") ? convert_system : convert_developer,
                         where);
    } else if (has_role(item, "assistant")) {
        convert_assistant(&d->convert);
        if (content)
            read_content(d, content, convert_say, where);
        read_chat_calls(d, item);
    } else if (has_role(item, "tool")) {
        read_chat_result(d, item);
    } else {
        request_fault(d->fault, FAULT_REQUEST, where,
                      "'role' is '%.40s', not user, assistant, system or developer",
                      role.at ? role.at : "");
    }
}

static void read_function_call(struct responses_reader *d, struct json_object *item)
{
    add_call(d, item, view_member(item, "name"), view_get(item, "arguments"));
}

/* The free text becomes the one parameter again. */
static void read_custom_call(struct responses_reader *d, struct json_object *item)
{
    struct json_object *arguments = json_object_new_object();
    struct json_object *input = view_get(item, "input");
    if (!arguments || json_object_object_add(arguments, "input", json_object_get(input)) != 0)
        d->convert.failed = true;
    add_call(d, item, view_member(item, "name"), arguments);
    json_object_put(arguments);
}

static void read_shell_call(struct responses_reader *d, struct json_object *item)
{
    static const char *const member[] = {"command", "working_directory", "timeout_ms"};
    struct json_object *action = view_get(item, "action");
    struct json_object *arguments = json_object_new_object();
    for (size_t i = 0; arguments && i < sizeof member / sizeof *member; i++) {
        struct json_object *v = view_get(action, member[i]);
        if (v && json_object_object_add(arguments, member[i], json_object_get(v)) != 0)
            d->convert.failed = true;
    }
    d->convert.failed = d->convert.failed || !arguments;
    add_call(d, item, VIEW("local_shell"), arguments);
    json_object_put(arguments);
}

static void add_result(struct responses_reader *d, struct json_object *item,
                       const struct str *text)
{
    char space[32];
    d->convert.failed = d->convert.failed || !str_ok(text);
    convert_result(&d->convert, id_of(item, &d->n_results, space),
                          view_str(text));
}

static void read_output(struct responses_reader *d, struct json_object *item)
{
    struct str text;
    str_init(&text);
    add_value(d, view_get(item, "output"), &text);
    add_result(d, item, &text);
    str_release(&text);
}

/* Tools that can be called from now on; their definitions to text. */
static void read_late_tools(struct responses_reader *d, struct json_object *item,
                            const char *where, struct str *text)
{
    const size_t before = d->convert.n_late;
    str_adds(text, "These tools can be called now:");
    d->shown = text;
    responses_read_tools(d, view_get(item, "tools"), where);
    d->shown = NULL;
    d->convert.failed = d->convert.failed || !str_ok(text);
    if (d->convert.n_late == before)
        str_clear(text);
}

static void read_search_output(struct responses_reader *d, struct json_object *item,
                               const char *where)
{
    struct str text;
    str_init(&text);
    read_late_tools(d, item, where, &text);
    if (!text.n)
        str_adds(&text, "No further tools were found.");
    add_result(d, item, &text);
    str_release(&text);
}

/* Tools of a developer: in front as long as nobody has spoken. */
static void read_additional_tools(struct responses_reader *d, struct json_object *item,
                                  const char *where)
{
    struct str text;
    if (!convert_begun(&d->convert)) {
        responses_read_tools(d, view_get(item, "tools"), where);
        return;
    }
    str_init(&text);
    read_late_tools(d, item, where, &text);
    d->convert.failed = d->convert.failed || !str_ok(&text);
    if (text.n)
        convert_system(&d->convert, view_str(&text));
    str_release(&text);
}

/* A call that a provider made by itself, and what came of it. */
static void read_mcp_call(struct responses_reader *d, struct json_object *item)
{
    struct str text;
    str_init(&text);
    add_call(d, item, view_member(item, "name"), view_get(item, "arguments"));
    add_value(d, view_get(item, "output"), &text);
    if (!text.n)
        add_value(d, view_get(item, "error"), &text);
    d->n_results += !view_get(item, "call_id") && !view_get(item, "id");
    add_result(d, item, &text);
    str_release(&text);
}

/* ---- items ---- */

static void read_item(struct responses_reader *d, struct json_object *item,
                      const char *where);

static void keep(struct responses_reader *d, struct json_object *item)
{
    struct responses *s = d->state;
    (void)responses_items_add(&s->items, responses_keep_item(item, s->base, s->n_items));
    s->n_items++;
}

/* Reads an item of the store, which goes on as it is. */
static void read_known(struct responses_reader *d, struct responses_item *i, const char *where)
{
    struct json_object *item = NULL;
    if (json_parse(i->text, i->n, NULL, &item, NULL) == INGLE_OK) {
        read_item(d, item, where);
        (void)responses_items_add(&d->state->items, responses_item_ref(i));
        d->state->n_items++;
    } else {
        d->convert.failed = true;
    }
    json_object_put(item);
}

static void read_reference(struct responses_reader *d, struct json_object *item,
                           const char *where)
{
    const struct view id = view_member(item, "id");
    struct responses_item *i =
        d->store ? responses_store_item(d->store, d->state->user.at, id) : NULL;
    if (!i) {
        missing(d, where, "item", id, "");
        return;
    }
    if (++d->n_references > MAX_REFERENCES || i->n > MAX_REFERENCE_BYTES - d->reference_bytes) {
        request_fault(d->fault, FAULT_REQUEST, where,
                      "more than %d references to items, or than %d bytes that they bring",
                      MAX_REFERENCES, MAX_REFERENCE_BYTES);
    } else {
        d->reference_bytes += i->n;
        read_known(d, i, where);
    }
    responses_item_unref(i);
}

static void read_other(struct responses_reader *d, struct json_object *item,
                       struct view type, const char *where)
{
    struct json_object *content = view_get(item, "content");
    if (content && view_get(item, "role"))
        read_message(d, item, where);
    else if (view_ends(type, "_call_output"))
        read_output(d, item);
    else if (content)
        read_content(d, content, convert_user, where);
    else
        drop(d, type, "items of this type hold nothing that the model could read");
}

static void read_item(struct responses_reader *d, struct json_object *item,
                      const char *where)
{
    const struct view type = view_member(item, "type");
    if (!json_object_is_type(item, json_type_object))
        fail(d, where, "an item", item, "an object");
    else if (view_get(item, "type") && !type.at)
        fail(d, where, "'type'", view_get(item, "type"), "a string");
    else if (!type.at || view_is(type, "message"))
        read_message(d, item, where);
    else if (view_is(type, "reasoning"))
        read_reasoning(d, item, where);
    else if (view_is(type, "compaction") || view_is(type, "compaction_summary"))
        read_compaction(d, item);
    else if (view_is(type, "function_call"))
        read_function_call(d, item);
    else if (view_is(type, "custom_tool_call"))
        read_custom_call(d, item);
    else if (view_is(type, "local_shell_call"))
        read_shell_call(d, item);
    else if (view_is(type, "tool_search_call"))
        add_call(d, item, VIEW("tool_search"), view_get(item, "arguments"));
    else if (view_is(type, "tool_search_output"))
        read_search_output(d, item, where);
    else if (view_is(type, "additional_tools"))
        read_additional_tools(d, item, where);
    else if (view_is(type, "mcp_call"))
        read_mcp_call(d, item);
    else if (view_is(type, "item_reference"))
        read_reference(d, item, where);
    else
        read_other(d, item, type, where);
}

/* All that the conversation has, what is kept of it and what comes. */
static bool check_number(struct responses_reader *d, size_t n, const char *name)
{
    const size_t before = d->state->items.n;
    if (n > REQUEST_MAX_MESSAGES || before > REQUEST_MAX_MESSAGES - n)
        request_fault(d->fault, FAULT_REQUEST, name,
                      "%zu items and %zu before them, more than the limit of %d", n, before,
                      REQUEST_MAX_MESSAGES);
    return !d->fault->kind;
}

/* Something that the model said or called: what came before has been answered. */
static bool is_models(struct json_object *item)
{
    const struct view type = view_member(item, "type");
    return has_role(item, "assistant") || view_is(type, "reasoning") ||
           view_is(type, "compaction") || view_ends(type, "_call");
}

/* Reads items and keeps their texts for the store. */
static void read_items(struct responses_reader *d, struct json_object *items,
                       const char *name)
{
    const size_t n = json_object_array_length(items);
    size_t answered = 0;
    check_number(d, n, name);
    for (size_t i = 0; i < n; i++)
        if (is_models(json_object_array_get_idx(items, i)))
            answered = i + 1;
    for (size_t i = 0; i < n && request_go_on(d->fault); i++) {
        char where[64];
        struct json_object *item = json_object_array_get_idx(items, i);
        snprintf(where, sizeof where, "%s[%zu]", name, i);
        d->answered = i < answered;
        d->i = i;
        read_item(d, item, where);
        if (!d->fault->kind && !view_is(view_member(item, "type"), "item_reference"))
            keep(d, item);
    }
}

static void read_known_items(struct responses_reader *d, const struct responses_items *list,
                             const char *name)
{
    check_number(d, list->n, name);
    d->convert.failed = d->convert.failed || list->failed;
    for (size_t i = 0; i < list->n && request_go_on(d->fault); i++) {
        char where[64];
        snprintf(where, sizeof where, "%s[%zu]", name, i);
        d->answered = true;
        d->i = i;
        read_known(d, list->at[i], where);
    }
}

/* What is kept under id comes first. */
static void read_kept(struct responses_reader *d, struct view id, const char *field,
                      const char *what, const char *advice)
{
    struct responses_items list = {0};
    struct responses_found found = {.items = &list};
    if (!d->store || !responses_store_get(d->store, d->state->user.at, id.at, &found))
        missing(d, field, what, id, advice);
    else if (found.open)
        request_fault(d->fault, FAULT_REQUEST, field, "the %s '%.100s' is not complete yet", what,
                      id.at);
    else
        read_known_items(d, &list, field);
    responses_found_release(&found);
    responses_items_release(&list);
}

static void read_previous(struct responses_reader *d, struct json_object *body)
{
    struct json_object *previous = view_get(body, "previous_response_id");
    const struct view id = view_of(previous);
    if (previous && !id.at)
        fail(d, "previous_response_id", "'previous_response_id'", previous, "a string");
    else if (previous && view_get(body, "conversation"))
        request_fault(d->fault, FAULT_REQUEST, "previous_response_id",
                      "'previous_response_id' and 'conversation' exclude each other");
    else if (previous && view_starts(id, "conv_"))
        missing(d, "previous_response_id", "response", id, "");
    else if (previous)
        read_kept(d, id, "previous_response_id", "response", ": send the whole input");
}

static bool is_conversation(struct view id)
{
    return view_starts(id, "conv_") && strlen(id.at) == id.n;
}

/* An id, or an object with one. */
static void read_conversation(struct responses_reader *d, struct json_object *body)
{
    struct json_object *v = view_get(body, "conversation");
    struct view id = view_of(v);
    if (json_object_is_type(v, json_type_object))
        id = view_member(v, "id");
    if (!v)
        return;
    if (!id.at)
        fail(d, "conversation", "'conversation'", v, "an id, or an object with one");
    else if (!is_conversation(id))
        missing(d, "conversation", "conversation", id, "");
    else
        read_kept(d, id, "conversation", "conversation", "");
    str_add(&d->state->conversation, id.at, id.at ? id.n : 0);
    d->state->conversations = d->store;
}

static void read_input(struct responses_reader *d, struct json_object *body)
{
    struct json_object *input = view_get(body, "input");
    if (json_object_is_type(input, json_type_string)) {
        struct json_object *item = json_object_new_object();
        convert_user(&d->convert, view_of(input));
        if (!item || json_object_object_add(item, "role", json_object_new_string("user")) ||
            json_object_object_add(item, "content", json_object_get(input)))
            d->convert.failed = true;
        else
            keep(d, item);
        json_object_put(item);
    } else if (json_object_is_type(input, json_type_array)) {
        read_items(d, input, "input");
    } else if (input ||
               !(view_get(body, "previous_response_id") || view_get(body, "conversation"))) {
        fail(d, "input", "'input'", input, "a string or an array");
    }
}

/* ---- the other fields ---- */

static void read_format(struct responses_reader *d, struct json_object *body,
                        struct chat_request *r)
{
    struct json_object *text = request_get_object(body, "text", d->fault);
    struct json_object *format = text ? request_get_object(text, "format", d->fault) : NULL;
    struct json_object *schema = view_get(format, "schema");
    const struct view type = view_member(format, "type");
    if (!format || view_is(type, "text"))
        return;
    if (view_get(format, "name") && !view_member(format, "name").at)
        fail(d, "text.format.name", "'name'", view_get(format, "name"), "a string");
    r->has_grammar = true;
    r->grammar_param = "text.format.schema";
    if (view_is(type, "json_object")) {
        r->grammar_kind = INGLE_GRAMMAR_JSON;
    } else if (!view_is(type, "json_schema")) {
        request_fault(d->fault, FAULT_REQUEST, "text.format",
                      "'type' is '%.40s', not text, json_object or json_schema",
                      type.at ? type.at : "");
    } else if (!json_object_is_type(schema, json_type_object)) {
        fail(d, "text.format", "'schema'", schema, "an object");
    } else {
        r->grammar_kind = INGLE_GRAMMAR_JSON_SCHEMA;
        view_put_json(&r->grammar, schema);
    }
}

static bool has_items(struct json_object *list)
{
    return json_object_is_type(list, json_type_array) && json_object_array_length(list) > 0;
}

static bool has_word(struct json_object *list, const char *word)
{
    if (!json_object_is_type(list, json_type_array))
        return false;
    for (size_t i = 0; i < json_object_array_length(list); i++)
        if (view_is(view_of(json_object_array_get_idx(list, i)), word))
            return true;
    return false;
}

/* Words that are not known ask for what is not here. */
static void check_include(struct responses_reader *d, struct json_object *body)
{
    struct json_object *list = request_get_array(body, "include", 64, d->fault);
    for (size_t i = 0; list && i < json_object_array_length(list); i++)
        if (!json_object_is_type(json_object_array_get_idx(list, i), json_type_string))
            fail(d, "include", "an item of 'include'", json_object_array_get_idx(list, i),
                 "a string");
}

static void read_reasoning_field(struct responses_reader *d, struct json_object *body,
                                 struct chat_request *r)
{
    static const char *const words[] = {"effort", "summary"};
    struct json_object *reasoning = request_get_object(body, "reasoning", d->fault);
    const struct view effort = view_member(reasoning, "effort");
    const struct view summary = view_member(reasoning, "summary");
    for (size_t i = 0; i < 2; i++)
        if (view_get(reasoning, words[i]) && !view_member(reasoning, words[i]).at)
            fail(d, "reasoning", words[i], view_get(reasoning, words[i]), "a string");
    if (effort.at)
        request_effort(r, effort.at, "reasoning.effort", d->fault);
    if (summary.n && !view_is(summary, "auto") && !view_is(summary, "concise") &&
        !view_is(summary, "detailed") && !view_is(summary, "none"))
        request_fault(d->fault, FAULT_REQUEST, "reasoning.summary",
                      "'summary' is '%.40s', not auto, concise, detailed or none", summary.at);
    d->state->summary = summary.n && !view_is(summary, "none");
}

/* What cannot be ignored without the client taking another thing for its answer. */
static void refuse(struct responses_reader *d, struct json_object *body)
{
    if (view_get(body, "prompt"))
        request_fault(d->fault, FAULT_REQUEST, "prompt",
                      "'prompt' is not kept here: send input and instructions");
    struct json_object *truncation = view_get(body, "truncation");
    if (view_is(view_of(truncation), "auto"))
        drop(d, VIEW("truncation"),
             "'auto' cuts nothing here: an input that is longer than the context is refused");
    else if (truncation && !view_is(view_of(truncation), "disabled"))
        request_fault(d->fault, FAULT_REQUEST, "truncation",
                      "'truncation' is %.40s, not auto or disabled",
                      json_object_get_string(truncation));
}

static void read_background(struct responses_reader *d, struct json_object *body, bool keep_it)
{
    request_get_bool(body, "background", &d->state->background, d->fault);
    if (d->state->background && !keep_it)
        request_fault(d->fault, FAULT_REQUEST, "background",
                      "'background' needs 'store': the answer is fetched from there");
}

static void read_sampling(struct responses_reader *d, struct json_object *body,
                          const struct answer_options *o, struct chat_request *r)
{
    int64_t n_top = 0;
    openai_read_params(r, body, o, PARAMS_RESPONSES, d->fault);
    openai_read_stop(r, body, d->fault);
    openai_read_think(r, body, d->fault);
    request_get_int(body, "top_logprobs", 0, REQUEST_MAX_TOP, &n_top, d->fault);
    d->state->timings = r->timings_per_token;
    r->o.n_top = (int)n_top;
    r->logprobs = n_top > 0 || has_word(view_get(body, "include"),
                                        "message.output_text.logprobs");
    d->state->logprobs = r->logprobs;
}

/* ,"key":value, or what stands for a missing one. */
static void echo(struct str *s, struct json_object *body, const char *key, const char *otherwise)
{
    struct json_object *v = view_get(body, key);
    str_addf(s, ",\"%s\":", key);
    if (v)
        view_put_json(s, v);
    else
        str_adds(s, otherwise);
}

static void echo_all(struct responses *t, struct json_object *body, const struct chat_request *r,
                     bool store)
{
    struct str *s = &t->echo;
    struct json_object *reasoning = view_get(body, "reasoning");
    char number[32];
    echo(s, body, "instructions", "null");
    echo(s, body, "metadata", "{}");
    echo(s, body, "max_output_tokens", "null");
    echo(s, body, "max_tool_calls", "null");
    str_addf(s, ",\"parallel_tool_calls\":%s", r->parallel_calls ? "true" : "false");
    echo(s, body, "previous_response_id", "null");
    echo(s, body, "prompt_cache_key", "null");
    str_adds(s, ",\"reasoning\":{\"effort\":");
    view_put_json(s, view_get(reasoning, "effort"));
    str_adds(s, ",\"summary\":");
    view_put_json(s, view_get(reasoning, "summary"));
    str_addf(s, "},\"background\":%s", t->background ? "true" : "false");
    if (t->conversation.n) {
        str_adds(s, ",\"conversation\":{\"id\":");
        view_put(s, view_str(&t->conversation));
        str_addc(s, '}');
    } else {
        str_adds(s, ",\"conversation\":null");
    }
    str_adds(s, ",\"service_tier\":\"default\"");
    str_addf(s, ",\"store\":%s", store ? "true" : "false");
    snprintf(number, sizeof number, "%.6g", (double)r->o.sampling.temperature);
    echo(s, body, "temperature", number);
    echo(s, body, "text", "{\"format\":{\"type\":\"text\"}}");
    echo(s, body, "tool_choice", "\"auto\"");
    echo(s, body, "tools", "[]");
    str_addf(s, ",\"top_logprobs\":%d", r->o.n_top);
    snprintf(number, sizeof number, "%.6g", (double)r->o.sampling.top_p);
    echo(s, body, "top_p", number);
    str_adds(s, ",\"truncation\":\"disabled\"");
    echo(s, body, "user", "null");
}

static void read_fields(struct responses_reader *d, struct json_object *body,
                        const struct answer_options *o, struct chat_request *r)
{
    struct responses *s = d->state;
    struct json_object *instructions = view_get(body, "instructions");
    bool keep_it = true;
    refuse(d, body);
    check_include(d, body);
    request_get_text(body, "model", 256, &r->model, d->fault);
    request_get_bool(body, "store", &keep_it, d->fault);
    read_background(d, body, keep_it);
    request_get_bool(body, "parallel_tool_calls", &r->parallel_calls, d->fault);
    read_sampling(d, body, o, r);
    read_reasoning_field(d, body, r);
    read_format(d, body, r);
    openai_read_format(r, body, d->fault);
    s->store = keep_it ? d->store : NULL;
    s->stream = r->stream;
    s->sealed = !keep_it || has_word(view_get(body, "include"), "reasoning.encrypted_content");
    if (json_object_is_type(instructions, json_type_object))
        fail(d, "instructions", "'instructions'", instructions, "a string or an array");
    else if (instructions)
        read_content(d, instructions, convert_system, "instructions");
    responses_read_tools(d, view_get(body, "tools"), "tools");
    read_previous(d, body);
    read_conversation(d, body);
    s->new_at = s->items.n;
    read_input(d, body);
    d->no_tools = !s->n_tools && !has_items(view_get(body, "tools"));
    responses_read_choice(d, view_get(body, "tool_choice"), view_get(body, "tools"), r);
    echo_all(s, body, r, keep_it);
}

static struct responses *new_state(const char *user)
{
    struct responses *s = mem_zalloc(sizeof *s);
    if (!s)
        return NULL;
    str_init(&s->user);
    str_init(&s->conversation);
    responses_random(s->base);
    str_init(&s->echo);
    str_init(&s->model);
    str_init(&s->output);
    str_init(&s->text);
    str_init(&s->logprob);
    str_init(&s->call_name);
    str_init(&s->input);
    str_init(&s->call_id);
    str_adds(&s->user, user ? user : "");
    return s;
}

void responses_free(struct responses *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_tools; i++) {
        str_release(&s->tool[i].flat);
        str_release(&s->tool[i].name);
        str_release(&s->tool[i].space);
    }
    mem_free(s->tool);
    str_release(&s->user);
    str_release(&s->conversation);
    tape_unref(s->tape);
    str_release(&s->echo);
    responses_items_release(&s->items);
    str_release(&s->model);
    str_release(&s->output);
    str_release(&s->text);
    str_release(&s->logprob);
    str_release(&s->call_name);
    str_release(&s->input);
    str_release(&s->call_id);
    mem_free(s);
}

static void read_all(struct json_object *body, const struct answer_options *o,
                     struct responses_store *store, const char *user,
                     const struct report_sink *sink, struct chat_request *r, struct responses **out,
                     bool compact, struct fault *fault)
{
    struct responses_reader d = {.state = new_state(user),
                                 .store = store,
                                 .r = r,
                                 .o = o,
                                 .sink = request_notes(r, sink),
                                 .fault = fault,
                                 .notes = o->note_media};
    struct err err;
    *out = d.state;
    if (!d.state) {
        request_fault_from(fault, INGLE_NOMEM, NULL, "no memory for a request");
        return;
    }
    convert_init(&d.convert);
    d.convert.own_developer = o->developer_own;
    r->chat = true;
    r->prompt_param = "input";
    r->parallel_calls = true;
    read_fields(&d, body, o, r);
    odd_members(body, d.sink, fault);
    if (compact)
        responses_request_compaction(&d, body, r);
    if (!fault->kind && !d.convert.n_messages && !d.convert.has_user && !d.convert.has_assistant &&
        !d.convert.has_system)
        request_fault(fault, FAULT_REQUEST, "input", "'input' is empty");
    const ingle_status st = convert_end(&d.convert, &err);
    if (st)
        request_fault_from(fault, st, NULL, err.msg);
    convert_give(&d.convert, &r->messages, &r->tools, &r->late_tools);
    convert_release(&d.convert);
}

void responses_read(struct json_object *body, const struct answer_options *o,
                    struct responses_store *store, const char *user, const struct report_sink *sink,
                    struct chat_request *r, struct responses **out, struct fault *fault)
{
    read_all(body, o, store, user, sink, r, out, false, fault);
}

void responses_read_compact(struct json_object *body, const struct answer_options *o,
                            struct responses_store *store, const char *user,
                            const struct report_sink *sink, struct chat_request *r,
                            struct responses **out, struct fault *fault)
{
    read_all(body, o, store, user, sink, r, out, true, fault);
}

void responses_check_items(struct json_object *items, struct responses_store *store,
                           const char *user, struct responses_items *out, struct fault *fault)
{
    struct responses_reader d = {.state = new_state(user), .store = store, .fault = fault};
    if (!d.state) {
        request_fault_from(fault, INGLE_NOMEM, NULL, "no memory for items");
        return;
    }
    convert_init(&d.convert);
    if (!json_object_is_type(items, json_type_array))
        fail(&d, "items", "'items'", items, "an array");
    else
        read_items(&d, items, "items");
    if (d.convert.failed || d.state->items.failed ||
        !responses_items_share(out, &d.state->items, 0, d.state->items.n))
        request_fault_from(fault, INGLE_NOMEM, NULL, "no memory for items");
    convert_release(&d.convert);
    responses_free(d.state);
}
