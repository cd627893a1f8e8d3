/* SPDX-License-Identifier: Apache-2.0 */
#include "server/odd.h"

#include "base/json.h"
#include "server/view.h"

#include <stdio.h>
#include <string.h>

enum { MOST_DEPTH = 6, MOST_NOTES = REQUEST_MAX_WARNINGS };

struct odd {
    const struct report_sink *sink;
    struct fault *f;
    int n_notes;
};

static const struct odd_kind {
    const char *name;
    enum json_type type;
    const char *want;
} kinds[] = {
    {"id", json_type_string, "a string"},
    {"name", json_type_string, "a string"},
    {"type", json_type_string, "a string"},
    {"text", json_type_string, "a string"},
    {"call_id", json_type_string, "a string"},
    {"description", json_type_string, "a string"},
    {"encrypted_content", json_type_string, "a string"},
    {"namespace", json_type_string, "a string"},
    {"reasoning_content", json_type_string, "a string"},
    {"signature", json_type_string, "a string"},
    {"thinking", json_type_string, "a string"},
    {"tool_call_id", json_type_string, "a string"},
    {"tool_use_id", json_type_string, "a string"},
    {"action", json_type_object, "an object"},
    {"custom", json_type_object, "an object"},
    {"definition", json_type_object, "an object"},
    {"format", json_type_object, "an object"},
    {"function", json_type_object, "an object"},
    {"input_schema", json_type_object, "an object"},
    {"parameters", json_type_object, "an object"},
    {"tool", json_type_object, "an object"},
    {"tool_calls", json_type_array, "an array"},
    {"tools", json_type_array, "an array"},
};

/* What else has such members in it; arguments, schemas and outputs have any. */
static bool goes_on(const char *key)
{
    static const char *const into[] = {"content", "custom",     "definition", "function",
                                       "tool",    "tool_calls", "tools"};
    for (size_t i = 0; i < sizeof into / sizeof *into; i++)
        if (strcmp(key, into[i]) == 0)
            return true;
    return false;
}

/* A schema as JSON text, which some clients send. */
static bool is_object_text(struct json_object *v)
{
    struct json_object *o = NULL;
    if (!json_object_is_type(v, json_type_string) ||
        json_parse(json_object_get_string(v), (size_t)json_object_get_string_len(v), NULL, &o,
                   NULL))
        return false;
    const bool yes = json_object_is_type(o, json_type_object);
    json_object_put(o);
    return yes;
}

static void note(struct odd *o, const char *where, const struct odd_kind *k, struct json_object *v)
{
    const bool schema = strcmp(k->name, "parameters") == 0 || strcmp(k->name, "input_schema") == 0;
    if (!o->sink && strcmp(k->name, "id") == 0) /* it gets another one, which the reply shows */
        return;
    if (schema && is_object_text(v))
        return;
    if (schema || !o->sink)
        request_fault(o->f, FAULT_REQUEST, where, "'%s' is %s, not %s", where, view_type(v),
                      k->want);
    else if (o->n_notes++ < MOST_NOTES)
        report(o->sink, INGLE_REPORT_NOTE, "member", where, "left out: %s, not %s", view_type(v),
               k->want);
}

static void check(struct odd *o, struct json_object *v, const char *where, int depth)
{
    char at[96];
    if (depth == MOST_DEPTH || !request_go_on(o->f))
        return;
    if (json_object_is_type(v, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(v) && !o->f->kind; i++) {
            snprintf(at, sizeof at, "%s[%zu]", where, i);
            check(o, json_object_array_get_idx(v, i), at, depth + 1);
        }
    } else if (json_object_is_type(v, json_type_object)) {
        json_object_object_foreach(v, key, member)
        {
            const struct odd_kind *k = NULL;
            for (size_t i = 0; member && i < sizeof kinds / sizeof *kinds && !k; i++)
                k = strcmp(key, kinds[i].name) == 0 ? &kinds[i] : NULL;
            if (!k && !goes_on(key))
                continue;
            snprintf(at, sizeof at, "%.60s.%.30s", where, key);
            if (k && !json_object_is_type(member, k->type))
                note(o, at, k, member);
            else if (goes_on(key))
                check(o, member, at, depth + 1);
        }
    }
}

void odd_members(struct json_object *body, const struct report_sink *sink, struct fault *f)
{
    static const char *const lists[] = {"messages", "input", "items", "tools", "functions"};
    struct odd o = {.sink = sink, .f = f};
    for (size_t i = 0; body && i < sizeof lists / sizeof *lists; i++)
        if (json_object_is_type(view_get(body, lists[i]), json_type_array))
            check(&o, view_get(body, lists[i]), lists[i], 0);
}
