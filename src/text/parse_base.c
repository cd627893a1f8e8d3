/* SPDX-License-Identifier: Apache-2.0 */
#include "text/parse.h"

#include "text/template.h"
#include <string.h>

enum { LIMIT_BYTES = 64 << 20, MOST_BYTES = 256 << 20, LIMIT_CALLS = 4096 };

ingle_status text_parser_create(struct text_parser **out, enum text_chat_family family,
                                const struct text_parser_options *o, text_event_fn *fn, void *arg,
                                struct err *err)
{
    struct text_parser *p = NULL;
    switch (family) {
    case TEXT_CHAT_GEMMA4:
        p = text_parser_gemma4();
        break;
    case TEXT_CHAT_DEEPSEEK_V4:
        p = text_parser_deepseek4();
        break;
    }
    if (!p)
        return err_set(err, INGLE_NOMEM, "no memory for an output parser");
    p->o = *o;
    if (!p->o.limit_bytes)
        p->o.limit_bytes = LIMIT_BYTES;
    p->o.limit_bytes = p->o.limit_bytes < MOST_BYTES ? p->o.limit_bytes : MOST_BYTES;
    if (!p->o.limit_calls)
        p->o.limit_calls = LIMIT_CALLS;
    p->fn = fn;
    p->arg = arg;
    str_init(&p->content);
    str_init(&p->reasoning);
    str_init(&p->held);
    *out = p;
    return INGLE_OK;
}

void text_parser_free(struct text_parser *p)
{
    if (!p)
        return;
    p->release(p);
    for (size_t i = 0; i < p->n_calls; i++) {
        mem_free(p->call[i].name);
        str_release(&p->call[i].json);
    }
    mem_free(p->call);
    str_release(&p->content);
    str_release(&p->reasoning);
    str_release(&p->held);
    mem_free(p);
}

bool text_parser_in_thought(const struct text_parser *p)
{
    return p->in_thought(p);
}

bool text_parser_in_call(const struct text_parser *p, const char **rest, size_t *n)
{
    const char *at = NULL;
    size_t len = 0;
    const bool in = p->in_call(p, &at, &len);
    if (rest) {
        *rest = at;
        *n = len;
    }
    return in;
}

void text_parser_trust_call(struct text_parser *p)
{
    if (p->in_call(p, &(const char *){NULL}, &(size_t){0}))
        p->trust_call(p);
}

/* The first failure stays: what follows a gap would be read wrongly. */
static ingle_status outcome(struct text_parser *p, struct err *err)
{
    if (text_parser_ok(p) && !(str_ok(&p->content) && str_ok(&p->reasoning) && str_ok(&p->held)))
        text_parser_nomem(p);
    if (!text_parser_ok(p) && err)
        *err = p->failed;
    return p->failed.status;
}

/* Moves what is undecided to the front when it is the smaller part. */
static void compact(struct text_parser *p)
{
    const size_t n = p->held.n - p->from;
    if (p->from < n)
        return;
    memmove(p->held.at, p->held.at + p->from, n);
    p->held.n = n;
    p->from = 0;
}

ingle_status text_parser_add(struct text_parser *p, const char *bytes, size_t n, struct err *err)
{
    if (!text_parser_ok(p))
        return outcome(p, err);
    if (p->ended)
        return err_set(err, INGLE_ARG, "output after the end of a message");
    if (n > p->o.limit_bytes - p->n_bytes)
        err_set(&p->failed, INGLE_LIMIT, "model output exceeds the limit of %zu bytes",
                p->o.limit_bytes);
    else {
        compact(p);
        p->n_bytes += n;
        str_add(&p->held, bytes, n);
        p->read(p, false);
    }
    return outcome(p, err);
}

ingle_status text_parser_end(struct text_parser *p, const char *end, struct err *err)
{
    if (text_parser_ok(p) && !p->ended) {
        p->ended = true;
        p->whole = !end || strcmp(end, "length") != 0;
        p->cut = p->o.partial_calls && !p->whole;
        p->read(p, true);
    }
    return outcome(p, err);
}

void text_parser_nomem(struct text_parser *p)
{
    if (text_parser_ok(p))
        err_set(&p->failed, INGLE_NOMEM, "no memory for a message of %zu bytes", p->n_bytes);
}

static void emit(struct text_parser *p, enum text_event_kind kind, int call, const char *bytes,
                 size_t n)
{
    if (p->fn)
        p->fn(p->arg, kind, call, bytes, n);
}

void text_parser_content(struct text_parser *p, const char *bytes, size_t n)
{
    if (!n)
        return;
    str_add(&p->content, bytes, n);
    emit(p, TEXT_EVENT_CONTENT, -1, bytes, n);
}

void text_parser_reasoning(struct text_parser *p, const char *bytes, size_t n)
{
    if (!n)
        return;
    str_add(&p->reasoning, bytes, n);
    emit(p, TEXT_EVENT_REASONING, -1, bytes, n);
}

void text_parser_call_begin(struct text_parser *p, const char *name, size_t n)
{
    if (!text_parser_ok(p))
        return;
    if (p->n_calls >= p->o.limit_calls) {
        err_set(&p->failed, INGLE_LIMIT, "model output exceeds the limit of %zu tool calls",
                p->o.limit_calls);
        return;
    }
    struct text_call c = {.name = mem_strndup(name, n)};
    if (!c.name || !mem_grow(&p->call, &p->cap_calls, p->n_calls + 1, sizeof *p->call)) {
        mem_free(c.name);
        text_parser_nomem(p);
        return;
    }
    str_init(&c.json);
    p->call[p->n_calls++] = c;
    emit(p, TEXT_EVENT_CALL_BEGIN, (int)p->n_calls - 1, c.name, n);
}

void text_parser_call_more(struct text_parser *p, const char *json, size_t n)
{
    if (!n || !text_parser_ok(p))
        return;
    struct str *to = &p->call[p->n_calls - 1].json;
    str_add(to, json, n);
    if (!str_ok(to))
        text_parser_nomem(p);
    else
        emit(p, TEXT_EVENT_CALL_ARGUMENTS, (int)p->n_calls - 1, json, n);
}

void text_parser_call_end(struct text_parser *p, bool cut)
{
    if (text_parser_ok(p))
        emit(p, cut ? TEXT_EVENT_CALL_CUT : TEXT_EVENT_CALL_END, (int)p->n_calls - 1, "", 0);
}

void text_parser_call(struct text_parser *p, const char *name, size_t n, const struct str *json)
{
    if (!str_ok(json)) {
        text_parser_nomem(p);
        return;
    }
    text_parser_call_begin(p, name, n);
    text_parser_call_more(p, json->at, json->n);
    text_parser_call_end(p, false);
}

void text_names_open(struct text_names *t)
{
    t->from[t->depth++] = t->list.n;
}

void text_names_close(struct text_names *t)
{
    t->list.n = t->from[--t->depth];
}

bool text_names_add(struct text_names *t, const char *name, size_t n)
{
    struct str *s = &t->list;
    if (!str_ok(s))
        return true;
    for (size_t i = t->from[t->depth - 1], len; i < s->n; i += sizeof len + len) {
        memcpy(&len, s->at + i, sizeof len);
        if (len == n && memcmp(s->at + i + sizeof len, name, n) == 0)
            return false;
    }
    str_add(s, (const char *)&n, sizeof n);
    str_add(s, name, n);
    return true;
}

enum text_match text_match(const char *s, size_t n, const char *word)
{
    const size_t len = strlen(word), part = n < len ? n : len;
    if (memcmp(s, word, part) != 0)
        return TEXT_MATCH_NONE;
    return part == len ? TEXT_MATCH_ALL : TEXT_MATCH_PART;
}

/* Puts a new string into o.  False: out of memory. */
static bool put_string(struct json_object *o, const char *key, const char *bytes, size_t n)
{
    struct json_object *v = json_object_new_string_len(bytes, (int)n);
    if (v && json_object_object_add(o, key, v) == 0)
        return true;
    json_object_put(v);
    return false;
}

/* A list of {"name", "arguments"}, or NULL. */
static struct json_object *calls_to_json(const struct text_parser *p)
{
    struct json_object *list = json_object_new_array();
    for (size_t i = 0; list && i < p->n_calls; i++) {
        const struct text_call *c = &p->call[i];
        struct json_object *o = json_object_new_object();
        if (!o || !put_string(o, "name", c->name, strlen(c->name)) ||
            !put_string(o, "arguments", c->json.at, c->json.n) ||
            json_object_array_add(list, o) != 0) {
            json_object_put(o);
            json_object_put(list);
            return NULL;
        }
    }
    return list;
}

ingle_status text_parser_message(const struct text_parser *p, struct json_object **out,
                                 struct err *err)
{
    struct json_object *o = json_object_new_object();
    struct json_object *calls = calls_to_json(p);
    if (o && calls && put_string(o, "reasoning_content", p->reasoning.at, p->reasoning.n) &&
        put_string(o, "content", p->content.at, p->content.n) &&
        json_object_object_add(o, "tool_calls", calls) == 0) {
        *out = o;
        return INGLE_OK;
    }
    json_object_put(calls);
    json_object_put(o);
    return err_set(err, INGLE_NOMEM, "no memory for a message of %zu bytes", p->n_bytes);
}
