/* inner - the engine's side: what remote.c and trip.c share; for this room only. */
#ifndef INGLE_STAGE_INNER_H
#define INGLE_STAGE_INNER_H

#include "stage/step.h"

#include <pthread.h>

enum { STAGE_TURN_MS = 50 };

/* How rows go from a stage to the next one. */
enum stage_hop {
    STAGE_HOP_NEW,   /* the stage does not know where the next one is */
    STAGE_HOP_ASKED, /* it dials */
    STAGE_HOP_UP,    /* directly */
    STAGE_HOP_STAR   /* through the engine */
};

enum stage_state { STAGE_AWAY, STAGE_SAID, STAGE_READY, STAGE_REFUSED };

struct stage {
    struct stage_remote *r;
    const char *address; /* owned by the remote */
    struct link *link;
    enum stage_state state;
    bool up;             /* there is a connection */
    bool known;          /* hello is the stage's */
    bool had;            /* it was there since it was lost */
    bool to_load, loading; /* it is asked to load layers; it does */
    bool assign;         /* it is to be asked */
    struct stage_hello hello;
    uint64_t said_ns;
    uint64_t longest;    /* bytes of a message that it may send */
    double unit_ns;      /* of a step with one row, about; of a row more */
    double step_ns;
    uint64_t answered_ns, answered_tag; /* its last answer, to this question */
    uint64_t bad_ns;     /* a row that is no number was its fault, the last time */
    struct err why;
    int64_t border;      /* floats of a row that it gives */
    enum stage_hop hop;  /* to the next one */
    bool hop_reported;   /* a report says that it is STAR */
    int hop_breaks;      /* it broke so often, ... */
    uint64_t hop_ns;     /* ... the last time then */
    uint64_t asked, asked_ns; /* where the next one is was said in that JOIN, and when */
    uint64_t unheard_bytes; /* of PAGES, since steps were under way */
    /* prefixes that its store has, ascending; owned */
    struct kv_key *key;
    size_t n_keys, cap_keys;
    struct kv_key context; /* of the keys */
    bool listed;           /* it has said which since it was joined */
    uint64_t joined_ns;
    /* what happened to pages and is not said yet; owned */
    uint8_t *ops;
    size_t n_ops, cap_ops;
    struct stage_remote_counts n;
};

struct stage_remote {
    struct stage_remote_options o;
    struct stage_hello hello; /* this engine's */
    char *text;               /* owned: the addresses */
    struct stage stage[STAGE_MOST];
    int n;
    int64_t end[STAGE_MOST + 1]; /* where the layers of each process end */
    int64_t n_ctx;            /* that open stages are asked for; 0: as many as fit */
    bool assigned;            /* their layers were sent to them */
    bool started;             /* there are pages and steps */
    const struct kv_spec *spec;
    const struct family *fam;
    const void *self;
    pthread_mutex_t lock;     /* Sync: guards all of this but the atomics */
    struct stage_pages pages;
    const struct stage *late; /* the last loss was that this one was late, ... */
    atomic_int n_late;         /* Sync: atomic; ... as were so many before it, in a row */
    atomic_bool lost;         /* Sync: atomic */
    atomic_uint_fast64_t losses; /* Sync: atomic; so often was anything lost */
    struct stage_trip *trip;  /* steps that are under way, the last one first */
    struct stage_trip *spare; /* owned: those that later steps use */
    struct stage_keep *keep;  /* owned: what goes to files at stages, or comes from there */
    uint64_t tag, marks;
    bool shared;              /* of the thread of the steps: others wait beside the next one */
    uint64_t careful_ns;      /* steps are waited for until then */
    uint64_t number;          /* of the JOINs that all have had */
};

/* All with the lock held. */
void stage_lose(struct stage *s, const char *why);
/* Everything that stages hold is lost. */
void stage_set_lost(struct stage_remote *r);
void stage_dial_again(struct stage *s);
/* What was not said of pages yet; a message.  false: it takes no more. */
bool stage_flush_pages(struct stage *s);
/* An answer of n bytes is asked for. */
void stage_await(struct stage *s, uint64_t n);
bool stage_send(struct stage *s, const struct link_head *h, struct link_out *m);
/* Waits for one message at most.  True: an answer is in *in. */
bool stage_look(struct stage *s, int timeout_ms, struct link_in *in, struct link_head *h);
/* Whether it is late with what it was given at since_ns. */
bool stage_is_late(struct stage *s, uint64_t since_ns, int64_t n_rows);

/* What has come from any stage, or comes within so many ms. */
void stage_look_at_all(struct stage_remote *r, int timeout_ms);

/* far.c: what a stage says of its store; whatever it does there is lost (and known no more); all
 * of it is over; the engine waits for those that have not said anything. */
void stage_keep_receive(struct stage *s, const struct link_in *in, const struct link_head *h);
void stage_keep_lose(struct stage *s);
void stage_keep_end(struct stage_remote *r);
bool stage_keep_waits(const struct stage_remote *r);

/* trip.c: an answer that belongs to a step, if there is still one; in is released. */
void stage_trip_take(struct stage *s, struct link_in *in, const struct link_head *h);
/* n of them, with the memory of steps that draw a token each, before the first step. */
MUST_CHECK ingle_status stage_trips_open(struct stage_remote *r, int n, struct err *err);
void stage_trips_close(struct stage_remote *r);
/* Steps that nobody waits for are no more: what they have computed is dropped. */
void stage_trips_drop(struct stage_remote *r);
/* Some piece is at a stage. */
bool stage_trip_flies(const struct stage_remote *r);
/* A stage that has one is late, or is not there. */
void stage_trip_check(struct stage_remote *r);

#endif
