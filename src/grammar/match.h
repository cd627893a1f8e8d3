/*
 * grammar_match - where an answer stands in its grammar.
 *
 * A state is a set of items, each in front of a byte or token, and whether the text may end
 * here.  States and frames are kept once each and have numbers; the transitions between
 * states are found when they are first wanted.
 */
#ifndef INGLE_GRAMMAR_MATCH_H
#define INGLE_GRAMMAR_MATCH_H

#include "grammar/impl.h"
#include "grammar/vocab.h"

#define MATCH_UNKNOWN UINT32_MAX
enum {
    MATCH_DEAD = 0,    /* the state without items, at which nothing ends */
    MATCH_BOTTOM = 1,  /* frames 0 and 1 are no invocations: there the whole ends.  1 stands for */
    MATCH_HALF = GRAMMAR_MAX_DEPTH / 2 /* frames that were cut off, as if so many */
};

/* count may also be one of two that stand for many, in states that only masks use: FAR, below
 * the rule's min for as long as a token is; NEAR + k, which reaches min after k more, and never
 * max. */
#define MATCH_FAR  0x80000000u
#define MATCH_NEAR 0x40000000u
struct match_item {
    uint32_t node, count, frame;
};

/* Where an invocation's caller goes on. */
struct match_frame {
    struct match_item next; /* next.frame: the caller's own frame */
    uint32_t depth;
    uint32_t after; /* state after the end of the invocation, or MATCH_UNKNOWN */
};

struct match_state {
    uint32_t first, n; /* items */
    uint32_t hash;
    uint32_t groups; /* of bytes that lead back here; valid if known */
    uint32_t plain;  /* the state that masks are known by, or MATCH_UNKNOWN */
    uint16_t visits;
    bool may_end, known;
};

struct match_table {
    uint32_t *slot; /* number + 1; 0: empty */
    size_t n_slots, n;
};

/* Tokens that may follow a state whose frames end at 0, and the places of a trie after
 * which that end is reached. */
struct match_mask {
    uint32_t state, trie; /* state MATCH_DEAD: empty; trie GRAMMAR_N_TRIES: of the whole */
    uint64_t used;
    uint64_t *bit; /* [n_words] */
    uint32_t *pop;
    size_t n_pops, cap_pops;
    uint64_t walk;      /* not 0: incomplete; the matcher's number of the walk that makes it, ... */
    uint32_t at, depth; /* ... and where that goes on */
};

enum { MATCH_N_MASKS = 96 };

struct grammar_matcher {
    const struct grammar *g;
    const struct grammar_vocab *v;
    /* of its tables' hashes: who writes the grammar does not know what collides */
    uint64_t secret[4];
    uint32_t state;
    bool ended; /* an end of the answer was accepted */
    bool stuck; /* no token goes on */

    struct match_item *item;
    struct match_state *states;
    struct match_frame *frame;
    uint32_t *trans; /* [n_states][n_classes] */
    size_t n_items, n_states, n_frames, cap_items, cap_states, cap_frames, cap_trans;
    struct match_table state_table, frame_table;

    struct match_item *todo, *done; /* of a closure: what waits, what was seen */
    size_t n_todo, n_done, cap_todo, cap_done;
    struct match_table done_table;
    uint64_t n_steps, check_at; /* of the call at hand; when limits are looked at next */
    uint64_t spent;         /* steps of earlier calls at this place in the answer */
    const struct grammar_pause *pause;
    bool fresh;    /* the tables have nothing but what belongs to this place */
    bool too_deep; /* a call was left out at GRAMMAR_MAX_DEPTH */

    uint32_t *stack_end, *stack_state; /* of a walk, which has a number */
    uint64_t n_walks;
    struct match_mask mask[MATCH_N_MASKS];
    uint64_t clock;
    uint64_t *out; /* [n_words] */

    ingle_status status; /* of the call at hand */
    struct err *err;
};

/* All return MATCH_DEAD after a failure (m->status). */
uint32_t grammar_match_start(struct grammar_matcher *m);
uint32_t grammar_match_step(struct grammar_matcher *m, uint32_t state, uint8_t byte);
uint32_t grammar_match_token(struct grammar_matcher *m, uint32_t state, int32_t token);
/* The state after the end of frame's invocation. */
uint32_t grammar_match_after(struct grammar_matcher *m, uint32_t frame);
/* The groups of bytes after which the state is the same again. */
uint32_t grammar_match_groups(struct grammar_matcher *m, uint32_t state);
/* A frame that all items of a state go through, at a depth of less than MATCH_HALF; 0: none. */
uint32_t grammar_match_common(struct grammar_matcher *m, uint32_t state);
/* The state without frame `base` and what is after it (0: nothing is cut off); counters that are
 * more than n_bytes away from their limits are alike. */
uint32_t grammar_match_plain(struct grammar_matcher *m, uint32_t state, uint32_t base,
                             uint32_t n_bytes);
/* Starts the tables anew with nothing but the present state. */
void grammar_match_trim(struct grammar_matcher *m);

/* Steps are done: limits are looked at, and whether to pause, every few thousand of them. */
void grammar_match_check(struct grammar_matcher *m);
static inline void grammar_match_count(struct grammar_matcher *m, uint64_t n)
{
    m->n_steps += n;
    if (m->n_steps >= m->check_at)
        grammar_match_check(m);
}
bool grammar_match_large(const struct grammar_matcher *m);

bool grammar_match_fail(struct grammar_matcher *m, ingle_status st, const char *what);

#endif
