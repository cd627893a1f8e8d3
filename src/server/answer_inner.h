/*
 * answer_inner - what the files of the generation core share.
 *
 * answer.c         the core, the answers that run, clients that come and leave
 * answer_prompt.c  a request to token ids, grammars and readers
 * answer_run.c     callbacks of the scheduler
 * answer_choice.c  tokens to text: gathering, and the dialect's functions
 *
 * One answer has n choices for each prompt.  A part is what goes to the scheduler as one
 * request: some choices of one prompt, as many as may run at once.
 */
#ifndef INGLE_SERVER_ANSWER_INNER_H
#define INGLE_SERVER_ANSWER_INNER_H

#include "base/sha256.h"
#include "server/answer.h"
#include "http/http.h"

#include <pthread.h>
#include <stdatomic.h>

struct answer_core {
    struct answer_options o;
    pthread_mutex_t lock;
    struct answer *first; /* Sync: lock */
    bool stopping;        /* Sync: lock */
};

/* A token whose text is not out yet. */
struct answer_pending {
    struct answer_token t; /* text_at is set when some of it is */
    size_t used;           /* of its bytes */
};

struct answer_run {
    struct answer_choice c;
    struct answer *a;
    struct answer_part *part;
    int local; /* its index in the part */
    struct ingle_reader *reader;
    struct answer_pending *pending; /* [n_pending] */
    size_t n_pending, cap_pending;
    size_t n_sent;        /* tokens of c that the dialect has had */
    int64_t undecided;    /* tokens since the last event */
    bool reasoning;       /* the last event was reasoning, or the prompt ends in a thought */
    bool closing;         /* the thought was too long: nothing but its end may come */
    bool constrained;     /* what is to follow the thought is in force */
    uint64_t first;       /* clock_now() at its first token */
    bool late;            /* request.predict_ms are over */
    bool cut;             /* a second call would come: no more tokens */
    bool in_call;         /* it was asked whether what began is certain to be a call */
    bool held;            /* answer.calls is in force */
    bool ended;
};

struct answer_part {
    struct answer *a;
    int prompt;                    /* which one */
    int first, n;                  /* its choices among those of the prompt */
    struct ingle_request *request; /* NULL: not submitted, or over */
    int32_t *ids;                  /* owned by the prompt's first part */
    size_t n_ids;
    struct ingle_shortened kept; /* what is computed of them, owned likewise; n 0: all of them */
    int64_t n_done;              /* Sync: the answer's lock; of its prompt, as last reported */
    int64_t n_encoding; /* Sync: the answer's lock; media that are encoded for it, */
    double encoded;     /* Sync: the same; ... and how many are */
    struct ingle_span *span; /* [n_spans] where media stand; owned likewise */
    size_t n_spans;
    size_t hidden; /* tokens in front that are not the client's: BOS */
    bool open_thought;
    struct answer_run *run; /* [n], in answer.run */
    /* of the prompt, with their probabilities; unused where another part has all */
    struct answer_echo echo;
    uint64_t begun; /* clock_now() when it left the queue */
    int64_t n_kept;
};

/* What ties an exchange to an answer; the exchange owns it. */
struct answer_link {
    struct answer *a; /* a reference */
};

struct answer {
    struct answer_core *core;
    struct answer *next, **before; /* Sync: core->lock, which is taken before an answer's */
    atomic_int refs;               /* Sync: atomic */
    uint8_t digest[SHA256_BYTES];  /* Sync: core->lock; of user, dialect and body */

    bool known; /* Sync: core->lock; the request has been read, and it may be found */
    struct answer_names names;
    struct http_exchange *exchange; /* whose request is being read */
    int tag;                     /* of the exchange that began it; 0: none */
    bool counted;                /* its tokens are counted, however many there are */

    /* Events of the I/O thread, which does not wait for the lock: who has the lock handles them
     * it. */
    atomic_uint due;

    /* Sync: lock for all that follows, once the answer has been submitted. */
    pthread_mutex_t lock;
    struct chat_request request;
    const struct dialect *dialect;
    void *state;
    struct answer_info info;
    /* owned: those of the request and of its grammar; NULL: there are none */
    const char **warnings;
    struct ingle_grammar *grammar;
    bool grammar_first;  /* from the first token on; else after the thought */
    bool grammar_calls;  /* where it allows a call, there is one */
    struct ingle_grammar *calls; /* what follows the marker of a call; NULL: anything may */
    struct ingle_grammar *closer; /* the end of a thought; NULL: thoughts may be long */
    bool enough; /* the thought is to end: answer_end_thought() */
    struct ingle_grammar *thought; /* any text and its end; NULL: thoughts may end the answer */

    struct http_exchange *x; /* held; NULL: nobody listens */
    struct http_exchange *leaving; /* to be released when the lock is free */
    struct answer_link *link;      /* of x */
    uint64_t orphaned;             /* clock_now() when the client left; 0: it is there */
    struct str out;                /* bytes for the client */
    bool begun;                    /* begin() was called */
    bool open;                     /* what is in out may go */
    bool headers_out;
    bool finished; /* the client has had all */
    bool cancelled;
    bool held;     /* its parts compute nothing: the client has more than it reads */
    bool observed; /* answer_options.observe was called */

    struct ingle_medium **medium; /* [request.n_media] owned; NULL: there are none */
    struct answer_part *part; /* [n_parts] */
    int n_parts;
    int n_submitted; /* the others found the queue full and are tried again */
    int n_open;      /* parts that are not over */
    struct answer_run *run;
    struct answer_choice *shown; /* scratch of the result */
    struct str prompt_text;      /* options.verbose */
    int n_runs, n_per_prompt;
    int64_t most_tokens; /* of a choice, by what their probabilities may take; -1: no limit */
    struct ingle_usage usage;
    uint64_t started, first_token, last_token; /* clock_now() */
    int64_t n_steps; /* tokens of all choices */
    struct fault fault;
};

#endif
