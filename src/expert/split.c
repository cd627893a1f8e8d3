/* SPDX-License-Identifier: Apache-2.0 */
/*
 * split - the largest pieces first, each to the end that would finish it first.
 *
 * An end that has no measured cost is taken for as fast as the mean of the others.
 */
#include "expert/split.h"

int expert_split_size(int64_t rows)
{
    int k = 0;
    while (rows > 1 && k < SPLIT_SIZES - 1) {
        rows = (rows + 1) / 2;
        k++;
    }
    return k;
}

void expert_split_learn(double *mean, double now)
{
    enum { OVER = 16 };
    if (now >= 0)
        *mean = *mean > 0 ? *mean + (now - *mean) / OVER : now;
}

/* Costs with guesses where there are none. */
static void known(const struct split_cost in[SPLIT_ENDS], struct split_cost out[SPLIT_ENDS])
{
    double sum = 0;
    int n = 0;
    for (int k = 0; k < SPLIT_ENDS; k++) {
        sum += in[k].unit_ns;
        n += in[k].unit_ns > 0;
    }
    for (int k = 0; k < SPLIT_ENDS; k++) {
        out[k] = in[k];
        if (!(out[k].unit_ns > 0))
            out[k].unit_ns = n ? sum / n : 1;
    }
}

static double time_of(const struct split_cost *c, const struct split_expert *e, int k)
{
    return c[k].unit_ns * (double)e->units + (e->has >> k & 1 ? 0 : c[k].miss_ns);
}

/* Whether a is dealt before b: what is worst here first, then by size. */
static bool before(const struct split_cost *c, const struct split_expert *a,
                   const struct split_expert *b)
{
    const double ta = time_of(c, a, SPLIT_HERE), tb = time_of(c, b, SPLIT_HERE);
    return ta > tb;
}

static void sort(const struct split_cost *c, const struct split_expert *e, int64_t n,
                 int32_t *order)
{
    for (int64_t i = 0; i < n; i++)
        order[i] = (int32_t)i;
    /* by Shell: in place, no worst case that matters for n <= 4,096 */
    for (int64_t gap = n / 2; gap > 0; gap /= 2)
        for (int64_t i = gap; i < n; i++) {
            const int32_t x = order[i];
            int64_t at = i;
            for (; at >= gap && before(c, &e[x], &e[order[at - gap]]); at -= gap)
                order[at] = order[at - gap];
            order[at] = x;
        }
}

void expert_split_deal(const struct split_cost cost[SPLIT_ENDS], const struct split_expert *e,
                       int64_t n, int probe, int32_t *order, int8_t *owner)
{
    struct split_cost c[SPLIT_ENDS];
    double end[SPLIT_ENDS];
    known(cost, c);
    sort(c, e, n, order);
    for (int k = 0; k < SPLIT_ENDS; k++)
        end[k] = c[k].start_ns;
    for (int64_t i = n; i-- > 0;) { /* the smallest for the probe */
        const int32_t x = order[i];
        owner[x] = -1;
        if (probe >= 0 && (e[x].may >> probe & 1)) {
            owner[x] = (int8_t)probe;
            end[probe] += time_of(c, &e[x], probe);
            probe = -1;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const int32_t x = order[i];
        int best = -1;
        for (int k = 0; owner[x] < 0 && k < SPLIT_ENDS; k++)
            if ((e[x].may >> k & 1) &&
                (best < 0 || end[k] + time_of(c, &e[x], k) < end[best] + time_of(c, &e[x], best)))
                best = k;
        if (best < 0) /* the probe's */
            continue;
        owner[x] = (int8_t)best;
        end[best] += time_of(c, &e[x], best);
    }
}
