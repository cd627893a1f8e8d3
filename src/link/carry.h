/*
 * carry - an end and its connections: what block.c, conn.c and carry.c share.
 *
 * On the wire there are a preamble (seal.c), then frames: 8 bytes (three letters, a kind, a
 * length), and of a message LINK_HEAD bytes and the payload.  A frame has one part, and its length
 * is compared with what this peer may send before memory is taken: until link_admit() that is
 * little.  What waits for the owner of an end, and what is half here, have bounds together; a peer
 * that is ahead of them is not read.
 */
#ifndef INGLE_LINK_CARRY_H
#define INGLE_LINK_CARRY_H

#include "link/inner.h"

#include <assert.h>
#include <pthread.h>
#include <stddef.h>

enum {
    LINK_WATER = 4,    /* messages of a peer that wait, each way */
    LINK_PEERS = 64,   /* connections of a listening end */
    LINK_SHORT = 4096, /* staged at once without encryption */
    LINK_WIRE_HEAD = 8,
    LINK_RETRY_MS = 100,
};

/* A message, or what happened. */
struct block {
    struct block *next;
    struct depot *home; /* where it goes back to; NULL: it is freed */
    size_t cap;         /* bytes of payload that it has room for */
    enum link_event what;
    uint64_t peer;
    const char *why;
    size_t n; /* of the payload */
    ATTR_ALIGNED(16) uint8_t head[LINK_HEAD]; /* and payload: one run of bytes */
    uint8_t payload[];
};
static_assert(offsetof(struct block, payload) == offsetof(struct block, head) + LINK_HEAD,
              "head and payload are one run");

enum stage { CONNECTS, SAYS_HELLO, OPEN };

struct conn {
    uint64_t id, began, received, said, message_began;
    uint64_t most; /* bytes of a payload that it may send */
    int fd;
    enum stage stage;
    bool up, admitted;
    const char *broken; /* why it is to end */
    uint8_t own_key[32], own[LINK_PREAMBLE], theirs[LINK_PREAMBLE];
    struct link_seal *seal; /* [2]: in, out; NULL without a key */
    /* in */
    uint8_t *in, small[LINK_WIRE_HEAD + LINK_TAG];
    uint8_t *to;            /* where the next bytes go: have of want */
    /* at: of head and payload; held: a payload for which there is no room yet */
    size_t have, want, n_piece, at, held;
    struct block *block;
    size_t n_in;            /* messages that wait for the owner */
    size_t strange;         /* bytes that came before it was admitted */
    /* out */
    uint8_t *out;           /* staged: [out_at, out_n) is to be sent */
    /* sent: of the first block's head and payload, staged or sent; SIZE_MAX: not begun */
    size_t out_at, out_n, sent;
    struct block *first, *last, *down;
    size_t n_out;
    bool ping;
};

struct link {
    struct link_address address;
    struct link_options o;
    char name[300];
    bool listens, keyed, made_path;
    uint8_t secret[LINK_SECRET];
    struct link_crypto *crypto; /* owned; NULL without a key */
    struct depot *depot;
    int wake, news; /* eventfds: of the thread; of the owner: something waits */
    pthread_t thread;
    bool runs;
    uint64_t beat, dead;
    pthread_mutex_t lock;
    /* Sync: the rest under the lock.  Connections are ended by the thread alone. */
    int fd; /* that listens */
    struct conn *conn[LINK_PEERS];
    int n_conns;
    uint64_t last_id, in_bytes; /* payloads that wait or are half here */
    struct block *first, *last; /* for the owner */
    unsigned attempt;
    const char *trouble; /* why there is no connection; or NULL */
    uint64_t dial_at, retry, accept_at, stop_by;
    bool stop;
};

/* ---- block.c ---- */

struct depot *link_depot_create(void);
/* It ends with the last of its blocks. */
void link_depot_close(struct depot *d);
/* d NULL: it is not used again.  NULL: there is no memory, or it is too large. */
struct block *link_block_new(struct depot *d, enum link_event what, uint64_t peer, size_t n);
void link_block_free(struct block *b);
void link_blocks_drop(struct block *first); /* all that follow, too */

/* ---- conn.c: all with the end's lock held ---- */

void link_conn_greet(struct conn *c);
/* What comes next is the other end's preamble. */
void link_conn_expect(struct conn *c);
bool link_conn_is_read(const struct conn *c);
void link_conn_read(struct link *l, struct conn *c);
/* Memory for a message of n bytes, if there is room; else it waits, unread. */
void link_conn_begin(struct link *l, struct conn *c, size_t n);
bool link_conn_wants_out(const struct conn *c);
void link_conn_flush(struct conn *c);

/* ---- carry.c ---- */

/* For the owner.  The lock is held. */
void link_notify(struct link *l, struct block *b);

#endif
