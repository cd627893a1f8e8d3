/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations and model output.  The first byte picks: bit 0 the family, bit 1 rendering
 * (the rest is a case as JSON text) or parsing (the rest is output), bit 2 tools, bit 3 an
 * open thought, the other bits how output is cut.  What holds for every input: special
 * ranges are in order and inside the prompt, a failed prompt is empty and says why, and cuts
 * change neither the message nor what a listener hears.  Output is read a third time with calls
 * that are trusted and may be cut: complete ones have arguments that are JSON. */
#include "base/bug.h"
#include "text/text.h"
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void render(enum text_chat_family family, const char *text, size_t n)
{
    struct json_object *c;
    struct text_prompt p;
    struct err err = {0};
    if (json_parse(text, n, NULL, &c, NULL) != INGLE_OK)
        return;
    text_prompt_init(&p);
    const ingle_status s = text_chat_render_case(family, c, &p, &err);
    BUG_IF(s != INGLE_OK && (!err.msg[0] || err.status != s || p.text.n || p.n_special));
    size_t at = 0;
    for (size_t i = 0; i < p.n_special; i++) {
        BUG_IF(p.special[i].begin < at || p.special[i].end <= p.special[i].begin);
        at = p.special[i].end;
    }
    BUG_IF(at > p.text.n);
    text_prompt_release(&p);
    json_object_put(c);
}

struct heard {
    struct str content, reasoning;
    int n_calls;
};

struct trusted {
    struct str json;
    int n_calls;
    bool open;
};

static void hear_trusted(void *arg, enum text_event_kind kind, int call, const char *bytes,
                         size_t n)
{
    struct trusted *t = arg;
    BUG_IF(t->open != (kind == TEXT_EVENT_CALL_ARGUMENTS || kind == TEXT_EVENT_CALL_END ||
                       kind == TEXT_EVENT_CALL_CUT));
    if (kind == TEXT_EVENT_CALL_BEGIN) {
        BUG_IF(call != t->n_calls++);
        str_clear(&t->json);
        t->open = true;
    } else if (kind == TEXT_EVENT_CALL_ARGUMENTS) {
        str_add(&t->json, bytes, n);
    } else if (t->open) {
        t->open = false;
        BUG_IF(kind == TEXT_EVENT_CALL_END &&
               json_gate(t->json.at, t->json.n, &(struct json_limits){.depth = 65}, NULL) !=
                   INGLE_OK);
    }
}

static void parse_trusted(enum text_chat_family family, struct text_parser_options o,
                          const char *text, size_t n, size_t step)
{
    struct text_parser *p;
    struct trusted t = {0};
    str_init(&t.json);
    o.partial_calls = true;
    BUG_IF(text_parser_create(&p, family, &o, hear_trusted, &t, NULL) != INGLE_OK);
    for (size_t at = 0, part; at < n; at += part) {
        part = step < n - at ? step : n - at;
        BUG_IF(text_parser_add(p, text + at, part, NULL) != INGLE_OK);
        text_parser_trust_call(p);
    }
    BUG_IF(text_parser_end(p, n & 1 ? "turn" : "length", NULL) != INGLE_OK);
    BUG_IF(t.open);
    text_parser_free(p);
    str_release(&t.json);
}

static void hear(void *arg, enum text_event_kind kind, int call, const char *bytes, size_t n)
{
    struct heard *h = arg;
    if (kind == TEXT_EVENT_CONTENT)
        str_add(&h->content, bytes, n);
    else if (kind == TEXT_EVENT_REASONING)
        str_add(&h->reasoning, bytes, n);
    else if (kind == TEXT_EVENT_CALL_BEGIN)
        BUG_IF(call != h->n_calls++);
    else if (kind == TEXT_EVENT_CALL_ARGUMENTS)
        BUG_IF(json_gate(bytes, n, &(struct json_limits){.depth = 65}, NULL) != INGLE_OK);
}

/* step: bytes a chunk, 0: all at once. */
static struct json_object *parse(enum text_chat_family family, const struct text_parser_options *o,
                                 const char *text, size_t n, size_t step)
{
    struct text_parser *p;
    struct json_object *message;
    struct heard h = {0};
    str_init(&h.content);
    str_init(&h.reasoning);
    BUG_IF(text_parser_create(&p, family, o, hear, &h, NULL) != INGLE_OK);
    for (size_t at = 0, part; at < n; at += part) {
        part = step && step < n - at ? step : n - at;
        BUG_IF(text_parser_add(p, text + at, part, NULL) != INGLE_OK);
    }
    BUG_IF(text_parser_end(p, "turn", NULL) != INGLE_OK);
    BUG_IF(text_parser_message(p, &message, NULL) != INGLE_OK);
    struct json_object *v;
    BUG_IF(!json_object_object_get_ex(message, "content", &v));
    BUG_IF((size_t)json_object_get_string_len(v) != h.content.n ||
           memcmp(json_object_get_string(v), h.content.at, h.content.n) != 0);
    BUG_IF(!json_object_object_get_ex(message, "reasoning_content", &v));
    BUG_IF((size_t)json_object_get_string_len(v) != h.reasoning.n ||
           memcmp(json_object_get_string(v), h.reasoning.at, h.reasoning.n) != 0);
    BUG_IF(!json_object_object_get_ex(message, "tool_calls", &v));
    BUG_IF(json_object_array_length(v) != (size_t)h.n_calls);
    text_parser_free(p);
    str_release(&h.content);
    str_release(&h.reasoning);
    return message;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const char *text = (const char *)data + 1;
    const size_t n = size - 1;
    const enum text_chat_family family = data[0] & 1 ? TEXT_CHAT_DEEPSEEK_V4 : TEXT_CHAT_GEMMA4;
    if (!(data[0] & 2)) {
        render(family, text, n);
        return 0;
    }
    const struct text_parser_options o = {.tools_enabled = data[0] & 4,
                                          .open_thought = data[0] & 8};
    struct json_object *whole = parse(family, &o, text, n, 0);
    struct json_object *cut = parse(family, &o, text, n, 1 + (data[0] >> 4));
    BUG_IF(!json_object_equal(whole, cut));
    parse_trusted(family, o, text, n, 1 + (data[0] >> 4));
    json_object_put(whole);
    json_object_put(cut);
    return 0;
}
