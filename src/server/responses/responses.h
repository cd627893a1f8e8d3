/*
 * responses - OpenAI's Responses: /v1/responses as Codex and the openai package speak it.
 *
 * responses_read.c turns the items of a request into a chat_request, responses_tools.c its
 * tools; responses_write.c is the dialect that turns an answer into items and events again.
 * Answers are kept in a bounded store in memory (responses_store.c), where
 * previous_response_id and item_reference find them.
 */
#ifndef INGLE_SERVER_RESPONSES_RESPONSES_H
#define INGLE_SERVER_RESPONSES_RESPONSES_H

#include "base/report.h"
#include "server/convert.h"
#include "server/dialect.h"
#include "server/openai/openai.h"
#include "server/tape.h"

struct http_request;

/* ---- store ---- */

/* Any thread may use a store. */
struct responses_store;
/* The oldest answers go when there are more than n_max (0: 1000), or n_bytes (0: 64 MiB). */
MUST_CHECK ingle_status responses_store_create(struct responses_store **out,
                                                      size_t n_max, size_t n_bytes,
                                                      struct err *err);
void responses_store_free(struct responses_store *s);
/* What is kept of an answer, or of a conversation under its own id. */
struct responses_kept {
    const struct str *items;  /* elements of a JSON array: the whole conversation up to the answer */
    size_t n_input;           /* of them those before the answer */
    const struct str *object; /* as clients see it */
    struct tape *tape;        /* its stream, or NULL */
    bool open;                /* it is being computed, and stays until it is not */
};
/* user: who may see it.  An answer larger than the store is not kept. */
void responses_store_add(struct responses_store *s, const char *user, const char *id,
                         const struct responses_kept *k);
/* Changes items, object (NULL: as they are) and open of one that is open; false: there is none. */
bool responses_store_set(struct responses_store *s, const char *user, const char *id,
                         const struct responses_kept *k);
/* fn may change both texts; when it returns false, nothing is changed.  False: that, or there is nothing of
 * that user. */
bool responses_store_change(struct responses_store *s, const char *user, const char *id,
                            bool (*fn)(void *arg, struct str *items, struct str *object), void *arg);
/* ... with a fn that appends the elements in a struct str. */
bool responses_append(void *arg, struct str *items, struct str *object);
/* Appends to what is not NULL, and fills in the rest; tape is a reference. */
struct responses_found {
    struct str *items, *object;
    size_t n_input;
    bool open;
    struct tape *tape;
};
/* False when there is nothing of that user; *out is unchanged then. */
bool responses_store_get(struct responses_store *s, const char *user, const char *id,
                         struct responses_found *out);
void responses_store_count(struct responses_store *s, size_t *n, size_t *n_bytes);
/* What is being computed is cancelled. */
bool responses_store_delete(struct responses_store *s, const char *user, const char *id);
/* Appends the item of that id from the oldest answer that has it. */
bool responses_store_item(struct responses_store *s, const char *user,
                                 struct view id, struct str *out);

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

/* ---- items ---- */

/* Appends the item as the store keeps it: messages with their type, an id and a list of parts.
 * base and n make the id. */
void responses_keep_item(struct str *out, struct json_object *item, const char *base, size_t n);
void responses_random(char hex[33]);
/* Appends {"object":"list",...}, the page of a list of items that the query asks for: limit, order,
 * after (rq NULL: the first hundred).  items: elements; n: how many of them count. */
void responses_page(const struct http_request *rq, const struct str *items, size_t n,
                    struct str *out, struct fault *f);

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
    struct str items; /* elements: the conversation up to the answer, for the store */
    size_t n_items, new_at; /* how many, and where those of this request begin */
    char base[33]; /* of the ids that items get */
    bool summary;     /* thoughts are shown as summaries, not as raw text */
    bool sealed;      /* thoughts carry encrypted_content */
    bool logprobs;
    bool timings; /* timings_per_token */
    struct openai_timer timer;
    const struct answer_info *info; /* once it has begun */

    char id[33];      /* "" before the first function of the dialect was called */
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
    struct str input; /* of the open call of a free-form tool, as far as text tells it */
    size_t input_at;  /* what of text was read for it; 0: nothing yet */
    size_t n_told;    /* of input */
};

struct responses_reader {
    struct responses *state;
    struct responses_store *store;
    struct convert convert;
    struct str *shown; /* tools that are read are late ones and told here; NULL: they stand in front */
    const struct report_sink *sink;
    struct fault *fault;
    bool no_tools;             /* the request has none, not even such as are skipped */
    size_t n_calls, n_results; /* without an id so far */
    int depth;                 /* of references */
};

/* Appends the items of an array to *out as the store keeps them, or a fault: a request with them
 * would be refused. */
void responses_check_items(struct json_object *items, struct responses_store *store, const char *user,
                           struct str *out, struct fault *fault);
/* Reads a body.  *out is the state for the dialect and is written in any case but NULL when
 * memory runs out; *r is initialised.  store and sink may be NULL. */
void responses_read(struct json_object *body, struct responses_store *store,
                           const char *user, const struct report_sink *sink,
                           struct chat_request *r, struct responses **out,
                           struct fault *fault);
void responses_free(struct responses *s);

/* Adds the tools of a list, "tools" of a request or of an item. */
void responses_read_tools(struct responses_reader *d, struct json_object *tools,
                                 const char *where);
void responses_read_choice(struct responses_reader *d, struct json_object *choice,
                                  struct chat_request *r);
/* Appends the name by which the model calls a tool. */
void responses_flat(struct view space, struct view name, struct str *out);
/* A tool was called by that name; NULL: there is none. */
const struct responses_tool *responses_find(const struct responses *s,
                                                          struct view flat);

extern const struct dialect responses_dialect;

#endif
