/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own - the second set of slots: in memory that the device has for itself.
 *
 * An expert is in one of both.  Moves are made between steps, few at a time: the most used expert
 * of the host's memory goes to the device when its key has been clearly above the least one there
 * for a while, and the two change places.  One slot stays empty for that.  What the device has is
 * computed by it, what the host has is not copied for one use.
 */
#include "expert/tiered.h"

#include "base/mem.h"
#include "base/num.h"

enum { MOST_MOVES = 2, PATIENCE = 32 }; /* of a step; steps */
static const double clearly = 0.4;      /* log2 of uses: a third more */

bool expert_own_has(const struct store_class *c, int64_t i)
{
    return c->own_of && c->own_of[i] >= 0;
}

static ingle_status open_class(struct store_class *c, struct device *d, uint64_t bytes,
                               struct err *err)
{
    const int64_t n = num_min(c->n_experts + 1, (int64_t)(bytes / c->bytes));
    if (n < 2)
        return INGLE_OK;
    c->own_of = mem_calloc((size_t)c->n_experts, sizeof *c->own_of);
    c->own_who = mem_calloc((size_t)n, sizeof *c->own_who);
    c->own = c->own_of && c->own_who ? device_own_take(d, (uint64_t)n * c->bytes) : NULL;
    if (!c->own)
        return err_set(err, INGLE_NOMEM, "no memory of the device for %lld experts of %llu bytes",
                       (long long)n, (unsigned long long)c->bytes);
    c->n_own = (int)n;
    for (int64_t i = 0; i < c->n_experts; i++)
        c->own_of[i] = -1;
    for (int64_t i = 0; i < n; i++)
        c->own_who[i] = -1;
    return INGLE_OK;
}

ingle_status expert_own_open(struct expert_store *s, struct err *err)
{
    struct device *d = model_device(s->model);
    const uint64_t bytes = device_own_bytes(d), all = model_expert_bytes(s->model);
    ingle_status st = INGLE_OK;
    for (int k = 0; !st && bytes && k < s->n_classes; k++) {
        struct store_class *c = &s->class[k];
        st = open_class(
            c, d,
            (uint64_t)((double)bytes * ((double)c->bytes * (double)c->n_experts / (double)all)),
            err);
    }
    return st;
}

void expert_own_close(struct expert_store *s)
{
    for (int k = 0; k < s->n_classes; k++) {
        struct store_class *c = &s->class[k];
        device_own_give(model_device(s->model), c->own, (uint64_t)c->n_own * c->bytes);
        mem_free(c->own_of);
        mem_free(c->own_who);
    }
}

/* ---- moves ---- */

static void place_own(struct expert_store *s, const struct store_class *c, int64_t i, uint8_t *own)
{
    const struct store_layer *l = expert_store_layer_of(s, c, i);
    for (int k = 0; k < l->home->n_parts; k++)
        device_matrix_place_own(l->home->part[k], i - l->first,
                                own ? own + l->home->part_at[k] : NULL);
}

static int empty_slot(const struct store_class *c)
{
    int t = 0;
    while (c->own_who[t] >= 0)
        t++;
    return t;
}

/* From its slot in the host's memory, which is free then. */
static void promote(struct expert_store *s, struct store_class *c, int64_t i)
{
    const int t = empty_slot(c);
    uint8_t *own = c->own + (size_t)t * c->bytes;
    device_own_put(model_device(s->model), own, s->slot[c->slot_of[i]].at, (size_t)c->bytes);
    expert_policy_remove(c->policy, i);
    expert_store_leave(s, c, i);
    place_own(s, c, i, own);
    c->own_of[i] = t;
    c->own_who[t] = i;
    c->n_own_in++;
    s->own_moves++;
}

/* To the host's memory, if it is worth a slot there. */
static void demote(struct expert_store *s, struct store_class *c, int64_t i)
{
    const int t = c->own_of[i];
    int64_t victim;
    place_own(s, c, i, NULL);
    c->own_of[i] = -1;
    c->own_who[t] = -1;
    c->n_own_in--;
    if (c->free < 0 || !expert_policy_admit(c->policy, i, c->pins, &victim))
        return;
    if (victim >= 0)
        expert_store_leave(s, c, victim);
    device_own_get(model_device(s->model), expert_store_hold(s, c, i),
                   c->own + (size_t)t * c->bytes, (size_t)c->bytes);
    expert_store_arrive(s, c, i);
}

static int64_t best_of_host(const struct expert_store *s, const struct store_class *c)
{
    int64_t best = -1;
    for (int64_t i = 0; i < c->n_experts; i++)
        if (expert_policy_is_in(c->policy, i) && c->slot_of[i] >= 0 &&
            s->slot[c->slot_of[i]].state == SLOT_READY && !c->pins[i] &&
            (best < 0 || expert_policy_key(c->policy, i) > expert_policy_key(c->policy, best)))
            best = i;
    return best;
}

static int64_t worst_of_device(const struct store_class *c)
{
    int64_t worst = -1;
    for (int t = 0; t < c->n_own; t++)
        if (c->own_who[t] >= 0 && (worst < 0 || expert_policy_key(c->policy, c->own_who[t]) <
                                                    expert_policy_key(c->policy, worst)))
            worst = c->own_who[t];
    return worst;
}

/* One move, if there is one to make. */
static bool move(struct expert_store *s, struct store_class *c, bool first)
{
    const int64_t best = best_of_host(s, c);
    if (best < 0)
        return false;
    if (c->n_own_in + 1 < c->n_own) {
        promote(s, c, best);
        return true;
    }
    const int64_t worst = worst_of_device(c);
    if (!s->shake &&
        expert_policy_key(c->policy, best) <= expert_policy_key(c->policy, worst) + clearly) {
        c->n_better = 0;
        return false;
    }
    if (first && ++c->n_better < PATIENCE && !s->shake)
        return false;
    promote(s, c, best);
    demote(s, c, worst);
    return true;
}

void expert_own_move(struct expert_store *s)
{
    for (int k = 0; k < s->n_classes; k++)
        for (int n = 0; s->class[k].n_own && n < MOST_MOVES && move(s, &s->class[k], n == 0); n++)
            ;
}
