/*
 * convert - builds a conversation in the form of OpenAI chat completions from the items of
 * another dialect.
 *
 * Items come in order.  What one side says in a row becomes one message: text of the user
 * is joined by empty lines; thought, text and calls of the assistant share a message until
 * somebody else speaks.  Results of tools follow the message with their calls; a result
 * that nothing asked for becomes text of the user, a call that nobody answered gets a
 * result that says so, because templates show neither.  System text before the first turn
 * is one message in front; what comes later is a marked paragraph of the user, because models
 * have learnt system turns at the start alone.
 *
 * Tools stand at the start of a prompt.  One that comes later in a conversation would make
 * everything after the start new with each search for tools: it is described where it comes.
 */
#ifndef INGLE_SERVER_CONVERT_H
#define INGLE_SERVER_CONVERT_H

#include "base/err.h"
#include "server/view.h"
#include <stdbool.h>

struct convert {
    struct str messages, tools, late; /* elements of arrays, until convert_end() */
    struct str system, user, thought, text, calls;
    bool has_system, has_user, has_assistant;
    /* convert_developer() makes turns of their own; set by the caller, before the first */
    bool own_developer;
    bool by_developer;  /* who says what is in user */
    struct json_object *waiting; /* {id: null}: calls of the last assistant without a result */
    struct json_object *named;   /* {name: null}: the tools so far */
    size_t n_messages, n_tools, n_late;
    bool failed; /* out of memory */
};
void convert_init(struct convert *c);
void convert_release(struct convert *c);

/* Somebody has spoken: system text and tools that come now stand where they come. */
bool convert_begun(const struct convert *c);
void convert_system(struct convert *c, struct view t);
/* A turn of its own, or as convert_system(). */
void convert_developer(struct convert *c, struct view t);
void convert_user(struct convert *c, struct view t);
void convert_thought(struct convert *c, struct view t);
void convert_say(struct convert *c, struct view t);
/* The assistant's turn is open, even if it says nothing. */
void convert_assistant(struct convert *c);
/* arguments: an object, or its JSON text as a string; anything else becomes the member
 * "arguments" of one. */
void convert_call(struct convert *c, struct view id, struct view name,
                         struct json_object *arguments);
/* Appends the object: templates need one; models do write broken calls, tokens run out inside of
 * one, and clients replay them. */
void convert_arguments(struct str *s, struct json_object *arguments);
void convert_result(struct convert *c, struct view id, struct view t);
/* parameters: a JSON schema, or NULL. */
void convert_tool(struct convert *c, struct view name,
                         struct view description, struct json_object *parameters);
/* A tool that can be called but is not shown in front; the second of a name counts once.  shown may
 * be NULL, else what the model must read to know the tool is appended to it. */
void convert_late_tool(struct convert *c, struct view name, struct view description,
                       struct json_object *parameters, struct str *shown);
/* Closes the arrays: c->messages is one, c->tools and c->late are, or empty without tools. */
MUST_CHECK ingle_status convert_end(struct convert *c, struct err *err);
/* Moves the arrays into the caller's strings, which must have been initialised. */
void convert_give(struct convert *c, struct str *messages, struct str *tools, struct str *late);

#endif
