/*
 * replica - the name of this server among others of a fleet (--replica), at the end of the ids of
 * what only its memory has: "resp_0123...ef.NAME".
 */
#ifndef INGLE_SERVER_REPLICA_H
#define INGLE_SERVER_REPLICA_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>

enum { REPLICA_NAME = 32, REPLICA_WORDS = 112 };

/* INGLE_ARG: it is none: 1 to 32 letters, digits and '-'. */
MUST_CHECK ingle_status replica_check(const char *name, struct err *err);
/* Says by a lock in the folder, as long as the process runs, that a server has this name.  Returns
 * its descriptor, -1: there can be none.  *taken: another one that uses the folder has the name. */
int replica_claim(const char *folder, const char *name, bool *taken);
/* Whether the id [n] is of another replica than own (NULL: this one has no name); *words: ": it is
 * of replica 'b', and this is 'a'". */
bool replica_is_foreign(const char *own, const char *id, size_t n, char words[REPLICA_WORDS]);

#endif
