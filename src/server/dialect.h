/*
 * dialect - how one wire format sends an answer to a client.
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

#include "server/answer_result.h"
#include "server/replica.h"

enum { ANSWER_DIGITS = 32, ANSWER_ID = ANSWER_DIGITS + 1 + REPLICA_NAME + 1 };

/* What is known of an answer before its first token. */
struct answer_info {
    const char *model;       /* the name to show */
    const char *fingerprint; /* "b0.2.0-89abcdef": build and weights */
    int64_t created;         /* seconds since 1970 */
    /* 32 random hex digits, and ".NAME" of a replica, for the dialect to put after a prefix */
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
     * of the stream, too, after those of begin(): the dialect's clients look for them there. */
    bool faults_in_stream;
    /* What begin appends goes out at once: clients wait for it with a shorter patience. */
    bool begins_at_once;
};

#endif
