/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /api/chat and /api/generate: the first byte picks. */
#include "fuzz/dialect.h"

#include "server/ollama/ollama.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct ingle_model *model;

/* Every line of a stream is JSON. */
static void check_lines(const struct str *out)
{
    const struct json_limits limits = {.depth = 100};
    BUG_IF(!str_ok(out));
    for (const char *at = out->at; *at;) {
        const size_t len = strcspn(at, "\n");
        BUG_IF(json_gate(at, len, &limits, NULL) != INGLE_OK);
        at += len + (at[len] == '\n');
    }
}

static void play(const struct dialect *d, struct ollama *s, const struct chat_request *q,
                 const char *text, size_t n)
{
    const struct answer_info info = {.model = "m", .fingerprint = "f", .id = "0123", .request = q};
    struct answer_choice c = {.finish = ANSWER_CALLS, .n_calls = 1};
    struct answer_call call = {.id = "call_0123", .cut = true};
    const struct answer_result r = {.info = &info, .choice = &c, .n_choices = 1};
    struct str out;
    str_init(&out);
    str_init(&c.content);
    str_init(&c.reasoning);
    str_init(&call.name);
    str_init(&call.arguments);
    str_add(&call.name, text, n);
    str_add(&call.arguments, text, n);
    str_add(&c.content, text, n);
    str_add(&c.reasoning, text, n);
    c.call = &call;
    d->keepalive(s, &info, &out);
    d->begin(s, &info, &out);
    d->text(s, &c, ANSWER_REASONING, text, n, 0, &out);
    d->text(s, &c, ANSWER_CONTENT, text, n, 0, &out);
    d->call_end(s, &c, 0, &out);
    d->done(s, &r, &out);
    d->whole(s, &r, &out);
    check_lines(&out);
    str_release(&out);
    str_release(&c.content);
    str_release(&c.reasoning);
    str_release(&call.name);
    str_release(&call.arguments);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!n)
        return 0;
    if (!model)
        BUG_IF(ingle_model_open(&model, NULL, NULL, NULL) != INGLE_OK);
    const struct answer_options o = {.model = model, .n_vocab = 2048, .max_tokens = -1};
    const char *text = (const char *)data + 1;
    struct chat_request r;
    struct fault f = {0};
    struct ollama *s = ollama_create();
    BUG_IF(!s);
    s->generate = data[0] & 1;
    const struct dialect *d = s->generate ? &ollama_generate_dialect : &ollama_chat_dialect;
    struct json_object *body = request_body(text, n - 1, &f);
    request_init(&r, &(struct ingle_sampling){.temperature = 1, .top_p = 1});
    if (body)
        ollama_read(&r, body, &o, s, &f);
    if (f.kind) {
        dialect_fault(d, s, &f);
    } else {
        BUG_IF(r.o.max_tokens < -1 || r.o.n != 1 || r.o.n_top > REQUEST_MAX_TOP);
        if (r.chat)
            dialect_render(&r);
        play(d, s, &r, text, n - 1);
    }
    d->free(s);
    request_release(&r);
    json_object_put(body);
    return 0;
}
