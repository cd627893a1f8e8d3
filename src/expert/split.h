/*
 * split - inside the room: which end computes which experts of a layer, so that all finish
 * together.
 *
 * Costs are measured (means over about 16 evaluations of about as many rows) and each evaluation is
 * dealt anew, so the split moves with them.  Knows nothing of links or memory; the same numbers
 * always give the same split.
 */
#ifndef INGLE_EXPERT_SPLIT_H
#define INGLE_EXPERT_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

enum { SPLIT_WORKERS = 8, SPLIT_ENDS = 1 + SPLIT_WORKERS, SPLIT_HERE = 0, SPLIT_SIZES = 18 };

/* What an end takes: end 0 is this process, the others are workers. */
struct split_cost {
    double unit_ns;  /* of computing; 0: not measured */
    double miss_ns;  /* more for an expert that is not in its memory */
    double start_ns; /* before and after the work: the round trip */
};

/* An expert with r rows is split_units(r) of work: a few rows cost little more than one. */
static inline int64_t split_units(int64_t rows) { return 8 + rows; }
/* Which of SPLIT_SIZES means a step of so many rows belongs to. */
int expert_split_size(int64_t rows);
/* A mean takes in a measurement. */
void expert_split_learn(double *mean, double now);

struct split_expert {
    int64_t units;
    uint32_t may; /* bit k: end k can compute it */
    uint32_t has; /* bit k: it is in the memory of end k */
};
/* owner [n]: of each expert an end that may compute it.  order [n]: work memory.  probe: an end
 * that gets one expert even if it would be the last to finish, since its cost is long known; -1:
 * none. */
void expert_split_deal(const struct split_cost cost[SPLIT_ENDS], const struct split_expert *e,
                       int64_t n, int probe, int32_t *order, int8_t *owner);

#endif
