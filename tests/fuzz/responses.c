/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /v1/responses, with a store that grows over the inputs. */
#include "fuzz/dialect.h"

#include "server/responses/responses.h"
#include "server/responses/store.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct ingle_model *model;

static struct responses_store *store;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    struct chat_request r;
    struct responses *s;
    struct fault f = {0};
    if (!model)
        BUG_IF(ingle_model_open(&model, NULL, NULL, NULL) != INGLE_OK);
    const struct answer_options o = {.model = model, .n_vocab = 2048, .max_tokens = -1};
    if (!store)
        BUG_IF(responses_store_create(&store, 16, 1 << 20, NULL) != INGLE_OK);
    struct json_object *body = request_body(text, n, &f);
    request_init(&r, &(struct ingle_sampling){.temperature = 1, .top_p = 1});
    responses_read(body, &o, store, "u", NULL, &r, &s, &f);
    if (f.kind) {
        dialect_fault(&responses_dialect, s, &f);
    } else {
        dialect_render(&r);
        const char *name = s->n_tools ? s->tool[n % s->n_tools].flat.at : "f";
        dialect_play(&responses_dialect, s, NULL, &r, s->stream, name, text, n);
    }
    responses_free(s);
    request_release(&r);
    json_object_put(body);
    return 0;
}
