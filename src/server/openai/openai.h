/*
 * openai - what OpenAI's chat completions and completions and llama.cpp's own completion
 * share: the fields of their requests and the pieces of their answers.
 *
 * openai_read.c         counts, streams, prompts
 * openai_sampling.c     sampling, stop strings, thinking
 * openai_forced.c       formats and grammars
 * openai_messages.c     messages and tools, as ingle_chat_render() wants them
 * openai_chat.c         /chat/completions
 * openai_completions.c  /v1/completions
 * openai_native.c       /completion, /completions
 * openai_write.c        usage, timings, probabilities, errors
 * openai_routes.c       the endpoints
 */
#ifndef INGLE_SERVER_OPENAI_OPENAI_H
#define INGLE_SERVER_OPENAI_OPENAI_H

#include "server/answer.h"
#include "server/params.h"
#include "server/write.h"

struct streams;

/* What a body says beside the request; the first member of each kind's state. */
struct openai_wish {
    bool legacy_functions; /* functions and function_call: before there were tools */
    bool hide_reasoning;   /* thoughts are not sent */
    /* A stream that can be taken up again; all of it for accepted() alone, NULL: there is none. */
    struct streams *streams;
    const char *user, *conversation;
    struct tape *tape;
};

/* ---- reading: each one does nothing when there is a fault already ---- */

/* The table of params.h, seed, bias, ends, and what of that there is not. */
void openai_read_params(struct chat_request *r, struct json_object *body,
                        const struct answer_options *o, enum params_form form, struct fault *f);
void openai_read_stop(struct chat_request *r, struct json_object *body, struct fault *f);
void openai_read_stream(struct chat_request *r, struct json_object *body,
                        const struct answer_options *o, struct fault *f);
void openai_read_format(struct chat_request *r, struct json_object *body, struct fault *f);
/* "format" alone. */
void openai_read_json_format(struct chat_request *r, struct json_object *body, struct fault *f);
/* What every dialect takes of thoughts. */
void openai_read_think(struct chat_request *r, struct json_object *body, struct fault *f);
/* A member of it: true, false, or how hard; tokens of a thought. */
void openai_think_word(struct chat_request *r, struct json_object *o, const char *name,
                       struct fault *f);
void openai_think_budget(struct chat_request *r, struct json_object *o, const char *name,
                         struct fault *f);
/* One prompt: a string, token ids, a mixture of both, or {prompt_string}. */
void openai_read_prompt(struct chat_request *r, struct json_object *v,
                        const struct answer_options *o, struct fault *f);
/* One prompt or several; *many: it was a list of them. */
void openai_read_prompts(struct chat_request *r, struct json_object *v, bool *many,
                         const struct answer_options *o, struct fault *f);
/* messages, tools, tool_choice and what they were called before. */
void openai_read_messages(struct chat_request *r, struct json_object *body,
                          const struct answer_options *o, struct fault *f);
void openai_read_tools(struct chat_request *r, struct json_object *body,
                       const struct answer_options *o, struct openai_wish *w, struct fault *f);
/* A whole body of /chat/completions. */
void openai_read_chat(struct chat_request *r, struct json_object *body,
                      const struct answer_options *o, struct openai_wish *w, struct fault *f);

/* ---- the endpoints ---- */

/* What one of them is made of. */
struct openai_kind {
    const struct dialect *dialect;
    void *(*create)(void); /* its state, or NULL */
    /* The whole body into *r and the state. */
    void (*read)(struct chat_request *r, struct json_object *body, const struct answer_options *o,
                 void *state, struct fault *f);
};
extern const struct openai_kind openai_kind_chat, openai_kind_text, openai_kind_native;

struct serve;
void openai_answer(struct serve *serve, struct http_exchange *x, const struct http_request *rq,
                   const struct openai_kind *kind);

/* ---- writing ---- */

/* The members usage and timings. */
void openai_put_usage(struct str *out, const struct answer_result *r);
/* The member usage of a chunk before the last one: nothing, null, or that of its choice so far. */
void openai_put_usage_so_far(struct str *out, const struct chat_request *r, int64_t n_prompt,
                             int64_t n_generated);
void openai_put_timings(struct str *out, const struct answer_result *r);
/* A member "bytes": their numbers. */
void openai_put_bytes(struct str *out, const char *bytes, size_t n);
/* A list of tokens with their probabilities, from `first` on. */
void openai_put_tokens(struct str *out, const struct answer_choice *c, size_t first);
/* The value of logprobs of a chat: {content: [...], refusal: null} for tokens from `first` on. */
void openai_put_chat_logprobs(struct str *out, const struct answer_choice *c, size_t first);
/* The value of logprobs of a completion; *offset: characters before, advanced. */
void openai_put_text_logprobs(struct str *out, const struct answer_choice *c, size_t first,
                              size_t *offset);
/* "stop", "length", "tool_calls" */
const char *openai_finish(const struct answer_choice *c);
/* A sibling of finish_reason where there is more to say: a stop string, a full context. */
void openai_put_finish_details(struct str *out, const struct answer_choice *c);
/* The member prompt_progress, and timings if they were requested. */
void openai_put_progress(struct str *out, const struct answer_progress *p, bool timings);
/* The timings of an answer that goes on (timings_per_token). */
struct openai_timer {
    uint64_t begun;
    double prompt_seconds; /* up to the first token */
};
void openai_timer_start(struct openai_timer *t);
void openai_put_timer(struct str *out, struct openai_timer *t, const struct answer_info *i,
                      int64_t n_predicted);
/* What their dialects share: a comment, an error, and nothing where raw text has no calls. */
void openai_keepalive(void *state, const struct answer_info *i, struct str *out);
void openai_accepted(void *state, const struct answer_info *i, struct str *reply, struct str *out);
void openai_error(void *state, const struct fault *f, bool in_stream, struct str *out);
void openai_no_call(void *state, const struct answer_choice *c, size_t call, struct str *out);
void openai_no_call_arguments(void *state, const struct answer_choice *c, size_t call,
                              const char *text, size_t n, struct str *out);
/* {"error": {...}} */
void openai_put_fault(struct str *out, const struct fault *f);
/* id, object, created, model, system_fingerprint; prefix: "chatcmpl-". */
void openai_put_head(struct str *out, const struct answer_info *i, const char *prefix,
                     const char *object);

#endif
