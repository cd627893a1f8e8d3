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
    switch (family) {
    case TEXT_CHAT_GEMMA4:
        text_render_gemma4(&w, messages, tools, o);
        break;
    case TEXT_CHAT_DEEPSEEK_V4:
        return err_set(err, INGLE_UNSUP, "no chat renderer for deepseek4");
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
    const struct text_chat_options o = {
        .thinking = flag(&w, c, "enable_thinking", false),
        .preserve_thinking = flag(&w, c, "preserve_thinking", false),
        .large = flag(&w, c, "large", true),
        .add_generation_prompt = flag(&w, c, "add_generation_prompt", true),
    };
    if (w.status != INGLE_OK)
        return w.status;
    return text_chat_render(family, text_get(c, "messages"), text_get(c, "tools"), &o, out, err);
}
