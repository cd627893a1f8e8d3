/*
 * dialect - how one wire format tells a client what its answer is.
 *
 * The core (answer.c) runs a request and calls these functions in order, one at a time for one
 * answer, from the scheduler's thread or the I/O thread.  They append bytes to *out and do
 * nothing else: when and whether the bytes go out is the core's business.  So a dialect holds
 * no socket, and can be tested without one.
 *
 * A stream (request.stream):
 *
 *     begin progress* { text | call_begin call_arguments* call_end }* end(one a choice) done
 *
 * with keepalive anywhere after 10 s of silence (also before begin), and error instead of the
 * rest.  What begin appends goes out with the first text, call, progress or keep-alive (at once
 * with begins_at_once): until then an error still gets its real status, and what begin appended
 * is dropped.
 *
 * A whole reply: nothing but whole(), or error.
 *
 * With several choices the functions of different choices alternate.
 */
#ifndef INGLE_SERVER_DIALECT_H
#define INGLE_SERVER_DIALECT_H

#include "server/replica.h"
#include "server/request.h"

enum { ANSWER_DIGITS = 32, ANSWER_ID = ANSWER_DIGITS + 1 + REPLICA_NAME + 1 };

/* What is known of an answer before its first token. */
struct answer_info {
    const char *model;       /* the name to show */
    const char *fingerprint; /* "b0.2.0-89abcdef": build and weights */
    int64_t created;         /* seconds since 1970 */
    /* 32 random hex digits, and ".NAME" of a replica, for the dialect to put behind a prefix */
    char id[ANSWER_ID];
    int64_t n_prompt;        /* tokens, of all prompts together */
    int64_t n_skipped;       /* of them, those that are left out */
    int64_t n_ctx, n_vocab;
    const struct chat_request *request;
    struct ingle_reuse reuse; /* zero before begin; of the first prompt */
    char reuse_note[256];     /* "" or why little was reused, with the first token that differs */
    const struct ingle_model *llm;
    bool attached;      /* the client of a request that another one had left */
    /* [n_warnings] what of its schema or tools the answer is not held to */
    const char *const *warnings;
    size_t n_warnings;
    /* the rendered first prompt, or NULL: only with --verbose-replies or request.verbose */
    const char *prompt;
};

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

/* A token of the prompt that is shown, or one behind it; i counts both. */
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

struct dialect {
    const char *name; /* "openai-chat": in metrics and logs */
    void (*begin)(void *state, const struct answer_info *i, struct str *out);
    /* Only with request.return_progress. */
    void (*progress)(void *state, const struct answer_progress *p, struct str *out);
    /* n bytes, whole characters, never empty; they are in the choice already.  Content has the
     * tokens [first_token, n_tokens) of the choice with it, when tokens are gathered. */
    void (*text)(void *state, const struct answer_choice *c, enum answer_text kind,
                 const char *text, size_t n, size_t first_token, struct str *out);
    /* call: the number of the choice's call, from 0. */
    void (*call_begin)(void *state, const struct answer_choice *c, size_t call, struct str *out);
    void (*call_arguments)(void *state, const struct answer_choice *c, size_t call,
                           const char *text, size_t n, struct str *out);
    void (*call_end)(void *state, const struct answer_choice *c, size_t call, struct str *out);
    void (*end)(void *state, const struct answer_choice *c, struct str *out);
    void (*done)(void *state, const struct answer_result *r, struct str *out);
    void (*keepalive)(void *state, const struct answer_info *i, struct str *out);
    /* The body of an error reply (in_stream false), or the events that end a stream. */
    void (*error)(void *state, const struct fault *f, bool in_stream, struct str *out);
    /* Only with request.tape, once and first: the answer will be computed whoever listens.  reply
     * is what a client gets that does not; out is the beginning of the stream. */
    void (*accepted)(void *state, const struct answer_info *i, struct str *reply, struct str *out);
    /* The body of a whole reply. */
    void (*whole)(void *state, const struct answer_result *r, struct str *out);
    /* Ends state. */
    void (*free)(void *state);
    const char *stream_type; /* of content, of a stream; NULL: text/event-stream */
    /* FAULT_CONTEXT, FAULT_ENGINE and FAULT_DEADLINE that come before a stream's headers are events
     * of the stream, too, behind those of begin(): the dialect's clients look for them there. */
    bool faults_in_stream;
    /* What begin appends goes out at once: clients wait for it with a shorter patience. */
    bool begins_at_once;
};

#endif
