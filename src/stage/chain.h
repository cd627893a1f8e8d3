/* chain - a stage's neighbours: rows that come from the one before, and go to the one after; for
 * this room only.
 *
 * The engine says where the next stage is (NEXT).  A stage dials it, says whose rows will come
 * (CHAIN), and reports to the engine when it is accepted, cannot be reached, or is closed; the
 * next one reports that, too.  All of it belongs to a JOIN of the engine, whose number NEXT and
 * CHAIN have: another JOIN ends it. */
#ifndef INGLE_STAGE_CHAIN_H
#define INGLE_STAGE_CHAIN_H

#include "stage/wire.h"

enum { STAGE_NEXT_UP = 1, STAGE_NEXT_BEFORE = 2 }; /* flags of a NEXT that a stage says */
enum { STAGE_CHAIN = 16 };  /* payload of a CHAIN: u64 engine, u32 layer, u32 width of its rows */
/* Rows that came before their turn, or wait for it. */
enum { STAGE_MOST_HELD = 64 };

struct stage_held { uint64_t tag; struct link_in in; };
struct stage_chain {
    const struct stage_serve_options *o; /* borrowed */
    /* the next one; link NULL: there is none */
    struct link *link;
    char address[300];
    uint64_t number; /* of the JOIN */
    uint64_t since_ns;
    bool up, reported; /* accepted; the engine knows that it cannot be reached */
    uint8_t hello[STAGE_CHAIN];
    /* the one before */
    struct link_peer before;
    bool has_before;
    struct stage_held held[STAGE_MOST_HELD];
    int n_held;
    size_t held_bytes;
    uint64_t last_tag; /* of the steps that were begun; rows of those need not come */
};

/* All of it is forgotten. */
void stage_chain_clear(struct stage_chain *c);
/* Dials; an address that is none, and whatever else hinders, is reported by stage_chain_look(). */
void stage_chain_aim(struct stage_chain *c, const uint8_t *address, size_t n, uint64_t number,
                     const uint8_t hello[STAGE_CHAIN]);
/* What has happened to the connection to the next one; true: the engine is to be notified. */
bool stage_chain_look(struct stage_chain *c, bool *up, char *why, size_t n_why);
/* Takes m.  False: it does not go. */
MUST_CHECK bool stage_chain_send(struct stage_chain *c, const struct link_head *h,
                                 struct link_out *m);
bool stage_chain_is_before(const struct stage_chain *c, const struct link_peer *p);
/* Takes rows; false: they are too many. */
MUST_CHECK bool stage_chain_hold(struct stage_chain *c, struct link_in *in, uint64_t tag);
/* The place of the rows of a step; -1: they are not here. */
int stage_chain_find(const struct stage_chain *c, uint64_t tag);
/* Those of this step and of the ones before it are not needed any more. */
void stage_chain_drop(struct stage_chain *c, uint64_t tag);

#endif
