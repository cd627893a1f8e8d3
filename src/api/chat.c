/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"

#include "base/json.h"
#include "base/mem.h"

#include <string.h>

void ingle_prompt_release(struct ingle_prompt *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_spans; i++)
        ingle_medium_close(p->span[i].medium);
    mem_free(p->span);
    mem_free(p->text);
    mem_free(p->ids);
    *p = (struct ingle_prompt){0};
}

static bool ends_with(const struct str *s, const char *end)
{
    const size_t k = strlen(end);
    return s->n >= k && memcmp(s->at + (s->n - k), end, k) == 0;
}

static bool is_open_thought(enum text_chat_family family, const struct str *s)
{
    return ends_with(s, family == TEXT_CHAT_GEMMA4 ? "<|channel>thought\n" : "<think>");
}

void engine_borders(const struct ingle_model *m, const int32_t *ids, int64_t n,
                    struct session_borders *out)
{
    struct text_borders b;
    text_borders_find(&m->turns, ids, n, &b);
    *out = (struct session_borders){.n = b.n, .shared = b.system};
    memcpy(out->at, b.at, (size_t)b.n * sizeof *b.at);
}

size_t ingle_prompt_stable(const struct ingle_model *m, const int32_t *ids, size_t n)
{
    struct text_borders b;
    text_borders_find(&m->turns, ids, (int64_t)n, &b);
    return b.n ? (size_t)b.at[b.n - 1] : 0;
}

/* Media that the prompt of a conversation has, as its markers have them. */
struct media {
    struct ingle_medium **at;
    size_t n;
};

/* Takes the text of p; ids only when there is a tokenizer. */
static ingle_status give_prompt(enum text_chat_family family, const struct ingle_model *m,
                                struct text_prompt *p, const struct media *media,
                                struct ingle_bounds *bounds, struct ingle_prompt *out,
                                struct err *err)
{
    struct ingle_prompt r = {.open_thought = is_open_thought(family, &p->text)};
    struct text_ids ids = {0};
    if (m && m->tokenizer) {
        ingle_status st = engine_encode(m->tokenizer, p->text.at, p->text.n, false, p->special,
                                        p->n_special, bounds, &ids, err);
        if (!st && media && media->n)
            st = engine_media_expand(m, &ids, media->at, media->n, &r, err);
        if (st) {
            text_ids_release(&ids);
            return st;
        }
    }
    if (!r.ids) {
        r.ids = ids.id;
        r.n_ids = ids.n;
    }
    r.n_text = p->text.n;
    r.text = str_detach(&p->text);
    if (!r.text) {
        ingle_prompt_release(&r);
        return err_set(err, INGLE_NOMEM, "no memory for a prompt");
    }
    *out = r;
    return INGLE_OK;
}

static ingle_status parse_member(const char *what, const char *text, size_t n,
                                 const struct ingle_bounds *b, struct json_object **out,
                                 struct err *err)
{
    const struct json_limits limits = {.stop = b ? b->stop : NULL, .arg = b ? b->arg : NULL};
    const ingle_status st = json_parse(text, n, &limits, out, err);
    if (st)
        err_prefix(err, "%s", what);
    return st;
}

/* Every message of a developer becomes one of the system.  What is no conversation is the
 * template's to refuse. */
static void rename_developers(struct json_object *messages)
{
    const size_t n =
        json_object_is_type(messages, json_type_array) ? json_object_array_length(messages) : 0;
    for (size_t i = 0; i < n; i++) {
        struct json_object *m = json_object_array_get_idx(messages, i), *role;
        if (json_object_is_type(m, json_type_object) &&
            json_object_object_get_ex(m, "role", &role) &&
            json_object_is_type(role, json_type_string) &&
            strcmp(json_object_get_string(role), "developer") == 0)
            json_object_set_string(role, "system");
    }
}

/* Each part of the messages that is no text has one, and a place in the prompt. */
static ingle_status check_media(const struct ingle_chat *c, const struct text_prompt *p,
                                struct err *err)
{
    if (p->n_media && !c->n_media)
        return err_set(err, INGLE_UNSUP, "the messages hold %zu images, sounds or videos: this "
                       "version reads only text", p->n_media);
    if (p->n_media != c->n_media)
        return err_set(err, INGLE_ARG,
                       "the messages hold %zu images, sounds or videos, %zu are given", p->n_media,
                       c->n_media);
    if (p->n_media != p->n_media_marks)
        return err_set(err, INGLE_UNSUP,
                       "%zu of %zu images and sounds have no place in the prompt: the chat format "
                       "has none for them",
                       p->n_media - p->n_media_marks, p->n_media);
    return INGLE_OK;
}

static ingle_status order_media(const struct ingle_chat *c, const struct text_prompt *p,
                                struct media *out, struct err *err)
{
    if (!c->n_media)
        return INGLE_OK;
    out->at = mem_calloc(c->n_media, sizeof *out->at);
    if (!out->at)
        return err_set(err, INGLE_NOMEM, "no memory for %zu media", c->n_media);
    out->n = c->n_media;
    for (size_t i = 0; i < c->n_media; i++) {
        const size_t from = p->medium[i] < 0 ? i : (size_t)p->medium[i];
        if (from >= c->n_media)
            return err_set(err, INGLE_ARG, "'medium' of part %zu is %zu, %zu media are given", i,
                           from, c->n_media);
        out->at[i] = c->media[from];
    }
    return INGLE_OK;
}

static ingle_status render(const struct ingle_model *m, const struct ingle_chat *c,
                           struct ingle_prompt *out, struct err *err)
{
    struct json_object *messages = NULL, *tools = NULL;
    struct text_prompt p;
    const struct text_chat_options o = {
        .stop = c->bounds ? c->bounds->stop : NULL,
        .arg = c->bounds ? c->bounds->arg : NULL,
        .thinking = c->thinking,
        .add_generation_prompt = !c->no_generation_prompt,
        .preserve_thinking = c->preserve_thinking,
        .keep_thinking = c->preserve_thinking,
        .system_media = c->n_media > 0,
        .large = m->large,
        .revision_0731 = m->revision_0731,
        .effort = c->effort,
    };
    text_prompt_init(&p);
    ingle_status st = engine_need_words(m, err);
    if (!st)
        st = parse_member("messages", c->messages, c->n_messages, c->bounds, &messages, err);
    if (!st && c->tools)
        st = parse_member("tools", c->tools, c->n_tools, c->bounds, &tools, err);
    if (!st && !c->developer_own)
        rename_developers(messages);
    if (!st)
        st = text_chat_render(m->chat, messages, tools, &o, &p, err);
    if (!st)
        st = check_media(c, &p, err);
    struct media media = {NULL, 0};
    if (!st)
        st = order_media(c, &p, &media, err);
    if (!st)
        st = give_prompt(m->chat, m, &p, &media, c->bounds, out, err);
    mem_free(media.at);
    text_prompt_release(&p);
    json_object_put(messages);
    json_object_put(tools);
    return st;
}

ingle_status ingle_chat_render(const struct ingle_model *m, const struct ingle_chat *c,
                               struct ingle_prompt *out, struct ingle_error *error)
{
    struct err err;
    return engine_say(error, render(m, c, out, &err), &err);
}

static ingle_status read_case(const char *family, const char *json, size_t n,
                              enum text_chat_family *f, struct json_object **out, struct err *err)
{
    if (!engine_chat_by_name(family, f))
        return err_set(err, INGLE_ARG,
                       "there is no chat format '%s'; there are gemma4 and deepseek4", family);
    return json_parse(json, n, NULL, out, err);
}

static ingle_status render_case(const char *family, const struct ingle_model *m, const char *json,
                                size_t n, struct ingle_prompt *out, struct err *err)
{
    enum text_chat_family f;
    struct json_object *c = NULL;
    struct text_prompt p;
    text_prompt_init(&p);
    ingle_status st = read_case(family, json, n, &f, &c, err);
    if (!st)
        st = text_chat_render_case(f, c, &p, err);
    if (!st)
        st = give_prompt(f, m, &p, NULL, NULL, out, err);
    text_prompt_release(&p);
    json_object_put(c);
    return st;
}

ingle_status ingle_render_case(const char *family, const struct ingle_model *m, const char *json,
                               size_t n, struct ingle_prompt *out, struct ingle_error *error)
{
    struct err err;
    return engine_say(error, render_case(family, m, json, n, out, &err), &err);
}

ingle_status engine_json_text(struct json_object *o, char **out, size_t *n, struct err *err)
{
    const int flags = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
    size_t length;
    const char *text = json_object_to_json_string_length(o, flags, &length);
    *out = text ? mem_strndup(text, length) : NULL;
    if (!*out)
        return err_set(err, INGLE_NOMEM, "no memory for a message");
    *n = length;
    return INGLE_OK;
}

static ingle_status parse_case(const char *family, const char *json, size_t n, char **message,
                               struct err *err)
{
    enum text_chat_family f;
    struct json_object *c = NULL, *o = NULL;
    size_t length;
    ingle_status st = read_case(family, json, n, &f, &c, err);
    if (!st)
        st = text_chat_parse_case(f, c, &o, err);
    if (!st)
        st = engine_json_text(o, message, &length, err);
    json_object_put(o);
    json_object_put(c);
    return st;
}

ingle_status ingle_parse_case(const char *family, const char *json, size_t n, char **message,
                              struct ingle_error *error)
{
    struct err err;
    return engine_say(error, parse_case(family, json, n, message, &err), &err);
}
