/*
 * params - what a request may say that is one value: the table params.inc.
 *
 * A form is an object whose members the table has: the body of a dialect, or an object in it.
 */
#ifndef INGLE_SERVER_PARAMS_H
#define INGLE_SERVER_PARAMS_H

#include "server/request.h"

enum params_form {
    PARAMS_CHAT = 1,     /* /chat/completions */
    PARAMS_TEXT = 2,     /* /v1/completions */
    PARAMS_NATIVE = 4,   /* /completion */
    PARAMS_OLLAMA = 8,   /* options of /api/chat and /api/generate */
    PARAMS_MESSAGES = 16,
    PARAMS_RESPONSES = 32,
    PARAMS_DAEMON = 64,  /* the command generate of ingle daemon */
    PARAMS_SPECULATIVE = 128,   /* speculative, an object of all of them */
    PARAMS_STREAM_OPTIONS = 256 /* stream_options */
};
/* The members of the form into *r; what the form cannot have is refused. */
void params_read(struct chat_request *r, struct json_object *o, enum params_form form,
                 struct fault *f);
/* A number above `most` is refused. */
void params_refuse_above(struct json_object *o, const char *name, int64_t most, const char *why,
                         struct fault *f);
/* Members of generation_settings: those before the biases, or those after. */
void params_write(const struct chat_request *r, bool after, struct str *out);
/* The names of a form, i from 0 on; NULL: there are no more. */
const char *params_name(enum params_form form, size_t i);

#endif
