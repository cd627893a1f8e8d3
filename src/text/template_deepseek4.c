/* SPDX-License-Identifier: Apache-2.0 */
/*
 * template_deepseek4 - the DeepSeek V4 prompt, as the official encoder writes it.
 *
 * Messages first become turns: tool results and the user text next to them share one user
 * turn.  Turns are then written one after the other; what leads to the assistant (its
 * header and the opening or closed thought) belongs to the turn before it.
 *
 * Two deviations from the encoder (docs/how/deepseek-v4.md): a system text after other text is
 * set apart from it, and the schemas of tools are normalised before they are shown.
 */
#include "text/template.h"
#include "text/tool_schema.h"

#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

#define BOS            "<｜begin▁of▁sentence｜>"
#define EOS            "<｜end▁of▁sentence｜>"
#define USER_HEAD      "<｜User｜>"
#define ASSISTANT_HEAD "<｜Assistant｜>"
#define REMINDER_HEAD  "<｜latest_reminder｜>"
#define ACTION         "<｜action｜>"
#define DSML           "｜DSML｜"

static const char effort_maximum[] =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the "
    "problem to resolve the root cause, rigorously stress-testing your logic against all "
    "potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every "
    "intermediate step, considered alternative, and rejected hypothesis to ensure "
    "absolutely no assumption is left unchecked.\n"
    "\n";
static const char effort_beyond[] =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to "
    "chance: exhaustively decompose the problem into its most fundamental components, "
    "trace every causal chain to its root, and resolve the underlying cause rather than "
    "any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from "
    "multiple angles and are certain that no assumption remains unchecked and no error "
    "remains undiscovered.\n"
    "\n";
static const char tools_head[] =
    "\n"
    "\n"
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can "
    "invoke tools by writing a \"<｜DSML｜tool_calls>\" block like the following:\n"
    "\n"
    "<｜DSML｜tool_calls>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all "
    "other types (numbers, booleans, arrays, objects), pass the value in JSON format and "
    "set `string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete "
    "reasoning inside <think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n";
static const char tools_tail[] =
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to "
    "invoke tool calls.\n";

enum role { SYSTEM, USER, ASSISTANT, TOOL, DEVELOPER, REMINDER };

/* A part of a user turn: a text or the result of a tool. */
struct block {
    struct json_object *message;
    size_t i; /* of the message */
};

struct turn {
    enum role role;
    struct json_object *message; /* NULL: a system turn that only carries the tools */
    size_t i;                    /* of the message */
    const char *task;            /* the token of its task, or NULL */
    size_t first_block, n_blocks;
    bool dropped;
};

struct deepseek {
    struct text_writer *w;
    const struct text_chat_options *o;
    struct json_object *tools; /* of the request: go to the first system turn */
    struct turn *turn;
    size_t n_turns, cap_turns;
    struct block *block;
    size_t n_blocks, cap_blocks;
    size_t last_user;    /* the last turn of a user or developer, or n_turns */
    size_t first_system; /* or n_turns */
    bool dropping;       /* reasoning before last_user is left out */
};

/* Text of the template's own: every special token spelt in it is one. */
static void put_own(struct text_writer *w, const char *s)
{
    static const char *const token[] = {DSML, "<think>", "</think>"};
    while (*s) {
        const size_t n = strcspn(s, "<\xEF");
        text_put(w, (struct text_view){s, n});
        s += n;
        size_t t = 0;
        while (t < 3 && strncmp(s, token[t], strlen(token[t])) != 0)
            t++;
        if (t < 3) {
            text_mark(w, token[t]);
            s += strlen(token[t]);
        } else if (*s) {
            text_put(w, (struct text_view){s, 1});
            s++;
        }
    }
}

static bool read_role(struct text_writer *w, struct json_object *message, enum role *role)
{
    static const char *const name[] = {"system", "user",      "assistant",
                                       "tool",   "developer", "latest_reminder"};
    if (!json_object_is_type(message, json_type_object))
        return text_fail(w, "%s, not an object", text_type_name(message));
    const struct text_view v = text_get_string(w, message, "role");
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (text_is(v, name[i])) {
            *role = (enum role)i;
            return true;
        }
    if (!v.at)
        return text_fail(w, "'role' is missing");
    return text_fail(w,
                     "'role' is '%.40s', not system, user, assistant, tool, developer or "
                     "latest_reminder",
                     v.at);
}

static const char *read_task(struct text_writer *w, struct json_object *message)
{
    static const char *const task[][2] = {
        {"action", ACTION},         {"query", "<｜query｜>"}, {"authority", "<｜authority｜>"},
        {"domain", "<｜domain｜>"}, {"title", "<｜title｜>"}, {"read_url", "<｜read_url｜>"}};
    const struct text_view v = text_get_string(w, message, "task");
    if (!v.at)
        return NULL;
    for (size_t i = 0; i < sizeof task / sizeof *task; i++)
        if (text_is(v, task[i][0]))
            return task[i][1];
    text_fail(w, "'task' is '%.40s', not action, query, authority, domain, title or read_url",
              v.at);
    return NULL;
}

/* Messages to turns. */

static bool add_turn(struct deepseek *d, enum role role, struct json_object *message, size_t i)
{
    if (!mem_grow(&d->turn, &d->cap_turns, d->n_turns + 1, sizeof *d->turn))
        return text_fail_nomem(d->w);
    d->turn[d->n_turns++] = (struct turn){
        .role = role,
        .message = message,
        .i = i,
        .task = message ? read_task(d->w, message) : NULL,
        .first_block = d->n_blocks,
    };
    return true;
}

/* A tool result joins any user turn before it, a user's text only one without a task. */
static bool add_block(struct deepseek *d, enum role role, struct json_object *message, size_t i)
{
    const struct turn *last = d->n_turns ? &d->turn[d->n_turns - 1] : NULL;
    if (!last || last->role != USER || (role == USER && last->task)) {
        if (!add_turn(d, USER, message, i))
            return false;
        if (role == TOOL)
            d->turn[d->n_turns - 1].task = NULL;
    }
    if (!mem_grow(&d->block, &d->cap_blocks, d->n_blocks + 1, sizeof *d->block))
        return text_fail_nomem(d->w);
    d->block[d->n_blocks++] = (struct block){message, i};
    d->turn[d->n_turns - 1].n_blocks++;
    return true;
}

static bool is_result(const struct block *b)
{
    return text_is(text_string(text_get(b->message, "role")), "tool");
}

/* The tools of a list that are functions: others are skipped. */
static size_t count_functions(struct json_object *tools)
{
    size_t n = 0;
    for (size_t i = 0; tools && i < json_object_array_length(tools); i++) {
        struct json_object *type = text_get(json_object_array_get_idx(tools, i), "type");
        n += !type || text_is(text_string(type), "function");
    }
    return n;
}

static bool read_turns(struct deepseek *d, struct json_object *messages)
{
    const size_t n = json_object_array_length(messages);
    bool any_system = false, any_tools = count_functions(d->tools) > 0;
    enum role role;
    for (size_t i = 0; i < n; i++) {
        text_at(d->w, "message %zu", i);
        if (!read_role(d->w, json_object_array_get_idx(messages, i), &role))
            return false;
        any_system = any_system || role == SYSTEM;
    }
    if (!any_system && (any_tools || d->o->response_format) && !add_turn(d, SYSTEM, NULL, 0))
        return false;
    for (size_t i = 0; i < n; i++) {
        struct json_object *message = json_object_array_get_idx(messages, i);
        text_at(d->w, "message %zu", i);
        if (!read_role(d->w, message, &role))
            return false;
        if (role == USER || role == TOOL ? !add_block(d, role, message, i)
                                         : !add_turn(d, role, message, i))
            return false;
        any_tools = any_tools ||
                    count_functions(text_get_type(d->w, message, "tools", json_type_array)) > 0;
    }
    d->dropping = d->o->thinking && !d->o->keep_thinking && !any_tools;
    return d->w->status == INGLE_OK;
}

/* Marks what is dropped and finds the turns that others depend on. */
static void survey(struct deepseek *d)
{
    d->last_user = d->first_system = d->n_turns;
    for (size_t t = d->n_turns; t-- > 0;) {
        const enum role role = d->turn[t].role;
        if ((role == USER || role == DEVELOPER) && d->last_user == d->n_turns)
            d->last_user = t;
        if (role == SYSTEM)
            d->first_system = t;
        d->turn[t].dropped = d->dropping && role == DEVELOPER && t < d->last_user;
    }
}

/* The results of a user turn in the order of the calls that they answer. */

struct ranked {
    int64_t rank;
    size_t k;
    struct block block;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->k > y->k) - (x->k < y->k);
}

/* {call id: index} */
static struct json_object *ranks_of(struct text_writer *w, struct json_object *calls)
{
    struct json_object *ranks = json_object_new_object();
    for (size_t c = 0; ranks && c < json_object_array_length(calls); c++) {
        const struct text_view id = text_get_string(w, json_object_array_get_idx(calls, c), "id");
        struct json_object *rank = id.at ? json_object_new_int64((int64_t)c) : NULL;
        if (id.at && (!rank || json_object_object_add(ranks, id.at, rank) != 0)) {
            json_object_put(rank);
            json_object_put(ranks);
            ranks = NULL;
        }
    }
    if (!ranks)
        text_fail_nomem(w);
    return ranks;
}

static void order_results(struct deepseek *d, const struct turn *t, struct json_object *calls)
{
    struct block *block = d->block + t->first_block;
    struct json_object *ranks = ranks_of(d->w, calls);
    struct ranked *result = mem_calloc(t->n_blocks, sizeof *result);
    size_t n = 0;
    if (!result)
        text_fail_nomem(d->w);
    for (size_t k = 0; result && ranks && k < t->n_blocks; k++) {
        if (!is_result(&block[k]))
            continue;
        const struct text_view id = text_get_string(d->w, block[k].message, "tool_call_id");
        result[n] = (struct ranked){0, n, block[k]};
        if (id.at)
            result[n].rank = json_object_get_int64(text_get(ranks, id.at));
        n++;
    }
    if (n > 1) {
        qsort(result, n, sizeof *result, by_rank);
        for (size_t k = 0, r = 0; k < t->n_blocks; k++)
            if (is_result(&block[k]))
                block[k] = result[r++].block;
    }
    mem_free(result);
    json_object_put(ranks);
}

static void order_all_results(struct deepseek *d)
{
    struct json_object *calls = NULL; /* of the most recent assistant that made some */
    for (size_t t = 0; t < d->n_turns && d->w->status == INGLE_OK; t++) {
        const struct turn *turn = &d->turn[t];
        text_at(d->w, "message %zu", turn->i);
        if (turn->role == ASSISTANT) {
            struct json_object *own =
                text_get_type(d->w, turn->message, "tool_calls", json_type_array);
            calls = text_truth(own) ? own : calls;
        } else if (turn->role == USER && turn->n_blocks > 1 && calls) {
            order_results(d, turn, calls);
        }
    }
}

/* Writing. */

/* A string, or the texts of parts with an empty line between them. */
static void put_content(struct text_writer *w, struct json_object *content)
{
    if (json_object_is_type(content, json_type_string)) {
        text_put(w, text_string(content));
        return;
    }
    if (content && !json_object_is_type(content, json_type_array)) {
        text_fail(w, "'content' is %s, not a string or an array", text_type_name(content));
        return;
    }
    bool any = false;
    for (size_t i = 0; content && i < json_object_array_length(content); i++) {
        struct json_object *part = json_object_array_get_idx(content, i);
        const struct text_view type = text_get_string(w, part, "type");
        if (text_is_thought(part))
            continue; /* put_assistant() */
        text_puts(w, any ? "\n\n" : "");
        any = true;
        if (text_is(type, "text")) {
            const struct text_view text = text_get_string(w, part, "text");
            if (!text.at && !json_object_object_get_ex(part, "text", NULL))
                text_fail(w, "'content' part %zu has no 'text'", i);
            text_put(w, text);
        } else if (type.at) {
            text_puts(w, "[Unsupported ");
            text_put(w, type);
            text_puts(w, "]");
            w->out->n_media++;
        } else {
            text_fail(w, "'content' part %zu has no 'type'", i);
        }
    }
}

/* The function with the schema of its parameters as it is shown. */
static void put_function(struct text_writer *w, struct json_object *function)
{
    struct json_object *parameters = text_get(function, "parameters");
    struct json_object *shown = text_tool_schema(w, parameters, false);
    struct json_object *copy = shown == parameters ? NULL : json_object_new_object();
    if (copy) {
        json_object_object_foreach(function, key, value)
        {
            struct json_object *v = json_object_get(value == parameters ? shown : value);
            if (json_object_object_add(copy, key, v) != 0) {
                json_object_put(v);
                text_fail_nomem(w);
            }
        }
    }
    text_put_json(w, copy ? copy : function, 0);
    json_object_put(copy);
    json_object_put(shown);
}

static void put_functions(struct text_writer *w, struct json_object *tools)
{
    char where[sizeof w->where];
    memcpy(where, w->where, sizeof where);
    for (size_t i = 0; tools && i < json_object_array_length(tools); i++) {
        struct json_object *tool = json_object_array_get_idx(tools, i);
        text_at(w, "tool %zu", i);
        const struct text_view type = text_get_string(w, tool, "type");
        if (type.at && !text_is(type, "function"))
            continue;
        struct json_object *function = text_get_type(w, tool, "function", json_type_object);
        if (!text_get_string(w, function, "name").n)
            text_fail(w, "'function.name' is missing or empty");
        put_function(w, function);
        text_puts(w, "\n");
    }
    memcpy(w->where, where, sizeof where);
}

static void put_response_format(struct text_writer *w, struct json_object *format)
{
    if (!text_truth(format))
        return;
    text_puts(w, "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to "
                 "reply:\n");
    text_put_json(w, format, 0);
}

static bool follows_token(const struct text_prompt *p)
{
    return p->n_special && p->special[p->n_special - 1].end == p->text.n;
}

/* A system text after other text is a paragraph of its own; one among what the user says is
 * marked, as nothing else would distinguish it. */
static void put_system_text(struct deepseek *d, size_t t, bool first)
{
    struct text_writer *w = d->w;
    const bool after_text = !first && !follows_token(w->out);
    const size_t begin = w->out->text.n;
    size_t other = t;
    while (other && d->turn[other].role == SYSTEM)
        other--;
    const bool marked = after_text && d->turn[other].role != SYSTEM;
    if (after_text)
        text_puts(w, marked ? "\n\n<system>\n" : "\n\n");
    const size_t content_at = w->out->text.n;
    put_content(w, text_get(d->turn[t].message, "content"));
    if (w->out->text.n > content_at) {
        text_puts(w, marked ? "\n</system>" : "");
    } else if (after_text && str_ok(&w->out->text)) {
        w->out->text.n = begin;
        w->out->text.at[begin] = 0;
    }
}

/* Content, tools and response format of a system or developer turn.  start: there is none in
 * front. */
static void put_instructions(struct deepseek *d, size_t t, bool start)
{
    struct text_writer *w = d->w;
    const struct turn *turn = &d->turn[t];
    const bool first = t == d->first_system;
    struct json_object *own = text_get_type(w, turn->message, "tools", json_type_array);
    struct json_object *format = text_get(turn->message, "response_format");
    if (turn->role == DEVELOPER)
        text_mark(w, USER_HEAD);
    const size_t content_at = w->out->text.n;
    if (turn->role == SYSTEM)
        put_system_text(d, t, start);
    else
        put_content(w, text_get(turn->message, "content"));
    if (turn->role == DEVELOPER && w->out->text.n == content_at)
        text_fail(w, "'content' of a developer message is empty");
    if (count_functions(own) || (first && count_functions(d->tools))) {
        put_own(w, tools_head);
        put_functions(w, own);
        if (first)
            put_functions(w, d->tools);
        put_own(w, tools_tail);
    }
    put_response_format(w, format || !first ? format : d->o->response_format);
}

static void put_user(struct deepseek *d, const struct turn *turn)
{
    struct text_writer *w = d->w;
    text_mark(w, USER_HEAD);
    for (size_t k = 0; k < turn->n_blocks; k++) {
        const struct block *b = &d->block[turn->first_block + k];
        text_at(w, "message %zu", b->i);
        text_puts(w, k ? "\n\n" : "");
        const bool result = is_result(b);
        text_puts(w, result ? "<tool_result>" : "");
        put_content(w, text_get(b->message, "content"));
        text_puts(w, result ? "</tool_result>" : "");
    }
}

static void put_parameter(struct text_writer *w, struct text_view key, struct json_object *value,
                          int depth)
{
    const bool string = json_object_is_type(value, json_type_string);
    put_own(w, "<" DSML "parameter name=\"");
    text_put(w, key);
    text_puts(w, string ? "\" string=\"true\">" : "\" string=\"false\">");
    if (string)
        text_put(w, text_string(value));
    else
        text_put_json(w, value, depth);
    put_own(w, "</" DSML "parameter>");
}

/* One parameter a line.  Text that is not a JSON object becomes a parameter "arguments". */
static void put_parameters(struct text_writer *w, struct json_object *arguments)
{
    struct json_object *parsed = NULL, *map = arguments;
    if (json_object_is_type(arguments, json_type_string)) {
        const struct text_view text = text_string(arguments);
        const ingle_status read = json_parse(text.at, text.n, NULL, &parsed, NULL);
        if (read == INGLE_NOMEM)
            text_fail_nomem(w);
        if (read != INGLE_OK || !json_object_is_type(parsed, json_type_object)) {
            put_parameter(w, TEXT_LITERAL("arguments"), arguments, 0);
            json_object_put(parsed);
            return;
        }
        map = parsed;
    }
    if (json_object_is_type(map, json_type_object)) {
        const char *line = "";
        json_object_object_foreach(map, key, value)
        {
            text_puts(w, line);
            put_parameter(w, (struct text_view){key, strlen(key)}, value, 0);
            line = "\n";
        }
    } else if (map) {
        text_fail(w, "'arguments' is %s, not an object or its JSON text", text_type_name(map));
    }
    json_object_put(parsed);
}

static void put_calls(struct text_writer *w, size_t i, struct json_object *calls)
{
    put_own(w, "\n\n<" DSML "tool_calls>");
    for (size_t c = 0; c < json_object_array_length(calls); c++) {
        text_at(w, "message %zu: tool call %zu", i, c);
        struct json_object *call = json_object_array_get_idx(calls, c);
        struct json_object *function = text_get_type(w, call, "function", json_type_object);
        const struct text_view name = text_get_string(w, function, "name");
        if (!name.n) {
            text_fail(w, "'function.name' is missing or empty");
            return;
        }
        put_own(w, "\n<" DSML "invoke name=\"");
        text_put(w, name);
        text_puts(w, "\">\n");
        put_parameters(w, text_get(function, "arguments"));
        put_own(w, "\n</" DSML "invoke>");
    }
    put_own(w, "\n</" DSML "tool_calls>");
    text_at(w, "message %zu", i);
}

/* before: the turn in front, or NULL. */
static void put_assistant(struct deepseek *d, size_t t, const struct turn *before)
{
    struct text_writer *w = d->w;
    const struct turn *turn = &d->turn[t];
    struct json_object *calls = text_get_type(w, turn->message, "tool_calls", json_type_array);
    if (d->o->thinking && !(before && before->task) &&
        (!d->dropping || d->last_user == d->n_turns || t > d->last_user)) {
        struct str thought;
        str_init(&thought);
        text_add_thought(w, turn->message, "reasoning_content", "reasoning", &thought);
        if (!str_ok(&thought))
            text_fail_nomem(w);
        text_put(w, (struct text_view){thought.at, thought.n});
        str_release(&thought);
        text_mark(w, "</think>");
    }
    put_content(w, text_get(turn->message, "content"));
    if (text_truth(calls))
        put_calls(w, turn->i, calls);
    if (!text_truth(text_get(turn->message, "wo_eos")))
        text_mark(w, EOS);
}

/* System turns stand between what the user said and the assistant's answer: they do not lead to
 * it. */
static bool is_interjection(const struct deepseek *d, size_t t, const struct turn *next)
{
    if (!next || next->role != ASSISTANT)
        return false;
    while (t && d->turn[t].role == SYSTEM)
        t--;
    return d->turn[t].role == USER || d->turn[t].role == DEVELOPER || d->turn[t].role == TOOL;
}

/* What stands between turn t and the assistant's text; next: the turn after it, or NULL.
 * True: something was written. */
static bool put_transition(struct deepseek *d, size_t t, const struct turn *next)
{
    struct text_writer *w = d->w;
    const struct turn *turn = &d->turn[t];
    const bool action = turn->task && strcmp(turn->task, ACTION) == 0;
    if (next && next->role != ASSISTANT && next->role != REMINDER)
        return false;
    if (turn->task && !action) {
        text_mark(w, turn->task);
        return true;
    }
    if (!action && turn->role != USER && turn->role != DEVELOPER &&
        !(turn->role == SYSTEM && is_interjection(d, t, next)))
        return false;
    const bool open = d->o->thinking && (action || !d->dropping || t >= d->last_user);
    text_mark(w, ASSISTANT_HEAD);
    text_mark(w, open ? "<think>" : "</think>");
    if (action)
        text_mark(w, ACTION);
    return true;
}

static void put_turn(struct deepseek *d, size_t t, const struct turn *before)
{
    const struct turn *turn = &d->turn[t];
    text_at(d->w, "message %zu", turn->i);
    switch (turn->role) {
    case SYSTEM:
    case DEVELOPER:
        put_instructions(d, t, !before);
        break;
    case USER:
    case TOOL:
        put_user(d, turn);
        break;
    case ASSISTANT:
        put_assistant(d, t, before);
        break;
    case REMINDER:
        text_mark(d->w, REMINDER_HEAD);
        put_content(d->w, text_get(turn->message, "content"));
        break;
    }
}

/* The paragraph of an effort, "" for one without; NULL: there is no such effort. */
static const char *effort_text(const struct text_chat_options *o)
{
    if (!o->effort || strcmp(o->effort, "low") == 0)
        return "";
    if (strcmp(o->effort, "high") == 0)
        return o->revision_0731 ? effort_maximum : "";
    if (strcmp(o->effort, "max") == 0)
        return o->revision_0731 ? effort_beyond : effort_maximum;
    return NULL;
}

static void put_turns(struct deepseek *d, const char *effort)
{
    struct text_writer *w = d->w;
    const struct turn *before = NULL;
    bool led = false; /* the text ends with what leads to the assistant */
    text_mark(w, BOS);
    for (size_t t = 0; t < d->n_turns && w->status == INGLE_OK;) {
        size_t next = t + 1;
        while (next < d->n_turns && d->turn[next].dropped)
            next++;
        if (!d->turn[t].dropped) {
            if (!before && d->o->thinking)
                text_puts(w, effort);
            put_turn(d, t, before);
            led = put_transition(d, t, next < d->n_turns ? &d->turn[next] : NULL);
            before = &d->turn[t];
        }
        t = next;
    }
    if (led || !d->o->add_generation_prompt)
        return;
    text_mark(w, ASSISTANT_HEAD);
    text_mark(w, d->o->thinking ? "<think>" : "</think>");
}

void text_render_deepseek4(struct text_writer *w, struct json_object *messages,
                           struct json_object *tools, const struct text_chat_options *o)
{
    struct deepseek d = {.w = w, .o = o, .tools = tools};
    const char *effort = effort_text(o);
    text_at(w, "options");
    if (!effort)
        text_fail(w, "reasoning effort is '%.40s', not low, high or max", o->effort);
    else if (read_turns(&d, messages)) {
        survey(&d);
        order_all_results(&d);
        put_turns(&d, effort);
    }
    mem_free(d.turn);
    mem_free(d.block);
}
