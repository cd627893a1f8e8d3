/*
 * answer - the generation core: one request of a client from its fields to its last byte.
 *
 * answer_start() checks the request, renders and tokenises it, compiles its grammar and hands it to
 * the scheduler, all in the handler of the request.  The tokens come back on the scheduler's
 * thread, go through a reader, and the dialect turns them into bytes for the exchange.  Headers
 * wait for the first token or the first keep-alive, so that what fails before has a real status.
 *
 * A client that leaves cancels its request; the computed part of the prompt stays cached.  If it
 * leaves before its first token, the request may live on for grace_seconds: the same body from the
 * same user then takes it over instead of starting anew.
 */
#ifndef INGLE_SERVER_ANSWER_H
#define INGLE_SERVER_ANSWER_H

#include "base/report.h"
#include "http/http.h"
#include "server/dialect.h"

struct answer_core;

/* How an answer went, reported once at its end; on the scheduler's or the I/O thread. */
struct answer_record {
    const char *dialect;
    const char *outcome; /* "ok", "cancelled", "timeout", "rejected", "error" */
    int status;          /* of HTTP; 0: the client had left */
    struct ingle_usage usage;
    double first_token_seconds;  /* since answer_start(); 0: there was none */
    double mean_token_seconds;   /* between tokens; 0: fewer than two */
    double decode_seconds;       /* from the first token to the last one */
    double whole_seconds;        /* since answer_start() */
    bool by_length;              /* the first choice ended at its limit */
    bool attached;               /* took over the request of a client that had left */
    const char *request_id;      /* of the HTTP request: the client's own, or a new one */
    const char *trace;           /* its traceparent, or "" */
    const char *id, *user;       /* the digits of the reply's id; whose it is, or "" */
    const char *note;            /* why little was reused, or ""; NULL: the answer did not begin */
};

struct answer_tokens {
    const int32_t *prompt, *drawn; /* [n_prompt], [n_drawn] */
    /* [n_prompt], where the prompt's tokens stand; NULL: one after the other */
    const int32_t *position;
    size_t n_prompt, n_drawn;
    size_t n_stable; /* of the prompt, what later ones begin with; 0: not known */
    const struct ingle_span *span; /* [n_spans]: media among the prompt's */
    size_t n_spans;
};

struct answer_options {
    const struct ingle_model *model;
    struct ingle_scheduler *scheduler;
    struct ingle_engine *engine; /* its, for ingle_shorten() */
    int64_t n_ctx, n_vocab;
    int64_t prompt_ctx;      /* of a prompt that may be shortened; 0: none may */
    int max_running;         /* answers that the scheduler runs at once */
    const char *name;        /* of the model, in replies */
    const char *fingerprint; /* "b0.2.0-89abcdef" */
    const char *replica;     /* at the end of ids; NULL: nothing is */
    struct ingle_sampling sampling; /* where a request says nothing */
    bool seeded; /* sampling.seed is that of requests without one; else each gets one of its own */
    bool thinking, preserve_thinking;
    bool ignore_end;         /* where a request says nothing */
    /* messages of a developer are turns of their own where the chat format has them */
    bool developer_own;
    const char *effort;      /* or NULL */
    int64_t max_tokens;      /* where a request says nothing; -1: what the context holds */
    double queue_seconds;    /* a request may wait for its turn; 0: as long as it takes */
    double request_seconds;  /* from its arrival to its end; 0: no limit */
    int64_t max_logprobs;    /* tokens and alternatives that a request keeps; 0: no limit */
    bool drop_unsupported;   /* keywords of schemas, where a request says nothing */
    bool any_top;            /* top_logprobs up to 4096 and not OpenAI's 20 */
    bool always_usage;       /* streams end with usage although nobody asked */
    bool verbose;            /* replies carry the rendered prompt */
    /* a note stands for images and files of the last turn, too: they are no fault */
    bool note_media;
    bool sees, hears;       /* the model reads pictures, sound */
    const char *media_urls; /* hosts that media are fetched from; NULL: none */
    struct media_gate *media_gate; /* so many of them at once; NULL: any number */
    struct report_sink sink; /* for what is left out of a request */
    double keepalive_seconds; /* 0: 10 */
    double grace_seconds;     /* 0: a client that leaves always ends its request */
    /* Checks the name of a model that a request asks for; NULL: any name will do.  False: a
     * 404, and *known says which there are. */
    bool (*knows)(void *arg, const char *name, const char **known);
    void (*observe)(void *arg, const struct answer_record *r);
    /* The first prompt and its first answer, when it has ended; NULL: nobody wants them. */
    void (*keep)(void *arg, const struct chat_request *r, const struct answer_tokens *t);
    /* The exchange's tag is one that answers hold as long as they compute, whether or not somebody
     * listens: called as one begins and as it is over.  NULL: nobody wants it. */
    void (*hold_tag)(void *arg, int tag, bool held);
    /* The highest priority that requests of this key may have ("": there are no keys). */
    int (*max_priority)(void *arg, const char *key);
    void *arg;
};

/* Strings are borrowed until answer_close(). */
MUST_CHECK ingle_status answer_open(struct answer_core **out, const struct answer_options *o,
                                     struct err *err);
const struct answer_options *answer_get_options(const struct answer_core *a);
/* Ten times a second, on the I/O thread.  False: there is no answer, so until one begins nothing
 * needs it. */
bool answer_tick(struct answer_core *a);
/* Refuses new requests with 503 and cancels those that run: each gets its dialect's error. */
void answer_stop(struct answer_core *a);
/* After the scheduler and the HTTP server are closed. */
void answer_close(struct answer_core *a);

/* Answers x: takes state and what r holds (r itself stays the caller's, empty), on failure as
 * well: then the error is sent.  f: a fault of the parser, sent as it is.  Inside the handler
 * of rq. */
void answer_start(struct answer_core *a, struct http_exchange *x, const struct http_request *rq,
                  struct chat_request *r, const struct dialect *d, void *state,
                  const struct fault *f);

/* A fault where answer_start() would find one in r before it looks at the prompt: model, priority,
 * grammar and tools.  For requests that are answered without computing; r stays the caller's, as it
 * is. */
void answer_check(struct answer_core *c, struct http_exchange *x, const struct http_request *rq,
                  const struct chat_request *r, struct fault *f);

/* The numbers (ingle_slot.request) of the user's requests that the scheduler has, at most n; how
 * many. */
size_t answer_requests_of(struct answer_core *a, const char *user, int64_t *number, size_t n);

/* The client's names of the request with that number in the scheduler; "" where it has none, or is
 * none of the user's. */
enum { ANSWER_TRACE = 55 };
struct answer_names {
    char request_id[HTTP_ID + 1], trace[ANSWER_TRACE + 1];
};
void answer_names_of(struct answer_core *a, const char *user, int64_t number,
                     struct answer_names *out);

/* Ends the thought of the answer with that info.id, which asked for thought_control.  False, and
 * *why: there is nothing to end. */
bool answer_end_thought(struct answer_core *a, const char *user, const char *id, const char **why);

/* Bytes of a token, appended; control tokens by their spelling. */
void answer_token_bytes(const struct ingle_model *m, int32_t id, struct str *out);

#endif
