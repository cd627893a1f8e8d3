/*
 * ollama - Ollama's API, as editors and chat programs ask for it: /api/chat and /api/generate on
 * the same answers
 * as the other dialects, and what they want to know of the model.
 *
 * ollama/read.c      requests to chat_request
 * ollama/write.c     the dialect: lines of JSON, or one object
 * ollama/ollama.c    the endpoints
 */
#ifndef INGLE_SERVER_OLLAMA_OLLAMA_H
#define INGLE_SERVER_OLLAMA_OLLAMA_H

#include "server/answer.h"
#include "server/dialect.h"
#include "server/openai/openai.h"

/* The version of the API that is spoken here: clients ask for a least one. */
#define OLLAMA_VERSION "0.13.5"

/* The dialect's state of one request. */
struct ollama {
    bool generate;   /* /api/generate */
    bool nothing;    /* no prompt and no messages: the model is to be loaded, which it is */
    const struct answer_info *info; /* once it has begun */
    size_t n_sent;                  /* tokens with probabilities */
};

struct ollama *ollama_create(void);
void ollama_free(struct ollama *s);
/* Reads a body of /api/chat or (s->generate) /api/generate; *r is initialised. */
void ollama_read(struct chat_request *r, struct json_object *body, const struct answer_options *o,
                 struct ollama *s, struct fault *f);
/* "2026-11-25T02:40:41.123456789Z"; nanoseconds < 0: without them. */
void ollama_put_time(struct str *out, const char *key, int64_t seconds, int64_t nanoseconds);
/* {"error": "..."} */
void ollama_put_error(struct str *out, const char *message);
/* The one object for a request without a prompt. */
void ollama_put_loaded(struct str *out, const struct ollama *s, const char *model);

extern const struct dialect ollama_chat_dialect, ollama_generate_dialect;

#endif
