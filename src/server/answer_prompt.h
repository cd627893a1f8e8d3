/*
 * answer_prompt - prompts of requests, counted and rendered without running them.
 */
#ifndef INGLE_SERVER_ANSWER_PROMPT_H
#define INGLE_SERVER_ANSWER_PROMPT_H

#include "server/answer.h"

/* Answers x with {MORE"input_tokens":N}, or the fault in the words of the dialect. */
void answer_reply_count(const struct answer_core *a, struct http_exchange *x,
                        const struct chat_request *r, const struct dialect *d, void *state,
                        const char *more, struct fault *f);

/* Calls fn with the token ids of each prompt of the request, without running it.  A prompt that is
 * longer than the context is FAULT_CONTEXT, unless any length may be. */
typedef void answer_prompt_fn(void *arg, const int32_t *ids, size_t n);
void answer_each_prompt(const struct answer_core *a, struct http_exchange *x,
                        const struct chat_request *r, bool any_length, answer_prompt_fn *fn,
                        void *arg, struct fault *f);
/* Tokens of the request's prompts, without running it; -1 and a fault.  The prompt's text as the
 * model sees it is appended to *text, if there is one. */
int64_t answer_render(const struct answer_core *a, struct http_exchange *x,
                      const struct chat_request *r, struct str *text, struct fault *f);

#endif
