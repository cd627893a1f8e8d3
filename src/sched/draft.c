/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft - how many drafted tokens of which answers a step verifies.
 *
 * What steps take is draft_times.c's.  Expected tokens come from how often drafted tokens were
 * right, by depth or by confidence.  Drafted tokens are admitted by falling likelihood; of all the
 * steps on that way the one with most tokens in a unit is taken.
 */
#include "sched/draft_times.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

enum {
    SHORT_PAUSE = 4,  /* steps until the next trial behind one that was right */
    FIRST_PAUSE = 16, /* steps until a proposer that promised nothing is tried again, */
    MOST_PAUSE = 128, /* and at most */
    TRIAL_WIDTH = 2,
    TRY_EVERY = 6, /* steps between two that try other rows */
    TRY_TIMES = 1,  /* measures of such a number of rows that are enough */
    TRY_NOISY = 20, /* and more, if times differ by the whole of them */
};

/* A drafted token before anything is known, and its weight in tokens tried. */
static const float PRIOR_RIGHT = 0.6f, PRIOR_WEIGHT = 4, ENGINE_WEIGHT = 6;
static const float SESSION_FADE = 0.92f, ENGINE_FADE = 0.99f, BIN_FADE = 0.995f,
                   SHARP_FADE = 0.999f;
static const float IDLE_FADE = 0.98f; /* of an answer's record, in a step that adds nothing to it */
/* What more rows may take that were not measured yet, of what is expected for them on top. */
static const double HOPE = 0.3, HOPE_GAIN = 1.05;
static const double MOST_LIKELY = 0.98;
/* A step with drafts must promise so much more than a plain one. */
static const double LEAST_GAIN = 1.03;
/* Steps of answers of which nothing is known may take so much longer for those that draft. */
static const double MOST_WAIT = 1.02;
/* Of each answer: how far it is ahead of plain decoding, in tokens, counts up to a bound; and it is
 * to be behind by so much at most. */
/* ... and by as much more if what it is to get is all wrong */
static const double MOST_AHEAD = 1.8, MOST_DEBT = 1.7, MOST_WRONG = 0.8, REFILL_ONE = 0.009;
/* The account: over 256 steps 256 * REFILL + ACCOUNT + OVERDRAFT plain steps are lost at most,
 * which is below 3 % of them. */
/* of what refills it: for what a network reads while it does not draft */
static const double SEEN_PART = 0.7;
/* of one step, at worst: a few that are wrong do not spend all */
static const double MOST_RISK = 2.2;
static const double CHARGED = 0.7; /* of the doubt about a step's time */
static const double REFILL = 0.006, ACCOUNT = 3, FIRST_ACCOUNT = 2.2, OVERDRAFT = 0.6;

const char *sched_draft_why_name(enum sched_draft_why why)
{
    static const char *const name[] = {
        [SCHED_DRAFT_ON] = "on",
        [SCHED_DRAFT_NONE] = "nothing to draft from",
        [SCHED_DRAFT_MEASURE] = "measures a step without drafts",
        [SCHED_DRAFT_WRONG] = "drafts are rarely right",
        [SCHED_DRAFT_DEAR] = "more rows would take too long",
        [SCHED_DRAFT_LOST] = "drafts cost more than they brought",
        [SCHED_DRAFT_FULL] = "no room for more rows",
        [SCHED_DRAFT_OTHERS] = "would hold up other answers",
    };
    return name[why];
}

/* ---- how likely drafted tokens are right ---- */

/* By depth: of all answers, and of this one on top. */
static double right_at(const struct sched_draft *d, const struct sched_draft_session *s, int k,
                       int64_t depth, double before)
{
    const struct sched_draft_record *all = &d->record[k], *own = &s->record[k];
    const float prior = depth ? (float)before : PRIOR_RIGHT;
    const float p = (all->right[depth] + PRIOR_WEIGHT * prior) / (all->tried[depth] + PRIOR_WEIGHT);
    return (double)((own->right[depth] + ENGINE_WEIGHT * p) / (own->tried[depth] + ENGINE_WEIGHT));
}

static void fade(struct sched_draft_record *r, float part)
{
    for (int j = 0; j < SCHED_DRAFT_DEPTH; j++) {
        r->tried[j] *= part;
        r->right[j] *= part;
    }
}

static int bin_of(float confidence)
{
    if (!(confidence > 0)) /* nor a number */
        return 0;
    return (int)fminf(confidence * SCHED_DRAFT_BINS, SCHED_DRAFT_BINS - 1);
}

/* What became of tokens with such a confidence.  Neighbours share what they know. */
static double right_for(const struct sched_draft *d, int k, float confidence)
{
    const int bin = bin_of(confidence);
    float tried = PRIOR_WEIGHT, right = PRIOR_WEIGHT * (confidence > 0 ? fminf(confidence, 1) : 0);
    for (int b = bin - 1; b <= bin + 1; b++)
        if (b >= 0 && b < SCHED_DRAFT_BINS) {
            const float weight = b == bin ? 1 : 0.2f;
            tried += weight * d->bin_tried[k][b];
            right += weight * d->bin_right[k][b];
        }
    return (double)(right / tried);
}

/* How likely the next token of a draft is right when `depth` tokens of it were; before: the same of
 * the last one. */
static double likely(const struct sched_draft *d, const struct sched_draft_item *it, int k,
                     int64_t depth, double before)
{
    const float *confidence = it->offer[k].confidence;
    double p = right_at(d, it->s, k, depth, before);
    if (confidence) {
        const struct sched_draft_session nobody = {0};
        const double usual = right_at(d, &nobody, k, depth, before);
        p = right_for(d, k, confidence[depth]) * fmin(fmax(p / fmax(usual, 1e-3), 0.5), 1.25);
    }
    return fmin(p, MOST_LIKELY);
}

double sched_draft_likely(const struct sched_draft *d, const struct sched_draft_item *it, int k,
                          int64_t depth, double before)
{
    return likely(d, it, k, depth, before);
}

static int64_t most_of(const struct sched_draft_item *it, int k)
{
    return num_min(num_max(it->offer[k].most, 0), SCHED_DRAFT_DEPTH);
}

/* What proposer k promises for the item: tokens, less what rows of that kind usually cost. */
static double worth(const struct sched_draft *d, const struct sched_draft_item *it, int k)
{
    double sum = 0, reach = 1, p = 0;
    for (int64_t j = 0; j < most_of(it, k); j++) {
        p = likely(d, it, k, j, p);
        reach *= p;
        if (reach < sched_times_prior_row)
            break;
        sum += reach - sched_times_prior_row;
    }
    return sum;
}

/* ---- the plan ---- */

static double bounded(double account)
{
    return fmin(fmax(account, -OVERDRAFT), ACCOUNT);
}

/* A step that is filled with drafts. */
struct filling {
    const struct sched_draft *d;
    const struct sched_draft_times *t;
    const struct sched_draft_room *room;
    struct sched_draft_item *item;
    int64_t n, n_answers;
    int network;  /* the network that may run; -1: none more */
    double spent; /* units of rounds that have run */
    /* results: tokens in a unit, a plain step being 1 */
    double gain;     /* of the best step */
    double own_gain; /* the same if nobody had to wait for others */
};

/* Plain steps that a step takes more than its tokens are worth, at worst: its rows may be dear, and
 * drafts wrong; of one answer all of them, of many answers some. */
static double at_worst(const struct filling *f, int64_t rows, double round, double tokens)
{
    const double n = (double)f->n_answers, wrong = fmin(1, 1.5 / sqrt((double)num_max(f->n, 1)));
    const double time = sched_times_most(f->t, f->n_answers + f->room->other_rows + rows) + round;
    return time / sched_times_of(f->t, f->n_answers + f->room->other_rows) - 1 -
           (tokens / n - 1) * (1 - wrong);
}

/* The answer that can take the likeliest token; NULL: none. */
static struct sched_draft_item *likeliest(const struct filling *f)
{
    struct sched_draft_item *best = NULL;
    for (int64_t i = 0; i < f->n; i++)
        if (f->item[i].reach > (best ? best->reach : 1e-3))
            best = &f->item[i];
    return best;
}

/* The plain steps that the step may take: no answer is to fall behind by it further than it may be.
 * tokens: what it likely gets counts. */
static double most_wait(const struct filling *f, bool tokens)
{
    double most = f->room->n_plain > 0 ? MOST_WAIT : 1e30;
    for (int64_t i = 0; i < f->n && f->n_answers > 1; i++) { /* of one alone the account says it */
        const struct sched_draft_item *it = &f->item[i];
        const double spare = it->s->ahead + MOST_DEBT;
        if (spare < -MOST_WRONG)
            return 1;
        most = fmin(most, fmin(tokens ? it->tokens : 1, 1 + MOST_WRONG) + fmax(spare, 0));
    }
    return most;
}

/* The tokens so far are right with that likelihood: that of the next one. */
static void aim(const struct filling *f, struct sched_draft_item *it, double reach)
{
    it->reach = 0;
    if (it->choice < 0 || it->taken >= most_of(it, it->choice))
        return;
    it->last = likely(f->d, it, it->choice, it->taken, it->last);
    it->reach = reach * it->last;
}

/* Admits tokens by falling likelihood; `width` is as in the best of the steps on that way. */
static void fill(struct filling *f)
{
    const int64_t others = f->n_answers + f->room->other_rows;
    const double plain = sched_times_of(f->t, others);
    double sum = (double)f->n_answers;
    int64_t deep = 0, of_network = 0, drafting = 0;
    for (int64_t i = 0; i < f->n; i++) {
        struct sched_draft_item *it = &f->item[i];
        it->width = it->taken = 0;
        it->tokens = 1;
        it->last = 0;
        aim(f, it, 1);
    }
    f->gain = f->own_gain = plain / (plain + f->spent);
    struct sched_draft_item *it;
    for (int64_t rows = 1; rows <= f->room->most_rows && (it = likeliest(f)); rows++) {
        const double reach = it->reach;
        it->taken++;
        it->tokens += reach;
        sum += reach;
        if (it->choice == f->network) {
            of_network++;
            drafting += it->taken == 1;
            deep = num_max(deep, it->taken);
        }
        aim(f, it, reach);
        const double time = sched_times_of(f->t, others + rows) + f->spent +
                            sched_times_round(f->d, f->network, drafting, deep, of_network);
        const double gain = sum / (double)f->n_answers * plain / time;
        f->own_gain = fmax(f->own_gain, gain);
        if (gain <= f->gain || time > plain * most_wait(f, true))
            continue;
        if (at_worst(f, rows, time - sched_times_of(f->t, others + rows), sum) >
            fmin(f->d->account + OVERDRAFT, MOST_RISK))
            continue;
        f->gain = gain;
        for (int64_t i = 0; i < f->n; i++)
            f->item[i].width = f->item[i].taken;
    }
}

/* Everyone's choice is the proposer that promises most, of those without a network and of
 * `network`. */
static void choose(struct filling *f, int network)
{
    f->network = network;
    for (int64_t i = 0; i < f->n; i++) {
        struct sched_draft_item *it = &f->item[i];
        double most = 0;
        it->choice = -1;
        for (int k = 0; k < SCHED_DRAFT_PROPOSERS; k++) {
            const double value = f->d->network[k] && k != network ? 0 : worth(f->d, it, k);
            if (value > most) {
                most = value;
                it->choice = k;
            }
        }
    }
}

/* The best of the steps with each network and with none. */
static void fill_best(struct filling *f)
{
    int best = -1;
    double gain = 0, own_gain = 0;
    for (int k = -1; k < SCHED_DRAFT_PROPOSERS; k++) {
        if (k >= 0 && !f->d->network[k])
            continue;
        choose(f, k);
        fill(f);
        own_gain = fmax(own_gain, f->own_gain);
        if (f->gain > gain) {
            gain = f->gain;
            best = k;
        }
    }
    choose(f, best);
    fill(f);
    f->own_gain = own_gain;
}

static void clear(struct filling *f)
{
    for (int64_t i = 0; i < f->n; i++) {
        f->item[i].width = 0;
        f->item[i].trial = false;
    }
}

/* What a step would gain if all tokens that could be drafted for one answer were right. */
static double best_case(const struct filling *f, const struct sched_draft_item *it, int k)
{
    const int64_t rows = f->n_answers + f->room->other_rows;
    const double plain = sched_times_of(f->t, rows);
    double best = 0;
    for (int64_t w = 1; w <= most_of(it, k); w++) {
        const double round =
            f->d->network[k] && k != f->network ? sched_times_round(f->d, k, 1, w, w) : 0;
        const double time = sched_times_hope(f->t, rows, rows + w) + round;
        best = fmax(best, (double)(f->n_answers + w) / (double)f->n_answers * plain / time);
    }
    return best;
}

/* Steps after which a plain one is measured between those with drafts: its price is what they
 * gain. */
static int64_t measure_every(const struct filling *f)
{
    const float n = f->t->n[sched_times_class(f->n_answers + f->room->other_rows)];
    const int64_t calm = f->d->step.gain < 1.15 ? 32 : f->d->step.gain < 1.6 ? 64 : 128;
    const double sure = f->t->noise > 0 ? f->t->turns / (f->t->noise * f->t->noise) : 1e9;
    if (n < SCHED_TIMES_LITTLE)
        return n > 1 ? 2 : 1;
    return sure < 200 ? 6 : sure < 400 ? 12 : sure < 1600 ? 20 : sure < 6400 ? 32 : calm;
}

/* Has somebody who has no drafts try a proposer again that had promised nothing, if the account can
 * pay for it. */
static void plan_trials(struct filling *f, int64_t rows)
{
    const int64_t others = f->n_answers + f->room->other_rows;
    const double plain = sched_times_of(f->t, others);
    for (int64_t i = 0; i < f->n; i++) {
        struct sched_draft_item *it = &f->item[i];
        int best = -1;
        for (int k = 0; k < SCHED_DRAFT_PROPOSERS && !it->width; k++) {
            const bool runs = !f->d->network[k] || f->network < 0 || f->network == k;
            if (runs && most_of(it, k) && it->s->pause[k] && !it->s->wait[k] &&
                (best < 0 || it->s->pause[k] < it->s->pause[best]))
                best = k;
        }
        const int64_t width = best < 0 ? 0
                                       : num_min(most_of(it, best),
                                                 it->s->pause[best] < MOST_PAUSE ? TRIAL_WIDTH : 1);
        if (!width || width > f->room->most_rows - rows)
            continue;
        if (it->s->pause[best] < MOST_PAUSE && best_case(f, it, best) < LEAST_GAIN)
            continue;
        double price = sched_times_hope(f->t, others, others + rows + width) -
                       sched_times_of(f->t, others + rows);
        if (f->d->network[best] && f->network < 0)
            price += sched_times_round(f->d, best, 1, width, width);
        if (price / plain > f->d->account || price / plain > most_wait(f, rows > 0) - 1)
            return;
        if (f->d->network[best])
            f->network = best;
        fade(&it->s->record[best], 0.5f); /* what was is less certain by now */
        it->choice = best;
        it->width = width;
        it->trial = true;
        rows += width;
    }
}

/* Everybody w tokens, as far as they go.  Returns the rows, and gives the tokens that will likely
 * come out. */
static int64_t spread(const struct filling *f, int64_t w, bool take, double *tokens)
{
    int64_t rows = 0;
    *tokens = (double)f->n_answers;
    for (int64_t i = 0; i < f->n; i++) {
        struct sched_draft_item *it = &f->item[i];
        double reach = 1, p = 0;
        int64_t n = 0;
        for (; it->choice >= 0 && n < num_min(w, most_of(it, it->choice)); n++) {
            p = likely(f->d, it, it->choice, n, p);
            reach *= p;
            *tokens += reach;
        }
        rows += n;
        if (take) {
            it->width = n;
            it->trial = n > 0; /* to be measured as it is */
        }
    }
    return rows;
}

/* A width for everybody whose rows were not measured, if with them the step may be the best one and
 * the account can pay for it; 0: there is none. */
static int64_t find_rows(const struct filling *f, double *gain)
{
    static const int8_t WIDTHS[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32};
    const int64_t others = f->n_answers + f->room->other_rows;
    const double plain = sched_times_of(f->t, others);
    int64_t best = 0;
    double most = *gain, tokens;
    for (size_t k = 0; k < sizeof WIDTHS; k++) {
        const int64_t w = WIDTHS[k], rows = spread(f, w, false, &tokens);
        if (!rows || rows > f->room->most_rows ||
            (double)f->t->n[sched_times_class(others + rows)] > TRY_TIMES + TRY_NOISY * f->t->noise)
            continue;
        int below = sched_times_class(others + rows) - 1;
        while (below > 0 && !(f->t->n[below] > 0))
            below--;
        const double round =
            f->network >= 0 ? sched_times_round(f->d, f->network, f->n, w, rows) : 0;
        const double low = exp((double)f->t->log_time[below]),
                     step = sched_times_of(f->t, others + rows);
        const double hope = fmin(low, step) + HOPE * fmax(step - low, 0) + round;
        const double hoped = tokens / (double)f->n_answers * plain / hope;
        if (hoped <= most || at_worst(f, rows, round, tokens) > f->d->account)
            continue;
        if (sched_times_of(f->t, others + rows) + round > plain * most_wait(f, false))
            continue;
        most = hoped;
        best = w;
    }
    *gain = most;
    return best;
}

/* Now and then a number of rows that was not measured: more of them may cost far less than the
 * first ones, as with experts that rows share. */
static bool try_rows(struct filling *f)
{
    double gain = HOPE_GAIN * fmax(f->gain, 1), tokens;
    const int chosen = f->network;
    int network = -1;
    int64_t width = 0;
    if (f->d->n_steps % TRY_EVERY || f->room->other_rows)
        return false;
    for (int k = -1; k < SCHED_DRAFT_PROPOSERS; k++) {
        if (k >= 0 && !f->d->network[k])
            continue;
        choose(f, k);
        const int64_t w = find_rows(f, &gain);
        if (w) {
            width = w;
            network = k;
        }
    }
    choose(f, width ? network : chosen);
    if (width)
        spread(f, width, true, &tokens);
    return width > 0;
}

/* What the step must promise: more than its times may be off, but while they are little known and
 * there is enough to lose. */
static double least_gain(const struct filling *f)
{
    const int64_t others = f->n_answers + f->room->other_rows;
    int64_t rows = others;
    for (int64_t i = 0; i < f->n; i++)
        rows += f->item[i].width;
    if (rows == others ||
        (f->d->account > ACCOUNT / 2 && f->t->n[sched_times_class(rows)] < SCHED_TIMES_FAIRLY))
        return LEAST_GAIN;
    return LEAST_GAIN + sched_times_doubt(f->t, rows);
}

static bool has_offer(const struct sched_draft_item *it)
{
    for (int k = 0; k < SCHED_DRAFT_PROPOSERS; k++)
        if (most_of(it, k))
            return true;
    return false;
}

/* Proposers that have promised nothing for a while: how long until they are tried, and why. */
static void say_why(const struct filling *f, enum sched_draft_why all)
{
    for (int64_t i = 0; i < f->n; i++) {
        struct sched_draft_item *it = &f->item[i];
        struct sched_draft_session *s = it->s;
        double right = 0; /* of the best proposer */
        for (int k = 0; k < SCHED_DRAFT_PROPOSERS; k++)
            if (!it->width || k != it->choice)
                fade(&s->record[k], IDLE_FADE);
        it->proposer = it->choice;
        s->why = it->width ? SCHED_DRAFT_ON : !has_offer(it) ? SCHED_DRAFT_NONE : all;
        if (it->width && !it->trial)
            s->wait[it->choice] = s->pause[it->choice] = 0;
        for (int k = 0; k < SCHED_DRAFT_PROPOSERS; k++) {
            if (it->width || !most_of(it, k))
                continue;
            right = fmax(right, likely(f->d, it, k, 0, 0));
            if ((all == SCHED_DRAFT_WRONG || all == SCHED_DRAFT_OTHERS) && !s->pause[k])
                s->pause[k] = s->wait[k] = FIRST_PAUSE;
        }
        if (s->why == SCHED_DRAFT_WRONG && right >= 0.5)
            s->why = SCHED_DRAFT_DEAR;
    }
}

void sched_draft_plan(struct sched_draft *d, struct sched_draft_item *item, int64_t n,
                      const struct sched_draft_room *room)
{
    const int context = sched_times_context(room->context);
    struct sched_draft_times *t = sched_times_at(d, context);
    struct filling f = {.d = d,
                        .t = t,
                        .room = room,
                        .item = item,
                        .n = n,
                        .n_answers = n + room->n_plain,
                        .network = -1};
    if (!d->opened)
        d->account = d->settled = FIRST_ACCOUNT;
    d->opened = true;
    d->account = bounded(d->account);
    clear(&f);
    for (int64_t i = 0; i < n; i++) {
        struct sched_draft_session *s = item[i].s;
        if (s->n_plan == d->n_plans && d->step.took > 0)
            s->ahead = fmin(s->ahead - (d->step.took - 1) + REFILL_ONE, MOST_AHEAD);
        s->n_plan = d->n_plans + 1;
        for (int k = 0; k < SCHED_DRAFT_PROPOSERS; k++)
            s->wait[k] -= s->wait[k] > 0;
    }
    d->n_plans++;
    memset(&d->step, 0, sizeof d->step);
    d->n_branches = 0;
    d->step.context = context;
    d->step.n_answers = f.n_answers;
    d->step.other_rows = room->other_rows;
    if (f.n_answers <= 0)
        return;
    enum sched_draft_why why = SCHED_DRAFT_WRONG;
    fill_best(&f);
    d->step.gain = f.gain;
    if (!(t->n[sched_times_class(f.n_answers + room->other_rows)] > 0) ||
        d->since_plain >= measure_every(&f)) {
        why = SCHED_DRAFT_MEASURE;
    } else if (d->account <= -OVERDRAFT) {
        why = SCHED_DRAFT_LOST;
    } else if (room->most_rows <= 0) {
        why = SCHED_DRAFT_FULL;
    } else {
        const double least = least_gain(&f) * exp(d->lag);
        why = f.gain >= least                              ? SCHED_DRAFT_ON
              : f.gain < LEAST_GAIN && f.own_gain >= least ? SCHED_DRAFT_OTHERS
                                                           : SCHED_DRAFT_WRONG;
    }
    if (why != SCHED_DRAFT_ON)
        clear(&f);
    if (why == SCHED_DRAFT_ON || why == SCHED_DRAFT_WRONG || why == SCHED_DRAFT_OTHERS) {
        int64_t rows = 0;
        if (try_rows(&f))
            why = SCHED_DRAFT_ON;
        for (int64_t i = 0; i < n; i++)
            rows += item[i].width;
        if (!rows)
            f.network = -1;
        plan_trials(&f, rows);
        if (why == SCHED_DRAFT_ON) /* for those who do not draft */
            why = SCHED_DRAFT_WRONG;
    }
    say_why(&f, why);
    for (int64_t i = 0; i < n; i++)
        d->step.n_drafts += item[i].width;
}

/* Networks that do not know the drafted tokens before are less sure than their targets; how much,
 * the answers show. */
float sched_draft_sharpness(struct sched_draft *d, struct sched_draft_session *s, int proposer)
{
    static const float BY[SCHED_DRAFT_SHARP] = {1.5f, 1, 2.5f, 4}; /* of equals the first */
    /* what was not tried is thought well of */
    static const float TRIED = 6, RIGHT = 0.95f, CURIOUS = 0.15f;
    float most = -1;
    int best = 0;
    for (int j = 0; j < SCHED_DRAFT_SHARP; j++) {
        const float n = d->sharp_tried[proposer][j] + TRIED;
        const float value = (d->sharp_right[proposer][j] + TRIED * RIGHT) / n + CURIOUS / sqrtf(n);
        if (value > most) {
            most = value;
            best = j;
        }
    }
    s->sharp[proposer] = best + 1;
    return BY[best];
}

void sched_draft_trim(struct sched_draft *d, struct sched_draft_item *item, int64_t n,
                      const struct sched_draft_room *room)
{
    struct filling f = {.d = d,
                        .t = sched_times_at(d, d->step.context),
                        .room = room,
                        .item = item,
                        .n = n,
                        .n_answers = n + room->n_plain,
                        .network = -1,
                        .spent = d->step.rounds};
    d->step.n_drafts = 0;
    if (f.n_answers <= 0)
        return;
    for (int64_t i = 0; i < n; i++) {
        item[i].choice = item[i].width > 0 ? item[i].proposer : -1;
        if (item[i].choice >= 0)
            item[i].offer[item[i].choice].most = item[i].width;
    }
    fill(&f);
    for (int64_t i = 0; i < n; i++) {
        struct sched_draft_item *it = &item[i];
        if (it->choice >= 0 && (it->trial || !it->offer[it->choice].confidence))
            it->width = most_of(it, it->choice);
        d->step.n_drafts += it->width;
    }
}

/* ---- what took place ---- */

void sched_draft_note_round(struct sched_draft *d, int proposer, int64_t n_answers, int64_t n_deep,
                            int64_t n_tokens, double seconds)
{
    d->step.rounds += sched_times_note_round(d, proposer, n_answers, n_deep, n_tokens, seconds);
}

/* Plain steps that a step with drafts took beyond one. */
static double lost_by(struct sched_draft *d, const struct sched_draft_charge *c)
{
    const struct sched_draft_times *t = sched_times_at(d, c->context);
    const double plain = sched_times_of(t, c->plain_rows);
    const double doubt =
        t->n_first[sched_times_class(c->rows)] < 2 ? 0 : CHARGED * sched_times_doubt(t, c->rows);
    return (sched_times_of(t, c->rows) * (1 + doubt) * exp(d->lag) + c->rounds - plain) / plain;
}

/* An account behind that step. */
static double after(struct sched_draft *d, double account, const struct sched_draft_charge *c)
{
    return bounded(bounded(account) - lost_by(d, c) + c->right) + c->later;
}

/* One long step of a busy machine may be most of what is known of its rows: what it was charged
 * with is not for ever. */
static void settle(struct sched_draft *d)
{
    const int64_t n = num_min(d->n_charges, SCHED_DRAFT_CHARGES);
    d->account = d->settled;
    for (int64_t i = d->n_charges - n; i < d->n_charges; i++) {
        const struct sched_draft_charge *c = &d->charge[i % SCHED_DRAFT_CHARGES];
        d->account = after(d, d->account, c);
    }
}

static void refill(struct sched_draft *d, double steps)
{
    *(d->n_charges ? &d->charge[(d->n_charges - 1) % SCHED_DRAFT_CHARGES].later : &d->settled) +=
        steps;
    d->account += steps;
}

void sched_draft_credit(struct sched_draft *d, double steps)
{
    *(d->n_charges ? &d->charge[(d->n_charges - 1) % SCHED_DRAFT_CHARGES].right : &d->settled) +=
        steps;
    d->account += steps;
}

/* The account pays for a step with drafts.  Returns the plain steps that it took beyond one. */
static double charge(struct sched_draft *d, const struct sched_draft_charge *by)
{
    struct sched_draft_charge *c = &d->charge[d->n_charges % SCHED_DRAFT_CHARGES];
    if (d->n_charges >= SCHED_DRAFT_CHARGES)
        d->settled = after(d, d->settled, c);
    *c = *by;
    d->n_charges++;
    settle(d);
    return lost_by(d, c);
}

void sched_draft_note_step(struct sched_draft *d, int64_t rows, int64_t context, double seconds)
{
    const int class = sched_times_context(context);
    sched_times_note(d, rows, class, sched_draft_but_branches(d, rows, class, seconds),
                     !d->step.n_drafts);
    struct sched_draft_times *t = sched_times_at(d, class);
    refill(d, REFILL);
    d->n_steps++;
    d->since_plain = d->step.n_drafts ? d->since_plain + 1 : 0;
    d->step.plain = sched_times_of(t, d->step.n_answers + d->step.other_rows);
    d->step.took = 1;
    settle(d);
    if (!d->step.n_drafts && !(d->step.rounds > 0))
        return;
    const double lost =
        charge(d, &(struct sched_draft_charge){class, rows, d->step.n_answers + d->step.other_rows,
                                               d->step.rounds, 0, 0});
    d->step.took = 1 + lost;
    d->saved_seconds -= lost * d->step.plain * exp(t->log_unit);
}

void sched_draft_note_seen(struct sched_draft *d, double seconds)
{
    const struct sched_draft_times *t = &d->times[d->step.context];
    if (!t->known || !(seconds > 0) || !isfinite(seconds))
        return;
    const double plain = sched_times_of(t, num_max(1, d->step.n_answers + d->step.other_rows));
    /* or it would keep drafting from being tried again */
    const double most = SEEN_PART * REFILL * (double)(d->n_steps - d->n_seen);
    d->n_seen = d->n_steps;
    refill(d, -fmin(seconds / exp(t->log_unit) / plain, most));
    d->saved_seconds -= seconds;
}

static void count(float *tried, float *right, float fade, bool is_right)
{
    *tried = *tried * fade + 1;
    *right = *right * fade + (is_right ? 1 : 0);
}

void sched_draft_note(struct sched_draft *d, struct sched_draft_session *s, int proposer,
                      int64_t n_tried, int64_t n_right, const float *confidence)
{
    const int k = proposer;
    n_tried = num_min(n_tried, SCHED_DRAFT_DEPTH);
    if (n_tried <= 0)
        return;
    /* behind a wrong token nothing is known */
    for (int64_t j = 0; j < n_tried && j <= n_right; j++) {
        const bool is_right = j < n_right;
        count(&s->record[k].tried[j], &s->record[k].right[j], SESSION_FADE, is_right);
        count(&d->record[k].tried[j], &d->record[k].right[j], ENGINE_FADE, is_right);
        if (confidence) {
            const int bin = bin_of(confidence[j]);
            count(&d->bin_tried[k][bin], &d->bin_right[k][bin], BIN_FADE, is_right);
        }
    }
    for (int64_t j = 0; s->sharp[k] && j < n_tried && j <= n_right; j++)
        count(&d->sharp_tried[k][s->sharp[k] - 1], &d->sharp_right[k][s->sharp[k] - 1], SHARP_FADE,
              j < n_right);
    s->sharp[k] = 0;
    s->n_drafted += n_tried;
    s->n_right += n_right;
    s->ahead += (double)n_right;
    if (s->pause[k] && n_right) {
        s->pause[k] = num_max(s->pause[k] / 2, FIRST_PAUSE);
        s->wait[k] = SHORT_PAUSE;
    } else if (s->pause[k]) {
        s->pause[k] = num_min(2 * s->pause[k], MOST_PAUSE);
        s->wait[k] = s->pause[k];
    }
    if (d->step.n_answers <= 0)
        return;
    const double steps = (double)n_right / (double)d->step.n_answers;
    sched_draft_credit(d, steps);
    d->saved_seconds += steps * d->step.plain * exp(d->times[d->step.context].log_unit);
}
