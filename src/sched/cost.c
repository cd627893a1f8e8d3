/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cost - what a step takes: a + b * rows + c * context + d * logits, followed while steps are seen.
 *
 * Least squares of relative errors, old steps fading, no term below 0.  Where recent
 * steps do not separate terms they stay as they were.  What is far off counts as if it
 * were a little off, so that a pause of the machine changes nothing; when it stays off, the
 * machine has changed: then everything is as much slower or faster until more is known.
 */
#include "sched/sched.h"

#include <math.h>

enum { N = SCHED_COST_TERMS, OFF_FOR_GOOD = 6 };

static const double FADE = 0.97;
static const double STAY = 0.002; /* weight of what was known before, of a step's */
static const double CLIP = 3;    /* errors beyond so many usual ones */
static const double LEAST_ERROR = 0.02, MOST_ERROR = 0.5, FIRST_ERROR = 0.1;
/* Steps that differ in little may be explained by any term: rather by the first ones. */
static const double RATHER[N] = {1, 4, 64, 16};
/* What a term is measured by before more was seen of it; and how slowly that is forgotten. */
static const double FIRST_SCALE[N] = {1, 8, 4096, 8}, SCALE_FADE = 0.9995;

static void terms(struct sched_load l, double x[N])
{
    x[0] = 1;
    x[1] = (double)l.rows;
    x[2] = (double)l.context;
    x[3] = (double)l.logits;
}

double sched_cost_of(const struct sched_cost *c, struct sched_load l)
{
    double x[N], sum = 0;
    terms(l, x);
    for (int i = 0; i < N; i++)
        sum += c->at[i] * x[i];
    return sum;
}

/* The weight by which term i stays what it was. */
static double stay(const struct sched_cost *c, int i)
{
    const double unit = c->typical / c->scale[i];
    return STAY / (unit * unit);
}

/* Solves (xx + weight * stay) out = want for the terms of `set`; the others are 0. */
static void solve(const struct sched_cost *c, unsigned set, const double weight[N],
                  const double want[N], double out[N])
{
    double m[N][N + 1];
    int at[N], n = 0;
    for (int i = 0; i < N; i++) {
        out[i] = 0;
        if (set >> i & 1)
            at[n++] = i;
    }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++)
            m[i][k] = c->xx[at[i]][at[k]] + (i == k ? weight[at[i]] * stay(c, at[i]) : 0);
        m[i][n] = want[at[i]];
    }
    for (int i = 0; i < n; i++) /* positive definite: no pivots */
        for (int k = i + 1; k < n; k++) {
            const double f = m[k][i] / m[i][i];
            for (int j = i; j <= n; j++)
                m[k][j] -= f * m[i][j];
        }
    for (int i = n - 1; i >= 0; i--) {
        double sum = m[i][n];
        for (int k = i + 1; k < n; k++)
            sum -= m[i][k] * out[at[k]];
        out[at[i]] = sum / m[i][i];
    }
}

double sched_cost_most(const struct sched_cost *c, struct sched_load l)
{
    static const double even[N] = {1, 1, 1, 1};
    double x[N], y[N], spread = 0;
    if (!c->n_seen)
        return 0;
    terms(l, x);
    solve(c, (1u << N) - 1, even, x, y);
    for (int i = 0; i < N; i++)
        spread += x[i] * y[i];
    return sched_cost_of(c, l) + c->error * sqrt(spread > 0 ? spread : 0);
}

/* The terms that fit best: of all sets of terms that may be above 0 the best one. */
static void fit(struct sched_cost *c)
{
    double want[N], best[N] = {0}, least = 1e300;
    for (int i = 0; i < N; i++)
        want[i] = c->xy[i] + RATHER[i] * stay(c, i) * c->at[i];
    for (unsigned set = 1; set < 1u << N; set++) {
        double x[N], value = 0;
        bool fits = true;
        solve(c, set, RATHER, want, x);
        for (int i = 0; i < N; i++) {
            fits &= x[i] >= 0;
            value -= want[i] * x[i]; /* twice what is to be least, where it is least */
        }
        if (!fits || value >= least)
            continue;
        least = value;
        for (int i = 0; i < N; i++)
            best[i] = x[i];
    }
    for (int i = 0; i < N && least < 1e300; i++)
        c->at[i] = best[i];
}

static void forget(struct sched_cost *c)
{
    for (int i = 0; i < N; i++) {
        c->xy[i] = 0;
        for (int k = 0; k < N; k++)
            c->xx[i][k] = 0;
    }
    c->error = FIRST_ERROR;
    c->n_off = 0;
}

static void add(struct sched_cost *c, const double x[N], double seconds, double unit)
{
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < N; k++)
            c->xx[i][k] = c->xx[i][k] * FADE + x[i] * x[k] / (unit * unit);
        c->xy[i] = c->xy[i] * FADE + x[i] * seconds / (unit * unit);
    }
    c->typical = unit;
}

static double clip(double x, double most)
{
    return x > most ? most : x < -most ? -most : x;
}

/* Whether an error is one too many of its kind. */
static bool stays_off(struct sched_cost *c, double error, double usual)
{
    const int side = error > 0 ? 1 : -1;
    c->n_off = fabs(error) <= usual ? 0 : c->n_off * side > 0 ? c->n_off + side : side;
    return c->n_off * side >= OFF_FOR_GOOD;
}

void sched_cost_note(struct sched_cost *c, struct sched_load l, double seconds)
{
    double x[N];
    terms(l, x);
    if (!(seconds > 0) || l.rows <= 0)
        return;
    for (int i = 0; i < N; i++)
        c->scale[i] = fmax(fmax(x[i], FIRST_SCALE[i]), c->scale[i] * SCALE_FADE);
    if (!c->n_seen++) {
        forget(c);
        c->at[0] = seconds / 2;
        c->at[1] = seconds / 2 / x[1];
        add(c, x, seconds, seconds);
        return;
    }
    const double want = sched_cost_of(c, l), unit = fmax(want, seconds / 8);
    const double usual = CLIP * (c->error * unit + sched_cost_most(c, l) - want);
    const double error = seconds - want;
    if (stays_off(c, error, usual)) {
        forget(c);
        for (int i = 0; i < N; i++)
            c->at[i] *= want > 0 ? seconds / want : 1;
        add(c, x, seconds, seconds);
    } else {
        add(c, x, want + clip(error, usual), unit);
    }
    fit(c);
    const double part = clip(fabs(error) / unit, 4 * c->error);
    c->error = fmin(MOST_ERROR, fmax(LEAST_ERROR, c->error + 0.1 * (part - c->error)));
}
