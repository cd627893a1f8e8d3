/*
 * responses - OpenAI's Responses: /v1/responses as Codex and the openai package speak it.
 *
 * read.c turns the items of a request into a chat_request, tools.c its
 * tools; write.c is the dialect that turns an answer into items and events again.
 * Answers are kept in a bounded store in memory (store.c), where
 * previous_response_id and item_reference find them.
 */
#ifndef INGLE_SERVER_RESPONSES_RESPONSES_H
#define INGLE_SERVER_RESPONSES_RESPONSES_H

#include "base/report.h"
#include "server/convert.h"
#include "server/dialect.h"
#include "server/openai/openai.h"
#include "server/responses/items.h"
#include "server/tape.h"
#include <stdatomic.h>

/* ---- tools ---- */

enum responses_kind {
    RESPONSES_FUNCTION,
    RESPONSES_CUSTOM,      /* one string parameter, "input" */
    RESPONSES_LOCAL_SHELL, /* a function with its own kind of item */
    RESPONSES_TOOL_SEARCH
};
/* The model sees one flat list of functions; this is how a name leads back. */
struct responses_tool {
    enum responses_kind kind;
    struct str flat;  /* what the model calls it */
    struct str name;  /* its own name */
    struct str space; /* its namespace, or "" */
};

/* ---- requests and answers ---- */

enum responses_open {
    RESPONSES_NONE,
    RESPONSES_REASONING,
    RESPONSES_MESSAGE,
    RESPONSES_CALL
};

/* A request on its way to an answer: the dialect's state. */
struct responses {
    struct responses_store *store; /* NULL: the answer is not kept */
    struct responses_store *conversations; /* NULL: it belongs to none */
    struct str conversation; /* its id */
    struct str user;
    struct tape *tape; /* a reference; NULL: it is not computed in the background */
    bool background;
    struct responses_tool *tool;
    size_t n_tools, cap_tools;
    struct str echo;  /* members of the response object that repeat the request */
    struct responses_items items; /* the conversation up to the answer, and that, for the store */
    /* how many stand before the answer, and where those of this request begin */
    size_t n_items, new_at;
    char base[33]; /* of the ids that items get */
    bool summary;     /* thoughts are shown as summaries, not as raw text */
    bool sealed;      /* thoughts carry encrypted_content */
    bool logprobs;
    bool timings; /* timings_per_token */
    struct openai_timer timer;
    const struct answer_info *info; /* once it has begun */

    char id[ANSWER_ID]; /* "" before the first function of the dialect was called */
    struct str model;
    int64_t created;
    bool stream, begun;
    bool accepted; /* the store has it, open */
    int64_t sequence; /* of the next event */
    struct str output; /* elements: the items that are done */
    size_t n_output;   /* and the number of the open one */
    enum responses_open open;
    struct str text;     /* of the open item */
    struct str logprob;  /* elements, of the open message */
    const struct responses_tool *called; /* of the open call; NULL: nobody knows it */
    struct str call_name, call_id;
    struct str input; /* of the open call of a free-form tool, as far as it is known */
    size_t input_at;  /* what of text was read for it; 0: nothing yet */
    size_t n_sent;    /* of input */
};

struct responses_reader {
    struct responses *state;
    struct responses_store *store;
    struct chat_request *r; /* NULL: items are looked at only */
    const struct answer_options *o;
    size_t i; /* the item's number in the input */
    struct convert convert;
    /* tools that are read came after the start and are listed here; NULL: they stand in front */
    struct str *shown;
    const struct report_sink *sink;
    struct fault *fault;
    bool answered; /* the item has been: nobody can send it otherwise */
    bool notes;    /* a note stands for media of the last turn, too */
    bool skip_odd; /* tools that nobody can call are left out: there are others */
    bool no_tools;             /* the request has none, not even such as are skipped */
    size_t n_calls, n_results; /* without an id so far */
    size_t n_references, reference_bytes; /* items that were referred to, and their texts */
};

/* Adds the items of an array to *out as the store keeps them, or a fault: a request with them would
 * be refused. */
void responses_check_items(struct json_object *items, struct responses_store *store,
                           const char *user, struct responses_items *out, struct fault *fault);
/* Reads a body.  *out is the state for the dialect and is written in any case but NULL when
 * memory runs out; *r is initialised.  store and sink may be NULL. */
void responses_read(struct json_object *body, const struct answer_options *o,
                    struct responses_store *store, const char *user, const struct report_sink *sink,
                    struct chat_request *r, struct responses **out, struct fault *fault);
/* The same for /responses/compact: the conversation, and the task to summarise it. */
void responses_read_compact(struct json_object *body, const struct answer_options *o,
                            struct responses_store *store, const char *user,
                            const struct report_sink *sink, struct chat_request *r,
                            struct responses **out, struct fault *fault);
void responses_free(struct responses *s);
/* The end of a body for responses_read_compact(), whose fields are read. */
void responses_request_compaction(struct responses_reader *d, struct json_object *body,
                                  struct chat_request *r);
/* Appends what an item of type compaction says; false: it is not ours. */
bool responses_open_compaction(struct json_object *item, struct str *out);
void responses_put_usage(struct str *out, const struct answer_result *r);

/* Adds the tools of a list, "tools" of a request or of an item. */
void responses_read_tools(struct responses_reader *d, struct json_object *tools,
                                 const char *where);
/* tools: those of the request, which may be skipped ones. */
void responses_read_choice(struct responses_reader *d, struct json_object *choice,
                           struct json_object *tools, struct chat_request *r);
/* Appends the name by which the model calls a tool. */
void responses_flat(struct view space, struct view name, struct str *out);
/* A tool was called by that name; NULL: there is none. */
const struct responses_tool *responses_find(const struct responses *s,
                                                          struct view flat);

extern const struct dialect responses_dialect, responses_compact_dialect;

#endif
