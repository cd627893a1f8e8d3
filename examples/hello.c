/* SPDX-License-Identifier: Apache-2.0
 *
 * hello - one question, one answer, through ingle.h.
 *
 *     cc hello.c $(pkg-config --cflags --libs ingle) && ./a.out ["a question" [MODEL.gguf]]
 */
#include <ingle/ingle.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ingle_error error;

static void must(ingle_status status)
{
    if (status == INGLE_OK)
        return;
    fprintf(stderr, "hello: %s\n", error.text);
    exit(1);
}

static void show(void *arg, enum ingle_event_kind kind, int call, const char *text, size_t n)
{
    (void)arg, (void)call;
    if (kind == INGLE_EVENT_CONTENT)
        fwrite(text, 1, n, stdout);
}

int main(int argc, char **argv)
{
    struct ingle_model *model;
    struct ingle_engine *engine;
    struct ingle_session *session;
    struct ingle_sampler *sampler;
    struct ingle_reader *reader;
    struct ingle_prompt prompt;
    struct ingle_sampling sampling;
    enum ingle_end end = INGLE_END_NONE;
    char messages[4096]; /* the question must need no escapes in JSON */
    snprintf(messages, sizeof messages, "[{\"role\": \"user\", \"content\": \"%s\"}]",
             argc > 1 ? argv[1] : "Who are you?");
    const struct ingle_chat chat = {.messages = messages, .n_messages = strlen(messages)};

    must(ingle_model_open(&model, argc > 2 ? argv[2] : NULL, NULL, &error));
    must(ingle_engine_open(&engine, model, NULL, &error));
    must(ingle_session_open(&session, engine, &error));
    ingle_sampling_defaults(model, &sampling);
    sampling.temperature = 0;
    must(ingle_sampler_open(&sampler, engine, &sampling, &error));
    must(ingle_reader_open(&reader, model, NULL, show, NULL, &error));

    must(ingle_chat_render(model, &chat, &prompt, &error));
    must(ingle_session_sync(session, prompt.ids, (int64_t)prompt.n_ids, NULL, &error));
    for (int drawn = 0; drawn < 500 && end == INGLE_END_NONE;) {
        /* several at a time where they can be drafted: docs/use/drafting.md */
        struct ingle_token token[16];
        int64_t n;
        must(ingle_session_draw(session, sampler, token, 16, &n, &error));
        for (int64_t i = 0; i < n && end == INGLE_END_NONE; i++, drawn++)
            must(ingle_reader_token(reader, token[i].id, &end, &error));
    }
    must(ingle_reader_finish(reader, &error));
    puts("");

    ingle_prompt_release(&prompt);
    ingle_reader_close(reader);
    ingle_sampler_close(sampler);
    ingle_session_close(session);
    ingle_engine_close(engine);
    ingle_model_close(model);
    return 0;
}
