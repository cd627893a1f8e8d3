/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft_tree - which branches a step verifies beside the drafted tokens that are likeliest.
 *
 * A node is a token of a chain or of a branch; its likelihood is that of all tokens on the way to
 * it.  Nodes are admitted by falling likelihood, and of all the steps on that way the one with most
 * tokens in a unit of time is taken, as with chains.
 */
#include "sched/draft_times.h"

#include "base/num.h"

#include <math.h>

/* A second guess when the first one was wrong, where nothing is said of it; and what that weighs,
 * in tokens that are right. */
static const float PRIOR_SECOND = 0.4f, PRIOR_WEIGHT = 2, FADE = 0.99f;
/* Tokens a unit of a step with branches over those of the chains alone, at least: what is known of
 * either is not exact. */
static const double LEAST_MORE = 1.01, LEAST_REACH = 1e-3;

/* What a branch takes beside its rows, before it is known, in plain steps, and what that weighs, in
 * steps; over how many the mean is. */
static const double PRIOR_BRANCH = 0.02, PRIOR_STEPS = 4;
enum { BRANCH_STEPS = 32 };

struct growing {
    const struct sched_draft *d;
    struct sched_draft_item *item;
    struct sched_draft_branch *branch;
    int64_t n_branches, left; /* branches that may still begin */
};

/* All of the first `depth` tokens of the chain; *next: the one behind them, given those. */
static double reach_of(const struct sched_draft *d, const struct sched_draft_item *it,
                       int64_t depth, double *next)
{
    double reach = 1, p = 0;
    for (int64_t j = 0; j < depth; j++)
        reach *= p = sched_draft_likely(d, it, it->proposer, j, p);
    *next = sched_draft_likely(d, it, it->proposer, depth, p);
    return reach;
}

static float said_of(float confidence)
{
    return confidence >= 0 ? fminf(confidence, 1) : PRIOR_SECOND; /* also where it is no number */
}

/* What is said of a token, as far as such ones came true. */
static double corrected(const struct sched_draft *d, int kind, bool first, float confidence)
{
    const float said = d->branch[kind][!first].said, right = d->branch[kind][!first].right;
    return fmin((double)(said_of(confidence) * (right + PRIOR_WEIGHT) / (said + PRIOR_WEIGHT)),
                0.98);
}

/* The branch's next token is looked for; 0: it has no more. */
static void aim(const struct growing *g, struct sched_draft_branch *b, double reach)
{
    b->reach = b->n < num_min(b->most, SCHED_DRAFT_BRANCH)
                   ? reach * corrected(g->d, b->kind, !b->n, b->confidence[b->n])
                   : 0;
}

static struct sched_draft_branch *likeliest(const struct growing *g)
{
    struct sched_draft_branch *best = NULL;
    for (int64_t i = 0; i < g->n_branches; i++) {
        struct sched_draft_branch *b = &g->branch[i];
        if (b->reach > (best ? best->reach : LEAST_REACH) && (b->n || g->left) &&
            b->at < g->item[b->item].width)
            best = b;
    }
    return best;
}

static int64_t nodes_of(const struct growing *g, int64_t item)
{
    int64_t n = g->item[item].width;
    for (int64_t i = 0; i < g->n_branches; i++)
        n += g->branch[i].item == item ? g->branch[i].n : 0;
    return n;
}

/* The end of the chain could go for a token that is so likely: how likely it is itself.  Below 0:
 * it is needed. */
static double end_of_chain(const struct growing *g, const struct sched_draft_branch *b)
{
    const struct sched_draft_item *it = &g->item[b->item];
    double p;
    for (int64_t i = 0; i < g->n_branches; i++) /* no branch is to hang in the air */
        if (g->branch[i].item == b->item && (g->branch[i].n || &g->branch[i] == b) &&
            g->branch[i].at >= it->width - 1)
            return -1;
    const double lost = reach_of(g->d, it, it->width - 1, &p) * p;
    return lost < b->reach ? lost : -1;
}

static double units_of_branch(const struct sched_draft *d, int context)
{
    const double n = (double)num_min(d->branch_steps[context], BRANCH_STEPS);
    return (d->branch_units[context] * n + PRIOR_BRANCH * PRIOR_STEPS) / (n + PRIOR_STEPS);
}

double sched_draft_but_branches(struct sched_draft *d, int64_t rows, int context, double seconds)
{
    const struct sched_draft_times *t = sched_times_at(d, context);
    if (!d->n_branches || !t->known || !(seconds > 0) || !isfinite(seconds))
        return seconds;
    const double unit = exp(t->log_unit), step = sched_times_of(t, rows);
    const double each = fmin(fmax((seconds / unit - step) / (double)d->n_branches, 0), step);
    d->branch_steps[context]++;
    d->branch_units[context] +=
        (each - d->branch_units[context]) / (double)num_min(d->branch_steps[context], BRANCH_STEPS);
    return fmax(seconds - units_of_branch(d, context) * (double)d->n_branches * unit, seconds / 2);
}

/* What the chains alone bring: tokens, and the rows that they take. */
static double tokens_of(const struct growing *g, int64_t n, int64_t *rows)
{
    double sum = 0, p;
    *rows = 0;
    for (int64_t i = 0; i < n; i++) {
        *rows += g->item[i].width;
        for (int64_t j = 0; j < g->item[i].width; j++) {
            const double reach = reach_of(g->d, &g->item[i], j, &p);
            sum += reach * p;
        }
    }
    return sum;
}

void sched_draft_grow(struct sched_draft *d, struct sched_draft_item *item, int64_t n,
                      const struct sched_draft_room *room, struct sched_draft_branch *branch,
                      int64_t n_branches, int64_t most)
{
    struct growing g = {d, item, branch, n_branches, most};
    const struct sched_draft_times *t = sched_times_at(d, d->step.context);
    const int64_t answers = n + room->n_plain, others = answers + room->other_rows;
    int64_t rows;
    double sum = (double)answers + tokens_of(&g, n, &rows), p;
    for (int64_t i = 0; i < n_branches; i++) {
        const double reach = reach_of(d, &item[branch[i].item], branch[i].at, &p);
        branch[i].n = 0;
        aim(&g, &branch[i], item[branch[i].item].nodes > 1 ? reach * (1 - p) : 0);
    }
    const double each = units_of_branch(d, d->step.context);
    double best = sum / (sched_times_of(t, others + rows) + d->step.rounds) * LEAST_MORE;
    d->n_branches = 0;
    for (struct sched_draft_branch *b; rows < room->most_rows && (b = likeliest(&g));) {
        struct sched_draft_item *it = &item[b->item];
        const bool cut = nodes_of(&g, b->item) >= it->nodes;
        const double lost = cut ? end_of_chain(&g, b) : 0;
        const double branches_time = each * (double)(d->n_branches + !b->n);
        const double gain = (sum + b->reach - lost) / (sched_times_of(t, others + rows + !cut) +
                                                       d->step.rounds + branches_time);
        if (lost < 0 || (!it->all_nodes && (gain <= best || d->account <= 0))) {
            b->reach = 0;
            continue;
        }
        best = fmax(best, gain);
        sum += b->reach - lost;
        rows += !cut;
        it->width -= cut;
        g.left -= !b->n;
        d->n_branches += !b->n;
        b->n++;
        aim(&g, b, b->reach);
    }
}

static void count(struct sched_draft *d, int kind, bool first, float confidence, bool right)
{
    d->branch[kind][!first].said = d->branch[kind][!first].said * FADE + said_of(confidence);
    d->branch[kind][!first].right = d->branch[kind][!first].right * FADE + (right ? 1 : 0);
}

void sched_draft_note_second(struct sched_draft *d, int kind, float confidence, bool right)
{
    count(d, kind, true, confidence, right);
}

void sched_draft_note_branch(struct sched_draft *d, struct sched_draft_session *s, int kind,
                             const float *confidence, int64_t n_tried, int64_t n_right)
{
    for (int64_t j = 1; j < n_tried && j <= n_right; j++)
        count(d, kind, false, confidence[j], j < n_right);
    s->n_drafted += n_tried;
    s->n_right += n_right;
    s->ahead += (double)n_right;
    if (d->step.n_answers <= 0)
        return;
    const double steps = (double)n_right / (double)d->step.n_answers;
    sched_draft_credit(d, steps);
    d->saved_seconds += steps * d->step.plain * exp(d->times[d->step.context].log_unit);
}
