/*
 * away - inside the room: workers, and what an evaluation has asked them for.
 */
#ifndef INGLE_EXPERT_AWAY_H
#define INGLE_EXPERT_AWAY_H

#include "expert/remote.h"
#include "expert/split.h"
#include <pthread.h>

/* CREDITS: EVALs that a worker has at a time.  LEAST_PAIRS: what one must take in an EVAL, so that
 * pieces are few. */
enum { CREDITS = LINK_SLOTS, LEAST_PAIRS = 64 };

enum worker_state { WORKER_DOWN, WORKER_CALLING, WORKER_GREETED, WORKER_READY, WORKER_REFUSED };

/* An EVAL of an evaluation: pairs of a worker's experts from one on, or all pairs of some rows. */
enum piece_state { PIECE_WAITS, PIECE_SENT, PIECE_DONE, PIECE_LOST };
struct piece {
    int32_t expert, pair; /* the first; pair: of pairs.row */
    int32_t row0, n_rows; /* of sums */
    int32_t n_pairs, n_used_rows;
    int64_t units;
    uint8_t worker, state;
};

/* What an evaluation that has workers keeps between begin and end; of the arena. */
struct expert_away {
    struct expert_remote *r;
    struct expert_eval *v;
    const struct remote_layer *layer;
    int8_t *owner;   /* [n] */
    uint8_t *skip;   /* [n] */
    int32_t *map;    /* [n_rows]: a row's place in an EVAL, or -1 */
    struct split_expert *expert; /* [n] */
    int32_t *order;  /* [n] */
    struct piece *piece; /* [n_pieces] */
    int n_pieces, cap_pieces, n_open; /* n_open: neither done nor lost */
    bool sums;       /* rows come back as sums */
    int64_t here_units, here_misses;
};

struct asked {
    struct expert_away *away; /* NULL: nobody wants it any more */
    int piece;
    bool was_idle;            /* nothing else was on its way */
    bool waited;              /* somebody looked before it came */
    int slot;                 /* of shared memory, with LINK_SHARED in the head */
    uint64_t tag, sent_ns;
    struct link_head head;
};

struct worker {
    struct expert_remote *r;
    char address[256];
    struct link *link;
    enum worker_state state;
    uint64_t since_ns, retry_ns, lost_ns[3];
    bool reported;           /* that it cannot be reached */
    struct link_hello hello; /* its */
    struct link_shape shape;
    struct asked asked[CREDITS];
    int n_asked;
    struct { double unit_ns, trip_ns; } mean[SPLIT_SIZES];
    double miss_ns;
    uint64_t idle;           /* evaluations in which it had nothing */
    uint64_t n_missed;       /* its misses so far */
    struct link_share share; /* memory that it may have, too */
    bool shares;             /* it has */
    /* bits: what was in its memory when it last said so; link_have_bytes() */
    uint8_t *have;
    /* when its counters were requested, and when it was sent what to keep */
    uint64_t asked_ns, placed_ns, placed_step;
    /* [layers with experts * n_experts]: 1 + n_missed when it last computed the expert */
    uint64_t *missed_at;
    struct expert_worker_counts n, shown; /* Sync: shown: expert_remote.lock */
};

struct remote_layer {
    struct expert_remote *r;
    struct model_experts *home;
    size_t index;
};

struct expert_remote {
    struct expert_remote_options o;
    struct link_hello hello;
    struct model *model;
    size_t n_layers;
    struct remote_layer *layer; /* [n_layers] */
    int n_workers;
    struct worker worker[EXPERT_WORKERS];
    uint64_t tag, step, checked_ns, shake;
    size_t last_layer;
    uint32_t *uses;      /* [n_layers * n_experts]: rows that chose it; halved with each PLACE */
    struct placing { uint32_t uses, what; } *placing; /* [n_layers * n_experts] */
    double here_ns[SPLIT_SIZES], here_miss_ns;
    uint64_t here_idle, here_experts, here_shown; /* Sync: here_shown: lock */
    pthread_mutex_t lock;
};

/* calls.c: who is there. */
void expert_worker_poll(struct worker *w, uint64_t now);
/* It is no longer read from; what was requested of it is lost. */
void expert_worker_lose(struct worker *w, const char *why);
/* Takes in what it has sent; waits at most timeout_ms for it.  False: there was nothing. */
bool expert_worker_receive(struct worker *w, int timeout_ms);
/* remote.c: a RESULT or FAIL for a piece. */
void expert_worker_answer(struct worker *w, const struct link_head *h, const uint8_t *payload,
                          size_t n);
void expert_worker_show(struct worker *w);
/* place.c: between steps: asks for counters, and says which experts should be there. */
void expert_worker_send_stats(struct worker *w, uint64_t now);
/* Its counters, and what it has. */
void expert_worker_said(struct worker *w, const struct link_head *h, const uint8_t *payload,
                        size_t n);
/* What it was requested with this tag is not wanted. */
void expert_worker_cancel(struct worker *w, uint64_t tag);
/* Of one on this host: memory for rows is offered. */
void expert_worker_share(struct worker *w);

#endif
