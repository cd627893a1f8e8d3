/*
 * answer_result - what a dialect knows of an answer and its choices.
 */
#ifndef INGLE_SERVER_ANSWER_RESULT_H
#define INGLE_SERVER_ANSWER_RESULT_H

#include "server/request.h"

enum answer_finish {
    ANSWER_OPEN,   /* not yet */
    ANSWER_STOP,   /* the model ended its turn, or a stop string came: choice.stop */
    ANSWER_LENGTH, /* max_tokens, or the context is full: choice.context_full */
    ANSWER_CALLS   /* the turn ended with tool calls */
};

/* A token of the content.  Offsets, because the texts grow: use the accessors. */
struct answer_token {
    int32_t id;
    float logprob;
    bool no_logprob;         /* the first token of a prompt and soft tokens have none */
    size_t text_at, n_text;  /* what of choice.content it completed */
    size_t bytes_at, n_bytes; /* its own bytes, in choice.bytes */
    size_t top_at;           /* in choice.top */
    int n_top;
};
struct answer_top {
    int32_t id;
    float logprob;
    size_t bytes_at, n_bytes; /* in choice.bytes */
};
/* The tokens of a prompt, which its choices share; texts are in the content of each. */
struct answer_echo {
    struct answer_token *token; /* [n_tokens] */
    size_t n_tokens, cap_tokens;
    struct answer_top *top;
    size_t n_top, cap_top;
    struct str bytes;
};
struct answer_call {
    char id[30]; /* "call_" and 24 digits */
    struct str name, arguments;
    bool cut; /* at its end: tokens ran out, the arguments are only a beginning */
};
struct answer_choice {
    int index;
    int prompt; /* which one of the request */
    int64_t n_prompt, n_cached; /* tokens of that prompt, and those that were not computed */
    struct str content, reasoning;
    struct answer_call *call; /* [n_calls] */
    size_t n_calls, cap_calls;
    int32_t *drawn; /* [n_drawn] all of them, with or without text: request.keep_tokens */
    size_t n_drawn, cap_drawn;
    struct answer_token *token; /* [n_tokens] of the content: request.logprobs */
    size_t n_tokens, cap_tokens;
    struct answer_top *top;
    size_t n_top, cap_top;
    struct str bytes;
    /* tokens before those: the content begins with the prompt; or NULL */
    const struct answer_echo *echo;
    enum answer_finish finish;
    const char *stop;    /* the stop string that ended it, or NULL */
    const int32_t *stop_id; /* the token that ended it because the request says so, or NULL */
    bool context_full;   /* ANSWER_LENGTH */
    int64_t n_generated; /* tokens, the end of generation too */
    int64_t n_reasoning; /* of them in a thought */
    double logprob_sum;
};
static inline const char *answer_token_text(const struct answer_choice *c,
                                            const struct answer_token *t)
{
    return c->content.at + t->text_at;
}
static inline const char *answer_bytes(const struct answer_choice *c, size_t at)
{
    return c->bytes.at + at;
}

/* A token of the prompt that is shown, or one after it; i counts both. */
struct answer_shown {
    const struct answer_token *token;
    const struct answer_top *top; /* [token->n_top] */
    const char *bytes;            /* where the bytes_at of these count from */
};
static inline size_t answer_n_shown(const struct answer_choice *c)
{
    return c->n_tokens + (c->echo ? c->echo->n_tokens : 0);
}
static inline struct answer_shown answer_shown_at(const struct answer_choice *c, size_t i)
{
    const size_t n = c->echo ? c->echo->n_tokens : 0;
    const struct answer_token *t = i < n ? &c->echo->token[i] : &c->token[i - n];
    const struct answer_top *top = i < n ? c->echo->top : c->top;
    return (struct answer_shown){t, t->n_top ? top + t->top_at : NULL,
                                 i < n ? c->echo->bytes.at : c->bytes.at};
}

struct answer_progress {
    int64_t n_prompt, n_cached, n_done; /* n_done counts the cached ones */
    double seconds;                     /* since it left the queue */
    /* pictures and sounds that are encoded before the prompt, and how far that is */
    int64_t n_media;
    double encoded; /* 0 to n_media */
};

struct answer_result {
    const struct answer_info *info;
    const struct answer_choice *choice; /* [n_choices], in the order of their index */
    int n_choices;
    /* Of all prompts and choices; queue and prefill seconds are the longest ones. */
    struct ingle_usage usage;
    int64_t n_reasoning;
};

enum answer_text { ANSWER_CONTENT, ANSWER_REASONING };

#endif
