/*
 * streams - streamed answers that outlive their connection: a client that gave its conversation a
 * name (X-Conversation-Id) listens again from where it was, or stops the answer by that name.
 *
 * A name belongs to the user of an API key.  There is one stream to a name, the last one; of more
 * names than there is room for the oldest is forgotten, and its answer goes on for whoever listens.
 */
#ifndef INGLE_SERVER_STREAMS_H
#define INGLE_SERVER_STREAMS_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>

struct streams;
struct tape;

enum { STREAMS_MAX_NAME = 512 }; /* bytes; requests with longer ones make ordinary streams */

struct streams_options {
    size_t n;                 /* names at most */
    size_t n_bytes;           /* of a stream that are kept */
    size_t unread;            /* of them that may be on their way to a slow client */
    double keepalive_seconds; /* of silence until a listener gets a comment */
};
MUST_CHECK ingle_status streams_open(struct streams **out, const struct streams_options *o,
                                     struct err *err);
/* After the HTTP server and the answers.  NULL is fine. */
void streams_close(struct streams *s);
/* Ten times a second, on the I/O thread.  NULL is fine. */
void streams_tick(struct streams *s);

/* A new stream without a name yet; the caller owns the reference.  NULL: no memory. */
struct tape *streams_create(struct streams *s);
/* Gives it the name; what had it before is cancelled.  False: no memory. */
bool streams_add(struct streams *s, const char *user, const char *name, struct tape *t);
/* A reference, or NULL. */
struct tape *streams_find(struct streams *s, const char *user, const char *name);
/* Cancels and forgets it, if it is there. */
void streams_remove(struct streams *s, const char *user, const char *name);

#endif
