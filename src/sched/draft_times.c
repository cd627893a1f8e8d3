/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/draft_times.h"

#include "base/num.h"

#include <math.h>

enum {
    SINGLE = 16,     /* rows with a class of their own */
    OCTAVE = 8,      /* classes of an octave beyond */
    WELL_KNOWN = 40, /* comparisons beyond which an old one counts less */
    WELL_TURNED = 16, /* the same of turns */
    ROW_SCALE = 64,  /* rows of a round as what sched_cost takes for context */
    /* steps back, of which those with drafts and those without are compared as a whole */
    RECENT = 64,
    /* what an answer counts in a round beside its tokens: networks of blocks run whole ones */
    BLOCK_ROWS = 4,
};

const double sched_times_prior_row = 0.12;
/* where a measure is as good as the line through the others */
static const double LITTLE_NOISE = 0.08;
static const double OF_ONE = 0.25;   /* what a single measure weighs for that line */
/* of a first measure, beside what was expected: of its logarithm */
static const double MOST_NEWS = 0.6;
/* two measures that differ by so much of the noise say the same */
static const double ALIKE = 2;
static const double MOST_ODD = 3;    /* a difference counts so many usual ones at most */
/* before steps show it, which counts as so many; of so many steps */
static const double FIRST_NOISE = 0.1, NOISE_PRIOR = 1, NOISE_OF = 20;
static const double LAG_NOISE = 0.5, MOST_LAG = 1; /* of the noise, what may be chance */
static const double PRIOR_ROUND = 0.1, PRIOR_DEEP = 0.03;

static double clip(double x, double most)
{
    return x > most ? most : x < -most ? -most : x;
}

int sched_times_context(int64_t context)
{
    int k = 0;
    for (int64_t most = 2048; k + 1 < SCHED_DRAFT_CONTEXTS && context >= most; most *= 4)
        k++;
    return k;
}

int sched_times_class(int64_t rows)
{
    if (rows <= SINGLE)
        return (int)num_max(rows - 1, 0);
    const double at = SINGLE - 1 + OCTAVE * log2((double)rows / SINGLE);
    return (int)fmin(at + 0.5, SCHED_DRAFT_ROWS - 1);
}

static double rows_of(int class)
{
    return class < SINGLE ? class + 1 : SINGLE * exp2((double)(class - (SINGLE - 1)) / OCTAVE);
}

static double prior_time(double rows)
{
    return 1 + sched_times_prior_row * (rows - 1);
}

/* Rows of the steps that were measured of a class. */
static double seen(const struct sched_draft_times *t, int class)
{
    return (double)t->rows[class];
}

/* Of many numbers of rows that were measured a few times each, that which seems cheapest is mostly
 * one whose measures were lucky.  So the more times differ, the more they are drawn to the line
 * through all of them. */
static double drawn(const struct sched_draft_times *t, double rows, double time, double n)
{
    const double noise = t->noise / LITTLE_NOISE, weight = noise > 1 ? noise * noise - 1 : 0;
    return (n * time + weight * (t->at_none + t->of_row * rows)) / (n + weight);
}

static void draw_line(struct sched_draft_times *t)
{
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (int i = 0; i < SCHED_DRAFT_ROWS; i++) {
        const double w = (double)t->n[i] * (t->n_first[i] < 2 ? OF_ONE : 1),
                     rows = (double)t->rows[i], time = exp((double)t->log_time[i]);
        if (!(w > 0))
            continue;
        n += w;
        x += w * rows;
        y += w * time;
        xx += w * rows * rows;
        xy += w * rows * time;
    }
    const double spread = xx - x * x / n;
    t->of_row = spread > 1e-9 ? fmax(0, (xy - x * y / n) / spread) : 0;
    t->at_none = (y - t->of_row * x) / n;
}

static double measured(const struct sched_draft_times *t, int64_t n_rows)
{
    const double rows = (double)n_rows;
    int below = sched_times_class(n_rows), above = below;
    while (below >= 0 && (!(t->n[below] > 0) || seen(t, below) > rows))
        below--;
    while (above < SCHED_DRAFT_ROWS && (!(t->n[above] > 0) || seen(t, above) < rows))
        above++;
    const double low = below < 0 ? 0 : exp((double)t->log_time[below]);
    const double high = above >= SCHED_DRAFT_ROWS ? 0 : exp((double)t->log_time[above]);
    if (below < 0 && above >= SCHED_DRAFT_ROWS)
        return prior_time(rows);
    if (below < 0)
        return high * prior_time(rows) / prior_time(seen(t, above));
    if (above >= SCHED_DRAFT_ROWS)
        return low * prior_time(rows) / prior_time(seen(t, below));
    if (below == above)
        return low;
    const double from = seen(t, below), part = (rows - from) / (seen(t, above) - from);
    return low + (high - low) * part;
}

double sched_times_of(const struct sched_draft_times *t, int64_t n_rows)
{
    const double time = measured(t, n_rows), n = (double)t->n[sched_times_class(n_rows)];
    return t->of_row > 0 ? drawn(t, (double)n_rows, time, fmax(n, 0.5)) : time;
}

struct sched_draft_times *sched_times_at(struct sched_draft *d, int context)
{
    struct sched_draft_times *t = &d->times[context];
    for (int far = 1; !t->known && far < SCHED_DRAFT_CONTEXTS; far++)
        for (int side = -1; !t->known && side <= 1; side += 2) {
            const int k = context + side * far;
            if (k < 0 || k >= SCHED_DRAFT_CONTEXTS || !d->times[k].known)
                continue;
            *t = d->times[k];
            for (int i = 0; i < SCHED_DRAFT_ROWS; i++)
                t->n[i] = fminf(t->n[i], 2);
        }
    return t;
}

double sched_times_most(const struct sched_draft_times *t, int64_t n_rows)
{
    int below = sched_times_class(n_rows), above = below;
    if (t->n[below] > 0)
        return sched_times_of(t, n_rows);
    while (below >= 0 && !(t->n[below] > 0))
        below--;
    while (above < SCHED_DRAFT_ROWS && !(t->n[above] > 0))
        above++;
    if (above < SCHED_DRAFT_ROWS)
        return fmax(exp((double)t->log_time[above]),
                    below < 0 ? 0 : exp((double)t->log_time[below]));
    return below < 0 ? (double)n_rows
                     : exp((double)t->log_time[below]) * (double)n_rows / seen(t, below);
}

double sched_times_hope(const struct sched_draft_times *t, int64_t from, int64_t n_rows)
{
    const double time = sched_times_of(t, n_rows);
    if (t->n[sched_times_class(n_rows)] >= SCHED_TIMES_LITTLE)
        return time;
    return fmin(time,
                sched_times_of(t, from) * prior_time((double)n_rows) / prior_time((double)from));
}

double sched_times_doubt(const struct sched_draft_times *t, int64_t n_rows)
{
    int below = sched_times_class(n_rows), above = below;
    while (below > 0 && !(t->n[below] > 0))
        below--;
    while (above < SCHED_DRAFT_ROWS - 1 && !(t->n[above] > 0))
        above++;
    const double n = fmax(1, (double)fmaxf(t->n[below], t->n[above]));
    return 1.5 * t->noise * sqrt(1 / n + 1 / fmax(1, t->turns));
}

static double median(double *x, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && x[k] < x[k - 1]; k--) {
            const double y = x[k];
            x[k] = x[k - 1];
            x[k - 1] = y;
        }
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

/* The logarithm of the unit as the last steps of other classes than `class` show it; -1: all of
 * them.  First steps of a class show it where there are no others: they may be long for themselves.
 * Returns how many those are; *firsts: that they are such ones. */
static int unit_of(const struct sched_draft *d, const struct sched_draft_times *t, int class,
                   double *log_unit, bool *firsts)
{
    double x[2][SCHED_DRAFT_LAST];
    int n[2] = {0, 0};
    for (int i = 0; i < d->last.n; i++)
        if (d->last.rows[i] != class) {
            const int first = d->last.first[i];
            x[first][n[first]++] = d->last.log_seconds[i] - (double)t->log_time[d->last.rows[i]];
        }
    const int which = !n[0];
    *firsts = which;
    if (n[which])
        *log_unit = median(x[which], n[which]);
    return n[which];
}

/* A step takes no less than one of fewer rows, and not more in proportion: within these bounds is
 * what was measured once or twice. */
static double believable(const struct sched_draft_times *t, int class, double rows, double log_time)
{
    int below = class - 1;
    while (below >= 0 && !(t->n[below] > 0))
        below--;
    if (below < 0)
        return log_time;
    const double low = (double)t->log_time[below];
    return fmin(fmax(log_time, low), low + log(rows / seen(t, below)));
}

static void note_noise(struct sched_draft_times *t, double error)
{
    t->n_noise = fmin(t->n_noise + 1, NOISE_OF);
    t->noise += (fmin(fabs(error), MOST_ODD * t->noise + LITTLE_NOISE) - t->noise) /
                (t->n_noise + NOISE_PRIOR);
}

/* What the first measures of a class show, of which each may be a long one: something else ran, or
 * memory was not warm.  Of two that differ the shorter one counts, of three the middle one. */
static double first_of(const struct sched_draft_times *t, int class)
{
    const int n = t->n_first[class];
    double x[SCHED_DRAFT_FIRST];
    for (int i = 0; i < n; i++)
        x[i] = (double)t->first[class][i];
    return n == 2 ? fmin((x[0] + x[1]) / 2, fmin(x[0], x[1]) + ALIKE / 2 * t->noise) : median(x, n);
}

/* What a row adds, in plain steps, as all classes show it: of two that differ the smaller counts,
 * of more the middle one.  A single one does not show it. */
static double row_of(const struct sched_draft_times *t, int plain)
{
    double x[SCHED_DRAFT_ROWS];
    int n = 0;
    for (int i = plain + 1; i < SCHED_DRAFT_ROWS; i++)
        if (t->n[i] > 0) {
            const double log_time = (double)(t->n_first[i] == 1 ? t->first[i][0] : t->log_time[i]);
            const double more = exp(log_time - (double)t->log_time[plain]) - 1;
            x[n++] = fmax(0, fmin(more / (seen(t, i) - seen(t, plain)), 1 / seen(t, plain)));
        }
    if (n < 2)
        return sched_times_prior_row / prior_time(seen(t, plain));
    return n == 2 ? fmin(x[0], x[1]) : median(x, n);
}

/* One measure alone moves by a bound what is expected from others. */
static void expect_singles(struct sched_draft_times *t, int plain)
{
    const double row = t->n[plain] > 0 ? row_of(t, plain) : sched_times_prior_row,
                 unit = exp((double)t->log_time[plain]);
    for (int i = plain + 1; i < SCHED_DRAFT_ROWS; i++) {
        if (t->n_first[i] != 1)
            continue;
        int below = i - 1;
        while (below > plain && t->n_first[below] < 2)
            below--;
        int above = i + 1;
        while (above < SCHED_DRAFT_ROWS && t->n_first[above] < 2)
            above++;
        const double from = exp((double)t->log_time[below]), far = seen(t, i) - seen(t, below);
        double guess = from + unit * row * far;
        if (above < SCHED_DRAFT_ROWS)
            guess = from + (exp((double)t->log_time[above]) - from) * far /
                               (seen(t, above) - seen(t, below));
        const double x = log(fmax(guess, 1e-3));
        t->log_time[i] =
            (float)believable(t, i, seen(t, i), x + clip((double)t->first[i][0] - x, MOST_NEWS));
    }
}

/* Of the first two steps without drafts the shorter one gives the unit of what was measured with
 * them. */
static void shorten_unit(struct sched_draft_times *t, int plain, double difference)
{
    for (int i = 0; i < SCHED_DRAFT_ROWS; i++) {
        for (int j = 0; j < t->n_first[i]; j++)
            t->first[i][j] -= (float)difference;
        if (i != plain)
            t->log_time[i] -= (float)difference;
    }
    t->first[plain][t->n_first[plain]++] = t->log_time[plain];
    expect_singles(t, plain);
    draw_line(t);
}

/* A step among others of its class: they show how much times differ, and that this class is known
 * by more than one. */
static void repeat(struct sched_draft_times *t, int class, double difference, bool plain)
{
    const double error = difference - (double)t->log_time[class];
    note_noise(t, clip(error, 1));
    t->n[class] = fmaxf(t->n[class], fminf(t->n[class] + 0.25f, SCHED_TIMES_LITTLE));
    if (plain && t->n_first[class] == 1 && error < -ALIKE * FIRST_NOISE)
        shorten_unit(t, class, error);
}

/* What this class takes, compared with so many others just before it.  A single step that a busy
 * machine made long counts a little; and so does a comparison with few, which the next steps will
 * be compared with, too. */
static void compare(struct sched_draft_times *t, int64_t rows, double difference, int n_others)
{
    const int class = sched_times_class(rows);
    const float weight = fminf(1, (float)n_others / 4);
    const float n = t->n[class];
    const double most = n < SCHED_TIMES_FAIRLY ? 0.4 : 0.2;
    const double error = clip(difference - (double)t->log_time[class], most);
    if (n > 0)
        note_noise(t, error);
    if (t->n_first[class] < SCHED_DRAFT_FIRST) {
        t->first[class][t->n_first[class]++] = (float)difference;
        t->log_time[class] = (float)believable(t, class, (double)rows, first_of(t, class));
    } else {
        t->log_time[class] += (float)error * weight / (n + weight);
    }
    t->rows[class] = n > 0 ? t->rows[class] + ((float)rows - t->rows[class]) * weight / (n + weight)
                           : (float)rows;
    t->n[class] = n > 0 ? fminf(n + weight, WELL_KNOWN) : 1;
    expect_singles(t, t->plain);
    draw_line(t);
}

/* Steps with drafts are mostly compared with each other, and may all be off together: a step
 * without drafts shows that of those around it.  They move as one, so that they stay apart from
 * each other as they are. */
static void correct(struct sched_draft *d, struct sched_draft_times *t, int class,
                    double difference)
{
    static const double MOST = 0.7, LONGER = 0.2; /* one that is long may be so for other reasons */
    const double error = fmin(clip(difference - (double)t->log_time[class], MOST), LONGER);
    const int before = (int)((d->last.i + SCHED_DRAFT_LAST - 1) % SCHED_DRAFT_LAST);
    bool moved[SCHED_DRAFT_ROWS] = {false};
    if (!(t->n[class] > 0) ||
        d->last.rows[d->last.n < SCHED_DRAFT_LAST ? d->last.n - 1 : before] == class)
        return;
    t->turns = fmin(t->turns + 1, WELL_TURNED);
    const double part = 1 / (t->turns + 1);
    for (int i = 0; i < d->last.n; i++) {
        const int other = d->last.rows[i];
        if (other == class || moved[other])
            continue;
        moved[other] = true;
        t->log_time[other] -= (float)(part * error);
        for (int j = 0; j < t->n_first[other]; j++)
            t->first[other][j] -= (float)(part * error);
    }
}

/* ---- the time of a round ---- */

static struct sched_load round_load(int64_t n_answers, int64_t deep, int64_t tokens)
{
    return (struct sched_load){deep, (n_answers * BLOCK_ROWS + tokens) * ROW_SCALE, 0};
}

double sched_times_round(const struct sched_draft *d, int k, int64_t n_answers, int64_t deep,
                         int64_t tokens)
{
    if (!deep)
        return 0;
    if (!d->round[k].n_seen)
        return PRIOR_ROUND + PRIOR_DEEP * (double)deep;
    return sched_cost_of(&d->round[k], round_load(n_answers, deep, tokens));
}

double sched_times_note_round(struct sched_draft *d, int k, int64_t n_answers, int64_t deep,
                              int64_t tokens, double seconds)
{
    const struct sched_draft_times *t = &d->times[d->step.context];
    const struct sched_load load = round_load(n_answers, deep, tokens);
    if (!t->known || !(seconds > 0) || !isfinite(seconds) || deep <= 0)
        return 0;
    const double units = seconds / exp(t->log_unit);
    sched_cost_note(&d->round[k], load, units);
    return fmin(units, 3 * sched_cost_of(&d->round[k], load));
}

/* ---- what took place ---- */

/* The logarithm of the unit as the last steps with or without drafts show it.  Returns how many
 * those are. */
static int unit_by(const struct sched_draft *d, const struct sched_draft_times *t, bool drafts,
                   double *log_unit)
{
    double x[SCHED_DRAFT_KEPT];
    int n = 0;
    for (int64_t i = 0; i < num_min(d->kept[drafts].n, SCHED_DRAFT_KEPT); i++)
        if (d->n_steps - d->kept[drafts].step[i] <= RECENT)
            x[n++] = d->kept[drafts].log_seconds[i] - (double)t->log_time[d->kept[drafts].rows[i]];
    if (n)
        *log_unit = median(x, n);
    if (n && !drafts)
        *log_unit = x[(n - 1) / 2]; /* sorted by now; of two the shorter one */
    return n;
}

/* Times of steps with drafts may be off together, and go on being so, as they are mostly compared
 * with each other.  Many of them against many without show that.  First steps of a class may be
 * long for themselves. */
static void keep(struct sched_draft *d, const struct sched_draft_times *t, int class,
                 double log_seconds, bool plain, bool first)
{
    if (plain || !first) {
        const int at = (int)(d->kept[!plain].n++ % SCHED_DRAFT_KEPT);
        d->kept[!plain].rows[at] = class;
        d->kept[!plain].log_seconds[at] = log_seconds;
        d->kept[!plain].step[at] = d->n_steps;
    }
    double with = 0, without = 0;
    const int n = unit_by(d, t, true, &with), n_without = unit_by(d, t, false, &without);
    d->lag = 0;
    if (n >= SCHED_TIMES_LITTLE && n_without >= SCHED_TIMES_LITTLE)
        d->lag =
            fmin(fmax(0, with - without - LAG_NOISE * t->noise * sqrt(1.0 / n + 1.0 / n_without)),
                 MOST_LAG);
}

/* Steps of another class of context are not compared with these. */
static void forget(struct sched_draft *d)
{
    d->last.n = 0;
    d->kept[0].n = d->kept[1].n = 0;
}

static void note_time(struct sched_draft *d, int64_t rows, int context, double log_seconds,
                      bool plain)
{
    struct sched_draft_times *t = sched_times_at(d, context);
    const int class = sched_times_class(rows);
    double unit = 0;
    if (d->last.context != context)
        forget(d);
    d->last.context = context;
    if (!t->known) {
        t->log_unit = log_seconds - log(prior_time(rows_of(class)));
        t->noise = FIRST_NOISE;
    }
    t->known = true;
    const bool first = !t->n_first[class];
    if (plain)
        t->plain = class;
    bool firsts, all;
    const int n_others = unit_of(d, t, class, &unit, &firsts);
    /* or it is as likely those that were long as this one that is short */
    const bool usable = n_others && (first || !firsts);
    if (usable && plain)
        correct(d, t, class, log_seconds - unit);
    if (usable || first)
        compare(t, rows, log_seconds - (n_others ? unit : t->log_unit), n_others);
    else
        repeat(t, class, log_seconds - t->log_unit, plain);
    const int i = (int)(d->last.i++ % SCHED_DRAFT_LAST);
    d->last.n = (int)num_min(d->last.n + 1, SCHED_DRAFT_LAST);
    const int at = d->last.n < SCHED_DRAFT_LAST ? d->last.n - 1 : i;
    d->last.rows[at] = class;
    d->last.first[at] = first;
    d->last.log_seconds[at] = log_seconds;
    if (unit_of(d, t, -1, &unit, &all))
        t->log_unit = unit;
    keep(d, t, class, log_seconds, plain, first);
}

void sched_times_note(struct sched_draft *d, int64_t rows, int context, double seconds, bool plain)
{
    if (seconds > 0 && isfinite(seconds) && rows > 0 &&
        (double)rows < rows_of(SCHED_DRAFT_ROWS - 1))
        note_time(d, rows, context, log(seconds), plain);
    else
        d->last.n = 0;
}
