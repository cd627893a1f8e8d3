/*
 * slots - conversations that outlive the server, as llama-server's clients ask for it.
 *
 * A slot is a number that requests give (id_slot; 0 without one); each user has a row of its own.
 * It remembers the tokens of the last prompt with that number and of its answer; what was computed
 * of them is in the prefix cache like everything else.  Saving writes that to a file of the
 * directory --slot-save-path, restoring puts it back into the cache.  Files of one user are not
 * seen by others.
 *
 * Where the chat's format has later turns differ before the answer (an empty thought, say), they
 * cannot be taken up from its end, and windows do not reach back: then what they begin with is
 * saved as well, in a second file whose name has a dot in front.
 *
 * A file is written and read by a thread of its own, one at a time; meanwhile no steps are made.
 */
#ifndef INGLE_SERVER_SLOTS_H
#define INGLE_SERVER_SLOTS_H

#include "base/err.h"
#include <stdint.h>

enum { SLOTS_MAX = 256 };

struct ingle_way;
struct slots;
struct answer_tokens;
struct serve;
struct http_exchange;
struct http_request;

/* directory must be there; n_slots: how many numbers there are. */
MUST_CHECK ingle_status slots_open(struct slots **out, const char *directory, int n_slots,
                                   struct err *err);
/* Waits for what is under way; before the scheduler is closed. */
void slots_close(struct slots *s);
/* Slot id holds these tokens from now on; user may be NULL.  Any thread. */
void slots_keep(struct slots *s, int id, const char *user, const struct ingle_way *way,
                const struct answer_tokens *t);
/* POST /slots/{id}?action=... */
void slots_answer(struct slots *s, struct serve *v, struct http_exchange *x,
                  const struct http_request *rq);

#endif
