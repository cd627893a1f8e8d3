/*
 * thought - seals of the model's thoughts.
 *
 * Clients hand thoughts back so that the model can go on from them.  A seal is a token that
 * goes out with a thought, and either only proves that the text is ours and unchanged, or
 * carries the text, for clients that do not see it.  The key is no secret: a client that
 * forges a thought fools its own model alone; and it does not change with the process, so a
 * conversation survives a restart.
 */
#ifndef INGLE_SERVER_THOUGHT_H
#define INGLE_SERVER_THOUGHT_H

#include "server/convert.h"

/* Appends a seal; carry: with the text inside. */
void thought_seal(struct str *out, struct view text, bool carry);

enum thought {
    THOUGHT_OURS,
    THOUGHT_ALTERED, /* our seal, another text */
    THOUGHT_FOREIGN  /* not our seal */
};
enum thought thought_check(struct view seal, struct view text);
/* Appends the text that a seal carries; false if there is none, or it was altered. */
bool thought_open(struct view seal, struct str *out);

#endif
