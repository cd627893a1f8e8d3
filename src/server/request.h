/*
 * request - what a client asks for, whatever dialect it speaks.
 *
 * A dialect reads its body with the field readers below into a chat_request and hands that to
 * answer_start().  Every reader checks its bounds before anything is copied; an absent
 * field and null are the same; the first failure stays in the fault and later readers do
 * nothing, so a parser asks once at its end.
 */
#ifndef INGLE_SERVER_REQUEST_H
#define INGLE_SERVER_REQUEST_H

#include "base/err.h"
#include "base/json.h"
#include "base/report.h"
#include "base/str.h"
#include "ingle/ingle.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What kind of no it is: each dialect has its own words for them. */
enum fault_kind {
    FAULT_NONE,
    FAULT_REQUEST,  /* 400: JSON, a field, a grammar; param names the field */
    FAULT_MODEL,    /* 404: no such model */
    FAULT_CONTEXT,  /* 400: the prompt is longer than the context: n_prompt, n_ctx */
    FAULT_BUSY,     /* 429: the queue is full: retry_seconds */
    FAULT_STOPPING, /* 503: loading or stopping: retry_seconds */
    FAULT_UNSUP,    /* 501 */
    FAULT_DEADLINE, /* 504 */
    FAULT_ENGINE    /* 500 */
};
struct fault {
    enum fault_kind kind;
    int status;           /* of HTTP */
    char message[480];    /* lower case, no full stop, as errors are */
    char param[96];       /* "messages[3].content", or "" */
    /* what programs know it by, beside what each kind has; a literal, or NULL */
    const char *code;
    double retry_seconds; /* -1: unknown, or no retry helps */
    int64_t n_prompt, n_ctx;
    /* What stays when it is set anew: NULL, or asked now and then while the request is read and
     * computed; it says why nobody waits for that any more by request_fault(). */
    void (*poll)(void *arg, struct fault *f);
    void *arg;
    uint64_t until;   /* clock_now() when the client's own time is up; 0: it has none */
    uint32_t n_steps; /* of request_go_on() */
    bool expects;     /* faults of fields are in the words of the daemon, "... expected a number" */
};
/* Keeps the first one.  param may be NULL. */
ATTR_PRINTF(4, 5)
void request_fault(struct fault *f, enum fault_kind kind, const char *param, const char *fmt, ...);
/* One more piece of work on a request; false: there is a fault, or nobody waits for it any more,
 * which is one now. */
bool request_go_on(struct fault *f);
/* The same for ingle_bounds and json_limits, which ask seldom: arg is the fault, true is no
 * more. */
bool request_has_ended(void *arg);
/* The same from an error of the library. */
void request_fault_from(struct fault *f, ingle_status s, const char *param, const char *text);

enum {
    REQUEST_MAX_DEPTH = 64, /* of the body's JSON, with ... */
    REQUEST_MAX_VALUES = 2000000,
    REQUEST_MAX_KEYS = 100000, /* in one object */
    REQUEST_MAX_MESSAGES = 100000,
    REQUEST_MAX_TOOLS = 256,
    REQUEST_MAX_TOOL_NAME = 256, /* in every dialect */
    REQUEST_MAX_WARNINGS = 16,
    REQUEST_MAX_STOPS = 64,
    REQUEST_MAX_STOP_BYTES = 1024,
    REQUEST_MAX_BIAS = 1024,
    REQUEST_MAX_N = 16,
    REQUEST_MAX_TOP = 20,
    REQUEST_MOST_TOP = 4096, /* where it is not OpenAI's */
    REQUEST_MAX_PROMPTS = 64,
    REQUEST_MAX_AFFINITY = 256 /* bytes of a name of what begins alike */
};

/* ---- the request ---- */

enum request_thinking { THINKING_DEFAULT, THINKING_OFF, THINKING_ON };
enum request_tools { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED, TOOLS_NAMED };

struct request_prompt {
    struct str text; /* counts when there are no ids; special tokens by their spelling count */
    int32_t *ids;
    size_t n_ids;
    bool is_ids;
    /* the media that the markers "<__media__>" of text stand for */
    size_t first_medium, n_media;
};

struct request_ids {
    int32_t *id;
    size_t n, cap;
};

/* What becomes of keywords of schemas that are not supported. */
enum request_unsupported { UNSUPPORTED_DEFAULT, UNSUPPORTED_REFUSE, UNSUPPORTED_DROP };

/* A picture or sound (server/medium.h). */
struct request_medium {
    enum ingle_media_kind kind; /* ANY: the bytes say */
    bool is_sound;
    struct str bytes;
    char *url; /* owned; where bytes are to be fetched; NULL: they are there */
    bool has_detail; /* its own budget */
    int32_t budget;
    char name[64]; /* "message 2, part 1" */
    char param[96];
};

struct chat_request {
    struct str model; /* as asked, or "" */

    /* A conversation in the form of OpenAI chat completions; else prompts. */
    bool chat;
    struct str messages; /* JSON array; a last assistant message without calls is continued */
    /* the field that faults of the prompt name; NULL: messages or prompt */
    const char *prompt_param;
    struct str tools;    /* JSON array of {type: "function", function: {...}}, or "" */
    struct str late_tools; /* the same, for those that the conversation itself shows */
    enum request_thinking thinking;
    struct str effort; /* "low", "medium", "high", "max", or "" */
    bool preserve_thinking;
    /* the answer is not requested: the model goes on after the last message */
    bool no_generation_prompt;
    bool no_prefill; /* a last assistant message is complete */
    bool thought_control; /* a client may end a thought: answer_end_thought() */
    int64_t thinking_budget; /* tokens of a thought at most; -1: no limit */

    struct request_medium *medium; /* [n_media] of all messages or prompts, in no order */
    size_t n_media, cap_media;
    int32_t image_tokens; /* of pictures without a detail; 0: as the server's option says */

    struct request_prompt *prompt; /* [n_prompts] */
    size_t n_prompts, cap_prompts;
    bool add_special; /* BOS in front of prompts that are text */
    bool echo;        /* the answer's text begins with the prompt's */

    /* what the scheduler is requested; its lists and texts are below, and given to it at last */
    struct ingle_request_options o;
    bool seeded;        /* o.sampling.seed was requested; else it is drawn */
    bool greedy;        /* the temperature is 0, whatever it is */
    struct ingle_bias *bias;
    size_t n_bias, cap_bias;
    int best_of;        /* 0, or computed choices of which the n most probable are given */
    struct request_ids stop_ids, banned, only; /* as ingle_sampling has them */
    bool keep_stop;     /* the string or token that stopped it is part of the answer */
    bool hide_special;  /* special tokens of an answer without a chat are not shown */
    /* as --sparse and --kv-select, or "": as the server's options say */
    struct ingle_way way;
    /* the share of a long prompt that is kept; 0: as the server's option says, 1: all */
    double prompt_keep;
    bool keep_requested; /* the request says so: then beside tools and grammars, too */
    struct str *stop;
    size_t n_stop, cap_stop;

    bool logprobs;    /* tokens carry their logarithmic probabilities */
    bool keep_tokens; /* the ids of all tokens are gathered */

    bool has_grammar; /* of the answer after the thought */
    enum ingle_grammar_kind grammar_kind;
    struct str grammar;
    enum request_unsupported unsupported; /* keywords of its schema, and of tools */
    const char *grammar_param; /* the field that faults of it name; NULL: "response_format" */
    enum request_tools tool_choice;
    struct str tool_name; /* TOOLS_NAMED */
    struct str allowed; /* JSON array of the names of those that may be called, or "": all */
    bool parallel_calls;

    bool stream;
    struct tape *tape; /* owned: the stream goes there and the answer needs no client; or NULL */
    bool follow;       /* with a tape: the client listens to it */
    bool include_usage;   /* the dialect's business, as are the next three */
    bool continuous_usage;
    bool timings_per_token;
    bool resumable;       /* the stream can be taken up again, if the request has a name */
    bool verbose;         /* the reply carries the rendered prompt */
    bool return_progress; /* the dialect gets the progress of the prompt */
    int id_slot; /* where llama.cpp's clients find the conversation again */
    /* an answer with a line feed ends so long after its first token; 0: no limit */
    int64_t predict_ms;
    struct str user;         /* whose share it is */
    struct str cache_key;    /* the client's name for what begins alike, or "" */
    /* What of the request is left out: request_notes(). */
    char *warning[REQUEST_MAX_WARNINGS]; /* [n_warnings] owned */
    size_t n_warnings;
    struct report_sink notes;
    const struct report_sink *log;
};

/* defaults: the sampling of the server. */
void request_init(struct chat_request *r, const struct ingle_sampling *defaults);
void request_release(struct chat_request *r);
/* Where readers report what they leave out: it becomes a warning of the reply, and goes on to log
 * (NULL: nowhere).  Borrowed while r stays where it is. */
const struct report_sink *request_notes(struct chat_request *r, const struct report_sink *log);
/* "" is none. */
void request_add_stop(struct chat_request *r, const char *text, size_t n, const char *param,
                             struct fault *f);
void request_add_bias(struct chat_request *r, int32_t token, float bias, struct fault *f);
struct request_prompt *request_add_prompt(struct chat_request *r, struct fault *f);
/* The field that the prompt comes from. */
const char *request_prompt_param(const struct chat_request *r);
/* The model may call something. */
bool request_has_tools(const struct chat_request *r);
/* The texts were complete: memory did not run out. */
void request_check(const struct chat_request *r, struct fault *f);
/* The words of all vendors for how hard to think, to thinking and effort. */
void request_effort(struct chat_request *r, const char *word, const char *param, struct fault *f);

#endif
