/* SPDX-License-Identifier: Apache-2.0 */
#include "server/convert.h"

#include "server/medium.h"

#include <string.h>

void convert_init(struct convert *c)
{
    *c = (struct convert){0};
    str_init(&c->messages);
    str_init(&c->tools);
    str_init(&c->late);
    str_init(&c->system);
    str_init(&c->user);
    str_init(&c->thought);
    str_init(&c->text);
    str_init(&c->calls);
}

void convert_release(struct convert *c)
{
    str_release(&c->messages);
    str_release(&c->tools);
    str_release(&c->late);
    str_release(&c->system);
    str_release(&c->user);
    str_release(&c->thought);
    str_release(&c->text);
    str_release(&c->calls);
    json_object_put(c->waiting);
    json_object_put(c->named);
    c->waiting = c->named = NULL;
}

static void begin_message(struct convert *c, const char *role)
{
    view_put_comma(&c->messages);
    str_addf(&c->messages, "{\"role\":\"%s\",\"content\":", role);
    c->n_messages++;
}

static void put_result(struct convert *c, struct view id, struct view t)
{
    begin_message(c, "tool");
    medium_put_content(&c->messages, t);
    str_adds(&c->messages, ",\"tool_call_id\":");
    view_put(&c->messages, id);
    str_addc(&c->messages, '}');
}

/* Clearing forgets a failure. */
static void clear(struct convert *c, struct str *s)
{
    c->failed = c->failed || !str_ok(s);
    str_clear(s);
}

static void close_assistant(struct convert *c)
{
    if (!c->has_assistant)
        return;
    begin_message(c, "assistant");
    medium_put_content(&c->messages, view_str(&c->text));
    if (c->thought.n) {
        str_adds(&c->messages, ",\"reasoning_content\":");
        str_add_json(&c->messages, c->thought.at, c->thought.n);
    }
    if (c->calls.n) {
        str_adds(&c->messages, ",\"tool_calls\":[");
        str_add(&c->messages, c->calls.at, c->calls.n);
        str_addc(&c->messages, ']');
    }
    str_addc(&c->messages, '}');
    clear(c, &c->text);
    clear(c, &c->thought);
    clear(c, &c->calls);
    c->has_assistant = false;
}

static void close_user(struct convert *c)
{
    if (!c->has_user)
        return;
    begin_message(c, c->by_developer ? "developer" : "user");
    medium_put_content(&c->messages, view_str(&c->user));
    str_addc(&c->messages, '}');
    clear(c, &c->user);
    c->has_user = c->by_developer = false;
}

/* Calls that were not answered before somebody else speaks. */
static void answer_waiting(struct convert *c)
{
    if (!c->waiting)
        return;
    json_object_object_foreach(c->waiting, id, unused)
    {
        (void)unused;
        put_result(c, (struct view){id, strlen(id)}, VIEW("(no result)"));
    }
    json_object_put(c->waiting);
    c->waiting = NULL;
}

static void add_paragraph(struct str *s, struct view t)
{
    if (s->n && t.n && !medium_joins(s, t))
        str_adds(s, "\n\n");
    str_add(s, t.at, t.n);
}

bool convert_begun(const struct convert *c)
{
    return c->n_messages || c->has_user || c->has_assistant;
}

void convert_system(struct convert *c, struct view t)
{
    if (!convert_begun(c)) {
        add_paragraph(&c->system, t);
        c->has_system = true;
        return;
    }
    if (!t.n)
        return;
    convert_user(c, VIEW("<system>"));
    str_addc(&c->user, '\n');
    str_add(&c->user, t.at, t.n);
    str_adds(&c->user, "\n</system>");
}

static void speak(struct convert *c, struct view t, bool developer)
{
    close_assistant(c);
    answer_waiting(c);
    if (c->by_developer != developer)
        close_user(c);
    c->by_developer = developer;
    add_paragraph(&c->user, t);
    c->has_user = true;
}

void convert_user(struct convert *c, struct view t)
{
    speak(c, t, false);
}

void convert_developer(struct convert *c, struct view t)
{
    if (!c->own_developer)
        convert_system(c, t);
    else if (t.n)
        speak(c, t, true);
}

void convert_assistant(struct convert *c)
{
    close_user(c);
    if (!c->has_assistant)
        answer_waiting(c);
    c->has_assistant = true;
}

void convert_thought(struct convert *c, struct view t)
{
    if (c->has_assistant && (c->text.n || c->calls.n))
        close_assistant(c);
    convert_assistant(c);
    add_paragraph(&c->thought, t);
}

void convert_say(struct convert *c, struct view t)
{
    convert_assistant(c);
    add_paragraph(&c->text, t);
}

void convert_arguments(struct str *s, struct json_object *arguments)
{
    const struct view t = view_of(arguments);
    size_t i = 0;
    if (json_object_is_type(arguments, json_type_object)) {
        view_put_json(s, arguments);
        return;
    }
    while (i < t.n && strchr(" \t\r\n", t.at[i]) && t.at[i])
        i++;
    if (t.at && i < t.n && t.at[i] == '{' && json_gate(t.at, t.n, NULL, NULL) == INGLE_OK) {
        str_add(s, t.at, t.n);
    } else if (!arguments || (t.at && i == t.n)) {
        str_adds(s, "{}");
    } else if (!json_close(s, t.at ? t.at : "", t.n)) {
        str_adds(s, "{\"arguments\":");
        view_put_json(s, arguments);
        str_addc(s, '}');
    }
}

void convert_call(struct convert *c, struct view id, struct view name,
                         struct json_object *arguments)
{
    convert_assistant(c);
    view_put_comma(&c->calls);
    str_adds(&c->calls, "{\"id\":");
    view_put(&c->calls, id);
    str_adds(&c->calls, ",\"type\":\"function\",\"function\":{\"name\":");
    view_put(&c->calls, name);
    str_adds(&c->calls, ",\"arguments\":");
    convert_arguments(&c->calls, arguments);
    str_adds(&c->calls, "}}");
    if (!c->waiting)
        c->waiting = json_object_new_object();
    if (!c->waiting || (id.at && json_object_object_add(c->waiting, id.at, NULL) != 0))
        c->failed = true;
}

void convert_result(struct convert *c, struct view id, struct view t)
{
    if (!id.at || !c->waiting || !json_object_object_get_ex(c->waiting, id.at, NULL)) {
        convert_user(c, VIEW("Result of a tool:"));
        add_paragraph(&c->user, t);
        return;
    }
    close_assistant(c);
    put_result(c, id, t);
    json_object_object_del(c->waiting, id.at);
    if (!json_object_object_length(c->waiting)) {
        json_object_put(c->waiting);
        c->waiting = NULL;
    }
}

static void put_function(struct str *s, struct view name, struct view description,
                         struct json_object *parameters)
{
    str_adds(s, "{\"name\":");
    view_put(s, name);
    if (description.at) {
        str_adds(s, ",\"description\":");
        view_put(s, description);
    }
    str_adds(s, ",\"parameters\":");
    if (parameters)
        view_put_json(s, parameters);
    else
        str_adds(s, "{\"type\":\"object\",\"properties\":{}}");
    str_addc(s, '}');
}

static void put_tool(struct str *s, struct view name, struct view description,
                     struct json_object *parameters)
{
    view_put_comma(s);
    str_adds(s, "{\"type\":\"function\",\"function\":");
    put_function(s, name, description, parameters);
    str_addc(s, '}');
}

/* False: there is one of that name. */
static bool name_tool(struct convert *c, struct view name)
{
    if (!c->named)
        c->named = json_object_new_object();
    if (!c->named || !name.at) {
        c->failed = c->failed || !c->named;
        return true;
    }
    if (json_object_object_get_ex(c->named, name.at, NULL))
        return false;
    c->failed = json_object_object_add(c->named, name.at, NULL) != 0 || c->failed;
    return true;
}

void convert_tool(struct convert *c, struct view name,
                         struct view description, struct json_object *parameters)
{
    (void)name_tool(c, name);
    put_tool(&c->tools, name, description, parameters);
    c->n_tools++;
}

void convert_late_tool(struct convert *c, struct view name, struct view description,
                       struct json_object *parameters, struct str *shown)
{
    if (name_tool(c, name)) {
        put_tool(&c->late, name, description, parameters);
        c->n_late++;
    }
    if (!shown)
        return;
    str_adds(shown, shown->n ? "\n" : "");
    put_function(shown, name, description, parameters);
}

/* s becomes [head, s]. */
static void close_array(struct str *s, const struct str *head)
{
    struct str all;
    str_init(&all);
    str_addc(&all, '[');
    str_add(&all, head ? head->at : "", head ? head->n : 0);
    if (s->n)
        view_put_comma(&all);
    str_add(&all, s->at, s->n);
    str_addc(&all, ']');
    all.failed = all.failed || s->failed;
    str_release(s);
    *s = all;
}

ingle_status convert_end(struct convert *c, struct err *err)
{
    close_user(c);
    close_assistant(c);
    answer_waiting(c);
    struct str head;
    str_init(&head);
    if (c->has_system) {
        str_adds(&head, "{\"role\":\"system\",\"content\":");
        medium_put_content(&head, view_str(&c->system));
        str_addc(&head, '}');
        c->n_messages++;
    }
    close_array(&c->messages, &head);
    if (c->n_tools)
        close_array(&c->tools, NULL);
    if (c->n_late)
        close_array(&c->late, NULL);
    const struct str *const part[] = {&c->messages, &c->tools, &c->late,  &c->system, &c->user,
                                      &c->thought,  &c->text,  &c->calls, &head};
    bool ok = !c->failed;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        ok = ok && str_ok(part[i]);
    str_release(&head);
    return ok ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a conversation");
}

void convert_give(struct convert *c, struct str *messages, struct str *tools, struct str *late)
{
    str_release(messages);
    *messages = c->messages;
    str_init(&c->messages);
    str_release(tools);
    *tools = c->tools;
    str_init(&c->tools);
    str_release(late);
    *late = c->late;
    str_init(&c->late);
}
