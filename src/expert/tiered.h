/*
 * tiered - inside the room: what a store has, for the tier that computes over it.
 */
#ifndef INGLE_EXPERT_TIERED_H
#define INGLE_EXPERT_TIERED_H

#include "base/file.h"
#include "expert/early.h"
#include "expert/expert.h"
#include "expert/fetch.h"
#include "expert/policy.h"
#include "expert/store.h"
#include <pthread.h>
#include <stdio.h>

enum { STORE_CLASSES = 16, STORE_GUESSES = 4 };
enum store_state { SLOT_FREE, SLOT_READING, SLOT_READY, SLOT_GIVEN };

/* Experts of one size.  Their indices run over the layers of the class. */
struct store_class {
    uint64_t bytes;
    int64_t n_experts;
    int n_slots, n_stage; /* n_stage: not for residents */
    int first_slot, free; /* free: head of a list; -1 */
    int n_staged;
    int n_lost;           /* slots whose read does not end */
    int n_given, n_to_give; /* slots without memory; how many there should be */
    uint8_t *memory;      /* [n_slots][bytes] */
    uint16_t *pins;       /* [n_experts]: evaluations that need it */
    int32_t *slot_of;     /* [n_experts]: or -1 */
    /* The device's own memory; own.c.  n_own 0: it has none for them. */
    int n_own, n_own_in;  /* slots; experts in them */
    int n_better;         /* steps in which one of the host's memory was worth more */
    uint8_t *own;         /* [n_own][bytes]: an address of the device */
    int64_t *own_who;     /* [n_own]: expert; -1 */
    int32_t *own_of;      /* [n_experts]: or -1; NULL */
    struct expert_policy *policy;
};

struct store_slot {
    uint8_t *at;
    struct store_class *class;
    int64_t expert;  /* of the class; -1 */
    int next;
    uint8_t state;
    bool staged;     /* its expert is not resident */
    bool early;      /* read before anybody asked */
    bool lost;       /* its read does not end */
    bool joined;     /* a step wants it whose demand is younger than its read */
    /* of the evaluations that count on it, that of the outermost one; STORE_NO_OWNER */
    uint8_t depth;
};
enum { STORE_NO_OWNER = 255 };

struct store_layer {
    struct expert_store *store;
    struct model_experts *home;
    struct store_class *class;
    int64_t first;   /* of its experts in the class */
    int64_t seen_at; /* of its experts in store.seen */
    size_t index;    /* of model_experts_at() */
    int64_t bad_expert; /* whose read failed last, ... */
    char why[160];      /* ... and why */
    int32_t guess[STORE_GUESSES]; /* the best of the last guess that were not in memory */
    int n_guess;
    struct expert_layer_counts n, shown; /* Sync: shown: store.lock */
};

struct expert_store {
    struct expert_store_options o;
    struct model *model;
    struct fetch *fetch;
    const char *path; /* of the file that is read */
    struct store_memory *memory; /* of all slots; store.c */
    bool packed;
    size_t n_layers;
    struct store_layer *layer;
    int n_classes, n_slots;
    int64_t n_experts;
    struct store_class class[STORE_CLASSES];
    struct store_slot *slot;
    /* [n_experts]: the state of the file in which it was right (fetch.h); 0: it was not read */
    uint32_t *seen;
    float *uses;       /* [n_experts]: rows that used it */
    float *rate;       /* [n_experts]: uses a step in earlier runs; of the profile */
    uint64_t saved_ns; /* when the profile was written */
    uint8_t *bad;      /* [n_experts]: its last read failed */
    double t;          /* steps */
    /* Means over about 50 layers of steps of few rows: from one to the next, demands of one, bytes
     * that were read meanwhile, and how long reads were under way. */
    double mean_ns, mean_demands, mean_bytes, mean_busy;
    uint64_t layer_ns, counted_bytes, counted_ns;
    struct expert_early early; /* with o.early -1 */
    uint64_t step_ns;          /* when this step's first layer began; 0: it is not measured */
    int64_t step_rows;
    size_t last_layer; /* that was evaluated */
    int depth;         /* evaluations at work */
    bool stalled;      /* one of them has waited without success */
    uint64_t checked_ns, short_ns; /* when memory was looked at, and was short */
    uint64_t shake;
    FILE *trace;              /* NULL: none */
    struct file_new traced;   /* its file, unless it is a device or pipe */
    struct expert_store_counts n, shown; /* Sync: shown: lock */
    pthread_mutex_t lock;                /* other threads read what is shown */
    uint64_t n_bad, own_moves;
    uint64_t given_slots, given_bytes; /* Sync: lock */
    char trouble[320]; /* Sync: lock.  The message of the last step that failed */
};

/* profile.c: experts that earlier runs used most are residents from the start; their reads begin.
 * A file that is not there, or not of this model, is no error. */
void expert_profile_load(struct expert_store *s);
/* own.c: slots in memory that the device has for itself; nothing where it has none.  move: between
 * steps. */
MUST_CHECK ingle_status expert_own_open(struct expert_store *s, struct err *err);
void expert_own_close(struct expert_store *s);
bool expert_own_has(const struct store_class *c, int64_t i);
void expert_own_move(struct expert_store *s);
struct store_layer *expert_store_layer_of(struct expert_store *s, const struct store_class *c,
                                          int64_t i);
/* A free slot, of which there is one, for expert i of a class: where its bytes go, and that they
 * are there. */
void *expert_store_hold(struct expert_store *s, struct store_class *c, int64_t i);
void expert_store_arrive(struct expert_store *s, const struct store_class *c, int64_t i);
/* Whether memory is short, and why: for people. */
bool expert_memory_is_short(char *why, size_t n);
void expert_store_leave(struct expert_store *s, struct store_class *c, int64_t i);
/* After a stall: slots whose reads do not end are counted out, and fewer experts stay. */
void expert_store_lose(struct expert_store *s);
void expert_store_stage(struct store_class *c, struct store_slot *x, bool staged);
void expert_store_read_early(struct expert_store *s, const struct model_experts *home,
                             const int32_t *ids, int64_t n, int64_t most);
void expert_store_join(struct expert_store *s, int t);
/* So many experts of a class may stay after a step: all, or as many as leave n_stage slots. */
int64_t expert_store_residents(const struct store_class *c);
bool expert_store_read(struct expert_store *s, struct store_layer *l, int64_t e, bool urgent);
/* What other threads may see of a layer and of all. */
void expert_store_show(struct expert_store *s, struct store_layer *l);
/* Takes in reads that have ended; until_ns: as expert_fetch_poll().  Returns how many. */
int expert_store_poll(struct expert_store *s, uint64_t until_ns);

#endif
