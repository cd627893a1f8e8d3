/*
 * events - what prefixes this process can continue, published over ZeroMQ in the form of
 * vLLM's contract "KV Cache Events".
 *
 * A prefix is sent in blocks of LINK_BLOCK tokens, each named by a hash of all tokens up to its end
 * and of the salt.  Blocks of a medium are counted: a block is stored with the first prefix that
 * covers it and removed with the last one.  Every change is a batch with a number, from 0 on; the
 * first batch says that everything before it is dropped.
 *
 * Nobody waits for a subscriber.  Batches stand in a ring, which a thread of its own sends and
 * replays; what the ring has no room for is lost, and the numbers show the gap.  Any thread may
 * call; calls take a lock that is held for no system call.
 */
#ifndef INGLE_LINK_EVENTS_H
#define INGLE_LINK_EVENTS_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LINK_BLOCK = 16, LINK_EVENTS_BATCHES = 10000 };

enum link_medium { LINK_GPU, LINK_STORAGE, LINK_MEDIA };

struct link_events;
struct link_events_options {
    /* "tcp://HOST:PORT" or "HOST:PORT" (host "*": all addresses) or "ipc://PATH" to bind;
     * "connect:" before it: to connect */
    const char *address;
    const char *replay;  /* the same for replays, bound; NULL: there are none */
    const char *topic;   /* NULL: "" */
    bool array;          /* events are arrays, not maps */
    const char *kind;    /* kv_cache_spec_kind: "full_attention"; NULL: not sent */
    size_t n_batches;    /* 0: LINK_EVENTS_BATCHES */
    size_t n_bytes;      /* of batches that are kept; 0: 64 MiB */
};
/* INGLE_UNSUP: built without libzmq; INGLE_ARG: no such address; INGLE_IO: it is in use. */
MUST_CHECK ingle_status link_events_open(struct link_events **out,
                                         const struct link_events_options *o, struct err *err);
void link_events_close(struct link_events *e);

/* A prefix of n tokens can be continued; salt "": it is everybody's.  The name of its last whole
 * block, for link_events_drop(); 0: it has none, or there is no memory. */
/* media [n]: 0 where a token stands, else a hash of what does and its index, which names of blocks
 * have in them; NULL: there are only tokens. */
uint64_t link_events_put(struct link_events *e, enum link_medium medium, const char *salt,
                         const int32_t *tokens, const uint32_t *media, int64_t n);
/* It cannot any more; 0: nothing. */
void link_events_drop(struct link_events *e, enum link_medium medium, uint64_t name);

struct link_events_counts {
    uint64_t batches, stored, removed; /* blocks */
    uint64_t lost;                     /* batches that the ring gave up before they were sent */
    uint64_t replays;                  /* that were asked for */
    uint64_t blocks[LINK_MEDIA];       /* there now */
};
void link_events_count(struct link_events *e, struct link_events_counts *out);
/* "tcp://..." as bound, with the port that was found; valid until the end. */
const char *link_events_address(const struct link_events *e);
const char *link_events_topic(const struct link_events *e);
const char *link_events_replay(const struct link_events *e); /* NULL: there is none */

#endif
