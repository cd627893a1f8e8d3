/*
 * tape - the bytes of a stream that outlives its client.
 *
 * An answer that nobody need wait for writes its events to a tape.  Any number of clients
 * listen, each from the event that it wants, and get what comes as it comes; those that leave
 * cost the answer nothing, and those that read slowly wait for nobody but themselves.
 *
 * An event ends with an empty line.  A tape that has become too long forgets its first events.
 * All calls may come from any thread, with the locks of answers held.
 */
#ifndef INGLE_SERVER_TAPE_H
#define INGLE_SERVER_TAPE_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_exchange;
struct tapes;
struct tape;

/* n_bytes: that a tape holds; unread: bytes that a slow client may have before it;
 * keepalive_seconds: of silence until a listener gets a comment. */
MUST_CHECK ingle_status tape_open_all(struct tapes **out, size_t n_bytes, size_t unread,
                                   double keepalive_seconds, struct err *err);
/* After the HTTP server and the answers. */
void tape_close_all(struct tapes *s);
/* Ten times a second, on the I/O thread. */
void tape_tick(struct tapes *s);

/* With one reference; NULL: no memory.  keep: false: nobody will listen. */
struct tape *tape_create(struct tapes *s, bool keep);
struct tape *tape_ref(struct tape *t);
void tape_unref(struct tape *t); /* NULL is fine */

void tape_write(struct tape *t, const char *bytes, size_t n);
/* Nothing more comes. */
void tape_end(struct tape *t);
size_t tape_bytes(const struct tape *t);
bool tape_keeps(const struct tape *t);
/* Nobody wants it any more: for who writes it to see. */
void tape_cancel(struct tape *t);
bool tape_cancelled(const struct tape *t);

/* Answers x with the events from number `first` on (0 is the tape's first one).  Inside the
 * handler of x.  False: they are forgotten, or memory ran out, and x has not been answered. */
bool tape_listen(struct tape *t, struct http_exchange *x, int64_t first);
/* The same after the first n_bytes bytes; false as well: there are not so many yet. */
bool tape_listen_from(struct tape *t, struct http_exchange *x, int64_t n_bytes);

#endif
