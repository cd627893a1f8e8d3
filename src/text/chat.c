/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat.h"

#include "text/template.h"

ingle_status text_chat_render(enum text_chat_family family, struct json_object *messages,
                              struct json_object *tools, const struct text_chat_options *o,
                              struct text_prompt *out, struct err *err)
{
    if (!json_object_is_type(messages, json_type_array))
        return err_set(err, INGLE_ARG, "'messages' is %s, not an array", text_type_name(messages));
    if (tools && !json_object_is_type(tools, json_type_array))
        return err_set(err, INGLE_ARG, "'tools' is %s, not an array", text_type_name(tools));
    struct text_writer w;
    text_writer_init(&w, out, err);
    w.stop = o->stop;
    w.arg = o->arg;
    switch (family) {
    case TEXT_CHAT_GEMMA4:
        text_render_gemma4(&w, messages, tools, o);
        break;
    case TEXT_CHAT_DEEPSEEK_V4:
        text_render_deepseek4(&w, messages, tools, o);
        break;
    }
    return text_writer_end(&w);
}

/* A member that is true, false, or missing. */
static bool flag(struct text_writer *w, struct json_object *c, const char *key, bool otherwise)
{
    struct json_object *v = text_get_type(w, c, key, json_type_boolean);
    return v ? json_object_get_boolean(v) : otherwise;
}

ingle_status text_chat_render_case(enum text_chat_family family, struct json_object *c,
                                   struct text_prompt *out, struct err *err)
{
    struct text_writer w;
    text_writer_init(&w, out, err);
    text_at(&w, "case");
    const bool gemma = family == TEXT_CHAT_GEMMA4;
    const struct text_view template = text_get_string(&w, c, "template");
    const struct text_chat_options o = {
        .thinking = flag(&w, c, gemma ? "enable_thinking" : "thinking", false),
        .add_generation_prompt = flag(&w, c, "add_generation_prompt", true),
        .preserve_thinking = flag(&w, c, "preserve_thinking", false),
        .large = flag(&w, c, "large", true),
        .revision_0731 = text_seek(template, 0, "0731") < template.n,
        .keep_thinking = !flag(&w, c, "drop_thinking", true),
        .effort = text_get_string(&w, c, "reasoning_effort").at,
        .response_format = text_get(c, "response_format"),
    };
    if (w.status != INGLE_OK)
        return w.status;
    return text_chat_render(family, text_get(c, "messages"), text_get(c, "tools"), &o, out, err);
}

/* Cuts text at the ascending byte offsets of split (NULL: none) and parses the pieces. */
static ingle_status parse_split(enum text_chat_family family, const struct text_parser_options *o,
                                struct text_view text, struct json_object *split, const char *end,
                                struct json_object **message, struct err *err)
{
    struct text_parser *p;
    ingle_status s = text_parser_create(&p, family, o, NULL, NULL, err);
    if (s)
        return s;
    size_t at = 0;
    for (size_t i = 0; !s && split && i < json_object_array_length(split); i++) {
        const int64_t cut = json_object_get_int64(json_object_array_get_idx(split, i));
        if (cut < 0 || (uint64_t)cut > text.n || (size_t)cut < at) {
            s = err_set(err, INGLE_ARG, "case: split at %lld of %zu bytes, after byte %zu",
                        (long long)cut, text.n, at);
            break;
        }
        s = text_parser_add(p, text.at + at, (size_t)cut - at, err);
        at = (size_t)cut;
    }
    if (!s)
        s = text_parser_add(p, text.at + at, text.n - at, err);
    if (!s)
        s = text_parser_end(p, end, err);
    if (!s)
        s = text_parser_message(p, message, err);
    text_parser_free(p);
    return s;
}

ingle_status text_chat_parse_case(enum text_chat_family family, struct json_object *c,
                                  struct json_object **message, struct err *err)
{
    struct text_prompt unused;
    struct text_writer w;
    text_prompt_init(&unused);
    text_writer_init(&w, &unused, err);
    text_at(&w, "case");
    const char *thought = family == TEXT_CHAT_GEMMA4 ? "open_thought" : "thinking";
    const struct text_parser_options o = {
        .tools_enabled = flag(&w, c, "tools_enabled", true),
        .open_thought = flag(&w, c, thought, false),
    };
    const struct text_view text = text_get_string(&w, c, "text");
    struct text_view end = text_get_string(&w, c, "end");
    if (!end.at && !flag(&w, c, "eos", true))
        end = TEXT_LITERAL("length");
    struct json_object *splits = text_get_type(&w, c, "splits", json_type_array);
    if (!text.at)
        text_fail(&w, "'text' is missing");
    if (w.status != INGLE_OK)
        return w.status;
    struct json_object *whole, *cut;
    ingle_status s = parse_split(family, &o, text, NULL, end.at, &whole, err);
    if (s)
        return s;
    for (size_t i = 0; !s && splits && i < json_object_array_length(splits); i++) {
        struct json_object *split = json_object_array_get_idx(splits, i);
        if (!json_object_is_type(split, json_type_array)) {
            s = err_set(err, INGLE_ARG, "case: 'splits' holds %s, not only arrays",
                        text_type_name(split));
            break;
        }
        s = parse_split(family, &o, text, split, end.at, &cut, err);
        if (s)
            break;
        if (!json_object_equal(whole, cut))
            s = err_set(err, INGLE_FORMAT, "case: split %zu gives another message", i);
        json_object_put(cut);
    }
    if (s)
        json_object_put(whole);
    else
        *message = whole;
    return s;
}
