/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /v1/messages. */
#include "fuzz/dialect.h"

#include "server/anthropic/anthropic.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct ingle_model *model;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    struct chat_request r;
    struct anthropic *s;
    struct fault f = {0};
    if (!model)
        BUG_IF(ingle_model_open(&model, NULL, NULL, NULL) != INGLE_OK);
    const struct answer_options o = {.model = model, .n_vocab = 2048, .max_tokens = -1};
    struct json_object *body = request_body(text, n, &f);
    request_init(&r, &(struct ingle_sampling){.temperature = 1, .top_p = 1});
    anthropic_read(body, &o, "req_0", NULL, &r, &s, &f);
    if (f.kind) {
        dialect_fault(&anthropic_dialect, s, &f);
    } else {
        dialect_render(&r);
        dialect_play(&anthropic_dialect, s, NULL, &r, r.stream, "f", text, n);
    }
    anthropic_free(s);
    request_release(&r);
    json_object_put(body);
    return 0;
}
