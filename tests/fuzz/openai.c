/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /chat/completions, /v1/completions and /completion: the first byte picks. */
#include "fuzz/dialect.h"

#include "server/openai/openai.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct ingle_model *model;

/* What was read keeps its promises, whatever was asked. */
static void check(const struct chat_request *r)
{
    struct fault f = {0};
    request_check(r, &f);
    BUG_IF(f.kind != FAULT_NONE);
    BUG_IF(r->o.n < 1 || r->o.n > REQUEST_MAX_N || r->best_of > REQUEST_MAX_N);
    BUG_IF(r->id_slot < 0 || r->o.max_tokens < -1);
    BUG_IF(r->o.n_top < 0 || r->o.n_top > REQUEST_MOST_TOP);
    BUG_IF(r->n_stop > REQUEST_MAX_STOPS || r->n_bias > REQUEST_MAX_BIAS);
    BUG_IF(!(r->o.sampling.temperature >= 0 && r->o.sampling.temperature <= 2));
    BUG_IF(r->o.sampling.top_k < 0 || r->o.priority < -10 || r->o.priority > 10);
    BUG_IF(r->tool_choice == TOOLS_REQUIRED && !r->tools.n);
    for (size_t i = 0; i < r->n_prompts; i++)
        for (size_t k = 0; k < r->prompt[i].n_ids; k++)
            BUG_IF(r->prompt[i].ids[k] < 0 || r->prompt[i].ids[k] >= 2048);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct openai_kind *const kinds[] = {&openai_kind_chat, &openai_kind_text,
                                                      &openai_kind_native};
    if (!n)
        return 0;
    if (!model)
        BUG_IF(ingle_model_open(&model, NULL, NULL, NULL) != INGLE_OK);
    const struct openai_kind *kind = kinds[data[0] % 3];
    const char *text = (const char *)data + 1;
    const struct answer_options o = {.model = model, .n_vocab = 2048, .max_tokens = -1};
    struct chat_request r;
    struct fault f = {0};
    void *state = kind->create();
    struct json_object *body = request_body(text, n - 1, &f);
    request_init(&r, &(struct ingle_sampling){.temperature = 1, .top_p = 1});
    if (body)
        kind->read(&r, body, &o, state, &f);
    if (f.kind) {
        dialect_fault(kind->dialect, state, &f);
    } else {
        check(&r);
        if (r.chat)
            dialect_render(&r);
        dialect_play(kind->dialect, state, model, &r, r.stream, "f", text, n - 1);
    }
    kind->dialect->free(state);
    request_release(&r);
    json_object_put(body);
    return 0;
}
