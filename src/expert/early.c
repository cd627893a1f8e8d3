/* SPDX-License-Identifier: Apache-2.0 */
/*
 * early - blocks of steps, comparisons of them, and what follows.
 *
 * Steps of several rows take longer than those of one: a step counts as its time by the mean of its
 * kind.
 */
#include "expert/early.h"

#include "base/num.h"
#include <math.h>

enum { LEAST_PAIRS = 4, MEAN_OF = 32, MOST_CREDIT = 8, ENOUGH = 64 };
/* spread: of comparisons, before there are any; least_right: below it there is nothing to gain. */
static const double fade = 0.9, least_gain = 0.01, spread = 0.1, clip = 0.5, least_right = 0.2;

/* What a step may lose by a try: before the first one by what is known of guesses. */
static double risk(const struct expert_early *e)
{
    if (!e->n_pairs)
        return 0.03 + 0.22 * (1 - e->right);
    return fmin(clip, fmax(least_gain, e->mean + e->noise));
}

static bool may_try(const struct expert_early *e)
{
    if (e->pays)
        return e->since >= EARLY_EVERY;
    return e->since > 0 && e->right >= least_right && e->credit >= EARLY_BLOCK * risk(e);
}

/* Where it paid before, a loss has lasted since the last look. */
static void charge(struct expert_early *e)
{
    const double steps = e->pays ? (e->mean > 0 ? EARLY_BLOCK * EARLY_EVERY : 0) : EARLY_BLOCK;
    e->credit = fmin(MOST_CREDIT, e->credit - e->mean * steps);
}

static void decide(struct expert_early *e)
{
    if (e->n_pairs < LEAST_PAIRS)
        return;
    const bool pays = e->pays ? e->mean < 0 : e->mean + 2 * e->noise < -least_gain;
    e->turned = e->turned || pays != e->pays || !e->decided;
    e->decided = true;
    e->pays = pays;
}

/* x: time with reads ahead, by time without. */
static void compare(struct expert_early *e, double x)
{
    const double d = fmin(clip, fmax(-clip, x - 1));
    e->weight = e->weight * fade + 1;
    e->sum = e->sum * fade + d;
    e->squares = e->squares * fade + d * d;
    e->n_pairs++;
    e->mean = e->sum / e->weight;
    e->noise =
        sqrt(fmax(0, e->squares - e->weight * e->mean * e->mean) + spread * spread) / e->weight;
    charge(e);
    decide(e);
}

/* A block is over: `took` by the means of its steps. */
static void end_block(struct expert_early *e, double took)
{
    if (e->reads != e->pays) { /* a try; the usual block after it comes next */
        e->tried = took;
        e->reads = e->pays;
        return;
    }
    e->since++;
    if (e->tried > 0 && e->before > 0) {
        const double usual = (e->before + took) / 2;
        compare(e, e->pays ? usual / e->tried : e->tried / usual);
        e->since = 0;
    }
    e->tried = 0;
    e->before = e->reads == e->pays ? took : 0; /* else it was of what is now the other kind */
    e->reads = e->before > 0 && may_try(e) ? !e->pays : e->pays;
}

void expert_early_step(struct expert_early *e, int64_t n_rows, uint64_t ns)
{
    if (n_rows < 1 || n_rows > EARLY_ROWS || !ns)
        return;
    double *unit = &e->unit[n_rows];
    const double meant = *unit > 0 ? *unit : (double)ns;
    *unit = meant + ((double)ns - meant) / MEAN_OF;
    if (!e->pays)
        e->credit = fmin(MOST_CREDIT, e->credit + EARLY_PRICE);
    if (!e->decided && ++e->n_all >= ENOUGH && e->right < least_right)
        e->decided = e->turned = true;
    e->took += (double)ns;
    e->meant += meant;
    if (++e->n_steps < EARLY_BLOCK)
        return;
    const double took = e->took / e->meant;
    e->n_steps = 0;
    e->took = e->meant = 0;
    end_block(e, took);
}

void expert_early_guess(struct expert_early *e, bool right)
{
    e->right += ((right ? 1.0 : 0.0) - e->right) / MEAN_OF;
}

bool expert_early_turned(struct expert_early *e)
{
    const bool turned = e->turned;
    e->turned = false;
    return turned;
}
