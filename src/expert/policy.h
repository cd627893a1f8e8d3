/*
 * policy - inside the room: which experts are worth their memory.
 *
 * Least recently and frequently used: a use counts 2^-(age / half-life), so that a key is log2 of
 * the decayed uses.  Keys are kept without their decay, which changes no order.  A new expert
 * replaces the one with the least key only if its own key is not smaller.  Knows nothing of bytes,
 * files or time; the same uses always give the same residents.
 */
#ifndef INGLE_EXPERT_POLICY_H
#define INGLE_EXPERT_POLICY_H

#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

enum { POLICY_HALF_LIFE = 32 }; /* steps */

struct expert_policy; /* of experts of one size */

/* n experts, of which at most capacity are resident.  INGLE_NOMEM. */
MUST_CHECK ingle_status expert_policy_create(struct expert_policy **out, int64_t n,
                                             int64_t capacity, struct err *err);
void expert_policy_free(struct expert_policy *p);

/* A use of expert i at time t, in steps. */
void expert_policy_use(struct expert_policy *p, int64_t i, double t);
/* log2 of its uses, t / half-life not taken off; -INFINITY: none. */
double expert_policy_key(const struct expert_policy *p, int64_t i);
/* Sets the key of an expert that is not resident, as if it had been used. */
void expert_policy_seed(struct expert_policy *p, int64_t i, double key);
bool expert_policy_is_in(const struct expert_policy *p, int64_t i);
int64_t expert_policy_count(const struct expert_policy *p);

/* Whether i, which is not resident, becomes so.  *victim: who has to leave for it, or -1.  pins
 * [n]: experts with other values than 0 stay. */
bool expert_policy_admit(struct expert_policy *p, int64_t i, const uint16_t *pins, int64_t *victim);
/* From now on at most `most` are resident (up to capacity); those above it stay until they are
 * given or removed. */
void expert_policy_limit(struct expert_policy *p, int64_t most);
/* The resident with the least key that is not pinned leaves: returns it, or -1. */
int64_t expert_policy_give(struct expert_policy *p, const uint16_t *pins);
/* It could not be had, or must go. */
void expert_policy_remove(struct expert_policy *p, int64_t i);

#endif
