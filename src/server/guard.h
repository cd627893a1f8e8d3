/*
 * guard - requests that bring the server down are not tried a third time.
 *
 * A small file holds a hash of every request that is being computed, and how often a process
 * died with it inside.  It is mapped, so that it says the truth also after a crash, and read
 * at the next start.  A request with two crashes is refused for an hour, to the user who sent it.
 */
#ifndef INGLE_SERVER_GUARD_H
#define INGLE_SERVER_GUARD_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct guard;

/* The file DIRECTORY/requests is made if it is not there; a damaged one starts anew.  INGLE_LIMIT:
 * another server uses it.  INGLE_ARG: others may write to the directory.  INGLE_IO: the disk is
 * full, or does not do it. */
MUST_CHECK ingle_status guard_open(struct guard **out, const char *directory, struct err *err);
/* What still runs counts as finished: this is no crash. */
void guard_close(struct guard *g);

/* A request begins: its number for guard_leave(), -1 if there is no place for it (it then runs
 * unguarded), or -2: it was there twice when the server died. */
int guard_enter(struct guard *g, const char *user, const char *path, const void *bytes, size_t n);
/* One guard_leave() more is needed before it is over: its answer goes on without its client. */
void guard_again(struct guard *g, int number);
/* g NULL, number below 0: nothing. */
void guard_leave(struct guard *g, int number);
/* The server stops on purpose: however it ends, that is no crash. */
void guard_pardon(struct guard *g);

#endif
