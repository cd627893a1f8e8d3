/*
 * expert - experts are requested, not addressed.
 *
 * A family says "layer l needs experts {ids} for these rows"; this room knows where they
 * are.  An evaluation has two halves, so that a tier can fetch weights or wait for another
 * machine while the family computes what does not depend on it.  A tier computes rows of
 * experts; their sum is made here, in ascending expert id, wherever each row came from.
 */
#ifndef INGLE_EXPERT_EXPERT_H
#define INGLE_EXPERT_EXPERT_H

#include "device/device.h"
#include "model/model.h"

enum { EXPERT_MAX_USED = DEVICE_ROUTE_MOST, EXPERT_MAX = 4096 };

struct expert_tier;

/* One layer's experts: gate and up either in one stack (gate rows first) or in two. */
struct expert_layer {
    const struct device_matrix *gate_up;   /* [n][2 * width][hidden], or NULL */
    const struct device_matrix *gate, *up; /* [n][width][hidden], when gate_up is NULL */
    const struct device_matrix *down;      /* [n][hidden][width] */
    int64_t n, width;
    uint64_t *hits; /* [n]: rows that chose each expert; owned */
    const struct model_experts *home; /* NULL: one expert, which is in memory */
};

/* Of a layer whose n and matrices are set: they belong together as experts of layer `layer` of m.
 * INGLE_NOMEM. */
MUST_CHECK ingle_status expert_layer_init(struct expert_layer *l, struct model *m, int64_t layer,
                                          struct err *err);
void expert_layer_release(struct expert_layer *l);

/* The share of a layer's choices that are in memory when a share (0 to 1) of all experts is,
 * expected of a model with n_experts a layer; varied: of text that changes its topic often. */
double expert_hits(double share, int64_t n_experts, bool varied);

/* Which experts of the layer rows use, by such a rule, with their pairs; they are counted. */
struct device_routed expert_route(struct device *d, const struct expert_layer *l,
                                  struct device_route rule, struct rows scores);

/* One evaluation: out[r] = sum_e weight * down_e(act(gate_e x[r]) * up_e x[r]).  The caller
 * fills the first part; the rest is the room's between begin and end. */
struct expert_eval {
    struct device *d;
    const struct expert_layer *layer;
    struct rows x;
    struct device_routed choice; /* with pairs */
    enum device_glu act;
    float limit;
    struct rows out;
    /* a block that does not read out and is computed until the end: while experts are fetched, or
     * in their jobs; NULL: none */
    const struct device_mlp_call *mlp;
    /* set by expert_eval_begin() */
    const struct expert_tier *tier;
    uint8_t *state;      /* the tier's */
    const uint8_t *skip; /* [n]: experts that somebody else computes; NULL: none */
    struct expert_away *away; /* of expert_remote */
    struct rows y;       /* of a tier that needs it before the end; width 0: of none */
    bool summed;         /* the tier has made the sum: it is in the first rows of y */
};
/* Everything above is borrowed until the end; x must not change in between.  Scratch that
 * begin takes from the arena is the caller's to release. */
void expert_eval_begin(struct expert_eval *v);
void expert_eval_end(struct expert_eval *v);

/* Between begin and end: the next layer's choice may be guessed from this layer's rows, so that
 * experts that are not in memory are read early.  False: guessing would be of no use.  A guess
 * never changes a result. */
enum { EXPERT_GUESS_ROWS = 8 };
bool expert_wants_guess(const struct expert_layer *next, int64_t n_rows);
/* The best of c first. */
void expert_guess(struct device *d, const struct expert_layer *next, const struct device_routed *c,
                  int64_t n_rows);

/* Where experts are, as operations. */
struct expert_tier {
    const char *name;
    /* Fetching or sending may start.  NULL: nothing to start. */
    void (*begin)(struct expert_eval *v);
    /* y[pair] = down_e(act(gate_e x) * up_e x) for all pairs [n_rows * k][hidden] but those of
     * experts that are skipped. */
    void (*end)(struct expert_eval *v, struct rows y);
};
/* All experts in the device's memory. */
extern const struct expert_tier expert_ram;
/* Some of them: the others are in a file (store.h). */
extern const struct expert_tier expert_tiered;
/* Workers compute some, and one of the tiers above the others (remote.h). */
extern const struct expert_tier expert_remote;
/* For host code that looks at the pairs of an evaluation. */
void expert_eval_read(const struct expert_eval *v);
/* Of the two that compute here the one that has a layer's experts. */
const struct expert_tier *expert_tier_here(const struct expert_layer *l);

#endif
