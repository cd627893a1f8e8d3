/*
 * guard - requests that bring the server down are not tried a third time.
 *
 * A small file holds a hash of every request that is being computed, and how often a process
 * died with it inside.  It is mapped, so that it says the truth also after a crash, and read
 * at the next start.  A request with two crashes is refused.
 */
#ifndef INGLE_SERVER_GUARD_H
#define INGLE_SERVER_GUARD_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct guard;

/* The file DIRECTORY/requests is made if it is not there; a damaged one starts anew.
 * INGLE_LIMIT: another server uses it. */
MUST_CHECK ingle_status guard_open(struct guard **out, const char *directory, struct err *err);
/* What still runs counts as finished: this is no crash. */
void guard_close(struct guard *g);

/* A request begins: its number for guard_leave(), -1 if there is no place for it (it then runs
 * unguarded), or -2: it was there twice when the server died.  One thread at a time. */
int guard_enter(struct guard *g, const void *bytes, size_t n);
void guard_leave(struct guard *g, int number);
/* The server stops on purpose: however it ends, that is no crash. */
void guard_pardon(struct guard *g);

#endif
