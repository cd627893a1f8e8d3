/* dialect - what the fuzz targets of request bodies share: a body that was read is a
 * conversation that can be rendered, and everything that goes out is JSON. */
#ifndef INGLE_TESTS_FUZZ_DIALECT_H
#define INGLE_TESTS_FUZZ_DIALECT_H

#include "base/bug.h"
#include "server/dialect.h"
#include "server/fields.h"
#include "text/text.h"
#include <string.h>

static inline struct json_object *dialect_array(const struct str *text)
{
    struct json_object *o = NULL;
    const struct json_limits limits = {.depth = 100};
    BUG_IF(!str_ok(text));
    BUG_IF(json_parse(text->at, text->n, &limits, &o, NULL) != INGLE_OK);
    BUG_IF(!json_object_is_type(o, json_type_array));
    return o;
}

static inline void dialect_render(const struct chat_request *r)
{
    struct json_object *messages = dialect_array(&r->messages);
    struct json_object *tools = r->tools.n ? dialect_array(&r->tools) : NULL;
    const struct text_chat_options o = {.add_generation_prompt = true, .thinking = true};
    BUG_IF(!json_object_array_length(messages));
    for (int family = 0; family < 2; family++) {
        struct text_prompt p;
        struct err err = {0};
        text_prompt_init(&p);
        const ingle_status st =
            text_chat_render((enum text_chat_family)family, messages, tools, &o, &p, &err);
        BUG_IF(st && !err.msg[0]);
        text_prompt_release(&p);
    }
    json_object_put(messages);
    json_object_put(tools);
}

/* Each "data: " line of a stream but the one that ends it, or the one value of a reply. */
static inline void dialect_check(const struct str *out, bool stream)
{
    const struct json_limits limits = {.depth = 100};
    const char *at = out->at;
    BUG_IF(!str_ok(out));
    if (!stream) {
        BUG_IF(json_gate(out->at, out->n, &limits, NULL) != INGLE_OK);
        return;
    }
    while ((at = strstr(at, "\ndata: "))) {
        at += 7;
        const size_t n = strcspn(at, "\n");
        const bool over = n == 6 && memcmp(at, "[DONE]", 6) == 0;
        BUG_IF(!over && json_gate(at, n, &limits, NULL) != INGLE_OK);
    }
}

/* llm may be NULL for a dialect that spells no tokens.  Plays an answer in which the model says the
 * fuzzer's bytes and calls a tool with them. */
static inline void dialect_play(const struct dialect *d, void *state, const struct ingle_model *llm,
                                const struct chat_request *q,
                                bool stream, const char *name, const char *text, size_t n)
{
    const struct answer_info info = {
        .llm = llm, .model = "m", .fingerprint = "f", .id = "0123", .n_prompt = 9, .request = q};
    struct answer_choice c = {.finish = ANSWER_CALLS, .n_calls = 1};
    struct answer_call call = {.id = "call_0123"};
    const struct answer_result r = {.info = &info, .choice = &c, .n_choices = 1};
    struct str out;
    str_init(&out);
    str_init(&c.content);
    str_init(&c.reasoning);
    str_init(&c.bytes);
    str_init(&call.name);
    str_init(&call.arguments);
    str_adds(&call.name, name);
    str_add(&call.arguments, text, n);
    str_add(&c.content, text, n);
    str_add(&c.reasoning, text, n);
    c.call = &call;
    if (stream) {
        d->keepalive(state, &info, &out);
        d->begin(state, &info, &out);
        d->text(state, &c, ANSWER_REASONING, text, n, 0, &out);
        d->text(state, &c, ANSWER_CONTENT, text, n, 0, &out);
        d->call_begin(state, &c, 0, &out);
        d->call_arguments(state, &c, 0, text, n, &out);
        d->call_end(state, &c, 0, &out);
        d->end(state, &c, &out);
        d->done(state, &r, &out);
    } else {
        d->whole(state, &r, &out);
    }
    dialect_check(&out, stream);
    str_release(&out);
    str_release(&c.content);
    str_release(&c.reasoning);
    str_release(&call.name);
    str_release(&call.arguments);
}

static inline void dialect_fault(const struct dialect *d, void *state, const struct fault *f)
{
    struct str out;
    BUG_IF(!f->message[0] || !f->status);
    str_init(&out);
    d->error(state, f, false, &out);
    dialect_check(&out, false);
    str_clear(&out);
    d->error(state, f, true, &out);
    dialect_check(&out, true);
    str_release(&out);
}

#endif
